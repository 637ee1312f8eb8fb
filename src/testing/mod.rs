//! Test support for the daemon, beside the core's simulator, which is a package of its own (`stdio-bus-sim`):
//! [`kernel`] is a simulated kernel for the shell (`src/shell/simulation.rs` runs it), and `fuzz` has properties for any
//! bytes, checked by fuzzers and property tests.

mod fuzz;
pub(crate) mod kernel;

/// A process that is being spawned holds copies of all our descriptors until it executes its program, which delays the
/// effect of closing one. Tests write-lock this while they spawn a process; simulations, which check what is closed,
/// read-lock it, so that none of them sees such a delay.
pub(crate) static STARTS: std::sync::RwLock<()> = std::sync::RwLock::new(());

pub(crate) use stdio_bus_sim::{Draws, Random, shrink};
