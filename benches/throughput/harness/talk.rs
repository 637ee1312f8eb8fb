//! Clients for any server: they accept lines, frames or HTTP responses in any order, and match each to its request. One
//! thread serves all of them. [`super::load`] costs less per message, but needs to know the length of answers.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use stdio_bus_proto::websocket::Role;
use stdio_bus_proto::websocket::frame::Decoder;

use super::address::Address;
use super::load::{Faults, Traffic};
use super::measure::histogram;
use super::post::{self, Caller};
use super::request::{SESSION_LEN, call, id, plain, request, session, set_id};
use super::web;
use super::worker::{SESSION_BEFORE_STAMP, STAMP_AT, STAMP_LEN, wall_nanos};

/// After this time an outstanding answer counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// All clients of a server.
pub struct Talk {
    address: Address,
    traffic: Traffic,
    /// Requests in flight per client.
    window: usize,
    /// Each request has a connection of its own.
    anew: bool,
    epoll: OwnedFd,
    members: Vec<Member>,
    buffer: Vec<u8>,
    /// Latencies of answers since last taken: for lines of streams, since they were written.
    pub times: Histogram<u64>,
    /// Round trips, or lines of streams.
    pub done: u64,
    /// Wrong or missing answers.
    pub faults: Faults,
}

struct Member {
    socket: Option<OwnedFd>,
    reader: Reader,
    caller: Option<Caller>,
    request: Vec<u8>,
    sent: u64,
    /// Outstanding requests: their numbers and send times.
    under_way: VecDeque<(u64, Instant)>,
    /// Received lines, of which the last may be incomplete.
    lines: Vec<u8>,
}

enum Reader {
    Lines,
    Frames(Box<Decoder>),
    Answers(Box<post::Reading>),
}

/// The kind of a received line.
enum ReceivedLine {
    /// The answer to one of its requests.
    Answer,
    /// One of a stream.
    Part,
    /// Not for this client, or unexpected.
    Foreign,
}

impl Talk {
    /// Connects the clients, and starts sessions over HTTP.
    pub fn connect(address: &Address, traffic: Traffic, clients: usize, window: usize, anew: bool) -> io::Result<Self> {
        let mut talk = Self {
            address: address.clone(),
            traffic,
            window,
            anew,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            members: Vec::new(),
            buffer: vec![0; 64 * 1024],
            times: histogram(),
            done: 0,
            faults: Faults::default(),
        };
        for number in 0..clients {
            let request = match traffic {
                Traffic::Calls { bytes, is_modern } => call(bytes, is_modern),
                Traffic::RoundTrips { bytes } if address.is_web() => plain(bytes),
                Traffic::RoundTrips { bytes } | Traffic::Tokens { bytes, .. } => request(number, bytes),
            };
            let reader = talk.reader();
            let (under_way, lines) = (VecDeque::new(), Vec::new());
            talk.members.push(Member { socket: None, reader, caller: None, request, sent: 0, under_way, lines });
            talk.join(number)?;
        }
        Ok(talk)
    }

    fn reader(&self) -> Reader {
        match self.address {
            Address::Tcp(_) | Address::Unix(_) => Reader::Lines,
            Address::WebSocket { .. } => Reader::Frames(Box::new(Decoder::new(Role::Client, u64::MAX))),
            Address::Http(_) => Reader::Answers(Box::new(post::Reading::new())),
        }
    }

    /// Connects or reconnects a client.
    fn join(&mut self, number: usize) -> io::Result<()> {
        let mut socket = self.address.connect()?;
        let member = &mut self.members[number];
        if let (Address::Http(port), None) = (&self.address, &member.caller) {
            let mut stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(PATIENCE))?;
            let is_modern = matches!(self.traffic, Traffic::Calls { is_modern: true, .. });
            member.caller = Some(Caller::begin(&mut stream, *port, is_modern)?);
            socket = stream.into();
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        epoll::add(&self.epoll, &socket, EventData::new_u64(number as u64), EventFlags::IN)?;
        let reader = self.reader();
        let member = &mut self.members[number];
        (member.socket, member.reader) = (Some(socket), reader);
        member.lines.clear();
        Ok(())
    }

    fn send(&mut self, number: usize, now: Instant) -> io::Result<()> {
        if self.members[number].socket.is_none() {
            self.join(number)?;
        }
        let member = &mut self.members[number];
        set_id(&mut member.request, number, member.sent);
        member.under_way.push_back((id(number, member.sent), now));
        member.sent += 1;
        let line = &member.request[..member.request.len() - 1];
        let bytes = match (&self.address, &member.caller) {
            (Address::Http(port), Some(caller)) => &caller.request(*port, line),
            (Address::WebSocket { .. }, _) => &web::frame(line),
            _ => &member.request,
        };
        let socket = member.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        match rustix::io::write(socket, bytes)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::Error::other("a socket is full")),
        }
    }

    /// Lets all of them send requests for this time, at least one each, until all are answered or nothing more arrives.
    pub fn run(&mut self, time: Duration) -> io::Result<()> {
        let begun = Instant::now();
        if matches!(self.address, Address::Http(_)) {
            // A server may have closed idle connections while others had their turn.
            self.members.iter_mut().for_each(|member| member.socket = None);
        }
        for number in 0..self.members.len() {
            for _ in 0..self.window {
                self.send(number, begun)?;
            }
        }
        let mut progress = (Instant::now(), self.done);
        while self.members.iter().any(|member| !member.under_way.is_empty()) {
            for number in self.wait()? {
                let goes_on = begun.elapsed() < time;
                let answers = self.receive(number)?;
                for _ in 0..answers {
                    if goes_on || self.is_waited_for(number) {
                        self.send(number, Instant::now())?;
                    }
                }
            }
            if self.done != progress.1 {
                progress = (Instant::now(), self.done);
            } else if progress.0.elapsed() > PATIENCE {
                // The next round starts with empty windows.
                let lost = self.members.iter_mut().map(|member| member.under_way.drain(..).count() as u64);
                self.faults.lost += lost.sum::<u64>();
            }
        }
        Ok(())
    }

    /// A worker that streams tokens continues when all its sessions have sent requests: no client may stop before the
    /// others.
    fn is_waited_for(&self, number: usize) -> bool {
        let most = || self.members.iter().map(|member| member.sent).max();
        matches!(self.traffic, Traffic::Tokens { .. }) && Some(self.members[number].sent) < most()
    }

    /// The clients with something to read.
    fn wait(&mut self) -> io::Result<Vec<usize>> {
        let mut events = Vec::with_capacity(128);
        let most = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&most)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().map(|event: &epoll::Event| event.data.u64() as usize).collect())
    }

    /// Receives a client's bytes, and returns how many of its requests they answer.
    fn receive(&mut self, number: usize) -> io::Result<usize> {
        let room = self.buffer.len() - 1;
        let member = &mut self.members[number];
        let Some(socket) = &member.socket else { return Ok(0) };
        let count = match rustix::io::read(socket, &mut self.buffer[..room]) {
            Ok(count) => count,
            Err(Errno::AGAIN) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        match &mut member.reader {
            Reader::Answers(reading) if !member.under_way.is_empty() => {
                if let Some(answer) = reading.read(&self.buffer[..count])? {
                    **reading = post::Reading::new();
                    member.lines.extend_from_slice(answer.text.as_bytes());
                    member.lines.push(b'\n');
                }
            }
            _ if count == 0 => return Err(io::Error::other("the server closed a connection")),
            Reader::Frames(decoder) => {
                let mut pongs = Vec::new();
                let pinged = |payload: &[u8]| pongs.extend_from_slice(&web::pong(payload));
                member.lines.extend_from_slice(web::lines(decoder, &mut self.buffer, count, pinged)?);
                if !pongs.is_empty() {
                    rustix::io::write(socket, &pongs)?;
                }
            }
            Reader::Lines | Reader::Answers(_) => member.lines.extend_from_slice(&self.buffer[..count]),
        }
        let answers = self.sort_lines(number);
        if self.anew && answers > 0 {
            self.members[number].socket = None;
        }
        Ok(answers)
    }

    /// Handles complete lines.
    fn sort_lines(&mut self, number: usize) -> usize {
        let now = Instant::now();
        let member = &mut self.members[number];
        let (mut answers, mut rest) = (0, &member.lines[..]);
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = rest[..end].trim_ascii();
            rest = &rest[end + 1..];
            if line.is_empty() {
                continue;
            }
            match classify(line, number, &mut member.under_way, self.traffic, now, &mut self.times) {
                ReceivedLine::Answer => answers += 1,
                ReceivedLine::Part => self.done += 1,
                ReceivedLine::Foreign => self.faults.misrouted += 1,
            }
        }
        let taken = member.lines.len() - rest.len();
        member.lines.drain(..taken);
        if !matches!(self.traffic, Traffic::Tokens { .. }) {
            self.done += answers as u64;
        }
        answers
    }
}

/// Classifies a line for a client.
fn classify(
    line: &[u8],
    number: usize,
    under_way: &mut VecDeque<(u64, Instant)>,
    traffic: Traffic,
    now: Instant,
    times: &mut Histogram<u64>,
) -> ReceivedLine {
    if let Some(id) = id_of(line) {
        let Some(place) = under_way.iter().position(|(awaited, _)| *awaited == id) else {
            return ReceivedLine::Foreign;
        };
        let sent = under_way.remove(place).map_or(now, |(_, sent)| sent);
        if !matches!(traffic, Traffic::Tokens { .. }) {
            times.saturating_record((now - sent).as_nanos() as u64);
        }
        return ReceivedLine::Answer;
    }
    let session_at = STAMP_AT - SESSION_BEFORE_STAMP;
    if line.get(session_at..session_at + SESSION_LEN) != Some(session(number).as_bytes()) {
        return ReceivedLine::Foreign;
    }
    let stamp = line.get(STAMP_AT..STAMP_AT + STAMP_LEN).and_then(|stamp| std::str::from_utf8(stamp).ok());
    let stamp = stamp.and_then(|stamp| u64::from_str_radix(stamp, 16).ok());
    times.saturating_record(stamp.map_or(0, |stamp| wall_nanos().saturating_sub(stamp)));
    ReceivedLine::Part
}

/// The id of an answer, wherever it is in it.
pub fn id_of(line: &[u8]) -> Option<u64> {
    const KEY: &[u8] = br#""id":"#;
    let value = line[memchr::memmem::find(line, KEY)? + KEY.len()..].trim_ascii_start();
    let digits = value.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(value.len());
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}
