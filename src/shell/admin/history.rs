//! A chart of the last ten minutes: samples of throughput and queues, every five seconds.

use std::collections::VecDeque;
use std::time::Duration;

use super::samples::seconds;
use crate::bus::stats::Stats;

/// The interval of samples.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// The number of samples kept.
const MOST: usize = 120;

/// What a sample has: counts since the previous one, current values, and how long the loop was busy.
pub(super) const COLUMNS: [&str; 5] = ["client_lines", "worker_lines", "clients", "pending", "busy_seconds"];
type Sample = (u64, u64, usize, usize, f64);

#[derive(Default)]
pub(super) struct History {
    /// The oldest first.
    pub samples: VecDeque<Sample>,
    /// The counters at the last sample.
    last: (u64, u64, Duration),
}

impl History {
    /// One that begins now, with these counters.
    pub(super) fn since(stats: &Stats, busy: Duration) -> Self {
        let last = (stats.client_side.lines_in, stats.worker_side.lines_in, busy);
        Self { last, ..Self::default() }
    }

    /// Takes a sample.
    pub(super) fn take(&mut self, stats: &Stats, busy: Duration) {
        let counted = (stats.client_side.lines_in, stats.worker_side.lines_in, busy);
        let last = std::mem::replace(&mut self.last, counted);
        if self.samples.len() == MOST {
            self.samples.pop_front();
        }
        let lines = (counted.0 - last.0, counted.1 - last.1);
        let busy = seconds(busy.saturating_sub(last.2));
        self.samples.push_back((lines.0, lines.1, stats.clients, stats.pending, busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_covers_the_time_since_the_previous_one_and_the_oldest_are_dropped() {
        let mut history = History::default();
        let mut stats = Stats { clients: 3, ..Stats::default() };
        for sample in 0..MOST as u64 + 10 {
            stats.client_side.lines_in += 10;
            history.take(&stats, Duration::from_millis(5 * sample));
        }
        assert_eq!(history.samples.len(), MOST);
        assert!(history.samples.iter().all(|sample| *sample == (10, 0, 3, 0, 0.005)));
    }

    #[test]
    fn a_history_that_begins_later_has_nothing_of_the_time_before() {
        let mut stats = Stats::default();
        stats.client_side.lines_in = 1_000;
        let mut history = History::since(&stats, Duration::from_secs(9));
        assert!(history.samples.is_empty());
        stats.client_side.lines_in = 1_007;
        history.take(&stats, Duration::from_secs(10));
        assert_eq!(history.samples, [(7, 0, 0, 0, 1.0)]);
    }
}
