//! The system's clocks (clock_gettime(2)).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Reads a clock.
#[inline]
pub(super) fn time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The time on the clock that cannot be set (CLOCK_MONOTONIC).
#[inline]
pub(super) fn monotonic() -> Duration {
    time(ClockId::Monotonic)
}
