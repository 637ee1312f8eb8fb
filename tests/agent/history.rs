//! Sessions that outlive their process.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::client::Client;
use super::endpoint::Endpoint;

fn client(endpoint: &Endpoint, dir: &Path) -> Client {
    let (url, dir) = (endpoint.url(), dir.to_str().unwrap().to_owned());
    Client::start(&[("OPENAI_BASE_URL", &url), ("OPENAI_HISTORY_DIR", &dir), ("OPENAI_IMAGE_INPUT", "1")])
}

fn load(session: &str) -> Json {
    json!({"sessionId": session, "cwd": "/work", "mcpServers": []})
}

fn said(endpoint: &Endpoint) -> Vec<String> {
    let messages = endpoint.requests().last().unwrap().body["messages"].clone();
    messages
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["content"].as_str().unwrap_or("parts").to_owned())
        .collect()
}

#[test]
fn a_session_goes_on_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|request, conn| {
        conn.begin();
        conn.text(&format!("answer {}", request.number));
        conn.finish_reason("stop");
        conn.event(&json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}));
        conn.done();
    });
    let mut first = client(&endpoint, dir.path());
    let capabilities = first.result("initialize", json!({"protocolVersion": 1}))["agentCapabilities"].clone();
    assert_eq!(capabilities["loadSession"], true);
    assert!(capabilities["sessionCapabilities"]["resume"].is_object());
    let session = first.session();
    first.prompt(&session, "one");
    let image = json!([{"type": "text", "text": "look"}, {"type": "image", "mimeType": "image/png", "data": "QUJD"}]);
    first.result("session/prompt", json!({"sessionId": session, "prompt": image}));
    first.result("session/set_model", json!({"sessionId": session, "modelId": "other"}));
    first.prompt(&session, "three");
    drop(first);

    let mut second = client(&endpoint, dir.path());
    let list = second.result("session/list", json!({}));
    assert_eq!(list["sessions"][0]["sessionId"], session.as_str());
    assert_eq!((&list["sessions"][0]["title"], &list["sessions"][0]["cwd"]), (&json!("one"), &json!("/work")));
    let loaded = second.call("session/load", load(&session));
    let result = &loaded.answer["result"];
    assert_eq!((&result["sessionId"], &result["configOptions"][0]["currentValue"]), (&json!(session), &json!("other")));
    let replay: Vec<(&str, &str)> = loaded
        .updates
        .iter()
        .map(|update| {
            let content = &update["content"];
            let text = content["text"].as_str().or(content["mimeType"].as_str()).unwrap();
            (update["sessionUpdate"].as_str().unwrap(), text)
        })
        .collect();
    assert_eq!(
        replay,
        [
            ("user_message_chunk", "one"),
            ("agent_message_chunk", "answer 0"),
            ("user_message_chunk", "look"),
            ("user_message_chunk", "image/png"),
            ("agent_message_chunk", "answer 1"),
            ("user_message_chunk", "three"),
            ("agent_message_chunk", "answer 2"),
        ]
    );
    let answered = second.prompt(&session, "four");
    assert_eq!(answered.answer["result"]["usage"]["totalTokens"], 8, "the counts go on too");
    assert_eq!(said(&endpoint), ["one", "answer 0", "parts", "answer 1", "three", "answer 2", "four"]);
    drop(second);

    let mut third = client(&endpoint, dir.path());
    assert!(third.call("session/resume", load(&session)).updates.is_empty());
    third.prompt(&session, "five");
    assert_eq!(said(&endpoint).len(), 9);
    third.result("session/delete", json!({"sessionId": session}));
    assert_eq!(third.error("session/load", load(&session))["code"], -32002);
    assert_eq!(third.result("session/list", json!({}))["sessions"], json!([]));
}

#[test]
fn a_crash_loses_at_most_the_last_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let endpoint = Endpoint::start(move |request, conn| {
        if request.said() == "slow" {
            conn.begin();
            conn.text("half");
            let _ = gate.lock().unwrap().recv();
            return conn.cut();
        }
        conn.say(&["fine"]);
    });
    let mut first = client(&endpoint, dir.path());
    let session = first.session();
    first.prompt(&session, "one");
    first.ask_prompt(&session, "slow");
    first.line();
    first.signal(libc::SIGKILL);
    first.wait();
    drop(open);
    // What a crash of the machine leaves of a write, too.
    let path = dir.path().join(format!("{session}.jsonl"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"user\":{\"role\":\"us");
    std::fs::write(&path, bytes).unwrap();

    let mut second = client(&endpoint, dir.path());
    assert_eq!(second.call("session/load", load(&session)).updates.len(), 2);
    second.prompt(&session, "two");
    assert_eq!(said(&endpoint), ["one", "fine", "two"]);
    drop(second);
    let mut third = client(&endpoint, dir.path());
    assert_eq!(third.call("session/load", load(&session)).updates.len(), 4);
}

#[test]
fn two_workers_may_serve_one_session_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let (mut left, mut right) = (client(&endpoint, dir.path()), client(&endpoint, dir.path()));
    let session = left.session();
    left.prompt(&session, "one");
    right.result("session/resume", load(&session));
    right.prompt(&session, "two");
    left.prompt(&session, "three");
    right.prompt(&session, "four");
    assert_eq!(said(&endpoint), ["one", "fine", "two", "fine", "three", "fine", "four"]);
}

#[test]
fn only_turns_that_ended_well_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|request, conn| match request.said().as_str() {
        "bad" => conn.refuse(400, "no"),
        _ => conn.say(&["fine"]),
    });
    let mut first = client(&endpoint, dir.path());
    let session = first.session();
    first.prompt(&session, "bad");
    drop(first);
    // Open Design resumes a session whose only turn failed.
    let mut second = client(&endpoint, dir.path());
    assert!(second.call("session/load", load(&session)).updates.is_empty());
    second.prompt(&session, "good");
    assert_eq!(said(&endpoint), ["good"]);
}

#[test]
fn unknown_and_foreign_names_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("junk.jsonl"), "not ours\n").unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let mut client = client(&endpoint, dir.path());
    for name in ["nobody", "../../etc/passwd", ""] {
        let error = client.error("session/load", load(name));
        assert_eq!((&error["code"], &error["data"]["sessionId"]), (&json!(-32002), &json!(name)));
    }
    assert_eq!(client.error("session/load", load("junk"))["code"], -32603);
    assert_eq!(client.result("session/list", json!({}))["sessions"], json!([]));
}
