//! MCP servers that clients offer a worker over ACP: a message for one of them reaches the client that offers it.

use super::*;

/// A request for a session that offers these servers.
fn offers(id: u32, method: &str, servers: &str) -> String {
    let session = if method == "session/new" { String::new() } else { format!(r#""sessionId":"{id}","#) };
    format!(r#"{{"id":{id},"method":"{method}","params":{{{session}"mcpServers":[{servers}]}}}}"#)
}

fn server(id: &str) -> String {
    format!(r#"{{"type":"acp","name":"x","id":"{id}"}}"#)
}

/// A message of a server, with the server's own request id.
fn message(server: &str, request: &str) -> String {
    format!(
        r#"{{"method":"mcp/message","params":{{"serverId":"{server}","requestId":{request},"method":"tools/list"}}}}"#
    )
}

fn asks(id: u32, server: &str, request: &str) -> String {
    message(server, request).replacen('{', &format!(r#"{{"id":{id},"#), 1)
}

/// A shared worker that two clients have each offered a server: "a" and "b".
fn offered(first: &str, second: &str) -> (Bench, [Peer; 2], Peer) {
    let mut bench = bench(1);
    let (clients, worker) = ([bench.client(), bench.client()], bench.worker(0));
    for (client, id, servers) in [(clients[0], 1, first), (clients[1], 2, second)] {
        bench.write(client, &offers(id, "session/new", servers));
        bench.read_one(worker);
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"s{id}"}}}}"#));
        bench.read_one(client);
    }
    (bench, clients, worker)
}

#[test]
fn messages_for_an_mcp_server_go_to_the_client_that_offers_it() {
    let (mut bench, [first, second], worker) =
        offered(&server("a"), &format!(r#"7,{{"type":"http","id":"a"}},{}"#, server("b")));
    for (name, client, other) in [("a", first, second), ("b", second, first), ("a", first, second)] {
        bench.write(worker, &message(name, "1"));
        assert_eq!(bench.read_one(client), message(name, "1"));
        bench.write(worker, &asks(0, name, "1"));
        assert_eq!(bench.read_one(client), asks(0, name, "1"));
        bench.write(client, r#"{"id":0,"result":{}}"#);
        assert_eq!(bench.read_one(worker), r#"{"id":0,"result":{}}"#);
        assert!(bench.read(other).is_empty());
    }
    bench.write(worker, &message("c", "1"));
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
    assert_eq!(bench.count(Reason::Unroutable), 1);
}

#[test]
fn the_first_1024_servers_of_a_request_are_looked_at() {
    let before = |count: usize| vec!["7"; count].join(",");
    for (count, is_known) in [(1023, true), (1024, false)] {
        let (mut bench, [first, _], worker) = offered(&format!("{},{}", before(count), server("a")), "");
        bench.write(worker, &message("a", "1"));
        assert_eq!(bench.read(first).len(), usize::from(is_known));
    }
}

#[test]
fn a_server_is_known_from_each_request_for_a_session() {
    for method in ["session/new", "session/load", "session/resume", "session/fork"] {
        let (mut bench, [first, second], worker) = offered(&server("a"), "");
        bench.write(second, &offers(3, method, &server("b")));
        bench.read_one(worker);
        bench.write(worker, &message("b", "1"));
        assert_eq!(bench.read_one(second), message("b", "1"), "{method}");
        assert!(bench.read(first).is_empty());
    }
}

#[test]
fn the_request_id_of_an_mcp_server_is_not_one_of_the_bus() {
    let (mut bench, [first, second], worker) = offered(&server("a"), &server("b"));
    // Both have sent the id 9, so the second one is replaced.
    for client in [first, second] {
        bench.write(client, r#"{"id":9,"method":"x"}"#);
    }
    bench.read(worker);
    for line in [message("a", "9"), message("a", "2000000000"), asks(0, "a", "9")] {
        bench.write(worker, &line);
        assert_eq!(bench.read_one(first), line);
    }
    for line in [message("b", "9"), asks(0, "b", "9")] {
        bench.write(second, &line);
        assert_eq!(bench.read_one(worker), line);
    }
}

#[test]
fn messages_of_a_server_go_to_the_worker_to_which_it_was_offered() {
    let mut bench = bench(3);
    let client = bench.client();
    for at in 0..3 {
        bench.write(client, &offers(at, "session/new", &server(&format!("s{at}"))));
    }
    let workers = [0, 1, 2].map(|at| bench.worker(at));
    workers.iter().for_each(|worker| drop(bench.read_one(*worker)));
    for (at, worker) in workers.into_iter().enumerate().rev() {
        let line = message(&format!("s{at}"), "1");
        bench.write(client, &line);
        assert_eq!(bench.read_one(worker), line);
    }
}

#[test]
fn a_server_that_two_clients_call_the_same_is_neithers_until_one_of_them_has_left() {
    let (mut bench, [first, second], worker) = offered(&server("a"), &server("a"));
    bench.write(worker, &message("a", "1"));
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
    assert_eq!(bench.count(Reason::Unroutable), 1);
    let (mut bench, [first, second], worker) = offered(&server("a"), "");
    bench.breaks(first);
    bench.gone(first);
    bench.write(worker, &message("a", "1"));
    assert!(bench.read(second).is_empty(), "it was the first one's");
    bench.write(second, &offers(3, "session/new", &server("a")));
    bench.read_one(worker);
    bench.write(worker, &message("a", "1"));
    assert_eq!(bench.read_one(second), message("a", "1"));
}

#[test]
fn the_messages_of_a_server_go_to_the_newer_connection_of_its_user() {
    let mut bench = bench(1);
    let mut named = || {
        let names = crate::origin::Names { token: Some("alice".into()), ..Default::default() };
        let origin = Origin { names: names.into(), ..Place::Inherited.into() };
        Peer::Client(bench.connect(0, origin).expect("there is room"))
    };
    let (gone, old) = (named(), named());
    bench.breaks(gone);
    bench.gone(gone);
    let names = crate::origin::Names { token: Some("alice".into()), ..Default::default() };
    let origin = Origin { names: names.into(), ..Place::Inherited.into() };
    // It gets the slot of the one that has left, before the older one.
    let new = Peer::Client(bench.connect(0, origin).expect("there is room"));
    let worker = bench.worker(0);
    for (client, id) in [(old, 1), (new, 2)] {
        bench.write(client, &offers(id, "session/new", &server("a")));
        bench.read_one(worker);
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"s{id}"}}}}"#));
        bench.read_one(client);
    }
    bench.write(worker, &message("a", "1"));
    assert_eq!((bench.read(new), bench.read(old).len()), (vec![message("a", "1")], 0));
    assert_eq!(bench.count(Reason::Unroutable), 0);
}

#[test]
fn only_messages_of_a_server_go_to_the_worker_to_which_it_was_offered() {
    let mut bench = bench(2);
    let client = bench.client();
    bench.write(client, &offers(0, "session/new", &server("a")));
    bench.busy_worker();
    let mut readers = Vec::new();
    for _ in 0..4 {
        bench.write(client, r#"{"method":"x","params":{"serverId":"a"}}"#);
        readers.push(bench.busy_worker());
    }
    assert!(readers[0] != readers[1] && readers[1] != readers[2], "they take turns");
}
