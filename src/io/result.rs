//! What system calls return.

use std::io;

/// What a call has returned, as a completion says it.
pub(crate) fn result_of(returned: isize) -> i32 {
    if returned < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { returned as i32 }
}
