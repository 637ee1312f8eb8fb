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
use crate::ctx::Ctx;
use crate::endpoint::{Endpoint, Stream};
use crate::fleet::Fleet;
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

impl Fleet {
    /// Fills the empty slots of a pool as if none of its workers had ever ended.
    pub(crate) fn forget_ends(&mut self, pool: usize) {
        let here = &mut self.pools[pool];
        here.restarts = Restarts::default();
        for slot in here.slots.iter_mut().filter(|slot| slot.worker.is_none()) {
            slot.restarts = Restarts::default();
        }
    }

    /// Number of slots of a pool that are kept filled, the first ones.
    pub(crate) fn kept_slots(&self, ctx: &Ctx, pool: usize) -> usize {
        let side = self.pools[pool].side;
        if side.is_dormant || side.is_released { 0 } else { ctx.settings.pools[pool].instances }
    }

    /// The slots of a configured pool that are kept filled.
    pub(crate) fn slots_of(&self, ctx: &Ctx, pool: usize) -> impl Iterator<Item = &WorkerSlot> {
        self.sides_of(pool).flat_map(|side| &self.pools[side].slots[..self.kept_slots(ctx, side)])
    }

    /// Whether a pool has `max_instances` workers, not counting those that are starting or stopping for a replacement.
    pub(crate) fn is_full(&self, ctx: &Ctx, pool: usize) -> bool {
        let roll = &self.pools[pool].roll;
        let counts = |key: WorkerKey, worker: &Worker| {
            worker.pool == pool && !worker.tenure.is_leaving() && !roll.is_candidate(key)
        };
        ctx.workers.iter().filter(|(key, worker)| counts(*key, worker)).count()
            >= ctx.settings.pools[pool].max_instances
    }

    /// Whether a worker may be started for a client. A pool whose workers crash is not restarted by clients that ask
    /// for one.
    pub(super) fn may_grow(&self, ctx: &Ctx, pool: usize) -> bool {
        self.is_sound(ctx, pool) && !self.is_full(ctx, pool)
    }

    /// Whether the workers of a pool do not crash.
    pub(crate) fn is_sound(&self, ctx: &Ctx, pool: usize) -> bool {
        let here = &self.pools[pool];
        let is_failing = here.slots.iter().any(|slot| slot.restarts.is_failing());
        !is_failing && here.rests_until(ctx.time.now()).is_none()
    }

    /// Starts a worker in every slot that is empty and not in backoff. Spares of a dedicated pool are started one after
    /// the other, and after waiting clients (`queue.rs`).
    pub(crate) fn fill_slots(&mut self, ctx: &mut Ctx, pool: usize) {
        if ctx.shutdown.stops_workers() || self.is_rolling(ctx, pool) {
            return;
        }
        if let Some(until) = self.pools[pool].rests_until(ctx.time.now()) {
            return ctx.timers.arm(Timer::Pool(pool), until);
        }
        let is_dedicated = ctx.settings.pools[pool].assignment == Assignment::Dedicated;
        for slot in 0..self.kept_slots(ctx, pool) {
            let here = &self.pools[pool].slots[slot];
            if here.worker.is_some() || !here.restarts.may_begin(ctx.time.now()) {
                continue;
            }
            if is_dedicated && !self.may_start_at_once(ctx, pool) {
                return;
            }
            if let Some(worker) = self.start_in_slot(ctx, pool, slot) {
                self.choose_to_ask(ctx, worker);
                self.end_vacancy(ctx, pool);
            }
        }
    }

    /// Starts a worker in an empty slot.
    pub(super) fn start_in_slot(&mut self, ctx: &mut Ctx, pool: usize, slot: usize) -> Option<WorkerKey> {
        // Clients may have taken all that are allowed.
        if self.is_full(ctx, pool) {
            return None;
        }
        let worker = self.start_worker(ctx, pool, Some(slot), self.pools[pool].settled)?;
        let here = &mut self.pools[pool].slots[slot];
        here.worker = Some(worker);
        if here.restarts.is_unsteady() {
            ctx.put_on_probation(worker);
        }
        self.pools[pool].slots[slot].restarts.begin();
        Some(worker)
    }

    /// Starts a worker with a command of its pool.
    pub(super) fn start_worker(
        &mut self,
        ctx: &mut Ctx,
        pool: usize,
        slot: Option<usize>,
        generation: u32,
    ) -> Option<WorkerKey> {
        let shown = self.pools[pool].side.shown_as;
        let (place, incarnation) = (ctx.free_place(shown, slot), self.next_number);
        let name = WorkerName { pool: shown, place, incarnation };
        let settings = &ctx.settings.pools[pool];
        let tenure = Tenure::new(ctx.time.now(), settings, generation, incarnation);
        let has_subagents = self.pools[pool].has_subagents;
        let facts = Facts { started: ctx.time.now(), has_subagents, ..Facts::default() };
        let answering = Answering::new(TimeLimits::of(settings));
        let end = Endpoint { stream: Stream::of_worker(), ..Endpoint::default() };
        let window = SendWindow::new();
        let worker = Worker { pool, name, facts, tenure, answering, window, end, ..Worker::default() };
        let worker = ctx.workers.insert(worker)?;
        self.next_number += 1;
        ctx.wake_at(worker.into(), tenure.ages_at);
        ctx.out.push(Effect::Spawn { worker, name, generation });
        Some(worker)
    }

    /// Takes a warm spare out of its slot for one client, or starts a worker for it if the pool may grow; or lends one.
    pub(super) fn take_dedicated(&mut self, ctx: &mut Ctx, client: ClientKey, group: usize) -> Option<WorkerKey> {
        let pool = self.balancer.groups[group].pools().next()?;
        let lends = self.balancer.groups[group].lends();
        let worker = if lends {
            self.lend_worker(ctx, client, pool)?
        } else if let Some(spare) = self.next_in_turn(ctx, group) {
            self.leave_slot(ctx, spare);
            spare
        } else if self.may_grow(ctx, pool) {
            self.start_worker(ctx, pool, None, self.pools[pool].settled)?
        } else {
            return None;
        };
        let taken = ctx.workers.get_mut(worker)?;
        taken.owner = Some(client);
        taken.facts.claimed = ctx.time.now();
        if !lends {
            self.count_turn(ctx, client, worker);
            self.fill_slots(ctx, pool);
        }
        Some(worker)
    }

    /// Removes a worker from its slot, if it was in one.
    pub(super) fn leave_slot(&mut self, ctx: &Ctx, key: WorkerKey) {
        let Some(worker) = ctx.workers.get(key) else { return };
        let slots = &mut self.pools[worker.pool].slots;
        slots.iter_mut().for_each(|slot| _ = slot.worker.take_if(|it| *it == key));
    }

    /// The worker of a slot has exited unexpectedly: reports the consequence for the slot.
    fn on_slot_failure(&mut self, ctx: &mut Ctx, slot: usize, worker: &Worker) {
        let (limits, settings) = (&ctx.settings.limits, &ctx.settings.pools[worker.pool]);
        let kept = self.kept_slots(ctx, worker.pool);
        let pool = &mut self.pools[worker.pool];
        let delay = pool.slots[slot].restarts.fail(ctx.time.now(), worker.facts.started, limits);
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
        self.pools[worker.name.pool].tally.note(reason);
        ctx.tell(reason, || Report { worker: Some(worker.name), ..Report::new(reason, text) });
    }

    /// A worker without a slot has ended, which a client may have taken: if that was soon, and by itself, the next one
    /// has to wait. It does not help that it has answered: agents without their key answer `initialize`, and exit with
    /// the first session.
    fn on_taken_end(&mut self, ctx: &mut Ctx, worker: &Worker) {
        let process = &worker.process;
        let is_unexpected = worker.owner.is_some() && process.ended_by_itself() && !worker.facts.is_unwanted;
        let is_failure = is_unexpected && ctx.time.now().since(worker.facts.claimed) < LASTS;
        let source = worker.owner.and_then(|owner| ctx.identity(owner)).map(|owner| owner.origin.source());
        let restarts = &mut self.pools[worker.pool].restarts;
        if !is_failure {
            if worker.answering.has_answered() {
                *restarts = Restarts::default();
            }
            return;
        }
        let Some(delay) = restarts.fail_for(ctx.time.now(), source) else { return };
        ctx.tell(Reason::RestartScheduled, || {
            let text =
                format!("the worker ended soon after a client got it; the next one starts in {} ms", delay.as_millis());
            Report { worker: Some(worker.name), ..Report::new(Reason::RestartScheduled, text) }
        });
    }

    /// A worker has left its pool: its slot, if it has one, is filled again, now or after its backoff.
    pub(super) fn leave_pool(&mut self, ctx: &mut Ctx, key: WorkerKey, worker: &Worker) {
        let is_candidate = self.pools[worker.pool].roll.is_candidate(key);
        if worker.has_run() && !worker.facts.is_unwanted {
            self.end_question(ctx, worker);
        }
        if let Some(slot) = self.pools[worker.pool].slot_of(key) {
            self.pools[worker.pool].slots[slot].worker = None;
            if worker.is_excused() || ctx.shutdown.stops_workers() {
                // It has not failed.
            } else if worker.facts.was_short {
                self.pools[worker.pool].slots[slot].restarts.note_shortage(ctx.time.now());
            } else {
                self.on_slot_failure(ctx, slot, worker);
            }
        } else if is_candidate {
            self.candidate_ended(ctx, worker);
        } else {
            self.on_taken_end(ctx, worker);
        }
        if !is_candidate && worker.process.ended_by_itself() {
            self.doubt_command(ctx, worker);
        }
        self.tick_pool(ctx, worker.pool);
        // There may be none to wait for any more.
        self.stop_awaiting_workers_of(ctx, worker.pool);
    }

    /// Starts workers that are due.
    pub(crate) fn tick_pool(&mut self, ctx: &mut Ctx, pool: usize) {
        if pool >= self.pools.len() {
            return;
        }
        self.advance_roll(ctx, pool);
        self.fill_slots(ctx, pool);
        let kept = self.kept_slots(ctx, pool);
        let empty = self.pools[pool].slots[..kept].iter().filter(|slot| slot.worker.is_none());
        // Workers that are due and were not started follow one after another (`queue.rs`).
        if let Some(next) = empty.filter_map(|slot| slot.restarts.due()).filter(|at| *at > ctx.time.now()).min() {
            ctx.timers.arm(Timer::Pool(pool), next);
        }
    }

    /// Panics if slots and workers disagree.
    pub(crate) fn check_pools(&self, ctx: &Ctx) {
        let mut names: Vec<_> = ctx.workers.iter().map(|(_, worker)| (worker.name.pool, worker.name.place)).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "no two workers have one name");
        for (index, pool) in self.pools.iter().enumerate() {
            for (_, worker) in ctx.workers.iter().filter(|(_, worker)| worker.pool == index) {
                assert_eq!(worker.name.pool, pool.side.shown_as);
                assert!(!pool.side.is_dormant || worker.tenure.is_leaving() || !worker.takes_messages());
            }
            assert!(!pool.side.is_dormant || !pool.side.is_used, "what is used does not rest");
            for (slot, here) in pool.slots.iter().enumerate() {
                let Some(key) = here.worker else { continue };
                let worker = ctx.workers.get(key).expect("a worker in a slot lives");
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
        let slots = || (0..self.bus.fleet.shown).flat_map(|pool| self.bus.fleet.slots_of(&self.bus.ctx, pool));
        let is_manned =
            |slot: &&WorkerSlot| slot.worker.and_then(|worker| self.bus.ctx.workers.get(worker)).is_some_and(runs);
        (running, slots().count() + running - slots().filter(is_manned).count())
    }
}
