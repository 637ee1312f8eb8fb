//! What of a peer's input is passed over: a byte order mark ahead of its first line; and, in pools whose `on_bad_output`
//! says so, lines of a worker that are no messages, or are too long (spec 5.3 and 7.3.2 have such a worker restarted).
//!
//! Banners and lines of a log are what the SDK clients of MCP pass over, too: they are logged. A flood of them still
//! ends the worker. A line that is too long costs only the request that it answers: its members at top level are read
//! as it comes ([`Outline`]), and nothing of it is kept. Its length and its duration are limited.
//!
//! An array of messages (a batch of JSON-RPC, which MCP had in 2025-03-26 alone) is passed over, too, but the requests that
//! it answers fail at once: nothing else will answer them.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::{BYTE_ORDER_MARK as MARK, SkipValue, Window, decoded};

use super::id::Id;
use super::peer::{Moment, Peer, RequestKey, WorkerKey};
use super::port::Effect;
use super::reply::Delivered;
use super::report::Reason;
use super::settings::{Limits, MAX_REQUEST_ID_LEN, WRAPPED_LINE};
use crate::ctx::Ctx;
use crate::effects::EffectQueue;
use crate::intake::Flow;
use crate::peers::{Endpoint, Workers};
use crate::refusals::send_error;
use crate::requests::Requests;

/// Logged prefix of a line, in bytes.
const SHOWN: usize = 4 * 1024;
/// A line that is too long may have this many times the longest length, and take so long.
const MOST_TIMES: u64 = 64;
const LONGEST_TIME: Duration = Duration::from_secs(120);
/// Burst, and lines per second after it, of non-message output before a worker is stopped.
const MOST_AT_ONCE: u32 = 1_000;
const A_SECOND: u32 = 100;

/// What a worker has written that is no message.
#[derive(Default)]
pub(crate) struct BadLines {
    /// The line that is being passed over.
    line: Option<Box<BadLine>>,
    /// How many lines count against it, and since when they are forgotten again.
    count: u32,
    since: Moment,
    /// It was reported.
    is_known: bool,
}

impl BadLines {
    /// Whether it is in the middle of a line that is passed over.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.line.is_some()
    }

    /// Counts one more line. True if there are too many.
    fn is_flood(&mut self, now: Moment) -> bool {
        let forgotten = now.since(self.since).as_millis() as u64 * u64::from(A_SECOND) / 1_000;
        if forgotten > 0 {
            self.count = self.count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
            self.since = now;
        }
        self.count += 1;
        self.count > MOST_AT_ONCE
    }
}

/// A line that is passed over.
pub(super) struct BadLine {
    /// It is too long; else it is no message.
    is_too_long: bool,
    /// Its beginning, and its length so far.
    begin: Vec<u8>,
    length: u64,
    began: Moment,
    outline: Outline,
}

impl BadLine {
    /// The ids of the requests that it answers, if it is an array.
    pub(super) fn answered(&self) -> impl Iterator<Item = Id> {
        self.outline.answered.iter().filter_map(|id| Id::parse(id).ok())
    }

    fn take(&mut self, bytes: &[u8]) {
        let room = SHOWN - self.begin.len();
        self.begin.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len() as u64;
        self.outline.read(bytes);
    }
}

/// The members at top level of an object that comes in pieces: which request it is about, as far as that is clear. What
/// is no object has none. Of an array the ids of the answers in it are kept, and the rest is that of its last object.
#[derive(Default)]
struct Outline {
    place: Position,
    key: Vec<u8>,
    id: Vec<u8>,
    method: Vec<u8>,
    answers: bool,
    /// The id occurs twice, or is too long.
    is_unclear: bool,
    is_array: bool,
    /// The ids of the answers in an array, as written.
    answered: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Default)]
enum Position {
    /// Before the object.
    #[default]
    Begin,
    /// Before a key.
    Key,
    InKey(SkipValue),
    /// Behind a key.
    Colon,
    /// Before a value.
    Value,
    InValue(SkipValue),
    /// Behind the object, or in what is none.
    Over,
}

/// Longest key and method of interest.
const LONGEST_NAME: usize = 64;
/// Longest id of interest: one with an escape for each byte.
const LONGEST_ID: usize = 6 * MAX_REQUEST_ID_LEN + 2;
/// At most this many answers in an array are of interest.
const MOST_IN_AN_ARRAY: usize = 1_024;

impl Outline {
    fn read(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let is_blank = matches!(byte, b' ' | b'\t' | b'\r');
            self.place = match self.place {
                Position::Over => return,
                Position::InKey(mut skip) => {
                    let length = skip.read(&bytes[at..]);
                    let part = &bytes[at..at + length.unwrap_or(bytes.len() - at)];
                    keep(&mut self.key, part, LONGEST_NAME);
                    at += part.len();
                    self.place = if length.is_some() { Position::Colon } else { Position::InKey(skip) };
                    continue;
                }
                Position::InValue(mut skip) => {
                    let length = skip.read(&bytes[at..]);
                    let part = &bytes[at..at + length.unwrap_or(bytes.len() - at)];
                    match decoded(&self.key).as_deref() {
                        Some(b"id") => keep(&mut self.id, part, LONGEST_ID + 1),
                        Some(b"method") => keep(&mut self.method, part, LONGEST_NAME),
                        _ => {}
                    }
                    at += part.len();
                    self.place = if length.is_some() { Position::Key } else { Position::InValue(skip) };
                    continue;
                }
                place if is_blank => place,
                Position::Begin if byte == b'{' => Position::Key,
                Position::Begin if byte == b'[' && !self.is_array => {
                    self.is_array = true;
                    Position::Begin
                }
                Position::Begin if byte == b',' && self.is_array => Position::Begin,
                Position::Key if byte == b'}' && self.is_array => {
                    self.end_element();
                    Position::Begin
                }
                Position::Key if byte == b',' => Position::Key,
                Position::Key if byte == b'"' => {
                    self.key.clear();
                    self.place = Position::InKey(SkipValue::default());
                    continue;
                }
                Position::Colon if byte == b':' => Position::Value,
                Position::Value => {
                    match decoded(&self.key).as_deref() {
                        Some(b"id") => self.is_unclear |= !self.id.is_empty(),
                        Some(b"result" | b"error") => self.answers = true,
                        _ => {}
                    }
                    self.place = Position::InValue(SkipValue::default());
                    continue;
                }
                _ => Position::Over,
            };
            at += 1;
        }
    }

    /// An object in an array has ended.
    fn end_element(&mut self) {
        let answered = self.id_written().filter(|_| self.answers && self.answered.len() < MOST_IN_AN_ARRAY);
        if let Some(id) = answered.map(Vec::from) {
            self.answered.push(id);
        }
        self.id.clear();
        self.method.clear();
        (self.answers, self.is_unclear) = (false, false);
    }

    /// The id as written, if there is one and it is that of the line.
    fn id(&self) -> Option<&[u8]> {
        self.id_written().filter(|_| !self.is_array)
    }

    fn id_written(&self) -> Option<&[u8]> {
        let is_one = matches!(self.id.first(), Some(b'"' | b'-' | b'0'..=b'9'));
        (is_one && !self.is_unclear && self.id.len() <= LONGEST_ID).then_some(&self.id)
    }
}

fn keep(kept: &mut Vec<u8>, part: &[u8], most: usize) {
    let room = most.saturating_sub(kept.len());
    kept.extend_from_slice(&part[..part.len().min(room)]);
}

/// What bytes of a worker amid a line that is passed over come to.
pub(super) enum Passed {
    /// All of them belong to the line, which continues.
    GoesOn,
    /// The line ends behind so many of them.
    Ended(usize, Box<BadLine>),
    /// The line is too long even to be passed over: the worker is stopped, for this reason.
    Endless(String),
}

impl Passed {
    /// How many of these bytes belong to the line.
    pub(super) fn length_of(&self, bytes: &[u8]) -> usize {
        match self {
            Self::Ended(length, _) => *length,
            Self::GoesOn | Self::Endless(_) => bytes.len(),
        }
    }
}

/// What a line that was passed over costs.
pub(super) enum Cost {
    Nothing,
    /// The request that it answers.
    Request(RequestKey, Reason, String),
    /// The worker, which is replaced.
    Worker(Reason, String),
}

impl BadLines {
    /// A line is passed over from its first byte on.
    pub(super) fn begin(&mut self, began: Moment, is_too_long: bool) {
        let (begin, outline) = (Vec::new(), Outline::default());
        self.line = Some(Box::new(BadLine { is_too_long, begin, length: 0, began, outline }));
    }

    /// Takes bytes of the line that is passed over.
    pub(super) fn pass(&mut self, now: Moment, limits: &Limits, bytes: &[u8]) -> Passed {
        let most = limits.max_worker_line() as u64 * MOST_TIMES;
        let Some(line) = self.line.as_mut() else { return Passed::GoesOn };
        let end = memchr::memchr(b'\n', bytes);
        line.take(&bytes[..end.unwrap_or(bytes.len())]);
        let (length, lasts) = (line.length, now.since(line.began));
        if length > most || lasts > LONGEST_TIME {
            return Passed::Endless(format!(
                "a line is longer than {} and has not ended after {length} bytes and {} s",
                limits.longest_of_worker(),
                lasts.as_secs()
            ));
        }
        match end {
            Some(end) => self.line.take().map_or(Passed::GoesOn, |line| Passed::Ended(end + 1, line)),
            None => Passed::GoesOn,
        }
    }
}

impl Requests {
    /// What a line costs that was passed over and has ended.
    pub(super) fn cost_of(&self, ctx: &mut Ctx, worker: WorkerKey, line: Box<BadLine>) -> Cost {
        if line.is_too_long {
            self.cost_of_too_long(ctx, worker, &line)
        } else {
            self.cost_of_no_message(ctx, worker, *line)
        }
    }

    /// A line that is too long has ended: it costs the request that it answers.
    fn cost_of_too_long(&self, ctx: &mut Ctx, key: WorkerKey, line: &BadLine) -> Cost {
        let (reason, from) = (Reason::WorkerLineTooLong, Peer::Worker(key));
        let longest = ctx.settings.limits.longest_of_worker();
        let what = format!("longer than {longest}: raise that. It has {} bytes", line.length);
        let Outline { method, is_array, .. } = &line.outline;
        let id = line.outline.id();
        if !is_array && !method.is_empty() && !line.outline.answers {
            let shown = method.escape_ascii();
            let text = format!("a message {shown} is {what}, and is passed over");
            ctx.report(reason, Some(from), || text.clone());
            if let Some(id) = id {
                send_error(ctx, from, id, reason, &text, Delivered::No);
            }
            return Cost::Nothing;
        }
        if let Some(request) = id.and_then(|id| self.find(from, &Id::parse(id).ok()?)) {
            return Cost::Request(request, reason, format!("the answer is {what}"));
        }
        match id {
            Some(_) => ctx.report(reason, Some(from), || format!("an answer that nobody waits for is {what}")),
            // It may be the answer to any request.
            None if line.begin.first() == Some(&b'{') => {
                return Cost::Worker(reason, format!("a line is {what}, and does not say which request it answers"));
            }
            None => ctx.report(reason, Some(from), || format!("a line that is no message is {what}")),
        }
        Cost::Nothing
    }

    /// A line that is no message has ended. If it was to answer a request, that fails.
    fn cost_of_no_message(&self, ctx: &mut Ctx, key: WorkerKey, line: BadLine) -> Cost {
        let (reason, from, now) = (Reason::WorkerStdout, Peer::Worker(key), ctx.time.now());
        let Some(worker) = ctx.workers.get_mut(key) else { return Cost::Nothing };
        worker.undeliverable_mut().count_line();
        let is_first = !core::mem::replace(&mut worker.bad_lines_mut().is_known, true);
        if worker.bad_lines_mut().is_flood(now) {
            let text = format!(
                "a worker has written more than {MOST_AT_ONCE} lines to stdout that are no messages, and more than \
                 {A_SECOND} a second: it floods; messages alone belong on stdout, everything else on stderr"
            );
            return Cost::Worker(Reason::WorkerMalformed, text);
        }
        let request = line.outline.id().filter(|_| line.outline.answers);
        let request = request.and_then(|id| self.find(from, &Id::parse(id).ok()?));
        let length = line.length as usize;
        ctx.out.push(Effect::BadLine { worker: key, line: line.begin.into(), length });
        if is_first {
            ctx.report(reason, Some(from), || {
                "a worker writes lines to stdout that are no messages: they are passed over (pools[].on_bad_output), and \
                 logged as \"stdout: …\"; diagnostics belong on stderr"
                    .into()
            });
        } else {
            ctx.out.count_quietly(reason);
        }
        let text = "the answer is not valid JSON, so it was passed over; the log has its beginning";
        request.map_or(Cost::Nothing, |request| Cost::Request(request, Reason::WorkerMalformed, text.into()))
    }
}

/// A byte order mark is ahead of the first line of a peer, from `line` on in the window; the bytes before are blank
/// lines. It is passed over.
pub(super) fn skip_mark(end: &mut Endpoint, window: Window<'_>, line: usize) -> Option<Flow> {
    if end.traffic.lines_in > 0 || end.traffic.bytes_in > 0 {
        return None;
    }
    let (bytes, is_whole) = (&window.data()[line..], window.data()[line..].starts_with(MARK));
    if !is_whole && !MARK.starts_with(bytes) || end.stream.waits() {
        return None;
    }
    let to = if is_whole { line + MARK.len() } else { line };
    if is_whole {
        // There is only one.
        end.traffic.bytes_in += MARK.len() as u64;
    }
    Some(Flow::PassedOver { to, has_more: is_whole })
}

impl Limits {
    /// The limit of a worker's line, for people.
    pub(super) fn longest_of_worker(&self) -> String {
        format!("{WRAPPED_LINE} times limits.max_input_buffer, {} bytes", self.max_worker_line())
    }
}

impl Workers {
    /// A worker's output has ended amid a line that is passed over: its beginning is logged. The request that it answers
    /// fails with the worker.
    pub(super) fn end_stray(&mut self, out: &mut EffectQueue, key: WorkerKey) {
        if let Some(line) = self.get_mut(key).and_then(|worker| worker.bad_lines_mut().line.take())
            && line.outline.id().is_none()
        {
            let length = line.length as usize;
            out.push(Effect::BadLine { worker: key, line: line.begin.into(), length });
            out.count_quietly(Reason::WorkerStdout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Id, method, and whether it is an answer.
    fn outline(line: &str, step: usize) -> (Option<String>, String, bool) {
        let mut outline = Outline::default();
        line.as_bytes().chunks(step).for_each(|piece| outline.read(piece));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (outline.id().map(text), text(&outline.method), outline.answers)
    }

    #[test]
    fn the_members_of_a_line_are_found_however_it_is_cut() {
        for (line, id, method, answers) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":9,"x":["#, Some("7"), "", true),
            (r#" { "result" : {"a":"}\"id\":1"} , "id" : "a\"b" }"#, Some(r#""a\"b""#), "", true),
            (r#"{"\u0069d":7,"error":{"message":""#, Some("7"), "", true),
            (r#"{"method":"a/b","params":{"id":1,"data":"xxxx"#, None, "\"a/b\"", false),
            (r#"{"id":1,"id":2,"result":1"#, None, "", true),
            (r#"{"id":null,"result":1}"#, None, "", true),
            (r#"{"id":{"id":1},"result":1}"#, None, "", true),
            (r#"["id",1]"#, None, "", false),
            (r#"[{"id":1,"result":2}]"#, None, "", false),
            (r#"Server {"id":1,"result":2}"#, None, "", false),
            ("", None, "", false),
        ] {
            for step in [1, 2, 3, 1000] {
                let found = outline(line, step);
                assert_eq!(found, (id.map(String::from), method.to_owned(), answers), "{line} in pieces of {step}");
            }
        }
        assert_eq!(outline(&format!(r#"{{"id":"{}","result":1}}"#, "x".repeat(5_000)), 7).0, None);
    }

    #[test]
    fn the_answers_in_an_array_are_found_however_it_is_cut() {
        for (line, answered) in [
            (r#"[{"id":1,"result":{"id":9,"x":[{}]}},{"method":"m"},{"error":{},"id":"a"}]"#, &["1", r#""a""#][..]),
            (r#" [ {"jsonrpc":"2.0", "id" : 1 , "result":{} } , {"id":2,"method":"m"}]"#, &["1"]),
            (r#"[{"id":1,"id":2,"result":1},{"result":1},{"id":3,"result":1}"#, &["3"]),
            (r#"[{"id":1,"result":1"#, &[]),
            (r#"[[{"id":1,"result":1}]]"#, &[]),
            (r#"[INFO] {"id":1,"result":1}"#, &[]),
            (r#"{"id":1,"result":1},{"id":2,"result":1}"#, &[]),
        ] {
            for step in [1, 2, 3, 1000] {
                let mut outline = Outline::default();
                line.as_bytes().chunks(step).for_each(|piece| outline.read(piece));
                let found: Vec<_> = outline.answered.iter().map(|id| String::from_utf8_lossy(id)).collect();
                assert_eq!(found, answered, "{line} in pieces of {step}");
            }
        }
        let mut outline = Outline::default();
        outline.read(format!("[{}]", r#"{"id":1,"result":1},"#.repeat(5_000)).as_bytes());
        assert_eq!(outline.answered.len(), MOST_IN_AN_ARRAY);
    }

    #[test]
    fn a_burst_is_no_flood_and_what_continues_is_one() {
        let (mut bad_lines, mut now) = (BadLines::default(), Moment(1));
        assert!((0..MOST_AT_ONCE).all(|_| !bad_lines.is_flood(now)));
        assert!(bad_lines.is_flood(now));
        let mut bad_lines = BadLines::default();
        for _ in 0..100 * MOST_AT_ONCE {
            now = now.after(Duration::from_millis(11));
            assert!(!bad_lines.is_flood(now), "fewer than 100 a second may go on for ever");
        }
    }
}
