//! Test support: `frames` decodes WebSocket frames and compares with tungstenite, and [`fuzz`] has properties for any
//! bytes, checked by fuzzers and property tests.

pub(crate) mod frames;
pub mod fuzz;
