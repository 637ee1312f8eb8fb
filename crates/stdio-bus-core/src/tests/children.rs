//! Child sessions: what a worker says in the sessions that it has announced in an update of another one, as the subagents
//! of ACP do.

use super::*;

const INITIALIZE: &str =
    r#"{"id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"subagents":{}}}}"#;

fn update(session: &str, text: &str) -> String {
    format!(r#"{{"method":"session/update","params":{{"sessionId":"{session}","update":{{"text":"{text}"}}}}}}"#)
}

fn announced(parent: &str, child: &str) -> String {
    let update =
        format!(r#"{{"sessionUpdate":"subagent_update","sessionId":"{child}","capabilities":{{"cancel":{{}}}}}}"#);
    format!(r#"{{"method":"session/update","params":{{"sessionId":"{parent}","update":{update}}}}}"#)
}

fn cancel(session: &str) -> String {
    format!(r#"{{"method":"session/cancel","params":{{"sessionId":"{session}"}}}}"#)
}

fn ask(id: usize, method: &str, session: &str) -> String {
    format!(r#"{{"id":{id},"method":"{method}","params":{{"sessionId":"{session}"}}}}"#)
}

/// A client that knows subagents has a session of this name on the worker. Its id is 10 higher than the number.
fn new_session(bench: &mut Bench, client: Peer, worker: Peer, name: &str) {
    bench.write(client, r#"{"id":"new","method":"session/new","params":{}}"#);
    let asked: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
    bench.write(worker, &json!({"id": asked["id"], "result": {"sessionId": name}}).to_string());
    bench.read(client);
}

/// A client that has shown the token of this name.
fn named(bench: &mut Bench, name: &str) -> Peer {
    let names = crate::origin::Names { token: Some(name.into()), ..Default::default() };
    let origin = Origin { names: names.into(), ..Place::Inherited.into() };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

/// Two clients of one worker with the sessions `a` and `b`.
fn two_clients() -> (Bench, Peer, Peer, Peer) {
    two_clients_of(settings(vec![pool(1, Assignment::Client)]))
}

fn two_clients_of(settings: Settings) -> (Bench, Peer, Peer, Peer) {
    let mut bench = Bench::new(settings);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, INITIALIZE);
    bench.read(worker);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.read(first);
    new_session(&mut bench, first, worker, "a");
    new_session(&mut bench, second, worker, "b");
    (bench, first, second, worker)
}

/// A client's request, to which the worker answers with an empty result.
fn grant(bench: &mut Bench, client: Peer, worker: Peer, request: &str) {
    bench.write(client, request);
    let seen = bench.read_json(worker);
    bench.write(worker, &json!({ "id": seen["id"], "result": {} }).to_string());
    bench.read(client);
}

#[test]
fn a_child_may_be_announced_in_a_proxys_envelope() {
    let wrapped = |line: &str| {
        let message = line.strip_prefix('{').expect("an object");
        format!(r#"{{"method":"proxy/successor","params":{{{message}}}"#)
    };
    let (mut bench, first, second, worker) = two_clients();
    // What is said in the child, and the announcement of its own child, come ahead of the announcement.
    let lines = [update("c", "hello"), announced("c", "below"), update("below", "deep"), announced("a", "c")];
    lines.iter().for_each(|line| bench.write(worker, &wrapped(line)));
    let got = [3, 0, 1, 2].map(|at: usize| wrapped(&lines[at]));
    assert_eq!(bench.read(first), got);
    let lines = [announced("b", "d"), update("d", "hello")].map(|line| wrapped(&line));
    lines.iter().for_each(|line| bench.write(worker, line));
    assert_eq!((bench.read(second), bench.read(first).len()), (lines.to_vec(), 0));
    bench.write(first, &wrapped(&cancel("d")));
    assert!(bench.read(worker).is_empty(), "it is the second client's");
    bench.write(second, &wrapped(&cancel("d")));
    assert_eq!(bench.read_one(worker), wrapped(&cancel("d")));
}

#[test]
fn all_that_is_said_in_a_child_reaches_the_owner_of_its_parent() {
    let (mut bench, first, second, worker) = two_clients();
    let question = ask(7, "session/request_permission", "c");
    let lines = [announced("a", "c"), update("c", "hello"), question];
    lines.iter().for_each(|line| bench.write(worker, line));
    assert_eq!(bench.read(first), lines);
    bench.write(first, r#"{"id":7,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    bench.write(first, &cancel("c"));
    assert_eq!(bench.read(worker), [r#"{"id":7,"result":{"outcome":{"outcome":"cancelled"}}}"#, &cancel("c")]);
    // Nobody else may name it, and nothing of it is anybody else's.
    bench.write(second, &ask(1, "session/set_mode", "c"));
    assert_eq!(bench.read_error(second).0, "session_denied");
    assert!(bench.read(second).is_empty() && bench.read(worker).is_empty());
}

#[test]
fn a_child_of_a_child_is_its_owners_as_well() {
    let (mut bench, first, second, worker) = two_clients();
    let lines = [announced("a", "c"), announced("c", "d"), announced("d", "e"), update("e", "deep")];
    bench.write_bytes(worker, (lines.join("\n") + "\n").as_bytes());
    assert_eq!(bench.read(first), lines);
    bench.write(first, &cancel("e"));
    assert_eq!(bench.read(worker), [cancel("e")]);
    assert!(bench.read(second).is_empty());
}

#[test]
fn a_child_ends_with_its_parent() {
    for end in ["closed", "deleted", "parent is another's"] {
        let (mut bench, first, second, worker) = two_clients();
        for line in [announced("a", "c"), announced("c", "d")] {
            bench.write(worker, &line);
        }
        bench.read(first);
        let method = if end == "deleted" { "session/delete" } else { "session/close" };
        grant(&mut bench, first, worker, &ask(4, method, "a"));
        if end == "parent is another's" {
            new_session(&mut bench, second, worker, "a");
        }
        bench.write(first, &ask(5, "session/set_mode", "d"));
        assert_eq!(bench.read_error(first).0, "session_denied", "{end}");
        bench.write(worker, &update("c", "late"));
        bench.pass(seconds(6));
        assert_eq!(bench.count(Reason::UnknownSession), 1, "{end}");
        assert!(bench.read(first).is_empty() && bench.read(second).is_empty(), "{end}");
    }
}

#[test]
fn a_child_that_is_closed_leaves_its_parent_as_it_was() {
    let (mut bench, first, _, worker) = two_clients();
    bench.write(worker, &announced("a", "c"));
    grant(&mut bench, first, worker, &ask(4, "session/close", "c"));
    bench.write(worker, &update("a", "still here"));
    assert_eq!(bench.read(first), [update("a", "still here")]);
    bench.write(worker, &announced("a", "c"));
    bench.write(worker, &update("c", "again"));
    assert_eq!(bench.read(first), [announced("a", "c"), update("c", "again")]);
}

#[test]
fn a_child_announced_while_its_parent_is_loaded_is_the_loading_clients() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &announced("a", "c"));
    bench.breaks(first);
    bench.gone(first);
    bench.write(worker, &update("c", "nobody gets it"));
    assert!(bench.read(second).is_empty());
    let third = bench.client();
    bench.write(third, &ask(9, "session/load", "a"));
    bench.read(worker);
    let history = [announced("a", "c"), update("c", "history"), announced("c", "d"), update("d", "deeper")];
    bench.write_bytes(worker, (history.join("\n") + "\n").as_bytes());
    assert_eq!(bench.read(third), history);
    bench.write(third, &cancel("c"));
    assert!(bench.read(worker).is_empty(), "before it is loaded nothing else may be asked in it");
    bench.write(worker, r#"{"id":9,"result":{}}"#);
    bench.read(third);
    bench.write(worker, &update("d", "after"));
    assert_eq!(bench.read(third), [update("d", "after")]);
    bench.write(third, &cancel("d"));
    assert_eq!(bench.read(worker), [cancel("d")]);
    assert!(bench.read(second).is_empty());
}

#[test]
fn a_load_that_fails_gives_no_client_the_children() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &announced("a", "c"));
    bench.breaks(first);
    bench.gone(first);
    bench.write(second, &ask(9, "session/load", "a"));
    bench.read(worker);
    bench.write(worker, &announced("a", "c"));
    bench.write(worker, r#"{"id":9,"error":{"code":1,"message":"no"}}"#);
    bench.read(second);
    bench.write(worker, &update("c", "whose?"));
    assert!(bench.read(second).is_empty());
    bench.write(second, &ask(10, "session/set_mode", "c"));
    assert_eq!(bench.read_error(second).0, "session_denied");
}

#[test]
fn a_child_that_is_announced_while_its_owner_asks_for_it_is_a_child_whatever_the_answer_is() {
    let (mut bench, first, _, worker) = two_clients();
    bench.write(first, &ask(9, "session/load", "c"));
    let load = bench.read_json(worker);
    bench.write(worker, &announced("a", "c"));
    bench.write(worker, &json!({"id": load["id"], "error": {"code": 1, "message": "no"}}).to_string());
    bench.read(first);
    bench.write(worker, &update("c", "hello"));
    assert_eq!(bench.read(first), [update("c", "hello")]);
}

#[test]
fn what_is_said_in_a_child_that_is_being_loaded_is_for_whom_its_parent_is_for() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &announced("a", "c"));
    bench.write(first, &ask(4, "session/prompt", "a"));
    bench.breaks(first);
    bench.gone(first);
    bench.write(second, &ask(9, "session/load", "a"));
    bench.write(second, &ask(10, "session/load", "c"));
    bench.read(second);
    for name in ["a", "c"] {
        bench.write(worker, &update(name, "perhaps for the prompt"));
        assert!(bench.read(second).is_empty(), "{name}");
    }
}

#[test]
fn a_child_whose_own_load_is_refused_stays_with_its_parent_that_is_being_loaded() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &announced("a", "c"));
    bench.breaks(first);
    bench.gone(first);
    bench.write(second, &ask(9, "session/load", "a"));
    let parent = bench.read_json(worker);
    bench.write(second, &ask(10, "session/load", "c"));
    let child = bench.read_json(worker);
    bench.write(worker, &json!({"id": child["id"], "error": {"code": 1, "message": "no"}}).to_string());
    bench.write(worker, &json!({"id": parent["id"], "result": {}}).to_string());
    bench.read(second);
    bench.write(worker, &update("c", "hello"));
    assert_eq!(bench.read(second), [update("c", "hello")]);
    bench.write(second, &cancel("c"));
    assert_eq!(bench.read(worker), [cancel("c")]);
}

#[test]
fn all_that_is_said_in_a_child_is_for_the_client_that_has_loaded_it_though_its_parent_is_still_being_loaded() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &announced("a", "c"));
    bench.write(first, &ask(4, "session/prompt", "a"));
    bench.breaks(first);
    bench.gone(first);
    bench.read(worker);
    bench.write(second, &ask(9, "session/load", "a"));
    bench.read(worker);
    grant(&mut bench, second, worker, &ask(10, "session/load", "c"));
    let question = r#"{"id":"q","method":"session/request_permission","params":{"sessionId":"c"}}"#;
    for line in [&update("c", "hello"), question] {
        bench.write(worker, line);
        assert_eq!(bench.read(second), [line]);
    }
}

#[test]
fn a_client_that_comes_back_by_name_has_the_children_of_its_session() {
    for by in ["load", "message of the parent", "message of the child"] {
        let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client)]));
        let (old, worker) = (named(&mut bench, "alice"), bench.worker(0));
        bench.write(old, INITIALIZE);
        bench.read(worker);
        bench.write(worker, r#"{"id":0,"result":{}}"#);
        new_session(&mut bench, old, worker, "a");
        for line in [announced("a", "c"), announced("c", "d"), ask(3, "session/request_permission", "d")] {
            bench.write(worker, &line);
        }
        bench.read(old);
        let new = named(&mut bench, "alice");
        match by {
            "load" => bench.write(new, &ask(9, "session/load", "a")),
            "message of the parent" => bench.write(new, &ask(9, "session/prompt", "a")),
            _ => bench.write(new, &cancel("d")),
        }
        let heard = bench.read(worker);
        assert!(heard.iter().any(|line| line.contains("client_left")), "{by}: {heard:?}");
        bench.write(worker, &update("d", "go on"));
        assert_eq!(bench.read(new), [update("d", "go on")], "{by}");
        assert!(bench.read(old).iter().all(|line| !line.contains("go on")), "{by}");
    }
}

#[test]
fn a_client_that_loads_a_child_alone_has_it_as_a_session_of_its_own() {
    let (mut bench, first, second, worker) = two_clients();
    for line in [announced("a", "c"), announced("c", "d")] {
        bench.write(worker, &line);
    }
    bench.breaks(first);
    bench.gone(first);
    grant(&mut bench, second, worker, &ask(9, "session/load", "c"));
    bench.write(worker, &update("d", "below"));
    assert_eq!(bench.read(second), [update("d", "below")]);
    let third = bench.client();
    bench.write(third, &ask(9, "session/load", "a"));
    bench.read(worker);
    bench.write(worker, &announced("a", "c"));
    assert_eq!(bench.read(third), [announced("a", "c")], "its history");
    assert_eq!(bench.count(Reason::SessionReused), 1, "the child has an owner already");
    bench.write(worker, &update("c", "whose"));
    assert_eq!(bench.read(second), [update("c", "whose")]);
}

#[test]
fn a_childs_messages_ahead_of_its_announcement_follow_it() {
    let (mut bench, first, second, worker) = two_clients();
    // The names of both are used: the question gets another id.
    bench.write(worker, &ask(7, "session/request_permission", "b"));
    bench.read(second);
    let early = [ask(8, "session/request_permission", "c"), update("c", "1"), announced("c", "d"), update("d", "2")];
    bench.write_bytes(worker, (early.join("\n") + "\n").as_bytes());
    assert!(bench.read(first).is_empty());
    bench.write(worker, &announced("a", "c"));
    let expected = [announced("a", "c"), early[0].clone(), early[1].clone(), early[2].clone(), early[3].clone()];
    assert_eq!(bench.read(first), expected);
    bench.write(first, r#"{"id":8,"result":{}}"#);
    assert_eq!(bench.read(worker), [r#"{"id":8,"result":{}}"#]);
    assert_eq!((bench.count(Reason::UnknownSession), bench.bus.view().bytes_waiting()), (0, 0));
    assert!(bench.read(second).is_empty());
}

#[test]
fn a_childs_request_without_an_announcement_is_refused_after_five_seconds() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &ask(7, "session/request_permission", "c"));
    bench.pass(seconds(4));
    assert!(bench.read(worker).is_empty());
    bench.pass(seconds(1));
    assert_eq!(bench.read_error(worker).0, "unknown_session");
    bench.write(worker, &announced("a", "c"));
    assert_eq!(bench.read(first), [announced("a", "c")]);
    assert!(bench.read(second).is_empty());
}

#[test]
fn what_waits_for_a_child_is_not_given_to_the_client_of_a_new_session() {
    let (mut bench, _, second, worker) = two_clients();
    bench.write(worker, &update("c", "of a child"));
    new_session(&mut bench, second, worker, "c");
    assert!(bench.read(second).is_empty());
    bench.write(worker, &update("c", "of the session"));
    assert_eq!(bench.read(second), [update("c", "of the session")]);
    bench.pass(seconds(6));
    assert_eq!(bench.count(Reason::UnknownSession), 1);
}

#[test]
fn an_announcement_ahead_of_the_answer_that_makes_its_parent_counts() {
    let (mut bench, first, _, worker) = two_clients();
    bench.write(first, r#"{"id":5,"method":"session/new"}"#);
    bench.read(worker);
    let early = [announced("n", "c"), update("c", "1"), update("n", "2")];
    bench.write_bytes(worker, (early.join("\n") + "\n").as_bytes());
    let made = r#"{"id":5,"result":{"sessionId":"n"}}"#;
    bench.write(worker, made);
    let mut heard = bench.read(first);
    assert_eq!(heard.remove(0), made);
    heard.sort();
    let mut expected = early.to_vec();
    expected.sort();
    assert_eq!(heard, expected);
    bench.write(first, &cancel("c"));
    assert_eq!(bench.read(worker), [cancel("c")]);
}

#[test]
fn a_session_message_is_no_announcement_and_neither_is_one_in_a_text() {
    let (mut bench, first, second, worker) = two_clients();
    let message = announced("a", "c").replace("subagent_update", "session_message");
    let text = update("a", r#"{\"sessionUpdate\":\"subagent_update\",\"sessionId\":\"c\"}"#);
    bench.write(worker, &message);
    bench.write(worker, &text);
    assert_eq!(bench.read(first), [message, text]);
    bench.write(first, &ask(4, "session/set_mode", "c"));
    assert_eq!(bench.read_error(first).0, "session_denied");
    assert!(bench.read(second).is_empty());
}

#[test]
fn an_announcement_takes_no_session_from_another_client() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(worker, &announced("a", "b"));
    bench.write(worker, &update("b", "mine"));
    assert_eq!(bench.read(second), [update("b", "mine")]);
    assert_eq!(bench.read(first), [announced("a", "b")]);
    assert_eq!(bench.count(Reason::SessionReused), 1);
}

#[test]
fn announcements_in_a_circle_change_nothing() {
    let (mut bench, first, _, worker) = two_clients();
    for line in
        [announced("a", "a"), announced("a", "c"), announced("c", "d"), announced("d", "a"), announced("d", "c")]
    {
        bench.write(worker, &line);
    }
    assert_eq!(bench.read(first).len(), 5);
    bench.breaks(first);
    bench.gone(first);
    assert_eq!(bench.bus.view().stats().sessions, 1, "that of the other client");
}

#[test]
fn the_prompt_of_the_parent_ends_a_question_of_its_child() {
    let mut config = settings(vec![pool(1, Assignment::Client)]);
    config.pools[0].request_timeout = Some(seconds(10));
    let (mut bench, first, _, worker) = two_clients_of(config);
    bench.write(first, &ask(4, "session/prompt", "a"));
    bench.read(worker);
    bench.write(worker, &announced("a", "c"));
    bench.pass(seconds(4));
    bench.write(worker, &ask(7, "session/request_permission", "c"));
    bench.read(first);
    bench.pass(seconds(6));
    let heard = bench.read(first);
    assert!(heard.iter().any(|line| line.contains("$/cancel_request") && line.contains("7")), "{heard:?}");
}

#[test]
fn a_child_is_not_idle_while_its_parent_is_used_nor_the_parent_while_its_child_is() {
    let mut config = settings(vec![pool(1, Assignment::Client)]);
    config.limits.session_idle = Some(seconds(60));
    let (mut bench, first, _, worker) = two_clients_of(config);
    bench.write(worker, &announced("a", "c"));
    bench.write(worker, &announced("a", "d"));
    for _ in 0..6 {
        bench.pass(seconds(25));
        bench.write(worker, &update("d", "at work"));
    }
    bench.write(worker, &update("c", "at last"));
    bench.write(worker, &update("a", "done"));
    let heard = bench.read(first);
    assert!(heard.ends_with(&[update("c", "at last"), update("a", "done")]), "{heard:?}");
    bench.pass(seconds(120));
    bench.write(worker, &update("c", "too late"));
    assert!(bench.read(first).is_empty());
}

#[test]
fn a_full_table_gives_up_the_oldest_child_of_a_client_that_holds_most() {
    let (mut bench, first, second, worker) = two_clients();
    for number in 0..1_100 {
        bench.now = bench.now.after(Duration::from_millis(1));
        bench.write(worker, &announced("a", &format!("c{number}")));
        bench.read(first);
    }
    assert_eq!(bench.bus.view().stats().sessions, 1_024);
    for (name, arrives) in [("a", true), ("c1099", true), ("c200", true), ("c0", false)] {
        bench.write(worker, &update(name, "x"));
        assert_eq!(!bench.read(first).is_empty(), arrives, "{name}");
    }
    bench.write(worker, &update("b", "x"));
    assert_eq!(bench.read(second).len(), 1, "the other client keeps its session");
    // Its parent has been unused for longest.
    new_session(&mut bench, second, worker, "more");
    for (name, arrives) in [("a", true), ("c1099", true), ("c78", false)] {
        bench.write(worker, &update(name, "x"));
        assert_eq!(!bench.read(first).is_empty(), arrives, "{name}: the oldest child is evicted, not all of them");
    }
}

#[test]
fn a_worker_started_later_is_asked_for_children_too() {
    let (mut bench, first, _, worker) = two_clients();
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = *bench.workers.last().unwrap();
    let worker = Peer::Worker(worker);
    bench.read(first);
    // It gets the client's initialize first.
    bench.write(first, r#"{"method":"x"}"#);
    bench.answers(worker);
    bench.read(worker);
    new_session(&mut bench, first, worker, "a");
    bench.write(worker, &announced("a", "c"));
    bench.write(worker, &update("c", "1"));
    assert_eq!(bench.read(first), [announced("a", "c"), update("c", "1")]);
}

/// Whatever happens to sessions with children, the bus keeps a child with its parent (it checks that after each step), no
/// client learns of another's, and lines on the fast path go where the others go.
#[test]
fn no_client_learns_of_anothers_children_whatever_happens() {
    for seed in 1..=60_u64 {
        let mut heard = Vec::new();
        for is_plain in [false, true] {
            heard.push(random_walk(seed, is_plain));
        }
        assert_eq!(heard[0], heard[1], "seed {seed}: the fast path does something else");
    }
}

/// All that clients heard, by their numbers. Names of sessions begin with the number of the client that made the first.
fn random_walk(seed: u64, is_plain: bool) -> Vec<(usize, String)> {
    let mut state = seed;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client)]));
    if is_plain {
        bench = Bench {
            bus: Bus::new(settings(vec![pool(1, Assignment::Client)])).without_fast_path(),
            ..Bench::idle(settings(Vec::new()))
        };
        bench.spawns = true;
        let effects = bench.bus.start(bench.now).collect();
        bench.effects(&[], effects);
    }
    let worker = bench.worker(0);
    // Its user, the connection, and its sessions.
    let users = ["ann", "bob", "cleo"];
    let mut clients: Vec<Peer> = users.iter().map(|user| named(&mut bench, user)).collect();
    bench.write(clients[0], INITIALIZE);
    bench.read(worker);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    let (mut known, mut heard): (Vec<String>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
    for step in 0..120 {
        let who = below(users.len());
        let some = |names: &[String], at: usize| names.get(at % names.len().max(1)).cloned().unwrap_or("none".into());
        let (name, other) = (some(&known, below(64)), some(&known, below(64)));
        match if known.is_empty() { 0 } else { below(14) } {
            0 | 1 => {
                let name = format!("{who}-{step}");
                new_session(&mut bench, clients[who], worker, &name);
                known.push(name);
            }
            2..5 => {
                let child = format!("{}-{step}", &name[..1]);
                if below(3) == 0 {
                    bench.write(worker, &update(&child, "early"));
                    bench.write(worker, &ask(1_000 + step, "session/request_permission", &child));
                }
                bench.write(worker, &announced(&name, &child));
                known.push(child);
            }
            // The same user's, or its own again, or a circle.
            5 if name[..1] == other[..1] => bench.write(worker, &announced(&name, &other)),
            6..9 => bench.write(worker, &update(&name, "hello")),
            9 => bench.write(clients[who], &cancel(&name)),
            10 => {
                bench.write(clients[who], &ask(step, "session/load", &name));
                let asked = bench.read(worker).into_iter().rfind(|line| line.contains("session/load"));
                if below(3) > 0 {
                    bench.write(worker, &update(&name, "history"));
                }
                if let Some(asked) = asked.and_then(|line| serde_json::from_str::<Value>(&line).ok()) {
                    // An agent gives a session only to the user that it is of.
                    let answer = match name[..1] == format!("{who}") && below(4) > 0 {
                        true => json!({"id": asked["id"], "result": {}}),
                        false => json!({"id": asked["id"], "error": {"code": 1, "message": "no"}}),
                    };
                    bench.write(worker, &answer.to_string());
                }
            }
            11 => {
                bench.write(clients[who], &ask(step, "session/close", &name));
                let asked = bench.read(worker).into_iter().rfind(|line| line.contains("session/close"));
                if let Some(asked) = asked.and_then(|line| serde_json::from_str::<Value>(&line).ok()) {
                    bench.write(worker, &json!({"id": asked["id"], "result": {}}).to_string());
                }
            }
            12 => {
                // The old connection may still look alive when the user is back.
                let old = clients[who];
                clients[who] = named(&mut bench, users[who]);
                if below(2) == 0 {
                    bench.breaks(old);
                    bench.gone(old);
                } else {
                    bench.write(clients[who], &cancel(&name));
                    bench.breaks(old);
                    bench.gone(old);
                }
            }
            _ => bench.pass(seconds(below(8) as u64)),
        }
        bench.read(worker);
        for (number, client) in clients.clone().into_iter().enumerate() {
            for line in bench.read(client) {
                let session = serde_json::from_str::<Value>(&line).unwrap()["params"]["sessionId"].clone();
                if let Some(session) = session.as_str() {
                    // A load that is under way is the only time at which a session may be somebody else's.
                    let is_history = line.contains("history");
                    assert!(
                        is_history || session.starts_with(&number.to_string()),
                        "seed {seed}, {step}: {number} got {line}"
                    );
                }
                heard.push((number, line));
            }
        }
        bench.bus.check_invariants();
    }
    heard
}

#[test]
fn what_is_said_in_a_child_and_a_question_in_it_keep_the_prompt_of_its_parent() {
    let idle = Pool { idle_timeout: Some(seconds(2)), ..pool(1, Assignment::Client) };
    let (mut bench, first, _, worker) = two_clients_of(settings(vec![idle]));
    bench.write(first, &ask(1, "session/prompt", "a"));
    bench.write(worker, &announced("a", "c"));
    for _ in 0..4 {
        bench.pass(seconds(1));
        bench.write(worker, &update("c", "at work"));
    }
    bench.write(worker, &ask(7, "session/request_permission", "c"));
    assert_eq!(bench.read(first).len(), 6);
    bench.pass(seconds(60));
    assert!(bench.read(first).is_empty());
    bench.write(first, r#"{"id":7,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    bench.pass(milliseconds(2_050));
    assert_eq!(bench.read_error(first).0, "timeout");
}

#[test]
fn an_announcement_that_is_repeated_is_no_news() {
    let (mut bench, first, _, worker) = two_clients();
    for line in [announced("a", "c"), announced("a", "c"), update("c", "hello")] {
        bench.write(worker, &line);
        assert_eq!(bench.read(first), [line]);
    }
    assert_eq!(bench.count(Reason::SessionReused), 0);
}

#[test]
fn a_child_wins_over_another_clients_claim_of_its_name() {
    let (mut bench, first, second, worker) = two_clients();
    bench.write(second, r#"{"method":"x","sessionId":"c"}"#);
    bench.read_one(worker);
    let lines = [announced("a", "c"), update("c", "secret")];
    lines.iter().for_each(|line| bench.write(worker, line));
    assert_eq!((bench.read(first), bench.read(second).len()), (lines.to_vec(), 0));
    assert_eq!(bench.count(Reason::SessionReused), 0);
}

#[test]
fn a_session_that_its_owner_has_already_does_not_end_with_the_one_that_announces_it() {
    let (mut bench, first, _, worker) = two_clients();
    new_session(&mut bench, first, worker, "own");
    bench.write(worker, &announced("a", "own"));
    bench.read(first);
    grant(&mut bench, first, worker, &ask(4, "session/close", "a"));
    bench.write(worker, &update("own", "still here"));
    assert_eq!(bench.read(first), [update("own", "still here")]);
}

#[test]
fn announcements_in_a_circle_change_nothing_while_the_sessions_are_being_loaded() {
    let (mut bench, first, _, worker) = two_clients();
    bench.write(first, &ask(4, "session/load", "x"));
    let load = bench.read_json(worker);
    let lines = [announced("x", "x"), announced("x", "y"), announced("y", "x"), update("y", "hello")];
    lines.iter().for_each(|line| bench.write(worker, line));
    assert_eq!(bench.read(first), lines);
    bench.write(worker, &json!({"id": load["id"], "result": {}}).to_string());
    bench.read(first);
    grant(&mut bench, first, worker, &ask(5, "session/close", "y"));
    bench.write(worker, &update("x", "still here"));
    assert_eq!(bench.read(first), [update("x", "still here")], "it is no child of its child");
}

#[test]
fn a_child_stays_with_the_session_that_announced_it_first() {
    let (mut bench, first, _, worker) = two_clients();
    bench.write(first, &ask(4, "session/load", "x"));
    let load = bench.read_json(worker);
    for line in [announced("x", "y"), announced("x", "z"), announced("z", "y")] {
        bench.write(worker, &line);
    }
    bench.write(worker, &json!({"id": load["id"], "result": {}}).to_string());
    bench.read(first);
    grant(&mut bench, first, worker, &ask(5, "session/close", "z"));
    bench.write(worker, &update("y", "still here"));
    assert_eq!(bench.read(first), [update("y", "still here")]);
}

#[test]
fn only_a_session_update_without_an_id_announces_a_child_and_only_one_whose_name_is_not_too_long() {
    let other = announced("a", "c").replace("session/update", "session/other");
    let request = announced("a", "c").replacen('{', r#"{"id":7,"#, 1);
    let long = announced("a", &"c".repeat(5_000));
    for line in [other, request, long] {
        let (mut bench, first, _, worker) = two_clients();
        bench.write(worker, &line);
        assert_eq!(bench.read(first), [&*line]);
        assert_eq!(bench.bus.view().stats().sessions, 2, "{}", &line[..80]);
    }
}

#[test]
fn a_client_that_denies_subagents_is_announced_none() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, &INITIALIZE.replace(r#""subagents":{}"#, r#""subagents":false"#));
    bench.read(worker);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.read(client);
    new_session(&mut bench, client, worker, "a");
    bench.write(worker, &announced("a", "c"));
    assert_eq!((bench.read(client), bench.bus.view().stats().sessions), (vec![announced("a", "c")], 1));
}

#[test]
fn a_child_is_bound_to_the_user_of_its_parent_once_the_worker_has_given_that_out() {
    // Announced before the parent is loaded, when it is loaded, and where the load fails.
    for (is_loaded, is_early, result) in [(true, true, "denied"), (true, false, "denied"), (false, true, "free")] {
        let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client)]));
        let (alice, worker) = (named(&mut bench, "alice"), bench.worker(0));
        bench.write(alice, INITIALIZE);
        bench.read(worker);
        bench.write(worker, r#"{"id":0,"result":{}}"#);
        bench.write(alice, &ask(1, "session/load", "a"));
        bench.read(worker);
        if is_early {
            bench.write(worker, &announced("a", "c"));
        }
        bench.write(
            worker,
            if is_loaded { r#"{"id":1,"result":{}}"# } else { r#"{"id":1,"error":{"code":1,"message":"no"}}"# },
        );
        if !is_early {
            bench.write(worker, &announced("a", "c"));
        }
        bench.breaks(alice);
        bench.gone(alice);
        let bob = named(&mut bench, "bob");
        bench.write(bob, &ask(2, "session/load", "c"));
        let expected = if result == "denied" { (0, 1) } else { (1, 0) };
        assert_eq!((bench.read(worker).len(), bench.read(bob).len()), expected, "{is_loaded} {is_early}");
    }
}

#[test]
fn a_childs_early_request_gets_an_error_if_its_client_can_no_longer_answer() {
    let (mut bench, first, _, worker) = two_clients();
    bench.write(first, &ask(4, "session/prompt", "a"));
    bench.read(worker);
    bench.write(worker, &ask(7, "session/request_permission", "c"));
    bench.ends(first);
    bench.write(worker, &announced("a", "c"));
    assert_eq!(bench.read(first), [announced("a", "c")], "a client that sends no more still reads");
    let refused = bench.read_json(worker);
    assert_eq!((&refused["id"], refused["error"]["code"].is_i64()), (&Value::from(7), true), "{refused}");
}

#[test]
fn a_request_in_a_child_keeps_its_parent_from_being_idle_as_long_as_a_client_waits_for_it() {
    let mut config = settings(vec![pool(1, Assignment::Client)]);
    config.limits.session_idle = Some(seconds(60));
    config.pools[0].request_timeout = Some(seconds(300));
    let (mut bench, first, second, worker) = two_clients_of(config);
    bench.write(worker, &announced("a", "c"));
    bench.write(first, &ask(4, "session/set_mode", "c"));
    bench.pass(seconds(200));
    assert_eq!(bench.count(Reason::SessionIdle), 1, "only that of the other client");
    bench.read(first);
    bench.write(worker, &update("a", "still here"));
    assert_eq!((bench.read(first), bench.read(second).len()), (vec![update("a", "still here")], 0));
    bench.pass(seconds(200));
    assert_eq!(bench.count(Reason::SessionIdle), 2, "the worker may never answer it");
}

#[test]
fn a_child_that_its_client_has_asked_for_by_itself_is_not_refused_with_its_parent() {
    // The worker refuses the parent, which nobody has or had, before it answers for the child and after it has.
    for (is_held, is_answered) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut bench, first, second, worker) = two_clients();
        if is_held {
            new_session(&mut bench, first, worker, "p");
            bench.write(worker, &announced("p", "c"));
            bench.breaks(first);
            bench.gone(first);
        }
        let client = if is_held { bench.client() } else { first };
        bench.write(client, &ask(11, "session/load", "p"));
        let parent = bench.read_json(worker)["id"].clone();
        bench.write(worker, &announced("p", "c"));
        bench.write(worker, &announced("c", "below"));
        bench.write(client, &ask(12, "session/load", "c"));
        let child = bench.read_json(worker)["id"].clone();
        bench.read(client);
        let no = json!({"id": parent, "error": {"code": -32002, "message": "no"}}).to_string();
        let yes = json!({"id": child, "result": {}}).to_string();
        if is_answered {
            bench.write(worker, &yes);
            bench.write(worker, &no);
        } else {
            bench.write(worker, &no);
            bench.read(client);
            bench.write(worker, &update("c", "history"));
            assert_eq!(bench.read(client), [update("c", "history")], "{is_held}");
            bench.write(worker, &yes);
        }
        bench.read(client);
        for session in ["c", "below"] {
            let text = format!("{session}, {is_held}, {is_answered}");
            bench.write(worker, &update(session, "hello"));
            assert_eq!((bench.read(client), bench.read(second).len()), (vec![update(session, "hello")], 0), "{text}");
            bench.write(second, &cancel(session));
            assert!(bench.read(worker).is_empty(), "{text}");
            bench.write(client, &cancel(session));
            assert_eq!(bench.read_one(worker), cancel(session), "{text}");
        }
    }
}

#[test]
fn a_child_that_is_refused_leaves_its_children_to_the_parent_that_is_being_loaded() {
    let (mut bench, first, _, worker) = two_clients();
    new_session(&mut bench, first, worker, "p");
    bench.write(worker, &announced("p", "c"));
    bench.write(worker, &announced("c", "below"));
    bench.breaks(first);
    bench.gone(first);
    let client = bench.client();
    let asked = [(11, "p"), (12, "below"), (13, "c")].map(|(id, session)| {
        bench.write(client, &ask(id, "session/load", session));
        bench.read_json(worker)["id"].clone()
    });
    for refused in [&asked[2], &asked[1]] {
        bench.write(worker, &json!({"id": refused, "error": {"code": -32002, "message": "no"}}).to_string());
    }
    bench.write(worker, &json!({"id": asked[0], "result": {}}).to_string());
    bench.read(client);
    for session in ["p", "c", "below"] {
        bench.write(worker, &update(session, "hello"));
        assert_eq!(bench.read(client), [update(session, "hello")]);
    }
}
