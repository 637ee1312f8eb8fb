//! JSON in its text form: nothing is built from it, and a value is searched for when it is asked for. So a message
//! costs no memory beyond its own bytes, however many values it has. Pure.
//!
//! [`Raw::strict`] accepts JSON only, as a client must send it. [`Raw::read`] also accepts the near-JSON that servers
//! write, as it was meant: control characters and unknown escapes (`\'`, `\x41`) in a string are taken literally, a
//! comma may precede a closing bracket, and `NaN`, `None`, `True` and numbers out of range are values that are not
//! numbers. A string is bytes, for it may be cut inside a character: half a surrogate pair is encoded as if it were a
//! character (WTF-8), and [`Characters`] joins the halves.

use std::borrow::Cow;
use std::str::from_utf8;

use memchr::{memchr, memchr2};
use serde::Serialize;
use serde_json::value::RawValue;

/// Deepest nesting that is accepted.
pub const MAX_DEPTH: usize = 256;

/// One value.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a>(&'a [u8]);

impl<'a> Raw<'a> {
    /// The value of an absent member.
    pub const NULL: Self = Self(b"null");

    /// The value of a text; `None` if it is not one value, or nested too deeply.
    pub fn read(text: &'a [u8]) -> Option<Self> {
        is_value(text).then(|| Self(text.trim_ascii()))
    }

    /// The value of a text by strict RFC 8259.
    ///
    /// # Errors
    /// Why it is not JSON, or that it is nested too deeply, for people.
    pub fn strict(text: &'a [u8]) -> Result<Self, String> {
        let checked = from_utf8(text).map_err(|error| error.to_string())?;
        serde_json::from_str::<&RawValue>(checked).map_err(|error| error.to_string())?;
        Self::read(text).ok_or_else(|| "nested too deeply".to_owned())
    }

    /// A text that may be truncated or not a value at all: of an object, the complete members are found.
    pub fn begun(text: &'a [u8]) -> Self {
        Self(text.trim_ascii())
    }

    /// Its text.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        matches!(self.0, b"null" | b"None")
    }

    /// The value of a boolean.
    pub fn boolean(self) -> Option<bool> {
        match self.0 {
            b"true" | b"True" => Some(true),
            b"false" | b"False" => Some(false),
            _ => None,
        }
    }

    /// Whether it is an object.
    pub fn is_object(self) -> bool {
        self.0.starts_with(b"{")
    }

    /// Whether it is an array.
    pub fn is_array(self) -> bool {
        self.0.starts_with(b"[")
    }

    /// The members of an object; of any other value none.
    pub fn members(self) -> impl Iterator<Item = (Cow<'a, [u8]>, Raw<'a>)> {
        let mut rest = if self.is_object() { &self.0[1..] } else { &[] };
        std::iter::from_fn(move || {
            let name = next(&mut rest)?.string()?;
            let value = rest.trim_ascii_start().strip_prefix(b":")?;
            rest = value;
            Some((name, next(&mut rest)?))
        })
    }

    /// The items of an array; of any other value none.
    pub fn items(self) -> impl Iterator<Item = Raw<'a>> {
        let mut rest = if self.is_array() { &self.0[1..] } else { &[] };
        std::iter::from_fn(move || next(&mut rest))
    }

    /// The member with this name.
    pub fn get(self, name: &str) -> Option<Self> {
        self.members().find(|(found, _)| **found == *name.as_bytes()).map(|(_, value)| value)
    }

    /// The bytes of a string.
    pub fn string(self) -> Option<Cow<'a, [u8]>> {
        self.0.strip_prefix(b"\"")?.strip_suffix(b"\"").map(unescape)
    }

    /// A string as text.
    pub fn text(self) -> Option<Cow<'a, str>> {
        let bytes = self.string()?;
        if let Cow::Borrowed(bytes) = bytes
            && let Ok(text) = from_utf8(bytes)
        {
            return Some(text.into());
        }
        let (mut characters, mut text) = (Characters::default(), String::with_capacity(bytes.len()));
        characters.push(&bytes, &mut |piece| text.push_str(piece));
        characters.finish(&mut |piece| text.push_str(piece));
        Some(text.into())
    }

    /// The member with this name, if it is a string.
    pub fn get_text(self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name)?.text()
    }

    /// A string, a number or null, unparsed: a possible id.
    pub fn scalar(self) -> Option<&'a str> {
        let is_scalar = self.is_null() || matches!(self.0.first()?, b'"' | b'-' | b'0'..=b'9');
        from_utf8(self.0).ok().filter(|_| is_scalar)
    }

    /// A number that fits a float.
    pub fn number(self) -> Option<f64> {
        let digits = self.0.starts_with(b"-") || self.0.first()?.is_ascii_digit();
        let number: f64 = std::str::from_utf8(self.0).ok().filter(|_| digits)?.parse().ok()?;
        number.is_finite().then_some(number)
    }

    /// A count: a whole number, not negative, and at most what a float counts exactly. Some servers write 5 as `5.0`.
    pub fn count(self) -> Option<u64> {
        const MOST: f64 = (1_u64 << 53) as f64;
        self.number()
            .filter(|number| (0.0..=MOST).contains(number) && number.fract() == 0.0)
            .map(|number| number as u64)
    }
}

/// Takes the next value, and a comma before it.
fn next<'a>(rest: &mut &'a [u8]) -> Option<Raw<'a>> {
    let text = rest.trim_ascii_start();
    let text = text.strip_prefix(b",").unwrap_or(text).trim_ascii_start();
    let length = match text.first()? {
        b'}' | b']' => return None,
        b'{' | b'[' => Extent::default().feed(text)?,
        b'"' => string_length(text)?,
        _ => word_length(text),
    };
    let (value, after) = text.split_at(length);
    *rest = after;
    Some(Raw(value))
}

/// Whether a text is one value; the tolerated deviations are named above.
fn is_value(mut text: &[u8]) -> bool {
    let mut open = Vec::new();
    let mut wants_item = true;
    loop {
        text = text.trim_ascii_start();
        match text.first() {
            Some(close @ (b'}' | b']')) if open.last() == Some(close) => {
                open.pop();
                text = &text[1..];
                wants_item = false;
            }
            Some(b',') if !wants_item => {
                text = &text[1..];
                wants_item = true;
            }
            Some(_) if wants_item => {
                if open.last() == Some(&b'}') {
                    let Some(length) = string_length(text) else { return false };
                    let Some(value) = text[length..].trim_ascii_start().strip_prefix(b":") else { return false };
                    text = value.trim_ascii_start();
                }
                let length = match text.first() {
                    Some(b'{' | b'[') if open.len() == MAX_DEPTH => return false,
                    Some(bracket @ (b'{' | b'[')) => {
                        open.push(if *bracket == b'{' { b'}' } else { b']' });
                        1
                    }
                    Some(b'"') => string_length(text).unwrap_or(0),
                    _ => Some(word_length(text)).filter(|length| is_word(&text[..*length])).unwrap_or(0),
                };
                if length == 0 {
                    return false;
                }
                wants_item = matches!(text[0], b'{' | b'[');
                text = &text[length..];
            }
            _ => return false,
        }
        if open.is_empty() {
            return text.trim_ascii().is_empty();
        }
    }
}

/// Length of the string at the beginning of a text, quotation marks included; `None` if there is none.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    text.strip_prefix(b"\"")?;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        match text[at] {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// Length of the number or the word at the beginning of a text.
fn word_length(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(byte)).count()
}

fn is_word(word: &[u8]) -> bool {
    match word {
        b"null" | b"true" | b"false" | b"None" | b"True" | b"False" | b"undefined" => true,
        b"NaN" | b"nan" | b"-NaN" | b"Infinity" | b"-Infinity" | b"inf" | b"-inf" => true,
        _ => {
            let digits = word.strip_prefix(b"-").unwrap_or(word);
            digits.first().is_some_and(u8::is_ascii_digit)
                && digits.iter().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte))
        }
    }
}

/// The content between quotation marks.
fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(mut at) = memchr(b'\\', text) else { return text.into() };
    let mut out = Vec::with_capacity(text.len());
    out.extend_from_slice(&text[..at]);
    while at < text.len() {
        let rest = &text[at..];
        let (character, length) = match rest.get(1) {
            Some(mark @ (b'"' | b'\\' | b'/' | b'\'')) => (*mark, 2),
            Some(b'b') => (8, 2),
            Some(b'f') => (12, 2),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b't') => (b'\t', 2),
            _ => match unit(rest) {
                Some(unit) => {
                    push_unit(&mut out, unit);
                    at += 6;
                    at += copy_plain(&text[at..], &mut out);
                    continue;
                }
                None => (b'\\', 1),
            },
        };
        out.push(character);
        at += length;
        at += copy_plain(&text[at..], &mut out);
    }
    out.into()
}

/// Copies the text before the next escape; returns its length.
fn copy_plain(text: &[u8], out: &mut Vec<u8>) -> usize {
    let length = memchr(b'\\', text).unwrap_or(text.len());
    out.extend_from_slice(&text[..length]);
    length
}

/// The code unit of an escape `\uXXXX` at the beginning of a text.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
}

/// Adds a UTF-16 code unit: a character, or a half that is joined with the half before it.
fn push_unit(out: &mut Vec<u8>, unit: u16) {
    let before = out.len().checked_sub(3).and_then(|at| half(&out[at..]));
    let character = match (before, unit) {
        (Some(high @ 0xd800..0xdc00), 0xdc00..0xe000) => {
            out.truncate(out.len() - 3);
            joined(high, unit)
        }
        _ => char::from_u32(unit.into()),
    };
    match character {
        Some(character) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend([0xed, 0x80 | (unit >> 6 & 0x3f) as u8, 0x80 | (unit & 0x3f) as u8]),
    }
}

/// The half of a surrogate pair at the beginning of these bytes.
pub fn half(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [0xed, middle @ 0xa0..0xc0, last @ 0x80..0xc0, ..] => {
            Some(0xd000 | u16::from(*middle & 0x3f) << 6 | u16::from(*last & 0x3f))
        }
        _ => None,
    }
}

/// The character that these halves form.
pub fn joined(high: u16, low: u16) -> Option<char> {
    char::decode_utf16([high, low]).next()?.ok()
}

/// The state of a value between two pieces of it.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Extent {
    /// Takes the next bytes of the value; returns how many of them belong to it if it ends within them.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// What was cut off at the end of the last piece.
#[derive(Debug, Default)]
pub struct Characters(Vec<u8>);

impl Characters {
    /// Takes the next piece, and calls `sink` with the complete characters.
    pub fn push(&mut self, piece: &[u8], sink: &mut impl FnMut(&str)) {
        if self.0.is_empty()
            && let Ok(text) = from_utf8(piece)
        {
            return sink(text);
        }
        self.0.extend_from_slice(piece);
        let (text, taken) = whole_characters(&self.0);
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

/// The characters of these bytes, and how many bytes they take: all but the possible beginning of one.
fn whole_characters(bytes: &[u8]) -> (String, usize) {
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

/// Appends a value as JSON.
pub fn push_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // serde_json fails only if the writer does, and a vector never does.
    let _ = serde_json::to_writer(out, value);
}

/// `text` as a JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    // Writing strings cannot fail.
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    /// The value as a tree.
    fn tree(value: Raw<'_>) -> Json {
        if value.is_object() {
            let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
            return Json::Object(value.members().map(|(name, member)| (text(&name), tree(member))).collect());
        }
        if value.is_array() {
            return value.items().map(tree).collect();
        }
        if let Some(text) = value.text() {
            return text.into_owned().into();
        }
        match value.bytes() {
            b"true" | b"True" => true.into(),
            b"false" | b"False" => false.into(),
            _ => value.number().map_or(Json::Null, Json::from),
        }
    }

    fn read(text: &[u8]) -> Json {
        tree(Raw::read(text).unwrap_or_else(|| panic!("{}", text.escape_ascii())))
    }

    #[test]
    fn near_json_is_read_as_it_was_meant() {
        for (text, expected) in [
            (&br#"{"a":"\ud83d\ude00\u00e9\n\/\"\\\t\b\f\r"}"#[..], json!({"a": "\u{1f600}é\n/\"\\\t\u{8}\u{c}\r"})),
            (b"{\"a\":\"x\xffy\"}", json!({"a": "x\u{fffd}y"})),
            (b"{\"a\":\"one\ntwo\t\x01\"}", json!({"a": "one\ntwo\t\u{1}"})),
            (br#"{"a":"it\'s \x41 \u12 \\"}"#, json!({"a": "it's \\x41 \\u12 \\"})),
            (br#"{"a":NaN,"b":-Infinity,"c":None,"d":True}"#, json!({"a": null, "b": null, "c": null, "d": true})),
            (br#"{"a":1e999,"b":-1.5e+3}"#, json!({"a": null, "b": -1500.0})),
            (br#" {"a":[1,2,],"b":{"c":1 , } ,} "#, json!({"a": [1.0, 2.0], "b": {"c": 1.0}})),
            (b"[[],{},\"\"]", json!([[], {}, ""])),
        ] {
            assert_eq!(read(text), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        for text in [
            "",
            " ",
            "{",
            "nul",
            "{} {}",
            "[,]",
            ": keepalive",
            "{oops}",
            "{\"a\":}",
            "{\"a\"}",
            "{\"a\" 1}",
            "[1 2]",
            "[}",
            "\"",
            "\"\\\"",
            "-",
            "1x",
            "{\"choices\": [{]}",
            "]",
            ",",
        ] {
            assert!(Raw::read(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(Raw::read(&[b"[".repeat(MAX_DEPTH), b"]".repeat(MAX_DEPTH)].concat()).is_some());
        assert!(Raw::read(&[b"[".repeat(MAX_DEPTH + 1), b"]".repeat(MAX_DEPTH + 1)].concat()).is_none());
    }

    #[test]
    fn a_count_is_whole_and_not_negative_however_it_is_written() {
        let count = |text: &str| Raw::read(text.as_bytes()).unwrap().count();
        for (text, expected) in [
            ("5", Some(5)),
            ("5.0", Some(5)),
            ("5e2", Some(500)),
            ("0", Some(0)),
            ("-0.0", Some(0)),
            ("9007199254740992", Some(1 << 53)),
            ("9007199254740994", None),
            ("18446744073709551615", None),
            ("1e308", None),
            ("1e999", None),
            ("-1", None),
            ("5.5", None),
            ("NaN", None),
            ("null", None),
            ("\"5\"", None),
            ("[5]", None),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn valid_json_is_read_exactly(text in "\\PC*|[\\x00-\\x7f]*", number: f64, ascii: bool) {
            let number = if number.is_finite() { number } else { 0.0 };
            let value = json!({ "a": [text.clone(), number, null], text: {"b": true} });
            let written = match ascii {
                false => value.to_string(),
                // The way Python and others write it.
                true => value.to_string().chars().map(|letter| if letter.is_ascii() { letter.to_string() } else { letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect() }).collect(),
            };
            prop_assert_eq!(read(written.as_bytes()), value);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in "[\\[\\]{}:,\"\\\\a1 .-]{0,40}") {
            for text in [&bytes[..], json.as_bytes()] {
                if let Some(value) = Raw::read(text) {
                    tree(value);
                }
            }
        }
    }

    #[test]
    fn clients_must_send_strict_json() {
        for text in ["", " ", "{", "nul", "{} {}", "\u{7f}", "[1,]", "{\"a\":NaN}", ": keepalive"] {
            assert!(Raw::strict(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Raw::strict(&[b"[".repeat(1 << 20), b"]".repeat(1 << 20)].concat()).is_err());
        assert!(Raw::strict(b"{\"a\":\xff}").is_err());
        let cut = Raw::strict(br#"{"a":"x\ud83d","b":1e400}"#).unwrap();
        assert_eq!(cut.get_text("a").as_deref(), Some("x\u{fffd}"));
        assert_eq!(cut.get("b").and_then(Raw::scalar), Some("1e400"));
        assert_eq!(cut.scalar(), None);
    }

    #[test]
    fn a_value_ends_where_its_last_bracket_closes_however_it_is_cut() {
        for (text, end) in [
            (r#"{"a":"}\"]"} tail"#, Some(12)),
            (r#"[{"a":[1,2]},{}]]"#, Some(16)),
            (r#"{"a":"\\"}{"#, Some(10)),
            (r#"{"a":{"b":"#, None),
            (r#"{"a":"}}}}"#, None),
        ] {
            for cut in 0..text.len() {
                let mut extent = Extent::default();
                let (left, right) = text.as_bytes().split_at(cut);
                let found = extent.feed(left).or_else(|| extent.feed(right).map(|end| cut + end));
                assert_eq!(found, end, "{text} cut at {cut}");
            }
        }
    }

    const HIGH: &[u8] = b"\xed\xa0\xbc";
    const LOW: &[u8] = b"\xed\xbe\x89";

    fn read_pieces(pieces: &[&[u8]]) -> String {
        let (mut characters, mut text) = (Characters::default(), String::new());
        let mut sink = |piece: &str| text.push_str(piece);
        for piece in pieces {
            characters.push(piece, &mut sink);
        }
        characters.finish(&mut sink);
        text
    }

    #[test]
    fn surrogate_halves_are_joined_and_a_lone_one_is_kept() {
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
            assert_eq!(read_pieces(&[&bytes]), text, "{}", bytes.escape_ascii());
            assert_eq!(read_pieces(&bytes.chunks(1).collect::<Vec<_>>()), text, "{} cut", bytes.escape_ascii());
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
            let whole = read_pieces(&[&bytes]);
            prop_assert_eq!(read_pieces(&[left, right]), whole.clone());
            prop_assert_eq!(read_pieces(&bytes.chunks(1).collect::<Vec<_>>()), whole);
        }
    }
}
