//! Forms of requests that an MCP listener forgives, and the words with which it refuses others.

use serde_json::{Value, json};

use crate::harness::{Daemon, Setup};
use crate::http::{Answer, Http, notification, request};
use crate::mcp::{VERSION, dedicated, door, door_of, messages, shared};

/// Posts a message with these lines in its head in place of the usual `Accept`.
fn post(client: &mut Http, lines: &str, message: &Value) -> Answer {
    let (text, session) = (message.to_string(), client.session_id());
    let length = text.len();
    client.send_bytes(
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n{lines}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{text}"
        )
        .as_bytes(),
    );
    client.answer()
}

/// A request that makes the worker write a message of its log before the answer.
fn logs_first(id: u64) -> Value {
    let log = notification("notifications/message", json!({ "level": "info", "data": "x" }));
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "said": true } });
    request(id, "write", json!({ "text": format!("{log}\n{answer}\n") }))
}

#[test]
fn the_form_of_an_answer_is_one_that_the_client_accepts() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let one = |id: u64| request(id, "a", json!({}));
    for (id, accept) in [(1, ""), (2, "Accept: application/json\r\n"), (3, "Accept: application/mcp+json\r\n")] {
        let answer = post(&mut client, accept, &one(id));
        assert_eq!((answer.status, answer.is_stream()), (200, false), "{accept}: {answer:?}");
        assert_eq!(answer.json()["id"], id);
    }
    let answer = post(&mut client, "Accept: text/event-stream\r\n", &one(4));
    assert!(answer.is_stream(), "{answer:?}");
    assert_eq!(messages(&client.events())[0]["id"], 4);
    let answer = post(&mut client, "Accept: application/json\r\n", &logs_first(5));
    assert!(answer.is_stream(), "it is more than one message: {answer:?}");
    assert_eq!(messages(&client.events())[1]["result"]["said"], true);
    let refuses = "Accept: application/json, text/event-stream;q=0\r\n";
    let answer = post(&mut client, refuses, &logs_first(6));
    assert_eq!(answer.json()["result"]["said"], true, "no stream: {answer:?}");
    let mut stream = client.stream();
    assert_eq!(stream.message().expect("it was kept").json()["method"], "notifications/message");
    let long =
        request(7, "write", json!({ "text": format!("{}\n", json!({ "id": 7, "result": "x".repeat(200_000) })) }));
    let answer = post(&mut client, "Accept: application/json\r\n", &long);
    assert_eq!(answer.json()["id"], 7, "a long one is no stream either");
    daemon.stop();
}

#[test]
fn initialize_begins_a_session_whatever_version_its_head_names() {
    let daemon = door(shared(), json!({}));
    for version in ["2026-07-28", "2099-01-01", "nothing"] {
        let mut client = Http::connect(daemon.address());
        let hello = request(1, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} }));
        client.send("POST /mcp", &[("MCP-Protocol-Version", version)], &hello.to_string());
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{version}: {answer:?}");
        assert!(answer.fields.contains_key("mcp-session-id"), "{version}: {answer:?}");
    }
    daemon.stop();
}

/// A daemon whose listener wants a token.
fn guarded() -> Daemon {
    let setup = Setup::new([shared()]);
    let file = setup.text_path("tokens");
    std::fs::write(&file, "alice:0123456789abcdef\n").unwrap();
    door_of(setup, json!({ "tokens_file": file }))
}

#[test]
fn whoever_looks_for_an_authorization_server_is_told_that_there_is_none() {
    for daemon in [door(shared(), json!({})), guarded()] {
        for path in [
            "GET /.well-known/oauth-protected-resource/mcp",
            "GET /.well-known/oauth-authorization-server",
            "GET /mcp/.well-known/openid-configuration",
            "POST /register",
        ] {
            let mut client = Http::connect(daemon.address());
            client.send(path, &[], if path.starts_with("POST") { "{\"client_name\":\"x\"}" } else { "" });
            let answer = client.answer();
            assert_eq!((answer.status, answer.json()), (404, json!({ "error": "not_found" })), "{path}");
        }
        assert!(!daemon.log().contains("refused"), "it is nothing to warn of: {}", daemon.log());
        daemon.stop();
    }
}

#[test]
fn a_refusal_names_what_was_asked_for_and_what_to_change() {
    let daemon = guarded();
    let mut client = Http::connect(daemon.address());
    let answer = client.ask(&request(1, "a", json!({})));
    assert!(answer.status == 401 && !answer.body.contains("subprotocol"), "{answer:?}");
    let mut client = Http::connect(daemon.address()).with("Authorization", "Bearer 0123456789abcdef");
    client.send("POST /mcp/toolz", &[], &request(1, "initialize", json!({})).to_string());
    let answer = client.answer();
    assert!(answer.status == 404 && answer.body.contains("there is no pool \\\"toolz\\\" here"), "{answer:?}");
    assert!(answer.body.contains("/mcp/tools"), "{answer:?}");
    client.send_bytes(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n");
    let answer = client.answer();
    assert!(answer.status == 413 && answer.body.contains("limits.max_input_buffer, 1048576 bytes"), "{answer:?}");
    daemon.stop();
}

#[test]
fn a_server_that_prints_to_stdout_serves_http_clients_and_its_lines_are_logged() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "said": true } });
    let text = format!("MCP Server running on stdio\n{answer}\n");
    assert_eq!(client.call(1, "write", json!({ "text": text }))["result"]["said"], true);
    daemon.logs(&["] stdout: MCP Server running on stdio"]);
    daemon.logs(&["WARN", "pools[].on_bad_output", "reason=worker_stdout"]);
    daemon.stop();
}
