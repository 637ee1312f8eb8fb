//! The command line: help, version, check, and mistakes in the environment.

use std::process::Output;

use super::client::program;
use super::endpoint::Endpoint;

fn run(arguments: &[&str], env: &[(&str, &str)]) -> (Output, String) {
    let output = program().args(arguments).envs(env.iter().copied()).output().unwrap();
    let said = String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap();
    (output, said)
}

#[test]
fn help_and_the_manual_name_every_variable() {
    let (output, help) = run(&["--help"], &[]);
    assert!(output.status.success());
    let manual = include_str!("../../../../docs/openai-agent.md");
    for variable in openai_agent::config::variables() {
        for text in [&help, manual] {
            for name in variable.0.split(", ") {
                assert!(text.contains(name), "{name}");
            }
        }
        assert!(help.contains(variable.1), "{}", variable.0);
        let row =
            manual.lines().find(|line| line.starts_with(&format!("| `{}`", variable.0.split(", ").next().unwrap())));
        assert!(row.is_some_and(|row| row.contains(variable.1)), "the default of {} in the manual", variable.0);
    }
    let (output, version) = run(&["--version"], &[]);
    assert!(output.status.success());
    assert_eq!(version.trim(), concat!("openai-agent ", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&["dance"], &[]).0.status.code(), Some(2));
}

#[test]
fn a_variable_that_cannot_be_used_stops_the_start() {
    for (name, value) in [
        ("OPENAI_MAX_TOKENS", "lots"),
        ("OPENAI_TEMPERATURE", "hot"),
        ("OPENAI_BASE_URL", "localhost:11434"),
        ("OPENAI_CA_FILE", "/nowhere/ca.pem"),
        ("OPENAI_HISTORY_DIR", "/dev/null/x"),
    ] {
        let (output, said) = run(&["acp"], &[(name, value), ("OPENAI_API_KEY", "sk-hidden")]);
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(name) && !said.contains("sk-hidden"), "{said}");
        assert!(output.stdout.is_empty(), "stdout is for the protocol");
    }
}

#[test]
fn check_says_in_a_sentence_what_is_wrong() {
    let endpoint = Endpoint::saying(&["pong"]);
    let (output, said) = run(&["check"], &[("OPENAI_BASE_URL", &endpoint.url())]);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("OK: gpt-4o at http://127.0.0.1:"), "{said}");
    assert!(said.contains("\nClients are offered this model alone"), "{said}");
    assert!(endpoint.requests()[0].body["max_tokens"].as_u64().unwrap() <= 16, "the request is tiny");

    let endpoint = Endpoint::start(|_, conn| conn.refuse(401, "bad key"));
    let (output, said) = run(&["check"], &[("OPENAI_BASE_URL", &endpoint.url())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("Authentication error (HTTP 401)") && said.contains("OPENAI_API_KEY is not set"), "{said}");
    assert_eq!(said.lines().last(), Some("OPENAI_API_KEY is not set."), "{said}");

    let endpoint = Endpoint::start(|_, conn| conn.refuse(404, "no such model"));
    let (_, said) = run(&["check"], &[("OPENAI_BASE_URL", &endpoint.url())]);
    assert!(said.contains("OPENAI_MODEL (gpt-4o)"), "{said}");

    let (output, said) = run(&["check"], &[("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("\nIs the endpoint running"), "a sentence a line: {said}");
}
