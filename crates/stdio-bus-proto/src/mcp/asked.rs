//! What a request's head asks for.

use super::fault::Fault;
use super::head::FIELDS;
use crate::access::oauth::metadata_of;
use crate::http1::{Fields, Method, Request, Status, is_same, is_same_name};
use stdio_bus_core::eras::protocol::MODERN;

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

/// How the client takes the answers to its POST, by its `Accept`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// As JSON or as a stream of events, whichever suits: it accepts both, or says nothing.
    #[default]
    Either,
    /// As JSON. It does not name streams of events, and gets one only where the answer is more than one message.
    Json,
    /// As JSON alone: it refuses streams of events (`q=0`).
    JsonAlone,
    /// As a stream of events.
    Events,
}

impl Takes {
    /// Whether it takes a stream of events before it is known that the answer needs one.
    pub fn prefers_events(self) -> bool {
        matches!(self, Self::Either | Self::Events)
    }
}

/// The head of a request at an MCP listener: what it asks for, and the fields that MCP reads ("Streamable HTTP" of each
/// version).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The operation.
    pub verb: Verb,
    /// How its answers may be sent.
    pub takes: Takes,
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
        let pool = pool_at(head.path, path).ok_or_else(|| nothing_here(path))?.map(Box::from);
        let verb = match head.method {
            Method::Post => Verb::Post,
            Method::Get => Verb::Get,
            Method::Delete => Verb::Delete,
            _ => return Err(Fault::new(Status::MethodNotAllowed, "POST, GET and DELETE are understood here")),
        };
        let takes = check_types(verb, &head.fields)?;
        let [session, version, method, name, last_event] = values(&head.fields)?;
        Ok(Self { verb, takes, pool, session, version, method, name, last_event })
    }

    /// Whether the head claims 2026-07-28.
    pub fn says_modern(&self) -> bool {
        self.version.as_deref() == Some(MODERN)
    }
}

/// The pool that a path names at a listener with the path `own`, if it names one; none if nothing is there.
fn pool_at<'p>(path: &'p str, own: &str) -> Option<Option<&'p str>> {
    match path.strip_prefix(own)? {
        "" | "/" => Some(None),
        rest => {
            let pool = rest.strip_prefix('/').map(|pool| pool.strip_suffix('/').unwrap_or(pool));
            pool.filter(|pool| !pool.is_empty() && !pool.contains('/')).map(Some)
        }
    }
}

fn nothing_here(path: &str) -> Fault {
    Fault::new(Status::NotFound, format!("there is nothing here but {path} and {path}/POOL"))
}

/// Whether a path is where the metadata of a resource is that has the path `own` (RFC 9728, section 3.1), or of a pool below it.
pub fn is_metadata(path: &str, own: &str) -> bool {
    metadata_of(path).is_some_and(|rest| matches!(rest, "" | "/") || pool_at(rest, own).is_some())
}

/// Whether a path is one of those at which clients look for an authorization server (RFC 8414, RFC 9728, OpenID Connect
/// Discovery), or would register with it (RFC 7591). A daemon has none, and says so in the words of OAuth, with or
/// without a token: some clients take any other answer than 404 with `error` for a server that is broken. What the
/// listener with the path `own` serves itself is none.
pub fn is_discovery(path: &str, own: &str) -> bool {
    let is_known =
        || matches!(path, "/register" | "/authorize" | "/token") || path.split('/').any(|it| it == ".well-known");
    pool_at(path, own).is_none() && is_known()
}

const JSON: &str = "application/json";

/// A media type without its parameters.
fn without_parameters(kind: &[u8]) -> &[u8] {
    kind[..memchr::memchr(b';', kind).unwrap_or(kind.len())].trim_ascii()
}

/// Whether an element of `Accept` refuses what it names: its weight is zero (RFC 9110, section 12.4.2).
fn is_refused(element: &[u8]) -> bool {
    let is_zero = |value: &[u8]| value.first() == Some(&b'0') && value.iter().all(|byte| matches!(byte, b'0' | b'.'));
    element.split(|byte| *byte == b';').skip(1).any(|parameter| match parameter.trim_ascii() {
        [b'q' | b'Q', b'=', value @ ..] => is_zero(value),
        _ => false,
    })
}

/// Whether a media type is one of the names of JSON that clients of MCP send, as `application/mcp+json`.
fn is_like_json(range: &[u8]) -> bool {
    let is_of = |kind: &str| range.get(..kind.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(kind.as_bytes()));
    (is_of("application/") || is_of("text/")) && range.windows(4).any(|part| part.eq_ignore_ascii_case(b"json"))
}

/// Whether `Accept` takes JSON, and whether it takes streams of events; the second is none if that is not named. What is
/// named most exactly decides (RFC 9110, section 12.5.1).
fn accepted(fields: &Fields<'_>) -> (bool, Option<bool>) {
    // From the least exact name to the most exact one.
    let (mut json, mut events, mut says_anything) = ([None; 4], [None; 3], false);
    fields.any("accept", |element| {
        let range = without_parameters(element);
        let is = |kind: &str| is_same(range, kind.as_bytes());
        let takes = Some(!is_refused(element));
        says_anything = true;
        if is(JSON) {
            json[3] = takes;
        } else if is("text/event-stream") {
            events[2] = takes;
        } else if is("*/*") {
            (json[0], events[0]) = (takes, takes);
        } else if is("application/*") {
            json[1] = takes;
        } else if is("text/*") {
            events[1] = takes;
        } else if is_like_json(range) && takes == Some(true) {
            json[2] = takes;
        }
        false
    });
    if !says_anything {
        return (true, Some(true));
    }
    let most_exact = |named: &[Option<bool>]| named.iter().rev().find_map(|takes| *takes);
    (most_exact(&json).unwrap_or(false), most_exact(&events))
}

/// Checks the media types that a request sends and accepts.
fn check_types(verb: Verb, fields: &Fields<'_>) -> Result<Takes, Fault> {
    let not_acceptable = |why: &'static str| Err(Fault::new(Status::NotAcceptable, why));
    let takes = match (verb, accepted(fields)) {
        (Verb::Delete, _) => return Ok(Takes::Either),
        (Verb::Get, (_, Some(true))) => return Ok(Takes::Events),
        (Verb::Get, _) => return not_acceptable("a GET is answered by a stream: Accept has to have text/event-stream"),
        (Verb::Post, (true, Some(true))) => Takes::Either,
        (Verb::Post, (true, None)) => Takes::Json,
        (Verb::Post, (true, Some(false))) => Takes::JsonAlone,
        (Verb::Post, (false, Some(true))) => Takes::Events,
        (Verb::Post, (false, _)) => {
            return not_acceptable("Accept takes neither application/json nor text/event-stream, and best names both");
        }
    };
    let unsupported = |why: &'static str| Err(Fault::new(Status::UnsupportedMediaType, why));
    let kind = fields.only("content-type").ok().flatten().unwrap_or_default();
    if !is_same(without_parameters(kind), JSON.as_bytes()) {
        return unsupported("Content-Type has to be application/json");
    }
    match fields.any("content-encoding", |coding| !coding.eq_ignore_ascii_case(b"identity")) {
        true => unsupported("the body may not be compressed (Content-Encoding)"),
        false => Ok(takes),
    }
}

/// The values of MCP's fields: ASCII without control characters.
fn values(fields: &Fields<'_>) -> Result<[Option<Box<str>>; FIELDS.len()], Fault> {
    let mut values = [const { None }; FIELDS.len()];
    for (name, value) in fields.iter() {
        if !matches!(name.as_bytes(), [b'm' | b'M' | b'l' | b'L', ..]) {
            continue;
        }
        let Some(at) = FIELDS.iter().position(|known| is_same_name(name, known)) else { continue };
        let bad = |what: &str| Fault::new(Status::BadRequest, format!("{} {what}", FIELDS[at]));
        // Without an early exit, the compiler takes several bytes at once.
        let is_visible = value.iter().fold(true, |all, byte| all & matches!(byte, b' '..=b'~'));
        let text = str::from_utf8(value).ok().filter(|_| is_visible);
        let text = text.ok_or_else(|| bad("is not visible ASCII"))?.trim_ascii();
        if values[at].replace(Box::from(text)).is_some() {
            return Err(bad("occurs twice"));
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
    fn an_answer_is_sent_in_the_form_that_the_client_names_most_exactly() {
        let takes = |accept: &str| {
            asked("POST /mcp", &format!("{accept}\r\nContent-Type: application/json\r\n")).map(|asked| asked.takes)
        };
        for (accept, form) in [
            ("Accept: application/json, text/event-stream", Takes::Either),
            ("Accept: text/event-stream;q=0.5, application/json", Takes::Either),
            ("Accept: APPLICATION/JSON\r\nAccept: TEXT/EVENT-STREAM", Takes::Either),
            ("Accept: */*", Takes::Either),
            ("Accept: application/*, text/*", Takes::Either),
            ("Accept:", Takes::Either),
            ("X: none is sent", Takes::Either),
            ("Accept: application/json", Takes::Json),
            ("Accept: application/json; charset=utf-8; q=0.001", Takes::Json),
            ("Accept: application/*", Takes::Json),
            ("Accept: application/mcp+json", Takes::Json),
            ("Accept: application/json-rpc, text/html", Takes::Json),
            ("Accept: application/json, text/event-stream;q=0", Takes::JsonAlone),
            ("Accept: */*, text/event-stream; Q=0.000", Takes::JsonAlone),
            ("Accept: application/json, */*;q=0.0", Takes::JsonAlone),
            ("Accept: text/event-stream", Takes::Events),
            ("Accept: */*, application/json;q=0", Takes::Events),
        ] {
            assert_eq!(takes(accept), Ok(form), "{accept}");
        }
    }

    #[test]
    fn only_paths_of_authorization_servers_are_discovery() {
        for path in [
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-authorization-server/mcp",
            "/mcp/.well-known/openid-configuration",
            "/register",
            "/authorize",
            "/token",
        ] {
            assert!(is_discovery(path, "/mcp"), "{path}");
        }
        for path in ["/mcp", "/", "/well-known", "/mcp/register", "/.well-known.json"] {
            assert!(!is_discovery(path, "/mcp"), "{path}");
        }
        assert!(!is_discovery("/register", "/register") && !is_discovery("/.well-known/mcp", "/.well-known/mcp"));
    }

    #[test]
    fn metadata_is_of_the_listener_and_its_pools_alone() {
        let at = |rest: &str| is_metadata(&format!("/.well-known/oauth-protected-resource{rest}"), "/mcp");
        assert!(["", "/", "/mcp", "/mcp/", "/mcp/tools"].into_iter().all(at));
        assert!(!["/mc", "/mcps", "/mcp/a/b", "/other"].into_iter().any(at) && !is_metadata("/mcp", "/mcp"));
    }

    #[test]
    fn a_request_has_to_send_and_accept_the_right_media_types() {
        let status = |line: &str, fields: &str| asked(line, fields).map(|_| ()).map_err(|it| it.status);
        let json = "Content-Type: application/json; charset=utf-8\r\n";
        for accept in
            ["text/html", "application/json;q=0", "*/*;q=0", "application/*;q=0, image/png", "text/event-stream;q=0"]
        {
            assert_eq!(
                status("POST /mcp", &format!("Accept: {accept}\r\n{json}")),
                Err(Status::NotAcceptable),
                "{accept}"
            );
        }
        assert_eq!(status("POST /mcp", "Accept: */*\r\n"), Err(Status::UnsupportedMediaType));
        let text = "Accept: */*\r\nContent-Type: text/plain\r\n";
        assert_eq!(status("POST /mcp", text), Err(Status::UnsupportedMediaType));
        let coded = |coding: &str| status("POST /mcp", &format!("{POST}Content-Encoding: {coding}\r\n"));
        assert_eq!((coded("identity"), coded("gzip")), (Ok(()), Err(Status::UnsupportedMediaType)));
        assert_eq!(status("GET /mcp", "Accept: text/event-stream\r\n"), Ok(()));
        assert_eq!(status("GET /mcp", ""), Ok(()), "whoever names nothing takes anything");
        for accept in ["application/json", "application/json, text/event-stream;q=0", "*/*;q=0"] {
            let got = status("GET /mcp", &format!("Accept: {accept}\r\n"));
            assert_eq!(got, Err(Status::NotAcceptable), "{accept}");
        }
        assert_eq!(status("DELETE /mcp", ""), Ok(()));
        assert_eq!(status("DELETE /mcp", "Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\n"), Err(Status::BadRequest));
        assert_eq!(status("DELETE /mcp", "Mcp-Session-Id: \u{e9}\r\n"), Err(Status::BadRequest));
    }
}
