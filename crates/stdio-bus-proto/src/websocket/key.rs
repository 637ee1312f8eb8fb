//! The handshake key and the answer to it (RFC 6455, sections 4.1 and 4.2.2).

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha1::{Digest, Sha1};

/// Its last four bits are unused, and some clients do not clear them.
const KEYS: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// A request's key: 16 bytes in base64, verbatim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeKey<'b>(&'b [u8]);

impl<'b> HandshakeKey<'b> {
    /// The key with this encoding, if it is valid.
    pub(super) fn new(written: &'b [u8]) -> Option<Self> {
        (KEYS.decode_slice(written, &mut [0; 18]) == Ok(16)).then_some(Self(written))
    }

    /// The value of `Sec-WebSocket-Accept` for this key.
    pub(super) fn accept(self) -> String {
        accept(self.0)
    }
}

/// Encodes a client's key.
pub(super) fn written(key: [u8; 16]) -> String {
    STANDARD.encode(key)
}

/// The answer to an encoded key.
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
    fn the_rfc_key_gets_the_rfc_answer() {
        let key = HandshakeKey::new(b"dGhlIHNhbXBsZSBub25jZQ==").expect("it has 16 bytes");
        assert_eq!(key.accept(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
