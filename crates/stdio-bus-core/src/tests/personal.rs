//! Pools whose workers are started for one client each, with what is its own.

use super::eras::with_mcp_listener;
use super::*;
use crate::readiness::Readiness;
use crate::settings::Era;

/// Up to so many workers, each for one client.
fn personal(most: usize) -> Pool {
    Pool { personal: true, max_instances: most, ..pool(0, Assignment::Dedicated) }
}

fn on_bench(most: usize) -> Bench {
    Bench::new(settings(vec![personal(most)]))
}

const ASK: &str = r#"{"id":1,"method":"x"}"#;
const MISSING: &str = "no X-Token";

impl Bench {
    /// A client has a worker, which has answered it.
    fn served(&mut self) -> (Peer, Peer) {
        let client = self.client();
        self.write(client, ASK);
        let worker = Peer::Worker(*self.workers.last().expect("one is started"));
        assert_eq!(self.read_one(worker), ASK);
        self.write(worker, r#"{"id":1,"result":{}}"#);
        self.read_one(client);
        (client, worker)
    }

    /// The newest worker is not started, for want of what its client has to bring.
    fn lacks(&mut self) {
        let worker = *self.workers.last().expect("one is to be started");
        self.handle(Input::SpawnFailed { worker, why: MISSING.into(), fault: SpawnFailure::Client });
    }

    fn clients_started_for(&self) -> Vec<Option<Peer>> {
        self.started_for.iter().map(|(_, client)| client.map(Peer::Client)).collect()
    }
}

#[test]
fn a_worker_is_started_for_its_client_and_serves_no_other_before_or_after() {
    let mut bench = on_bench(9);
    assert!(bench.workers.is_empty(), "there are no spares");
    let (first, of_first) = bench.served();
    let (second, of_second) = bench.served();
    assert_ne!(of_first, of_second);
    assert_eq!(bench.clients_started_for(), [Some(first), Some(second)]);
    bench.ends(first);
    bench.gone(first);
    bench.pass(seconds(60));
    let (third, of_third) = bench.served();
    assert!(of_third != of_first && of_third != of_second);
    assert_eq!(bench.clients_started_for(), [Some(first), Some(second), Some(third)]);
    assert_eq!(bench.stop_actions(of_first)[..1], [StopAction::End], "the worker of a client that has left ends");
    assert_eq!(bench.stop_actions(of_second), []);
}

#[test]
fn no_worker_is_left_for_the_next_client_when_one_leaves_before_its_worker_runs() {
    let mut bench = Bench::starting(settings(vec![personal(9)]));
    let (first, second) = (bench.client(), bench.client());
    bench.write(first, ASK);
    bench.ends(first);
    bench.gone(first);
    bench.write(second, ASK);
    bench.spawns = true;
    bench.spawn_all();
    bench.pass(seconds(1));
    let of_second = Peer::Worker(bench.started_for.iter().find(|(_, it)| *it == key(second)).expect("its own").0);
    assert_eq!(bench.read_one(of_second), ASK);
    assert_eq!(bench.clients_started_for(), [Some(first), Some(second)]);
}

fn key(peer: Peer) -> Option<ClientKey> {
    if let Peer::Client(client) = peer { Some(client) } else { None }
}

#[test]
fn in_a_full_pool_a_client_waits_for_a_place_and_gets_a_worker_of_its_own() {
    let mut bench = on_bench(1);
    let (first, _) = bench.served();
    let second = bench.client();
    bench.write(second, ASK);
    let said = bench.read_json(second);
    assert!(said["error"]["message"].as_str().is_some_and(|it| it.contains("max_instances")), "{said}");
    bench.ends(first);
    bench.write(second, ASK);
    assert!(bench.read(second).is_empty(), "one is ending, so it waits");
    bench.dies(bench.worker(0));
    bench.gone(first);
    bench.pass(seconds(1));
    assert_eq!(bench.clients_started_for(), [Some(first), Some(second)]);
    assert_eq!(bench.read_one(bench.worker(0)), ASK);
}

#[test]
fn who_lacks_credentials_gets_the_reason_may_try_again_and_delays_no_other() {
    let mut bench = Bench::starting(settings(vec![personal(9)]));
    let (poor, other) = (bench.client(), bench.connect(0, Source::User(7)).expect("there is room").into());
    bench.write(poor, ASK);
    bench.write(poor, r#"{"id":2,"method":"y"}"#);
    bench.lacks();
    let said = bench.read(poor);
    assert_eq!(said.len(), 2, "each of its requests is answered");
    for (line, id) in said.iter().zip(1..) {
        let said: Value = serde_json::from_str(line).expect("JSON");
        let error = &said["error"];
        assert_eq!((&said["id"], &error["code"]), (&json!(id), &json!(-32032)), "{said}");
        assert_eq!((&error["message"], &error["data"]["delivered"]), (&json!(MISSING), &json!(false)), "{said}");
        assert_eq!(error["data"]["reason"], "credentials_missing");
    }
    assert_eq!((bench.closed.len(), bench.count(Reason::SpawnFailed)), (0, 0), "it may try again");
    bench.write(other, ASK);
    assert_eq!(bench.clients_started_for().last(), Some(&Some(other)), "no other waits for it");
    bench.spawns = true;
    bench.spawn_all();
    bench.write(poor, ASK);
    bench.pass(milliseconds(100));
    assert_eq!(bench.clients_started_for().last(), Some(&Some(poor)));
    assert_eq!(bench.read_one(Peer::Worker(*bench.workers.last().expect("its own"))), ASK);
}

#[test]
fn who_lacks_credentials_is_not_tried_more_often_than_twenty_times_a_second() {
    let mut bench = Bench::starting(settings(vec![personal(9)]));
    let client = bench.client();
    for round in 1..=3 {
        for _ in 0..5 {
            bench.write(client, ASK);
        }
        bench.pass(milliseconds(50));
        assert_eq!(bench.started_for.len(), round);
        bench.lacks();
    }
    assert!(bench.read(client).len() >= 3);
}

#[test]
fn a_line_that_has_waited_for_a_start_that_fails_is_refused_and_not_kept_waiting() {
    let mut bench = Bench::starting(settings(vec![personal(9)]));
    let first = bench.client();
    bench.write(first, ASK);
    bench.lacks();
    bench.read(first);
    // Its source gets the next worker after a while.
    let second = bench.client();
    bench.wire(second).is_late = true;
    bench.write(second, ASK);
    bench.wire(second).is_late = false;
    bench.present(second);
    assert!(bench.is_paused(second) && bench.started_for.len() == 1, "it waits for its turn");
    bench.wire(second).is_late = true;
    bench.pass(milliseconds(50));
    assert_eq!(bench.started_for.len(), 2);
    bench.lacks();
    bench.wire(second).is_late = false;
    bench.present(second);
    assert_eq!(bench.read_error(second), ("credentials_missing".into(), -32032, json!(1)));
    assert_eq!((bench.started_for.len(), bench.count(Reason::CredentialsMissing)), (2, 2));
    bench.write(second, ASK);
    bench.pass(milliseconds(50));
    assert_eq!(bench.started_for.len(), 3, "it may try again");
}

#[test]
fn a_worker_that_ends_over_its_clients_credentials_delays_no_other_client() {
    let mut bench = on_bench(9);
    for user in 1..=20 {
        let client = Peer::Client(bench.connect(0, Source::User(user)).expect("there is room"));
        bench.write(client, ASK);
        let worker = Peer::Worker(*bench.workers.last().expect("it is started at once"));
        assert_eq!(bench.read_one(worker), ASK);
        bench.dies(worker);
        assert_eq!(bench.read_error(client).0, "worker_exited");
        assert!(bench.bus.view().readiness().is_ready(), "others are served");
    }
}

#[test]
fn a_notification_of_who_lacks_credentials_is_reported_as_lost() {
    let mut bench = Bench::starting(settings(vec![personal(9)]));
    let client = bench.client();
    bench.write(client, r#"{"method":"note"}"#);
    bench.lacks();
    assert_eq!(bench.count(Reason::CredentialsMissing), 1);
    let report = bench.reports.iter().find(|report| report.reason == Reason::CredentialsMissing).expect("it is report");
    assert!(report.client.is_some() && report.text == MISSING, "{report:?}");
}

#[test]
fn such_a_pool_is_ready_and_started_before_it_has_a_worker_and_full_with_all_of_them() {
    let mut bench = on_bench(1);
    assert!(bench.bus.view().readiness().is_ready());
    assert!(bench.bus.view().has_started(bench.now));
    bench.served();
    assert!(matches!(bench.bus.view().readiness(), Readiness::Full(_)), "{:?}", bench.bus.view().readiness());
}

#[test]
fn clients_without_sessions_are_asked_to_begin_one() {
    let mut bench = Bench::new(with_mcp_listener(personal(9)));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy), "nobody has to wait to know that");
    let client = bench.mcp(Era::Legacy);
    bench.write(client, r#"{"id":1,"method":"initialize"}"#);
    assert_eq!(bench.clients_started_for(), [Some(client)]);
    let worker = bench.worker(0);
    assert_eq!(bench.read_one(worker), r#"{"id":1,"method":"initialize"}"#, "it is asked nothing before");
}

#[test]
fn a_reload_that_makes_a_pool_personal_lends_and_spares_none_of_its_workers_any_more() {
    for era in Era::BOTH {
        let shared = Pool { max_instances: 9, ..pool(2, Assignment::Dedicated) };
        let mut bench = Bench::asked(shared.clone(), super::eras::MODERN);
        let before = bench.mcp(era);
        bench.write(before, super::eras::CALL);
        bench.pass(seconds(1));
        let next = Pool { generation: 1, ..personal(9) };
        let effects = bench.bus.reload(bench.now, with_mcp_listener(next)).collect();
        bench.effects(&[], effects);
        bench.pass(seconds(1));
        let started = bench.started_for.len();
        let client = bench.mcp(Era::Modern);
        bench.write(client, super::eras::CALL);
        let error = bench.read_error(client);
        assert_eq!((error.0.as_str(), error.1), ("unsupported_protocol_version", -32022), "{era:?}");
        assert_eq!(bench.started_for.len(), started, "nothing is started for it");
        let client = bench.mcp(Era::Legacy);
        bench.write(client, ASK);
        bench.pass(seconds(1));
        assert_eq!(bench.started_for.last().map(|(_, it)| *it), Some(key(client)), "{era:?}");
        assert_eq!(bench.commands.last().map(|(.., command)| *command), Some(1), "{era:?}");
        // And back.
        let again = Pool { generation: 2, ..shared };
        let effects = bench.bus.reload(bench.now, with_mcp_listener(again)).collect();
        bench.effects(&[], effects);
        bench.pass(seconds(1));
        assert!(bench.started_for.iter().rev().take_while(|(_, it)| it.is_none()).count() >= 2, "spares are back");
    }
}

#[test]
fn clients_with_bad_credentials_do_not_bring_back_a_command_from_before_the_pool_was_personal() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Dedicated)]));
    // A command that has settled, and has answered nothing yet.
    bench.reload(&settings(vec![Pool { generation: 1, ..pool(1, Assignment::Dedicated) }]));
    bench.pass(seconds(1));
    bench.reload(&settings(vec![Pool { generation: 2, ..personal(9) }]));
    bench.pass(seconds(1));
    for user in 1..=5 {
        let client = Peer::Client(bench.connect(0, Source::User(user)).expect("there is room"));
        bench.write(client, ASK);
        let (worker, _, command) = *bench.commands.last().expect("one is started");
        assert_eq!(
            (bench.clients_started_for().last(), command),
            (Some(&Some(client)), 2),
            "the one with what is its own"
        );
        bench.dies(Peer::Worker(worker));
        bench.pass(seconds(1));
    }
    assert_eq!(bench.count(Reason::RollFailed), 0);
}
