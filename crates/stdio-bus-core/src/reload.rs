//! Reload: a new configuration while the daemon runs.
//!
//! The indexes of pools and listeners keep their meaning: a removed one stays in its place, marked so, until nothing
//! uses it ([`View::pool_in_use`], [`View::listener_in_use`]); only then is its place reused.
//!
//! Limits and routing choices apply at once. Workers of old commands are replaced (`fleet/rollout.rs`). The clients
//! of a removed listener have `drain_timeout_sec` to leave; a removed pool serves the clients that still use it.

use super::Bus;
use super::peer::Moment;
use super::port::Effects;
use super::report::Reason;
use super::settings::Settings;
use super::timers::Timer;
use crate::fleet::reload::{arrange_pools, release_gone_pools, wake_all};
use crate::index::{ListenerId, PoolId};
use crate::view::View;

impl Bus {
    /// Applies this configuration. `most_clients` has no effect any more, for the tables are allocated.
    pub fn reload(&mut self, now: Moment, settings: Settings) -> Effects<'_> {
        self.ctx.begin_call(now);
        if self.ctx.shutdown.stops_workers() {
            return self.effects();
        }
        self.fleets.queue_mut().stop_awaiting_workers(&mut self.ctx);
        let before = core::mem::replace(&mut self.ctx.settings, settings);
        let kept = arrange_pools(self.fleets.pools_mut(), &mut self.ctx, &mut self.sessions, &mut self.tasks, &before);
        self.fleets.arrange_clients(&mut self.ctx, &self.requests, &mut self.subscriptions, &kept);
        self.fleets.admission_mut().arrange_listeners(&mut self.ctx, &before);
        kept.into_iter().for_each(|fleet| self.fleets.pools_mut().renew(&mut self.ctx, &before, fleet));
        self.fleets.fit_groups(&self.ctx);
        release_gone_pools(&mut self.fleets, &mut self.ctx);
        // Lines that wait may have another destination.
        self.ctx.workers.keys().into_iter().for_each(|worker| self.ctx.release_waiters(worker.into()));
        wake_all(self.fleets.pools(), &mut self.ctx, &mut self.sessions);
        self.fleets.pools_mut().roll_out_soon(&mut self.ctx);
        self.effects()
    }

    /// Ends the clients of removed listeners when their time is up.
    pub(super) fn tick_listeners(&mut self) {
        for (listener, ends) in self.fleets.admission().gone_listeners() {
            if ends > self.ctx.time.now() {
                self.ctx.timers.arm(Timer::Listeners, ends);
                continue;
            }
            for key in self.ctx.clients.keys() {
                if self.ctx.clients.identity(key).is_some_and(|client| client.listener == listener) {
                    let text = "the listener of this connection is not in the configuration any more";
                    self.close_orderly(key, Reason::ListenerRemoved, text);
                }
            }
        }
    }
}

impl View<'_> {
    /// Whether a removed pool is still used; true for a pool that is not removed.
    pub fn pool_in_use(&self, pool: impl Into<PoolId>) -> bool {
        let pool = pool.into();
        let Some(settings) = self.bus.ctx.settings.pools.get(pool.index()) else { return false };
        !settings.is_gone
            || self.bus.ctx.workers.iter().any(|(_, worker)| worker.name().pool == pool)
            || self.bus.ctx.clients.iter().any(|(_, client)| {
                let named = client.identity().origin.pools.as_ref().is_some_and(|pools| pools.contains(&pool));
                let mut fleets = self.bus.fleets.balancer()[client.group()].fleets();
                named || fleets.any(|fleet| fleet.pool == pool)
            })
    }

    /// Whether a client of a removed listener is still connected; true for a listener that is not removed.
    pub fn listener_in_use(&self, listener: impl Into<ListenerId>) -> bool {
        let listener = listener.into();
        let Some(settings) = self.bus.ctx.settings.listener(listener) else { return false };
        !settings.is_gone || self.bus.ctx.clients.iter().any(|(_, client)| client.identity().listener == listener)
    }
}
