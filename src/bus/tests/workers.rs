//! Workers that start, exit, misbehave and are started again (spec 5.3, 7.1; design 2.13).

use super::*;

#[test]
fn the_last_lines_of_a_worker_are_read_even_if_a_slow_client_held_them_up() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 100;
    let mut bench = Bench::new(small);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(100)));
    bench.wire(worker).kept.extend_from_slice(b"{\"id\":1,\"result\":2}\n");
    bench.present(worker);
    assert!(bench.is_paused(worker));
    bench.exits(worker, Exit::Code(0));
    bench.pass(milliseconds(1999));
    // It is read again just before its time would be up; the shell needs a moment to do so.
    let queued = bench.wire(client).queued;
    let kept = std::mem::take(&mut bench.wire(worker).kept);
    bench.takes(client, queued);
    bench.pass(milliseconds(500));
    bench.wire(worker).kept = kept;
    bench.present(worker);
    bench.takes(client, 1000);
    assert_eq!(bench.read(client).last().unwrap(), r#"{"id":1,"result":2}"#);
    bench.pass(milliseconds(500));
    assert!(bench.is_released(worker), "its pipe is held by another process");
}

#[test]
fn a_stalled_worker_that_waits_for_a_client_is_not_resumed_only_to_be_forgotten() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 100;
    small.limits.backpressure_timeout = seconds(5);
    let mut bench = Bench::new(small);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.stalls(worker);
    bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "x".repeat(100)));
    bench.pass(seconds(4));
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(100)));
    bench.write(worker, r#"{"method":"update","sessionId":"s"}"#);
    assert!(bench.is_paused(worker));
    bench.pass(seconds(1));
    assert_eq!(bench.count(Reason::WorkerStalled), 1);
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    // Its requests were given up, so its stdout is over: it is gone as soon as it has exited.
    bench.exits(worker, Exit::Signal(15));
    assert!(bench.is_released(worker));
    assert_eq!(bench.count(Reason::WorkerHoldsPipe), 0);
}

#[test]
fn a_malformed_line_among_the_last_ones_of_a_dead_worker_ends_it_at_once() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    bench.exits(worker, Exit::Code(0));
    bench.write(worker, "Segmentation fault");
    assert!(bench.is_released(worker));
    assert_eq!((bench.count(Reason::WorkerMalformed), bench.count(Reason::WorkerHoldsPipe)), (1, 0));
    assert!(bench.signals_to(worker).is_empty(), "it has been reaped");
}
