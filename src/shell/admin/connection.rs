//! One connection of an operator, a monitor or a balancer: the request that comes in, and the answer that goes out.
//!
//! While the kernel holds an operation of it, the bytes that it works on stay where they are; the connection goes when
//! it holds none.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::access::Origin;
use super::request::{LIMITS, Manner, Request};
use super::response::{Body, Pieces, Response};
use super::view::View;
use crate::bus::port::{Moment, Source};
use crate::http1::{Error, Event, Framing, LONGEST_HEAD, RequestReader, chunk};
use crate::shell::connection::InFlight;

/// How long an answer may stand still.
pub(super) const SEND_TIME: Duration = Duration::from_secs(10);
/// How long the other side may take to see the last answer, and to close.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// So many bytes are made before they are sent.
const PIECE: usize = 16 * 1024;

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

/// What comes in.
pub(super) struct Incoming {
    reader: RequestReader,
    /// The request whose body is still to come.
    request: Option<Request>,
    bytes: Box<[u8; LONGEST_HEAD]>,
    /// So many of them have come.
    filled: usize,
}

impl Incoming {
    /// Room for more.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let room = &mut self.bytes[self.filled..];
        debug_assert!(!room.is_empty(), "a head that fills all of it is refused");
        room
    }

    pub(super) fn took(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Nothing that has come matters.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// The next request, once all of it has come, or why there is none.
    pub(super) fn next(&mut self, now: Moment) -> Option<Result<Request, Error>> {
        loop {
            let mut done = None;
            let (length, goes_on) = match self.reader.next(now, &self.bytes[..self.filled]) {
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
            self.bytes.copy_within(length..self.filled, 0);
            self.filled -= length;
            if !goes_on {
                return done.map(Ok);
            }
        }
    }

    /// When what is waited for takes too long.
    pub(super) fn deadline(&self) -> Moment {
        self.reader.deadline()
    }

    /// Whether a request has begun to come, and is not all there.
    pub(super) fn has_begun(&self) -> bool {
        self.filled > 0 || self.request.is_some()
    }

    /// A request was answered, and another one may follow, of which something may have come.
    pub(super) fn answered(&mut self, now: Moment) {
        self.reader.answered(now, self.filled);
    }
}

/// What goes out.
#[derive(Default)]
pub(super) struct Outgoing {
    /// What is being sent, from `sent` on.
    bytes: Vec<u8>,
    sent: usize,
    /// The rest of the answer, if it is made piece by piece, and how its end is told.
    pub pieces: Option<(Box<dyn Pieces>, Framing)>,
    /// No request is taken after this answer.
    pub is_last: bool,
}

impl Outgoing {
    /// Begins an answer. `is_closed` says that no other one follows in any case.
    pub(super) fn begin(&mut self, response: Response, manner: Manner, is_closed: bool) {
        let framing = response.framing(manner);
        self.is_last = !manner.keeps_alive || framing == Framing::UntilEnd || is_closed;
        (self.bytes, self.sent) = (response.head(framing, !self.is_last).into_bytes(), 0);
        match response.body {
            _ if manner.is_head => {}
            Body::Whole(body) => self.bytes.extend_from_slice(&body),
            Body::Pieces(pieces) => self.pieces = Some((pieces, framing)),
        }
    }

    /// Whether a piece is to be made before anything is sent.
    pub(super) fn needs_piece(&self) -> bool {
        self.pieces.is_some() && self.bytes.len() < PIECE
    }

    /// Makes the next piece.
    pub(super) fn make_piece(&mut self, view: &View<'_>) {
        let Some((pieces, framing)) = &mut self.pieces else { return };
        let goes_on = match framing {
            Framing::Chunked => chunk(&mut self.bytes, |out| pieces.next(view, out)),
            Framing::Length(_) | Framing::UntilEnd => pieces.next(view, &mut self.bytes),
        };
        if !goes_on {
            self.pieces = None;
        }
    }

    /// What is to be sent.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.rest().is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// Whether all of the answer is sent.
    pub(super) fn is_over(&self) -> bool {
        self.rest().is_empty() && self.pieces.is_none()
    }
}

/// See the module documentation.
pub(super) struct Connection {
    pub socket: OwnedFd,
    pub origin: Origin,
    pub source: Source,
    pub phase: Phase,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub in_flight: InFlight,
    /// It waits for its next piece to be made.
    pub is_busy: bool,
    /// When it came, its answer was begun, or its last answer was sent.
    pub since: Moment,
}

impl Connection {
    pub(super) fn new(now: Moment, socket: OwnedFd, origin: Origin, source: Source) -> Self {
        let reader = RequestReader::new(now, LIMITS);
        let incoming = Incoming { reader, request: None, bytes: Box::new([0; LONGEST_HEAD]), filled: 0 };
        Self {
            socket,
            origin,
            source,
            phase: Phase::Reading,
            incoming,
            outgoing: Outgoing::default(),
            in_flight: InFlight::default(),
            is_busy: false,
            since: now,
        }
    }

    /// Whether nobody waits for an answer on it.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Reading || self.phase == Phase::Lingering
    }
}
