//! The decision: whether a request is let in by its host, its page and its token, and whose client it is.

use std::net::IpAddr;

use stdio_bus_core::port::{Origin, Place};
use stdio_bus_core::settings::Proxies;

use super::caller::Caller;
use super::forwarded;
use super::hosts::{cannot_be_rebound, host_of, is_page_of, names_this_machine};
use super::refusal::Refusal;
use super::tokens::{Bearer, Tokens};
use crate::http1::Status;

/// What the configuration of a listener says about its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The origins of browser pages that may use it (RFC 6454), in lower case; `*` allows all of them.
    pub origins: Vec<String>,
    /// Its host names, in lower case and without a port: a page from one of them has the same origin.
    pub hosts: Vec<String>,
    /// The tokens of its clients; none admits clients without a token.
    pub tokens: Option<Tokens>,
    /// Proxies that are trusted in `X-Forwarded-For` and `Forwarded`.
    pub trusted_proxies: Option<Proxies>,
}

/// What of a listener matters beside its configured policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// The names that a request may have for it in `Host`.
    pub reach: Reach,
    /// It speaks WebSocket, and a subprotocol may carry a token: what the refusal of a client without one says.
    pub takes_subprotocols: bool,
}

/// Who reaches a listener, and by which names. Behind a proxy the names are the proxy's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only this machine: `Host` is a name of this machine, or a listed one.
    ThisMachine,
    /// Others as well, by any name.
    AnyName,
    /// Others as well, but only by addresses, `localhost` and listed names, since a page can point a name of its own at
    /// any address (DNS rebinding). The specification of MCP requires it.
    KnownNames,
}

fn forbidden(why: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::Forbidden, why)
}

impl Policy {
    /// Whether a request may name this host, and come from this page. `origin` is its source.
    ///
    /// # Errors
    /// It may not (403).
    pub fn admits_page(&self, entrance: Entrance, origin: &Origin, caller: &Caller<'_>) -> Result<(), Refusal> {
        let is_behind_proxy = origin.via.is_some() || self.trusts(origin.place);
        let is_ours = |host: &str| names_this_machine(host) || self.is_listed(host);
        let is_known = |host: &str| cannot_be_rebound(host) || is_ours(host);
        match entrance.reach {
            _ if is_behind_proxy => {}
            Reach::ThisMachine if !caller.host.is_some_and(is_ours) => {
                return Err(forbidden(
                    "Host is no name of this machine, and only this machine reaches this listener; a proxy is to be \
                     listed in trusted_proxies, and a name in hosts",
                ));
            }
            // Our own name is known.
            Reach::KnownNames if !caller.host.is_some_and(is_known) => {
                return Err(forbidden("Host is a name that is not in hosts of this listener (listeners[].hosts)"));
            }
            Reach::ThisMachine | Reach::AnyName | Reach::KnownNames => {}
        }
        if let Some(page) = caller.origin {
            let is_listed = |one: &String| one == "*" || one.eq_ignore_ascii_case(page);
            let is_own = |host: &str| is_page_of(page, host) && (cannot_be_rebound(host) || self.is_listed(host));
            if !self.origins.iter().any(is_listed) && !caller.host.is_some_and(is_own) {
                return Err(forbidden(format!("the origin {page:?} is not in origins of this listener")));
            }
        }
        Ok(())
    }

    /// Determines the sender of a request, and whether it is admitted with this host, page and token. `origin` is the
    /// origin before any of the request's claims is believed, and afterwards the client that a trusted proxy and the
    /// token name. Returns the bearer of the token, if one is needed.
    ///
    /// # Errors
    /// It is not admitted: 400 if a proxy names two clients, 401 for its token, 403 for its host or page.
    pub fn identify(
        &self,
        entrance: Entrance,
        origin: &mut Origin,
        caller: &Caller<'_>,
    ) -> Result<Option<Bearer>, Refusal> {
        self.admits_page(entrance, origin, caller)?;
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
        if let Some(tokens) = &self.tokens {
            let refused = |why: &'static str| Refusal::new(Status::Unauthorized, why);
            let token = caller.token.ok_or_else(|| {
                refused(match entrance.takes_subprotocols {
                    false => "a token is needed: Authorization: Bearer TOKEN",
                    true => "a token is needed: Authorization: Bearer TOKEN, or the subprotocols acp and bearer.TOKEN",
                })
            })?;
            let found = tokens.find(token.0).ok_or_else(|| refused("this token is not valid"))?;
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
    /// It is not (401).
    pub fn still_admits(&self, bearer: Option<&Bearer>) -> Result<(), Refusal> {
        match bearer.map_or(self.tokens.is_none(), |bearer| self.knows(bearer)) {
            true => Ok(()),
            false => Err(Refusal::new(
                Status::Unauthorized,
                "the tokens have changed; this one is not valid, or one is needed",
            )),
        }
    }

    /// Whether a bearer's token is still valid, for the same name and pools.
    pub fn knows(&self, bearer: &Bearer) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens.has(bearer))
    }

    /// Whether a connection from this address may name another source: by a token, or for its client.
    pub fn names_sources(&self, place: Place) -> bool {
        self.tokens.is_some() || self.trusts(place)
    }

    /// Whether the name in `Host` is listed in `hosts`.
    fn is_listed(&self, field: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host_of(field)))
    }

    /// Whether its claims about clients are trusted.
    fn trusts(&self, place: Place) -> bool {
        match &self.trusted_proxies {
            Some(Proxies::Unix) => matches!(place, Place::Process { .. }),
            Some(Proxies::Networks(networks)) => place.is_in(networks),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use stdio_bus_core::networks::Network;

    use super::*;
    use crate::http1::HeadReader;
    use stdio_bus_core::port::PoolId;

    const LOCAL: Entrance = Entrance { reach: Reach::ThisMachine, takes_subprotocols: true };
    const OPEN: Entrance = Entrance { reach: Reach::AnyName, takes_subprotocols: true };
    const MCP: Entrance = Entrance { reach: Reach::KnownNames, takes_subprotocols: false };

    fn from(address: &str) -> Origin {
        Place::Address(format!("{address}:1").parse().expect("an address")).into()
    }

    /// The client and its bearer, or the status and the reason of the refusal.
    fn identify(policy: &Policy, entrance: Entrance, from: Origin, fields: &str) -> Result<Origin, (u16, String)> {
        let head = format!("GET /acp HTTP/1.1\r\n{fields}\r\n\r\n");
        let mut reader = HeadReader::default();
        let head = reader.read(head.as_bytes()).expect("it is HTTP").expect("it is whole");
        let mut origin = from;
        let caller = Caller::of(&head, None).expect("it has one meaning");
        match policy.identify(entrance, &mut origin, &caller) {
            Ok(bearer) => {
                assert_eq!(policy.still_admits(bearer.as_ref()), Ok(()));
                assert_eq!(bearer.map(|bearer| bearer.name), origin.names.token);
                Ok(origin)
            }
            Err(refusal) => Err((refusal.status.code(), refusal.why.into_owned())),
        }
    }

    fn code(policy: &Policy, entrance: Entrance, fields: &str) -> u16 {
        identify(policy, entrance, from("192.0.2.7"), fields).map_or_else(|(code, _)| code, |_| 200)
    }

    fn networks(text: &str) -> Option<Proxies> {
        Some(Proxies::Networks(vec![Network::parse(text).expect("a network")]))
    }

    #[test]
    fn a_host_has_to_be_a_name_that_the_listener_is_reached_by() {
        let policy = Policy { hosts: vec!["bus.example".to_owned()], ..Policy::default() };
        for (host, local, open, mcp) in [
            ("localhost:9000", 200, 200, 200),
            ("127.0.0.1:9000", 200, 200, 200),
            ("192.0.2.1:9000", 403, 200, 200),
            ("BUS.example:9000", 200, 200, 200),
            ("evil.example:9000", 403, 200, 403),
            ("bus.example.evil.example", 403, 200, 403),
        ] {
            let codes = [LOCAL, OPEN, MCP].map(|entrance| code(&policy, entrance, &format!("Host: {host}")));
            assert_eq!(codes, [local, open, mcp], "{host}");
        }
    }

    #[test]
    fn behind_a_trusted_proxy_any_host_is_right_and_the_client_is_whom_the_proxy_names() {
        let policy = Policy { trusted_proxies: networks("192.0.2.0/24"), ..Policy::default() };
        let fields = "Host: evil.example\r\nX-Forwarded-For: 198.51.100.1";
        let client = identify(&policy, LOCAL, from("192.0.2.7"), fields).expect("it is admitted");
        assert_eq!(
            client.place,
            from("198.51.100.1").place.address().map(|ip| Place::Address((ip, 0).into())).unwrap()
        );
        assert_eq!(client.via.as_deref(), Some(&from("192.0.2.7").place));
        let stranger = identify(&policy, OPEN, from("203.0.113.1"), fields).expect("any host will do");
        assert_eq!((stranger.place, stranger.via), (from("203.0.113.1").place, None), "anybody can write the field");
        assert_eq!(code(&policy, OPEN, "Host: a\r\nX-Forwarded-For: 192.0.2.9\r\nForwarded: for=198.51.100.1"), 400);
    }

    #[test]
    fn a_page_has_to_be_listed_or_of_a_host_that_cannot_be_rebound() {
        let listed = Policy { origins: vec!["https://app.example".to_owned()], ..Policy::default() };
        let named = Policy { hosts: vec!["bus.example".to_owned()], ..Policy::default() };
        let every = Policy { origins: vec!["*".to_owned()], ..Policy::default() };
        for (origin, host, codes) in [
            ("https://APP.example", "127.0.0.1:9000", [200, 403, 200]),
            ("http://127.0.0.1:9000", "127.0.0.1:9000", [200, 200, 200]),
            ("http://127.0.0.1:9001", "127.0.0.1:9000", [403, 403, 200]),
            ("https://bus.example", "bus.example", [403, 200, 200]),
            ("http://evil.example:9000", "evil.example:9000", [403, 403, 200]),
            ("null", "127.0.0.1:9000", [403, 403, 200]),
        ] {
            let fields = format!("Host: {host}\r\nOrigin: {origin}");
            assert_eq!([&listed, &named, &every].map(|policy| code(policy, OPEN, &fields)), codes, "{origin} {host}");
        }
    }

    #[test]
    fn a_token_is_needed_is_found_by_its_digest_and_names_the_client_and_its_pools() {
        let tokens = Tokens::parse("alice:0123456789abcdef tools\n", &["agents", "tools"]).expect("good lines");
        let policy = Policy { tokens: Some(tokens), ..Policy::default() };
        let ask = |entrance, more: &str| identify(&policy, entrance, from("192.0.2.7"), &format!("Host: a{more}"));
        let (missing, hint) = ask(OPEN, "").expect_err("it has none");
        assert!(missing == 401 && hint.contains("bearer.TOKEN"), "{hint}");
        let (missing, hint) = ask(Entrance { reach: Reach::AnyName, ..MCP }, "").expect_err("it has none");
        assert!(missing == 401 && !hint.contains("bearer.TOKEN"), "{hint}");
        let (wrong, why) = ask(OPEN, "\r\nAuthorization: Bearer 0123456789abcdeg").expect_err("it is wrong");
        assert_eq!((wrong, &*why), (401, "this token is not valid"));
        let alice = ask(OPEN, "\r\nAuthorization: Bearer 0123456789abcdef").expect("it is hers");
        assert_eq!((alice.names.token.as_deref(), alice.pools.as_deref()), (Some("alice"), Some(&[PoolId::at(1)][..])));
    }

    #[test]
    fn whose_token_was_taken_out_or_granted_other_pools_is_no_longer_admitted() {
        let tokens = |text: &str| Some(Tokens::parse(text, &["agents", "tools"]).expect("good lines"));
        let mut policy = Policy { tokens: tokens("alice:0123456789abcdef\n"), ..Policy::default() };
        let alice = policy.tokens.as_ref().and_then(|tokens| tokens.find("0123456789abcdef")).expect("hers").clone();
        assert_eq!(policy.still_admits(Some(&alice)), Ok(()));
        assert_eq!(policy.still_admits(None).expect_err("a token is needed").status, Status::Unauthorized);
        for other in ["alice:0123456789abcdef tools\n", "bob:0123456789abcdef\n", "alice:0123456789abcdeg\n", ""] {
            policy.tokens = tokens(other);
            assert_eq!(policy.still_admits(Some(&alice)).expect_err(other).status, Status::Unauthorized);
        }
        policy.tokens = None;
        assert_eq!(policy.still_admits(None), Ok(()), "none is needed any more");
    }
}
