//! `src/testing/fuzz/mcp.rs` says what holds; the first byte is its choice, then come the pieces and the stream.

#![no_main]

use stdio_bus_sim::bytes::{cuts, parts};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((first, pieces, stream)) = parts(bytes) {
        stdio_bus::testing::fuzz::mcp::check(first, stream, &|length| cuts(pieces, length));
    }
});
