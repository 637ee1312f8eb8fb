//! Who is let in: from where, as which user, whom a proxy may bring; and how many connections a listener takes, all
//! together and from one source. One too many is told why and closed, and does not count itself. One that may not come
//! in is closed without a word, and has never been a client.

use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;

use super::Bus;
use super::client::Client;
use super::origin::{Origin, Place};
use super::peer::{ClientKey, Peer, Source};
use super::port::{Close, Effect};
use super::reply::Delivered;
use super::report::{Level, Reason, Report};
use super::settings::{Entry, Proxies, Proxy};

/// Refused clients that are told why at a time. More are closed without a word, so that refused ones never take the
/// slots of others.
const EXPLAINED_REFUSALS: usize = 16;

/// Why a client is not taken in, for it to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    /// The daemon shuts down.
    Draining,
    /// It may not come in.
    NotAllowed(String),
    /// There is no room for it now.
    NoRoom(String),
}

/// What a client from `source` that finds no room is told.
pub(super) struct NoRoom {
    text: String,
    source: Source,
}

impl Entry {
    /// Whether this may be the other end of a connection. Who comes through a proxy is somewhere else.
    fn lets_connect(&self, place: Place) -> bool {
        match (place, &self.peer_uids) {
            (Place::Process { user, .. }, Some(users)) => users.contains(&user),
            (_, Some(_)) => false,
            (_, None) => true,
        }
    }

    /// Whether this client may come in, and the key that keeps it out if not.
    fn lets_in(&self, origin: &Origin) -> Result<(), &'static str> {
        if !self.lets_connect(origin.via.unwrap_or(origin.place)) {
            return Err("listeners[].peer_uids");
        }
        let Some(networks) = self.allow.as_ref().filter(|_| !origin.is_proxy) else { return Ok(()) };
        if origin.place.is_in(networks) { Ok(()) } else { Err("listeners[].allow") }
    }
}

impl Bus {
    /// Whether a connection from `place` begins with a PROXY header, and on what terms. It is to be read before
    /// [`Bus::connect`], which is told what it says.
    pub fn awaits_header(&self, listener: usize, place: Place) -> Option<&Proxy> {
        let entry = &self.settings.listeners.get(listener)?.entry;
        let proxy = entry.proxy.as_ref()?;
        let is_believed = match &proxy.from {
            Proxies::Unix => entry.lets_connect(place),
            Proxies::Networks(networks) => place.is_in(networks),
        };
        is_believed.then_some(proxy)
    }

    /// Whether who connects may begin with a PROXY header, if it comes from the right place.
    pub fn is_behind_proxies(&self, listener: usize) -> bool {
        self.settings.listeners.get(listener).is_some_and(|listener| listener.entry.proxy.is_some())
    }

    /// Whether a client may come in. If not, that is told.
    pub(super) fn lets_in(&mut self, listener: usize, origin: &Origin) -> bool {
        let Err(key) = self.settings.listeners[listener].entry.lets_in(origin) else { return true };
        let report = self.reporter.report(self.now, Reason::NotAllowed, || {
            let text = format!("a client is turned away: {} is not in {key}", origin.place);
            let report = Report { origin: Some(Rc::new(origin.clone())), ..Report::new(Reason::NotAllowed, text) };
            // It has gone before anybody could see where it came from.
            if origin.place == Place::Inherited { report.at(Level::Debug) } else { report }
        });
        self.out.effects.extend(report.map(Effect::Report));
        false
    }

    /// Whether a client of this origin would be taken in self.now. To be asked before a handshake is answered that can say
    /// why not.
    ///
    /// # Errors
    /// Why not.
    pub fn would_take(&self, listener: usize, origin: &Origin) -> Result<(), TurnedAway> {
        let Some(settings) = self.settings.listeners.get(listener) else { return Err(TurnedAway::Draining) };
        if self.shutdown.refuses_clients() {
            return Err(TurnedAway::Draining);
        }
        if let Err(key) = settings.entry.lets_in(origin) {
            return Err(TurnedAway::NotAllowed(format!("{} is not in {key}", origin.place)));
        }
        if !(0..self.settings.pools.len()).any(|pool| self.offers(listener, origin, pool)) {
            return Err(TurnedAway::NotAllowed("this token is good for no pool of this listener".into()));
        }
        if self.clients.is_full() {
            return Err(TurnedAway::NoRoom(format!("all {} connections are in use", self.clients.capacity())));
        }
        self.no_room(listener, origin.source()).map_or(Ok(()), |no_room| Err(TurnedAway::NoRoom(no_room.text)))
    }

    /// How many clients more find a slot.
    pub fn free_slots(&self) -> usize {
        self.clients.capacity() - self.clients.len()
    }

    /// How many connections more of this source a listener takes, where it takes only so many of one.
    pub fn room_of_source(&self, listener: usize, source: Source) -> Option<usize> {
        let most = self.settings.listeners.get(listener)?.max_connections.per_source?;
        Some(most.saturating_sub(self.connections_of(listener, source)))
    }

    fn connections_of(&self, listener: usize, source: Source) -> usize {
        let is_of = |client: &Client| client.listener == listener && !client.turned_away && client.source == source;
        self.clients.iter().filter(|(_, client)| is_of(client)).count()
    }

    /// A connection asked for a WebSocket and was refused.
    pub(super) fn on_not_upgraded(&mut self, place: Place, why: &str) {
        self.report_stranger(Reason::HandshakeRefused, place, || format!("a WebSocket is refused: {why}"));
    }

    /// What had to begin with a PROXY header was closed.
    pub(super) fn on_unintroduced(&mut self, place: Place, why: &str) {
        self.report_stranger(Reason::ProxyHeader, place, || format!("a connection is closed: {why}"));
    }

    /// Tells of a connection that has never been a client.
    fn report_stranger(&mut self, reason: Reason, place: Place, text: impl FnOnce() -> String) {
        let origin = || Some(Rc::new(place.into()));
        let report =
            self.reporter.report(self.now, reason, || Report { origin: origin(), ..Report::new(reason, text()) });
        self.out.effects.extend(report.map(Effect::Report));
    }

    /// Why the listener with this index takes no more clients from `source`; none if it does.
    pub(super) fn no_room(&self, listener: usize, source: Source) -> Option<NoRoom> {
        let most = self.settings.listeners.get(listener)?.max_connections;
        let there = || self.clients.iter().filter(|(_, client)| client.listener == listener && !client.turned_away);
        let connections =
            |count: usize| if count == 1 { "1 connection".into() } else { format!("{count} connections") };
        let key = "listeners[].max_connections";
        // What the client can do something about comes first.
        let text = match (most.per_source, most.total) {
            (Some(most), _) if self.connections_of(listener, source) >= most => {
                format!("this listener takes {} from one source ({key}); close one of yours first", connections(most))
            }
            (_, Some(most)) if there().count() >= most => {
                format!("this listener takes {} ({key}); try again when one has left", connections(most))
            }
            _ => return None,
        };
        Some(NoRoom { text, source })
    }

    /// Whether one more refused client can be told why.
    pub(super) fn may_explain_refusal(&self) -> bool {
        let refused = self.clients.iter().filter(|(_, client)| client.turned_away).count();
        self.settings.routing.error_replies && refused < EXPLAINED_REFUSALS
    }

    /// Tells that a client was refused, and the client too if it has a connection for that, which ends with it.
    pub(super) fn refuse_client(&mut self, client: Option<ClientKey>, no_room: &NoRoom) {
        let NoRoom { text, source } = no_room;
        self.report(Reason::ConnectionLimit, client.map(Peer::Client), || {
            format!("a client from {source} is turned away: {text}")
        });
        if let Some(client) = client {
            self.send_error(client.into(), b"null", None, Reason::ConnectionLimit, text, Delivered::Nothing);
            self.close_client(client, Close::Flush, Reason::ConnectionLimit);
        }
    }
}
