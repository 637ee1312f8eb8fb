//! The bytes determine what clients, workers, pipes and time do, and the simulator knows what must happen to every line
//! (`simulator.rs`, `model.rs`). The first bytes choose the settings; when they are used up, all peers heal.

use crate::simulator::World;

/// Maximum number of steps of a world.
const STEPS: usize = 2000;

/// Runs the world chosen by the bytes.
///
/// # Panics
/// If a line is lost or misrouted, or an invariant of the core does not hold.
pub fn check(bytes: &[u8]) {
    World::chosen(bytes, STEPS).run();
}

/// The same, and prints the events before it panics.
#[cfg(test)]
pub fn check_and_print(bytes: &[u8]) {
    World::chosen(bytes, STEPS).narrated().run();
}
