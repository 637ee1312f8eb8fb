//! Random bytes, for ids that nobody guesses.

use std::hash::{BuildHasher, RandomState};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes from the kernel.
pub(super) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        // It fails only where there is no such system call; then ids are merely unlikely to meet.
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(_) => {
                let (low, high) = (RandomState::new().hash_one(1), RandomState::new().hash_one(2));
                bytes[..8].copy_from_slice(&low.to_be_bytes());
                bytes[8..].copy_from_slice(&high.to_be_bytes());
                break;
            }
        }
    }
    bytes
}
