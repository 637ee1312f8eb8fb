//! Why the daemon fails to start or stops with an error: one variant for each cause that an operator can act on.
//!
//! Each message names the likely cause and the remedy, and each variant has one of the documented exit codes
//! ([`exit`]). Failures of one client or worker at run time are not here: the core handles those.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::address::{self, Address, AddressError};
use crate::config::{ConfigError, LogFormat, Owner};

/// The exit codes of the programs; from 64 up, those of sysexits.h.
pub mod exit {
    /// Success, including a graceful shutdown.
    pub const OK: u8 = 0;
    /// Something failed at run time.
    pub const FAILURE: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// io_uring is unavailable, or no daemon at the address (EX_UNAVAILABLE).
    pub const UNAVAILABLE: u8 = 69;
    /// An address cannot be listened on, or the log file cannot be opened (EX_CANTCREAT).
    pub const CANNOT_BIND: u8 = 73;
    /// Output cannot be written (EX_IOERR).
    pub const IO: u8 = 74;
    /// No answer came in time (EX_TEMPFAIL).
    pub const NO_ANSWER: u8 = 75;
    /// The configuration is wrong, or asks for more than this machine allows (EX_CONFIG).
    pub const CONFIGURATION: u8 = 78;
}

/// Why the daemon fails to start or stops with an error.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(Box<dyn std::error::Error + Send + Sync>),

    /// The command line contradicts itself in a way that the parser does not check.
    #[error("{0}")]
    Usage(String),

    /// The kernel refuses io_uring.
    #[error("io_uring cannot be used here: {source}\n{}", ring_remedy(source))]
    NoIoUring {
        /// The error of io_uring_setup(2).
        source: io::Error,
    },

    /// The kernel's io_uring is too old.
    #[error(
        "io_uring of this kernel lacks {missing}\nstdio_bus needs Linux {needed} or newer (uname -r says which one runs)"
    )]
    RingTooOld {
        /// The operation or feature that is missing.
        missing: String,
        /// The first release that has it, such as `6.0`.
        needed: &'static str,
    },

    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}\n{}", bind_remedy(address, source))]
    Bind {
        /// The requested address.
        address: Address,
        /// The error of socket(2), bind(2) or listen(2).
        source: io::Error,
    },

    /// The host of an address has no IP address.
    #[error(
        "cannot listen on {address}: its host is not known: {source}\nwrite an IP address, or add the name to /etc/hosts"
    )]
    Resolve {
        /// The requested address.
        address: Address,
        /// The resolver's error.
        source: io::Error,
    },

    /// `log.file` cannot be opened.
    #[error(
        "cannot open the log file {}: {source}\ncreate its directory, and let the daemon's user write there (log.file)",
        path.display()
    )]
    LogFile {
        /// The file's path.
        path: PathBuf,
        /// The error of open(2).
        source: io::Error,
    },

    /// The folder of what outlives the daemon cannot be used.
    #[error("cannot use the folder {} (state): {source}{}", path.display(), state_remedy(source))]
    State {
        /// The folder's path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },

    /// Another process listens on the Unix socket.
    #[error(
        "cannot listen on unix:{}: {}",
        path.display(),
        if *is_ours { OURS_ALREADY } else { THEIRS_ALREADY }
    )]
    SocketInUse {
        /// The socket's path.
        path: PathBuf,
        /// Its queue of connections is full: it is alive, and will not go away by itself.
        queue_is_full: bool,
        /// It is this process's own socket.
        is_ours: bool,
    },

    /// A file that is not a socket is in the way.
    #[error(
        "cannot listen on unix:{}: the file there is not a socket, so the daemon does not remove it\nchoose another \
         path, or remove the file if nobody needs it",
        path.display()
    )]
    NotASocket { path: PathBuf },

    /// A passed descriptor is not a listening socket, or is not configured.
    #[error("cannot use the socket that the service manager has passed on as descriptor {number}: {why}")]
    Inherited {
        /// The descriptor.
        number: i32,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The file of a Unix socket cannot be given to its owner.
    #[error(
        "cannot give unix:{} to {owner}: {source}\nonly root, or a process with CAP_CHOWN, may give a file to another user, and others only to a group that they are in; leave listeners[].owner out, or use peer_uids",
        path.display()
    )]
    Owner {
        /// The socket's path.
        path: PathBuf,
        /// The intended owner.
        owner: Owner,
        /// The error of chown(2).
        source: io::Error,
    },

    /// The limit of open files is too low for the configuration.
    #[error(
        "at least {needed} file descriptors are needed, and {allowed} are allowed (the hard limit of \
         RLIMIT_NOFILE)\n{needed} = 24 + listeners + 3 × workers + 72 for an admin listener + a client; allow more \
         (LimitNOFILE={needed} in systemd, --ulimit nofile={needed} in Docker, ulimit -Hn {needed} in a shell), or \
         lower pools[].instances and max_instances ({workers} workers now)"
    )]
    FileDescriptors {
        /// Maximum number of descriptors in use at once.
        needed: u64,
        /// The hard limit.
        allowed: u64,
        /// Workers of all pools.
        workers: usize,
    },

    /// A required operation failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation, as in `read the signal mask`.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl StartError {
    /// The program's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::FileDescriptors { .. } | Self::Inherited { .. } => exit::CONFIGURATION,
            Self::Usage(_) => exit::USAGE,
            Self::NoIoUring { .. } | Self::RingTooOld { .. } => exit::UNAVAILABLE,
            Self::Bind { .. }
            | Self::Resolve { .. }
            | Self::LogFile { .. }
            | Self::State { .. }
            | Self::SocketInUse { .. }
            | Self::NotASocket { .. }
            | Self::Owner { .. } => exit::CANNOT_BIND,
            Self::Io { .. } => exit::FAILURE,
        }
    }

    /// The log format in a configuration that cannot be used, if it is set there.
    pub fn log_format(&self) -> Option<LogFormat> {
        match self {
            Self::Config(error) => match error.downcast_ref() {
                Some(ConfigError::Invalid { format, .. }) => Some(*format),
                _ => None,
            },
            _ => None,
        }
    }

    /// For `map_err` on a failed system call.
    pub fn io(doing: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing: doing.to_owned(), source }
    }
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}

impl From<AddressError> for StartError {
    fn from(error: AddressError) -> Self {
        Self::Usage(error.to_string())
    }
}

const THEIRS_ALREADY: &str =
    "a running program listens on it already\nsee which it is (ss -lxp), and stop it or choose another path";
const OURS_ALREADY: &str = "this daemon listens on it already\ntake the path from its listener in one reload, and give it to the other one \
     in the next";

fn ring_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "either the kernel is older than 5.1 or built without it (uname -r; the daemon needs 6.1 for io_uring), \
             or a sandbox such as gVisor hides it; or a \
             container's seccomp profile does, as Podman's: use one that allows io_uring_setup, io_uring_enter and \
             io_uring_register (--security-opt seccomp=PROFILE.json; config/docker/seccomp.json is one)"
        }
        Some(libc::EPERM) => {
            "either it is switched off: sysctl kernel.io_uring_disabled should be 0 (sudo sysctl -w \
             kernel.io_uring_disabled=0); or a container's seccomp profile blocks it: use one that allows \
             io_uring_setup, io_uring_enter and io_uring_register (docker run --security-opt seccomp=PROFILE.json; \
             config/docker/seccomp.json is one)"
        }
        Some(libc::ENOMEM) => {
            "the limit on locked memory is too small: raise it (LimitMEMLOCK=infinity in systemd, --ulimit memlock=-1 \
             in Docker, ulimit -l unlimited in a shell)"
        }
        Some(libc::EMFILE | libc::ENFILE) => "too many files are open: raise the limit (ulimit -n)",
        _ => "strace -e trace=io_uring_setup,io_uring_register,io_uring_enter shows which call fails",
    }
}

fn bind_remedy(address: &Address, error: &io::Error) -> String {
    match (address, error.raw_os_error()) {
        (Address::Tcp { port, .. }, Some(libc::EADDRINUSE)) => {
            format!(
                "another program listens there, or this one at an address that overlaps (ss -ltnp 'sport = :{port}' shows \
                 which); stop it, or choose another port; daemons share one if each has listeners[].reuse_port and they are of \
                 one user; if nobody listens, a connection uses the port (ss -tanp 'sport = :{port}')"
            )
        }
        (Address::Tcp { .. }, Some(libc::EADDRNOTAVAIL)) => {
            "this machine has no such address (ip addr lists them); 127.0.0.1 and [::1] are always there".to_owned()
        }
        (Address::Tcp { port, .. }, Some(libc::EACCES)) => {
            format!("port {port} may need the capability CAP_NET_BIND_SERVICE; choose one above 1023")
        }
        (Address::Tcp { .. }, Some(libc::EAFNOSUPPORT)) => {
            "this kernel has no such protocol; for IPv6 that is common in containers, so try an IPv4 address".to_owned()
        }
        (Address::Unix { path }, Some(libc::ENOENT)) if path.starts_with("~") => address::TILDE.to_owned(),
        (Address::Unix { path }, Some(libc::ENOENT)) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            format!("its directory does not exist; mkdir -p {}", parent.unwrap_or(path).display())
        }
        (Address::Unix { .. }, Some(libc::EACCES | libc::EPERM)) => {
            "its directory, or the socket that is there, is not yours; choose a directory of your own, such as $XDG_RUNTIME_DIR"
                .to_owned()
        }
        (Address::Unix { .. }, Some(libc::EROFS)) => {
            "its file system is read-only; choose a path under /run or /tmp".to_owned()
        }
        (Address::Unix { path }, Some(libc::EADDRINUSE)) if address::is_abstract(path) => {
            "another program has this name (ss -xlp shows which); stop it, or choose another name".to_owned()
        }
        (Address::Unix { path }, Some(libc::EADDRINUSE)) => {
            format!("a file is in the way; if no program uses it, rm {}", path.display())
        }
        _ => "choose another address".to_owned(),
    }
}

/// What to do if the folder of `state` may not be used; other reasons speak for themselves.
fn state_remedy(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { "\nlet the daemon's user read and write there" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp() -> Address {
        Address::from_tcp("127.0.0.1:80").expect("a good address")
    }

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn every_cause_has_its_exit_code() {
        let unreadable: Box<dyn std::error::Error + Send + Sync> = "f: is empty".into();
        let path = PathBuf::from("/run/x");
        let cases = [
            (StartError::Config(unreadable), 78),
            (StartError::Usage("x".to_owned()), 2),
            (StartError::NoIoUring { source: os(libc::EPERM) }, 69),
            (StartError::RingTooOld { missing: "x".to_owned(), needed: "6.0" }, 69),
            (StartError::Bind { address: tcp(), source: os(libc::EADDRINUSE) }, 73),
            (StartError::Resolve { address: tcp(), source: os(libc::ENOENT) }, 73),
            (StartError::SocketInUse { path: path.clone(), queue_is_full: false, is_ours: false }, 73),
            (StartError::NotASocket { path: path.clone() }, 73),
            (StartError::Owner { path, owner: Owner { user: Some(0), group: None }, source: os(libc::EPERM) }, 73),
            (StartError::FileDescriptors { needed: 1100, allowed: 256, workers: 8 }, 78),
            (StartError::Inherited { number: 3, why: "x".to_owned() }, 78),
            (StartError::io("make a pipe")(os(libc::EMFILE)), 1),
        ];
        for (error, code) in cases {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }

    #[test]
    fn a_message_says_what_to_do() {
        let bind = |errno| StartError::Bind { address: tcp(), source: os(errno) }.to_string();
        assert!(bind(libc::EADDRINUSE).contains("ss -ltnp 'sport = :80'"));
        assert!(bind(libc::EADDRINUSE).contains("ss -tanp 'sport = :80'"));
        assert!(bind(libc::EACCES).contains("above 1023"));
        assert!(bind(libc::EADDRNOTAVAIL).contains("no such address"));
        let unix = Address::from_unix("/no/dir/x").expect("a good path");
        let unix = StartError::Bind { address: unix, source: os(libc::ENOENT) }.to_string();
        assert!(unix.starts_with("cannot listen on unix:/no/dir/x: ") && unix.ends_with("mkdir -p /no/dir"), "{unix}");
        let name = Address::from_unix("@bus").expect("a good name");
        let name = StartError::Bind { address: name, source: os(libc::EADDRINUSE) }.to_string();
        assert!(name.contains("ss -xlp") && !name.contains("rm "), "{name}");
        let home = Address::from_unix("~/bus.sock").expect("a good path");
        let home = StartError::Bind { address: home, source: os(libc::ENOENT) }.to_string();
        assert!(home.ends_with("~ is not expanded here; write the whole path"), "{home}");
        let ring = |errno| StartError::NoIoUring { source: os(errno) }.to_string();
        assert!(ring(libc::EPERM).contains("kernel.io_uring_disabled") && ring(libc::EPERM).contains("seccomp"));
        assert!(ring(libc::ENOSYS).contains("uname -r"));
        assert!(ring(libc::ENOMEM).contains("memlock"));
        let budget = StartError::FileDescriptors { needed: 1100, allowed: 256, workers: 8 }.to_string();
        assert!(budget.contains("LimitNOFILE=1100") && budget.contains("pools[].instances"));
    }
}
