//! The same properties with bytes that proptest makes of the fuzzers' words (`fuzz/words`).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::strategies::{in_pieces, text};

const JSON: &str = include_str!("../../../../fuzz/words/json");

const KEYS: &[&str] =
    &["id", "method", "params", "result", "error", "sessionId", "pool", "requestId", "\\u0069d", "é\\n", "k"];
const SCALARS: &[&str] =
    &["1", "-0.5e+7", "123456789012", "\"s\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\"", "\"é😀\"", "null", "true"];

/// Lines that are messages, except for some misplaced words.
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_of_a_stream_give_the_same_lines(bytes in in_pieces(prop_oneof![text(JSON, 24), messages(6)])) {
        super::framing::check(&bytes);
    }

    #[test]
    fn two_other_parsers_agree_on_a_line(bytes in prop_oneof![1 => text(JSON, 24), 4 => messages(1)]) {
        super::scanner::check(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_line_is_lost_whatever_the_choices(bytes in vec(any::<u8>(), 0..1500)) {
        super::core::check(&bytes);
    }
}

/// Replays a finding of the core's fuzzer with all its events: `STDIO_BUS_SIM_CHOICES` names its file.
#[test]
fn choices_from_a_file_are_replayed() {
    if let Some(path) = std::env::var_os("STDIO_BUS_SIM_CHOICES") {
        super::core::check_and_print(&std::fs::read(path).expect("STDIO_BUS_SIM_CHOICES names a file"));
    }
}

#[test]
fn an_undecodable_name_may_accompany_a_duplicate_key() {
    super::scanner::check(br#"{"id":1,"\ud83d":1,"id":2}"#);
}
