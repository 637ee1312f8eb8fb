//! Names of sessions that went with their workers, so that their owners are told when they name them.

use alloc::collections::VecDeque;

use super::peer::hash_of_name;

/// How many such names are remembered for one client; beyond them the oldest one goes.
const MAX_LOST: usize = 64;

/// Names of sessions that went with their workers, for the client that owned them. A name is kept as its hash: a
/// client that finds two names of one hash fools nobody but itself.
#[derive(Default)]
pub(super) struct LostNames {
    names: VecDeque<u64>,
}

impl LostNames {
    /// A session of this name went with its worker.
    pub(super) fn add(&mut self, name: &[u8]) {
        self.forget(name);
        if self.names.len() == MAX_LOST {
            self.names.pop_front();
        }
        self.names.push_back(hash_of_name(name));
    }

    /// Whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the client owned a session of this name that is gone.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        !self.names.is_empty() && self.names.contains(&hash_of_name(name))
    }

    /// It has a session of this name again.
    pub(super) fn forget(&mut self, name: &[u8]) {
        if !self.names.is_empty() {
            let hash = hash_of_name(name);
            self.names.retain(|lost| *lost != hash);
        }
    }
}
