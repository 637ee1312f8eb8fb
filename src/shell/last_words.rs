//! The end of the process when whoever reads stderr does not read: the last words have a second.

use signal_hook::low_level::{exit, register};

/// Seconds that the process has for its last words.
const LIMIT: u32 = 1;

/// Ends the process with this code in a second, whatever it waits for then.
pub(super) fn limit(code: u8) {
    // SAFETY: the handler makes one call, which is async-signal-safe (signal-safety(7)).
    let installed = unsafe { register(libc::SIGALRM, move || exit(code.into())) };
    if installed.is_ok() {
        // SAFETY: alarm(2) takes a number.
        unsafe { libc::alarm(LIMIT) };
    }
}
