//! The queue, fair between sources, of clients whose next line waits for a worker. Their lines stay where they are, and
//! the clients are not read.
//!
//! Some wait for a worker to come back: all possible workers for the line have just ended, and another one is due at
//! once. They continue once it is started, or with an error when the group has had none for a second (`Limits::hold`).
//! Workers that keep crashing are not waited for.
//!
//! Others wait for their turn to get one of their own, from a dedicated pool. One process of a pool is started at a
//! time, and if that is held up, other pools continue. The sources that clients come from take turns, so that one that
//! connects and leaves a thousand times a second does not starve the others. If a client has left by then, nothing is
//! started for it. Spares are started when no client waits whose turn could come. A source whose clients leave before
//! their workers have answered gets workers at a limited rate, spares too.
//!
//! In a full pool they wait while a worker is ending, or a session without a connection may give up its own
//! (`eviction.rs`).
//!
//! Others wait until the operator resumes a pool (`pause.rs`), and others until a worker that has not seen them yet has
//! answered their `initialize`, which the bus has sent again (`eras/opening.rs`).
//!
//! Invariant: `waiting` has each client that awaits a worker, once.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::answering::FIRST_ANSWER;
use crate::ctx::Ctx;
use crate::eviction::{evict_detached, gives_up_at};
use crate::fleet::Fleets;
use crate::fleet::admission::Admission;
use crate::fleet::balancer::{Balancer, Group};
use crate::fleet::eras::lending::lent_worker;
use crate::fleet::pool::{Pools, ending};
use crate::flow::gate::Hold;
use crate::index::{FleetId, GroupId, PoolId, SlotId};
use crate::message::Parsed;
use crate::peer::{ClientKey, Moment, Source, WorkerKey};
use crate::peers::{Client, Clients, Workers};
use crate::settings::Assignment;
use crate::timers::Timer;
use crate::worker::Worker;

/// A source whose clients leave before their workers have answered gets the next worker this long after the last one.
const PACE: Duration = Duration::from_millis(50);
/// Number of such sources that are remembered.
const PACED: usize = 64;
/// Number of clients of one source that wait for their turns although they send no more: on TCP it is unknown whether
/// such a client is still there.
const MOST_ENDED: usize = 16;
/// How long a client waits for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A client that waits.
struct WaitingClient {
    client: ClientKey,
    source: Source,
    group: GroupId,
    since: Moment,
    /// When its wait times out.
    until: Moment,
    /// It waits for its turn, and not for a worker to come back.
    for_turn: bool,
    /// It sends no more, and may have left.
    has_ended: bool,
}

/// The clients that wait for a worker, in the order in which they came.
#[derive(Default)]
pub(crate) struct WorkerQueue {
    waiting: Vec<WaitingClient>,
    /// Rate-limited sources, and when they got their last workers.
    paced: BTreeMap<Source, Moment>,
}

impl WorkerQueue {
    /// Whether a client waits for its turn.
    pub(crate) fn has_turns(&self) -> bool {
        self.turns().next().is_some()
    }

    /// The groups whose workers clients wait for.
    pub(super) fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.waiting.iter().map(|waiting| waiting.group)
    }

    /// Removes the clients that wait no more.
    fn take(&mut self, is_over: impl Fn(&WaitingClient) -> bool) -> Vec<WaitingClient> {
        self.waiting.extract_if(.., |waiting| is_over(waiting)).collect()
    }

    fn turns(&self) -> impl Iterator<Item = (usize, &WaitingClient)> {
        self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.for_turn)
    }

    /// The index of a client that waits for its turn.
    fn turn_of(&self, client: ClientKey) -> Option<usize> {
        self.turns().find(|(_, waiting)| waiting.client == client).map(|(at, _)| at)
    }

    /// When the next worker may be started for a client of this source, if not now.
    fn waits_until(&self, now: Moment, source: Source) -> Option<Moment> {
        self.paced.get(&source).map(|last| last.after(PACE)).filter(|at| *at > now)
    }

    /// Clients of this source leave before they have their answers.
    fn slow_down(&mut self, now: Moment, source: Source, last: Moment) {
        self.paced.retain(|_, last| last.after(PACE) > now);
        if self.paced.len() < PACED || self.paced.contains_key(&source) {
            let known = self.paced.entry(source).or_insert(last);
            *known = last.max(*known);
        }
    }

    /// The worker of a client was not started, or has ended: its source gets the next one at a limited rate.
    pub(super) fn slow_down_owner(&mut self, ctx: &Ctx, worker: &Worker) {
        let owner = worker.owner().and_then(|owner| ctx.clients.identity(owner));
        if let Some(source) = owner.map(|owner| owner.origin.source()) {
            self.slow_down(ctx.time.now(), source, ctx.time.now());
        }
    }

    /// When the queue must be checked for this waiting client.
    fn due(&self, now: Moment, waiting: &WaitingClient) -> Moment {
        let paced = self.waits_until(now, waiting.source).filter(|_| waiting.for_turn);
        paced.map_or(waiting.until, |paced| paced.min(waiting.until))
    }

    /// The state of a fleet's workers has changed: lines that wait for one to come back are checked again.
    pub(crate) fn stop_awaiting_of(&mut self, ctx: &mut Ctx, groups: &Balancer, fleet: FleetId) {
        let waits = |waiting: &WaitingClient| !waiting.for_turn && waiting.until != Moment::NEVER;
        let over = self.take(|waiting| waits(waiting) && groups[waiting.group].has(fleet));
        stop_awaiting(ctx, false, over);
    }

    /// A fleet gives no turns any more: clients that wait for one of its workers are asked again what they want.
    pub(crate) fn stop_awaiting_turns_of(&mut self, ctx: &mut Ctx, groups: &Balancer, fleet: FleetId) {
        let over = self.take(|waiting| waiting.for_turn && groups[waiting.group].has(fleet));
        stop_awaiting(ctx, false, over);
    }

    /// The next turn: the source that has waited longest for one, and of its clients the first one that may still send.
    /// A spare can be taken while a worker is being started.
    fn next_turn_of(&self, ctx: &Ctx, (pools, groups, admission): (&Pools, &Balancer, &Admission)) -> Option<usize> {
        let starting = ctx.workers.starting();
        let turn = |(at, waiting): (usize, &WaitingClient)| {
            let client = ctx.clients.identity(waiting.client)?;
            let fleet = groups[waiting.group].fleets().next()?;
            let is_starting = starting.contains(&fleet.pool);
            let may_start = || self.waits_until(ctx.time.now(), waiting.source).is_none();
            let may = if ctx.clients.mcp(waiting.client).borrows {
                // Its lent worker is returned before.
                let grows =
                    || !is_starting && may_start() && groups[waiting.group].may_grow_for(ctx, pools, waiting.client);
                ctx.clients.workers_of(waiting.client).next().is_none()
                    && (groups[waiting.group].has_spare_for(ctx, pools, waiting.client) || grows())
            } else {
                // In a full pool it waits on, or is refused.
                let may_end = || {
                    pools.may_grow(ctx, fleet) || !groups[waiting.group].may_wait_for_turn(ctx, pools, waiting.client)
                };
                (groups[waiting.group].has_spare(ctx, pools) || !is_starting && may_end()) && may_start()
            };
            may.then(|| (admission.turn(client.source_use), waiting.has_ended, at))
        };
        self.turns().filter_map(turn).min().map(|(_, _, at)| at)
    }

    /// Has sessions without a connection give up their workers, as many as clients wait for one in a full pool.
    fn make_room_for_turns(&self, ctx: &mut Ctx, pools: &Pools, groups: &Balancer) {
        let turns = self.turns().filter(|(_, waiting)| !ctx.clients.mcp(waiting.client).borrows);
        let fleet_of = |waiting: &WaitingClient| groups[waiting.group].fleets().next();
        let mut turns: Vec<(FleetId, Source)> =
            turns.filter_map(|(_, waiting)| Some((fleet_of(waiting)?, waiting.source))).collect();
        turns.retain(|(fleet, _)| pools.is_full(ctx, *fleet));
        let mut ending_in: BTreeMap<FleetId, usize> = BTreeMap::new();
        for (fleet, source) in turns {
            let left = ending_in.entry(fleet).or_insert_with(|| ending(ctx, fleet));
            if *left > 0 {
                *left -= 1;
            } else if !evict_detached(ctx, fleet, source) {
                ctx.timers.arm(Timer::WorkerQueue, gives_up_at(ctx, fleet, Some(source)));
            }
        }
    }
}

impl Group {
    /// Whether its next worker, of which none takes messages now, is started after the first backoff at
    /// the latest.
    pub(crate) fn expects_worker(&self, ctx: &Ctx, pools: &Pools) -> bool {
        let limits = &ctx.settings.limits;
        let is_coming = |slot: &SlotId| {
            let slot = &pools[*slot];
            match slot.worker {
                Some(worker) => ctx.workers.get(worker).is_some_and(|worker| {
                    slot.restarts.would_restart_soon(ctx.time.now(), worker.process.started(), limits)
                }),
                None => slot.restarts.is_in_first_backoff(),
            }
        };
        let rests = |fleet: FleetId| {
            let here = &pools[fleet];
            // One worker that a client had taken has failed.
            let rests = here.restarts.is_in_first_backoff() && here.rests_until(ctx.time.now()).is_some();
            self.is_dedicated() && rests && !pools.is_full(ctx, fleet)
        };
        self.slots().iter().any(is_coming) || self.fleets().any(rests)
    }
}

impl Fleets {
    /// Makes a client wait with this line, without a worker, if one is about to start. Returns whether it waits.
    pub(crate) fn await_worker(&mut self, ctx: &mut Ctx, client: ClientKey, line: Parsed<'_>) -> bool {
        let now = ctx.time.now();
        let Ok(group) = self.balancer.group_of_line(ctx, client, line) else { return false };
        let Some(source) = ctx.clients.identity(client).map(|client| client.origin.source()) else { return false };
        if ctx.clients.refuse_worker(client, false) || ctx.shutdown.refuses_requests() {
            return false;
        }
        if self.waits_for_resume(group, line) {
            self.queue.await_resume(ctx, client, group);
            return true;
        }
        let for_turn = self.balancer[group].unused_fleet(&self.pools).is_none()
            && self.balancer[group].may_wait_for_turn(ctx, &self.pools, client);
        let Some(until) = (if for_turn {
            Some(now.after(LONGEST_WAIT))
        } else {
            self.balancer[group].questions_end(ctx).or(self.balancer.hold_ends(ctx, &self.pools, group))
        }) else {
            return false;
        };
        if until > now {
            let waiting = WaitingClient { client, source, group, since: now, until, for_turn, has_ended: false };
            // A session may have to give up its worker at once.
            let at_once = for_turn && self.balancer[group].may_get_room(ctx, &self.pools, client);
            let due = if at_once { now } else { self.queue.due(now, &waiting) };
            ctx.timers.arm(Timer::WorkerQueue, due);
            self.queue.waiting.push(waiting);
            ctx.close_gate(client.into(), Hold::Worker);
        }
        until > now
    }

    /// A worker was started in a slot of a fleet, which waiting clients may get.
    pub(crate) fn end_vacancy(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        for group in self.balancer.groups_mut().iter_mut().filter(|group| group.has(fleet)) {
            group.end_vacancy();
        }
        self.queue.stop_awaiting_of(ctx, &self.balancer, fleet);
    }

    /// A worker for a client of a dedicated group: a spare one, or one that is started for it. None if that is not its
    /// turn, or not possible.
    pub(crate) fn take_in_turn(&mut self, ctx: &mut Ctx, client: ClientKey, group: GroupId) -> Option<WorkerKey> {
        let has_spare = self.balancer[group].has_spare_for(ctx, &self.pools, client);
        let source = ctx.clients.identity(client)?.origin.source();
        // A lent worker was started before.
        let is_paced =
            !(has_spare && ctx.clients.mcp(client).borrows) && self.queue.waits_until(ctx.time.now(), source).is_some();
        // A worker may have started between the end of its wait and its line. One that it may not get yet would make it
        // wait again, and be refused again.
        if has_spare && !is_paced {
            ctx.clients.refuse_worker(client, false);
        }
        if is_paced || ctx.clients.gets_no_worker(client) {
            return None;
        }
        let fleet = self.balancer[group].fleets().next()?;
        let is_its_turn = has_spare || self.may_start_at_once(ctx, fleet.pool);
        if is_its_turn { self.take_dedicated(ctx, client, group) } else { None }
    }

    /// A worker was taken or started for a client.
    pub(crate) fn count_turn(&mut self, ctx: &mut Ctx, key: ClientKey, worker: WorkerKey) {
        let Some((source_use, source)) =
            ctx.clients.identity(key).map(|client| (client.source_use, client.origin.source()))
        else {
            return;
        };
        self.admission.count_turn(source_use);
        if let Some(last) = self.queue.paced.get_mut(&source) {
            *last = ctx.time.now();
        }
        ctx.wake_at(worker.into(), ctx.time.now().after(FIRST_ANSWER));
    }

    /// Whether a worker of a pool may be started for a client that does not wait: no other one is being started, and no
    /// waiting client has its turn.
    pub(super) fn may_start_at_once(&self, ctx: &Ctx, pool: PoolId) -> bool {
        !ctx.workers.starting().contains(&pool)
            && self.queue.next_turn_of(ctx, (&self.pools, &self.balancer, &self.admission)).is_none()
    }

    /// Gives turns, and schedules the next check for when the next turn of a rate-limited source is due, or a wait
    /// times out. If no client has a turn, spares are started.
    pub(crate) fn give_turns(&mut self, ctx: &mut Ctx) {
        while let Some(at) = self.queue.next_turn_of(ctx, (&self.pools, &self.balancer, &self.admission)) {
            let WaitingClient { client, group, .. } = self.queue.waiting[at];
            if let Some(worker) = self.take_dedicated(ctx, client, group) {
                ctx.clients.assign(client, group, worker);
            }
            stop_awaiting(ctx, false, self.queue.take(|waiting| waiting.client == client));
        }
        self.queue.make_room_for_turns(ctx, &self.pools, &self.balancer);
        let (now, queue) = (ctx.time.now(), &self.queue);
        let due = queue.waiting.iter().map(|waiting| queue.due(now, waiting)).filter(|due| *due > now).min();
        ctx.timers.arm(Timer::WorkerQueue, due);
        for fleet in self.pools.all() {
            if ctx.settings.pools[fleet].assignment == Assignment::Dedicated {
                self.fill_slots(ctx, fleet);
            }
        }
    }

    /// Turns that are due, and clients that have waited for too long.
    pub(crate) fn tick_worker_queue(&mut self, ctx: &mut Ctx) {
        let now = ctx.time.now();
        // They were to continue elsewhere, which has changed.
        let has_its_own = |waiting: &WaitingClient| lent_worker(ctx, waiting.client, waiting.group).is_some();
        let content: Vec<ClientKey> =
            self.queue.turns().filter(|(_, it)| has_its_own(it)).map(|(_, it)| it.client).collect();
        stop_awaiting(ctx, false, self.queue.take(|waiting| content.contains(&waiting.client)));
        self.give_turns(ctx);
        stop_awaiting(ctx, true, self.queue.take(|waiting| waiting.until <= now));
    }
}

impl WorkerQueue {
    /// Makes a client wait with its next line for a worker's answer to an `initialize` (`eras/opening.rs`). `fleet` is
    /// that of the worker.
    pub(crate) fn await_greeting(&mut self, ctx: &mut Ctx, client: ClientKey, fleet: FleetId, until: Moment) {
        let Some(source) = ctx.clients.identity(client).map(|client| client.origin.source()) else { return };
        let since = ctx.time.now();
        let group = GroupId::Fleet(fleet);
        let waiting = WaitingClient { client, source, group, since, until, for_turn: false, has_ended: false };
        ctx.timers.arm(Timer::WorkerQueue, until);
        self.waiting.push(waiting);
        ctx.close_gate(client.into(), Hold::Worker);
    }

    /// Makes a client wait with its next line until the operator resumes the pools of its group.
    pub(crate) fn await_resume(&mut self, ctx: &mut Ctx, client: ClientKey, group: GroupId) {
        let Some(source) = ctx.clients.identity(client).map(|client| client.origin.source()) else { return };
        let (since, until) = (ctx.time.now(), Moment::NEVER);
        self.waiting.push(WaitingClient { client, source, group, since, until, for_turn: false, has_ended: false });
        ctx.close_gate(client.into(), Hold::Worker);
    }

    /// A pool was resumed: lines that wait for that are checked again.
    pub(crate) fn stop_awaiting_resume(&mut self, ctx: &mut Ctx) {
        stop_awaiting(ctx, false, self.take(|waiting| waiting.until == Moment::NEVER));
    }

    /// Since when a client waits for a paused pool, and in which group.
    pub(crate) fn awaits_resume(&self, key: ClientKey) -> Option<(GroupId, Moment)> {
        let waiting = self.waiting.iter().find(|waiting| waiting.client == key && waiting.until == Moment::NEVER)?;
        Some((waiting.group, waiting.since))
    }

    /// The state of workers has changed: all waiting lines are checked again.
    pub(crate) fn stop_awaiting_workers(&mut self, ctx: &mut Ctx) {
        stop_awaiting(ctx, false, self.take(|_| true));
    }

    /// A client stops waiting, since it is being closed: nothing is started for it.
    pub(crate) fn stop_awaiting_worker(&mut self, ctx: &mut Ctx, key: ClientKey) {
        if let Some(at) = self.turn_of(key) {
            let source = self.waiting[at].source;
            self.slow_down(ctx.time.now(), source, ctx.time.now());
        }
        stop_awaiting(ctx, false, self.take(|waiting| waiting.client == key));
        ctx.clients.refuse_worker(key, false);
    }

    /// The line that a client waits with is overdue: it is handled again, and refused.
    pub(crate) fn stop_awaiting_overdue(&mut self, ctx: &mut Ctx, key: ClientKey) {
        stop_awaiting(ctx, false, self.take(|waiting| waiting.client == key));
    }

    /// A paused client will send no more. If it waits for a worker it may have left, and so may others of its source:
    /// only a few of them keep waiting.
    pub(crate) fn on_sends_no_more(&mut self, ctx: &mut Ctx, key: ClientKey) {
        let Some(at) = self.turn_of(key) else { return };
        let waiting = &mut self.waiting[at];
        waiting.has_ended = true;
        let source = waiting.source;
        self.slow_down(ctx.time.now(), source, ctx.time.now());
        ctx.timers.arm(Timer::WorkerQueue, ctx.time.now().after(PACE));
        let is_like = |waiting: &WaitingClient| waiting.has_ended && waiting.source == source;
        if self.turns().filter(|(_, waiting)| is_like(waiting)).count() > MOST_ENDED {
            stop_awaiting(ctx, true, self.take(|waiting| waiting.client == key));
        }
    }

    /// A client leaves, or sends no more. If its own worker has answered nothing yet, its source is rate-limited.
    pub(crate) fn throttle_if_abandoned(&mut self, ctx: &Ctx, key: ClientKey) {
        let Some(source) = ctx.clients.identity(key).map(|client| client.origin.source()) else { return };
        let claimed = |worker: WorkerKey| {
            let worker = ctx.workers.get(worker).filter(|worker| worker.owner() == Some(key))?;
            (!worker.answering.has_answered()).then_some(worker.ownership.since())
        };
        if let Some(last) = ctx.clients.workers_of(key).filter_map(claimed).max() {
            self.slow_down(ctx.time.now(), source, last);
        }
    }

    /// Whether a client waits for its turn.
    pub(crate) fn awaits_turn(&self, key: ClientKey) -> bool {
        self.turn_of(key).is_some()
    }

    /// Since when a client waits for a worker, for whatever reason, and in which group.
    pub(crate) fn awaits_worker(&self, key: ClientKey) -> Option<(GroupId, Moment)> {
        let waiting = self.waiting.iter().find(|waiting| waiting.client == key)?;
        Some((waiting.group, waiting.since))
    }

    /// Clients that wait for their turns, or for the first answers of their own workers.
    pub(crate) fn awaiting_workers(&self, ctx: &Ctx) -> usize {
        let starting = ctx.workers.iter().filter(|(_, worker)| worker.starts_for().is_some());
        self.turns().count() + starting.count()
    }

    /// Panics if the queue disagrees with the clients that wait.
    pub(crate) fn check_worker_queue(&self, ctx: &Ctx) {
        let held = ctx.clients.iter().filter(|(_, client)| client.end().gate.has(Hold::Worker)).map(|(key, _)| key);
        let mut listed: Vec<ClientKey> = self.waiting.iter().map(|waiting| waiting.client).collect();
        listed.sort_unstable();
        assert!(held.eq(listed), "a client that awaits a worker is listed");
    }
}

/// Clients that wait no more are read again: to continue, or to be refused.
fn stop_awaiting(ctx: &mut Ctx, is_refused: bool, over: Vec<WaitingClient>) {
    for WaitingClient { client, for_turn, .. } in over {
        ctx.clients.refuse_worker(client, is_refused && for_turn);
        ctx.open_gate(client.into(), Hold::Worker);
    }
}

impl Clients {
    /// Whether the next line of a client gets no worker of its own.
    pub(crate) fn gets_no_worker(&self, key: ClientKey) -> bool {
        self.get(key).is_some_and(Client::gets_no_worker)
    }

    /// The next line of a client gets no worker of its own, or may get one again. Returns whether it might not before.
    pub(crate) fn refuse_worker(&mut self, key: ClientKey, is_refused: bool) -> bool {
        let client = self.get_mut(key).filter(|client| is_refused || client.gets_no_worker());
        client.is_some_and(|client| client.refuse_worker(is_refused))
    }
}

impl Workers {
    /// The configured pools with a worker whose start is not confirmed yet.
    fn starting(&self) -> Vec<PoolId> {
        let starting = self.iter().filter(|(_, worker)| !worker.has_run());
        starting.map(|(_, worker)| worker.fleet.pool).collect()
    }
}
