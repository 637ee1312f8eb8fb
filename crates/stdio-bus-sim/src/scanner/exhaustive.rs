//! All short inputs of a kind, which random ones miss: strings of tokens, sequences of UTF-8, escapes, numbers. Each is
//! tried at many places of a block. A release build tries more of them.

use super::{read_line, sets};
use crate::oracle::{Judgement, as_judged, judge};
use ndjson_scan::{Fault, Line, Scanner};

struct Checker {
    scanners: Vec<Scanner>,
    cases: usize,
    valid: usize,
}

impl Checker {
    fn new() -> Self {
        Self { scanners: sets().into_iter().map(|set| Scanner::with(set).unwrap()).collect(), cases: 0, valid: 0 }
    }

    /// All sets agree on a line and on whether it is valid.
    fn check(&mut self, line: &[u8], is_valid: bool) {
        let mut first: Option<Result<Option<Line>, Fault>> = None;
        for scanner in &mut self.scanners {
            let set = scanner.set();
            let found = read_line(scanner, line);
            let text = || format!("{set:?} {} {line:x?}", String::from_utf8_lossy(line));
            assert_eq!(found.is_ok(), is_valid, "{} {found:?}", text());
            assert_eq!(*first.get_or_insert(found), found, "{}", text());
        }
        self.cases += 1;
        self.valid += usize::from(is_valid);
    }

    /// All sets find the fields that the oracle finds.
    fn check_fields(&mut self, line: &[u8]) {
        let judgement = judge(line);
        let text = String::from_utf8_lossy(line);
        for scanner in &mut self.scanners {
            let found = match read_line(scanner, line) {
                Ok(found) => as_judged(line, &found.expect("the line is not blank")),
                Err(_) => Judgement::Malformed,
            };
            assert_eq!(found, judgement, "{:?} {text}", scanner.set());
        }
        self.cases += 1;
        self.valid += usize::from(judgement != Judgement::Malformed);
    }

    fn report(&self, what: &str) {
        println!("{} {what}, {} valid", self.cases, self.valid);
        assert!(self.valid > 0 && self.valid < self.cases);
    }
}

/// Calls `visit` with every string of 1 to `length` symbols below `symbols`.
fn strings(symbols: usize, length: usize, mut visit: impl FnMut(&[usize])) {
    for length in 1..=length {
        let mut string = vec![0; length];
        'next: loop {
            visit(&string);
            for symbol in &mut string {
                *symbol += 1;
                if *symbol < symbols {
                    continue 'next;
                }
                *symbol = 0;
            }
            break;
        }
    }
}

/// `SCAN_TOKENS`, or a default for the build.
fn token_length() -> usize {
    let wanted = std::env::var("SCAN_TOKENS").ok().and_then(|value| value.parse().ok());
    wanted.unwrap_or(if cfg!(debug_assertions) { 4 } else { 5 })
}

#[test]
fn strings_of_tokens() {
    const TOKENS: &[&[u8]] = &[b"{", b"}", b"[", b"]", b":", b",", b"\"a\"", b"1", b" "];
    let mut checker = Checker::new();
    let frames: &[(&[u8], &[u8])] =
        &[(b"", b""), (b"{\"x\":[{\"y\":", b"}]}"), (b"{\"id\":1,", b"}"), (b"{\"a\":", b"")];
    strings(TOKENS.len(), token_length(), |string| {
        for (before, after) in frames {
            let middle = string.iter().flat_map(|&token| TOKENS[token]).copied();
            let line: Vec<u8> = before.iter().copied().chain(middle).chain(after.iter().copied()).collect();
            if !line.trim_ascii().is_empty() {
                checker.check(&line, judge(&line) != Judgement::Malformed);
            }
        }
    });
    checker.report("strings of tokens");
}

/// The message with `middle` in a string, `pad` bytes after its beginning.
fn in_string(pad: usize, middle: &[u8]) -> Vec<u8> {
    [b"{\"k\":\"", &b"a".repeat(pad)[..], middle, b"\"}"].concat()
}

#[test]
fn sequences_of_utf8() {
    let mut checker = Checker::new();
    let mut pad = 0;
    let mut check = |sequence: &[u8]| {
        pad = (pad + 1) % 67;
        checker.check(&in_string(pad, sequence), std::str::from_utf8(sequence).is_ok());
    };
    let step = if cfg!(debug_assertions) { 7 } else { 1 };
    let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    let edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xF0, 0xF4, 0xF5, 0xFF];
    for a in 0x80..=0xFF {
        check(&[a]);
        for b in (0x20..=0xFF).filter(|&b| is_plain(b)).step_by(step) {
            check(&[a, b]);
            check(&[b, a]);
        }
        for b in edges {
            for c in edges {
                check(&[a, b, c]);
                if a >= 0xE0 {
                    edges.iter().for_each(|&d| check(&[a, b, c, d]));
                }
            }
        }
    }
    checker.report("sequences of UTF-8");
}

#[test]
fn escapes_at_every_place_of_a_block() {
    let mut checker = Checker::new();
    for pad in (0..66).step_by(if cfg!(debug_assertions) { 13 } else { 1 }) {
        for letter in 0x20..=0xFF {
            let line = in_string(pad, &[b"\\", &[letter][..], b"1234"].concat());
            checker.check(&line, judge(&line) != Judgement::Malformed);
        }
        for (place, letter) in (0..4).flat_map(|place| (0x20..0x7F).map(move |letter| (place, letter))) {
            if letter != b'"' && letter != b'\\' {
                let mut escape = *b"\\u12aF";
                escape[2 + place] = letter;
                checker.check(&in_string(pad, &escape), letter.is_ascii_hexdigit());
            }
        }
        for control in (0..0x20).filter(|&control| control != b'\n') {
            checker.check(&in_string(pad, &[control]), false);
        }
        for backslashes in 0..9 {
            checker.check(&in_string(pad, &b"\\".repeat(backslashes)), backslashes % 2 == 0);
        }
        for rest in ["\\u", "\\u1", "\\u12", "\\u123", "\\u12\\n", "\\u\"1234"] {
            checker.check(&in_string(pad, rest.as_bytes()), false);
        }
    }
    checker.report("escapes");
}

#[test]
fn scalars() {
    const BYTES: &[u8] = b"-+0123.eE9tnx";
    let mut checker = Checker::new();
    let mut check = |scalar: &[u8]| {
        let line = [b"{\"id\":", scalar, b"}"].concat();
        checker.check(&line, judge(&line) != Judgement::Malformed);
        let line = [b"{\"x\":[", scalar, b" ,0]}"].concat();
        checker.check(&line, judge(&line) != Judgement::Malformed);
    };
    strings(BYTES.len(), if cfg!(debug_assertions) { 3 } else { 5 }, |string| {
        check(&string.iter().map(|&byte| BYTES[byte]).collect::<Vec<_>>());
    });
    for scalar in [
        "true",
        "false",
        "null",
        "tru",
        "truee",
        "nulll",
        "True",
        "fals",
        "falsee",
        "falsE",
        "12345678",
        "123456789",
        "12345678901234567890",
        "-12345678.5e-12",
        "1234567x",
        "12345678x",
        "0.1234567890123",
        "1e1234567890",
        "12345678.",
        "1234567.e5",
        "-01",
        "- 1",
        "1 2",
        "true false",
        "1.5E+0000000001",
        "1_000",
    ] {
        check(scalar.as_bytes());
    }
    checker.report("scalars");
}

/// The name with the characters that have a bit in `escaped` spelled as escapes.
fn spelled(name: &str, escaped: usize) -> String {
    let spell = |(index, letter): (usize, char)| match escaped >> index & 1 {
        0 => letter.to_string(),
        _ => format!("\\u{:04x}", u32::from(letter)),
    };
    name.chars().enumerate().map(spell).collect()
}

#[test]
fn fields_inside_params_however_their_keys_are_spelled() {
    let mut checker = Checker::new();
    let step = if cfg!(debug_assertions) { 13 } else { 1 };
    let escapes = |name: &str| 0..1_usize << name.len().min(2);
    let names = [
        ("params", "id"),
        ("params", "requestId"),
        ("params", "sessionId"),
        ("params", "progressToken"),
        ("params", "_meta"),
        ("result", "_meta"),
        ("result", "id"),
        ("other", "id"),
    ];
    for (outer, inner) in names {
        for (outer_escapes, inner_escapes) in
            escapes(outer).flat_map(|outer| escapes(inner).map(move |inner| (outer, inner)))
        {
            let (outer, inner) = (spelled(outer, outer_escapes), spelled(inner, inner_escapes));
            for value in ["7", "-1.5e3 ", "\"r\"", " \"\\u0072\" ", "null", "true", "[1]", "{\"id\":1}"] {
                for pad in (0..130).step_by(step).map(|length| "k".repeat(length)) {
                    for line in [
                        format!(r#"{{"{pad}":0,"{outer}":{{"{inner}":{value}}}}}"#),
                        format!(r#"{{"id":1,"{outer}":{{"x":[],"{inner}" :{value},"{pad}":0}},"method":"m"}}"#),
                        format!(r#"{{"{outer}":{{"{inner}":{value},"{pad}":0,"{inner}":0}}}}"#),
                        format!(r#"{{"{outer}":[{{"{inner}":{value},"{pad}":0,"{inner}":0}}],"id":2}}"#),
                        format!(r#"{{"{outer}":{{"{inner}":{value}}},"{pad}":[{}0]}}"#, "0,".repeat(40)),
                    ] {
                        checker.check_fields(line.as_bytes());
                    }
                }
            }
        }
    }
    checker.report("fields inside params");
}

#[test]
fn white_space_of_every_length() {
    let mut checker = Checker::new();
    for length in 0..140 {
        for space in [" ", "\t", "\r"] {
            let space = space.repeat(length);
            for (line, is_valid) in [
                (format!("{space}{{}}{space}"), true),
                (format!("{{{space}\"id\"{space}:{space}1{space}}}"), true),
                (format!("{{\"method\":{space}\"m\"{space},\"id\"{space}:7}}"), true),
                (format!("{{\"a\":1{space}2}}"), length == 0),
                (format!("{{\"a\":1{space},{space}}}"), false),
            ] {
                checker.check(line.as_bytes(), is_valid);
            }
        }
    }
    checker.report("lines with white space");
}
