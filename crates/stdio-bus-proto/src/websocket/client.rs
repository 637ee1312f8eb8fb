//! The client's side of the handshake: writes the request and reads the response.

use std::fmt;

use super::key::{accept, written};
pub use crate::http1::LONGEST_ANSWER;
use crate::http1::{Error, Event, Fields, Head, Method, Response, ResponseReader, is_word, printable};

/// A client's request. [`fmt::Display`] writes all of it.
#[derive(Clone, Copy)]
pub struct UpgradeRequest<'a> {
    host: &'a str,
    target: &'a str,
    key: [u8; 16],
    token: Option<&'a str>,
}

impl<'a> UpgradeRequest<'a> {
    /// A request to `host` (with its port, unless that is the default) for `target`, a path and optional query. The key
    /// is 16 random bytes, the token is sent as `Authorization: Bearer`.
    ///
    /// # Errors
    /// One of them is not allowed in a request.
    pub fn new(host: &'a str, target: &'a str, key: [u8; 16], token: Option<&'a str>) -> Result<Self, &'static str> {
        if !is_word(host) {
            return Err("the host has characters that a URL cannot have");
        }
        if !is_word(target) || !target.starts_with('/') || target.contains('#') {
            return Err("the path has characters that a URL cannot have, or does not begin with a slash");
        }
        if token.is_some_and(|token| !is_word(token)) {
            return Err("the token is empty, or has characters other than visible ASCII");
        }
        Ok(Self { host, target, key, token })
    }
}

impl fmt::Display for UpgradeRequest<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, target, key, token } = self;
        let head = Head::request("GET", target, host)
            .field("Upgrade", "websocket")
            .field("Connection", "Upgrade")
            .field("Sec-WebSocket-Version", 13)
            .field("Sec-WebSocket-Key", written(*key))
            .field_if("Authorization", token.map(|token| format!("Bearer {token}")));
        out.write_str(&head.end())
    }
}

/// What the bytes so far contain.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerResponse {
    /// An incomplete response.
    More,
    /// The connection is a WebSocket.
    Accepted {
        /// Length of the head; the bytes after it are frames.
        length: usize,
        /// `Acp-Connection-Id`, without control characters.
        connection_id: Option<String>,
    },
    /// The server refused.
    Refused(Refused),
    /// It is not a valid response to this request.
    Malformed(&'static str),
}

/// A server's refusal.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its status code, such as 401.
    pub status: u16,
    /// Its explanation, in a line without control characters: the `message` of a JSON body, else the first line of a
    /// text, else the reason phrase. It may be empty.
    pub message: String,
    /// Seconds after which to retry.
    pub retry_after: Option<u32>,
    /// The address to try instead.
    pub location: Option<String>,
}

/// Reads the response so far to a request with this key. `has_ended` if nothing more will come.
pub fn read(bytes: &[u8], key: [u8; 16], has_ended: bool) -> ServerResponse {
    let bytes = &bytes[..bytes.len().min(LONGEST_ANSWER)];
    let is_all = has_ended || bytes.len() == LONGEST_ANSWER;
    let (mut reader, mut begin) = (ResponseReader::new(Method::Get, u64::MAX), 0);
    loop {
        match reader.next(&bytes[begin..], is_all) {
            Event::Head(head) if head.status == 101 => return read_acceptance(&head.fields, begin + head.length, key),
            // An interim response: the final one follows.
            Event::Head(head) if head.status < 200 => begin += head.length,
            Event::Head(head) => {
                let rest = &bytes[begin + head.length..];
                return read_body(&mut reader, rest, is_all)
                    .map_or(ServerResponse::More, |body| read_refusal(&head, &body));
            }
            Event::Wrong(Error::NOTHING) if begin == 0 => {
                return ServerResponse::Malformed("the server closed without an answer");
            }
            Event::Wrong(Error::NOTHING | Error::CUT_OFF) => {
                return ServerResponse::Malformed("the server's answer is not HTTP, or has no end");
            }
            Event::Wrong(_) => return ServerResponse::Malformed("the server's answer is not HTTP"),
            Event::More(_) | Event::Data { .. } | Event::End(_) => return ServerResponse::More,
        }
    }
}

/// The body, once it is complete.
fn read_body(reader: &mut ResponseReader, bytes: &[u8], is_all: bool) -> Option<Vec<u8>> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        match reader.next(&bytes[at..], is_all) {
            Event::Data { data, length } => {
                body.extend_from_slice(data);
                at += length;
            }
            Event::More(_) => return None,
            Event::End(_) | Event::Wrong(_) | Event::Head(_) => return Some(body),
        }
    }
}

fn read_acceptance(fields: &Fields<'_>, length: usize, key: [u8; 16]) -> ServerResponse {
    if !fields.has("upgrade", "websocket") || !fields.has("connection", "upgrade") {
        return ServerResponse::Malformed("the server switches protocols, but not to WebSocket");
    }
    let expected = accept(written(key).as_bytes());
    if !matches!(fields.only("sec-websocket-accept"), Ok(Some(value)) if value == expected.as_bytes()) {
        return ServerResponse::Malformed("the server's Sec-WebSocket-Accept is not the one of this request");
    }
    if fields.elements("sec-websocket-extensions").next().is_some() {
        return ServerResponse::Malformed("the server wants an extension of WebSocket that was not offered");
    }
    if fields.elements("sec-websocket-protocol").next().is_some() {
        return ServerResponse::Malformed("the server wants a subprotocol that was not offered");
    }
    let connection_id = fields.values("acp-connection-id").next().map(printable);
    ServerResponse::Accepted { length, connection_id }
}

fn read_refusal(head: &Response<'_>, body: &[u8]) -> ServerResponse {
    let fields = &head.fields;
    let kind = fields.values("content-type").next().unwrap_or_default();
    let message = message(kind, body).unwrap_or_else(|| printable(head.reason.as_bytes()));
    let location = fields.values("location").next().map(printable);
    let retry_after =
        fields.values("retry-after").next().and_then(|seconds| str::from_utf8(seconds).ok()?.parse().ok());
    ServerResponse::Refused(Refused { status: head.status, message, retry_after, location })
}

/// The human-readable message in a body of this `Content-Type`.
pub fn message(kind: &[u8], body: &[u8]) -> Option<String> {
    let is_text = kind.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/plain"));
    let text = match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(json) => printable(json.get("message")?.as_str()?.as_bytes()),
        Err(_) if is_text => printable(body.trim_ascii_start().split(|byte| *byte == b'\n').next()?.trim_ascii_end()),
        Err(_) => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::answer::Accepted;
    use super::*;
    use crate::access::Refusal;
    use crate::http1::{HeadReader, Status};
    use crate::testing::frames::read_request;

    const KEY: [u8; 16] = *b"the sample nonce";
    const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

    fn refused(status: u16, message: &str, retry_after: Option<u32>, location: Option<&str>) -> ServerResponse {
        let (message, location) = (message.to_owned(), location.map(str::to_owned));
        ServerResponse::Refused(Refused { status, message, retry_after, location })
    }

    #[test]
    fn our_own_server_accepts_our_request() {
        for (token, path) in [(None, "/acp"), (Some("s3cret"), "/")] {
            let text = UpgradeRequest::new("bus.example:9000", path, KEY, token).unwrap().to_string();
            let asked = read_request(&mut HeadReader::default(), text.as_bytes());
            let Ok(Some(request)) = asked else { panic!("{text}") };
            assert_eq!((request.path, request.caller.host), (path, Some("bus.example:9000")));
            assert_eq!(request.caller.token.map(|token| token.0), token);
            let accepted =
                Accepted { key: request.upgrade().unwrap(), connection_id: "a1", protocol: None }.to_string();
            let expected = ServerResponse::Accepted { length: accepted.len(), connection_id: Some("a1".into()) };
            assert_eq!(read(accepted.as_bytes(), KEY, false), expected);
        }
    }

    #[test]
    fn a_request_that_would_be_read_differently_is_not_sent() {
        let new = |host, target, token| UpgradeRequest::new(host, target, KEY, token).err();
        for host in ["", "a b", "a\r\nX: y", "b\u{fc}s"] {
            assert!(new(host, "/", None).unwrap().starts_with("the host"), "{host:?}");
        }
        for target in ["", "acp", "/a b", "/\r\n", "/#a", "/\u{fc}"] {
            assert!(new("h", target, None).unwrap().starts_with("the path"), "{target:?}");
        }
        for token in ["", "a b", "a\n", "\u{fc}"] {
            assert!(new("h", "/", Some(token)).unwrap().starts_with("the token"), "{token:?}");
        }
        assert_eq!(new("[::1]:9000", "/acp?a=b", Some("a.b-c=")), None);
    }

    #[test]
    fn a_response_is_read_however_it_is_cut_and_what_follows_is_left() {
        let answers = [
            (format!("{ACCEPTED}\r\n"), ServerResponse::Accepted { length: 0, connection_id: None }),
            (
                format!(
                    "{}acp-connection-id: x\r\n\r\n",
                    ACCEPTED
                        .to_lowercase()
                        .replace(": s3pplmbitxaq9kygzzhzrbk+xoo=", ": s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
                        .replace("http/1.1", "HTTP/1.1")
                ),
                ServerResponse::Accepted { length: 0, connection_id: Some("x".into()) },
            ),
            (
                format!("HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 \r\n\r\n{ACCEPTED}\r\n"),
                ServerResponse::Accepted { length: 0, connection_id: None },
            ),
            (
                Refusal::new(Status::Forbidden, "this origin may not ask").response(None),
                refused(403, "this origin may not ask", None, None),
            ),
            (Refusal::unavailable("it drains", 7).response(None), refused(503, "it drains", Some(7), None)),
            (
                "HTTP/1.1 301 Moved\r\nLocation: https://a.example/\u{1b}acp\r\nContent-Length: 0\r\n\r\n"
                    .replace('\u{1b}', ""),
                refused(301, "Moved", None, Some("https://a.example/acp")),
            ),
            (
                "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>".into(),
                refused(502, "Bad Gateway", None, None),
            ),
            (
                "HTTP/1.1 429 \r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\nwait\x1b[31m \r\nor do not"
                    .into(),
                refused(429, "wait\u{fffd}[31m", None, None),
            ),
            ("HTTP/1.1 204 None\r\n\r\n".into(), refused(204, "None", None, None)),
        ];
        for (text, expected) in answers {
            let expected = match expected {
                ServerResponse::Accepted { connection_id, .. } => {
                    ServerResponse::Accepted { length: text.len(), connection_id }
                }
                other => other,
            };
            for end in 0..text.len() {
                assert_eq!(read(&text.as_bytes()[..end], KEY, false), ServerResponse::More, "{text:?} cut at {end}");
            }
            for rest in [&b""[..], b"\x81\x05Hello", b"\r\n\r\n"] {
                let bytes = [text.as_bytes(), rest].concat();
                assert_eq!(read(&bytes, KEY, false), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn a_body_without_a_length_is_read_to_its_end() {
        let text = b"HTTP/1.1 401 Unauthorized\r\n\r\n{\"message\":\"who are you?\"}";
        assert_eq!(read(text, KEY, false), ServerResponse::More);
        assert_eq!(read(text, KEY, true), refused(401, "who are you?", None, None));
        let cut = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 100\r\n\r\n{\"mess";
        assert_eq!(read(cut, KEY, true), refused(401, "Unauthorized", None, None));
        let endless = [&text[..], &[b' '; LONGEST_ANSWER]].concat();
        assert_eq!(read(&endless, KEY, false), refused(401, "who are you?", None, None));
    }

    #[test]
    fn an_invalid_response_is_reported_as_such() {
        let wrong = |text: String| match read(text.as_bytes(), KEY, true) {
            ServerResponse::Malformed(why) => why,
            other => panic!("{text:?}: {other:?}"),
        };
        let with = |field: &str| wrong(format!("{ACCEPTED}{field}\r\n\r\n"));
        assert!(wrong(String::new()).contains("without an answer"));
        assert!(wrong("{}\n".into()).contains("not HTTP"));
        assert!(wrong("HTTP/1.1 101 \r\nA: b".into()).contains("no end"));
        assert!(wrong("SSH-2.0-OpenSSH\r\n\r\n".into()).contains("not HTTP"));
        assert!(wrong(format!("{ACCEPTED}\r\n").replace("websocket", "h2c")).contains("not to WebSocket"));
        assert!(wrong(format!("{ACCEPTED}\r\n").replace("n: Upgrade", "n: close")).contains("not to WebSocket"));
        assert!(wrong(format!("{ACCEPTED}\r\n").replace("s3p", "S3p")).contains("Accept"));
        assert!(with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=").contains("Accept"));
        assert!(with("Sec-WebSocket-Extensions: permessage-deflate").contains("extension"));
        assert!(with("Sec-WebSocket-Protocol: acp").contains("subprotocol"));
        let endless = format!("HTTP/1.1 101 {}", "a".repeat(LONGEST_ANSWER));
        assert_eq!(read(&endless.as_bytes()[..LONGEST_ANSWER - 1], KEY, false), ServerResponse::More);
        assert!(matches!(read(&endless.as_bytes()[..LONGEST_ANSWER], KEY, false), ServerResponse::Malformed(_)));
        assert!(matches!(read(b"a", KEY, false), ServerResponse::Malformed(_)), "no more of it is waited for");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300), fields in "[ -~\r\n]{0,200}", ended in any::<bool>(),
        ) {
            let _ = read(&bytes, KEY, ended);
            let _ = read(format!("HTTP/1.1 {fields}\r\n{fields}\r\n\r\n{fields}").as_bytes(), KEY, ended);
            let _ = read(format!("{ACCEPTED}{fields}\r\n\r\n").as_bytes(), KEY, ended);
        }
    }
}
