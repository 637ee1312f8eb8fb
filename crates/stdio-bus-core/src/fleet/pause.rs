//! What the operator stops for a while: a pool, a listener, or a worker.
//!
//! A paused pool gets no new requests: they stay where they are, and their clients are not read, until it is resumed.
//! What it was asked before continues, and so do cancellations, notifications and the answers of clients to its
//! workers, as far as they do not stand behind such a request. A paused listener takes no new clients: over lines they
//! wait in its socket, over HTTP they get an error that says to try again. A worker that was taken out finishes its
//! work as a replaced one does, and its slot stays empty.
//!
//! A reload changes nothing of that, except for pools and listeners that go with it. A shutdown ends it.

use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::balancer::Group;
use crate::fleet::pool::Pools;
use crate::index::{FleetId, GroupId, ListenerId, PoolId};
use crate::message::Parsed;
use crate::origin::Origin;
use crate::peer::{ClientKey, WorkerKey};
use crate::port::Effect;
use crate::settings::{Assignment, Era};
use crate::view::View;

impl Group {
    /// Whether all of its pools are paused.
    pub(crate) fn is_paused(&self, pools: &Pools) -> bool {
        let mut fleets = self.fleets().peekable();
        pools.are_paused() && fleets.peek().is_some() && fleets.all(|fleet| pools[fleet.pool].is_paused())
    }
}

impl Fleets {
    /// The group that new clients of a listener use: its own, or that of another pool while the pool of its own is paused.
    pub(crate) fn group_of_new(&self, ctx: &Ctx, listener: ListenerId) -> GroupId {
        let group = self.balancer.of_listener(listener);
        self.detour(ctx, listener, &Origin::default(), group).unwrap_or(group)
    }

    /// Where a client's requests that name no pool go while the only pool of its group is paused, a dedicated one: to the
    /// first of the other dedicated pools that it may use and that is not paused.
    fn detour(&self, ctx: &Ctx, listener: ListenerId, origin: &Origin, group: GroupId) -> Option<GroupId> {
        let has_choice = ctx.settings.listener(listener).is_some_and(|listener| listener.pool.is_none());
        if !self.balancer[group].is_paused(&self.pools) || !self.balancer[group].is_dedicated() || !has_choice {
            return None;
        }
        let takes_work = |pool: &PoolId| {
            let is_dedicated = ctx.settings.pools[*pool].assignment == Assignment::Dedicated;
            is_dedicated && !self.pools[*pool].is_paused() && ctx.settings.offers(listener, origin, *pool)
        };
        ctx.settings.places_of_pools().find(takes_work).map(|pool| GroupId::Fleet(pool.of(Era::Legacy)))
    }

    /// A client's line is for this group. If the group's pool is paused, the client has no worker there, and another pool could
    /// serve the line, all that names no pool is sent there from now on. Returns where. That holds for notifications, too:
    /// they wait for no resume, but a worker of the paused pool would be started for them, or they would be lost if it is full.
    pub(crate) fn move_elsewhere(
        &self,
        ctx: &mut Ctx,
        client: ClientKey,
        group: GroupId,
        line: Parsed<'_>,
    ) -> Option<GroupId> {
        let is_paused = self.balancer[group].is_paused(&self.pools);
        if !is_paused || line.pool.is_some() || ctx.clients.worker_in(client, group).is_some() {
            return None;
        }
        let at = ctx.clients.get(client).filter(|client| client.mcp().era.is_none() && client.group() == group)?;
        let other = self.detour(ctx, at.identity().listener, &at.identity().origin, group)?;
        let lends = self.balancer[other].lends();
        ctx.clients.get_mut(client)?.regroup(other, lends);
        Some(other)
    }

    /// Whether a line for this group is a request, and waits until the operator resumes the group's pools.
    pub(crate) fn waits_for_resume(&self, group: GroupId, line: Parsed<'_>) -> bool {
        line.id.is_some() && self.balancer()[group].is_paused(self.pools())
    }

    /// Makes a client wait if the operator has paused the pool of the worker that its request is for. Returns whether it
    /// waits.
    pub(crate) fn await_resume(&mut self, ctx: &mut Ctx, client: ClientKey, worker: WorkerKey) -> bool {
        let fleet = ctx.workers.fleet_of(worker).filter(|fleet| self.pools()[fleet.pool].is_paused());
        let Some(fleet) = fleet else { return false };
        self.queue_mut().await_resume(ctx, client, GroupId::Fleet(fleet));
        true
    }

    /// The operator pauses a pool.
    pub(crate) fn pause_pool(&mut self, ctx: &mut Ctx, pool: PoolId) {
        if ctx.settings.pools.get(pool.index()).is_some_and(|pool| !pool.is_gone) {
            self.pools_mut().set_paused(pool, true);
            ctx.workers_changed = true;
            // Nobody waits for a turn there: another pool may have a worker, or the wait has no end.
            for fleet in self.pools.of(pool) {
                self.queue.stop_awaiting_turns_of(ctx, &self.balancer, fleet);
            }
        }
    }

    /// The operator resumes a pool, and starts those of its workers that were taken out.
    pub(crate) fn resume_pool(&mut self, ctx: &mut Ctx, pool: PoolId) {
        self.pools_mut().set_paused(pool, false);
        self.pools_mut().put_back(ctx, pool);
        self.queue_mut().stop_awaiting_resume(ctx);
        // What names no pool may have waited for a worker of another one.
        for fleet in self.pools.of(pool) {
            self.queue.stop_awaiting_of(ctx, &self.balancer, fleet);
        }
    }

    /// The operator pauses a listener, or resumes it.
    pub(crate) fn pause_listener(&mut self, ctx: &mut Ctx, listener: ListenerId, is_paused: bool) {
        if ctx.settings.listener(listener).is_none_or(|listener| listener.is_gone) || ctx.shutdown.refuses_requests() {
            return;
        }
        if core::mem::replace(&mut self.admission_mut().listener_mut(listener).is_paused, is_paused) != is_paused {
            ctx.out.push(if is_paused { Effect::HoldListener(listener) } else { Effect::ReleaseListener(listener) });
        }
    }
}

impl Pools {
    /// The operator takes a worker out: it gets no new work, and no other one takes its slot.
    pub(crate) fn take_out(&mut self, ctx: &mut Ctx, key: WorkerKey) {
        let Some(worker) = ctx.workers.get_mut(key).filter(|worker| worker.takes_messages()) else { return };
        let fleet = worker.fleet;
        if self[fleet].rollout.is_candidate(key) || worker.lifetime.is_leaving() {
            return;
        }
        worker.lifetime.take_out();
        if let Some(slot) = self[fleet].slot_of(key) {
            self[fleet].slots[slot].is_out = true;
            self[fleet].drop_candidate_for(ctx, slot);
        }
        self.retire_worker(ctx, key);
        // It may have been the last one that a new command was to replace.
        self.roll_out_soon(ctx);
    }

    /// How many slots of a pool stay empty since the operator has taken their workers out. A pool that falls asleep keeps
    /// them: it does not fill them when it wakes.
    pub(crate) fn taken_out(&self, ctx: &Ctx, pool: PoolId) -> usize {
        let is_out = |fleet: FleetId| {
            let fleet = &self[fleet];
            fleet.slots.iter().take(fleet.slots_awake(ctx)).filter(|slot| slot.is_out()).count()
        };
        self.of(pool).map(is_out).sum()
    }

    /// The slots of a pool whose workers were taken out are filled again.
    pub(crate) fn put_back(&mut self, ctx: &mut Ctx, pool: PoolId) {
        for fleet in self.of(pool) {
            self[fleet].put_back();
        }
        self.roll_out_soon(ctx);
    }
}

impl View<'_> {
    /// Whether the operator has paused a listener.
    pub fn is_listener_paused(&self, listener: impl Into<ListenerId>) -> bool {
        let listener = listener.into();
        self.has_listener(listener) && self.bus.fleets.admission().is_paused(listener)
    }

    /// Whether the operator has paused all pools of a listener.
    pub fn are_pools_paused_of(&self, listener: impl Into<ListenerId>) -> bool {
        let (fleets, listener) = (&self.bus.fleets, listener.into());
        let group = || &fleets.balancer()[fleets.group_of_new(&self.bus.ctx, listener)];
        self.has_listener(listener) && group().is_paused(fleets.pools())
    }

    /// The only pool that messages of a client go to which name none.
    pub fn pool_of(&self, client: ClientKey) -> Option<PoolId> {
        let group = self.bus.ctx.clients.get(client)?.group();
        self.bus.fleets.balancer()[group].only_fleet().map(|fleet| fleet.pool)
    }

    fn has_listener(&self, listener: ListenerId) -> bool {
        self.bus.ctx.settings.listener(listener).is_some_and(|listener| !listener.is_gone)
    }

    /// Whether a worker is to take the slot of another one, or gets no new work: it cannot be taken out.
    pub fn may_take_out(&self, worker: WorkerKey) -> bool {
        self.role(worker) == Some("serves")
            && self.bus.ctx.workers.get(worker).is_some_and(|worker| worker.takes_messages())
    }
}
