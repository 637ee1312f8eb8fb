//! Ports where nothing listens.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// An address that refuses connections, and the socket that keeps others from it: a port that is only free may be that
/// of another test's listener a moment later.
pub fn unused() -> (SocketAddr, OwnedFd) {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    // Its owner may listen there by another socket.
    set_socket_reuseaddr(&socket, true).expect("it is open");
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
    let address = getsockname(&socket).expect("it is bound").try_into().expect("of TCP");
    (address, socket)
}
