//! Which client may get a worker, and when.

use std::time::Duration;

use crate::bus::port::{Moment, Source};
use crate::line::Party;

/// Minimum time before a worker is restarted.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// A source whose clients leave early waits this long between two workers.
const PACE: Duration = Duration::from_millis(50);

/// The slots of workers.
#[derive(Default)]
pub(super) struct Slots {
    /// Pools that a worker has left, and when.
    vacant: Vec<(usize, Moment)>,
    /// When a client of each source was last assigned a worker or left.
    turns: Vec<(Source, Moment)>,
    /// Workers that ended, and the peers that waited for them.
    blamed: Vec<(usize, Party)>,
    /// Workers are replaced, or their pools changed.
    replaces: bool,
}

impl Slots {
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

    /// Another one is started in its place, if there is one that has been vacant for as long as the first backoff.
    pub(super) fn take(&mut self, now: Moment, pool: usize) -> bool {
        let slot = self.vacant.iter().position(|(of, since)| *of == pool && now.since(*since) >= FIRST_BACKOFF);
        slot.map(|slot| self.vacant.remove(slot)).is_some()
    }

    /// A client of this source was assigned a worker, or leaves.
    pub(super) fn count_turn(&mut self, now: Moment, source: Source) {
        self.turns.retain(|(of, _)| *of != source);
        self.turns.push((source, now));
    }

    /// Whether a client of this source has to wait for the next one.
    pub(super) fn is_paced(&self, now: Moment, source: Source) -> bool {
        self.turns.iter().any(|(of, last)| *of == source && now.since(*last) < PACE)
    }

    /// A worker has ended while this peer waited for it.
    pub(super) fn blame(&mut self, worker: usize, party: Party) {
        self.blamed.push((worker, party));
    }

    pub(super) fn is_blamed(&self, worker: usize, party: Party) -> bool {
        self.blamed.contains(&(worker, party))
    }
}
