//! Connects to a daemon: tries every address of a name, each for at most its share of the time. Nothing is read or written
//! here.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_linger, set_socket_timeout, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use crate::address::{self, Address};

/// Returns a connected socket. It takes at most `limit`, plus the time of the resolver, which is set in resolv.conf(5).
///
/// # Errors
/// The error of the resolver or of connect(2); of several addresses, the last one's.
pub(crate) fn dial(daemon: &Address, limit: Duration) -> io::Result<OwnedFd> {
    match daemon {
        Address::Tcp { host, port } => tcp(host, *port, limit),
        Address::Unix { path } => unix(path, limit),
    }
}

fn tcp(host: &str, port: u16, limit: Duration) -> io::Result<OwnedFd> {
    let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
    let deadline = Instant::now() + limit;
    let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // An address that drops packets must not use up the time of the next one, which may be alive.
        let share = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - tried) as u32;
        match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
            Ok(stream) if is_connected_to_itself(&stream) => {
                // Reset, so that the port is free for the daemon at once.
                set_socket_linger(&stream, Some(Duration::ZERO))?;
                failure = ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => {
                // Send each message at once: nothing more may follow it before its answer.
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                return Ok(stream.into());
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Whether the kernel gave the socket the very port that it connects to, so that it met itself (RFC 9293, 3.5,
/// "simultaneous open"): it does so where nobody listens on a port of `ip_local_port_range`. Such a socket would read what
/// it writes, and keep the port from the daemon.
fn is_connected_to_itself(stream: &TcpStream) -> bool {
    stream.local_addr().is_ok_and(|own| stream.peer_addr().is_ok_and(|peer| peer == own))
}

/// Lets the kernel detect within half a minute that the daemon's machine is gone, which otherwise looks like silence. It
/// does not look while data is unacknowledged: that is for [`Pulse`].
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    set_tcp_keepidle(stream, Duration::from_secs(10))?;
    set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    set_tcp_keepcnt(stream, 3)?;
    set_socket_keepalive(stream, true)?;
    Ok(())
}

/// How often it is looked whether what was sent is acknowledged.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How many looks in a row have to find nothing acknowledged.
const MOST_STUCK: u32 = 4;

/// Whether a TCP connection's other side still acknowledges what is sent. TCP_USER_TIMEOUT would also end a connection
/// to a daemon that merely reads slowly, and acknowledges the probes of its closed window (tcp(7)).
#[derive(Default)]
pub(crate) struct Pulse {
    /// How many looks in a row have found nothing acknowledged.
    stuck: u32,
    /// How long the last acknowledgement was ago, in milliseconds, at the last look.
    silent: u32,
}

impl Pulse {
    /// Looks at the connection, which is done each [`LOOK_EVERY`]. Returns whether it is dead.
    pub(crate) fn has_stopped(&mut self, socket: impl AsFd) -> bool {
        self.note(tcp_info(socket))
    }

    fn note(&mut self, info: Option<Unacknowledged>) -> bool {
        let is_stuck = info.is_some_and(|info| info.is_sent_again && info.silent > self.silent);
        self.stuck = if is_stuck { self.stuck + 1 } else { 0 };
        self.silent = info.map_or(0, |info| info.silent);
        self.stuck >= MOST_STUCK
    }

    /// The error of a connection that has stopped.
    pub(crate) fn error() -> io::Error {
        io::Error::new(ErrorKind::TimedOut, "its machine does not answer any more")
    }
}

/// What the kernel says of unacknowledged data of a TCP connection.
#[derive(Clone, Copy)]
struct Unacknowledged {
    /// Data or a probe of the window was sent again, and is not acknowledged.
    is_sent_again: bool,
    /// How long the last acknowledgement was ago, in milliseconds.
    silent: u32,
}

fn tcp_info(socket: impl AsFd) -> Option<Unacknowledged> {
    /// Offsets in `struct tcp_info`: how often data and probes were sent again, and the milliseconds since the last
    /// acknowledgement.
    const RETRANSMITS: usize = 2;
    const PROBES: usize = 3;
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
    let silent = u32::from_ne_bytes(*info[LAST_ACKNOWLEDGEMENT..].first_chunk()?);
    Some(Unacknowledged { is_sent_again: info[RETRANSMITS] > 0 || info[PROBES] > 0, silent })
}

fn unix(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = address::of_unix_socket(path)?;
    // connect(2) blocks while the listener's queue is full, such as that of a stopped daemon; the send timeout limits
    // it.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    // A process that was stopped and continues waits again.
    match rustix::io::retry_on_intr(|| connect(&socket, &address)) {
        Err(rustix::io::Errno::AGAIN) => {
            return Err(io::Error::new(ErrorKind::TimedOut, "its queue of connections stays full"));
        }
        other => other?,
    }
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::{SocketAddrV4, bind};

    use super::*;

    #[test]
    fn a_socket_that_met_itself_is_no_connection_to_a_daemon() {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = TcpStream::from(socket.try_clone().unwrap()).local_addr().unwrap();
        connect(&socket, &own).unwrap();
        assert!(is_connected_to_itself(&socket.into()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_connected_to_itself(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }

    #[test]
    fn a_connection_is_dead_when_nothing_is_acknowledged_in_four_looks() {
        let look = |is_sent_again: bool, silent: u32| Some(Unacknowledged { is_sent_again, silent });
        let dies = |looks: &[Option<Unacknowledged>]| {
            let mut pulse = Pulse::default();
            looks.iter().map(|look| pulse.note(*look)).position(|dead| dead)
        };
        assert_eq!(
            dies(&[look(true, 900_000), look(true, 905_000), look(true, 910_000), look(true, 915_000)]),
            Some(3)
        );
        assert_eq!(dies(&[look(false, 900_000); 10]), None, "it is idle");
        let acknowledged = [look(true, 5000), look(true, 10_000), look(true, 15_000), look(true, 100)];
        assert_eq!(dies(&[acknowledged, acknowledged].concat()), None, "something was acknowledged meanwhile");
        assert_eq!(dies(&[None; 10]), None, "it is no TCP connection");
    }

    #[test]
    fn the_kernel_is_asked_about_connections_of_tcp_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(tcp_info(&stream).is_some_and(|info| !info.is_sent_again));
        assert!(tcp_info(std::os::unix::net::UnixStream::pair().unwrap().0).is_none());
    }

    /// What the kernel (Linux 6.18) said each 5 s, of a connection over loopback whose other side read nothing, and of
    /// one whose link had been taken down.
    #[test]
    fn a_daemon_that_reads_nothing_is_alive_and_one_whose_link_is_down_is_dead() {
        let dies = |is_sent_again: bool, silent: &[u32]| {
            let mut pulse = Pulse::default();
            silent.iter().position(|silent| pulse.note(Some(Unacknowledged { is_sent_again, silent: *silent })))
        };
        // The kernel probes the closed window at growing intervals, and each probe was answered.
        let closed = [1540, 3120, 1204, 6208, 11208, 2644, 7644, 12644, 17644, 22648, 27652, 4492, 9492];
        assert_eq!(dies(false, &closed), None);
        let down = [5536, 10536, 15536, 20536, 25536, 30536, 35536, 40536];
        assert_eq!(dies(true, &down), Some(3), "after 20 s");
    }
}
