//! The standard streams: lines in, lines out, and the log on stderr, without threads.
//!
//! The flag `O_NONBLOCK` belongs to the open file, which other processes may share: setting it on an inherited pipe or
//! terminal would break them. So pipes and terminals are reopened through `/proc/self/fd`, sockets are used with
//! `MSG_DONTWAIT`, and what never blocks (files, `/dev/null`) is read and written directly.
//!
//! [`Lines`] and [`Outbox`] are pure. The invariant of the first: `start ≤ scanned ≤ end`; the limit applies to the
//! line, however it was cut, and a line that is too long is skipped to its end and then reported with the sender's id.
//! The second shows whether the reader is slower than the models: [`Outbox::is_congested`] is true from the moment that
//! a write would have blocked (or [`FULL`] bytes wait) until no more than [`LOW`] bytes wait. While it is true, the
//! pieces of an answer are held and joined by their turn instead of becoming a line each.
//!
//! A client that does not read our stderr must not be able to block us: a log line that does not fit at once is dropped
//! and counted, and the next line that fits says how many were dropped. Lines are short enough to be written whole.

use super::config::Level;
use super::rpc::{Envelope, floor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use stdio_bus_base::random::{Flags, fill};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One of the standard streams.
pub struct Stdio {
    fd: Fd,
    is_socket: bool,
}

enum Fd {
    /// Waits for readiness.
    Polled(AsyncFd<OwnedFd>),
    /// Is always ready.
    Ready(OwnedFd),
}

impl Stdio {
    /// The process's stdin.
    ///
    /// # Errors
    /// If it is closed, or cannot be registered.
    pub fn stdin() -> io::Result<Self> {
        Self::open(rustix::stdio::stdin(), 0, Interest::READABLE)
    }

    /// The process's stdout.
    ///
    /// # Errors
    /// If it is closed, or cannot be registered.
    pub fn stdout() -> io::Result<Self> {
        Self::open(rustix::stdio::stdout(), 1, Interest::WRITABLE)
    }

    fn open(fd: BorrowedFd<'_>, number: u8, interest: Interest) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        let is_socket = kind == FileType::Socket;
        let own = match kind {
            FileType::Fifo | FileType::CharacterDevice => {
                let flags = i32::try_from(OFlags::NONBLOCK.union(OFlags::NOCTTY).bits()).unwrap_or(0);
                let again = OpenOptions::new()
                    .read(interest.is_readable())
                    .write(interest.is_writable())
                    .custom_flags(flags)
                    .open(format!("/proc/self/fd/{number}"));
                match again {
                    Ok(file) => OwnedFd::from(file),
                    // No /proc, or another user's terminal: use the shared flag.
                    Err(_) => {
                        let flags = rustix::fs::fcntl_getfl(fd)?;
                        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
                        fd.try_clone_to_owned()?
                    }
                }
            }
            _ => fd.try_clone_to_owned()?,
        };
        // SAFETY: register_with_interest wants a descriptor that stays the same and open until the AsyncFd is dropped.
        // An OwnedFd closes its descriptor only when it is dropped, never changes it, and moves into the AsyncFd here.
        let registered = unsafe { AsyncFd::register_with_interest(own, interest) };
        let fd = match registered {
            Ok(polled) => Fd::Polled(polled),
            // EPERM: the kernel says that this is always ready, as files are.
            Err(error) => {
                let (own, cause) = error.into_parts();
                match cause.kind() {
                    io::ErrorKind::PermissionDenied => Fd::Ready(own),
                    _ => return Err(cause),
                }
            }
        };
        Ok(Self { fd, is_socket })
    }

    /// Reads into `buffer`; 0 is the end of the input. Cancel safe.
    ///
    /// # Errors
    /// The error of read(2).
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = |fd: &OwnedFd| -> io::Result<usize> {
            Ok(retry_on_intr(|| match self.is_socket {
                true => recv(fd, &mut *buffer, RecvFlags::DONTWAIT).map(|(count, _)| count),
                false => rustix::io::read(fd, &mut *buffer),
            })?)
        };
        match &self.fd {
            Fd::Ready(fd) => read(fd),
            Fd::Polled(fd) => loop {
                if let Ok(outcome) = fd.readable().await?.try_io(|fd| read(fd.get_ref())) {
                    return outcome;
                }
            },
        }
    }

    /// Writes what fits at once; `None` if not a byte does.
    ///
    /// # Errors
    /// The error of write(2); a broken pipe means that the reader is gone.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let fd = match &self.fd {
            Fd::Ready(fd) => fd.as_fd(),
            Fd::Polled(fd) => fd.get_ref().as_fd(),
        };
        let outcome = retry_on_intr(|| match self.is_socket {
            true => send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            false => rustix::io::write(fd, bytes),
        });
        match outcome {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until a write may fit again, after [`Self::try_write`] returned `None`.
    ///
    /// # Errors
    /// The error of poll(2).
    pub async fn writable(&self) -> io::Result<()> {
        let Fd::Polled(fd) = &self.fd else { return Ok(()) };
        loop {
            let mut ready = fd.writable().await?;
            // Epoll reported the room that there was before the last write; ask the kernel for the room there is now.
            let mut fds = [PollFd::new(fd.get_ref(), PollFlags::OUT)];
            if poll(&mut fds, Some(&NOW)).is_ok_and(|count| count == 0) {
                ready.clear_ready();
                continue;
            }
            return Ok(());
        }
    }
}

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
    /// Beginning and end of a line that is being skipped.
    skipped: Option<Vec<u8>>,
    /// The first line was read.
    has_begun: bool,
}

/// Some programs write it ahead of UTF-8, though they should not (RFC 8259, section 8.1).
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl Lines {
    /// Lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, end: 0, limit, skipped: None, has_begun: false }
    }

    /// Space for a read; [`Self::received`] says how much of it was used.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.scanned -= self.start;
            self.end -= self.start;
            self.start = 0;
        }
        // A long line doubles the buffer rather than growing it read by read, and the buffer shrinks again afterwards.
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
                if self.skipped.is_some() || self.end - self.start > self.limit {
                    self.skip(self.start..self.end);
                    self.start = self.end;
                }
                return None;
            };
            let line = self.start..self.scanned + found;
            self.start = line.end + 1;
            self.scanned = self.start;
            let line = self.line(line);
            if line.is_some() {
                return line;
            }
        }
    }

    /// The rest after the last line end when the input ends: a line that lacks only its end.
    pub fn last_line(&mut self) -> Option<Line> {
        let line = self.start..self.end;
        self.start = self.end;
        self.scanned = self.end;
        self.line(line)
    }

    fn line(&mut self, mut line: Range<usize>) -> Option<Line> {
        let begin = self.buffer[line.clone()].trim_ascii_start();
        if !begin.is_empty() && !std::mem::replace(&mut self.has_begun, true) && begin.starts_with(BYTE_ORDER_MARK) {
            line.start = line.end - begin.len() + BYTE_ORDER_MARK.len();
        }
        if self.skipped.is_some() || line.len() > self.limit {
            self.skip(line);
            return self.skipped.take().map(|kept| Line::TooLong(Envelope::of(&kept)));
        }
        (!self.buffer[line.clone()].trim_ascii().is_empty()).then_some(Line::Whole(line))
    }

    /// Keeps the beginning and the end of a line that is too long; what is missing is, most likely, within a string.
    fn skip(&mut self, bytes: Range<usize>) {
        let kept = self.skipped.get_or_insert_default();
        kept.extend_from_slice(&self.buffer[bytes]);
        if kept.len() > 2 * SPACE {
            kept.drain(SPACE..kept.len() - SPACE);
        }
    }

    /// The bytes of a range returned by this type since the last call of [`Self::space`].
    pub fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.buffer[range]
    }
}

/// From this many waiting bytes on the outbox is congested, blocked or not.
pub const FULL: usize = 256 << 10;

/// Down to this many waiting bytes held pieces are released again.
pub const LOW: usize = 16 << 10;

/// From this many waiting bytes on no more requests should be read.
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
    /// The buffer that whole lines are appended to.
    pub fn lines(&mut self) -> &mut Vec<u8> {
        if self.len() >= FULL {
            self.congested = true;
        }
        &mut self.bytes
    }

    /// Number of waiting bytes.
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

    /// The bytes to be written next.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// `count` bytes were written; `blocked` means that the reader takes no more for now.
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
        self.congested = (blocked && !self.is_empty()) || (self.congested && self.len() > LOW);
    }
}

/// Maximum length of a log line; a pipe takes that many bytes at once or not at all.
const LONGEST_NOTE: usize = 2048;

/// No time to wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

thread_local! {
    static LEVEL: Cell<Level> = const { Cell::new(Level::Warn) };
    static DROPPED: Cell<u64> = const { Cell::new(0) };
    static MASK: RefCell<Option<Box<Mask>>> = const { RefCell::new(None) };
}

/// Removes secrets from a line.
type Mask = dyn Fn(&str) -> String;

/// Masks every log line from now on.
pub fn hide(mask: Box<Mask>) {
    MASK.set(Some(mask));
}

/// Sets the log level.
pub fn set_level(level: Level) {
    LEVEL.set(level);
}

/// Writes a line if its level is enabled and stderr takes it at once.
pub fn log(level: Level, message: Arguments<'_>) {
    if level > LEVEL.get() {
        return;
    }
    let name = ["", "error", "warning", "info", "debug"][level as usize];
    let dropped = DROPPED.get();
    let mut line = format!("openai-agent: {name}: {message}").replace(['\n', '\r'], " ");
    MASK.with_borrow(|mask| mask.iter().for_each(|mask| line = mask(&line)));
    if line.len() > LONGEST_NOTE {
        line.truncate(floor(&line, LONGEST_NOTE));
        line.push('…');
    }
    if dropped > 0 {
        line.push_str(&format!(" ({dropped} lines before it were lost)"));
    }
    line.push('\n');
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let fits = poll(&mut fds, Some(&NOW)).is_ok_and(|ready| ready == 1) && fds[0].revents().contains(PollFlags::OUT);
    if fits && stderr.lock().write_all(line.as_bytes()).is_ok() {
        DROPPED.set(0);
    } else {
        DROPPED.set(dropped + 1);
    }
}

/// Logs a line at a level: `note!(Warn, "…")`.
macro_rules! note {
    ($level:ident, $($message:tt)*) => {
        $crate::stdio::log($crate::config::Level::$level, format_args!($($message)*))
    };
}
pub(crate) use note;

/// Random bytes from the kernel.
pub(super) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    fill(&mut bytes, Flags::empty()).expect("Linux has getrandom(2)");
    bytes
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
    fn a_byte_order_mark_ahead_of_the_first_line_is_no_part_of_it() {
        let mark = "\u{feff}";
        for (text, expected) in [
            (format!("{mark}ab\n{mark}c\n"), vec!["ab".to_owned(), format!("{mark}c")]),
            (format!("\n\r\n{mark}ab\r\n"), vec!["ab\r".to_owned()]),
            (format!("{mark}\nab"), vec!["ab".to_owned()]),
        ] {
            for piece in 1..=text.len() {
                let chunks: Vec<&[u8]> = text.as_bytes().chunks(piece).collect();
                let lines: Vec<_> = read(&chunks, 20).into_iter().flatten().map(String::from_utf8).collect();
                assert_eq!(
                    lines,
                    expected.iter().cloned().map(Ok).collect::<Vec<_>>(),
                    "{text:?} in pieces of {piece}"
                );
            }
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
    fn the_id_in_a_long_line_is_found_at_any_position_and_with_any_cut() {
        for (head, tail) in [(r#"{"id":"a","x":""#, r#""}"#), (r#"{"x":""#, r#"","id":"a"}"#)] {
            for (size, end, length) in
                [(1, "\n", 100), (7, "", 100), (50, "\n", 100), (SPACE, "\n", 9 * SPACE), (SPACE, "", 100)]
            {
                let line = format!("{head}{}{tail}", "x".repeat(length));
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
