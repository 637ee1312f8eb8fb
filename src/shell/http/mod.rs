//! The MCP listener (Streamable HTTP): connections, which come and go, and clients of the core behind them, each a
//! session, or the self-contained requests of one connection (2026-07-28).
//!
//! A connection is not a client: it uses none of the core's slots. Its messages are read completely here, and passed to
//! the core as lines of their client; the core's output for a client goes to the connection whose request it belongs to
//! (`mcp/session.rs`). Admin connections are read and written here, too, and answered by `admin`; and so are those whose
//! handshakes `handshakes` handles.
//!
//! Reading order: `connection.rs`, `members.rs` (the clients), `places.rs` (who has a place), `serve.rs` (moves bytes), `requests.rs` (handles
//! requests), `clients.rs` (sessions start and end), `deliver.rs` (the core's output), `in_place.rs` (long answers).

mod clients;
pub(super) mod connection;
mod deliver;
mod in_place;
mod members;
mod places;
mod requests;
mod serve;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hashbrown::HashMap;
use slab::Slab;

use super::listeners::Throttle;
use crate::bus::port::{Moment, Peer, Source};
use crate::bus::shares::{Shares, Turn};
use crate::config::Config;
use crate::http1::Limits;
use crate::mcp::Session;
use crate::mcp::message::LineReader;
use connection::{Accepted, Connection, Purpose, State};
use in_place::Blocks;
pub(super) use members::Members;

/// Maximum number of connections for MCP that have sent a request, answered or not.
pub(super) const MOST_CONNECTIONS: usize = 2048;
/// How many more there may be whose first request is read: some ask for health, or are told that there is no room.
pub(super) const MOST_HEARD: usize = 64;
/// The same for operators.
pub(super) const MOST_OPERATORS: usize = 64;
/// Maximum number of handshakes beyond the free slots of clients: some ask for health, or are told that the daemon is
/// full.
pub(super) const MOST_HANDSHAKES: usize = 256;

/// Default idle timeout of a session.
const SESSION_IDLE: Duration = Duration::from_secs(1800);

#[derive(Default)]
pub(super) struct Http {
    pub connections: Slab<Connection>,
    pub members: Members,
    /// Connections that have something to send.
    dirty: Vec<usize>,
    /// Connections whose receive found no buffer.
    starved: Vec<usize>,
    /// Connections with a body that the scanner is behind with.
    behind: Vec<usize>,
    /// The era of another pool has become known.
    pub has_discovered: bool,
    lines: LineReader,
    /// A line from the core, with padding for the scanner.
    padded: Vec<u8>,
    /// The number of connections of each purpose, and its maximum.
    counts: [usize; 3],
    most: [usize; 3],
    /// How many of those for MCP have a place.
    placed: usize,
    memory: Memory,
    count: u64,
    /// The idle timeout of sessions.
    session_idle: Duration,
    /// How long a session may have no connection, if that is limited.
    session_detached: Option<Duration>,
    throttle: Throttle,
}

/// Memory used for MCP, in bytes.
#[derive(Default)]
struct Memory {
    /// Bodies and queued messages.
    held: usize,
    /// Events kept by sessions, and queued output.
    kept: usize,
    /// Events kept by sessions.
    logs: usize,
    /// Posted bodies that lie in the queues of workers.
    posted: Rc<Cell<usize>>,
    /// Long answers that are kept, or sent as events, where they were received.
    in_place: Rc<Blocks>,
    /// Limit of what may be held, of all sessions' kept events that are no answers, and of their answers.
    most: usize,
}

impl Memory {
    /// Updates what is kept from `before` to `now`.
    fn keep(&mut self, before: usize, now: usize) {
        self.kept = self.kept - before + now;
    }

    /// Updates what a session keeps from `before` to `now`.
    fn keep_log(&mut self, before: usize, now: usize) {
        self.keep(before, now);
        self.logs = self.logs - before + now;
    }
}

impl Http {
    /// Empty, with a maximum number of connections for MCP, and of handshakes beyond the free slots of clients.
    pub(super) fn new(mcp: usize, handshakes: usize, config: &Config) -> Self {
        let mut http = Self { most: [mcp, MOST_OPERATORS, handshakes], ..Self::default() };
        http.configure(config);
        http
    }

    /// Sets the maximum numbers of connections.
    pub(super) fn allow(&mut self, mcp: usize, handshakes: usize) {
        self.most = [mcp, MOST_OPERATORS, handshakes];
    }

    /// Applies the limits of this configuration.
    pub(super) fn configure(&mut self, config: &Config) {
        self.memory.most = config.limits.max_memory / 4;
        self.session_idle = config.limits.session_idle.unwrap_or(SESSION_IDLE);
        self.session_detached = config.limits.session_detached;
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

    /// A connection gets a place.
    pub(super) fn give_place(&mut self, slot: usize) {
        self.placed += usize::from(!std::mem::replace(&mut self.connections[slot].has_place, true));
    }

    /// A connection has no place any more: it goes after what it is still sent.
    pub(super) fn take_place_away(&mut self, slot: usize) {
        self.placed -= usize::from(std::mem::take(&mut self.connections[slot].has_place));
    }

    /// How many connections with a place a listener has, in total or of one source.
    pub(super) fn placed_at(&self, listener: usize, source: Option<Source>) -> usize {
        let is_of = |it: &Connection| it.has_place && it.listener == listener;
        self.connections.iter().filter(|(_, it)| is_of(it) && source.is_none_or(|source| it.source == source)).count()
    }

    /// Whether a listener has accepted one of the connections.
    pub(super) fn is_connected_to(&self, listener: usize) -> bool {
        self.connections.iter().any(|(_, it)| it.listener == listener)
    }

    /// Whether another connection of this purpose fits, or no listener has any; of handshakes, without any free slot of
    /// clients.
    pub(super) fn has_room(&self, purpose: Purpose) -> bool {
        let most = self.most[purpose as usize];
        most == 0 || self.count(purpose) < most
    }

    /// How many handshakes exceed the limit, with this many free slots of clients.
    pub(super) fn surplus_handshakes(&self, free: usize) -> usize {
        let most = free + self.most[Purpose::Handshake as usize];
        if self.count(Purpose::Handshake) <= most {
            return 0;
        }
        // A final answer is about to be sent: cut off, it would not explain anything.
        let holds = |it: &Connection| it.state != State::Answering && !it.transport.is_closing();
        let held = self.connections.iter().filter(|(_, it)| it.purpose == Purpose::Handshake && holds(it)).count();
        held.saturating_sub(most)
    }

    /// Adds a connection, and returns its slot.
    pub(super) fn add(&mut self, now: Moment, accepted: Accepted, purpose: Purpose, limits: Limits) -> usize {
        self.count += 1;
        self.counts[purpose as usize] += 1;
        self.connections.insert(Connection::new(now, accepted, purpose, limits, self.count))
    }

    /// A handshake turns out to be a connection for MCP.
    pub(super) fn becomes_mcp(&mut self, slot: usize) {
        self.connections[slot].purpose = Purpose::Mcp;
        self.counts[Purpose::Handshake as usize] -= 1;
        self.counts[Purpose::Mcp as usize] += 1;
    }

    /// Removes a connection that the kernel holds no operation of.
    pub(super) fn remove(&mut self, slot: usize) -> Connection {
        self.take_place_away(slot);
        let gone = self.connections.remove(slot);
        debug_assert!(gone.transport.in_flight.is_empty(), "it was closed under the kernel");
        self.counts[gone.purpose as usize] -= 1;
        self.memory.keep(gone.outgoing.weighed, 0);
        gone
    }

    /// Which of these goes for one more of `asker`, if it is known, where all have `capacity` places; and their shares.
    /// Of what is idle that which was longest, of what is in use the newest.
    pub(super) fn first_to_go(
        &self,
        capacity: usize,
        asker: Option<Source>,
        is_chosen: impl Fn(usize, &Connection) -> bool,
    ) -> (Option<usize>, Shares) {
        let chosen = || self.connections.iter().filter(|(slot, connection)| is_chosen(*slot, connection));
        let shares = Shares::new(capacity, chosen().map(|(_, connection)| (connection.source, 1)), asker);
        let rank = |connection: &Connection| -> Option<(Turn, u8, u64, u64)> {
            let (is_idle, class) = connection.standing()?;
            let turn = shares.turn(connection.source, is_idle)?;
            let age = |number: u64| if is_idle { number } else { u64::MAX - number };
            Some((turn, class, age(connection.since.0), age(connection.serial)))
        };
        let ranked = chosen().filter_map(|(slot, connection)| rank(connection).map(|rank| (rank, slot)));
        let goes = ranked.min().map(|(_, slot)| slot);
        (goes, shares)
    }

    /// Whether there is work that can be done at once.
    pub(super) fn is_busy(&self) -> bool {
        let has_turns = !self.members.resumed.is_empty() || !self.behind.is_empty();
        has_turns || self.has_discovered || !self.dirty.is_empty()
    }

    /// Memory used by data queued for workers and clients, in bytes.
    pub(super) fn held(&self) -> usize {
        let Memory { held, kept, posted, in_place, .. } = &self.memory;
        // What is in place counts as lent already; until its connection is weighed it counts as nothing else.
        (held + kept + posted.get()).saturating_sub(in_place.weight())
    }

    /// Updates the accounting of what a connection has queued; admin connections, which are few, are not counted.
    fn weigh(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.is_operators() {
            return;
        }
        let weight = connection.queued();
        self.memory.keep(std::mem::replace(&mut connection.outgoing.weighed, weight), weight);
    }

    /// Panics if the accounting is wrong.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let bodies = self.connections.iter().map(|(_, connection)| connection.incoming.weight());
        let waiting = self.members.iter().map(|member| member.waiting());
        assert_eq!(self.memory.held, bodies.chain(waiting).sum::<usize>(), "what is held is counted");
        for member in self.members.iter().filter(|member| matches!(member.role, members::Role::Session(_))) {
            let visits = |it: &Connection| it.visits == Some(member.client);
            let visitors = self.connections.iter().filter(|(_, connection)| visits(connection)).count();
            assert_eq!((member.visitors, member.detached.is_some()), (visitors, visitors == 0), "visitors are counted");
        }
        let events = || self.members.iter().map(|member| member.kept());
        assert_eq!(self.memory.logs, events().sum::<usize>(), "events are counted");
        let outputs = self.connections.iter().map(|(_, connection)| connection.outgoing.weighed);
        assert_eq!(self.memory.kept, events().chain(outputs).sum::<usize>(), "what is kept is counted");
    }

    /// Whether there are no connections, no sessions, and nothing queued.
    #[cfg(test)]
    pub(super) fn is_deserted(&self) -> bool {
        self.connections.is_empty() && self.members.iter().next().is_none() && self.held() == 0
    }

    /// How much of that, and of what is kept or queued for sending, each client holds.
    pub(super) fn holders(&self) -> impl Iterator<Item = (Peer, usize)> {
        let mut of_connections: HashMap<usize, usize> = HashMap::new();
        for (client, weight) in self.connections.iter().filter_map(|(_, it)| Some((it.member?, it.weight()))) {
            if self.members.get(client).is_some() {
                *of_connections.entry(client.index()).or_default() += weight;
            }
        }
        self.members.iter().map(move |member| {
            let queued = of_connections.get(&member.client.index()).copied().unwrap_or_default();
            (Peer::Client(member.client), queued + member.kept() + member.waiting())
        })
    }

    /// What connections hold that no client is charged for, since it has ended or is not known yet, by their sources.
    fn strays(&self) -> HashMap<Source, usize> {
        let mut strays = HashMap::new();
        for (_, connection) in self.connections.iter().filter(|(_, it)| self.is_stray(it)) {
            *strays.entry(connection.source()).or_default() += connection.weight();
        }
        strays
    }

    fn is_stray(&self, connection: &Connection) -> bool {
        let has_client = connection.member.is_some_and(|client| self.members.get(client).is_some());
        !has_client && !connection.is_operators() && !connection.transport.is_closing()
    }

    /// The heaviest connection without a client, of the source whose connections without one hold most; and how much all
    /// of those hold.
    pub(super) fn heaviest_stray(&self) -> Option<(usize, usize)> {
        let strays = self.strays();
        let own = self.connections.iter().filter(|(_, it)| self.is_stray(it) && it.weight() > 0);
        let rank = |it: &Connection| (strays.get(&it.source()).copied().unwrap_or_default(), it.weight());
        let (slot, heaviest) = own.max_by_key(|(_, it)| rank(it))?;
        Some((slot, rank(heaviest).0))
    }

    /// The longest upload of the source with most bytes of uploads, if that has more of them than `but` would have with
    /// `more` bytes.
    fn heaviest_upload(&self, but: usize, more: usize) -> Option<usize> {
        let mut uploads: HashMap<Source, usize> = HashMap::new();
        let all = || self.connections.iter().filter(|(_, it)| it.state == State::Reading && it.incoming.weight() > 0);
        all().for_each(|(_, it)| *uploads.entry(it.source()).or_default() += it.incoming.weight());
        let of = |it: &Connection| uploads.get(&it.source()).copied().unwrap_or_default();
        let own = &self.connections[but];
        let (slot, heaviest) = all().max_by_key(|(_, it)| (of(it), it.incoming.weight()))?;
        (heaviest.source() != own.source() && of(heaviest) > of(own) + more).then_some(slot)
    }

    /// The session of a connection's request, if it has one.
    fn session_of(&mut self, slot: usize) -> Option<&mut Session> {
        self.members.get_mut(self.connections[slot].member?)?.session()
    }

    /// Marks a connection that has something to send.
    fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.connections[slot].transport.is_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Takes the next connection that still exists.
    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        while let Some(slot) = self.dirty.pop() {
            if let Some(connection) = self.connections.get_mut(slot).filter(|it| it.transport.is_dirty) {
                connection.transport.is_dirty = false;
                return Some(slot);
            }
        }
        None
    }
}
