//! How much longer a worker that several clients use may be held up by those that read slowly.

use core::time::Duration;

use crate::peer::Moment;

/// How long one worker may be held up in all by clients that read slowly, while others use it.
const STALL_BUDGET: Duration = Duration::from_millis(500);
/// One part in so many of the time that passes comes back.
const RETURNED_PART: u32 = 100;

/// For how long a worker has been held up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallBudget {
    used: Duration,
    at: Moment,
    /// It is being held up since then, and others use it.
    since: Option<Moment>,
}

impl StallBudget {
    /// What is left of it now.
    pub(crate) fn left(&mut self, now: Moment) -> Duration {
        self.used = self.used.saturating_sub(now.since(self.at) / RETURNED_PART);
        self.at = now;
        STALL_BUDGET - self.used
    }

    /// When a worker that is held up goes on, whether its reader has room or not.
    pub(crate) fn ends(&self) -> Option<Moment> {
        self.since.map(|since| since.after(STALL_BUDGET - self.used))
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
            self.used = STALL_BUDGET.min(self.used + now.since(since));
            self.at = now;
        }
    }
}
