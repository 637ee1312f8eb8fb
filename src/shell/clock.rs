//! The daemon's clock: monotonic, and standing still while the machine or the process was asleep, so that timers do
//! not all run out at once when it wakes up.

use std::time::Duration;

use crate::bus::port::Moment;

/// A wait may take this much longer than planned before the rest counts as sleep.
const TOLERANCE: Duration = Duration::from_secs(1);

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
        if let Some(planned) = planned
            && waited > planned + TOLERANCE
        {
            self.asleep += waited - planned;
            self.now += planned;
            return;
        }
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_of_the_machine_does_not_run_out_timers() {
        let second = Duration::from_secs(1);
        let mut clock = Clock::new();
        clock.advance(10 * second, Some(10 * second));
        assert_eq!(clock.now(), Moment(10_000_000_000));
        clock.advance(610 * second, Some(5 * second));
        assert_eq!(clock.now(), Moment(15_000_000_000));
        clock.advance(612 * second, Some(5 * second));
        assert_eq!(clock.now(), Moment(17_000_000_000));
    }

    #[test]
    fn a_wait_without_an_end_may_take_long() {
        let mut clock = Clock::new();
        clock.advance(Duration::from_secs(3600), None);
        assert_eq!(clock.now(), Moment(3600 * 1_000_000_000));
    }
}
