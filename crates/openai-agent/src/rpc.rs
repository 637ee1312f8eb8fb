//! JSON-RPC 2.0: what kind of message a line is, and how answers are written. Pure.
//!
//! An id is kept as the JSON text that names it, so that 1 and "1" stay different and come back as they came. A
//! top-level `sessionId` (the bus's extension) is kept beside it and comes back on the answer and on all updates of
//! the request; without it nothing is added.
//!
//! A line may be too long to be kept, or be no JSON: its request has to be answered all the same. An [`Envelope`] is what
//! can be read of it.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use super::json::{Raw, push_string};

/// Where an answer goes.
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
    /// -32602: the parameters cannot be used.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into(), data: None }
    }

    /// -32600: this cannot be asked (now).
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self { code: -32600, message: message.into(), data: None }
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

    /// -32603: our own trouble.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: -32603, message: message.into(), data: None }
    }
}

/// What a line is.
pub enum Message<'a> {
    /// Wants an answer.
    Request(Reply, Cow<'a, str>, Raw<'a>),
    /// Wants none.
    Notification(Cow<'a, str>, Raw<'a>),
    /// An answer. This agent asks nothing, so it is nobody's.
    Response,
    /// No JSON-RPC; the error goes to the id, or to null.
    Invalid(Reply, RpcError),
}

/// The members of a message that say what it is.
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

/// Tells what a line is.
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
    push_string(out, &error.message);
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
    push_string(&mut out, session_id);
    out.extend_from_slice(b",\"update\":{");
    out
}

/// What closes a line begun by [`update_head`] (after its members).
pub const UPDATE_TAIL: &[u8] = b"}}}\n";

fn push_head(out: &mut Vec<u8>, reply: &Reply) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(reply.id.as_bytes());
    if let Some(route) = &reply.route {
        out.extend_from_slice(b",\"sessionId\":");
        out.extend_from_slice(route.as_bytes());
    }
}

fn push_json(out: &mut Vec<u8>, value: &Json) {
    // Writing a value with string keys into a vector cannot fail.
    let _ = serde_json::to_writer(out, value);
}

/// Who asks in a line that is too long, or no JSON.
#[derive(Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Where an answer goes: to `null` if there is no id that could be one.
    pub reply: Reply,
    /// It is an answer itself: nobody waits for one.
    pub is_response: bool,
}

impl Envelope {
    /// What is found in a line, as far as it can be read.
    pub fn of(line: &[u8]) -> Self {
        // A number that ends with the line may have been cut.
        let is_whole = |(_, value): &(_, Raw<'_>)| value.bytes().as_ptr_range().end != line.as_ptr_range().end;
        let found = Members::of(Raw::begun(line).members().take_while(is_whole));
        let scalar = |value: Raw<'_>| {
            value.scalar().filter(|text| serde_json::from_str::<&RawValue>(text).is_ok()).map(Into::into)
        };
        let reply = Reply { id: found.id.and_then(scalar).unwrap_or_else(|| "null".into()), route: found.route };
        Self { reply, is_response: found.has_outcome && found.method.is_none() }
    }
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
    fn the_asker_is_found_in_what_cannot_be_read() {
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
            // None of these is an id that could be answered.
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
}
