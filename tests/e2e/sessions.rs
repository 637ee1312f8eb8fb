//! Routing (spec 6; decisions 3 to 7). The core's tests and its model prove the rules; these show that real processes,
//! pipes and connections follow them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{SetAtTheEnd, Setup, with, worker};

fn process(answer: &Value) -> u64 {
    answer["result"]["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {answer}"))
}

#[test]
fn a_client_cannot_use_or_take_the_session_of_another() {
    let mut daemon = Setup::new([worker("agents", 2, &[])]).start();
    let (mut owner, mut thief) = (daemon.connect(), daemon.connect());
    owner.request(0, "session/new", json!({ "name": "secret" }));
    for (id, line) in [
        (1, json!({ "id": 1, "method": "session/prompt", "params": { "sessionId": "secret" } })),
        (2, json!({ "id": 2, "method": "m", "sessionId": "secret" })),
    ] {
        thief.send(&line);
        assert_eq!(thief.error(id, "session_denied"), -32014);
    }
    thief.send(&json!({ "method": "session/cancel", "params": { "sessionId": "secret" } }));
    owner.ask_in("secret", 1, "ask", json!({ "about": "the owner" }));
    let question = owner.message();
    assert_eq!(question["params"]["about"], "the owner");
    // An answer to the same id from another client is dropped.
    thief.send(&json!({ "id": question["id"], "result": "stolen" }));
    daemon.logs(&["unknown_id"]);
    owner.send(&json!({ "id": question["id"], "result": "given" }));
    assert_eq!(owner.answer(1)["result"]["answered"], "given");
    daemon.stop();
}

#[test]
fn a_dedicated_worker_serves_one_connection_and_ends_with_it() {
    let pool = with(with(worker("agents", 1, &[]), "assignment", "dedicated"), "max_instances", 3);
    let mut daemon = Setup::new([pool]).start();
    let (mut first, mut second, mut third) = (daemon.connect(), daemon.connect(), daemon.connect());
    let pids: Vec<u64> = [&mut first, &mut second, &mut third]
        .into_iter()
        .map(|client| process(&client.request(0, "m", json!({}))))
        .collect();
    assert!(pids[0] != pids[1] && pids[1] != pids[2] && pids[0] != pids[2]);
    // All messages of its worker are this client's, with or without a session.
    first.send(&json!({ "method": "write", "params": { "text": "{\"method\":\"plain\"}\n" } }));
    assert_eq!(first.message()["method"], "plain");
    let mut fourth = daemon.connect();
    fourth.ask(1, "m", json!({}));
    assert_eq!(fourth.error(1, "no_worker"), -32010);
    drop(second);
    daemon.until("its worker has gone", || !crate::harness::lives(pids[1]));
    let mut answered = Value::Null;
    daemon.until("there is room for the next", || {
        fourth.ask(2, "m", json!({}));
        answered = fourth.answer(2);
        answered["result"].is_object()
    });
    assert!(!pids.contains(&process(&answered)), "no client gets a used worker");
    daemon.stop();
}

#[test]
fn every_request_that_a_client_sends_while_its_own_worker_dies_is_answered_or_refused() {
    const MOST: u64 = 20_000;
    let pool = with(with(worker("agents", 1, &[]), "assignment", "dedicated"), "max_instances", 3);
    let mut daemon = Setup::new([pool]).limit("max_restarts", 1000).tcp().start();
    for _ in 0..10 {
        let mut client = daemon.connect();
        client.request("first", "m", json!({}));
        let mut speaker = client.second();
        let is_told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                let (mut last, mut held_up) = (Instant::now(), Duration::ZERO);
                let asked = (0..MOST).find(|id| {
                    held_up = if *id > 100 { held_up.max(last.elapsed()) } else { Duration::ZERO };
                    last = Instant::now();
                    let method = if *id == 100 { "exit" } else { "m" };
                    let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "code": 3 } });
                    // A client that knows of the end sends nothing more. Whether bytes written after the end were lost
                    // shows only when more are written.
                    is_told.load(Ordering::Relaxed)
                        || speaker.try_send(format!("{line}\n").as_bytes()).is_err()
                        || speaker.is_over()
                });
                (asked.unwrap_or(MOST), held_up.max(last.elapsed()))
            });
            let _told = SetAtTheEnd(&is_told);
            let mut answered = BTreeSet::new();
            while let Some(message) = client.message_or_end() {
                if message["error"].is_object() {
                    is_told.store(true, Ordering::Relaxed);
                }
                if message["id"].is_null() {
                    assert_eq!(message["error"]["data"]["reason"], "own_worker_ended");
                    continue;
                }
                assert!(answered.insert(message["id"].as_u64().expect("it was asked")), "twice: {message}");
            }
            is_told.store(true, Ordering::Relaxed);
            let (asked, held_up) = asks.join().expect("it asks");
            let unanswered: Vec<u64> = (0..asked).filter(|id| !answered.contains(id)).collect();
            // A client that gets no processor for a second is not waited for.
            let is_complete = unanswered.is_empty() || held_up >= Duration::from_secs(1);
            assert!(is_complete, "{} of {asked} have no answer: {unanswered:?}", unanswered.len());
        });
    }
    daemon.stop();
}

#[test]
fn in_stdio_mode_the_daemon_ends_with_the_worker_of_its_one_client() {
    let pool = with(worker("agents", 1, &[]), "assignment", "dedicated");
    let mut daemon = Setup::new([pool]).stdio().start();
    let mut client = daemon.connect();
    client.request(0, "m", json!({}));
    client.ask(1, "exit", json!({ "code": 3 }));
    assert_eq!(client.error(1, "worker_exited"), -32011);
    assert_eq!(client.error(json!(null), "own_worker_ended"), -32011);
    client.ends();
    assert_eq!(daemon.wait().code(), Some(0));
    daemon.logs(&["the worker of its one client has ended"]);
}

/// An agent that refuses everything before `initialize`, and a second one, as several do.
const STRICT: &str = r#"
while IFS= read -r line; do
    id=$(printf %s "$line" | sed 's/.*"id":\([^,}]*\).*/\1/')
    case $seen$line in
        1*'"initialize"'*) answer='"error":{"code":-32600,"message":"Already initialized"}' ;;
        *'"initialize"'*) seen=1 answer="\"result\":{\"pid\":$$}" ;;
        1*'"exit"'*) exit 3 ;;
        1*) answer="\"result\":{\"pid\":$$}" ;;
        *) answer='"error":{"code":-32600,"message":"Not initialized"}' ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$answer"
done
"#;

#[test]
fn clients_of_a_strict_agent_share_it_and_go_on_after_its_crash() {
    let pool = with(crate::harness::shell("agents", STRICT), "assignment", "client");
    let mut daemon = Setup::new([pool]).start();
    let (mut one, mut two) = (daemon.connect(), daemon.connect());
    let asks = json!({ "protocolVersion": 1, "clientCapabilities": { "terminal": true } });
    let first = process(&one.request(0, "initialize", asks.clone()));
    assert_eq!(process(&two.request(5000, "initialize", asks)), first, "it is the answer to the first one");
    daemon.logs(&["initialize_refused", "takes one initialize only", "dedicated"]);
    one.ask(1, "exit", json!({}));
    assert_eq!(one.error(1, "worker_exited"), -32011);
    let next = process(&one.request(2, "session/new", json!({})));
    assert_ne!(next, first);
    assert_eq!(process(&two.request(5001, "session/new", json!({}))), next);
    daemon.stop();
}

/// Ids of a victim and of an attacker that are equal to a program with doubles and UTF-16.
const LIKE: [(&str, &str); 16] = [
    ("1", "1.00000000000000000001"),
    ("1", "0.99999999999999999999"),
    ("1.00000000000000000001", "1"),
    ("0", "1e-400"),
    ("0", "-0"),
    ("0", "-0.0"),
    ("1", "1.0"),
    ("100", "1e2"),
    ("9007199254740992", "9007199254740993"),
    ("9007199254740993", "9007199254740992"),
    ("-9007199254740992", "-9007199254740993"),
    ("12345678901234567890123", "12345678901234567890124"),
    ("1e400", "1e500"),
    (r#""\ud800""#, r#""\udc00""#),
    ("\"\u{fffd}\"", r#""\ud800""#),
    (r#""a\udc00b""#, r#""a\ud800b""#),
];

#[test]
fn ids_that_a_worker_with_doubles_confuses_are_distinguished_and_come_back_verbatim() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    for (theirs, ours) in LIKE {
        victim.send_line(&format!(r#"{{"id":{theirs},"method":"hold","params":{{"of":"victim"}}}}"#));
        victim.request("sync", "who", json!({}));
        attacker.send_line(&format!(r#"{{"id":{ours},"method":"hold","params":{{"of":"attacker"}}}}"#));
        attacker.request("sync", "who", json!({}));
        victim.ask("release", "release", json!({}));
        assert_eq!(victim.reply(theirs).result["echo"]["of"], "victim", "{theirs} and {ours}");
        assert_eq!(attacker.reply(ours).result["echo"]["of"], "attacker", "{theirs} and {ours}");
        victim.answer("release");
    }
    daemon.stop();
}
