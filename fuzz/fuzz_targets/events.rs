//! `src/testing/fuzz/events.rs` says what holds.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stdio_bus::testing::fuzz::events::check(bytes));
