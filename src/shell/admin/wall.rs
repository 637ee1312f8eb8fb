//! The wall clock, for people and monitors alone: nothing that the daemon does depends on what it says.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::calendar;

/// A time of day.
#[derive(Clone, Copy)]
pub(in crate::shell) struct Wall(SystemTime);

impl Wall {
    /// What the clock says.
    pub(in crate::shell) fn now() -> Self {
        Self(SystemTime::now())
    }

    /// As HTTP writes it.
    pub(super) fn of_http(self) -> String {
        calendar::of_http(self.0)
    }

    /// As RFC 3339 writes it.
    pub(super) fn to_the_second(self) -> String {
        calendar::to_the_second(self.0)
    }

    /// The same with its milliseconds.
    pub(super) fn to_the_millisecond(self) -> String {
        calendar::to_the_millisecond(self.0)
    }

    /// Seconds since 1970, to the millisecond.
    pub(super) fn seconds(self) -> f64 {
        self.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1e3
    }
}
