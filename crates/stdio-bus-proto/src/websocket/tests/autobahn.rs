//! The cases of the Autobahn testsuite (<https://github.com/crossbario/autobahn-testsuite>), sections 1 to 7, as bytes
//! with the expected events. Its clients send them; each is decoded whole, byte by byte, and cut anywhere.
//!
//! Texts of section 6 are JSON strings here, since the scanner validates their UTF-8.

use super::{DecodedItem, Role, decode_in_all_ways, frame, line, shown};
use ndjson_scan::{Fault, PAD, Partial, ScanResult, Scanner, Window};

const FINAL: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

fn sent(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    frame(Role::Server, first, payload.as_ref())
}

fn text(payload: &str) -> Vec<u8> {
    sent(FINAL | TEXT, payload)
}

fn closing(code: u16, reason: &[u8]) -> Vec<u8> {
    sent(FINAL | CLOSE, [&code.to_be_bytes(), reason].concat())
}

fn closed(code: u16, reason: &str) -> DecodedItem {
    DecodedItem::Close(Some(code), reason.to_owned())
}

fn ping(payload: &str) -> DecodedItem {
    DecodedItem::Ping(payload.as_bytes().to_vec())
}

fn partial(text: &str) -> DecodedItem {
    DecodedItem::Partial(text.to_owned())
}

const FAULT: DecodedItem = DecodedItem::Fault(1002);

/// A case: its name, the bytes sent, and the expected events.
type Case = (&'static str, Vec<Vec<u8>>, Vec<DecodedItem>);

fn check(cases: Vec<Case>) {
    for (name, frames, expected) in cases {
        assert_eq!(decode_in_all_ways(Role::Server, &frames.concat()), expected, "case {name}");
    }
}

#[test]
fn section_1_messages_of_all_lengths() {
    let lengths =
        [("1", 0), ("2", 125), ("3", 126), ("4", 127), ("5", 128), ("6", 65_535), ("7", 65_536), ("8", 65_536)];
    for (number, length) in lengths {
        let payload = "*".repeat(length);
        check(vec![
            (number, vec![text(&payload)], vec![line(&payload)]),
            (number, vec![sent(FINAL | BINARY, &payload)], vec![DecodedItem::Binary(length as u64)]),
        ]);
    }
}

#[test]
fn section_2_pings_and_pongs() {
    let bytes = b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff";
    let ten: Vec<String> = (0..10).map(|number| format!("payload-{number}")).collect();
    check(vec![
        ("2.1", vec![sent(FINAL | PING, "")], vec![ping("")]),
        ("2.2", vec![sent(FINAL | PING, "Hello, world!")], vec![ping("Hello, world!")]),
        ("2.3", vec![sent(FINAL | PING, bytes)], vec![DecodedItem::Ping(bytes.to_vec())]),
        ("2.4, 2.6", vec![sent(FINAL | PING, [0xFE; 125])], vec![DecodedItem::Ping(vec![0xFE; 125])]),
        ("2.5", vec![sent(FINAL | PING, [0xFE; 126])], vec![FAULT]),
        ("2.7", vec![sent(FINAL | PONG, "")], vec![DecodedItem::Pong(vec![])]),
        ("2.8", vec![sent(FINAL | PONG, "unsolicited")], vec![DecodedItem::Pong(b"unsolicited".to_vec())]),
        (
            "2.9",
            vec![sent(FINAL | PONG, "unsolicited"), sent(FINAL | PING, "ping")],
            vec![DecodedItem::Pong(b"unsolicited".to_vec()), ping("ping")],
        ),
        (
            "2.10, 2.11",
            ten.iter().map(|payload| sent(FINAL | PING, payload)).collect(),
            ten.iter().map(|payload| ping(payload)).collect(),
        ),
    ]);
}

#[test]
fn section_3_reserved_bits() {
    let (hello, one_more) = (|| text("Hello, world!"), || sent(FINAL | PING, ""));
    check(vec![
        ("3.1", vec![sent(0x90 | TEXT, "Hello, world!")], vec![FAULT]),
        ("3.2", vec![hello(), sent(0xA0 | TEXT, "x"), one_more()], vec![line("Hello, world!"), FAULT]),
        ("3.3, 3.4", vec![hello(), sent(0xB0 | TEXT, "x"), one_more()], vec![line("Hello, world!"), FAULT]),
        ("3.4", vec![hello(), sent(0xC0 | TEXT, "x"), one_more()], vec![line("Hello, world!"), FAULT]),
        ("3.5", vec![sent(0xD0 | BINARY, b"\x00\xff")], vec![FAULT]),
        ("3.6", vec![sent(0xE0 | PING, "Hello, world!")], vec![FAULT]),
        ("3.7", vec![sent(0xF0 | CLOSE, "")], vec![FAULT]),
    ]);
}

#[test]
fn section_4_reserved_opcodes() {
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        check(vec![
            ("4.1.1, 4.2.1", vec![sent(FINAL | opcode, "")], vec![FAULT]),
            ("4.1.2, 4.2.2", vec![sent(FINAL | opcode, "reserved opcode payload")], vec![FAULT]),
            (
                "4.1.3 to 4.1.5, 4.2.3 to 4.2.5",
                vec![text("Hello, world!"), sent(FINAL | opcode, "reserved"), sent(FINAL | PING, "")],
                vec![line("Hello, world!"), FAULT],
            ),
        ]);
    }
}

#[test]
fn section_5_fragments() {
    let begin = |payload: &str| sent(TEXT, payload);
    let more = |payload: &str| sent(CONTINUATION, payload);
    let end = |payload: &str| sent(FINAL | CONTINUATION, payload);
    let pinged = || sent(FINAL | PING, "ping payload");
    let both = || line("fragment1fragment2");
    check(vec![
        ("5.1", vec![sent(PING, "fragment1"), end("fragment2")], vec![FAULT]),
        ("5.2", vec![sent(PONG, "fragment1"), end("fragment2")], vec![FAULT]),
        ("5.3 to 5.5", vec![begin("fragment1"), end("fragment2")], vec![both()]),
        ("5.6 to 5.8", vec![begin("fragment1"), pinged(), end("fragment2")], vec![ping("ping payload"), both()]),
        ("5.9, 5.10, 5.11", vec![end("non-continuation payload"), text("Hello, world!")], vec![FAULT]),
        ("5.12, 5.13, 5.14", vec![more("non-continuation payload"), text("Hello, world!")], vec![FAULT]),
        ("5.15", vec![begin("fragment1"), end("fragment2"), more("fragment3"), text("fragment4")], vec![both(), FAULT]),
        ("5.16", vec![more("fragment1"), begin("fragment2"), end("fragment3")], vec![FAULT]),
        ("5.17", vec![end("fragment1"), begin("fragment2"), end("fragment3")], vec![FAULT]),
        ("5.18", vec![begin("fragment1"), text("fragment2")], vec![FAULT, partial("fragment1")]),
        (
            "5.19, 5.20",
            vec![
                begin("fragment1"),
                more("fragment2"),
                pinged(),
                more("fragment3"),
                more("fragment4"),
                pinged(),
                end("fragment5"),
                pinged(),
            ],
            vec![
                ping("ping payload"),
                ping("ping payload"),
                line("fragment1fragment2fragment3fragment4fragment5"),
                ping("ping payload"),
            ],
        ),
        (
            "binary fragments go by as well",
            vec![sent(BINARY, "fragment1"), pinged(), more(""), end("fragment2"), text("Hello")],
            vec![ping("ping payload"), DecodedItem::Binary(18), line("Hello")],
        ),
        ("a message in the middle of a binary one", vec![sent(BINARY, "a"), text("b")], vec![FAULT]),
    ]);
}

#[test]
fn section_6_a_text_that_is_not_utf_8_is_a_line_that_the_scanner_refuses() {
    for (is_utf8, payload) in UTF8 {
        let all = [b"{\"m\":\"", *payload, b"\"}"].concat();
        let expected = vec![DecodedItem::Line(shown(&all))];
        for cut in [0, 6, 7, all.len() / 2, all.len() - 3, all.len()] {
            let (one, other) = all.split_at(cut);
            let frames = vec![sent(TEXT, one), sent(FINAL | CONTINUATION, other)];
            check(vec![("6", frames, expected.clone())]);
        }
        let by_byte = all.iter().enumerate().map(|(at, byte)| sent(if at == 0 { TEXT } else { CONTINUATION }, [*byte]));
        let frames = by_byte.chain([sent(FINAL | CONTINUATION, "")]).collect();
        check(vec![("6, byte by byte", frames, expected)]);
        assert_eq!(is_message(&all), *is_utf8, "{}", all.escape_ascii());
    }
}

/// Whether the scanner accepts this line; if not, it is because of its UTF-8.
fn is_message(line: &[u8]) -> bool {
    let padded = [&[b' '; PAD][..], line, b"\n", &[b' '; PAD]].concat();
    let window = Window::new(&padded, PAD, PAD + line.len() + 1);
    match Scanner::new().scan(&mut Partial::new(), window, &mut Vec::new()) {
        ScanResult::More => true,
        ScanResult::Malformed { fault: Fault::Utf8, .. } => false,
        other => panic!("{}: {other:?}", line.escape_ascii()),
    }
}

/// The texts of section 6, and whether they are valid UTF-8.
const UTF8: &[(bool, &[u8])] = &[
    // 6.1, 6.2
    (true, b""),
    (true, "Hello-\u{b5}@\u{df}\u{f6}\u{e4}\u{fc}\u{e0}\u{e1}-UTF-8!!".as_bytes()),
    // 6.3, 6.4
    (false, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64"),
    (false, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80\x65\x64\x69\x74\x65\x64"),
    // 6.5
    (true, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"),
    // 6.6
    (false, b"\xce"),
    (false, b"\xce\xba\xe1"),
    (false, b"\xce\xba\xe1\xbd"),
    (false, b"\xce\xba\xe1\xbd\xb9\xcf"),
    // 6.7, 6.8: the first and last character of each length, and invalid ones.
    (true, b"\x7f"),
    (true, b"\xc2\x80"),
    (true, b"\xe0\xa0\x80"),
    (true, b"\xf0\x90\x80\x80"),
    (false, b"\xf8\x88\x80\x80\x80"),
    (false, b"\xfc\x84\x80\x80\x80\x80"),
    // 6.9, 6.10
    (true, b"\xdf\xbf"),
    (true, b"\xef\xbf\xbf"),
    (true, b"\xf4\x8f\xbf\xbf"),
    (false, b"\xf7\xbf\xbf\xbf"),
    (false, b"\xfb\xbf\xbf\xbf\xbf"),
    (false, b"\xfd\xbf\xbf\xbf\xbf\xbf"),
    // 6.11
    (true, b"\xed\x9f\xbf"),
    (true, b"\xee\x80\x80"),
    (true, b"\xef\xbf\xbd"),
    (false, b"\xf4\x90\x80\x80"),
    // 6.12, 6.13: unexpected continuation bytes.
    (false, b"\x80"),
    (false, b"\xbf"),
    (false, b"\x80\xbf"),
    (false, b"\x80\xbf\x80\xbf\x80\xbf"),
    // 6.14: truncated sequences.
    (false, b"\xc0 \xc1 \xc2 \xdf "),
    (false, b"\xe0 \xe1 \xef "),
    (false, b"\xf0 \xf1 \xf7 "),
    (false, b"\xf8 \xfb "),
    (false, b"\xfc \xfd "),
    // 6.15, 6.16
    (false, b"\xc0"),
    (false, b"\xe0\x80"),
    (false, b"\xf0\x80\x80"),
    (false, b"\xdf"),
    (false, b"\xef\xbf"),
    (false, b"\xf7\xbf\xbf"),
    (false, b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80"),
    // 6.17
    (false, b"\xfe"),
    (false, b"\xff"),
    (false, b"\xfe\xfe\xff\xff"),
    // 6.18, 6.19: overlong encodings.
    (false, b"\xc0\xaf"),
    (false, b"\xe0\x80\xaf"),
    (false, b"\xf0\x80\x80\xaf"),
    (false, b"\xf8\x80\x80\x80\xaf"),
    (false, b"\xfc\x80\x80\x80\x80\xaf"),
    (false, b"\xc1\xbf"),
    (false, b"\xe0\x9f\xbf"),
    (false, b"\xf0\x8f\xbf\xbf"),
    (false, b"\xc0\x80"),
    // 6.20, 6.21: surrogates.
    (false, b"\xed\xa0\x80"),
    (false, b"\xed\xad\xbf"),
    (false, b"\xed\xae\x80"),
    (false, b"\xed\xbf\xbf"),
    (false, b"\xed\xa0\x80\xed\xb0\x80"),
    // 6.22, 6.23: noncharacters, which are valid UTF-8.
    (true, b"\xef\xbf\xbe"),
    (true, b"\xf0\x9f\xbf\xbe"),
    (true, b"\xf0\xaf\xbf\xbf"),
    (true, b"\xf3\xbf\xbf\xbf"),
];

#[test]
fn section_7_closing() {
    let gone = || sent(FINAL | CLOSE, "");
    let hello = || text("Hello World!");
    let long = "*".repeat(123);
    check(vec![
        ("7.1.1", vec![hello(), closing(1000, b"")], vec![line("Hello World!"), closed(1000, "")]),
        ("7.1.2", vec![closing(1000, b""), closing(1000, b"")], vec![closed(1000, "")]),
        ("7.1.3", vec![closing(1000, b""), sent(FINAL | PING, "")], vec![closed(1000, "")]),
        ("7.1.4", vec![closing(1000, b""), hello()], vec![closed(1000, "")]),
        (
            "7.1.5",
            vec![sent(TEXT, "fragment1"), closing(1000, b""), sent(FINAL | CONTINUATION, "fragment2")],
            vec![closed(1000, ""), partial("fragment1")],
        ),
        (
            "7.1.6",
            vec![text(&"BAsd7&jh23".repeat(26_214)), hello(), closing(1000, b""), sent(FINAL | PING, "")],
            vec![line(&"BAsd7&jh23".repeat(26_214)), line("Hello World!"), closed(1000, "")],
        ),
        ("7.3.1", vec![gone()], vec![DecodedItem::Close(None, String::new())]),
        ("7.3.2", vec![sent(FINAL | CLOSE, "a")], vec![FAULT]),
        ("7.3.3", vec![closing(1000, b"")], vec![closed(1000, "")]),
        ("7.3.4", vec![closing(1000, b"Hello World!")], vec![closed(1000, "Hello World!")]),
        ("7.3.5", vec![closing(1000, long.as_bytes())], vec![closed(1000, &long)]),
        ("7.3.6", vec![closing(1000, &[b'*'; 124])], vec![FAULT]),
        (
            "7.5.1",
            vec![closing(1000, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64")],
            vec![DecodedItem::Fault(1007)],
        ),
        ("half a character", vec![closing(1000, b"\xce")], vec![DecodedItem::Fault(1007)]),
    ]);
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999] {
        check(vec![("7.7", vec![closing(code, b""), hello()], vec![closed(code, "")])]);
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        check(vec![("7.9, 7.13", vec![closing(code, b"why"), hello()], vec![FAULT])]);
    }
}

#[test]
fn a_server_has_to_follow_the_same_rules_without_a_mask() {
    let sent = |first, payload: &str| frame(Role::Client, first, payload.as_bytes());
    let cases = [
        (
            vec![sent(0x81, "Hello"), sent(0x89, ""), sent(0x88, "")],
            vec![line("Hello"), ping(""), DecodedItem::Close(None, String::new())],
        ),
        (vec![sent(0x01, "a"), sent(0x89, "b"), sent(0x00, ""), sent(0x80, "c")], vec![ping("b"), line("ac")]),
        (vec![sent(0x81, "Hello"), frame(Role::Server, 0x81, b"Hello")], vec![line("Hello"), FAULT]),
        (vec![sent(0x80, "")], vec![FAULT]),
        (vec![sent(0x01, "a"), sent(0x81, "b")], vec![FAULT, partial("a")]),
        (vec![sent(0xC1, "a")], vec![FAULT]),
    ];
    for (frames, expected) in cases {
        assert_eq!(decode_in_all_ways(Role::Client, &frames.concat()), expected);
    }
    let unmasked = frame(Role::Client, 0x81, b"Hello");
    assert_eq!(decode_in_all_ways(Role::Server, &unmasked), [FAULT]);
}
