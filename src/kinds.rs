//! The kinds of listeners, one row each. Configuration, command line, admin listener, bridge, `check` and the documents
//! that are written from the table of settings take from here how a kind is named, written and served.
//!
//! What a kind does is elsewhere: `shell` serves it, and `bridge` connects to it.

/// The kinds of listeners for clients, except the one client on stdin and stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Lines over TCP.
    Tcp,
    /// Lines over a Unix socket.
    Unix,
    /// WebSocket (RFC 6455).
    WebSocket,
    /// The Streamable HTTP of MCP.
    Mcp,
    /// The Streamable HTTP of ACP, and WebSocket at the same path.
    Acp,
}

/// What clients speak that are requests of HTTP, over connections that come and go: `shell/http/protocols` serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// The Streamable HTTP of MCP.
    Mcp,
    /// The Streamable HTTP of ACP.
    Acp,
}

impl Requests {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Mcp, Self::Acp];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mcp => "MCP",
            Self::Acp => "ACP",
        }
    }
}

/// What is known of a kind.
pub(crate) struct KindRow {
    pub kind: ListenerKind,
    /// Its key in `listeners[]`; with two dashes before it, its flag.
    pub key: &'static str,
    /// The type of both: in the help of the flag, and in the documentation of the key.
    pub value: &'static str,
    pub written: &'static str,
    /// One sentence of description, for the documentation of the key.
    pub says: &'static str,
    /// The help of the flag: its first sentence, without a full stop, and the rest of the long help.
    pub help: &'static str,
    pub long_help: &'static str,
    /// What listens there, in a sentence of advice: "that is …".
    pub what: &'static str,
    /// What its addresses begin with, before a colon. With an `s` behind it, it is TLS, which another program ends.
    pub scheme: &'static str,
    /// Its address is the path of a file, which need not be UTF-8.
    pub needs_path: bool,
    /// How it is served over HTTP, if it is.
    pub web: Option<Web>,
}

/// How a kind of listener is served over HTTP, whose addresses are URLs.
pub(crate) struct Web {
    /// The path, if none is configured.
    pub path: &'static str,
    /// The protocol of its requests, if clients are served by them: they are no connections, which come and go.
    pub requests: Option<Requests>,
    /// Each pool has a path below it.
    pub has_paths_of_pools: bool,
    /// It is asked for WebSockets: they are pinged (`ping_sec`), and a token may be among the subprotocols.
    pub has_websockets: bool,
    /// `Host` has to be known on every network, not only where it is known to be this machine's.
    pub must_know_host: bool,
    /// Silence ends a client's connection (`idle_timeout_sec`); where a client is no connection, its sessions end.
    pub has_idle_timeout: bool,
}

/// The table, in the order of [`ListenerKind`]. If two kinds have a scheme in common, the first has the URLs with a path of
/// neither.
pub(crate) const KINDS: [KindRow; 5] = [
    KindRow {
        kind: ListenerKind::Tcp,
        key: "tcp",
        value: "HOST:PORT",
        written: "`HOST:PORT`",
        says: "TCP address; with port 0 the kernel chooses the port.",
        help: "Serve many clients on a TCP port",
        long_help: "HOST is a name or an address; an IPv6 address is written in brackets, as in [::1]:9000. Without HOST, :9000 is \
                    every network of this machine, IPv4 and IPv6. With port 0 the kernel chooses a port, which is \
                    reported on stderr.",
        what: "a TCP address",
        scheme: "tcp",
        needs_path: false,
        web: None,
    },
    KindRow {
        kind: ListenerKind::Unix,
        key: "unix",
        value: "PATH",
        written: "1 to 107 bytes",
        says: "Path of a Unix socket, or `@NAME` for an abstract one, which has no file.",
        help: "Serve many clients on a Unix socket",
        long_help: "A socket that an earlier daemon has left behind is replaced; a socket that is in use is not. Only the owner of \
                    the socket may connect, unless listeners[].mode in the configuration permits others.",
        what: "a Unix socket",
        scheme: "unix",
        needs_path: true,
        web: None,
    },
    KindRow {
        kind: ListenerKind::WebSocket,
        key: "ws",
        value: "HOST:PORT",
        written: "`HOST:PORT`, `unix:PATH`",
        says: "WebSocket (RFC 6455); each text message is one line.",
        help: "Serve many clients that speak WebSocket, at ws://HOST:PORT/acp",
        long_help: "listeners[] in the configuration defines who may connect (tokens, pages of browsers). For wss:// put a proxy \
                    in front of the daemon.",
        what: "a WebSocket",
        scheme: "ws",
        needs_path: false,
        web: Some(Web {
            path: "/acp",
            requests: None,
            has_paths_of_pools: false,
            has_websockets: true,
            must_know_host: false,
            has_idle_timeout: true,
        }),
    },
    KindRow {
        kind: ListenerKind::Mcp,
        key: "http",
        value: "HOST:PORT",
        written: "`HOST:PORT`, `unix:PATH`",
        says: "MCP over Streamable HTTP; its pools have to set `assignment`.",
        help: "Serve many clients of MCP over Streamable HTTP, at http://HOST:PORT/mcp",
        long_help: "Each pool is at /mcp/POOL, and has to set its assignment in the configuration. listeners[] in the \
                    configuration defines who may connect. For https:// put a proxy in front of the daemon.",
        what: "MCP over HTTP",
        scheme: "http",
        needs_path: false,
        web: Some(Web {
            path: "/mcp",
            requests: Some(Requests::Mcp),
            has_paths_of_pools: true,
            has_websockets: false,
            must_know_host: true,
            has_idle_timeout: false,
        }),
    },
    KindRow {
        kind: ListenerKind::Acp,
        key: "acp",
        value: "HOST:PORT",
        written: "`HOST:PORT`, `unix:PATH`",
        says: "ACP over Streamable HTTP, and over WebSocket at the same path.",
        help: "Serve many clients of ACP over Streamable HTTP and WebSocket, at http://HOST:PORT/acp",
        long_help: "listeners[] in the configuration defines who may connect (tokens, pages of browsers). For https://, wss:// and \
                    HTTP/2 put a proxy in front of the daemon.",
        what: "ACP over HTTP",
        scheme: "http",
        needs_path: false,
        web: Some(Web {
            path: "/acp",
            requests: Some(Requests::Acp),
            has_paths_of_pools: false,
            has_websockets: true,
            must_know_host: true,
            has_idle_timeout: true,
        }),
    },
];

impl ListenerKind {
    /// The row of the table.
    pub(crate) fn row(self) -> &'static KindRow {
        const TABLE: &[KindRow] = &KINDS;
        &TABLE[self as usize]
    }

    /// How it is served over HTTP, if it is.
    pub(crate) fn web(self) -> Option<&'static Web> {
        self.row().web.as_ref()
    }

    /// Whether its clients speak MCP, so that each is a session and its pools offer both eras of the protocol.
    pub fn is_mcp(self) -> bool {
        self == Self::Mcp
    }

    /// The protocol of its clients' requests, if it serves those over connections that come and go.
    pub(crate) fn requests(self) -> Option<Requests> {
        self.web()?.requests
    }

    /// Its key in `listeners[]`.
    pub fn key(self) -> &'static str {
        self.row().key
    }

    /// What its addresses begin with.
    pub fn scheme(self) -> &'static str {
        self.row().scheme
    }

    /// The path where it is served over HTTP by default; empty if it is not served over HTTP.
    pub fn default_path(self) -> &'static str {
        self.web().map_or("", |web| web.path)
    }

    /// The kind of the listener at a URL, from its scheme and what follows the host.
    pub(crate) fn of_url(scheme: &str, target: &str) -> Option<Self> {
        let mut served = over_http().filter(|(row, _)| row.scheme == scheme);
        let first = served.next()?;
        let mut all = [first].into_iter().chain(served);
        let named = all.find(|(_, web)| target.starts_with(web.path));
        Some(named.unwrap_or(first).0.kind)
    }

    /// The URL of its listener at a socket, `tcp://HOST:PORT` or `unix:PATH`; the socket's own address for lines.
    pub(crate) fn url(self, socket: &str, path: &str) -> String {
        let KindRow { scheme, web, .. } = self.row();
        match (web, socket.strip_prefix("tcp://"), socket.strip_prefix("unix:")) {
            (Some(_), Some(host), _) => format!("{scheme}://{host}{path}"),
            (Some(_), _, Some(file)) => format!("{scheme}+unix:{file}:{path}"),
            _ => socket.to_owned(),
        }
    }
}

/// The rows of the kinds that are served over HTTP.
pub(crate) fn over_http() -> impl Iterator<Item = (&'static KindRow, &'static Web)> + Clone {
    const TABLE: &[KindRow] = &KINDS;
    TABLE.iter().filter_map(|row| Some((row, row.web.as_ref()?)))
}

/// An address without its scheme, as [`ListenerKind::url`] and [`crate::address::Address`] write it.
pub(crate) fn without_scheme(address: &str) -> &str {
    let is_known = |scheme: &str| KINDS.iter().any(|row| row.scheme == scheme);
    match address.split_once(':') {
        Some(("unix", path)) => path,
        Some((scheme, rest)) if scheme.strip_suffix("+unix").is_some_and(is_known) => rest,
        Some((scheme, rest)) if is_known(scheme) => rest.strip_prefix("//").unwrap_or(address),
        _ => address,
    }
}

/// Words as in a sentence: "a, b or c".
pub(crate) fn listed<S: AsRef<str>>(words: impl IntoIterator<Item = S>, last: &str) -> String {
    let words: Vec<S> = words.into_iter().collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((end, [])) => (*end).to_owned(),
        Some((end, before)) => format!("{} {last} {end}", before.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_rows_of_the_kinds_agree_with_each_other() {
        let keys: BTreeSet<&str> = KINDS.iter().map(|row| row.key).collect();
        assert_eq!(keys.len(), KINDS.len(), "each has a key of its own");
        for row in &KINDS {
            assert_eq!(row.kind.row().key, row.key, "the rows are in the order of the kinds");
            assert!(!row.help.ends_with('.') && row.long_help.ends_with('.') && row.says.ends_with('.'), "{}", row.key);
        }
        for (row, web) in over_http() {
            assert!(web.path.starts_with('/') && !web.path.ends_with('/'), "{}", row.key);
            assert_eq!(ListenerKind::of_url(row.scheme, web.path), Some(row.kind), "scheme and path name the kind");
        }
    }

    #[test]
    fn a_url_of_an_unusual_path_belongs_to_the_first_kind_with_its_scheme() {
        assert_eq!(ListenerKind::of_url("http", "/tools"), Some(ListenerKind::Mcp));
        assert_eq!(ListenerKind::of_url("ws", ""), Some(ListenerKind::WebSocket));
        for scheme in ["tcp", "unix", "ftp", ""] {
            assert_eq!(ListenerKind::of_url(scheme, "/acp"), None, "{scheme}");
        }
    }

    #[test]
    fn an_address_loses_its_scheme_and_nothing_else() {
        for (address, rest) in [
            ("tcp://[::1]:9000", "[::1]:9000"),
            ("ws://h:9000/acp", "h:9000/acp"),
            ("http+unix:/run/a:/mcp", "/run/a:/mcp"),
            ("unix:/run/a", "/run/a"),
            ("unix:@a", "@a"),
            ("h:9000", "h:9000"),
            ("ws:9000", "ws:9000"),
            ("http:9000", "http:9000"),
            ("/run/a:b", "/run/a:b"),
            ("[::1]:9000", "[::1]:9000"),
            ("ftp://h", "ftp://h"),
        ] {
            assert_eq!(without_scheme(address), rest, "{address}");
        }
    }

    #[test]
    fn words_are_listed_as_in_a_sentence() {
        assert_eq!(listed(["a", "b", "c"], "or"), "a, b or c");
        assert_eq!((listed(["a"], "or"), listed([""; 0], "or")), ("a".to_owned(), String::new()));
    }
}
