//! Constants of the bridge: sizes and time limits; and its messages to the user.

use std::io::{self, Write};
use std::time::Duration;

/// Size of a read in bytes; measured best for pipes and sockets alike.
pub(super) const BLOCK: usize = 64 * 1024;

/// Time limit for connecting, and again for a WebSocket handshake.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for the last errors to be read, and for the daemon's last output after it stopped reading.
pub(super) const LAST_WORDS_LIMIT: Duration = Duration::from_secs(2);

/// How long the answer to a repeated `initialize` may take. A socket that systemd holds accepts the connection while the old
/// daemon still drains, which systemd ends after 90 s (`TimeoutStopSec=` of the unit), and then an agent may have to be
/// started for it.
pub(super) const OPENING_LIMIT: Duration = Duration::from_secs(120);

/// How often a request is sent at most that daemons refuse because they shut down.
pub(super) const MOST_TRIES: u8 = 5;

/// Prints a message for the user at the terminal, or for the editor's log of its agent.
pub(super) fn say(message: &str) {
    // If stderr is closed, nothing can be done about it.
    let _ = writeln!(io::stderr(), "stdio_bus: {message}");
}
