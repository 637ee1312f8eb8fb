//! Workers that are replaced without a reload: the operator wants it so, they have served for long, or they hold too much.

use super::*;

#[test]
fn the_operator_has_a_worker_or_a_pool_replaced_without_a_lost_request() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::RoundRobin)]));
    let (client, old) = (bench.client(), [bench.worker(0), bench.worker(1)]);
    bench.write(client, CALL);
    bench.read(old[0]);
    bench.handle(Input::RestartWorker { worker: key(old[0]), at_once: false });
    bench.pass(SETTLED);
    assert_eq!((bench.commands.len(), bench.stop_actions(old[0])), (3, vec![]));
    bench.write(old[0], r#"{"id":1,"result":{}}"#);
    bench.stops(old[0]);
    assert_eq!((bench.read(client).len(), bench.stop_actions(old[1])), (1, vec![]));
    bench.handle(Input::RestartPool(PoolId::at(0)));
    for _ in 0..2 {
        bench.pass(SETTLED);
    }
    assert_eq!(bench.commands.len(), 5);
    bench.stops(old[1]);
}

#[test]
fn a_worker_that_a_client_has_for_itself_ends_with_it_when_the_operator_has_it_replaced() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let client = bench.client();
    bench.write(client, CALL);
    let own = bench.busy_worker();
    bench.handle(Input::RestartWorker { worker: key(own), at_once: false });
    bench.pass(SETTLED);
    assert_eq!((bench.stop_actions(own), bench.how_closed(client)), (vec![], None));
    bench.write(own, r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read(client).len(), 1);
    bench.ends(client);
    bench.stops(own);
}

#[test]
fn a_worker_is_replaced_after_so_many_requests_or_so_long_not_all_of_a_pool_at_once() {
    let worn = Pool { max_requests: Some(100), ..pool(4, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![worn]));
    let client = bench.client();
    let mut ended = Vec::new();
    for request in 0..400 {
        bench.write(client, &format!(r#"{{"id":{request},"method":"x"}}"#));
        let worker = bench.busy_worker();
        bench.write(worker, &format!(r#"{{"id":{request},"result":{{}}}}"#));
        bench.pass(milliseconds(60));
        for worker in bench.workers.clone().into_iter().map(Peer::Worker) {
            if !bench.stop_actions(worker).is_empty() && !bench.is_released(worker) {
                bench.stops(worker);
                ended.push(request / 4);
            }
        }
    }
    assert_eq!(bench.read(client).len(), 400);
    assert!(ended.len() == 4 && ended.iter().all(|at| (88..=103).contains(at)), "{ended:?}");
    ended.dedup();
    assert!(ended.len() > 1, "not all at once: {ended:?}");
    let old = Pool { max_age: Some(seconds(1000)), ..pool(4, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![old]));
    bench.pass(seconds(890));
    assert_eq!(bench.commands.len(), 4);
    bench.pass(seconds(112));
    assert_eq!(bench.commands.len(), 8);
}

#[test]
fn where_new_workers_are_worn_before_all_were_replaced_each_of_the_old_ones_has_its_turn() {
    let before = settings(vec![Pool { max_age: Some(milliseconds(500)), ..pool(4, Assignment::RoundRobin) }]);
    let mut bench = Bench::new(before.clone());
    let old: Vec<Peer> = (0..4).map(|at| bench.worker(at)).collect();
    bench.reload(&changed(&before));
    for _ in 0..8 {
        bench.pass(SETTLED);
    }
    old.into_iter().for_each(|old| bench.stops(old));
}

#[test]
fn a_worker_that_holds_too_much_memory_is_replaced() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::RoundRobin)]));
    let old = bench.worker(0);
    bench.handle(Input::WorkerMemoryGrew { worker: key(old), mib: 700 });
    bench.handle(Input::WorkerMemoryGrew { worker: key(old), mib: 800 });
    bench.pass(SETTLED);
    bench.stops(old);
    assert!(bench.reports.iter().any(|report| report.text.contains("700 MiB")));
}
