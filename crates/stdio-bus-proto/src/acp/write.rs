//! Responses that are ACP's own. All others are those of [`crate::mcp::write`]: both answer with JSON-RPC.

use super::asked::{CONNECTION, SESSION};
use crate::http1::{Head, Status};
use crate::mcp::write::Manner;

/// A head that ends neither with a length nor with a blank line.
fn head(status: Status, manner: &Manner<'_>, connection: Option<&str>) -> Head {
    let page = manner.page.as_deref();
    let kept = (manner.is_last || manner.is_old).then_some(if manner.is_last { "close" } else { "keep-alive" });
    Head::answer(status)
        .field_if(CONNECTION, connection)
        .field_if("Connection", kept)
        .field_if("Access-Control-Allow-Origin", page)
        .field_if("Access-Control-Expose-Headers", page.map(|_| CONNECTION))
        .field_if("Vary", page.map(|_| "Origin"))
}

/// Answers a browser's preflight request, which precedes a cross-origin request.
pub fn preflight(out: &mut Vec<u8>, manner: &Manner<'_>) {
    let taken = format!("Accept, Authorization, Content-Type, {CONNECTION}, {SESSION}, *");
    let head = head(Status::NoContent, manner, None)
        .field("Access-Control-Allow-Methods", "POST, GET, DELETE")
        .field("Access-Control-Allow-Headers", taken)
        .field("Access-Control-Max-Age", 7200);
    out.extend_from_slice(head.end().as_bytes());
}

/// Writes the head of the answer to `initialize`, whose body has this length. It has the id of the connection, unless that
/// has failed to begin.
pub fn begins(out: &mut Vec<u8>, manner: &Manner<'_>, connection: Option<&str>, length: usize) {
    let head = head(Status::Ok, manner, connection).field("Content-Type", "application/json");
    out.extend_from_slice(head.field("Content-Length", length).end().as_bytes());
}

/// Writes the head of a stream of events.
pub fn begin_events(out: &mut Vec<u8>, manner: &Manner<'_>, connection: &str, session: Option<&str>) {
    // A name that is no plain text is not repeated.
    let session = session.filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()));
    let head = head(Status::Ok, manner, Some(connection))
        .field_if(SESSION, session)
        .field("Content-Type", "text/event-stream")
        .field("Cache-Control", "no-cache, no-transform")
        .field("X-Accel-Buffering", "no")
        .field_if("Transfer-Encoding", (!manner.is_old).then_some("chunked"));
    out.extend_from_slice(head.end().as_bytes());
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
    fn the_answer_to_initialize_has_the_id_of_the_connection_and_pages_may_read_it() {
        let manner = Manner { page: Some("https://a.example".into()), ..Manner::default() };
        assert_eq!(
            written(|out| begins(out, &manner, Some("n.1"), 2)),
            "HTTP/1.1 200 OK\r\nAcp-Connection-Id: n.1\r\nAccess-Control-Allow-Origin: https://a.example\r\n\
             Access-Control-Expose-Headers: Acp-Connection-Id\r\nVary: Origin\r\nContent-Type: application/json\r\n\
             Content-Length: 2\r\n\r\n"
        );
        assert!(!written(|out| begins(out, &manner, None, 2)).contains("Acp-Connection-Id:"));
        assert!(written(|out| preflight(out, &manner)).contains("Acp-Connection-Id, Acp-Session-Id, *\r\n"));
    }

    #[test]
    fn a_stream_names_its_connection_and_its_session() {
        let stream = |manner: &Manner<'_>, session| written(|out| begin_events(out, manner, "n.1", session));
        let usual = stream(&Manner::default(), Some("s"));
        assert!(usual.contains("\r\nAcp-Connection-Id: n.1\r\nAcp-Session-Id: s\r\n"), "{usual}");
        assert!(usual.ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"), "{usual}");
        assert!(!stream(&Manner::default(), Some("a b")).contains("Acp-Session-Id"));
        let old = stream(&Manner { is_old: true, is_last: true, ..Manner::default() }, None);
        assert!(!old.contains("Transfer-Encoding") && old.contains("Connection: close\r\n"), "{old}");
    }
}
