//! How workers answer. A worker that runs and says nothing is reported once, and replaced after [`MAX_TIMEOUTS`]
//! request timeouts in a row; a worker that follows failed ones is on probation.

use core::time::Duration;

use super::lifetime::Lifetime;
use crate::ctx::Ctx;
use crate::peer::{Moment, Peer, WorkerKey};
use crate::peers::ToAnswer;
use crate::report::Reason;
use crate::requests::Requests;
use crate::timeouts::TimeLimits;

/// After this many request timeouts in a row without output a worker is restarted.
const MAX_TIMEOUTS: u32 = 3;

/// A worker without output for this long, while requests wait for it, is reported.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// A worker that runs for this long after others have failed counts as healthy.
const PROBATION: Duration = Duration::from_secs(5);

/// A client that has waited this long for the first answer of its own worker is reported.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// What a worker's answers have shown so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Proof {
    /// It has answered nothing.
    #[default]
    Unanswered,
    /// Nor has it proved that it is healthier than its predecessors in the slot, which have failed in a row: new clients
    /// are sent to it once it has answered, or has run for a while.
    OnProbation,
    /// It has answered a request.
    Answered,
}

/// A worker's record of answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answering {
    /// The time limits of its requests.
    limits: TimeLimits,
    proof: Proof,
    /// It has answered a request with a response: it does not merely echo its input.
    responds: bool,
    /// It was started on trial (`trial.rs`), and that is not over unless it has answered.
    is_tried: bool,
    /// Number of requests that timed out since its last output.
    timeouts: u32,
    /// When the first of its pending requests was sent.
    waits_since: Moment,
    /// It is checked again.
    is_watched: bool,
    /// Since when it is read without a pause.
    read_since: Moment,
    /// How soon it is looked at once it owes something (`health.rs`).
    first_look: Option<Duration>,
}

impl Answering {
    /// The record of a new worker with these time limits, which is looked at that soon.
    pub(super) fn new(limits: TimeLimits, first_look: Option<Duration>) -> Self {
        Self { limits, first_look, ..Self::default() }
    }

    /// Other time limits hold for its requests from now on.
    pub(crate) fn limit(&mut self, limits: TimeLimits, first_look: Option<Duration>) {
        (self.limits, self.first_look) = (limits, first_look);
    }

    /// The time limits of its requests.
    #[inline(always)]
    pub(crate) fn limits(&self) -> &TimeLimits {
        &self.limits
    }

    /// When the first of its pending requests was sent, or of those that were pending last.
    pub(super) fn waits_since(&self) -> Moment {
        self.waits_since
    }

    /// Since when it is read without a pause.
    pub(crate) fn read_since(&self) -> Moment {
        self.read_since
    }

    /// It is read again, after a pause.
    pub(crate) fn read_from(&mut self, now: Moment) {
        self.read_since = now;
    }

    /// It has got a request, which is one of those that it has `to_answer`. Returns when it must be checked, if that is
    /// not scheduled yet: at once, if that was the last one it may get.
    #[inline(always)]
    pub(crate) fn begin(&mut self, now: Moment, to_answer: &ToAnswer, lifetime: &mut Lifetime) -> Option<Moment> {
        let mut is_new = false;
        if to_answer.owed() <= 1 {
            if to_answer.count() == 1 {
                self.waits_since = now;
            }
            is_new = to_answer.owed() == 1 && !core::mem::replace(&mut self.is_watched, true);
        }
        if lifetime.count_request() {
            return Some(now);
        }
        is_new.then(|| now.after(self.first_look.map_or(SILENT_FOR, |look| look.min(SILENT_FOR))))
    }

    /// Whether it has answered a request.
    pub(crate) fn has_answered(&self) -> bool {
        self.proof == Proof::Answered
    }

    /// Whether it was started on trial, and that is not over unless it has answered.
    #[inline(always)]
    pub(super) fn is_tried(&self) -> bool {
        self.is_tried
    }

    /// It is on trial from now on, or that is over.
    pub(super) fn try_out(&mut self, is_tried: bool) {
        self.is_tried = is_tried;
    }

    /// Whether it does not merely echo its input.
    pub(crate) fn responds(&self) -> bool {
        self.responds
    }

    /// Whether it has still to prove that it is healthier than its predecessors.
    pub(super) fn is_on_probation(&self) -> bool {
        self.proof == Proof::OnProbation
    }

    /// It has answered, perhaps with a response, which ends its probation. Returns whether that is its first answer.
    pub(crate) fn answers(&mut self, responds: bool) -> bool {
        self.responds |= responds;
        self.timeouts = 0;
        core::mem::replace(&mut self.proof, Proof::Answered) != Proof::Answered
    }
}

impl Requests {
    /// Reports a worker without output while requests wait, once for as long as it owes an answer. Returns when to check
    /// again.
    pub(super) fn tick_silent(&self, ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
        let now = ctx.time.now();
        let worker = ctx.workers.get_mut(key).filter(|worker| worker.answering.is_watched)?;
        let answering = &mut worker.answering;
        if worker.end.to_answer.owed() == 0 {
            answering.is_watched = false;
            return None;
        }
        if worker.end.gate.waits() {
            // It is paused because a client has no room: it may have more output.
            answering.waits_since = now;
            return Some(now.after(SILENT_FOR));
        }
        let since = answering.waits_since.max(worker.end.stream.spoke_at().unwrap_or_default());
        if since.after(SILENT_FOR) > now {
            return Some(since.after(SILENT_FOR));
        }
        // Nobody may wait any more for what it was asked first.
        let (waiting, asked) = self.owed_by(key);
        let since = since.max(asked);
        if since.after(SILENT_FOR) > now {
            return Some(since.after(SILENT_FOR));
        }
        answering.is_watched = false;
        ctx.report(Reason::WorkerSilent, Some(Peer::Worker(key)), || {
            let seconds = now.since(since).as_secs();
            format!(
                "a worker has written nothing for {seconds} s, and {waiting} requests wait: does it flush its stdout?"
            )
        });
        None
    }
}

/// A request to a worker has timed out. Returns how many have in a row, if that shows that it hangs. A worker that has
/// other output meanwhile, or is paused, may be slow with these and serve others.
pub(crate) fn hangs(ctx: &mut Ctx, key: WorkerKey) -> Option<u32> {
    let now = ctx.time.now();
    let worker = ctx.workers.get_mut(key).filter(|worker| worker.takes_messages())?;
    let spoke_at = worker.end.stream.spoke_at().unwrap_or(worker.process.started());
    let may_go_on = !worker.answering.limits().are_shorter_than(now.since(spoke_at));
    // One that waits for a client's answer does not hang.
    if may_go_on || worker.end.gate.waits() || !worker.end.asked.is_empty() {
        worker.answering.timeouts = 0;
        return None;
    }
    worker.answering.timeouts += 1;
    Some(worker.answering.timeouts).filter(|timeouts| *timeouts >= MAX_TIMEOUTS)
}

/// A worker follows others that have failed.
pub(super) fn put_on_probation(ctx: &mut Ctx, key: WorkerKey) {
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    if worker.answering.proof == Proof::Unanswered {
        worker.answering.proof = Proof::OnProbation;
    }
    ctx.wake_at(key.into(), ctx.time.now().after(PROBATION));
}

/// Ends the probation of a worker that has run for long enough. Returns when to check again.
pub(super) fn tick_probation(ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
    let worker = ctx.workers.get_mut(key).filter(|worker| worker.answering.is_on_probation())?;
    let due = worker.process.started().after(PROBATION);
    if due <= ctx.time.now() {
        worker.answering.proof = Proof::Unanswered;
    }
    ctx.workers_changed |= due <= ctx.time.now();
    (due > ctx.time.now()).then_some(due)
}

/// Reports a client that waits for the first answer of its own worker. Returns when to check again.
pub(super) fn tick_first_answer(ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
    let worker = ctx.workers.get_mut(key).filter(|worker| !worker.ownership.reported_wait())?;
    let (owner, claimed, started) = (worker.owner()?, worker.ownership.since(), worker.process.started());
    let due = claimed.after(FIRST_ANSWER);
    if due > ctx.time.now() {
        return Some(due);
    }
    worker.ownership.set_reported_wait();
    if worker.starts_for().is_some() {
        let (waited, ran) = (ctx.time.now().since(claimed).as_secs_f32(), claimed.since(started).as_secs_f32());
        ctx.report_request(Reason::WorkerAwaited, [Some(owner.into()), Some(key.into())], || {
            let text = format!(
                "a client has waited {waited:.1} s for the first answer of its own worker, which had been running for \
                 {ran:.1} s before; raise instances to keep more spares warm"
            );
            (None, text)
        });
    }
    None
}
