//! The hands: they carry out what the core wants, and hold everything that is open for it. They cannot call the core:
//! what happens while they work is news, which the shell tells the core after the last effect.

use std::collections::VecDeque;
use std::rc::Rc;

use rustix::process::Rlimit;
use slab::Slab;

use super::accept::Acceptor;
use super::clock::Clock;
use super::connection::Connection;
use super::log;
use super::memory::Memory;
use super::outbox::{HOLD, HOLD_PART};
use super::signals::Signals;
use super::workers::Processes;
use crate::bus::port::{Effect, Effects, Input, Moment, Peer};
use crate::config::Pool;
use crate::io::Io;
use crate::io::buffers::Block;
use crate::scan::{Span, Window};

/// Whose bytes effects copy from, and the block that they lie in with their offset there, if lines of it can be held
/// in place.
pub(super) struct Source<'a> {
    pub from: Peer,
    pub window: Window<'a>,
    pub block: Option<(Rc<Block>, usize)>,
}

/// See the top of the file. The door to the kernel is dropped first: nothing that it can write to goes before it.
pub(super) struct Hands<I: Io> {
    pub io: I,
    pub clock: Clock,
    pub pools: Vec<Pool>,
    /// The limit of open files that workers get.
    pub descriptors: Rlimit,
    pub longest_line: usize,
    pub connections: Slab<Connection>,
    /// Slots of connections by the index of their key.
    pub clients: Vec<Option<usize>>,
    pub workers: Vec<Option<usize>>,
    pub acceptors: Vec<Acceptor>,
    pub accept_paused: bool,
    pub closed_for_good: bool,
    pub processes: Box<dyn Processes>,
    pub signals: Signals,
    /// Where the bytes of the signals go. They are read to the end of the process.
    pub children_seen: &'static mut [u8; 64],
    pub stops_seen: &'static mut [u8; 8],
    pub log_line: Vec<u8>,
    pub log_written: usize,
    pub logging: bool,
    /// Outputs that have something to write.
    pub dirty: Vec<usize>,
    /// Links whose kept bytes are presented next, one after the other.
    pub resumed: VecDeque<usize>,
    /// Links whose receive found no buffer.
    pub starved: Vec<usize>,
    /// What has happened and was not told to the core yet.
    pub news: VecDeque<(Moment, Input)>,
    pub memory: Memory,
    pub done: bool,
}

impl<I: Io> Hands<I> {
    /// The core is told this after the last effect.
    pub(super) fn tell(&mut self, now: Moment, input: Input) {
        self.news.push_back((now, input));
    }

    /// Carries out what a call of the core has led to; what it copies lies in `source`.
    pub(super) fn carry_out(&mut self, effects: Effects<'_>, source: Option<&Source<'_>>) {
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    debug_assert!(source.is_some(), "a copy has a window");
                    match source {
                        Some(source) => self.copy(to, source, span),
                        None => tracing::error!("{} bytes for {to:?} have no source: this is a bug", span.len()),
                    }
                }
                Effect::Insert { to, text } => {
                    let Some(slot) = self.slot(to) else { continue };
                    let pushed = self.connections[slot].outbox.push(text.as_bytes(), self.io.buffers());
                    self.mark_dirty(slot);
                    if let Err(lost) = pushed {
                        self.count_lost(source.map(|source| source.from), to, lost);
                    }
                }
                Effect::Pause { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.connections[slot].paused = true;
                        self.watch(slot);
                    }
                }
                Effect::Resume { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.connections[slot].paused = false;
                        self.resume_soon(slot);
                    }
                }
                Effect::Spawn { worker, pool, number } => self.spawn(worker, pool, number),
                Effect::CloseStdin { worker } => {
                    if let Some(slot) = self.slot(Peer::Worker(worker)) {
                        self.close_after_flush(slot);
                    }
                }
                Effect::Signal { worker, signal } => self.processes.signal(worker, signal),
                Effect::Probe { worker } => self.tell_unread(worker),
                Effect::Release { worker } => {
                    if let Some(slot) = self.workers.get_mut(worker.index()).and_then(Option::take) {
                        self.leave(slot);
                    }
                }
                Effect::Close { client, how } => {
                    if let Some(slot) = self.slot(Peer::Client(client)) {
                        self.close(slot, how);
                    }
                }
                Effect::PauseAccept => self.accept_paused = true,
                Effect::ResumeAccept => {
                    self.accept_paused = false;
                    for acceptor in 0..self.acceptors.len() {
                        self.arm_accept(acceptor);
                    }
                }
                Effect::StopAccept => {
                    self.closed_for_good = true;
                    for acceptor in 0..self.acceptors.len() {
                        self.close_acceptor(acceptor);
                    }
                }
                Effect::Report(report) => {
                    log::report(&report, |pool| self.pools.get(pool).map_or_else(String::new, |p| p.core.id.clone()));
                }
                Effect::Done => self.done = true,
            }
        }
    }

    fn copy(&mut self, to: Peer, source: &Source<'_>, span: Span) {
        let Some(slot) = self.slot(to) else { return };
        let outbox = &mut self.connections[slot].outbox;
        let queued = match &source.block {
            Some((block, start)) if span.len() >= HOLD.max(block.capacity() / HOLD_PART) => {
                outbox.hold(Rc::clone(block), start + span.start as usize, start + span.end as usize)
            }
            _ => outbox.push(source.window.get(span), self.io.buffers()),
        };
        self.mark_dirty(slot);
        if let Err(lost) = queued {
            self.count_lost(Some(source.from), to, lost);
        }
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
