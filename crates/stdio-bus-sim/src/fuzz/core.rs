//! Any choices: clients, workers, pipes and time do what the bytes say, and the simulator knows what must become of
//! every line (`simulator.rs`, `model.rs`). The first bytes choose the settings; when they are used up, everybody heals.

use crate::simulator::World;

/// Most things that happen in one world.
const STEPS: usize = 2000;

/// Lives through what the bytes choose.
///
/// # Panics
/// If a line is lost or strays, or an invariant of the core does not hold.
pub fn check(bytes: &[u8]) {
    World::chosen(bytes, STEPS).run();
}

/// The same, and tells what happened before it panics.
#[cfg(test)]
pub fn check_and_tell(bytes: &[u8]) {
    World::chosen(bytes, STEPS).tell().run();
}
