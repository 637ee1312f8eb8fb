//! One JSON text of a completion, a streamed chunk or a whole one: what it adds to the answer. Pure.
//!
//! Every server has its habits: `choices` empty or absent, `content` a string, null, an array of parts or one part,
//! reasoning under one of five names (or under several: then it is taken once), counts beside the choices, in one of
//! them or elsewhere. What is not understood is passed over.
//!
//! A choice says something new in its `delta`, or all of it in its `message`. Where it has both (Perplexity), the
//! delta counts. Which messages are news is not settled here but by whoever knows what was said ([`super::answer`]).

use simd_json::prelude::*;
use simd_json::tape::Value;

use super::complaint::{self, Complaint, ServerError};
use super::finish::Finish;
use super::usage::Usage;

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model's reasoning.
    Thought,
    /// The answer.
    Text,
}

/// Where a piece of text stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a delta: it goes after what was said.
    Delta,
    /// In a message: it may be all that was said.
    Message,
}

/// What one JSON text says beside its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Whether it has choices at all, be the list empty.
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
    /// Whether the model wants tools, and the names of those that it names.
    pub wants_tools: bool,
    /// See [`Self::wants_tools`].
    pub tools: Vec<String>,
    /// The counts, if they were sent.
    pub usage: Option<Usage>,
    /// The error, if it is one.
    pub error: Option<ServerError>,
    /// Words of something that is neither a completion nor marked as an error.
    pub words: Option<String>,
}

/// Reads one JSON text, an object, and calls `sink` with its pieces of text, reasoning first.
pub fn decode(value: Value<'_, '_>, mut sink: impl FnMut(Origin, Kind, &str)) -> Chunk {
    let mut chunk = Chunk::default();
    let (mut choices, mut counts, mut groq) = (None, None, None);
    let mut is_suspect = false;
    for (name, member) in value.as_object().iter().flat_map(|object| object.iter()) {
        match name {
            "choices" => choices = member.as_array(),
            "usage" => counts = Some(member).filter(|usage| usage.is_object()),
            "object" => {
                chunk.is_part = member.as_str() == Some("chat.completion.chunk");
                is_suspect |= member.as_str() == Some("error");
            }
            "error" => is_suspect |= !member.is_null(),
            "base_resp" | "errors" | "success" => is_suspect = true,
            "x_groq" => {
                groq = member.get("usage").filter(|usage| usage.is_object());
                is_suspect = true;
            }
            _ => {}
        }
    }
    chunk.is_completion = choices.is_some();
    if is_suspect {
        chunk.error = complaint::marked(value);
    }
    match choices {
        Some(choices) => {
            // One choice is asked for; should a server send more, only the first is the answer.
            let first = choices.iter().find(|choice| choice.get_u64("index").unwrap_or(0) == 0);
            if let Some(choice) = first {
                read_choice(choice, &mut chunk, &mut counts, &mut sink);
            }
        }
        None if chunk.error.is_some() => {}
        None => match complaint::read(value) {
            Some(Complaint::Error(error)) => chunk.error = Some(error),
            Some(Complaint::Words(words)) => chunk.words = Some(words),
            None => {}
        },
    }
    chunk.usage = counts.or(groq).and_then(Usage::read);
    chunk
}

fn read_choice<'t, 'i>(
    choice: Value<'t, 'i>,
    chunk: &mut Chunk,
    counts: &mut Option<Value<'t, 'i>>,
    sink: &mut impl FnMut(Origin, Kind, &str),
) {
    let (mut delta, mut message, mut text) = (None, None, None);
    for (name, member) in choice.as_object().iter().flat_map(|object| object.iter()) {
        match name {
            "delta" => delta = Some(member).filter(|delta| !delta.is_null()),
            "message" => message = Some(member).filter(|message| message.is_object()),
            "text" => text = member.into_string(),
            "finish_reason" => chunk.finish = member.as_str().and_then(Finish::read).or(chunk.finish.take()),
            // Of the first models of OpenAI that saw images, and of proxies that speak to them.
            "finish_details" => {
                chunk.finish = chunk.finish.take().or_else(|| member.get_str("type").and_then(Finish::read));
            }
            "error" if !member.is_null() => {
                chunk.error = chunk.error.take().or_else(|| complaint::marked(choice));
            }
            // Moonshot.
            "usage" if counts.is_none() && member.is_object() => *counts = Some(member),
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
                sink(if chunk.is_part { Origin::Delta } else { Origin::Message }, Kind::Text, text);
            }
        }
        _ => {}
    }
}

/// A delta or a message.
fn read_speech(origin: Origin, speech: Value<'_, '_>, chunk: &mut Chunk, sink: &mut impl FnMut(Origin, Kind, &str)) {
    let mut thoughts: [Option<Value<'_, '_>>; 4] = [None; 4];
    let (mut content, mut refusal) = (None, None);
    for (name, member) in speech.as_object().iter().flat_map(|object| object.iter()) {
        if member.is_null() {
            continue;
        }
        match name {
            "content" => content = Some(member),
            "reasoning_content" => thoughts[0] = Some(member),
            "reasoning" => thoughts[1] = Some(member),
            "thinking" => thoughts[2] = Some(member),
            // OpenRouter and MiniMax: the same as in `reasoning`, in parts.
            "reasoning_details" => thoughts[3] = Some(member),
            "refusal" => refusal = member.into_string().filter(|refusal| !refusal.is_empty()),
            "tool_calls" => read_tools(member, chunk),
            "function_call" => read_tool(member, chunk),
            _ => {}
        }
    }
    let mut told = |kind, text: &str| {
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
        let parts = content.as_array();
        for part in parts.iter().flat_map(|parts| parts.iter()) {
            if let Some(text) = part.get_str("refusal").filter(|text| !text.is_empty()) {
                refused = true;
                told(Kind::Text, text);
            }
        }
    }
    if let Some(refusal) = refusal {
        refused = true;
        told(Kind::Text, refusal);
    }
    chunk.refused |= refused;
}

fn read_tools(calls: Value<'_, '_>, chunk: &mut Chunk) {
    for call in calls.as_array().iter().flat_map(|calls| calls.iter()) {
        match call.get("function").filter(|function| function.is_object()) {
            Some(function) => read_tool(function, chunk),
            None => chunk.wants_tools = true,
        }
    }
}

fn read_tool(function: Value<'_, '_>, chunk: &mut Chunk) {
    if !function.is_object() {
        return;
    }
    chunk.wants_tools = true;
    if let Some(name) = function.get_str("name").filter(|name| !name.is_empty()) {
        chunk.tools.push(name.to_owned());
    }
}

/// The non-empty texts of a string, a part or an array of parts; whether there was any.
fn read_text(value: Value<'_, '_>, sink: &mut dyn FnMut(Kind, &str)) -> bool {
    if let Some(text) = value.as_str() {
        if !text.is_empty() {
            sink(Kind::Text, text);
        }
        return !text.is_empty();
    }
    if value.is_object() {
        return read_part(value, sink);
    }
    let mut any = false;
    for part in value.as_array().iter().flat_map(|parts| parts.iter()) {
        any |= match part.as_str() {
            Some(text) if !text.is_empty() => {
                sink(Kind::Text, text);
                true
            }
            Some(_) => false,
            None => read_part(part, sink),
        };
    }
    any
}

/// A part of a content: `{"type":"text","text":…}`, or Mistral's `{"type":"thinking","thinking":[…]}`.
fn read_part(part: Value<'_, '_>, sink: &mut dyn FnMut(Kind, &str)) -> bool {
    let kind = match part.get_str("type") {
        Some("thinking" | "reasoning" | "reasoning.text" | "reasoning.summary") => Kind::Thought,
        _ => Kind::Text,
    };
    for name in ["text", "thinking", "summary", "content"] {
        let Some(inner) = part.get(name) else { continue };
        let texts = inner.as_array();
        let mut any = false;
        let inner = inner.as_str().into_iter();
        let parts = texts
            .iter()
            .flat_map(|texts| texts.iter())
            .filter_map(|part| part.into_string().or_else(|| part.get("text")?.into_string()));
        for text in inner.chain(parts).filter(|text| !text.is_empty()) {
            sink(if name == "thinking" { Kind::Thought } else { kind }, text);
            any = true;
        }
        if any {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::json::Reader;

    fn read(text: &str) -> (Chunk, Vec<(Kind, String)>) {
        let mut seen = Vec::new();
        let mut reader = Reader::default();
        let chunk = reader
            .read(&mut text.as_bytes().to_vec(), |value| {
                decode(value, |_, kind, text| seen.push((kind, text.to_owned())))
            })
            .unwrap();
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
    fn errors_stand_in_many_places() {
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
    fn tools_that_are_wanted_are_named() {
        let calls = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"look","arguments":""}}]}}]}"#;
        assert_eq!((read(calls).0.wants_tools, read(calls).0.tools), (true, vec!["look".to_owned()]));
        let more = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#;
        assert_eq!((read(more).0.wants_tools, read(more).0.tools), (true, vec![]));
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
}
