//! The property is in `crates/stdio-bus-proto/src/testing/fuzz/proxy.rs`; the input is the cuts, then the stream.

#![no_main]

use stdio_bus_sim::bytes::{cuts, pieces_and_stream};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((pieces, stream)) = pieces_and_stream(bytes) {
        stdio_bus_proto::testing::fuzz::proxy::check(stream, &|length| cuts(pieces, length));
    }
});
