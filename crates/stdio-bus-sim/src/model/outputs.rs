//! What the model knows of what is queued for each peer, and what has left for it.

use std::collections::{BTreeMap, BTreeSet};

use super::Model;
use crate::bus::port::Moment;
use crate::line::Who;

/// What is queued for a peer.
#[derive(Default)]
struct Output {
    queued: usize,
    full: bool,
    moved_at: Moment,
    /// Bytes that have left.
    left: u64,
}

/// What is queued for all of them.
#[derive(Default)]
pub(super) struct Outputs {
    of: BTreeMap<Who, Output>,
    /// Bytes that were queued for peers when they were closed.
    unsent: u64,
    /// Lines that went from one peer to another, to see that order is kept.
    last_line: BTreeMap<(Who, Who), usize>,
    /// How many bytes will have left for a client when it has the newest line about a list, of each kind.
    lists_told: BTreeMap<(usize, usize), u64>,
    /// A line that is for everybody, and who has still to get it.
    for_all: Option<(usize, BTreeSet<usize>)>,
}

impl Outputs {
    /// A peer is closed.
    pub(super) fn close(&mut self, who: Who) {
        self.unsent += self.of.remove(&who).unwrap_or_default().queued as u64;
    }

    /// Bytes that were queued for peers when they were closed.
    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Bytes that are queued for a peer.
    pub(super) fn queued(&self, who: Who) -> usize {
        self.of.get(&who).map_or(0, |output| output.queued)
    }

    /// For whom anything is queued.
    pub(super) fn waiting(&self) -> Vec<Who> {
        self.of.iter().filter(|(_, output)| output.queued > 0).map(|(who, _)| *who).collect()
    }

    /// Line `number` goes from one peer to another.
    pub(super) fn pass(&mut self, from: Who, to: Who, number: usize) {
        let last = self.last_line.insert((from, to), number);
        assert!(last.is_none_or(|last| last < number), "line {number} came to {to:?} after {last:?}");
    }

    /// Whether line `number` is the one that is for everybody.
    pub(super) fn is_for_all(&self, number: usize) -> bool {
        self.for_all.as_ref().is_some_and(|(of, _)| *of == number)
    }

    /// Line `number` tells all of these that a list has changed, but for those who have not read the one before it.
    pub(super) fn begin_for_all(&mut self, number: usize, list: usize, clients: impl IntoIterator<Item = usize>) {
        let left = |client: usize| self.of.get(&Who::Client(client)).map_or(0, |output| output.left);
        let is_due = |client: &usize| self.lists_told.get(&(*client, list)).is_none_or(|told| *told <= left(*client));
        self.for_all = Some((number, clients.into_iter().filter(is_due).collect()));
    }

    /// A client is told that a list has changed, by so many bytes.
    pub(super) fn tell_list(&mut self, client: usize, list: usize, number: usize, bytes: usize) {
        let Some((_, due)) = &mut self.for_all else { return };
        assert!(due.remove(&client), "line {number} came to client {client}, which was told before");
        let output = self.of.get(&Who::Client(client));
        let behind = output.map_or(0, |output| output.left + output.queued as u64) + bytes as u64;
        self.lists_told.insert((client, list), behind);
    }

    /// Everybody has got the line that is for everybody.
    pub(super) fn end_for_all(&mut self) {
        if let Some((number, left)) = self.for_all.take() {
            assert!(left.is_empty(), "line {number} is for everybody, and {left:?} did not get it");
        }
    }
}

impl Model {
    /// Bytes have left for a peer.
    pub fn left(&mut self, now: Moment, who: Who, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let output = self.outputs.of.entry(who).or_default();
        output.queued -= bytes;
        output.left += bytes as u64;
        output.moved_at = now;
        if output.queued < limit / 2 {
            output.full = false;
        }
    }

    pub(super) fn queued(&mut self, now: Moment, who: Who, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let output = self.outputs.of.entry(who).or_default();
        output.queued += bytes;
        if output.queued > limit && !output.full {
            output.full = true;
            output.moved_at = now;
        }
    }

    /// Whether more is queued for this peer than it may be.
    pub fn is_full(&self, who: Who) -> bool {
        self.outputs.of.get(&who).is_some_and(|output| output.full)
    }

    /// Whether so much is queued for this peer that a worker may wait for it which waits for slow readers no more.
    pub(super) fn is_too_long(&self, who: Who) -> bool {
        self.outputs.get(&who).is_some_and(|output| output.queued > 4 * self.settings.limits.max_output_queue)
    }

    /// Whether anybody's output is full, so that somebody may be paused.
    pub fn somebody_is_full(&self) -> bool {
        self.outputs.of.iter().any(|(who, output)| output.full && (self.is_there(*who) || self.is_leaving(*who)))
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
        for (who, output) in &self.outputs.of {
            let stuck = output.full && self.is_there(*who) && now.since(output.moved_at) >= timeout;
            assert!(!stuck, "{who:?} has taken nothing since {:?}", output.moved_at);
        }
    }
}
