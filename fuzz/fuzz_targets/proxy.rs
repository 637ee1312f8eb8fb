//! `src/testing/fuzz/proxy.rs` says what holds; the pieces come first, then the stream.

#![no_main]

use stdio_bus_sim::bytes::{cuts, pieces_and_stream};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((pieces, stream)) = pieces_and_stream(bytes) {
        stdio_bus::testing::fuzz::proxy::check(stream, &|length| cuts(pieces, length));
    }
});
