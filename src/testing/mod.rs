//! Test support for the daemon, beside the core's simulator, which is a package of its own (`stdio-bus-sim`):
//! [`kernel`] is a simulated kernel for the shell (`src/shell/simulation.rs` runs it), `frames` decodes WebSocket
//! frames, and [`fuzz`] has properties for any bytes, checked by fuzzers and property tests.

pub(crate) mod frames;
pub mod fuzz;
#[cfg(test)]
pub(crate) mod kernel;

/// A process that is being spawned holds copies of all our descriptors for a moment, which delays the effect of closing
/// one. Tests that spawn a process hold this lock meanwhile, and a test that this would affect holds it against them.
#[cfg(test)]
pub(crate) static STARTS: std::sync::RwLock<()> = std::sync::RwLock::new(());

#[cfg(test)]
pub(crate) use stdio_bus_sim::{Random, shrink};
