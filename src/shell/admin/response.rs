//! Answers: a head, and a body that is complete or produced in pieces, so that a large table never blocks the loop.

use super::view::View;
use super::wall_clock::WallClock;
use crate::http1::{Framing, Head, Status, chunk};

/// Plain text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";

/// A body produced in pieces.
pub(super) trait Pieces {
    /// Appends the next piece, which must take well under a millisecond. False after the last one.
    fn next(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool;
}

/// A response's body.
pub(super) enum AdminBody {
    Whole(Vec<u8>),
    Pieces(Box<dyn Pieces>),
}

/// The rest of an answer that is produced in pieces.
pub(super) struct Rest {
    pub pieces: Box<dyn Pieces>,
    /// How its end is marked.
    pub framing: Framing,
    /// The connection stays open for another request.
    pub stays: bool,
}

impl Rest {
    /// Produces the next piece. False if it is the last one.
    pub(super) fn make_piece(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        match self.framing {
            Framing::Chunked => chunk(out, |out| self.pieces.next(view, out)),
            Framing::Length(_) | Framing::UntilEnd => self.pieces.next(view, out),
        }
    }
}

/// A response that is not sent yet.
pub(super) struct Response {
    pub status: Status,
    pub kind: &'static str,
    pub body: AdminBody,
    /// Header fields in addition to the common ones.
    pub fields: Vec<(&'static str, String)>,
}

impl Response {
    /// A line of text, to which its newline is added here.
    pub(super) fn text(status: Status, line: &str) -> Self {
        let body = format!("{line}\n").into_bytes();
        Self { status, kind: TEXT, body: AdminBody::Whole(body), fields: Vec::new() }
    }

    /// A complete body.
    pub(super) fn whole(kind: &'static str, body: Vec<u8>) -> Self {
        Self { status: Status::Ok, kind, body: AdminBody::Whole(body), fields: Vec::new() }
    }

    /// A body in pieces.
    pub(super) fn pieces(kind: &'static str, pieces: impl Pieces + 'static) -> Self {
        Self { status: Status::Ok, kind, body: AdminBody::Pieces(Box::new(pieces)), fields: Vec::new() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// The framing of the body: HTTP/1.0, which is old, has no chunked coding.
    pub(super) fn framing(&self, is_old: bool) -> Framing {
        match &self.body {
            AdminBody::Whole(body) => Framing::Length(body.len() as u64),
            AdminBody::Pieces(_) if is_old => Framing::UntilEnd,
            AdminBody::Pieces(_) => Framing::Chunked,
        }
    }

    /// The head. `stays` if the connection may carry another request.
    pub(super) fn head(&self, framing: Framing, stays: bool) -> String {
        let length = if let Framing::Length(length) = framing { Some(length) } else { None };
        // Answers are momentary and private: not to be cached.
        let head = Head::answer(self.status)
            .field("Date", WallClock::now().of_http())
            .field("Content-Type", self.kind)
            .field_if("Content-Length", length)
            .field_if("Transfer-Encoding", (framing == Framing::Chunked).then_some("chunked"))
            .field("Cache-Control", "no-store")
            .field("X-Content-Type-Options", "nosniff");
        let head = self.fields.iter().fold(head, |head, (name, value)| head.field(name, value));
        head.field("Connection", if stays { "keep-alive" } else { "close" }).end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_the_length_of_the_body_and_says_whether_the_connection_stays() {
        let response = Response::text(Status::MethodNotAllowed, "no").with("Allow", "GET, HEAD");
        let head = response.head(response.framing(true), true);
        assert!(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\nDate: "), "{head}");
        assert!(head.contains("\r\nContent-Length: 3\r\n") && head.contains("\r\nAllow: GET, HEAD\r\n"), "{head}");
        assert!(head.ends_with("\r\nConnection: keep-alive\r\n\r\n"), "{head}");
        assert!(response.head(Framing::Length(3), false).ends_with("\r\nConnection: close\r\n\r\n"));
    }
}
