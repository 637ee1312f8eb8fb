//! The supervisor: workers from their start to their end, the pools that they are of, and the clients that wait for one.
//!
//! `worker.rs` has the machine of a worker, `life.rs` carries out what it says, `answering.rs` watches workers that do not
//! answer. `pool.rs` keeps the slots of each pool filled, as `restart.rs` allows it, and `queue.rs` lets clients wait.

mod answering;
mod life;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod restart;
pub mod worker;

use alloc::vec::Vec;

/// The pools, and the clients that wait for workers.
pub(crate) struct Supervisor {
    pub pools: Vec<pool::Pool>,
    pub queue: queue::WorkerQueue,
    /// The number of the next worker.
    pub next_number: u32,
}

impl Supervisor {
    pub(crate) fn new(pools: &[crate::settings::Pool]) -> Self {
        Self {
            pools: pools.iter().map(pool::Pool::new).collect(),
            queue: queue::WorkerQueue::default(),
            next_number: 0,
        }
    }
}
