//! Pools that follow the demand. A pool that starts on demand is asleep until its first line: it has no workers. A line
//! that no worker of its group could take wakes it. Then it keeps its `instances` as any other pool does, and the line
//! is sent to one of them, or waits where lines wait for a worker (`queue.rs`). After `idle_stop` without work it falls
//! asleep again: its workers leave as those do that are replaced (`rollout.rs`), so that nothing is lost and nothing
//! counts as a crash. What comes meanwhile wakes it again.
//!
//! A worker has work while it owes an answer that somebody waits for, works on a task, has a session whose client is
//! there or a client of its own, or while bytes for it are queued in the daemon. What is in its pipe it may read when it
//! leaves. When each worker was last needed is looked at on its timer
//! alone: lines on the fast path pay nothing for it.
//!
//! Where the memory of all workers is limited (`max_workers_memory_mb`), and they hold more than that, the pool that has
//! been idle for longest falls asleep, whatever its `idle_stop`; and the next one if they still do when they are measured
//! again.
//!
//! Of a pool with a fleet for each era either is asleep by itself.

use core::time::Duration;

use super::growth::Growth;
use super::lifetime::RecycleReason;
use super::worker::{Worker, WorkerState};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::pool::{Fleet, Pools};
use crate::fleet::queue::WorkerQueue;
use crate::index::{FleetId, GroupId, PoolId};
use crate::message::Parsed;
use crate::peer::{ClientKey, Moment, WorkerKey};
use crate::report::Reason;
use crate::session::table::Sessions;
use crate::settings::{Assignment, Era};
use crate::tasks::Tasks;
use crate::timers::Timer;
use crate::view::View;

/// While memory is short a pool falls asleep that has been idle for so long: not one between two requests.
const LEAST_IDLE: Duration = Duration::from_secs(10);

/// The memory of all workers.
#[derive(Debug, Default)]
pub(in crate::fleet) struct Footprint {
    /// MiB that they held when they were last measured.
    mib: u64,
    /// They hold more than they may, and it was reported that no pool is idle.
    is_reported: bool,
}

impl Fleets {
    /// A line is for a group. If no worker there serves it, nor is about to, the first pool that is asleep and does not deny it
    /// is woken: rather one that may start a worker at once.
    pub(super) fn wake_for_line(&mut self, ctx: &mut Ctx, client: ClientKey, group: GroupId, line: Parsed<'_>) {
        let (here, pools) = (&self.balancer[group], &self.pools);
        if !here.fleets().any(|fleet| ctx.settings.pools[fleet].may_sleep()) || ctx.shutdown.refuses_requests() {
            return;
        }
        // If all are paused, what comes nevertheless is not held up.
        let are_paused = here.is_paused(pools);
        let takes_work = |fleet: FleetId| are_paused || !pools[fleet.pool].is_paused();
        let serves = |key: WorkerKey| {
            let worker = ctx.workers.get(key).filter(|worker| worker.takes_messages() && !worker.is_unresponsive());
            worker.is_some_and(|worker| takes_work(worker.fleet))
        };
        let mut workers = here.slots().iter().filter_map(|slot| pools[*slot].worker);
        if workers.any(serves) || here.questions_end(ctx).is_some() {
            return;
        }
        let now = ctx.time.now();
        // Whether a pool serves clients of 2026-07-28 is asked first, if that is not known (`wake_to_ask`).
        let may_serve =
            |fleet: &FleetId| fleet.era == Era::Legacy || pools.pool_era(ctx, fleet.pool) == Some(Era::Modern);
        let is_asleep =
            |fleet: &FleetId| pools[*fleet].is_asleep && pools[*fleet].may_start_any(ctx) && may_serve(fleet);
        let takes_line = |fleet: FleetId| takes_work(fleet) && !ctx.is_denied_in(fleet.pool, client, line);
        let asleep = || here.fleets().filter(|fleet| is_asleep(fleet) && takes_line(*fleet));
        let may_begin = |fleet: &FleetId| pools[*fleet].slots.iter().any(|slot| slot.may_begin(now));
        let first = asleep().find(may_begin).or_else(|| asleep().next());
        for fleet in here.fleets() {
            self.pools[fleet].asked_at = now;
        }
        if let Some(fleet) = first {
            self.pools.serve_without_question(fleet);
            self.wake(ctx, fleet, line.id.is_some());
        }
    }

    /// A client of MCP 2026-07-28 wants to know whether a pool serves it: if that is not known, and no worker is being
    /// asked, one is started for that.
    pub(crate) fn wake_to_ask(&mut self, ctx: &mut Ctx, pool: PoolId) {
        let [legacy, modern] = Era::BOTH.map(|era| pool.of(era));
        if !self.pools.has(modern)
            || self.pools.pool_era(ctx, pool).is_some()
            || self.pools[pool].is_paused()
            || ctx.shutdown.refuses_requests()
        {
            return;
        }
        for fleet in [legacy, modern] {
            self.pools[fleet].asked_at = ctx.time.now();
        }
        if ctx.workers.asks_era(pool) {
            return;
        }
        let was_asleep = self.pools.is_asleep(pool);
        self.pools.ask_beside(ctx, pool);
        if was_asleep {
            self.wake(ctx, modern, true);
        } else if !self.pools[modern].rests() {
            self.pools[modern].is_asleep = false;
            self.tick_fleet(ctx, modern);
        }
    }

    /// Starts the workers of a fleet that is asleep. How long it takes is measured if somebody waits for an answer.
    fn wake(&mut self, ctx: &mut Ctx, fleet: FleetId, is_request: bool) {
        let now = ctx.time.now();
        self.pools.forget_old_era(fleet.pool);
        // As long as the era of the command is not known, a worker of the fleet that has the slots is asked.
        let is_unknown = self.pools[fleet].rests() && self.pools.pool_era(ctx, fleet.pool).is_none();
        let other = self.pools.other(fleet).filter(|_| is_unknown);
        for woken in [Some(fleet), other].into_iter().flatten() {
            let here = &mut self.pools[woken];
            (here.is_asleep, here.asked_at, here.woken_at) = (false, now, None);
        }
        self.pools[other.unwrap_or(fleet)].woken_at = is_request.then_some(now);
        let id = &ctx.settings.pools[fleet].id;
        let text = format!("pool \"{id}\" wakes up: a line arrived for it");
        self.pools[fleet.pool].woken += 1;
        ctx.report(Reason::PoolWoken, None, || text);
        for woken in [Some(fleet), other].into_iter().flatten() {
            self.tick_fleet(ctx, woken);
        }
    }

    /// Looks whether a worker is idle, and with it perhaps its pool. Returns when to look again.
    pub(super) fn tick_idle(
        &mut self,
        ctx: &mut Ctx,
        sessions: &Sessions,
        tasks: &Tasks,
        key: WorkerKey,
    ) -> Option<Moment> {
        let fleet = ctx.workers.fleet_of(key)?;
        let settings = &ctx.settings.pools[fleet];
        let may_sleep = settings.may_sleep();
        let has_grown = self.pools[fleet].growth.more() > 0;
        let idle_stop = settings.idle_stop.filter(|_| may_sleep || has_grown)?;
        // One that belongs to a client ends with it.
        self.pools[fleet].slot_of(key)?;
        let now = ctx.time.now();
        let again = now.after(idle_stop);
        let Some(since) = idle_since(ctx, sessions, tasks, key) else { return Some(again) };
        if since.after(idle_stop) > now {
            return Some(since.after(idle_stop));
        }
        if !may_sleep || !self.is_idle(ctx, sessions, tasks, fleet, idle_stop) {
            self.shrink(ctx, fleet, key);
            return Some(again);
        }
        self.fall_asleep(ctx, fleet, RecycleReason::Idle);
        None
    }

    /// Whether nobody has needed any worker of a fleet for so long.
    fn is_idle(&self, ctx: &mut Ctx, sessions: &Sessions, tasks: &Tasks, fleet: FleetId, idle_stop: Duration) -> bool {
        let since = self.unneeded_since(ctx, sessions, tasks, fleet);
        since.is_some_and(|since| since.after(idle_stop) <= ctx.time.now())
    }

    /// Since when nobody has needed any worker of a fleet; none if somebody does.
    fn unneeded_since(&self, ctx: &mut Ctx, sessions: &Sessions, tasks: &Tasks, fleet: FleetId) -> Option<Moment> {
        let here = &self.pools[fleet];
        let is_owned = |worker: &Worker| worker.fleet == fleet && worker.owner().is_some() && worker.takes_messages();
        if here.rollout.candidate.is_some()
            || here.is_rolling_out(ctx)
            || self.queue.has_any_for(&self.balancer, fleet)
            || ctx.workers.iter().any(|(_, worker)| is_owned(worker))
        {
            return None;
        }
        let mut since = here.workers_in_slots().map(|key| idle_since(ctx, sessions, tasks, key));
        since.try_fold(Moment::default(), |latest, since| Some(latest.max(since?)))
    }

    /// All workers together hold so much memory. Above `max_workers_memory` the pool that has been idle for longest falls
    /// asleep.
    pub(crate) fn note_memory(&mut self, ctx: &mut Ctx, sessions: &Sessions, tasks: &Tasks, mib: u64) {
        self.pools.footprint.mib = mib;
        let most = ctx.settings.limits.max_workers_memory.filter(|most| mib > *most);
        let Some(most) = most.filter(|_| !ctx.shutdown.refuses_requests()) else {
            self.pools.footprint.is_reported = false;
            return;
        };
        let mut longest: Option<(Moment, FleetId)> = None;
        for fleet in self.pools.all() {
            let here = &self.pools[fleet];
            let has_any = here.workers_in_slots().next().is_some();
            if !ctx.settings.pools[fleet].may_sleep() || here.is_asleep || !has_any {
                continue;
            }
            if let Some(since) = self.unneeded_since(ctx, sessions, tasks, fleet)
                && since.after(LEAST_IDLE) <= ctx.time.now()
                && longest.is_none_or(|(before, _)| since < before)
            {
                longest = Some((since, fleet));
            }
        }
        if let Some((_, fleet)) = longest {
            self.fall_asleep(ctx, fleet, RecycleReason::Room);
        } else if !core::mem::replace(&mut self.pools.footprint.is_reported, true) {
            ctx.report(Reason::WorkersMemory, None, || {
                format!(
                    "all workers together hold {mib} MiB, more than max_workers_memory_mb ({most}), and no pool that starts \
                     on demand has been idle for {} s: raise the limit, or lower instances or max_instances",
                    LEAST_IDLE.as_secs()
                )
            });
        }
    }

    /// Nobody needs the workers of a fleet: they leave, and others are started when a line has come.
    fn fall_asleep(&mut self, ctx: &mut Ctx, fleet: FleetId, why: RecycleReason) {
        let here = &mut self.pools[fleet];
        here.put_unusable_last(ctx.settings.pools[fleet].instances + here.growth.more());
        (here.is_asleep, here.woken_at, here.growth) = (true, None, Growth::default());
        // The fleet of the other era has no workers either, if those of the pool were here.
        if let Some(other) = self.pools.other(fleet).filter(|other| self.pools[*other].rests()) {
            self.pools[other].is_asleep = true;
        }
        let settings = &ctx.settings.pools[fleet];
        let why_now = match ctx.settings.limits.max_workers_memory.filter(|_| why == RecycleReason::Room) {
            Some(most) => {
                let mib = self.pools.footprint.mib;
                format!("it is idle, and all workers together hold {mib} MiB, more than max_workers_memory_mb ({most})")
            }
            None => format!("it has been idle for {} s", settings.idle_stop.unwrap_or_default().as_secs_f32()),
        };
        let text = format!("pool \"{}\" is asleep: {why_now}", settings.id);
        ctx.report(Reason::PoolAsleep, None, || text);
        ctx.timers.arm(Timer::Fleet(fleet), self.pools[fleet].ready_again_at(ctx));
        self.pools.retire_those(ctx, fleet, Some(why), |_, _| true);
        self.fit_groups(ctx);
        ctx.workers_changed = true;
    }

    /// A fleet whose workers cannot be started, or end whenever they are, falls asleep as well when nobody asks for it.
    pub(super) fn fall_asleep_without_workers(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        let (here, settings) = (&self.pools[fleet], &ctx.settings.pools[fleet]);
        let Some(idle_stop) = settings.idle_stop.filter(|_| settings.may_sleep() && !here.is_asleep && !here.rests())
        else {
            return;
        };
        let due = here.asked_at.after(idle_stop);
        let is_there = |worker: &Worker| worker.fleet == fleet && worker.takes_messages();
        let has_any = here.slots.iter().any(|slot| slot.worker.is_some())
            || ctx.workers.iter().any(|(_, worker)| is_there(worker));
        if has_any || ctx.shutdown.stops_workers() {
            return;
        }
        if due > ctx.time.now() || here.rollout.candidate.is_some() || self.queue.has_any_for(&self.balancer, fleet) {
            let soon = ctx.time.now().after(idle_stop);
            return ctx.timers.arm(Timer::Fleet(fleet), if due > ctx.time.now() { due } else { soon });
        }
        self.fall_asleep(ctx, fleet, RecycleReason::Idle);
    }
}

impl Fleet {
    /// Whether it has no workers until a line needs one.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    /// Whether its command was replaced by another one than this while it was asleep.
    pub(super) fn was_replaced_asleep(&self, command: u32) -> bool {
        !self.rests() && self.is_asleep && self.settled != command
    }

    /// A worker has ended: what it was asked last counts for its pool.
    pub(super) fn note_asked(&mut self, now: Moment, worker: &Worker) {
        // It had work when it was last looked at.
        let now = worker.lifetime.idle().is_none().then_some(now);
        let asked = worker.answering.waits_since().max(worker.lifetime.worked_at());
        self.asked_at = self.asked_at.max(asked).max(now.unwrap_or_default());
    }

    /// Of the first `kept` slots those whose workers were taken out or given up become the last ones: if others have gone on,
    /// a line wakes as many of those as are kept.
    fn put_unusable_last(&mut self, kept: usize) {
        let kept = kept.min(self.slots.len());
        self.slots[..kept].sort_by_key(|slot| (slot.is_out, slot.is_given_up()));
    }

    /// Whether the operator has not taken out all of its workers, or its clients get others.
    pub(super) fn may_start_any(&self, ctx: &Ctx) -> bool {
        let settings = &ctx.settings.pools[self.id()];
        // One is lent from any slot.
        let slots = if settings.lends(self.id().era) { self.slots.len() } else { settings.instances };
        let gives_own = settings.assignment == Assignment::Dedicated && !settings.lends(self.id().era);
        gives_own || self.slots.iter().take(slots).any(|slot| !slot.is_out)
    }

    /// A worker has ended. If it has failed before it, or any other worker since the pool was woken, had answered anything,
    /// the next one is likely to fail, too. Once one has answered, the command works, and a client whose requests end workers
    /// does not make its pool unready for others. That a worker with what is its client's own fails says nothing about others.
    pub(super) fn note_failure(&mut self, ctx: &Ctx, worker: &Worker) {
        let is_failure = !worker.is_excused() && !worker.process.was_short() && !worker.answering.has_answered();
        if is_failure && self.woken_at.is_some() && !ctx.settings.pools[self.id()].personal {
            self.failed_at = Some(ctx.time.now());
        }
    }

    /// Until when a pool that starts on demand is not ready, since its last worker has failed before it had answered
    /// anything: its replacement has not shown that it works until it has answered.
    pub(super) fn unready_until(&self, ctx: &Ctx) -> Option<Moment> {
        let until = self.failed_at?.after(ctx.settings.limits.restart_window);
        Some(until).filter(|until| *until > ctx.time.now() && ctx.settings.pools[self.id()].may_sleep())
    }

    /// When some of its failures are next so old that it may be ready again.
    pub(super) fn ready_again_at(&self, ctx: &Ctx) -> Option<Moment> {
        let window = ctx.settings.limits.restart_window;
        let restarts = self.slots.iter().map(|slot| &slot.restarts).chain([&self.restarts]);
        let of_restarts = restarts.filter(|_| self.is_asleep).filter_map(|restarts| restarts.failed_until(window));
        of_restarts.chain(self.unready_until(ctx)).filter(|until| *until > ctx.time.now()).min()
    }

    /// Whether the last worker has failed lately, in every slot in which one may be started, or with its client.
    pub(super) fn has_failed_lately(&self, ctx: &Ctx) -> bool {
        let (now, window) = (ctx.time.now(), ctx.settings.limits.restart_window);
        let kept = self.slots.iter().take(ctx.settings.pools[self.id()].instances);
        let mut kept = kept.filter(|slot| !slot.is_out).peekable();
        self.unready_until(ctx).is_some()
            || self.restarts.has_failed_lately(now, window)
            || kept.peek().is_some() && kept.all(|slot| slot.restarts.has_failed_lately(now, window))
    }

    /// Whether a line would find a worker, as far as is known, though none serves now: one would be started for it, or is
    /// being started. Not if the last ones have failed lately.
    pub(super) fn starts_on_demand(&self, ctx: &Ctx, pools: &Pools) -> bool {
        let settings = &ctx.settings.pools[self.id()];
        if !settings.may_sleep() {
            return false;
        }
        if self.is_asleep {
            return self.may_start_any(ctx) && !self.has_failed_lately(ctx);
        }
        let mut workers = self.slots.iter().filter_map(|slot| ctx.workers.get(slot.worker?));
        let starts = |worker: &Worker| worker.process.state() == WorkerState::Starting || worker.is_asked();
        let kept = &self.slots[..self.kept_slots(ctx)];
        let is_coming = workers.any(starts) && !kept.iter().any(|slot| slot.restarts.is_unsteady());
        is_coming || settings.assignment == Assignment::Dedicated && pools.may_grow(ctx, self.id())
    }
}

impl Pools {
    /// Whether all workers together hold more memory than they may.
    pub(super) fn are_heavy(&self, ctx: &Ctx) -> bool {
        ctx.settings.limits.max_workers_memory.is_some_and(|most| self.footprint.mib > most)
    }

    /// Whether a configured pool has no workers until a line needs one.
    pub(crate) fn is_asleep(&self, pool: PoolId) -> bool {
        let mut fleets = self.of(pool).filter(|fleet| !self[*fleet].rests()).peekable();
        fleets.peek().is_some() && fleets.all(|fleet| self[fleet].is_asleep)
    }

    /// A worker may have answered for the first time: with that the wake of its pool is over, and that another one has
    /// failed before counts no more.
    pub(crate) fn note_wakes(&mut self, ctx: &Ctx) {
        if !self.may_sleep() {
            return;
        }
        for fleet in self.all() {
            if let Some(failed_at) = self[fleet].failed_at {
                let has_said_more = |worker: &Worker| worker.end.stream.spoke_at() >= Some(failed_at);
                let answers =
                    |worker: &Worker| worker.fleet == fleet && worker.answering.has_answered() && has_said_more(worker);
                self[fleet].failed_at.take_if(|_| ctx.workers.iter().any(|(_, worker)| answers(worker)));
            }
            let Some(since) = self[fleet].woken_at else { continue };
            let answers = |worker: &Worker| {
                worker.fleet == fleet && worker.process.started() >= since && worker.answering.has_answered()
            };
            if ctx.workers.iter().any(|(_, worker)| answers(worker)) {
                self[fleet].woken_at = None;
                self[fleet.pool].wakes.observe(ctx.time.now().since(since));
            }
        }
    }
}

impl WorkerQueue {
    /// Whether a client waits for a worker of a fleet.
    pub(super) fn has_any_for(&self, groups: &super::balancer::Balancer, fleet: FleetId) -> bool {
        self.groups().any(|group| groups[group].has(fleet))
    }
}

/// By when a worker that owes an answer, and has said nothing yet, has to say something. A spare has all of the time from
/// its first request on.
pub(super) fn start_ends(ctx: &Ctx, key: WorkerKey) -> Option<Moment> {
    let worker = ctx.workers.get(key).filter(|worker| worker.end.to_answer.awaited() > 0 && worker.takes_messages())?;
    let limit = ctx.settings.pools[worker.fleet].start_timeout?;
    let since = worker.process.started().max(worker.answering.waits_since());
    worker.end.stream.spoke_at().is_none().then(|| since.after(limit))
}

/// A worker takes the slot of another one: it is no sooner needed than that.
pub(super) fn pass_idleness_on(ctx: &mut Ctx, before: Option<WorkerKey>, next: WorkerKey) {
    let idle = before.and_then(|before| ctx.workers.get(before)?.lifetime.idle());
    if let Some((since, _)) = idle
        && let Some(next) = ctx.workers.get_mut(next)
    {
        let sent = next.window.queued();
        next.lifetime.note_idle(Some((since, sent)));
    }
}

/// Since when nobody needs a worker; none if somebody does.
fn idle_since(ctx: &mut Ctx, sessions: &Sessions, tasks: &Tasks, key: WorkerKey) -> Option<Moment> {
    let worker = ctx.workers.get(key)?;
    let has_work = sessions.has_work(ctx, key, worker)
        || worker.process.state() != WorkerState::Running
        || worker.is_asked()
        || !worker.end.asked.is_empty()
        || worker.is_listened_to_until(ctx.time.now()).is_some()
        || tasks.need(ctx, key).is_some();
    let sent = worker.window.queued();
    let asked = worker.answering.waits_since().max(worker.lifetime.worked_at());
    let spoke = worker.end.stream.spoke_at().unwrap_or_default();
    let since = match worker.lifetime.idle() {
        _ if has_work => None,
        // Nothing was sent to it since the last look. What it says by itself is no reason to keep it.
        Some((since, before)) if before == sent => Some(since),
        // It was asked something, and has answered since.
        Some((since, _)) if asked >= since => Some(asked.max(spoke)),
        // It was sent only what needs no answer.
        Some(_) => Some(ctx.time.now()),
        None => Some(asked.max(spoke).max(worker.ownership.since()).max(worker.process.started())),
    };
    let worker = ctx.workers.get_mut(key)?;
    worker.lifetime.note_idle(since.map(|since| (since, sent)));
    since
}

/// Panics if a fleet that is asleep has a worker that does not leave.
pub(crate) fn check_demand(pools: &Pools, ctx: &Ctx) {
    for (_, worker) in ctx.workers.iter().filter(|(_, worker)| pools[worker.fleet].is_asleep) {
        assert!(worker.lifetime.is_leaving() || !worker.takes_messages(), "a pool that is asleep has no workers");
    }
}

impl View<'_> {
    /// MiB that the processes of all workers held when they were last measured, and how many they may, if that is limited.
    pub fn workers_memory(&self) -> Option<(u64, u64)> {
        let most = self.bus.ctx.settings.limits.max_workers_memory?;
        Some((self.bus.fleets.pools().footprint.mib, most))
    }

    /// Whether a configured pool is asleep: it has no workers until a line needs one.
    pub fn is_asleep(&self, pool: impl Into<PoolId>) -> bool {
        self.bus.fleets.pools().is_asleep(pool.into())
    }
}
