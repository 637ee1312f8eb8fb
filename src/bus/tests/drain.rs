//! The shutdown (spec 10; design 2.14).

use super::super::drain::Stage;
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

#[test]
fn quiescing_ends_with_the_last_pending_answer() {
    let mut patient = settings(vec![pool(1, Assignment::RoundRobin)]);
    patient.limits.quiesce = seconds(10);
    let mut bench = Bench::new(patient);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.shutdown();
    assert_eq!(bench.bus.stage(), Stage::Quiescing);
    bench.pass(seconds(1));
    assert!(bench.signals_to(worker).is_empty());
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}
