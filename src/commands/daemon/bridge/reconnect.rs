//! How long and how often a new connection is tried after a daemon has refused requests because it shuts down: a balancer
//! or a tunnel accepts while no daemon is behind it, and a daemon that has just started may have no agent yet. All rounds
//! until a daemon is there have one time limit. The pauses between them grow, since each may start an agent.

use std::time::Duration;

use tokio::time::Instant;

/// How long a daemon that has shut down may take to be back, or a balancer to find another one.
const LIMIT: Duration = Duration::from_secs(30);

/// The pause before the first connection, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// See the module documentation.
pub(super) struct Rounds {
    until: Instant,
    pause: Duration,
}

/// How a connection is tried.
pub(super) struct Round {
    /// No other one was tried since a daemon was last there.
    pub is_first: bool,
    /// How long to wait before.
    pub pause: Duration,
    /// From when on nothing is tried any more.
    pub until: Instant,
}

impl Rounds {
    /// The next round, which is the first one if there are none.
    pub(super) fn next(rounds: &mut Option<Self>, now: Instant) -> Round {
        let is_first = rounds.is_none();
        let Self { until, pause } = rounds.get_or_insert(Self { until: now + LIMIT, pause: FIRST_PAUSE });
        let longer = (*pause * 3 / 2).min(LONGEST_PAUSE);
        Round { is_first, pause: std::mem::replace(pause, longer), until: *until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_takes_no_initialize_is_tried_a_few_times_within_one_limit() {
        let mut now = Instant::now();
        let mut rounds = None;
        let Round { is_first, pause, until } = Rounds::next(&mut rounds, now);
        let mut pauses = vec![pause];
        assert!(is_first);
        while now < until {
            let round = Rounds::next(&mut rounds, now);
            assert_eq!((round.is_first, round.until), (false, until), "no round moves it");
            pauses.push(round.pause);
            now += round.pause;
        }
        assert!(pauses.is_sorted() && (10..=20).contains(&pauses.len()), "{pauses:?}");
    }
}
