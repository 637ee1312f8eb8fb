//! Server-sent events: bytes in, the data of each event out. Pure; it never fails but for a line that is too long.
//!
//! Lines end with LF, CRLF or a lone CR; a chunk may end anywhere, inside a character or between CR and LF too. A
//! byte order mark at the start, comments, and the fields event, id and retry are passed over. Several data lines of
//! one event are joined by LF. The WHATWG's rule that an event without its empty line at the end of the stream is
//! lost is not followed: [`Parser::finish`] gives it, since some servers end right after `data: [DONE]`.
//!
//! The invariant: the events depend on the bytes alone, never on where the chunks were cut.

/// The state between two chunks.
#[derive(Debug)]
pub struct Parser {
    /// The line that has begun but not ended.
    line: Vec<u8>,
    /// The data lines of the event that has begun, joined by LF.
    data: Vec<u8>,
    has_data: bool,
    /// The last chunk ended with CR: a LF that follows belongs to it.
    after_cr: bool,
    /// The first line may begin with a byte order mark.
    at_start: bool,
    /// Bytes that one line or one event may have.
    limit: usize,
}

/// A line or an event was longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {0} bytes")]
pub struct TooLong(pub usize);

/// Capacity, in bytes, that is kept between events.
const KEPT: usize = 64 << 10;

impl Parser {
    /// A parser for one response; `limit` is the most bytes of a line and of an event's data.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), data: Vec::new(), has_data: false, after_cr: false, at_start: true, limit }
    }

    /// Takes the next bytes and calls `event` with the data of each event that ends within them. The data may be
    /// changed by the callee.
    ///
    /// # Errors
    /// [`TooLong`]; the stream cannot be followed any further.
    pub fn push(&mut self, mut bytes: &[u8], mut event: impl FnMut(&mut [u8])) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            if bytes[0] == b'\n' {
                bytes = &bytes[1..];
            }
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            if self.line.is_empty() {
                self.line(&bytes[..end], &mut event)?;
            } else {
                self.extend_line(&bytes[..end])?;
                let line = std::mem::take(&mut self.line);
                self.line(&line, &mut event)?;
                self.line = line;
                self.line.clear();
                self.line.shrink_to(KEPT);
            }
            let is_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if is_cr {
                match bytes.first() {
                    Some(b'\n') => bytes = &bytes[1..],
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
        }
        self.extend_line(bytes)
    }

    /// The end of the stream: gives the event that was still open, if there is one.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn finish(&mut self, mut event: impl FnMut(&mut [u8])) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.line(&line, &mut event)?;
        }
        self.line(b"", &mut event)
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + bytes.len() > self.limit {
            return Err(TooLong(self.limit));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// One line, without its end.
    fn line(&mut self, mut line: &[u8], event: &mut impl FnMut(&mut [u8])) -> Result<(), TooLong> {
        if line.len() > self.limit {
            return Err(TooLong(self.limit));
        }
        if self.at_start {
            self.at_start = false;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            if self.has_data {
                event(&mut self.data);
                self.data.clear();
                self.data.shrink_to(KEPT);
                self.has_data = false;
            }
            return Ok(());
        }
        let Some(value) = line.strip_prefix(b"data") else { return Ok(()) };
        let value = match value {
            [] => value,
            [b':', b' ', rest @ ..] | [b':', rest @ ..] => rest,
            // A field whose name only begins like ours.
            _ => return Ok(()),
        };
        if self.data.len() + value.len() + 1 > self.limit {
            return Err(TooLong(self.limit));
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut parser = Parser::new(1 << 20);
        let mut seen = Vec::new();
        let mut note = |data: &mut [u8]| seen.push(String::from_utf8_lossy(data).into_owned());
        for chunk in chunks {
            parser.push(chunk, &mut note).unwrap();
        }
        parser.finish(&mut note).unwrap();
        seen
    }

    #[test]
    fn every_line_end_and_field_is_understood() {
        assert_eq!(events(&[b"data: a\n\ndata:b\r\n\r\ndata: c\r\rdata: d"]), ["a", "b", "c", "d"]);
        assert_eq!(events(&[b"\xef\xbb\xbfdata: a\n\n: ping\n\nevent: x\nid: 1\nretry: 5\ndata: b\n\n"]), ["a", "b"]);
        assert_eq!(events(&[b"data: a\ndata: b\ndata\n\ndatabase: c\n\n"]), ["a\nb\n"]);
        assert_eq!(events(&[b"data:  two spaces\n\n\n\n"]), [" two spaces"]);
        assert_eq!(events(&[b"data: x\r", b"\n\r", b"\ndata: y\n\n"]), ["x", "y"]);
    }

    #[test]
    fn a_line_and_an_event_have_a_limit() {
        let mut parser = Parser::new(16);
        assert_eq!(parser.push(&[b'x'; 17], |_| ()), Err(TooLong(16)));
        let mut parser = Parser::new(16);
        assert_eq!(parser.push(b"data: 0123456\ndata: 012345678\n", |_| ()), Err(TooLong(16)));
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_whether_it_comes_in_one_piece_or_in_two() {
        for pieces in [&[&b": 0123456789abcdef\ndata: x\n\n"[..]][..], &[b": 012345678", b"9abcdef\ndata: x\n\n"]] {
            let mut parser = Parser::new(16);
            let outcome = pieces.iter().try_for_each(|piece| parser.push(piece, |data| panic!("{data:?}")));
            assert_eq!(outcome, Err(TooLong(16)), "{pieces:?}");
        }
    }
}
