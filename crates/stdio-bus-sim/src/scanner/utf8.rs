//! Broken UTF-8 and bytes that look like it, with a verdict for each: the suite has lost its own cases of this kind.

use super::{read_line, sets};
use ndjson_scan::{Fault, Scanner};

/// Description, bytes, and whether they are allowed in a string. Outside strings none of them is.
const CASES: &[(&str, &[u8], bool)] = &[
    ("the last of two bytes, U+07FF", b"\xDF\xBF", true),
    ("the first of three bytes, U+0800", b"\xE0\xA0\x80", true),
    ("the last before the surrogates, U+D7FF", b"\xED\x9F\xBF", true),
    ("the first after the surrogates, U+E000", b"\xEE\x80\x80", true),
    ("a byte order mark, U+FEFF", b"\xEF\xBB\xBF", true),
    ("the replacement character, U+FFFD", b"\xEF\xBF\xBD", true),
    ("a noncharacter, U+FFFE", b"\xEF\xBF\xBE", true),
    ("a noncharacter, U+FFFF", b"\xEF\xBF\xBF", true),
    ("the first of four bytes, U+10000", b"\xF0\x90\x80\x80", true),
    ("the last of all, U+10FFFF", b"\xF4\x8F\xBF\xBF", true),
    ("the line separator, U+2028", b"\xE2\x80\xA8", true),
    ("a control character of two bytes, U+0085", b"\xC2\x85", true),
    ("é in Latin-1", b"\xE9", false),
    ("a continuation alone", b"\x80", false),
    ("the last continuation alone", b"\xBF", false),
    ("two continuations alone", b"\x80\xBF", false),
    ("a continuation too many after two bytes", b"\xC3\xA9\xA9", false),
    ("a continuation too many after three", b"\xE4\xB8\xAD\x80", false),
    ("a continuation too many after four", b"\xF0\x9F\x98\x80\x80", false),
    ("overlong NUL", b"\xC0\x80", false),
    ("overlong quotation mark", b"\xC0\xA2", false),
    ("overlong DEL", b"\xC1\xBF", false),
    ("overlong solidus of three bytes", b"\xE0\x80\xAF", false),
    ("overlong U+07FF", b"\xE0\x9F\xBF", false),
    ("overlong solidus of four bytes", b"\xF0\x80\x80\xAF", false),
    ("overlong U+FFFF", b"\xF0\x8F\xBF\xBF", false),
    ("overlong solidus of five bytes", b"\xF8\x80\x80\x80\xAF", false),
    ("overlong solidus of six bytes", b"\xFC\x80\x80\x80\x80\xAF", false),
    ("the first high surrogate, U+D800", b"\xED\xA0\x80", false),
    ("the last high surrogate, U+DBFF", b"\xED\xAF\xBF", false),
    ("the first low surrogate, U+DC00", b"\xED\xB0\x80", false),
    ("the last low surrogate, U+DFFF", b"\xED\xBF\xBF", false),
    ("a pair of surrogates (CESU-8)", b"\xED\xA0\xBD\xED\xB8\x80", false),
    ("beyond the last, U+110000", b"\xF4\x90\x80\x80", false),
    ("far beyond the last", b"\xF7\xBF\xBF\xBF", false),
    ("a lead byte of five", b"\xF8\x88\x80\x80\x80", false),
    ("a lead byte of six", b"\xFC\x84\x80\x80\x80\x80", false),
    ("the byte F5", b"\xF5\x80\x80\x80", false),
    ("the byte FE", b"\xFE", false),
    ("the byte FF", b"\xFF", false),
    ("the mark of UTF-16, big end first", b"\xFE\xFF", false),
    ("the mark of UTF-16, little end first", b"\xFF\xFE", false),
    ("a byte order mark without its end", b"\xEF\xBB", false),
    ("one byte of two", b"\xC3", false),
    ("one byte of three", b"\xE4", false),
    ("two bytes of three", b"\xE4\xB8", false),
    ("one byte of four", b"\xF0", false),
    ("two bytes of four", b"\xF0\x9F", false),
    ("three bytes of four", b"\xF0\x9F\x98", false),
    ("one byte of three, then a letter", b"\xE4a", false),
    ("two bytes of four, then a letter", b"\xF0\x9Fa", false),
    ("one byte of two, then a character", b"\xC3\xC3\xA9", false),
    ("two bytes of three, then a character", b"\xE4\xB8\xF0\x9F\x98\x80", false),
    ("one byte of two, then an escape", b"\xC3\\n", false),
];

/// Calls `visit` with each case at every place of a block, the longest block having 64 bytes.
fn at_every_place(mut visit: impl FnMut(&str, &[u8], bool, &str, &mut Scanner)) {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for (name, bytes, is_valid) in CASES {
            for pad in 0..=66 {
                visit(&format!("{set:?} {name}, pad {pad}"), bytes, *is_valid, &"k".repeat(pad), scanner);
            }
        }
    }
}

#[test]
fn the_verdicts_are_those_of_the_standard_library() {
    for (name, bytes, is_valid) in CASES {
        assert_eq!(str::from_utf8(bytes).is_ok(), *is_valid, "{name}");
    }
}

#[test]
fn broken_utf8_in_a_string_is_refused_and_what_only_looks_broken_is_not() {
    at_every_place(|what, bytes, is_valid, pad, scanner| {
        let pad = pad.as_bytes();
        let messages = [
            [b"{\"id\":1,\"result\":\"", pad, bytes, b"\"}"].concat(),
            [b"{\"", pad, bytes, b"\":1}"].concat(),
            [b"{\"params\":{\"sessionId\":\"", pad, bytes, b" \"}}"].concat(),
            [b"{\"method\":\"", pad, b"\\\"", bytes, b"\"}"].concat(),
        ];
        for message in messages {
            match read_line(scanner, &message) {
                Ok(line) => assert!(is_valid && line.is_some(), "{what}: {line:?}"),
                Err(fault) => assert!(!is_valid && fault == Fault::Utf8, "{what}: {fault:?}"),
            }
        }
    });
}

#[test]
fn no_byte_beyond_ascii_is_allowed_outside_a_string_or_at_the_end_of_a_line() {
    at_every_place(|what, bytes, _, pad, scanner| {
        let spaces = " ".repeat(pad.len());
        let (pad, spaces) = (pad.as_bytes(), spaces.as_bytes());
        let messages = [
            [spaces, bytes, b"{\"id\":1}"].concat(),
            [b"{\"id\":1}", spaces, bytes].concat(),
            [b"{", spaces, bytes, b"\"id\":1}"].concat(),
            [b"{\"id\":[", spaces, bytes, b"]}"].concat(),
            [b"{\"id\":1", bytes, spaces, b"}"].concat(),
            [b"{\"id\":\"", pad, bytes].concat(),
        ];
        for message in messages {
            let found = read_line(scanner, &message);
            assert!(matches!(found, Err(Fault::Utf8 | Fault::Syntax)), "{what}: {found:?}");
        }
    });
}
