//! The MCP servers that one client offers its workers over ACP, by the client's names for them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::peer::WorkerKey;

/// Maximum number remembered per client; beyond it the oldest one is dropped.
const MOST: usize = 64;
/// Maximum number of bytes of names.
const MOST_BYTES: usize = 2048;
/// So many elements of the list in one request are looked at: a line of megabytes has hundreds of thousands.
pub(super) const MOST_OF_REQUEST: usize = 1024;
/// A longer name is not remembered.
pub(super) const LONGEST_NAME: usize = 256;
/// Upper bound of the memory for one client's offers.
#[cfg(test)]
pub(super) const MOST_MEMORY: usize = MOST_BYTES + MOST * size_of::<(WorkerKey, Box<[u8]>)>();

/// The servers that one client offers, the oldest offer in front.
#[derive(Default)]
pub(super) struct McpServers(VecDeque<(WorkerKey, Box<[u8]>)>);

impl McpServers {
    pub(super) const NONE: Self = Self(VecDeque::new());

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// It offers a worker a server with this name, of at most [`LONGEST_NAME`] bytes.
    pub(super) fn note(&mut self, worker: WorkerKey, name: &[u8]) {
        self.0.retain(|(of, known)| *of != worker || **known != *name);
        let room = MOST_BYTES.saturating_sub(name.len());
        while self.0.len() >= MOST || self.0.iter().map(|(_, known)| known.len()).sum::<usize>() > room {
            self.0.pop_front();
        }
        self.0.push_back((worker, name.into()));
    }

    /// Whether it offers this worker a server with this name.
    pub(super) fn has(&self, worker: WorkerKey, name: &[u8]) -> bool {
        self.0.iter().any(|(of, known)| *of == worker && **known == *name)
    }

    /// The workers to which it offers a server with this name, the most recent first.
    pub(super) fn workers_of(&self, name: &[u8]) -> impl Iterator<Item = WorkerKey> {
        self.0.iter().rev().filter(move |(_, known)| **known == *name).map(|(worker, _)| *worker)
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU64;

    use super::*;
    use crate::table::Key;

    #[test]
    fn the_oldest_offers_of_a_client_give_way() {
        let worker = Key::of_bits(NonZeroU64::MIN);
        let mut offers = McpServers::default();
        for at in 0..=MOST {
            offers.note(worker, format!("server-{at}").as_bytes());
        }
        assert!(!offers.has(worker, b"server-0") && offers.has(worker, b"server-1"));
        for letter in [b"a", b"b"] {
            (0..MOST_BYTES / LONGEST_NAME)
                .for_each(|at| offers.note(worker, &[&letter.repeat(LONGEST_NAME - 1)[..], &[at as u8]].concat()));
        }
        assert_eq!(offers.0.len(), MOST_BYTES / LONGEST_NAME);
    }
}
