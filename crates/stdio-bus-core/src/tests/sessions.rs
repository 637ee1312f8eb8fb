//! Sessions: the owner, the worker, and which clients may use it (spec 3.4, 6.1; decisions 1, 3).

use super::*;

#[test]
fn a_second_session_of_the_same_name_is_found_when_the_first_one_is_closed() {
    let mut both = settings(vec![
        Pool { id: "left".into(), ..pool(1, Assignment::RoundRobin) },
        Pool { id: "right".into(), ..pool(1, Assignment::RoundRobin) },
    ]);
    both.listeners[0].pool = Some(PoolId::at(0));
    let mut bench = Bench::new(both);
    let (client, left, right) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s","pool":"right"}"#);
    bench.write(client, r#"{"id":3,"method":"session/close","sessionId":"s"}"#);
    assert_eq!(bench.read(left).len(), 2);
    bench.read_one(right);
    bench.write(left, r#"{"id":3,"result":{}}"#);
    bench.write(client, r#"{"id":4,"method":"x","sessionId":"s"}"#);
    bench.read_one(right);
}

#[test]
fn a_client_of_acp_gets_the_agents_code_for_a_session_that_it_does_not_have_and_may_load_it() {
    for greets in [false, true] {
        let mut bench = bench(1);
        let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
        if greets {
            bench.write(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
            bench.write(worker, r#"{"id":0,"result":{"protocolVersion":1}}"#);
        }
        bench.write(client, r#"{"id":1,"method":"session/new"}"#);
        bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
        for (name, method) in
            [("s", "session/prompt"), ("x", "session/prompt"), ("x", "session/delete"), ("x", "session/close")]
        {
            bench.read(other);
            bench.write(other, &format!(r#"{{"id":2,"method":"{method}","params":{{"sessionId":"{name}"}}}}"#));
            let error = bench.read_json(other)["error"].take();
            assert_eq!(error["code"], if greets { -32002 } else { -32014 }, "{error}");
            assert_eq!(error["data"], json!({ "reason": "session_denied", "delivered": false }));
            assert!(error["message"].as_str().unwrap().contains("load it first"), "of a stranger's and an unknown one");
        }
    }
}

#[test]
fn a_session_of_the_own_list_is_deleted_and_closed_once_it_is_loaded_and_at_once_on_an_own_worker() {
    for assignment in [Assignment::Client, Assignment::Dedicated] {
        let mut bench = Bench::new(settings(vec![pool(1, assignment)]));
        let (client, worker) = (bench.client(), bench.worker(0));
        let asks = |bench: &mut Bench, method: &str, name: &str| {
            bench.write(client, &format!(r#"{{"id":1,"method":"{method}","params":{{"sessionId":"{name}"}}}}"#));
            let has_come = !bench.read(worker).is_empty();
            if has_come {
                bench.write(worker, r#"{"id":1,"result":{}}"#);
            }
            (has_come, bench.read_json(client)["error"]["message"].as_str().unwrap_or("").to_owned())
        };
        bench.write(client, r#"{"id":0,"method":"session/new"}"#);
        bench.write(worker, r#"{"id":0,"result":{"sessionId":"new"}}"#);
        bench.write(client, r#"{"id":1,"method":"session/list"}"#);
        bench.write(worker, r#"{"id":1,"result":{"sessions":[{"sessionId":"a"},{"sessionId":"b"}]}}"#);
        bench.read(worker);
        bench.read(client);
        for (method, name) in [("session/delete", "a"), ("session/close", "b")] {
            let (has_come, error) = asks(&mut bench, method, name);
            let is_own = assignment == Assignment::Dedicated;
            assert_eq!((has_come, error.contains("load it first (session/load)")), (is_own, !is_own), "{error}");
            if !is_own {
                assert!(asks(&mut bench, "session/load", name).0);
                assert_eq!(asks(&mut bench, method, name), (true, String::new()), "{method}");
            }
        }
    }
}

#[test]
fn after_a_crash_clients_of_acp_get_the_agents_code_for_sessions_that_are_gone_before_anyone_has_greeted_the_next_worker()
 {
    let mut bench = bench(1);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    bench.write(worker, r#"{"id":0,"result":{"protocolVersion":1}}"#);
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    for (asker, expected) in [(client, "session_lost"), (other, "session_denied")] {
        bench.write(asker, PROMPT);
        let error = bench.read_json(asker)["error"].take();
        assert_eq!(
            (&error["code"], &error["data"]["reason"]),
            (&Value::from(-32002), &Value::from(expected)),
            "{error}"
        );
    }
    assert!(bench.read(worker).is_empty(), "nobody has greeted it");
}

#[test]
fn a_message_that_waits_for_its_worker_makes_no_session_yet() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 100;
    let mut bench = Bench::new(small);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "x".repeat(100)));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    assert!(bench.is_paused(client));
    assert_eq!(bench.bus.view().stats().sessions, 0);
    bench.takes(worker, 1000);
    assert_eq!(bench.bus.view().stats().sessions, 1);
}

#[test]
fn the_first_use_of_a_session_chooses_its_worker_in_turn_and_its_owner() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"a"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"b"}"#);
    assert_eq!((bench.read(first).len(), bench.read(second).len()), (1, 1));
    assert_eq!(bench.bus.view().stats().sessions, 2);
    bench.write(second, r#"{"method":"update","sessionId":"b"}"#);
    bench.write(second, r#"{"method":"update","sessionId":"a"}"#);
    assert_eq!(bench.read_one(client), r#"{"method":"update","sessionId":"b"}"#, "a lives on the first one");
}

#[test]
fn all_messages_of_a_session_go_to_its_worker() {
    let mut bench = bench(3);
    let (client, first) = (bench.client(), bench.worker(0));
    for id in 0..10 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x","sessionId":"s"}}"#));
        bench.write(client, r#"{"method":"session/cancel","params":{"sessionId":"s"}}"#);
    }
    assert_eq!(bench.read(first).len(), 20);
}

#[test]
fn a_session_is_learned_from_the_answer_that_makes_it() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":0,"method":"session/new","params":{}}"#);
    bench.write(client, r#"{"id":1,"method":"session/new","params":{}}"#);
    bench.write(second, r#"{"id":1,"result":{"sessionId":"made"}}"#);
    bench.read(first);
    bench.read(second);
    for at in 2..6 {
        bench.write(client, &format!(r#"{{"id":{at},"method":"session/prompt","params":{{"sessionId":"made"}}}}"#));
    }
    assert_eq!((bench.read(first).len(), bench.read(second).len()), (0, 4));
}

#[test]
fn two_workers_may_give_out_the_same_name() {
    let mut bench = bench(2);
    let (left, right) = (bench.client(), bench.client());
    let (first, second) = (bench.worker(0), bench.worker(1));
    bench.write(left, r#"{"id":0,"method":"session/new"}"#);
    bench.write(right, r#"{"id":0,"method":"session/new"}"#);
    bench.write(first, r#"{"id":0,"result":{"sessionId":"0"}}"#);
    bench.write(second, r#"{"id":0,"result":{"sessionId":"0"}}"#);
    for peer in [left, right, first, second] {
        bench.read(peer);
    }
    for (client, worker) in [(left, first), (right, second)] {
        bench.write(client, r#"{"id":1,"method":"session/prompt","params":{"sessionId":"0"}}"#);
        assert_eq!(bench.read(worker).len(), 1);
        bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"0"}}"#);
        assert_eq!(bench.read(client).len(), 1);
    }
}

#[test]
fn a_session_of_another_client_is_refused_without_revealing_its_owner() {
    let mut bench = bench(2);
    let (owner, other) = (bench.client(), bench.client());
    bench.write(owner, r#"{"id":1,"method":"x","sessionId":"mine"}"#);
    for at in 0..2 {
        let worker = bench.worker(at);
        bench.read(worker);
    }
    bench.write(other, r#"{"id":7,"method":"x","sessionId":"mine"}"#);
    bench.write(other, r#"{"method":"session/cancel","params":{"sessionId":"mine"}}"#);
    let (reason, code, id) = bench.read_error(other);
    assert_eq!((reason.as_str(), code, id), ("session_denied", -32014, Value::from(7)));
    for at in 0..2 {
        let worker = bench.worker(at);
        assert!(bench.read(worker).is_empty());
    }
    assert_eq!(bench.count(Reason::SessionDenied), 2);
}

#[test]
fn with_shared_access_every_client_may_use_a_session_and_its_owner_stays() {
    let mut shared = settings(vec![pool(2, Assignment::RoundRobin)]);
    shared.routing.session_access = SessionAccess::Shared;
    let mut bench = Bench::new(shared);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"x","sessionId":"ours"}"#);
    bench.write(other, r#"{"id":2,"method":"x","sessionId":"ours"}"#);
    assert_eq!(bench.read(worker).len(), 2);
    bench.write(worker, r#"{"id":2,"result":1}"#);
    bench.write(worker, r#"{"method":"update","sessionId":"ours"}"#);
    assert_eq!(bench.read_one(other), r#"{"id":2,"result":1}"#);
    assert_eq!(bench.read_one(owner), r#"{"method":"update","sessionId":"ours"}"#);
}

#[test]
fn shared_sessions_may_lead_to_one_of_the_senders_own_in_any_pool() {
    let named = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut shared = settings(vec![named("a"), named("b")]);
    shared.routing.session_access = SessionAccess::Shared;
    shared.listeners[0].pool = Some(PoolId::at(0));
    let mut bench = Bench::new(shared);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(1));
    bench.write(owner, r#"{"method":"x","pool":"b","sessionId":"theirs"}"#);
    bench.write(other, r#"{"method":"x","pool":"b","sessionId":"mine"}"#);
    assert_eq!(bench.read(worker).len(), 2);
    let both = r#"{"method":"x","sessionId":"theirs","params":{"sessionId":"mine"}}"#;
    bench.write(other, both);
    assert_eq!(bench.read_one(worker), both);
}

#[test]
fn with_shared_access_a_claim_lives_as_long_as_any_client_uses_the_session() {
    let mut shared = settings(vec![pool(2, Assignment::RoundRobin)]);
    shared.routing.session_access = SessionAccess::Shared;
    let mut bench = Bench::new(shared);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    for name in ["first", "second"] {
        bench.write(owner, &format!(r#"{{"method":"x","sessionId":"{name}","params":{{"sessionId":"first"}}}}"#));
    }
    bench.pass(seconds(59));
    bench.write(other, r#"{"method":"x","sessionId":"first","params":{"sessionId":"second"}}"#);
    bench.pass(seconds(59));
    assert_eq!((bench.bus.view().stats().sessions, bench.count(Reason::ClaimExpired)), (2, 0));
    bench.write(worker, r#"{"method":"update","sessionId":"second"}"#);
    assert_eq!(bench.read_one(owner), r#"{"method":"update","sessionId":"second"}"#);
}

#[test]
fn a_name_that_was_squatted_belongs_to_the_client_that_the_worker_gives_it_to() {
    let mut bench = bench(1);
    let (squatter, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(squatter, r#"{"id":1,"method":"x","sessionId":"0"}"#);
    bench.write(client, r#"{"id":2,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":2,"result":{"sessionId":"0"}}"#);
    bench.read(client);
    bench.write(worker, r#"{"method":"update","params":{"sessionId":"0","secret":true}}"#);
    assert!(bench.read(squatter).is_empty());
    assert_eq!(bench.read(client).len(), 1);
    bench.write(squatter, r#"{"id":3,"method":"x","sessionId":"0"}"#);
    assert_eq!(bench.read_error(squatter).0, "session_denied");
}

#[test]
fn a_session_that_the_worker_has_confirmed_is_not_taken_away() {
    let mut bench = bench(1);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"0"}}"#);
    bench.write(other, r#"{"id":2,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":2,"result":{"sessionId":"0"}}"#);
    bench.read(owner);
    bench.write(worker, r#"{"method":"update","sessionId":"0"}"#);
    assert_eq!(bench.read(owner).len(), 1);
    assert_eq!(bench.count(Reason::SessionReused), 1);
}

#[test]
fn a_session_ends_when_it_is_closed_when_its_owner_leaves_and_when_its_worker_exits() {
    let mut bench = bench(1);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(owner, r#"{"id":2,"method":"session/close","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":2,"error":{"code":1,"message":"busy"}}"#);
    assert_eq!(bench.bus.view().stats().sessions, 1, "it was not closed");
    bench.write(owner, r#"{"id":3,"method":"session/close","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":3,"result":{}}"#);
    assert_eq!(bench.bus.view().stats().sessions, 0);
    bench.write(owner, r#"{"id":4,"method":"x","sessionId":"s"}"#);
    bench.breaks(owner);
    assert_eq!(bench.bus.view().stats().sessions, 0);
    bench.write(other, r#"{"id":5,"method":"x","sessionId":"s"}"#);
    assert_eq!(bench.read_error(other).0, "session_denied", "the worker has still to do for its owner");
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.write(worker, r#"{"id":4,"result":1}"#);
    bench.write(other, r#"{"id":5,"method":"x","sessionId":"s"}"#);
    assert_eq!(bench.bus.view().stats().sessions, 1, "the name is free for others");
    bench.dies(worker);
    assert_eq!(bench.bus.view().stats().sessions, 0);
}

#[test]
fn a_refused_load_takes_no_claim_away() {
    let mut bench = bench(1);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":1,"error":{"code":1,"message":"busy"}}"#);
    for name in ["s", "new"] {
        bench.write(owner, &format!(r#"{{"id":2,"method":"session/load","params":{{"sessionId":"{name}"}}}}"#));
        bench.write(worker, r#"{"id":2,"error":{"code":-32002,"message":"no such session"}}"#);
        assert_eq!(bench.bus.view().stats().sessions, 1, "{name}");
    }
    bench.write(other, r#"{"id":3,"method":"x","sessionId":"s"}"#);
    assert_eq!(bench.read_error(other).0, "session_denied");
    bench.write(other, r#"{"id":4,"method":"x","sessionId":"new"}"#);
    assert_eq!(bench.read(worker).len(), 4, "a refused name has no owner");
}

#[test]
fn nothing_else_is_asked_in_a_session_before_the_worker_has_loaded_it() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/load","params":{"sessionId":"s"}}"#);
    bench.write(client, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    assert_eq!((bench.read_error(client).0.as_str(), bench.count(Reason::SessionDenied)), ("session_denied", 2));
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":1,"result":null}"#);
    assert_eq!(
        (bench.read(worker).len(), bench.read(client).len()),
        (1, 2),
        "the replay is sent to the client that loads it"
    );
    bench.write(client, r#"{"id":3,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn a_session_on_a_worker_that_is_ending_is_not_moved_to_another_one() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.read(first);
    bench.breaks(first);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s"}"#);
    let (reason, code, id) = bench.read_error(client);
    assert_eq!((reason.as_str(), code, id), ("worker_exited", -32011, Value::from(2)));
    assert!(bench.read(second).is_empty());
}

#[test]
fn equal_session_names_of_one_client_on_two_workers_are_reported_once() {
    let mut bench = bench(2);
    let client = bench.client();
    for (id, name) in [(0, "1"), (2, "2")] {
        for at in 0..2 {
            let id = id + at;
            bench.write(client, &format!(r#"{{"id":{id},"method":"session/new"}}"#));
            let worker = bench.worker(at);
            bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"{name}"}}}}"#));
        }
    }
    let report: Vec<_> = bench.reports.iter().filter(|report| report.reason == Reason::SessionDoubled).collect();
    let [report] = report[..] else { panic!("{report:?}") };
    assert!(
        report.text.contains("agents/0") && report.text.contains(r#"pool "agents" "assignment": "client""#),
        "{report:?}"
    );
    assert_eq!((report.client, report.worker.map(|worker| worker.place)), (Some(0), Some(1)));
}

#[test]
fn equal_session_names_of_two_clients_on_two_workers_are_not_reported() {
    let mut bench = bench(2);
    for (id, client) in [bench.client(), bench.client()].into_iter().enumerate() {
        bench.write(client, &format!(r#"{{"id":{id},"method":"session/new"}}"#));
        let worker = bench.worker(id);
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"1"}}}}"#));
    }
    assert_eq!(bench.count(Reason::SessionDoubled), 0);
}

/// A bus that forgets sessions unused for eight seconds, and a client with one.
fn forgetting(assignment: Assignment) -> (Bench, Peer, Peer) {
    let mut settings = settings(vec![Pool {
        max_instances: if assignment == Assignment::Dedicated { 3 } else { 1 },
        ..pool(1, assignment)
    }]);
    settings.limits.session_idle = Some(seconds(8));
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.read(worker);
    (bench, client, worker)
}

const PROMPT: &str = r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#;

#[test]
fn an_unused_session_is_forgotten_and_can_be_loaded_again() {
    let (mut bench, client, worker) = forgetting(Assignment::Client);
    bench.pass(milliseconds(7999));
    assert_eq!(bench.bus.view().stats().sessions, 1);
    bench.pass(seconds(1));
    assert_eq!((bench.bus.view().stats().sessions, bench.count(Reason::SessionIdle)), (0, 1));
    bench.write(client, PROMPT);
    let error = bench.read_json(client)["error"].take();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&Value::from(-32017), &Value::from("session_lost")));
    assert!(error["message"].as_str().is_some_and(|text| text.contains("session/load")), "{error}");
    let other = bench.client();
    bench.write(other, PROMPT);
    assert_eq!(bench.read_error(other).0, "session_denied", "no other client gets it for that");
    bench.write(client, r#"{"id":3,"method":"session/load","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":3,"result":null}"#);
    bench.write(client, PROMPT);
    assert_eq!((bench.read(client).len(), bench.read(worker).len()), (1, 2));
    assert!(bench.bus.view().next_deadline().is_some(), "it is watched again");
}

#[test]
fn a_session_is_used_by_messages_of_either_side_and_by_requests_that_are_pending() {
    let (mut bench, client, worker) = forgetting(Assignment::Client);
    for _ in 0..3 {
        bench.pass(seconds(6));
        bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    }
    bench.pass(seconds(6));
    bench.write(client, PROMPT);
    bench.pass(seconds(60));
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    bench.pass(seconds(6));
    bench.read(client);
    bench.write(client, PROMPT);
    assert_eq!((bench.read(client).len(), bench.count(Reason::SessionIdle)), (0, 0));
}

#[test]
fn on_a_dedicated_worker_a_forgotten_session_continues() {
    let (mut bench, client, worker) = forgetting(Assignment::Dedicated);
    bench.pass(seconds(10));
    assert_eq!(bench.count(Reason::SessionIdle), 1);
    bench.write(client, PROMPT);
    assert_eq!((bench.read_one(worker).as_str(), bench.read(client).len()), (PROMPT, 0));
}

/// A bus with one shared worker, and two connections with these user names, the first of which has the session "s".
fn names(first: Option<&str>, second: Option<&str>) -> (Bench, [Peer; 2], Peer) {
    let pool = Pool { cancel_on_disconnect: true, ..pool(1, Assignment::Client) };
    names_of(settings(vec![pool]), [first, second])
}

fn names_of(settings: Settings, names: [Option<&str>; 2]) -> (Bench, [Peer; 2], Peer) {
    let mut bench = Bench::new(settings);
    let of = |name: Option<&str>| Origin {
        names: super::super::origin::Names { token: name.map(Into::into), ..Default::default() }.into(),
        ..Origin::default()
    };
    let clients = names.map(|name| Peer::Client(bench.connect(0, of(name)).expect("there is room")));
    let worker = bench.worker(0);
    bench.write(clients[0], r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(clients[0]);
    bench.read(worker);
    (bench, clients, worker)
}

#[test]
fn a_newer_connection_of_the_same_name_takes_a_session_over() {
    let (mut bench, [old, new], worker) = names(Some("alice"), Some("alice"));
    bench.write(old, PROMPT);
    bench.write(worker, r#"{"id":7,"method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bench.read(old);
    bench.read(worker);
    let prompt = r#"{"id":"a","method":"session/prompt","params":{"sessionId":"s"}}"#;
    bench.write(new, prompt);
    assert_eq!(
        bench.read_error(old),
        ("session_taken".to_owned(), -32014, 2.into()),
        "what it waited for does not hang"
    );
    let lines = bench.read(worker);
    assert!(lines[0].contains("session/cancel") && lines[1].contains("client_left"), "{lines:?}");
    assert_eq!((lines[2].as_str(), lines.len(), bench.count(Reason::SessionTaken)), (prompt, 3, 2));
    let update = r#"{"method":"session/update","params":{"sessionId":"s"}}"#;
    bench.write(worker, update);
    assert_eq!((bench.read_one(new).as_str(), bench.read(old).len()), (update, 0));
    bench.write(old, PROMPT);
    assert_eq!(bench.read_error(old).0, "session_denied", "the older one does not take it back by the way");
    bench.write(old, r#"{"id":4,"method":"session/load","params":{"sessionId":"s"}}"#);
    let lines = bench.read(worker);
    assert!(
        lines[0].contains("session/cancel") && lines[1].contains("session/load"),
        "but when it asks for it: {lines:?}"
    );
}

#[test]
fn a_session_is_taken_over_under_its_verified_name_only() {
    for (first, second) in [(Some("alice"), Some("bob")), (Some("alice"), None), (None, None)] {
        let (mut bench, [old, new], worker) = names(first, second);
        for method in ["session/prompt", "session/load", "session/resume", "session/fork"] {
            bench.write(new, &format!(r#"{{"id":2,"method":"{method}","params":{{"sessionId":"s"}}}}"#));
            assert_eq!(bench.read_error(new).0, "session_denied", "{method} {first:?} {second:?}");
        }
        bench.write(old, PROMPT);
        assert_eq!((bench.read(worker).len(), bench.count(Reason::SessionTaken)), (1, 0));
    }
}

#[test]
fn a_session_that_is_taken_over_takes_its_elicitations_along() {
    let (mut bench, [old, new], worker) = names(Some("alice"), Some("alice"));
    bench.write(old, PROMPT);
    bench.write(worker, r#"{"id":7,"method":"elicitation/create","params":{"sessionId":"s","elicitationId":"e"}}"#);
    bench.write(old, r#"{"id":7,"result":{"action":"accept"}}"#);
    bench.write(new, PROMPT);
    bench.read(old);
    bench.read(new);
    let complete = r#"{"method":"elicitation/complete","params":{"elicitationId":"e"}}"#;
    bench.write(worker, complete);
    assert_eq!((bench.read(old).len(), bench.read_one(new).as_str()), (0, complete));
}

#[test]
fn a_claim_is_a_guess_of_every_connection_of_a_name_where_workers_give_out_names() {
    let (mut bench, [old, new], worker) = names(Some("alice"), Some("alice"));
    bench.write(old, r#"{"id":3,"method":"x","sessionId":"guess"}"#);
    assert_eq!(bench.read(worker).len(), 1, "at top level it is only a name of the bus");
    bench.write(new, r#"{"id":4,"method":"session/prompt","params":{"sessionId":"guess"}}"#);
    assert_eq!((bench.read_error(new).0.as_str(), bench.read(worker).len()), ("session_denied", 0));
}

#[test]
fn a_message_that_is_refused_takes_no_session_over() {
    let settings = settings(vec![pool(1, Assignment::Client)]);
    let (mut bench, [old, new], worker) = names_of(settings, [Some("alice"), Some("alice")]);
    bench.write(old, PROMPT);
    bench.read_one(worker);
    bench.fills_pending(new);
    bench.write(new, PROMPT);
    assert_eq!(bench.read_error(new).0, "pending_limit");
    assert_eq!((bench.read(old).len(), bench.read(worker).len(), bench.count(Reason::SessionTaken)), (0, 0, 0));
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    assert_eq!(bench.read(old).len(), 1, "it continues where it was");
}

#[test]
fn a_token_a_certificate_a_header_and_another_listener_are_not_the_same_owner() {
    let certificate = || super::super::origin::Names { common_name: Some("alice".into()), ..Default::default() };
    let token = || super::super::origin::Names { token: Some("alice".into()), ..Default::default() };
    let user = || super::super::origin::Names { user: Some("alice".into()), ..Default::default() };
    for (listener, names) in [(0, certificate()), (0, user()), (1, token())] {
        let mut settings = settings(vec![pool(1, Assignment::Client)]);
        settings.listeners.push(Listener::default());
        let (mut bench, [old, _], worker) = names_of(settings, [Some("alice"), None]);
        let origin = Origin { names: names.into(), ..Origin::default() };
        let new = Peer::Client(bench.connect(listener, origin).expect("there is room"));
        bench.write(new, PROMPT);
        assert_eq!(bench.read_error(new).0, "session_denied");
        bench.write(old, PROMPT);
        assert_eq!((bench.read(worker).len(), bench.count(Reason::SessionTaken)), (1, 0));
    }
}

#[test]
fn a_session_whose_request_timed_out_is_forgotten_like_any_other() {
    let mut settings = settings(vec![Pool { request_timeout: Some(seconds(5)), ..pool(1, Assignment::Client) }]);
    settings.limits.session_idle = Some(seconds(8));
    let (mut bench, [client, _], _) = names_of(settings, [None, None]);
    bench.write(client, PROMPT);
    bench.pass(seconds(5));
    assert_eq!(bench.read_error(client).0, "timeout");
    bench.pass(seconds(10));
    assert_eq!(bench.count(Reason::SessionIdle), 1, "the worker may never answer it");
}

#[test]
fn sessions_are_no_longer_looked_at_once_a_reload_has_switched_their_idle_limit_off() {
    let mut settings = settings(vec![pool(1, Assignment::Client)]);
    settings.limits.session_idle = Some(seconds(80));
    let (mut bench, [client, _], worker) = names_of(settings.clone(), [None, None]);
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    settings.limits.session_idle = None;
    bench.reload(&settings);
    // `pass` fails if the bus asks for the same moment twice.
    bench.pass(seconds(300));
    assert_eq!(bench.count(Reason::SessionIdle), 0);
    settings.limits.session_idle = Some(seconds(80));
    bench.reload(&settings);
    bench.pass(seconds(100));
    assert_eq!(bench.count(Reason::SessionIdle), 1);
}

#[test]
fn a_foreign_name_is_refused_among_many_workers_and_is_free_in_another_pool() {
    let of = |id: &str| Pool { id: id.into(), ..pool(64, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![of("a"), of("b")]));
    let (owner, stranger) = (bench.client(), bench.client());
    let line = |id: usize, pool: &str, name: &str| {
        format!(r#"{{"id":{id},"method":"x","pool":"{pool}","sessionId":"{name}"}}"#)
    };
    for at in 0..100 {
        bench.write(owner, &line(at, "b", &format!("s{at}")));
    }
    for at in 0..100 {
        bench.write(stranger, &line(at, "b", &format!("s{at}")));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "s{at}");
    }
    bench.write(stranger, &line(1, "a", "s1"));
    bench.write(stranger, &line(2, "b", "new"));
    assert!(bench.read(stranger).is_empty(), "there it has no owner");
    bench.write(owner, &line(1, "a", "s1"));
    assert_eq!(bench.read_error(owner).0, "session_denied", "and then it is the first one's");
}

#[test]
fn a_client_that_is_refused_a_session_gets_nothing_of_what_its_former_owner_has_asked_there() {
    let mut bench = bench(1);
    let (former, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(former, r#"{"id":1,"method":"session/new","params":{}}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.write(former, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.breaks(former);
    bench.write(other, r#"{"id":"load","method":"session/load","params":{"sessionId":"s"}}"#);
    let asked = bench.read_json(worker)["id"].to_string();
    bench.write(worker, &format!(r#"{{"id":{asked},"error":{{"code":-32002,"message":"no"}}}}"#));
    assert_eq!(bench.read_json(other)["error"]["message"], "no");
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s","update":"of the prompt"}}"#);
    assert!(bench.read(other).is_empty(), "it belongs to the former owner's prompt");
    let back = bench.client();
    bench.write(back, r#"{"id":"again","method":"session/load","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read(worker).len(), 1, "others can ask for it again");
}

#[test]
fn a_client_that_is_refused_a_session_gets_nothing_more_of_it_though_it_was_asked_something_there() {
    let mut bench = bench(1);
    let (former, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(former, r#"{"id":1,"method":"session/new","params":{}}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.read(worker);
    bench.breaks(former);
    bench.write(other, r#"{"id":"load","method":"session/load","params":{"sessionId":"s"}}"#);
    let asked = bench.read_json(worker)["id"].to_string();
    let question = r#"{"id":"q","method":"session/request_permission","params":{"sessionId":"s"}}"#;
    bench.write(worker, question);
    assert_eq!(bench.read(other), [question]);
    bench.write(worker, &format!(r#"{{"id":{asked},"error":{{"code":-32002,"message":"no"}}}}"#));
    assert_eq!(bench.read_json(other)["error"]["message"], "no");
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s","update":"of nobody"}}"#);
    assert!(bench.read(other).is_empty());
    let answer = r#"{"id":"q","result":{}}"#;
    bench.write(other, answer);
    assert_eq!(bench.read(worker), [answer], "the worker still gets the answer to its question");
}
