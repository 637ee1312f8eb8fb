//! Keys that change: from a file, from a command.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::client::{Client, program, until};
use super::endpoint::Endpoint;

/// An endpoint that takes one key, the last line of a file; it refuses every other.
fn endpoint_with(valid: PathBuf) -> Endpoint {
    Endpoint::start(move |request, conn| {
        let valid = std::fs::read_to_string(&valid).unwrap();
        let key = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        match key == valid.lines().last() {
            true => conn.say(&["ok"]),
            false => conn.refuse(401, &format!("{} has expired", key.unwrap_or("nothing"))),
        }
    })
}

fn keys(endpoint: &Endpoint) -> Vec<String> {
    let requests = endpoint.requests();
    requests.iter().map(|request| request.header("authorization").unwrap_or("none").to_owned()).collect()
}

fn path(directory: &tempfile::TempDir, name: &str, content: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// A command that appends a line to a file and says the next key.
fn counting(runs: &Path) -> String {
    format!("echo run >>'{0}'; echo key-number-$(wc -l <'{0}')", runs.display())
}

fn runs(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn a_key_in_a_file_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let valid = path(&directory, "valid", "first-key-0000");
    let file = path(&directory, "key", "  first-key-0000\n");
    let endpoint = endpoint_with(valid.clone());
    let mut client = Client::logging(
        "warn",
        &[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY_FILE", file.to_str().unwrap())],
    );
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    // As secrets are rotated: another file takes its place.
    std::fs::write(&valid, "second-key-000").unwrap();
    std::fs::rename(path(&directory, "new", "second-key-000"), &file).unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    assert_eq!(keys(&endpoint), ["Bearer first-key-0000", "Bearer second-key-000"]);
    // Whoever writes it anew may be seen halfway.
    std::fs::write(&file, "").unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    // A key that is refused, and no other one: told once, without the key.
    std::fs::write(&valid, "third-key-0000").unwrap();
    let text = client.prompt(&session, "hi").text();
    assert!(text.starts_with("Authentication error (HTTP 401)"), "{text}");
    let log = client.log();
    assert!(log.contains("OPENAI_API_KEY_FILE: ") && log.contains("the key before is used"), "{log}");
    assert!(log.contains("*** has expired") && !log.contains("second-key"), "{log}");
}

#[test]
fn a_file_without_a_key_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let empty = path(&directory, "empty", " \n");
    let lines = path(&directory, "lines", "one\ntwo");
    let missing = directory.path().join("missing");
    for (file, problem) in [
        (&empty, "is empty"),
        (&missing, "No such file"),
        (&lines, "a header cannot carry"),
        (&directory.path().to_owned(), "is not a file"),
    ] {
        for action in ["acp", "check"] {
            let mut command = program();
            command.arg(action).env("OPENAI_API_KEY_FILE", file).stdin(std::process::Stdio::null());
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(78), "{said}");
            assert!(said.contains("OPENAI_API_KEY_FILE") && said.contains(problem), "{said}");
        }
    }
}

#[test]
fn a_command_runs_again_when_its_key_is_refused_and_once() {
    let directory = tempfile::tempdir().unwrap();
    let valid = path(&directory, "valid", "key-number-1");
    let count = directory.path().join("runs");
    let endpoint = endpoint_with(valid.clone());
    let mut client =
        Client::logging("info", &[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY_COMMAND", &counting(&count))]);
    let session = client.session();
    assert_eq!(runs(&count), 0, "not before a key is needed");
    for _ in 0..2 {
        assert_eq!(client.prompt(&session, "hi").text(), "ok");
    }
    assert_eq!(runs(&count), 1);
    std::fs::write(&valid, "key-number-2").unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    assert_eq!(runs(&count), 2);
    assert_eq!(keys(&endpoint)[2..], ["Bearer key-number-1", "Bearer key-number-2"]);
    // The new key is refused as well: that is told, and no third one is asked for.
    std::fs::write(&valid, "key-number-9").unwrap();
    let text = client.prompt(&session, "hi").text();
    assert!(text.starts_with("Authentication error (HTTP 401)"), "{text}");
    assert_eq!((runs(&count), endpoint.requests().len()), (3, 6));
    let log = client.log();
    assert!(log.contains("info: The endpoint refuses the key: OPENAI_API_KEY_COMMAND runs again."), "{log}");
    assert!(!log.contains("key-number"), "{log}");
}

#[test]
fn a_hundred_sessions_that_need_a_key_run_one_command() {
    let directory = tempfile::tempdir().unwrap();
    let valid = path(&directory, "valid", "key-number-1");
    let count = directory.path().join("runs");
    let endpoint = endpoint_with(valid.clone());
    let mut client =
        Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY_COMMAND", &counting(&count))]);
    let sessions: Vec<String> = (0..100).map(|_| client.session()).collect();
    for (round, key) in [(1, "key-number-1"), (2, "key-number-2")] {
        std::fs::write(&valid, key).unwrap();
        let ids: Vec<u64> = sessions.iter().map(|session| client.ask_prompt(session, "hi")).collect();
        let mut ended = 0;
        while ended < ids.len() {
            let line = client.line();
            if line["id"].is_u64() {
                assert_eq!(line["result"]["stopReason"], "end_turn");
                ended += 1;
            } else if let Some(text) = line["params"]["update"]["content"]["text"].as_str() {
                assert_eq!(text, "ok");
            }
        }
        assert_eq!(runs(&count), round);
    }
}

#[test]
fn other_sessions_go_on_while_a_command_runs() {
    let directory = tempfile::tempdir().unwrap();
    let (started, go) = (directory.path().join("started"), directory.path().join("go"));
    let make = std::process::Command::new("mkfifo").arg(&go).status().unwrap();
    assert!(make.success());
    // The command waits for a word on a pipe: as long as the test wants.
    let command = format!("echo $$ >'{0}.new'; mv '{0}.new' '{0}'; cat '{1}'", started.display(), go.display());
    let endpoint = Endpoint::saying(&["ok"]);
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY_COMMAND", &command)]);
    let (session, other) = (client.session(), client.session());
    let waiting = client.ask_prompt(&session, "hi");
    let cancelled = client.ask_prompt(&other, "hi");
    client.notify("session/cancel", json!({"sessionId": other}));
    assert_eq!(client.answer(cancelled).stop(), "cancelled");
    client.session();
    std::fs::write(&go, "the-key-0000\n").unwrap();
    assert_eq!(client.answer(waiting).text(), "ok");
    assert_eq!(keys(&endpoint), ["Bearer the-key-0000"]);
    assert!(started.exists());
}

#[test]
fn a_command_that_fails_is_told_without_its_words() {
    for (command, problem) in [
        ("exit 3", "OPENAI_API_KEY_COMMAND failed (exit status: 3)"),
        ("kill -9 $$", "OPENAI_API_KEY_COMMAND failed (signal: 9 (SIGKILL))"),
        ("true", "OPENAI_API_KEY_COMMAND gave no key"),
        ("echo a-secret; echo b-secret", "OPENAI_API_KEY_COMMAND gave more than one line"),
        ("printf 'a-secret\\001'", "the key of OPENAI_API_KEY_COMMAND has characters that a header cannot carry"),
        ("printf 'a-secret\\377'", "OPENAI_API_KEY_COMMAND gave a key that is no text"),
    ] {
        let endpoint = Endpoint::saying(&["ok"]);
        let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY_COMMAND", command)]);
        let session = client.session();
        let text = client.prompt(&session, "hi").text();
        assert_eq!(text, format!("No API key for {}: {problem}", endpoint.chat_url()));
        assert_eq!(endpoint.requests().len(), 0);
    }
    let mut client = Client::start(&[("OPENAI_API_KEY_COMMAND", "exit 3"), ("OPENAI_ERRORS", "jsonrpc")]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").answer["error"]["code"], -32000);
}

#[test]
fn a_command_ends_with_the_prompt_that_needed_it() {
    let directory = tempfile::tempdir().unwrap();
    let started = directory.path().join("started");
    let command = format!("echo $$ >'{0}.new'; mv '{0}.new' '{0}'; exec sleep 1000", started.display());
    let mut client = Client::start(&[("OPENAI_API_KEY_COMMAND", &command)]);
    let session = client.session();
    let id = client.ask_prompt(&session, "hi");
    until("the command starts", || started.exists());
    let pid = std::fs::read_to_string(&started).unwrap();
    client.notify("session/cancel", json!({"sessionId": session}));
    assert_eq!(client.answer(id).stop(), "cancelled");
    let process = PathBuf::from(format!("/proc/{}", pid.trim()));
    until("the command ends", || !process.exists());
}

#[test]
fn the_list_of_models_and_check_use_these_keys_too() {
    let directory = tempfile::tempdir().unwrap();
    let count = directory.path().join("runs");
    let endpoint = Endpoint::start(|request, conn| match request.header("authorization") {
        Some("Bearer key-number-2") if request.method == "GET" => conn.respond(200, &[], r#"["m"]"#),
        Some("Bearer key-number-2") => conn.say(&["ok"]),
        _ => conn.refuse(401, "expired"),
    });
    let url = endpoint.url();
    let command = counting(&count);
    let env =
        [("OPENAI_BASE_URL", url.as_str()), ("OPENAI_API_KEY_COMMAND", command.as_str()), ("OPENAI_FETCH_MODELS", "1")];
    let mut client = Client::start(&env);
    let result = client.result("session/new", json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(result["configOptions"][0]["options"][1]["value"], "m", "{result}");
    std::fs::remove_file(&count).unwrap();
    let output = program().arg("check").envs(env).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Some clouds say 403 of a token that has expired.
    std::fs::remove_file(&count).unwrap();
    let endpoint = Endpoint::start(move |request, conn| {
        match request.header("authorization").is_some_and(|key| key.ends_with("-2")) {
            true => conn.say(&["ok"]),
            false => conn.respond(403, &[], r#"{"message":"The security token included in the request is expired"}"#),
        }
    });
    let mut client =
        Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY_COMMAND", &counting(&count))]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    assert_eq!(runs(&count), 2);
}
