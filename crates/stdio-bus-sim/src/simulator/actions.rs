//! The next event: a random action, or a consequence of an earlier event.

use std::time::Duration;

use super::{Pace, Reaction, World};
use crate::Draws;
use crate::bus::port::{Close, Exit, Input, Peer, PoolId};
use crate::bus::shutdown::Stage;
use crate::faults;
use crate::faults::Action;
use crate::line::Party;

impl World {
    pub(super) fn act(&mut self) {
        let action = self.scenario.any_action(&mut self.random);
        let (client, worker) = (self.any_client(), self.any_worker());
        match (action, client, worker) {
            (Action::Connect, ..) => self.connect(),
            (Action::ClientWrites, Some(client), _) => {
                for _ in 0..self.random.range(1..5) {
                    self.client_writes(client);
                }
            }
            (Action::WorkerWrites, _, Some(worker)) => {
                for _ in 0..self.random.range(1..5) {
                    self.worker_writes(worker);
                }
            }
            (Action::Arrive, ..) => {
                if let Some(party) = self.any_party(client, worker) {
                    self.arrive_in_part(party);
                }
            }
            (Action::Leave, ..) => {
                if let Some(party) = self.any_party(client, worker) {
                    self.leave_at_its_pace(party);
                }
            }
            (Action::Spawn, ..) => {
                if let Some(at) = self.workers.iter().position(|worker| worker.process.is_starting()) {
                    let runs = !self.random.one_in(8);
                    self.spawned(at, runs);
                }
            }
            (Action::Wait, ..) => self.wait(),
            (Action::WaitForDeadline, ..) => {
                self.wait_for_deadline();
            }
            (Action::ChangePace, ..) => {
                if let Some(party) = self.any_party(client, worker) {
                    self.end_mut(party).pace = Self::any_pace(&mut self.random);
                }
            }
            (Action::HalfClose, Some(client), _) => self.clients[client].end.ended = true,
            (Action::Reset, Some(client), _) => self.reset(client),
            (Action::ClientBad, Some(client), _) if !self.clients[client].end.ended => {
                self.write_bad(Party::Client(client))
            }
            (Action::WorkerBad, _, Some(worker)) if self.can_write(worker) => self.write_bad(Party::Worker(worker)),
            (Action::Flood, _, Some(worker)) if self.can_write(worker) => self.flood(worker),
            (Action::Exit, _, Some(worker)) if self.workers[worker].process.runs() => {
                let exit = *self.random.pick(&[Exit::Code(0), Exit::Code(1), Exit::Signal(11)]);
                self.exit(worker, exit);
            }
            (Action::CloseStdout, _, Some(worker)) if self.can_write(worker) => self.workers[worker].end.ended = true,
            (Action::CloseStdin, _, Some(worker)) => self.break_stdin(worker),
            (Action::Crowd, ..) => self.crowd(),
            (Action::Shutdown, ..) => self.shutdown(),
            _ => {}
        }
    }

    fn arrive_in_part(&mut self, party: Party) {
        let bytes = match self.random.range(0..4) {
            0 => self.random.range(1..8),
            1 => self.random.range(1..400),
            _ => usize::MAX,
        };
        self.arrive(party, bytes);
        if self.random.one_in(2) {
            self.report_end(party);
        }
    }

    fn leave_at_its_pace(&mut self, party: Party) {
        let pace = self.end(party).pace;
        let bytes = match pace {
            Pace::Never => 0,
            Pace::Slow => self.random.range(1..60),
            Pace::Fast if self.random.one_in(3) => self.random.range(1..300),
            Pace::Fast => usize::MAX,
        };
        self.leave(party, bytes);
    }

    fn wait(&mut self) {
        let longest = match self.random.range(0..100) {
            0..3 => 200_000,
            3..5 => 8000,
            5..14 => 2000,
            _ => 100,
        };
        let pause = Duration::from_millis(self.random.range(0..longest) as u64);
        self.pass(self.now.after(pause));
        self.tick_if_due();
        self.weigh();
    }

    /// The memory of all workers is measured: each holds 1 MiB.
    fn weigh(&mut self) {
        if let Some(most) = self.settings.limits.max_workers_memory {
            let mib = self.workers.iter().filter(|worker| !worker.released).count() as u64;
            self.model.holds(mib > most);
            self.handle("memory of workers", None, Input::WorkersMemoryMeasured { mib });
            self.model.holds(false);
        }
    }

    /// A new configuration is loaded, or the operator has workers replaced.
    pub(super) fn reload(&mut self) {
        self.model.replaces();
        let (pool, worker) = (self.random.range(0..self.settings.pools.len()), self.any_worker());
        match (self.random.range(0..7), worker) {
            (0, _) => self.handle("is to be replaced", None, Input::RestartPool(PoolId::at(pool))),
            (5, _) => {
                let pool = PoolId::at(pool);
                let is_paused = self.bus.view().pool_row(pool).is_some_and(|row| row.is_paused);
                let input = if is_paused { Input::ResumePool(pool) } else { Input::PausePool(pool) };
                self.handle("is paused or resumed", None, input);
            }
            (6, Some(at)) => {
                let worker = self.workers[at].key;
                self.handle("is taken out", Some(Party::Worker(at)), Input::TakeOutWorker(worker));
            }
            (1, Some(at)) => {
                let worker = self.workers[at].key;
                let input = if self.random.one_in(2) {
                    Input::RestartWorker { worker, at_once: false }
                } else {
                    Input::WorkerMemoryGrew { worker, mib: 1 }
                };
                self.handle("is to be replaced", Some(Party::Worker(at)), input);
            }
            _ => {
                let draws = &mut Draws::new(&mut self.random);
                let next = faults::reload(draws, self.scenario.settings(), &self.settings);
                if self.bus.view().stage() < Stage::Terminating {
                    self.settings = next.clone();
                    self.model.reloaded(self.now, &next);
                }
                self.note(|_| format!("{next:#?}"));
                self.step("reload", None, |bus, now| bus.reload(now, &next));
            }
        }
    }

    /// Reports to the bus that memory is short, with holders of any size; or that it is available again.
    pub(super) fn crowd(&mut self) {
        let most = self.settings.limits.max_memory;
        let clients: Vec<_> = self.clients.iter().filter(|client| !client.closed).map(|client| client.key).collect();
        let goes_on = !self.is_crowded || self.random.one_in(2);
        self.is_crowded = goes_on && !clients.is_empty();
        let random = &mut self.random;
        let (used, held) = if self.is_crowded {
            let sizes = [1 << 10, 100 << 10, most / 4, most];
            let held = clients.into_iter().map(|key| (Peer::Client(key), *random.pick(&sizes))).collect();
            (if random.one_in(4) { random.range(most..2 * most) } else { most - 1 }, held)
        } else {
            (0, Vec::new())
        };
        self.handle("memory", None, Input::MemoryMeasured { used, held, waiting: Vec::new() });
    }

    pub(super) fn shutdown(&mut self) {
        if self.drain.has_signals() {
            let before = self.bus.view().stage();
            let again = self.drain.signal(self.now) && before > Stage::Running;
            let limits = &self.settings.limits;
            let starts = before == Stage::Running && limits.lame_duck.is_zero();
            self.model.shuts_down(again || starts, again || starts && limits.quiesce.is_zero());
            self.handle("shutdown", None, Input::Shutdown);
            if before > Stage::Running && !again {
                assert_eq!(self.bus.view().stage(), before, "two signals within a second are one");
            }
            if again {
                assert!(self.bus.view().stage() >= Stage::Killing, "the second signal waits for a worker");
                assert!(!self.workers.iter().any(|worker| worker.process.is_spared()), "the second signal kills");
                assert!(self.clients.iter().all(|client| client.closed || client.closing.is_some()));
                let pending = self.model.asked_by_clients();
                assert_eq!(pending, 0, "{pending} requests got no error");
            }
        }
    }

    /// Runs one consequence of an earlier event; returns whether there was any.
    pub(super) fn react(&mut self) -> bool {
        let mut todo: Vec<Reaction> = Vec::new();
        for (at, worker) in self.workers.iter().enumerate().filter(|(_, worker)| !worker.released) {
            if worker.probed {
                todo.push(Box::new(move |world| {
                    let worker = &mut world.workers[at];
                    worker.probed = false;
                    let input = Input::UnreadMeasured { worker: worker.key, bytes: worker.end.half_read.len() };
                    world.handle("is looked at", Some(Party::Worker(at)), input);
                }));
            }
            if let Some(exit) = worker.process.ends(worker.end.queue.is_empty()) {
                todo.push(Box::new(move |world| world.exit(at, exit)));
            }
            if worker.end.ended && !worker.end.end_told && !worker.end.ignored && !worker.end.paused {
                todo.push(Box::new(move |world| {
                    world.arrive(Party::Worker(at), usize::MAX);
                    world.report_end(Party::Worker(at));
                }));
            }
        }
        for (at, client) in self.clients.iter().enumerate().filter(|(_, client)| !client.closed) {
            match client.closing {
                Some(Close::Now) => todo.push(Box::new(move |world| world.close(at))),
                // The shell shuts its own side down, and then sees the end of the input, again if it had seen it.
                Some(Close::Flush) if client.end.queue.is_empty() && !client.reset && !client.flush_told => {
                    todo.push(Box::new(move |world| {
                        let client = &mut world.clients[at];
                        (client.end.ended, client.end.end_told, client.flush_told) = (true, true, true);
                        let input = Input::InputEnded { peer: Peer::Client(client.key), partial: 0 };
                        world.handle("has ended after all", Some(Party::Client(at)), input);
                    }));
                }
                _ => {}
            }
            if client.end.ended && !client.end.end_told && !client.end.ignored && !client.end.paused {
                todo.push(Box::new(move |world| {
                    world.arrive(Party::Client(at), usize::MAX);
                    world.report_end(Party::Client(at));
                }));
            }
        }
        if todo.is_empty() {
            return false;
        }
        let which = self.random.range(0..todo.len());
        todo.swap_remove(which)(self);
        true
    }
}
