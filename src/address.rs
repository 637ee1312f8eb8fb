//! The address of a socket: a TCP host and port, or a path in the file system. It has the same syntax on the command
//! line, in the configuration file and in messages.
//!
//! Parsing does no name resolution and no file I/O. [`Address::from_url`] parses the output of [`Address`]'s `Display`
//! back to the same value.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::net::SocketAddrUnix;
use thiserror::Error;

use crate::kinds::{KindRow, ListenerKind, over_http};

pub use crate::access::is_loopback;

/// The hint for a path with a tilde, which only a shell expands.
pub(crate) const TILDE: &str = "~ is not expanded here; write the whole path";

/// Maximum length of a Unix socket's path in bytes: `sun_path` holds 108 including the final zero (unix(7)).
pub const MAX_UNIX_PATH: usize = 107;

/// Maximum length of a host name in bytes (RFC 1035 section 2.3.4).
const MAX_HOST: usize = 253;

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP port on a host.
    Tcp {
        /// A host name or an IP address; an IPv6 address has no brackets here.
        host: String,
        /// The port; 0 lets the kernel choose one, which is then reported.
        port: u16,
    },
    /// A Unix socket at a path, or with an abstract name (unix(7)) if it begins with `@`.
    Unix {
        /// At most [`MAX_UNIX_PATH`] bytes, without a zero byte.
        path: PathBuf,
    },
}

/// Why a text is not an address; the message says how to write it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AddressError(String);

impl Address {
    /// Parses a listen address: `HOST:PORT` or `tcp://HOST:PORT`, or `:PORT` and `*:PORT` for all interfaces. A socket
    /// bound to `[::]` accepts IPv4, too; [`without_ipv6`] is the fallback where IPv6 is unavailable.
    pub fn from_listener(text: &str) -> Result<Self, AddressError> {
        let text = text.strip_prefix("tcp://").unwrap_or(text);
        if let Some(other) = other_than_a_port(text) {
            return Err(error(other));
        }
        match text.strip_prefix('*').unwrap_or(text).strip_prefix(':') {
            Some(port) if !port.contains(':') => Self::from_tcp(&format!("[::]:{port}")),
            _ => Self::from_tcp(text),
        }
    }

    /// The address of a TCP port.
    pub(crate) fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp { host: host.into(), port }
    }

    /// The address of a Unix socket, whose path is known to fit.
    pub(crate) fn of_path(path: impl Into<PathBuf>) -> Self {
        Self::Unix { path: path.into() }
    }

    /// Its host and port, if it is a TCP port.
    pub(crate) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            Self::Tcp { host, port } => Some((host, *port)),
            Self::Unix { .. } => None,
        }
    }

    /// Whether it is the port 0: the kernel chooses one to listen on, and nobody can connect to it.
    pub(crate) fn is_port_zero(&self) -> bool {
        self.host_and_port().is_some_and(|(_, port)| port == 0)
    }

    /// Parses the address of a listener, as it is written in `listeners[]` and behind the flag of its kind. `path` is where
    /// it is served over HTTP; by default, where its kind is.
    pub(crate) fn listened(kind: ListenerKind, text: &str, path: Option<&str>) -> Result<Self, AddressError> {
        match kind {
            ListenerKind::Unix => Self::from_unix_listener(text),
            ListenerKind::Tcp => Self::from_listener(text),
            _ => Self::from_web(text, kind, path.unwrap_or(kind.default_path())),
        }
    }

    /// Parses the listen address of a listener that is served over HTTP: as [`Self::from_listener`] does, or
    /// `ws://HOST:PORT` with the scheme of its kind, with or without the listener's path.
    pub(crate) fn from_web(text: &str, kind: ListenerKind, path: &str) -> Result<Self, AddressError> {
        let scheme = kind.scheme();
        let is_one = |written: &str| over_http().any(|(row, _)| row.scheme == written);
        let rest = match text.split_once("://") {
            Some((written, rest)) if written == scheme => rest,
            Some((written, _)) if written.strip_suffix('s').is_some_and(is_one) => {
                return Err(error(
                    "TLS is for a proxy in front of it; write HOST:PORT, and let the proxy connect there",
                ));
            }
            Some((written, rest)) if is_one(written) => return Err(error(format!("write {scheme}://{rest}"))),
            Some(("tcp", rest)) => {
                return Err(error(format!(
                    "tcp:// is for clients that write lines; write {scheme}://{rest}, or --tcp {rest} for those"
                )));
            }
            _ => return Self::from_listener(text),
        };
        let (host, asked) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !["", "/", path].contains(&asked) {
            return Err(error(format!(
                "it is asked for at {path}, not {asked}; write another path as \"path\" in listeners[] of the configuration"
            )));
        }
        Self::from_listener(host)
    }

    /// Parses `HOST:PORT`: `127.0.0.1:9000`, `localhost:9000`, `[::1]:9000`. Port 0 is allowed.
    ///
    /// An empty host is refused: it is only meaningful for listening, where [`Self::from_listener`] handles it.
    pub fn from_tcp(text: &str) -> Result<Self, AddressError> {
        if let Some((address, _)) = text.split_once('/').filter(|(address, _)| address.contains(':')) {
            return Err(error(format!("a TCP address has no path; write {address}, or for a WebSocket ws://{text}")));
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, after) =
                rest.split_once(']').ok_or_else(|| error("the bracket is not closed; write [::1]:9000"))?;
            let port = after.strip_prefix(':').ok_or_else(|| no_port(text))?;
            let numeric = host.split_once('%').map_or(host, |(numeric, _zone)| numeric);
            if numeric.parse::<Ipv6Addr>().is_err() {
                return Err(error(format!("{host:?} in brackets is not an IPv6 address; write [::1]:9000")));
            }
            (host, port)
        } else {
            let (host, port) = text.rsplit_once(':').ok_or_else(|| no_port(text))?;
            if host.contains(':') {
                return Err(error(
                    "an IPv6 address needs brackets, so that its port can be recognized; write [::1]:9000",
                ));
            }
            (host, port)
        };
        if host.is_empty() || host == "*" {
            return Err(error(format!(
                "the host is missing; write 127.0.0.1:{port} for this machine alone, or [::]:{port} for every network"
            )));
        }
        if host.len() > MAX_HOST || host.chars().any(|c| c.is_whitespace() || c.is_control() || "/@?#".contains(c)) {
            return Err(error(format!("{host:?} is not a host name")));
        }
        if port.is_empty() {
            return Err(no_port(text));
        }
        // `u16::from_str` alone would accept "+80".
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits);
        let port = port.ok_or_else(|| error("the port must be a number from 0 to 65535"))?;
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    /// Parses the listen address of a Unix socket: a path, or `unix:PATH`. It need not be UTF-8.
    pub fn from_unix_listener(path: impl AsRef<Path>) -> Result<Self, AddressError> {
        let Some(text) = path.as_ref().to_str() else { return Self::from_unix(path) };
        if text.starts_with("unix:") {
            return Self::from_url(text);
        }
        let is_ip = |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok();
        match Self::from_listener(text) {
            Ok(Self::Tcp { host, port }) if text.starts_with("tcp://") || is_ip(&host) => {
                let tcp = Self::Tcp { host, port }.to_string().replacen("tcp://", "", 1);
                Err(error(format!("that is a TCP address; write --tcp {tcp}, or \"tcp\": \"{tcp}\" in listeners[]")))
            }
            Err(why) if text.contains("://") => Err(why),
            _ if text.starts_with("~/") => Err(error(TILDE)),
            _ => Self::from_unix(text),
        }
    }

    /// Checks that the kernel can hold the path of a Unix socket.
    pub fn from_unix(path: impl AsRef<Path>) -> Result<Self, AddressError> {
        let path = path.as_ref();
        let length = path.as_os_str().len();
        if length == 0 {
            return Err(error("the socket's path is empty"));
        }
        if path.as_os_str() == "@" {
            return Err(error("the abstract name is empty; write @NAME, or ./@ for a file of that name"));
        }
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(error("the socket's path contains a zero byte"));
        }
        if length > MAX_UNIX_PATH {
            return Err(error(format!(
                "the socket's path has {length} bytes, and the kernel allows {MAX_UNIX_PATH}; choose a shorter one, \
                 for example under /run or /tmp"
            )));
        }
        Ok(Self::Unix { path: path.to_owned() })
    }

    /// Parses an address of either kind as operators write it: `unix:PATH`, a path with a slash, `@NAME`, `HOST:PORT`,
    /// `tcp://HOST:PORT`, or `http://HOST:PORT` for an admin listener.
    pub fn from_any(text: &str) -> Result<Self, AddressError> {
        if let Some(rest) = text.strip_prefix("http://") {
            Self::from_tcp(rest.strip_suffix('/').unwrap_or(rest))
        } else if text.starts_with("tcp://") || text.starts_with("unix:") {
            Self::from_url(text)
        } else if text.contains("://") {
            Err(error("write HOST:PORT, http://HOST:PORT, or unix:PATH"))
        } else if text.starts_with('@') || text.contains('/') {
            Self::from_unix(text)
        } else {
            Self::from_tcp(text)
        }
    }

    /// Parses `tcp://HOST:PORT` or `unix:PATH`, as in `stdio_bus connect --connect`.
    pub fn from_url(text: &str) -> Result<Self, AddressError> {
        if let Some(tcp) = text.strip_prefix("tcp://") {
            Self::from_tcp(tcp)
        } else if let Some(path) = text.strip_prefix("unix:") {
            match path.strip_prefix("//") {
                // `unix:///run/bus.sock` is how other programs write an absolute path.
                Some(absolute) if absolute.starts_with('/') => Self::from_unix(absolute),
                Some(_) => Err(error("a Unix socket has no host; write unix:/run/bus.sock")),
                None => Self::from_unix(path),
            }
        } else {
            Err(error("write tcp://HOST:PORT or unix:PATH, for example tcp://127.0.0.1:9000"))
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::tcp(address.ip().to_string(), address.port())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(out, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(out, "tcp://{host}:{port}"),
            Self::Unix { path } => write!(out, "unix:{}", path.display()),
        }
    }
}

/// The replacement for `[::]`, all interfaces, where IPv6 is unavailable. There is none for other IPv6 addresses.
pub fn without_ipv6(address: SocketAddr) -> Option<SocketAddr> {
    let is_every = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    is_every.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
}

/// Whether a socket at `one` accepts all connections to `other`: `[::]` is all interfaces, including IPv4.
pub fn covers(one: SocketAddr, other: SocketAddr) -> bool {
    let is_every = one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    one.port() == other.port() && (is_every || one.ip() == other.ip())
}

/// Whether the path of a Unix socket is an abstract name, which has no file.
pub fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"@")
}

/// The kernel's address of a Unix socket: `@NAME` is an abstract name, which has no file, anything else is a path
/// (unix(7)).
///
/// # Errors
/// The path is too long or holds a zero byte.
pub fn of_unix_socket(path: &Path) -> io::Result<SocketAddrUnix> {
    let address = match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(path),
    };
    Ok(address?)
}

fn error(message: impl Into<String>) -> AddressError {
    AddressError(message.into())
}

fn no_port(text: &str) -> AddressError {
    if let Some((host, port)) = text.split_once(' ').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        return error(format!("{text:?} has no port; write {host}:{port}"));
    }
    let is_host = !text.is_empty() && !text.contains([':', '*', '/', ' ']);
    let example = if is_host && text.parse::<u16>().is_err() { text } else { "127.0.0.1" };
    error(format!("{text:?} has no port; write HOST:PORT, for example {example}:9000"))
}

/// Suggests what to write if a listener's `HOST:PORT` is something else.
fn other_than_a_port(text: &str) -> Option<String> {
    if text.parse::<u16>().is_ok() {
        return Some(format!("write 127.0.0.1:{text} for this machine alone, or :{text} for every network"));
    }
    if let Some(path) = text.strip_prefix("unix:").or(Some(text).filter(|text| text.starts_with(['/', '.', '@']))) {
        return Some(format!("that is a Unix socket; write --unix {path}, or \"unix\": \"{path}\" in listeners[]"));
    }
    let (scheme, rest) = text.split_once("://")?;
    Some(match ListenerKind::of_url(scheme, &rest[rest.find('/').unwrap_or(rest.len())..]) {
        Some(kind) => {
            let KindRow { key, what, .. } = kind.row();
            format!("that is {what}; write --{key} {text}, or \"{key}\": \"{text}\" in listeners[]")
        }
        None => format!("{scheme}:// is not spoken there; write {rest}"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WEB_SOCKET: ListenerKind = ListenerKind::WebSocket;
    const MCP: ListenerKind = ListenerKind::Mcp;

    #[test]
    fn an_address_covers_those_whose_connections_it_would_accept() {
        let covers = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse().expect("it is an address"));
            covers(one, other)
        };
        for other in ["127.0.0.1:9", "0.0.0.0:9", "[::1]:9", "[::]:9"] {
            assert!(covers("[::]:9", other) && covers(other, other), "{other}");
            assert_eq!(covers("0.0.0.0:9", other), !other.starts_with('['), "{other}");
            assert!(!covers("[::]:8", other) && !covers("127.0.0.2:9", other), "{other}");
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn message(result: Result<Address, AddressError>) -> String {
        result.expect_err("this text must be refused").to_string()
    }

    #[test]
    fn hosts_of_every_kind_are_understood() {
        assert_eq!(Address::from_tcp("127.0.0.1:9000"), Ok(tcp("127.0.0.1", 9000)));
        assert_eq!(Address::from_tcp("localhost:0"), Ok(tcp("localhost", 0)));
        assert_eq!(Address::from_tcp("[::1]:65535"), Ok(tcp("::1", 65535)));
        assert_eq!(Address::from_tcp("[fe80::1%eth0]:80"), Ok(tcp("fe80::1%eth0", 80)));
    }

    #[test]
    fn a_listener_without_a_host_is_on_every_network() {
        assert_eq!(Address::from_listener(":9000"), Ok(tcp("::", 9000)));
        assert_eq!(Address::from_listener("*:9000"), Ok(tcp("::", 9000)));
        assert_eq!(Address::from_listener("[::1]:9000"), Ok(tcp("::1", 9000)));
        assert!(message(Address::from_listener(":")).contains("has no port"));
        assert!(message(Address::from_listener(":http")).contains("from 0 to 65535"));
        assert!(message(Address::from_listener("::1:9000")).contains("write [::1]:9000"));
        assert!(message(Address::from_listener("*")).contains("has no port"));
        assert!(
            message(Address::from_listener("9000")).contains("write 127.0.0.1:9000 for this machine alone, or :9000")
        );
    }

    #[test]
    fn a_listener_may_be_written_with_its_scheme() {
        for text in ["tcp://127.0.0.1:9000", "127.0.0.1:9000"] {
            assert_eq!(Address::from_listener(text), Ok(tcp("127.0.0.1", 9000)));
        }
        assert_eq!(Address::from_listener("tcp://:9000"), Ok(tcp("::", 9000)));
        for text in ["ws://[::1]:9000/acp", "ws://[::1]:9000/", "ws://[::1]:9000", "[::1]:9000"] {
            assert_eq!(Address::from_web(text, WEB_SOCKET, "/acp"), Ok(tcp("::1", 9000)), "{text}");
            assert_eq!(Address::from_web(&text.replace("ws:", "http:"), MCP, "/acp"), Ok(tcp("::1", 9000)), "{text}");
        }
        for text in ["unix:/run/bus", "unix:///run/bus", "/run/bus"] {
            assert_eq!(Address::from_unix_listener(text), Address::from_unix("/run/bus"));
        }
        assert_eq!(Address::from_unix_listener("bus:1"), Address::from_unix("bus:1"), "a name like another");
    }

    #[test]
    fn a_listener_of_another_kind_says_how_to_write_it() {
        for (text, advice) in [
            ("ws://h:1/acp", "--ws ws://h:1/acp"),
            ("unix:/run/bus", "--unix /run/bus"),
            ("./bus", "--unix ./bus"),
            ("http://h:1/mcp", "--http http://h:1/mcp"),
            ("ftp://h:1", "write h:1"),
        ] {
            assert!(message(Address::from_listener(text)).contains(advice), "{text}");
        }
        assert!(message(Address::from_web("ws://h:1/x", WEB_SOCKET, "/acp")).contains("asked for at /acp, not /x"));
        assert!(message(Address::from_web("wss://h:1/acp", WEB_SOCKET, "/acp")).contains("a proxy in front"));
        assert!(message(Address::from_web("http://h:1/acp", WEB_SOCKET, "/acp")).contains("write ws://h:1/acp"));
        assert!(message(Address::from_web("https://h:1/mcp", MCP, "/mcp")).contains("a proxy in front"));
        assert!(message(Address::from_web("ws://h:1/mcp", MCP, "/mcp")).contains("write http://h:1/mcp"));
        assert!(message(Address::from_web("tcp://h:1", WEB_SOCKET, "/acp")).contains("write ws://h:1, or --tcp h:1"));
        for text in ["127.0.0.1:9000", "tcp://127.0.0.1:9000", ":9000"] {
            assert!(message(Address::from_unix_listener(text)).contains(":9000, or \"tcp\": \""), "{text}");
        }
        assert!(message(Address::from_unix_listener("ws://h:1/acp")).contains("--ws"));
        assert_eq!(message(Address::from_unix_listener("~/bus.sock")), TILDE);
    }

    #[test]
    fn a_wrong_address_says_how_to_write_it() {
        assert!(message(Address::from_tcp("9000")).contains("has no port"));
        assert!(message(Address::from_tcp("127.0.0.1 9000")).ends_with("write 127.0.0.1:9000"));
        assert!(message(Address::from_tcp("localhost:")).contains("has no port"));
        assert!(message(Address::from_tcp(":9000")).contains("127.0.0.1:9000 for this machine alone"));
        assert!(message(Address::from_tcp("*:9000")).contains("the host is missing"));
        assert!(message(Address::from_tcp("::1:9000")).contains("write [::1]:9000"));
        assert!(message(Address::from_tcp("[::1")).contains("not closed"));
        assert!(message(Address::from_tcp("[::1]9000")).contains("has no port"));
        assert!(message(Address::from_tcp("[host]:9000")).contains("not an IPv6 address"));
        for port in ["65536", "-1", "+80", "http", "80 ", "0x50"] {
            assert!(message(Address::from_tcp(&format!("localhost:{port}"))).contains("from 0 to 65535"), "{port}");
        }
        assert!(message(Address::from_tcp("a b:9000")).contains("not a host name"));
        assert!(message(Address::from_tcp("x:9000/acp")).contains("write x:9000, or for a WebSocket ws://x:9000/acp"));
        assert!(message(Address::from_tcp("host")).contains("host:9000"));
    }

    #[test]
    fn a_socket_path_must_fit_into_the_kernel() {
        let longest = "x".repeat(MAX_UNIX_PATH);
        assert!(Address::from_unix(&longest).is_ok());
        assert!(message(Address::from_unix(longest + "x")).contains("has 108 bytes"));
        assert!(message(Address::from_unix("")).contains("empty"));
        assert!(message(Address::from_unix("a\0b")).contains("zero byte"));
    }

    #[test]
    fn a_url_names_either_kind() {
        assert_eq!(Address::from_url("tcp://[::1]:1"), Ok(tcp("::1", 1)));
        assert_eq!(Address::from_url("unix:bus.sock"), Address::from_unix("bus.sock"));
        assert_eq!(Address::from_url("unix:/run/bus.sock"), Address::from_unix("/run/bus.sock"));
        assert_eq!(Address::from_url("unix:///run/bus.sock"), Address::from_unix("/run/bus.sock"));
        assert!(message(Address::from_url("unix://host/bus.sock")).contains("has no host"));
        assert!(message(Address::from_url("localhost:9000")).contains("tcp://HOST:PORT"));
    }

    #[test]
    fn either_kind_is_recognized_by_its_syntax() {
        for path in ["/run/admin.sock", "./admin", "@admin"] {
            assert_eq!(Address::from_any(path), Address::from_unix(path));
        }
        assert_eq!(Address::from_any("unix:admin"), Address::from_unix("admin"));
        assert_eq!(Address::from_any("localhost:9001"), Ok(tcp("localhost", 9001)));
        assert_eq!(Address::from_any("tcp://[::1]:9001"), Ok(tcp("::1", 9001)));
        assert_eq!(Address::from_any("http://127.0.0.1:9001/"), Ok(tcp("127.0.0.1", 9001)));
        assert!(message(Address::from_any("admin")).contains("has no port"));
        assert!(message(Address::from_any("https://h:1")).contains("http://HOST:PORT"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            address in prop_oneof![
                ("[a-z0-9.-]{1,40}", any::<u16>()).prop_map(|(host, port)| tcp(&host, port)),
                (any::<u128>(), any::<u16>()).prop_map(|(bits, port)| tcp(&Ipv6Addr::from(bits).to_string(), port)),
                "/?[a-z][a-z0-9/._ -]{0,60}".prop_map(|path| Address::Unix { path: path.into() }),
            ],
        ) {
            prop_assert_eq!(Address::from_url(&address.to_string()), Ok(address));
        }

        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            if let Ok(address) = Address::from_tcp(&text) {
                prop_assert_eq!(Address::from_url(&address.to_string()), Ok(address));
            }
            let _ = Address::from_url(&format!("unix:{text}"));
        }
    }
}
