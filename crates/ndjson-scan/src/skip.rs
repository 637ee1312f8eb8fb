//! Finds the end of a JSON value without looking at its content. Nothing is validated or kept.

use memchr::memchr3;

/// Progress through one value, which may arrive in pieces of any size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipValue {
    state: State,
    /// Arrays and objects that are open.
    depth: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
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
}

/// The bytes that matter in an array or an object.
static STRUCTURAL: [bool; 256] = {
    let mut bytes = [false; 256];
    let mut at = 0;
    while at < b"\"{}[]\n".len() {
        bytes[b"\"{}[]\n"[at] as usize] = true;
        at += 1;
    }
    bytes
};

impl SkipValue {
    /// Reads on: `bytes` begin with the value, or with the rest of it. Returns how many of them belong to it, once it
    /// has ended. A newline ends every value, since a line cannot contain one.
    pub fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Text => at += memchr3(b'"', b'\\', b'\n', &bytes[at..])?,
                State::Nested => at += bytes[at..].iter().position(|byte| STRUCTURAL[usize::from(*byte)])?,
                _ => {}
            }
            let byte = bytes[at];
            if byte == b'\n' {
                return Some(at);
            }
            self.state = match (self.state, byte) {
                (State::Text, b'\\') => State::Escape,
                (State::Text, _) | (State::Nested, b'}' | b']') => {
                    self.depth -= usize::from(self.state == State::Nested);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                    State::Nested
                }
                (State::Escape, _) | (State::Begin | State::Nested, b'"') => State::Text,
                (State::Begin | State::Nested, b'{' | b'[') => {
                    self.depth += 1;
                    State::Nested
                }
                (State::Nested, _) => State::Nested,
                (State::Begin | State::Scalar, b'}' | b']' | b',' | b' ' | b'\t' | b'\r') => return Some(at),
                (State::Begin | State::Scalar, _) => State::Scalar,
            };
            at += 1;
        }
        None
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
    fn a_newline_ends_what_is_not_closed() {
        for open in [&b"[1,"[..], br#""text"#, br#""text\"#, br#"{"a":"#] {
            assert_eq!(SkipValue::default().read(&[open, b"\n}"].concat()), Some(open.len()));
        }
    }
}
