//! The frame header (RFC 6455, section 5.2): parsing and writing.

use super::Role;
use super::close::Violation;
use super::mask::Mask;

/// Maximum length of a header in bytes: two, eight of a length, four of a mask.
pub(super) const LONGEST: usize = 14;
/// Maximum length of a control frame's payload in bytes.
pub(super) const LONGEST_CONTROL: usize = 125;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
/// Length values that say where the real length is.
const IN_TWO_BYTES: u8 = 126;
const IN_EIGHT_BYTES: u8 = 127;

/// A frame's opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn read(first: u8) -> Result<Self, Violation> {
        Ok(match first & 0x0F {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return Err(Violation::protocol("a frame has an opcode that means nothing")),
        })
    }

    fn is_control(self) -> bool {
        self as u8 >= Self::Close as u8
    }
}

/// A parsed frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub opcode: Opcode,
    /// It is the last frame of its message.
    pub is_final: bool,
    /// Length of the payload.
    pub length: u64,
    pub mask: Option<Mask>,
}

impl Header {
    /// Parses the header at the front of the other end's bytes, and returns it with its length. None if it is
    /// incomplete.
    ///
    /// # Errors
    /// The header is invalid; reported as early as possible.
    #[inline]
    pub(super) fn read(bytes: &[u8], role: Role) -> Result<Option<(Self, usize)>, Violation> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        if first & RESERVED != 0 {
            return Err(Violation::protocol("a frame has reserved bits, and no extension was agreed on"));
        }
        let (opcode, is_final) = (Opcode::read(first)?, first & FINAL != 0);
        if opcode.is_control() && !is_final {
            return Err(Violation::protocol("a control frame is a fragment"));
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        let is_masked = second & MASKED != 0;
        match (role, is_masked) {
            (Role::Server, false) => return Err(Violation::protocol("a client's frame has no mask")),
            (Role::Client, true) => return Err(Violation::protocol("a server's frame has a mask")),
            _ => {}
        }
        let short = second & !MASKED;
        if opcode.is_control() && usize::from(short) > LONGEST_CONTROL {
            return Err(Violation::protocol("a control frame is longer than 125 bytes"));
        }
        let rest = &bytes[2..];
        let (length, width) = match short {
            IN_TWO_BYTES => match rest.first_chunk() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 2),
                None => return Ok(None),
            },
            IN_EIGHT_BYTES => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 8),
                None => return Ok(None),
            },
            short => (u64::from(short), 0),
        };
        if width == 2 && length < u64::from(IN_TWO_BYTES) || width == 8 && length <= u64::from(u16::MAX) {
            return Err(Violation::protocol("the length of a frame is written longer than it needs to be"));
        }
        if length > i64::MAX as u64 {
            return Err(Violation::protocol("the length of a frame has its upper bit set"));
        }
        let mask = match (is_masked, rest[width..].first_chunk()) {
            (false, _) => None,
            (true, Some(key)) => Some(Mask::new(*key)),
            (true, None) => return Ok(None),
        };
        let size = 2 + width + if is_masked { 4 } else { 0 };
        Ok(Some((Self { opcode, is_final, length, mask }, size)))
    }

    /// Writes it to the front of `bytes`, and returns its length.
    #[inline]
    pub(super) fn write(self, bytes: &mut [u8; LONGEST]) -> usize {
        let masked = if self.mask.is_some() { MASKED } else { 0 };
        bytes[0] = self.opcode as u8 | if self.is_final { FINAL } else { 0 };
        let mut size = match self.length {
            0..126 => {
                bytes[1] = masked | self.length as u8;
                2
            }
            126..=0xFFFF => {
                bytes[1] = masked | IN_TWO_BYTES;
                bytes[2..4].copy_from_slice(&(self.length as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = masked | IN_EIGHT_BYTES;
                bytes[2..10].copy_from_slice(&self.length.to_be_bytes());
                10
            }
        };
        if let Some(mask) = self.mask {
            bytes[size..size + 4].copy_from_slice(&mask.bytes());
            size += 4;
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_once_its_last_byte_is_there() {
        let lengths = [0, 1, 125, 126, 127, 128, 65_535, 65_536, 1 << 32, i64::MAX as u64];
        for (length, size) in lengths.into_iter().zip([2, 2, 2, 4, 4, 4, 4, 10, 10, 10]) {
            for (mask, role) in [(None, Role::Client), (Some(Mask::new([1, 2, 3, 4])), Role::Server)] {
                for opcode in [Opcode::Continuation, Opcode::Text, Opcode::Binary] {
                    for is_final in [false, true] {
                        let header = Header { opcode, is_final, length, mask };
                        let mut bytes = [0xEE; LONGEST];
                        let written = header.write(&mut bytes);
                        assert_eq!(written, size + mask.map_or(0, |_| 4), "{header:?}");
                        for end in 0..written {
                            assert_eq!(Header::read(&bytes[..end], role), Ok(None), "{header:?} cut at {end}");
                        }
                        assert_eq!(Header::read(&bytes, role), Ok(Some((header, written))));
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_is_refused_at_the_byte_that_is_wrong() {
        let wrong: [(&[u8], Role, &str); 22] = [
            (&[0x91], Role::Server, "reserved"),
            (&[0xA1], Role::Server, "reserved"),
            (&[0xC1], Role::Server, "reserved"),
            (&[0xF9], Role::Server, "reserved"),
            (&[0x83], Role::Server, "opcode"),
            (&[0x07], Role::Server, "opcode"),
            (&[0x8B], Role::Server, "opcode"),
            (&[0x8F], Role::Client, "opcode"),
            (&[0x08], Role::Server, "fragment"),
            (&[0x09], Role::Client, "fragment"),
            (&[0x0A], Role::Server, "fragment"),
            (&[0x81, 0x01], Role::Server, "no mask"),
            (&[0x81, 0x7F], Role::Server, "no mask"),
            (&[0x81, 0x81], Role::Client, "a mask"),
            (&[0x88, 0xFE], Role::Server, "125"),
            (&[0x89, 0xFF], Role::Server, "125"),
            (&[0x8A, 0x7E], Role::Client, "125"),
            (&[0x81, 0xFE, 0, 125], Role::Server, "longer than it needs"),
            (&[0x81, 0x7E, 0, 0], Role::Client, "longer than it needs"),
            (&[0x82, 0xFF, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], Role::Server, "longer than it needs"),
            (&[0x81, 0x7F, 0x80, 0, 0, 0, 0, 0, 0, 0], Role::Client, "upper bit"),
            (&[0x81, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF], Role::Server, "upper bit"),
        ];
        for (bytes, role, reason) in wrong {
            for end in 0..bytes.len() {
                assert_eq!(Header::read(&bytes[..end], role), Ok(None), "{bytes:x?} cut at {end}");
            }
            for rest in [&[][..], &[0; 12], &[0xFF; 12]] {
                let fault = Header::read(&[bytes, rest].concat(), role).unwrap_err();
                assert_eq!(fault.code, 1002);
                assert!(fault.reason.contains(reason), "{bytes:x?}: {fault:?}");
            }
        }
    }
}
