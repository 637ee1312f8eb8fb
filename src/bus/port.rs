//! The whole contract between the core and whoever runs it: what comes in, what goes out, and who the peers are.
//!
//! The caller gives bytes to [`Bus::receive`](super::Bus::receive) and everything else to
//! [`Bus::handle`](super::Bus::handle), and carries out the [`Effects`] that each call returns. Time is an argument.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::num::NonZeroU64;
use std::time::Duration;

use super::client::Client;
use super::report::Report;
use super::table::Key;
use super::worker::Worker;
use crate::scan::Span;

/// Names one client connection.
pub type ClientKey = Key<Client>;
/// Names one incarnation of a worker; a restarted worker has a new key.
pub type WorkerKey = Key<Worker>;

/// One end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client connection.
    Client(ClientKey),
    /// A worker's pipes.
    Worker(WorkerKey),
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
}

impl From<Peer> for PeerBits {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Client(client) => Self(client.to_bits()),
            Peer::Worker(worker) => Self(worker.to_bits() | Self::WORKER),
        }
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

/// Where a client comes from. What all share is shared out by source first, then by connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// It was there from the start: the client of `--stdio`, or nobody knows.
    #[default]
    Inherited,
    /// A network address: an IPv4 address mapped into IPv6, or an IPv6 address of which the last 64 bits are zero,
    /// since one host has as many of those as it likes.
    Address([u8; 16]),
    /// A user of this machine, at the other end of a Unix socket (SO_PEERCRED, unix(7)).
    User(u32),
}

impl std::fmt::Display for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        }
    }
}

/// A point in time: nanoseconds on the caller's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `duration` later; the end of time when that overflows.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What happened outside.
#[derive(Debug)]
pub enum Input {
    /// A worker's process runs, as [`Effect::Spawn`] asked.
    Spawned {
        /// The worker.
        worker: WorkerKey,
        /// Its process id.
        pid: u32,
    },
    /// A worker's process could not be started.
    SpawnFailed {
        /// The worker.
        worker: WorkerKey,
        /// Why, for a person to read.
        why: String,
        /// The command is not to blame: descriptors, processes or memory were short (EMFILE, ENFILE, EAGAIN, ENOMEM).
        short: bool,
    },
    /// A worker's process was reaped (spec 7.1.1).
    Exited {
        /// The worker.
        worker: WorkerKey,
        /// How it ended.
        exit: Exit,
    },
    /// A peer will send nothing more, and everything it sent was given to `receive`.
    Ended {
        /// The peer.
        peer: Peer,
        /// Bytes of a line that never got its newline.
        partial: usize,
    },
    /// A peer can be written to no more: reset, broken pipe.
    Broken {
        /// The peer.
        peer: Peer,
        /// Why, for a person to read.
        why: String,
    },
    /// Bytes queued for a peer have left the daemon.
    Sent {
        /// The peer.
        peer: Peer,
        /// How many.
        bytes: usize,
    },
    /// What [`Effect::Probe`] asked for.
    Unread {
        /// The worker.
        worker: WorkerKey,
        /// Bytes that were written to its stdin and that it has not read yet.
        bytes: usize,
    },
    /// More than three quarters of [`max_memory`](super::settings::Limits::max_memory) are in use, or no more so many.
    Memory {
        /// Bytes of all blocks that are lent.
        used: usize,
        /// How many of them are held for whom; empty once fewer than three quarters are in use.
        held: Vec<(Peer, usize)>,
        /// Those whose next bytes are there, but not the memory for them.
        waiting: Vec<Peer>,
    },
    /// The system has refused memory.
    Refused {
        /// Whose bytes could not be kept or queued, and are lost; none if nothing is.
        client: Option<ClientKey>,
        /// How many bytes are held for whom; with a client, at most for that one.
        held: Vec<(Peer, usize)>,
    },
    /// A client's descriptor is closed, and no operation of it is left in the kernel.
    Closed {
        /// The client.
        client: ClientKey,
    },
    /// SIGTERM or SIGINT. The second one is immediate.
    Shutdown,
    /// Nothing but the time.
    Tick,
}

/// How a worker's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exit code {code}"),
            Self::Signal(signal) => write!(formatter, "signal {signal}"),
        }
    }
}

/// What has to be done outside.
#[derive(Debug)]
pub enum Effect {
    /// Queue these bytes of the window that `receive` was called with. Must be done before the window goes.
    Copy {
        /// Where to.
        to: Peer,
        /// Which bytes; whole lines with their newline, or the pieces of one whose id is replaced.
        span: Span,
    },
    /// Queue these bytes.
    Insert {
        /// Where to.
        to: Peer,
        /// The bytes.
        text: Text,
    },
    /// Stop presenting this peer's bytes until [`Effect::Resume`]; keep what is not consumed.
    Pause {
        /// Who is read no more for now.
        peer: Peer,
    },
    /// Present what was kept, then read on.
    Resume {
        /// Who is read again.
        peer: Peer,
    },
    /// Start a worker's process; answer with [`Input::Spawned`] or [`Input::SpawnFailed`].
    Spawn {
        /// The worker.
        worker: WorkerKey,
        /// Index of its pool.
        pool: usize,
        /// The worker's id for people: unique in the life of the daemon.
        number: u32,
    },
    /// Close a worker's stdin once everything queued is written.
    CloseStdin {
        /// The worker.
        worker: WorkerKey,
    },
    /// Signal a worker's process group.
    Signal {
        /// The worker.
        worker: WorkerKey,
        /// Which signal.
        signal: Signal,
    },
    /// Find out how much a worker has not read of what was written to its stdin; answer with [`Input::Unread`].
    Probe {
        /// The worker.
        worker: WorkerKey,
    },
    /// Forget a worker: cancel what is in flight and close its descriptors. Its key is dead.
    Release {
        /// The worker.
        worker: WorkerKey,
    },
    /// Close a client connection; answer with [`Input::Closed`].
    Close {
        /// The client.
        client: ClientKey,
        /// Whether queued bytes may go first.
        how: Close,
    },
    /// Take no more connections for now: the table is full.
    PauseAccept,
    /// Take connections again.
    ResumeAccept,
    /// Close the listening sockets for good (spec 10.2.1).
    StopAccept,
    /// Something a person may want to know.
    Report(Box<Report>),
    /// The drain is over: exit.
    Done,
}

/// How a client connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Read nothing more, send what is queued, then shut down the writing side and discard input until its end.
    Flush,
    /// Now. What is queued is lost.
    Now,
}

/// Signals for a worker's process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, then SIGCONT so that a stopped process sees it.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// A few bytes of the bus' own: an id that replaces another, or an error reply. As many as a UUID in quotes has are
/// kept without an allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(Repr);

#[derive(Clone, PartialEq, Eq)]
enum Repr {
    Inline(u8, [u8; Text::INLINE]),
    Boxed(Box<[u8]>),
}

impl Text {
    const INLINE: usize = 38;

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Repr::Boxed(bytes) => bytes,
        }
    }
}

/// Eight to sixteen bytes as a number, the first lowest.
fn word(bytes: &[u8]) -> Option<u128> {
    let above = bytes.len().checked_sub(8).filter(|above| *above <= 8)?;
    let (low, high) = (u64::from_le_bytes(*bytes.first_chunk()?), u64::from_le_bytes(*bytes.last_chunk()?));
    Some(u128::from(low) | u128::from(high) << (8 * above))
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        if bytes.len() > Self::INLINE {
            return Self(Repr::Boxed(bytes.into()));
        }
        let mut inline = [0; Self::INLINE];
        match word(bytes) {
            // Written at once, it can be read on at once: most ids are short, and are moved right after this.
            Some(word) => inline[..16].copy_from_slice(&word.to_le_bytes()),
            None => inline[..bytes.len()].copy_from_slice(bytes),
        }
        Self(Repr::Inline(bytes.len() as u8, inline))
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// What is to be done, in this order. It borrows the bus, so that nobody calls the core before the last effect is taken.
#[must_use = "lines are lost with the effects that nobody carries out"]
pub struct Effects<'a>(pub(super) &'a mut VecDeque<Effect>);

impl Iterator for Effects<'_> {
    type Item = Effect;

    fn next(&mut self) -> Option<Effect> {
        self.0.pop_front()
    }
}

impl Drop for Effects<'_> {
    fn drop(&mut self) {
        debug_assert!(self.0.is_empty() || std::thread::panicking(), "effects were left behind: {:?}", self.0);
    }
}

/// What [`Bus::receive`](super::Bus::receive) did with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes from the front that must not be presented again.
    pub consumed: usize,
    /// What to do next.
    pub next: Next,
}

/// How to go on after [`Bus::receive`](super::Bus::receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Drain the effects, then present the rest of this window again: there are lines left.
    Again,
    /// Read more, and present the rest in front of it.
    Read,
    /// The peer is paused or being closed: present nothing before [`Effect::Resume`].
    Wait,
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
    fn a_text_holds_the_bytes_it_was_made_from() {
        let bytes: Vec<u8> = (1..=100).collect();
        for length in 0..=bytes.len() {
            assert_eq!(Text::from(&bytes[..length]).as_bytes(), &bytes[..length]);
            assert!(Text::from(&bytes[..length]) == Text::from(&bytes[..length]));
        }
    }
}
