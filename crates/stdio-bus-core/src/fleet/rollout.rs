//! Rolling replacement of workers without a lost request: because their command has changed, because they have reached
//! a limit (age, requests, memory), or because the operator wants it.
//!
//! A pool replaces one worker at a time. First a candidate runs beside the others. When it has settled (it has run for
//! 200 ms without an exit or bad output, or has answered `server/discover`), it takes the slot of an outgoing worker.
//! That one gets no new work, and ends when its requests and sessions are over, or when `replace_timeout_sec` is. Its stdin
//! is closed, so that it reads first what is left there; a signal ends it if it has not ended after `drain_timeout_sec`.
//!
//! Three candidates in a row that do not settle stop the rollout: the current workers stay, and if one of them ends,
//! the last command that settled is started again. On a busy machine a broken command may live for longer than that: so
//! three workers of a command that has answered nothing yet and ends by itself bring the previous one back, too.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::lifetime::RecycleReason;
use super::restart::{Restarts, SHORTAGE, does_well};
use super::worker::{Worker, WorkerState};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::demand::pass_idleness_on;
use crate::fleet::eras::discovery::ProbeState;
use crate::fleet::life::{end_worker, stop_worker};
use crate::fleet::pool::{Fleet, Placement, Pools};
use crate::index::{FleetId, GroupId, PoolId};
use crate::peer::{ClientKey, Moment, Peer, WorkerKey};
use crate::peers::Workers;
use crate::report::{Level, Reason, Report};
use crate::session::table::{Session, Sessions};
use crate::settings::{Assignment, Era};
use crate::tasks::Tasks;
use crate::timers::Timer;
use crate::view::View;

/// A worker that is late to answer `server/discover` and has nothing else to do is still read for this long after its
/// start.
const LISTENED_FOR: Duration = Duration::from_secs(60);
/// A candidate has settled after running for this long.
const SETTLED_AFTER: Duration = Duration::from_millis(200);
/// This many candidates in a row that fail stop the rollout.
const MOST_FAILURES: u32 = 3;
/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The previous command, in case the new one cannot live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fallback {
    generation: u32,
    /// Number of workers of the new command that have ended by themselves.
    failures: u32,
}

/// The rollout of a fleet: the replacement of its outdated workers, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Rollout {
    /// The worker that is to take a slot, and the slot.
    pub(in crate::fleet) candidate: Option<(WorkerKey, usize)>,
    /// Candidates in a row that did not settle.
    failures: u32,
    /// When the next one is started.
    due: Option<Moment>,
    /// Why it has stopped.
    pub(in crate::fleet) stopped: Option<String>,
    /// A worker was replaced since the last time that none was due.
    is_on: bool,
}

impl Rollout {
    /// Whether this worker is to take a slot.
    pub(super) fn is_candidate(&self, worker: WorkerKey) -> bool {
        self.candidate.is_some_and(|(candidate, _)| candidate == worker)
    }
}

impl Fleets {
    /// Continues replacements after the events of this call.
    #[cold]
    pub(crate) fn continue_rollouts(&mut self, ctx: &mut Ctx, sessions: &Sessions, tasks: &Tasks) {
        while self.pools.take_rollouts_due() {
            self.pools.all().into_iter().for_each(|fleet| self.tick_fleet(ctx, fleet));
        }
        let leaving = ctx.workers.iter().filter(|(_, worker)| worker.lifetime.is_leaving());
        let leaving: Vec<_> = leaving.map(|(key, _)| key).collect();
        for key in leaving {
            self.pools.tick_lifetime(ctx, sessions, tasks, key);
        }
    }

    /// Replaces one worker after the other, as far as possible now.
    pub(super) fn advance_rollout(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        let now = ctx.time.now();
        let here = &self.pools[fleet];
        if ctx.shutdown.stops_workers() || here.rests() {
            return;
        }
        if let Some((candidate, slot)) = here.rollout.candidate {
            match settles_at(ctx, candidate) {
                Some(at) if at <= now && is_for_others(&self.pools, ctx, fleet, candidate) => {
                    self.pools[fleet].rollout.candidate = None;
                    self.pools.retire_worker(ctx, candidate);
                }
                Some(at) if at <= now => self.take_slot(ctx, fleet, candidate, slot),
                at => return ctx.timers.arm(Timer::Fleet(fleet), at),
            }
        }
        if self.pools[fleet].rollout.stopped.is_some() {
            return;
        }
        let Some(slot) = self.pools[fleet].slot_to_renew(ctx) else {
            self.pools[fleet].end_rollout(ctx);
            return self.fill_slots(ctx, fleet);
        };
        match self.pools[fleet].rollout.due.filter(|due| *due > now) {
            Some(due) => ctx.timers.arm(Timer::Fleet(fleet), due),
            None => {
                let generation = ctx.settings.pools[fleet].generation;
                let candidate = self.pools.start_worker(ctx, fleet, Placement::None, generation);
                let rollout = &mut self.pools[fleet].rollout;
                (rollout.candidate, rollout.is_on) = (candidate.map(|candidate| (candidate, slot)), true);
                match candidate {
                    Some(candidate) => self.pools.choose_to_ask(ctx, candidate),
                    // All slots for workers are taken.
                    None => ctx.timers.arm(Timer::Fleet(fleet), now.after(SHORTAGE)),
                }
            }
        }
    }

    /// A candidate has settled: it takes its slot, and the worker there leaves.
    fn take_slot(&mut self, ctx: &mut Ctx, fleet: FleetId, candidate: WorkerKey, slot: usize) {
        let generation = ctx.settings.pools[fleet].generation;
        let is_proved = self.pools[fleet].is_proved(ctx);
        let here = &mut self.pools[fleet];
        here.rollout = Rollout { is_on: true, ..Rollout::default() };
        here.fallback = here.fallback.filter(|_| !is_proved);
        if here.settled != generation {
            let before = here.fallback.map_or(here.settled, |fallback| fallback.generation);
            here.fallback = Some(Fallback { generation: before, failures: 0 });
        }
        here.settled = generation;
        here.slots[slot].restarts = Restarts::default();
        let before = here.slots[slot].worker.replace(candidate);
        pass_idleness_on(ctx, before, candidate);
        before.into_iter().for_each(|before| self.pools.retire_worker(ctx, before));
        let learned = self.pools.conclude_from_exits(ctx, fleet.pool, generation);
        self.follow_era(ctx, learned);
        // A spare has no work yet: no client gets one with the previous command.
        if ctx.settings.pools[fleet].assignment == Assignment::Dedicated
            && !self.balancer[GroupId::Fleet(fleet)].lends()
        {
            self.pools.retire_those(ctx, fleet, None, is_outdated);
        }
        self.end_vacancy(ctx, fleet);
        self.fill_slots(ctx, fleet);
    }
}

impl Fleet {
    /// Whether the slots of a pool are filled by the rollout: its new command has not settled yet.
    pub(crate) fn is_rolling_out(&self, ctx: &Ctx) -> bool {
        self.settled != ctx.settings.pools[self.id()].generation && self.rollout.stopped.is_none()
    }

    /// The workers in the slots of a pool behind so many.
    pub(crate) fn workers_beyond(&self, slots: usize) -> Vec<WorkerKey> {
        self.slots.iter().skip(slots).filter_map(|slot| slot.worker).collect()
    }

    /// The one that was to take this slot is not needed.
    pub(crate) fn drop_candidate_for(&mut self, ctx: &mut Ctx, slot: usize) {
        if let Some((candidate, _)) = self.rollout.candidate.take_if(|(_, at)| *at == slot) {
            stop_worker(ctx, candidate);
        }
    }

    /// A candidate for a slot behind the `kept` ones is to take the first of these that was not taken out. Without one it is
    /// not needed.
    pub(crate) fn give_candidate_a_slot(&mut self, ctx: &mut Ctx, kept: usize) {
        let Some((_, slot)) = self.rollout.candidate.as_mut().filter(|(_, slot)| *slot >= kept) else {
            return;
        };
        match self.slots[..kept].iter().position(|slot| !slot.is_out) {
            Some(first) => *slot = first,
            None => {
                let slot = *slot;
                self.drop_candidate_for(ctx, slot);
            }
        }
    }

    /// Whether a worker of the last settled command has answered something.
    fn is_proved(&self, ctx: &Ctx) -> bool {
        let (fleet, settled) = (self.id(), self.settled);
        let proves = |worker: &Worker| {
            worker.fleet == fleet && worker.lifetime.generation() == settled && worker.answering.has_answered()
        };
        ctx.workers.iter().any(|(_, worker)| proves(worker))
    }

    /// The slot that is to have another worker: an empty one, or that of the oldest worker, so that each has its turn where
    /// workers reach their limits sooner than all are replaced. While a new command has not settled, empty ones wait
    /// for that, too.
    fn slot_to_renew(&self, ctx: &Ctx) -> Option<usize> {
        let is_unsettled = self.settled != ctx.settings.pools[self.id()].generation;
        let kept = self.kept_slots(ctx);
        let due = |slot: usize| match self.slots[slot].worker {
            Some(worker) => {
                let worker = ctx.workers.get(worker).filter(|worker| is_outdated(ctx, worker))?;
                Some((Some(worker.name.incarnation), slot))
            }
            None => (is_unsettled && slot < kept && !self.slots[slot].is_out).then_some((None, slot)),
        };
        // Without any workers there is nothing to keep.
        let any = self.slots.iter().any(|slot| slot.worker.is_some());
        (0..self.slots.len()).filter_map(due).min().filter(|_| any).map(|(_, slot)| slot)
    }

    fn stop_rollout(&mut self, ctx: &mut Ctx, why: &str) {
        let id = &ctx.settings.pools[self.id()].id;
        let text = format!("pool \"{id}\": {MOST_FAILURES} new workers {why}. Correct the command and reload");
        self.rollout.stopped = Some(text.clone());
        ctx.report(Reason::RollFailed, None, || text);
    }

    /// A candidate has ended before it has settled.
    pub(crate) fn candidate_ended(&mut self, ctx: &mut Ctx, worker: &Worker) {
        let now = ctx.time.now();
        let rollout = &mut self.rollout;
        rollout.candidate = None;
        if worker.process.was_short() {
            rollout.due = Some(now.after(SHORTAGE));
        } else if !worker.is_excused() {
            rollout.due = Some(now.after(FIRST_PAUSE * (1 << rollout.failures)));
            rollout.failures += 1;
        }
        if rollout.failures == MOST_FAILURES {
            self.stop_rollout(ctx, "in a row ended before they had settled; the old workers stay");
        }
    }

    /// A worker has ended by itself: its command may be broken after all.
    pub(crate) fn maybe_roll_back(&mut self, ctx: &mut Ctx, worker: &Worker) {
        let now = ctx.time.now();
        let newest = ctx.settings.pools[self.id()].generation;
        let is_newest = worker.lifetime.generation() == newest && self.settled == newest;
        let is_excused = worker.is_excused() || worker.process.was_short();
        let Some(mut fallback) = self.fallback.filter(|_| is_newest && !is_excused) else { return };
        let is_proved = worker.answering.has_answered()
            || does_well(now, worker.process.started(), &ctx.settings.limits)
            || self.is_proved(ctx);
        fallback.failures += 1;
        self.fallback = Some(fallback).filter(|_| !is_proved);
        if is_proved {
            return;
        }
        self.rollout.due = Some(now.after(FIRST_PAUSE * (1 << fallback.failures)));
        if fallback.failures == MOST_FAILURES {
            (self.settled, self.fallback) = (fallback.generation, None);
            self.slots.iter_mut().for_each(|slot| slot.restarts = Restarts::default());
            self.stop_rollout(ctx, "ended without an answer; the previous command is used again");
        }
    }

    /// No slot needs renewal any more.
    fn end_rollout(&mut self, ctx: &mut Ctx) {
        let pool = &ctx.settings.pools[self.id()];
        self.settled = pool.generation;
        if core::mem::take(&mut self.rollout).is_on {
            let id = &pool.id;
            let text = format!("pool \"{id}\": all outdated workers are replaced");
            ctx.report(Reason::PoolRolled, None, || text);
        }
    }
}

impl Pools {
    /// Checks how long a worker may stay. Returns when to check again.
    pub(super) fn tick_lifetime(
        &mut self,
        ctx: &mut Ctx,
        sessions: &Sessions,
        tasks: &Tasks,
        key: WorkerKey,
    ) -> Option<Moment> {
        let now = ctx.time.now();
        let lives = |worker: &&Worker| matches!(worker.process.state(), WorkerState::Starting | WorkerState::Running);
        let worker = ctx.workers.get(key).filter(lives)?;
        let lifetime = worker.lifetime;
        let Some(by) = lifetime.leaves_by() else {
            if lifetime.recycle_reason().is_some() || lifetime.ages_at() <= now {
                self.recycle(ctx, key, lifetime.recycle_reason().unwrap_or(RecycleReason::Age));
            }
            return Some(lifetime.ages_at()).filter(|at| *at > now && lifetime.recycle_reason().is_none());
        };
        if let Some(until) = tasks.need(ctx, key) {
            // It is asked again when the first of both is over.
            return Some(if by > now { until.min(by) } else { until });
        }
        let is_over = by <= now;
        let listens = worker.is_listened_to_until(now);
        let stays = if sessions.has_work(ctx, key, worker) { Some(by) } else { listens };
        if let Some(until) = stays.filter(|_| !is_over) {
            return Some(until.min(by));
        }
        if is_over && worker.end.to_answer.awaited() > 0 {
            let pending = worker.end.to_answer.awaited();
            ctx.report(Reason::WorkerReplaced, Some(Peer::Worker(key)), || {
                format!("a worker is stopped with {pending} requests pending: replace_timeout_sec is over")
            });
        }
        if let Some(worker) = ctx.workers.get_mut(key) {
            worker.process.replace_for(Reason::WorkerReplaced);
        }
        if is_over {
            stop_worker(ctx, key);
        } else {
            end_worker(ctx, key);
        }
        None
    }

    /// Restarts a rollout: the reason why it stopped may be fixed.
    pub(crate) fn restart_rollout(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        if let Some((candidate, _)) = core::mem::take(&mut self[fleet].rollout).candidate {
            stop_worker(ctx, candidate);
        }
        self.roll_out_soon(ctx);
    }

    /// A fleet that gets its first workers has seen no reload: it starts them with the command that the fleet of the other
    /// era has settled on. One that is still tried there is tried here as well.
    pub(crate) fn catch_up(&mut self, ctx: &Ctx, fleet: FleetId) {
        let is_tried = self[fleet.other_era()].is_rolling_out(ctx);
        let [here, other] = self.both_mut(fleet).expect("the pool has a fleet for each era");
        (here.settled, here.fallback) = (other.settled, other.fallback);
        here.rollout = Rollout { stopped: other.rollout.stopped.clone(), ..Rollout::default() };
        if is_tried {
            let generation = other.fallback.map_or(other.settled, |fallback| fallback.generation);
            here.fallback = Some(Fallback { generation, failures: 0 });
        }
    }

    /// A worker is to be replaced. A dedicated one ends with its client.
    pub(crate) fn recycle(&mut self, ctx: &mut Ctx, key: WorkerKey, reason: RecycleReason) {
        let Some(worker) = ctx.workers.get_mut(key).filter(|worker| worker.takes_messages()) else { return };
        worker.lifetime.recycle(reason);
        let here = &mut self[worker.fleet];
        if here.slot_of(key).is_some() {
            here.rollout.stopped = None;
            self.roll_out_soon(ctx);
        } else if reason == RecycleReason::Operator && !here.rollout.is_candidate(key) {
            self.retire_worker(ctx, key);
        }
    }

    /// The operator has all workers of a pool replaced, and started where they are in backoff or were given up.
    pub(crate) fn on_restart_pool(&mut self, ctx: &mut Ctx, pool: PoolId) {
        self.put_back(ctx, pool);
        for fleet in self.of(pool) {
            self[fleet].forget_ends();
            let slots = self[fleet].slots.iter();
            let workers: Vec<_> = slots.filter_map(|slot| slot.worker).collect();
            workers.into_iter().for_each(|worker| self.recycle(ctx, worker, RecycleReason::Operator));
        }
    }

    /// Those workers in the slots of a pool get no new work, perhaps for another reason than their command.
    pub(crate) fn retire_those(
        &mut self,
        ctx: &mut Ctx,
        fleet: FleetId,
        why: Option<RecycleReason>,
        is_meant: impl Fn(&Ctx, &Worker) -> bool,
    ) {
        let workers = self[fleet].slots.iter().filter_map(|slot| slot.worker);
        let is_meant = |key: &WorkerKey| ctx.workers.get(*key).is_some_and(|worker| is_meant(ctx, worker));
        let meant: Vec<_> = workers.filter(is_meant).collect();
        for key in meant {
            if let Some((worker, why)) = ctx.workers.get_mut(key).zip(why) {
                worker.lifetime.recycle(why);
            }
            self.retire_worker(ctx, key);
        }
    }

    /// A worker gets no new work, and loses its slot.
    pub(crate) fn retire_worker(&mut self, ctx: &mut Ctx, key: WorkerKey) {
        self.leave_slot(ctx, key);
        let by = ctx.time.now().after(ctx.settings.limits.replace_timeout);
        let Some(worker) = ctx.workers.get_mut(key).filter(|worker| !worker.lifetime.is_leaving()) else { return };
        worker.lifetime.leave(by);
        let (why, name) = (worker.lifetime.why(), worker.name);
        let is_gone = matches!(
            worker.lifetime.recycle_reason(),
            Some(RecycleReason::Out | RecycleReason::Idle | RecycleReason::Room)
        );
        let what = if is_gone { "leaves" } else { "is being replaced" };
        let (pending, sessions) = (worker.end.to_answer.awaited(), worker.end.sessions.len());
        ctx.emit_report(Reason::WorkerReplaced, || {
            let text = format!("a worker {what}: {why}; it finishes {pending} requests and {sessions} sessions");
            Report { worker: Some(name), ..Report::new(Reason::WorkerReplaced, text) }.at(Level::Info)
        });
        ctx.workers_changed = true;
        ctx.wake_at(key.into(), by);
        // Lines that wait may have another destination.
        ctx.release_waiters(Peer::Worker(key));
    }
}

impl Worker {
    /// Until when it may still answer `server/discover`, if it is late with that.
    pub(super) fn is_listened_to_until(&self, now: Moment) -> Option<Moment> {
        let until = (self.question == ProbeState::Late).then(|| self.process.started().after(LISTENED_FOR))?;
        (until > now).then_some(until)
    }
}

impl Sessions {
    /// Whether a worker is needed, even if it gets no new work.
    pub(super) fn has_work(&self, ctx: &Ctx, key: WorkerKey, worker: &Worker) -> bool {
        let is_in_use = |session: &Session| session.owner().is_some() || session.is_working();
        worker.end.to_answer.awaited() > 0
            || worker.owner().is_some()
            || worker.end.output.queued() > 0
            || worker.end.sessions.iter().any(|session| self.get(*session).is_some_and(is_in_use))
            || ctx.clients.iter().any(|(_, client)| client.assigned().iter().any(|(_, assigned)| *assigned == key))
    }
}

/// When a candidate settles; none if that is not known yet.
fn settles_at(ctx: &Ctx, key: WorkerKey) -> Option<Moment> {
    let worker = ctx.workers.get(key).filter(|worker| worker.runs())?;
    let answers = worker.answering.has_answered();
    Some(if answers { ctx.time.now() } else { worker.process.started().after(SETTLED_AFTER) })
}

/// Whether a candidate was asked for its era, and the clients here need one that was not.
fn is_for_others(pools: &Pools, ctx: &Ctx, fleet: FleetId, candidate: WorkerKey) -> bool {
    fleet.era == Era::Legacy
        && pools[fleet].is_used()
        && ctx.workers.get(candidate).is_some_and(|worker| worker.question.may_have_pinned())
}

pub(crate) fn is_outdated(ctx: &Ctx, worker: &Worker) -> bool {
    worker.lifetime.generation() != ctx.settings.pools[worker.fleet].generation
        || worker.lifetime.recycle_reason().is_some()
}

/// Some work of a worker is over: if it leaves, that may have been the last.
pub(crate) fn notice_leaving(ctx: &mut Ctx, key: WorkerKey) {
    ctx.workers_changed |= ctx.workers.get(key).is_some_and(|worker| worker.lifetime.is_leaving());
}

/// The same, if it is over otherwise than by an answer: it was needed until now.
pub(crate) fn notice_end_of_work(ctx: &mut Ctx, key: WorkerKey) {
    let now = ctx.time.now();
    ctx.workers.get_mut(key).into_iter().for_each(|worker| worker.lifetime.note_work(now));
    notice_leaving(ctx, key);
}

impl Workers {
    /// The workers of a fleet without a slot that may have sessions for a client: those that leave and that clients share,
    /// and its own, which it keeps where its pool is shared from a reload on.
    pub(crate) fn beside_slots(&self, fleet: FleetId, client: ClientKey) -> impl Iterator<Item = WorkerKey> {
        let is_open = move |worker: &Worker| match worker.owner() {
            None => worker.lifetime.is_leaving(),
            owner => owner == Some(client),
        };
        self.iter().filter(move |(_, worker)| worker.fleet == fleet && is_open(worker)).map(|(key, _)| key)
    }
}

/// Panics if the candidate of a pool has a slot or is gone, a pool waits for none, or a leaving worker has a slot.
pub(crate) fn check_rollouts(pools: &Pools, ctx: &Ctx) {
    for id in pools.ids() {
        let fleet = &pools[id];
        let is_in_progress = fleet.rollout.candidate.is_some() || ctx.timers.is_armed(Timer::Fleet(id));
        let rests = fleet.rests() || ctx.shutdown.stops_workers();
        let has_any = fleet.slots.iter().any(|slot| slot.worker.is_some());
        assert!(
            is_in_progress || rests || has_any || !fleet.is_rolling_out(ctx),
            "it waits for a command that nobody tries"
        );
        let Some((key, slot)) = fleet.rollout.candidate else { continue };
        let candidate = ctx.workers.get(key).expect("a candidate lives");
        assert!(fleet.slot_of(key).is_none() && candidate.owner().is_none() && candidate.fleet == id);
        assert!(slot < fleet.slots.len() && !candidate.lifetime.is_leaving());
    }
    let mut leaving = ctx.workers.iter().filter(|(_, worker)| worker.lifetime.is_leaving());
    let has_slot = |(key, worker): (_, &Worker)| pools[worker.fleet].slot_of(key).is_some();
    assert!(!leaving.any(has_slot), "what leaves has no slot");
}

impl<'a> View<'a> {
    /// The role of a worker: it `serves`, or is a `candidate` that must settle before it replaces another one, or
    /// `leaves` when its work is done.
    pub fn role(&self, key: WorkerKey) -> Option<&'static str> {
        let worker = self.bus.ctx.workers.get(key)?;
        Some(match () {
            () if worker.lifetime.is_leaving() => "leaves",
            () if self.bus.fleets.pools[worker.fleet].rollout.is_candidate(key) => "candidate",
            () => "serves",
        })
    }

    /// Why the workers of a configured pool are not those of its newest command, if that has failed.
    pub fn rollout_failure(&self, pool: impl Into<PoolId>) -> Option<&'a str> {
        let pool = pool.into();
        let pools = &self.bus.fleets.pools;
        pools.of(pool).find_map(|fleet| pools[fleet].rollout.stopped.as_deref())
    }

    /// The commands of a configured pool with which workers may be started besides the newest one.
    pub fn settled_commands(&self, pool: PoolId) -> impl Iterator<Item = u32> + use<'a> {
        let pools = &self.bus.fleets.pools;
        pools.of(pool).flat_map(|fleet| {
            let here = &pools[fleet];
            [Some(here.settled), here.fallback.map(|fallback| fallback.generation)].into_iter().flatten()
        })
    }

    /// Whether it is not known yet whether the newest command of a configured pool can live.
    pub fn is_unsettled(&self, pool: impl Into<PoolId>) -> bool {
        let pool = pool.into();
        let fleets = &self.bus.fleets;
        let is_unsettled =
            |fleet: FleetId| !fleets.pools[fleet].rests() && fleets.pools[fleet].is_rolling_out(&self.bus.ctx);
        fleets.pools.of(pool).any(is_unsettled)
    }
}
