//! Waits, with an end, for what sends no event when it comes true.

use std::time::{Duration, Instant};

/// Looks again and again whether it has come true: false when `patience` is over.
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
