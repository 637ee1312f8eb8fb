//! One JSON text of a completion, a streamed chunk or a whole one: what it adds to the answer. Pure.
//!
//! Every server has its habits: `choices` empty or absent, `content` a string, null, an array of parts or one part,
//! reasoning under one of five names (or under several: then it is taken once), counts beside the choices, in one of
//! them or elsewhere. Members that are not understood are skipped.
//!
//! One choice is asked for. Every entry of `choices` that has the index 0, or no index that can be read, belongs to it,
//! in order; entries that are null or empty add nothing, and those of another index are other answers.
//!
//! A choice has new text in its `delta` or its `text`, or all text in its `message`. If it has both (Perplexity), the
//! delta counts, unless it has no text. Which messages are new is decided by the caller, which knows the previous text
//! ([`super::answer`]).
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
    /// Whether it calls itself a whole completion.
    pub is_whole: bool,
    /// Whether it has text.
    pub has_text: bool,
    /// Whether it has a message, or text that is not called a delta.
    pub has_message: bool,
    /// Whether its message is beside a delta without text.
    pub is_beside: bool,
    /// Whether there is something among the choices that is no choice.
    pub has_oddities: bool,
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
        (self.is_completion && !self.has_oddities) || self.error.is_some() || self.usage.is_some()
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
            b"choices" => choices = Some(member).filter(|choices| choices.is_array() || choices.is_object()),
            b"usage" => counts = Some(member).filter(|usage| usage.is_object()),
            b"object" => {
                let kind = member.text();
                chunk.is_whole = kind.as_deref() == Some("chat.completion");
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
            let only = Some(choices).filter(|choices| choices.is_object());
            for choice in choices.items().chain(only).filter(|choice| !choice.is_null()) {
                if !choice.is_object() {
                    chunk.has_oddities = true;
                } else if is_first(choice) {
                    read_choice(choice, &mut chunk, &mut counts, &mut sink);
                }
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

/// Whether a choice belongs to the first answer, the one that was asked for.
fn is_first(choice: Raw<'_>) -> bool {
    let Some(index) = choice.get("index") else { return true };
    let number = index.number().or_else(|| index.text()?.trim().parse().ok());
    number.is_none_or(|number| number <= 0.0)
}

fn read_choice<'a>(
    choice: Raw<'a>,
    chunk: &mut Chunk,
    counts: &mut Option<Raw<'a>>,
    sink: &mut impl FnMut(Origin, Kind, &[u8]),
) {
    let (mut delta, mut message, mut text, mut finish) = (None, None, None, None);
    for (name, member) in choice.members() {
        if member.is_null() {
            continue;
        }
        match &*name {
            b"delta" => delta = Some(member),
            b"message" => message = Some(member),
            b"text" => text = Some(member),
            b"finish_reason" => finish = member.text().and_then(|word| Finish::read(&word)).or(finish),
            // From the first models of OpenAI that took images, and from proxies for them.
            b"finish_details" => finish = finish.or_else(|| Finish::read(&member.get("type")?.text()?)),
            b"error" => chunk.error = chunk.error.take().or_else(|| failure::marked(choice)),
            // Moonshot.
            b"usage" if counts.is_none() && member.is_object() => *counts = Some(member),
            _ => {}
        }
    }
    if let Some(finish) = finish {
        chunk.finish = Some(finish.graver(chunk.finish.take()));
    }
    if delta.is_some_and(|delta| read_speech(Origin::Delta, delta, chunk, sink)) {
        return;
    }
    if let Some(message) = message {
        chunk.has_message = true;
        chunk.is_beside |= delta.is_some();
        if read_speech(Origin::Message, message, chunk, sink) {
            return;
        }
    }
    // The older API for completions: in a stream, this is new text, too.
    if let Some(text) = text {
        chunk.has_message = true;
        read_speech(Origin::Delta, text, chunk, sink);
    }
}

/// A delta or a message, an object or its mere content; returns whether there was text of the answer.
fn read_speech(origin: Origin, speech: Raw<'_>, chunk: &mut Chunk, sink: &mut impl FnMut(Origin, Kind, &[u8])) -> bool {
    let mut thoughts: [Option<Raw<'_>>; 4] = [None; 4];
    let (mut content, mut text, mut refusal) = (Some(speech).filter(|speech| !speech.is_object()), None, None);
    for (name, member) in speech.members() {
        if member.is_null() {
            continue;
        }
        match &*name {
            b"content" => content = Some(member),
            b"text" => text = Some(member),
            b"reasoning_content" => thoughts[0] = Some(member),
            b"reasoning" => thoughts[1] = Some(member),
            b"thinking" => thoughts[2] = Some(member),
            // OpenRouter and MiniMax: the same as `reasoning`, in parts.
            b"reasoning_details" => thoughts[3] = Some(member),
            b"refusal" => refusal = member.string().filter(|refusal| !refusal.is_empty()),
            b"tool_calls" => chunk.wants_tools |= names_tool(member) || member.items().any(names_tool),
            b"function_call" => chunk.wants_tools |= names_tool(member),
            _ => {}
        }
    }
    let mut has_answer = false;
    let mut pass_on = |kind, text: &[u8]| {
        chunk.has_text = true;
        has_answer |= kind == Kind::Text;
        sink(origin, kind, text);
    };
    for thought in thoughts.into_iter().flatten() {
        if read_text(thought, Kind::Thought, &mut pass_on) {
            break;
        }
    }
    let mut refused = false;
    for content in [content, text].into_iter().flatten() {
        let mut any = read_text(content, Kind::Text, &mut pass_on);
        for part in content.items() {
            if let Some(text) = part.get("refusal").and_then(Raw::string).filter(|text| !text.is_empty()) {
                (refused, any) = (true, true);
                pass_on(Kind::Text, &text);
            }
        }
        if any {
            break;
        }
    }
    if let Some(refusal) = refusal {
        refused = true;
        pass_on(Kind::Text, &refusal);
    }
    chunk.refused |= refused;
    has_answer
}

/// Whether a call of a tool names one. The pieces that follow its first one do not, and some servers send empty calls.
fn names_tool(call: Raw<'_>) -> bool {
    let has_name = |value: Raw<'_>| value.get_text("name").is_some_and(|name| !name.trim().is_empty());
    has_name(call) || ["function", "custom"].iter().any(|kind| call.get(kind).is_some_and(has_name))
}

/// Forwards the non-empty texts of a content: a string, a part, or an array of both. Returns whether there was any. In
/// PHP's JSON, a text that is a number may be one without quotation marks.
fn read_text(value: Raw<'_>, kind: Kind, sink: &mut dyn FnMut(Kind, &[u8])) -> bool {
    if value.number().is_some() {
        sink(kind, value.bytes());
        return true;
    }
    read_part(value, kind, MOST_DEPTH, sink)
}

/// How deep the texts of a part are searched for.
const MOST_DEPTH: usize = 6;

/// A text, an array, or a part of a content: `{"type":"text","text":…}`, whose text may be `{"value":…}`, or Mistral's
/// `{"type":"thinking","thinking":[…]}`.
fn read_part(part: Raw<'_>, kind: Kind, depth: usize, sink: &mut dyn FnMut(Kind, &[u8])) -> bool {
    if let Some(text) = part.string() {
        if !text.is_empty() {
            sink(kind, &text);
        }
        return !text.is_empty();
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let mut any = false;
    for item in part.items() {
        any |= read_part(item, kind, depth, sink);
    }
    if !part.is_object() {
        return any;
    }
    let kind = match part.get("type").and_then(Raw::text).as_deref() {
        Some("thinking" | "reasoning" | "reasoning.text" | "reasoning.summary") => Kind::Thought,
        _ => kind,
    };
    ["text", "thinking", "summary", "content", "value"].iter().any(|name| {
        let kind = if *name == "thinking" { Kind::Thought } else { kind };
        part.get(name).is_some_and(|inner| read_part(inner, kind, depth, sink))
    })
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
    /// Reads a `finish_reason`; `None` if the answer continues.
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
    /// Reads the `usage` member of a completion. `None` if the counts cannot be read from it: a count that is null, or a
    /// string, or missing is unknown and not zero, and no answer takes no tokens at all.
    pub fn read(value: Raw<'_>) -> Option<Self> {
        let count = |names: [&str; 2]| names.iter().find_map(|name| value.get(name).and_then(Raw::count));
        // The second names are those of Anthropic and of OpenAI's newer API, which some gateways pass on.
        let input = count(["prompt_tokens", "input_tokens"]);
        let output = count(["completion_tokens", "output_tokens"]);
        let total = count(["total_tokens"; 2]);
        let input_tokens = input.or_else(|| total?.checked_sub(output?))?;
        let output_tokens = output.or_else(|| total?.checked_sub(input?))?;
        let total_tokens = total.unwrap_or(input_tokens.saturating_add(output_tokens));
        let detail = |group: &str, name: &str| value.get(group)?.get(name)?.count();
        (input_tokens.max(total_tokens).max(output_tokens) > 0).then_some(Self {
            total_tokens,
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
    fn every_choice_without_another_index_counts_in_order() {
        for (choices, expected) in [
            (r#"[{"index":0,"delta":{"content":"a"}},{"index":0,"delta":{"content":"b"}}]"#, &["a", "b"][..]),
            (r#"[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]"#, &["a", "b"]),
            (r#"[{"index":null,"delta":{"content":"a"}},{"index":"0","delta":{"content":"b"}}]"#, &["a", "b"]),
            (r#"[{"index":0.0,"delta":{"content":"a"}},{"index":-1,"delta":{"content":"b"}}]"#, &["a", "b"]),
            (r#"[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"no"}}]"#, &["a"]),
            (r#"[{"index":"1","delta":{"content":"no"}},{"index":"first","delta":{"content":"a"}}]"#, &["a"]),
            (r#"[null,{},{"index":0},{"index":0,"delta":{}},{"index":0,"delta":{"content":"a"}}]"#, &["a"]),
            (r#"[null,7,"x",[],{"delta":null},{"delta":{"content":null}},{"delta":{"content":"a"}}]"#, &["a"]),
            (r#"[{"delta":{"content":"a"}},{"message":{"content":"b"}},{"text":"c"}]"#, &["a", "b", "c"]),
            (r#"{"index":0,"delta":{"content":"a"}}"#, &["a"]),
        ] {
            let said: Vec<String> =
                read(&format!(r#"{{"choices":{choices}}}"#)).1.into_iter().map(|(_, text)| text).collect();
            assert_eq!(said, expected, "{choices}");
        }
    }

    #[test]
    fn what_is_no_choice_is_logged_unless_it_is_null() {
        for (choices, is_odd) in [("[null]", false), ("[{}]", false), ("[]", false), ("[7]", true), (r#"["x"]"#, true)]
        {
            let chunk = read(&format!(r#"{{"choices":{choices}}}"#)).0;
            assert_eq!(chunk.says_something(), !is_odd, "{choices}");
        }
    }

    #[test]
    fn the_graver_ending_of_several_choices_counts() {
        let both = r#"{"choices":[{"finish_reason":"length"},{"finish_reason":"stop"},{"finish_reason":null}]}"#;
        assert_eq!(read(both).0.finish, Some(Finish::Length));
    }

    #[test]
    fn text_is_found_wherever_a_choice_has_it() {
        for choice in [
            r#"{"delta":{"content":"a"}}"#,
            r#"{"delta":{"text":"a"}}"#,
            r#"{"delta":{"content":"","text":"a"}}"#,
            r#"{"delta":["a"]}"#,
            r#"{"delta":[{"content":"a"}]}"#,
            r#"{"delta":{"content":[{"type":"output_text","text":"a"}]}}"#,
            r#"{"delta":{"content":[{"type":"text","text":{"value":"a","annotations":[]}}]}}"#,
            r#"{"delta":{"content":[[{"type":"text","text":"a"}]]}}"#,
            r#"{"delta":{"content":{"content":[{"text":"a"}]}}}"#,
            r#"{"delta":null,"message":{"content":"a"}}"#,
            r#"{"delta":{},"message":{"content":"a"}}"#,
            r#"{"delta":{"role":"assistant","content":""},"message":{"content":"a"}}"#,
            r#"{"delta":"","message":{"content":"a"}}"#,
            r#"{"message":"a"}"#,
            r#"{"message":[{"type":"text","text":"a"}]}"#,
            r#"{"message":{"content":[{"type":"text","text":"a"}]}}"#,
            r#"{"text":"a"}"#,
            r#"{"delta":{},"text":"a"}"#,
            r#"{"delta":{"content":null},"message":null,"text":"a"}"#,
            r#"{"delta":{"content":"a"},"text":"a"}"#,
            r#"{"text":"a","message":{"content":"a"}}"#,
        ] {
            assert_eq!(read(&format!(r#"{{"choices":[{choice}]}}"#)).1, [text("a")], "{choice}");
        }
        assert_eq!(read(r#"{"choices":[{"delta":{"content":42}}]}"#).1, [text("42")]);
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
    fn a_call_of_a_tool_counts_when_it_has_a_name() {
        for some in [
            r#"{"tool_calls":[{"index":0,"function":{"name":"look","arguments":""}}]}"#,
            r#"{"tool_calls":[null,{"type":"custom","custom":{"name":"look"}}]}"#,
            r#"{"tool_calls":{"function":{"name":"look"}}}"#,
            r#"{"function_call":{"name":"look"}}"#,
        ] {
            assert!(read(&format!(r#"{{"choices":[{{"delta":{some}}}]}}"#)).0.wants_tools, "{some}");
        }
        for none in [
            r#"{"tool_calls":[]}"#,
            r#"{"tool_calls":null}"#,
            r#"{"tool_calls":[{}]}"#,
            r#"{"tool_calls":[null,7,"look"]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"name":null,"arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"name":" ","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}"#,
            r#"{"function_call":{}}"#,
            r#"{"function_call":"auto"}"#,
        ] {
            assert!(!read(&format!(r#"{{"choices":[{{"delta":{none}}}]}}"#)).0.wants_tools, "{none}");
        }
    }

    #[test]
    fn a_count_that_is_unknown_is_no_zero() {
        for none in [
            "null",
            r#""""#,
            r#""12""#,
            "0",
            "[]",
            "{}",
            r#"{"prompt_tokens":null,"completion_tokens":5}"#,
            r#"{"prompt_tokens":"9","completion_tokens":5}"#,
            r#"{"prompt_tokens":9}"#,
            r#"{"prompt_tokens":9,"completion_tokens":"n/a","total_tokens":null}"#,
            r#"{"total_tokens":12}"#,
            r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#,
        ] {
            assert_eq!(read(&format!(r#"{{"choices":[],"usage":{none}}}"#)).0.usage, None, "{none}");
        }
        for some in [
            r#"{"prompt_tokens":9,"completion_tokens":null,"total_tokens":12}"#,
            r#"{"prompt_tokens":"9","completion_tokens":3,"total_tokens":12}"#,
            r#"{"input_tokens":9,"output_tokens":3}"#,
        ] {
            let usage = read(&format!(r#"{{"choices":[],"usage":{some}}}"#)).0.usage.unwrap();
            assert_eq!((usage.total_tokens, usage.input_tokens, usage.output_tokens), (12, 9, 3), "{some}");
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
