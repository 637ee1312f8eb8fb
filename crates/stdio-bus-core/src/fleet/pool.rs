//! The pools: their slots, which are kept filled within the limits of `restart.rs`, and the names of their workers
//! (spec 7.1.3; decision 13).

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};
use core::time::Duration;

use super::answering::Answering;
use super::demand::Footprint;
use super::growth::Growth;
use super::lifetime::Lifetime;
use super::restart::{Restarts, retry_after};
use super::rollout::{Fallback, Rollout};
use super::worker::{Process, Updates, Worker, WorkerState};
use crate::cancellation::Dialect;
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::answering::put_on_probation;
use crate::fleet::eras::discovery::Discovery;
use crate::flow::window::SendWindow;
use crate::histogram::Histogram;
use crate::index::{FleetId, GroupId, PoolId, SlotId};
use crate::peer::{ClientKey, Moment, WorkerKey};
use crate::peers::{Endpoint, Workers};
use crate::pool_stats::{PoolStats, ReasonCounts};
use crate::port::Effect;
use crate::report::{Reason, Report, WorkerName};
use crate::settings::{self, Assignment, Era, Settings};
use crate::timeouts::TimeLimits;
use crate::timers::Timer;
use crate::view::View;

/// A worker that lives this long with its client is not a failure, however it ends then.
const LASTS: Duration = Duration::from_secs(10);

/// A place for a worker in a pool, and its history.
#[derive(Default)]
pub(crate) struct WorkerSlot {
    /// The worker in it; none when a client has taken that for itself.
    pub(in crate::fleet) worker: Option<WorkerKey>,
    /// When the next worker is started.
    pub(in crate::fleet) restarts: Restarts,
    /// The operator has taken its worker out (`pause.rs`).
    pub(in crate::fleet) is_out: bool,
}

impl WorkerSlot {
    /// The worker in it.
    #[inline(always)]
    pub(crate) fn worker(&self) -> Option<WorkerKey> {
        self.worker
    }

    /// Whether a worker may be started in it: it is empty, its worker was not taken out, and no restart is awaited.
    pub(in crate::fleet) fn may_begin(&self, now: Moment) -> bool {
        self.worker.is_none() && !self.is_out && self.restarts.may_begin(now)
    }

    /// Whether the operator has taken its worker out.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Whether no worker is started in it any more, since too many have failed.
    pub(crate) fn is_given_up(&self) -> bool {
        self.restarts.is_given_up()
    }
}

/// Where a worker that is started will be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placement {
    /// In this slot.
    In(SlotId),
    /// With this client, which it belongs to.
    With(ClientKey),
    /// Nowhere yet: it is to take the slot of another one.
    None,
}

/// How far a fleet is needed. A pool of an MCP listener has one for clients of either era. The workers that are started
/// with the daemon may go to either: the first client that needs one decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FleetUse {
    /// It was not needed yet, and the workers that its pool has started are in the fleet of the other era: it starts none.
    Rests,
    /// It was not needed yet. Its workers may go to the fleet of the other era; one for clients of 2026-07-28 is asked whether
    /// it serves them.
    Undecided,
    /// A client of its era has needed a worker, or its pool has no other fleet.
    Used,
}

/// The workers of a pool that serve clients of one era.
///
/// | part | written by |
/// |---|---|
/// | `slots`: their workers and restarts | this file; `rollout.rs` when a candidate takes one; `reload.rs` has more or fewer |
/// | `restarts` | this file |
/// | `rollout`, `settled`, `fallback` | `rollout.rs` |
/// | `is_released` | `reload.rs` |
/// | `is_asleep`, `asked_at`, `woken_at` | `demand.rs`; `reload.rs` if it may not be asleep any more |
/// | `failed_at` | `demand.rs`; this file when its ends are forgotten; `eras/mod.rs` when its workers are handed over |
/// | `growth` | `growth.rs`; `demand.rs` when it falls asleep; `eras/mod.rs` when its workers are handed over |
/// | `need` | `eras/mod.rs`, which also hands slots and rollout over to the fleet of the other era |
/// | `has_subagents`, `dialect` | this file, asked by `session/children.rs` and `session/activity.rs` |
pub(crate) struct Fleet {
    /// Its own id, which never changes.
    id: FleetId,
    /// One per instance, or per possible worker where a pool grows or lends; in a dedicated pool, one per warm spare.
    pub(in crate::fleet) slots: Vec<WorkerSlot>,
    /// Whether it is needed.
    pub(in crate::fleet) need: FleetUse,
    /// Its pool is removed from the configuration, and no client uses it.
    pub(in crate::fleet) is_released: bool,
    /// It has no workers until a line needs one.
    pub(in crate::fleet) is_asleep: bool,
    /// When a line has last found no worker, or a worker that has ended since was asked something.
    pub(in crate::fleet) asked_at: Moment,
    /// When it was woken, until one of its workers has answered something.
    pub(in crate::fleet) woken_at: Option<Moment>,
    /// When one of its workers has last failed before it had answered anything, until one has answered something.
    pub(in crate::fleet) failed_at: Option<Moment>,
    /// The workers that it has beyond `instances` since those were busy.
    pub(in crate::fleet) growth: Growth,
    /// When the next spare is started after workers that ended soon after a client had taken them.
    pub(in crate::fleet) restarts: Restarts,
    /// The replacement of its workers.
    pub(in crate::fleet) rollout: Rollout,
    /// The command that has settled, with which empty slots are filled.
    pub(in crate::fleet) settled: u32,
    /// The previous command, until a worker of the settled one has answered something.
    pub(in crate::fleet) fallback: Option<Fallback>,
    /// One of its clients knows subagents, which its workers may announce (`session/children.rs`).
    pub(in crate::fleet) has_subagents: bool,
    /// The protocol of the last `initialize` that one of its workers was sent.
    pub(in crate::fleet) dialect: Option<Dialect>,
}

impl Fleet {
    /// A fleet without workers.
    fn new(pool: &settings::Pool, id: FleetId, need: FleetUse) -> Self {
        Self {
            id,
            slots: (0..pool.slots(id.era)).map(|_| WorkerSlot::default()).collect(),
            need,
            is_released: false,
            is_asleep: pool.may_sleep(),
            asked_at: Moment::default(),
            woken_at: None,
            failed_at: None,
            growth: Growth::default(),
            restarts: Restarts::default(),
            rollout: Rollout::default(),
            settled: pool.generation,
            fallback: None,
            has_subagents: false,
            dialect: None,
        }
    }

    /// Its id.
    #[inline(always)]
    pub(crate) fn id(&self) -> FleetId {
        self.id
    }

    /// Whether clients use it. There is a worker for its first one elsewhere, or none at all.
    pub(crate) fn is_used(&self) -> bool {
        self.need == FleetUse::Used
    }

    /// Whether the workers of its pool are in the fleet of the other era.
    pub(crate) fn rests(&self) -> bool {
        self.need == FleetUse::Rests
    }

    /// Whether it has a worker only to be asked, beside those of the other era (`eras/discovery.rs`).
    fn is_asked_beside(&self) -> bool {
        self.id.era == Era::Modern && self.need == FleetUse::Undecided
    }

    /// The slots whose workers were taken out may be filled again.
    pub(in crate::fleet) fn put_back(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.is_out = false);
    }

    /// The workers in its slots.
    pub(crate) fn workers_in_slots(&self) -> impl Iterator<Item = WorkerKey> {
        self.slots.iter().filter_map(|slot| slot.worker)
    }

    /// The number of the slot that a worker is in.
    pub(crate) fn slot_of(&self, worker: WorkerKey) -> Option<usize> {
        self.slots.iter().position(|slot| slot.worker == Some(worker))
    }

    /// Until when no worker is started, since workers that clients had taken have failed.
    pub(crate) fn rests_until(&self, now: Moment) -> Option<Moment> {
        self.restarts.due().filter(|until| *until > now)
    }

    /// The protocol of the last `initialize` that one of its workers was sent.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// One of its workers is sent an `initialize` of this protocol, or of an unknown one.
    pub(crate) fn note_dialect(&mut self, dialect: Option<Dialect>) {
        self.dialect = dialect.or(self.dialect);
    }

    /// One of its clients knows subagents. Returns whether it is the first.
    pub(crate) fn expect_children(&mut self) -> bool {
        !core::mem::replace(&mut self.has_subagents, true)
    }
}

/// A configured pool.
pub(crate) struct Pool {
    /// For clients of either era; a pool that no MCP listener offers has one fleet for all.
    fleets: [Option<Fleet>; 2],
    /// Whether its command serves 2026-07-28, if that matters.
    pub(in crate::fleet) discovery: Option<Discovery>,
    /// Its counters.
    pub(in crate::fleet) stats: PoolStats,
    /// How often it was woken.
    pub(in crate::fleet) woken: u64,
    /// How long its wakes have taken, to the first answer of a worker.
    pub(in crate::fleet) wakes: Histogram,
    /// The operator has paused it.
    is_paused: bool,
}

impl Pool {
    fn new(pool: &settings::Pool, id: PoolId, has_both: bool) -> Self {
        let (legacy, modern) = match has_both {
            true => (FleetUse::Undecided, Some(Fleet::new(pool, id.of(Era::Modern), FleetUse::Rests))),
            false => (FleetUse::Used, None),
        };
        Self {
            fleets: [Some(Fleet::new(pool, id.of(Era::Legacy), legacy)), modern],
            discovery: has_both.then(Discovery::default),
            stats: PoolStats::default(),
            woken: 0,
            wakes: Histogram::default(),
            is_paused: false,
        }
    }

    /// Whether the operator has paused it.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether it has a fleet for each era.
    fn has_both(&self) -> bool {
        self.fleets.iter().all(Option::is_some)
    }

    /// Its counters.
    pub(crate) fn stats(&self) -> &PoolStats {
        &self.stats
    }

    /// How often it was woken.
    pub(crate) fn woken(&self) -> u64 {
        self.woken
    }

    /// How long its wakes have taken, to the first answer of a worker.
    pub(crate) fn wakes(&self) -> &Histogram {
        &self.wakes
    }
}

/// The configured pools, by their places in the settings.
pub(crate) struct Pools {
    list: Vec<Pool>,
    /// Whether any of them has a fleet for clients of 2026-07-28.
    have_modern: bool,
    /// Whether any of them is paused.
    are_paused: bool,
    /// Whether any of them may be asleep.
    may_sleep: bool,
    /// The memory of all workers (`demand.rs`).
    pub(in crate::fleet) footprint: Footprint,
    /// Errors to requests that were for no pool, or for one of several.
    errors_of_no_pool: ReasonCounts,
    /// The number of the next worker.
    next_number: u32,
    /// A worker may have to be replaced.
    rolls_due: bool,
}

impl Pools {
    pub(super) fn new(settings: &Settings, both: &[PoolId]) -> Self {
        let pools = settings.pools.iter().enumerate().map(|(index, pool)| (PoolId::at(index), pool));
        let list = pools.map(|(id, pool)| Pool::new(pool, id, both.contains(&id))).collect();
        Self {
            list,
            have_modern: !both.is_empty(),
            are_paused: false,
            may_sleep: settings.pools.iter().any(settings::Pool::may_sleep),
            footprint: Footprint::default(),
            errors_of_no_pool: ReasonCounts::default(),
            next_number: 0,
            rolls_due: false,
        }
    }

    /// Makes the pools those of the settings: new ones, and others in the places of those that are gone. Returns the fleets
    /// that stay.
    pub(crate) fn arrange(&mut self, settings: &Settings, is_another: impl Fn(PoolId) -> bool) -> Vec<FleetId> {
        let both = settings.pools_of_both_eras();
        let kept = self.ids().filter(|fleet| !is_another(fleet.pool)).collect();
        let mut before = core::mem::take(&mut self.list).into_iter();
        for (index, pool) in settings.pools.iter().enumerate() {
            let id = PoolId::at(index);
            let stays = before.next().filter(|_| !is_another(id));
            let has_both = both.contains(&id);
            self.list.push(match stays {
                Some(mut stays) => {
                    if pool.is_gone {
                        // What waits for a resume continues with what the pool is left with, and nobody finds it paused
                        // again.
                        stays.is_paused = false;
                        stays.fleets.iter_mut().flatten().for_each(Fleet::put_back);
                    }
                    // An MCP listener offers it from now on.
                    if has_both && !stays.has_both() {
                        stays.fleets[Era::Modern as usize] =
                            Some(Fleet::new(pool, id.of(Era::Modern), FleetUse::Rests));
                        stays.discovery = Some(Discovery::default());
                    }
                    stays
                }
                None => Pool::new(pool, id, has_both),
            });
        }
        self.have_modern = self.list.iter().any(Pool::has_both);
        self.are_paused = self.list.iter().any(Pool::is_paused);
        self.may_sleep = settings.pools.iter().any(settings::Pool::may_sleep);
        kept
    }

    /// Whether any of them may be asleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.may_sleep
    }

    /// Whether any of them is paused.
    #[inline(always)]
    pub(crate) fn are_paused(&self) -> bool {
        self.are_paused
    }

    /// Pauses a pool, or resumes it.
    pub(super) fn set_paused(&mut self, pool: PoolId, is_paused: bool) {
        self[pool].is_paused = is_paused;
        self.are_paused = self.list.iter().any(Pool::is_paused);
    }

    /// Whether any of them has a fleet for clients of 2026-07-28.
    pub(crate) fn have_modern(&self) -> bool {
        self.have_modern
    }

    pub(crate) fn get(&self, pool: PoolId) -> Option<&Pool> {
        self.list.get(pool.index())
    }

    /// The places of the pools.
    pub(crate) fn places(&self) -> impl Iterator<Item = PoolId> + use<> {
        (0..self.list.len()).map(PoolId::at)
    }

    /// All fleets, in the order of their ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FleetId> {
        let of_era = |era: Era| self.places().map(move |pool| pool.of(era));
        Era::BOTH.into_iter().flat_map(of_era).filter(|fleet| self.has(*fleet))
    }

    /// All fleets as a list, for loops that change them.
    pub(crate) fn all(&self) -> Vec<FleetId> {
        self.ids().collect()
    }

    /// Whether there is such a fleet.
    pub(crate) fn has(&self, fleet: FleetId) -> bool {
        self.fleet(fleet).is_some()
    }

    /// The fleets of a configured pool.
    pub(crate) fn of(&self, pool: PoolId) -> impl Iterator<Item = FleetId> + use<> {
        let ids = Era::BOTH.map(|era| Some(pool.of(era)).filter(|fleet| self.has(*fleet)));
        ids.into_iter().flatten()
    }

    /// The fleet of the same pool for clients of the other era, if there is one.
    pub(crate) fn other(&self, fleet: FleetId) -> Option<FleetId> {
        Some(fleet.other_era()).filter(|other| self.has(*other))
    }

    /// A fleet and that of the other era, to change both.
    pub(crate) fn both_mut(&mut self, fleet: FleetId) -> Option<[&mut Fleet; 2]> {
        let [legacy, modern] = &mut self.list.get_mut(fleet.pool.index())?.fleets;
        let (legacy, modern) = (legacy.as_mut()?, modern.as_mut()?);
        Some(match fleet.era {
            Era::Legacy => [legacy, modern],
            Era::Modern => [modern, legacy],
        })
    }

    #[inline(always)]
    fn fleet(&self, fleet: FleetId) -> Option<&Fleet> {
        self.list.get(fleet.pool.index())?.fleets[fleet.era as usize].as_ref()
    }

    /// A client's request gets an error of the bus instead of an answer.
    pub(crate) fn count_error(&mut self, pool: Option<PoolId>, reason: Reason) {
        match pool {
            Some(pool) => self[pool].stats.fail(reason),
            None => self.errors_of_no_pool.count(reason),
        }
    }

    /// Replacements are checked after this call.
    pub(crate) fn roll_out_soon(&mut self, ctx: &mut Ctx) {
        (self.rolls_due, ctx.workers_changed) = (true, true);
    }

    /// Whether replacements are to be checked, which they are now.
    pub(super) fn take_rollouts_due(&mut self) -> bool {
        core::mem::take(&mut self.rolls_due)
    }

    /// Errors to requests that were for no pool, or for one of several.
    pub(crate) fn errors_of_no_pool(&self) -> &ReasonCounts {
        &self.errors_of_no_pool
    }

    /// The counters of a pool, to count in.
    #[inline(always)]
    pub(crate) fn stats_mut(&mut self, pool: PoolId) -> &mut PoolStats {
        &mut self[pool].stats
    }
}

impl Index<PoolId> for Pools {
    type Output = Pool;

    fn index(&self, pool: PoolId) -> &Pool {
        &self.list[pool.index()]
    }
}

impl IndexMut<PoolId> for Pools {
    fn index_mut(&mut self, pool: PoolId) -> &mut Pool {
        &mut self.list[pool.index()]
    }
}

impl Index<FleetId> for Pools {
    type Output = Fleet;

    #[inline(always)]
    fn index(&self, fleet: FleetId) -> &Fleet {
        self.fleet(fleet).expect("this pool has a fleet for this era")
    }
}

impl IndexMut<FleetId> for Pools {
    fn index_mut(&mut self, fleet: FleetId) -> &mut Fleet {
        let found = self.list.get_mut(fleet.pool.index()).and_then(|pool| pool.fleets[fleet.era as usize].as_mut());
        found.expect("this pool has a fleet for this era")
    }
}

impl Index<SlotId> for Pools {
    type Output = WorkerSlot;

    #[inline(always)]
    fn index(&self, slot: SlotId) -> &WorkerSlot {
        &self[slot.fleet].slots[usize::from(slot.number)]
    }
}

impl IndexMut<SlotId> for Pools {
    fn index_mut(&mut self, slot: SlotId) -> &mut WorkerSlot {
        &mut self[slot.fleet].slots[usize::from(slot.number)]
    }
}

impl Fleet {
    /// Number of slots that are kept filled, the first ones.
    pub(crate) fn kept_slots(&self, ctx: &Ctx) -> usize {
        if self.is_asleep { 0 } else { self.slots_awake(ctx) }
    }

    /// The same while it is not asleep, or for when it wakes.
    pub(in crate::fleet) fn slots_awake(&self, ctx: &Ctx) -> usize {
        if self.rests() || self.is_released {
            return 0;
        }
        if self.is_asked_beside() {
            return 1;
        }
        ctx.settings.pools[self.id].instances + self.growth.more()
    }

    /// Whether the workers of a pool do not crash.
    pub(crate) fn is_sound(&self, ctx: &Ctx) -> bool {
        let is_failing = self.slots.iter().any(|slot| slot.restarts.is_failing());
        !is_failing && self.rests_until(ctx.time.now()).is_none()
    }

    /// Fills the empty slots of a pool as if none of its workers had ever ended.
    pub(crate) fn forget_ends(&mut self) {
        (self.restarts, self.failed_at) = (Restarts::default(), None);
        for slot in self.slots.iter_mut().filter(|slot| slot.worker.is_none()) {
            slot.restarts = Restarts::default();
        }
    }

    /// A worker without a slot has ended, which a client may have taken: if that was soon, and by itself, the next one
    /// has to wait. It does not help that it has answered: agents without their key answer `initialize`, and exit with
    /// the first session.
    fn on_taken_end(&mut self, ctx: &mut Ctx, worker: &Worker) {
        let process = &worker.process;
        let is_taken = worker.owner().is_some() && !process.is_unwanted();
        let has_ended_soon = process.ended_by_itself() && ctx.time.now().since(worker.ownership.since()) < LASTS;
        // With what is its client's own it may fail for no other.
        let is_personal = ctx.settings.pools[self.id].personal;
        let is_failure = is_taken && !is_personal && (has_ended_soon || process.cause() == Some(Reason::StartTimeout));
        let source = worker.owner().and_then(|owner| ctx.clients.identity(owner)).map(|owner| owner.origin.source());
        let restarts = &mut self.restarts;
        if !is_failure {
            if worker.answering.has_answered() {
                *restarts = Restarts::default();
            }
            return;
        }
        let Some(delay) = restarts.fail_for(ctx.time.now(), source) else { return };
        ctx.emit_report(Reason::RestartScheduled, || {
            let what = match worker.process.ended_by_itself() {
                true => "ended soon after a client got it",
                false => "has said nothing to its client",
            };
            let text = format!("the worker {what}; the next one starts in {} ms", delay.as_millis());
            Report { worker: Some(worker.name), ..Report::new(Reason::RestartScheduled, text) }
        });
    }
}

impl Fleets {
    /// Starts a worker in every slot that is empty and not in backoff. Spares of a dedicated pool are started one after
    /// the other, and after waiting clients (`queue.rs`).
    pub(crate) fn fill_slots(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        if ctx.shutdown.stops_workers() || self.pools[fleet].is_rolling_out(ctx) {
            return;
        }
        if let Some(until) = self.pools[fleet].rests_until(ctx.time.now()) {
            return ctx.timers.arm(Timer::Fleet(fleet), until);
        }
        let is_dedicated = ctx.settings.pools[fleet].assignment == Assignment::Dedicated;
        for slot in (0..self.pools[fleet].kept_slots(ctx)).map(|number| fleet.slot(number)) {
            if !self.pools[slot].may_begin(ctx.time.now()) {
                continue;
            }
            // A spare is for a client that begins, and a draining daemon takes no requests.
            if is_dedicated
                && (ctx.shutdown.refuses_requests()
                    || self.pools.has_enough(ctx, fleet)
                    || !self.may_start_at_once(ctx, fleet.pool))
            {
                return;
            }
            if let Some(worker) = self.pools.start_in_slot(ctx, slot) {
                self.pools.choose_to_ask_in_slot(ctx, worker);
                self.end_vacancy(ctx, fleet);
            }
        }
    }

    /// Takes a warm spare out of its slot for one client, or starts a worker for it if the pool may grow; or lends one. While the
    /// daemon refuses requests, none is started: what a client still sends are notifications, and no request will follow.
    pub(super) fn take_dedicated(&mut self, ctx: &mut Ctx, client: ClientKey, group: GroupId) -> Option<WorkerKey> {
        let fleet = self.balancer[group].fleets().next()?;
        let lends = self.balancer[group].lends();
        let worker = if lends {
            self.lend_worker(ctx, client, fleet)?
        } else if let Some(spare) = self.balancer[group].next_in_turn(ctx, &self.pools, true) {
            self.pools.leave_slot(ctx, spare);
            spare
        } else if self.pools.may_grow(ctx, fleet) && !ctx.shutdown.refuses_requests() {
            self.pools.start_worker(ctx, fleet, Placement::With(client), self.pools[fleet].settled)?
        } else {
            return None;
        };
        let taken = ctx.workers.get_mut(worker)?;
        taken.ownership.take(client, ctx.time.now());
        if !lends {
            self.count_turn(ctx, client, worker);
            self.fill_slots(ctx, fleet);
        }
        Some(worker)
    }

    /// A worker has left its pool: its slot, if it has one, is filled again, now or after its backoff.
    pub(super) fn leave_pool(&mut self, ctx: &mut Ctx, key: WorkerKey, worker: &Worker) {
        let is_candidate = self.pools[worker.fleet].rollout.is_candidate(key);
        self.pools[worker.fleet].note_asked(ctx.time.now(), worker);
        if !is_candidate && !ctx.shutdown.stops_workers() {
            self.pools[worker.fleet].note_failure(ctx, worker);
        }
        if worker.has_run() && !worker.process.is_unwanted() {
            let learned = self.pools.end_question(ctx, worker);
            self.follow_era(ctx, learned);
        }
        if let Some(slot) = self.pools[worker.fleet].slot_of(key) {
            self.pools[worker.fleet].slots[slot].worker = None;
            self.open_all(ctx, worker.fleet);
            if worker.is_excused() || ctx.shutdown.stops_workers() {
                // It has not failed.
            } else if worker.process.was_short() {
                self.pools[worker.fleet].slots[slot].restarts.note_shortage(ctx.time.now());
            } else {
                self.pools.on_slot_failure(ctx, slot, worker);
            }
        } else if is_candidate {
            self.pools[worker.fleet].candidate_ended(ctx, worker);
        } else {
            self.pools[worker.fleet].on_taken_end(ctx, worker);
            if ctx.settings.pools[worker.fleet].personal && worker.process.ended_by_itself() {
                self.queue.slow_down_owner(ctx, worker);
            }
        }
        if !is_candidate && worker.process.ended_by_itself() {
            self.pools[worker.fleet].maybe_roll_back(ctx, worker);
        }
        self.tick_fleet(ctx, worker.fleet);
        // There may be none to wait for any more.
        self.queue.stop_awaiting_of(ctx, &self.balancer, worker.fleet);
    }

    /// Starts workers that are due.
    pub(crate) fn tick_fleet(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        if !self.pools.has(fleet) {
            return;
        }
        self.fall_asleep_without_workers(ctx, fleet);
        self.tick_turns_of(ctx, fleet);
        self.advance_rollout(ctx, fleet);
        self.fill_slots(ctx, fleet);
        ctx.timers.arm(Timer::Fleet(fleet), self.pools[fleet].ready_again_at(ctx));
        let kept = self.pools[fleet].kept_slots(ctx);
        let empty = self.pools[fleet].slots[..kept].iter().filter(|slot| slot.worker.is_none());
        // Workers that are due and were not started follow one after another (`queue.rs`).
        if let Some(next) = empty.filter_map(|slot| slot.restarts.due()).filter(|at| *at > ctx.time.now()).min() {
            ctx.timers.arm(Timer::Fleet(fleet), next);
        }
    }
}

impl Pools {
    /// The slots of a configured pool that are kept filled.
    pub(crate) fn slots_of(&self, ctx: &Ctx, pool: PoolId) -> impl Iterator<Item = &WorkerSlot> {
        self.of(pool).flat_map(|fleet| {
            let has_enough = self.has_enough(ctx, fleet);
            let is_kept = move |slot: &&WorkerSlot| !has_enough || slot.worker.is_some() || slot.restarts.is_failing();
            self[fleet].slots[..self[fleet].kept_slots(ctx)].iter().filter(is_kept)
        })
    }

    /// Number of workers of a pool, not counting those that are starting or stopping for a replacement. Clients of a shared
    /// pool that have workers of their own, since it was dedicated before a reload, keep nobody else from its slots.
    fn staff(&self, ctx: &Ctx, fleet: FleetId) -> usize {
        if ctx.settings.pools[fleet].assignment != Assignment::Dedicated {
            let stays = |worker: &WorkerKey| ctx.workers.get(*worker).is_some_and(|it| !it.lifetime.is_leaving());
            return self[fleet].workers_in_slots().filter(stays).count();
        }
        let roll = &self[fleet].rollout;
        let counts = |key: WorkerKey, worker: &Worker| {
            worker.fleet == fleet && !worker.lifetime.is_leaving() && !roll.is_candidate(key)
        };
        ctx.workers.iter().filter(|(key, worker)| counts(*key, worker)).count()
    }

    /// Whether a pool has `max_instances` workers, not counting those that are starting or stopping for a replacement.
    pub(crate) fn is_full(&self, ctx: &Ctx, fleet: FleetId) -> bool {
        self.staff(ctx, fleet) >= ctx.settings.pools[fleet].max_instances
    }

    /// Whether a pool gets no more spares: where workers are started on demand, those that clients have taken count.
    fn has_enough(&self, ctx: &Ctx, fleet: FleetId) -> bool {
        let settings = &ctx.settings.pools[fleet];
        settings.may_sleep()
            && settings.assignment == Assignment::Dedicated
            && !settings.lends(fleet.era)
            && self.staff(ctx, fleet) >= settings.instances
    }

    /// Whether a worker may be started for a client. A pool whose workers crash is not restarted by clients that ask
    /// for one.
    pub(crate) fn may_grow(&self, ctx: &Ctx, fleet: FleetId) -> bool {
        self[fleet].is_sound(ctx) && !self.is_full(ctx, fleet)
    }

    /// Starts a worker in an empty slot.
    pub(crate) fn start_in_slot(&mut self, ctx: &mut Ctx, slot: SlotId) -> Option<WorkerKey> {
        // Clients may have taken all that are allowed.
        if self.is_full(ctx, slot.fleet) {
            return None;
        }
        let worker = self.start_worker(ctx, slot.fleet, Placement::In(slot), self[slot.fleet].settled)?;
        self.begin_trial(ctx, worker);
        let here = &mut self[slot];
        here.worker = Some(worker);
        if here.restarts.is_unsteady() {
            put_on_probation(ctx, worker);
        }
        self[slot].restarts.begin();
        Some(worker)
    }

    /// Starts a worker with a command of its pool.
    pub(super) fn start_worker(
        &mut self,
        ctx: &mut Ctx,
        fleet: FleetId,
        place: Placement,
        generation: u32,
    ) -> Option<WorkerKey> {
        let (slot, client) = match place {
            Placement::In(slot) => (Some(slot), None),
            Placement::With(client) => (None, Some(client)),
            Placement::None => (None, None),
        };
        let (place, incarnation) = (ctx.workers.free_place(fleet.pool, slot), self.next_number);
        let name = WorkerName { pool: fleet.pool, place, incarnation };
        let settings = &ctx.settings.pools[fleet];
        let lifetime = Lifetime::new(ctx.time.now(), settings, generation, incarnation);
        let has_subagents = self[fleet].has_subagents;
        let process = Process::new(ctx.time.now());
        let mut updates = Updates::default();
        if has_subagents {
            updates.expect_children();
        }
        let answering = Answering::new(TimeLimits::of(settings), ctx.settings.first_tick(fleet.pool));
        let end = Endpoint::of_worker();
        let window = SendWindow::new();
        let worker = Worker { fleet, name, process, updates, lifetime, answering, window, end, ..Worker::default() };
        let worker = ctx.workers.insert(worker)?;
        self.next_number += 1;
        ctx.wake_at(worker.into(), lifetime.ages_at());
        let settings = &ctx.settings.pools[fleet];
        for limit in [settings.idle_stop, settings.start_timeout].into_iter().flatten() {
            ctx.wake_at(worker.into(), ctx.time.now().after(limit));
        }
        ctx.out.push(Effect::Spawn { worker, name, generation, client });
        Some(worker)
    }

    /// Removes a worker from its slot, if it was in one.
    pub(super) fn leave_slot(&mut self, ctx: &Ctx, key: WorkerKey) {
        let Some(worker) = ctx.workers.get(key) else { return };
        let slots = &mut self[worker.fleet].slots;
        slots.iter_mut().for_each(|slot| _ = slot.worker.take_if(|it| *it == key));
    }

    /// The worker of a slot has exited unexpectedly: reports the consequence for the slot.
    fn on_slot_failure(&mut self, ctx: &mut Ctx, slot: usize, worker: &Worker) {
        let (limits, settings) = (&ctx.settings.limits, &ctx.settings.pools[worker.fleet]);
        let kept = self[worker.fleet].kept_slots(ctx);
        let pool = &mut self[worker.fleet];
        let delay = pool.slots[slot].restarts.fail(ctx.time.now(), worker.process.started(), limits);
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
        self[worker.fleet.pool].stats.note(reason);
        ctx.emit_report(reason, || Report { worker: Some(worker.name), ..Report::new(reason, text) });
    }
}

/// Number of workers of a pool that are not wanted any more and will have gone soon.
pub(crate) fn ending(ctx: &Ctx, fleet: FleetId) -> usize {
    let ends = |worker: &Worker| worker.fleet == fleet && worker.process.is_unwanted() && !worker.takes_messages();
    let evicted = ctx.evictions.iter().filter(|evicted| evicted.fleet == fleet).count();
    evicted + ctx.workers.iter().filter(|(_, worker)| ends(worker) && !worker.lifetime.is_leaving()).count()
}

impl Workers {
    /// The place for the name of a worker in this slot: that of the slot, so that the name stays the same over a
    /// restart, or the first free one if a client has taken the last worker of the slot along.
    fn free_place(&self, pool: PoolId, slot: Option<SlotId>) -> usize {
        let names = self.iter().map(|(_, worker)| worker.name).filter(|name| name.pool == pool);
        let taken: BTreeSet<usize> = names.map(|name| name.place).collect();
        slot.map(|slot| slot.number.into())
            .into_iter()
            .chain(0..)
            .find(|place| !taken.contains(place))
            .expect("there are fewer workers than numbers")
    }
}

/// Panics if slots and workers disagree.
pub(crate) fn check_pools(pools: &Pools, ctx: &Ctx) {
    let mut names: Vec<_> = ctx.workers.iter().map(|(_, worker)| (worker.name.pool, worker.name.place)).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "no two workers have one name");
    for id in pools.ids() {
        let fleet = &pools[id];
        assert_eq!(fleet.id, id, "a fleet knows its place");
        for (_, worker) in ctx.workers.iter().filter(|(_, worker)| worker.fleet == id) {
            assert_eq!(worker.name.pool, id.pool);
            assert!(!fleet.rests() || worker.lifetime.is_leaving() || !worker.takes_messages());
        }
        for (slot, here) in fleet.slots.iter().enumerate() {
            let Some(key) = here.worker else { continue };
            let worker = ctx.workers.get(key).expect("a worker in a slot lives");
            assert_eq!((worker.fleet, fleet.slot_of(key)), (id, Some(slot)), "it has one slot of its fleet");
            assert!(!here.restarts.is_failing(), "a slot that is taken waits for no worker");
            assert!(!here.is_out, "a slot whose worker was taken out is empty");
        }
    }
}

impl View<'_> {
    /// Number of running workers, and number of workers including those missing from their slots.
    pub fn staffing(&self) -> (usize, usize) {
        let runs = |worker: &Worker| worker.process.state() == WorkerState::Running;
        let running = self.bus.ctx.workers.iter().filter(|(_, worker)| runs(worker)).count();
        let slots =
            || self.bus.fleets.pools.places().flat_map(|pool| self.bus.fleets.pools.slots_of(&self.bus.ctx, pool));
        let is_manned =
            |slot: &&WorkerSlot| slot.worker.and_then(|worker| self.bus.ctx.workers.get(worker)).is_some_and(runs);
        (running, slots().count() + running - slots().filter(is_manned).count())
    }
}
