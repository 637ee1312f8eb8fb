//! One client on stdin and stdout (spec 4.1; decision 10).

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::event::PollFlags;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{Admin, metric, with_admin};
use crate::client::{Client, ready};
use crate::harness::{Setup, as_another_user, echo, end_of, program_for_all, shell, until, worker};
use crate::terminal::terminal;

fn requests(count: usize) -> String {
    (0..count)
        .map(|id| json!({ "jsonrpc": "2.0", "id": id, "method": "m", "params": [id] }).to_string() + "\n")
        .collect()
}

fn ids(answers: &str) -> Vec<i64> {
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_i64().unwrap();
    let mut ids: Vec<i64> = answers.lines().map(id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn stdio_is_the_default_mode() {
    let mut daemon = Setup::new([echo("echo", 1)]).no_listener().stdin(Stdio::piped()).start_without_waiting();
    daemon.logs(&["stdin and stdout"]);
    let client = daemon.pipes();
    drop(client);
    daemon.ends_well();
}

#[test]
fn the_end_of_stdin_lets_pending_requests_finish_and_then_ends_the_daemon_with_0() {
    let mut daemon = Setup::new([worker("agents", 2, &[])]).stdio().start();
    let mut client = daemon.connect();
    client.send_bytes(requests(300).as_bytes());
    client.half_close();
    assert_eq!(ids(&client.rest()), (0..300).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn nothing_but_messages_is_written_to_stdout() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).stdio().args(&["--log-level", "debug"]).start();
    let mut client = daemon.connect();
    client.request(1, "stderr", json!({ "text": "noise\n" }));
    client.request(2, "m", json!({}));
    daemon.logs(&["noise"]);
    client.half_close();
    client.ends();
    let outcome = daemon.ends_well();
    assert!(outcome.stderr.contains("DEBUG"), "{}", outcome.stderr);
}

#[test]
fn stdin_may_be_a_file() {
    let setup = Setup::new([echo("echo", 2)]);
    let input = setup.path("input");
    fs::write(&input, requests(2000)).unwrap();
    let daemon = setup.stdio().stdin(File::open(&input).unwrap()).start();
    let mut daemon = daemon;
    let mut client = daemon.connect();
    assert_eq!(ids(&client.rest()), (0..2000).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn stdout_may_be_a_file() {
    let setup = Setup::new([echo("echo", 1)]);
    let (input, output) = (setup.path("input"), setup.path("output"));
    fs::write(&input, requests(2000)).unwrap();
    let stdout = File::create(&output).unwrap();
    let mut daemon = setup.stdio().stdin(File::open(&input).unwrap()).stdout(stdout).start_without_waiting();
    daemon.wait();
    assert_eq!(ids(&fs::read_to_string(&output).unwrap()), (0..2000).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn stdout_may_be_a_file_that_is_appended_to() {
    let setup = Setup::new([echo("echo", 1)]);
    let (input, output) = (setup.path("input"), setup.path("output"));
    fs::write(&input, requests(10)).unwrap();
    fs::write(&output, "{\"id\":-1}\n").unwrap();
    let stdout = File::options().append(true).open(&output).unwrap();
    let mut daemon = setup.stdio().stdin(File::open(&input).unwrap()).stdout(stdout).start_without_waiting();
    daemon.wait();
    assert_eq!(ids(&fs::read_to_string(&output).unwrap()), (-1..10).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn stdin_may_be_dev_null_which_ends_at_once() {
    let daemon = Setup::new([echo("echo", 1)]).stdio().stdin(Stdio::null()).start_without_waiting();
    daemon.logs(&["WARN", "no_input", "--tcp 127.0.0.1:9000"]);
    daemon.ends_well();
}

#[test]
fn stdout_may_be_dev_null() {
    let setup = Setup::new([echo("echo", 1)]);
    let input = setup.path("input");
    fs::write(&input, requests(100)).unwrap();
    setup.stdio().stdin(File::open(&input).unwrap()).stdout(Stdio::null()).start_without_waiting().ends_well();
}

#[test]
fn stdin_and_stdout_may_be_one_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stdout: OwnedFd = theirs.try_clone().unwrap().into();
    let stdin: OwnedFd = theirs.into();
    let daemon = Setup::new([worker("agents", 1, &[])]).stdio().stdin(stdin).stdout(stdout).start_without_waiting();
    let mut client = Client::over(ours);
    client.send_bytes(requests(500).as_bytes());
    client.half_close();
    assert_eq!(ids(&client.rest()), (0..500).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn a_nonblocking_half_closed_socket_is_written_to_the_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let stdout: OwnedFd = theirs.try_clone().unwrap().into();
    let stdin: OwnedFd = theirs.into();
    let setup = with_admin(Setup::new([worker("agents", 1, &[])])).limit("drain_timeout_sec", 3600);
    let daemon = setup.stdio().stdin(stdin).stdout(stdout).start_without_waiting();
    let mut client = Client::over(ours);
    for id in 0..8 {
        client.ask(id, "m", json!("x".repeat(200_000)));
    }
    client.half_close();
    let queued = "stdio_bus_client_queued_bytes";
    let mut admin = Admin::of(&daemon);
    daemon.until("the output is unread", || metric(&admin.get("/metrics").body, queued) > 1_000_000.0);
    assert_eq!(ids(&client.rest()), (0..8).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn stdin_and_stdout_may_be_a_terminal() {
    let (person, terminal) = terminal();
    let daemon = Setup::new([echo("echo", 1)])
        .stdio()
        .stdin(terminal.try_clone().unwrap())
        .stdout(terminal)
        .start_without_waiting();
    let mut person = Client::over(person);
    person.send_line(r#"{"id":1,"method":"typed"}"#);
    // The terminal echoes the input; the answer follows it.
    assert!(person.line().contains("typed"));
    assert!(person.line().contains("\"result\""));
    // Ctrl-D at the beginning of a line.
    person.send_bytes(&[4]);
    daemon.ends_well();
}

#[test]
fn an_unread_terminal_on_stdout_delays_no_other_client_and_lost_output_exits_with_1() {
    let (unread, screen) = terminal();
    let mode = rustix::fs::fcntl_getfl(&screen).unwrap();
    let setup = Setup::new([echo("echo", 1)]).stdio().limit("drain_timeout_sec", 1);
    let listener = json!([{ "unix": setup.path("socket") }]);
    let (keyboard, typist) = std::io::pipe().unwrap();
    let setup = setup.set("listeners", listener).stdin(keyboard).stdout(screen.try_clone().unwrap());
    let mut daemon = setup.start_without_waiting();
    // Far more than a terminal buffers. The pipe stays open: at its end the daemon would not wait for the other client.
    let typing = std::thread::spawn(move || {
        let written = (&typist).write_all(requests(20_000).as_bytes());
        (typist, written)
    });
    assert!(ready(unread.as_fd(), PollFlags::IN), "nothing is written to the terminal");
    daemon.until("it listens", || UnixStream::connect(daemon.path("socket")).is_ok());
    let mut other = Client::over_unix(&daemon.path("socket"));
    for id in 0..500 {
        other.request(id, "m", json!({}));
    }
    assert_eq!(rustix::fs::fcntl_getfl(&screen).unwrap(), mode, "the flags are not ours to change");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1));
    daemon.nothing_is_left();
    daemon.logs(&["ERROR", "lines for stdout could not be written"]);
    // It may have been stopped in the middle of its input.
    drop(typing.join().unwrap());
}

#[test]
fn a_terminal_on_stdout_that_is_read_late_gets_all_answers() {
    let (screen, terminal) = terminal();
    let (keyboard, typist) = std::io::pipe().unwrap();
    let setup = Setup::new([echo("echo", 1)]).stdio().stdin(keyboard).stdout(terminal.try_clone().unwrap());
    let daemon = setup.start_without_waiting();
    let mut typist = Client::over(typist);
    typist.send_bytes(requests(2000).as_bytes());
    assert!(ready(screen.as_fd(), PollFlags::IN), "nothing is written to the terminal");
    drop(typist);
    let mut screen = Client::over(screen);
    let seen: String = (0..2000).map(|_| screen.line() + "\n").collect();
    assert_eq!(ids(&seen), (0..2000).collect::<Vec<_>>());
    drop(terminal);
    daemon.ends_well();
}

#[test]
fn answers_not_written_to_a_full_disk_are_counted_and_exit_with_1() {
    // All answers arrive in one read, so that none of them is still pending when the first one cannot be written.
    let setup = Setup::new([shell("agents", "head -n 50 | dd bs=4096 iflag=fullblock 2>/dev/null; exec cat")]);
    let input = setup.path("input");
    fs::write(&input, requests(50)).unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let outcome = setup.stdio().stdin(File::open(&input).unwrap()).stdout(full).run();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("No space left on device"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(" 50 lines for stdout could not be written"), "{}", outcome.stderr);
}

/// Runs `--stdio <input >output 2>log` as a user with this limit of processes and threads: its exit code, the answers,
/// and the log.
fn with_processes(most: u64) -> Option<(Option<i32>, String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let program = program_for_all(directory.path());
    let pool = json!({ "id": "echo", "command": program, "args": ["worker", "echo"], "instances": 2 });
    let config = json!({ "pools": [pool], "limits": { "drain_timeout_sec": 1 } });
    fs::write(path("config"), config.to_string()).unwrap();
    fs::write(path("input"), requests(50)).unwrap();
    let mut command = Command::new(program);
    command.arg("--config").arg(path("config")).arg("--stdio").stdin(File::open(path("input")).unwrap());
    command.stdout(File::create(path("output")).unwrap()).stderr(File::create(path("log")).unwrap());
    if !as_another_user(&mut command, libc::RLIMIT_NPROC, most, || Ok(())) {
        return None;
    }
    let code = end_of("the daemon", &mut command.spawn().unwrap()).code();
    Some((code, fs::read_to_string(path("output")).unwrap(), fs::read_to_string(path("log")).unwrap()))
}

#[test]
fn files_are_written_where_no_further_process_is_allowed() {
    // The daemon, the kernel's thread for files, and one of the two workers.
    let Some((code, output, log)) = with_processes(3) else { return };
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(ids(&output), (0..50).collect::<Vec<_>>(), "{log}");
    assert!(log.lines().next().is_some_and(|line| line.contains("INFO  stdio_bus ")), "{log}");
    assert!(log.lines().last().is_some_and(|line| line.contains("INFO  stopped: ")), "{log}");
}

#[test]
fn answers_not_written_to_a_file_for_lack_of_a_thread_are_counted_and_exit_with_1() {
    let Some((code, output, log)) = with_processes(1) else { return };
    assert_eq!((code, output.as_str()), (Some(1), ""), "{log}");
    assert!(log.contains("the kernel can make no thread to write"), "{log}");
    assert!(log.contains(" 50 lines for stdout could not be written"), "{log}");
    assert!(log.lines().next().is_some_and(|line| line.contains("INFO  stdio_bus ")), "{log}");
    assert!(log.lines().last().is_some_and(|line| line.contains("INFO  stopped: ")), "{log}");
}

#[test]
fn the_log_is_sent_to_a_file_while_the_daemon_runs_though_no_thread_can_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let program = program_for_all(directory.path());
    fs::write(
        path("config"),
        json!({ "pools": [{ "id": "none", "command": "/bin/true", "instances": 1 }] }).to_string(),
    )
    .unwrap();
    let mut command = Command::new(program);
    command.arg("--config").arg(path("config")).args(["--tcp", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(path("log")).unwrap());
    if !as_another_user(&mut command, libc::RLIMIT_NPROC, 1, || Ok(())) {
        return;
    }
    let mut daemon = command.spawn().unwrap();
    until("the log is there while it runs", || fs::read_to_string(path("log")).unwrap().contains("listening on"));
    assert_eq!(daemon.try_wait().unwrap(), None);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn a_closed_stdout_ends_the_daemon_without_a_signal() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).stdio().start();
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    let mut writer = client.close_reading();
    // A process that another test is spawning holds a copy of the closed descriptor until it has started, and is a
    // reader as well.
    until("an answer finds no reader", || {
        let _ = writer.try_send(b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"m\"}\n");
        !daemon.runs()
    });
    daemon.ends_well();
}

#[test]
fn a_malformed_line_on_stdin_is_answered_and_ends_the_daemon() {
    let mut daemon = Setup::new([echo("echo", 1)]).stdio().start();
    let mut client = daemon.connect();
    client.send_line("nonsense");
    assert_eq!(client.message()["error"]["code"], -32700);
    client.ends();
    daemon.ends_well();
}

#[test]
fn the_descriptors_of_the_parent_stay_in_blocking_mode() {
    // They are shared with the program that started us: changing them would break it.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let kept = theirs.try_clone().unwrap();
    let stdout: OwnedFd = theirs.try_clone().unwrap().into();
    let stdin: OwnedFd = theirs.into();
    let daemon = Setup::new([echo("echo", 1)]).stdio().stdin(stdin).stdout(stdout).start_without_waiting();
    let mut client = Client::over(ours);
    client.request(1, "m", json!({}));
    let flags = rustix::fs::fcntl_getfl(&kept).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    drop(kept);
    client.half_close();
    client.ends();
    daemon.ends_well();
}
