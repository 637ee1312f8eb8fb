//! Decodes frames to lines in place: the unmasked payloads of text messages move to the front of the receive buffer,
//! one message a line. Everything but text is reported as an event.
//!
//! It buffers no part of a message. Between two calls it only keeps a partial header or control frame.
//!
//! Invariant, for each receive: `text ≤ read + 1` and `read ≤ received`. Events and lines depend on the bytes alone,
//! not on how they are cut, except that a piece of text may be split.

use std::ops::Range;

use super::Role;
use super::close::{self, Violation};
use super::header::{Header, LONGEST, Opcode};
use super::mask::Mask;

/// Maximum number of empty frames in a message. They cost their sender little, and no limit on bytes stops them.
pub const MOST_EMPTY_FRAGMENTS: u32 = 64;

/// Received bytes, which a [`Decoder`] turns into lines.
pub struct Received<'b> {
    bytes: &'b mut [u8],
    received: usize,
    /// Bytes decoded so far.
    read: usize,
    /// Bytes at the front that are text.
    text: usize,
    /// A message is complete, but the byte that its newline replaces was not read yet.
    owes_newline: bool,
}

impl<'b> Received<'b> {
    /// The first `received` bytes of `bytes`, which has room for at least one more. Of the bytes after them, at most
    /// the first is overwritten.
    ///
    /// # Panics
    /// If there is no such room.
    pub fn new(bytes: &'b mut [u8], received: usize) -> Self {
        assert!(received < bytes.len(), "the newline of a message may need a byte more than was received");
        Self { bytes, received, read: 0, text: 0, owes_newline: false }
    }

    /// How many bytes at the front are lines, each with its newline, and possibly the beginning of another. The bytes
    /// after them are meaningless once [`Decoder::next`] has returned none.
    pub fn text(&self) -> usize {
        self.text
    }

    /// Those lines.
    pub fn lines(&self) -> &[u8] {
        &self.bytes[..self.text]
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.read..self.received]
    }

    /// Consumes decoded bytes, which may make room for a newline.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.read += bytes;
        debug_assert!(self.read <= self.received);
        self.end_line_if_owed();
    }

    #[inline]
    fn end_line(&mut self) {
        self.owes_newline = true;
        self.end_line_if_owed();
    }

    #[inline]
    fn end_line_if_owed(&mut self) {
        if self.owes_newline && (self.text < self.read || self.read == self.received) {
            self.bytes[self.text] = b'\n';
            self.text += 1;
            self.owes_newline = false;
        }
    }
}

/// A decoded event.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameEvent<'d> {
    /// The next piece of a text message. It is already part of its line: users of [`Received`]'s lines can ignore this
    /// event.
    Text {
        /// Its position in the lines.
        piece: Range<usize>,
        /// It is the last piece of its message, and its newline follows it, or will before anything else does. It may
        /// be empty.
        is_last: bool,
    },
    /// A binary message, which was discarded.
    Binary {
        /// Length of its payload.
        bytes: u64,
    },
    /// A ping, to be answered by a pong with the same payload: at most 125 bytes.
    Ping(&'d [u8]),
    /// A pong, with its payload: at most 125 bytes.
    Pong(&'d [u8]),
    /// The peer closes. Nothing after it is decoded. Unless it answers ours, it is answered by a close frame.
    Close {
        /// Its code, if it has one.
        code: Option<u16>,
        /// Its reason, at most 123 bytes.
        reason: &'d str,
    },
    /// The peer violated the protocol. Nothing after it is decoded.
    Fault(Violation),
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageType {
    Text,
    Binary,
}

/// A partial message.
#[derive(Clone, Copy)]
struct PartialMessage {
    kind: MessageType,
    /// Length of its frames so far, including all of the current one.
    bytes: u64,
    empty_fragments: u32,
}

/// A frame whose header was read.
#[derive(Clone, Copy)]
struct Frame {
    opcode: Opcode,
    is_final: bool,
    /// Bytes of its payload still to come.
    left: u64,
    /// The mask for the first of them.
    mask: Mask,
}

/// The decoder of one connection: some 250 bytes, for messages of any length.
pub struct Decoder {
    role: Role,
    longest: u64,
    /// A partial header.
    head: [u8; LONGEST],
    head_length: usize,
    frame: Option<Frame>,
    message: Option<PartialMessage>,
    /// The payload of a control frame so far. It takes no memory before the first one: a thousand connections may be idle.
    control: Vec<u8>,
    is_over: bool,
}

/// An event that borrows nothing yet.
enum RawEvent {
    Text { piece: Range<usize>, is_last: bool },
    Binary { bytes: u64 },
    Control(Opcode),
}

impl Decoder {
    /// A decoder for the frames of the other end, from the first one on. `longest` is the maximum length of a message,
    /// in however many frames.
    pub fn new(role: Role, longest: u64) -> Self {
        Self {
            role,
            longest,
            head: [0; LONGEST],
            head_length: 0,
            frame: None,
            message: None,
            control: Vec::new(),
            is_over: false,
        }
    }

    /// Whether a close frame or a fault was decoded, after which everything is ignored.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the peer is in the middle of a message: a close now would cut it off.
    pub fn is_in_message(&self) -> bool {
        !self.is_over && (self.message.is_some() || self.frame.is_some() || self.head_length > 0)
    }

    /// Decodes until the next event. None when all received bytes are decoded: call it until then, after which
    /// [`Received::text`] is valid.
    #[inline]
    pub fn next<'d>(&'d mut self, received: &mut Received<'_>) -> Option<FrameEvent<'d>> {
        if self.is_over {
            received.advance(received.received - received.read);
            return None;
        }
        let event = match self.find(received) {
            Ok(None) => return None,
            Ok(Some(RawEvent::Text { piece, is_last })) => Ok(FrameEvent::Text { piece, is_last }),
            Ok(Some(RawEvent::Binary { bytes })) => Ok(FrameEvent::Binary { bytes }),
            Ok(Some(RawEvent::Control(opcode))) => {
                let payload = &self.control[..];
                match opcode {
                    Opcode::Ping => Ok(FrameEvent::Ping(payload)),
                    Opcode::Pong => Ok(FrameEvent::Pong(payload)),
                    _ => read_close(payload),
                }
            }
            Err(fault) => Err(fault),
        };
        self.is_over = matches!(event, Err(_) | Ok(FrameEvent::Close { .. }));
        Some(event.unwrap_or_else(FrameEvent::Fault))
    }

    fn find(&mut self, received: &mut Received<'_>) -> Result<Option<RawEvent>, Violation> {
        loop {
            if self.frame.is_none() {
                let Some(header) = self.read_head(received)? else { return Ok(None) };
                self.begin(header)?;
            }
            let Some(frame) = &mut self.frame else { return Ok(None) };
            let rest = received.received - received.read;
            let bytes = usize::try_from(frame.left).map_or(rest, |left| left.min(rest));
            frame.left -= bytes as u64;
            let is_whole = frame.left == 0;
            if bytes == 0 && !is_whole {
                return Ok(None);
            }
            let Frame { opcode, is_final, .. } = *frame;
            match (opcode, &self.message) {
                (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => {
                    let begin = self.control.len();
                    self.control.extend_from_slice(&received.rest()[..bytes]);
                    frame.mask = frame.mask.apply(&mut self.control[begin..]);
                    received.advance(bytes);
                    if is_whole {
                        self.frame = None;
                        return Ok(Some(RawEvent::Control(opcode)));
                    }
                }
                (_, Some(PartialMessage { kind: MessageType::Text, .. })) => {
                    let piece = received.text..received.text + bytes;
                    frame.mask = frame.mask.take_off_text(received.bytes, received.read, piece.start, bytes);
                    received.text = piece.end;
                    received.advance(bytes);
                    if is_whole {
                        self.frame = None;
                    }
                    let is_last = is_whole && is_final;
                    if is_last {
                        self.message = None;
                        received.end_line();
                    }
                    if is_last || !piece.is_empty() {
                        return Ok(Some(RawEvent::Text { piece, is_last }));
                    }
                }
                (_, message) => {
                    let bytes_of_message = message.map_or(0, |message| message.bytes);
                    received.advance(bytes);
                    if is_whole {
                        self.frame = None;
                        if is_final {
                            self.message = None;
                            return Ok(Some(RawEvent::Binary { bytes: bytes_of_message }));
                        }
                    }
                }
            }
        }
    }

    /// Reads the next header if it is complete, and keeps it if it is not.
    #[inline]
    fn read_head(&mut self, received: &mut Received<'_>) -> Result<Option<Header>, Violation> {
        if self.head_length == 0
            && let Some((header, size)) = Header::read(received.rest(), self.role)?
        {
            received.advance(size);
            return Ok(Some(header));
        }
        while let Some(&byte) = received.rest().first() {
            self.head[self.head_length] = byte;
            self.head_length += 1;
            received.advance(1);
            if let Some((header, _)) = Header::read(&self.head[..self.head_length], self.role)? {
                self.head_length = 0;
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Begins a frame, if it is allowed now.
    #[inline]
    fn begin(&mut self, Header { opcode, is_final, length, mask }: Header) -> Result<(), Violation> {
        let begun = |kind| PartialMessage { kind, bytes: 0, empty_fragments: 0 };
        let message = match (opcode, self.message) {
            (Opcode::Continuation, None) => return Err(Violation::protocol("a continuation continues no message")),
            (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(Violation::protocol("a message begins before the one before it has ended"));
            }
            (Opcode::Text, None) => Some(begun(MessageType::Text)),
            (Opcode::Binary, None) => Some(begun(MessageType::Binary)),
            (Opcode::Continuation, Some(message)) => Some(message),
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => {
                self.control.clear();
                None
            }
        };
        if let Some(mut message) = message {
            message.bytes = message.bytes.saturating_add(length);
            if message.bytes > self.longest {
                return Err(Violation { code: close::TOO_BIG, reason: "a message is too long" });
            }
            message.empty_fragments += u32::from(length == 0);
            if message.empty_fragments > MOST_EMPTY_FRAGMENTS {
                return Err(Violation {
                    code: close::POLICY_VIOLATION,
                    reason: "a message has too many empty fragments",
                });
            }
            self.message = Some(message);
        }
        self.frame = Some(Frame { opcode, is_final, left: length, mask: mask.unwrap_or(Mask::NONE) });
        Ok(())
    }
}

/// Decodes the payload of a close frame.
fn read_close(payload: &[u8]) -> Result<FrameEvent<'_>, Violation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(FrameEvent::Close { code: None, reason: "" }),
            _ => Err(Violation::protocol("a close frame has half a code")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !close::may_be_sent(code) {
        return Err(Violation::protocol("a close frame has a code that may not be sent"));
    }
    match str::from_utf8(reason) {
        Ok(reason) => Ok(FrameEvent::Close { code: Some(code), reason }),
        Err(_) => Err(Violation { code: close::INVALID_DATA, reason: "the reason of a close frame is not UTF-8" }),
    }
}
