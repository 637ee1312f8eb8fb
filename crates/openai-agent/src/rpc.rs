//! JSON-RPC 2.0: what kind of message a line is, and how answers are written. Pure.
//!
//! An id is kept as the JSON text that names it, so that 1 and "1" stay different and come back as they came. A
//! top-level `sessionId` (the bus's extension) is kept beside it and comes back on the answer and on all updates of
//! the request; without it nothing is added.
//!
//! A line may be too long to be kept, or be no JSON: its request has to be answered all the same. A [`Finder`] is fed such
//! a line in pieces and keeps nothing of it but `id` and `sessionId`, which it gives back as they stood there.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use super::json::{Raw, push_string};

/// Where an answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Tells what a line is.
pub fn classify(value: Raw<'_>) -> Message<'_> {
    let (mut id, mut route, mut method, mut params, mut is_versioned, mut has_outcome) =
        (None, None, None, Raw::NULL, false, false);
    for (name, member) in value.members() {
        match &*name {
            b"id" => id = Some(member),
            b"sessionId" => route = member.text().and(member.scalar()).map(Into::into),
            b"method" => method = Some(member),
            b"params" => params = member,
            b"jsonrpc" => is_versioned = member.text().as_deref() == Some("2.0"),
            b"result" | b"error" => has_outcome = true,
            _ => {}
        }
    }
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

/// Longest id or name of a member, in bytes, that is kept.
const LONGEST: usize = 4096;

/// Looks for the members of the outermost object.
#[derive(Debug, Default)]
pub struct Finder {
    depth: usize,
    /// The outermost value is an object.
    is_object: bool,
    place: Place,
    /// What is being kept of a name or a value; nothing while neither is of interest.
    kept: Option<Vec<u8>>,
    /// The name before the colon.
    name: Vec<u8>,
    id: Option<Vec<u8>>,
    route: Option<Vec<u8>>,
    has_method: bool,
    has_outcome: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before a name, or within something that has no names of ours.
    #[default]
    Name,
    /// After a colon.
    Value,
    /// Within a number or a word.
    Word,
    /// Within a string; it is a name, or it is a value.
    String { is_name: bool, escaped: bool },
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Where an answer goes: to `null` if there is no id that could be one.
    pub reply: Reply,
    /// It is an answer itself: nobody waits for one.
    pub is_response: bool,
}

impl Envelope {
    /// What is found in a whole line.
    pub fn of(line: &[u8]) -> Self {
        let mut finder = Finder::default();
        finder.push(line);
        finder.finish()
    }
}

impl Finder {
    /// The next bytes of the line.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(byte) = bytes.first() {
            if let (Place::String { escaped: false, .. }, None) = (self.place, &self.kept) {
                // Most of a long line is one string that nobody asks for.
                let plain = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
                if plain > 0 {
                    bytes = &bytes[plain..];
                    continue;
                }
            }
            self.byte(*byte);
            bytes = &bytes[1..];
        }
    }

    fn byte(&mut self, byte: u8) {
        match (self.place, byte) {
            (Place::String { is_name, escaped }, _) => {
                self.keep(byte);
                if escaped || byte != b'"' {
                    self.place = Place::String { is_name, escaped: !escaped && byte == b'\\' };
                } else {
                    self.end(is_name);
                }
            }
            (_, b'"') => {
                let is_name = self.place == Place::Name && self.is_ours();
                self.begin(is_name);
                self.keep(byte);
                self.place = Place::String { is_name, escaped: false };
            }
            (_, b'{' | b'[') => {
                self.is_object |= self.depth == 0 && byte == b'{';
                self.depth += 1;
                self.kept = None;
                self.place = Place::Name;
            }
            (place, b'}' | b']' | b',') => {
                if place == Place::Word {
                    self.end(false);
                }
                self.depth = self.depth.saturating_sub(usize::from(byte != b','));
                self.place = Place::Name;
            }
            (_, b':') if self.is_ours() => self.place = Place::Value,
            (Place::Word, b' ' | b'\t' | b'\r' | b'\n') => self.end(false),
            (Place::Word, _) => self.keep(byte),
            (Place::Value, byte) if !byte.is_ascii_whitespace() => {
                self.begin(false);
                self.keep(byte);
                self.place = Place::Word;
            }
            _ => {}
        }
    }

    /// Whether names that stand here are the message's.
    fn is_ours(&self) -> bool {
        self.is_object && self.depth == 1
    }

    /// A name or a value begins: is it to be kept?
    fn begin(&mut self, is_name: bool) {
        let is_wanted = self.place == Place::Value && matches!(&self.name[..], b"id" | b"sessionId");
        self.kept = (is_name || is_wanted).then(Vec::new);
    }

    fn keep(&mut self, byte: u8) {
        if let Some(kept) = &mut self.kept {
            kept.push(byte);
            if kept.len() > LONGEST {
                self.kept = None;
            }
        }
    }

    /// A name or a value ends.
    fn end(&mut self, is_name: bool) {
        self.place = Place::Name;
        let kept = self.kept.take();
        if is_name {
            let name = kept.unwrap_or_default();
            self.name = name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or_default().to_vec();
            self.has_method |= self.name == b"method";
            self.has_outcome |= self.name == b"result" || self.name == b"error";
        } else if let Some(kept) = kept {
            let place = if self.name == b"id" { &mut self.id } else { &mut self.route };
            *place = Some(kept);
        }
    }

    /// The end of the line.
    pub fn finish(self) -> Envelope {
        let id = self.id.and_then(scalar).unwrap_or_else(|| "null".into());
        let route = self.route.and_then(scalar).filter(|token| token.starts_with('"'));
        let reply = Reply { id, route };
        Envelope { reply, is_response: self.has_outcome && !self.has_method }
    }
}

/// A token as JSON, if it is a string, a number or null.
fn scalar(token: Vec<u8>) -> Option<Box<str>> {
    let text = String::from_utf8(token).ok()?;
    let is_scalar = text.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')) || text == "null";
    // The parser looks at the grammar alone: which number it is, or which character, is not asked.
    (is_scalar && serde_json::from_str::<&RawValue>(&text).is_ok()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

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
        assert_eq!(found(&long).0, "null");
    }

    proptest! {
        #[test]
        fn what_is_found_does_not_depend_on_the_cuts(
            text in "\\PC*|[\\x00-\\x7f]*", id: u64, name in "\\PC*", cuts in proptest::collection::vec(1usize..40, 0..40),
        ) {
            let params = json!({ "id": 0, "sessionId": "x", "text": text.clone(), "list": [{ "id": 1 }] });
            let line = json!({ "params": params, "id": id, "zz": text, "sessionId": name }).to_string();
            let mut finder = Finder::default();
            let mut rest = line.as_bytes();
            for cut in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                finder.push(piece);
                rest = more;
            }
            finder.push(rest);
            let found = finder.finish();
            prop_assert_eq!(&found, &Envelope::of(line.as_bytes()));
            prop_assert_eq!(&*found.reply.id, id.to_string());
            prop_assert_eq!(found.reply.route.as_deref(), Some(&*json!(name).to_string()));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Envelope::of(&bytes);
        }
    }
}
