//! The daemon's address and the options of a bridge, as parsed from the command line. It opens nothing and resolves no
//! names.

use std::fmt;
use std::path::PathBuf;

use crate::address::Address;
use crate::kinds::{KINDS, ListenerKind, listed, over_http};
use crate::websocket::client::UpgradeRequest;

/// The options of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub daemon: Daemon,
    /// The file with the daemon's token; not for lines.
    pub token_file: Option<PathBuf>,
    /// The file with additional trusted certificates; `wss://` and `https://` only.
    pub ca_file: Option<PathBuf>,
    /// The user of the connection.
    pub user: User,
}

/// The user of a connection, who has to reconnect if it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// An editor, or another program that starts agents.
    Editor,
    /// A person at a terminal.
    Person,
}

impl User {
    /// How to reconnect.
    pub(super) fn again(self) -> &'static str {
        match self {
            Self::Editor => "start the agent again, which makes a new connection",
            Self::Person => "call again",
        }
    }
}

impl Options {
    /// Combines the options.
    ///
    /// # Errors
    /// They contradict each other.
    pub fn new(
        daemon: Daemon,
        token_file: Option<PathBuf>,
        ca_file: Option<PathBuf>,
        user: User,
    ) -> Result<Self, &'static str> {
        let (is_web, is_secure) = match &daemon {
            Daemon::Lines(_) => (false, false),
            Daemon::Web(url) => (true, url.is_secure),
        };
        if token_file.is_some() && !is_web {
            return Err(
                "--token-file is for wss://, ws://, https:// and http:// alone: the other listeners take no tokens",
            );
        }
        if ca_file.is_some() && !is_secure {
            return Err("--ca-file is for wss:// and https:// alone: the other connections have no certificates");
        }
        Ok(Self { daemon, token_file, ca_file, user })
    }
}

/// A daemon's address and protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// NDJSON, over TCP or a Unix socket.
    Lines(Address),
    /// WebSocket, or MCP over HTTP.
    Web(Url),
}

impl Daemon {
    /// Parses `--connect`: `wss://HOST/PATH`, `ws://HOST:PORT/PATH`, the same with `https://` and `http://`,
    /// `tcp://HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// The expected syntax.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some((written, rest)) = text.split_once("://") {
            let is_one = |scheme: &str| over_http().any(|(row, _)| row.scheme == scheme);
            if is_one(written) {
                return Url::parse(rest, written, false).map(Self::Web);
            }
            if let Some(scheme) = written.strip_suffix('s').filter(|scheme| is_one(scheme)) {
                if !cfg!(feature = "tls") {
                    return Err(format!(
                        "this program was built without TLS: build it with --features tls, or connect by {scheme}:// \
                         through a tunnel that encrypts (ssh -L)"
                    ));
                }
                return Url::parse(rest, scheme, true).map(Self::Web);
            }
        }
        if !text.starts_with("tcp://") && !text.starts_with("unix:") {
            let meant = match Address::from_any(text.strip_prefix("tcp:").unwrap_or(text)) {
                Ok(address) => address.to_string(),
                Err(_) => "tcp://127.0.0.1:9000".to_owned(),
            };
            let lines = KINDS.iter().filter(|row| row.web.is_none());
            let lines = lines.map(|row| match row.needs_path {
                true => format!("{}:{}", row.scheme, row.value),
                false => format!("{}://{}", row.scheme, row.value),
            });
            let web = over_http().flat_map(|(row, web)| {
                let (scheme, path) = (row.scheme, web.path);
                [format!("{scheme}://{}{path}", row.value), format!("{scheme}s://HOST{path}")]
            });
            return Err(format!("write {}, as in {meant}", listed(lines.chain(web), "or")));
        }
        match Address::from_url(text).map_err(|error| error.to_string())? {
            address if address.is_port_zero() => Err(NO_PORT.to_owned()),
            address => Ok(Self::Lines(address)),
        }
    }

    /// Its socket address.
    pub(super) fn address(&self) -> Address {
        match self {
            Self::Lines(address) => address.clone(),
            Self::Web(url) => Address::tcp(url.host.clone(), url.port),
        }
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lines(address) => address.fmt(out),
            Self::Web(url) => url.fmt(out),
        }
    }
}

const NO_PORT: &str = "port 0 cannot be connected to";

/// The URL of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The listener's kind: one that is served over HTTP.
    pub kind: ListenerKind,
    /// With TLS: `wss://` or `https://`.
    pub is_secure: bool,
    /// A host name or an IP address; an IPv6 address has no brackets here.
    host: String,
    /// Never 0.
    port: u16,
    /// The path with an optional query.
    target: String,
}

impl Url {
    fn parse(rest: &str, scheme: &str, is_secure: bool) -> Result<Self, String> {
        let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("a URL is no place for a name or a password; write the token to a file, and --token-file FILE"
                .to_owned());
        }
        let is_complete = match authority.rsplit_once(']') {
            Some((_, port)) => !port.is_empty(),
            None => authority.contains(':'),
        };
        let usual = Self::usual_port(is_secure);
        let address = if is_complete { authority.to_owned() } else { format!("{authority}:{usual}") };
        let address = Address::from_tcp(&address).map_err(|error| error.to_string())?;
        if address.is_port_zero() {
            return Err(NO_PORT.to_owned());
        }
        let (host, port) = address.host_and_port().ok_or("it has no host")?;
        let host = host.to_owned();
        if target.contains('#') {
            return Err("the URL of a listener has no fragment (#)".to_owned());
        }
        // A daemon's usual path, if none is written.
        let kind = ListenerKind::of_url(scheme, target).ok_or("it is no URL of a daemon")?;
        let path = if target.starts_with('/') { "" } else { kind.default_path() };
        let url = Self { kind, is_secure, host, port, target: format!("{path}{target}") };
        UpgradeRequest::new(&url.host_field(), &url.target, [0; 16], None)?;
        Ok(url)
    }

    fn usual_port(is_secure: bool) -> u16 {
        if is_secure { 443 } else { 80 }
    }

    fn scheme(&self) -> String {
        format!("{}{}", self.kind.scheme(), if self.is_secure { "s" } else { "" })
    }

    /// The request target: a path with an optional query.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The host without its zone, which is only meaningful on this machine.
    pub(super) fn host(&self) -> &str {
        self.host.split_once('%').map_or(&self.host, |(host, _zone)| host)
    }

    /// The value of `Host`.
    pub(super) fn host_field(&self) -> String {
        let host = self.host();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        if self.port == Self::usual_port(self.is_secure) { host } else { format!("{host}:{}", self.port) }
    }

    /// Whether the host is this machine.
    pub(super) fn is_here(&self) -> bool {
        let address = self.host().parse::<std::net::IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

/// Shown without the query, which may contain a secret.
impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(out, "{}://{}{path}", self.scheme(), self.host_field())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> Url {
        match Daemon::parse(text) {
            Ok(Daemon::Web(url)) => url,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_url_of_a_websocket_has_a_host_a_port_and_a_path() {
        for (text, host, port, field, target, shown) in [
            ("ws://h/acp", "h", 80, "h", "/acp", "ws://h/acp"),
            ("ws://h:80/", "h", 80, "h", "/", "ws://h/"),
            ("ws://h:9000", "h", 9000, "h:9000", "/acp", "ws://h:9000/acp"),
            ("ws://h?a", "h", 80, "h", "/acp?a", "ws://h/acp"),
            ("http://h:1", "h", 1, "h:1", "/mcp", "http://h:1/mcp"),
            ("ws://127.0.0.1:9000/a/b?c=d", "127.0.0.1", 9000, "127.0.0.1:9000", "/a/b?c=d", "ws://127.0.0.1:9000/a/b"),
            ("ws://[::1]/acp", "::1", 80, "[::1]", "/acp", "ws://[::1]/acp"),
            ("http://h/mcp", "h", 80, "h", "/mcp", "http://h/mcp"),
            ("http://h:9000/mcp/a?b", "h", 9000, "h:9000", "/mcp/a?b", "http://h:9000/mcp/a"),
            ("ws://[fe80::1%eth0]:443/acp", "fe80::1%eth0", 443, "[fe80::1]:443", "/acp", "ws://[fe80::1]:443/acp"),
        ] {
            let url = url(text);
            assert_eq!((url.host.as_str(), url.port, url.target()), (host, port, target), "{text}");
            assert_eq!((url.host_field(), url.to_string()), (field.to_owned(), shown.to_owned()), "{text}");
            assert_eq!(Daemon::Web(url).address(), Address::tcp(host, port));
        }
        assert!(
            url("ws://127.9.9.9/a").is_here() && url("ws://localhost/a").is_here() && url("ws://[::1]/a").is_here()
        );
        assert!(!url("ws://10.0.0.1/a").is_here() && !url("ws://localhost.example/a").is_here());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_usual_port_of_tls_is_443() {
        assert_eq!((url("wss://h/acp").port, url("wss://h:443/acp").host_field()), (443, "h".to_owned()));
        assert_eq!(url("wss://h:80/acp").to_string(), "wss://h:80/acp");
        assert_eq!(
            (url("https://h/mcp").port, url("https://h:8443/mcp").to_string()),
            (443, "https://h:8443/mcp".to_owned())
        );
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_tls_a_url_that_needs_it_says_what_to_do() {
        for text in ["wss://h/acp", "https://h/mcp"] {
            assert!(Daemon::parse(text).unwrap_err().contains("--features tls"), "{text}");
        }
    }

    #[test]
    fn lines_are_asked_for_by_their_address() {
        for text in ["tcp://127.0.0.1:9000", "unix:/run/bus"] {
            assert_eq!(Daemon::parse(text).map(|daemon| daemon.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_wrong_url_says_how_to_write_it() {
        for (text, advice) in [
            ("127.0.0.1:9001", "as in tcp://127.0.0.1:9001"),
            ("tcp:127.0.0.1:9001", "as in tcp://127.0.0.1:9001"),
            ("/run/bus", "as in unix:/run/bus"),
            ("bus", "tcp://HOST:PORT"),
            ("tcp://h:0", "port 0"),
            ("ws://h:0/acp", "port 0"),
            ("http:h:1/mcp", "http://HOST:PORT/mcp"),
            ("ws:///acp", "the host is missing"),
            ("ws://h:/acp", "has no port"),
            ("ws://::1/acp", "write [::1]:9000"),
            ("ws://h:99999/acp", "from 0 to 65535"),
            ("ws://u:p@h/acp", "--token-file"),
            ("ws://h/acp#a", "no fragment"),
            ("ws://h/a b", "the path has characters"),
            ("ws://h\u{fc}/acp", "the host has characters"),
        ] {
            let why = Daemon::parse(text).expect_err(text);
            assert!(why.contains(advice), "{text}: {why}");
        }
    }

    #[test]
    fn a_file_that_would_not_be_used_is_refused() {
        let options = |text: &str, token: bool, ca: bool| {
            let file = |is_there: bool| is_there.then(|| PathBuf::from("file"));
            Options::new(Daemon::parse(text).expect(text), file(token), file(ca), User::Editor)
        };
        assert!(options("tcp://h:1", true, false).is_err_and(|why| why.contains("--token-file")));
        assert!(options("ws://h/acp", false, true).is_err_and(|why| why.contains("--ca-file")));
        assert!(options("unix:/a", false, false).is_ok());
        assert!(options("ws://h/acp", true, false).is_ok());
        #[cfg(feature = "tls")]
        assert!(options("wss://h/acp", true, true).is_ok());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = Daemon::parse(&text);
            let _ = Daemon::parse(&format!("ws://{text}"));
            let _ = Daemon::parse(&format!("ws://h/{text}"));
        }
    }
}
