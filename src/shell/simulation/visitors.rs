//! The MCP clients of the simulation, of both eras: they start sessions, call methods, open and resume streams, end
//! their sessions, read slowly, break connections anywhere, and check the responses. Some keep their connections, some
//! open one for each request, and some do either.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use serde_json::{Value, json};

use super::lines::Pulled;
use super::wire::shown;
use crate::http1::Method;
use crate::mcp::head::Repeated;
use crate::state;
use crate::testing::Random;

/// The requests on a connection, in order.
#[derive(Clone, Debug)]
pub(super) enum What {
    Begin,
    Calls(Vec<u64>),
    Note,
    /// The event after which it resumes, if it does.
    Get(Option<String>),
    Delete,
    Nonsense,
}

/// Its connections remember the requests, and the sessions that they were sent in.
type VisitorWire = super::wire::Wire<(What, Option<String>)>;

/// An unanswered request.
#[derive(Debug)]
struct Call {
    session: Option<String>,
    wire: usize,
    /// The last received event of its stream.
    last: Option<String>,
    is_cut_off: bool,
    /// Its continuation was requested already.
    is_fetched: bool,
}

/// A received answer.
#[derive(Debug)]
struct ReceivedAnswer {
    /// The number of its connection; none if the request was given up, so that the answer may arrive once.
    wire: Option<usize>,
    /// The event that carried it.
    event: Option<String>,
    /// Everything that was sent with it has arrived, including the end.
    is_whole: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum VisitorStage {
    #[default]
    Outside,
    Begins,
    Inside,
}

/// How a visitor uses its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Habit {
    #[default]
    Keeps,
    /// It opens one for each request.
    OpensEach,
    Both,
}

#[derive(Default)]
pub(super) struct Visitor {
    pub(super) name: usize,
    version: &'static str,
    habit: Habit,
    session: Option<String>,
    stage: VisitorStage,
    pub(super) wires: Vec<VisitorWire>,
    asked: BTreeMap<u64, Call>,
    answered: BTreeMap<u64, ReceivedAnswer>,
    /// How often it has resumed each stream of each of its sessions.
    resumed: BTreeMap<(Option<String>, String), usize>,
    next: u64,
    count: usize,
    /// Sessions that it may know of, and has not seen end.
    pub(super) sessions: usize,
    /// Results among the answers, and resumed streams.
    pub(super) results: usize,
    pub(super) fetched: usize,
    /// The last error that it received.
    pub(super) last: Option<Value>,
    pub(super) has_legacy_server: bool,
}

/// The revision without sessions.
const MODERN: &str = "2026-07-28";
const HEAD: &str = "Host: 127.0.0.1\r\nAccept: application/json, text/event-stream\r\n";
const NONSENSE: [&str; 4] = [
    "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\nAccept: */*\r\n\r\n",
    "G\0T /mcp HTTP/1.1\r\n\r\n",
    "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1x\r\n\r\n",
];

/// The stream of an event.
fn stream_of(event: &str) -> &str {
    event.split('-').next().unwrap_or(event)
}

impl Visitor {
    pub(super) fn new(name: usize, is_modern: bool, random: &mut Random) -> Self {
        let version = if is_modern { MODERN } else { *random.pick(&["2025-03-26", "2025-06-18", "2025-11-25"]) };
        Self {
            name,
            version,
            habit: *random.pick(&[Habit::Keeps, Habit::OpensEach, Habit::Both]),
            stage: if is_modern { VisitorStage::Inside } else { VisitorStage::Outside },
            next: 1,
            ..Self::default()
        }
    }

    /// It has a session of an earlier daemon, in this pool.
    pub(super) fn returns(&mut self, pool: &str, listener: &str, random: &mut Random) -> state::StoredSession {
        let id = format!("earlier.{}", self.name);
        let session = state::StoredSession {
            id: state::SessionDigest::of(&id),
            pool: pool.to_owned(),
            listener: listener.to_owned(),
            daemons: 0,
            owner: state::SessionOwner::Anyone,
            version: self.version.to_owned(),
            initialize: self.initialize().to_string(),
            initialized: random.one_in(2).then(|| r#"{"method":"notifications/initialized"}"#.to_owned()),
        };
        (self.session, self.stage, self.sessions) = (Some(id), VisitorStage::Inside, 1);
        session
    }

    pub(super) fn is_modern(&self) -> bool {
        self.version == MODERN
    }

    pub(super) fn connects(&mut self, end: OwnedFd, inode: u64, random: &mut Random) {
        self.count += 1;
        self.wires.push(VisitorWire::new(end, inode, self.count, random));
    }

    /// Whether it keeps the connection for its next request.
    fn keeps(&self, random: &mut Random) -> bool {
        self.habit == Habit::Keeps || self.habit == Habit::Both && random.one_in(2)
    }

    /// A connection for a request: a new one, or a kept one, where other requests may be outstanding.
    fn usable(&self, keeps: bool, random: &mut Random) -> Option<usize> {
        let is_last = |(what, _): &(What, _)| matches!(what, What::Get(_) | What::Nonsense);
        let may = |wire: &VisitorWire| wire.may_ask(keeps, is_last);
        let usable: Vec<usize> = (0..self.wires.len()).filter(|at| may(&self.wires[*at])).collect();
        (!usable.is_empty()).then(|| *random.pick(&usable))
    }

    /// Whether it needs a connection to continue.
    pub(super) fn needs_wire(&self, random: &mut Random) -> bool {
        let keeps = self.keeps(random);
        self.wires.len() < 5 && (self.usable(keeps, random).is_none() || random.one_in(8))
    }

    /// Sends a request. False if there is none to send, or no connection for it.
    pub(super) fn asks(&mut self, random: &mut Random) -> bool {
        let keeps = self.keeps(random);
        let Some(at) = self.usable(keeps, random) else { return false };
        match (self.stage, random.range(0..20)) {
            (_, 0) if self.wires[at].waits.is_empty() && random.one_in(3) => {
                self.wires[at].todo.extend(random.pick(&NONSENSE).bytes());
                self.wires[at].waits.push_back((What::Nonsense, None));
            }
            (VisitorStage::Outside, _) => self.begins(at, random),
            (VisitorStage::Begins, _) => return false,
            (VisitorStage::Inside, 1 | 2) => {
                let note = json!({"jsonrpc": "2.0", "method": "notifications/note", "params": self.params(0, 0, 0)});
                self.post(at, &note, What::Note, random);
            }
            (VisitorStage::Inside, 3 | 4) if !self.is_modern() => self.opens(at, random),
            (VisitorStage::Inside, 5) if !self.is_modern() && random.one_in(4) => {
                let head = format!("DELETE /mcp HTTP/1.1\r\n{HEAD}{}\r\n", self.fields());
                self.wires[at].todo.extend(head.bytes());
                self.wires[at].waits.push_back((What::Delete, self.session.clone()));
            }
            (VisitorStage::Inside, _) => self.calls(at, random),
        }
        self.uses(at, keeps);
        true
    }

    fn uses(&mut self, at: usize, keeps: bool) {
        self.wires[at].is_used = true;
        self.wires[at].is_over |= !keeps;
    }

    fn begins(&mut self, at: usize, random: &mut Random) {
        self.stage = VisitorStage::Begins;
        self.post(at, &self.initialize(), What::Begin, random);
    }

    fn initialize(&self) -> Value {
        let params = json!({"protocolVersion": self.version, "who": self.name, "era": self.is_modern()});
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    }

    fn params(&self, number: u64, steps: usize, length: usize) -> Value {
        let mut meta = json!({"progressToken": number});
        if self.is_modern() {
            meta["io.modelcontextprotocol/protocolVersion"] = json!(self.version);
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let (who, era) = (self.name, self.is_modern());
        json!({"name": "x", "who": who, "era": era, "number": number, "steps": steps, "length": length, "_meta": meta})
    }

    pub(super) fn calls(&mut self, at: usize, random: &mut Random) {
        let is_batch = self.version == "2025-03-26" && random.one_in(3);
        let mut messages = Vec::new();
        let mut numbers = Vec::new();
        for _ in 0..if is_batch { random.range(1..4) } else { 1 } {
            let number = self.next;
            self.next += 1;
            let length = *random.pick(&[0, 100, 3000, 30_000, 0, 100, 3000, 100_000]);
            let params = self.params(number, random.range(0..4), length);
            messages.push(json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}));
            numbers.push(number);
            let wire = self.wires[at].number;
            self.asked.insert(
                number,
                Call { session: self.session.clone(), wire, last: None, is_cut_off: false, is_fetched: false },
            );
        }
        let body = if is_batch { json!(messages) } else { messages.remove(0) };
        self.post(at, &body, What::Calls(numbers), random);
    }

    /// Opens the stream of its session, or resumes one that broke.
    fn opens(&mut self, at: usize, random: &mut Random) {
        let cut = self.asked.values_mut().find(|call| call.is_cut_off && !call.is_fetched && call.last.is_some());
        let last = cut.and_then(|call| {
            call.is_fetched = true;
            call.last.clone()
        });
        let last = last.filter(|_| !random.one_in(5));
        let behind = last.as_ref().map_or_else(String::new, |last| format!("Last-Event-ID: {last}\r\n"));
        let head = format!("GET /mcp HTTP/1.1\r\n{HEAD}{}{behind}\r\n", self.fields());
        self.wires[at].todo.extend(head.bytes());
        if let Some(last) = &last {
            *self.resumed.entry((self.session.clone(), stream_of(last).to_owned())).or_default() += 1;
        }
        self.wires[at].waits.push_back((What::Get(last), self.session.clone()));
    }

    fn fields(&self) -> String {
        let session = self.session.as_ref().map_or_else(String::new, |id| format!("Mcp-Session-Id: {id}\r\n"));
        format!("{session}MCP-Protocol-Version: {}\r\n", self.version)
    }

    fn post(&mut self, at: usize, message: &Value, what: What, random: &mut Random) {
        let body = message.to_string();
        let mut fields = match Repeated::of(message) {
            Some(head) => head.fields().map(|(field, value)| format!("{field}: {value}\r\n")).collect(),
            None if self.stage == VisitorStage::Begins => String::new(),
            None => self.fields(),
        };
        if random.one_in(5) {
            fields.push_str("Connection: close\r\n");
            self.wires[at].is_over = true;
        }
        let head = format!("POST /mcp HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n{fields}");
        let text = match random.one_in(4) {
            true => {
                let (one, two) = body.split_at(body.len() / 2);
                let (first, second) = (one.len(), two.len());
                format!(
                    "{head}Transfer-Encoding: chunked\r\n\r\n{first:x}\r\n{one}\r\n{second:x}\r\n{two}\r\n0\r\n\r\n"
                )
            }
            false => format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()),
        };
        self.wires[at].todo.extend(text.bytes());
        self.wires[at].waits.push_back((what, self.session.clone()));
    }

    pub(super) fn writes(&mut self, at: usize, most: usize) -> bool {
        self.wires[at].writes(most)
    }

    /// Reads what is available. The result is [`Pulled::End`] if the daemon has closed the connection.
    pub(super) fn reads(&mut self, at: usize, most: usize) -> Pulled {
        let pulled = self.wires[at].pulls(most);
        while self.takes(at) {}
        pulled
    }

    /// Takes one piece of a response. False if there is none.
    fn takes(&mut self, at: usize) -> bool {
        let wire = &mut self.wires[at];
        let Some((what, session)) = wire.waits.front().cloned() else {
            assert!(wire.came.is_empty(), "{} receives what it has not asked for: {:?}", self.name, shown(&wire.came));
            return false;
        };
        let method = match what {
            What::Get(_) => Method::Get,
            What::Delete => Method::Delete,
            _ => Method::Post,
        };
        let Some(taken) = wire.takes(self.name, method, "mcp-session-id") else { return false };
        if let Some(id) = taken.id {
            assert!(matches!(what, What::Begin), "{what:?} has begun a session");
            if self.session.replace(id).is_none() {
                self.sessions += 1;
            }
        }
        self.takes_events(at);
        if taken.is_over {
            self.ends(at, &what, session.as_ref());
        }
        true
    }

    /// Takes the complete events.
    fn takes_events(&mut self, at: usize) {
        while let Some(event) = self.wires[at].next_event() {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            let id = field("id: ").map(str::to_owned);
            let message: Option<Value> = field("data: ")
                .filter(|data| !data.is_empty())
                .map(|data| serde_json::from_str(data).unwrap_or_else(|_| panic!("an event is a message: {event:?}")));
            assert!(id.is_some() || event.starts_with(':') || message.is_some(), "it says something: {event:?}");
            assert!(!self.is_modern() || id.is_none(), "2026-07-28 has no ids of events");
            let number = self.wires[at].number;
            if let Some(id) = &id {
                let is_it = |call: &Call| match &call.last {
                    Some(last) => last.split('-').next() == id.split('-').next(),
                    None => call.wire == number && matches!(self.wires[at].waits.front(), Some((What::Calls(_), _))),
                };
                self.asked.values_mut().filter(|call| is_it(call)).for_each(|call| call.last = Some(id.clone()));
            }
            let what = self.wires[at].waits.front().map(|(what, _)| what.clone());
            message.into_iter().for_each(|message| self.on_message(at, what.as_ref(), &message, id.as_deref()));
        }
    }

    /// Handles a message that answers this request, in this event if it has an id.
    fn on_message(&mut self, at: usize, what: Option<&What>, message: &Value, event: Option<&str>) {
        let number = self.wires[at].number;
        if message["method"].is_string() {
            let params = &message["params"];
            if !params["who"].is_null() {
                assert_eq!(params["who"], json!(self.name), "{} receives what is of another: {message}", self.name);
            }
            return;
        }
        let Some(id) = message["id"].as_u64() else {
            assert!(message["error"].is_object() && message["id"].is_null(), "{} receives {message}", self.name);
            return;
        };
        if id == 0 {
            self.stage = if message["result"].is_object() && self.session.is_some() {
                VisitorStage::Inside
            } else {
                VisitorStage::Outside
            };
            if self.stage == VisitorStage::Outside && self.session.take().is_some() {
                self.sessions -= 1;
            }
            return;
        }
        let answer = ReceivedAnswer { wire: Some(number), event: event.map(str::to_owned), is_whole: false };
        let behind = if let Some(What::Get(behind)) = what { Some(behind.as_deref()) } else { None };
        assert_ne!(behind, Some(None), "{} receives {message} on a stream that resumes none", self.name);
        match self.asked.remove(&id) {
            Some(call) => {
                assert!(behind.is_some() || number == call.wire, "{} is answered on {number}: {call:?}", self.name);
                self.fetched += usize::from(call.is_cut_off);
            }
            None => {
                let before = self.answered.get(&id).unwrap_or_else(|| panic!("{} has not asked {message}", self.name));
                let open: Vec<_> = self.wires.iter().map(|wire| (wire.number, wire.is_broken, &wire.waits)).collect();
                // What had arrived on a broken connection may be read after it was fetched elsewhere.
                let is_late = self.wires[at].is_broken && before.event.is_some();
                let may_come_again = is_late || self.may_come_again(before, behind);
                let twice = (before, &answer, behind);
                assert!(may_come_again, "{}: {id} is answered twice: {twice:?} {open:?}", self.name);
            }
        }
        self.answered.insert(id, answer);
        let result = &message["result"];
        if result.is_object() {
            assert_eq!((&result["who"], &result["number"]), (&json!(self.name), &json!(id)), "an answer is its own");
            self.results += 1;
        } else {
            assert!(message["error"]["code"].is_i64(), "{} receives {message}", self.name);
        }
    }

    /// Whether this answer may arrive again: only with a GET, if its connection broke before everything sent with it
    /// had arrived, or if the GET resumes after an earlier event.
    fn may_come_again(&self, before: &ReceivedAnswer, behind: Option<Option<&str>>) -> bool {
        let Some(behind) = behind else { return false };
        let wire = self.wires.iter().find(|wire| Some(wire.number) == before.wire);
        let is_cut = !before.is_whole && wire.is_none_or(|wire| wire.is_broken);
        let place =
            |event: &str| event.split_once('-').map(|(stream, place)| (stream.to_owned(), place.parse::<u32>().ok()));
        let (before, behind) = (before.event.as_deref().and_then(place), behind.and_then(place));
        is_cut || before.zip(behind).is_some_and(|(before, behind)| before.0 == behind.0 && before.1 > behind.1)
    }

    /// A response has ended.
    fn ends(&mut self, at: usize, what: &What, session: Option<&String>) {
        let wire = &mut self.wires[at];
        wire.waits.pop_front();
        let response = wire.response.take().expect("an answer has a head");
        let body = std::mem::take(&mut wire.body);
        let number = wire.number;
        if response.closes {
            wire.is_closing = true;
            let cut: Vec<_> = wire.waits.drain(..).collect();
            cut.iter().for_each(|(what, _)| self.cut_off(number, what));
        }
        if response.status == 200 && !response.is_stream {
            let message = serde_json::from_slice(&body).expect("an answer is JSON");
            self.on_message(at, Some(what), &message, None);
        }
        // The next answer may have been sent with it, and is returned to the log with it.
        let is_last = self.wires[at].waits.is_empty();
        let here = self.answered.values_mut().filter(|answer| answer.wire == Some(number) && is_last);
        here.for_each(|answer| answer.is_whole = true);
        let error: Value = serde_json::from_slice(&body).unwrap_or_default();
        if error["error"].is_object() {
            self.last = Some(error.clone());
        }
        let is_one_of = |known: &[u16]| {
            let about = (&self.name, &response, &error);
            assert!(known.contains(&response.status), "{what:?} is answered with {about:?}");
        };
        match what {
            What::Nonsense => is_one_of(&[400]),
            What::Note => is_one_of(&[202, 400, 404, 503]),
            What::Delete => is_one_of(&[204, 404]),
            What::Get(None) => is_one_of(&[200, 404]),
            What::Get(Some(_)) => is_one_of(&[200, 204, 400, 404]),
            What::Begin | What::Calls(_) => is_one_of(&[200, 400, 404, 503]),
        }
        if let What::Calls(numbers) = what {
            for id in numbers {
                if response.status != 200 {
                    let is_known = error["id"].is_null() || numbers.iter().any(|number| error["id"] == json!(number));
                    assert!(is_known, "{error} is no answer to {numbers:?}");
                    self.asked.remove(id);
                } else if let Some(call) = self.asked.get_mut(id) {
                    assert!(call.is_fetched || self.version != MODERN, "the answer to {id} ends without it");
                    // Another connection has taken over its stream, or will.
                    call.is_cut_off = true;
                }
            }
            self.has_legacy_server |=
                response.status == 400 && [json!(-32601), json!(-32022)].contains(&error["error"]["code"]);
            assert!(response.status != 400 || self.has_legacy_server, "{what:?} is answered with {error}");
        }
        let has_ended = response.status == 404 || matches!(what, What::Delete);
        if matches!(what, What::Begin) && self.stage == VisitorStage::Begins {
            self.stage = VisitorStage::Outside;
        }
        if has_ended && !self.is_modern() && session == self.session.as_ref() {
            self.loses_session();
        }
    }

    /// Gives up a request, whose answer may be in flight.
    fn gives_up(&mut self, id: u64) {
        self.asked.remove(&id);
        self.answered.insert(id, ReceivedAnswer { wire: None, event: None, is_whole: false });
    }

    fn loses_session(&mut self) {
        if self.session.take().is_some() {
            self.sessions -= 1;
        }
        if self.stage == VisitorStage::Inside {
            self.stage = VisitorStage::Outside;
        }
        // Answers on other connections are still read, but nothing is fetched any more.
        let cut_off: Vec<u64> = self.asked.iter().filter(|(_, call)| call.is_cut_off).map(|(id, _)| *id).collect();
        cut_off.into_iter().for_each(|id| self.gives_up(id));
    }

    /// A connection with this request has gone.
    fn cut_off(&mut self, number: usize, what: &What) {
        match what {
            What::Begin if self.stage == VisitorStage::Begins => {
                self.stage = VisitorStage::Outside;
                // The answer may have been sent: the daemon can still send on a connection that has just gone.
                self.sessions += usize::from(self.session.is_none());
                self.session = None;
            }
            What::Calls(numbers) if self.is_modern() => numbers.iter().for_each(|id| _ = self.asked.remove(id)),
            What::Calls(_) => {
                let its = self.asked.iter_mut().filter(|(_, call)| call.wire == number);
                its.for_each(|(_, call)| call.is_cut_off = true);
                let is_over = |call: &Call| call.is_cut_off && call.session != self.session;
                let over: Vec<u64> = self.asked.iter().filter(|(_, call)| is_over(call)).map(|(id, _)| *id).collect();
                over.into_iter().for_each(|id| self.gives_up(id));
            }
            What::Get(_) => self.asked.values_mut().for_each(|call| call.is_fetched = false),
            _ => {}
        }
    }

    /// A connection ends. If something is outstanding on it, the simulation has to know why (`is_known`).
    pub(super) fn loses(&mut self, at: usize, is_known: impl FnOnce() -> bool) {
        let mut wire = self.wires.remove(at);
        wire.drains();
        let owed = wire.waits.iter().any(|(what, session)| match what {
            What::Nonsense => false,
            // A stream continues where it was resumed last: another connection in the middle of an event ends there, and
            // its response may not have begun to be sent.
            What::Get(Some(last)) => self.resumed.get(&(session.clone(), stream_of(last).to_owned())) == Some(&1),
            _ => true,
        });
        let is_answered = wire.is_closing || wire.closes();
        assert!(is_answered || !owed || is_known(), "{} is left without an answer to {:?}", self.name, wire.waits);
        wire.waits.iter().for_each(|(what, _)| self.cut_off(wire.number, what));
    }

    /// Whether a connection has served its purpose.
    pub(super) fn is_done_with(&self, at: usize) -> bool {
        self.wires[at].is_done()
    }

    /// Whether nothing that it could still get is outstanding.
    pub(super) fn is_content(&self) -> bool {
        let waits = |wire: &VisitorWire| {
            !wire.todo.is_empty() || wire.waits.iter().any(|(what, _)| !matches!(what, What::Get(_)))
        };
        !self.wires.iter().any(waits) && self.asked.values().all(|call| call.is_cut_off)
    }

    /// Whether a partial response can be resumed.
    pub(super) fn may_fetch(&self) -> bool {
        self.session.is_some() && self.asked.values().any(|call| call.last.is_some() && !call.is_fetched)
    }

    /// Without failures it fetches broken streams, or calls a method, on a new connection.
    pub(super) fn continues(&mut self, random: &mut Random) {
        let at = self.wires.len() - 1;
        self.uses(at, self.keeps(random));
        match self.stage {
            VisitorStage::Outside => self.begins(at, random),
            VisitorStage::Inside if !self.is_modern() && self.may_fetch() => self.opens(at, random),
            VisitorStage::Inside => self.calls(at, random),
            VisitorStage::Begins => {}
        }
    }
}
