//! The workers of the world of a door, and what lies between the bus and each peer.

use serde_json::Value;

use crate::bus::port::{Moment, WorkerKey};
use crate::bus::settings::Era;

/// The bytes between the bus and one peer.
#[derive(Default)]
pub(super) struct Wire {
    /// Written by the peer and not consumed.
    pub(super) written: Vec<u8>,
    pub(super) paused: bool,
    /// Queued by the bus, and not a whole line yet.
    pub(super) half: Vec<u8>,
}

/// A request that a worker has read.
pub(super) struct Work {
    pub(super) id: Value,
    pub(super) client: usize,
    pub(super) number: usize,
    pub(super) given_up: Option<Moment>,
}

pub(super) struct SimWorker {
    pub(super) key: WorkerKey,
    pub(super) pool: usize,
    pub(super) wire: Wire,
    pub(super) runs: bool,
    pub(super) started: Moment,
    /// The id of the question that it has not answered.
    pub(super) asked: Option<Value>,
    /// It did not answer that in time.
    pub(super) is_late: bool,
    /// It has answered that with a result, or is late: it may serve 2026-07-28 alone.
    pub(super) may_be_pinned: bool,
    /// It has answered anything.
    pub(super) has_answered: bool,
    pub(super) pinned: Option<Era>,
    pub(super) served: Vec<usize>,
    pub(super) work: Vec<Work>,
    pub(super) next: usize,
    pub(super) terminated: bool,
    pub(super) gone: bool,
    pub(super) released: bool,
}

impl SimWorker {
    pub(super) fn new(key: WorkerKey, pool: usize, started: Moment) -> Self {
        Self {
            key,
            pool,
            wire: Wire::default(),
            runs: false,
            started,
            asked: None,
            is_late: false,
            may_be_pinned: false,
            has_answered: false,
            pinned: None,
            served: Vec::new(),
            work: Vec::new(),
            next: 0,
            terminated: false,
            gone: false,
            released: false,
        }
    }
}
