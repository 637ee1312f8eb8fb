//! Interoperability with tungstenite, in both directions.

use proptest::collection::vec;
use proptest::prelude::*;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};
use tungstenite::{HandshakeError, Message};

use super::super::answer::Accepted;
use super::super::frame::Decoder;
use super::super::{Mask, client, encode};
use super::{DecodedItem, LONGEST, Role, Sent, encoded, read, role, sent, shown};
use crate::http1::HeadReader;
use crate::testing::frames::{Pipe, read_by_them, read_request, theirs};

fn other_end(role: Role) -> Role {
    match role {
        Role::Server => Role::Client,
        Role::Client => Role::Server,
    }
}

proptest! {
    #[test]
    fn they_read_what_we_write(role in role(), all in vec((sent(), any::<[u8; 4]>()), 0..8)) {
        // Tungstenite checks UTF-8.
        let all: Vec<_> = all.into_iter().map(|(sent, key)| match sent {
            Sent::Text(text) => (Sent::Text(text.iter().map(|byte| byte & 0x7F).filter(|byte| *byte >= b' ').collect()), key),
            other => (other, key),
        }).collect();
        let (frames, expected): (Vec<_>, Vec<_>) = all.iter().map(|(sent, key)| encoded(role, sent, *key)).unzip();
        let mask = (role == Role::Server).then(|| Mask::new([9, 8, 7, 6]));
        let close = encode::close(Some(1001), "it drains", mask);
        let (seen, error) = read_by_them(role, &[&frames.concat(), &close[..]].concat());
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert_eq!(&seen[..expected.len()], expected);
        prop_assert_eq!(&seen[seen.len() - 1], &DecodedItem::Close(Some(1001), "it drains".into()));
    }

    #[test]
    fn we_read_what_they_write(
        role in role(), texts in vec("[ -~é€😀\n]{0,300}", 0..6), cuts in vec(0_usize..300, 0..4), piece in 1_usize..500,
    ) {
        let mut them = theirs(other_end(role), &[]);
        let mut expected = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let text = text.as_bytes();
            match number % 3 {
                0 => them.send(Message::text(std::str::from_utf8(text).unwrap())).unwrap(),
                _ => {
                    // In fragments, interleaved with pings.
                    let mut begin = 0;
                    let mut ends: Vec<usize> = cuts.iter().map(|cut| *cut.min(&text.len())).collect();
                    ends.sort_unstable();
                    for (number, end) in ends.iter().enumerate() {
                        let opcode = OpCode::Data(if number == 0 { Data::Text } else { Data::Continue });
                        let frame = Frame::message(text[begin..*end].to_vec(), opcode, false);
                        them.send(Message::Frame(frame)).unwrap();
                        them.send(Message::Ping(vec![number as u8].into())).unwrap();
                        expected.push(DecodedItem::Ping(vec![number as u8]));
                        begin = *end;
                    }
                    let opcode = OpCode::Data(if ends.is_empty() { Data::Text } else { Data::Continue });
                    them.send(Message::Frame(Frame::message(text[begin..].to_vec(), opcode, true))).unwrap();
                }
            }
            expected.push(DecodedItem::Line(shown(text).replace('\n', "\t")));
            them.send(Message::Binary(text.to_vec().into())).unwrap();
            expected.push(DecodedItem::Binary(text.len() as u64));
        }
        them.close(Some(CloseFrame { code: 1000.into(), reason: "bye".into() })).unwrap();
        expected.push(DecodedItem::Close(Some(1000), "bye".into()));
        let bytes = &them.get_ref().output;
        let ends = (piece..bytes.len()).step_by(piece);
        prop_assert_eq!(read(&mut Decoder::new(role, LONGEST), bytes, ends), expected);
    }
}

/// Our server's answer to a request.
fn answered(bytes: &[u8]) -> Vec<u8> {
    let asked = read_request(&mut HeadReader::default(), bytes);
    let Ok(Some(request)) = asked else { panic!("{}", bytes.escape_ascii()) };
    assert_eq!(request.caller.token.map(|token| token.0), Some("s3cret"));
    let key = request.upgrade().unwrap();
    let answer = Accepted { key, connection_id: "a1", protocol: request.protocol };
    [answer.to_string().as_bytes(), &encode::text(2, None), b"{}"].concat()
}

#[test]
fn their_client_is_accepted_by_our_server() {
    let pipe = Pipe { answer: Some(answered), ..Pipe::new(&[]) };
    let mut builder = tungstenite::ClientRequestBuilder::new("ws://bus.example:9000/acp".parse().unwrap());
    builder = builder.with_sub_protocol("acp").with_header("Authorization", "Bearer s3cret");
    let (mut theirs, answer) = tungstenite::client(builder, pipe).map_err(|error| error.to_string()).unwrap();
    assert_eq!(answer.headers()["acp-connection-id"], "a1");
    assert_eq!(answer.headers()["sec-websocket-protocol"], "acp");
    assert_eq!(theirs.read().unwrap(), Message::text("{}"));
}

#[test]
fn our_client_is_accepted_by_their_server() {
    let key = *b"the sample nonce";
    let request = client::UpgradeRequest::new("bus.example:9000", "/acp", key, Some("s3cret")).unwrap().to_string();
    let theirs = match tungstenite::accept(Pipe::new(request.as_bytes())) {
        Ok(theirs) => theirs,
        Err(HandshakeError::Interrupted(_)) => panic!("they wait for more"),
        Err(HandshakeError::Failure(error)) => panic!("{error}"),
    };
    let answer = &theirs.get_ref().output;
    let expected = client::ServerResponse::Accepted { length: answer.len(), connection_id: None };
    assert_eq!(client::read(answer, key, false), expected);
}
