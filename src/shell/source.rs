//! Where a client comes from, as the kernel knows it: the address or the user at the other end of a socket.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::getpeername;

use crate::bus::port::Source;

/// The source of a connected socket; [`Source::Inherited`] if the kernel does not tell.
pub(super) fn of(socket: &OwnedFd, is_unix: bool) -> Source {
    let source = if is_unix { user(socket).map(Source::User) } else { address(socket).map(network) };
    source.unwrap_or_default()
}

fn address(socket: &OwnedFd) -> Option<IpAddr> {
    let peer = getpeername(socket).ok()??;
    SocketAddr::try_from(peer).ok().map(|peer| peer.ip())
}

/// One source for all that one host may call itself.
fn network(address: IpAddr) -> Source {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => address.octets(),
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            octets
        }
    };
    Source::Address(octets)
}

/// The user who connected, or made the socket pair (SO_PEERCRED, unix(7)).
fn user(socket: &OwnedFd) -> Option<u32> {
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
    (result == 0 && peer.uid != u32::MAX).then_some(peer.uid)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn of_text(address: &str) -> Source {
        network(address.parse().expect("an address"))
    }

    #[test]
    fn an_ipv4_address_is_whole_and_an_ipv6_address_is_its_network() {
        let Source::Address(octets) = of_text("192.0.2.7") else { panic!("it is an address") };
        assert_eq!(octets, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(of_text("::ffff:192.0.2.7"), of_text("192.0.2.7"));
        assert_ne!(of_text("::ffff:192.0.2.8"), of_text("192.0.2.7"));
        assert_eq!(of_text("2001:db8:1:2:3:4:5:6"), of_text("2001:db8:1:2::"));
        assert_ne!(of_text("2001:db8:1:2::1"), of_text("2001:db8:1:3::1"));
    }

    #[test]
    fn a_tcp_client_is_known_by_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (accepted, _) = listener.accept().expect("a client is there");
        assert_eq!(of(&accepted.into(), false), of_text("127.0.0.1"));
        assert_eq!(of(&TcpListener::bind("127.0.0.1:0").expect("a port").into(), false), Source::Inherited, "no peer");
        drop(client);
    }

    #[test]
    fn a_unix_client_is_known_by_its_user() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        drop(theirs);
        assert_eq!(of(&ours.into(), true), Source::User(rustix::process::getuid().as_raw()), "even when it has gone");
    }
}
