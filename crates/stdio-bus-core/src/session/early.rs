//! Early lines: a worker's messages in a session before its answer that creates it. Some agents send a `session/update`
//! with their commands ahead of the answer to `session/new`. They wait for the answer, and go to the owner behind it.
//!
//! Only notifications wait: an agent that asks before it answers would wait forever. No line waits for a name that the
//! bus knows, and none waits on once the worker has no request for a session left to answer.
//!
//! Invariant: waiting lines are counted and bounded, by worker and in total, and one that was not delivered is
//! reported.
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::Span;

use crate::Bus;
use crate::message::{Parsed, session_named};
use crate::peer::{ClientKey, Moment, Peer, SessionKey, Text, WorkerKey};
use crate::report::Reason;
use crate::settings::MAX_SESSION_ID_LEN;

/// Maximum number of waiting lines of one worker.
const MOST_LINES: usize = 64;
/// Maximum number of their bytes.
const MOST_BYTES: usize = 1 << 20;
/// Those of all workers together may use this part of max_memory.
const MEMORY_PART: usize = 16;
/// Maximum time that a line waits.
const LONGEST: Duration = Duration::from_secs(60);

/// A line that waits for its session.
struct EarlyLine {
    /// The session that it names.
    session: Text,
    /// With its newline.
    line: Text,
    /// When it stops waiting.
    until: Moment,
}

/// The waiting lines of a worker, in order.
#[derive(Default)]
pub(crate) struct Early(Vec<EarlyLine>);

fn bytes_of(lines: &[EarlyLine]) -> usize {
    lines.iter().map(|early| early.line.as_bytes().len()).sum()
}

impl Bus {
    /// Bytes of waiting lines.
    pub fn bytes_waiting(&self) -> usize {
        self.supervisor.early_bytes
    }

    /// Makes a notification wait if it names a session which the worker may be creating. Returns whether it waits.
    pub(crate) fn wait_for_session(&mut self, key: WorkerKey, line: Parsed<'_>) -> bool {
        let most = MOST_BYTES.min(self.settings.limits.max_memory / MEMORY_PART);
        let bytes = line.span.len() + 1;
        let Some(name) = session_named(line).filter(|name| name.len() <= MAX_SESSION_ID_LEN) else {
            return false;
        };
        let is_known = self.sessions.of_worker(key, &name).is_some();
        let in_all = self.bytes_waiting() + bytes;
        let Some(worker) = self.workers.get_mut(key) else { return false };
        let has_room = worker.early.0.len() < MOST_LINES
            && bytes_of(&worker.early.0) + bytes <= most
            && in_all <= self.settings.limits.max_memory / MEMORY_PART;
        // Every message of a dedicated worker is for its client, which is leaving then.
        if worker.owner.is_some() || worker.creating.asked == 0 || is_known || !has_room {
            return false;
        }
        let whole = Span { start: line.span.start, end: line.span.end + 1 };
        let until = self.time.now().after(LONGEST);
        self.supervisor.early_bytes += bytes;
        worker.early.0.push(EarlyLine { session: (&*name).into(), line: line.get(whole).into(), until });
        self.wake_at(key.into(), until);
        true
    }

    /// A worker has answered a client that asked for a session with this one: its early lines follow.
    pub(crate) fn deliver_early(&mut self, key: WorkerKey, client: ClientKey, name: &[u8]) {
        let owned = self.sessions.of_worker(key, name).and_then(|session| self.sessions.get(session));
        if owned.is_some_and(|session| session.client == Some(client)) {
            for early in self.take_early(key, |early| early.session.as_bytes() == name) {
                self.send(client.into(), early.line.as_bytes());
            }
        }
    }

    /// A request for a session has ended without one, or it was the last one: the early lines of its worker have
    /// nothing to wait for. With others pending, it is unknown which of them a line belongs to, and a line of a failed
    /// session must not reach the client that gets the next one of that name.
    pub(crate) fn drop_early(&mut self, key: WorkerKey) {
        self.drop_early_lines(key, |_| true);
    }

    /// A worker has loaded a session for the client that asked for it by name: lines that wait for that name may have
    /// been for a client that asked for a new one.
    pub(crate) fn drop_early_of(&mut self, key: WorkerKey, session: SessionKey) {
        let Some(session) = self.sessions.get(session).filter(|session| session.state.is_issued()) else { return };
        let name = session.name.clone();
        self.drop_early_lines(key, |early| early.session == name);
    }

    /// Drops lines that have waited for too long. Returns when to check again.
    pub(crate) fn tick_early(&mut self, key: WorkerKey) -> Option<Moment> {
        let now = self.time.now();
        self.drop_early_lines(key, |early| early.until <= now);
        self.workers.get(key)?.early.0.iter().map(|early| early.until).min()
    }

    fn drop_early_lines(&mut self, key: WorkerKey, is_over: impl Fn(&EarlyLine) -> bool) {
        for early in self.take_early(key, is_over) {
            self.report(Reason::UnknownSession, Some(Peer::Worker(key)), || {
                let name = early.session.as_bytes().escape_ascii();
                format!("it came before any answer that makes a session, and none has made \"{name}\" since")
            });
        }
    }

    fn take_early(&mut self, key: WorkerKey, wanted: impl Fn(&EarlyLine) -> bool) -> Vec<EarlyLine> {
        let Some(worker) = self.workers.get_mut(key) else { return Vec::new() };
        let taken: Vec<EarlyLine> = worker.early.0.extract_if(.., |early| wanted(early)).collect();
        self.supervisor.early_bytes -= bytes_of(&taken);
        taken
    }

    /// Panics if more waits than may, or the count is wrong.
    pub(crate) fn check_early(&self) {
        for (_, worker) in self.workers.iter() {
            assert!(worker.early.0.len() <= MOST_LINES && bytes_of(&worker.early.0) <= MOST_BYTES);
        }
        let all: usize = self.workers.iter().map(|(_, worker)| bytes_of(&worker.early.0)).sum();
        assert_eq!(all, self.supervisor.early_bytes);
    }
}
