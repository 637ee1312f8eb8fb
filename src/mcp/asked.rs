//! What a request's head asks for.

use super::fault::Fault;
use super::versions::MODERN_VERSION;
use crate::http1::{Fields, Method, Request, Status, is_same_name};

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Sends messages.
    Post,
    /// Opens or resumes a stream.
    Get,
    /// Ends a session.
    Delete,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The operation.
    pub verb: Verb,
    /// The pool that the path names; none means the listener's own.
    pub pool: Option<Box<str>>,
    /// `Mcp-Session-Id`.
    pub session: Option<Box<str>>,
    /// `MCP-Protocol-Version`.
    pub version: Option<Box<str>>,
    /// `Mcp-Method`.
    pub method: Option<Box<str>>,
    /// `Mcp-Name`.
    pub name: Option<Box<str>>,
    /// `Last-Event-ID`.
    pub last_event: Option<Box<str>>,
}

impl Asked {
    /// Reads what a request asks for at a listener with this path. A trailing slash is ignored: other servers' mount
    /// points are often written with one.
    ///
    /// # Errors
    /// The request cannot be served whatever its body is: 400, 404, 405, 406, 415.
    pub fn of(head: &Request<'_>, path: &str) -> Result<Self, Fault> {
        let pool = match head.path.strip_prefix(path) {
            Some("" | "/") => None,
            Some(rest) => {
                let pool = rest.strip_prefix('/').map(|pool| pool.strip_suffix('/').unwrap_or(pool));
                let pool = pool.filter(|pool| !pool.is_empty() && !pool.contains('/'));
                Some(pool.ok_or_else(|| nothing_here(path))?.into())
            }
            None => return Err(nothing_here(path)),
        };
        let verb = match head.method {
            Method::Post => Verb::Post,
            Method::Get => Verb::Get,
            Method::Delete => Verb::Delete,
            _ => return Err(Fault::new(Status::MethodNotAllowed, "POST, GET and DELETE are understood here")),
        };
        check_types(verb, &head.fields)?;
        let [session, version, method, name, last_event] = values(&head.fields)?;
        Ok(Self { verb, pool, session, version, method, name, last_event })
    }

    /// Whether the head claims 2026-07-28.
    pub fn says_modern(&self) -> bool {
        self.version.as_deref() == Some(MODERN_VERSION)
    }
}

fn nothing_here(path: &str) -> Fault {
    Fault::new(Status::NotFound, format!("there is nothing here but {path} and {path}/POOL"))
}

const JSON: &str = "application/json";

/// A media type without its parameters.
fn without_parameters(kind: &[u8]) -> &[u8] {
    kind[..memchr::memchr(b';', kind).unwrap_or(kind.len())].trim_ascii()
}

/// Checks the media types that a request sends and accepts.
fn check_types(verb: Verb, fields: &Fields<'_>) -> Result<(), Fault> {
    let (mut takes_json, mut takes_events) = (false, false);
    let takes_both = fields.any("accept", |element| {
        let range = without_parameters(element);
        let is_one_of = |kinds: [&str; 3]| kinds.iter().any(|kind| range.eq_ignore_ascii_case(kind.as_bytes()));
        takes_json |= is_one_of([JSON, "*/*", "application/*"]);
        takes_events |= is_one_of(["text/event-stream", "*/*", "text/*"]);
        takes_json && takes_events
    });
    let not_acceptable = |why: &'static str| Err(Fault::new(Status::NotAcceptable, why));
    match verb {
        Verb::Delete => Ok(()),
        Verb::Get if takes_events => Ok(()),
        Verb::Get => not_acceptable("Accept has to have text/event-stream"),
        Verb::Post if !takes_both => not_acceptable("Accept has to have both application/json and text/event-stream"),
        Verb::Post => {
            let unsupported = |why: &'static str| Err(Fault::new(Status::UnsupportedMediaType, why));
            let kind = fields.only("content-type").ok().flatten().unwrap_or_default();
            if !without_parameters(kind).eq_ignore_ascii_case(JSON.as_bytes()) {
                return unsupported("Content-Type has to be application/json");
            }
            match fields.any("content-encoding", |coding| !coding.eq_ignore_ascii_case(b"identity")) {
                true => unsupported("the body may not be compressed (Content-Encoding)"),
                false => Ok(()),
            }
        }
    }
}

/// MCP's fields, each of which may occur once.
const FIELDS: [&str; 5] = ["mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "last-event-id"];

/// Their values: ASCII without control characters.
fn values(fields: &Fields<'_>) -> Result<[Option<Box<str>>; FIELDS.len()], Fault> {
    let mut values = [const { None }; FIELDS.len()];
    for (name, value) in fields.iter() {
        if !matches!(name.as_bytes(), [b'm' | b'M' | b'l' | b'L', ..]) {
            continue;
        }
        let Some(at) = FIELDS.iter().position(|known| is_same_name(name, known)) else { continue };
        let bad = |what: &str| Fault::new(Status::BadRequest, format!("{} {what}", FIELDS[at]));
        let text = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
        let text = text.ok_or_else(|| bad("is not visible ASCII"))?.trim_ascii();
        if values[at].replace(Box::from(text)).is_some() {
            return Err(bad("stands twice"));
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::HeadReader;

    const POST: &str = "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n";

    fn asked(line: &str, fields: &str) -> Result<Asked, Fault> {
        let head = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let mut reader = HeadReader::default();
        let head = reader.read(head.as_bytes()).expect("it is a head").expect("it is whole");
        Asked::of(&head, "/mcp")
    }

    #[test]
    fn a_path_names_a_pool_or_none() {
        let pool = |line: &str| asked(line, POST).map(|asked| asked.pool.map(String::from)).map_err(|it| it.status);
        assert_eq!(pool("POST /mcp"), Ok(None));
        assert_eq!(pool("POST /mcp?a=b"), Ok(None));
        assert_eq!(pool("POST /mcp/"), Ok(None));
        assert_eq!(pool("POST /mcp/tools"), Ok(Some("tools".into())));
        assert_eq!(pool("POST /mcp/tools/"), Ok(Some("tools".into())));
        for path in ["POST /", "POST /mcp//", "POST /mcp/a/b", "POST /mcp/a//", "POST /mcpx", "POST /MCP"] {
            assert_eq!(pool(path), Err(Status::NotFound), "{path}");
        }
        assert_eq!(pool("PUT /mcp"), Err(Status::MethodNotAllowed));
    }

    #[test]
    fn a_request_has_to_send_and_accept_the_right_media_types() {
        let status = |line: &str, fields: &str| asked(line, fields).map(|_| ()).map_err(|it| it.status);
        let json = "Content-Type: application/json; charset=utf-8\r\n";
        for accept in ["text/event-stream;q=0.5, application/json", "*/*", "application/*, text/*"] {
            assert_eq!(status("POST /mcp", &format!("Accept: {accept}\r\n{json}")), Ok(()), "{accept}");
        }
        for accept in ["application/json", "text/event-stream", "text/html"] {
            assert_eq!(status("POST /mcp", &format!("Accept: {accept}\r\n{json}")), Err(Status::NotAcceptable));
        }
        assert_eq!(status("POST /mcp", json), Err(Status::NotAcceptable), "nothing is taken");
        assert_eq!(status("POST /mcp", "Accept: */*\r\n"), Err(Status::UnsupportedMediaType));
        let text = "Accept: */*\r\nContent-Type: text/plain\r\n";
        assert_eq!(status("POST /mcp", text), Err(Status::UnsupportedMediaType));
        let coded = |coding: &str| status("POST /mcp", &format!("{POST}Content-Encoding: {coding}\r\n"));
        assert_eq!((coded("identity"), coded("gzip")), (Ok(()), Err(Status::UnsupportedMediaType)));
        assert_eq!(status("GET /mcp", "Accept: text/event-stream\r\n"), Ok(()));
        assert_eq!(status("GET /mcp", "Accept: application/json\r\n"), Err(Status::NotAcceptable));
        assert_eq!(status("DELETE /mcp", ""), Ok(()));
        assert_eq!(status("DELETE /mcp", "Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\n"), Err(Status::BadRequest));
        assert_eq!(status("DELETE /mcp", "Mcp-Session-Id: \u{e9}\r\n"), Err(Status::BadRequest));
    }
}
