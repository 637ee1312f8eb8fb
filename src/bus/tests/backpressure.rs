//! Who waits for whom, and for how long (spec 7.3, 8.3; design 2.12).

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
fn a_client_that_waits_for_a_worker_goes_on_when_the_worker_is_told_to_stop() {
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
