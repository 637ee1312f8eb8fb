//! The property is in `src/testing/fuzz/configuration.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stdio_bus::testing::fuzz::configuration::check(bytes));
