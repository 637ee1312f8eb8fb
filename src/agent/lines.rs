//! Framing of the input: bytes in, lines out. Pure.
//!
//! The invariant: `start ≤ scanned ≤ end`. The limit is on the line, however it was cut; a line that is too long is
//! reported once and passed over to its end, and the lines after it are read as ever.

use std::ops::Range;

/// Bytes offered to one read.
const SPACE: usize = 64 << 10;

/// What [`Lines::next_line`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end: a range of [`Lines::bytes`]. It is not blank.
    Whole(Range<usize>),
    /// A line longer than the limit.
    TooLong,
}

/// The received bytes that are not yet lines.
pub struct Lines {
    buffer: Vec<u8>,
    start: usize,
    scanned: usize,
    end: usize,
    limit: usize,
    skipping: bool,
}

impl Lines {
    /// Lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, end: 0, limit, skipping: false }
    }

    /// Room for a read; [`Self::received`] says how much of it was used.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.scanned -= self.start;
            self.end -= self.start;
            self.start = 0;
        }
        // A long line doubles the buffer rather than growing it read by read, and leaves nothing behind when it is gone.
        let wanted = self.end + SPACE.max(self.end);
        if self.buffer.len() < self.end + SPACE {
            self.buffer.resize(wanted, 0);
        } else if self.end == 0 && self.buffer.len() > 4 * SPACE {
            self.buffer = vec![0; SPACE];
        }
        &mut self.buffer[self.end..]
    }

    /// `count` bytes were written to the beginning of [`Self::space`].
    pub fn received(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }

    /// The next line, if one is complete.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let Some(found) = memchr::memchr(b'\n', &self.buffer[self.scanned..self.end]) else {
                self.scanned = self.end;
                if self.skipping || self.end - self.start > self.limit {
                    self.start = self.end;
                    return (!std::mem::replace(&mut self.skipping, true)).then_some(Line::TooLong);
                }
                return None;
            };
            let line = self.start..self.scanned + found;
            self.start = line.end + 1;
            self.scanned = self.start;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if line.len() > self.limit {
                return Some(Line::TooLong);
            }
            if !self.buffer[line.clone()].trim_ascii().is_empty() {
                return Some(Line::Whole(line));
            }
        }
    }

    /// What stands after the last line end when the input ends: a line that lacks only its end.
    pub fn last_line(&mut self) -> Option<Range<usize>> {
        let line = self.start..self.end;
        self.start = self.end;
        self.scanned = self.end;
        let is_line = !self.skipping && line.len() <= self.limit && !self.buffer[line.clone()].trim_ascii().is_empty();
        is_line.then_some(line)
    }

    /// The bytes of a range given by this type since the last call of [`Self::space`].
    pub fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.buffer[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(chunks: &[&[u8]], limit: usize) -> Vec<Option<Vec<u8>>> {
        let (mut lines, mut seen) = (Lines::new(limit), Vec::new());
        for chunk in chunks {
            for part in chunk.chunks(SPACE) {
                lines.space()[..part.len()].copy_from_slice(part);
                lines.received(part.len());
                while let Some(line) = lines.next_line() {
                    seen.push(match line {
                        Line::Whole(range) => Some(lines.bytes(range).to_vec()),
                        Line::TooLong => None,
                    });
                }
            }
        }
        if let Some(range) = lines.last_line() {
            seen.push(Some(lines.bytes(range).to_vec()));
        }
        seen
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_cuts(
            lines in proptest::collection::vec(proptest::collection::vec(b'a'..b'f', 0..30), 0..12),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let stream: Vec<u8> = lines.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let expected: Vec<_> = lines.iter().filter(|line| !line.is_empty())
                .map(|line| (line.len() <= 20).then(|| line.clone())).collect();
            prop_assert_eq!(read(&chunks, 20), expected);
        }
    }

    #[test]
    fn a_long_line_is_read_whole_and_its_memory_is_given_back() {
        let long = vec![b'x'; 3 << 20];
        let mut lines = Lines::new(4 << 20);
        for part in long.chunks(SPACE) {
            lines.space()[..part.len()].copy_from_slice(part);
            lines.received(part.len());
            assert_eq!(lines.next_line(), None);
        }
        lines.space()[0] = b'\n';
        lines.received(1);
        assert_eq!(lines.next_line(), Some(Line::Whole(0..long.len())));
        lines.space();
        assert_eq!(lines.buffer.len(), SPACE);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        assert_eq!(read(&[b"a\n\n \r\nb"], 20), [Some(b"a".to_vec()), Some(b"b".to_vec())]);
    }
}
