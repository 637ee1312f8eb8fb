//! The shell on a kernel that is made from a seed (`testing/kernel.rs`): short reads and writes, late and reordered
//! completions, operations that fail, freezes of the machine, little memory, workers that cannot be started or die, clients
//! that stop reading, end what they say, or leave, one of them on stdin and stdout, others behind a proxy or in frames of
//! WebSocket, and operators who ask. Every request of a client that stays
//! is answered once, with its own answer or an error; no timeout runs out before its time; in the end nothing is open and
//! no memory is lent.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::{Errno, read, write};
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit};
use serde_json::{Value, json};

use super::acceptor::Acceptor;
use super::admin::Admin;
use super::connection::Connection;
use super::descriptors::Allowance;
use super::listen::Listening;
use super::signals::Signals;
use super::workers::processes::Processes;
use super::workers::spawn::Spawned;
use super::{Ground, Shell};
use crate::bus::port::{Exit, Origin, Signal, WorkerKey};
use crate::bus::settings::{Proxies, Proxy};
use crate::config::{Config, Listen, Listener, Pool, Web};
use crate::io::Io;
use crate::testing::kernel::{Kernel, Wires};
use crate::testing::{Random, shrink};
use crate::websocket::frame::{Decoder, Event, Received};
use crate::websocket::{Mask, Role, encode};

/// Turns after which a simulation that is not over has hung.
const LAST_TURN: usize = 200_000;

/// Bytes on their way through a pipe of the simulation.
fn push(to: &OwnedFd, queue: &mut VecDeque<u8>, most: usize) -> bool {
    let bytes = queue.make_contiguous();
    match write(to, &bytes[..bytes.len().min(most)]) {
        Ok(written) => {
            queue.drain(..written);
            written > 0
        }
        Err(_) => false,
    }
}

/// Takes what is there. True at the end.
fn pull(from: &OwnedFd, into: &mut Vec<u8>, most: usize) -> (bool, bool) {
    let mut bytes = vec![0; most];
    match read(from, &mut bytes) {
        Ok(0) => (false, true),
        Ok(count) => {
            into.extend_from_slice(&bytes[..count]);
            (true, false)
        }
        Err(Errno::AGAIN | Errno::INTR) => (false, false),
        Err(_) => (false, true),
    }
}

fn lines(buffer: &mut Vec<u8>) -> Vec<Value> {
    let Some(end) = memchr::memrchr(b'\n', buffer) else { return Vec::new() };
    let rest = buffer.split_off(end + 1);
    let whole = std::mem::replace(buffer, rest);
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("only whole lines of JSON arrive")).collect()
}

struct Worker {
    key: WorkerKey,
    stdin: OwnedFd,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    came: Vec<u8>,
    goes: VecDeque<u8>,
    is_dead: bool,
}

/// What the shell does to processes, and what becomes of it.
struct Children {
    random: Random,
    workers: Vec<Worker>,
    dead: VecDeque<(WorkerKey, Exit)>,
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

impl Processes for Rc<RefCell<Children>> {
    fn spawn(&mut self, worker: WorkerKey, _: &Pool, _: &Rlimit) -> io::Result<Spawned> {
        let mut children = self.borrow_mut();
        if !children.is_kind && children.random.one_in(6) {
            return Err(io::Error::from_raw_os_error(*children.random.pick(&[libc::EAGAIN, libc::EMFILE])));
        }
        let (stdin_theirs, stdin) = pipe()?;
        let (stdout, stdout_theirs) = pipe()?;
        let (stderr, stderr_theirs) = pipe()?;
        children.next_pid += 1;
        let pid = children.next_pid;
        children.workers.push(Worker {
            key: worker,
            stdin: stdin_theirs,
            stdout: Some(stdout_theirs),
            stderr: Some(stderr_theirs),
            came: Vec::new(),
            goes: VecDeque::new(),
            is_dead: false,
        });
        Ok(Spawned { pid, stdin, stdout, stderr })
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
    length: usize,
    /// When, on a clock that stands still while the machine does.
    at: Duration,
}

/// What a client has that speaks WebSocket.
struct Frames {
    /// What has come and is not decoded; the answer to its request first.
    raw: Vec<u8>,
    is_open: bool,
    decoder: Decoder,
    random: Random,
    /// It has said that it leaves.
    said_goodbye: bool,
}

/// What such a client says first.
const UPGRADE: &str = "GET /acp HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

impl Frames {
    fn new(seed: u64) -> Self {
        Self {
            raw: Vec::new(),
            is_open: false,
            decoder: Decoder::new(Role::Client, 1 << 30),
            random: Random::new(seed),
            said_goodbye: false,
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
            if head.starts_with("HTTP/1.1 503 ") {
                return true;
            }
            assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
            self.raw.drain(..end + 4);
            self.is_open = true;
        }
        let length = self.raw.len();
        self.raw.push(0);
        let mut received = Received::new(&mut self.raw, length);
        let mut is_over = false;
        let mut pings = Vec::new();
        while let Some(event) = self.decoder.next(&mut received) {
            match event {
                Event::Text { .. } => {}
                Event::Pong(payload) => assert_eq!(payload, b"are you there"),
                Event::Ping(payload) => pings.push(payload.to_vec()),
                Event::Close { code, .. } => {
                    assert!(matches!(code, Some(1000 | 1001 | 1008 | 1013)), "{code:?}");
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
    /// None once it has left, or its connection has ended.
    hears: Option<OwnedFd>,
    /// None once it has said all that it wants to.
    speaks: Option<OwnedFd>,
    is_stdio: bool,
    /// The first request that it asked when nothing failed any more, and whether one from then on was answered.
    asked_in_peace: Option<u64>,
    is_well: bool,
    /// It ended what it says when it was well.
    waits_for_the_rest: bool,
    todo: VecDeque<u8>,
    came: Vec<u8>,
    asked: HashMap<u64, Asked>,
    next: u64,
    answers: usize,
    frames: Option<Frames>,
}

impl Client {
    fn new(name: usize, hears: OwnedFd, speaks: OwnedFd, is_stdio: bool) -> Self {
        Self {
            name,
            hears: Some(hears),
            speaks: Some(speaks),
            is_stdio,
            asked_in_peace: None,
            is_well: false,
            waits_for_the_rest: false,
            todo: VecDeque::new(),
            came: Vec::new(),
            asked: HashMap::new(),
            next: 0,
            answers: 0,
            frames: None,
        }
    }

    fn is_over(&self) -> bool {
        self.hears.is_none()
    }

    fn leaves(&mut self) {
        (self.hears, self.speaks) = (None, None);
    }

    /// It has nothing more to say, and hears what is left.
    fn ends_what_it_says(&mut self) {
        if let Some(frames) = &mut self.frames {
            // There is no half of a WebSocket.
            frames.said_goodbye = true;
            self.asked.clear();
        }
        if let Some(end) = self.speaks.take()
            && !self.is_stdio
        {
            shutdown(end, Shutdown::Write).expect("it is a socket");
        }
    }

    fn reads(&mut self, most: usize, now: Duration) -> bool {
        let Some(end) = &self.hears else { return false };
        let (moved, ended) = match &mut self.frames {
            Some(frames) => {
                let (moved, ended) = pull(end, &mut frames.raw, most);
                // Nothing comes behind a close frame but the end.
                let is_over = frames.read(&mut self.came, &mut self.todo);
                (moved, ended || is_over)
            }
            None => pull(end, &mut self.came, most),
        };
        self.check(now);
        if ended {
            self.leaves();
            assert!(!self.waits_for_the_rest || self.asked.is_empty(), "{} was not told the rest", self.name);
        }
        moved || ended
    }

    fn writes(&mut self, most: usize) -> bool {
        self.speaks.as_ref().is_some_and(|end| push(end, &mut self.todo, most))
    }

    fn ask(&mut self, random: &mut Random, now: Duration) {
        let size = *random.pick(&[0, 10, 200, 3000, 20_000, 90_000]);
        let text = "x".repeat(random.range(0..size + 1));
        let id = self.next;
        self.next += 1;
        self.asked.insert(id, Asked { length: text.len(), at: now });
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": "m", "params": { "who": self.name, "text": text } });
        match &mut self.frames {
            Some(frames) => self.todo.extend(frames.message(line.to_string().as_bytes())),
            None => self.todo.extend(format!("{line}\n").as_bytes()),
        }
    }

    /// It says that it leaves, in the way of WebSocket. False if that is not its way.
    fn says_goodbye(&mut self) -> bool {
        let Some(frames) = &mut self.frames else { return false };
        if !std::mem::replace(&mut frames.said_goodbye, true) {
            let mask = frames.mask();
            self.todo.extend(encode::close(Some(1000), "", Some(mask)).iter());
            self.asked.clear();
        }
        true
    }

    /// Whether it has said that it leaves.
    fn is_leaving(&self) -> bool {
        self.frames.as_ref().is_some_and(|frames| frames.said_goodbye)
    }

    fn check(&mut self, now: Duration) {
        for line in lines(&mut self.came) {
            let Some(id) = line["id"].as_u64() else {
                assert!(line["error"].is_object(), "{line}");
                continue;
            };
            if self.is_leaving() {
                continue;
            }
            let asked = self.asked.remove(&id).unwrap_or_else(|| panic!("{} was not asked: {line}", self.name));
            self.answers += 1;
            if line["error"].is_null() {
                self.is_well |= self.asked_in_peace.is_some_and(|first| id >= first);
                assert_eq!(line["result"]["who"], self.name, "an answer went to another client");
                assert_eq!(line["result"]["text"].as_str().map(str::len), Some(asked.length));
            } else if line["error"]["data"]["reason"] == "timeout" {
                assert!(now - asked.at >= REQUEST_TIMEOUT, "a timeout ran out after {:?}", now - asked.at);
            }
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
            4..10 => push(end, &mut self.asks, random.range(1..300)),
            _ => {
                let (moved, ended) = pull(end, &mut self.came, random.range(1..20_000));
                assert!(self.came.len() < 9 || self.came.starts_with(b"HTTP/1.1 "), "an answer is HTTP");
                if ended {
                    self.end = None;
                }
                moved || ended
            }
        }
    }
}

struct Simulation {
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
    /// Clients may be closed because of that.
    has_little_memory: bool,
    /// Clients come with PROXY headers: all of them if that is true.
    needs_header: Option<bool>,
    /// Clients that connect speak WebSocket.
    is_web: bool,
}

/// What proxies say before their clients.
const HEADERS: [&[u8]; 3] = [
    b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13\xc0\0\x02\x07\xc0\0\x02\x01\x9c\x40\x23\x28\x05\0\x04uuid",
    b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
];

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

fn config(random: &mut Random) -> Config {
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
    config.listeners[0].web = random.one_in(3).then(|| Web { ping, ..Web::default() });
    config.listeners.extend(random.one_in(3).then(|| Listener::open(Listen::Stdio)));
    if random.one_in(3) {
        config.limits.max_memory = random.range(1..4) << 20;
    }
    config
}

impl Simulation {
    fn new(seed: u64) -> Self {
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
            bell,
            next_pid: 1000,
            is_kind: false,
        }));
        let socket: OwnedFd = pair().0.into();
        let door = socket.as_raw_fd();
        let mut listening = Listening::nowhere(socket, "a seed");
        listening.is_inherited = seed.is_multiple_of(3);
        let acceptor = Acceptor::new(listening);
        let signals = Signals { children: children_ours.into(), stop: stop_ours.into() };
        let kernel = Kernel::new(seed, Rc::clone(&wires));
        let descriptors =
            Allowance { of_workers: getrlimit(Resource::Nofile), fewer_clients: None, lobby: super::lobby::MOST };
        wires.borrow_mut().steady = vec![signals.children.as_raw_fd(), signals.stop.as_raw_fd()];
        let mut random = Random::new(seed ^ 0xc11e);
        let config = config(&mut random);
        let stdio = config.listeners.iter().position(|listener| matches!(listener.listen, Listen::Stdio));
        // Less than the least that can be configured: some clients are more than it takes.
        let has_little_memory = config.limits.max_memory < 16 << 20;
        let needs_header = config.listeners[0].entry.proxy.as_ref().map(|proxy| proxy.required);
        let is_web = config.listeners[0].web.is_some();
        let of_admin: Option<OwnedFd> = random.one_in(2).then(|| pair().0.into());
        let admin_door = of_admin.as_ref().map(AsRawFd::as_raw_fd);
        let of_admin = of_admin.into_iter().map(|socket| Acceptor::new(Listening::nowhere(socket, "a seed")));
        let admin = Admin::new(&config, of_admin.collect(), &[]);
        let children_of_shell = Box::new(Rc::clone(&children));
        let ground = Ground { signals, descriptors, instead: None };
        let mut shell = Shell::new(config, kernel, children_of_shell, ground, vec![acceptor], admin);
        shell.open_doors(None);
        let mut simulation = Self {
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
            has_little_memory,
            needs_header,
            is_web,
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
        let connection = |peer| Connection { aside, ..Connection::stdio(peer, reader, writer) };
        self.shell.add_client(listener, Origin::default(), &[], connection);
        self.wires.borrow_mut().steady.extend([stdin.as_raw_fd(), stdout.as_raw_fd()]);
        self.clients.push(Client::new(self.clients.len(), hears, speaks, true));
        self.stdio = Some((stdin, stdout));
    }

    fn now(&self) -> Duration {
        self.wires.borrow().awake
    }

    fn connects(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        ours.set_nonblocking(true).expect("it is a socket");
        self.wires.borrow_mut().connecting.entry(self.door).or_default().push_back(theirs.into());
        let speaks = ours.try_clone().expect("there are descriptors");
        let mut client = Client::new(self.clients.len(), ours.into(), speaks.into(), false);
        if let Some(required) = self.needs_header
            && (required || self.random.one_in(2))
        {
            client.todo.extend(*self.random.pick(&HEADERS));
        }
        if self.is_web {
            client.todo.extend(UPGRADE.bytes());
            client.frames = Some(Frames::new(self.random.range(0..usize::MAX) as u64));
        }
        self.clients.push(client);
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
        let (mut moved, ended) = pull(&worker.stdin, &mut worker.came, most_in);
        for line in lines(&mut worker.came) {
            if let (Some(stderr), true) = (&worker.stderr, self.random.one_in(10)) {
                let _ = write(stderr, b"working\nstill ");
            }
            let answer = json!({ "jsonrpc": "2.0", "id": line["id"], "result": line["params"] });
            worker.goes.extend(format!("{answer}\n").as_bytes());
        }
        if let Some(stdout) = &worker.stdout {
            moved |= push(stdout, &mut worker.goes, most_out);
        }
        if ended && worker.goes.is_empty() {
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
        let client = &mut self.clients[at];
        let most = if self.random.one_in(4) { 20 } else { 100_000 };
        let (what, most) = (self.random.range(0..10), self.random.range(1..most));
        match what {
            0..4 => client.reads(most, now),
            4..8 => client.writes(most),
            _ if asks && client.speaks.is_some() && client.todo.len() < 300_000 && !client.is_leaving() => {
                client.ask(&mut self.random, now);
                true
            }
            // If stdin ends, the daemon does.
            _ if client.is_stdio || client.is_over() => false,
            _ if asks && self.random.one_in(60) => {
                match self.random.range(0..4) {
                    0 if client.speaks.is_some() && client.says_goodbye() => {}
                    0 | 1 => client.leaves(),
                    _ => client.ends_what_it_says(),
                }
                true
            }
            _ if client.is_well && client.speaks.is_some() && client.todo.is_empty() && self.random.one_in(10) => {
                client.waits_for_the_rest = !self.has_little_memory && client.frames.is_none();
                client.ends_what_it_says();
                true
            }
            _ => false,
        }
    }

    /// Everybody does what there is to do. False if that is nothing.
    fn all_act(&mut self) -> bool {
        let (workers, now) = (self.children.borrow().workers.len(), self.now());
        let mut moved = false;
        for at in 0..workers {
            if !self.children.borrow().workers[at].is_dead {
                moved |= self.worker_works(at);
            }
        }
        for client in &mut self.clients {
            moved |= client.writes(1 << 16);
            moved |= client.reads(1 << 16, now);
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
            if self.shell.turn().expect("it goes on") || over(self) {
                return;
            }
        }
        panic!("it hangs: {what}; {} operations in flight", self.shell.hands.io.in_flight());
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
        self.runs("answers", false, |simulation| {
            simulation.clients.iter().all(|client| {
                client.is_over() || client.speaks.is_some() && client.asked.is_empty() && client.todo.is_empty()
            })
        });
        // The end of stdin is the end of the daemon, too.
        let stdin_ends = self.random.one_in(2);
        match self.clients.iter_mut().find(|client| client.is_stdio && client.speaks.is_some() && stdin_ends) {
            Some(client) => client.ends_what_it_says(),
            None => drop(write(&self.stop, b"!")),
        }
        self.runs("the end", false, |_| false);
        assert!(self.shell.hands.done);
        self.wires.borrow_mut().is_prompt = true;
        self.shell.finish();
        assert_eq!((self.shell.hands.connections.len(), self.shell.hands.io.lent()), (0, 0), "something is left");
        assert!(self.shell.hands.lobby.is_empty(), "somebody waits in the lobby");
        let Self { shell, wires, clients, operators, children, stdio, .. } = self;
        drop(shell);
        drop(stdio);
        // Who was never let in goes with the door.
        wires.borrow_mut().connecting.clear();
        for mut client in clients {
            let Some(end) = client.hears.take() else { continue };
            while let (true, _) = pull(&end, &mut client.came, 1 << 16) {}
            assert!(pull(&end, &mut client.came, 1).1, "the connection of {} is still open", client.name);
        }
        for mut operator in operators {
            let Some(end) = operator.end.take() else { continue };
            while let (true, _) = pull(&end, &mut operator.came, 1 << 16) {}
            assert!(pull(&end, &mut operator.came, 1).1, "the connection of an operator is still open");
        }
        for worker in &children.borrow().workers {
            let mut rest = Vec::new();
            while let (true, _) = pull(&worker.stdin, &mut rest, 1 << 16) {}
            assert!(pull(&worker.stdin, &mut rest, 1).1, "a worker's stdin is still open");
        }
    }
}

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
