//! Workers that do not answer, and workers that end before they have.

use super::*;
use crate::overview::PeerName;

fn patient() -> Bench {
    let pool = Pool { request_timeout: Some(seconds(5)), ..pool(1, Assignment::RoundRobin) };
    Bench::new(settings(vec![pool]))
}

fn runs_out(bench: &mut Bench, client: Peer, id: u32) {
    bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    bench.pass(seconds(5));
    assert_eq!(bench.read_error(client).0, "timeout");
}

#[test]
fn a_worker_whose_requests_time_out_in_a_row_is_restarted() {
    let mut bench = patient();
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..2 {
        runs_out(&mut bench, client, id);
    }
    assert!(bench.signals_to(worker).is_empty());
    runs_out(&mut bench, client, 2);
    assert_eq!((bench.signals_to(worker), bench.count(Reason::WorkerHangs)), (vec![Signal::Terminate], 1));
    bench.dies(worker);
    bench.pass(milliseconds(100));
    assert_eq!(bench.workers.len(), 1);
}

#[test]
fn a_worker_that_speaks_while_requests_of_a_client_run_out_of_time_serves_the_others_on() {
    let mut bench = patient();
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..9 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        bench.pass(seconds(2));
        bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    }
    bench.pass(seconds(2));
    assert_eq!((bench.signals_to(worker), bench.count(Reason::WorkerHangs)), (vec![], 0));
    assert_eq!(bench.count(Reason::Timeout), 8);
}

#[test]
fn requests_of_an_ended_worker_are_lost_with_its_client_when_another_own_worker_hangs() {
    let own = |id: &str| Pool { id: id.into(), request_timeout: Some(seconds(5)), ..pool(1, Assignment::Dedicated) };
    let mut bench = Bench::new(settings(vec![own("a"), own("b")]));
    let (client, ended, hung) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"method":"hello","pool":"a"}"#);
    for id in 0..3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x","pool":"b"}}"#));
    }
    bench.pass(milliseconds(4_500));
    bench.write(ended, r#"{"id":1,"method":"session/request_permission"}"#);
    // Its output is still read: another process holds its pipe.
    bench.exits(ended, Exit::Code(0));
    bench.pass(milliseconds(500));
    assert_eq!((bench.signals_to(hung), bench.count(Reason::WorkerHangs)), (vec![Signal::Terminate], 1));
    assert_eq!((bench.how_closed(client), bench.count(Reason::ClientLeft)), (Some(Close::Refuse), 1));
    bench.pass(milliseconds(500));
    assert!(bench.is_released(ended));
    assert_eq!((bench.count(Reason::ClientLeft), bench.bus.view().stats().pending), (1, 0));
}

#[test]
fn an_answer_resets_the_count_of_timeouts() {
    let mut bench = patient();
    let (client, worker) = (bench.client(), bench.worker(0));
    for round in 0..4 {
        runs_out(&mut bench, client, 2 * round);
        runs_out(&mut bench, client, 2 * round + 1);
        bench.write(client, &format!(r#"{{"id":"{round}","method":"x"}}"#));
        let wire: Value = serde_json::from_str(bench.read(worker).last().unwrap()).unwrap();
        bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, wire["id"]));
        bench.read_one(client);
    }
    assert_eq!((bench.signals_to(worker), bench.count(Reason::WorkerHangs)), (vec![], 0));
}

#[test]
fn a_worker_that_is_silent_while_a_request_waits_is_reported_once() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.pass(seconds(100));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.pass(seconds(20));
    bench.write(worker, r#"{"method":"update","sessionId":"s"}"#);
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.count(Reason::WorkerSilent), 0, "it spoke in between");
    bench.pass(milliseconds(1));
    bench.pass(seconds(300));
    assert_eq!(bench.count(Reason::WorkerSilent), 1);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.pass(seconds(300));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.count(Reason::WorkerSilent), 1, "no client waited meanwhile");
    bench.pass(milliseconds(1));
    assert_eq!(bench.count(Reason::WorkerSilent), 2);
    assert!(bench.signals_to(worker).is_empty());
}

#[test]
fn a_worker_paused_for_lack_of_room_is_not_reported_as_silent() {
    let mut settings = settings(vec![pool(1, Assignment::Dedicated)]);
    settings.limits.max_output_queue = 10;
    settings.limits.backpressure_timeout = seconds(300);
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.stalls(client);
    for _ in 0..2 {
        bench.write(worker, r#"{"method":"more than ten bytes"}"#);
    }
    assert!(bench.is_paused(worker));
    bench.pass(seconds(100));
    assert_eq!(bench.count(Reason::WorkerSilent), 0);
    let row = bench.bus.view().worker_row(bench.now, 0).expect("it lives");
    let waits = row.link.waits_for.map(|it| (it.whom, it.time.as_secs()));
    assert_eq!(waits, Some((PeerName::Client(0), 100)), "show waiting lists both peers");
    bench.takes(client, 1000);
    assert!(!bench.is_paused(worker));
    bench.pass(seconds(61));
    assert_eq!(bench.count(Reason::WorkerSilent), 1, "now it is");
}

#[test]
fn a_worker_without_pending_requests_may_be_silent() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.breaks(client);
    bench.pass(seconds(100));
    assert_eq!((bench.count(Reason::WorkerSilent), bench.signals_to(worker)), (0, vec![]));
}

#[test]
fn a_worker_with_subscribers_may_be_silent() {
    let mut bench = patient();
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"subscriptions/listen"}}"#));
    }
    bench.pass(seconds(100));
    assert!(bench.read(client).is_empty(), "no client waits for an answer");
    assert_eq!((bench.count(Reason::WorkerSilent), bench.count(Reason::Timeout)), (0, 0));
    assert!(bench.signals_to(worker).is_empty());
    runs_out(&mut bench, client, 9);
}

#[test]
fn a_worker_with_subscribers_is_reported_as_silent_when_a_request_waits() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, r#"{"id":0,"method":"subscriptions/listen"}"#);
    bench.pass(seconds(100));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.count(Reason::WorkerSilent), 0, "it has not waited for long");
    bench.pass(seconds(31));
    assert_eq!(bench.count(Reason::WorkerSilent), 1);
}

#[test]
fn a_given_up_worker_is_tried_again_after_the_window_and_never_without_restarts() {
    for (max_restarts, later) in [(1, 1), (0, 0)] {
        let mut failing = settings(vec![pool(1, Assignment::RoundRobin)]);
        (failing.limits.max_restarts, failing.limits.restart_window) = (max_restarts, seconds(10));
        let mut bench = Bench::new(failing);
        for _ in 0..=max_restarts {
            bench.pass(milliseconds(100));
            let worker = bench.worker(0);
            bench.dies(worker);
        }
        bench.pass(milliseconds(9_999));
        assert_eq!(bench.workers.len(), 0);
        bench.pass(seconds(100));
        assert_eq!(bench.workers.len(), later);
    }
}

/// How long each of five clients waits for a worker, if the worker of each previous one has ended at its first request.
fn waits(source: impl Fn(u32) -> Source) -> Vec<u64> {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 9, ..pool(1, Assignment::Dedicated) }]));
    let wait = |client| {
        let mut waited = 0;
        while bench.workers.is_empty() {
            bench.pass(milliseconds(50));
            waited += 50;
        }
        let (client, worker) = (bench.connect(0, source(client)).expect("there is room").into(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"initialize"}"#);
        bench.dies(worker);
        assert_eq!(bench.read_reasons(client), ["worker_exited"]);
        bench.breaks(client);
        bench.gone(client);
        waited
    };
    (0..5).map(wait).collect()
}

#[test]
fn workers_that_end_soon_after_they_were_taken_make_the_next_clients_of_a_dedicated_pool_wait() {
    assert_eq!(waits(Source::User), [0, 0, 200, 0, 800]);
}

#[test]
fn a_client_that_crashes_its_own_workers_does_not_make_others_wait_for_long() {
    assert_eq!(waits(|_| Source::User(7)), [0, 0, 100, 0, 0]);
    assert_eq!(waits(|client| Source::User(client % 2)), [0, 0, 200, 0, 0], "nor do two that take turns");
}

#[test]
fn a_worker_that_answers_and_lasts_ends_the_waiting_of_a_dedicated_pool() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 9, ..pool(1, Assignment::Dedicated) }]));
    for (source, lasts) in [(0, 0), (1, 9), (2, 10), (3, 0)] {
        let client = bench.connect(0, Source::User(source)).expect("there is room").into();
        bench.pass(seconds(1));
        let worker = bench.worker(0);
        bench.write(client, r#"{"id":1,"method":"initialize"}"#);
        bench.write(worker, r#"{"id":1,"result":1}"#);
        bench.pass(seconds(lasts));
        bench.dies(worker);
    }
    assert_eq!(bench.count(Reason::RestartScheduled), 3, "one that lasted is no failure");
    // The fourth was the first failure again, not the third.
    let mut waited = 0;
    while let Some(spare) = bench.workers.pop() {
        bench.dies(spare.into());
    }
    while bench.workers.is_empty() {
        bench.pass(milliseconds(50));
        waited += 50;
    }
    assert_eq!(waited, 100);
}
