//! A key file that changes.

use std::path::PathBuf;

use serde_json::json;

use super::client::{Client, program};
use super::endpoint::Endpoint;

/// An endpoint that accepts one key, the last line of a file, and refuses every other.
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
    // As secrets are rotated: the file is replaced.
    std::fs::write(&valid, "second-key-000").unwrap();
    std::fs::rename(path(&directory, "new", "second-key-000"), &file).unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    assert_eq!(keys(&endpoint), ["Bearer first-key-0000", "Bearer second-key-000"]);
    // A reader may see the file while it is rewritten.
    std::fs::write(&file, "").unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    // A key that is refused, with no other one to try: reported once, without the key.
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
fn the_list_of_models_and_check_use_a_key_in_a_file_too() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "key", "the-key-0000");
    let endpoint = Endpoint::start(|request, conn| match request.header("authorization") {
        Some("Bearer the-key-0000") if request.method == "GET" => conn.respond(200, &[], r#"["m"]"#),
        Some("Bearer the-key-0000") => conn.say(&["ok"]),
        _ => conn.refuse(401, "expired"),
    });
    let url = endpoint.url();
    let env = [
        ("OPENAI_BASE_URL", url.as_str()),
        ("OPENAI_API_KEY_FILE", file.to_str().unwrap()),
        ("OPENAI_MODELS", "fetch"),
    ];
    let mut client = Client::start(&env);
    let result = client.result("session/new", json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(result["configOptions"][0]["options"][1]["value"], "m", "{result}");
    let output = program().arg("check").envs(env).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_token_of_entra_is_sent_to_azure_as_one() {
    let endpoint = Endpoint::saying(&["ok"]);
    let env = |key: &'static str| [("OPENAI_API_VERSION", "2024-10-21"), ("OPENAI_API_KEY", key)];
    for (key, header) in [("eyJhbGciOiJub25lIn0.e30.", "authorization"), ("0123456789abcdef", "api-key")] {
        let url = endpoint.url();
        let env: Vec<(&str, &str)> = env(key).into_iter().chain([("OPENAI_BASE_URL", url.as_str())]).collect();
        let mut client = Client::start(&env);
        let session = client.session();
        client.prompt(&session, "hi");
        let request = endpoint.requests().pop().unwrap();
        assert!(request.header(header).is_some_and(|value| value.ends_with(key)), "{key}");
        assert_eq!(request.header("authorization").is_some(), header == "authorization");
    }
}
