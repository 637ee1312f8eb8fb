//! The output queued for each peer, and what was sent of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::bus::port::Moment;
use crate::line::Party;

/// The output queue of a peer.
#[derive(Default)]
struct Output {
    queued: usize,
    full: bool,
    moved_at: Moment,
    /// Number of bytes sent.
    left: u64,
}

/// All output queues.
#[derive(Default)]
pub(super) struct Outputs {
    of: BTreeMap<Party, Output>,
    /// Bytes that were queued for peers when they were closed.
    unsent: u64,
    /// The last line from one peer to another, to check that order is kept.
    last_line: BTreeMap<(Party, Party), usize>,
    /// The number of bytes sent to a client once it has the newest line about a list, of each kind.
    lists_notified: BTreeMap<(usize, usize), u64>,
    /// The current broadcast, and its remaining recipients.
    for_all: Option<(usize, BTreeSet<usize>)>,
}

impl Outputs {
    /// A peer is closed.
    pub(super) fn close(&mut self, party: Party) {
        self.unsent += self.of.remove(&party).unwrap_or_default().queued as u64;
    }

    /// Bytes that were queued for peers when they were closed.
    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Bytes that are queued for a peer.
    pub(super) fn queued(&self, party: Party) -> usize {
        self.of.get(&party).map_or(0, |output| output.queued)
    }

    /// The peers with queued output.
    pub(super) fn waiting(&self) -> Vec<Party> {
        self.of.iter().filter(|(_, output)| output.queued > 0).map(|(party, _)| *party).collect()
    }

    /// Line `number` is sent from one peer to another.
    pub(super) fn pass(&mut self, from: Party, to: Party, number: usize) {
        let last = self.last_line.insert((from, to), number);
        assert!(last.is_none_or(|last| last < number), "line {number} came to {to:?} after {last:?}");
    }

    /// Whether line `number` is the current broadcast.
    pub(super) fn is_for_all(&self, number: usize) -> bool {
        self.for_all.as_ref().is_some_and(|(of, _)| *of == number)
    }

    /// Line `number` notifies all these clients that a list has changed, except those that have not read the previous one.
    pub(super) fn begin_for_all(&mut self, number: usize, list: usize, clients: impl IntoIterator<Item = usize>) {
        let left = |client: usize| self.of.get(&Party::Client(client)).map_or(0, |output| output.left);
        let is_due = |client: &usize| {
            self.lists_notified.get(&(*client, list)).is_none_or(|notified| *notified <= left(*client))
        };
        self.for_all = Some((number, clients.into_iter().filter(is_due).collect()));
    }

    /// A client is notified that a list has changed, in this many bytes.
    pub(super) fn notify_list(&mut self, client: usize, list: usize, number: usize, bytes: usize) {
        let Some((_, due)) = &mut self.for_all else { return };
        assert!(due.remove(&client), "line {number} came to client {client}, which was notified before");
        let output = self.of.get(&Party::Client(client));
        let behind = output.map_or(0, |output| output.left + output.queued as u64) + bytes as u64;
        self.lists_notified.insert((client, list), behind);
    }

    /// All clients have got the broadcast.
    pub(super) fn end_for_all(&mut self) {
        if let Some((number, left)) = self.for_all.take() {
            assert!(left.is_empty(), "line {number} is a broadcast, and {left:?} did not get it");
        }
    }

    /// Bytes were sent to a peer whose queue has this limit.
    pub(super) fn leave(&mut self, now: Moment, party: Party, bytes: usize, limit: usize) {
        let output = self.of.entry(party).or_default();
        output.queued -= bytes;
        output.left += bytes as u64;
        output.moved_at = now;
        if output.queued < limit / 2 {
            output.full = false;
        }
    }

    /// Bytes are queued for a peer whose queue has this limit.
    pub(super) fn queue(&mut self, now: Moment, party: Party, bytes: usize, limit: usize) {
        let output = self.of.entry(party).or_default();
        output.queued += bytes;
        if output.queued > limit && !output.full {
            output.full = true;
            output.moved_at = now;
        }
    }

    /// Whether the output queue of this peer exceeds its limit.
    pub(super) fn is_full(&self, party: Party) -> bool {
        self.of.get(&party).is_some_and(|output| output.full)
    }

    /// The peers whose output queue exceeds its limit, and since when nothing was sent to them.
    pub(super) fn full(&self) -> impl Iterator<Item = (Party, Moment)> {
        self.of.iter().filter(|(_, output)| output.full).map(|(party, output)| (*party, output.moved_at))
    }
}
