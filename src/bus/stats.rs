//! Counters and gauges of the bus.

/// What has gone through the bus, and what is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lines taken from clients.
    pub lines_from_clients: u64,
    /// Lines taken from workers.
    pub lines_from_workers: u64,
    /// Lines queued for clients, error replies included.
    pub lines_to_clients: u64,
    /// Lines queued for workers.
    pub lines_to_workers: u64,
    /// Ids that were replaced because the receiver knew the same one already.
    pub ids_translated: u64,
    /// Error replies that the bus made.
    pub error_replies: u64,
    /// Bytes that were queued for a connection when it was closed.
    pub bytes_unsent: u64,
    /// Client connections.
    pub clients: usize,
    /// Workers.
    pub workers: usize,
    /// Sessions.
    pub sessions: usize,
    /// Unanswered requests, in both directions.
    pub pending: usize,
}
