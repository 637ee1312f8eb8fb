//! One connection of an operator, a monitor or a load balancer: the incoming request, and the outgoing answer.
//!
//! While the kernel holds an operation of it, the bytes in use stay in place; the connection is removed when it holds
//! none.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::access::Origin;
use super::request::{LIMITS, Manner, Request};
use super::response::{Body, Pieces, Response};
use super::view::View;
use crate::bus::port::{Moment, Source};
use crate::http1::{Error, Event, Framing, LONGEST_HEAD, RequestReader, chunk};
use crate::shell::connection::InFlight;

/// Maximum time without progress of an answer.
pub(super) const SEND_TIME: Duration = Duration::from_secs(10);
/// Maximum time for the client to read the last answer and to close.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// How many bytes are produced before they are sent.
const PIECE: usize = 16 * 1024;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for a request, or for the rest of one.
    Reading,
    /// Its answer is being sent.
    Answering,
    /// Everything was sent; further input is discarded until the client closes.
    Lingering,
    /// It is removed when the kernel holds no operation of it.
    Leaving,
}

/// The receiving side.
pub(super) struct Incoming {
    reader: RequestReader,
    /// The request whose body is incomplete.
    request: Option<Request>,
    bytes: Box<[u8; LONGEST_HEAD]>,
    /// How many bytes were received.
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

    /// Discards everything received.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// The next request, once it is complete, or why there is none.
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

    /// The deadline of the current wait.
    pub(super) fn deadline(&self) -> Moment {
        self.reader.deadline()
    }

    /// Whether a request is partly received.
    pub(super) fn has_begun(&self) -> bool {
        self.filled > 0 || self.request.is_some()
    }

    /// Records that a request was answered, after which another may follow or be partly received.
    pub(super) fn answered(&mut self, now: Moment) {
        self.reader.answered(now, self.filled);
    }
}

/// The sending side.
#[derive(Default)]
pub(super) struct Outgoing {
    /// The bytes being sent, from `sent` on.
    bytes: Vec<u8>,
    sent: usize,
    /// The rest of the answer, if it is produced in pieces, and its framing.
    pub pieces: Option<(Box<dyn Pieces>, Framing)>,
    /// No request follows this answer.
    pub is_last: bool,
}

impl Outgoing {
    /// Begins an answer. `is_closed` if it has to be the last one.
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

    /// Whether a piece has to be produced before anything is sent.
    pub(super) fn needs_piece(&self) -> bool {
        self.pieces.is_some() && self.bytes.len() < PIECE
    }

    /// Produces the next piece.
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

    /// The bytes to send.
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

    /// Whether the whole answer was sent.
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
    /// It waits for its next piece to be produced.
    pub is_busy: bool,
    /// When it was accepted, its answer was begun, or its last answer was sent.
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

    /// Whether it is idle: no answer is outstanding on it.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Reading || self.phase == Phase::Lingering
    }
}
