//! Compressed answers: asked for by nobody, sent by some servers and proxies all the same. Of what they use gzip is read;
//! everything else is named and refused. Pure.
//!
//! What can be decoded of the bytes that have come comes out at once, so that streams stay streams. A body that does not
//! begin as gzip does is taken as it is, and one that does is decoded although nobody says so: no event stream and no
//! JSON begins that way. The invariant: what comes out is at most `MOST_GROWTH` times what went in, beyond the first
//! `FREE` bytes.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;

/// How much longer than its compressed form a body may be. Streams of tokens reach 40.
const MOST_GROWTH: usize = 250;

/// Bytes that may come out of anything.
const FREE: usize = 1 << 20;

/// What was decoded and nobody has taken; how much that may be in all, and was.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    most: usize,
    came_out: usize,
}

impl Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.came_out += bytes.len();
        if self.came_out > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body that is being decoded.
#[derive(Default)]
pub struct Decoder {
    gzip: Option<Box<MultiGzDecoder<Content>>>,
    went_in: usize,
    has_begun: bool,
}

impl Decoder {
    /// A decoder for what a response names as its content codings.
    ///
    /// # Errors
    /// The name of what cannot be read, for people.
    pub fn new(codings: &str) -> Result<Self, String> {
        let is_known =
            |name: &str| ["", "identity", "gzip", "x-gzip"].contains(&name.trim().to_ascii_lowercase().as_str());
        if codings.split(',').all(is_known) {
            return Ok(Self::default());
        }
        let shown: String = codings.chars().filter(|letter| !letter.is_control()).take(40).collect();
        Err(format!("a body of the content coding {shown:?} (only gzip can be read)"))
    }

    /// The content of the next bytes of the body.
    ///
    /// # Errors
    /// The body is not what it says it is, or grows beyond measure.
    pub fn decode(&mut self, bytes: Bytes) -> Result<Bytes, String> {
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_begun, true) {
            let is_gzip = bytes.starts_with(&[0x1f, 0x8b]) || bytes == [0x1f][..];
            self.gzip = is_gzip.then(|| Box::new(MultiGzDecoder::new(Content::default())));
        }
        let Some(gzip) = &mut self.gzip else { return Ok(bytes) };
        self.went_in += bytes.len();
        gzip.get_mut().most = FREE.max(self.went_in * MOST_GROWTH);
        let outcome = gzip.write_all(&bytes).and_then(|()| gzip.flush());
        let content = gzip.get_mut();
        if content.came_out > content.most {
            let grown = content.came_out / self.went_in;
            return Err(format!("the gzip-compressed answer grows to {grown} times its size and is given up"));
        }
        outcome.map_err(|_| "the gzip-compressed answer is damaged".to_owned())?;
        Ok(std::mem::take(&mut content.bytes).into())
    }

    /// The end of the body.
    ///
    /// # Errors
    /// It ends within its content.
    pub fn finish(&mut self) -> Result<(), String> {
        // Checks the sum at the end, too.
        let ended = self.gzip.as_mut().map_or(Ok(()), |gzip| gzip.try_finish());
        ended.map_err(|_| "the gzip-compressed answer is cut off".to_owned())
    }
}

#[cfg(test)]
mod tests {
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
            content.extend_from_slice(&decoder.decode(Bytes::copy_from_slice(piece))?);
        }
        decoder.finish()?;
        Ok(content)
    }

    const CODINGS: [&str; 4] = ["", "gzip", "identity", "identity, X-GZIP"];

    #[test]
    fn what_is_not_compressed_after_all_is_taken_as_it_is() {
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
    fn damage_and_cuts_are_told() {
        let mut whole = gzip(&b"some content, some content, some more of it".repeat(20));
        let error = decode("gzip", &[&whole[..whole.len() - 3]]).unwrap_err();
        assert!(error.ends_with("is cut off"), "{error}");
        for byte in &mut whole[12..20] {
            *byte ^= 0xff;
        }
        assert!(decode("gzip", &[&whole]).is_err());
    }

    #[test]
    fn a_bomb_is_given_up_after_a_bounded_amount() {
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
        assert!(error.contains("grows to"), "{error}");
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
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode("gzip", &[b"\x1f\x8b", &bytes]);
        }
    }
}
