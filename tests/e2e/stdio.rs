//! One client on stdin and stdout (spec 4.1; decision 10).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Setup, echo, worker};

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
fn it_is_the_mode_that_needs_no_flag() {
    let mut daemon = Setup::new([echo("echo", 1)]).no_listener().stdin(Stdio::piped()).start_unheard();
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
    let mut daemon = setup.stdio().stdin(File::open(&input).unwrap()).stdout(stdout).start_unheard();
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
    let mut daemon = setup.stdio().stdin(File::open(&input).unwrap()).stdout(stdout).start_unheard();
    daemon.wait();
    assert_eq!(ids(&fs::read_to_string(&output).unwrap()), (-1..10).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn stdin_may_be_dev_null_which_ends_at_once() {
    let daemon = Setup::new([echo("echo", 1)]).stdio().stdin(Stdio::null()).start_unheard();
    daemon.ends_well();
}

#[test]
fn stdout_may_be_dev_null() {
    let setup = Setup::new([echo("echo", 1)]);
    let input = setup.path("input");
    fs::write(&input, requests(100)).unwrap();
    setup.stdio().stdin(File::open(&input).unwrap()).stdout(Stdio::null()).start_unheard().ends_well();
}

#[test]
fn stdin_and_stdout_may_be_one_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stdout: OwnedFd = theirs.try_clone().unwrap().into();
    let stdin: OwnedFd = theirs.into();
    let daemon = Setup::new([worker("agents", 1, &[])]).stdio().stdin(stdin).stdout(stdout).start_unheard();
    let mut client = Client::over(ours);
    client.send_bytes(requests(500).as_bytes());
    client.half_close();
    assert_eq!(ids(&client.rest()), (0..500).collect::<Vec<_>>());
    daemon.ends_well();
}

#[test]
fn stdin_and_stdout_may_be_a_terminal() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let daemon =
        Setup::new([echo("echo", 1)]).stdio().stdin(terminal.try_clone().unwrap()).stdout(terminal).start_unheard();
    let mut master = File::from(master);
    master.write_all(b"{\"id\":1,\"method\":\"typed\"}\n").unwrap();
    // The terminal echoes what is typed; the answer comes behind it.
    let mut seen = String::new();
    while !seen.contains("\"result\"") {
        let mut piece = [0; 512];
        let count = master.read(&mut piece).unwrap();
        seen.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    // Ctrl-D at the beginning of a line.
    master.write_all(&[4]).unwrap();
    daemon.ends_well();
}

#[test]
fn a_stdout_that_nobody_reads_any_more_ends_the_daemon_without_a_signal() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).stdio().start();
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    let mut writer = client.close_reading();
    writer.ask(2, "m", json!({}));
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
    let daemon = Setup::new([echo("echo", 1)]).stdio().stdin(stdin).stdout(stdout).start_unheard();
    let mut client = Client::over(ours);
    client.request(1, "m", json!({}));
    let flags = rustix::fs::fcntl_getfl(&kept).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    drop(kept);
    client.half_close();
    client.ends();
    daemon.ends_well();
}
