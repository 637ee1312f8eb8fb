//! Reload: a new configuration while the daemon runs.
//!
//! The indexes of pools and listeners keep their meaning: a removed one stays in its place, marked so, until nothing
//! uses it ([`View::pool_in_use`], [`View::listener_in_use`]); only then is its place reused.
//!
//! Limits and routing choices apply at once. Workers of old commands are replaced (`fleet/roll.rs`). The clients
//! of a removed listener have `drain_timeout_sec` to leave; a removed pool serves the clients that still use it.

use alloc::vec::Vec;

use super::Bus;
use super::balancer::Balancer;
use super::client::Client;
use super::fleet::Fleet;
use super::fleet::pool::Side;
use super::fleet::tenure::Tenure;
use super::peer::Moment;
use super::port::{Effect, Effects};
use super::report::Reason;
use super::settings::{self, Assignment, Settings};
use super::silence::TimeLimits;
use super::timers::Timer;
use crate::ctx::Ctx;
use crate::session::table::Sessions;
use crate::view::View;

impl Bus {
    /// Applies this configuration. The first value of `most_clients` stays, for the tables are allocated.
    pub fn reload(&mut self, now: Moment, mut settings: Settings) -> Effects<'_> {
        self.ctx.begin_call(now);
        if self.ctx.shutdown.stops_workers() {
            return self.effects();
        }
        let twins = self.fleet.twins_of(&self.ctx, &settings);
        let fresh = Fleet::new(&mut settings, &twins);
        settings.most_clients = self.ctx.settings.most_clients;
        self.fleet.stop_awaiting_workers(&mut self.ctx);
        let before = core::mem::replace(&mut self.ctx.settings, settings);
        let moved = self.arrange_pools(&before, fresh);
        self.arrange_clients(&moved);
        self.fleet.arrange_listeners(&mut self.ctx, &before);
        for (from, to) in moved.into_iter().enumerate() {
            to.into_iter().for_each(|to| self.fleet.renew_pool(&mut self.ctx, &before, from, to));
        }
        self.fleet.release_gone_pools(&mut self.ctx);
        // Lines that wait may have another destination.
        self.ctx.workers.keys().into_iter().for_each(|worker| self.ctx.release_waiters(worker.into()));
        self.fleet.wake_all(&mut self.ctx, &mut self.sessions);
        (self.ctx.workers_changed, self.fleet.rolls_due) = (true, true);
        self.effects()
    }

    /// Moves the pools to their places in the settings. Returns where each of them has moved.
    fn arrange_pools(&mut self, before: &Settings, mut fresh: Fleet) -> Vec<Option<usize>> {
        let (shown, pools) = (self.fleet.shown, core::mem::take(&mut self.fleet.pools));
        let mut moved = vec![None; pools.len()];
        for (from, mut pool) in pools.into_iter().enumerate() {
            let Side { shown_as, era, .. } = pool.side;
            if before.pools[shown_as].id != self.ctx.settings.pools[shown_as].id {
                self.sessions.bonds_mut().forget_pool(shown_as);
                continue;
            }
            let twin = fresh.pools[shown_as].side.twin;
            let Some(to) = (if from < shown { Some(from) } else { twin }) else { continue };
            let had_twin = pool.side.twin.is_some();
            pool.side = Side { twin: fresh.pools[to].side.twin, ..pool.side };
            debug_assert!(fresh.pools[to].side.era == era && fresh.pools[to].side.shown_as == shown_as);
            if from < shown && twin.is_some() && !had_twin {
                pool.discovery = fresh.pools[to].discovery.take();
            }
            moved[from] = Some(to);
            fresh.pools[to] = pool;
        }
        self.fleet.pools = fresh.pools;
        self.fleet.shown = fresh.shown;
        for worker in self.ctx.workers.values_mut() {
            worker.pool = moved[worker.pool].expect("a pool with workers stays");
        }
        self.sessions.move_pools(&moved);
        self.tasks.arrange(&moved);
        moved
    }

    /// Updates the group of each client, and its workers.
    fn arrange_clients(&mut self, moved: &[Option<usize>]) {
        self.fleet.balancer = Balancer::new(&self.ctx.settings, self.fleet.shown);
        self.subscriptions.review(&self.ctx, &self.requests, &mut self.fleet);
        for key in self.ctx.client_keys() {
            let Some(Client { identity: client, group: before, mcp, .. }) = self.ctx.client(key) else { continue };
            let (before, is_mcp) = (*before, mcp.era.is_some());
            // The group of a pool has its index.
            let of_pool = |group: usize| moved.get(group).copied().flatten();
            let group = of_pool(before)
                .filter(|_| is_mcp)
                .unwrap_or_else(|| self.fleet.group_of_client(&self.ctx, client.listener, &client.origin));
            // When two groups are merged, the worker of the client's own group stays, and another dedicated one serves
            // the sessions there.
            let assigned = self.ctx.take_workers(key).into_iter();
            let (own, others): (Vec<_>, Vec<_>) = assigned.partition(|(of, _)| *of == before);
            let lends = self.fleet.balancer.groups[group].lends();
            if let Some(client) = self.ctx.client_mut(key) {
                (client.group, client.mcp.borrows) = (group, lends);
            }
            for (of, worker) in own.into_iter().chain(others) {
                let to = if of == before { Some(group) } else { of_pool(of) };
                let is_its_own = self.ctx.owner(worker) == Some(key);
                match to.filter(|to| self.ctx.worker_in(key, *to).is_none()) {
                    // In a dedicated pool it keeps only its own worker.
                    Some(to) if is_its_own || !self.fleet.balancer.groups[to].is_dedicated() => {
                        self.ctx.assign(key, to, worker);
                    }
                    _ if is_its_own => self.fleet.retire_worker(&mut self.ctx, worker),
                    _ => {}
                }
            }
        }
    }

    /// Ends the clients of removed listeners when their time is up.
    pub(super) fn tick_listeners(&mut self) {
        for listener in 0..self.fleet.admission.listeners.len() {
            let Some(ends) = self.fleet.admission.listeners[listener].ends else { continue };
            if ends > self.ctx.time.now() {
                self.ctx.timers.arm(Timer::Listeners, ends);
                continue;
            }
            for key in self.ctx.client_keys() {
                if self.ctx.identity(key).is_some_and(|client| client.listener == listener) {
                    let text = "the listener of this connection is not in the configuration any more";
                    self.close_orderly(key, Reason::ListenerRemoved, text);
                }
            }
        }
    }
}

impl Fleet {
    /// Checks everything that may be due earlier than before.
    fn wake_all(&self, ctx: &mut Ctx, sessions: &mut Sessions) {
        ctx.client_keys().into_iter().for_each(|client| ctx.wake_at(client.into(), ctx.time.now()));
        ctx.workers.keys().into_iter().for_each(|worker| ctx.wake_at(worker.into(), ctx.time.now()));
        let pools = (0..self.pools.len()).map(Timer::Pool);
        let timers = pools.chain([Timer::Sessions, Timer::Slots, Timer::WorkerQueue, Timer::Requests]);
        timers.for_each(|timer| ctx.timers.arm(timer, ctx.time.now()));
        sessions.schedule(ctx, false);
    }

    /// Whether the pool at this place of the new settings is another than the current one.
    fn is_another(&self, ctx: &Ctx, settings: &Settings, pool: usize) -> bool {
        pool >= self.shown || ctx.settings.pools[pool].id != settings.pools[pool].id
    }

    /// The pools that have workers for clients of both eras: those that an MCP listener offers, or has offered.
    fn twins_of(&self, ctx: &Ctx, settings: &Settings) -> Vec<usize> {
        let offered = settings.pools_of_both_eras();
        let has_one = |pool: usize| !self.is_another(ctx, settings, pool) && self.pools[pool].side.twin.is_some();
        (0..settings.pools.len()).filter(|pool| offered.contains(pool) || has_one(*pool)).collect()
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

    /// The pool from `from` is now at `pool`: its workers and slots are adapted to the settings.
    fn renew_pool(&mut self, ctx: &mut Ctx, before: &Settings, from: usize, pool: usize) {
        let (was, is) = (&before.pools[from], &ctx.settings.pools[pool]);
        let has_another_command = was.generation != is.generation;
        let changes_tenure = was.max_age != is.max_age || was.max_requests != is.max_requests;
        // A client with a dedicated worker relies on no other client having used it.
        let is_dedicated = |pool: &settings::Pool| pool.assignment == Assignment::Dedicated;
        let is_assigned_otherwise = is_dedicated(was) != is_dedicated(is);
        for worker in ctx.workers.values_mut().filter(|worker| worker.pool == pool) {
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
            self.forget_ends(pool);
        }
        let here = &mut self.pools[pool];
        here.side.is_released &= ctx.settings.pools[pool].is_gone;
        let slots = ctx.settings.pools[pool].slots(here.side.era);
        let keeps = if is_assigned_otherwise { 0 } else { slots };
        for worker in self.workers_beyond(pool, keeps) {
            if is_assigned_otherwise {
                ctx.take_back(worker);
            }
            self.retire_worker(ctx, worker);
        }
        self.pools[pool].slots.resize_with(slots, Default::default);
        let has_stopped = self.pools[pool].roll.stopped.is_some();
        if has_another_command || is_assigned_otherwise || has_stopped {
            self.restart_roll(ctx, pool);
        } else {
            self.give_candidate_a_slot(pool);
        }
    }

    /// Removed pools stop their workers when no client uses them any more.
    pub(super) fn release_gone_pools(&mut self, ctx: &mut Ctx) {
        for pool in 0..self.pools.len() {
            let uses = |(_, client): (_, &Client)| self.balancer.groups[client.group].pools().any(|of| of == pool);
            let side = self.pools[pool].side;
            if !ctx.settings.pools[pool].is_gone || side.is_released || ctx.all_clients().any(uses) {
                continue;
            }
            self.restart_roll(ctx, pool);
            self.pools[pool].side.is_released = true;
            self.retire_those(ctx, pool, None, |_, _| true);
        }
    }
}

impl View<'_> {
    /// Whether a removed pool is still used; true for a pool that is not removed.
    pub fn pool_in_use(&self, pool: usize) -> bool {
        let Some(settings) = self.bus.ctx.settings.pools[..self.bus.fleet.shown].get(pool) else { return false };
        !settings.is_gone
            || self.bus.ctx.workers.iter().any(|(_, worker)| worker.name.pool == pool)
            || self.bus.ctx.all_clients().any(|(_, client)| {
                let named = client.identity.origin.pools.as_ref().is_some_and(|pools| pools.contains(&pool));
                named
                    || self.bus.fleet.balancer.groups[client.group]
                        .pools()
                        .any(|of| self.bus.fleet.pools[of].side.shown_as == pool)
            })
    }

    /// Whether a client of a removed listener is still connected; true for a listener that is not removed.
    pub fn listener_in_use(&self, listener: usize) -> bool {
        let Some(settings) = self.bus.ctx.settings.listeners.get(listener) else { return false };
        !settings.is_gone || self.bus.ctx.all_clients().any(|(_, client)| client.identity.listener == listener)
    }
}
