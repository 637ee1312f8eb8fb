//! Framing of the input: bytes in, lines out. Pure.
//!
//! The invariant: `start ≤ scanned ≤ end`. The limit is on the line, however it was cut; a line that is too long is
//! passed over to its end and then reported with whoever asks in it, and the lines after it are read as ever.

use std::ops::Range;

use super::rpc::{Envelope, Finder};

/// Bytes offered to one read.
const SPACE: usize = 64 << 10;

/// What [`Lines::next_line`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end: a range of [`Lines::bytes`]. It is not blank.
    Whole(Range<usize>),
    /// A line longer than the limit, and what was found in it.
    TooLong(Envelope),
}

/// The received bytes that are not yet lines.
pub struct Lines {
    buffer: Vec<u8>,
    start: usize,
    scanned: usize,
    end: usize,
    limit: usize,
    /// Looks into a line that is being passed over.
    skipping: Option<Finder>,
}

impl Lines {
    /// Lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, end: 0, limit, skipping: None }
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
                if self.skipping.is_some() || self.end - self.start > self.limit {
                    let finder = self.skipping.get_or_insert_default();
                    finder.push(&self.buffer[self.start..self.end]);
                    self.start = self.end;
                }
                return None;
            };
            let line = self.start..self.scanned + found;
            self.start = line.end + 1;
            self.scanned = self.start;
            let skipping = self.skipping.take();
            if skipping.is_some() || line.len() > self.limit {
                return Some(Line::TooLong(self.look_into(skipping, line)));
            }
            if !self.buffer[line.clone()].trim_ascii().is_empty() {
                return Some(Line::Whole(line));
            }
        }
    }

    /// What stands after the last line end when the input ends: a line that lacks only its end.
    pub fn last_line(&mut self) -> Option<Line> {
        let line = self.start..self.end;
        self.start = self.end;
        self.scanned = self.end;
        let skipping = self.skipping.take();
        if skipping.is_some() || line.len() > self.limit {
            return Some(Line::TooLong(self.look_into(skipping, line)));
        }
        (!self.buffer[line.clone()].trim_ascii().is_empty()).then_some(Line::Whole(line))
    }

    /// What is found in a line that is too long and ends with these bytes.
    fn look_into(&self, skipping: Option<Finder>, rest: Range<usize>) -> Envelope {
        let mut finder = skipping.unwrap_or_default();
        finder.push(&self.buffer[rest]);
        finder.finish()
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
                        Line::TooLong(_) => None,
                    });
                }
            }
        }
        match lines.last_line() {
            Some(Line::Whole(range)) => seen.push(Some(lines.bytes(range).to_vec())),
            Some(Line::TooLong(_)) => seen.push(None),
            None => {}
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
    fn who_asks_in_a_long_line_is_found_wherever_it_stands_and_however_it_is_cut() {
        for (head, tail) in [(r#"{"id":"a","x":""#, r#""}"#), (r#"{"x":""#, r#"","id":"a"}"#)] {
            let line = format!("{head}{}{tail}", "x".repeat(100));
            for (size, end) in [(1, "\n"), (7, ""), (50, "\n"), (SPACE, "\n"), (SPACE, "")] {
                let (mut lines, mut found) = (Lines::new(20), Vec::new());
                for part in format!("{line}{end}").as_bytes().chunks(size) {
                    lines.space()[..part.len()].copy_from_slice(part);
                    lines.received(part.len());
                    found.extend(lines.next_line());
                }
                found.extend(lines.last_line());
                let [Line::TooLong(envelope)] = &found[..] else { panic!("{size}: {found:?}") };
                assert_eq!(&*envelope.reply.id, "\"a\"", "{size}");
            }
        }
    }

    #[test]
    fn the_last_line_needs_no_end() {
        assert_eq!(read(&[b"a\n\n \r\nb"], 20), [Some(b"a".to_vec()), Some(b"b".to_vec())]);
    }
}
