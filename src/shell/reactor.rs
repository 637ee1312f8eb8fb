//! The reactor: owns everything that is open, submits operations and carries out the core's effects (`effects.rs`). It
//! cannot call the core: events meanwhile are queued as inputs, which the shell drains.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;

use rustix::process::Rlimit;
use slab::Slab;

use super::budget::Budget;
use super::clock::Clock;
use super::connection::Connection;
use super::http::Http;
use super::listeners::Listeners;
use super::notify::Notify;
use super::operation::Operation;
use super::signals::Signals;
use super::stdio::{LogOutput, Stdio};
use super::timers::{Timer, Timers};
use super::workers::memories::Question;
use super::workers::processes::Processes;
use crate::bus::port::{ClientKey, Input, Moment, Peer, WorkerKey};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::channel::Sender;
use crate::config::{Config, Pool};
use crate::io::Io;

/// See the module documentation. The backend is dropped first: it must not outlive anything that it can write to.
pub(super) struct Reactor<I: Io> {
    pub io: I,
    pub clock: Clock,
    pub timers: Timers,
    pub connections: Connections,
    pub listeners: Listeners,
    pub http: Http,
    pub workers: Workers,
    pub signals: Signals,
    pub log: LogOutput,
    pub stdio: Stdio,
    /// Notifies the service manager.
    pub notify: Notify,
    pub memory: Budget,
    /// Events that the core was not told of yet.
    pub inputs: VecDeque<(Moment, Input)>,
    /// The core has finished its shutdown.
    pub is_done: bool,
}

/// What is needed to start workers.
pub(super) struct Workers {
    pub processes: Box<dyn Processes>,
    pub pools: Vec<Pool>,
    /// Earlier versions of pools, by index, whose commands may be started again.
    former: Vec<(usize, Pool)>,
    /// To the thread that measures their memory, if there is a limit.
    pub memories: Option<Sender<Vec<Question>>>,
    /// The open-files limit of workers.
    pub descriptors: Rlimit,
    /// The last line that workers of a pool have written to stderr.
    pub said: BTreeMap<usize, String>,
}

impl Workers {
    pub(super) fn new(processes: Box<dyn Processes>, config: &Config, descriptors: Rlimit) -> Self {
        Self {
            processes,
            pools: config.pools.clone(),
            former: Vec::new(),
            memories: None,
            descriptors,
            said: BTreeMap::new(),
        }
    }

    /// Replaces the pools. Of the old ones, those are kept whose commands satisfy `may_start`.
    pub(super) fn configure(&mut self, config: &Config, may_start: impl Fn(usize, u32) -> bool) {
        let before = std::mem::replace(&mut self.pools, config.pools.clone());
        self.former.extend(before.into_iter().enumerate());
        self.former
            .retain(|(at, pool)| may_start(*at, pool.core.generation) && pool.core.id == self.pools[*at].core.id);
    }

    /// Begins to start a worker of a pool with one of its commands.
    pub(super) fn begin(&mut self, worker: WorkerKey, pool: usize, generation: u32) -> io::Result<()> {
        let is_meant = |former: &&(usize, Pool)| former.0 == pool && former.1.core.generation == generation;
        let newest = &self.pools[pool];
        let former = self.former.iter().filter(|_| newest.core.generation != generation).find(is_meant);
        self.processes.begin(worker, former.map_or(newest, |(_, pool)| pool), &self.descriptors)
    }
}

/// The connections of clients and workers, and the lists of those that wait for something.
#[derive(Default)]
pub(super) struct Connections {
    slab: Slab<Connection>,
    /// Slots by the index of their key.
    clients: Vec<Option<usize>>,
    workers: Vec<Option<usize>>,
    /// Connections whose outputs have something to write.
    dirty: Vec<usize>,
    /// Connections whose buffered bytes are presented next, in order.
    pub resumed: VecDeque<usize>,
    /// Connections whose receive found no buffer, to be retried when buffers are returned.
    pub starved: Vec<usize>,
    /// The maximum lengths of lines in bytes, without the newline.
    pub longest_client_line: usize,
    longest_worker_line: usize,
}

impl Connections {
    pub(super) fn new(config: &Config) -> Self {
        let mut connections = Self { clients: vec![None; MAX_CONNECTIONS], ..Self::default() };
        connections.configure(config);
        connections
    }

    /// Adds a connection, and returns its slot.
    pub(super) fn add(&mut self, connection: Connection) -> usize {
        let (slots, index) = match connection.peer {
            Peer::Client(client) => (&mut self.clients, client.index()),
            Peer::Worker(worker) => (&mut self.workers, worker.index()),
        };
        let slot = self.slab.insert(connection);
        if slots.len() <= index {
            slots.resize(index + 1, None);
        }
        slots[index] = Some(slot);
        slot
    }

    /// The slot of a peer, if it exists.
    #[inline]
    pub(super) fn slot(&self, peer: Peer) -> Option<usize> {
        let slot = match peer {
            Peer::Client(client) => *self.clients.get(client.index())?,
            Peer::Worker(worker) => *self.workers.get(worker.index())?,
        }?;
        (self.slab.get(slot)?.peer == peer).then_some(slot)
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
        match self.slab[slot].peer {
            Peer::Client(_) => self.longest_client_line,
            Peer::Worker(_) => self.longest_worker_line,
        }
    }

    /// Marks an output that has something to write, or has to be checked.
    #[inline]
    pub(super) fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slab[slot].transport.is_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Takes the next marked connection that still exists.
    #[inline]
    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        while let Some(slot) = self.dirty.pop() {
            if let Some(connection) = self.slab.get_mut(slot) {
                connection.transport.is_dirty = false;
                return Some(slot);
            }
        }
        None
    }

    /// Queues a connection whose buffered bytes have to be presented.
    pub(super) fn resume_soon(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slab[slot].is_resumed, true) {
            self.resumed.push_back(slot);
        }
    }

    /// Takes the next one, if it still exists.
    pub(super) fn next_resumed(&mut self) -> Option<usize> {
        let slot = self.resumed.pop_front()?;
        self.slab.get_mut(slot)?.is_resumed = false;
        Some(slot)
    }
}

impl Deref for Connections {
    type Target = Slab<Connection>;

    fn deref(&self) -> &Self::Target {
        &self.slab
    }
}

impl DerefMut for Connections {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.slab
    }
}

impl<I: Io> Reactor<I> {
    /// Queues an input for the core.
    pub(super) fn tell(&mut self, now: Moment, input: Input) {
        self.inputs.push_back((now, input));
    }

    /// Sets the timer of a connection.
    pub(super) fn schedule(&mut self, slot: usize) {
        self.timers.set(Timer::Connection(slot), self.connections[slot].due());
    }

    /// Handles the expired timer of a connection.
    pub(super) fn connection_due(&mut self, now: Moment, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.transport.room.take_due(now) {
            self.retry_sending(slot);
        }
        self.tell_left_out(now, slot);
        self.close_if_dead(now, slot);
        self.ping(now, slot);
        self.schedule(slot);
    }

    /// Cancels an operation in flight.
    pub(super) fn cancel(&mut self, operation: Operation, slot: usize) {
        let descriptor = match operation {
            Operation::Accept => self.listeners.acceptors[slot].socket().map(|socket| socket.as_raw_fd()),
            Operation::HttpReceive | Operation::HttpSend | Operation::HttpWatch => {
                Some(self.http.connections[slot].socket().as_raw_fd())
            }
            Operation::Log => Some(rustix::stdio::stderr().as_raw_fd()),
            Operation::Read => self.connections[slot].transport.ends.input().map(|input| input.as_raw_fd()),
            Operation::ReadStderr => self.connections[slot].stderr.as_ref().map(|stderr| stderr.pipe.as_raw_fd()),
            _ => self.connections[slot].transport.ends.raw_output(),
        };
        if let Some(descriptor) = descriptor {
            self.io.cancel(operation.token(slot), descriptor);
        }
    }
}
