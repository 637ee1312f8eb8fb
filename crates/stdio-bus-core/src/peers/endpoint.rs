//! What a client connection and a worker's pipes have in common: their input is framed into lines (`find_lines`), and
//! they have the current line, the output queue, and their requests and sessions.

use alloc::vec::Vec;

use ndjson_scan::{Line, Partial, ScanResult, Scanner, Window};

use super::Output;
use crate::cold::{Cold, blank};
use crate::flow::gate::ReadGate;
use crate::flow::throttle::Throttle;
use crate::peer::{Moment, Peer, WorkerKey};
use crate::port::{Next, Received};
use crate::requests::{AskerList, SentNames};
use crate::session::table::SessionList;
use crate::stats::Traffic;
use crate::usage::Meter;

/// One endpoint of the bus: parts, each of which keeps its own invariants. A client that has sent nothing has none yet
/// ([`Cold`]).
pub(crate) struct Endpoint {
    /// Its input.
    pub stream: PeerInput,
    /// Its output queue.
    pub output: Output,
    /// Whether it is read.
    pub gate: ReadGate,
    /// Its requests that are not answered yet.
    pub asked: AskerList,
    /// Requests that it has not answered yet.
    pub to_answer: ToAnswer,
    /// The names of requests that it was sent.
    pub names: Cold<SentNames>,
    /// Sessions that it owns (a client) or that are bound to it (a worker).
    pub sessions: SessionList,
    /// Its traffic counters.
    pub traffic: Traffic,
    /// What else it has used.
    pub meter: Meter,
    pub cold: ColdEndpoint,
}

blank!(
    Endpoint,
    Self {
        stream: PeerInput::NOTHING,
        output: Output::NOTHING,
        gate: ReadGate::OPEN,
        asked: AskerList::NOTHING,
        to_answer: ToAnswer { count: 0, owed: 0, subscriptions: 0 },
        names: Cold::unchanged(),
        sessions: SessionList::NONE,
        traffic: Traffic::NOTHING,
        meter: Meter::NOTHING,
        cold: ColdEndpoint(Cold::unchanged()),
    }
);

/// What few endpoints have, or only for a while.
#[derive(Default)]
pub(crate) struct ColdEndpoint(Cold<ColdFields>);

struct ColdFields {
    /// Why it is throttled, if it is a client.
    throttle: Throttle,
    /// Its turn for a shared worker, if it is a client.
    turn: Turn,
    /// The output that it waits for, and since when.
    blocked_on: Option<(Peer, Moment)>,
    /// Requests to it that were forgotten before it answered them.
    retired: Retired,
    /// Its bytes that were taken and wait, if requests time out.
    kept: HeldBytes,
}

blank!(
    ColdFields,
    Self {
        throttle: Throttle::NONE,
        turn: Turn::NONE,
        blocked_on: None,
        retired: Retired::NONE,
        kept: HeldBytes::NOTHING
    }
);

/// Bytes of a peer that were taken from it and wait for room, or for a worker. The time limit of the requests among them
/// runs meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBytes {
    /// When they were taken.
    since: Moment,
    /// Their number.
    bytes: usize,
    /// When the first line is overdue, if that is a request.
    overdue_at: Moment,
}

impl HeldBytes {
    const NOTHING: Self = Self { since: Moment(0), bytes: 0, overdue_at: Moment::NEVER };

    /// Whether any wait.
    fn is_any(&self) -> bool {
        self.bytes > 0
    }

    /// When a line was taken whose line end is this many bytes behind the first of those that are presented.
    pub(crate) fn taken_at(&self, line_end: usize, now: Moment) -> Moment {
        if line_end < self.bytes { self.since } else { now }
    }

    /// Of `bytes` bytes `consumed` were handled, and the rest waits, if `waits` says so.
    pub(crate) fn keep(&mut self, now: Moment, bytes: usize, consumed: usize, waits: bool) {
        self.bytes = self.bytes.saturating_sub(consumed);
        if !waits {
            self.overdue_at = Moment::NEVER;
        } else if self.bytes == 0 {
            (self.since, self.bytes) = (now, bytes - consumed);
        }
    }

    /// The first line is a request that is overdue then.
    fn expire(&mut self, at: Moment) {
        self.overdue_at = at;
    }

    /// When the first line is overdue, if it is a request that waits.
    fn overdue_at(&self) -> Option<Moment> {
        (self.overdue_at != Moment::NEVER).then_some(self.overdue_at)
    }
}

/// The input of a peer so far.
pub(crate) struct PeerInput {
    /// The scan state of its current line.
    partial: Partial,
    /// Bytes that were presented and not consumed.
    kept: usize,
    /// Lines that were found and wait, relative to the first byte that is kept.
    waiting: Cold<Vec<Line>>,
    /// When a line was last taken from it, or it last took bytes.
    progress_at: Moment,
    /// When a line was last taken from it.
    spoke_at: Option<Moment>,
}

/// The requests that one answerer has still to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToAnswer {
    count: u32,
    owed: u32,
    subscriptions: u32,
}

impl ToAnswer {
    /// How many it has to answer.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// How many of these somebody waits for.
    pub(crate) fn awaited(&self) -> u32 {
        self.owed + self.subscriptions
    }

    /// The same without subscriptions, whose askers wait for no particular answer.
    pub(crate) fn owed(&self) -> u32 {
        self.owed
    }

    /// Adds one whose asker waits.
    pub(crate) fn begin(&mut self) {
        self.count += 1;
        self.owed += 1;
    }

    /// Adds a subscription.
    pub(crate) fn begin_subscription(&mut self) {
        self.count += 1;
        self.subscriptions += 1;
    }

    /// The asker of one stops waiting.
    pub(crate) fn orphan(&mut self) {
        self.owed -= 1;
    }

    /// The asker of a subscription stops waiting.
    pub(crate) fn orphan_subscription(&mut self) {
        self.subscriptions -= 1;
    }

    /// Removes one whose asker does not wait.
    pub(crate) fn end(&mut self) {
        self.count -= 1;
    }
}

impl Endpoint {
    /// That of a worker, which may nest its lines as deeply as it likes.
    pub(crate) fn of_worker() -> Self {
        Self { stream: PeerInput { partial: Partial::of_any_depth(), ..PeerInput::NOTHING }, ..Self::default() }
    }
}

impl ColdEndpoint {
    /// The peer whose output it waits for.
    pub(crate) fn blocker(&self) -> Option<Peer> {
        self.blocked_on().map(|(peer, _)| peer)
    }

    /// The peer whose output it waits for, and since when.
    pub(crate) fn blocked_on(&self) -> Option<(Peer, Moment)> {
        self.0.blocked_on
    }

    /// Whether it waits for an output.
    #[inline(always)]
    pub(crate) fn is_blocked(&self) -> bool {
        self.0.get().is_some_and(|cold| cold.blocked_on.is_some())
    }

    /// It waits for the output of a peer.
    pub(crate) fn block_on(&mut self, peer: Peer, now: Moment) {
        self.0.blocked_on = Some((peer, now));
    }

    /// It waits no longer. Returns for which peer it did, and since when.
    pub(crate) fn unblock(&mut self) -> Option<(Peer, Moment)> {
        self.0.get_mut()?.blocked_on.take()
    }

    /// Whether it has its turn for a worker, and has not sent its line yet.
    #[inline(always)]
    pub(crate) fn has_turn(&self) -> bool {
        self.0.get().is_some_and(|cold| cold.turn.is_granted())
    }

    /// It sends its line to this worker, or to another one. Returns whether it has its turn there.
    pub(crate) fn take_turn(&mut self, worker: WorkerKey) -> bool {
        self.has_turn() && self.0.turn.take(worker)
    }

    /// Its turn for a shared worker.
    pub(crate) fn turn_mut(&mut self) -> &mut Turn {
        &mut self.0.turn
    }

    /// Why it is throttled, if it is a client.
    pub(crate) fn throttle_mut(&mut self) -> &mut Throttle {
        &mut self.0.throttle
    }

    /// A worker lives and answers, so no request of the client has crashed it.
    pub(crate) fn forget_crashes(&mut self) {
        if let Some(cold) = self.0.get_mut() {
            cold.throttle.forget_crashes();
        }
    }

    /// It is closed: it has no turn, and is not throttled.
    pub(crate) fn forget_turn_and_throttle(&mut self) {
        if let Some(cold) = self.0.get_mut() {
            (cold.turn, cold.throttle) = Default::default();
        }
    }

    /// Requests to it that were forgotten before it answered them.
    pub(crate) fn retired(&self) -> &Retired {
        &self.0.retired
    }

    pub(crate) fn retired_mut(&mut self) -> &mut Retired {
        &mut self.0.retired
    }

    /// Whether any id and any progress token may be used for another request to it.
    #[inline(always)]
    pub(crate) fn accepts_any_id(&self) -> bool {
        self.0.get().is_none_or(|cold| cold.retired.accepts_any_id())
    }

    /// Its bytes that were taken and wait, if requests time out, and any do.
    #[inline(always)]
    pub(crate) fn kept(&self) -> Option<HeldBytes> {
        self.0.get().map(|cold| cold.kept).filter(HeldBytes::is_any)
    }

    /// Of `bytes` bytes `consumed` were handled, and the rest waits, if `waits` says so.
    pub(crate) fn keep(&mut self, now: Moment, bytes: usize, consumed: usize, waits: bool) {
        self.0.kept.keep(now, bytes, consumed, waits);
    }

    /// Its first line is a request that is overdue then, or none that may be overdue.
    pub(crate) fn expire_first_line(&mut self, at: Option<Moment>) {
        if let Some(at) = at {
            self.0.kept.expire(at);
        } else if let Some(cold) = self.0.get_mut() {
            cold.kept.expire(Moment::NEVER);
        }
    }

    /// When its first line is overdue, if it is a request that waits.
    pub(crate) fn first_line_expires(&self) -> Option<Moment> {
        self.0.get().and_then(|cold| cold.kept.overdue_at())
    }
}

impl PeerInput {
    /// Nothing was received.
    const NOTHING: Self =
        Self { partial: Partial::new(), kept: 0, waiting: Cold::unchanged(), progress_at: Moment(0), spoke_at: None };

    /// Finds the lines of a window. Waiting lines were found before.
    #[inline(always)]
    pub(crate) fn find_lines(
        &mut self,
        scanner: &mut Scanner,
        window: Window<'_>,
        lines: &mut Vec<Line>,
    ) -> ScanResult {
        lines.clear();
        if self.waiting.get().is_none_or(Vec::is_empty) {
            scanner.scan(&mut self.partial, window, lines)
        } else {
            lines.extend(core::mem::take(&mut *self.waiting));
            ScanResult::Full
        }
    }

    /// How many of its bytes follow the lines that were found in them.
    #[inline(always)]
    pub(crate) fn unfinished(&self, bytes: usize) -> usize {
        bytes - self.partial.consumed()
    }

    /// Whether more was received than was presented before.
    #[inline(always)]
    pub(crate) fn has_more(&self, bytes: usize) -> bool {
        bytes > self.kept
    }

    /// Whether it is in the middle of a line, or has waiting lines.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.kept > 0
    }

    /// Whether its next line waits.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Drops its waiting lines. Returns how many there are.
    pub(crate) fn drop_waiting(&mut self) -> usize {
        core::mem::take(&mut self.waiting).len()
    }

    /// When a line was last taken from it.
    pub(crate) fn spoke_at(&self) -> Option<Moment> {
        self.spoke_at
    }

    /// When a line was last taken from it, or it last took bytes, if ever.
    pub(crate) fn progress_at(&self) -> Moment {
        self.progress_at
    }

    /// It took bytes.
    pub(crate) fn progress(&mut self, now: Moment) {
        self.progress_at = now;
    }

    /// Lines were taken from it.
    #[inline(always)]
    pub(crate) fn note_lines(&mut self, now: Moment) {
        self.progress_at = now;
        self.spoke_at = Some(now);
    }

    /// All its lines were handled, and the rest is no error.
    #[inline(always)]
    pub(crate) fn finish(&mut self, bytes: usize, outcome: ScanResult) -> Received {
        let consumed = self.partial.consume();
        self.kept = bytes - consumed;
        Received { consumed, next: if outcome == ScanResult::Full { Next::Again } else { Next::Read } }
    }

    /// The first `done` bytes are handled; the lines after them wait.
    pub(crate) fn wait(&mut self, bytes: usize, done: usize, lines: &[Line]) -> Received {
        *self.waiting = lines.iter().map(|line| line.counted_after(done)).collect();
        self.partial.drop_front(done);
        self.kept = bytes - done;
        Received { consumed: done, next: Next::Wait }
    }

    /// Its first bytes are passed over, and a line begins behind them. Nothing of it waits.
    pub(crate) fn pass_over(&mut self, bytes: usize, consumed: usize, has_more: bool) -> Received {
        self.partial.reset();
        self.kept = bytes - consumed;
        Received { consumed, next: if has_more && consumed < bytes { Next::Again } else { Next::Read } }
    }

    /// Discards its input.
    pub(crate) fn discard(&mut self, bytes: usize) -> Received {
        self.partial.reset();
        self.kept = 0;
        Received { consumed: bytes, next: Next::Wait }
    }
}

/// Bytes that a client may send in one turn.
const QUANTUM: usize = 64 * 1024;

/// The share of a client in a worker that several clients keep busy. It is counted in bytes: a long line waits for as
/// many turns as it needs.
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
    fn is_granted(&self) -> bool {
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
pub(crate) struct Retired {
    /// Sorted. The last bit of each says whether its request creates a session.
    ids: Vec<u64>,
    /// Their number, once they were too many to be remembered.
    more: u64,
    /// They were, so it may answer under any id.
    may_answer_any: bool,
    /// Sorted progress tokens of forgotten requests, where they differ from the ids. A worker that does not answer
    /// cancelled requests never says when their progress ends.
    tokens: Vec<u64>,
    /// It has more of them than are remembered.
    may_report_any: bool,
}

/// Maximum number of ids: 8 KiB for each peer.
const MOST_RETIRED: usize = 1024;
/// The bit of a fingerprint that says whether its request creates a session.
const CREATES: u64 = 1;
/// Maximum number of tokens.
const MOST_TOKENS: usize = 256;

impl Retired {
    const NONE: Self =
        Self { ids: Vec::new(), more: 0, may_answer_any: false, tokens: Vec::new(), may_report_any: false };

    /// Whether any id may be used for another request.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty() && !self.may_answer_any
    }

    /// Whether any id and any progress token may be used for another request.
    pub(crate) fn accepts_any_id(&self) -> bool {
        self.is_empty() && self.tokens.is_empty() && !self.may_report_any
    }

    /// Whether it may still answer a forgotten request with this id.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.may_answer_any || self.find(id).is_ok()
    }

    /// Whether it may still send progress of a forgotten request under a token with this fingerprint.
    pub(crate) fn has_token(&self, token: impl FnOnce() -> u64) -> bool {
        if self.accepts_any_id() {
            return false;
        }
        let token = token();
        self.may_report_any || self.has(token) || self.tokens.binary_search(&token).is_ok()
    }

    /// Adds such a token.
    pub(crate) fn add_token(&mut self, token: u64) {
        match self.tokens.binary_search(&token) {
            Err(at) if self.tokens.len() < MOST_TOKENS => self.tokens.insert(at, token),
            Err(_) => self.may_report_any = true,
            Ok(_) => {}
        }
    }

    fn find(&self, id: u64) -> Result<usize, usize> {
        self.ids.binary_search_by_key(&(id | CREATES), |known| known | CREATES)
    }

    /// Adds the id of a request, and whether that creates a session. If there is no space for it, all are only counted.
    pub(crate) fn add(&mut self, id: u64, creates: bool) {
        match self.find(id) {
            Ok(at) => self.ids[at] |= u64::from(creates),
            Err(at) if self.more == 0 && self.ids.len() < MOST_RETIRED => {
                self.ids.insert(at, id & !CREATES | u64::from(creates));
            }
            Err(_) => self.more += 1 + core::mem::take(&mut self.ids).len() as u64,
        }
        self.may_answer_any |= self.more > 0;
    }

    /// An unsolicited answer has this id. If it may be a late one, returns whether it may create a session; then one less is
    /// remembered.
    pub(crate) fn take(&mut self, id: u64) -> Option<bool> {
        let found = self.find(id).ok().map(|at| self.ids.remove(at) & CREATES != 0);
        let is_counted = self.more > 0;
        self.more -= u64::from(is_counted);
        found.or(is_counted.then_some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_with_its_line_end() {
        let mut kept = HeldBytes::NOTHING;
        kept.keep(Moment(1), 150, 50, true);
        assert_eq!([99, 100, 101].map(|line_end| kept.taken_at(line_end, Moment(9))), [1, 9, 9].map(Moment));
    }
}
