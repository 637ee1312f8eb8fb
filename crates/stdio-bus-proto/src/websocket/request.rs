//! The request of a WebSocket handshake (RFC 6455, section 4), as a server reads it. It reports what was requested, and
//! does not decide whether it is granted.
//!
//! Invariant: a request has one meaning ([`crate::http1`]) and no body, so that no proxy in front of us can read its
//! end, token or origin differently. The result does not depend on how the bytes are cut.

use super::key::HandshakeKey;
use crate::access::{Caller, Identity, Refusal};
use crate::http1::{self, Fields, Framing, Status, ascii};

pub use crate::http1::{LONGEST_HEAD, Method};

/// The subprotocols of ACP and MCP, one of which is chosen if it is offered. Browsers and MCP's SDKs give up a
/// connection if they offered some and none was chosen.
pub const PROTOCOLS: [&str; 2] = ["acp", "mcp"];
/// The prefix of a token that is sent as a subprotocol: a browser page cannot set `Authorization`.
const BEARER_PROTOCOL: &str = "bearer.";

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
pub struct UpgradeHead<'b> {
    /// GET, for a WebSocket; others are read to be refused.
    pub method: Method,
    /// The path as it was written: ASCII, without the query. It begins with a slash, except for `*` and CONNECT.
    pub path: &'b str,
    /// A non-empty query follows the path.
    pub has_query: bool,
    /// The identity and credentials of the sender.
    pub caller: Caller<'b>,
    /// The first offered protocol that is one of [`PROTOCOLS`].
    pub protocol: Option<&'static str>,
    handshake: UpgradeFields<'b>,
}

/// The fields that only a WebSocket handshake has.
#[derive(Debug, PartialEq, Eq)]
struct UpgradeFields<'b> {
    is_old_http: bool,
    asks_for_websocket: bool,
    asks_to_upgrade: bool,
    version: Option<&'b [u8]>,
    key: Option<&'b [u8]>,
    /// A token is offered as a subprotocol without any of the [`PROTOCOLS`].
    offers_token_alone: bool,
}

impl<'b> UpgradeHead<'b> {
    /// The key, if this is a WebSocket handshake of the supported version.
    ///
    /// # Errors
    /// The response to an incomplete handshake: 405, 426 or 400.
    pub fn upgrade(&self) -> Result<HandshakeKey<'b>, Refusal> {
        let UpgradeFields { is_old_http, asks_for_websocket, asks_to_upgrade, version, key, offers_token_alone } =
            self.handshake;
        let refused = |status, why: &'static str| Err(Refusal::new(status, why));
        // Streamable HTTP clients send POST, or GET for a stream, and conclude from a 405 that it is not served here.
        if self.method != Method::Get || !asks_for_websocket {
            let (host, path) = (self.caller.host.unwrap_or("HOST"), self.path);
            let lack = match self.method {
                Method::Get => "the request has no Upgrade: websocket, which a proxy has to pass on",
                _ => "that begins with GET",
            };
            let why = format!("only WebSocket is spoken here, at ws://{host}{path}; {lack}");
            return Err(Refusal::new(Status::MethodNotAllowed, why));
        }
        if is_old_http {
            return refused(Status::BadRequest, "a WebSocket needs HTTP/1.1; a proxy has to speak it");
        }
        if !asks_to_upgrade {
            return refused(Status::BadRequest, "the request has no Connection: Upgrade; a proxy has to pass it on");
        }
        if version != Some(b"13") {
            return refused(Status::UpgradeRequired, "the request has no Sec-WebSocket-Version: 13");
        }
        if offers_token_alone {
            return refused(
                Status::BadRequest,
                "a token alone is offered as a subprotocol; offer acp (or mcp) beside it, since a browser gives up where \
                 none is chosen",
            );
        }
        let key = key.ok_or_else(|| Refusal::bad("the request has no Sec-WebSocket-Key"))?;
        HandshakeKey::new(key).ok_or_else(|| Refusal::bad("Sec-WebSocket-Key is not 16 bytes in base64"))
    }
}

impl<'b> UpgradeHead<'b> {
    /// Reads a head. `identity` says which field has the client's name.
    ///
    /// # Errors
    /// A field is ambiguous or malformed.
    pub fn of(head: &http1::Request<'b>, identity: Option<&Identity>) -> Result<Self, Refusal> {
        let fields = &head.fields;
        // The bytes after a GET's head are frames, which no proxy in front of us may read differently. Other methods
        // are refused whatever their body, and nothing after them is read.
        match head.body {
            _ if head.method != Method::Get => {}
            Framing::Length(0) => {}
            Framing::Length(_) => {
                return Err(Refusal::bad("the request has a Content-Length, and nothing here takes a body"));
            }
            Framing::Chunked | Framing::UntilEnd => {
                return Err(Refusal::bad("the request has a Transfer-Encoding, and nothing here takes a body"));
            }
        }
        let only = |name: &'static str, twice: &'static str| fields.only(name).map_err(|_| Refusal::bad(twice));
        let (protocol, token_of_protocol) = read_protocols(fields)?;
        let caller = Caller::of(head, token_of_protocol, identity)?;
        let handshake = UpgradeFields {
            is_old_http: head.is_old,
            asks_for_websocket: fields.has("upgrade", "websocket"),
            asks_to_upgrade: fields.has("connection", "upgrade"),
            version: only("sec-websocket-version", "more than one Sec-WebSocket-Version")?,
            key: only("sec-websocket-key", "more than one Sec-WebSocket-Key")?,
            offers_token_alone: token_of_protocol.is_some() && protocol.is_none(),
        };
        Ok(Self {
            method: head.method,
            path: head.path,
            has_query: !head.query.is_empty(),
            caller,
            protocol,
            handshake,
        })
    }
}

/// The first offered protocol that we support, and the token sent as a subprotocol.
fn read_protocols<'b>(fields: &Fields<'b>) -> Result<(Option<&'static str>, Option<&'b str>), Refusal> {
    let (mut ours, mut token) = (None, None);
    for protocol in fields.elements("sec-websocket-protocol") {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let protocol = ascii(protocol).filter(|protocol| protocol.bytes().all(is_token));
        let protocol = protocol.ok_or_else(|| Refusal::bad("Sec-WebSocket-Protocol is not a list of tokens"))?;
        if let Some(known) = PROTOCOLS.into_iter().find(|known| *known == protocol) {
            ours = ours.or(Some(known));
        } else if let Some(secret) = protocol.strip_prefix(BEARER_PROTOCOL)
            && !secret.is_empty()
            && token.replace(secret).is_some()
        {
            return Err(Refusal::bad("more than one token as a subprotocol"));
        }
    }
    Ok((ours, token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http1::HeadReader;
    use crate::testing::frames::{ParsedUpgrade, read_request};

    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    /// The expected result for a head, with a word of the reason for a refusal.
    #[derive(Clone, Debug, PartialEq)]
    enum Is {
        Upgrade,
        /// A request that is not a WebSocket handshake.
        Other(u16, &'static str),
        Refused(u16, &'static str),
    }
    use Is::{Other, Refused, Upgrade};

    fn read(bytes: &[u8]) -> ParsedUpgrade<'_> {
        read_request(&mut HeadReader::default(), bytes)
    }

    fn request(bytes: &[u8]) -> UpgradeHead<'_> {
        match read(bytes) {
            Ok(Some(request)) => request,
            other => panic!("{}: {other:?}", bytes.escape_ascii()),
        }
    }

    /// A valid head with one line replaced.
    fn head_with(line: &str, more: &str) -> String {
        format!(
            "{line}\r\nHost: bus.example:9000\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{KEY}\
            Sec-WebSocket-Version: 13\r\n{more}\r\n"
        )
    }

    fn without(field: &str) -> String {
        let head = head_with("GET /acp HTTP/1.1", "");
        head.split_inclusive("\r\n").filter(|line| !line.starts_with(field)).collect()
    }

    fn instead_of(field: &str, other: &str) -> String {
        without(field).replacen("\r\n", &format!("\r\n{other}\r\n"), 1)
    }

    fn with(more: &str) -> String {
        head_with("GET /acp HTTP/1.1", more)
    }

    fn line(line: &str) -> String {
        head_with(line, "")
    }

    fn fields(count: usize) -> String {
        with(&"A: b\r\n".repeat(count - 5))
    }

    fn long(bytes: usize) -> String {
        with(&format!("A: {}\r\n", "a".repeat(bytes - with("A: \r\n").len())))
    }

    fn table() -> Vec<(String, Is)> {
        [meant(), asking_otherwise(), of_two_meanings(), malformed(), misnaming(), none_or_too_much()].concat()
    }

    /// Valid handshakes.
    fn meant() -> Vec<(String, Is)> {
        vec![
            (with(""), Upgrade),
            (with("Origin: https://a.example\r\nUser-Agent: x\r\nCookie: a=b\r\nCookie: c=d\r\n"), Upgrade),
            (with("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"), Upgrade),
            (with("Sec-WebSocket-Protocol: acp, bearer.abc\r\nAccept: */*\r\n"), Upgrade),
            (with("sec-websocket-protocol: mcp\r\nSEC-WEBSOCKET-PROTOCOL: acp\r\n"), Upgrade),
            (with("Content-Length: 0\r\n"), Upgrade),
            (with("Expect: 100-continue\r\n"), Upgrade),
            (with("X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n"), Upgrade),
            (line("GET /acp?session=1 HTTP/1.1"), Upgrade),
            (line("GET / HTTP/1.1"), Upgrade),
            (line("GET http://bus.example:9000/acp HTTP/1.1"), Upgrade),
            (line("GET WS://BUS.example:9000 HTTP/1.1"), Upgrade),
            (instead_of("Connection", "Connection: keep-alive, Upgrade"), Upgrade),
            (instead_of("Connection", "connection: keep-alive\r\nConnection: UPGRADE"), Upgrade),
            (instead_of("Upgrade", "upgrade: h2c, WebSocket"), Upgrade),
            (instead_of("Host", "Host: [::1]:9000"), Upgrade),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR=="), Upgrade),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key:dGhlIHNhbXBsZSBub25jZQ==  "), Upgrade),
            (fields(64), Upgrade),
            (long(LONGEST_HEAD), Upgrade),
        ]
    }

    /// Requests for something else.
    fn asking_otherwise() -> Vec<(String, Is)> {
        vec![
            ("GET /healthz HTTP/1.0\r\n\r\n".into(), Other(405, "no Upgrade: websocket")),
            ("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n".into(), Other(405, "no Upgrade: websocket")),
            ("HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n".into(), Other(405, "begins with GET")),
            ("OPTIONS * HTTP/1.0\r\n\r\n".into(), Other(405, "begins with GET")),
            ("CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n".into(), Other(405, "begins with GET")),
            (line("POST /acp HTTP/1.1"), Other(405, "at ws://bus.example:9000/acp; that begins with GET")),
            (head_with("POST /acp HTTP/1.1", "Content-Length: 5\r\n"), Other(405, "begins with GET")),
            (head_with("POST /acp HTTP/1.1", "Transfer-Encoding: chunked\r\n"), Other(405, "begins with GET")),
            (with("Sec-WebSocket-Protocol: bearer.abc\r\n"), Other(400, "offer acp (or mcp) beside it")),
            (line("DELETE /acp HTTP/1.1"), Other(405, "begins with GET")),
            (line("GET /acp HTTP/1.0"), Other(400, "HTTP/1.1")),
            (without("Upgrade"), Other(405, "no Upgrade: websocket")),
            (instead_of("Upgrade", "Upgrade: h2c"), Other(405, "no Upgrade: websocket")),
            (instead_of("Upgrade", "Upgrade: websocket2"), Other(405, "no Upgrade: websocket")),
            (without("Connection"), Other(400, "Connection: Upgrade")),
            (instead_of("Connection", "Connection: keep-alive"), Other(400, "Connection: Upgrade")),
            (without("Sec-WebSocket-Version"), Other(426, "Sec-WebSocket-Version: 13")),
            (instead_of("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8"), Other(426, "Version: 13")),
            (instead_of("Sec-WebSocket-Version", "Sec-WebSocket-Version: 13, 8"), Other(426, "Version: 13")),
            (instead_of("Sec-WebSocket-Version", "Sec-WebSocket-Version: 013"), Other(426, "Version: 13")),
            (without("Sec-WebSocket-Key"), Other(400, "no Sec-WebSocket-Key")),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key: "), Other(400, "not 16 bytes")),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j"), Other(400, "not 16 bytes")),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ"), Other(400, "not 16")),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSE="), Other(400, "not 16")),
            (instead_of("Sec-WebSocket-Key", "Sec-WebSocket-Key: ????????????????????????"), Other(400, "not 16")),
            (
                instead_of("Sec-WebSocket-Key", &format!("Sec-WebSocket-Key: {}", "A".repeat(400))),
                Other(400, "not 16 bytes"),
            ),
        ]
    }

    /// Requests that parsers read differently.
    fn of_two_meanings() -> Vec<(String, Is)> {
        vec![
            (with("Host: other.example\r\n"), Refused(400, "more than one Host")),
            (with("HOST: bus.example:9000\r\n"), Refused(400, "more than one Host")),
            (with(KEY), Refused(400, "more than one Sec-WebSocket-Key")),
            (with("Sec-WebSocket-Version: 13\r\n"), Refused(400, "more than one Sec-WebSocket-Version")),
            (with("Origin: null\r\nOrigin: https://a.example\r\n"), Refused(400, "more than one Origin")),
            (with("Authorization: Bearer a\r\nAuthorization: Bearer a\r\n"), Refused(400, "one Authorization")),
            (with("Authorization: Bearer a\r\nSec-WebSocket-Protocol: bearer.a\r\n"), Refused(400, "another one")),
            (with("Sec-WebSocket-Protocol: bearer.a, acp, bearer.b\r\n"), Refused(400, "more than one token")),
            (with("Content-Length: 5\r\n"), Refused(400, "Content-Length")),
            (with("Content-Length: +0\r\n"), Refused(400, "Content-Length")),
            (with("Content-Length: 00\r\n"), Refused(400, "Content-Length")),
            (with("Content-Length: 0\r\nContent-Length: 0\r\n"), Refused(400, "more than one Content-Length")),
            (with("Transfer-Encoding: chunked\r\n"), Refused(400, "Transfer-Encoding")),
            (with("transfer-encoding: identity\r\nContent-Length: 0\r\n"), Refused(400, "Transfer-Encoding")),
        ]
    }

    /// Line errors that some parsers forgive.
    fn malformed() -> Vec<(String, Is)> {
        vec![
            (with("A: b\r\n c\r\n"), Refused(400, "malformed")),
            (with("A: b\r\n\tc: d\r\n"), Refused(400, "malformed")),
            (with("A : b\r\n"), Refused(400, "malformed")),
            (with("A\r\n"), Refused(400, "malformed")),
            (with(": b\r\n"), Refused(400, "malformed")),
            (with("A: b\0c\r\n"), Refused(400, "malformed")),
            (with("A: b\u{7f}\r\n"), Refused(400, "malformed")),
            (with("A: b\rHost: c\r\n"), Refused(400, "malformed")),
            (with("A\0: b\r\n"), Refused(400, "malformed")),
            (with("A: b\nHost2: c\r\n"), Refused(400, "CR LF")),
            (with("").replace("\r\n", "\n"), Refused(400, "CR LF")),
            (with("").replacen("\r\n", "\n", 1), Refused(400, "CR LF")),
            (line("GET /acp  HTTP/1.1"), Refused(505, "HTTP/1.1")),
            (line("GET  /acp HTTP/1.1"), Refused(400, "malformed")),
            (line("GET /a cp HTTP/1.1"), Refused(505, "HTTP/1.1")),
            (line("GET /acp"), Refused(400, "malformed")),
            (line("GET acp HTTP/1.1"), Refused(400, "not a path")),
            (line("GET /acp#a HTTP/1.1"), Refused(400, "not a path")),
            (line("GET /\u{e9} HTTP/1.1"), Refused(400, "not a path")),
            (line("GET ftp://bus.example:9000/acp HTTP/1.1"), Refused(400, "not a path")),
            (line("GET http://other.example/acp HTTP/1.1"), Refused(400, "another host")),
            (line("GET http://user@bus.example:9000/ HTTP/1.1"), Refused(400, "another host")),
            (line("GET /acp HTTP/2.0"), Refused(505, "HTTP/1.1")),
            (line("GET /acp HTTP/1.2"), Refused(505, "HTTP/1.1")),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), Refused(505, "HTTP/1.1")),
        ]
    }

    /// Invalid hosts, origins, tokens and protocols.
    fn misnaming() -> Vec<(String, Is)> {
        vec![
            (without("Host"), Refused(400, "needs a Host")),
            (instead_of("Host", "Host: "), Refused(400, "not a host")),
            (instead_of("Host", "Host: a, b"), Refused(400, "not a host")),
            (instead_of("Host", "Host: a/b"), Refused(400, "not a host")),
            (instead_of("Host", "Host: user@a"), Refused(400, "not a host")),
            (instead_of("Host", "Host: b\u{fc}s.example"), Refused(400, "not a host")),
            (with("Origin: https://b\u{fc}s.example\r\n"), Refused(400, "Origin is not ASCII")),
            (with("Authorization: Bearer a b\r\n"), Refused(400, "visible ASCII")),
            (with("Authorization: Bearer \u{fc}\r\n"), Refused(400, "visible ASCII")),
            (with("Sec-WebSocket-Protocol: a b\r\n"), Refused(400, "list of tokens")),
            (with("Sec-WebSocket-Protocol: acp;q=1\r\n"), Refused(400, "list of tokens")),
        ]
    }

    /// Missing or excessive parts.
    fn none_or_too_much() -> Vec<(String, Is)> {
        vec![
            ("{\"jsonrpc\":\"2.0\",\"id\":1}\n".into(), Refused(400, "not HTTP")),
            ("\u{16}\u{3}\u{1}\u{2}".into(), Refused(400, "not HTTP")),
            ("\r\n\r\n".into(), Refused(400, "not HTTP")),
            ("get / HTTP/1.1\r\n".into(), Refused(400, "not HTTP")),
            ("GET\r\n\r\n".into(), Refused(400, "malformed")),
            (fields(65), Refused(431, "64 fields")),
            (long(LONGEST_HEAD + 1), Refused(431, "32 KiB")),
            (format!("GET /{}", "a".repeat(2 * LONGEST_HEAD)), Refused(431, "32 KiB")),
            (format!("G{}", "\0".repeat(LONGEST_HEAD)), Refused(400, "malformed")),
        ]
    }

    fn what(asked: ParsedUpgrade<'_>, expected: &Is) -> Is {
        let status_and_word = |refusal: Refusal| {
            let (Other(_, word) | Refused(_, word)) = expected else { panic!("{refusal:?}") };
            assert!(refusal.why.contains(word), "{refusal:?} does not say {word:?}");
            (refusal.status.code(), *word)
        };
        match asked {
            Ok(Some(request)) => match request.upgrade() {
                Ok(_) => Upgrade,
                Err(refusal) => {
                    let (status, word) = status_and_word(refusal);
                    Other(status, word)
                }
            },
            Err(refusal) => {
                let (status, word) = status_and_word(refusal);
                Refused(status, word)
            }
            Ok(None) => panic!("more is waited for"),
        }
    }

    #[test]
    fn each_request_of_the_table_gives_its_result_however_it_is_cut() {
        assert!(table().len() >= 60);
        for (text, expected) in table() {
            let bytes = text.as_bytes();
            assert_eq!(what(read(bytes), &expected), expected, "{text:?}");
            let mut reader = HeadReader::default();
            let mut byte_by_byte = (0..=bytes.len()).map(|end| read_request(&mut reader, &bytes[..end]));
            let first = byte_by_byte.find(|reading| *reading != Ok(None));
            assert_eq!(first, Some(read(bytes)), "{text:?}, byte by byte");
            for cut in (0..bytes.len()).step_by(if bytes.len() > 1000 { 97 } else { 1 }) {
                let mut reader = HeadReader::default();
                let first = read_request(&mut reader, &bytes[..cut]);
                let all = if first == Ok(None) { read_request(&mut reader, bytes) } else { first };
                assert_eq!(all, read(bytes), "{text:?}, cut at {cut}");
            }
        }
    }

    #[test]
    fn what_follows_the_head_does_not_matter_and_is_not_read() {
        for (text, expected) in table().into_iter().filter(|(_, expected)| *expected == Upgrade) {
            for rest in [&b"\x81\x85\0\0\0\0Hello"[..], b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", &[0; 9000]] {
                let bytes = [text.as_bytes(), rest].concat();
                assert_eq!(what(read(&bytes), &expected), expected);
            }
        }
    }

    #[test]
    fn a_request_names_its_caller_and_its_target() {
        let head = head_with(
            "GET /a/b%20c?d=e?f HTTP/1.1",
            "Origin: https://page.example\r\nX-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nx-forwarded-for: unknown\r\n\
            Forwarded: for=\"[2001:db8::1]\";proto=https\r\n",
        );
        let request = request(head.as_bytes());
        assert_eq!((request.method, request.path, request.has_query), (Method::Get, "/a/b%20c", true));
        assert_eq!(
            (request.caller.host, request.caller.origin),
            (Some("bus.example:9000"), Some("https://page.example"))
        );
        assert_eq!(request.caller.forwarded_for, [&b"192.0.2.1, 192.0.2.2"[..], b"unknown"]);
        assert_eq!(request.caller.forwarded, [&b"for=\"[2001:db8::1]\";proto=https"[..]]);
        assert_eq!((request.caller.token, request.protocol), (None, None));
        assert_eq!(request.upgrade().unwrap(), HandshakeKey::new(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap());
    }

    #[test]
    fn a_target_is_a_path_with_an_optional_query() {
        for (target, path, has_query) in [
            ("/", "/", false),
            ("/acp?", "/acp", false),
            ("/?a", "/", true),
            ("//acp", "//acp", false),
            ("http://bus.example:9000", "/", false),
            ("https://bus.example:9000?a", "/", true),
            ("wss://bus.example:9000/acp?a#".trim_end_matches('#'), "/acp", true),
        ] {
            let head = head_with(&format!("GET {target} HTTP/1.1"), "");
            let request = request(head.as_bytes());
            assert_eq!((request.path, request.has_query), (path, has_query), "{target}");
        }
    }

    #[test]
    fn a_token_is_a_field_or_a_subprotocol_and_is_not_shown() {
        for (more, token, protocol) in [
            ("Authorization: Bearer s3cret\r\n", Some("s3cret"), None),
            ("authorization: bearer   s3cret= \r\nSec-WebSocket-Protocol: acp\r\n", Some("s3cret="), Some("acp")),
            ("Sec-WebSocket-Protocol: acp, bearer.s3cret\r\n", Some("s3cret"), Some("acp")),
            ("Sec-WebSocket-Protocol: bearer.s3cret, mcp\r\n", Some("s3cret"), Some("mcp")),
            ("Sec-WebSocket-Protocol: other, mcp, acp\r\n", None, Some("mcp")),
            ("Sec-WebSocket-Protocol: bearer.s3.cret\r\n", Some("s3.cret"), None),
            ("Sec-WebSocket-Protocol: ,,acp ,\r\n", None, Some("acp")),
            ("Sec-WebSocket-Protocol: bearer., ACP, bearer\r\n", None, None),
            ("Authorization: Basic czNjcmV0\r\n", None, None),
            ("Authorization: Bearers3cret\r\n", None, None),
            ("Authorization: Bearer\r\n", None, None),
            ("Authorization:\r\n", None, None),
            ("", None, None),
        ] {
            let head = head_with("GET /acp HTTP/1.1", more);
            let request = request(head.as_bytes());
            assert_eq!((request.caller.token.map(|token| token.0), request.protocol), (token, protocol), "{more:?}");
            assert!(!format!("{request:?}").contains("s3cret"), "{request:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_wait_for_more_than_there_may_be(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            fields in "[ -~\r\n]{0,200}",
            length in 0..3 * LONGEST_HEAD,
        ) {
            let mut text = format!("GET /{fields} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
            text.extend_from_slice(&bytes);
            for bytes in [&bytes, &text, &b"GET ".iter().copied().cycle().take(length).collect::<Vec<_>>()] {
                let reading = read(bytes);
                prop_assert!(reading != Ok(None) || bytes.len() < LONGEST_HEAD);
                if let Ok(Some(request)) = reading {
                    let _ = request.upgrade();
                }
            }
        }
    }
}
