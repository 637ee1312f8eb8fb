//! The daemon's clock (CLOCK_MONOTONIC, clock_gettime(2)). It stops while the machine is suspended, when no peer could
//! make progress either: what was due in a second is due a second after resuming. It runs while only the process gets
//! no CPU: it was stopped, its container is frozen, or the machine is overloaded. Deadlines that passed meanwhile are
//! extended by a second, in which pending input is processed; so that no peer is taken for silent because the daemon
//! was not listening, and a machine that is always late still meets its deadlines.
//!
//! It reports both cases. The length of a suspension follows from CLOCK_BOOTTIME, which continues then.

use std::time::Duration;

use crate::bus::port::Moment;

/// How much longer than planned a wait may take before it is reported.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Maximum wait while there are clients: the daemon was delayed by as much as a wait takes longer than planned.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How long input is processed after a delay before overdue deadlines take effect.
const GRACE: Duration = Duration::from_secs(1);

/// A shorter turn cannot hide a suspension: freezing the processes alone takes longer.
const GLANCE: Duration = Duration::from_millis(1);

pub(super) struct Clock {
    now: Duration,
    /// The total time that the machine had been suspended when last checked.
    asleep: Duration,
    /// No deadline takes effect before this.
    deadlines_from: Duration,
}

impl Clock {
    /// A clock that starts now, on a machine with this total suspension.
    pub(super) fn new(asleep: Duration) -> Self {
        Self { now: Duration::ZERO, asleep, deadlines_from: Duration::ZERO }
    }

    /// The maximum wait for a deadline at this time, if there is one. `has_clients` if a client may be waiting for the
    /// daemon.
    pub(super) fn wait_for(due: Option<Duration>, has_clients: bool) -> Option<Duration> {
        let longest = has_clients.then_some(LONGEST_WAIT);
        due.map(|due| due.min(LONGEST_WAIT)).or(longest)
    }

    /// The moment of the last reading.
    pub(super) fn now(&self) -> Moment {
        Moment(self.now.as_nanos() as u64)
    }

    /// The first moment at which deadlines may take effect.
    pub(super) fn deadlines_from(&self) -> Moment {
        Moment(self.deadlines_from.as_nanos() as u64)
    }

    /// Records the time since the start, after a wait of at most `planned`, and the machine's total suspension. Returns
    /// how long the daemon was delayed while the machine ran, and how long the machine was suspended, if either happened.
    pub(super) fn read(
        &mut self,
        elapsed: Duration,
        asleep: impl FnOnce() -> Duration,
        planned: Option<Duration>,
    ) -> Option<(Duration, Duration)> {
        let before = self.now;
        self.now = before.max(elapsed);
        let waited = self.now - before;
        if waited < GLANCE {
            return None;
        }
        let asleep = asleep();
        let (mut held_up, mut suspended) = (Duration::ZERO, asleep.saturating_sub(self.asleep));
        if suspended < TOLERANCE {
            suspended = Duration::ZERO;
        } else {
            self.asleep = asleep;
        }
        if let Some(planned) = planned.filter(|planned| waited > *planned + TOLERANCE) {
            held_up = waited - planned;
            // A loop that is always late acts every other time.
            if self.deadlines_from <= before {
                self.deadlines_from = self.now + GRACE;
            }
        }
        (!held_up.is_zero() || !suspended.is_zero()).then_some((held_up, suspended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    /// A clock that shows one second.
    fn clock() -> Clock {
        let mut clock = Clock::new(7 * SECOND);
        assert_eq!(clock.read(SECOND, || 7 * SECOND, Some(SECOND)), None);
        clock
    }

    #[test]
    fn a_suspension_expires_no_timers_and_is_reported() {
        let mut clock = clock();
        let gap = clock.read(2 * SECOND, || 607 * SECOND, Some(SECOND));
        assert_eq!(gap, Some((Duration::ZERO, 600 * SECOND)));
        assert_eq!((clock.now(), clock.deadlines_from()), (at(2), at(0)));
        assert_eq!(clock.read(3 * SECOND, || 607 * SECOND, Some(SECOND)), None, "it is reported once");
    }

    #[test]
    fn time_passes_for_a_stopped_process_but_input_is_processed_before_deadlines() {
        let mut clock = clock();
        let gap = clock.read(62 * SECOND, || 7 * SECOND, Some(SECOND));
        assert_eq!(gap, Some((60 * SECOND, Duration::ZERO)));
        assert_eq!((clock.now(), clock.deadlines_from()), (at(62), at(63)));
    }

    #[test]
    fn deadlines_are_met_on_a_machine_where_every_turn_is_slow() {
        let mut clock = clock();
        let mut acted = 0;
        for turn in 1..=10 {
            assert!(clock.read((1 + 5 * turn) * SECOND, || 7 * SECOND, Some(SECOND)).is_some());
            acted += u32::from(clock.deadlines_from() <= clock.now());
        }
        assert_eq!((clock.now(), acted), (at(51), 5));
    }

    #[test]
    fn no_wait_is_long_enough_to_hide_a_stop() {
        assert_eq!(Clock::wait_for(Some(Duration::from_secs(3600)), false), Some(LONGEST_WAIT));
        assert_eq!(Clock::wait_for(Some(Duration::from_millis(5)), true), Some(Duration::from_millis(5)));
        assert_eq!(Clock::wait_for(None, true), Some(LONGEST_WAIT));
        assert_eq!(Clock::wait_for(None, false), None);
    }

    #[test]
    fn a_wait_without_an_end_may_take_long() {
        let mut clock = clock();
        assert_eq!(clock.read(Duration::from_secs(3600), || 7 * SECOND, None), None);
        assert_eq!(clock.now(), at(3600));
    }
}
