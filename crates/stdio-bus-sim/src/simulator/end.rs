//! All peers heal and leave, and nothing may be left over.

use super::{SimWorker, World};
use crate::bus::port::{Input, PoolId};
use crate::bus::report::Reason;
use crate::bus::shutdown::Stage;
use crate::line::Party;

impl World {
    /// All peers read and answer until none waits for anything.
    pub(super) fn heal(&mut self) {
        self.note(|_| "everybody heals".into());
        self.healing = true;
        if self.is_crowded {
            self.is_crowded = false;
            self.handle("memory", None, Input::MemoryMeasured { used: 0, held: Vec::new(), waiting: Vec::new() });
        }
        for pool in (0..self.settings.pools.len()).map(PoolId::at) {
            if self.bus.view().pool_row(pool).is_some_and(|row| row.is_paused || row.out > 0) {
                self.handle("is resumed", None, Input::ResumePool(pool));
            }
        }
        for _ in 0..2000 {
            self.progress();
            let empty = self.model.slots_empty() as u64;
            let manned = self.model.is_refusing()
                || empty <= self.bus.view().count(Reason::PoolDegraded) && self.all_are_renewed();
            if self.drain.has_ended() || manned && self.model.is_idle() && self.no_party_is_paused() {
                return;
            }
            if !self.wait_for_deadline() {
                panic!("nothing will ever happen again, and there is left:\n{}", self.model.outstanding());
            }
        }
        panic!("it does not come to rest; there is left:\n{}", self.model.outstanding());
    }

    /// Whether every worker runs the newest command of its pool, except for workers that leave, and pools whose newest
    /// command cannot live.
    fn all_are_renewed(&self) -> bool {
        let is_renewed = |worker: &SimWorker| {
            let pool = &self.settings.pools[worker.name.pool];
            let stays =
                self.bus.view().role(worker.key) == Some("serves") && self.bus.view().owner(worker.key).is_none();
            !stays
                || pool.is_gone
                || worker.generation == pool.generation
                || self.bus.view().rollout_failure(worker.name.pool).is_some()
        };
        self.workers.iter().filter(|worker| !worker.released).all(is_renewed)
    }

    fn no_party_is_paused(&self) -> bool {
        self.all_parties().into_iter().all(|party| !self.end(party).paused || self.end(party).ignored)
    }

    /// Lets all peers do what can be done without waiting.
    pub(super) fn progress(&mut self) {
        loop {
            let before = (self.journal.noted(), self.model.lines.len());
            while self.react() {}
            for at in 0..self.workers.len() {
                if self.workers[at].process.is_starting() && !self.workers[at].released {
                    self.spawned(at, true);
                }
                self.read_lines(Party::Worker(at));
                while !self.workers[at].todo.is_empty() && self.can_write(at) {
                    self.worker_answers(at);
                }
            }
            for at in 0..self.clients.len() {
                let client = &self.clients[at];
                if !client.closed && !client.end.ended && !client.reset {
                    while !self.clients[at].todo.is_empty() {
                        self.client_answers(at);
                    }
                }
            }
            for party in self.all_parties() {
                if !self.end(party).wire.is_empty() || !self.end(party).kept.is_empty() {
                    self.arrive(party, usize::MAX);
                }
                if !self.end(party).queue.is_empty() {
                    self.leave(party, usize::MAX);
                }
            }
            if before == (self.journal.noted(), self.model.lines.len()) || self.drain.has_ended() {
                return;
            }
        }
    }

    /// All clients leave, the bus shuts down, and nothing may be left.
    pub(super) fn finish(&mut self) {
        self.note(|_| "everybody leaves".into());
        for at in 0..self.clients.len() {
            if self.random.one_in(3) {
                self.reset(at);
            }
            self.clients[at].end.ended = true;
        }
        for _ in 0..2000 {
            if self.drain.has_ended() || self.clients.iter().all(|client| client.closed) {
                break;
            }
            self.progress();
            self.wait_for_deadline();
        }
        if !self.drain.has_ended() {
            assert!(self.clients.iter().all(|client| client.closed), "clients never go");
            assert_eq!((self.bus.view().stats().clients, self.bus.view().stats().sessions), (0, 0));
            let leaves = |at: &usize| self.bus.view().role(self.workers[*at].key) == Some("leaves");
            let leaving: Vec<usize> = (0..self.workers.len()).filter(leaves).collect();
            let have_ended = |world: &Self| leaving.iter().all(|at| world.workers[*at].released);
            for _ in 0..2000 {
                if have_ended(self) {
                    break;
                }
                self.progress();
                self.wait_for_deadline();
            }
            assert!(have_ended(self), "an unused worker does not end");
            self.drain.renew_signals();
            self.shutdown();
        }
        for _ in 0..2000 {
            if self.drain.has_ended() {
                break;
            }
            self.progress();
            self.wait_for_deadline();
        }
        self.drain.check_end();
        assert_eq!(self.bus.view().stage(), Stage::Done);
        assert_eq!(self.bus.view().stats().clients, 0);
        // A killed worker that is not reaped in time, or whose pipe is held, does not hold up the end.
        for at in 0..self.workers.len() {
            let worker = &self.workers[at];
            if !worker.released {
                assert!(!worker.process.is_spared(), "worker {at} was left alone");
                self.model.settled(self.now, at);
            }
        }
        self.model.check_end();
    }
}
