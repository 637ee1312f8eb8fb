//! Counters and gauges of the bus.

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
