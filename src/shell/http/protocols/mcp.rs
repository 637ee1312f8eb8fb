//! MCP over Streamable HTTP. Of the revisions with sessions each session is a client of the core, whose requests any
//! connection may bring, and which keeps what it did not deliver (`mcp/session.rs`). The requests of 2026-07-28 are
//! self-contained: those of one connection are a client, which ends with it. They are parked until it is known whether
//! the pool's command serves that revision.

use std::collections::HashSet;

use super::{Client, Protocol};
use crate::bus::Known;
use crate::bus::eras::protocol::{INVALID_REQUEST, LEGACY, MODERN, REVISIONS, revision};
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, Reason};
use crate::bus::settings::Era;
use crate::http1::{Request, Status};
use crate::io::Io;
use crate::mcp::asked::{Takes, Verb};
use crate::mcp::session::MOST_REQUESTS;
use crate::mcp::write::{EventId, OwnFields};
use crate::mcp::{Asked, Body, Fault, Kind, Message, Session, modern};
use crate::shell::connections::AsHttp;
use crate::shell::http::deliver::Said;
use crate::shell::http::exchange::{PARKED, State, Unsent};
use crate::shell::http::members::{Keeps, Member, Modern, Role};
use crate::shell::reactor::Reactor;
use crate::shell::timers::Timer;
use crate::shell::turn::Shell;

/// MCP, as a protocol of requests.
pub(super) struct Mcp;

impl Protocol for Mcp {
    fn fields() -> &'static OwnFields {
        Default::default()
    }

    fn asked(head: &Request<'_>, path: &str) -> Result<Asked, Fault> {
        Asked::of(head, path)
    }

    /// A GET reads a stream of a session, and a DELETE ends it.
    fn ask<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, verb: Verb) -> Result<(), Fault> {
        let asked = shell.reactor.connections[AsHttp(slot)].incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        if asked.says_modern() {
            return Err(Fault::new(Status::MethodNotAllowed, format!("{MODERN} has POST alone")));
        }
        modern::check_legacy(asked)?;
        if verb == Verb::Get { shell.http_get(now, slot) } else { shell.http_delete(now, slot) }
    }

    fn may_batch<I: Io>(shell: &mut Shell<I>, slot: usize) -> Result<(), Fault> {
        let connection = &shell.reactor.connections[AsHttp(slot)];
        let asked = connection.incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        modern::may_batch(asked)?;
        let says_so = says_batches(asked.version.as_deref());
        let client = shell.session_asked(slot)?;
        let session = shell.reactor.http.members.get_mut(client).and_then(Member::session);
        match session.is_some_and(|session| session.takes_batches() || says_so) {
            true => Ok(()),
            false => Err(no_batches()),
        }
    }

    fn may_post<I: Io>(shell: &mut Shell<I>, slot: usize) -> Result<(), Fault> {
        let asked = shell.reactor.connections[AsHttp(slot)].incoming.asked.as_ref();
        let Some(asked) = asked.filter(|asked| !asked.says_modern()) else { return Ok(()) };
        modern::check_legacy(asked)?;
        if asked.session.is_some() { shell.session_asked(slot).map(drop) } else { Ok(()) }
    }

    fn post<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, body: Body) -> Result<(), Fault> {
        let asked = shell.reactor.connections[AsHttp(slot)].incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        let is_modern = match &body {
            Body::One(message) => modern::is_modern(asked, message)?,
            Body::Batch(messages) => modern::check_batch(asked, messages).map(|()| false)?,
        };
        match (is_modern, body) {
            (true, Body::One(message)) => shell.post_modern(now, slot, message),
            (_, body) => shell.post_legacy(now, slot, body),
        }
    }
}

impl<I: Io> Shell<I> {
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

    /// The client for a connection's self-contained requests.
    fn modern_member(&mut self, now: Moment, slot: usize, pool: usize) -> Result<ClientKey, Fault> {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &connections[AsHttp(slot)];
        let names = &connection.incoming.sender.origin.names;
        let is_it = |member: &&mut Member| {
            member.is_of_one_connection() && !member.is_closing && member.pool == pool && member.is_of(names)
        };
        if let Some(client) = connection.member
            && let Some(member) = http.members.get_mut(client).filter(is_it)
        {
            member.since = now;
            return Ok(client);
        }
        self.reactor.release_modern(slot);
        let client = self.add_member(now, slot, pool, Role::Modern(Modern { connection: slot }))?;
        self.reactor.connections[AsHttp(slot)].member = Some(client);
        Ok(client)
    }

    /// The era of a pool's workers has become known: requests that were parked for it continue.
    pub(in crate::shell::http) fn go_on_parked(&mut self, now: Moment) {
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
    pub(in crate::shell::http) fn parked_due(&mut self, now: Moment, slot: usize) {
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

    /// Starts a session with a connection's request, which has this id.
    fn begin_session(&mut self, now: Moment, slot: usize, pool: usize, id: Id) -> Result<ClientKey, Fault> {
        self.reactor.release_modern(slot);
        let listener = self.reactor.connections[AsHttp(slot)].listener;
        let policy = self.reactor.listeners.policy(listener).ok_or_else(Fault::no_session)?;
        let session = Session::new(policy.new_id().map_err(Fault::busy)?.into(), Some(id));
        let client = self.add_member(now, slot, pool, Role::Session(Box::new(session)))?;
        self.reactor.timers.set(Timer::Session(client), Some(now.after(self.reactor.http.session_idle)));
        self.reactor.visit(now, slot, Some(client));
        Ok(client)
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
}

impl<I: Io> Reactor<I> {
    /// Tells the core what has become of what a connection did not send for a client: the loss of some lines, that the
    /// others are off its hands, and perhaps that the client has left.
    fn end_delivery(&mut self, now: Moment, client: ClientKey, lost: usize, owed: usize, has_left: bool) {
        self.count_lost_events(client, lost);
        // First, or the core would wait for it to be sent.
        self.tell_sent(now, client, owed);
        if has_left {
            self.tell(now, Input::Left(client));
        }
    }
}

impl Keeps for Session {
    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn connections(&self) -> Vec<usize> {
        Self::connections(self)
    }

    fn uses(&self) -> (bool, bool) {
        (self.is_in_use(), self.has_requests())
    }

    fn weight(&self) -> usize {
        Self::weight(self)
    }

    fn forget(&mut self) -> usize {
        Self::forget(self)
    }

    fn era(&self) -> Option<Era> {
        Some(Era::Legacy)
    }

    fn unanswered_on(&self, stream: u32) -> Vec<Vec<u8>> {
        Self::unanswered_on(self, stream).map(Id::token).collect()
    }
}

impl Client for Session {
    fn deliver<I: Io>(
        reactor: &mut Reactor<I>,
        now: Moment,
        client: ClientKey,
        said: &Said<'_>,
        _bytes: usize,
    ) -> bool {
        reactor.deliver_to_session(now, client, said) == Some(true)
    }

    /// It still gets its answers; but the client of a GET stream has gone, and will return for undelivered events.
    fn half_closed<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize) {
        let connection = &reactor.connections[AsHttp(slot)];
        let is_get = connection.incoming.asked.as_ref().is_some_and(|asked| asked.verb == Verb::Get);
        match connection.state {
            State::Events if is_get => reactor.leave_stream(now, slot),
            _ => reactor.doubt_http(now, slot),
        }
    }

    fn answered<I: Io>(reactor: &mut Reactor<I>, _now: Moment, slot: usize, client: ClientKey) {
        if let Some(session) = reactor.http.members.get_mut(client).and_then(Member::session) {
            session.detach(slot, &[]);
        }
    }

    /// What was not sent is kept for another connection.
    fn left<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, client: ClientKey, unsent: Unsent) {
        let Unsent { owed, events, whole, is_begun } = unsent;
        let Some(member) = reactor.http.members.get_mut(client) else { return };
        member.since = now;
        let Some(session) = member.session() else { return };
        let dropped = session.detach(slot, &events);
        // No client knows its id, nor ever will.
        let is_unknown = session.is_unheard() || whole.is_some_and(|id| id.stream == Self::FIRST) && !is_begun;
        // No client can ask for an answer that is no event.
        let lost = dropped + usize::from(whole.is_some() && !is_unknown);
        reactor.end_delivery(now, client, lost, owed, is_unknown);
    }

    fn give_up(&mut self, slot: usize, stream: u32, _asks: Option<&Id>) -> (Vec<Vec<u8>>, bool) {
        self.detach(slot, &[]);
        // Without the answer to its first request nobody knows its id.
        (Keeps::unanswered_on(self, stream), self.begins_on(stream))
    }

    /// Checks whether a session is idle.
    fn due<I: Io>(shell: &mut Shell<I>, now: Moment, client: ClientKey) {
        let idle = shell.reactor.http.session_idle;
        let Some(member) = shell.reactor.http.members.get_mut(client) else { return };
        let since = member.since;
        let is_in_use = member.session().is_some_and(|session| session.is_in_use());
        let at = if is_in_use { now.after(idle) } else { since.after(idle) };
        let limit = shell.reactor.http.session_detached;
        let detached = member.detached.zip(limit).map(|(since, limit)| since.after(limit));
        let at = detached.map_or(at, |detached| at.min(detached));
        if at > now {
            return shell.reactor.timers.set(Timer::Session(client), Some(at));
        }
        shell.reactor.tell(now, Input::EndClient { client, why: Reason::SessionIdle });
    }

    fn removed<I: Io>(reactor: &mut Reactor<I>, _now: Moment, member: &Member) {
        reactor.http.memory.keep_log(member.kept(), 0);
    }
}

impl Keeps for Modern {
    fn id(&self) -> Option<&str> {
        None
    }

    fn connections(&self) -> Vec<usize> {
        vec![self.connection]
    }

    fn uses(&self) -> (bool, bool) {
        (true, true)
    }

    fn weight(&self) -> usize {
        0
    }

    fn forget(&mut self) -> usize {
        0
    }

    fn only_connection(&self) -> Option<usize> {
        Some(self.connection)
    }

    fn era(&self) -> Option<Era> {
        Some(Era::Modern)
    }
}

impl Client for Modern {
    fn deliver<I: Io>(
        reactor: &mut Reactor<I>,
        now: Moment,
        client: ClientKey,
        said: &Said<'_>,
        _bytes: usize,
    ) -> bool {
        let Some(member) = reactor.http.members.get(client) else { return false };
        let Role::Modern(Self { connection }) = member.role else { return false };
        reactor.deliver_modern(now, connection, client, said)
    }

    /// This cancels its request (MCP 2026-07-28, "Cancellation").
    fn half_closed<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize) {
        reactor.leave_http(now, slot);
    }

    fn left<I: Io>(reactor: &mut Reactor<I>, now: Moment, _slot: usize, client: ClientKey, unsent: Unsent) {
        reactor.end_delivery(now, client, 0, unsent.owed, true);
    }

    fn give_up(&mut self, _slot: usize, _stream: u32, asks: Option<&Id>) -> (Vec<Vec<u8>>, bool) {
        (asks.into_iter().map(Id::token).collect(), true)
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
