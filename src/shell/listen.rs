//! Opens listening sockets: at start, again after another process has shut one down, and closes them at shutdown. It
//! does not accept.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, chmod, chown, fchmod, flock};
use rustix::io::ioctl_fionbio;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with, sockopt,
};
use rustix::process::{Gid, Uid};

use super::http::exchange::OPERATORS;
use super::peer_origin;
use crate::activation::Inherited;
use crate::address::{self, Address};
use crate::bus::port;
use crate::bus::port::ListenerId;
use crate::config::{Config, Listen, Owner};
use crate::error::StartError;

/// How long a daemon that has ended may still hold an address.
const LAST_HOLDER: Duration = Duration::from_millis(500);
/// How long to wait in total for other daemons that are opening sockets in the same directories.
const OTHER_STARTS: Duration = Duration::from_secs(5);
/// The first delay before a retry; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Pending connections that the kernel queues while the table is full; capped by net.core.somaxconn.
pub(super) const BACKLOG: i32 = 4096;
/// Maximum number of sockets that the name of the admin listener resolves to.
pub(super) const MOST_OPERATOR_SOCKETS: usize = 8;
/// Default idle time before a TCP keepalive probe.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(10);
/// Number of unanswered probes before the kernel drops a connection; `liveness.rs` does so earlier.
const QUESTIONS: u32 = 20;
/// Maximum number of unsent bytes that the kernel buffers for a connection. Without this limit a stalled reader would
/// still be sent megabytes, and max_output_queue would not bound memory.
const UNSENT_BYTES: libc::c_int = 128 * 1024;

/// A listening socket.
pub(super) struct Listening {
    // First, so that its file is removed before the socket is closed: another daemon that finds the socket dead may
    // create its own file there.
    place: BoundAddress,
    pub socket: OwnedFd,
    /// Its address, for display.
    pub address: String,
    /// Index of the listener in the configuration.
    pub listener: ListenerId,
    /// A service manager holds it, too, and keeps it when we end.
    pub is_inherited: bool,
    /// Other daemons may listen at the same address (SO_REUSEPORT). The service manager says that of its own.
    is_shared: bool,
}

/// The address that a socket is bound to.
enum BoundAddress {
    Tcp(SocketAddr),
    /// `file` has the device and the inode of our file, which is removed when the daemon ends, if it is still ours; an
    /// abstract name has none.
    Unix {
        path: PathBuf,
        mode: u32,
        owner: Owner,
        file: Option<(u64, u64)>,
    },
}

/// The device and the inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for BoundAddress {
    fn drop(&mut self) {
        if let Self::Unix { path, file: Some(file), .. } = self
            && identity(path).is_ok_and(|there| there == *file)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl BoundAddress {
    /// Its address as configured.
    fn address(&self) -> Address {
        match self {
            Self::Tcp(address) => Address::Tcp { host: address.ip().to_string(), port: address.port() },
            Self::Unix { path, .. } => Address::Unix { path: path.clone() },
        }
    }
}

impl Listening {
    /// An unbound socket; its clients are local.
    #[cfg(test)]
    pub(super) fn nowhere(socket: OwnedFd, address: &str, listener: ListenerId) -> Self {
        let place = BoundAddress::Unix { path: address.into(), mode: 0o600, owner: Owner::default(), file: None };
        Self { socket, address: address.to_owned(), listener, is_inherited: false, is_shared: false, place }
    }

    /// Sets the permissions of its file, if it has one.
    pub(super) fn set_access(&mut self, mode: u32, owner: Owner) -> Result<(), StartError> {
        let BoundAddress::Unix { path, mode: before, owner: owned, file: Some(_) } = &mut self.place else {
            return Ok(());
        };
        if (*before, *owned) == (mode, owner) {
            return Ok(());
        }
        give_away(path, owner)?;
        let failed = |source| StartError::Bind { address: Address::Unix { path: path.clone() }, source };
        chmod(&*path, Mode::from_raw_mode(mode)).map_err(|error| failed(error.into()))?;
        (*before, *owned) = (mode, owner);
        Ok(())
    }

    /// Lets other daemons listen at its address, if it is a TCP socket that only we hold. Where that ends the kernel may
    /// still let them, once one of them has listened there; but the daemon leaves the address to nobody any more.
    pub(super) fn set_shared(&mut self, is_shared: bool) -> io::Result<()> {
        if self.is_shared != is_shared && !self.is_inherited && !self.is_unix() {
            sockopt::set_socket_reuseport(&self.socket, is_shared)?;
            self.is_shared = is_shared;
        }
        Ok(())
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether its clients are local users rather than network addresses.
    pub(super) fn is_unix(&self) -> bool {
        matches!(self.place, BoundAddress::Unix { .. })
    }

    /// Whether any connection to `other` would also be accepted by this one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (BoundAddress::Tcp(one), BoundAddress::Tcp(other)) => address::covers(*one, *other),
            _ => false,
        }
    }

    /// A copy of its descriptor, if it is a TCP socket that only we hold.
    pub(super) fn own_tcp(&self) -> Option<io::Result<OwnedFd>> {
        (!self.is_inherited && !self.is_unix()).then(|| self.socket.try_clone())
    }

    /// A new socket at the same address, after another process has shut this one down (`ss --kill`, shutdown(2)).
    pub(super) fn open_anew(&self) -> Result<Self, StartError> {
        let failed = |source| StartError::Bind { address: self.place.address(), source };
        match &self.place {
            // The same socket, which we cannot replace because another process holds it, too.
            BoundAddress::Tcp(address) if self.is_inherited => {
                listen(&self.socket, BACKLOG).map_err(|error| failed(error.into()))?;
                let socket = self.socket.try_clone().map_err(failed)?;
                let (address, place) = (self.address.clone(), BoundAddress::Tcp(*address));
                Ok(Self { socket, address, listener: self.listener, is_inherited: true, is_shared: false, place })
            }
            // Only TCP sockets can listen again (unix(7)).
            BoundAddress::Unix { .. } if self.is_inherited => Err(failed(io::ErrorKind::Unsupported.into())),
            BoundAddress::Tcp(address) => {
                let (socket, _) = tcp_socket(*address, Sharing::of(self.is_shared)).map_err(failed)?;
                Ok(Self::tcp(socket, *address, self.listener, self.is_shared))
            }
            BoundAddress::Unix { path, mode, owner, .. } => {
                open_unix(path, *mode, *owner, self.listener, Instant::now())
            }
        }
    }

    fn tcp(socket: OwnedFd, address: SocketAddr, listener: ListenerId, is_shared: bool) -> Self {
        let place = BoundAddress::Tcp(address);
        Self { socket, address: format!("tcp://{address}"), listener, is_inherited: false, is_shared, place }
    }

    /// A service manager's socket at this address.
    fn inherited(inherited: &Inherited, place: BoundAddress, listener: ListenerId) -> Result<Self, StartError> {
        let failed = |error: io::Error| StartError::Bind { address: inherited.address.clone(), source: error };
        let socket = inherited.socket.try_clone().map_err(failed)?;
        // Another process may take a connection before it is accepted here. Processes that share the socket see the
        // flag, and have to handle it (accept(2), NOTES).
        ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
        if matches!(place, BoundAddress::Tcp(_)) {
            tune(&socket).map_err(failed)?;
        }
        let address = format!("{} (passed on by the service manager)", inherited.address);
        Ok(Self { socket, address, listener, is_inherited: true, is_shared: false, place })
    }
}

/// What is missing on a machine where daemons share a port, as the sysctl of this content says.
pub(crate) fn sharing_warning(migrates: &str) -> Option<&'static str> {
    (migrates.trim() == "0").then_some(
        "a connection that arrives just when one of the daemons that share a port closes its socket is reset; with sysctl \
         net.ipv4.tcp_migrate_req=1 another of them gets it",
    )
}

/// The sysctl that says whether connections of a closed socket go to others at its port (ip-sysctl.rst of Linux).
pub(crate) const MIGRATES: &str = "/proc/sys/net/ipv4/tcp_migrate_req";

/// Locks the directory of a socket file that is created, if possible before `until`: any program may lock a directory
/// for as long as it likes. A file without a listener may be one that another daemon has just created and is about to
/// listen on: if two start at the same path, one gets it, and the other an error.
///
/// It is a flock(2) of the directory, which leaves no trace. If the directory is not readable, there is no lock.
fn lock_directory(path: &Path, until: Instant) -> Option<OwnedFd> {
    if address::is_abstract(path) {
        return None;
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let mut pause = FIRST_PAUSE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(lock),
            Err(rustix::io::Errno::WOULDBLOCK) if !left.is_zero() => {}
            Err(_) => return None,
        }
        if pause == FIRST_PAUSE {
            tracing::info!(
                "another program holds a lock (flock) of {}; it may be a daemon that starts, and has {} s to finish",
                directory.display(),
                left.as_secs_f32().ceil()
            );
        }
        std::thread::sleep(pause.min(left));
        pause *= 2;
    }
}

/// One of our TCP sockets, and the client listener that it belongs to; none for the admin listener.
pub(super) type OwnSocket = (Option<ListenerId>, OwnedFd);

/// Opens the sockets of a start or a reload.
pub(super) struct SocketOpener<'a> {
    inherited: &'a [Inherited],
    used: Vec<bool>,
    /// How long to wait for other daemons that are starting.
    others_until: Instant,
    /// TCP sockets that a reload is about to close. Until then new ones may overlap with them (SO_REUSEPORT), as 0.0.0.0
    /// does with 127.0.0.1: they listen until all new ones are open, and stay if one cannot be opened.
    leaving: Vec<Leaving>,
}

/// A TCP socket that a reload is about to close.
struct Leaving {
    socket: OwnedFd,
    /// Its address is shared with other daemons anyway.
    is_shared: bool,
}

/// With whom a TCP socket shares its address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Nobody,
    /// With sockets that a reload is about to close, and with nobody once it listens.
    Leaving,
    /// With other daemons of the same user.
    Daemons,
}

impl Sharing {
    fn of(is_shared: bool) -> Self {
        if is_shared { Self::Daemons } else { Self::Nobody }
    }
}

impl<'a> SocketOpener<'a> {
    /// `inherited` were passed to us; `leaving` are our TCP sockets that are closed once the new ones are open.
    pub(super) fn new(inherited: &'a [Inherited], leaving: Vec<OwnedFd>) -> Self {
        let others_until = Instant::now() + OTHER_STARTS;
        let is_shared = |socket: &OwnedFd| sockopt::socket_reuseport(socket).unwrap_or_default();
        let leaving = leaving.into_iter().map(|socket| Leaving { is_shared: is_shared(&socket), socket }).collect();
        let opening = Self { inherited, used: vec![false; inherited.len()], others_until, leaving };
        opening.may_be_shared(true);
        opening
    }

    /// Whether the addresses of leaving sockets may be shared. If this fails, they stay in use, which is reported.
    fn may_be_shared(&self, may_be: bool) {
        for leaving in self.leaving.iter().filter(|leaving| !leaving.is_shared) {
            let _ = sockopt::set_socket_reuseport(&leaving.socket, may_be);
        }
    }

    /// An inherited socket that is not used.
    pub(super) fn unused(&self) -> Option<&'a Inherited> {
        let unused = self.used.iter().position(|used| !used)?;
        Some(&self.inherited[unused])
    }

    /// Opens every socket of a listener: a name may have several addresses. An inherited socket is used if there is
    /// one.
    ///
    /// The kernel closes a killed daemon's sockets some time after it was reaped, since its ring still holds them: an
    /// address in use is retried for a while.
    fn open(&mut self, listen: &Listen, is_shared: bool, listener: ListenerId) -> Result<Vec<Listening>, StartError> {
        let until = Instant::now() + LAST_HOLDER;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.open_now(listen, is_shared, listener) {
                Err(error) if is_in_use(&error) && Instant::now() + pause < until => std::thread::sleep(pause),
                other => return other,
            }
            pause *= 2;
        }
    }

    /// Opens the sockets of these listeners, and after them those for operators, if `with_admin`.
    pub(super) fn open_all(
        &mut self,
        config: &Config,
        listeners: impl IntoIterator<Item = ListenerId>,
        with_admin: bool,
    ) -> Result<Vec<Listening>, StartError> {
        let mut opened = Vec::new();
        for index in listeners {
            let listener = &config.listeners[index.index()];
            opened.extend(self.open(&listener.listen, listener.reuse_port, index)?);
        }
        if let Some(admin) = config.admin.as_ref().filter(|_| with_admin) {
            opened.extend(self.open(&admin.listen, false, OPERATORS)?.into_iter().take(MOST_OPERATOR_SOCKETS));
        }
        Ok(opened)
    }

    fn open_now(
        &mut self,
        listen: &Listen,
        is_shared: bool,
        listener: ListenerId,
    ) -> Result<Vec<Listening>, StartError> {
        let sharing = match (is_shared, self.leaving.is_empty()) {
            (true, _) => Sharing::Daemons,
            (false, true) => Sharing::Nobody,
            (false, false) => Sharing::Leaving,
        };
        let mut passed_on = |address: Address, place: BoundAddress| {
            let at = self.inherited.iter().position(|inherited| inherited.address == address)?;
            self.used[at] = true;
            Some(Listening::inherited(&self.inherited[at], place, listener))
        };
        match listen {
            Listen::Stdio => Ok(Vec::new()),
            Listen::Tcp { host, port } => open_tcp(host, *port, listener, sharing, |address| {
                passed_on(Address::Tcp { host: address.ip().to_string(), port: *port }, BoundAddress::Tcp(address))
            }),
            Listen::Unix { path, mode, owner } => {
                let is_abstract = address::is_abstract(path);
                // The service manager's is absolute.
                let whole = std::path::absolute(path).ok().filter(|_| !is_abstract).unwrap_or_else(|| path.clone());
                let place = BoundAddress::Unix { path: path.clone(), mode: *mode, owner: *owner, file: None };
                match passed_on(Address::Unix { path: whole }, place) {
                    Some(listening) => Ok(vec![listening?]),
                    None => Ok(vec![open_unix(path, *mode, *owner, listener, self.others_until)?]),
                }
            }
        }
    }
}

impl Drop for SocketOpener<'_> {
    fn drop(&mut self) {
        self.may_be_shared(false);
    }
}

fn is_in_use(error: &StartError) -> bool {
    match error {
        StartError::Bind { source, .. } => source.raw_os_error() == Some(libc::EADDRINUSE),
        StartError::SocketInUse { queue_is_full, is_ours, .. } => !queue_is_full && !is_ours,
        _ => false,
    }
}

fn open_tcp(
    host: &str,
    port: u16,
    listener: ListenerId,
    sharing: Sharing,
    mut passed_on: impl FnMut(SocketAddr) -> Option<Result<Listening, StartError>>,
) -> Result<Vec<Listening>, StartError> {
    let asked = Address::Tcp { host: host.to_owned(), port };
    let mut addresses: Vec<SocketAddr> = match (host, port).to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(source) => return Err(StartError::Resolve { address: asked, source }),
    };
    addresses.dedup();
    if port == 0 {
        // Two addresses would get two ports, but one was requested.
        addresses.truncate(1);
    }
    let mut addresses = VecDeque::from(addresses);
    let mut opened = Vec::new();
    let mut absent = None;
    while let Some(address) = addresses.pop_front() {
        if let Some(listening) = passed_on(address) {
            opened.push(listening?);
            continue;
        }
        match tcp_socket(address, sharing) {
            Ok((socket, address)) => {
                opened.push(Listening::tcp(socket, address, listener, sharing == Sharing::Daemons));
            }
            // localhost resolves to ::1 even on machines without IPv6.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT)) => {
                absent = Some(error);
                addresses.extend(address::without_ipv6(address));
            }
            Err(source) => return Err(StartError::Bind { address: asked, source }),
        }
    }
    match absent {
        Some(source) if opened.is_empty() => Err(StartError::Bind { address: asked, source }),
        _ => Ok(opened),
    }
}

fn tcp_socket(address: SocketAddr, sharing: Sharing) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if address.is_ipv6() {
        // [::] is all interfaces, including IPv4.
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    tune(&socket)?;
    if sharing != Sharing::Nobody {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    if sharing == Sharing::Leaving {
        sockopt::set_socket_reuseport(&socket, false)?;
    }
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Connections inherit these options from the listening socket, which saves system calls for each.
fn tune(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE / 2)?;
    sockopt::set_tcp_keepcnt(socket, QUESTIONS)?;
    set_unsent_bytes(socket)
}

fn set_unsent_bytes(socket: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let value = UNSENT_BYTES;
    // SAFETY: the value lives during the call and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until then for other daemons that create a file there.
fn open_unix(
    path: &Path,
    mode: u32,
    owner: Owner,
    listener: ListenerId,
    others_until: Instant,
) -> Result<Listening, StartError> {
    let _lock = lock_directory(path, others_until);
    let failed = |source: io::Error| StartError::Bind { address: Address::Unix { path: path.to_owned() }, source };
    let address = address::of_unix_socket(path).map_err(failed)?;
    let is_file = address.path().is_some();
    if is_file {
        clear_stale(path, &address)?;
    }
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(|error| failed(error.into()))?;
    // No client may connect before the mode is set: the file gets that of the socket. The umask would affect all
    // threads.
    fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(|error| failed(error.into()))?;
    bind(&socket, &address).map_err(|error| failed(error.into()))?;
    // The file that bind(2) has just created.
    let file = is_file.then(|| identity(path)).transpose().map_err(failed)?;
    let place = BoundAddress::Unix { path: path.to_owned(), mode, owner, file };
    if is_file {
        give_away(path, owner)?;
        chmod(path, Mode::from_raw_mode(mode)).map_err(|error| failed(error.into()))?;
    }
    listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
    Ok(Listening {
        socket,
        address: format!("unix:{}", path.display()),
        listener,
        is_inherited: false,
        is_shared: false,
        place,
    })
}

/// Changes the owner of a socket file.
fn give_away(path: &Path, owner: Owner) -> Result<(), StartError> {
    let (user, group) = (owner.user.map(Uid::from_raw), owner.group.map(Gid::from_raw));
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    chown(path, user, group).map_err(|error| StartError::Owner { path: path.to_owned(), owner, source: error.into() })
}

/// Removes a socket file without a listener.
fn clear_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), StartError> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(StartError::NotASocket { path: path.to_owned() });
    }
    // connect(2) would block on a live listener with a full queue.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| StartError::io("make a socket")(error.into()))?;
    let bind_error = |source| StartError::Bind { address: Address::Unix { path: path.to_owned() }, source };
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(bind_error),
        // We have no permission to find out whether it is in use.
        Err(error @ (rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)) => Err(bind_error(error.into())),
        answer => Err(StartError::SocketInUse {
            path: path.to_owned(),
            queue_is_full: answer == Err(rustix::io::Errno::AGAIN),
            is_ours: matches!(peer_origin::of(&probe, None, true), port::Place::Process { pid, .. } if pid == std::process::id()),
        }),
    }
}
