//! What a client connection and a worker's pipes have in common: the current line, the output queue, and their requests
//! and sessions.
//!
//! Backpressure (spec 7.3): an output counts the bytes that it holds, which others store, and lists the peers that wait
//! for it to drain. Invariant: a peer waits for one output at a time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::{Line, Outcome, Partial, Scanner, Window};

use super::flow::gate::ReadGate;
use super::flow::throttle::Throttle;
use super::names::SentNames;
use super::peer::{Moment, Peer, SessionKey, WorkerKey};
use super::pending::Asked;
use super::port::{Next, Received};
use super::seldom::{Seldom, blank};
use super::stats::Traffic;

/// One endpoint of the bus. A client that has sent nothing has none yet ([`Seldom`]).
pub(super) struct Endpoint {
    /// Its input.
    pub stream: Stream,
    /// Its output queue.
    pub output: Output,
    /// Whether it is read.
    pub gate: ReadGate,
    /// Its requests that are not answered yet.
    pub asked: Asked,
    /// Requests that it has not answered yet.
    pub to_answer: ToAnswer,
    /// The names of requests that it was sent.
    pub names: Seldom<SentNames>,
    /// Sessions that it owns (a client) or that are bound to it (a worker).
    pub sessions: Vec<SessionKey>,
    /// Its traffic counters.
    pub traffic: Traffic,
    /// State that few endpoints have.
    pub seldom: Seldom<SeldomOfEndpoint>,
}

blank!(
    Endpoint,
    Self {
        stream: Stream::NOTHING,
        output: Output::NOTHING,
        gate: ReadGate::OPEN,
        asked: Asked::NOTHING,
        to_answer: ToAnswer { count: 0, awaited: 0 },
        names: Seldom::unchanged(),
        sessions: Vec::new(),
        traffic: Traffic::NOTHING,
        seldom: Seldom::unchanged(),
    }
);

/// State that few endpoints have, or only for a while.
pub(super) struct SeldomOfEndpoint {
    /// Why it is throttled, if it is a client.
    pub throttle: Throttle,
    /// Its turn for a shared worker, if it is a client.
    pub turn: Turn,
    /// The output that it waits for, and since when.
    pub blocked_on: Option<(Peer, Moment)>,
    /// Requests to it that were forgotten before it answered them.
    pub retired: Retired,
    /// Its bytes that were taken and wait, if requests time out.
    pub kept: Kept,
}

blank!(
    SeldomOfEndpoint,
    Self { throttle: Throttle::NONE, turn: Turn::NONE, blocked_on: None, retired: Retired::NONE, kept: Kept::NOTHING }
);

/// Bytes of a peer that were taken from it and wait for room, or for a worker. The time limit of the requests among them
/// runs meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// When they were taken.
    since: Moment,
    /// Their number.
    bytes: usize,
    /// When the first line is overdue, if that is a request.
    overdue_at: Moment,
}

impl Kept {
    const NOTHING: Self = Self { since: Moment(0), bytes: 0, overdue_at: Moment::NEVER };

    /// Whether any wait.
    pub(super) fn is_any(&self) -> bool {
        self.bytes > 0
    }

    /// When a line was taken whose line end is this many bytes behind the first of those that are presented.
    pub(super) fn taken_at(&self, line_end: usize, now: Moment) -> Moment {
        if line_end < self.bytes { self.since } else { now }
    }

    /// Of `bytes` bytes `consumed` were handled, and the rest waits, if `waits` says so.
    pub(super) fn keep(&mut self, now: Moment, bytes: usize, consumed: usize, waits: bool) {
        self.bytes = self.bytes.saturating_sub(consumed);
        if !waits {
            self.overdue_at = Moment::NEVER;
        } else if self.bytes == 0 {
            (self.since, self.bytes) = (now, bytes - consumed);
        }
    }

    /// The first line is a request that is overdue then.
    pub(super) fn expire(&mut self, at: Moment) {
        self.overdue_at = at;
    }

    /// When the first line is overdue, if it is a request that waits.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        (self.overdue_at != Moment::NEVER).then_some(self.overdue_at)
    }
}

/// The input of a peer so far.
pub(super) struct Stream {
    /// The scan state of its current line.
    partial: Partial,
    /// Bytes that were presented and not consumed.
    kept: usize,
    /// Lines that were found and wait, relative to the first byte that is kept.
    waiting: Seldom<Vec<Line>>,
    /// When a line was last taken from it, or it last took bytes.
    progress_at: Moment,
    /// When a line was last taken from it.
    spoke_at: Option<Moment>,
}

/// The requests that one answerer has still to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToAnswer {
    count: u32,
    awaited: u32,
}

impl ToAnswer {
    /// All of them.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Those whose asker still waits.
    pub(super) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Adds one whose asker waits. Returns whether there was none.
    pub(super) fn begin(&mut self) -> bool {
        self.count += 1;
        self.awaited += 1;
        self.count == 1
    }

    /// The asker of one stops waiting.
    pub(super) fn orphan(&mut self) {
        self.awaited -= 1;
    }

    /// Removes one whose asker does not wait.
    pub(super) fn end(&mut self) {
        self.count -= 1;
    }
}

impl Endpoint {
    /// The peer whose output it waits for.
    pub(super) fn blocker(&self) -> Option<Peer> {
        self.seldom.blocked_on.map(|(peer, _)| peer)
    }
}

impl Seldom<SeldomOfEndpoint> {
    /// A worker lives and answers, so no request of the client has crashed it.
    pub(super) fn forget_crashes(&mut self) {
        if let Some(seldom) = self.get_mut() {
            seldom.throttle.forget_crashes();
        }
    }
}

impl Stream {
    /// Nothing was received.
    const NOTHING: Self =
        Self { partial: Partial::new(), kept: 0, waiting: Seldom::unchanged(), progress_at: Moment(0), spoke_at: None };

    /// The input of a worker.
    pub(super) fn of_worker() -> Self {
        Self { partial: Partial::of_any_depth(), ..Self::NOTHING }
    }

    /// Finds the lines of a window. Waiting lines were found before.
    #[inline(always)]
    pub(super) fn find_lines(&mut self, scanner: &mut Scanner, window: Window<'_>, lines: &mut Vec<Line>) -> Outcome {
        lines.clear();
        if self.waiting.get().is_none_or(Vec::is_empty) {
            scanner.scan(&mut self.partial, window, lines)
        } else {
            lines.extend(core::mem::take(&mut *self.waiting));
            Outcome::Full
        }
    }

    /// How many of its bytes follow the lines that were found in them.
    #[inline(always)]
    pub(super) fn unfinished(&self, bytes: usize) -> usize {
        bytes - self.partial.consumed()
    }

    /// Whether more was received than was presented before.
    #[inline(always)]
    pub(super) fn has_more(&self, bytes: usize) -> bool {
        bytes > self.kept
    }

    /// Whether it is in the middle of a line, or has waiting lines.
    pub(super) fn is_amid(&self) -> bool {
        self.kept > 0
    }

    /// Whether its next line waits.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Drops its waiting lines. Returns how many there are.
    pub(super) fn drop_waiting(&mut self) -> usize {
        core::mem::take(&mut self.waiting).len()
    }

    /// When a line was last taken from it.
    pub(super) fn spoke_at(&self) -> Option<Moment> {
        self.spoke_at
    }

    /// When a line was last taken from it, or it last took bytes, if ever.
    pub(super) fn progress_at(&self) -> Moment {
        self.progress_at
    }

    /// It took bytes.
    pub(super) fn progress(&mut self, now: Moment) {
        self.progress_at = now;
    }

    /// Lines were taken from it.
    #[inline(always)]
    pub(super) fn speak(&mut self, now: Moment) {
        self.progress_at = now;
        self.spoke_at = Some(now);
    }

    /// All its lines were handled, and the rest is no error.
    #[inline(always)]
    pub(super) fn finish(&mut self, bytes: usize, outcome: Outcome) -> Received {
        let consumed = self.partial.consume();
        self.kept = bytes - consumed;
        Received { consumed, next: if outcome == Outcome::Full { Next::Again } else { Next::Read } }
    }

    /// The first `done` bytes are handled; the lines after them wait.
    pub(super) fn wait(&mut self, bytes: usize, done: usize, lines: &[Line]) -> Received {
        *self.waiting = lines.iter().map(|line| line.counted_after(done)).collect();
        self.partial.drop_front(done);
        self.kept = bytes - done;
        Received { consumed: done, next: Next::Wait }
    }

    /// Its first bytes are passed over, and a line begins behind them. Nothing of it waits.
    pub(super) fn pass_over(&mut self, bytes: usize, consumed: usize, goes_on: bool) -> Received {
        self.partial.reset();
        self.kept = bytes - consumed;
        Received { consumed, next: if goes_on && consumed < bytes { Next::Again } else { Next::Read } }
    }

    /// Discards its input.
    pub(super) fn discard(&mut self, bytes: usize) -> Received {
        self.partial.reset();
        self.kept = 0;
        Received { consumed: bytes, next: Next::Wait }
    }
}

/// A full output must lose this part of the limit within the timeout, or it counts as stalled. Otherwise a reader that
/// takes one byte a minute could hold up a worker forever; this way a slow one still receives everything.
const PROGRESS_PARTS: usize = 16;

/// The output queue of one connection.
pub(crate) struct Output {
    /// Bytes queued and not sent yet.
    queued: usize,
    seldom: Seldom<SeldomOfOutput>,
}

/// State that few outputs have.
struct SeldomOfOutput {
    /// More than the limit was queued, and less than half of it has been drained since.
    full: Option<Full>,
    flush: Option<Flush>,
    /// The peers that wait for this output, in order of arrival.
    waiters: VecDeque<Peer>,
}

blank!(SeldomOfOutput, Self { full: None, flush: None, waiters: VecDeque::new() });

/// It is only drained from now on.
#[derive(Clone, Copy, Debug)]
struct Flush {
    /// This many bytes at a time count as progress.
    step: usize,
    queued_then: usize,
}

#[derive(Clone, Copy, Debug)]
struct Full {
    /// Since when (spec 7.3.1).
    since: Moment,
    progress_at: Moment,
    queued_then: usize,
}

impl Output {
    /// An empty queue.
    pub(crate) const NOTHING: Self = Self { queued: 0, seldom: Seldom::unchanged() };

    /// Whether more than the limit was queued and less than half of it has been drained since.
    pub(crate) fn is_full(&self) -> bool {
        self.seldom.get().is_some_and(|seldom| seldom.full.is_some())
    }

    /// Bytes queued and not sent yet.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Since when it has been full (spec 7.3.1).
    pub(crate) fn full_since(&self) -> Option<Moment> {
        self.seldom.full.map(|full| full.since)
    }

    /// Whether any peer waits for it.
    pub(crate) fn has_waiters(&self) -> bool {
        self.seldom.get().is_some_and(|seldom| !seldom.waiters.is_empty())
    }

    /// The peers that wait for it, in order of arrival.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Peer> {
        self.seldom.waiters.iter()
    }

    /// A peer waits for it, behind the others.
    pub(crate) fn wait(&mut self, peer: Peer) {
        self.seldom.waiters.push_back(peer);
    }

    /// A peer stops waiting for it.
    pub(crate) fn forget(&mut self, peer: Peer) {
        self.seldom.get_mut().into_iter().for_each(|seldom| seldom.waiters.retain(|waiter| *waiter != peer));
    }

    /// Removes and returns the first waiting peer.
    pub(crate) fn next_waiter(&mut self) -> Option<Peer> {
        self.seldom.get_mut()?.waiters.pop_front()
    }

    /// Removes and returns all waiting peers.
    pub(crate) fn take_waiters(&mut self) -> VecDeque<Peer> {
        self.seldom.get_mut().map(|seldom| core::mem::take(&mut seldom.waiters)).unwrap_or_default()
    }

    /// Adds bytes; `limit` is max_output_queue.
    pub(crate) fn push(&mut self, bytes: usize, limit: usize, now: Moment) {
        self.queued += bytes;
        if self.queued > limit && !self.is_full() {
            self.seldom.full = Some(Full { since: now, progress_at: now, queued_then: self.queued });
        }
    }

    /// Bytes were sent. True if the queue fell below half of `limit` and the waiting peers may continue (spec 7.3.1).
    pub(crate) fn pop(&mut self, bytes: usize, limit: usize, now: Moment) -> bool {
        debug_assert!(bytes <= self.queued);
        self.queued = self.queued.saturating_sub(bytes);
        let Some(seldom) = self.seldom.get_mut() else { return false };
        let Some(full) = &mut seldom.full else { return false };
        if self.queued < limit.div_ceil(2) {
            seldom.full = None;
            return true;
        }
        if self.queued + limit / PROGRESS_PARTS < full.queued_then {
            full.progress_at = now;
            full.queued_then = self.queued;
        }
        false
    }

    /// The queue is drained from now on, and nothing is added.
    pub(crate) fn begin_flush(&mut self) {
        self.seldom.flush = Some(Flush { step: self.queued.div_ceil(PROGRESS_PARTS), queued_then: self.queued });
    }

    /// Whether another part of the queue at the start of the flush was sent since the last true.
    pub(crate) fn flush_goes_on(&mut self) -> bool {
        let queued = self.queued;
        let flush = self.seldom.get_mut().and_then(|seldom| seldom.flush.as_mut());
        let Some(flush) = flush.filter(|flush| queued + flush.step <= flush.queued_then) else { return false };
        flush.queued_then = queued;
        true
    }

    /// When the connection is closed unless it takes bytes before (spec 7.3.1).
    pub(crate) fn stalls_at(&self, timeout: Duration) -> Option<Moment> {
        self.seldom.full.map(|full| full.progress_at.after(timeout))
    }
}

/// Bytes that a client may send in one turn.
const QUANTUM: usize = 64 * 1024;

/// A client's turn for a shared worker, a number of bytes: a long line waits for as many turns as it needs.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Bytes of the line that it waits with.
    waiting: usize,
    /// Bytes that it may send in its turn.
    credit: usize,
    /// The worker for which it has its turn.
    granted: Option<WorkerKey>,
}

impl Turn {
    pub(crate) const NONE: Self = Self { waiting: 0, credit: 0, granted: None };

    /// It waits with a line of `bytes` bytes.
    pub(crate) fn wait(&mut self, bytes: usize) {
        self.waiting = bytes;
    }

    /// Whether it has its turn, and has not sent its line yet.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted.is_some()
    }

    /// Gives it one more turn for a worker. If its line may be sent then, or no other client waits, returns its bytes.
    pub(crate) fn grant(&mut self, worker: WorkerKey, is_last: bool) -> Option<u64> {
        self.credit += QUANTUM;
        if self.waiting > self.credit && !is_last {
            return None;
        }
        self.credit = 0;
        self.granted = Some(worker);
        Some(self.waiting.max(1) as u64)
    }

    /// It sends its line to this worker, or to another one. Returns whether it has its turn there.
    pub(crate) fn take(&mut self, worker: WorkerKey) -> bool {
        self.granted.take() == Some(worker)
    }
}

/// The ids of requests that a peer may still answer although they were forgotten, as fingerprints
/// (`Requests::fingerprint`).
#[derive(Default)]
pub(super) struct Retired {
    /// Sorted.
    ids: Vec<u64>,
    /// Their number, once they were too many to be remembered.
    more: u64,
    /// They were, so it may answer under any id.
    may_answer_any: bool,
    /// Sorted progress tokens of forgotten requests, where they differ from the ids. A worker that does not answer
    /// cancelled requests never says when their progress ends.
    tokens: Vec<u64>,
    /// It has more of them than are remembered.
    may_tell_any: bool,
}

/// Maximum number of ids: 8 KiB for each peer.
const MOST_RETIRED: usize = 1024;
/// Maximum number of tokens.
const MOST_TOKENS: usize = 256;

impl Retired {
    const NONE: Self =
        Self { ids: Vec::new(), more: 0, may_answer_any: false, tokens: Vec::new(), may_tell_any: false };

    /// Whether any id may be used for another request.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty() && !self.may_answer_any
    }

    /// Whether any id and any progress token may be used for another request.
    pub(super) fn doubts_nothing(&self) -> bool {
        self.is_empty() && self.tokens.is_empty() && !self.may_tell_any
    }

    /// Whether it may still answer a forgotten request with this id.
    pub(super) fn has(&self, id: u64) -> bool {
        self.may_answer_any || self.ids.binary_search(&id).is_ok()
    }

    /// Whether it may still send progress of a forgotten request under a token with this fingerprint.
    pub(super) fn has_token(&self, token: impl FnOnce() -> u64) -> bool {
        if self.doubts_nothing() {
            return false;
        }
        let token = token();
        self.may_tell_any || self.has(token) || self.tokens.binary_search(&token).is_ok()
    }

    /// Adds such a token.
    pub(super) fn add_token(&mut self, token: u64) {
        match self.tokens.binary_search(&token) {
            Err(at) if self.tokens.len() < MOST_TOKENS => self.tokens.insert(at, token),
            Err(_) => self.may_tell_any = true,
            Ok(_) => {}
        }
    }

    /// Adds an id. If there is no space for it, all are only counted.
    pub(super) fn add(&mut self, id: u64) {
        match self.ids.binary_search(&id) {
            Ok(_) => {}
            Err(at) if self.more == 0 && self.ids.len() < MOST_RETIRED => self.ids.insert(at, id),
            Err(_) => self.more += 1 + core::mem::take(&mut self.ids).len() as u64,
        }
        self.may_answer_any |= self.more > 0;
    }

    /// An unsolicited answer has this id. Returns whether it may be a late one; then one less is remembered.
    pub(super) fn take(&mut self, id: u64) -> bool {
        let found = self.ids.binary_search(&id);
        if let Ok(at) = found {
            self.ids.remove(at);
        }
        let is_counted = self.more > 0;
        self.more -= u64::from(is_counted);
        is_counted || found.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_output_is_full_above_the_limit_and_released_below_half_of_it() {
        let mut output = Output::NOTHING;
        output.push(100, 100, Moment(0));
        assert!(!output.is_full());
        output.push(1, 100, Moment(5));
        assert_eq!(output.full_since(), Some(Moment(5)));
        assert!(!output.pop(51, 100, Moment(6)));
        assert!(output.is_full());
        assert!(output.pop(1, 100, Moment(7)));
        assert!(!output.is_full());
        assert_eq!(output.queued, 49);
    }

    #[test]
    fn a_line_is_taken_with_its_line_end() {
        let mut kept = Kept::NOTHING;
        kept.keep(Moment(1), 150, 50, true);
        assert_eq!([99, 100, 101].map(|line_end| kept.taken_at(line_end, Moment(9))), [1, 9, 9].map(Moment));
    }

    #[test]
    fn the_stall_clock_restarts_with_real_progress_only() {
        let mut output = Output::NOTHING;
        output.push(2000, 1600, Moment(0));
        assert_eq!(output.stalls_at(TIMEOUT), Some(Moment(60 * SECOND)));
        output.pop(100, 1600, Moment(30 * SECOND));
        assert_eq!(output.stalls_at(TIMEOUT), Some(Moment(60 * SECOND)), "100 bytes are no sixteenth of the limit");
        output.pop(1, 1600, Moment(40 * SECOND));
        assert_eq!(output.stalls_at(TIMEOUT), Some(Moment(100 * SECOND)));
    }
}
