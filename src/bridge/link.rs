//! The daemon's end of a bridge, whatever is spoken there: lines as they are, or lines as the messages of a WebSocket.
//!
//! Lines have a half-close, by which the daemon knows that nothing more is asked; then it answers what is due and closes.
//! A WebSocket has none: it is closed from here once nothing waits any more.

use std::io;
use std::rc::Rc;

use rustix::net::{Shutdown, connect_unspec, shutdown};
use tokio::task::spawn_local as spawn;
use tokio::time::timeout;

use super::daemon::{Daemon, Options};
use super::dial;
use super::failure::{Ending, Failure};
use super::stream::{Means, Stream};
use super::terms::{CONNECT_LIMIT, LAST_WORDS_LIMIT, say};
use super::tls::Tls;
use super::websocket::{self, Receiver, Sender};
use crate::websocket::close;

/// What is said to the daemon.
#[derive(Clone)]
pub(super) enum Sink {
    Lines(Rc<Stream>),
    WebSocket(Rc<Sender>),
}

/// What the daemon says.
pub(super) enum Source {
    Lines(Rc<Stream>),
    WebSocket(Box<Receiver>),
}

/// Connects to the daemon.
///
/// # Errors
/// Why there is no connection.
pub(super) async fn connect(options: &Options, means: Means) -> Result<(Sink, Source), Failure> {
    let open = || {
        let socket = dial::dial(&options.daemon.address(), CONNECT_LIMIT).map_err(Failure::Dial)?;
        Stream::new(socket, means).map(Rc::new).map_err(Failure::Dial)
    };
    let url = match &options.daemon {
        Daemon::Lines(_) => {
            let socket = open()?;
            return Ok((Sink::Lines(Rc::clone(&socket)), Source::Lines(socket)));
        }
        Daemon::WebSocket(url) => url,
    };
    let tls = url.is_secure.then(|| Tls::new(url.host(), options.ca_file.as_deref())).transpose();
    let tls = tls.map_err(Failure::File)?;
    let token = token(options)?;
    if token.is_some() && tls.is_none() && !url.is_here() {
        say("the token goes over the network as it is, and whoever sees it can use it; connect by wss:// instead");
    }
    let (sender, receiver) = websocket::connect(open()?, url, token.as_deref(), tls, CONNECT_LIMIT).await?;
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
    fn socket(&self) -> &Stream {
        match self {
            Self::Lines(socket) => socket,
            Self::WebSocket(sender) => sender.socket(),
        }
    }

    /// Passes on what stdin says. The buffer comes back.
    pub(super) async fn send(&self, lines: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        match self {
            Self::Lines(socket) => socket.write(lines).await,
            Self::WebSocket(sender) => sender.send(lines).await,
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
        }
    }

    /// Stdin has ended and nothing waits any more.
    pub(super) fn all_is_answered(&self) {
        if let Self::WebSocket(sender) = self {
            sender.close_soon();
        }
    }

    /// Breaks the connection off, so that the daemon sees at once that nobody wants the answers that it still owes.
    pub(super) fn abandon(&self) {
        // After the end of stdin, closing a TCP connection sends nothing more; a reset does. A Unix socket refuses
        // this, and shows its closing anyway.
        let _ = connect_unspec(self.socket().fd());
        self.shut_down();
    }

    /// Ends the connection, with a word if it can be said. `ending` is how the daemon has ended it, if it has.
    pub(super) async fn leave(&self, ending: Option<&Ending>) {
        if let Self::WebSocket(sender) = self {
            let word = ending.map_or(Some((Some(close::NORMAL), "")), Ending::answer);
            if let Some((code, reason)) = word {
                let _ = timeout(LAST_WORDS_LIMIT, sender.say_farewell(code, reason)).await;
            }
        }
        self.shut_down();
    }

    /// The kernel takes its time with a socket that a read is still under way on.
    fn shut_down(&self) {
        let _ = shutdown(self.socket().fd(), Shutdown::Both);
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
        }
    }

    /// What the daemon calls the connection in its log, if it has said so.
    pub(super) fn connection_id(&self) -> Option<&str> {
        match self {
            Self::Lines(_) => None,
            Self::WebSocket(receiver) => receiver.connection_id.as_deref(),
        }
    }
}
