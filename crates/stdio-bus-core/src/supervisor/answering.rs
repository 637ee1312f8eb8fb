//! How workers answer. Those that run and say nothing are reported once, and replaced after [`MAX_TIMEOUTS`] request
//! timeouts in a row; those that follow failed ones are on probation.

use alloc::format;
use core::time::Duration;

use super::discovery::Question;
use super::tenure::Tenure;
use crate::Bus;
use crate::peer::{Moment, Peer, WorkerKey};
use crate::report::Reason;

/// So many requests in a row run out of time while their worker says nothing, and it is started anew.
const MAX_TIMEOUTS: u32 = 3;

/// A worker that has said nothing for so long, while requests wait for it, is told about.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// One that is late to say what it speaks is listened to for so long since its start.
const LISTENED_FOR: Duration = Duration::from_secs(60);

/// A worker that runs for so long after others have failed is taken to be well.
const PROBATION: Duration = Duration::from_secs(5);

/// A client that has waited for so long for the first answer of its own worker is reported.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// What is known of a worker's answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answering {
    /// How long a request may wait for its answer.
    timeout: Option<Duration>,
    /// It has answered a request.
    has_answered: bool,
    /// It has answered a request with a response: it is no worker that sends back what it gets.
    responds: bool,
    /// Those before it in its slot have failed one after the other: new clients are sent to it when it has answered, or
    /// has run for a while.
    is_on_probation: bool,
    /// Requests that ran out of time since it spoke last.
    timeouts: u32,
    /// When the first one of those was sent that it has to answer now.
    waits_since: Moment,
    /// It is looked after again.
    is_watched: bool,
    /// When its client took it.
    claimed: Moment,
    /// It was reported how long its client waits for its first answer.
    wait_is_told: bool,
    /// It was reported that it answers what nobody asked.
    answers_twice: bool,
    /// Whether it is asked for its era.
    question: Question,
    /// Whether it has seen how a session of a door for MCP begins (`router/opening.rs`).
    opened: Opened,
    /// It may tell which of its sessions work (`session/activity.rs`).
    tells_states: bool,
    /// It was reported that it makes a string of the number in an id, or the other way round.
    told_of_type: bool,
}

/// Whether a worker has seen how a session begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It has, or needs not.
    #[default]
    Yes,
    /// It has not.
    No,
    /// The bus has shown it, and waits for its answer.
    Asked,
}

impl Answering {
    /// That of a worker about which nothing is known but how long a request to it may wait.
    pub(super) fn new(timeout: Option<Duration>, opened: Opened) -> Self {
        Self { timeout, opened, ..Self::default() }
    }

    /// How long a request may wait from now on.
    pub(crate) fn renew(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// When the answer to a request that is passed on now is too late; perhaps never.
    #[inline]
    pub(crate) fn expires(&self, now: Moment) -> Moment {
        self.timeout.map_or(Moment::NEVER, |timeout| now.after(timeout))
    }

    /// It has got a request to answer; `is_first` says that it has no other one. Gives when it has to be looked at, if
    /// that is not known yet.
    #[inline]
    pub(crate) fn begin(&mut self, now: Moment, is_first: bool, tenure: &mut Tenure) -> Option<Moment> {
        let mut is_new = false;
        if is_first {
            self.waits_since = now;
            is_new = !core::mem::replace(&mut self.is_watched, true);
        }
        if tenure.count_request() { Some(now) } else { is_new.then(|| now.after(SILENT_FOR)) }
    }

    /// Whether it has answered a request.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Whether it is no worker that sends back what it gets.
    pub(crate) fn responds(&self) -> bool {
        self.responds
    }

    /// Whether it has still to show that it does better than those before it.
    pub(super) fn is_on_probation(&self) -> bool {
        self.is_on_probation
    }

    /// A client takes it for itself, or gives it back.
    pub(super) fn claim(&mut self, now: Moment) {
        self.claimed = now;
    }

    /// When that was.
    pub(crate) fn claimed_at(&self) -> Moment {
        self.claimed
    }

    /// Whether it is asked for its era, and how far that has come.
    pub(super) fn question(&self) -> Question {
        self.question
    }

    pub(super) fn set_question(&mut self, question: Question) {
        self.question = question;
    }

    /// Whether it has seen how a session of a door for MCP begins.
    pub(crate) fn opened(&self) -> Opened {
        self.opened
    }

    pub(crate) fn set_opened(&mut self, opened: Opened) {
        self.opened = opened;
    }

    /// Whether it may tell which of its sessions work.
    #[inline]
    pub(crate) fn tells_states(&self) -> bool {
        self.tells_states
    }

    /// It was asked for a version in which it may.
    pub(crate) fn expect_states(&mut self) {
        self.tells_states = true;
    }

    /// It answers what nobody has asked. Says whether that is to be reported.
    pub(crate) fn answers_unasked(&mut self) -> bool {
        !core::mem::replace(&mut self.answers_twice, true)
    }

    /// It answers with an id of another type. Says whether that is to be reported.
    pub(crate) fn mistakes_type(&mut self) -> bool {
        !core::mem::replace(&mut self.told_of_type, true)
    }

    /// Whether it was asked for its era in a way that may have pinned it to 2026-07-28.
    pub(super) fn may_be_pinned(&self) -> bool {
        matches!(self.question, Question::Late | Question::Answered)
    }

    /// Until when it is listened to if it has nothing else to do, since it is late with what it speaks.
    pub(super) fn is_listened_to(&self, started: Moment) -> Option<Moment> {
        (self.question == Question::Late).then(|| started.after(LISTENED_FOR))
    }

    /// It has answered, perhaps with a response. Gives whether that ends its probation.
    #[inline]
    pub(crate) fn answers(&mut self, responds: bool) -> bool {
        self.has_answered = true;
        self.responds |= responds;
        self.timeouts = 0;
        core::mem::take(&mut self.is_on_probation)
    }
}

impl Bus {
    /// A worker follows others that have failed.
    pub(super) fn put_on_probation(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.answering.is_on_probation = true;
        self.wake_at(key.into(), self.time.now().after(PROBATION));
    }

    /// Ends the probation of a worker that has run for long enough. Gives when to look again.
    pub(super) fn tick_probation(&mut self, key: WorkerKey) -> Option<Moment> {
        let worker = self.workers.get_mut(key).filter(|worker| worker.answering.is_on_probation)?;
        let due = worker.process.started().after(PROBATION);
        worker.answering.is_on_probation = due > self.time.now();
        self.supervisor.has_changed |= due <= self.time.now();
        (due > self.time.now()).then_some(due)
    }

    /// Reports a worker that says nothing while requests wait, once for as long as it has something to answer. Gives when
    /// to look again.
    pub(super) fn tick_silent(&mut self, key: WorkerKey) -> Option<Moment> {
        let now = self.time.now();
        let worker = self.workers.get_mut(key).filter(|worker| worker.answering.is_watched)?;
        let (waiting, answering) = (worker.end.unanswered.awaited(), &mut worker.answering);
        if waiting > 0 && worker.end.gate.waits() {
            // It is not read for now, since a client has no room: it may have said much.
            answering.waits_since = now;
            return Some(now.after(SILENT_FOR));
        }
        let since = answering.waits_since.max(worker.end.stream.spoke_at().unwrap_or_default());
        let due = since.after(SILENT_FOR);
        if waiting > 0 && due > now {
            return Some(due);
        }
        // Who listens waits for nothing in particular.
        let (owed, asked) = self.pending.owed_by(key);
        if waiting > owed as u32 {
            answering.waits_since = if owed > 0 { asked } else { now };
            if answering.waits_since.after(SILENT_FOR) > now {
                return Some(answering.waits_since.after(SILENT_FOR));
            }
        }
        let (waiting, since) = (owed, since.max(answering.waits_since));
        answering.is_watched = false;
        if waiting > 0 {
            self.report(Reason::WorkerSilent, Some(Peer::Worker(key)), || {
                let seconds = now.since(since).as_secs();
                format!(
                    "a worker has said nothing for {seconds} s, and {waiting} requests wait: does it flush its stdout?"
                )
            });
        }
        None
    }

    /// Reports a client that waits for the first answer of its own worker. Gives when to look again.
    pub(super) fn tick_first_answer(&mut self, key: WorkerKey) -> Option<Moment> {
        let worker = self.workers.get_mut(key).filter(|worker| !worker.answering.wait_is_told)?;
        let (owner, claimed, started) = (worker.owner?, worker.answering.claimed, worker.process.started());
        let due = claimed.after(FIRST_ANSWER);
        if due > self.time.now() {
            return Some(due);
        }
        worker.answering.wait_is_told = true;
        if worker.starts_for().is_some() {
            let (waited, ran) = (self.time.now().since(claimed).as_secs_f32(), claimed.since(started).as_secs_f32());
            self.report_request(Reason::WorkerAwaited, [Some(owner.into()), Some(key.into())], || {
                let text = format!(
                    "a client has waited {waited:.1} s for the first answer of its own worker, which had run for {ran:.1} s \
                     before; with more instances spares are warm"
                );
                (None, text)
            });
        }
        None
    }

    /// A request to a worker has run out of time: after too many in a row it is started anew. One that speaks meanwhile, or
    /// is not read, may be slow with these and serve others.
    pub(crate) fn count_timeout(&mut self, key: WorkerKey) {
        let now = self.time.now();
        let Some(worker) = self.workers.get_mut(key).filter(|worker| worker.takes_messages()) else { return };
        let Some((timeout, at)) =
            worker.answering.timeout.zip(worker.end.stream.spoke_at().or(Some(worker.process.started())))
        else {
            return;
        };
        if now.since(at) < timeout || worker.end.gate.waits() {
            worker.answering.timeouts = 0;
            return;
        }
        worker.answering.timeouts += 1;
        let timeouts = worker.answering.timeouts;
        if timeouts >= MAX_TIMEOUTS {
            let text = format!(
                "the worker hangs: {timeouts} requests in a row timed out without a word from it; it is restarted"
            );
            self.stop_broken_worker(key, Reason::WorkerHangs, &text);
        }
    }
}
