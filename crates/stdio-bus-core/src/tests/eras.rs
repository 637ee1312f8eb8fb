//! Clients of MCP listeners: the era of a command, the workers for each era, and what a client leaves behind.

use super::*;
use crate::overview::PeerName;
use crate::settings::{Era, Start};

/// The settings of a bus with an MCP listener and one for lines, and this pool.
pub(super) fn with_mcp_listener(pool: Pool) -> Settings {
    let mcp = Listener { mcp: true, ..Listener::default() };
    Settings { listeners: vec![Listener::default(), mcp], ..settings(vec![pool]) }
}

impl Bench {
    pub(super) fn mcp(&mut self, era: Era) -> Peer {
        let (client, effects) = self.bus.connect_mcp(self.now, 1, Source::Inherited, 0, era);
        let effects = effects.collect();
        self.effects(&[], effects);
        Peer::Client(client.expect("there is room"))
    }

    /// A bus whose one pool was asked and has given this answer, if any.
    pub(super) fn asked(pool: Pool, answer: Option<&str>) -> Self {
        let mut bench = Self::new(with_mcp_listener(pool));
        let worker = bench.worker(0);
        let question = bench.read_json(worker);
        assert_eq!(question["method"], "server/discover");
        if let Some(answer) = answer {
            bench.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{},{answer}}}"#, question["id"]));
        }
        bench
    }

    fn leaves(&mut self, peer: Peer) {
        let Peer::Client(client) = peer else { panic!("{peer:?} is no client") };
        self.handle(Input::ClientLeft(client));
        self.gone(peer);
    }

    /// The one message that a worker was sent, answered with a result.
    pub(super) fn answers(&mut self, worker: Peer) -> Value {
        let message = self.read_json(worker);
        self.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, message["id"]));
        message
    }

    /// Whether each worker has input to read, in the order of their start.
    pub(super) fn busy(&mut self) -> Vec<bool> {
        let workers: Vec<Peer> = self.workers.iter().map(|worker| Peer::Worker(*worker)).collect();
        workers.into_iter().map(|worker| !self.read(worker).is_empty()).collect()
    }
}

pub(super) const MODERN: Option<&str> = Some(r#""result":{"supportedVersions":["2026-07-28"]}"#);
pub(super) const LEGACY: Option<&str> = Some(r#""error":{"code":-32601,"message":"no such method"}"#);
pub(super) const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;

fn key(peer: Peer) -> ClientKey {
    let Peer::Client(client) = peer else { panic!("{peer:?} is no client") };
    client
}

#[test]
fn a_pool_with_workers_for_both_eras_may_have_twice_as_many() {
    let pools = vec![pool(2, Assignment::RoundRobin), Pool { max_instances: 5, ..pool(1, Assignment::Dedicated) }];
    let count = |listeners: Vec<Listener>| Settings { listeners, ..settings(pools.clone()) }.most_workers();
    let mcp = Listener { mcp: true, ..Listener::default() };
    let of_one = Listener { pools: Some(places(&[1])), ..mcp.clone() };
    assert_eq!([count(vec![Listener::default()]), count(vec![of_one]), count(vec![mcp])], [7, 12, 14]);
}

#[test]
fn lines_for_a_worker_that_is_asked_wait_for_its_answer() {
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        let mut bench = Bench::asked(pool(1, assignment), None);
        let (worker, line, session) = (bench.worker(0), bench.client(), bench.mcp(Era::Legacy));
        bench.write(line, r#"{"id":1,"method":"initialize"}"#);
        assert!(bench.read(worker).is_empty() && bench.is_paused(line), "{assignment:?}");
        bench.write(worker, r#"{"id":"stdio-bus/discover/0","error":{}}"#);
        assert_eq!(bench.answers(worker)["method"], "initialize");
        if assignment != Assignment::Dedicated {
            bench.write(session, r#"{"id":1,"method":"initialize"}"#);
            assert_eq!(bench.answers(worker)["method"], "initialize");
        }
    }
}

#[test]
fn lines_continue_when_a_worker_has_been_silent_for_five_seconds() {
    let mut bench = Bench::asked(pool(1, Assignment::Client), None);
    let client = bench.client();
    bench.write(client, CALL);
    bench.pass(milliseconds(4999));
    assert_eq!(bench.busy(), [false]);
    bench.pass(milliseconds(1));
    assert_eq!(bench.busy(), [false, true], "one that was not asked gets them");
    assert!(bench.read(client).is_empty());
}

#[test]
fn the_lines_of_earlier_versions_need_not_wait_where_another_worker_runs() {
    let mut bench = Bench::asked(pool(2, Assignment::RoundRobin), None);
    let client = bench.mcp(Era::Legacy);
    bench.write(client, CALL);
    bench.write(client, r#"{"id":2,"method":"tools/call"}"#);
    let other = bench.worker(1);
    assert_eq!(bench.read(other).len(), 2);
}

#[test]
fn a_request_of_2026_07_28_waits_until_the_era_is_known() {
    let mut bench = Bench::asked(pool(2, Assignment::RoundRobin), None);
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    assert!(bench.is_paused(client));
    assert_eq!(bench.busy(), [false, false]);
    bench.pass(seconds(1));
    let row = bench.bus.view().client_row(bench.now, 0).expect("it is connected");
    let shown = row.link.waits_for.map(|it| (it.whom, it.what, it.time));
    assert_eq!(shown, Some((PeerName::Pool(PoolId::at(0)), "a worker", seconds(1))), "show waiting lists it");
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":"stdio-bus/discover/0","result":{}}"#);
    assert_eq!(bench.busy(), [true, false]);
}

#[test]
fn a_request_of_2026_07_28_to_an_earlier_server_is_refused_with_the_versions() {
    let mut bench = Bench::asked(pool(1, Assignment::Client), None);
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    bench.pass(seconds(5));
    let answer = bench.read_json(client);
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32022)));
    let versions = json!(["2025-11-25", "2025-06-18", "2025-03-26"]);
    let data = json!({"reason": "unsupported_protocol_version", "delivered": false, "supported": versions, "requested": "2026-07-28"});
    assert_eq!(answer["error"]["data"], data);
    let worker = bench.worker(0);
    assert!(bench.read(worker).is_empty());
}

#[test]
fn one_worker_serves_clients_of_one_era() {
    for (first, second) in [(Era::Legacy, Era::Modern), (Era::Modern, Era::Legacy)] {
        let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), MODERN);
        let (one, other, again) = (bench.mcp(first), bench.mcp(second), bench.mcp(first));
        bench.write(one, CALL);
        if first == Era::Legacy {
            let asked = bench.worker(0);
            bench.dies(asked);
        }
        assert_eq!((bench.workers.len(), bench.busy()), (1, vec![true]), "one era has one worker");
        bench.write(other, CALL);
        assert_eq!(bench.busy(), [false, true], "the worker for the other one is started");
        bench.write(again, CALL);
        assert_eq!(bench.busy(), [true, false]);
    }
}

#[test]
fn clients_of_other_listeners_are_served_by_workers_for_earlier_versions() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), MODERN);
    let (modern, line) = (bench.mcp(Era::Modern), bench.client());
    bench.write(modern, CALL);
    bench.write(line, CALL);
    assert_eq!((bench.workers.len(), bench.busy()), (2, vec![true, true]));
    bench.write(line, r#"{"id":2,"method":"x","pool":"agents"}"#);
    assert_eq!(bench.busy(), [false, true]);
}

#[test]
fn operators_see_one_pool_and_no_unneeded_worker() {
    let mut bench = Bench::asked(pool(2, Assignment::RoundRobin), MODERN);
    assert_eq!(bench.bus.view().staffing(), (2, 2));
    let (modern, legacy) = (bench.mcp(Era::Modern), bench.mcp(Era::Legacy));
    bench.write(modern, CALL);
    assert_eq!(bench.bus.view().staffing(), (2, 2));
    bench.write(legacy, CALL);
    assert_eq!(bench.bus.view().staffing(), (4, 4));
    let rows = (0..bench.bus.view().worker_slots()).filter_map(|slot| bench.bus.view().worker_row(bench.now, slot));
    let names: Vec<(usize, usize)> = rows.map(|row| (row.name.pool.index(), row.name.place)).collect();
    assert_eq!(names, [(0, 0), (0, 1), (0, 2), (0, 3)]);
    assert!(bench.bus.view().pool_row(1).is_none() && bench.bus.view().pool_readiness(1).is_none());
    assert_eq!(bench.bus.view().pool_row(0).map(|row| row.stats.events(Reason::WorkerStarted)), Some(4));
    let (first, third) = (bench.worker(0), bench.worker(2));
    bench.answers(first);
    bench.answers(third);
    assert_eq!(
        bench.bus.view().pool_row(0).map(|row| row.stats.requests(crate::pool_stats::Outcome::Answered)),
        Some(2)
    );
    assert_eq!(bench.bus.view().worker_at(0, 2).map(Peer::Worker), Some(third));
    bench.dies(third);
    bench.pass(seconds(1));
    let again = bench.bus.view().worker_at(0, 2).expect("its place is filled again");
    assert!(bench.workers.contains(&again) && Peer::Worker(again) != third);
}

#[test]
fn a_worker_of_one_era_that_ends_is_followed_by_one_of_the_same() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), MODERN);
    let (modern, legacy) = (bench.mcp(Era::Modern), bench.mcp(Era::Legacy));
    bench.write(modern, CALL);
    bench.write(legacy, CALL);
    let first = bench.worker(0);
    bench.busy();
    bench.dies(first);
    assert_eq!(bench.read_error(modern).0, "worker_exited");
    assert!(bench.how_closed(modern).is_none());
    bench.pass(seconds(1));
    bench.write(modern, CALL);
    assert_eq!(bench.busy(), [false, true]);
}

#[test]
fn a_pool_is_not_ready_before_the_era_of_its_first_worker_is_known() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), None);
    let is_ready = |bench: &Bench| bench.bus.view().pool_readiness(0).is_some_and(|ready| ready.is_ready());
    bench.pass(seconds(2));
    assert!(!is_ready(&bench) && !bench.bus.view().has_started(bench.now));
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":"stdio-bus/discover/0","result":{}}"#);
    assert!(is_ready(&bench) && bench.bus.view().has_started(bench.now));
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    assert!(is_ready(&bench), "whose worker it is is all the same");
    bench.dies(worker);
    assert!(!is_ready(&bench) && !bench.bus.view().readiness().is_ready());
    bench.pass(seconds(1));
    assert!(is_ready(&bench));
}

#[test]
fn a_client_of_2026_07_28_that_leaves_cancels_its_requests_at_the_worker() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), MODERN);
    let (worker, client, other) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(client, CALL);
    bench.write(other, r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    let requests = bench.read(worker);
    let replaced: Value = serde_json::from_str(&requests[1]).expect("it is JSON");
    bench.leaves(other);
    let cancelled = |id: &Value| {
        let params = json!({"requestId": id, "reason": "the client closed the stream"});
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    };
    assert_eq!(bench.read_json(worker), cancelled(&replaced["id"]), "by the id that the worker knows");
    bench.handle(Input::EndClient { client: key(client), why: Reason::SessionEvicted });
    assert_eq!(bench.read_json(worker), cancelled(&json!(1)));
    assert_eq!((bench.count(Reason::RequestDiscarded), bench.count(Reason::Cancelled)), (0, 2));
    assert_eq!(bench.count(Reason::SessionEvicted), 1, "the reason of the end is reported");
    bench.pass(seconds(7));
    assert_eq!(bench.bus.view().stats().pending, 0, "no answer is waited for");
}

#[test]
fn an_mcp_session_that_ends_cancels_its_requests_and_a_connection_of_lines_does_not() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), LEGACY);
    let (worker, session, line) = (bench.worker(0), bench.mcp(Era::Legacy), bench.client());
    bench.write(session, CALL);
    bench.write(line, r#"{"id":2,"method":"x"}"#);
    bench.read(worker);
    bench.breaks(line);
    assert!(bench.read(worker).is_empty());
    bench.leaves(session);
    assert_eq!(bench.read_json(worker)["method"], "notifications/cancelled");
}

#[test]
fn a_request_that_its_client_has_cancelled_is_cancelled_once() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), MODERN);
    let (worker, client) = (bench.worker(0), bench.mcp(Era::Modern));
    bench.write(client, CALL);
    bench.write(client, r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert_eq!(bench.read(worker).len(), 2);
    bench.leaves(client);
    assert!(bench.read(worker).is_empty());
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"a":1}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

impl Bench {
    /// A worker is sent the beginning of a session again. Returns its id.
    fn is_shown(&mut self, worker: Peer) -> Value {
        let line = self.read_json(worker);
        let shown = json!({"jsonrpc": "2.0", "id": line["id"], "method": "initialize", "params": {"a": 1}});
        assert_eq!(line, shown);
        line["id"].clone()
    }
}

/// Two sessions that have begun with the first worker of a pool.
fn two_sessions(assignment: Assignment, instances: usize) -> (Bench, [Peer; 2]) {
    let mut bench = Bench::asked(pool(instances, assignment), LEGACY);
    let sessions = [bench.mcp(Era::Legacy), bench.mcp(Era::Legacy)];
    let mut before = None;
    for session in sessions {
        bench.write(session, INITIALIZE);
        let at = bench.busy().iter().position(|busy| *busy).expect("one has it");
        let worker = bench.worker(at);
        let id = if before.replace(at) == Some(at) { 2_000_000_000 } else { 7 };
        bench.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        bench.read(session);
    }
    (bench, sessions)
}

#[test]
fn a_worker_that_replaces_one_is_shown_how_a_session_begins_before_its_requests() {
    let (mut bench, [one, two]) = two_sessions(Assignment::Client, 1);
    let old = bench.worker(0);
    bench.write(one, INITIALIZED);
    assert_eq!(bench.read(old), [INITIALIZED], "it has seen that");
    bench.write(two, CALL);
    assert_eq!(bench.read(old), [CALL]);
    bench.dies(old);
    bench.pass(seconds(1));
    bench.read(two);
    bench.write(one, CALL);
    let worker = bench.worker(0);
    let id = bench.is_shown(worker);
    bench.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    assert_eq!(bench.read(worker), [INITIALIZED, CALL]);
    assert!(bench.read(one).is_empty() && bench.count(Reason::UnknownId) + bench.count(Reason::LateAnswer) == 0);
    bench.write(two, r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#);
    assert_eq!(bench.read(worker).len(), 1, "one beginning is enough");
}

#[test]
fn a_worker_that_refuses_how_a_session_begins_is_shown_the_beginning_of_the_next_one() {
    let (mut bench, [one, two]) = two_sessions(Assignment::Client, 1);
    let old = bench.worker(0);
    bench.dies(old);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    for session in [one, two] {
        bench.write(session, r#"{"jsonrpc":"2.0","method":"x"}"#);
        let id = bench.is_shown(worker);
        bench.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32602,"message":"no"}}}}"#));
        assert_eq!(bench.read(worker).len(), 1);
    }
    bench.write(one, INITIALIZE);
    assert_eq!(bench.read(worker), [INITIALIZE], "a session that begins shows it itself");
}

#[test]
fn a_request_of_a_worker_to_a_client_of_2026_07_28_is_refused() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, client) = (bench.worker(0), bench.mcp(Era::Modern));
    bench.write(client, CALL);
    bench.read(worker);
    bench.write(worker, r#"{"jsonrpc":"2.0","id":"w","method":"sampling/createMessage"}"#);
    assert_eq!(bench.read_error(worker), ("server_request".to_owned(), -32600, json!("w")));
    assert_eq!((bench.read(client), bench.count(Reason::ServerRequest)), (vec![], 1));
    bench.write(client, r#"{"jsonrpc":"2.0","id":"w","result":{}}"#);
    assert!(bench.read(worker).is_empty(), "nor does the worker get an answer");
    assert_eq!(bench.count(Reason::UnknownId), 1);
}

#[test]
fn messages_of_a_client_of_an_mcp_listener_go_only_to_its_pool() {
    let pools = vec![pool(1, Assignment::RoundRobin), Pool { id: "tools".into(), ..pool(1, Assignment::RoundRobin) }];
    let mcp = Listener { mcp: true, ..Listener::default() };
    let mut bench = Bench::new(Settings { listeners: vec![Listener::default(), mcp], ..settings(pools) });
    bench.busy();
    bench.pass(seconds(5));
    let client = bench.mcp(Era::Legacy);
    bench.write(client, r#"{"id":1,"method":"x","pool":"tools"}"#);
    assert_eq!(bench.busy(), [false, false, true]);
    assert_eq!(bench.bus.view().worker_at(0, 1).map(Peer::Worker), Some(bench.worker(2)));
}

#[test]
fn the_worker_that_answered_a_client_is_known_and_may_be_preferred() {
    for assignment in [Assignment::RoundRobin, Assignment::Client] {
        let mut bench = Bench::asked(pool(3, assignment), MODERN);
        let (one, two) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern));
        assert_eq!(bench.bus.view().answered_by(key(one)), None);
        bench.write(one, CALL);
        let at = bench.busy().iter().position(|busy| *busy).expect("one has it");
        let worker = bench.worker(at);
        bench.write(worker, r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required"}}"#);
        let answered = bench.bus.view().answered_by(key(one));
        assert_eq!(answered.map(Peer::Worker), Some(worker));
        bench.bus.prefer_worker(key(two), answered);
        for _ in 0..4 {
            bench.write(two, r#"{"jsonrpc":"2.0","method":"x"}"#);
            assert_eq!(bench.read(worker).len(), 1);
        }
        bench.dies(worker);
        bench.write(two, CALL);
        assert!(bench.read(two).is_empty() && bench.busy().contains(&true), "another one serves it then");
    }
}

#[test]
fn sessions_of_a_dedicated_pool_have_their_own_workers() {
    let mut bench = Bench::asked(Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }, MODERN);
    let (one, two) = (bench.mcp(Era::Legacy), bench.mcp(Era::Legacy));
    bench.write(one, CALL);
    bench.write(two, CALL);
    assert_eq!(bench.busy(), [false, true, true, false]);
    let worker = bench.worker(1);
    bench.leaves(one);
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

#[test]
fn a_worker_is_lent_for_the_time_of_a_request() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    bench.write(two, CALL);
    assert!(bench.is_paused(two), "there is one worker, and it is lent");
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    bench.write(worker, note);
    assert_eq!(bench.read_one(one), note, "its messages go to the client that has it");
    bench.answers(worker);
    assert_eq!((bench.read(one).len(), bench.is_paused(two)), (1, false));
    bench.answers(worker);
    assert_eq!(bench.read(two).len(), 1);
    bench.leaves(one);
    bench.leaves(two);
    assert!(bench.stop_actions(worker).is_empty() && bench.bus.view().has_clients().eq(&false));
    bench.write(worker, note);
    assert_eq!(bench.count(Reason::Unroutable), 1, "no client has it now");
}

#[test]
fn a_worker_that_is_lent_during_a_reload_is_lent_for_the_time_of_a_request_still() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    bench.reload(&with_mcp_listener(pool(1, Assignment::Dedicated)));
    bench.answers(worker);
    bench.write(two, CALL);
    bench.answers(worker);
    assert_eq!((bench.read(one).len(), bench.read(two).len()), (1, 1));
}

#[test]
fn no_worker_is_started_to_be_lent_in_the_place_of_one_that_was_taken_out() {
    let mut bench = Bench::asked(Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }, MODERN);
    let (Peer::Worker(out), one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern)) else {
        panic!()
    };
    bench.handle(Input::TakeOutWorker(out));
    bench.dies(out.into());
    bench.write(one, CALL);
    bench.write(two, CALL);
    assert_eq!([one, two].map(|client| bench.is_paused(client)), [false, true], "one place is left");
}

#[test]
fn a_pool_whose_spare_was_taken_out_is_woken_to_lend_another_worker() {
    let idle = seconds(60);
    let lends = Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) };
    let mut bench = Bench::new(with_mcp_listener(Pool { start: Start::OnDemand, idle_stop: Some(idle), ..lends }));
    let client = bench.mcp(Era::Modern);
    bench.write(client, CALL);
    let Peer::Worker(out) = bench.worker(0) else { panic!() };
    let question = bench.read_json(out.into());
    bench.write(out.into(), &format!(r#"{{"id":{},{}}}"#, question["id"], MODERN.unwrap_or_default()));
    bench.answers(out.into());
    bench.handle(Input::TakeOutWorker(out));
    bench.dies(out.into());
    bench.pass(3 * idle);
    assert!(bench.bus.view().is_asleep(0));
    bench.write(client, CALL);
    bench.busy_worker();
    assert!(!bench.bus.view().is_asleep(0));
}

#[test]
fn workers_of_2026_07_28_that_a_pool_has_grown_by_are_forgotten_when_it_no_longer_serves_it() {
    let grows = Pool { max_instances: 3, concurrency: 1, ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::asked(grows.clone(), MODERN);
    let (line, clients) = (bench.client(), [(); 3].map(|()| bench.mcp(Era::Modern)));
    bench.write(line, CALL);
    let legacy = bench.busy_worker();
    bench.write(legacy, r#"{"id":1,"result":{}}"#);
    for client in clients {
        bench.write(client, CALL);
        bench.pass(seconds(1));
    }
    assert!(bench.bus.view().pool_row(0).is_some_and(|row| row.grown > 0));
    bench.reload(&with_mcp_listener(Pool { generation: 1, ..grows }));
    for worker in bench.workers.clone() {
        for line in bench.read(worker.into()) {
            let line: Value = serde_json::from_str(&line).expect("JSON");
            let outcome = if line["method"] == "server/discover" { "error" } else { "result" };
            bench.write(worker.into(), &json!({ "id": line["id"], outcome: {} }).to_string());
        }
    }
    bench.pass(seconds(10));
    assert_eq!(bench.bus.view().pool_era(0), Some(Era::Legacy));
    assert_eq!(bench.bus.view().pool_row(0).map(|row| row.grown), Some(0));
}

#[test]
fn as_many_workers_are_lent_as_there_may_be() {
    let mut bench = Bench::asked(Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }, MODERN);
    let clients: Vec<Peer> = (0..5).map(|_| bench.mcp(Era::Modern)).collect();
    for client in &clients {
        bench.write(*client, CALL);
    }
    assert_eq!((bench.workers.len(), bench.busy()), (3, vec![true; 3]));
    for at in [0, 1] {
        let worker = bench.worker(at);
        bench.write(worker, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(bench.read(worker).len(), 1, "the next one has it");
    }
    assert_eq!(bench.bus.view().staffing(), (3, 3));
}

#[test]
fn workers_beyond_instances_end_after_a_minute_without_use() {
    let mut bench = Bench::asked(Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }, MODERN);
    let clients: Vec<Peer> = (0..3).map(|_| bench.mcp(Era::Modern)).collect();
    for client in &clients {
        bench.write(*client, CALL);
    }
    let workers: Vec<Peer> = (0..3).map(|at| bench.worker(at)).collect();
    for worker in &workers {
        bench.answers(*worker);
    }
    bench.pass(seconds(59));
    bench.write(clients[0], CALL);
    bench.write(clients[1], CALL);
    assert_eq!(bench.busy(), [true, true, false], "those that were there first are lent first");
    bench.pass(seconds(2));
    let stopped = |bench: &Bench| workers.iter().map(|worker| bench.stop_actions(*worker).len()).collect::<Vec<_>>();
    assert_eq!(stopped(&bench), [0, 0, 1]);
    bench.dies(workers[2]);
    assert_eq!((bench.bus.view().staffing(), bench.count(Reason::WorkerExited)), ((2, 2), 0));
    bench.write(clients[2], CALL);
    assert_eq!(bench.workers.len(), 3, "it is started again when it is needed");
    for worker in &workers[..2] {
        bench.write(*worker, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    }
    bench.pass(seconds(61));
    assert_eq!(stopped(&bench), [0, 1, 1], "those that the pool keeps stay");
}

#[test]
fn a_notification_keeps_no_worker() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    bench.write(two, CALL);
    assert_eq!(bench.read(worker).len(), 2);
}

#[test]
fn a_client_that_leaves_returns_its_worker_whose_later_messages_are_dropped() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    bench.write(two, CALL);
    bench.read(worker);
    bench.leaves(one);
    let methods = |lines: Vec<String>| -> Vec<String> {
        let method = |line: String| serde_json::from_str::<Value>(&line).expect("it is JSON")["method"].to_string();
        lines.into_iter().map(method).collect()
    };
    assert_eq!(methods(bench.read(worker)), ["\"notifications/cancelled\"", "\"tools/call\""]);
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    bench.write(worker, note);
    assert_eq!((bench.read(two), bench.count(Reason::Unroutable)), (vec![], 1), "it may be about the other request");
    bench.pass(seconds(7));
    bench.write(worker, note);
    assert_eq!(bench.read_one(two), note);
}

#[test]
fn messages_of_a_lent_worker_about_another_clients_request_are_dropped() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, r#"{"id":5,"method":"subscriptions/listen","params":{"_meta":{"progressToken":"p"}}}"#);
    bench.leaves(one);
    bench.write(two, CALL);
    let of_subscription =
        r#"{"method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":5}}}"#;
    let of_progress = r#"{"method":"notifications/progress","params":{"progressToken":"p","message":"secret"}}"#;
    for wait in [0, 7] {
        bench.pass(seconds(wait));
        bench.write(worker, of_subscription);
        bench.write(worker, of_progress);
        assert_eq!(bench.read(two), Vec::<String>::new(), "after {wait} s");
    }
    assert_eq!(bench.count(Reason::UnknownRequest), 4);
}

#[test]
fn the_end_of_a_lent_worker_is_an_error_and_not_the_end_of_the_connection() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, client) = (bench.worker(0), bench.mcp(Era::Modern));
    bench.write(client, CALL);
    bench.read(worker);
    bench.dies(worker);
    assert_eq!(bench.read_error(client), ("worker_exited".to_owned(), -32011, json!(1)));
    assert!(bench.how_closed(client).is_none());
    bench.pass(seconds(1));
    bench.write(client, CALL);
    let next = bench.worker(0);
    assert_eq!(bench.read_one(next), CALL);
}

#[test]
fn a_client_whose_turn_has_come_continues_when_its_lent_worker_ends() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let (worker, one, two) = (bench.worker(0), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    bench.write(two, CALL);
    bench.wire(two).is_late = true;
    bench.answers(worker);
    bench.dies(worker);
    assert!(bench.how_closed(two).is_none());
    bench.pass(seconds(1));
    bench.wire(two).is_late = false;
    bench.present(two);
    let next = bench.worker(0);
    assert!(!bench.is_paused(two));
    assert_eq!(bench.read_one(next), CALL);
}

#[test]
fn a_continued_request_waits_for_the_worker_that_began_it() {
    let mut bench = Bench::asked(pool(2, Assignment::Dedicated), MODERN);
    let (one, two, three) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    let (first, second) = (bench.worker(0), bench.worker(1));
    bench.answers(first);
    bench.write(two, CALL);
    bench.read_one(first);
    bench.bus.prefer_worker(key(three), bench.bus.view().answered_by(key(one)));
    bench.write(three, CALL);
    assert!(bench.is_paused(three) && bench.read(second).is_empty());
    bench.write(first, r#"{"jsonrpc":"2.0","id":2000000000,"result":{}}"#);
    assert_eq!(bench.read_one(first), CALL.replace(r#""id":1"#, r#""id":2000000001"#));
}

#[test]
fn a_client_that_no_longer_needs_the_worker_it_waits_for_gets_another() {
    let mut bench = Bench::asked(pool(2, Assignment::Dedicated), MODERN);
    let (one, two) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    let (first, second) = (bench.worker(0), bench.worker(1));
    bench.write(one, CALL);
    bench.answers(first);
    bench.write(one, CALL);
    bench.bus.prefer_worker(key(two), bench.bus.view().answered_by(key(one)));
    bench.write(two, CALL);
    assert!(bench.is_paused(two));
    bench.bus.prefer_worker(key(two), None);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.read_one(second), CALL);
}

/// Two clients, each with a worker. The first one waits to continue at that of the other.
fn one_is_to_continue_elsewhere() -> (Bench, [Peer; 2], [Peer; 2]) {
    let mut bench = Bench::asked(pool(2, Assignment::Dedicated), MODERN);
    let (one, two) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    let (first, second) = (bench.worker(0), bench.worker(1));
    bench.write(one, CALL);
    bench.write(two, CALL);
    bench.read(first);
    bench.answers(second);
    bench.bus.prefer_worker(key(one), bench.bus.view().answered_by(key(two)));
    bench.write(one, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#);
    (bench, [one, two], [first, second])
}

#[test]
fn a_client_that_continues_elsewhere_returns_its_worker_first() {
    let (mut bench, [one, two], [first, second]) = one_is_to_continue_elsewhere();
    assert!(bench.is_paused(one) && bench.read(second).is_empty(), "it has one of its own");
    bench.write(first, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!(bench.read(second).len(), 1);
    bench.write(two, CALL);
    assert_eq!(bench.read(first).len(), 1, "it is free again");
}

#[test]
fn a_client_that_need_not_continue_elsewhere_continues_at_its_own_worker() {
    let (mut bench, [one, _], [first, _]) = one_is_to_continue_elsewhere();
    assert!(bench.is_paused(one));
    bench.bus.prefer_worker(key(one), None);
    bench.pass(Duration::ZERO);
    assert!(!bench.is_paused(one));
    assert_eq!(bench.read(first).len(), 1);
}

#[test]
fn a_continued_request_gets_another_worker_if_the_one_that_began_it_ends() {
    let mut bench = Bench::asked(pool(2, Assignment::Dedicated), MODERN);
    let (one, two, three) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    let (first, second) = (bench.worker(0), bench.worker(1));
    bench.answers(first);
    bench.write(two, CALL);
    bench.bus.prefer_worker(key(three), bench.bus.view().answered_by(key(one)));
    bench.write(three, CALL);
    assert!(bench.is_paused(three));
    bench.dies(first);
    assert_eq!(bench.read_one(second), CALL);
}

#[test]
fn no_client_reaches_a_pool_that_its_listener_or_its_token_does_not_offer() {
    let pools = vec![pool(1, Assignment::RoundRobin), Pool { id: "tools".into(), ..pool(1, Assignment::RoundRobin) }];
    let mcp = Listener { mcp: true, pools: Some(places(&[1])), ..Listener::default() };
    let mut bench = Bench::new(Settings { listeners: vec![Listener::default(), mcp], ..settings(pools) });
    let mut comes = |pool: usize, pools: Option<Vec<usize>>| {
        let origin = Origin { pools: pools.map(|pools| places(&pools).into()), ..Origin::from(Source::User(1)) };
        let (client, effects) = bench.bus.connect_mcp(bench.now, 1, origin, pool, Era::Modern);
        effects.for_each(drop);
        client.is_some()
    };
    assert_eq!([comes(0, None), comes(1, None), comes(2, None), comes(1, Some(vec![0]))], [false, true, false, false]);
}

#[test]
fn clients_of_2026_07_28_connect_and_leave_without_a_log_line() {
    let mut bench = Bench::asked(pool(1, Assignment::RoundRobin), MODERN);
    for _ in 0..2000 {
        let client = bench.mcp(Era::Modern);
        bench.leaves(client);
    }
    bench.pass(seconds(20));
    let loud = |report: &&Report| matches!(report.reason, Reason::ClientOpened | Reason::ClientClosed);
    let loud = bench.reports.iter().filter(loud).filter(|report| report.level > Level::Debug).count();
    assert_eq!((loud, bench.count(Reason::ClientOpened), bench.count(Reason::ClientClosed)), (0, 2000, 2000));
    bench.client();
    assert_eq!(
        bench.reports.last().map(|report| (report.reason, report.level)),
        Some((Reason::ClientOpened, Level::Info))
    );
}

#[test]
fn an_mcp_session_is_not_evicted_for_other_clients() {
    let mut settings = with_mcp_listener(pool(1, Assignment::RoundRobin));
    settings.most_clients = 2;
    settings.listeners[1].idle_timeout = Some(seconds(1));
    let mut bench = Bench::new(settings);
    let (one, two) = (bench.mcp(Era::Legacy), bench.mcp(Era::Legacy));
    bench.pass(seconds(60));
    assert_eq!((bench.how_closed(one), bench.how_closed(two)), (None, None));
}

#[test]
fn a_worker_that_may_work_for_another_client_is_lent_only_if_no_more_may_be_started() {
    let mut bench = Bench::asked(Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }, MODERN);
    let (one, two, three) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, CALL);
    bench.leaves(one);
    bench.write(two, CALL);
    assert_eq!(bench.workers.len(), 2, "the first one may still work on what was cancelled");
    let first = bench.worker(0);
    bench.read(first);
    bench.write(three, CALL);
    assert_eq!(bench.read(first).len(), 1, "there may be no more");
}
