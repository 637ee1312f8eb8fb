//! One streamed answer: takes response bytes, returns pieces of text, and at the end how it ended. Pure.
//!
//! The type of the body is determined by its first character, not by its content type: `{` or `[` is JSON (of a server
//! that does not stream, or an error under status 200), `<` is a web page, anything else is events.
//!
//! The common event, a line of data that is one chunk, is read in place. Everything else takes the slow path: data of
//! several lines are joined, and an event without meaning is skipped and reported ([`Piece::Skipped`]).
//!
//! The invariants: the end is a success only if the endpoint said so, by a finish reason, by `[DONE]` or by a complete
//! JSON body; a stream that breaks off before is an error, however much text it sent, and so is one whose last words
//! before `[DONE]` are no chunk but, say, the words of a proxy; nothing is forwarded twice and nothing in order is lost;
//! and all that depends on the bytes alone, never on where they were cut.
//!
//! Text in a delta is new. Text in a message may be the whole answer (a stream that ends with it, as MiniMax's), all of
//! it so far (a stream of messages that grow), or, from servers that call a delta a message, new text. Of a message that
//! begins with all previous text only the rest is new; a message that repeats the answer in slightly other words is
//! recognised by what `Track::repeats` asks; any other message is new text.
//!
//! A delta that begins with all previous text is forwarded as it is. Alibaba's Model Studio is known to have sent
//! deltas that grow, but its documentation promises increments, and "ha" and then "haha" are increments too: treating
//! them as growing would lose text from endpoints that follow the rule.
//!
//! Reasoning that a model writes into its answer, `<think>…</think>` at the beginning, becomes thought. Only blocks
//! before the answer count, with nothing but white space before and between them; later text is the answer, even if it
//! is about such tags. White space around a block, and at its beginning, is dropped. A block that is never closed is
//! thought to its end. What is thought and what is answer depends on the text alone, never on where it was cut, and all
//! of it but the tags and the white space around them is forwarded in order.

use super::body::{Field, Parser};
use super::chunk::{Chunk, Finish, Kind, Origin, Usage, decode};
use super::failure::{self, Failure, ServerError};
use super::json::{Characters, Extent, Raw};
use serde::Serialize;
use std::time::Duration;

/// How long an endpoint may be silent that seems to be finished but keeps the connection open.
pub const GRACE: Duration = Duration::from_secs(2);

/// Maximum number of bytes examined of words that are not understood.
const MOST_WORDS: usize = 256 << 10;

/// An open line is searched for a sign of the end only up to this many bytes.
const SHORT: usize = 64 << 10;

/// Why a turn ended, as ACP names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    Refusal,
    Cancelled,
}

/// How an answer ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The reason.
    pub stop: StopReason,
    /// The counts, if the endpoint sent them.
    pub usage: Option<Usage>,
    /// Whether the model asked for tools.
    pub wants_tools: bool,
}

/// What [`Answer::push`] finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text to forward.
    Delta(Kind, &'a str),
    /// An event without meaning: it is skipped, and worth a line in the log.
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
    /// White space before a body of unknown type, and JSON that is not complete.
    body: Vec<u8>,
    extent: Extent,
    events: Events,
    limit: usize,
}

impl Answer {
    /// An answer of which nothing has been received; `limit` is the maximum size of an event or a JSON body in bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            shape: Shape::Unknown,
            parser: Parser::new(limit),
            body: Vec::new(),
            extent: Extent::default(),
            events: Events { limit, ..Events::default() },
            limit,
        }
    }

    /// Whether the endpoint said that the answer is complete or failed: nothing more needs to be read.
    pub fn is_over(&self) -> bool {
        self.events.said.is_over() || self.shape == Shape::Page
    }

    /// How long the endpoint may be silent now; `None` while there is no sign of the end. Some servers report the end,
    /// or even send `[DONE]`, and then end neither the line nor the response.
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
        let said = &self.events.said;
        let may_be_over = (said.finish.is_some() && !said.goes_on) || said.had_json;
        (may_be_over || (!line.is_empty() && line_ends())).then_some(GRACE)
    }

    /// Takes the next bytes of the body.
    pub fn push(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Piece<'_>)) {
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
            self.events.text(&body, &mut sink);
        }
        if self.shape == Shape::Events {
            self.read_events(bytes, &mut sink);
        }
    }

    /// The proper end of the body.
    pub fn end(&mut self, mut sink: impl FnMut(Piece<'_>)) {
        let events = &mut self.events;
        // Only a proper end of the stream can leave a whole event behind.
        if self.shape == Shape::Events
            && let Err(too_long) = self.parser.finish(|field| events.field(field, &mut sink))
        {
            events.said.fail(too_long);
        }
    }

    /// Returns how the answer ended. `trouble` is the connection error if the body did not end properly, else
    /// [`Self::end`] was called; `content_type` is that of the response.
    ///
    /// # Errors
    /// Why this is not a complete answer.
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
            Some(Finish::Failed(word)) => return Err(Failure::Ended(word.into_owned())),
            Some(Finish::Unknown(word)) => return Err(Failure::Ended(word)),
            finish => finish,
        };
        // A server that gives a reason with every chunk has not said that this one was the last.
        let has_finished = finish.is_some() && !(said.goes_on && said.trails_off);
        let is_done = said.done && said.began && !said.trails_off;
        if !(has_finished || is_done || (said.is_whole() && trouble.is_none())) {
            return Err(match (trouble, said.hint.take()) {
                (None, Some(message)) if !said.began => Failure::Server(ServerError { code: None, message }),
                (None, None) if said.had_json && !said.began => Failure::NotACompletion(kind()),
                (Some(trouble), _) => Failure::Network(trouble),
                (None, hint) => {
                    let cause = if said.began || self.shape == Shape::Json {
                        "the stream ended before the answer was complete"
                    } else {
                        "the answer is empty"
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
        Ok(Ending { stop, usage: said.usage, wants_tools })
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
        if let Err(too_long) = self.parser.push(bytes, |field| events.field(field, sink)) {
            self.events.said.fail(too_long);
        }
    }
}

/// The events assembled from the fields of the stream.
#[derive(Debug, Default)]
struct Events {
    /// Data that began a JSON value without ending it, joined by LF.
    pending: Vec<u8>,
    extent: Extent,
    /// This event is named an error.
    is_error: bool,
    said: Said,
    limit: usize,
}

impl Events {
    fn field(&mut self, field: Field<'_>, sink: &mut impl FnMut(Piece<'_>)) {
        if self.said.is_over() {
            return;
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
                    self.said.trails_off |= !is_field(line);
                    self.said.keep_hint(line);
                }
            }
        }
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
        if self.read(line, sink, |_| true) {
            return;
        }
        if !line.trim_ascii().is_empty() {
            self.text(line, sink);
        }
    }

    /// A line of data after one that began a value.
    fn more_data(&mut self, line: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        // Servers leave out the line between events: a line that is a chunk of its own is not part of what broke off
        // before it.
        let is_own =
            |value: Raw<'_>| value.get("choices").is_some() || value.get("error").is_some_and(|error| !error.is_null());
        if line.starts_with(b"{") && self.read(line, sink, is_own) {
            return self.drop_pending(sink);
        }
        if self.pending.len() + line.len() + 1 > self.limit {
            return self.said.fail(Failure::TooLong(self.limit));
        }
        self.pending.push(b'\n');
        self.pending.extend_from_slice(line);
        if self.extent.feed(line).is_some() {
            let text = std::mem::take(&mut self.pending);
            self.text(&text, sink);
        }
    }

    /// Reads a line that is a single object and that `is_wanted` accepts; returns whether it was.
    fn read(&mut self, line: &[u8], sink: &mut impl FnMut(Piece<'_>), is_wanted: impl FnOnce(Raw<'_>) -> bool) -> bool {
        let value = Raw::read(line).filter(|value| value.is_object());
        let Some(value) = value.filter(|value| is_wanted(*value)) else { return false };
        self.chunk(value, sink);
        true
    }

    fn chunk(&mut self, value: Raw<'_>, sink: &mut impl FnMut(Piece<'_>)) {
        let speech = &mut self.said.speech;
        let chunk = decode(value, |origin, kind, text| {
            speech.push(origin, kind, text, &mut |kind, text: &str| sink(Piece::Delta(kind, text)));
        });
        if !chunk.says_something() {
            sink(Piece::Skipped(value.bytes()));
        }
        self.said.note(chunk, sink);
    }

    /// A text that is not simply one chunk. A server may have put several values into one event, with `data:` between
    /// them or nothing at all.
    fn text(&mut self, text: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        let (mut rest, mut has_begun) = (text, false);
        while !self.said.is_over() {
            rest = rest.trim_ascii_start();
            while let Some(more) = rest.strip_prefix(b"data:") {
                rest = more.trim_ascii_start();
            }
            if rest.starts_with(b"[DONE]") || rest.starts_with(b"\"[DONE]\"") {
                self.said.done = true;
                return;
            }
            match rest.first() {
                None => return,
                // The separator of the chunks of an array, and its end.
                Some(b',' | b']') if has_begun => rest = &rest[1..],
                Some(b'{' | b'[') => {
                    let Some(end) = Extent::default().feed(rest) else {
                        // A value that has begun but not ended.
                        self.extent = Extent::default();
                        let _ = self.extent.feed(rest);
                        self.pending = rest.to_vec();
                        return;
                    };
                    let (value, more) = rest.split_at(end);
                    has_begun = true;
                    match Raw::read(value) {
                        Some(list) if list.items().next().is_some_and(Raw::is_object) => {
                            rest = &rest[1..];
                            continue;
                        }
                        Some(value) => self.chunk(value, sink),
                        None => self.skip(value, sink),
                    }
                    rest = more;
                }
                Some(_) => return self.skip(rest, sink),
            }
        }
    }

    fn skip(&mut self, text: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        self.said.trails_off |= !is_idle(text);
        self.said.keep_hint(text);
        sink(Piece::Skipped(text));
    }

    /// The text of an event that is named an error.
    fn error(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.said.done = true;
        } else if let Some(error) = failure::of_text(&String::from_utf8_lossy(&data[..data.len().min(MOST_WORDS)])) {
            self.said.fail(Failure::Server(error));
        }
    }

    /// Drops a value that was begun and will not be completed.
    fn drop_pending(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        if !self.pending.is_empty() {
            self.said.trails_off = true;
            sink(Piece::Skipped(&std::mem::take(&mut self.pending)));
        }
    }
}

/// Whether a line is a field of a name that the standard does not know; it is to be ignored.
fn is_field(line: &[u8]) -> bool {
    let name = memchr::memchr(b':', line).map_or(&[][..], |colon| &line[..colon]);
    !name.is_empty()
        && name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(byte))
}

/// Whether data that is no chunk only keeps the connection open: a comment, one of the usual words, or a value that
/// holds nothing.
fn is_idle(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let word = text.trim_ascii_end().strip_suffix(b".").unwrap_or(text).to_ascii_lowercase();
    text.starts_with(b":")
        || text.iter().all(u8::is_ascii_control)
        || Raw::read(text).is_some_and(|value| value.string().is_none_or(|text| text.is_empty()))
        || [&b"ping"[..], b"pong", b"keepalive", b"keep-alive", b"keep_alive", b"heartbeat"].contains(&&*word)
}

/// The state gathered from the events so far.
#[derive(Debug, Default)]
struct Said {
    speech: Speech,
    finish: Option<Finish>,
    /// Text came after a finish reason: this server sends one with every chunk.
    goes_on: bool,
    done: bool,
    refused: bool,
    usage: Option<Usage>,
    failure: Option<Failure>,
    /// A completion was received.
    began: bool,
    has_text: bool,
    /// What was received last is neither a chunk nor a way to keep the connection open.
    trails_off: bool,
    /// How many messages were received, and whether the last of them was a whole completion.
    messages: usize,
    last_is_whole: bool,
    /// The body was JSON and is complete.
    had_json: bool,
    wants_tools: bool,
    /// Words that may say what is wrong, in case the answer does not end well.
    hint: Option<String>,
}

impl Said {
    fn is_over(&self) -> bool {
        self.done || self.failure.is_some()
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Keeps the first words that are not understood.
    fn keep_hint(&mut self, words: &[u8]) {
        if self.hint.is_none() && !words.trim_ascii().is_empty() {
            let words = String::from_utf8_lossy(&words[..words.len().min(MOST_WORDS)]);
            self.hint = failure::of_text(&words).map(|error| error.message);
        }
    }

    /// Whether a complete message that is not a part of a stream was received.
    fn is_whole(&self) -> bool {
        self.messages == 1 && self.last_is_whole && !self.trails_off
    }

    /// Records everything in a chunk but its text.
    fn note(&mut self, chunk: Chunk, sink: &mut impl FnMut(Piece<'_>)) {
        if chunk.has_message {
            let may_repeat = MayRepeat { is_whole: chunk.is_whole, is_last: chunk.finish.is_some() || chunk.is_beside };
            self.speech.end_message(may_repeat, &mut |kind, text: &str| sink(Piece::Delta(kind, text)));
            self.messages += 1;
            // The body is JSON: if it is no stream of lines, this is all of it.
            self.last_is_whole = chunk.is_whole || (self.had_json && !self.began);
        }
        self.began |= chunk.is_completion;
        self.has_text |= chunk.has_text;
        self.goes_on |= chunk.has_text && self.finish.is_some();
        self.trails_off = match chunk.has_text || chunk.finish.is_some() {
            true => false,
            false => self.trails_off || chunk.words.is_some() || chunk.has_oddities,
        };
        self.refused |= chunk.refused;
        self.wants_tools |= chunk.wants_tools;
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

/// What was said so far.
#[derive(Debug, Default)]
pub struct Speech {
    /// Thoughts, text.
    tracks: [Track; 2],
    characters: [Characters; 2],
    thinking: Thinking,
}

/// What may show that a message repeats what was said.
#[derive(Clone, Copy, Debug)]
pub struct MayRepeat {
    /// It calls itself a whole completion.
    pub is_whole: bool,
    /// It comes with a reason to finish, or beside a delta.
    pub is_last: bool,
}

/// All that was said of one kind, by its length, a hash (FNV-1a) and its first bytes: it is not kept a second time.
#[derive(Debug, Default)]
struct Track {
    length: usize,
    hash: u64,
    beginning: Vec<u8>,
    by_delta: bool,
    /// The message being read, unless it is the first thing that is said: that is forwarded at once.
    message: Vec<u8>,
    is_first: bool,
}

impl Track {
    /// Bytes of the beginning that are kept.
    const BEGINNING: usize = 64;

    fn add(&mut self, text: &[u8]) {
        self.hash = Self::hash(self.hash, text);
        self.length += text.len();
        let missing = Self::BEGINNING - self.beginning.len();
        self.beginning.extend_from_slice(&text[..text.len().min(missing)]);
    }

    fn hash(hash: u64, text: &[u8]) -> u64 {
        text.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Whether a message begins with everything that was said.
    fn is_begun_by(&self, message: &[u8]) -> bool {
        message.len() >= self.length && Self::hash(0, &message[..self.length]) == self.hash
    }

    /// Whether a message that does not begin with everything that was said repeats it in slightly other words, as
    /// without the white space at its end: it may, it is not much shorter, and it begins like it.
    fn repeats(&self, message: &[u8], may_repeat: MayRepeat) -> bool {
        if self.by_delta && may_repeat.is_whole {
            return true;
        }
        let pairs = self.beginning.iter().zip(message);
        let same = pairs.take_while(|(said, repeated)| said == repeated).count();
        (may_repeat.is_whole || may_repeat.is_last)
            && message.len() * 2 >= self.length
            && same * 2 >= self.beginning.len().min(message.len())
    }
}

impl Speech {
    /// Takes a piece of a delta or of a message; [`Self::end_message`] must follow the last piece of a message. The
    /// first message is forwarded as it arrives, later ones when they have ended.
    pub fn push(&mut self, origin: Origin, kind: Kind, text: &[u8], sink: &mut impl FnMut(Kind, &str)) {
        let has_answer = self.tracks[Kind::Text as usize].by_delta;
        let track = &mut self.tracks[kind as usize];
        if origin == Origin::Message {
            // Thoughts after the answer are those before it.
            if kind == Kind::Thought && (has_answer || track.by_delta) {
                return;
            }
            track.is_first |= track.length == 0;
            if !track.is_first {
                return track.message.extend_from_slice(text);
            }
        }
        track.by_delta |= origin == Origin::Delta;
        track.add(text);
        self.pass_on(kind, text, sink);
    }

    /// Ends a message and forwards what is new in it.
    pub fn end_message(&mut self, may_repeat: MayRepeat, sink: &mut impl FnMut(Kind, &str)) {
        for kind in [Kind::Thought, Kind::Text] {
            let track = &mut self.tracks[kind as usize];
            track.is_first = false;
            let message = std::mem::take(&mut track.message);
            let new = match () {
                () if track.is_begun_by(&message) => &message[track.length..],
                () if track.repeats(&message, may_repeat) => &[],
                () => &message[..],
            };
            if !new.is_empty() {
                track.add(new);
                self.pass_on(kind, new, sink);
            }
        }
    }

    /// Ends the answer and forwards what was held back.
    pub fn finish(&mut self, sink: &mut impl FnMut(Kind, &str)) {
        let [thoughts, texts] = &mut self.characters;
        thoughts.finish(&mut |text| sink(Kind::Thought, text));
        texts.finish(&mut |text| self.thinking.push(text, &mut *sink));
        self.thinking.finish(sink);
    }

    fn pass_on(&mut self, kind: Kind, text: &[u8], sink: &mut impl FnMut(Kind, &str)) {
        let thinking = &mut self.thinking;
        self.characters[kind as usize].push(text, &mut |text| match kind {
            Kind::Thought => sink(Kind::Thought, text),
            Kind::Text => thinking.push(text, &mut *sink),
        });
    }
}

/// Names of the tags: DeepSeek, Qwen, MiniMax and others; prompts that ask for it; Gemini.
const TAGS: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
];

/// Maximum number of bytes of white space held back while nothing else has arrived.
const MOST_BLANK: usize = 4096;

/// The state between two pieces of text.
#[derive(Debug, Default)]
pub struct Thinking {
    place: Place,
    /// Received text that may be the beginning of a tag, or the white space before one.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before anything but white space.
    #[default]
    Start,
    /// Inside a block that this tag closes; whether any of it was forwarded.
    Inside(&'static str, bool),
    /// After a block.
    After,
    /// In the answer: tags are no longer searched for.
    Answer,
}

impl Thinking {
    /// Takes the next piece of the answer and calls `sink` with its kind and text.
    pub fn push(&mut self, text: &str, mut sink: impl FnMut(Kind, &str)) {
        if self.place == Place::Answer {
            return sink(Kind::Text, text);
        }
        let mut held = std::mem::take(&mut self.held);
        let text = match held.is_empty() {
            true => text,
            false => {
                held.push_str(text);
                &held
            }
        };
        let rest = self.read(text, &mut sink);
        self.held = rest.to_owned();
    }

    /// Ends the answer and forwards what was held back.
    pub fn finish(&mut self, mut sink: impl FnMut(Kind, &str)) {
        let held = std::mem::take(&mut self.held);
        match self.place {
            _ if held.is_empty() => {}
            Place::Inside(..) => sink(Kind::Thought, &held),
            Place::After if held.trim().is_empty() => {}
            _ => sink(Kind::Text, &held),
        }
    }

    /// Forwards as much of the text as possible, and returns the rest, which has to wait.
    fn read<'a>(&mut self, mut text: &'a str, sink: &mut impl FnMut(Kind, &str)) -> &'a str {
        loop {
            match self.place {
                Place::Start | Place::After => {
                    let begun = text.trim_start();
                    if let Some((open, close)) = TAGS.iter().find(|(open, _)| begun.starts_with(open)) {
                        self.place = Place::Inside(close, false);
                        text = &begun[open.len()..];
                        continue;
                    }
                    if TAGS.iter().any(|(open, _)| open.starts_with(begun)) && text.len() <= MOST_BLANK {
                        return text;
                    }
                    let said = if self.place == Place::After { begun } else { text };
                    self.place = Place::Answer;
                    text = said;
                }
                Place::Inside(close, has_begun) => {
                    if !has_begun {
                        text = text.trim_start();
                    }
                    let end = text.find(close);
                    let passed = &text[..end.unwrap_or_else(|| text.len() - overlap(text, close))];
                    if !passed.is_empty() {
                        self.place = Place::Inside(close, true);
                        sink(Kind::Thought, passed);
                    }
                    let Some(end) = end else { return &text[passed.len()..] };
                    self.place = Place::After;
                    text = &text[end + close.len()..];
                }
                Place::Answer => {
                    if !text.is_empty() {
                        sink(Kind::Text, text);
                    }
                    return "";
                }
            }
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    let most = text.len().min(tag.len() - 1);
    (1..=most).rev().find(|length| text.as_bytes().ends_with(&tag.as_bytes()[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
