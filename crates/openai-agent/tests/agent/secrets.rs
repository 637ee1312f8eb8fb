//! Keys go to the configured endpoint and nowhere else: not to another port, not into the chat, the log or `check`.

use std::process::Output;

use super::client::{Client, program};
use super::endpoint::{Conn, Endpoint, Request};

const KEY: &str = "sk-proj-0123456789abcdefghij";
const QUERY_KEY: &str = "AIzaSyQueryKey42";
const HEADER_KEY: &str = "gw-header-key-77";
const SECRETS: [&str; 3] = [KEY, QUERY_KEY, HEADER_KEY];

fn check(env: &[(&str, &str)]) -> Output {
    program().arg("check").envs(env.iter().copied()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

#[test]
fn an_invalid_port_is_not_replaced_by_another() {
    for url in [
        "http://127.0.0.1:65536/v1",
        "http://127.0.0.1:99999/v1?key=AIzaSyQueryKey42",
        "https://127.0.0.1:0/v1",
        "http://127.0.0.1:+80/v1",
        "http://[::1]:70000/v1",
        "http://user:pass-word@h:70000/v1",
    ] {
        for action in ["acp", "check"] {
            let output = program()
                .arg(action)
                .env("OPENAI_BASE_URL", url)
                .env("OPENAI_API_KEY", KEY)
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap();
            let said = said(&output);
            assert_eq!(output.status.code(), Some(78), "{action} {url}: {said}");
            assert!(said.contains("OPENAI_BASE_URL"), "{said}");
            for secret in [KEY, QUERY_KEY, "pass-word"] {
                assert!(!said.contains(secret), "{said}");
            }
        }
    }
}

/// Everything the agent says to a prompt, in both styles of errors, in the most detailed log, and in `check`.
fn all_that_is_said(handler: impl Fn(&Request, &mut Conn) + Clone + Send + Sync + 'static) -> String {
    let endpoint = Endpoint::start(handler);
    let url = format!("{}?key={QUERY_KEY}&api-version=2024-10-21", endpoint.url());
    let headers = format!("X-Gateway-Key: {HEADER_KEY}\nX-Team: blue");
    let env = [
        ("OPENAI_BASE_URL", url.as_str()),
        ("OPENAI_API_KEY", KEY),
        ("OPENAI_EXTRA_HEADERS", &headers),
        ("OPENAI_MAX_RETRIES", "1"),
    ];
    let mut all = said(&check(&env));
    for style in ["chat", "jsonrpc"] {
        let env: Vec<(&str, &str)> = env.iter().copied().chain([("OPENAI_ERRORS", style)]).collect();
        let mut client = Client::logging("debug", &env);
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        all.push_str(&format!("{answered:?}"));
        all.push_str(&client.log());
    }
    all
}

#[test]
fn an_endpoint_that_quotes_the_key_has_it_masked() {
    let quoting = |request: &Request| {
        let key = request.header("authorization").unwrap_or_default();
        let gateway = request.header("x-gateway-key").unwrap_or_default();
        format!("Cannot POST {} with {key} and {gateway}", request.target)
    };
    for status in [400, 401, 403, 404, 409, 418, 429, 500, 503] {
        let all = all_that_is_said(move |request, conn| {
            let body = serde_json::json!({"error": {"message": quoting(request)}}).to_string();
            conn.respond(status, &[("retry-after-ms", "1"), ("content-type", "application/json")], &body);
        });
        for secret in SECRETS {
            assert!(!all.contains(secret), "{status}: {all}");
        }
        assert!(status != 400 || all.contains("Cannot POST /v1/chat/completions?*** with"), "{all}");
    }
    let plain = all_that_is_said(move |request, conn| conn.respond(400, &[], &quoting(request)));
    let inside = all_that_is_said(move |request, conn| {
        conn.begin();
        conn.event(&serde_json::json!({"error": {"message": quoting(request)}}));
        conn.done();
    });
    let skipped = all_that_is_said(move |request, conn| {
        conn.begin();
        conn.chunk(format!("data: {}\n\n", quoting(request)).as_bytes());
        conn.chunk(format!("data: {{\"error\": \"{}\"}}\n\n", quoting(request)).as_bytes());
        conn.done();
    });
    let kind = all_that_is_said(move |request, conn| {
        conn.respond(200, &[("content-type", &quoting(request)), ("x-request-id", &quoting(request))], "<html>");
    });
    for all in [plain, inside, skipped, kind] {
        for secret in SECRETS {
            assert!(!all.contains(secret), "{all}");
        }
    }
}

#[test]
fn a_key_that_is_quoted_in_part_is_masked_too() {
    for length in [14, 20, KEY.len() - 1] {
        let all = all_that_is_said(move |_, conn| {
            conn.refuse(400, &format!("Incorrect API key provided: {}...", &KEY[..length]));
        });
        assert!(!all.contains(&KEY[..13]) && all.contains("Incorrect API key provided: ***"), "{all}");
    }
    // The words are shortened, but not in the middle of a key.
    for padding in [280, 290, 299] {
        let all = all_that_is_said(move |_, conn| conn.respond(400, &[], &format!("{}{KEY}", "x".repeat(padding))));
        assert!(!all.contains("sk-proj"), "{all}");
    }
}

#[test]
fn a_redirect_is_reported_without_its_query() {
    let all = all_that_is_said(|request, conn| {
        let to = format!("https://someone:pass-word@login.test{}&sig=unknown-signature", request.target);
        conn.respond(302, &[("location", &to)], "");
    });
    assert!(all.contains("redirects to https://***@login.test/v1/chat/completions?***"), "{all}");
    for secret in SECRETS.iter().chain(&["pass-word", "unknown-signature", "2024-10-21"]) {
        assert!(!all.contains(secret), "{all}");
    }
}

#[test]
fn errors_about_unusable_values_contain_no_secrets() {
    for (name, value) in [
        ("OPENAI_BASE_URL", "api.test/v1?key=AIzaSyQueryKey42"),
        ("OPENAI_BASE_URL", "ftp://me:AIzaSyQueryKey42@h/v1"),
        ("OPENAI_BASE_URL", "http://h/v 1?key=AIzaSyQueryKey42"),
        ("OPENAI_EXTRA_HEADERS", "{\"X-Key\": \"AIzaSyQueryKey42}"),
        ("OPENAI_EXTRA_HEADERS", "{\"X-Key\": [\"AIzaSyQueryKey42\"]}"),
        ("OPENAI_EXTRA_HEADERS", "{\"X-Key\": 421234567890}"),
        ("OPENAI_EXTRA_HEADERS", "X-Key AIzaSyQueryKey42:"),
    ] {
        let said = said(&check(&[(name, value)]));
        assert!(said.contains(name), "{said}");
        assert!(!said.contains(QUERY_KEY) && !said.contains("421234567890"), "{said}");
    }
}

#[test]
fn check_shows_the_address_without_its_query() {
    let (closed, _keeps_it) = crate::ports::unused();
    let url = format!("http://{closed}/v1?key={QUERY_KEY}");
    let said = said(&check(&[("OPENAI_BASE_URL", &url)]));
    assert!(said.contains(&format!("OPENAI_BASE_URL (http://{closed}/v1)")), "{said}");
    assert!(!said.contains(QUERY_KEY), "{said}");
}
