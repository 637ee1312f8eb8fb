//! What the tasks of a bridge to MCP over HTTP share: the way to the daemon, the session, the requests that are under way,
//! and what was heard.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::super::daemon::{Options, Url};
use super::super::failure::{Ending, Failure};
use super::super::terms::say;
use super::super::tls::Trust;
use super::connection::{Connection, Reply};
use super::message::{self, Message};
use crate::http1::Head;

/// Requests that are under way at once, each on a connection of its own. What else is said takes one more, and so does
/// the server's own stream.
const MOST_REQUESTS: usize = 16;

/// How long a connection is kept that nothing is asked on: many servers close it after 5 s.
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// What comes of the daemon.
pub(super) enum Heard {
    /// A message, without a newline.
    Line(Vec<u8>),
    /// The request of this id, in its canonical form, gets no answer any more.
    GivenUp(Box<[u8]>),
    /// Nothing more comes.
    Over(Ending),
}

/// The session of a client of a revision before 2026-07-28.
#[derive(Default)]
pub(super) struct Session {
    /// What the server calls it, if it does.
    pub id: Option<String>,
    /// The revision that both sides have agreed on.
    pub version: Option<String>,
    /// `initialize` is under way.
    pub is_beginning: bool,
    /// Who reads the server's own stream.
    pub listener: Option<AbortHandle>,
}

/// A request that is under way.
pub(super) struct Open {
    pub number: u64,
    /// Its id in its canonical form.
    pub token: Option<Box<[u8]>>,
    /// Its client does not wait for it any more.
    pub is_cancelled: bool,
    /// Its answer has come.
    pub is_answered: bool,
    /// It is of a revision without sessions.
    pub is_modern: bool,
    /// It has no answer before it is cancelled.
    pub listens: bool,
    /// Ends it, and its connection.
    pub task: Option<AbortHandle>,
}

/// The way to the daemon.
pub(super) struct Way {
    pub options: Options,
    pub url: Url,
    pub token: Option<String>,
    pub trust: Option<Trust>,
}

/// See the module documentation.
pub(super) struct State {
    pub way: Way,
    pub session: RefCell<Session>,
    pub open: RefCell<Vec<Open>>,
    /// A server of MCP has answered.
    pub has_heard: Cell<bool>,
    /// A request has ended, or something waits to go.
    pub wake: Notify,
    idle: RefCell<Vec<(Connection, Instant)>>,
    heard: Sender<Heard>,
}

impl State {
    pub(super) fn new(way: Way, first: Connection, heard: Sender<Heard>) -> Self {
        Self {
            way,
            session: RefCell::default(),
            open: RefCell::default(),
            has_heard: Cell::new(false),
            wake: Notify::new(),
            idle: RefCell::new(vec![(first, Instant::now())]),
            heard,
        }
    }

    /// Whether one more request may be under way. Those that end only when they are cancelled would keep others back for
    /// good.
    pub(super) fn has_room(&self) -> bool {
        self.open.borrow().iter().filter(|one| !one.listens).count() < MOST_REQUESTS
    }

    /// A connection that something can be asked on.
    ///
    /// # Errors
    /// None can be made.
    pub(super) async fn connection(&self) -> Result<Connection, Failure> {
        loop {
            let Some((mut connection, since)) = self.idle.borrow_mut().pop() else { break };
            if since.elapsed() < IDLE_LIMIT && connection.is_quiet() {
                return Ok(connection);
            }
        }
        Connection::dial(self.way.options.daemon.address(), self.way.trust.as_ref()).await
    }

    /// Keeps the connection of an answer that has come for the next one who asks, if another request may follow.
    pub(super) fn keep(&self, reply: Reply) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST_REQUESTS {
            idle.extend(reply.into_connection().map(|connection| (connection, Instant::now())));
        }
    }

    /// The head of a request by this method that all of them have in common, without its end.
    fn head(&self, method: &str, accepts: &str) -> Head {
        let Way { url, token, .. } = &self.way;
        Head::request(method, url.target(), &url.host_field())
            .field_if("Authorization", token.as_ref().map(|token| format!("Bearer {token}")))
            .field("Accept", accepts)
    }

    fn of_session(&self, head: Head) -> Head {
        let session = self.session.borrow();
        head.field_if("Mcp-Session-Id", session.id.as_ref()).field_if("MCP-Protocol-Version", session.version.as_ref())
    }

    /// The head of the request that carries this message.
    pub(super) fn post(&self, message: &Message) -> String {
        let head = self.head("POST", "application/json, text/event-stream").field("Content-Type", "application/json");
        let head = match &message.modern {
            Some(modern) => head
                .field_if("MCP-Protocol-Version", modern.version.as_ref())
                .field_if("Mcp-Method", modern.method.as_ref())
                .field_if("Mcp-Name", modern.name.as_ref()),
            None if message.initializes() => head,
            None => self.of_session(head),
        };
        head.field("Content-Length", message.line.len()).end()
    }

    /// The head of the request for the server's own stream, or for the rest of another one.
    pub(super) fn get(&self, last_id: Option<&str>) -> String {
        // Whatever it is, it may not end the line.
        let last_id = last_id.filter(|id| !id.chars().any(char::is_control));
        self.of_session(self.head("GET", "text/event-stream")).field_if("Last-Event-ID", last_id).end()
    }

    /// The head of the request that ends the session, if there is one.
    pub(super) fn delete(&self) -> Option<String> {
        self.session.borrow().id.as_ref()?;
        Some(self.of_session(self.head("DELETE", "application/json")).end())
    }

    /// Passes on what may be a message. False says that it is none.
    pub(super) async fn pass(&self, line: Vec<u8>) -> bool {
        let Some(answers) = message::answers(&line) else { return false };
        self.has_heard.set(true);
        if let Some(token) = &answers {
            let mut open = self.open.borrow_mut();
            let request = open.iter_mut().find(|one| !one.is_answered && one.token.as_ref() == Some(token));
            if let Some(request) = request {
                request.is_answered = true;
            }
        }
        self.tell(Heard::Line(line)).await;
        true
    }

    /// The same, of the messages of a stream.
    pub(super) async fn pass_all(&self, lines: Vec<Vec<u8>>) {
        for line in lines {
            if !self.pass(line).await {
                say("an event is left out that is no JSON");
            }
        }
    }

    /// Says what was heard. It waits while nobody takes it.
    pub(super) async fn tell(&self, heard: Heard) {
        // Nobody takes it who has ended.
        let _ = self.heard.send(heard).await;
    }

    /// Whether the answer to the request of this number is still to come.
    pub(super) fn awaits(&self, number: u64) -> bool {
        self.open.borrow().iter().any(|one| one.number == number && !one.is_answered && !one.is_cancelled)
    }

    /// A request is over.
    pub(super) fn close(&self, number: u64) -> Option<Open> {
        let mut open = self.open.borrow_mut();
        let at = open.iter().position(|one| one.number == number)?;
        self.wake.notify_one();
        Some(open.swap_remove(at))
    }

    /// Whether there is a session, which the end of its daemon would end.
    pub(super) fn has_session(&self) -> bool {
        self.session.borrow().id.is_some()
    }
}
