//! Socket activation: sockets that a service manager listens on and passes to us at start (sd_listen_fds(3)). They stay
//! open in the manager: while the daemon is down, connections queue in them for the next one.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{SocketAddrAny, SocketAddrUnix, SocketType, getsockname, sockopt};

use crate::address::Address;
use crate::error::StartError;

/// The number of the first passed descriptor (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;

/// A listening socket passed by the service manager.
#[derive(Debug)]
pub struct Inherited {
    pub socket: OwnedFd,
    /// Its descriptor number when it was passed.
    pub number: RawFd,
    /// The address it listens on.
    pub address: Address,
}

/// Takes the sockets that were passed to this process, if any.
///
/// # Errors
/// [`StartError::Inherited`]: a descriptor is not a listening stream socket. [`StartError::Config`]: the descriptor
/// count or the process ID is not a number.
///
/// # Safety
/// Must be called once, before anything is opened: nothing else in this process owns or uses these descriptors.
pub unsafe fn take() -> Result<Vec<Inherited>, StartError> {
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let count = count(variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref())?;
    (FIRST..FIRST.saturating_add(count))
        .map(|number| {
            let failed = |why: String| StartError::Inherited { number, why };
            // SAFETY: F_GETFD takes no pointer and is defined for every number.
            if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
                return Err(failed("it is not open".to_owned()));
            }
            // SAFETY: it is open, and was passed for this purpose; the caller guarantees that nothing else owns it.
            let socket = unsafe { OwnedFd::from_raw_fd(number) };
            let address = address_of(&socket).map_err(failed)?;
            Ok(Inherited { socket, number, address })
        })
        .collect()
}

/// How many sockets were passed to us: the variables may be meant for our parent process. Without sockets that it was
/// promised, the daemon would listen elsewhere or nowhere: a malformed number is an error, as in sd_listen_fds(3).
fn count(process: Option<&str>, descriptors: Option<&str>) -> Result<RawFd, StartError> {
    let (Some(process), Some(descriptors)) = (process, descriptors) else { return Ok(0) };
    let number = |name: &str, value: &str| {
        let number = value.parse().ok().filter(|number: &RawFd| *number >= 0);
        number.ok_or_else(|| {
            let wrong = format!("{name} is {value:?}, and has to be a number");
            let remedy =
                "the program that starts the daemon has to pass sockets by the rules of sd_listen_fds(3), or unset it";
            StartError::Config(format!("{wrong}\n{remedy}").into())
        })
    };
    let is_ours = number("LISTEN_PID", process)?.cast_unsigned() == std::process::id();
    if is_ours { number("LISTEN_FDS", descriptors) } else { Ok(0) }
}

fn address_of(socket: &impl AsFd) -> Result<Address, String> {
    let error_of = |error: rustix::io::Errno| io::Error::from(error).to_string();
    let listens = sockopt::socket_acceptconn(socket).map_err(error_of)?;
    if !listens || sockopt::socket_type(socket).map_err(error_of)? != SocketType::STREAM {
        return Err("it is no listening stream socket; use ListenStream= and Accept=no".to_owned());
    }
    let bound = getsockname(socket).map_err(error_of)?;
    Address::bound(&bound).ok_or_else(|| "it listens neither on TCP nor on a Unix socket with a name".to_owned())
}

impl Address {
    /// The address that a socket is bound to; none if it is neither a TCP port nor a named Unix socket.
    fn bound(address: &SocketAddrAny) -> Option<Self> {
        if let Ok(address) = SocketAddr::try_from(address.clone()) {
            return Some(address.into());
        }
        let address = SocketAddrUnix::try_from(address.clone()).ok()?;
        let path = match (address.path_bytes(), address.abstract_name()) {
            (Some(path), _) => path.to_owned(),
            (None, Some(name)) => [b"@", name].concat(),
            (None, None) => return None,
        };
        use std::os::unix::ffi::OsStringExt;
        Some(Self::of_path(std::ffi::OsString::from_vec(path)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{self, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn only_descriptors_passed_to_this_process_count() {
        let own = std::process::id().to_string();
        let counted = |process, descriptors| count(process, descriptors).map_err(|error| error.to_string());
        assert_eq!(counted(Some(&own), Some("2")), Ok(2));
        for (process, descriptors) in [(None, Some("2")), (Some("1"), Some("x")), (Some(own.as_str()), None)] {
            assert_eq!(counted(process, descriptors), Ok(0));
        }
        for nonsense in ["", "x", "-1", "99999999999"] {
            let error = counted(Some(&own), Some(nonsense)).expect_err(nonsense);
            assert!(error.starts_with(&format!("LISTEN_FDS is {nonsense:?}")), "{error}");
            let error = counted(Some(nonsense), Some("1")).expect_err(nonsense);
            assert!(error.starts_with(&format!("LISTEN_PID is {nonsense:?}")), "{error}");
        }
    }

    #[test]
    fn a_listening_socket_is_known_by_its_address() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = tcp.local_addr().expect("it is bound").port();
        assert_eq!(address_of(&tcp), Ok(Address::tcp("127.0.0.1", port)));
        let directory = tempfile::tempdir().expect("there is a place for it");
        let path = directory.path().join("s");
        let unix = UnixListener::bind(&path).expect("it is free");
        assert_eq!(address_of(&unix), Ok(Address::of_path(&path)));
        let name = format!("stdio-bus-{}", std::process::id());
        let nameless = net::SocketAddr::from_abstract_name(&name).expect("a good name");
        let unix = UnixListener::bind_addr(&nameless).expect("it is free");
        assert_eq!(address_of(&unix), Ok(Address::of_path(format!("@{name}"))));
    }

    #[test]
    fn a_descriptor_that_cannot_accept_is_refused() {
        let said = |error: Result<Address, String>| error.expect_err("it does not listen");
        let (one, _other) = UnixStream::pair().expect("there are descriptors");
        assert!(said(address_of(&one)).contains("Accept=no"));
        assert!(said(address_of(&UdpSocket::bind("127.0.0.1:0").expect("there is a port"))).contains("ListenStream="));
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert!(!said(address_of(&file)).is_empty());
    }
}
