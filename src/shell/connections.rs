//! The table of all connections, whatever they speak, and the lists of those that wait for something.
//!
//! A slot is a connection's from its accept or spawn to its removal. What it speaks may change meanwhile: a handshake
//! becomes a client in its place ([`Connections::becomes_client`]).

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use slab::Slab;

use super::connection_counts::{ConnectionCounts, CountedAs, Purpose};
use super::endpoint::Endpoint;
use super::http::exchange::Exchange;
use super::protocol::Protocol;
use super::timers::earlier;
use super::transport::{PendingOp, Transport};
use super::websocket::WebSocket;
use crate::bus::port::{ClientKey, Moment, Peer, WorkerKey};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::config::Config;

/// What moves the bytes of a connection, and what it speaks over that.
pub(super) struct Connection {
    pub transport: Transport,
    pub protocol: Protocol,
}

impl Connection {
    /// When its timer is due.
    pub(super) fn due(&self) -> Option<Moment> {
        earlier(self.transport.due(), self.protocol.due())
    }

    /// Whether it is a WebSocket whose client has closed it, and sends nothing more.
    pub(super) fn has_left(&self) -> bool {
        self.protocol.web().is_some_and(WebSocket::has_left)
    }

    /// Whether it is the connection of a peer of the core, and should be read now.
    pub(super) fn is_to_be_read(&self) -> bool {
        let Some(Endpoint { incoming, is_resumed, .. }) = self.protocol.endpoint() else { return false };
        let is_wanted = !incoming.is_paused || incoming.is_discarded;
        let is_busy =
            self.transport.in_flight.has(PendingOp::Read) || self.transport.in_flight.has(PendingOp::Presentation);
        let is_over = self.protocol.web().is_some_and(WebSocket::has_unreported_end);
        let is_closed = self.transport.is_closing() || is_over || self.has_left();
        is_wanted && !self.transport.has_ended() && !is_busy && !is_resumed && !is_closed
    }

    /// The kernel has read this many bytes into the inbox, where they are decoded to lines.
    pub(super) fn filled(&mut self, now: Moment, received: usize) {
        let Self { transport: Transport { inbox, .. }, protocol } = self;
        let lines = match protocol {
            Protocol::Lines(_) => received,
            _ => protocol.decode(now, inbox.received(received), received),
        };
        inbox.filled(lines);
    }

    /// Memory used, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.transport.weight() + self.protocol.weight()
    }
}

/// The peer of the core whose connection is in a slot.
#[derive(Clone, Copy)]
pub(super) struct PeerSlot(pub usize);

/// The exchange of the connection in a slot, which speaks HTTP.
#[derive(Clone, Copy)]
pub(super) struct HttpSlot(pub usize);

/// See the module documentation.
#[derive(Default)]
pub(super) struct Connections {
    table: Slab<Connection>,
    /// Slots by the index of their key.
    clients: Vec<Option<usize>>,
    workers: Vec<Option<usize>>,
    /// Connections whose outputs have something to write.
    dirty: Vec<usize>,
    /// Connections whose buffered bytes are presented next, in order.
    pub resumed: VecDeque<usize>,
    /// Connections whose receive found no buffer, to be retried when buffers are returned.
    pub starved: Vec<usize>,
    /// How many there are of those that speak HTTP, and how many there may be.
    pub counts: ConnectionCounts,
    /// The maximum lengths of lines in bytes, without the newline.
    pub longest_client_line: usize,
    longest_worker_line: usize,
}

impl Connections {
    pub(super) fn new(config: &Config, counts: ConnectionCounts) -> Self {
        let mut connections = Self { clients: vec![None; MAX_CONNECTIONS], counts, ..Self::default() };
        connections.configure(config);
        connections
    }

    /// Adds the connection of a peer of the core, and returns its slot.
    pub(super) fn add(&mut self, transport: Transport, endpoint: Endpoint) -> usize {
        let peer = endpoint.peer;
        let slot = self.table.insert(Connection { transport, protocol: Protocol::Lines(endpoint) });
        self.assign(peer, slot);
        slot
    }

    /// Adds a connection that speaks HTTP and was counted, and returns its slot.
    pub(super) fn add_http(&mut self, transport: Transport, exchange: Exchange) -> usize {
        self.table.insert(Connection { transport, protocol: Protocol::Http(Box::new(exchange)) })
    }

    /// The handshake in this slot is complete: it is a client's connection from now on, and speaks this.
    pub(super) fn becomes_client(&mut self, slot: usize, client: ClientKey, protocol: Protocol) {
        let Connection { transport, protocol: before } = &mut self.table[slot];
        if let Protocol::Http(handshake) = before {
            self.counts.leaves(handshake.purpose, &handshake.counted_as);
        }
        transport.deadline = None;
        *before = protocol;
        self.assign(Peer::Client(client), slot);
    }

    fn assign(&mut self, peer: Peer, slot: usize) {
        let (slots, index) = match peer {
            Peer::Client(client) => (&mut self.clients, client.index()),
            Peer::Worker(worker) => (&mut self.workers, worker.index()),
        };
        if slots.len() <= index {
            slots.resize(index + 1, None);
        }
        slots[index] = Some(slot);
    }

    /// Removes a connection that the kernel holds no operation of.
    pub(super) fn remove(&mut self, slot: usize) -> Connection {
        let gone = self.table.remove(slot);
        debug_assert!(gone.transport.in_flight.is_empty(), "it was closed under the kernel");
        if let Protocol::Http(exchange) = &gone.protocol {
            self.counts.leaves(exchange.purpose, &exchange.counted_as);
        }
        gone
    }

    /// Takes all connections.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Connection> {
        std::mem::take(&mut self.table).into_iter().map(|(_, connection)| connection)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The connection in this slot.
    pub(super) fn get(&self, slot: usize) -> Option<&Connection> {
        self.table.get(slot)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        self.table.get_mut(slot)
    }

    /// The connection in this slot, which there is.
    #[inline]
    pub(super) fn entry(&mut self, slot: usize) -> &mut Connection {
        &mut self.table[slot]
    }

    /// The peer of the core whose connection is in this slot.
    pub(super) fn peer(&self, slot: usize) -> Option<&Endpoint> {
        self.table.get(slot)?.protocol.endpoint()
    }

    /// The connection in this slot with its peer of the core, which it has.
    #[inline]
    pub(super) fn peer_parts(&mut self, slot: usize) -> (&mut Transport, &mut Endpoint) {
        let Connection { transport, protocol } = &mut self.table[slot];
        (transport, protocol.endpoint_mut().unwrap_or_else(|| panic!("the connection in slot {slot} is a peer's")))
    }

    /// The exchange of the connection in this slot, if it speaks HTTP.
    pub(super) fn http(&self, slot: usize) -> Option<&Exchange> {
        match &self.table.get(slot)?.protocol {
            Protocol::Http(exchange) => Some(exchange),
            Protocol::Lines(_) | Protocol::WebSocket(..) => None,
        }
    }

    pub(super) fn http_mut(&mut self, slot: usize) -> Option<&mut Exchange> {
        self.try_http_parts(slot).map(|(_, exchange)| exchange)
    }

    /// The connection in this slot with its exchange, if it speaks HTTP.
    pub(super) fn try_http_parts(&mut self, slot: usize) -> Option<(&mut Transport, &mut Exchange)> {
        match self.table.get_mut(slot)? {
            Connection { transport, protocol: Protocol::Http(exchange) } => Some((transport, exchange)),
            _ => None,
        }
    }

    /// The connection in this slot, which speaks HTTP, with its exchange.
    #[inline]
    pub(super) fn http_parts(&mut self, slot: usize) -> (&mut Transport, &mut Exchange) {
        self.try_http_parts(slot).unwrap_or_else(|| panic!("the connection in slot {slot} speaks HTTP"))
    }

    /// Calls with what a connection that speaks HTTP is counted as.
    pub(super) fn recount(&mut self, slot: usize, change: impl FnOnce(&mut ConnectionCounts, &mut CountedAs)) {
        if let Protocol::Http(exchange) = &mut self.table[slot].protocol {
            change(&mut self.counts, &mut exchange.counted_as);
        }
    }

    /// Panics if the counts are wrong.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.counts.check(self.all_http().map(|(_, _, exchange)| (exchange.purpose, &exchange.counted_as)));
    }

    /// Whether a connection speaks HTTP and is idle, so that it may be evicted.
    pub(super) fn is_idle(&self, slot: usize) -> bool {
        match self.table.get(slot) {
            Some(Connection { transport, protocol: Protocol::Http(exchange) }) => exchange.is_idle(transport),
            _ => false,
        }
    }

    /// All connections of peers of the core.
    pub(super) fn all_peers(&self) -> impl Iterator<Item = (usize, &Connection, &Endpoint)> {
        self.table.iter().filter_map(|(slot, connection)| Some((slot, connection, connection.protocol.endpoint()?)))
    }

    /// All connections that speak HTTP, with their exchanges.
    pub(super) fn all_http(&self) -> impl Iterator<Item = (usize, &Transport, &Exchange)> {
        self.table.iter().filter_map(|(slot, connection)| match &connection.protocol {
            Protocol::Http(exchange) => Some((slot, &connection.transport, &**exchange)),
            Protocol::Lines(_) | Protocol::WebSocket(..) => None,
        })
    }

    /// Connections that bring requests of clients end with the answers that they wait for.
    pub(super) fn end_with_answers(&mut self) {
        for (_, connection) in self.table.iter_mut() {
            if let Protocol::Http(exchange) = &mut connection.protocol
                && exchange.purpose == Purpose::Requests
            {
                exchange.incoming.is_last = true;
            }
        }
    }

    /// The slot of a peer, if it exists.
    #[inline]
    pub(super) fn slot(&self, peer: Peer) -> Option<usize> {
        let slot = match peer {
            Peer::Client(client) => *self.clients.get(client.index())?,
            Peer::Worker(worker) => *self.workers.get(worker.index())?,
        }?;
        (self.peer(slot)?.peer == peer).then_some(slot)
    }

    /// The core has removed the client that was in this slot. False if it had been removed before.
    pub(super) fn release_client(&mut self, client: ClientKey, slot: usize) -> bool {
        self.clients[client.index()].take_if(|known| *known == slot).is_some()
    }

    /// The core has removed a worker. Returns its slot, if it has one.
    pub(super) fn release_worker(&mut self, worker: WorkerKey) -> Option<usize> {
        self.workers.get_mut(worker.index()).and_then(Option::take)
    }

    /// Applies the line limits of this configuration.
    pub(super) fn configure(&mut self, config: &Config) {
        self.longest_client_line = config.limits.max_input_buffer;
        self.longest_worker_line = config.limits.max_worker_line();
    }

    /// The maximum length of a connection's lines.
    #[inline]
    pub(super) fn longest_line(&self, slot: usize) -> usize {
        match self[PeerSlot(slot)].peer {
            Peer::Client(_) => self.longest_client_line,
            Peer::Worker(_) => self.longest_worker_line,
        }
    }

    /// Marks an output that has something to write, or has to be checked.
    #[inline]
    pub(super) fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self[slot].is_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Takes the next marked connection that still exists.
    #[inline]
    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        while let Some(slot) = self.dirty.pop() {
            let is_marked = |connection: &mut Connection| std::mem::take(&mut connection.transport.is_dirty);
            if self.table.get_mut(slot).is_some_and(is_marked) {
                return Some(slot);
            }
        }
        None
    }

    /// Queues a connection whose buffered bytes have to be presented.
    pub(super) fn resume_soon(&mut self, slot: usize) {
        if !std::mem::replace(&mut self[PeerSlot(slot)].is_resumed, true) {
            self.resumed.push_back(slot);
        }
    }

    /// Takes the next one, if it still exists.
    pub(super) fn next_resumed(&mut self) -> Option<usize> {
        let slot = self.resumed.pop_front()?;
        std::mem::take(&mut self.table.get_mut(slot)?.protocol.endpoint_mut()?.is_resumed).then_some(slot)
    }
}

/// Whatever the connection speaks.
impl Index<usize> for Connections {
    type Output = Transport;

    #[inline]
    fn index(&self, slot: usize) -> &Transport {
        &self.table[slot].transport
    }
}

impl IndexMut<usize> for Connections {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Transport {
        &mut self.table[slot].transport
    }
}

impl Index<PeerSlot> for Connections {
    type Output = Endpoint;

    #[inline]
    fn index(&self, PeerSlot(slot): PeerSlot) -> &Endpoint {
        self.peer(slot).unwrap_or_else(|| panic!("the connection in slot {slot} is a peer's"))
    }
}

impl IndexMut<PeerSlot> for Connections {
    #[inline]
    fn index_mut(&mut self, PeerSlot(slot): PeerSlot) -> &mut Endpoint {
        self.peer_parts(slot).1
    }
}

impl Index<HttpSlot> for Connections {
    type Output = Exchange;

    #[inline]
    fn index(&self, HttpSlot(slot): HttpSlot) -> &Exchange {
        self.http(slot).unwrap_or_else(|| panic!("the connection in slot {slot} speaks HTTP"))
    }
}

impl IndexMut<HttpSlot> for Connections {
    #[inline]
    fn index_mut(&mut self, HttpSlot(slot): HttpSlot) -> &mut Exchange {
        self.http_parts(slot).1
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::bus::port::{ListenerId, Place};
    use crate::http1::Limits;
    use crate::shell::connection_counts::Purpose;
    use crate::shell::http::exchange::Accepted;

    const LIMITS: Limits = Limits {
        body: 0,
        head_time: Duration::from_secs(1),
        body_time: Duration::from_secs(1),
        idle_time: Duration::from_secs(1),
    };

    /// Adds a connection that speaks HTTP, and returns its slot.
    pub(in crate::shell) fn add(connections: &mut Connections, purpose: Purpose, since: u64) -> usize {
        let (socket, _peer) = UnixStream::pair().expect("there are descriptors");
        let accepted =
            Accepted { socket: socket.into(), acceptor: 0, listener: ListenerId::at(0), place: Place::Inherited };
        connections.begin_http(Moment(since), accepted, purpose, LIMITS)
    }

    #[test]
    fn a_mark_is_that_of_the_connection_and_not_of_its_slot() {
        let mut connections = Connections::default();
        let slot = add(&mut connections, Purpose::Handshake, 0);
        connections.mark_dirty(slot);
        connections.mark_dirty(slot);
        drop(connections.remove(slot));
        assert_eq!((add(&mut connections, Purpose::Handshake, 0), connections.next_dirty()), (slot, None));
        connections.mark_dirty(slot);
        assert_eq!((connections.next_dirty(), connections.next_dirty()), (Some(slot), None));
    }
}
