//! The daemon's end of a bridge, whatever is spoken there: lines as they are, lines as the messages of a WebSocket, or as
//! requests of MCP over HTTP.
//!
//! Lines have a half-close, by which the daemon knows that nothing more is asked; then it answers what is due and closes.
//! The others have none: they are closed from here once nothing waits any more.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{Shutdown, connect_unspec, shutdown};
use tokio::task::spawn_local as spawn;
use tokio::time::timeout;

use super::daemon::{Daemon, Options};
use super::dial;
use super::failure::{Ending, Failure};
use super::http::{self, Client, Hearing};
use super::stream::{Means, Stream};
use super::terms::{LAST_WORDS_LIMIT, say};
use super::tls::Trust;
use super::websocket::{self, Receiver, Sender};
use crate::address::WebProtocol;
use crate::bus::id::Id;
use crate::websocket::close;

/// What is said to the daemon.
#[derive(Clone)]
pub(super) enum Sink {
    Lines(Rc<Stream>),
    WebSocket(Rc<Sender>),
    Mcp(Rc<Client>),
}

/// What the daemon says.
pub(super) enum Source {
    Lines(Rc<Stream>),
    WebSocket(Box<Receiver>),
    Mcp(Hearing),
}

/// Connects to the daemon, which has so long to take the connection, and so long to answer the handshake of a WebSocket.
///
/// # Errors
/// Why there is no connection.
pub(super) async fn connect(options: &Options, means: Means, limit: Duration) -> Result<(Sink, Source), Failure> {
    let open = || {
        let socket = dial::dial(&options.daemon.address(), limit).map_err(Failure::Dial)?;
        Stream::new(socket, means).map(Rc::new).map_err(Failure::Dial)
    };
    let url = match &options.daemon {
        Daemon::Lines(_) => {
            let socket = open()?;
            return Ok((Sink::Lines(Rc::clone(&socket)), Source::Lines(socket)));
        }
        Daemon::Web(url) => url,
    };
    let trust = url.is_secure.then(|| Trust::new(url.host(), options.ca_file.as_deref())).transpose();
    let trust = trust.map_err(Failure::File)?;
    let token = token(options)?;
    if token.is_some() && trust.is_none() && !url.is_here() {
        let scheme = url.protocol.scheme();
        say(&format!(
            "the token goes over the network as it is, and whoever sees it can use it; connect by {scheme}s:// instead"
        ));
    }
    if url.protocol == WebProtocol::Mcp {
        let (client, hearing) = http::connect(options, url, token, trust).await?;
        return Ok((Sink::Mcp(client), Source::Mcp(hearing)));
    }
    let tls = trust.map(|trust| trust.begin()).transpose().map_err(Failure::File)?;
    let (sender, receiver) = websocket::connect(open()?, url, token.as_deref(), tls, limit).await?;
    let urgent = Rc::clone(&sender);
    spawn(async move { urgent.send_urgent().await });
    Ok((Sink::WebSocket(sender), Source::WebSocket(Box::new(receiver))))
}

/// What stands in the token file.
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
    /// The one connection, if it is one.
    fn socket(&self) -> Option<&Stream> {
        match self {
            Self::Lines(socket) => Some(socket),
            Self::WebSocket(sender) => Some(sender.socket()),
            Self::Mcp(_) => None,
        }
    }

    /// Passes on what stdin says. The buffer comes back.
    pub(super) async fn send(&self, lines: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        match self {
            Self::Lines(socket) => socket.write(lines).await,
            Self::WebSocket(sender) => sender.send(lines).await,
            Self::Mcp(client) => (client.send(&lines).await, lines),
        }
    }

    /// Says that stdin has ended, as far as that can be said before all is answered.
    pub(super) async fn end(&self) {
        // It fails only if the connection is lost, which the other direction sees.
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

    /// Stdin has ended and nothing waits any more.
    pub(super) fn all_is_answered(&self) {
        match self {
            Self::Lines(_) => {}
            Self::WebSocket(sender) => sender.close_soon(),
            Self::Mcp(client) => client.all_is_answered(),
        }
    }

    /// Breaks the connection off, so that the daemon sees at once that nobody wants the answers that it still owes.
    pub(super) async fn abandon(&self) {
        match self.socket() {
            // After the end of stdin, closing a TCP connection sends nothing more; a reset does. A Unix socket refuses
            // this, and shows its closing anyway.
            Some(socket) => {
                let _ = connect_unspec(socket.fd());
                self.shut_down();
            }
            // It outlives its connections.
            None => self.leave(None).await,
        }
    }

    /// Ends the connection, with a word if it can be said. `ending` is how the daemon has ended it, if it has.
    pub(super) async fn leave(&self, ending: Option<&Ending>) {
        if let Self::WebSocket(sender) = self {
            let word = ending.map_or(Some((Some(close::NORMAL), "")), Ending::answer);
            if let Some((code, reason)) = word {
                let _ = timeout(LAST_WORDS_LIMIT, sender.say_farewell(code, reason)).await;
            }
        }
        if let Self::Mcp(client) = self {
            let _ = timeout(LAST_WORDS_LIMIT, client.leave()).await;
        }
        self.shut_down();
    }

    /// The kernel takes its time with a socket that a read is still under way on.
    fn shut_down(&self) {
        if let Some(socket) = self.socket() {
            let _ = shutdown(socket.fd(), Shutdown::Both);
        }
    }
}

impl Source {
    /// Waits for what comes next and puts it in place of what `buffer` holds. Says why nothing more comes.
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
            Self::WebSocket(receiver) => receiver.receive(buffer).await,
            Self::Mcp(hearing) => hearing.receive(buffer).await,
        }
    }

    /// Requests that no answer is to come for any more, since their client has cancelled them.
    pub(super) fn given_up(&mut self) -> Vec<Id> {
        match self {
            Self::Lines(_) | Self::WebSocket(_) => Vec::new(),
            Self::Mcp(hearing) => hearing.given_up(),
        }
    }

    /// What the daemon calls the connection in its log, if it has said so.
    pub(super) fn connection_id(&self) -> Option<&str> {
        match self {
            Self::Lines(_) | Self::Mcp(_) => None,
            Self::WebSocket(receiver) => receiver.connection_id.as_deref(),
        }
    }
}
