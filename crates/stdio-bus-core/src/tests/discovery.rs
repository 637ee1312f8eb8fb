//! Which worker of a command is asked for its era, and the consequences of its reaction.

use super::eras::{CALL, LEGACY, MODERN, with_mcp_listener};
use super::*;
use crate::settings::Era;

/// One worker, after whose first failure its pool is given up.
fn never_restarted() -> Settings {
    let mut settings = with_mcp_listener(pool(1, Assignment::Client));
    settings.limits.max_restarts = 0;
    settings
}

impl Bench {
    /// The only worker is asked, and ends.
    fn dies_asked(&mut self) {
        let worker = self.worker(0);
        assert_eq!(self.read_json(worker)["method"], "server/discover");
        self.dies(worker);
    }
}

#[test]
fn the_first_worker_of_a_pool_that_an_mcp_listener_offers_is_asked_once_for_its_era() {
    let mut bench = Bench::asked(pool(2, Assignment::RoundRobin), None);
    let (first, second) = (bench.worker(0), bench.worker(1));
    assert!(bench.read(second).is_empty(), "one of them is asked");
    assert_eq!(bench.bus.view().pool_era(0), None);
    bench.write(first, r#"{"id":"stdio-bus/discover/0","result":{}}"#);
    assert_eq!((bench.bus.view().pool_era(0), bench.discovered.clone()), (Some(Era::Modern), places(&[0])));
    assert_eq!(bench.count(Reason::UnknownId) + bench.count(Reason::LateAnswer), 0, "the answer is the bus' own");
    bench.dies(first);
    bench.pass(seconds(1));
    let next = bench.worker(1);
    assert!(bench.read(next).is_empty(), "what is known is known for good");
}

#[test]
fn a_pool_that_no_mcp_listener_offers_is_not_asked() {
    let pools = vec![pool(1, Assignment::RoundRobin), Pool { id: "tools".into(), ..pool(1, Assignment::RoundRobin) }];
    let mcp = Listener { mcp: true, pools: Some(places(&[1])), ..Listener::default() };
    let mut bench = Bench::new(Settings { listeners: vec![Listener::default(), mcp], ..settings(pools) });
    assert_eq!(bench.busy(), [false, true]);
}

#[test]
fn an_error_or_silence_mean_that_a_command_speaks_an_earlier_version() {
    let bench = Bench::asked(pool(1, Assignment::Client), LEGACY);
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    let mut bench = Bench::asked(pool(1, Assignment::Client), None);
    bench.pass(milliseconds(4999));
    assert_eq!(bench.bus.view().pool_era(0), None);
    bench.pass(milliseconds(1));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
}

#[test]
fn a_command_is_asked_although_a_reload_has_replaced_the_one_before_while_that_was_asked() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), LEGACY);
    let client = bench.mcp(Era::Legacy);
    bench.write(client, CALL);
    bench.busy_worker();
    for generation in [1, 2] {
        bench.reload(&with_mcp_listener(Pool { generation, ..pool(1, Assignment::RoundRobin) }));
    }
    let [dropped, candidate] = [1, 2].map(|at| bench.worker(at));
    assert_eq!(bench.read_json(dropped)["method"], "server/discover");
    assert_eq!(bench.read_json(candidate)["method"], "server/discover");
    bench.write(candidate, r#"{"id":"stdio-bus/discover/2","result":{"supportedVersions":["2026-07-28"]}}"#);
    bench.pass(seconds(10));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern));
}

#[test]
fn an_echoing_worker_does_not_answer_the_question() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    let worker = bench.worker(0);
    let question = bench.read_one(worker);
    bench.write(worker, &question);
    assert_eq!((bench.bus.view().pool_era(0), bench.read(worker)), (Some(Era::Legacy), vec![]));
}

#[test]
fn a_late_answer_is_taken_all_the_same() {
    let mut bench = Bench::asked(pool(1, Assignment::Client), None);
    bench.pass(seconds(6));
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":"stdio-bus/discover/0","result":{}}"#);
    assert_eq!((bench.bus.view().pool_era(0), bench.discovered.clone()), (Some(Era::Modern), places(&[0, 0])));
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    assert_eq!(bench.read_one(worker), CALL);
}

#[test]
fn sessions_get_no_worker_that_the_question_may_have_pinned_to_2026_07_28() {
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        let mut bench = Bench::asked(pool(1, assignment), None);
        let (asked, waits, line) = (bench.worker(0), bench.mcp(Era::Legacy), bench.client());
        bench.write(waits, CALL);
        bench.write(asked, r#"{"id":"stdio-bus/discover/0","result":{}}"#);
        assert!(bench.read(asked).is_empty(), "{assignment:?}");
        assert_eq!(bench.stop_actions(asked), [StopAction::End], "{assignment:?}");
        bench.dies(asked);
        bench.write(line, CALL);
        assert!(bench.busy()[0], "{assignment:?}");
        assert_eq!((bench.count(Reason::WorkerExited), bench.count(Reason::PoolDegraded)), (0, 0));
    }
    let mut bench = Bench::asked(pool(1, Assignment::Client), MODERN);
    let (asked, client) = (bench.worker(0), bench.mcp(Era::Modern));
    bench.write(client, CALL);
    assert_eq!((bench.read_one(asked), bench.workers.len()), (CALL.into(), 1), "it serves 2026-07-28");
}

#[test]
fn a_worker_that_is_late_with_its_answer_leaves_sessions_to_another_one_and_is_listened_to() {
    for answers in [true, false] {
        let mut bench = Bench::asked(pool(1, Assignment::Client), None);
        let (asked, session) = (bench.worker(0), bench.mcp(Era::Legacy));
        bench.write(session, CALL);
        bench.pass(seconds(5));
        assert_eq!((bench.bus.view().pool_era(0), bench.busy()), (Some(Era::Legacy), vec![false, true]));
        bench.pass(seconds(54));
        assert_eq!(bench.stop_actions(asked), []);
        if answers {
            bench.write(asked, r#"{"id":"stdio-bus/discover/0","result":{}}"#);
            assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern));
        } else {
            bench.pass(seconds(1));
        }
        assert_eq!(bench.stop_actions(asked), [StopAction::End]);
    }
}

#[test]
fn a_new_command_that_serves_2026_07_28_is_asked_by_a_worker_that_takes_no_place_of_one_with_sessions() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), LEGACY);
    let session = bench.mcp(Era::Legacy);
    bench.write(session, CALL);
    let old = bench.worker(0);
    bench.answers(old);
    let mut settings = with_mcp_listener(pool(1, Assignment::RoundRobin));
    settings.pools[0].generation = 1;
    let effects = bench.bus.reload(bench.now, settings).collect();
    bench.effects(&[], effects);
    let asked = bench.worker(1);
    let question = bench.read_json(asked);
    bench.write(asked, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!((bench.stop_actions(asked), bench.stop_actions(old)), (vec![StopAction::End], vec![]));
    bench.dies(asked);
    bench.pass(milliseconds(200));
    assert_eq!(bench.stop_actions(old), [StopAction::End]);
    bench.write(session, CALL);
    assert_eq!((bench.busy(), bench.count(Reason::RollFailed)), (vec![false, true], 0));
}

#[test]
fn a_worker_that_ends_when_it_is_asked_has_not_failed_and_the_next_one_is_asked_again() {
    let mut bench = Bench::new(never_restarted());
    bench.dies_asked();
    assert_eq!(bench.bus.view().pool_era(0), None, "it may have ended for another reason");
    let (next, session) = (bench.worker(0), bench.mcp(Era::Legacy));
    bench.write(session, CALL);
    let question = bench.read_json(next);
    assert_eq!(question["method"], "server/discover");
    bench.write(next, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern));
    assert_eq!(bench.busy(), [false, true], "the session has one that was not asked");
    assert_eq!((bench.count(Reason::WorkerExited), bench.count(Reason::PoolDegraded)), (0, 0));
}

#[test]
fn workers_that_are_killed_when_asked_prove_nothing_about_their_command() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    for backoff in [100, 200, 400] {
        let worker = bench.worker(0);
        assert_eq!(bench.read_json(worker)["method"], "server/discover");
        bench.exits(worker, Exit::Signal(9));
        bench.ends(worker);
        bench.pass(milliseconds(backoff));
        assert_eq!(bench.bus.view().pool_era(0), None);
    }
    assert_eq!(bench.count(Reason::WorkerExited), 3, "it is a failure as any other");
}

#[test]
fn a_worker_that_ends_before_its_late_answer_leaves_the_question_to_the_next_one() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    bench.pass(seconds(6));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    bench.dies_asked();
    bench.pass(milliseconds(100));
    let next = bench.worker(0);
    let question = bench.read_json(next);
    bench.write(next, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern));
}

#[test]
fn a_command_whose_workers_exit_when_asked_is_for_sessions_and_the_third_one_is_not_asked() {
    let mut bench = Bench::new(never_restarted());
    bench.dies_asked();
    bench.dies_asked();
    assert_eq!((bench.bus.view().pool_era(0), bench.discovered.clone()), (Some(Era::Legacy), places(&[0])));
    let (third, session) = (bench.worker(0), bench.mcp(Era::Legacy));
    bench.write(session, r#"{"id":1,"method":"initialize"}"#);
    assert_eq!(bench.answers(third)["method"], "initialize");
    let row = bench.bus.view().pool_row(0).expect("it is a pool");
    assert_eq!((row.stats.all_exits(), row.stats.events(Reason::WorkerStopped), row.given_up), (0, 2, 0));
    bench.dies(third);
    assert_eq!(bench.count(Reason::PoolDegraded), 1, "its own end is its own fault");
}

#[test]
fn a_command_that_ends_without_a_question_as_well_is_asked_once_more_each_time() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    bench.dies_asked();
    for backoff in [100, 200, 400] {
        bench.dies_asked();
        let third = bench.worker(0);
        assert!(bench.read(third).is_empty());
        bench.dies(third);
        assert!(bench.workers.is_empty(), "what ends without a question fails, and the next one waits");
        bench.pass(milliseconds(backoff));
    }
    let last = bench.worker(0);
    let question = bench.read_json(last);
    bench.write(last, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    assert_eq!((bench.bus.view().pool_era(0), bench.discovered.clone()), (Some(Era::Modern), places(&[0, 0])));
}

#[test]
fn a_command_that_has_answered_once_is_not_asked_again_when_it_ends() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    bench.dies_asked();
    let next = bench.worker(0);
    let question = bench.read_json(next);
    bench.write(next, &format!(r#"{{"id":{},"error":{{}}}}"#, question["id"]));
    bench.dies(next);
    bench.pass(milliseconds(100));
    let third = bench.worker(0);
    assert_eq!((bench.bus.view().pool_era(0), bench.read(third)), (Some(Era::Legacy), vec![]));
}

#[test]
fn a_broken_new_command_is_not_asked_forever_and_leaves_clients_of_2026_07_28_their_workers() {
    let mut bench = Bench::asked(pool(1, Assignment::Client), MODERN);
    let (old, client) = (bench.worker(0), bench.mcp(Era::Modern));
    bench.write(client, CALL);
    bench.answers(old);
    let mut settings = with_mcp_listener(pool(1, Assignment::Client));
    settings.pools[0].generation = 1;
    let effects = bench.bus.reload(bench.now, settings).collect();
    bench.effects(&[], effects);
    let mut asked = 0;
    for _ in 0..70 {
        bench.pass(milliseconds(50));
        let Some(candidate) = bench.workers.iter().map(|it| Peer::Worker(*it)).find(|it| *it != old) else { continue };
        asked += bench.read(candidate).len();
        bench.dies(candidate);
    }
    assert_eq!((asked, bench.count(Reason::RollFailed), bench.workers.len()), (4, 1, 1));
    bench.write(client, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
    assert_eq!((bench.bus.view().pool_era(0), bench.answers(old)["id"].clone()), (Some(Era::Modern), json!(2)));
}

/// Reloads a pool that only sessions have used, with a new command that lives or not; then the first client of 2026-07-28
/// connects. Returns the commands of the workers started for it, and what it reads.
fn comes_after_a_change(assignment: Assignment, lives: bool) -> (Vec<u32>, Vec<String>) {
    let two = Pool { max_instances: 2, ..pool(1, assignment) };
    let mut bench = Bench::asked(two.clone(), MODERN);
    let session = bench.mcp(Era::Legacy);
    bench.write(session, r#"{"id":1,"method":"initialize"}"#);
    bench.pass(seconds(1));
    let old = bench.workers.clone();
    let mut settings = with_mcp_listener(two);
    settings.pools[0].generation = 1;
    let effects = bench.bus.reload(bench.now, settings).collect();
    bench.effects(&[], effects);
    if lives {
        let new = bench.worker(1);
        bench.answers(new);
    }
    for _ in 0..70 {
        bench.pass(milliseconds(50));
        let new = bench.workers.iter().find(|worker| !lives && !old.contains(worker)).copied();
        new.into_iter().for_each(|new| bench.dies(Peer::Worker(new)));
    }
    let before = bench.workers.clone();
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    let begun: Vec<WorkerKey> = bench.workers.iter().copied().filter(|worker| !before.contains(worker)).collect();
    for worker in &begun {
        bench.answers(Peer::Worker(*worker));
    }
    let commands = bench.commands.iter().filter(|(worker, ..)| begun.contains(worker)).map(|(.., command)| *command);
    (commands.collect(), bench.read(client))
}

#[test]
fn the_first_client_of_2026_07_28_is_served_by_the_command_that_sessions_have_by_then() {
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        for (lives, command) in [(true, 1), (false, 0)] {
            let (commands, answers) = comes_after_a_change(assignment, lives);
            assert_eq!(commands, [command], "{assignment:?}, {lives}");
            assert!(answers.len() == 1 && answers[0].contains("result"), "{assignment:?}, {lives}: {answers:?}");
        }
    }
}

#[test]
fn a_new_command_that_ends_when_it_is_asked_and_then_lives_is_for_sessions() {
    let mut bench = Bench::asked(pool(1, Assignment::Client), MODERN);
    let mut settings = with_mcp_listener(pool(1, Assignment::Client));
    settings.pools[0].generation = 1;
    let effects = bench.bus.reload(bench.now, settings).collect();
    bench.effects(&[], effects);
    for _ in 0..2 {
        let candidate = bench.worker(1);
        assert_eq!(bench.read_json(candidate)["method"], "server/discover");
        bench.dies(candidate);
    }
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Modern));
    bench.pass(milliseconds(200));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy), "it has settled without a question");
}

#[test]
fn a_new_command_that_serves_no_clients_of_2026_07_28_takes_over_from_workers_that_did() {
    for assignment in [Assignment::Client, Assignment::Dedicated] {
        let two = Pool { max_instances: 2, ..pool(1, assignment) };
        let mut bench = Bench::asked(two.clone(), MODERN);
        let clients = [bench.mcp(Era::Modern), bench.mcp(Era::Modern)];
        clients.into_iter().for_each(|client| bench.write(client, CALL));
        let mut settings = with_mcp_listener(two);
        settings.pools[0].generation = 1;
        let effects = bench.bus.reload(bench.now, settings).collect();
        bench.effects(&[], effects);
        let candidate = bench.worker(bench.workers.len() - 1);
        let question = bench.read_json(candidate);
        bench.write(candidate, &format!(r#"{{"id":{},"error":{{}}}}"#, question["id"]));
        assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy), "{assignment:?}");
        let session = bench.mcp(Era::Legacy);
        bench.write(session, r#"{"id":1,"method":"initialize"}"#);
        assert_eq!(bench.answers(candidate)["method"], "initialize", "{assignment:?}");
        let old = bench.worker(0);
        let asked = bench.read(old);
        assert!(asked[0].contains("tools/call"), "{asked:?}");
        bench.write(old, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(bench.read_json(clients[0])["result"], json!({}), "what was asked before is answered");
    }
}

#[test]
fn a_worker_started_for_a_request_of_2026_07_28_during_a_roll_is_not_asked_before_it() {
    let three = Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) };
    let mut bench = Bench::asked(three.clone(), MODERN);
    let [one, two] = [(); 2].map(|()| bench.mcp(Era::Modern));
    let session = bench.mcp(Era::Legacy);
    bench.write(one, CALL);
    bench.write(session, r#"{"id":1,"method":"initialize"}"#);
    let mut settings = with_mcp_listener(three);
    settings.pools[0].generation = 1;
    let effects = bench.bus.reload(bench.now, settings).collect();
    bench.effects(&[], effects);
    let workers: Vec<Peer> = bench.workers.iter().map(|worker| Peer::Worker(*worker)).collect();
    for worker in workers {
        for line in bench.read(worker).iter().filter(|line| line.contains("server/discover")) {
            let question: Value = serde_json::from_str(line).expect("it is JSON");
            bench.write(worker, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
        }
    }
    bench.write(two, CALL);
    let started = bench.worker(bench.workers.len() - 1);
    assert_eq!(bench.read_one(started), CALL);
}

#[test]
fn the_next_worker_is_asked_if_the_first_one_could_not_be_started_or_was_stopped() {
    let mut bench = Bench::starting(with_mcp_listener(pool(1, Assignment::Client)));
    let Peer::Worker(first) = bench.worker(0) else { unreachable!() };
    bench.handle(Input::SpawnFailed { worker: first, why: "no such file".into(), fault: SpawnFailure::Command });
    assert_eq!(bench.bus.view().pool_era(0), None);
    bench.spawns = true;
    bench.pass(milliseconds(200));
    let second = bench.worker(0);
    assert_eq!(bench.read_json(second)["method"], "server/discover");
    let Peer::Worker(at) = second else { unreachable!() };
    bench.handle(Input::RestartWorker { worker: at, at_once: true });
    bench.dies(second);
    let third = bench.worker(0);
    assert_eq!(bench.read_json(third)["method"], "server/discover");
}

#[test]
fn a_worker_that_is_stopped_for_its_answer_counts_as_one_that_exits_when_asked() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    for _ in 0..2 {
        let worker = bench.worker(0);
        assert_eq!(bench.read_json(worker)["method"], "server/discover");
        bench.write(worker, "usage: server [options]");
        bench.exits(worker, Exit::Signal(15));
        bench.ends(worker);
        bench.pass(seconds(1));
    }
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    let third = bench.worker(0);
    assert!(bench.read(third).is_empty());
}

#[test]
fn a_command_that_starts_slowly_and_exits_when_asked_is_asked_twice() {
    let mut bench = Bench::new(with_mcp_listener(pool(1, Assignment::Client)));
    for _ in 0..2 {
        bench.pass(seconds(6));
        bench.dies_asked();
        assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
        bench.pass(seconds(1));
    }
    let third = bench.worker(0);
    assert!(bench.read(third).is_empty());
}

/// A pool for 2026-07-28 whose oldest worker has a slot that its other side lacks, with a new command.
fn renewed_in_a_further_slot() -> Bench {
    let before = with_mcp_listener(Pool { max_instances: 4, ..pool(1, Assignment::Dedicated) });
    let mut bench = Bench::new(before.clone());
    let first = bench.worker(0);
    let question = bench.read_json(first);
    bench.write(first, &format!(r#"{{"id":{},"result":{{}}}}"#, question["id"]));
    for _ in 0..2 {
        let client = bench.mcp(Era::Modern);
        bench.write(client, CALL);
        bench.pass(seconds(1));
    }
    bench.dies(first);
    bench.pass(seconds(2));
    let mut after = before;
    after.pools[0].generation += 1;
    bench.reload(&after);
    bench.pass(milliseconds(300));
    bench
}

#[test]
fn a_candidate_for_a_slot_that_the_side_for_sessions_lacks_takes_another() {
    let mut bench = renewed_in_a_further_slot();
    let candidate = bench.newest(1)[0];
    let question = bench.read_json(candidate);
    bench.write(candidate, &format!(r#"{{"id":{},"error":{{"code":-32601,"message":"m"}}}}"#, question["id"]));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    bench.pass(seconds(1));
    bench.bus.check_invariants();
}

#[test]
fn no_worker_stays_in_a_slot_that_the_side_for_sessions_lacks() {
    let mut bench = renewed_in_a_further_slot();
    for _ in 0..2 {
        let candidate = bench.newest(1)[0];
        assert_eq!(bench.read_json(candidate)["method"], "server/discover");
        bench.dies(candidate);
        bench.pass(seconds(1));
    }
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    bench.pass(seconds(200));
    bench.bus.check_invariants();
}

#[test]
fn an_error_without_an_id_answers_the_question_of_the_bus_and_a_result_does_not() {
    for id in ["", r#""id":null,"#] {
        let mut bench = Bench::asked(pool(1, Assignment::Client), None);
        let worker = bench.worker(0);
        bench.write(worker, &format!(r#"{{"jsonrpc":"2.0",{id}"result":{{}}}}"#));
        assert_eq!((bench.bus.view().pool_era(0), bench.count(Reason::UnknownId)), (None, 1));
        bench
            .write(worker, &format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32601,"message":"no such method"}}}}"#));
        assert_eq!((bench.bus.view().pool_era(0), bench.count(Reason::UnknownId)), (Some(Era::Legacy), 1));
    }
}
