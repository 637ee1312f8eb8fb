//! The simulator of the core: a world of clients, workers, pipes and time that is made from one number, the seed
//! (`docs/conformance.md` says what it proves). It needs only the core and the scanner, so a change of the core is
//! tested without building the daemon. It is not part of the daemon, and not published.
//!
//! Reading order: [`faults`] draws the world of a seed; [`mod@line`] makes recognisable messages; [`simulator`] is the
//! mock kernel with its peers, and drives the bus through its port alone; [`model`] predicts what happens to each line,
//! and panics on anything else; [`peers`] interprets lines as real peers do, and panics if a line of one client is
//! taken for another's. `twins` runs each world with two buses that must agree, [`trace`] hashes its results into two
//! numbers. `crowd` is a smaller world for hundreds of clients and full tables, `mcp` one for MCP with clients and
//! workers of both eras, and `families` one for sessions with children; `small` is what these two have in common.
//!
//! Beside them, `fuzz` holds the properties that fuzzers and property tests check for any bytes, built from [`bytes`]
//! and `strategies`. `reading` and `oracle` look at the scanner from outside; `scanner` has its tests, with lines of
//! [`corpus`].
//!
//! Seeds run beside each other. A failing one is run again with the fewest steps that still fail ([`shrink`]), and printed with the command that
//! repeats it and the last events.

pub mod bytes;
pub mod corpus;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod families;
pub mod faults;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod line;
#[cfg(test)]
mod mcp;
pub mod model;
#[cfg(any(test, feature = "fuzz"))]
mod oracle;
pub mod peers;
mod random;
#[cfg(any(test, feature = "fuzz"))]
mod reading;
#[cfg(test)]
mod scanner;
pub mod shrink;
pub mod simulator;
#[cfg(test)]
mod small;
#[cfg(any(test, feature = "strategies"))]
pub mod strategies;
pub mod trace;
mod twins;

pub use random::{Draws, Random};

use bus::report::Reason;
use ndjson_scan as scan;
use stdio_bus_core as bus;

/// The size of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Number of actions per seed before the simulator heals.
    pub steps: usize,
}

impl Plan {
    /// Reads `STDIO_BUS_SIM_SEED`, `STDIO_BUS_SIM_SEEDS` and `STDIO_BUS_SIM_STEPS`. Default: so many seeds as are
    /// `usual`, or the one seed given.
    pub fn from_env(usual: u64) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
        let seed = number("STDIO_BUS_SIM_SEED");
        let seeds = number("STDIO_BUS_SIM_SEEDS").unwrap_or(if seed.is_some() { 1 } else { usual });
        Self {
            seed: seed.unwrap_or(1),
            seeds,
            steps: number("STDIO_BUS_SIM_STEPS").map_or(STEPS, |steps| steps as usize),
        }
    }

    /// The seeds.
    fn range(self) -> std::ops::Range<u64> {
        self.seed..self.seed + self.seeds
    }

    /// Runs all seeds; returns how often each reason was counted, in the order of [`Reason::ALL`].
    pub fn run(self) -> Vec<u64> {
        let mut counts = vec![0; Reason::ALL.len()];
        let seen = shrink::run(self.range(), self.steps, |seed, steps, is_repeated| {
            let world = simulator::World::new(seed, steps);
            if is_repeated { world.narrated().run() } else { world.run() }
        });
        for seen in seen {
            counts.iter_mut().zip(seen).for_each(|(count, seen)| *count += seen);
        }
        counts
    }
}

/// Default number of seeds, from the first one on.
#[cfg(test)]
const SEEDS: u64 = 256;
/// The same for the worlds of one subject, which have seen all of it sooner.
#[cfg(test)]
const FEW_SEEDS: u64 = 128;
/// Default number of actions per seed.
const STEPS: usize = 600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_reaches_its_receiver_or_its_loss_is_counted_whatever_the_peers_do() {
        let plan = Plan::from_env(SEEDS);
        let counts = plan.run();
        // A simulator that never reaches a fault proves nothing about it. The default seeds reach all of them; other
        // seeds may miss a fault that occurs in one seed of two hundred.
        let are_usual = plan.seed == 1 && plan.seeds >= SEEDS;
        if (are_usual || plan.seeds >= 16 * SEEDS) && plan.steps >= STEPS {
            let unreached: Vec<_> = Reason::ALL
                .iter()
                .filter(|reason| counts[**reason as usize] == 0 && !UNREACHED.contains(reason))
                .collect();
            assert!(unreached.is_empty(), "no seed leads to {unreached:?}");
        }
    }

    /// Tables of a thousand entries are filled, and lines nested, in `bus::tests::limits` and `crowd`, where slow
    /// readers are closed, too. Few seeds have a stdin that ends before a line arrives. Admission is tested by
    /// `bus::tests::admission`; a simulated daemon has no operator (`bus::tests::operator`) and no WebSocket clients
    /// (`e2e::websocket`), none that says `initialize` (`bus::tests::openings`), and its listeners are never closed for lack of workers (`bus::tests::readiness`). No two of
    /// its clients share a name at the same time, its sessions do not grow old, and few seeds lead to a request for a
    /// lost one (`bus::tests::sessions`). Events are kept by the shell (`e2e::mcp`). Its clients lack no
    /// credentials (`bus::tests::personal`). Tools are called in the world of MCP (`mcp`).
    const UNREACHED: [Reason; 28] = [
        Reason::StartTimeout,
        Reason::CredentialsMissing,
        Reason::InitializeLost,
        Reason::InitializeRefused,
        Reason::EventsLost,
        Reason::EraUnsupported,
        Reason::ToolDenied,
        Reason::ServerRequest,
        Reason::EraKnown,
        Reason::NoInput,
        Reason::ListenerClosed,
        Reason::ListenerOpened,
        Reason::ClientKilled,
        Reason::TokenRemoved,
        Reason::TooDeep,
        Reason::ClientSlow,
        Reason::ConnectionLimit,
        Reason::NotAllowed,
        Reason::ProxyHeader,
        Reason::HandshakeRefused,
        Reason::IdentityRefused,
        Reason::BinaryIgnored,
        Reason::SessionLimit,
        Reason::SessionEvicted,
        Reason::SessionLost,
        Reason::SessionIdle,
        Reason::SessionTaken,
        Reason::PendingLimit,
    ];
}
