//! The log: events of `tracing` and the workers' stderr become lines for stderr (spec, appendix C). Writing them never
//! blocks: lines go into a bounded buffer that the ring empties. Lines that find no room there or cannot be written are
//! dropped and counted, and the next line that is written comes with their number.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use super::inherited;
use crate::bus::report::{self, Report};
use crate::calendar;
use crate::config::{Log, LogFormat, LogLevel};

/// Bytes that may wait for stderr.
const BUFFER: usize = 256 * 1024;
/// Longest line of a worker's stderr that is passed on in one piece.
pub(super) const LONGEST_LINE: usize = 8 * 1024;

static BUFFERED: Mutex<Buffered> = Mutex::new(Buffered { bytes: Vec::new(), dropped: 0 });
static FORMAT: AtomicU8 = AtomicU8::new(0);

struct Buffered {
    bytes: Vec<u8>,
    /// Lines that found no room behind these.
    dropped: u64,
}

/// Lines on their way to stderr, and what has to be said of others that were lost.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    written: usize,
    /// Where in `bytes` the lines stand; around them are notes of what was lost before and behind them.
    lines: Range<usize>,
    /// Lines before these that could not be written, and why the last of them could not.
    failed: u64,
    errno: i32,
    /// Lines behind these that found no room.
    dropped: u64,
    /// What was written last is not the end of a line.
    torn: bool,
}

impl Batch {
    /// What is to be written next.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// So many bytes were written.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        if self.rest().is_empty() {
            (self.failed, self.dropped, self.torn) = (0, 0, false);
        }
    }

    /// The rest cannot be written. It is counted, to be told with the next line.
    pub(super) fn fail(&mut self, errno: i32) {
        if self.written >= self.lines.start {
            self.failed = 0;
        }
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

    /// Takes the lines that wait, between notes of what was lost.
    fn fill(&mut self, buffer: &mut Buffered) {
        (self.written, self.dropped) = (0, std::mem::take(&mut buffer.dropped));
        self.bytes.clear();
        if self.torn {
            self.bytes.push(b'\n');
        }
        if self.failed > 0 {
            let why = io::Error::from_raw_os_error(self.errno);
            self.note(self.failed, &format!("stderr could not be written ({why})"));
        }
        self.lines.start = self.bytes.len();
        if self.bytes.is_empty() {
            std::mem::swap(&mut buffer.bytes, &mut self.bytes);
        } else {
            self.bytes.append(&mut buffer.bytes);
        }
        self.lines.end = self.bytes.len();
        if self.dropped > 0 {
            self.note(self.dropped, "stderr was full");
        }
    }

    fn note(&mut self, lines: u64, why: &str) {
        let (time, text) = (now(), format!("{why}: {lines} lines of the log were dropped"));
        let note = if json() {
            serde_json::json!({"time": time, "level": "WARN", "message": text, "reason": "log_dropped"}).to_string()
        } else {
            format!("{time} WARN  {text} reason=log_dropped")
        };
        self.bytes.extend_from_slice(note.as_bytes());
        self.bytes.push(b'\n');
    }
}

fn now() -> String {
    calendar::to_the_millisecond(SystemTime::now())
}

fn buffered() -> MutexGuard<'static, Buffered> {
    BUFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json() -> bool {
    FORMAT.load(Ordering::Relaxed) == 1
}

/// Makes this the place where events of `tracing` go. To be called once.
pub(super) fn install(log: Log) {
    FORMAT.store(u8::from(log.format == LogFormat::Json), Ordering::Relaxed);
    let level = match log.level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warn => Level::WARN,
        LogLevel::Error => Level::ERROR,
    };
    // A second installation, in a test, keeps the first: there is one stderr.
    let _ = tracing::subscriber::set_global_default(Lines { level });
}

/// Gets the next lines ready to be written, if the last ones are; false if there is nothing to write.
pub(super) fn take(batch: &mut Batch) -> bool {
    if !batch.rest().is_empty() {
        return true;
    }
    let mut buffer = buffered();
    if buffer.bytes.is_empty() {
        return false;
    }
    batch.fill(&mut buffer);
    true
}

/// Writes what is left, however long that takes. False if lines are lost that somebody may miss, and nobody was told.
pub(super) fn flush(batch: &mut Batch) -> bool {
    let stderr = rustix::stdio::stderr();
    while take(batch) {
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

/// Passes one line of a worker's stderr on, without its newline.
pub(super) fn worker_line(pool: &str, number: u32, line: &[u8]) {
    let mut out = Vec::with_capacity(line.len() + 64);
    if json() {
        let text = String::from_utf8_lossy(line);
        let worker = format!("{pool}/{number}");
        let value = serde_json::json!({"time": now(), "level": "INFO", "worker": worker, "stderr": text});
        out.extend_from_slice(value.to_string().as_bytes());
    } else {
        let _ = write!(out, "[{pool}/{number}] ");
        out.extend_from_slice(line);
    }
    out.push(b'\n');
    push(&out);
}

/// Logs a report of the core. `pool_of` names a pool by its index.
pub(super) fn report(report: &Report, pool_of: impl Fn(usize) -> String) {
    let worker = report.worker.map(|(pool, number)| format!("{}/{number}", pool_of(pool)));
    let (worker, id, reason) = (worker.as_deref(), report.id.as_deref(), report.reason.name());
    let (client, text) = (report.client, report.text.as_str());
    let suppressed = (report.suppressed > 0).then_some(report.suppressed);
    match report.level {
        report::Level::Debug => tracing::debug!(reason, worker, client, id, suppressed, "{text}"),
        report::Level::Info => tracing::info!(reason, worker, client, id, suppressed, "{text}"),
        report::Level::Warn => tracing::warn!(reason, worker, client, id, suppressed, "{text}"),
        report::Level::Error => tracing::error!(reason, worker, client, id, suppressed, "{text}"),
    }
}

fn push(line: &[u8]) {
    let mut buffer = buffered();
    // Behind a line that is missing there is none before that was said.
    if buffer.dropped > 0 || buffer.bytes.len() + line.len() > BUFFER {
        buffer.dropped += 1;
    } else {
        buffer.bytes.extend_from_slice(line);
    }
}

/// Turns events into lines.
struct Lines {
    level: Level,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("stdio_bus")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level();
        let mut line = String::with_capacity(160);
        if json() {
            let mut fields = JsonFields(serde_json::Map::new());
            fields.0.insert("time".into(), now().into());
            fields.0.insert("level".into(), level.as_str().into());
            event.record(&mut fields);
            line = serde_json::Value::Object(fields.0).to_string();
        } else {
            let _ = write!(line, "{} {level:<5} ", now());
            let mut fields = TextFields { message: &mut line, rest: String::new() };
            event.record(&mut fields);
            let rest = fields.rest;
            line.push_str(&rest);
        }
        line.push('\n');
        push(line.as_bytes());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct TextFields<'a> {
    message: &'a mut String,
    rest: String,
}

impl Visit for TextFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.rest, " {}={value}", field.name());
    }
}

struct JsonFields(serde_json::Map<String, serde_json::Value>);

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(batch: &mut Batch, lines: &str, dropped: u64) -> String {
        batch.fill(&mut Buffered { bytes: lines.into(), dropped });
        String::from_utf8(batch.rest().to_vec()).expect("UTF-8")
    }

    #[test]
    fn lines_that_could_not_be_written_are_told_before_the_next_ones() {
        let mut batch = Batch::default();
        assert_eq!(filled(&mut batch, "one\ntwo\nthree\n", 0), "one\ntwo\nthree\n");
        batch.advance(4);
        batch.fail(libc::ENOSPC);
        assert!(batch.rest().is_empty());
        let text = filled(&mut batch, "four\n", 0);
        let (note, rest) = text.split_once('\n').expect("two lines");
        assert!(note.contains("stderr could not be written (No space left on device"), "{note}");
        assert!(note.ends_with("2 lines of the log were dropped reason=log_dropped") && rest == "four\n", "{text}");
        batch.advance(text.len());
        assert_eq!(filled(&mut batch, "five\n", 0), "five\n");
    }

    #[test]
    fn a_note_that_could_not_be_written_is_told_again_with_what_was_lost_since() {
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
    fn lines_that_found_no_room_are_told_behind_those_that_did() {
        let mut batch = Batch::default();
        let text = filled(&mut batch, "one\n", 7);
        assert!(
            text.starts_with("one\n") && text.contains("stderr was full: 7 lines of the log were dropped"),
            "{text}"
        );
        batch.advance(text.len());
        assert_eq!(filled(&mut batch, "nine\n", 0), "nine\n");
    }
}
