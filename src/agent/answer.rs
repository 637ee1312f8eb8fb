//! One streamed answer: response bytes in, pieces of text out, and at the end how it ended. Pure.
//!
//! What the body is, is told by its first character, not by its content type: `{` is a plain JSON body (of a server
//! that does not stream, or an error under status 200), `<` is a web page, anything else are events.
//!
//! The invariant: the end is a success only if the endpoint said so, by a finish reason, by `[DONE]` or by a complete
//! JSON body. A stream that breaks off before is an error, however much text it gave.

use super::chunk::{Chunk, Finish, Kind, decode};
use super::errors::Failure;
use super::json::Reader;
use super::sse::Parser;
use super::usage::Usage;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why.
    pub stop: StopReason,
    /// The counts, if the endpoint sent them.
    pub usage: Option<Usage>,
}

/// What [`Answer::push`] finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text to forward.
    Delta(Kind, &'a str),
    /// An event that is no JSON: it is passed over, and worth a line in the log.
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
    body: Vec<u8>,
    limit: usize,
    said: Said,
}

/// What the events said so far.
#[derive(Debug, Default)]
struct Said {
    finish: Option<Finish>,
    done: bool,
    refused: bool,
    usage: Option<Usage>,
    failure: Option<Failure>,
    began: bool,
}

impl Answer {
    /// An answer of which nothing has been received; `limit` is the most bytes of an event or a JSON body.
    pub fn new(limit: usize) -> Self {
        Self { shape: Shape::Unknown, parser: Parser::new(limit), body: Vec::new(), limit, said: Said::default() }
    }

    /// Whether the endpoint said that this is all, or that it failed: nothing more needs to be read.
    pub fn is_over(&self) -> bool {
        self.said.done || self.said.failure.is_some() || self.shape == Shape::Page
    }

    /// Takes the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8], reader: &mut Reader, mut sink: impl FnMut(Piece<'_>)) {
        if self.shape == Shape::Unknown {
            let blank = |byte: &&u8| b" \t\r\n\xef\xbb\xbf".contains(byte);
            self.shape = match bytes.iter().find(|byte| !blank(byte)) {
                None => Shape::Unknown,
                Some(b'{') => Shape::Json,
                Some(b'<') => Shape::Page,
                Some(_) => Shape::Events,
            };
        }
        match self.shape {
            Shape::Page => {}
            Shape::Json => {
                if self.body.len() + bytes.len() > self.limit {
                    self.said.failure = Some(Failure::TooLong(self.limit));
                } else {
                    self.body.extend_from_slice(bytes);
                }
            }
            // Blank lines before the first event mean nothing to the parser, but a byte order mark does.
            Shape::Unknown | Shape::Events => {
                let said = &mut self.said;
                if let Err(too_long) = self.parser.push(bytes, |data| said.event(data, reader, &mut sink)) {
                    said.failure.get_or_insert(Failure::TooLong(too_long.0));
                }
            }
        }
    }

    /// The end of the body. `trouble` says how the connection failed if it did not end properly; `content_type` is
    /// what the response called itself.
    ///
    /// # Errors
    /// Why this is no complete answer.
    pub fn finish(
        mut self,
        trouble: Option<String>,
        content_type: &str,
        reader: &mut Reader,
        mut sink: impl FnMut(Piece<'_>),
    ) -> Result<Ending, Failure> {
        let said = &mut self.said;
        let named = || if content_type.is_empty() { "a body of no type".to_owned() } else { content_type.to_owned() };
        match self.shape {
            Shape::Page => return Err(Failure::NotACompletion(named())),
            Shape::Json if trouble.is_none() && said.failure.is_none() => {
                let read =
                    reader.read(&mut self.body, |value| decode(value, |kind, text| sink(Piece::Delta(kind, text))));
                match read {
                    Ok(chunk) if chunk.is_completion || chunk.error.is_some() => {
                        said.note(chunk);
                        said.done = true;
                    }
                    _ => return Err(Failure::NotACompletion(named())),
                }
            }
            // Only what a proper end of the stream leaves behind can be a whole event.
            Shape::Events if trouble.is_none() => {
                if let Err(too_long) = self.parser.finish(|data| said.event(data, reader, &mut sink)) {
                    said.failure.get_or_insert(Failure::TooLong(too_long.0));
                }
            }
            _ => {}
        }
        if let Some(failure) = said.failure.take() {
            return Err(failure);
        }
        if !said.done && said.finish.is_none() {
            let cause = trouble.unwrap_or_else(|| match said.began {
                true => "the stream ended before the answer was complete".to_owned(),
                false => "the answer is empty".to_owned(),
            });
            return Err(Failure::Network(cause));
        }
        let stop = match said.finish {
            _ if said.refused => StopReason::Refusal,
            Some(Finish::Filtered) => StopReason::Refusal,
            Some(Finish::Length) => StopReason::MaxTokens,
            Some(Finish::Stop) | None => StopReason::EndTurn,
        };
        Ok(Ending { stop, usage: said.usage })
    }
}

impl Said {
    fn event(&mut self, data: &mut [u8], reader: &mut Reader, sink: &mut impl FnMut(Piece<'_>)) {
        if self.done || self.failure.is_some() {
            return;
        }
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            return;
        }
        // Reading changes the bytes; an event of several lines may have to be read a second time, one by one, since
        // some servers leave the empty line between events out.
        let lines = data.contains(&b'\n').then(|| data.to_vec());
        match reader.read(data, |value| decode(value, |kind, text| sink(Piece::Delta(kind, text)))) {
            Ok(chunk) => self.note(chunk),
            Err(_) => match lines {
                Some(lines) => {
                    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
                        self.event(&mut line.to_vec(), reader, sink);
                    }
                }
                None => sink(Piece::Skipped(data)),
            },
        }
    }

    fn note(&mut self, chunk: Chunk) {
        self.began = true;
        self.finish = chunk.finish.or(self.finish);
        self.refused |= chunk.refused;
        self.usage = chunk.usage.or(self.usage);
        if let Some(error) = chunk.error {
            self.failure.get_or_insert(Failure::Server(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::chunk::ServerError;
    use proptest::prelude::*;

    fn run(chunks: &[&[u8]], trouble: Option<&str>) -> (String, Result<Ending, Failure>) {
        let (mut answer, mut reader, mut text) = (Answer::new(1 << 20), Reader::default(), String::new());
        let mut sink = |piece: Piece<'_>| {
            if let Piece::Delta(Kind::Text, more) = piece {
                text.push_str(more);
            }
        };
        for chunk in chunks {
            answer.push(chunk, &mut reader, &mut sink);
        }
        let ending = answer.finish(trouble.map(str::to_owned), "text/event-stream", &mut reader, &mut sink);
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
