//! How long and how often a new connection is tried after a daemon has refused requests because it shuts down: a balancer
//! or a tunnel accepts while no daemon is behind it, and a daemon that has just started may have no agent yet. All rounds
//! until one of them takes the editor's `initialize` have one time limit. The pauses between them grow, since each may
//! start an agent.

use std::time::Duration;

use tokio::time::Instant;

/// How long a daemon that has shut down may take to be back, or a balancer to find another one.
const LIMIT: Duration = Duration::from_secs(30);

/// The pause before the second connection, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// See the module documentation.
pub(super) struct Rounds {
    until: Instant,
    pause: Duration,
}

impl Rounds {
    pub(super) fn begin(now: Instant) -> Self {
        Self { until: now + LIMIT, pause: FIRST_PAUSE }
    }

    /// From when on nothing is tried any more.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The pause before the next round.
    pub(super) fn pause(&mut self) -> Duration {
        let longer = (self.pause * 3 / 2).min(LONGEST_PAUSE);
        std::mem::replace(&mut self.pause, longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_takes_no_initialize_is_tried_a_few_times_within_one_limit() {
        let mut now = Instant::now();
        let mut rounds = Rounds::begin(now);
        let (mut pauses, until) = (Vec::new(), rounds.until());
        while now < until {
            pauses.push(rounds.pause());
            now += *pauses.last().expect("one was just added");
        }
        assert!(pauses.is_sorted() && (10..=20).contains(&pauses.len()), "{pauses:?}");
        assert_eq!(rounds.until(), until, "no round moves it");
    }
}
