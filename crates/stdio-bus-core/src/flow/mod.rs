//! Backpressure and fairness: who waits for whom, and for how long (spec 7.3, decision 12).
//!
//! [`queue`] counts what is queued for a peer, and who waits for room there. [`gate`] says whether a peer is read.
//! [`delivery`] queues lines and lets their senders wait; [`scheduler`] gives clients their [`turn`]s before a worker, by the
//! [`window`] of what it reads; [`stall`] bounds how long a slow reader holds a worker up; [`pace`] and [`penalty`] slow
//! clients down.

pub(crate) mod delivery;
pub(crate) mod gate;
pub(crate) mod pace;
pub(crate) mod penalty;
pub(crate) mod queue;
pub(crate) mod scheduler;
pub(crate) mod stall;
pub(crate) mod turn;
pub(crate) mod window;
