//! Results of system calls.

use std::io;

/// Converts a call's return value to a completion's result.
pub(crate) fn result_of(returned: isize) -> i32 {
    if returned < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { returned as i32 }
}
