//! The door for MCP over Streamable HTTP: connections, which come and go, and behind them clients of the core, each a
//! session, or the requests of one connection that stand for themselves (2026-07-28).
//!
//! A connection is no client: it takes none of the core's slots. What it brings is read here up to whole messages, which
//! are given to the core as lines of their client; what the core has for a client goes to the connection whose request
//! it belongs to (`mcp/session.rs`).
//!
//! Reading order: `connection.rs`, `members.rs` (the clients), `serve.rs` (moves bytes), `requests.rs` (what is done with
//! a request), `clients.rs` (sessions begin and end), `deliver.rs` (what the core has for them).

mod clients;
mod connection;
mod deliver;
mod members;
mod requests;
mod serve;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use slab::Slab;

use super::listeners::Throttle;
use crate::bus::port::{Peer, Source};
use crate::config::Config;
use crate::mcp::Session;
use crate::mcp::message::LineReader;
use connection::{Connection, State};
pub(super) use members::Members;

/// Connections at once. The one that has been idle longest makes room for another one.
pub(super) const MOST_CONNECTIONS: usize = 2048;

/// How long a session may be used by nobody, if nothing is set.
const SESSION_IDLE: Duration = Duration::from_secs(1800);

/// So much is received at once from a connection that was just accepted: most requests are shorter.
const FIRST: usize = 4096;

/// See the module documentation.
pub(super) struct Http {
    connections: Slab<Connection>,
    pub members: Members,
    /// Connections that have something to send.
    dirty: Vec<usize>,
    /// Connections whose receive found no buffer.
    starved: Vec<usize>,
    /// Connections whose request waits until it is known what workers speak.
    parked: Vec<usize>,
    /// That is known of one pool more.
    pub has_discovered: bool,
    lines: LineReader,
    /// Where a line of the core is read, with room around it.
    padded: Vec<u8>,
    /// Where a connection that was just accepted is received from.
    first: Box<[u8]>,
    /// So many connections at most.
    most: usize,
    memory: Memory,
    count: u64,
    /// How long a session may be used by nobody.
    session_idle: Duration,
    throttle: Throttle,
}

/// What the door has in memory, in bytes.
struct Memory {
    /// Bodies and messages that wait.
    held: usize,
    /// Events that sessions keep, and what waits to be sent.
    kept: usize,
    /// So much may be held, and kept of events of all sessions.
    most: usize,
}

impl Memory {
    /// Whether so much more may be held.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.held + bytes <= self.most
    }

    /// What is kept of something is so much now, and was so much before.
    fn keep(&mut self, before: usize, now: usize) {
        self.kept = self.kept - before + now;
    }
}

impl Http {
    /// Nobody yet; so many connections at most.
    pub(super) fn new(most: usize, config: &Config) -> Self {
        Self {
            connections: Slab::new(),
            members: Members::default(),
            dirty: Vec::new(),
            starved: Vec::new(),
            parked: Vec::new(),
            has_discovered: false,
            lines: LineReader::default(),
            padded: Vec::new(),
            first: Box::default(),
            most,
            memory: Memory { held: 0, kept: 0, most: config.limits.max_memory / 4 },
            count: 0,
            session_idle: config.limits.session_idle.unwrap_or(SESSION_IDLE),
            throttle: Throttle::default(),
        }
    }

    /// So many connections at most from now on.
    pub(super) fn allow(&mut self, most: usize) {
        self.most = most;
    }

    /// The limits are those of this configuration.
    pub(super) fn configure(&mut self, config: &Config) {
        self.memory.most = config.limits.max_memory / 4;
        self.session_idle = config.limits.session_idle.unwrap_or(SESSION_IDLE);
    }

    /// The socket of a connection.
    pub(super) fn socket(&self, slot: usize) -> RawFd {
        self.connections[slot].socket.as_raw_fd()
    }

    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether another connection fits.
    pub(super) fn has_room(&self) -> bool {
        self.connections.len() < self.most
    }

    /// Whose place is needed first: of those that nobody waits for the one that is idle longest; then, of the source that
    /// has most of them, one whose request is not there yet.
    fn first_to_go(&self) -> Option<usize> {
        let idle = self.connections.iter().filter(|(_, connection)| connection.is_idle());
        let idle = idle.min_by_key(|(_, connection)| connection.since).map(|(slot, _)| slot);
        idle.or_else(|| {
            let mut counts: HashMap<Source, usize> = HashMap::new();
            for (_, connection) in &self.connections {
                *counts.entry(connection.origin.source()).or_default() += 1;
            }
            let reading = self.connections.iter().filter(|(_, connection)| connection.state == State::Reading);
            let rank = |connection: &Connection| (counts[&connection.origin.source()], Reverse(connection.since));
            reading.max_by_key(|(_, connection)| rank(connection)).map(|(slot, _)| slot)
        })
    }

    /// Whether something can be done at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.members.resumed.is_empty() || self.has_discovered || !self.dirty.is_empty()
    }

    /// Whether a turn has something to do here beside what has completed.
    pub(super) fn has_work(&self) -> bool {
        let members = &self.members;
        !members.resumed.is_empty() || !members.answered.is_empty() || self.has_discovered || !self.starved.is_empty()
    }

    /// Bytes of memory that wait here for workers and for clients.
    pub(super) fn held(&self) -> usize {
        self.memory.held + self.memory.kept
    }

    /// What waits to be sent on a connection is more or less now.
    fn weigh(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        let weight = connection.outgoing.weight();
        self.memory.keep(std::mem::replace(&mut connection.weighed, weight), weight);
    }

    /// Panics if what is held and kept is not what there is.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let bodies = self.connections.iter().map(|(_, connection)| connection.incoming.weight());
        let waiting = self.members.iter().map(|(_, member)| member.waiting());
        assert_eq!(self.memory.held, bodies.chain(waiting).sum::<usize>(), "what is held is counted");
        let events = self.members.iter().map(|(_, member)| member.kept());
        let outputs = self.connections.iter().map(|(_, connection)| connection.weighed);
        assert_eq!(self.memory.kept, events.chain(outputs).sum::<usize>(), "what is kept is counted");
    }

    /// Whether nobody is there: no connection, no session, and nothing that waits.
    #[cfg(test)]
    pub(super) fn is_deserted(&self) -> bool {
        self.connections.is_empty() && self.members.iter().next().is_none() && self.held() == 0
    }

    /// Which client holds how much of that, and of what is kept or waits to be sent.
    pub(super) fn holders(&self) -> impl Iterator<Item = (Peer, usize)> {
        self.members.iter().map(|(_, member)| {
            let connections = member.connections().into_iter().filter_map(|slot| self.connections.get(slot));
            let of_member = connections.filter(|connection| connection.member == Some(member.client));
            let outputs: usize = of_member.map(|connection| connection.outgoing.weight()).sum();
            (Peer::Client(member.client), outputs + member.kept() + member.waiting())
        })
    }

    /// The session whose request a connection has brought, if it is one.
    fn session_of(&mut self, slot: usize) -> Option<&mut Session> {
        self.members.of_mut(self.connections[slot].member?)?.session()
    }

    /// An output has something to send.
    fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.connections[slot].is_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Takes out the next one of those that are still there.
    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        while let Some(slot) = self.dirty.pop() {
            if let Some(connection) = self.connections.get_mut(slot).filter(|connection| connection.is_dirty) {
                connection.is_dirty = false;
                return Some(slot);
            }
        }
        None
    }
}
