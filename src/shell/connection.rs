//! One peer's descriptors, what came in and was not consumed yet, and what waits to go out.
//!
//! The flags `reading`, `writing`, `watching` and `reading_stderr` are true exactly while the kernel holds an operation
//! of that kind. A descriptor is closed only when none is: a closed socket with a receive in flight sends no FIN, and
//! the kernel goes on writing into our buffer.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::inbox::Inbox;
use super::inherited;
use super::log::LONGEST_LINE;
use super::outbox::Outbox;
use crate::bus::port::Peer;
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
    /// A worker's pool and number, for its stderr.
    pub name: (usize, u32),
    /// Where its bytes come from.
    pub input: Option<Descriptor>,
    /// Where its bytes go; none for a socket, which has one descriptor for both.
    pub output: Option<Descriptor>,
    /// A worker's stderr, with the unfinished line.
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

/// A worker's stderr.
pub(super) struct Stderr {
    /// The pipe.
    pub pipe: OwnedFd,
    /// Where the next read goes.
    pub block: Box<[u8; 4096]>,
    /// A line without its end yet.
    pub line: Vec<u8>,
}

impl Stderr {
    /// Takes the first `bytes` of the block; `line` is called for each complete line, and for pieces of one that is
    /// too long.
    pub(super) fn take(&mut self, bytes: usize, mut line: impl FnMut(&[u8])) {
        for piece in self.block[..bytes].split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if self.line.len() < LONGEST_LINE {
                continue;
            }
            line(&self.line);
            self.line.clear();
        }
    }

    /// Gives the last line, if it has no newline.
    pub(super) fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.line.is_empty() {
            line(&self.line);
            self.line.clear();
        }
    }
}

impl Connection {
    /// Bytes of memory that it takes up.
    pub(super) fn weight(&self) -> usize {
        self.inbox.weight() + self.outbox.weight()
    }

    /// A connection with nothing in flight.
    pub(super) fn new(
        peer: Peer,
        kind: Kind,
        input: Descriptor,
        output: Option<Descriptor>,
        stderr: Option<OwnedFd>,
    ) -> Self {
        Self {
            peer,
            kind,
            name: (0, 0),
            input: Some(input),
            output,
            stderr: stderr.map(|pipe| Stderr { pipe, block: Box::new([0; 4096]), line: Vec::new() }),
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
        }
    }

    /// The connection of the worker with this number in this pool.
    pub(super) fn with_name(self, pool: usize, number: u32) -> Self {
        Self { name: (pool, number), ..self }
    }

    /// The client of our own stdin and stdout.
    pub(super) fn stdio(peer: Peer, stdin: BorrowedFd<'static>, stdout: BorrowedFd<'static>) -> Self {
        let aside = inherited::may_block(stdout);
        Self { aside, ..Self::new(peer, Kind::Stdio, Descriptor::Lent(stdin), Some(Descriptor::Lent(stdout)), None) }
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
