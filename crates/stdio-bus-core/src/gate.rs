//! Whether a peer is read, and if not, what stands against it.

use super::peer::Moment;

/// What keeps a peer from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Its next line waits for room in a full output, or for its turn there.
    Output = 1,
    /// Its next line waits for a worker (`worker_queue.rs`).
    Worker = 2,
    /// It holds much while memory is short (`memory.rs`).
    Memory = 4,
    /// It has a penalty (`penalties.rs`).
    Penalty = 8,
    /// Its lines do not count any more.
    Over = 16,
}

/// See the top of the file. It is closed with the first hold and opened with the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadGate {
    holds: u8,
    /// When its penalty ends, if it has one: the gate closes for it with the next line.
    penalised_until: Option<Moment>,
}

impl ReadGate {
    /// Whether the peer is read.
    pub(super) fn is_open(self) -> bool {
        self.holds == 0
    }

    /// Whether its next line may be dealt with at once.
    pub(super) fn lets_through(self) -> bool {
        self.holds == 0 && self.penalised_until.is_none()
    }

    /// Whether its next line waits for others: it is not in its own hands when it goes on.
    pub(super) fn waits(self) -> bool {
        self.holds & (Hold::Output as u8 | Hold::Worker as u8) != 0
    }

    pub(super) fn has(self, hold: Hold) -> bool {
        self.holds & hold as u8 != 0
    }

    /// Adds a hold. Says whether the peer was read before.
    pub(super) fn close(&mut self, hold: Hold) -> bool {
        let was_open = self.is_open();
        self.holds |= hold as u8;
        was_open
    }

    /// Takes a hold away. Says whether the peer is read again.
    pub(super) fn open(&mut self, hold: Hold) -> bool {
        let was_open = self.is_open();
        self.holds &= !(hold as u8);
        !was_open && self.is_open()
    }

    /// When its penalty ends, if it has one.
    pub(super) fn penalised_until(self) -> Option<Moment> {
        self.penalised_until
    }

    /// It has a penalty until this moment at least.
    pub(super) fn penalise(&mut self, until: Moment) {
        self.penalised_until = self.penalised_until.max(Some(until));
    }

    /// Its penalty is over.
    pub(super) fn forgive(&mut self) {
        self.penalised_until = None;
    }
}
