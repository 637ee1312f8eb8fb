//! Attacks: the effect of one client on all others, for the daemon and for its peer side by side. Each measures polite
//! clients on the attacked workers ("shared") and on others ("own").

mod crashes;
mod floods;
mod readers;
mod stage;
mod tables;

use std::time::Duration;

use stage::Attack;

use crate::scenario::Scenario;

/// All attacks, in the order of the table.
pub fn scenarios() -> impl Iterator<Item = Scenario> {
    let attack = |name, goal, seconds, run| Attack { name, goal, limit: Duration::from_secs(seconds), run };
    [
        attack("fairness, six clients never read", "1 s in all", 60, readers::never_read),
        attack("fairness, one client reads 70 kB/s", "1 s in all", 60, readers::dribble),
        attack("fairness, one client with 4,096 unanswered requests", "60 of 60", 60, |stage| {
            tables::unanswered(stage, 1)
        }),
        attack("fairness, two clients with 4,096 unanswered requests each", "60 of 60", 60, |stage| {
            tables::unanswered(stage, 2)
        }),
        attack("fairness, 4,300 requests cancelled by their client", "60 of 60, slots back", 90, tables::cancelled),
        attack("fairness, 1,024 notifications with a session each", "20 of 20 opened", 60, tables::sessions),
        attack("fairness, 1,024 connections of which one leaves", "taken at once", 60, tables::connections),
        attack("fairness, 24 requests that crash their worker", "no worker given up", 90, crashes::crashes),
        attack("fairness, 800 lines of 900 kB before a slow worker", "p99 × 3", 90, floods::long_lines),
        attack("fairness, notifications flood a worker of 0.2 ms a line", "p50 10.4 ms", 120, |stage| {
            floods::flood(stage, false, 200)
        }),
        attack("fairness, notifications flood a fast worker", "p50 10 ms", 120, |stage| floods::flood(stage, false, 0)),
        attack("fairness, requests flood a worker of 0.2 ms a line", "p50 10.4 ms", 120, |stage| {
            floods::flood(stage, true, 200)
        }),
        attack("fairness, requests flood a fast worker", "p50 10 ms", 120, |stage| floods::flood(stage, true, 0)),
        attack(
            "fairness, eight connections take all seats of a dedicated pool",
            "an error with the figure",
            60,
            tables::seats,
        ),
    ]
    .into_iter()
    .map(|attack| Scenario::new(attack.name, move |harness| attack.measure(harness)))
}
