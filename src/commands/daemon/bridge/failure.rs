//! Why there is no connection, or why it was lost, and what to do about it: for the editor's log, and for the errors
//! that answer requests. Tokens are never included.

use std::fmt;
use std::io::{self, ErrorKind};

use super::daemon::{Daemon, Options};
use super::guard::NonJsonOutput;
use super::pending::LastWord;
use super::tls::TlsError;
use crate::address::Address;
use crate::bus::report::Reason;
use crate::bus::wrong_protocol;
use crate::kinds::ListenerKind;
use crate::websocket::client::Refused;
use crate::websocket::close::{self, Violation};

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// Connecting failed.
    Dial(io::Error),
    /// A given file cannot be used, and why.
    File(String),
    /// The connection was established, but broke during the handshake.
    Broken(io::Error),
    /// A TLS error.
    Tls(TlsError),
    /// No answer within this time.
    Silent,
    /// The server does not speak WebSocket, and why.
    NoWebSocket(&'static str),
    /// The server does not speak MCP over HTTP, and why.
    NoMcp(String),
    /// The daemon, or a proxy in front of it, refused.
    Refused(Refused),
}

impl Failure {
    /// Whether it may be otherwise in a moment: the daemon is started again, or a balancer has not noticed yet that it ends.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Dial(_) | Self::Broken(_) | Self::Silent => true,
            Self::Refused(refused) => matches!(refused.status, 429 | 502..=504),
            Self::File(_) | Self::Tls(_) | Self::NoWebSocket(_) | Self::NoMcp(_) => false,
        }
    }

    /// The remedy, for the user.
    pub(super) fn remedy(&self, options: &Options) -> String {
        let text = match self {
            Self::Dial(error) => return remedy_of_dial(&options.daemon, error),
            Self::Tls(error) => return error.remedy.clone(),
            Self::Refused(refused) => return remedy_of(refused, &options.daemon, options.token_file.is_some()),
            Self::File(_) => {
                let files = [&options.token_file, &options.ca_file];
                match files.into_iter().flatten().any(|path| path.starts_with("~")) {
                    true => crate::address::TILDE,
                    false => "correct the path, or what the file has in it",
                }
            }
            Self::Broken(_) => {
                "the daemon may have been ended, or something between does not let it through; try again"
            }
            Self::Silent => "something is there that says nothing; check that the daemon has such a listener there",
            Self::NoWebSocket(_) => match &options.daemon {
                Daemon::Web(url) if !url.is_secure => {
                    "something else answers there; check the port, or write wss:// if it speaks TLS, or tcp:// if the \
                     listener is one of the daemon's for lines"
                }
                _ => "something else answers there; check the host, the port and the path",
            },
            Self::NoMcp(_) => {
                "something else answers there, or something between changes what it says; check the host, the port and \
                 the path"
            }
        };
        text.to_owned()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(error) | Self::Broken(error) => error.fmt(out),
            Self::File(why) => out.write_str(why),
            Self::Tls(error) => write!(out, "TLS: {}", error.what),
            Self::Silent => out.write_str("no answer came"),
            Self::NoWebSocket(why) => out.write_str(why),
            Self::NoMcp(why) => out.write_str(why),
            Self::Refused(refused) => write_refused(refused, out),
        }
    }
}

fn write_refused(Refused { status, message, .. }: &Refused, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(out, "it answers {status}")?;
    if message.is_empty() { Ok(()) } else { write!(out, ": {message}") }
}

fn remedy_of(refused: &Refused, daemon: &Daemon, has_token: bool) -> String {
    let path = match daemon {
        Daemon::Web(url) => url.kind.default_path(),
        Daemon::Lines(_) => "",
    };
    let again = refused.retry_after.map(|seconds| format!("; it says to try again in {seconds} s")).unwrap_or_default();
    let text = match refused.status {
        200..=299 => {
            return format!("a web server is there, and no daemon at this path; check it, it is usually {path}{again}");
        }
        300..=399 => match &refused.location {
            Some(location) => return format!("it says to ask {location}; connect to the target of that"),
            None => "it redirects its clients; ask its operator for the right URL",
        },
        401 if !has_token => "it wants a token: write the one that you were given to a file, and --token-file FILE",
        401 => "it does not know the token of --token-file; it may be mistyped, or have been withdrawn",
        403 if !has_token => "this client may not connect here; the daemon's operator can say why",
        403 => "the token is valid but may not connect here; the daemon's operator can say why",
        404 if matches!(daemon, Daemon::Web(url) if url.kind.is_mcp()) && refused.message.contains("ws://") => {
            return format!("a listener for WebSocket answers like this; connect to {}{again}", web_socket_of(daemon));
        }
        404 if matches!(daemon, Daemon::Web(url) if url.target() == path) => {
            return format!(
                "nothing is at this path, the usual one; check the port: another listener may have it{again}"
            );
        }
        404 => return format!("nothing is at this path; check it, it is usually {path}{again}"),
        407 => "a proxy in between requires authentication, which the bridge does not support",
        405 if matches!(daemon, Daemon::Web(url) if url.kind.is_mcp()) => {
            return format!("a listener for WebSocket answers like this; connect to {}{again}", web_socket_of(daemon));
        }
        400 | 405 | 426 => "something between here and the daemon may not let this through; check the URL",
        429 => "there were too many connections from here",
        502 | 504 => "the proxy in front of the daemon does not reach it; its operator has to look",
        503 => "the daemon accepts no clients now: it starts, shuts down, or is full",
        _ => "its log says why",
    };
    format!("{text}{again}")
}

/// The WebSocket URL at the place of an HTTP URL.
fn web_socket_of(daemon: &Daemon) -> String {
    let text = daemon.to_string().replacen("http", "ws", 1);
    let (usual, other) = (ListenerKind::Mcp.default_path(), ListenerKind::WebSocket.default_path());
    text.strip_suffix(usual).map_or_else(|| text.clone(), |place| format!("{place}{other}"))
}

/// Advice after a failure of [`crate::dial`].
fn remedy_of_dial(daemon: &Daemon, error: &io::Error) -> String {
    match (&daemon.address(), error.kind()) {
        (Address::Tcp { port, .. }, ErrorKind::ConnectionRefused) => match daemon {
            Daemon::Web(url) => {
                let key = url.kind.key();
                format!(
                    "nothing listens there; start the daemon with such a listener (\"{key}\" in listeners[]), or what \
                        is in front of it, or correct the port"
                )
            }
            Daemon::Lines(_) => format!(
                "nothing listens there; start the daemon (stdio_bus --config FILE --tcp HOST:{port}), or correct the port"
            ),
        },
        (Address::Tcp { .. }, ErrorKind::TimedOut) => {
            "no answer came; check the host, the port and the firewalls between".to_owned()
        }
        (Address::Tcp { .. }, ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable) => {
            "there is no route to that host; check the address and the network".to_owned()
        }
        (Address::Tcp { host, .. }, _) if error.raw_os_error().is_none() => {
            format!("the host {host} is not known; check its spelling, or write its IP address")
        }
        (Address::Unix { path }, ErrorKind::NotFound) => {
            let path = path.display();
            format!(
                "there is no such socket; start the daemon (stdio_bus --config FILE --unix {path}), or correct the path"
            )
        }
        (Address::Unix { path }, ErrorKind::ConnectionRefused) => {
            let path = path.display();
            format!(
                "the daemon that made this socket does not run any more, or the path is no socket; start the daemon \
                 again (stdio_bus --config FILE --unix {path})"
            )
        }
        (Address::Unix { path }, ErrorKind::PermissionDenied) => {
            format!(
                "the socket belongs to another user (ls -l {}); run as that user, or widen listeners[].mode in the \
                 daemon's configuration",
                path.display()
            )
        }
        (Address::Unix { .. }, ErrorKind::TimedOut) => {
            "the daemon is there but does not accept: it may be stopped, or have reached its limit of connections"
                .to_owned()
        }
        _ => "check that the daemon runs and listens there".to_owned(),
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// It was closed without a reason.
    Closed,
    /// The same, before anything was received.
    ClosedAtOnce,
    /// It broke.
    Broken(io::Error),
    /// The daemon closed the WebSocket, with a reason.
    Said {
        /// A code of RFC 6455, section 7.4.
        code: Option<u16>,
        /// The daemon's reason, without control characters.
        reason: String,
    },
    /// The daemon closed the NDJSON connection, and its last line says why.
    Explained(LastWord),
    /// The `initialize` that was repeated on a new connection got this error, or no answer.
    Uninitialized(Option<LastWord>),
    /// The daemon violated the protocol.
    Wrong(Violation),
    /// Bytes that are not JSON-RPC were received.
    NonJsonOutput(NonJsonOutput),
    /// The daemon, or a proxy in front of it, refuses all requests; and whether a token was sent.
    Refused(Box<(Refused, bool)>),
    /// The MCP session is unknown.
    SessionLost,
}

impl Ending {
    /// From a close frame.
    pub(super) fn said(code: Option<u16>, reason: &str) -> Self {
        let visible = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
        Self::Said { code, reason: reason.chars().map(visible).collect() }
    }

    /// Refines it by the daemon's last line, if there is one, and by whether nothing was received before it on an
    /// NDJSON connection.
    pub(super) fn explained(self, last_word: Option<LastWord>, nothing_came: bool) -> Self {
        match (self, last_word) {
            (Self::Closed | Self::Broken(_), Some(word)) => Self::Explained(word),
            (Self::Closed, None) if nothing_came => Self::ClosedAtOnce,
            (ending, _) => ending,
        }
    }

    /// The beginning of its message, before the daemon's address.
    pub(super) fn headline(&self) -> &'static str {
        match self {
            Self::Refused(_) => "cannot use",
            _ if self.is_elsewhere() => "no daemon answers at",
            _ => "lost the connection to the daemon at",
        }
    }

    /// Whether the daemon may have ended: it has not said that it continues.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Closed | Self::ClosedAtOnce | Self::Broken(_) => true,
            Self::Said { code, .. } => matches!(code, None | Some(close::GOING_AWAY)),
            Self::Explained(word) => word.reason == Reason::ShuttingDown.name(),
            // It ends itself, or its agents are still being started.
            Self::Uninitialized(Some(word)) => {
                [Reason::ShuttingDown, Reason::NoWorker].iter().any(|reason| word.reason == reason.name())
            }
            Self::Uninitialized(None)
            | Self::Wrong(_)
            | Self::NonJsonOutput(_)
            | Self::Refused(_)
            | Self::SessionLost => false,
        }
    }

    /// Whether no worker got what was not answered: a daemon that closes a WebSocket since it shuts down answers all else
    /// before.
    pub(super) fn refuses_unanswered(&self) -> bool {
        matches!(self, Self::Said { code: Some(close::GOING_AWAY), reason } if reason == Reason::ShuttingDown.name())
    }

    /// Whether what was sent was refused, so that nobody has acted on it. A proxy may have passed it on before some
    /// statuses.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(refused) if !matches!(refused.0.status, 500 | 502 | 504))
    }

    /// Whether the peer was not a daemon.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self, Self::NonJsonOutput(foreign) if foreign.is_first)
    }

    /// Whether a line was too long for the daemon.
    pub(super) fn is_too_long(&self) -> bool {
        match self {
            Self::Said { code, .. } => *code == Some(close::TOO_BIG),
            Self::Explained(word) => word.reason == Reason::ClientLineTooLong.name(),
            _ => false,
        }
    }

    /// The close frame to answer it with, if one is due.
    pub(super) fn answer(&self) -> Option<(Option<u16>, &'static str)> {
        match self {
            Self::Closed | Self::ClosedAtOnce | Self::Broken(_) | Self::Explained(_) => None,
            Self::Refused(_) | Self::SessionLost => None,
            Self::Uninitialized(_) => Some((Some(close::NORMAL), "")),
            Self::NonJsonOutput(_) => Some((Some(close::INVALID_DATA), "no JSON-RPC")),
            Self::Said { code, .. } => Some((*code, "")),
            Self::Wrong(fault) => Some((Some(fault.code), fault.reason)),
        }
    }

    /// Details for the errors of pending requests, if there is more to say than that the connection is lost.
    pub(super) fn details(&self) -> Option<String> {
        match self {
            Self::Said { .. } | Self::Uninitialized(_) | Self::Wrong(_) => Some(self.to_string()),
            Self::NonJsonOutput(_) | Self::Refused(_) | Self::SessionLost => Some(self.to_string()),
            Self::Explained(word) => Some(word.message.clone()),
            Self::Closed | Self::ClosedAtOnce | Self::Broken(_) => None,
        }
    }

    /// The remedy, for the user.
    pub(super) fn remedy(&self, options: &Options) -> String {
        let (daemon, again) = (&options.daemon, options.user.again());
        let text = match self {
            Self::Said { code: Some(close::GOING_AWAY), .. } => {
                return format!("it shuts down or restarts; {again}");
            }
            Self::Said { code: Some(close::POLICY_VIOLATION), .. } => {
                "it does not allow that, or no longer; the daemon's operator can say why"
            }
            _ if self.is_too_long() => {
                "limits.max_input_buffer of the daemon, or a limit of what is in front of it, is smaller than that line"
            }
            Self::Said { code: Some(close::TRY_AGAIN_LATER), .. } => "it has no room now; try again later",
            Self::Said { code: Some(close::INTERNAL_ERROR), .. } => {
                return format!("the agent behind it has ended, or it failed itself; {again}");
            }
            Self::Wrong(_) => "either it has a fault, or something between changes what it says",
            Self::NonJsonOutput(foreign) if foreign.is_first => return remedy_of_foreign(foreign, daemon),
            Self::NonJsonOutput(_) => "something that it runs, or something between, writes what is no message",
            Self::Explained(word) => return remedy_of_word(word, again),
            Self::Uninitialized(_) => return format!("the daemon, or the agent behind it, says why; {again}"),
            Self::Refused(refused) => return remedy_of(&refused.0, daemon, refused.1),
            Self::SessionLost => {
                "it was ended there, was not used for too long, or the daemon was restarted; start the client again, \
                 which makes a new session"
            }
            Self::Closed | Self::Broken(_) => {
                return format!("start it if it has ended, or read in its log why; then {again}");
            }
            Self::ClosedAtOnce => {
                "either it has ended; or it runs, and its log says why; or it is no daemon's listener for lines: check \
                 the address"
            }
            Self::Said { .. } => return format!("its log says why; {again}"),
        };
        text.to_owned()
    }
}

fn remedy_of_word(word: &LastWord, again: &str) -> String {
    let is = |reason: Reason| word.reason == reason.name();
    if is(Reason::OwnWorkerEnded) {
        format!("the daemon still runs, and the agent behind it has ended; {again}")
    } else if is(Reason::MemoryLimit) || is(Reason::ConnectionLimit) {
        "it has no room now; try again later".to_owned()
    } else {
        format!("the daemon still runs, and its log says more; {again}")
    }
}

/// Where the daemon may be, if something else answered.
fn remedy_of_foreign(foreign: &NonJsonOutput, daemon: &Daemon) -> String {
    let protocol = wrong_protocol::protocol(&foreign.begin);
    match (daemon, daemon.address(), protocol) {
        (Daemon::Lines(_), Address::Tcp { .. }, Some(name @ (wrong_protocol::HTTP | wrong_protocol::TLS))) => {
            let secure = if name == wrong_protocol::HTTP { "" } else { "s" };
            let place = |kind: ListenerKind| {
                let scheme = format!("{}{secure}", kind.scheme());
                daemon.to_string().replacen("tcp", &scheme, 1) + kind.default_path()
            };
            format!(
                "if that is a daemon's WebSocket listener, connect to {}; if it is one for MCP, to {}; else correct the port",
                place(ListenerKind::WebSocket),
                place(ListenerKind::Mcp)
            )
        }
        (Daemon::Lines(_), Address::Unix { .. }, Some(wrong_protocol::HTTP)) => {
            "that may be a daemon's admin or WebSocket listener; connect to its listener for lines (\"unix\" in \
             listeners[])"
                .to_owned()
        }
        _ => "something else answers there; correct the address".to_owned(),
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => out.write_str("it closed the connection"),
            Self::ClosedAtOnce => out.write_str("it closed the connection without a word"),
            Self::Explained(word) => write!(out, "it closed the connection: {}", word.message.escape_debug()),
            Self::Uninitialized(None) => out.write_str("the repeated initialize was not answered"),
            Self::Uninitialized(Some(word)) => {
                write!(out, "the repeated initialize got an error: {}", word.message.escape_debug())
            }
            Self::Broken(error) => error.fmt(out),
            Self::Refused(refused) => write_refused(&refused.0, out),
            Self::SessionLost => out.write_str("the session is not known there any more (404)"),
            Self::Said { code, reason } => {
                out.write_str("it closed the WebSocket")?;
                if let Some(code) = code {
                    write!(out, " with {code}")?;
                    if let Some(meaning) = meaning(*code) {
                        write!(out, " ({meaning})")?;
                    }
                }
                if reason.is_empty() { Ok(()) } else { write!(out, ": {reason}") }
            }
            Self::Wrong(fault) => write!(out, "what it says is no WebSocket: {}", fault.reason),
            Self::NonJsonOutput(NonJsonOutput { begin, .. }) => {
                let what = wrong_protocol::protocol(begin);
                let what = what.map_or("no JSON-RPC".to_owned(), |name| format!("{name}, not JSON-RPC"));
                write!(out, "what arrives is {what}, and begins \"{}\"", wrong_protocol::begin(begin))
            }
        }
    }
}

/// The meaning of a close code.
fn meaning(code: u16) -> Option<&'static str> {
    Some(match code {
        close::NORMAL => "done",
        close::GOING_AWAY => "going away",
        close::PROTOCOL_ERROR => "protocol error",
        close::UNSUPPORTED => "kind of data not taken",
        close::INVALID_DATA => "invalid data",
        close::POLICY_VIOLATION => "not allowed",
        close::TOO_BIG => "message too long",
        close::INTERNAL_ERROR => "internal error",
        close::TRY_AGAIN_LATER => "try again later",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketType, bind, socket};

    use super::super::daemon::User;
    use super::*;
    use crate::dial::dial;

    fn options(url: &str, token: bool) -> Options {
        let daemon = Daemon::parse(url).expect(url);
        Options::new(daemon, token.then(|| "file".into()), None, User::Editor).expect("they go together")
    }

    fn refused(status: u16, message: &str, retry_after: Option<u32>, location: Option<&str>) -> Failure {
        Failure::Refused(Refused {
            status,
            message: message.to_owned(),
            retry_after,
            location: location.map(str::to_owned),
        })
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        for (status, token, advice) in [
            (200, false, "usually /acp"),
            (401, false, "--token-file FILE"),
            (401, true, "does not know the token"),
            (403, true, "the token is valid but may not"),
            (403, false, "this client may not connect here"),
            (404, true, "another listener may have it"),
            (407, false, "a proxy"),
            (426, false, "may not let this through"),
            (502, false, "does not reach it"),
            (503, false, "accepts no clients now"),
            (599, false, "its log"),
        ] {
            let failure = refused(status, "why", None, None);
            assert_eq!(failure.to_string(), format!("it answers {status}: why"));
            let remedy = failure.remedy(&options("ws://h/acp", token));
            assert!(remedy.contains(advice), "{status}: {remedy}");
        }
        let plain = options("ws://h/acp", false);
        assert_eq!(refused(500, "", None, None).to_string(), "it answers 500");
        assert!(refused(404, "", None, None).remedy(&options("http://h/x", false)).contains("usually /mcp"));
        let other = refused(404, "nothing here but WebSocket, at ws://h/acp", None, None);
        assert!(other.remedy(&options("http://h/mcp", false)).contains("connect to ws://h/acp"));
        assert!(refused(503, "", Some(7), None).remedy(&plain).ends_with("try again in 7 s"));
        assert!(refused(301, "", None, Some("https://a/b")).remedy(&plain).contains("ask https://a/b"));
    }

    #[test]
    fn a_path_that_only_a_shell_expands_is_reported() {
        let options = |path: &str| Options { token_file: Some(path.into()), ..options("ws://h/acp", false) };
        let remedy = |path| Failure::File("no such file".to_owned()).remedy(&options(path));
        assert!(remedy("~/token").contains("is not expanded") && remedy("/token").contains("correct the path"));
    }

    #[test]
    fn a_close_reason_is_reported_without_control_characters() {
        assert_eq!(Ending::said(Some(1001), "drai\u{1b}\n").to_string(), {
            "it closed the WebSocket with 1001 (going away): drai\u{fffd}\u{fffd}"
        });
        assert_eq!(Ending::said(None, "").to_string(), "it closed the WebSocket");
        assert_eq!(Ending::said(Some(4000), "").to_string(), "it closed the WebSocket with 4000");
        let word = |reason: &str| LastWord { reason: reason.to_owned(), message: "why\u{1b}".to_owned() };
        assert_eq!(Ending::Explained(word("a")).to_string(), "it closed the connection: why\\u{1b}");
        assert!(Ending::Explained(word("client_line_too_long")).is_too_long());
        assert!(!Ending::Explained(word("memory_limit")).is_too_long());
        assert!(Ending::said(Some(1009), "").is_too_long() && !Ending::Closed.is_too_long());
        let lost = Ending::SessionLost;
        assert!(lost.details().is_some_and(|details| details.contains("not known there any more")) && !lost.is_gone());
        assert!(Ending::Closed.details().is_none() && Ending::said(None, "").details().is_some());
    }

    fn undialed(daemon: &str) -> (io::Error, String) {
        let daemon = Daemon::parse(daemon).expect("a good address");
        let error = dial(&daemon.address(), Duration::from_millis(200)).expect_err("nothing listens there");
        let remedy = remedy_of_dial(&daemon, &error);
        (error, remedy)
    }

    #[test]
    fn a_daemon_that_never_accepts_is_given_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bus");
        let _listener = UnixListener::bind(&path).expect("a listener");
        let daemon = Address::from_unix(&path).expect("a good path");
        let mut queued = Vec::new();
        let error = loop {
            match dial(&daemon, Duration::from_millis(200)) {
                Ok(socket) => queued.push(socket),
                Err(error) => break error,
            }
            assert!(queued.len() < 10_000, "the queue has no end");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(remedy_of_dial(&Daemon::Lines(daemon), &error).contains("does not accept"));
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bus");
        let url = format!("unix:{}", path.display());
        assert!(undialed(&url).1.contains("--unix"), "{:?}", undialed(&url));
        drop(UnixListener::bind(&path).expect("a listener"));
        assert!(undialed(&url).1.contains("does not run any more"));
        // It does not listen: a free port may be that of another test's listener a moment later.
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let silent = TcpListener::from(socket);
        let free = silent.local_addr().expect("its address");
        assert!(undialed(&format!("tcp://{free}")).1.contains("nothing listens there"));
        assert!(undialed(&format!("ws://{free}/acp")).1.contains("\"ws\" in listeners[]"));
        assert!(undialed(&format!("http://{free}/mcp")).1.contains("\"http\" in listeners[]"));
        // The resolver rejects this name without a query: one label has more than 63 bytes (RFC 1035 2.3.4).
        let nameless = format!("{}.invalid", "x".repeat(64));
        assert!(undialed(&format!("tcp://{nameless}:1")).1.contains(&format!("{nameless} is not known")));
    }
}
