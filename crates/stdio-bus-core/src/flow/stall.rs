//! The remaining time for which slow readers may hold up a shared worker.

use core::time::Duration;

use crate::peer::Moment;

/// How long slow readers may hold up one worker in total, while others use it.
const STALL_BUDGET: Duration = Duration::from_millis(500);
/// The additional time for clients whose queues have just become too long: while it lasts, none of them is closed for
/// data that it had no time to read.
const RESERVE: Duration = Duration::from_millis(500);
/// The time that such a client has.
const MOMENT: Duration = Duration::from_millis(50);
/// This fraction of the passing time is regained.
const RETURNED_PART: u32 = 100;

/// How long a worker was held up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallBudget {
    used: Duration,
    at: Moment,
    /// It is being held up since the first moment, and others use it. At the second one it continues, whether its
    /// reader has room or not.
    held: Option<(Moment, Moment)>,
}

impl StallBudget {
    /// The remaining time.
    pub(crate) fn left(&mut self, now: Moment) -> Duration {
        self.used = self.used.saturating_sub(now.since(self.at) / RETURNED_PART);
        self.at = now;
        STALL_BUDGET.saturating_sub(self.used)
    }

    /// The remaining time for a client full since `full_since` with too long a queue, if the budget is used up.
    pub(crate) fn moment_left(&self, now: Moment, full_since: Moment) -> Duration {
        full_since.after(MOMENT).since(now).min((STALL_BUDGET + RESERVE).saturating_sub(self.used))
    }

    /// When a worker that is held up continues, whether its reader has room or not.
    pub(crate) fn ends(&self) -> Option<Moment> {
        self.held.map(|(_, ends)| ends)
    }

    /// It is held up from now on, for `most` at most; returns until when.
    pub(crate) fn start(&mut self, now: Moment, most: Duration) -> Moment {
        let ends = now.after(most);
        self.held = Some((now, ends));
        ends
    }

    /// It is not held up any more. What is later than planned is no reader's fault: the daemon did not run.
    pub(crate) fn stop(&mut self, now: Moment) {
        if let Some((since, ends)) = self.held.take() {
            self.used = (self.used + now.min(ends).since(since)).min(STALL_BUDGET + RESERVE);
            self.at = now;
        }
    }
}
