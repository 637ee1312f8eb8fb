//! The vocabulary of the whole core: both ends of a conversation, keys of sessions and requests, moments, and short
//! texts. It knows none of the tables that the keys belong to.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::num::NonZeroU64;
use core::time::Duration;

use super::table::Key;

/// Key of a client connection.
pub type ClientKey = Key<'c'>;
/// Key of one incarnation of a worker; a restarted worker has a new key.
pub type WorkerKey = Key<'w'>;
/// Key of a session, or of a reserved name.
pub type SessionKey = Key<'s'>;
/// Key of a pending request, among those of its direction.
pub type RequestKey = Key<'r'>;

/// A client or a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client: a connection, or an HTTP session.
    Client(ClientKey),
    /// A worker's pipes.
    Worker(WorkerKey),
}

impl From<ClientKey> for Peer {
    fn from(client: ClientKey) -> Self {
        Self::Client(client)
    }
}

impl From<WorkerKey> for Peer {
    fn from(worker: WorkerKey) -> Self {
        Self::Worker(worker)
    }
}

/// A [`Peer`] in eight bytes, where many are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeerBits(NonZeroU64);

impl PeerBits {
    const WORKER: NonZeroU64 = NonZeroU64::new(1 << 63).unwrap();

    /// As a number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The client, if it is one.
    #[inline(always)]
    pub(super) fn client(self) -> Option<ClientKey> {
        (self.get() & Self::WORKER.get() == 0).then_some(Key::of_bits(self.0))
    }
}

impl From<Peer> for PeerBits {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Client(client) => Self(client.to_bits()),
            Peer::Worker(worker) => Self(worker.to_bits() | Self::WORKER),
        }
    }
}

impl From<ClientKey> for PeerBits {
    fn from(client: ClientKey) -> Self {
        Self(client.to_bits())
    }
}

impl From<PeerBits> for Peer {
    fn from(bits: PeerBits) -> Self {
        match NonZeroU64::new(bits.get() & !PeerBits::WORKER.get()) {
            Some(worker) if bits.get() & PeerBits::WORKER.get() != 0 => Self::Worker(Key::of_bits(worker)),
            _ => Self::Client(Key::of_bits(bits.0)),
        }
    }
}

/// The source of a client. Shared resources are divided by source first, then by connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// It was there from the start: the client of `--stdio`, or unknown.
    #[default]
    Inherited,
    /// A network address: an IPv4 address mapped into IPv6, or an IPv6 address whose last 64 bits are zero, since one
    /// host has as many of those as it likes.
    Address([u8; 16]),
    /// A user of this machine, at the other end of a Unix socket (SO_PEERCRED, unix(7)).
    User(u32),
    /// Every client with a token of this name, or to which trusted proxies give this name, by its hash.
    Name(u64),
}

/// A name in 64 bits (FNV-1a). A collision is of no use to an attacker where this is used.
pub(super) fn hash_of_name(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl core::fmt::Display for Source {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Inherited => formatter.write_str("an unknown source"),
            Self::Address(octets) => {
                let address = Ipv6Addr::from(*octets);
                match address.to_ipv4_mapped() {
                    Some(address) => write!(formatter, "{address}"),
                    None => write!(formatter, "{address}/64"),
                }
            }
            Self::User(user) => write!(formatter, "user {user}"),
            Self::Name(_) => formatter.write_str("the clients of one name"),
        }
    }
}

/// A point in time: nanoseconds on the caller's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `duration` later; the end of time if that overflows.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A short text of the bus: a replaced id or an error reply. Up to the length of a UUID in quotes is stored inline.
#[derive(Clone, PartialEq, Eq)]
pub struct ShortText(Repr);

impl Default for ShortText {
    fn default() -> Self {
        Self(Repr::Inline(0, [0; Self::INLINE]))
    }
}

#[derive(Clone, PartialEq, Eq)]
enum Repr {
    Inline(u8, [u8; ShortText::INLINE]),
    Boxed(Box<[u8]>),
}

impl ShortText {
    const INLINE: usize = 38;

    /// The digits of a number.
    pub(super) fn of_number(mut number: u64) -> Self {
        let mut digits = [0; Self::INLINE];
        let count = number.checked_ilog10().map_or(1, |below| below as usize + 1);
        for digit in digits[..count].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        Self(Repr::Inline(count as u8, digits))
    }

    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Repr::Boxed(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for ShortText {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() > Self::INLINE { Self(Repr::Boxed(bytes.into_boxed_slice())) } else { (&bytes[..]).into() }
    }
}

impl From<ShortText> for Vec<u8> {
    /// The bytes; a long text is not copied.
    fn from(text: ShortText) -> Self {
        match text.0 {
            Repr::Inline(..) => text.as_bytes().into(),
            Repr::Boxed(bytes) => bytes.into(),
        }
    }
}

impl From<&[u8]> for ShortText {
    fn from(bytes: &[u8]) -> Self {
        if bytes.len() > Self::INLINE {
            return Self(Repr::Boxed(bytes.into()));
        }
        let mut inline = [0; Self::INLINE];
        inline[..bytes.len()].copy_from_slice(bytes);
        Self(Repr::Inline(bytes.len() as u8, inline))
    }
}

impl core::fmt::Debug for ShortText {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_shown_as_people_write_it() {
        let address = |text: &str| Source::Address(text.parse::<Ipv6Addr>().unwrap().octets()).to_string();
        assert_eq!(address("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(address("2001:db8:1:2::"), "2001:db8:1:2::/64");
        assert_eq!(
            (Source::User(7).to_string(), Source::Inherited.to_string()),
            ("user 7".into(), "an unknown source".into())
        );
    }

    #[test]
    fn a_text_of_a_number_has_its_digits() {
        for number in [0, 7, 10, 2_000_000_000, u64::MAX] {
            assert_eq!(ShortText::of_number(number), number.to_string().as_bytes().into());
        }
    }

    #[test]
    fn a_text_holds_the_bytes_it_was_made_from() {
        let bytes: Vec<u8> = (1..=100).collect();
        for length in 0..=bytes.len() {
            assert_eq!(ShortText::from(&bytes[..length]).as_bytes(), &bytes[..length]);
            assert!(ShortText::from(&bytes[..length]) == ShortText::from(&bytes[..length]));
        }
    }
}
