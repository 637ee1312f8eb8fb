//! The log: `tracing` events, the workers' stderr and requests become lines on stderr (spec, appendix C). Writing never
//! blocks: lines go into a bounded buffer that the backend drains. Lines that do not fit or cannot be written are
//! dropped and counted, and their number precedes the next line that is written. Half of the buffer is reserved for the
//! daemon's own lines: neither workers nor requests can push them out.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use super::inherited;
use super::log_line::{self, Entry, LineFormat};
use super::stderr::{LINES_PER_SEC, LogItem};
use crate::bus::port::{Origin, Place, Reason};
use crate::bus::report::{Report, WorkerName};
use crate::bus::stats::ConnectionStats;
use crate::config::{self, Log, LogFormat, LogLevel};
use crate::error::StartError;

/// Maximum number of bytes queued for stderr.
const BUFFER: usize = 256 * 1024;
/// How many of them may be lines of workers and requests.
const OTHERS_PART: usize = BUFFER / 2;
/// Minimum size of a write of lines that wait for more, since each write costs as much as several of them.
const ENOUGH: usize = 32 * 1024;
/// The level of workers' stderr.
pub(super) const OF_WORKERS: LogLevel = LogLevel::Info;

#[cfg(not(test))]
static BUFFERED: Mutex<Buffered> = Mutex::new(Buffered::EMPTY);
#[cfg(test)]
thread_local! {
    /// Tests run concurrently, and the behaviour of a simulated daemon has to follow from its seed.
    static BUFFERED: &'static Mutex<Buffered> = Box::leak(Box::new(Mutex::new(Buffered::EMPTY)));
}
static JSON: AtomicBool = AtomicBool::new(false);
static JOURNAL: AtomicBool = AtomicBool::new(false);
static LEVEL: AtomicU8 = AtomicU8::new(LogLevel::Info as u8);
/// How often the buffer became non-empty. A writer that has drained it at this count needs no lock to know that it is
/// empty.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// Lines lost since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

pub(super) struct Buffered {
    bytes: Vec<u8>,
    /// Lines dropped after these, by their source.
    dropped: [u64; 3],
    /// They have to be written without waiting for more.
    are_due: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineSource {
    Daemon,
    Workers,
    /// The lines of `log.requests`.
    Requests,
}

impl Buffered {
    const EMPTY: Self = Self { bytes: Vec::new(), dropped: [0; 3], are_due: false };

    fn push(&mut self, line: &[u8], source: LineSource) {
        self.push_with(source, false, || line);
    }

    /// Adds a line, which is formatted only if it may fit. It may wait for others, to be written with them.
    pub(super) fn push_with<'l>(&mut self, source: LineSource, may_wait: bool, line: impl FnOnce() -> &'l [u8]) {
        // After a gap no line may be added before the gap is reported. Gaps of others do not affect the daemon's own
        // lines.
        let is_own = source == LineSource::Daemon;
        let room = if is_own { BUFFER } else { OTHERS_PART };
        let missed = if is_own { self.dropped[source as usize] } else { self.dropped.iter().sum() };
        if missed == 0 && self.bytes.len() < room {
            let line = line();
            if self.bytes.len() + line.len() <= room {
                if self.bytes.is_empty() {
                    BEGUN.fetch_add(1, Ordering::Relaxed);
                }
                self.bytes.extend_from_slice(line);
                self.are_due |= !may_wait || self.bytes.len() >= ENOUGH;
                return;
            }
        }
        self.dropped[source as usize] += 1;
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lines that are being written to stderr, with notes of lost ones.
#[derive(Default)]
pub(super) struct Batch {
    /// The value of [`BEGUN`] when the buffer was empty.
    begun: u64,
    bytes: Vec<u8>,
    written: usize,
    /// The range of lines in `bytes`; around them are notes of what was lost before and after.
    lines: Range<usize>,
    /// Earlier lines that could not be written, and the last error.
    failed: u64,
    errno: i32,
    /// Later lines that did not fit.
    dropped: u64,
    /// The last write ended in the middle of a line.
    torn: bool,
}

impl Batch {
    /// The bytes to write next.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Records written bytes.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        if self.rest().is_empty() {
            (self.failed, self.dropped, self.torn) = (0, 0, false);
        }
    }

    /// The rest cannot be written. It is counted, and reported with the next line.
    pub(super) fn fail(&mut self, errno: i32) {
        if self.written >= self.lines.start {
            self.failed = 0;
        }
        LOST.fetch_add(self.unwritten_lines(), Ordering::Relaxed);
        self.failed += self.unwritten_lines() + self.dropped;
        if self.written > 0 {
            self.torn = self.bytes[self.written - 1] != b'\n';
        }
        (self.errno, self.dropped, self.written) = (errno, 0, self.bytes.len());
    }

    fn unwritten_lines(&self) -> u64 {
        let unwritten = self.lines.start.max(self.written).min(self.lines.end)..self.lines.end;
        memchr::memchr_iter(b'\n', &self.bytes[unwritten]).count() as u64
    }

    /// Takes the buffered lines, with notes of what was lost.
    fn fill(&mut self, buffer: &mut Buffered) {
        let dropped = std::mem::take(&mut buffer.dropped);
        (self.written, self.dropped) = (0, dropped.iter().sum());
        buffer.are_due = false;
        self.bytes.clear();
        if self.torn {
            self.bytes.push(b'\n');
        }
        if self.failed > 0 {
            let why = io::Error::from_raw_os_error(self.errno);
            self.note(self.failed, &[], &format!("the log could not be written ({why})"));
        }
        self.lines.start = self.bytes.len();
        if self.bytes.is_empty() {
            std::mem::swap(&mut buffer.bytes, &mut self.bytes);
        } else {
            self.bytes.append(&mut buffer.bytes);
        }
        self.lines.end = self.bytes.len();
        if self.dropped > 0 {
            self.note(self.dropped, &dropped[1..], "stderr was full");
        }
    }

    fn note(&mut self, lines: u64, of: &[u64], why: &str) {
        let parts = of.iter().zip(["workers", "requests"]).filter(|(lines, _)| **lines > 0);
        let source: String = parts.map(|(lines, source)| format!(", {lines} of them of {source}")).collect();
        let why = format_args!("{why}: {lines} lines of the log were dropped{source}");
        self.bytes.extend(Entry::new(look(), Level::WARN).message(why).word("reason", "log_dropped").line());
    }
}

/// The buffer. Nothing else may be logged meanwhile.
pub(super) fn buffered() -> MutexGuard<'static, Buffered> {
    #[cfg(not(test))]
    let buffered = &BUFFERED;
    #[cfg(test)]
    let buffered = BUFFERED.with(|buffered| *buffered);
    buffered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the buffered lines: the next daemon on this thread starts empty.
#[cfg(test)]
pub(super) fn forget() {
    *buffered() = Buffered::EMPTY;
}

/// Counts and reports requests without a line (`log.requests`).
pub(super) fn requests_lost(requests: u64) {
    LOST.fetch_add(requests, Ordering::Relaxed);
    let why = format_args!("{requests} requests have no line in the log: there were too many at once");
    let line = Entry::new(look(), Level::WARN).message(why).word("reason", "log_dropped").line();
    buffered().push(&line, LineSource::Daemon);
}

/// The format of lines.
pub(super) fn look() -> LineFormat {
    LineFormat { json: JSON.load(Ordering::Relaxed), journal: JOURNAL.load(Ordering::Relaxed) }
}

/// Whether stderr is systemd's journal: JOURNAL_STREAM identifies the file that it has given us (systemd.exec(5)). A
/// redirected stderr is another file.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = fstat(rustix::stdio::stderr().as_fd());
    stderr.is_ok_and(|file| stream == format!("{}:{}", file.st_dev, file.st_ino))
}

/// The `tracing` level.
pub(super) fn level_of(level: LogLevel) -> Level {
    LEVELS[level as usize]
}

/// Sets the format of lines.
pub(super) fn set_format(format: LogFormat) {
    JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    JOURNAL.store(is_journal(), Ordering::Relaxed);
}

/// Installs the log as the subscriber of `tracing` events. To be called once.
pub(super) fn install(log: &Log) {
    set_format(log.format);
    LEVEL.store(log.level as u8, Ordering::Relaxed);
    // A second installation, in a test, keeps the first, since there is one stderr.
    let _ = tracing::subscriber::set_global_default(Lines);
}

/// The levels by number.
const LEVELS: [Level; 4] = [Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];

/// The least important level that is written, by number.
fn level() -> usize {
    LEVEL.load(Ordering::Relaxed).into()
}

/// Sets the least important level that is written.
pub(super) fn set_level(level: LogLevel) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    // Callsites cache whether they are enabled.
    tracing::callsite::rebuild_interest_cache();
}

/// The least important level that is written.
pub(super) fn level_name() -> &'static str {
    config::LEVELS[level()].0
}

/// Lines lost since the start.
pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// The result of [`take`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Nothing,
    /// There are only lines that wait for more: of requests, and of clients who come and go.
    Waits,
    Ready,
}

/// Prepares the next lines for writing, once the last ones are written.
pub(super) fn take(batch: &mut Batch) -> Taken {
    if !batch.rest().is_empty() {
        return Taken::Ready;
    }
    let begun = BEGUN.load(Ordering::Relaxed);
    if begun == batch.begun {
        return Taken::Nothing;
    }
    let mut buffer = buffered();
    match (buffer.bytes.is_empty(), buffer.are_due) {
        (true, _) => {
            batch.begun = begun;
            Taken::Nothing
        }
        (false, false) => Taken::Waits,
        (false, true) => {
            batch.fill(&mut buffer);
            Taken::Ready
        }
    }
}

/// Ends the wait for more lines.
pub(super) fn hurry() {
    buffered().are_due = true;
}

/// Writes the rest, however long that takes. False if lines were lost without a report.
pub(super) fn flush(batch: &mut Batch) -> bool {
    let stderr = rustix::stdio::stderr();
    hurry();
    while take(batch) == Taken::Ready {
        match rustix::io::write(stderr, batch.rest()) {
            Ok(written) if written > 0 => batch.advance(written),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)),
            Ok(_) => return false,
            Err(error) => return inherited::reader_gone(stderr, error.raw_os_error()),
        }
    }
    batch.failed == 0 || inherited::reader_gone(stderr, batch.errno)
}

/// Writes a line of the daemon, whatever the level of the log.
pub(super) fn note(line: &[u8]) {
    buffered().push(line, LineSource::Daemon);
}

/// Why the daemon does not run: a JSON entry, or plain lines.
pub(super) fn last_line(error: &StartError) -> Vec<u8> {
    let look = look();
    if look.json {
        return Entry::new(look, Level::ERROR).message(error).number("exit_code", error.exit_code()).line();
    }
    let priority = look.priority(Level::ERROR);
    let text = format!("stdio_bus: {error}");
    text.lines().flat_map(|line| [priority, line, "\n"]).collect::<String>().into_bytes()
}

/// Whether this level is written.
pub(super) fn is_wanted(level: LogLevel) -> bool {
    level as usize >= self::level()
}

/// Logs a worker's stderr.
pub(super) fn worker(pool: &str, worker: WorkerName, item: LogItem<'_>) {
    if !is_wanted(OF_WORKERS) {
        return;
    }
    let (look, level) = (look(), level_of(OF_WORKERS));
    match item {
        LogItem::Line(kept, length) => {
            buffered().push(&log_line::of_worker(look, level, (pool, worker), kept, length), LineSource::Workers);
        }
        LogItem::DefaultValue(lines, bytes) => {
            let mut entry = Entry::new(look, level);
            entry.message(format_args!(
                "a worker wrote more than {LINES_PER_SEC} lines a second to stderr; the others were left out"
            ));
            entry.word("reason", "stderr_left_out").worker(pool, worker).number("lines", lines).number("bytes", bytes);
            buffered().push(&entry.line(), LineSource::Daemon);
        }
    }
}

/// Logs a report of the core. `pool_of` returns a pool's name.
pub(super) fn report(report: &Report, pool_of: impl Fn(usize) -> String) {
    if !is_wanted(report.level) {
        return;
    }
    let mut entry = Entry::new(look(), level_of(report.level));
    entry.message(&report.text).word("reason", report.reason.name());
    if let Some(worker) = report.worker {
        entry.worker(&pool_of(worker.pool.index()), worker);
    }
    if let Some(client) = report.client {
        entry.number("client", client);
    }
    if let Some(origin) = &report.origin {
        add_origin(&mut entry, origin);
    }
    if let Some(account) = &report.account {
        add_account(&mut entry, account);
    }
    if let Some(id) = &report.id {
        entry.token("id", id);
    }
    if report.suppressed > 0 {
        entry.plain("suppressed", report.suppressed);
    }
    let line = entry.line();
    // Thousands may come and go in a second, and a write to a file takes a thread.
    let may_wait = matches!(report.reason, Reason::ClientOpened | Reason::ClientClosed);
    buffered().push_with(LineSource::Daemon, may_wait, || &line);
}

/// Adds a client's identity.
pub(super) fn add_origin(entry: &mut Entry, origin: &Origin) {
    match origin.place {
        Place::Process { pid: 0, user } => _ = entry.number("uid", user),
        Place::Process { pid, user } => _ = entry.number("pid", pid).number("uid", user),
        place @ Place::Address(_) => _ = entry.shown("from", place),
        Place::Inherited => {}
    }
    if let Some(via) = &origin.via {
        entry.chosen("via", &via.to_string());
    }
    let names = &origin.names;
    let names = [
        ("token", names.token.as_deref()),
        ("user", names.user.as_deref()),
        ("cn", names.common_name.as_deref()),
        ("sni", names.server_name.as_deref()),
        ("unique_id", names.unique_id.as_deref()),
        ("connection_id", names.connection_id.as_deref()),
    ];
    for (name, value) in names {
        if let Some(value) = value {
            entry.chosen(name, value);
        }
    }
}

fn add_account(entry: &mut Entry, account: &ConnectionStats) {
    if let Some(why) = account.why {
        entry.text("why", why);
    }
    entry
        .number("duration_ms", u64::try_from(account.lasted.as_millis()).unwrap_or(u64::MAX))
        .number("lines_in", account.traffic.lines_in)
        .number("bytes_in", account.traffic.bytes_in)
        .number("lines_out", account.traffic.lines_out)
        .number("bytes_out", account.traffic.bytes_out)
        .number("answered", account.answered)
        .number("failed", account.failed);
}

/// Formats events as lines.
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LEVELS[level()] && metadata.target().starts_with("stdio_bus")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(LEVELS[level()].into())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut entry = Entry::new(look(), *event.metadata().level());
        event.record(&mut entry);
        buffered().push(&entry.line(), LineSource::Daemon);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(batch: &mut Batch, lines: &str, dropped: u64) -> String {
        batch.fill(&mut Buffered { bytes: lines.into(), dropped: [dropped, 0, 0], ..Buffered::EMPTY });
        String::from_utf8(batch.rest().to_vec()).expect("UTF-8")
    }

    #[test]
    fn unwritten_lines_are_reported_before_the_next_ones() {
        let mut batch = Batch::default();
        assert_eq!(filled(&mut batch, "one\ntwo\nthree\n", 0), "one\ntwo\nthree\n");
        batch.advance(4);
        batch.fail(libc::ENOSPC);
        assert!(batch.rest().is_empty());
        let text = filled(&mut batch, "four\n", 0);
        let (note, rest) = text.split_once('\n').expect("two lines");
        assert!(note.contains("the log could not be written (No space left on device"), "{note}");
        assert!(note.ends_with("2 lines of the log were dropped reason=log_dropped") && rest == "four\n", "{text}");
        batch.advance(text.len());
        assert_eq!(filled(&mut batch, "five\n", 0), "five\n");
    }

    #[test]
    fn an_unwritten_note_is_repeated_with_later_losses() {
        let mut batch = Batch::default();
        filled(&mut batch, "one\ntwo\n", 3);
        batch.fail(libc::ENOSPC);
        filled(&mut batch, "six\n", 0);
        batch.advance(10);
        batch.fail(libc::ENOSPC);
        let text = filled(&mut batch, "seven\n", 0);
        assert!(text.starts_with('\n'), "the note was torn: {text}");
        assert!(text.contains(" 6 lines of the log were dropped"), "{text}");
        batch.advance(text.len() - 3);
        batch.fail(libc::ENOSPC);
        let text = filled(&mut batch, "eight\n", 0);
        assert!(text.starts_with('\n') && text.contains(" 1 lines of the log were dropped"), "{text}");
    }

    #[test]
    fn dropped_lines_are_reported_after_those_that_fit() {
        let mut batch = Batch::default();
        let text = filled(&mut batch, "one\n", 7);
        assert!(
            text.starts_with("one\n") && text.contains("stderr was full: 7 lines of the log were dropped"),
            "{text}"
        );
        batch.advance(text.len());
        assert_eq!(filled(&mut batch, "nine\n", 0), "nine\n");
    }

    #[test]
    fn lines_that_may_wait_are_written_with_the_next_other_one_or_once_there_are_enough() {
        let (mut buffer, mut batch) = (Buffered::EMPTY, Batch::default());
        let wait = |buffer: &mut Buffered| {
            buffer.push_with(LineSource::Daemon, true, || b"a client connected\n");
            buffer.are_due
        };
        assert!(!wait(&mut buffer));
        buffer.push(b"a worker ended\n", LineSource::Daemon);
        assert!(buffer.are_due);
        batch.fill(&mut buffer);
        assert_eq!(batch.rest(), b"a client connected\na worker ended\n");
        while !wait(&mut buffer) {
            assert!(buffer.bytes.len() < ENOUGH);
        }
        assert!(buffer.bytes.len() >= ENOUGH);
    }

    #[test]
    fn workers_cannot_push_out_the_daemons_own_lines() {
        let mut buffer = Buffered::EMPTY;
        let noise = [b"noise noise noise".as_slice(), b"\n"].concat();
        for _ in 0..2 * BUFFER / noise.len() {
            buffer.push(&noise, LineSource::Workers);
        }
        let [own, dropped, of_requests] = buffer.dropped;
        assert!(buffer.bytes.len() <= OTHERS_PART && dropped > 0 && (own, of_requests) == (0, 0));
        for _ in 0..100 {
            buffer.push(b"own\n", LineSource::Daemon);
            buffer.push(&noise, LineSource::Workers);
        }
        let dropped = buffer.dropped[1];
        let mut batch = Batch::default();
        batch.fill(&mut buffer);
        let text = String::from_utf8(batch.rest().to_vec()).expect("UTF-8");
        assert_eq!(text.lines().filter(|line| *line == "own").count(), 100);
        let note = format!("stderr was full: {dropped} lines of the log were dropped, {dropped} of them of workers");
        assert!(text.lines().last().is_some_and(|line| line.contains(&note)), "{note}");
        buffer.push(&noise, LineSource::Workers);
        assert_eq!(
            (buffer.bytes.len(), buffer.dropped),
            (noise.len(), [0; 3]),
            "once that was logged, there is room again"
        );
    }
}
