//! Memory as the shell sees it: it counts, and tells the core when too much is lent or the system has none left; who
//! is held back or closed for it is decided there (`bus/memory.rs`).
//!
//! While memory is short, no client's line takes a larger block before the core has been told: what a turn can add is
//! bounded by what is lent already, whatever the kernel brings.

use std::time::Duration;

use super::Shell;
use super::budget::Stage;
use super::reactor::Reactor;
use crate::bus::port::{Input, Moment, Peer};
use crate::io::Io;
use crate::reserve;

/// How often the core is told while memory stays short.
const AGAIN: Duration = Duration::from_millis(10);
/// Lines may go on growing while at most this part of max_memory is lent; the others wait until there is more room.
const ROOM_TO_GROW: (usize, usize) = (15, 16);
/// Spares that nobody has needed for so long go back to the system.
const TRIM_EVERY: Duration = Duration::from_secs(1);

impl<I: Io> Shell<I> {
    /// Bytes of all blocks that are lent, and of the lines that the core keeps.
    fn lent(&self) -> usize {
        self.reactor.io.lent() + self.bus.bytes_waiting()
    }

    /// When [`Shell::check_memory`] has something to do although nothing happens.
    pub(super) fn memory_due(&self) -> Option<Moment> {
        let memory = &self.reactor.memory;
        let tell = match memory.stage(self.lent()) {
            Stage::Enough => None,
            Stage::Short => Some(memory.short_at),
            Stage::Over => Some(memory.over_at),
        };
        let refused = (memory.refused || reserve::is_spent()).then_some(memory.refused_at);
        [tell, refused, memory.trim_at].into_iter().flatten().min()
    }

    /// Looks once a turn whether memory is short, and gives back what is not needed.
    pub(super) fn check_memory(&mut self, now: Moment) {
        let stage = self.reactor.memory.stage(self.lent());
        if stage > Stage::Enough || self.reactor.memory.told > Stage::Enough {
            self.tell_memory(now, stage);
        }
        if self.reactor.memory.refused || reserve::is_spent() {
            self.tell_refused(now);
        }
        if !self.reactor.memory.waiting.is_empty() && !self.reactor.is_short_of_memory() {
            self.reactor.retry_waiting();
        }
        if self.reactor.io.buffers().has_spares() {
            let due = *self.reactor.memory.trim_at.get_or_insert(now.after(TRIM_EVERY));
            if due <= now {
                self.reactor.io.buffers().trim();
                self.reactor.memory.trim_at = self.reactor.io.buffers().has_spares().then(|| now.after(TRIM_EVERY));
            }
        } else {
            self.reactor.memory.trim_at = None;
        }
    }

    fn tell_memory(&mut self, now: Moment, stage: Stage) {
        match stage {
            Stage::Enough => {
                self.reactor.memory.told = stage;
                return self.tell(now, Input::Memory { used: self.lent(), held: Vec::new(), waiting: Vec::new() });
            }
            Stage::Short if self.reactor.memory.short_at > now => return,
            Stage::Over if self.reactor.memory.over_at > now => return,
            Stage::Short => {}
            Stage::Over => self.reactor.memory.over_at = now.after(AGAIN),
        }
        self.reactor.memory.told = stage;
        self.reactor.memory.short_at = now.after(AGAIN);
        self.reactor.io.buffers().drop_spares();
        let (used, held) = (self.lent(), self.reactor.holders());
        let waiting = self
            .reactor
            .memory
            .waiting
            .iter()
            .filter_map(|slot| self.reactor.connections.get(*slot))
            .map(|connection| connection.peer);
        let waiting = waiting.collect();
        self.tell(now, Input::Memory { used, held, waiting });
        self.reactor.retry_waiting();
    }

    fn tell_refused(&mut self, now: Moment) {
        if self.reactor.memory.refused_at > now {
            return;
        }
        self.reactor.memory.refused_at = now.after(AGAIN);
        self.reactor.io.buffers().drop_spares();
        let has_reserve = reserve::keep();
        if !std::mem::take(&mut self.reactor.memory.refused) && has_reserve {
            return;
        }
        let held = self.reactor.holders();
        self.tell(now, Input::Refused { client: None, held });
        self.reactor.retry_waiting();
    }

    /// What came from a client cannot be kept.
    pub(super) fn refuse_to_keep(&mut self, now: Moment, slot: usize) {
        self.reactor.memory.refused = true;
        if let Peer::Client(client) = self.reactor.connections[slot].peer {
            let held = self.reactor.connections[slot].weight();
            self.tell(now, Input::Refused { client: Some(client), held: vec![(Peer::Client(client), held)] });
        }
    }
}

impl<I: Io> Reactor<I> {
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.io.lent() > self.memory.short_above() || self.memory.refused || reserve::is_spent()
    }

    /// Those who have waited for memory try again, the first one first.
    fn retry_waiting(&mut self) {
        let enough = self.memory.most / ROOM_TO_GROW.1 * ROOM_TO_GROW.0;
        let mut waiting = std::mem::take(&mut self.memory.waiting).into_iter();
        while self.io.lent() < enough
            && let Some(slot) = waiting.next()
        {
            self.arm_read_and_grow(slot);
        }
        self.memory.waiting.extend(waiting);
    }

    /// Who holds how much. A block that several outputs hold counts for each of them.
    fn holders(&self) -> Vec<(Peer, usize)> {
        let weights = self.connections.iter().map(|(_, connection)| (connection.peer, connection.weight()));
        weights.filter(|(_, weight)| *weight > 0).collect()
    }

    /// There is no room for the next read of a connection: it waits until somebody else has made some.
    pub(super) fn wait_for_memory(&mut self, slot: usize) {
        self.memory.refused = true;
        self.memory.waiting.push(slot);
    }

    /// `lost` bytes of `from`, or of the bus' own, could not be queued for `to`.
    pub(super) fn count_lost(&mut self, from: Option<Peer>, to: Peer, lost: usize) {
        self.memory.refused = true;
        let now = self.clock.now();
        let client = match (to, from) {
            (Peer::Client(client), _) | (_, Some(Peer::Client(client))) => client,
            _ => return self.tell(now, Input::Sent { peer: to, bytes: lost }),
        };
        // Nobody is told of them any more, and nobody waits until they have left.
        self.tell(now, Input::Refused { client: Some(client), held: Vec::new() });
        self.tell(now, Input::Sent { peer: to, bytes: lost });
    }
}
