//! One JSON text of a completion, a streamed chunk or a whole one: what it adds to the answer. Pure.
//!
//! Every server has its habits: `choices` empty or absent, `content` a string, null, an array of parts or one part,
//! reasoning under one of five names (or under several: then it is taken once), counts beside the choices, in one of
//! them or elsewhere. Members that are not understood are skipped.
//!
//! A choice has new text in its `delta`, or all text in its `message`. If it has both (Perplexity), the delta counts.
//! Which messages are new is decided by the caller, which knows the previous text ([`super::answer`]).
//!
//! An answer is complete only for a reason that is known to mean so. An unknown word is an error that names it: a
//! truncated answer must not look like a complete one.

use super::failure::{self, Complaint, ServerError};
use super::json::Raw;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The kind of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model's reasoning.
    Thought,
    /// The answer.
    Text,
}

/// Where a piece of text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a delta: it follows the previous text.
    Delta,
    /// In a message: it may be the whole text.
    Message,
}

/// Everything in one JSON text but its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Whether it has choices at all, even an empty list.
    pub is_completion: bool,
    /// Whether it calls itself a part of a stream.
    pub is_part: bool,
    /// Whether it has text.
    pub has_text: bool,
    /// Whether it has a whole message.
    pub has_message: bool,
    /// Why the model stopped, if it did.
    pub finish: Option<Finish>,
    /// Whether the text was a refusal.
    pub refused: bool,
    /// Whether the model wants tools.
    pub wants_tools: bool,
    /// The counts, if they were sent.
    pub usage: Option<Usage>,
    /// The error, if it is one.
    pub error: Option<ServerError>,
    /// Words of something that is neither a completion nor marked as an error.
    pub words: Option<String>,
}

impl Chunk {
    /// Whether it has anything that is understood.
    pub fn says_something(&self) -> bool {
        self.is_completion || self.error.is_some() || self.usage.is_some()
    }
}

/// Reads one JSON text, an object, and calls `sink` with its pieces of text, reasoning first. A piece may begin or end
/// within a character.
pub fn decode(value: Raw<'_>, mut sink: impl FnMut(Origin, Kind, &[u8])) -> Chunk {
    let mut chunk = Chunk::default();
    let (mut choices, mut counts, mut groq) = (None, None, None);
    let mut is_suspect = false;
    for (name, member) in value.members() {
        match &*name {
            b"choices" => choices = Some(member).filter(|choices| choices.is_array()),
            b"usage" => counts = Some(member).filter(|usage| usage.is_object()),
            b"object" => {
                let kind = member.text();
                chunk.is_part = kind.as_deref() == Some("chat.completion.chunk");
                is_suspect |= kind.as_deref() == Some("error");
            }
            b"error" => is_suspect |= !member.is_null(),
            b"base_resp" | b"errors" | b"success" => is_suspect = true,
            b"x_groq" => {
                groq = member.get("usage").filter(|usage| usage.is_object());
                is_suspect = true;
            }
            _ => {}
        }
    }
    chunk.is_completion = choices.is_some();
    if is_suspect {
        chunk.error = failure::marked(value);
    }
    match choices {
        Some(choices) => {
            // One choice is asked for; if a server sends more, only the first is the answer.
            let is_first = |choice: &Raw<'_>| choice.get("index").and_then(Raw::count).unwrap_or(0) == 0;
            if let Some(choice) = choices.items().find(is_first) {
                read_choice(choice, &mut chunk, &mut counts, &mut sink);
            }
        }
        None if chunk.error.is_some() => {}
        None => match failure::read(value) {
            Some(Complaint::Error(error)) => chunk.error = Some(error),
            Some(Complaint::Words(words)) => chunk.words = Some(words),
            None => {}
        },
    }
    chunk.usage = counts.or(groq).and_then(Usage::read);
    chunk
}

fn read_choice<'a>(
    choice: Raw<'a>,
    chunk: &mut Chunk,
    counts: &mut Option<Raw<'a>>,
    sink: &mut impl FnMut(Origin, Kind, &[u8]),
) {
    let (mut delta, mut message, mut text) = (None, None, None);
    for (name, member) in choice.members() {
        match &*name {
            b"delta" => delta = Some(member).filter(|delta| !delta.is_null()),
            b"message" => message = Some(member).filter(|message| message.is_object()),
            b"text" => text = member.string(),
            b"finish_reason" => {
                chunk.finish = member.text().and_then(|word| Finish::read(&word)).or(chunk.finish.take());
            }
            // From the first models of OpenAI that took images, and from proxies for them.
            b"finish_details" => {
                let told = || Finish::read(&member.get("type")?.text()?);
                chunk.finish = chunk.finish.take().or_else(told);
            }
            b"error" if !member.is_null() => {
                chunk.error = chunk.error.take().or_else(|| failure::marked(choice));
            }
            // Moonshot.
            b"usage" if counts.is_none() && member.is_object() => *counts = Some(member),
            _ => {}
        }
    }
    match (delta, message, text) {
        (Some(delta), _, _) if delta.is_object() => read_speech(Origin::Delta, delta, chunk, sink),
        (Some(delta), None, _) => {
            read_text(delta, &mut |kind, text| {
                chunk.has_text = true;
                sink(Origin::Delta, kind, text);
            });
        }
        (_, Some(message), _) => {
            chunk.has_message = true;
            read_speech(Origin::Message, message, chunk, sink);
        }
        (None, None, Some(text)) => {
            chunk.has_message = true;
            chunk.has_text |= !text.is_empty();
            if !text.is_empty() {
                sink(if chunk.is_part { Origin::Delta } else { Origin::Message }, Kind::Text, &text);
            }
        }
        _ => {}
    }
}

/// A delta or a message.
fn read_speech(origin: Origin, speech: Raw<'_>, chunk: &mut Chunk, sink: &mut impl FnMut(Origin, Kind, &[u8])) {
    let mut thoughts: [Option<Raw<'_>>; 4] = [None; 4];
    let (mut content, mut refusal) = (None, None);
    for (name, member) in speech.members() {
        if member.is_null() {
            continue;
        }
        match &*name {
            b"content" => content = Some(member),
            b"reasoning_content" => thoughts[0] = Some(member),
            b"reasoning" => thoughts[1] = Some(member),
            b"thinking" => thoughts[2] = Some(member),
            // OpenRouter and MiniMax: the same as `reasoning`, in parts.
            b"reasoning_details" => thoughts[3] = Some(member),
            b"refusal" => refusal = member.string().filter(|refusal| !refusal.is_empty()),
            b"tool_calls" => chunk.wants_tools |= member.items().next().is_some(),
            b"function_call" => chunk.wants_tools |= member.is_object(),
            _ => {}
        }
    }
    let mut told = |kind, text: &[u8]| {
        chunk.has_text = true;
        sink(origin, kind, text);
    };
    for thought in thoughts.into_iter().flatten() {
        if read_text(thought, &mut |_, text| told(Kind::Thought, text)) {
            break;
        }
    }
    let mut refused = false;
    if let Some(content) = content {
        read_text(content, &mut told);
        for part in content.items() {
            if let Some(text) = part.get("refusal").and_then(Raw::string).filter(|text| !text.is_empty()) {
                refused = true;
                told(Kind::Text, &text);
            }
        }
    }
    if let Some(refusal) = refusal {
        refused = true;
        told(Kind::Text, &refusal);
    }
    chunk.refused |= refused;
}

/// Forwards the non-empty texts of a string, a part or an array of parts; returns whether there was any.
fn read_text(value: Raw<'_>, sink: &mut dyn FnMut(Kind, &[u8])) -> bool {
    if !value.is_array() {
        return read_part(value, sink);
    }
    let mut any = false;
    for part in value.items() {
        any |= read_part(part, sink);
    }
    any
}

/// A text, or a part of a content: `{"type":"text","text":…}`, or Mistral's `{"type":"thinking","thinking":[…]}`.
fn read_part(part: Raw<'_>, sink: &mut dyn FnMut(Kind, &[u8])) -> bool {
    let mut told = |kind, text: Option<Cow<'_, [u8]>>| {
        let text = text.filter(|text| !text.is_empty());
        text.is_some_and(|text| {
            sink(kind, &text);
            true
        })
    };
    if !part.is_object() {
        return told(Kind::Text, part.string());
    }
    let kind = match part.get("type").and_then(Raw::text).as_deref() {
        Some("thinking" | "reasoning" | "reasoning.text" | "reasoning.summary") => Kind::Thought,
        _ => Kind::Text,
    };
    for name in ["text", "thinking", "summary", "content"] {
        let Some(inner) = part.get(name) else { continue };
        let kind = if name == "thinking" { Kind::Thought } else { kind };
        let mut any = told(kind, inner.string());
        for piece in inner.items() {
            any |= told(kind, piece.string().or_else(|| piece.get("text")?.string()));
        }
        if any {
            return true;
        }
    }
    false
}

/// Why the model stopped. Ordered by severity: if a stream gives several reasons, the most severe one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd)]
pub enum Finish {
    /// An unknown word.
    Unknown(String),
    /// The answer was complete.
    Stop,
    /// It waits for tools.
    Tools,
    /// The token limit.
    Length,
    /// A filter of the endpoint.
    Filtered,
    /// Something went wrong: the word for it.
    Failed(Cow<'static, str>),
}

/// The words, in lower case: of OpenAI, Azure, Anthropic, Gemini, Bedrock, Mistral, Cohere, Together, TGI, vLLM, SGLang,
/// OpenRouter, DeepSeek, Zhipu and others.
static WORDS: [(Finish, &str); 5] = [
    (
        Finish::Stop,
        "stop eos eos_token end_turn stop_sequence complete completed end stopped finished finish done normal success",
    ),
    (Finish::Tools, "tool_calls tool_call function_call function_calls tool_use"),
    (
        Finish::Length,
        "length max_tokens max_output_tokens max_new_tokens model_length max_length model_context_window_exceeded \
         context_length_exceeded error_limit token_limit",
    ),
    (
        Finish::Filtered,
        "content_filter content_filtered safety recitation blocklist prohibited_content spii image_safety language \
         guardrail_intervened sensitive error_toxic refusal blocked moderation",
    ),
    (
        Finish::Failed(Cow::Borrowed("")),
        "error abort aborted cancel cancelled canceled user_cancel network_error insufficient_system_resource \
         malformed_function_call unexpected_tool_call other failed failure timeout incomplete interrupted",
    ),
];

impl Finish {
    /// Reads a `finish_reason`; `None` if the answer goes on.
    pub fn read(word: &str) -> Option<Self> {
        let lower = word.trim().to_ascii_lowercase();
        let name = lower.rsplit('.').next().unwrap_or_default();
        let name = name.strip_prefix("finish_reason_").unwrap_or(name);
        let found = WORDS.iter().find(|(_, words)| words.split(' ').any(|word| word == name));
        Some(match found {
            // Some servers write a null as a word, or leave the word empty.
            _ if ["", "null", "none", "unspecified"].contains(&name) => return None,
            Some((Self::Failed(_), _)) => Self::Failed(word.to_owned().into()),
            Some((meaning, _)) => meaning.clone(),
            None => Self::Unknown(word.chars().take(64).collect()),
        })
    }

    /// The more severe of two.
    pub fn graver(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other > self => other,
            _ => self,
        }
    }
}

/// Token counts. A count that the endpoint did not send is absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Usage {
    pub total_tokens: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_read_tokens: Option<u64>,
}

impl Usage {
    /// Reads the `usage` member of a completion; `None` if it is null or holds nothing.
    pub fn read(value: Raw<'_>) -> Option<Self> {
        let count = |name: &str| value.get(name).and_then(Raw::count);
        let (input, output) = (count("prompt_tokens"), count("completion_tokens"));
        if input.is_none() && output.is_none() {
            return None;
        }
        let (input_tokens, output_tokens) = (input.unwrap_or(0), output.unwrap_or(0));
        let detail = |group: &str, name: &str| value.get(group)?.get(name)?.count();
        Some(Self {
            total_tokens: count("total_tokens").unwrap_or(input_tokens.saturating_add(output_tokens)),
            input_tokens,
            output_tokens,
            thought_tokens: detail("completion_tokens_details", "reasoning_tokens"),
            cached_read_tokens: detail("prompt_tokens_details", "cached_tokens"),
        })
    }

    /// Adds the counts of one more answer.
    pub fn add(&mut self, more: &Self) {
        let sum = |mine: Option<u64>, theirs: Option<u64>| match (mine, theirs) {
            (None, None) => None,
            (mine, theirs) => Some(mine.unwrap_or(0).saturating_add(theirs.unwrap_or(0))),
        };
        self.total_tokens = self.total_tokens.saturating_add(more.total_tokens);
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.thought_tokens = sum(self.thought_tokens, more.thought_tokens);
        self.cached_read_tokens = sum(self.cached_read_tokens, more.cached_read_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Chunk, Vec<(Kind, String)>) {
        let mut seen = Vec::new();
        let value = Raw::read(text.as_bytes()).unwrap();
        let chunk = decode(value, |_, kind, text| seen.push((kind, String::from_utf8(text.to_vec()).unwrap())));
        (chunk, seen)
    }

    fn text(text: &str) -> (Kind, String) {
        (Kind::Text, text.to_owned())
    }

    #[test]
    fn content_is_a_string_null_or_parts() {
        assert_eq!(read(r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#).1, [text("a")]);
        assert_eq!(read(r#"{"choices":[{"delta":{"content":null,"role":"assistant"}}]}"#).1, []);
        assert_eq!(read(r#"{"choices":[{"delta":{"content":""}}]}"#).1, []);
        let parts = r#"{"choices":[{"delta":{"content":[{"type":"text","text":"a"},"b",{"type":"image"}]}}]}"#;
        assert_eq!(read(parts).1, [text("a"), text("b")]);
        assert_eq!(read(r#"{"choices":[{"delta":{"content":{"type":"text","text":"a"}}}]}"#).1, [text("a")]);
        assert_eq!(read(r#"{"choices":[{"delta":"a"}]}"#).1, [text("a")]);
        assert_eq!(read(r#"{"choices":[]}"#).0, Chunk { is_completion: true, ..Chunk::default() });
        assert_eq!(read(r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#).1, []);
        assert_eq!(
            read(r#"{"choices":[{"index":1,"delta":{"content":"b"}},{"delta":{"content":"a"}}]}"#).1,
            [text("a")]
        );
        assert_eq!(read(r#"{"choices":[{"message":{"content":"all"},"finish_reason":"stop"}]}"#).1, [text("all")]);
        for odd in ["[]", "7", "null", r#"{"choices":{}}"#, r#"{"choices":[7]}"#, r#"{"choices":[{"delta":[]}]}"#] {
            assert_eq!(read(odd).1, [], "{odd}");
        }
    }

    #[test]
    fn reasoning_is_taken_once() {
        let thought = (Kind::Thought, "t".to_owned());
        for both in [
            r#"{"choices":[{"delta":{"reasoning_content":"t"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"t"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"t","reasoning_content":"t"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"t","reasoning_content":""}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"t","reasoning_details":[{"type":"reasoning.text","text":"t"}]}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.summary","summary":"t"}]}}]}"#,
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}]}]}}]}"#,
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":"t"}]}}]}"#,
        ] {
            assert_eq!(read(both).1, std::slice::from_ref(&thought), "{both}");
        }
    }

    #[test]
    fn a_delta_counts_more_than_a_message_beside_it() {
        let both = r#"{"choices":[{"delta":{"content":" cat"},"message":{"content":"The cat"}}]}"#;
        assert_eq!(read(both).1, [text(" cat")]);
        let null = r#"{"choices":[{"delta":null,"message":{"content":"The cat"}}]}"#;
        assert_eq!(read(null).1, [text("The cat")]);
    }

    #[test]
    fn errors_are_found_in_many_places() {
        let error = |code, message: &str| Some(ServerError { code, message: message.to_owned() });
        assert_eq!(read(r#"{"error":null,"choices":[]}"#).0.error, None);
        assert_eq!(read(r#"{"error":{},"choices":[]}"#).0.error, None);
        assert_eq!(read(r#"{"choices":[],"base_resp":{"status_code":0,"status_msg":""}}"#).0.error, None);
        let choice = r#"{"choices":[{"delta":{},"finish_reason":"error","error":{"code":502,"message":"m"}}]}"#;
        assert_eq!(read(choice).0.error, error(Some(502), "m"));
        let groq = r#"{"choices":[{"delta":{}}],"x_groq":{"id":"r","error":"over capacity"}}"#;
        assert_eq!(read(groq).0.error, error(None, "over capacity"));
        assert_eq!(read(r#"{"detail":"who knows"}"#).0.words.as_deref(), Some("who knows"));
        assert_eq!(read(r#"{"choices":[],"detail":"who knows"}"#).0.words, None);
    }

    #[test]
    fn requested_tools_are_reported() {
        for some in [
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"look","arguments":""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#,
            r#"{"choices":[{"delta":{"function_call":{"name":"look"}}}]}"#,
        ] {
            assert!(read(some).0.wants_tools);
        }
        for none in [r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, r#"{"choices":[{"delta":{"tool_calls":null}}]}"#] {
            assert!(!read(none).0.wants_tools);
        }
    }

    #[test]
    fn counts_and_endings() {
        let (chunk, _) = read(
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":50,
            "completion_tokens":12,"total_tokens":62,"prompt_tokens_details":{"cached_tokens":3},
            "completion_tokens_details":{"reasoning_tokens":4}}}"#,
        );
        assert_eq!(chunk.finish, Some(Finish::Length));
        let usage = chunk.usage.unwrap();
        assert_eq!((usage.total_tokens, usage.input_tokens, usage.output_tokens), (62, 50, 12));
        assert_eq!((usage.cached_read_tokens, usage.thought_tokens), (Some(3), Some(4)));
        assert_eq!(read(r#"{"choices":[],"usage":null}"#).0.usage, None);
        for elsewhere in [
            r#"{"choices":[{"delta":{},"usage":{"prompt_tokens":1,"completion_tokens":2}}]}"#,
            r#"{"choices":[],"x_groq":{"usage":{"prompt_tokens":1,"completion_tokens":2}}}"#,
        ] {
            assert_eq!(read(elsewhere).0.usage.map(|usage| usage.total_tokens), Some(3), "{elsewhere}");
        }
        let refusal = read(r#"{"choices":[{"delta":{"refusal":"no"},"finish_reason":"stop"}]}"#);
        assert!(refusal.0.refused);
        assert_eq!(refusal.1, [text("no")]);
    }

    #[test]
    fn words_mean_what_they_say() {
        for (word, expected) in [
            ("", None),
            ("null", None),
            ("FINISH_REASON_UNSPECIFIED", None),
            ("stop", Some(Finish::Stop)),
            ("STOP", Some(Finish::Stop)),
            ("FinishReason.STOP", Some(Finish::Stop)),
            ("MAX_TOKENS", Some(Finish::Length)),
            ("model_length", Some(Finish::Length)),
            ("SAFETY", Some(Finish::Filtered)),
            ("tool_calls", Some(Finish::Tools)),
            ("abort", Some(Finish::Failed("abort".into()))),
            ("Banana", Some(Finish::Unknown("Banana".into()))),
        ] {
            assert_eq!(Finish::read(word), expected, "{word}");
        }
    }

    #[test]
    fn the_gravest_counts() {
        let length = Finish::Length;
        assert_eq!(Finish::Stop.graver(Some(length.clone())), length);
        assert_eq!(Finish::Length.graver(Some(Finish::Stop)), length);
        assert_eq!(Finish::Stop.graver(Some(Finish::Unknown("x".into()))), Finish::Stop);
    }
}
