//! Frames become lines where they lie: the payloads of text messages move to the front of the memory that they were
//! received into, without their masks, one message a line. What is not text comes as an event.
//!
//! It keeps no byte of a message. What it remembers between two calls is the beginning of a head, or of a control frame.
//!
//! Invariant, for the bytes that were received at once: `text ≤ read + 1` and `read ≤ received`. The events and the lines
//! depend on the bytes alone, never on how they were cut; only a piece of a text may come as several.

use std::ops::Range;

use super::Role;
use super::close::{self, Fault};
use super::header::{Header, LONGEST, LONGEST_CONTROL, Opcode};
use super::mask::Mask;

/// So many frames of a message may be empty. They cost their sender little, and no limit on bytes ends them.
pub const MOST_EMPTY_FRAGMENTS: u32 = 64;

/// Received bytes, which a [`Decoder`] turns into lines.
pub struct Received<'b> {
    bytes: &'b mut [u8],
    received: usize,
    /// So many were decoded.
    read: usize,
    /// So many at the front are text by now.
    text: usize,
    /// A message is over, and the byte that its newline belongs to was not read yet.
    owes_newline: bool,
}

impl<'b> Received<'b> {
    /// The first `received` bytes of `bytes`, which has room for at least one more. What stands there does not matter, and
    /// is written over at most in its first byte.
    ///
    /// # Panics
    /// If there is no such room.
    pub fn new(bytes: &'b mut [u8], received: usize) -> Self {
        assert!(received < bytes.len(), "the newline of a message may need a byte more than was received");
        Self { bytes, received, read: 0, text: 0, owes_newline: false }
    }

    /// How many bytes at the front are lines by now, each with its newline, and perhaps the beginning of one more. What
    /// stands behind them is of no use once [`Decoder::next`] has said that there is nothing more.
    pub fn text(&self) -> usize {
        self.text
    }

    /// These lines.
    pub fn lines(&self) -> &[u8] {
        &self.bytes[..self.text]
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.read..self.received]
    }

    /// So many bytes are decoded. They may have made room for a newline.
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

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'d> {
    /// The next piece of a text message. It is part of the line that it belongs to already: whoever takes the lines of
    /// [`Received`] need not look at it.
    Text {
        /// Where it stands in the lines.
        piece: Range<usize>,
        /// It is the last one of its message, and its newline stands behind it, or will before anything else does. It may
        /// be empty.
        is_last: bool,
    },
    /// A binary message has gone by. Nothing of it was kept.
    Binary {
        /// Bytes of its payload.
        bytes: u64,
    },
    /// A ping, to be answered by a pong that carries the same: at most 125 bytes.
    Ping(&'d [u8]),
    /// A pong, with what it carries: at most 125 bytes.
    Pong(&'d [u8]),
    /// The other end closes. Nothing that comes after it is looked at. It is answered by a close frame, unless it answers
    /// one.
    Close {
        /// Its code, if it says one.
        code: Option<u16>,
        /// What it says beside that, at most 123 bytes.
        reason: &'d str,
    },
    /// The other end has done something wrong. Nothing that comes after it is looked at.
    Fault(Fault),
}

/// What a message is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

/// A message that has begun.
#[derive(Clone, Copy)]
struct Message {
    kind: Kind,
    /// Bytes of its frames so far, the present one in full.
    bytes: u64,
    empty_fragments: u32,
}

/// A frame whose head was read.
#[derive(Clone, Copy)]
struct Frame {
    opcode: Opcode,
    is_final: bool,
    /// Bytes of its payload that are still to come.
    left: u64,
    /// The mask of the first of them.
    mask: Mask,
}

/// What is known of one connection's frames. It is some 250 bytes, and the same for messages of any length.
pub struct Decoder {
    role: Role,
    longest: u64,
    /// The beginning of a head that was cut.
    head: [u8; LONGEST],
    head_length: usize,
    frame: Option<Frame>,
    message: Option<Message>,
    /// The payload of a control frame, as far as it has come.
    control: [u8; LONGEST_CONTROL],
    control_length: usize,
    is_over: bool,
}

/// An event that does not borrow yet.
enum Found {
    Text { piece: Range<usize>, is_last: bool },
    Binary { bytes: u64 },
    Control(Opcode),
}

impl Decoder {
    /// For what the other end of this one sends, from its first frame on. A message may have `longest` bytes, however
    /// many frames it comes in.
    pub fn new(role: Role, longest: u64) -> Self {
        Self {
            role,
            longest,
            head: [0; LONGEST],
            head_length: 0,
            frame: None,
            message: None,
            control: [0; LONGEST_CONTROL],
            control_length: 0,
            is_over: false,
        }
    }

    /// Whether a close frame or a fault has come, so that whatever follows is nothing.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the other end is in the middle of something: if it goes now, it has been cut off.
    pub fn is_in_message(&self) -> bool {
        !self.is_over && (self.message.is_some() || self.frame.is_some() || self.head_length > 0)
    }

    /// Decodes on and says what comes next. None when all that was received is decoded: it has to be asked so often,
    /// then [`Received::text`] holds.
    #[inline]
    pub fn next<'d>(&'d mut self, received: &mut Received<'_>) -> Option<Event<'d>> {
        if self.is_over {
            received.advance(received.received - received.read);
            return None;
        }
        let event = match self.find(received) {
            Ok(None) => return None,
            Ok(Some(Found::Text { piece, is_last })) => Ok(Event::Text { piece, is_last }),
            Ok(Some(Found::Binary { bytes })) => Ok(Event::Binary { bytes }),
            Ok(Some(Found::Control(opcode))) => {
                let payload = &self.control[..self.control_length];
                match opcode {
                    Opcode::Ping => Ok(Event::Ping(payload)),
                    Opcode::Pong => Ok(Event::Pong(payload)),
                    _ => read_close(payload),
                }
            }
            Err(fault) => Err(fault),
        };
        self.is_over = matches!(event, Err(_) | Ok(Event::Close { .. }));
        Some(event.unwrap_or_else(Event::Fault))
    }

    fn find(&mut self, received: &mut Received<'_>) -> Result<Option<Found>, Fault> {
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
                    let begin = self.control_length;
                    self.control_length += bytes;
                    let payload = &mut self.control[begin..self.control_length];
                    payload.copy_from_slice(&received.rest()[..bytes]);
                    frame.mask = frame.mask.apply(payload);
                    received.advance(bytes);
                    if is_whole {
                        self.frame = None;
                        return Ok(Some(Found::Control(opcode)));
                    }
                }
                (_, Some(Message { kind: Kind::Text, .. })) => {
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
                        return Ok(Some(Found::Text { piece, is_last }));
                    }
                }
                (_, message) => {
                    let bytes_of_message = message.map_or(0, |message| message.bytes);
                    received.advance(bytes);
                    if is_whole {
                        self.frame = None;
                        if is_final {
                            self.message = None;
                            return Ok(Some(Found::Binary { bytes: bytes_of_message }));
                        }
                    }
                }
            }
        }
    }

    /// The next head, if all of it is there. What is there of it is kept.
    #[inline]
    fn read_head(&mut self, received: &mut Received<'_>) -> Result<Option<Header>, Fault> {
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

    /// A frame begins, if it may.
    #[inline]
    fn begin(&mut self, Header { opcode, is_final, length, mask }: Header) -> Result<(), Fault> {
        let begun = |kind| Message { kind, bytes: 0, empty_fragments: 0 };
        let message = match (opcode, self.message) {
            (Opcode::Continuation, None) => return Err(Fault::protocol("a continuation continues no message")),
            (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(Fault::protocol("a message begins before the one before it has ended"));
            }
            (Opcode::Text, None) => Some(begun(Kind::Text)),
            (Opcode::Binary, None) => Some(begun(Kind::Binary)),
            (Opcode::Continuation, Some(message)) => Some(message),
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => {
                self.control_length = 0;
                None
            }
        };
        if let Some(mut message) = message {
            message.bytes = message.bytes.saturating_add(length);
            if message.bytes > self.longest {
                return Err(Fault { code: close::TOO_BIG, reason: "a message is too long" });
            }
            message.empty_fragments += u32::from(length == 0);
            if message.empty_fragments > MOST_EMPTY_FRAGMENTS {
                return Err(Fault { code: close::POLICY_VIOLATION, reason: "a message has too many empty fragments" });
            }
            self.message = Some(message);
        }
        self.frame = Some(Frame { opcode, is_final, left: length, mask: mask.unwrap_or(Mask::NONE) });
        Ok(())
    }
}

/// What a close frame says.
fn read_close(payload: &[u8]) -> Result<Event<'_>, Fault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(Event::Close { code: None, reason: "" }),
            _ => Err(Fault::protocol("a close frame has half a code")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !close::may_be_sent(code) {
        return Err(Fault::protocol("a close frame has a code that may not be sent"));
    }
    match str::from_utf8(reason) {
        Ok(reason) => Ok(Event::Close { code: Some(code), reason }),
        Err(_) => Err(Fault { code: close::INVALID_DATA, reason: "the reason of a close frame is not UTF-8" }),
    }
}
