//! The shutdown (spec 10; design 2.14).

use super::*;

#[test]
fn a_worker_that_starts_while_the_others_are_killed_is_killed() {
    let mut bench = Bench::starting(settings(vec![pool(1, Assignment::RoundRobin)]));
    let worker = bench.worker(0);
    bench.shutdown();
    bench.shutdown();
    bench.spawn_all();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
}
