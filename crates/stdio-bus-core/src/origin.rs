//! The origin of a client: where its connection comes from, and what a proxy or a token says about it. Used for
//! admission, for people, and for what belongs to a name: pools and sessions.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use super::cold::{Cold, blank};
use super::index::PoolId;
use super::networks::Network;
use super::peer::{Source, hash_of_name};

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// It was there from the start, or its address is unknown: the peer has left, or a proxy does not say it.
    #[default]
    Inherited,
    /// An address and a port of the network.
    Address(SocketAddr),
    /// A process on this machine, at the other end of a Unix socket (SO_PEERCRED, unix(7)).
    Process {
        /// Its id; 0 if it is in another PID namespace.
        pid: u32,
        /// The number of its user.
        user: u32,
    },
}

impl Place {
    /// The source that its shares are counted by.
    pub fn source(self) -> Source {
        match self {
            Self::Inherited => Source::Inherited,
            Self::Address(address) => Source::Address(network(address.ip())),
            Self::Process { user, .. } => Source::User(user),
        }
    }

    /// Whether its address is in one of these networks.
    pub fn is_in(self, networks: &[Network]) -> bool {
        self.address().is_some_and(|address| networks.iter().any(|network| network.contains(address)))
    }

    /// Its address; an IPv4 address mapped into IPv6 is IPv4.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address.ip().to_canonical()),
            Self::Inherited | Self::Process { .. } => None,
        }
    }
}

/// One source for all addresses of one host.
fn network(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            octets
        }
    }
}

impl core::fmt::Display for Place {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Inherited => formatter.write_str("an unknown source"),
            Self::Address(address) => SocketAddr::new(address.ip().to_canonical(), address.port()).fmt(formatter),
            Self::Process { pid, user } => write!(formatter, "process {pid} of user {user}"),
        }
    }
}

/// Where a client comes from, and the names that were shown for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The client's place. With a PROXY header this is what the header says.
    pub place: Place,
    /// The trusted proxy that it came through, if any.
    pub via: Option<Box<Place>>,
    /// It is the proxy itself, not a client of it: a health check.
    pub is_proxy: bool,
    pub names: Cold<Names>,
    /// The pools that its token is valid for, the first one preferred; none means all of its listener.
    pub pools: Option<Arc<[PoolId]>>,
    /// The groups that it is in, which commas separate, as its token or a trusted proxy says.
    pub groups: Option<Arc<str>>,
}

/// The group that all clients are in.
pub const EVERYBODY: &str = "*";

/// Whether somebody in these groups, which commas separate, is in this one.
pub fn is_in_group(groups: &str, group: &str) -> bool {
    group == EVERYBODY || groups.split(',').any(|one| one.trim_ascii() == group)
}

impl Origin {
    /// The source that its shares are counted by: the name of its token, or that which a proxy gives it in a header, or
    /// else its place: a proxy that sends the name of a certificate sends its client's address as well.
    pub fn source(&self) -> Source {
        match (&self.names.token, &self.names.user) {
            (Some(name), _) => Source::Name(hash_of_name(name.as_bytes())),
            // No name of a token begins with a control character.
            (None, Some(name)) => Source::Name(hash_of_name(&[b"\0", name.as_bytes()].concat())),
            (None, None) => self.place.source(),
        }
    }
}

/// The names of a client: from its token, and from a proxy. Text without control characters, of at most 255 characters
/// each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The common name of the certificate that the client showed to the proxy, which has verified it.
    pub common_name: Option<Box<str>>,
    /// The name that the client asked the proxy for (SNI).
    pub server_name: Option<Box<str>>,
    /// The proxy's log id of this connection.
    pub unique_id: Option<Box<str>>,
    /// The name of the token that the client has shown.
    pub token: Option<Arc<str>>,
    /// The name that a trusted proxy gave it in a header of its request.
    pub user: Option<Arc<str>>,
    /// The connection id that a WebSocket client was given (`Acp-Connection-Id`).
    pub connection_id: Option<Box<str>>,
}

blank!(
    Names,
    Self { common_name: None, server_name: None, unique_id: None, token: None, user: None, connection_id: None }
);

/// Who vouches for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameAuthority {
    /// The daemon: the client has shown the token of this name.
    Token,
    /// A trusted proxy: the client has shown it the certificate with this common name.
    Certificate,
    /// A trusted proxy, in a header. How the proxy authenticated the client is not checked.
    Proxy,
}

/// A verified name, which is known beyond a connection: what belongs to it is used by no other. The same text is another
/// name if somebody else vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'n> {
    pub vouches: NameAuthority,
    pub name: &'n str,
}

impl Names {
    /// The verified name: that of its token, of its certificate, or of the header, in this order.
    pub fn owner(&self) -> Option<Owner<'_>> {
        let of = |vouches, name| Owner { vouches, name };
        let token = self.token.as_deref().map(|name| of(NameAuthority::Token, name));
        let certificate = || self.common_name.as_deref().map(|name| of(NameAuthority::Certificate, name));
        let user = || self.user.as_deref().map(|name| of(NameAuthority::Proxy, name));
        token.or_else(certificate).or_else(user)
    }

    /// Whether both have the same verified name.
    pub fn are_the_same_owner(&self, other: &Self) -> bool {
        self.owner().is_some() && self.owner() == other.owner()
    }
}

impl<P: Into<Place>> From<P> for Origin {
    fn from(place: P) -> Self {
        Self { place: place.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Place::Address(SocketAddr::new(address.parse().expect("an address"), 9)).source()
    }

    #[test]
    fn an_ipv4_address_is_whole_and_an_ipv6_address_is_its_network() {
        let Source::Address(octets) = source("192.0.2.7") else { panic!("it is an address") };
        assert_eq!(octets, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(source("::ffff:192.0.2.7"), source("192.0.2.7"));
        assert_ne!(source("::ffff:192.0.2.8"), source("192.0.2.7"));
        assert_eq!(source("2001:db8:1:2:3:4:5:6"), source("2001:db8:1:2::"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
    }

    #[test]
    fn the_same_text_from_token_certificate_and_header_is_three_names_of_which_the_first_counts() {
        let token = Names { token: Some("alice".into()), ..Names::default() };
        let certificate = Names { common_name: Some("alice".into()), ..Names::default() };
        let user = Names { user: Some("alice".into()), ..Names::default() };
        let all = [&token, &certificate, &user, &Names::default()];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one.are_the_same_owner(other), at == other_at && at < 3, "{one:?} {other:?}");
            }
        }
        let both = Names { token: Some("alice".into()), user: Some("alice".into()), ..Names::default() };
        assert!(both.are_the_same_owner(&token) && !both.are_the_same_owner(&user));
        let source = |names: Names| Origin { names: names.into(), ..Origin::default() }.source();
        assert_ne!(source(token.clone()), source(user.clone()), "each has its own share");
        assert_eq!(source(user.clone()), source(user), "wherever it comes from");
        assert_eq!(source(both), source(token));
    }

    #[test]
    fn a_place_is_shown_as_people_write_it() {
        let shown = |address: &str| Place::Address(address.parse().expect("an address")).to_string();
        assert_eq!(shown("[::ffff:192.0.2.7]:80"), "192.0.2.7:80");
        assert_eq!(shown("[2001:db8::1]:80"), "[2001:db8::1]:80");
        assert_eq!(Place::Process { pid: 12, user: 1000 }.to_string(), "process 12 of user 1000");
        assert_eq!(Place::Process { pid: 12, user: 7 }.source(), Source::User(7));
    }
}
