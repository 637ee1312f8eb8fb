//! Any bytes at an ACP listener: requests do not depend on how they are cut, a message whose head names a session is one of
//! that session for its worker, too, and refusals are valid HTTP and JSON. Each line reaches the readers of its own stream
//! once, in order and whole, however readers come and go; each of its bytes is reported to the core once, and all that
//! was counted is given back.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::Cut;
use super::mcp::{Read, check_fault, check_message, requests};
use crate::acp::asked::{self, LONGEST_NAME, session_field};
use crate::acp::posted::{answered_on, is_initialize, session_of};
use crate::acp::streams::{Delivery, GENERAL, LineKind, MOST_UNNAMED, Number, Streams};
use crate::http1::Status;
use crate::mcp::asked::{Asked, Takes, Verb};
use crate::mcp::message::{LineReader, Upload};
use crate::mcp::{Body, Kind, Message, write};
use stdio_bus_core::id::Id;

/// The methods that have to name their session in the head, too.
const OF_A_SESSION: [&str; 5] =
    ["session/prompt", "session/cancel", "session/close", "session/set_mode", "session/set_config_option"];

/// Parses them as requests, with all these cuts; then lets them drive the streams of a connection.
///
/// # Panics
/// If any of this does not hold.
pub fn check(first: u8, stream: &[u8], cut: Cut<'_>) {
    let read: Read = |head| asked::asked(head, "/acp");
    let asked = requests(stream, &[], read);
    for cuts in [cut(stream.len()), (1..stream.len()).collect()] {
        assert_eq!(requests(stream, &cuts, read), asked, "cut at {cuts:?}");
    }
    for (asked, body) in asked {
        match asked {
            Ok(asked) => check_request(&asked, &body),
            Err(fault) => check_fault(&fault, b"null"),
        }
    }
    live(first, stream);
}

fn check_request(asked: &Asked, body: &[u8]) {
    assert!(asked.verb == Verb::Post || asked.session.is_some(), "only initialize names no connection");
    assert!(asked.verb != Verb::Post || asked.takes == Takes::Json, "no stream answers a message");
    assert!(asked.name.as_ref().is_none_or(|name| !name.is_empty() && name.len() <= LONGEST_NAME));
    let repeated = session_field(asked.name.as_deref());
    assert!(repeated.is_none_or(|(_, name)| Some(name) == asked.name.as_deref() && !name.contains(['\r', '\n'])));
    let (mut upload, mut reader) = (Upload::default(), LineReader::default());
    upload.push(body, &mut reader);
    let value = serde_json::from_slice::<Value>(body).ok();
    match upload.finish(&mut reader) {
        Ok(Body::One(message)) => {
            check_message(&message, value.as_ref());
            check_place(asked, &message, value.as_ref());
        }
        Ok(Body::Batch(_)) => {}
        Err(fault) => check_fault(&fault, b"null"),
    }
}

/// Where a message is answered agrees with its head, and with the body that its worker reads.
fn check_place(asked: &Asked, message: &Message, value: Option<&Value>) {
    let named = asked.name.as_deref();
    let place = match answered_on(message, named) {
        Ok(place) => place,
        Err(fault) => return check_fault(&fault, message.id().unwrap_or(b"null")),
    };
    assert!(place.is_none() || place == named.map(str::as_bytes), "it is answered where its head says");
    assert!(place.is_none() || message.kind() == Kind::Request, "nothing else has an answer");
    assert!(!is_initialize(message) || message.kind() == Kind::Request);
    let Some(value) = value else { return };
    let (method, session) = (value["method"].as_str(), value["params"]["sessionId"].as_str());
    let is_usual = |name: &&str| !name.is_empty() && name.len() <= LONGEST_NAME;
    assert_eq!(session_of(message.text()).as_deref(), session.filter(is_usual).map(str::as_bytes), "{value}");
    assert_eq!(is_initialize(message), method == Some("initialize") && message.kind() == Kind::Request, "{value}");
    if method.is_some_and(|method| OF_A_SESSION.contains(&method)) && message.kind() != Kind::Response {
        assert!(named.is_some() && named == session, "{named:?} in the head, and {value}");
    }
    let is_other = named.is_some() && session.is_some_and(|session| is_usual(&session)) && named != session;
    assert!(!is_other || message.kind() == Kind::Response, "{named:?} in the head, and {value}");
}

/// The model of a stream.
#[derive(Default)]
struct StreamModel {
    /// Its reader, and the number that it has while that reads.
    reader: Option<usize>,
    number: Option<Number>,
    /// Lines that were not sent as a whole, and how many bytes of the first one's event were.
    waiting: VecDeque<String>,
    sent: usize,
    /// What its reader was handed and has not sent.
    handed: VecDeque<u8>,
    /// Something has named it since it was opened.
    is_named: bool,
}

impl StreamModel {
    /// All that its reader has to get from now on.
    fn owes(&self, is_old: bool) -> Vec<u8> {
        let mut all = Vec::new();
        self.waiting.iter().for_each(|line| write::event(&mut all, None, line.as_bytes(), is_old));
        all.split_off(self.sent)
    }

    /// Its reader has sent so many bytes more.
    fn sends(&mut self, bytes: usize, is_old: bool) {
        self.handed.drain(..bytes);
        self.sent += bytes;
        while let Some(first) = self.waiting.front() {
            let mut event = Vec::new();
            write::event(&mut event, None, first.as_bytes(), is_old);
            if self.sent < event.len() {
                break;
            }
            self.sent -= event.len();
            self.waiting.pop_front();
        }
    }

    /// Its reader was handed an event in part.
    fn is_amid(&self, is_old: bool) -> bool {
        let mut handed = self.sent + self.handed.len();
        for line in &self.waiting {
            let mut event = Vec::new();
            write::event(&mut event, None, line.as_bytes(), is_old);
            if handed < event.len() {
                return handed > 0;
            }
            handed -= event.len();
        }
        false
    }

    fn loses_reader(&mut self) {
        (self.reader, self.number, self.sent) = (None, None, 0);
        self.handed.clear();
    }
}

/// The streams of a connection, driven by these bytes, three for each step. The connection's own has no name here.
struct ConnectionModel {
    streams: Streams,
    model: BTreeMap<Option<String>, StreamModel>,
    /// Pending requests, with the streams of their answers.
    asked: Vec<(u64, Option<String>)>,
    is_old: bool,
    lines: usize,
    sockets: usize,
    /// How many bytes of lines were delivered, and how many of them were reported as sent or given up.
    delivered: usize,
    reported: usize,
    /// Names were forgotten, so one that a line named may count as unknown again.
    forgets: bool,
}

fn live(first: u8, bytes: &[u8]) {
    let mut connection = ConnectionModel {
        streams: Streams::new("n.1".into(), Id::Number(0), 0),
        model: BTreeMap::from([(
            None,
            StreamModel { number: Some(GENERAL), is_named: true, ..StreamModel::default() },
        )]),
        asked: Vec::new(),
        is_old: first & 1 == 1,
        lines: 0,
        sockets: 0,
        delivered: 0,
        reported: 0,
        forgets: false,
    };
    if first & 2 == 0 {
        assert!(connection.streams.is_in_use() && connection.streams.has_requests());
        let begins = connection.streams.deliver(LineKind::Answer(b"0", None), 1, || panic!("it is not queued"));
        assert_eq!((begins, connection.streams.is_in_use()), (Delivery::First(0), false));
    } else {
        assert_eq!((connection.streams.give_up(1), connection.streams.give_up(0)), (None, Some(Id::Number(0))));
    }
    for (number, choice) in bytes.as_chunks::<3>().0.iter().enumerate() {
        connection.step(number, choice.map(usize::from));
        connection.check();
    }
    connection.ends();
}

impl ConnectionModel {
    /// One of a few sessions, or none.
    fn session(which: usize) -> Option<String> {
        (!which.is_multiple_of(32)).then(|| format!("s{}", which % 32))
    }

    fn step(&mut self, number: usize, [what, which, more]: [usize; 3]) {
        match what % 9 {
            0 => {
                let session = Self::session(which);
                self.streams.ask(Id::Number(number as u64 + 1), session.as_deref().map(str::as_bytes));
                self.asked.push((number as u64 + 1, session));
            }
            1 if !self.asked.is_empty() => {
                let (id, session) = self.asked.remove(which % self.asked.len());
                let gives = (more % 4 == 0).then(|| Self::session(more)).flatten();
                self.gives(gives.as_deref());
                let (id, gives) = (id.to_string(), gives.as_deref().map(str::as_bytes));
                self.deliver(LineKind::Answer(id.as_bytes(), gives), session.as_ref(), more);
            }
            2 | 3 => {
                let session = Self::session(which);
                self.deliver(
                    LineKind::Other(session.as_deref().map(str::as_bytes)),
                    session.as_ref(),
                    more << (what / 64),
                );
            }
            4 => self.opens(&Self::session(which)),
            5 | 6 => self.reads(which, 1 << (more % 18)),
            7 if more % 16 == 0 => self.names_many(which),
            7 => self.loses_reader(which, more % 4 == 0),
            _ if more % 16 == 0 => self.drops(false),
            _ => self.reads(which, usize::MAX),
        }
    }

    /// A line or an answer names a session.
    fn gives(&mut self, name: Option<&str>) {
        let Some(name) = name else { return };
        self.model.entry(Some(name.to_owned())).or_default().is_named = true;
    }

    fn deliver(&mut self, line: LineKind<'_>, session: Option<&String>, length: usize) {
        self.lines += 1;
        let text = format!("{}{}", self.lines, "x".repeat(length));
        self.delivered += text.len() + 1;
        let queued = self.streams.deliver(line, text.len() + 1, || text.as_bytes().into());
        let stream = self.model.entry(session.cloned()).or_default();
        assert_eq!(queued, Delivery::Queued(stream.reader), "a line is queued for the reader of its stream");
        stream.waiting.push_back(text);
        stream.is_named = true;
    }

    fn opens(&mut self, session: &Option<String>) {
        self.sockets += 1;
        let unnamed = |(_, stream): &(_, &StreamModel)| stream.reader.is_some() && !stream.is_named;
        let unnamed = self.model.iter().filter(unnamed).count();
        let stream = self.model.entry(session.clone()).or_default();
        match self.streams.open(self.sockets, session.as_deref()) {
            Ok(number) => {
                assert!(stream.reader.is_none(), "a stream has one reader");
                assert!(stream.is_named || unnamed < MOST_UNNAMED, "{unnamed} streams of unknown sessions");
                assert!(session.is_some() || number == GENERAL);
                (stream.number, stream.reader) = (Some(number), Some(self.sockets));
            }
            Err(fault) if stream.reader.is_some() => assert_eq!(fault.status, Status::Conflict),
            Err(fault) => {
                assert_eq!(fault.status, Status::NotFound);
                assert!(stream.waiting.is_empty() && (!stream.is_named || self.forgets), "{session:?} is known");
            }
        }
    }

    /// One of the streams that have a reader.
    fn read_stream(&mut self, which: usize) -> Option<(Number, &mut StreamModel)> {
        let count = self.model.values().filter(|stream| stream.reader.is_some()).count();
        let stream = self.model.values_mut().filter(|stream| stream.reader.is_some()).nth(which % count.max(1))?;
        Some((stream.number?, stream))
    }

    /// A reader is handed what it has room for, or has sent so many bytes of that.
    fn reads(&mut self, which: usize, most: usize) {
        let is_old = self.is_old;
        let Some((number, _)) = self.read_stream(which) else { return };
        let mut out = Vec::new();
        let is_next = self.model.values().any(|stream| stream.number == Some(number) && stream.handed.is_empty());
        if is_next {
            self.streams.hand_over(number, &mut out, is_old);
        }
        let Some((_, stream)) = self.read_stream(which) else { return };
        if is_next {
            assert!(stream.owes(is_old).starts_with(&out), "each event comes once, in order and whole");
            assert_eq!(out.is_empty(), stream.waiting.is_empty(), "what waits is handed over");
            stream.handed.extend(out);
        }
        let sent = stream.handed.len().min(most);
        stream.sends(sent, is_old);
        let is_amid = stream.is_amid(is_old);
        self.reported += self.streams.sent(number, sent);
        assert_eq!(self.streams.is_amid(number), is_amid, "an event was handed over in part");
    }

    /// A reader leaves, or another socket that reads something else.
    fn loses_reader(&mut self, which: usize, is_other: bool) {
        let Some((number, stream)) = self.read_stream(which) else { return };
        let reader = stream.reader.unwrap_or_default();
        if is_other {
            return self.streams.detach(number, reader + 100_000);
        }
        stream.loses_reader();
        self.streams.detach(number, reader);
    }

    /// Answers give out so many sessions that names of others are forgotten. No line is.
    fn names_many(&mut self, which: usize) {
        self.forgets = true;
        for at in 0..which * 3 {
            let name = format!("other {at}");
            self.delivered += 3;
            let queued = self.streams.deliver(LineKind::Answer(b"-7", Some(name.as_bytes())), 3, || b"{}"[..].into());
            let general = self.model.entry(None).or_default();
            assert_eq!(queued, Delivery::Queued(general.reader), "it answers nothing that is known");
            general.waiting.push_back("{}".to_owned());
        }
    }

    fn drops(&mut self, all: bool) {
        let dropped = self.streams.drop_waiting(all);
        let streams = self.model.values_mut().filter(|stream| all || stream.reader.is_none());
        let lines: usize = streams.map(|stream| std::mem::take(&mut stream.waiting).len()).sum();
        assert_eq!(dropped.lines, lines);
        self.reported += dropped.owed;
    }

    fn check(&self) {
        assert_eq!(self.streams.has_requests(), !self.asked.is_empty());
        let mut readers: Vec<_> = self.streams.sockets().collect();
        let mut known: Vec<_> =
            self.model.values().filter_map(|stream| Some((stream.reader?, stream.number?))).collect();
        readers.sort_unstable();
        known.sort_unstable();
        assert_eq!(readers, known);
        assert_eq!(self.streams.is_in_use(), !readers.is_empty());
        let bytes: usize = self.model.values().flat_map(|stream| &stream.waiting).map(String::len).sum();
        assert!(self.streams.weight() >= bytes && self.reported <= self.delivered);
    }

    /// All that is left is read, by one reader after the other, or dropped in the middle.
    fn ends(&mut self) {
        let reader = |stream: &StreamModel| Some((stream.number?, stream.reader?));
        let readers: Vec<_> = self.model.values().filter_map(reader).collect();
        for (number, socket) in readers {
            self.streams.detach(number, socket);
        }
        self.model.values_mut().for_each(StreamModel::loses_reader);
        if self.lines.is_multiple_of(3) {
            self.drops(true);
        }
        for session in self.model.keys().cloned().collect::<Vec<_>>() {
            if self.model[&session].waiting.is_empty() {
                continue;
            }
            self.opens(&session);
            while !self.model[&session].waiting.is_empty() {
                self.reads(0, usize::MAX);
            }
            self.loses_reader(0, false);
        }
        assert_eq!((self.reported, self.streams.weight()), (self.delivered, 0), "each byte is reported once");
    }
}
