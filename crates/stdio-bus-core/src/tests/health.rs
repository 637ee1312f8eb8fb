//! Workers that say nothing although they owe answers (`worker_silent_sec`), and how they are checked.

use super::*;
use crate::readiness::Readiness;
use crate::settings::Check;

/// A pool of this many workers that are unresponsive after twelve seconds of silence.
fn watched(workers: usize, assignment: Assignment) -> Settings {
    settings(vec![Pool { worker_silent: Some(seconds(12)), ..pool(workers, assignment) }])
}

/// One worker that is checked every five seconds.
fn checked(check: Check) -> (Bench, Peer, Peer) {
    let pool = Pool { worker_silent: Some(Duration::ZERO), check: Some(check), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.read(worker);
    (bench, client, worker)
}

fn ping() -> Check {
    Check { every: seconds(5), send: None, expects: None }
}

fn is_ready(bench: &Bench) -> bool {
    bench.bus.view().pool_readiness(0) == Some(Readiness::Ready)
}

fn is_unresponsive(bench: &Bench, slot: usize) -> bool {
    bench.bus.view().worker_row(bench.now, slot).expect("it lives").is_unresponsive
}

/// How many of so many requests without a session each worker gets, which are not answered.
fn shares(bench: &mut Bench, client: Peer, requests: u32) -> Vec<usize> {
    for id in 0..requests {
        bench.write(client, &format!(r#"{{"id":"share {id}","method":"x"}}"#));
    }
    (0..bench.workers.len()).map(|at| bench.read(bench.worker(at)).len()).collect()
}

#[test]
fn new_clients_get_no_worker_that_says_nothing_although_it_owes_an_answer() {
    for assignment in [Assignment::RoundRobin, Assignment::Client] {
        let mut bench = Bench::new(watched(2, assignment));
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        bench.read(bench.worker(0));
        bench.pass(milliseconds(11_999));
        assert!(!is_unresponsive(&bench, 0), "{assignment:?}");
        bench.pass(milliseconds(1));
        assert_eq!((is_unresponsive(&bench, 0), bench.count(Reason::WorkerUnresponsive)), (true, 1), "{assignment:?}");
        assert!(is_ready(&bench), "the other one is well");
        let other = bench.client();
        assert_eq!(shares(&mut bench, other, 3), [0, 3], "{assignment:?}");
        assert!(bench.signals_to(bench.worker(0)).is_empty(), "it may work for long without a word");
    }
}

#[test]
fn clients_that_a_silent_worker_has_served_stay_with_it() {
    let mut bench = Bench::new(watched(2, Assignment::Client));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.read(bench.worker(0));
    bench.pass(seconds(12));
    assert_eq!(shares(&mut bench, client, 2), [2, 0], "another one knows nothing of them");
}

#[test]
fn a_pool_of_silent_workers_is_not_ready_until_one_says_something() {
    let mut bench = Bench::new(watched(2, Assignment::RoundRobin));
    let client = bench.client();
    assert_eq!(shares(&mut bench, client, 2), [1, 1]);
    bench.pass(seconds(12));
    let Some(Readiness::Unresponsive(why)) = bench.bus.view().pool_readiness(0) else { panic!("it is ready") };
    assert!(why.contains("say nothing although they owe answers (worker_silent_sec)"), "{why}");
    assert_eq!(shares(&mut bench, client, 2), [1, 1], "there is no better one");
    bench.write(bench.worker(1), r#"{"method":"notifications/message"}"#);
    assert!(is_ready(&bench) && !is_unresponsive(&bench, 1), "any line will do");
    assert_eq!(shares(&mut bench, client, 2), [0, 2]);
    bench.pass(seconds(1));
    assert_eq!((bench.count(Reason::WorkerUnresponsive), bench.count(Reason::WorkerWell)), (2, 1));
}

#[test]
fn a_worker_that_has_spoken_once_is_unresponsive_again_although_the_daemon_did_not_run_meanwhile() {
    let mut bench = Bench::new(watched(1, Assignment::RoundRobin));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(12));
    bench.write(bench.worker(0), r#"{"method":"notifications/message"}"#);
    assert!(!is_unresponsive(&bench, 0));
    bench.now = bench.now.after(seconds(12));
    bench.handle(Input::Tick);
    assert!(is_unresponsive(&bench, 0) && !is_ready(&bench));
    assert_eq!((bench.count(Reason::WorkerUnresponsive), bench.count(Reason::WorkerWell)), (2, 0));
}

#[test]
fn a_worker_is_not_blamed_for_the_time_in_which_the_daemon_did_not_run() {
    let mut bench = Bench::new(watched(1, Assignment::RoundRobin));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.now = bench.now.after(seconds(100));
    bench.handle(Input::ClockJumped { held_up: seconds(100), suspended: seconds(0) });
    bench.handle(Input::Tick);
    bench.pass(milliseconds(11_999));
    assert!(!is_unresponsive(&bench, 0));
    bench.pass(milliseconds(1));
    assert!(is_unresponsive(&bench, 0));
}

#[test]
fn a_check_is_not_missed_while_the_daemon_did_not_run() {
    let (mut bench, _, worker) = checked(ping());
    bench.pass(seconds(5));
    for _ in 0..3 {
        bench.pass(seconds(4));
        bench.now = bench.now.after(seconds(100));
        bench.handle(Input::ClockJumped { held_up: seconds(100), suspended: seconds(0) });
        bench.handle(Input::Tick);
    }
    assert!(bench.signals_to(worker).is_empty(), "it was frozen as well");
    bench.pass(seconds(10));
    assert_eq!(bench.signals_to(worker).len(), 1);
}

#[test]
fn a_worker_owes_the_answers_to_clients_that_have_left() {
    let mut bench = Bench::new(watched(1, Assignment::RoundRobin));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.breaks(client);
    bench.gone(client);
    bench.pass(seconds(12));
    assert!(!is_ready(&bench));
    let age = |bench: &Bench| bench.bus.view().worker_owes(bench.now, 0).map(|age| age.as_secs());
    assert_eq!(age(&bench), Some(12));
    let rows: Vec<_> =
        (0..bench.bus.view().request_slots()).filter_map(|at| bench.bus.view().owed_age(bench.now, at)).collect();
    assert_eq!(rows, [(PoolId::at(0), seconds(12))]);
    bench.write(bench.worker(0), r#"{"id":1,"result":1}"#);
    assert_eq!((is_ready(&bench), age(&bench)), (true, None));
}

#[test]
fn a_worker_that_speaks_now_and_then_or_owes_nothing_is_well() {
    let mut bench = Bench::new(watched(1, Assignment::RoundRobin));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.pass(seconds(100));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    for _ in 0..9 {
        bench.pass(seconds(11));
        bench.write(worker, r#"{"method":"notifications/message"}"#);
        assert!(is_ready(&bench));
    }
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.pass(seconds(100));
    bench.write(client, r#"{"id":2,"method":"subscriptions/listen"}"#);
    bench.pass(seconds(100));
    assert_eq!((is_ready(&bench), bench.count(Reason::WorkerUnresponsive)), (true, 0), "nobody waits for that");
}

#[test]
fn a_worker_that_waits_for_a_client_is_not_silent() {
    let mut bench = Bench::new(watched(1, Assignment::RoundRobin));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(worker, r#"{"id":7,"method":"session/request_permission"}"#);
    bench.pass(seconds(100));
    assert!(is_ready(&bench), "it is the client's turn");
    bench.write(client, r#"{"id":7,"result":1}"#);
    bench.pass(milliseconds(11_999));
    assert!(is_ready(&bench));
    bench.pass(seconds(4));
    assert!(!is_ready(&bench), "it is the worker's turn again");
}

#[test]
fn a_worker_that_is_not_read_is_not_silent() {
    let mut settings = watched(1, Assignment::Dedicated);
    settings.limits.max_output_queue = 10;
    settings.limits.backpressure_timeout = seconds(300);
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.stalls(client);
    for _ in 0..2 {
        bench.write(worker, r#"{"method":"more than ten bytes"}"#);
    }
    bench.pass(seconds(100));
    assert!(bench.is_paused(worker) && !is_unresponsive(&bench, 0));
}

#[test]
fn a_worker_is_noticed_whose_clients_all_give_up_before() {
    let mut bench = Bench::new(watched(2, Assignment::RoundRobin));
    let client = bench.client();
    for id in ["first", "second"] {
        bench.write(client, &format!(r#"{{"id":"{id}","method":"x"}}"#));
    }
    bench.write(bench.worker(1), r#"{"id":"second","result":1}"#);
    bench.pass(seconds(8));
    assert!(!is_unresponsive(&bench, 0));
    bench.write(client, r#"{"method":"notifications/cancelled","params":{"requestId":"first"}}"#);
    bench.pass(seconds(20));
    assert!(!is_unresponsive(&bench, 0), "it owes nothing");
    let other = bench.client();
    bench.write(other, r#"{"id":"third","method":"x"}"#);
    bench.pass(seconds(3));
    assert!(!is_unresponsive(&bench, 0));
    // It is looked at four times in twelve seconds: some of the silence before is not seen.
    bench.pass(seconds(3));
    assert!(is_unresponsive(&bench, 0), "it has said nothing to either of them");
}

#[test]
fn a_limit_of_zero_is_none_and_that_of_all_pools_holds_where_one_says_nothing() {
    let silent_for = |of_pool: Option<u64>, of_all: u64| {
        let pool = Pool { worker_silent: of_pool.map(seconds), ..pool(1, Assignment::RoundRobin) };
        let mut settings = settings(vec![pool]);
        settings.limits.worker_silent = seconds(of_all);
        let mut bench = Bench::new(settings);
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        (0..200).find(|_| {
            bench.pass(seconds(1));
            !is_ready(&bench)
        })
    };
    assert_eq!(silent_for(None, 60), Some(59));
    assert_eq!((silent_for(Some(20), 60), silent_for(Some(20), 0)), (Some(19), Some(19)));
    assert_eq!((silent_for(None, 0), silent_for(Some(0), 60)), (None, None));
}

#[test]
fn a_reload_begins_and_ends_the_watch() {
    let mut bench = Bench::new(watched(1, Assignment::RoundRobin));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(12));
    assert!(!is_ready(&bench));
    let with = |limit: u64| {
        let mut settings = watched(1, Assignment::RoundRobin);
        settings.pools[0].worker_silent = Some(seconds(limit));
        settings
    };
    let reload = |bench: &mut Bench, limit: u64| {
        let effects = bench.bus.reload(bench.now, with(limit)).collect();
        bench.effects(&[], effects);
        bench.pass(milliseconds(1));
    };
    reload(&mut bench, 0);
    assert!(is_ready(&bench));
    reload(&mut bench, 20);
    bench.pass(seconds(15));
    assert!(!is_ready(&bench), "it was silent all the time");
}

#[test]
fn a_listener_that_closes_when_not_ready_closes_while_all_workers_are_silent() {
    let mut settings = watched(1, Assignment::RoundRobin);
    settings.listeners[0].closes_when_not_ready = true;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(12));
    assert_eq!(bench.listeners.closed, [ListenerId::at(0)]);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.pass(seconds(1));
    assert!(bench.listeners.closed.is_empty());
}

/// The id of the check that the worker was sent as its only line, and its method.
fn check_of(bench: &mut Bench, worker: Peer) -> (Value, String) {
    let check = bench.read_json(worker);
    (check["id"].clone(), check["method"].as_str().expect("it is a request").to_owned())
}

#[test]
fn a_worker_that_misses_two_checks_is_replaced_and_its_clients_are_notified() {
    let (mut bench, client, worker) = checked(ping());
    bench.pass(milliseconds(4_999));
    assert!(bench.read(worker).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(check_of(&mut bench, worker).1, "ping");
    bench.pass(seconds(5));
    assert_eq!(check_of(&mut bench, worker).1, "ping");
    assert!(bench.signals_to(worker).is_empty());
    bench.pass(seconds(5));
    assert_eq!((bench.signals_to(worker), bench.count(Reason::WorkerHangs)), (vec![Signal::Terminate], 1));
    assert_eq!(bench.read_error(client).0, "worker_exited");
}

#[test]
fn a_worker_that_answers_its_checks_may_take_as_long_as_it_likes() {
    let (mut bench, client, worker) = checked(ping());
    for _ in 0..20 {
        bench.pass(seconds(5));
        let (id, _) = check_of(&mut bench, worker);
        bench.pass(seconds(1));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert!(bench.read(client).is_empty(), "the answer is for nobody else");
    assert_eq!((bench.count(Reason::WorkerHangs), bench.count(Reason::UnknownId)), (0, 0));
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.read_one(client);
    bench.pass(seconds(100));
    assert!(bench.read(worker).is_empty(), "it owes nothing");
}

#[test]
fn a_worker_that_speaks_of_something_else_is_not_replaced_for_a_check_that_it_does_not_answer() {
    let (mut bench, _, worker) = checked(ping());
    for _ in 0..9 {
        bench.pass(seconds(5));
        let (id, _) = check_of(&mut bench, worker);
        bench.pass(seconds(4));
        bench.write(worker, r#"{"method":"notifications/message"}"#);
        bench.pass(seconds(1));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert_eq!((bench.signals_to(worker), bench.count(Reason::WorkerHangs)), (vec![], 0));
}

#[test]
fn a_check_of_ones_own_expects_its_answer() {
    let own = Check {
        every: seconds(5),
        send: Some(r#"{"method":"health","params":{}}"#.into()),
        expects: Some(r#""ok":true"#.into()),
    };
    let answers = |well: [bool; 4]| {
        let (mut bench, _, worker) = checked(own.clone());
        for is_well in well {
            bench.pass(seconds(5));
            if !bench.signals_to(worker).is_empty() {
                break;
            }
            let (id, method) = check_of(&mut bench, worker);
            assert_eq!(method, "health");
            bench.write(worker, &format!(r#"{{"id":{id},"result":{{"ok":{is_well}}}}}"#));
        }
        bench.pass(milliseconds(1));
        bench.count(Reason::WorkerHangs)
    };
    assert_eq!(answers([true, false, true, false]), 0);
    assert_eq!(answers([true, true, false, false]), 1);
}

#[test]
fn a_late_answer_to_a_check_is_for_nobody() {
    let (mut bench, client, worker) = checked(ping());
    bench.pass(seconds(5));
    let (first, _) = check_of(&mut bench, worker);
    bench.pass(seconds(5));
    let (second, _) = check_of(&mut bench, worker);
    assert_ne!(first, second);
    bench.write(worker, &format!(r#"{{"id":{first},"result":{{}}}}"#));
    bench.pass(seconds(5));
    assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownId)), (1, 0));
    assert_eq!((bench.count(Reason::WorkerHangs), bench.read(client)), (0, vec![]), "it has said something");
}

#[test]
fn a_worker_is_not_checked_while_it_waits_for_a_client() {
    let (mut bench, client, worker) = checked(ping());
    bench.pass(seconds(5));
    bench.read_one(worker);
    bench.write(worker, r#"{"id":7,"method":"session/request_permission"}"#);
    bench.pass(seconds(100));
    assert!(bench.read(worker).is_empty());
    bench.write(client, r#"{"id":7,"result":1}"#);
    assert_eq!(bench.read(worker).len(), 1);
    bench.pass(milliseconds(4_999));
    assert!(bench.read(worker).is_empty() && bench.signals_to(worker).is_empty());
}
