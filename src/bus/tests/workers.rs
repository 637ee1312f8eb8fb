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
