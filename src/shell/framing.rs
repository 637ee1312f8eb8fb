//! The framing state of a WebSocket output: the lengths of queued frames, to convert sent bytes to bytes of lines; the
//! beginning of a line whose end is outstanding, since a frame starts with its length; and urgent bytes that go before
//! everything queued: pongs, pings, the response to the handshake, the close frame.
//!
//! Invariant: a frame that was begun is sent to its end before anything else.

use std::collections::VecDeque;
use std::ops::Range;

use crate::websocket::encode;

/// Maximum number of queued bytes of pongs. Of the pings beyond them only the last is answered (RFC 6455, section
/// 5.5.3).
const MOST_URGENT: usize = 2048;
/// Capacity kept for the next partial line, and for urgent bytes, which are few after the response to the handshake: a
/// thousand idle connections should use little memory.
const KEPT: usize = 512;
const KEPT_URGENT: usize = 128;

#[derive(Default)]
pub(super) struct Framing {
    /// The beginning of a line.
    pub begun: Vec<u8>,
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
    pub in_flight: Option<usize>,
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

impl Framing {
    /// Records that a line's frame was queued, with its length including the header.
    pub(super) fn queued(&mut self, frame: usize) {
        // A line has at most 2 GiB.
        self.frames.push_back(frame as u32);
    }

    /// Takes the beginning of a line, which is queued now.
    pub(super) fn take_begun(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.begun)
    }

    /// Returns its memory.
    pub(super) fn keep(&mut self, mut begun: Vec<u8>) {
        begun.clear();
        if begun.capacity() <= KEPT {
            self.begun = begun;
        }
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
    /// stay in place until [`Framing::sent`].
    pub(super) fn control(&mut self) -> Option<(usize, &[u8])> {
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
    pub(super) fn sent(&mut self, bytes: usize) -> usize {
        let Some(before) = self.in_flight.take() else { return bytes };
        let control = bytes.saturating_sub(before).min(self.control.len() - self.control_sent);
        self.control_sent += control;
        bytes - control
    }

    /// Converts sent bytes of the queue to bytes of lines.
    pub(super) fn lines_sent(&mut self, mut bytes: usize) -> usize {
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
    use super::*;

    #[test]
    fn sent_bytes_of_a_frame_are_reported_as_bytes_of_its_line() {
        for length in [0, 1, 125, 126, 65_535, 65_536, 100_000] {
            let frame = encode::text(length, None).len() + length;
            for step in [1, 3, 1000, usize::MAX] {
                let mut framing = Framing::default();
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
        let mut framing = Framing::default();
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
        let mut framing = Framing::default();
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
}
