//! A new configuration for the fleets: pools, groups, listeners and the clients' groups become those of the settings, and
//! workers of old commands are replaced (`rollout.rs`).

use alloc::vec::Vec;

use super::Fleets;
use super::balancer::Balancer;
use super::growth::Growth;
use crate::ctx::Ctx;
use crate::fleet::eras::lending::take_back;
use crate::fleet::pool::Pools;
use crate::index::{FleetId, GroupId, PoolId};
use crate::peers::Client;
use crate::requests::Requests;
use crate::session::table::Sessions;
use crate::settings::{self, Assignment, Settings};
use crate::subscriptions::Subscriptions;
use crate::tasks::Tasks;
use crate::timeouts::TimeLimits;
use crate::timers::Timer;

impl Fleets {
    /// Updates the group of each client, and its workers.
    pub(crate) fn arrange_clients(
        &mut self,
        ctx: &mut Ctx,
        requests: &Requests,
        subscriptions: &mut Subscriptions,
        kept: &[FleetId],
    ) {
        self.balancer = Balancer::new(&ctx.settings, &self.pools);
        subscriptions.review(ctx, requests, self);
        for key in ctx.clients.keys() {
            let Some(client) = ctx.clients.get(key) else { continue };
            let (before, is_mcp, client) = (client.group(), client.mcp().era.is_some(), client.identity());
            let stays = |group: &GroupId| matches!(group, GroupId::Fleet(fleet) if kept.contains(fleet));
            let group = Some(before)
                .filter(|group| is_mcp && stays(group))
                .unwrap_or_else(|| self.balancer.group_of_client(ctx, client.listener, &client.origin));
            // When two groups are merged, the worker of the client's own group stays, and another dedicated one serves
            // the sessions there.
            let assigned = ctx.clients.take_workers(key).into_iter();
            let (own, others): (Vec<_>, Vec<_>) = assigned.partition(|(of, _)| *of == before);
            let lends = self.balancer[group].lends();
            if let Some(client) = ctx.clients.get_mut(key) {
                client.regroup(group, lends);
            }
            ctx.find_rules(key);
            for (of, worker) in own.into_iter().chain(others) {
                let to = if of == before { Some(group) } else { Some(of).filter(stays) };
                let is_its_own = ctx.workers.owner(worker) == Some(key);
                match to.filter(|to| ctx.clients.worker_in(key, *to).is_none()) {
                    // Of a shared pool whose requests are distributed one by one it has none.
                    Some(to) if is_its_own || self.balancer[to].assignment() == Assignment::Client => {
                        ctx.clients.assign(key, to, worker);
                    }
                    _ if is_its_own => self.pools.retire_worker(ctx, worker),
                    _ => {}
                }
            }
        }
    }
}

impl Pools {
    /// The workers and slots of a fleet are adapted to the settings.
    pub(crate) fn renew(&mut self, ctx: &mut Ctx, before: &Settings, fleet: FleetId) {
        let (was, is) = (&before.pools[fleet], &ctx.settings.pools[fleet]);
        let has_another_command = was.generation != is.generation;
        let changes_tenure = was.max_age != is.max_age || was.max_requests != is.max_requests;
        // A client with a dedicated worker relies on no other client having used it.
        let is_dedicated = |pool: &settings::Pool| pool.assignment == Assignment::Dedicated;
        let is_assigned_otherwise = is_dedicated(was) != is_dedicated(is) || was.personal != is.personal;
        if self[fleet].is_asleep() || self[fleet].rests() {
            self[fleet].growth = Growth::default();
        } else {
            self[fleet].growth.resize(was, is);
        }
        let first_look = ctx.settings.first_tick(fleet.pool);
        for worker in ctx.workers.values_mut().filter(|worker| worker.fleet == fleet) {
            worker.answering.limit(TimeLimits::of(is), first_look);
            if was.idle_timeout.is_none() && is.idle_timeout.is_some() {
                // What it has said was not noted while its silence had no limit.
                worker.answering.read_from(ctx.time.now());
            }
            if changes_tenure {
                worker.lifetime.limit(worker.process.started(), is, worker.name.incarnation);
            }
        }
        if has_another_command {
            self[fleet].forget_ends();
        }
        if is.personal {
            // Workers that end over what is their clients' own do not bring back a command that wants none of it.
            self[fleet].fallback = None;
        }
        self[fleet].is_released &= ctx.settings.pools[fleet].is_gone;
        if self[fleet].is_asleep && !ctx.settings.pools[fleet].may_sleep() {
            self[fleet].is_asleep = false;
            self.roll_out_soon(ctx);
        }
        let slots = ctx.settings.pools[fleet].slots(fleet.era);
        let is = &ctx.settings.pools[fleet];
        let kept = if is.grows() { is.instances + self[fleet].growth.more() } else { slots };
        let keeps = if is_assigned_otherwise { 0 } else { kept };
        for worker in self[fleet].workers_beyond(keeps) {
            if is_assigned_otherwise {
                take_back(ctx, worker);
            }
            self.retire_worker(ctx, worker);
        }
        self[fleet].slots.resize_with(slots, Default::default);
        let has_stopped = self[fleet].rollout.stopped.is_some();
        if has_another_command || is_assigned_otherwise || has_stopped {
            self.restart_rollout(ctx, fleet);
        } else {
            self[fleet].give_candidate_a_slot(ctx, kept);
        }
    }
}

/// Checks everything that may be due earlier than before.
pub(crate) fn wake_all(pools: &Pools, ctx: &mut Ctx, sessions: &mut Sessions) {
    ctx.clients.keys().into_iter().for_each(|client| ctx.wake_at(client.into(), ctx.time.now()));
    ctx.workers.keys().into_iter().for_each(|worker| ctx.wake_at(worker.into(), ctx.time.now()));
    let fleets = pools.ids().map(Timer::Fleet);
    let timers = fleets.chain([Timer::Sessions, Timer::Slots, Timer::WorkerQueue, Timer::Requests]);
    timers.for_each(|timer| ctx.timers.arm(timer, ctx.time.now()));
    sessions.schedule(ctx, false);
}

/// Makes the pools those of the settings. Returns the fleets that were there before.
pub(crate) fn arrange_pools(
    pools: &mut Pools,
    ctx: &mut Ctx,
    sessions: &mut Sessions,
    tasks: &mut Tasks,
    before: &Settings,
) -> Vec<FleetId> {
    let is_another = |pool: PoolId| {
        let settings = &ctx.settings.pools;
        before.pools.get(pool.index()).map(|pool| &pool.id) != settings.get(pool.index()).map(|pool| &pool.id)
    };
    for pool in pools.places().filter(|pool| is_another(*pool)) {
        sessions.forget_pool(pool);
        tasks.forget_pool(pool);
        ctx.denials.forget_pool(pool);
        ctx.usage.forget_pool(pool, pools[pool].stats().ended());
    }
    pools.arrange(&ctx.settings, is_another)
}

/// Removed pools stop their workers when no client uses them any more.
pub(crate) fn release_gone_pools(fleets: &mut Fleets, ctx: &mut Ctx) {
    for fleet in fleets.pools.all() {
        let uses = |(_, client): (_, &Client)| fleets.balancer[client.group()].has(fleet);
        let is_released = fleets.pools[fleet].is_released;
        if !ctx.settings.pools[fleet].is_gone || is_released || ctx.clients.iter().any(uses) {
            continue;
        }
        fleets.pools.restart_rollout(ctx, fleet);
        fleets.pools[fleet].is_released = true;
        fleets.pools.retire_those(ctx, fleet, None, |_, _| true);
    }
}
