//! One peer's descriptors, what came in and was not consumed yet, and what waits to go out.
//!
//! The flags `reading`, `writing`, `watching` and `reading_stderr` are true exactly while the kernel holds an operation
//! of that kind. A descriptor is closed only when none is: a closed socket with a receive in flight sends no FIN, and
//! the kernel goes on writing into our buffer.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use super::framing::Framing;
use super::inbox::Inbox;
use super::inherited;
use super::outbox::Outbox;
use super::stderr::Stderr;
use super::websocket::Web;
use crate::bus::port::{Peer, WorkerKey, WorkerName};
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

/// See the top of the file.
pub(super) struct Connection {
    /// Who it is.
    pub peer: Peer,
    /// What it is.
    pub kind: Kind,
    /// Which worker it is, if it is one.
    pub name: Option<WorkerName>,
    /// Where its bytes come from.
    pub input: Option<Descriptor>,
    /// Where its bytes go; none for a socket, which has one descriptor for both.
    pub output: Option<Descriptor>,
    /// A worker's stderr.
    pub stderr: Option<Stderr>,
    /// What came in.
    pub inbox: Inbox,
    /// What goes out.
    pub outbox: Outbox,
    /// A read or receive is in flight.
    pub reading: bool,
    /// A write or send is in flight.
    pub writing: bool,
    /// A poll for the other side's leaving is in flight.
    pub watching: bool,
    /// A read of stderr is in flight.
    pub reading_stderr: bool,
    /// The core is looking at its bytes: it stays, and is not read, until that is over.
    pub presenting: bool,
    /// The core does not want its bytes for now.
    pub paused: bool,
    /// It waits in the list of connections whose kept bytes are presented next.
    pub resuming: bool,
    /// Whether its input has ended.
    pub end: End,
    /// What still comes in is thrown away.
    pub discard: bool,
    /// It waits in the list of outputs to write.
    pub dirty: bool,
    /// How far it is being closed.
    pub closing: Closing,
    /// Whether the last receive left something in the socket.
    pub more_to_read: bool,
    /// Writing to it may make the writer wait ([`inherited::may_block`]).
    ///
    /// [`inherited::may_block`]: super::inherited::may_block
    pub aside: bool,
    /// What is in flight for `writing` is a wait for room.
    pub awaits_room: bool,
    /// How many bytes the write in flight has, or the last one had.
    pub asked: usize,
    /// A socket that had no room is tried again, in any case, this long after it was tried last.
    pub room_backoff: Duration,
    /// It waits for that among [`Reactor::full`].
    ///
    /// [`Reactor::full`]: super::reactor::Reactor::full
    pub is_full: bool,
    /// Its other side sends no more, as far as the kernel has told.
    pub half_closed: bool,
    /// It speaks WebSocket.
    pub web: Option<Box<Web>>,
    /// How long its network may give no sign of it, if that is looked at.
    pub silence_allowed: Option<Duration>,
}

/// How far the end of an input has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// There may be more.
    Open,
    /// There is no more, and the core does not know it yet: it has not seen all.
    Seen,
    /// The core knows it.
    Told,
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

impl Descriptor {
    /// Its number.
    pub(super) fn raw(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Connection {
    /// Bytes of memory that it takes up.
    pub(super) fn weight(&self) -> usize {
        self.inbox.weight() + self.outbox.weight()
    }

    /// Whether its other side is known to send no more.
    pub(super) fn is_half_closed(&self) -> bool {
        self.half_closed || self.end != End::Open
    }

    /// A worker that is being started: its pipes are yet to come.
    pub(super) fn starting(worker: WorkerKey, name: WorkerName) -> Self {
        Self { name: Some(name), ..Self::blank(Peer::Worker(worker), Kind::Worker) }
    }

    /// Whether it is a worker that is being started.
    pub(super) fn is_starting(&self) -> bool {
        self.kind == Kind::Worker && self.input.is_none()
    }

    /// A connection with nothing in flight.
    pub(super) fn new(peer: Peer, kind: Kind, input: Descriptor, output: Option<Descriptor>) -> Self {
        Self { input: Some(input), output, ..Self::blank(peer, kind) }
    }

    fn blank(peer: Peer, kind: Kind) -> Self {
        Self {
            peer,
            kind,
            name: None,
            input: None,
            output: None,
            stderr: None,
            inbox: Inbox::new(kind == Kind::Worker),
            outbox: Outbox::new(kind == Kind::Socket),
            reading: false,
            writing: false,
            watching: false,
            reading_stderr: false,
            presenting: false,
            paused: false,
            resuming: false,
            end: End::Open,
            discard: false,
            dirty: false,
            closing: Closing::Open,
            more_to_read: false,
            aside: false,
            awaits_room: false,
            asked: 0,
            room_backoff: Duration::ZERO,
            half_closed: false,
            is_full: false,
            web: None,
            silence_allowed: None,
        }
    }

    /// The connection of a client that speaks WebSocket.
    pub(super) fn speaking(mut self, web: Web, framing: Framing) -> Self {
        self.web = Some(Box::new(web));
        self.outbox.frame_lines(framing);
        self
    }

    /// The client of our own stdin and stdout.
    pub(super) fn stdio(peer: Peer, stdin: BorrowedFd<'static>, stdout: BorrowedFd<'static>) -> Self {
        let aside = inherited::may_block(stdout);
        Self { aside, ..Self::new(peer, Kind::Stdio, Descriptor::Lent(stdin), Some(Descriptor::Lent(stdout))) }
    }

    /// Whether it is not read on before the core has heard how it has ended.
    pub(super) fn has_said_its_last(&self) -> bool {
        self.web.as_ref().is_some_and(|web| web.has_ended())
    }

    /// Nothing more of what came in matters.
    pub(super) fn release_inbox(&mut self, buffers: &mut Buffers) {
        if !self.reading {
            self.inbox.release(buffers);
        }
    }

    /// The descriptor to write to.
    pub(super) fn out(&self) -> Option<&Descriptor> {
        match self.kind {
            Kind::Socket => self.input.as_ref(),
            Kind::Stdio | Kind::Worker => self.output.as_ref(),
        }
    }

    /// Whether the kernel holds no operation of it, and the core none of its bytes.
    pub(super) fn is_idle(&self) -> bool {
        !(self.reading || self.writing || self.watching || self.reading_stderr || self.presenting)
    }
}
