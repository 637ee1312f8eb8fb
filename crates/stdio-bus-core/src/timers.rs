//! The one queue of deadlines. Each owner is in it once, with the earliest moment at which it has to be looked at, and
//! keeps that moment itself, so that an entry is found to be replaced or cancelled. A tick touches what is due.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::peer::{ClientKey, Moment, Peer, WorkerKey};

/// What has to be looked at. What is due at one tick is looked at in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Summaries of reports.
    Reports,
    /// Requests that run out of time.
    Requests,
    /// Claims that nobody uses, and sessions that were idle for too long.
    Sessions,
    /// One client: its closing, its queue, its penalty, its silence.
    Client(ClientKey),
    /// Clients that may make room while all slots are taken.
    Slots,
    /// One worker: its life, its queue, its turns, its silence.
    Worker(WorkerKey),
    /// The workers that a pool starts.
    Pool(usize),
    /// Clients that wait for a worker.
    WorkerQueue,
    /// The stages of the shutdown.
    Drain,
}

impl From<Peer> for Timer {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Client(client) => Self::Client(client),
            Peer::Worker(worker) => Self::Worker(worker),
        }
    }
}

/// When a [`Timer`] runs out, kept by its owner; never, if it is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Armed(Moment);

impl Default for Armed {
    fn default() -> Self {
        Self(Moment::NEVER)
    }
}

/// See the top of the file.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Moment, Timer)>,
}

impl Timers {
    /// Has a timer run out at `at`, unless it does so before.
    pub(super) fn arm(&mut self, timer: Timer, armed: &mut Armed, at: Moment) {
        if at < armed.0 {
            self.disarm(timer, armed);
            armed.0 = at;
            self.queue.insert((at, timer));
        }
    }

    /// Cancels a timer.
    pub(super) fn disarm(&mut self, timer: Timer, armed: &mut Armed) {
        if armed.0 != Moment::NEVER {
            self.queue.remove(&(armed.0, timer));
            armed.0 = Moment::NEVER;
        }
    }

    /// When the next one runs out.
    pub(super) fn next(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes out those that have run out. Their owners have to [`Armed::reset`] what they keep.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Timer> {
        let mut due = Vec::new();
        while let Some((at, timer)) = self.queue.pop_first() {
            if at > now {
                self.queue.insert((at, timer));
                break;
            }
            due.push(timer);
        }
        due.sort_unstable();
        due
    }
}

impl Armed {
    /// The timer has run out.
    pub(super) fn reset(&mut self) {
        self.0 = Moment::NEVER;
    }
}
