//! What the head of a request asks for at a listener for ACP.

use crate::http1::{Fields, Request, Status};
use crate::mcp::asked::{Asked, Takes, Verb};
use crate::mcp::fault::Fault;
use crate::mcp::write::OwnFields;

/// The id of a connection: it is given with the answer to `initialize`, and its client repeats it.
pub const CONNECTION: &str = "Acp-Connection-Id";
/// The session that a message, its answer or a stream belongs to.
pub const SESSION: &str = "Acp-Session-Id";
/// Those fields, for responses.
pub const FIELDS: OwnFields = OwnFields { id: CONNECTION, of_requests: &[CONNECTION, SESSION] };
/// Maximum length of the name of a session that may have a stream of its own, in bytes.
pub const LONGEST_NAME: usize = 1024;

/// Reads what a request asks for at a listener with this path. The connection that it names is in
/// [`Asked::session`], and the session in [`Asked::name`]: to whoever counts and charges requests they are what those are
/// for MCP. A trailing slash is ignored.
///
/// # Errors
/// The request cannot be served whatever its body is: 400, 404, 405, 406, 415.
pub fn asked(head: &Request<'_>, path: &str) -> Result<Asked, Fault> {
    if head.path.strip_suffix('/').unwrap_or(head.path) != path {
        return Err(Fault::new(Status::NotFound, format!("there is nothing here but {path}")));
    }
    let asked = Asked::of(head, path)?;
    let session = field(&head.fields, CONNECTION)?;
    let name = field(&head.fields, SESSION)?;
    if name.as_ref().is_some_and(|name| name.len() > LONGEST_NAME) {
        return Err(Fault::new(Status::BadRequest, format!("{SESSION} is longer than {LONGEST_NAME} bytes")));
    }
    if session.is_none() && asked.verb != Verb::Post {
        return Err(no_connection());
    }
    // A message is answered by its status alone, and `initialize` as JSON.
    let takes = if asked.verb == Verb::Post { Takes::Json } else { asked.takes };
    Ok(Asked { takes, session, name, version: None, method: None, last_event: None, ..asked })
}

/// The field by which a stream repeats the session that it was asked for; none if that is no plain text.
pub fn session_field(name: Option<&str>) -> Option<(&'static str, &str)> {
    let is_plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_graphic());
    name.filter(is_plain).map(|name| (SESSION, name))
}

/// A field that may occur once, and has no value if that is empty.
fn field(fields: &Fields<'_>, name: &'static str) -> Result<Option<Box<str>>, Fault> {
    let wrong = |why: &str| Fault::new(Status::BadRequest, format!("{name} {why}"));
    let value = fields.only(name).map_err(|_| wrong("occurs twice in the head"))?;
    let text = value.map(|value| str::from_utf8(value).map_err(|_| wrong("is no text"))).transpose()?;
    Ok(text.filter(|text| !text.is_empty()).map(Box::from))
}

/// The refusal of a request that names no connection.
pub fn no_connection() -> Fault {
    Fault::new(Status::BadRequest, format!("the request names no connection ({CONNECTION}); begin with initialize"))
}

/// The refusal of one that names an unknown connection, which may be another client's.
pub fn unknown_connection() -> Fault {
    Fault { why: "there is no such connection; begin with initialize".into(), ..Fault::no_session() }
}

/// The refusal of one that names a connection of another daemon.
pub fn connection_of_another_node() -> Fault {
    let why = "there is no such connection: another node has begun it, which has gone, or a balancer brings its requests to \
               the wrong daemon; begin with initialize";
    Fault { why: why.into(), ..Fault::no_session() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::HeadReader;
    use crate::mcp::write::{Manner, begin_events, json_head, preflight};

    fn read(line: &str, fields: &str) -> Result<Asked, u16> {
        let text = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let mut reader = HeadReader::default();
        let head = reader.read(text.as_bytes()).expect("it is a head").expect("it is whole");
        asked(&head, "/acp").map_err(|fault| fault.status.code())
    }

    const JSON: &str = "Content-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\n";
    const EVENTS: &str = "Accept: text/event-stream\r\n";

    #[test]
    fn a_head_names_a_connection_and_a_session() {
        let post =
            read("POST /acp", &format!("{JSON}acp-connection-id: c\r\nAcp-Session-Id: s\r\n")).expect("it is right");
        assert_eq!((post.verb, post.session.as_deref(), post.name.as_deref()), (Verb::Post, Some("c"), Some("s")));
        assert_eq!(post.takes, Takes::Json, "no stream answers a message");
        let get =
            read("GET /acp/", &format!("{EVENTS}Acp-Connection-Id: c\r\nAcp-Session-Id:\r\n")).expect("it is right");
        assert_eq!((get.verb, get.name), (Verb::Get, None), "an empty name names no session");
        assert_eq!(read("POST /acp", JSON).map(|asked| asked.session), Ok(None), "it may be initialize");
    }

    #[test]
    fn a_head_that_cannot_be_served_is_refused_with_the_status_of_the_rfd() {
        let id = "Acp-Connection-Id: c\r\n";
        for (line, fields, status) in [
            ("POST /acp", "Content-Type: text/plain\r\nContent-Length: 0\r\n".to_owned(), 415),
            ("POST /acp", format!("{id}Content-Length: 0\r\n"), 415),
            ("GET /acp", format!("{id}Accept: application/json\r\n"), 406),
            ("GET /acp", EVENTS.to_owned(), 400),
            ("DELETE /acp", String::new(), 400),
            ("PUT /acp", id.to_owned(), 405),
            ("GET /acp/pool", format!("{EVENTS}{id}"), 404),
            ("GET /mcp", format!("{EVENTS}{id}"), 404),
            ("GET /acp", format!("{EVENTS}{id}{id}"), 400),
            ("GET /acp", format!("{EVENTS}{id}Acp-Session-Id: {}\r\n", "x".repeat(LONGEST_NAME + 1)), 400),
        ] {
            assert_eq!(read(line, &fields).map(|_| ()), Err(status), "{line} {fields}");
        }
    }

    fn written(fill: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        fill(&mut out);
        String::from_utf8(out).expect("it is text")
    }

    fn manner(session: Option<&str>) -> Manner<'_> {
        Manner { fields: &FIELDS, session, ..Manner::default() }
    }

    #[test]
    fn the_answer_to_initialize_has_the_id_of_the_connection_and_pages_may_read_it() {
        let manner = |session| Manner { page: Some("https://a.example".into()), ..manner(session) };
        assert_eq!(
            written(|out| json_head(out, Status::Ok, &manner(Some("n.1")), 2)),
            "HTTP/1.1 200 OK\r\nAcp-Connection-Id: n.1\r\nAccess-Control-Allow-Origin: https://a.example\r\n\
             Access-Control-Expose-Headers: Acp-Connection-Id\r\nVary: Origin\r\nContent-Type: application/json\r\n\
             Content-Length: 2\r\n\r\n"
        );
        assert!(!written(|out| json_head(out, Status::Ok, &manner(None), 2)).contains("Acp-Connection-Id:"));
        assert!(written(|out| preflight(out, &manner(None))).contains("Acp-Connection-Id, Acp-Session-Id, *\r\n"));
    }

    #[test]
    fn a_stream_names_its_connection_and_its_session() {
        let stream = |manner: &Manner<'_>, name| written(|out| begin_events(out, manner, session_field(name)));
        let usual = stream(&manner(Some("n.1")), Some("s"));
        assert!(usual.contains("\r\nAcp-Connection-Id: n.1\r\nAcp-Session-Id: s\r\n"), "{usual}");
        assert!(usual.ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"), "{usual}");
        assert!(!stream(&manner(Some("n.1")), Some("a b")).contains("Acp-Session-Id"));
        let old = stream(&Manner { is_old: true, is_last: true, ..manner(Some("n.1")) }, None);
        assert!(!old.contains("Transfer-Encoding") && old.contains("Connection: close\r\n"), "{old}");
    }
}
