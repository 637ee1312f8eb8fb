//! One worker of each dedicated pool is started at a time, and sources take turns.

use super::*;

const ASK: &str = r#"{"id":1,"method":"initialize"}"#;

/// A bus whose dedicated pool has one running spare; workers started from now on do not run before the test says so.
fn dedicated(max_instances: usize) -> Bench {
    let mut bench = Bench::new(settings(vec![Pool { max_instances, ..pool(1, Assignment::Dedicated) }]));
    bench.spawns = false;
    bench
}

/// A client of this user sends a request.
fn asks_from(bench: &mut Bench, user: u32) -> Peer {
    let client = Peer::Client(bench.connect(0, Source::User(user)).expect("there is room"));
    bench.write(client, ASK);
    client
}

/// These clients, which are paused, will send nothing more.
fn send_no_more(bench: &mut Bench, clients: &[Peer]) {
    for client in clients {
        let Peer::Client(key) = *client else { panic!("it is a client") };
        bench.handle(Input::InputStopped(key));
    }
}

/// Workers that are being started.
fn starting(bench: &Bench) -> Vec<WorkerKey> {
    let is_starting = |key: &WorkerKey| bench.bus.ctx.workers.get(*key).is_some_and(|worker| !worker.has_run());
    bench.workers.iter().copied().filter(is_starting).collect()
}

/// The only worker that is being started runs. Returns its owner.
fn runs(bench: &mut Bench) -> Option<Peer> {
    let [worker] = starting(bench)[..] else { panic!("{:?} are being started", starting(bench)) };
    let owner = bench.bus.view().owner(worker).map(Peer::Client);
    bench.handle(Input::Spawned { worker, pid: 7 });
    owner
}

#[test]
fn one_worker_is_started_at_a_time_and_sources_take_turns() {
    let mut bench = dedicated(100);
    asks_from(&mut bench, 1);
    assert_eq!(starting(&bench).len(), 1, "a spare follows the one taken");
    let greedy: Vec<Peer> = (0..20).map(|_| asks_from(&mut bench, 1)).collect();
    let honest = [asks_from(&mut bench, 2), asks_from(&mut bench, 3), asks_from(&mut bench, 2)];
    assert_eq!(runs(&mut bench), Some(greedy[0]), "the spare that was on its way was taken");
    let order: Vec<Option<Peer>> = (0..6).map(|_| runs(&mut bench)).collect();
    let expected = [honest[0], honest[1], greedy[1], honest[2], greedy[2], greedy[3]];
    assert_eq!(order, expected.map(Some));
    assert!(bench.is_paused(greedy[19]) && !bench.is_paused(honest[2]));
}

#[test]
fn a_start_that_is_held_up_holds_up_those_of_no_other_pool() {
    let pools =
        ["agents", "tools"].map(|id| Pool { id: id.into(), max_instances: 100, ..pool(1, Assignment::Dedicated) });
    let mut bench = Bench::new(settings(pools.to_vec()));
    bench.spawns = false;
    let ask = |bench: &mut Bench, pool: &str| {
        let client = Peer::Client(bench.connect(0, Source::User(1)).expect("there is room"));
        bench.write(client, &format!(r#"{{"id":1,"method":"initialize","pool":"{pool}"}}"#));
        client
    };
    for _ in 0..3 {
        ask(&mut bench, "agents");
    }
    let [held_up] = starting(&bench)[..] else { panic!("one of a pool is started at a time") };
    for _ in 0..3 {
        let client = ask(&mut bench, "tools");
        let owned = |bench: &Bench| {
            bench.workers.iter().any(|key| bench.bus.view().owner(*key).map(Peer::Client) == Some(client))
        };
        for key in starting(&bench).into_iter().filter(|key| *key != held_up) {
            bench.handle(Input::Spawned { worker: key, pid: 7 });
        }
        assert!(owned(&bench) && !bench.is_paused(client));
        assert!(starting(&bench).contains(&held_up) && starting(&bench).len() <= 2);
    }
}

#[test]
fn nothing_is_started_for_a_client_that_left_while_it_waited() {
    let mut bench = dedicated(100);
    asks_from(&mut bench, 1);
    asks_from(&mut bench, 1);
    let gone: Vec<Peer> = (0..50).map(|_| asks_from(&mut bench, 1)).collect();
    let honest = asks_from(&mut bench, 2);
    for client in gone {
        bench.breaks(client);
        bench.gone(client);
    }
    let begun = bench.workers.len();
    runs(&mut bench);
    assert_eq!(runs(&mut bench), Some(honest));
    assert_eq!(runs(&mut bench), None, "then spares are");
    assert_eq!((bench.workers.len() - begun, starting(&bench).len()), (2, 0));
}

#[test]
fn spares_are_started_after_waiting_clients() {
    let mut bench = dedicated(100);
    asks_from(&mut bench, 1);
    asks_from(&mut bench, 2);
    let waits = asks_from(&mut bench, 3);
    runs(&mut bench);
    assert_eq!((runs(&mut bench), runs(&mut bench)), (Some(waits), None));
}

#[test]
fn a_source_whose_clients_leave_without_their_answers_gets_workers_at_a_limited_rate() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 1000, ..pool(2, Assignment::Dedicated) }]));
    let begun = |bench: &Bench| bench.bus.view().pool_row(0).map_or(0, |pool| pool.stats.events(Reason::WorkerStarted));
    for _ in 0..500 {
        let client = asks_from(&mut bench, 1);
        bench.breaks(client);
        bench.gone(client);
        bench.pass(milliseconds(1));
    }
    assert!((2..=14).contains(&begun(&bench)), "{} workers in half a second", begun(&bench));
    let honest = asks_from(&mut bench, 2);
    assert!(!bench.is_paused(honest), "a spare is left for others");
}

#[test]
fn only_a_few_clients_of_each_source_that_send_no_more_wait_for_workers() {
    let mut bench = dedicated(1000);
    asks_from(&mut bench, 1);
    asks_from(&mut bench, 1);
    let ended: Vec<Peer> = (0..100).map(|_| asks_from(&mut bench, 1)).collect();
    let honest = asks_from(&mut bench, 1);
    send_no_more(&mut bench, &ended);
    let refused: Vec<Peer> = ended.iter().copied().filter(|client| !bench.is_paused(*client)).collect();
    assert_eq!(refused.len(), 100 - 16);
    let (reason, _, _) = bench.read_error(refused[0]);
    assert_eq!(reason, "no_worker");
    runs(&mut bench);
    bench.pass(milliseconds(50));
    assert_eq!(runs(&mut bench), Some(honest), "a client that may still send is served first");
    let served = |bench: &Bench| {
        let owners: Vec<Peer> =
            bench.workers.iter().filter_map(|worker| bench.bus.view().owner(*worker)).map(Peer::Client).collect();
        ended.iter().filter(|client| owners.contains(client)).count()
    };
    bench.pass(milliseconds(49));
    if !starting(&bench).is_empty() {
        assert_eq!(runs(&mut bench), None, "a spare");
    }
    assert_eq!(served(&bench), 0);
    bench.pass(milliseconds(1));
    assert_eq!(served(&bench), 1, "then it is their turn, one after the other");
}

#[test]
fn a_client_that_waits_half_a_minute_for_a_worker_gets_an_error() {
    let mut bench = dedicated(100);
    asks_from(&mut bench, 1);
    asks_from(&mut bench, 1);
    let waits = asks_from(&mut bench, 2);
    bench.pass(milliseconds(29_999));
    assert!(bench.read(waits).is_empty() && bench.is_paused(waits));
    bench.pass(milliseconds(1));
    let error = bench.read_json(waits)["error"].take();
    assert_eq!(error["data"]["reason"], "no_worker");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("too many clients wait")), "{error}");
}

#[test]
fn a_client_that_has_waited_in_vain_gets_a_worker_that_came_before_its_line_was_read() {
    let mut bench = dedicated(1);
    let client = bench.connect(0, Source::User(1)).expect("there is room");
    bench.bus.ctx.clients.refuse_worker(client, true);
    bench.write(client.into(), ASK);
    assert_eq!(bench.bus.view().owner(bench.workers[0]), Some(client));
}

#[test]
fn clients_that_wait_for_workers_get_an_error_when_the_daemon_shuts_down() {
    let mut bench = dedicated(100);
    asks_from(&mut bench, 1);
    asks_from(&mut bench, 1);
    let waits = asks_from(&mut bench, 2);
    bench.shutdown();
    assert_eq!(bench.read_error(waits).0, "shutting_down");
}

#[test]
fn a_client_that_waits_for_its_worker_to_start_is_counted_and_reported_once() {
    let mut bench = dedicated(100);
    let cold = asks_from(&mut bench, 1);
    let queued = [asks_from(&mut bench, 2), asks_from(&mut bench, 2)];
    assert_eq!(bench.bus.view().stats().awaiting_workers, 3);
    runs(&mut bench);
    runs(&mut bench);
    bench.pass(seconds(2));
    assert_eq!(bench.count(Reason::WorkerAwaited), 3);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    assert_eq!((bench.read(cold).len(), bench.bus.view().stats().awaiting_workers), (1, 2));
    assert!(bench.read(queued[0]).is_empty());
}

#[test]
fn rate_limited_turns_continue_after_a_start_that_took_longer_than_the_interval() {
    let mut bench = dedicated(1000);
    asks_from(&mut bench, 1);
    asks_from(&mut bench, 1);
    let ended: Vec<Peer> = (0..10).map(|_| asks_from(&mut bench, 1)).collect();
    send_no_more(&mut bench, &ended);
    bench.pass(milliseconds(60));
    runs(&mut bench);
    assert_eq!(runs(&mut bench), Some(ended[0]), "its turn had come before");
    let waits = |bench: &mut Bench| ended.iter().filter(|client| bench.is_paused(**client)).count();
    for left in (0..9).rev() {
        // Workers that are started now run at once, so that only time brings the next turn.
        while let Some(worker) = starting(&bench).first().copied() {
            bench.handle(Input::Spawned { worker, pid: 7 });
        }
        bench.pass(milliseconds(50));
        assert_eq!(waits(&mut bench), left);
    }
}

#[test]
fn a_client_that_waits_with_too_many_that_may_have_left_is_refused_though_a_spare_is_there_for_others() {
    let mut bench = dedicated(1000);
    asks_from(&mut bench, 1);
    let ended: Vec<Peer> = (0..17).map(|_| asks_from(&mut bench, 1)).collect();
    send_no_more(&mut bench, &ended);
    assert_eq!(runs(&mut bench), Some(ended[0]));
    assert_eq!(runs(&mut bench), None, "its source gets the next worker later");
    let late = asks_from(&mut bench, 1);
    assert!(bench.is_paused(late) && bench.read(late).is_empty());
    send_no_more(&mut bench, &[late]);
    assert_eq!((bench.is_paused(late), bench.read(late).len()), (false, 1), "it waits no more, and is notified");
}
