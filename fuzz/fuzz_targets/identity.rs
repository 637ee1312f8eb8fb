//! The property is in `crates/stdio-bus-proto/src/testing/fuzz/identity.rs`; the input is a request.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stdio_bus_proto::testing::fuzz::identity::check(bytes));
