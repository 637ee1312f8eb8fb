//! The fleet: workers from their start to their end, their pools and groups, and the clients that wait for one.
//!
//! `worker.rs` has the state machine of a worker, `life.rs` carries out its actions, `answering.rs` watches workers
//! that do not answer. `pool.rs` fills slots, as `restart.rs` allows, and `queue.rs` makes clients wait.
//!
//! `roll.rs` replaces workers in turn.
//!
//! For MCP listeners: `discovery.rs` finds out the era of a command, and `lending.rs` lends workers for the time of a
//! request.

pub(crate) mod answering;
pub(crate) mod discovery;
mod lending;
mod life;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod restart;
pub(crate) mod roll;
pub(crate) mod tenure;
pub mod worker;

use alloc::vec::Vec;

use crate::admission::Admission;
use crate::balancer::Balancer;
use crate::settings::{Era, Settings};
use crate::tally::Counts;

/// The pools, and the clients that wait for workers.
pub(crate) struct Fleet {
    /// The configured pools, and behind them one for each that an MCP listener offers, for its other era.
    pub pools: Vec<pool::Pool>,
    /// Number of configured pools.
    pub shown: usize,
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
    /// Bytes of the `initialize` of all clients and of the answers kept of all workers (`router/opening.rs`), the same.
    pub opening_bytes: usize,
}

impl Fleet {
    /// `pools` are the configured ones; behind them come the twins of those with the indexes `of`.
    pub(crate) fn new(settings: &mut Settings, of: &[usize]) -> Self {
        let pools = &mut settings.pools;
        let shown = pools.len();
        let twins: Vec<_> = of.iter().map(|pool| pools[*pool].clone()).collect();
        pools.extend(twins);
        let legacy = |pool: usize| pool::Side {
            twin: of.iter().position(|of| *of == pool).map(|twin| shown + twin),
            shown_as: pool,
            is_used: !of.contains(&pool),
            ..pool::Side::default()
        };
        let modern =
            |pool: &usize| pool::Side { era: Era::Modern, twin: Some(*pool), is_dormant: true, ..legacy(*pool) };
        let sides = (0..shown).map(legacy).chain(of.iter().map(modern));
        let pools = pools.iter().zip(sides).map(|(pool, side)| pool::Pool::new(pool, side)).collect();
        Self {
            pools,
            shown,
            balancer: Balancer::new(settings, shown),
            admission: Admission::new(settings),
            queue: queue::WorkerQueue::default(),
            errors_of_no_pool: Counts::default(),
            next_number: 0,
            rolls_due: false,
            opening_bytes: 0,
        }
    }
}
