//! Lent workers: in a dedicated pool a client of 2026-07-28 has a worker for itself for as long as it has a request
//! unanswered, and then the worker is returned, to be lent to the next one. It does not end with its client. Workers
//! beyond `instances`, started for a burst, are stopped when they were not needed for a while.
//!
//! A worker that still works on another client's dropped request is lent only if there is no other, and no more may be
//! started: its messages that name no client are then discarded (`router/addressee.rs`).

use core::time::Duration;

use crate::ctx::Ctx;
use crate::eviction::gives_up_at;
use crate::fleet::Fleets;
use crate::fleet::balancer::Group;
use crate::fleet::lifetime::RecycleReason;
use crate::fleet::pool::{Fleet, Pools, ending};
use crate::fleet::rollout::notice_end_of_work;
use crate::fleet::worker::Worker;
use crate::index::{FleetId, GroupId, SlotId};
use crate::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use crate::requests::{Request, Requests};
use crate::tasks::Tasks;

/// A worker beyond those that a pool keeps is stopped when it was unused for this long, unless its pool says how long.
const SPARED_FOR: Duration = Duration::from_secs(60);

impl Group {
    /// If it is dedicated: whether a worker is available for a client without a start.
    pub(crate) fn has_spare_for(&self, ctx: &Ctx, pools: &Pools, client: ClientKey) -> bool {
        match self.lent() {
            Some(fleet) => pools[fleet].free_worker(ctx, client, fleet).is_some(),
            None => self.has_spare(ctx, pools),
        }
    }

    /// If it is dedicated: whether a worker may be started for a client.
    pub(crate) fn may_grow_for(&self, ctx: &Ctx, pools: &Pools, client: ClientKey) -> bool {
        match self.lent() {
            Some(fleet) => pools[fleet].slot_to_fill(ctx, client, fleet).is_some(),
            None => self.fleets().next().is_some_and(|fleet| pools.may_grow(ctx, fleet)),
        }
    }

    /// Whether a client without a worker may wait for its turn to get one.
    pub(crate) fn may_wait_for_turn(&self, ctx: &Ctx, pools: &Pools, client: ClientKey) -> bool {
        // Lent workers are returned.
        let is_lent = || self.lends() && self.has_spare(ctx, pools);
        let may_get = || self.has_spare_for(ctx, pools, client) || self.may_grow_for(ctx, pools, client) || is_lent();
        self.is_dedicated() && (may_get() || self.may_get_room(ctx, pools, client))
    }

    /// Whether a worker of a full pool is ending, or a session may have to give up its own, so that one can be started for
    /// a client.
    pub(crate) fn may_get_room(&self, ctx: &Ctx, pools: &Pools, client: ClientKey) -> bool {
        let Some(fleet) = self.fleets().next().filter(|fleet| !self.lends() && pools.is_full(ctx, *fleet)) else {
            return false;
        };
        let source = ctx.clients.identity(client).map(|client| client.origin.source());
        pools[fleet].is_sound(ctx) && (ending(ctx, fleet) > 0 || gives_up_at(ctx, fleet, source).is_some())
    }
}

impl Fleets {
    /// A client was answered: its lent worker may be returned, or one at which it was a guest is idle.
    pub(crate) fn give_back_after_answer(&mut self, ctx: &mut Ctx, requests: &Requests, client: ClientKey) {
        let has_given_turns = self.give_back(ctx, requests, client);
        if !has_given_turns && ctx.clients.mcp(client).borrows && self.queue.has_turns() {
            self.give_turns(ctx);
        }
    }

    /// A client may wait for its lent worker no more: that is returned. Returns whether it was.
    pub(crate) fn give_back(&mut self, ctx: &mut Ctx, requests: &Requests, client: ClientKey) -> bool {
        if !ctx.clients.mcp(client).borrows || requests.waits_for_lent(ctx, client) {
            return false;
        }
        let lent = ctx.clients.take_workers(client);
        if lent.is_empty() {
            return false;
        }
        for (_, key) in lent {
            let Some(worker) = ctx.workers.get_mut(key) else { continue };
            worker.ownership.give_back(ctx.time.now());
            notice_end_of_work(ctx, key);
            if is_extra(&self.pools, ctx, key) {
                ctx.wake_at(key.into(), ctx.time.now().after(spared_for(ctx, key)));
            }
        }
        if self.queue.has_turns() {
            self.give_turns(ctx);
        }
        true
    }

    /// Lends a worker to a client that has none: a free one, or one that is started for it.
    pub(crate) fn lend_worker(&mut self, ctx: &mut Ctx, client: ClientKey, fleet: FleetId) -> Option<WorkerKey> {
        let source = ctx.clients.identity(client)?.source_use;
        if let Some(free) = self.pools[fleet].free_worker(ctx, client, fleet) {
            self.admission.count_turn(source);
            return Some(free);
        }
        if ctx.shutdown.refuses_requests() {
            return None;
        }
        // Its client's request shows it the era.
        let started = self.pools.start_in_slot(ctx, self.pools[fleet].slot_to_fill(ctx, client, fleet)?)?;
        self.end_vacancy(ctx, fleet);
        self.count_turn(ctx, client, started);
        Some(started)
    }
}

impl Fleet {
    /// An empty slot in which a worker may be started for a client that is not bound to one.
    fn slot_to_fill(&self, ctx: &Ctx, client: ClientKey, fleet: FleetId) -> Option<SlotId> {
        if self.rests() || preferred_worker(ctx, client, fleet).is_some() {
            return None;
        }
        let now = ctx.time.now();
        let at = self.slots.iter().position(|slot| slot.may_begin(now))?;
        Some(fleet.slot(at))
    }

    /// A worker that can be lent to a client now: the one that it is bound to, or any.
    fn free_worker(&self, ctx: &Ctx, client: ClientKey, fleet: FleetId) -> Option<WorkerKey> {
        let is_free =
            |key: &WorkerKey| ctx.workers.get(*key).is_some_and(|at| at.owner().is_none() && at.takes_messages());
        if let Some(worker) = preferred_worker(ctx, client, fleet) {
            return Some(worker).filter(is_free);
        }
        let free = || self.slots.iter().filter_map(|slot| slot.worker).filter(is_free);
        let is_idle = |key: &WorkerKey| ctx.workers.get(*key).is_some_and(|at| at.end.to_answer.count() == 0);
        let any = || free().next().filter(|_| self.slot_to_fill(ctx, client, fleet).is_none());
        free().find(is_idle).or_else(any)
    }
}

impl Requests {
    /// Whether a client waits for the worker that it has borrowed. What it has asked of others, which have a task or to
    /// which its name listens, is no reason to keep it.
    fn waits_for_lent(&self, ctx: &Ctx, client: ClientKey) -> bool {
        let Some(end) = ctx.peer_end(client.into()) else { return true };
        let is_owners = |request: RequestKey| match self.get(request).map(Request::answerer) {
            Some(Peer::Worker(worker)) => ctx.workers.owner(worker) == Some(client),
            _ => false,
        };
        self.asked(&end.asked).any(is_owners)
    }
}

/// The worker that a client's next messages go to while that lives, if they are bound to one of this fleet.
fn preferred_worker(ctx: &Ctx, client: ClientKey, fleet: FleetId) -> Option<WorkerKey> {
    let worker = ctx.clients.get(client)?.mcp().preferred?;
    let at = ctx.workers.get(worker)?;
    (at.fleet == fleet && at.takes_messages()).then_some(worker)
}

/// The same for a group: only that of one fleet lends, and MCP listeners know no others.
pub(crate) fn preferred_in(ctx: &Ctx, client: ClientKey, group: GroupId) -> Option<WorkerKey> {
    match group {
        GroupId::Fleet(fleet) => preferred_worker(ctx, client, fleet),
        GroupId::All | GroupId::Listener(_) => None,
    }
}

/// The worker that a client has, if its next messages may go there.
pub(crate) fn lent_worker(ctx: &Ctx, client: ClientKey, group: GroupId) -> Option<WorkerKey> {
    let worker = ctx.clients.worker_in(client, group).filter(|worker| ctx.workers.worker_takes_messages(*worker))?;
    preferred_in(ctx, client, group).is_none_or(|preferred| preferred == worker).then_some(worker)
}

/// A lent worker is returned although its client may still wait for it.
pub(crate) fn take_back(ctx: &mut Ctx, key: WorkerKey) {
    let owner = ctx.workers.get_mut(key).and_then(|worker| worker.ownership.take_back());
    owner.into_iter().for_each(|owner| ctx.clients.unassign(owner, key));
}

/// Stops a worker that was started beyond those that its pool keeps, and was unused for a while. Returns when to
/// check again.
pub(crate) fn tick_extra(pools: &mut Pools, ctx: &mut Ctx, tasks: &Tasks, key: WorkerKey) -> Option<Moment> {
    let is_free = |worker: &&Worker| worker.owner().is_none() && worker.takes_messages() && is_extra(pools, ctx, key);
    let worker = ctx.workers.get(key).filter(is_free)?;
    let (spared_for, owes) = (spared_for(ctx, key), worker.end.to_answer.awaited() > 0);
    let due = worker.ownership.since().after(spared_for);
    if due <= ctx.time.now() {
        if owes {
            // What names one of its tasks is sent to it, whoever has it.
            return Some(ctx.time.now().after(spared_for));
        }
        if let Some(until) = tasks.need(ctx, key) {
            return Some(until);
        }
        if let Some(worker) = ctx.workers.get_mut(key) {
            worker.lifetime.recycle(RecycleReason::Idle);
        }
        pools.retire_worker(ctx, key);
        return None;
    }
    Some(due)
}

/// How long such a worker may be unused.
fn spared_for(ctx: &Ctx, key: WorkerKey) -> Duration {
    let fleet = ctx.workers.fleet_of(key);
    fleet.and_then(|fleet| ctx.settings.pools[fleet].idle_stop).unwrap_or(SPARED_FOR)
}

/// Whether a worker was started beyond those that its pool keeps.
fn is_extra(pools: &Pools, ctx: &Ctx, key: WorkerKey) -> bool {
    let Some(fleet) = ctx.workers.fleet_of(key) else { return false };
    let settings = &ctx.settings.pools[fleet];
    let slot = pools[fleet].slot_of(key).filter(|_| settings.lends(fleet.era));
    slot.is_some_and(|slot| slot >= settings.instances)
}
