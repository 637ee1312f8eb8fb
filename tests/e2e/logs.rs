//! The log (spec appendix C): only on stderr or in its file, at the requested level, and never blocking; the lines of
//! requests (`log.requests`).

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::fs::{CWD, FileType, OFlags, mknodat};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::admin::{Admin, metric, said, start_ready};
use crate::client::Client;
use crate::harness::{Daemon, Log, Setup, echo, seconds_go_by, with, worker};
use crate::http::{Http, request};
use crate::terminal::terminal;

#[test]
fn each_level_includes_the_more_important_ones() {
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
    assert!(lines.iter().all(|line| line["message"].is_string()), "{log}");
    let said = lines.iter().find(|line| line["stream"] == "stderr").expect("the worker's line");
    assert_eq!(said["message"], "a \"worker\" speaks \u{1b}[0m");
    assert_eq!((&said["worker"], &said["incarnation"]), (&json!("agents/0"), &json!(0)));
    assert!(lines.iter().any(|line| line["reason"] == "worker_malformed"));
}

#[test]
fn in_json_an_id_keeps_its_type() {
    let mut daemon = Setup::new([echo("echo", 1)]).unix().args(&["--log-format", "json"]).start();
    let mut client = daemon.connect();
    for id in [json!(7), json!("7"), json!("a \"b\" é\u{1}")] {
        client.send(&json!({ "id": id, "method": "m", "pool": "none" }));
        client.message();
    }
    let log = daemon.stop().stderr;
    let told = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    let ids: Vec<Value> = told.filter(|line| line["reason"] == "unknown_pool").map(|line| line["id"].clone()).collect();
    assert_eq!(ids, [json!(7), json!("7"), json!("a \"b\" é\u{1}")], "{log}");
}

#[test]
fn with_json_the_daemon_says_so_too_why_it_does_not_start() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = address.local_addr().unwrap().to_string();
    let as_json = || Setup::new([echo("echo", 1)]).no_listener().set("log", json!({ "format": "json" }));
    let asked = Setup::new([echo("echo", 1)]).no_listener();
    for (setup, code, part) in [
        (asked.args(&["--log-format", "json"]).set("pool", json!([])), 78, "is not a known key"),
        (as_json().set("pool", json!([])), 78, "is not a known key"),
        (as_json().args(&["--tcp", &taken]), 73, "(os error 98)"),
        (Setup::bare().args(&["--log-format", "json", "--config", "/no/such/file"]), 78, "does not exist"),
    ] {
        let outcome = setup.run();
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        let said: Value = serde_json::from_str(&outcome.stderr).expect("one object, and nothing else");
        assert!(said["message"].as_str().is_some_and(|message| message.contains(part)), "{said}");
        assert_eq!((&said["level"], &said["exit_code"]), (&json!("ERROR"), &json!(code)));
    }
}

/// A file for stderr, named like the journal.
fn journal(setup: Setup, name: &str) -> (Setup, std::path::PathBuf) {
    let path = setup.path(name);
    let file = File::create(&path).unwrap();
    let metadata = file.metadata().unwrap();
    let stream = format!("{}:{}", metadata.dev(), metadata.ino());
    (setup.variable("JOURNAL_STREAM", &stream).stderr(file), path)
}

#[test]
fn in_the_journal_each_line_has_its_priority_and_no_time() {
    let setup = Setup::new([worker("agents", 1, &[])]).unix();
    let (setup, path) = journal(setup, "log");
    let mut daemon = setup.start();
    let mut client = daemon.connect();
    client.request(1, "stderr", json!({ "text": "one\ntwo\n" }));
    client.ask(2, "write", json!({ "text": "no JSON\n" }));
    client.error(2, "worker_exited");
    let log = || std::fs::read_to_string(&path).unwrap();
    daemon.signal(Signal::TERM);
    daemon.wait();
    let log = log();
    daemon.ends_well();
    assert!(log.lines().all(|line| ["<3>", "<4>", "<6>"].iter().any(|begin| line.starts_with(begin))), "{log}");
    assert!(log.lines().any(|line| line.starts_with("<6>INFO  stdio_bus ")), "{log}");
    assert!(log.lines().any(|line| line == "<6>[agents/0] two"), "{log}");
    assert!(log.lines().any(|line| line.starts_with("<3>ERROR not a JSON object")), "{log}");
    let (setup, path) = journal(Setup::bare().args(&["--config", "/no/such/file"]), "error");
    let mut daemon = setup.start_without_waiting();
    daemon.wait();
    assert!(std::fs::read_to_string(&path).unwrap().lines().all(|line| line.starts_with("<3>")));
}

#[test]
fn a_stderr_that_is_not_the_journal_has_no_priorities() {
    let daemon = Setup::new([echo("echo", 1)]).unix().variable("JOURNAL_STREAM", "8:12345").start();
    let log = daemon.stop().stderr;
    assert!(log.lines().all(|line| line.starts_with("20")), "{log}");
}

const FLOOD: usize = 50_000_000;

/// A daemon whose worker has written [`FLOOD`] bytes to stderr, and its log.
fn flooded(level: &str) -> String {
    let setup = Setup::new([worker("noisy", 1, &[])]).unix().args(&["--log-level", level]);
    let path = setup.path("log");
    let mut daemon = setup.stderr(File::create(&path).unwrap()).start();
    let mut client = daemon.connect();
    client.request("noise", "stderr_flood", json!({ "bytes": FLOOD, "lines_at_once": 100 }));
    let mut other = daemon.connect();
    other.send_line("nonsense");
    other.message();
    client.ask("end", "write", json!({ "text": "no JSON\n" }));
    client.error("end", "worker_exited");
    daemon.signal(Signal::TERM);
    daemon.wait();
    let log = std::fs::read_to_string(&path).unwrap();
    daemon.ends_well();
    log
}

#[test]
fn of_a_flood_of_stderr_little_is_passed_on_and_the_rest_is_counted_to_the_line() {
    let log = flooded("info");
    let passed = log.lines().filter(|line| line.starts_with("[noisy/0] noise")).count();
    let field = |line: &str, name: &str| -> usize {
        let (_, rest) = line.split_once(&format!(" {name}=")).expect("the field");
        rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let left_out = || log.lines().filter(|line| line.contains("reason=stderr_left_out"));
    let (lines, bytes) = left_out().fold((0, 0), |(lines, bytes), line| {
        assert!(line.contains(" worker=noisy/0 "), "{line}");
        (lines + field(line, "lines"), bytes + field(line, "bytes"))
    });
    // The flood consists of pieces of 100 lines of 121 bytes.
    let all = FLOOD / 12_100 * 100;
    assert_eq!((passed + lines, passed * 121 + bytes), (all, all * 121), "{passed} passed on, {lines} left out");
    // The current second, and each one that was summarized.
    assert!(passed <= 100 * (left_out().count() + 1), "{passed} passed on in {} seconds", left_out().count());
    assert!(!log.contains("log_dropped"), "a line was lost");
    for own in ["client_malformed", "worker_malformed", " stopped: "] {
        assert!(log.contains(own), "{own} was lost");
    }
}

#[test]
fn a_workers_stderr_is_omitted_below_its_log_level() {
    let log = flooded("error");
    assert!(!log.contains("noise") && !log.contains("left_out"), "{}", log.lines().count());
    assert!(log.contains("worker_malformed"), "{log}");
}

/// Enough workers that their logged stderr exceeds what stderr and the buffer hold.
const NOISY: usize = 8;
/// As much as a worker may log in a second, in lines that are shown in full.
const LINES: usize = 100;
const WORDS: usize = 600;

fn noisy() -> Value {
    worker("noisy", NOISY, &[])
}

/// Makes each of the noisy workers write as much as is logged. Returns the number of lines.
fn flood(client: &mut Client) -> usize {
    let bytes = LINES * ("noise ".len() * WORDS + 1);
    for id in 0..NOISY {
        client.request(format!("noise {id}"), "stderr_flood", json!({ "bytes": bytes, "words": WORDS }));
    }
    NOISY * LINES
}

/// Fills a stderr that is not read, and checks that messages pass. As soon as it is read, the losses are reported.
fn messages_pass_although_stderr_is_unread(reader: impl Read + Send + 'static, stderr: OwnedFd) {
    let mode = rustix::fs::fcntl_getfl(&stderr).unwrap();
    let ours = stderr.try_clone().unwrap();
    let mut daemon = Setup::new([noisy()]).unix().stderr(stderr).start();
    let mut client = daemon.connect();
    // Far more than stderr and the buffer hold; it must not block the workers either.
    let all = flood(&mut client);
    for id in 0..500 {
        client.request(id, "m", json!({}));
    }
    assert_eq!(rustix::fs::fcntl_getfl(&ours).unwrap(), mode, "the flags are not ours to change");
    drop(ours);
    let log = Log::of(reader);
    daemon.stop();
    log.until_end();
    let log = log.text();
    let end = &log[log.len().saturating_sub(2000)..];
    let passed_on = log.lines().filter(|line| line.contains("noise noise")).count();
    let dropped: usize = log.lines().filter(|line| line.contains("reason=log_dropped")).map(dropped_in).sum();
    assert!(dropped > 0, "{end}");
    // The daemon's own lines may be among them.
    assert!(passed_on + dropped >= all, "{passed_on} passed on, {dropped} dropped of {all}: {end}");
}

/// The number of dropped lines in this note.
fn dropped_in(note: &str) -> usize {
    let (head, _) = note.split_once(" lines of the log were dropped").expect("a note");
    head.rsplit_once(' ').and_then(|(_, number)| number.parse().ok()).expect("a number")
}

#[test]
fn an_unread_pipe_on_stderr_does_not_stop_the_messages() {
    let (reader, writer) = std::io::pipe().unwrap();
    messages_pass_although_stderr_is_unread(reader, writer.into());
}

#[test]
fn an_unread_socket_on_stderr_does_not_stop_the_messages() {
    let (reader, writer) = UnixStream::pair().unwrap();
    messages_pass_although_stderr_is_unread(reader, writer.into());
}

#[test]
fn an_unread_half_closed_socket_on_stderr_costs_no_cpu_time() {
    let (reader, writer) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    // As service managers do.
    writer.shutdown(std::net::Shutdown::Read).unwrap();
    let mut daemon = Setup::new([noisy()]).unix().stderr(OwnedFd::from(writer)).start();
    let mut client = daemon.connect();
    flood(&mut client);
    client.request(1, "m", json!({}));
    let used = daemon.ticks();
    seconds_go_by(1);
    let used = daemon.ticks() - used;
    assert!(used <= 5, "an idle daemon uses no processor: {used} ticks");
    let log = Log::of(reader);
    daemon.stop();
    log.until_end();
    assert!(log.text().contains("lines of the log were dropped"));
}

#[test]
fn an_unread_terminal_on_stderr_does_not_stop_the_messages() {
    let (screen, terminal) = terminal();
    messages_pass_although_stderr_is_unread(screen, terminal.into());
}

#[test]
fn a_nonblocking_terminal_on_stderr_does_not_stop_the_messages() {
    let (screen, terminal) = terminal();
    rustix::fs::fcntl_setfl(&terminal, rustix::fs::fcntl_getfl(&terminal).unwrap() | OFlags::NONBLOCK).unwrap();
    messages_pass_although_stderr_is_unread(screen, terminal.into());
}

#[test]
fn an_unread_named_pipe_on_stderr_does_not_stop_the_messages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    mknodat(CWD, &path, FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let writer = File::options().write(true).open(&path).unwrap();
    rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
    messages_pass_although_stderr_is_unread(reader, writer.into());
}

#[test]
fn a_never_read_terminal_on_stderr_does_not_delay_the_exit_but_shows_in_its_code() {
    let (_unread, terminal) = terminal();
    let mut daemon = Setup::new([noisy()]).unix().stderr(terminal).start();
    let mut client = daemon.connect();
    flood(&mut client);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1), "lines are lost, and that could not be reported");
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
fn a_stderr_on_a_full_disk_does_not_stop_the_messages_but_shows_in_the_exit_code() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut daemon = Setup::new([worker("noisy", 1, &[])]).unix().stderr(full).start();
    let mut client = daemon.connect();
    for id in 0..100 {
        client.request(id, "stderr", json!({ "text": "more than fits\n" }));
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1), "lines are lost, and that could not be reported");
    daemon.nothing_is_left();
}

#[test]
fn lines_that_a_full_file_rejects_are_counted_and_reported_when_it_accepts_more() {
    let setup = Setup::new([worker("noisy", 1, &[])]).unix();
    let path = setup.path("log");
    let mut daemon = setup.stderr(File::options().create(true).append(true).open(&path).unwrap()).start();
    let mut client = daemon.connect();
    let log = || std::fs::read_to_string(&path).unwrap();
    let say = |client: &mut Client, text: &str| client.request("say", "stderr", json!({ "text": text }));
    say(&mut client, "before\n");
    daemon.until("the first line is there", || log().contains("before"));
    let mut said = 0;
    daemon.until("lines are lost", || {
        // Of more lines in a second only some are logged.
        seconds_go_by(1);
        // The file is full in the middle of the next line.
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

/// Limits the size of files that the daemon writes.
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
    let told = log.lines().filter(|line| line.contains("reason=client_malformed")).count();
    assert!((1..=40).contains(&told), "{told} lines of the log");
}

#[test]
fn the_last_words_stand_in_a_log_file_once() {
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let outcome = Setup::bare().stdout(Stdio::null()).stderr(File::create(&path).unwrap()).run();
        assert_eq!(outcome.code, Some(0));
        let log = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<&str> = log.lines().collect();
        assert!(lines.last().is_some_and(|line| line.contains(" stopped: ")), "{log}");
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all, "{log}");
    }
}

// `log.requests`: a line for each request of a client, whatever its outcome.

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
    for key in ["time", "ms", "waited_ms", "pid", "uid", "incarnation", "client"] {
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
fn a_request_over_http_has_a_line_with_its_session_of_mcp_its_tool_and_the_trace_in_its_head() {
    let pool = with(worker("tools", 1, &[]), "assignment", "client");
    let setup = logs(Setup::new([pool]).no_listener(), "json");
    let daemon = setup.set("listeners", json!([{ "http": "127.0.0.1:0" }])).start();
    let mut client = Http::session(daemon.address(), VERSION);
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let asked = request(9, "tools/call", json!({ "name": "search", "arguments": { "text": "secret" } }));
    let mut traced = client.again().with("traceparent", &format!("00-{id}-00f067aa0ba902b7-01"));
    assert_eq!((traced.ask(&asked).status, client.ask(&request(10, "m", json!({}))).status), (200, 200));
    let log = daemon.stop().stderr;
    let lines = lines(&log);
    let line = line(&lines, 9);
    assert_eq!((&line["method"], &line["outcome"]), (&json!("tools/call"), &json!("answered")), "{line}");
    assert_eq!((&line["tool"], &line["trace_id"]), (&json!("search"), &json!(id)), "{line}");
    assert!(lines.iter().filter(|line| line["trace_id"].is_string()).count() == 1, "{log}");
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

#[test]
fn a_log_in_a_file_is_opened_again_by_a_signal_and_a_failed_start_is_reported_on_stderr_too() {
    let mut setup = Setup::new([worker("agents", 1, &[])]).unix();
    let file = setup.path("bus.log");
    setup.config()["log"] = json!({ "file": file });
    let mut daemon = start_ready(setup);
    let has = |path: &std::path::Path, text: &str| std::fs::read_to_string(path).is_ok_and(|log| log.contains(text));
    daemon.until("the file has the first line", || has(&file, "INFO  stdio_bus "));
    let moved = file.with_extension("1");
    std::fs::rename(&file, &moved).expect("it is there");
    said(&daemon, &["log-level", "info"]);
    daemon.until("the moved file is written on", || has(&moved, "the log has level info now"));
    daemon.signal(Signal::USR1);
    daemon.until("there is another file", || has(&file, "SIGUSR1: the log file was opened again"));
    assert_eq!(std::fs::metadata(&file).expect("it is there").mode() & 0o007, 0, "it is not for everybody");
    daemon.connect().request(1, "who", json!({}));
    said(&daemon, &["drain"]);
    daemon.wait();
    assert!(has(&file, "an operator: the daemon drains") && !has(&moved, "the daemon drains"));
    assert_eq!(std::fs::read_to_string(&file).expect("it is there").matches("SIGUSR1").count(), 1);
    assert_eq!(daemon.ends_well().stderr, "", "the file has taken the place of stderr");

    let mut setup = Setup::new([worker("agents", 1, &[])]).no_listener();
    let file = setup.path("bus.log");
    setup.config()["log"] = json!({ "file": file });
    setup.config()["listeners"] = json!([{ "unix": setup.path("no/such/folder") }]);
    let outcome = setup.run();
    assert!(outcome.code != Some(0) && outcome.stderr.contains("no/such/folder"), "{outcome:?}");
}

#[test]
fn a_log_file_that_cannot_be_opened_ends_the_start_with_its_name() {
    let mut setup = Setup::new([worker("agents", 1, &[])]).unix();
    setup.config()["log"] = json!({ "file": "/no/such/folder/bus.log" });
    let outcome = setup.run();
    assert_eq!(outcome.code, Some(73));
    assert!(outcome.stderr.contains("open the log file /no/such/folder/bus.log: No such file"), "{outcome:?}");
}
