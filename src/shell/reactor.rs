//! The hands: they hold everything that is open, and carry out what the core wants (`effects.rs`). They cannot call
//! the core: what happens while they work is news, which the shell tells it after the last effect.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Rlimit;
use slab::Slab;

use super::acceptor::Acceptor;
use super::admin::recent::Recent;
use super::budget::Budget;
use super::clock::Clock;
use super::connection::Connection;
use super::handshakes::Handshakes;
use super::handshakes::upgrade::UpgradePolicy;
use super::log::Batch;
use super::notify::Notify;
use super::reread::Rereading;
use super::signals::Signals;
use super::websocket::Pings;
use super::workers::processes::Processes;
use crate::bus::port::{Input, Moment, Peer};
use crate::config::Pool;
use crate::io::Io;
use crate::io::buffers::Block;
use crate::scan::Window;

/// Whose bytes effects copy from, and the block that they lie in with their offset there, if lines of it can be held
/// in place.
pub(super) struct Source<'a> {
    pub from: Peer,
    pub window: Window<'a>,
    pub block: Option<(Rc<Block>, usize)>,
}

/// See the top of the file. The door to the kernel is dropped first: nothing that it can write to goes before it.
pub(super) struct Reactor<I: Io> {
    pub io: I,
    pub clock: Clock,
    pub pools: Vec<Pool>,
    /// The limit of open files that workers get.
    pub descriptors: Rlimit,
    /// The longest lines, in bytes without their newline.
    pub longest_client_line: usize,
    pub longest_worker_line: usize,
    pub connections: Slab<Connection>,
    /// Slots of connections by the index of their key.
    pub clients: Vec<Option<usize>>,
    pub workers: Vec<Option<usize>>,
    pub acceptors: Vec<Acceptor>,
    pub handshakes: Handshakes,
    /// One for each listener whose clients speak WebSocket.
    pub policies: Vec<Option<UpgradePolicy>>,
    /// Who reads the tokens of listeners and of operators again, if there are files of them.
    pub rereading: Option<Rereading>,
    /// When WebSockets are pinged.
    pub pings: Pings,
    /// How long clients of each listener may give no sign of life, and when it is looked whether they do.
    pub silence_allowed: Vec<Option<Duration>>,
    pub silence_due: Option<Moment>,
    pub accept_paused: bool,
    pub closed_for_good: bool,
    pub processes: Box<dyn Processes>,
    pub signals: Signals,
    /// Where the bytes of the signals go. They are read to the end of the process.
    pub children_seen: &'static mut [u8; 64],
    pub stops_seen: &'static mut [u8; 8],
    /// What of the log is being written.
    pub log: Batch,
    /// The kernel holds an operation of the log.
    pub logging: bool,
    /// That is a wait for room.
    pub log_awaits_room: bool,
    /// Whoever reads stderr is known to send nothing.
    pub log_half_closed: bool,
    /// Writing to stderr may make the writer wait.
    pub log_aside: bool,
    /// When stdout and stderr are tried again, after the kernel could make no thread to write to them.
    pub retry_writing_at: Option<Moment>,
    /// That was said.
    pub told_of_no_thread: bool,
    /// Sockets that had no room, and when they are tried again in any case.
    pub full: BinaryHeap<Reverse<(Moment, usize)>>,
    /// Whoever read our stdout has gone: what is not written is missed by nobody.
    pub reader_gone: bool,
    /// Lines for our stdout that were not written although somebody may miss them.
    pub unwritten: usize,
    /// When it is told what of the stderr of some worker was left out of the log.
    pub left_out_due: Option<Moment>,
    /// Who tells the service manager of us.
    pub notify: Notify,
    /// Outputs that have something to write.
    pub dirty: Vec<usize>,
    /// Connections whose kept bytes are presented next, one after the other.
    pub resumed: VecDeque<usize>,
    /// Connections whose receive found no buffer.
    pub starved: Vec<usize>,
    /// What has happened and was not told to the core yet.
    pub inputs: VecDeque<(Moment, Input)>,
    pub memory: Budget,
    /// What went wrong lately, for operators.
    pub recent: Recent,
    pub done: bool,
}

impl<I: Io> Reactor<I> {
    /// The core is told this after the last effect.
    pub(super) fn tell(&mut self, now: Moment, input: Input) {
        self.inputs.push_back((now, input));
    }

    pub(super) fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.connections[slot].dirty, true) {
            self.dirty.push(slot);
        }
    }

    pub(super) fn slot(&self, peer: Peer) -> Option<usize> {
        let slot = match peer {
            Peer::Client(client) => *self.clients.get(client.index())?,
            Peer::Worker(worker) => *self.workers.get(worker.index())?,
        }?;
        (self.connections.get(slot)?.peer == peer).then_some(slot)
    }
}
