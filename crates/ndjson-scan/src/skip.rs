//! Finds the end of a JSON value without looking at its content. Nothing is validated or kept.

use crate::isa::{BLOCK, Isa, Job, portable::Portable};
#[cfg(target_arch = "x86_64")]
use crate::isa::{avx2::Avx2, avx512::Avx512};

/// Most values are shorter: only what is longer is read with the fastest instruction set, since choosing it costs time.
const SHORT: usize = 16 * BLOCK;

/// Progress through one value, which may arrive in pieces of any size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipValue {
    state: SkipState,
    /// Arrays and objects that are open.
    depth: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SkipState {
    /// Before its first byte.
    #[default]
    Begin,
    /// In a number or a literal.
    Scalar,
    /// In an array or an object.
    Nested,
    /// In a string.
    Text,
    /// In a string, after a backslash.
    Escape,
    /// After its last byte.
    Over,
}

impl SkipValue {
    /// Reads on: `bytes` begin with the value, or with the rest of it. Returns how many of them belong to it, once it
    /// has ended. A newline ends every value, since a line cannot contain one.
    pub fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let short = &bytes[..bytes.len().min(SHORT)];
        if let Some(length) = self.read_with(Portable, short) {
            return Some(length);
        }
        if bytes.len() == short.len() {
            return None;
        }
        let rest = ReadOn { value: self, bytes: &bytes[short.len()..] };
        #[cfg(target_arch = "x86_64")]
        let read = match Avx512::detect() {
            Some(isa) => isa.run(rest),
            None => match Avx2::detect() {
                Some(isa) => isa.run(rest),
                None => Portable.run(rest),
            },
        };
        #[cfg(not(target_arch = "x86_64"))]
        let read = Portable.run(rest);
        read.map(|length| short.len() + length)
    }

    /// The same, with this instruction set.
    #[inline(always)]
    fn read_with<I: Isa>(&mut self, isa: I, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if let SkipState::Nested | SkipState::Text = self.state
                && let Some(block) = bytes[at..].first_chunk()
            {
                if let Some(length) = self.read_block(isa, block) {
                    return Some(at + length);
                }
                at += BLOCK;
            } else if self.read_byte(bytes[at]) {
                return Some(at + usize::from(self.owns_last(bytes[at])));
            } else {
                at += 1;
            }
        }
        None
    }

    /// Whether the byte that has ended the value belongs to it.
    fn owns_last(self, byte: u8) -> bool {
        byte != b'\n' && self.state == SkipState::Over
    }

    /// Reads a byte. Returns whether the value has ended, with it or before it.
    fn read_byte(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            return true;
        }
        self.state = match (self.state, byte) {
            (SkipState::Text, b'\\') => SkipState::Escape,
            (SkipState::Text, b'"') => SkipState::Nested,
            (SkipState::Text | SkipState::Escape, _) => SkipState::Text,
            (SkipState::Nested, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                SkipState::Nested
            }
            (SkipState::Begin | SkipState::Nested, b'"') => SkipState::Text,
            (SkipState::Begin | SkipState::Nested, b'{' | b'[') => {
                self.depth += 1;
                SkipState::Nested
            }
            (SkipState::Nested, _) => SkipState::Nested,
            (SkipState::Begin | SkipState::Scalar, b'}' | b']' | b',' | b' ' | b'\t' | b'\r') => return true,
            (SkipState::Begin | SkipState::Scalar, _) => SkipState::Scalar,
            (SkipState::Over, _) => return true,
        };
        if self.state == SkipState::Nested && self.depth == 0 {
            self.state = SkipState::Over;
        }
        self.state == SkipState::Over
    }

    /// Reads a block of an array, an object or a string. Returns how many of its bytes belong to the value, once it has
    /// ended.
    #[inline(always)]
    fn read_block<I: Isa>(&mut self, isa: I, bytes: &[u8; BLOCK]) -> Option<usize> {
        const EVEN: u64 = 0x5555_5555_5555_5555;
        let block = isa.load(bytes);
        let is = |byte| isa.equal(block, byte);
        let (mut quotes, backslashes, newlines) = (is(b'"'), is(b'\\'), is(b'\n'));
        let mut is_escape_left = false;
        if backslashes != 0 {
            // A run that begins at an odd place carries into the even place behind it if its length is odd, and so on.
            let after = backslashes << 1;
            let (sum, carry) = (backslashes & !EVEN & !after).overflowing_add(backslashes);
            quotes &= !((EVEN ^ (sum << 1)) & after);
            is_escape_left = carry;
        }
        let in_text = isa.parity(quotes) ^ if self.state == SkipState::Text { u64::MAX } else { 0 };
        if backslashes & !in_text != 0 {
            // It is not JSON; the byte after it is no escape.
            return bytes
                .iter()
                .position(|byte| self.read_byte(*byte))
                .map(|at| at + usize::from(self.owns_last(bytes[at])));
        }
        let end = match self.depth {
            0 => (quotes != 0).then(|| quotes.trailing_zeros() as usize),
            _ => self.count((is(b'{') | is(b'[')) & !in_text, (is(b'}') | is(b']')) & !in_text),
        };
        let newline = (newlines != 0).then(|| newlines.trailing_zeros() as usize);
        if let Some(end) = end.filter(|end| newline.is_none_or(|newline| *end < newline)) {
            self.state = SkipState::Over;
            return Some(end + 1);
        }
        let is_in_text = in_text >> (BLOCK - 1) != 0;
        self.state = match is_in_text {
            true if is_escape_left => SkipState::Escape,
            true => SkipState::Text,
            false => SkipState::Nested,
        };
        newline
    }

    /// Counts the brackets of a block. Returns where the last open one is closed, if it is.
    #[inline(always)]
    fn count(&mut self, opening: u64, closing: u64) -> Option<usize> {
        let mut closings = closing;
        if self.depth <= closing.count_ones() as usize {
            let mut closed = 0;
            while closings != 0 {
                let at = closings.trailing_zeros();
                closed += 1;
                if self.depth + (opening & ((1 << at) - 1)).count_ones() as usize == closed {
                    return Some(at as usize);
                }
                closings &= closings - 1;
            }
        }
        self.depth = self.depth + opening.count_ones() as usize - closing.count_ones() as usize;
        None
    }
}

/// A long value is read on, with the instructions of an instruction set.
struct ReadOn<'a> {
    value: &'a mut SkipValue,
    bytes: &'a [u8],
}

impl Job for ReadOn<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        self.value.read_with(isa, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_in_the_same_place_however_it_is_cut() {
        let values: [&[u8]; 9] = [
            b"1",
            b"-1.5e3",
            b"null",
            br#""""#,
            br#""a\"}\\""#,
            b"[]",
            br#"{"a":[{"]":"\"}"},2]}"#,
            b"[ 1 , [2] ]",
            b"",
        ];
        for value in values {
            for after in [&b",\"x\":1}"[..], b"}", b" }", b"\n"] {
                let bytes = [value, after].concat();
                for cut in 0..=value.len() {
                    let mut skip = SkipValue::default();
                    let first = skip.read(&bytes[..cut]);
                    let end = first.or_else(|| skip.read(&bytes[cut..]).map(|end| cut + end));
                    assert_eq!(end, Some(value.len()), "{}", bytes.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn a_long_value_ends_in_the_same_place_however_it_is_cut() {
        let (deep, shallow) = ("[".repeat(70) + &"]".repeat(70), "[],{},".repeat(40) + "1");
        let values = [
            format!(r##"{{"a":[{deep},"{}"],"b":{{{{}}}}}}"##, r##"\\\"]}"##.repeat(20)),
            format!("[{shallow}]"),
            format!(r##"["{}",{{}}]"##, r"\n".repeat(100)),
            format!(r##""{}\\""##, r##"\\\""##.repeat(50)),
            format!(r##"["{}\\"]"##, "[".repeat(90)),
            // No JSON, but it ends where the reference scanner will have refused it.
            format!(r##"{{"a":\"}}}},{}"}}"##, "x".repeat(100)),
        ];
        for value in values {
            let bytes = [value.as_bytes(), &b",\"x\":[1,2]}\n"[..], &[b' '; 2 * BLOCK]].concat();
            for cut in 0..=value.len() {
                let mut skip = SkipValue::default();
                let first = skip.read(&bytes[..cut]);
                let end = first.or_else(|| skip.read(&bytes[cut..]).map(|end| cut + end));
                assert_eq!(end, Some(value.len()), "{value}, cut at {cut}");
            }
            let before = [b"[1,".as_slice(), &b"[],\"\\\"\",".repeat(200)].concat();
            let long = [&before[..], value.as_bytes(), b"]", &bytes[value.len()..]].concat();
            let length = before.len() + value.len() + 1;
            let is_json = !value.contains(r##"\"}"##);
            for step in [long.len(), SHORT + BLOCK, 1000, 77].into_iter().filter(|_| is_json) {
                let (mut skip, mut at) = (SkipValue::default(), 0);
                let end = long.chunks(step).find_map(|piece| {
                    at += piece.len();
                    skip.read(piece).map(|end| at - piece.len() + end)
                });
                assert_eq!(end, Some(length), "{value} in a long array, in pieces of {step}");
            }
            #[cfg(target_arch = "x86_64")]
            {
                let ends = [
                    Avx2::detect().map(|isa| isa.run(ReadOn { value: &mut SkipValue::default(), bytes: &bytes })),
                    Avx512::detect().map(|isa| isa.run(ReadOn { value: &mut SkipValue::default(), bytes: &bytes })),
                ];
                assert!(ends.iter().flatten().all(|end| *end == Some(value.len())), "{value}: {ends:?}");
            }
            let mut skip = SkipValue::default();
            let end = bytes
                .iter()
                .position(|byte| skip.read_byte(*byte))
                .map(|at| at + usize::from(skip.owns_last(bytes[at])));
            assert_eq!(end, Some(value.len()), "{value}, byte by byte");
        }
    }

    #[test]
    fn a_newline_ends_what_is_not_closed() {
        for open in [&b"[1,"[..], br#""text"#, br#""text\"#, br#"{"a":"#] {
            assert_eq!(SkipValue::default().read(&[open, b"\n}"].concat()), Some(open.len()));
        }
    }
}
