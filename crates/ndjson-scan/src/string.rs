//! Raw JSON strings: decodes their escapes. It never validates; the scanner did.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::SkipValue;

/// Appends the decoded bytes of `token`, a valid string token with its quotes, to `out`. A lone surrogate escape, which
/// JSON allows and UTF-8 does not, becomes its three bytes in WTF-8.
pub fn decode(token: &[u8], out: &mut Vec<u8>) {
    debug_assert!(token.len() >= 2 && token[0] == b'"' && token[token.len() - 1] == b'"');
    let mut rest = &token[1..token.len() - 1];
    out.reserve(rest.len());
    // Escapes often follow each other.
    while let Some(backslash) = if rest.starts_with(b"\\") { Some(0) } else { memchr::memchr(b'\\', rest) } {
        out.extend_from_slice(&rest[..backslash]);
        let letter = rest[backslash + 1];
        rest = &rest[backslash + 2..];
        if letter == b'u' {
            let mut code = hex(rest);
            rest = &rest[4..];
            let low = if rest.starts_with(b"\\u") { hex(&rest[2..]) } else { 0 };
            if (0xD800..0xDC00).contains(&code) && (0xDC00..0xE000).contains(&low) {
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                rest = &rest[6..];
            }
            encode(code, out);
        } else {
            out.push(plain(letter));
        }
    }
    out.extend_from_slice(rest);
}

/// The decoded bytes of `token`, usually borrowed from it.
pub fn decoded(token: &[u8]) -> Cow<'_, [u8]> {
    let plain = &token[1..token.len() - 1];
    if memchr::memchr(b'\\', plain).is_none() {
        return Cow::Borrowed(plain);
    }
    let mut bytes = Vec::new();
    decode(token, &mut bytes);
    Cow::Owned(bytes)
}

/// The byte order mark that some programs write ahead of UTF-8, though they should not (RFC 8259, section 8.1). The
/// scanner refuses it.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Whether the decoded bytes of `token` are `text`. A token that is too long for that is not decoded.
pub fn is_decoded(token: &[u8], text: &[u8]) -> bool {
    // The longest escape of a byte has six.
    (text.len() + 2..=6 * text.len() + 2).contains(&token.len()) && *decoded(token) == *text
}

/// Makes a blank of each carriage return: between the tokens of a line both mean the same.
pub fn blank_returns(bytes: &mut [u8]) {
    // Without a branch, so that it takes many at a time.
    bytes.iter_mut().for_each(|byte| *byte = if *byte == b'\r' { b' ' } else { *byte });
}

/// The length of the valid string at the start of `bytes`.
pub(super) fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    // One with many escapes is read in blocks.
    for _ in 0..8 {
        match memchr::memchr2(b'"', b'\\', &bytes[at..]) {
            Some(found) if bytes[at + found] == b'"' => return at + found + 1,
            Some(found) => at += found + 2,
            None => unreachable!("a valid string has an end"),
        }
    }
    SkipValue::default().read(bytes).unwrap_or(bytes.len())
}

/// The byte that `\` and this letter encode.
pub(super) fn plain(letter: u8) -> u8 {
    match letter {
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        same => same,
    }
}

/// The value of the four hex digits at the start of `bytes`.
fn hex(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |value, &digit| value << 4 | (digit as char).to_digit(16).unwrap_or(0))
}

/// UTF-8 by its bit pattern, surrogates included.
fn encode(code: u32, out: &mut Vec<u8>) {
    let tail = |shift: u32| 0x80 | (code >> shift & 0x3F) as u8;
    match code {
        0..0x80 => out.push(code as u8),
        0x80..0x800 => out.extend([0xC0 | (code >> 6) as u8, tail(0)]),
        0x800..0x10000 => out.extend([0xE0 | (code >> 12) as u8, tail(6), tail(0)]),
        _ => out.extend([0xF0 | (code >> 18) as u8, tail(12), tail(6), tail(0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::decode;

    fn decoded(token: &str) -> Vec<u8> {
        let mut out = Vec::new();
        decode(token.as_bytes(), &mut out);
        out
    }

    #[test]
    fn escapes_stand_for_their_bytes() {
        assert_eq!(decoded(r#""""#), b"");
        assert_eq!(decoded(r#""a\"\\\/\b\f\n\r\tz""#), b"a\"\\/\x08\x0c\n\r\tz");
        assert_eq!(decoded(r#""\u0069\u00e9\u4e2d""#), "ié中".as_bytes());
        assert_eq!(decoded(r#""é\u0000""#), "é\0".as_bytes());
    }

    #[test]
    fn surrogate_escapes_pair_up_or_stay_alone() {
        assert_eq!(decoded(r#""\ud83d\ude00""#), "😀".as_bytes());
        assert_eq!(decoded(r#""\uD83D""#), [0xED, 0xA0, 0xBD]);
        assert_eq!(decoded(r#""\ude00\ud83d""#), [0xED, 0xB8, 0x80, 0xED, 0xA0, 0xBD]);
        assert_eq!(decoded(r#""\ud83d\ud83d\ude00""#), [&[0xED, 0xA0, 0xBD][..], "😀".as_bytes()].concat());
        assert_eq!(decoded(r#""\ud83d\n""#), [0xED, 0xA0, 0xBD, b'\n']);
    }
}
