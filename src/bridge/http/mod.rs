//! The other end of MCP's Streamable HTTP: each line of stdin is a request, and what is answered becomes lines, whether it
//! comes as JSON or as a stream of events. Both eras are spoken, each message by what it says of itself.
//!
//! | what happens | what is done |
//! |---|---|
//! | a line comes | it is posted in its order; up to 16 requests are under way at once, each on a connection of its own, and more wait; subscriptions do not count |
//! | `initialize` is answered | its session and its revision stand in all that follows; nothing goes before |
//! | `notifications/initialized` is taken (202) | what the server says by itself is asked for, again and again (GET) |
//! | a stream breaks before its answer | its rest is asked for by the id of its last event; without one the request gets an error |
//! | a modern request is cancelled | its connection is closed, which is how its server learns it |
//! | the session is not known any more (404) | it is over: all that waits gets an error |
//! | stdin ends | all that waits is awaited, and the session ended (DELETE) |
//!
//! Reading order: `message` (what a line is), `queue` (when it goes), `connection`, `events` (how it is answered), `state`
//! (what all share), `exchange` (one request and its answer); this file is who takes lines and gives them.

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
use super::tls::Trust;
use crate::bus::id::Id;
use connection::Connection;
use message::{Kind, Message};
use queue::Queue;
use state::{Heard, Open, State, Way};

/// Bytes of lines that wait above which stdin is not read.
const MOST_WAITING: usize = 4 << 20;

/// How long an answer may still come that was cancelled, as the daemon itself waits.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Who takes the lines of stdin.
pub(super) struct Client {
    state: Rc<State>,
    queue: RefCell<Queue>,
    /// The line that has begun.
    begun: RefCell<Vec<u8>>,
    /// Something is on its way that is no request.
    is_telling: Cell<bool>,
    /// A line has gone.
    has_gone: Notify,
    /// Requests that have gone.
    count: Cell<u64>,
    is_over: Cell<bool>,
    feeder: RefCell<Option<AbortHandle>>,
}

/// Who gives the lines of the server.
pub(super) struct Hearing {
    heard: mpsc::Receiver<Heard>,
    given_up: Vec<Id>,
}

/// Makes a first connection, which shows whether anybody is there.
///
/// # Errors
/// Nobody is.
pub(super) async fn connect(
    options: &Options,
    url: &Url,
    token: Option<String>,
    trust: Option<Trust>,
) -> Result<(Rc<Client>, Hearing), Failure> {
    let first = Connection::dial(options.daemon.address(), trust.as_ref()).await?;
    let (sender, heard) = channel(16);
    let way = Way { options: options.clone(), url: url.clone(), token, trust };
    let client = Rc::new(Client {
        state: Rc::new(State::new(way, first, sender)),
        queue: RefCell::default(),
        begun: RefCell::default(),
        is_telling: Cell::new(false),
        has_gone: Notify::new(),
        count: Cell::new(0),
        is_over: Cell::new(false),
        feeder: RefCell::default(),
    });
    let feeder = spawn(feed(Rc::clone(&client)));
    client.feeder.replace(Some(feeder.abort_handle()));
    Ok((client, Hearing { heard, given_up: Vec::new() }))
}

impl Client {
    /// Takes lines, or pieces of lines. It waits while too much waits.
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

    /// Stdin has ended; a last line needs no newline. It returns when all is said that nobody answers.
    pub(super) async fn end(&self) {
        self.push_line();
        while self.is_telling.get() || !self.queue.borrow().is_told() {
            self.has_gone.notified().await;
        }
        // Nobody is there any more who could cancel what has no end of its own, and nobody waits for what was cancelled.
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
        if !line.is_empty() {
            self.queue.borrow_mut().push(Message::read(line));
            self.state.wake.notify_one();
        }
    }

    /// Nothing is asked or awaited any more: it is over.
    pub(super) fn all_is_answered(&self) {
        if !self.is_over.replace(true) {
            let state = Rc::clone(&self.state);
            spawn(async move { state.tell(Heard::Over(Ending::Closed)).await });
        }
    }

    /// Ends the session and all that is under way.
    pub(super) async fn leave(&self) {
        self.feeder.take().into_iter().for_each(|feeder| feeder.abort());
        let listener = self.state.session.borrow_mut().listener.take();
        listener.into_iter().for_each(|listener| listener.abort());
        let open = self.state.open.take();
        open.into_iter().filter_map(|one| one.task).for_each(|task| task.abort());
        exchange::end_session(&self.state).await;
    }

    /// Begins a request, and returns when it has gone.
    async fn begin(&self, message: Message) {
        let number = self.count.get();
        self.count.set(number + 1);
        let open = Open {
            number,
            token: message.token().map(Box::from),
            is_cancelled: false,
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
        // What follows it is not to be earlier there. If it has failed, it has been answered.
        let _ = has_gone.await;
    }

    /// The client does not wait for the answer to a request any more, and says so.
    async fn cancel(self: &Rc<Self>, token: &[u8], message: &Message) {
        if self.queue.borrow_mut().cancel(token).is_some() {
            return self.state.tell(Heard::GivenUp(token.into())).await;
        }
        let (number, is_modern) = {
            let mut open = self.state.open.borrow_mut();
            let found = open.iter_mut().find(|one| one.token.as_deref() == Some(token) && !one.is_cancelled);
            match found {
                Some(one) => {
                    one.is_cancelled = !one.is_modern;
                    (Some(one.number), one.is_modern)
                }
                None => (None, message.modern.is_some()),
            }
        };
        match number {
            Some(number) if is_modern => self.break_off(number).await,
            // Its answer has come.
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

    /// Closes the connection of a request, by which a modern server learns that nobody waits for it.
    async fn break_off(&self, number: u64) {
        let Some(open) = self.state.close(number) else { return };
        open.task.into_iter().for_each(|task| task.abort());
        if let Some(token) = open.token.filter(|_| !open.is_answered) {
            self.state.tell(Heard::GivenUp(token)).await;
        }
    }
}

/// Lets lines go, as soon as each may.
async fn feed(client: Rc<Client>) {
    loop {
        let has_room = client.state.has_room();
        let is_beginning = client.state.session.borrow().is_beginning;
        let next = client.queue.borrow_mut().next(has_room, is_beginning);
        let Some(message) = next else {
            client.state.wake.notified().await;
            continue;
        };
        match &message.kind {
            Kind::Request { .. } | Kind::Other => client.begin(message).await,
            Kind::Cancel { token } => {
                client.is_telling.set(true);
                client.cancel(token, &message).await;
            }
            Kind::Initialized | Kind::Notification | Kind::Response => {
                client.is_telling.set(true);
                exchange::say_to_server(&client.state, &message).await;
            }
        }
        client.is_telling.set(false);
        client.has_gone.notify_one();
    }
}

impl Hearing {
    /// Waits for a line, and puts it in place of what `text` holds. Says why nothing more comes.
    pub(super) async fn receive(&mut self, mut text: Vec<u8>) -> (Result<(), Ending>, Vec<u8>) {
        text.clear();
        match self.heard.recv().await {
            Some(Heard::Line(line)) => {
                text.extend_from_slice(&line);
                text.push(b'\n');
            }
            Some(Heard::GivenUp(token)) => self.given_up.extend(Id::parse(&token)),
            Some(Heard::Over(ending)) => return (Err(ending), text),
            None => return (Err(Ending::Closed), text),
        }
        (Ok(()), text)
    }

    /// Requests that no answer is to come for any more, since they were asked for the last time.
    pub(super) fn given_up(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.given_up)
    }
}
