//! The property is in `src/testing/fuzz/configuration.rs`.

#![no_main]

#[path = "../../src/testing/fuzz/configuration.rs"]
mod configuration;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| configuration::check(bytes));
