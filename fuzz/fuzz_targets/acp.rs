//! The property is in `crates/stdio-bus-proto/src/testing/fuzz/acp.rs`; the input is its first byte, then the cuts and the stream.

#![no_main]

use stdio_bus_sim::bytes::{cuts, parts};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((first, pieces, stream)) = parts(bytes) {
        stdio_bus_proto::testing::fuzz::acp::check(first, stream, &|length| cuts(pieces, length));
    }
});
