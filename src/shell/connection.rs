//! The state of a peer's connection: its descriptors, its unconsumed input, its queued output, and the progress of
//! each.
//!
//! Its operations in the kernel are one set ([`InFlight`]), its places in queues another ([`Queued`]). A descriptor is
//! closed only when the first is empty: a closed socket with a receive in flight sends no FIN, and the kernel keeps
//! writing into our buffer.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use super::framing::Framing;
use super::inbox::Inbox;
use super::inherited;
use super::outbox::Outbox;
use super::stderr::Stderr;
use super::websocket::WebSocket;
use crate::bus::port::{Moment, Peer, WorkerKey, WorkerName};

/// An operation that uses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flight {
    /// The kernel reads or receives.
    Read,
    /// The kernel writes or sends, or waits for room to do so.
    Write,
    /// The write in flight is a wait for room.
    Room,
    /// The kernel polls for the peer's departure.
    Watch,
    /// The kernel reads its stderr.
    Stderr,
    /// The core is processing its bytes: until then it is not read, either.
    Presentation,
}

/// The operations that use a connection, which has to stay until there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlight(u8);

impl InFlight {
    /// Adds an element. True if it was not in the set.
    pub(super) fn add(&mut self, element: Flight) -> bool {
        let is_new = !self.has(element);
        self.0 |= 1 << element as u8;
        is_new
    }

    /// Removes an element. True if it was in the set.
    pub(super) fn remove(&mut self, element: Flight) -> bool {
        let was_there = self.has(element);
        self.0 &= !(1 << element as u8);
        was_there
    }

    /// An operation has completed.
    pub(super) fn end(&mut self, operation: Flight) {
        let was_there = self.remove(operation);
        debug_assert!(was_there, "{operation:?} is in flight");
    }

    /// Whether an element is in the set.
    pub(super) fn has(self, element: Flight) -> bool {
        self.0 & 1 << element as u8 != 0
    }

    /// Whether the set is empty.
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// The queues that a connection is in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queued {
    /// The outputs that have something to write.
    pub dirty: bool,
    /// The connections whose buffered bytes are presented next.
    pub resumed: bool,
}

pub(super) struct Connection {
    pub peer: Peer,
    /// The worker's name, if it is one.
    pub name: Option<Box<WorkerName>>,
    /// Its descriptors, except stderr.
    pub ends: Ends,
    /// A worker's stderr.
    pub stderr: Option<Box<Stderr>>,
    /// Its unconsumed input.
    pub inbox: Inbox,
    /// Its queued output.
    pub outbox: Outbox,
    /// Its operations in flight.
    pub in_flight: InFlight,
    /// The queues that it is in.
    pub queued: Queued,
    /// The state of its input.
    pub incoming: Incoming,
    /// How far it is closed.
    pub closing: Closing,
    /// The state of its output when that has no room.
    pub room: Room,
    /// Its WebSocket state, if it speaks that.
    pub web: Option<Box<WebSocket>>,
    /// When to look for signs of the client's network, if that is monitored.
    pub look_at: Option<Moment>,
}

/// A thousand of them may be idle.
const _: () = assert!(size_of::<Connection>() <= 168);

/// How far the end of an input was processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// The input is open.
    #[default]
    Open,
    /// The end was read, but not reported to the core, which has not seen all bytes before it.
    Seen,
    /// The end was reported to the core.
    Told,
}

/// Whether an input is wanted, and whether it has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Incoming {
    /// The core has paused it.
    pub is_paused: bool,
    /// Further input is discarded.
    pub is_discarded: bool,
    /// The last receive left bytes in the socket.
    pub has_more: bool,
    pub end: End,
    /// The kernel has reported that the peer half-closed.
    pub told_half_closed: bool,
    /// It was not read when it was last looked for, and has not been since (`liveness.rs`).
    pub is_doubted: bool,
}

impl Incoming {
    /// Whether the peer is known to have half-closed.
    pub(super) fn is_half_closed(self) -> bool {
        self.told_half_closed || self.has_ended()
    }

    /// Whether the input has ended.
    pub(super) fn has_ended(self) -> bool {
        self.end != End::Open
    }

    /// Whether it should be read.
    pub(super) fn is_wanted(self) -> bool {
        (!self.is_paused || self.is_discarded) && !self.has_ended()
    }
}

/// The first delay before a socket without room is tried again; doubled until it has room.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_millis(640);

/// The state of an output that may be full.
#[derive(Default)]
pub(super) struct Room {
    /// The size in bytes of the write in flight, or of the last one.
    pub asked: usize,
    /// Set if there was no room for the last one.
    retry: Option<Box<Retry>>,
}

/// The retry of a write that found no room.
#[derive(Default)]
struct Retry {
    /// The last delay.
    backoff: Duration,
    /// When it is retried at the latest.
    at: Option<Moment>,
}

impl Room {
    /// Records how many bytes were written. True if that is all of them.
    pub(super) fn took(&mut self, bytes: usize) -> bool {
        if self.retry.as_ref().is_some_and(|retry| retry.at.is_none()) {
            self.retry = None;
        } else if let Some(retry) = &mut self.retry {
            retry.backoff = Duration::ZERO;
        }
        bytes >= self.asked
    }

    /// There was no room: schedules a retry, unless one is scheduled.
    pub(super) fn none(&mut self, now: Moment) {
        let retry = self.retry.get_or_insert_default();
        retry.backoff = (retry.backoff * 2).clamp(FIRST_BACKOFF, LONGEST_BACKOFF);
        retry.at.get_or_insert(now.after(retry.backoff));
    }

    /// Whether a retry is scheduled.
    pub(super) fn waits(&self) -> bool {
        self.due().is_some()
    }

    /// When it is due.
    fn due(&self) -> Option<Moment> {
        self.retry.as_ref()?.at
    }

    /// Whether it is due. Returns true only once.
    pub(super) fn take_due(&mut self, now: Moment) -> bool {
        self.retry.as_mut().is_some_and(|retry| retry.at.take_if(|at| *at <= now).is_some())
    }
}

/// How far a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    /// It is not being closed.
    Open,
    /// The output will be shut down when everything queued is written.
    AfterFlush,
    /// The output is shut down; the peer's end is awaited.
    ShutDown,
    /// Everything is cancelled; it is removed when the last operation has completed.
    Leaving,
}

/// The descriptors to read from and write to.
pub(super) enum Ends {
    /// A client accepted from a listening socket.
    Socket(OwnedFd),
    /// The client of `--stdio`. Its descriptors belong to the parent process: they are never closed, and never set to
    /// O_NONBLOCK.
    Stdio {
        stdin: BorrowedFd<'static>,
        stdout: BorrowedFd<'static>,
        /// Writing may block the thread ([`inherited::may_block`]).
        writes_aside: bool,
    },
    /// A worker, whose pipes come when it is spawned. Its stdin is closed first.
    Worker { stdin: Option<OwnedFd>, stdout: Option<OwnedFd> },
}

impl Ends {
    pub(super) fn is_socket(&self) -> bool {
        matches!(self, Self::Socket(_))
    }

    pub(super) fn is_stdio(&self) -> bool {
        matches!(self, Self::Stdio { .. })
    }

    pub(super) fn is_worker(&self) -> bool {
        matches!(self, Self::Worker { .. })
    }

    /// Whether it is a worker that is being spawned.
    pub(super) fn are_to_come(&self) -> bool {
        matches!(self, Self::Worker { stdout: None, .. })
    }

    /// The descriptor to read from.
    pub(super) fn input(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(socket) => Some(socket.as_fd()),
            Self::Stdio { stdin, .. } => Some(*stdin),
            Self::Worker { stdout, .. } => stdout.as_ref().map(AsFd::as_fd),
        }
    }

    /// The descriptor to write to.
    pub(super) fn output(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(socket) => Some(socket.as_fd()),
            Self::Stdio { stdout, .. } => Some(*stdout),
            Self::Worker { stdin, .. } => stdin.as_ref().map(AsFd::as_fd),
        }
    }

    /// The number of the output descriptor.
    pub(super) fn raw_output(&self) -> Option<RawFd> {
        self.output().map(|output| output.as_raw_fd())
    }
}

impl Connection {
    /// A worker that is being spawned: its pipes do not exist yet.
    pub(super) fn starting(worker: WorkerKey, name: WorkerName) -> Self {
        let ends = Ends::Worker { stdin: None, stdout: None };
        Self { name: Some(Box::new(name)), ..Self::blank(Peer::Worker(worker), ends) }
    }

    /// An accepted client.
    pub(super) fn socket(peer: Peer, socket: OwnedFd) -> Self {
        Self::blank(peer, Ends::Socket(socket))
    }

    /// The client on the process's own stdin and stdout.
    pub(super) fn stdio(peer: Peer, stdin: BorrowedFd<'static>, stdout: BorrowedFd<'static>) -> Self {
        Self::blank(peer, Ends::Stdio { stdin, stdout, writes_aside: inherited::may_block(stdout) })
    }

    /// The same, where a test decides whether writing may block.
    #[cfg(test)]
    pub(super) fn writing_aside(mut self, aside: bool) -> Self {
        if let Ends::Stdio { writes_aside, .. } = &mut self.ends {
            *writes_aside = aside;
        }
        self
    }

    /// The connection of a WebSocket client.
    pub(super) fn speaking(mut self, web: WebSocket, framing: Framing) -> Self {
        self.web = Some(Box::new(web));
        self.outbox.frame_lines(framing);
        self
    }

    fn blank(peer: Peer, ends: Ends) -> Self {
        Self {
            peer,
            name: None,
            stderr: None,
            inbox: Inbox::new(ends.is_worker()),
            outbox: Outbox::new(ends.is_socket()),
            ends,
            in_flight: InFlight::default(),
            queued: Queued::default(),
            incoming: Incoming::default(),
            closing: Closing::Open,
            room: Room::default(),
            web: None,
            look_at: None,
        }
    }

    /// Memory used, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.inbox.weight() + self.outbox.weight()
    }

    /// Whether it should be read now.
    pub(super) fn is_to_be_read(&self) -> bool {
        let is_busy = self.in_flight.has(Flight::Read) || self.in_flight.has(Flight::Presentation);
        // The end of a WebSocket's input that the core was not told of.
        let is_over = self.web.as_ref().is_some_and(|web| web.ending.is_some() && !web.is_told);
        let is_closed = self.closing == Closing::Leaving || is_over;
        self.incoming.is_wanted() && !is_busy && !self.queued.resumed && !is_closed
    }

    /// Whether no read would show the peer's departure.
    pub(super) fn is_not_read(&self) -> bool {
        self.incoming.is_paused || self.incoming.has_ended()
    }

    /// Whether there is input that the core has not seen, and is not processing.
    pub(super) fn is_waiting_to_be_read(&self) -> bool {
        self.incoming.is_paused || self.queued.resumed
    }

    /// Decodes the first `received` of `bytes`, which has room for one more, to lines in place. Returns the length of
    /// the lines: the same, except for WebSocket frames.
    pub(super) fn decode(&mut self, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        match (&mut self.web, self.outbox.framing()) {
            (Some(web), Some(framing)) => web.decode(framing, now, bytes, received),
            _ => received,
        }
    }

    /// The kernel has read this many bytes into the inbox. WebSocket frames are decoded to lines there.
    pub(super) fn filled(&mut self, now: Moment, received: usize) {
        let bytes = match (&mut self.web, self.outbox.framing()) {
            (Some(web), Some(framing)) => web.decode(framing, now, self.inbox.received(received), received),
            _ => received,
        };
        self.inbox.filled(bytes);
    }

    /// When its timers are due.
    pub(super) fn due(&self) -> Option<Moment> {
        let left_out = self.stderr.as_ref().and_then(|stderr| stderr.left_out_due());
        let ping = self.web.as_ref().and_then(|web| web.heartbeat.due);
        let stderr = self.stderr.as_ref().and_then(|stderr| stderr.paused_until);
        [self.room.due(), self.look_at, ping, left_out, stderr].into_iter().flatten().min()
    }
}
