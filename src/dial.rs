//! Connects to a daemon: tries every address of a name, each for at most its share of the time. Nothing is read or written
//! here.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
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

/// Lets the kernel detect within two minutes that the daemon's machine is gone, which otherwise looks like silence.
/// TCP_USER_TIMEOUT would shorten the wait while data is unsent, but also end a connection to a daemon that merely
/// reads slowly.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    set_tcp_keepidle(stream, Duration::from_secs(60))?;
    set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    set_tcp_keepcnt(stream, 6)?;
    set_socket_keepalive(stream, true)?;
    Ok(())
}

fn unix(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = address::of_unix_socket(path)?;
    // connect(2) blocks while the listener's queue is full, such as that of a stopped daemon; the send timeout limits
    // it.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    // A process that was stopped and continues goes on waiting.
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
}
