//! The clients: many connections on one thread, with minimal work per message. All answers of a case have the same
//! length, so they are split by counting; each one's id and position are checked.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::address::{Address, Transport};
use super::measure::histogram;
use super::request::{HEAD, ID_LEN, IDS, SESSION_LEN, call, id, request, session, set_id};
use super::server::Contestant;
use super::worker::{SESSION_BEFORE_STAMP, STAMP_AT, STAMP_LEN, wall_nanos};
use super::{post, web};

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Each request is answered; both have this length.
    RoundTrips {
        /// Including the newline.
        bytes: usize,
    },
    /// The same with MCP calls.
    Calls {
        /// Including the newline.
        bytes: usize,
        /// Of revision 2026-07-28.
        is_modern: bool,
    },
    /// Each request is answered with this many notifications of the session, and then with a result.
    Tokens {
        /// Lines per request.
        lines: u64,
        /// Of one line, including the newline.
        bytes: usize,
    },
}

/// A measured case: the number of clients, messages in flight, their size, the transport, and the workers.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in the table and on the command line.
    pub name: &'static str,
    /// The transport of the clients.
    pub transport: Transport,
    /// Connections, each with one session.
    pub clients: usize,
    /// Additional silent connections.
    pub idle: usize,
    /// Requests in flight per client.
    pub window: usize,
    /// Workers of the only pool.
    pub workers: usize,
    pub traffic: Traffic,
    /// Whether a client gathers the requests that it can send at once into one write, as a gateway does; otherwise each
    /// request is a write of its own.
    pub gathered: bool,
    /// Whether daemon, workers and clients share a CPU: for cases in which only one of them is ever awake.
    pub one_cpu: bool,
    /// Whether the kernel chooses the CPU of each process.
    pub unpinned: bool,
    /// Stop after this many round trips in total; none means after a time.
    pub total: Option<u64>,
}

impl Case {
    /// Whether each client has a worker of its own, so that bytes can be forwarded without parsing.
    pub fn is_one_to_one(&self) -> bool {
        self.clients == self.workers
    }

    /// Whether answers are streams of tokens.
    pub fn is_tokens(&self) -> bool {
        matches!(self.traffic, Traffic::Tokens { .. })
    }
}

/// Wrong or missing answers. All counts must stay zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests without an answer.
    pub lost: u64,
    /// Lines for another client.
    pub misrouted: u64,
    /// Answers out of order within a session.
    pub reordered: u64,
}

impl Faults {
    /// Adds them up.
    pub fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.misrouted += other.misrouted;
        self.reordered += other.reordered;
    }
}

impl std::fmt::Display for Faults {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self { lost: 0, misrouted: 0, reordered: 0 } => write!(out, "0"),
            Self { lost, misrouted, reordered } => {
                write!(out, "{lost} lost, {misrouted} misrouted, {reordered} reordered")
            }
        }
    }
}

/// The encoding of a line in transit: plain, a frame, or an HTTP body.
struct Wrap {
    /// Bytes before a request.
    request_head: usize,
    /// The mask byte of each digit of a request's id.
    id_mask: [u8; ID_LEN],
    /// The header of an answer.
    head: Vec<u8>,
    /// The length of an answer including it.
    length: usize,
    /// The last byte of an answer.
    end: u8,
}

impl Wrap {
    /// For lines of these lengths, including newlines, at this address, where a request's line starts at
    /// `request_head`.
    fn new(request_head: usize, answer: usize, address: &Address) -> Self {
        let (head, id_mask) = match address {
            Address::Tcp(_) | Address::Unix(_) => {
                return Self { request_head, id_mask: [0; ID_LEN], head: Vec::new(), length: answer, end: b'\n' };
            }
            // The newline is part of neither a frame nor a body.
            Address::WebSocket { .. } => {
                (web::head_of_answer(answer - 1), std::array::from_fn(|digit| web::mask_of(HEAD.len() + digit)))
            }
            Address::Http(_) => (post::head_of_answer(answer - 1), [0; ID_LEN]),
        };
        Self { request_head, id_mask, length: head.len() + answer - 1, head, end: b'}' }
    }
}

/// All clients of a case.
pub struct Load {
    case: Case,
    /// Whether the contents of token lines are checked: the relay only counts.
    strict: bool,
    /// The encoding of lines.
    wrap: Wrap,
    /// The address to reconnect to, if each request has a connection of its own.
    again: Option<Address>,
    epoll: OwnedFd,
    clients: Vec<Client>,
    /// Kept open.
    _idle: Vec<OwnedFd>,
    buffer: Vec<u8>,
    sending: bool,
    /// The highest number of requests that any client of each worker has sent.
    sent_to: Vec<u64>,
    faults: Faults,
    /// Completed round trips or token lines.
    pub done: u64,
    sent: u64,
    answered: u64,
    /// Their latencies since last taken.
    pub times: Histogram<u64>,
}

struct Client {
    socket: OwnedFd,
    session: String,
    request: Vec<u8>,
    sent: u64,
    answered: u64,
    /// Token lines since the last answer.
    lines: u64,
    /// The send time of each request in flight, by its number modulo the window.
    stamps: Vec<Instant>,
    /// The beginning of an incomplete answer.
    line: Vec<u8>,
    /// How much of it was received; only its first bytes are kept.
    received: usize,
    out: Vec<u8>,
    written: usize,
    waits_to_write: bool,
}

/// After this time an outstanding answer counts as lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// How much of a line the checks need.
const KEPT: usize = 256;

impl Client {
    /// Writes as much of the request as the socket accepts.
    fn write_at_once(&self) -> io::Result<usize> {
        match rustix::io::write(&self.socket, &self.request) {
            Err(Errno::AGAIN) => Ok(0),
            other => Ok(other?),
        }
    }
}

/// A request encoded for this address.
fn as_sent(socket: OwnedFd, mut line: Vec<u8>, address: &Address, traffic: Traffic) -> io::Result<(OwnedFd, Vec<u8>)> {
    match address {
        Address::Tcp(_) | Address::Unix(_) => Ok((socket, line)),
        Address::WebSocket { .. } => Ok((socket, web::frame(&line[..line.len() - 1]))),
        Address::Http(port) => {
            let mut stream = TcpStream::from(socket);
            let is_modern = matches!(traffic, Traffic::Calls { is_modern: true, .. });
            let caller = post::Caller::begin(&mut stream, *port, is_modern)?;
            line.truncate(line.len() - 1);
            Ok((stream.into(), caller.request(*port, &line)))
        }
    }
}

impl Load {
    /// Connects all clients, and does WebSocket handshakes or starts HTTP sessions.
    pub fn connect(case: &Case, address: &Address, contestant: Contestant) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (request_bytes, answer_bytes) = match case.traffic {
            Traffic::RoundTrips { bytes } | Traffic::Calls { bytes, .. } => (bytes, bytes),
            Traffic::Tokens { bytes, .. } => (200, bytes),
        };
        let mut clients: Vec<Client> = Vec::new();
        for number in 0..case.clients {
            let socket = address.connect()?;
            let line = match case.traffic {
                Traffic::Calls { bytes, is_modern } => call(bytes, is_modern),
                _ => request(number, request_bytes),
            };
            let (socket, request) = as_sent(socket, line, address, case.traffic)?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            epoll::add(&epoll, &socket, EventData::new_u64(number as u64), EventFlags::IN)?;
            clients.push(Client {
                socket,
                session: session(number),
                request,
                sent: 0,
                answered: 0,
                lines: 0,
                stamps: vec![Instant::now(); case.window],
                line: Vec::with_capacity(KEPT),
                received: 0,
                out: Vec::new(),
                written: 0,
                waits_to_write: false,
            });
        }
        let sent = clients.first().map_or(0, |client| client.request.len());
        let length = request_bytes - usize::from(address.is_web() || address.is_http());
        let wrap = Wrap::new(sent.saturating_sub(length), answer_bytes, address);
        let idle = (0..case.idle).map(|_| address.connect()).collect::<io::Result<_>>()?;
        Ok(Self {
            case: *case,
            _idle: idle,
            strict: contestant != Contestant::Relay,
            wrap,
            again: contestant.comes_anew().then(|| address.clone()),
            epoll,
            clients,
            buffer: vec![0; 256 * 1024],
            sending: false,
            sent_to: vec![0; case.workers],
            faults: Faults::default(),
            done: 0,
            sent: 0,
            answered: 0,
            times: histogram(),
        })
    }

    /// Fills every window.
    pub fn start(&mut self) -> io::Result<()> {
        self.sending = true;
        let now = Instant::now();
        for number in 0..self.clients.len() {
            self.refill(number, now)?;
            if self.sent <= self.clients.len() as u64 && self.case.is_tokens() {
                // Sessions are assigned to workers in the order of their first requests.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Runs the clients until `done` returns true, which is called after every turn.
    pub fn run(&mut self, mut done: impl FnMut(&Self, Instant) -> bool) -> io::Result<()> {
        let mut events = Vec::with_capacity(1024);
        let mut last_progress = (Instant::now(), self.done);
        loop {
            events.clear();
            let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let flags = event.flags;
                let number = event.data.u64() as usize;
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.receive(number)?;
                }
                if flags.contains(EventFlags::OUT) {
                    self.write(number)?;
                }
            }
            let now = Instant::now();
            if done(self, now) {
                return Ok(());
            }
            if self.done != last_progress.1 {
                last_progress = (now, self.done);
            } else if now - last_progress.0 > PATIENCE {
                return Err(io::Error::other("no answer for half a second"));
            }
        }
    }

    /// Sends nothing new, waits for outstanding answers, and returns the faults so far.
    pub fn finish(&mut self) -> io::Result<Faults> {
        self.sending = false;
        let mut progress = (Instant::now(), self.done);
        // A timeout is what is being counted.
        let _ = self.run(|load, now| {
            if load.done != progress.1 {
                progress = (now, load.done);
            }
            load.answered == load.sent || now - progress.0 > PATIENCE
        });
        let lost = self.sent - self.answered;
        // Lost answers no longer count as outstanding; the next round starts with empty windows.
        self.answered = self.sent;
        self.clients.iter_mut().for_each(|client| client.answered = client.sent);
        Ok(Faults { lost, ..std::mem::take(&mut self.faults) })
    }

    fn receive(&mut self, number: usize) -> io::Result<()> {
        loop {
            let count = match rustix::io::read(&self.clients[number].socket, &mut self.buffer) {
                Ok(0) => return Err(io::Error::other("the daemon closed a connection")),
                Ok(count) => count,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            let buffer = std::mem::take(&mut self.buffer);
            self.take(number, &buffer[..count], now);
            self.buffer = buffer;
            if self.sending || self.is_waited_for(number) {
                self.refill(number, now)?;
            }
            if count < self.buffer.len() {
                break;
            }
        }
        Ok(())
    }

    /// A worker that streams tokens continues when all its sessions have sent requests: no client may stop before the
    /// others.
    fn is_waited_for(&self, number: usize) -> bool {
        let sent_to = self.sent_to[number % self.case.workers];
        self.case.is_tokens() && self.clients[number].sent < sent_to
    }

    /// Splits received bytes into answers.
    fn take(&mut self, number: usize, mut bytes: &[u8], now: Instant) {
        let length = self.wrap.length;
        while !bytes.is_empty() {
            let client = &mut self.clients[number];
            if client.received == 0 && bytes.len() >= length {
                let (line, rest) = bytes.split_at(length);
                bytes = rest;
                self.check(number, &line[..length.min(KEPT)], line[length - 1], now);
                continue;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(length - client.received));
            bytes = rest;
            client.received += part.len();
            let room = KEPT - client.line.len();
            client.line.extend_from_slice(&part[..part.len().min(room)]);
            if client.received == length {
                client.received = 0;
                let line = std::mem::take(&mut client.line);
                self.check(number, &line, part[part.len() - 1], now);
                self.clients[number].line = line;
                self.clients[number].line.clear();
            }
        }
    }

    /// Checks a complete line, of which `line` is the beginning, after its header.
    fn check(&mut self, number: usize, line: &[u8], last: u8, now: Instant) {
        let (head, line) = line.split_at(self.wrap.head.len());
        let is_whole = head == self.wrap.head && last == self.wrap.end;
        let client = &mut self.clients[number];
        self.done += 1;
        if let Traffic::Tokens { lines, .. } = self.case.traffic
            && client.lines < lines
        {
            client.lines += 1;
            let stamp = std::str::from_utf8(&line[STAMP_AT..STAMP_AT + STAMP_LEN]);
            let stamp = stamp.ok().and_then(|text| u64::from_str_radix(text, 16).ok());
            self.times.saturating_record(stamp.map_or(0, |stamp| wall_nanos().saturating_sub(stamp)));
            let start = STAMP_AT - SESSION_BEFORE_STAMP;
            if self.strict && line[start..start + SESSION_LEN] != *client.session.as_bytes() {
                self.faults.misrouted += 1;
            }
            return;
        }
        client.lines = 0;
        self.answered += 1;
        let expected = id(number, client.answered);
        let sent = client.stamps[(client.answered % self.case.window as u64) as usize];
        client.answered += 1;
        if !self.case.is_tokens() {
            self.times.saturating_record((now - sent).as_nanos() as u64);
        } else if !self.strict {
            return;
        }
        let digits = &line[HEAD.len()..HEAD.len() + ID_LEN];
        let found = digits.iter().fold(0, |id, digit| id * 10 + u64::from(digit.wrapping_sub(b'0')));
        if found != expected || !is_whole {
            if found / IDS == expected / IDS { self.faults.reordered += 1 } else { self.faults.misrouted += 1 }
        }
    }

    fn refill(&mut self, number: usize, now: Instant) -> io::Result<()> {
        let client = &mut self.clients[number];
        let window = self.case.window as u64;
        if client.sent - client.answered == window {
            return Ok(());
        }
        while client.sent - client.answered < window && self.case.total.is_none_or(|total| self.sent < total) {
            let line = &mut client.request[self.wrap.request_head..];
            set_id(line, number, client.sent);
            for (digit, mask) in line[HEAD.len()..].iter_mut().zip(self.wrap.id_mask) {
                *digit ^= mask;
            }
            if let Some(address) = self.again.as_ref().filter(|_| client.sent > 0) {
                client.socket = address.connect_nonblocking()?;
                epoll::add(&self.epoll, &client.socket, EventData::new_u64(number as u64), EventFlags::IN)?;
            }
            client.stamps[(client.sent % window) as usize] = now;
            client.sent += 1;
            self.sent += 1;
            let sent_to = &mut self.sent_to[number % self.case.workers];
            *sent_to = client.sent.max(*sent_to);
            let at_once = if client.out.is_empty() && !self.case.gathered { client.write_at_once()? } else { 0 };
            client.out.extend_from_slice(&client.request[at_once..]);
        }
        if client.waits_to_write || client.out.is_empty() { Ok(()) } else { self.write(number) }
    }

    fn write(&mut self, number: usize) -> io::Result<()> {
        let client = &mut self.clients[number];
        while client.written < client.out.len() {
            match rustix::io::write(&client.socket, &client.out[client.written..]) {
                Ok(count) => client.written += count,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let blocked = client.written < client.out.len();
        if !blocked {
            client.out.clear();
            client.written = 0;
        }
        if blocked != client.waits_to_write {
            client.waits_to_write = blocked;
            let flags = if blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, client.socket.as_fd(), EventData::new_u64(number as u64), flags)?;
        }
        Ok(())
    }
}
