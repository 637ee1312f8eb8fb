//! How much one connection may take of shared resources (fault 20).

use super::*;

fn request(id: usize) -> String {
    format!(r#"{{"id":{id},"method":"x"}}"#)
}

fn requests(ids: std::ops::Range<usize>) -> Vec<u8> {
    ids.flat_map(|id| format!("{}\n", request(id)).into_bytes()).collect()
}

#[test]
fn a_client_far_ahead_yields_until_half_of_its_requests_are_answered() {
    let mut bench = bench(1);
    let (eager, polite, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write_bytes(eager, &requests(0..1000));
    let taken = bench.read(worker).len();
    assert!((128..128 + 64).contains(&taken), "{taken} requests were taken at once");
    assert!(bench.is_paused(eager));
    bench.write(polite, r#"{"id":"polite","method":"x"}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":"polite","method":"x"}"#);
    for id in 0..taken - 64 {
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
    }
    assert!(bench.is_paused(eager), "64 are half of what it may have");
    bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, taken - 64));
    assert_eq!(bench.read(worker)[0], request(taken), "it goes on where it stood, and nothing is lost");
}

#[test]
fn a_client_far_ahead_is_not_kept_waiting_for_answers_alone() {
    let mut bench = bench(1);
    let (eager, _other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write_bytes(eager, &requests(0..400));
    let taken = bench.read(worker).len();
    bench.pass(Duration::from_micros(999));
    assert!(bench.read(worker).is_empty());
    bench.pass(Duration::from_micros(1));
    let turn = bench.read(worker);
    assert_eq!((turn[0].as_str(), turn.len()), (request(taken).as_str(), 64), "its turn is one batch");
    assert!(bench.is_paused(eager));
    bench.pass(Duration::from_millis(5));
    assert_eq!(taken + turn.len() + bench.read(worker).len(), 400, "without a single answer");
}

#[test]
fn a_client_that_leaves_while_it_yields_is_forgotten() {
    let mut bench = bench(1);
    let (eager, _other) = (bench.client(), bench.client());
    bench.write_bytes(eager, &requests(0..400));
    assert!(bench.is_paused(eager));
    bench.breaks(eager);
    bench.gone(eager);
    bench.pass(Duration::from_millis(2));
    assert_eq!(bench.bus.view().stats().clients, 1);
}

#[test]
fn the_last_slots_for_pending_requests_are_reserved_for_clients_with_few() {
    let mut bench = bench(1);
    let (eager, polite, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write_bytes(eager, &requests(0..4093));
    bench.pass(Duration::from_millis(100));
    assert_eq!(bench.read(worker).len(), 4092);
    assert_eq!(bench.read_error(eager).0, "pending_limit");
    for id in 0..4 {
        bench.write(polite, &request(id));
    }
    assert_eq!(bench.read(worker).len(), 4);
    assert_eq!(bench.read(polite), Vec::<String>::new());
    bench.write(polite, &request(4));
    assert_eq!(bench.read(worker).len(), 1, "the table is full, and the largest holder gives one up");
    assert_eq!(bench.read(polite), Vec::<String>::new());
    let (reason, _, id) = bench.read_error(eager);
    assert_eq!((reason.as_str(), id), ("pending_limit", Value::from(4091)));
}
