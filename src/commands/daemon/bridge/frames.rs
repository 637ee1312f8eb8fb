//! Turns stdin into WebSocket frames. A line without its newline is a message; leading white space and blank lines are
//! dropped.
//!
//! A line is one frame if it fits into a block. A longer one is sent in fragments, so that it need not be buffered; the
//! daemon limits it, not the bridge. Each frame has an unpredictable mask.
//!
//! Its only I/O is to ask the kernel for random bytes.

use std::io;

use memchr::memchr;

use crate::random;
use crate::websocket::{Mask, encode};

/// Maximum number of buffered bytes of a line.
const LONGEST_HELD: usize = super::limits::BLOCK;

/// Random bytes for masks fetched at once: four for each.
const POOL: usize = 1024;

/// The outgoing direction of a connection.
pub(super) struct Framer {
    masks: Masks,
    /// The beginning of a line, or of its next fragment.
    held: Vec<u8>,
    /// Fragments of the line were sent.
    is_in_message: bool,
}

impl Framer {
    /// Starts with the first frame.
    pub(super) fn new() -> Self {
        Self { masks: Masks { pool: [0; POOL], left: 0 }, held: Vec::new(), is_in_message: false }
    }

    /// Appends the frames that the next bytes of stdin complete to `frames`.
    ///
    /// # Errors
    /// The kernel returned no random bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8], frames: &mut Vec<u8>) -> io::Result<()> {
        loop {
            if self.held.is_empty() && !self.is_in_message {
                let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
                bytes = &bytes[bytes.iter().position(|byte| !is_space(byte)).unwrap_or(bytes.len())..];
            }
            let Some(end) = memchr(b'\n', bytes) else { break };
            self.write(&bytes[..end], true, frames)?;
            bytes = &bytes[end + 1..];
        }
        if self.held.len() + bytes.len() > LONGEST_HELD {
            self.write(bytes, false, frames)
        } else {
            self.held.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Appends the rest of stdin to `frames`: the last line needs no newline.
    ///
    /// # Errors
    /// The kernel returned no random bytes.
    pub(super) fn end(&mut self, frames: &mut Vec<u8>) -> io::Result<()> {
        if self.held.is_empty() && !self.is_in_message { Ok(()) } else { self.write(&[], true, frames) }
    }

    /// A mask for a control frame.
    ///
    /// # Errors
    /// The kernel returned no random bytes.
    pub(super) fn mask(&mut self) -> io::Result<Mask> {
        self.masks.next()
    }

    /// Writes the buffered bytes and these as a frame.
    fn write(&mut self, bytes: &[u8], is_last: bool, frames: &mut Vec<u8>) -> io::Result<()> {
        let mask = self.masks.next()?;
        let length = self.held.len() + bytes.len();
        frames.extend_from_slice(&encode::fragment(length, !self.is_in_message, is_last, Some(mask)));
        let payload = frames.len();
        frames.extend_from_slice(&self.held);
        frames.extend_from_slice(bytes);
        mask.apply(&mut frames[payload..]);
        self.held.clear();
        self.is_in_message = !is_last;
        Ok(())
    }
}

/// Masks, fetched from the kernel in batches.
struct Masks {
    pool: [u8; POOL],
    /// How many bytes at the front are unused.
    left: usize,
}

impl Masks {
    fn next(&mut self) -> io::Result<Mask> {
        if self.left == 0 {
            random::fill(&mut self.pool, random::Flags::empty())?;
            self.left = POOL;
        }
        self.left -= 4;
        let pool = &self.pool[self.left..];
        Ok(Mask::new([pool[0], pool[1], pool[2], pool[3]]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::websocket::Role;
    use crate::websocket::frame::{Decoder, Received};

    /// The frames of a stream that is read in pieces of these lengths.
    fn frames(stream: &[u8], lengths: &[usize]) -> Vec<u8> {
        let (mut framer, mut frames) = (Framer::new(), Vec::new());
        let mut rest = stream;
        for length in lengths.iter().cycle() {
            let (piece, tail) = rest.split_at(rest.len().min(*length));
            framer.read(piece, &mut frames).expect("random bytes");
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        framer.end(&mut frames).expect("random bytes");
        frames
    }

    /// The lines that a server reads.
    fn lines(mut frames: Vec<u8>) -> Vec<u8> {
        let mut decoder = Decoder::new(Role::Server, u64::MAX);
        let count = frames.len();
        frames.push(0);
        let mut received = Received::new(&mut frames, count);
        while let Some(event) = decoder.next(&mut received) {
            assert!(matches!(event, crate::websocket::frame::FrameEvent::Text { .. }), "{event:?}");
        }
        let text = received.text();
        assert!(!decoder.is_in_message());
        frames.truncate(text);
        frames
    }

    #[test]
    fn a_line_is_a_message_and_a_blank_one_is_dropped() {
        let stream = b"\n {\"a\":1}\r\n\r\n \t\n{\"b\":2} \n\n{\"c\":3}";
        for lengths in [vec![stream.len()], vec![1], vec![2, 3]] {
            let frames = frames(stream, &lengths);
            assert_eq!(lines(frames), b"{\"a\":1}\t\n{\"b\":2} \n{\"c\":3}\n", "the decoder makes a tab of \\r");
        }
        assert_eq!(frames(b" \n\r\n  ", &[2]), b"");
    }

    #[test]
    fn a_line_up_to_a_block_is_one_frame_however_it_is_cut_and_a_longer_one_is_not_buffered() {
        let stream = [&vec![b'x'; LONGEST_HELD][..], b"\n"].concat();
        for length in [1000, stream.len() - 1, stream.len()] {
            let frames = frames(&stream, &[length]);
            assert_eq!((frames[0], frames.len()), (0x81, LONGEST_HELD + 14), "cut at {length}");
        }
        let mut framer = Framer::new();
        let mut frames = Vec::new();
        for _ in 0..100 {
            framer.read(&[b'x'; LONGEST_HELD / 2], &mut frames).expect("random bytes");
        }
        assert!(frames.len() >= 49 * LONGEST_HELD && framer.held.capacity() <= 2 * LONGEST_HELD);
        framer.read(b"\n", &mut frames).expect("random bytes");
        assert_eq!(lines(frames).len(), 50 * LONGEST_HELD + 1);
    }

    #[test]
    fn each_frame_has_a_mask_of_its_own() {
        let frames = frames("[]\n".repeat(3000).as_bytes(), &[10]);
        let masks: std::collections::HashSet<_> = frames.chunks(8).map(|frame| frame[2..6].to_vec()).collect();
        assert!(masks.len() > 2990, "{} of 3000 masks are different", masks.len());
    }

    proptest! {
        #[test]
        fn a_server_reads_the_lines_however_stdin_is_cut(
            lines_ in prop::collection::vec("[a-z{}\" ]{0,40}", 0..12),
            long in prop::option::of(0..4_usize),
            lengths in prop::collection::vec(prop_oneof![1..40_usize, 60_000..70_000_usize], 1..6),
        ) {
            let mut lines_ = lines_;
            if let Some(blocks) = long {
                lines_.push("y".repeat(blocks * LONGEST_HELD + 17));
            }
            let expected: String =
                lines_.iter().map(|line| line.trim_start_matches(' ')).filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
            let found = lines(frames(lines_.join("\n").as_bytes(), &lengths));
            prop_assert!(found == expected.as_bytes());
        }
    }
}
