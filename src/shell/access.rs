//! Access to the listeners over HTTP: what [`crate::access`] decides, with the limits of the core, which come after it,
//! with ids for those who come in, and with token files that are read again.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::workers::client_env::EnvSource;
use crate::access::{Bearer, Caller, Credentials, Entrance, RETRY_AFTER, Reach, Refusal, Tokens};
use crate::bus::Bus;
use crate::bus::port::{ClientKey, ListenerId, Origin, Place};
use crate::config::{Config, Listener, Web};
use crate::http1::{Fields, Status};
use crate::random;
use crate::small_file;
use crate::websocket::HEALTH;
use crate::websocket::answer::Accepted;
use crate::websocket::request::UpgradeHead;

/// Of ids: six bits per character, all of them valid in fields, paths and cookies (RFC 4648, section 5).
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The sender of a request over HTTP, as its listener has identified it.
#[derive(Clone, Default)]
pub(super) struct Sender {
    pub origin: Origin,
    /// The origin of the sending browser page.
    pub page: Option<Rc<str>>,
    /// The bearer of its token.
    bearer: Option<Bearer>,
    /// What it brings for a worker of its own, if it may begin something with this request.
    pub credentials: Option<Rc<Credentials>>,
}

impl Sender {
    /// One that has shown no token.
    pub(super) fn of(origin: Origin) -> Self {
        Self { origin, ..Self::default() }
    }

    /// One of whom only the page is known, so far.
    pub(super) fn on_page(page: Option<Rc<str>>) -> Self {
        Self { page, ..Self::default() }
    }
}

/// The credential by which each connected client was admitted.
#[derive(Default)]
pub(super) struct Grants {
    /// The bearers of tokens, which may be revoked, with their listeners.
    bearers: BTreeMap<ClientKey, (ListenerId, Bearer)>,
    /// What workers of their own are started with.
    own: BTreeMap<ClientKey, EnvSource>,
    /// Some workers are started with that.
    pub keeps_own: bool,
}

impl Grants {
    /// None yet; `keeps_own` if some workers are started with what is their clients' own.
    pub(super) fn new(keeps_own: bool) -> Self {
        Self { keeps_own, ..Self::default() }
    }

    /// A listener has admitted a client.
    pub(super) fn keep(&mut self, client: ClientKey, listener: ListenerId, sender: &Sender) {
        if let Some(bearer) = &sender.bearer {
            self.bearers.insert(client, (listener, bearer.clone()));
        }
        if self.keeps_own {
            self.own.insert(client, EnvSource::new(&sender.origin.names, sender.credentials.clone()));
        }
    }

    /// What a worker of a client's own is started with.
    pub(super) fn env_source(&self, client: ClientKey) -> Option<&EnvSource> {
        self.own.get(&client)
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, client: ClientKey) {
        self.bearers.remove(&client);
        self.own.remove(&client);
    }

    /// The clients of a listener whose tokens are no longer valid, or good for none of its pools.
    pub(super) fn revoked(&self, bus: &Bus, listener: ListenerId, access: &Access) -> impl Iterator<Item = ClientKey> {
        let is_known = move |bearer: &Bearer| {
            let origin = Origin { pools: bearer.pools.clone(), ..Origin::default() };
            access.terms.access.knows(bearer) && bus.view().offers_any(listener, &origin)
        };
        let its = self.bearers.iter().filter(move |(_, (entrance, _))| *entrance == listener);
        its.filter(move |(_, (_, bearer))| !is_known(bearer)).map(|(client, _)| *client)
    }

    /// Whether there is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.bearers.is_empty() && self.own.is_empty()
    }
}

/// The access to a listener.
pub(super) struct Access {
    pub terms: Web,
    entrance: Entrance,
    /// The prefix of its ids.
    node: Arc<str>,
    /// The ids of the pools that a line of its tokens file may name.
    pools: Vec<String>,
    /// The fields with what clients bring for workers of their own.
    brings: Vec<Box<str>>,
}

impl Access {
    /// The access to a listener, if it is served over HTTP.
    pub(super) fn of(listener: &Listener, config: &Config) -> Option<Self> {
        let terms = listener.web.clone()?;
        let pools = config.pools.iter().map(|pool| pool.core.id.clone()).collect();
        let served = terms.kind.web();
        let reach = match served.is_some_and(|web| web.must_know_host) {
            _ if listener.listen.is_loopback() => Reach::ThisMachine,
            true => Reach::KnownNames,
            false => Reach::AnyName,
        };
        let entrance = Entrance { reach, takes_subprotocols: served.is_some_and(|web| web.has_websockets) };
        let mut brings: Vec<Box<str>> = Vec::new();
        let offered = listener.offered(config.pools.len()).into_iter().filter_map(|pool| config.pools.get(pool));
        for (header, _) in offered.filter_map(|pool| pool.env_from.as_ref()).flat_map(|from| &from.headers) {
            if !brings.iter().any(|known| known.eq_ignore_ascii_case(header)) {
                brings.push(header.clone());
            }
        }
        Some(Self { terms, entrance, node: Arc::clone(&config.node), pools, brings })
    }

    /// Takes the reread token file. True if the tokens have changed.
    pub(super) fn take_tokens(&mut self, content: io::Result<Vec<u8>>) -> bool {
        let Web { tokens_file: Some(path), access, .. } = &mut self.terms else { return false };
        let Some(last) = &mut access.tokens else { return false };
        let pools: Vec<&str> = self.pools.iter().map(String::as_str).collect();
        let what = format!("the tokens file {}", path.display());
        let has_changed = small_file::take(last, &what, content, |bytes| {
            let text = str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
            Tokens::parse(text, &pools)
        });
        if has_changed && last.is_empty() {
            tracing::warn!("{what} has no token: every client is refused");
        }
        has_changed
    }

    /// Admits the request of a WebSocket: its client, and the response to send first. `origin` is the origin before any of
    /// the request's claims is trusted.
    ///
    /// # Errors
    /// It is refused.
    pub(super) fn admit(
        &self,
        bus: &Bus,
        listener: ListenerId,
        origin: Origin,
        request: &UpgradeHead<'_>,
    ) -> Result<(Sender, String), Refusal> {
        if request.path != self.terms.path {
            let (host, path) = (request.caller.host.unwrap_or("HOST"), &self.terms.path);
            let why = format!("there is nothing here but WebSocket, at ws://{host}{path}, and {HEALTH}");
            return Err(Refusal::new(Status::NotFound, why));
        }
        let key = request.upgrade()?;
        let mut sender = self.identify(origin, &request.caller)?;
        bus.view().would_take(listener, &sender.origin).map_err(Refusal::from)?;
        let connection_id = self.new_id().map_err(|why| Refusal::unavailable(why, RETRY_AFTER))?;
        let answer = Accepted { key, connection_id: &connection_id, protocol: request.protocol }.to_string();
        sender.origin.names.connection_id = Some(connection_id.into());
        Ok((sender, answer))
    }

    /// See [`crate::access::Policy::admits_page`].
    ///
    /// # Errors
    /// It may not come from this page or name this host.
    pub(super) fn admits_page(&self, origin: &Origin, caller: &Caller<'_>) -> Result<(), Refusal> {
        self.terms.access.admits_page(self.entrance, origin, caller)
    }

    /// The sender of a request with this origin, before any of its claims is trusted.
    /// ([`crate::access::Policy::identify`]).
    ///
    /// # Errors
    /// It is not admitted.
    pub(super) fn identify(&self, mut origin: Origin, caller: &Caller<'_>) -> Result<Sender, Refusal> {
        let bearer = self.terms.access.identify(self.entrance, &mut origin, caller)?;
        Ok(Sender { origin, page: caller.origin.map(Rc::from), bearer, credentials: None })
    }

    /// What the sender of a request brings for a worker of its own.
    ///
    /// # Errors
    /// A field of it is ambiguous or malformed.
    pub(super) fn credentials(&self, fields: &Fields<'_>) -> Result<Option<Rc<Credentials>>, Refusal> {
        if self.brings.is_empty() {
            return Ok(None);
        }
        Ok(Some(Rc::new(Credentials::of(fields, self.brings.iter().map(|name| &**name))?)))
    }

    /// See [`crate::access::Policy::still_admits`].
    ///
    /// # Errors
    /// It is not admitted any more.
    pub(super) fn still_admits(&self, sender: &Sender) -> Result<(), Refusal> {
        let is_named = sender.origin.names.owner().is_some();
        self.terms.access.still_admits(sender.bearer.as_ref(), is_named)
    }

    /// Whether a connection from this address may name another source: by a token, or for its client.
    pub(super) fn names_sources(&self, place: Place) -> bool {
        self.terms.access.names_sources(place)
    }

    /// A new id for a client, or why there is none.
    pub(super) fn new_id(&self) -> Result<String, &'static str> {
        new_id(&self.node)
    }

    /// Whether an id has another node's prefix.
    pub(super) fn is_of_another_node(&self, id: &str) -> bool {
        id.split_once('.').is_some_and(|(node, _)| node != &*self.node)
    }
}

/// The daemon's name, a dot, and 128 random bits.
fn new_id(node: &str) -> Result<String, &'static str> {
    let mut bytes = [0; 16];
    random::fill(&mut bytes, random::Flags::NONBLOCK).map_err(|_| "the system has no random numbers yet")?;
    let number = u128::from_ne_bytes(bytes);
    let digits = (0..u128::BITS).step_by(6).map(|at| char::from(DIGITS[(number >> at & 63) as usize]));
    Ok(format!("{node}.{}", digits.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_begin_with_the_node() {
        let node = "n".repeat(32);
        let ids: Vec<String> = (0..100).map(|_| new_id(&node).expect("random numbers")).collect();
        for (at, id) in ids.iter().enumerate() {
            let (before, rest) = id.split_once('.').expect("a dot");
            assert!(before == node && rest.len() == 22 && id.len() <= 64, "{id}");
            assert!(!ids[..at].contains(id));
        }
    }
}
