//! JSON as servers write it, made JSON as parsers read it: the second reading of a text that the first one refused.
//! Pure.
//!
//! | what servers write | becomes |
//! |---|---|
//! | bytes that are no UTF-8 | U+FFFD |
//! | half a surrogate pair (`"\ud83d"`) | U+FFFD |
//! | control characters within a string | their escape |
//! | an escape that JSON does not know (`\'`, `\x41`) | the characters as they stand |
//! | `NaN`, `Infinity`, `None`, numbers that no float holds | `null` |
//! | `True`, `False` | `true`, `false` |
//! | a comma before a closing bracket | nothing |
//!
//! Whatever else is wrong stays wrong, for the reader to refuse. The invariant: a text that is JSON keeps its meaning.

/// Longest run of digits that needs no second look.
const SHORT: usize = 15;

/// The text with what the table names put right.
pub fn mend(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let mut out = Vec::with_capacity(text.len() + 16);
    let mut rest = text.as_bytes();
    // Where the last byte stands in `out` that is no white space: a comma there may be one too many.
    let mut last = None;
    while let Some(byte) = rest.first() {
        let taken = match byte {
            b'"' => mend_string(rest, &mut out),
            b' ' | b'\t' | b'\n' | b'\r' => {
                out.push(*byte);
                rest = &rest[1..];
                continue;
            }
            b'}' | b']' => {
                if let Some(comma) = last.filter(|at| out[*at] == b',') {
                    out.truncate(comma);
                }
                out.push(*byte);
                1
            }
            b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-._".contains(byte);
                let length = rest.iter().take_while(is_part).count();
                mend_word(&rest[..length], &mut out);
                length
            }
            _ => {
                out.push(*byte);
                1
            }
        };
        last = out.len().checked_sub(1);
        rest = &rest[taken..];
    }
    out
}

/// A number or a word outside strings.
fn mend_word(word: &[u8], out: &mut Vec<u8>) {
    let is_number = word.iter().any(u8::is_ascii_digit);
    let becomes = match word {
        b"True" => b"true",
        b"False" => &b"false"[..],
        b"None" | b"NaN" | b"nan" | b"Infinity" | b"-Infinity" | b"inf" | b"-inf" | b"-NaN" | b"undefined" => b"null",
        _ if is_number && word.len() > SHORT && !is_held(word) => b"null",
        _ if is_number && word.iter().any(|byte| b"eE".contains(byte)) && !is_held(word) => b"null",
        _ => word,
    };
    out.extend_from_slice(becomes);
}

/// Whether a number is one that a 64-bit integer or a float holds.
fn is_held(number: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(number) else { return false };
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return text.parse::<u64>().is_ok() || text.parse::<i64>().is_ok();
    }
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// A string that begins with `text`; how many bytes of it were taken.
fn mend_string(text: &[u8], out: &mut Vec<u8>) -> usize {
    out.push(b'"');
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                out.push(b'"');
                return at + 1;
            }
            b'\\' => at += mend_escape(&text[at..], out),
            0..0x20 => {
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                at += 1;
            }
            _ => {
                let plain = text[at..].iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)).count();
                out.extend_from_slice(&text[at..at + plain]);
                at += plain;
            }
        }
    }
    at
}

/// An escape that begins with `text`; how many bytes of it were taken.
fn mend_escape(text: &[u8], out: &mut Vec<u8>) -> usize {
    match text.get(1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
            out.extend_from_slice(&text[..2]);
            2
        }
        Some(b'u') => match unit(text) {
            Some(0xd800..0xdc00) if matches!(text.get(6..).and_then(unit), Some(0xdc00..0xe000)) => {
                out.extend_from_slice(&text[..12]);
                12
            }
            Some(0xd800..0xe000) => {
                out.extend_from_slice("\u{fffd}".as_bytes());
                6
            }
            Some(_) => {
                out.extend_from_slice(&text[..6]);
                6
            }
            None => {
                out.extend_from_slice(b"\\\\");
                1
            }
        },
        // A quotation mark needs no escape in JSON, but Python and JavaScript write one.
        Some(b'\'') => {
            out.push(b'\'');
            2
        }
        // The end of the text is no string anyway.
        None => 1,
        Some(_) => {
            out.extend_from_slice(b"\\\\");
            1
        }
    }
}

/// The code unit of an escape `\uXXXX` at the beginning of `text`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Reader;
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    fn mended(text: &[u8]) -> Json {
        let out = mend(text);
        serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", out.escape_ascii()))
    }

    #[test]
    fn what_the_table_names_is_put_right() {
        for (text, expected) in [
            (&br#"{"a":"x\ud83dy"}"#[..], json!({"a": "x\u{fffd}y"})),
            (br#"{"a":"\ude00\ud83d\ude00"}"#, json!({"a": "\u{fffd}\u{1f600}"})),
            (br#"{"a":"\ud83d\u0041"}"#, json!({"a": "\u{fffd}A"})),
            (b"{\"a\":\"x\xffy\xe2\x82\"}", json!({"a": "x\u{fffd}y\u{fffd}"})),
            (b"{\"a\":\"one\ntwo\t\x01\"}", json!({"a": "one\ntwo\t\u{1}"})),
            (br#"{"a":"it\'s \x41 \u12 \\"}"#, json!({"a": "it's \\x41 \\u12 \\"})),
            (br#"{"a":NaN,"b":-Infinity,"c":None,"d":True}"#, json!({"a": null, "b": null, "c": null, "d": true})),
            (br#"{"a":123456789012345678901234567890,"b":1e999}"#, json!({"a": null, "b": null})),
            (br#"{"a":18446744073709551615,"b":-1.5e+3}"#, json!({"a": u64::MAX, "b": -1500.0})),
            (br#"{"a":[1,2,],"b":{"c":1 , } ,}"#, json!({"a": [1, 2], "b": {"c": 1}})),
        ] {
            assert_eq!(mended(text), expected, "{}", text.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn a_text_that_is_json_keeps_its_meaning(text in "\\PC*|[\\x00-\\x7f]*", number: f64, whole: i64) {
            let number = if number.is_finite() { number } else { 0.0 };
            let value = json!({ "a": [text.clone(), number, whole, null], text: {"b": true} });
            let text = value.to_string();
            prop_assert_eq!(mended(text.as_bytes()), serde_json::from_str::<Json>(&text).unwrap());
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reader::default().read(&mut mend(&bytes), |_| ());
        }
    }
}
