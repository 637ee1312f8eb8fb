//! Reload: a new configuration while the daemon runs.
//!
//! The indexes of pools and listeners keep their meaning: a removed one stays in its place, marked so, until nothing
//! uses it ([`View::pool_in_use`], [`View::listener_in_use`]); only then is its place reused.
//!
//! Limits and routing choices apply at once. Workers of old commands are replaced (`fleet/roll.rs`). The clients
//! of a removed listener have `drain_timeout_sec` to leave; a removed pool serves the clients that still use it.

use alloc::vec::Vec;

use super::Bus;
use super::client::Client;
use super::fleet::Fleets;
use super::fleet::tenure::Tenure;
use super::peer::Moment;
use super::port::{Effect, Effects};
use super::report::Reason;
use super::settings::{self, Assignment, Settings};
use super::silence::TimeLimits;
use super::timers::Timer;
use crate::ctx::Ctx;
use crate::fleet::balancer::Balancer;
use crate::index::{FleetId, GroupId, ListenerId, PoolId};
use crate::session::table::Sessions;
use crate::view::View;

impl Bus {
    /// Applies this configuration. `most_clients` has no effect any more, for the tables are allocated.
    pub fn reload(&mut self, now: Moment, settings: Settings) -> Effects<'_> {
        self.ctx.begin_call(now);
        if self.ctx.shutdown.stops_workers() {
            return self.effects();
        }
        self.fleets.stop_awaiting_workers(&mut self.ctx);
        let before = core::mem::replace(&mut self.ctx.settings, settings);
        let kept = self.arrange_pools(&before);
        self.arrange_clients(&kept);
        self.fleets.arrange_listeners(&mut self.ctx, &before);
        kept.into_iter().for_each(|fleet| self.fleets.renew(&mut self.ctx, &before, fleet));
        self.fleets.release_gone_pools(&mut self.ctx);
        // Lines that wait may have another destination.
        self.ctx.workers.keys().into_iter().for_each(|worker| self.ctx.release_waiters(worker.into()));
        self.fleets.wake_all(&mut self.ctx, &mut self.sessions);
        (self.ctx.workers_changed, self.fleets.rolls_due) = (true, true);
        self.effects()
    }

    /// Makes the pools those of the settings. Returns the fleets that were there before.
    fn arrange_pools(&mut self, before: &Settings) -> Vec<FleetId> {
        let is_another = |pool: PoolId| {
            let settings = &self.ctx.settings.pools;
            before.pools.get(pool.index()).map(|pool| &pool.id) != settings.get(pool.index()).map(|pool| &pool.id)
        };
        for pool in self.fleets.pools.places().filter(|pool| is_another(*pool)) {
            self.sessions.forget_pool(pool);
            self.tasks.forget_pool(pool);
        }
        self.fleets.pools.arrange(&self.ctx.settings, is_another)
    }

    /// Updates the group of each client, and its workers.
    fn arrange_clients(&mut self, kept: &[FleetId]) {
        self.fleets.balancer = Balancer::new(&self.ctx.settings, &self.fleets.pools);
        self.subscriptions.review(&self.ctx, &self.requests, &mut self.fleets);
        for key in self.ctx.client_keys() {
            let Some(Client { identity: client, group: before, mcp, .. }) = self.ctx.client(key) else { continue };
            let (before, is_mcp) = (*before, mcp.era.is_some());
            let stays = |group: &GroupId| matches!(group, GroupId::Fleet(fleet) if kept.contains(fleet));
            let group = Some(before)
                .filter(|group| is_mcp && stays(group))
                .unwrap_or_else(|| self.fleets.group_of_client(&self.ctx, client.listener, &client.origin));
            // When two groups are merged, the worker of the client's own group stays, and another dedicated one serves
            // the sessions there.
            let assigned = self.ctx.take_workers(key).into_iter();
            let (own, others): (Vec<_>, Vec<_>) = assigned.partition(|(of, _)| *of == before);
            let lends = self.fleets.balancer.groups[group].lends();
            if let Some(client) = self.ctx.client_mut(key) {
                (client.group, client.mcp.borrows) = (group, lends);
            }
            for (of, worker) in own.into_iter().chain(others) {
                let to = if of == before { Some(group) } else { Some(of).filter(stays) };
                let is_its_own = self.ctx.owner(worker) == Some(key);
                match to.filter(|to| self.ctx.worker_in(key, *to).is_none()) {
                    // In a dedicated pool it keeps only its own worker.
                    Some(to) if is_its_own || !self.fleets.balancer.groups[to].is_dedicated() => {
                        self.ctx.assign(key, to, worker);
                    }
                    _ if is_its_own => self.fleets.retire_worker(&mut self.ctx, worker),
                    _ => {}
                }
            }
        }
    }

    /// Ends the clients of removed listeners when their time is up.
    pub(super) fn tick_listeners(&mut self) {
        for listener in 0..self.fleets.admission.listeners.len() {
            let Some(ends) = self.fleets.admission.listeners[listener].ends else { continue };
            if ends > self.ctx.time.now() {
                self.ctx.timers.arm(Timer::Listeners, ends);
                continue;
            }
            for key in self.ctx.client_keys() {
                if self.ctx.identity(key).is_some_and(|client| client.listener.index() == listener) {
                    let text = "the listener of this connection is not in the configuration any more";
                    self.close_orderly(key, Reason::ListenerRemoved, text);
                }
            }
        }
    }
}

impl Fleets {
    /// Checks everything that may be due earlier than before.
    fn wake_all(&self, ctx: &mut Ctx, sessions: &mut Sessions) {
        ctx.client_keys().into_iter().for_each(|client| ctx.wake_at(client.into(), ctx.time.now()));
        ctx.workers.keys().into_iter().for_each(|worker| ctx.wake_at(worker.into(), ctx.time.now()));
        let fleets = self.pools.ids().map(Timer::Fleet);
        let timers = fleets.chain([Timer::Sessions, Timer::Slots, Timer::WorkerQueue, Timer::Requests]);
        timers.for_each(|timer| ctx.timers.arm(timer, ctx.time.now()));
        sessions.schedule(ctx, false);
    }

    fn arrange_listeners(&mut self, ctx: &mut Ctx, before: &Settings) {
        let ends = ctx.time.now().after(ctx.settings.limits.drain_timeout);
        self.admission.listeners.resize_with(ctx.settings.listeners.len(), Default::default);
        for (index, (listener, state)) in ctx.settings.listeners.iter().zip(&mut self.admission.listeners).enumerate() {
            let was_gone = before.listeners.get(index).is_none_or(|before| before.is_gone);
            state.ends = listener.is_gone.then(|| state.ends.filter(|_| was_gone).unwrap_or(ends));
            ctx.timers.arm(Timer::Listeners, state.ends);
            if state.is_closed && !listener.closes_when_not_ready {
                *state = Default::default();
                ctx.out.push(Effect::OpenListener(index));
            }
        }
    }

    /// The workers and slots of a fleet are adapted to the settings.
    fn renew(&mut self, ctx: &mut Ctx, before: &Settings, fleet: FleetId) {
        let (was, is) = (&before.pools[fleet], &ctx.settings.pools[fleet]);
        let has_another_command = was.generation != is.generation;
        let changes_tenure = was.max_age != is.max_age || was.max_requests != is.max_requests;
        // A client with a dedicated worker relies on no other client having used it.
        let is_dedicated = |pool: &settings::Pool| pool.assignment == Assignment::Dedicated;
        let is_assigned_otherwise = is_dedicated(was) != is_dedicated(is);
        for worker in ctx.workers.values_mut().filter(|worker| worker.fleet == fleet) {
            worker.answering.limit(TimeLimits::of(is));
            if was.idle_timeout.is_none() && is.idle_timeout.is_some() {
                // What it has said was not noted while its silence had no limit.
                worker.facts.read_since = ctx.time.now();
            }
            if changes_tenure {
                let Tenure { generation, worn, leaves_by, .. } = worker.tenure;
                let limits = Tenure::new(worker.facts.started, is, generation, worker.name.incarnation);
                worker.tenure = Tenure { worn, leaves_by, ..limits };
            }
        }
        if has_another_command {
            self.forget_ends(fleet);
        }
        self.pools[fleet].is_released &= ctx.settings.pools[fleet].is_gone;
        let slots = ctx.settings.pools[fleet].slots(fleet.era);
        let keeps = if is_assigned_otherwise { 0 } else { slots };
        for worker in self.workers_beyond(fleet, keeps) {
            if is_assigned_otherwise {
                ctx.take_back(worker);
            }
            self.retire_worker(ctx, worker);
        }
        self.pools[fleet].slots.resize_with(slots, Default::default);
        let has_stopped = self.pools[fleet].roll.stopped.is_some();
        if has_another_command || is_assigned_otherwise || has_stopped {
            self.restart_roll(ctx, fleet);
        } else {
            self.give_candidate_a_slot(fleet);
        }
    }

    /// Removed pools stop their workers when no client uses them any more.
    pub(super) fn release_gone_pools(&mut self, ctx: &mut Ctx) {
        for fleet in self.ids() {
            let uses = |(_, client): (_, &Client)| self.balancer.groups[client.group].has(fleet);
            let is_released = self.pools[fleet].is_released;
            if !ctx.settings.pools[fleet].is_gone || is_released || ctx.all_clients().any(uses) {
                continue;
            }
            self.restart_roll(ctx, fleet);
            self.pools[fleet].is_released = true;
            self.retire_those(ctx, fleet, None, |_, _| true);
        }
    }
}

impl View<'_> {
    /// Whether a removed pool is still used; true for a pool that is not removed.
    pub fn pool_in_use(&self, pool: impl Into<PoolId>) -> bool {
        let pool = pool.into();
        let Some(settings) = self.bus.ctx.settings.pools.get(pool.index()) else { return false };
        !settings.is_gone
            || self.bus.ctx.workers.iter().any(|(_, worker)| worker.name.pool == pool)
            || self.bus.ctx.all_clients().any(|(_, client)| {
                let named = client.identity.origin.pools.as_ref().is_some_and(|pools| pools.contains(&pool.index()));
                let mut fleets = self.bus.fleets.balancer.groups[client.group].fleets();
                named || fleets.any(|fleet| fleet.pool == pool)
            })
    }

    /// Whether a client of a removed listener is still connected; true for a listener that is not removed.
    pub fn listener_in_use(&self, listener: impl Into<ListenerId>) -> bool {
        let listener = listener.into();
        let Some(settings) = self.bus.ctx.settings.listener(listener) else { return false };
        !settings.is_gone || self.bus.ctx.all_clients().any(|(_, client)| client.identity.listener == listener)
    }
}
