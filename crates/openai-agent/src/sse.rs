//! Server-sent events: bytes in, the fields of the stream out, line by line. Pure; it never fails but for a line that
//! is too long.
//!
//! Lines end with LF, CRLF or a lone CR; a chunk may end anywhere, inside a character or between CR and LF too. A
//! byte order mark at the start, comments, and the fields id and retry are passed over. What makes an event of several
//! lines is not settled here: servers leave out the empty line that ends an event, so that whoever reads the fields
//! takes each line of data for an event if it can be one ([`super::answer`]).
//!
//! The invariant: the fields depend on the bytes alone, never on where the chunks were cut.

/// One line of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// `data: …`
    Data(&'a [u8]),
    /// `event: …`, the name of the event.
    Event(&'a [u8]),
    /// `error: …`, which the standard does not know and llama.cpp sends.
    Error(&'a [u8]),
    /// A line that is no field: JSON or words that stand in the stream as they are.
    Stray(&'a [u8]),
    /// The empty line that ends an event.
    End,
}

/// The state between two chunks.
#[derive(Debug)]
pub struct Parser {
    /// The line that has begun but not ended.
    line: Vec<u8>,
    /// The last chunk ended with CR: a LF that follows belongs to it.
    after_cr: bool,
    /// The first line may begin with a byte order mark.
    at_start: bool,
    /// Bytes that one line may have.
    limit: usize,
}

/// A line or an event was longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {0} bytes")]
pub struct TooLong(pub usize);

/// Capacity, in bytes, that is kept between lines.
const KEPT: usize = 64 << 10;

impl Parser {
    /// A parser for one response; `limit` is the most bytes of a line.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), after_cr: false, at_start: true, limit }
    }

    /// Takes the next bytes and calls `field` with each line that ends within them.
    ///
    /// # Errors
    /// [`TooLong`]; the stream cannot be followed any further.
    pub fn push(&mut self, mut bytes: &[u8], mut field: impl FnMut(Field<'_>)) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (begun, is_cr) = (&bytes[..end], bytes[end] == b'\r');
            bytes = &bytes[end + 1..];
            if is_cr {
                self.after_cr = bytes.is_empty();
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            if self.line.is_empty() {
                self.take_line(begun, &mut field)?;
            } else {
                self.extend_line(begun)?;
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, &mut field)?;
                self.line = line;
                self.line.clear();
                self.line.shrink_to(KEPT);
            }
        }
        self.extend_line(bytes)
    }

    /// The end of the stream: gives the line that was still open, if there is one, and the end of its event.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn finish(&mut self, mut field: impl FnMut(Field<'_>)) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut field)?;
        }
        field(Field::End);
        Ok(())
    }

    /// The line that has begun but not ended.
    pub fn open_line(&self) -> &[u8] {
        &self.line
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + bytes.len() > self.limit {
            return Err(TooLong(self.limit));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// One line, without its end.
    fn take_line(&mut self, mut line: &[u8], field: &mut impl FnMut(Field<'_>)) -> Result<(), TooLong> {
        if line.len() > self.limit {
            return Err(TooLong(self.limit));
        }
        if self.at_start {
            self.at_start = false;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if let Some(found) = read_line(line) {
            field(found);
        }
        Ok(())
    }
}

/// What a line says; nothing for a comment and for fields that do not matter here.
fn read_line(line: &[u8]) -> Option<Field<'_>> {
    if line.is_empty() {
        return Some(Field::End);
    }
    if let Some(value) = line.strip_prefix(b"data:") {
        return Some(Field::Data(value.strip_prefix(b" ").unwrap_or(value)));
    }
    let colon = memchr::memchr(b':', line).unwrap_or(line.len());
    let value = line.get(colon + 1..).unwrap_or_default();
    let value = value.strip_prefix(b" ").unwrap_or(value);
    match &line[..colon] {
        b"" | b"id" | b"retry" => None,
        b"data" => Some(Field::Data(value)),
        b"event" => Some(Field::Event(value)),
        b"error" => Some(Field::Error(value)),
        _ => Some(Field::Stray(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(chunks: &[&[u8]]) -> Vec<String> {
        let mut parser = Parser::new(1 << 20);
        let mut seen = Vec::new();
        let mut note = |field: Field<'_>| {
            let (name, value) = match field {
                Field::Data(value) => ("", value),
                Field::Event(value) => ("event ", value),
                Field::Error(value) => ("error ", value),
                Field::Stray(value) => ("stray ", value),
                Field::End => ("/", &b""[..]),
            };
            seen.push(format!("{name}{}", String::from_utf8_lossy(value)));
        };
        for chunk in chunks {
            parser.push(chunk, &mut note).unwrap();
        }
        parser.finish(&mut note).unwrap();
        seen
    }

    #[test]
    fn every_line_end_and_field_is_understood() {
        let all = ["a", "/", "b", "/", "c", "/", "d", "/"];
        assert_eq!(fields(&[b"data: a\n\ndata:b\r\n\r\ndata: c\r\rdata: d"]), all);
        let all = ["a", "/", "/", "event x", "b", "/", "error e", "/"];
        assert_eq!(
            fields(&[b"\xef\xbb\xbfdata: a\n\n: ping\n\nevent: x\nid: 1\nretry: 5\ndata: b\n\nerror: e\n"]),
            all
        );
        let all = ["a", "b", "", "/", "stray database: c", "stray {\"a\":1}", "/"];
        assert_eq!(fields(&[b"data: a\ndata: b\ndata\n\ndatabase: c\n{\"a\":1}"]), all);
        assert_eq!(fields(&[b"data:  two spaces\n\n\n\n"]), [" two spaces", "/", "/", "/", "/"]);
        assert_eq!(fields(&[b"data: x\r", b"\n\r", b"\ndata: y\n\n"]), ["x", "/", "y", "/", "/"]);
    }

    #[test]
    fn a_line_has_a_limit() {
        let mut parser = Parser::new(16);
        assert_eq!(parser.push(&[b'x'; 17], |_| ()), Err(TooLong(16)));
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_whether_it_comes_in_one_piece_or_in_two() {
        for pieces in [&[&b": 0123456789abcdef\ndata: x\n\n"[..]][..], &[b": 012345678", b"9abcdef\ndata: x\n\n"]] {
            let mut parser = Parser::new(16);
            let refuse = |field: Field<'_>| panic!("{field:?}");
            let outcome = pieces.iter().try_for_each(|piece| parser.push(piece, refuse));
            assert_eq!(outcome, Err(TooLong(16)), "{pieces:?}");
        }
    }
}
