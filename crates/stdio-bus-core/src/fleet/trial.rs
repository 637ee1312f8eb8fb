//! Workers on trial. A worker that is started while another one of its pool is well, and that clients share, may end at
//! its start, or hang: because its pool grows, or after another one has ended. So it is on trial until it has answered
//! something, or has run for as long as a worker that does well (`restart.rs`). Time alone does not end the trial of one
//! that does not run yet, nor of one that has written nothing although it owes an answer.
//!
//! While another worker is well, one on trial gets a new line only if that is a request to be answered that names no
//! session, and the worker runs and owes nothing, neither to a client nor to the bus. New lines that it may not get go to
//! those that are well. What belongs to a request that it has, such as a cancellation, still goes to it, and with `client`
//! so do the other lines of a client that was assigned to it, which waits for that request anyway. If a client's
//! `initialize` has to be sent to it first, the bus sends that, and the client's line does not wait for the answer
//! (`eras/opening.rs`).
//!
//! It does not count as busy until it has had its chance, so that its pool does not grow again at once (`growth.rs`). If
//! no other one is well, lines go to it as to any other.

use alloc::vec::Vec;
use core::time::Duration;

use super::restart::{does_well, healthy_after};
use crate::ctx::Ctx;
use crate::fleet::pool::Pools;
use crate::index::FleetId;
use crate::message::{KnownMethod, Parsed, verb};
use crate::peer::{Moment, WorkerKey};
use crate::settings::Assignment;
use crate::worker::Worker;

/// For how long after it runs a worker on trial does not count as busy.
const CHANCE: Duration = Duration::from_secs(1);

/// Whether a worker on trial may get this line: a request that is to be answered, and is no subscription.
pub(super) fn may_try(line: Parsed<'_>) -> bool {
    line.id.is_some() && verb(line) != KnownMethod::Listen
}

impl Worker {
    /// Whether it has still to show that it works, and others get the lines that it may not get.
    #[inline(always)]
    pub(crate) fn is_on_trial(&self) -> bool {
        self.answering.is_tried() && !self.answering.has_answered()
    }

    /// Whether it does not count as busy although it owes its one request: it has just begun to run.
    pub(super) fn has_had_no_chance(&self, now: Moment) -> bool {
        self.is_on_trial() && now.since(self.process.started()) < CHANCE
    }

    /// Whether it may be tried with a request: it runs, and owes nothing.
    fn is_free_to_try(&self) -> bool {
        self.runs() && self.end.to_answer.count() == 0 && self.greeting.asked.is_empty() && !self.health.is_checked()
    }

    /// Whether it gets a line although others are well; `may_try` says whether the line is one for a worker on trial.
    pub(super) fn gets_lines(&self, may_try: bool) -> bool {
        !self.is_on_trial() || may_try && self.is_free_to_try()
    }
}

impl Pools {
    /// A worker is started in a slot: it is on trial if clients share it, and another one of its fleet serves clients,
    /// perhaps on trial itself.
    pub(super) fn begin_trial(&self, ctx: &mut Ctx, key: WorkerKey) {
        let Some(fleet) = ctx.workers.fleet_of(key) else { return };
        let serves = |key: WorkerKey| ctx.workers.get(key).is_some_and(Worker::serves);
        if ctx.settings.pools[fleet].assignment == Assignment::Dedicated || !self[fleet].workers_in_slots().any(serves)
        {
            return;
        }
        ctx.workers.get_mut(key).into_iter().for_each(|worker| worker.answering.try_out(true));
    }

    /// Ends the trial of a worker that has run for long enough. Returns when to check again.
    pub(super) fn tick_trial(&self, ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
        let worker = ctx.workers.get(key).filter(|worker| worker.is_on_trial())?;
        if !worker.has_run() {
            // It is checked from when it runs (`on_spawned`).
            return None;
        }
        let (now, started) = (ctx.time.now(), worker.process.started());
        let lasts = healthy_after(&ctx.settings.limits);
        if !does_well(now, started, &ctx.settings.limits) {
            return Some(started.after(lasts));
        }
        if worker.end.stream.spoke_at().is_none() && !worker.is_free_to_try() {
            return Some(now.after(lasts));
        }
        self.end_trial(ctx, key);
        None
    }

    /// Workers have changed: some on trial may have answered.
    pub(crate) fn end_trials(&self, ctx: &mut Ctx) {
        let has_passed = |worker: &Worker| worker.answering.is_tried() && worker.answering.has_answered();
        let passed = ctx.workers.iter().filter(|(_, worker)| has_passed(worker));
        let passed: Vec<WorkerKey> = passed.map(|(key, _)| key).collect();
        passed.into_iter().for_each(|key| self.end_trial(ctx, key));
    }

    fn end_trial(&self, ctx: &mut Ctx, key: WorkerKey) {
        let Some(worker) = ctx.workers.get_mut(key) else { return };
        worker.answering.try_out(false);
        let fleet = worker.fleet;
        self.offer(ctx, fleet);
    }

    /// A worker of a fleet may get lines from now on, or more of them: the clients whose lines wait for the others
    /// are read again.
    pub(super) fn offer(&self, ctx: &mut Ctx, fleet: FleetId) {
        if ctx.settings.pools[fleet].assignment != Assignment::Dedicated {
            let workers: Vec<WorkerKey> = self[fleet].workers_in_slots().collect();
            workers.into_iter().for_each(|worker| ctx.reroute_clients(worker.into()));
        }
    }
}
