//! The clients of the simulation, over a plain connection or WebSocket: they send requests, check the answers, stop
//! reading, half-close, misbehave, or leave.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use serde_json::Value;

use super::lines::{LONGEST_TEXT, Pulled, SimRequest, lines, number, pull, push, shown, token};
use crate::bus::port::Reason;
use crate::testing::Random;
use crate::websocket::frame::{Decoder, FrameEvent, Received};
use crate::websocket::{Mask, Role, encode};

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// An unanswered request of a client.
pub(super) struct Unanswered {
    pub(super) request: SimRequest,
    /// When it was sent, on a clock that stops while the machine is suspended.
    pub(super) at: Duration,
    /// It counts as sent once this many bytes have left its client.
    pub(super) ends_at: usize,
}

/// How the daemon reports a client's violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientVerdict {
    /// An HTTP status.
    Status(u16),
    /// The reason in an error without a request.
    Error(String),
    /// The code of a close frame.
    Code(u16),
}

/// A client's final bytes, for which it is closed.
#[derive(Debug)]
pub(super) struct LastWord {
    /// It may be answered once this many bytes were sent: the first byte may show what is wrong.
    pub(super) last_word_at: usize,
    /// The expected report, if there is one, and the reason that is counted, if it is known.
    pub(super) verdict: Option<ClientVerdict>,
    pub(super) reason: Option<Reason>,
}

/// The state of a WebSocket client.
pub(super) struct Frames {
    /// Received bytes that are not decoded; first the response to its request.
    pub(super) raw: Vec<u8>,
    pub(super) is_open: bool,
    pub(super) decoder: Decoder,
    pub(super) random: Random,
    /// The last report to it.
    pub(super) verdict: Option<ClientVerdict>,
}

/// A valid token.
pub(super) const TOKEN: &str = "0123456789abcdef";

/// The handshake of such a client.
pub(super) const UPGRADE: &str = "GET /acp HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer 0123456789abcdef\r\n";

/// Invalid variants of it, with the expected status.
pub(super) const BROKEN_UPGRADES: [(&str, &str, u16); 9] = [
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

/// Invalid frames, with the expected close codes.
pub(super) const BROKEN_FRAMES: [(&[u8], u16); 8] = [
    (b"\x81\x02{}", 1002),
    (b"\xc1\x80\0\0\0\0", 1002),
    (b"\x83\x80\0\0\0\0", 1002),
    (b"\x80\x80\0\0\0\0", 1002),
    (b"\x09\x80\0\0\0\0", 1002),
    (b"\x88\x81\0\0\0\0\x03", 1002),
    (b"\x81\xff\0\0\0\0\x7f\0\0\0\0\0\0\0", 1009),
    (b"\x81\x84\0\0\0\0{\"\xff\"", 1007),
];

/// Lines that are not messages.
pub(super) const BROKEN_LINES: [&[u8]; 4] =
    [b"nonsense\n", b"[]\n", b"{\"id\":1,\"method\":\"m\"}}\n", b"{\"a\":\"\xff\"}\n"];

/// Invalid PROXY headers, where one is required.
pub(super) const BROKEN_HEADERS: [&[u8]; 3] =
    [b"PROXY TCP4 192.0.2.7 nowhere 40000 9000\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0", b"PROXY \r\n"];

impl Frames {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            raw: Vec::new(),
            is_open: false,
            decoder: Decoder::new(Role::Client, 1 << 30),
            random: Random::new(seed),
            verdict: None,
        }
    }

    pub(super) fn mask(&mut self) -> Mask {
        Mask::new((self.random.range(0..usize::MAX) as u32).to_ne_bytes())
    }

    /// Encodes the pieces of a message as fragments, with pings between them.
    pub(super) fn message(&mut self, text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut at = 0;
        loop {
            let rest = text.len() - at;
            let length = if self.random.one_in(3) { self.random.range(0..rest + 1) } else { rest };
            let is_last = length == rest && at + length == text.len();
            let mask = self.mask();
            let mut head = encode::text(length, Some(mask)).to_vec();
            // The FIN bit, and opcode 0 for a continuation.
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

    /// Decodes received bytes to lines. Replies are appended to `todo`. True if the connection is finished.
    pub(super) fn read(&mut self, came: &mut Vec<u8>, todo: &mut VecDeque<u8>) -> bool {
        if !self.is_open {
            let Some(end) = memchr::memmem::find(&self.raw, b"\r\n\r\n") else { return false };
            let head = String::from_utf8_lossy(&self.raw[..end]).into_owned();
            let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
            let status: u16 = status.unwrap_or_else(|| panic!("an answer is HTTP: {head}"));
            if status != 101 {
                self.verdict = Some(ClientVerdict::Status(status));
                // The body adds nothing.
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
                FrameEvent::Text { .. } => {}
                FrameEvent::Pong(payload) => assert_eq!(payload, b"are you there"),
                FrameEvent::Ping(payload) => pings.push(payload.to_vec()),
                FrameEvent::Close { code, .. } => {
                    assert!(matches!(code, Some(1000..=1002 | 1007..=1009 | 1013)), "{code:?}");
                    *verdict = code.map(ClientVerdict::Code);
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

#[derive(Default)]
pub(super) struct SimClient {
    pub(super) name: usize,
    pub(super) seed: u64,
    pub(super) wire: LineWire,
    pub(super) is_stdio: bool,
    /// The turn in which it connected.
    pub(super) came_in: usize,
    /// The first request that it sent after failures stopped, and whether one from then on was answered.
    pub(super) asked_in_peace: Option<u64>,
    pub(super) is_well: bool,
    pub(super) asked: BTreeMap<u64, Unanswered>,
    pub(super) next: u64,
    pub(super) answers: usize,
    /// The last answer from each worker.
    pub(super) last_seen: BTreeMap<usize, usize>,
    pub(super) last_word: Option<LastWord>,
    pub(super) verdict: Option<ClientVerdict>,
    /// When it last had read everything, and the longest time that it had not.
    pub(super) empty_at: Duration,
    pub(super) behind: Duration,
}

/// Its end of the connection.
#[derive(Default)]
pub(super) struct LineWire {
    /// None once it has left, or its connection has ended.
    pub(super) input: Option<OwnedFd>,
    /// None once it has half-closed.
    pub(super) speaks: Option<OwnedFd>,
    /// The inode of the daemon's end.
    pub(super) inode: Option<u64>,
    pub(super) todo: VecDeque<u8>,
    /// Number of bytes sent.
    pub(super) sent: usize,
    pub(super) came: Vec<u8>,
    pub(super) frames: Option<Frames>,
}

impl SimClient {
    pub(super) fn new(name: usize, seed: u64, input: OwnedFd, speaks: OwnedFd) -> Self {
        Self {
            name,
            seed,
            wire: LineWire { input: Some(input), speaks: Some(speaks), ..LineWire::default() },
            ..Self::default()
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.wire.input.is_none()
    }

    /// Whether it has sent its final bytes.
    pub(super) fn is_leaving(&self) -> bool {
        self.last_word.is_some()
    }

    pub(super) fn leaves(&mut self) {
        (self.wire.input, self.wire.speaks) = (None, None);
    }

    /// Whether the daemon owes it nothing: neither an answer nor the end of its connection.
    pub(super) fn is_content(&self) -> bool {
        self.is_over()
            || self.wire.speaks.is_some() && !self.is_leaving() && self.asked.is_empty() && self.wire.todo.is_empty()
    }

    /// Half-closes, and still reads.
    pub(super) fn ends_what_it_says(&mut self) {
        let sent = self.wire.sent;
        // Requests that were not sent get no answer.
        self.asked.retain(|_, asked| asked.ends_at <= sent);
        if let Some(frames) = &self.wire.frames {
            // A WebSocket cannot be half-closed. In the middle of its handshake, it has never been one.
            let reason = frames.is_open.then_some(Reason::ClientBroken);
            self.last_word = Some(LastWord { last_word_at: sent, verdict: None, reason });
        }
        if let Some(end) = self.wire.speaks.take()
            && !self.is_stdio
        {
            shutdown(end, Shutdown::Write).expect("it is a socket");
        }
    }

    /// Reads what is available. The result shows whether the daemon has closed it.
    pub(super) fn reads(&mut self, most: usize, now: Duration) -> Pulled {
        let Some(end) = &self.wire.input else { return Pulled::Nothing };
        let pulled = match &mut self.wire.frames {
            Some(frames) => {
                let pulled = pull(end, &mut frames.raw, most);
                // Only the end follows a close frame.
                let is_over = frames.read(&mut self.wire.came, &mut self.wire.todo);
                if is_over { Pulled::End } else { pulled }
            }
            None => pull(end, &mut self.wire.came, most),
        };
        match pulled {
            Pulled::Nothing => self.empty_at = now,
            Pulled::Something | Pulled::End => self.behind = self.behind.max(now - self.empty_at),
        }
        self.check(now);
        if let Some(verdict) = self.wire.frames.as_mut().and_then(|frames| frames.verdict.take()) {
            self.verdict = Some(verdict);
        }
        pulled
    }

    pub(super) fn writes(&mut self, most: usize) -> bool {
        let Some(end) = &self.wire.speaks else { return false };
        let sent = push(end, &mut self.wire.todo, most);
        self.wire.sent += sent;
        sent > 0
    }

    pub(super) fn says(&mut self, line: &[u8]) {
        match &mut self.wire.frames {
            Some(frames) => self.wire.todo.extend(frames.message(line)),
            None => {
                self.wire.todo.extend(line);
                self.wire.todo.push_back(b'\n');
            }
        }
    }

    pub(super) fn ask(&mut self, random: &mut Random, now: Duration) {
        let size = *random.pick(&[0, 10, 200, 3000, 20_000, LONGEST_TEXT]);
        let (seed, who, number, length) = (self.seed, self.name, self.next, random.range(0..size + 1));
        let request = SimRequest { seed, who, number, length };
        self.next += 1;
        self.says(&request.question(&request.id()));
        self.asked.insert(number, Unanswered { request, at: now, ends_at: self.wire.sent + self.wire.todo.len() });
    }

    /// Sends these final bytes.
    pub(super) fn says_its_last(&mut self, bytes: &[u8], verdict: Option<ClientVerdict>, reason: Option<Reason>) {
        self.last_word = Some(LastWord { last_word_at: self.wire.sent + self.wire.todo.len() + 1, verdict, reason });
        self.wire.todo.extend(bytes);
    }

    /// Sends a close frame. False if it does not speak WebSocket.
    pub(super) fn says_goodbye(&mut self) -> bool {
        let Some(frames) = &mut self.wire.frames else { return false };
        let goodbye = encode::close(Some(1000), "", Some(frames.mask()));
        self.says_its_last(&goodbye, Some(ClientVerdict::Code(1000)), None);
        true
    }

    /// Sends something invalid.
    pub(super) fn misbehaves(&mut self, random: &mut Random) {
        match &mut self.wire.frames {
            Some(frames) if random.one_in(4) => {
                let line = frames.message(random.pick(&BROKEN_LINES[..3]).trim_ascii_end());
                self.says_its_last(&line, Some(ClientVerdict::Code(1007)), Some(Reason::ClientMalformed));
            }
            Some(_) => {
                let (frame, code) = *random.pick(&BROKEN_FRAMES);
                let reason = if code == 1009 { Reason::ClientLineTooLong } else { Reason::ClientMalformed };
                self.says_its_last(frame, Some(ClientVerdict::Code(code)), Some(reason));
            }
            None => {
                let verdict = ClientVerdict::Error(Reason::ClientMalformed.error_name().to_owned());
                let line = *random.pick(&BROKEN_LINES);
                self.says_its_last(line, Some(verdict), Some(Reason::ClientMalformed));
            }
        }
    }

    /// Compares the received lines with its requests, byte by byte.
    pub(super) fn check(&mut self, now: Duration) {
        for line in lines(&mut self.wire.came) {
            if token(&line, "error").is_some() {
                self.check_error(&line, now);
                continue;
            }
            let id = token(&line, "id").unwrap_or_else(|| panic!("{} received: {}", self.name, shown(&line)));
            let asked = id.trim_matches('"').parse().ok().and_then(|id: u64| self.asked.remove(&id));
            let asked = asked.unwrap_or_else(|| panic!("{} has not asked this: {}", self.name, shown(&line)));
            let (Some(worker), Some(nth)) = (number(&line, "worker"), number(&line, "nth")) else {
                panic!("{} got what is no answer: {}", self.name, shown(&line));
            };
            let request = asked.request;
            let is_same = line == request.answer(&request.id(), worker, nth);
            assert!(is_same, "the answer to {request:?} is another one: {}", shown(&line));
            let before = self.last_seen.insert(worker, nth);
            assert!(before.is_none_or(|before| before < nth), "the answer to {request:?} comes behind {before:?}");
            self.answers += 1;
            self.is_well |= self.asked_in_peace.is_some_and(|first| request.number >= first);
        }
    }

    pub(super) fn check_error(&mut self, line: &[u8], now: Duration) {
        let error: Value = serde_json::from_slice(line).expect("an error is JSON");
        let reason =
            error["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("an error has a reason: {error}"));
        if error["id"].is_null() {
            self.verdict = Some(ClientVerdict::Error(reason.to_owned()));
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
