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
