//! What an operator can see of clients, workers, sessions and requests: one row at a time by slot, so that full tables
//! can be read in pieces. It changes nothing.

use alloc::rc::Rc;
use alloc::string::String;
use core::time::Duration;

use super::origin::Origin;
use super::peer::{ClientKey, Moment, Peer, WorkerKey};
use super::pool_stats::{PoolStats, ReasonCounts};
use super::report::{Reason, WorkerName};
use super::requests::Request;
use super::settings::{Limits, MAX_PENDING_REQUESTS, MAX_SESSIONS, Pool};
use super::stats::ConnectionStats;
pub use super::timeouts::Questions;
use super::worker::{Worker, WorkerState};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::histogram::Histogram;
use crate::index::{ListenerId, PoolId};
use crate::peers::{Client, Endpoint, Phase};
use crate::view::View;

/// The name of a peer, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// A client by its number.
    Client(u32),
    Worker(WorkerName),
    /// This pool, whose next worker is awaited.
    Pool(PoolId),
    /// This pool, which the operator has paused.
    PausedPool(PoolId),
}

/// What a client and a worker have in common.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Its unanswered requests.
    pub asked: usize,
    /// Requests that it has not answered.
    pub to_answer: usize,
    /// Sessions that it owns, or that are bound to it.
    pub sessions: usize,
    /// Bytes that are queued for it.
    pub queued: usize,
    /// For how long its queue has been full.
    pub full: Option<Duration>,
    /// What it waits for: then it is not read. Or its own worker has not answered anything yet.
    pub waits_for: Option<WaitsFor>,
    /// Time since its last activity.
    pub idle: Duration,
}

/// What a client or a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitsFor {
    /// Who keeps it waiting.
    pub whom: PeerName,
    /// What that has to give.
    pub what: &'static str,
    /// How long it has waited.
    pub time: Duration,
}

/// A client: a connection, or an HTTP session.
#[derive(Clone, Debug)]
pub struct ClientRow {
    /// Its number for people, as in reports.
    pub number: u32,
    /// Its listener.
    pub listener: ListenerId,
    pub origin: Rc<Origin>,
    /// Its traffic so far.
    pub account: ConnectionStats,
    /// `open`, `half_closed` or `closing`.
    pub state: &'static str,
    /// Requests, sessions and bytes.
    pub link: Link,
}

/// One incarnation of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerRow {
    /// Its name for people, and its pool.
    pub name: WorkerName,
    /// Its process; 0 before it runs.
    pub pid: u32,
    pub state: WorkerState,
    /// `serves`, `candidate` or `leaves`.
    pub role: &'static str,
    /// Time since it was started.
    pub age: Duration,
    /// The client that it belongs to alone.
    pub owner: Option<u32>,
    /// It has said nothing for a while although it owes answers: what any worker may get is sent to others.
    pub is_unresponsive: bool,
    /// Bytes that were sent to it and that it has not read, as far as known.
    pub unread: u64,
    /// Requests, sessions and bytes.
    pub link: Link,
}

/// A session, or a reserved name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRow<'a> {
    /// Its name, decoded: bytes of a client or a worker.
    pub name: &'a [u8],
    /// Its owner; none while the name is reserved.
    pub client: Option<u32>,
    /// The worker that it is bound to.
    pub worker: Option<PeerName>,
    /// `claimed`, `confirmed` or `issued`.
    pub rank: &'static str,
    /// Its unanswered requests.
    pub pending: u32,
    /// Time since its owner used it.
    pub idle: Duration,
}

/// A request that waits for its answer.
#[derive(Clone, Debug)]
pub struct RequestRow {
    /// The token of its id as its asker wrote it: text of a client or a worker.
    pub id: String,
    /// Its asker; none once that stopped waiting.
    pub asker: Option<PeerName>,
    /// Who has to answer it.
    pub answerer: Option<PeerName>,
    /// The beginning of its method, if a worker has asked.
    pub method: Option<String>,
    /// How long it has waited.
    pub age: Duration,
    /// How long its worker has said nothing about it, though it could, if that is limited.
    pub silent: Option<Duration>,
    /// Time until it times out, if nothing is said about it before.
    pub expires: Option<Duration>,
    /// Its asker has cancelled it.
    pub is_cancelled: bool,
}

/// A pool, with both of its fleets.
#[derive(Clone, Debug)]
pub struct PoolRow<'a> {
    /// Its configuration.
    pub settings: &'a Pool,
    /// Slots that wait for their next worker to be started.
    pub waiting: usize,
    /// Slots that were given up.
    pub given_up: usize,
    /// Slots whose workers the operator has taken out.
    pub out: usize,
    /// Workers beyond `instances` that it keeps since those were busy.
    pub grown: usize,
    /// The operator has paused it.
    pub is_paused: bool,
    /// It has no workers until a line needs one.
    pub is_asleep: bool,
    /// How often it was woken.
    pub woken: u64,
    /// How long its wakes have taken, from the line to the first answer of a worker.
    pub wakes: &'a Histogram,
    /// Its counters.
    pub stats: &'a PoolStats,
}

/// A table's fill level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillLevel {
    /// Entries.
    pub used: usize,
    /// Maximum number of entries.
    pub most: usize,
}

/// The tables of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Client connections.
    pub clients: FillLevel,
    /// Sessions that have an owner.
    pub sessions: FillLevel,
    /// Names that are reserved for no client.
    pub held: usize,
    /// Requests of clients.
    pub requests: FillLevel,
    /// Requests of workers.
    pub worker_requests: FillLevel,
}

/// The pool of which a client waits for a worker, or the worker of its own whose first answer it waits for.
fn wait_for_worker(fleets: &Fleets, ctx: &Ctx, now: Moment, key: ClientKey, client: &Client) -> Option<WaitsFor> {
    if let Some((group, since)) = fleets.queue().awaits_worker(key) {
        let pool = fleets.balancer()[group].fleets().next()?.pool;
        let (whom, what) = match fleets.queue().awaits_resume(key).is_some() {
            true => (PeerName::PausedPool(pool), "its resume"),
            false => (PeerName::Pool(pool), "a worker"),
        };
        return Some(WaitsFor { whom, what, time: now.since(since) });
    }
    let starts = |worker: &WorkerKey| ctx.workers.get(*worker).is_some_and(|worker| worker.starts_for() == Some(key));
    let worker = client.assigned().iter().map(|(_, worker)| *worker).find(starts)?;
    let since = ctx.workers.get(worker)?.ownership().since();
    let whom = name_of(ctx, Peer::Worker(worker))?;
    Some(WaitsFor { whom, what: "its first answer", time: now.since(since) })
}

fn link_of(ctx: &Ctx, now: Moment, end: &Endpoint, since: Moment) -> Link {
    let wait_for_room = |(peer, since)| {
        Some(WaitsFor { whom: name_of(ctx, peer)?, what: "room for its next line", time: now.since(since) })
    };
    Link {
        asked: end.asked.len(),
        to_answer: end.to_answer.count() as usize,
        sessions: end.sessions.len(),
        queued: end.output.queued(),
        full: end.output.full_since().map(|since| now.since(since)),
        waits_for: end.cold.blocked_on().and_then(wait_for_room),
        idle: now.since(end.stream.progress_at().max(since)),
    }
}

fn name_of(ctx: &Ctx, peer: Peer) -> Option<PeerName> {
    Some(match peer {
        Peer::Client(client) => PeerName::Client(ctx.clients.client_number(client)?),
        Peer::Worker(worker) => PeerName::Worker(ctx.workers.worker_name(worker)?),
    })
}

impl<'a> View<'a> {
    /// How full the tables are.
    pub fn levels(&self) -> Levels {
        let requests = |used| FillLevel { used, most: MAX_PENDING_REQUESTS };
        let [to_workers, to_clients] = self.bus.requests.counts();
        Levels {
            clients: FillLevel { used: self.bus.ctx.clients.len(), most: self.bus.ctx.clients.capacity() },
            sessions: FillLevel { used: self.bus.sessions.owned(), most: MAX_SESSIONS },
            held: self.bus.sessions.held(),
            requests: requests(to_workers),
            worker_requests: requests(to_clients),
        }
    }

    /// The client in a slot.
    pub fn client_row(&self, now: Moment, slot: usize) -> Option<ClientRow> {
        let (key, client) = self.bus.ctx.clients.at(slot)?;
        let mut link = link_of(&self.bus.ctx, now, client.end(), client.identity().opened);
        link.waits_for = link.waits_for.or_else(|| wait_for_worker(&self.bus.fleets, &self.bus.ctx, now, key, client));
        Some(ClientRow {
            number: client.identity().number,
            listener: client.identity().listener,
            origin: Rc::clone(&client.identity().origin),
            account: client.account(self.lasted(now, client.identity().opened)),
            state: match client.phase() {
                Phase::Open => "open",
                Phase::HalfClosed => "half_closed",
                Phase::Refusing | Phase::Flushing | Phase::Closing => "closing",
            },
            link,
        })
    }

    /// Number of worker slots in use, gaps included.
    pub fn worker_slots(&self) -> usize {
        self.bus.ctx.workers.slots()
    }

    /// The worker in a slot.
    pub fn worker_row(&self, now: Moment, slot: usize) -> Option<WorkerRow> {
        let (key, worker) = self.bus.ctx.workers.at(slot)?;
        Some(WorkerRow {
            name: worker.name(),
            pid: worker.process().pid(),
            state: worker.process().state(),
            role: self.role(key)?,
            age: self.lasted(now, worker.process().started()),
            owner: worker.owner().and_then(|owner| self.bus.ctx.clients.client_number(owner)),
            is_unresponsive: worker.is_unresponsive(),
            // How much it has read is probed only while a client waits for its turn.
            unread: if worker.end().to_answer.count() == 0 { 0 } else { worker.window().backlog() },
            link: Link {
                // Reserved names are not sessions.
                sessions: worker
                    .end()
                    .sessions
                    .iter()
                    .filter_map(|session| self.bus.sessions.get(*session)?.owner())
                    .count(),
                ..link_of(&self.bus.ctx, now, worker.end(), worker.process().started())
            },
        })
    }

    /// The age of the oldest request that the worker in a slot owes an answer to, if it does: also of clients that have
    /// left.
    pub fn worker_owes(&self, now: Moment, slot: usize) -> Option<Duration> {
        let (key, _) = self.bus.ctx.workers.at(slot).filter(|(_, worker)| worker.end().to_answer.count() > 0)?;
        Some(self.lasted(now, self.bus.requests.oldest_owed(key)?))
    }

    /// Number of session slots in use, gaps included.
    pub fn session_slots(&self) -> usize {
        self.bus.sessions.slots()
    }

    /// The session or reserved name in a slot.
    pub fn session_row(&self, now: Moment, slot: usize) -> Option<SessionRow<'a>> {
        let (_, session) = self.bus.sessions.at(slot)?;
        Some(SessionRow {
            name: session.name().as_bytes(),
            client: session.owner().and_then(|client| self.bus.ctx.clients.client_number(client)),
            worker: name_of(&self.bus.ctx, Peer::Worker(session.worker())),
            rank: session.rank(),
            pending: session.pending(),
            idle: now.since(session.used()),
        })
    }

    /// Number of request slots in use in either direction, gaps included.
    pub fn request_slots(&self) -> usize {
        self.bus.requests.slots()
    }

    /// Who has made the request in a slot, if that still waits.
    pub fn asker_of(&self, slot: usize) -> Option<PeerName> {
        let (_, request) = self.bus.requests.at(slot)?;
        name_of(&self.bus.ctx, request.asker()?)
    }

    /// The request in a slot. `questions` is for all rows of this moment.
    pub fn request_row(&self, now: Moment, slot: usize, questions: &Questions) -> Option<RequestRow> {
        let (key, request) = self.bus.requests.at(slot)?;
        let (silent, expires) =
            self.bus.requests.patience_for(&self.bus.ctx, &self.bus.sessions, now, key, request, questions);
        Some(RequestRow {
            id: self.bus.requests.asker_text(key),
            method: self.bus.requests.method_of(key),
            silent,
            asker: request.asker().and_then(|asker| name_of(&self.bus.ctx, asker)),
            answerer: name_of(&self.bus.ctx, request.answerer()),
            age: self.lasted(now, request.since()),
            expires: (expires != Moment::NEVER).then(|| expires.since(now)),
            is_cancelled: request.cancelled().is_some(),
        })
    }

    /// The pool and the age of a client's request in a slot, if its client still waits.
    pub fn request_age(&self, now: Moment, slot: usize) -> Option<(PoolId, Duration)> {
        self.age_of_such(now, slot, |request| request.asker().is_some())
    }

    /// The pool and the age of a request in a slot, if a worker owes the answer: also if its client has left.
    pub fn owed_age(&self, now: Moment, slot: usize) -> Option<(PoolId, Duration)> {
        self.age_of_such(now, slot, Request::is_owed)
    }

    /// The pool and the age of the request in a slot, if a worker has it and it is such a one.
    fn age_of_such(&self, now: Moment, slot: usize, is_such: fn(&Request) -> bool) -> Option<(PoolId, Duration)> {
        let (_, request) = self.bus.requests.at(slot).filter(|(_, request)| is_such(request))?;
        let Peer::Worker(worker) = request.answerer() else { return None };
        Some((self.bus.ctx.workers.worker_name(worker)?.pool, self.lasted(now, request.since())))
    }

    /// The pool with this index.
    pub fn pool_row(&self, pool: impl Into<PoolId>) -> Option<PoolRow<'a>> {
        let pool = pool.into();
        let settings = self.bus.ctx.settings.pools.get(pool.index())?;
        let slots = || self.bus.fleets.pools().slots_of(&self.bus.ctx, pool);
        Some(PoolRow {
            settings,
            waiting: slots().filter(|slot| !slot.is_given_up() && !slot.is_out() && slot.worker().is_none()).count(),
            given_up: slots().filter(|slot| slot.is_given_up()).count(),
            out: self.bus.fleets.pools().taken_out(&self.bus.ctx, pool),
            grown: self.bus.fleets.pools().grown(pool),
            is_paused: self.bus.fleets.pools()[pool].is_paused(),
            is_asleep: self.bus.fleets.pools().is_asleep(pool),
            woken: self.bus.fleets.pools()[pool].woken(),
            wakes: self.bus.fleets.pools()[pool].wakes(),
            stats: self.bus.fleets.pools()[pool].stats(),
        })
    }

    /// Errors to requests that were for no pool, or for one of several.
    pub fn errors_of_no_pool(&self) -> &'a ReasonCounts {
        self.bus.fleets.pools().errors_of_no_pool()
    }

    /// The client with this number.
    pub fn client_numbered(&self, number: u32) -> Option<ClientKey> {
        self.bus.ctx.clients.iter().find(|(_, client)| client.identity().number == number).map(|(key, _)| key)
    }

    /// The worker at this place in a pool.
    pub fn worker_at(&self, pool: impl Into<PoolId>, place: usize) -> Option<WorkerKey> {
        let pool = pool.into();
        let is_meant = |worker: &Worker| worker.name().pool == pool && worker.name().place == place;
        self.bus.ctx.workers.iter().find(|(_, worker)| is_meant(worker)).map(|(key, _)| key)
    }

    /// The limits of the configuration.
    pub fn limits(&self) -> &'a Limits {
        &self.bus.ctx.settings.limits
    }

    /// Every reason with its count.
    pub fn reasons(self) -> impl Iterator<Item = (Reason, u64)> + use<'a> {
        Reason::ALL.iter().map(move |reason| (*reason, self.count(*reason)))
    }
}
