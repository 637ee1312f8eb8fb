//! Connections that are no clients yet, and who of them gives way. They are as many as there are free slots, and some more,
//! who ask how the daemon is or are told that it is full. One more takes the place of one of the source that has most of
//! them, there of one that has sent nothing, since who means it sends all of it at once, and of those of the one that has
//! waited longest.
//!
//! Invariant: a connection is counted among its source's while it waits to say something, and not when it is being told
//! something, or was asked to go.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use slab::Slab;

use crate::bus::port::{Moment, Origin, Place, Source};
use crate::http1::LONGEST_HEAD;
use crate::proxy;
use crate::websocket::request;

/// How many wait at once at most beyond the slots that are free.
pub(in crate::shell) const BEYOND: usize = 256;
/// Room for the first bytes of each; there is more once they have filled it.
const FIRST_BYTES: usize = 1024;

/// A connection that has just been accepted.
pub(in crate::shell) struct AcceptedSocket {
    pub socket: OwnedFd,
    /// Index of its acceptor.
    pub acceptor: usize,
    /// Index of its listener in the configuration.
    pub listener: usize,
    /// The other end.
    pub place: Place,
}

/// What has come of a connection before it is a client: perhaps a PROXY header, and what stands behind it.
pub(in crate::shell) struct Received {
    /// With a byte behind what has come, which the newline of a frame may need.
    bytes: Vec<u8>,
    /// So many bytes may come at most.
    longest: usize,
    filled: usize,
    /// So many of them were the PROXY header.
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

    /// Room for what is thrown away.
    pub(super) fn waste(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn took(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// All of it, as far as it may be a PROXY header.
    pub(super) fn possible_header(&self) -> &[u8] {
        &self.bytes[..self.filled.min(proxy::LONGEST)]
    }

    /// What stands behind the header.
    pub(super) fn behind_header(&self) -> &[u8] {
        &self.bytes[self.header..self.filled]
    }

    /// What stands so many bytes behind the header: with a byte more, and how much has come.
    pub(super) fn rest(&mut self, after: usize) -> (&mut [u8], usize) {
        let begin = self.header + after;
        (&mut self.bytes[begin..], self.filled - begin)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }
}

/// A connection that has something to say before it is a client.
pub(in crate::shell) struct PendingHandshake {
    pub accepted: AcceptedSocket,
    /// Who it is, as far as that is known.
    pub origin: Origin,
    pub stage: Stage,
    since: Moment,
    /// What it is counted as.
    counted: Option<Source>,
    /// Why its operation was asked to end.
    pub over: Option<Over>,
    pub received: Received,
}

/// What is awaited.
pub(in crate::shell) enum Stage {
    /// A PROXY header, with which it has to begin.
    Header,
    /// The request of a WebSocket.
    Request(request::Reader),
    /// That it is told something, of which so much is sent.
    Answer { bytes: Box<[u8]>, sent: usize },
    /// That it has read that.
    End,
}

/// Why nobody waits for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shell) enum Over {
    /// It took too long.
    Late,
    /// Another one needs its place.
    Crowded,
    /// Its source has more connections at its listener than it may have.
    Surplus,
    /// The daemon takes no more clients.
    Closed,
}

impl PendingHandshake {
    /// One that begins with this stage; a header of a proxy may come before anything else.
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

    /// Whether nothing more is awaited of it.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.stage, Stage::Answer { .. } | Stage::End)
    }

    /// Whether it is one of this source that says at this listener what it wants.
    pub(super) fn is_request_of(&self, listener: usize, source: Source) -> bool {
        let asks = matches!(self.stage, Stage::Request(_));
        asks && self.accepted.listener == listener && self.origin.source() == source
    }
}

/// See the module documentation.
pub(in crate::shell) struct Handshakes {
    pending: Slab<PendingHandshake>,
    /// How many of each source wait to say something.
    sources: HashMap<Source, usize>,
    /// So many may be there beyond the slots that are free.
    beyond: usize,
}

impl Handshakes {
    /// None yet, and so many at most beyond the slots that are free.
    pub(in crate::shell) fn new(beyond: usize) -> Self {
        Self { pending: Slab::new(), sources: HashMap::new(), beyond }
    }

    /// So many at most from now on, beyond the slots that are free.
    pub(in crate::shell) fn allow(&mut self, beyond: usize) {
        self.beyond = beyond;
    }

    /// Those that nobody has asked to go.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, &PendingHandshake)> {
        self.pending.iter().filter(|(_, handshake)| handshake.over.is_none())
    }

    /// Whether another one fits, however few slots are free.
    pub(in crate::shell) fn has_room(&self) -> bool {
        self.pending.len() < self.beyond
    }

    /// How many are too many, with so many free slots.
    pub(super) fn surplus(&self, free: usize) -> usize {
        let most = free + self.beyond;
        // Those who are asked to go are there until they have.
        if self.pending.len() <= most {
            return 0;
        }
        // An answer that is not sent yet is about to be: cut off, it would not say why.
        let holds = self.waiting().filter(|(_, handshake)| !matches!(handshake.stage, Stage::Answer { .. })).count();
        holds.saturating_sub(most)
    }

    /// Whose place is needed first: those who have been told why they go, and then as it stands at the top of the file.
    pub(super) fn first_to_give_way(&self) -> Option<usize> {
        let told = self.waiting().filter(|(_, handshake)| matches!(handshake.stage, Stage::End));
        told.min_by_key(|(_, handshake)| handshake.since).map(|(slot, _)| slot).or_else(|| {
            let most = self.sources.values().copied().max()?;
            let mut heaviest = self.sources.iter().filter(|(_, count)| **count == most).map(|(source, _)| *source);
            match (heaviest.next(), heaviest.next()) {
                // To look each of them up takes longer.
                (one, None) => self.first_to_go(|handshake| handshake.counted == one),
                _ => self.first_to_go(|handshake| {
                    handshake.counted.is_some_and(|source| self.sources.get(&source) == Some(&most))
                }),
            }
        })
    }

    /// Who goes first of those who are chosen and have not been told anything yet.
    pub(super) fn first_to_go(&self, is_chosen: impl Fn(&PendingHandshake) -> bool) -> Option<usize> {
        let chosen = self.waiting().filter(|(_, handshake)| !handshake.is_told() && is_chosen(handshake));
        let rank = |handshake: &PendingHandshake| (!handshake.received.behind_header().is_empty(), handshake.since);
        chosen.min_by_key(|(_, handshake)| rank(handshake)).map(|(slot, _)| slot)
    }

    /// One more.
    pub(super) fn add(&mut self, handshake: PendingHandshake) -> usize {
        let slot = self.pending.insert(handshake);
        self.count(slot);
        slot
    }

    /// One that is none any more.
    pub(super) fn remove(&mut self, slot: usize) -> PendingHandshake {
        let handshake = self.pending.remove(slot);
        self.discount(handshake.counted);
        handshake
    }

    /// One comes to its next stage.
    pub(super) fn go_on(&mut self, slot: usize, stage: Stage) {
        self.pending[slot].stage = stage;
        self.count(slot);
    }

    /// One is asked to go.
    pub(super) fn end(&mut self, slot: usize, over: Over) {
        self.pending[slot].over = Some(over);
        self.count(slot);
    }

    /// Counts one as what it is now.
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
