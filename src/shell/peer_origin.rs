//! The origin of a client as the kernel reports it: the address or the process at the other end of a socket.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::bus::port::Place;

/// The peer of a socket accepted from this address; [`Place::Inherited`] if it is unknown.
pub(super) fn of(socket: &OwnedFd, address: Option<SocketAddr>, is_unix: bool) -> Place {
    let place = if is_unix { process(socket) } else { address.map(Place::Address) };
    place.unwrap_or_default()
}

/// The process that connected, or created the socket pair (SO_PEERCRED, unix(7)).
fn process(socket: &OwnedFd) -> Option<Place> {
    // Without rustix, whose process ids are never zero: a peer outside our PID namespace has id zero.
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `peer`, for which any bytes are
    // valid.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &raw mut length,
        )
    };
    // A socket without a peer has no user either, which is reported as the highest number.
    let is_known = result == 0 && peer.uid != u32::MAX;
    is_known.then(|| Place::Process { pid: u32::try_from(peer.pid).unwrap_or(0), user: peer.uid })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::io::Io;
    use crate::io::epoll::Epoll;

    #[test]
    fn a_tcp_client_has_its_address_even_when_it_has_gone() {
        let mut io = Epoll::new(0).expect("there are descriptors");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let address = client.local_addr().expect("it is connected");
        set_socket_linger(&client, Some(Duration::ZERO)).expect("it is reset when it is closed");
        drop(client);
        let (accepted, address_of_peer) = io.accept_now(listener.as_fd()).expect("it has connected");
        assert_eq!(of(&accepted, address_of_peer, false), Place::Address(address));
        assert_eq!(of(&accepted, None, false), Place::Inherited, "the origin is unknown");
    }

    #[test]
    fn a_unix_client_has_its_process_and_user() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        drop(theirs);
        let us = Place::Process { pid: std::process::id(), user: rustix::process::getuid().as_raw() };
        assert_eq!(of(&ours.into(), None, true), us, "even when it has gone");
    }
}
