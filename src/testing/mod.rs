//! What the tests of the daemon's rooms need beside the simulator of the core, which is a package of its own
//! (`stdio-bus-sim`): [`kernel`] is a kernel for the shell that is made from a seed (`src/shell/simulation.rs` runs it),
//! `frames` looks at the frames of a WebSocket, and [`fuzz`] says what has to hold for any bytes, as fuzzers and property
//! tests ask it.

pub(crate) mod frames;
pub mod fuzz;
#[cfg(test)]
pub(crate) mod kernel;

#[cfg(test)]
pub(crate) use stdio_bus_sim::{Random, shrink};
