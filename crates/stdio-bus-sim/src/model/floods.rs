//! Output of workers that has no receiver. A worker that writes much of it is read with pauses.
//!
//! What a line costs is an estimate of the bus, so the model knows two bounds: what has certainly cost something, which
//! is the lines that were refused, and what may have.

use std::time::Duration;

use crate::bus::port::Moment;

/// One part in so many of the passing time pays for it.
const PART: u64 = 30;
/// What a worker may cost at once, in nanoseconds, and how long it is not read at most.
const AT_ONCE: u64 = 1_250_000;
const LONGEST: Duration = Duration::from_millis(50);
/// The costs of a line that is refused, of a byte that belongs to no message, and of a read of nothing else.
const LINE: u64 = 1_000;
const BYTE: u64 = 13;
const READ: u64 = 8_000;

/// Costs that the passing time pays for.
#[derive(Debug, Default)]
struct Debt {
    cost: u64,
    at: Moment,
}

impl Debt {
    /// Adds a cost. Returns whether they are too high now.
    fn add(&mut self, now: Moment, cost: u64) -> bool {
        let paid = (now.0 - self.at.0) / PART;
        (self.cost, self.at) = (self.cost.saturating_sub(paid) + cost, now);
        self.cost > AT_ONCE
    }
}

/// What a worker has written for nobody.
#[derive(Debug, Default)]
pub(super) struct Flood {
    sure: Debt,
    perhaps: Debt,
    /// Its lines that were refused in this call.
    refused: u64,
    /// It is perhaps not read until then.
    until: Option<Moment>,
}

impl Flood {
    /// One of its lines was refused.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// The worker was read: so many bytes belonged to no message. Returns whether it may not be read on, and whether it
    /// perhaps is not.
    pub(super) fn was_read(&mut self, now: Moment, nothing: usize) -> (bool, bool) {
        let lines = std::mem::take(&mut self.refused) * LINE;
        let is_useless = lines > 0 || nothing > 0;
        let must = self.sure.add(now, lines) && lines > 0;
        let may = self.perhaps.add(now, lines + nothing as u64 * BYTE + u64::from(is_useless) * READ) && is_useless;
        if may {
            self.until = Some(now.after(LONGEST));
        }
        (must, may)
    }

    /// Whether the worker is perhaps not read because it has written too much for nobody.
    pub(super) fn is_perhaps_paused(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now <= until)
    }
}
