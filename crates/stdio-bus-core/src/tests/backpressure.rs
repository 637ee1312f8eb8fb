//! Which peer waits for which, and for how long (spec 7.3, 8.3; decision 12).

use super::*;

fn tight(workers: usize) -> Bench {
    let mut tight = settings(vec![pool(workers, Assignment::RoundRobin)]);
    tight.limits.max_output_queue = 100;
    tight.limits.backpressure_timeout = seconds(5);
    Bench::new(tight)
}

fn long_notification(letter: &str) -> String {
    format!(r#"{{"method":"x","params":"{}"}}"#, letter.repeat(100))
}

#[test]
fn a_client_that_waits_for_a_worker_continues_when_the_worker_is_asked_to_stop() {
    let mut bench = tight(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.write(client, &long_notification("a"));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.is_paused(client));
    bench.shutdown();
    assert!(!bench.is_paused(client));
    assert_eq!(bench.read_error(client).0, "shutting_down");
}

#[test]
fn a_full_worker_pauses_its_clients_until_half_of_its_queue_is_drained() {
    let mut bench = tight(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.write(client, &long_notification("a"));
    assert!(!bench.is_paused(client), "it is paused when it writes again");
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.is_paused(client));
    let queued = bench.wire(worker).queued;
    assert!(queued > 100);
    bench.takes(worker, queued - 50);
    assert!(bench.is_paused(client), "50 bytes are half of the limit, not less");
    bench.takes(worker, 1);
    assert!(!bench.is_paused(client));
    assert_eq!(bench.read(worker), [long_notification("a"), r#"{"id":1,"method":"x"}"#.to_owned()]);
}

#[test]
fn only_peers_that_write_to_a_full_output_wait() {
    let mut bench = tight(2);
    let (blocked, other) = (bench.client(), bench.client());
    let (full, free) = (bench.worker(0), bench.worker(1));
    bench.write(blocked, r#"{"method":"x","sessionId":"full"}"#);
    bench.write(other, r#"{"method":"x","sessionId":"free"}"#);
    bench.stalls(full);
    bench.write(blocked, &long_notification("a"));
    bench.write(other, r#"{"method":"x","sessionId":"free"}"#);
    bench.write(blocked, r#"{"method":"x","sessionId":"full"}"#);
    bench.read(full);
    bench.read(free);
    let free_continues = r#"{"id":1,"method":"x","sessionId":"free"}"#;
    bench.write(other, free_continues);
    assert_eq!(bench.read(free), [free_continues]);
    bench.write(free, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read(other).len(), 1);
    assert!(!bench.is_paused(other));
}

#[test]
fn a_client_that_does_not_read_pauses_its_worker_and_loses_nothing() {
    let mut bench = tight(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..20 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.stalls(client);
    for id in 0..20 {
        bench.write(worker, &format!(r#"{{"id":{id},"result":"{}"}}"#, "x".repeat(50)));
    }
    assert!(bench.is_paused(worker));
    assert!(bench.wire(client).queued < 200, "data is held back, never dropped");
    while bench.wire(client).queued > 0 {
        bench.takes(client, 10);
    }
    assert_eq!(bench.read(client).len(), 20);
    assert!(!bench.is_paused(worker));
}

#[test]
fn a_client_that_takes_nothing_for_the_timeout_is_closed_and_its_worker_continues() {
    let mut bench = tight(1);
    let (slow, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(slow, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(other, r#"{"id":2,"method":"x"}"#);
    bench.stalls(slow);
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(100)));
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.write(worker, r#"{"id":2,"result":2}"#);
    assert!(bench.is_paused(worker));
    bench.pass(milliseconds(4999));
    assert_eq!(bench.how_closed(slow), None);
    bench.pass(milliseconds(1));
    assert_eq!(bench.how_closed(slow), Some(Close::Now));
    assert_eq!(bench.count(Reason::ClientStalled), 1);
    assert!(bench.signals_to(worker).is_empty(), "the worker is never punished for it");
    assert_eq!(bench.read_one(other), r#"{"id":2,"result":2}"#);
    let unsent = bench.wire(slow).queued as u64;
    bench.gone(slow);
    assert_eq!(bench.bus.view().stats().bytes_unsent, unsent);
}

#[test]
fn a_worker_that_takes_nothing_for_the_timeout_is_ended_and_its_requests_are_answered() {
    let mut bench = tight(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, &long_notification("a"));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert!(bench.is_paused(client));
    bench.pass(seconds(5));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    let errors = bench.read(client);
    assert!(errors[0].contains(r#""id":1,"#) && errors[0].contains("worker_exited"));
    assert!(errors[1].contains(r#""id":2,"#) && errors[1].contains("no_worker"), "it waits no more");
    assert!(!bench.is_paused(client));
}

#[test]
fn a_slow_reader_that_makes_progress_is_not_closed() {
    let mut bench = tight(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"x","sessionId":"s"}"#);
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(500)));
    for _ in 0..20 {
        bench.pass(seconds(4));
        bench.takes(client, 20);
    }
    assert_eq!(bench.how_closed(client), None);
}

#[test]
fn a_client_that_asks_without_reading_its_errors_is_paused() {
    let mut bench = tight(1);
    let client = bench.client();
    bench.stalls(client);
    for id in 0..100 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x","pool":"nowhere"}}"#));
    }
    assert!(bench.is_paused(client));
    assert!(bench.wire(client).queued < 400);
    while bench.wire(client).queued > 0 {
        bench.takes(client, 100);
    }
    assert_eq!(bench.read(client).len(), 100);
}
