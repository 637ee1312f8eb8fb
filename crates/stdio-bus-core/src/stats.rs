//! Counters and gauges of the bus.

use core::time::Duration;

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
    /// Bytes taken from clients, blank lines and lines that went nowhere included.
    pub bytes_from_clients: u64,
    /// Bytes taken from workers.
    pub bytes_from_workers: u64,
    /// Bytes queued for clients.
    pub bytes_to_clients: u64,
    /// Bytes queued for workers.
    pub bytes_to_workers: u64,
    /// How long clients have waited for others and were not read, those that wait now not counted.
    pub clients_paused: Duration,
    /// The same of workers.
    pub workers_paused: Duration,
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
