//! Whom a worker has served, and so whom a message of it is for that names nobody: neither a session nor a request.
//!
//! Invariant: such a message reaches only a client beside whom nobody has ever sent the worker anything. One that has
//! left may have left something behind (a subscription, work that goes on), so the next client does not take its place.

use super::Bus;
use super::client::Client;
use super::message::Refusal;
use super::peer::{ClientKey, WorkerKey};
use super::report::Reason;
use super::settings::Assignment;
use alloc::format;

/// Whose lines a worker has been given since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// Nobody's.
    #[default]
    Nobody,
    /// Those of one client, which may have left.
    One(ClientKey),
    /// Those of several.
    Several,
}

impl Audience {
    /// The worker is given a line of this client.
    #[inline]
    pub(super) fn note(&mut self, client: ClientKey) {
        if *self != Self::One(client) {
            *self = if *self == Self::Nobody { Self::One(client) } else { Self::Several };
        }
    }
}

impl Bus {
    /// A worker is given a line of this client that is no request.
    pub(super) fn note_audience(&mut self, worker: WorkerKey, client: ClientKey) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.audience.note(client);
        }
    }

    /// The client that everything a worker says is for: its owner, the only one that it has served, or the only one that
    /// could use it if it has served nobody. A spare of a dedicated pool is nobody's: each client there has its own.
    pub(super) fn only_client(&self, worker: WorkerKey) -> Option<ClientKey> {
        let worker = self.workers.get(worker)?;
        match worker.audience {
            _ if self.settings.pools[worker.pool].assignment == Assignment::Dedicated => worker.owner,
            Audience::One(client) => Some(client),
            Audience::Nobody => {
                let may_use = |client: &Client| {
                    !client.origin.is_proxy && self.offers(client.listener, &client.origin, worker.pool)
                };
                let mut users = self.clients.iter().filter(|(_, client)| may_use(client)).map(|(client, _)| client);
                users.next().filter(|_| users.next().is_none())
            }
            Audience::Several => None,
        }
    }

    /// Why a message that names nobody is for nobody, with the remedy.
    pub(super) fn nobody_is_meant(&self, worker: WorkerKey) -> Refusal {
        let Some(worker) = self.workers.get(worker) else {
            return Refusal(Reason::Unroutable, Reason::Unroutable.help().into());
        };
        let pool = &self.settings.pools[worker.pool];
        let text = match (pool.assignment, worker.audience) {
            (Assignment::Dedicated, _) => "it names no session, and no client has this worker yet".into(),
            (_, Audience::Several) => format!(
                "it names no session, and this worker has served several clients: give pool \"{}\" \"assignment\": \
                 \"dedicated\", as MCP servers need it",
                pool.id
            ),
            _ => format!(
                "it names no session, and nobody can say which client it is for: give pool \"{}\" \"assignment\": \
                 \"dedicated\", as MCP servers need it",
                pool.id
            ),
        };
        Refusal(Reason::Unroutable, text)
    }
}
