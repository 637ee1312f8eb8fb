//! Properties that have to hold for any bytes that reach a listener. Fuzzers (`fuzz/fuzz_targets`) and property tests
//! (below) check the same ones, so that every test run covers what a fuzzer would look for, with fewer bytes.
//!
//! Each file has one function, `check`, which panics if its property does not hold. Its caller decides the cuts: `cut`
//! returns the offsets for a given length.

pub mod acp;
pub mod http1;
pub mod identity;
pub mod mcp;
pub mod proxy;
#[cfg(test)]
mod tests;
pub mod websocket;

/// The cuts for a given length.
pub type Cut<'a> = &'a dyn Fn(usize) -> Vec<usize>;
