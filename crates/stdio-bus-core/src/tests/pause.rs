//! What the operator pauses or takes out, until it is resumed.

use super::*;
use crate::admission::Rejection;
use crate::port::ListenerId;
use crate::readiness::Readiness;

const A: PoolId = PoolId::at(0);

fn key(worker: Peer) -> WorkerKey {
    let Peer::Worker(worker) = worker else { panic!("{worker:?} is no worker") };
    worker
}

fn two_pools() -> Settings {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin), pool(1, Assignment::RoundRobin)]);
    (settings.pools[0].id, settings.pools[1].id) = ("a".into(), "b".into());
    settings
}

#[test]
fn requests_of_a_paused_pool_wait_and_go_on_in_their_order_when_it_is_resumed() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    assert_eq!(bench.read(worker).len(), 1);
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":2,"method":"m"}"#);
    bench.write(client, r#"{"id":3,"method":"m"}"#);
    bench.pass(seconds(3600));
    assert_eq!(bench.read(worker).len(), 0);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_json(client)["id"], 1, "what was asked before continues");
    bench.handle(Input::ResumePool(A));
    let asked = bench.read(worker);
    assert!(asked.len() == 2 && asked[0].contains(r#""id":2"#) && asked[1].contains(r#""id":3"#), "{asked:?}");
}

#[test]
fn notifications_cancellations_and_answers_of_clients_pass_a_paused_pool() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":"q","method":"ask","sessionId":"s"}"#);
    bench.handle(Input::PausePool(A));
    bench.read(worker);
    bench.write(client, r#"{"id":"q","result":1}"#);
    bench.write(client, r#"{"method":"n","sessionId":"s"}"#);
    bench.write(client, r#"{"method":"$/cancel_request","params":{"requestId":1}}"#);
    assert_eq!(bench.read(worker).len(), 3);
}

#[test]
fn other_pools_go_on_and_get_what_names_no_pool() {
    let mut bench = Bench::new(two_pools());
    let (client, paused, other) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.handle(Input::PausePool(A));
    for id in 0..4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    assert_eq!((bench.read(paused).len(), bench.read(other).len()), (0, 4));
    bench.write(client, r#"{"id":9,"method":"m","pool":"b"}"#);
    assert_eq!(bench.read(other).len(), 1);
}

#[test]
fn what_names_no_pool_is_sent_to_the_next_dedicated_pool_that_continues_and_stays_there() {
    let mut settings = settings(vec![pool(1, Assignment::Dedicated), pool(1, Assignment::Dedicated)]);
    (settings.pools[0].id, settings.pools[1].id) = ("a".into(), "b".into());
    settings.pools[1].max_instances = 4;
    let mut bench = Bench::new(settings.clone());
    let [client, before, named] = [(); 3].map(|()| bench.client());
    let (first, other) = (bench.worker(0), bench.worker(1));
    bench.write(before, r#"{"id":1,"method":"m"}"#);
    assert_eq!(bench.read(first).len(), 1);
    bench.handle(Input::PausePool(A));
    for id in 1..=2 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    bench.write(before, r#"{"id":2,"method":"m"}"#);
    bench.write(named, r#"{"id":1,"method":"m","pool":"a"}"#);
    assert_eq!((bench.read(first).len(), bench.read(other).len()), (0, 2));
    assert!(bench.is_paused(before), "its worker is in the paused pool");
    assert!(bench.is_paused(named), "it wants no other one");
    assert_eq!(bench.bus.view().listener_readiness(0), Some(Readiness::Ready));
    bench.handle(Input::ResumePool(A));
    bench.write(client, r#"{"id":3,"method":"m"}"#);
    assert_eq!((bench.read(first).len(), bench.read(other).len()), (1, 1), "each continues with its own worker");
    // A pool that a listener prefers is that of its clients.
    settings.listeners[0].pool = Some(A);
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    assert!(bench.is_paused(client));
}

#[test]
fn a_client_that_waits_for_its_turn_in_a_pool_that_is_paused_then_is_served_by_another_one() {
    let mut settings = settings(vec![pool(1, Assignment::Dedicated), pool(1, Assignment::Dedicated)]);
    (settings.pools[0].id, settings.pools[1].id) = ("a".into(), "b".into());
    settings.pools[0].max_instances = 3;
    let mut bench = Bench::starting(settings);
    let (served, waits) = (bench.client(), bench.client());
    for client in [served, waits] {
        bench.write(client, r#"{"id":1,"method":"m"}"#);
    }
    assert!(!bench.is_paused(served) && bench.is_paused(waits), "one worker is started at a time");
    bench.handle(Input::PausePool(A));
    let other = bench.worker(1);
    assert_eq!(bench.read(other).len(), 1);
}

#[test]
fn a_first_line_that_is_a_notification_reaches_another_pool_while_the_clients_own_is_paused() {
    let mut settings = settings(vec![pool(1, Assignment::Dedicated), pool(1, Assignment::Dedicated)]);
    (settings.pools[0].id, settings.pools[1].id) = ("a".into(), "b".into());
    settings.pools[0].max_instances = 1;
    let mut bench = Bench::new(settings);
    let (served, late) = (bench.client(), bench.client());
    bench.write(served, r#"{"id":1,"method":"m"}"#);
    bench.handle(Input::PausePool(A));
    bench.write(late, r#"{"method":"n"}"#);
    let other = bench.worker(1);
    assert_eq!(bench.read(other), [r#"{"method":"n"}"#], "the paused pool is full");
}

#[test]
fn a_request_that_waits_for_a_resume_times_out_like_any_other() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.pools[0].request_timeout = Some(seconds(5));
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.pass(milliseconds(4999));
    assert_eq!(bench.read(client).len(), 0);
    bench.pass(milliseconds(1));
    assert_eq!(bench.read_reasons(client), ["timeout"]);
}

#[test]
fn a_shutdown_refuses_what_waits_for_a_resume() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.shutdown();
    assert_eq!(bench.read_reasons(client)[0], "shutting_down");
}

#[test]
fn no_worker_is_started_for_a_client_of_a_paused_dedicated_pool() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Dedicated)]));
    bench.handle(Input::PausePool(A));
    let (client, spare) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.pass(seconds(60));
    assert_eq!((bench.workers.len(), bench.read(spare).len()), (1, 0));
    bench.handle(Input::ResumePool(A));
    assert_eq!(bench.read(spare).len(), 1);
}

#[test]
fn a_paused_pool_loses_no_request_while_its_only_worker_is_restarted() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.handle(Input::PausePool(A));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.pass(seconds(10));
    bench.handle(Input::ResumePool(A));
    let next = bench.worker(0);
    assert_eq!(bench.read(next).len(), 1);
}

#[test]
fn a_paused_pool_is_not_ready_for_new_clients_and_says_that_others_go_on() {
    let mut bench = bench(1);
    bench.handle(Input::PausePool(A));
    let why = bench.bus.view().pool_readiness(0);
    assert!(matches!(&why, Some(Readiness::Paused(why)) if why.contains("paused")), "{why:?}");
    bench.handle(Input::ResumePool(A));
    assert_eq!(bench.bus.view().pool_readiness(0), Some(Readiness::Ready));
}

#[test]
fn a_client_that_leaves_while_it_waits_for_a_resume_leaves_nothing_behind() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.gone(client);
    bench.handle(Input::ResumePool(A));
    assert_eq!(bench.read(worker).len(), 0);
}

#[test]
fn a_paused_listener_holds_its_sockets_and_takes_no_new_clients() {
    let mut bench = bench(1);
    let listener = ListenerId::at(0);
    let pause = |bench: &mut Bench, is_paused| bench.handle(Input::PauseListener { listener, is_paused });
    let before = bench.client();
    pause(&mut bench, true);
    assert_eq!(bench.listeners.held, [listener]);
    let asks = |bench: &Bench| bench.bus.view().would_take(0, &Place::Inherited.into());
    assert!(matches!(asks(&bench), Err(Rejection::NoRoom(why)) if why.contains("paused")));
    let why = bench.bus.view().listener_readiness(0);
    assert!(matches!(&why, Some(Readiness::Paused(why)) if why.contains("paused")), "{why:?}");
    let worker = bench.worker(0);
    bench.write(before, r#"{"id":1,"method":"m"}"#);
    assert_eq!(bench.read(worker).len(), 1, "who was there continues");
    pause(&mut bench, false);
    assert_eq!((bench.listeners.held.len(), asks(&bench)), (0, Ok(())));
}

#[test]
fn a_worker_that_is_taken_out_finishes_its_work_and_gets_no_successor_until_the_pool_is_resumed() {
    for resumed in [Input::ResumePool(A), Input::RestartPool(A)] {
        let mut bench = Bench::new(settings(vec![pool(2, Assignment::RoundRobin)]));
        let (client, one, other) = (bench.client(), bench.worker(0), bench.worker(1));
        bench.write(client, r#"{"id":1,"method":"m"}"#);
        let (out, stays) = if bench.read(one).is_empty() { (other, one) } else { (one, other) };
        bench.handle(Input::TakeOutWorker(key(out)));
        assert!(bench.stop_actions(out).is_empty(), "it has a request to answer");
        for id in 2..5 {
            bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        }
        assert_eq!(bench.read(stays).len(), 3);
        bench.write(out, r#"{"id":1,"result":1}"#);
        assert_eq!(bench.read_json(client)["id"], 1);
        assert_eq!(bench.stop_actions(out), [StopAction::End]);
        bench.dies(out);
        bench.pass(seconds(3600));
        assert_eq!(bench.workers.len(), 1, "its place stays empty");
        let row = bench.bus.view().pool_row(0).map(|row| (row.out, row.waiting, row.given_up));
        assert_eq!(row, Some((1, 0, 0)));
        bench.handle(resumed);
        assert!(bench.workers.len() >= 2);
    }
}

#[test]
fn a_resumed_pool_does_not_wait_for_the_end_of_a_worker_that_was_started_to_replace_the_one_taken_out() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::RoundRobin)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.reload(&settings(vec![Pool { generation: 1, ..pool(1, Assignment::RoundRobin) }]));
    let candidate = bench.worker(1);
    bench.handle(Input::TakeOutWorker(key(worker)));
    assert!(!bench.stop_actions(candidate).is_empty(), "it is not needed, and may take long to end");
    bench.dies(worker);
    bench.handle(Input::ResumePool(A));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).is_empty());
    assert_ne!(bench.busy_worker(), candidate);
}

#[test]
fn the_last_worker_that_is_taken_out_leaves_a_pool_that_says_so() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.handle(Input::TakeOutWorker(key(worker)));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    let error = bench.read_json(client);
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("taken it out")), "{error}");
    let why = bench.bus.view().pool_readiness(0);
    assert!(matches!(&why, Some(Readiness::NotReady(why)) if why.contains("taken 1 of 1 out")), "{why:?}");
}

#[test]
fn a_reload_keeps_what_is_paused_or_out() {
    let before = two_pools();
    let mut bench = Bench::new(before.clone());
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.handle(Input::PausePool(A));
    bench.handle(Input::TakeOutWorker(key(worker)));
    bench.dies(worker);
    let mut after = before.clone();
    after.limits.quiesce = seconds(7);
    bench.reload(&after);
    bench.write(client, r#"{"id":1,"method":"m","pool":"a"}"#);
    let row = |bench: &Bench| bench.bus.view().pool_row(0).map(|row| (row.is_paused, row.out));
    assert_eq!((row(&bench), bench.read(client).len()), (Some((true, 1)), 0));
    bench.handle(Input::ResumePool(A));
    let next = bench.worker(1);
    assert_eq!(bench.read(next).len(), 1);
}

#[test]
fn a_pool_that_a_reload_removes_is_paused_no_more() {
    let before = two_pools();
    let mut bench = Bench::new(before.clone());
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new","pool":"a"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":2,"method":"m","sessionId":"s"}"#);
    assert_eq!(bench.read(worker).len(), 0);
    let mut after = before.clone();
    after.pools[0].is_gone = true;
    bench.reload(&after);
    assert_eq!(bench.read(worker).len(), 1, "nobody could resume it");
    bench.handle(Input::PausePool(A));
    bench.reload(&before);
    let row = bench.bus.view().pool_row(0).map(|row| (row.is_paused, row.out));
    assert_eq!(row, Some((false, 0)), "it is there again as if it was new");
}

#[test]
fn a_listener_that_a_reload_removes_is_paused_no_more() {
    let listener = ListenerId::at(1);
    let mut before = settings(vec![pool(1, Assignment::RoundRobin)]);
    before.listeners.push(Listener::default());
    let mut bench = Bench::new(before.clone());
    bench.handle(Input::PauseListener { listener, is_paused: true });
    assert_eq!(bench.listeners.held, [listener]);
    let mut after = before.clone();
    after.listeners[1].is_gone = true;
    bench.reload(&after);
    bench.reload(&before);
    assert_eq!((bench.listeners.held.len(), bench.bus.view().is_listener_paused(1)), (0, false));
    assert!(bench.connect(1, Source::Inherited).is_some());
}

#[test]
fn what_names_no_pool_waits_for_a_worker_of_another_pool_while_one_is_paused() {
    let mut settings = two_pools();
    settings.limits.hold = seconds(1);
    let mut bench = Bench::new(settings);
    let (client, paused, other) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.handle(Input::PausePool(A));
    bench.dies(other);
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.pass(seconds(1));
    let next = bench.newest(1)[0];
    assert_eq!((bench.read(paused).len(), bench.read(next).len()), (0, 1));
    bench.dies(next);
    bench.write(client, r#"{"id":2,"method":"m"}"#);
    bench.handle(Input::ResumePool(A));
    assert_eq!(bench.read(paused).len(), 1, "it waits no longer than it has to");
}

#[test]
fn the_time_that_a_client_waits_for_a_resume_continues_while_workers_come_and_go() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::RoundRobin)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.handle(Input::PausePool(A));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    let since = bench.now;
    bench.pass(seconds(5));
    bench.dies(worker);
    bench.pass(seconds(5));
    let Peer::Client(key) = client else { panic!("it is a client") };
    assert_eq!(bench.bus.fleets.queue().awaits_resume(key).map(|(_, at)| at), Some(since));
}

#[test]
fn a_candidate_whose_slot_a_reload_removes_takes_none_that_was_taken_out() {
    let rolling = |instances| settings(vec![Pool { generation: 1, ..pool(instances, Assignment::RoundRobin) }]);
    let mut bench = Bench::new(settings(vec![pool(3, Assignment::RoundRobin)]));
    let out = bench.worker(0);
    bench.handle(Input::TakeOutWorker(key(out)));
    bench.dies(out);
    bench.reload(&rolling(3));
    let first = bench.newest(1)[0];
    bench.pass(milliseconds(300));
    let second = bench.newest(1)[0];
    assert_ne!(first, second, "the first one has settled, and the next one is for the third slot");
    bench.reload(&rolling(2));
    bench.pass(seconds(1));
    let row = bench.bus.view().pool_row(0).map(|row| (row.out, row.waiting));
    assert_eq!(row, Some((1, 0)));
    assert_eq!(bench.stop_actions(first), [StopAction::End], "the candidate has the second slot");
    bench.bus.check_invariants();
}
