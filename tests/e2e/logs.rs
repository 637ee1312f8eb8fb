//! The log (spec appendix C): on stderr alone, as much as asked for, and never in the way.

use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Setup, echo, worker};

#[test]
fn each_level_writes_itself_and_what_is_more_important() {
    for (level, count) in [("debug", 4), ("info", 3), ("warn", 2), ("error", 1)] {
        let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().args(&["--log-level", level]).start();
        let mut client = daemon.connect();
        client.ask(1, "write", json!({ "text": "no JSON\n" }));
        client.error(1, "worker_exited");
        let outcome = daemon.stop();
        let log = outcome.stderr;
        let levels = ["ERROR", "WARN", "INFO", "DEBUG"];
        for (place, name) in levels.into_iter().enumerate() {
            let found = log.lines().any(|line| line.contains(&format!(" {name} ")));
            assert_eq!(found, place < count, "--log-level {level}, {name}:\n{log}");
        }
        assert_eq!(outcome.stdout, "", "the log belongs on stderr");
    }
}

#[test]
fn the_level_may_stand_in_the_configuration_and_the_flag_comes_before_it() {
    let quiet = Setup::new([echo("echo", 1)]).set("log", json!({ "level": "error" })).unix().start();
    assert_eq!(quiet.stop().stderr, "");
    let setup = Setup::new([echo("echo", 1)]).set("log", json!({ "level": "error" })).unix();
    let outcome = setup.args(&["--log-level", "info"]).start().stop();
    assert!(outcome.stderr.contains(" INFO "), "{}", outcome.stderr);
}

#[test]
fn with_json_every_line_of_the_log_is_an_object() {
    let mut daemon =
        Setup::new([worker("agents", 1, &[])]).unix().args(&["--log-format", "json", "--log-level", "debug"]).start();
    let mut client = daemon.connect();
    client.request(1, "stderr", json!({ "text": "a \"worker\" speaks \u{1b}[0m\n" }));
    client.ask(2, "write", json!({ "text": "{\"broken\": \"\u{1}\n" }));
    client.error(2, "worker_exited");
    let log = daemon.stop().stderr;
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    assert!(lines.iter().all(|line| line["level"].is_string() && line["time"].is_string()), "{log}");
    assert!(lines.iter().any(|line| line["worker"] == "agents/0" && line["stderr"] == "a \"worker\" speaks \u{1b}[0m"));
    assert!(lines.iter().any(|line| line["reason"] == "worker_malformed"));
}

#[test]
fn a_stderr_that_nobody_reads_does_not_stop_the_messages() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(writer).start();
    let mut client = daemon.connect();
    // Far more than the pipe and the buffer take; the worker must not be held up by it either.
    client.request("noise", "stderr_flood", json!({ "bytes": 4_000_000 }));
    for id in 0..500 {
        client.request(id, "m", json!({}));
    }
    // As soon as somebody reads again, the log says how much it lost.
    let follow = std::thread::spawn(move || {
        let mut log = String::new();
        std::io::BufReader::new(reader).read_to_string(&mut log).map(|_| log)
    });
    // There is something to say for as long as nothing has been said.
    for _ in 0..10 {
        client.request("more", "stderr", json!({ "text": "more\n" }));
    }
    daemon.stop();
    let log = follow.join().unwrap().unwrap();
    assert!(log.contains("lines of the log were dropped"), "{}", &log[log.len().saturating_sub(2000)..]);
}

#[test]
fn a_stderr_that_is_closed_does_not_stop_the_messages() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(writer).start();
    let mut client = daemon.connect();
    for id in 0..100 {
        client.request(id, "stderr", json!({ "text": "into the void\n" }));
    }
    daemon.stop();
}

#[test]
fn a_stderr_on_a_full_disk_does_not_stop_the_messages() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(full).start();
    let mut client = daemon.connect();
    for id in 0..100 {
        client.request(id, "stderr", json!({ "text": "more than fits\n" }));
    }
    daemon.stop();
}

#[test]
fn the_log_may_go_to_a_file() {
    let setup = Setup::new([echo("echo", 1)]).unix();
    let path = setup.path("log");
    let mut daemon = setup.stderr(std::fs::File::create(&path).unwrap()).start();
    daemon.connect().request(1, "m", json!({}));
    daemon.signal(Signal::TERM);
    daemon.wait();
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(log.lines().next().is_some_and(|line| line.contains("stdio_bus")), "{log}");
    assert!(log.lines().last().is_some_and(|line| line.contains("stopped")), "{log}");
    daemon.ends_well();
}

#[test]
fn peers_cannot_flood_the_log() {
    let mut daemon = Setup::new([echo("echo", 1)]).stderr(Stdio::piped()).start();
    for _ in 0..300 {
        let mut client = daemon.connect();
        client.send_line("nonsense");
        client.message();
    }
    let log = daemon.stop().stderr;
    let told = log.lines().filter(|line| line.contains("client_malformed")).count();
    assert!((1..=40).contains(&told), "{told} lines of the log");
}

#[test]
fn the_last_words_stand_in_a_log_file_once() {
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut daemon = std::process::Command::new(crate::harness::program());
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&path).unwrap());
        assert!(daemon.status().unwrap().success());
        let log = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<&str> = log.lines().collect();
        assert!(lines.last().is_some_and(|line| line.contains(" stopped: ")), "{log}");
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all, "{log}");
    }
}
