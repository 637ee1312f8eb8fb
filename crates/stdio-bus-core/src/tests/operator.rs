//! An operator's actions on one client or worker.

use super::*;

fn key(peer: Peer) -> ClientKey {
    let Peer::Client(client) = peer else { panic!("{peer:?} is no client") };
    client
}

#[test]
fn a_client_that_the_operator_closes_gets_an_error_for_each_request_and_the_others_stay() {
    let mut bench = bench(1);
    let (one, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(one, r#"{"id":1,"method":"m","sessionId":"s"}"#);
    bench.write(one, r#"{"id":2,"method":"m"}"#);
    bench.write(other, r#"{"id":"a","method":"m"}"#);
    bench.handle(Input::CloseClient(key(one)));
    let errors: Vec<Value> = bench.read(one).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(errors.len(), 3);
    for (error, id) in errors.iter().zip([Some(1), Some(2), None]) {
        assert_eq!((error["id"].as_i64(), error["error"]["code"].as_i64()), (id, Some(-32028)));
        assert_eq!(error["error"]["data"]["reason"], "client_killed");
    }
    assert_eq!(bench.how_closed(one), Some(Close::Refuse));
    assert_eq!(bench.count(Reason::ClientKilled), 3, "the connection and two requests");
    bench.gone(one);
    bench.write(worker, r#"{"id":"a","result":1}"#);
    assert_eq!(bench.read_json(other)["id"], "a");
}

#[test]
fn a_client_whose_token_was_removed_gets_an_error_for_each_request_and_is_closed() {
    let mut bench = bench(1);
    let (one, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(one, r#"{"id":1,"method":"m"}"#);
    bench.write(other, r#"{"id":7,"method":"m"}"#);
    bench.handle(Input::TokenRemoved(key(one)));
    assert_eq!(bench.read_reasons(one), ["token_removed", "token_removed"]);
    assert_eq!(bench.how_closed(one), Some(Close::Refuse));
    bench.handle(Input::TokenRemoved(key(one)));
    assert_eq!(bench.count(Reason::TokenRemoved), 2, "the connection and its request");
    bench.gone(one);
    bench.write(worker, r#"{"id":7,"result":1}"#);
    assert_eq!(bench.read_json(other)["id"], 7);
}

#[test]
fn a_client_that_takes_nothing_is_closed_at_once() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_output_queue = 10;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(client);
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write(worker, r#"{"id":1,"result":"more than ten bytes"}"#);
    bench.handle(Input::CloseClient(key(client)));
    assert_eq!(bench.how_closed(client), Some(Close::Now));
}

#[test]
fn a_client_that_is_being_closed_is_closed_at_once_when_the_operator_asks_again() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.handle(Input::CloseClient(key(client)));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
    bench.handle(Input::CloseClient(key(client)));
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    bench.gone(client);
    bench.handle(Input::CloseClient(key(client)));
    assert_eq!(bench.count(Reason::ClientKilled), 2, "a peer that has left is ignored");
}

#[test]
fn workers_in_backoff_or_given_up_start_at_once_when_the_operator_restarts_the_pool() {
    for max_restarts in [0, 5] {
        let mut settings = settings(vec![pool(2, Assignment::RoundRobin), pool(1, Assignment::RoundRobin)]);
        settings.pools[1].id = "other".into();
        settings.limits.max_restarts = max_restarts;
        let mut bench = Bench::new(settings);
        let [one, two, other] = [0, 1, 2].map(|at| bench.worker(at));
        for worker in [one, two, other] {
            bench.dies(worker);
        }
        assert_eq!(bench.workers.len(), 0);
        bench.handle(Input::RestartPool(PoolId::at(0)));
        assert_eq!(bench.workers.len(), 2, "at once, and of that pool alone");
    }
}

#[test]
fn a_worker_that_the_operator_has_replaced_counts_as_no_failure() {
    let mut settings = settings(vec![pool(2, Assignment::RoundRobin)]);
    settings.limits.max_restarts = 0;
    let mut bench = Bench::new(settings);
    let (client, old) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    let Peer::Worker(worker) = old else { unreachable!() };
    bench.handle(Input::RestartWorker { worker, at_once: true });
    assert_eq!(bench.signals_to(old), [Signal::Terminate]);
    bench.write(old, r#"{"id":1,"result":"its last words"}"#);
    assert_eq!(bench.read_json(client)["result"], "its last words");
    bench.dies(old);
    assert!(bench.is_released(old));
    assert_eq!(bench.workers.len(), 2, "another one is there at once, though none is restarted");
    let stats = bench.bus.view().pool_row(0).expect("there is a pool").stats;
    let changes = [Reason::WorkerStopped, Reason::RestartScheduled, Reason::PoolDegraded];
    assert_eq!((stats.all_exits(), changes.map(|change| stats.events(change))), (0, [1, 0, 0]));
    assert_eq!((bench.count(Reason::WorkerReplaced), bench.count(Reason::WorkerExited)), (1, 0));
    bench.handle(Input::RestartWorker { worker, at_once: true });
    assert_eq!(bench.count(Reason::WorkerReplaced), 1, "a peer that has left is ignored");
}
