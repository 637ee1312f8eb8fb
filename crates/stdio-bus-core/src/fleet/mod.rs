//! The fleet: workers from their start to their end, their pools and groups, and the clients that wait for one.
//!
//! `worker.rs` has the state machine of a worker, `life.rs` carries out its actions, `answering.rs` watches workers
//! that do not answer. `pool.rs` fills slots, as `restart.rs` allows, and `queue.rs` makes clients wait.
//!
//! `roll.rs` replaces workers in turn.
//!
//! A pool has a fleet for each era of MCP that its clients may speak: `eras/` decides which of them gets the workers.

pub mod admission;
pub(crate) mod answering;
pub(crate) mod balancer;
pub mod eras;
mod life;
pub(crate) mod pool;
pub(crate) mod queue;
pub mod readiness;
mod reload;
pub(crate) mod restart;
pub(crate) mod roll;
pub(crate) mod tenure;
pub mod worker;

use alloc::vec::Vec;

use crate::fleet::eras::opening::Openings;
use crate::index::FleetId;
use crate::settings::Settings;
use crate::tally::Counts;
use admission::Admission;
use balancer::Balancer;
use pool::Pools;

/// The fleets, and the clients that wait for workers.
pub(crate) struct Fleets {
    /// The configured pools, and the fleets of each.
    pub pools: Pools,
    pub queue: queue::WorkerQueue,
    /// The groups of workers that a message may go to.
    pub balancer: Balancer,
    /// The listeners and the sources of their clients.
    pub admission: Admission,
    /// Errors to requests that were for no pool, or for one of several.
    pub errors_of_no_pool: Counts,
    /// The number of the next worker.
    pub next_number: u32,
    /// A worker may have to be replaced.
    pub rolls_due: bool,
    /// What is kept of the `initialize` of clients and of the answers of workers.
    pub openings: Openings,
}

impl Fleets {
    /// The fleets of the configured pools. Those with the indexes `both` have one for each era.
    pub(crate) fn new(settings: &Settings, both: &[usize]) -> Self {
        let pools = Pools::new(settings, both);
        Self {
            balancer: Balancer::new(settings, &pools),
            pools,
            admission: Admission::new(settings),
            queue: queue::WorkerQueue::default(),
            errors_of_no_pool: Counts::default(),
            next_number: 0,
            rolls_due: false,
            openings: Openings::default(),
        }
    }

    /// All fleets, in the order of their ids.
    pub(crate) fn ids(&self) -> Vec<FleetId> {
        self.pools.ids().collect()
    }
}
