//! Encodes frames: the bytes that precede a payload, or a whole control frame. A message is one frame, or several
//! fragments if its length is unknown when its beginning is sent.
//!
//! A client masks each frame with a new unpredictable key; a server does not mask.

use std::ops::Deref;

use super::header::{Header, LONGEST, LONGEST_CONTROL, Opcode};
use super::mask::Mask;

/// Maximum length of a close reason in bytes.
pub const LONGEST_REASON: usize = LONGEST_CONTROL - 2;

/// An encoded frame header.
#[derive(Clone, Copy)]
pub struct FrameHeader {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Deref for FrameHeader {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The header of a text message of `length` bytes, which follow it: 2, 4 or 10 bytes, and 4 more with a mask. A masked
/// payload then needs [`Mask::apply`].
#[inline]
pub fn text(length: usize, mask: Option<Mask>) -> FrameHeader {
    head(Opcode::Text, true, length, mask)
}

/// The header of a fragment of a text message: the first, the last, or one in between. Otherwise like [`text`].
#[inline]
pub fn fragment(length: usize, is_first: bool, is_last: bool, mask: Option<Mask>) -> FrameHeader {
    head(if is_first { Opcode::Text } else { Opcode::Continuation }, is_last, length, mask)
}

#[inline]
fn head(opcode: Opcode, is_final: bool, length: usize, mask: Option<Mask>) -> FrameHeader {
    let mut bytes = [0; LONGEST];
    let length = Header { opcode, is_final, length: length as u64, mask }.write(&mut bytes);
    FrameHeader { bytes, length }
}

/// A whole encoded control frame.
#[derive(Clone, Copy)]
pub struct Control {
    bytes: [u8; LONGEST + LONGEST_CONTROL],
    length: usize,
}

impl Deref for Control {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A ping that carries `payload`.
///
/// # Panics
/// If it has more than 125 bytes.
pub fn ping(payload: &[u8], mask: Option<Mask>) -> Control {
    control(Opcode::Ping, &[payload], mask)
}

/// The answer to a ping, which echoes its payload.
///
/// # Panics
/// If it has more than 125 bytes, which a ping cannot have.
pub fn pong(payload: &[u8], mask: Option<Mask>) -> Control {
    control(Opcode::Pong, &[payload], mask)
}

/// A close frame with a code and as much of the reason as fits: 123 bytes, cut between two characters. Without a code
/// it has no payload, as the answer to a close frame without one.
///
/// # Panics
/// If this code must not be sent: see [`super::close::may_be_sent`].
pub fn close(code: Option<u16>, reason: &str, mask: Option<Mask>) -> Control {
    let Some(code) = code else { return control(Opcode::Close, &[], mask) };
    assert!(super::close::may_be_sent(code), "{code} does not stand in a frame");
    let fits = (0..=reason.len().min(LONGEST_REASON)).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
    control(Opcode::Close, &[&code.to_be_bytes(), &reason.as_bytes()[..fits]], mask)
}

fn control(opcode: Opcode, parts: &[&[u8]], mask: Option<Mask>) -> Control {
    let payload: usize = parts.iter().map(|part| part.len()).sum();
    assert!(payload <= LONGEST_CONTROL, "a control frame has 125 bytes at most");
    let head = head(opcode, true, payload, mask);
    let mut control = Control { bytes: [0; LONGEST + LONGEST_CONTROL], length: 0 };
    for part in [&*head].iter().chain(parts) {
        control.bytes[control.length..][..part.len()].copy_from_slice(part);
        control.length += part.len();
    }
    mask.unwrap_or(Mask::NONE).apply(&mut control.bytes[head.len()..control.length]);
    control
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: Option<Mask> = Some(Mask::new([0x37, 0xFA, 0x21, 0x3D]));

    #[test]
    fn the_rfc_examples_are_encoded_as_in_the_rfc() {
        // Section 5.7.
        assert_eq!(*text(5, None), [0x81, 0x05]);
        let mut hello = *b"Hello";
        MASK.unwrap().apply(&mut hello);
        assert_eq!([&text(5, MASK)[..], &hello].concat(), *b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
        assert_eq!([&fragment(3, true, false, None)[..], b"Hel"].concat(), *b"\x01\x03Hel");
        assert_eq!([&fragment(2, false, true, None)[..], b"lo"].concat(), *b"\x80\x02lo");
        assert_eq!(*fragment(0, false, false, None), [0, 0]);
        assert_eq!(*fragment(5, true, true, None), *text(5, None));
        assert_eq!(*ping(b"Hello", None), *b"\x89\x05Hello");
        assert_eq!(*pong(b"Hello", MASK), *b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
        assert_eq!(*text(256, None), [0x81, 0x7E, 0x01, 0x00]);
        assert_eq!(*text(65_536, None), [0x81, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_head_has_2_or_4_or_10_bytes_and_4_more_with_a_mask() {
        let lengths = [0, 125, 126, 65_535, 65_536, 1 << 40].map(|length| text(length, None).len());
        assert_eq!(lengths, [2, 2, 4, 4, 10, 10]);
        let lengths = [0, 125, 126, 65_535, 65_536, 1 << 40].map(|length| text(length, MASK).len());
        assert_eq!(lengths, [6, 6, 8, 8, 14, 14]);
    }

    #[test]
    fn a_close_has_its_code_and_as_much_of_its_reason_as_fits() {
        assert_eq!(*close(None, "not said", None), [0x88, 0]);
        assert_eq!(*close(Some(1001), "", None), [0x88, 2, 0x03, 0xE9]);
        assert_eq!(*close(Some(1009), "long", None), *b"\x88\x06\x03\xf1long");
        let reasons = ["x".repeat(123), "x".repeat(124), "é".repeat(62), format!("{}😀", "x".repeat(122))];
        for (reason, fits) in reasons.iter().zip([123, 123, 122, 122]) {
            let frame = close(Some(1000), reason, None);
            assert_eq!((frame[1] as usize, &frame[4..]), (2 + fits, &reason.as_bytes()[..fits]));
        }
        assert_eq!(close(Some(4999), &"x".repeat(200), MASK).len(), 6 + 125);
    }

    #[test]
    #[should_panic(expected = "1005 does not stand in a frame")]
    fn a_reserved_code_is_not_sent() {
        close(Some(1005), "", None);
    }
}
