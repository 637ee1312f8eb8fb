//! The orderly close: a closed client was read to the end.

use super::*;

/// A client of a dedicated pool, and its worker.
fn with_own_worker() -> (Bench, Peer, Peer) {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"x"}"#);
    (bench, client, worker)
}

fn ask(bench: &mut Bench, client: Peer, id: u32) {
    bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
}

/// The client gets an error that this request was not forwarded, since its connection is being closed.
fn is_refused(bench: &mut Bench, client: Peer, id: u32) {
    let error = bench.read_json(client);
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(id), &json!(-32026)));
    assert_eq!(error["error"]["data"], json!({"reason": "connection_closing", "delivered": false}));
}

#[test]
fn requests_sent_before_the_client_could_see_the_end_of_its_worker_are_refused() {
    let (mut bench, client, worker) = with_own_worker();
    ask(&mut bench, client, 0);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.read(client);
    ask(&mut bench, client, 1);
    bench.dies(worker);
    assert_eq!(bench.read_reasons(client), ["worker_exited", "own_worker_ended"]);
    for id in 2..5 {
        ask(&mut bench, client, id);
        is_refused(&mut bench, client, id);
        bench.pass(milliseconds(99));
        assert_eq!(bench.how_closed(client), Some(Close::Refuse), "it may send more");
    }
    bench.write(client, r#"{"id":7,"result":1}"#);
    bench.write(client, r#"{"method":"y"}"#);
    assert!(bench.read(client).is_empty(), "only a request is answered");
    bench.pass(milliseconds(99));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
    bench.pass(milliseconds(1));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    assert_eq!(bench.count(Reason::ConnectionClosing), 4);
}

#[test]
fn a_client_that_never_falls_silent_is_closed_after_a_second() {
    let (mut bench, client, worker) = with_own_worker();
    bench.dies(worker);
    assert_eq!(bench.read_reasons(client), ["own_worker_ended"]);
    for id in 0..20 {
        ask(&mut bench, client, id);
        is_refused(&mut bench, client, id);
        assert_eq!(bench.how_closed(client), Some(Close::Refuse));
        bench.pass(milliseconds(50));
    }
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_client_that_ends_its_input_has_nothing_more_to_be_refused() {
    let (mut bench, client, worker) = with_own_worker();
    bench.dies(worker);
    assert_eq!(bench.read_reasons(client), ["own_worker_ended"]);
    ask(&mut bench, client, 1);
    bench.ends(client);
    is_refused(&mut bench, client, 1);
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_client_that_takes_no_refusals_is_closed_all_the_same() {
    let mut settings = settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]);
    settings.limits.max_output_queue = 1000;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    ask(&mut bench, client, 0);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    ask(&mut bench, client, 0);
    bench.stalls(client);
    bench.dies(worker);
    for id in 1..100 {
        ask(&mut bench, client, id);
    }
    assert!(bench.is_paused(client));
    bench.pass(milliseconds(999));
    assert_eq!((bench.how_closed(client), bench.count(Reason::ClientOverdue)), (Some(Close::Refuse), 0));
    bench.pass(milliseconds(1));
    assert_eq!((bench.how_closed(client), bench.count(Reason::ClientOverdue)), (Some(Close::Flush), 1));
}

#[test]
fn a_client_in_the_middle_of_a_line_when_its_worker_ends_may_finish_it() {
    let (mut bench, client, worker) = with_own_worker();
    bench.write_bytes(client, br#"{"id":1,"#);
    bench.dies(worker);
    assert_eq!(bench.read_reasons(client), ["own_worker_ended"]);
    bench.pass(milliseconds(500));
    bench.write_bytes(client, b"\"method\":\"x\"}\n");
    is_refused(&mut bench, client, 1);
    bench.pass(milliseconds(100));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_request_that_crosses_the_close_of_an_idle_client_is_refused() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners[0].idle_timeout = Some(seconds(60));
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.pass(seconds(60));
    assert_eq!((bench.count(Reason::ClientIdle), bench.read_reasons(client)), (1, vec!["client_idle".to_owned()]));
    ask(&mut bench, client, 1);
    is_refused(&mut bench, client, 1);
    assert!(bench.read(worker).is_empty());
    bench.pass(milliseconds(100));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_request_that_crosses_the_close_by_an_operator_is_refused() {
    let mut bench = bench(1);
    let client = bench.client();
    let Peer::Client(key) = client else { panic!("it is a client") };
    bench.handle(Input::CloseClient(key));
    assert_eq!(bench.read_reasons(client), ["client_killed"]);
    ask(&mut bench, client, 1);
    is_refused(&mut bench, client, 1);
    bench.pass(milliseconds(100));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

/// A client with one pending request and the beginning of a line is closed for lack of memory.
fn closed_for_memory() -> (Bench, Peer) {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_memory = 16 << 20;
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.client();
    ask(&mut bench, client, 1);
    bench.write_bytes(client, br#"{"id":2,"method":"x","params":["#);
    bench.handle(Input::MemoryMeasured { used: 17 << 20, held: vec![(client, 8 << 20)], waiting: Vec::new() });
    let lines: Vec<Value> = bench.read(client).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let errors: Vec<_> = lines.iter().map(|error| (&error["id"], &error["error"]["data"])).collect();
    let pending = json!({"reason": "memory_limit", "delivered": true});
    assert_eq!(errors, [(&json!(1), &pending), (&json!(null), &json!({"reason": "memory_limit"}))]);
    (bench, client)
}

#[test]
fn a_client_closed_for_memory_gets_errors_for_its_requests_and_no_more_of_its_line_is_kept() {
    let (mut bench, client) = closed_for_memory();
    assert!(bench.wire(client).kept.is_empty(), "the beginning was let go");
    for _ in 0..4 {
        bench.write_bytes(client, &[b' '; 1 << 20]);
        assert!(bench.wire(client).kept.is_empty());
    }
    bench.write_bytes(client, b"]}\n{\"id\":3,\"method\":\"x\"}\n{\"id\":4,");
    is_refused(&mut bench, client, 3);
    assert!(bench.wire(client).kept.is_empty());
    bench.write_bytes(client, b"\"method\":\"x\"}\n");
    assert!(bench.read(client).is_empty(), "it was not kept");
    ask(&mut bench, client, 5);
    is_refused(&mut bench, client, 5);
    bench.pass(milliseconds(100));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_client_that_is_being_closed_is_read_for_no_more_bytes_than_could_be_in_transit() {
    let (mut bench, client) = closed_for_memory();
    for _ in 0..32 {
        assert_eq!(bench.how_closed(client), Some(Close::Refuse));
        bench.write_bytes(client, &[b' '; 1 << 20]);
    }
    bench.pass(Duration::ZERO);
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_client_that_holds_much_while_it_is_being_closed_is_not_read_any_longer() {
    let (mut bench, client) = closed_for_memory();
    bench.handle(Input::MemoryMeasured { used: 17 << 20, held: vec![(client, 8 << 20)], waiting: Vec::new() });
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}
