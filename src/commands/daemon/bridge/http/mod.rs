//! A client of MCP's Streamable HTTP: each line of stdin is a request, and responses become lines, whether they are
//! JSON or event streams. It supports both eras, per message.
//!
//! | event | action |
//! |---|---|
//! | a line arrives | it is posted in order; up to 16 requests are in flight at once, each on a connection of its own, and more wait; subscriptions do not count |
//! | `initialize` is answered | its session and revision are in all later requests; nothing is sent before |
//! | `notifications/initialized` is accepted (202) | the server's own stream is opened, and reopened when it ends (GET) |
//! | a stream breaks before its answer | it is resumed by the id of its last event; without one the request gets an error |
//! | a modern request is cancelled | its connection is closed, which notifies its server |
//! | the session is unknown (404), or the daemon was restarted | a new session is begun with the client's own `initialize`; what the old one had not answered gets an error |
//! | no server takes a request (nothing listens, or 503 with `Retry-After`) | it is held, with all that comes after it, and sent again for 30 s |
//! | stdin ends | all pending requests but subscriptions are awaited, and the session is ended (DELETE) |
//!
//! Reading order: `message` (the kinds of lines), `queue` (when they are sent), `connection`, `events` (responses),
//! `state` (shared by all tasks), `exchange` (one request and its response); this file takes the client's lines and
//! returns the server's.

mod connection;
mod events;
mod exchange;
mod message;
mod queue;
mod state;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use memchr::memchr;
use tokio::sync::mpsc::{self, channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, spawn_local as spawn};
use tokio::time::sleep;

use super::daemon::{Options, Url};
use super::failure::{Ending, Failure};
use super::tls::TlsTrust;
use crate::bus::id::Id;
use connection::HttpConnection;
use message::{MessageKind, OutgoingMessage};
use queue::Queue;
use state::{ClientState, DaemonRoute, Inbound, Open};

/// While more bytes than this are queued, stdin is not read.
const MOST_WAITING: usize = 4 << 20;

/// How long the answer to a cancelled request may still arrive, the same as in the daemon.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// The sending side: takes the lines of stdin.
pub(super) struct McpClient {
    state: Rc<ClientState>,
    queue: RefCell<Queue>,
    /// The incomplete line.
    begun: RefCell<Vec<u8>>,
    /// A message that is not a request is being sent.
    is_sending: Cell<bool>,
    /// A line was sent.
    has_gone: Notify,
    /// How many requests were sent.
    count: Cell<u64>,
    is_over: Cell<bool>,
    feeder: RefCell<Option<AbortHandle>>,
}

/// The receiving side: returns the lines of the server.
pub(super) struct McpReceiver {
    received: mpsc::Receiver<Inbound>,
    given_up: Vec<Id>,
}

/// Makes a first connection, which shows whether the server is there.
///
/// # Errors
/// It cannot be reached.
pub(super) async fn connect(
    options: &Options,
    url: &Url,
    token: Option<String>,
    trust: Option<TlsTrust>,
) -> Result<(Rc<McpClient>, McpReceiver), Failure> {
    let first = HttpConnection::dial(options.daemon.address(), trust.as_ref()).await?;
    let (sender, received) = channel(16);
    let way = DaemonRoute { options: options.clone(), url: url.clone(), token, trust };
    let client = Rc::new(McpClient {
        state: Rc::new(ClientState::new(way, first, sender)),
        queue: RefCell::default(),
        begun: RefCell::default(),
        is_sending: Cell::new(false),
        has_gone: Notify::new(),
        count: Cell::new(0),
        is_over: Cell::new(false),
        feeder: RefCell::default(),
    });
    let feeder = spawn(feed(Rc::clone(&client)));
    client.feeder.replace(Some(feeder.abort_handle()));
    Ok((client, McpReceiver { received, given_up: Vec::new() }))
}

impl McpClient {
    /// Takes lines, or parts of lines. It blocks while the queue is full.
    pub(super) async fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(end) = memchr(b'\n', bytes) {
            self.begun.borrow_mut().extend_from_slice(&bytes[..end]);
            self.push_line();
            bytes = &bytes[end + 1..];
        }
        self.begun.borrow_mut().extend_from_slice(bytes);
        while self.queue.borrow().bytes() > MOST_WAITING {
            self.has_gone.notified().await;
        }
        Ok(())
    }

    /// Handles the end of stdin; the last line needs no newline. Returns when all messages without an answer were sent.
    pub(super) async fn end(&self) {
        self.push_line();
        while self.is_sending.get() || !self.queue.borrow().has_only_requests() {
            self.has_gone.notified().await;
        }
        // No one is left to cancel endless requests, and cancelled ones need no answer.
        let unsent = self.queue.borrow_mut().take_listens();
        for token in unsent {
            self.state.send(Inbound::GivenUp(token)).await;
        }
        let is_vain = |one: &&Open| one.listens || one.is_cancelled;
        let of = |open: &[Open]| open.iter().filter(is_vain).map(|one| one.number).collect::<Vec<_>>();
        let in_vain = of(&self.state.open.borrow());
        for number in in_vain {
            self.break_off(number).await;
        }
    }

    fn push_line(&self) {
        let line = std::mem::take(&mut *self.begun.borrow_mut());
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let message = OutgoingMessage::read(line);
        if let MessageKind::Cancel { token } = &message.kind
            && self.takes_back(token)
        {
            return;
        }
        self.queue.borrow_mut().push(message);
        self.state.wake.notify_one();
    }

    /// Takes back a request that no server has, at once: it may wait for a session that is being begun. Returns whether
    /// there is one.
    fn takes_back(&self, token: &[u8]) -> bool {
        if self.queue.borrow_mut().cancel(token).is_some() {
            return true;
        }
        let mut open = self.state.open.borrow_mut();
        let is_it = |one: &&mut Open| one.is_held && !one.is_cancelled && one.token.as_deref() == Some(token);
        let Some(held) = open.iter_mut().find(is_it) else { return false };
        // Its task notices.
        held.is_cancelled = true;
        drop(open);
        self.state.next_turn();
        true
    }

    /// Closes once nothing is pending. What has no id, such as a line that is no JSON, is answered, too, and is known
    /// only here.
    pub(super) fn all_is_answered(self: &Rc<Self>) {
        if !self.is_over.replace(true) {
            let client = Rc::clone(self);
            spawn(async move {
                while client.owes_an_error() {
                    client.state.has_ended.notified().await;
                }
                client.state.send(Inbound::Over(Ending::Closed)).await;
            });
        }
    }

    /// Whether a line without an id was not answered yet.
    fn owes_an_error(&self) -> bool {
        let is_unidentified = |one: &Open| one.token.is_none();
        self.queue.borrow().has_unidentified() || self.state.open.borrow().iter().any(is_unidentified)
    }

    /// Ends the session and everything in flight.
    pub(super) async fn close(&self) {
        self.feeder.take().into_iter().for_each(|feeder| feeder.abort());
        let listener = self.state.session.borrow_mut().listener.take();
        listener.into_iter().for_each(|listener| listener.abort());
        let open = self.state.open.take();
        open.into_iter().filter_map(|one| one.task).for_each(|task| task.abort());
        exchange::end_session(&self.state).await;
    }

    /// Starts a request, and returns when it was sent.
    async fn begin(&self, message: OutgoingMessage) {
        let number = self.count.get();
        self.count.set(number + 1);
        let open = Open {
            number,
            token: message.token().map(Box::from),
            is_cancelled: false,
            is_held: false,
            is_answered: false,
            is_modern: message.modern.is_some(),
            listens: message.listens(),
            task: None,
        };
        self.state.open.borrow_mut().push(open);
        if message.initializes() {
            self.state.session.borrow_mut().is_beginning = true;
        }
        let (sender, has_gone) = oneshot::channel();
        let task = spawn(exchange::request(Rc::clone(&self.state), number, message, sender));
        if let Some(open) = self.state.open.borrow_mut().iter_mut().find(|one| one.number == number) {
            open.task = Some(task.abort_handle());
        }
        // Later messages must not overtake it. If it has failed, it was answered.
        let _ = has_gone.await;
    }

    /// Cancels a request that the client no longer waits for.
    async fn cancel(self: &Rc<Self>, token: &[u8], message: &OutgoingMessage) {
        let (number, is_modern) = {
            let mut open = self.state.open.borrow_mut();
            let found = open.iter_mut().find(|one| one.token.as_deref() == Some(token) && !one.is_cancelled);
            match found {
                Some(one) => {
                    one.is_cancelled = true;
                    (Some(one.number), one.is_modern)
                }
                None => (None, message.modern.is_some()),
            }
        };
        match number {
            Some(number) if is_modern => self.break_off(number).await,
            // It was answered already.
            None if is_modern => {}
            number => {
                exchange::say_to_server(&self.state, message).await;
                let client = Rc::clone(self);
                spawn(async move {
                    sleep(CANCEL_LIMIT).await;
                    if let Some(number) = number {
                        client.break_off(number).await;
                    }
                });
            }
        }
    }

    /// Closes the connection of a request, which shows a modern server that it was cancelled.
    async fn break_off(&self, number: u64) {
        let Some(open) = self.state.close(number) else { return };
        open.task.into_iter().for_each(|task| task.abort());
        // What its client has cancelled is not waited for.
        if let Some(token) = open.token.filter(|_| !open.is_answered && !open.is_cancelled) {
            self.state.send(Inbound::GivenUp(token)).await;
        }
    }
}

/// Sends queued lines as soon as each may be sent.
async fn feed(client: Rc<McpClient>) {
    loop {
        let has_room = client.state.has_room();
        let is_beginning = client.state.session.borrow().is_beginning;
        let is_holding = client.state.is_holding();
        let next = client.queue.borrow_mut().next(has_room, is_beginning, is_holding);
        let Some(message) = next else {
            client.state.wake.notified().await;
            continue;
        };
        match &message.kind {
            MessageKind::Request { .. } | MessageKind::Other => client.begin(message).await,
            MessageKind::Cancel { token } => {
                client.is_sending.set(true);
                client.cancel(token, &message).await;
            }
            MessageKind::Initialized | MessageKind::Notification | MessageKind::Response => {
                client.is_sending.set(true);
                exchange::say_to_server(&client.state, &message).await;
            }
        }
        client.is_sending.set(false);
        client.has_gone.notify_one();
    }
}

impl McpReceiver {
    /// Waits for a line, which replaces the contents of `text`. Returns why there are no more at the end.
    pub(super) async fn receive(&mut self, mut text: Vec<u8>) -> (Result<(), Ending>, Vec<u8>) {
        text.clear();
        match self.received.recv().await {
            Some(Inbound::Line(line)) => {
                text.extend_from_slice(&line);
                text.push(b'\n');
            }
            Some(Inbound::GivenUp(token)) => self.given_up.extend(Id::parse(&token)),
            Some(Inbound::Over(ending)) => return (Err(ending), text),
            None => return (Err(Ending::Closed), text),
        }
        (Ok(()), text)
    }

    /// Requests that will not be answered, since the last call.
    pub(super) fn given_up(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.given_up)
    }
}
