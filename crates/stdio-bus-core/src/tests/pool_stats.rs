//! Counters of requests, workers, bytes and waits.

use super::*;
use crate::pool_stats::{Outcome, PoolStats};

fn stats(bench: &Bench) -> PoolStats {
    bench.bus.view().pool_row(0).expect("there is a pool").stats.clone()
}

/// The outcomes with a count above zero.
fn outcomes(bench: &Bench) -> Vec<(&'static str, u64)> {
    let stats = stats(bench);
    let all = Outcome::ALL.iter().map(|outcome| (outcome.name(), stats.requests(*outcome)));
    all.filter(|(_, count)| *count > 0).collect()
}

fn with_timeout() -> Bench {
    Bench::new(settings(vec![Pool { request_timeout: Some(seconds(10)), ..pool(1, Assignment::RoundRobin) }]))
}

#[test]
fn a_request_is_counted_once_by_its_outcome_and_an_answer_by_its_duration() {
    let mut bench = with_timeout();
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 1..=3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    assert_eq!(outcomes(&bench), [], "nothing is over yet");
    bench.pass(milliseconds(3));
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    bench.pass(milliseconds(400));
    bench.write(worker, r#"{"id":2,"error":{"code":1,"message":"no"}}"#);
    assert_eq!(outcomes(&bench), [("answered", 1), ("error", 1)]);
    let durations = stats(&bench).durations().clone();
    let not_longer = |bound| durations.cumulative().find(|(at, _)| *at == milliseconds(bound)).map(|(_, count)| count);
    assert_eq!((not_longer(1), not_longer(5), not_longer(250), not_longer(500)), (Some(0), Some(1), Some(1), Some(2)));
    assert!(durations.sum().abs_diff(milliseconds(406)) < Duration::from_micros(4), "{:?}", durations.sum());
    bench.pass(seconds(10));
    bench.write(worker, r#"{"id":3,"result":"too late"}"#);
    assert_eq!(outcomes(&bench), [("answered", 1), ("error", 1), ("timeout", 1)]);
    assert_eq!(stats(&bench).durations().count(), 2, "what was not answered in time took no time");
}

#[test]
fn a_request_whose_client_or_worker_leaves_is_counted_as_such() {
    let mut bench = with_timeout();
    let (stays, leaves, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(leaves, r#"{"id":1,"method":"m"}"#);
    bench.breaks(leaves);
    assert_eq!(outcomes(&bench), [("client_left", 1)]);
    bench.write(stays, r#"{"id":1,"method":"m"}"#);
    bench.dies(worker);
    assert_eq!(outcomes(&bench), [("worker_exited", 1), ("client_left", 1)]);
}

#[test]
fn a_cancelled_request_is_counted_as_that_unless_it_is_answered() {
    let mut bench = with_timeout();
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 1..=2 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        bench.write(client, &format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{id}}}}}"#));
    }
    bench.write(worker, r#"{"id":1,"error":{"code":-32800,"message":"cancelled"}}"#);
    bench.pass(seconds(6));
    assert_eq!(outcomes(&bench), [("error", 1), ("cancelled", 1)]);
}

#[test]
fn a_request_that_the_end_of_the_daemon_overtakes_is_counted_as_that() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.shutdown();
    bench.pass(seconds(1));
    bench.dies(worker);
    assert_eq!(outcomes(&bench), [("shutting_down", 1)]);
}

#[test]
fn requests_that_reach_no_worker_have_no_outcome() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    assert_eq!((outcomes(&bench), bench.count(Reason::NoWorker)), (vec![], 1));
}

/// The errors of each pool and of none.
fn errors(bench: &Bench, pool: Option<usize>) -> Vec<(&'static str, u64)> {
    let of_pool = pool.and_then(|pool| bench.bus.view().pool_row(pool)).map(|row| row.stats.errors().clone());
    let errors = of_pool.unwrap_or_else(|| bench.bus.view().errors_of_no_pool().clone());
    errors.iter().map(|(reason, count)| (reason.name(), count)).collect()
}

#[test]
fn errors_of_a_burst_are_counted_by_pool_and_reason_and_logged_with_the_pool() {
    let other = Pool { id: "other".into(), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::RoundRobin), other]));
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":"in","method":"m","sessionId":"s","pool":"agents"}"#);
    bench.write(client, r#"{"id":"lost","method":"m","pool":"other"}"#);
    bench.dies(second);
    for id in 0..100 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m","pool":"other"}}"#));
        bench.write(client, r#"{"method":"a notification is no request","pool":"other"}"#);
    }
    for id in 100..103 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m","pool":"nowhere"}}"#));
    }
    let Peer::Worker(worker) = first else { unreachable!() };
    bench.handle(Input::RestartWorker { worker, at_once: true });
    bench.write(client, r#"{"id":"late","method":"m","sessionId":"s"}"#);
    bench.write(client, r#"{"id":"several","method":"m"}"#);
    assert_eq!(errors(&bench, Some(0)), [("request_lost", 1)], "by its session");
    assert_eq!(errors(&bench, Some(1)), [("request_lost", 1), ("no_worker", 100)]);
    assert_eq!(errors(&bench, None), [("unknown_pool", 3), ("no_worker", 1)]);
    bench.pass(seconds(10));
    let summary = bench.reports.iter().find(|report| report.reason == Reason::NoWorker && report.suppressed > 0);
    let text = &summary.expect("the burst is summed up").text;
    assert!(text.contains("191 times more") && text.contains("stdio_bus_request_errors_total"), "{text}");
}

#[test]
fn starts_exits_restarts_and_slots_given_up_are_counted() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_restarts = 1;
    let mut bench = Bench::new(settings);
    for _ in 0..2 {
        let worker = bench.worker(0);
        bench.dies(worker);
        bench.pass(seconds(2));
    }
    let stats = stats(&bench);
    let changes = [Reason::WorkerStarted, Reason::WorkerStopped, Reason::RestartScheduled, Reason::PoolDegraded];
    assert_eq!((stats.all_exits(), changes.map(|change| stats.events(change))), (2, [2, 0, 1, 1]));
}

#[test]
fn bytes_are_counted_on_all_four_ways() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    let stats = bench.bus.view().stats();
    assert_eq!((stats.client_side.bytes_in, stats.worker_side.bytes_out), (22, 22));
    assert_eq!((stats.worker_side.bytes_in, stats.client_side.bytes_out), (20, 20));
}

#[test]
fn waits_for_a_receiver_without_room_are_counted_in_time() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_output_queue = 10;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    for id in 1..=2 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    assert!(bench.is_paused(client));
    bench.pass(seconds(3));
    let row = bench.bus.view().client_row(bench.now, 0).expect("it is there");
    assert_eq!(row.link.waits_for.map(|it| it.time), Some(seconds(3)));
    assert_eq!(bench.bus.view().stats().client_side.paused, Duration::ZERO, "it still waits");
    bench.takes(worker, usize::MAX);
    assert_eq!(bench.bus.view().stats().client_side.paused, seconds(3));
}
