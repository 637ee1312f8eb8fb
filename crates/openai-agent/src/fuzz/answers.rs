//! Any answer of an endpoint with any habits, in any pieces: nothing is forwarded twice, and nothing in order is lost.
//!
//! If the first byte is odd, the rest is a stream: the result is the same however it is cut. If it is even, the rest
//! are choices: each byte makes the endpoint send a word, or something beside, in one of its habits, and the expected
//! result is known.

use serde_json::{Value as Json, json};

use super::Cut;
use crate::answer::{Answer, Ending, Piece, StopReason};
use crate::chunk::Kind;
use crate::failure::Failure;

/// The received parts of an answer.
#[derive(Debug, PartialEq)]
struct Received {
    thoughts: String,
    text: String,
    skipped: usize,
    ending: Result<Ending, Failure>,
}

/// Cuts the answer in three ways.
///
/// # Panics
/// If the result is not the same, or not what was sent.
pub fn check(first: u8, rest: &[u8], cut: Cut<'_>) {
    let (stream, endpoint) = match first % 2 {
        1 => (rest.to_vec(), None),
        _ => {
            let endpoint = Endpoint::speak(rest);
            (endpoint.stream.clone(), Some(endpoint))
        }
    };
    let whole = receive(&stream, &[]);
    let each: Vec<usize> = (1..stream.len()).collect();
    for cuts in [cut(stream.len()), each] {
        assert_eq!(receive(&stream, &cuts), whole, "cut at {cuts:?}: {}", stream.escape_ascii());
    }
    if let Some(endpoint) = endpoint {
        let shown = || endpoint.stream.escape_ascii();
        assert_eq!(whole.text, endpoint.text, "{}", shown());
        assert_eq!(whole.thoughts, endpoint.thoughts, "{}", shown());
        assert_eq!(whole.skipped, endpoint.skipped, "{}", shown());
        assert_eq!(whole.ending.ok().map(|ending| ending.stop), endpoint.stop, "{}", shown());
    }
}

fn receive(stream: &[u8], cuts: &[usize]) -> Received {
    let mut answer = Answer::new(1 << 20);
    let (mut thoughts, mut text, mut skipped) = (String::new(), String::new(), 0);
    let mut sink = |piece: Piece<'_>| match piece {
        Piece::Delta(Kind::Thought, more) => thoughts.push_str(more),
        Piece::Delta(Kind::Text, more) => text.push_str(more),
        Piece::Skipped(_) => skipped += 1,
    };
    let mut from = 0;
    for to in cuts.iter().copied().chain([stream.len()]) {
        answer.push(&stream[from..to], &mut sink);
        from = to;
    }
    answer.end(&mut sink);
    let ending = answer.finish(None, "", &mut sink);
    Received { thoughts, text, skipped, ending }
}

/// An endpoint driven by choices, and the expected result.
struct Endpoint {
    stream: Vec<u8>,
    /// What ends a line, and then an event.
    line_end: &'static str,
    event_end: &'static str,
    words: usize,
    /// All text of deltas, as sent.
    sent: String,
    text: String,
    thoughts: String,
    skipped: usize,
    stop: Option<StopReason>,
}

impl Endpoint {
    fn speak(choices: &[u8]) -> Self {
        let mut endpoint = Self {
            stream: Vec::new(),
            line_end: "\n",
            event_end: "\n",
            words: 0,
            sent: String::new(),
            text: String::new(),
            thoughts: String::new(),
            skipped: 0,
            stop: None,
        };
        let (last, choices) = choices.split_last().unwrap_or((&0, &[]));
        for choice in choices {
            endpoint.say(*choice);
        }
        endpoint.end(*last);
        endpoint
    }

    fn say(&mut self, choice: u8) {
        match choice % 18 {
            0 => {
                let word = self.text();
                self.event(&chunk(json!({ "content": word })));
            }
            1 => {
                let word = self.text();
                self.event(&chunk(json!({"content": [{"type": "text", "text": word}]})));
            }
            // Everything sent so far, beside the new text.
            2 => {
                let word = self.text();
                let choice = json!({"delta": {"content": word}, "message": {"content": self.sent}});
                self.event(&json!({"object": "chat.completion.chunk", "choices": [choice]}).to_string());
            }
            3 => {
                let word = self.thought();
                self.event(&chunk(json!({"reasoning_content": word, "content": null})));
            }
            4 => {
                let word = self.thought();
                self.event(&chunk(json!({"reasoning_content": word, "reasoning": word})));
            }
            5 => {
                let word = self.text();
                let text = chunk(json!({"content": word, "x": 7}));
                self.event(&text.replace("\"x\":7", "\"x\":[NaN,1e999,123456789012345678901234567890,]"));
            }
            6 => {
                let word = self.text();
                let text = chunk(json!({ "content": word }));
                // Half a pair at its end.
                self.event(&text.replace("\\n\"", "\\n\\ud83d\""));
                self.sent.push('\u{fffd}');
                self.text.push('\u{fffd}');
            }
            7 => {
                self.skipped += 1;
                self.event(": keepalive");
            }
            8 => self.event(&chunk(json!({"role": "assistant", "content": ""}))),
            _ => self.say_oddly(choice),
        }
    }

    fn say_oddly(&mut self, choice: u8) {
        match choice % 18 {
            9 => {
                let (left, right) = (self.text(), self.text());
                self.event(&format!("{}{}", chunk(json!({ "content": left })), chunk(json!({ "content": right }))));
            }
            10 => {
                let word = self.text();
                self.event(&format!("data: {}", chunk(json!({ "content": word }))));
            }
            11 => {
                let word = self.text();
                let value: Json = serde_json::from_str(&chunk(json!({ "content": word }))).expect("it was JSON");
                let pretty = serde_json::to_string_pretty(&value).expect("it is JSON");
                let lines: Vec<String> = pretty.lines().map(|line| format!("data: {line}")).collect();
                self.raw(&lines.join(self.line_end));
                self.raw(self.line_end);
                self.raw(self.event_end);
            }
            12 => {
                let ends = [("\n", "\n"), ("\r\n", "\r\n"), ("\r", "\r"), ("\n", "")];
                (self.line_end, self.event_end) = ends[usize::from(choice / 18) % 4];
            }
            13 => {
                self.skipped += 1;
                let torn = chunk(json!({"content": "torn"}));
                self.raw(&format!("data: {}\n\n", &torn[..torn.len() / 2]));
            }
            14 => self.event(r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#),
            15 => {
                let word = self.word();
                let block = format!("<think>{word}</think>");
                if self.text.is_empty() {
                    self.thoughts.push_str(&word)
                } else {
                    self.text.push_str(&block)
                }
                let cut = block.char_indices().map(|(at, _)| at).nth(usize::from(choice / 18)).unwrap_or(block.len());
                let (left, right) = block.split_at(cut);
                self.sent.push_str(&block);
                self.event(&chunk(json!({ "content": left })));
                self.event(&chunk(json!({ "content": right })));
            }
            16 => self.raw(": ping\n"),
            _ => {
                let word = self.text();
                self.raw(&format!("{}{}", chunk(json!({ "content": word })), self.line_end));
            }
        }
    }

    fn end(&mut self, choice: u8) {
        let finish = |reason: &str| json!({"choices": [{"delta": {}, "finish_reason": reason}]}).to_string();
        self.stop = Some(StopReason::EndTurn);
        match choice % 7 {
            0 => self.event(&finish("stop")),
            1 => {
                self.event(&finish("length"));
                self.event("[DONE]");
                self.stop = Some(StopReason::MaxTokens);
            }
            // All of it once more, as a whole.
            2 => {
                let choice = json!({"message": {"content": self.sent}, "finish_reason": "stop"});
                self.event(&json!({"object": "chat.completion", "choices": [choice]}).to_string());
            }
            3 => {
                self.event(&finish("abort"));
                self.stop = None;
            }
            4 => {
                self.event(r#"{"error":{"message":"m"}}"#);
                self.stop = None;
            }
            5 => self.stop = None,
            _ => {
                self.event(&finish("stop"));
                self.event("[DONE]");
                self.event(&chunk(json!({"content": "too late"})));
            }
        }
    }

    /// A word that was not used before.
    fn word(&mut self) -> String {
        self.words += 1;
        format!("w{} é\u{1f600}\n", self.words)
    }

    fn text(&mut self) -> String {
        let word = self.word();
        self.sent.push_str(&word);
        self.text.push_str(&word);
        word
    }

    fn thought(&mut self) -> String {
        let word = self.word();
        self.thoughts.push_str(&word);
        word
    }

    fn event(&mut self, data: &str) {
        self.raw(&format!("data: {data}{}{}", self.line_end, self.event_end));
    }

    fn raw(&mut self, text: &str) {
        self.stream.extend_from_slice(text.as_bytes());
    }
}

fn chunk(delta: Json) -> String {
    json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
        .to_string()
}
