//! Who may get a worker, and when.

use std::time::Duration;

use crate::bus::port::{Moment, Source};
use crate::line::Who;

/// No worker is started again sooner than this.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// A source whose clients leave early gets the next worker so long after the last one.
const PACE: Duration = Duration::from_millis(50);

/// The seats of workers.
#[derive(Default)]
pub(super) struct Seats {
    /// Pools that a worker has left, and when.
    vacant: Vec<(usize, Moment)>,
    /// When a client of each source has got a worker of its own, or has left, the last time.
    turns: Vec<(Source, Moment)>,
    /// Workers that ended, and who waited for them.
    blamed: Vec<(usize, Who)>,
    /// Workers are replaced, or their pools changed.
    replaces: bool,
}

impl Seats {
    /// Workers are replaced from now on, or their pools changed.
    pub(super) fn replace(&mut self) {
        self.replaces = true;
    }

    pub(super) fn are_replaced(&self) -> bool {
        self.replaces
    }

    /// A worker has left its pool.
    pub(super) fn leave(&mut self, now: Moment, pool: usize) {
        self.vacant.push((pool, now));
    }

    /// Another one is started in its place.
    pub(super) fn take(&mut self, now: Moment, pool: usize) {
        let seat = self.vacant.iter().position(|(of, since)| *of == pool && now.since(*since) >= FIRST_BACKOFF);
        self.vacant.remove(seat.expect("a seat is vacant for as long as the first backoff"));
    }

    /// A client of this source has got a worker of its own, or leaves.
    pub(super) fn count_turn(&mut self, now: Moment, source: Source) {
        self.turns.retain(|(of, _)| *of != source);
        self.turns.push((source, now));
    }

    /// Whether a client of this source has to wait for the next one.
    pub(super) fn is_paced(&self, now: Moment, source: Source) -> bool {
        self.turns.iter().any(|(of, last)| *of == source && now.since(*last) < PACE)
    }

    /// A worker has ended while this one waited for it.
    pub(super) fn blame(&mut self, worker: usize, who: Who) {
        self.blamed.push((worker, who));
    }

    pub(super) fn is_blamed(&self, worker: usize, who: Who) -> bool {
        self.blamed.contains(&(worker, who))
    }
}
