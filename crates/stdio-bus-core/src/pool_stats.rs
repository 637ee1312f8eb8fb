//! Counters by pool: the outcomes and durations of its clients' requests, and the life cycle of its workers.

use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::Line;

use super::histogram::Histogram;
use super::report::Reason;

/// Declares the outcomes once: variant, name, help.
macro_rules! outcomes {
    ($($variant:ident $name:literal $help:literal,)*) => {
        /// The outcome of a request that was forwarded to a worker. Each has exactly one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Outcome { $(#[doc = $help] $variant,)* }

        impl Outcome {
            /// All outcomes, in the order of their numbers.
            pub const ALL: &'static [Outcome] = &[$(Outcome::$variant,)*];

            /// The name that users see.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

outcomes! {
    Answered "answered" "The worker answered with a result.",
    Error "error" "The worker answered with an error.",
    Timeout "timeout" "It was not answered in time.",
    Cancelled "cancelled" "Its client cancelled it, and it was not answered within 5 s or before the client left.",
    WorkerExited "worker_exited" "The worker ended before it answered.",
    ClientLeft "client_left" "The client left before the answer came.",
    ShuttingDown "shutting_down" "The daemon shut down before the answer came.",
    Failed "failed" "Its client got an error for another reason.",
}

impl Outcome {
    /// The outcome of a request that a worker answers with this line.
    pub(super) fn of_answer(line: &Line) -> Self {
        if line.has(Line::ERROR) && !line.has(Line::RESULT) { Self::Error } else { Self::Answered }
    }

    /// The outcome of a request whose client gets an error with this reason.
    pub(super) fn of(reason: Reason) -> Self {
        match reason {
            Reason::Timeout => Self::Timeout,
            Reason::Cancelled => Self::Cancelled,
            Reason::RequestLost => Self::WorkerExited,
            Reason::RequestDiscarded => Self::ClientLeft,
            Reason::ShuttingDown => Self::ShuttingDown,
            _ => Self::Failed,
        }
    }
}

/// Ways in which a worker ends without being asked to: by itself, or stopped for what it did.
pub const ENDS: [Reason; 8] = [
    Reason::WorkerExited,
    Reason::WorkerMalformed,
    Reason::WorkerLineTooLong,
    Reason::WorkerHangs,
    Reason::StartTimeout,
    Reason::WorkerStalled,
    Reason::WorkerClosedStdout,
    Reason::WorkerClosedStdin,
];

/// Counts by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasonCounts(Vec<(Reason, u64)>);

impl ReasonCounts {
    /// Each reason that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        self.0.iter().copied()
    }

    /// How often this one occurred.
    pub fn of(&self, reason: Reason) -> u64 {
        self.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| count)
    }

    /// Counts one more.
    pub(super) fn count(&mut self, reason: Reason) {
        match self.0.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.0.push((reason, 1)),
        }
    }
}

/// The counters of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    outcomes: [u64; Outcome::ALL.len()],
    /// How long the worker took to answer, with a result or an error.
    durations: Histogram,
    /// How long workers had requests that they did not answer.
    unanswered: Duration,
    /// Errors of the bus instead of answers, including requests that reached no worker.
    errors: ReasonCounts,
    /// What happened to its workers: each start, failed start, scheduled restart, slot given up, and end, by [`ENDS`] or
    /// as requested ([`Reason::WorkerStopped`]).
    workers: ReasonCounts,
}

impl PoolStats {
    /// How many requests have had this outcome.
    pub fn requests(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Errors of the bus instead of answers, including requests that reached no worker.
    pub fn errors(&self) -> &ReasonCounts {
        &self.errors
    }

    /// How often that has happened to its workers.
    pub fn events(&self, reason: Reason) -> u64 {
        self.workers.of(reason)
    }

    /// How long the worker took to answer, with a result or an error.
    pub fn durations(&self) -> &Histogram {
        &self.durations
    }

    /// How many processes have ended without being asked to.
    pub fn all_exits(&self) -> u64 {
        ENDS.iter().map(|end| self.events(*end)).sum()
    }

    /// A request gets an error of the bus.
    pub(super) fn fail(&mut self, reason: Reason) {
        self.errors.count(reason);
    }

    /// That has happened to a worker.
    pub(super) fn note(&mut self, reason: Reason) {
        self.workers.count(reason);
    }

    fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }

    /// A request has ended without an answer after this time.
    pub(super) fn unanswered(&mut self, outcome: Outcome, took: Duration) {
        self.count(outcome);
        self.unanswered += took;
    }

    /// How many requests of clients have ended, and how long workers had them.
    pub(super) fn ended(&self) -> (u64, Duration) {
        (self.outcomes.iter().sum(), self.durations.sum() + self.unanswered)
    }

    /// A request was answered after this time.
    pub(super) fn answered(&mut self, outcome: Outcome, took: Duration) {
        self.count(outcome);
        self.durations.observe(took);
    }
}
