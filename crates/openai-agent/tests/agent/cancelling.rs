//! The ways to stop: session/cancel, $/cancel_request, session/close, the end of the input, signals, a closed stdout.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::client::{Client, PATIENCE, end_of, until};
use super::endpoint::Endpoint;
use super::many::Unread;

/// An endpoint that says "a" and then nothing ("mute" is not even answered), and reports when its connection was
/// closed. Prompts that contain "fine" are answered.
fn stuck() -> (Endpoint, Receiver<()>) {
    let (closed, closings): (Sender<()>, _) = channel();
    let closed = Arc::new(Mutex::new(closed));
    let endpoint = Endpoint::start(move |request, conn| {
        match request.said().as_str() {
            "fine" => return conn.say(&["ok"]),
            "mute" => {}
            _ => {
                conn.begin();
                conn.text("a");
            }
        }
        conn.wait_closed();
        closed.lock().unwrap().send(()).unwrap();
    });
    (endpoint, closings)
}

/// Waits until the endpoint has seen the end of the request. Otherwise it would stay open forever.
fn closed(closings: &Receiver<()>) {
    closings.recv_timeout(PATIENCE).expect("the endpoint sees the end of the request");
}

/// A prompt that such an endpoint has begun to answer: the endpoint, its reports, the client, the session and the id.
fn stuck_in_a_prompt() -> (Endpoint, Receiver<()>, Client, String, u64) {
    let (endpoint, closings) = stuck();
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let id = client.ask_prompt(&session, "hi");
    client.line();
    (endpoint, closings, client, session, id)
}

#[test]
fn cancel_stops_the_request_and_the_next_prompt_works() {
    let (endpoint, closings) = stuck();
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    for _ in 0..5 {
        let id = client.ask_prompt(&session, "hi");
        assert_eq!(client.line()["params"]["update"]["content"]["text"], "a");
        client.notify("session/cancel", json!({"sessionId": session}));
        let answered = client.answer(id);
        assert_eq!((answered.stop(), answered.updates.len()), ("cancelled", 0));
        closed(&closings);
    }
    assert_eq!(client.prompt(&session, "fine").text(), "ok");
    let messages = endpoint.requests().last().unwrap().body["messages"].clone();
    let expected = json!([{"role": "user", "content": "hi\n\nfine"}]);
    assert_eq!(messages, expected, "of the cancelled turns what the user said is kept, and that once");
}

#[test]
fn cancel_with_an_id_is_answered_too() {
    let (_endpoint, closings, mut client, session, prompt) = stuck_in_a_prompt();
    let cancel = client.ask("session/cancel", json!({"sessionId": session}));
    assert_eq!(client.answer(prompt).stop(), "cancelled");
    assert_eq!(client.answer(cancel).answer["result"], json!({}));
    closed(&closings);
    // Nothing is running any more: that is not an error.
    assert_eq!(client.result("session/cancel", json!({"sessionId": session})), json!({}));
    client.notify("session/cancel", json!({"sessionId": "unknown"}));
    client.notify("session/cancel", json!({}));
    assert_eq!(client.prompt(&session, "fine").text(), "ok");
}

#[test]
fn cancel_and_the_next_prompt_may_come_in_one_write() {
    let (endpoint, _closings) = stuck();
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let prompt = |id: &str, text: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt",
            "params": {"sessionId": session, "prompt": [{"type": "text", "text": text}]}})
    };
    let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}});
    client.write(format!("{}\n{cancel}\n{}\n", prompt("1", "hi"), prompt("2", "fine")).as_bytes());
    let line = client.line();
    assert_eq!((&line["id"], &line["result"]["stopReason"]), (&json!("1"), &json!("cancelled")));
    loop {
        let line = client.line();
        if line["id"] == "2" {
            assert_eq!(line["result"]["stopReason"], "end_turn");
            break;
        }
    }
}

#[test]
fn a_request_is_cancelled_by_its_id() {
    let (_endpoint, closings, mut client, session, id) = stuck_in_a_prompt();
    client.notify("$/cancel_request", json!({"requestId": id.to_string()}));
    client.notify("$/cancel_request", json!({"requestId": id}));
    assert_eq!(client.answer(id).answer["error"]["code"], -32800);
    closed(&closings);
    assert_eq!(client.prompt(&session, "fine").text(), "ok");
}

#[test]
fn a_request_that_is_not_answered_yet_or_waits_for_a_retry_is_cancelled_too() {
    let (endpoint, closings) = stuck();
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let id = client.ask_prompt(&session, "mute");
    until("the endpoint is asked", || !endpoint.requests().is_empty());
    client.notify("session/cancel", json!({"sessionId": session}));
    assert_eq!(client.answer(id).stop(), "cancelled");
    closed(&closings);

    let endpoint = Endpoint::start(|_, conn| conn.respond(429, &[("retry-after", "50")], ""));
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let id = client.ask_prompt(&session, "hi");
    until("the endpoint is asked", || !endpoint.requests().is_empty());
    client.notify("session/cancel", json!({"sessionId": session}));
    assert_eq!(client.answer(id).stop(), "cancelled");
}

#[test]
fn closing_a_session_cancels_what_runs_in_it() {
    let (_endpoint, closings, mut client, session, prompt) = stuck_in_a_prompt();
    let close = client.ask("session/close", json!({"sessionId": session}));
    assert_eq!(client.answer(prompt).stop(), "cancelled");
    assert_eq!(client.answer(close).answer["result"], json!({}));
    closed(&closings);
}

#[test]
fn the_end_of_the_input_aborts_and_exits() {
    let (_endpoint, closings, mut client, _session, prompt) = stuck_in_a_prompt();
    client.close();
    assert_eq!(client.answer(prompt).stop(), "cancelled");
    closed(&closings);
    assert_eq!(client.wait(), Some(0));
}

#[test]
fn signals_end_the_process() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let (_endpoint, _closings, mut client, _session, prompt) = stuck_in_a_prompt();
        client.signal(signal);
        assert_eq!(client.answer(prompt).stop(), "cancelled");
        assert_eq!(client.wait(), Some(0));
    }
}

#[test]
fn an_agent_started_under_nohup_survives_a_hangup() {
    let (endpoint, _closings) = stuck();
    // As nohup starts it.
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" acp", env!("CARGO_BIN_EXE_openai-agent")]);
    command.env("OPENAI_BASE_URL", endpoint.url());
    let mut client = Client::spawn(command);
    let session = client.session();
    client.signal(libc::SIGHUP);
    assert_eq!(client.prompt(&session, "fine").text(), "ok");
}

#[test]
fn cancel_under_the_name_of_the_rfd_is_understood() {
    let (_endpoint, closings, mut client, session, prompt) = stuck_in_a_prompt();
    client.notify("cancel", json!({"sessionId": session}));
    assert_eq!(client.answer(prompt).stop(), "cancelled");
    closed(&closings);
    assert_eq!(client.result("cancel", json!({"sessionId": session})), json!({}));
    assert_eq!(client.error("cancel", json!({"sessionId": "unknown"}))["code"], -32002);
}

#[test]
fn a_reader_that_stops_reading_does_not_keep_the_process_alive() {
    let endpoint = Endpoint::start(|_, conn| {
        conn.begin();
        conn.stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let data = super::endpoint::delta(json!({"content": "x".repeat(1000)})).to_string();
        let event = format!("data: {data}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        // It writes until the agent takes no more, and then until the agent is gone.
        while conn.stream.write_all(chunk.as_bytes()).is_ok() {}
        conn.cut();
    });
    let mut agent = Unread::start(&endpoint);
    let session = agent.session(0);
    agent.ask_prompt(1, &session);
    agent.line();
    // SAFETY: kill(2) with the id of a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(agent.child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(end_of(&mut agent.child), Some(0));
}

#[test]
fn a_closed_stdout_ends_the_process() {
    let mut command = super::client::program();
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    // A process that another test is starting holds a copy of the closed descriptor until its exec, and reads it, too.
    until("an answer meets nobody", || {
        let _ = stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{}}\n");
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(end_of(&mut child), Some(0));
}
