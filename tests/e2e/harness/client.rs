//! The tests' client: it reads and writes lines or bytes, valid or not, and never waits for ever.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with, sockopt};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::sockets::{has_now, register};

/// Time limit for a condition. Generous: a loaded machine is not a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `fd` has one of `events`; false after [`PATIENCE`].
pub fn ready(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("it is short");
        match poll(&mut [PollFd::new(&fd, events)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// An answer, with its id verbatim: it may be a number that no type of ours can hold.
#[derive(Debug, Deserialize)]
pub struct Reply {
    pub id: Box<RawValue>,
    #[serde(default)]
    pub result: Value,
}

/// One connection.
pub struct Client {
    reader: OwnedFd,
    writer: Option<OwnedFd>,
    /// Bytes that were read but not returned yet.
    buffer: Vec<u8>,
    /// The read buffer.
    room: Vec<u8>,
    /// The start of the next line.
    start: usize,
}

impl Client {
    fn new(reader: OwnedFd, writer: Option<OwnedFd>) -> Self {
        // Only `ready` waits, with a limit.
        for fd in std::iter::once(&reader).chain(&writer) {
            rustix::io::ioctl_fionbio(fd, true).expect("a descriptor of ours");
        }
        Self { reader, writer, buffer: Vec::new(), start: 0, room: Vec::new() }
    }

    pub fn over_tcp(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_nodelay(true).expect("a TCP socket");
        Self::over(stream)
    }

    /// From an address of this machine chosen by the test.
    pub fn over_tcp_from(source: IpAddr, address: SocketAddr) -> Self {
        Self::over_tcp_with(address, |socket| {
            bind(socket, &SocketAddr::new(source, 0)).unwrap_or_else(|error| panic!("{source}: {error}"));
        })
    }

    /// The kernel buffers little unread data for it.
    pub fn over_tcp_with_little_room(address: SocketAddr) -> Self {
        Self::over_tcp_with(address, |socket| sockopt::set_socket_recv_buffer_size(socket, 16 << 10).expect("a socket"))
    }

    fn over_tcp_with(address: SocketAddr, prepare: impl FnOnce(&OwnedFd)) -> Self {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        prepare(&socket);
        connect(&socket, &address).unwrap_or_else(|error| panic!("{address}: {error}"));
        Self::over(socket)
    }

    pub fn over_unix(path: &Path) -> Self {
        Self::over(UnixStream::connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    pub fn over_pipes(stdin: Option<ChildStdin>, stdout: ChildStdout) -> Self {
        Self::new(stdout.into(), stdin.map(OwnedFd::from))
    }

    /// Over an existing socket.
    pub fn over(socket: impl Into<OwnedFd>) -> Self {
        let socket = socket.into();
        register(&socket);
        let writer = socket.try_clone().expect("a second descriptor");
        Self::new(socket, Some(writer))
    }

    /// Its local TCP port.
    pub fn port(&self) -> u16 {
        let address = getsockname(&self.reader).expect("a socket");
        SocketAddr::try_from(address).expect("of TCP").port()
    }

    /// A second handle of the connection, for a writer thread.
    pub fn second(&self) -> Self {
        let again = |fd: &OwnedFd| fd.try_clone().expect("a second descriptor");
        Self::new(again(&self.reader), self.writer.as_ref().map(again))
    }

    /// Writes as much as possible without blocking.
    pub fn push(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::io::write(self.writer.as_ref().expect("the writing side is open"), bytes)
    }

    /// Writes everything.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap_or_else(|error| panic!("writing to the daemon: {error}"));
    }

    /// Writes everything, unless the daemon has closed the connection.
    pub fn try_send(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match self.push(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::AGAIN) => {
                    let writer = self.writer.as_ref().expect("the writing side is open");
                    assert!(ready(writer.as_fd(), PollFlags::OUT), "the daemon reads nothing any more");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes everything, and takes what comes meanwhile: however little the sockets hold, neither side waits for the
    /// other to read.
    pub fn send_and_hear(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.push(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::AGAIN) => {
                    let either = ready(self.reader.as_fd(), PollFlags::IN | PollFlags::OUT);
                    assert!(either, "the daemon neither reads nor writes any more");
                    if has_now(&self.reader, PollFlags::IN) {
                        self.fill(1 << 16).unwrap_or_else(|error| panic!("reading from the daemon: {error}"));
                    }
                }
                Err(error) => panic!("writing to the daemon: {error}"),
            }
        }
    }

    /// Whether the daemon has closed the connection, with or without unread data.
    pub fn is_over(&self) -> bool {
        let mut socket = [PollFd::new(&self.reader, PollFlags::RDHUP)];
        poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a descriptor of ours") == 1
    }

    /// Writes a line.
    pub fn send_line(&mut self, line: &str) {
        self.send_bytes(format!("{line}\n").as_bytes());
    }

    /// Writes a message.
    pub fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    /// Sends a request and does not wait for its answer.
    pub fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params }));
    }

    /// The same in a session, at top level.
    pub fn ask_in(&mut self, session: &str, id: impl Into<Value>, method: &str, params: Value) {
        let id = id.into();
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "sessionId": session, "params": params }));
    }

    /// Sends a request and takes the next message, which must be its answer.
    pub fn request(&mut self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let id = id.into();
        self.ask(id.clone(), method, params);
        self.answer(id)
    }

    /// The same in a session, at top level.
    pub fn request_in(&mut self, session: &str, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let id = id.into();
        self.ask_in(session, id.clone(), method, params);
        self.answer(id)
    }

    /// The next message, which must be the answer to `id`.
    pub fn answer(&mut self, id: impl Into<Value>) -> Value {
        let message = self.message();
        assert_eq!(message["id"], id.into(), "{message}");
        message
    }

    /// The next message, which must be an error for `id` with this reason. Returns its code.
    pub fn error(&mut self, id: impl Into<Value>, reason: &str) -> i64 {
        let message = self.answer(id);
        assert_eq!(message["error"]["data"]["reason"], reason, "{message}");
        assert_eq!(message["jsonrpc"], "2.0");
        message["error"]["code"].as_i64().unwrap_or_else(|| panic!("an error has a code: {message}"))
    }

    /// The next message.
    pub fn message(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The answer to `id`. Earlier messages are dropped.
    pub fn find_answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        loop {
            let message = self.message();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
        }
    }

    /// The next message, which must be an answer with this id token.
    pub fn reply(&mut self, token: &str) -> Reply {
        let line = self.line();
        let reply: Reply = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(reply.id.get(), token, "{line}");
        reply
    }

    /// The next message; none when the connection has ended.
    pub fn message_or_end(&mut self) -> Option<Value> {
        let line = self.next_line().ok()?;
        Some(serde_json::from_slice(&line).unwrap_or_else(|error| panic!("{error}: {}", line.escape_ascii())))
    }

    /// The next line, without its newline.
    pub fn line(&mut self) -> String {
        String::from_utf8(self.bytes_of_line()).expect("UTF-8")
    }

    /// The next line as bytes.
    pub fn bytes_of_line(&mut self) -> Vec<u8> {
        self.next_line().unwrap_or_else(|why| {
            let begun = String::from_utf8_lossy(&self.buffer[self.start..]);
            panic!("{why} instead of a line, after {begun:?}")
        })
    }

    /// The next line, or why there is none.
    fn next_line(&mut self) -> Result<Vec<u8>, String> {
        let mut searched = self.start;
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                let end = searched + length;
                let line = self.buffer[self.start..end].to_vec();
                self.start = end + 1;
                if self.start == self.buffer.len() {
                    self.buffer.clear();
                    self.start = 0;
                }
                return Ok(line);
            }
            searched = self.buffer.len();
            match self.fill(1 << 16) {
                Ok(0) => return Err("end of file".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits for bytes and takes at most `most` of them; 0 at the end.
    pub fn fill(&mut self, most: usize) -> Result<usize, Errno> {
        // Zeroed only once: without optimization that takes longer than everything else in a client.
        if self.room.len() < most {
            self.room = vec![0; most];
        }
        let result = loop {
            match rustix::io::read(&self.reader, &mut self.room[..most]) {
                Err(Errno::AGAIN) => {
                    assert!(ready(self.reader.as_fd(), PollFlags::IN), "nothing comes from the daemon");
                }
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        self.buffer.extend_from_slice(&self.room[..*result.as_ref().unwrap_or(&0)]);
        result
    }

    /// Reads the rest and checks that the connection ends. Returns what was read.
    pub fn rest(&mut self) -> String {
        while self.fill(1 << 16).unwrap_or(0) > 0 {}
        let rest = self.buffer.split_off(self.start);
        self.buffer.clear();
        self.start = 0;
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Checks that the daemon ends the connection without another byte.
    pub fn ends(&mut self) {
        assert_eq!(self.rest(), "", "the connection should have ended");
    }

    /// Half-closes the connection and keeps reading.
    pub fn half_close(&mut self) {
        if let Some(writer) = self.writer.take() {
            // A pipe cannot be shut down, only closed, which the drop does.
            let _ = rustix::net::shutdown(&writer, rustix::net::Shutdown::Write);
        }
    }

    /// Resets a TCP connection: data in flight is lost.
    pub fn reset(self) {
        let linger = Some(std::time::Duration::ZERO);
        sockopt::set_socket_linger(&self.reader, linger).expect("a TCP socket");
    }

    /// Whether something can be read now, including the end.
    pub fn has_something(&self) -> bool {
        self.start < self.buffer.len() || has_now(&self.reader, PollFlags::IN)
    }

    /// Closes the reading side for good, like the next program of a pipeline that has exited.
    pub fn close_reading(self) -> Self {
        let writer = self.writer.as_ref().expect("the writing side is open").try_clone().expect("a second descriptor");
        let writer_only = Self::new(writer.try_clone().expect("a third one"), Some(writer));
        drop(self);
        writer_only
    }
}
