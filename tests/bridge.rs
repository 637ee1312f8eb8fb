//! The bridge as an editor sees it: the real program between a test's pipes and a test's socket. All tests run twice,
//! the second time with io_uring blocked, as it is in many containers. `bridge/` has the tests of WebSocket and of MCP
//! over HTTP.

#[path = "bridge/files.rs"]
mod files;
#[path = "bridge/harness.rs"]
mod harness;
#[path = "bridge/http.rs"]
mod http;
#[path = "support/ports.rs"]
mod ports;
#[path = "support/seccomp.rs"]
mod seccomp;
#[path = "support/steady.rs"]
mod steady;
#[path = "support/terminal.rs"]
mod terminal;
#[cfg(feature = "tls")]
#[path = "bridge/tls.rs"]
mod tls;
#[path = "support/waiting.rs"]
mod waiting;
#[path = "bridge/websocket.rs"]
mod websocket;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{
    Bridge, Daemon, PATIENCE, Peer, Reader, SECOND_TIME, fill, filled, flags, ids, is_second_time, lines, patient,
    pipe, ready, resident_kilobytes, rest, send_all,
};
use ports::unused;
use seccomp::forbid;
use serde_json::{Value, json};
use terminal::terminal;

#[test]
fn megabytes_pass_in_both_directions_at_once_and_unchanged() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, peer) = daemon.bridge();
        let (up, down) = (lines(8 << 20, 1), lines(8 << 20, 2));
        let sender = send_all(peer.copy(), down.clone());
        let mut received = Reader::new(peer.copy());
        let mut stdin = bridge.stdin.take().expect("stdin is open");
        let (sent, expected) = (up.clone(), up.len());
        let editor = std::thread::spawn(move || stdin.write_all(&sent).map(|()| stdin));
        assert!(stdout.exactly(down.len()) == down, "what the daemon said arrives unchanged");
        assert!(received.exactly(expected) == up, "what the editor said arrives unchanged");
        sender.join().expect("the daemon said it all");
        let stdin = editor.join().expect("no panic").expect("the editor said it all");
        drop(stdin);
        assert_eq!(received.rest(), b"", "the end of stdin reaches the daemon");
    }
}

#[test]
fn answers_still_arrive_after_the_end_of_stdin() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
        bridge.end_input();
        let mut request = Vec::new();
        peer.read_to_end(&mut request).expect("the daemon reads up to the end of stdin");
        assert_eq!(request, b"{\"id\":1,\"method\":\"m\"}\n");
        peer.write_all(b"{\"id\":1,\"result\":{}}\n").expect("the bridge still reads");
        drop(peer);
        assert_eq!(stdout.rest(), b"{\"id\":1,\"result\":{}}\n");
        assert_eq!(bridge.code(), Some(0));
        assert_eq!(bridge.stderr.text(), "");
    }
}

#[test]
fn each_waiting_request_gets_an_error_when_the_daemon_goes() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        let requests = concat!(
            "{\"id\":0,\"method\":\"initialize\"}\n{\"id\":\"\\u00e9\",\"method\":\"m\"}\n{\"method\":\"session/cancel\"}\n",
            "{\"id\":5,\"result\":{}}\n{\"params\":{\"id\":3},\"id\":2.50,\"method\":\"m\"}\n"
        );
        bridge.send(requests.as_bytes());
        let mut received = vec![0; requests.len()];
        peer.read_exact(&mut received).expect("the requests arrive");
        let answers = b"{\"id\":0,\"result\":{}}\n{\"id\":2.50,\"method\":\"session/request_permission\"}\n";
        peer.write_all(answers).expect("the bridge reads");
        assert_eq!(stdout.exactly(answers.len()), answers);
        drop(peer);
        let rest = stdout.text();
        let messages: Vec<Value> =
            rest.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
        assert_eq!(ids(&messages), [json!("é"), json!(2.5)], "in the order in which they were sent");
        assert!(rest.contains(r#""id":"\u00e9","#) && rest.contains(r#""id":2.50,"#), "to the byte: {rest}");
        assert_eq!(messages[0]["jsonrpc"], "2.0");
        assert_eq!(messages[0]["error"]["data"]["reason"], "daemon_gone");
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains(&daemon.address()) && log.contains("2 requests were not answered"), "{log}");
    }
}

const PROMPT: &[u8] = b"{\"id\":3,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"s\",\"prompt\":[]}}\n";
const PROMPT_OF_S: &str = "{\"id\":ID,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"s\"}}\n";
const CANCEL: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{\"sessionId\":\"s\"}}\n";

#[test]
fn a_prompt_that_waits_is_cancelled_when_stdin_ends_and_its_answer_still_arrives() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":2,\"method\":\"session/new\"}\n");
        bridge.send(PROMPT);
        bridge.end_input();
        let mut sent = Vec::new();
        peer.read_to_end(&mut sent).expect("the daemon reads up to the end of stdin");
        assert_eq!(
            sent.escape_ascii().to_string(),
            [&b"{\"id\":2,\"method\":\"session/new\"}\n"[..], PROMPT, CANCEL].concat().escape_ascii().to_string()
        );
        let answer = b"{\"id\":3,\"result\":{\"stopReason\":\"cancelled\"}}\n{\"id\":2,\"result\":{}}\n";
        peer.write_all(answer).expect("the bridge still reads");
        drop(peer);
        assert_eq!(stdout.rest(), answer);
        assert_eq!(bridge.code(), Some(0));
        assert_eq!(bridge.stderr.text(), "");
    }
}

#[test]
fn a_prompt_that_waits_is_cancelled_though_stdin_ends_within_a_line() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(PROMPT);
        bridge.send(b"{\"method\":\"fs/");
        bridge.end_input();
        let mut sent = Vec::new();
        peer.read_to_end(&mut sent).expect("the daemon reads up to the end of stdin");
        assert_eq!(sent.escape_ascii().to_string(), [PROMPT, CANCEL].concat().escape_ascii().to_string());
        let answer = b"{\"id\":3,\"result\":{\"stopReason\":\"cancelled\"}}\n";
        peer.write_all(answer).expect("the bridge still reads");
        drop(peer);
        assert_eq!(stdout.rest(), answer);
        assert_eq!(bridge.code(), Some(0));
        let log = bridge.stderr.text();
        assert!(log.contains("stdin has ended within a line; 14 bytes of it are dropped"), "{log}");
    }
}

#[test]
fn a_prompt_that_was_answered_is_not_cancelled() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(PROMPT);
    let mut sent = vec![0; PROMPT.len()];
    peer.read_exact(&mut sent).expect("the prompt arrives");
    peer.write_all(b"{\"id\":3,\"result\":{}}\n").expect("the bridge reads");
    assert_eq!(stdout.message()["id"], 3);
    // A line is passed on when the one before it was.
    peer.write_all(b"{\"method\":\"m\"}\n").expect("the bridge reads");
    assert_eq!(stdout.message()["method"], "m");
    bridge.end_input();
    assert_eq!(peer.read(&mut sent).expect("the end arrives"), 0);
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn why_the_daemon_closes_is_reported_to_each_request_that_waits() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
        ready(&*peer, libc::POLLIN);
        let word = b"{\"id\":null,\"error\":{\"message\":\"too much\",\"data\":{\"reason\":\"memory_limit\"}}}\n";
        peer.write_all(word).expect("the bridge reads");
        drop(peer);
        assert_eq!(stdout.exactly(word.len()), word, "it is passed on as it is");
        let error = stdout.message();
        assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&json!(1), &json!("daemon_closed")));
        assert_eq!(error["error"]["message"], "the connection to the daemon was closed: too much");
        assert_eq!(error["error"]["data"]["cause"], "it closed the connection: too much");
        assert_eq!(error["error"]["data"]["address"], daemon.address());
        assert_eq!(bridge.code(), Some(1));
        assert!(bridge.stderr.text().contains("it closed the connection: too much; 1 request was not answered"));
    }
}

#[test]
fn a_daemon_that_is_killed_is_noticed_like_one_that_closes() {
    let daemon = Daemon::tcp();
    let (mut bridge, mut stdout, peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
    ready(&*peer, libc::POLLIN);
    // Closing with unread bytes resets the connection, as when a process ends.
    drop(peer);
    assert_eq!(stdout.message()["error"]["data"]["reason"], "daemon_gone");
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn an_error_is_on_a_line_of_its_own_when_the_daemon_breaks_off_within_a_line() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
    ready(&*peer, libc::POLLIN);
    peer.write_all(b"{\"id\":1,\"result\":\"unfinis").expect("the bridge reads");
    drop(peer);
    let text = stdout.text();
    let (broken, error) = text.split_once('\n').expect("two lines");
    assert_eq!(broken, "{\"id\":1,\"result\":\"unfinis");
    let error: Value = serde_json::from_str(error).expect("the second line is JSON");
    assert_eq!(error["id"], 1);
    assert_eq!(bridge.code(), Some(1));
}

/// Waits until the bridge has logged this as often.
fn has_logged(bridge: &mut Bridge, text: &str, times: usize) {
    while String::from_utf8_lossy(&bridge.stderr.seen).matches(text).count() < times {
        assert!(!bridge.stderr.ended, "{}", String::from_utf8_lossy(&bridge.stderr.seen));
        bridge.stderr.more();
    }
}

const IDLE: &str = "has ended the connection, and nothing was pending";

#[test]
fn after_a_daemon_that_ends_while_nothing_is_pending_the_next_message_makes_a_new_connection() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(ask(0, "initialize").as_bytes());
        assert_eq!(line(&mut *peer), ask(0, "initialize"));
        peer.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
        assert_eq!(stdout.message()["id"], 0);
        for times in 1..3 {
            drop(peer);
            has_logged(&mut bridge, IDLE, times);
            bridge.send(&ask(1, "m").as_bytes()[..9]);
            bridge.send(&ask(1, "m").as_bytes()[9..]);
            peer = daemon.accept();
            assert_eq!(line(&mut *peer), ask(0, "initialize"));
            peer.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
            assert_eq!(line(&mut *peer), ask(1, "m"));
            peer.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
            assert_eq!(stdout.message(), json!({ "id": 1, "result": {} }), "the answer to initialize is not passed on");
        }
        bridge.send(ask(2, "m").as_bytes());
        assert_eq!(line(&mut *peer), ask(2, "m"));
        drop(peer);
        assert_eq!(stdout.message()["error"]["data"]["reason"], "daemon_gone");
        assert_eq!((bridge.code(), stdout.rest()), (Some(1), Vec::new()), "a request was pending");
    }
}

#[test]
fn an_editor_that_leaves_after_an_idle_connection_has_ended_is_no_failure() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"method\":\"m\"}\n");
    line(&mut *peer);
    peer.write_all(b"{\"method\":\"n\"}\n").expect("it reads");
    drop(peer);
    has_logged(&mut bridge, IDLE, 1);
    bridge.end_input();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), b"{\"method\":\"n\"}\n".to_vec()));
}

#[test]
fn a_daemon_that_ends_before_answering_is_an_error_after_the_end_of_stdin_too() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"no newline\"}");
    bridge.end_input();
    let mut request = Vec::new();
    peer.read_to_end(&mut request).expect("the daemon reads up to the end of stdin");
    drop(peer);
    assert_eq!(stdout.message()["id"], 1);
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn a_daemon_that_stops_reading_but_stays_connected_is_given_up() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, peer) = daemon.bridge();
    // SAFETY: shutdown(2) takes integers alone.
    assert_eq!(unsafe { libc::shutdown(peer.as_fd().as_raw_fd(), libc::SHUT_RD) }, 0);
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(stdout.message()["error"]["data"]["reason"], "daemon_gone");
    assert_eq!(bridge.code(), Some(1));
}

/// Addresses where nothing listens, each with a word of the remedy.
fn dead_addresses(directory: &tempfile::TempDir, free: SocketAddr) -> Vec<(String, &'static str)> {
    let stale = directory.path().join("stale");
    drop(UnixListener::bind(&stale).expect("a socket"));
    // The resolver rejects this name without a query: one label exceeds 63 bytes (RFC 1035 2.3.4).
    let nameless = "x".repeat(64);
    vec![
        (format!("tcp://{free}"), "--tcp"),
        (format!("unix:{}", stale.display()), "does not run any more"),
        (format!("unix:{}/missing", directory.path().display()), "--unix"),
        (format!("tcp://{nameless}.invalid:9000"), "is not known"),
    ]
}

#[test]
fn each_request_gets_an_error_when_the_daemon_cannot_be_reached() {
    let directory = tempfile::tempdir().expect("a directory");
    let (free, _keeps_it) = unused();
    for (address, remedy) in dead_addresses(&directory, free) {
        let (mut bridge, mut stdout) = Bridge::start(&address);
        bridge.send(b"{\"id\":0,\"method\":\"initialize\"}\n{\"method\":\"n\"}\n");
        let error = stdout.message();
        let data = &error["error"]["data"];
        assert_eq!(
            (&error["id"], &data["reason"], &data["delivered"]),
            (&json!(0), &json!("daemon_unreachable"), &json!(false))
        );
        assert_eq!(data["address"], address);
        let (cause, advice) = (data["cause"].as_str().expect("text"), data["remedy"].as_str().expect("text"));
        assert!(error["error"]["message"].as_str().is_some_and(|message| message.ends_with(cause)), "{error}");
        assert!(advice.contains(remedy), "{advice}");
        bridge.send(b"{\"id\":1,\"method\":\"session/new\"}\n");
        assert_eq!(stdout.message()["id"], 1, "later requests too");
        bridge.end_input();
        assert_eq!(stdout.rest(), b"");
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains(&format!("cannot connect to {address}")) && log.contains(remedy), "{log}");
    }
}

#[test]
fn a_bridge_without_a_daemon_ends_by_itself_though_its_editor_keeps_stdin_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut bridge, mut stdout) = Bridge::start(&format!("unix:{}/missing", directory.path().display()));
    bridge.send(b"{\"id\":0,\"method\":\"initialize\"}\n");
    assert_eq!(stdout.message()["id"], 0);
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn the_other_addresses_of_a_name_are_tried() {
    // On most machines `localhost` also has an IPv6 address, where nothing listens.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let daemon = Daemon::Tcp(listener);
    let (mut bridge, _stdout) = Bridge::start(&format!("tcp://localhost:{port}"));
    drop(daemon.accept());
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn an_editor_that_stops_reading_ends_the_bridge_quietly() {
    for daemon in Daemon::both() {
        let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
        let mut peer = daemon.accept();
        drop(bridge.child.stdout.take());
        // A process that another test is spawning may hold the pipe open for a moment.
        let status = bridge.status_after(|| {
            let _ = peer.write_all(b"{\"method\":\"m\"}\n");
        });
        assert_eq!(status.code(), Some(0));
        assert_eq!(bridge.stderr.text(), "");
    }
}

#[test]
fn an_editor_that_dies_ends_the_bridge_although_a_request_is_pending() {
    for daemon in Daemon::both() {
        let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
        let mut peer = daemon.accept();
        bridge.send(b"{\"id\":1,\"method\":\"session/prompt\"}\n");
        drop(bridge.child.stdout.take());
        bridge.end_input();
        assert_eq!(bridge.code(), Some(0));
        // The last input is the end of stdin or, if that is faster, the end of the connection.
        rest(&mut *peer);
        // It is closed rather than half-closed: the daemon learns that the answer is not wanted any more.
        assert_ne!(ready(&*peer, libc::POLLOUT) & (libc::POLLHUP | libc::POLLERR), 0);
    }
}

#[test]
fn an_editor_that_dies_ends_the_bridge_although_the_daemon_reads_nothing() {
    for daemon in Daemon::both() {
        let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
        let _peer = daemon.accept();
        fill(bridge.stdin.as_ref().expect("stdin is open"));
        drop(bridge.child.stdout.take());
        bridge.end_input();
        assert_eq!(bridge.code(), Some(0));
    }
}

#[test]
fn an_editor_that_reads_slowly_slows_the_daemon_and_loses_nothing() {
    for daemon in Daemon::both() {
        let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
        let peer = daemon.accept();
        // SAFETY: the descriptor is a copy that has no other owner.
        let writer = unsafe { File::from_raw_fd(libc::dup(peer.as_fd().as_raw_fd())) };
        let taken = fill(&writer);
        assert!(resident_kilobytes(&bridge) < 24 * 1024, "{} kB", resident_kilobytes(&bridge));
        peer.end_output();
        // Otherwise it would wait for requests to refuse.
        bridge.end_input();
        let mut stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
        let (expected, _) = filled(taken);
        let mut seen = stdout.rest();
        seen.truncate(taken);
        assert!(seen == expected, "{} of {taken} bytes came", seen.len());
    }
}

#[test]
fn a_daemon_that_reads_slowly_slows_the_editor_and_loses_nothing() {
    for daemon in Daemon::both() {
        let (mut bridge, _stdout, mut peer) = daemon.bridge();
        let stdin = bridge.stdin.take().expect("stdin is open");
        // SAFETY: the descriptor is a copy that has no other owner.
        let writer = unsafe { File::from_raw_fd(libc::dup(stdin.as_raw_fd())) };
        let taken = fill(&writer);
        assert!(resident_kilobytes(&bridge) < 24 * 1024, "{} kB", resident_kilobytes(&bridge));
        drop((stdin, writer));
        let mut seen = Vec::new();
        peer.read_to_end(&mut seen).expect("the daemon reads all");
        // Of an incomplete last line, the part arrives that was sent before the end of stdin.
        let (expected, whole) = filled(taken);
        assert!(seen.len() >= whole && expected.starts_with(&seen), "{} of {taken} bytes came", seen.len());
    }
}

#[test]
fn a_signal_ends_the_bridge_at_once_and_closes_the_socket() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        for daemon in Daemon::both() {
            let (mut bridge, _stdout, mut peer) = daemon.bridge();
            bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
            let mut seen = [0; 22];
            peer.read_exact(&mut seen).expect("the line arrives");
            // SAFETY: kill(2) takes integers alone, and the child has not been reaped, so the number is still its own.
            assert_eq!(unsafe { libc::kill(bridge.child.id() as i32, signal) }, 0);
            assert_eq!(rest(&mut *peer), b"", "the daemon sees the end");
            assert_eq!(bridge.status().signal(), Some(signal));
        }
    }
}

/// The real daemon, with its built-in workers.
fn real_daemon(path: &std::path::Path) -> Bridge {
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_stdio_bus"));
    daemon.arg("--unix").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let daemon = Bridge::from(daemon);
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect(path).is_err() {
        assert!(Instant::now() < deadline, "the daemon does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
    daemon
}

#[test]
fn a_last_line_without_a_newline_is_answered_by_the_real_daemon() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bus");
    let _daemon = real_daemon(&path);
    for length in [1, 1 << 19] {
        let (mut bridge, mut stdout) = Bridge::start(&format!("unix:{}", path.display()));
        let params = "x".repeat(length);
        bridge.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":[\"{params}\"]}}").as_bytes());
        bridge.end_input();
        let answer = stdout.message();
        assert_eq!((&answer["id"], answer.get("error")), (&json!(1), None));
        assert_eq!(bridge.code(), Some(0));
        assert_eq!(bridge.stderr.text(), "");
    }
}

#[test]
fn an_editor_learns_which_of_its_requests_was_too_long_for_the_real_daemon() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bus");
    let _daemon = real_daemon(&path);
    let (mut bridge, mut stdout) = Bridge::start(&format!("unix:{}", path.display()));
    bridge.send(b"{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"m\"}\n");
    assert_eq!(stdout.message()["id"], 6);
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"m\",\"params\":\"{}\"}}\n", "x".repeat(1 << 20));
    // The daemon does not read it to its end.
    let mut stdin = bridge.stdin.take().expect("stdin is open");
    let editor = std::thread::spawn(move || {
        let _ = stdin.write_all(long.as_bytes());
        stdin
    });
    let said = stdout.message();
    assert_eq!((&said["id"], &said["error"]["data"]["reason"]), (&Value::Null, &json!("client_line_too_long")));
    let told = stdout.message();
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!(7), &json!(-32600)), "{told}");
    assert_eq!(told["error"]["data"]["reason"], "client_line_too_long");
    assert!(told["error"]["data"]["remedy"].as_str().is_some_and(|remedy| remedy.contains("max_input_buffer")));
    assert_eq!(bridge.code(), Some(1));
    drop(editor.join().expect("no panic"));
    assert!(bridge.stderr.text().contains("1048576 bytes; a line of "));
}

#[test]
fn an_idle_editor_continues_with_the_next_daemon_after_the_real_one_has_shut_down() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bus");
    let mut daemon = real_daemon(&path);
    let (mut bridge, mut stdout) = Bridge::start(&format!("unix:{}", path.display()));
    bridge.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"m\",\"params\":[1]}\n");
    let expected = json!({"jsonrpc": "2.0", "id": "a", "result": {"echo": [1], "method": "m"}});
    assert_eq!(stdout.message(), expected);
    // SAFETY: kill(2) takes integers alone, and the child has not been reaped, so the number is still its own.
    assert_eq!(unsafe { libc::kill(daemon.child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(daemon.code(), Some(0));
    has_logged(&mut bridge, IDLE, 1);
    let _second = real_daemon(&path);
    bridge.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"m\",\"params\":[1]}\n");
    assert_eq!(stdout.message(), expected);
    bridge.end_input();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

/// What a daemon that shuts down answers a request with that no worker got.
fn refusal(id: u32) -> Vec<u8> {
    let data = json!({ "reason": "shutting_down", "delivered": false });
    let error = json!({ "code": -32016, "message": "the daemon is shutting down", "data": data });
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n").into_bytes()
}

/// The next line of a peer.
fn line(peer: &mut dyn Peer) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        peer.read_exact(&mut byte).expect("a line comes");
        line.extend(byte);
    }
    String::from_utf8(line).expect("text")
}

fn ask(id: u32, method: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"}}\n")
}

#[test]
fn what_a_daemon_that_shuts_down_has_refused_is_sent_again_on_a_new_connection_in_order() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(ask(0, "initialize").as_bytes());
        assert_eq!(line(&mut *peer), ask(0, "initialize"));
        peer.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
        assert_eq!(stdout.message()["id"], 0);
        bridge.send(b"{\"method\":\"notifications/initialized\"}\n");
        line(&mut *peer);
        for id in 1..4 {
            bridge.send(ask(id, "m").as_bytes());
            assert_eq!(line(&mut *peer), ask(id, "m"));
        }
        peer.write_all(&[refusal(2), refusal(3)].concat()).expect("it reads");
        peer.write_all(b"{\"id\":7,\"method\":\"asks\"}\n").expect("it reads");
        assert_eq!(stdout.message()["id"], 7, "no refusal was passed on");
        // What the daemon has goes on; what is new waits.
        bridge.send(format!("{}{{\"id\":7,\"result\":1}}\n{{\"method\":\"note\"}}\n", ask(4, "m")).as_bytes());
        assert_eq!(line(&mut *peer), "{\"id\":7,\"result\":1}\n");
        assert_eq!(line(&mut *peer), "{\"method\":\"note\"}\n");
        peer.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
        assert_eq!(stdout.message()["id"], 1);
        peer.end_output();
        let mut second = daemon.accept();
        assert_eq!(line(&mut *second), ask(0, "initialize"));
        second.write_all(b"{\"method\":\"hello\"}\n{\"id\":0,\"result\":{}}\n").expect("it reads");
        assert_eq!(stdout.message()["method"], "hello");
        assert_eq!(line(&mut *second), "{\"method\":\"notifications/initialized\"}\n");
        for id in [2, 3, 4] {
            assert_eq!(line(&mut *second), ask(id, "m"));
        }
        bridge.send(ask(5, "m").as_bytes());
        assert_eq!(line(&mut *second), ask(5, "m"));
        for id in [2, 3, 4, 5] {
            second.write_all(format!("{{\"id\":{id},\"result\":{{}}}}\n").as_bytes()).expect("it reads");
            assert_eq!(stdout.message()["id"], id);
        }
        bridge.end_input();
        rest(&mut *second);
        drop(second);
        assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
        assert!(bridge.stderr.text().contains("2 requests that it has refused are sent again on a new connection"));
    }
}

#[test]
fn what_was_refused_is_sent_on_the_connection_that_is_answered_and_on_none_that_was_closed_before() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout) = refused(&daemon);
        // As a tunnel or a balancer does while no daemon is behind it.
        for _ in 0..2 {
            let mut closed = daemon.accept();
            assert_eq!(line(&mut *closed), ask(0, "initialize"));
        }
        let mut second = daemon.accept();
        assert_eq!(line(&mut *second), ask(0, "initialize"));
        second.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
        assert_eq!(line(&mut *second), ask(1, "m"));
        second.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
        assert_eq!(stdout.message(), json!({ "id": 1, "result": {} }));
        bridge.end_input();
        rest(&mut *second);
        drop(second);
        assert_eq!(bridge.code(), Some(0));
    }
}

/// An editor whose first daemon has answered `initialize` and refused the request 1; the connection is closed.
fn refused(daemon: &Daemon) -> (Bridge, Reader) {
    let (bridge, stdout) = unread(daemon);
    let mut stdout = Reader::new(stdout);
    assert_eq!(stdout.message()["id"], 0);
    assert_eq!(stdout.message()["method"], "read", "the refusal is held");
    (bridge, stdout)
}

/// The same of an editor that has read nothing yet.
fn unread(daemon: &Daemon) -> (Bridge, ChildStdout) {
    let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
    let stdout = bridge.child.stdout.take().expect("stdout is a pipe");
    let mut peer = daemon.accept();
    bridge.send(ask(0, "initialize").as_bytes());
    line(&mut *peer);
    peer.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
    bridge.send(ask(1, "m").as_bytes());
    line(&mut *peer);
    peer.write_all(&[&refusal(1), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    (bridge, stdout)
}

#[test]
fn an_initialize_that_an_agent_refuses_is_not_tried_again() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout) = refused(&daemon);
    let mut second = daemon.accept();
    assert_eq!(line(&mut *second), ask(0, "initialize"));
    let error = json!({ "code": -32603, "message": "the licence of the agent has expired" });
    second.write_all(format!("{}\n", json!({ "id": 0, "error": error })).as_bytes()).expect("it reads");
    let told = stdout.message();
    assert_eq!((&told["id"], &told["error"]["data"]["reason"]), (&json!(1), &json!("shutting_down")));
    assert_eq!(rest(&mut *second), b"");
    assert_eq!((bridge.code(), stdout.rest()), (Some(1), Vec::new()));
    let Daemon::Unix(listener, _) = &daemon else { unreachable!("it is a Unix socket") };
    listener.set_nonblocking(true).expect("it is open");
    assert!(listener.accept().is_err(), "it has connected a third time");
    let said = bridge.stderr.text();
    assert!(said.contains("the licence of the agent has expired"), "{said}");
}

#[test]
fn an_initialize_that_no_worker_takes_yet_is_tried_again_and_the_editor_gets_its_answer() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout) = refused(&daemon);
    for _ in 0..2 {
        let mut starting = daemon.accept();
        assert_eq!(line(&mut *starting), ask(0, "initialize"));
        let error = json!({ "code": -32010, "message": "no worker runs", "data": { "reason": "no_worker" } });
        starting.write_all(format!("{}\n", json!({ "id": 0, "error": error })).as_bytes()).expect("it reads");
        assert_eq!(rest(&mut *starting), b"");
    }
    let mut ready = daemon.accept();
    assert_eq!(line(&mut *ready), ask(0, "initialize"));
    ready.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
    assert_eq!(line(&mut *ready), ask(1, "m"));
    ready.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message(), json!({ "id": 1, "result": {} }));
    bridge.end_input();
    rest(&mut *ready);
    drop(ready);
    assert_eq!(bridge.code(), Some(0));
    let said = bridge.stderr.text();
    assert_eq!(said.matches("shuts down").count(), 1, "it did so once: {said}");
}

#[test]
fn a_long_line_that_comes_while_its_beginning_is_sent_again_is_not_cut_by_a_refusal() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout) = refused(&daemon);
    // More than a socket takes at once, and less than is held at most.
    let begin = format!("{{\"id\":2,\"method\":\"m\",\"params\":[\"{}", "a".repeat(3 << 20));
    let mut second = daemon.accept();
    bridge.send(begin.as_bytes());
    was_read(&bridge);
    assert_eq!(line(&mut *second), ask(0, "initialize"));
    second.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
    assert_eq!(line(&mut *second), ask(1, "m"));
    bridge.send(b"bbb");
    was_read(&bridge);
    second.write_all(&[&refusal(1), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    assert_eq!(stdout.message()["method"], "read");
    let mut reader = Reader::new(second.copy());
    assert!(reader.exactly(begin.len()) == begin.as_bytes());
    bridge.send(b"ccc\"]}\n");
    assert_eq!(String::from_utf8_lossy(&reader.exactly(10)), "bbbccc\"]}\n");
}

#[test]
fn a_bridge_that_continues_says_what_it_could_not_send() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    for id in 1..3 {
        bridge.send(ask(id, "m").as_bytes());
        line(&mut *peer);
    }
    peer.write_all(&[&refusal(2), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    assert_eq!(stdout.message()["method"], "read");
    rustix::net::shutdown(peer.as_fd(), rustix::net::Shutdown::Read).expect("it is connected");
    // They may be about the request 1, so they do not wait.
    bridge.send(b"{\"method\":\"note\"}\n{\"id\":7,\"result\":{}}\n");
    while !bridge.stderr.seen.ends_with(b"\n") {
        bridge.stderr.more();
    }
    let said = String::from_utf8_lossy(&bridge.stderr.seen);
    assert!(said.contains("2 notifications or answers of the client may not have arrived"), "{said}");
    drop(peer);
    assert_eq!(stdout.message()["id"], 1);
    assert_eq!(line(&mut *daemon.accept()), ask(2, "m"));
}

#[test]
fn a_notification_that_is_being_sent_again_when_the_connection_ends_is_not_lost_in_silence() {
    let daemon = Daemon::unix();
    let (mut bridge, _stdout) = refused(&daemon);
    let mut second = daemon.accept();
    assert_eq!(line(&mut *second), ask(0, "initialize"));
    // More than a socket takes at once, and less than is held at most.
    let note = format!("{{\"method\":\"note\",\"params\":[\"{}\"]}}\n", "a".repeat(3 << 20));
    bridge.send(note.as_bytes());
    was_taken(&mut bridge);
    second.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
    assert_eq!(line(&mut *second), ask(1, "m"));
    second.read_exact(&mut [0; 10]).expect("the notification is being sent");
    second.end_output();
    while !String::from_utf8_lossy(&bridge.stderr.seen).contains("a notification or an answer of the client may not") {
        assert!(!bridge.stderr.ended, "it says only: {}", bridge.stderr.seen.escape_ascii());
        bridge.stderr.more();
    }
}

#[test]
fn an_editor_that_reads_slowly_gets_each_error_whole_though_the_bridge_connects_again() {
    const REQUESTS: u32 = 500;
    let daemon = Daemon::unix();
    let (read, write) = pipe();
    let filler =
        File::options().write(true).custom_flags(libc::O_NONBLOCK).open(format!("/proc/self/fd/{}", write.as_raw_fd()));
    let mut command = Bridge::command(&daemon.address());
    command.stdout(write);
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    for id in 0..=REQUESTS {
        bridge.send(ask(id, "m").as_bytes());
        assert_eq!(line(&mut *peer), ask(id, "m"));
    }
    let filled = fill(filler.expect("it can be opened once more"));
    peer.write_all(&refusal(REQUESTS)).expect("it reads");
    drop(peer);
    // It has to wait for the editor. That it does not do so can be seen only for a limited time.
    let Daemon::Unix(listener, _) = &daemon else { unreachable!("it is a Unix socket") };
    listener.set_nonblocking(true).expect("it is open");
    let early = waiting::comes_true(Duration::from_secs(4), || listener.accept().is_ok());
    assert!(!early, "it goes on before the editor has read what was written for it");
    let mut stdout = Reader::new(File::from(read));
    stdout.exactly(filled);
    for id in 0..REQUESTS {
        let told = stdout.message();
        assert_eq!((&told["id"], &told["error"]["data"]["reason"]), (&json!(id), &json!("daemon_gone")));
    }
    assert_eq!(line(&mut *daemon.accept()), ask(REQUESTS, "m"));
}

#[test]
fn half_a_message_at_the_end_of_stdin_is_not_sent_on_the_new_connection_either() {
    let daemon = Daemon::unix();
    for (last, arrives) in [("{\"id\":2,\"meth", String::new()), (ask(2, "m").trim_end(), ask(2, "m"))] {
        let (mut bridge, _stdout) = refused(&daemon);
        bridge.send(last.as_bytes());
        bridge.end_input();
        let mut second = daemon.accept();
        assert_eq!(line(&mut *second), ask(0, "initialize"));
        second.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
        assert_eq!(line(&mut *second), ask(1, "m"));
        assert_eq!(String::from_utf8_lossy(&rest(&mut *second)), arrives);
        second.write_all(b"{\"id\":1,\"result\":{}}\n{\"id\":2,\"result\":{}}\n").expect("it reads");
        drop(second);
        assert_eq!(bridge.code(), Some(0));
        let said = bridge.stderr.text();
        assert_eq!(
            said.contains("stdin has ended within a line; 13 bytes of it are dropped"),
            arrives.is_empty(),
            "{said}"
        );
    }
}

#[test]
fn a_prompt_that_the_daemon_has_is_cancelled_when_stdin_ends_though_a_refused_request_waits() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"s\"}}\n");
    line(&mut *peer);
    bridge.send(ask(2, "m").as_bytes());
    line(&mut *peer);
    peer.write_all(&[&refusal(2), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    assert_eq!(stdout.message()["method"], "read");
    bridge.end_input();
    let cancels: Value = serde_json::from_str(&line(&mut *peer)).expect("JSON");
    assert_eq!((&cancels["method"], &cancels["params"]["sessionId"]), (&json!("session/cancel"), &json!("s")));
    peer.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message()["id"], 1);
    drop(peer);
    let mut second = daemon.accept();
    assert_eq!(String::from_utf8_lossy(&rest(&mut *second)), ask(2, "m"));
    second.write_all(b"{\"id\":2,\"result\":{}}\n").expect("it reads");
    drop(second);
    assert_eq!(stdout.message()["id"], 2);
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn an_editor_that_leaves_while_its_bridge_looks_for_another_daemon_ends_it() {
    let daemon = Daemon::unix();
    let (mut bridge, stdout) = unread(&daemon);
    drop(daemon);
    drop(stdout);
    bridge.end_input();
    assert_eq!(bridge.code(), Some(0), "it is not the failure that it would be after half a minute");
}

#[test]
fn an_editor_that_leaves_while_a_refused_request_waits_has_the_others_cancelled_at_once() {
    let daemon = Daemon::unix();
    let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
    let mut peer = daemon.accept();
    for id in 1..3 {
        bridge.send(ask(id, "m").as_bytes());
        line(&mut *peer);
    }
    peer.write_all(&[&refusal(2), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    let mut stdout = bridge.child.stdout.take().expect("stdout is a pipe");
    stdout.read_exact(&mut [0; 18]).expect("the refusal is held");
    drop(stdout);
    bridge.end_input();
    assert_eq!(rest(&mut *peer), b"");
    assert_eq!(bridge.code(), Some(0));
}

/// Waits until a bridge has read all that was sent to it.
fn was_read(bridge: &Bridge) {
    let stdin = bridge.stdin.as_ref().expect("stdin is open");
    let is_empty = || rustix::io::ioctl_fionread(stdin).expect("it is a pipe") == 0;
    assert!(waiting::comes_true(PATIENCE, is_empty), "the bridge does not read");
}

/// Waits until a bridge has taken all lines that were sent to it: it reads on only when it has. A blank line follows them.
fn was_taken(bridge: &mut Bridge) {
    was_read(bridge);
    bridge.send(b"\n");
    was_read(bridge);
}

#[test]
fn what_the_editor_cancels_while_it_is_held_is_not_sent_again_and_its_id_is_free_at_once() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout) = refused(&daemon);
        let prompt =
            |id: u32| format!("{{\"id\":{id},\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"s\"}}}}\n");
        let cancel = |method: &str, id: u32| {
            format!("{{\"method\":\"{method}\",\"params\":{{\"requestId\":{id},\"id\":{id}}}}}\n")
        };
        bridge.send((ask(2, "m") + &ask(3, "m") + &ask(4, "m") + &prompt(5) + &ask(6, "m")).as_bytes());
        bridge.send(cancel("$/cancel_request", 1).as_bytes());
        assert_eq!((&stdout.message()["error"]["code"]), &json!(-32800), "ACP: a cancelled request is answered");
        bridge.send(cancel("notifications/cancelled", 2).as_bytes());
        bridge.send(cancel("$/cancelRequest", 3).as_bytes());
        let answer = stdout.message();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(3), &json!(-32800)), "MCP: it is not");
        bridge.send(b"{\"method\":\"session/cancel\",\"params\":{\"sessionId\":\"s\"}}\n");
        assert_eq!(stdout.message(), json!({ "jsonrpc": "2.0", "id": 5, "result": { "stopReason": "cancelled" } }));
        bridge.send((ask(2, "again") + &cancel("notifications/cancelled", 9)).as_bytes());
        let mut second = daemon.accept();
        assert_eq!(line(&mut *second), ask(0, "initialize"));
        second.write_all(b"{\"id\":0,\"result\":{}}\n").expect("it reads");
        for left in [ask(4, "m"), ask(6, "m"), ask(2, "again"), cancel("notifications/cancelled", 9)] {
            assert_eq!(line(&mut *second), left);
        }
        for id in [4, 6, 2] {
            second.write_all(format!("{{\"id\":{id},\"result\":{{}}}}\n").as_bytes()).expect("it reads");
            assert_eq!(stdout.message(), json!({ "id": id, "result": {} }));
        }
        bridge.end_input();
        rest(&mut *second);
        drop(second);
        assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
    }
}

#[test]
fn what_the_editor_has_cancelled_before_it_is_refused_is_not_sent_again() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    let prompt = "{\"id\":3,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"s\"}}\n";
    for request in [&ask(1, "m"), &ask(2, "m"), prompt, &ask(4, "m")] {
        bridge.send(request.as_bytes());
        line(&mut *peer);
    }
    for cancels in [
        "{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}\n",
        "{\"method\":\"$/cancel_request\",\"params\":{\"requestId\":2}}\n",
        "{\"method\":\"session/cancel\",\"params\":{\"sessionId\":\"s\"}}\n",
    ] {
        bridge.send(cancels.as_bytes());
        assert_eq!(line(&mut *peer), cancels);
    }
    peer.write_all(&[refusal(1), refusal(2), refusal(3), refusal(4)].concat()).expect("it reads");
    let answer = stdout.message();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32800)), "in MCP nothing answers it");
    assert_eq!(stdout.message(), json!({ "jsonrpc": "2.0", "id": 3, "result": { "stopReason": "cancelled" } }));
    drop(peer);
    let mut second = daemon.accept();
    assert_eq!(line(&mut *second), ask(4, "m"));
    second.write_all(b"{\"id\":4,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message()["id"], 4);
    bridge.end_input();
    rest(&mut *second);
    drop(second);
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

#[test]
fn a_request_that_was_cancelled_in_mcp_is_not_waited_for_and_its_id_begins_anew() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(ask(1, "m").as_bytes());
    line(&mut *peer);
    bridge.send(b"{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}\n");
    line(&mut *peer);
    bridge.send(ask(1, "again").as_bytes());
    line(&mut *peer);
    peer.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message()["id"], 1);
    bridge.end_input();
    rest(&mut *peer);
    drop(peer);
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()), "nothing was pending");
}

#[test]
fn what_may_have_been_delivered_is_not_sent_again() {
    let daemon = Daemon::tcp();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    for id in 1..4 {
        bridge.send(ask(id, "m").as_bytes());
        line(&mut *peer);
    }
    let delivered = String::from_utf8(refusal(1)).expect("text").replace("false", "true");
    peer.write_all(&[delivered.into_bytes(), refusal(3)].concat()).expect("it reads");
    assert_eq!(stdout.message()["error"]["data"]["delivered"], true);
    drop(peer);
    let lost = stdout.message();
    assert_eq!((&lost["id"], &lost["error"]["data"]["reason"]), (&json!(2), &json!("daemon_gone")));
    let mut second = daemon.accept();
    assert_eq!(line(&mut *second), ask(3, "m"));
    second.write_all(b"{\"id\":3,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message()["id"], 3);
    bridge.end_input();
    rest(&mut *second);
    drop(second);
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn what_crosses_the_refusal_of_a_daemon_that_shuts_down_is_sent_again_though_nothing_answers_it() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(ask(1, "m").as_bytes());
        line(&mut *peer);
        let cancels = "{\"method\":\"$/cancel_request\",\"params\":{\"id\":3}}\n";
        for crosses in [ask(2, "m"), ask(3, "m"), ask(4, "m"), cancels.to_owned()] {
            bridge.send(crosses.as_bytes());
            assert_eq!(line(&mut *peer), crosses);
        }
        // A daemon reads a connection in order, and takes no request after the first one that it refuses.
        peer.write_all(&refusal(1)).expect("it reads");
        drop(peer);
        let answer = stdout.message();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(3), &json!(-32800)));
        let mut second = daemon.accept();
        for id in [1, 2, 4] {
            assert_eq!(line(&mut *second), ask(id, "m"));
            second.write_all(format!("{{\"id\":{id},\"result\":{{}}}}\n").as_bytes()).expect("it reads");
            assert_eq!(stdout.message()["id"], id);
        }
        bridge.end_input();
        rest(&mut *second);
        drop(second);
        assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
    }
}

#[test]
fn a_turn_that_is_cancelled_while_a_prompt_of_it_is_held_is_cancelled_where_it_continues_and_nowhere_else() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    let prompt = |id: u32| PROMPT_OF_S.replace("ID", &id.to_string());
    for request in [prompt(1), prompt(2)] {
        bridge.send(request.as_bytes());
        assert_eq!(line(&mut *peer), request);
    }
    peer.write_all(&[&refusal(2), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    assert_eq!(stdout.message()["method"], "read");
    let cancel = String::from_utf8_lossy(CANCEL);
    let cancelled = |id: u32| json!({ "jsonrpc": "2.0", "id": id, "result": { "stopReason": "cancelled" } });
    bridge.send(CANCEL);
    assert_eq!(stdout.message(), cancelled(2));
    assert_eq!(line(&mut *peer), cancel);
    // Its first prompt is answered, but in ACP 2 the turn may go on.
    peer.write_all(format!("{}\n", cancelled(1)).as_bytes()).expect("it reads");
    assert_eq!(stdout.message(), cancelled(1));
    bridge.send((prompt(3) + &cancel + &ask(4, "m")).as_bytes());
    assert_eq!(stdout.message(), cancelled(3));
    assert_eq!(line(&mut *peer), cancel);
    drop(peer);
    let mut second = daemon.accept();
    assert_eq!(line(&mut *second), ask(4, "m"), "the new agent hears of none of it");
    second.write_all(b"{\"id\":4,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message()["id"], 4);
    bridge.end_input();
    assert_eq!(rest(&mut *second), b"");
    drop(second);
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

#[test]
fn a_prompt_that_is_cancelled_by_the_end_of_stdin_and_then_refused_is_not_sent_again() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(PROMPT);
    line(&mut *peer);
    bridge.end_input();
    assert_eq!(line(&mut *peer), String::from_utf8_lossy(CANCEL));
    peer.write_all(&refusal(3)).expect("it reads");
    assert_eq!(stdout.message(), json!({ "jsonrpc": "2.0", "id": 3, "result": { "stopReason": "cancelled" } }));
    drop(peer);
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

#[test]
fn without_another_daemon_the_editor_gets_the_refusal_itself() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(ask(1, "m").as_bytes());
    line(&mut *peer);
    for _ in 0..4 {
        peer.write_all(&refusal(1)).expect("it reads");
        drop(peer);
        peer = daemon.accept();
        assert_eq!(line(&mut *peer), ask(1, "m"));
    }
    peer.write_all(&refusal(1)).expect("it reads");
    let told = stdout.message();
    assert_eq!(
        (&told["id"], &told["error"]["data"]["reason"]),
        (&json!(1), &json!("shutting_down")),
        "five are enough"
    );
    drop(peer);
    has_logged(&mut bridge, IDLE, 1);
    bridge.end_input();
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn a_refusal_of_a_daemon_that_continues_reaches_the_editor_and_holds_nothing_up_for_long() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(ask(1, "m").as_bytes());
    line(&mut *peer);
    // It is that of another daemon behind this one. The bridge has read it before it reads the second request, which
    // this daemon would owe otherwise: then it waits longer.
    peer.write_all(&[&refusal(1), &b"{\"method\":\"read\"}\n"[..]].concat()).expect("it reads");
    assert_eq!(stdout.message()["method"], "read");
    bridge.send(ask(2, "m").as_bytes());
    let told = stdout.message();
    assert_eq!((&told["id"], &told["error"]["data"]["reason"]), (&json!(1), &json!("shutting_down")));
    assert_eq!(line(&mut *peer), ask(2, "m"));
    peer.write_all(b"{\"id\":2,\"result\":{}}\n").expect("it reads");
    assert_eq!(stdout.message()["id"], 2);
    bridge.end_input();
    rest(&mut *peer);
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn an_editor_that_has_ended_its_input_gets_the_answers_of_a_second_daemon() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(ask(1, "m").as_bytes());
    bridge.end_input();
    assert_eq!(rest(&mut *peer), ask(1, "m").as_bytes());
    peer.write_all(&refusal(1)).expect("it reads");
    drop(peer);
    let mut second = daemon.accept();
    assert_eq!(rest(&mut *second), ask(1, "m").as_bytes());
    second.write_all(b"{\"id\":1,\"result\":{}}\n").expect("it reads");
    drop(second);
    assert_eq!(stdout.message()["result"], json!({}));
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn an_editor_notices_nothing_of_a_restart_of_the_real_daemon() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bus");
    let mut daemon = real_daemon(&path);
    let (mut bridge, mut stdout) = Bridge::start(&format!("unix:{}", path.display()));
    let mut echoes = |id: u32| {
        bridge.send(ask(id, "m").as_bytes());
        let answer = stdout.message();
        assert_eq!((&answer["id"], answer.get("error")), (&json!(id), None));
    };
    echoes(0);
    let restarts = std::thread::spawn(move || {
        // SAFETY: kill(2) takes integers alone, and the child has not been reaped, so the number is still its own.
        assert_eq!(unsafe { libc::kill(daemon.child.id() as i32, libc::SIGTERM) }, 0);
        assert_eq!(daemon.code(), Some(0));
        real_daemon(&path)
    });
    let mut id = 0;
    while !restarts.is_finished() {
        id += 1;
        echoes(id);
    }
    let _second = restarts.join().expect("it is there again");
    (id + 1..id + 20).for_each(echoes);
    bridge.end_input();
    assert_eq!(bridge.code(), Some(0));
    assert!(bridge.stderr.text().contains("it has refused is sent again on a new connection"));
}

/// The real daemon with a pool that gives each client a worker of its own, and its addresses.
fn daemon_with_own_workers(directory: &std::path::Path) -> (Bridge, [String; 2]) {
    let path = |name: &str| directory.join(name).display().to_string();
    // Each client sends one request, with the id 1, before it makes its worker exit.
    let worker = r#"while read -r line; do case $line in *die*) exit 3;; esac; echo '{"id":1,"result":1}'; done"#;
    let config = json!({
        "pools": [{"id": "own", "command": "sh", "args": ["-c", worker], "instances": 1,
                   "assignment": "dedicated", "max_instances": 4}],
        "listeners": [{"tcp": "127.0.0.1:0"}, {"unix": path("bus")}],
    });
    std::fs::write(path("bus.json"), config.to_string()).expect("the disk has room");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdio_bus"));
    command.args(["--config", &path("bus.json")]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = Bridge::from(command);
    loop {
        let log = String::from_utf8_lossy(&daemon.stderr.seen).into_owned();
        let tcp = log.split_once("listening on tcp://").and_then(|(_, rest)| rest.split_once('\n'));
        if let Some((port, _)) = tcp.filter(|_| log.contains("listening on unix:")) {
            let port = port.split_whitespace().next().expect("an address");
            return (daemon, [format!("tcp://{port}"), format!("unix:{}", path("bus"))]);
        }
        assert!(!daemon.stderr.ended, "the daemon does not listen: {log}");
        daemon.stderr.more();
    }
}

#[test]
fn when_its_agent_ends_an_editor_is_notified_and_not_that_the_daemon_has_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_daemon, addresses) = daemon_with_own_workers(directory.path());
    for address in addresses {
        // With a pending request, and without.
        for ends in [&b"{\"id\":2,\"method\":\"die\"}\n"[..], b"{\"method\":\"die\"}\n"] {
            let (mut bridge, mut stdout) = Bridge::start(&address);
            bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
            assert_eq!(stdout.message()["id"], 1);
            bridge.send(ends);
            if ends.starts_with(b"{\"id\"") {
                assert_eq!(stdout.message()["id"], 2);
            }
            assert_eq!(stdout.message()["error"]["data"]["reason"], "own_worker_ended");
            assert_eq!(stdout.rest(), b"");
            assert_eq!(bridge.code(), Some(1));
            let log = bridge.stderr.text();
            assert!(log.contains("the daemon still runs, and the agent behind it has ended"), "{log}");
            assert!(!log.contains("either it has ended"), "{log}");
        }
    }
}

#[test]
fn data_other_than_json_rpc_is_not_passed_on_but_named() {
    for (says, told, advice) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], "HTTP, not JSON-RPC", "connect to ws://127"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS, not JSON-RPC", "connect to wss://127"),
        (
            b"SSH-2.0-OpenSSH_9.2p1\r\n",
            "SSH, not JSON-RPC, and begins \"SSH-2.0-OpenSSH_9.2p1\"",
            "correct the address",
        ),
        (b"what?\n", "no JSON-RPC, and begins \"what?\"", "correct the address"),
    ] {
        // Before anything is requested, as some protocols begin, and after.
        for asks_first in [true, false] {
            let daemon = Daemon::tcp();
            let (mut bridge, mut stdout, mut peer) = daemon.bridge();
            let request = b"{\"id\":1,\"method\":\"initialize\"}\n";
            if asks_first {
                bridge.send(request);
                ready(&*peer, libc::POLLIN);
            }
            peer.write_all(says).expect("the bridge reads");
            if !asks_first {
                bridge.send(request);
            }
            let error = stdout.message();
            assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32018)), "{error}");
            let data = &error["error"]["data"];
            assert_eq!((&data["reason"], &data["delivered"]), (&json!("daemon_unreachable"), &json!(false)));
            assert!(data["cause"].as_str().expect("text").contains(told), "{error}");
            assert_eq!(stdout.rest(), b"");
            assert_eq!(bridge.code(), Some(1), "though the other side keeps the connection open");
            let log = bridge.stderr.text();
            assert!(
                log.contains("no daemon answers at tcp://127") && log.contains(told) && log.contains(advice),
                "{log}"
            );
        }
    }
}

#[test]
fn foreign_data_after_messages_is_not_passed_on_either() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n{\"id\":2,\"method\":\"m\"}\n");
    ready(&*peer, libc::POLLIN);
    peer.write_all(b"{\"id\":1,\"result\":{}}\nSegmentation fault\n").expect("the bridge reads");
    assert_eq!(stdout.message()["id"], 1);
    let error = stdout.message();
    assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&json!(2), &json!("daemon_closed")));
    assert_eq!(stdout.rest(), b"");
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn a_request_gets_an_error_though_the_connection_was_closed_before_it_came() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, peer) = daemon.bridge();
        drop(peer);
        bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
        let error = stdout.message();
        assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32023)));
        assert_eq!(bridge.code(), Some(1));
    }
}

#[test]
#[ignore = "scripts/test slow"]
fn where_io_uring_is_blocked_a_bridge_does_the_same() {
    if is_second_time() {
        return;
    }
    // Each of them terminates.
    let tests = Command::new(std::env::current_exe().expect("it has a file")).env(SECOND_TIME, "1").output();
    let tests = tests.expect("they can be run again");
    assert!(tests.status.success(), "{}", String::from_utf8_lossy(&tests.stdout));
    assert!(String::from_utf8_lossy(&tests.stdout).contains("test result: ok"));
}

#[test]
fn where_io_uring_can_be_set_up_and_not_used_a_bridge_does_without() {
    let daemon = Daemon::unix();
    let mut command = Bridge::command(&daemon.address());
    // SAFETY: between fork and exec it only makes two system calls.
    unsafe { command.pre_exec(|| forbid(libc::SYS_io_uring_enter, None, libc::EPERM)) };
    let mut bridge = Bridge::from(command);
    let mut stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
    let mut peer = daemon.accept();
    bridge.send(b"{\"id\":1}\n");
    let mut seen = [0; 9];
    peer.read_exact(&mut seen).expect("the line arrives");
    peer.write_all(b"{\"id\":1,\"result\":2}\n").expect("it is read");
    assert_eq!(stdout.message(), json!({"id": 1, "result": 2}));
    bridge.end_input();
    assert_eq!(peer.read(&mut seen).expect("the end arrives"), 0);
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
}
