//! ACP over Streamable HTTP: connections that are clients of the core and no sockets. Each message is posted alone, and
//! answered with 202 as soon as the core has taken it; what the core has for the client is sent on the streams of events
//! that its requests read (`acp/streams.rs`). A request for a WebSocket at the same path becomes a client of its own.
//!
//! What waits on a stream counts for the client as not sent, so its workers are paused like those of any client that does
//! not read, and it is closed if it never does.

use std::rc::Rc;
use std::time::Duration;

use super::{ClientProtocol, Protocol};
use crate::acp::posted::{answered_on, is_initialize, no_batches, session_said};
use crate::acp::streams::{Delivery, LineKind, Number};
use crate::acp::{Streams, asked};
use crate::bus::eras::protocol::INVALID_REQUEST;
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, Reason};
use crate::http1::{Request, Status};
use crate::io::Io;
use crate::mcp::asked::Verb;
use crate::mcp::write::{self, Manner, OwnFields};
use crate::mcp::{Asked, Body, Fault, Kind, Message};
use crate::scan::{member, string_in};
use crate::shell::connections::HttpSlot;
use crate::shell::http::Http;
use crate::shell::http::deliver::{Beginning, OutgoingLine};
use crate::shell::http::exchange::{State, Unsent};
use crate::shell::http::http_clients::{HttpClient, HttpClientData, HttpClientKind};
use crate::shell::reactor::Reactor;
use crate::shell::timers::Timer;
use crate::shell::turn::Shell;

/// How long a connection may have neither a stream nor a request, unless `limits.session_detached_sec` says otherwise.
/// Clients of ACP open no stream anew, but begin a new connection, so one without a stream has lost its client.
const DETACHED: Duration = Duration::from_secs(60);
/// A longer line is not looked through for the session that it gives out.
const LONG: usize = 64 * 1024;

impl Http {
    /// The streams of a client, if it is one of ACP.
    fn streams(&mut self, client: ClientKey) -> Option<&mut Streams> {
        match &mut self.clients.get_mut(client)?.kind {
            HttpClientKind::Acp(streams) => Some(streams),
            _ => None,
        }
    }

    /// How long a connection may have neither a stream nor a request.
    fn detached_limit(&self) -> Duration {
        self.session_detached.unwrap_or(DETACHED)
    }

    /// Calls with the streams of a client, if it is one of ACP, and counts what they keep afterwards.
    fn with_streams<T>(&mut self, client: ClientKey, call: impl FnOnce(&mut Streams) -> T) -> Option<T> {
        let streams = self.streams(client)?;
        let before = streams.weight();
        let result = call(streams);
        let after = streams.weight();
        self.memory.keep(before, after);
        Some(result)
    }
}

/// ACP, as a protocol of requests.
pub(super) struct Acp;

impl Protocol for Acp {
    fn fields() -> &'static OwnFields {
        &asked::FIELDS
    }

    fn asked(head: &Request<'_>, path: &str) -> Result<Asked, Fault> {
        asked::asked(head, path)
    }

    /// A GET reads a stream, and a DELETE ends the connection.
    fn ask<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, verb: Verb) -> Result<(), Fault> {
        let client = shell.connection_asked(slot)?;
        if verb == Verb::Get {
            return shell.reactor.open_acp_stream(now, slot, client);
        }
        shell.reactor.dispatch(now, Input::ClientLeft(client));
        shell.reactor.answer_empty(now, slot, Status::Accepted);
        Ok(())
    }

    fn may_batch<I: Io>(_shell: &mut Shell<I>, _slot: usize) -> Result<(), Fault> {
        Err(no_batches())
    }

    fn may_post<I: Io>(_shell: &mut Shell<I>, _slot: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn post<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, body: Body) -> Result<(), Fault> {
        let Body::One(message) = body else { return Err(no_batches()) };
        let connection = &mut shell.reactor.connections[HttpSlot(slot)];
        connection.stream = 0;
        let asked = connection.incoming.asked.as_ref().ok_or_else(asked::unknown_connection)?;
        let id =
            message.id().filter(|_| message.kind() == Kind::Request).map(|id| Id::parse(id).map_err(|_| too_long()));
        let id = id.transpose()?;
        if is_initialize(&message) {
            if asked.session.is_some() {
                let why = "initialize begins a connection, and this one has begun: post it without Acp-Connection-Id";
                return Err(Fault::bad(INVALID_REQUEST, why));
            }
            return shell.begin_acp(now, slot, id.ok_or_else(too_long)?, message);
        }
        let named = asked.name.clone();
        let client = shell.connection_asked(slot)?;
        let on = answered_on(&message, named.as_deref())?;
        let streams = shell.reactor.http.streams(client);
        if let Some((streams, id)) = streams.zip(id) {
            streams.ask(id, on);
        }
        shell.reactor.connections[HttpSlot(slot)].member = Some(client);
        shell.await_answer(now, slot);
        shell.hand_over(now, slot, client, message, true);
        Ok(())
    }
}

impl<I: Io> Shell<I> {
    /// Begins a connection with its first message, which is answered at once.
    fn begin_acp(&mut self, now: Moment, slot: usize, id: Id, message: Message) -> Result<(), Fault> {
        self.reactor.end_own_client(slot);
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        let listener = connection.listener;
        let policy = self.reactor.listeners.policy(listener).ok_or_else(asked::unknown_connection)?;
        let name: Box<str> = policy.new_id().map_err(Fault::busy)?.into();
        let origin = &mut connection.incoming.sender.origin;
        origin.names.connection_id = Some(name.clone());
        let pool = self.bus.view().default_pool(listener, origin).unwrap_or_default();
        let client =
            self.add_http_client(now, slot, pool, HttpClientKind::Acp(Box::new(Streams::new(name, id, slot))))?;
        self.reactor.timers.set(Timer::Session(client), Some(now.after(DETACHED)));
        self.reactor.visit(now, slot, Some(client));
        self.reactor.connections[HttpSlot(slot)].member = Some(client);
        self.await_answer(now, slot);
        self.hand_over(now, slot, client, message, false);
        Ok(())
    }

    /// The connection that a request names, if it belongs to its sender.
    fn connection_asked(&self, slot: usize) -> Result<ClientKey, Fault> {
        let connection = &self.reactor.connections[HttpSlot(slot)];
        let id = connection.incoming.asked.as_ref().and_then(|asked| asked.session.as_deref());
        let unknown = |is_of_another_node| match is_of_another_node {
            true => asked::connection_of_another_node(),
            false => asked::unknown_connection(),
        };
        let at = self.http_client_named(slot, id.ok_or_else(asked::no_connection)?, unknown)?;
        // Another token of its owner may be good for other pools.
        let is_its = matches!(at.kind, HttpClientKind::Acp(_)) && at.pools == connection.incoming.sender.origin.pools;
        is_its.then_some(at.client).ok_or_else(asked::unknown_connection)
    }
}

impl<I: Io> Reactor<I> {
    /// A GET reads a stream of a connection from now on.
    fn open_acp_stream(&mut self, now: Moment, slot: usize, client: ClientKey) -> Result<(), Fault> {
        let connection = &mut self.connections[HttpSlot(slot)];
        let name = connection.incoming.asked.as_ref().and_then(|asked| asked.name.clone());
        let streams = self.http.streams(client).ok_or_else(asked::unknown_connection)?;
        connection.stream = streams.open(slot, name.as_deref())?;
        connection.member = Some(client);
        let (id, more) = (streams.id.clone(), asked::session_field(name.as_deref()));
        self.begin_http_events(now, slot, &Beginning { fields: &asked::FIELDS, id: Some(&id), more, prime: None });
        Ok(())
    }

    /// The answer to `initialize`: only now its client learns the id of its connection. If it is an error, there is none.
    fn begin_with_answer(
        &mut self,
        now: Moment,
        slot: usize,
        client: ClientKey,
        outgoing: &OutgoingLine<'_>,
        length: usize,
    ) {
        let Some(id) = self.http.streams(client).map(|streams| streams.id.clone()) else { return };
        if self.comes_too_late(slot, outgoing) {
            self.refuse_too_late(now, slot, &Fault::shutting_down(), outgoing.id);
            self.report_sent(now, client, length);
            return self.dispatch(now, Input::ClientLeft(client));
        }
        let connection = &mut self.connections[HttpSlot(slot)];
        let (id, whole) = ((!outgoing.is_error).then_some(&*id), outgoing.whole());
        let manner = Manner { fields: &asked::FIELDS, ..connection.manner(id) };
        write::json_head(connection.outgoing.queue(), Status::Ok, &manner, whole.len());
        connection.outgoing.queue().extend_from_slice(&whole);
        connection.outgoing.note_unacked(length, None);
        self.begin_http_answer(now, slot);
        if outgoing.is_error {
            self.dispatch(now, Input::ClientLeft(client));
        }
    }

    /// Hands over to the reader of a stream what waits there, if it has sent all else.
    fn feed_acp(&mut self, slot: usize) {
        let Some(connection) = self.connections.http_mut(slot) else { return };
        if connection.state != State::Events || connection.stream == 0 || !connection.outgoing.is_empty() {
            return;
        }
        let (stream, is_old, Some(client)) = (connection.stream, connection.incoming.is_old, connection.member) else {
            return;
        };
        let Some(streams) = self.http.streams(client) else { return };
        let length = streams.hand_over(stream, connection.outgoing.queue(), is_old);
        if length > 0 {
            connection.outgoing.note_unacked(length, None);
            connection.since = self.clock.now();
            self.connections.mark_dirty(slot);
        }
    }

    /// A connection has gone, or its response is complete: it reads no stream of this client any more. `owed` bytes of what
    /// it had of the core's lines were not sent.
    fn detach_acp(&mut self, now: Moment, slot: usize, client: ClientKey, owed: usize) {
        let stream = self.connections[HttpSlot(slot)].stream;
        let detached = self.http.with_streams(client, |streams| {
            streams.detach(stream, slot);
            (streams.give_up(slot).is_some(), streams.is_in_use())
        });
        let Some((is_unclaimed, is_in_use)) = detached else { return };
        let member = self.http.clients.get_mut(client);
        let is_closing = member.is_some_and(|member| {
            member.since = now;
            member.is_closing
        });
        self.connections[HttpSlot(slot)].stream = 0;
        if !is_in_use {
            self.timers.set(Timer::Session(client), Some(now.after(self.http.detached_limit())));
        }
        if stream == 0 {
            // That was the answer to `initialize`.
            self.report_sent(now, client, owed);
        }
        if is_closing {
            self.drop_unread(now, client);
        }
        if is_unclaimed {
            self.dispatch(now, Input::ClientLeft(client));
        }
    }

    /// A client that is being closed gets no more streams: what waits for one is lost.
    fn drop_unread(&mut self, now: Moment, client: ClientKey) {
        let Some(dropped) = self.http.with_streams(client, |streams| streams.drop_waiting(false)) else { return };
        self.count_lost_events(client, dropped.lines);
        self.report_sent(now, client, dropped.owed);
    }

    /// The client of a stream has half-closed, so it has gone: a client that reads closes nothing. What was not sent waits
    /// for the next reader.
    fn leave_acp_stream(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[HttpSlot(slot)];
        let Some(client) = connection.member else { return self.close_http(now, slot) };
        if !connection.outgoing.is_empty() {
            return self.close_http(now, slot);
        }
        self.detach_acp(now, slot, client, 0);
        let connection = &mut self.connections[HttpSlot(slot)];
        connection.member = None;
        write::end_events(connection.outgoing.queue(), connection.incoming.is_old);
        self.begin_http_answer(now, slot);
    }
}

impl HttpClientData for Streams {
    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn connections(&self) -> Vec<usize> {
        self.sockets().map(|(socket, _)| socket).collect()
    }

    fn uses(&self) -> (bool, bool) {
        (self.is_in_use(), self.has_requests())
    }

    fn weight(&self) -> usize {
        Self::weight(self)
    }

    fn forget(&mut self) -> usize {
        self.drop_waiting(true).lines
    }

    fn keeps_streams(&self) -> bool {
        true
    }
}

impl ClientProtocol for Streams {
    fn deliver<I: Io>(
        reactor: &mut Reactor<I>,
        now: Moment,
        client: ClientKey,
        outgoing: &OutgoingLine<'_>,
        bytes: usize,
    ) -> bool {
        let text = outgoing.text;
        let gives = || string_in(member(text, b"result").filter(|_| text.len() < LONG)?, b"sessionId");
        let session = if outgoing.answers().is_some() { gives() } else { session_said(text) };
        let line = match outgoing.answers() {
            Some(id) => LineKind::Answer(id, session.as_deref()),
            None => LineKind::Other(session.as_deref()),
        };
        let blocks = Rc::clone(&reactor.http.memory.in_place);
        let delivery =
            reactor.http.with_streams(client, |streams| streams.deliver(line, bytes, || outgoing.data(&blocks)));
        match delivery {
            Some(Delivery::First(socket)) => reactor.begin_with_answer(now, socket, client, outgoing, bytes),
            Some(Delivery::Queued(Some(socket))) => reactor.feed_acp(socket),
            Some(Delivery::Queued(None)) => {}
            None => return false,
        }
        true
    }

    /// What was sent is of lines, or, on a stream, of their events. What waits on the stream is sent next.
    fn sent<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, client: ClientKey, owed: usize) {
        let stream = reactor.connections[HttpSlot(slot)].stream;
        let of_lines = reactor.http.with_streams(client, |streams| match stream {
            0 => owed,
            number => streams.sent(number, owed),
        });
        reactor.report_sent(now, client, of_lines.unwrap_or(owed));
        reactor.feed_acp(slot);
    }

    fn half_closed<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize) {
        match reactor.connections[HttpSlot(slot)].state {
            State::Events => reactor.leave_acp_stream(now, slot),
            _ => reactor.watch_half_closed(now, slot),
        }
    }

    fn answered<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, client: ClientKey) {
        reactor.detach_acp(now, slot, client, 0);
    }

    fn left<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, client: ClientKey, unsent: Unsent) {
        reactor.detach_acp(now, slot, client, unsent.owed);
    }

    /// Without the answer to its first request nobody knows its id. Other requests are answered on its streams.
    fn give_up(&mut self, slot: usize, _stream: u32, _asks: Option<&Id>) -> (Vec<Vec<u8>>, bool) {
        let begins = Self::give_up(self, slot);
        (begins.iter().map(Id::token).collect(), begins.is_some())
    }

    /// Checks whether a connection is still in use.
    fn due<I: Io>(shell: &mut Shell<I>, now: Moment, client: ClientKey) {
        let limit = shell.reactor.http.detached_limit();
        let Some(member) = shell.reactor.http.clients.get(client) else { return };
        let is_in_use = matches!(&member.kind, HttpClientKind::Acp(streams) if streams.is_in_use());
        let at = if is_in_use { now.after(limit) } else { member.since.after(limit) };
        if at > now {
            return shell.reactor.timers.set(Timer::Session(client), Some(at));
        }
        shell.reactor.dispatch(now, Input::EndClient { client, why: Reason::SessionIdle });
    }

    fn flush<I: Io>(reactor: &mut Reactor<I>, now: Moment, client: ClientKey) {
        reactor.drop_unread(now, client);
    }

    /// Those of its streams that are in the middle of an event cannot end properly.
    fn removed<I: Io>(reactor: &mut Reactor<I>, now: Moment, member: &HttpClient) {
        let HttpClientKind::Acp(streams) = &member.kind else { return };
        reactor.http.memory.keep(streams.weight(), 0);
        let amid: Vec<(usize, Number)> = streams.sockets().filter(|(_, number)| streams.is_amid(*number)).collect();
        amid.into_iter().for_each(|(slot, _)| reactor.close_http(now, slot));
    }
}

fn too_long() -> Fault {
    Fault::bad(INVALID_REQUEST, "the id is longer than 128 bytes")
}
