//! The table of handshakes, and which of them is evicted. There may be as many as there are free client slots, and some
//! more, which ask for health or are told that the daemon is full. A new one replaces one of the source with most of
//! them: preferably one that has sent nothing, since real clients send their request at once, and of those the oldest.
//!
//! Invariant: a connection is counted for its source while its handshake is incomplete, but not while it is sent a
//! final answer, or was cancelled.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use slab::Slab;

use crate::bus::port::{Moment, Origin, Place, Source};
use crate::http1::LONGEST_HEAD;
use crate::proxy;
use crate::websocket::request;

/// Maximum number of handshakes beyond the free slots.
pub(in crate::shell) const BEYOND: usize = 256;
/// Capacity for the first bytes of each; it grows when they fill it.
const FIRST_BYTES: usize = 1024;

/// A connection that has just been accepted.
pub(in crate::shell) struct AcceptedSocket {
    pub socket: OwnedFd,
    /// Index of its acceptor.
    pub acceptor: usize,
    /// Index of its listener in the configuration.
    pub listener: usize,
    /// The peer's address.
    pub place: Place,
}

/// The bytes received on a connection before it is a client: an optional PROXY header, and what follows it.
pub(in crate::shell) struct Received {
    /// With a spare byte after the received ones, for the newline of a frame.
    bytes: Vec<u8>,
    /// Maximum number of bytes.
    longest: usize,
    filled: usize,
    /// Length of the PROXY header.
    pub header: usize,
}

impl Received {
    fn new(longest: usize) -> Self {
        Self { bytes: vec![0; longest.min(FIRST_BYTES) + 1], longest, filled: 0, header: 0 }
    }

    /// Room for more.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let mut last = self.bytes.len() - 1;
        if self.filled == last {
            last = self.longest.min(2 * last);
            self.bytes.resize(last + 1, 0);
        }
        let room = &mut self.bytes[self.filled..last];
        debug_assert!(!room.is_empty(), "as many bytes are what is awaited or not");
        room
    }

    /// Room for discarded bytes.
    pub(super) fn waste(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn took(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// The bytes that may be a PROXY header.
    pub(super) fn possible_header(&self) -> &[u8] {
        &self.bytes[..self.filled.min(proxy::LONGEST)]
    }

    /// The bytes after the header.
    pub(super) fn behind_header(&self) -> &[u8] {
        &self.bytes[self.header..self.filled]
    }

    /// The bytes from `after` the header on: with a spare byte, and how many were received.
    pub(super) fn rest(&mut self, after: usize) -> (&mut [u8], usize) {
        let begin = self.header + after;
        (&mut self.bytes[begin..], self.filled - begin)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }
}

/// A connection with an incomplete handshake.
pub(in crate::shell) struct PendingHandshake {
    pub accepted: AcceptedSocket,
    /// Its origin, as far as known.
    pub origin: Origin,
    pub stage: Stage,
    since: Moment,
    /// The source that it is counted for.
    counted: Option<Source>,
    /// Why its operation was cancelled.
    pub over: Option<Over>,
    pub received: Received,
}

/// The stage of a handshake.
pub(in crate::shell) enum Stage {
    /// Waits for a PROXY header, which has to come first.
    Header,
    /// Waits for the request of a WebSocket.
    Request(request::Reader),
    /// Sends a final answer; `sent` bytes are sent.
    Answer { bytes: Box<[u8]>, sent: usize },
    /// Waits until that was read.
    End,
}

/// Why a handshake was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shell) enum Over {
    /// It timed out.
    Late,
    /// Its place is needed.
    Crowded,
    /// Its source has too many connections at its listener.
    Surplus,
    /// The daemon admits no more clients.
    Closed,
}

impl PendingHandshake {
    /// A handshake that starts with this stage; a PROXY header may precede everything else.
    pub(super) fn new(now: Moment, accepted: AcceptedSocket, stage: Stage, speaks_web: bool) -> Self {
        let of_header = if matches!(stage, Stage::Header) { proxy::LONGEST } else { 0 };
        let of_request = if speaks_web { LONGEST_HEAD } else { 0 };
        Self {
            origin: accepted.place.into(),
            accepted,
            stage,
            since: now,
            counted: None,
            over: None,
            received: Received::new(of_header + of_request),
        }
    }

    /// Whether it has its final answer.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.stage, Stage::Answer { .. } | Stage::End)
    }

    /// Whether it is an incomplete handshake of this source at this listener.
    pub(super) fn is_request_of(&self, listener: usize, source: Source) -> bool {
        let asks = matches!(self.stage, Stage::Request(_));
        asks && self.accepted.listener == listener && self.origin.source() == source
    }
}

/// See the module documentation.
pub(in crate::shell) struct Handshakes {
    pending: Slab<PendingHandshake>,
    /// Incomplete handshakes of each source.
    sources: HashMap<Source, usize>,
    /// Maximum number beyond the free slots.
    beyond: usize,
}

impl Handshakes {
    /// Empty, with a maximum number beyond the free slots.
    pub(in crate::shell) fn new(beyond: usize) -> Self {
        Self { pending: Slab::new(), sources: HashMap::new(), beyond }
    }

    /// Sets the maximum number beyond the free slots.
    pub(in crate::shell) fn allow(&mut self, beyond: usize) {
        self.beyond = beyond;
    }

    /// Those that were not cancelled.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, &PendingHandshake)> {
        self.pending.iter().filter(|(_, handshake)| handshake.over.is_none())
    }

    /// Whether another one fits without any free slot.
    pub(in crate::shell) fn has_room(&self) -> bool {
        self.pending.len() < self.beyond
    }

    /// How many exceed the limit, with this many free slots.
    pub(super) fn surplus(&self, free: usize) -> usize {
        let most = free + self.beyond;
        // Cancelled ones count until they are removed.
        if self.pending.len() <= most {
            return 0;
        }
        // A final answer is about to be sent: cut off, it would not explain anything.
        let holds = self.waiting().filter(|(_, handshake)| !matches!(handshake.stage, Stage::Answer { .. })).count();
        holds.saturating_sub(most)
    }

    /// The first one to evict: one with its final answer, then in the order described above.
    pub(super) fn first_to_give_way(&self) -> Option<usize> {
        let told = self.waiting().filter(|(_, handshake)| matches!(handshake.stage, Stage::End));
        told.min_by_key(|(_, handshake)| handshake.since).map(|(slot, _)| slot).or_else(|| {
            let most = self.sources.values().copied().max()?;
            let mut heaviest = self.sources.iter().filter(|(_, count)| **count == most).map(|(source, _)| *source);
            match (heaviest.next(), heaviest.next()) {
                // Looking up each of them would take longer.
                (one, None) => self.first_to_go(|handshake| handshake.counted == one),
                _ => self.first_to_go(|handshake| {
                    handshake.counted.is_some_and(|source| self.sources.get(&source) == Some(&most))
                }),
            }
        })
    }

    /// The first one to evict among those that match and have no final answer.
    pub(super) fn first_to_go(&self, is_chosen: impl Fn(&PendingHandshake) -> bool) -> Option<usize> {
        let chosen = self.waiting().filter(|(_, handshake)| !handshake.is_told() && is_chosen(handshake));
        let rank = |handshake: &PendingHandshake| (!handshake.received.behind_header().is_empty(), handshake.since);
        chosen.min_by_key(|(_, handshake)| rank(handshake)).map(|(slot, _)| slot)
    }

    /// Adds a handshake.
    pub(super) fn add(&mut self, handshake: PendingHandshake) -> usize {
        let slot = self.pending.insert(handshake);
        self.count(slot);
        slot
    }

    /// Removes a handshake.
    pub(super) fn remove(&mut self, slot: usize) -> PendingHandshake {
        let handshake = self.pending.remove(slot);
        self.discount(handshake.counted);
        handshake
    }

    /// Moves a handshake to its next stage.
    pub(super) fn go_on(&mut self, slot: usize, stage: Stage) {
        self.pending[slot].stage = stage;
        self.count(slot);
    }

    /// Marks a handshake as cancelled.
    pub(super) fn end(&mut self, slot: usize, over: Over) {
        self.pending[slot].over = Some(over);
        self.count(slot);
    }

    /// Updates the count of its source.
    fn count(&mut self, slot: usize) {
        let handshake = &mut self.pending[slot];
        let is = (handshake.over.is_none() && !handshake.is_told()).then(|| handshake.origin.source());
        let was = std::mem::replace(&mut handshake.counted, is);
        if was == is {
            return;
        }
        if let Some(source) = is {
            *self.sources.entry(source).or_default() += 1;
        }
        self.discount(was);
    }

    fn discount(&mut self, source: Option<Source>) {
        let Some(Entry::Occupied(mut count)) = source.map(|source| self.sources.entry(source)) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl Deref for Handshakes {
    type Target = Slab<PendingHandshake>;

    fn deref(&self) -> &Self::Target {
        &self.pending
    }
}

impl DerefMut for Handshakes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.pending
    }
}
