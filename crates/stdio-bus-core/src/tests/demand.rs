//! Pools that are asleep until their first line, and fall asleep when nobody needs them.

use super::eras::{CALL, with_mcp_listener};
use super::*;
use crate::readiness::Readiness;
use crate::settings::{Era, Start};

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
const IDLE: Duration = seconds(60);

fn on_demand(instances: usize, assignment: Assignment) -> Pool {
    let most = if assignment == Assignment::Dedicated { 3 } else { instances };
    Pool { start: Start::OnDemand, idle_stop: Some(IDLE), max_instances: most, ..pool(instances, assignment) }
}

fn asleep(instances: usize, assignment: Assignment) -> Bench {
    let mut bench = Bench::new(settings(vec![on_demand(instances, assignment)]));
    bench.pass(seconds(1));
    bench
}

const ALL: [Assignment; 3] = [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated];

impl Bench {
    /// A worker ends as it was asked to.
    fn obeys(&mut self, worker: Peer) {
        assert_eq!(self.stop_actions(worker).first(), Some(&StopAction::End));
        self.exits(worker, Exit::Signal(15));
        self.ends(worker);
    }

    fn is_ready(&self) -> bool {
        self.bus.view().pool_readiness(0) == Some(Readiness::Ready)
    }
}

#[test]
fn a_pool_that_starts_on_demand_has_no_process_until_a_line_comes_which_it_then_gets() {
    for assignment in ALL {
        let mut bench = asleep(2, assignment);
        let client = bench.client();
        bench.pass(seconds(1000));
        assert!(bench.workers.is_empty() && bench.bus.view().is_asleep(0) && bench.is_ready(), "{assignment:?}");
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        let worker = bench.busy_worker();
        bench.write(worker, r#"{"id":1,"result":1}"#);
        assert_eq!(bench.read_json(client)["result"], 1);
        assert_eq!(bench.workers.len(), 2, "an awake pool keeps its instances: {assignment:?}");
        assert!(!bench.bus.view().is_asleep(0) && bench.is_ready());
        let wakes = bench.bus.view().pool_row(0).expect("a pool").wakes.count();
        assert_eq!((bench.count(Reason::PoolWoken), wakes), (1, 1));
    }
}

#[test]
fn every_kind_of_line_wakes_a_pool() {
    for line in [r#"{"method":"note"}"#, r#"{"id":1,"method":"session/load","params":{"sessionId":"s"}}"#] {
        let mut bench = asleep(1, Assignment::RoundRobin);
        let client = bench.client();
        bench.write(client, line);
        assert_eq!(bench.read_one(bench.worker(0)), line);
    }
}

#[test]
fn the_first_line_waits_for_a_process_that_is_slow_to_start() {
    for assignment in ALL {
        let mut bench = Bench::starting(settings(vec![on_demand(1, assignment)]));
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        assert!(bench.workers.len() == 1 && bench.is_ready(), "{assignment:?}: it will be served");
        bench.pass(seconds(20));
        bench.spawn_all();
        assert_eq!(bench.read_one(bench.worker(0)), r#"{"id":1,"method":"x"}"#);
    }
}

#[test]
fn a_pool_falls_asleep_when_nobody_has_needed_it_and_the_next_line_wakes_it_again() {
    for assignment in [Assignment::RoundRobin, Assignment::Client] {
        let mut bench = asleep(2, assignment);
        for wakes in 1..=3 {
            let client = bench.client();
            bench.write(client, r#"{"id":1,"method":"x"}"#);
            let worker = bench.busy_worker();
            let all = [bench.worker(0), bench.worker(1)];
            bench.pass(seconds(1000));
            assert!(!bench.bus.view().is_asleep(0), "somebody waits for an answer");
            bench.write(worker, r#"{"id":1,"result":1}"#);
            assert_eq!(bench.read_json(client)["result"], 1);
            bench.breaks(client);
            bench.gone(client);
            bench.pass(IDLE - milliseconds(1));
            assert!(all.iter().all(|worker| bench.stop_actions(*worker).is_empty()), "not yet");
            bench.pass(milliseconds(1));
            all.into_iter().for_each(|worker| bench.obeys(worker));
            assert!(bench.workers.is_empty() && bench.bus.view().is_asleep(0) && bench.is_ready());
            assert_eq!((bench.count(Reason::PoolAsleep), bench.count(Reason::PoolWoken)), (wakes, wakes));
        }
        assert_eq!((bench.count(Reason::WorkerExited), bench.count(Reason::WorkerStopped)), (0, 6));
    }
}

#[test]
fn a_client_that_stays_connected_is_served_by_the_next_worker() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let first = bench.worker(0);
    bench.read(first);
    bench.write(first, r#"{"id":1,"result":1}"#);
    bench.read(client);
    bench.pass(IDLE);
    assert_eq!(bench.stop_actions(first), [StopAction::End]);
    // The process has not ended yet.
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    let next = bench.worker(1);
    assert_eq!((bench.read(first).len(), bench.read_one(next)), (0, r#"{"id":2,"method":"x"}"#.to_owned()));
    bench.obeys(first);
    bench.write(next, r#"{"id":2,"result":2}"#);
    assert_eq!(bench.read_json(client)["result"], 2);
    assert_eq!(bench.count(Reason::WorkerExited) + bench.count(Reason::RequestLost), 0);
}

#[test]
fn a_worker_that_is_not_needed_any_more_has_time_to_read_what_is_left_before_a_signal_ends_it() {
    let limits = Limits::default();
    let replaced = Pool { max_age: Some(IDLE), ..pool(1, Assignment::RoundRobin) };
    for pool in [on_demand(1, Assignment::RoundRobin), replaced] {
        let mut bench = Bench::new(settings(vec![pool]));
        let client = bench.client();
        bench.write(client, r#"{"method":"note"}"#);
        let worker = bench.worker(0);
        while bench.stop_actions(worker).is_empty() {
            bench.pass(seconds(1));
            assert!(bench.now < Moment(0).after(4 * IDLE), "it is to end");
        }
        bench.pass(limits.drain_timeout - seconds(2));
        assert_eq!(bench.stop_actions(worker), [StopAction::End], "what it has not read yet comes before that");
        bench.pass(seconds(3));
        assert_eq!(bench.signals_to(worker), [Signal::Terminate], "this one does not end by itself");
        bench.pass(limits.drain_timeout);
        assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
        assert_eq!(bench.count(Reason::WorkerExited), 0);
    }
}

#[test]
fn workers_that_ignore_the_end_of_their_stdin_do_not_pile_up_though_their_pool_is_woken_again_and_again() {
    let mut settings = settings(vec![on_demand(2, Assignment::RoundRobin)]);
    settings.limits.drain_timeout = 100 * IDLE;
    let mut bench = Bench::new(settings);
    let client = bench.client();
    for wake in 0..4 {
        bench.write(client, r#"{"method":"note"}"#);
        bench.pass(3 * IDLE);
        assert!(bench.bus.view().is_asleep(0));
        let signals = |at: usize| bench.signals_to(bench.worker(at));
        let are_signalled: Vec<bool> = (0..2 * (wake + 1)).map(|at| signals(at) == [Signal::Terminate]).collect();
        let expected: Vec<bool> = (0..2 * (wake + 1)).map(|at| at < 2 * wake).collect();
        assert_eq!(are_signalled, expected, "two may be ending, the oldest ones get a signal");
    }
}

/// Pools that never fall asleep by themselves, and whose workers together may hold 100 MiB.
fn with_little_memory(ids: &[&str]) -> Bench {
    let pool = |id: &&str| Pool { id: (*id).into(), idle_stop: None, ..on_demand(1, Assignment::RoundRobin) };
    let mut settings = settings(ids.iter().map(pool).collect());
    settings.limits.max_workers_memory = Some(100);
    Bench::new(settings)
}

impl Bench {
    /// All workers hold so much memory. Returns which pools are asleep then.
    fn hold(&mut self, mib: u64) -> Vec<bool> {
        self.handle(Input::WorkersMemoryMeasured { mib });
        (0..self.bus.ctx.settings.pools.len()).map(|pool| self.bus.view().is_asleep(pool)).collect()
    }
}

#[test]
fn while_workers_hold_more_than_max_workers_memory_mb_the_pool_that_was_idle_for_longest_falls_asleep() {
    let mut bench = with_little_memory(&["a", "b", "c"]);
    let client = bench.client();
    for id in ["b", "a", "c"] {
        bench.write(client, &format!(r#"{{"id":"{id}","method":"x","pool":"{id}"}}"#));
        let worker = bench.busy_worker();
        bench.write(worker, &format!(r#"{{"id":"{id}","result":1}}"#));
        bench.read(client);
        bench.pass(seconds(10));
    }
    assert_eq!(bench.hold(100), [false; 3], "that is allowed");
    assert_eq!(bench.hold(101), [false, true, false]);
    let slept = bench.reports.iter().find(|report| report.reason == Reason::PoolAsleep).expect("it is logged");
    let text = "pool \"b\" is asleep: it is idle, and all workers together hold 101 MiB, more than \
                max_workers_memory_mb (100)";
    assert_eq!(slept.text, text);
    assert_eq!(bench.stop_actions(bench.worker(0)), [StopAction::End], "it ends as what is replaced does");
    bench.pass(seconds(5));
    assert_eq!(bench.hold(101), [true, true, false]);
    bench.write(client, r#"{"id":"b","method":"x","pool":"b"}"#);
    assert_eq!(bench.hold(101), [true, false, true], "the one that was woken is needed");
    assert_eq!(bench.bus.view().workers_memory(), Some((101, 100)));
    assert_eq!(bench.count(Reason::WorkerExited) + bench.count(Reason::WorkersMemory), 0);
}

#[test]
fn a_pool_between_two_requests_does_not_fall_asleep_for_memory() {
    let mut bench = with_little_memory(&["agents"]);
    let client = bench.client();
    for id in 0..4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        let worker = bench.worker(0);
        bench.read(worker);
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        bench.pass(seconds(9));
        assert_eq!(bench.hold(101), [false]);
    }
    assert_eq!(bench.count(Reason::WorkersMemory), 1, "that memory is short is said");
    bench.pass(seconds(1));
    assert_eq!(bench.hold(101), [true]);
}

#[test]
fn no_pool_that_somebody_needs_falls_asleep_for_memory_which_is_said_once_until_there_is_enough_again() {
    let mut bench = with_little_memory(&["agents"]);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(10));
    for (mib, reports) in [(101, 1), (200, 1), (100, 1), (150, 2)] {
        assert_eq!(bench.hold(mib), [false]);
        assert_eq!(bench.count(Reason::WorkersMemory), reports);
    }
    bench.write(bench.worker(0), r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_json(client)["result"], 1);
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::RoundRobin)]));
    bench.pass(seconds(10));
    assert_eq!((bench.hold(1 << 20), bench.bus.view().workers_memory()), (vec![false], None), "without a limit");
}

#[test]
fn what_a_worker_says_by_itself_does_not_keep_its_pool_awake() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    let worker = bench.worker(0);
    for _ in 0..13 {
        bench.pass(seconds(10));
        bench.write(worker, r#"{"method":"log"}"#);
    }
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn notifications_keep_a_pool_awake_although_they_are_not_answered() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    for _ in 0..50 {
        bench.write(client, r#"{"method":"note"}"#);
        bench.pass(IDLE / 2);
    }
    assert_eq!((bench.count(Reason::PoolWoken), bench.count(Reason::PoolAsleep)), (1, 0));
    bench.pass(2 * IDLE);
    assert_eq!(bench.count(Reason::PoolAsleep), 1);
}

#[test]
fn a_session_keeps_its_pool_awake_until_its_client_has_left() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.pass(10 * IDLE);
    assert!(!bench.bus.view().is_asleep(0));
    bench.breaks(client);
    bench.gone(client);
    bench.pass(2 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn a_session_that_was_unused_for_session_idle_sec_does_not_keep_its_pool_awake() {
    let mut settings = settings(vec![on_demand(1, Assignment::RoundRobin)]);
    settings.limits.session_idle = Some(2 * IDLE);
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.pass(2 * IDLE - milliseconds(1));
    assert!(!bench.bus.view().is_asleep(0));
    bench.pass(2 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn a_client_with_a_worker_of_its_own_keeps_it_and_the_workers_in_use_count_as_instances() {
    let mut bench = asleep(1, Assignment::Dedicated);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let own = bench.worker(0);
    bench.read(own);
    bench.write(own, r#"{"id":1,"result":1}"#);
    bench.pass(10 * IDLE);
    assert_eq!((bench.workers.len(), bench.bus.view().is_asleep(0)), (1, false), "there is no spare beside it");
    let pool = bench.bus.view().pool_row(0).expect("a pool");
    assert_eq!((pool.waiting, bench.bus.view().staffing()), (0, (1, 1)), "and none is missing");
    let other = bench.client();
    bench.write(other, r#"{"id":1,"method":"x"}"#);
    let second = bench.worker(1);
    bench.read(second);
    bench.write(second, r#"{"id":1,"result":1}"#);
    for (client, own) in [(client, own), (other, second)] {
        bench.breaks(client);
        bench.gone(client);
        bench.obeys(own);
    }
    assert_eq!(bench.workers.len(), 1, "one is kept for the next client");
    bench.pass(2 * IDLE);
    bench.obeys(bench.worker(0));
    assert!(bench.workers.is_empty() && bench.bus.view().is_asleep(0));
}

#[test]
fn without_idle_stop_a_pool_that_was_woken_stays_awake() {
    let mut bench = Bench::new(settings(vec![Pool { idle_stop: None, ..on_demand(1, Assignment::RoundRobin) }]));
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    bench.pass(seconds(1_000_000));
    assert_eq!((bench.workers.len(), bench.bus.view().is_asleep(0)), (1, false));
}

#[test]
fn a_pool_that_starts_at_once_does_not_fall_asleep() {
    let mut bench = Bench::new(settings(vec![Pool { idle_stop: Some(IDLE), ..pool(2, Assignment::RoundRobin) }]));
    bench.pass(10 * IDLE);
    assert_eq!((bench.workers.len(), bench.bus.view().is_asleep(0)), (2, false));
}

#[test]
fn a_pool_whose_worker_cannot_be_started_says_so_and_is_not_ready_for_a_while() {
    let mut settings = settings(vec![on_demand(1, Assignment::RoundRobin)]);
    settings.limits.max_restarts = 1;
    let mut bench = Bench::starting(settings);
    let client = bench.client();
    let fail = |bench: &mut Bench| {
        let Peer::Worker(worker) = bench.worker(0) else { unreachable!() };
        bench.handle(Input::SpawnFailed { worker, why: "no such file".into(), fault: SpawnFailure::Command });
    };
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    fail(&mut bench);
    assert_eq!(bench.read_error(client).0, "no_worker");
    assert!(!bench.is_ready());
    bench.pass(milliseconds(100));
    fail(&mut bench);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    let error = bench.read_json(client);
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("given up")), "{error}");
    bench.pass(IDLE - milliseconds(1));
    assert!(bench.workers.is_empty() && !bench.is_ready());
    // Nobody has asked again: it is not tried every minute for nobody.
    bench.pass(seconds(1));
    if !bench.workers.is_empty() {
        fail(&mut bench);
    }
    bench.pass(2 * IDLE);
    assert!(bench.workers.is_empty() && bench.bus.view().is_asleep(0));
    let started = bench.commands.len();
    bench.pass(seconds(1_000_000));
    assert_eq!((bench.commands.len(), bench.workers.len()), (started, 0));
}

#[test]
fn a_pool_without_workers_falls_asleep_and_is_ready_again_when_its_failures_are_old() {
    let mut settings = settings(vec![on_demand(1, Assignment::RoundRobin)]);
    settings.limits.max_restarts = 1000;
    settings.limits.restart_window = seconds(600);
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    while !bench.workers.is_empty() || !bench.bus.view().is_asleep(0) {
        match bench.workers.first().copied() {
            Some(worker) => bench.dies(Peer::Worker(worker)),
            None => bench.pass(milliseconds(100)),
        }
        assert!(bench.now < Moment(0).after(3 * IDLE), "it is tried on although nobody asks");
    }
    assert!(!bench.is_ready(), "its last worker has failed lately");
    bench.pass(seconds(3600));
    assert_eq!((bench.bus.view().pool_readiness(0), bench.workers.len()), (Some(Readiness::Ready), 0));
    bench.write(client, r#"{"method":"note"}"#);
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
}

#[test]
fn a_line_that_names_no_pool_wakes_one_only_if_no_other_pool_is_awake() {
    let named = |id: &str, start| Pool { id: id.into(), start, ..on_demand(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![named("a", Start::OnDemand), named("b", Start::AtOnce)]));
    let client = bench.client();
    for _ in 0..4 {
        bench.write(client, r#"{"method":"note"}"#);
    }
    assert_eq!((bench.workers.len(), bench.read(bench.worker(0)).len()), (1, 4));
    bench.write(client, r#"{"method":"note","pool":"a"}"#);
    assert_eq!(bench.read(bench.worker(1)).len(), 1, "one that names it wakes it");
    let mut bench = Bench::new(settings(vec![named("a", Start::OnDemand), named("b", Start::OnDemand)]));
    let client = bench.client();
    for _ in 0..4 {
        bench.write(client, r#"{"method":"note"}"#);
    }
    assert_eq!((bench.workers.len(), bench.read(bench.worker(0)).len()), (1, 4));
}

#[test]
fn a_listener_that_closes_without_workers_stays_open_for_a_pool_that_is_asleep() {
    let mut settings = settings(vec![on_demand(1, Assignment::RoundRobin)]);
    settings.listeners[0].closes_when_not_ready = true;
    let mut bench = Bench::new(settings);
    assert!(bench.listeners.closed.is_empty());
    assert!(bench.bus.view().readiness().is_ready() && bench.bus.view().has_started(bench.now));
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    bench.pass(2 * IDLE);
    assert!(bench.bus.view().is_asleep(0) && bench.listeners.closed.is_empty());
}

#[test]
fn a_reload_gives_a_pool_that_is_asleep_its_new_command_without_a_start() {
    let before = settings(vec![on_demand(1, Assignment::RoundRobin)]);
    let mut after = before.clone();
    after.pools[0].generation = 1;
    let mut bench = Bench::new(before);
    bench.reload(&after);
    assert!(bench.workers.is_empty());
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert_eq!(bench.commands.iter().map(|(.., generation)| *generation).collect::<Vec<_>>(), [1]);
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
    bench.write(bench.worker(0), r#"{"id":1,"result":1}"#);
    bench.pass(2 * IDLE);
    bench.obeys(bench.worker(0));
    after.pools[0].start = Start::AtOnce;
    bench.reload(&after);
    assert_eq!((bench.workers.len(), bench.bus.view().is_asleep(0)), (1, false), "a pool that starts at once is awake");
}

#[test]
fn a_paused_pool_is_woken_by_the_requests_that_waited_for_its_resume() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.handle(Input::PausePool(PoolId::at(0)));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(10 * IDLE);
    assert!(bench.workers.is_empty());
    bench.handle(Input::ResumePool(PoolId::at(0)));
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
    for assignment in ALL {
        let mut bench = asleep(1, assignment);
        let client = bench.client();
        bench.handle(Input::PausePool(PoolId::at(0)));
        bench.write(client, r#"{"method":"note"}"#);
        assert_eq!(bench.read(bench.worker(0)).len(), 1, "a notification is not held up: {assignment:?}");
        assert!(!bench.bus.view().is_asleep(0));
    }
}

#[test]
fn a_shutdown_starts_nothing() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.shutdown();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"method":"note"}"#);
    bench.pass(seconds(60));
    assert!(bench.workers.is_empty());
}

/// The first worker, which is asked what its command serves, and that question.
fn asked_first(bench: &mut Bench) -> (Peer, Value) {
    let worker = bench.worker(0);
    let question = bench.read_json(worker);
    assert_eq!(question["method"], "server/discover");
    (worker, question)
}

#[test]
fn the_initialize_of_a_client_that_wakes_a_pool_for_mcp_is_the_first_line_of_its_worker() {
    for assignment in ALL {
        let mut bench = Bench::new(with_mcp_listener(on_demand(1, assignment)));
        let client = bench.mcp(Era::Legacy);
        bench.write(client, INITIALIZE);
        assert_eq!((bench.workers.len(), bench.is_paused(client)), (1, false), "{assignment:?}");
        assert_eq!(bench.answers(bench.worker(0))["method"], "initialize", "{assignment:?}");
        assert_eq!(bench.read(client).len(), 1, "{assignment:?}");
        bench.pass(seconds(6));
        assert_eq!(
            (bench.bus.view().pool_era(0), bench.read(bench.worker(0)).len()),
            (None, 0),
            "nobody wants to know"
        );
    }
}

/// A client of an earlier version has woken a pool and has its answer; then one of 2026-07-28 comes, for which another worker
/// is asked. Returns both clients, the workers, and the id of the question.
fn asked_beside(assignment: Assignment) -> (Bench, [Peer; 2], [Peer; 2], Value) {
    let mut bench = Bench::new(with_mcp_listener(on_demand(1, assignment)));
    let (legacy, modern) = (bench.mcp(Era::Legacy), bench.mcp(Era::Modern));
    bench.write(legacy, INITIALIZE);
    let first = bench.worker(0);
    bench.answers(first);
    bench.read(legacy);
    bench.write(modern, CALL);
    assert_eq!((bench.workers.len(), bench.is_paused(modern)), (2, true), "{assignment:?}");
    let second = bench.worker(1);
    let question = bench.read_json(second);
    assert_eq!(question["method"], "server/discover", "{assignment:?}");
    (bench, [legacy, modern], [first, second], question["id"].clone())
}

#[test]
fn a_command_is_asked_beside_the_workers_of_sessions_which_go_on_meanwhile() {
    for assignment in ALL {
        let (mut bench, [legacy, modern], [first, second], id) = asked_beside(assignment);
        bench.write(legacy, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
        assert_eq!(bench.answers(first)["id"], 2, "{assignment:?}");
        let other = bench.mcp(Era::Modern);
        bench.write(other, CALL);
        assert_eq!((bench.workers.len(), bench.is_paused(other)), (2, true), "it is asked once");
        bench.write(second, &format!(r#"{{"id":{id},"result":{{}}}}"#));
        assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern), "{assignment:?}");
        // Another one is lent to the other client.
        let both = if assignment == Assignment::Dedicated { 1 } else { 2 };
        assert_eq!(bench.read(second).len(), both, "{assignment:?}");
        bench.write(second, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(bench.read(modern).len(), 1, "{assignment:?}");
        assert_eq!((bench.stop_actions(first), bench.stop_actions(second)), (vec![], vec![]), "{assignment:?}");
    }
}

#[test]
fn one_worker_is_asked_beside_those_of_sessions_and_is_followed_by_others_when_it_serves_their_clients() {
    let mut bench = Bench::new(with_mcp_listener(on_demand(3, Assignment::RoundRobin)));
    let (legacy, modern) = (bench.mcp(Era::Legacy), bench.mcp(Era::Modern));
    bench.write(legacy, INITIALIZE);
    bench.answers(bench.worker(0));
    bench.write(modern, CALL);
    assert_eq!(bench.workers.len(), 4);
    let asked = bench.worker(3);
    let question = bench.read_json(asked);
    bench.write(asked, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!((bench.workers.len(), bench.read(asked).len()), (6, 1));
}

#[test]
fn a_command_that_serves_sessions_alone_keeps_no_worker_that_was_asked_beside_theirs() {
    for assignment in ALL {
        let (mut bench, [legacy, modern], [first, second], id) = asked_beside(assignment);
        bench.write(second, &format!(r#"{{"id":{id},"error":{{"code":-32601,"message":"no"}}}}"#));
        assert_eq!(bench.read_error(modern).0, "unsupported_protocol_version", "{assignment:?}");
        assert_eq!(
            (bench.stop_actions(first), bench.stop_actions(second)),
            (vec![], vec![StopAction::End]),
            "{assignment:?}"
        );
        bench.obeys(second);
        bench.write(modern, CALL);
        assert_eq!((bench.read_error(modern).0.as_str(), bench.workers.len()), ("unsupported_protocol_version", 1));
        bench.write(legacy, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
        assert_eq!(bench.answers(first)["id"], 2, "{assignment:?}");
        assert_eq!((bench.count(Reason::WorkerExited), bench.count(Reason::PoolWoken)), (0, 1));
        // One that says nothing is listened to for a minute.
        let (mut bench, [_, modern], [first, second], id) = asked_beside(assignment);
        bench.pass(seconds(5));
        assert_eq!(bench.read_error(modern).0, "unsupported_protocol_version", "{assignment:?}");
        assert_eq!(bench.stop_actions(second), [], "{assignment:?}");
        bench.write(second, &format!(r#"{{"id":{id},"result":{{}}}}"#));
        assert_eq!(
            (bench.stop_actions(first), bench.stop_actions(second)),
            (vec![], vec![StopAction::End]),
            "{assignment:?}"
        );
        bench.write(modern, CALL);
        assert_eq!(bench.answers(bench.worker(2))["method"], "tools/call", "it is known for good");
    }
}

#[test]
fn sessions_wait_for_no_worker_that_is_asked_for_others_when_their_side_has_fallen_asleep() {
    let mut bench = Bench::new(with_mcp_listener(on_demand(1, Assignment::RoundRobin)));
    let legacy = bench.mcp(Era::Legacy);
    bench.write(legacy, INITIALIZE);
    bench.answers(bench.worker(0));
    bench.pass(2 * IDLE);
    bench.obeys(bench.worker(0));
    let modern = bench.mcp(Era::Modern);
    bench.write(modern, CALL);
    let asked = bench.worker(0);
    assert_eq!((bench.read_json(asked)["method"].clone(), bench.workers.len()), (json!("server/discover"), 1));
    bench.write(legacy, INITIALIZE);
    assert_eq!(bench.answers(bench.worker(1))["method"], "initialize");
    assert!(bench.is_paused(modern) && bench.read(asked).is_empty());
}

#[test]
fn workers_that_end_when_they_are_asked_beside_those_of_sessions_are_asked_twice() {
    let (mut bench, [legacy, modern], [first, second], _) = asked_beside(Assignment::Client);
    bench.dies(second);
    let third = bench.worker(1);
    assert_eq!(bench.read_json(third)["method"], "server/discover");
    bench.dies(third);
    assert_eq!((bench.read_error(modern).0.as_str(), bench.workers.len()), ("unsupported_protocol_version", 1));
    bench.write(legacy, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
    assert_eq!(bench.answers(first)["id"], 2);
}

#[test]
fn a_pool_that_an_mcp_listener_offers_since_a_reload_is_asked_when_a_client_of_2026_07_28_comes() {
    let after = with_mcp_listener(pool(1, Assignment::Client));
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client)]));
    bench.reload(&after);
    let modern = bench.mcp(Era::Modern);
    bench.write(modern, CALL);
    let second = bench.worker(1);
    let question = bench.read_json(second);
    assert_eq!(question["method"], "server/discover");
    bench.write(second, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!((bench.read_one(second), bench.count(Reason::PoolWoken)), (CALL.to_owned(), 0));
}

#[test]
fn a_command_that_is_slow_to_answer_server_discover_is_not_stopped_while_its_answer_may_come() {
    let pool = Pool { idle_stop: Some(seconds(2)), ..on_demand(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(with_mcp_listener(pool));
    bench.handle(Input::WakePool(PoolId::at(0)));
    let (worker, question) = asked_first(&mut bench);
    bench.pass(seconds(20));
    assert_eq!((bench.stop_actions(worker), bench.bus.view().is_asleep(0)), (vec![], false));
    bench.write(worker, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern));
    bench.pass(seconds(5));
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn the_time_that_nobody_needs_a_pool_begins_when_its_last_request_has_failed() {
    let pool = Pool { request_timeout: Some(3 * IDLE), ..on_demand(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool.clone()]));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(3 * IDLE);
    assert_eq!(bench.read_error(client).0, "timeout");
    bench.pass(IDLE - milliseconds(1));
    assert_eq!((bench.stop_actions(bench.worker(0)), bench.bus.view().is_asleep(0)), (vec![], false));
    bench.pass(IDLE);
    assert!(bench.bus.view().is_asleep(0));
    let mut settings = settings(vec![pool]);
    settings.limits.max_restarts = 0;
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(IDLE - seconds(1));
    bench.dies(bench.worker(0));
    bench.pass(IDLE - seconds(1));
    assert!(!bench.bus.view().is_asleep(0), "a request was lost a minute ago");
    bench.pass(IDLE);
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn a_drain_does_not_wake_a_paused_pool_for_what_waits() {
    let mut settings = settings(vec![on_demand(1, Assignment::RoundRobin)]);
    settings.limits.quiesce = seconds(10);
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.handle(Input::PausePool(PoolId::at(0)));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"method":"note"}"#);
    bench.handle(Input::Drain);
    assert_eq!((bench.read_error(client).0, bench.commands.len()), ("shutting_down".to_owned(), 0));
}

#[test]
fn a_request_of_2026_07_28_wakes_a_pool_and_waits_until_its_command_was_asked() {
    for assignment in ALL {
        let mut bench = Bench::new(with_mcp_listener(on_demand(1, assignment)));
        let client = bench.mcp(Era::Modern);
        bench.write(client, CALL);
        let (worker, question) = asked_first(&mut bench);
        bench.write(worker, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
        assert_eq!(bench.read_one(worker), CALL, "{assignment:?}");
        bench.write(worker, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        bench.breaks(client);
        bench.gone(client);
        bench.pass(3 * IDLE);
        assert!(bench.bus.view().is_asleep(0), "{assignment:?}");
        bench.obeys(worker);
        let client = bench.mcp(Era::Modern);
        bench.write(client, CALL);
        assert_eq!(bench.read_one(bench.worker(0)), CALL, "what is known is known for good");
    }
}

#[test]
fn clients_of_either_era_wake_workers_of_their_own_and_each_fleet_falls_asleep_by_itself() {
    let mut bench = Bench::new(with_mcp_listener(on_demand(1, Assignment::RoundRobin)));
    let (modern, legacy) = (bench.mcp(Era::Modern), bench.mcp(Era::Legacy));
    bench.write(modern, CALL);
    let first = bench.worker(0);
    let question = bench.read_json(first);
    bench.write(first, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    bench.read(first);
    bench.write(legacy, INITIALIZE);
    let second = bench.worker(1);
    assert_eq!(bench.answers(second)["method"], "initialize");
    bench.pass(2 * IDLE);
    bench.obeys(second);
    assert_eq!((bench.workers.len(), bench.bus.view().is_asleep(0)), (1, false), "one still works");
    bench.write(first, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    bench.pass(2 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn the_next_worker_of_a_pool_that_was_asleep_gets_the_initialize_of_its_connected_client_again() {
    let mut bench = Bench::new(with_mcp_listener(on_demand(1, Assignment::RoundRobin)));
    let client = bench.mcp(Era::Legacy);
    bench.write(client, INITIALIZE);
    let first = bench.worker(0);
    assert_eq!(bench.answers(first)["method"], "initialize");
    bench.read(client);
    bench.write(client, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    bench.read(first);
    bench.pass(2 * IDLE);
    bench.obeys(first);
    bench.write(client, r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#);
    let next = bench.worker(0);
    assert_eq!(bench.answers(next)["method"], "initialize");
    let methods: Vec<String> = bench.read(next);
    assert!(methods.last().is_some_and(|line| line.contains("tools/list")), "{methods:?}");
}

#[test]
fn a_question_for_the_era_wakes_a_pool_once() {
    let mut bench = Bench::new(with_mcp_listener(on_demand(1, Assignment::RoundRobin)));
    bench.handle(Input::WakePool(PoolId::at(0)));
    bench.handle(Input::WakePool(PoolId::at(0)));
    let worker = bench.worker(0);
    let question = bench.read_json(worker);
    bench.write(worker, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!((bench.workers.len(), bench.bus.view().pool_era(0)), (1, Some(Era::Modern)));
    bench.pass(2 * IDLE);
    bench.obeys(worker);
    bench.handle(Input::WakePool(PoolId::at(0)));
    assert!(bench.workers.is_empty(), "it is known");
}

#[test]
fn a_pool_that_is_asleep_is_woken_where_the_others_of_a_listener_are_paused() {
    let named = |id: &str, start| Pool { id: id.into(), start, ..on_demand(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![named("a", Start::AtOnce), named("b", Start::OnDemand)]));
    let client = bench.client();
    bench.handle(Input::PausePool(PoolId::at(0)));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert_eq!(bench.read(bench.worker(1)).len(), 1);
    let mut bench = Bench::new(settings(vec![named("a", Start::OnDemand), named("b", Start::OnDemand)]));
    let client = bench.client();
    bench.handle(Input::PausePool(PoolId::at(0)));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert_eq!((bench.commands[0].1, bench.read(bench.worker(0)).len()), (1, 1), "a paused one is not woken");
}

#[test]
fn a_listener_that_closes_without_workers_stays_open_while_its_pool_is_woken() {
    for is_mcp in [false, true] {
        let mut settings = with_mcp_listener(on_demand(1, Assignment::RoundRobin));
        if !is_mcp {
            settings.listeners.truncate(1);
        }
        settings.listeners.iter_mut().for_each(|listener| listener.closes_when_not_ready = true);
        let mut bench = Bench::starting(settings);
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        assert_eq!((bench.workers.len(), bench.listeners.closed.len()), (1, 0));
        bench.spawn_all();
        bench.pass(seconds(1));
        assert!(bench.listeners.closed.is_empty(), "{is_mcp}");
    }
}

#[test]
fn a_pool_whose_workers_are_all_taken_out_is_not_ready_while_it_is_asleep() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    let Peer::Worker(worker) = bench.worker(0) else { unreachable!() };
    bench.handle(Input::TakeOutWorker(worker));
    bench.pass(3 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
    let why = Readiness::NotReady("pool \"agents\" is asleep, and the operator has taken 1 of 1 out".to_owned());
    assert_eq!(bench.bus.view().pool_readiness(0), Some(why));
    assert_eq!(bench.bus.view().pool_row(0).map(|row| row.out), Some(1));
    let woken = bench.count(Reason::PoolWoken);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).concat().contains("the operator has taken it out"));
    assert_eq!(bench.count(Reason::PoolWoken), woken, "there is nothing to start");
    bench.handle(Input::ResumePool(PoolId::at(0)));
    assert!(bench.bus.view().is_asleep(0) && bench.is_ready());
}

#[test]
fn a_session_can_be_loaded_while_the_process_that_had_it_ends() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    let old = bench.worker(0);
    bench.write(old, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(old);
    bench.ends(client);
    bench.pass(3 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
    assert_eq!(bench.stop_actions(old).first(), Some(&StopAction::End), "it may take long to end");
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"session/load","params":{"sessionId":"s"}}"#);
    assert!(bench.read(client).is_empty());
    let new = bench.worker(1);
    assert!(bench.read_one(new).contains("session/load"));
}

#[test]
fn a_pool_that_has_grown_is_woken_in_a_slot_whose_worker_has_not_failed() {
    let mut settings =
        settings(vec![Pool { max_instances: 2, concurrency: 2, ..on_demand(1, Assignment::RoundRobin) }]);
    settings.limits.max_restarts = 0;
    let mut bench = Bench::new(settings);
    let client = bench.client();
    (0..4).for_each(|id| bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#)));
    bench.pass(seconds(1));
    let [first, second] = [0, 1].map(|at| bench.worker(at));
    for worker in [first, second] {
        for line in bench.read(worker) {
            let id = &serde_json::from_str::<Value>(&line).expect("JSON")["id"];
            bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        }
    }
    bench.dies(first);
    bench.pass(3 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
    bench.read(client);
    bench.write(client, r#"{"id":9,"method":"x"}"#);
    assert!(bench.read(client).is_empty());
    bench.busy_worker();
}

#[test]
fn a_worker_that_waits_for_the_answer_of_a_client_is_needed() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.write(worker, r#"{"id":"q","method":"elicitation/create"}"#);
    bench.pass(5 * IDLE);
    assert!(!bench.bus.view().is_asleep(0));
    bench.write(client, r#"{"id":"q","result":1}"#);
    bench.pass(3 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn a_pool_falls_asleep_although_its_workers_are_replaced_for_their_age_sooner() {
    let young = Pool { max_age: Some(IDLE / 4), ..on_demand(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![young]));
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    let mut passed = Duration::ZERO;
    while !bench.bus.view().is_asleep(0) {
        bench.pass(seconds(1));
        passed += seconds(1);
        assert!(passed < 4 * IDLE, "it is kept awake by its own replacements");
    }
}

#[test]
fn a_worker_that_says_nothing_since_its_start_is_restarted_and_its_request_gets_an_error_that_says_so() {
    let pool = Pool { start_timeout: Some(seconds(9)), ..on_demand(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool]));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(9) - milliseconds(1));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    let error = bench.read_json(client);
    let text = error["error"]["message"].as_str().expect("a text");
    assert!(text.contains("raise pools[].start_timeout_sec"), "{text}");
    assert_eq!(error["error"]["data"]["reason"], "start_timeout");
    assert_eq!(bench.count(Reason::StartTimeout), 1);
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(9));
    assert_eq!(bench.count(Reason::StartTimeout), 0, "without a limit it may take its time");
}

#[test]
fn a_dedicated_pool_whose_last_start_has_timed_out_is_not_ready_while_it_is_asleep() {
    let pool = Pool { start_timeout: Some(seconds(9)), ..on_demand(1, Assignment::Dedicated) };
    let mut settings = settings(vec![pool]);
    settings.limits.restart_window = seconds(600);
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(9));
    bench.obeys(bench.worker(0));
    bench.breaks(client);
    bench.gone(client);
    while !bench.bus.view().is_asleep(0) {
        bench.pass(seconds(1));
        assert!(bench.now < Moment(0).after(4 * IDLE), "nobody needs it");
    }
    assert!(!bench.is_ready());
    bench.pass(seconds(700));
    assert!(bench.is_ready(), "that was long ago");
}

/// What happens to a worker that has read its first request.
type FirstRequest = fn(&mut Bench, Peer);

#[test]
fn a_pool_whose_last_worker_failed_before_its_first_answer_is_not_ready_for_restart_window_sec_awake_or_asleep() {
    let hangs: FirstRequest = |bench, worker| {
        bench.pass(seconds(9));
        bench.obeys(worker);
    };
    let ends: FirstRequest = |bench, worker| bench.dies(worker);
    for (assignment, fails) in ALL.into_iter().flat_map(|assignment| [(assignment, hangs), (assignment, ends)]) {
        let pool = Pool { start_timeout: Some(seconds(9)), ..on_demand(1, assignment) };
        let mut settings = settings(vec![pool]);
        settings.limits.restart_window = seconds(600);
        let mut bench = Bench::new(settings);
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        assert!(bench.is_ready(), "nothing is known of its command");
        let worker = bench.worker(0);
        fails(&mut bench, worker);
        let failed_at = bench.now;
        let said = bench.read(client).concat();
        assert!(said.contains("-32011"), "{assignment:?}: {said}");
        bench.breaks(client);
        bench.gone(client);
        for awaits_sleep in [false, true] {
            while bench.bus.view().is_asleep(0) != awaits_sleep || !awaits_sleep && bench.workers.is_empty() {
                bench.pass(milliseconds(100));
                assert!(!bench.is_ready(), "{assignment:?}: its replacement was not asked anything");
                assert!(bench.now < failed_at.after(4 * IDLE), "its replacement starts, and then nobody needs it");
            }
            assert!(!bench.is_ready());
        }
        // The time of a backoff comes first.
        bench.pass(failed_at.after(seconds(601)).since(bench.now));
        assert!(bench.is_ready(), "that was long ago");
    }
}

#[test]
fn a_pool_is_ready_again_as_soon_as_a_worker_has_answered_after_one_that_failed() {
    for assignment in ALL {
        let mut bench = asleep(1, assignment);
        let first = bench.client();
        bench.write(first, r#"{"id":1,"method":"x"}"#);
        bench.dies(bench.worker(0));
        bench.pass(seconds(1));
        let next = bench.client();
        bench.write(next, r#"{"id":1,"method":"x"}"#);
        assert!(!bench.is_ready(), "{assignment:?}");
        let worker = bench.busy_worker();
        bench.write(worker, r#"{"id":1,"result":1}"#);
        assert_eq!(bench.read_json(next)["result"], 1);
        assert!(bench.is_ready(), "{assignment:?}");
        for client in [first, next] {
            bench.breaks(client);
            bench.gone(client);
        }
        if assignment == Assignment::Dedicated {
            bench.obeys(worker);
        }
        while !bench.bus.view().is_asleep(0) {
            bench.pass(seconds(1));
            assert!(bench.is_ready(), "{assignment:?}");
            assert!(bench.now < Moment(0).after(4 * IDLE), "nobody needs it");
        }
        assert!(bench.is_ready(), "{assignment:?}");
    }
}

#[test]
fn a_client_whose_requests_end_workers_does_not_make_a_pool_unready_that_has_answered_since_it_was_woken() {
    for assignment in ALL {
        let mut bench = asleep(1, assignment);
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        let worker = bench.busy_worker();
        bench.write(worker, r#"{"id":1,"result":1}"#);
        bench.read(client);
        bench.dies(worker);
        bench.pass(seconds(1));
        let other = bench.client();
        bench.write(other, r#"{"id":1,"method":"x"}"#);
        let second = bench.busy_worker();
        bench.dies(second);
        bench.pass(seconds(20));
        assert!(bench.is_ready(), "{assignment:?}");
    }
}

#[test]
fn a_listener_that_a_failed_wake_has_closed_opens_again_after_restart_window_sec_without_a_client() {
    for assignment in ALL {
        let mut settings = settings(vec![on_demand(1, assignment)]);
        settings.listeners[0].closes_when_not_ready = true;
        let window = settings.limits.restart_window;
        let mut bench = Bench::new(settings);
        let client = bench.client();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        let failed = bench.busy_worker();
        bench.dies(failed);
        bench.breaks(client);
        bench.gone(client);
        bench.pass(window / 2);
        assert_eq!(bench.listeners.closed.len(), 1, "{assignment:?}");
        bench.pass(window);
        assert!(bench.listeners.closed.is_empty(), "{assignment:?}");
    }
}

#[test]
fn a_worker_that_serves_keeps_its_pool_ready_while_another_one_fails_at_its_start() {
    let mut bench = asleep(2, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let good = bench.busy_worker();
    bench.write(good, r#"{"id":1,"result":1}"#);
    bench.read(client);
    bench.pass(seconds(1));
    let other = bench.workers.iter().map(|worker| Peer::Worker(*worker)).find(|worker| *worker != good);
    bench.dies(other.expect("it has two"));
    assert!(bench.is_ready());
}

#[test]
fn a_wake_by_a_notification_counts_though_nobody_waits_for_its_answer() {
    let mut bench = asleep(1, Assignment::RoundRobin);
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    let row = bench.bus.view().pool_row(0).expect("a pool");
    assert_eq!((row.woken, row.wakes.count()), (1, 0));
}

#[test]
fn a_command_that_was_replaced_while_its_pool_was_asleep_is_asked_what_it_serves() {
    let before = with_mcp_listener(on_demand(1, Assignment::RoundRobin));
    let mut after = before.clone();
    after.pools[0].generation = 1;
    let mut bench = Bench::new(before);
    bench.handle(Input::WakePool(PoolId::at(0)));
    let worker = bench.worker(0);
    let question = bench.read_json(worker);
    bench.write(worker, &format!(r#"{{"id":{},"error":{{"code":-32601,"message":"no"}}}}"#, question["id"]));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    bench.pass(2 * IDLE);
    bench.obeys(worker);
    bench.reload(&after);
    assert_eq!((bench.bus.view().is_asleep(0), bench.bus.view().pool_era(0)), (true, None));
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    let next = bench.worker(0);
    let question = bench.read_json(next);
    bench.write(next, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!((bench.bus.view().pool_era(0), bench.read_one(next)), (Some(Era::Modern), CALL.to_owned()));
}

#[test]
fn a_spare_that_has_waited_for_long_has_all_of_start_timeout_sec_for_its_first_answer() {
    let pool = Pool { start_timeout: Some(seconds(9)), max_instances: 4, ..on_demand(2, Assignment::Dedicated) };
    let mut bench = Bench::new(settings(vec![pool]));
    let first = bench.client();
    bench.write(first, r#"{"id":1,"method":"m"}"#);
    let own = bench.worker(0);
    bench.write(own, r#"{"id":1,"result":{}}"#);
    bench.pass(seconds(60));
    let second = bench.client();
    bench.write(second, r#"{"id":2,"method":"m"}"#);
    bench.read(second);
    bench.pass(seconds(8));
    assert!(bench.read(second).is_empty(), "its worker may still answer");
    bench.pass(seconds(2));
    assert!(bench.read(second).concat().contains("start_timeout_sec"));
}
