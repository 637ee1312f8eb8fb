//! Detects TCP clients whose network has failed silently. The kernel probes a silent connection (keepalive, tcp(7));
//! this file checks whether nothing has come back for too long, neither an answer to a probe nor an acknowledgement of
//! sent data.
//!
//! TCP_USER_TIMEOUT would also end connections of clients that are alive but do not read: how long they may do that is
//! up to backpressure_timeout_sec.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::listen::KEEPALIVE;
use super::reactor::Reactor;
use crate::bus::port::Moment;
use crate::io::Io;

/// How long a client may show no sign of life: it is probed three times.
const SILENCE: Duration = Duration::from_secs(3 * KEEPALIVE.as_secs());
/// The interval of checks.
const LOOK_EVERY: Duration = Duration::from_secs(SILENCE.as_secs() / 6);

/// How long nothing was received on a TCP connection, including acknowledgements.
fn silence_of(socket: impl AsFd) -> Option<Duration> {
    /// The offset in `struct tcp_info` of the milliseconds since the last data and since the last acknowledgement.
    const LAST_DATA: usize = 52;
    const LAST_ACKNOWLEDGEMENT: usize = 56;
    let mut info = [0u8; LAST_ACKNOWLEDGEMENT + 4];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is told, and their number.
    let result = unsafe {
        let (into, length) = (info.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, length)
    };
    if result != 0 || (length as usize) < info.len() {
        return None;
    }
    let milliseconds = |at: usize| info[at..].first_chunk().copied().map(u32::from_ne_bytes);
    let last = milliseconds(LAST_DATA)?.min(milliseconds(LAST_ACKNOWLEDGEMENT)?);
    Some(Duration::from_millis(last.into()))
}

/// The next check: at a moment shared by all connections, so that the loop wakes once for all.
fn next_look(now: Moment) -> Moment {
    let period = LOOK_EVERY.as_nanos() as u64;
    Moment((now.0 / period + 1) * period)
}

impl<I: Io> Reactor<I> {
    /// Starts monitoring a client of this listener.
    pub(super) fn track_liveness(&mut self, now: Moment, listener: usize, slot: usize) {
        let is_tcp = self.listeners.terms.get(listener).is_some_and(|terms| terms.is_tcp);
        self.connections[slot].look_at = is_tcp.then(|| next_look(now));
        self.schedule(slot);
    }

    /// Checks a connection, and closes it if it has shown no sign of life for too long.
    pub(super) fn close_if_dead(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        let Some(look_at) = connection.look_at.as_mut().filter(|at| **at <= now) else { return };
        *look_at = next_look(now);
        if connection.ends.input().and_then(silence_of).is_some_and(|silence| silence >= SILENCE) {
            connection.look_at = None;
            let (peer, seconds) = (connection.peer, SILENCE.as_secs());
            self.broken(now, slot, peer, format!("the network has given no sign of it for {seconds} s"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_reports_how_long_a_connection_is_silent() {
        let listening = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let mut client = TcpStream::connect(listening.local_addr().expect("it is bound")).expect("it listens");
        let (mut server, _) = listening.accept().expect("there is one");
        client.write_all(b"a").expect("it is connected");
        server.read_exact(&mut [0]).expect("it has come");
        assert!(silence_of(&server).is_some_and(|silence| silence < Duration::from_secs(60)));
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(silence_of(&unix), None);
    }

    #[test]
    fn silence_is_checked_six_times_at_moments_that_all_connections_share() {
        assert_eq!(LOOK_EVERY * 6, SILENCE);
        for now in [10, 12, 14] {
            let look = next_look(Moment(now * 1_000_000_000));
            assert_eq!(look, Moment(15_000_000_000), "connections of different times are checked together");
        }
    }
}
