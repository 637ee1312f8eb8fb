//! Random bytes from the kernel, for secrets.

use std::io;

use rustix::io::Errno;
pub use rustix::rand::GetRandomFlags as Flags;
use rustix::rand::getrandom;

/// Fills `bytes`.
///
/// # Errors
/// The error of getrandom(2).
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
