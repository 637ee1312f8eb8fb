//! The table of all connections, whatever they speak, and the lists of those that wait for something.
//!
//! A slot is a connection's from its accept or spawn to its removal. What it speaks may change meanwhile: a handshake
//! becomes a client in its place ([`Connections::becomes_client`]).

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use slab::Slab;

use super::connection::Connection;
use super::crowd::Crowd;
use super::http::connection::Connection as HttpConnection;
use super::transport::Transport;
use crate::bus::port::{ClientKey, Peer, WorkerKey};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::config::Config;

/// What a connection speaks, over the transport that is in it.
pub(super) enum Protocol {
    /// Lines or WebSocket: it is the connection of a peer of the core.
    Lines(Connection),
    /// HTTP: for MCP, of an operator, or in its handshake.
    Http(Box<HttpConnection>),
}

impl Protocol {
    pub(super) fn transport(&self) -> &Transport {
        match self {
            Self::Lines(connection) => &connection.transport,
            Self::Http(connection) => &connection.transport,
        }
    }

    fn transport_mut(&mut self) -> &mut Transport {
        match self {
            Self::Lines(connection) => &mut connection.transport,
            Self::Http(connection) => &mut connection.transport,
        }
    }
}

/// A thousand clients may be idle.
const _: () = assert!(size_of::<Protocol>() <= 168);

/// The connection in a slot, which speaks lines or WebSocket.
#[derive(Clone, Copy)]
pub(super) struct AsLines(pub usize);

/// The connection in a slot, which speaks HTTP.
#[derive(Clone, Copy)]
pub(super) struct AsHttp(pub usize);

/// See the module documentation.
#[derive(Default)]
pub(super) struct Connections {
    table: Slab<Protocol>,
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
    pub crowd: Crowd,
    /// The maximum lengths of lines in bytes, without the newline.
    pub longest_client_line: usize,
    longest_worker_line: usize,
}

impl Connections {
    pub(super) fn new(config: &Config, crowd: Crowd) -> Self {
        let mut connections = Self { clients: vec![None; MAX_CONNECTIONS], crowd, ..Self::default() };
        connections.configure(config);
        connections
    }

    /// Adds the connection of a peer of the core, and returns its slot.
    pub(super) fn add(&mut self, connection: Connection) -> usize {
        let peer = connection.peer;
        let slot = self.table.insert(Protocol::Lines(connection));
        self.assign(peer, slot);
        slot
    }

    /// Adds a connection that speaks HTTP and was counted, and returns its slot.
    pub(super) fn add_http(&mut self, connection: HttpConnection) -> usize {
        self.table.insert(Protocol::Http(Box::new(connection)))
    }

    /// The handshake in this slot is complete: its transport is a client's from now on.
    pub(super) fn becomes_client(&mut self, slot: usize, peer: Peer, begin: impl FnOnce(Transport) -> Connection) {
        let entry = &mut self.table[slot];
        if let Protocol::Http(handshake) = entry {
            self.crowd.leaves(handshake);
        }
        let transport = entry.transport_mut().take();
        *entry = Protocol::Lines(begin(transport));
        self.assign(peer, slot);
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
    pub(super) fn remove(&mut self, slot: usize) -> Protocol {
        let mut gone = self.table.remove(slot);
        debug_assert!(gone.transport().in_flight.is_empty(), "it was closed under the kernel");
        if let Protocol::Http(connection) = &mut gone {
            self.crowd.leaves(connection);
        }
        gone
    }

    /// Takes all connections.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Protocol> {
        std::mem::take(&mut self.table).into_iter().map(|(_, connection)| connection)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What the connection in this slot speaks.
    pub(super) fn get(&self, slot: usize) -> Option<&Protocol> {
        self.table.get(slot)
    }

    /// The connection in this slot, if it speaks lines or WebSocket.
    pub(super) fn lines(&self, slot: usize) -> Option<&Connection> {
        match self.table.get(slot)? {
            Protocol::Lines(connection) => Some(connection),
            Protocol::Http(_) => None,
        }
    }

    pub(super) fn lines_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        match self.table.get_mut(slot)? {
            Protocol::Lines(connection) => Some(connection),
            Protocol::Http(_) => None,
        }
    }

    /// The connection in this slot, if it speaks HTTP.
    pub(super) fn http(&self, slot: usize) -> Option<&HttpConnection> {
        match self.table.get(slot)? {
            Protocol::Http(connection) => Some(connection),
            Protocol::Lines(_) => None,
        }
    }

    pub(super) fn http_mut(&mut self, slot: usize) -> Option<&mut HttpConnection> {
        match self.table.get_mut(slot)? {
            Protocol::Http(connection) => Some(connection),
            Protocol::Lines(_) => None,
        }
    }

    /// All connections that speak lines or WebSocket.
    pub(super) fn all_lines(&self) -> impl Iterator<Item = (usize, &Connection)> {
        self.table.iter().filter_map(|(slot, protocol)| match protocol {
            Protocol::Lines(connection) => Some((slot, connection)),
            Protocol::Http(_) => None,
        })
    }

    /// All connections that speak HTTP.
    pub(super) fn all_http(&self) -> impl Iterator<Item = (usize, &HttpConnection)> {
        self.table.iter().filter_map(|(slot, protocol)| match protocol {
            Protocol::Http(connection) => Some((slot, &**connection)),
            Protocol::Lines(_) => None,
        })
    }

    /// The slot of a peer, if it exists.
    #[inline]
    pub(super) fn slot(&self, peer: Peer) -> Option<usize> {
        let slot = match peer {
            Peer::Client(client) => *self.clients.get(client.index())?,
            Peer::Worker(worker) => *self.workers.get(worker.index())?,
        }?;
        (self.lines(slot)?.peer == peer).then_some(slot)
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
        match self[AsLines(slot)].peer {
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
            let is_marked = |protocol: &mut Protocol| std::mem::take(&mut protocol.transport_mut().is_dirty);
            if self.table.get_mut(slot).is_some_and(is_marked) {
                return Some(slot);
            }
        }
        None
    }

    /// Queues a connection whose buffered bytes have to be presented.
    pub(super) fn resume_soon(&mut self, slot: usize) {
        if !std::mem::replace(&mut self[AsLines(slot)].is_resumed, true) {
            self.resumed.push_back(slot);
        }
    }

    /// Takes the next one, if it still exists.
    pub(super) fn next_resumed(&mut self) -> Option<usize> {
        let slot = self.resumed.pop_front()?;
        std::mem::take(&mut self.lines_mut(slot)?.is_resumed).then_some(slot)
    }
}

/// Whatever the connection speaks.
impl Index<usize> for Connections {
    type Output = Transport;

    #[inline]
    fn index(&self, slot: usize) -> &Transport {
        self.table[slot].transport()
    }
}

impl IndexMut<usize> for Connections {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Transport {
        self.table[slot].transport_mut()
    }
}

impl Index<AsLines> for Connections {
    type Output = Connection;

    #[inline]
    fn index(&self, AsLines(slot): AsLines) -> &Connection {
        self.lines(slot).unwrap_or_else(|| panic!("there is a connection in slot {slot}, and it speaks lines"))
    }
}

impl IndexMut<AsLines> for Connections {
    #[inline]
    fn index_mut(&mut self, AsLines(slot): AsLines) -> &mut Connection {
        self.lines_mut(slot).unwrap_or_else(|| panic!("there is a connection in slot {slot}, and it speaks lines"))
    }
}

impl Index<AsHttp> for Connections {
    type Output = HttpConnection;

    #[inline]
    fn index(&self, AsHttp(slot): AsHttp) -> &HttpConnection {
        self.http(slot).unwrap_or_else(|| panic!("there is a connection in slot {slot}, and it speaks HTTP"))
    }
}

impl IndexMut<AsHttp> for Connections {
    #[inline]
    fn index_mut(&mut self, AsHttp(slot): AsHttp) -> &mut HttpConnection {
        self.http_mut(slot).unwrap_or_else(|| panic!("there is a connection in slot {slot}, and it speaks HTTP"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::bus::port::{Moment, Place};
    use crate::http1::Limits;
    use crate::shell::http::connection::{Accepted, Purpose};

    const LIMITS: Limits = Limits {
        body: 0,
        head_time: Duration::from_secs(1),
        body_time: Duration::from_secs(1),
        idle_time: Duration::from_secs(1),
    };

    /// Adds a connection that speaks HTTP, and returns its slot.
    pub(in crate::shell) fn add(connections: &mut Connections, purpose: Purpose, since: u64) -> usize {
        let (socket, _peer) = UnixStream::pair().expect("there are descriptors");
        let accepted = Accepted { socket: socket.into(), acceptor: 0, listener: 0, place: Place::Inherited };
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
