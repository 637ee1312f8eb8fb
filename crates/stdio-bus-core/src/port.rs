//! The whole contract between the core and whoever runs it: what comes in and what goes out.
//!
//! The caller gives bytes to [`Bus::receive`](super::Bus::receive) and everything else to
//! [`Bus::handle`](super::Bus::handle), and carries out the [`Effects`] that each call returns. Time is an argument.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

pub use super::origin::{Names, Origin, Place};
pub use super::peer::{ClientKey, Moment, Peer, PeerBits, Source, Text, WorkerKey};
use super::report::Report;
pub use super::report::{Reason, WorkerName};
use ndjson_scan::Span;

/// What happened outside.
#[derive(Clone, Debug)]
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
    /// A peer can be written to no more: reset, broken pipe. For a worker, [`Input::Unread`] comes just before.
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
    /// More than three quarters of [`max_memory`](super::settings::Limits::max_memory) are in use, or have just ceased to be.
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
    /// A connection was refused before it became a client, or a request of one that is none.
    Stranger {
        /// Where it came from.
        place: Place,
        /// [`Reason::ProxyHeader`] or [`Reason::HandshakeRefused`].
        reason: Reason,
        /// What is told of it.
        text: String,
    },
    /// A client that is not read for now will send nothing more than it has sent: it may have gone, or wait for answers.
    SendsNoMore(ClientKey),
    /// A client has said that it leaves: it reads nothing of what is sent to it now, and sends nothing more.
    Left(ClientKey),
    /// A client has sent a binary message, and of those that come after it nothing more is told. It is none to the core.
    BinaryIgnored(ClientKey),
    /// What a client sends is no sequence of messages: nothing that comes after it can be read.
    Faulty {
        /// The client.
        client: ClientKey,
        /// What is wrong, for a person to read.
        why: String,
        /// It is a line that is too long.
        is_too_long: bool,
    },
    /// A client's descriptor is closed, and no operation of it is left in the kernel.
    Closed(ClientKey),
    /// The operator closes a client's connection.
    CloseClient(ClientKey),
    /// The door that a client has come through ends it: it is a session that has ended.
    EndClient {
        /// The client.
        client: ClientKey,
        /// Why.
        why: Reason,
    },
    /// A session's client was not there to take events, and the oldest of those that were kept for it are lost.
    EventsLost {
        /// The client.
        client: ClientKey,
        /// How many.
        lost: usize,
    },
    /// The token that a client came in with lets nobody in any more.
    TokenRemoved(ClientKey),
    /// The operator has a worker replaced: in turn, without a lost request, or at once.
    RestartWorker {
        /// The worker.
        worker: WorkerKey,
        /// Whether it is told to stop at once.
        at_once: bool,
    },
    /// The operator has all workers of the pool with this index replaced in turn.
    RestartPool(usize),
    /// The processes of a worker hold so many MiB, more than they may.
    Grown {
        /// The worker.
        worker: WorkerKey,
        /// How many.
        mib: u64,
    },
    /// The daemon did not run for a while; to be told before anything else that happens at this moment.
    Gap {
        /// So long it was stopped, or got no processor; that is part of the time that has passed.
        held_up: Duration,
        /// So long the machine was suspended; the caller's clock has stood still.
        suspended: Duration,
    },
    /// The operator has the daemon drain. Another time it is nothing new.
    Drain,
    /// SIGTERM or SIGINT. The second one gives up what is pending.
    Shutdown,
    /// Time has passed.
    Tick,
}

/// How a worker's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// The kernel killed it for its memory (signal 9).
    OutOfMemory,
}

impl core::fmt::Display for Exit {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exit code {code}"),
            Self::Signal(signal) => write!(formatter, "signal {signal}"),
            Self::OutOfMemory => formatter.write_str(
                "signal 9 of the kernel's memory killer (oom_kill of the control group has risen; allow more memory, or \
                 have fewer workers)",
            ),
        }
    }
}

/// What has to be done outside.
#[derive(Debug, PartialEq, Eq)]
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
    Pause(Peer),
    /// Present what was kept, then read on.
    Resume(Peer),
    /// Start a worker's process; answer with [`Input::Spawned`] or [`Input::SpawnFailed`].
    Spawn {
        /// The worker.
        worker: WorkerKey,
        /// What people call it, and its pool.
        name: WorkerName,
        /// Which command of its pool: the newest one ([`Pool::generation`](super::settings::Pool::generation)), or, if that
        /// has not shown that it can live, the last one that has.
        generation: u32,
    },
    /// Close a worker's stdin once everything queued is written.
    CloseStdin(WorkerKey),
    /// Signal a worker's process group.
    Signal {
        /// The worker.
        worker: WorkerKey,
        /// Which signal.
        signal: Signal,
    },
    /// Find out how much a worker has not read of what was written to its stdin; answer with [`Input::Unread`].
    Probe(WorkerKey),
    /// Forget a worker: cancel what is in flight and close its descriptors. Its key is dead.
    Release(WorkerKey),
    /// Close a client connection; answer with [`Input::Closed`], but for [`Close::Refuse`].
    Close {
        /// The client.
        client: ClientKey,
        /// Whether queued bytes may go first.
        how: Close,
        /// Why.
        why: Reason,
    },
    /// Take no more connections for now: the table is full.
    PauseAccept,
    /// Take connections again.
    ResumeAccept,
    /// Close the sockets of the listener with this index until [`Effect::OpenListener`]: whoever connects is refused.
    CloseListener(usize),
    /// Listen there again.
    OpenListener(usize),
    /// Close the listening sockets for good (spec 10.2.1).
    StopAccept,
    /// The era of a pool's command has become known ([`Bus::pool_era`](super::Bus::pool_era)).
    Discovered {
        /// The pool.
        pool: usize,
    },
    /// Something a person may want to know.
    Report(Box<Report>),
    /// The drain is over: exit.
    Done,
}

/// How a client connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// In an orderly way: whatever has paused it is over, and what it sends is presented and refused until one of the
    /// others follows.
    Refuse,
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

/// What is to be done, in this order. It borrows the bus, so that nobody calls the core before the last effect is
/// taken.
#[must_use = "lines are lost with the effects that nobody carries out"]
pub struct Effects<'a>(pub(super) &'a mut VecDeque<Effect>);

impl Iterator for Effects<'_> {
    type Item = Effect;

    fn next(&mut self) -> Option<Effect> {
        self.0.pop_front()
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
