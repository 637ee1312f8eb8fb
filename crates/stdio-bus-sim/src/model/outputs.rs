//! What the model knows of what is queued for each peer.

use super::Model;
use crate::bus::port::Moment;
use crate::line::Who;

impl Model {
    /// Bytes have left for a peer.
    pub fn left(&mut self, now: Moment, who: Who, bytes: usize) {
        self.outputs.leave(now, who, bytes, self.settings.limits.max_output_queue);
    }

    pub(super) fn queued(&mut self, now: Moment, who: Who, bytes: usize) {
        self.outputs.queue(now, who, bytes, self.settings.limits.max_output_queue);
    }

    /// Whether more is queued for this peer than it may be.
    pub fn is_full(&self, who: Who) -> bool {
        self.outputs.is_full(who)
    }

    /// Whether so much is queued for this peer that a worker may wait for it which waits for slow readers no more.
    pub(super) fn is_too_long(&self, who: Who) -> bool {
        self.outputs.queued(who) > 4 * self.settings.limits.max_output_queue
    }

    /// Whether anybody's output is full, so that somebody may be paused.
    pub fn somebody_is_full(&self) -> bool {
        self.outputs.full().any(|(who, _)| self.is_there(who) || self.is_leaving(who))
    }

    /// Whether it is a client that may still be refused what it sends.
    fn is_leaving(&self, who: Who) -> bool {
        matches!(who, Who::Client(client) if !self.clients[client].gone)
    }

    pub(super) fn is_there(&self, who: Who) -> bool {
        match who {
            Who::Client(client) => !self.clients[client].closed,
            Who::Worker(worker) => self.workers[worker].takes,
        }
    }

    /// No peer may be stuck for longer than the timeout.
    pub fn check_stalls(&self, now: Moment) {
        let timeout = self.settings.limits.backpressure_timeout;
        for (who, moved_at) in self.outputs.full() {
            let stuck = self.is_there(who) && now.since(moved_at) >= timeout;
            assert!(!stuck, "{who:?} has taken nothing since {moved_at:?}");
        }
    }
}
