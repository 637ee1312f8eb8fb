//! The incomplete last line of stdin. It is held back up to a block, so that if an editor dies within a line none of it
//! has been sent, and what the bridge then sends does not follow half a line.
//!
//! A longer line is not held: it is passed on while it arrives.

use memchr::{memchr, memrchr};

use super::limits::BLOCK;

#[derive(Default)]
pub(super) struct BegunLine {
    /// Its bytes so far.
    held: Vec<u8>,
    /// It was too long to hold, and its beginning was passed on.
    has_gone: bool,
}

impl BegunLine {
    /// Takes the incomplete line at the end of `buffer` out of it. Returns what has to be passed on before the rest of
    /// `buffer`.
    pub(super) fn hold_back(&mut self, buffer: &mut Vec<u8>) -> Vec<u8> {
        if self.has_gone {
            if memchr(b'\n', buffer).is_none() {
                return Vec::new();
            }
            self.has_gone = false;
        }
        let end = memrchr(b'\n', buffer).map_or(0, |newline| newline + 1);
        if end > 0 {
            let before = std::mem::take(&mut self.held);
            self.held.extend_from_slice(&buffer[end..]);
            buffer.truncate(end);
            return before;
        }
        if self.held.len() + buffer.len() > BLOCK {
            self.has_gone = true;
            return std::mem::take(&mut self.held);
        }
        self.held.append(buffer);
        Vec::new()
    }

    /// Whether part of it was passed on.
    pub(super) fn has_gone(&self) -> bool {
        self.has_gone
    }

    /// Takes the part that was held back.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_up_to_a_block_is_held_back_and_a_longer_one_is_not() {
        let mut begun = BegunLine::default();
        let mut bytes = [b"{}\n", &vec![b'x'; BLOCK][..]].concat();
        assert!(begun.hold_back(&mut bytes).is_empty());
        assert_eq!((&bytes[..], begun.has_gone()), (&b"{}\n"[..], false));
        let mut more = b"y".to_vec();
        assert_eq!((begun.hold_back(&mut more).len(), &more[..], begun.has_gone()), (BLOCK, &b"y"[..], true));
        let mut end = b"z\n{".to_vec();
        assert!(begun.hold_back(&mut end).is_empty());
        assert_eq!((&end[..], begun.has_gone(), begun.take()), (&b"z\n"[..], false, b"{".to_vec()));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_moved_however_stdin_is_cut(
            lines in prop::collection::vec("[a-z]{0,30}", 0..12),
            long in prop::option::of(0..12_usize),
            lengths in prop::collection::vec(prop_oneof![1..40_usize, 60_000..70_000_usize], 1..6),
        ) {
            let mut lines = lines;
            if let Some(long) = long.filter(|long| *long < lines.len()) {
                lines[long] = "y".repeat(3 * BLOCK + 17);
            }
            let stream = lines.join("\n").into_bytes();
            let (mut begun, mut passed, mut rest) = (BegunLine::default(), Vec::new(), &stream[..]);
            for length in lengths.iter().cycle() {
                let (piece, tail) = rest.split_at(rest.len().min(*length));
                let mut piece = piece.to_vec();
                passed.extend(begun.hold_back(&mut piece));
                passed.extend(piece);
                prop_assert!(begun.has_gone() || passed.is_empty() || passed.ends_with(b"\n"));
                rest = tail;
                if rest.is_empty() {
                    break;
                }
            }
            passed.extend(begun.take());
            prop_assert!(passed == stream);
        }
    }
}
