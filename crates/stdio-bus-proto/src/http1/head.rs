//! Heads (RFC 9112, sections 2 to 5): the first line and the fields, up to the empty line. A head is parsed once it is
//! complete, so that the result does not depend on how it is cut.
//!
//! Invariant: a head has only one meaning, so that no proxy in front of us can read its host, target or end
//! differently.

use std::mem::MaybeUninit;

use super::body::Framing;
use super::error::Error;
use super::fields::{Fields, MOST_FIELDS};

/// A request method (RFC 9110, section 9). Names are compared with their case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Asks for a representation: health, a WebSocket, a stream of MCP.
    Get,
    /// As GET, but the response has no body.
    Head,
    /// Sends something to be processed: messages of MCP, an operator's action.
    Post,
    /// Ends what the path or a field names: a session of MCP.
    Delete,
    /// Asks what may be asked: a browser before a page's request, a balancer for health.
    Options,
    /// Any other method of RFC 9110 or RFC 5789.
    Other,
    /// A name that none of them has.
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
    /// Length of the head in bytes, with the empty line that ends it.
    pub length: usize,
    /// What is to be done (RFC 9110, section 9).
    pub method: Method,
    /// The path as it was written: ASCII, without the query. It begins with a slash, except for `*` and CONNECT.
    pub path: &'b str,
    /// The part after the question mark.
    pub query: &'b str,
    /// It is HTTP/1.0, which has no chunked coding.
    pub is_old: bool,
    /// Whether the connection may carry another request.
    pub keeps_alive: bool,
    /// `Host`: a name or an address, with an optional port. Only HTTP/1.0 may omit it.
    pub host: Option<&'b str>,
    /// Where the body ends (RFC 9112, section 6).
    pub body: Framing,
    /// All field lines, those that are read above among them.
    pub fields: Fields<'b>,
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<'b> {
    /// Length of the head in bytes.
    pub length: usize,
    /// The status code: three digits, from 100 (RFC 9110, section 15).
    pub status: u16,
    /// The reason phrase; empty if there is none.
    pub reason: &'b str,
    /// Where the body ends (RFC 9112, section 6); without one, where the connection does.
    pub body: Framing,
    /// All field lines.
    pub fields: Fields<'b>,
}

/// What the bytes so far contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeadProgress<'b> {
    /// The beginning of a head.
    More,
    /// A complete head, which is all of these bytes. A newline alone may end a line of it, which is refused.
    Whole { head: &'b [u8], has_newline_alone: bool },
    /// More bytes than a head may have, without its end.
    Endless(&'b [u8]),
}

/// Searches for the end of a head, looking at each byte once.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// The end does not begin before this offset.
    from: usize,
    /// A newline before that follows anything but a carriage return.
    has_newline_alone: bool,
}

impl Search {
    pub(super) fn look<'b>(&mut self, bytes: &'b [u8], most: usize) -> HeadProgress<'b> {
        let bytes = &bytes[..bytes.len().min(most)];
        let (end, has_newline_alone) = end_of_head(bytes, self.from);
        self.has_newline_alone |= has_newline_alone;
        match end {
            Some(end) => HeadProgress::Whole { head: &bytes[..end], has_newline_alone: self.has_newline_alone },
            None if bytes.len() < most => {
                self.from = bytes.len().saturating_sub(2);
                HeadProgress::More
            }
            None => HeadProgress::Endless(bytes),
        }
    }
}

/// The length of the head at the front, if its end is present, which is known not to begin before `from`; and whether a
/// newline up to there, or up to the end of the bytes, follows anything but a carriage return.
fn end_of_head(bytes: &[u8], from: usize) -> (Option<usize>, bool) {
    let mut has_newline_alone = false;
    let end = memchr::memchr_iter(b'\n', &bytes[from..]).find_map(|newline| {
        let (before, behind) = bytes.split_at(from + newline);
        has_newline_alone |= !before.ends_with(b"\r");
        match behind[1..] {
            [b'\r', b'\n', ..] => Some(before.len() + 3),
            // It ends the head as its sender intended.
            [b'\n', ..] => {
                has_newline_alone = true;
                Some(before.len() + 2)
            }
            _ => None,
        }
    });
    (end, has_newline_alone)
}

fn malformed(error: httparse::Error) -> Error {
    match error {
        httparse::Error::Version => Error::VERSION,
        httparse::Error::TooManyHeaders => Error::LONG_HEAD,
        _ => Error::MALFORMED,
    }
}

impl<'b> Request<'b> {
    /// Parses what was found, if it is not only the beginning of a head.
    pub(super) fn read(found: HeadProgress<'b>, most_fields: usize) -> Result<Option<Self>, Error> {
        let (bytes, is_whole, has_newline_alone) = match found {
            HeadProgress::More => return Ok(None),
            HeadProgress::Whole { head, has_newline_alone } => (head, true, has_newline_alone),
            HeadProgress::Endless(begin) => (begin, false, false),
        };
        let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
        let mut head = httparse::Request::new(&mut []);
        let fields = &mut fields[..most_fields.min(MOST_FIELDS)];
        let status = head.parse_with_uninit_headers(bytes, fields).map_err(malformed)?;
        if !is_whole || status.is_partial() {
            let is_target = memchr::memchr(b'\n', bytes).is_none();
            return Err(if is_target { Error::LONG_TARGET } else { Error::LONG_HEAD });
        }
        // The parser checks the reverse.
        if has_newline_alone {
            return Err(Error::LINE_END);
        }
        let (verb, target) = (head.method.unwrap_or_default(), head.path.unwrap_or_default());
        let is_old = head.version == Some(0);
        let fields = Fields::of(head.headers);
        let host = fields.only("host").map_err(|_| Error::bad("more than one Host"))?.map(read_host).transpose()?;
        if host.is_none() && !is_old {
            return Err(Error::bad("HTTP/1.1 needs a Host"));
        }
        let (path, query) = read_target(verb, target, host)?;
        Ok(Some(Self {
            length: bytes.len(),
            method: Method::named(verb),
            path,
            query,
            is_old,
            keeps_alive: (!is_old || fields.has("connection", "keep-alive")) && !fields.has("connection", "close"),
            host,
            body: Framing::told_by(&fields, is_old)?.unwrap_or(Framing::Length(0)),
            fields,
        }))
    }
}

impl Request<'_> {
    /// Whether the client waits for [`CONTINUE`] before it sends its body.
    ///
    /// [`CONTINUE`]: super::CONTINUE
    pub fn expects_continue(&self) -> bool {
        !self.is_old && self.fields.has("expect", "100-continue")
    }
}

impl<'b> Response<'b> {
    /// Parses a head, which is all of `bytes`, if it is complete. It answers a request with this method.
    pub(super) fn read(bytes: &'b [u8], has_newline_alone: bool, to: Method) -> Result<Self, Error> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        if head.parse(bytes).map_err(malformed)?.is_partial() {
            return Err(Error::CUT_OFF);
        }
        if has_newline_alone {
            return Err(Error::LINE_END);
        }
        let (status, fields) = (head.code.unwrap_or_default(), Fields::of(head.headers));
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

/// A host and port (RFC 3986, section 3.2), free of anything that others would read as another host. It may be empty.
fn read_host(value: &[u8]) -> Result<&str, Error> {
    let belongs = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'%' | b':' | b'[' | b']')
    };
    let host = ascii(value).filter(|host| host.bytes().all(belongs));
    host.ok_or(Error::bad("Host is not a host and a port"))
}

/// Path and query of a target, which may be in absolute form (RFC 9112, section 3.2). Its authority has to match
/// `Host`.
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
    fn the_end_of_a_head_is_found_wherever_the_search_resumes() {
        for (bytes, end) in
            [(&b"a\r\n\r\nrest\r\n\r\n"[..], 5), (b"a\n\nb", 3), (b"a\r\nb\r\n\r\n", 8), (b"a\nbcdefgh\r\n\r\n", 13)]
        {
            let is_strict = !bytes.starts_with(b"a\n");
            assert_eq!(end_of_head(bytes, 0), (Some(end), !is_strict));
            for cut in 0..end {
                assert_eq!(end_of_head(&bytes[..cut], 0).0, None);
                assert_eq!(end_of_head(bytes, cut.saturating_sub(2)).0, Some(end), "cut at {cut}");
                let mut search = Search::default();
                assert_eq!(search.look(&bytes[..cut], 99), HeadProgress::More);
                let whole = HeadProgress::Whole { head: &bytes[..end], has_newline_alone: !is_strict };
                assert_eq!(search.look(bytes, 99), whole, "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_target_is_a_path_with_an_optional_query() {
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
