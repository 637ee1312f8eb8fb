//! A line as an MCP message over HTTP: its kind and era, and the fields for the head of its request. It does no I/O,
//! and leaves it to the server to reject invalid JSON.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::bus::id::Id;
use crate::mcp::head::{Repeated, is_plain, named_by};
use crate::mcp::params::Wanted;

/// A line from the client.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    /// Without its newline.
    pub line: Vec<u8>,
    pub kind: MessageKind,
    /// When it came.
    pub since: Instant,
    /// The head fields of a message that names its revision; none if it belongs to a session.
    pub modern: Option<Repeated>,
}

/// The kind of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// A request: its id verbatim and in canonical form.
    Request { id: Box<[u8]>, token: Box<[u8]>, purpose: Purpose },
    /// A notification that cancels the request with this id.
    Cancel { token: Box<[u8]> },
    /// The notification that the session is initialized.
    Initialized,
    /// Any other notification.
    Notification,
    /// A response to the server.
    Response,
    /// Anything else: it has no usable id.
    Other,
}

/// The purpose of a request, if it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It starts a session.
    Initialize,
    /// It has no answer until it is cancelled.
    Listen,
    Other,
}

#[derive(Deserialize)]
struct Envelope<'l> {
    #[serde(borrow)]
    id: Option<&'l RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'l, str>>,
    #[serde(borrow)]
    params: Option<&'l RawValue>,
}

#[derive(Default, Deserialize)]
struct Params<'l> {
    #[serde(borrow)]
    _meta: Option<&'l RawValue>,
    #[serde(borrow)]
    name: Option<&'l RawValue>,
    #[serde(borrow)]
    uri: Option<&'l RawValue>,
    #[serde(borrow, rename = "taskId")]
    task_id: Option<&'l RawValue>,
    #[serde(borrow, rename = "requestId")]
    request_id: Option<&'l RawValue>,
}

impl OutgoingMessage {
    /// Reads a line without its newline.
    pub(super) fn read(line: &[u8]) -> Self {
        let (kind, modern) = read(line).unwrap_or((MessageKind::Other, None));
        Self { line: line.to_vec(), kind, since: Instant::now(), modern }
    }

    /// The canonical id of a request.
    pub(super) fn token(&self) -> Option<&[u8]> {
        match &self.kind {
            MessageKind::Request { token, .. } => Some(token),
            _ => None,
        }
    }

    /// The id of a request, verbatim.
    pub(super) fn id(&self) -> &[u8] {
        match &self.kind {
            MessageKind::Request { id, .. } => id,
            _ => b"null",
        }
    }

    /// Whether it starts a session.
    pub(super) fn initializes(&self) -> bool {
        matches!(self.kind, MessageKind::Request { purpose: Purpose::Initialize, .. })
    }

    /// Whether its response is a stream without an end of its own.
    pub(super) fn listens(&self) -> bool {
        matches!(self.kind, MessageKind::Request { purpose: Purpose::Listen, .. })
    }
}

fn read(line: &[u8]) -> Option<(MessageKind, Option<Repeated>)> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
    let params = envelope.params.and_then(|params| serde_json::from_str(params.get()).ok());
    let params: Params<'_> = params.unwrap_or_default();
    let Some(method) = envelope.method else {
        return envelope.id.map(|_| (MessageKind::Response, None));
    };
    let kind = match envelope.id {
        Some(id) => {
            let purpose = match &*method {
                "initialize" => Purpose::Initialize,
                "subscriptions/listen" => Purpose::Listen,
                _ => Purpose::Other,
            };
            MessageKind::Request { id: id.get().as_bytes().into(), token: canonical(id)?, purpose }
        }
        None => match (&*method, params.request_id.and_then(canonical)) {
            ("notifications/cancelled", Some(token)) => MessageKind::Cancel { token },
            ("notifications/initialized", _) => MessageKind::Initialized,
            _ => MessageKind::Notification,
        },
    };
    let version = params._meta.and_then(version).map(|version| {
        let named = match named_by(method.as_bytes()) {
            Some(Wanted::Name) => params.name,
            Some(Wanted::Uri) => params.uri,
            Some(Wanted::Task) => params.task_id,
            _ => None,
        };
        let name = named.and_then(|name| serde_json::from_str::<Cow<'_, str>>(name.get()).ok());
        Repeated::new(&version, &method, name.as_deref())
    });
    Some((kind, version))
}

/// The revision that a message names.
fn version(meta: &RawValue) -> Option<String> {
    let meta: serde_json::Map<String, serde_json::Value> = serde_json::from_str(meta.get()).ok()?;
    Some(meta.get(Wanted::Version.name())?.as_str()?.to_owned())
}

/// The canonical form of an id: equal ids have equal forms.
fn canonical(id: &RawValue) -> Option<Box<[u8]>> {
    Id::parse(id.get().as_bytes()).ok().map(|id| id.token().into())
}

/// The token of the request that a line answers, if it is an answer. None if it is not a message.
pub(super) fn answers(line: &[u8]) -> Option<Option<Box<[u8]>>> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
    Some(envelope.id.filter(|_| envelope.method.is_none()).and_then(canonical))
}

/// The messages of a body, one per line: a batch of revision 2025-03-26 has several. None if it is not such JSON.
pub(super) fn of_body(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let line = |text: &str| {
        let is_newline = |byte| byte == b'\n' || byte == b'\r';
        text.bytes().map(|byte| if is_newline(byte) { b'\t' } else { byte }).collect()
    };
    let raw: &RawValue = serde_json::from_slice(body).ok()?;
    match raw.get().as_bytes().first() {
        Some(b'{') => Some(vec![line(raw.get())]),
        Some(b'[') => {
            let elements: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
            elements
                .iter()
                .all(|one| one.get().starts_with('{'))
                .then(|| elements.iter().map(|one| line(one.get())).collect())
        }
        _ => None,
    }
}

/// This line with the given raw id, if it is an error with another id or none: a server that refuses a request may not
/// have read its id.
pub(super) fn error_for(line: &[u8], token: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Error<'l> {
        #[serde(borrow)]
        error: &'l RawValue,
    }
    let Error { error } = serde_json::from_slice(line).ok()?;
    let code = serde_json::from_str::<serde_json::Value>(error.get()).ok()?;
    code.get("code")?.as_i64()?;
    Some([br#"{"jsonrpc":"2.0","id":"#, token, br#","error":"#, error.get().as_bytes(), b"}"].concat())
}

/// Whether an error says that a worker may have got the request.
pub(super) fn is_delivered(line: &[u8]) -> bool {
    let answer: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
    answer.pointer("/error/data/delivered").is_some_and(|delivered| delivered == true)
}

/// The revision that the answer to `initialize` agrees on.
pub(super) fn agreed_version(line: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(line).ok()?;
    let version = answer.pointer("/result/protocolVersion")?.as_str()?;
    is_plain(version).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> MessageKind {
        OutgoingMessage::read(line.as_bytes()).kind
    }

    fn request(id: &str, token: &str, purpose: Purpose) -> MessageKind {
        MessageKind::Request { id: id.as_bytes().into(), token: token.as_bytes().into(), purpose }
    }

    #[test]
    fn kinds_of_lines_are_distinguished() {
        for (line, expected) in [
            (r#"{"id":1,"method":"initialize"}"#, request("1", "1", Purpose::Initialize)),
            (r#"{"id":"\u0061","m\u0065thod":"x","params":[1]}"#, request(r#""\u0061""#, "\"a\"", Purpose::Other)),
            (r#"{"id":7,"method":"subscriptions/listen","params":{}}"#, request("7", "7", Purpose::Listen)),
            (r#"{"method":"notifications/initialized"}"#, MessageKind::Initialized),
            (
                r#"{"method":"notifications/cancelled","params":{"requestId":1e1}}"#,
                MessageKind::Cancel { token: b"10"[..].into() },
            ),
            (r#"{"method":"notifications/cancelled","params":{}}"#, MessageKind::Notification),
            (r#"{"id":null,"method":"x"}"#, MessageKind::Notification),
            (r#"{"id":1,"result":null}"#, MessageKind::Response),
            (r#"[{"id":1,"method":"x"}]"#, MessageKind::Other),
            (r#"{"id":1,"#, MessageKind::Other),
            ("7", MessageKind::Other),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }

    #[test]
    fn the_head_of_a_modern_request_agrees_with_its_body() {
        let version = Wanted::Version.name();
        let modern = |method: &str, member: &str| {
            let line =
                format!(r#"{{"id":1,"method":"{method}","params":{{{member}"_meta":{{"{version}":"2026-07-28"}}}}}}"#);
            OutgoingMessage::read(line.as_bytes()).modern.map(|modern| (modern.version, modern.method, modern.name))
        };
        let expected = |method: &str, name: Option<&str>| {
            Some((Some("2026-07-28".to_owned()), Some(method.to_owned()), name.map(str::to_owned)))
        };
        for (method, member, name) in [
            ("tools/list", r#""name":"a","#, None),
            ("tools/call", r#""name":"a b","uri":"x","#, Some("a b")),
            ("prompts/get", r#""name":"gr\u00fc\u00df","#, Some("=?base64?Z3LDvMOf?=")),
            ("tools/call", r#""name":" a","#, Some("=?base64?IGE=?=")),
            ("tools/call", r#""name":"=?base64?YQ==?=","#, Some("=?base64?PT9iYXNlNjQ/WVE9PT89?=")),
            ("tools/call", r#""name":"a\r\nX: y","#, Some("=?base64?YQ0KWDogeQ==?=")),
            ("tools/call", r#""name":7,"#, None),
            ("resources/read", r#""uri":"file:///a","#, Some("file:///a")),
            ("tasks/get", r#""taskId":"t-1","name":"x","#, Some("t-1")),
            ("tasks/update", r#""taskId":"t-1","#, Some("t-1")),
            ("tasks/cancel", r#""taskId":"t-1","#, Some("t-1")),
        ] {
            assert_eq!(modern(method, member), expected(method, name), "{method} {member}");
        }
        assert_eq!(OutgoingMessage::read(br#"{"id":1,"method":"tools/call","params":{"name":"a"}}"#).modern, None);
    }

    #[test]
    fn a_body_becomes_lines() {
        let lines = |body: &str| of_body(body.as_bytes()).map(|lines| lines.concat());
        assert_eq!(lines(" {\r\n \"a\": 1}\n"), Some(b"{\t\t \"a\": 1}".to_vec()));
        assert_eq!(of_body(b"[{\"a\":1}, {\"b\":\n2}]"), Some(vec![b"{\"a\":1}".to_vec(), b"{\"b\":\t2}".to_vec()]));
        for none in ["", "<html>", "{\"a\":", "7", "[1]", "{} {}"] {
            assert_eq!(lines(none), None, "{none}");
        }
    }

    #[test]
    fn an_error_without_the_id_of_its_request_gets_it() {
        let line = br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#;
        let expected = br#"{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"no"}}"#;
        assert_eq!(error_for(line, b"\"a\"").as_deref(), Some(&expected[..]));
        assert_eq!(error_for(br#"{"error":"unauthorized"}"#, b"1"), None, "that is no JSON-RPC");
        assert_eq!(error_for(br#"{"id":1,"result":{}}"#, b"1"), None);
        assert_eq!(
            agreed_version(br#"{"id":1,"result":{"protocolVersion":"2025-11-25"}}"#).as_deref(),
            Some("2025-11-25")
        );
        assert_eq!(agreed_version(br#"{"id":1,"result":{"protocolVersion":"a\nb"}}"#), None);
    }
}
