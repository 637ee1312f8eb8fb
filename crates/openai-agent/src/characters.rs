//! Characters out of pieces that may be cut within one: by bytes, or into the halves of a surrogate pair, as
//! JavaScript writes text that it has cut (`"a\ud83c"`, `"\udf89b"`). Pure.
//!
//! The invariant: what comes out depends on the bytes alone, never on where they were cut, and what is no part of a
//! character becomes U+FFFD.

use std::str::from_utf8;

use super::raw::{half, joined};

/// What was cut off at the end of the last piece.
#[derive(Debug, Default)]
pub struct Characters(Vec<u8>);

impl Characters {
    /// Takes the next piece, and calls `sink` with what is whole.
    pub fn push(&mut self, piece: &[u8], sink: &mut impl FnMut(&str)) {
        if self.0.is_empty()
            && let Ok(text) = from_utf8(piece)
        {
            return sink(text);
        }
        self.0.extend_from_slice(piece);
        let (text, taken) = read(&self.0);
        self.0.drain(..taken);
        self.0.shrink_to(64);
        if !text.is_empty() {
            sink(&text);
        }
    }

    /// The end of the text.
    pub fn finish(&mut self, sink: &mut impl FnMut(&str)) {
        if !std::mem::take(&mut self.0).is_empty() {
            sink("\u{fffd}");
        }
    }
}

/// The characters of these bytes, and how many bytes they take: all but what may be the beginning of one.
fn read(bytes: &[u8]) -> (String, usize) {
    let (mut text, mut rest) = (String::with_capacity(bytes.len()), bytes);
    while !rest.is_empty() {
        let error = match from_utf8(rest) {
            Ok(all) => {
                text.push_str(all);
                rest = &[];
                break;
            }
            Err(error) => error,
        };
        let (valid, odd) = rest.split_at(error.valid_up_to());
        text.push_str(from_utf8(valid).unwrap_or_default());
        rest = odd;
        let (character, length) = match (half(odd), odd.get(3..).and_then(half)) {
            (Some(high @ 0xd800..0xdc00), Some(low @ 0xdc00..)) => (joined(high, low), 6),
            (Some(0xd800..0xdc00), None) if matches!(odd[3..], [] | [0xed] | [0xed, 0xb0..0xc0]) => break,
            (Some(_), _) => (None, 3),
            (None, _) if error.error_len().is_none() || matches!(odd, [0xed, 0xa0..0xc0]) => break,
            (None, _) => (None, error.error_len().unwrap_or(1)),
        };
        text.push(character.unwrap_or('\u{fffd}'));
        rest = &odd[length..];
    }
    (text, bytes.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HIGH: &[u8] = b"\xed\xa0\xbc";
    const LOW: &[u8] = b"\xed\xbe\x89";

    fn heard(pieces: &[&[u8]]) -> String {
        let (mut characters, mut text) = (Characters::default(), String::new());
        let mut sink = |piece: &str| text.push_str(piece);
        for piece in pieces {
            characters.push(piece, &mut sink);
        }
        characters.finish(&mut sink);
        text
    }

    #[test]
    fn halves_become_a_character_and_what_stays_alone_is_told() {
        for (bytes, text) in [
            ([b"a", HIGH, LOW, b"b"].concat(), "a\u{1f389}b"),
            ([HIGH, HIGH, LOW, LOW].concat(), "\u{fffd}\u{1f389}\u{fffd}"),
            ([HIGH, b"a", LOW].concat(), "\u{fffd}a\u{fffd}"),
            ([b"a", HIGH].concat(), "a\u{fffd}"),
            ([HIGH, "\u{d55c}".as_bytes()].concat(), "\u{fffd}\u{d55c}"),
            ("é\u{1f389}".as_bytes().to_vec(), "é\u{1f389}"),
            (b"a\xe4\xbd".to_vec(), "a\u{fffd}"),
            (b"a\xe4\xbdb\xff".to_vec(), "a\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(heard(&[&bytes]), text, "{}", bytes.escape_ascii());
            assert_eq!(heard(&bytes.chunks(1).collect::<Vec<_>>()), text, "{} cut", bytes.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn nothing_depends_on_the_cuts(
            pieces in proptest::collection::vec(
                prop_oneof![Just(HIGH.to_vec()), Just(LOW.to_vec()), "\\PC{1,3}".prop_map(String::into_bytes),
                    proptest::collection::vec(any::<u8>(), 1..4)],
                0..8,
            ),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = pieces.concat();
            let (left, right) = bytes.split_at(cut.index(bytes.len() + 1));
            let whole = heard(&[&bytes]);
            prop_assert_eq!(heard(&[left, right]), whole.clone());
            prop_assert_eq!(heard(&bytes.chunks(1).collect::<Vec<_>>()), whole);
        }
    }
}
