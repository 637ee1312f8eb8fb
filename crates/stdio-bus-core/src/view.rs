//! What the shell, a simulator or a monitor may read of the bus at any time: it changes nothing.

use crate::Bus;
use crate::fleet::admission::{Rejection, may_ask};
use crate::index::{ListenerId, PoolId};
use crate::origin::{Origin, Owner};
use crate::peer::{ClientKey, Moment, Source, WorkerKey};
use crate::report::Reason;
use crate::settings::Era;
use crate::shutdown::Stage;
use crate::stats::Stats;

/// The bus, to be read only.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(crate) bus: &'a Bus,
}

impl Bus {
    /// The bus, to be read only.
    pub fn view(&self) -> View<'_> {
        View { bus: self }
    }
}

impl<'a> View<'a> {
    /// When [`Input::Tick`](crate::port::Input::Tick) is wanted at the latest.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.bus.ctx.timers.next()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        Stats {
            clients: self.bus.ctx.clients.len(),
            awaiting_workers: self.bus.fleets.queue().awaiting_workers(&self.bus.ctx),
            workers: self.bus.ctx.workers.len(),
            sessions: self.bus.sessions.owned(),
            pending: self.bus.requests.len(),
            ..*self.bus.ctx.out.counted()
        }
    }

    /// How often something was dropped, closed or changed for this reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.bus.ctx.out.count(reason)
    }

    /// How often clients have called tools that a pool keeps from them, by the pattern of `deny_tools`; it is empty where
    /// `allow_tools` has none for the tool, and `*ambiguous` where servers may read the call in different ways.
    pub fn denied_tools(&self) -> impl Iterator<Item = (PoolId, &'a str, u64)> + use<'a> {
        self.bus.ctx.denials.of_tools()
    }

    /// The stage of the shutdown.
    pub fn stage(&self) -> Stage {
        self.bus.ctx.shutdown.stage()
    }

    /// Whether new requests are refused because the daemon shuts down.
    pub fn refuses_requests(&self) -> bool {
        self.bus.ctx.shutdown.refuses_requests()
    }

    /// Whether nothing that clients send is passed on any more, since the daemon shuts down.
    pub fn refuses_everything(&self) -> bool {
        self.bus.ctx.shutdown.stops_workers()
    }

    /// The number of a client for people.
    pub fn client_number(&self, client: ClientKey) -> Option<u32> {
        self.bus.ctx.clients.client_number(client)
    }

    /// Whether any client is connected.
    pub fn has_clients(&self) -> bool {
        !self.bus.ctx.clients.is_empty()
    }

    /// Maximum number of clients.
    pub fn most_clients(&self) -> usize {
        self.bus.ctx.clients.capacity()
    }

    /// Whether a client of this origin is allowed at all, one that was here before the listener was removed included.
    ///
    /// # Errors
    /// Why not.
    pub fn may_ask(&self, listener: impl Into<ListenerId>, origin: &Origin) -> Result<(), Rejection> {
        may_ask(&self.bus.ctx, listener.into(), origin)
    }

    /// The sources of all clients, and how many each has.
    pub fn sources(&self) -> impl Iterator<Item = (Source, usize)> + use<'a> {
        self.bus.fleets.admission().sources()
    }

    /// Number of free client slots.
    pub fn free_slots(&self) -> usize {
        self.bus.ctx.clients.free_slots()
    }

    /// Whether a client of this origin may use a pool of its listener.
    pub fn offers(&self, listener: impl Into<ListenerId>, origin: &Origin, pool: impl Into<PoolId>) -> bool {
        self.bus.ctx.settings.offers(listener.into(), origin, pool.into())
    }

    /// Whether it may use one of them. At a removed listener, whose pools may be gone as well, clients go on for a while.
    pub fn offers_any(&self, listener: impl Into<ListenerId>, origin: &Origin) -> bool {
        self.bus.ctx.settings.offers_any(listener.into(), origin)
    }

    /// The user names that sessions are bound to, those bound first in front: the pool, the session, and its user name.
    /// [`Bus::bind`] gives them back to the core of a later process.
    pub fn session_users(&self) -> impl Iterator<Item = (PoolId, &'a [u8], Owner<'a>)> + use<'a> {
        self.bus.sessions.session_users().iter()
    }

    /// How often [`session_users`](Self::session_users) have changed.
    pub fn session_user_changes(&self) -> u64 {
        self.bus.sessions.session_users().changes()
    }

    /// The client that a worker of a dedicated pool belongs to.
    pub fn owner(&self, worker: WorkerKey) -> Option<ClientKey> {
        self.bus.ctx.workers.owner(worker)
    }

    /// Whether a worker of a pool is asked for its era, or will be once it runs.
    pub fn asks_era(&self, pool: impl Into<PoolId>) -> bool {
        self.bus.ctx.workers.asks_era(pool.into())
    }

    /// The era of a pool's command, if known: [`Era::Modern`] if it answers `server/discover`, and serves clients of
    /// 2026-07-28, and usually others.
    pub fn pool_era(&self, pool: impl Into<PoolId>) -> Option<Era> {
        self.bus.fleets.pools().pool_era(&self.bus.ctx, pool.into())
    }

    /// Bytes of waiting lines.
    pub fn bytes_waiting(&self) -> usize {
        self.bus.sessions.early_bytes()
    }
}
