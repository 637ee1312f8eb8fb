//! Handshakes: connections that are not clients yet, since the PROXY header with the client's address, or the WebSocket
//! request, is outstanding. They use no client slot, and the core does not know of them until the handshake is complete
//! or has failed. `http/serve.rs` moves their bytes.
//!
//! There may be as many as there are free client slots, and some more, which ask for health or are refused because the
//! daemon is full. A new one replaces one of the source with most of them (`eviction.rs`). One that succeeds becomes a
//! client in its slot.

mod health;

use std::time::Duration;

use health::health;

use super::access::Sender;
use super::connection_counts::Purpose;
use super::connections::HttpSlot;
use super::endpoint::Endpoint;
use super::http::exchange::{Accepted, Exchange, State, limits};
use super::http::service::Service;
use super::protocol::Protocol;
use super::reactor::Reactor;
use super::turn::Shell;
use super::websocket::WebSocket;
use crate::access::Refusal;
use crate::bus::port::{Input, ListenerId, Moment, Origin, Peer, Place, Reason};
use crate::http1::{Error, Limits, Method, Request, RequestReader, Status};
use crate::io::Io;
use crate::mcp::Fault;
use crate::proxy::{self, Header, HeaderReading};
use crate::websocket::{HEALTH, request};

/// Time limit for a PROXY header. A proxy sends it in the first packet; one packet may be lost.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Limits of the request of a WebSocket. A body is refused by its head.
const LIMITS: Limits = Limits {
    body: u64::MAX,
    head_time: Duration::from_secs(10),
    body_time: Duration::from_secs(10),
    idle_time: Duration::from_secs(10),
};
/// The refusal if its place is needed.
const CROWDED: &str = "more connections wait than there is room for, and it is one of the source that has most of them";
/// The refusal if its source has too many.
const SHARE: &str = "with those that are not admitted yet, its source has more connections than this listener accepts \
    from one \
                     (listeners[].max_connections)";

/// Handshakes, as a service of HTTP.
pub(super) struct Handshakes;

impl Service for Handshakes {
    fn head<I: Io>(
        shell: &mut Shell<I>,
        now: Moment,
        slot: usize,
        head: &Request<'_>,
        begun: &[u8],
    ) -> Result<(), Fault> {
        let is_check = !head.fields.has("upgrade", "websocket") && shell.answers_health(now, slot, head);
        if is_check { Ok(()) } else { shell.upgrade(now, slot, head, begun) }
    }

    /// What is admitted or refused has been by its head.
    fn request<I: Io>(_shell: &mut Shell<I>, _now: Moment, _slot: usize) {}

    fn malformed(error: Error, _longest: usize) -> Fault {
        Refusal::from(error).into()
    }

    fn fail<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, fault: &Fault) {
        shell.reactor.refuse_handshake(now, slot, fault);
    }

    fn late<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.reactor.handshake_is_late(now, slot);
    }

    fn ended<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.reactor.end_handshake(now, slot);
    }
}

impl<I: Io> Shell<I> {
    /// Answers a request to a listener for clients if it asks whether that is ready. False if it does not.
    pub(super) fn answers_health(&mut self, now: Moment, slot: usize, head: &Request<'_>) -> bool {
        if head.path != HEALTH || !matches!(head.method, Method::Get | Method::Head) {
            return false;
        }
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        connection.incoming.is_last = true;
        let answer = health(&self.bus, connection.listener, head.method);
        connection.outgoing.queue().extend_from_slice(answer.as_bytes());
        self.reactor.begin_http_answer(now, slot);
        true
    }

    /// Starts the handshake of a connection: a PROXY header, if one is possible, and the request of a WebSocket, if the
    /// listener speaks that.
    pub(super) fn begin_handshake(&mut self, now: Moment, accepted: Accepted, awaits_header: bool) {
        let (listener, place) = (accepted.listener, accepted.place);
        let connections = &mut self.reactor.connections;
        let slot = connections.begin_http(now, accepted, Purpose::Handshake, LIMITS);
        if awaits_header {
            connections[HttpSlot(slot)].state = State::Header;
            self.reactor.set_deadline(slot, now.after(HEADER_TIMEOUT));
        }
        self.receive_first(now, slot);
        self.reactor.limit_handshakes(now, self.bus.view().free_slots());
        if !awaits_header {
            self.enforce_source_limit(now, listener, place);
        }
    }

    /// When one more handshake of a source has started, evicts those beyond the number of connections that a listener
    /// accepts from it. One is always accepted, so that it can be sent the reason for the refusal.
    pub(super) fn enforce_source_limit(&mut self, now: Moment, listener: ListenerId, place: Place) {
        let (reactor, source) = (&mut self.reactor, place.source());
        // A source named by a token or a trusted proxy is counted once it is known.
        if reactor.listeners.policy(listener).is_none_or(|policy| policy.names_sources(place)) {
            return;
        }
        let (room, purpose) = match reactor.listeners.takes_requests(listener) {
            // Its clients are sessions, which are not connections.
            true => {
                let Some(most) = self.bus.view().max_connections(listener).per_source else { return };
                (most.saturating_sub(reactor.connections.counts.at(listener, Some(source)).placed), Purpose::Requests)
            }
            false => {
                let Some(room) = self.bus.view().room_of_source(listener, source) else { return };
                (room, Purpose::Handshake)
            }
        };
        if reactor.connections.counts.at(listener, Some(source)).unplaced <= room.max(1) {
            return;
        }
        let is_of = |_: usize, it: &Exchange| {
            let asks = it.purpose == purpose && it.state == State::Reading && !it.counted_as.has_place();
            asks && it.listener == listener && it.counted_as.source() == source
        };
        let waiting = reactor.connections.all_http().filter(|(slot, _, it)| is_of(*slot, it)).count();
        for _ in room.max(1)..waiting {
            let (Some(slot), _) = self.reactor.connections.eviction_victim(now, room, None, is_of) else { return };
            match purpose {
                Purpose::Requests => self.give_up(now, slot, &Fault::too_many(Reason::ConnectionLimit, SHARE)),
                _ => self.reactor.evict_handshake(now, slot, SHARE),
            }
        }
    }

    /// Reads a PROXY header from the first bytes of a connection. Returns its length, if it is complete.
    pub(super) fn read_header(&mut self, now: Moment, slot: usize, bytes: &[u8]) -> usize {
        let connection = &self.reactor.connections[HttpSlot(slot)];
        let is_believed = self.bus.view().awaits_header(connection.listener, connection.origin.place);
        let why = match proxy::read(&bytes[..bytes.len().min(proxy::LONGEST)]) {
            HeaderReading::More => return 0,
            HeaderReading::Header(_) if !is_believed => {
                "it was taken out of proxy.from before its PROXY header was complete"
            }
            HeaderReading::Header(header) => {
                let length = header.length;
                let connection = &mut self.reactor.connections[HttpSlot(slot)];
                connection.origin = origin(connection.origin.place, header);
                connection.source_between = connection.origin.source();
                let source = connection.source_between;
                self.reactor.connections.counts_for(slot, source);
                self.introduced(now, slot, &bytes[length..]);
                return length;
            }
            HeaderReading::Malformed(why) => why,
            HeaderReading::Other => {
                "it does not begin with a PROXY header; let the proxy send one, or take its address out of proxy.from"
            }
        };
        self.reactor.reject(now, slot, why);
        0
    }

    /// The client of a connection is known now; `begun` follows the header.
    fn introduced(&mut self, now: Moment, slot: usize, begun: &[u8]) {
        let reactor = &mut self.reactor;
        let limits = limits(reactor.connections.longest_client_line);
        let connection = &mut reactor.connections[HttpSlot(slot)];
        let listener = connection.listener;
        if !reactor.listeners.speaks_web(listener) {
            let origin = connection.origin.clone();
            return self.admit(slot, &Sender::of(origin), begun, None);
        }
        connection.state = State::Reading;
        if !reactor.listeners.takes_requests(listener) {
            connection.reader = RequestReader::new(now, LIMITS);
            return;
        }
        (connection.since, connection.reader) = (now, RequestReader::new(now, limits));
        let source = connection.counted_as.source();
        match self.make_room_for_http(now, source) {
            true => self.reactor.connections.becomes_requests(slot),
            false => self.reactor.close_http(now, slot),
        }
    }

    /// Makes a connection the client that its request of a WebSocket asks for; `begun` follows its head.
    ///
    /// # Errors
    /// It is refused.
    pub(super) fn upgrade(&mut self, now: Moment, slot: usize, head: &Request<'_>, begun: &[u8]) -> Result<(), Fault> {
        let reactor = &mut self.reactor;
        let connection = &reactor.connections[HttpSlot(slot)];
        let listener = connection.listener;
        let policy = reactor.listeners.policy(listener).ok_or_else(|| Fault::busy("the listener is closed"))?;
        let request = request::UpgradeHead::of(head, policy.terms.access.identity.as_ref())?;
        let (mut sender, answer) = policy.admit(&self.bus, listener, connection.origin.clone(), &request)?;
        sender.credentials = policy.credentials(&head.fields)?;
        let longest = reactor.connections.longest_client_line;
        let mut web = WebSocket::new(&policy.terms, longest, now);
        web.output.queue_control(answer.as_bytes());
        // Its first frames may have arrived with the request. The newline of one may need a byte more.
        let mut frames = [begun, b"\0"].concat();
        let lines = web.decode(now, &mut frames, begun.len());
        self.admit(slot, &sender, &frames[..lines], Some(web));
        Ok(())
    }

    /// Makes a connection a client in its place. Some of its lines, `begun`, were received already.
    fn admit(&mut self, slot: usize, sender: &Sender, begun: &[u8], web: Option<WebSocket>) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let handshake = &mut connections[HttpSlot(slot)];
        http.forget(handshake);
        let listener = handshake.listener;
        let client = self.connect(listener, sender.origin.clone(), begun, |connections, client| {
            let endpoint = Endpoint::of(Peer::Client(client));
            let protocol = match web {
                Some(web) => Protocol::WebSocket(endpoint, Box::new(web)),
                None => Protocol::Lines(endpoint),
            };
            connections.becomes_client(slot, client, protocol);
            slot
        });
        let Some(client) = client else { return self.reactor.remove(slot) };
        if self.reactor.connections.slot(Peer::Client(client)).is_some() {
            self.reactor.listeners.grants.keep(client, listener, sender);
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Evicts handshakes beyond the limit, with this many free slots of clients.
    pub(super) fn limit_handshakes(&mut self, now: Moment, free: usize) {
        for _ in 0..self.connections.surplus_handshakes(free) {
            let most = self.connections.counts.count(Purpose::Handshake);
            let is_chosen = |_: usize, it: &Exchange| it.purpose == Purpose::Handshake;
            let (victim, _) = self.connections.eviction_victim(now, most, None, is_chosen);
            victim.into_iter().for_each(|slot| self.evict_handshake(now, slot, CROWDED));
        }
    }

    fn evict_handshake(&mut self, now: Moment, slot: usize, why: &'static str) {
        let connection = &self.connections[HttpSlot(slot)];
        match connection.state {
            State::Over => self.close_http(now, slot),
            State::Header if !self.listeners.speaks_web(connection.listener) => self.reject(now, slot, why),
            _ => self.refuse_handshake(now, slot, &Fault::too_many(Reason::ConnectionLimit, why)),
        }
    }

    /// An incomplete handshake has ended or failed.
    fn end_handshake(&mut self, now: Moment, slot: usize) {
        let connection = &self.connections[HttpSlot(slot)];
        match connection.state {
            _ if connection.incoming.bytes.is_empty() => {
                let address = &self.listeners.acceptors[connection.acceptor].address;
                tracing::debug!("{} left {address} before its handshake was complete", connection.origin.place);
                self.close_http(now, slot);
            }
            State::Header => self.reject(now, slot, "it ended in the middle of its PROXY header"),
            _ => self.reject(now, slot, "it ended in the middle of its request"),
        }
    }

    /// No whole PROXY header, or no whole request, has come in time.
    fn handshake_is_late(&mut self, now: Moment, slot: usize) {
        if self.connections[HttpSlot(slot)].state == State::Header {
            let why = format!("no whole PROXY header came within {} s", HEADER_TIMEOUT.as_secs());
            return self.reject(now, slot, &why);
        }
        let why = format!("no whole request came within {} s", LIMITS.head_time.as_secs());
        self.refuse_handshake(now, slot, &Fault::new(Status::RequestTimeout, why));
    }

    /// Closes a connection that cannot be sent a reason.
    fn reject(&mut self, now: Moment, slot: usize, why: &str) {
        let connection = &self.connections[HttpSlot(slot)];
        let (reason, what) = match connection.state {
            State::Header => (Reason::ProxyHeader, "a connection is closed"),
            _ => (Reason::HandshakeRefused, "a WebSocket is refused"),
        };
        let text = format!("{what}: on {} {why}", self.listeners.acceptors[connection.acceptor].address);
        self.dispatch(now, Input::ConnectionRejected { place: connection.origin.place, reason, text });
        self.close_http(now, slot);
    }

    /// Refuses a WebSocket.
    pub(super) fn refuse_handshake(&mut self, now: Moment, slot: usize, fault: &Fault) {
        let connection = &mut self.connections[HttpSlot(slot)];
        let reason = fault.counts_as.unwrap_or(Reason::HandshakeRefused);
        let refusal = Refusal { status: fault.status, why: fault.why.clone(), retry_after: fault.retry_after, reason };
        connection.incoming.is_last = true;
        let oauth = self.listeners.policy(connection.listener).and_then(|policy| policy.terms.access.oauth.as_ref());
        let response = refusal.response(oauth.map(|oauth| oauth.challenge()));
        connection.outgoing.queue().extend_from_slice(response.as_bytes());
        let (place, address) = (connection.origin.place, &self.listeners.acceptors[connection.acceptor].address);
        let text = format!("a WebSocket is refused: on {address} {} ({})", fault.why, fault.status.code());
        self.dispatch(now, Input::ConnectionRejected { place, reason, text });
        self.begin_http_answer(now, slot);
    }
}

/// The origin of a client behind a proxy. One whose address the proxy does not say is nowhere: taken for the proxy, it
/// would pass every `allow`, as the proxy's own health checks do.
fn origin(proxy: Place, header: Header) -> Origin {
    let Header { source, is_own, names, .. } = header;
    match (source, is_own) {
        (None, true) => Origin { is_proxy: true, names: names.into(), ..proxy.into() },
        (source, _) => {
            let place = source.map_or(Place::Inherited, Place::Address);
            Origin { via: Some(proxy.into()), names: names.into(), ..place.into() }
        }
    }
}
