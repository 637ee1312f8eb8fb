//! However the bytes are cut, the same lines come out; and no line is read again and again.

use super::held::read_held;
use super::{read, sets};
use crate::oracle::{Judgement, as_judged, judge};
use ndjson_scan::{BATCH, MOST_DOUBTFUL, PAD, Partial, ScanResult, Scanner, Window};
use proptest::prelude::*;

/// A JSON value as text, with white space here and there, of every kind and with every kind of escape.
fn value() -> impl Strategy<Value = String> {
    let string = prop_oneof![
        "[ -~é中😀]{0,20}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        proptest::collection::vec(
            prop_oneof![
                Just("\\n"),
                Just("\\\""),
                Just("\\\\"),
                Just("\\u00e9"),
                Just("\\ud83d"),
                Just("é"),
                Just("a")
            ],
            0..80
        )
        .prop_map(|parts| format!("\"{}\"", parts.concat())),
    ];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?",
        string,
    ];
    leaf.prop_recursive(6, 40, 6, |inner| {
        let space = || prop_oneof![6 => Just(""), 1 => Just(" "), 1 => Just(" \t\r ")];
        let array = (space(), proptest::collection::vec((inner.clone(), space()), 0..6)).prop_map(|(first, items)| {
            let items: Vec<_> = items.into_iter().map(|(item, space)| format!("{item}{space}")).collect();
            format!("[{first}{}]", items.join(","))
        });
        let object = (space(), proptest::collection::vec((key(), space(), inner), 0..6)).prop_map(|(first, items)| {
            let items: Vec<_> =
                items.into_iter().map(|(key, space, item)| format!("{key}{space}:{space}{item}{space}")).collect();
            format!("{{{first}{}}}", items.join(","))
        });
        prop_oneof![array, object]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "\"[a-z]{0,12}\"",
        1 => Just(r#""id""#.to_owned()),
        1 => Just(r#""method""#.to_owned()),
        1 => Just(r#""params""#.to_owned()),
        1 => Just(r#""result""#.to_owned()),
        1 => Just(r#""error""#.to_owned()),
        1 => Just(r#""sessionId""#.to_owned()),
        1 => Just(r#""requestId""#.to_owned()),
        1 => Just(r#""progressToken""#.to_owned()),
        1 => Just(r#""_meta""#.to_owned()),
        1 => Just(r#""pool""#.to_owned()),
        1 => Just(r#""m\u0065thod""#.to_owned()),
        1 => Just(r#""sessionI\u0064""#.to_owned()),
        1 => Just(r#""i\u0064""#.to_owned()),
    ]
}

fn message() -> impl Strategy<Value = String> {
    proptest::collection::vec((key(), value()), 0..6).prop_map(|members| {
        let members: Vec<_> = members.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

proptest! {
    #[test]
    fn lines_come_out_the_same_however_they_are_cut(
        messages in proptest::collection::vec(message(), 1..8),
        damage in proptest::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        uses in 0..3_usize,
    ) {
        let mut stream: Vec<u8> = messages.iter().flat_map(|message| [message.as_bytes(), b"\n"].concat()).collect();
        if let Some((place, byte)) = damage {
            let place = place.index(stream.len());
            stream[place] = byte;
        }
        stream.push(b'\n');
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.sort_unstable();

        let mut judgements = Vec::new();
        for line in stream.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            judgements.push(judge(line));
            if judgements.ends_with(&[Judgement::Malformed]) {
                break;
            }
        }
        let whole = read(&mut Scanner::with(sets()[0]).unwrap(), &stream, &[], 0);
        prop_assert_eq!(whole.malformed.is_some(), judgements.ends_with(&[Judgement::Malformed]));
        prop_assert_eq!(whole.lines.len() + whole.malformed.iter().len(), judgements.len());
        for (line, judgement) in whole.lines.iter().zip(&judgements) {
            if *judgement != Judgement::Undecided {
                prop_assert_eq!(&as_judged(&stream, line), judgement);
            }
        }
        // simd-json refuses some valid lines (huge numbers, lone surrogates) but accepts no bad one.
        for line in stream.split(|&byte| byte == b'\n') {
            if simd_json::to_tape(&mut line.to_vec()).is_ok() {
                prop_assert!(is_json(line));
            }
        }
        for set in sets() {
            let scanner = &mut Scanner::with(set).unwrap();
            for garbage in [b'"', b'\n', 0xFF] {
                prop_assert_eq!(&read(scanner, &stream, &cuts, garbage), &whole, "{:?}", set);
                prop_assert_eq!(&read_held(scanner, &stream, &cuts, garbage, uses), &whole, "{:?}, used later", set);
            }
        }
    }
}

/// Whether a line is valid JSON, even if it is not a message.
fn is_json(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

#[test]
fn every_cut_in_two_gives_the_same_lines() {
    let stream = "{\"id\":\"\\u00e9\\\\\",\"params\":{\"sessionId\":\"é中😀\",\"x\":[1,-2.5e10,true,null,{}]}}\r\n\n{\"method\":\
         \"a/b\",\"\\u0069d\":null}\n{\"result\":{\"sessionId\":\"s\"},\"id\":12345678901}\n"
        .as_bytes();
    let whole = read(&mut Scanner::with(sets()[0]).unwrap(), stream, &[], 0);
    assert_eq!(whole.lines.len(), 3);
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for cut in 0..stream.len() {
            assert_eq!(read(scanner, stream, &[cut], b'\n'), whole, "{set:?} {cut}");
            assert_eq!(read(scanner, stream, &[cut, (cut + 3).min(stream.len())], b'"'), whole, "{set:?} {cut}");
        }
        assert_eq!(read(scanner, stream, &(0..stream.len()).collect::<Vec<_>>(), b'}'), whole, "{set:?}");
    }
}

/// Lines of about this length that are hard in different ways: one string, many tokens, deep, and in doubt.
fn long_lines(length: usize) -> Vec<Vec<u8>> {
    let many = |item: &str| item.repeat(length / item.len());
    vec![
        format!("{{\"a\":\"{}\"}}\n", many("x")).into_bytes(),
        format!("{{\"a\":\"{}\"}}\n", many("\\u00e9\\n中")).into_bytes(),
        format!("{{\"a\":[{}0]}}\n", many("1,")).into_bytes(),
        format!("{{\"\\u0061\":[{}0]}}\n", many("{},")).into_bytes(),
        format!("{{\"a\":{}{}1{}}}\n", many(" "), "[".repeat(300), "]".repeat(300)).into_bytes(),
        format!("{{\"a\":{}1{},\"b\":\"{}\"}}\n", "[".repeat(300), "]".repeat(300), many("y")).into_bytes(),
        format!("{}{{}}\n", many(" ")).into_bytes(),
    ]
}

/// Scans `line` as it grows by `step` bytes, without moving it. Returns how many bytes were examined.
fn grow(scanner: &mut Scanner, line: &[u8], step: usize) -> u64 {
    let buffer = [&[b'\n'; PAD][..], line, &[b'\n'; PAD]].concat();
    let mut partial = Partial::new();
    let mut lines = Vec::with_capacity(BATCH);
    let mut end = 0;
    while end < line.len() {
        end = (end + step).min(line.len());
        let window = Window::new(&buffer, PAD, PAD + end);
        let outcome = loop {
            match scanner.scan(&mut partial, window, &mut lines) {
                ScanResult::Full => {}
                outcome => break outcome,
            }
        };
        assert_eq!((outcome, lines.len()), (ScanResult::More, usize::from(end == line.len())));
    }
    assert_eq!((partial.consumed(), lines.len()), (line.len(), 1));
    partial.looked_at()
}

#[test]
fn a_long_line_in_small_pieces_is_read_once() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for step in [1, 7, 64, 1000, 16 << 10] {
            // What is read anew for each piece is as clear from four times what is looked at byte by byte at once.
            let length = if step < 64 { 4 * MOST_DOUBTFUL } else { 1 << 20 };
            for line in long_lines(length) {
                let looked_at = grow(scanner, &line, step);
                // Once in blocks, and once more byte by byte if it is in doubt.
                assert!(looked_at <= 3 * line.len() as u64, "{set:?} {step}: {looked_at} of {}", line.len());
            }
        }
    }
}

#[test]
fn a_fault_in_an_unfinished_line_is_reported_before_its_end() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        for fault in ["{\"a\":01", "{\"id\":1,\"id\":2", "{\"a\":\"\\x", "{\"a\":[}", "nothing", "{\"a\":\"\u{1}"] {
            // The rest of a block is enough for every set; the line never ends.
            let text = format!("{fault}{}", " ".repeat(128));
            let buffer = [&[b' '; PAD][..], text.as_bytes(), &[b' '; PAD]].concat();
            let mut lines = Vec::new();
            let window = Window::new(&buffer, PAD, PAD + text.len());
            let outcome = scanner.scan(&mut Partial::new(), window, &mut lines);
            assert!(matches!(outcome, ScanResult::Malformed { line: 0, .. }), "{set:?} {fault} {outcome:?}");
        }
    }
}

#[test]
fn a_long_line_that_is_doubtful_at_its_end_is_read_in_shares() {
    let numbers = "1,".repeat(8 * MOST_DOUBTFUL);
    for (end, is_valid) in [(r#""m\u0065thod":"m"}"#, true), (r#""id":2}"#, false), ("]}", false)] {
        let text = format!("{{\"id\":1}}\n{{\"id\":1,\"x\":[{numbers}1],{end}\n{{\"id\":3}}\n");
        let buffer = [&[b'"'; PAD][..], text.as_bytes(), &[b'"'; PAD]].concat();
        let window = Window::new(&buffer, PAD, PAD + text.len());
        for set in sets() {
            let scanner = &mut Scanner::with(set).unwrap();
            let (mut partial, mut lines, mut shares) = (Partial::new(), Vec::new(), Vec::new());
            let outcome = loop {
                let before = partial.looked_at();
                match scanner.scan(&mut partial, window, &mut lines) {
                    ScanResult::Full => shares.push(partial.looked_at() - before),
                    other => break other,
                }
            };
            let methods: Vec<&[u8]> = lines.iter().map(|line| window.get(line.method)).collect();
            match is_valid {
                true => {
                    assert_eq!((outcome, &methods[..]), (ScanResult::More, &[&b""[..], b"\"m\"", b""][..]), "{set:?}")
                }
                false => {
                    assert!(matches!(outcome, ScanResult::Malformed { .. }) && lines.len() == 1, "{set:?} {outcome:?}")
                }
            }
            assert!(shares.len() >= text.len() / MOST_DOUBTFUL, "{set:?} {shares:?}");
            assert!(shares[1..].iter().all(|share| *share <= MOST_DOUBTFUL as u64), "{set:?} {shares:?}");
        }
    }
}

#[test]
fn a_number_of_many_digits_is_read_in_shares() {
    let digits = "9".repeat(8 * MOST_DOUBTFUL);
    for text in [format!("{{\"id\":{digits}}}\n"), format!("{{\"id\":1,\"x\":[-0.{digits},1e{digits}]}}\n")] {
        let buffer = [&[b'"'; PAD][..], text.as_bytes(), &[b'"'; PAD]].concat();
        let window = Window::new(&buffer, PAD, PAD + text.len());
        for set in sets() {
            let scanner = &mut Scanner::with(set).unwrap();
            let (mut partial, mut lines, mut shares) = (Partial::new(), Vec::new(), 0);
            while scanner.scan(&mut partial, window, &mut lines) == ScanResult::Full {
                shares += 1;
            }
            assert_eq!(lines.len(), 1, "{set:?}");
            assert!(shares >= text.len() / MOST_DOUBTFUL, "{set:?} {shares}");
        }
    }
}

#[test]
fn a_malformed_line_is_found_again_and_again() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        let text = b"{}\n{\"id\":1,\"id\":2}\n{}\n";
        let buffer = [&[b'"'; PAD][..], text, &[b'"'; PAD]].concat();
        let mut partial = Partial::new();
        let mut lines = Vec::new();
        let expected = scanner.scan(&mut partial, Window::new(&buffer, PAD, PAD + text.len()), &mut lines);
        assert!(matches!(expected, ScanResult::Malformed { line: 3, .. }), "{set:?} {expected:?}");
        for _ in 0..3 {
            let again = scanner.scan(&mut partial, Window::new(&buffer, PAD, PAD + text.len()), &mut lines);
            assert_eq!((again, lines.len()), (expected, 1), "{set:?}");
        }
    }
}

#[test]
fn a_reset_connection_reads_its_window_again() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        let text = b"{\"id\":1}\n{\"id\":2}\n{\"a\":\"this line is longer than one block of sixty-four bytes, and";
        let buffer = [&[b'"'; PAD][..], text, &[b'"'; PAD]].concat();
        let mut partial = Partial::new();
        let mut first = Vec::new();
        let window = Window::new(&buffer, PAD, PAD + text.len());
        assert_eq!(scanner.scan(&mut partial, window, &mut first), ScanResult::More);
        assert_eq!(first.len(), 2);
        partial.reset();
        assert_eq!((partial.consumed(), partial.scanned()), (0, 0));
        let mut second = Vec::new();
        let window = Window::new(&buffer, PAD + 9, PAD + text.len());
        assert_eq!(scanner.scan(&mut partial, window, &mut second), ScanResult::More);
        assert_eq!(second.len(), 1);
        assert_eq!(window.get(second[0].id), b"2");
        assert_eq!(partial.consume(), 9);
        assert_eq!(partial.consumed(), 0);
    }
}
