//! Backpressure and fairness: which peer waits for which, and for how long (spec 7.3, decision 12).
//!
//! [`queue`] counts queued bytes, and lists the peers that wait for room. [`gate`] says whether a peer is read.
//! [`delivery`] queues lines and makes their senders wait; [`scheduler`] gives clients their [`turn`]s for a shared
//! worker, by the [`window`] of what it reads; [`stall`] limits how long a slow reader holds a worker up; [`throttle`]
//! slows clients down.

pub(crate) mod delivery;
pub(crate) mod gate;
pub(crate) mod queue;
pub(crate) mod scheduler;
pub(crate) mod stall;
pub(crate) mod throttle;
pub(crate) mod turn;
pub(crate) mod window;
