//! The fleet: workers from their start to their end, their pools and groups, and the clients that wait for one.
//!
//! `worker.rs` has the row of a worker and its state machine, and says which module writes which part of the row.
//! `life.rs` carries out its actions, `answering.rs` watches workers that do not answer, and `health.rs` those that say
//! nothing at all. `pool.rs` fills slots, as `restart.rs` allows, and `queue.rs` makes clients wait. `rollout.rs`
//! replaces workers in turn, `ownership.rs` says whose they are. `pause.rs` has what the operator stops for a while,
//! `demand.rs` the pools that are asleep while nobody asks, `growth.rs` those that have more workers while all are
//! busy, `trial.rs` the new workers that have still to show that they work. `balancer.rs` has the groups of workers,
//! `admission.rs` the listeners and the sources of their clients. `readiness.rs` is what load balancers see.
//!
//! [`Fleets`] has these parts as private fields, each a type with its own rows. What needs one part is a method of that
//! type, or of one of its rows ([`pool::Fleet`], [`balancer::Group`]), and takes other parts as arguments. What changes
//! several of them is a method of [`Fleets`].
//!
//! A pool has a fleet for each era of MCP that its clients may speak: `eras/` decides which of them gets the workers.

pub mod admission;
pub(crate) mod answering;
pub(crate) mod balancer;
pub(crate) mod demand;
pub mod eras;
pub(crate) mod growth;
pub(crate) mod health;
pub(crate) mod life;
pub(crate) mod lifetime;
pub(crate) mod ownership;
pub(crate) mod pause;
pub(crate) mod pool;
pub(crate) mod queue;
pub mod readiness;
pub(crate) mod reload;
pub(crate) mod restart;
pub(crate) mod rollout;
pub(crate) mod trial;
pub mod worker;

use crate::fleet::eras::opening::Openings;
use crate::index::PoolId;
use crate::settings::Settings;
use admission::Admission;
use balancer::{Balancer, Groups};
use pool::Pools;
use queue::WorkerQueue;

/// The fleets, and the clients that wait for workers.
pub(crate) struct Fleets {
    /// The configured pools, and the fleets of each.
    pools: Pools,
    queue: WorkerQueue,
    /// The groups of workers that a message may go to.
    balancer: Balancer,
    /// The listeners and the sources of their clients.
    admission: Admission,
    /// What is kept of the `initialize` of clients and of the answers of workers.
    openings: Openings,
}

impl Fleets {
    /// The fleets of the configured pools. The pools of `both` have one for each era.
    pub(crate) fn new(settings: &Settings, both: &[PoolId]) -> Self {
        let pools = Pools::new(settings, both);
        Self {
            balancer: Balancer::new(settings, &pools),
            pools,
            admission: Admission::new(settings),
            queue: WorkerQueue::default(),
            openings: Openings::default(),
        }
    }

    /// What the way of a usual line needs: the pools, and the groups of their workers.
    #[inline(always)]
    pub(crate) fn for_lines(&mut self) -> (&mut Pools, &mut Groups) {
        (&mut self.pools, self.balancer.groups_mut())
    }

    /// The configured pools.
    #[inline(always)]
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    #[inline(always)]
    pub(crate) fn pools_mut(&mut self) -> &mut Pools {
        &mut self.pools
    }

    #[inline(always)]
    pub(crate) fn queue(&self) -> &WorkerQueue {
        &self.queue
    }

    #[inline(always)]
    pub(crate) fn queue_mut(&mut self) -> &mut WorkerQueue {
        &mut self.queue
    }

    #[inline(always)]
    pub(crate) fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    #[inline(always)]
    pub(crate) fn balancer_mut(&mut self) -> &mut Balancer {
        &mut self.balancer
    }

    #[inline(always)]
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    #[inline(always)]
    pub(crate) fn admission_mut(&mut self) -> &mut Admission {
        &mut self.admission
    }

    #[inline(always)]
    pub(crate) fn openings(&self) -> &Openings {
        &self.openings
    }

    #[inline(always)]
    pub(crate) fn openings_mut(&mut self) -> &mut Openings {
        &mut self.openings
    }
}
