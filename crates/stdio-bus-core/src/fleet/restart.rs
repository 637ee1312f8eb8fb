//! Restart backoff: when the next worker is started after one that failed (spec 7.1.3; decision 13). There is one
//! policy: each failure in a row doubles the delay.
//!
//! A slot applies it to its worker, and gives up after `max_restarts` failures within `restart_window_sec`. A dedicated
//! pool applies it to the workers that clients have taken: there a source counts once, and the pool never gives up.

use alloc::vec::Vec;
use core::time::Duration;

use crate::peer::{Moment, Source};
use crate::settings::Limits;

/// First restart delay; it doubles with each exit (decision 13).
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest restart delay.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A worker that ran this long, or for the window in which restarts are counted, starts over with the first delay.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// A worker that could not be started for lack of descriptors, processes or memory is tried again after this long.
pub(super) const SHORTAGE: Duration = Duration::from_secs(1);
/// This many failures in a row are not a coincidence.
const UNSTEADY: u32 = 2;
/// At most this many sources are remembered, which is enough to reach the longest backoff.
const SOURCES: usize = 16;

/// The failures of a fleet's workers, and when the next one may be started.
#[derive(Default)]
pub(crate) struct Restarts {
    failures: u32,
    /// When the next worker is due, since one has failed.
    due: Option<Moment>,
    /// max_restarts was exceeded: no worker is started before `due`, or ever.
    given_up: bool,
    /// Restarts within the window.
    recent: Vec<Moment>,
    /// The sources of the clients of failed workers, up to [`SOURCES`]: each counts once, so that a few clients that
    /// crash workers do not keep the others from getting one.
    sources: Vec<Source>,
}

impl Restarts {
    /// The worker of a slot, started at `started`, has exited unexpectedly. Returns the delay before the next one; none
    /// if the slot is given up.
    pub(super) fn fail(&mut self, now: Moment, started: Moment, limits: &Limits) -> Option<Duration> {
        if does_well(now, started, limits) {
            self.failures = 0;
        }
        self.recent.retain(|restart| now.since(*restart) < limits.restart_window);
        if self.recent.len() >= limits.max_restarts as usize {
            self.given_up = true;
            self.due = retry_after(limits).map(|after| now.after(after));
            return None;
        }
        let delay = self.back_off(now);
        self.recent.extend(self.due);
        Some(delay)
    }

    /// A worker taken by a client of this source has failed. Returns the delay before the next one, if that counts.
    pub(super) fn fail_for(&mut self, now: Moment, source: Option<Source>) -> Option<Duration> {
        if source.is_some_and(|source| self.sources.contains(&source)) {
            return None;
        }
        self.sources.extend(source.filter(|_| self.sources.len() < SOURCES));
        Some(self.back_off(now))
    }

    fn back_off(&mut self, now: Moment) -> Duration {
        let delay = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(LONGEST_BACKOFF);
        self.failures += 1;
        self.due = Some(now.after(delay));
        delay
    }

    /// No worker could be started for lack of system resources: that is not a failure of the command.
    pub(super) fn note_shortage(&mut self, now: Moment) {
        self.due = Some(now.after(SHORTAGE));
    }

    /// The next worker is started.
    pub(super) fn begin(&mut self) {
        (self.due, self.given_up) = (None, false);
    }

    /// When the next worker is due, since one has failed.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Whether there were too many failures.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Whether the next worker may be started.
    pub(crate) fn may_begin(&self, now: Moment) -> bool {
        self.due.map_or(!self.given_up, |due| due <= now)
    }

    /// Whether the next worker is on probation.
    pub(super) fn is_unsteady(&self) -> bool {
        self.given_up || self.failures >= UNSTEADY
    }

    /// Whether the last worker failed and the next one is not started yet, or never will be.
    pub(crate) fn is_failing(&self) -> bool {
        self.given_up || self.due.is_some()
    }

    /// Until when the last worker has failed lately, and the next one could not be started or was not needed for less
    /// than this since; none if it has not failed, or for good.
    pub(super) fn failed_until(&self, window: Duration) -> Option<Moment> {
        self.due.map(|due| if self.given_up { due } else { due.after(window) })
    }

    /// Whether that is so now.
    pub(super) fn has_failed_lately(&self, now: Moment, window: Duration) -> bool {
        self.failed_until(window).map_or(self.given_up, |until| until > now)
    }

    /// Whether a worker has failed since the last healthy one.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_failing() || self.failures > 0
    }

    /// Whether the last worker was the first to fail after a healthy time, and the next one is due.
    pub(super) fn is_in_first_backoff(&self) -> bool {
        !self.given_up && self.due.is_some() && self.failures == 1
    }

    /// Whether the worker started at `started` would have a successor after the first backoff if it exits now.
    pub(super) fn would_restart_soon(&self, now: Moment, started: Moment, limits: &Limits) -> bool {
        self.failures == 0 || does_well(now, started, limits)
    }
}

/// Whether a worker has run for so long that earlier failures are forgotten.
pub(super) fn does_well(now: Moment, started: Moment, limits: &Limits) -> bool {
    now.since(started) >= healthy_after(limits)
}

/// How long a worker runs until earlier failures are forgotten.
pub(super) fn healthy_after(limits: &Limits) -> Duration {
    HEALTHY_AFTER.min(limits.restart_window)
}

/// How long after giving up a slot is tried again; none if never.
pub(super) fn retry_after(limits: &Limits) -> Option<Duration> {
    (limits.max_restarts > 0).then_some(limits.restart_window)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot whose workers exit as soon as they were started.
    struct Slot {
        restarts: Restarts,
        limits: Limits,
    }

    impl Slot {
        fn new(max_restarts: u32, window: u64) -> Self {
            let restart_window = Duration::from_secs(window);
            let limits = Limits { max_restarts, restart_window, ..Limits::default() };
            Self { restarts: Restarts::default(), limits }
        }

        fn fail(&mut self, now: Moment, started: Moment) -> Option<u128> {
            let delay = self.restarts.fail(now, started, &self.limits);
            delay.map(|delay| delay.as_millis())
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_backoff_doubles_up_to_thirty_seconds() {
        let mut slot = Slot::new(100, 1);
        let mut now = Moment(0);
        let mut delays = Vec::new();
        for _ in 0..11 {
            delays.extend(slot.fail(now, now));
            now = slot.restarts.due.expect("it is tried again").after(2 * SECOND);
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(slot.fail(now.after(HEALTHY_AFTER), now), Some(100), "a worker that ran for a minute starts over");
        assert_eq!(slot.fail(now, now), Some(200));
        assert_eq!(slot.fail(now.after(SECOND), now), Some(100), "so does one that outlived the window");
    }

    #[test]
    fn a_slot_is_given_up_when_its_restarts_exceed_the_limit_within_the_window() {
        let mut slot = Slot::new(5, 60);
        for second in 0..5 {
            let at = Moment(0).after(second * SECOND);
            assert!(slot.fail(at, at).is_some());
        }
        let at = Moment(0).after(6 * SECOND);
        assert_eq!(slot.fail(at, at), None);
        assert!(slot.restarts.given_up && !slot.restarts.may_begin(at));
        let retry = at.after(Duration::from_secs(60));
        assert!(slot.restarts.may_begin(retry), "it is tried again when the window has passed");
        slot.restarts.begin();
        assert!(!slot.restarts.given_up);
    }

    #[test]
    fn without_restarts_a_slot_is_given_up_for_good_at_the_first_exit() {
        let mut slot = Slot::new(0, 60);
        assert_eq!(slot.fail(Moment(0), Moment(0)), None);
        assert_eq!(slot.restarts.due, None);
        assert!(!slot.restarts.may_begin(Moment::NEVER));
    }

    #[test]
    fn a_shortage_delays_the_next_start_and_counts_for_nothing() {
        let mut slot = Slot::new(1, 60);
        for _ in 0..10 {
            slot.restarts.note_shortage(Moment(0));
        }
        assert!(!slot.restarts.may_begin(Moment(0)) && slot.restarts.may_begin(Moment(0).after(SHORTAGE)));
        assert_eq!(slot.fail(Moment(0), Moment(0)), Some(100));
    }

    #[test]
    fn a_source_counts_once() {
        let mut restarts = Restarts::default();
        let (one, other) = (Some(Source::User(1)), Some(Source::User(2)));
        let delays = [one, one, other, one, other].map(|source| restarts.fail_for(Moment(0), source));
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(delays, [ms(100), None, ms(200), None, None]);
    }
}
