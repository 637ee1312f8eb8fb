//! The daemon's clock: monotonic, and standing still while the machine or the process was asleep, since nobody could make
//! progress then. When it wakes up, what was due in a second is due in a second.

use std::time::Duration;

use crate::bus::port::Moment;

/// A wait may take this much longer than planned before the rest counts as sleep.
const TOLERANCE: Duration = Duration::from_secs(1);

/// No wait for a deadline is longer: a sleep is as long as a wait takes longer than planned.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// See the top of the file.
pub(super) struct Clock {
    asleep: Duration,
    now: Duration,
}

impl Clock {
    /// A clock that starts now.
    pub(super) fn new() -> Self {
        Self { asleep: Duration::ZERO, now: Duration::ZERO }
    }

    /// How long to wait at most for what is due after this time, if anything is.
    pub(super) fn wait_for(due: Option<Duration>) -> Option<Duration> {
        due.map(|due| due.min(LONGEST_WAIT))
    }

    /// The moment of the last reading.
    pub(super) fn now(&self) -> Moment {
        Moment(self.now.as_nanos() as u64)
    }

    /// So much time has passed since the beginning, after a wait that was planned to take `planned` at most.
    pub(super) fn read(&mut self, elapsed: Duration, planned: Option<Duration>) -> Moment {
        self.advance(elapsed, planned);
        self.now()
    }

    fn advance(&mut self, elapsed: Duration, planned: Option<Duration>) {
        let now = elapsed.saturating_sub(self.asleep).max(self.now);
        let waited = now - self.now;
        if planned.is_some_and(|planned| waited > planned + TOLERANCE) {
            self.asleep += waited;
            return;
        }
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_sleep_of_the_machine_does_not_run_out_timers() {
        let mut clock = Clock::new();
        clock.advance(SECOND, Some(SECOND));
        assert_eq!(clock.now(), Moment(1_000_000_000));
        // Nothing is due yet, though the wait was to end when something is.
        clock.advance(601 * SECOND, Some(SECOND));
        assert_eq!(clock.now(), Moment(1_000_000_000));
        clock.advance(602 * SECOND, Some(SECOND));
        assert_eq!(clock.now(), Moment(2_000_000_000));
    }

    #[test]
    fn no_wait_is_so_long_that_a_sleep_hides_in_it() {
        assert_eq!(Clock::wait_for(Some(Duration::from_secs(3600))), Some(LONGEST_WAIT));
        assert_eq!(Clock::wait_for(Some(Duration::from_millis(5))), Some(Duration::from_millis(5)));
        assert_eq!(Clock::wait_for(None), None);
    }

    #[test]
    fn a_wait_without_an_end_may_take_long() {
        let mut clock = Clock::new();
        clock.advance(Duration::from_secs(3600), None);
        assert_eq!(clock.now(), Moment(3600 * 1_000_000_000));
    }
}
