//! Connects to the daemon: tries every address of a name, each for at most its share of the time, and reports failures
//! with a remedy. Nothing is read or written here.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::daemon::Daemon;
use crate::address::{self, Address};

/// Returns a connected socket. It takes at most `limit`, plus the time of the resolver, which is set in resolv.conf(5).
///
/// # Errors
/// The error of the resolver or of connect(2); of several addresses, the last one's.
pub(super) fn dial(daemon: &Address, limit: Duration) -> io::Result<OwnedFd> {
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
    match connect(&socket, &address) {
        Err(rustix::io::Errno::AGAIN) => {
            return Err(io::Error::new(ErrorKind::TimedOut, "its queue of connections stays full"));
        }
        other => other?,
    }
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

/// What to do about a failure of [`dial`].
pub(super) fn remedy(daemon: &Daemon, error: &io::Error) -> String {
    match (&daemon.address(), error.kind()) {
        (Address::Tcp { port, .. }, ErrorKind::ConnectionRefused) => match daemon {
            Daemon::Web(url) => {
                let key = url.protocol.scheme();
                format!(
                    "nothing listens there; start the daemon with such a listener (\"{key}\" in listeners[]), or what stands \
                     before it, or correct the port"
                )
            }
            Daemon::Lines(_) => format!(
                "nothing listens there; start the daemon (stdio_bus --config FILE --tcp HOST:{port}), or correct the port"
            ),
        },
        (Address::Tcp { .. }, ErrorKind::TimedOut) => {
            "no answer came; check the host, the port and the firewalls between".to_owned()
        }
        (Address::Tcp { .. }, ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable) => {
            "there is no route to that host; check the address and the network".to_owned()
        }
        (Address::Tcp { host, .. }, _) if error.raw_os_error().is_none() => {
            format!("the host {host} is not known; check its spelling, or write its IP address")
        }
        (Address::Unix { path }, ErrorKind::NotFound) => {
            let path = path.display();
            format!(
                "there is no such socket; start the daemon (stdio_bus --config FILE --unix {path}), or correct the path"
            )
        }
        (Address::Unix { path }, ErrorKind::ConnectionRefused) => {
            let path = path.display();
            format!(
                "the daemon that made this socket does not run any more, or the path is no socket; start the daemon \
                 again (stdio_bus --config FILE --unix {path})"
            )
        }
        (Address::Unix { path }, ErrorKind::PermissionDenied) => {
            format!(
                "the socket belongs to another user (ls -l {}); run as that user, or widen listeners[].mode in the \
                 daemon's configuration",
                path.display()
            )
        }
        (Address::Unix { .. }, ErrorKind::TimedOut) => {
            "the daemon is there but accepts nobody: it may be stopped, or have reached its limit of connections"
                .to_owned()
        }
        _ => "check that the daemon runs and listens there".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn refused(daemon: &str) -> (io::Error, String) {
        let daemon = Daemon::parse(daemon).expect("a good address");
        let error = dial(&daemon.address(), Duration::from_millis(200)).expect_err("nobody listens there");
        let remedy = remedy(&daemon, &error);
        (error, remedy)
    }

    #[test]
    fn a_daemon_that_never_accepts_is_given_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bus");
        let _listener = UnixListener::bind(&path).expect("a listener");
        let daemon = Address::from_unix(&path).expect("a good path");
        let mut queued = Vec::new();
        let error = loop {
            match dial(&daemon, Duration::from_millis(200)) {
                Ok(socket) => queued.push(socket),
                Err(error) => break error,
            }
            assert!(queued.len() < 10_000, "the queue has no end");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(remedy(&Daemon::Lines(daemon), &error).contains("accepts nobody"));
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bus");
        let url = format!("unix:{}", path.display());
        assert!(refused(&url).1.contains("--unix"), "{:?}", refused(&url));
        drop(UnixListener::bind(&path).expect("a listener"));
        assert!(refused(&url).1.contains("does not run any more"));
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
        assert!(refused(&format!("tcp://{free}")).1.contains("nothing listens there"));
        assert!(refused(&format!("ws://{free}/acp")).1.contains("\"ws\" in listeners[]"));
        assert!(refused(&format!("http://{free}/mcp")).1.contains("\"http\" in listeners[]"));
        // The resolver rejects this name without a query: one label exceeds 63 bytes (RFC 1035 2.3.4).
        let nameless = format!("{}.invalid", "x".repeat(64));
        assert!(refused(&format!("tcp://{nameless}:1")).1.contains(&format!("{nameless} is not known")));
    }
}
