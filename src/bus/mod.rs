//! The core of the bus: it decides where every line goes and touches nothing of the world. No descriptor, no clock,
//! no thread; the ring, a simulator, a fuzzer or a benchmark can run it and it cannot tell which.

pub mod scan;
pub mod settings;
