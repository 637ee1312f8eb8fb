//! Whether a peer is read, and if not, which holds prevent it.

use crate::peer::Moment;

/// What keeps a peer from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Its next line waits for room in a full output, or for its turn there.
    Output = 1,
    /// Its next line waits for a worker (`supervisor/queue.rs`).
    Worker = 2,
    /// It holds much while memory is short (`eviction.rs`).
    Memory = 4,
    /// It has a penalty (`penalty.rs`).
    Penalty = 8,
    /// It yields to others (`pace.rs`).
    Pace = 16,
    /// Its lines are ignored from now on.
    Over = 32,
}

/// See the module's documentation. It is closed by the first hold and opened by removing the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadGate {
    holds: u8,
    /// When its penalty ends, if it has one: the gate closes with its next line. Otherwise the beginning of time.
    penalty_ends: Moment,
}

impl ReadGate {
    /// No hold.
    pub(crate) const OPEN: Self = Self { holds: 0, penalty_ends: Moment(0) };

    /// Whether the peer is read.
    pub(crate) fn is_open(self) -> bool {
        self.holds == 0
    }

    /// Whether its next line may be handled at once.
    pub(crate) fn lets_through(self) -> bool {
        self.holds == 0 && self.penalty_ends == Moment::default()
    }

    /// Whether its next line waits for others: it cannot influence when it continues.
    pub(crate) fn waits(self) -> bool {
        self.holds & (Hold::Output as u8 | Hold::Worker as u8) != 0
    }

    pub(crate) fn has(self, hold: Hold) -> bool {
        self.holds & hold as u8 != 0
    }

    /// Adds a hold. Returns whether that needs an effect: the first one does, and the final one even if the peer is
    /// paused.
    pub(crate) fn close(&mut self, hold: Hold) -> bool {
        let is_told = self.is_open() || hold == Hold::Over;
        self.holds |= hold as u8;
        is_told
    }

    /// Removes a hold. Returns whether the peer is read again.
    pub(crate) fn open(&mut self, hold: Hold) -> bool {
        let was_open = self.is_open();
        self.holds &= !(hold as u8);
        !was_open && self.is_open()
    }

    /// When its penalty ends, if it has one.
    pub(crate) fn penalised_until(self) -> Option<Moment> {
        Some(self.penalty_ends).filter(|ends| *ends > Moment::default())
    }

    /// Ends its penalty.
    pub(crate) fn clear_penalty(&mut self) {
        self.penalty_ends = Moment::default();
    }

    /// Gives it a penalty until this moment at least.
    pub(crate) fn penalise(&mut self, until: Moment) {
        self.penalty_ends = self.penalty_ends.max(until);
    }
}
