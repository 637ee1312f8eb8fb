//! Counters and gauges: of the bus, and of one endpoint.

use core::time::Duration;

/// The traffic of all clients, or of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Lines taken from them.
    pub lines_in: u64,
    /// Bytes taken from them, including blank lines and lines that were not delivered.
    pub bytes_in: u64,
    /// Lines queued for them, including error replies.
    pub lines_out: u64,
    /// Bytes queued for them.
    pub bytes_out: u64,
    /// How long they were paused while waiting for others, excluding current pauses.
    pub paused: Duration,
}

/// The traffic of the bus, and its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The traffic of clients.
    pub client_side: Side,
    /// The traffic of workers.
    pub worker_side: Side,
    /// Ids that were replaced because the receiver knew the same one already.
    pub ids_translated: u64,
    /// Error replies made by the bus.
    pub error_replies: u64,
    /// Bytes that were queued for a connection when it was closed.
    pub bytes_unsent: u64,
    pub clients: usize,
    /// Clients that wait for a worker of their own to be started, or for its first answer.
    pub awaiting_workers: usize,
    pub workers: usize,
    /// Sessions that have an owner.
    pub sessions: usize,
    /// Pending requests, in both directions.
    pub pending: usize,
}

/// The account of a client connection: how long it lasted, its traffic, and why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Time since it connected.
    pub lasted: Duration,
    pub traffic: Traffic,
    /// Its requests that a worker has answered, with a result or an error.
    pub answered: u64,
    /// Its requests that were not answered by a worker and will not be.
    pub failed: u64,
    /// The name of the reason for its end; none while it is connected.
    pub why: Option<&'static str>,
}

/// The traffic of one endpoint. Every line is counted here: a counter is one addition where the endpoint is at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Lines taken from it, and their bytes with newlines.
    pub lines_in: u64,
    /// See `lines_in`.
    pub bytes_in: u64,
    /// Lines queued for it.
    pub lines_out: u64,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Its requests that were forwarded.
    pub asked: u64,
    /// Those of them that ended without an answer.
    pub given_up: u64,
    /// Its requests that were not forwarded.
    pub refused: u64,
}

impl Traffic {
    /// No traffic yet.
    pub(crate) const NOTHING: Self =
        Self { lines_in: 0, bytes_in: 0, lines_out: 0, bytes_out: 0, asked: 0, given_up: 0, refused: 0 };
}
