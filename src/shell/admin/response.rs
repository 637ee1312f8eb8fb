//! What is answered: a head, and a body that is there at once or comes in pieces, so that a large table never holds the
//! loop up.

use std::fmt::Write as _;

use super::status_line::Status;
use super::view::View;
use super::wall::Wall;

/// One line of text, or some.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";

/// A body that is written a piece at a time.
pub(super) trait Pieces {
    /// Adds the next piece, which must take well under a millisecond to make. False after the last one.
    fn next(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool;
}

/// What is sent behind the head.
pub(super) enum Body {
    Whole(Vec<u8>),
    Pieces(Box<dyn Pieces>),
}

/// An answer that is not written yet.
pub(super) struct Response {
    pub status: Status,
    pub kind: &'static str,
    pub body: Body,
    /// Header fields beside those of every answer.
    pub fields: Vec<(&'static str, String)>,
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// By its length.
    Length,
    /// It comes in chunks.
    Chunks,
    /// By the end of the connection: HTTP/1.0 knows no chunks.
    End,
}

impl Response {
    /// A line of text, which gets its newline here.
    pub(super) fn text(status: Status, line: &str) -> Self {
        let body = format!("{line}\n").into_bytes();
        Self { status, kind: TEXT, body: Body::Whole(body), fields: Vec::new() }
    }

    /// What is there at once.
    pub(super) fn whole(kind: &'static str, body: Vec<u8>) -> Self {
        Self { status: Status::Ok, kind, body: Body::Whole(body), fields: Vec::new() }
    }

    /// What comes in pieces.
    pub(super) fn pieces(kind: &'static str, pieces: impl Pieces + 'static) -> Self {
        Self { status: Status::Ok, kind, body: Body::Pieces(Box::new(pieces)), fields: Vec::new() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    pub(super) fn framing(&self, is_old: bool) -> Framing {
        match self.body {
            Body::Whole(_) => Framing::Length,
            Body::Pieces(_) if is_old => Framing::End,
            Body::Pieces(_) => Framing::Chunks,
        }
    }

    /// The head. `stays` says whether another request may follow on the connection.
    pub(super) fn head(&self, framing: Framing, stays: bool) -> String {
        let date = Wall::now().of_http();
        let mut head = format!("HTTP/1.1 {} {}\r\nDate: {date}\r\n", self.status.code(), self.status.name());
        let _ = write!(head, "Content-Type: {}\r\n", self.kind);
        match (framing, &self.body) {
            (Framing::Length, Body::Whole(body)) => {
                let _ = write!(head, "Content-Length: {}\r\n", body.len());
            }
            (Framing::Chunks, _) => head.push_str("Transfer-Encoding: chunked\r\n"),
            _ => {}
        }
        // What is shown is of this moment, and for nobody but who asked.
        head.push_str("Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n");
        for (name, value) in &self.fields {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str(if stays { "Connection: keep-alive\r\n\r\n" } else { "Connection: close\r\n\r\n" });
        head
    }
}

/// Adds what `fill` writes as one chunk, if it writes anything.
pub(super) fn chunk(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
    /// Digits of the length, with zeros before it.
    const DIGITS: usize = 8;
    let begin = out.len();
    out.extend_from_slice(b"00000000\r\n");
    let goes_on = fill(out);
    let length = out.len() - begin - DIGITS - 2;
    if length == 0 {
        out.truncate(begin);
    } else {
        let digits = format!("{length:0DIGITS$x}");
        out[begin..begin + DIGITS].copy_from_slice(digits.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if !goes_on {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    goes_on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_how_long_the_body_is_and_whether_the_connection_stays() {
        let response = Response::text(Status::MethodNotAllowed, "no").with("Allow", "GET, HEAD");
        let head = response.head(response.framing(false), true);
        assert!(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\nDate: "), "{head}");
        assert!(head.contains("\r\nContent-Length: 3\r\n") && head.contains("\r\nAllow: GET, HEAD\r\n"), "{head}");
        assert!(head.ends_with("\r\nConnection: keep-alive\r\n\r\n"), "{head}");
        assert!(response.head(Framing::Length, false).ends_with("\r\nConnection: close\r\n\r\n"));
    }

    #[test]
    fn pieces_become_chunks_and_the_last_one_is_empty() {
        let mut out = Vec::new();
        let mut add = |text: &str, goes_on| {
            chunk(&mut out, |out| {
                out.extend_from_slice(text.as_bytes());
                goes_on
            })
        };
        assert!(add("hello", true) && add("", true) && !add("0123456789abcdef", false));
        assert_eq!(out, b"00000005\r\nhello\r\n00000010\r\n0123456789abcdef\r\n0\r\n\r\n");
    }
}
