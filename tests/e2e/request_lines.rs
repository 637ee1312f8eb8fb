//! `log.requests`: a line for each request of a client, whatever its outcome.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{Admin, metric, said, start_ready};
use crate::client::Client;
use crate::harness::{Daemon, Log, Setup, echo, with, worker};
use crate::http::{Http, request};

const VERSION: &str = "2025-11-25";

fn logs(setup: Setup, format: &str) -> Setup {
    setup.set("log", json!({ "level": "info", "format": format, "requests": true }))
}

/// The request lines in a JSON log.
fn lines(log: &str) -> Vec<Value> {
    let objects = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    objects.filter(|line: &Value| line["message"] == "request").collect()
}

/// The line of this request.
fn line(lines: &[Value], id: impl Into<Value>) -> Value {
    let id = id.into();
    let found: Vec<&Value> = lines.iter().filter(|line| line["id"] == id).collect();
    assert_eq!(found.len(), 1, "{id}: {lines:?}");
    found[0].clone()
}

#[test]
fn each_request_has_a_line_with_client_method_worker_duration_and_bytes() {
    let mut daemon = logs(Setup::new([worker("agents", 1, &[])]).unix(), "json").start();
    let mut client = daemon.connect();
    let asked =
        json!({ "jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": { "sessionId": "s", "x": "secret" } });
    client.send(&asked);
    let answer = client.line();
    let log = daemon.stop().stderr;
    let mut line = line(&lines(&log), 7);
    assert!(line["time"].is_string() && line["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
    assert_eq!(line["pid"], std::process::id());
    for key in ["time", "ms", "pid", "uid", "incarnation", "client"] {
        assert!(line.as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    let expected = json!({ "level": "INFO", "message": "request", "id": 7, "method": "session/prompt", "session": "s",
        "pool": "agents", "worker": "agents/0", "outcome": "answered", "bytes_in": asked.to_string().len() + 1,
        "bytes_out": answer.trim_end().len() + 1 });
    assert_eq!(line, expected);
    assert!(!log.contains("secret"), "no content: {log}");
}

#[test]
fn a_line_for_people_says_the_same() {
    let mut daemon = logs(Setup::new([worker("agents", 1, &[])]).tcp(), "text").start();
    let mut client = daemon.connect();
    let port = client.port();
    client.request_in("s", "a", "session/prompt", json!({}));
    client.request(2, "initialize", json!({}));
    let log = daemon.stop().stderr;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" INFO  request client=")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    for part in [
        &format!(" from=127.0.0.1:{port} "),
        " method=session/prompt id=\"a\" pool=agents worker=agents/0 incarnation=0 session=s outcome=answered ms=",
        " bytes_in=",
    ] {
        assert!(lines[0].contains(part), "{part}: {log}");
    }
    assert!(lines[1].contains(" method=initialize id=2 pool=agents ") && !lines[1].contains("session="), "{log}");
}

#[test]
fn errors_have_their_code_and_those_of_the_daemon_their_reason() {
    let pool = with(worker("agents", 1, &[]), "request_timeout_sec", 1);
    let mut daemon = logs(Setup::new([pool]).unix(), "json").start();
    let mut client = daemon.connect();
    client.ask(1, "write", json!({ "text": "{\"id\":1,\"error\":{\"message\":\"no\",\"code\":-7}}\n" }));
    client.message();
    client.send(&json!({ "id": 2, "method": "m", "pool": "nowhere" }));
    client.error(2, "unknown_pool");
    client.ask(3, "hold", json!({}));
    client.error(3, "timeout");
    client.ask_in("s", 4, "hold", json!({}));
    client.ask(5, "write", json!({ "text": "no JSON\n" }));
    client.error(4, "worker_exited");
    let mut other = daemon.connect();
    other.ask(6, "hold", json!({}));
    other.request(7, "m", json!({}));
    drop(other);
    daemon.logs(&["client_left"]);
    let lines = lines(&daemon.stop().stderr);
    let of = |id: u64| {
        let line = line(&lines, id);
        (line["outcome"].clone(), line["code"].clone(), line["reason"].clone())
    };
    assert_eq!(of(1), (json!("error"), json!(-7), Value::Null));
    assert_eq!(of(2), (json!("refused"), json!(-32602), json!("unknown_pool")));
    assert_eq!(of(3), (json!("timeout"), json!(-32015), json!("timeout")));
    assert_eq!(of(4), (json!("worker_exited"), json!(-32011), json!("worker_exited")));
    assert_eq!(of(5), (json!("worker_exited"), json!(-32011), json!("worker_exited")));
    assert_eq!(of(6), (json!("client_left"), Value::Null, json!("request_discarded")));
    assert!(line(&lines, 3)["ms"].as_f64().is_some_and(|ms| ms >= 1000.0), "{lines:?}");
    assert!(line(&lines, 2)["worker"].is_null() && line(&lines, 4)["session"] == "s", "{lines:?}");
    assert!(line(&lines, 4)["bytes_out"].as_u64().is_some_and(|bytes| bytes > 50), "{lines:?}");
}

#[test]
fn names_from_clients_are_bounded_and_forge_no_line() {
    let strange = "a\n\u{1b}[2J\u{202e}\"=\\ x";
    let long = "m".repeat(500);
    for format in ["json", "text"] {
        let mut daemon = logs(Setup::new([worker("agents", 1, &[])]).unix(), format).start();
        let mut client = daemon.connect();
        client.request_in(strange, strange, strange, json!({}));
        client.request(2, &long, json!({}));
        let log = daemon.stop().stderr;
        let forged = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!log.contains(forged), "{log:?}");
        let lines_of_requests = log.lines().filter(|line| line.contains("request") && line.contains("bytes_out"));
        assert_eq!(lines_of_requests.count(), 2, "{log}");
        assert!(log.contains(&long[..64]) && !log.contains(&long[..65]), "{log}");
        if format == "json" {
            let line = line(&lines(&log), strange);
            assert_eq!((&line["method"], &line["session"]), (&json!(strange), &json!(strange)));
        } else {
            assert!(log.contains(" outcome=answered ") && !log.contains(" x outcome"), "{log}");
        }
    }
}

#[test]
fn a_request_over_http_has_a_line_with_its_session_of_mcp() {
    let pool = with(worker("tools", 1, &[]), "assignment", "client");
    let setup = logs(Setup::new([pool]).no_listener(), "json");
    let daemon = setup.set("listeners", json!([{ "http": "127.0.0.1:0" }])).start();
    let mut client = Http::session(daemon.address(), VERSION);
    let asked = request(9, "tools/call", json!({ "name": "secret" }));
    let answer = client.ask(&asked);
    assert_eq!(answer.status, 200);
    let log = daemon.stop().stderr;
    let lines = lines(&log);
    let line = line(&lines, 9);
    assert_eq!((&line["method"], &line["outcome"]), (&json!("tools/call"), &json!("answered")), "{line}");
    assert!(line["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:")), "{line}");
    // The first one was asked for its protocol.
    assert_eq!((&line["pool"], &line["worker"]), (&json!("tools"), &json!("tools/1")), "{line}");
    assert!(lines.iter().any(|line| line["method"] == "initialize") && !log.contains("secret"), "{log}");
}

#[test]
fn a_reload_switches_the_lines_on_and_off() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut client = daemon.connect();
    let switch = |daemon: &Daemon, client: &mut Client, is_on: bool, id: u64| {
        crate::reload::change(daemon, |config| config["log"] = json!({ "requests": is_on }));
        said(daemon, &["reload"]);
        client.request_in("s", id, "m", json!({}));
    };
    client.request_in("s", 1, "m", json!({}));
    switch(&daemon, &mut client, true, 2);
    switch(&daemon, &mut client, false, 3);
    let log = daemon.stop().stderr;
    assert!(log.contains(" method=m id=2 ") && !log.contains(" id=1 ") && !log.contains(" id=3 "), "{log}");
}

#[test]
fn unread_lines_delay_no_message_and_are_counted() {
    let (reader, writer) = std::io::pipe().unwrap();
    let setup = logs(Setup::new([echo("echo", 1)]).unix(), "text").stderr(writer);
    let mut daemon = start_ready(setup);
    let mut client = daemon.connect();
    // Far more than a pipe and the buffer hold, from fewer requests than may be logged in a tenth of a second.
    const REQUESTS: usize = 900;
    let session = "s".repeat(255);
    for id in 0..REQUESTS {
        client.request_in(&session, id, "m", json!({}));
    }
    let lost = metric(&Admin::of(&daemon).get("/metrics").body, "stdio_bus_log_lines_lost_total");
    assert!(lost > 0.0, "{lost}");
    let log = Log::of(reader);
    daemon.signal(Signal::TERM);
    daemon.wait();
    log.until_end();
    let log = log.text();
    let written = log.lines().filter(|line| line.contains(" INFO  request ")).count();
    assert_eq!(written + lost as usize, REQUESTS, "{}", &log[log.len().saturating_sub(2000)..]);
    assert!(
        log.contains(&format!(" {lost} lines of the log were dropped, {lost} of them of requests")),
        "{written} written"
    );
}
