//! What arbitrary bytes decode to: the cases of the Autobahn testsuite, any cutting, and comparison with another
//! implementation.

mod autobahn;
mod others;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::frame::{Decoder, FrameEvent, MOST_EMPTY_FRAGMENTS, Received};
use super::{Mask, Role, close, encode};
use crate::testing::frames::{DecodedItem, LONGEST, read, shown};

/// Decodes them whole.
fn decode(role: Role, bytes: &[u8]) -> Vec<DecodedItem> {
    read(&mut Decoder::new(role, LONGEST), bytes, [])
}

/// Decodes them whole, byte by byte, and cut in two, at every place unless they are long.
fn decode_in_all_ways(role: Role, bytes: &[u8]) -> Vec<DecodedItem> {
    let whole = decode(role, bytes);
    let cut = |ends: &mut dyn Iterator<Item = usize>| read(&mut Decoder::new(role, LONGEST), bytes, ends);
    assert_eq!(cut(&mut (1..bytes.len())), whole, "byte by byte");
    assert_eq!(cut(&mut (1..bytes.len()).step_by(997)), whole, "in pieces of 997");
    let all = if bytes.len() > 10_000 { 32 } else { 300 };
    for end in (0..bytes.len().min(all)).chain((all..bytes.len()).step_by(bytes.len() / 20 + 1)) {
        assert_eq!(cut(&mut [end].into_iter()), whole, "cut at {end}");
    }
    whole
}

/// A frame with this first byte, as the other end of `role` sends it; the mask follows from its length.
fn frame(role: Role, first: u8, payload: &[u8]) -> Vec<u8> {
    let masked = if role == Role::Server { 0x80 } else { 0 };
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..126 => bytes.push(masked | length as u8),
        length @ 126..65_536 => {
            bytes.push(masked | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(masked | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    let key = match role {
        Role::Server => [0x37, 0xFA, payload.len() as u8, 0x3D],
        Role::Client => [0; 4],
    };
    if role == Role::Server {
        bytes.extend(key);
    }
    bytes.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    bytes
}

fn line(text: &str) -> DecodedItem {
    DecodedItem::Line(text.to_owned())
}

#[test]
fn newlines_in_a_message_become_tabs() {
    let text = "{\r\n  \"a\": [1,\n2]\r}\n";
    for role in [Role::Server, Role::Client] {
        let seen = decode_in_all_ways(role, &frame(role, 0x81, text.as_bytes()));
        assert_eq!(seen, [line("{\t\t  \"a\": [1,\t2]\t}\t")]);
    }
}

#[test]
fn control_payloads_are_not_changed() {
    let bytes = b"\r\n\0\n\xFF";
    let all = [frame(Role::Server, 0x89, bytes), frame(Role::Server, 0x8A, bytes)].concat();
    assert_eq!(
        decode_in_all_ways(Role::Server, &all),
        [DecodedItem::Ping(bytes.to_vec()), DecodedItem::Pong(bytes.to_vec())]
    );
    let all = frame(Role::Client, 0x88, b"\x03\xe8a\nb");
    assert_eq!(decode_in_all_ways(Role::Client, &all), [DecodedItem::Close(Some(1000), "a\nb".into())]);
}

#[test]
fn messages_become_lines_where_they_were_received() {
    let texts = ["{\"id\":1}", "", "{\"id\":2}", "{\"id\":3,\"method\":\"session/prompt\"}"];
    let frames: Vec<_> = texts.map(|text| frame(Role::Server, 0x81, text.as_bytes())).concat();
    let mut memory = [&frames[..], &[0xEE; 9]].concat();
    let mut received = Received::new(&mut memory, frames.len());
    let mut decoder = Decoder::new(Role::Server, LONGEST);
    let mut at = 0;
    for text in texts {
        let expected = FrameEvent::Text { piece: at..at + text.len(), is_last: true };
        assert_eq!(decoder.next(&mut received), Some(expected));
        at += text.len() + 1;
    }
    assert_eq!(decoder.next(&mut received), None);
    assert_eq!((received.text(), received.lines()), (at, format!("{}\n", texts.join("\n")).as_bytes()));
    assert_eq!(memory[frames.len()..], [0xEE; 9], "there was room enough");
}

#[test]
fn the_newline_after_an_earlier_header_takes_the_spare_byte() {
    let (first, second) = (frame(Role::Server, 0x81, b"Hello"), frame(Role::Server, 0x81, b"you"));
    for rest in [&[][..], &second[..1], &second[..4], &second[..]] {
        let mut decoder = Decoder::new(Role::Server, LONGEST);
        let (head, payload) = first.split_at(6);
        assert_eq!(read(&mut decoder, head, []), []);
        let mut memory = [payload, rest, &[0xEE; 2]].concat();
        let bytes = payload.len() + rest.len();
        let mut received = Received::new(&mut memory, bytes);
        while decoder.next(&mut received).is_some() {}
        let lines = if rest.len() == second.len() { &b"Hello\nyou\n"[..] } else { b"Hello\n" };
        assert_eq!(received.lines(), lines);
        assert_eq!(memory[bytes + 1], 0xEE, "and no more than that");
    }
}

#[test]
#[should_panic(expected = "a byte more than was received")]
fn a_spare_byte_is_required() {
    Received::new(&mut [0; 4], 4);
}

#[test]
fn the_message_limit_holds_in_however_many_frames() {
    for role in [Role::Server, Role::Client] {
        for longest in [0_u64, 5, 125, 126, 70_000] {
            let text = vec![b'x'; longest as usize + 1];
            let fits = &text[1..];
            let whole = |text: &[u8]| frame(role, 0x81, text);
            let halves = |text: &[u8]| {
                let (one, other) = text.split_at(text.len() / 2);
                [frame(role, 0x01, one), frame(role, 0x89, b""), frame(role, 0x80, other)].concat()
            };
            let decode = |bytes: &[u8]| read(&mut Decoder::new(role, longest), bytes, []);
            assert_eq!(decode(&whole(fits)), [line(&shown(fits))]);
            assert_eq!(decode(&halves(fits)), [DecodedItem::Ping(vec![]), line(&shown(fits))]);
            assert_eq!(decode(&[whole(fits), whole(fits)].concat()), [line(&shown(fits)), line(&shown(fits))]);
            assert_eq!(decode(&whole(&text)), [DecodedItem::Fault(1009)]);
            let head = whole(&text).len() - text.len();
            assert_eq!(decode(&whole(&text)[..head]), [DecodedItem::Fault(1009)], "before any of it");
            let one = text.len() / 2;
            let partial = Some(DecodedItem::Partial(shown(&text[..one]))).filter(|_| one > 0);
            let expected: Vec<DecodedItem> =
                [DecodedItem::Ping(vec![]), DecodedItem::Fault(1009)].into_iter().chain(partial).collect();
            assert_eq!(decode(&halves(&text)), expected);
        }
    }
    let endless = [&[0x82, 0x7F][..], &i64::MAX.to_be_bytes()].concat();
    let decode = |longest| read(&mut Decoder::new(Role::Client, longest), &endless, []);
    assert_eq!((decode(LONGEST), decode(u64::MAX)), (vec![DecodedItem::Fault(1009)], vec![]));
}

#[test]
fn the_empty_fragments_of_a_message_are_limited() {
    for first in [0x01, 0x02] {
        let empty = frame(Role::Server, 0x00, b"");
        let most = [frame(Role::Server, first, b"x"), empty.repeat(MOST_EMPTY_FRAGMENTS as usize)].concat();
        let last = if first == 1 { line("xy") } else { DecodedItem::Binary(2) };
        let good = [&most[..], &frame(Role::Server, 0x80, b"y")].concat();
        assert_eq!(decode(Role::Server, &[&good[..], &good].concat()), [last.clone(), last]);
        let expected = [Some(DecodedItem::Fault(1008)), Some(DecodedItem::Partial("x".into())).filter(|_| first == 1)];
        let seen = decode(Role::Server, &[most, empty].concat());
        assert_eq!(seen, expected.into_iter().flatten().collect::<Vec<_>>());
    }
}

#[test]
fn a_decoder_knows_whether_it_is_in_the_middle_of_something() {
    let all = [frame(Role::Server, 0x01, b"ab"), frame(Role::Server, 0x89, b"c"), frame(Role::Server, 0x80, b"")];
    let bytes = all.concat();
    let mut decoder = Decoder::new(Role::Server, LONGEST);
    for end in 1..=bytes.len() {
        read(&mut decoder, &bytes[end - 1..end], []);
        assert_eq!(decoder.is_in_message(), end < bytes.len(), "{end}");
    }
    assert_eq!(read(&mut decoder, &frame(Role::Server, 0x88, b""), []), [DecodedItem::Close(None, String::new())]);
    assert_eq!((decoder.is_over(), decoder.is_in_message()), (true, false));
}

#[test]
fn codes_that_no_frame_may_carry_are_not_sent() {
    for code in 0..=u16::MAX {
        let expected = match code {
            1000..=1003 | 1007..=1014 | 3000..=4999 => DecodedItem::Close(Some(code), "why".into()),
            _ => DecodedItem::Fault(1002),
        };
        assert_eq!(close::may_be_sent(code), expected != DecodedItem::Fault(1002));
        let payload = [&code.to_be_bytes()[..], b"why"].concat();
        assert_eq!(decode(Role::Server, &frame(Role::Server, 0x88, &payload)), [expected]);
    }
}

/// One item to send.
#[derive(Clone, Debug)]
enum Sent {
    Text(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

fn sent() -> impl Strategy<Value = Sent> {
    let length = prop_oneof![6 => 0_usize..200, 1 => select(vec![125, 126, 127, 65_535, 65_536, 70_000])];
    let text = (length, any::<u8>())
        .prop_map(|(length, first)| Sent::Text((0..length).map(|at| first.wrapping_add(at as u8).max(b' ')).collect()));
    let payload = || vec(any::<u8>(), 0..=125);
    prop_oneof![4 => text, 1 => payload().prop_map(Sent::Ping), 1 => payload().prop_map(Sent::Pong)]
}

/// Our encoding of it, as sent by the other end of `role`, and the expected event.
fn encoded(role: Role, sent: &Sent, key: [u8; 4]) -> (Vec<u8>, DecodedItem) {
    let mask = (role == Role::Server).then(|| Mask::new(key));
    match sent {
        Sent::Text(text) => {
            let mut payload = text.clone();
            mask.map(|mask| mask.apply(&mut payload));
            ([&encode::text(text.len(), mask)[..], &payload].concat(), DecodedItem::Line(shown(text)))
        }
        Sent::Ping(payload) => (encode::ping(payload, mask).to_vec(), DecodedItem::Ping(payload.clone())),
        Sent::Pong(payload) => (encode::pong(payload, mask).to_vec(), DecodedItem::Pong(payload.clone())),
    }
}

fn role() -> impl Strategy<Value = Role> {
    select(vec![Role::Server, Role::Client])
}

/// Frames that are valid more often than not.
fn any_frames(role: Role) -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![8 => select(vec![0x01, 0x00, 0x80, 0x81, 0x02, 0x82, 0x89, 0x8A]), 1 => any::<u8>()];
    let payload = prop_oneof![4 => "[ -~\n]{0,40}".prop_map(String::into_bytes), 1 => vec(any::<u8>(), 0..200)];
    let close = (select(vec![1000_u16, 1001, 1005, 4000]), "[ -~é]{0,10}")
        .prop_map(move |(code, why)| frame(role, 0x88, &[&code.to_be_bytes()[..], why.as_bytes()].concat()));
    let frame = (first, payload).prop_map(move |(first, payload)| frame(role, first, &payload));
    let piece = prop_oneof![12 => frame, 1 => close, 1 => vec(any::<u8>(), 0..4)];
    vec(piece, 0..12).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(role in role(), all in vec((sent(), any::<[u8; 4]>()), 0..8), piece in 1_usize..5000) {
        let (frames, expected): (Vec<_>, Vec<_>) = all.iter().map(|(sent, key)| encoded(role, sent, *key)).unzip();
        let frames = frames.concat();
        let ends = (piece..frames.len()).step_by(piece);
        prop_assert_eq!(read(&mut Decoder::new(role, LONGEST), &frames, ends), expected);
    }

    #[test]
    fn any_pieces_give_the_same(
        (role, bytes) in role().prop_flat_map(|role| (Just(role), any_frames(role))),
        pieces in vec(1_usize..40, 1..9),
        longest in select(vec![30, 150, LONGEST]),
    ) {
        let whole = read(&mut Decoder::new(role, longest), &bytes, []);
        let mut at = 0;
        let ends = pieces.iter().cycle().map(|piece| { at += piece; at });
        let ends: Vec<usize> = ends.take_while(|end| *end < bytes.len()).collect();
        prop_assert_eq!(read(&mut Decoder::new(role, longest), &bytes, ends), whole.clone());
        prop_assert_eq!(read(&mut Decoder::new(role, longest), &bytes, 1..bytes.len().max(1)), whole);
    }

    #[test]
    fn no_bytes_make_it_panic(role in role(), bytes in vec(any::<u8>(), 0..400), piece in 1_usize..400) {
        let ends = (piece..bytes.len()).step_by(piece);
        prop_assert_eq!(read(&mut Decoder::new(role, LONGEST), &bytes, ends), decode(role, &bytes));
    }
}
