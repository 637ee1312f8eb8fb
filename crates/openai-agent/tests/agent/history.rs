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
fn a_session_continues_in_another_process() {
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
    // A machine crash, too, leaves part of a write.
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
    // The turn of the other process is there when the session is loaded.
    left.result("session/load", load(&session));
    left.prompt(&session, "three");
    right.result("session/resume", load(&session));
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

#[test]
fn a_bad_line_costs_its_turn_and_not_those_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let mut first = client(&endpoint, dir.path());
    let session = first.session();
    for text in ["one", "two", "three"] {
        first.prompt(&session, text);
    }
    drop(first);
    let path = dir.path().join(format!("{session}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2] = "{\"user\":{\"role\":\"user\",\"cont";
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();

    let env = [("OPENAI_BASE_URL", endpoint.url()), ("OPENAI_HISTORY_DIR", dir.path().to_str().unwrap().to_owned())];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut second = Client::logging("warn", &env);
    assert_eq!(second.call("session/load", load(&session)).updates.len(), 4);
    second.prompt(&session, "four");
    assert_eq!(said(&endpoint), ["one", "fine", "three", "fine", "four"]);
    let log = second.log();
    let expected = format!("Session {session}: {}: line 3 cannot be read and is passed over", path.display());
    assert_eq!((log.lines().count(), log.contains(&expected)), (1, true), "{log}");
    // Nothing was cut off: a user who can repair the line still has it.
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!((text.lines().count(), text.lines().nth(2)), (5, Some(lines[2])));
}

#[test]
fn a_full_disk_is_reported_and_spoils_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|request, conn| match request.said().as_str() {
        "long" => conn.say(&["x".repeat(8000).as_str(), "y"]),
        _ => conn.say(&["fine"]),
    });
    // No file may grow beyond 2 KiB (4 blocks of 512 bytes); writes beyond get an error.
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg("trap '' XFSZ; ulimit -f 4; exec \"$0\" acp").arg(env!("CARGO_BIN_EXE_openai-agent"));
    command.env("OPENAI_BASE_URL", endpoint.url()).env("OPENAI_HISTORY_DIR", dir.path()).env("OPENAI_LOG", "error");
    command.stderr(std::process::Stdio::piped());
    let mut first = Client::run(command);
    let session = first.session();
    assert_eq!(first.prompt(&session, "one").text(), "fine");
    let answered = first.prompt(&session, "long");
    assert_eq!(answered.stop(), "end_turn");
    let (answer, aside) = answered.updates.split_at(2);
    assert_eq!(
        answer[0]["content"]["text"].as_str().unwrap().len() + answer[1]["content"]["text"].as_str().unwrap().len(),
        8001
    );
    assert_eq!(aside.len(), 1);
    assert!(
        aside[0]["content"]["text"].as_str().unwrap().starts_with("\n\nThis turn could not be stored: File too large")
    );
    assert_ne!(aside[0]["messageId"], answer[0]["messageId"]);
    // A turn that fits again is stored again, and one that is not on disk is still sent with the next prompt.
    assert_eq!(first.prompt(&session, "three").text(), "fine");
    assert_eq!(said(&endpoint).len(), 5);
    let log = first.log();
    assert!(log.contains(&format!("error: Session {session}: a turn could not be stored: File too large")), "{log}");

    let mut second = client(&endpoint, dir.path());
    let loaded = second.call("session/load", load(&session));
    assert_eq!(loaded.text_of("user_message_chunk"), "onethree");
}

#[test]
fn a_deleted_directory_is_reported_and_spoils_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let mut client = client(&endpoint, dir.path());
    let session = client.session();
    std::fs::remove_dir_all(dir.path()).unwrap();
    let answered = client.prompt(&session, "one");
    assert_eq!(answered.stop(), "end_turn");
    assert!(answered.text().starts_with("fine\n\nThis turn could not be stored: No such file"), "{answered:?}");
    std::fs::create_dir(dir.path()).unwrap();
    assert_eq!(client.prompt(&session, "two").text(), "fine");
    assert_eq!(said(&endpoint), ["one", "fine", "two"]);
    assert_eq!(client.result("session/list", json!({}))["sessions"].as_array().unwrap().len(), 1);
}

#[test]
fn a_session_whose_model_is_not_offered_any_more_continues_with_another() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let mut first = client(&endpoint, dir.path());
    let session = first.session();
    first.result("session/set_model", json!({"sessionId": session, "modelId": "old"}));
    first.prompt(&session, "one");
    drop(first);
    for method in ["session/load", "session/resume"] {
        let env = [
            ("OPENAI_BASE_URL", endpoint.url()),
            ("OPENAI_HISTORY_DIR", dir.path().to_str().unwrap().to_owned()),
            ("OPENAI_MODELS", "new,newer".to_owned()),
            ("OPENAI_MODEL", "new".to_owned()),
        ];
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut client = Client::logging("warn", &env);
        let result = client.result(method, load(&session));
        assert_eq!(
            (&result["configOptions"][0]["currentValue"], &result["models"]["currentModelId"]),
            (&json!("new"), &json!("new"))
        );
        client.prompt(&session, "two");
        assert_eq!(endpoint.requests().last().unwrap().body["model"], "new");
        let log = client.log();
        let is_logged = match method {
            "session/load" => {
                log.contains(&format!("Session {session}: it continues with new, for old is not in OPENAI_MODELS"))
            }
            // By then its last turn was with the new one.
            _ => !log.contains("it continues with"),
        };
        assert!(is_logged, "{log}");
    }
}

#[test]
fn the_sessions_of_a_directory_are_listed_unless_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let start = |scope: &str| {
        let (url, dir) = (endpoint.url(), dir.path().to_str().unwrap().to_owned());
        Client::start(&[("OPENAI_BASE_URL", &url), ("OPENAI_HISTORY_DIR", &dir), ("OPENAI_LIST_SESSIONS", scope)])
    };
    let (mut left, mut right) = (start("all"), start(""));
    let list = |client: &mut Client, params: Json| {
        let result = client.result("session/list", params);
        let sessions = result["sessions"].as_array().unwrap().iter();
        let mut names: Vec<String> = sessions.map(|info| info["sessionId"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let mut both = vec![left.session(), right.session()];
    left.prompt(&both[0], "mine");
    right.prompt(&both[1], "theirs");
    both.sort();
    assert_eq!((list(&mut left, json!({})), list(&mut right, json!({"cwd": "/work"}))), (both.clone(), both));
    assert!(list(&mut left, json!({"cwd": "/other"})).is_empty());

    let mut none = start("none");
    assert_eq!(none.error("session/list", json!({}))["code"], -32601);
    let capabilities = none.result("initialize", json!({"protocolVersion": 1}))["agentCapabilities"].clone();
    assert!(capabilities["sessionCapabilities"].get("list").is_none());
}

#[test]
fn the_title_and_the_last_model_survive_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::saying(&["fine"]);
    let mut first = client(&endpoint, dir.path());
    let session = first.session();
    first.prompt(&session, "Mend the roof");
    first.result("session/set_model", json!({"sessionId": session, "modelId": "other"}));
    first.prompt(&session, "and the floor");
    let title = (session.clone(), "Mend the roof".to_owned());
    assert_eq!(first.titles, std::slice::from_ref(&title));
    drop(first);
    let mut second = client(&endpoint, dir.path());
    let result = second.call("session/resume", load(&session)).answer["result"].take();
    assert_eq!((&second.titles[..], &result["models"]["currentModelId"]), (&[title][..], &json!("other")));
}
