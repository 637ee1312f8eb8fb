//! Workers that echo their input, as `cat` does.

use super::*;

#[test]
fn an_echoed_request_is_the_answer() {
    let mut bench = bench(1);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"method":"hello","params":{"a":1}}"#,
        r#"{"id":"one","method":"session/prompt","sessionId":"s"}"#,
        r#"{"id":2}"#,
        r#"{"id":3,"method":"ping"}"#,
    ] {
        bench.write(client, line);
        bench.write(worker, line);
        assert_eq!(bench.read_one(client), line);
        assert_eq!(bench.bus.view().stats().pending, 0);
    }
    assert!(bench.read(other).is_empty());
    assert_eq!(bench.count(Reason::Unroutable) + bench.count(Reason::UnknownId), 0);
}

#[test]
fn an_echoed_request_has_its_clients_id() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    let line = r#"{"id":1,"method":"hello"}"#;
    bench.write(first, line);
    bench.write(second, line);
    let sent = bench.read(worker);
    assert_ne!(sent[0], sent[1]);
    for line in sent.iter().rev() {
        bench.write(worker, line);
    }
    assert_eq!((bench.read_one(first), bench.read_one(second)), (line.into(), line.into()));
}

#[test]
fn a_workers_request_with_the_id_of_a_pending_request_is_not_an_answer() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    for question in [
        r#"{"id":1,"method":"session/request_permission","params":{"sessionId":"s"}}"#,
        // With the same method and length.
        r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s","x":1}}"#,
        r#"{"id":1,"method":"session/prompT","params":{"sessionId":"s"}}"#,
    ] {
        bench.write(worker, question);
        bench.read(client);
        assert_eq!(bench.bus.view().stats().pending, 2, "{question}");
        bench.write(client, r#"{"id":1,"result":{}}"#);
        assert_eq!(bench.bus.view().stats().pending, 1);
        assert_eq!(bench.read(worker).last().map(String::as_str), Some(r#"{"id":1,"result":{}}"#));
    }
}

#[test]
fn a_worker_that_has_answered_asks_even_if_it_asks_the_same() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Dedicated)]));
    let client = bench.client();
    bench.write(client, r#"{"id":0,"method":"initialize"}"#);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.read(client);
    // Both sides ping at the same moment, with the same id.
    let ping = r#"{"id":1,"method":"ping"}"#;
    bench.write(client, ping);
    bench.read(worker);
    bench.write(worker, ping);
    assert_eq!(bench.read_one(client), ping);
    bench.write(client, r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":1,"result":{}}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":{}}"#);
}

#[test]
fn a_late_echo_is_dropped() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    let line = r#"{"id":1,"method":"hello"}"#;
    bench.write(first, line);
    bench.breaks(first);
    bench.gone(first);
    bench.write(worker, line);
    assert!(bench.read(second).is_empty());
    assert_eq!((bench.count(Reason::LateAnswer), bench.bus.view().stats().pending), (1, 0));
}
