//! The key of a handshake, and what answers it (RFC 6455, sections 4.1 and 4.2.2).

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha1::{Digest, Sha1};

/// Four of its last bits mean nothing, and not everybody leaves them out.
const KEYS: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// The key of a request: 16 bytes in base64, as they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'b>(&'b [u8]);

impl<'b> Key<'b> {
    /// The key that is written so, if it is one.
    pub(super) fn new(written: &'b [u8]) -> Option<Self> {
        (KEYS.decode_slice(written, &mut [0; 18]) == Ok(16)).then_some(Self(written))
    }

    /// What `Sec-WebSocket-Accept` says to it.
    pub(super) fn accept(self) -> String {
        accept(self.0)
    }
}

/// What a client sends as its key.
pub(super) fn written(key: [u8; 16]) -> String {
    STANDARD.encode(key)
}

/// What answers a key that is written so.
pub(super) fn accept(written: &[u8]) -> String {
    let mut sha1 = Sha1::new();
    sha1.update(written);
    sha1.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(sha1.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_the_key_of_the_rfc_is_the_one_that_stands_there() {
        let key = Key::new(b"dGhlIHNhbXBsZSBub25jZQ==").expect("it has 16 bytes");
        assert_eq!(key.accept(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
