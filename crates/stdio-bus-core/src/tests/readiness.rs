//! Readiness as a load balancer sees it.

use super::*;
use crate::readiness::Readiness;
use crate::report::Level;
use crate::settings::MAX_CONNECTIONS;

fn why(readiness: Option<Readiness>) -> String {
    match readiness {
        Some(Readiness::NotReady(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn is_full(why: &str) -> Option<Readiness> {
    Some(Readiness::Full(why.into()))
}

/// Two pools, one listener for each of them, and one for both.
fn two_pools() -> Bench {
    let pools = vec![pool(1, Assignment::RoundRobin), Pool { id: "tools".into(), ..pool(2, Assignment::RoundRobin) }];
    let mut settings = settings(pools);
    settings.limits.max_restarts = 0;
    settings.listeners = vec![
        Listener { pool: Some(PoolId::at(0)), pools: Some(places(&[0, 1])), ..Listener::default() },
        Listener { pool: Some(PoolId::at(1)), ..Listener::default() },
        Listener::default(),
    ];
    Bench::new(settings)
}

#[test]
fn nothing_is_ready_before_the_first_worker_runs() {
    let mut bench = Bench::starting(settings(vec![pool(1, Assignment::RoundRobin)]));
    let text = "no worker of pool \"agents\" is running: the first one is being started";
    assert_eq!(bench.bus.view().readiness(), Readiness::NotReady(text.into()));
    bench.spawn_all();
    assert_eq!(bench.bus.view().readiness(), Readiness::Ready);
    assert_eq!(
        (bench.bus.view().pool_readiness(1), bench.bus.view().listener_readiness(1)),
        (None, None),
        "there are none"
    );
}

#[test]
fn a_listener_is_as_ready_as_the_pool_that_its_clients_use_unless_they_name_one() {
    let mut bench = two_pools();
    let only = bench.worker(0);
    bench.dies(only);
    assert_eq!(
        why(bench.bus.view().pool_readiness(0)),
        "no worker of pool \"agents\" is running: 1 of 1 were given up"
    );
    assert_eq!(bench.bus.view().pool_readiness(1), Some(Readiness::Ready));
    assert!(
        why(bench.bus.view().listener_readiness(0)).contains("pool \"agents\""),
        "that it offers another one is no help"
    );
    assert_eq!(bench.bus.view().listener_readiness(1), Some(Readiness::Ready));
    assert_eq!(bench.bus.view().listener_readiness(2), Some(Readiness::Ready), "there is still one of them");
    assert!(!bench.bus.view().readiness().is_ready(), "all of them together are not");
}

#[test]
fn a_dedicated_pool_is_ready_while_it_can_give_a_worker_to_one_more_client() {
    let pools = vec![Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }];
    let mut bench = Bench::new(settings(pools));
    let clients = [bench.client(), bench.client()];
    bench.spawns = false;
    bench.write(clients[0], r#"{"id":1,"method":"m"}"#);
    assert_eq!(bench.bus.view().readiness(), Readiness::Ready, "the next spare is being started");
    bench.spawns = true;
    bench.spawn_all();
    bench.write(clients[1], r#"{"id":1,"method":"m"}"#);
    assert_eq!(bench.bus.view().pool_readiness(0), is_full("all 2 workers of pool \"agents\" are in use"));
    assert_eq!(bench.bus.view().readiness(), Readiness::Full("all 2 workers of pool \"agents\" are in use".into()));
}

#[test]
fn a_pool_whose_workers_end_one_after_the_other_is_ready_when_one_has_answered_or_lasted() {
    for answers in [true, false] {
        let mut bench = bench(1);
        let client = bench.client();
        for ready in [true, true, false] {
            bench.pass(seconds(1));
            let worker = bench.worker(0);
            assert_eq!(bench.bus.view().readiness().is_ready(), ready);
            bench.dies(worker);
            bench.pass(seconds(1));
        }
        let worker = bench.worker(0);
        assert!(why(bench.bus.view().pool_readiness(0)).contains("have not answered yet"));
        if answers {
            bench.write(client, r#"{"id":1,"method":"m"}"#);
            bench.write(worker, r#"{"id":1,"result":1}"#);
        } else {
            bench.pass(seconds(4));
            assert!(!bench.bus.view().readiness().is_ready());
            bench.pass(seconds(1));
        }
        assert_eq!(bench.bus.view().readiness(), Readiness::Ready);
    }
}

#[test]
fn a_daemon_without_a_free_slot_is_not_ready_until_a_client_leaves() {
    let mut bench = bench(1);
    let clients: Vec<Peer> = (0..MAX_CONNECTIONS).map(|_| bench.client()).collect();
    assert_eq!(bench.bus.view().readiness(), Readiness::Full("all 1024 connections are in use".into()));
    bench.breaks(clients[7]);
    bench.gone(clients[7]);
    assert_eq!(bench.bus.view().readiness(), Readiness::Ready);
}

#[test]
fn what_serves_nobody_is_worse_than_what_is_full() {
    let mut settings = settings(vec![
        Pool { max_instances: 1, ..pool(1, Assignment::Dedicated) },
        Pool { id: "broken".into(), ..pool(1, Assignment::RoundRobin) },
    ]);
    settings.limits.max_restarts = 0;
    settings.listeners = [0, 1].map(|pool| Listener { pool: Some(PoolId::at(pool)), ..Listener::default() }).into();
    let mut bench = Bench::new(settings);
    let (client, broken) = (bench.client(), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    assert!(matches!(bench.bus.view().readiness(), Readiness::Full(_)));
    bench.dies(broken);
    assert_eq!(
        why(Some(bench.bus.view().readiness())),
        "no worker of pool \"broken\" is running: 1 of 1 were given up"
    );
    assert!(matches!(bench.bus.view().listener_readiness(0), Some(Readiness::Full(_))), "the other one continues");
}

#[test]
fn where_one_pool_is_paused_and_the_other_one_serves_nobody_both_are_named() {
    let mut bench = two_pools();
    bench.handle(Input::PausePool(PoolId::at(1)));
    assert_eq!(bench.bus.view().listener_readiness(2), Some(Readiness::Ready));
    let only = bench.worker(0);
    bench.dies(only);
    let why =
        "the operator has paused pool \"tools\", and no worker of pool \"agents\" is running: 1 of 1 were given up";
    assert_eq!(bench.bus.view().listener_readiness(2), Some(Readiness::Paused(why.into())));
}

#[test]
fn a_listener_without_room_is_not_ready_and_the_others_are() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    let full = Listener {
        max_connections: crate::settings::MaxConnections { total: Some(1), per_source: None },
        ..Listener::default()
    };
    settings.listeners = vec![full, Listener::default()];
    let mut bench = Bench::new(settings);
    bench.client_of(0);
    assert_eq!(bench.bus.view().listener_readiness(0), is_full("all 1 connections of the listener are in use"));
    assert_eq!(bench.bus.view().listener_readiness(1), Some(Readiness::Ready));
}

#[test]
fn the_readiness_of_a_daemon_that_shuts_down_is_draining_whatever_else_is_wrong() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.shutdown();
    assert_eq!(bench.bus.view().readiness(), Readiness::Draining);
    assert_eq!(bench.bus.view().pool_readiness(0), Some(Readiness::Draining));
    let worker = bench.worker(0);
    bench.dies(worker);
    assert_eq!(bench.bus.view().listener_readiness(0), Some(Readiness::Draining));
}

#[test]
fn a_listener_that_is_to_be_closed_while_no_worker_runs_is_and_the_others_are_not() {
    let mut settings = settings(vec![pool(2, Assignment::RoundRobin)]);
    settings.listeners = vec![Listener::default(), Listener { closes_when_not_ready: true, ..Listener::default() }];
    let mut bench = Bench::starting(settings);
    assert_eq!(bench.listeners.closed, [ListenerId::at(1)], "no worker runs yet");
    assert!(bench.reports.iter().all(|report| report.level < Level::Info), "which is the ordinary course");
    bench.spawn_all();
    assert!(bench.listeners.closed.is_empty());
    let (one, other) = (bench.worker(0), bench.worker(1));
    bench.dies(one);
    assert!(bench.listeners.closed.is_empty(), "one is left");
    bench.write(other, "not JSON");
    assert_eq!(bench.listeners.closed, [ListenerId::at(1)], "it is asked to stop");
    bench.spawns = true;
    bench.pass(seconds(1));
    assert_eq!((bench.listeners.closed.len(), bench.count(Reason::ListenerOpened)), (0, 2));
    let reports = bench.reports.iter().filter(|report| report.reason == Reason::ListenerClosed);
    assert_eq!(reports.filter(|report| report.level == Level::Warn).count(), 1, "it is reports once");
}

#[test]
fn a_shutdown_leaves_listeners_as_they_are_until_it_closes_all() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners = vec![Listener { closes_when_not_ready: true, ..Listener::default() }];
    let mut bench = Bench::new(settings);
    bench.shutdown();
    let worker = bench.worker(0);
    bench.dies(worker);
    assert_eq!((bench.listeners.closed.len(), bench.listeners.listening), (0, false));
}

#[test]
fn the_start_is_over_when_workers_have_spoken_or_lasted_though_one_pool_cannot_start() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::starting(settings(vec![named("broken"), named("quiet"), named("chatty")]));
    let [broken, quiet, chatty] = [0, 1, 2].map(|at| bench.workers[at]);
    for (worker, pid) in [(quiet, 1), (chatty, 2)] {
        bench.handle(Input::Spawned { worker, pid });
    }
    bench.pass(milliseconds(999));
    bench.write(chatty.into(), r#"{"method":"hello"}"#);
    assert!(!bench.bus.view().has_started(bench.now), "that a process was made is no sign of life");
    bench.pass(milliseconds(1));
    assert!(!bench.bus.view().has_started(bench.now), "nothing is known of one pool");
    bench.handle(Input::SpawnFailed { worker: broken, why: "no such file".into(), fault: SpawnFailure::Command });
    assert!(bench.bus.view().has_started(bench.now));
    bench.pass(seconds(60));
    assert!(bench.bus.view().has_started(bench.now), "also while that pool is tried again");
}

#[test]
fn the_start_is_not_over_where_no_worker_lives() {
    let mut bench = bench(2);
    for _ in 0..20 {
        bench.pass(milliseconds(900));
        while let Some(worker) = bench.workers.first() {
            bench.dies((*worker).into());
        }
        assert!(!bench.bus.view().has_started(bench.now));
    }
    let mut bench = self::bench(2);
    bench.pass(milliseconds(500));
    let first = bench.worker(0);
    bench.dies(first);
    bench.pass(milliseconds(500));
    assert!(bench.bus.view().has_started(bench.now), "one of two is enough");
}

#[test]
fn a_listener_that_closes_when_not_ready_closes_when_its_last_worker_is_taken_out_and_opens_when_it_is_back() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners = vec![Listener { closes_when_not_ready: true, ..Listener::default() }];
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    let Peer::Worker(key) = worker else { panic!("it is a worker") };
    bench.handle(Input::TakeOutWorker(key));
    assert_eq!(bench.listeners.closed, [ListenerId::at(0)], "it finishes its work, and takes no new client");
    let report = bench.reports.iter().find(|report| report.reason == Reason::ListenerClosed).expect("the log says why");
    assert!(report.text.starts_with("listener 0 is closed: no worker of pool \"agents\""), "{}", report.text);
    bench.handle(Input::ResumePool(PoolId::at(0)));
    assert!(bench.listeners.closed.is_empty());
}

#[test]
fn a_listener_that_closes_when_not_ready_stays_open_while_its_pool_is_full_or_paused() {
    let mut settings = settings(vec![Pool { max_instances: 1, ..pool(1, Assignment::Dedicated) }]);
    settings.listeners = vec![Listener { closes_when_not_ready: true, ..Listener::default() }];
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    assert!(matches!(bench.bus.view().pool_readiness(0), Some(Readiness::Full(_))));
    assert!(bench.listeners.closed.is_empty());
    bench.handle(Input::PausePool(PoolId::at(0)));
    assert!(bench.listeners.closed.is_empty());
}

#[test]
fn a_listener_that_closes_when_not_ready_is_closed_without_workers_whether_it_or_its_pool_is_paused() {
    for paused in
        [Input::PausePool(PoolId::at(0)), Input::PauseListener { listener: ListenerId::at(0), is_paused: true }]
    {
        let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
        settings.limits.max_restarts = 0;
        settings.listeners = vec![Listener { closes_when_not_ready: true, ..Listener::default() }];
        let mut bench = Bench::new(settings);
        let only = bench.worker(0);
        bench.handle(paused.clone());
        assert!(bench.listeners.closed.is_empty(), "its worker runs");
        bench.dies(only);
        assert_eq!(bench.listeners.closed, [ListenerId::at(0)]);
        bench.handle(paused);
        assert_eq!(bench.listeners.closed, [ListenerId::at(0)], "that opens nothing");
    }
}

#[test]
fn a_dedicated_pool_whose_spares_were_all_taken_out_is_ready_while_it_may_start_a_worker_for_the_next_client() {
    let mut settings = settings(vec![Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }]);
    settings.listeners = vec![Listener { closes_when_not_ready: true, ..Listener::default() }];
    let mut bench = Bench::new(settings);
    let spare = bench.worker(0);
    let Peer::Worker(key) = spare else { panic!("it is a worker") };
    bench.handle(Input::TakeOutWorker(key));
    bench.dies(spare);
    assert_eq!(bench.bus.view().pool_readiness(0), Some(Readiness::Ready));
    assert!(bench.listeners.closed.is_empty());
    for id in 1..3 {
        let client = bench.client();
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        bench.pass(milliseconds(100));
        let own = bench.newest(1)[0];
        assert_eq!(bench.read(own).len(), 1, "it has got one");
    }
    assert!(matches!(bench.bus.view().pool_readiness(0), Some(Readiness::Full(_))), "there is room for no third one");
}

#[test]
fn the_workers_that_a_pool_keeps_are_counted_and_not_those_that_it_may_have() {
    let pool = Pool { max_instances: 3, ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool]));
    let Peer::Worker(key) = bench.worker(0) else { unreachable!() };
    bench.handle(Input::TakeOutWorker(key));
    bench.exits(key.into(), Exit::Code(0));
    bench.ends(key.into());
    let why = bench.bus.view().pool_readiness(0).expect("a pool");
    assert!(why.reason().is_some_and(|why| why.ends_with("the operator has taken 1 of 1 out")), "{why:?}");
}
