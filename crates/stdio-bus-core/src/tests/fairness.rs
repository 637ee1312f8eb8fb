//! How much one connection may take of shared resources (fault 20).

use super::*;

fn request(id: usize) -> String {
    format!(r#"{{"id":{id},"method":"x"}}"#)
}

fn requests(ids: std::ops::Range<usize>) -> Vec<u8> {
    ids.flat_map(|id| format!("{}\n", request(id)).into_bytes()).collect()
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
