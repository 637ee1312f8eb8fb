//! Compressed answers: asked for by nobody, sent by some servers and proxies all the same. Pure.
//!
//! The bytes of a body go in as they come; what can be decoded of them comes out at once, at most [`PIECE`] bytes at a
//! time, so that streams stay streams and a bomb costs no memory. A body that does not begin as its coding does is
//! taken as it is, and one that begins like gzip or zstd is decoded although nobody says so: no event stream and no
//! JSON begins that way.
//!
//! The invariant: what comes out is at most [`MOST_GROWTH`] times what went in, beyond the first [`FREE`] bytes.

use std::io::Write;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::{Buf, Bytes};
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use zstd::stream::raw::{DParameter, Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

/// Most bytes that come out at once, but for what a gzip decoder holds beside them.
pub const PIECE: usize = 32 << 10;

/// How much longer than its compressed form a body may be. Streams of tokens reach 40.
pub const MOST_GROWTH: u64 = 250;

/// Bytes that may come out of anything.
pub const FREE: u64 = 1 << 20;

/// Largest window of zstd as a power of two: 8 MiB, as RFC 9659 says for HTTP.
const ZSTD_WINDOW: u32 = 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// A body that is being decoded.
pub struct Decoder {
    coding: Coding,
    name: &'static str,
    work: Work,
    input: Bytes,
    went_in: u64,
    came_out: u64,
    has_begun: bool,
    is_done: bool,
}

enum Work {
    None,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    Zstd(Box<ZstdDecoder<'static>>),
}

impl Decoder {
    /// A decoder for what a response names as its content codings.
    ///
    /// # Errors
    /// The name of what cannot be read, for people.
    pub fn new(codings: &str) -> Result<Self, String> {
        let named = codings.split(',').map(|name| name.trim().to_ascii_lowercase());
        let mut named = named.filter(|name| !name.is_empty() && name != "identity");
        let (first, second) = (named.next(), named.next());
        let coding = match (first.as_deref(), second) {
            (None, _) => Coding::Identity,
            (Some("gzip" | "x-gzip"), None) => Coding::Gzip,
            (Some("deflate"), None) => Coding::Deflate,
            (Some("br"), None) => Coding::Brotli,
            (Some("zstd"), None) => Coding::Zstd,
            _ => {
                let shown: String = codings.chars().filter(|letter| !letter.is_control()).take(40).collect();
                return Err(format!("a body of the content coding {shown:?} (gzip, deflate, br and zstd can be read)"));
            }
        };
        let (work, input) = (Work::None, Bytes::new());
        Ok(Self { coding, name: "", work, input, went_in: 0, came_out: 0, has_begun: false, is_done: false })
    }

    /// Takes the next bytes of the body. The ones before have to be drained by [`Self::decoded`] first.
    pub fn push(&mut self, bytes: Bytes) {
        if !self.has_begun && !bytes.is_empty() {
            self.has_begun = true;
            self.begin(&bytes);
        }
        self.went_in += bytes.len() as u64;
        debug_assert!(self.input.is_empty(), "drained before more is pushed");
        self.input = bytes;
    }

    /// Whether the body has begun, and is not compressed.
    pub fn is_plain(&self) -> bool {
        self.has_begun && matches!(self.work, Work::None)
    }

    /// The next bytes of the content; none until more is pushed.
    ///
    /// # Errors
    /// The body is not what it says it is, or grows beyond measure.
    pub fn decoded(&mut self) -> Result<Option<Bytes>, String> {
        if matches!(self.work, Work::None) {
            let bytes = std::mem::take(&mut self.input);
            return Ok((!bytes.is_empty()).then_some(bytes));
        }
        loop {
            let before = self.input.len();
            let out = self.step().map_err(|()| format!("the {} answer is damaged", self.name))?;
            self.came_out += out.len() as u64;
            if self.came_out > FREE && self.came_out / MOST_GROWTH > self.went_in {
                let grown = self.came_out / self.went_in.max(1);
                return Err(format!("the {} answer grows to {grown} times its size and is given up", self.name));
            }
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
            if self.input.is_empty() || self.input.len() == before {
                // What follows the end of the content, if anything does, is none.
                self.input = Bytes::new();
                return Ok(None);
            }
        }
    }

    /// The end of the body.
    ///
    /// # Errors
    /// It ends within its content.
    pub fn finish(&mut self) -> Result<(), String> {
        let is_whole = match &mut self.work {
            Work::None => true,
            // Checks the sum at the end, too.
            Work::Gzip(gzip) => gzip.try_finish().is_ok(),
            Work::Deflate(zlib) => zlib.try_finish().is_ok(),
            Work::Brotli(_) | Work::Zstd(_) => self.is_done,
        };
        match is_whole {
            true => Ok(()),
            false => Err(format!("the {} answer is cut off", self.name)),
        }
    }

    fn begin(&mut self, bytes: &[u8]) {
        let is_gzip = bytes.starts_with(&[0x1f, 0x8b]) || bytes == [0x1f];
        let is_zstd = bytes.starts_with(&[0x28, 0xb5]) || bytes == [0x28];
        (self.work, self.name) = match self.coding {
            Coding::Gzip | Coding::Identity if is_gzip => {
                (Work::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))), "gzip-compressed")
            }
            Coding::Zstd | Coding::Identity if is_zstd && (self.coding == Coding::Zstd || bytes.len() > 1) => {
                match zstd() {
                    Some(decoder) => (Work::Zstd(Box::new(decoder)), "zstd-compressed"),
                    None => (Work::None, ""),
                }
            }
            // These have no beginning of their own: what looks like an event stream or JSON is one.
            Coding::Deflate if !looks_plain(bytes) => {
                (Work::Deflate(Box::new(ZlibDecoder::new(Vec::new()))), "deflate-compressed")
            }
            Coding::Brotli if !looks_plain(bytes) => {
                let state =
                    BrotliState::new(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default());
                (Work::Brotli(Box::new(state)), "br-compressed")
            }
            _ => (Work::None, ""),
        };
    }

    /// Decodes some of the input.
    fn step(&mut self) -> Result<Vec<u8>, ()> {
        match &mut self.work {
            Work::None => Ok(Vec::new()),
            Work::Gzip(gzip) => {
                let count = gzip.write(&self.input).map_err(drop)?;
                self.input.advance(count);
                if self.input.is_empty() {
                    gzip.flush().map_err(drop)?;
                }
                Ok(std::mem::take(gzip.get_mut()))
            }
            Work::Deflate(zlib) => {
                let count = zlib.write(&self.input).map_err(drop)?;
                self.input.advance(count);
                if self.input.is_empty() {
                    zlib.flush().map_err(drop)?;
                }
                Ok(std::mem::take(zlib.get_mut()))
            }
            Work::Brotli(state) => {
                if self.is_done {
                    return Ok(Vec::new());
                }
                let mut out = vec![0; PIECE];
                let (mut left, mut read, mut room, mut written, mut total) = (self.input.len(), 0, PIECE, 0, 0);
                let result = BrotliDecompressStream(
                    &mut left,
                    &mut read,
                    &self.input,
                    &mut room,
                    &mut written,
                    &mut out,
                    &mut total,
                    state,
                );
                self.input.advance(read);
                self.is_done = matches!(result, BrotliResult::ResultSuccess);
                out.truncate(written);
                match result {
                    BrotliResult::ResultFailure => Err(()),
                    _ => Ok(out),
                }
            }
            Work::Zstd(decoder) => {
                if self.is_done && self.input.is_empty() {
                    return Ok(Vec::new());
                }
                let mut space = vec![0; PIECE];
                let mut from = InBuffer::around(&self.input);
                let mut to = OutBuffer::around(&mut space[..]);
                let hint = decoder.run(&mut from, &mut to).map_err(drop)?;
                let (read, written) = (from.pos(), to.pos());
                // Nothing more is expected at the end of a frame; another one may follow.
                self.is_done = hint == 0;
                self.input.advance(read);
                space.truncate(written);
                Ok(space)
            }
        }
    }
}

fn zstd() -> Option<ZstdDecoder<'static>> {
    let mut decoder = ZstdDecoder::new().ok()?;
    decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW)).ok()?;
    Some(decoder)
}

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
            decoder.push(Bytes::copy_from_slice(piece));
            while let Some(bytes) = decoder.decoded()? {
                content.extend_from_slice(&bytes);
            }
        }
        decoder.finish()?;
        Ok(content)
    }

    const CODINGS: [&str; 5] = ["", "gzip", "deflate", "br", "zstd"];

    #[test]
    fn what_is_not_compressed_after_all_is_taken_as_it_is() {
        for coding in CODINGS {
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
            decoder.push(bomb.clone().into());
            let mut out = 0;
            let error = loop {
                match decoder.decoded() {
                    Ok(Some(bytes)) => {
                        assert!(bytes.len() <= 2 * PIECE, "{coding}: {} at once", bytes.len());
                        out += bytes.len() as u64;
                    }
                    Ok(None) => panic!("{coding}: all of it came out"),
                    Err(error) => break error,
                }
            };
            assert!(error.contains("grows to"), "{error}");
            assert!(out <= FREE.max(bomb.len() as u64 * MOST_GROWTH) + 2 * PIECE as u64, "{coding}: {out}");
        }
    }

    proptest! {
        #[test]
        fn any_content_cut_anywhere_comes_out_whole_and_at_once(
            texts in proptest::collection::vec("[a-c]{1,400}", 1..6),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let content = texts.concat();
            for coding in CODINGS {
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
                decoder.push(std::mem::take(encoder.get_mut()).into());
                let mut out = Vec::new();
                while let Some(bytes) = decoder.decoded().unwrap() {
                    out.extend_from_slice(&bytes);
                }
                prop_assert_eq!(out, text.as_bytes());
            }
        }

        #[test]
        fn no_bytes_panic(index in 0..CODINGS.len(), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(CODINGS[index], &[&bytes]);
        }
    }
}
