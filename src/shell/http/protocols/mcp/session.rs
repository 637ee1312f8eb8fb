//! Sessions: each is a client of the core, whose requests any connection may bring, and which keeps what it did not
//! deliver (`mcp/session.rs`).

use std::collections::HashSet;
use std::rc::Rc;

use super::restore::is_initialized;
use super::{ClientProtocol, needs_events, no_batches, says_batches, too_long};
use crate::bus::eras::protocol::INVALID_REQUEST;
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, PoolId, Reason};
use crate::bus::settings::Era;
use crate::http1::Status;
use crate::io::Io;
use crate::mcp::asked::{Takes, Verb};
use crate::mcp::log::StoredEvent;
use crate::mcp::session::{self, Delivery, MOST_REQUESTS, Resumed};
use crate::mcp::write::{self, EventId};
use crate::mcp::{Body, Fault, Kind, Message, Session};
use crate::scan::{decoded, member, string_in};
use crate::shell::connections::{Connections, HttpSlot};
use crate::shell::http::Http;
use crate::shell::http::deliver::{Beginning, EventText, OutgoingLine};
use crate::shell::http::exchange::{Exchange, Replay, State, Unsent};
use crate::shell::http::http_clients::{HttpClient, HttpClientData, HttpClientKind, Restoring};
use crate::shell::reactor::Reactor;
use crate::shell::timers::Timer;
use crate::shell::turn::Shell;

/// Maximum bytes of events that a session keeps, besides answers.
const MOST_KEPT: usize = 512 * 1024;

/// An answer of such a length is sent as an event, if its client can resume a stream before its first event. A connection
/// may break amid it, and no client can ask for a part of JSON again. Python's `mcp` 2 refuses an event above 1 MiB.
const SENT_AS_EVENT: std::ops::Range<usize> = 128 * 1024..1_000_000;

impl HttpClient {
    /// Its session, if it is one.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.kind {
            HttpClientKind::Session(session) => Some(session),
            _ => None,
        }
    }
}

impl Http {
    /// The session of a connection's request, if it has one.
    fn session_of(&mut self, connections: &Connections, slot: usize) -> Option<&mut Session> {
        self.clients.get_mut(connections[HttpSlot(slot)].member?)?.session()
    }

    /// The session that keeps most events.
    fn largest_log(&mut self) -> Option<&mut HttpClient> {
        self.clients.iter_mut().filter(|member| member.is_session()).max_by_key(|member| member.kept())
    }

    /// How many bytes of events each session may keep, besides answers.
    fn most_kept(&self) -> usize {
        MOST_KEPT.min(self.memory.most / self.clients.sessions.len().max(1))
    }
}

/// The kind of a line for a session.
fn kind_of<'a>(outgoing: &'a OutgoingLine<'_>) -> session::LineKind<'a> {
    match (outgoing.answers, outgoing.id) {
        (true, Some(id)) => return session::LineKind::Answer(id),
        (true, None) => return session::LineKind::Other,
        _ => {}
    }
    let method = outgoing.method.and_then(decoded).unwrap_or_default();
    match &*method {
        b"notifications/progress" => {
            let token = member(outgoing.text, b"params").and_then(|params| member(params, b"progressToken"));
            token.map_or(session::LineKind::Other, session::LineKind::Progress)
        }
        b"notifications/tools/list_changed"
        | b"notifications/prompts/list_changed"
        | b"notifications/resources/list_changed"
        | b"notifications/resources/updated" => session::LineKind::Unrelated,
        _ => session::LineKind::Other,
    }
}

impl<I: Io> Shell<I> {
    /// Starts a session with a connection's `initialize`, which has this id.
    fn begin_session(
        &mut self,
        now: Moment,
        slot: usize,
        pool: PoolId,
        id: Id,
        initialize: &[u8],
    ) -> Result<ClientKey, Fault> {
        self.reactor.end_own_client(slot);
        let listener = self.reactor.connections[HttpSlot(slot)].listener;
        let policy = self.reactor.listeners.policy(listener).ok_or_else(Fault::no_session)?;
        let name: Box<str> = policy.new_id().map_err(Fault::busy)?.into();
        let names = &self.reactor.connections[HttpSlot(slot)].incoming.sender.origin.names;
        let (at, of) = (&self.reloads.running.listeners[listener.index()], &self.reactor.workers.pools[pool.index()]);
        let record = self.reactor.persistence.begins(&name, names, of, at, initialize);
        let client = self.add_session(now, slot, pool, Session::new(name, Some(id)))?;
        if let Some(member) = self.reactor.http.clients.get_mut(client) {
            member.record = record;
        }
        Ok(client)
    }

    /// Adds the client of a session, which a connection's request begins or restores.
    pub(super) fn add_session(
        &mut self,
        now: Moment,
        slot: usize,
        pool: PoolId,
        session: Session,
    ) -> Result<ClientKey, Fault> {
        let client = self.add_http_client(now, slot, pool, HttpClientKind::Session(Box::new(session)))?;
        self.reactor.timers.set(Timer::Session(client), Some(now.after(self.reactor.http.session_idle)));
        self.reactor.visit(now, slot, Some(client));
        Ok(client)
    }

    /// Handles messages of a session, or the one that starts it.
    pub(super) fn post_legacy(&mut self, now: Moment, slot: usize, body: Body) -> Result<(), Fault> {
        let (messages, is_array) = match &body {
            Body::One(message) => (std::slice::from_ref(message), false),
            Body::Batch(messages) => (&messages[..], true),
        };
        let begins = !is_array && messages[0].kind() == Kind::Request && *messages[0].method() == *b"initialize";
        let client = match begins {
            true => {
                let pool = self.pool_asked(slot)?;
                let id = messages[0].id().and_then(|id| Id::parse(id).ok());
                self.begin_session(now, slot, pool, id.ok_or_else(too_long)?, messages[0].text())?
            }
            false => self.session_asked(slot)?,
        };
        let Reactor { connections, http, persistence, .. } = &mut self.reactor;
        let connection = &mut connections[HttpSlot(slot)];
        let version = connection.incoming.asked.as_ref().and_then(|asked| asked.version.as_deref());
        let Some(at) = http.clients.get_mut(client) else { return Err(Fault::no_session()) };
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
        if let Some(first) = messages.iter().find(|message| is_initialized(message)) {
            persistence.initialized(&session.id, first.text());
        }
        self.await_answer(now, slot);
        cancelled.into_iter().for_each(|slot| self.reactor.end_unanswered(now, slot));
        match body {
            Body::One(message) => self.hand_over(now, slot, client, message, !has_requests),
            Body::Batch(mut messages) => {
                let last = messages.pop();
                let Reactor { connections, http, .. } = &mut self.reactor;
                let brought = connections[HttpSlot(slot)].incoming.brought();
                messages.into_iter().for_each(|message| http.queue_message(client, message, brought.clone(), None));
                last.into_iter().for_each(|message| self.hand_over(now, slot, client, message, !has_requests));
            }
        }
        Ok(())
    }

    /// The session that a request names, if it belongs to its sender.
    pub(super) fn session_asked(&mut self, slot: usize) -> Result<ClientKey, Fault> {
        self.restore_asked(slot)?;
        let connection = &self.reactor.connections[HttpSlot(slot)];
        let id = connection.incoming.asked.as_ref().and_then(|asked| asked.session.as_deref());
        let missing = "the request names no session (Mcp-Session-Id); begin with initialize";
        let id = id.ok_or_else(|| Fault::new(Status::BadRequest, missing))?;
        let unknown = |is_of_another_node| match is_of_another_node {
            true => Fault::session_of_another_node(),
            false => Fault::no_session(),
        };
        let at = self.http_client_named(slot, id, unknown)?;
        // Another token of its owner may be good for other pools.
        let pools = connection.incoming.sender.origin.pools.as_ref();
        let at = Some(at).filter(|at| pools.is_none_or(|pools| pools.contains(&at.pool)));
        let at = at.ok_or_else(Fault::no_session)?;
        let named = connection.incoming.asked.as_ref().and_then(|asked| asked.pool.as_deref());
        if named.is_some_and(|name| self.reactor.workers.pools[at.pool.index()].core.id != name) {
            return Err(Fault::no_session());
        }
        let client = at.client;
        if connection.member.is_some_and(|other| other != client) {
            self.reactor.end_own_client(slot);
        }
        Ok(client)
    }

    /// Opens or resumes the stream of a session.
    pub(super) fn http_get(&mut self, now: Moment, slot: usize) -> Result<(), Fault> {
        let client = self.session_asked(slot)?;
        let asked = self.reactor.connections[HttpSlot(slot)].incoming.asked.as_ref();
        let bad = || Fault::new(Status::BadRequest, "Last-Event-ID is not one that this session has sent");
        // A client that has received no event may send an empty id.
        let last_event = asked.and_then(|asked| asked.last_event.as_deref()).filter(|text| !text.is_empty());
        let behind = last_event.map(|text| EventId::parse(text).ok_or_else(bad)).transpose()?;
        self.reactor.open_stream(now, slot, client, behind)
    }

    /// Ends a session.
    pub(super) fn http_delete(&mut self, now: Moment, slot: usize) -> Result<(), Fault> {
        if !self.forget_asked(slot) {
            let client = self.session_asked(slot)?;
            let Reactor { http, persistence, .. } = &mut self.reactor;
            let id = http.clients.get(client).and_then(|member| member.kind.kept().id());
            id.into_iter().for_each(|id| persistence.forget(id, true));
            self.reactor.dispatch(now, Input::ClientLeft(client));
        }
        self.reactor.answer_empty(now, slot, Status::NoContent);
        Ok(())
    }
}

impl<I: Io> Reactor<I> {
    /// Delivers a line for a session. None if nothing of it is in flight.
    fn deliver_to_session(&mut self, now: Moment, client: ClientKey, outgoing: &OutgoingLine<'_>) -> Option<bool> {
        if outgoing.answers && outgoing.id.is_none() {
            // The core says why it closes the session. No stream may carry a response but those of its request, and
            // each pending request gets an error of its own.
            return None;
        }
        let (most, blocks) = (self.http.most_kept(), Rc::clone(&self.http.memory.in_place));
        let session = self.http.clients.get_mut(client)?.session()?;
        let kind = kind_of(outgoing);
        let answered = outgoing.id.filter(|_| outgoing.answers).and_then(|id| Id::parse(id).ok());
        if answered.is_some() && session.replayed == answered {
            self.restored(now, client, outgoing);
            return None;
        }
        let is_first = answered.is_some() && session.initialize == answered;
        let Delivery { connection, id, is_whole, is_last, is_first: is_nameless } = session.deliver(&kind)?;
        let is_sent_whole = match connection.map_or(Takes::Either, |at| self.connections[HttpSlot(at)].takes()) {
            Takes::Either => !(session.primes() && SENT_AS_EVENT.contains(&outgoing.len())),
            Takes::Json | Takes::JsonAlone => true,
            Takes::Events => false,
        };
        let is_whole = is_whole && is_sent_whole;
        // A half-closed client may have gone, or wait for this.
        let may_be_gone = connection.is_some_and(|at| self.connections[at].has_ended());
        let header = (is_first && !outgoing.is_error).then(|| session.id.clone());
        if is_first {
            session.initialize = None;
            let text = outgoing.whole();
            let version = member(&text, b"result").and_then(|result| string_in(result, b"protocolVersion"));
            if let Some(version) = version {
                session.agree(&version);
            }
            self.keep_session(client, outgoing.is_error);
        }
        if is_last
            && let Some(at) = connection
            && let Some(fault) = self.refusal_of(at, client, outgoing, is_first)
        {
            self.refuse_too_late(now, at, &fault, outgoing.id);
            if is_first {
                self.dispatch(now, Input::ClientLeft(client));
            }
            return None;
        }
        let session = self.http.clients.get_mut(client)?.session()?;
        let before = session.weight();
        let is_event = connection.is_none() || !is_whole;
        let event = is_event.then(|| outgoing.data(&blocks));
        let lost = match event.clone() {
            None => 0,
            Some(event) if connection.is_some() && !may_be_gone => session.keep(id, event, kind.carries(), most),
            Some(event) => session.keep_untaken(id, event, kind.carries(), is_nameless, most),
        };
        self.http.memory.keep_log(before, session.weight());
        self.count_lost_events(client, lost);
        self.give_up_answers();
        let connection = connection?;
        if is_whole {
            self.answer_whole(now, connection, Status::Ok, outgoing, header.as_deref());
            self.connections[HttpSlot(connection)].outgoing.whole = Some(id);
        } else if let Some(event) = event {
            if self.connections[HttpSlot(connection)].state == State::Waiting {
                self.begin_session_events(now, connection, header.as_deref(), id.place - 1);
            }
            self.queue_event(now, connection, Some(id), EventText::Shared(event), is_last);
        }
        if is_first && outgoing.is_error {
            // No client knows its id.
            self.dispatch(now, Input::ClientLeft(client));
        }
        Some(true)
    }

    /// How a request of a session is refused that comes too late for the daemon, or waited for it until then: as one that
    /// is posted then (`is_taken`). None if the session waits for other answers, or nothing is refused.
    fn refusal_of(&self, slot: usize, client: ClientKey, outgoing: &OutgoingLine<'_>, begins: bool) -> Option<Fault> {
        if !self.comes_too_late(slot, outgoing) {
            return None;
        }
        if begins {
            return Some(Fault::shutting_down());
        }
        let member = self.http.clients.get(client)?;
        let HttpClientKind::Session(session) = &member.kind else { return None };
        session.unanswered().all(|id| member.holds(id)).then(|| self.shuts_session_down(&session.id))
    }

    /// A response becomes a stream of events of its session, which has had `place` of them. It gives out the `id` of the
    /// session if that is given, or if the answer to `initialize` has not come.
    fn begin_session_events(&mut self, now: Moment, slot: usize, id: Option<&str>, place: u32) {
        let stream = self.connections[HttpSlot(slot)].stream;
        let Some(session) = self.http.session_of(&self.connections, slot) else {
            return self.begin_http_events(now, slot, &Beginning::default());
        };
        session.begin_events(stream);
        let early = session.initialize.is_some().then(|| session.id.clone());
        let prime = session.primes().then_some(EventId { stream, place });
        self.begin_http_events(now, slot, &Beginning { id: id.or(early.as_deref()), prime, ..Beginning::default() });
    }

    /// While sessions keep more than they may, the one that keeps most gives up an answer, and its client gets an error in
    /// its place.
    fn give_up_answers(&mut self) {
        while self.http.memory.logs > 2 * self.http.memory.most {
            let Some(member) = self.http.largest_log() else { return };
            let (client, before) = (member.client, member.kept());
            let Some(lost) = member.session().and_then(Session::give_up_answer) else { return };
            let now = member.kept();
            self.http.memory.keep_log(before, now);
            self.count_lost_events(client, lost);
        }
    }

    /// A GET opens a session's stream, or resumes one.
    fn open_stream(
        &mut self,
        now: Moment,
        slot: usize,
        client: ClientKey,
        behind: Option<EventId>,
    ) -> Result<(), Fault> {
        let session = self.http.clients.get_mut(client).and_then(HttpClient::session);
        let session = session.ok_or_else(Fault::no_session)?;
        let old = match behind.map(|id| session.resume(slot, id)).transpose()? {
            Some(Resumed::Events(old)) => old,
            // A client that reads this does not try again.
            Some(Resumed::Nothing) => {
                self.answer_empty(now, slot, Status::NoContent);
                return Ok(());
            }
            None => session.open(slot),
        };
        let stream = behind.map_or(0, |id| id.stream);
        let is_lost = session.tells_of_loss(behind);
        let place = behind.filter(|_| !is_lost).map_or_else(|| session.place(0), |id| id.place);
        self.cut_replays(now, slot, client, stream);
        if let Some(old) = old.filter(|old| *old != slot) {
            self.end_stream(now, old);
        }
        let connection = &mut self.connections[HttpSlot(slot)];
        (connection.member, connection.stream) = (Some(client), stream);
        self.begin_session_events(now, slot, None, place);
        if is_lost {
            let connection = &mut self.connections[HttpSlot(slot)];
            let is_old = connection.incoming.is_old;
            write::comment(
                connection.outgoing.queue(),
                "the daemon was restarted, and events from before the restart are lost",
                is_old,
            );
        }
        let Some(session) = self.http.clients.get_mut(client).and_then(HttpClient::session) else { return Ok(()) };
        let mut replay = Replay::default();
        if let Some(id) = behind {
            session
                .events_behind(id)
                .map(StoredEvent::shared)
                .for_each(|(id, data)| replay.push(Some(id), data, false));
        }
        if stream == 0 {
            // Those of other streams get their places behind the last one here.
            let last = session.place(0);
            let is_behind = |id: EventId| behind.is_some_and(|behind| id.place > behind.place && id.place <= last);
            let untaken = session.untaken(behind.is_none()).filter(|event| !is_behind(event.id));
            untaken.map(StoredEvent::shared).for_each(|(id, data)| replay.push(Some(id), data, false));
        }
        let goes_on = session.goes_on(stream);
        if !replay.is_empty() {
            self.connections[HttpSlot(slot)].outgoing.replay = Some(Box::new(replay));
        }
        if !goes_on {
            self.end_http_events(now, slot);
        }
        Ok(())
    }

    /// Other connections that are sent kept events of this stream end: the stream continues on a new one. One in the middle
    /// of an event, whose length it has said, cannot end properly; to let it finish the event would keep that for a
    /// reader that has probably gone.
    fn cut_replays(&mut self, now: Moment, but: usize, client: ClientKey, stream: u32) {
        let is_one = |slot: usize, it: &Exchange| {
            slot != but && it.member == Some(client) && it.stream == stream && it.outgoing.replay.is_some()
        };
        let cut: Vec<usize> =
            self.connections.all_http().filter(|(slot, _, it)| is_one(*slot, it)).map(|(slot, ..)| slot).collect();
        for slot in cut {
            let replay = &mut self.connections[HttpSlot(slot)].outgoing.replay;
            let Some(replay) = replay.take_if(|replay| !replay.is_amid_event()) else {
                self.close_http(now, slot);
                continue;
            };
            let (came, owed) = replay.give_up();
            let lost = self.http.session_of(&self.connections, slot).map_or(0, |session| session.detach(slot, &came));
            self.count_lost_events(client, lost);
            self.end_http_events(now, slot);
            self.report_sent(now, client, owed);
        }
    }

    /// The client of a stream has half-closed: only what is queued is sent.
    fn leave_stream(&mut self, now: Moment, slot: usize) {
        if let Some(session) = self.http.session_of(&self.connections, slot) {
            session.detach(slot, &[]);
        }
        self.end_stream(now, slot);
    }

    /// Another connection has taken over a stream.
    fn end_stream(&mut self, now: Moment, slot: usize) {
        if self.connections.http(slot).is_some_and(|connection| connection.state == State::Waiting) {
            self.begin_events_by_role(now, slot);
        }
        if self.connections.http(slot).is_some_and(|connection| connection.state == State::Events) {
            self.end_http_events(now, slot);
        }
    }

    /// The response to requests that their client has cancelled ends without an answer (MCP, "Cancellation").
    fn end_unanswered(&mut self, now: Moment, slot: usize) {
        let Some(connection) = self.connections.http_mut(slot) else { return };
        if connection.state == State::Waiting && !connection.takes().prefers_events() {
            return self.answer_empty(now, slot, Status::Accepted);
        }
        if connection.state == State::Waiting {
            // No event begins it: nothing will come that it could be resumed for.
            self.begin_http_events(now, slot, &Beginning::default());
        }
        if self.connections[HttpSlot(slot)].state == State::Events {
            self.end_http_events(now, slot);
        }
    }
}

impl HttpClientData for Session {
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

    fn begin_event(&mut self, event: EventId) {
        self.take(event);
    }

    fn unanswered_on(&self, stream: u32) -> Vec<Id> {
        Self::unanswered_on(self, stream).cloned().collect()
    }
}

impl ClientProtocol for Session {
    fn deliver<I: Io>(
        reactor: &mut Reactor<I>,
        now: Moment,
        client: ClientKey,
        outgoing: &OutgoingLine<'_>,
        _bytes: usize,
    ) -> bool {
        reactor.deliver_to_session(now, client, outgoing) == Some(true)
    }

    fn begin_events<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, _client: ClientKey) {
        let stream = reactor.connections[HttpSlot(slot)].stream;
        let place = reactor.http.session_of(&reactor.connections, slot).map_or(0, |session| session.place(stream));
        reactor.begin_session_events(now, slot, None, place);
    }

    /// It still gets its answers; but the client of a GET stream has gone, and will return for undelivered events. Whether
    /// one that awaits its session has gone is asked at once: the session would be nobody's, and have a worker.
    fn half_closed<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize) {
        let connection = &reactor.connections[HttpSlot(slot)];
        let (state, stream) = (connection.state, connection.stream);
        let is_get = connection.incoming.asked.as_ref().is_some_and(|asked| asked.verb == Verb::Get);
        if state == State::Events && is_get {
            return reactor.leave_stream(now, slot);
        }
        reactor.watch_half_closed(now, slot);
        if reactor.http.session_of(&reactor.connections, slot).is_some_and(|session| session.begins_on(stream)) {
            reactor.set_deadline(slot, now);
        }
    }

    fn answered<I: Io>(reactor: &mut Reactor<I>, _now: Moment, slot: usize, client: ClientKey) {
        if let Some(session) = reactor.http.clients.get_mut(client).and_then(HttpClient::session) {
            session.detach(slot, &[]);
        }
    }

    /// What was not sent is kept for another connection.
    fn left<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, client: ClientKey, unsent: Unsent) {
        let Unsent { owed, events, whole, is_begun } = unsent;
        let Some(member) = reactor.http.clients.get_mut(client) else { return };
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
        (Self::unanswered_on(self, stream).map(Id::token).collect(), self.begins_on(stream))
    }

    /// Checks whether a session is idle.
    fn due<I: Io>(shell: &mut Shell<I>, now: Moment, client: ClientKey) {
        let idle = shell.reactor.http.session_idle;
        let Some(member) = shell.reactor.http.clients.get_mut(client) else { return };
        let since = member.since;
        let is_in_use = member.session().is_some_and(|session| session.is_in_use());
        let at = if is_in_use { now.after(idle) } else { since.after(idle) };
        let limit = shell.reactor.http.session_detached;
        let detached = member.detached.zip(limit).map(|(since, limit)| since.after(limit));
        let at = detached.map_or(at, |detached| at.min(detached));
        if at > now {
            return shell.reactor.timers.set(Timer::Session(client), Some(at));
        }
        shell.reactor.dispatch(now, Input::EndClient { client, why: Reason::SessionIdle });
    }

    fn removed<I: Io>(reactor: &mut Reactor<I>, _now: Moment, member: &HttpClient) {
        reactor.http.memory.keep_log(member.kept(), 0);
        let Some(id) = member.kind.kept().id() else { return };
        match member.restoring {
            Restoring::No => reactor.persistence.forget(id, false),
            // The `initialize` was refused, or the client was closed before an answer: no worker has failed.
            Restoring::Queued | Restoring::Asked => reactor.persistence.waits_again(id, false),
            Restoring::Failed => reactor.persistence.waits_again(id, true),
        }
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
