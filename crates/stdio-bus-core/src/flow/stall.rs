//! How much longer a worker that several clients use may be held up by those that read slowly.

use core::time::Duration;

use crate::peer::Moment;

/// How long one worker may be held up in all by clients that read slowly, while others use it.
const STALL_BUDGET: Duration = Duration::from_millis(500);
/// One part in so many of the time that passes comes back.
const RETURNED_PART: u32 = 100;

/// How much longer a worker may be held up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallBudget {
    left: Duration,
    at: Moment,
    /// It is being held up since then, and others use it.
    since: Option<Moment>,
}

impl Default for StallBudget {
    fn default() -> Self {
        Self { left: STALL_BUDGET, at: Moment::default(), since: None }
    }
}

impl StallBudget {
    /// What is left of it now.
    pub(crate) fn left(&mut self, now: Moment) -> Duration {
        self.left = STALL_BUDGET.min(self.left + now.since(self.at) / RETURNED_PART);
        self.at = now;
        self.left
    }

    /// When a worker that is held up goes on, whether its reader has room or not.
    pub(crate) fn ends(&self) -> Option<Moment> {
        self.since.map(|since| since.after(self.left))
    }

    /// It is held up from now on; for how long at most.
    pub(crate) fn start(&mut self, now: Moment) -> Duration {
        let left = self.left(now);
        self.since = Some(now);
        left
    }

    /// It is held up no more.
    pub(crate) fn stop(&mut self, now: Moment) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.since(since));
            self.at = now;
        }
    }
}
