//! A message that a proxy forwards for its successor (`proxy/successor`) is routed as the message itself.

use super::*;

fn wrapped(id: Option<u32>, method: &str, params: &str) -> String {
    let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
    format!(r#"{{{id}"method":"proxy/successor","params":{{"method":"{method}","params":{params}}}}}"#)
}

/// Two workers, and two clients with a session each, created by wrapped requests.
fn sessions() -> (Bench, [Peer; 2], [Peer; 2]) {
    let mut bench = bench(2);
    let clients = [bench.client(), bench.client()];
    let workers = [bench.worker(0), bench.worker(1)];
    for at in [0, 1] {
        bench.write(clients[at], &wrapped(Some(1), "session/new", r#"{"cwd":"/"}"#));
        bench.read_one(workers[at]);
        bench.write(workers[at], &format!(r#"{{"id":1,"result":{{"sessionId":"s{at}"}}}}"#));
        bench.read_one(clients[at]);
    }
    (bench, clients, workers)
}

#[test]
fn a_message_in_a_proxys_envelope_is_in_the_session_that_it_names() {
    let (mut bench, clients, workers) = sessions();
    for at in [0, 1, 1, 0] {
        let line = wrapped(Some(2), "session/prompt", &format!(r#"{{"sessionId":"s{at}"}}"#));
        bench.write(clients[at], &line);
        assert_eq!(bench.read_one(workers[at]), line);
        let update = wrapped(None, "session/update", &format!(r#"{{"sessionId":"s{at}"}}"#));
        bench.write(workers[at], &update);
        assert_eq!(bench.read_one(clients[at]), update);
        bench.write(workers[at], r#"{"id":2,"result":{}}"#);
        bench.read_one(clients[at]);
    }
}

#[test]
fn an_envelope_opens_no_session_of_another_client() {
    let (mut bench, clients, workers) = sessions();
    let envelopes = [
        wrapped(Some(2), "session/prompt", r#"{"sessionId":"s0"}"#),
        wrapped(Some(2), "session/prompt", r#"{"session\u0049d":"s0"}"#),
        wrapped(Some(2), "session/prompt", r#"{"sessionId":"s0"}"#).replace("proxy/", "_proxy/"),
        wrapped(Some(2), "session/prompt", r#"{"sessionId":"s0"}"#).replacen('{', r#"{"sessionId":"s1","#, 1),
        wrapped(Some(2), "session/prompt", r#"{"sessionId":"s1"}"#)
            .replace(r#""params":{"m"#, r#""params":{"sessionId":"s0","m"#),
    ];
    for line in envelopes {
        bench.write(clients[1], &line);
        assert_eq!(bench.read_error(clients[1]).0, "session_denied", "{line}");
    }
    assert!(workers.into_iter().all(|worker| bench.read(worker).is_empty()));
    bench.write(clients[1], &wrapped(Some(2), "x", r#"{"sessionId":"s1","sessionId":"s0"}"#));
    assert_eq!(bench.count(Reason::ClientMalformed), 1);
}

#[test]
fn a_cancellation_in_an_envelope_has_the_id_that_the_worker_knows() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for client in [first, second] {
        bench.write(client, &wrapped(Some(5), "x", "{}"));
    }
    let seen = bench.read(worker);
    let id = &seen[1][6..seen[1].find(r#","method""#).unwrap()];
    bench.write(second, &wrapped(None, "$/cancel_request", r#"{"requestId":5}"#));
    assert_eq!(bench.read_one(worker), wrapped(None, "$/cancel_request", &format!(r#"{{"requestId":{id}}}"#)));
}

#[test]
fn a_method_that_a_pool_denies_is_denied_in_an_envelope_too() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.pools[0].deny_methods = vec!["session/list".into()];
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, &wrapped(Some(1), "session/list", "{}"));
    assert_eq!(bench.read_error(client).0, "method_denied");
    assert!(bench.read(worker).is_empty());
}

#[test]
fn an_envelope_that_a_pool_denies_starts_no_worker_whatever_is_in_it() {
    let first =
        Pool { max_instances: 3, deny_methods: vec!["proxy/successor".into()], ..pool(1, Assignment::Dedicated) };
    let mut bench = Bench::new(settings(vec![first]));
    let client = bench.client();
    bench.write(client, &wrapped(Some(1), "x", "{}"));
    assert_eq!(bench.read_error(client), ("method_denied".into(), -32601, Value::from(1)));
    assert_eq!(bench.workers.len(), 1, "the spare is where it was");
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert_eq!(bench.workers.len(), 2);
}

#[test]
fn an_envelope_in_an_envelope_is_not_opened() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    let line = wrapped(Some(1), "proxy/successor", r#"{"method":"session/prompt","params":{"sessionId":"x"}}"#);
    bench.write(client, &line);
    assert_eq!(bench.read_json(client)["id"], 1, "it is notified");
    assert_eq!(bench.read(worker), [""; 0]);
    assert_eq!(bench.bus.view().stats().sessions, 0);
}
