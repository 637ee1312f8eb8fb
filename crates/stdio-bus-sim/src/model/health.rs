//! Which workers have said nothing for so long, although they owe answers, that others get what any worker may get
//! (`worker_silent`).

use std::time::Duration;

use super::{Model, Worker};
use crate::bus::port::{Moment, PoolId};
use crate::line::Party;

/// When lines of a worker were taken.
#[derive(Default)]
pub(super) struct Health {
    /// A line of it was certainly taken then.
    surely: Option<Moment>,
    /// A line of it may have been taken, or its turn may have begun.
    perhaps: Moment,
}

impl Health {
    /// A line of it was taken.
    pub(super) fn surely(&mut self, now: Moment) {
        (self.surely, self.perhaps) = (Some(now), now);
    }

    /// A line of it may have been taken.
    pub(super) fn perhaps(&mut self, now: Moment) {
        self.perhaps = now;
    }

    /// Whether a line of it was certainly taken less than `limit` ago.
    pub(super) fn was_after(&self, now: Moment, limit: Duration) -> bool {
        self.surely.is_some_and(|taken| taken.after(limit) > now)
    }

    /// Other limits hold from now on.
    pub(super) fn forget(&mut self, now: Moment) {
        (self.surely, self.perhaps) = (None, now);
    }
}

impl Model {
    /// The bus did not run for a while, for which no worker is blamed.
    pub fn stood_still(&mut self, now: Moment) {
        self.workers.iter_mut().for_each(|worker| worker.health.perhaps(now));
    }

    /// Whether a worker is certainly passed over while another one is well.
    fn is_unresponsive(&self, now: Moment, worker: usize) -> bool {
        let at = &self.workers[worker];
        let Some(limit) = self.settings.worker_silent(PoolId::at(at.pool)) else { return false };
        let me = Party::Worker(worker);
        let owed = self.to_workers.iter().filter(|request| {
            let is_awaited = request.asker.is_some() && request.cancelled.is_none();
            request.answerer == me && is_awaited && !self.lines[request.line].listens()
        });
        let is_its_turn = at.ran && !at.is_paused && self.to_clients.iter().all(|question| question.asker != Some(me));
        let since = owed.map(|request| request.sent).min().map(|oldest| oldest.max(at.health.perhaps));
        is_its_turn && since.is_some_and(|since| since.after(limit) < now)
    }

    /// Whether it certainly is not.
    fn is_well(&self, now: Moment, worker: &Worker) -> bool {
        let limit = self.settings.worker_silent(PoolId::at(worker.pool));
        worker.served.is_empty() || limit.is_some_and(|limit| worker.health.was_after(now, limit))
    }

    /// Of the workers that may get a line, those that certainly do not, since another one is well.
    pub(super) fn pass_over_unresponsive(
        &self,
        now: Moment,
        to: &mut Vec<Party>,
        is_in_turn: impl Fn(&Worker) -> bool,
    ) {
        let in_turn = |to: &Party| match to {
            Party::Worker(worker) => Some(*worker).filter(|worker| is_in_turn(&self.workers[*worker])),
            Party::Client(_) => None,
        };
        if to.iter().filter_map(in_turn).any(|worker| self.is_well(now, &self.workers[worker])) {
            to.retain(|to| in_turn(to).is_none_or(|worker| !self.is_unresponsive(now, worker)));
        }
    }
}
