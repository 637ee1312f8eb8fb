//! The property is in `crates/stdio-bus-sim/src/fuzz/core.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stdio_bus_sim::fuzz::core::check(bytes));
