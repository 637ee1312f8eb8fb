//! Messages of workers that name neither a session nor a request.

use super::*;

const NOTE: &str = r#"{"method":"notifications/message","params":{"data":"x"}}"#;
const CHANGED: &str = r#"{"method":"notifications/tools/list_changed"}"#;
const ASK: &str = r#"{"id":0,"method":"sampling/createMessage","params":{}}"#;

fn bench_of(assignment: Assignment, workers: usize) -> Bench {
    Bench::new(settings(vec![pool(workers, assignment)]))
}

#[test]
fn a_message_without_a_session_reaches_the_only_client_that_the_worker_has_served() {
    for assignment in [Assignment::RoundRobin, Assignment::Client] {
        let mut bench = bench_of(assignment, 2);
        let (first, second) = (bench.client(), bench.client());
        bench.write(first, r#"{"id":0,"method":"initialize"}"#);
        bench.write(second, r#"{"id":0,"method":"initialize"}"#);
        for (client, at) in [(first, 0), (second, 1)] {
            let worker = bench.worker(at);
            bench.read(worker);
            for line in [NOTE, ASK] {
                bench.write(worker, line);
                assert_eq!(bench.read_one(client), line);
            }
            bench.write(client, r#"{"id":0,"result":{"roots":[]}}"#);
            assert_eq!(bench.read_one(worker), r#"{"id":0,"result":{"roots":[]}}"#);
        }
    }
}

#[test]
fn an_unused_worker_reaches_the_only_client() {
    let mut bench = bench(2);
    let worker = bench.worker(1);
    bench.write(worker, NOTE);
    assert_eq!(bench.count(Reason::Unroutable), 1, "no client is connected");
    let client = bench.client();
    bench.write(worker, NOTE);
    assert_eq!(bench.read_one(client), NOTE);
    bench.client();
    bench.write(worker, NOTE);
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::Unroutable), 2, "it may be for the other one");
}

#[test]
fn the_error_of_a_worker_that_has_served_two_clients_suggests_a_dedicated_pool() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":0,"method":"initialize"}"#);
    bench.write(second, r#"{"method":"notifications/initialized"}"#);
    bench.read(worker);
    bench.write(worker, ASK);
    let answer = bench.read_json(worker);
    assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&Value::from(0), &Value::from("unroutable")));
    let text = answer["error"]["message"].as_str().expect("an error says what is wrong");
    assert!(text.starts_with(r#""sampling/createMessage" names no session"#), "{text}");
    assert!(text.contains(r#"pool "agents" "assignment": "dedicated""#), "{text}");
    bench.write(worker, NOTE);
    let report = bench.reports.last().expect("a loss is report");
    assert!(report.reason == Reason::Unroutable && report.text.contains("dedicated"), "{report:?}");
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
}

#[test]
fn messages_for_a_client_that_has_left_reach_no_other() {
    let mut bench = bench(1);
    let (first, worker) = (bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":0,"method":"resources/subscribe"}"#);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.breaks(first);
    bench.gone(first);
    let next = bench.client();
    bench.write(worker, NOTE);
    assert!(bench.read(next).is_empty(), "it may be of what the first one has subscribed to");
    bench.write(next, r#"{"id":0,"method":"initialize"}"#);
    bench.write(worker, NOTE);
    assert!(bench.read(next).is_empty());
    assert_eq!(bench.count(Reason::UnknownSession) + bench.count(Reason::Unroutable), 2);
    // Its successor knows no client.
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    bench.write(next, r#"{"id":1,"method":"initialize"}"#);
    bench.read(next);
    bench.write(worker, NOTE);
    assert_eq!(bench.read_one(next), NOTE);
}

#[test]
fn a_client_that_answers_an_unused_worker_has_used_it() {
    let mut bench = bench(1);
    let (first, worker) = (bench.client(), bench.worker(0));
    bench.write(worker, ASK);
    bench.read_one(first);
    bench.write(first, r#"{"id":0,"result":{"roots":["/home/first"]}}"#);
    bench.read(worker);
    let second = bench.client();
    bench.write(second, r#"{"id":0,"method":"initialize"}"#);
    bench.write(worker, NOTE);
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
}

#[test]
fn the_completion_of_an_elicitation_reaches_the_client_that_was_asked() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for (client, id) in [(first, 1), (second, 2)] {
        bench.write(client, &format!(r#"{{"id":{id},"method":"session/prompt","params":{{"sessionId":"s{id}"}}}}"#));
        let question = r#"{"id":ID,"method":"elicitation/create","params":{"mode":"url","elicitationId":"eID","sessionId":"sID"}}"#;
        let question = question.replace("ID", &id.to_string()).replace(&format!("elicitation{id}"), "elicitationId");
        let question = question.replace(&format!("session{id}"), "sessionId");
        bench.write(worker, &question);
        assert_eq!(bench.read_one(client), question);
    }
    for (client, id, method) in
        [(second, "e2", "elicitation/complete"), (first, "e1", "notifications/elicitation/complete")]
    {
        let line = format!(r#"{{"method":"{method}","params":{{"elicitationId":"{id}"}}}}"#);
        bench.write(worker, &line);
        assert_eq!(bench.read_one(client), line);
    }
    bench.write(worker, r#"{"method":"elicitation/complete","params":{"elicitationId":"e3"}}"#);
    assert_eq!(bench.count(Reason::Unroutable), 1);
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
}

#[test]
fn only_the_last_elicitations_of_a_worker_are_remembered() {
    let mut bench = bench(1);
    let (client, _, worker) = (bench.client(), bench.client(), bench.worker(0));
    let other = bench.client();
    bench.write(other, r#"{"method":"hello"}"#);
    bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    for id in 0..65 {
        let question = format!(
            r#"{{"id":{id},"method":"elicitation/create","params":{{"elicitationId":"e{id}","sessionId":"s"}}}}"#
        );
        bench.write(worker, &question);
    }
    bench.read(client);
    bench.write(worker, r#"{"method":"elicitation/complete","params":{"elicitationId":"e0"}}"#);
    assert_eq!(bench.count(Reason::Unroutable), 1);
    bench.write(worker, r#"{"method":"elicitation/complete","params":{"elicitationId":"e1"}}"#);
    assert_eq!(bench.read(client).len(), 1);
}

#[test]
fn a_spare_of_a_dedicated_pool_has_no_addressee() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (client, spare) = (bench.client(), bench.worker(0));
    bench.write(spare, NOTE);
    bench.write(client, r#"{"id":0,"method":"initialize"}"#);
    let (own, spare) = (spare, bench.worker(1));
    bench.write(spare, NOTE);
    assert_eq!((bench.read(client).len(), bench.count(Reason::Unroutable)), (0, 2), "it has a worker of its own");
    bench.write(own, NOTE);
    assert_eq!(bench.read_one(client), NOTE);
}

#[test]
fn only_a_client_that_may_use_a_worker_is_the_only_one_that_it_may_mean() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![of("a"), of("b")]));
    let origin = Origin { pools: Some(places(&[1]).into()), ..Origin::default() };
    let stranger = Peer::Client(bench.connect(0, origin).expect("there is room"));
    let worker = bench.worker(0);
    bench.write(worker, NOTE);
    assert_eq!((bench.read(stranger).len(), bench.count(Reason::Unroutable)), (0, 1), "it has no token for this pool");
    let check = Origin { is_proxy: true, ..Origin::default() };
    let check = Peer::Client(bench.connect(0, check).expect("there is room"));
    bench.write(worker, NOTE);
    assert_eq!((bench.read(check).len(), bench.count(Reason::Unroutable)), (0, 2), "a proxy asks for its own sake");
    let client = bench.client();
    bench.write(worker, NOTE);
    assert_eq!((bench.read_one(client).as_str(), bench.count(Reason::Unroutable)), (NOTE, 2));
}

/// A worker's request for elicitation `e` in session `session`.
fn elicits(id: usize, session: &str) -> String {
    format!(r#"{{"id":{id},"method":"elicitation/create","params":{{"elicitationId":"e","sessionId":"{session}"}}}}"#)
}

/// A client sends a request in a session, and the worker's elicitation there has the same id for all of them.
fn is_elicited(bench: &mut Bench, id: usize, client: Peer, worker: Peer) {
    bench.write(client, &format!(r#"{{"id":{id},"method":"session/prompt","params":{{"sessionId":"s{id}"}}}}"#));
    bench.write(worker, &elicits(id, &format!("s{id}")));
    bench.read_one(client);
}

const COMPLETE: &str = r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#;

#[test]
fn an_elicitation_of_two_clients_at_once_is_complete_for_neither() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for (id, client) in [(1, first), (2, second)] {
        is_elicited(&mut bench, id, client, worker);
    }
    bench.write(worker, COMPLETE);
    assert_eq!((bench.read(first).len(), bench.read(second).len(), bench.count(Reason::Unroutable)), (0, 0, 1));
}

#[test]
fn an_elicitation_that_is_complete_leaves_its_id_to_others() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for (id, client) in [(1, first), (2, second)] {
        is_elicited(&mut bench, id, client, worker);
        bench.write(worker, COMPLETE);
        assert_eq!(bench.read_one(client), COMPLETE);
    }
    bench.write(worker, COMPLETE);
    assert_eq!(bench.count(Reason::Unroutable), 1, "it is complete already");
}

/// Two clients that have used one worker, and one that has not.
fn served() -> (Bench, [Peer; 3], Peer) {
    let mut bench = bench(1);
    let (clients, worker) = ([bench.client(), bench.client(), bench.client()], bench.worker(0));
    for client in &clients[..2] {
        bench.write(*client, r#"{"method":"notifications/initialized"}"#);
    }
    bench.read(worker);
    (bench, clients, worker)
}

#[test]
fn a_list_change_is_broadcast_to_the_connected_clients_that_the_worker_has_served() {
    let (mut bench, [first, second, other], worker) = served();
    for list in ["tools", "prompts", "resources"] {
        let changed = CHANGED.replace("tools", list);
        bench.write(worker, &changed);
        for client in [first, second] {
            assert_eq!(bench.read_one(client), changed);
        }
    }
    bench.breaks(first);
    bench.gone(first);
    // A new one may get the slot of one that has left.
    let new = bench.client();
    bench.write(worker, CHANGED);
    assert_eq!(bench.read_one(second), CHANGED);
    assert!(bench.read(other).is_empty() && bench.read(new).is_empty());
    bench.write(other, r#"{"id":1,"method":"tools/list"}"#);
    bench.write(worker, CHANGED);
    for client in [second, other] {
        assert_eq!(bench.read_one(client), CHANGED);
    }
    assert_eq!(bench.count(Reason::Unroutable), 0);
    bench.breaks(second);
    bench.gone(second);
    bench.breaks(other);
    bench.gone(other);
    bench.write(worker, CHANGED);
    assert_eq!(bench.count(Reason::Unroutable), 1, "no client is connected");
    assert!(bench.read(new).is_empty());
}

#[test]
fn a_client_with_an_unread_list_change_is_not_notified_again() {
    let (mut bench, [first, second, _], worker) = served();
    bench.stalls(first);
    let other = CHANGED.replace("tools", "prompts");
    for line in [CHANGED, CHANGED, &other, CHANGED, &other] {
        bench.write(worker, line);
    }
    assert_eq!(bench.read(first), [CHANGED, &other]);
    assert_eq!(bench.read(second), [CHANGED, CHANGED, &other, CHANGED, &other]);
    // Half of the first one was sent.
    bench.takes(first, CHANGED.len() / 2);
    bench.write(worker, CHANGED);
    assert!(bench.read(first).is_empty());
    bench.takes(first, CHANGED.len() + 1 - CHANGED.len() / 2);
    for line in [CHANGED, CHANGED, &other] {
        bench.write(worker, line);
    }
    assert_eq!(bench.read_one(first), CHANGED);
}

#[test]
fn a_client_that_reads_nothing_does_not_delay_a_list_change_for_others() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_output_queue = 10;
    let mut bench = Bench::new(settings);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for client in [first, second] {
        bench.write(client, r#"{"method":"notifications/initialized"}"#);
    }
    bench.stalls(first);
    for list in ["tools", "prompts", "tools", "resources"] {
        bench.write(worker, &CHANGED.replace("tools", list));
    }
    assert_eq!((bench.read(first).len(), bench.read(second).len()), (3, 4));
    assert!(!bench.is_paused(worker));
}

#[test]
fn only_messages_without_content_are_broadcast() {
    let (mut bench, [first, second, _], worker) = served();
    for line in [
        NOTE.to_owned(),
        r#"{"method":"notifications/resources/updated","params":{"uri":"file:///a"}}"#.into(),
        r#"{"method":"notifications/roots/list_changed"}"#.into(),
        CHANGED.replace('}', &format!(r#","params":{{"x":"{}"}}}}"#, "x".repeat(1000))),
    ] {
        bench.write(worker, &line);
    }
    bench.write(worker, &CHANGED.replace('{', r#"{"id":1,"#));
    assert_eq!(bench.count(Reason::Unroutable), 5);
    assert!(bench.read(first).is_empty() && bench.read(second).is_empty());
}

/// A client with a token of this name, if any, that has used the worker.
fn named(bench: &mut Bench, name: Option<&str>) -> Peer {
    let mut origin = Origin::from(Source::Inherited);
    origin.names.token = name.map(Into::into);
    let client = Peer::Client(bench.connect(0, origin).expect("there is room"));
    bench.write(client, r#"{"method":"initialized"}"#);
    client
}

#[test]
fn a_login_state_is_sent_to_all_clients_of_a_worker_only_if_they_are_known_to_be_one_user() {
    // The second is what codex-acp 2.6 and claude-agent-acp 0.101 send.
    const STATUSES: [&str; 2] = [
        r#"{"method":"auth/status_update","params":{"status":"authenticated","account":"alice"}}"#,
        r#"{"method":"_auth/status_update","params":{"status":"authenticated","account":"alice"}}"#,
    ];
    for (names, is_told, status) in [
        ([Some("alice"), Some("alice"), Some("alice")], true, STATUSES[0]),
        ([Some("alice"), Some("alice"), Some("alice")], true, STATUSES[1]),
        ([Some("alice"), Some("bob"), Some("alice")], false, STATUSES[0]),
        ([Some("alice"), Some("bob"), Some("alice")], false, STATUSES[1]),
        ([None, None, None], false, STATUSES[0]),
        ([Some("alice"), Some("alice"), None], false, STATUSES[0]),
        ([None, Some("alice"), Some("alice")], false, STATUSES[0]),
    ] {
        let mut bench = bench(1);
        let clients = names.map(|name| named(&mut bench, name));
        let worker = bench.worker(0);
        bench.write(worker, status);
        for client in clients {
            assert_eq!(bench.read(client).len(), usize::from(is_told), "{names:?}");
        }
        assert_eq!(bench.count(Reason::Unroutable), u64::from(!is_told));
        if !is_told {
            let text = &bench.reports.last().expect("a loss is reported").text;
            let remedies = ["auth/status_update\"", "tokens", r#"pool "agents" "assignment": "dedicated""#];
            assert!(remedies.iter().all(|remedy| text.contains(remedy)), "{text}");
        }
        // A client that is another user is remembered after it has left.
        for client in &clients[1..] {
            bench.breaks(*client);
            bench.gone(*client);
        }
        bench.write(worker, status);
        assert_eq!(bench.read(clients[0]).len(), usize::from(is_told), "{names:?}");
    }
    let mut bench = bench_of(Assignment::Dedicated, 2);
    let (first, second) = (named(&mut bench, None), named(&mut bench, None));
    for (client, worker) in [(first, bench.worker(0)), (second, bench.worker(1))] {
        bench.write(worker, STATUSES[0]);
        assert_eq!(bench.read_one(client), STATUSES[0]);
    }
}

#[test]
fn a_login_state_waits_for_a_client_that_is_full() {
    const STATUS: &str = r#"{"method":"auth/status_update","params":{}}"#;
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_output_queue = 10;
    let mut bench = Bench::new(settings);
    let (first, second) = (named(&mut bench, Some("alice")), named(&mut bench, Some("alice")));
    let worker = bench.worker(0);
    bench.stalls(first);
    bench.write(worker, STATUS);
    bench.write(worker, STATUS);
    assert_eq!((bench.read(first).len(), bench.read(second).len()), (1, 1));
    assert!(bench.is_paused(worker));
    bench.takes(first, usize::MAX);
    assert_eq!((bench.read(first).len(), bench.read(second).len()), (1, 1));
}
