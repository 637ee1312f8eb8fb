//! How many connections that speak HTTP there are of each purpose, how many there may be. Which of them goes when
//! there is no room for another one is up to `eviction.rs`.

use super::http::exchange::{Exchange, Purpose};

/// Maximum number of connections for MCP that have sent a request, answered or not.
pub(super) const MOST_CONNECTIONS: usize = 2048;
/// How many more there may be whose first request is read: some ask for health, or are told that there is no room.
pub(super) const MOST_HEARD: usize = 64;
/// The same for operators.
pub(super) const MOST_OPERATORS: usize = 64;
/// Maximum number of handshakes beyond the free slots of clients: some ask for health, or are told that the daemon is
/// full.
pub(super) const MOST_HANDSHAKES: usize = 256;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Crowd {
    /// The number of connections of each purpose, and its maximum.
    counts: [usize; 3],
    most: [usize; 3],
    /// How many of those for MCP have a place.
    pub placed: usize,
    /// How many there have been: a connection's number distinguishes it from others in its slot.
    count: u64,
}

impl Crowd {
    /// None yet, with a maximum number of connections for MCP, and of handshakes beyond the free slots of clients.
    pub(super) fn new(mcp: usize, handshakes: usize) -> Self {
        Self { most: [mcp, MOST_OPERATORS, handshakes], ..Self::default() }
    }

    /// Sets the maximum numbers of connections.
    pub(super) fn allow(&mut self, mcp: usize, handshakes: usize) {
        self.most = [mcp, MOST_OPERATORS, handshakes];
    }

    /// A connection of this purpose comes. Returns its number.
    pub(super) fn comes(&mut self, purpose: Purpose) -> u64 {
        self.counts[purpose as usize] += 1;
        self.count += 1;
        self.count
    }

    /// A connection is removed, or becomes a client.
    pub(super) fn leaves(&mut self, connection: &mut Exchange) {
        self.placed -= usize::from(std::mem::take(&mut connection.has_place));
        self.counts[connection.purpose as usize] -= 1;
    }

    /// A handshake turns out to be a connection for MCP.
    pub(super) fn becomes_mcp(&mut self) {
        self.counts[Purpose::Handshake as usize] -= 1;
        self.counts[Purpose::Mcp as usize] += 1;
    }

    /// The maximum of this purpose.
    pub(super) fn most(&self, purpose: Purpose) -> usize {
        self.most[purpose as usize]
    }

    /// The number of connections of this purpose.
    pub(super) fn count(&self, purpose: Purpose) -> usize {
        self.counts[purpose as usize]
    }

    /// The number of places for connections for MCP: some more are read until it is known what they ask for.
    pub(super) fn places(&self) -> usize {
        match self.most[Purpose::Mcp as usize] {
            0 => usize::MAX,
            most => most - MOST_HEARD.min(most / 8),
        }
    }

    /// Whether all of them are taken.
    pub(super) fn has_no_place(&self) -> bool {
        self.placed >= self.places()
    }

    /// Whether another connection of this purpose fits, or no listener has any; of handshakes, without any free slot of
    /// clients.
    pub(super) fn has_room(&self, purpose: Purpose) -> bool {
        let most = self.most[purpose as usize];
        most == 0 || self.count(purpose) < most
    }
}
