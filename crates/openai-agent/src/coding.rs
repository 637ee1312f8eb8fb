//! Compressed answers: asked for by nobody, sent by some servers and proxies all the same. Pure.
//!
//! The bytes of a body go in as they come, and what can be decoded of them comes out at once, so that streams stay
//! streams. A body that does not begin as its coding does is taken as it is, and one that begins like gzip or zstd is
//! decoded although nobody says so: no event stream and no JSON begins that way.
//!
//! The invariant: what comes out is at most [`MOST_GROWTH`] times what went in, beyond the first [`FREE`] bytes.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use bytes::Bytes;

/// How much longer than its compressed form a body may be. Streams of tokens reach 40.
pub const MOST_GROWTH: usize = 250;

/// Bytes that may come out of anything.
pub const FREE: usize = 1 << 20;

/// Largest window of zstd as a power of two: 8 MiB, as RFC 9659 says for HTTP.
const ZSTD_WINDOW: u32 = 23;

/// Names of the codings, and how a body of them begins if it has a beginning of its own.
const CODINGS: [(&str, &[u8]); 4] = [("gzip", &[0x1f, 0x8b]), ("zstd", ZSTD), ("deflate", &[]), ("br", &[])];

const ZSTD: &[u8] = &[0x28, 0xb5];

/// Bytes that a brotli decoder writes at once.
const PIECE: usize = 16 << 10;

/// What a decoder has decoded and nobody has taken; how much that may be in all, and was.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    most: usize,
    came_out: usize,
}

/// Where a decoder writes.
#[derive(Clone, Default)]
struct Sink(Rc<RefCell<Content>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = self.0.borrow_mut();
        content.came_out += bytes.len();
        if content.came_out > content.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        content.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What decodes. At the end each of them has to be asked whether that is the end.
enum Work {
    Gzip(flate2::write::MultiGzDecoder<Sink>),
    Deflate(flate2::write::ZlibDecoder<Sink>),
    Brotli(Box<brotli_decompressor::DecompressorWriter<Sink>>),
    Zstd(zstd::stream::zio::Writer<Sink, zstd::stream::raw::Decoder<'static>>),
}

/// A body that is being decoded.
pub struct Decoder {
    /// What the response says that it is: a place of [`CODINGS`].
    coding: Option<usize>,
    name: &'static str,
    work: Option<Work>,
    sink: Sink,
    went_in: usize,
    has_begun: bool,
}

impl Decoder {
    /// A decoder for what a response names as its content codings.
    ///
    /// # Errors
    /// The name of what cannot be read, for people.
    pub fn new(codings: &str) -> Result<Self, String> {
        let named = codings.split(',').map(|name| name.trim().to_ascii_lowercase());
        let named: Vec<String> = named.filter(|name| !name.is_empty() && name != "identity").collect();
        let coding = named.first().and_then(|name| {
            CODINGS.iter().position(|(known, _)| known == name || name.strip_prefix("x-") == Some(known))
        });
        if named.len() > usize::from(coding.is_some()) {
            let shown: String = codings.chars().filter(|letter| !letter.is_control()).take(40).collect();
            return Err(format!("a body of the content coding {shown:?} (gzip, deflate, br and zstd can be read)"));
        }
        Ok(Self { coding, name: "", work: None, sink: Sink::default(), went_in: 0, has_begun: false })
    }

    /// The content of the next bytes of the body.
    ///
    /// # Errors
    /// The body is not what it says it is, or grows beyond measure.
    pub fn decode(&mut self, bytes: Bytes) -> Result<Bytes, String> {
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_begun, true) {
            self.begin(&bytes).map_err(|error| error.to_string())?;
        }
        let Some(work) = &mut self.work else { return Ok(bytes) };
        self.went_in += bytes.len();
        self.sink.0.borrow_mut().most = FREE.max(self.went_in * MOST_GROWTH);
        let writer: &mut dyn Write = match work {
            Work::Gzip(gzip) => gzip,
            Work::Deflate(zlib) => zlib,
            Work::Brotli(brotli) => brotli,
            Work::Zstd(zstd) => zstd,
        };
        let outcome = writer.write_all(&bytes).and_then(|()| writer.flush());
        let mut content = self.sink.0.borrow_mut();
        match outcome {
            _ if content.came_out > content.most => {
                let grown = content.came_out / self.went_in;
                Err(format!("the {}-compressed answer grows to {grown} times its size and is given up", self.name))
            }
            // What follows the end of the content, if anything does, is none.
            Err(error) if error.kind() != io::ErrorKind::WriteZero => {
                Err(format!("the {}-compressed answer is damaged", self.name))
            }
            _ => Ok(std::mem::take(&mut content.bytes).into()),
        }
    }

    /// The end of the body.
    ///
    /// # Errors
    /// It ends within its content.
    pub fn finish(&mut self) -> Result<(), String> {
        let ended = match &mut self.work {
            None => Ok(()),
            // Checks the sum at the end, too.
            Some(Work::Gzip(gzip)) => gzip.try_finish(),
            Some(Work::Deflate(zlib)) => zlib.try_finish(),
            Some(Work::Brotli(brotli)) => brotli.close(),
            Some(Work::Zstd(zstd)) => zstd.finish(),
        };
        ended.map_err(|_| format!("the {}-compressed answer is cut off", self.name))
    }

    fn begin(&mut self, bytes: &[u8]) -> io::Result<()> {
        let begins = |magic: &[u8]| !magic.is_empty() && (bytes.starts_with(magic) || bytes == &magic[..1]);
        let found = match self.coding {
            // A lonely parenthesis may be text.
            None => CODINGS.iter().position(|(_, magic)| begins(magic) && (bytes.len() > 1 || *magic != ZSTD)),
            Some(coding) if CODINGS[coding].1.is_empty() => Some(coding).filter(|_| !looks_plain(bytes)),
            Some(coding) => Some(coding).filter(|coding| begins(CODINGS[*coding].1)),
        };
        let Some(found) = found else { return Ok(()) };
        let sink = self.sink.clone();
        self.name = CODINGS[found].0;
        self.work = Some(match self.name {
            "gzip" => Work::Gzip(flate2::write::MultiGzDecoder::new(sink)),
            "deflate" => Work::Deflate(flate2::write::ZlibDecoder::new(sink)),
            "br" => Work::Brotli(Box::new(brotli_decompressor::DecompressorWriter::new(sink, PIECE))),
            _ => {
                let mut decoder = zstd::stream::raw::Decoder::new()?;
                decoder.set_parameter(zstd::stream::raw::DParameter::WindowLogMax(ZSTD_WINDOW))?;
                Work::Zstd(zstd::stream::zio::Writer::new(sink, decoder))
            }
        });
        Ok(())
    }
}

/// Whether a body begins like an event stream or JSON.
fn looks_plain(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    ["data:", "event:", "id:", "retry:", ": ", "{\"", "{ \"", "[{", "{\n", "{}"]
        .iter()
        .any(|start| text.starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What each coding makes of a text; `None` where only the decoder is linked: brotli, as one uncompressed block.
    fn encode(coding: &str, content: &[u8]) -> Vec<u8> {
        match coding {
            "gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
            "zstd" => zstd::bulk::compress(content, 3).unwrap(),
            "br" => stored_brotli(content),
            _ => content.to_vec(),
        }
    }

    /// A brotli stream of uncompressed meta-blocks (RFC 7932, 9.2): a window of 16 bits, blocks of at most 64 KiB.
    fn stored_brotli(content: &[u8]) -> Vec<u8> {
        let mut bits: Vec<bool> = vec![false];
        let mut out = Vec::new();
        let put = |bits: &mut Vec<bool>, value: usize, count: usize| {
            bits.extend((0..count).map(|at| value >> at & 1 == 1));
        };
        let drain = |bits: &mut Vec<bool>, out: &mut Vec<u8>| {
            for byte in bits.chunks(8) {
                out.push(byte.iter().enumerate().map(|(at, bit)| u8::from(*bit) << at).sum());
            }
            bits.clear();
        };
        for block in content.chunks(1 << 16) {
            put(&mut bits, 0, 1);
            put(&mut bits, 0, 2);
            put(&mut bits, block.len() - 1, 16);
            put(&mut bits, 1, 1);
            drain(&mut bits, &mut out);
            out.extend_from_slice(block);
        }
        put(&mut bits, 3, 2);
        drain(&mut bits, &mut out);
        out
    }

    fn decode(codings: &str, pieces: &[&[u8]]) -> Result<Vec<u8>, String> {
        let mut decoder = Decoder::new(codings)?;
        let mut content = Vec::new();
        for piece in pieces {
            content.extend_from_slice(&decoder.decode(Bytes::copy_from_slice(piece))?);
        }
        decoder.finish()?;
        Ok(content)
    }

    const ALL: [&str; 5] = ["", "gzip", "deflate", "br", "zstd"];

    #[test]
    fn what_is_not_compressed_after_all_is_taken_as_it_is() {
        for coding in ALL {
            let body = b"data: {\"choices\":[]}\n\n";
            assert_eq!(decode(coding, &[body]).unwrap(), body, "{coding}");
            assert_eq!(decode(coding, &[]).unwrap(), b"", "{coding}");
        }
    }

    #[test]
    fn what_is_compressed_without_saying_so_is_decoded() {
        for coding in ["gzip", "zstd"] {
            assert_eq!(decode("", &[&encode(coding, b"data: x\n\n")]).unwrap(), b"data: x\n\n");
            assert_eq!(decode("identity", &[&encode(coding, b"data: x\n\n")]).unwrap(), b"data: x\n\n");
        }
    }

    #[test]
    fn other_codings_are_named() {
        for codings in ["compress", "gzip, br", "aws-chunked"] {
            let error = Decoder::new(codings).err().unwrap();
            assert!(error.contains(&format!("{codings:?}")), "{error}");
        }
        assert!(Decoder::new("identity, gzip").is_ok());
    }

    #[test]
    fn damage_and_cuts_are_told() {
        for coding in ["gzip", "deflate", "br", "zstd"] {
            let whole = encode(coding, &b"some content, some content, some more of it".repeat(20));
            let cut = &whole[..whole.len() - 3];
            let error = decode(coding, &[cut]).unwrap_err();
            assert!(error.contains("is cut off") && error.contains(coding), "{coding}: {error}");
        }
        let mut damaged = encode("gzip", &b"some content".repeat(20));
        for byte in &mut damaged[12..20] {
            *byte ^= 0xff;
        }
        assert!(decode("gzip", &[&damaged]).is_err());
    }

    #[test]
    fn a_bomb_is_given_up_after_a_bounded_amount() {
        for coding in ["gzip", "deflate", "zstd"] {
            let bomb = encode(coding, &vec![b' '; 64 << 20]);
            let mut decoder = Decoder::new(coding).unwrap();
            let mut out = 0;
            let error = bomb.chunks(16).find_map(|piece| match decoder.decode(Bytes::copy_from_slice(piece)) {
                Ok(bytes) => {
                    out += bytes.len();
                    None
                }
                Err(error) => Some(error),
            });
            let error = error.expect("not all of it comes out");
            assert!(error.contains("grows to"), "{error}");
            assert!(out <= FREE.max(bomb.len() * MOST_GROWTH), "{coding}: {out}");
        }
    }

    proptest! {
        #[test]
        fn any_content_cut_anywhere_comes_out_whole_and_at_once(
            texts in proptest::collection::vec("[a-c]{1,400}", 1..6),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let content = texts.concat();
            for coding in ALL {
                let body = encode(coding, content.as_bytes());
                let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
                at.extend([0, body.len()]);
                at.sort_unstable();
                let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
                prop_assert_eq!(decode(coding, &pieces).unwrap(), content.as_bytes());
            }
        }

        #[test]
        fn what_is_flushed_is_not_held_back(texts in proptest::collection::vec("data: [a-z]{1,40}\n\n", 1..6)) {
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
        fn no_bytes_panic(index in 0..ALL.len(), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(ALL[index], &[&bytes]);
        }
    }
}
