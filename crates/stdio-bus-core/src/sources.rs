//! The sources that clients come from, how many connections each of them has, and when it has got its last worker.

use super::peer::Source;
use super::settings::MAX_CONNECTIONS;
use super::table::{Key, Table};
use alloc::vec;

/// A source and how many connections it has.
#[derive(Default)]
pub(super) struct Uses {
    source: Source,
    connections: usize,
    /// When it got its last worker, in turns of all sources. One that has got none goes before the one that got the last,
    /// and behind those that have waited since.
    turn: u64,
}

/// Names what one source uses, for as long as it has a connection.
pub(super) type UseKey = Key<Uses>;

/// The sources of all connections.
pub(super) struct Sources {
    table: Table<Uses>,
    turns: u64,
}

impl Default for Sources {
    fn default() -> Self {
        Self { table: Table::new(MAX_CONNECTIONS), turns: 0 }
    }
}

impl Sources {
    /// One more connection of `source`.
    pub(super) fn enter(&mut self, source: Source) -> Option<UseKey> {
        let known = self.table.iter().find(|(_, uses)| uses.source == source).map(|(key, _)| key);
        let key = match known {
            Some(key) => key,
            None => self.table.insert(Uses { source, turn: self.turns.saturating_sub(1), ..Uses::default() })?,
        };
        self.uses(key).connections += 1;
        Some(key)
    }

    /// One connection less.
    pub(super) fn leave(&mut self, key: UseKey) {
        let uses = self.uses(key);
        uses.connections -= 1;
        if uses.connections == 0 {
            self.table.remove(key);
        }
    }

    /// How many connections it has.
    pub(super) fn count(&self, key: UseKey) -> usize {
        self.table.get(key).map_or(0, |uses| uses.connections)
    }

    /// It has got a worker: all others that wait for one go before it.
    pub(super) fn count_turn(&mut self, key: UseKey) {
        self.turns += 1;
        self.uses(key).turn = self.turns;
    }

    /// The source with the lowest has waited longest for a worker.
    pub(super) fn turn(&self, key: UseKey) -> u64 {
        self.table.get(key).map_or(0, |uses| uses.turn)
    }

    fn uses(&mut self, key: UseKey) -> &mut Uses {
        self.table.get_mut(key).expect("a source lives as long as its connections")
    }

    /// Names of what the sources use.
    pub(super) fn keys(&self) -> impl Iterator<Item = UseKey> {
        self.table.iter().map(|(key, _)| key)
    }

    /// Panics if the connections of a source are not those that are given, one entry for each.
    pub(super) fn check_invariants(&self, connections: impl Iterator<Item = UseKey>) {
        let mut counted = vec![0; MAX_CONNECTIONS];
        connections.for_each(|source| counted[source.index()] += 1);
        for (key, uses) in self.table.iter() {
            assert!(uses.connections > 0, "a source lives as long as its connections");
            assert_eq!(core::mem::take(&mut counted[key.index()]), uses.connections);
        }
        assert!(counted.iter().all(|left| *left == 0), "every connection has its source");
    }
}
