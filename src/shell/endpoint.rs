//! What is known of a peer of the core, a client or a worker, at its connection.

use super::stderr::Stderr;
use super::transport::{State, Transport};
use crate::bus::port::{Peer, WorkerKey, WorkerName};

pub(super) struct Endpoint {
    pub peer: Peer,
    /// The worker's name, if it is one.
    pub name: Option<Box<WorkerName>>,
    /// A worker's stderr.
    pub stderr: Option<Box<Stderr>>,
    /// The state of its input.
    pub incoming: Incoming,
    /// It is among the connections whose buffered bytes are presented next.
    pub is_resumed: bool,
}

/// What becomes of an input.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Incoming {
    /// The core has paused it.
    pub is_paused: bool,
    /// Further input is discarded.
    pub is_discarded: bool,
    /// The last receive left bytes in the socket.
    pub has_more: bool,
    /// Its end was reported to the core, after all bytes before it.
    pub is_end_reported: bool,
    /// It was not read when it was last looked for, and has not been since (`liveness.rs`).
    pub is_suspect: bool,
}

impl Endpoint {
    /// A peer that has just got its connection.
    pub(super) fn of(peer: Peer) -> Self {
        Self { peer, name: None, stderr: None, incoming: Incoming::default(), is_resumed: false }
    }

    /// A worker.
    pub(super) fn of_worker(worker: WorkerKey, name: WorkerName) -> Self {
        Self { name: Some(Box::new(name)), ..Self::of(Peer::Worker(worker)) }
    }

    /// Whether no read would show its departure.
    pub(super) fn is_not_read(&self, transport: &Transport) -> bool {
        self.incoming.is_paused || transport.has_ended()
    }

    /// Whether its departure is watched for.
    pub(super) fn is_to_be_watched(&self, transport: &Transport) -> bool {
        let is_client = transport.ends.is_socket() && self.is_not_read(transport);
        (is_client || transport.ends.is_worker()) && transport.state < State::Lingering
    }

    /// Whether there is input that the core has not seen, and is not processing.
    pub(super) fn is_waiting_to_be_read(&self) -> bool {
        self.incoming.is_paused || self.is_resumed
    }
}
