//! Properties that hold for any bytes that an endpoint sends. A fuzzer (`fuzz/fuzz_targets`) and a property test
//! (below) check the same ones, so that every test run covers what a fuzzer would look for, with fewer bytes.
//!
//! Each file has one function, `check`, which panics if its property does not hold. Input in pieces is cut where the
//! caller says: `cut` returns the places for a number of bytes.

pub mod answers;
pub mod events;
#[cfg(test)]
mod tests;

/// Where this many bytes are cut.
pub type Cut<'a> = &'a dyn Fn(usize) -> Vec<usize>;
