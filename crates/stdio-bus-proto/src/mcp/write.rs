//! Responses: heads, events and comments. A session's event ids name the stream and the position in it. Those of ACP are
//! the same, with fields of its own.

use std::fmt::Write as _;
use std::rc::Rc;

use super::fault::Fault;
use super::head::{FIELDS, SESSION};
use crate::http1::Status;

/// The position of an event: its stream, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The stream; 0 is that of GET.
    pub stream: u32,
    /// Its place; 0 is the start of the stream.
    pub place: u32,
}

impl EventId {
    /// Parses `Last-Event-ID`.
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, place) = text.split_once('-')?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(stream) && is_number(place)).then_some(())?;
        Some(Self { stream: stream.parse().ok()?, place: place.parse().ok()? })
    }
}

/// The fields of heads that are a protocol's own.
#[derive(Debug)]
pub struct OwnFields {
    /// That of the id which a client gets and repeats; pages may read it.
    pub id: &'static str,
    /// Those that requests may have.
    pub of_requests: &'static [&'static str],
}

impl Default for &OwnFields {
    /// MCP's.
    fn default() -> Self {
        &OwnFields { id: SESSION, of_requests: &FIELDS }
    }
}

/// What a response carries besides its body.
#[derive(Clone, Debug, Default)]
pub struct Manner<'a> {
    /// The protocol's own fields.
    pub fields: &'static OwnFields,
    /// The id that its client repeats: of a session of MCP, or of a connection of ACP.
    pub session: Option<&'a str>,
    /// It is the last response on this connection.
    pub is_last: bool,
    /// The close of the connection ends it.
    pub is_old: bool,
    /// It answers HEAD: the body is only described.
    pub is_head: bool,
    /// The origin of the browser page that may read it (CORS, fetch.spec.whatwg.org).
    pub page: Option<Rc<str>>,
    /// What a client is sent that has to show who it is (`WWW-Authenticate`); none if no page of a listener says where.
    pub challenge: Option<&'a str>,
}

/// Answers a browser's preflight request, which precedes a cross-origin request.
pub fn preflight(out: &mut Vec<u8>, manner: &Manner<'_>) {
    head(out, Status::NoContent, manner);
    out.extend_from_slice(
        b"Access-Control-Allow-Methods: POST, GET, DELETE\r\n\
          Access-Control-Allow-Headers: Accept, Authorization, Content-Type, ",
    );
    manner.fields.of_requests.iter().for_each(|field| add(out, &[field.as_bytes(), b", "]));
    out.extend_from_slice(b"*\r\nAccess-Control-Max-Age: 7200\r\n\r\n");
}

fn head(out: &mut Vec<u8>, status: Status, manner: &Manner<'_>) {
    add(out, &[b"HTTP/1.1 "]);
    number(out, status.code().into());
    add(out, &[b" ", status.name().as_bytes(), b"\r\n"]);
    if let Some(session) = manner.session {
        field(out, manner.fields.id, session);
    }
    if manner.is_last {
        add(out, &[b"Connection: close\r\n"]);
    } else if manner.is_old {
        add(out, &[b"Connection: keep-alive\r\n"]);
    }
    if let Some(page) = &manner.page {
        add(out, &[b"Access-Control-Allow-Origin: ", page.as_bytes(), b"\r\n"]);
        field(out, "Access-Control-Expose-Headers", manner.fields.id);
        add(out, &[b"Vary: Origin\r\n"]);
    }
}

/// Capacity that suffices for most heads.
const USUAL_HEAD: usize = 256;

/// Writes a complete response.
pub fn json(out: &mut Vec<u8>, status: Status, manner: &Manner<'_>, body: &[u8]) {
    out.reserve(USUAL_HEAD + body.len());
    json_head(out, status, manner, body.len());
    if !manner.is_head {
        out.extend_from_slice(body);
    }
}

/// Writes all of a response but its body, which has this length.
pub fn json_head(out: &mut Vec<u8>, status: Status, manner: &Manner<'_>, length: usize) {
    head(out, status, manner);
    end_json_head(out, length);
}

fn end_json_head(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(b"Content-Type: application/json\r\nContent-Length: ");
    number(out, length);
    out.extend_from_slice(b"\r\n\r\n");
}

/// Answers a search for an authorization server: there is none, and this is said instead. The body is an error of OAuth (RFC
/// 6749, section 5.2): clients show its text.
pub fn no_authorization_server(out: &mut Vec<u8>, manner: &Manner<'_>, why: &str) {
    let body = serde_json::json!({ "error": "not_found", "error_description": why });
    json(out, Status::NotFound, manner, body.to_string().as_bytes());
}

/// Writes a complete response without a body.
pub fn empty(out: &mut Vec<u8>, status: Status, manner: &Manner<'_>) {
    head(out, status, manner);
    out.extend_from_slice(match status {
        Status::NoContent => b"\r\n",
        _ => b"Content-Length: 0\r\n\r\n",
    });
}

/// Writes an error response. `id` is that of the request's message, if it is known.
pub fn fault(out: &mut Vec<u8>, fault: &Fault, manner: &Manner<'_>, id: Option<&[u8]>) {
    let body = fault.body(id.unwrap_or(b"null"));
    head(out, fault.status, manner);
    match fault.status {
        Status::Unauthorized => {
            field(out, "WWW-Authenticate", manner.challenge.unwrap_or("Bearer realm=\"stdio_bus\""));
            if manner.page.is_some() {
                field(out, "Access-Control-Expose-Headers", "WWW-Authenticate");
            }
        }
        Status::MethodNotAllowed => out.extend_from_slice(b"Allow: POST, GET, DELETE\r\n"),
        _ => {}
    }
    if let Some(seconds) = fault.retry_after {
        out.extend_from_slice(format!("Retry-After: {seconds}\r\n").as_bytes());
    }
    end_json_head(out, body.len());
    if !manner.is_head {
        out.extend_from_slice(&body);
    }
}

/// Writes the head of an event stream, with one more field if that is needed.
pub fn begin_events(out: &mut Vec<u8>, manner: &Manner<'_>, more: Option<(&str, &str)>) {
    head(out, Status::Ok, manner);
    if let Some((name, value)) = more {
        field(out, name, value);
    }
    out.extend_from_slice(
        b"Content-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\nX-Accel-Buffering: no\r\n",
    );
    out.extend_from_slice(if manner.is_old { b"\r\n" } else { b"Transfer-Encoding: chunked\r\n\r\n" });
}

/// Writes an event with a message, which contains no newline.
pub fn event(out: &mut Vec<u8>, id: Option<EventId>, data: &[u8], is_old: bool) {
    begin_event(out, id, data.len(), is_old);
    out.extend_from_slice(data);
    end_event(out, is_old);
}

/// Writes what comes before the message of an event, which has this many bytes.
pub fn begin_event(out: &mut Vec<u8>, id: Option<EventId>, length: usize, is_old: bool) {
    let mut before = String::new();
    if let Some(EventId { stream, place }) = id {
        let _ = writeln!(before, "id: {stream}-{place}");
    }
    before.push_str("event: message\ndata: ");
    if !is_old {
        out.extend_from_slice(format!("{:x}\r\n", before.len() + length + END.len()).as_bytes());
    }
    out.extend_from_slice(before.as_bytes());
}

/// Writes what comes after it.
pub fn end_event(out: &mut Vec<u8>, is_old: bool) {
    out.extend_from_slice(END);
    if !is_old {
        out.extend_from_slice(b"\r\n");
    }
}

/// Ends an event.
const END: &[u8] = b"\n\n";

/// Writes the first event of a stream, from which a client can resume that has received no other (2025-11-25), and the
/// retry interval.
pub fn prime(out: &mut Vec<u8>, id: EventId, is_old: bool) {
    let text = format!("id: {}-{}\nretry: 1000\ndata: \n\n", id.stream, id.place);
    piece(out, &[text.as_bytes()], is_old);
}

/// Writes how long a client is to wait after the end of a stream before it opens it again, where sessions continue at the next
/// daemon. Official clients open it twice at most: they would do so before that runs.
pub fn retry_after_restart(out: &mut Vec<u8>, is_old: bool) {
    piece(out, &[b"retry: 15000\n\n"], is_old);
}

/// Writes a comment for people who look at the stream: a text of one line.
pub fn comment(out: &mut Vec<u8>, text: &str, is_old: bool) {
    piece(out, &[b": ", text.as_bytes(), b"\n\n"], is_old);
}

/// Writes a keep-alive comment.
pub fn keep_alive(out: &mut Vec<u8>, is_old: bool) {
    comment(out, "keep-alive", is_old);
}

/// Writes the end of an event stream.
pub fn end_events(out: &mut Vec<u8>, is_old: bool) {
    if !is_old {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

fn piece(out: &mut Vec<u8>, parts: &[&[u8]], is_old: bool) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    if !is_old {
        out.extend_from_slice(format!("{length:x}\r\n").as_bytes());
    }
    add(out, parts);
    if !is_old {
        out.extend_from_slice(b"\r\n");
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    add(out, &[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
}

fn number(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn add(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fill: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        fill(&mut out);
        String::from_utf8(out).expect("it is text")
    }

    #[test]
    fn an_event_is_a_chunk_and_its_id_is_read_again() {
        let id = EventId { stream: 3, place: 1 };
        assert_eq!(
            written(|out| event(out, Some(id), b"{}", false)),
            "21\r\nid: 3-1\nevent: message\ndata: {}\n\n\r\n"
        );
        assert_eq!(written(|out| event(out, None, b"{}", true)), "event: message\ndata: {}\n\n");
        assert_eq!(EventId::parse("3-1"), Some(id));
        for text in ["", "3", "3-", "-1", "3-x", "+3-1", "3-1-1", "3-99999999999"] {
            assert_eq!(EventId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_page_may_read_where_its_user_signs_in() {
        let challenge = Some("Bearer resource_metadata=\"https://a/.well-known/oauth-protected-resource\"");
        let manner = Manner { page: Some("https://app.example".into()), challenge, ..Manner::default() };
        let text = written(|out| fault(out, &Fault::new(Status::Unauthorized, "who?"), &manner, None));
        assert!(text.contains("\r\nWWW-Authenticate: Bearer resource_metadata=\"https://a/"), "{text}");
        assert!(text.contains("\r\nAccess-Control-Expose-Headers: WWW-Authenticate\r\n"), "{text}");
        let plain = written(|out| fault(out, &Fault::new(Status::Forbidden, "no"), &manner, None));
        assert!(!plain.contains("WWW-Authenticate"), "{plain}");
    }

    #[test]
    fn a_response_has_its_length_and_says_whether_it_is_the_last() {
        let manner = Manner { session: Some("abc"), is_last: true, ..Manner::default() };
        assert_eq!(
            written(|out| json(out, Status::Ok, &manner, b"{}")),
            "HTTP/1.1 200 OK\r\nMcp-Session-Id: abc\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: 2\r\n\r\n{}"
        );
        let text = written(|out| fault(out, &Fault::busy("later"), &Manner::default(), Some(b"7")));
        assert!(text.contains("Retry-After: 1\r\n") && text.ends_with("\"message\":\"later\"}}"), "{text}");
        assert!(written(|out| empty(out, Status::Accepted, &Manner::default())).contains("Content-Length: 0"));
    }
}
