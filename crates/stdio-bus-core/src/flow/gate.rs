//! Whether a peer is read, and if not, which holds prevent it.

use crate::peer::Moment;

/// What keeps a peer from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Its next line waits for room in a full output, or for its turn there.
    Output = 1,
    /// Its next line waits for a worker (`fleet/queue.rs`).
    Worker = 2,
    /// It holds much while memory is short (`eviction.rs`).
    Memory = 4,
    /// It is throttled (`throttle.rs`).
    Throttle = 8,
    /// Its lines are ignored from now on.
    Over = 16,
}

/// See the module's documentation. It is closed by the first hold and opened by removing the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadGate {
    holds: u8,
    /// Until when it is throttled, if it is: the gate closes with its next line. Otherwise the beginning of time.
    throttled_until: Moment,
}

impl ReadGate {
    /// No hold.
    pub(crate) const OPEN: Self = Self { holds: 0, throttled_until: Moment(0) };

    /// Whether the peer is read.
    pub(crate) fn is_open(self) -> bool {
        self.holds == 0
    }

    /// Whether its next line may be handled at once.
    pub(crate) fn lets_through(self) -> bool {
        self.holds == 0 && self.throttled_until == Moment::default()
    }

    /// Whether its next line waits for others: it cannot influence when it continues.
    pub(crate) fn waits(self) -> bool {
        self.holds & (Hold::Output as u8 | Hold::Worker as u8) != 0
    }

    /// Whether it is not read for now.
    pub(crate) fn is_held_up(self) -> bool {
        self.holds & !(Hold::Over as u8) != 0
    }

    pub(crate) fn has(self, hold: Hold) -> bool {
        self.holds & hold as u8 != 0
    }

    /// Adds a hold. Returns whether that needs an effect: the first one does, and the final one even if the peer is
    /// paused.
    pub(crate) fn close(&mut self, hold: Hold) -> bool {
        let is_reported = self.is_open() || hold == Hold::Over;
        self.holds |= hold as u8;
        is_reported
    }

    /// Removes a hold. Returns whether the peer is read again.
    pub(crate) fn open(&mut self, hold: Hold) -> bool {
        let was_open = self.is_open();
        self.holds &= !(hold as u8);
        !was_open && self.is_open()
    }

    /// Until when it is throttled, if it is.
    pub(crate) fn throttled_until(self) -> Option<Moment> {
        Some(self.throttled_until).filter(|ends| *ends > Moment::default())
    }

    /// It was throttled for long enough.
    pub(crate) fn end_throttle(&mut self) {
        self.throttled_until = Moment::default();
    }

    /// It is throttled until this moment at least.
    pub(crate) fn throttle(&mut self, until: Moment) {
        self.throttled_until = self.throttled_until.max(until);
    }
}
