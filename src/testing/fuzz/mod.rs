//! What has to hold for any bytes that reach the daemon. A fuzzer (`fuzz/fuzz_targets`) and a property test (below) ask
//! each of these for the same, so that every run of the tests covers what a fuzzer would look for, with fewer bytes.
//!
//! Each file has one function, `check`, which panics when what it promises does not hold. What comes in pieces is cut
//! where its caller says: `cut` gives the places for so many bytes.

pub mod configuration;
pub mod http1;
pub mod mcp;
pub mod proxy;
#[cfg(test)]
mod tests;
pub mod websocket;

/// Where so many bytes are cut.
pub type Cut<'a> = &'a dyn Fn(usize) -> Vec<usize>;
