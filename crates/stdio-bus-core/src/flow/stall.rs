//! How much longer a worker that several clients use may be held up by those that read slowly.

use core::time::Duration;

use crate::peer::Moment;

/// How long one worker may be held up in all by clients that read slowly, while others use it.
const STALL_BUDGET: Duration = Duration::from_millis(500);
/// And how long beyond that by clients whose queues have just become too long: as long as this lasts, none of them is
/// closed for what it had no time to take.
const RESERVE: Duration = Duration::from_millis(500);
/// The time that such a client has.
const MOMENT: Duration = Duration::from_millis(50);
/// One part in so many of the time that passes comes back.
const RETURNED_PART: u32 = 100;

/// For how long a worker has been held up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallBudget {
    used: Duration,
    at: Moment,
    /// It is being held up since the first moment, and others use it. In the second one it goes on, whether its reader has
    /// room or not.
    held: Option<(Moment, Moment)>,
}

impl StallBudget {
    /// What is left of it now.
    pub(crate) fn left(&mut self, now: Moment) -> Duration {
        self.used = self.used.saturating_sub(now.since(self.at) / RETURNED_PART);
        self.at = now;
        STALL_BUDGET.saturating_sub(self.used)
    }

    /// What is left now, where that is nothing, for a client that has been full since then and whose queue is too long.
    pub(crate) fn moment_left(&self, now: Moment, full_since: Moment) -> Duration {
        full_since.after(MOMENT).since(now).min((STALL_BUDGET + RESERVE).saturating_sub(self.used))
    }

    /// When a worker that is held up goes on, whether its reader has room or not.
    pub(crate) fn ends(&self) -> Option<Moment> {
        self.held.map(|(_, ends)| ends)
    }

    /// It is held up from now on, for so long at most; until when.
    pub(crate) fn start(&mut self, now: Moment, most: Duration) -> Moment {
        let ends = now.after(most);
        self.held = Some((now, ends));
        ends
    }

    /// It is held up no more.
    pub(crate) fn stop(&mut self, now: Moment) {
        if let Some((since, _)) = self.held.take() {
            self.used = (self.used + now.since(since)).min(STALL_BUDGET + RESERVE);
            self.at = now;
        }
    }
}
