//! A WebSocket connection as frames: in pieces to our decoder, and as read by tungstenite; and the head of its request.

use std::io::{Cursor, ErrorKind, Read, Write};

use tungstenite::Message;
use tungstenite::protocol::{CloseFrame, Role as Theirs, WebSocket, WebSocketConfig};

use crate::access::Refusal;
use crate::http1::HeadReader;
use crate::websocket::Role;
use crate::websocket::frame::{Decoder, Event, Received};
use crate::websocket::request::Request;

/// What is asked for; nothing while the head is incomplete.
pub(crate) type Asked<'b> = Result<Option<Request<'b>>, Refusal>;

/// Reads the request of a WebSocket from all bytes received so far.
///
/// # Errors
/// It is refused.
pub(crate) fn read_request<'b>(reader: &mut HeadReader, bytes: &'b [u8]) -> Asked<'b> {
    reader.read(bytes)?.map(|head| Request::of(&head, None)).transpose()
}

/// Maximum length of a message in bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// A decoded item, which must not depend on how the bytes are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
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
pub(crate) fn read(decoder: &mut Decoder, bytes: &[u8], ends: impl IntoIterator<Item = usize>) -> Vec<Seen> {
    let (mut seen, mut line, mut lines, mut begin) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for end in ends.into_iter().chain([bytes.len()]) {
        let mut memory = [&bytes[begin..end], &[0xEE]].concat();
        let mut received = Received::new(&mut memory, end - begin);
        while let Some(event) = decoder.next(&mut received) {
            seen.push(match event {
                Event::Text { piece, is_last } => {
                    line.extend_from_slice(&received.lines()[piece]);
                    if !is_last {
                        continue;
                    }
                    Seen::Line(shown(&std::mem::take(&mut line)))
                }
                Event::Binary { bytes } => Seen::Binary(bytes),
                Event::Ping(payload) => Seen::Ping(payload.to_vec()),
                Event::Pong(payload) => Seen::Pong(payload.to_vec()),
                Event::Close { code, reason } => Seen::Close(code, reason.to_owned()),
                Event::Fault(fault) => Seen::Fault(fault.code),
            });
        }
        assert_eq!(decoder.next(&mut received), None, "nothing has come since");
        lines.extend_from_slice(received.lines());
        begin = end;
    }
    let told = seen.iter().filter_map(|seen| match seen {
        Seen::Line(line) => Some([line, "\n"].concat()),
        _ => None,
    });
    let told: String = told.chain([shown(&line)]).collect();
    assert_eq!(shown(&lines), told);
    let ended = seen.iter().filter(|seen| matches!(seen, Seen::Line(_))).count();
    assert_eq!(told.matches('\n').count(), ended, "a message is one line");
    if !line.is_empty() {
        seen.push(Seen::Partial(shown(&line)));
    }
    seen
}

/// An endpoint's answer to bytes.
pub(crate) type Answer = fn(&[u8]) -> Vec<u8>;

/// One end of a connection: the bytes to read, and those written.
pub(crate) struct Pipe {
    pub(crate) input: Cursor<Vec<u8>>,
    pub(crate) output: Vec<u8>,
    /// Makes more input from the output, when a read finds none.
    pub(crate) answer: Option<Answer>,
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
pub(crate) fn read_by_them(role: Role, bytes: &[u8]) -> (Vec<Seen>, Option<tungstenite::Error>) {
    let mut theirs = theirs(role, bytes);
    let mut all = Vec::new();
    loop {
        match theirs.read() {
            Ok(message) => all.push(seen(message)),
            // Bytes after a close frame are a fault to tungstenite, and ignored by us.
            Err(_) if matches!(all.last(), Some(Seen::Close(..))) => return (all, None),
            Err(tungstenite::Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

fn seen(message: Message) -> Seen {
    match message {
        // Our lines have no newlines in them.
        Message::Text(text) => Seen::Line(shown(text.as_bytes()).replace(['\n', '\r'], "\t")),
        Message::Binary(bytes) => Seen::Binary(bytes.len() as u64),
        Message::Ping(payload) => Seen::Ping(payload.to_vec()),
        Message::Pong(payload) => Seen::Pong(payload.to_vec()),
        Message::Close(None) => Seen::Close(None, String::new()),
        Message::Close(Some(CloseFrame { code, reason })) => Seen::Close(Some(code.into()), reason.to_string()),
        Message::Frame(frame) => panic!("{frame:?} is never read"),
    }
}
