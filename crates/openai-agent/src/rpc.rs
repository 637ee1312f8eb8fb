//! JSON-RPC 2.0: the kind of a message, and how answers and the lines of `session/update` are written. Pure.
//!
//! An id is kept as its JSON text, so that 1 and "1" stay different and are returned unchanged. A top-level `sessionId`
//! (the bus's extension) is kept beside it and returned with the answer and all updates of the request; without it
//! nothing is added.
//!
//! A line may be too long to be kept, or not JSON: its request must still be answered. An [`Envelope`] is what can be
//! read of it.

use std::borrow::Cow;
use std::time::SystemTime;

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use stdio_bus_base::calendar::to_the_second;

use super::json::{Raw, push_json};

/// The address of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The id, as JSON.
    pub id: Box<str>,
    /// The top-level session id of the request, as JSON.
    pub route: Option<Box<str>>,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// One of the codes of JSON-RPC and ACP.
    pub code: i32,
    /// For people.
    pub message: String,
    /// For programs.
    pub data: Option<Json>,
}

impl RpcError {
    /// An error with this code.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// -32602: the parameters cannot be used.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    /// -32600: this request is not possible (now).
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    /// -32601: there is no such method.
    pub fn method_not_found(method: &str) -> Self {
        Self { code: -32601, message: format!("Method not found: {method}"), data: Some(json!({ "method": method })) }
    }

    /// -32002: there is no such session.
    pub fn unknown_session(session_id: &str) -> Self {
        let data = Some(json!({ "sessionId": session_id }));
        Self { code: -32002, message: format!("Session not found: {session_id}"), data }
    }
}

/// The kind of a line.
pub enum Message<'a> {
    /// Expects an answer.
    Request(Reply, Cow<'a, str>, Raw<'a>),
    /// Expects none.
    Notification(Cow<'a, str>, Raw<'a>),
    /// An answer. This agent asks nothing, so it is ignored.
    Response,
    /// Not JSON-RPC; the error is for the id, or for null.
    Invalid(Reply, RpcError),
}

/// The members that determine the kind of a message.
struct Members<'a> {
    id: Option<Raw<'a>>,
    route: Option<Box<str>>,
    method: Option<Raw<'a>>,
    params: Raw<'a>,
    is_versioned: bool,
    has_outcome: bool,
}

impl<'a> Members<'a> {
    fn of(members: impl Iterator<Item = (Cow<'a, [u8]>, Raw<'a>)>) -> Self {
        let (id, route, method, params) = (None, None, None, Raw::NULL);
        let mut found = Self { id, route, method, params, is_versioned: false, has_outcome: false };
        for (name, member) in members {
            match &*name {
                b"id" => found.id = Some(member),
                b"sessionId" => found.route = member.text().and(member.scalar()).map(Into::into),
                b"method" => found.method = Some(member),
                b"params" => found.params = member,
                b"jsonrpc" => found.is_versioned = member.text().as_deref() == Some("2.0"),
                b"result" | b"error" => found.has_outcome = true,
                _ => {}
            }
        }
        found
    }
}

/// Determines the kind of a message.
pub fn classify(value: Raw<'_>) -> Message<'_> {
    let Members { id, route, method, params, is_versioned, has_outcome } = Members::of(value.members());
    let is_odd = id.is_some_and(|id| id.scalar().is_none());
    let (has_id, token) = (id.is_some(), id.and_then(Raw::scalar).unwrap_or("null"));
    let reply = Reply { id: token.into(), route: if is_odd { None } else { route } };
    let complaint = match (value.is_object(), method) {
        (false, _) if value.is_array() => "Batches are not supported",
        (false, _) => "A message is a JSON object",
        _ if is_odd => "An id is a string, a number or null",
        (_, None) if has_outcome => return Message::Response,
        (_, None) => "A message has a method, a result or an error",
        (_, Some(method)) => match method.text() {
            None => "method is not a string",
            Some(_) if !is_versioned => "jsonrpc is not \"2.0\"",
            Some(method) if has_id => return Message::Request(reply, method, params),
            Some(method) => return Message::Notification(method, params),
        },
    };
    Message::Invalid(reply, RpcError::invalid_request(complaint))
}

/// Appends the line that answers a request with `result`, a JSON text.
pub fn push_result(out: &mut Vec<u8>, reply: &Reply, result: &Json) {
    push_head(out, reply);
    out.extend_from_slice(b",\"result\":");
    push_json(out, result);
    out.extend_from_slice(b"}\n");
}

/// Appends the line that answers a request with an error.
pub fn push_error(out: &mut Vec<u8>, reply: &Reply, error: &RpcError) {
    push_head(out, reply);
    out.extend_from_slice(format!(",\"error\":{{\"code\":{},\"message\":", error.code).as_bytes());
    push_json(out, &error.message);
    if let Some(data) = &error.data {
        out.extend_from_slice(b",\"data\":");
        push_json(out, data);
    }
    out.extend_from_slice(b"}}\n");
}

/// The beginning of a `session/update` line, up to the members of `update`.
pub fn update_head(session_id: &str, route: Option<&str>) -> Vec<u8> {
    let mut out = b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\"".to_vec();
    if let Some(route) = route {
        out.extend_from_slice(b",\"sessionId\":");
        out.extend_from_slice(route.as_bytes());
    }
    out.extend_from_slice(b",\"params\":{\"sessionId\":");
    push_json(&mut out, session_id);
    out.extend_from_slice(b",\"update\":{");
    out
}

/// Closes a line begun by [`update_head`] (after its members).
pub const UPDATE_TAIL: &[u8] = b"}}}\n";

fn push_head(out: &mut Vec<u8>, reply: &Reply) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(reply.id.as_bytes());
    if let Some(route) = &reply.route {
        out.extend_from_slice(b",\"sessionId\":");
        out.extend_from_slice(route.as_bytes());
    }
}

/// The sender's id in a line that is too long or not JSON.
#[derive(Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The address of an answer: `null` if there is no valid id.
    pub reply: Reply,
    /// It is itself an answer, so none is expected.
    pub is_response: bool,
}

impl Envelope {
    /// What can be found in a line, as far as it can be read.
    pub fn of(line: &[u8]) -> Self {
        // A number at the end of the line may have been cut.
        let is_whole = |(_, value): &(_, Raw<'_>)| value.bytes().as_ptr_range().end != line.as_ptr_range().end;
        let found = Members::of(Raw::begun(line).members().take_while(is_whole));
        let scalar = |value: Raw<'_>| {
            value.scalar().filter(|text| serde_json::from_str::<&RawValue>(text).is_ok()).map(Into::into)
        };
        let reply = Reply { id: found.id.and_then(scalar).unwrap_or_else(|| "null".into()), route: found.route };
        Self { reply, is_response: found.has_outcome && found.method.is_none() }
    }
}

/// Maximum number of text bytes in one update. Escaped it stays below 1 MiB, the longest line that the bus accepts by
/// default and BenchFlow at all, unless it consists of control characters.
pub const LONGEST_PIECE: usize = 256 << 10;

/// Longest working directory and model name, in bytes: as long as the kernel's paths. They are kept as long as their
/// session.
const LONGEST_WORD: usize = 4096;

/// Appends an update with these members.
pub fn push_update(out: &mut Vec<u8>, head: &[u8], members: &str) {
    out.extend_from_slice(head);
    out.extend_from_slice(members.as_bytes());
    out.extend_from_slice(UPDATE_TAIL);
}

/// Appends a piece of text.
pub fn push_text(out: &mut Vec<u8>, head: &[u8], kind: &str, message_id: &str, text: &str) {
    out.extend_from_slice(head);
    out.extend_from_slice(b"\"sessionUpdate\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"messageId\":\"");
    out.extend_from_slice(message_id.as_bytes());
    out.extend_from_slice(b"\",\"content\":{\"type\":\"text\",\"text\":");
    push_json(out, text);
    out.push(b'}');
    out.extend_from_slice(UPDATE_TAIL);
}

/// Appends the new title of the session.
pub fn push_title(out: &mut Vec<u8>, head: &[u8], title: &str, updated: SystemTime) {
    let (title, updated) = (serde_json::Value::from(title), to_the_second(updated));
    push_update(
        out,
        head,
        &format!("\"sessionUpdate\":\"session_info_update\",\"title\":{title},\"updatedAt\":\"{updated}\""),
    );
}

/// How much of `rest` is sent in the next chunk. Open Design takes a chunk that begins with all text so far as a
/// snapshot of the whole, and drops that beginning; such a piece is cut so that its chunks do not begin that way. After
/// a single character nothing can be cut: that case is left as it is.
pub fn piece_length(sent: &str, rest: &str) -> usize {
    if sent.is_empty() || !rest.starts_with(sent) {
        return rest.len();
    }
    match sent.char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => rest.len(),
    }
}

/// The end of the last character within the first `most` bytes (str::floor_char_boundary from Rust 1.91).
pub fn floor(text: &str, most: usize) -> usize {
    if most >= text.len() {
        return text.len();
    }
    (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// A parameter that must be a string.
pub fn text<'a>(params: Raw<'a>, name: &str) -> Result<Cow<'a, str>, RpcError> {
    params.get_text(name).ok_or_else(|| RpcError::invalid_params(format!("{name} is missing or not a string")))
}

/// A parameter that is kept as long as its session.
pub fn word<'a>(params: Raw<'a>, name: &str) -> Result<Cow<'a, str>, RpcError> {
    let word = text(params, name)?;
    if word.len() <= LONGEST_WORD {
        Ok(word)
    } else {
        Err(RpcError::invalid_params(format!("{name} is longer than {LONGEST_WORD} bytes")))
    }
}

/// Random bytes as the name of a session or a message.
pub fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = u128::from_be_bytes(bytes);
    let hex = format!("{hex:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(line: &str) -> (String, Option<String>, bool) {
        let envelope = Envelope::of(line.as_bytes());
        (envelope.reply.id.into(), envelope.reply.route.map(Into::into), envelope.is_response)
    }

    #[test]
    fn the_id_is_found_in_an_unreadable_line() {
        for (line, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#, "7"),
            (r#"{"id":"a\"b","method":"\ud83d"}"#, r#""a\"b""#),
            (r#" { "method" : "m" , "id" : 123456789012345678901234567890 } "#, "123456789012345678901234567890"),
            (r#"{"id":1e400,"method":"m"}"#, "1e400"),
            (r#"{"id":"\ud83d","method":"m"}"#, r#""\ud83d""#),
            (r#"{"params":{"id":1,"x":[{"id":2}]},"id":3,"#, "3"),
            (r#"{"params":{"id":1,"text":"\"id\":9"},"id":-3,"x":tru"#, "-3"),
            (r#"{"method":"id","id":"x","params":"#, r#""x""#),
            (r#"{"id":null}"#, "null"),
            // None of these is a valid id.
            (r#"{"id":NaN,"method":"m"}"#, "null"),
            (r#"{"id":{"id":4},"method":"m"}"#, "null"),
            (r#"{"id":[5],"method":"m"}"#, "null"),
            (r#"{"id":true,"method":"m"}"#, "null"),
            (r#"{"id":01,"method":"m"}"#, "null"),
            (r#"[{"id":6,"method":"m"}]"#, "null"),
            (r#"{"params":{"id":1},"method":"m"}"#, "null"),
            (r#"{"id":"cut"#, "null"),
            (r#"{"id":12"#, "null"),
            ("", "null"),
            (r#""id":1"#, "null"),
        ] {
            assert_eq!(found(line).0, id, "{line}");
        }
        assert_eq!(found(r#"{"sessionId":"s","id":1,"method":"m"}"#), ("1".into(), Some(r#""s""#.into()), false));
        assert_eq!(found(r#"{"sessionId":7,"id":1,"result":{"method":1}}"#), ("1".into(), None, true));
        let long = format!(r#"{{"{}":1,"id":"{}","method":"m"}}"#, "n".repeat(5000), "i".repeat(5000));
        assert_eq!(found(&long).0.len(), 5002);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Envelope::of(&bytes);
        }
    }

    #[test]
    fn ids_are_uuids() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn pieces_do_not_begin_with_all_previous_text() {
        assert_eq!(piece_length("", "abc"), 3);
        assert_eq!(piece_length("ab", "abab"), 1);
        assert_eq!(piece_length("aé", "aéx"), 1);
        assert_eq!(piece_length("ab", "ba"), 2);
        assert_eq!(piece_length("a", "ab"), 2);
    }
}
