//! Counters and gauges: of the bus, and of one end of it.

use core::time::Duration;

/// What has gone through the ends of all clients, or of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Lines taken from them.
    pub lines_in: u64,
    /// Bytes taken from them, blank lines and lines that went nowhere included.
    pub bytes_in: u64,
    /// Lines queued for them, error replies included.
    pub lines_out: u64,
    /// Bytes queued for them.
    pub bytes_out: u64,
    /// How long they have waited for others and were not read, those that wait now not counted.
    pub paused: Duration,
}

/// What has gone through the bus, and what is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// What has gone through clients.
    pub client_side: Side,
    /// What has gone through workers.
    pub worker_side: Side,
    /// Ids that were replaced because the receiver knew the same one already.
    pub ids_translated: u64,
    /// Error replies that the bus made.
    pub error_replies: u64,
    /// Bytes that were queued for a connection when it was closed.
    pub bytes_unsent: u64,
    /// Client connections.
    pub clients: usize,
    /// Clients that wait for a worker of their own to be started, or for its first answer.
    pub awaiting_workers: usize,
    /// Workers.
    pub workers: usize,
    /// Sessions.
    pub sessions: usize,
    /// Unanswered requests, in both directions.
    pub pending: usize,
}

/// What a client connection has come to: how long it lasted, what went through it, and why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Since it connected.
    pub lasted: Duration,
    /// What went through it.
    pub traffic: Traffic,
    /// Its requests that a worker has answered, with a result or an error.
    pub answered: u64,
    /// Its requests that no worker has answered and none will.
    pub failed: u64,
    /// The name of the reason that it ended for; none while it is there.
    pub why: Option<&'static str>,
}

/// What has gone through one end. Every line passes here: a counter is an addition where its end is in hand anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Lines that were taken from it, and their bytes with newlines.
    pub lines_in: u64,
    /// See `lines_in`.
    pub bytes_in: u64,
    /// Lines that were queued for it.
    pub lines_out: u64,
    /// Bytes that have left for it.
    pub bytes_out: u64,
    /// Its requests that were passed on.
    pub asked: u64,
    /// Those of them that are not waited for any more although no answer came.
    pub given_up: u64,
    /// Its requests that were not passed on.
    pub refused: u64,
}

impl Traffic {
    /// Nothing yet.
    pub(crate) const NOTHING: Self =
        Self { lines_in: 0, bytes_in: 0, lines_out: 0, bytes_out: 0, asked: 0, given_up: 0, refused: 0 };
}
