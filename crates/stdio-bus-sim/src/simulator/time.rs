//! Advances time.

use std::collections::VecDeque;
use std::time::Duration;

use super::World;
use crate::bus::port::{Input, Moment};
use crate::bus::shutdown::Stage;
use crate::line::Party;
use crate::model::BELIEVED;

/// How long slow readers may hold up a worker in total while others use it, and which part of the passing time is
/// regained.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_RETURNS: u32 = 100;
/// The additional time for clients with too much queued output.
const RESERVE: Duration = Duration::from_millis(500);

impl World {
    pub(super) fn tick_if_due(&mut self) {
        if self.bus.view().next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.note(|_| "the time".into());
        let effects = self.bus.handle(self.now, Input::Tick);
        let stage = self.bus.view().stage();
        self.model.shuts_down(stage >= Stage::Quiescing, stage >= Stage::Terminating);
        self.model.leave_slots(self.now);
        self.model.expire_early(self.now);
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.model.check_overdue(self.now);
        self.model.check_stalls(self.now);
        self.check();
        let next = self.bus.view().next_deadline();
        assert!(next.is_none_or(|next| next > self.now), "the bus asks for {next:?} again");
    }

    pub(super) fn wait_for_deadline(&mut self) -> bool {
        let Some(deadline) = self.bus.view().next_deadline() else { return false };
        self.pass(self.now.max(deadline));
        self.tick();
        true
    }

    /// Advances time. A worker that several clients use may not be held up by one of them for long in total.
    pub(super) fn pass(&mut self, until: Moment) {
        // If the bus is called late, what happens meanwhile is not its fault.
        let due = self.bus.view().next_deadline().map_or(until, |deadline| deadline.max(self.now).min(until));
        for at in 0..self.workers.len() {
            let is_held_up = self.is_held_up(at);
            let held_up = is_held_up.map_or(Duration::ZERO, |_| due.since(self.now));
            let worker = &mut self.workers[at];
            let returns = until.since(self.now) / PATIENCE_RETURNS;
            worker.waited = (worker.waited + held_up).saturating_sub(returns);
            worker.has_moment = is_held_up.is_some_and(|is_too_long| worker.has_moment || is_too_long);
            let is_usual = is_held_up.is_some() && !worker.has_moment;
            let most = if is_usual { PATIENCE } else { PATIENCE + RESERVE };
            // A worker that is held up when others arrive may have used up its time before: it continues at once.
            let may_be = held_up.is_zero() || worker.waited <= most + BELIEVED;
            assert!(may_be, "worker {at} was held up for {:?}", worker.waited);
        }
        self.now = until;
    }

    /// Whether a worker waits for a slow reader while other clients expect something from it; and if so, whether too
    /// much is queued for that reader.
    fn is_held_up(&self, at: usize) -> Option<bool> {
        let worker = &self.workers[at];
        let waits = worker.end.paused && !worker.end.ignored && !worker.released && !self.model.floods(self.now, at);
        self.front(Party::Worker(at)).filter(|_| waits).and_then(|front| self.model.holds_up(at, front))
    }
}
