//! One streamed answer: response bytes in, pieces of text out, and at the end how it ended. Pure.
//!
//! What the body is, is told by its first character, not by its content type: `{` or `[` is JSON (of a server that
//! does not stream, or an error under status 200), `<` is a web page, anything else are events.
//!
//! The common event, a line of data that is one chunk, is read where it stands. Whatever is not that goes the slow
//! way: data of several lines are put together, and what says nothing is passed over and told ([`Piece::Skipped`]).
//!
//! The invariants: the end is a success only if the endpoint said so, by a finish reason, by `[DONE]` or by a complete
//! JSON body, and a stream that breaks off before is an error, however much text it gave; nothing is told twice and
//! nothing in order is lost; and all that depends on the bytes alone, never on where they were cut.

use std::time::Duration;

use serde::Serialize;

use super::body::{Field, Parser};
use super::chunk::{Chunk, Finish, Kind, Usage, decode};
use super::failure::{self, Failure, ServerError};
use super::json::{Extent, Raw};
use super::speech::Speech;

/// How long an endpoint may be silent that seems to have said everything but keeps the connection open.
pub const GRACE: Duration = Duration::from_secs(2);

/// Bytes of words that nobody understands that are looked at.
const MOST_WORDS: usize = 256 << 10;

/// Bytes of an open line up to which it is looked at for a sign of the end.
const SHORT: usize = 64 << 10;

/// Why a turn ended, as ACP names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    Refusal,
    Cancelled,
}

/// How an answer ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why.
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
            limit,
        }
    }

    /// Whether the endpoint said that this is all, or that it failed: nothing more needs to be read.
    pub fn is_over(&self) -> bool {
        self.events.said.is_over() || self.shape == Shape::Page
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
        // Only what a proper end of the stream leaves behind can be a whole event.
        if self.shape == Shape::Events
            && let Err(too_long) = self.parser.finish(|field| events.field(field, &mut sink))
        {
            events.said.fail(too_long);
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
            Some(Finish::Failed(word)) => return Err(Failure::Ended(word.into_owned())),
            Some(Finish::Unknown(word)) => return Err(Failure::Ended(word)),
            finish => finish,
        };
        if !(finish.is_some() || (said.done && said.began) || (said.is_whole && trouble.is_none())) {
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

/// The events that are put together from the fields of the stream.
#[derive(Debug, Default)]
struct Events {
    /// Data that began a JSON value and did not end it, joined by LF.
    pending: Vec<u8>,
    extent: Extent,
    /// This event calls itself an error.
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
                    self.said.wonder(line);
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
        // Servers leave out the line between events: a line that is a chunk of its own is no part of what broke off
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

    /// Reads a line that is one object and nothing else, and that `is_wanted` wants; whether it was.
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
                // What parts the chunks of an array, and ends it.
                Some(b',' | b']') if has_begun => rest = &rest[1..],
                Some(b'{' | b'[') => {
                    let Some(end) = Extent::default().feed(rest) else {
                        // A value that has begun and not ended.
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
        self.said.wonder(text);
        sink(Piece::Skipped(text));
    }

    /// What an event says that calls itself an error.
    fn error(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.said.done = true;
        } else if let Some(error) = failure::of_text(&String::from_utf8_lossy(&data[..data.len().min(MOST_WORDS)])) {
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
    /// Words that may say what is wrong, should the answer not end well.
    hint: Option<String>,
}

impl Said {
    fn is_over(&self) -> bool {
        self.done || self.failure.is_some()
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Keeps the first words that nobody understands.
    fn wonder(&mut self, words: &[u8]) {
        if self.hint.is_none() && !words.trim_ascii().is_empty() {
            let words = String::from_utf8_lossy(&words[..words.len().min(MOST_WORDS)]);
            self.hint = failure::of_text(&words).map(|error| error.message);
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

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn run(chunks: &[&[u8]], trouble: Option<&str>) -> (String, Result<Ending, Failure>) {
        let (mut answer, mut text) = (Answer::new(1 << 25), String::new());
        let mut sink = |piece: Piece<'_>| {
            if let Piece::Delta(Kind::Text, more) = piece {
                text.push_str(more);
            }
        };
        for chunk in chunks {
            answer.push(chunk, &mut sink);
        }
        if trouble.is_none() {
            answer.end(&mut sink);
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
    fn a_million_parts_and_a_million_chunks_in_one_event_are_one_text() {
        let count = 1 << 18;
        let parts = format!("\"é\"{}", ",\"é\"".repeat(count - 1));
        let body = format!("{{\"choices\":[{{\"message\":{{\"content\":[{parts}]}},\"finish_reason\":\"stop\"}}]}}");
        let (text, ending) = whole(&body);
        assert_eq!((text, stop(&ending)), ("é".repeat(count), Some(StopReason::EndTurn)));
        let chunk = "{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}";
        let many = vec![chunk; count / 16];
        for (event, after) in [
            (format!("[{}]", many.join(",")), "after"),
            (many.concat(), "after"),
            (many.concat() + &"[DONE]".repeat(100_000), ""),
        ] {
            let (text, ending) = whole(&format!("data: {event}\n\n{}{STOP}", delta("after")));
            assert_eq!(text, "x".repeat(many.len()) + after);
            assert_eq!(stop(&ending), Some(StopReason::EndTurn));
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
