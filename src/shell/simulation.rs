//! The shell on a kernel that is made from a seed (`testing/kernel.rs`): short reads and writes, late and reordered
//! completions, operations that fail, freezes of the machine, little memory, few descriptors, small tables, workers that
//! cannot be started or die, clients that stop reading, end what they say, misbehave, or leave, one of them on stdin and
//! stdout, others behind a proxy or in frames of WebSocket, and operators who ask.
//!
//! Every request of a client that stays is answered once, with its own answer or an error. Lines arrive to the byte, but for
//! ids on their way to a worker, and in order. Nobody is closed for a reason that the world around the daemon cannot give.
//! No timeout runs out before its time; in the end nothing is open and no memory is lent.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::{Errno, read, write};
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit};
use serde_json::{Value, json};

use super::admin::Admin;
use super::connection::Connection;
use super::descriptors::Allowance;
use super::listen::Listening;
use super::listeners::Acceptor;
use super::log;
use super::signals::Signals;
use super::turn::Shell;
use super::workers::processes::Processes;
use super::workers::spawn::Spawned;
use super::workers::starter::Started;
use super::workers::usage::Usage;
use crate::bus::port::{Exit, Origin, Reason, Signal, WorkerKey};
use crate::bus::settings::{Proxies, Proxy};
use crate::bus::shutdown::Stage;
use crate::config::{Config, Listen, Listener, Pool, Web};
use crate::io::Io;
use crate::testing::kernel::{Kernel, Wires, inode};
use crate::testing::{Random, shrink};
use crate::tokens::Tokens;
use crate::websocket::frame::{Decoder, Event, Received};
use crate::websocket::{Mask, Role, encode};

/// Turns after which a simulation that is not over has hung.
const LAST_TURN: usize = 200_000;

/// Bytes on their way through a pipe of the simulation: how many were taken.
fn push(to: &OwnedFd, queue: &mut VecDeque<u8>, most: usize) -> usize {
    let bytes = queue.make_contiguous();
    let written = write(to, &bytes[..bytes.len().min(most)]).unwrap_or(0);
    queue.drain(..written);
    written
}

/// What came of an attempt to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pulled {
    Something,
    Nothing,
    End,
}

/// Takes what is there.
fn pull(from: &OwnedFd, into: &mut Vec<u8>, most: usize) -> Pulled {
    let mut bytes = vec![0; most];
    match read(from, &mut bytes) {
        Ok(0) => Pulled::End,
        Ok(count) => {
            into.extend_from_slice(&bytes[..count]);
            Pulled::Something
        }
        Err(Errno::AGAIN | Errno::INTR) => Pulled::Nothing,
        Err(_) => Pulled::End,
    }
}

/// Takes the whole lines out of what has come.
fn lines(buffer: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let Some(end) = memchr::memrchr(b'\n', buffer) else { return Vec::new() };
    let rest = buffer.split_off(end + 1);
    let mut whole = std::mem::replace(buffer, rest);
    whole.pop();
    whole.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Pieces of text are of so many bytes.
const PIECE: usize = 8;
/// The longest text of a line.
const LONGEST_TEXT: usize = 90_000;

/// Text that nowhere repeats itself, for each line to take a part of it: letters, and pieces that JSON has to escape and
/// UTF-8 writes in several bytes.
fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut random = Random::new(0x7e47);
        let mut letters = |_| char::from(*random.pick(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"));
        let pieces = (0..4 * LONGEST_TEXT / PIECE).map(|number| match number % 11 {
            0 => "é{[\\\"é".to_owned(),
            _ => (0..PIECE).map(&mut letters).collect(),
        });
        pieces.collect::<String>().into_bytes()
    })
}

/// A request of a client, which nobody else has written and it itself only once: what it is follows from these, and so
/// whoever gets it can tell whether a byte of it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    seed: u64,
    who: usize,
    number: u64,
    length: usize,
}

impl Request {
    fn random(&self) -> Random {
        Random::new(self.seed ^ (self.who as u64) << 48 ^ self.number << 24)
    }

    /// What its client calls it: different clients use the same ids.
    fn id(&self) -> String {
        if self.number.is_multiple_of(3) { format!("\"{}\"", self.number) } else { self.number.to_string() }
    }

    fn params(&self, into: &mut Vec<u8>) {
        let Self { who, number, length, .. } = self;
        into.extend(format!("{{\"who\":{who},\"number\":{number},\"length\":{length},\"text\":\"").bytes());
        let from = self.random().range(0..text().len() - LONGEST_TEXT) / PIECE * PIECE;
        into.extend_from_slice(&text()[from..from + length / PIECE * PIECE]);
        into.extend_from_slice(&b"abcdefg"[..length % PIECE]);
        into.extend_from_slice(b"\"}");
    }

    /// A line with these members, in one of the ways in which it may be written.
    fn line(&self, id: &str, before: &str, after: &str) -> Vec<u8> {
        let id_comes_last = self.random().number().is_multiple_of(4);
        let mut line = Vec::with_capacity(self.length + 200);
        match id_comes_last {
            true => line.extend(format!("{{ \"jsonrpc\":\"2.0\",{before}").bytes()),
            false => line.extend(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{before}").bytes()),
        }
        self.params(&mut line);
        line.extend_from_slice(after.as_bytes());
        if id_comes_last {
            line.extend(format!(" ,\"id\": {id}").bytes());
        }
        line.push(b'}');
        line
    }

    /// As it is asked, with the id that it has there.
    fn question(&self, id: &str) -> Vec<u8> {
        self.line(id, "\"method\":\"m\",\"params\":", "")
    }

    /// As a worker answers it, which has given so many answers before.
    fn answer(&self, id: &str, worker: usize, nth: usize) -> Vec<u8> {
        self.line(id, &format!("\"result\":{{\"worker\":{worker},\"nth\":{nth},\"params\":"), "}")
    }
}

/// The token behind the name of a member that stands nowhere else in a line.
fn token<'a>(line: &'a [u8], name: &str) -> Option<&'a str> {
    let rest = &line[memchr::memmem::find(line, format!("\"{name}\":").as_bytes())? + name.len() + 3..];
    let end = memchr::memchr2(b',', b'}', rest)?;
    std::str::from_utf8(&rest[..end]).ok().map(str::trim)
}

fn number<T: std::str::FromStr>(line: &[u8], name: &str) -> Option<T> {
    token(line, name)?.parse().ok()
}

/// The beginning of a line that is not what it should be.
fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned()
}

struct Worker {
    key: WorkerKey,
    stdin: OwnedFd,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    came: Vec<u8>,
    goes: VecDeque<u8>,
    is_dead: bool,
    /// The last request of each client.
    heard: HashMap<usize, u64>,
    answers: usize,
}

impl Worker {
    /// Answers a line, if it is what its client has asked. It is the worker of this number.
    fn answer(&mut self, seed: u64, name: usize, line: &[u8]) {
        let id = token(line, "id").unwrap_or_else(|| panic!("a request has an id: {}", shown(line)));
        let request = || {
            let (who, number, length) = (number(line, "who")?, number(line, "number")?, number(line, "length")?);
            Some(Request { seed, who, number, length })
        };
        let request = request().filter(|request| request.length <= LONGEST_TEXT);
        let request = request.unwrap_or_else(|| panic!("a request is whole: {}", shown(line)));
        assert!(line == request.question(id), "a worker got what nobody asked: {request:?} {}", shown(line));
        let before = self.heard.insert(request.who, request.number);
        assert!(before.is_none_or(|before| before < request.number), "{request:?} comes behind {before:?}");
        self.goes.extend(request.answer(id, name, self.answers));
        self.goes.push_back(b'\n');
        self.answers += 1;
    }
}

/// What the shell does to processes, and what becomes of it.
struct Children {
    random: Random,
    workers: Vec<Worker>,
    dead: VecDeque<(WorkerKey, Exit)>,
    started: VecDeque<Started>,
    /// Wakes the shell, as SIGCHLD would.
    bell: UnixStream,
    next_pid: u32,
    is_kind: bool,
}

impl Children {
    fn ends(&mut self, at: usize, exit: Exit) {
        let worker = &mut self.workers[at];
        if !std::mem::replace(&mut worker.is_dead, true) {
            (worker.stdout, worker.stderr) = (None, None);
            self.dead.push_back((worker.key, exit));
            let _ = write(&self.bell, b"!");
        }
    }
}

impl Children {
    fn start(&mut self, worker: WorkerKey) -> io::Result<Spawned> {
        if !self.is_kind && self.random.one_in(6) {
            return Err(io::Error::from_raw_os_error(*self.random.pick(&[libc::EAGAIN, libc::EMFILE])));
        }
        let (stdin_theirs, stdin) = pipe()?;
        let (stdout, stdout_theirs) = pipe()?;
        let (stderr, stderr_theirs) = pipe()?;
        self.next_pid += 1;
        let pid = self.next_pid;
        self.workers.push(Worker {
            key: worker,
            stdin: stdin_theirs,
            stdout: Some(stdout_theirs),
            stderr: Some(stderr_theirs),
            came: Vec::new(),
            goes: VecDeque::new(),
            is_dead: false,
            heard: HashMap::new(),
            answers: 0,
        });
        Ok(Spawned { pid, stdin, stdout, stderr })
    }
}

impl Processes for Rc<RefCell<Children>> {
    fn begin(&mut self, worker: WorkerKey, _: &Pool, _: &Rlimit) -> io::Result<()> {
        let mut children = self.borrow_mut();
        if !children.is_kind && children.random.one_in(12) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let started = children.start(worker);
        children.started.push_back((worker, started));
        let _ = write(&children.bell, b"s");
        Ok(())
    }

    fn next_started(&mut self) -> Option<Started> {
        self.borrow_mut().started.pop_front()
    }

    // The same in each run of a seed.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn resident(&self, process: u32) -> Option<u64> {
        Some(u64::from(process))
    }

    fn signal(&mut self, worker: WorkerKey, signal: Signal) {
        let mut children = self.borrow_mut();
        let found = children.workers.iter().position(|known| known.key == worker && !known.is_dead);
        let Some(at) = found else { return };
        let ignores = signal == Signal::Terminate && children.random.one_in(3);
        if !ignores {
            children.ends(at, Exit::Signal(if signal == Signal::Kill { libc::SIGKILL } else { libc::SIGTERM }));
        }
    }

    fn next_dead(&mut self) -> Option<(Option<WorkerKey>, Exit)> {
        self.borrow_mut().dead.pop_front().map(|(worker, exit)| (Some(worker), exit))
    }

    fn kill_the_rest(&mut self) -> Vec<u32> {
        let mut children = self.borrow_mut();
        assert!(children.workers.iter().all(|worker| worker.is_dead), "a worker outlives its daemon");
        children.dead.clear();
        Vec::new()
    }
}

/// A pair of ends that nobody waits at, with the kind of a pipe that this simulation uses.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(io::Error::from)
}

/// What a client has asked and nobody has answered.
struct Asked {
    request: Request,
    /// When, on a clock that stands still while the machine does.
    at: Duration,
    /// It is asked once so many bytes have left its client.
    ends_at: usize,
}

/// What a client hears of its own conduct.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// A status of HTTP.
    Status(u16),
    /// The reason of an error that answers nothing.
    Error(String),
    /// The code of a close frame.
    Code(u16),
}

/// What a client has said or done last: it is closed for that.
#[derive(Debug)]
struct LastWord {
    /// It may be heard once so many bytes have left: what is wrong may be seen by its first byte.
    heard_at: usize,
    /// What it hears of it, if it hears anything, and what is counted, if that is known.
    verdict: Option<Verdict>,
    reason: Option<Reason>,
}

/// What a client has that speaks WebSocket.
struct Frames {
    /// What has come and is not decoded; the answer to its request first.
    raw: Vec<u8>,
    is_open: bool,
    decoder: Decoder,
    random: Random,
    /// What it was told last.
    verdict: Option<Verdict>,
}

/// A token that lets in.
const TOKEN: &str = "0123456789abcdef";

/// What such a client says first.
const UPGRADE: &str = "GET /acp HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer 0123456789abcdef\r\n";

/// What of that may be another way, and what is heard of it then.
const BROKEN_UPGRADES: [(&str, &str, u16); 9] = [
    ("GET /acp", "GET /elsewhere", 404),
    ("GET /acp", "POST /acp", 405),
    ("GET /acp", "G\0T /acp", 400),
    ("HTTP/1.1", "HTTP/7.7", 505),
    ("Host: a\r\n", "Host: a\r\nOrigin: https://evil.example\r\n", 403),
    ("Upgrade: websocket", "Upgrade: h2c", 405),
    ("dGhlIHNhbXBsZSBub25jZQ==", "short", 400),
    ("Version: 13", "Version: 12", 426),
    ("Bearer 0123456789abcdef", "Bearer 0123456789abcdeg", 401),
];

/// Frames that no client may send, and the codes that they are answered with.
const BROKEN_FRAMES: [(&[u8], u16); 8] = [
    (b"\x81\x02{}", 1002),
    (b"\xc1\x80\0\0\0\0", 1002),
    (b"\x83\x80\0\0\0\0", 1002),
    (b"\x80\x80\0\0\0\0", 1002),
    (b"\x09\x80\0\0\0\0", 1002),
    (b"\x88\x81\0\0\0\0\x03", 1002),
    (b"\x81\xff\0\0\0\0\x7f\0\0\0\0\0\0\0", 1009),
    (b"\x81\x84\0\0\0\0{\"\xff\"", 1007),
];

/// Lines that are no messages.
const BROKEN_LINES: [&[u8]; 4] = [b"nonsense\n", b"[]\n", b"{\"id\":1,\"method\":\"m\"}}\n", b"{\"a\":\"\xff\"}\n"];

/// What is no header of a proxy, although one has to come.
const BROKEN_HEADERS: [&[u8]; 3] =
    [b"PROXY TCP4 192.0.2.7 nowhere 40000 9000\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0", b"PROXY \r\n"];

impl Frames {
    fn new(seed: u64) -> Self {
        Self {
            raw: Vec::new(),
            is_open: false,
            decoder: Decoder::new(Role::Client, 1 << 30),
            random: Random::new(seed),
            verdict: None,
        }
    }

    fn mask(&mut self) -> Mask {
        Mask::new((self.random.range(0..usize::MAX) as u32).to_ne_bytes())
    }

    /// A frame of its own of each of some pieces of a message, with pings between them.
    fn message(&mut self, text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut at = 0;
        loop {
            let rest = text.len() - at;
            let length = if self.random.one_in(3) { self.random.range(0..rest + 1) } else { rest };
            let is_last = length == rest && at + length == text.len();
            let mask = self.mask();
            let mut head = encode::text(length, Some(mask)).to_vec();
            // FIN, and a continuation where it is one.
            head[0] = u8::from(is_last) << 7 | u8::from(at == 0 && bytes.is_empty());
            let mut piece = text[at..at + length].to_vec();
            mask.apply(&mut piece);
            bytes.extend(head.into_iter().chain(piece));
            at += length;
            if is_last {
                return bytes;
            }
            if self.random.one_in(3) {
                let mask = self.mask();
                bytes.extend_from_slice(&encode::ping(b"are you there", Some(mask)));
            }
        }
    }

    /// Turns what has come into lines. What is to be answered goes to `todo`. True if the connection is of no more use.
    fn read(&mut self, came: &mut Vec<u8>, todo: &mut VecDeque<u8>) -> bool {
        if !self.is_open {
            let Some(end) = memchr::memmem::find(&self.raw, b"\r\n\r\n") else { return false };
            let head = String::from_utf8_lossy(&self.raw[..end]).into_owned();
            let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
            let status: u16 = status.unwrap_or_else(|| panic!("an answer is HTTP: {head}"));
            if status != 101 {
                self.verdict = Some(Verdict::Status(status));
                // The body says no more.
                self.raw.truncate(end + 4);
                return false;
            }
            assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
            self.raw.drain(..end + 4);
            self.is_open = true;
        }
        let length = self.raw.len();
        self.raw.push(0);
        let mut received = Received::new(&mut self.raw, length);
        let mut is_over = false;
        let verdict = &mut self.verdict;
        let mut pings = Vec::new();
        while let Some(event) = self.decoder.next(&mut received) {
            match event {
                Event::Text { .. } => {}
                Event::Pong(payload) => assert_eq!(payload, b"are you there"),
                Event::Ping(payload) => pings.push(payload.to_vec()),
                Event::Close { code, .. } => {
                    assert!(matches!(code, Some(1000..=1002 | 1007..=1009 | 1013)), "{code:?}");
                    *verdict = code.map(Verdict::Code);
                    is_over = true;
                }
                other => panic!("{other:?}"),
            }
        }
        came.extend_from_slice(received.lines());
        self.raw.clear();
        for ping in pings {
            let mask = self.mask();
            todo.extend(encode::pong(&ping, Some(mask)).iter());
        }
        is_over
    }
}

struct Client {
    name: usize,
    seed: u64,
    /// None once it has left, or its connection has ended.
    hears: Option<OwnedFd>,
    /// None once it has said all that it wants to.
    speaks: Option<OwnedFd>,
    is_stdio: bool,
    /// The other end, which is the daemon's.
    inode: Option<u64>,
    /// The turn in which it came.
    came_in: usize,
    /// The first request that it asked when nothing failed any more, and whether one from then on was answered.
    asked_in_peace: Option<u64>,
    is_well: bool,
    todo: VecDeque<u8>,
    /// Bytes that have left.
    sent: usize,
    came: Vec<u8>,
    asked: HashMap<u64, Asked>,
    next: u64,
    answers: usize,
    /// The last answer of each worker to it.
    heard: HashMap<usize, usize>,
    frames: Option<Frames>,
    last_word: Option<LastWord>,
    verdict: Option<Verdict>,
    /// When it last had taken all that there was, and for how long it had not at most.
    empty_at: Duration,
    behind: Duration,
}

impl Client {
    fn new(name: usize, seed: u64, hears: OwnedFd, speaks: OwnedFd) -> Self {
        Self {
            name,
            seed,
            hears: Some(hears),
            speaks: Some(speaks),
            is_stdio: false,
            inode: None,
            came_in: 0,
            asked_in_peace: None,
            is_well: false,
            todo: VecDeque::new(),
            sent: 0,
            came: Vec::new(),
            asked: HashMap::new(),
            next: 0,
            answers: 0,
            heard: HashMap::new(),
            frames: None,
            last_word: None,
            verdict: None,
            empty_at: Duration::ZERO,
            behind: Duration::ZERO,
        }
    }

    fn is_over(&self) -> bool {
        self.hears.is_none()
    }

    /// Whether it has said its last.
    fn is_leaving(&self) -> bool {
        self.last_word.is_some()
    }

    fn leaves(&mut self) {
        (self.hears, self.speaks) = (None, None);
    }

    /// Whether the daemon owes it nothing for now: neither an answer nor the end of its connection.
    fn is_content(&self) -> bool {
        self.is_over() || self.speaks.is_some() && !self.is_leaving() && self.asked.is_empty() && self.todo.is_empty()
    }

    /// It has nothing more to say, and hears what is left.
    fn ends_what_it_says(&mut self) {
        let sent = self.sent;
        // Nobody hears what has not left.
        self.asked.retain(|_, asked| asked.ends_at <= sent);
        if let Some(frames) = &self.frames {
            // There is no half of a WebSocket. In the middle of its request, it has never been one.
            let reason = frames.is_open.then_some(Reason::ClientBroken);
            self.last_word = Some(LastWord { heard_at: sent, verdict: None, reason });
        }
        if let Some(end) = self.speaks.take()
            && !self.is_stdio
        {
            shutdown(end, Shutdown::Write).expect("it is a socket");
        }
    }

    /// Takes what is there, if anything. What comes of it says whether the daemon has closed it.
    fn reads(&mut self, most: usize, now: Duration) -> Pulled {
        let Some(end) = &self.hears else { return Pulled::Nothing };
        let pulled = match &mut self.frames {
            Some(frames) => {
                let pulled = pull(end, &mut frames.raw, most);
                // Nothing comes behind a close frame but the end.
                let is_over = frames.read(&mut self.came, &mut self.todo);
                if is_over { Pulled::End } else { pulled }
            }
            None => pull(end, &mut self.came, most),
        };
        match pulled {
            Pulled::Nothing => self.empty_at = now,
            Pulled::Something | Pulled::End => self.behind = self.behind.max(now - self.empty_at),
        }
        self.check(now);
        if let Some(verdict) = self.frames.as_mut().and_then(|frames| frames.verdict.take()) {
            self.verdict = Some(verdict);
        }
        pulled
    }

    fn writes(&mut self, most: usize) -> bool {
        let Some(end) = &self.speaks else { return false };
        let sent = push(end, &mut self.todo, most);
        self.sent += sent;
        sent > 0
    }

    fn says(&mut self, line: &[u8]) {
        match &mut self.frames {
            Some(frames) => self.todo.extend(frames.message(line)),
            None => {
                self.todo.extend(line);
                self.todo.push_back(b'\n');
            }
        }
    }

    fn ask(&mut self, random: &mut Random, now: Duration) {
        let size = *random.pick(&[0, 10, 200, 3000, 20_000, LONGEST_TEXT]);
        let (seed, who, number, length) = (self.seed, self.name, self.next, random.range(0..size + 1));
        let request = Request { seed, who, number, length };
        self.next += 1;
        self.says(&request.question(&request.id()));
        self.asked.insert(number, Asked { request, at: now, ends_at: self.sent + self.todo.len() });
    }

    /// It says this, and nothing after it.
    fn says_its_last(&mut self, bytes: &[u8], verdict: Option<Verdict>, reason: Option<Reason>) {
        self.last_word = Some(LastWord { heard_at: self.sent + self.todo.len() + 1, verdict, reason });
        self.todo.extend(bytes);
    }

    /// It says that it leaves, in the way of WebSocket. False if that is not its way.
    fn says_goodbye(&mut self) -> bool {
        let Some(frames) = &mut self.frames else { return false };
        let goodbye = encode::close(Some(1000), "", Some(frames.mask()));
        self.says_its_last(&goodbye, Some(Verdict::Code(1000)), None);
        true
    }

    /// It says what cannot be understood.
    fn misbehaves(&mut self, random: &mut Random) {
        match &mut self.frames {
            Some(frames) if random.one_in(4) => {
                let line = frames.message(random.pick(&BROKEN_LINES[..3]).trim_ascii_end());
                self.says_its_last(&line, Some(Verdict::Code(1007)), Some(Reason::ClientMalformed));
            }
            Some(_) => {
                let (frame, code) = *random.pick(&BROKEN_FRAMES);
                let reason = if code == 1009 { Reason::ClientLineTooLong } else { Reason::ClientMalformed };
                self.says_its_last(frame, Some(Verdict::Code(code)), Some(reason));
            }
            None => {
                let verdict = Verdict::Error(Reason::ClientMalformed.told().to_owned());
                let line = *random.pick(&BROKEN_LINES);
                self.says_its_last(line, Some(verdict), Some(Reason::ClientMalformed));
            }
        }
    }

    /// Compares the lines that have come with what it has asked, to the byte.
    fn check(&mut self, now: Duration) {
        for line in lines(&mut self.came) {
            if token(&line, "error").is_some() {
                self.check_error(&line, now);
                continue;
            }
            let id = token(&line, "id").unwrap_or_else(|| panic!("{} was told: {}", self.name, shown(&line)));
            let asked = id.trim_matches('"').parse().ok().and_then(|id: u64| self.asked.remove(&id));
            let asked = asked.unwrap_or_else(|| panic!("{} has not asked this: {}", self.name, shown(&line)));
            let (Some(worker), Some(nth)) = (number(&line, "worker"), number(&line, "nth")) else {
                panic!("{} got what is no answer: {}", self.name, shown(&line));
            };
            let request = asked.request;
            let is_same = line == request.answer(&request.id(), worker, nth);
            assert!(is_same, "the answer to {request:?} is another one: {}", shown(&line));
            let before = self.heard.insert(worker, nth);
            assert!(before.is_none_or(|before| before < nth), "the answer to {request:?} comes behind {before:?}");
            self.answers += 1;
            self.is_well |= self.asked_in_peace.is_some_and(|first| request.number >= first);
        }
    }

    fn check_error(&mut self, line: &[u8], now: Duration) {
        let error: Value = serde_json::from_slice(line).expect("an error is JSON");
        let reason =
            error["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("an error has a reason: {error}"));
        if error["id"].is_null() {
            self.verdict = Some(Verdict::Error(reason.to_owned()));
            return;
        }
        let number = error["id"].as_u64().or_else(|| error["id"].as_str()?.parse().ok());
        let asked = number.and_then(|number| self.asked.remove(&number));
        let asked = asked.unwrap_or_else(|| panic!("{} has not asked this: {error}", self.name));
        assert_eq!(error["id"].to_string(), asked.request.id(), "an id is what it was");
        self.answers += 1;
        if reason == "timeout" {
            assert!(now - asked.at >= REQUEST_TIMEOUT, "a timeout ran out after {:?}", now - asked.at);
        }
    }
}

/// What operators ask.
const QUESTIONS: [&str; 7] = [
    "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /status.json HTTP/1.0\r\n\r\n",
    "GET /clients.json HTTP/1.1\r\nHost: a\r\n\r\nGET /pending.json HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "HEAD /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /restart-worker?worker=p/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
    "{\"jsonrpc\":\"2.0\"}\n",
];

/// Somebody at the admin listener: asks, reads a little, or nothing, and leaves at any time.
struct Operator {
    end: Option<OwnedFd>,
    asks: VecDeque<u8>,
    came: Vec<u8>,
}

impl Operator {
    /// Does one thing. False if there was nothing to do.
    fn acts(&mut self, random: &mut Random, asks: bool) -> bool {
        let Some(end) = &self.end else { return false };
        match random.range(0..20) {
            0 if asks => {
                self.end = None;
                true
            }
            1..4 if asks && self.asks.len() < 10_000 => {
                self.asks.extend(random.pick(&QUESTIONS).bytes());
                true
            }
            4..10 => push(end, &mut self.asks, random.range(1..300)) > 0,
            _ => {
                let pulled = pull(end, &mut self.came, random.range(1..20_000));
                assert!(self.came.len() < 9 || self.came.starts_with(b"HTTP/1.1 "), "an answer is HTTP");
                if pulled == Pulled::End {
                    self.end = None;
                }
                pulled != Pulled::Nothing
            }
        }
    }
}

/// What there is little of in a world: the reasons for which its clients may be closed though they do nothing wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Scarcity {
    /// Less memory than the least that can be configured: some clients are more than it takes.
    has_little_memory: bool,
    /// A client may take nothing for so long.
    patience: Option<Duration>,
    /// There may be so many clients at once.
    clients: Option<usize>,
    /// And so many of the listener.
    of_listener: Option<usize>,
    /// There are descriptors for so many connections. They wait for one, and nobody is closed.
    descriptors: Option<usize>,
}

impl Scarcity {
    fn new(random: &mut Random) -> Self {
        let mut some = |times, from, to| random.one_in(times).then(|| random.range(from..to));
        Self {
            has_little_memory: some(3, 0, 1).is_some(),
            patience: some(4, 100, 300).map(|milliseconds| Duration::from_millis(milliseconds as u64)),
            clients: some(5, 2, 6),
            of_listener: some(6, 1, 6),
            descriptors: some(5, 1, 6),
        }
    }

    /// So many clients that somebody may be refused.
    fn full(&self) -> Option<usize> {
        self.clients.into_iter().chain(self.of_listener).min()
    }

    /// Whether clients have to leave so that all others get in.
    fn keeps_out(&self) -> bool {
        self.clients.is_some() || self.descriptors.is_some()
    }
}

struct Simulation {
    seed: u64,
    turns: usize,
    /// The last turn in which somebody may have been refused, since there were so many.
    full_in: Option<usize>,
    /// Clients that were closed for a reason that only the daemon can have counted.
    closed_for_want: u64,
    random: Random,
    shell: Shell<Kernel>,
    wires: Rc<RefCell<Wires>>,
    children: Rc<RefCell<Children>>,
    door: i32,
    /// Where operators come in, if anywhere.
    admin_door: Option<i32>,
    operators: Vec<Operator>,
    stop: UnixStream,
    clients: Vec<Client>,
    /// The daemon's stdin and stdout, if it serves a client there.
    stdio: Option<(OwnedFd, OwnedFd)>,
    scarcity: Scarcity,
    /// Clients come with PROXY headers: all of them if that is true.
    needs_header: Option<bool>,
    /// Clients that connect speak WebSocket.
    is_web: bool,
    /// They need a token.
    has_tokens: bool,
}

/// What proxies say before their clients.
const HEADERS: [&[u8]; 3] = [
    b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13\xc0\0\x02\x07\xc0\0\x02\x01\x9c\x40\x23\x28\x05\0\x04uuid",
    b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
];

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

fn config(random: &mut Random, scarcity: Scarcity) -> Config {
    let program = std::env::current_exe().expect("a test runs");
    let text = json!({
        "pools": [{
            "id": "p", "command": program, "args": [], "instances": 3, "request_timeout_sec": REQUEST_TIMEOUT.as_secs()
        }],
        "limits": { "max_output_queue": 65536, "max_restarts": 1000, "drain_timeout_sec": 5 },
    });
    let mut config = Config::from_bytes(text.to_string().as_bytes(), "a seed").expect("it is valid");
    config.listeners = vec![Listener::open(Listen::Tcp { host: "a seed".to_owned(), port: 0 })];
    if random.one_in(2) {
        let (required, timeout) = (random.one_in(2), Duration::from_secs(3));
        config.listeners[0].entry.proxy = Some(Proxy { from: Proxies::Unix, required, timeout });
    }
    let ping = Some(Duration::from_secs(random.range(1..30) as u64));
    // Nobody reads it: what stands in it is given.
    let tokens_file = random.one_in(2).then(|| PathBuf::from("tokens"));
    let tokens = Tokens::parse(&format!("somebody:{TOKEN}"), &[]).expect("it is right");
    config.listeners[0].web = random.one_in(3).then(|| Web { ping, tokens_file, tokens, ..Web::default() });
    config.listeners[0].max_connections.total = scarcity.of_listener;
    config.listeners.extend(random.one_in(3).then(|| Listener::open(Listen::Stdio)));
    if scarcity.has_little_memory {
        config.limits.max_memory = random.range(1..4) << 20;
    }
    if let Some(patience) = scarcity.patience {
        config.limits.backpressure_timeout = patience;
    }
    config
}

impl Simulation {
    fn new(seed: u64) -> Self {
        log::forget();
        let wires = Rc::new(RefCell::new(Wires::default()));
        let pair = || {
            let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
            ours.set_nonblocking(true).and(theirs.set_nonblocking(true)).expect("it is a socket");
            (ours, theirs)
        };
        let ((children_ours, bell), (stop_ours, stop)) = (pair(), pair());
        let children = Rc::new(RefCell::new(Children {
            random: Random::new(seed ^ 0x5eed),
            workers: Vec::new(),
            dead: VecDeque::new(),
            started: VecDeque::new(),
            bell,
            next_pid: 1000,
            is_kind: false,
        }));
        let socket: OwnedFd = pair().0.into();
        let door = socket.as_raw_fd();
        let mut listening = Listening::nowhere(socket, "a seed");
        listening.is_inherited = seed.is_multiple_of(3);
        let acceptor = Acceptor::new(listening);
        let signals = Signals::new(children_ours.into(), pair().0.into(), stop_ours.into());
        let kernel = Kernel::new(seed, Rc::clone(&wires));
        let mut random = Random::new(seed ^ 0xc11e);
        let scarcity = Scarcity::new(&mut random);
        let descriptors = Allowance {
            of_workers: getrlimit(Resource::Nofile),
            fewer_clients: scarcity.clients.map(|clients| (clients, 0)),
            handshakes: super::handshakes::state::BEYOND,
        };
        wires.borrow_mut().most_open.extend(scarcity.descriptors.map(|most| (door, most)));
        wires.borrow_mut().steady = vec![signals.children.as_raw_fd(), signals.stop.as_raw_fd()];
        let config = config(&mut random, scarcity);
        let stdio = config.listeners.iter().position(|listener| matches!(listener.listen, Listen::Stdio));
        let needs_header = config.listeners[0].entry.proxy.as_ref().map(|proxy| proxy.required);
        let web = config.listeners[0].web.as_ref();
        let (is_web, has_tokens) = (web.is_some(), web.is_some_and(|web| web.tokens_file.is_some()));
        let of_admin: Option<OwnedFd> = random.one_in(2).then(|| pair().0.into());
        let admin_door = of_admin.as_ref().map(AsRawFd::as_raw_fd);
        let of_admin = of_admin.map(|socket| Acceptor::new(Listening::nowhere(socket, "a seed")).for_admin());
        let acceptors: Vec<_> = [acceptor].into_iter().chain(of_admin).collect();
        let admin = Admin::new(&config, &acceptors);
        let children_of_shell = Box::new(Rc::clone(&children));
        let mut shell = Shell::new(config, kernel, children_of_shell, signals, descriptors, acceptors, admin);
        shell.start_listening(None);
        let mut simulation = Self {
            seed,
            turns: 0,
            full_in: None,
            closed_for_want: 0,
            random,
            shell,
            wires,
            children,
            door,
            admin_door,
            operators: Vec::new(),
            stop,
            clients: Vec::new(),
            stdio: None,
            scarcity,
            needs_header,
            is_web,
            has_tokens,
        };
        if let Some(listener) = stdio {
            simulation.serves_stdio(listener);
        }
        simulation
    }

    /// One client is on the daemon's own stdin and stdout.
    fn serves_stdio(&mut self, listener: usize) {
        let ((stdin, speaks), (hears, stdout)) = (pipe().expect("a pipe"), pipe().expect("a pipe"));
        // SAFETY: `stdio` is closed after the shell.
        let lent = |end: &OwnedFd| unsafe { BorrowedFd::borrow_raw(end.as_raw_fd()) };
        let (reader, writer) = (lent(&stdin), lent(&stdout));
        let aside = self.random.one_in(2);
        let connection = |peer| Connection::stdio(peer, reader, writer).writing_aside(aside);
        self.shell.step(|shell| {
            shell.add_client(listener, Origin::default(), &[], connection);
        });
        self.wires.borrow_mut().steady.extend([stdin.as_raw_fd(), stdout.as_raw_fd()]);
        let client = Client::new(self.clients.len(), self.seed, hears, speaks);
        self.clients.push(Client { is_stdio: true, ..client });
        self.stdio = Some((stdin, stdout));
    }

    fn now(&self) -> Duration {
        self.wires.borrow().awake
    }

    fn connects(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        ours.set_nonblocking(true).expect("it is a socket");
        let inode = Some(inode(&theirs));
        self.wires.borrow_mut().connecting.entry(self.door).or_default().push_back(theirs.into());
        let speaks = ours.try_clone().expect("there are descriptors");
        let mut client = Client::new(self.clients.len(), self.seed, ours.into(), speaks.into());
        (client.inode, client.came_in, client.empty_at) = (inode, self.turns, self.now());
        let is_broken = self.random.one_in(8);
        if let Some(required) = self.needs_header
            && (required || self.random.one_in(2))
        {
            if is_broken && self.random.one_in(2) {
                let missing: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n";
                let said = if required && self.random.one_in(2) { missing } else { *self.random.pick(&BROKEN_HEADERS) };
                client.says_its_last(said, None, Some(Reason::ProxyHeader));
                return self.clients.push(client);
            }
            client.todo.extend(*self.random.pick(&HEADERS));
        }
        if self.is_web {
            client.frames = Some(Frames::new(self.random.range(0..usize::MAX) as u64));
            let upgrade = format!("{UPGRADE}\r\n");
            if is_broken {
                let most = BROKEN_UPGRADES.len() - usize::from(!self.has_tokens);
                let (part, other, status) = self.random.pick(&BROKEN_UPGRADES[..most]);
                let upgrade = upgrade.replace(part, other);
                client.says_its_last(
                    upgrade.as_bytes(),
                    Some(Verdict::Status(*status)),
                    Some(Reason::HandshakeRefused),
                );
            } else {
                client.todo.extend(upgrade.bytes());
            }
        }
        self.clients.push(client);
    }

    /// A client takes what is there. If the daemon has closed it, this world has to know why.
    fn reads(&mut self, at: usize, most: usize) -> bool {
        let now = self.now();
        let pulled = self.clients[at].reads(most, now);
        if pulled == Pulled::End {
            if let Err(why) = self.explain(at) {
                let Client { name, asked, verdict, last_word, .. } = &self.clients[at];
                let open = asked.len();
                let counted = Reason::ALL.iter().map(|reason| (reason.name(), self.shell.bus.count(*reason)));
                let counted: Vec<_> = counted.filter(|(_, count)| *count > 0).collect();
                panic!(
                    "{name} was closed {why}, with {open} requests open, told {verdict:?}, after {last_word:?}, \
                     in a world with {:?}; counted: {counted:?}",
                    self.scarcity
                );
            }
            self.clients[at].leaves();
        }
        pulled != Pulled::Nothing
    }

    /// Why the daemon may have closed a client.
    fn explain(&mut self, at: usize) -> Result<(), &'static str> {
        let (client, bus, scarcity) = (&self.clients[at], &self.shell.bus, &self.scarcity);
        let is_broken = client.inode.is_some_and(|inode| self.wires.borrow().broken.contains(&inode));
        if is_broken || bus.stage() > Stage::Running {
            return Ok(());
        }
        // The kernel is late, too: for the daemon, room comes later than it is made.
        let is_late = scarcity.patience.is_some_and(|patience| client.behind >= patience / LATE_PART);
        // Several clients may have used up the patience of a worker that they share.
        let is_slow = self.now() >= SLOW_FOR && client.behind >= BEHIND;
        let was_full = self.full_in.is_some_and(|turn| turn >= client.came_in);
        let wants = [
            (scarcity.has_little_memory, Reason::MemoryLimit),
            (is_late, Reason::ClientStalled),
            (is_slow, Reason::ClientSlow),
            (was_full, Reason::ConnectionLimit),
            (was_full, Reason::ClientIdle),
        ];
        let is_in_want = wants.iter().any(|(may_be, reason)| {
            let may_be_told = match &client.verdict {
                Some(Verdict::Error(told)) => told == reason.told(),
                _ => true,
            };
            *may_be && may_be_told && bus.count(*reason) > 0
        });
        if was_full && client.verdict == Some(Verdict::Status(503)) && bus.count(Reason::HandshakeRefused) > 0 {
            return Ok(());
        }
        let by_itself = match &client.last_word {
            Some(last) if client.sent < last.heard_at => Err("before it had said its last"),
            Some(last) if last.verdict.is_some() && last.verdict != client.verdict => Err("with another verdict"),
            Some(last) if last.reason.is_some_and(|reason| bus.count(reason) == 0) => Err("and that was not counted"),
            Some(_) => Ok(()),
            None if client.speaks.is_some() => Err("without a reason"),
            None if !client.asked.is_empty() => Err("before it had its answers"),
            None => Ok(()),
        };
        if by_itself.is_err() && is_in_want {
            self.closed_for_want += 1;
            return Ok(());
        }
        by_itself
    }

    /// What the daemon has counted is what this world knows of.
    fn check_counts(&self) {
        let (bus, scarcity) = (&self.shell.bus, &self.scarcity);
        let wants = [
            (scarcity.has_little_memory, Reason::MemoryLimit),
            (scarcity.patience.is_some(), Reason::ClientStalled),
            (scarcity.full().is_some(), Reason::ConnectionLimit),
            (scarcity.clients.is_some(), Reason::ClientIdle),
            (self.now() >= SLOW_FOR, Reason::ClientSlow),
            (false, Reason::ClientKilled),
            (false, Reason::NotAllowed),
            (false, Reason::OwnWorkerEnded),
            // Who is closed in an orderly way is heard for a second, and may go on asking.
            (scarcity.has_little_memory || scarcity.clients.is_some(), Reason::ClientOverdue),
            (false, Reason::NoInput),
        ];
        let mut counted = 0;
        for (may_be, reason) in wants {
            assert!(may_be || bus.count(reason) == 0, "{} was counted in a world that has none", reason.name());
            counted += bus.count(reason);
        }
        assert!(self.closed_for_want <= counted, "{} of {counted} that were counted", self.closed_for_want);
        for reason in [Reason::ClientMalformed, Reason::ClientLineTooLong] {
            let said = |client: &&Client| client.last_word.as_ref().is_some_and(|last| last.reason == Some(reason));
            let said = self.clients.iter().filter(said).count() as u64;
            assert!(bus.count(reason) <= said, "{} is counted too often", reason.name());
        }
        // The client of stdin and stdout takes the daemon with it.
        let is_alone = self.stdio.is_some() && counted > 0;
        assert!(is_alone || bus.stage() == Stage::Running, "it has ended without a reason");
    }

    /// An operator comes, or does something.
    fn operator_acts(&mut self, asks: bool) -> bool {
        let Some(door) = self.admin_door else { return false };
        if asks && self.operators.len() < 8 && self.random.one_in(20) {
            let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
            ours.set_nonblocking(true).expect("it is a socket");
            self.wires.borrow_mut().connecting.entry(door).or_default().push_back(theirs.into());
            self.operators.push(Operator { end: Some(ours.into()), asks: VecDeque::new(), came: Vec::new() });
        }
        if self.operators.is_empty() {
            return false;
        }
        let at = self.random.range(0..self.operators.len());
        self.operators[at].acts(&mut self.random, asks)
    }

    /// A worker reads, answers and writes a little, or dies.
    fn worker_acts(&mut self, may_die: bool) -> bool {
        let mut children = self.children.borrow_mut();
        let alive: Vec<usize> = (0..children.workers.len()).filter(|at| !children.workers[*at].is_dead).collect();
        if alive.is_empty() {
            return false;
        }
        let at = *self.random.pick(&alive);
        if may_die && self.random.one_in(150) {
            children.ends(at, Exit::Code(3));
            return true;
        }
        drop(children);
        self.worker_works(at)
    }

    /// It reads, answers and writes a little. False if there was nothing to do.
    fn worker_works(&mut self, at: usize) -> bool {
        let mut children = self.children.borrow_mut();
        let (most_in, most_out) = (self.random.range(1..70_000), self.random.range(1..70_000));
        let worker = &mut children.workers[at];
        let pulled = pull(&worker.stdin, &mut worker.came, most_in);
        let mut moved = pulled == Pulled::Something;
        for line in lines(&mut worker.came) {
            if let (Some(stderr), true) = (&worker.stderr, self.random.one_in(10)) {
                let _ = write(stderr, b"working\nstill ");
            }
            worker.answer(self.seed, at, &line);
        }
        if let Some(stdout) = &worker.stdout {
            moved |= push(stdout, &mut worker.goes, most_out) > 0;
        }
        if pulled == Pulled::End && worker.goes.is_empty() {
            children.ends(at, Exit::Code(0));
            moved = true;
        }
        moved
    }

    fn client_acts(&mut self, asks: bool) -> bool {
        if self.clients.is_empty() {
            return false;
        }
        let now = self.now();
        let at = self.random.range(0..self.clients.len());
        let most = if self.random.one_in(4) { 20 } else { 100_000 };
        let (what, most) = (self.random.range(0..10), self.random.range(1..most));
        if what < 4 {
            return self.reads(at, most);
        }
        let client = &mut self.clients[at];
        let may_speak = client.speaks.is_some() && !client.is_leaving();
        match what {
            ..8 => client.writes(most),
            // If stdin ends, the daemon does.
            _ if asks && !client.is_stdio && !client.is_over() && self.random.one_in(100) => {
                match self.random.range(0..5) {
                    0 | 1 => client.leaves(),
                    2 if may_speak => client.misbehaves(&mut self.random),
                    3 if may_speak && client.says_goodbye() => {}
                    _ if may_speak => client.ends_what_it_says(),
                    _ => {}
                }
                true
            }
            _ if asks && may_speak && client.todo.len() < 300_000 => {
                client.ask(&mut self.random, now);
                true
            }
            _ if client.is_stdio || asks => false,
            _ if may_speak && client.todo.is_empty() && self.random.one_in(10) => {
                // Who needs an answer to know that it is well may never get in while others stay.
                let goes = client.is_well || self.scarcity.keeps_out() && client.asked.is_empty();
                if goes && !(self.random.one_in(2) && client.says_goodbye()) {
                    client.ends_what_it_says();
                }
                goes
            }
            _ => false,
        }
    }

    /// Everybody does what there is to do. False if that is nothing.
    fn all_act(&mut self) -> bool {
        let workers = self.children.borrow().workers.len();
        let mut moved = false;
        for at in 0..workers {
            if !self.children.borrow().workers[at].is_dead {
                moved |= self.worker_works(at);
            }
        }
        for at in 0..self.clients.len() {
            moved |= self.clients[at].writes(1 << 16);
            moved |= self.reads(at, 1 << 16);
        }
        moved
    }

    /// Until `over` says so, with a limit.
    fn runs(&mut self, what: &str, asks: bool, mut over: impl FnMut(&mut Self) -> bool) {
        for _ in 0..LAST_TURN {
            let mut moved = false;
            for _ in 0..self.random.range(0..6) {
                moved |= self.worker_acts(asks);
                moved |= self.client_acts(asks);
                moved |= self.operator_acts(asks);
            }
            // Only when nobody can do anything is it time that has to pass.
            let is_quiet = !asks && !moved && !self.all_act();
            self.wires.borrow_mut().is_quiet = is_quiet;
            let is_done = self.shell.turn().expect("it goes on");
            self.turns += 1;
            if self.scarcity.full().is_some_and(|most| self.shell.bus.stats().clients >= most) {
                self.full_in = Some(self.turns);
            }
            if is_done || over(self) {
                return;
            }
        }
        panic!("it hangs: {what}; {} operations in flight", self.shell.reactor.io.in_flight());
    }

    fn lives(mut self, most_steps: usize) {
        for _ in 0..self.random.range(1..6) {
            self.connects();
        }
        let mut steps = self.random.range(200..STEPS).min(most_steps).max(1);
        self.runs("the beginning", true, |simulation| {
            steps -= 1;
            if simulation.random.one_in(100) && simulation.clients.len() < 12 {
                simulation.connects();
            }
            steps == 0
        });
        self.wires.borrow_mut().is_kind = true;
        self.children.borrow_mut().is_kind = true;
        let now = self.now();
        for client in self.clients.iter_mut().filter(|client| client.speaks.is_some() && !client.is_leaving()) {
            client.asked_in_peace = Some(client.next);
            (0..self.random.range(1..6)).for_each(|_| client.ask(&mut self.random, now));
        }
        self.runs("answers", false, |simulation| simulation.clients.iter().all(Client::is_content));
        // Then nobody needs anything, and nobody is closed for that, however much time passes.
        let mut rest = REST;
        self.runs("rest", false, |simulation| {
            rest = rest.saturating_sub(1);
            rest == 0 && simulation.clients.iter().all(Client::is_content)
        });
        self.check_counts();
        // The end of stdin is the end of the daemon, too.
        let stdin_ends = self.random.one_in(2);
        match self.clients.iter_mut().find(|client| client.is_stdio && client.speaks.is_some() && stdin_ends) {
            Some(client) => client.ends_what_it_says(),
            None => drop(write(&self.stop, b"!")),
        }
        self.runs("the end", false, |_| false);
        assert!(self.shell.reactor.is_done);
        self.wires.borrow_mut().is_prompt = true;
        self.shell.finish();
        assert_eq!((self.shell.reactor.connections.len(), self.shell.reactor.io.lent()), (0, 0), "something is left");
        assert!(self.shell.reactor.handshakes.is_empty(), "somebody waits in the lobby");
        let now = self.now();
        let Self { shell, wires, clients, operators, children, stdio, .. } = self;
        drop(shell);
        drop(stdio);
        // Who was never let in goes with the door.
        wires.borrow_mut().connecting.clear();
        let is_closed = |end: &OwnedFd| loop {
            match pull(end, &mut Vec::new(), 1 << 16) {
                Pulled::Something => {}
                pulled => return pulled == Pulled::End,
            }
        };
        for mut client in clients.into_iter().filter(|client| !client.is_over()) {
            while client.reads(1 << 16, now) == Pulled::Something {}
            assert!(client.hears.as_ref().is_some_and(is_closed), "the connection of {} is still open", client.name);
        }
        for operator in operators {
            assert!(operator.end.as_ref().is_none_or(is_closed), "the connection of an operator is still open");
        }
        for worker in &children.borrow().workers {
            assert!(is_closed(&worker.stdin), "a worker's stdin is still open");
        }
    }
}

/// This part of its patience a client was behind, at least, when the daemon has lost it.
const LATE_PART: u32 = 4;

/// How long a worker that clients share waits for those who read slowly, in all, and what slowly is.
const SLOW_FOR: Duration = Duration::from_millis(500);
const BEHIND: Duration = Duration::from_millis(5);

/// Turns for which nobody asks anything any more, at least.
const REST: usize = 30;

/// Turns of the loop before the kernel becomes kind, at most.
const STEPS: usize = 1500;

/// Tells how to repeat a seed that fails.
struct Repeat {
    seed: u64,
    steps: usize,
}

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, steps } = self;
            eprintln!(
                "repeat it: STDIO_BUS_SHELL_SEED={seed} STDIO_BUS_SHELL_STEPS={steps} cargo test --lib shell::simulation"
            );
        }
    }
}

#[test]
fn every_request_is_answered_and_everything_is_closed_whatever_the_kernel_does() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let seed = number("STDIO_BUS_SHELL_SEED");
    let seeds = number("STDIO_BUS_SHELL_SEEDS").unwrap_or(if seed.is_some() { 1 } else { 256 });
    let steps = number("STDIO_BUS_SHELL_STEPS").map_or(STEPS, |steps| steps as usize);
    let first = seed.unwrap_or(1);
    for seed in first..first + seeds {
        shrink::run(steps, |steps, _| {
            let _repeat = Repeat { seed, steps };
            Simulation::new(seed).lives(steps);
        });
    }
}
