//! Reload: settings that apply at once, and workers that are replaced in turn.

mod replaced;

use super::*;
use crate::settings::Start;

fn key(peer: Peer) -> WorkerKey {
    let Peer::Worker(worker) = peer else { panic!("{peer:?} is no worker") };
    worker
}

const SETTLED: Duration = milliseconds(200);

impl Bench {
    pub(super) fn reload(&mut self, settings: &Settings) {
        let effects = self.bus.reload(self.now, settings.clone()).collect();
        self.effects(&[], effects);
    }

    /// The command of a worker.
    fn generation(&self, worker: Peer) -> u32 {
        self.commands.iter().find(|(known, ..)| *known == key(worker)).expect("it was started").2
    }

    /// The last workers that were started, the oldest of them first.
    pub(super) fn newest(&self, count: usize) -> Vec<Peer> {
        self.commands[self.commands.len() - count..].iter().map(|(worker, ..)| Peer::Worker(*worker)).collect()
    }

    /// A worker that was asked to stop ends.
    fn stops(&mut self, worker: Peer) {
        assert_eq!(self.stop_actions(worker).first(), Some(&StopAction::End));
        self.exits(worker, Exit::Code(0));
        self.ends(worker);
        assert!(self.is_released(worker));
    }
}

/// The same settings with another command in the first pool.
fn changed(settings: &Settings) -> Settings {
    let mut changed = settings.clone();
    changed.pools[0].generation += 1;
    changed
}

const CALL: &str = r#"{"id":1,"method":"x"}"#;

#[test]
fn a_worker_with_an_old_command_gets_no_more_once_its_successor_has_settled_and_loses_nothing() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), bench.worker(0));
    bench.write(client, CALL);
    bench.read(old);
    bench.reload(&changed(&before));
    let new = bench.newest(1)[0];
    assert_eq!((bench.generation(old), bench.generation(new), bench.bus.view().is_unsettled(0)), (0, 1, true));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert_eq!(bench.busy_worker(), old, "the new one has not settled yet");
    bench.pass(SETTLED);
    assert!(!bench.bus.view().is_unsettled(0));
    bench.write(client, r#"{"id":3,"method":"x"}"#);
    assert_eq!(bench.busy_worker(), new);
    for (worker, id) in [(old, 1), (new, 3)] {
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert_eq!((bench.read(client).len(), bench.stop_actions(old)), (2, vec![]), "it has a request to answer");
    bench.write(old, r#"{"id":2,"result":{}}"#);
    bench.stops(old);
    assert_eq!(bench.read(client).len(), 1);
    assert_eq!((bench.workers.len(), bench.count(Reason::PoolRolled)), (1, 1));
    let stats = bench.bus.view().pool_row(0).expect("there is a pool").stats;
    assert_eq!((stats.all_exits(), stats.events(Reason::WorkerStopped)), (0, 1));
}

#[test]
fn workers_are_replaced_one_after_the_other() {
    let before = settings(vec![pool(3, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let old: Vec<Peer> = (0..3).map(|at| bench.worker(at)).collect();
    bench.reload(&changed(&before));
    for (at, worker) in old.iter().enumerate() {
        assert_eq!(bench.commands.len(), 4 + at, "one candidate at a time");
        assert_eq!(bench.stop_actions(*worker), []);
        bench.pass(SETTLED);
        bench.stops(*worker);
    }
    assert_eq!((bench.commands.len(), bench.workers.len()), (6, 3));
    let names: Vec<usize> = (0..9).filter(|place| bench.bus.view().worker_at(0, *place).is_some()).collect();
    assert_eq!(names.len(), 3, "no two workers have one name");
}

#[test]
fn a_session_stays_with_its_worker_until_it_is_over() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let (client, other, old) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(old, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    bench.read(old);
    bench.write(client, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.busy_worker(), old);
    bench.write(other, CALL);
    assert_ne!(bench.busy_worker(), old);
    bench.write(old, r#"{"id":2,"result":{}}"#);
    assert_eq!(bench.stop_actions(old), []);
    bench.ends(client);
    bench.gone(client);
    bench.stops(old);
}

#[test]
fn requests_that_a_replaced_worker_has_not_answered_in_time_get_an_error_that_says_so() {
    let mut before = settings(vec![pool(1, Assignment::RoundRobin)]);
    before.limits.replace_timeout = seconds(5);
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), bench.worker(0));
    bench.write(client, CALL);
    bench.reload(&changed(&before));
    bench.pass(SETTLED + milliseconds(4999));
    assert_eq!(bench.stop_actions(old), []);
    bench.pass(milliseconds(1));
    bench.stops(old);
    let error = bench.read_json(client);
    assert_eq!((&error["id"], &error["error"]["code"]), (&1.into(), &(-32011).into()));
    let data = &error["error"]["data"];
    assert_eq!((&data["reason"], &data["delivered"]), (&"worker_replaced".into(), &true.into()));
}

#[test]
fn a_command_that_cannot_live_leaves_the_workers_that_are_there() {
    let before = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), [bench.worker(0), bench.worker(1)]);
    let after = changed(&before);
    bench.reload(&after);
    for pause in [100, 200, 400] {
        let candidate = bench.newest(1)[0];
        assert_eq!(bench.generation(candidate), 1);
        bench.dies(candidate);
        bench.pass(milliseconds(pause));
    }
    bench.pass(seconds(60));
    assert_eq!((bench.commands.len(), bench.count(Reason::RollFailed)), (5, 1));
    assert!(
        bench.bus.view().rollout_failure(0).is_some_and(|why| why.contains("agents"))
            && !bench.bus.view().is_unsettled(0)
    );
    assert!(bench.bus.view().readiness().is_ready(), "the others serve as before");
    for _ in 0..2 {
        bench.write(client, CALL);
    }
    assert!(old.into_iter().all(|worker| bench.read(worker).len() == 1));
    // A worker that ends is followed by one with a command that is known to live.
    bench.dies(old[0]);
    bench.pass(seconds(1));
    assert_eq!(bench.generation(bench.newest(1)[0]), 0);
    // The command was fixed without a change of the configuration.
    bench.reload(&after);
    for _ in 0..2 {
        bench.pass(SETTLED);
    }
    assert!(bench.bus.view().rollout_failure(0).is_none());
    let runs: Vec<u32> = bench.newest(2).into_iter().map(|worker| bench.generation(worker)).collect();
    assert_eq!(runs, [1, 1]);
}

#[test]
fn the_only_worker_of_a_pool_whose_new_command_cannot_live_is_followed_by_its_like() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let old = bench.worker(0);
    bench.reload(&changed(&before));
    for pause in [100, 200, 400] {
        let candidate = bench.newest(1)[0];
        bench.dies(candidate);
        bench.pass(milliseconds(pause));
    }
    bench.dies(old);
    bench.pass(milliseconds(100));
    assert_eq!(bench.generation(bench.newest(1)[0]), 0);
    assert!(bench.bus.view().rollout_failure(0).is_some());
}

#[test]
fn a_machine_that_is_suspended_while_a_pool_without_workers_waits_for_its_next_candidate_starts_it_after_that() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let old = bench.worker(0);
    bench.reload(&changed(&before));
    bench.dies(old);
    bench.dies(bench.newest(1)[0]);
    bench.now = bench.now.after(seconds(1));
    bench.handle(Input::ClockJumped { held_up: seconds(1), suspended: seconds(0) });
    bench.pass(seconds(0));
    assert_eq!((bench.commands.len(), bench.generation(bench.newest(1)[0])), (3, 1));
}

#[test]
fn a_command_that_runs_briefly_and_answers_nothing_is_replaced_by_the_previous_one() {
    let before = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    bench.pass(SETTLED);
    // On a busy machine both run for a while before a script is found missing.
    ends_thrice(&mut bench, 1);
    assert_eq!(bench.count(Reason::RollFailed), 1);
    assert!(bench.bus.view().rollout_failure(0).is_some_and(|why| why.contains("the previous command is used again")));
    assert_eq!(bench.generation(bench.newest(1)[0]), 0);
    assert!(bench.bus.view().readiness().is_ready());
}

#[test]
fn a_command_that_has_answered_once_is_not_given_up_for_the_previous_one() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let client = bench.client();
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    let worker = bench.newest(1)[0];
    bench.write(client, CALL);
    bench.read(worker);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    for _ in 0..5 {
        bench.dies(bench.newest(1)[0]);
        bench.pass(seconds(10));
    }
    assert_eq!((bench.generation(bench.newest(1)[0]), bench.count(Reason::RollFailed)), (1, 0));
}

/// The newest workers of the first pool, whose number its command has, end by themselves three times.
fn ends_thrice(bench: &mut Bench, command: u32) {
    for pause in [200, 400, 800] {
        let worker = bench.newest(1)[0];
        assert_eq!(bench.generation(worker), command);
        bench.dies(worker);
        bench.pass(milliseconds(pause));
    }
}

#[test]
fn what_other_pools_and_the_previous_command_have_answered_proves_nothing_about_a_new_command() {
    for pool_that_answers in ["a", "b"] {
        let named = |id: &str| Pool { id: id.into(), ..pool(2, Assignment::RoundRobin) };
        let before = settings(vec![named("a"), named("b")]);
        let mut bench = Bench::new(before.clone());
        let client = bench.client();
        bench.write(client, &format!(r#"{{"id":1,"method":"session/new","pool":"{pool_that_answers}"}}"#));
        let worker = bench.busy_worker();
        bench.write(worker, r#"{"id":1,"result":{"sessionId":"it stays for this"}}"#);
        bench.reload(&changed(&before));
        bench.pass(SETTLED);
        bench.pass(SETTLED);
        ends_thrice(&mut bench, 1);
        assert_eq!((bench.count(Reason::RollFailed), bench.generation(bench.newest(1)[0])), (1, 0));
    }
}

#[test]
fn two_commands_in_a_row_that_answer_nothing_are_followed_by_the_one_before_both() {
    let first = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(first.clone());
    let second = changed(&first);
    for settings in [&second, &changed(&second)] {
        bench.reload(settings);
        bench.pass(SETTLED);
        bench.pass(SETTLED);
    }
    ends_thrice(&mut bench, 2);
    assert_eq!((bench.count(Reason::RollFailed), bench.generation(bench.newest(1)[0])), (1, 0));
}

#[test]
fn a_new_command_is_not_given_up_because_the_machine_has_no_processes_left() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    bench.spawns = false;
    bench.reload(&changed(&before));
    for starts in 2..7 {
        assert_eq!(bench.commands.len(), starts);
        let worker = key(bench.newest(1)[0]);
        bench.handle(Input::SpawnFailed { worker, why: "no more processes".into(), fault: SpawnFailure::Shortage });
        bench.pass(seconds(1));
    }
    assert_eq!(bench.count(Reason::RollFailed), 0);
    bench.spawns = true;
    bench.spawn_all();
    bench.pass(SETTLED);
    assert_eq!(bench.count(Reason::PoolRolled), 1);
}

#[test]
fn a_line_that_waits_for_a_leaving_worker_is_sent_to_another_one() {
    let mut before = settings(vec![pool(1, Assignment::RoundRobin)]);
    before.limits.max_output_queue = 100;
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), bench.worker(0));
    bench.stalls(old);
    while !bench.wire(client).paused {
        bench.write(client, r#"{"method":"x"}"#);
    }
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    assert!(!bench.wire(client).paused);
    assert_eq!(bench.read(bench.newest(1)[0]).len(), 1);
}

#[test]
fn bad_output_before_a_candidate_has_settled_is_a_failure_of_its_command() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    bench.reload(&changed(&before));
    let candidate = bench.newest(1)[0];
    bench.write(candidate, "listening on port 80");
    bench.pass(SETTLED);
    assert_eq!(bench.stop_actions(bench.worker(0)), [], "the old one stays");
    bench.stops(candidate);
    bench.pass(milliseconds(100));
    assert_eq!(bench.commands.len(), 3, "the next candidate");
}

#[test]
fn a_dedicated_connection_keeps_its_process_and_spares_are_renewed_at_once() {
    let before = settings(vec![Pool { max_instances: 8, ..pool(3, Assignment::Dedicated) }]);
    let mut bench = Bench::new(before.clone());
    let spares: Vec<Peer> = (0..3).map(|at| bench.worker(at)).collect();
    let client = bench.client();
    bench.write(client, CALL);
    let own = bench.busy_worker();
    bench.write(own, r#"{"id":1,"result":{}}"#);
    bench.read(client);
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    for spare in spares.into_iter().filter(|spare| *spare != own) {
        bench.stops(spare);
    }
    let other = bench.client();
    bench.write(other, CALL);
    let new = bench.busy_worker();
    assert_eq!(bench.generation(new), 1);
    bench.pass(seconds(10_000));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert_eq!(bench.busy_worker(), own);
    bench.write(own, r#"{"id":2,"result":{}}"#);
    assert_eq!((bench.stop_actions(own), bench.read(client).len()), (vec![], 1));
    bench.ends(client);
    bench.stops(own);
}

#[test]
fn a_dedicated_pool_whose_workers_are_all_taken_starts_the_next_by_the_new_command() {
    let before = settings(vec![pool(1, Assignment::Dedicated)]);
    let mut bench = Bench::new(before.clone());
    let client = bench.client();
    bench.write(client, CALL);
    let own = bench.busy_worker();
    bench.reload(&changed(&before));
    bench.pass(seconds(1));
    assert_eq!((bench.commands.len(), bench.bus.view().is_unsettled(0)), (1, false));
    bench.handle(Input::ClientLeft(match client {
        Peer::Client(client) => client,
        Peer::Worker(_) => unreachable!(),
    }));
    bench.stops(own);
    assert_eq!(bench.generation(bench.newest(1)[0]), 1);
}

#[test]
fn a_connection_of_a_client_pool_stays_with_its_worker() {
    let before = settings(vec![pool(1, Assignment::Client)]);
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"initialize"}"#);
    bench.write(old, r#"{"id":1,"result":{}}"#);
    bench.read(old);
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    bench.write(client, CALL);
    assert_eq!(bench.busy_worker(), old, "it was initialized there");
    bench.write(old, r#"{"id":1,"result":{}}"#);
    let other = bench.client();
    bench.write(other, CALL);
    assert_ne!(bench.busy_worker(), old);
    bench.ends(client);
    bench.gone(client);
    bench.stops(old);
}

#[test]
fn a_pool_becomes_larger_and_smaller() {
    let before = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let with = |instances| Settings { pools: vec![pool(instances, Assignment::RoundRobin)], ..before.clone() };
    bench.reload(&with(4));
    assert_eq!(bench.workers.len(), 4);
    let (client, busy) = (bench.client(), bench.worker(0));
    bench.write(client, CALL);
    assert_eq!(bench.busy_worker(), busy);
    bench.reload(&with(1));
    for worker in [bench.worker(3), bench.worker(2), bench.worker(1)] {
        bench.stops(worker);
    }
    assert_eq!((bench.workers.len(), bench.bus.view().staffing()), (1, (1, 1)));
    bench.reload(&with(2));
    assert_eq!(bench.workers.len(), 2);
}

#[test]
fn a_new_pool_serves_at_once_and_a_removed_one_ends_with_its_sessions() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let before = settings(vec![named("a"), named("b")]);
    let mut bench = Bench::new(before.clone());
    let (client, of_b) = (bench.client(), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"session/new","pool":"b"}"#);
    bench.write(of_b, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(client);
    let mut after = Settings { pools: vec![named("a"), named("b"), named("c")], ..before };
    after.pools[1].is_gone = true;
    bench.reload(&after);
    assert!(bench.bus.view().pool_in_use(1));
    bench.write(client, r#"{"id":2,"method":"x","pool":"c"}"#);
    let of_c = bench.newest(1)[0];
    bench.read(of_b);
    assert_eq!(bench.busy_worker(), of_c);
    bench.write(client, r#"{"id":3,"method":"x","pool":"b"}"#);
    assert_eq!(bench.read_error(client).0, "unknown_pool");
    for id in 4..8 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    assert_eq!(bench.read(of_b).len(), 0, "what names no pool is sent to those that are there");
    bench.write(client, r#"{"id":9,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read(of_b).len(), 1);
    bench.write(of_b, r#"{"id":9,"result":{}}"#);
    assert_eq!(bench.stop_actions(of_b), []);
    bench.gone(client);
    bench.stops(of_b);
    assert!(!bench.bus.view().pool_in_use(1) && bench.bus.view().pool_in_use(0));
    // Its place now belongs to another pool.
    after.pools[1] = named("d");
    bench.reload(&after);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x","pool":"d"}"#);
    assert_eq!(bench.read(bench.newest(1)[0]).len(), 1);
}

#[test]
fn a_removed_pool_serves_the_clients_of_its_listener_as_long_as_they_are_connected() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut before = settings(vec![named("a"), named("b")]);
    before.listeners.push(Listener { pool: Some(PoolId::at(1)), ..Listener::default() });
    let mut bench = Bench::new(before.clone());
    let (client, of_b) = (bench.client_of(1), bench.worker(1));
    let mut after = before.clone();
    (after.pools[1].is_gone, after.listeners[1].is_gone) = (true, true);
    bench.reload(&after);
    bench.write(client, CALL);
    assert_eq!(bench.read(of_b).len(), 1);
    bench.write(of_b, r#"{"id":1,"result":{}}"#);
    assert_eq!((bench.read(client).len(), bench.stop_actions(of_b)), (1, vec![]));
    bench.gone(client);
    bench.stops(of_b);
}

#[test]
fn a_removed_pool_that_is_added_again_before_it_has_ended_continues() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let before = settings(vec![named("a"), named("b")]);
    let mut bench = Bench::new(before.clone());
    let (client, of_b) = (bench.client(), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","pool":"b"}"#);
    let mut after = before.clone();
    after.pools[1].is_gone = true;
    bench.reload(&after);
    bench.reload(&before);
    let next = bench.newest(1)[0];
    assert_ne!(next, of_b);
    bench.write(client, r#"{"id":2,"method":"x","pool":"b"}"#);
    assert_eq!((bench.read(of_b).len(), bench.read(next).len()), (1, 1));
}

#[test]
fn clients_of_a_removed_listener_have_the_drain_timeout() {
    let mut before = settings(vec![pool(1, Assignment::RoundRobin)]);
    before.listeners.push(Listener::default());
    before.limits.drain_timeout = seconds(7);
    let mut bench = Bench::new(before.clone());
    let (stays, leaver) = (bench.client_of(0), bench.client_of(1));
    let mut after = before.clone();
    after.listeners[1].is_gone = true;
    bench.reload(&after);
    assert!(bench.connect(1, Source::Inherited).is_none(), "no more come in");
    bench.write(leaver, CALL);
    bench.write(bench.worker(0), r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read(leaver).len(), 1, "it is served as before");
    bench.pass(milliseconds(6999));
    assert_eq!(bench.how_closed(leaver), None);
    assert!(bench.bus.view().listener_in_use(1));
    bench.pass(milliseconds(1));
    assert_eq!(bench.read_reasons(leaver), ["listener_removed"]);
    bench.pass(seconds(1));
    assert_eq!((bench.how_closed(leaver), bench.how_closed(stays)), (Some(Close::Flush), None));
    bench.gone(leaver);
    assert!(!bench.bus.view().listener_in_use(1));
    after.listeners[1].is_gone = false;
    bench.reload(&after);
    assert!(bench.connect(1, Source::Inherited).is_some());
}

#[test]
fn limits_and_choices_hold_at_once() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let (client, worker) = (bench.client(), bench.worker(0));
    let mut after = before.clone();
    after.limits.max_input_buffer = 40;
    after.listeners[0].max_connections.total = Some(1);
    after.pools[0].deny_methods = vec!["secret".into()];
    after.pools[0].request_timeout = Some(seconds(2));
    bench.reload(&after);
    bench.write(client, r#"{"id":1,"method":"secret"}"#);
    assert_eq!(bench.read_error(client).0, "method_denied");
    let other = bench.client();
    assert_eq!(bench.read_reasons(other), ["connection_limit"]);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert_eq!(bench.read(worker).len(), 1);
    bench.pass(seconds(2));
    assert_eq!(bench.read_reasons(client), ["timeout"]);
    bench.read(worker);
    bench.write(client, r#"{"id":3,"method":"this line is longer than forty bytes"}"#);
    assert_eq!(bench.read_reasons(client), ["client_line_too_long"]);
    bench.reload(&before);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"secret"}"#);
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn workers_of_a_pool_that_assigns_otherwise_are_not_handed_to_one_client_alone() {
    let before = settings(vec![pool(1, Assignment::Client)]);
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), bench.worker(0));
    bench.write(client, CALL);
    bench.read(old);
    let mut after = changed(&before);
    after.pools[0].assignment = Assignment::Dedicated;
    after.pools[0].max_instances = 4;
    bench.reload(&after);
    let other = bench.client();
    bench.write(other, CALL);
    let own = bench.busy_worker();
    assert_ne!(own, old);
    assert_eq!(bench.bus.view().owner(key(own)).map(Peer::Client), Some(other));
    bench.write(old, r#"{"id":1,"result":{}}"#);
    assert_eq!(bench.read(client).len(), 1);
    bench.stops(old);
    bench.reload(&before);
    bench.write(own, r#"{"id":1,"result":{}}"#);
    assert_eq!((bench.read(other).len(), bench.stop_actions(own)), (1, vec![]), "its connection keeps it");
    bench.write(other, r#"{"id":2,"method":"x"}"#);
    assert_eq!(bench.busy_worker(), own, "it has begun there");
    bench.write(own, r#"{"id":2,"result":{}}"#);
    bench.ends(other);
    bench.stops(own);
}

#[test]
fn clients_that_keep_workers_of_their_own_leave_the_slots_of_a_pool_that_is_shared_now_to_others() {
    for assignment in [Assignment::RoundRobin, Assignment::Client] {
        let before = settings(vec![Pool { max_instances: 4, ..pool(1, Assignment::Dedicated) }]);
        let mut bench = Bench::new(before.clone());
        let client = bench.client();
        bench.write(client, CALL);
        let own = bench.busy_worker();
        bench.reload(&settings(vec![pool(1, assignment)]));
        bench.pass(SETTLED);
        let other = bench.client();
        bench.write(other, CALL);
        assert_ne!(bench.busy_worker(), own, "{assignment:?}");
        assert!(bench.read(other).is_empty());
    }
}

#[test]
fn after_a_reload_to_round_robin_no_worker_is_kept_for_the_client_that_had_it() {
    let before = settings(vec![Pool { max_instances: 2, ..pool(2, Assignment::Client) }]);
    let mut bench = Bench::new(before.clone());
    let client = bench.client();
    bench.write(client, CALL);
    let worker = bench.busy_worker();
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    let idle = Duration::from_secs(60);
    let sleeps = |assignment| Pool { start: Start::OnDemand, idle_stop: Some(idle), ..pool(2, assignment) };
    bench.reload(&settings(vec![sleeps(Assignment::RoundRobin)]));
    bench.pass(3 * idle);
    assert!(bench.bus.view().is_asleep(0), "its client is connected, and has no worker");
}

#[test]
fn a_session_on_a_connections_own_worker_stays_there_where_its_pool_is_shared_from_a_reload_on() {
    let before = settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]);
    let mut bench = Bench::new(before.clone());
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    let own = bench.busy_worker();
    bench.write(own, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.reload(&settings(vec![pool(1, Assignment::RoundRobin)]));
    bench.pass(SETTLED);
    let asks = |bench: &mut Bench, method: &str| {
        let named = r#""pool":"agents","params":{"sessionId":"s"}"#;
        bench.write(client, &format!(r#"{{"id":2,"method":"{method}",{named}}}"#));
    };
    for method in ["session/prompt", "session/load"] {
        asks(&mut bench, method);
        assert_eq!(bench.busy_worker(), own, "{method}");
        bench.write(own, r#"{"id":2,"result":{}}"#);
        bench.read(client);
    }
    bench.exits(own, Exit::Code(0));
    asks(&mut bench, "session/load");
    assert_eq!(bench.read_error(client).0, "worker_exited", "no other worker has it");
}

#[test]
fn shared_workers_stay_where_only_the_way_to_choose_among_them_changes() {
    let before = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    bench.reload(&Settings { pools: vec![pool(2, Assignment::Client)], ..before });
    bench.pass(seconds(1));
    assert_eq!((bench.commands.len(), bench.workers.len()), (2, 2));
}

#[test]
fn a_line_that_waits_for_a_worker_is_routed_by_the_new_configuration() {
    let mut before = settings(vec![pool(2, Assignment::Client)]);
    before.limits.max_output_queue = 100;
    let mut bench = Bench::new(before.clone());
    let (other, client) = (bench.client(), bench.client());
    bench.write(other, r#"{"method":"x"}"#);
    bench.stalls(bench.worker(1));
    while !bench.wire(client).paused {
        bench.write(client, r#"{"method":"x"}"#);
    }
    bench.read(bench.worker(0));
    bench.reload(&Settings { pools: vec![pool(2, Assignment::RoundRobin)], ..before });
    assert!(!bench.wire(client).paused);
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
}

#[test]
fn a_session_on_a_worker_that_leaves_is_still_kept_from_others() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let (client, stranger, old) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(old, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    for method in ["session/prompt", "session/load", "session/fork"] {
        bench.write(stranger, &format!(r#"{{"id":1,"method":"{method}","params":{{"sessionId":"s"}}}}"#));
        assert_eq!(bench.read_error(stranger).0, "session_denied");
    }
}

#[test]
fn a_connection_with_two_workers_of_its_own_keeps_both_where_its_pools_become_one() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::Dedicated) };
    let before = settings(vec![named("a"), named("b")]);
    let mut bench = Bench::new(before.clone());
    let client = bench.client();
    let own: Vec<Peer> = ["a", "b"]
        .into_iter()
        .map(|pool| {
            bench.write(client, &format!(r#"{{"id":"{pool}","method":"session/new","pool":"{pool}"}}"#));
            let own = bench.busy_worker();
            bench.write(own, &format!(r#"{{"id":"{pool}","result":{{"sessionId":"of-{pool}"}}}}"#));
            own
        })
        .collect();
    bench.read(client);
    let mut after = before.clone();
    after.pools[0].is_gone = true;
    bench.reload(&after);
    for (worker, pool) in own.iter().zip(["a", "b"]) {
        bench.write(client, &format!(r#"{{"id":1,"method":"x","params":{{"sessionId":"of-{pool}"}}}}"#));
        assert_eq!(bench.busy_worker(), *worker);
        bench.write(*worker, r#"{"id":1,"result":{}}"#);
        assert_eq!(bench.stop_actions(*worker), []);
    }
    bench.write(client, CALL);
    assert_eq!(bench.busy_worker(), own[0], "what it has begun leaver on");
    bench.gone(client);
    own.into_iter().for_each(|own| bench.stops(own));
}

#[test]
fn the_worker_of_a_connection_gets_session_requests_though_its_pool_is_removed() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::Client) };
    let before = settings(vec![named("a"), named("b")]);
    let mut bench = Bench::new(before.clone());
    let (client, other) = (bench.client(), bench.client());
    bench.write(client, CALL);
    let worker = bench.busy_worker();
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    let pool = if worker == bench.worker(0) { "a" } else { "b" };
    bench.write(other, &format!(r#"{{"id":1,"method":"session/new","pool":"{pool}"}}"#));
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    let mut after = before.clone();
    after.pools[usize::from(pool == "b")].is_gone = true;
    bench.reload(&after);
    bench.read(client);
    bench.write(client, r#"{"id":2,"method":"x","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read_error(client).0, "session_denied");
    bench.read(worker);
    bench.write(client, r#"{"id":3,"method":"x"}"#);
    assert_eq!(bench.busy_worker(), worker);
}

#[test]
fn a_shutdown_ends_replacements_too() {
    let before = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let client = bench.client();
    bench.write(client, CALL);
    bench.reload(&changed(&before));
    bench.pass(SETTLED);
    bench.shutdown();
    let workers: Vec<Peer> = bench.workers.iter().map(|worker| Peer::Worker(*worker)).collect();
    assert!(workers.iter().all(|worker| bench.signals_to(*worker) == [Signal::Terminate]));
    for worker in workers {
        bench.exits(worker, Exit::Code(0));
        bench.ends(worker);
    }
    bench.pass(seconds(5));
    bench.gone(client);
    assert!(bench.done);
}

/// A session that its worker is active in, though no request is pending: version 2 of ACP.
fn works(bench: &mut Bench, client: Peer, worker: Peer) {
    bench.write(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":2}}"#);
    bench.write(worker, r#"{"id":0,"result":{"protocolVersion":2}}"#);
    bench.write(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    reports_state(bench, worker, "running");
    assert_eq!(bench.read(client).len(), 4);
}

fn reports_state(bench: &mut Bench, worker: Peer, state: &str) {
    let update = format!(r#"{{"sessionUpdate":"state_update","state":"{state}"}}"#);
    bench.write(worker, &format!(r#"{{"method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#));
}

#[test]
fn a_session_that_its_worker_is_active_in_is_not_forgotten_as_idle() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.session_idle = Some(seconds(8));
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    works(&mut bench, client, worker);
    bench.pass(seconds(60));
    assert_eq!(bench.count(Reason::SessionIdle), 0);
    reports_state(&mut bench, worker, "idle");
    assert_eq!(bench.read(client).len(), 1);
    bench.pass(seconds(60));
    assert_eq!(bench.count(Reason::SessionIdle), 1);
}

#[test]
fn a_worker_active_in_a_session_without_an_owner_is_not_replaced_before_it_is_idle() {
    let before = settings(vec![pool(1, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let (client, old) = (bench.client(), bench.worker(0));
    works(&mut bench, client, old);
    bench.gone(client);
    bench.reload(&changed(&before));
    bench.pass(seconds(60));
    assert_eq!(bench.stop_actions(old), []);
    reports_state(&mut bench, old, "idle");
    bench.stops(old);
}

#[test]
fn a_drain_waits_for_an_active_session_without_pending_requests() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.quiesce = seconds(60);
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    works(&mut bench, client, worker);
    bench.shutdown();
    bench.pass(seconds(30));
    assert_eq!((bench.how_closed(client), bench.stop_actions(worker)), (None, vec![]));
    reports_state(&mut bench, worker, "idle");
    bench.pass(seconds(1));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
    assert_eq!(bench.read(client).len(), 1, "it has heard of the end");
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

#[test]
fn the_age_and_the_requests_after_which_a_worker_is_replaced_apply_to_those_that_run() {
    let of = |max_age, max_requests| settings(vec![Pool { max_age, max_requests, ..pool(1, Assignment::RoundRobin) }]);
    // It is at most an eighth more or less for each worker.
    for (before, after, is_replaced) in [
        (of(None, None), of(Some(seconds(1000)), None), true),
        (of(Some(seconds(1000)), None), of(None, None), false),
        (of(None, None), of(None, Some(100)), true),
        (of(None, Some(100)), of(None, None), false),
    ] {
        let mut bench = Bench::new(before);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.reload(&after);
        for request in 0..150 {
            bench.write(client, &format!(r#"{{"id":{request},"method":"x"}}"#));
            bench.write(worker, &format!(r#"{{"id":{request},"result":{{}}}}"#));
            bench.pass(seconds(10));
            if !bench.stop_actions(worker).is_empty() {
                break;
            }
        }
        assert_eq!(!bench.stop_actions(worker).is_empty(), is_replaced, "{:?}", after.pools[0].max_requests);
    }
}

#[test]
fn a_removed_pool_is_in_use_while_a_client_may_still_name_it_or_would_be_given_to_it() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    for is_by_token in [true, false] {
        let mut before = settings(vec![of("a"), of("b")]);
        let mut origin = Origin::default();
        if is_by_token {
            origin.pools = Some(places(&[1, 0]).into());
        } else {
            before.listeners.push(Listener { pool: Some(PoolId::at(0)), ..Listener::default() });
        }
        let mut bench = Bench::new(before.clone());
        let (client, worker) = (bench.connect(usize::from(!is_by_token), origin).expect("room"), bench.worker(0));
        let mut after = before.clone();
        after.pools[0].is_gone = true;
        bench.reload(&after);
        bench.pass(seconds(1));
        bench.dies(worker);
        assert!(bench.bus.view().pool_in_use(0), "another pool in its place would be the client's: {is_by_token}");
        bench.breaks(client.into());
        bench.gone(client.into());
        assert!(!bench.bus.view().pool_in_use(0) && bench.bus.view().pool_in_use(1));
    }
}

#[test]
fn a_reload_behind_the_last_stage_of_a_shutdown_starts_no_worker_and_opens_no_listener() {
    let mut before = settings(vec![pool(1, Assignment::RoundRobin)]);
    before.listeners.push(Listener { closes_when_not_ready: true, ..Listener::default() });
    let mut bench = Bench::starting(before.clone());
    assert_eq!(bench.listeners.closed, [ListenerId::at(1)]);
    bench.shutdown();
    bench.pass(seconds(60));
    let mut after = changed(&before);
    after.pools.push(Pool { id: "more".into(), ..pool(3, Assignment::RoundRobin) });
    after.listeners[1].closes_when_not_ready = false;
    bench.reload(&after);
    bench.pass(seconds(60));
    assert_eq!((bench.commands.len(), bench.listeners.closed), (1, vec![ListenerId::at(1)]));
}

#[test]
fn a_reload_does_not_change_how_many_clients_there_may_be() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.most_clients = 3;
    let mut bench = Bench::new(settings.clone());
    for most in [1, 8] {
        settings.most_clients = most;
        bench.reload(&settings);
        assert_eq!(bench.bus.view().free_slots(), 3);
    }
}

#[test]
fn a_listener_that_is_closed_for_lack_of_workers_opens_when_it_is_not_to_close_any_more() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners.push(Listener { closes_when_not_ready: true, ..Listener::default() });
    let mut bench = Bench::starting(settings.clone());
    assert_eq!(bench.listeners.closed, [ListenerId::at(1)]);
    bench.reload(&settings);
    assert_eq!(bench.listeners.closed, [ListenerId::at(1)]);
    settings.listeners[1].closes_when_not_ready = false;
    bench.reload(&settings);
    assert!(bench.listeners.closed.is_empty());
}

#[test]
fn a_command_that_has_proved_itself_before_its_third_failure_is_not_given_up_for_the_previous_one() {
    for proof in ["none", "another of its workers has answered", "it has lived for long"] {
        let before = settings(vec![pool(2, Assignment::RoundRobin)]);
        let mut bench = Bench::new(before.clone());
        let client = bench.client();
        bench.reload(&changed(&before));
        bench.pass(SETTLED);
        bench.pass(SETTLED);
        for pause in [200, 400] {
            bench.dies(bench.newest(1)[0]);
            bench.pass(milliseconds(pause));
        }
        let last = bench.newest(1)[0];
        match proof {
            "another of its workers has answered" => {
                for id in 1..3 {
                    bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
                    let worker = bench.busy_worker();
                    if worker != last {
                        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
                    }
                }
            }
            "it has lived for long" => bench.pass(seconds(61)),
            _ => {}
        }
        bench.dies(last);
        bench.pass(milliseconds(800));
        assert_eq!(bench.count(Reason::RollFailed), u64::from(proof == "none"), "{proof}");
    }
}

/// A bench with three listeners, a client of each, and a bus that closes those of removed ones after seven seconds.
fn three_listeners() -> (Settings, Bench, [Peer; 3]) {
    let mut before = settings(vec![pool(1, Assignment::RoundRobin)]);
    before.listeners = vec![Listener::default(); 3];
    before.limits.drain_timeout = seconds(7);
    let mut bench = Bench::new(before.clone());
    let clients = [0, 1, 2].map(|listener| bench.client_of(listener));
    (before, bench, clients)
}

#[test]
fn a_further_reload_gives_the_clients_of_a_removed_listener_no_more_time() {
    let (mut after, mut bench, [_, client, _]) = three_listeners();
    after.listeners[1].is_gone = true;
    bench.reload(&after);
    bench.pass(seconds(5));
    bench.reload(&after);
    bench.pass(milliseconds(1999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(bench.read_reasons(client), ["listener_removed"]);
}

#[test]
fn the_clients_of_listeners_that_are_removed_one_after_the_other_have_each_their_time() {
    let (mut after, mut bench, [stays, first, second]) = three_listeners();
    after.listeners[1].is_gone = true;
    bench.reload(&after);
    bench.pass(seconds(5));
    after.listeners[2].is_gone = true;
    bench.reload(&after);
    bench.pass(seconds(2));
    assert_eq!((bench.read_reasons(first), bench.read(second).len()), (vec!["listener_removed".to_owned()], 0));
    bench.pass(milliseconds(4999));
    assert!(bench.read(second).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!((bench.read_reasons(second), bench.read(stays).len()), (vec!["listener_removed".to_owned()], 0));
}

#[test]
fn a_shorter_idle_timeout_of_a_listener_holds_for_the_clients_that_are_idle() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.listeners[0].idle_timeout = Some(seconds(1000));
    let mut bench = Bench::new(settings.clone());
    let client = bench.client();
    bench.pass(seconds(5));
    settings.listeners[0].idle_timeout = Some(seconds(7));
    bench.reload(&settings);
    bench.pass(milliseconds(1999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(bench.read_reasons(client), ["client_idle"]);
}

#[test]
fn workers_that_the_operator_has_replaced_are_replaced_though_a_reload_changes_their_age_meanwhile() {
    let before = settings(vec![pool(2, Assignment::RoundRobin)]);
    let mut bench = Bench::new(before.clone());
    let old = [bench.worker(0), bench.worker(1)];
    bench.handle(Input::RestartPool(PoolId::at(0)));
    let mut after = before.clone();
    after.pools[0].max_age = Some(seconds(1_000_000));
    bench.reload(&after);
    for _ in 0..3 {
        bench.pass(SETTLED);
    }
    assert_eq!(old.map(|worker| bench.stop_actions(worker)), [[StopAction::End], [StopAction::End]]);
}
