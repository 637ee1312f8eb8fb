//! The decision: whether a request is admitted by its host, its page, and its token or the name that its proxy gives it, and
//! whose client it is.

use std::net::IpAddr;
use std::sync::Arc;

use stdio_bus_core::port::{Names, Origin, Place};
use stdio_bus_core::settings::Proxies;

use super::caller::Caller;
use super::forwarded;
use super::hosts::{cannot_be_rebound, host_of, is_page_of, names_this_machine};
use super::identity::{Groups, Identity};
use super::oauth::OAuth;
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
    /// How believed proxies name its clients; with it each client needs a name.
    pub identity: Option<Identity>,
    /// The pools of its groups; none means that its clients need no group.
    pub groups: Option<Groups>,
    /// Where clients sign in, as it announces to them.
    pub oauth: Option<Arc<OAuth>>,
}

/// What of a listener matters beside its configured policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// The names that a request may have for it in `Host`.
    pub reach: Reach,
    /// It speaks WebSocket, and a subprotocol may carry a token: what the refusal of a client without one says.
    pub takes_subprotocols: bool,
}

/// Who reaches a listener, and by which names. Behind a proxy the names are not checked: that is for the proxy to do.
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
        let is_behind_proxy = origin.via.is_some() || self.trusts(origin.place) || self.believes(origin.place);
        let is_ours = |host: &str| names_this_machine(host) || self.is_listed(host);
        let is_known = |host: &str| cannot_be_rebound(host) || is_ours(host);
        match entrance.reach {
            _ if is_behind_proxy => {}
            Reach::ThisMachine if !caller.host.is_some_and(is_ours) => {
                return Err(forbidden(
                    "Host is not a name of this machine, and only this machine reaches this listener; list the proxy \
                     in trusted_proxies, or the name in hosts",
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
    /// token name. Returns the bearer of the token, if it has shown one.
    ///
    /// # Errors
    /// It is not admitted: 400 if a proxy names two clients, or the client has two names; 401 if it needs a token, or a
    /// name, and has none; 403 for its host or page, or if none of its groups has a pool.
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
        let is_believed = self.believes(sender);
        if let Some(identity) = &self.identity {
            let named = identity.named(caller.claims, is_believed, self.groups.as_ref())?;
            if named.name.is_some() {
                (origin.names.user, origin.pools) = (named.name, named.pools);
            }
            origin.groups = named.groups;
        }
        // A believed proxy that names nobody has not named the client by the certificate of whoever is before it, either.
        let is_named = match &self.identity {
            Some(_) => origin.names.user.is_some() || origin.names.common_name.is_some() && !is_believed,
            None => false,
        };
        let bearer = self.bearer(entrance, caller, is_named)?.cloned();
        if let Some(bearer) = &bearer {
            let of_groups = || Some(self.groups.as_ref()?.pools(bearer.groups.as_deref()?));
            origin.names.token = Some(bearer.name.clone());
            origin.pools = bearer.pools.clone().or_else(of_groups);
            // What is denied to a group of either is denied.
            origin.groups = match (origin.groups.take(), &bearer.groups) {
                (Some(one), Some(other)) => Some(format!("{one},{other}").into()),
                (one, other) => one.or_else(|| other.clone()),
            };
        } else if self.identity.is_some() && !is_named {
            return Err(self.nameless(is_believed));
        }
        if let Some(identity) = &self.identity
            && !has_one_name(&origin.names)
        {
            let why = format!("{}, token and certificate name different clients", identity.header);
            return Err(Refusal::identity(why));
        }
        if let Some(groups) = &self.groups {
            let pools = origin.pools.get_or_insert_with(|| groups.for_all());
            if pools.is_empty() {
                return Err(forbidden("the pools of this listener are for groups, and you are in none of them"));
            }
        }
        // A proxy's own request is a client here: health has a path of its own.
        origin.is_proxy = false;
        Ok(bearer)
    }

    /// The bearer of the token that a request shows, if tokens admit clients. Beside a name from a proxy an unknown
    /// token is ignored: many proxies pass on the one by which their client signed in.
    ///
    /// # Errors
    /// It has none that is known, and needs one.
    fn bearer(&self, entrance: Entrance, caller: &Caller<'_>, is_named: bool) -> Result<Option<&Bearer>, Refusal> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let refused = |why: &'static str| Refusal::new(Status::Unauthorized, why);
        match caller.token.map(|token| tokens.find(token.0)) {
            Some(Some(bearer)) => Ok(Some(bearer)),
            _ if is_named => Ok(None),
            Some(None) => Err(refused("this token is not valid")),
            None => Err(refused(match entrance.takes_subprotocols {
                false => "a token is needed: Authorization: Bearer TOKEN",
                true => "a token is needed: Authorization: Bearer TOKEN, or the subprotocols acp and bearer.TOKEN",
            })),
        }
    }

    /// The refusal of a client without a name, where each needs one.
    fn nameless(&self, is_believed: bool) -> Refusal {
        let header = self.identity.as_ref().map_or("", |identity| &identity.header);
        let why = match is_believed {
            true => format!("the proxy has not said who you are ({header}): sign in there"),
            false => {
                format!("a name is needed, which a trusted proxy of this listener says in {header}: ask through it")
            }
        };
        Refusal::new(Status::Unauthorized, why)
    }

    /// What a client is sent that looks for an authorization server here, or would register with it: people read it.
    pub fn where_to_sign_in(&self) -> String {
        match &self.oauth {
            Some(oauth) => format!("this is no authorization server: register and sign in at {}", oauth.server()),
            None if self.tokens.is_some() => "nobody signs in here: a token is needed, which the operator gives out \
                (Authorization: Bearer TOKEN); this one is missing or not valid"
                .to_owned(),
            None if self.identity.is_some() => {
                "nobody signs in here: ask through the proxy that knows the users of this server".to_owned()
            }
            None => "nobody needs to sign in here".to_owned(),
        }
    }

    /// Whether the sender of a request is still admitted, with this bearer or without one. `is_named` says that it has a
    /// verified name.
    ///
    /// # Errors
    /// It is not (401).
    pub fn still_admits(&self, bearer: Option<&Bearer>, is_named: bool) -> Result<(), Refusal> {
        let without = || match &self.identity {
            Some(_) => is_named,
            None => self.tokens.is_none(),
        };
        match bearer.map_or_else(without, |bearer| self.knows(bearer)) {
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
        self.tokens.is_some() || self.trusts(place) || self.believes(place)
    }

    /// Whether the name that it gives a client is believed.
    fn believes(&self, place: Place) -> bool {
        let Some(identity) = &self.identity else { return false };
        match &identity.trusted_proxies {
            Some(proxies) => is_one_of(place, proxies),
            None => self.trusts(place),
        }
    }

    /// Whether the name in `Host` is listed in `hosts`.
    fn is_listed(&self, field: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host_of(field)))
    }

    /// Whether its claims about clients are trusted.
    fn trusts(&self, place: Place) -> bool {
        self.trusted_proxies.as_ref().is_some_and(|proxies| is_one_of(place, proxies))
    }
}

fn is_one_of(place: Place, proxies: &Proxies) -> bool {
    match proxies {
        Proxies::Unix => matches!(place, Place::Process { .. }),
        Proxies::Networks(networks) => place.is_in(networks),
    }
}

/// Whether all names that a client has are the same text.
fn has_one_name(names: &Names) -> bool {
    let mut all = [names.token.as_deref(), names.common_name.as_deref(), names.user.as_deref()].into_iter().flatten();
    let first = all.next();
    all.all(|name| Some(name) == first)
}

#[cfg(test)]
mod tests {
    use stdio_bus_core::networks::Network;

    use super::*;
    use crate::http1::HeadReader;
    use stdio_bus_core::port::{NameAuthority, PoolId};

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
        let caller = Caller::of(&head, None, policy.identity.as_ref()).expect("it has one meaning");
        match policy.identify(entrance, &mut origin, &caller) {
            Ok(bearer) => {
                assert_eq!(policy.still_admits(bearer.as_ref(), origin.names.owner().is_some()), Ok(()));
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

    /// A listener that believes 192.0.2.0/24 about users, with the tokens of alice and bob if they let clients in.
    fn named(has_tokens: bool) -> Policy {
        let identity = Identity {
            header: "X-User".into(),
            groups_header: Some("X-Groups".into()),
            trusted_proxies: networks("192.0.2.0/24"),
        };
        let tokens = "alice:0123456789abcdef\nbob:0123456789abcdeg\n";
        let tokens = has_tokens.then(|| Tokens::parse(tokens, &[]).expect("good lines"));
        Policy { identity: Some(identity), tokens, ..Policy::default() }
    }

    const PROXY: &str = "192.0.2.7";
    const STRANGER: &str = "203.0.113.1";

    #[test]
    fn a_believed_proxy_names_each_client_and_one_that_it_does_not_name_is_refused() {
        let ask = |address: &str, more: &str| identify(&named(false), LOCAL, from(address), &format!("Host: a{more}"));
        let alice = ask(PROXY, "\r\nX-User: alice").expect("any host is right behind a proxy that is believed");
        assert_eq!((alice.names.user.as_deref(), alice.names.token.as_deref()), (Some("alice"), None));
        for nobody in ["", "\r\nX-User:", "\r\nX-User: undefined", "\r\nX_User: alice", "\r\nX-Forwarded-User: alice"] {
            let (code, why) = ask(PROXY, nobody).expect_err(nobody);
            assert!(code == 401 && why.contains("has not said who you are (X-User)"), "{why}");
        }
        let ask = |more: &str| identify(&named(false), OPEN, from(STRANGER), &format!("Host: a{more}"));
        let (code, why) = ask("\r\nX-User: alice").expect_err("anybody can write it");
        assert!(code == 400 && why.contains("X-User comes from an address that is not trusted"), "{why}");
        assert_eq!(ask("").expect_err("nobody has named it").0, 401);
    }

    #[test]
    fn a_token_names_a_client_beside_the_proxy_and_has_to_name_the_same_one() {
        let ask = |address: &str, more: &str| identify(&named(true), OPEN, from(address), &format!("Host: a{more}"));
        let token = "\r\nAuthorization: Bearer 0123456789abcdef";
        for address in [PROXY, STRANGER] {
            let alice = ask(address, token).expect("it is hers");
            assert_eq!((alice.names.user.as_deref(), alice.names.token.as_deref()), (None, Some("alice")));
        }
        let both = ask(PROXY, &format!("{token}\r\nX-User: alice")).expect("they agree");
        assert_eq!(both.names.owner().map(|owner| owner.vouches), Some(NameAuthority::Token), "the token comes first");
        let (code, why) = ask(PROXY, &format!("{token}\r\nX-User: bob")).expect_err("they disagree");
        assert!(code == 400 && why.contains("name different clients"), "{why}");
        let passed_on = ask(PROXY, "\r\nAuthorization: Bearer eyJhbGciOi\r\nX-User: bob").expect("the proxy's own");
        assert_eq!(passed_on.names.user.as_deref(), Some("bob"));
        assert_eq!(ask(PROXY, "").expect_err("neither names it").0, 401);
        assert_eq!(ask(PROXY, "\r\nAuthorization: Bearer eyJhbGciOi").expect_err("nobody knows it").0, 401);
    }

    #[test]
    fn a_client_has_the_pools_of_its_groups_or_of_its_token_and_without_any_it_gets_the_reason() {
        let at = PoolId::at;
        let tokens = Tokens::parse("alice:0123456789abcdef tools\nbob:0123456789abcdeg\n", &["agents", "tools"]);
        let groups = Groups(vec![("ops".into(), vec![at(0)]), ("dev".into(), vec![at(1)])]);
        let mut policy = Policy { tokens: Some(tokens.expect("good lines")), groups: Some(groups), ..named(false) };
        let ask = |policy: &Policy, more: &str| {
            let asked = identify(policy, OPEN, from(PROXY), &format!("Host: a{more}"));
            asked.map(|origin| origin.pools.as_deref().map(<[_]>::to_vec)).map_err(|(code, _)| code)
        };
        assert_eq!(ask(&policy, "\r\nX-User: a\r\nX-Groups: ops, x"), Ok(Some(vec![at(0)])));
        assert_eq!(ask(&policy, "\r\nX-User: a\r\nX-Groups: dev,ops"), Ok(Some(vec![at(0), at(1)])));
        assert_eq!(ask(&policy, "\r\nX-User: a\r\nX-Groups: x"), Err(403));
        assert_eq!(ask(&policy, "\r\nX-User: a"), Err(403));
        assert_eq!(ask(&policy, "\r\nAuthorization: Bearer 0123456789abcdef"), Ok(Some(vec![at(1)])));
        assert_eq!(ask(&policy, "\r\nAuthorization: Bearer 0123456789abcdeg"), Err(403), "it has no group");
        policy.groups.as_mut().expect("they are").0.push(("*".into(), vec![at(0)]));
        assert_eq!(ask(&policy, "\r\nAuthorization: Bearer 0123456789abcdeg"), Ok(Some(vec![at(0)])));
    }

    #[test]
    fn a_client_is_in_the_groups_of_its_token_and_of_the_header_and_has_the_pools_of_them() {
        let at = PoolId::at;
        let tokens = "alice:0123456789abcdef groups=ops\nbob:0123456789abcdeg tools groups=ops,x\n";
        let tokens = Tokens::parse(tokens, &["agents", "tools"]).expect("good lines");
        let groups = Groups(vec![("ops".into(), vec![at(0)]), ("dev".into(), vec![at(1)])]);
        let policy = Policy { tokens: Some(tokens), groups: Some(groups), ..named(false) };
        for (more, groups, pools) in [
            ("\r\nAuthorization: Bearer 0123456789abcdef", "ops", at(0)),
            ("\r\nAuthorization: Bearer 0123456789abcdeg", "ops,x", at(1)),
            ("\r\nX-User: carol\r\nX-Groups: dev, y", "dev, y", at(1)),
            ("\r\nAuthorization: Bearer 0123456789abcdef\r\nX-User: alice\r\nX-Groups: dev", "dev,ops", at(0)),
            ("\r\nAuthorization: Bearer 0123456789abcdef\r\nX-User: -\r\nX-Groups: dev", "dev,ops", at(0)),
            ("\r\nAuthorization: Bearer 0123456789abcdef\r\nX-Groups: dev", "dev,ops", at(0)),
        ] {
            let origin = identify(&policy, OPEN, from(PROXY), &format!("Host: a{more}")).expect("it is let in");
            assert_eq!(
                (origin.groups.as_deref(), origin.pools.as_deref()),
                (Some(groups), Some(&[pools][..])),
                "{more}"
            );
        }
        let forged = "\r\nAuthorization: Bearer 0123456789abcdef\r\nX-Groups: dev";
        assert_eq!(
            identify(&policy, OPEN, from(STRANGER), &format!("Host: a{forged}")).expect_err("it may not").0,
            400
        );
    }

    #[test]
    fn no_certificate_takes_the_place_of_a_name_that_a_believed_proxy_does_not_say() {
        let ask = |address: &str, more: &str| {
            let names = Names { common_name: Some("alice".into()), ..Names::default() };
            let origin = Origin { names: names.into(), ..from(address) };
            identify(&named(false), OPEN, origin, &format!("Host: a{more}"))
        };
        assert_eq!(ask(PROXY, "").expect_err("it may be the proxy's own").0, 401);
        assert_eq!(ask(PROXY, "\r\nX-User: bob").expect_err("they disagree").0, 400);
        let both = ask(PROXY, "\r\nX-User: alice").expect("they agree");
        assert_eq!(both.names.owner().map(|owner| owner.vouches), Some(NameAuthority::Certificate));
        assert!(ask(STRANGER, "").is_ok(), "one that comes itself is who its certificate says");
    }

    #[test]
    fn a_request_whose_body_comes_after_a_reload_still_needs_a_name() {
        assert_eq!(named(false).still_admits(None, true), Ok(()));
        assert!(named(false).still_admits(None, false).is_err() && named(true).still_admits(None, false).is_err());
        assert_eq!(Policy::default().still_admits(None, true), Ok(()), "none is needed any more");
    }

    #[test]
    fn whose_token_was_taken_out_or_granted_other_pools_is_no_longer_admitted() {
        let tokens = |text: &str| Some(Tokens::parse(text, &["agents", "tools"]).expect("good lines"));
        let mut policy = Policy { tokens: tokens("alice:0123456789abcdef\n"), ..Policy::default() };
        let alice = policy.tokens.as_ref().and_then(|tokens| tokens.find("0123456789abcdef")).expect("hers").clone();
        assert_eq!(policy.still_admits(Some(&alice), true), Ok(()));
        assert_eq!(policy.still_admits(None, false).expect_err("a token is needed").status, Status::Unauthorized);
        for other in ["alice:0123456789abcdef tools\n", "bob:0123456789abcdef\n", "alice:0123456789abcdeg\n", ""] {
            policy.tokens = tokens(other);
            assert_eq!(policy.still_admits(Some(&alice), true).expect_err(other).status, Status::Unauthorized);
        }
        policy.tokens = None;
        assert_eq!(policy.still_admits(None, false), Ok(()), "none is needed any more");
    }
}
