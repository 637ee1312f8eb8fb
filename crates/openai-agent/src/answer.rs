//! One streamed answer: response bytes in, pieces of text out, and at the end how it ended. Pure.
//!
//! What the body is, is told by its first character, not by its content type: `{` or `[` is JSON (of a server that
//! does not stream, or an error under status 200), `<` is a web page, anything else are events.
//!
//! The common event, a line of data that is one chunk, is read where it stands. Whatever is not that goes the slow
//! way: data of several lines are put together, and what says nothing is passed over and told ([`Piece::Skipped`]). An
//! event that is large is not read here at all but handed out ([`Answer::take_large`]), so that who has other work can
//! read it beside that.
//!
//! The invariants: the end is a success only if the endpoint said so, by a finish reason, by `[DONE]` or by a complete
//! JSON body, and a stream that breaks off before is an error, however much text it gave; nothing is told twice and
//! nothing in order is lost; and all that depends on the bytes alone, never on where they were cut.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use super::chunk::{Chunk, Kind, MOST_TOOLS, Origin, decode};
use super::complaint::{self, ServerError};
use super::errors::Failure;
use super::extent::Extent;
use super::finish::Finish;
use super::raw::Raw;
use super::speech::Speech;
use super::sse::{Field, Parser};
use super::usage::Usage;

/// How long an endpoint may be silent that seems to have said everything but keeps the connection open.
pub const GRACE: Duration = Duration::from_secs(2);

/// Bytes of an event from which on it is handed out.
const LARGE: usize = 256 << 10;

/// Most bytes of text of a large event that are told at once.
const SLICE: usize = 64 << 10;

/// Things that are found in an event before they are told.
const MOST_FOUND: usize = 1024;

/// Bytes of an open line up to which it is looked at for a sign of the end.
const SHORT: usize = 64 << 10;

/// Why a turn ended, as ACP names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    Refusal,
    Cancelled,
}

impl StopReason {
    /// The wire's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::Refusal => "refusal",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How an answer ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why.
    pub stop: StopReason,
    /// The counts, if the endpoint sent them.
    pub usage: Option<Usage>,
    /// The tools that the model asked for, by name as far as it named them; nothing if it asked for none.
    pub tools: Option<Vec<String>>,
}

/// What [`Answer::push`] finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text to forward.
    Delta(Kind, &'a str),
    /// An event that says nothing: it is passed over, and worth a line in the log.
    Skipped(&'a [u8]),
}

#[derive(Debug, PartialEq, Eq)]
enum Shape {
    Unknown,
    Events,
    Json,
    Page,
}

/// An answer that is being received.
#[derive(Debug)]
pub struct Answer {
    shape: Shape,
    parser: Parser,
    /// White space before a body whose shape is not known, and JSON that is not complete.
    body: Vec<u8>,
    extent: Extent,
    events: Events,
    /// Bytes that wait for a large event before them.
    rest: Vec<u8>,
    limit: usize,
}

impl Answer {
    /// An answer of which nothing has been received; `limit` is the most bytes of an event or a JSON body.
    pub fn new(limit: usize) -> Self {
        Self {
            shape: Shape::Unknown,
            parser: Parser::new(limit),
            body: Vec::new(),
            extent: Extent::default(),
            events: Events { limit, ..Events::default() },
            rest: Vec::new(),
            limit,
        }
    }

    /// Whether the endpoint said that this is all, or that it failed: nothing more needs to be read.
    pub fn is_over(&self) -> bool {
        self.events.said.is_over() || self.shape == Shape::Page
    }

    /// Whether the answer was not streamed, but came as one message.
    pub fn is_whole(&self) -> bool {
        self.events.said.is_whole
    }

    /// How long the endpoint may be silent now; nothing while there is no sign of the end. Some servers say that
    /// they have finished, or even `[DONE]`, and then neither end the line nor the response.
    pub fn grace(&self) -> Option<Duration> {
        let line = self.parser.open_line();
        let line_ends = || {
            let finds = |word: &str| memchr::memmem::find(line, word.as_bytes()).is_some();
            line.len() <= SHORT
                && match line.trim_ascii_end().last() {
                    Some(b']') => finds("[DONE]"),
                    Some(b'}') => finds("\"finish_reason\":\"") || finds("\"finish_reason\": \""),
                    _ => false,
                }
        };
        (self.events.said.may_be_over() || (!line.is_empty() && line_ends())).then_some(GRACE)
    }

    /// Takes the next bytes of the body. [`Self::take_large`] and [`Self::go_on`] have to be asked afterwards, unless
    /// [`Self::drain`] does both.
    pub fn push(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Piece<'_>)) {
        if self.events.is_waiting() || !self.rest.is_empty() {
            self.rest.extend_from_slice(bytes);
            return;
        }
        if self.shape == Shape::Unknown {
            let blank = |byte: &u8| b" \t\r\n\xef\xbb\xbf".contains(byte);
            let Some(first) = bytes.iter().position(|byte| !blank(byte)) else {
                // Blank lines before the first event mean nothing, but a byte order mark does.
                self.keep(bytes);
                return;
            };
            let before = std::mem::take(&mut self.body);
            match bytes[first] {
                b'{' | b'[' => {
                    self.shape = Shape::Json;
                    bytes = &bytes[first..];
                }
                b'<' => self.shape = Shape::Page,
                _ => {
                    self.shape = Shape::Events;
                    self.read_events(&before, &mut sink);
                }
            }
        }
        if self.shape == Shape::Json {
            let Some(end) = self.extent.feed(bytes) else { return self.keep(bytes) };
            self.keep(&bytes[..end]);
            self.shape = Shape::Events;
            self.events.said.had_json = true;
            bytes = &bytes[end..];
            let body = std::mem::take(&mut self.body);
            self.events.text(body, &mut sink);
            if self.events.is_waiting() {
                self.rest = bytes.to_vec();
                return;
            }
        }
        if self.shape == Shape::Events {
            self.read_events(bytes, &mut sink);
        }
    }

    /// The proper end of the body. As after [`Self::push`], [`Self::take_large`] and [`Self::go_on`] have to follow.
    pub fn end(&mut self, mut sink: impl FnMut(Piece<'_>)) {
        let events = &mut self.events;
        // Only what a proper end of the stream leaves behind can be a whole event.
        if self.shape == Shape::Events
            && let Err(too_long) = self.parser.finish(|field| events.field(field, &mut sink))
        {
            events.said.fail(Failure::TooLong(too_long.0));
        }
    }

    /// A large event that has to be read before the answer can go on; [`Self::give`] takes what it says.
    pub fn take_large(&mut self) -> Option<Large> {
        // What was found is told before more is looked for.
        if self.events.found.is_empty() { self.events.large.take() } else { None }
    }

    /// What a large event says. It is told by [`Self::go_on`].
    pub fn give(&mut self, digest: Digest) {
        self.events.found.extend(digest.found);
        self.events.large = digest.more;
        if let Some(text) = digest.incomplete {
            self.events.begin(text);
        }
    }

    /// Tells the next piece of a large event, or reads what came after it; whether there may be more to do.
    pub fn go_on(&mut self, mut sink: impl FnMut(Piece<'_>)) -> bool {
        if self.is_over() {
            self.events.found.clear();
            self.events.large = None;
        }
        if !self.events.found.is_empty() {
            self.events.tell_one(&mut sink);
        } else if self.events.large.is_some() {
            return true;
        } else if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            self.push(&rest, &mut sink);
        } else {
            return false;
        }
        true
    }

    /// Reads and tells all that waits, here and now.
    pub fn drain(&mut self, mut sink: impl FnMut(Piece<'_>)) {
        loop {
            if let Some(large) = self.take_large() {
                self.give(large.read());
            }
            if !self.go_on(&mut sink) {
                return;
            }
        }
    }

    /// How the answer ended. `trouble` says how the connection failed if the body did not end properly, else
    /// [`Self::end`] was called; `content_type` is what the response called itself.
    ///
    /// # Errors
    /// Why this is no complete answer.
    pub fn finish(
        mut self,
        trouble: Option<String>,
        content_type: &str,
        mut sink: impl FnMut(Piece<'_>),
    ) -> Result<Ending, Failure> {
        let said = &mut self.events.said;
        said.speech.finish(&mut |kind, text: &str| sink(Piece::Delta(kind, text)));
        let kind = || if content_type.is_empty() { "a body of no type".to_owned() } else { content_type.to_owned() };
        if let Some(failure) = said.failure.take() {
            return Err(failure);
        }
        if self.shape == Shape::Page {
            return Err(Failure::NotACompletion(kind()));
        }
        let finish = match said.finish.take() {
            Some(Finish::Failed(word) | Finish::Unknown(word)) => return Err(Failure::Ended(word.into())),
            finish => finish,
        };
        let has_ended = finish.is_some() || (said.done && said.began) || (said.is_whole && trouble.is_none());
        if !has_ended {
            let hint = said.hint.take();
            return Err(match (trouble, hint) {
                (None, Some(message)) if !said.began => Failure::Server(ServerError { code: None, message }),
                (None, None) if said.had_json && !said.began => Failure::NotACompletion(kind()),
                (Some(trouble), _) => Failure::Network(trouble),
                (None, hint) => {
                    let cause = match said.began || self.shape == Shape::Json {
                        true => "the stream ended before the answer was complete",
                        false => "the answer is empty",
                    };
                    Failure::Network(hint.map_or_else(|| cause.to_owned(), |hint| format!("{cause}; it said: {hint}")))
                }
            });
        }
        let stop = match finish {
            _ if said.refused => StopReason::Refusal,
            Some(Finish::Filtered) => StopReason::Refusal,
            Some(Finish::Length) => StopReason::MaxTokens,
            _ => StopReason::EndTurn,
        };
        let wants_tools = said.wants_tools || (finish == Some(Finish::Tools) && !said.has_text);
        let tools = wants_tools.then(|| std::mem::take(&mut said.tools));
        Ok(Ending { stop, usage: said.usage, tools })
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.body.len() + bytes.len() > self.limit {
            self.events.said.fail(Failure::TooLong(self.limit));
        } else {
            self.body.extend_from_slice(bytes);
        }
    }

    fn read_events(&mut self, bytes: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        let events = &mut self.events;
        match self.parser.push(bytes, |field| events.field(field, sink)) {
            Ok([]) => {}
            Ok(rest) => self.rest = rest.to_vec(),
            Err(too_long) => self.events.said.fail(Failure::TooLong(too_long.0)),
        }
    }
}

/// The events that are put together from the fields of the stream.
#[derive(Debug, Default)]
struct Events {
    /// Data that began a JSON value and did not end it, joined by LF.
    pending: Vec<u8>,
    extent: Extent,
    /// This event calls itself an error.
    is_error: bool,
    /// An event that is to be read elsewhere.
    large: Option<Large>,
    /// What was found in such an event, and is still to be told.
    found: VecDeque<Found>,
    said: Said,
    limit: usize,
}

impl Events {
    fn is_waiting(&self) -> bool {
        self.large.is_some() || !self.found.is_empty()
    }

    fn field(&mut self, field: Field<'_>, sink: &mut impl FnMut(Piece<'_>)) -> ControlFlow<()> {
        if self.said.is_over() {
            return ControlFlow::Continue(());
        }
        match field {
            Field::Data(data) if self.is_error => self.error(data),
            Field::Data(data) => self.data(data, sink),
            Field::End => {
                self.is_error = false;
                self.drop_pending(sink);
            }
            Field::Event(name) => self.is_error = name == b"error",
            Field::Error(data) => self.error(data),
            Field::Stray(line) => {
                let is_json = line.trim_ascii_start().starts_with(b"{");
                if is_json || !self.pending.is_empty() || line.trim_ascii() == b"[DONE]" {
                    self.data(line, sink);
                } else {
                    self.said.wonder(line);
                }
            }
        }
        if self.is_waiting() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// A line of data.
    fn data(&mut self, line: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        if line.starts_with(b"[") && line.trim_ascii() == b"[DONE]" {
            self.drop_pending(sink);
            self.said.done = true;
            return;
        }
        if !self.pending.is_empty() {
            return self.more_data(line, sink);
        }
        // Nearly every line is one chunk and ends here.
        if line.len() < LARGE && self.read(line, sink, |_| true) {
            return;
        }
        if !line.trim_ascii().is_empty() {
            self.text(line.to_vec(), sink);
        }
    }

    /// A line of data after one that began a value.
    fn more_data(&mut self, line: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        // Servers leave out the line between events: a line that is a chunk of its own is no part of what broke off
        // before it.
        let is_own =
            |value: Raw<'_>| value.get("choices").is_some() || value.get("error").is_some_and(|error| !error.is_null());
        if line.starts_with(b"{") && line.len() < LARGE && self.read(line, sink, is_own) {
            return self.drop_pending(sink);
        }
        if self.pending.len() + line.len() + 1 > self.limit {
            return self.said.fail(Failure::TooLong(self.limit));
        }
        self.pending.push(b'\n');
        self.pending.extend_from_slice(line);
        if self.extent.feed(line).is_some() {
            let text = std::mem::take(&mut self.pending);
            self.text(text, sink);
        }
    }

    /// Reads a line that is one object and nothing else, and that `is_wanted` wants; whether it was.
    fn read(&mut self, line: &[u8], sink: &mut impl FnMut(Piece<'_>), is_wanted: impl FnOnce(Raw<'_>) -> bool) -> bool {
        let value = Raw::read(line).filter(|value| value.is_object());
        let Some(value) = value.filter(|value| is_wanted(*value)) else { return false };
        let speech = &mut self.said.speech;
        let chunk = decode(value, |origin, kind, text| {
            speech.push(origin, kind, text, &mut |kind, text: &str| sink(Piece::Delta(kind, text)));
        });
        if !chunk.says_something() {
            sink(Piece::Skipped(line));
        }
        self.said.note(chunk, sink);
        true
    }

    /// A text that is not simply one chunk.
    fn text(&mut self, text: Vec<u8>, sink: &mut impl FnMut(Piece<'_>)) {
        if text.len() >= LARGE {
            self.large = Some(Large { text, at: 0 });
            return;
        }
        let digest = digest(text, 0);
        self.found.extend(digest.found);
        self.large = digest.more;
        while !self.found.is_empty() {
            self.tell_one(sink);
        }
        if let Some(text) = digest.incomplete {
            self.begin(text);
        }
    }

    /// A value that has begun and not ended.
    fn begin(&mut self, text: Vec<u8>) {
        self.extent = Extent::default();
        let _ = self.extent.feed(&text);
        self.pending = text;
    }

    /// Tells one thing that was found, or a slice of it.
    fn tell_one(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        let Some(found) = self.found.pop_front() else { return };
        if self.said.is_over() {
            return;
        }
        match found {
            Found::Text(origin, kind, text, at) => {
                let end = (at + SLICE).min(text.len());
                self.said.speech.push(origin, kind, &text[at..end], &mut |kind, text: &str| {
                    sink(Piece::Delta(kind, text));
                });
                if end < text.len() {
                    self.found.push_front(Found::Text(origin, kind, text, end));
                }
            }
            Found::Chunk(chunk, passed_over) => {
                if let Some(text) = passed_over {
                    sink(Piece::Skipped(&text));
                }
                self.said.note(*chunk, sink);
            }
            Found::Done => self.said.done = true,
            Found::Skipped(text) => {
                self.said.wonder(&text);
                sink(Piece::Skipped(&text));
            }
        }
    }

    /// What an event says that calls itself an error.
    fn error(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.said.done = true;
        } else if let Some(error) = complaint::of_text(&String::from_utf8_lossy(&data[..data.len().min(LARGE)])) {
            self.said.fail(Failure::Server(error));
        }
    }

    /// A value that was begun and will not be completed.
    fn drop_pending(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        if !self.pending.is_empty() {
            sink(Piece::Skipped(&std::mem::take(&mut self.pending)));
        }
    }
}

/// What the events said so far.
#[derive(Debug, Default)]
struct Said {
    speech: Speech,
    finish: Option<Finish>,
    /// Text came after a finish reason: this server gives one with every chunk.
    goes_on: bool,
    done: bool,
    refused: bool,
    usage: Option<Usage>,
    failure: Option<Failure>,
    /// There was a completion.
    began: bool,
    has_text: bool,
    /// There was a whole message outside a stream.
    is_whole: bool,
    /// The body was JSON, and has ended.
    had_json: bool,
    wants_tools: bool,
    tools: Vec<String>,
    /// Words that may say what is wrong, should the answer not end well.
    hint: Option<String>,
}

impl Said {
    fn is_over(&self) -> bool {
        self.done || self.failure.is_some()
    }

    fn may_be_over(&self) -> bool {
        (self.finish.is_some() && !self.goes_on) || self.had_json
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Keeps the first words that nobody understands.
    fn wonder(&mut self, words: &[u8]) {
        if self.hint.is_none() && !words.trim_ascii().is_empty() {
            let words = String::from_utf8_lossy(&words[..words.len().min(LARGE)]);
            self.hint = complaint::of_text(&words).map(|error| error.message);
        }
    }

    /// What a chunk says beside its text.
    fn note(&mut self, chunk: Chunk, sink: &mut impl FnMut(Piece<'_>)) {
        if chunk.has_message {
            self.speech.end_message(chunk.is_part, &mut |kind, text: &str| sink(Piece::Delta(kind, text)));
            self.is_whole |= !chunk.is_part;
        }
        self.began |= chunk.is_completion;
        self.has_text |= chunk.has_text;
        self.goes_on |= chunk.has_text && self.finish.is_some();
        self.refused |= chunk.refused;
        self.wants_tools |= chunk.wants_tools;
        for tool in chunk.tools {
            if self.tools.len() < MOST_TOOLS && !self.tools.contains(&tool) {
                self.tools.push(tool);
            }
        }
        self.usage = chunk.usage.or(self.usage);
        if let Some(error) = chunk.error {
            self.fail(Failure::Server(error));
        }
        if let Some(finish) = chunk.finish {
            if let Finish::Failed(word) = &finish {
                self.fail(Failure::Ended(word.to_string()));
            }
            self.finish = Some(finish.graver(self.finish.take()));
        }
        if let Some(words) = chunk.words {
            self.hint.get_or_insert(words);
        }
    }
}

/// An event that is too large to be read between two others, or what is left of it. It may be read on another thread.
#[derive(Debug)]
pub struct Large {
    text: Vec<u8>,
    /// Bytes that were read.
    at: usize,
}

impl Large {
    /// Reads it, or the next part of it.
    pub fn read(self) -> Digest {
        digest(self.text, self.at)
    }
}

/// What was found in a text, in order.
#[derive(Debug, Default)]
pub struct Digest {
    found: Vec<Found>,
    /// What is still to be read: there may be a million values in one event.
    more: Option<Large>,
    /// What began a value at the end of the text and did not end it.
    incomplete: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Found {
    /// A piece of text, of which so many bytes were told.
    Text(Origin, Kind, Vec<u8>, usize),
    /// What a chunk says beside its text, and itself if it says nothing.
    Chunk(Box<Chunk>, Option<Vec<u8>>),
    Done,
    Skipped(Vec<u8>),
}

impl Digest {
    /// Reads one chunk. Pieces of one kind are joined: a text in a million parts is one text.
    fn chunk(&mut self, value: Raw<'_>) {
        let found = &mut self.found;
        let chunk = decode(value, |origin, kind, text| match found.last_mut() {
            Some(Found::Text(before, same, all, _)) if (*before, *same) == (origin, kind) => {
                all.extend_from_slice(text)
            }
            _ => found.push(Found::Text(origin, kind, text.to_vec(), 0)),
        });
        let passed_over = (!chunk.says_something()).then(|| value.bytes().to_vec());
        self.found.push(Found::Chunk(Box::new(chunk), passed_over));
    }
}

/// Finds the JSON values in a text, of which a server may have put several into one event, with `data:` between them
/// or nothing at all.
fn digest(text: Vec<u8>, at: usize) -> Digest {
    let mut digest = Digest::default();
    let mut rest = &text[at..];
    let mut has_begun = at > 0;
    loop {
        if digest.found.len() >= MOST_FOUND {
            let at = text.len() - rest.len();
            digest.more = Some(Large { text, at });
            return digest;
        }
        rest = rest.trim_ascii_start();
        while let Some(more) = rest.strip_prefix(b"data:") {
            rest = more.trim_ascii_start();
        }
        if let Some(more) = rest.strip_prefix(b"[DONE]").or_else(|| rest.strip_prefix(b"\"[DONE]\"")) {
            digest.found.push(Found::Done);
            rest = more;
            has_begun = true;
            continue;
        }
        match rest.first() {
            None => return digest,
            // What parts the chunks of an array, and ends it.
            Some(b',' | b']') if has_begun => rest = &rest[1..],
            Some(b'{' | b'[') => {
                let Some(end) = Extent::default().feed(rest) else {
                    digest.incomplete = Some(rest.to_vec());
                    return digest;
                };
                let (value, more) = rest.split_at(end);
                has_begun = true;
                match Raw::read(value) {
                    Some(list) if list.items().next().is_some_and(Raw::is_object) => {
                        rest = &rest[1..];
                        continue;
                    }
                    Some(value) => digest.chunk(value),
                    None => digest.found.push(Found::Skipped(value.to_vec())),
                }
                rest = more;
            }
            Some(_) => {
                digest.found.push(Found::Skipped(rest.to_vec()));
                return digest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn run(chunks: &[&[u8]], trouble: Option<&str>) -> (String, Result<Ending, Failure>) {
        let (mut answer, mut text) = (Answer::new(1 << 20), String::new());
        let mut sink = |piece: Piece<'_>| {
            if let Piece::Delta(Kind::Text, more) = piece {
                text.push_str(more);
            }
        };
        for chunk in chunks {
            answer.push(chunk, &mut sink);
            answer.drain(&mut sink);
        }
        if trouble.is_none() {
            answer.end(&mut sink);
            answer.drain(&mut sink);
        }
        let ending = answer.finish(trouble.map(str::to_owned), "text/event-stream", &mut sink);
        (text, ending)
    }

    fn whole(body: &str) -> (String, Result<Ending, Failure>) {
        run(&[body.as_bytes()], None)
    }

    fn delta(text: &str) -> String {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":{}}}}}]}}\n\n", serde_json::Value::from(text))
    }

    const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

    fn stop(ending: &Result<Ending, Failure>) -> Option<StopReason> {
        ending.as_ref().ok().map(|ending| ending.stop)
    }

    #[test]
    fn an_answer_ends_with_done_or_with_a_finish_reason() {
        for tail in [STOP, "data: [DONE]\n\n", "data: [DONE]", "data:[DONE]\r\n\r\n"] {
            let (text, ending) = whole(&format!("{}{tail}", delta("hi")));
            assert_eq!((text.as_str(), stop(&ending)), ("hi", Some(StopReason::EndTurn)), "{tail}");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_is_an_error() {
        assert!(matches!(whole(&delta("hi")).1, Err(Failure::Network(_))));
        assert!(matches!(whole("").1, Err(Failure::Network(_))));
        assert!(matches!(whole(": ping\n\n").1, Err(Failure::Network(_))));
        let broken = run(&[delta("hi").as_bytes()], Some("reset"));
        assert_eq!(broken.1, Err(Failure::Network("reset".into())));
        // The model had finished: what is missing is only the farewell.
        assert!(run(&[delta("hi").as_bytes(), STOP.as_bytes()], Some("reset")).1.is_ok());
        // A torn event counts for nothing, be it the last one.
        assert!(run(&[delta("hi").as_bytes(), STOP.trim_end().as_bytes()], Some("reset")).1.is_err());
        assert!(run(&[b"{\"choices\":[{\"message\":{\"content\":\"x\"}}]}"], Some("reset")).1.is_err());
    }

    #[test]
    fn a_plain_body_is_an_answer_and_a_page_is_not() {
        let (text, ending) =
            whole("\n {\"choices\":[{\"message\":{\"content\":\"all\"},\"finish_reason\":\"length\"}]}");
        assert_eq!((text.as_str(), stop(&ending)), ("all", Some(StopReason::MaxTokens)));
        assert!(matches!(whole("<!doctype html><p>x").1, Err(Failure::NotACompletion(_))));
        assert!(matches!(whole("{\"hello\":1}").1, Err(Failure::NotACompletion(_))));
        assert!(matches!(whole("{\"error\":{\"message\":\"m\",\"code\":401}}").1, Err(Failure::Server(_))));
    }

    #[test]
    fn an_error_within_the_stream_is_an_error() {
        let (text, ending) =
            whole(&format!("{}data: {{\"error\":{{\"message\":\"m\",\"code\":\"429\"}}}}\n\n{STOP}", delta("a")));
        assert_eq!(text, "a");
        assert_eq!(ending, Err(Failure::Server(ServerError { code: Some(429), message: "m".into() })));
    }

    #[test]
    fn what_is_no_json_is_passed_over() {
        let (text, ending) = whole(&format!("data: : keepalive\n\n{}data: {{oops\n\n{}{STOP}", delta("a"), delta("b")));
        assert_eq!((text.as_str(), stop(&ending)), ("ab", Some(StopReason::EndTurn)));
    }

    #[test]
    fn events_without_the_line_between_them_are_told_apart() {
        let joined = format!("{}{}{STOP}", delta("a"), delta("b")).replace("\n\n", "\n");
        assert_eq!(whole(&joined).0, "ab");
        let spread = "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"c\"}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(whole(spread).0, "c");
    }

    #[test]
    fn silence_is_the_end_only_where_the_endpoint_seems_to_have_finished() {
        let with_finish = |text: &str| delta(text).replace("}]}", ",\"finish_reason\":\"stop\"}]}");
        let grace = |body: &str| {
            let mut answer = Answer::new(1 << 20);
            answer.push(body.as_bytes(), |_| ());
            answer.drain(|_| ());
            answer.grace()
        };
        let finished = with_finish("a");
        assert_eq!(whole(&finished).1.map(|ending| ending.stop), Ok(StopReason::EndTurn), "{finished}");
        for over in [
            finished.as_str(),
            finished.trim_end(),
            "data: [DONE]",
            "{\"choices\":[{\"message\":{\"content\":\"a\"}}]}",
            &format!("{}{STOP}", delta("a")),
        ] {
            assert_eq!(grace(over), Some(GRACE), "{over}");
        }
        let goes_on = format!("{finished}{}", with_finish("b"));
        for more in ["", ": ping\n\n", &delta("a"), delta("a").trim_end(), &goes_on, "{\"choices\":[{"] {
            assert_eq!(grace(more), None, "{more}");
        }
    }

    #[test]
    fn a_large_event_is_handed_out_and_told_in_slices() {
        let text = "é".repeat(LARGE);
        let body = format!("{}{}{STOP}", delta(&text), delta("after"));
        let (mut answer, mut heard) = (Answer::new(1 << 25), String::new());
        answer.push(body.as_bytes(), |piece| panic!("{piece:?}"));
        let large = answer.take_large().unwrap();
        assert!(answer.take_large().is_none());
        let digest = std::thread::spawn(|| large.read()).join().unwrap();
        answer.give(digest);
        let mut steps = 0;
        while answer.go_on(|piece| {
            if let Piece::Delta(Kind::Text, more) = piece {
                assert!(more.len() <= SLICE + 3);
                heard.push_str(more);
            }
        }) {
            steps += 1;
        }
        assert!(steps > text.len() / SLICE, "{steps}");
        assert_eq!(heard, text + "after");
        answer.end(|_| ());
        assert_eq!(stop(&answer.finish(None, "", |_| ())), Some(StopReason::EndTurn));
    }

    #[test]
    fn a_whole_message_in_a_million_parts_is_told_in_few_slices() {
        let parts = format!("\"é\"{}", ",\"é\"".repeat(LARGE / 2));
        let body = format!("{{\"choices\":[{{\"message\":{{\"content\":[{parts}]}},\"finish_reason\":\"stop\"}}]}}");
        let (mut answer, mut heard, mut steps) = (Answer::new(1 << 25), String::new(), 0);
        answer.push(body.as_bytes(), |piece| panic!("{piece:?}"));
        let large = answer.take_large().unwrap();
        answer.give(large.read());
        while answer.go_on(|piece| {
            if let Piece::Delta(Kind::Text, more) = piece {
                assert!(more.len() <= SLICE + 3);
                heard.push_str(more);
            }
        }) {
            steps += 1;
        }
        assert_eq!(heard, "é".repeat(LARGE / 2 + 1));
        assert!(steps <= heard.len() / SLICE + 3, "{steps}");
        answer.end(|_| ());
        assert_eq!(stop(&answer.finish(None, "", |_| ())), Some(StopReason::EndTurn));
    }

    #[test]
    fn of_a_million_chunks_in_one_event_few_are_held_at_once() {
        let chunk = |text: &str| format!("{{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}");
        let many = vec![chunk("x"); LARGE / 16];
        for (name, event) in [
            ("in an array", format!("[{}]", many.join(","))),
            ("one after the other", many.concat()),
            ("[DONE] a hundred thousand times", many.concat() + &"[DONE]".repeat(100_000)),
        ] {
            let body = format!("data: {event}\n\n{}{STOP}", delta("after"));
            let (mut answer, mut heard, mut most) = (Answer::new(1 << 25), String::new(), 0);
            answer.push(body.as_bytes(), |piece| panic!("{piece:?}"));
            loop {
                if let Some(large) = answer.take_large() {
                    answer.give(large.read());
                }
                most = most.max(answer.events.found.len());
                let sink = |piece: Piece<'_>| match piece {
                    Piece::Delta(_, text) => heard.push_str(text),
                    Piece::Skipped(data) => panic!("{}", data.escape_ascii()),
                };
                if !answer.go_on(sink) {
                    break;
                }
            }
            let after = if event.ends_with("[DONE]") { "" } else { "after" };
            assert_eq!(heard, "x".repeat(many.len()) + after, "{name}");
            assert!(most <= MOST_FOUND + 2, "{name}: {most}");
        }
    }

    #[test]
    fn refusals_and_filters_end_as_refusal() {
        let refusal = "data: {\"choices\":[{\"delta\":{\"refusal\":\"no\"},\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(stop(&whole(refusal).1), Some(StopReason::Refusal));
        let filter = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\n";
        assert_eq!(stop(&whole(filter).1), Some(StopReason::Refusal));
        let tools = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]},\"finish_reason\":\"tool_calls\"}]}\n\n";
        assert_eq!(stop(&whole(tools).1), Some(StopReason::EndTurn));
    }

    #[test]
    fn litellm_sends_counts_without_a_finish_reason() {
        let body = "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        let ending = whole(body).1.unwrap();
        assert_eq!(ending.usage.map(|usage| usage.total_tokens), Some(3));
    }

    proptest! {
        #[test]
        fn any_text_cut_anywhere_arrives_whole(
            texts in proptest::collection::vec("\\PC{1,12}", 0..8),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let body: String = texts.iter().map(|text| delta(text)).collect::<String>() + STOP;
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            at.extend([0, body.len()]);
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|pair| &body.as_bytes()[pair[0]..pair[1]]).collect();
            let (text, ending) = run(&chunks, None);
            prop_assert_eq!(text, texts.concat());
            prop_assert_eq!(stop(&ending), Some(StopReason::EndTurn));
        }

        #[test]
        fn no_bytes_panic_and_a_prefix_is_never_a_success(
            noise in proptest::collection::vec(any::<u8>(), 0..200), keep in any::<prop::sample::Index>(),
        ) {
            let _ = run(&[&noise], None);
            let body = delta("some text") + STOP.trim_end_matches('\n');
            let cut = keep.index(body.len());
            prop_assert!(run(&[&body.as_bytes()[..cut]], None).1.is_err());
        }
    }
}
