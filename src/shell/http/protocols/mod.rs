//! The protocols that clients speak in requests of HTTP: what each has to say, and which there are.
//!
//! A listener has one protocol ([`Protocol`]), and each client of it one of the [kinds](HttpClientKind) of that
//! protocol ([`ClientProtocol`]). All else in `http` serves any of them: it reads requests, finds places for
//! connections, counts memory, and calls what is below by the methods of `Shell` and `Reactor` here. A further protocol
//! is a file in this folder, which implements [`Protocol`], and for its clients
//! [`HttpClientData`](super::http_clients::HttpClientData) and [`ClientProtocol`]; the compiler names what is missing.
//! It is registered in `Requests` (`src/kinds.rs`), in [`HttpClientKind`] and in the two lists here.

mod acp;
pub(super) mod mcp;

use super::deliver::{Beginning, OutgoingLine};
use super::exchange::Unsent;
use super::http_clients::{HttpClient, HttpClientKind, Modern};
use crate::acp::Streams;
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Moment};
use crate::http1::Request;
use crate::io::Io;
use crate::kinds::Requests;
use crate::mcp::asked::Verb;
use crate::mcp::write::OwnFields;
use crate::mcp::{Asked, Body, Fault, Session};
use crate::shell::connections::HttpSlot;
use crate::shell::reactor::Reactor;
use crate::shell::turn::Shell;

/// What a protocol says of the requests of its listeners.
trait Protocol {
    /// Its own fields in heads.
    fn fields() -> &'static OwnFields;

    /// Reads what the head of a request asks for at a listener with this path.
    ///
    /// # Errors
    /// The request cannot be served whatever its body is.
    fn asked(head: &Request<'_>, path: &str) -> Result<Asked, Fault>;

    /// Handles a GET or a DELETE.
    ///
    /// # Errors
    /// It is refused.
    fn ask<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, verb: Verb) -> Result<(), Fault>;

    /// Whether a request may have a batch, by its head. Most may not, so that is checked before one is taken apart.
    ///
    /// # Errors
    /// It may not.
    fn may_batch<I: Io>(shell: &mut Shell<I>, slot: usize) -> Result<(), Fault>;

    /// Whether a request may have any message, by its head: asked if its body is none.
    ///
    /// # Errors
    /// It may not.
    fn may_post<I: Io>(shell: &mut Shell<I>, slot: usize) -> Result<(), Fault>;

    /// Handles what was posted.
    ///
    /// # Errors
    /// It is refused.
    fn post<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, body: Body) -> Result<(), Fault>;

    /// A message that it has parked has waited for as long as it said.
    fn parked_due<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.reactor.close_http(now, slot);
    }

    /// Does what it has to do besides completions ([`Http::is_busy`](super::Http::is_busy)).
    fn work<I: Io>(_shell: &mut Shell<I>, _now: Moment) {}
}

/// What a protocol does with a client, which [`HttpClientData`](super::http_clients::HttpClientData) what it needs for that.
trait ClientProtocol {
    /// Delivers a line, whose length is `bytes`. False if nobody waits for it, so that it is off the core's hands.
    fn deliver<I: Io>(
        reactor: &mut Reactor<I>,
        now: Moment,
        client: ClientKey,
        outgoing: &OutgoingLine<'_>,
        bytes: usize,
    ) -> bool;

    /// The response to a request of it becomes a stream of events, before there is one.
    fn begin_events<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, _client: ClientKey) {
        reactor.begin_http_events(now, slot, &Beginning::default());
    }

    /// A connection has sent so many bytes for it, which are of the core's lines unless it counts them otherwise.
    fn sent<I: Io>(reactor: &mut Reactor<I>, now: Moment, _slot: usize, client: ClientKey, owed: usize) {
        reactor.report_sent(now, client, owed);
    }

    /// A connection that waits for an answer to it, or reads events of it, has half-closed.
    fn half_closed<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize);

    /// The request of a connection is done: its response was sent.
    fn answered<I: Io>(_reactor: &mut Reactor<I>, _now: Moment, _slot: usize, _client: ClientKey) {}

    /// A connection has gone with what it did not send.
    fn left<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize, client: ClientKey, unsent: Unsent);

    /// What a connection waits for is given up; `asks` is the id of its only request, if it has one. Returns the ids of
    /// its requests, and whether the client is of no use without their answers.
    fn give_up(&mut self, slot: usize, stream: u32, asks: Option<&Id>) -> (Vec<Vec<u8>>, bool);

    /// Its timer has expired.
    fn due<I: Io>(_shell: &mut Shell<I>, _now: Moment, _client: ClientKey) {}

    /// The core closes it once its last lines were sent.
    fn flush<I: Io>(_reactor: &mut Reactor<I>, _now: Moment, _client: ClientKey) {}

    /// It was removed. Connections that wait for it are notified afterwards.
    fn removed<I: Io>(_reactor: &mut Reactor<I>, _now: Moment, _member: &HttpClient) {}
}

/// Calls a function of this protocol.
macro_rules! by_protocol {
    ($protocol:expr, $function:ident($($argument:expr),*)) => {
        match $protocol {
            Requests::Mcp => mcp::Mcp::$function($($argument),*),
            Requests::Acp => acp::Acp::$function($($argument),*),
        }
    };
}

/// Calls a function of the clients of this kind.
macro_rules! by_role {
    ($kind:expr, $function:ident($($argument:expr),*)) => {
        match $kind {
            HttpClientKind::Session(_) => <Session as ClientProtocol>::$function($($argument),*),
            HttpClientKind::Modern(_) => <Modern as ClientProtocol>::$function($($argument),*),
            HttpClientKind::Acp(_) => <Streams as ClientProtocol>::$function($($argument),*),
        }
    };
}

/// A protocol's own fields in heads.
pub(super) fn fields(protocol: Requests) -> &'static OwnFields {
    by_protocol!(protocol, fields())
}

/// Reads what the head of a request asks for at a listener of this protocol with this path.
///
/// # Errors
/// The request cannot be served whatever its body is.
pub(super) fn asked(protocol: Requests, head: &Request<'_>, path: &str) -> Result<Asked, Fault> {
    by_protocol!(protocol, asked(head, path))
}

impl<I: Io> Shell<I> {
    /// Handles a GET or a DELETE.
    pub(super) fn ask_by_protocol(&mut self, now: Moment, slot: usize, verb: Verb) -> Result<(), Fault> {
        by_protocol!(self.reactor.protocol(slot), ask(self, now, slot, verb))
    }

    /// Whether a request may have a batch, by its head.
    pub(super) fn may_batch_by_protocol(&mut self, slot: usize) -> Result<(), Fault> {
        by_protocol!(self.reactor.protocol(slot), may_batch(self, slot))
    }

    /// Whether a request may have any message, by its head.
    pub(super) fn may_post_by_protocol(&mut self, slot: usize) -> Result<(), Fault> {
        by_protocol!(self.reactor.protocol(slot), may_post(self, slot))
    }

    /// Handles what was posted.
    pub(super) fn post_by_protocol(&mut self, now: Moment, slot: usize, body: Body) -> Result<(), Fault> {
        by_protocol!(self.reactor.protocol(slot), post(self, now, slot, body))
    }

    /// A parked message has waited for as long as its protocol said.
    pub(super) fn parked_due_by_protocol(&mut self, now: Moment, slot: usize) {
        by_protocol!(self.reactor.protocol(slot), parked_due(self, now, slot));
    }

    /// Each protocol does what it has to do besides completions.
    pub(super) fn work_by_protocols(&mut self, now: Moment) {
        for protocol in Requests::ALL {
            by_protocol!(protocol, work(self, now));
        }
    }

    /// The timer of a client has expired.
    pub(in crate::shell) fn session_due(&mut self, now: Moment, client: ClientKey) {
        let Some(member) = self.reactor.http.clients.get(client) else { return };
        by_role!(member.kind, due(self, now, client));
    }
}

impl<I: Io> Reactor<I> {
    /// The protocol of a connection's requests.
    pub(super) fn protocol(&self, slot: usize) -> Requests {
        // A listener that has gone refuses its requests as those of MCP.
        self.listeners.requests(self.connections[HttpSlot(slot)].listener).unwrap_or(Requests::Mcp)
    }

    /// Delivers a line to a client. False if nobody waits for it.
    pub(super) fn deliver_by_role(
        &mut self,
        now: Moment,
        to: ClientKey,
        outgoing: &OutgoingLine<'_>,
        bytes: usize,
    ) -> bool {
        let Some(member) = self.http.clients.get(to) else { return false };
        by_role!(member.kind, deliver(self, now, to, outgoing, bytes))
    }

    /// The response to a connection's request becomes a stream of events, before there is one.
    pub(super) fn begin_events_by_role(&mut self, now: Moment, slot: usize) {
        let client = self.connections[HttpSlot(slot)].member;
        let Some(member) = client.and_then(|client| self.http.clients.get(client)) else {
            return self.begin_http_events(now, slot, &Beginning::default());
        };
        let client = member.client;
        by_role!(member.kind, begin_events(self, now, slot, client));
    }

    /// A connection has sent so many bytes of the core's lines for its client.
    pub(super) fn sent_by_role(&mut self, now: Moment, slot: usize, owed: usize) {
        let client = self.connections[HttpSlot(slot)].member;
        let Some(member) = client.and_then(|client| self.http.clients.get(client)) else { return };
        let client = member.client;
        by_role!(member.kind, sent(self, now, slot, client, owed));
    }

    /// A connection that waits for an answer, or reads events, has half-closed.
    pub(super) fn half_closed_by_role(&mut self, now: Moment, slot: usize) {
        let client = self.connections[HttpSlot(slot)].member;
        let Some(member) = client.and_then(|client| self.http.clients.get(client)) else {
            return self.close_http(now, slot);
        };
        by_role!(member.kind, half_closed(self, now, slot));
    }

    /// The request of a connection is done, for this client.
    pub(super) fn answered_by_role(&mut self, now: Moment, slot: usize, client: ClientKey) {
        let Some(member) = self.http.clients.get(client) else { return };
        by_role!(member.kind, answered(self, now, slot, client));
    }

    /// A connection has gone, which was this client's, with what it did not send.
    pub(super) fn left_by_role(&mut self, now: Moment, slot: usize, client: ClientKey, unsent: Unsent) {
        let Some(member) = self.http.clients.get(client) else { return };
        by_role!(member.kind, left(self, now, slot, client, unsent));
    }

    /// The core closes a client once its last lines were sent.
    pub(super) fn flush_by_role(&mut self, now: Moment, client: ClientKey) {
        let Some(member) = self.http.clients.get(client) else { return };
        by_role!(member.kind, flush(self, now, client));
    }

    /// A client was removed.
    pub(super) fn removed_by_kind(&mut self, now: Moment, member: &HttpClient) {
        by_role!(member.kind, removed(self, now, member));
    }
}

impl HttpClientKind {
    /// What a connection waits for is given up: see [`ClientProtocol::give_up`].
    pub(super) fn give_up(&mut self, slot: usize, stream: u32, asks: Option<&Id>) -> (Vec<Vec<u8>>, bool) {
        match self {
            Self::Session(session) => session.give_up(slot, stream, asks),
            Self::Modern(modern) => modern.give_up(slot, stream, asks),
            Self::Acp(streams) => ClientProtocol::give_up(&mut **streams, slot, stream, asks),
        }
    }
}
