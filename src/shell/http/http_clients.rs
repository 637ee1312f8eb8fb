//! Clients of the core without a descriptor of their own: requests that any connection may bring, such as those of a
//! session, or all that one connection brings.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap as Table;

use crate::acp::Streams;
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, ListenerId, Moment, Names, PoolId, Source};
use crate::bus::settings::Era;
use crate::mcp::write::EventId;
use crate::mcp::{Kind, Message, Session};
use crate::state;

/// A message queued for the core.
pub(super) struct QueuedMessage {
    pub message: Message,
    /// The connection to notify once it was accepted: its slot and its serial.
    pub waiter: Option<(usize, u64)>,
    pub brought: RequestContext,
    /// How many of its bytes were offered to the core, and taken by it.
    pub offered: usize,
    pub taken: usize,
}

/// What the head of a request says about its messages.
#[derive(Clone, Default)]
pub(super) struct RequestContext {
    /// The trace id, if requests are logged.
    pub trace: Option<Rc<[u8]>>,
    /// The groups of the sender.
    pub groups: Option<Arc<str>>,
}

impl QueuedMessage {
    /// Offers up to `left` more of its bytes, which are taken from that. Returns those that were offered and not taken.
    pub(super) fn offer(&mut self, left: &mut usize) -> Range<usize> {
        let more = (*left).min(self.message.length() - self.offered);
        self.offered += more;
        *left -= more;
        self.taken..self.offered
    }
}

/// What kind of client it is. What it keeps is said by [`HttpClientData`], and what happens to it in `protocols`.
pub(super) enum HttpClientKind {
    /// A session of MCP's older revisions.
    Session(Box<Session>),
    /// The self-contained requests of MCP's newest revision on one connection.
    Modern(Modern),
    /// A connection of ACP.
    Acp(Box<Streams>),
}

impl HttpClientKind {
    /// What it keeps, whatever it is.
    pub(super) fn kept(&self) -> &dyn HttpClientData {
        match self {
            Self::Session(session) => &**session,
            Self::Modern(modern) => modern,
            Self::Acp(streams) => &**streams,
        }
    }

    fn kept_mut(&mut self) -> &mut dyn HttpClientData {
        match self {
            Self::Session(session) => &mut **session,
            Self::Modern(modern) => modern,
            Self::Acp(streams) => &mut **streams,
        }
    }
}

/// The connection whose requests are a client, which ends with it.
pub(super) struct Modern {
    pub connection: usize,
}

/// What a client keeps, by its kind.
pub(super) trait HttpClientData {
    /// Its name, by which its client addresses it.
    fn id(&self) -> Option<&str>;

    /// The connections that wait for a message of it.
    fn connections(&self) -> Vec<usize>;

    /// What it is in use for, if it is that by more than its name: a stream, and a request that waits for its answer.
    fn uses(&self) -> (bool, bool);

    /// Bytes of kept events, or of what waits on streams.
    fn weight(&self) -> usize;

    /// Drops all that is kept. Returns how many lines are lost.
    fn forget(&mut self) -> usize;

    /// The connection whose requests it is, and that it ends with. None if any connection may bring its requests.
    fn only_connection(&self) -> Option<usize> {
        None
    }

    /// The era of MCP that its worker has to be of, if that matters.
    fn era(&self) -> Option<Era> {
        None
    }

    /// The ids of the requests that get their answers on this stream of it, if answers belong to streams.
    fn unanswered_on(&self, _stream: u32) -> Vec<Id> {
        Vec::new()
    }

    /// An event that it keeps begins to be sent once more.
    fn begin_event(&mut self, _event: EventId) {}

    /// Whether a connection that reads a stream may be cut: what waits there is kept for the next one.
    fn keeps_streams(&self) -> bool {
        false
    }
}

/// How far the `initialize` of a session that an earlier daemon has begun is: what its client sends waits behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Restoring {
    /// It is answered, or there is none.
    #[default]
    No,
    /// It is the first message that waits for the core.
    Queued,
    /// The core has it, and may have passed it to a worker.
    Asked,
    /// A worker had it, and has ended or not answered in time. The client is being closed.
    Failed,
}

/// One client of the core.
pub(super) struct HttpClient {
    pub client: ClientKey,
    pub kind: HttpClientKind,
    pub pool: PoolId,
    pub listener: ListenerId,
    /// What it is counted by.
    pub source: Source,
    /// Its owner.
    pub names: Names,
    /// The pools that its token was good for when it began.
    pub pools: Option<Arc<[PoolId]>>,
    /// Messages that the core has not accepted yet.
    pub inbox: VecDeque<QueuedMessage>,
    /// It is among those that are resumed.
    pub is_resumed: bool,
    /// The core has paused it.
    pub is_paused: bool,
    /// The core is closing it.
    pub is_closing: bool,
    /// The core closes it as soon as its last lines were sent.
    pub is_flushing: bool,
    /// Whether it waits for a worker that knows it again.
    pub restoring: Restoring,
    /// What is kept of it for a later daemon, once its `initialize` is answered.
    pub record: Option<Box<state::StoredSession>>,
    /// When it was last active.
    pub since: Moment,
    /// Number of connections whose last request was one of this session.
    pub visitors: usize,
    /// Since when there is none.
    pub detached: Option<Moment>,
}

impl HttpClient {
    /// Whether it is a session of MCP.
    pub(super) fn is_session(&self) -> bool {
        matches!(self.kind, HttpClientKind::Session(_))
    }

    /// Whether it is the requests of one connection, which it ends with.
    pub(super) fn is_of_one_connection(&self) -> bool {
        self.kind.kept().only_connection().is_some()
    }

    /// The connections that wait for a message of it.
    pub(super) fn connections(&self) -> Vec<usize> {
        self.kind.kept().connections()
    }

    /// Drops all that is kept for it. Returns how many lines are lost.
    pub(super) fn forget(&mut self) -> usize {
        self.kind.kept_mut().forget()
    }

    /// An event that it keeps begins to be sent once more.
    pub(super) fn begin_event(&mut self, event: EventId) {
        self.kind.kept_mut().begin_event(event);
    }

    /// Whether the request with this id waits here, so that no worker has seen any of it.
    pub(super) fn holds(&self, id: &Id) -> bool {
        let is_its = |waiting: &&QueuedMessage| waiting.taken == 0 && waiting.message.kind() == Kind::Request;
        let ids = self.inbox.iter().filter(is_its).filter_map(|waiting| waiting.message.id());
        ids.into_iter().any(|held| Id::parse(held).is_ok_and(|held| held == *id))
    }

    /// Whether no worker has answered the `initialize` that begins it anew. If it ends, it waits again.
    pub(super) fn is_restoring(&self) -> bool {
        self.restoring != Restoring::No
    }

    /// The next message for the core. Behind an `initialize` that a worker has to answer first only answers are: it may
    /// ask something before.
    pub(super) fn next_waiting(&mut self) -> Option<QueuedMessage> {
        match self.restoring {
            Restoring::No | Restoring::Queued => self.inbox.pop_front(),
            Restoring::Asked | Restoring::Failed => {
                let at = self.inbox.iter().position(|waiting| waiting.message.kind() == Kind::Response)?;
                self.inbox.remove(at)
            }
        }
    }

    /// Puts a message before those that wait, but behind one of which the core has seen a part.
    pub(super) fn push_front(&mut self, waiting: QueuedMessage) {
        let is_begun = self.inbox.front().is_some_and(|first| first.offered > 0);
        self.inbox.insert(usize::from(is_begun), waiting);
    }

    /// Whether a connection waits only for its message to be accepted.
    pub(super) fn has_waiter(&self, connection: usize) -> bool {
        self.inbox.iter().any(|waiting| waiting.waiter.is_some_and(|(slot, _)| slot == connection))
    }

    /// Bytes of kept events, or of what waits on streams.
    pub(super) fn kept(&self) -> usize {
        self.kind.kept().weight()
    }

    /// Bytes of messages queued for the core.
    pub(super) fn waiting(&self) -> usize {
        self.inbox.iter().map(|waiting| waiting.message.weight()).sum()
    }

    /// Whether these names are its owner's.
    pub(super) fn is_of(&self, names: &Names) -> bool {
        self.names.owner() == names.owner()
    }
}

#[derive(Default)]
pub(in crate::shell) struct HttpClients {
    /// By the index of their key.
    table: Vec<Option<Box<HttpClient>>>,
    /// Those with a name, by that. We choose the ids, so clients cannot make them collide.
    pub(super) sessions: Table<Box<str>, ClientKey>,
    /// Clients with messages for the core, which it accepts again.
    pub resumed: VecDeque<ClientKey>,
    /// A partial line from the core to one of them.
    pub(super) begun: Vec<u8>,
}

impl HttpClients {
    pub(super) fn add(&mut self, member: HttpClient) {
        let client = member.client;
        if let Some(id) = member.kind.kept().id() {
            self.sessions.insert(id.into(), client);
        }
        if self.table.len() <= client.index() {
            self.table.resize_with(client.index() + 1, || None);
        }
        self.table[client.index()] = Some(Box::new(member));
    }

    /// The member of this name, if it exists.
    pub(super) fn named(&self, id: &str) -> Option<&HttpClient> {
        self.get(*self.sessions.get(id)?)
    }

    /// The member of a client, if it exists.
    pub(super) fn get(&self, client: ClientKey) -> Option<&HttpClient> {
        self.table.get(client.index())?.as_deref().filter(|member| member.client == client)
    }

    pub(super) fn get_mut(&mut self, client: ClientKey) -> Option<&mut HttpClient> {
        self.table.get_mut(client.index())?.as_deref_mut().filter(|member| member.client == client)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HttpClient> {
        self.table.iter().filter_map(Option::as_deref)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut HttpClient> {
        self.table.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// Queues a member whose messages are to be passed on.
    pub(super) fn resume(&mut self, client: ClientKey) {
        if let Some(member) = self.get_mut(client)
            && !std::mem::replace(&mut member.is_resumed, true)
        {
            self.resumed.push_back(client);
        }
    }

    pub(super) fn remove(&mut self, client: ClientKey) -> Option<Box<HttpClient>> {
        let member = self.table.get_mut(client.index())?.take_if(|member| member.client == client)?;
        if let Some(id) = member.kind.kept().id() {
            self.sessions.remove(id);
        }
        Some(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Bus;
    use crate::bus::port::Origin;
    use crate::config::Config;
    use crate::mcp::Body;
    use crate::mcp::message::{LineReader, Upload};

    fn waiting(text: &str) -> QueuedMessage {
        let message = Message::of_line(text.as_bytes(), &mut LineReader::default()).expect("it is a message");
        QueuedMessage { message, waiter: None, brought: RequestContext::default(), offered: 0, taken: 0 }
    }

    #[test]
    fn behind_an_initialize_that_is_not_answered_only_answers_go_on_and_none_is_interrupted() {
        let text = br#"{"pools":[{"id":"p","command":"cat","instances":1}],"listeners":[{"tcp":"127.0.0.1:0"}]}"#;
        let mut bus = Bus::new(Config::from_bytes(text, "a test").expect("it is valid").settings());
        let client = bus.connect(Moment(0), ListenerId::at(0), Origin::default()).0.expect("it has room");
        let session = Session::new("s".into(), None);
        let mut member = HttpClient {
            client,
            kind: HttpClientKind::Session(Box::new(session)),
            pool: PoolId::at(0),
            listener: ListenerId::at(0),
            source: Source::User(0),
            names: Names::default(),
            pools: None,
            inbox: VecDeque::new(),
            is_resumed: false,
            is_paused: false,
            is_closing: false,
            is_flushing: false,
            restoring: Restoring::Asked,
            record: None,
            since: Moment(0),
            visitors: 0,
            detached: None,
        };
        member.inbox.push_back(waiting(r#"{"id":1,"method":"a"}"#));
        assert!(member.next_waiting().is_none());
        member.inbox.push_back(waiting(r#"{"id":"asked","result":{}}"#));
        let mut answer = member.next_waiting().expect("it answers");
        assert_eq!(answer.offer(&mut 10), 0..10);
        member.inbox.push_front(answer);
        member.push_front(waiting(r#"{"method":"notifications/initialized"}"#));
        member.restoring = Restoring::No;
        let order: Vec<usize> =
            std::iter::from_fn(|| member.next_waiting()).map(|next| next.message.length()).collect();
        assert_eq!(order, [27, 39, 22]);
    }

    #[test]
    fn a_long_body_is_presented_piece_by_piece_and_what_was_not_taken_with_the_next_piece() {
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        upload.push(br#"{"id":1,"method":"a"}"#, &mut reader);
        let Ok(Body::One(message)) = upload.finish(&mut reader) else { panic!("it is a message") };
        let mut waiting =
            QueuedMessage { message, waiter: None, brought: RequestContext::default(), offered: 0, taken: 0 };
        let mut left = 10;
        assert_eq!((waiting.offer(&mut left), left), (0..10, 0));
        assert_eq!(waiting.offer(&mut left), 0..10, "no more in this turn");
        waiting.taken = 4;
        let mut left = 30;
        assert_eq!((waiting.offer(&mut left), left), (4..22, 18));
        assert_eq!(waiting.message.part(4..22).data(), b"\":1,\"method\":\"a\"}\n");
    }
}
