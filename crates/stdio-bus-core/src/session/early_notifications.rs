//! Early lines: a worker's messages in a session before its answer that creates it. Some agents send a `session/update`
//! with their commands ahead of the answer to `session/new`. They wait for the answer, and go to the owner behind it.
//!
//! The same holds for what a worker says in a child session before it announces the child (`children.rs`).
//!
//! Before an answer only notifications wait: an agent that asks before it answers would wait forever. Before an
//! announcement requests wait, too, for a shorter time, and then get an error. No line waits for a name that the bus
//! knows. None that came while the worker had a request for a session to answer waits on when there is none left.
//!
//! Invariant: waiting lines are counted and bounded, by worker and in total, and one that was not delivered is
//! reported.
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::Span;

use crate::ctx::Ctx;
use crate::message::{Parsed, session_named};
use crate::peer::{Moment, SessionKey, ShortText, WorkerKey};
use crate::refusals::send_error;
use crate::reply::Delivered;
use crate::report::Reason;
use crate::session::table::Sessions;
use crate::settings::MAX_SESSION_ID_LEN;

/// Maximum number of waiting lines of one worker.
const MOST_LINES: usize = 64;
/// Maximum number of their bytes.
const MOST_BYTES: usize = 1 << 20;
/// Those of all workers together may use this part of max_memory.
const MEMORY_PART: usize = 16;
/// Maximum time that a line waits for an answer.
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum time that a line waits for the announcement of a child, and that a request waits at all.
const LONGEST_FOR_CHILD: Duration = Duration::from_secs(5);

/// A line that waits for its session.
pub(crate) struct EarlyLine {
    /// The session that it names.
    session: ShortText,
    /// With its newline.
    line: ShortText,
    /// The id of a request, as written.
    id: Option<ShortText>,
    /// No request for a session was pending when it came: only an announcement makes its session known.
    is_for_child: bool,
    /// When it stops waiting.
    until: Moment,
}

impl EarlyLine {
    /// Whether it names this session, which an announcement made known if `is_child`.
    pub(crate) fn is_of(&self, session: &[u8], is_child: bool) -> bool {
        self.session.as_bytes() == session && (is_child || !self.is_for_child)
    }

    /// Whether it is a request.
    pub(crate) fn is_request(&self) -> bool {
        self.id.is_some()
    }

    /// The line, with its newline.
    pub(crate) fn text(&self) -> &[u8] {
        self.line.as_bytes()
    }
}

/// The waiting lines of a worker, in order.
#[derive(Default)]
pub(crate) struct Early(Vec<EarlyLine>);

fn bytes_of(lines: &[EarlyLine]) -> usize {
    lines.iter().map(|early| early.line.as_bytes().len()).sum()
}

impl Sessions {
    /// Makes a message wait if it names a session which the worker may be creating, or a child which it may be about to
    /// announce. Returns whether it waits.
    pub(crate) fn wait_for_session(&mut self, ctx: &mut Ctx, key: WorkerKey, line: Parsed<'_>) -> bool {
        let most = MOST_BYTES.min(ctx.settings.limits.max_memory / MEMORY_PART);
        let bytes = line.span.len() + 1;
        let Some(name) = session_named(line).filter(|name| name.len() <= MAX_SESSION_ID_LEN) else {
            return false;
        };
        let is_known = self.of_worker(key, &name).is_some();
        let in_all = self.early_bytes() + bytes;
        let Some(worker) = ctx.workers.get_mut(key) else { return false };
        let has_room = worker.early().0.len() < MOST_LINES
            && bytes_of(&worker.early().0) + bytes <= most
            && in_all <= ctx.settings.limits.max_memory / MEMORY_PART;
        let is_request = line.id.is_some();
        let may_be_child = worker.updates().announce_children() && !worker.end().sessions.is_empty();
        let may_be_created = worker.creating().asked() > 0;
        // Every message of a dedicated worker is for its client, which is leaving then.
        if worker.owner().is_some() || !(may_be_child || may_be_created && !is_request) || is_known || !has_room {
            return false;
        }
        let whole = Span { start: line.span.start, end: line.span.end + 1 };
        let longest = if may_be_created && !is_request { LONGEST } else { LONGEST_FOR_CHILD };
        let until = ctx.time.now().after(longest);
        self.add_early(bytes);
        worker.early_mut().0.push(EarlyLine {
            session: (&*name).into(),
            line: line.get(whole).into(),
            id: is_request.then(|| line.get(line.id).into()),
            is_for_child: !may_be_created,
            until,
        });
        ctx.wake_at(key.into(), until);
        true
    }

    /// A request for a session has ended without one, or it was the last one: the early lines of its worker have
    /// nothing to wait for, but for those that came when there was none. With others pending, it is unknown which of
    /// them a line belongs to, and a line of a failed session must not reach the client that gets the next one of that
    /// name.
    pub(crate) fn drop_early(&mut self, ctx: &mut Ctx, key: WorkerKey) {
        self.drop_early_lines(ctx, key, |early| !early.is_for_child);
    }

    /// A worker has ended.
    pub(crate) fn drop_all_early(&mut self, ctx: &mut Ctx, key: WorkerKey) {
        self.drop_early_lines(ctx, key, |_| true);
    }

    /// A worker has loaded a session for the client that asked for it by name: lines that wait for that name may have
    /// been for a client that asked for a new one.
    pub(crate) fn drop_early_of(&mut self, ctx: &mut Ctx, key: WorkerKey, session: SessionKey) {
        let Some(session) = self.get(session).filter(|session| session.state.is_issued()) else { return };
        let name = session.name.clone();
        self.drop_early_lines(ctx, key, |early| early.session == name);
    }

    /// Drops lines that have waited for too long. Returns when to check again.
    pub(crate) fn tick_early(&mut self, ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
        let now = ctx.time.now();
        self.drop_early_lines(ctx, key, |early| early.until <= now);
        ctx.workers.get(key)?.early().0.iter().map(|early| early.until).min()
    }

    fn drop_early_lines(&mut self, ctx: &mut Ctx, key: WorkerKey, is_over: impl Fn(&EarlyLine) -> bool) {
        for early in self.take_early(ctx, key, is_over) {
            let name = early.session.as_bytes().escape_ascii();
            let text = match early.is_for_child || early.id.is_some() {
                true => format!("it names session \"{name}\", which the worker has neither made nor announced since"),
                false => format!("it came before any answer that makes a session, and none has made \"{name}\" since"),
            };
            refuse_early(ctx, key, &early, Reason::UnknownSession, &text);
        }
    }

    pub(crate) fn take_early(
        &mut self,
        ctx: &mut Ctx,
        key: WorkerKey,
        wanted: impl Fn(&EarlyLine) -> bool,
    ) -> Vec<EarlyLine> {
        let Some(worker) = ctx.workers.get_mut(key) else { return Vec::new() };
        let taken: Vec<EarlyLine> = worker.early_mut().0.extract_if(.., |early| wanted(early)).collect();
        self.end_early(bytes_of(&taken));
        taken
    }

    /// Panics if more waits than may, or the count is wrong.
    pub(crate) fn check_early(&self, ctx: &Ctx) {
        for (_, worker) in ctx.workers.iter() {
            assert!(worker.early().0.len() <= MOST_LINES && bytes_of(&worker.early().0) <= MOST_BYTES);
        }
        let all: usize = ctx.workers.iter().map(|(_, worker)| bytes_of(&worker.early().0)).sum();
        assert_eq!(all, self.early_bytes());
    }
}

/// An early line gets an error, if it is a request, and its loss is reported.
pub(crate) fn refuse_early(ctx: &mut Ctx, key: WorkerKey, early: &EarlyLine, reason: Reason, text: &str) {
    let id = early.id.as_ref().map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    ctx.report_request(reason, [Some(key.into()), None], || (id, text.into()));
    if let Some(id) = &early.id {
        send_error(ctx, key.into(), id.as_bytes(), reason, text, Delivered::No);
    }
}
