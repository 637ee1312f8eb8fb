//! Random bytes from the kernel, for what nobody may guess.

use std::io;

use rustix::io::Errno;
pub use rustix::rand::GetRandomFlags as Flags;
use rustix::rand::getrandom;

/// Fills `bytes`.
///
/// # Errors
/// What getrandom(2) said.
pub fn fill(mut bytes: &mut [u8], flags: Flags) -> io::Result<()> {
    while !bytes.is_empty() {
        match getrandom(&mut *bytes, flags) {
            Ok(count) => bytes = &mut bytes[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
