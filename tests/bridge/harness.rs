//! A bridge between the pipes of a test, and a daemon played by the test.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;

use crate::seccomp::forbid;
use crate::steady::Steady;
use crate::waiting::comes_true;

/// The time limit for everything that must happen, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A stream read by a thread of its own, so that a test can wait for input with a limit.
pub struct Reader {
    pieces: Receiver<Vec<u8>>,
    pub seen: Vec<u8>,
    pub ended: bool,
}

impl Reader {
    pub fn new(mut stream: impl Read + Send + 'static) -> Self {
        let (sender, pieces) = channel();
        // It ends with its stream, which ends with the bridge, which is always reaped.
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) if sender.send(buffer[..count].to_vec()).is_ok() => {}
                    // Silence is not the end: `more` limits it.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    _ => return,
                }
            }
        });
        Self { pieces, seen: Vec::new(), ended: false }
    }

    /// Takes the next piece, or the end.
    pub fn more(&mut self) {
        match self.pieces.recv_timeout(PATIENCE) {
            Ok(piece) => self.seen.extend(piece),
            Err(RecvTimeoutError::Disconnected) => self.ended = true,
            Err(RecvTimeoutError::Timeout) => panic!("nothing came; seen so far: {}", self.seen.escape_ascii()),
        }
    }

    /// Whether anything is there that was not taken, or the end.
    pub fn has_more(&mut self) -> bool {
        match self.pieces.try_recv() {
            Ok(piece) => self.seen.extend(piece),
            Err(TryRecvError::Disconnected) => self.ended = true,
            Err(TryRecvError::Empty) => {}
        }
        self.ended || !self.seen.is_empty()
    }

    /// The next line, which must be JSON.
    pub fn message(&mut self) -> Value {
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

    /// Everything up to the end.
    pub fn rest(&mut self) -> Vec<u8> {
        while !self.ended {
            self.more();
        }
        std::mem::take(&mut self.seen)
    }

    pub fn text(&mut self) -> String {
        String::from_utf8(self.rest()).expect("UTF-8")
    }

    pub fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.seen.len() < count && !self.ended {
            self.more();
        }
        assert!(self.seen.len() >= count, "only {} of {count} bytes came", self.seen.len());
        self.seen.drain(..count).collect()
    }
}

/// A running bridge, or in one test a daemon. It is killed and reaped at the latest when it is dropped.
pub struct Bridge {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    pub stderr: Reader,
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bridge {
    pub fn command(address: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdio_bus"));
        command.args(["acp", "--connect", address]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn from(mut command: Command) -> Self {
        // The daemon needs it.
        let without_io_uring = is_second_time() && command.get_args().next().is_some_and(|verb| verb == "acp");
        // A background process ignores SIGINT, and so would the bridge.
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

    pub fn start(address: &str) -> (Self, Reader) {
        let mut bridge = Self::from(Self::command(address));
        let stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
        (bridge, stdout)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let mut stdin = self.stdin.as_ref().expect("stdin is open");
        // A writable pipe accepts this many bytes at once (pipe(7)).
        for piece in bytes.chunks(libc::PIPE_BUF) {
            ready(stdin, libc::POLLOUT);
            stdin.write_all(piece).expect("the bridge reads");
        }
    }

    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Waits for its exit, without closing its stdin.
    pub fn status(&mut self) -> ExitStatus {
        self.status_after(|| {})
    }

    /// The same, while repeatedly calling `again`.
    pub fn status_after(&mut self, mut again: impl FnMut()) -> ExitStatus {
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

    pub fn code(&mut self) -> Option<i32> {
        self.status().code()
    }
}

/// The daemon's side of a connection of either kind.
pub trait Peer: Read + Write + Send + AsFd + 'static {
    fn end_output(&self);
    fn copy(&self) -> Box<dyn Peer>;
}

impl Peer for Steady<TcpStream> {
    fn end_output(&self) {
        self.0.shutdown(Shutdown::Write).expect("it is connected");
    }
    fn copy(&self) -> Box<dyn Peer> {
        Box::new(Steady(self.0.try_clone().expect("a descriptor")))
    }
}

impl Peer for Steady<UnixStream> {
    fn end_output(&self) {
        self.0.shutdown(Shutdown::Write).expect("it is connected");
    }
    fn copy(&self) -> Box<dyn Peer> {
        Box::new(Steady(self.0.try_clone().expect("a descriptor")))
    }
}

/// A daemon played by a test.
pub enum Daemon {
    Tcp(TcpListener),
    Unix(UnixListener, tempfile::TempDir),
}

impl Daemon {
    pub fn tcp() -> Self {
        Self::Tcp(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    pub fn unix() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self::Unix(UnixListener::bind(directory.path().join("bus")).expect("a socket"), directory)
    }

    pub fn both() -> [Self; 2] {
        [Self::tcp(), Self::unix()]
    }

    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => format!("tcp://{}", listener.local_addr().expect("it is bound")),
            Self::Unix(_, directory) => format!("unix:{}", directory.path().join("bus").display()),
        }
    }

    pub fn accept(&self) -> Box<dyn Peer> {
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

    /// A connected bridge, its stdout, and the daemon's side.
    pub fn bridge(&self) -> (Bridge, Reader, Box<dyn Peer>) {
        let (bridge, stdout) = Bridge::start(&self.address());
        (bridge, stdout, self.accept())
    }
}

/// Makes reads and writes fail (with `WouldBlock`) after [`PATIENCE`].
pub fn patient<S: AsFd>(socket: S) -> Steady<S> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(PATIENCE)).expect("it is open");
    }
    Steady(socket)
}

/// Reads to the end of the connection, which may be a reset.
pub fn rest(peer: &mut dyn Peer) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = peer.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the end of the connection does not come");
    }
    bytes
}

/// Waits for poll(2) to report one of these events, and returns what it reported.
pub fn ready(fd: impl AsFd, events: i16) -> i16 {
    let mut entry = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry is passed, and it outlives the call.
    let count = unsafe { libc::poll(&mut entry, 1, PATIENCE.as_millis() as i32) };
    assert_eq!(count, 1, "the event does not come: {}", io::Error::last_os_error());
    entry.revents
}

pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both were just opened and have no other owner.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

/// The status flags of an open file, after adding the given ones.
pub fn flags(fd: impl AsFd, add: i32) -> i32 {
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

/// Lines with all kinds of content that must not be changed, at least `size` bytes.
pub fn lines(size: usize, seed: u64) -> Vec<u8> {
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

pub fn send_all(mut peer: Box<dyn Peer>, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || peer.write_all(&bytes).expect("the bridge reads"))
}

pub fn ids(messages: &[Value]) -> Vec<Value> {
    messages.iter().map(|message| message["id"].clone()).collect()
}

/// What [`fill`] has written, and how many bytes of it are complete lines.
pub fn filled(taken: usize) -> (Vec<u8>, usize) {
    let bytes: Vec<u8> = lines(64 * 1024, 3).iter().copied().cycle().take(taken).collect();
    let whole = 1 + bytes.iter().rposition(|&byte| byte == b'\n').expect("a line");
    (bytes, whole)
}

/// Writes until nothing was accepted for a while, and returns the number of bytes.
pub fn fill(mut stream: impl Write + AsFd) -> usize {
    flags(&stream, libc::O_NONBLOCK);
    let block = lines(64 * 1024, 3);
    let mut taken = 0;
    let mut last = Instant::now();
    // A test can wait only a limited time for something not to happen.
    while last.elapsed() < Duration::from_millis(300) {
        match stream.write(&block[taken % block.len()..]) {
            Ok(count) => {
                taken += count;
                last = Instant::now();
                assert!(taken < 64 << 20, "the bridge takes everything, although its output is unread");
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("the bridge went away: {error}"),
        }
    }
    taken
}

pub fn resident_kilobytes(bridge: &Bridge) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", bridge.child.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its high-water mark");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// Set in the second run of the tests.
pub const SECOND_TIME: &str = "STDIO_BUS_BRIDGE_WITHOUT_IO_URING";

/// Whether this is the second run.
pub fn is_second_time() -> bool {
    std::env::var_os(SECOND_TIME).is_some()
}
