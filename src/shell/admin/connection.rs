//! One connection of an operator, a monitor or a balancer: the request that comes in, and the answer that goes out.
//!
//! `receiving` and `sending` are true exactly while the kernel holds an operation of that kind. While one does, the
//! bytes that it works on stay where they are; the connection goes when none does.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::access::Origin;
use super::request::{LIMITS, Request};
use super::response::{Framing, Pieces};
use crate::bus::port::{Moment, Source};
use crate::http1::{Error, Event, LONGEST_HEAD, RequestReader};

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
    reader: RequestReader,
    /// The request whose body is still to come.
    request: Option<Request>,
    pub input: Box<[u8; LONGEST_HEAD]>,
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
            reader: RequestReader::new(now, LIMITS),
            request: None,
            input: Box::new([0; LONGEST_HEAD]),
            filled: 0,
            output: Vec::new(),
            sent: 0,
            pieces: None,
            is_last: false,
            receiving: false,
            sending: false,
            awaits_room: false,
            is_busy: false,
            deadline: now.after(LIMITS.head_time),
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

    /// The next request, once all of it has come, or why there is none.
    pub(super) fn next_request(&mut self, now: Moment) -> Option<Result<Request, Error>> {
        loop {
            let mut done = None;
            let (length, goes_on) = match self.reader.next(now, &self.input[..self.filled]) {
                Event::More(length) => (length, false),
                Event::Data { length, .. } => (length, true),
                Event::Head(head) => match Request::of(&head) {
                    Ok(request) => {
                        self.request = Some(request);
                        (head.length, true)
                    }
                    Err(error) => return Some(Err(error)),
                },
                Event::End(length) => {
                    done = self.request.take();
                    (length, false)
                }
                Event::Wrong(error) => return Some(Err(error)),
            };
            self.input.copy_within(length..self.filled, 0);
            self.filled -= length;
            self.deadline = self.reader.deadline();
            if !goes_on {
                return done.map(Ok);
            }
        }
    }

    /// Whether a request has begun to come, and is not all there.
    pub(super) fn has_begun_request(&self) -> bool {
        self.filled > 0 || self.request.is_some()
    }

    /// A request was answered, and another one may follow, of which something may have come.
    pub(super) fn answered(&mut self, now: Moment) {
        self.reader.answered(now, self.filled);
    }
}
