//! Clients of MCP listeners over HTTP (`settings::Listener::mcp`), and their eras.
//!
//! A worker serves clients of one era, that of its first request. So a pool that such a listener offers has two fleets,
//! each with its own slots: one for clients that begin with `initialize`, and for those of all other listeners, and one
//! for clients of 2026-07-28. The workers that are started with the daemon may go to either: the first client that
//! needs one decides. Workers of the other fleet start when its first client needs one.
//!
//! `protocol.rs` has the revisions of MCP and the codes of errors. `discovery.rs` finds out whether a command serves
//! 2026-07-28, and `lending.rs` lends workers to such clients for the time of a request. For clients that begin with
//! `initialize`, `opening.rs` has each shared worker know it, as `greeting.rs` keeps it.

pub(crate) mod discovery;
pub(crate) mod greeting;
pub(crate) mod lending;
pub(crate) mod opening;
pub mod protocol;

use protocol::MODERN;

use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::balancer::Group;
use crate::fleet::growth::Growth;
use crate::fleet::lifetime::RecycleReason;
use crate::fleet::pool::{FleetUse, Pools};
use crate::fleet::rollout::is_outdated;
use crate::fleet::worker::Worker;
use crate::index::{FleetId, PoolId};
use crate::message::Refusal;
use crate::report::Reason;
use crate::settings::Era;

impl Group {
    /// A fleet of a group whose era is still unused: its workers may be in the fleet of the other era, or not started.
    pub(crate) fn unused_fleet(&self, pools: &Pools) -> Option<FleetId> {
        self.fleets().find(|fleet| !pools[*fleet].is_used())
    }
}

impl Fleets {
    /// The first client of its era needs a worker of a fleet.
    pub(crate) fn use_fleet(&mut self, ctx: &mut Ctx, fleet: FleetId) -> Result<(), Refusal> {
        if fleet.era == Era::Modern {
            expect_modern(&self.pools, ctx, fleet.pool)?;
        }
        match self.pools.other(fleet).filter(|_| self.pools[fleet].rests()) {
            Some(other) if self.pools[other].is_used() => {
                self.pools[fleet].need = FleetUse::Used;
                self.pools.catch_up(ctx, fleet);
                self.tick_fleet(ctx, fleet);
            }
            Some(other) => self.hand_over(ctx, other, FleetUse::Used),
            None => {
                self.pools[fleet].need = FleetUse::Used;
                self.dismiss_asked(ctx, fleet);
                self.fill_slots(ctx, fleet);
            }
        }
        Ok(())
    }

    /// The unused workers that were started with the daemon move to the fleet of the other era, which is needed so from
    /// now on.
    fn hand_over(&mut self, ctx: &mut Ctx, from: FleetId, need: FleetUse) {
        let to = from.other_era();
        let instances = ctx.settings.pools[from].instances;
        self.pools[from].growth = Growth::default();
        for worker in self.pools[from].workers_beyond(instances) {
            self.pools.retire_worker(ctx, worker);
        }
        let [giver, taker] = self.pools.both_mut(from).expect("the pool has a fleet for each era");
        for (slot, given) in taker.slots.iter_mut().zip(&mut giver.slots).take(instances) {
            *slot = core::mem::take(given);
        }
        (giver.need, taker.need) = (FleetUse::Rests, need);
        // A client has woken the one that needs them, or a fleet that is asleep gives none.
        taker.is_asleep &= giver.is_asleep;
        taker.woken_at = taker.woken_at.or(giver.woken_at.take());
        taker.failed_at = taker.failed_at.max(giver.failed_at.take());
        giver.is_asleep = ctx.settings.pools[from].may_sleep();
        (taker.settled, taker.fallback) = (giver.settled, giver.fallback.take());
        taker.rollout = core::mem::take(&mut giver.rollout);
        self.pools[to].give_candidate_a_slot(ctx, instances);
        self.fit_groups(ctx);
        let stays = |worker: &&mut Worker| worker.fleet == from && !worker.lifetime.is_leaving();
        ctx.workers.values_mut().filter(stays).for_each(|worker| worker.fleet = to);
        self.tick_fleet(ctx, to);
    }

    /// The command of a pool serves no clients of 2026-07-28: the workers for them leave, perhaps for another reason than
    /// their command.
    pub(crate) fn end_modern_fleet(&mut self, ctx: &mut Ctx, pool: PoolId, why: Option<RecycleReason>) {
        let modern = pool.of(Era::Modern);
        let Some(legacy) = self.pools.other(modern) else { return };
        let (is_only_one, was_used) = (self.pools[legacy].rests(), self.pools[modern].is_used());
        // Unused workers, and those with the new command, move to the other fleet if that has none.
        self.pools.retire_those(ctx, modern, why, |ctx, worker| !is_only_one || was_used && is_outdated(ctx, worker));
        if is_only_one {
            return self.hand_over(ctx, modern, FleetUse::Undecided);
        }
        (self.pools[modern].need, self.pools[modern].growth) = (FleetUse::Rests, Growth::default());
        self.pools[modern].is_asleep = ctx.settings.pools[modern].may_sleep();
        self.pools.restart_rollout(ctx, modern);
    }
}

impl Pools {
    /// A client of an earlier version wakes a fleet: it need not know whether the command serves others, so its workers are
    /// not asked before they get its line.
    pub(crate) fn serve_without_question(&mut self, fleet: FleetId) {
        if fleet.era == Era::Legacy && !self[fleet].rests() {
            self[fleet].need = FleetUse::Used;
        }
    }

    /// It has to be known whether a pool serves clients of 2026-07-28. If its workers serve others already, one for these is
    /// asked beside them.
    pub(crate) fn ask_beside(&mut self, ctx: &Ctx, pool: PoolId) {
        let [legacy, modern] = Era::BOTH.map(|era| pool.of(era));
        if self[legacy].is_used() && self[modern].rests() {
            self.catch_up(ctx, modern);
            self[modern].need = FleetUse::Undecided;
            self[modern].is_asleep = ctx.settings.pools[pool].may_sleep();
        }
    }
}

/// Whether a pool serves clients of 2026-07-28.
///
/// # Errors
/// It does not, or it is not known yet.
pub(super) fn expect_modern(pools: &Pools, ctx: &Ctx, pool: PoolId) -> Result<(), Refusal> {
    let id = &ctx.settings.pools[pool].id;
    match pools.pool_era(ctx, pool) {
        _ if ctx.settings.pools[pool].personal => {
            let text = format!(
                "each client of pool \"{id}\" has a worker of its own, and that needs a session, which {MODERN} does \
                    not have; begin with initialize"
            );
            Err(Refusal(Reason::EraUnsupported, text))
        }
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
