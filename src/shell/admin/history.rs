//! A chart of the last ten minutes: samples of throughput and queues, every five seconds.

use std::collections::VecDeque;
use std::time::Duration;

use crate::bus::stats::Stats;

/// The interval of samples.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// The number of samples kept.
const MOST: usize = 120;

/// Counts since the previous sample, and current values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub client_lines: u64,
    pub worker_lines: u64,
    pub clients: usize,
    pub pending: usize,
    /// How long the loop was busy.
    pub busy: Duration,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// The counters at the last sample.
    last: (u64, u64, Duration),
}

impl History {
    /// Takes a sample.
    pub(super) fn take(&mut self, stats: &Stats, busy: Duration) {
        let counted = (stats.client_side.lines_in, stats.worker_side.lines_in, busy);
        let last = std::mem::replace(&mut self.last, counted);
        if self.samples.len() == MOST {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            client_lines: counted.0 - last.0,
            worker_lines: counted.1 - last.1,
            clients: stats.clients,
            pending: stats.pending,
            busy: counted.2.saturating_sub(last.2),
        });
    }

    /// The samples, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
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
        assert_eq!(history.iter().count(), MOST);
        let busy = Duration::from_millis(5);
        let expected = Sample { client_lines: 10, worker_lines: 0, clients: 3, pending: 0, busy };
        assert!(history.iter().all(|sample| *sample == expected));
    }
}
