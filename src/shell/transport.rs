//! What moves the bytes of a connection, whatever it speaks: its descriptors, the operations that the kernel holds on
//! them, what is known of the peer's end, and how far it is closed.
//!
//! In order of life: it is [`State::Open`] from when it was accepted or spawned; it drains if it is closed in order, so
//! that what is queued still arrives; it lingers until the peer closes its side, too; and it closes: nothing is submitted
//! any more, and what is in flight completes. A descriptor is closed only when nothing is in flight: a closed socket
//! with a receive in flight sends no FIN, and the kernel keeps writing into our buffer.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use super::inbox::Inbox;
use super::inherited;
use super::outbox::Outbox;
use super::timers::earlier;
use crate::bus::port::Moment;
use crate::io::buffers::Buffers;

/// An operation that uses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingOp {
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
pub(super) struct PendingOps(u8);

impl PendingOps {
    /// Adds an element. True if it was not in the set.
    pub(super) fn add(&mut self, element: PendingOp) -> bool {
        let is_new = !self.has(element);
        self.0 |= 1 << element as u8;
        is_new
    }

    /// Removes an element. True if it was in the set.
    pub(super) fn remove(&mut self, element: PendingOp) -> bool {
        let was_there = self.has(element);
        self.0 &= !(1 << element as u8);
        was_there
    }

    /// An operation has completed.
    pub(super) fn end(&mut self, operation: PendingOp) {
        let was_there = self.remove(operation);
        debug_assert!(was_there, "{operation:?} is in flight");
    }

    /// Whether an element is in the set.
    pub(super) fn has(self, element: PendingOp) -> bool {
        self.0 & 1 << element as u8 != 0
    }

    /// Whether the set is empty.
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// What is known of the peer's end of the connection. It only advances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HalfClose {
    /// It may send more.
    #[default]
    Open,
    /// The kernel has reported that the peer sends no more. What it sent before is not read yet.
    Reported,
    /// The end was read.
    Read,
}

/// How far a connection is closed, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// It is not being closed.
    #[default]
    Open,
    /// It is being closed in order, and still waits for something.
    Draining(Drain),
    /// Our end was sent; the peer's is awaited, and what it still sends is discarded.
    Lingering,
    /// Everything is cancelled; it is removed when the last operation has completed.
    Closing,
}

/// What a connection waits for before it sends its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Drain {
    /// What is queued is being sent.
    Output,
    /// Everything was sent. The receive that is in flight was cancelled, and shows whether the peer sends more.
    Receive,
}

/// The first delay before a socket without room is tried again; doubled until it has room.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_millis(640);

/// The state of an output that may be full.
#[derive(Default)]
pub(super) struct WriteRetry {
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

impl WriteRetry {
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
        retry.backoff = (retry.backoff * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
        retry.at.get_or_insert(now.after(retry.backoff));
    }

    /// Whether a retry is scheduled.
    pub(super) fn waits(&self) -> bool {
        self.due().is_some()
    }

    /// When it is due.
    pub(super) fn due(&self) -> Option<Moment> {
        self.retry.as_ref()?.at
    }

    /// Whether it is due. Returns true only once.
    pub(super) fn take_due(&mut self, now: Moment) -> bool {
        self.retry.as_mut().is_some_and(|retry| retry.at.take_if(|at| *at <= now).is_some())
    }
}

/// The descriptors to read from and write to.
pub(super) enum Ends {
    /// A connection accepted from a listening socket.
    Socket(OwnedFd),
    /// The client of `--stdio`. Its descriptors belong to the parent process: they are never closed, and never set to
    /// O_NONBLOCK.
    Stdio {
        stdin: BorrowedFd<'static>,
        stdout: BorrowedFd<'static>,
        /// Writing may block the thread (`inherited.rs`).
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

/// See the module documentation.
pub(super) struct Transport {
    pub ends: Ends,
    /// The operations that the kernel holds, and others that the connection has to stay for.
    pub in_flight: PendingOps,
    /// What is known of the peer's end.
    pub half: HalfClose,
    /// How far it is closed.
    pub state: State,
    /// It is among the outputs that have something to write.
    pub is_dirty: bool,
    /// The state of its output when that has no room.
    pub room: WriteRetry,
    /// When it is looked after next, by what it speaks. Its timer may expire earlier, and is then set again.
    pub deadline: Option<Moment>,
    /// Received lines that are not consumed.
    pub inbox: Inbox,
    /// Queued bytes.
    pub outbox: Outbox,
}

impl Transport {
    pub(super) fn new(ends: Ends) -> Self {
        Self {
            inbox: Inbox::new(ends.is_worker()),
            outbox: Outbox::new(ends.is_socket()),
            ends,
            in_flight: PendingOps::default(),
            half: HalfClose::default(),
            state: State::default(),
            is_dirty: false,
            room: WriteRetry::default(),
            deadline: None,
        }
    }

    /// That of an accepted connection.
    pub(super) fn of_socket(socket: OwnedFd) -> Self {
        Self::new(Ends::Socket(socket))
    }

    /// Its socket: it is an accepted connection.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match &self.ends {
            Ends::Socket(socket) => socket.as_fd(),
            Ends::Stdio { .. } | Ends::Worker { .. } => unreachable!("only sockets are accepted"),
        }
    }

    /// That of a worker that is being spawned: its pipes do not exist yet.
    pub(super) fn of_worker() -> Self {
        Self::new(Ends::Worker { stdin: None, stdout: None })
    }

    /// That of the client on the process's own stdin and stdout.
    pub(super) fn stdio(stdin: BorrowedFd<'static>, stdout: BorrowedFd<'static>) -> Self {
        Self::new(Ends::Stdio { stdin, stdout, writes_aside: inherited::may_block(stdout) })
    }

    /// The same, where a test decides whether writing may block.
    #[cfg(test)]
    pub(super) fn writing_aside(mut self, aside: bool) -> Self {
        if let Ends::Stdio { writes_aside, .. } = &mut self.ends {
            *writes_aside = aside;
        }
        self
    }

    /// When it is due: for another try to write, or to be looked after.
    pub(super) fn due(&self) -> Option<Moment> {
        earlier(self.room.due(), self.deadline)
    }

    /// Memory used, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.inbox.weight() + self.outbox.weight()
    }

    /// Frees what it has received and queued. The kernel holds no operation of it.
    pub(super) fn release(&mut self, buffers: &mut Buffers) {
        self.outbox.clear(buffers);
        self.inbox.release(buffers);
    }

    /// The kernel has reported that the peer sends no more, before its end was read.
    pub(super) fn half_closes(&mut self) {
        self.half = self.half.max(HalfClose::Reported);
    }

    /// Whether the peer is known to have half-closed.
    pub(super) fn is_half_closed(&self) -> bool {
        self.half != HalfClose::Open
    }

    /// Whether the end of its input was read.
    pub(super) fn has_ended(&self) -> bool {
        self.half == HalfClose::Read
    }

    /// It is closed once everything queued was written.
    pub(super) fn drain(&mut self) {
        self.state = self.state.max(State::Draining(Drain::Output));
    }

    /// Whether it is closed in order, and has not sent its end.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.state, State::Draining(_))
    }

    /// Whether it is removed as soon as nothing is in flight.
    pub(super) fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// Whether it may be removed: it is closing, and nothing is in flight.
    pub(super) fn is_over(&self) -> bool {
        self.is_closing() && self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport() -> Transport {
        Transport::of_worker()
    }

    #[test]
    fn a_half_close_that_is_reported_is_no_end_until_that_is_read() {
        let mut transport = transport();
        assert!(!transport.is_half_closed());
        transport.half_closes();
        assert_eq!((transport.is_half_closed(), transport.has_ended()), (true, false));
        transport.half = HalfClose::Read;
        transport.half_closes();
        assert!(transport.has_ended(), "a late report takes nothing back");
    }

    #[test]
    fn closing_goes_one_way_and_ends_when_nothing_is_in_flight() {
        let order = [State::Open, State::Draining(Drain::Output), State::Draining(Drain::Receive), State::Lingering];
        assert!(order.is_sorted() && order.iter().all(|state| *state < State::Closing));
        let mut transport = transport();
        transport.state = State::Closing;
        transport.drain();
        assert!(transport.is_closing(), "it is past that");
        transport.in_flight.add(PendingOp::Write);
        assert!(!transport.is_over());
        transport.in_flight.end(PendingOp::Write);
        assert!(transport.is_over());
    }

    #[test]
    fn a_write_without_room_is_retried_ever_later_until_something_was_written() {
        let (mut room, now) = (WriteRetry { asked: 10, ..WriteRetry::default() }, Moment(0));
        assert!(room.took(10) && !room.waits());
        let mut delays = Vec::new();
        for _ in 0..8 {
            room.none(now);
            delays.push(room.due().expect("it waits").since(now).as_millis());
            assert!(room.take_due(now.after(LONGEST_RETRY)) && !room.waits());
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 640]);
        assert!(!room.took(9));
        room.none(now);
        assert_eq!(room.due(), Some(now.after(FIRST_RETRY)));
    }
}
