//! The same bodies with bytes that proptest makes of the words that the fuzzers try (`fuzz/words`).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const JSON: &str = include_str!("../../../fuzz/words/json");
const CONFIGURATION: &str = include_str!("../../../fuzz/words/configuration");
const PROXY: &str = include_str!("../../../fuzz/words/proxy");
const WEBSOCKET: &str = include_str!("../../../fuzz/words/websocket");
const ANSWERS: &str = include_str!("../../../fuzz/words/answers");
const EVENTS: &str = include_str!("../../../fuzz/words/events");

const KEYS: &[&str] =
    &["id", "method", "params", "result", "error", "sessionId", "pool", "requestId", "\\u0069d", "é\\n", "k"];
const SCALARS: &[&str] =
    &["1", "-0.5e+7", "123456789012", "\"s\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\"", "\"é😀\"", "null", "true"];

/// The words of a file, each of which stands in quotes, with `\"`, `\\` and `\x0a` for bytes that cannot.
fn words(file: &str) -> Vec<Vec<u8>> {
    let quoted = file.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    let words: Vec<Vec<u8>> = quoted
        .map(|mut text| {
            let mut word = Vec::new();
            while let Some((plain, escape)) = text.split_once('\\') {
                word.extend_from_slice(plain.as_bytes());
                match escape.strip_prefix('x') {
                    Some(hex) => {
                        word.push(u8::from_str_radix(&hex[..2], 16).expect("two digits"));
                        text = &hex[2..];
                    }
                    None => {
                        word.push(escape.as_bytes()[0]);
                        text = &escape[1..];
                    }
                }
            }
            [&word, text.as_bytes()].concat()
        })
        .collect();
    assert!(words.len() > 8 && words.iter().all(|word| !word.is_empty()));
    words
}

/// Bytes that are put together from words and, now and then, others.
fn text(file: &str, most: usize) -> impl Strategy<Value = Vec<u8>> + use<> {
    let piece = prop_oneof![
        8 => select(words(file)),
        1 => vec(any::<u8>(), 0..6),
        1 => "\\PC{0,6}".prop_map(String::into_bytes),
    ];
    vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

/// Lines that are messages, but for some words that may stand in them where they do not belong.
fn messages(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let object = |value: BoxedStrategy<String>| {
        vec((select(KEYS), value), 0..5).prop_map(|members| {
            let members: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
            format!("{{{}}}", members.join(","))
        })
    };
    let scalar = select(SCALARS).prop_map(str::to_owned);
    let value = scalar.prop_recursive(3, 12, 4, move |value| {
        let array = vec(value.clone(), 0..4).prop_map(|values| format!("[{}]", values.join(",")));
        prop_oneof![array, object(value.boxed())]
    });
    let stray = proptest::option::weighted(0.3, (any::<Index>(), text(JSON, 2)));
    let line = (object(value.boxed()), stray).prop_map(|(line, stray)| {
        let mut line = line.into_bytes();
        if let Some((at, word)) = stray {
            let at = at.index(line.len() + 1);
            line.splice(at..at, word);
        }
        line.push(b'\n');
        line
    });
    vec(line, 1..=most).prop_map(|lines| lines.concat())
}

/// A byte for the body, up to seven lengths of pieces, and the stream.
fn in_pieces(stream: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let head = (any::<u8>(), vec(prop_oneof![1_u8..9, any::<u8>()], 0..8));
    (head, stream).prop_map(|((first, pieces), stream)| {
        let count = pieces.len() as u8;
        [&[first, count][..], &pieces, &stream].concat()
    })
}

/// A configuration that is good but for some members that are put in, which may be good as well.
fn configuration() -> impl Strategy<Value = Vec<u8>> {
    let member = || prop_oneof![2 => Just(Vec::new()), 1 => text(CONFIGURATION, 4), 1 => select(words(CONFIGURATION))];
    (member(), member()).prop_map(|(top, pool)| {
        let good = &b"{\"pools\":[{\"id\":\"a\",\"command\":\"sh\",\"instances\":1"[..];
        [good, &pool, b"}]", &top, b"}"].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_of_a_stream_give_the_same_lines(bytes in in_pieces(prop_oneof![text(JSON, 24), messages(6)])) {
        super::framing::check(&bytes);
    }

    #[test]
    fn a_line_is_what_two_other_parsers_say(bytes in prop_oneof![1 => text(JSON, 24), 4 => messages(1)]) {
        super::scanner::check(&bytes);
    }

    #[test]
    fn any_bytes_are_a_configuration_that_can_start_or_an_error(
        bytes in prop_oneof![text(CONFIGURATION, 12), configuration()],
    ) {
        super::configuration::check(&bytes);
    }

    #[test]
    fn any_pieces_of_a_proxy_header_give_the_same(
        pieces in vec(any::<u8>(), 0..8),
        words in vec(select(words(PROXY)), 0..9),
        rest in text(PROXY, 9),
    ) {
        let count = pieces.len() as u8;
        for stream in [words.concat(), rest] {
            super::proxy::check(&[&[count][..], &pieces, &stream].concat());
        }
    }

    #[test]
    fn any_pieces_of_a_websocket_give_the_same_and_what_others_read(bytes in in_pieces(text(WEBSOCKET, 16))) {
        super::websocket::check(&bytes);
    }

    #[test]
    fn any_pieces_of_a_response_give_the_events_of_the_standard(bytes in in_pieces(text(EVENTS, 40))) {
        super::events::check(&bytes);
    }

    #[test]
    fn nothing_of_an_answer_is_said_twice_or_lost_in_any_pieces(
        said in in_pieces(vec(any::<u8>(), 0..30)), noise in in_pieces(text(ANSWERS, 24)),
    ) {
        for bytes in [said, noise] {
            super::answers::check(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_chosen_no_line_is_lost(bytes in vec(any::<u8>(), 0..1500)) {
        super::core::check(&bytes);
    }
}

#[test]
fn the_examples_are_configurations_that_can_start() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    for name in ["minimal.json", "full.json"] {
        super::configuration::check(&std::fs::read(format!("{folder}/{name}")).unwrap());
    }
}

/// What a fuzzer of the core found, with all that happened before it: `STDIO_BUS_SIM_CHOICES` names its file.
#[test]
fn choices_of_a_file_are_lived_through() {
    if let Some(path) = std::env::var_os("STDIO_BUS_SIM_CHOICES") {
        super::core::check_and_tell(&std::fs::read(path).expect("STDIO_BUS_SIM_CHOICES names a file"));
    }
}

#[test]
fn a_name_that_serde_json_cannot_read_may_stand_beside_a_key_that_stands_twice() {
    super::scanner::check(br#"{"id":1,"\ud83d":1,"id":2}"#);
}
