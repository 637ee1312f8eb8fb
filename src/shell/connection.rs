//! One peer's descriptors, what came in and was not consumed yet, what waits to go out, and how far each of them is.
//!
//! What the kernel holds of it is one set ([`InFlight`]), and where it waits for its turn another ([`Queued`]). A descriptor
//! is closed only when the first one is empty: a closed socket with a receive in flight sends no FIN, and the kernel goes
//! on writing into our buffer.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use super::framing::Framing;
use super::inbox::Inbox;
use super::inherited;
use super::outbox::Outbox;
use super::stderr::Stderr;
use super::websocket::WebSocket;
use crate::bus::port::{Moment, Peer, WorkerKey, WorkerName};
use crate::io::buffers::Buffers;

/// Which end of the bus this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A connection accepted from a listening socket.
    Socket,
    /// The client of `--stdio`. Its descriptors belong to the parent: they are never closed, and never O_NONBLOCK.
    Stdio,
    /// A worker's three pipes.
    Worker,
}

/// Somebody who works on what a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flight {
    /// The kernel reads or receives.
    Read,
    /// The kernel writes or sends, or waits for room to do so.
    Write,
    /// That is a wait for room.
    Room,
    /// The kernel polls for the other side's leaving.
    Watch,
    /// The kernel reads its stderr.
    Stderr,
    /// The core looks at its bytes: until that is over it is not read, either.
    Presentation,
}

/// Who works on what a connection has, so that it has to stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlight(u8);

impl InFlight {
    /// Adds an element. True if it was not there.
    pub(super) fn add(&mut self, element: Flight) -> bool {
        let is_new = !self.has(element);
        self.0 |= 1 << element as u8;
        is_new
    }

    /// Takes an element out. True if it was there.
    pub(super) fn remove(&mut self, element: Flight) -> bool {
        let was_there = self.has(element);
        self.0 &= !(1 << element as u8);
        was_there
    }

    /// Whether an element is there.
    pub(super) fn has(self, element: Flight) -> bool {
        self.0 & 1 << element as u8 != 0
    }

    /// Whether nobody holds anything.
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// In which lists a connection waits for its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queued {
    /// Of outputs that have something to write.
    pub dirty: bool,
    /// Of connections whose kept bytes are presented next.
    pub resumed: bool,
}

/// See the module documentation.
pub(super) struct Connection {
    /// Who it is.
    pub peer: Peer,
    /// Which worker it is, if it is one.
    pub name: Option<Box<WorkerName>>,
    /// Its descriptors, but for stderr.
    pub ends: Ends,
    /// A worker's stderr.
    pub stderr: Option<Box<Stderr>>,
    /// What came in.
    pub inbox: Inbox,
    /// What goes out.
    pub outbox: Outbox,
    /// What the kernel holds of it.
    pub in_flight: InFlight,
    /// Where it waits.
    pub queued: Queued,
    /// Whether it is read.
    pub incoming: Incoming,
    /// How far it is being closed.
    pub closing: Closing,
    /// What becomes of a write that found no room.
    pub room: Room,
    /// It speaks WebSocket.
    pub web: Option<Box<WebSocket>>,
    /// Whether its network gives signs of it, if that is looked at.
    pub liveness: Option<Liveness>,
}

/// A thousand of them may be idle.
const _: () = assert!(size_of::<Connection>() <= 168);

/// How far the end of an input has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// There may be more.
    #[default]
    Open,
    /// There is no more, and the core does not know it yet: it has not seen all.
    Seen,
    /// The core knows it.
    Told,
}

/// Whether more of an input is wanted, and whether more can come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Incoming {
    /// The core does not want its bytes for now.
    pub is_paused: bool,
    /// What still comes in is thrown away.
    pub is_discarded: bool,
    /// The last receive has left something in the socket.
    pub has_more: bool,
    pub end: End,
    /// The other side sends no more, as far as the kernel has told.
    pub told_half_closed: bool,
}

impl Incoming {
    /// Whether the other side is known to send no more.
    pub(super) fn is_half_closed(self) -> bool {
        self.told_half_closed || self.has_ended()
    }

    /// Whether nothing more comes.
    pub(super) fn has_ended(self) -> bool {
        self.end != End::Open
    }

    /// Whether it is to be read.
    pub(super) fn is_wanted(self) -> bool {
        (!self.is_paused || self.is_discarded) && !self.has_ended()
    }

    /// What comes is thrown away, so nobody has to be spared it.
    pub(super) fn discard(&mut self) {
        (self.is_discarded, self.is_paused) = (true, false);
    }
}

/// A socket that had no room is tried again after this long, then after twice as long, and so on, until it has room.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_millis(640);

/// How an output does that may be full.
#[derive(Default)]
pub(super) struct Room {
    /// How many bytes the write in flight has, or the last one had.
    asked: usize,
    /// It had none for the last one.
    retry: Option<Box<Retry>>,
}

/// When a write is tried again that found no room.
#[derive(Default)]
struct Retry {
    /// After how long it was tried again the last time.
    backoff: Duration,
    /// When it is tried again in any case.
    at: Option<Moment>,
}

impl Room {
    /// So many bytes are being written.
    pub(super) fn ask(&mut self, bytes: usize) {
        self.asked = bytes;
    }

    /// So many were. True if they are all of them.
    pub(super) fn took(&mut self, bytes: usize) -> bool {
        if self.retry.as_ref().is_some_and(|retry| retry.at.is_none()) {
            self.retry = None;
        } else if let Some(retry) = &mut self.retry {
            retry.backoff = Duration::ZERO;
        }
        bytes >= self.asked
    }

    /// There was none: it is tried again at this moment, unless it waits for that already.
    pub(super) fn none(&mut self, now: Moment) {
        let retry = self.retry.get_or_insert_default();
        retry.backoff = (retry.backoff * 2).clamp(FIRST_BACKOFF, LONGEST_BACKOFF);
        retry.at.get_or_insert(now.after(retry.backoff));
    }

    /// Whether it is to be tried again at a certain time.
    pub(super) fn waits(&self) -> bool {
        self.due().is_some()
    }

    /// When that is.
    fn due(&self) -> Option<Moment> {
        self.retry.as_ref()?.at
    }

    /// Whether that has come. It does once.
    pub(super) fn take_due(&mut self, now: Moment) -> bool {
        self.retry.as_mut().is_some_and(|retry| retry.at.take_if(|at| *at <= now).is_some())
    }
}

/// How long a network may give no sign of a client, and when it is looked whether it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    pub allowed: Duration,
    pub look_at: Moment,
}

/// How far a connection is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    /// Not at all.
    Open,
    /// When everything queued is written, the output is shut down.
    AfterFlush,
    /// The output is shut down; the other side's end is awaited.
    ShutDown,
    /// Everything is cancelled; it goes when the last operation has completed.
    Leaving,
}

/// A descriptor that is ours, or that we may use only.
pub(super) enum Descriptor {
    /// Closed when dropped.
    Owned(OwnedFd),
    /// Left open: our own stdin and stdout.
    Lent(BorrowedFd<'static>),
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Owned(descriptor) => descriptor.as_fd(),
            Self::Lent(descriptor) => *descriptor,
        }
    }
}

/// Where bytes come from and where they go.
pub(super) struct Ends {
    kind: Kind,
    input: Option<Descriptor>,
    /// None for a socket, which has one descriptor for both.
    output: Option<Descriptor>,
    /// Writing may make the writer wait ([`inherited::may_block`]).
    pub writes_aside: bool,
}

impl Ends {
    fn new(kind: Kind, input: Option<Descriptor>, output: Option<Descriptor>) -> Self {
        Self { kind, input, output, writes_aside: false }
    }

    pub(super) fn is_socket(&self) -> bool {
        self.kind == Kind::Socket
    }

    pub(super) fn is_stdio(&self) -> bool {
        self.kind == Kind::Stdio
    }

    pub(super) fn is_worker(&self) -> bool {
        self.kind == Kind::Worker
    }

    /// Whether it is a worker that is being started.
    pub(super) fn are_to_come(&self) -> bool {
        self.is_worker() && self.input.is_none()
    }

    /// The pipes of a worker that was started.
    pub(super) fn have_come(&mut self, stdin: OwnedFd, stdout: OwnedFd) {
        (self.input, self.output) = (Some(Descriptor::Owned(stdout)), Some(Descriptor::Owned(stdin)));
    }

    /// The descriptor to read from.
    pub(super) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
    }

    /// The descriptor to write to.
    pub(super) fn output(&self) -> Option<BorrowedFd<'_>> {
        let output = if self.is_socket() { &self.input } else { &self.output };
        output.as_ref().map(AsFd::as_fd)
    }

    /// The number of what is written to.
    pub(super) fn raw_output(&self) -> Option<RawFd> {
        self.output().map(|output| output.as_raw_fd())
    }

    /// Nothing more goes to a worker.
    pub(super) fn close_output(&mut self) {
        self.output = None;
    }
}

impl Connection {
    /// A worker that is being started: its pipes are yet to come.
    pub(super) fn starting(worker: WorkerKey, name: WorkerName) -> Self {
        Self { name: Some(Box::new(name)), ..Self::blank(Peer::Worker(worker), Ends::new(Kind::Worker, None, None)) }
    }

    /// A client whose connection was accepted.
    pub(super) fn socket(peer: Peer, socket: OwnedFd) -> Self {
        Self::blank(peer, Ends::new(Kind::Socket, Some(Descriptor::Owned(socket)), None))
    }

    /// The client of our own stdin and stdout.
    pub(super) fn stdio(peer: Peer, stdin: BorrowedFd<'static>, stdout: BorrowedFd<'static>) -> Self {
        let ends = Ends::new(Kind::Stdio, Some(Descriptor::Lent(stdin)), Some(Descriptor::Lent(stdout)));
        Self::blank(peer, Ends { writes_aside: inherited::may_block(stdout), ..ends })
    }

    /// The same, of which a test says whether writing may wait.
    #[cfg(test)]
    pub(super) fn writing_aside(mut self, aside: bool) -> Self {
        self.ends.writes_aside = aside;
        self
    }

    /// The connection of a client that speaks WebSocket.
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
            liveness: None,
        }
    }

    /// Bytes of memory that it takes up.
    pub(super) fn weight(&self) -> usize {
        self.inbox.weight() + self.outbox.weight()
    }

    /// Whether it is to be read now.
    pub(super) fn is_to_be_read(&self) -> bool {
        let is_busy = self.in_flight.has(Flight::Read) || self.in_flight.has(Flight::Presentation);
        let is_closed = self.closing == Closing::Leaving || self.has_said_its_last();
        self.incoming.is_wanted() && !is_busy && !self.queued.resumed && !is_closed
    }

    /// Whether no read shows what becomes of it.
    pub(super) fn is_not_read(&self) -> bool {
        self.incoming.is_paused || self.incoming.has_ended()
    }

    /// Whether the core has not seen all that has come, and does not see it now.
    pub(super) fn is_waiting_to_be_read(&self) -> bool {
        self.incoming.is_paused || self.queued.resumed
    }

    /// Whether it is not read on before the core has heard how it has ended.
    pub(super) fn has_said_its_last(&self) -> bool {
        self.web.as_ref().is_some_and(|web| web.has_ended())
    }

    /// Nothing more of what came in matters.
    pub(super) fn release_inbox(&mut self, buffers: &mut Buffers) {
        if !self.in_flight.has(Flight::Read) {
            self.inbox.release(buffers);
        }
    }

    /// Turns the first `received` of `bytes`, which has room for one more, into lines where they lie. Says how many bytes
    /// these are: the same, but for frames of a WebSocket.
    pub(super) fn decode(&mut self, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        match (&mut self.web, self.outbox.framing()) {
            (Some(web), Some(framing)) => web.decode(framing, now, bytes, received),
            _ => received,
        }
    }

    /// The kernel has read so many bytes behind what is in the inbox. Frames of a WebSocket become lines there.
    pub(super) fn filled(&mut self, now: Moment, received: usize) {
        let bytes = match (&mut self.web, self.outbox.framing()) {
            (Some(web), Some(framing)) => web.decode(framing, now, self.inbox.received(received), received),
            _ => received,
        };
        self.inbox.filled(bytes);
    }

    /// When it has to be looked at although nothing happens.
    pub(super) fn due(&self) -> Option<Moment> {
        let left_out = self.stderr.as_ref().and_then(|stderr| stderr.left_out_due());
        let ping = self.web.as_ref().and_then(|web| web.due());
        [self.room.due(), self.liveness.map(|liveness| liveness.look_at), ping, left_out].into_iter().flatten().min()
    }
}
