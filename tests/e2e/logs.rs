//! The log (spec appendix C): on stderr alone, as much as asked for, and never in the way.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::fs::{CWD, FileType, OFlags, mknodat};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, Setup, echo, worker};
use crate::terminal::terminal;

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

/// Fills a stderr that nobody reads, and checks that messages pass. As soon as somebody reads, what was lost is told.
fn messages_pass_though_nobody_reads(mut reader: impl Read + Send + 'static, stderr: OwnedFd) {
    let mode = rustix::fs::fcntl_getfl(&stderr).unwrap();
    let ours = stderr.try_clone().unwrap();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(stderr).start();
    let mut client = daemon.connect();
    // Far more than stderr and the buffer take; the worker must not be held up by it either.
    client.request("noise", "stderr_flood", json!({ "bytes": 4_000_000 }));
    for id in 0..500 {
        client.request(id, "m", json!({}));
    }
    assert_eq!(rustix::fs::fcntl_getfl(&ours).unwrap(), mode, "the flags are not ours to change");
    drop(ours);
    let follow = std::thread::spawn(move || {
        let mut log = Vec::new();
        // A terminal that was closed ends with an error.
        let _ = reader.read_to_end(&mut log);
        String::from_utf8_lossy(&log).into_owned()
    });
    daemon.stop();
    let log = follow.join().unwrap();
    let end = &log[log.len().saturating_sub(2000)..];
    let passed_on = log.lines().filter(|line| line.contains("noise noise")).count();
    let dropped: usize = log.lines().filter(|line| line.contains("reason=log_dropped")).map(dropped_in).sum();
    assert!(dropped > 0, "{end}");
    // Lines of the daemon itself may be among them.
    assert!(passed_on + dropped >= 4_000_000 / 121, "{passed_on} passed on, {dropped} dropped: {end}");
}

/// How many lines this note says were dropped.
fn dropped_in(note: &str) -> usize {
    let (head, _) = note.split_once(" lines of the log were dropped").expect("a note");
    head.rsplit_once(' ').and_then(|(_, number)| number.parse().ok()).expect("a number")
}

#[test]
fn a_pipe_on_stderr_that_nobody_reads_does_not_stop_the_messages() {
    let (reader, writer) = std::io::pipe().unwrap();
    messages_pass_though_nobody_reads(reader, writer.into());
}

#[test]
fn a_socket_on_stderr_that_nobody_reads_does_not_stop_the_messages() {
    let (reader, writer) = UnixStream::pair().unwrap();
    messages_pass_though_nobody_reads(reader, writer.into());
}

#[test]
fn a_terminal_on_stderr_that_nobody_reads_does_not_stop_the_messages() {
    let (screen, terminal) = terminal();
    messages_pass_though_nobody_reads(screen, terminal.into());
}

#[test]
fn a_terminal_on_stderr_that_others_made_non_blocking_does_not_stop_the_messages() {
    let (screen, terminal) = terminal();
    rustix::fs::fcntl_setfl(&terminal, rustix::fs::fcntl_getfl(&terminal).unwrap() | OFlags::NONBLOCK).unwrap();
    messages_pass_though_nobody_reads(screen, terminal.into());
}

#[test]
fn a_named_pipe_on_stderr_that_nobody_reads_does_not_stop_the_messages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    mknodat(CWD, &path, FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let writer = File::options().write(true).open(&path).unwrap();
    rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
    messages_pass_though_nobody_reads(reader, writer.into());
}

#[test]
fn a_terminal_on_stderr_that_nobody_ever_reads_does_not_hold_up_the_end_which_tells_by_its_code() {
    let (_unread, terminal) = terminal();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(terminal).start();
    let mut client = daemon.connect();
    client.request("noise", "stderr_flood", json!({ "bytes": 1_000_000 }));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1), "lines are lost, and nobody could be told");
    daemon.nothing_is_left();
}

#[test]
fn a_terminal_on_stderr_that_was_closed_does_not_stop_the_messages() {
    let (screen, terminal) = terminal();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(terminal).start();
    let mut client = daemon.connect();
    drop(screen);
    for id in 0..100 {
        client.request(id, "stderr", json!({ "text": "into the void\n" }));
    }
    daemon.stop();
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
fn a_stderr_on_a_full_disk_does_not_stop_the_messages_and_is_told_by_the_exit_code() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(full).start();
    let mut client = daemon.connect();
    for id in 0..100 {
        client.request(id, "stderr", json!({ "text": "more than fits\n" }));
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1), "lines are lost, and nobody could be told");
    daemon.nothing_is_left();
}

#[test]
fn lines_that_a_full_file_does_not_take_are_counted_and_told_when_it_takes_some_again() {
    let setup = Setup::new([worker("noisy", 1, &[])]).unix().args(&["--log-level", "warn"]);
    let path = setup.path("log");
    let mut daemon = setup.stderr(File::options().create(true).append(true).open(&path).unwrap()).start();
    let mut client = daemon.connect();
    let log = || std::fs::read_to_string(&path).unwrap();
    let say = |client: &mut Client, text: &str| client.request("say", "stderr", json!({ "text": text }));
    say(&mut client, "before\n");
    daemon.until("the first line is there", || log().contains("before"));
    let mut said = 0;
    daemon.until("lines are lost", || {
        // In the middle of the next line the file is full.
        limit_files(&daemon, Some(std::fs::metadata(&path).unwrap().len() + 20));
        for _ in 0..20 {
            said += 1;
            say(&mut client, &format!("line {said} is too long for what is left\n"));
        }
        limit_files(&daemon, None);
        say(&mut client, &format!("after {said}\n"));
        daemon.until("the line behind them is there", || log().contains(&format!("after {said}")));
        log().contains("reason=log_dropped")
    });
    let text = log();
    let notes: Vec<&str> = text.lines().filter(|line| line.contains("reason=log_dropped")).collect();
    let kept = text.lines().filter(|line| line.ends_with("is too long for what is left")).count();
    assert!(text.contains("File too large") && notes.iter().all(|note| note.contains(" WARN ")), "{text}");
    assert_eq!(kept + notes.into_iter().map(dropped_in).sum::<usize>(), said, "{text}");
    daemon.stop();
}

/// How long a file may become that the daemon writes to.
fn limit_files(daemon: &Daemon, bytes: Option<u64>) {
    let process = Pid::from_raw(daemon.pid() as i32);
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(process, Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).expect("it is our child");
}

#[test]
fn the_log_may_go_to_a_file() {
    let setup = Setup::new([echo("echo", 1)]).unix();
    let path = setup.path("log");
    let mut daemon = setup.stderr(File::create(&path).unwrap()).start();
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
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&path).unwrap());
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
