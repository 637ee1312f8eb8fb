//! The whole contract between the core and its caller: inputs and effects.
//!
//! The caller passes bytes to [`Bus::receive`](super::Bus::receive) and everything else to
//! [`Bus::handle`](super::Bus::handle), and carries out the [`Effects`] that each call returns. Time is an argument.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

pub use super::index::{ListenerId, PoolId};
pub use super::origin::{EVERYBODY, NameAuthority, Names, Origin, Owner, Place, is_in_group};
pub use super::peer::{ClientKey, Moment, Peer, PeerBits, ShortText, Source, WorkerKey};
use super::report::Report;
pub use super::report::{Reason, WorkerName};
use ndjson_scan::{Line, Span};

/// An event outside the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker's process runs, as [`Effect::Spawn`] asked.
    Spawned {
        worker: WorkerKey,
        /// Its process id.
        pid: u32,
    },
    /// A worker's process could not be started.
    SpawnFailed {
        worker: WorkerKey,
        /// Why, for people. If a credential of the client is missing, the client receives this text too.
        why: String,
        /// What is at fault.
        fault: SpawnFailure,
    },
    /// A worker's process was reaped (spec 7.1.1).
    Exited {
        worker: WorkerKey,
        /// How it ended.
        exit: Exit,
    },
    /// A peer will send nothing more, and everything it sent was passed to `receive`.
    InputEnded {
        peer: Peer,
        /// Bytes of a line that never got its newline.
        partial: usize,
    },
    /// Writes to a peer fail: reset, broken pipe. For a worker, [`Input::UnreadMeasured`] comes just before.
    OutputBroken {
        peer: Peer,
        /// Why, for people.
        why: String,
    },
    /// Bytes queued for a peer have left the daemon.
    Sent {
        peer: Peer,
        /// Number of bytes.
        bytes: usize,
    },
    /// The answer to [`Effect::Probe`].
    UnreadMeasured {
        worker: WorkerKey,
        /// Bytes that were written to its stdin and that it has not read yet.
        bytes: usize,
    },
    /// More than three quarters of [`max_memory`](super::settings::Limits::max_memory) are in use, or that is over.
    MemoryMeasured {
        /// Bytes of all blocks in use.
        used: usize,
        /// How many bytes each peer holds; empty once fewer than three quarters are in use.
        held: Vec<(Peer, usize)>,
        /// Peers with input waiting for which there is no memory.
        waiting: Vec<Peer>,
    },
    /// The system has refused memory.
    MemoryRefused {
        /// The client whose bytes could not be kept or queued, and are lost; none if nothing is lost.
        client: Option<ClientKey>,
        /// How many bytes each peer holds; with a client, at most that one.
        held: Vec<(Peer, usize)>,
    },
    /// A connection was rejected before it became a client, or a request that belongs to none.
    ConnectionRejected {
        /// Where it came from.
        place: Place,
        /// [`Reason::ProxyHeader`], [`Reason::HandshakeRefused`], or a closer one.
        reason: Reason,
        /// The text of the report.
        text: String,
    },
    /// A client that is paused will send nothing more than it has sent: it may have left, or wait for answers.
    InputStopped(ClientKey),
    /// A client has announced that it leaves: it reads and sends nothing more.
    ClientLeft(ClientKey),
    /// A client has sent a binary message, which is not passed to the core; later ones are not reported.
    BinaryIgnored(ClientKey),
    /// A client's input violates the framing: nothing after it can be read.
    FramingViolated {
        client: ClientKey,
        /// What is wrong, for people.
        why: String,
        /// The line is too long.
        is_too_long: bool,
    },
    /// A client's descriptor is closed, and no operation of it is pending in the kernel.
    ClientClosed(ClientKey),
    /// The operator closes a client's connection.
    CloseClient(ClientKey),
    /// The listener that a client came through ends it: its session has ended.
    EndClient {
        client: ClientKey,
        /// [`Reason::SessionIdle`] or [`Reason::SessionEvicted`].
        why: Reason,
    },
    /// The client of a session has no connection any more, or has one again.
    Detached { client: ClientKey, is_detached: bool },
    /// A session's client was not connected to take events, and the oldest of those kept for it are lost.
    EventsLost {
        client: ClientKey,
        /// Number of events.
        lost: usize,
    },
    /// The token that a client came in with was removed.
    TokenRemoved(ClientKey),
    /// The operator has a worker replaced: in turn, without a lost request, or at once.
    RestartWorker {
        worker: WorkerKey,
        /// Whether it is asked to stop at once.
        at_once: bool,
    },
    /// The operator has all workers of this pool replaced in turn, and those started that were taken out.
    RestartPool(PoolId),
    /// The operator takes a worker out: it finishes its work, and is not replaced.
    TakeOutWorker(WorkerKey),
    /// The operator pauses a pool: its new requests wait.
    PausePool(PoolId),
    /// A client of MCP 2026-07-28 waits until it is known whether a pool serves it: if no worker is being asked, one is
    /// started for that.
    WakePool(PoolId),
    /// The operator resumes a pool, and has those of its workers started that were taken out.
    ResumePool(PoolId),
    /// The operator pauses a listener, which takes no new clients, or resumes it.
    PauseListener { listener: ListenerId, is_paused: bool },
    /// The processes of a worker hold this many MiB, more than allowed.
    WorkerMemoryGrew {
        worker: WorkerKey,
        /// Number of MiB.
        mib: u64,
    },
    /// The processes of all workers together hold memory.
    WorkersMemoryMeasured {
        /// Number of MiB.
        mib: u64,
    },
    /// The daemon did not run for a while; to be passed before any other input of the same moment.
    ClockJumped {
        /// How long it was stopped, or got no CPU; this is part of the time that has passed.
        held_up: Duration,
        /// How long the machine was suspended; the caller's clock has stood still.
        suspended: Duration,
    },
    /// While accept is paused ([`Effect::PauseAccept`]) a connection waits for a slot.
    ConnectionQueued,
    /// The operator starts a drain. A repetition has no effect.
    Drain,
    /// SIGTERM or SIGINT. The second one drops pending requests.
    Shutdown,
    /// Time has passed.
    Tick,
}

/// What is at fault if a worker could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnFailure {
    /// The command, as far as is known.
    Command,
    /// The machine: descriptors, processes or memory were short (EMFILE, ENFILE, EAGAIN, ENOMEM).
    Shortage,
    /// The client that it was to be started for ([`Pool::personal`](super::settings::Pool::personal)): what is its own is
    /// missing. Workers of others can be started.
    Client,
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

/// What the core wants the shell to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Queue these bytes of the window that `receive` was called with. Must be done before the window is gone.
    Copy {
        /// The receiver.
        to: Peer,
        /// The range of bytes; whole lines with their newline, or the pieces of one in which something is replaced.
        span: Span,
    },
    /// Queue these bytes.
    Insert {
        /// The receiver.
        to: Peer,
        /// The bytes.
        text: ShortText,
    },
    /// Stop presenting this peer's bytes until [`Effect::Resume`]; keep what is not consumed.
    Pause(Peer),
    /// Present the kept bytes, then read on.
    Resume(Peer),
    /// Start a worker's process; answer with [`Input::Spawned`] or [`Input::SpawnFailed`].
    Spawn {
        worker: WorkerKey,
        /// Its name for people, and its pool.
        name: WorkerName,
        /// Which command of its pool: the newest one ([`Pool::generation`](super::settings::Pool::generation)), or, if
        /// that has not settled yet, the last one that has.
        generation: u32,
        /// The client that it is started for and that it will serve alone, if there is one.
        client: Option<ClientKey>,
    },
    /// Close a worker's stdin once everything queued is written.
    CloseStdin(WorkerKey),
    /// Signal a worker's process group.
    Signal {
        worker: WorkerKey,
        signal: Signal,
    },
    /// Find out how much of its stdin a worker has not read; answer with [`Input::UnreadMeasured`].
    Probe(WorkerKey),
    /// Forget a worker: cancel its pending operations and close its descriptors. Its key is dead.
    Release(WorkerKey),
    /// Close a client connection; answer with [`Input::ClientClosed`], except for [`Close::Refuse`].
    Close {
        client: ClientKey,
        /// Whether queued bytes may go first.
        how: Close,
        /// The first reason that was given for the close.
        why: Reason,
    },
    /// Accept no connection until [`Effect::ResumeAccept`]: the table of clients is full.
    PauseAccept,
    ResumeAccept,
    /// Close the sockets of this listener until [`Effect::OpenListener`]: the kernel refuses connections.
    CloseListener(ListenerId),
    /// Listen again.
    OpenListener(ListenerId),
    /// Accept no connection of this listener until [`Effect::ReleaseListener`], where connections are clients: they wait in
    /// the socket.
    HoldListener(ListenerId),
    ReleaseListener(ListenerId),
    /// Close for good those listening sockets whose port other daemons share: new clients are theirs from now on, and
    /// those that wait in the sockets are still accepted.
    LeaveSharedPorts,
    /// Close the listening sockets for good (spec 10.2.1).
    StopAccept,
    /// The era of a pool's command is known ([`View::pool_era`](super::View::pool_era)).
    Discovered {
        pool: PoolId,
    },
    /// A report for people.
    Report(Box<Report>),
    /// Log a line that a worker has written to stdout and that is no message.
    BadLine {
        worker: WorkerKey,
        /// The beginning of the line, without its newline.
        line: Box<[u8]>,
        /// Its whole length in bytes.
        length: usize,
    },
    /// The drain is over: exit.
    Done,
}

/// How a client connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Orderly: any pause is over, and input is presented and refused until one of the others follows.
    Refuse,
    /// Read nothing more, send the queue, then shut down the writing side and discard input until its end.
    Flush,
    /// At once. The queue is lost.
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

/// The effects, in this order. It borrows the bus, so that the core cannot be called before the last effect is taken.
#[must_use = "lines are lost with the effects that nobody carries out"]
pub struct Effects<'a> {
    pub(super) effects: &'a mut VecDeque<Effect>,
    pub(super) lines: &'a [Line],
}

impl<'a> Effects<'a> {
    /// The lines that [`Bus::receive`](super::Bus::receive) has found in its window, so that nobody has to look through a
    /// long one again; none after any other call.
    pub fn lines(&self) -> &'a [Line] {
        self.lines
    }
}

impl Iterator for Effects<'_> {
    type Item = Effect;

    fn next(&mut self) -> Option<Effect> {
        self.effects.pop_front()
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

/// How to continue after [`Bus::receive`](super::Bus::receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Carry out the effects, then present the rest of this window again: there are lines left.
    Again,
    /// Read more, and present the rest in front of it.
    Read,
    /// The peer is paused or being closed: present nothing before [`Effect::Resume`].
    Wait,
}
