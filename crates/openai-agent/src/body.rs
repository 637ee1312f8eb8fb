//! The body of an answer: decompressed, and the fields of server-sent events in it, line by line. Pure.
//!
//! The client never asks for compression, but some servers and proxies compress anyway. Gzip is decoded; every other
//! coding is named and refused. Whatever can be decoded comes out at once, so that streams stay streams. A body that
//! does not begin like gzip is taken as it is, and one that does is decoded even if no header says so: no event stream
//! and no JSON begins that way. The invariant: the output is at most `MOST_GROWTH` times the input, beyond the first
//! `FREE` bytes.
//!
//! Lines end with LF, CRLF or a lone CR; a chunk may end anywhere, even inside a character or between CR and LF. A byte
//! order mark at the start, comments, and the fields id and retry are skipped. Which lines form an event is not decided
//! here: servers leave out the empty line that ends an event, so the reader of the fields takes each line of data as an
//! event if it can be one ([`super::answer`]). The invariant: the fields depend on the bytes alone, never on where the
//! chunks were cut.

use std::io::Write;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;

use super::failure::Failure;

/// Maximum ratio of a body to its compressed form. Streams of tokens reach 40.
const MOST_GROWTH: usize = 250;

/// Bytes that may come out regardless of the input.
const FREE: usize = 1 << 20;

/// Bytes decoded at once before the output is checked against its limit.
const PIECE: usize = 4096;

/// Why a body cannot be read to its end.
#[derive(Debug)]
pub struct Broken {
    /// The reason, for people.
    pub text: String,
    /// A repetition of the request would end the same way.
    pub is_final: bool,
}

impl Broken {
    /// A repetition of the request may succeed.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_final: false }
    }
}

/// A body being decoded.
#[derive(Default)]
pub struct Decoder {
    gzip: Option<Box<MultiGzDecoder<Vec<u8>>>>,
    went_in: usize,
    came_out: usize,
    has_begun: bool,
}

impl Decoder {
    /// A decoder for the content codings of a response.
    ///
    /// # Errors
    /// The name of the coding that is not supported, for people.
    pub fn new(codings: &str) -> Result<Self, String> {
        let is_known =
            |name: &str| ["", "identity", "gzip", "x-gzip"].contains(&name.trim().to_ascii_lowercase().as_str());
        if codings.split(',').all(is_known) {
            return Ok(Self::default());
        }
        let shown: String = codings.chars().filter(|letter| !letter.is_control()).take(40).collect();
        Err(format!("a body of the content coding {shown:?} (only gzip can be read)"))
    }

    /// Decodes the next bytes of the body.
    ///
    /// # Errors
    /// The body is not what its coding says, or grows too much.
    pub fn decode(&mut self, bytes: Bytes) -> Result<Bytes, Broken> {
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_begun, true) {
            let is_gzip = bytes.starts_with(&[0x1f, 0x8b]) || bytes == [0x1f][..];
            self.gzip = is_gzip.then(|| Box::new(MultiGzDecoder::new(Vec::new())));
        }
        let Some(gzip) = &mut self.gzip else { return Ok(bytes) };
        let mut content = Vec::new();
        for piece in bytes.chunks(PIECE) {
            let outcome = gzip.write_all(piece).and_then(|()| gzip.flush());
            self.went_in += piece.len();
            self.came_out += gzip.get_ref().len();
            content.append(gzip.get_mut());
            if self.came_out > FREE.max(self.went_in * MOST_GROWTH) {
                let grown = self.came_out / self.went_in;
                let text = format!("the gzip-compressed answer grows to {grown} times its size and is given up");
                return Err(Broken { text, is_final: true });
            }
            outcome.map_err(|_| Broken::new("the gzip-compressed answer is damaged"))?;
        }
        Ok(content.into())
    }

    /// The end of the body.
    ///
    /// # Errors
    /// It ends in the middle of its content.
    pub fn finish(&mut self) -> Result<(), Broken> {
        // This also checks the checksum at the end.
        let ended = self.gzip.as_mut().map_or(Ok(()), |gzip| gzip.try_finish());
        ended.map_err(|_| Broken::new("the gzip-compressed answer is cut off"))
    }
}

/// One line of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// `data: …`
    Data(&'a [u8]),
    /// `event: …`, the name of the event.
    Event(&'a [u8]),
    /// `error: …`, which is not in the standard but sent by llama.cpp.
    Error(&'a [u8]),
    /// A line that is not a field: bare JSON or words in the stream.
    Stray(&'a [u8]),
    /// The empty line that ends an event.
    End,
}

/// The state between two chunks.
#[derive(Debug)]
pub struct Parser {
    /// The line that has begun but not ended.
    line: Vec<u8>,
    /// The last chunk ended with CR: an LF that follows belongs to it.
    after_cr: bool,
    /// The first line may begin with a byte order mark.
    at_start: bool,
    /// Maximum length of a line, in bytes.
    limit: usize,
}

/// Capacity, in bytes, that is kept between lines.
const KEPT: usize = 64 << 10;

impl Parser {
    /// A parser for one response; `limit` is the maximum length of a line in bytes.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), after_cr: false, at_start: true, limit }
    }

    /// Takes the next bytes and calls `field` with each line that ends within them.
    ///
    /// # Errors
    /// [`Failure::TooLong`]; the stream cannot be read any further.
    pub fn push(&mut self, mut bytes: &[u8], mut field: impl FnMut(Field<'_>)) -> Result<(), Failure> {
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

    /// Ends the stream: returns the line that was still open, if any, and the end of its event.
    ///
    /// # Errors
    /// [`Failure::TooLong`].
    pub fn finish(&mut self, mut field: impl FnMut(Field<'_>)) -> Result<(), Failure> {
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

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.line.len() + bytes.len() > self.limit {
            return Err(Failure::TooLong(self.limit));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// One line, without its end.
    fn take_line(&mut self, mut line: &[u8], field: &mut impl FnMut(Field<'_>)) -> Result<(), Failure> {
        if line.len() > self.limit {
            return Err(Failure::TooLong(self.limit));
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

/// The field in a line; `None` for a comment and for fields that do not matter here.
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
        assert_eq!(parser.push(&[b'x'; 17], |_| ()), Err(Failure::TooLong(16)));
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_whether_it_comes_in_one_piece_or_in_two() {
        for pieces in [&[&b": 0123456789abcdef\ndata: x\n\n"[..]][..], &[b": 012345678", b"9abcdef\ndata: x\n\n"]] {
            let mut parser = Parser::new(16);
            let refuse = |field: Field<'_>| panic!("{field:?}");
            let outcome = pieces.iter().try_for_each(|piece| parser.push(piece, refuse));
            assert_eq!(outcome, Err(Failure::TooLong(16)), "{pieces:?}");
        }
    }
}

#[cfg(test)]
mod compressed {
    use super::*;
    use proptest::prelude::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn decode(codings: &str, pieces: &[&[u8]]) -> Result<Vec<u8>, String> {
        let mut decoder = Decoder::new(codings)?;
        let mut content = Vec::new();
        for piece in pieces {
            content.extend_from_slice(&decoder.decode(Bytes::copy_from_slice(piece)).map_err(|broken| broken.text)?);
        }
        decoder.finish().map_err(|broken| broken.text)?;
        Ok(content)
    }

    const CODINGS: [&str; 4] = ["", "gzip", "identity", "identity, X-GZIP"];

    #[test]
    fn an_uncompressed_body_is_taken_as_it_is_whatever_its_coding() {
        for coding in CODINGS {
            let body = b"data: {\"choices\":[]}\n\n";
            assert_eq!(decode(coding, &[body]).unwrap(), body, "{coding}");
            assert_eq!(decode(coding, &[]).unwrap(), b"", "{coding}");
        }
    }

    #[test]
    fn other_codings_are_named() {
        for codings in ["compress", "gzip, br", "aws-chunked", "br", "zstd", "deflate"] {
            let error = Decoder::new(codings).err().unwrap();
            assert!(error.contains(&format!("{codings:?}")), "{error}");
        }
    }

    #[test]
    fn damaged_and_truncated_bodies_are_errors() {
        let mut whole = gzip(&b"some content, some content, some more of it".repeat(20));
        let error = decode("gzip", &[&whole[..whole.len() - 3]]).unwrap_err();
        assert!(error.ends_with("is cut off"), "{error}");
        for byte in &mut whole[12..20] {
            *byte ^= 0xff;
        }
        assert!(decode("gzip", &[&whole]).is_err());
    }

    #[test]
    fn a_gzip_bomb_is_abandoned_after_a_bounded_amount() {
        let bomb = gzip(&vec![b' '; 64 << 20]);
        let (mut decoder, mut out) = (Decoder::new("gzip").unwrap(), 0);
        let error = bomb.chunks(16).find_map(|piece| match decoder.decode(Bytes::copy_from_slice(piece)) {
            Ok(bytes) => {
                out += bytes.len();
                None
            }
            Err(error) => Some(error),
        });
        let error = error.expect("not all of it comes out");
        assert!(error.is_final && error.text.contains("grows to"), "{error:?}");
        assert!(out <= FREE.max(bomb.len() * MOST_GROWTH), "{out}");
    }

    proptest! {
        #[test]
        fn any_content_cut_anywhere_comes_out_whole(
            texts in proptest::collection::vec("[a-c]{1,400}", 1..6),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let content = texts.concat();
            for body in [gzip(content.as_bytes()), content.clone().into_bytes()] {
                let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
                at.extend([0, body.len()]);
                at.sort_unstable();
                let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
                for coding in CODINGS {
                    prop_assert_eq!(decode(coding, &pieces).unwrap(), content.as_bytes());
                }
            }
        }

        #[test]
        fn flushed_data_is_not_held_back(texts in proptest::collection::vec("data: [a-z]{1,40}\n\n", 1..6)) {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            let mut decoder = Decoder::new("gzip").unwrap();
            for text in texts {
                encoder.write_all(text.as_bytes()).unwrap();
                encoder.flush().unwrap();
                let out = decoder.decode(std::mem::take(encoder.get_mut()).into()).unwrap();
                prop_assert_eq!(&out[..], text.as_bytes());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode("gzip", &[b"\x1f\x8b", &bytes]);
        }
    }
}
