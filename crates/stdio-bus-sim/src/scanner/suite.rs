//! Nicolas Seriot's JSONTestSuite embedded in lines. Its cases that are not UTF-8 have lost their broken bytes;
//! `utf8.rs` has our own.
//!
//! A case with newlines is several lines for the bus, so it has no verdict as one; such a case is run with each newline
//! turned into a carriage return, which is white space outside strings and an error inside them, just as a newline is.

use super::cases::{self, Case};
use super::{read, read_line, sets};
use crate::oracle::{Judgement, as_judged, judge};
use ndjson_scan::{Fault, Scanner};

/// Name, bytes and, where the suite has one, the verdict of each case.
fn cases() -> Vec<(&'static str, Vec<u8>, Option<bool>)> {
    let case = |case: &'static Case| {
        let verdict = match case.name.as_bytes()[0] {
            b'y' => Some(true),
            b'n' => Some(false),
            _ => None,
        };
        (&*case.name, case.input.replace('\n', "\r").into_bytes(), verdict)
    };
    cases::cases().iter().map(case).collect()
}

/// A case wherever a value is allowed in a message: before and after it, keys long enough to put it at each place of a
/// 64-byte block.
fn framings(case: &[u8]) -> Vec<Vec<u8>> {
    let pads = [0, 1, 2, 3, 15, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 60, 61, 62, 63, 64, 65, 100];
    let mut framings = vec![[br#"{"jsonrpc":"2.0","id":1,"result":"#, case, b"}"].concat()];
    for pad in pads {
        let key = "k".repeat(pad);
        framings.push([format!("{{\"{key}\":").as_bytes(), case, b"}"].concat());
        framings.push([format!("{{\"{key}\":[").as_bytes(), case, b"]}"].concat());
        framings.push([format!("{{\"{key}\":[0,").as_bytes(), case, b",{}],\"id\":1}"].concat());
        framings.push([format!("{{\"{key}\":0,\"params\":{{\"id\":").as_bytes(), case, b"}}"].concat());
    }
    framings
}

/// Cases too deep for serde_json.
fn is_deep(name: &str) -> bool {
    ["100000", "500_nested", "open_array_object"].iter().any(|part| name.contains(part))
}

#[ignore = "npm has its cases: scripts/test suite"]
#[test]
fn the_suite_gets_its_verdicts() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for (name, case, verdict) in cases() {
            let [message, ..] = &framings(&case)[..] else { unreachable!() };
            let found = read_line(scanner, message);
            if let Some(verdict) = verdict {
                assert_eq!(found.is_ok(), verdict, "{set:?} {name}: {found:?}");
            }
            let found = read_line(scanner, &case);
            match verdict {
                Some(true) if case.trim_ascii().starts_with(b"{") => assert!(found.is_ok(), "{set:?} {name}"),
                Some(true) => assert_eq!(found, Err(Fault::NotAnObject), "{set:?} {name}"),
                // White space alone is not a JSON text, but it is a blank line.
                Some(false) if case.trim_ascii().is_empty() => assert_eq!(found, Ok(None), "{set:?} {name}"),
                Some(false) => assert!(found.is_err(), "{set:?} {name}"),
                None => {}
            }
        }
    }
}

#[ignore = "npm has its cases: scripts/test suite"]
#[test]
fn the_suite_in_every_framing_gets_serdes_verdict() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for (name, case, _) in cases().into_iter().filter(|(name, ..)| !is_deep(name)) {
            for message in framings(&case) {
                let stream = [b"{}\n", &message[..], b"\n"].concat();
                let reading = read(scanner, &stream, &[], b'\\');
                let text = || format!("{set:?} {name}: {}", String::from_utf8_lossy(&message));
                match judge(&message) {
                    Judgement::Malformed => assert_eq!(reading.malformed.map(|it| it.0), Some(3), "{}", text()),
                    Judgement::Undecided => assert_eq!(reading.lines.len(), 2, "{}", text()),
                    judgement => {
                        assert_eq!(reading.malformed, None, "{}", text());
                        assert_eq!(as_judged(&stream, &reading.lines[1]), judgement, "{}", text());
                    }
                }
            }
        }
    }
}
