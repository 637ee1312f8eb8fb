//! What the tests of the daemon's rooms need beside the simulator of the core, which is a package of its own
//! (`stdio-bus-sim`): [`kernel`] is a kernel for the shell that is made from a seed (`src/shell/simulation.rs` runs it),
//! `frames` looks at the frames of a WebSocket, and [`fuzz`] says what has to hold for any bytes, as fuzzers and property
//! tests ask it.

pub(crate) mod frames;
pub mod fuzz;
#[cfg(test)]
pub(crate) mod kernel;

/// A process that is being started holds copies of all our descriptors for a moment, and what is closed then has its end
/// later. Tests that start one hold this for as long, and a test whose outcome that would change holds it for others.
#[cfg(test)]
pub(crate) static STARTS: std::sync::RwLock<()> = std::sync::RwLock::new(());

#[cfg(test)]
pub(crate) use stdio_bus_sim::{Random, shrink};
