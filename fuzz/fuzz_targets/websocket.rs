//! `src/testing/fuzz/websocket.rs` says what holds.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stdio_bus::testing::fuzz::websocket::check(bytes));
