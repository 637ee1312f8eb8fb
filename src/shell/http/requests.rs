//! Handles requests: finds their sender and client, and answers them.

use std::collections::HashSet;
use std::rc::Rc;

use super::Http;
use super::exchange::{KEEP_ALIVE, PARKED, State};
use super::members::{Member, Waiting};
use crate::access::{Caller, Refusal};
use crate::acp;
use crate::bus::Known;
use crate::bus::eras::protocol::{INVALID_REQUEST, LEGACY, MODERN, REVISIONS, revision};
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, Next, Peer, Reason};
use crate::bus::settings::Era;
use crate::http1::{Framing, Method, Request, Status};
use crate::io::Io;
use crate::mcp::asked::{Takes, Verb, is_discovery};
use crate::mcp::session::MOST_REQUESTS;
use crate::mcp::write::{self, EventId, Manner};
use crate::mcp::{Asked, Body, Fault, Kind, Message, Session, modern};
use crate::shell::access::Sender;
use crate::shell::connections::AsHttp;
use crate::shell::outbox::{Posted, Storage, are_held};
use crate::shell::reactor::Reactor;
use crate::shell::receivers::Source;
use crate::shell::turn::Shell;

/// Maximum length of an id in a refusal: one of 128 bytes may be written with an escape for each of them.
const LONGEST_ID: usize = 1024;
/// How many bytes of a client's messages are passed to the core in a turn.
const SHARE: usize = 256 * 1024;

impl<I: Io> Shell<I> {
    /// The head of a request is complete.
    pub(super) fn http_head(&mut self, slot: usize, head: &Request<'_>) -> Result<(), Fault> {
        let connection = &mut self.reactor.connections[AsHttp(slot)];
        if connection.is_operators() {
            return self.operator_asks(slot, head).map_err(|error| Fault::new(error.status, error.why));
        }
        let listener = connection.listener;
        let is_acp = self.reactor.speaks_acp(slot);
        let connection = &mut self.reactor.connections[AsHttp(slot)];
        let policy = self.reactor.listeners.policy(listener).ok_or_else(Fault::no_session)?;
        let caller = Caller::of(head, None)?;
        let origin = connection.origin.clone();
        if caller.origin.is_some() {
            policy.admits_page(&origin, &caller)?;
        }
        connection.incoming.sender = Sender::on_page(caller.origin.map(Rc::from));
        if head.method == Method::Options && caller.origin.is_some() && head.body == Framing::Length(0) {
            let fields = if is_acp { &acp::asked::FIELDS } else { Default::default() };
            self.reactor.answer_http(self.reactor.clock.now(), slot, |out, manner| {
                write::preflight(out, &Manner { fields, ..manner.clone() });
            });
            return Ok(());
        }
        if is_discovery(head.path, &policy.terms.path) {
            connection.incoming.is_last |= head.body != Framing::Length(0);
            self.reactor.answer_http(self.reactor.clock.now(), slot, write::no_authorization_server);
            return Ok(());
        }
        let sender = policy.identify(origin, &caller)?;
        let origin = &sender.origin;
        self.bus.view().may_ask(listener, origin).map_err(Refusal::from)?;
        let asked = match is_acp {
            true => acp::asked::asked(head, &policy.terms.path)?,
            false => Asked::of(head, &policy.terms.path)?,
        };
        if asked.verb != Verb::Post && head.body != Framing::Length(0) {
            return Err(Fault::new(Status::BadRequest, "only POST has a body"));
        }
        let Reactor { http, clock, .. } = &mut self.reactor;
        let named = asked.session.as_deref().and_then(|id| http.members.sessions.get(id)).copied();
        let named = named.and_then(|client| http.members.get_mut(client));
        let session = named.filter(|member| member.listener == listener && member.is_of(&origin.names));
        let has_session = session.is_some();
        // Its session is not idle while a request uploads.
        let now = clock.now();
        let visited = session.map(|member| {
            member.since = now;
            member.client
        });
        self.reactor.visit(now, slot, visited);
        let source = origin.source();
        self.find_place(slot, source)?;
        let connection = &mut self.reactor.connections[AsHttp(slot)];
        // The connections that a proxy keeps between the requests of its clients are its own.
        let is_brought = origin.place != connection.origin.place;
        connection.source_between = if is_brought { connection.origin.source() } else { source };
        // Without a client at a removed listener, the next request has to go to another one.
        let is_stray =
            !has_session && connection.member.is_none() && self.bus.view().listener_readiness(listener).is_none();
        let incoming = &mut connection.incoming;
        incoming.is_last |= is_stray;
        (incoming.asked, incoming.sender) = (Some(asked), sender);
        Ok(())
    }

    /// A request is complete.
    pub(super) fn http_request(&mut self, now: Moment, slot: usize) {
        if self.reactor.connections[AsHttp(slot)].is_operators() {
            return self.answer_operator(now, slot);
        }
        let is_acp = self.reactor.speaks_acp(slot);
        let Reactor { connections, http, .. } = &mut self.reactor;
        let incoming = &mut connections[AsHttp(slot)].incoming;
        // It was answered by its head alone.
        let Some(asked) = &incoming.asked else { return };
        let result = match asked.verb {
            verb @ (Verb::Get | Verb::Delete) if is_acp => self.acp_request(now, slot, verb),
            Verb::Get | Verb::Delete if asked.says_modern() => {
                Err(Fault::new(Status::MethodNotAllowed, format!("{MODERN} has POST alone")))
            }
            Verb::Get => modern::check_legacy(asked).and_then(|()| self.http_get(now, slot)),
            Verb::Delete => modern::check_legacy(asked).and_then(|()| self.http_delete(now, slot)),
            Verb::Post => {
                http.memory.held -= incoming.weight();
                let mut upload = incoming.body.take().unwrap_or_default();
                upload.end(&mut http.lines);
                if upload.is_behind() {
                    http.memory.held += upload.weight();
                    incoming.body = Some(upload);
                    return http.behind.push(slot);
                }
                match upload.finish(&mut http.lines) {
                    Ok(body) => return self.http_post(now, slot, body),
                    Err(fault) => self.may_post(slot).and(Err(fault)),
                }
            }
        };
        if let Err(fault) = result {
            self.reactor.refuse_http(now, slot, &fault, None);
        }
    }

    /// Whether a request may have a batch, by its head. Most may not, so that is checked before one is taken apart.
    pub(super) fn may_batch(&mut self, slot: usize) -> Result<(), Fault> {
        self.still_admits(slot)?;
        if self.reactor.speaks_acp(slot) {
            return Err(acp::posted::no_batches());
        }
        let connection = &self.reactor.connections[AsHttp(slot)];
        let asked = connection.incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        modern::may_batch(asked)?;
        let says_so = says_batches(asked.version.as_deref());
        let client = self.session_asked(slot)?;
        let session = self.reactor.http.members.get_mut(client).and_then(Member::session);
        match session.is_some_and(|session| session.takes_batches() || says_so) {
            true => Ok(()),
            false => Err(no_batches()),
        }
    }

    /// Whether a request may have any message, by its head.
    fn may_post(&mut self, slot: usize) -> Result<(), Fault> {
        self.still_admits(slot)?;
        let asked = self.reactor.connections[AsHttp(slot)].incoming.asked.as_ref();
        let Some(asked) = asked.filter(|asked| !asked.says_modern() && !self.reactor.speaks_acp(slot)) else {
            return Ok(());
        };
        modern::check_legacy(asked)?;
        if asked.session.is_some() { self.session_asked(slot).map(drop) } else { Ok(()) }
    }

    /// Handles a POST.
    fn http_post(&mut self, now: Moment, slot: usize, body: Body) {
        let Some(asked) = &self.reactor.connections[AsHttp(slot)].incoming.asked else { return };
        let is_acp = self.reactor.speaks_acp(slot);
        let result = match &body {
            _ if is_acp => Ok(false),
            Body::One(message) => modern::is_modern(asked, message),
            Body::Batch(messages) => modern::check_batch(asked, messages).map(|()| false),
        };
        // The id of a response is the worker's: clients would take an error with it for an answer to their own request.
        let id = match &body {
            Body::One(message) if message.kind() == Kind::Request => message.id().map(<[u8]>::to_vec),
            _ => None,
        };
        // One that is too long to be taken is not repeated.
        let id = id.filter(|id| id.len() <= LONGEST_ID);
        let result = self.still_admits(slot).and(result).and_then(|is_modern| match (is_modern, body) {
            (_, body) if is_acp => self.post_acp(now, slot, body),
            (true, Body::One(message)) => self.post_modern(now, slot, message),
            (_, body) => self.post_legacy(now, slot, body),
        });
        if let Err(fault) = result {
            self.reactor.refuse_http(now, slot, &fault, id.as_deref());
        }
    }

    /// Checks the token of a request again, now that its body has come, or that it goes on.
    fn still_admits(&self, slot: usize) -> Result<(), Fault> {
        let connection = &self.reactor.connections[AsHttp(slot)];
        let policy = self.reactor.listeners.policy(connection.listener).ok_or_else(Fault::no_session)?;
        Ok(policy.still_admits(&connection.incoming.sender)?)
    }

    /// The pool that a request is for.
    fn pool_asked(&self, slot: usize) -> Result<usize, Fault> {
        let connection = &self.reactor.connections[AsHttp(slot)];
        let (incoming, listener) = (&connection.incoming, connection.listener);
        let origin = &incoming.sender.origin;
        let pools = &self.reactor.workers.pools;
        let may_use = |pool: &usize| self.bus.view().offers(listener, origin, *pool);
        let named = incoming.asked.as_ref().and_then(|asked| asked.pool.as_deref());
        let found = match named {
            Some(name) => pools.iter().position(|pool| pool.core.id == name).filter(may_use),
            None => self.bus.view().default_pool(listener, origin),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = (0..pools.len()).filter(may_use).map(|pool| pools[pool].core.id.as_str()).collect();
            let path = self.reactor.listeners.policy(listener).map_or("/mcp", |policy| &policy.terms.path);
            let offered = names.join(&format!(", {path}/"));
            let why = match named {
                _ if names.is_empty() => "this listener has no pool for this client".to_owned(),
                Some(name) => format!("there is no pool {name:?} here: name {path}/{offered}"),
                None => format!("name a pool: {path}/{offered}"),
            };
            Fault::new(Status::NotFound, why)
        })
    }

    /// Handles a message of 2026-07-28.
    fn post_modern(&mut self, now: Moment, slot: usize, message: Message) -> Result<(), Fault> {
        let pool = self.pool_asked(slot)?;
        let era = self.bus.view().pool_era(pool);
        if era == Some(Era::Legacy) {
            return Err(self.legacy_server(pool, &message));
        }
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &mut connections[AsHttp(slot)];
        let asked = connection.incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        modern::check(asked, &message)?;
        if era.is_none() {
            connection.state = State::Parked;
            http.memory.held += message.weight();
            connection.incoming.parked = Some(message);
            self.reactor.set_deadline(slot, now.after(PARKED));
            return Ok(());
        }
        self.give_modern(now, slot, pool, message)
    }

    /// Passes a message of 2026-07-28 to the core.
    fn give_modern(&mut self, now: Moment, slot: usize, pool: usize, message: Message) -> Result<(), Fault> {
        if self.reactor.connections[AsHttp(slot)].takes() == Takes::JsonAlone
            && *message.method() == *b"subscriptions/listen"
        {
            return Err(needs_events("subscriptions/listen"));
        }
        let client = self.modern_member(now, slot, pool)?;
        let Reactor { connections, http, .. } = &mut self.reactor;
        let state = modern::request_state(&message);
        let worker = state.and_then(|state| http.members.states.get(&http.members.hash_of(&state)).copied());
        self.bus.prefer_worker(client, worker);
        let is_request = message.kind() == Kind::Request;
        connections[AsHttp(slot)].asks = message.id().filter(|_| is_request).and_then(|id| Id::parse(id).ok());
        self.await_answer(now, slot);
        self.hand_over(now, client, message, (!is_request).then_some(slot));
        Ok(())
    }

    /// Does the work for MCP besides completions.
    pub(in crate::shell) fn work_for_http(&mut self, now: Moment) {
        for _ in 0..self.reactor.http.members.resumed.len() {
            if let Some(client) = self.reactor.http.members.resumed.pop_front() {
                if let Some(member) = self.reactor.http.members.get_mut(client) {
                    member.is_resumed = false;
                }
                self.present_member(now, client);
            }
        }
        for slot in std::mem::take(&mut self.reactor.http.behind) {
            self.go_on_with_body(now, slot);
        }
        for (client, state) in std::mem::take(&mut self.reactor.http.members.answered) {
            if let Some(worker) = self.bus.view().answered_by(client) {
                self.reactor.http.members.remember(state, worker);
            }
        }
        self.go_on_parked(now);
    }

    /// The era of a pool's workers has become known: requests that were parked for it continue.
    fn go_on_parked(&mut self, now: Moment) {
        if !std::mem::take(&mut self.reactor.http.has_discovered) {
            return;
        }
        let connections = self.reactor.connections.all_http();
        let parked = connections.filter(|(_, _, it)| it.state == State::Parked).map(|(slot, ..)| slot);
        for slot in parked.collect::<Vec<_>>() {
            // An unknown pool is refused.
            if self.pool_asked(slot).map(|pool| self.bus.view().pool_era(pool)) != Ok(None) {
                self.unpark(now, slot);
            }
        }
    }

    /// A request has been parked for a while. If no worker is being asked, the core decides.
    pub(super) fn parked_due(&mut self, now: Moment, slot: usize) {
        if self.pool_asked(slot).is_ok_and(|pool| self.bus.view().asks_era(pool)) {
            return self.reactor.set_deadline(slot, now.after(PARKED));
        }
        self.unpark(now, slot);
    }

    /// Continues a parked request.
    fn unpark(&mut self, now: Moment, slot: usize) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let Some(connection) = connections.http_mut(slot).filter(|it| it.state == State::Parked) else { return };
        connection.state = State::Reading;
        let Some(message) = connection.incoming.parked.take() else { return };
        http.memory.held -= message.weight();
        let id = message.id().map(<[u8]>::to_vec);
        let pool = self.still_admits(slot).and_then(|()| self.pool_asked(slot));
        let result = pool.and_then(|pool| match self.bus.view().pool_era(pool) {
            Some(Era::Legacy) => Err(self.legacy_server(pool, &message)),
            _ => self.give_modern(now, slot, pool, message),
        });
        if let Err(fault) = result {
            self.reactor.refuse_http(now, slot, &fault, id.as_deref());
        }
    }

    /// The refusal of a message of 2026-07-28 for a pool whose command does not serve that, or does not work at all.
    fn legacy_server(&self, pool: usize, message: &Message) -> Fault {
        let said =
            self.reactor.workers.said.get(&pool).map_or_else(String::new, |line| format!("; its stderr ends: {line}"));
        let why = match self.bus.view().era_known(pool) {
            Known::Answered => format!("this server speaks MCP up to {LEGACY}; begin with initialize"),
            Known::Silent => format!(
                "the command of this pool runs and has not answered yet whether it serves MCP {MODERN}{said}; try again, \
                 or begin with initialize"
            ),
            Known::Ended => format!(
                "the command of this pool has ended each time before it answered whether it serves MCP {MODERN}{said}; \
                 it may not start at all, or only after initialize"
            ),
        };
        Fault::legacy_server(why, *message.method() == *b"server/discover")
    }

    /// Handles messages of a session, or the one that starts it.
    fn post_legacy(&mut self, now: Moment, slot: usize, body: Body) -> Result<(), Fault> {
        let (messages, is_array) = match &body {
            Body::One(message) => (std::slice::from_ref(message), false),
            Body::Batch(messages) => (&messages[..], true),
        };
        let begins = !is_array && messages[0].kind() == Kind::Request && *messages[0].method() == *b"initialize";
        let client = match begins {
            true => {
                let pool = self.pool_asked(slot)?;
                let id = messages[0].id().and_then(|id| Id::parse(id).ok());
                self.begin_session(now, slot, pool, id.ok_or_else(too_long)?)?
            }
            false => self.session_asked(slot)?,
        };
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &mut connections[AsHttp(slot)];
        let version = connection.incoming.asked.as_ref().and_then(|asked| asked.version.as_deref());
        let Some(at) = http.members.get_mut(client) else { return Err(Fault::no_session()) };
        at.since = now;
        let Some(session) = at.session() else { return Err(Fault::no_session()) };
        if is_array && !session.takes_batches() && !says_batches(version) {
            return Err(no_batches());
        }
        let takes = connection.takes();
        if is_array && takes == Takes::JsonAlone {
            return Err(needs_events("a batch"));
        }
        let (first, others) = requests_of(session, messages)?;
        connection.member = Some(client);
        let (has_requests, is_batch) = (first.is_some(), !others.is_empty());
        if has_requests {
            connection.stream =
                session.begin(slot, first.into_iter().chain(others), is_batch, takes == Takes::JsonAlone);
        }
        let cancelled: Vec<usize> =
            messages.iter().filter_map(|message| session.cancel(&cancelled_by(message)?)).collect();
        self.await_answer(now, slot);
        cancelled.into_iter().for_each(|slot| self.reactor.end_unanswered(now, slot));
        let tells = (!has_requests).then_some(slot);
        match body {
            Body::One(message) => self.hand_over(now, client, message, tells),
            Body::Batch(mut messages) => {
                let last = messages.pop();
                messages.into_iter().for_each(|message| self.reactor.http.queue_message(client, message, None));
                last.into_iter().for_each(|message| self.hand_over(now, client, message, tells));
            }
        }
        Ok(())
    }

    /// The client of this id, if it belongs to the sender of a request.
    ///
    /// # Errors
    /// There is none for the sender: `unknown` makes the refusal, by whether another node has given the id out.
    pub(super) fn member_named(
        &self,
        slot: usize,
        id: &str,
        unknown: impl Fn(bool) -> Fault,
    ) -> Result<&Member, Fault> {
        let Reactor { connections, http, listeners, .. } = &self.reactor;
        let connection = &connections[AsHttp(slot)];
        let Some(client) = http.members.sessions.get(id) else {
            let policy = listeners.policy(connection.listener);
            return Err(unknown(policy.is_some_and(|policy| policy.is_of_another_node(id))));
        };
        let names = &connection.incoming.sender.origin.names;
        let is_its = |at: &&Member| !at.is_closing && at.listener == connection.listener && at.is_of(names);
        http.members.get(*client).filter(is_its).ok_or_else(|| unknown(false))
    }

    /// The session that a request names, if it belongs to its sender.
    fn session_asked(&mut self, slot: usize) -> Result<ClientKey, Fault> {
        let connection = &self.reactor.connections[AsHttp(slot)];
        let id = connection.incoming.asked.as_ref().and_then(|asked| asked.session.as_deref());
        let missing = "the request names no session (Mcp-Session-Id); begin with initialize";
        let id = id.ok_or_else(|| Fault::new(Status::BadRequest, missing))?;
        let unknown = |is_of_another_node| match is_of_another_node {
            true => Fault::session_of_another_node(),
            false => Fault::no_session(),
        };
        let at = self.member_named(slot, id, unknown)?;
        // Another token of its owner may be good for other pools.
        let pools = connection.incoming.sender.origin.pools.as_ref();
        let at = Some(at).filter(|at| pools.is_none_or(|pools| pools.contains(&at.pool)));
        let at = at.ok_or_else(Fault::no_session)?;
        let named = connection.incoming.asked.as_ref().and_then(|asked| asked.pool.as_deref());
        if named.is_some_and(|name| self.reactor.workers.pools[at.pool].core.id != name) {
            return Err(Fault::no_session());
        }
        let client = at.client;
        if connection.member.is_some_and(|other| other != client) {
            self.reactor.release_modern(slot);
        }
        Ok(client)
    }

    /// Opens or resumes the stream of a session.
    fn http_get(&mut self, now: Moment, slot: usize) -> Result<(), Fault> {
        let client = self.session_asked(slot)?;
        let asked = self.reactor.connections[AsHttp(slot)].incoming.asked.as_ref();
        let bad = || Fault::new(Status::BadRequest, "Last-Event-ID is none that was given out");
        // A client that has received no event may send an empty id.
        let last_event = asked.and_then(|asked| asked.last_event.as_deref()).filter(|text| !text.is_empty());
        let behind = last_event.map(|text| EventId::parse(text).ok_or_else(bad)).transpose()?;
        self.reactor.open_stream(now, slot, client, behind)
    }

    /// Ends a session.
    fn http_delete(&mut self, now: Moment, slot: usize) -> Result<(), Fault> {
        let client = self.session_asked(slot)?;
        self.reactor.tell(now, Input::Left(client));
        self.reactor.answer_empty(now, slot, Status::NoContent);
        Ok(())
    }

    /// Waits for an answer from now on.
    pub(super) fn await_answer(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.reactor.connections[AsHttp(slot)];
        (connection.state, connection.since) = (State::Waiting, now);
        self.reactor.set_deadline(slot, now.after(KEEP_ALIVE));
    }

    /// Passes a message to the core, or queues it until that accepts it. `tells` is the connection that waits only for
    /// that.
    pub(super) fn hand_over(&mut self, now: Moment, client: ClientKey, message: Message, tells: Option<usize>) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        http.queue_message(client, message, tells.map(|slot| (slot, connections[AsHttp(slot)].serial)));
        if http.members.get(client).is_some_and(|member| !member.is_resumed) {
            self.present_member(now, client);
        }
    }

    /// Passes queued messages of a client to the core, as far as it accepts them, and a share of them at most: a long
    /// line is offered piece by piece, as a socket would bring it, and others have their turns between two pieces.
    pub(in crate::shell) fn present_member(&mut self, now: Moment, client: ClientKey) {
        let mut left = SHARE;
        loop {
            let http = &mut self.reactor.http;
            let Some(member) = http.members.get_mut(client).filter(|member| !member.is_paused) else { return };
            let Some(mut waiting) = member.inbox.pop_front() else { return };
            if left == 0 {
                member.inbox.push_front(waiting);
                return http.members.resume(client);
            }
            let part = waiting.offer(&mut left);
            let Waiting { message, offered, taken, .. } = &mut waiting;
            let window = message.part(part);
            let block = http.storage_of(message).map(|(storage, start)| (storage, start + *taken));
            let (received, effects) = self.bus.receive(now, Peer::Client(client), window);
            self.reactor.carry_out(effects, Some(&Source { from: Peer::Client(client), window, block }));
            *taken += received.consumed;
            let (is_taken, has_more) = (*taken == message.length(), *offered < message.length());
            let http = &mut self.reactor.http;
            if !is_taken && let Some(member) = http.members.get_mut(client) {
                member.inbox.push_front(waiting);
                match received.next {
                    Next::Read if has_more => continue,
                    Next::Again => return http.members.resume(client),
                    Next::Read | Next::Wait => return,
                }
            }
            http.memory.held -= waiting.message.weight();
            if let Some((connection, serial)) = waiting.tells {
                self.reactor.tell_taken(now, connection, serial);
            }
        }
    }
}

impl Http {
    /// Queues a message for the core.
    fn queue_message(&mut self, client: ClientKey, message: Message, tells: Option<(usize, u64)>) {
        let Some(at) = self.members.get_mut(client) else { return };
        self.memory.held += message.weight();
        at.inbox.push_back(Waiting { message, tells, offered: 0, taken: 0 });
    }

    /// Where a long message lies, so that it needs not be copied.
    fn storage_of(&self, message: &Message) -> Option<(Storage, usize)> {
        let (bytes, start) = message.storage();
        are_held(message.length(), bytes.capacity()).then(|| (self.hold(bytes), start))
    }

    /// Memory of a line that is sent from there, and counted until then.
    pub(in crate::shell) fn hold(&self, bytes: Rc<Vec<u8>>) -> Storage {
        Storage::Posted(Rc::new(Posted::new(bytes, &self.memory.posted)))
    }
}

/// The id of a request, and its progress token.
type Asks<'a> = (Id, Option<&'a [u8]>);

/// The requests among messages: the first one, usually the only one, and the others.
fn requests_of<'a>(session: &Session, messages: &'a [Message]) -> Result<(Option<Asks<'a>>, Vec<Asks<'a>>), Fault> {
    let (mut first, mut others) = (None, Vec::new());
    let requests = || messages.iter().filter(|message| message.kind() == Kind::Request);
    if !session.has_room_for(requests().count()) {
        return Err(Fault::too_many(
            Reason::PendingLimit,
            format!("a session may wait for {MOST_REQUESTS} answers at once: post fewer requests, or later"),
        ));
    }
    let mut ids = HashSet::new();
    for message in requests() {
        let id = message.id().and_then(|id| Id::parse(id).ok()).ok_or_else(too_long)?;
        let is_twice = messages.len() > 1 && !ids.insert(id.token());
        if is_twice || session.waits_for(&id) {
            return Err(Fault::bad(INVALID_REQUEST, "a request with this id waits for its answer already"));
        }
        let asks = (id, message.progress_token());
        match first {
            None => first = Some(asks),
            Some(_) => others.push(asks),
        }
    }
    Ok((first, others))
}

/// The request that a message cancels.
fn cancelled_by(message: &Message) -> Option<Id> {
    let cancels = message.kind() == Kind::Notification && *message.method() == *b"notifications/cancelled";
    Id::parse(message.request_id().filter(|_| cancels)?).ok()
}

/// Whether the revision that a request names has batches.
fn says_batches(version: Option<&str>) -> bool {
    version.and_then(|version| revision(version.as_bytes())).is_some_and(|revision| revision.has_batches)
}

fn no_batches() -> Fault {
    let dates: Vec<_> =
        REVISIONS.iter().filter(|revision| revision.has_batches).map(|revision| revision.date).collect();
    Fault::bad(INVALID_REQUEST, format!("only {} has batches: post one message", dates.join(", ")))
}

fn needs_events(what: &str) -> Fault {
    Fault::new(
        Status::NotAcceptable,
        format!("{what} is answered by a stream: Accept may not refuse text/event-stream"),
    )
}

fn too_long() -> Fault {
    Fault::bad(INVALID_REQUEST, "the id is longer than 128 bytes")
}
