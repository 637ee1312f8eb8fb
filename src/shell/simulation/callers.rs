//! The ACP clients of the simulation, over HTTP: they begin connections, open the streams of these and of their sessions,
//! post prompts, answers to questions and cancellations, read slowly, break streams anywhere and open them again, end their
//! connections, ask for what is not there, and check what they receive.
//!
//! A stream whose socket ended after all of it was read has lost nothing: what was not read comes on the next one, and at
//! most the last message again. Only what the kernel had taken of a stream that was thrown away unread may be lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use serde_json::{Value, json};

use super::lines::Pulled;
use super::wire::shown;
use crate::http1::Method;
use crate::testing::Random;

/// The stream of a session, or that of the connection.
type SessionName = Option<String>;

/// A request over HTTP.
#[derive(Clone, Debug)]
pub(super) enum What {
    Begin,
    /// A message that has an answer of this number.
    Ask(u64),
    /// An answer to the question of a worker.
    Reply(Value, String),
    Note,
    Open(SessionName),
    /// One that has to be refused with one of these statuses.
    Wrong(&'static [u16]),
    Delete,
    Nonsense,
}

/// A request, and the visit that it belongs to.
type CallerWire = super::wire::Wire<(What, usize)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CallerStage {
    #[default]
    Outside,
    Begins,
    Inside,
}

/// What a caller knows of a stream of its connection.
#[derive(Debug, Default)]
struct CallerStream {
    is_open: bool,
    /// What the last reader received at its end, which may come again: all if it was broken under it, or the last message.
    again: VecDeque<String>,
    may_skip: bool,
    received: Vec<String>,
    /// The last update of each request.
    steps: BTreeMap<u64, u64>,
    /// Something of it may have been lost.
    is_torn: bool,
}

#[derive(Default)]
pub(super) struct Caller {
    pub(super) name: usize,
    stage: CallerStage,
    /// The connection's id, and how many connections it has begun.
    id: Option<String>,
    visit: usize,
    pub(super) wires: Vec<CallerWire>,
    streams: BTreeMap<SessionName, CallerStream>,
    /// Sessions of this connection, and those of earlier ones.
    sessions: Vec<String>,
    old: Vec<String>,
    /// Unanswered requests, and the streams that their answers belong on.
    asked: BTreeMap<u64, SessionName>,
    /// Those whose answers may have been lost, or may come late.
    given_up: BTreeSet<u64>,
    /// Those that were answered on the stream that has their updates.
    answered: BTreeSet<u64>,
    /// Questions of workers that it has to answer.
    questions: VecDeque<(Value, String)>,
    next: u64,
    count: usize,
    /// Connections that ended without its doing, and those that it has ended itself.
    over: BTreeSet<usize>,
    deleted: BTreeSet<usize>,
    pub(super) results: usize,
    /// Streams that were opened again.
    pub(super) reopened: usize,
    pub(super) last: Option<Value>,
}

const HEAD: &str = "Host: 127.0.0.1\r\nAccept: application/json, text/event-stream\r\n";
const NONSENSE: [&str; 3] = [
    "POST /acp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "G\0T /acp HTTP/1.1\r\n\r\n",
    "POST /acp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1x\r\n\r\n",
];
/// The most sessions of a connection.
const SESSIONS: usize = 3;

impl Caller {
    pub(super) fn new(name: usize) -> Self {
        Self { name, next: 1, ..Self::default() }
    }

    pub(super) fn connects(&mut self, end: OwnedFd, inode: u64, random: &mut Random) {
        self.count += 1;
        self.wires.push(CallerWire::new(end, inode, self.count, random));
    }

    fn usable(&self, random: &mut Random) -> Option<usize> {
        let is_last = |(what, _): &(What, usize)| matches!(what, What::Open(_) | What::Nonsense);
        let usable: Vec<usize> = (0..self.wires.len()).filter(|at| self.wires[*at].may_ask(true, is_last)).collect();
        (!usable.is_empty()).then(|| *random.pick(&usable))
    }

    /// Whether it needs a connection to continue.
    pub(super) fn needs_wire(&self, random: &mut Random) -> bool {
        // Each stream takes one, and answers to questions need another. Those of a visit whose DELETE was cut off may go on.
        let is_left = |(what, visit): &(What, usize)| matches!(what, What::Open(_)) && *visit != self.visit;
        let left = self.wires.iter().filter(|wire| wire.waits.front().is_some_and(is_left)).count();
        let most = left + 9.max(self.sessions.len() + 3);
        self.wires.len() < most && (self.usable(random).is_none() || random.one_in(8))
    }

    /// Sends a request. False if there is none to send, or no connection for it.
    pub(super) fn asks(&mut self, random: &mut Random) -> bool {
        let Some(at) = self.usable(random) else { return false };
        match (self.stage, random.range(0..24)) {
            (_, 0) if self.wires[at].waits.is_empty() && random.one_in(3) => {
                self.wires[at].todo.extend(random.pick(&NONSENSE).bytes());
                self.wait(at, What::Nonsense);
            }
            (CallerStage::Outside, _) => self.begins(at, random),
            (CallerStage::Begins, _) => return false,
            (CallerStage::Inside, 1) => self.goes_wrong(at, random),
            (CallerStage::Inside, 2) if random.one_in(6) => self.ends(at),
            (CallerStage::Inside, 3) => {
                let Some(session) = self.session(random) else { return false };
                let note = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": self.params(&session)});
                self.post(at, &note, Some(&session), What::Note, random);
            }
            (CallerStage::Inside, 4) => self.list(at, random),
            (CallerStage::Inside, 5) => return self.loads(at, random),
            (CallerStage::Inside, 6..=12) => return self.does_its_duty(random) || self.prompts(at, random),
            (CallerStage::Inside, _) => return self.prompts(at, random),
        }
        true
    }

    fn wait(&mut self, at: usize, what: What) {
        self.wires[at].is_used = true;
        self.wires[at].waits.push_back((what, self.visit));
    }

    fn session(&self, random: &mut Random) -> Option<String> {
        (!self.sessions.is_empty()).then(|| random.pick(&self.sessions).clone())
    }

    fn params(&self, session: &str) -> Value {
        json!({"who": self.name, "visit": self.visit, "sessionId": session})
    }

    fn begins(&mut self, at: usize, random: &mut Random) {
        (self.stage, self.visit) = (CallerStage::Begins, self.visit + 1);
        let number = self.number();
        let params = json!({"protocolVersion": 1, "who": self.name, "visit": self.visit});
        let message = json!({"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params});
        self.post(at, &message, None, What::Begin, random);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Asks something, in this session if one is given.
    fn ask(&mut self, at: usize, method: &str, mut params: Value, session: Option<&str>, random: &mut Random) {
        let number = self.number();
        params["number"] = json!(number);
        params["who"] = json!(self.name);
        params["visit"] = json!(self.visit);
        params["length"] = json!(*random.pick(&[0, 100, 3000, 0, 100, 3000, 30_000, 100_000]));
        let message = json!({"jsonrpc": "2.0", "id": number, "method": method, "params": params});
        // The answer to `session/load` comes on the connection's stream, whatever its head says.
        let on = session.filter(|_| method != "session/load").map(str::to_owned);
        self.asked.insert(number, on);
        self.post(at, &message, session, What::Ask(number), random);
    }

    /// Prompts, or begins a session where there are too few.
    fn prompts(&mut self, at: usize, random: &mut Random) -> bool {
        if self.sessions.is_empty() || self.sessions.len() < SESSIONS && random.one_in(5) {
            if self.asked.values().filter(|on| on.is_none()).count() < SESSIONS {
                self.ask(at, "session/new", json!({"cwd": "/"}), None, random);
                return true;
            }
            return false;
        }
        let Some(session) = self.session(random) else { return false };
        let params = json!({"sessionId": session, "steps": random.range(0..5), "asks": random.one_in(3)});
        self.ask(at, "session/prompt", params, Some(&session), random);
        true
    }

    fn list(&mut self, at: usize, random: &mut Random) {
        self.ask(at, "session/list", json!({}), None, random);
    }

    /// Loads a session that it has, or had in an earlier connection. Its stream is opened before that.
    fn loads(&mut self, at: usize, random: &mut Random) -> bool {
        let is_old = !self.old.is_empty() && self.sessions.len() < SESSIONS;
        let session = if is_old { random.pick(&self.old).clone() } else { return false };
        self.old.retain(|old| *old != session);
        self.sessions.push(session.clone());
        let params = json!({"sessionId": session, "steps": random.range(0..4)});
        let head = random.one_in(2).then_some(&*session);
        self.ask(at, "session/load", params, head, random);
        true
    }

    /// A request that cannot be served.
    fn goes_wrong(&mut self, at: usize, random: &mut Random) {
        let list = json!({"jsonrpc": "2.0", "id": 0, "method": "session/list", "params": {}}).to_string();
        let id = self.id.clone().unwrap_or_default();
        let length = list.len();
        let json = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{list}");
        let (text, statuses): (String, &'static [u16]) = match random.range(0..5) {
            0 => (format!("POST /acp HTTP/1.1\r\n{HEAD}Acp-Connection-Id: x.y\r\n{json}"), &[404]),
            1 => (format!("POST /acp HTTP/1.1\r\n{HEAD}{json}"), &[400]),
            2 => (format!("GET /acp HTTP/1.1\r\n{HEAD}Acp-Connection-Id: x.y\r\n\r\n"), &[404]),
            3 => (format!("DELETE /acp HTTP/1.1\r\n{HEAD}\r\n"), &[400]),
            _ => {
                let batch = format!("[{list}]");
                let (length, head) = (batch.len(), format!("POST /acp HTTP/1.1\r\n{HEAD}Acp-Connection-Id: {id}\r\n"));
                let rest = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{batch}");
                (head + &rest, &[501])
            }
        };
        self.wires[at].todo.extend(text.bytes());
        self.wait(at, What::Wrong(statuses));
    }

    fn ends(&mut self, at: usize) {
        let head = format!("DELETE /acp HTTP/1.1\r\n{HEAD}{}\r\n", self.fields(None));
        self.wires[at].todo.extend(head.bytes());
        self.deleted.insert(self.visit);
        self.wait(at, What::Delete);
    }

    fn fields(&self, session: Option<&str>) -> String {
        let id = self.id.as_ref().map_or_else(String::new, |id| format!("Acp-Connection-Id: {id}\r\n"));
        id + &session.map_or_else(String::new, |name| format!("Acp-Session-Id: {name}\r\n"))
    }

    fn opens(&mut self, at: usize, name: SessionName) {
        let head = format!("GET /acp HTTP/1.1\r\n{HEAD}{}\r\n", self.fields(name.as_deref()));
        self.wires[at].todo.extend(head.bytes());
        let stream = self.streams.entry(name.clone()).or_default();
        self.reopened += usize::from(!stream.received.is_empty() || !stream.again.is_empty());
        stream.is_open = true;
        self.wait(at, What::Open(name));
    }

    fn post(&mut self, at: usize, message: &Value, session: Option<&str>, what: What, random: &mut Random) {
        let body = message.to_string();
        let mut fields = if matches!(what, What::Begin) { String::new() } else { self.fields(session) };
        let is_last = random.one_in(8);
        if is_last {
            fields.push_str("Connection: close\r\n");
        }
        let head = format!("POST /acp HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n{fields}");
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
        self.wait(at, what);
        self.wires[at].is_over |= is_last;
    }

    /// Whether something waits for it: a question, or a stream that nobody reads.
    pub(super) fn has_duty(&self) -> bool {
        self.stage == CallerStage::Inside && (!self.questions.is_empty() || self.closed_stream().is_some())
    }

    fn closed_stream(&self) -> Option<SessionName> {
        let names = self.sessions.iter().cloned().map(Some);
        let mut names = std::iter::once(None).chain(names);
        names.find(|name| !self.streams.get(name).is_some_and(|stream| stream.is_open))
    }

    /// Answers a question, or opens a stream. False if there is none, or no connection for it.
    pub(super) fn does_its_duty(&mut self, random: &mut Random) -> bool {
        if !self.has_duty() {
            return false;
        }
        let Some(at) = self.usable(random) else { return false };
        if let Some((id, session)) = self.questions.pop_front() {
            let result = json!({"who": self.name, "outcome": {"outcome": "cancelled"}});
            let message = json!({"jsonrpc": "2.0", "id": id, "result": result});
            let head = random.one_in(2).then_some(&*session);
            self.post(at, &message, head, What::Reply(id, session.clone()), random);
            return true;
        }
        let Some(name) = self.closed_stream() else { return false };
        self.opens(at, name);
        true
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
        let Some((what, visit)) = wire.waits.front().cloned() else {
            assert!(wire.came.is_empty(), "{} receives what it has not asked for: {:?}", self.name, shown(&wire.came));
            return false;
        };
        let method = match what {
            What::Open(_) => Method::Get,
            What::Delete => Method::Delete,
            _ => Method::Post,
        };
        let Some(taken) = wire.takes(self.name, method, "acp-connection-id") else { return false };
        match what {
            What::Begin if taken.id.is_some() && visit == self.visit => self.id = taken.id,
            What::Open(_) => {
                while let Some(event) = self.wires[at].next_event() {
                    self.takes_event(&event, &what, visit);
                }
            }
            _ => {}
        }
        if taken.is_over {
            self.is_answered(at, &what, visit);
        }
        true
    }

    fn takes_event(&mut self, event: &str, what: &What, visit: usize) {
        let What::Open(name) = what else { return };
        let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else {
            return assert!(event.starts_with(':'), "it says something: {event:?}");
        };
        let message = serde_json::from_str(data).unwrap_or_else(|_| panic!("an event is a message: {event:?}"));
        if visit != self.visit || self.stage != CallerStage::Inside {
            return self.on_repeated(&message);
        }
        let stream = self.streams.entry(name.clone()).or_default();
        stream.received.push(data.to_owned());
        let place = stream.again.iter().position(|again| again == data);
        if let Some(place) = place.filter(|place| stream.may_skip || *place == 0) {
            stream.again.drain(..=place);
            stream.may_skip = false;
            return;
        }
        stream.again.clear();
        self.on_message(name, &message);
    }

    /// A message of a connection that has ended, or was left: it is its own at least.
    fn on_repeated(&mut self, message: &Value) {
        let who = [&message["result"]["who"], &message["params"]["who"], &message["params"]["update"]["who"]];
        let is_its = who.iter().all(|who| who.is_null() || **who == json!(self.name));
        assert!(is_its, "{} receives what is of another: {message}", self.name);
    }

    /// A message has come on this stream.
    fn on_message(&mut self, name: &SessionName, message: &Value) {
        self.on_repeated(message);
        let params = &message["params"];
        if message["method"].is_string() {
            let session = params["sessionId"].as_str();
            assert!(session == name.as_deref(), "{} receives on the stream of {name:?}: {message}", self.name);
        }
        match message["method"].as_str() {
            Some("session/update") => {
                let update = &params["update"];
                let (number, step) = (update["number"].as_u64().unwrap_or(0), update["step"].as_u64().unwrap_or(0));
                assert!(
                    !self.answered.contains(&number),
                    "{} receives something of {number} behind its answer",
                    self.name
                );
                let stream = self.streams.entry(name.clone()).or_default();
                let last = stream.steps.insert(number, step).unwrap_or(0);
                let is_known = self.asked.contains_key(&number) && !stream.is_torn;
                let is_next = if is_known { step == last + 1 } else { step > last };
                assert!(is_next, "{}: the step {step} of {number} comes behind {last} in {name:?}", self.name);
            }
            Some("session/request_permission") => {
                let session = name.clone().expect("it names its session");
                self.questions.push_back((message["id"].clone(), session));
            }
            Some(_) => {}
            None => self.on_answer(name, message),
        }
    }

    fn on_answer(&mut self, name: &SessionName, message: &Value) {
        let Some(number) = message["id"].as_u64() else {
            return assert!(
                message["error"].is_object() && message["id"].is_null(),
                "{} receives {message}",
                self.name
            );
        };
        match self.asked.remove(&number) {
            Some(on) => assert_eq!(on, *name, "{}: {number} is answered on another stream", self.name),
            None => {
                let is_late = self.given_up.remove(&number);
                assert!(is_late, "{} has not asked this, or is answered twice: {message}", self.name);
            }
        }
        self.given_up.remove(&number);
        let result = &message["result"];
        if !result.is_object() {
            assert!(message["error"]["code"].is_i64(), "{} receives {message}", self.name);
            self.last = Some(message.clone());
            return;
        }
        assert_eq!((&result["who"], &result["number"]), (&json!(self.name), &json!(number)), "an answer is its own");
        // Between two streams there is no order: a session's history may come behind the answer to `session/load`.
        if name.is_some() {
            self.answered.insert(number);
        }
        self.results += 1;
        if let Some(session) = result["sessionId"].as_str() {
            self.sessions.push(session.to_owned());
        }
    }

    /// A response has ended.
    fn is_answered(&mut self, at: usize, what: &What, visit: usize) {
        let wire = &mut self.wires[at];
        wire.waits.pop_front();
        let response = wire.response.take().expect("an answer has a head");
        let body = std::mem::take(&mut wire.body);
        let mut cut = Vec::new();
        if response.closes {
            wire.is_closing = true;
            cut.extend(wire.waits.drain(..));
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if body["error"].is_object() {
            self.last = Some(body.clone());
        }
        let is_present = visit == self.visit && self.stage != CallerStage::Outside;
        let is_one_of = |known: &[u16]| {
            assert!(known.contains(&response.status), "{what:?} of {} is answered with {response:?} {body}", self.name);
        };
        let is_gone = response.status == 404 && is_present;
        match what {
            What::Begin => {
                is_one_of(&[200, 404, 429, 503]);
                if is_present {
                    let is_begun = response.status == 200 && body["result"].is_object();
                    assert_eq!(is_begun, self.id.is_some() && response.status == 200, "an error begins no connection");
                    self.stage = if is_begun { CallerStage::Inside } else { CallerStage::Outside };
                    self.id = self.id.take().filter(|_| is_begun);
                }
            }
            What::Ask(number) => {
                is_one_of(&[202, 404, 429, 503]);
                if response.status != 202 {
                    assert!(body["id"].is_null() || body["id"] == json!(number), "{body} is no answer to {number}");
                    if self.asked.remove(number).is_some() {
                        // It may have been taken before its connection was closed.
                        self.given_up.insert(*number);
                    }
                }
            }
            What::Note | What::Reply(..) => is_one_of(&[202, 404, 429, 503]),
            What::Open(name) => {
                is_one_of(&[200, 404, 409, 429, 503]);
                if response.status == 200 && is_present {
                    self.leaves(true);
                } else if is_present {
                    self.closes_stream(name, false, false);
                }
            }
            What::Wrong(statuses) => is_one_of(statuses),
            What::Delete => {
                is_one_of(&[202, 404]);
                if is_present {
                    self.leaves(false);
                }
            }
            What::Nonsense => is_one_of(&[400]),
        }
        if is_gone && self.stage == CallerStage::Inside && !matches!(what, What::Wrong(_) | What::Delete) {
            self.leaves(true);
        }
        cut.iter().for_each(|(what, visit)| self.cut_off(what, *visit, false, false));
    }

    /// Its connection has ended, by itself or not: it begins another one.
    pub(super) fn leaves(&mut self, is_over: bool) {
        if is_over {
            self.over.insert(self.visit);
        }
        (self.stage, self.id) = (CallerStage::Outside, None);
        self.given_up.extend(std::mem::take(&mut self.asked).into_keys());
        self.old.append(&mut self.sessions);
        self.streams.clear();
        self.questions.clear();
    }

    /// The socket of a stream has gone. If not all that was sent was read, something of it is lost.
    fn closes_stream(&mut self, name: &SessionName, is_torn: bool, is_broken: bool) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        (stream.is_open, stream.may_skip) = (false, true);
        let received = std::mem::take(&mut stream.received);
        let kept = if is_broken { received.len() } else { 1 };
        stream.again.extend(received.into_iter().rev().take(kept).collect::<Vec<_>>().into_iter().rev());
        if is_torn {
            stream.is_torn = true;
            let lost: Vec<u64> = self.asked.iter().filter(|(_, on)| *on == name).map(|(number, _)| *number).collect();
            lost.iter().for_each(|number| _ = self.asked.remove(number));
            self.given_up.extend(lost);
        }
    }

    /// The connection of a request has gone.
    fn cut_off(&mut self, what: &What, visit: usize, is_torn: bool, is_broken: bool) {
        if visit != self.visit || self.stage == CallerStage::Outside {
            return;
        }
        match what {
            What::Begin if self.stage == CallerStage::Begins => self.leaves(false),
            // It may have been taken, or not.
            What::Ask(number) if self.asked.remove(number).is_some() => {
                self.given_up.insert(*number);
            }
            What::Reply(id, session) => self.questions.push_back((id.clone(), session.clone())),
            What::Open(name) => self.closes_stream(name, is_torn, is_broken),
            // It may have ended the connection.
            What::Delete => self.leaves(false),
            _ => {}
        }
    }

    /// A connection ends, after all of it was read unless it is thrown away. If something is outstanding on it, the
    /// simulation has to know why (`is_known`).
    pub(super) fn loses(&mut self, at: usize, throws_away: bool, is_known: impl FnOnce() -> bool) {
        if !throws_away {
            while self.wires[at].pulls(1 << 16) == Pulled::Something {
                while self.takes(at) {}
            }
        }
        let wire = self.wires.remove(at);
        let is_owed = |(what, visit): &(What, usize)| match what {
            What::Nonsense => false,
            // A stream that is in the middle of an event cannot end properly if its connection does.
            What::Open(_) => *visit == self.visit && self.stage == CallerStage::Inside && wire.response.is_none(),
            _ => true,
        };
        let is_owed = wire.waits.iter().any(is_owed);
        let is_answered = wire.is_closing || wire.closes();
        assert!(is_answered || !is_owed || is_known(), "{} is left without an answer to {:?}", self.name, wire.waits);
        wire.waits.iter().for_each(|(what, visit)| self.cut_off(what, *visit, throws_away, wire.is_broken));
    }

    pub(super) fn is_done_with(&self, at: usize) -> bool {
        self.wires[at].is_done()
    }

    /// Whether nothing that it could still get is outstanding.
    pub(super) fn is_content(&self) -> bool {
        let waits = |wire: &CallerWire| {
            !wire.todo.is_empty() || wire.waits.iter().any(|(what, _)| !matches!(what, What::Open(_)))
        };
        !self.wires.iter().any(waits) && self.asked.is_empty() && !self.has_duty()
    }

    /// What it waits for, and how its connections are, for a world that hangs.
    pub(super) fn waits_for(&self) -> String {
        let open = self.streams.iter().filter(|(_, stream)| stream.is_open).map(|(name, _)| name);
        let (open, Self { name, stage, asked, questions, sessions, .. }) = (open.collect::<Vec<_>>(), self);
        let wires = self.wires.iter().map(|wire| {
            let left = (wire.todo.len(), wire.came.len(), wire.body.len());
            (wire.number, wire.is_broken, wire.is_closing, wire.is_over, left, &wire.waits)
        });
        let wires: Vec<_> = wires.collect();
        format!(
            "{name} is {stage:?} and waits for {asked:?}; questions {questions:?}; sessions {sessions:?}; open streams \
             {open:?}; connections {wires:?}"
        )
    }

    /// How many of its connections have ended without its doing.
    pub(super) fn ended(&self) -> usize {
        self.over.difference(&self.deleted).count()
    }

    /// Without failures it begins a connection and a session, and prompts.
    pub(super) fn continues(&mut self, random: &mut Random) {
        let at = self.wires.len() - 1;
        match self.stage {
            CallerStage::Outside => self.begins(at, random),
            CallerStage::Inside => _ = self.prompts(at, random),
            CallerStage::Begins => {}
        }
    }
}
