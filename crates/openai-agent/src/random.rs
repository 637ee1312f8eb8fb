//! Random bytes, for ids that nobody guesses.

use std::hash::{BuildHasher, RandomState};

use stdio_bus_base::random::{Flags, fill};

/// Random bytes from the kernel.
pub(super) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // It fails only where there is no such system call; then ids are merely unlikely to meet.
    if fill(&mut bytes, Flags::empty()).is_err() {
        let (low, high) = (RandomState::new().hash_one(1), RandomState::new().hash_one(2));
        bytes[..8].copy_from_slice(&low.to_be_bytes());
        bytes[8..].copy_from_slice(&high.to_be_bytes());
    }
    bytes
}
