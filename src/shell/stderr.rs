//! A worker's stderr: a pipe that is always read, so that writing to it never blocks a worker for long. A limited number
//! of lines per second is passed to the log; the others are counted. One that is written to without end is read with
//! pauses of some milliseconds, and costs the loop a small part of its time.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::bus::port::Moment;
use crate::bus::waste::Waste;

/// Maximum length of a line in the log.
pub(super) const LONGEST_LINE: usize = 4 * 1024;
/// The initial size of a read, until a worker fills it.
const SMALL_BLOCK: usize = 4 * 1024;
const LARGE_BLOCK: usize = 32 * 1024;
/// Maximum number of lines of one worker that are logged per second.
pub(super) const LINES_PER_SEC: u32 = 100;
/// The window in which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Estimated costs in nanoseconds: of a read, and of a line that is left out. A byte costs one.
const COST_OF_READ: u64 = 8_000;
const COST_OF_LINE: u64 = 20;

/// An item for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogItem<'a> {
    /// A line without its newline: its kept beginning, and its full length.
    Line(&'a [u8], usize),
    /// How many lines and bytes were omitted.
    DefaultValue(u64, u64),
}

pub(super) struct Stderr {
    pub pipe: OwnedFd,
    /// The buffer of the next read.
    pub block: Box<[u8]>,
    /// The kept beginning of an incomplete line, and its length so far.
    line: Vec<u8>,
    length: usize,
    rate: Rate,
    /// What reading it has cost, and until when it is not read since that was too much.
    waste: Waste,
    pub paused_until: Option<Moment>,
}

impl Stderr {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        let block = vec![0; SMALL_BLOCK].into();
        let (rate, waste) = (Rate::default(), Waste::default());
        Self { pipe, block, line: Vec::new(), length: 0, rate, waste, paused_until: None }
    }

    /// Takes the first `bytes` of the block. `log` gets the items to log, if `is_wanted`.
    pub(super) fn take(&mut self, now: Moment, bytes: usize, is_wanted: bool, mut log: impl FnMut(LogItem<'_>)) {
        let before = self.rate.lines;
        let mut rest = &self.block[..bytes];
        if !is_wanted {
            rest = &[];
            self.length = 0;
            self.line.clear();
        }
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if self.length == 0 {
                self.rate.pass(now, &rest[..end], end, &mut log);
            } else {
                keep(&mut self.line, &rest[..end]);
                self.rate.pass(now, &self.line, self.length + end, &mut log);
                self.length = 0;
                self.line.clear();
            }
            rest = &rest[end + 1..];
        }
        keep(&mut self.line, rest);
        self.length += rest.len();
        let left_out = self.rate.lines.saturating_sub(before);
        self.paused_until = self.waste.charge(now, COST_OF_READ + bytes as u64 + left_out * COST_OF_LINE);
        self.fit_block(bytes);
    }

    /// A line for the log that did not come by the pipe; it counts as one of stderr.
    pub(super) fn pass(&mut self, now: Moment, line: &[u8], length: usize, mut log: impl FnMut(LogItem<'_>)) {
        self.rate.pass(now, line, length, &mut log);
    }

    /// Takes a larger block for a worker that fills this one.
    fn fit_block(&mut self, bytes: usize) {
        let wanted = if bytes == self.block.len() {
            LARGE_BLOCK
        } else if bytes < SMALL_BLOCK / 2 {
            SMALL_BLOCK
        } else {
            return;
        };
        if wanted != self.block.len() {
            self.block = vec![0; wanted].into();
        }
    }

    /// Ends the input: logs the last line, if it has no newline, and what was omitted.
    pub(super) fn finish(&mut self, now: Moment, mut log: impl FnMut(LogItem<'_>)) {
        if self.length > 0 {
            self.rate.pass(now, &self.line, self.length, &mut log);
            self.length = 0;
        }
        self.rate.log_left_out(now, &mut log);
    }

    /// Logs what was omitted, if that is due.
    pub(super) fn log_left_out(&mut self, now: Moment, mut log: impl FnMut(LogItem<'_>)) {
        if self.left_out_due().is_some_and(|due| due <= now) {
            self.rate.log_left_out(now, &mut log);
        }
    }

    /// When that is due.
    pub(super) fn left_out_due(&self) -> Option<Moment> {
        (self.rate.lines > 0).then(|| self.rate.from.after(WINDOW))
    }
}

fn keep(line: &mut Vec<u8>, piece: &[u8]) {
    let room = LONGEST_LINE - line.len();
    line.extend_from_slice(&piece[..piece.len().min(room)]);
}

/// Counts lines.
#[derive(Default)]
struct Rate {
    /// When the window began, and how many lines have passed since.
    from: Moment,
    passed: u32,
    /// What was omitted in it.
    lines: u64,
    bytes: u64,
}

impl Rate {
    fn pass(&mut self, now: Moment, kept: &[u8], length: usize, log: &mut impl FnMut(LogItem<'_>)) {
        if now.since(self.from) >= WINDOW {
            self.log_left_out(now, log);
            (self.from, self.passed) = (now, 0);
        }
        if self.passed >= LINES_PER_SEC {
            self.lines += 1;
            self.bytes += length as u64 + 1;
            return;
        }
        self.passed += 1;
        log(LogItem::Line(&kept[..kept.len().min(LONGEST_LINE)], length));
    }

    fn log_left_out(&mut self, now: Moment, log: &mut impl FnMut(LogItem<'_>)) {
        if self.lines > 0 {
            log(LogItem::DefaultValue(self.lines, self.bytes));
            (self.lines, self.bytes) = (0, 0);
            (self.from, self.passed) = (now, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Writer {
        stderr: Stderr,
        now: Moment,
        said: Vec<String>,
    }

    impl Writer {
        fn new() -> Self {
            let (pipe, _) = rustix::pipe::pipe().expect("there are descriptors");
            Self { stderr: Stderr::new(pipe), now: Moment(5_000_000_000), said: Vec::new() }
        }

        fn writes(&mut self, text: &[u8]) {
            for piece in text.chunks(SMALL_BLOCK) {
                self.stderr.block[..piece.len()].copy_from_slice(piece);
                let said = &mut self.said;
                self.stderr.take(self.now, piece.len(), true, |what| said.push(shown(what)));
            }
        }

        fn logged(&mut self) -> Vec<String> {
            std::mem::take(&mut self.said)
        }
    }

    fn shown(what: LogItem<'_>) -> String {
        match what {
            LogItem::Line(kept, length) if kept.len() == length => String::from_utf8_lossy(kept).into_owned(),
            LogItem::Line(kept, length) => format!("{} of {length} bytes", kept.len()),
            LogItem::DefaultValue(lines, bytes) => format!("{lines} lines, {bytes} bytes left out"),
        }
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        for size in 1..12 {
            let mut worker = Writer::new();
            b"one\n\ntwo three\nfour".chunks(size).for_each(|piece| worker.writes(piece));
            assert_eq!(worker.logged(), ["one", "", "two three"]);
            let said = &mut worker.said;
            worker.stderr.finish(worker.now, |what| said.push(shown(what)));
            assert_eq!(worker.logged(), ["four"]);
        }
    }

    #[test]
    fn an_endless_line_takes_no_more_memory_than_is_shown() {
        let mut worker = Writer::new();
        for _ in 0..100 {
            worker.writes(&[b'x'; 1000]);
            assert!(worker.stderr.line.capacity() <= 2 * LONGEST_LINE);
        }
        worker.writes(b"\nnext\n");
        assert_eq!(worker.logged(), ["4096 of 100000 bytes", "next"]);
    }

    #[test]
    fn lines_above_the_rate_limit_are_counted() {
        let mut worker = Writer::new();
        let most = LINES_PER_SEC as usize;
        worker.writes(&[&b"a\n".repeat(most)[..], b"c\ndd\n"].concat());
        assert_eq!(worker.logged(), vec!["a"; most]);
        let due = worker.stderr.left_out_due().expect("something was left out");
        assert_eq!(due, worker.now.after(WINDOW));
        worker.now = due;
        let said = &mut worker.said;
        worker.stderr.log_left_out(due, |what| said.push(shown(what)));
        assert_eq!(worker.logged(), ["2 lines, 5 bytes left out"]);
        assert_eq!(worker.stderr.left_out_due(), None);
        worker.writes(&[&b"e\n".repeat(most)[..], b"g\n"].concat());
        assert_eq!(worker.logged(), vec!["e"; most]);
        let said = &mut worker.said;
        worker.stderr.finish(worker.now, |what| said.push(shown(what)));
        assert_eq!(worker.logged(), ["1 lines, 2 bytes left out"]);
    }

    #[test]
    fn unwanted_stderr_is_read_and_dropped() {
        let mut worker = Writer::new();
        let block = worker.stderr.block.len();
        worker.stderr.block.fill(b'\n');
        worker.stderr.take(worker.now, block, false, |what| panic!("{what:?}"));
        assert_eq!(worker.stderr.left_out_due(), None);
        assert_eq!(worker.stderr.block.len(), LARGE_BLOCK, "a worker that fills the block gets a larger one");
        worker.stderr.take(worker.now, 10, false, |what| panic!("{what:?}"));
        assert_eq!(worker.stderr.block.len(), SMALL_BLOCK);
    }
}
