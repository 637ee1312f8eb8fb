//! The lines that wait for the reader of stdout. Pure: the shell takes bytes and says how many were written.
//!
//! Whether the reader is slower than the models shows here: [`Outbox::is_congested`] is true from the moment that a
//! write would have blocked (or [`FULL`] bytes wait) until no more than [`LOW`] bytes wait. While it is true, the
//! pieces of an answer are held and joined by their turn instead of becoming a line each.

/// Bytes waiting from which on the outbox is congested, blocked or not.
pub const FULL: usize = 256 << 10;

/// Bytes waiting up to which held pieces are let out again.
pub const LOW: usize = 16 << 10;

/// Bytes waiting from which on no more requests should be read.
pub const STOP_READING: usize = 4 << 20;

/// Capacity, in bytes, that is kept when everything is written.
const KEPT: usize = 1 << 20;

/// Bytes for stdout.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    written: usize,
    congested: bool,
}

impl Outbox {
    /// Where whole lines are appended.
    pub fn lines(&mut self) -> &mut Vec<u8> {
        if self.len() >= FULL {
            self.congested = true;
        }
        &mut self.bytes
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the reader is slower than the models.
    pub fn is_congested(&self) -> bool {
        self.congested || self.len() >= FULL
    }

    /// What is to be written next.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// `count` bytes were written; `blocked` says that the reader takes no more for now.
    pub fn wrote(&mut self, count: usize, blocked: bool) {
        self.written = (self.written + count).min(self.bytes.len());
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.written = 0;
        } else if self.written >= FULL {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        self.congested = match (blocked && !self.is_empty(), self.len() <= LOW) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => self.congested,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_write_congests_until_little_waits() {
        let mut outbox = Outbox::default();
        outbox.lines().extend(vec![b'x'; 100_000]);
        assert!(!outbox.is_congested());
        outbox.wrote(10, true);
        assert!(outbox.is_congested());
        outbox.wrote(50_000, false);
        assert!(outbox.is_congested());
        outbox.wrote(99_990 - 50_000 - LOW, false);
        assert!(!outbox.is_congested());
        outbox.wrote(LOW, false);
        assert!(outbox.is_empty());
        outbox.lines().extend(vec![b'x'; FULL]);
        assert!(outbox.is_congested());
    }
}
