//! The state shared by the tasks of an HTTP bridge: connections to the daemon, the session, requests in flight, and
//! received messages.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::super::daemon::{Options, Url};
use super::super::failure::{Ending, Failure};
use super::super::limits::say;
use super::super::tls::TlsTrust;
use super::connection::{HttpConnection, Reply};
use super::message::{self, OutgoingMessage};
use crate::http1::Head;
use crate::mcp::head::{SESSION, VERSION};

/// Maximum number of requests in flight, each on a connection of its own. Other messages need one more, and so does the
/// server's own stream.
const MOST_REQUESTS: usize = 16;

/// How long an idle connection is kept: many servers close it after 5 s.
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// What was received from the daemon.
pub(super) enum Inbound {
    /// A message, without a newline.
    Line(Vec<u8>),
    /// The request with this canonical id will not be answered.
    GivenUp(Box<[u8]>),
    /// The end of the connection.
    Over(Ending),
}

/// The session, with a revision before 2026-07-28.
#[derive(Default)]
pub(super) struct HttpSession {
    /// The server's session id, if it has set one.
    pub id: Option<String>,
    /// The negotiated revision.
    pub version: Option<String>,
    /// `initialize` is in flight.
    pub is_beginning: bool,
    /// The task that reads the server's own stream.
    pub listener: Option<AbortHandle>,
}

/// The lines that begin a session.
#[derive(Clone)]
pub(super) struct Initialization {
    pub initialize: Vec<u8>,
    /// `notifications/initialized`, once it was accepted.
    pub initialized: Option<Vec<u8>>,
}

/// A request in flight.
pub(super) struct Open {
    pub number: u64,
    /// Its canonical id.
    pub token: Option<Box<[u8]>>,
    /// Its client has cancelled it.
    pub is_cancelled: bool,
    /// No server has it: it is about to be sent again.
    pub is_held: bool,
    /// It was answered.
    pub is_answered: bool,
    /// Its revision has no sessions.
    pub is_modern: bool,
    /// It has no answer until it is cancelled.
    pub listens: bool,
    /// Aborts it, and closes its connection.
    pub task: Option<AbortHandle>,
}

impl Open {
    /// Whether it waits to be sent again.
    fn waits(&self) -> bool {
        self.is_held && !self.is_cancelled
    }
}

/// How to reach the daemon.
pub(super) struct DaemonRoute {
    pub options: Options,
    pub url: Url,
    pub token: Option<String>,
    pub trust: Option<TlsTrust>,
}

pub(super) struct ClientState {
    pub way: DaemonRoute,
    pub session: RefCell<HttpSession>,
    pub open: RefCell<Vec<Open>>,
    /// An MCP server has answered.
    pub has_received: Cell<bool>,
    /// A request has ended, or a line was queued.
    pub wake: Notify,
    /// A request has ended, for who waits for the last one.
    pub has_ended: Notify,
    /// A held request has been sent, or given up.
    has_turn: Notify,
    /// Since when requests are not taken.
    troubled_since: Cell<Option<Instant>>,
    /// What the client began its session with, once that was answered.
    pub opening: RefCell<Option<Initialization>>,
    /// How many sessions were begun anew, one at a time.
    pub renewals: Cell<u64>,
    pub renewing: Mutex<()>,
    idle: RefCell<Vec<(HttpConnection, Instant)>>,
    received: Sender<Inbound>,
}

impl ClientState {
    pub(super) fn new(way: DaemonRoute, first: HttpConnection, received: Sender<Inbound>) -> Self {
        Self {
            way,
            session: RefCell::default(),
            open: RefCell::default(),
            has_received: Cell::new(false),
            wake: Notify::new(),
            has_ended: Notify::new(),
            has_turn: Notify::new(),
            troubled_since: Cell::new(None),
            opening: RefCell::default(),
            renewals: Cell::new(0),
            renewing: Mutex::new(()),
            idle: RefCell::new(vec![(first, Instant::now())]),
            received,
        }
    }

    /// Whether another request may be in flight. Endless requests do not count: they would block others for good.
    pub(super) fn has_room(&self) -> bool {
        self.open.borrow().iter().filter(|one| !one.listens).count() < MOST_REQUESTS
    }

    /// A connection for a request.
    ///
    /// # Errors
    /// None can be established.
    pub(super) async fn connection(&self) -> Result<HttpConnection, Failure> {
        loop {
            let Some((mut connection, since)) = self.idle.borrow_mut().pop() else { break };
            if since.elapsed() < IDLE_LIMIT && connection.is_quiet() {
                return Ok(connection);
            }
        }
        HttpConnection::dial(self.way.options.daemon.address(), self.way.trust.as_ref()).await
    }

    /// Keeps the connection of a complete response for the next request, if it can be reused.
    pub(super) fn keep(&self, reply: Reply) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST_REQUESTS {
            idle.extend(reply.into_connection().map(|connection| (connection, Instant::now())));
        }
    }

    /// The common part of all request heads, without the final empty line.
    fn head(&self, method: &str, accepts: &str) -> Head {
        let DaemonRoute { url, token, .. } = &self.way;
        Head::request(method, url.target(), &url.host_field())
            .field_if("Authorization", token.as_ref().map(|token| format!("Bearer {token}")))
            .field("Accept", accepts)
    }

    fn of_session(&self, head: Head) -> Head {
        let session = self.session.borrow();
        head.field_if(SESSION, session.id.as_ref()).field_if(VERSION, session.version.as_ref())
    }

    /// The head of the request for this message.
    pub(super) fn post(&self, message: &OutgoingMessage) -> String {
        let head = self.head("POST", "application/json, text/event-stream").field("Content-Type", "application/json");
        let head = match &message.modern {
            Some(modern) => modern.fields().fold(head, |head, (field, value)| head.field(field, value)),
            None if message.initializes() => head,
            None => self.of_session(head),
        };
        head.field("Content-Length", message.line.len()).end()
    }

    /// The head of the request that opens the server's own stream, or resumes another one.
    pub(super) fn get(&self, last_id: Option<&str>) -> String {
        // Whatever it contains, it must not end the line.
        let last_id = last_id.filter(|id| !id.chars().any(char::is_control));
        self.of_session(self.head("GET", "text/event-stream")).field_if("Last-Event-ID", last_id).end()
    }

    /// The head of the request that ends the session, if there is one.
    pub(super) fn delete(&self) -> Option<String> {
        self.session.borrow().id.as_ref()?;
        Some(self.of_session(self.head("DELETE", "application/json")).end())
    }

    /// Passes on a line if it is a message; false if it is not. `number` is that of the request whose response it came with.
    pub(super) async fn pass(&self, number: Option<u64>, line: Vec<u8>) -> bool {
        let Some(answers) = message::answers(&line) else { return false };
        self.has_received.set(true);
        if answers.is_none_or(|token| self.note_answer(number, &token)) {
            self.send(Inbound::Line(line)).await;
        }
        true
    }

    /// Notes an answer. False if it is that of a cancelled request, which nobody waits for any more: its id may be that of
    /// another one by now.
    fn note_answer(&self, number: Option<u64>, token: &[u8]) -> bool {
        let mut open = self.open.borrow_mut();
        let is_it = |one: &Open| !one.is_answered && one.token.as_deref() == Some(token);
        let own = open.iter().position(|one| Some(one.number) == number && is_it(one));
        let any = || (0..open.len()).filter(|at| is_it(&open[*at])).min_by_key(|at| open[*at].is_cancelled);
        let Some(at) = own.or_else(any) else { return true };
        open[at].is_answered = true;
        !open[at].is_cancelled
    }

    /// The same for the messages of a stream.
    pub(super) async fn pass_all(&self, number: Option<u64>, lines: Vec<Vec<u8>>) {
        for line in lines {
            if !self.pass(number, line).await {
                say("an event is left out that is no JSON");
            }
        }
    }

    /// Reports what was received. It blocks while the receiver is busy.
    pub(super) async fn send(&self, received: Inbound) {
        // The receiver may have ended.
        let _ = self.received.send(received).await;
    }

    /// Whether the answer to this request is outstanding.
    pub(super) fn awaits(&self, number: u64) -> bool {
        self.open.borrow().iter().any(|one| one.number == number && !one.is_answered && !one.is_cancelled)
    }

    /// Notes whether a request is held.
    pub(super) fn set_held(&self, number: u64, is_held: bool) {
        self.open.borrow_mut().iter_mut().filter(|one| one.number == number).for_each(|one| one.is_held = is_held);
    }

    /// A request is about to be sent: it is held no longer. Returns whether its client still waits for it.
    pub(super) fn ceases_to_hold(&self, number: u64) -> bool {
        self.set_held(number, false);
        self.awaits(number)
    }

    /// Whether requests are held: later lines wait, too.
    pub(super) fn is_holding(&self) -> bool {
        self.open.borrow().iter().any(Open::waits)
    }

    /// Waits until all held requests that came before this one are sent, or this one is cancelled.
    pub(super) async fn turn(&self, number: u64) {
        let is_before = |one: &Open| one.waits() && one.number < number;
        while self.awaits(number) && self.open.borrow().iter().any(is_before) {
            self.has_turn.notified().await;
        }
    }

    /// A held request was sent, or is held no longer.
    pub(super) fn next_turn(&self) {
        self.has_turn.notify_waiters();
        self.wake.notify_one();
    }

    /// Since when requests are not taken, which is now if it was not so before.
    pub(super) fn troubled_since(&self) -> Instant {
        let since = self.troubled_since.get().unwrap_or_else(Instant::now);
        self.troubled_since.set(Some(since));
        since
    }

    /// A request was taken.
    pub(super) fn forget_trouble(&self) {
        self.troubled_since.set(None);
    }

    /// Removes a finished request.
    pub(super) fn close(&self, number: u64) -> Option<Open> {
        let mut open = self.open.borrow_mut();
        let at = open.iter().position(|one| one.number == number)?;
        let closed = open.swap_remove(at);
        drop(open);
        self.next_turn();
        self.has_ended.notify_one();
        Some(closed)
    }

    /// Whether a session that is lost can be begun anew.
    pub(super) fn can_renew(&self) -> bool {
        self.has_session() && self.opening.borrow().is_some()
    }

    /// Whether there is a session, which would end with its daemon.
    pub(super) fn has_session(&self) -> bool {
        self.session.borrow().id.is_some()
    }
}
