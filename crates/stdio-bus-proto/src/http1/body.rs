//! Message bodies (RFC 9112, sections 6 and 7): their framing and contents. Only numbers are kept, so a body can be
//! read in pieces of any size.

use super::error::Error;
use super::fields::Fields;
use super::status::Status;

/// Maximum number of digits of a chunk size.
const MOST_DIGITS: u8 = 16;
/// Maximum bytes of one chunk's extensions, which are ignored here, and of the trailer section.
const MOST_EXTENSION: usize = 256;
const MOST_TRAILER: usize = 8 * 1024;

/// How the end of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By its length in bytes; 0 if there is no body.
    Length(u64),
    /// By chunked coding.
    Chunked,
    /// By the close of the connection.
    UntilEnd,
}

impl Framing {
    /// Determines the framing from a head's fields; none if they do not say.
    ///
    /// # Errors
    /// The fields are ambiguous or malformed.
    pub(super) fn told_by(fields: &Fields<'_>, is_old: bool) -> Result<Option<Self>, Error> {
        let length = fields.only("content-length").map_err(|_| Error::bad("more than one Content-Length"))?;
        let coding = fields.only("transfer-encoding").map_err(|_| Error::bad("more than one Transfer-Encoding"))?;
        match (coding, length) {
            (None, None) => Ok(None),
            (None, Some(length)) => read_length(length).map(|length| Some(Self::Length(length))),
            (Some(_), Some(_)) => Err(Error::bad("a Content-Length beside a Transfer-Encoding")),
            (Some(_), None) if is_old => Err(Error::bad("HTTP/1.0 has no Transfer-Encoding")),
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Some(Self::Chunked)),
            (Some(_), None) => {
                Err(Error::new(Status::NotImplemented, "the only Transfer-Encoding known here is chunked"))
            }
        }
    }
}

/// Parses digits in their only valid form: other parsers might read another number.
fn read_length(digits: &[u8]) -> Result<u64, Error> {
    let is_number = digits.iter().all(u8::is_ascii_digit) && (digits == b"0" || !digits.starts_with(b"0"));
    if digits.is_empty() || !is_number {
        return Err(Error::bad("Content-Length is not a number"));
    }
    str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(Error::LONG_BODY)
}

/// A piece of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'b> {
    More,
    Data(&'b [u8]),
    End,
}

/// Reads one body.
#[derive(Clone, Debug)]
pub(super) struct BodyReader {
    stage: BodyStage,
    /// How many bytes may still come.
    room: u64,
    /// Length of the current line, if it is limited.
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyStage {
    Length(u64),
    UntilEnd,
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeEnd { size: u64 },
    Chunk(u64),
    ChunkReturn,
    ChunkEnd,
    TrailerBegin,
    Trailer,
    TrailerEnd,
    LastEnd,
    Over,
}

const BEGIN_OF_CHUNK: BodyStage = BodyStage::Size { digits: 0, size: 0 };

impl BodyReader {
    /// Reads a body of at most `most` bytes.
    ///
    /// # Errors
    /// The announced length is greater.
    pub(super) fn new(framing: Framing, most: u64) -> Result<Self, Error> {
        let stage = match framing {
            Framing::Length(length) if length > most => return Err(Error::LONG_BODY),
            Framing::Length(0) => BodyStage::Over,
            Framing::Length(length) => BodyStage::Length(length),
            Framing::Chunked => BEGIN_OF_CHUNK,
            Framing::UntilEnd => BodyStage::UntilEnd,
        };
        Ok(Self { stage, room: most, line: 0 })
    }

    /// Whether the connection may end here.
    pub(super) fn may_end(&self) -> bool {
        matches!(self.stage, BodyStage::UntilEnd | BodyStage::Over)
    }

    /// Returns the next piece of the received bytes, and how many of them were consumed.
    pub(super) fn read<'b>(&mut self, bytes: &'b [u8]) -> Result<(Piece<'b>, usize), Error> {
        for (at, byte) in bytes.iter().enumerate() {
            let rest = &bytes[at..];
            self.stage = match self.stage {
                BodyStage::Over => return Ok((Piece::End, at)),
                BodyStage::UntilEnd => return self.take(rest, u64::MAX, at),
                BodyStage::Length(left) | BodyStage::Chunk(left) => return self.take(rest, left, at),
                stage => self.step(stage, *byte)?,
            };
        }
        Ok((if self.stage == BodyStage::Over { Piece::End } else { Piece::More }, bytes.len()))
    }

    /// Takes data, of which `left` bytes remain, starting at `at`.
    fn take<'b>(&mut self, bytes: &'b [u8], left: u64, at: usize) -> Result<(Piece<'b>, usize), Error> {
        let data = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        let taken = data.len() as u64;
        self.room = self.room.checked_sub(taken).ok_or(Error::LONG_BODY)?;
        self.stage = match self.stage {
            BodyStage::Length(left) if left == taken => BodyStage::Over,
            BodyStage::Length(left) => BodyStage::Length(left - taken),
            BodyStage::Chunk(left) if left == taken => BodyStage::ChunkReturn,
            BodyStage::Chunk(left) => BodyStage::Chunk(left - taken),
            stage => stage,
        };
        Ok((Piece::Data(data), at + data.len()))
    }

    /// Handles one byte of chunk framing.
    fn step(&mut self, stage: BodyStage, byte: u8) -> Result<BodyStage, Error> {
        let is_text = byte == b'\t' || !byte.is_ascii_control();
        Ok(match (stage, byte) {
            (BodyStage::Size { digits, size }, _) if byte.is_ascii_hexdigit() && digits < MOST_DIGITS => {
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                BodyStage::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (BodyStage::Size { digits: 1.., size }, b';') => {
                self.line = 0;
                BodyStage::Extension { size }
            }
            (BodyStage::Size { digits: 1.., size } | BodyStage::Extension { size }, b'\r') => {
                BodyStage::SizeEnd { size }
            }
            (BodyStage::Extension { size }, _) if is_text => {
                self.count(MOST_EXTENSION)?;
                BodyStage::Extension { size }
            }
            (BodyStage::SizeEnd { size: 0 }, b'\n') => {
                self.line = 0;
                BodyStage::TrailerBegin
            }
            (BodyStage::SizeEnd { size }, b'\n') if size > self.room => return Err(Error::LONG_BODY),
            (BodyStage::SizeEnd { size }, b'\n') => BodyStage::Chunk(size),
            (BodyStage::ChunkReturn, b'\r') => BodyStage::ChunkEnd,
            (BodyStage::ChunkEnd, b'\n') => BEGIN_OF_CHUNK,
            (BodyStage::TrailerBegin, b'\r') => BodyStage::LastEnd,
            (BodyStage::Trailer, b'\r') => BodyStage::TrailerEnd,
            (BodyStage::TrailerBegin | BodyStage::Trailer, _) if is_text => {
                self.count(MOST_TRAILER)?;
                BodyStage::Trailer
            }
            (BodyStage::TrailerEnd, b'\n') => BodyStage::TrailerBegin,
            (BodyStage::LastEnd, b'\n') => BodyStage::Over,
            _ => return Err(Error::CHUNK),
        })
    }

    fn count(&mut self, most: usize) -> Result<(), Error> {
        self.line += 1;
        if self.line > most { Err(Error::LONG_CHUNK_LINE) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a body in pieces of `step` bytes, and returns its contents and the bytes after it.
    fn read(framing: Framing, most: u64, bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
        let mut body = BodyReader::new(framing, most).map_err(|error| error.why)?;
        let (mut data, mut at) = (Vec::new(), 0);
        for end in (0..=bytes.len()).step_by(step).chain([bytes.len()]) {
            loop {
                let (piece, used) = body.read(&bytes[at..end]).map_err(|error| error.why)?;
                at += used;
                match piece {
                    Piece::Data(piece) => data.extend_from_slice(piece),
                    Piece::End => return Ok((data, bytes[at..].to_vec())),
                    Piece::More => break,
                }
            }
        }
        if body.may_end() { Ok((data, Vec::new())) } else { Err("cut") }
    }

    fn every_way(framing: Framing, most: u64, bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
        let whole = read(framing, most, bytes, bytes.len().max(1));
        for step in [1, 2, 3, 5, 7] {
            assert_eq!(read(framing, most, bytes, step), whole, "{}", bytes.escape_ascii());
        }
        whole
    }

    #[test]
    fn a_body_ends_where_its_head_says() {
        assert_eq!(every_way(Framing::Length(3), 9, b"abcGET"), Ok((b"abc".to_vec(), b"GET".to_vec())));
        assert_eq!(every_way(Framing::Length(0), 9, b"GET"), Ok((Vec::new(), b"GET".to_vec())));
        assert_eq!(every_way(Framing::Length(4), 9, b"abc"), Err("cut"));
        assert_eq!(every_way(Framing::UntilEnd, 9, b"abc"), Ok((b"abc".to_vec(), Vec::new())));
    }

    #[test]
    fn chunks_are_read_with_extensions_and_trailers() {
        for text in [
            "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET",
            "00000003\r\nabc\r\n2;a=b;c=\"d\"\r\nde\r\n000\r\n\r\nGET",
            "5;\r\nabcde\r\n0;x\r\nA: b\r\nC:\td\r\n\r\nGET",
        ] {
            assert_eq!(every_way(Framing::Chunked, 5, text.as_bytes()), Ok((b"abcde".to_vec(), b"GET".to_vec())));
        }
        let long = format!("ff\r\n{}\r\nFF\r\n{}\r\n0\r\n\r\n", "a".repeat(255), "b".repeat(255));
        assert_eq!(every_way(Framing::Chunked, 510, long.as_bytes()).map(|(data, _)| data.len()), Ok(510));
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
        let extension = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(MOST_EXTENSION + 1));
        let trailer = format!("0\r\n{}\r\n", "A: b\r\n".repeat(MOST_TRAILER / 4 + 1));
        for text in [
            "\r\n",
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3 \r\nabc\r\n0\r\n\r\n",
            " 3\r\nabc\r\n0\r\n\r\n",
            "0x3\r\nabc\r\n0\r\n\r\n",
            "+3\r\nabc\r\n0\r\n\r\n",
            "-1\r\n",
            "g\r\n",
            ";a\r\n",
            "3\r\rabc",
            "3;a\nb\r\nabc",
            "3;a\rb\r\nabc",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\n\r\r\n",
            "0\r\nA\0\r\n\r\n",
            "00000000000000001\r\na\r\n0\r\n\r\n",
            &extension,
            &trailer,
        ] {
            let read = every_way(Framing::Chunked, 1 << 20, text.as_bytes());
            assert!(read.as_ref().is_err_and(|why| *why != "cut"), "{text:?}: {read:?}");
        }
    }

    #[test]
    fn no_body_exceeds_its_limit() {
        let why = Error::LONG_BODY.why;
        assert_eq!(every_way(Framing::Length(4), 3, b"abcd"), Err(why));
        assert_eq!(every_way(Framing::UntilEnd, 3, b"abcd"), Err(why));
        assert_eq!(every_way(Framing::Chunked, 3, b"4\r\nabcd"), Err(why));
        assert_eq!(every_way(Framing::Chunked, 3, b"2\r\nab\r\n2\r\n"), Err(why));
        assert_eq!(every_way(Framing::Chunked, 3, b"ffffffffffffffff\r\n"), Err(why));
    }
}
