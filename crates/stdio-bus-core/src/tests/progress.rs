//! A message about one request reaches the client that has made it: progress by its token, subscriptions by the id of
//! the listening request (MCP). Tokens are unchanged unless two requests would be confused, and restored exactly.

use super::*;

/// A request with this id and this progress token.
fn asks(id: &str, token: &str) -> String {
    format!(
        r#"{{"id":{id},"method":"tools/call","params":{{"name":"x","_meta":{{"progressToken":{token},"a":{{}}}}}}}}"#
    )
}

fn progress(token: &str) -> String {
    format!(r#"{{"method":"notifications/progress","params":{{"progress":1,"progressToken":{token}}}}}"#)
}

fn answer(id: &str) -> String {
    format!(r#"{{"id":{id},"result":{{}}}}"#)
}

/// The id and the token of a line written by [`asks`].
fn names(line: &str) -> (String, String) {
    let between = |begin: &str, end: &str| {
        let rest = &line[line.find(begin).unwrap() + begin.len()..];
        rest[..rest.find(end).unwrap()].to_owned()
    };
    (between(r#""id":"#, r#","method""#), between(r#""progressToken":"#, r#","a""#))
}

/// A shared worker that both clients have used.
fn shared() -> (Bench, Peer, Peer, Peer) {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for client in [first, second] {
        bench.write(client, r#"{"method":"notifications/initialized"}"#);
    }
    bench.read(worker);
    (bench, first, second, worker)
}

/// Each of them sends a request; returns what the worker has read of them.
fn ask(bench: &mut Bench, worker: Peer, client: Peer, id: &str, token: &str) -> (String, String) {
    bench.write(client, &asks(id, token));
    let line = bench.read_one(worker);
    let (seen_id, seen_token) = names(&line);
    assert_eq!(line, asks(&seen_id, &seen_token));
    (seen_id, seen_token)
}

#[test]
fn progress_is_sent_to_the_client_that_asked_under_its_own_token() {
    // The TypeScript and Python SDKs use the id as the token, Rust's rmcp counts on its own.
    for (ids, tokens) in [
        (["0", "0"], ["0", "0"]),
        (["0", "1"], ["7", "7"]),
        (["5", "6"], ["5", "5"]),
        (["6", "5"], ["5", "5"]),
        (["0", "0"], [r#""a""#, r#""\u0061""#]),
        (["0", "0"], ["0", "0.0"]),
        (["1.0", "1.0"], ["1.0", "1"]),
        ([r#""x""#, r#""x""#], [r#""x""#, r#""x""#]),
        (["1", "2"], ["1e400", "1e400"]),
        (["1", "2"], ["2000000000", "2000000001"]),
        (["1", "1"], [r#""1""#, r#""1""#]),
    ] {
        let (mut bench, first, second, worker) = shared();
        let clients = [first, second];
        let seen: Vec<_> = (0..2).map(|at| ask(&mut bench, worker, clients[at], ids[at], tokens[at])).collect();
        assert_ne!(seen[0].1, seen[1].1, "{ids:?} {tokens:?}");
        for at in [1, 0, 1] {
            assert_eq!(seen[at].1.starts_with('"'), tokens[at].starts_with('"'), "a string stays a string");
            bench.write(worker, &progress(&seen[at].1));
            assert_eq!(bench.read_one(clients[at]), progress(tokens[at]));
            assert!(bench.read(clients[1 - at]).is_empty());
        }
        for at in [0, 1] {
            bench.write(worker, &answer(&seen[at].0));
            assert_eq!(bench.read_one(clients[at]), answer(ids[at]));
        }
        assert_eq!(bench.bus.view().stats().pending, 0);
        bench.bus.check_invariants();
    }
}

#[test]
fn a_token_is_unchanged_unless_another_client_of_that_worker_has_used_it() {
    let (mut bench, first, second, worker) = shared();
    for (id, token) in [("1", "1"), ("2", "9"), ("\"a\"", "\"b\"")] {
        assert_eq!(ask(&mut bench, worker, first, id, token), (id.into(), token.into()));
        bench.write(worker, &answer(id));
    }
    for (id, token) in [("700000", "700000"), ("700001", "900000"), ("\"c\"", "\"d\"")] {
        assert_eq!(ask(&mut bench, worker, second, id, token), (id.into(), token.into()));
        bench.write(worker, &answer(id));
    }
    for token in ["9", "\"b\"", "\"9\""] {
        let (id, seen) = ask(&mut bench, worker, second, "700002", token);
        assert!(id == "700002" && seen != token, "{token}");
        bench.write(worker, &answer(&id));
    }
    // A token that equals the id follows it.
    let (id, token) = ask(&mut bench, worker, second, "3", "3");
    assert!(id == token && id != "3", "{id} {token}");
}

#[test]
fn progress_of_a_finished_or_unknown_request_is_dropped() {
    let (mut bench, first, second, worker) = shared();
    ask(&mut bench, worker, first, "1", "1");
    ask(&mut bench, worker, first, "2", "8");
    bench.write(worker, &answer("1"));
    bench.write(worker, &answer("2"));
    bench.read(first);
    for token in ["1", "8", "77", r#""1""#, "1e999"] {
        bench.write(worker, &progress(token));
    }
    bench.write(worker, &progress(&format!(r#""{}""#, "t".repeat(1000))));
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
    assert_eq!((bench.count(Reason::UnknownRequest), bench.count(Reason::Unroutable)), (6, 0));
    assert!(bench.closed.is_empty());
}

#[test]
fn progress_for_a_client_that_has_left_is_dropped_and_its_token_is_never_anothers() {
    let (mut bench, first, second, worker) = shared();
    ask(&mut bench, worker, first, "1", "8");
    bench.ends(first);
    bench.breaks(first);
    bench.gone(first);
    let (_, token) = ask(&mut bench, worker, second, "2", "8");
    assert_ne!(token, "8");
    bench.write(worker, &progress("8"));
    assert!(bench.read(second).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
    bench.write(worker, &answer("1"));
    assert_ne!(ask(&mut bench, worker, second, "3", "8").1, "8");
    bench.write(worker, &progress("8"));
    assert!(bench.read(second).is_empty());
    bench.write(worker, &progress(&token));
    assert_eq!(bench.read_one(second), progress("8"));
}

#[test]
fn the_token_of_a_request_that_was_forgotten_is_not_used_again() {
    let (mut bench, first, second, worker) = shared();
    ask(&mut bench, worker, first, "1", "8");
    bench.write(first, r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#);
    bench.read(worker);
    assert_ne!(ask(&mut bench, worker, second, "2", "8").1, "8");
    bench.pass(seconds(6));
    // It is not in the table any more, but the worker may still report its progress.
    assert_ne!(ask(&mut bench, worker, second, "3", "8").1, "8");
    bench.write(worker, &progress("8"));
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
    assert_ne!(ask(&mut bench, worker, first, "4", "8").1, "8", "not even by its client");
    // MCP servers do not answer cancelled requests: other tokens stay unchanged.
    assert_eq!(ask(&mut bench, worker, second, "\"a\"", "\"b\"").1, "\"b\"");
    assert_eq!(ask(&mut bench, worker, second, "500000", "500000").1, "500000");
}

#[test]
fn a_worker_gets_the_progress_of_its_request_to_a_client() {
    let mut bench = bench(2);
    let (first, second) = (bench.client(), bench.client());
    let workers = [bench.worker(0), bench.worker(1)];
    // Both workers have a session of the first client, and one of the second client.
    for (client, worker, name) in [(first, 0, "a"), (first, 1, "b"), (second, 0, "c"), (second, 1, "d")] {
        bench.write(client, &format!(r#"{{"id":"{name}","method":"x","sessionId":"{name}"}}"#));
        bench.read(workers[worker]);
    }
    let asks = |session: &str, token: &str| {
        let params = format!(r#"{{"sessionId":"{session}","_meta":{{"progressToken":{token},"a":1}}}}"#);
        format!(r#"{{"id":0,"method":"sampling/createMessage","params":{params}}}"#)
    };
    let mut seen = Vec::new();
    for (worker, name) in [(0, "a"), (1, "b")] {
        bench.write(workers[worker], &asks(name, "3"));
        seen.push(names(&bench.read_one(first)).1);
    }
    assert!(seen[0] == "3" && seen[1] != "3", "{seen:?}");
    for at in [1, 0] {
        bench.write(first, &progress(&seen[at]));
        assert_eq!(bench.read_one(workers[at]), progress("3"));
        assert!(bench.read(workers[1 - at]).is_empty());
    }
    // Another client may not report the progress of this request.
    bench.write(second, &progress("3"));
    bench.write(second, &progress("4").replace(r#""method""#, r#""sessionId":"c","method""#));
    assert!(bench.read(workers[0]).is_empty() && bench.read(workers[1]).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 2);
}

#[test]
fn an_answer_that_repeats_a_replaced_token_has_the_one_of_its_client() {
    let (mut bench, first, second, worker) = shared();
    ask(&mut bench, worker, first, "1", "7");
    let (id, token) = ask(&mut bench, worker, second, "\"a\"", "7");
    assert!(id == "\"a\"" && token != "7", "{token}");
    let repeats = |token: &str| format!(r#"{{"id":"a","result":{{"_meta":{{"progressToken":{token}}}}}}}"#);
    bench.write(worker, &repeats(&token));
    assert_eq!(bench.read_one(second), repeats("7"));
}

#[test]
fn a_worker_of_one_client_alone_sends_it_everything() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Dedicated)]));
    let client = bench.client();
    bench.write(client, &asks("1", "1"));
    let worker = bench.worker(0);
    bench.write(worker, &answer("1"));
    bench.read(client);
    // A task continues after the answer to the request that has started it.
    bench.write(worker, &progress("1"));
    assert_eq!(bench.read_one(client), progress("1"));
    // But the client knows nothing of what replaced its token.
    bench.write(worker, &progress("2000000000"));
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
}

#[test]
fn messages_of_a_subscription_go_to_its_client_under_its_own_id() {
    const LISTEN: &str = r#"{"id":ID,"method":"subscriptions/listen","params":{"_meta":{"x":1}}}"#;
    const NOTIFICATION: &str =
        r#"{"method":"METHOD","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":ID,"x":{}}}}"#;
    const OVER: &str = r#"{"id":ID,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":ID,"x":1},"y":0}}"#;
    for id in ["0", r#""\u0061""#, "1.0"] {
        let (mut bench, first, second, worker) = shared();
        let mut seen = Vec::new();
        for client in [first, second] {
            bench.write(client, &LISTEN.replace("ID", id));
            let line = bench.read_one(worker);
            seen.push(line[6..line.find(r#","method"#).unwrap()].to_owned());
        }
        let methods = [
            "notifications/subscriptions/acknowledged",
            "notifications/tools/list_changed",
            "notifications/resources/updated",
        ];
        for method in methods {
            for (at, client) in [(1, second), (0, first)] {
                bench.write(worker, &NOTIFICATION.replace("METHOD", method).replace("ID", &seen[at]));
                assert_eq!(bench.read_one(client), NOTIFICATION.replace("METHOD", method).replace("ID", id));
            }
        }
        for (at, client) in [(0, first), (1, second)] {
            bench.write(worker, &OVER.replace("ID", &seen[at]));
            assert_eq!(bench.read_one(client), OVER.replace("ID", id));
            bench.write(worker, &NOTIFICATION.replace("METHOD", methods[1]).replace("ID", &seen[at]));
            assert!(bench.read(client).is_empty());
        }
        assert_eq!(bench.count(Reason::UnknownRequest), 2);
    }
}

#[test]
fn an_echoing_worker_answers_with_the_clients_own_names() {
    let (mut bench, first, second, worker) = shared();
    for client in [first, second] {
        bench.write(client, &asks("0", "3"));
    }
    for line in bench.read(worker) {
        bench.write(worker, &line);
    }
    for client in [first, second] {
        assert_eq!(bench.read_one(client), asks("0", "3"));
    }
}

#[test]
fn a_token_that_is_none_passes_and_one_that_is_too_long_is_refused() {
    let (mut bench, first, _, worker) = shared();
    for token in ["null", "{}", "[1]", "true"] {
        bench.write(first, &asks("1", token));
        assert_eq!(bench.read_one(worker), asks("1", token));
        bench.write(worker, &answer("1"));
        bench.read(first);
    }
    bench.write(first, &asks("1", &format!(r#""{}""#, "t".repeat(129))));
    assert_eq!(bench.read_error(first), ("id_too_long".into(), -32602, json!(1)));
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_duplicate_token_makes_the_line_malformed() {
    let (mut bench, first, _, worker) = shared();
    bench.write(first, r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1,"progress\u0054oken":2}}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.how_closed(first), Some(Close::Flush));
    assert_eq!(bench.count(Reason::ClientMalformed), 1);
    let key = r#""io.modelcontextprotocol/subscriptionId""#;
    bench.write(worker, &format!(r#"{{"method":"x","params":{{"_meta":{{{key}:1,{key}:1}}}}}}"#));
    assert_eq!(bench.count(Reason::WorkerMalformed), 1);
}
