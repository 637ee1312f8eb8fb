//! The wall clock, for display only: nothing that the daemon does depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::calendar;

/// A time of day.
#[derive(Clone, Copy)]
pub(in crate::shell) struct WallClock(SystemTime);

impl WallClock {
    /// The current time.
    pub(in crate::shell) fn now() -> Self {
        Self(SystemTime::now())
    }

    /// In HTTP format.
    pub(super) fn of_http(self) -> String {
        calendar::of_http(self.0)
    }

    /// In RFC 3339 format.
    pub(super) fn to_the_second(self) -> String {
        calendar::to_the_second(self.0)
    }

    /// The same with milliseconds.
    pub(super) fn to_the_millisecond(self) -> String {
        calendar::to_the_millisecond(self.0)
    }

    /// Seconds since 1970, with milliseconds.
    pub(super) fn seconds(self) -> f64 {
        self.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1e3
    }
}
