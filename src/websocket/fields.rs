//! What requests and answers have in common: where a head ends, and what its fields say (RFC 9110, section 5).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

/// The fields of a head.
pub(super) struct Fields<'h, 'b>(pub &'h [httparse::Header<'b>]);

/// A field that may stand once stands twice.
pub(super) struct Twice;

impl<'b> Fields<'_, 'b> {
    /// The values of a field, one for each line of it.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// The value of a field that may stand once.
    pub(super) fn only(&self, name: &str) -> Result<Option<&'b [u8]>, Twice> {
        let mut values = self.values(name);
        let first = values.next();
        if values.next().is_some() { Err(Twice) } else { Ok(first) }
    }

    /// The elements of a list, which may be written in one line or in several.
    pub(super) fn elements(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        let elements = self.values(name).flat_map(|value| value.split(|byte| *byte == b','));
        elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
    }

    /// Whether a list has this element, in whatever case.
    pub(super) fn has(&self, name: &str, element: &str) -> bool {
        self.elements(name).any(|other| other.eq_ignore_ascii_case(element.as_bytes()))
    }
}

/// How long the head at the front is, if its end is there. Of the bytes before `from` it is known that it is not.
pub(super) fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).find_map(|newline| match &bytes[from + newline + 1..] {
        [b'\n', ..] => Some(from + newline + 2),
        [b'\r', b'\n', ..] => Some(from + newline + 3),
        _ => None,
    })
}

/// A value without what would hide in a log or on a terminal, and no longer than 255 characters.
pub(super) fn printable(text: &[u8]) -> String {
    let visible = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    String::from_utf8_lossy(text).chars().take(255).map(visible).collect()
}

/// Whether it can be sent within one word of a head.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What `Sec-WebSocket-Accept` says to a key (RFC 6455, section 4.2.2).
pub(super) fn accept(key: &[u8]) -> String {
    let mut sha1 = Sha1::new();
    sha1.update(key);
    sha1.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(sha1.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_the_key_of_the_rfc_is_the_one_that_stands_there() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_head_ends_with_an_empty_line_wherever_the_search_for_it_goes_on() {
        for (bytes, end) in [(&b"a\r\n\r\nrest\r\n\r\n"[..], 5), (b"a\n\nb", 3), (b"a\r\nb\r\n\r\n", 8)] {
            assert_eq!(end_of_head(bytes, 0), Some(end));
            for cut in 0..end {
                assert_eq!(end_of_head(&bytes[..cut], 0), None);
                assert_eq!(end_of_head(bytes, cut.saturating_sub(2)), Some(end), "cut at {cut}");
            }
        }
    }
}
