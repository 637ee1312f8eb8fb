//! Raw JSON strings: decodes their escapes. Their text is not validated, since the scanner did that; but any bytes may be
//! asked for.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::SkipValue;

/// The text between the quotes of a string token; none if the token has none.
#[inline]
fn text_of(token: &[u8]) -> Option<&[u8]> {
    token.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// The decoded bytes of the text of a string token; none if it has an escape that JSON does not have.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut out) = (text, Vec::with_capacity(text.len()));
    // Escapes often follow each other.
    while let Some(backslash) = if rest.starts_with(b"\\") { Some(0) } else { memchr::memchr(b'\\', rest) } {
        out.extend_from_slice(&rest[..backslash]);
        let letter = *rest.get(backslash + 1)?;
        rest = &rest[backslash + 2..];
        if letter == b'u' {
            let mut code = hex(rest)?;
            rest = &rest[4..];
            let low = rest.strip_prefix(b"\\u").and_then(hex).unwrap_or(0);
            if (0xD800..0xDC00).contains(&code) && (0xDC00..0xE000).contains(&low) {
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                rest = &rest[6..];
            }
            encode(code, &mut out);
        } else if matches!(letter, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') {
            out.push(plain(letter));
        } else {
            return None;
        }
    }
    out.extend_from_slice(rest);
    Some(out)
}

/// The decoded bytes of `token`, usually borrowed from it; `None` if it is no string: a number, say, or one that is cut
/// off. A lone surrogate escape, which JSON allows and UTF-8 does not, becomes its three bytes in WTF-8.
///
/// Beyond its quotes and escapes the token is not validated, since the scanner did that.
///
/// ```
/// use ndjson_scan::decoded;
///
/// assert_eq!(decoded(br#""caf\u00e9""#).as_deref(), Some("café".as_bytes()));
/// assert_eq!(decoded(b"7"), None);
/// ```
pub fn decoded(token: &[u8]) -> Option<Cow<'_, [u8]>> {
    let text = text_of(token)?;
    match memchr::memchr(b'\\', text) {
        None => Some(Cow::Borrowed(text)),
        Some(_) => decode(text).map(Cow::Owned),
    }
}

/// The byte order mark that some programs write ahead of UTF-8, though they should not (RFC 8259, section 8.1). The
/// scanner refuses it.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Whether `token` is a string whose decoded bytes are `text`. A token that is too long for that is not decoded.
pub fn is_decoded(token: &[u8], text: &[u8]) -> bool {
    // The longest escape of a byte has six.
    (text.len() + 2..=6 * text.len() + 2).contains(&token.len())
        && decoded(token).is_some_and(|decoded| *decoded == *text)
}

/// Makes a blank of each carriage return: between the tokens of a line both mean the same.
pub fn blank_returns(bytes: &mut [u8]) {
    // Without a branch, so that it takes many at a time.
    bytes.iter_mut().for_each(|byte| *byte = if *byte == b'\r' { b' ' } else { *byte });
}

/// The length of the valid string at the start of `bytes`; that of all bytes if it has no end.
pub(super) fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    // One with many escapes is read in blocks.
    for _ in 0..8 {
        let Some(rest) = bytes.get(at..) else { return bytes.len() };
        match memchr::memchr2(b'"', b'\\', rest) {
            Some(found) if rest[found] == b'"' => return at + found + 1,
            Some(found) => at += found + 2,
            None => return bytes.len(),
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

/// The value of the four hex digits at the start of `bytes`, if they are there.
fn hex(bytes: &[u8]) -> Option<u32> {
    bytes.get(..4)?.iter().try_fold(0, |value, &digit| Some(value << 4 | (digit as char).to_digit(16)?))
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
    use super::is_decoded;

    fn decoded(token: &str) -> Vec<u8> {
        super::decoded(token.as_bytes()).expect("a string").into_owned()
    }

    #[test]
    fn what_is_no_string_or_only_a_part_of_one_is_not_decoded() {
        let others = [
            "",
            "\"",
            "7",
            "-0.5e+7",
            "true",
            "null",
            "{}",
            "[\"a\"]",
            "\"a",
            "a\"",
            "a",
            r#""\""#,
            r#""a\u""#,
            r#""\u12""#,
            r#""\u12g4""#,
            r#""\ud83d\""#,
            r#""\x""#,
            r#""\\\""#,
        ];
        for token in others {
            assert_eq!(super::decoded(token.as_bytes()), None, "{token}");
            assert!(!is_decoded(token.as_bytes(), b"") && !is_decoded(token.as_bytes(), b"a"), "{token}");
        }
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
