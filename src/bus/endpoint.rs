//! What a client connection and a worker's pipes have in common: the line they are in the middle of, what is queued
//! for them, and the requests and sessions that hang on them.

use super::port::Peer;
use super::pressure::Output;
use super::route::{Request, Session};
use super::scan::Partial;
use super::table::Members;

/// One end of the bus.
#[derive(Default)]
pub struct Endpoint {
    /// What is known of the line it is in the middle of.
    pub partial: Partial,
    /// What is queued for it.
    pub output: Output,
    /// The output that it waits for; it is not read meanwhile.
    pub blocked_on: Option<Peer>,
    /// Its requests that nobody has answered yet.
    pub asked: Members<Request>,
    /// Requests that it has not answered yet.
    pub owes: Members<Request>,
    /// Sessions that it owns (a client) or that are bound to it (a worker).
    pub sessions: Members<Session>,
}
