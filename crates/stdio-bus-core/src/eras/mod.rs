//! Clients of MCP listeners over HTTP (`settings::Listener::mcp`), and their eras.
//!
//! A worker serves clients of one era, that of its first request. So a pool that such a listener offers has two sides,
//! each with its own slots: one for clients that begin with `initialize`, and for those of all other listeners, and one
//! for clients of 2026-07-28. The workers that are started with the daemon may go to either: the first client that
//! needs one decides. Those of the other side are started for its first client.

pub mod protocol;

use protocol::MODERN;

use super::message::Refusal;
use super::report::Reason;
use super::settings::Era;
use super::worker::Worker;
use crate::ctx::Ctx;
use crate::fleet::Fleet;

impl Fleet {
    /// The pools that hold the workers of a configured pool.
    pub(super) fn sides_of(&self, pool: usize) -> impl Iterator<Item = usize> + use<> {
        [Some(pool), self.pools[pool].side.twin].into_iter().flatten()
    }

    /// A pool of a group whose side is still unused: its workers may be on the other side, or not started.
    pub(super) fn unused_pool(&self, group: usize) -> Option<usize> {
        self.balancer.groups[group].pools().find(|pool| !self.pools[*pool].side.is_used)
    }

    /// The first client needs a worker of this side of a pool.
    pub(super) fn use_side(&mut self, ctx: &mut Ctx, pool: usize) -> Result<(), Refusal> {
        let side = self.pools[pool].side;
        if side.era == Era::Modern {
            self.expect_modern(ctx, side.shown_as)?;
        }
        self.pools[pool].side.is_used = true;
        self.dismiss_asked(ctx, pool);
        let Some(twin) = side.twin.filter(|_| side.is_dormant) else { return Ok(()) };
        if self.pools[twin].side.is_used {
            self.pools[pool].side.is_dormant = false;
            self.catch_up(ctx, pool, twin);
            self.tick_pool(ctx, pool);
        } else {
            self.hand_over(ctx, twin, pool);
        }
        Ok(())
    }

    fn expect_modern(&self, ctx: &Ctx, pool: usize) -> Result<(), Refusal> {
        let id = &ctx.settings.pools[pool].id;
        match self.pool_era(pool) {
            Some(Era::Modern) => Ok(()),
            None => {
                let text = format!("no worker of pool \"{id}\" has said yet whether it serves {MODERN}");
                Err(Refusal(Reason::NoWorker, text))
            }
            Some(Era::Legacy) => {
                let text = format!("the command of pool \"{id}\" serves no clients of {MODERN}; begin with initialize");
                Err(Refusal(Reason::EraUnsupported, text))
            }
        }
    }

    /// The unused workers that were started with the daemon move to the other side.
    fn hand_over(&mut self, ctx: &mut Ctx, from: usize, to: usize) {
        let instances = ctx.settings.pools[from].instances;
        for worker in self.workers_beyond(from, instances) {
            self.retire_worker(ctx, worker);
        }
        let pools = self.pools.get_disjoint_mut([from, to]);
        let [giver, taker] = pools.expect("a pool and its other side are two");
        for (slot, given) in taker.slots.iter_mut().zip(&mut giver.slots).take(instances) {
            *slot = core::mem::take(given);
        }
        (giver.side.is_dormant, taker.side.is_dormant) = (true, false);
        (taker.settled, taker.fallback) = (giver.settled, giver.fallback.take());
        taker.roll = core::mem::take(&mut giver.roll);
        self.give_candidate_a_slot(to);
        let stays = |worker: &&mut Worker| worker.pool == from && !worker.tenure.is_leaving();
        ctx.workers.values_mut().filter(stays).for_each(|worker| worker.pool = to);
        self.tick_pool(ctx, to);
    }

    /// The new command of a pool serves no clients of 2026-07-28: the workers for them leave.
    pub(super) fn end_modern_side(&mut self, ctx: &mut Ctx, pool: usize) {
        let Some(twin) = self.pools[pool].side.twin else { return };
        let is_only_side = self.pools[pool].side.is_dormant;
        let was_used = core::mem::take(&mut self.pools[twin].side.is_used);
        // Unused workers, and those with the new command, move to the other side if that has none.
        self.retire_those(ctx, twin, None, |ctx, worker| !is_only_side || was_used && ctx.is_outdated(worker));
        if is_only_side {
            return self.hand_over(ctx, twin, pool);
        }
        self.pools[twin].side.is_dormant = true;
        self.restart_roll(ctx, twin);
    }
}
