//! One connection of an operator, a monitor or a balancer: the request that comes in, and the answer that goes out.
//!
//! `receiving` and `sending` are true exactly while the kernel holds an operation of that kind. While one does, the
//! bytes that it works on stay where they are; the connection goes when none does.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::access::Origin;
use super::request::{MAX_BODY, MAX_HEAD};
use super::response::{Framing, Pieces};
use crate::bus::port::{Moment, Source};

/// How long a request may take to come, from the begin of the connection or its first byte.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a connection may wait for its next request.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// How long an answer may stand still.
pub(super) const SEND_TIME: Duration = Duration::from_secs(10);
/// How long the other side may take to see the last answer, and to close.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for a request, or for the rest of one.
    Reading,
    /// Its answer is on the way.
    Answering,
    /// Everything is said; what still comes is thrown away until the other side closes.
    Lingering,
    /// It goes when the kernel holds nothing of it.
    Leaving,
}

/// See the top of the file.
pub(super) struct Connection {
    pub socket: OwnedFd,
    pub origin: Origin,
    pub source: Source,
    pub phase: Phase,
    pub input: Box<[u8; MAX_HEAD + MAX_BODY]>,
    /// Bytes of `input` that have come.
    pub filled: usize,
    /// What is being sent, from `sent` on.
    pub output: Vec<u8>,
    pub sent: usize,
    /// The rest of the answer, if it is made piece by piece, and how its end is told.
    pub pieces: Option<(Box<dyn Pieces>, Framing)>,
    /// No request is taken after this answer.
    pub is_last: bool,
    pub receiving: bool,
    pub sending: bool,
    /// That is a wait for room.
    pub awaits_room: bool,
    /// It waits for its next piece to be made.
    pub is_busy: bool,
    /// When its phase has lasted too long.
    pub deadline: Moment,
    /// When it came, its answer was begun, or its last answer was sent.
    pub since: Moment,
}

impl Connection {
    pub(super) fn new(now: Moment, socket: OwnedFd, origin: Origin, source: Source) -> Self {
        Self {
            socket,
            origin,
            source,
            phase: Phase::Reading,
            input: Box::new([0; MAX_HEAD + MAX_BODY]),
            filled: 0,
            output: Vec::new(),
            sent: 0,
            pieces: None,
            is_last: false,
            receiving: false,
            sending: false,
            awaits_room: false,
            is_busy: false,
            deadline: now.after(REQUEST_TIME),
            since: now,
        }
    }

    /// Whether the kernel holds nothing of it.
    pub(super) fn is_idle(&self) -> bool {
        !(self.receiving || self.sending)
    }

    /// Whether nobody waits for an answer on it.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Reading || self.phase == Phase::Lingering
    }

    /// The first `bytes` that came are dealt with.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.input.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}
