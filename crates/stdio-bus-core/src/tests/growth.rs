//! Pools that have more workers while all that clients share are busy.

use super::eras::{CALL, LEGACY, MODERN, with_mcp_listener};
use super::*;
use crate::settings::{Era, Start};

const IDLE: Duration = seconds(60);
const SHARED: [Assignment; 2] = [Assignment::RoundRobin, Assignment::Client];

/// A pool of one worker that may have three, which two requests each keep busy.
fn growing(assignment: Assignment) -> Pool {
    Pool { max_instances: 3, concurrency: 2, idle_stop: Some(IDLE), ..pool(1, assignment) }
}

fn bench(assignment: Assignment) -> Bench {
    let mut bench = Bench::new(settings(vec![growing(assignment)]));
    bench.pass(seconds(1));
    bench
}

impl Bench {
    /// A client sends so many requests, which are not answered.
    fn asks(&mut self, client: Peer, ids: std::ops::Range<usize>) {
        ids.for_each(|id| self.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#)));
    }

    /// All workers answer what they have got; returns how many requests that was.
    fn all_answer(&mut self) -> usize {
        let workers: Vec<Peer> = self.workers.iter().map(|worker| Peer::Worker(*worker)).collect();
        workers.into_iter().map(|worker| self.answers_all(worker)).sum()
    }

    fn answers_all(&mut self, worker: Peer) -> usize {
        let lines = self.read(worker);
        for line in &lines {
            let id = &serde_json::from_str::<Value>(line).expect("JSON")["id"];
            self.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        }
        lines.len()
    }

    /// Clients ask so much that the pool has all three workers. Each new one answers its first request.
    fn grows_fully(&mut self) -> [Peer; 3] {
        let mut proven = 1;
        for _ in 0..8 {
            let client = self.client();
            self.asks(client, 0..4);
            if self.workers.len() > proven {
                let new = self.worker(proven);
                proven += self.answers_all(new).min(1);
            }
            self.pass(seconds(1));
        }
        assert_eq!(self.workers.len(), 3);
        [0, 1, 2].map(|at| self.worker(at))
    }

    /// The worker has ended as it was asked to.
    fn ends_at_end(&mut self, worker: Peer) {
        assert_eq!(self.stop_actions(worker).first(), Some(&StopAction::End));
        self.exits(worker, Exit::Code(0));
        self.ends(worker);
    }
}

#[test]
fn a_pool_starts_one_more_worker_while_all_that_it_has_are_busy_up_to_max_instances() {
    for assignment in SHARED {
        let mut bench = bench(assignment);
        let client = bench.client();
        bench.asks(client, 0..1);
        bench.pass(seconds(10));
        assert_eq!(bench.workers.len(), 1, "one request is not enough");
        bench.asks(client, 1..2);
        bench.pass(milliseconds(250));
        assert_eq!(bench.workers.len(), 2, "{assignment:?}");
        bench.pass(seconds(10));
        assert_eq!(bench.workers.len(), 2, "the new one has nothing to do");
        bench.grows_fully();
        let row = bench.bus.view().pool_row(0).expect("a pool");
        assert_eq!((row.grown, row.waiting, bench.bus.view().staffing()), (2, 0, (3, 3)));
        assert!(bench.all_answer() > 20 && bench.count(Reason::NoWorker) == 0);
    }
}

#[test]
fn what_is_beyond_instances_leaves_when_it_was_not_needed_for_idle_stop_sec() {
    for assignment in SHARED {
        let mut bench = bench(assignment);
        bench.grows_fully();
        assert!(bench.all_answer() > 20);
        for client in 0..8 {
            let Some(client) = bench.bus.ctx.clients.keys().first().copied().filter(|_| client < 8) else { break };
            bench.breaks(client.into());
            bench.gone(client.into());
        }
        bench.pass(3 * IDLE);
        let leaving: Vec<Peer> =
            (0..3).map(|at| bench.worker(at)).filter(|worker| !bench.stop_actions(*worker).is_empty()).collect();
        assert_eq!(leaving.len(), 2, "instances stay: {assignment:?}");
        leaving.into_iter().for_each(|worker| bench.ends_at_end(worker));
        bench.pass(10 * IDLE);
        assert_eq!((bench.workers.len(), bench.count(Reason::WorkerExited)), (1, 0));
        let client = bench.client();
        bench.asks(client, 0..2);
        assert_eq!(bench.read(bench.worker(0)).len(), 2, "every line is sent to the one that is left");
    }
}

#[test]
fn the_only_idle_worker_stays_while_the_others_are_busy_for_longer_than_idle_stop_sec() {
    for assignment in SHARED {
        let mut bench = bench(assignment);
        let client = bench.client();
        bench.asks(client, 0..2);
        bench.pass(5 * IDLE);
        assert_eq!(bench.workers.len(), 2, "no worker is started to replace one that has just left: {assignment:?}");
        assert!(bench.stop_actions(bench.worker(1)).is_empty());
        bench.all_answer();
        bench.pass(3 * IDLE);
        bench.ends_at_end(bench.worker(1));
    }
}

#[test]
fn a_pool_that_has_grown_becomes_smaller_although_a_client_asks_now_and_then() {
    let mut bench = bench(Assignment::RoundRobin);
    bench.grows_fully();
    bench.all_answer();
    let client = bench.client();
    for _ in 0..120 {
        bench.asks(client, 0..1);
        bench.all_answer();
        bench.read(client);
        bench.pass(seconds(2));
    }
    let left = bench.workers.iter().filter(|worker| bench.stop_actions((**worker).into()).is_empty()).count();
    assert_eq!(left, 1, "one suffices, though all took turns");
}

/// A pool of two workers, each with a session of the client, which is at rest since long.
fn with_sessions(most: usize) -> (Bench, Peer, [Peer; 2]) {
    let pool = Pool { max_instances: most, ..growing(Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool]));
    let owner = bench.client();
    bench.asks(owner, 0..2);
    bench.pass(milliseconds(250));
    let workers = [bench.worker(0), bench.worker(1)];
    bench.all_answer();
    for (id, session) in ["a", "b"].into_iter().enumerate() {
        bench.write(owner, &format!(r#"{{"id":"new {id}","method":"session/new"}}"#));
        for worker in workers {
            for line in bench.read(worker) {
                let id = &serde_json::from_str::<Value>(&line).expect("JSON")["id"];
                bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"{session}"}}}}"#));
            }
        }
    }
    bench.read(owner);
    bench.pass(5 * IDLE);
    (bench, owner, workers)
}

#[test]
fn workers_that_have_sessions_stay_but_take_no_turns_while_fewer_suffice() {
    let (mut bench, owner, workers) = with_sessions(3);
    assert_eq!(workers.map(|worker| bench.stop_actions(worker)), [vec![], vec![]], "their sessions are in use");
    for _ in 0..4 {
        bench.asks(owner, 10..11);
        assert_eq!((bench.answers_all(workers[0]), bench.read(workers[1]).len()), (1, 0), "one suffices");
        bench.read(owner);
    }
    for (session, worker) in ["a", "b"].into_iter().zip(workers) {
        bench.write(owner, &format!(r#"{{"id":20,"method":"m","params":{{"sessionId":"{session}"}}}}"#));
        assert_eq!(bench.answers_all(worker), 1, "a session is where it was");
    }
    bench.breaks(owner);
    bench.gone(owner);
    bench.pass(3 * IDLE);
    let left = workers.into_iter().filter(|worker| bench.stop_actions(*worker).is_empty()).count();
    assert_eq!((left, bench.count(Reason::SessionLost) + bench.count(Reason::WorkerExited)), (1, 0));
}

#[test]
fn a_worker_that_took_no_turns_takes_them_again_before_another_one_is_started_or_if_the_others_end() {
    let (mut bench, owner, workers) = with_sessions(3);
    bench.asks(owner, 10..12);
    bench.pass(milliseconds(250));
    bench.asks(owner, 12..14);
    assert_eq!((bench.workers.len(), bench.read(workers[1]).len()), (2, 1));
    let (mut bench, owner, workers) = with_sessions(2);
    bench.dies(workers[0]);
    bench.read(owner);
    bench.asks(owner, 10..11);
    assert_eq!(bench.read(workers[1]).len(), 1, "the other one has ended");
    let (mut bench, owner, workers) = with_sessions(2);
    let Peer::Worker(key) = workers[0] else { unreachable!() };
    bench.handle(Input::RestartWorker { worker: key, at_once: true });
    bench.read(owner);
    bench.asks(owner, 10..11);
    assert_eq!(bench.read(workers[1]).len(), 1, "the other one is ending");
}

#[test]
fn a_worker_stays_while_a_client_waits_for_its_answer_to_an_initialize() {
    let pool = Pool { idle_stop: Some(seconds(5)), ..growing(Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool]));
    let client = bench.client();
    bench.write(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#);
    bench.answers_all(bench.worker(0));
    bench.asks(client, 1..3);
    bench.pass(milliseconds(250));
    let workers = [bench.worker(0), bench.worker(1)];
    bench.answers_all(workers[0]);
    let other = bench.client();
    bench.asks(other, 0..2);
    assert_eq!(bench.all_answer(), 2);
    bench.asks(client, 3..5);
    assert!(bench.read_one(workers[1]).contains("initialize"), "it is sent again");
    bench.answers_all(workers[0]);
    bench.pass(seconds(20));
    assert_eq!(bench.stop_actions(workers[1]), vec![]);
}

#[test]
fn subscriptions_do_not_make_a_pool_grow() {
    let mut bench = bench(Assignment::RoundRobin);
    let client = bench.client();
    for id in 0..8 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"subscriptions/listen"}}"#));
    }
    bench.pass(seconds(10));
    assert_eq!(bench.workers.len(), 1);
    let next = bench.bus.view().next_deadline();
    assert!(next.is_none_or(|next| next > bench.now.after(seconds(2))), "nobody looks at a worker that owes nothing");
    bench.asks(client, 10..12);
    bench.pass(milliseconds(250));
    assert_eq!(bench.workers.len(), 2, "requests beside them do");
}

#[test]
fn a_slot_whose_worker_was_taken_out_keeps_no_pool_from_growing() {
    let mut bench = bench(Assignment::RoundRobin);
    let client = bench.client();
    bench.asks(client, 0..2);
    bench.pass(milliseconds(250));
    let Peer::Worker(key) = bench.worker(1) else { unreachable!() };
    bench.handle(Input::TakeOutWorker(key));
    bench.all_answer();
    bench.pass(seconds(1));
    bench.ends_at_end(Peer::Worker(key));
    bench.pass(3 * IDLE);
    assert_eq!(bench.workers.len(), 1);
    bench.asks(client, 2..4);
    bench.pass(milliseconds(250));
    assert_eq!(bench.workers.len(), 2);
}

#[test]
fn a_pool_that_has_grown_and_whose_workers_were_all_taken_out_starts_those_that_it_keeps_when_it_is_resumed() {
    let mut bench = bench(Assignment::RoundRobin);
    let client = bench.client();
    bench.asks(client, 0..2);
    bench.pass(milliseconds(250));
    let workers = bench.workers.clone();
    bench.all_answer();
    workers.iter().for_each(|worker| bench.handle(Input::TakeOutWorker(*worker)));
    bench.pass(seconds(1));
    workers.iter().for_each(|worker| bench.ends_at_end((*worker).into()));
    bench.pass(3 * IDLE);
    assert_eq!(bench.workers.len(), 0);
    bench.handle(Input::ResumePool(PoolId::at(0)));
    bench.pass(seconds(1));
    assert_eq!(bench.workers.len(), 1);
}

#[test]
fn a_pool_whose_kept_worker_was_taken_out_while_another_one_went_on_is_woken_again() {
    let mut bench = Bench::new(settings(vec![Pool { start: Start::OnDemand, ..growing(Assignment::RoundRobin) }]));
    let client = bench.client();
    bench.asks(client, 0..2);
    bench.pass(milliseconds(250));
    let workers = [bench.worker(0), bench.worker(1)];
    bench.all_answer();
    let Peer::Worker(key) = workers[0] else { unreachable!() };
    bench.handle(Input::TakeOutWorker(key));
    bench.breaks(client);
    bench.gone(client);
    bench.pass(3 * IDLE);
    workers.into_iter().for_each(|worker| bench.ends_at_end(worker));
    assert!(bench.bus.view().is_asleep(0));
    let client = bench.client();
    bench.asks(client, 0..1);
    assert_eq!((bench.workers.len(), bench.count(Reason::NoWorker)), (1, 0));
}

#[test]
fn workers_that_took_no_turns_take_them_while_the_slot_of_another_one_is_empty() {
    let pool = Pool { max_instances: 3, ..growing(Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![Pool { instances: 2, ..pool }]));
    let owner = bench.client();
    bench.asks(owner, 0..4);
    bench.pass(milliseconds(250));
    let workers = [0, 1, 2].map(|at| bench.worker(at));
    bench.all_answer();
    for session in ["a", "b", "c"] {
        bench.write(owner, &format!(r#"{{"id":"{session}","method":"session/new"}}"#));
        for worker in workers {
            for line in bench.read(worker) {
                let id = &serde_json::from_str::<Value>(&line).expect("JSON")["id"];
                bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"{session}"}}}}"#));
            }
        }
    }
    bench.pass(5 * IDLE);
    bench.asks(owner, 10..14);
    assert_eq!(workers.map(|worker| bench.answers_all(worker)), [2, 2, 0], "two suffice");
    let Peer::Worker(key) = workers[1] else { unreachable!() };
    bench.handle(Input::TakeOutWorker(key));
    bench.asks(owner, 20..22);
    assert_eq!(workers.map(|worker| bench.answers_all(worker)), [1, 0, 1]);
}

#[test]
fn a_pool_whose_workers_crash_or_that_is_paused_or_drains_does_not_grow() {
    let pauses = |bench: &mut Bench| bench.handle(Input::PausePool(PoolId::at(0)));
    let drains = |bench: &mut Bench| bench.handle(Input::Drain);
    let crashes = |bench: &mut Bench| {
        bench.grows_fully();
        bench.dies(bench.worker(1));
        bench.dies(bench.worker(1));
    };
    let cases: [&dyn Fn(&mut Bench); 3] = [&pauses, &drains, &crashes];
    for (at, case) in cases.into_iter().enumerate() {
        let mut settings = settings(vec![growing(Assignment::RoundRobin)]);
        (settings.limits.quiesce, settings.limits.max_restarts) = (seconds(60), 0);
        let mut bench = Bench::new(settings);
        let client = bench.client();
        bench.asks(client, 0..8);
        case(&mut bench);
        bench.pass(seconds(10));
        assert_eq!(bench.workers.len(), 1, "case {at}");
    }
}

#[test]
fn a_pool_that_has_grown_keeps_that_size_over_a_crash_and_takes_the_one_of_a_reload() {
    let mut bench = bench(Assignment::RoundRobin);
    let client = bench.client();
    bench.asks(client, 0..2);
    bench.pass(milliseconds(250));
    bench.dies(bench.worker(1));
    bench.pass(milliseconds(100));
    assert_eq!(bench.workers.len(), 2);
    let mut after = settings(vec![Pool { concurrency: 2, ..pool(1, Assignment::RoundRobin) }]);
    bench.reload(&after);
    assert_eq!(bench.all_answer(), 2);
    bench.pass(seconds(1));
    bench.ends_at_end(bench.worker(1));
    after.pools[0].max_instances = 2;
    bench.reload(&after);
    bench.asks(client, 2..4);
    bench.pass(milliseconds(250));
    assert_eq!(bench.workers.len(), 2);
}

#[test]
fn a_worker_of_a_pool_that_has_grown_is_replaced_or_taken_out_as_any_other() {
    let mut bench = bench(Assignment::RoundRobin);
    let [_, second, third] = bench.grows_fully();
    let Peer::Worker(key) = second else { unreachable!() };
    bench.handle(Input::TakeOutWorker(key));
    bench.all_answer();
    bench.pass(seconds(1));
    bench.ends_at_end(second);
    let Peer::Worker(key) = third else { unreachable!() };
    bench.handle(Input::RestartWorker { worker: key, at_once: false });
    bench.pass(seconds(1));
    bench.ends_at_end(third);
    assert_eq!(bench.workers.len(), 2, "one was replaced, the other is out");
    bench.pass(10 * IDLE);
    let leaving: Vec<Peer> =
        [0, 1].map(|at| bench.worker(at)).into_iter().filter(|it| !bench.stop_actions(*it).is_empty()).collect();
    assert_eq!(leaving.len(), 1, "instances stay");
    bench.ends_at_end(leaving[0]);
    bench.handle(Input::ResumePool(PoolId::at(0)));
    bench.pass(seconds(1));
    assert_eq!(bench.workers.len(), 1);
    bench.grows_fully();
}

#[test]
fn a_pool_that_starts_on_demand_is_woken_to_its_instances_grows_shrinks_and_falls_asleep() {
    let mut bench = Bench::new(settings(vec![Pool { start: Start::OnDemand, ..growing(Assignment::RoundRobin) }]));
    for _ in 0..2 {
        let client = bench.client();
        bench.asks(client, 0..1);
        assert_eq!(bench.workers.len(), 1);
        bench.grows_fully();
        bench.all_answer();
        bench.pass(5 * IDLE);
        assert!(bench.bus.view().is_asleep(0));
        let workers: Vec<Peer> = (0..3).map(|at| bench.worker(at)).collect();
        workers.into_iter().for_each(|worker| bench.ends_at_end(worker));
        assert_eq!(bench.workers.len(), 0);
    }
}

#[test]
fn a_pool_for_both_eras_grows_where_its_clients_are() {
    let pool = Pool { max_instances: 2, concurrency: 1, start: Start::OnDemand, ..growing(Assignment::RoundRobin) };
    let mut bench = Bench::new(with_mcp_listener(pool));
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    let first = bench.worker(0);
    let question = bench.read_json(first);
    bench.write(first, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!(bench.read_one(first), CALL);
    bench.pass(milliseconds(250));
    for _ in 0..2 {
        let other = bench.mcp(Era::Modern);
        bench.write(other, CALL);
    }
    let second = bench.worker(1);
    assert_eq!((bench.workers.len(), bench.read(second).len()), (2, 1), "they take turns");
    for worker in [first, second] {
        bench.write(worker, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    }
    bench.all_answer();
    bench.pass(5 * IDLE);
    assert!(bench.bus.view().is_asleep(0));
}

#[test]
fn a_replacement_that_shows_another_era_takes_a_slot_that_is_kept() {
    let pool = Pool { max_instances: 2, concurrency: 1, ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::asked(pool.clone(), MODERN);
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    bench.pass(milliseconds(250));
    let [first, second] = [bench.worker(0), bench.worker(1)];
    bench.answers(first);
    // The one in the first slot is newer than the one by which the pool has grown.
    bench.dies(first);
    bench.pass(milliseconds(100));
    let mut after = with_mcp_listener(pool);
    after.pools[0].generation = 1;
    bench.reload(&after);
    let candidate = bench.worker(2);
    let question = bench.read_json(candidate);
    let answer = LEGACY.expect("an answer");
    bench.write(candidate, &format!(r#"{{"id":{},{answer}}}"#, question["id"]));
    bench.pass(seconds(1));
    let stay = [second, bench.worker(1), candidate].into_iter().filter(|it| bench.stop_actions(*it).is_empty());
    assert_eq!(stay.collect::<Vec<_>>(), [candidate]);
}

#[test]
fn workers_that_a_reload_makes_superfluous_end_in_their_own_time() {
    let mut bench = Bench::new(settings(vec![pool(3, Assignment::RoundRobin)]));
    bench.reload(&settings(vec![pool(1, Assignment::RoundRobin)]));
    let actions: Vec<_> = (0..3).map(|at| bench.stop_actions(bench.worker(at))).collect();
    let (ends, signals) =
        (|actions: &&Vec<StopAction>| **actions == [StopAction::End], |actions: &&Vec<StopAction>| actions.len() > 1);
    assert_eq!((actions.iter().filter(ends).count(), actions.iter().filter(signals).count()), (2, 0), "{actions:?}");
}

#[test]
fn a_pool_that_sleeps_while_instances_is_lowered_is_woken_to_the_new_ones() {
    let sleeping = |instances| Pool { start: Start::OnDemand, instances, ..growing(Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![sleeping(3)]));
    bench.reload(&settings(vec![sleeping(1)]));
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(1));
    assert_eq!(bench.workers.len(), 1);
}
