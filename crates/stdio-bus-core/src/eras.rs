//! Clients of a door for MCP over HTTP, and what is known of the eras that commands speak.

use super::Bus;
use super::origin::Origin;
use super::peer::{ClientKey, Moment, WorkerKey};
use super::port::Effects;
use super::settings::Era;

/// What is known of the era of a pool's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolEra {
    /// It was not asked yet, or has not answered.
    #[default]
    Unknown,
    /// It does not answer `server/discover`: it is for clients that begin with `initialize`.
    Legacy,
    /// It answers `server/discover`: it serves clients of 2026-07-28, and usually others.
    Modern,
}

impl Bus {
    /// A client of an MCP door has come: a session, or one that sends requests of 2026-07-28. Its messages go to `pool`
    /// alone. None when there is no room for it, as with [`Bus::connect`].
    pub fn connect_mcp(
        &mut self,
        now: Moment,
        listener: usize,
        origin: impl Into<Origin>,
        pool: usize,
        era: Era,
    ) -> (Option<ClientKey>, Effects<'_>) {
        let _ = era;
        self.begin_call(now);
        let client = self.admit_client(listener, origin.into());
        if let Some(client) = client.and_then(|client| self.clients.get_mut(client)) {
            client.group = pool;
        }
        (client, self.effects())
    }

    /// What is known of the era of a pool's command.
    pub fn pool_era(&self, pool: usize) -> PoolEra {
        let _ = pool;
        PoolEra::Unknown
    }

    /// The worker that has answered a client last.
    pub fn answered_by(&self, client: ClientKey) -> Option<WorkerKey> {
        self.clients.get(client)?.assigned.last().map(|(_, worker)| *worker)
    }

    /// The next messages of a client go to this worker as long as it lives and takes messages: they belong to a request
    /// that it has begun to answer.
    pub fn prefer_worker(&mut self, client: ClientKey, worker: Option<WorkerKey>) {
        let _ = (client, worker);
    }
}
