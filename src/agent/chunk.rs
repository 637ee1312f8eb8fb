//! One JSON text of a completion, a streamed chunk or a whole one: what it adds to the answer. Pure.
//!
//! Every server has its habits: `choices` empty or absent, `content` a string, null or an array of parts, reasoning
//! under one of two names (or under both: then it is taken once), errors as an object, a string or a bare message,
//! their code a number or a string of digits. What is not understood is passed over.

use simd_json::prelude::*;
use simd_json::tape::Value;

use super::usage::Usage;

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model's reasoning.
    Thought,
    /// The answer.
    Text,
}

/// Why the model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It had said everything, or wanted a tool that it was not offered.
    Stop,
    /// The limit of tokens.
    Length,
    /// A filter of the endpoint.
    Filtered,
}

/// An error object within a stream or a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// As an HTTP status, if it says one.
    pub code: Option<u16>,
    /// The server's words.
    pub message: String,
}

/// What one JSON text says beside its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Whether it has choices at all, be the list empty.
    pub is_completion: bool,
    /// Why the model stopped, if it did.
    pub finish: Option<Finish>,
    /// Whether the text was a refusal.
    pub refused: bool,
    /// The counts, if they were sent.
    pub usage: Option<Usage>,
    /// The error, if it is one.
    pub error: Option<ServerError>,
}

/// Reads one JSON text and calls `sink` with its pieces of text, reasoning first.
pub fn decode(value: Value<'_, '_>, mut sink: impl FnMut(Kind, &str)) -> Chunk {
    let mut chunk = Chunk { error: read_error(value), ..Chunk::default() };
    if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
        chunk.usage = Usage::read(usage);
    }
    let Some(choices) = value.get_array("choices") else { return chunk };
    chunk.is_completion = true;
    // One choice is asked for; should a server send more, only the first is the answer.
    let first = choices.iter().find(|choice| choice.get_u64("index").unwrap_or(0) == 0);
    let Some(choice) = first else { return chunk };
    chunk.finish = choice.get_str("finish_reason").map(|reason| match reason {
        "length" => Finish::Length,
        "content_filter" => Finish::Filtered,
        _ => Finish::Stop,
    });
    for part in ["delta", "message"] {
        let Some(delta) = choice.get(part).filter(|delta| delta.is_object()) else { continue };
        let mut thought =
            |name: &str| delta.get(name).is_some_and(|text| pieces(text, &mut |text| sink(Kind::Thought, text)));
        if !thought("reasoning_content") {
            thought("reasoning");
        }
        if let Some(content) = delta.get("content") {
            pieces(content, &mut |text| sink(Kind::Text, text));
        }
        if let Some(refusal) = delta.get_str("refusal").filter(|refusal| !refusal.is_empty()) {
            chunk.refused = true;
            sink(Kind::Text, refusal);
        }
    }
    chunk
}

/// The non-empty texts of a string or of an array of parts; whether there was any.
fn pieces(value: Value<'_, '_>, sink: &mut dyn FnMut(&str)) -> bool {
    if let Some(text) = value.as_str() {
        if !text.is_empty() {
            sink(text);
        }
        return !text.is_empty();
    }
    let mut any = false;
    for part in value.as_array().iter().flat_map(|parts| parts.iter()) {
        let text = part.as_str().or_else(|| part.get_str("text"));
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            sink(text);
            any = true;
        }
    }
    any
}

/// The error that a JSON text reports, if it is one: `{"error":{…}}`, `{"error":"…"}` or vLLM's
/// `{"object":"error","message":…}`.
pub fn read_error(value: Value<'_, '_>) -> Option<ServerError> {
    let error = match value.get("error").filter(|error| !error.is_null()) {
        Some(error) => error,
        None if value.get_str("object") == Some("error") => value,
        None => return None,
    };
    if let Some(message) = error.as_str() {
        return Some(ServerError { code: None, message: message.to_owned() });
    }
    let code = ["code", "status", "status_code", "type"].iter().find_map(|name| error.get(*name).and_then(status_code));
    let message = error.get_str("message").or_else(|| error.get_str("detail"));
    if code.is_none() && message.is_none() {
        return None;
    }
    Some(ServerError { code, message: message.unwrap_or("no message").to_owned() })
}

fn status_code(value: Value<'_, '_>) -> Option<u16> {
    let number = match value.as_str() {
        Some("rate_limit_exceeded" | "rate_limit_error" | "insufficient_quota") => 429,
        Some("invalid_api_key" | "authentication_error") => 401,
        Some("server_error" | "internal_server_error") => 500,
        Some(text) => text.parse().ok()?,
        None => value.as_u64()?,
    };
    u16::try_from(number).ok().filter(|code| (400..600).contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::json::Reader;

    fn read(text: &str) -> (Chunk, Vec<(Kind, String)>) {
        let mut seen = Vec::new();
        let mut reader = Reader::default();
        let chunk = reader
            .read(&mut text.as_bytes().to_vec(), |value| decode(value, |kind, text| seen.push((kind, text.to_owned()))))
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
        assert_eq!(read(r#"{"choices":[]}"#).0, Chunk { is_completion: true, ..Chunk::default() });
        assert_eq!(read(r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#).1, []);
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
        ] {
            assert_eq!(read(both).1, std::slice::from_ref(&thought), "{both}");
        }
    }

    #[test]
    fn errors_come_in_many_shapes() {
        let error = |code, message: &str| Some(ServerError { code, message: message.to_owned() });
        assert_eq!(read(r#"{"error":{"message":"m","type":null,"code":"429"}}"#).0.error, error(Some(429), "m"));
        assert_eq!(read(r#"{"error":{"message":"m","code":503}}"#).0.error, error(Some(503), "m"));
        assert_eq!(read(r#"{"error":"m"}"#).0.error, error(None, "m"));
        assert_eq!(read(r#"{"object":"error","message":"m","code":400}"#).0.error, error(Some(400), "m"));
        assert_eq!(read(r#"{"error":{"code":"rate_limit_exceeded"}}"#).0.error, error(Some(429), "no message"));
        assert_eq!(read(r#"{"error":null,"choices":[]}"#).0.error, None);
        assert_eq!(read(r#"{"error":{},"choices":[]}"#).0.error, None);
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
        let refusal = read(r#"{"choices":[{"delta":{"refusal":"no"},"finish_reason":"stop"}]}"#);
        assert!(refusal.0.refused);
        assert_eq!(refusal.1, [text("no")]);
    }
}
