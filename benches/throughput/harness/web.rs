//! WebSocket for the bench's clients: the handshake, masked frames, and decoding frames to lines.
//!
//! All frames have the same mask: masks are unpredictable for the sake of proxies, and there is none here. So a request
//! can be masked once and sent many times, and the clients take no CPU time from the daemon's workers.

use std::io::{self, Read, Write};

use stdio_bus_proto::websocket::client::{self, ServerResponse, UpgradeRequest};
use stdio_bus_proto::websocket::frame::{Decoder, FrameEvent, Received};
use stdio_bus_proto::websocket::{Mask, encode};

const MASK: [u8; 4] = [0x9e, 0x37, 0x79, 0xb9];
/// The handshake key.
const KEY: [u8; 16] = *b"not random today";

/// The request of a handshake.
pub fn request(port: u16, path: &str) -> io::Result<String> {
    Ok(UpgradeRequest::new(&format!("127.0.0.1:{port}"), path, KEY, None).map_err(io::Error::other)?.to_string())
}

/// Whether the response to a handshake is complete.
///
/// # Errors
/// The server refused, or sent unexpected bytes.
pub fn is_accepted(answer: &[u8], has_ended: bool) -> io::Result<bool> {
    match client::read(answer, KEY, has_ended) {
        ServerResponse::More => Ok(false),
        ServerResponse::Accepted { length, .. } if length == answer.len() => Ok(true),
        other => Err(io::Error::other(format!("the handshake: {other:?}"))),
    }
}

/// Does a handshake on a blocking connection.
pub fn upgrade(stream: &mut (impl Read + Write), port: u16, path: &str) -> io::Result<()> {
    stream.write_all(request(port, path)?.as_bytes())?;
    let (mut answer, mut length) = ([0; 4096], 0);
    loop {
        let count = stream.read(&mut answer[length..])?;
        length += count;
        if is_accepted(&answer[..length], count == 0)? {
            return Ok(());
        }
    }
}

/// The header of a request's frame.
pub fn head_of_request(length: usize) -> Vec<u8> {
    encode::text(length, Some(Mask::new(MASK))).to_vec()
}

/// The header of an answer's frame.
pub fn head_of_answer(length: usize) -> Vec<u8> {
    encode::text(length, None).to_vec()
}

/// The mask byte at `place` of a message.
pub fn mask_of(place: usize) -> u8 {
    MASK[place % MASK.len()]
}

/// A text message from a client.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = head_of_request(message.len());
    let head = frame.len();
    frame.extend_from_slice(message);
    Mask::new(MASK).apply(&mut frame[head..]);
    frame
}

/// A client's close frame.
pub fn farewell() -> Vec<u8> {
    encode::close(Some(1000), "", Some(Mask::new(MASK))).to_vec()
}

/// A client's pong.
pub fn pong(payload: &[u8]) -> Vec<u8> {
    encode::pong(payload, Some(Mask::new(MASK))).to_vec()
}

/// The lines in the first `received` of these bytes, which have room for one more. `pinged` gets the payloads of pings.
///
/// # Errors
/// The server has closed the connection, or violated the protocol.
pub fn lines<'b>(
    decoder: &mut Decoder,
    bytes: &'b mut [u8],
    received: usize,
    mut pinged: impl FnMut(&[u8]),
) -> io::Result<&'b [u8]> {
    let mut received = Received::new(bytes, received);
    while let Some(event) = decoder.next(&mut received) {
        match event {
            FrameEvent::Ping(payload) => pinged(payload),
            FrameEvent::Text { .. } | FrameEvent::Pong(_) => {}
            other => return Err(io::Error::other(format!("the server says: {other:?}"))),
        }
    }
    let text = received.text();
    Ok(&bytes[..text])
}
