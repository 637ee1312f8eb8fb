//! Access to the admin listener. Every client that can connect may read; an action needs a Unix socket, whose
//! permissions decide, or the token. A browser page of another origin may not act, and over TCP not read either: its
//! requests name the page, or a host other than ours. Through an operator's tunnel (`ssh -L`) to a Unix socket it may
//! read if it has pointed its own name at the tunnel: clients there may name any host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::getsockname;
use rustix::process::geteuid;

use super::request::AdminRequest;
use super::response::Response;
use crate::access::{Secret, names_this_machine};
use crate::bus::port::{Place, Source};
use crate::http1::Status;

/// What is known of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It may open the socket file; or it uses the abstract name, and is root or our own user.
    Trusted,
    /// Any other user of this machine, by an abstract name, which has no permissions.
    AnyUser,
    /// It connected over TCP to an address that other machines can reach.
    Network,
    /// It connected over TCP to a loopback address.
    Loopback,
}

impl Origin {
    /// The origin of a connected socket.
    pub(super) fn of(socket: &OwnedFd, place: Place, is_unix: bool, is_abstract: bool) -> Self {
        if is_unix {
            let ours = [Source::User(0), Source::User(geteuid().as_raw())];
            return if !is_abstract || ours.contains(&place.source()) { Self::Trusted } else { Self::AnyUser };
        }
        let local = getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
        if local.is_some_and(|local| local.ip().to_canonical().is_loopback()) { Self::Loopback } else { Self::Network }
    }
}

/// Refuses a request that must not be answered at all.
pub(super) fn may_ask(origin: Origin, request: &AdminRequest) -> Result<(), Response> {
    // A page may have pointed its own name at a loopback address (DNS rebinding).
    if origin == Origin::Loopback
        && let Some(host) = &request.host
        && !names_this_machine(host)
    {
        let text = format!("{host:?} is not this machine; ask for localhost, or for its address");
        return Err(Response::text(Status::Forbidden, &text));
    }
    Ok(())
}

/// Permission to act. Only [`permit_action`] creates it, and every action requires it.
pub(super) struct ActionPermit(());

/// Permission for a request to act, or the refusal.
pub(super) fn permit_action(
    origin: Origin,
    request: &AdminRequest,
    token: Option<&Secret>,
) -> Result<ActionPermit, Response> {
    if let Some(page) = &request.origin {
        let host = page.split_once("://").map(|(_, host)| host);
        // Its own name leads it through a tunnel to the socket, too, once it has pointed it at this machine.
        let is_ours = origin == Origin::Network || host.is_some_and(names_this_machine);
        if !is_ours || host != request.host.as_deref() {
            return Err(Response::text(Status::Forbidden, "a page of another origin may not act here"));
        }
    }
    if request.fetch_site.as_deref().is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(Response::text(Status::Forbidden, "a page of another site may not act here"));
    }
    match (origin, token, &request.bearer) {
        (Origin::Trusted, ..) => Ok(ActionPermit(())),
        (_, Some(token), Some(bearer)) if token.is(bearer) => Ok(ActionPermit(())),
        (_, None, _) => {
            Err(Response::text(Status::Forbidden, "an action needs a Unix socket with a path, or admin.token_file"))
        }
        (_, Some(_), bearer) => {
            let text = match bearer {
                Some(_) => "this is not the token of admin.token_file",
                None => "an action needs the token of admin.token_file; stdio_bus takes it with --token-file",
            };
            Err(Response::text(Status::Unauthorized, text).with("WWW-Authenticate", "Bearer realm=\"stdio_bus\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::read;
    use super::*;

    fn request(fields: &str) -> AdminRequest {
        read(&format!("POST /drain HTTP/1.1\r\n{fields}\r\n\r\n")).expect("it is a request")
    }

    fn code<T>(answer: Result<T, Response>) -> u16 {
        answer.map_or_else(|refused| refused.status.code(), |_| 200)
    }

    #[test]
    fn a_rebound_host_name_is_refused() {
        let ask = |origin, host: &str| code(may_ask(origin, &request(&format!("Host: {host}"))));
        for host in ["localhost", "LOCALHOST:9001", "127.0.0.1:9001", "127.9.9.9", "[::1]:9001", "[::ffff:127.0.0.1]"] {
            assert_eq!(ask(Origin::Loopback, host), 200, "{host}");
        }
        for host in ["evil.example", "evil.example:9001", "localhost.evil.example", "192.0.2.1", ""] {
            assert_eq!(ask(Origin::Loopback, host), 403, "{host}");
            assert_eq!((ask(Origin::Network, host), ask(Origin::Trusted, host)), (200, 200), "{host}");
        }
    }

    #[test]
    fn an_action_needs_a_unix_socket_or_the_token() {
        let token = Secret::new(b" 0123456789abcdef\n").expect("it is long enough");
        let act =
            |origin, token, fields: &str| code(permit_action(origin, &request(&format!("Host: h{fields}")), token));
        assert_eq!(act(Origin::Trusted, None, ""), 200);
        for origin in [Origin::AnyUser, Origin::Network, Origin::Loopback] {
            assert_eq!(act(origin, None, "\r\nAuthorization: Bearer 0123456789abcdef"), 403);
            assert_eq!(act(origin, Some(&token), ""), 401);
            assert_eq!(act(origin, Some(&token), "\r\nAuthorization: Bearer 0123456789abcdee"), 401);
            assert_eq!(act(origin, Some(&token), "\r\nAuthorization: Bearer 0123456789abcdef0"), 401);
            assert_eq!(act(origin, Some(&token), "\r\nAuthorization: Basic 0123456789abcdef"), 401);
            assert_eq!(act(origin, Some(&token), "\r\nAuthorization: Bearer 0123456789abcdef"), 200);
        }
    }

    #[test]
    fn a_page_of_another_origin_may_not_act_with_a_stolen_token() {
        let token = Secret::new(b"0123456789abcdef").expect("it is long enough");
        let act = |fields: &str| {
            let fields = format!("Host: h:1\r\nAuthorization: Bearer 0123456789abcdef{fields}");
            code(permit_action(Origin::Network, &request(&fields), Some(&token)))
        };
        assert_eq!((act("\r\nOrigin: http://h:1"), act("\r\nSec-Fetch-Site: same-origin")), (200, 200));
        assert_eq!((act("\r\nOrigin: http://h:2"), act("\r\nOrigin: null")), (403, 403));
        assert_eq!((act("\r\nSec-Fetch-Site: cross-site"), act("\r\nSec-Fetch-Site: same-site")), (403, 403));
    }

    #[test]
    fn a_page_whose_name_leads_to_a_tunnel_may_not_act_on_a_unix_socket() {
        let act = |host: &str, origin| {
            let fields = format!("Host: {host}\r\nOrigin: http://{host}");
            code(permit_action(origin, &request(&fields), None))
        };
        for ours in ["localhost:9001", "127.0.0.1:9001", "[::1]:9001"] {
            assert_eq!(act(ours, Origin::Trusted), 200, "{ours}");
        }
        for rebound in ["evil.example:9001", "192.0.2.1:9001"] {
            assert_eq!(act(rebound, Origin::Trusted), 403, "{rebound}");
            assert_eq!(act(rebound, Origin::AnyUser), 403, "{rebound}");
        }
    }
}
