//! TCP clients that vanish: their host has lost power, or a cable was cut.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{getpeername, sockopt};
use serde_json::json;

use crate::client::Client;
use crate::harness::{Daemon, Setup, worker};

/// A descriptor of ours for the daemon's end of a connection.
fn far_end(daemon: &Daemon, near: SocketAddr) -> OwnedFd {
    let mut found = None;
    daemon.until("the connection is accepted", || {
        found = daemon.copies_of_descriptors().find(|copy| {
            let peer = getpeername(copy).ok().flatten();
            peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(near)
        });
        found.is_some()
    });
    found.unwrap()
}

/// A connection, and the daemon's end of it.
fn connect(daemon: &Daemon) -> (TcpStream, OwnedFd) {
    let stream = TcpStream::connect(daemon.address()).unwrap();
    let far = far_end(daemon, stream.local_addr().unwrap());
    (stream, far)
}

/// Drops everything that arrives for this socket before TCP sees it: nothing is acknowledged or refused, as if its host
/// were gone.
fn vanish(stream: &TcpStream) {
    let mut keep_nothing = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: keep_nothing.as_mut_ptr() };
    // SAFETY: setsockopt(2) reads the program and its filter, which live until it returns.
    let result = unsafe {
        let value = (&raw const program).cast();
        let size = size_of_val(&program) as libc::socklen_t;
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, size)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_silent_client_is_asked_whether_it_is_still_there() {
    let daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (_client, far) = connect(&daemon);
    assert_eq!(sockopt::socket_keepalive(&far), Ok(true));
    assert_eq!(sockopt::tcp_keepidle(&far), Ok(Duration::from_secs(10)));
    assert_eq!(sockopt::tcp_keepintvl(&far), Ok(Duration::from_secs(5)));
    // It would also close clients that are alive but do not read.
    assert_eq!(sockopt::tcp_user_timeout(&far), Ok(0));
    daemon.stop();
}

#[test]
#[ignore = "scripts/test slow"]
fn clients_with_lost_hosts_are_closed_and_free_their_sessions_while_silent_and_slow_ones_stay() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (quiet, _) = connect(&daemon);
    let (full, _) = connect(&daemon);
    let mut full = Client::over(full);
    // More than the kernel buffers for a stalled reader.
    full.ask(1, "m", json!({ "fill": "x".repeat(900_000) }));
    full.ask(2, "m", json!({ "fill": "x".repeat(900_000) }));
    let (stream, far) = connect(&daemon);
    let mut silent = Client::over(stream.try_clone().unwrap());
    silent.request_in("silent", 1, "m", json!({}));
    let (waiting_stream, waiting_far) = connect(&daemon);
    let mut waiting = Client::over(waiting_stream.try_clone().unwrap());
    waiting.ask_in("waiting", 1, "hold", json!({}));
    let mut other = daemon.connect();
    daemon.until("it is asked", || other.request(1, "who", json!({}))["result"]["held"] == 1);
    other.ask_in("silent", 2, "m", json!({}));
    assert_eq!(other.error(2, "session_denied"), -32014);
    for (stream, far) in [(stream, far), (waiting_stream, waiting_far)] {
        vanish(&stream);
        drop(far);
    }
    // The answer can be written, but is not acknowledged.
    other.request(3, "release", json!({}));
    for session in ["silent", "waiting"] {
        daemon.until("the session is free", || other.request_in(session, 4, "m", json!({}))["result"].is_object());
    }
    daemon.logs(&["the network has given no sign of it for 30 s"]);
    // They were sent before those.
    assert_eq!(full.answer(1)["id"], 1);
    assert_eq!(full.answer(2)["id"], 2);
    let mut quiet = Client::over(quiet);
    assert_eq!(quiet.request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}
