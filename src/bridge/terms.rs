//! What all of the bridge keeps to: how much at once, for how long, and how it speaks to people.

use std::io::{self, Write};
use std::time::Duration;

/// Bytes that are read at once; measured best for pipes and sockets alike.
pub(super) const BLOCK: usize = 64 * 1024;

/// How long connecting may take, and then the handshake of a WebSocket.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long the last errors may take to be read, and the daemon's last words to come after it stopped listening.
pub(super) const LAST_WORDS_LIMIT: Duration = Duration::from_secs(2);

/// Says something to the person at the terminal, or who reads the editor's log of its agent.
pub(super) fn say(message: &str) {
    // Without a reader of stderr there is nobody to tell, and nothing to do about it.
    let _ = writeln!(io::stderr(), "stdio_bus: {message}");
}
