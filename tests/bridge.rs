//! The bridge as an editor sees it: the real program between a test's pipes and a test's socket. All tests run twice,
//! the second time where io_uring is blocked, as it is in many containers. `bridge/` has those of WebSockets and of
//! MCP over HTTP.

#[path = "bridge/http.rs"]
mod http;
#[path = "support/seccomp.rs"]
mod seccomp;
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
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use seccomp::forbid;
use serde_json::{Value, json};
use terminal::terminal;
use waiting::comes_true;

/// What must happen at all happens within this time, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream that is read by a thread of its own, so that a test can wait for what it wants to see, with a limit.
struct Reader {
    pieces: Receiver<Vec<u8>>,
    seen: Vec<u8>,
    ended: bool,
}

impl Reader {
    fn new(mut stream: impl Read + Send + 'static) -> Self {
        let (sender, pieces) = channel();
        // It ends with its stream, which ends with the bridge, which is always reaped.
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) if sender.send(buffer[..count].to_vec()).is_ok() => {}
                    // Silence is no end: how long it may last is told by `more`.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    _ => return,
                }
            }
        });
        Self { pieces, seen: Vec::new(), ended: false }
    }

    /// Takes the next piece, or sees the end.
    fn more(&mut self) {
        match self.pieces.recv_timeout(PATIENCE) {
            Ok(piece) => self.seen.extend(piece),
            Err(RecvTimeoutError::Disconnected) => self.ended = true,
            Err(RecvTimeoutError::Timeout) => panic!("nothing came; seen so far: {}", self.seen.escape_ascii()),
        }
    }

    /// The next line, which must be JSON.
    fn message(&mut self) -> Value {
        let end = loop {
            match self.seen.iter().position(|byte| *byte == b'\n') {
                Some(end) => break end,
                None => assert!(!self.ended, "it ended; seen so far: {}", self.seen.escape_ascii()),
            }
            self.more();
        };
        let line: Vec<u8> = self.seen.drain(..=end).collect();
        serde_json::from_slice(&line).expect("each line is JSON")
    }

    /// All that comes up to the end.
    fn rest(&mut self) -> Vec<u8> {
        while !self.ended {
            self.more();
        }
        std::mem::take(&mut self.seen)
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.rest()).expect("UTF-8")
    }

    fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.seen.len() < count && !self.ended {
            self.more();
        }
        assert!(self.seen.len() >= count, "only {} of {count} bytes came", self.seen.len());
        self.seen.drain(..count).collect()
    }
}

/// A running bridge, or for one test a daemon. It is killed and reaped at the latest when it goes out of scope.
struct Bridge {
    child: Child,
    stdin: Option<ChildStdin>,
    stderr: Reader,
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bridge {
    fn command(address: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdio_bus"));
        command.args(["acp", "--connect", address]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn from(mut command: Command) -> Self {
        // The daemon needs it.
        let without_io_uring = is_second_time() && command.get_args().next().is_some_and(|verb| verb == "acp");
        // What was started in the background ignores SIGINT, and so would the bridge.
        let heed_signals = move || {
            // SAFETY: the call takes no pointer, and is async-signal-safe (signal-safety(7)).
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            if without_io_uring { forbid(libc::SYS_io_uring_setup, None, libc::EPERM) } else { Ok(()) }
        };
        // SAFETY: the closure makes async-signal-safe calls between fork and exec.
        unsafe { command.pre_exec(heed_signals) };
        let mut child = command.spawn().expect("the program starts");
        let stderr = Reader::new(child.stderr.take().expect("stderr is a pipe"));
        Self { stdin: child.stdin.take(), child, stderr }
    }

    fn start(address: &str) -> (Self, Reader) {
        let mut bridge = Self::from(Self::command(address));
        let stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
        (bridge, stdout)
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut stdin = self.stdin.as_ref().expect("stdin is open");
        // A pipe that is ready takes so much at once (pipe(7)).
        for piece in bytes.chunks(libc::PIPE_BUF) {
            ready(stdin, libc::POLLOUT);
            stdin.write_all(piece).expect("the bridge reads");
        }
    }

    fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Waits for its end, without closing its stdin.
    fn status(&mut self) -> ExitStatus {
        self.status_after(|| {})
    }

    /// The same, and does something again and again meanwhile.
    fn status_after(&mut self, mut again: impl FnMut()) -> ExitStatus {
        let mut status = None;
        let has_ended = comes_true(PATIENCE, || {
            status = self.child.try_wait().expect("it is our child");
            if status.is_none() {
                again();
            }
            status.is_some()
        });
        assert!(has_ended, "the bridge does not end");
        status.expect("it has ended")
    }

    fn code(&mut self) -> Option<i32> {
        self.status().code()
    }
}

/// The daemon's side of a connection, of either kind.
trait Peer: Read + Write + Send + AsFd + 'static {
    fn end_output(&self);
    fn copy(&self) -> Box<dyn Peer>;
}

impl Peer for TcpStream {
    fn end_output(&self) {
        self.shutdown(Shutdown::Write).expect("it is connected");
    }
    fn copy(&self) -> Box<dyn Peer> {
        Box::new(self.try_clone().expect("a descriptor"))
    }
}

impl Peer for UnixStream {
    fn end_output(&self) {
        self.shutdown(Shutdown::Write).expect("it is connected");
    }
    fn copy(&self) -> Box<dyn Peer> {
        Box::new(self.try_clone().expect("a descriptor"))
    }
}

/// A daemon that a test plays.
enum Daemon {
    Tcp(TcpListener),
    Unix(UnixListener, tempfile::TempDir),
}

impl Daemon {
    fn tcp() -> Self {
        Self::Tcp(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    fn unix() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self::Unix(UnixListener::bind(directory.path().join("bus")).expect("a socket"), directory)
    }

    fn both() -> [Self; 2] {
        [Self::tcp(), Self::unix()]
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => format!("tcp://{}", listener.local_addr().expect("it is bound")),
            Self::Unix(_, directory) => format!("unix:{}", directory.path().join("bus").display()),
        }
    }

    fn accept(&self) -> Box<dyn Peer> {
        let listener = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        };
        ready(listener, libc::POLLIN);
        match self {
            Self::Tcp(listener) => Box::new(patient(listener.accept().expect("a connection").0)),
            Self::Unix(listener, _) => Box::new(patient(listener.accept().expect("a connection").0)),
        }
    }

    /// A bridge that is connected, its stdout, and the daemon's side.
    fn bridge(&self) -> (Bridge, Reader, Box<dyn Peer>) {
        let (bridge, stdout) = Bridge::start(&self.address());
        (bridge, stdout, self.accept())
    }
}

/// Lets reading and writing fail (with `WouldBlock`) where they would wait for longer than [`PATIENCE`].
fn patient<S: AsFd>(socket: S) -> S {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(PATIENCE)).expect("it is open");
    }
    socket
}

/// Reads up to the end of the connection, which may be a reset.
fn rest(peer: &mut dyn Peer) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = peer.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the end of the connection does not come");
    }
    bytes
}

/// Waits for poll(2) to report one of these events, and returns what it reported.
fn ready(fd: impl AsFd, events: i16) -> i16 {
    let mut entry = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry is passed, and it outlives the call.
    let count = unsafe { libc::poll(&mut entry, 1, PATIENCE.as_millis() as i32) };
    assert_eq!(count, 1, "the event does not come: {}", io::Error::last_os_error());
    entry.revents
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both were just opened and belong to nobody else.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

/// The status flags of an open file, with O_NONBLOCK added or not.
fn flags(fd: impl AsFd, add: i32) -> i32 {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: these two commands take and give integers alone.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if add != 0 {
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | add), 0);
        }
        flags | add
    }
}

/// Lines with everything in them that must not be touched, until there are `size` bytes.
fn lines(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(size + 300_000);
    while bytes.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = if state >> 60 == 0 { 200_000 } else { (state >> 33) as usize % 500 };
        bytes.extend_from_slice(
            format!("{{ \"id\" : {} , \"method\":\"m\\u0000\",\"params\":\"", state >> 40).as_bytes(),
        );
        bytes.extend((0..length).map(|index| b"abc {}[]:,\\\\\xc3\xa9"[index % 11]));
        bytes.extend_from_slice(b"\"}\r\n\n");
    }
    bytes
}

fn send_all(mut peer: Box<dyn Peer>, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || peer.write_all(&bytes).expect("the bridge reads"))
}

fn ids(messages: &[Value]) -> Vec<Value> {
    messages.iter().map(|message| message["id"].clone()).collect()
}

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
    // A line is passed on when the one before it is done with.
    peer.write_all(b"{\"method\":\"m\"}\n").expect("the bridge reads");
    assert_eq!(stdout.message()["method"], "m");
    bridge.end_input();
    assert_eq!(peer.read(&mut sent).expect("the end arrives"), 0);
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn why_the_daemon_closes_is_told_to_each_request_that_waits() {
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
        assert_eq!(error["error"]["message"], "the connection to the bus was closed: too much");
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
    // Closing with bytes that were not read resets the connection, as the end of a process does.
    drop(peer);
    assert_eq!(stdout.message()["error"]["data"]["reason"], "daemon_gone");
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn an_error_stands_on_a_line_of_its_own_when_the_daemon_breaks_off_within_a_line() {
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

#[test]
fn a_daemon_that_goes_while_nothing_waits_is_only_logged() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"method\":\"m\"}\n");
        let mut seen = [0; 15];
        peer.read_exact(&mut seen).expect("the line arrives");
        peer.write_all(b"{\"method\":\"n\"}\n").expect("the bridge reads");
        drop(peer);
        assert_eq!(bridge.code(), Some(1));
        assert_eq!(stdout.rest(), b"{\"method\":\"n\"}\n");
        let log = bridge.stderr.text();
        assert!(
            log.contains("lost the connection to the daemon at ") && log.contains("it has ended: start it"),
            "{log}"
        );
    }
}

#[test]
fn a_daemon_that_goes_before_answering_is_an_error_after_the_end_of_stdin_too() {
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
fn a_daemon_that_stops_listening_but_stays_connected_is_given_up() {
    let daemon = Daemon::unix();
    let (mut bridge, mut stdout, peer) = daemon.bridge();
    // SAFETY: shutdown(2) takes integers alone.
    assert_eq!(unsafe { libc::shutdown(peer.as_fd().as_raw_fd(), libc::SHUT_RD) }, 0);
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(stdout.message()["error"]["data"]["reason"], "daemon_gone");
    assert_eq!(bridge.code(), Some(1));
}

/// Addresses where nobody answers, each with a word of the remedy.
fn dead_addresses(directory: &tempfile::TempDir) -> Vec<(String, &'static str)> {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it is bound");
    let stale = directory.path().join("stale");
    drop(UnixListener::bind(&stale).expect("a socket"));
    // The resolver knows without asking anybody that this is no name: one part has more than 63 bytes (RFC 1035 2.3.4).
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
    for (address, remedy) in dead_addresses(&directory) {
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
    // `localhost` has an IPv6 address too on most machines, and nobody listens there.
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
        // A process that another test starts just now has the pipe open for a moment, too.
        let status = bridge.status_after(|| {
            let _ = peer.write_all(b"{\"method\":\"m\"}\n");
        });
        assert_eq!(status.code(), Some(0));
        assert_eq!(bridge.stderr.text(), "");
    }
}

#[test]
fn an_editor_that_dies_ends_the_bridge_though_a_request_waits() {
    for daemon in Daemon::both() {
        let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
        let mut peer = daemon.accept();
        bridge.send(b"{\"id\":1,\"method\":\"session/prompt\"}\n");
        drop(bridge.child.stdout.take());
        bridge.end_input();
        assert_eq!(bridge.code(), Some(0));
        // What comes last is the end of stdin or, if that is quicker, the end of the connection.
        rest(&mut *peer);
        // Not half-closed but closed: the daemon is told that nobody wants the answer any more.
        assert_ne!(ready(&*peer, libc::POLLOUT) & (libc::POLLHUP | libc::POLLERR), 0);
    }
}

/// Writes until nothing has been taken for a while, and returns how much was.
fn fill(mut stream: impl Write + AsFd) -> usize {
    flags(&stream, libc::O_NONBLOCK);
    let block = lines(64 * 1024, 3);
    let mut taken = 0;
    let mut last = Instant::now();
    // The one thing a test cannot wait for is that something does not happen.
    while last.elapsed() < Duration::from_millis(300) {
        match stream.write(&block[taken % block.len()..]) {
            Ok(count) => {
                taken += count;
                last = Instant::now();
                assert!(taken < 64 << 20, "the bridge takes everything, though nobody reads");
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("the bridge went away: {error}"),
        }
    }
    taken
}

fn resident_kilobytes(bridge: &Bridge) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", bridge.child.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its high-water mark");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn an_editor_that_reads_slowly_slows_the_daemon_and_loses_nothing() {
    for daemon in Daemon::both() {
        let mut bridge = Bridge::from(Bridge::command(&daemon.address()));
        let peer = daemon.accept();
        // SAFETY: the descriptor is a copy that belongs to nobody else.
        let writer = unsafe { File::from_raw_fd(libc::dup(peer.as_fd().as_raw_fd())) };
        let taken = fill(&writer);
        assert!(resident_kilobytes(&bridge) < 24 * 1024, "{} kB", resident_kilobytes(&bridge));
        peer.end_output();
        let mut stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
        let block = lines(64 * 1024, 3);
        let expected: Vec<u8> = block.iter().copied().cycle().take(taken).collect();
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
        // SAFETY: the descriptor is a copy that belongs to nobody else.
        let writer = unsafe { File::from_raw_fd(libc::dup(stdin.as_raw_fd())) };
        let taken = fill(&writer);
        assert!(resident_kilobytes(&bridge) < 24 * 1024, "{} kB", resident_kilobytes(&bridge));
        drop((stdin, writer));
        let mut seen = Vec::new();
        peer.read_to_end(&mut seen).expect("the daemon reads all");
        let expected: Vec<u8> = lines(64 * 1024, 3).iter().copied().cycle().take(taken).collect();
        assert!(seen == expected, "{} of {taken} bytes came", seen.len());
    }
}

#[test]
fn the_flags_of_the_inherited_files_stay_as_they_are() {
    let daemon = Daemon::unix();
    let (input, editor) = pipe();
    let (output, stdout) = pipe();
    let mut command = Bridge::command(&daemon.address());
    command.stdin(input.try_clone().expect("a descriptor")).stdout(stdout.try_clone().expect("a descriptor"));
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    let before = (flags(&input, 0), flags(&stdout, 0));
    assert_eq!((before.0 | before.1) & libc::O_NONBLOCK, 0);
    let line = b"{\"id\":1,\"method\":\"m\"}\n";
    let mut editor = File::from(editor);
    editor.write_all(line).expect("the pipe has room");
    let mut seen = vec![0; line.len()];
    peer.read_exact(&mut seen).expect("the line arrives");
    peer.write_all(line).expect("the bridge reads");
    Reader::new(File::from(output)).exactly(line.len());
    assert_eq!((flags(&input, 0), flags(&stdout, 0)), before, "while it runs");
    drop(editor);
    drop(peer);
    assert_eq!(bridge.code(), Some(1));
    assert_eq!((flags(&input, 0), flags(&stdout, 0)), before, "after its end");
}

#[test]
fn files_that_another_process_made_non_blocking_are_waited_for() {
    let daemon = Daemon::unix();
    // A socket pair is what Node.js gives its children.
    for sockets in [false, true] {
        let ((input, editor), (output, stdout)) = if sockets {
            let (first, second) = (UnixStream::pair().expect("sockets"), UnixStream::pair().expect("sockets"));
            ((first.0.into(), first.1.into()), (second.0.into(), second.1.into()))
        } else {
            (pipe(), pipe())
        };
        flags(&input, libc::O_NONBLOCK);
        flags(&stdout, libc::O_NONBLOCK);
        let mut command = Bridge::command(&daemon.address());
        command.stdin(input).stdout(stdout);
        let mut bridge = Bridge::from(command);
        let peer = daemon.accept();
        let (up, down) = (lines(2 << 20, 4), lines(2 << 20, 5));
        let sender = send_all(peer.copy(), down.clone());
        let mut received = Reader::new(peer.copy());
        let (sent, expected) = (up.clone(), up.len());
        let writer = std::thread::spawn(move || File::from(editor).write_all(&sent));
        let mut shown = Reader::new(File::from(output));
        assert!(shown.exactly(down.len()) == down);
        assert!(received.exactly(expected) == up);
        sender.join().expect("the daemon said it all");
        writer.join().expect("no panic").expect("the editor said it all");
        assert_eq!(received.rest(), b"");
        peer.end_output();
        assert_eq!(bridge.code(), Some(1), "none of the requests was answered");
    }
}

#[test]
fn stdin_and_stdout_may_be_regular_files() {
    let daemon = Daemon::tcp();
    let directory = tempfile::tempdir().expect("a directory");
    let (input, output) = (directory.path().join("input"), directory.path().join("output"));
    let up = lines(300_000, 6);
    std::fs::write(&input, &up).expect("the disk has room");
    std::fs::write(&output, "before\n").expect("the disk has room");
    let mut command = Bridge::command(&daemon.address());
    let appended = File::options().append(true).open(&output).expect("it is there");
    command.stdin(File::open(&input).expect("it is there")).stdout(appended);
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("the end of the file is the end of stdin");
    assert!(received == up);
    let down = lines(300_000, 7);
    peer.write_all(&down).expect("the bridge reads");
    drop(peer);
    assert_eq!(bridge.code(), Some(1), "none of the requests was answered");
    let seen = std::fs::read(&output).expect("it is there");
    assert!(seen.starts_with(&[b"before\n", &down[..]].concat()), "{} bytes were written", seen.len());
}

#[test]
fn stdin_may_be_a_terminal() {
    let daemon = Daemon::unix();
    let (mut keyboard, terminal) = terminal();
    let mut command = Bridge::command(&daemon.address());
    command.stdin(terminal);
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    keyboard.write_all(b"{\"method\":\"m\"}\n").expect("the terminal takes it");
    let mut seen = [0; 15];
    peer.read_exact(&mut seen).expect("the line arrives");
    assert_eq!(&seen, b"{\"method\":\"m\"}\n");
    // Control-D at the start of a line is the end.
    keyboard.write_all(&[4]).expect("the terminal takes it");
    assert_eq!(peer.read(&mut seen).expect("the end arrives"), 0);
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
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

/// The real one, with its built-in workers.
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
fn an_editor_is_told_which_of_its_requests_was_too_long_for_the_real_daemon() {
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
fn an_editor_talks_to_the_real_daemon_until_that_shuts_down() {
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
    assert_eq!(bridge.code(), Some(1));
    assert_eq!(stdout.rest(), b"");
    assert!(bridge.stderr.text().contains("either it has ended"));
}

/// The real daemon with a pool that gives each client a worker of its own, and where it listens.
fn daemon_with_own_workers(directory: &std::path::Path) -> (Bridge, [String; 2]) {
    let path = |name: &str| directory.join(name).display().to_string();
    // Each client asks once, with the id 1, before it has its worker end.
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
fn when_its_agent_ends_an_editor_is_told_so_and_not_that_the_daemon_has_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_daemon, addresses) = daemon_with_own_workers(directory.path());
    for address in addresses {
        // With a request that waits, and with none.
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
            assert!(log.contains("the daemon goes on, and the agent behind it has ended"), "{log}");
            assert!(!log.contains("either it has ended"), "{log}");
        }
    }
}

#[test]
fn what_is_no_json_rpc_is_not_passed_on_but_called_by_its_name() {
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
        // Before anything is asked, as some protocols begin, and after.
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
fn what_comes_behind_messages_and_is_none_is_not_passed_on_either() {
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

/// Tells the tests that they run for the second time.
const SECOND_TIME: &str = "STDIO_BUS_BRIDGE_WITHOUT_IO_URING";

fn is_second_time() -> bool {
    std::env::var_os(SECOND_TIME).is_some()
}

#[test]
fn where_io_uring_is_blocked_a_bridge_does_the_same() {
    if is_second_time() {
        return;
    }
    // Each of them has an end.
    let tests = Command::new(std::env::current_exe().expect("it has a file")).env(SECOND_TIME, "1").output();
    let tests = tests.expect("they can be run again");
    assert!(tests.status.success(), "{}", String::from_utf8_lossy(&tests.stdout));
    assert!(String::from_utf8_lossy(&tests.stdout).contains("test result: ok"));
}

#[test]
fn where_io_uring_can_be_set_up_and_not_used_a_bridge_does_without() {
    let daemon = Daemon::unix();
    let mut command = Bridge::command(&daemon.address());
    // SAFETY: between fork and exec it makes two system calls alone.
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
