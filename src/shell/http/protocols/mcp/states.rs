//! What MCP keeps beside its clients: which worker a client's next request has to go to.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashMap;

use crate::bus::port::{ClientKey, WorkerKey};

/// Maximum number of answers whose worker is found again by the state that they carry (`requestState`).
const MOST_STATES: usize = 1024;

/// The workers of answers that carry a state, which their clients may return: it is for the same worker.
#[derive(Default)]
pub(in crate::shell::http) struct States {
    /// By hashes of the states; oldest first in the queue.
    workers: HashMap<u64, WorkerKey>,
    order: VecDeque<u64>,
    hasher: RandomState,
    /// Answers whose workers are to be looked up in the core: their clients, and hashes of their states.
    answered: Vec<(ClientKey, u64)>,
}

impl States {
    /// Whether there is work that can be done at once.
    fn is_busy(&self) -> bool {
        !self.answered.is_empty()
    }

    /// An unpredictable hash of a state.
    fn hash_of(&self, state: &[u8]) -> u64 {
        self.hasher.hash_one(state)
    }

    /// The worker whose answer carried this state.
    pub(super) fn worker(&self, state: &[u8]) -> Option<WorkerKey> {
        self.workers.get(&self.hash_of(state)).copied()
    }

    /// An answer for this client carries this state.
    pub(super) fn note(&mut self, client: ClientKey, state: &[u8]) {
        self.answered.push((client, self.hash_of(state)));
    }

    /// Those whose workers are to be looked up: their clients, and hashes of their states.
    pub(super) fn take_answered(&mut self) -> Vec<(ClientKey, u64)> {
        std::mem::take(&mut self.answered)
    }

    /// The answer with the state of this hash was this worker's.
    pub(super) fn remember(&mut self, state: u64, worker: WorkerKey) {
        if self.workers.insert(state, worker).is_none() {
            self.order.push_back(state);
        }
        if self.order.len() > MOST_STATES
            && let Some(oldest) = self.order.pop_front()
        {
            self.workers.remove(&oldest);
        }
    }
}

/// What MCP keeps beside its clients.
#[derive(Default)]
pub(in crate::shell) struct OfMcp {
    /// The era of another pool has become known.
    pub has_discovered: bool,
    pub(super) states: States,
}

impl OfMcp {
    /// Whether there is work that can be done at once.
    pub(in crate::shell) fn is_busy(&self) -> bool {
        self.has_discovered || self.states.is_busy()
    }
}
