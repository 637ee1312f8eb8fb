//! The log: events of `tracing` and the workers' stderr become lines for stderr (spec, appendix C). Writing them never
//! blocks: lines go into a bounded buffer that the ring empties, and when it is full they are dropped and counted.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::bus::report::{self, Report};
use crate::calendar;
use crate::config::{Log, LogFormat, LogLevel};

/// Bytes that may wait for stderr.
const BUFFER: usize = 256 * 1024;
/// Longest line of a worker's stderr that is passed on in one piece.
pub(super) const LONGEST_LINE: usize = 8 * 1024;
/// How long the last lines may take at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

static BUFFERED: Mutex<Buffered> = Mutex::new(Buffered { bytes: Vec::new(), dropped: 0 });
static FORMAT: AtomicU8 = AtomicU8::new(0);

struct Buffered {
    bytes: Vec<u8>,
    /// Lines dropped since the last one that was kept.
    dropped: u64,
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

/// Takes what waits for stderr; false if nothing does.
pub(super) fn take(into: &mut Vec<u8>) -> bool {
    into.clear();
    std::mem::swap(&mut buffered().bytes, into);
    !into.is_empty()
}

/// Writes what is left, in pieces that a pipe takes without blocking, for a second at most.
pub(super) fn flush(first: &[u8]) {
    let mut rest = first.to_vec();
    rest.append(&mut buffered().bytes);
    let until = Instant::now() + LAST_WORDS;
    let stderr = std::io::stderr();
    let mut rest = rest.as_slice();
    while !rest.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return };
        match poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match stderr.lock().write(&rest[..rest.len().min(4096)]) {
            Ok(written) if written > 0 => rest = &rest[written..],
            _ => return,
        }
    }
}

/// Passes one line of a worker's stderr on, without its newline.
pub(super) fn worker_line(pool: &str, number: u32, line: &[u8]) {
    let mut out = Vec::with_capacity(line.len() + 64);
    if json() {
        let text = String::from_utf8_lossy(line);
        let worker = format!("{pool}/{number}");
        let value = serde_json::json!({"time": calendar::to_the_millisecond(SystemTime::now()), "level": "INFO", "worker": worker, "stderr": text});
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
    if buffer.bytes.len() + line.len() > BUFFER {
        buffer.dropped += 1;
        return;
    }
    if buffer.dropped > 0 {
        let dropped = std::mem::take(&mut buffer.dropped);
        let text = format!("stderr was full: {dropped} lines of the log were dropped");
        let note = if json() {
            serde_json::json!({"time": calendar::to_the_millisecond(SystemTime::now()), "level": "WARN", "message": text, "reason": "log_dropped"})
                .to_string()
        } else {
            format!("{} WARN  {text} reason=log_dropped", calendar::to_the_millisecond(SystemTime::now()))
        };
        buffer.bytes.extend_from_slice(note.as_bytes());
        buffer.bytes.push(b'\n');
    }
    buffer.bytes.extend_from_slice(line);
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
            fields.0.insert("time".into(), calendar::to_the_millisecond(SystemTime::now()).into());
            fields.0.insert("level".into(), level.as_str().into());
            event.record(&mut fields);
            line = serde_json::Value::Object(fields.0).to_string();
        } else {
            let _ = write!(line, "{} {level:<5} ", calendar::to_the_millisecond(SystemTime::now()));
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
