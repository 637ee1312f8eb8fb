//! Pools that grow with their load. Where clients share workers, and `max_instances` is above `instances`, a pool starts one
//! more while each worker that takes turns runs and owes `concurrency` answers or more; one on trial (`trial.rs`), which
//! gets one request at a time, while it owes one and has run for a second. A subscription is no work. Workers are looked at
//! as long as they owe answers, so that lines on the usual way pay nothing for it.
//!
//! What is beyond `instances` leaves after `idle_stop` without work, as what is replaced does (`rollout.rs`), unless all
//! other workers are busy: the pool would start another one at once. So that a worker becomes idle although all take turns,
//! it gets no turns while fewer have sufficed for `idle_stop`: it keeps its requests, its sessions and the clients that have
//! it. It gets turns again before another worker is started.

use alloc::vec::Vec;
use core::time::Duration;

use super::lifetime::RecycleReason;
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::pool::{Fleet, Pools};
use crate::index::{FleetId, GroupId, PoolId};
use crate::peer::{Moment, WorkerKey};
use crate::settings::{Pool, Settings};
use crate::timers::Timer;

/// How soon a worker that has got a request is looked at, and how often while it is busy and its pool may grow.
const EVERY_BUSY: Duration = Duration::from_millis(50);
/// How often while it is not busy.
const EVERY_IDLE: Duration = Duration::from_millis(250);
/// How often if it is busy and its pool cannot grow.
const EVERY_FULL: Duration = Duration::from_secs(1);

/// The workers that a fleet has beyond `instances`.
#[derive(Debug, Default)]
pub(in crate::fleet) struct Growth {
    /// How many it keeps.
    more: usize,
    /// How many of them take turns.
    open: usize,
    /// How many workers were needed at most since `open` was last lowered, or might have been.
    peak: usize,
    /// When that is looked at.
    ends: Option<Moment>,
    /// When its workers were last looked at.
    looked_at: Moment,
}

impl Growth {
    /// How many workers there are beyond `instances`.
    pub(super) fn more(&self) -> usize {
        self.more
    }

    /// Its pool has other settings.
    pub(super) fn resize(&mut self, was: &Pool, is: &Pool) {
        let most = if is.grows() { is.max_instances } else { is.instances };
        // Without `idle_stop` what was kept by `instances` would never leave.
        let kept = if is.idle_stop.is_some() { was.instances } else { is.instances };
        self.more = (kept + self.more).min(most).saturating_sub(is.instances);
        self.open = self.more;
        if was.idle_stop != is.idle_stop {
            self.ends = None;
        }
    }
}

impl Settings {
    /// How soon a worker of this pool that owes something is looked at for any reason, if at all.
    pub(super) fn first_tick(&self, pool: PoolId) -> Option<Duration> {
        let grows = self.pools.get(pool.index()).is_some_and(Pool::grows);
        self.first_look(pool).into_iter().chain(grows.then_some(EVERY_BUSY)).min()
    }
}

impl Fleets {
    /// Those workers take turns that are to.
    pub(crate) fn fit_groups(&mut self, ctx: &Ctx) {
        let (pools, settings) = (&self.pools, &ctx.settings.pools);
        if !settings.iter().any(Pool::grows) {
            return;
        }
        let open = |fleet: FleetId| match settings[fleet].grows() {
            true if pools.has(fleet) => settings[fleet].instances + pools[fleet].growth.open,
            _ => settings[fleet].open_slots(fleet.era),
        };
        self.balancer.groups_mut().iter_mut().for_each(|group| group.fit(open));
    }

    /// Looks whether all workers of a pool are as busy as this one, which owes answers: then there is one more. Returns when
    /// to look again.
    pub(crate) fn tick_growth(&mut self, ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
        let worker = ctx.workers.get(key).filter(|worker| worker.end.to_answer.owed() > 0)?;
        let fleet = worker.fleet;
        let settings = ctx.settings.pools.get(fleet.pool.index()).filter(|settings| settings.grows())?;
        let here = &mut self.pools[fleet];
        here.slot_of(key)?;
        let now = ctx.time.now();
        // One look is at all of them.
        if here.growth.looked_at.after(EVERY_BUSY / 2) > now {
            return Some(now.after(EVERY_BUSY));
        }
        here.growth.looked_at = now;
        let here = &self.pools[fleet];
        let owed = |key: WorkerKey| ctx.workers.get(key).map_or(0, |worker| worker.end.to_answer.owed() as usize);
        let all: usize = here.slots.iter().filter_map(|slot| slot.worker).map(owed).sum();
        let (are_busy, is_busy) = (self.pools.are_all_busy(ctx, fleet, None), is_busy(ctx, settings, key));
        let may_grow = here.growth.open < here.growth.more || self.pools.may_start_one_more(ctx, fleet);
        let growth = &mut self.pools[fleet].growth;
        growth.peak = growth.peak.max(all.div_ceil(settings.concurrency.max(1)));
        if are_busy && may_grow {
            self.grow(ctx, fleet);
        }
        Some(now.after(match () {
            () if is_busy && !may_grow => EVERY_FULL,
            () if is_busy => EVERY_BUSY,
            () => EVERY_IDLE,
        }))
    }

    /// One more worker takes turns, which is started if there is none.
    fn grow(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        let settings = &ctx.settings.pools[fleet];
        let here = &mut self.pools[fleet];
        let kept = settings.instances + here.growth.more;
        if here.growth.open == here.growth.more
            && let Some(slot) = here.slot_to_grow_into(ctx.time.now(), kept)
        {
            here.slots.swap(kept, slot);
        }
        let growth = &mut here.growth;
        growth.open += 1;
        growth.more = growth.more.max(growth.open);
        growth.peak = growth.peak.max(settings.instances + growth.open);
        if growth.ends.is_none() {
            growth.ends = settings.idle_stop.map(|idle_stop| ctx.time.now().after(idle_stop));
            ctx.timers.arm(Timer::Fleet(fleet), growth.ends);
        }
        self.fit_groups(ctx);
        self.fill_slots(ctx, fleet);
        // A worker that is not on trial may take waiting lines at once, one on trial once it runs.
        self.pools.offer(ctx, fleet);
    }

    /// Workers that were not needed for `idle_stop` take no turns any more, and what has no worker is not filled again.
    pub(super) fn tick_turns_of(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        let (now, settings) = (ctx.time.now(), &ctx.settings.pools[fleet]);
        let (instances, idle_stop) = (settings.instances, settings.idle_stop);
        let here = &mut self.pools[fleet];
        let Some(idle_stop) = idle_stop.filter(|_| here.growth.more > 0) else {
            here.growth.ends = None;
            return;
        };
        let ends = *here.growth.ends.get_or_insert(now.after(idle_stop));
        if ends > now {
            ctx.timers.arm(Timer::Fleet(fleet), ends);
            return self.open_beside_empty(ctx, fleet);
        }
        let needed = core::mem::take(&mut here.growth.peak).saturating_sub(instances);
        here.growth.open = here.growth.open.min(needed);
        here.growth.ends = Some(now.after(idle_stop));
        ctx.timers.arm(Timer::Fleet(fleet), here.growth.ends);
        if here.rollout.candidate.is_none() {
            let is_over = |here: &Fleet, at: usize| {
                let is_open = at < instances + here.growth.open;
                here.slots[at].worker.is_none() && (!is_open || here.slots[at].is_out || here.slots[at].is_given_up())
            };
            while here.growth.more > 0
                && let Some(empty) = (0..instances + here.growth.more).find(|at| is_over(here, *at))
            {
                here.give_up_slot(instances, empty);
            }
        }
        self.fit_groups(ctx);
        self.open_beside_empty(ctx, fleet);
    }

    /// While a slot whose worker takes turns is empty, all others of its fleet take turns.
    fn open_beside_empty(&mut self, ctx: &Ctx, fleet: FleetId) {
        let here = &self.pools[fleet];
        let open = ctx.settings.pools[fleet].instances + here.growth.open;
        if here.slots.iter().take(open).any(|slot| slot.worker.is_none()) {
            self.open_all(ctx, fleet);
        }
    }

    /// A line is for a group of shared workers. If none of those that take turns is well, all others take turns again.
    pub(super) fn open_for_line(&mut self, ctx: &Ctx, group: GroupId) {
        let is_closed = |fleet: &FleetId| self.pools[*fleet].growth.open < self.pools[*fleet].growth.more;
        let closed: Vec<FleetId> = self.balancer[group].fleets().filter(is_closed).collect();
        if !closed.is_empty() && !self.balancer[group].has_well(ctx, &self.pools) {
            closed.into_iter().for_each(|fleet| self.open_all(ctx, fleet));
        }
    }

    /// A worker has left its slot, or is needed: all others of its pool take turns.
    pub(super) fn open_all(&mut self, ctx: &Ctx, fleet: FleetId) {
        let growth = &mut self.pools[fleet].growth;
        if growth.open < growth.more {
            growth.open = growth.more;
            self.fit_groups(ctx);
        }
    }

    /// A worker of a pool that has grown was not needed for `idle_stop`: there is one less.
    pub(super) fn shrink(&mut self, ctx: &mut Ctx, fleet: FleetId, key: WorkerKey) {
        let instances = ctx.settings.pools[fleet].instances;
        let here = &self.pools[fleet];
        let may_shrink = here.slot_of(key).is_some() && here.growth.more > 0;
        let is_changing = here.rollout.candidate.is_some() || here.is_rolling_out(ctx);
        // A client may wait for a worker's answer to the `initialize` that the bus has sent again.
        if !may_shrink || is_changing || self.queue.has_any_for(&self.balancer, fleet) {
            return;
        }
        // The pool would start another one at once.
        if self.pools.are_all_busy(ctx, fleet, Some(key)) {
            return;
        }
        let here = &mut self.pools[fleet];
        // Those that have no worker are given up first, so that no fewer than `instances` are left.
        while here.growth.more > 0
            && let Some(empty) = (0..instances + here.growth.more).find(|at| here.slots[*at].worker.is_none())
        {
            here.give_up_slot(instances, empty);
        }
        let Some(slot) = here.slot_of(key).filter(|_| here.growth.more > 0) else { return self.fit_groups(ctx) };
        here.give_up_slot(instances, slot);
        if let Some(worker) = ctx.workers.get_mut(key) {
            worker.lifetime.recycle(RecycleReason::Idle);
        }
        self.pools.retire_worker(ctx, key);
        self.fit_groups(ctx);
    }
}

impl Fleet {
    /// The first slot behind the `kept` ones in which a worker may be started: the worker of another one may have been
    /// taken out, or too many may have failed there.
    fn slot_to_grow_into(&self, now: Moment, kept: usize) -> Option<usize> {
        (kept..self.slots.len()).find(|slot| self.slots[*slot].may_begin(now))
    }

    /// A slot of a fleet that has grown is filled no longer: it becomes the last one, behind those that are.
    fn give_up_slot(&mut self, instances: usize, slot: usize) {
        self.slots.swap(slot, instances + self.growth.more - 1);
        self.growth.more -= 1;
        self.growth.open = self.growth.open.min(self.growth.more);
    }
}

impl Pools {
    /// How many workers beyond `instances` a configured pool keeps.
    pub(crate) fn grown(&self, pool: PoolId) -> usize {
        self.of(pool).map(|fleet| self[fleet].growth.more).sum()
    }

    /// Whether all workers of a fleet that take turns are busy, without regard to this one.
    fn are_all_busy(&self, ctx: &Ctx, fleet: FleetId, except: Option<WorkerKey>) -> bool {
        let (here, settings) = (&self[fleet], &ctx.settings.pools[fleet]);
        let open = settings.instances + here.growth.open;
        let is_other = |worker: Option<WorkerKey>| except.is_none() || worker != except;
        let taking_turns = here.slots.iter().take(open).filter(|slot| !slot.is_out && is_other(slot.worker));
        let mut taking_turns = taking_turns.peekable();
        let is_busy = |key: WorkerKey| is_busy(ctx, settings, key);
        taking_turns.peek().is_some() && taking_turns.all(|slot| slot.worker.is_some_and(is_busy))
    }

    /// Whether a pool may start one more worker than it keeps. One whose workers crash may not.
    fn may_start_one_more(&self, ctx: &Ctx, fleet: FleetId) -> bool {
        let (here, settings) = (&self[fleet], &ctx.settings.pools[fleet]);
        let kept = here.kept_slots(ctx);
        here.slots[..kept].iter().all(|slot| !slot.restarts.is_failing())
            && here.slot_to_grow_into(ctx.time.now(), kept).is_some()
            && here.rollout.candidate.is_none()
            && !here.is_rolling_out(ctx)
            && !here.is_asleep()
            && !settings.is_gone
            && !self[fleet.pool].is_paused()
            && !ctx.shutdown.refuses_requests()
            && !self.is_full(ctx, fleet)
            && !self.are_heavy(ctx)
    }
}

/// Whether a worker owes so many answers that its pool grows if the others do, too. One on trial gets one request at a time,
/// and is busy with that once it has had a chance to answer it.
fn is_busy(ctx: &Ctx, settings: &Pool, key: WorkerKey) -> bool {
    let Some(worker) = ctx.workers.get(key).filter(|worker| worker.runs()) else { return false };
    let limit = if worker.is_on_trial() { 1 } else { settings.concurrency.max(1) };
    worker.end.to_answer.owed() as usize >= limit && !worker.has_had_no_chance(ctx.time.now())
}

/// Panics if a fleet has more workers than it may have.
pub(crate) fn check_growth(pools: &Pools, ctx: &Ctx) {
    for id in pools.ids() {
        let (growth, settings) = (&pools[id].growth, &ctx.settings.pools[id]);
        assert!(growth.open <= growth.more);
        let most = if settings.grows() { settings.max_instances } else { settings.instances };
        assert!(settings.instances + growth.more <= most, "a pool has no more than max_instances");
    }
}
