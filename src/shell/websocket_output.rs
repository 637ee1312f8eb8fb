//! The output of a WebSocket: a line is sent as a frame, with its header and without its newline. Its state is
//! the lengths of queued frames, to convert sent bytes to bytes of lines; the beginning of a line whose end is outstanding,
//! since a frame starts with its length; and urgent bytes that precede everything queued: pongs, pings, the response to the
//! handshake, the close frame.
//!
//! Invariant: a frame that was begun is sent to its end before anything else.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::RawFd;

use super::outbox::{ChunkSize, HOLD, Outbox, Storage};
use crate::io::Submission;
use crate::io::buffers::Buffers;
use crate::websocket::encode;

/// Maximum number of queued bytes of pongs. Of the pings beyond them only the last is answered (RFC 6455, section
/// 5.5.3).
const MOST_URGENT: usize = 2048;
/// Capacity kept for the next partial line, and for urgent bytes, which are few after the response to the handshake: a
/// thousand idle connections should use little memory.
const KEPT: usize = 512;
const KEPT_URGENT: usize = 128;

#[derive(Default)]
pub(super) struct WebSocketOutput {
    /// The beginning of a line.
    begun: Vec<u8>,
    /// The lengths of the queued frames, including headers; the first may be partly sent.
    frames: VecDeque<u32>,
    /// How many bytes of the first frame were sent.
    sent: usize,
    /// The urgent bytes to send first, which may be in flight.
    control: Vec<u8>,
    control_sent: usize,
    /// The urgent bytes to send after those.
    next_control: Vec<u8>,
    /// The answer to the last ping that did not fit.
    last_pong: Option<Box<encode::Control>>,
    /// How many queued bytes precede the urgent ones in the write in flight, if it contains any.
    in_flight: Option<usize>,
}

/// How many bytes of a line, including its newline, correspond to `sent` bytes of its frame.
fn of_line(frame: usize, sent: usize) -> usize {
    let head = match frame {
        // RFC 6455, section 5.2: the length has 7, 16 or 64 bits.
        0..=127 => 2,
        128..=65_539 => 4,
        _ => 10,
    };
    if sent == frame { frame - head + 1 } else { sent.saturating_sub(head) }
}

impl WebSocketOutput {
    /// Queues a frame for each line that ends in `bytes`. If they lie in memory that can be held, at the given offset,
    /// long lines are held there.
    ///
    /// # Errors
    /// As for [`Outbox::push`].
    pub(super) fn push(
        &mut self,
        outbox: &mut Outbox,
        bytes: &[u8],
        held: Option<(&Storage, usize)>,
        buffers: &mut Buffers,
    ) -> Result<(), usize> {
        if outbox.is_dropping_line() {
            return Err(outbox.drop_bytes(bytes.len(), bytes));
        }
        let mut at = 0;
        while let Some(length) = memchr::memchr(b'\n', &bytes[at..]) {
            let line = at..at + length;
            let push = |outbox: &mut Outbox, buffers: &mut Buffers| match held {
                Some((storage, begin)) if length >= HOLD => {
                    outbox.hold_bytes(storage.clone(), begin + line.start, begin + line.end);
                    Ok(())
                }
                _ => outbox.push_bytes(&bytes[line], ChunkSize::Ample, buffers),
            };
            self.push_frame(outbox, length, buffers, push)
                .map_err(|begun| outbox.drop_bytes(begun + bytes.len() - at, bytes))?;
            at += length + 1;
        }
        self.begin_line(&bytes[at..]).map_err(|begun| outbox.drop_bytes(begun + bytes.len() - at, bytes))
    }

    /// Queues a frame whose line ends with what `push` appends, of this length. If memory runs out, returns how much of
    /// the line had been pushed before.
    fn push_frame(
        &mut self,
        outbox: &mut Outbox,
        length: usize,
        buffers: &mut Buffers,
        push: impl FnOnce(&mut Outbox, &mut Buffers) -> Result<(), usize>,
    ) -> Result<(), usize> {
        let begun = std::mem::take(&mut self.begun);
        let head = encode::text(begun.len() + length, None);
        let mut pushed = 0;
        let mut count = |result: Result<(), usize>, all: usize| {
            pushed += result.err().unwrap_or(all);
            result.is_ok()
        };
        let is_queued = count(outbox.push_bytes(&head, ChunkSize::Scant, buffers), head.len())
            && count(outbox.push_bytes(&begun, ChunkSize::Ample, buffers), begun.len())
            && count(push(outbox, buffers), length);
        if !is_queued {
            outbox.take_back(pushed, buffers);
            return Err(begun.len());
        }
        self.queued(head.len() + begun.len() + length);
        self.keep(begun);
        Ok(())
    }

    /// Buffers the beginning of a line until its length is known. If memory runs out, returns how much of the line is
    /// lost besides this.
    fn begin_line(&mut self, bytes: &[u8]) -> Result<(), usize> {
        if self.begun.try_reserve(bytes.len()).is_err() {
            return Err(std::mem::take(&mut self.begun).len());
        }
        self.begun.extend_from_slice(bytes);
        Ok(())
    }

    /// Records that a line's frame was queued, with its length including the header.
    fn queued(&mut self, frame: usize) {
        // A line has at most 2 GiB.
        self.frames.push_back(frame as u32);
    }

    /// Returns the memory of a line's beginning.
    fn keep(&mut self, mut begun: Vec<u8>) {
        begun.clear();
        if begun.capacity() <= KEPT {
            self.begun = begun;
        }
    }

    /// The write of the next bytes to a socket, and their number; valid until the next call of [`WebSocketOutput::advance`].
    pub(super) fn next(&mut self, outbox: &mut Outbox, socket: RawFd) -> Option<(Submission, usize)> {
        if let Some((before, control)) = self.control() {
            let control = std::ptr::from_ref(control);
            let (next, has_control) = outbox.next_with(socket, true, control, before);
            self.in_flight = has_control.then_some(before);
            return Some(next);
        }
        // The response to the handshake needed it.
        outbox.release_if_empty();
        outbox.next(socket, true)
    }

    /// Removes the first `bytes` of the output, which were written. Returns how many bytes of lines that is.
    pub(super) fn advance(&mut self, outbox: &mut Outbox, bytes: usize, buffers: &mut Buffers) -> usize {
        let queued = self.sent(bytes);
        let lines = self.lines_sent(queued);
        outbox.advance(queued, buffers);
        lines
    }

    /// Queues these bytes before everything queued, but after other urgent ones.
    pub(super) fn queue_control(&mut self, bytes: &[u8]) {
        self.next_control.extend_from_slice(bytes);
    }

    /// Answers a ping.
    pub(super) fn answer(&mut self, payload: &[u8]) {
        let pong = encode::pong(payload, None);
        if self.next_control.len() + pong.len() > MOST_URGENT {
            self.last_pong = Some(Box::new(pong));
        } else {
            self.next_control.extend_from_slice(&pong);
        }
    }

    /// Whether there are urgent bytes.
    pub(super) fn control_waits(&self) -> bool {
        self.control_sent < self.control.len() || !self.next_control.is_empty() || self.last_pong.is_some()
    }

    /// The urgent bytes that are not sent yet, and how many queued bytes still precede them: the rest of a frame. They
    /// stay in place until [`WebSocketOutput::advance`].
    fn control(&mut self) -> Option<(usize, &[u8])> {
        if self.control_sent == self.control.len() {
            self.control.clear();
            self.control_sent = 0;
            if self.control.capacity() > KEPT_URGENT {
                self.control = Vec::new();
            }
            std::mem::swap(&mut self.control, &mut self.next_control);
            if let Some(pong) = self.last_pong.take_if(|_| self.control.len() < MOST_URGENT) {
                self.control.extend_from_slice(&pong);
            }
        }
        let before = match self.frames.front() {
            Some(frame) if self.sent > 0 && self.control_sent == 0 => *frame as usize - self.sent,
            _ => 0,
        };
        let rest = &self.control[self.control_sent..];
        (!rest.is_empty()).then_some((before, rest))
    }

    /// Records sent bytes of a write. Returns how many of them are from the queue.
    fn sent(&mut self, bytes: usize) -> usize {
        let Some(before) = self.in_flight.take() else { return bytes };
        let control = bytes.saturating_sub(before).min(self.control.len() - self.control_sent);
        self.control_sent += control;
        bytes - control
    }

    /// Converts sent bytes of the queue to bytes of lines.
    fn lines_sent(&mut self, mut bytes: usize) -> usize {
        let mut lines = 0;
        while let Some(frame) = self.frames.front().filter(|_| bytes > 0) {
            let frame = *frame as usize;
            let Range { start, end } = self.sent..frame.min(self.sent + bytes);
            lines += of_line(frame, end) - of_line(frame, start);
            bytes -= end - start;
            self.sent = end;
            if end == frame {
                self.frames.pop_front();
                self.sent = 0;
            }
        }
        debug_assert_eq!(bytes, 0, "all that is queued is of frames");
        lines
    }

    /// Memory used besides the queue, in bytes.
    pub(super) fn weight(&self) -> usize {
        let control = self.control.capacity() + self.next_control.capacity();
        self.begun.capacity() + control + self.frames.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;
    use crate::shell::outbox::tests::written_by;
    use crate::testing::Random;
    use crate::websocket::Role;
    use crate::websocket::frame::{Decoder, FrameEvent, Received};

    #[test]
    fn sent_bytes_of_a_frame_are_reported_as_bytes_of_its_line() {
        for length in [0, 1, 125, 126, 65_535, 65_536, 100_000] {
            let frame = encode::text(length, None).len() + length;
            for step in [1, 3, 1000, usize::MAX] {
                let mut framing = WebSocketOutput::default();
                framing.queued(frame);
                framing.queued(frame);
                let (mut rest, mut lines) = (2 * frame, 0);
                while rest > 0 {
                    let now = step.min(rest);
                    lines += framing.lines_sent(now);
                    rest -= now;
                }
                assert_eq!(lines, 2 * (length + 1), "{length} in steps of {step}");
            }
        }
    }

    #[test]
    fn urgent_bytes_wait_only_for_the_end_of_a_frame() {
        let mut framing = WebSocketOutput::default();
        assert_eq!(framing.control(), None);
        framing.queued(12);
        framing.queued(12);
        assert_eq!((framing.sent(5), framing.lines_sent(5)), (5, 3));
        framing.answer(b"x");
        assert_eq!(framing.control(), Some((7, &b"\x8a\x01x"[..])));
        framing.in_flight = Some(7);
        assert_eq!(framing.sent(8), 7, "the eighth byte is of a control frame");
        assert_eq!(framing.lines_sent(7), 8);
        assert_eq!(framing.control(), Some((0, &b"\x01x"[..])), "it has begun");
        framing.in_flight = Some(0);
        assert_eq!(framing.sent(14), 12);
        assert_eq!((framing.lines_sent(12), framing.control()), (11, None));
        framing.queued(12);
        assert_eq!(framing.lines_sent(3), 1);
        framing.answer(b"y");
        assert_eq!(framing.control().map(|(before, _)| before), Some(9), "another frame has begun");
    }

    #[test]
    fn endless_pings_are_answered_in_bounded_memory_and_the_last_one_always() {
        let mut framing = WebSocketOutput::default();
        framing.queue_control(b"HTTP/1.1 101");
        for number in 0..100_000u32 {
            framing.answer(&number.to_be_bytes());
        }
        assert!(framing.weight() <= 3 * MOST_URGENT);
        let control = framing.control().map(|(_, rest)| rest.to_vec()).unwrap_or_default();
        assert!(control.starts_with(b"HTTP/1.1 101\x8a\x04\0\0\0\0"));
        framing.in_flight = Some(0);
        framing.sent(control.len());
        let last =
            framing.control().map_or_else(|| control[control.len() - 4..].to_vec(), |(_, rest)| rest[2..].to_vec());
        assert_eq!(last, 99_999u32.to_be_bytes());
    }

    /// The lines and the pongs that a client reads.
    fn read(bytes: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut decoder = Decoder::new(Role::Client, 1 << 30);
        let mut memory = [bytes, b"\0"].concat();
        let mut received = Received::new(&mut memory, bytes.len());
        let mut pongs = Vec::new();
        while let Some(event) = decoder.next(&mut received) {
            match event {
                FrameEvent::Text { .. } => {}
                FrameEvent::Pong(payload) => pongs.push(payload.to_vec()),
                other => panic!("{other:?}"),
            }
        }
        assert!(!decoder.is_in_message(), "frames are whole");
        (received.lines().to_vec(), pongs)
    }

    proptest! {
        #[test]
        fn frames_carry_the_lines_whatever_pieces_they_come_in_and_however_they_are_written(seed: u64) {
            let mut random = Random::new(seed);
            let mut buffers = Buffers::new(None, 0).expect("there is memory");
            let mut outbox = Outbox::new(true);
            let mut framing = WebSocketOutput::default();
            let (mut lines, mut pongs, mut written, mut sent) = (Vec::new(), 0u32, Vec::new(), 0);
            for _ in 0..random.range(1..60) {
                match random.range(0..4) {
                    0 => {
                        pongs += 1;
                        framing.answer(&pongs.to_be_bytes());
                    }
                    1 => {
                        let most = *random.pick(&[1, 7, 4096, 70_000, usize::MAX]);
                        let now = written_by(framing.next(&mut outbox, 0), most);
                        sent += framing.advance(&mut outbox, now.len(), &mut buffers);
                        written.extend(now);
                    }
                    _ => {
                        let count = random.range(1..4);
                        let mut bytes = Vec::new();
                        for _ in 0..count {
                            let length = *random.pick(&[0, 1, 50, 125, 126, 200, 5000, HOLD - 1, HOLD, 70_000]);
                            bytes.extend(std::iter::repeat_n(b'a' + random.range(0..26) as u8, length));
                            bytes.push(b'\n');
                        }
                        lines.extend_from_slice(&bytes);
                        let mut at = 0;
                        while at < bytes.len() {
                            let rest = bytes.len() - at;
                            let length = if random.one_in(2) { rest } else { random.range(1..rest + 1) };
                            let piece = &bytes[at..at + length];
                            if length >= HOLD && random.one_in(2) {
                                let mut block = buffers.take(length, length).expect("there is memory");
                                block.write(0, piece);
                                let block = Rc::new(block);
                                let storage = Storage::Block(Rc::clone(&block));
                                framing.push(&mut outbox, piece, Some((&storage, 0)), &mut buffers).expect("there is memory");
                                drop(storage);
                                // As its inbox does after consuming it.
                                if let Some(block) = Rc::into_inner(block) {
                                    buffers.give_back(block);
                                }
                            } else {
                                framing.push(&mut outbox, piece, None, &mut buffers).expect("there is memory");
                            }
                            at += length;
                        }
                    }
                }
            }
            for _ in 0..10_000 {
                let now = written_by(framing.next(&mut outbox, 0), usize::MAX);
                sent += framing.advance(&mut outbox, now.len(), &mut buffers);
                written.extend(now);
            }
            prop_assert!(outbox.is_empty() && !framing.control_waits());
            let (read, answered) = read(&written);
            prop_assert!(read == lines, "{} bytes of lines instead of {}", read.len(), lines.len());
            prop_assert_eq!(sent, lines.len());
            let answered: Vec<u32> = answered.iter().map(|pong| u32::from_be_bytes(pong[..].try_into().expect("four"))).collect();
            prop_assert_eq!(answered, (1..=pongs).collect::<Vec<_>>());
            outbox.clear(&mut buffers);
            prop_assert_eq!(buffers.used(), 0);
        }
    }
}
