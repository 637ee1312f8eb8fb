//! One request as the bytes of a connection say it: HTTP/1.1 and HTTP/1.0 (RFC 9110, RFC 9112). It reads bytes and
//! touches nothing.
//!
//! Invariant: what is accepted has one length, which no header contradicts, so nobody reads its end elsewhere.

use super::status_line::Status;

/// Longest head in bytes.
pub(super) const MAX_HEAD: usize = 8 * 1024;
/// Longest body in bytes. No request needs one: what it asks for stands in its target.
pub(super) const MAX_BODY: usize = 4 * 1024;
/// Header fields of a request at most.
const MAX_FIELDS: usize = 64;

/// What is to be done with the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Post,
    Options,
    /// Another one of RFC 9110 or RFC 5789.
    Other,
    Unknown,
}

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub method: Method,
    /// As it was written, without the query.
    pub path: String,
    /// Decoded, in the order in which they stand.
    pub query: Vec<(String, String)>,
    /// It speaks HTTP/1.0, and knows no chunks.
    pub is_old: bool,
    /// Whether another request may follow on this connection.
    pub keep_alive: bool,
    pub host: Option<String>,
    pub origin: Option<String>,
    /// `Sec-Fetch-Site`: where a browser says that the request comes from.
    pub fetch_site: Option<String>,
    /// The token of `Authorization: Bearer`.
    pub bearer: Option<Vec<u8>>,
    /// Its bytes, body included.
    pub length: usize,
}

impl Request {
    /// The first value of a parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What the bytes so far are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The begin of a request.
    Partial,
    Whole(Request),
    /// No request that can be answered otherwise. The connection cannot be read on.
    Wrong(Status, &'static str),
}

/// Reads the request at the front of `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => length,
        Ok(httparse::Status::Complete(_)) => return Parsed::Wrong(Status::FieldsTooLarge, "the head is too long"),
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Parsed::Partial,
        Ok(httparse::Status::Partial) if memchr::memchr(b'\n', bytes).is_none() => {
            return Parsed::Wrong(Status::TargetTooLong, "the request line is too long");
        }
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Wrong(Status::FieldsTooLarge, "the head is too long");
        }
        Err(httparse::Error::Version) => {
            return Parsed::Wrong(Status::VersionNotSupported, "HTTP/1.1 and HTTP/1.0 are spoken here");
        }
        Err(_) => return Parsed::Wrong(Status::BadRequest, "this is not HTTP"),
    };
    let ends_lines_twofold = |newline: usize| newline > 0 && bytes[newline - 1] == b'\r';
    if !memchr::memchr_iter(b'\n', &bytes[..length]).all(ends_lines_twofold) {
        return Parsed::Wrong(Status::BadRequest, "a line of the head does not end with CR LF");
    }
    match read_head(&head, length) {
        Ok(request) if bytes.len() < request.length => Parsed::Partial,
        Ok(request) => Parsed::Whole(request),
        Err((status, text)) => Parsed::Wrong(status, text),
    }
}

type Wrong = (Status, &'static str);

fn read_head(head: &httparse::Request<'_, '_>, length: usize) -> Result<Request, Wrong> {
    let method = match head.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        "PUT" | "DELETE" | "PATCH" | "TRACE" | "CONNECT" => Method::Other,
        _ => Method::Unknown,
    };
    let is_old = head.version == Some(0);
    let host = only(head, "host", "more than one Host")?;
    let (path, query) = split_target(head.path.unwrap_or_default(), host.as_deref())?;
    if host.is_none() && !is_old {
        return Err((Status::BadRequest, "HTTP/1.1 needs a Host"));
    }
    let keep_alive = if is_old { has_token(head, "keep-alive") } else { true } && !has_token(head, "close");
    let body = body_length(head)?;
    if only(head, "expect", "more than one Expect")?.is_some() {
        return Err((Status::ExpectationFailed, "send the body at once, or none"));
    }
    let credentials = only(head, "authorization", "more than one Authorization")?;
    let bearer = credentials.and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().as_bytes().to_vec())
    });
    Ok(Request {
        method,
        path,
        query,
        is_old,
        keep_alive,
        host,
        origin: only(head, "origin", "more than one Origin")?,
        fetch_site: only(head, "sec-fetch-site", "more than one Sec-Fetch-Site")?,
        bearer,
        length: length + body,
    })
}

/// The values of a header field, one for each line of it.
fn values<'h>(head: &'h httparse::Request<'_, '_>, name: &'static str) -> impl Iterator<Item = &'h [u8]> {
    head.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}

/// The value of a field that may stand once.
fn only(head: &httparse::Request<'_, '_>, name: &'static str, twice: &'static str) -> Result<Option<String>, Wrong> {
    let mut values = values(head, name);
    let first = values.next().map(|value| String::from_utf8_lossy(value).into_owned());
    if values.next().is_some() { Err((Status::BadRequest, twice)) } else { Ok(first) }
}

/// Whether `Connection` has this option.
fn has_token(head: &httparse::Request<'_, '_>, option: &str) -> bool {
    let mut all = values(head, "connection").flat_map(|value| value.split(|byte| *byte == b','));
    all.any(|token| token.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
}

fn body_length(head: &httparse::Request<'_, '_>) -> Result<usize, Wrong> {
    if values(head, "transfer-encoding").next().is_some() {
        return Err((Status::LengthRequired, "a body needs a Content-Length here"));
    }
    let mut lengths = values(head, "content-length");
    let Some(first) = lengths.next() else { return Ok(0) };
    if lengths.any(|other| other != first) {
        return Err((Status::BadRequest, "two values of Content-Length"));
    }
    if first.is_empty() || !first.iter().all(u8::is_ascii_digit) {
        return Err((Status::BadRequest, "Content-Length is not a number"));
    }
    let length = std::str::from_utf8(first).ok().and_then(|digits| digits.parse().ok()).unwrap_or(usize::MAX);
    if length > MAX_BODY {
        return Err((Status::ContentTooLarge, "the body is too long"));
    }
    Ok(length)
}

/// Path and query of a target, which may be written with scheme and authority (RFC 9112, section 3.2.2). What that says
/// is what `Host` says, by which it is decided who may ask.
fn split_target(target: &str, host: Option<&str>) -> Result<(String, Vec<(String, String)>), Wrong> {
    let after_scheme = ["http://", "https://"].iter().find_map(|scheme| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let target = match after_scheme {
        Some(rest) => {
            let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            if !host.is_some_and(|host| host.eq_ignore_ascii_case(authority)) {
                return Err((Status::BadRequest, "the target of the request names another host than Host does"));
            }
            target
        }
        None if target.starts_with('/') || target == "*" => target,
        None => return Err((Status::BadRequest, "the target of the request is not a path")),
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = if path.is_empty() { "/" } else { path };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    Ok((path.to_owned(), pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()))
}

/// What the escapes of a query stand for; what is no escape stands for itself.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high << 4 | low);
                    rest = &after[2..];
                }
                _ => bytes.push(b'%'),
            },
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Request {
        match parse(text.as_bytes()) {
            Parsed::Whole(request) => request,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn wrong(text: &str) -> u16 {
        match parse(text.as_bytes()) {
            Parsed::Wrong(status, _) => status.code(),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_request_says_what_it_asks_for_and_whether_another_one_follows() {
        let request = whole("GET /readyz?pool=a%20b+c&x HTTP/1.1\r\nHost: h\r\nAuthorization: bearer t\r\n\r\nGET");
        assert_eq!((request.method, request.path.as_str(), request.length), (Method::Get, "/readyz", 73));
        assert_eq!(
            (request.parameter("pool"), request.parameter("x"), request.parameter("y")),
            (Some("a b c"), Some(""), None)
        );
        assert_eq!((request.bearer.as_deref(), request.keep_alive), (Some(&b"t"[..]), true));
        assert!(!whole("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n").keep_alive);
    }

    #[test]
    fn a_check_of_haproxy_is_understood() {
        let check = whole("OPTIONS / HTTP/1.0\r\n\r\n");
        assert_eq!((check.method, check.path.as_str(), check.keep_alive), (Method::Options, "/", false));
        let check = whole("GET /readyz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((check.host.as_deref(), check.is_old, check.keep_alive), (None, true, true));
    }

    #[test]
    fn a_target_may_be_a_whole_url() {
        let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: h:1\r\n\r\n");
        for (target, path) in [("http://h:1/a?b=c", "/a"), ("HTTPS://H:1", "/"), ("http://h:1?b=c", "/"), ("*", "*")] {
            assert_eq!(whole(&get(target)).path, path, "{target}");
        }
        for target in ["http://evil.example/a", "http://h/a", "http://user@h:1/", "ftp://h:1/a", "a"] {
            assert_eq!(wrong(&get(target)), 400, "{target}");
        }
        assert_eq!(wrong("GET http://h/a HTTP/1.0\r\n\r\n"), 400, "there is no Host that says the same");
    }

    #[test]
    fn a_line_that_ends_with_a_newline_alone_is_refused() {
        let text = "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n";
        assert_eq!(whole(text).path, "/");
        for (at, _) in text.match_indices('\r') {
            let bare = format!("{}{}", &text[..at], &text[at + 1..]);
            assert_eq!(wrong(&bare), 400, "{bare:?}");
        }
    }

    #[test]
    fn what_is_not_to_be_answered_otherwise_is_refused_as_http_says() {
        let with = |fields: &str| wrong(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        assert_eq!(wrong("{\"jsonrpc\":\"2.0\"}\r\n\r\n"), 400);
        assert_eq!(wrong("GET / HTTP/1.1\r\n\r\n"), 400, "without Host");
        assert_eq!(wrong("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
        assert_eq!(wrong("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
        assert_eq!(with("Content-Length: 4097\r\n"), 413);
        assert_eq!(with("Content-Length: 99999999999999999999999\r\n"), 413);
        assert_eq!(with("Content-Length: +1\r\n"), 400);
        assert_eq!(with("Content-Length: 1\r\nContent-Length: 2\r\n"), 400);
        assert_eq!(with("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), 411);
        assert_eq!(with("Expect: 100-continue\r\n"), 417);
        assert_eq!(with(&format!("A: {}\r\n", "a".repeat(MAX_HEAD))), 431);
        assert_eq!(with(&"A: a\r\n".repeat(MAX_FIELDS)), 431);
        assert_eq!(wrong(&format!("GET /{}", "a".repeat(MAX_HEAD))), 414);
    }

    #[test]
    fn a_request_is_whole_when_its_body_is() {
        let text = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET";
        let length = text.len() - 3;
        for cut in 0..length {
            assert_eq!(parse(&text.as_bytes()[..cut]), Parsed::Partial, "{cut}");
        }
        assert_eq!(whole(text).length, length);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), fields in "[ -~\r\n]{0,200}") {
            let _ = parse(&bytes);
            let _ = parse(format!("GET {fields} HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes());
        }
    }
}
