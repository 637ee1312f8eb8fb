//! The bridge's connection to the daemon, in any protocol: NDJSON, WebSocket messages, or MCP requests over HTTP.
//!
//! NDJSON connections can be half-closed, which shows the daemon that there are no more requests; it then sends the
//! outstanding answers and closes. The others cannot: the bridge closes them once nothing is pending.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{Shutdown, connect_unspec, shutdown};
use tokio::task::{spawn_blocking, spawn_local as spawn};
use tokio::time::timeout;

use super::daemon::{Daemon, Options};
use super::failure::{Ending, Failure};
use super::http::{self, McpClient, McpReceiver};
use super::limits::{LAST_WORDS_LIMIT, say};
use super::stream::{Backend, Stream};
use super::tls::TlsTrust;
use super::websocket::{self, Receiver, Sender};
use crate::bus::id::Id;
use crate::dial::dial;
use crate::kinds::ListenerKind;
use crate::websocket::close;

/// The sending side.
#[derive(Clone)]
pub(super) enum Sink {
    Lines(Rc<Stream>),
    WebSocket(Rc<Sender>),
    Mcp(Rc<McpClient>),
}

/// The receiving side.
pub(super) enum LinkSource {
    Lines(Rc<Stream>),
    WebSocket(Box<Receiver>),
    Mcp(McpReceiver),
}

/// Connects to the daemon. `limit` applies to the connection, and again to a WebSocket handshake.
///
/// # Errors
/// Why it failed.
pub(super) async fn connect(
    options: &Options,
    backend: Backend,
    limit: Duration,
) -> Result<(Sink, LinkSource), Failure> {
    let address = options.daemon.address();
    let open = async || {
        let dialed = spawn_blocking(move || dial(&address, limit)).await.map_err(io::Error::from);
        let socket = dialed.and_then(|socket| socket).map_err(Failure::Dial)?;
        let stream = Stream::new(socket, backend).map(Rc::new).map_err(Failure::Dial)?;
        stream.watch_pulse();
        Ok(stream)
    };
    let url = match &options.daemon {
        Daemon::Lines(_) => {
            let socket = open().await?;
            return Ok((Sink::Lines(Rc::clone(&socket)), LinkSource::Lines(socket)));
        }
        Daemon::Web(url) => url,
    };
    let trust = url.is_secure.then(|| TlsTrust::new(url.host(), options.ca_file.as_deref())).transpose();
    let trust = trust.map_err(Failure::File)?;
    let token = token(options)?;
    if token.is_some() && trust.is_none() && !url.is_here() {
        let scheme = url.kind.scheme();
        say(&format!(
            "the token is sent unencrypted, and anyone who sees it can use it; connect by {scheme}s:// instead"
        ));
    }
    match url.kind {
        ListenerKind::Mcp => {
            let (client, incoming) = http::connect(options, url, token, trust).await?;
            return Ok((Sink::Mcp(client), LinkSource::Mcp(incoming)));
        }
        ListenerKind::WebSocket | ListenerKind::Acp | ListenerKind::Tcp | ListenerKind::Unix => {}
    }
    let tls = trust.map(|trust| trust.begin()).transpose().map_err(Failure::File)?;
    let (sender, incoming) = websocket::connect(open().await?, url, token.as_deref(), tls, limit).await?;
    let urgent = Rc::clone(&sender);
    spawn(async move { urgent.send_urgent().await });
    Ok((Sink::WebSocket(sender), LinkSource::WebSocket(Box::new(incoming))))
}

/// The contents of the token file.
fn token(options: &Options) -> Result<Option<String>, Failure> {
    let Some(path) = &options.token_file else { return Ok(None) };
    let unusable = |why: &dyn std::fmt::Display| Failure::File(format!("--token-file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| unusable(&error))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(unusable(
            &"it must have one token in it and nothing else: letters, digits and punctuation of ASCII",
        ));
    }
    Ok(Some(token.to_owned()))
}

impl Sink {
    /// The only connection, if there is only one.
    fn socket(&self) -> Option<&Stream> {
        match self {
            Self::Lines(socket) => Some(socket),
            Self::WebSocket(sender) => Some(sender.socket()),
            Self::Mcp(_) => None,
        }
    }

    /// Sends lines of stdin. Returns the buffer.
    pub(super) async fn send(&self, lines: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        match self {
            Self::Lines(socket) => socket.write(lines).await,
            Self::WebSocket(sender) => sender.send(lines).await,
            Self::Mcp(client) => (client.send(&lines).await, lines),
        }
    }

    /// Signals the end of stdin, where the protocol can do so before everything is answered.
    pub(super) async fn end(&self) {
        // It fails only if the connection is lost, which the receiving side notices.
        match self {
            Self::Lines(socket) => {
                let _ = shutdown(socket.fd(), Shutdown::Write);
            }
            Self::WebSocket(sender) => {
                let _ = sender.end().await;
            }
            Self::Mcp(client) => client.end().await,
        }
    }

    /// Whether a line that is no message ends nothing but itself.
    pub(super) fn answers_each_line(&self) -> bool {
        matches!(self, Self::Mcp(_))
    }

    /// Stdin has ended and nothing is pending.
    pub(super) fn all_is_answered(&self) {
        match self {
            Self::Lines(_) => {}
            Self::WebSocket(sender) => sender.close_soon(),
            Self::Mcp(client) => client.all_is_answered(),
        }
    }

    /// Aborts the connection, so that the daemon notices at once that the outstanding answers are not wanted.
    pub(super) async fn abandon(&self) {
        match self.socket() {
            // After a half-close, closing a TCP connection sends nothing more, but a reset does. A Unix socket refuses
            // this, and shows its closing anyway.
            Some(socket) => {
                let _ = connect_unspec(socket.fd());
                self.shut_down();
            }
            // An MCP session outlives its connections.
            None => self.close(None).await,
        }
    }

    /// Ends the connection, with a close reason where possible. `ending` is how the daemon ended it, if it did.
    pub(super) async fn close(&self, ending: Option<&Ending>) {
        if let Self::WebSocket(sender) = self {
            let word = ending.map_or(Some((Some(close::NORMAL), "")), Ending::answer);
            if let Some((code, reason)) = word {
                let _ = timeout(LAST_WORDS_LIMIT, sender.say_farewell(code, reason)).await;
            }
        }
        if let Self::Mcp(client) = self {
            let _ = timeout(LAST_WORDS_LIMIT, client.close()).await;
        }
        self.shut_down();
    }

    /// Ends what still uses the connection. The kernel delays the close of a socket with a pending read.
    fn shut_down(&self) {
        if let Self::WebSocket(sender) = self {
            sender.end_urgent();
        }
        if let Some(socket) = self.socket() {
            let _ = shutdown(socket.fd(), Shutdown::Both);
        }
    }
}

impl LinkSource {
    /// Waits for the next bytes, which replace the contents of `buffer`. Returns why there are no more at the end.
    pub(super) async fn receive(&mut self, buffer: Vec<u8>) -> (Result<(), Ending>, Vec<u8>) {
        match self {
            Self::Lines(socket) => {
                let (result, buffer) = socket.read(buffer).await;
                let result = match result {
                    Ok(0) => Err(Ending::Closed),
                    Ok(_) => Ok(()),
                    Err(error) => Err(Ending::Broken(error)),
                };
                (result, buffer)
            }
            Self::WebSocket(incoming) => incoming.receive(buffer).await,
            Self::Mcp(incoming) => incoming.receive(buffer).await,
        }
    }

    /// Requests that will not be answered because their client has cancelled them.
    pub(super) fn given_up(&mut self) -> Vec<Id> {
        match self {
            Self::Lines(_) | Self::WebSocket(_) => Vec::new(),
            Self::Mcp(incoming) => incoming.given_up(),
        }
    }

    /// The daemon's id for the connection in its log, if it has sent one.
    pub(super) fn connection_id(&self) -> Option<&str> {
        match self {
            Self::Lines(_) | Self::Mcp(_) => None,
            Self::WebSocket(incoming) => incoming.connection_id.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::task::{LocalSet, yield_now};

    use super::super::daemon::User;
    use super::*;

    #[test]
    fn a_websocket_that_was_closed_leaves_no_task_that_keeps_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let server = std::thread::spawn(move || {
            let (socket, _) = listener.accept().expect("a connection");
            tungstenite::accept(socket).expect("a WebSocket")
        });
        let daemon = Daemon::parse(&format!("ws://{address}/")).expect("a URL");
        let options = Options::new(daemon, None, None, User::Editor).expect("they fit");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let link = connect(&options, Backend::Threads, Duration::from_secs(60)).await;
            let Ok((Sink::WebSocket(sender), source)) = link else { panic!("the server accepts it") };
            let kept = Rc::downgrade(&sender);
            // The task waits for something to send.
            yield_now().await;
            let sink = Sink::WebSocket(sender);
            sink.close(None).await;
            drop((sink, source));
            yield_now().await;
            assert_eq!(kept.strong_count(), 0);
        });
        drop(server.join().expect("no panic"));
    }
}
