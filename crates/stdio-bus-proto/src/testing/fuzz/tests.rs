//! The same checks with bytes that proptest makes of the fuzzers' dictionaries (`fuzz/words`).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use stdio_bus_sim::bytes::{cuts, parts};
use stdio_bus_sim::strategies::{in_pieces, text, words};

const ACP: &str = include_str!("../../../../../fuzz/words/acp");
const HTTP1: &str = include_str!("../../../../../fuzz/words/http1");
const IDENTITY: &str = include_str!("../../../../../fuzz/words/identity");
const MCP: &str = include_str!("../../../../../fuzz/words/mcp");
const PROXY: &str = include_str!("../../../../../fuzz/words/proxy");
const WEBSOCKET: &str = include_str!("../../../../../fuzz/words/websocket");

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_of_http_give_the_same_and_have_one_meaning(bytes in in_pieces(text(HTTP1, 12))) {
        let (first, pieces, stream) = parts(&bytes).expect("it is in pieces");
        super::http1::check(first, stream, &|length| cuts(pieces, length));
    }

    #[test]
    fn any_pieces_at_the_door_for_mcp_ask_for_the_same_and_a_session_loses_nothing(bytes in in_pieces(text(MCP, 16))) {
        let (first, pieces, stream) = parts(&bytes).expect("it is in pieces");
        super::mcp::check(first, stream, &|length| cuts(pieces, length));
    }

    #[test]
    fn any_pieces_at_the_door_for_acp_ask_for_the_same_and_streams_lose_nothing(bytes in in_pieces(text(ACP, 16))) {
        let (first, pieces, stream) = parts(&bytes).expect("it is in pieces");
        super::acp::check(first, stream, &|length| cuts(pieces, length));
    }

    #[test]
    fn a_name_in_any_head_is_what_one_line_of_a_believed_proxy_says(
        words in vec(select(words(IDENTITY)), 0..9),
        rest in text(IDENTITY, 9),
    ) {
        let begin = b"GET /mcp HTTP/1.1\r\nHost: a\r\nX-User:";
        for rest in [words.concat(), rest] {
            super::identity::check(&rest);
            super::identity::check(&[&begin[..], &rest, b"\r\n\r\n"].concat());
        }
    }

    #[test]
    fn any_pieces_of_a_proxy_header_give_the_same(
        pieces in vec(any::<u8>(), 0..8),
        words in vec(select(words(PROXY)), 0..9),
        rest in text(PROXY, 9),
    ) {
        for stream in [words.concat(), rest] {
            super::proxy::check(&stream, &|length| cuts(&pieces, length));
        }
    }

    #[test]
    fn any_pieces_of_a_websocket_give_the_same_and_what_others_read(bytes in in_pieces(text(WEBSOCKET, 16))) {
        let (first, pieces, stream) = parts(&bytes).expect("it is in pieces");
        super::websocket::check(first, stream, &|length| cuts(pieces, length));
    }
}
