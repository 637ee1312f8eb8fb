//! Detects TCP clients whose network has failed silently. The kernel probes a silent connection (keepalive, tcp(7));
//! this file checks whether nothing has come back for too long, neither an answer to a probe nor an acknowledgement of
//! sent data.
//!
//! Detects TCP clients that have gone while they are not read, too. A close looks like a half-close, and does not show
//! at all behind bytes that have no room here. But the host of a program that has closed its socket answers new data,
//! and nothing else, with a reset. What is sent for that is a byte of urgent data, a blank, which no reader sees among
//! the others (tcp(7), SO_OOBINLINE); and it is sent only between lines.
//!
//! TCP_USER_TIMEOUT would also end connections of clients that are alive but do not read: how long they may do that is
//! up to backpressure_timeout_sec.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::net::SendFlags;

use super::connections::Connection;
use super::listen::KEEPALIVE;
use super::reactor::Reactor;
use super::transport::{PendingOp, State};
use crate::bus::port::{ListenerId, Moment};
use crate::io::Io;

/// How long a client may show no sign of life: it is probed three times.
const SILENCE: Duration = Duration::from_secs(3 * KEEPALIVE.as_secs());
/// The interval of checks.
const LOOK_EVERY: Duration = Duration::from_secs(SILENCE.as_secs() / 6);
/// How long a client that is not read may make no progress before it is checked whether it has gone, and the interval of
/// that.
pub(super) const SUSPECT_AFTER: Duration = Duration::from_secs(2);
/// Those checks of all clients are done together this often.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How long nothing was received on a TCP connection, including acknowledgements.
fn silence_of(socket: impl AsFd) -> Option<Duration> {
    /// The offset in `struct tcp_info` of the milliseconds since the last data and since the last acknowledgement.
    const LAST_DATA: usize = 52;
    const LAST_ACKNOWLEDGEMENT: usize = 56;
    let mut info = [0u8; LAST_ACKNOWLEDGEMENT + 4];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is given room for, and their number.
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
fn next_look(now: Moment, every: Duration) -> Moment {
    let period = every.as_nanos() as u64;
    Moment((now.0 / period + 1) * period)
}

/// Sends what the host of a client that has closed its socket answers with a reset. Its departure is then reported as
/// that of any other. Only over TCP: elsewhere a close looks different.
pub(super) fn provoke_reset(socket: impl AsFd) {
    if silence_of(&socket).is_some() {
        // Without room for it, there is something unsent, which has the same effect.
        let _ = rustix::net::send(&socket, b" ", SendFlags::OOB | SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl<I: Io> Reactor<I> {
    /// Starts monitoring a client of this listener.
    pub(super) fn track_liveness(&mut self, now: Moment, listener: ListenerId, slot: usize) {
        let is_tcp = self.listeners.terms.get(listener.index()).is_some_and(|terms| terms.is_tcp);
        self.connections[slot].deadline = is_tcp.then(|| next_look(now, LOOK_EVERY));
        self.schedule(slot);
    }

    /// Checks a connection, and closes it if it has shown no sign of life for too long.
    pub(super) fn close_if_dead(&mut self, now: Moment, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        let Some(look_at) = transport.deadline.as_mut().filter(|at| **at <= now) else { return };
        *look_at = next_look(now, LOOK_EVERY);
        if transport.ends.input().and_then(silence_of).is_some_and(|silence| silence >= SILENCE) {
            transport.deadline = None;
            let (peer, seconds) = (endpoint.peer, SILENCE.as_secs());
            self.broken(now, slot, peer, format!("the network has given no sign of it for {seconds} s"));
        } else if endpoint.is_not_read(transport) {
            self.check_unread(now, slot);
        }
    }

    /// A client is not read any more: it is checked soon whether it has gone.
    pub(super) fn check_soon(&mut self, slot: usize) {
        let now = self.clock.now();
        let (transport, endpoint) = self.connections.peer_parts(slot);
        endpoint.incoming.is_suspect = false;
        if let Some(look_at) = transport.deadline.as_mut().filter(|at| **at > now.after(CHECK_EVERY)) {
            *look_at = next_look(now, CHECK_EVERY);
            self.schedule(slot);
        }
    }

    /// A client is not read. If it has made no progress since the last check, it may have gone.
    fn check_unread(&mut self, now: Moment, slot: usize) {
        let Connection { transport, protocol } = self.connections.entry(slot);
        let is_web = protocol.web().is_some();
        let Some(endpoint) = protocol.endpoint_mut() else { return };
        transport.deadline = Some(next_look(now.after(SUSPECT_AFTER), CHECK_EVERY));
        if !std::mem::replace(&mut endpoint.incoming.is_suspect, true) || transport.state != State::Open {
            return;
        }
        let is_idle = !transport.in_flight.has(PendingOp::Write) && transport.outbox.is_empty();
        if is_web {
            // A WebSocket cannot be half-closed. Its close frame, if it has sent one, is not read.
            if transport.is_half_closed() && endpoint.incoming.is_paused {
                let peer = endpoint.peer;
                self.broken(now, slot, peer, "it has disconnected while it was not read".to_owned());
            }
        } else if is_idle && let Some(socket) = transport.ends.input() {
            provoke_reset(socket);
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
    fn a_client_that_has_closed_is_distinguished_from_one_that_sends_no_more_and_reads() {
        let listening = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let pair = || {
            let client = TcpStream::connect(listening.local_addr().expect("it is bound")).expect("it listens");
            (client, listening.accept().expect("there is one").0)
        };
        let (mut reads, mut server) = pair();
        reads.shutdown(std::net::Shutdown::Write).expect("it is connected");
        provoke_reset(&server);
        server.write_all(b"a").expect("it is connected");
        provoke_reset(&server);
        server.write_all(b"b").expect("it is connected");
        server.shutdown(std::net::Shutdown::Write).expect("it is connected");
        let mut read = Vec::new();
        reads.read_to_end(&mut read).expect("it is not reset");
        assert_eq!(read, b"ab", "it sees nothing of that");
        let (closed, mut server) = pair();
        drop(closed);
        assert_eq!(server.read(&mut [0]).expect("it has closed in order"), 0);
        provoke_reset(&server);
        let mut events = [rustix::event::PollFd::new(&server, rustix::event::PollFlags::empty())];
        rustix::event::poll(&mut events, Some(&rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 })).expect("it works");
        assert!(events[0].revents().contains(rustix::event::PollFlags::ERR));
    }

    #[test]
    fn silence_is_checked_six_times_at_moments_that_all_connections_share() {
        assert_eq!(LOOK_EVERY * 6, SILENCE);
        for now in [10, 12, 14] {
            let look = next_look(Moment(now * 1_000_000_000), LOOK_EVERY);
            assert_eq!(look, Moment(15_000_000_000), "connections of different times are checked together");
        }
    }
}
