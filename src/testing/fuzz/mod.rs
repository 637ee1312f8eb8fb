//! Properties that have to hold for any bytes that reach the daemon, as those of `stdio_bus_proto::testing::fuzz`.
//! Fuzzers (`fuzz/fuzz_targets`) and property tests (below) check the same ones; the fuzzers compile these files, and
//! see of the daemon what any program sees.
//!
//! Each file has one function, `check`, which panics if its property does not hold.

mod configuration;
mod tests;
