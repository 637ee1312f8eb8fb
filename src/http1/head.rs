//! Heads (RFC 9112, sections 2 to 5): the first line and the fields, up to the empty line. A head is read when all of it
//! has come, so that it is the same however it is cut.
//!
//! Invariant: what is read has one meaning, so nobody in front of us reads its host, its target or its end elsewhere.

use std::mem::MaybeUninit;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::body::Framing;
use super::error::Error;
use super::fields::{Fields, MOST_FIELDS};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "RFC 9110 says what they mean")]
pub enum Method {
    Get,
    Head,
    Post,
    Delete,
    Options,
    /// Another one of RFC 9110 or RFC 5789.
    Other,
    Unknown,
}

impl Method {
    fn named(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            "PUT" | "PATCH" | "TRACE" | "CONNECT" => Self::Other,
            _ => Self::Unknown,
        }
    }
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// Bytes of the head.
    pub length: usize,
    /// What is to be done.
    pub method: Method,
    /// Where, as it was written: ASCII, without the query. It begins with a slash, but for `*` and for CONNECT.
    pub path: &'b str,
    /// What stands behind a question mark.
    pub query: &'b str,
    /// It is of HTTP/1.0, which has no chunks.
    pub is_old: bool,
    /// Whether another request may follow on the connection.
    pub keeps_alive: bool,
    /// `Host`: a name or an address, and perhaps a port. Only HTTP/1.0 may leave it out.
    pub host: Option<&'b str>,
    /// How long the body is.
    pub body: Framing,
    /// All fields.
    pub fields: Fields<'b>,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<'b> {
    /// Bytes of the head.
    pub length: usize,
    /// Its status, as a number.
    pub status: u16,
    /// What the server calls that.
    pub reason: &'b str,
    /// How long the body is.
    pub body: Framing,
    /// All fields.
    pub fields: Fields<'b>,
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found<'b> {
    /// The beginning of a head.
    More,
    /// A head, which is all of these bytes.
    Whole(&'b [u8]),
    /// More than a head may have, and its end is not there.
    Endless(&'b [u8]),
}

/// Looks for the end of a head, at each byte once.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Up to here the end does not begin.
    from: usize,
}

impl Search {
    pub(super) fn look<'b>(&mut self, bytes: &'b [u8], most: usize) -> Found<'b> {
        let bytes = &bytes[..bytes.len().min(most)];
        match end_of_head(bytes, self.from) {
            Some(end) => Found::Whole(&bytes[..end]),
            None if bytes.len() < most => {
                self.from = bytes.len().saturating_sub(2);
                Found::More
            }
            None => Found::Endless(bytes),
        }
    }
}

/// How long the head at the front is, if its end is there. Of the bytes before `from` it is known that it is not.
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    static USUAL: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("\n\r\n"));
    let usual = USUAL.find(&bytes[from..]).map(|newline| from + newline + 3);
    let before = &bytes[from..usual.unwrap_or(bytes.len())];
    // What has a newline alone is refused, and ends where its sender thinks.
    let other = if has_newline_alone(before) { memchr::memmem::find(before, b"\n\n") } else { None };
    other.map(|newline| from + newline + 2).or(usual)
}

/// Whether a newline stands behind anything but a carriage return.
fn has_newline_alone(bytes: &[u8]) -> bool {
    let behind = bytes.get(1..).unwrap_or_default();
    let is_alone = |(before, byte): (&u8, &u8)| u8::from((*byte == b'\n') & (*before != b'\r'));
    // One after the other, without looking whether it is known already, is what vector instructions do.
    bytes.first() == Some(&b'\n') || bytes.iter().zip(behind).map(is_alone).fold(0, |any, it| any | it) != 0
}

/// Every newline stands behind a carriage return; that nothing else does is seen to by the parser.
fn check_line_ends(bytes: &[u8]) -> Result<(), Error> {
    if has_newline_alone(bytes) { Err(Error::LINE_END) } else { Ok(()) }
}

fn malformed(error: httparse::Error) -> Error {
    match error {
        httparse::Error::Version => Error::VERSION,
        httparse::Error::TooManyHeaders => Error::LONG_HEAD,
        _ => Error::MALFORMED,
    }
}

impl<'b> Request<'b> {
    /// Reads a head, which is all of `bytes` if `is_whole`, and else the beginning of one that is too long.
    pub(super) fn read(bytes: &'b [u8], most_fields: usize, is_whole: bool) -> Result<Self, Error> {
        let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
        let mut head = httparse::Request::new(&mut []);
        let fields = &mut fields[..most_fields.min(MOST_FIELDS)];
        let status = head.parse_with_uninit_headers(bytes, fields).map_err(malformed)?;
        if !is_whole || status.is_partial() {
            let is_target = memchr::memchr(b'\n', bytes).is_none();
            return Err(if is_target { Error::LONG_TARGET } else { Error::LONG_HEAD });
        }
        check_line_ends(bytes)?;
        let (verb, target) = (head.method.unwrap_or_default(), head.path.unwrap_or_default());
        let is_old = head.version == Some(0);
        let fields = Fields(head.headers.to_vec());
        let host = fields.only("host").map_err(|_| Error::bad("more than one Host"))?.map(read_host).transpose()?;
        if host.is_none() && !is_old {
            return Err(Error::bad("HTTP/1.1 needs a Host"));
        }
        let (path, query) = read_target(verb, target, host)?;
        Ok(Self {
            length: bytes.len(),
            method: Method::named(verb),
            path,
            query,
            is_old,
            keeps_alive: (!is_old || fields.has("connection", "keep-alive")) && !fields.has("connection", "close"),
            host,
            body: Framing::told_by(&fields, is_old)?.unwrap_or(Framing::Length(0)),
            fields,
        })
    }
}

impl Request<'_> {
    /// Whether the other side waits to be told that its body is wanted ([`CONTINUE`]).
    ///
    /// [`CONTINUE`]: super::CONTINUE
    pub fn expects_continue(&self) -> bool {
        !self.is_old && self.fields.has("expect", "100-continue")
    }
}

impl<'b> Response<'b> {
    /// Reads a head, which is all of `bytes`, if its end is there. It answers a request by this method.
    pub(super) fn read(bytes: &'b [u8], to: Method) -> Result<Self, Error> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        if head.parse(bytes).map_err(malformed)?.is_partial() {
            return Err(Error::CUT_OFF);
        }
        check_line_ends(bytes)?;
        let (status, fields) = (head.code.unwrap_or_default(), Fields(head.headers.to_vec()));
        let body = match status {
            100..200 | 204 | 304 => Framing::Length(0),
            _ if to == Method::Head => Framing::Length(0),
            _ => Framing::told_by(&fields, head.version == Some(0))?.unwrap_or(Framing::UntilEnd),
        };
        Ok(Self { length: bytes.len(), status, reason: head.reason.unwrap_or_default(), body, fields })
    }
}

/// Bytes as text, if they are ASCII.
pub fn ascii(value: &[u8]) -> Option<&str> {
    str::from_utf8(value).ok().filter(|text| text.is_ascii())
}

/// A host and a port (RFC 3986, section 3.2), with nothing in it that would name another host elsewhere. It may be empty.
fn read_host(value: &[u8]) -> Result<&str, Error> {
    let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%:[]".contains(&byte);
    let host = ascii(value).filter(|host| host.bytes().all(belongs));
    host.ok_or(Error::bad("Host is not a host and a port"))
}

/// Path and query of a target, which may be written with scheme and authority (RFC 9112, section 3.2). What that says is
/// what `Host` says.
fn read_target<'b>(verb: &str, target: &'b str, host: Option<&str>) -> Result<(&'b str, &'b str), Error> {
    const NO_PATH: Error = Error::bad("the target of the request is not a path");
    let place_of = |byte: u8| memchr::memchr(byte, target.as_bytes());
    if !target.is_ascii() || place_of(b'#').is_some() {
        return Err(NO_PATH);
    }
    if target.starts_with('/') && place_of(b'?').is_none() {
        return Ok((target, ""));
    }
    let after_scheme = ["http://", "https://", "ws://", "wss://"].iter().find_map(|scheme| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let target = match after_scheme {
        Some(rest) => {
            let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            if !host.is_some_and(|host| host.eq_ignore_ascii_case(authority)) {
                return Err(Error::bad("the target of the request names another host than Host does"));
            }
            target
        }
        None if target.starts_with('/') || target == "*" || verb == "CONNECT" => target,
        None => return Err(NO_PATH),
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok((if path.is_empty() { "/" } else { path }, query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_an_empty_line_wherever_the_search_for_it_goes_on() {
        for (bytes, end) in [(&b"a\r\n\r\nrest\r\n\r\n"[..], 5), (b"a\n\nb", 3), (b"a\r\nb\r\n\r\n", 8)] {
            assert_eq!(end_of_head(bytes, 0), Some(end));
            for cut in 0..end {
                assert_eq!(end_of_head(&bytes[..cut], 0), None);
                assert_eq!(end_of_head(bytes, cut.saturating_sub(2)), Some(end), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_target_is_a_path_and_perhaps_a_query() {
        let read = |target| read_target("GET", target, Some("h:1"));
        for (target, path, query) in [
            ("/a?b=c?d", "/a", "b=c?d"),
            ("http://h:1/a?b=c", "/a", "b=c"),
            ("HTTPS://H:1", "/", ""),
            ("ws://h:1?b=c", "/", "b=c"),
            ("*", "*", ""),
        ] {
            assert_eq!(read(target), Ok((path, query)), "{target}");
        }
        for target in ["http://evil.example/a", "http://h/a", "http://user@h:1/", "ftp://h:1/a", "a", "/a#b", "/\u{e9}"]
        {
            assert!(read(target).is_err(), "{target}");
        }
        assert!(read_target("GET", "http://h/a", None).is_err(), "there is no Host that says the same");
        assert_eq!(read_target("CONNECT", "h:1", Some("h:1")), Ok(("h:1", "")));
    }
}
