//! What a client connection and a worker's pipes have in common: the line they are in the middle of, what is queued
//! for them, and the requests and sessions that hang on them.

use super::output::Output;
use super::peer::{Moment, Peer, RequestMark, SessionMark};
use super::table::Members;
use crate::scan::{Line, Partial};

/// One end of the bus.
#[derive(Default)]
pub struct Endpoint {
    /// What is known of the line it is in the middle of.
    pub partial: Partial,
    /// Bytes that were presented and not consumed.
    pub kept: usize,
    /// Lines that were found in its bytes and wait, counted from the first byte that is kept of it.
    pub waiting: Vec<Line>,
    /// What is queued for it.
    pub output: Output,
    /// The output that it waits for; it is not read meanwhile.
    pub blocked_on: Option<Peer>,
    /// It holds much while memory is short, and is not read.
    pub held_back: bool,
    /// When a line was taken from it, or it took bytes, for the last time.
    pub progress_at: Moment,
    /// When a line was taken from it for the last time.
    pub spoke_at: Option<Moment>,
    /// Its requests that nobody has answered yet.
    pub outstanding: Members<RequestMark>,
    /// Requests that it has not answered yet.
    pub to_answer: Members<RequestMark>,
    /// Every id of a request to it is one that it has never seen.
    pub fresh_ids: bool,
    /// Requests to it that were forgotten before it answered them.
    pub retired_ids: u64,
    /// Sessions that it owns (a client) or that are bound to it (a worker).
    pub sessions: Members<SessionMark>,
}

impl Endpoint {
    /// A request to it was forgotten before it answered: none of its ids is used again.
    pub fn retire_id(&mut self) {
        self.fresh_ids = true;
        self.retired_ids += 1;
    }

    /// Whether an answer that no request waits for may be a late one.
    pub fn take_retired(&mut self) -> bool {
        let is_late = self.retired_ids > 0;
        self.retired_ids -= u64::from(is_late);
        is_late
    }
}
