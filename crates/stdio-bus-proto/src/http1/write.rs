//! Heads and chunks as they are sent.

use std::fmt::{self, Write as _};

use super::status::Status;

/// Asks a client that waits for it (`Expect: 100-continue`) to send its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Capacity that suffices for most heads of responses.
const USUAL: usize = 256;

/// A head that is being written.
#[derive(Clone, Debug)]
pub struct Head(String);

impl Head {
    /// The head of a response.
    pub fn answer(status: Status) -> Self {
        let mut head = String::with_capacity(USUAL);
        let _ = write!(head, "HTTP/1.1 {} {}\r\n", status.code(), status.name());
        Self(head)
    }

    /// The head of a request. Neither word may contain blanks or control characters.
    pub fn request(method: &str, target: &str, host: &str) -> Self {
        Self(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n"))
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl fmt::Display) -> Self {
        let begin = self.0.len();
        let _ = write!(self.0, "{name}: {value}");
        debug_assert!(!self.0[begin..].contains(['\r', '\n', '\0']), "it would be another field: {name}");
        self.0.push_str("\r\n");
        self
    }

    /// Adds a field if there is a value for it.
    #[must_use]
    pub fn field_if(self, name: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// Completes the head.
    pub fn end(mut self) -> String {
        self.0.push_str("\r\n");
        self.0
    }

    /// Completes the head and adds a body with its length.
    pub fn body(self, body: &str) -> String {
        self.field("Content-Length", body.len()).end() + body
    }
}

/// Appends what `fill` writes as one chunk, if it writes anything, and the end of the body if `fill` returns true.
pub fn chunk(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
    /// Digits of the chunk size, with leading zeros.
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
    fn a_head_ends_with_an_empty_line_and_its_body_follows() {
        let head = Head::answer(Status::MethodNotAllowed).field("Allow", "GET").field_if("Retry-After", None::<u32>);
        assert_eq!(head.body("no\n"), "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 3\r\n\r\nno\n");
        assert_eq!(Head::request("GET", "/a?b", "h:1").end(), "GET /a?b HTTP/1.1\r\nHost: h:1\r\n\r\n");
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
