//! What the model knows of what is queued for each peer.

use super::Model;
use crate::bus::port::Moment;
use crate::line::Who;

impl Model {
    /// Bytes have left for a peer.
    pub fn left(&mut self, now: Moment, who: Who, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let output = self.outputs.entry(who).or_default();
        output.queued -= bytes;
        output.left += bytes as u64;
        output.moved_at = now;
        if output.queued < limit / 2 {
            output.full = false;
        }
    }

    pub(super) fn queued(&mut self, now: Moment, who: Who, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let output = self.outputs.entry(who).or_default();
        output.queued += bytes;
        if output.queued > limit && !output.full {
            output.full = true;
            output.moved_at = now;
        }
    }

    /// Whether more is queued for this peer than it may be.
    pub fn is_full(&self, who: Who) -> bool {
        self.outputs.get(&who).is_some_and(|output| output.full)
    }

    /// Whether so much is queued for this peer that a worker may wait for it which waits for slow readers no more.
    pub(super) fn is_too_long(&self, who: Who) -> bool {
        self.outputs.get(&who).is_some_and(|output| output.queued > 4 * self.settings.limits.max_output_queue)
    }

    /// Whether anybody's output is full, so that somebody may be paused.
    pub fn somebody_is_full(&self) -> bool {
        self.outputs.iter().any(|(who, output)| output.full && (self.is_there(*who) || self.is_leaving(*who)))
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
        for (who, output) in &self.outputs {
            let stuck = output.full && self.is_there(*who) && now.since(output.moved_at) >= timeout;
            assert!(!stuck, "{who:?} has taken nothing since {:?}", output.moved_at);
        }
    }
}
