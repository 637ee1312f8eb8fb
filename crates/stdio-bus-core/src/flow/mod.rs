//! Backpressure and fairness: which peer waits for which, and for how long (spec 7.3, decision 12).
//!
//! [`gate`] says whether a peer is read. [`delivery`] queues lines and makes their senders wait; [`scheduler`] gives
//! clients their turns for a shared worker, by the [`window`] of what it reads; [`stall`] limits how long a slow reader
//! holds a worker up; [`throttle`] slows clients down, and [`waste`] workers whose output has no receiver.

pub(crate) mod delivery;
pub(crate) mod gate;
pub(crate) mod scheduler;
pub(crate) mod stall;
pub(crate) mod throttle;
pub mod waste;
pub(crate) mod window;
