//! Sessions without a connection in the world of an MCP listener: one gives its worker up if it has had no connection for
//! ten seconds, nothing is pending in it, and another client waits before a full pool.

use std::time::Duration;

use super::World;
use crate::bus::port::Input;
use crate::bus::settings::{Assignment, Era};
use crate::small::SmallWorld;

/// How long a session is without a connection before it has to give its worker up.
const DETACHED: Duration = Duration::from_secs(10);

impl World {
    /// A session loses its last connection, or gets one again.
    pub(super) fn detaches(&mut self, at: usize) {
        if self.clients[at].era != Some(Era::Legacy) {
            return;
        }
        let is_detached = self.clients[at].detached.is_none();
        self.clients[at].detached = is_detached.then_some(self.ground.now);
        self.note(format!("session {at} has {} connection", if is_detached { "no" } else { "a" }));
        let client = self.clients[at].key;
        self.handle(Input::Detached { client, is_detached });
        if self.ground.random.one_in(3) {
            let pause = Duration::from_millis(self.ground.random.range(1000..12_000) as u64);
            self.pass(pause);
        }
    }

    /// Whether a session may have to give its worker up.
    pub(super) fn may_be_evicted(&self, at: usize) -> bool {
        let client = &self.clients[at];
        client.detached.is_some_and(|since| self.ground.now.since(since) >= DETACHED) && client.waiting.is_empty()
    }

    /// A session is ended so that another client gets a worker.
    pub(super) fn check_evicted(&mut self, at: usize) {
        let client = &self.clients[at];
        let since = client.detached.unwrap_or_else(|| panic!("session {at} has a connection, and is ended"));
        assert!(self.ground.now.since(since) >= DETACHED, "session {at} is ended too soon");
        assert!(client.waiting.is_empty(), "session {at} waits for an answer, and is ended");
        let pool = &self.settings.pools[client.pool];
        assert_eq!(pool.assignment, Assignment::Dedicated);
        let live = self.workers.iter().filter(|worker| worker.pool == client.pool && !worker.released);
        assert!(live.count() >= pool.max_instances, "the pool of session {at} is not full");
        let waits = |other: &super::SimClient| other.pool == client.pool && other.wire.paused && !other.closing;
        assert!(self.clients.iter().any(waits), "nobody needs the worker of session {at}");
        self.evicted += 1;
    }
}
