//! The state of an admin connection: its origin, its current request, and the pieces of the answer that are left to produce.

use super::access::Origin;
use super::request::Request;
use super::response::Pieces;
use super::view::View;
use crate::bus::port::Moment;
use crate::http1::{Framing, chunk};

/// See the module documentation.
pub(super) struct Operator {
    pub origin: Origin,
    /// The request whose body is incomplete.
    pub request: Option<Request>,
    pub rest: Option<Rest>,
    /// When it was accepted, or its last answer began.
    pub since: Moment,
}

/// The rest of an answer that is produced in pieces.
pub(super) struct Rest {
    pub pieces: Box<dyn Pieces>,
    /// How its end is marked.
    pub framing: Framing,
    /// The connection stays open for another request.
    pub stays: bool,
}

impl Rest {
    /// Produces the next piece. False if it is the last one.
    pub(super) fn make_piece(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        match self.framing {
            Framing::Chunked => chunk(out, |out| self.pieces.next(view, out)),
            Framing::Length(_) | Framing::UntilEnd => self.pieces.next(view, out),
        }
    }
}
