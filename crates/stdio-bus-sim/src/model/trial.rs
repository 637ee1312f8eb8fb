//! Which workers are on trial, so that others get what they may not get: they were started while another one of their pool
//! was well, and have not answered yet.

use std::time::Duration;

use super::{Model, Worker};
use crate::bus::port::{Moment, PoolId};
use crate::line::Party;

/// A worker that has run for so long is on trial no more.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Whether a worker is on trial.
#[derive(Default)]
pub(super) struct Trial {
    /// It certainly is until then, if it says nothing.
    surely_until: Option<Moment>,
}

impl Trial {
    /// It has said something, or other settings hold.
    pub(super) fn is_in_doubt(&mut self) {
        self.surely_until = None;
    }
}

impl Model {
    /// Whether a worker that is being started is on trial.
    pub(super) fn trial_of_new(&self, now: Moment, pool: usize) -> Trial {
        let is_other = |at: &&Worker| at.pool == pool && at.ran && !at.released;
        let mut others = self.workers.iter().filter(is_other);
        if self.is_dedicated(pool) {
            return Trial::default();
        }
        // One that is to take the slot of a worn one is not on trial.
        let settings = &self.settings.pools[pool];
        let may_be_worn = settings.max_age.is_some() || settings.max_requests.is_some();
        let is_sure = !self.slots.are_replaced()
            && !may_be_worn
            && others.any(|at| at.serves && at.takes && self.is_proven(now, at));
        let lasts = HEALTHY_AFTER.min(self.settings.limits.restart_window);
        Trial { surely_until: is_sure.then(|| now.after(lasts)) }
    }

    /// A worker has answered.
    pub(super) fn passes_trial(&mut self, worker: usize) {
        self.workers[worker].trial = Trial::default();
    }

    /// Whether a worker has answered, and is certainly not unresponsive.
    fn is_proven(&self, now: Moment, worker: &Worker) -> bool {
        let limit = self.settings.worker_silent(PoolId::at(worker.pool));
        worker.has_answered && limit.is_none_or(|limit| worker.health.was_after(now, limit))
    }

    /// Of the workers that may get a line, those that certainly do not: they are on trial and owe an answer or do not run
    /// yet, and another one is well.
    pub(super) fn pass_over_tried(&self, now: Moment, to: &mut Vec<Party>, is_in_turn: impl Fn(&Worker) -> bool) {
        let in_turn = |to: &Party| match to {
            Party::Worker(worker) => Some(*worker).filter(|worker| is_in_turn(&self.workers[*worker])),
            Party::Client(_) => None,
        };
        if !to.iter().filter_map(in_turn).any(|worker| self.is_proven(now, &self.workers[worker])) {
            return;
        }
        let owes = |worker: usize| self.to_workers.iter().any(|request| request.answerer == Party::Worker(worker));
        let is_tried = |worker: usize| {
            let at = &self.workers[worker];
            at.trial.surely_until.is_some_and(|until| now < until) && (!at.ran || owes(worker))
        };
        to.retain(|to| in_turn(to).is_none_or(|worker| !is_tried(worker)));
    }
}
