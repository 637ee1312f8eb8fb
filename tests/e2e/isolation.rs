//! A hostile client cannot harm others: use their sessions, get their answers, cancel their requests. The victim and
//! the attacker share a worker here, since that is where they meet.

mod cancellations;
mod ids;

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, Setup, echo, with, worker};

/// Where a message names its session.
#[derive(Clone, Copy, Debug)]
enum Place {
    Top,
    Params,
}

const PLACES: [Place; 2] = [Place::Top, Place::Params];

/// The forms of cancellation in use, and others they might be confused with: method and member of `params`.
const CANCELLATIONS: [(&str, &str); 8] = [
    ("$/cancel_request", "requestId"),
    ("$/cancel_request", "id"),
    ("$/cancelRequest", "id"),
    ("$/cancelRequest", "requestId"),
    ("notifications/cancelled", "requestId"),
    ("notifications/cancelled", "id"),
    ("$\\/cancelRequest", "id"),
    ("\\u0024/cancel_\\u0072equest", "request\\u0049d"),
];

/// A request, id 1, that names a session in one place.
fn naming(place: Place, session: &str, method: &str) -> Value {
    match place {
        Place::Top => json!({ "id": 1, "method": method, "sessionId": session, "params": {} }),
        Place::Params => json!({ "id": 1, "method": method, "params": { "sessionId": session } }),
    }
}

/// Uses a session and takes the answer to it.
fn uses(client: &mut Client, place: Place, session: &str) -> Value {
    client.send(&naming(place, session, "session/prompt"));
    client.answer(1)
}

fn is_denied(client: &mut Client, place: Place, session: &str) {
    client.send(&naming(place, session, "session/prompt"));
    assert_eq!(client.error(1, "session_denied"), -32014, "{place:?}");
}

fn new_session(client: &mut Client) -> String {
    let made = client.request("new", "session/new", json!({}));
    made["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {made}")).to_owned()
}

/// The lines that the only worker has read, if it keeps them.
fn read_by_worker(client: &mut Client) -> String {
    client.request("kept", "kept", json!({}))["result"]["lines"].to_string()
}

/// Makes the only worker send something in a session, and takes the next message, which must be another.
fn hears_no_update(client: &mut Client, session: &str) {
    let update = json!({ "method": "session/update", "params": { "sessionId": session, "secret": true } });
    client.send(&json!({ "method": "write", "params": { "text": format!("{update}\n") } }));
    client.request("behind the update", "who", json!({}));
}

/// Disconnects, and waits until the daemon has noticed.
fn leaves(daemon: &Daemon, client: Client) {
    let count = || daemon.log().matches("client_broken").count();
    let before = count();
    client.reset();
    daemon.until("the daemon has seen the client leave", || count() > before);
}

// Two sessions in one message.

#[test]
fn whatever_session_a_message_names_at_top_level_and_in_params_must_be_its_senders() {
    for issued in [true, false] {
        let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
        let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
        if issued {
            victim.request("new", "session/new", json!({ "name": "victims" }));
        } else {
            assert!(uses(&mut victim, Place::Params, "victims")["result"].is_object());
        }
        attacker.request_in("attackers", "a", "m", json!({}));
        let tops = ["\"anything\"", "\"attackers\"", "\"\"", "null", "5", "true", "{}", "[\"victims\"]"];
        let attacks = tops.map(|top| format!(r#""sessionId":{top},"params":{{"sessionId":"victims","attack":1}}"#));
        let spellings = [
            r#""sessionId":"victims","params":{"sessionId":"attackers","attack":1}"#,
            r#""sessionId":"","params":{"sessionId":"victi\u006ds","attack":1}"#,
            r#""session\u0049d":"anything","p\u0061rams":{"session\u0049d":"victims","attack":1}"#,
            r#""sessionId":"\u0076ictims","params":{"attack":1}"#,
        ]
        .map(str::to_owned);
        for members in attacks.iter().chain(&spellings) {
            for method in ["session/prompt", "session\\u002fprompt", "session/cancel", "session\\/close"] {
                attacker.send_line(&format!(r#"{{"id":1,"method":"{method}",{members}}}"#));
                assert_eq!(attacker.error(1, "session_denied"), -32014, "{members}");
                attacker.send_line(&format!(r#"{{"method":"{method}",{members}}}"#));
            }
        }
        assert!(!read_by_worker(&mut attacker).contains("attack\\\""), "nothing of that reached the worker");
        assert!(uses(&mut victim, Place::Params, "victims")["result"].is_object());
        daemon.stop();
    }
}

#[test]
fn a_message_may_name_two_sessions_of_its_own_and_has_both_then() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    for id in 0..3 {
        let answer = client.request_in("outer", id, "m", json!({ "sessionId": "inner" }));
        assert_eq!(answer["result"]["echo"]["sessionId"], "inner");
    }
    for name in ["outer", "inner"] {
        for place in PLACES {
            is_denied(&mut other, place, name);
        }
        assert!(uses(&mut client, Place::Top, name)["result"].is_object());
    }
    daemon.stop();
}

#[test]
fn a_claimed_name_is_refused_where_names_are_given_out() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let (first, second) = (new_session(&mut client), new_session(&mut client));
    client.request_in(&first, 1, "m", json!({ "sessionId": second }));
    client.request_in("own", 2, "m", json!({ "sessionId": second }));
    client.ask_in(&first, 3, "m", json!({ "sessionId": "session-2" }));
    assert_eq!(client.error(3, "session_denied"), -32014);
    daemon.stop();
}

#[test]
fn a_session_in_params_that_is_too_long_is_refused_whatever_stands_on_top() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    client.request_in("short", 1, "m", json!({ "sessionId": "s".repeat(256) }));
    client.ask_in("short", 2, "m", json!({ "sessionId": "s".repeat(257) }));
    assert_eq!(client.error(2, "session_id_too_long"), -32602);
    daemon.stop();
}

// Late and repeated answers.

#[test]
fn after_a_full_table_late_answers_reach_no_other_client() {
    const TABLE: u64 = 4096;
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut attacker = daemon.connect();
    for id in 0..TABLE {
        attacker.ask(id, "hold", json!({ "of": "attacker" }));
        if id % 256 == 0 {
            attacker.request("sync", "who", json!({}));
        }
    }
    attacker.ask("over", "hold", json!({}));
    attacker.error("over", "pending_limit");
    leaves(&daemon, attacker);
    let mut victim = daemon.connect();
    // The first ones push the attacker's out of the table, then the same ids are reused.
    for id in 0..64 {
        victim.ask(format!("push {id}"), "hold", json!({ "of": "victim" }));
    }
    for id in 0..64 {
        victim.ask(id, "hold", json!({ "of": "victim" }));
    }
    victim.ask("release", "release", json!({}));
    for _ in 0..128 {
        let answer = victim.message();
        assert_eq!(answer["result"]["echo"]["of"], "victim", "{answer}");
    }
    victim.answer("release");
    daemon.stop();
}

#[test]
fn an_answer_after_an_abandoned_requests_grace_period_reaches_no_other_client() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut victim, mut attacker, mut leaver) = (daemon.connect(), daemon.connect(), daemon.connect());
    leaver.ask(6, "hold", json!({ "of": "leaver" }));
    leaver.request("sync", "who", json!({}));
    leaves(&daemon, leaver);
    attacker.ask(7, "hold", json!({ "of": "attacker", "stubborn": true }));
    attacker.send(&json!({ "method": "$/cancelRequest", "params": { "id": 7 } }));
    // When this one's grace period is over, so is that of the client that left before.
    assert_eq!(attacker.error(7, "cancelled"), -32800);
    for id in [6, 7] {
        victim.ask(id, "hold", json!({ "of": "victim" }));
    }
    victim.ask("release", "release", json!({}));
    for id in [6, 7] {
        assert_eq!(victim.answer(id)["result"]["echo"]["of"], "victim");
    }
    victim.answer("release");
    assert!(attacker.request(8, "m", json!({}))["result"].is_object(), "the late answer went to no client");
    daemon.stop();
}

#[test]
fn after_a_request_was_cancelled_and_never_answered_other_ids_reach_the_worker_unchanged() {
    let pool = with(worker("agents", 1, &["--keep"]), "assignment", "dedicated");
    let mut daemon = Setup::new([pool]).start();
    let mut client = daemon.connect();
    let listen = |id: u64| json!({ "id": id, "method": "hold", "params": { "stubborn": true } });
    client.send(&listen(1));
    client.send(&json!({ "method": "$/cancelRequest", "params": { "id": 1 } }));
    assert_eq!(client.error(1, "cancelled"), -32800);
    client.send(&listen(2));
    client.send(&listen(1));
    let kept = client.request(3, "kept", json!({}));
    let kept: Vec<Value> = kept["result"]["lines"].as_array().expect("lines").iter().map(read).collect();
    let held: Vec<&Value> = kept.iter().filter(|line| line["method"] == "hold").map(|line| &line["id"]).collect();
    assert!(*held[0] == 1 && *held[1] == 2, "{held:?}");
    assert!(*held[2] != 1 && held[2].is_number(), "the worker may answer that one yet: {held:?}");
    client.ask(4, "release", json!({}));
    for id in [2, 1] {
        assert_eq!(client.answer(id)["result"]["held"], true);
    }
    client.answer(4);
    daemon.stop();
}

/// A line that a worker has kept.
fn read(line: &Value) -> Value {
    serde_json::from_str(line.as_str().expect("text")).expect("JSON")
}

#[test]
fn one_of_many_requests_is_cancelled_and_an_empty_cancellation_is_refused() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    for id in 0..200 {
        client.ask(id, "hold", json!({}));
        other.ask(id, "hold", json!({}));
    }
    for id in [77, 3] {
        client.send(&json!({ "id": "c", "method": "$/cancelRequest", "params": { "id": id } }));
        assert_eq!(client.answer(id)["error"]["code"], -32800);
        assert_eq!(client.answer("c")["result"]["cancelled"], 1);
        client.send(&json!({ "id": "c", "method": "$/cancelRequest", "params": { "id": id } }));
        assert_eq!(client.error("c", "unknown_request"), -32602, "it is answered");
    }
    assert_eq!(other.request("who", "who", json!({}))["result"]["held"], 398);
    daemon.stop();
}

#[test]
fn a_worker_that_answers_with_another_type_of_id_is_reported_with_the_pending_id() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    client.ask(1, "write", json!({ "text": "{\"id\":\"1\",\"result\":{}}\n{\"id\":1,\"result\":{}}\n" }));
    assert!(client.answer(1)["result"].is_object());
    daemon.logs(&["unknown_id", "1 (a number)"]);
    daemon.stop();
}

#[test]
fn an_answer_in_the_grace_of_a_cancelled_request_is_delivered() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    client.ask(7, "hold", json!({ "stubborn": true }));
    client.send(&json!({ "method": "notifications/cancelled", "params": { "requestId": 7 } }));
    client.ask(8, "release", json!({}));
    assert_eq!(client.answer(7)["result"]["held"], true);
    client.answer(8);
    daemon.stop();
}

#[test]
fn after_a_worker_has_answered_twice_its_second_answers_reach_no_client() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut victim, mut other) = (daemon.connect(), daemon.connect());
    other.request(0, "twice", json!({}));
    other.request(1, "release", json!({}));
    daemon.logs(&["WARN", "worker_answers_twice"]);
    for round in 0..3 {
        other.request(7, "twice", json!({ "of": "other" }));
        victim.ask(7, "hold", json!({ "of": "victim" }));
        victim.ask("release", "release", json!({}));
        assert_eq!(victim.answer(7)["result"]["echo"]["of"], "victim", "round {round}");
        victim.answer("release");
    }
    assert!(other.request(8, "m", json!({}))["result"].is_object());
    let outcome = daemon.stop();
    assert_eq!(outcome.stderr.matches("worker_answers_twice").count(), 1, "{}", outcome.stderr);
}

#[test]
fn with_always_not_even_the_first_duplicate_answer_reaches_another_client() {
    let setup = Setup::new([worker("agents", 1, &["--keep"])]).set("routing", json!({ "id_collision": "always" }));
    let mut daemon = setup.start();
    let (mut victim, mut other) = (daemon.connect(), daemon.connect());
    other.request(7, "twice", json!({ "of": "other" }));
    victim.ask(7, "hold", json!({ "of": "victim" }));
    victim.ask("release", "release", json!({}));
    assert_eq!(victim.answer(7)["result"]["echo"]["of"], "victim");
    victim.answer("release");
    let seen = read_by_worker(&mut victim);
    assert!(!seen.contains("\\\"id\\\":7") && !seen.contains("\\\"id\\\":\\\"release"), "{seen}");
    daemon.stop();
}

// Guessable session names.

#[test]
fn a_name_that_was_used_before_it_is_given_out_belongs_to_the_client_that_it_is_given_to() {
    for place in PLACES {
        let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
        let (mut thief, mut victim) = (daemon.connect(), daemon.connect());
        // The worker answers it with a result, so that the claim is confirmed.
        assert!(uses(&mut thief, place, "session-0")["result"].is_object());
        assert_eq!(new_session(&mut victim), "session-0");
        for place in PLACES {
            is_denied(&mut thief, place, "session-0");
            assert!(uses(&mut victim, place, "session-0")["result"].is_object());
        }
        victim.ask("update", "ask", json!({ "session": "session-0", "about": "the victim" }));
        assert_eq!(victim.message()["params"]["about"], "the victim");
        assert!(thief.request(2, "m", json!({}))["result"].is_object(), "nothing of the session came to the thief");
        daemon.stop();
    }
}

#[test]
fn a_prompt_for_the_next_name_does_not_run_in_the_session_being_created() {
    for spelling in ["session/new", "session\\u002fnew"] {
        let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
        let (mut thief, mut victim) = (daemon.connect(), daemon.connect());
        victim.send_line(&format!(r#"{{"id":"new","method":"{spelling}","params":{{"later":true}}}}"#));
        victim.request("sync", "who", json!({}));
        is_denied(&mut thief, Place::Params, "session-0");
        thief.ask_in("thiefs", 1, "session/prompt", json!({ "sessionId": "session-0" }));
        assert_eq!(thief.error(1, "session_denied"), -32014);
        victim.ask("release", "release", json!({}));
        assert_eq!(victim.answer("new")["result"]["sessionId"], "session-0");
        victim.answer("release");
        assert!(!read_by_worker(&mut victim).contains("session/prompt"));
        assert!(uses(&mut victim, Place::Params, "session-0")["result"].is_object());
        daemon.stop();
    }
}

#[test]
fn where_names_are_given_out_a_client_may_only_name_its_own() {
    let mut daemon = Setup::new([worker("agents", 2, &["--keep"])]).start();
    let (mut thief, mut victim) = (daemon.connect(), daemon.connect());
    let own = new_session(&mut thief);
    for next in ["session-0", "session-1", "session-2", "another"] {
        if next != own {
            is_denied(&mut thief, Place::Params, next);
        }
    }
    // The specification's top-level sessions stay where no client was given the name, and end where one is.
    thief.request_in("session-1", 1, "m", json!({}));
    let pid = new_session_on(&mut victim, "session-1");
    assert!(uses(&mut victim, Place::Params, "session-1")["result"]["pid"] == pid);
    daemon.stop();
}

/// Creates sessions until one has this name, and returns the process that gave it out.
fn new_session_on(client: &mut Client, name: &str) -> Value {
    for _ in 0..8 {
        let made = client.request("new", "session/new", json!({}));
        if made["result"]["sessionId"] == name {
            return made["result"]["pid"].clone();
        }
    }
    panic!("no worker gave out {name}")
}

/// Makes the only worker exit, and waits until its successor answers.
fn restart_worker(daemon: &Daemon, client: &mut Client) {
    client.ask("exit", "exit", json!({ "code": 1 }));
    assert_eq!(client.find_answer("exit")["error"]["data"]["reason"], "worker_exited");
    daemon.until("the worker runs again", || {
        client.ask("who", "who", json!({}));
        client.find_answer("who")["result"].is_object()
    });
}

#[test]
fn a_session_that_was_lost_with_its_worker_is_an_error_and_never_one_of_the_same_name() {
    let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
    let (mut owner, mut neighbour) = (daemon.connect(), daemon.connect());
    assert_eq!(new_session(&mut owner), "session-0");
    restart_worker(&daemon, &mut neighbour);
    let is_lost = |owner: &mut Client| {
        for place in PLACES {
            owner.send(&naming(place, "session-0", "session/prompt"));
            assert_eq!(owner.error(1, "session_lost"), -32017, "{place:?}");
            // Its notifications are dropped as well.
            let mut notification = naming(place, "session-0", "session/cancel");
            notification.as_object_mut().unwrap().remove("id");
            owner.send(&notification);
        }
    };
    is_lost(&mut owner);
    assert_eq!(new_session(&mut neighbour), "session-0", "names are counted from the start again");
    is_lost(&mut owner);
    assert_eq!(new_session(&mut owner), "session-1");
    is_lost(&mut owner);
    let seen = read_by_worker(&mut owner);
    assert!(!seen.contains("session/prompt") && !seen.contains("session/cancel"), "{seen}");
    for place in PLACES {
        assert!(uses(&mut neighbour, place, "session-0")["result"].is_object());
        assert!(uses(&mut owner, place, "session-1")["result"].is_object());
    }
    daemon.stop();
}

#[test]
fn a_session_that_was_lost_with_its_worker_can_be_loaded_again_or_given_out_again() {
    for load in [true, false] {
        let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
        let (mut owner, mut neighbour) = (daemon.connect(), daemon.connect());
        assert_eq!(new_session(&mut owner), "session-0");
        restart_worker(&daemon, &mut neighbour);
        owner.send(&naming(Place::Params, "session-0", "session/prompt"));
        owner.error(1, "session_lost");
        if load {
            assert!(owner.request(2, "session/load", json!({ "sessionId": "session-0" }))["result"].is_object());
        } else {
            assert_eq!(new_session(&mut owner), "session-0");
        }
        for place in PLACES {
            assert!(uses(&mut owner, place, "session-0")["result"].is_object());
            is_denied(&mut neighbour, place, "session-0");
        }
        daemon.stop();
    }
}

#[test]
fn a_session_named_by_its_client_may_start_again_on_another_worker() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut owner, mut neighbour) = (daemon.connect(), daemon.connect());
    owner.request_in("own", 1, "m", json!({}));
    restart_worker(&daemon, &mut neighbour);
    assert!(owner.request_in("own", 2, "m", json!({}))["result"].is_object());
    daemon.stop();
}

// A session whose owner has left.

#[test]
fn messages_of_a_session_without_an_owner_reach_no_client_and_other_clients_are_denied() {
    let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
    let (mut owner, mut stranger) = (daemon.connect(), daemon.connect());
    let session = new_session(&mut owner);
    owner.ask(1, "hold", json!({ "sessionId": session }));
    owner.request(2, "who", json!({}));
    leaves(&daemon, owner);
    for turn in 0..2 {
        for place in PLACES {
            is_denied(&mut stranger, place, &session);
        }
        hears_no_update(&mut stranger, &session);
        daemon.logs_times("unknown_session", 1);
        if turn == 0 {
            // The session stays with the worker even when none of its requests is pending.
            stranger.request("release", "release", json!({}));
        }
    }
    assert!(!read_by_worker(&mut stranger).contains("session/prompt"));
    daemon.stop();
}

#[test]
fn a_returning_owner_gets_its_session_and_the_replay() {
    for method in ["session/load", "session/resume", "session\\u002fload"] {
        let mut daemon = Setup::new([worker("agents", 3, &[])]).start();
        let (mut owner, mut stranger) = (daemon.connect(), daemon.connect());
        stranger.request(1, "m", json!({}));
        let made = owner.request("new", "session/new", json!({ "name": "kept" }));
        leaves(&daemon, owner);
        is_denied(&mut stranger, Place::Params, "kept");
        let mut owner = daemon.connect();
        owner.send_line(&format!(r#"{{"id":1,"method":"{method}","params":{{"sessionId":"kept","replay":3}}}}"#));
        for number in 0..3 {
            assert_eq!(owner.message()["params"]["replayed"], number);
        }
        assert_eq!(owner.answer(1)["result"]["pid"], made["result"]["pid"], "the worker that has the session");
        for place in PLACES {
            is_denied(&mut stranger, place, "kept");
            assert_eq!(uses(&mut owner, place, "kept")["result"]["pid"], made["result"]["pid"]);
        }
        daemon.stop();
    }
}

#[test]
fn a_session_of_a_connected_client_cannot_be_loaded_by_another_one() {
    let mut daemon = Setup::new([worker("agents", 2, &["--keep"])]).start();
    let (mut owner, mut stranger) = (daemon.connect(), daemon.connect());
    let session = new_session(&mut owner);
    for method in ["session/load", "session/resume", "session/fork"] {
        for place in PLACES {
            stranger.send(&naming(place, &session, method));
            assert_eq!(stranger.error(1, "session_denied"), -32014, "{method}");
        }
    }
    assert!(uses(&mut owner, Place::Params, &session)["result"].is_object());
    daemon.stop();
}

#[test]
fn a_load_that_the_worker_refuses_leaves_nothing_behind() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut first, mut second) = (daemon.connect(), daemon.connect());
    new_session(&mut second);
    let refused = first.request(1, "session/load", json!({ "sessionId": "old", "unknown": true }));
    assert_eq!(refused["error"]["code"], -32002);
    is_denied(&mut first, Place::Params, "old");
    assert!(second.request(1, "session/load", json!({ "sessionId": "old" }))["result"].is_object());
    assert!(uses(&mut second, Place::Params, "old")["result"].is_object());
    is_denied(&mut first, Place::Params, "old");
    daemon.stop();
}

#[test]
fn a_name_that_a_client_only_used_is_free_when_it_has_left_and_nothing_of_it_is_pending() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut owner, mut stranger) = (daemon.connect(), daemon.connect());
    owner.ask_in("used", 1, "hold", json!({}));
    owner.request(2, "who", json!({}));
    leaves(&daemon, owner);
    for place in PLACES {
        is_denied(&mut stranger, place, "used");
    }
    // The late answer precedes the one to this.
    stranger.request(2, "release", json!({}));
    assert!(uses(&mut stranger, Place::Top, "used")["result"].is_object());
    daemon.stop();
}

#[test]
fn a_name_given_out_after_its_client_has_left_has_no_owner() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut owner, mut stranger) = (daemon.connect(), daemon.connect());
    owner.ask(1, "session/new", json!({ "later": true }));
    owner.request(2, "who", json!({}));
    leaves(&daemon, owner);
    stranger.request(1, "release", json!({}));
    for place in PLACES {
        is_denied(&mut stranger, place, "session-0");
    }
    assert!(stranger.request(2, "session/load", json!({ "sessionId": "session-0" }))["result"].is_object());
    assert!(uses(&mut stranger, Place::Params, "session-0")["result"].is_object());
    daemon.stop();
}

#[test]
fn a_session_that_its_owner_closed_is_not_held_when_it_leaves() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut owner, mut stranger) = (daemon.connect(), daemon.connect());
    let session = new_session(&mut owner);
    assert!(owner.request(1, "session/close", json!({ "sessionId": session }))["result"].is_object());
    leaves(&daemon, owner);
    assert!(uses(&mut stranger, Place::Top, &session)["result"].is_object());
    daemon.stop();
}

#[test]
fn among_many_workers_a_foreign_name_is_refused_and_a_new_one_is_not() {
    let mut daemon = Setup::new([echo("agents", 32)]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    for at in 0..40 {
        assert!(uses(&mut victim, Place::Params, &format!("victims-{at}"))["result"].is_object());
    }
    for place in PLACES {
        for at in 0..40 {
            is_denied(&mut attacker, place, &format!("victims-{at}"));
        }
        assert!(uses(&mut attacker, place, &format!("attackers-{place:?}"))["result"].is_object());
    }
    daemon.stop();
}
