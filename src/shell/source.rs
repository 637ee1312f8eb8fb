//! Where a client comes from, as the kernel knows it: the address or the process at the other end of a socket.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::getpeername;

use crate::bus::port::Place;

/// Where a connected socket leads to; [`Place::Inherited`] if the kernel does not tell.
pub(super) fn of(socket: &OwnedFd, is_unix: bool) -> Place {
    let place = if is_unix { process(socket) } else { address(socket).map(Place::Address) };
    place.unwrap_or_default()
}

fn address(socket: &OwnedFd) -> Option<SocketAddr> {
    let peer = getpeername(socket).ok()??;
    SocketAddr::try_from(peer).ok()
}

/// The process that connected, or made the socket pair (SO_PEERCRED, unix(7)).
fn process(socket: &OwnedFd) -> Option<Place> {
    // Not with rustix, whose process ids are never zero: that of a peer outside of our PID namespace is.
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `peer`, which any bytes may fill.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &raw mut length,
        )
    };
    // A socket that has no peer has no user either, which is written as the highest number.
    let is_known = result == 0 && peer.uid != u32::MAX;
    is_known.then(|| Place::Process { pid: u32::try_from(peer.pid).unwrap_or(0), user: peer.uid })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_tcp_client_is_known_by_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (accepted, _) = listener.accept().expect("a client is there");
        let address = client.local_addr().expect("it is connected");
        assert_eq!(of(&accepted.into(), false), Place::Address(address));
        assert_eq!(of(&TcpListener::bind("127.0.0.1:0").expect("a port").into(), false), Place::Inherited, "no peer");
    }

    #[test]
    fn a_unix_client_is_known_by_its_process_and_user() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        drop(theirs);
        let us = Place::Process { pid: std::process::id(), user: rustix::process::getuid().as_raw() };
        assert_eq!(of(&ours.into(), true), us, "even when it has gone");
    }
}
