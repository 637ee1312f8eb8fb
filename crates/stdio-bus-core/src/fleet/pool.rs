//! The pools: their slots, which are kept filled within the limits of `restart.rs`, and the names of their workers
//! (spec 7.1.3; decision 13).

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::answering::Answering;
use super::discovery::Discovery;
use super::restart::{Restarts, retry_after};
use super::roll::{Fallback, Roll};
use super::tenure::Tenure;
use super::worker::{Facts, State, Worker};
use crate::Bus;
use crate::ctx::Ctx;
use crate::endpoint::{Endpoint, Stream};
use crate::flow::window::SendWindow;
use crate::peer::{ClientKey, Moment, WorkerKey};
use crate::port::Effect;
use crate::report::{Reason, Report, WorkerName};
use crate::settings::{self, Assignment, Era};
use crate::silence::TimeLimits;
use crate::tally::Tally;
use crate::timers::Timer;
use crate::view::View;
use crate::withdrawal::Dialect;

/// A worker that lives this long with its client is not a failure, however it ends then.
const LASTS: Duration = Duration::from_secs(10);

/// A place for a worker in a pool, and its history.
#[derive(Default)]
pub(crate) struct WorkerSlot {
    /// The worker in it; none when a client has taken that for itself.
    pub worker: Option<WorkerKey>,
    /// When the next worker is started.
    pub restarts: Restarts,
}

/// The side of a pool. A pool of an MCP listener has workers for clients of either era, which are in two pools here:
/// people see one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    /// The era of its clients.
    pub era: Era,
    /// The index of the pool for the other era, if there is one.
    pub twin: Option<usize>,
    /// The index of the configured pool.
    pub shown_as: usize,
    /// It was not needed yet: none of its workers is started.
    pub is_dormant: bool,
    /// A client of its era has needed a worker, or there is no other side.
    pub is_used: bool,
    /// The pool is removed from the configuration, and no client uses it.
    pub is_released: bool,
}

/// A pool of workers.
#[derive(Default)]
pub(crate) struct Pool {
    /// One per instance; in a dedicated pool, one per warm spare, or with lending one per possible worker.
    pub slots: Vec<WorkerSlot>,
    /// The era of its clients.
    pub side: Side,
    /// Whether its command serves 2026-07-28, if that matters; it is kept at the configured pool, and so is the tally.
    pub discovery: Option<Discovery>,
    /// When the next spare is started after workers that ended soon after a client had taken them.
    pub restarts: Restarts,
    /// The replacement of its workers.
    pub roll: Roll,
    /// The command that has settled, with which empty slots are filled.
    pub settled: u32,
    /// The previous command, until a worker of the settled one has answered something.
    pub fallback: Option<Fallback>,
    /// One of its clients knows subagents, which its workers may announce (`session/children.rs`).
    pub has_subagents: bool,
    /// The protocol of the last `initialize` that one of its workers was sent.
    pub dialect: Option<Dialect>,
    /// Its counters.
    pub tally: Tally,
}

impl Pool {
    /// A pool without workers.
    pub(super) fn new(pool: &settings::Pool, side: Side) -> Self {
        Self {
            slots: (0..pool.slots(side.era)).map(|_| WorkerSlot::default()).collect(),
            side,
            discovery: (side.era == Era::Legacy && side.twin.is_some()).then(Discovery::default),
            settled: pool.generation,
            ..Self::default()
        }
    }

    /// The slot that a worker is in.
    pub(super) fn slot_of(&self, worker: WorkerKey) -> Option<usize> {
        self.slots.iter().position(|slot| slot.worker == Some(worker))
    }

    /// Until when no worker is started, since workers that clients had taken have failed.
    pub(crate) fn rests_until(&self, now: Moment) -> Option<Moment> {
        self.restarts.due().filter(|until| *until > now)
    }
}

impl Bus {
    /// Fills the empty slots of a pool as if none of its workers had ever ended.
    pub(crate) fn forget_ends(&mut self, pool: usize) {
        let here = &mut self.fleet.pools[pool];
        here.restarts = Restarts::default();
        for slot in here.slots.iter_mut().filter(|slot| slot.worker.is_none()) {
            slot.restarts = Restarts::default();
        }
    }

    /// Number of slots of a pool that are kept filled, the first ones.
    pub(crate) fn kept_slots(&self, pool: usize) -> usize {
        let side = self.fleet.pools[pool].side;
        if side.is_dormant || side.is_released { 0 } else { self.ctx.settings.pools[pool].instances }
    }

    /// The slots of a configured pool that are kept filled.
    pub(crate) fn slots_of(&self, pool: usize) -> impl Iterator<Item = &WorkerSlot> {
        self.sides_of(pool).flat_map(|side| &self.fleet.pools[side].slots[..self.kept_slots(side)])
    }

    /// Whether a pool has `max_instances` workers, not counting those that are starting or stopping for a replacement.
    pub(crate) fn is_full(&self, pool: usize) -> bool {
        let roll = &self.fleet.pools[pool].roll;
        let counts = |key: WorkerKey, worker: &Worker| {
            worker.pool == pool && !worker.tenure.is_leaving() && !roll.is_candidate(key)
        };
        self.ctx.workers.iter().filter(|(key, worker)| counts(*key, worker)).count()
            >= self.ctx.settings.pools[pool].max_instances
    }

    /// Whether a worker may be started for a client. A pool whose workers crash is not restarted by clients that ask
    /// for one.
    pub(super) fn may_grow(&self, pool: usize) -> bool {
        self.is_sound(pool) && !self.is_full(pool)
    }

    /// Whether the workers of a pool do not crash.
    pub(crate) fn is_sound(&self, pool: usize) -> bool {
        let here = &self.fleet.pools[pool];
        let is_failing = here.slots.iter().any(|slot| slot.restarts.is_failing());
        !is_failing && here.rests_until(self.ctx.time.now()).is_none()
    }

    /// Starts a worker in every slot that is empty and not in backoff. Spares of a dedicated pool are started one after
    /// the other, and after waiting clients (`queue.rs`).
    pub(crate) fn fill_slots(&mut self, pool: usize) {
        if self.ctx.shutdown.stops_workers() || self.is_rolling(pool) {
            return;
        }
        if let Some(until) = self.fleet.pools[pool].rests_until(self.ctx.time.now()) {
            return self.ctx.timers.arm(Timer::Pool(pool), until);
        }
        let is_dedicated = self.ctx.settings.pools[pool].assignment == Assignment::Dedicated;
        for slot in 0..self.kept_slots(pool) {
            let here = &self.fleet.pools[pool].slots[slot];
            if here.worker.is_some() || !here.restarts.may_begin(self.ctx.time.now()) {
                continue;
            }
            if is_dedicated && !self.may_start_at_once(pool) {
                return;
            }
            if let Some(worker) = self.start_in_slot(pool, slot) {
                self.choose_to_ask(worker);
                self.end_vacancy(pool);
            }
        }
    }

    /// Starts a worker in an empty slot.
    pub(super) fn start_in_slot(&mut self, pool: usize, slot: usize) -> Option<WorkerKey> {
        // Clients may have taken all that are allowed.
        if self.is_full(pool) {
            return None;
        }
        let worker = self.start_worker(pool, Some(slot), self.fleet.pools[pool].settled)?;
        let here = &mut self.fleet.pools[pool].slots[slot];
        here.worker = Some(worker);
        if here.restarts.is_unsteady() {
            self.ctx.put_on_probation(worker);
        }
        self.fleet.pools[pool].slots[slot].restarts.begin();
        Some(worker)
    }

    /// Starts a worker with a command of its pool.
    pub(super) fn start_worker(&mut self, pool: usize, slot: Option<usize>, generation: u32) -> Option<WorkerKey> {
        let shown = self.fleet.pools[pool].side.shown_as;
        let (place, incarnation) = (self.ctx.free_place(shown, slot), self.fleet.next_number);
        let name = WorkerName { pool: shown, place, incarnation };
        let settings = &self.ctx.settings.pools[pool];
        let tenure = Tenure::new(self.ctx.time.now(), settings, generation, incarnation);
        let has_subagents = self.fleet.pools[pool].has_subagents;
        let facts = Facts { started: self.ctx.time.now(), has_subagents, ..Facts::default() };
        let answering = Answering::new(TimeLimits::of(settings));
        let end = Endpoint { stream: Stream::of_worker(), ..Endpoint::default() };
        let window = SendWindow::new();
        let worker = Worker { pool, name, facts, tenure, answering, window, end, ..Worker::default() };
        let worker = self.ctx.workers.insert(worker)?;
        self.fleet.next_number += 1;
        self.ctx.wake_at(worker.into(), tenure.ages_at);
        self.ctx.out.push(Effect::Spawn { worker, name, generation });
        Some(worker)
    }

    /// Takes a warm spare out of its slot for one client, or starts a worker for it if the pool may grow; or lends one.
    pub(super) fn take_dedicated(&mut self, client: ClientKey, group: usize) -> Option<WorkerKey> {
        let pool = self.fleet.balancer.groups[group].pools().next()?;
        let lends = self.fleet.balancer.groups[group].lends();
        let worker = if lends {
            self.lend_worker(client, pool)?
        } else if let Some(spare) = self.next_in_turn(group) {
            self.leave_slot(spare);
            spare
        } else if self.may_grow(pool) {
            self.start_worker(pool, None, self.fleet.pools[pool].settled)?
        } else {
            return None;
        };
        let taken = self.ctx.workers.get_mut(worker)?;
        taken.owner = Some(client);
        taken.facts.claimed = self.ctx.time.now();
        if !lends {
            self.count_turn(client, worker);
            self.fill_slots(pool);
        }
        Some(worker)
    }

    /// Removes a worker from its slot, if it was in one.
    pub(super) fn leave_slot(&mut self, key: WorkerKey) {
        let Some(worker) = self.ctx.workers.get(key) else { return };
        let slots = &mut self.fleet.pools[worker.pool].slots;
        slots.iter_mut().for_each(|slot| _ = slot.worker.take_if(|it| *it == key));
    }

    /// The worker of a slot has exited unexpectedly: reports the consequence for the slot.
    fn on_slot_failure(&mut self, slot: usize, worker: &Worker) {
        let (limits, settings) = (&self.ctx.settings.limits, &self.ctx.settings.pools[worker.pool]);
        let kept = self.kept_slots(worker.pool);
        let pool = &mut self.fleet.pools[worker.pool];
        let delay = pool.slots[slot].restarts.fail(self.ctx.time.now(), worker.facts.started, limits);
        let left = pool.slots[..kept].iter().filter(|slot| !slot.restarts.is_given_up()).count();
        let (reason, text) = match delay {
            Some(delay) => (Reason::RestartScheduled, format!("the next one starts in {} ms", delay.as_millis())),
            None => {
                let text = format!(
                    "given up after {} restarts within {} s; pool \"{}\" has {} of {} workers left. Correct the command; \
                     `stdio_bus restart pool {}` tries it at once{}",
                    limits.max_restarts,
                    limits.restart_window.as_secs(),
                    settings.id,
                    left,
                    kept,
                    settings.id,
                    match retry_after(limits) {
                        None => String::new(),
                        Some(after) => format!(", the daemon in {} s", after.as_secs()),
                    },
                );
                (Reason::PoolDegraded, text)
            }
        };
        self.fleet.pools[worker.name.pool].tally.note(reason);
        self.ctx.tell(reason, || Report { worker: Some(worker.name), ..Report::new(reason, text) });
    }

    /// A worker without a slot has ended, which a client may have taken: if that was soon, and by itself, the next one
    /// has to wait. It does not help that it has answered: agents without their key answer `initialize`, and exit with
    /// the first session.
    fn on_taken_end(&mut self, worker: &Worker) {
        let process = &worker.process;
        let is_unexpected = worker.owner.is_some() && process.ended_by_itself() && !worker.facts.is_unwanted;
        let is_failure = is_unexpected && self.ctx.time.now().since(worker.facts.claimed) < LASTS;
        let source = worker.owner.and_then(|owner| self.ctx.identity(owner)).map(|owner| owner.origin.source());
        let restarts = &mut self.fleet.pools[worker.pool].restarts;
        if !is_failure {
            if worker.answering.has_answered() {
                *restarts = Restarts::default();
            }
            return;
        }
        let Some(delay) = restarts.fail_for(self.ctx.time.now(), source) else { return };
        self.ctx.tell(Reason::RestartScheduled, || {
            let text =
                format!("the worker ended soon after a client got it; the next one starts in {} ms", delay.as_millis());
            Report { worker: Some(worker.name), ..Report::new(Reason::RestartScheduled, text) }
        });
    }

    /// A worker has left its pool: its slot, if it has one, is filled again, now or after its backoff.
    pub(super) fn leave_pool(&mut self, key: WorkerKey, worker: &Worker) {
        let is_candidate = self.fleet.pools[worker.pool].roll.is_candidate(key);
        if worker.has_run() && !worker.facts.is_unwanted {
            self.end_question(worker);
        }
        if let Some(slot) = self.fleet.pools[worker.pool].slot_of(key) {
            self.fleet.pools[worker.pool].slots[slot].worker = None;
            if worker.is_excused() || self.ctx.shutdown.stops_workers() {
                // It has not failed.
            } else if worker.facts.was_short {
                self.fleet.pools[worker.pool].slots[slot].restarts.note_shortage(self.ctx.time.now());
            } else {
                self.on_slot_failure(slot, worker);
            }
        } else if is_candidate {
            self.candidate_ended(worker);
        } else {
            self.on_taken_end(worker);
        }
        if !is_candidate && worker.process.ended_by_itself() {
            self.doubt_command(worker);
        }
        self.tick_pool(worker.pool);
        // There may be none to wait for any more.
        self.stop_awaiting_workers_of(worker.pool);
    }

    /// Starts workers that are due.
    pub(crate) fn tick_pool(&mut self, pool: usize) {
        if pool >= self.fleet.pools.len() {
            return;
        }
        self.advance_roll(pool);
        self.fill_slots(pool);
        let kept = self.kept_slots(pool);
        let empty = self.fleet.pools[pool].slots[..kept].iter().filter(|slot| slot.worker.is_none());
        // Workers that are due and were not started follow one after another (`queue.rs`).
        if let Some(next) = empty.filter_map(|slot| slot.restarts.due()).filter(|at| *at > self.ctx.time.now()).min() {
            self.ctx.timers.arm(Timer::Pool(pool), next);
        }
    }

    /// Panics if slots and workers disagree.
    pub(crate) fn check_pools(&self) {
        let mut names: Vec<_> =
            self.ctx.workers.iter().map(|(_, worker)| (worker.name.pool, worker.name.place)).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "no two workers have one name");
        for (index, pool) in self.fleet.pools.iter().enumerate() {
            for (_, worker) in self.ctx.workers.iter().filter(|(_, worker)| worker.pool == index) {
                assert_eq!(worker.name.pool, pool.side.shown_as);
                assert!(!pool.side.is_dormant || worker.tenure.is_leaving() || !worker.takes_messages());
            }
            assert!(!pool.side.is_dormant || !pool.side.is_used, "what is used does not rest");
            for (slot, here) in pool.slots.iter().enumerate() {
                let Some(key) = here.worker else { continue };
                let worker = self.ctx.workers.get(key).expect("a worker in a slot lives");
                assert_eq!((worker.pool, pool.slot_of(key)), (index, Some(slot)), "it has one slot of its pool");
                assert!(!here.restarts.is_failing(), "a slot that is taken waits for no worker");
            }
        }
    }
}

impl Ctx {
    /// The place for the name of a worker in this slot: that of the slot, so that the name stays the same over a
    /// restart, or the first free one if a client has taken the last worker of the slot along.
    fn free_place(&self, shown: usize, slot: Option<usize>) -> usize {
        let names = self.workers.iter().map(|(_, worker)| worker.name).filter(|name| name.pool == shown);
        let taken: BTreeSet<usize> = names.map(|name| name.place).collect();
        slot.into_iter().chain(0..).find(|place| !taken.contains(place)).expect("there are fewer workers than numbers")
    }

    /// Number of workers of a pool that are not wanted any more and will have gone soon.
    pub(super) fn ending(&self, pool: usize) -> usize {
        let ends = |worker: &Worker| worker.pool == pool && worker.facts.is_unwanted && !worker.takes_messages();
        let evicted = self.evictions.iter().filter(|evicted| evicted.pool == pool).count();
        evicted + self.workers.iter().filter(|(_, worker)| ends(worker) && !worker.tenure.is_leaving()).count()
    }
}

impl View<'_> {
    /// Number of running workers, and number of workers including those missing from their slots.
    pub fn staffing(&self) -> (usize, usize) {
        let runs = |worker: &Worker| worker.process.state() == State::Running;
        let running = self.bus.ctx.workers.iter().filter(|(_, worker)| runs(worker)).count();
        let slots = || (0..self.bus.fleet.shown).flat_map(|pool| self.bus.slots_of(pool));
        let is_manned =
            |slot: &&WorkerSlot| slot.worker.and_then(|worker| self.bus.ctx.workers.get(worker)).is_some_and(runs);
        (running, slots().count() + running - slots().filter(is_manned).count())
    }
}
