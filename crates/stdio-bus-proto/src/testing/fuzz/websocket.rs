//! Any bytes in any pieces: messages do not depend on how the frames are cut, and are the same in tungstenite until a
//! fault; decoded messages can be sent, and are read again, also by tungstenite. The same holds for the head of a
//! request or response.
//!
//! The first byte chooses the role.

use super::Cut;
use crate::http1::{HeadReader, LONGEST_HEAD};
use crate::testing::frames::{DecodedItem, LONGEST, meant, read, read_by_them, read_request};
use crate::websocket::frame::Decoder;
use crate::websocket::{Mask, Role, client, encode};

/// Decodes them with all these cuts.
///
/// # Panics
/// If the result depends on the cuts.
pub fn check(first: u8, stream: &[u8], cut: Cut<'_>) {
    let role = if first & 1 == 0 { Role::Server } else { Role::Client };
    let cuts = cut(stream.len());
    // Sometimes with a very low limit.
    for longest in [LONGEST, u64::from(first >> 1)] {
        let whole = read(&mut Decoder::new(role, longest), stream, []);
        for ends in [cuts.clone(), (1..stream.len()).collect()] {
            let cut = read(&mut Decoder::new(role, longest), stream, ends.iter().copied());
            assert_eq!(cut, whole, "cut at {ends:?}");
        }
    }
    let seen = read(&mut Decoder::new(role, LONGEST), stream, []);
    compare(role, stream, &seen);
    send_again(role, &seen);
    check_heads(stream, &cuts);
}

/// We are stricter: tungstenite accepts overlong length encodings, and any number of empty fragments. It checks UTF-8,
/// which we leave to the reader of the lines.
fn compare(role: Role, stream: &[u8], seen: &[DecodedItem]) {
    use tungstenite::Error::Utf8;
    let is_faulty = seen.iter().any(|seen| matches!(seen, DecodedItem::Fault(_)));
    let ours: Vec<_> =
        seen.iter().filter(|seen| !matches!(seen, DecodedItem::Fault(_) | DecodedItem::Partial(_))).cloned().collect();
    let (theirs, error) = read_by_them(role, stream);
    let is_same = match (is_faulty, &error) {
        (false, None) => theirs == ours,
        (false, Some(Utf8(_))) => ours.starts_with(&theirs),
        (false, Some(_)) => false,
        (true, Some(Utf8(_))) => ours.starts_with(&theirs) || theirs.starts_with(&ours),
        (true, _) => theirs.starts_with(&ours),
    };
    assert!(is_same, "ours {seen:?}, theirs {theirs:?} and {error:?}");
}

/// Decoded items are encoded again, as by the end that they came from.
fn send_again(role: Role, seen: &[DecodedItem]) {
    let mask = (role == Role::Server).then(|| Mask::new([0x37, 0xFA, 0x21, 0x3D]));
    let (mut frames, mut expected, mut is_utf8) = (Vec::new(), Vec::new(), true);
    for seen in seen {
        match seen {
            DecodedItem::Line(line) => {
                let mut text = meant(line);
                is_utf8 &= std::str::from_utf8(&text).is_ok();
                frames.extend_from_slice(&encode::text(text.len(), mask));
                mask.map(|mask| mask.apply(&mut text));
                frames.extend_from_slice(&text);
            }
            DecodedItem::Ping(payload) => frames.extend_from_slice(&encode::ping(payload, mask)),
            DecodedItem::Pong(payload) => frames.extend_from_slice(&encode::pong(payload, mask)),
            DecodedItem::Close(code, reason) => frames.extend_from_slice(&encode::close(*code, reason, mask)),
            DecodedItem::Partial(_) | DecodedItem::Binary(_) | DecodedItem::Fault(_) => continue,
        }
        expected.push(seen.clone());
    }
    assert_eq!(read(&mut Decoder::new(role, LONGEST), &frames, []), expected);
    if is_utf8 {
        let (theirs, error) = read_by_them(role, &frames);
        assert!(error.is_none() && theirs == expected, "{theirs:?} and {error:?} for {expected:?}");
    }
}

/// The heads of both sides of the handshake.
fn check_heads(stream: &[u8], cuts: &[usize]) {
    let asked = read_request(&mut HeadReader::default(), stream);
    let answered = client::read(stream, [0; 16], false);
    for cuts in [cuts, &(1..stream.len()).collect::<Vec<_>>()] {
        let (reader, ends) = (&mut HeadReader::default(), || cuts.iter().copied().chain([stream.len()]));
        let first = ends().map(|end| read_request(reader, &stream[..end])).find(|reading| *reading != Ok(None));
        assert_eq!(first.as_ref().unwrap_or(&Ok(None)), &asked, "cut at {cuts:?}");
        let readings = ends().map(|end| client::read(&stream[..end], [0; 16], false));
        let first = readings.into_iter().find(|reading| *reading != client::ServerResponse::More);
        assert_eq!(first.as_ref().unwrap_or(&client::ServerResponse::More), &answered, "cut at {cuts:?}");
    }
    assert_ne!(client::read(stream, [0; 16], true), client::ServerResponse::More, "nothing more comes");
    match asked {
        Ok(Some(request)) => {
            let _ = request.upgrade();
        }
        Ok(None) => assert!(stream.len() < LONGEST_HEAD, "{} bytes are waited for", stream.len()),
        Err(_) => {}
    }
}
