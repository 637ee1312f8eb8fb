//! The model's queues of output for each peer.

use super::Model;
use crate::bus::port::Moment;
use crate::line::Party;

impl Model {
    /// Bytes have left for a peer.
    pub fn left(&mut self, now: Moment, party: Party, bytes: usize) {
        self.outputs.leave(now, party, bytes, self.settings.limits.max_output_queue);
    }

    pub(super) fn queued(&mut self, now: Moment, party: Party, bytes: usize) {
        self.outputs.queue(now, party, bytes, self.settings.limits.max_output_queue);
    }

    /// Whether the output queue of this peer exceeds its limit.
    pub fn is_full(&self, party: Party) -> bool {
        self.outputs.is_full(party)
    }

    /// Whether so much is queued for this peer that a worker may wait for it beyond its time for slow readers.
    pub(super) fn is_too_long(&self, party: Party) -> bool {
        self.outputs.queued(party) > 4 * self.settings.limits.max_output_queue
    }

    /// Whether any output queue is full, so that a peer may be paused.
    pub fn is_any_full(&self) -> bool {
        self.outputs.full().any(|(party, _)| self.is_there(party) || self.is_leaving(party))
    }

    /// Whether it is a client that may still get errors for what it sends.
    fn is_leaving(&self, party: Party) -> bool {
        matches!(party, Party::Client(client) if !self.clients[client].gone)
    }

    pub(super) fn is_there(&self, party: Party) -> bool {
        match party {
            Party::Client(client) => !self.clients[client].closed,
            Party::Worker(worker) => self.workers[worker].takes,
        }
    }

    /// No peer may be stuck for longer than the timeout.
    pub fn check_stalls(&self, now: Moment) {
        let timeout = self.settings.limits.backpressure_timeout;
        for (party, moved_at) in self.outputs.full() {
            let stuck = self.is_there(party) && now.since(moved_at) >= timeout;
            assert!(!stuck, "{party:?} has taken nothing since {moved_at:?}");
        }
    }
}
