//! The reactor: it holds everything that is open, hands the kernel operations and carries out what the core wants
//! (`effects.rs`). It cannot call the core: what happens meanwhile is an input that waits until the shell drains them.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;

use rustix::process::Rlimit;
use slab::Slab;

use super::budget::Budget;
use super::clock::Clock;
use super::connection::Connection;
use super::handshakes::state::Handshakes;
use super::http::Http;
use super::listeners::Listeners;
use super::notify::Notify;
use super::operation::Operation;
use super::signals::Signals;
use super::stdio::{LogOutput, Stdio};
use super::timers::{Timer, Timers};
use super::workers::memories::Memories;
use super::workers::processes::Processes;
use crate::bus::port::{ClientKey, Input, Moment, Peer, WorkerKey};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::config::{Config, Pool};
use crate::io::Io;

/// See the module documentation. The backend is dropped first: nothing that it can write to goes before it.
pub(super) struct Reactor<I: Io> {
    pub io: I,
    pub clock: Clock,
    pub timers: Timers,
    pub connections: Connections,
    pub listeners: Listeners,
    pub handshakes: Handshakes,
    pub http: Http,
    pub workers: Workers,
    pub signals: Signals,
    pub log: LogOutput,
    pub stdio: Stdio,
    /// Who tells the service manager of us.
    pub notify: Notify,
    pub memory: Budget,
    /// What has happened and was not told to the core yet.
    pub inputs: VecDeque<(Moment, Input)>,
    /// The core has said that everything is over.
    pub is_done: bool,
}

/// What workers are started from.
pub(super) struct Workers {
    pub processes: Box<dyn Processes>,
    pub pools: Vec<Pool>,
    /// Pools as they were configured before, by their places, whose commands may be started again.
    former: Vec<(usize, Pool)>,
    /// Who looks at their memory, if anybody does.
    pub memories: Option<Memories>,
    /// The limit of open files that they get.
    pub descriptors: Rlimit,
}

impl Workers {
    pub(super) fn new(processes: Box<dyn Processes>, config: &Config, descriptors: Rlimit) -> Self {
        Self { processes, pools: config.pools.clone(), former: Vec::new(), memories: None, descriptors }
    }

    /// The pools are these from now on. Of those before, the ones stay of whose commands `may_start` says so.
    pub(super) fn configure(&mut self, config: &Config, may_start: impl Fn(usize, u32) -> bool) {
        let before = std::mem::replace(&mut self.pools, config.pools.clone());
        self.former.extend(before.into_iter().enumerate());
        self.former
            .retain(|(at, pool)| may_start(*at, pool.core.generation) && pool.core.id == self.pools[*at].core.id);
    }

    /// Begins to start a worker of a pool by one of its commands.
    pub(super) fn begin(&mut self, worker: WorkerKey, pool: usize, generation: u32) -> io::Result<()> {
        let is_meant = |former: &&(usize, Pool)| former.0 == pool && former.1.core.generation == generation;
        let newest = &self.pools[pool];
        let former = self.former.iter().filter(|_| newest.core.generation != generation).find(is_meant);
        self.processes.begin(worker, former.map_or(newest, |(_, pool)| pool), &self.descriptors)
    }
}

/// The connections of clients and workers, by their slots; who has which; and who waits for what.
pub(super) struct Connections {
    slab: Slab<Connection>,
    /// Slots by the index of their key.
    clients: Vec<Option<usize>>,
    workers: Vec<Option<usize>>,
    /// Outputs that have something to write.
    dirty: Vec<usize>,
    /// Connections whose kept bytes are presented next, one after the other.
    pub resumed: VecDeque<usize>,
    /// Connections whose receive found no buffer. It is tried again when others were returned.
    pub starved: Vec<usize>,
    /// The longest lines, in bytes without their newline.
    pub longest_client_line: usize,
    longest_worker_line: usize,
    /// How many there have been.
    count: u64,
}

impl Connections {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            slab: Slab::new(),
            clients: vec![None; MAX_CONNECTIONS],
            workers: Vec::new(),
            dirty: Vec::new(),
            resumed: VecDeque::new(),
            starved: Vec::new(),
            longest_client_line: config.limits.max_input_buffer,
            longest_worker_line: config.limits.max_worker_line(),
            count: 0,
        }
    }

    /// Adds the connection of its peer. Says in which slot, and how many there have been.
    pub(super) fn add(&mut self, connection: Connection) -> (usize, u64) {
        let (slots, index) = match connection.peer {
            Peer::Client(client) => (&mut self.clients, client.index()),
            Peer::Worker(worker) => (&mut self.workers, worker.index()),
        };
        let slot = self.slab.insert(connection);
        if slots.len() <= index {
            slots.resize(index + 1, None);
        }
        slots[index] = Some(slot);
        self.count += 1;
        (slot, self.count)
    }

    /// The slot of a peer, while it is there.
    #[inline]
    pub(super) fn slot(&self, peer: Peer) -> Option<usize> {
        let slot = match peer {
            Peer::Client(client) => *self.clients.get(client.index())?,
            Peer::Worker(worker) => *self.workers.get(worker.index())?,
        }?;
        (self.slab.get(slot)?.peer == peer).then_some(slot)
    }

    /// The core knows a client no more that was in this slot. False if it knew it no more before.
    pub(super) fn release_client(&mut self, client: ClientKey, slot: usize) -> bool {
        self.clients[client.index()].take_if(|known| *known == slot).is_some()
    }

    /// The core knows a worker no more. Its slot, if it has one.
    pub(super) fn release_worker(&mut self, worker: WorkerKey) -> Option<usize> {
        self.workers.get_mut(worker.index()).and_then(Option::take)
    }

    /// The longest lines are those of this configuration.
    pub(super) fn configure(&mut self, config: &Config) {
        self.longest_client_line = config.limits.max_input_buffer;
        self.longest_worker_line = config.limits.max_worker_line();
    }

    /// The longest line that a connection may send.
    #[inline]
    pub(super) fn longest_line(&self, slot: usize) -> usize {
        match self.slab[slot].peer {
            Peer::Client(_) => self.longest_client_line,
            Peer::Worker(_) => self.longest_worker_line,
        }
    }

    /// An output has something to write, or to be looked at.
    #[inline]
    pub(super) fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slab[slot].queued.dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Takes out the next one of those that are still there.
    #[inline]
    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        while let Some(slot) = self.dirty.pop() {
            if let Some(connection) = self.slab.get_mut(slot) {
                connection.queued.dirty = false;
                return Some(slot);
            }
        }
        None
    }

    /// What is kept of a connection's bytes is presented when its turn comes.
    pub(super) fn resume_soon(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slab[slot].queued.resumed, true) {
            self.resumed.push_back(slot);
        }
    }

    /// Takes out the next one, if it is still there.
    pub(super) fn next_resumed(&mut self) -> Option<usize> {
        let slot = self.resumed.pop_front()?;
        self.slab.get_mut(slot)?.queued.resumed = false;
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
    /// The core is told this when it is called next.
    pub(super) fn tell(&mut self, now: Moment, input: Input) {
        self.inputs.push_back((now, input));
    }

    /// Has a connection looked at when that is due.
    pub(super) fn schedule(&mut self, slot: usize) {
        self.timers.set(Timer::Connection(slot), self.connections[slot].due());
    }

    /// Looks at a connection that is due.
    pub(super) fn connection_due(&mut self, now: Moment, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.room.take_due(now) {
            self.retry_sending(slot);
        }
        self.tell_left_out(now, slot);
        self.close_if_dead(now, slot);
        self.ping(now, slot);
        self.schedule(slot);
    }

    /// Asks for the end of an operation that is in flight.
    pub(super) fn cancel(&mut self, operation: Operation, slot: usize) {
        let descriptor = match operation {
            Operation::Accept => self.listeners.acceptor(slot).socket().map(|socket| socket.as_raw_fd()),
            Operation::Handshake => Some(self.handshakes[slot].accepted.socket.as_raw_fd()),
            Operation::HttpReceive | Operation::HttpSend | Operation::HttpWatch => Some(self.http.socket(slot)),
            Operation::Log => Some(rustix::stdio::stderr().as_raw_fd()),
            Operation::Read => self.connections[slot].ends.input().map(|input| input.as_raw_fd()),
            Operation::ReadStderr => self.connections[slot].stderr.as_ref().map(|stderr| stderr.pipe.as_raw_fd()),
            _ => self.connections[slot].ends.raw_output(),
        };
        if let Some(descriptor) = descriptor {
            self.io.cancel(operation.token(slot), descriptor);
        }
    }
}
