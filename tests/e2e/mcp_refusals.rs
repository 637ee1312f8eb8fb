//! Valid requests that an MCP listener refuses: mismatched versions, batches and methods, and more than a session may
//! have.

use serde_json::{Value, json};

use crate::harness::{Daemon, Setup, echo, with, worker};
use crate::http::{Answer, Http, notification, request};
use crate::mcp::{VERSION, dedicated, door, door_of, modern, post_modern};

const ALICE: &str = "Bearer 0123456789abcdef";
const BOB: &str = "Bearer fedcba9876543210";

fn shared(flags: &[&str]) -> Value {
    with(worker("tools", 1, flags), "assignment", "client")
}

#[test]
fn an_unsupported_version_is_refused_in_every_kind_of_request() {
    let daemon = door(shared(&[]), json!({}));
    let session = Http::session(daemon.address(), "2025-03-26");
    let batch = json!([request(1, "a", json!({}))]).to_string();
    for (line, version, body, status) in [
        ("GET /mcp", "1999-01-01", "", 400),
        ("DELETE /mcp", "1999-01-01", "", 400),
        ("POST /mcp", "1999-01-01", batch.as_str(), 400),
        ("POST /mcp", "2026-07-28", batch.as_str(), 400),
        ("GET /mcp", "2026-07-28", "", 405),
    ] {
        let mut client = session.again();
        client.send(line, &[("MCP-Protocol-Version", version)], body);
        let answer = client.answer();
        assert_eq!(answer.status, status, "{line} {version}: {answer:?}");
    }
    assert_eq!(session.again().call(2, "a", json!({}))["id"], 2, "the session is as it was");
    daemon.stop();
}

#[test]
fn the_session_and_the_version_of_a_request_are_looked_at_before_its_body() {
    let daemon = door(shared(&[]), json!({}));
    let old = Http::session(daemon.address(), "2025-03-26");
    let session = Http::session(daemon.address(), VERSION);
    let status = |client: &Http, session: Option<&str>, version: &str, body: &str| {
        let mut fields = vec![("MCP-Protocol-Version", version)];
        fields.extend(session.map(|session| ("Mcp-Session-Id", session)));
        let mut client = if session.is_some() { Http::connect(daemon.address()) } else { client.again() };
        client.send("POST /mcp", &fields, body);
        client.answer().status
    };
    for wrong in ["[7", "[[[[", "{\"id\":", "nothing"] {
        assert_eq!(status(&old, None, "2025-03-26", wrong), 400, "it is read: {wrong}");
        assert_eq!(status(&old, Some("another"), "2025-03-26", wrong), 404, "{wrong}");
    }
    let batch = json!([request(1, "a", json!({}))]).to_string();
    assert_eq!(status(&session, None, VERSION, &batch), 400, "its revision has no batches");
    let mut stranger = Http::connect(daemon.address());
    let answer = stranger.ask(&json!([request(1, "a", json!({}))]));
    assert!(answer.status == 400 && answer.body.contains("names no session"), "{answer:?}");
    daemon.stop();
}

#[test]
fn initialize_is_refused_in_a_batch() {
    let daemon = door(shared(&[]), json!({}));
    let session = Http::session(daemon.address(), "2025-03-26");
    let mut client = session.again();
    let batch =
        json!([request(1, "a", json!({})), request(2, "initialize", json!({ "protocolVersion": "2025-03-26" }))]);
    let answer = client.ask(&batch);
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (400, Some(-32600)), "{answer:?}");
    assert_eq!(client.call(1, "a", json!({}))["id"], 1, "nothing of it has gone to the worker");
    daemon.stop();
}

#[test]
fn a_session_may_have_a_thousand_pending_requests_and_gets_an_error_for_more() {
    let daemon = door(shared(&["--keep"]), json!({}));
    let session = Http::session(daemon.address(), "2025-03-26");
    let (mut asks, mut other) = (session.again(), session.again());
    let batch = |ids: std::ops::Range<u64>| Value::from_iter(ids.map(|id| request(id, "hold", json!({}))));
    let answer = asks.ask(&batch(0..1025));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (413, Some(-32600)), "{answer:?}");
    asks.post(&batch(0..1000));
    daemon.until("they are with the worker", || {
        other.call(2000, "kept", json!({})).to_string().matches("hold").count() == 1000
    });
    let answer = session.again().ask(&batch(3000..3025));
    assert_eq!((answer.status, answer.fields.contains_key("retry-after")), (429, true), "{answer:?}");
    assert_eq!(answer.json()["error"]["data"], json!({ "reason": "pending_limit", "delivered": false }));
    assert_eq!(other.call(2001, "release", json!({}))["id"], 2001);
    assert!(asks.answer().is_stream());
    assert_eq!(asks.events().len(), 1000);
    daemon.stop();
}

#[test]
fn an_answer_to_head_has_no_body() {
    let daemon = door(shared(&[]), json!({}));
    for path in ["/mcp", "/other"] {
        let mut client = Http::connect(daemon.address());
        client.send(&format!("HEAD {path}"), &[], "");
        let head = client.head();
        assert!(matches!(head.status, 404 | 405) && head.fields["content-length"] != "0", "{head:?}");
        assert!(client.is_closed(), "{path}");
    }
    daemon.stop();
}

#[test]
fn initialize_that_says_2026_07_28_reaches_no_worker() {
    let daemon = door(shared(&[]), json!({}));
    let mut client = Http::connect(daemon.address());
    post_modern(&mut client, &modern(1, "tools/list", json!({})));
    assert_eq!(client.answer().status, 200, "its workers speak 2026-07-28");
    post_modern(&mut client, &modern(2, "initialize", json!({ "protocolVersion": VERSION })));
    let answer = client.answer();
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (404, Some(-32601)), "{answer:?}");
    daemon.stop();
}

#[test]
fn a_stream_that_is_resumed_elsewhere_ends_even_before_its_first_event() {
    let daemon = door(shared(&["--keep"]), json!({}));
    let session = Http::session(daemon.address(), VERSION);
    let (mut asks, mut other) = (session.again(), session.again());
    asks.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(2, "kept", json!({})).to_string().contains("hold"));
    // The stream's number can be guessed: the requests of two connections may be read in any order.
    let mut guesses = (2..20).map(|number| (session.again(), format!("{number}-0")));
    let found = guesses.find_map(|(mut thief, last)| thief.open(Some(&last)).is_stream().then_some(thief));
    let mut stolen = found.expect("it is one of these");
    assert!(asks.answer().is_stream());
    assert!(asks.events().iter().all(|event| event.data.is_empty()));
    assert_eq!(other.ask(&notification("release", json!({}))).status, 202);
    let last = stolen.events().pop().expect("the answer");
    assert_eq!(last.json()["id"], 1);
    daemon.stop();
}

#[test]
fn a_response_that_is_refused_gets_no_error_under_its_id_which_is_the_workers() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    client.send("DELETE /mcp", &[], "");
    assert_eq!(client.answer().status, 204);
    let refused = client.ask(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
    assert_eq!((refused.status, &refused.json()["id"]), (404, &json!(null)));
    assert_eq!(client.ask(&request(1, "m", json!({}))).json()["id"], 1);
    daemon.stop();
}

#[test]
fn a_request_that_its_head_answers_is_not_told_to_continue() {
    let daemon = door(shared(&[]), json!({ "origins": ["https://app.example"] }));
    let mut page = Http::connect(daemon.address()).with("Origin", "https://app.example");
    page.send("OPTIONS /mcp", &[("Access-Control-Request-Method", "POST"), ("Expect", "100-continue")], "");
    assert_eq!(page.answer().status, 204);
    assert_eq!(page.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION }))).status, 200);
    daemon.stop();
}

#[test]
fn a_token_that_is_revoked_while_a_request_uploads_begins_no_session() {
    let setup = Setup::new([shared(&[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    let begins = request(0, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} }));
    alice.uploads(&begins);
    std::fs::write(&path, "bob:fedcba9876543210\n").unwrap();
    let bob = || Http::connect(daemon.address()).with("Authorization", BOB);
    daemon.until("the file was read again", || bob().ask(&request(0, "ping", json!({}))).status == 400);
    alice.send_bytes(begins.to_string().as_bytes());
    assert_eq!(alice.answer().status, 401);
    daemon.stop();
}

#[test]
fn a_token_that_is_revoked_while_a_request_uploads_reaches_no_session_of_its_name() {
    let setup = Setup::new([shared(&[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nalice:fedcba9876543210\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut owner = Http::connect(daemon.address()).with("Authorization", BOB);
    let id = begins(&mut owner).fields["mcp-session-id"].clone();
    let mut revoked = Http::connect(daemon.address()).with("Authorization", ALICE).with("Mcp-Session-Id", &id);
    let asks = request(1, "m", json!({}));
    revoked.uploads(&asks);
    std::fs::write(&path, "alice:fedcba9876543210\n").unwrap();
    let other = || Http::connect(daemon.address()).with("Authorization", ALICE);
    daemon.until("the file was read again", || other().ask(&request(0, "ping", json!({}))).status == 401);
    revoked.send_bytes(asks.to_string().as_bytes());
    assert_eq!(revoked.answer().status, 401);
    daemon.stop();
}

/// A daemon for alice and bob, whose listener has these keys too, and a session of bob, which is older than `sessions`
/// further ones of alice.
fn full_of_alice(keys: &Value, others: usize, sessions: usize) -> (Daemon, Http, Http) {
    let setup = Setup::new([shared(&[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").unwrap();
    let daemon = door_of(setup, with(keys.clone(), "tokens_file", json!(path)));
    let mut bob = Http::connect(daemon.address()).with("Authorization", BOB);
    let id = begins(&mut bob).fields["mcp-session-id"].clone();
    (0..others).for_each(|_| assert_eq!(begins(&mut bob).status, 200));
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    (0..sessions).for_each(|_| assert_eq!(begins(&mut alice).status, 200));
    (daemon, alice, bob.with("Mcp-Session-Id", &id))
}

fn begins(client: &mut Http) -> Answer {
    client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })))
}

#[test]
fn a_source_with_all_its_sessions_evicts_none_of_another() {
    let keys = json!({ "max_connections": { "per_source": 1000 } });
    let (daemon, mut alice, mut bob) = full_of_alice(&keys, 23, 1000);
    (0..3).for_each(|_| assert_eq!(begins(&mut alice).status, 429));
    assert_eq!(bob.call(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_source_with_most_sessions_gives_way_to_the_others() {
    let (daemon, mut alice, mut bob) = full_of_alice(&json!({}), 0, 1023);
    for client in [&mut alice, &mut bob.again()] {
        (0..3).for_each(|_| assert_eq!(begins(client).status, 200));
    }
    assert_eq!(bob.call(1, "m", json!({}))["id"], 1, "it is idle longest, and stays");
    assert_eq!(daemon.log().matches("reason=session_evicted").count(), 6);
    daemon.stop();
}

#[test]
fn a_token_reaches_no_session_in_a_pool_that_only_another_token_of_its_name_grants() {
    let tools = with(worker("others", 1, &[]), "assignment", "client");
    let setup = Setup::new([shared(&[]), tools]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef tools\nalice:fedcba9876543210 others\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    let id = begins(&mut alice).fields["mcp-session-id"].clone();
    let mut alice = alice.with("Mcp-Session-Id", &id);
    let mut other = Http::connect(daemon.address()).with("Authorization", BOB).with("Mcp-Session-Id", &id);
    assert_eq!(other.ask(&request(1, "m", json!({}))).status, 404);
    assert_eq!(other.open(None).status, 404);
    assert_eq!(alice.call(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_long_body_gets_its_answer_or_its_error_wherever_the_scanner_is_in_doubt() {
    let daemon = door(with(echo("echo", 1), "assignment", "client"), json!({}));
    let session = Http::session(daemon.address(), VERSION);
    let numbers = "1,".repeat(200_000);
    let post = |text: &str| {
        let mut client = session.again();
        client.send("POST /mcp", &[], text);
        // One behind it on the same connection waits for its turn.
        client.send("POST /mcp", &[], &request(99, "behind", json!({})).to_string());
        let answers = [client.answer(), client.answer()];
        assert_eq!(answers[1].json()["id"], 99, "{:?}", answers[1]);
        let [first, _] = answers;
        first
    };
    for (id, key) in [(1, "b"), (2, "\\u0062"), (3, "\\u0069d")] {
        let params = format!(r#"{{"a":[{numbers}1],"{key}":"é"}}"#);
        let answer = post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{params}}}"#));
        assert_eq!(answer.status, 200, "{key}");
        assert!(
            answer.body.contains(&format!(r#""result":{{"echo":{params},"method":"m"}}"#)),
            "{key}: it is as it was"
        );
        assert_eq!(answer.json()["id"], id);
    }
    for wrong in [",", "\u{0}", "\"params\":1"] {
        let answer = post(&format!(r#"{{"jsonrpc":"2.0","id":4,"method":"m","params":{{"a":[{numbers}1]}},{wrong}}}"#));
        assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (400, Some(-32700)), "{wrong:?}");
    }
    daemon.stop();
}
