//! Access to WebSocket and MCP listeners: host, origin, token, and client behind a proxy. The core applies its limits
//! afterwards.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::json;

use crate::address::is_loopback;
use crate::bus::Bus;
use crate::bus::admission::TurnedAway;
use crate::bus::port::{Origin, Place};
use crate::bus::readiness::Readiness;
use crate::bus::settings::Proxies;
use crate::config::{Config, Listener, Web};
use crate::http1::{Head, Status};
use crate::random;
use crate::small_file;
use crate::tokens::{Bearer, Tokens};
use crate::websocket::answer::{Accepted, Refusal};
use crate::websocket::request::{Caller, Method, Request};
use crate::websocket::{HEALTH, forwarded};

/// Seconds after which to retry at a daemon that drains or is full.
pub(in crate::shell) const RETRY_AFTER: u32 = 1;
/// Of ids: six bits per character, all of them valid in fields, paths and cookies (RFC 4648, section 5).
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn forbidden(why: String) -> Refusal {
    Refusal::new(Status::Forbidden, why)
}

/// Why the core refuses a client.
pub(in crate::shell) fn turned_away(why: TurnedAway) -> Refusal {
    let text = why.text().to_owned();
    // A balancer may take 503 for a sign that the daemon is down, and send nobody there for a while: what is about one
    // client is 429.
    match why {
        TurnedAway::Draining | TurnedAway::Removed | TurnedAway::NoRoom(_) => Refusal::unavailable(text, RETRY_AFTER),
        TurnedAway::TooMany(_) => Refusal::too_many(text, RETRY_AFTER),
        TurnedAway::NotAllowed(_) => forbidden(text),
    }
}

/// The access policy of a listener.
pub(in crate::shell) struct UpgradePolicy {
    pub terms: Web,
    /// The prefix of its ids.
    node: Arc<str>,
    /// The ids of the pools that a line of its tokens file may name.
    pools: Vec<String>,
    /// It is bound to loopback, so that a name that resolves here is one of this machine.
    is_loopback: bool,
}

impl UpgradePolicy {
    /// The policy of a listener, if it speaks WebSocket or MCP.
    pub(in crate::shell) fn of(listener: &Listener, config: &Config) -> Option<Self> {
        let terms = listener.web.clone()?;
        let pools = config.pools.iter().map(|pool| pool.core.id.clone()).collect();
        let is_loopback = listener.listen.is_loopback();
        Some(Self { terms, node: Arc::clone(&config.node), pools, is_loopback })
    }

    /// Takes the reread token file. True if the tokens have changed.
    pub(in crate::shell) fn take_tokens(&mut self, content: io::Result<Vec<u8>>) -> bool {
        let Web { tokens_file: Some(path), tokens: last, .. } = &mut self.terms else { return false };
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

    /// Admits the request of a WebSocket: the origin of its client, the response to send first, and the bearer of its
    /// token. `origin` is the origin before any of the request's claims is believed.
    ///
    /// # Errors
    /// It is refused.
    pub(in crate::shell) fn admit(
        &self,
        bus: &Bus,
        listener: usize,
        mut origin: Origin,
        request: &Request<'_>,
    ) -> Result<(Origin, String, Option<Bearer>), Refusal> {
        if request.path != self.terms.path {
            let (host, path) = (request.caller.host.unwrap_or("HOST"), &self.terms.path);
            let why = format!("there is nothing here but WebSocket, at ws://{host}{path}, and {HEALTH}");
            return Err(Refusal::new(Status::NotFound, why));
        }
        let key = request.upgrade()?;
        let bearer = self.identify(&mut origin, &request.caller)?;
        bus.view().would_take(listener, &origin).map_err(turned_away)?;
        let connection_id = self.new_id().map_err(|why| Refusal::unavailable(why, RETRY_AFTER))?;
        let answer = Accepted { key, connection_id: &connection_id, protocol: request.protocol }.to_string();
        origin.names.connection_id = Some(connection_id.into());
        Ok((origin, answer, bearer))
    }

    /// Whether a request may name this host, and come from this page. `origin` is its source.
    ///
    /// # Errors
    /// It may not.
    pub(in crate::shell) fn admits_page(&self, origin: &Origin, caller: &Caller<'_>) -> Result<(), Refusal> {
        let is_behind_proxy = origin.via.is_some() || self.trusts(origin.place);
        let is_ours = |host: &str| names_this_machine(host) || self.is_listed(host);
        let is_known = |host: &str| cannot_be_rebound(host) || is_ours(host);
        if self.is_loopback && !is_behind_proxy && !caller.host.is_some_and(is_ours) {
            return Err(forbidden(
                "Host is no name of this machine, and only this machine reaches this listener; a proxy is to be listed \
                 in trusted_proxies, and a name in hosts"
                    .to_owned(),
            ));
        }
        // Our own name is known.
        let asks = self.terms.kind.web().is_some_and(|web| web.must_know_host) && !self.is_loopback && !is_behind_proxy;
        if asks && !caller.host.is_some_and(is_known) {
            return Err(forbidden(
                "Host is a name that is not in hosts of this listener (listeners[].hosts)".to_owned(),
            ));
        }
        if let Some(page) = caller.origin {
            let is_listed = |one: &String| one == "*" || one.eq_ignore_ascii_case(page);
            let is_own = |host: &str| is_page_of(page, host) && (cannot_be_rebound(host) || self.is_listed(host));
            if !self.terms.origins.iter().any(is_listed) && !caller.host.is_some_and(is_own) {
                return Err(forbidden(format!("the origin {page:?} is not in origins of this listener")));
            }
        }
        Ok(())
    }

    /// Determines the sender of a request, and whether it is admitted with this host, page and token. `origin` is the
    /// origin before any of the request's claims is believed.
    ///
    /// # Errors
    /// It is not admitted.
    pub(in crate::shell) fn identify(
        &self,
        origin: &mut Origin,
        caller: &Caller<'_>,
    ) -> Result<Option<Bearer>, Refusal> {
        self.admits_page(origin, caller)?;
        // Behind a PROXY header the client named there has set these fields, not the proxy, which forwards them.
        let sender = origin.place;
        if self.trusts(sender) {
            let is_trusted = |address: IpAddr| self.trusts(Place::Address((address, 0).into()));
            let client = forwarded::client(&caller.forwarded_for, &caller.forwarded, is_trusted);
            if let Some(client) = client.map_err(|why| Refusal::new(Status::BadRequest, why))? {
                origin.place = Place::Address(client);
                origin.via.get_or_insert_with(|| sender.into());
            }
        }
        let mut bearer = None;
        if self.terms.tokens_file.is_some() {
            let refused = |why: &'static str| Refusal::new(Status::Unauthorized, why);
            let token = caller.token.ok_or_else(|| {
                refused(match self.terms.kind.web().is_some_and(|web| web.has_websockets) {
                    true => "a token is needed: Authorization: Bearer TOKEN, or the subprotocols acp and bearer.TOKEN",
                    false => "a token is needed: Authorization: Bearer TOKEN",
                })
            })?;
            let found = self.terms.tokens.find(token.0).ok_or_else(|| refused("this token is not valid"))?;
            (origin.names.token, origin.pools) = (Some(found.name.clone()), found.pools.clone());
            bearer = Some(found.clone());
        }
        // A proxy's own request is a client here: health has a path of its own.
        origin.is_proxy = false;
        Ok(bearer)
    }

    /// Whether the sender of a request is still admitted, with this bearer or without one.
    ///
    /// # Errors
    /// It is not.
    pub(in crate::shell) fn still_admits(&self, bearer: Option<&Bearer>) -> Result<(), Refusal> {
        match bearer.map_or(self.terms.tokens_file.is_none(), |bearer| self.terms.tokens.has(bearer)) {
            true => Ok(()),
            false => Err(Refusal::new(
                Status::Unauthorized,
                "the tokens have changed; this one is not valid, or one is needed",
            )),
        }
    }

    /// A new id for a client, or why there is none.
    pub(in crate::shell) fn new_id(&self) -> Result<String, &'static str> {
        new_id(&self.node)
    }

    /// Whether an id has another node's prefix.
    pub(in crate::shell) fn is_of_another_node(&self, id: &str) -> bool {
        id.split_once('.').is_some_and(|(node, _)| node != &*self.node)
    }

    /// Whether a connection from this address may name another source: by a token, or for its client.
    pub(in crate::shell) fn names_sources(&self, place: Place) -> bool {
        self.terms.tokens_file.is_some() || self.trusts(place)
    }

    /// Whether the name in `Host` is listed in `hosts`.
    fn is_listed(&self, field: &str) -> bool {
        self.terms.hosts.iter().any(|known| known.eq_ignore_ascii_case(host_of(field)))
    }

    /// Whether its claims about clients are trusted.
    fn trusts(&self, place: Place) -> bool {
        match &self.terms.trusted_proxies {
            Some(Proxies::Unix) => matches!(place, Place::Process { .. }),
            Some(Proxies::Networks(networks)) => place.is_in(networks),
            None => false,
        }
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

/// The response to a listener's health check, after which the connection is closed.
pub(in crate::shell) fn health(bus: &Bus, listener: usize, method: Method) -> String {
    let readiness = bus.view().listener_readiness(listener);
    let (status, body) = match readiness {
        Some(Readiness::Ready) => (Status::Ok, json!({ "status": "ready" })),
        Some(Readiness::NotReady(why) | Readiness::Full(why)) => {
            (Status::Unavailable, json!({ "status": "not ready", "message": why }))
        }
        Some(Readiness::Draining) | None => (Status::Unavailable, json!({ "status": "draining" })),
    };
    let head = Head::answer(status)
        .field("Connection", "close")
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store");
    let body = body.to_string() + "\n";
    match method {
        Method::Head => head.field("Content-Length", body.len()).end(),
        _ => head.body(&body),
    }
}

/// The host in `Host`, without its port; an IPv6 address without brackets.
fn host_of(field: &str) -> &str {
    let host = match field.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => field,
    };
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether `Host` names this machine.
pub(in crate::shell) fn names_this_machine(field: &str) -> bool {
    let host = host_of(field);
    is_loopback(host) || is_loopback(&host.to_ascii_lowercase())
}

/// Whether `Host` is safe from DNS rebinding: the owner of a name can point it at any address.
fn cannot_be_rebound(field: &str) -> bool {
    let host = host_of(field);
    host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

/// Whether an origin has exactly the host and port of `Host`. Whether the page uses TLS is unknown here.
fn is_page_of(origin: &str, field: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let [one, other] = [authority, field].map(|text| text.strip_suffix(default).unwrap_or(text));
    one.eq_ignore_ascii_case(other)
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

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in
            ["localhost:9000", "LOCALHOST", "a.localhost:1", "127.0.0.1:9000", "127.9.9.9", "[::1]:9000", "[::1]"]
        {
            assert!(names_this_machine(host), "{host}");
        }
        for host in
            ["evil.example:9000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:9000", "", ":9000"]
        {
            assert!(!names_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_page_has_the_same_origin_if_host_and_port_are_equal() {
        for (origin, host) in [
            ("http://127.0.0.1:9000", "127.0.0.1:9000"),
            ("HTTP://LocalHost:9000", "localhost:9000"),
            ("http://[::1]:9000", "[::1]:9000"),
            ("http://bus.example", "bus.example:80"),
            ("https://bus.example", "bus.example"),
            ("https://bus.example:443", "bus.example"),
        ] {
            assert!(is_page_of(origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("http://127.0.0.1:8000", "127.0.0.1:9000"),
            ("http://127.0.0.1", "127.0.0.1:9000"),
            ("http://evil.example:9000", "127.0.0.1:9000"),
            ("file://127.0.0.1:9000", "127.0.0.1:9000"),
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("null", "null"),
        ] {
            assert!(!is_page_of(origin, host), "{origin} {host}");
        }
        for host in ["127.0.0.1:9000", "[::1]:9000", "192.0.2.7", "LOCALHOST"] {
            assert!(cannot_be_rebound(host), "{host}");
        }
        for host in ["evil.example:9000", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert!(!cannot_be_rebound(host), "{host}");
        }
    }
}
