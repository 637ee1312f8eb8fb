//! Waits, with a limit, for conditions that no event reports.

use std::time::{Duration, Instant};

/// Polls a condition: false after `patience`.
pub fn comes_true(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    true
}
