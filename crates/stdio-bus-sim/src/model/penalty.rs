//! For how long a client is not read, as a crash suspect or because its cancellations name nothing.

use std::time::Duration;

use crate::bus::port::Moment;

/// A client is read with pauses after this many crashes of its workers in a row.
const SUSPECT_AFTER: usize = 3;

/// The first pause; each one is twice as long as the previous one, up to the longest.
const PENALTY: Duration = Duration::from_secs(1);
const LONGEST_PENALTY: Duration = Duration::from_secs(30);

/// A client whose cancellation named nothing is not read for this long; twice as long the next time, up to the longest,
/// unless the last time was long ago. Pauses end together.
const REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(32);

const REFUSALS_COUNT_FOR: Duration = Duration::from_secs(1);
/// Each request may be cancelled once after its answer; so many at most at once.
const LATE: usize = 64;
const REST_ROUND: u64 = 4_000_000;

/// A client's record, and for how long it is not read.
#[derive(Default)]
pub(super) struct Penalty {
    /// Number of workers in a row that crashed while it waited for them.
    crashes: usize,
    /// Number of its cancellations in a row that named nothing, and the time of the last one.
    refusals: usize,
    refused_at: Moment,
    /// How many cancellations that name nothing cost nothing.
    free: usize,
    /// It is not read before this moment.
    until: Option<Moment>,
}

impl Penalty {
    /// A worker exited while the client waited for it.
    pub(super) fn crashed(&mut self, now: Moment) {
        self.crashes += 1;
        if let Some(more) = self.crashes.checked_sub(SUSPECT_AFTER) {
            let pause = PENALTY.saturating_mul(1 << more.min(16)).min(LONGEST_PENALTY);
            self.until = self.until.max(Some(now.after(pause)));
        }
    }

    /// A worker has answered the client.
    pub(super) fn answered(&mut self) {
        self.crashes = 0;
    }

    /// The client has asked something.
    pub(super) fn asked(&mut self) {
        self.free = LATE.min(self.free + 1);
    }

    /// A cancellation of the client named nothing. Returns whether it costs nothing.
    pub(super) fn is_late(&mut self) -> bool {
        let is_late = self.free > 0;
        self.free -= usize::from(is_late);
        is_late
    }

    /// A cancellation of the client named nothing, and it was not late.
    pub(super) fn refused(&mut self, now: Moment) {
        if now.since(self.refused_at) > REFUSALS_COUNT_FOR {
            self.refusals = 0;
        }
        let rest = REST.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_REST);
        self.refusals += 1;
        self.refused_at = now;
        let until = Moment(now.after(rest).0.next_multiple_of(REST_ROUND));
        self.until = self.until.max(Some(until));
    }

    pub(super) fn holds(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}
