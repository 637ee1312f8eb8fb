//! The one queue of deadlines. Each owner is in it once, with its earliest deadline. A tick handles what is due.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::index::FleetId;
use super::peer::{ClientKey, Moment, Peer, WorkerKey};

/// The owner of a deadline. What is due at one tick is handled in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Summaries of reports.
    Reports,
    /// Requests that time out.
    Requests,
    /// Claims that expire, and sessions that are idle for too long.
    Sessions,
    /// One client: its closing, its queue, its throttle, its silence.
    Client(ClientKey),
    /// Clients that may be closed while all slots are taken.
    Slots,
    /// One worker: its life, its queue, its turns, its silence.
    Worker(WorkerKey),
    /// The worker starts of a fleet.
    Fleet(FleetId),
    /// Clients that wait for a worker.
    WorkerQueue,
    /// Listeners removed from the configuration.
    Listeners,
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

/// One queue of deadlines.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Moment, Timer)>,
    /// The deadline of each timer, to find its entry in the queue.
    armed: HashMap<Timer, Moment>,
}

impl Timers {
    /// Arms a timer for `at`, unless it is due before.
    pub(super) fn arm(&mut self, timer: Timer, at: impl Into<Option<Moment>>) {
        let Some(at) = at.into().filter(|at| *at != Moment::NEVER) else { return };
        let armed = self.armed.entry(timer).or_insert(Moment::NEVER);
        if at < *armed {
            self.queue.remove(&(*armed, timer));
            *armed = at;
            self.queue.insert((at, timer));
        }
    }

    /// Cancels a timer.
    pub(super) fn disarm(&mut self, timer: Timer) {
        if let Some(at) = self.armed.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    /// Whether a deadline, perhaps a passed one, is still to be handled.
    pub(super) fn is_armed(&self, timer: Timer) -> bool {
        self.armed.contains_key(&timer)
    }

    /// The next deadline.
    pub(super) fn next(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the timers that are due. Each is disarmed when its turn has come, and is not armed again before.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Timer> {
        let mut due = Vec::new();
        while let Some((_, timer)) = self.queue.first().filter(|(at, _)| *at <= now) {
            due.push(*timer);
            self.queue.pop_first();
        }
        due.sort_unstable();
        due
    }
}
