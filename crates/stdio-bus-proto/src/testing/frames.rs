//! A WebSocket connection as frames: in pieces to our decoder, and as read by tungstenite; and the head of its request.

use std::io::{Cursor, ErrorKind, Read, Write};

use tungstenite::Message;
use tungstenite::protocol::{CloseFrame, Role as Theirs, WebSocket, WebSocketConfig};

use crate::access::Refusal;
use crate::http1::HeadReader;
use crate::websocket::Role;
use crate::websocket::frame::{Decoder, FrameEvent, Received};
use crate::websocket::request::UpgradeHead;

/// What is asked for; nothing while the head is incomplete.
pub(crate) type ParsedUpgrade<'b> = Result<Option<UpgradeHead<'b>>, Refusal>;

/// Reads the request of a WebSocket from all bytes received so far.
///
/// # Errors
/// It is refused.
pub(crate) fn read_request<'b>(reader: &mut HeadReader, bytes: &'b [u8]) -> ParsedUpgrade<'b> {
    reader.read(bytes)?.map(|head| UpgradeHead::of(&head, None)).transpose()
}

/// Maximum length of a message in bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// A decoded item, which must not depend on how the bytes are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodedItem {
    Line(String),
    /// The beginning of a line, at the end of the stream or before a fault.
    Partial(String),
    Binary(u64),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    Fault(u16),
}

/// Bytes as the characters with the same numbers.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes of such characters.
pub(crate) fn meant(letters: &str) -> Vec<u8> {
    letters.chars().map(|letter| letter as u8).collect()
}

/// Decodes bytes that arrive in pieces which end at these offsets.
///
/// # Panics
/// If the lines in the buffer are not those of the events.
pub(crate) fn read(decoder: &mut Decoder, bytes: &[u8], ends: impl IntoIterator<Item = usize>) -> Vec<DecodedItem> {
    let (mut seen, mut line, mut lines, mut begin) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for end in ends.into_iter().chain([bytes.len()]) {
        let mut memory = [&bytes[begin..end], &[0xEE]].concat();
        let mut received = Received::new(&mut memory, end - begin);
        while let Some(event) = decoder.next(&mut received) {
            seen.push(match event {
                FrameEvent::Text { piece, is_last } => {
                    line.extend_from_slice(&received.lines()[piece]);
                    if !is_last {
                        continue;
                    }
                    DecodedItem::Line(shown(&std::mem::take(&mut line)))
                }
                FrameEvent::Binary { bytes } => DecodedItem::Binary(bytes),
                FrameEvent::Ping(payload) => DecodedItem::Ping(payload.to_vec()),
                FrameEvent::Pong(payload) => DecodedItem::Pong(payload.to_vec()),
                FrameEvent::Close { code, reason } => DecodedItem::Close(code, reason.to_owned()),
                FrameEvent::Fault(fault) => DecodedItem::Fault(fault.code),
            });
        }
        assert_eq!(decoder.next(&mut received), None, "nothing has come since");
        lines.extend_from_slice(received.lines());
        begin = end;
    }
    let expected = seen.iter().filter_map(|seen| match seen {
        DecodedItem::Line(line) => Some([line, "\n"].concat()),
        _ => None,
    });
    let expected: String = expected.chain([shown(&line)]).collect();
    assert_eq!(shown(&lines), expected);
    let ended = seen.iter().filter(|seen| matches!(seen, DecodedItem::Line(_))).count();
    assert_eq!(expected.matches('\n').count(), ended, "a message is one line");
    if !line.is_empty() {
        seen.push(DecodedItem::Partial(shown(&line)));
    }
    seen
}

/// An endpoint's answer to bytes.
pub(crate) type EndpointAnswer = fn(&[u8]) -> Vec<u8>;

/// One end of a connection: the bytes to read, and those written.
pub(crate) struct Pipe {
    pub(crate) input: Cursor<Vec<u8>>,
    pub(crate) output: Vec<u8>,
    /// Makes more input from the output, when a read finds none.
    pub(crate) answer: Option<EndpointAnswer>,
}

impl Pipe {
    pub(crate) fn new(input: &[u8]) -> Self {
        Self { input: Cursor::new(input.to_vec()), output: Vec::new(), answer: None }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if let Some(answer) = self.answer.take() {
            self.input = Cursor::new(answer(&self.output));
        }
        match self.input.read(into)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Tungstenite's end with this role, which reads these bytes.
pub(crate) fn theirs(role: Role, input: &[u8]) -> WebSocket<Pipe> {
    let role = match role {
        Role::Server => Theirs::Server,
        Role::Client => Theirs::Client,
    };
    let longest = Some(LONGEST as usize);
    let config = WebSocketConfig::default().max_message_size(longest).max_frame_size(longest);
    WebSocket::from_raw_socket(Pipe::new(input), role, Some(config))
}

/// What tungstenite decodes from bytes, and the fault that it reports.
pub(crate) fn read_by_them(role: Role, bytes: &[u8]) -> (Vec<DecodedItem>, Option<tungstenite::Error>) {
    let mut theirs = theirs(role, bytes);
    let mut all = Vec::new();
    loop {
        match theirs.read() {
            Ok(message) => all.push(seen(message)),
            // Bytes after a close frame are a fault to tungstenite, and ignored by us.
            Err(_) if matches!(all.last(), Some(DecodedItem::Close(..))) => return (all, None),
            Err(tungstenite::Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

fn seen(message: Message) -> DecodedItem {
    match message {
        // Our lines have no newlines in them.
        Message::Text(text) => DecodedItem::Line(shown(text.as_bytes()).replace(['\n', '\r'], "\t")),
        Message::Binary(bytes) => DecodedItem::Binary(bytes.len() as u64),
        Message::Ping(payload) => DecodedItem::Ping(payload.to_vec()),
        Message::Pong(payload) => DecodedItem::Pong(payload.to_vec()),
        Message::Close(None) => DecodedItem::Close(None, String::new()),
        Message::Close(Some(CloseFrame { code, reason })) => DecodedItem::Close(Some(code.into()), reason.to_string()),
        Message::Frame(frame) => panic!("{frame:?} is never read"),
    }
}
