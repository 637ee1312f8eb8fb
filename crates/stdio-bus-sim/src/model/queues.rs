//! What is queued for each peer, and what has left for it.

use std::collections::{BTreeMap, BTreeSet};

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

    /// Bytes have left for a peer, of which `limit` may be queued.
    pub(super) fn leave(&mut self, now: Moment, who: Who, bytes: usize, limit: usize) {
        let output = self.of.entry(who).or_default();
        output.queued -= bytes;
        output.left += bytes as u64;
        output.moved_at = now;
        if output.queued < limit / 2 {
            output.full = false;
        }
    }

    /// Bytes are queued for a peer, of which `limit` may be.
    pub(super) fn queue(&mut self, now: Moment, who: Who, bytes: usize, limit: usize) {
        let output = self.of.entry(who).or_default();
        output.queued += bytes;
        if output.queued > limit && !output.full {
            output.full = true;
            output.moved_at = now;
        }
    }

    /// Whether more is queued for this peer than it may be.
    pub(super) fn is_full(&self, who: Who) -> bool {
        self.of.get(&who).is_some_and(|output| output.full)
    }

    /// The peers for which more is queued than may be, and since when nothing has left for them.
    pub(super) fn full(&self) -> impl Iterator<Item = (Who, Moment)> {
        self.of.iter().filter(|(_, output)| output.full).map(|(who, output)| (*who, output.moved_at))
    }
}
