//! The MCP listener (Streamable HTTP): connections, which come and go, and clients of the core behind them, each a
//! session, or the self-contained requests of one connection (2026-07-28).
//!
//! A connection is not a client: it uses none of the core's slots. Its messages are read completely here, and passed to
//! the core as lines of their client; the core's output for a client goes to the connection whose request it belongs to
//! (`mcp/session.rs`). Admin connections are read and written here, too, and answered by `admin`.
//!
//! Reading order: `connection.rs`, `members.rs` (the clients), `serve.rs` (moves bytes), `requests.rs` (handles
//! requests), `clients.rs` (sessions start and end), `deliver.rs` (the core's output).

mod clients;
pub(super) mod connection;
mod deliver;
mod members;
mod requests;
mod serve;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use slab::Slab;

use super::listeners::Throttle;
use crate::bus::port::{Moment, Origin, Peer, Source};
use crate::config::Config;
use crate::http1::Limits;
use crate::mcp::Session;
use crate::mcp::message::LineReader;
use connection::{Connection, State};
pub(super) use members::Members;

/// Maximum number of connections. The longest idle one makes room for a new one.
pub(super) const MOST_CONNECTIONS: usize = 2048;

/// Default idle timeout of a session.
const SESSION_IDLE: Duration = Duration::from_secs(1800);

/// Size of the first receive on a new connection: most requests are shorter.
const FIRST: usize = 4096;

/// See the module documentation.
pub(super) struct Http {
    pub connections: Slab<Connection>,
    pub members: Members,
    /// Connections that have something to send.
    dirty: Vec<usize>,
    /// Connections whose receive found no buffer.
    starved: Vec<usize>,
    /// Connections whose request waits until the workers' era is known.
    parked: Vec<usize>,
    /// The era of another pool has become known.
    pub has_discovered: bool,
    lines: LineReader,
    /// A line from the core, with padding for the scanner.
    padded: Vec<u8>,
    /// The buffer for the first receive on new connections.
    first: Box<[u8]>,
    /// Maximum number of connections without admin connections, and the number of those.
    most: usize,
    pub operators: usize,
    memory: Memory,
    count: u64,
    /// The idle timeout of sessions.
    session_idle: Duration,
    throttle: Throttle,
}

/// Memory used for MCP, in bytes.
struct Memory {
    /// Bodies and queued messages.
    held: usize,
    /// Events kept by sessions, and queued output.
    kept: usize,
    /// Limit of what may be held, and of all sessions' kept events.
    most: usize,
}

impl Memory {
    /// Whether this many more bytes may be held.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.held + bytes <= self.most
    }

    /// Updates what is kept from `before` to `now`.
    fn keep(&mut self, before: usize, now: usize) {
        self.kept = self.kept - before + now;
    }
}

impl Http {
    /// Empty, with a maximum number of connections.
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
            operators: 0,
            memory: Memory { held: 0, kept: 0, most: config.limits.max_memory / 4 },
            count: 0,
            session_idle: config.limits.session_idle.unwrap_or(SESSION_IDLE),
            throttle: Throttle::default(),
        }
    }

    /// Sets the maximum number of connections.
    pub(super) fn allow(&mut self, most: usize) {
        self.most = most;
    }

    /// Applies the limits of this configuration.
    pub(super) fn configure(&mut self, config: &Config) {
        self.memory.most = config.limits.max_memory / 4;
        self.session_idle = config.limits.session_idle.unwrap_or(SESSION_IDLE);
    }

    /// The socket of a connection.
    pub(super) fn socket(&self, slot: usize) -> RawFd {
        self.connections[slot].socket.as_raw_fd()
    }

    /// Whether everything is closed.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether another connection fits.
    pub(super) fn has_room(&self) -> bool {
        self.connections.len() - self.operators < self.most
    }

    /// Adds a connection, and returns its slot.
    pub(super) fn add(
        &mut self,
        now: Moment,
        socket: OwnedFd,
        listener: usize,
        origin: Origin,
        limits: Limits,
    ) -> usize {
        self.count += 1;
        let connection = Connection::new(now, socket, listener, origin, limits, self.count);
        self.operators += usize::from(connection.is_operators());
        self.connections.insert(connection)
    }

    /// The first one to evict: the longest idle one; else one with an incomplete request, of the source with most
    /// connections.
    fn first_to_go(&self) -> Option<usize> {
        let clients = || self.connections.iter().filter(|(_, connection)| !connection.is_operators());
        let idle = clients().filter(|(_, connection)| connection.is_idle());
        let idle = idle.min_by_key(|(_, connection)| connection.since).map(|(slot, _)| slot);
        idle.or_else(|| {
            let mut counts: HashMap<Source, usize> = HashMap::new();
            for (_, connection) in clients() {
                *counts.entry(connection.origin.source()).or_default() += 1;
            }
            let reading = clients().filter(|(_, connection)| connection.state == State::Reading);
            let rank = |connection: &Connection| (counts[&connection.origin.source()], Reverse(connection.since));
            reading.max_by_key(|(_, connection)| rank(connection)).map(|(slot, _)| slot)
        })
    }

    /// Whether there is work that can be done at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.members.resumed.is_empty() || self.has_discovered || !self.dirty.is_empty()
    }

    /// Whether a turn has work here besides completions.
    pub(super) fn has_work(&self) -> bool {
        let members = &self.members;
        !members.resumed.is_empty() || !members.answered.is_empty() || self.has_discovered || !self.starved.is_empty()
    }

    /// Memory used by data queued for workers and clients, in bytes.
    pub(super) fn held(&self) -> usize {
        self.memory.held + self.memory.kept
    }

    /// Updates the accounting of what a connection has queued; admin connections, which are few, are not counted.
    fn weigh(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.is_operators() {
            return;
        }
        let weight = connection.queued();
        self.memory.keep(std::mem::replace(&mut connection.weighed, weight), weight);
    }

    /// Panics if the accounting is wrong.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let bodies = self.connections.iter().map(|(_, connection)| connection.incoming.weight());
        let waiting = self.members.iter().map(|(_, member)| member.waiting());
        assert_eq!(self.memory.held, bodies.chain(waiting).sum::<usize>(), "what is held is counted");
        let events = self.members.iter().map(|(_, member)| member.kept());
        let outputs = self.connections.iter().map(|(_, connection)| connection.weighed);
        assert_eq!(self.memory.kept, events.chain(outputs).sum::<usize>(), "what is kept is counted");
    }

    /// Whether there are no connections, no sessions, and nothing queued.
    #[cfg(test)]
    pub(super) fn is_deserted(&self) -> bool {
        self.connections.is_empty() && self.members.iter().next().is_none() && self.held() == 0
    }

    /// How much of that, and of what is kept or queued for sending, each client holds.
    pub(super) fn holders(&self) -> impl Iterator<Item = (Peer, usize)> {
        self.members.iter().map(|(_, member)| {
            let connections = member.connections().into_iter().filter_map(|slot| self.connections.get(slot));
            let of_member = connections.filter(|connection| connection.member == Some(member.client));
            let queued: usize = of_member.map(Connection::queued).sum();
            (Peer::Client(member.client), queued + member.kept() + member.waiting())
        })
    }

    /// The session of a connection's request, if it has one.
    fn session_of(&mut self, slot: usize) -> Option<&mut Session> {
        self.members.of_mut(self.connections[slot].member?)?.session()
    }

    /// Marks a connection that has something to send.
    fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.connections[slot].is_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Takes the next connection that still exists.
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
