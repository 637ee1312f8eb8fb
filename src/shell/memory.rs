//! The memory limit: the shell counts, and reports to the core when too much is lent or the system is out of memory; the
//! core decides who is paused or closed for it (`crates/stdio-bus-core/src/eviction.rs`).
//!
//! While memory is short, no client's line gets a larger block before that was reported: so what a turn can add is
//! bounded by what is lent already.

use std::time::Duration;

use super::connections::{HttpSlot, PeerSlot};
use super::memory_pressure::{AGAIN, MemoryStage};
use super::reactor::Reactor;
use super::timers::Timer;
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Peer, Reason};
use crate::io::Io;
use crate::reserve;

/// Lines may keep growing while at most this part of max_memory is lent; others wait until there is more room.
const ROOM_TO_GROW: (usize, usize) = (15, 16);
/// Spares unused for this long are returned to the system.
const TRIM_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of connections without clients that are closed at a time.
const MOST_CLOSED: usize = 64;

impl<I: Io> Shell<I> {
    /// Bytes of all lent blocks, and of the lines that the core keeps.
    pub(super) fn lent(&self) -> usize {
        self.reactor.io.lent()
            + self.bus.view().bytes_waiting()
            + self.bus.view().bytes_of_openings()
            + self.reactor.http.held()
    }

    /// Checks once per turn whether memory is short, and frees what is not needed.
    pub(super) fn check_memory(&mut self, now: Moment) {
        self.reactor.give_back_answers();
        let has_spares = self.reactor.io.memory().has_spares();
        if !self.reactor.memory.is_calm(now, self.lent(), has_spares) || reserve::is_spent() {
            self.step(|shell| shell.report_memory_use(now));
            // Connections that wait for memory continue, now that it was reported to the core.
            self.reactor.retry_waiting();
            self.reactor.trim(now);
            let lent = self.lent();
            let Reactor { memory, timers, .. } = &mut self.reactor;
            memory.is_due = false;
            timers.set(Timer::Memory, memory.due(lent, reserve::is_spent()));
        }
    }

    fn report_memory_use(&mut self, now: Moment) {
        let used = self.lent();
        let reactor = &mut self.reactor;
        let stage = reactor.memory.stage(used);
        if reactor.memory.may_report(now, stage) {
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            if stage > MemoryStage::Enough {
                reactor.io.buffers().drop_spares();
                held = reactor.holders();
                if stage == MemoryStage::Over {
                    reactor.close_strays(now, used, held.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default());
                }
                let waits = reactor.memory.waiting.iter().filter_map(|slot| reactor.connections.peer(*slot));
                waiting = waits.map(|endpoint| endpoint.peer).collect();
                reactor.memory.may_grow = true;
            }
            let used = self.lent();
            self.reactor.dispatch(now, Input::MemoryMeasured { used, held, waiting });
        }
        if (self.reactor.memory.refused || reserve::is_spent()) && self.reactor.memory.refused_at <= now {
            self.reactor.report_refused_memory(now);
        }
    }
}

impl<I: Io> Reactor<I> {
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.io.lent() > self.memory.short_above() || self.memory.refused || reserve::is_spent()
    }

    fn report_refused_memory(&mut self, now: Moment) {
        self.memory.refused_at = now.after(AGAIN);
        self.io.buffers().drop_spares();
        let has_reserve = reserve::keep();
        if !std::mem::take(&mut self.memory.refused) && has_reserve {
            return;
        }
        let held = self.holders();
        self.memory.may_grow = true;
        self.dispatch(now, Input::MemoryRefused { client: None, held });
    }

    /// Closes connections whose clients have ended, with what they did not read, while more than max_memory is used and
    /// those of one source hold more than `most`, which is what the largest client holds.
    fn close_strays(&mut self, now: Moment, used: usize, most: usize) {
        let mut too_much = used.saturating_sub(self.memory.most);
        for _ in 0..MOST_CLOSED {
            let Some((slot, bytes)) =
                self.http.heaviest_stray(&self.connections).filter(|(_, bytes)| too_much > 0 && *bytes > most)
            else {
                return;
            };
            too_much = too_much.saturating_sub(self.connections[HttpSlot(slot)].weight());
            let text = format!(
                "a connection over HTTP is closed: it and others of its source, whose sessions have ended or whose requests \
                 are incomplete, held {bytes} bytes when {used} bytes of max_memory, {}, were in use; read answers \
                 sooner, or raise limits.max_memory",
                self.memory.most
            );
            let place = self.connections[HttpSlot(slot)].origin.place;
            self.dispatch(now, Input::ConnectionRejected { place, reason: Reason::MemoryLimit, text });
            self.close_http(now, slot);
        }
    }

    /// The bytes of a client cannot be buffered.
    pub(super) fn refuse_to_keep(&mut self, now: Moment, slot: usize) {
        self.memory.refused = true;
        if let Peer::Client(client) = self.connections[PeerSlot(slot)].peer {
            let held = self.connections.entry(slot).weight();
            self.dispatch(now, Input::MemoryRefused { client: Some(client), held: vec![(Peer::Client(client), held)] });
        }
    }

    /// Frees spares that were unused for a while.
    fn trim(&mut self, now: Moment) {
        if !self.io.buffers().has_spares() {
            return self.memory.trim_at = None;
        }
        if *self.memory.trim_at.get_or_insert(now.after(TRIM_EVERY)) <= now {
            self.io.buffers().trim();
            self.memory.trim_at = self.io.buffers().has_spares().then(|| now.after(TRIM_EVERY));
        }
    }

    /// Retries connections that wait for memory, in order, if there is enough or it was just reported to the core.
    fn retry_waiting(&mut self) {
        let may_grow = std::mem::take(&mut self.memory.may_grow);
        if self.memory.waiting.is_empty() || !may_grow && self.is_short_of_memory() {
            return;
        }
        let enough = self.memory.most / ROOM_TO_GROW.1 * ROOM_TO_GROW.0;
        let mut waiting = std::mem::take(&mut self.memory.waiting).into_iter();
        while self.io.lent() < enough
            && let Some(slot) = waiting.next()
        {
            self.arm(slot, true);
        }
        self.memory.waiting.extend(waiting);
    }

    /// How much memory each peer holds. A block held by several outputs counts for each of them.
    fn holders(&self) -> Vec<(Peer, usize)> {
        let weights =
            self.connections.all_peers().map(|(_, connection, endpoint)| (endpoint.peer, connection.weight()));
        weights.chain(self.http.holders(&self.connections)).filter(|(_, weight)| *weight > 0).collect()
    }

    /// `lost` bytes from `from`, or from the bus itself, could not be queued for `to`.
    pub(super) fn count_lost(&mut self, from: Option<Peer>, to: Peer, lost: usize) {
        self.memory.refused = true;
        let now = self.clock.now();
        let client = match (to, from) {
            (Peer::Client(client), _) | (_, Some(Peer::Client(client))) => client,
            _ => return self.dispatch(now, Input::Sent { peer: to, bytes: lost }),
        };
        // The client is not notified of them, and is removed without waiting.
        self.dispatch(now, Input::MemoryRefused { client: Some(client), held: Vec::new() });
        self.dispatch(now, Input::Sent { peer: to, bytes: lost });
    }
}
