//! The same properties with bytes that proptest makes of the fuzzers' words (`fuzz/words`).

use proptest::collection::vec;
use proptest::prelude::*;

use self::bytes::{cuts, parts};
use self::strategies::{in_pieces, text};

// Only the files: a change of the core rebuilds nothing here.
#[path = "../../../stdio-bus-sim/src/bytes.rs"]
#[allow(unreachable_pub, reason = "it is public where it is at home")]
mod bytes;
#[path = "../../../stdio-bus-sim/src/strategies.rs"]
#[allow(unreachable_pub, reason = "it is public where it is at home")]
mod strategies;

const ANSWERS: &str = include_str!("../../../../fuzz/words/answers");
const EVENTS: &str = include_str!("../../../../fuzz/words/events");

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_of_a_response_give_the_events_of_the_standard(bytes in in_pieces(text(EVENTS, 40))) {
        let (first, pieces, stream) = parts(&bytes).expect("it is in pieces");
        super::events::check(first, stream, &|length| cuts(pieces, length));
    }

    #[test]
    fn nothing_of_an_answer_is_repeated_or_lost_in_any_pieces(
        said in in_pieces(vec(any::<u8>(), 0..30)), noise in in_pieces(text(ANSWERS, 24)),
    ) {
        for bytes in [said, noise] {
            let (first, pieces, rest) = parts(&bytes).expect("it is in pieces");
            super::answers::check(first, rest, &|length| cuts(pieces, length));
        }
    }
}
