//! Eviction: which client is closed, or which session or request is evicted, when something is short: connections,
//! slots for sessions and requests, or memory (the memory limit).
//!
//! Slots for sessions and requests: when a table is full, the source that holds most, and within it the connection that
//! holds most, has to give something up, no matter which came first.
//!
//! Workers of their own: when a dedicated pool is full, a session of an MCP listener that has had no connection for a while
//! gives its worker up for a client that waits for one: first of the source with most of them. A source with fewer than
//! the newcomer's keeps its own. Many programs end without ending their session.
//!
//! Connections: when all slots are taken, an idle one makes room. And a listener may close idle connections. For what
//! comes over HTTP, the slots of clients as the connections, `shares.rs` says who gives way; the shell carries it out,
//! which alone knows what those do.
//!
//! Memory: above three quarters of `max_memory`, clients that hold more than their share are not read, and one that
//! makes no progress is closed now and then, so that none waits forever for those that will never finish. Above
//! `max_memory` the largest are closed until there is room again. A client that holds little is never touched, and
//! neither is a worker: a line that waits for it keeps its clients waiting (`flow/delivery.rs`).

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::Bus;
use super::flow::gate::Hold;
use super::peer::{ClientKey, Moment, Peer, Source};
use super::port::Close;
use super::report::Reason;
use super::settings::{Era, MAX_CONNECTIONS};
use super::timers::Timer;
use crate::ctx::Ctx;
use crate::fleet::admission::Admission;
use crate::index::FleetId;
use crate::peers::{Client, Clients, Phase};

/// When all slots are taken, a client that has never sent a line may be closed after this time.
const FIRST_LINE: Duration = Duration::from_millis(500);
/// And this is how long its first line may take, if it keeps sending.
const WHOLE_LINE: Duration = Duration::from_secs(10);
/// An idle client that has sent lines may be closed after this, if its source holds more than half of the slots.
const IDLE: Duration = Duration::from_secs(10);
/// A session that has had no connection for this long may have to give up its worker.
const DETACHED: Duration = Duration::from_secs(10);
/// A client is never held back if it holds no more than a chunk and some small blocks.
const SMALL_SHARE: usize = 80 << 10;
/// A client is never closed if it holds no more than this, even if many together exceed the limit.
const TRIFLE: usize = 24 << 10;
/// A share is this part of the memory, divided by all clients.
const SHARE_PART: usize = 4;
/// Time without traffic after which a client makes no progress, and of a shortage before one is closed.
const PATIENCE: Duration = Duration::from_secs(1);
/// This many of the clients held back are read anyway, in turn, so that whole lines can be finished and disconnects are
/// seen.
const CHANCES: usize = 32;
/// Length of such a turn. A client that sends nothing in it is closed.
const CHANCE: Duration = Duration::from_millis(50);
/// Interval between such closes while memory stays short.
const CLOSE_EVERY: Duration = Duration::from_millis(100);
/// At least this part of the memory in use is freed when the system refuses more.
const FREED_PART: usize = 8;

/// State of a memory shortage.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    since: Option<Moment>,
    /// When memory was last short. A pause without relief does not count: the clients held back would continue at once,
    /// and it would be short again.
    last: Moment,
    closed_at: Moment,
    /// Clients held back that have their turn, and since when.
    chances: Vec<(ClientKey, Moment)>,
    /// The index of the last one that had it.
    last_chance: usize,
    /// It is short now.
    is_on: bool,
}

impl Shortage {
    /// Whether memory is short now.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Lets some of the clients held back be read for a while, in turn. Returns those that had their turn and sent
    /// nothing; one that waits for memory keeps its turn until there is some.
    fn rotate_chances(&mut self, ctx: &Ctx, held_back: &[ClientKey], waiting: &[Peer]) -> Vec<ClientKey> {
        let (over, mut running): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.chances).into_iter().partition(|(client, since)| {
                ctx.time.now() >= since.after(CHANCE) && !waiting.contains(&Peer::Client(*client))
            });
        running.retain(|(client, _)| held_back.contains(client));
        let missed = over.iter().filter(|(client, since)| {
            held_back.contains(client) && ctx.clients.get(*client).is_some_and(|client| client.received_at() < *since)
        });
        let missed: Vec<ClientKey> = missed.map(|(client, _)| *client).collect();
        // Round robin by their places in the table.
        let after = held_back.partition_point(|client| client.index() <= self.last_chance);
        for client in held_back[after..].iter().chain(&held_back[..after]) {
            if running.len() >= CHANCES {
                break;
            }
            let waits = ctx.clients.get(*client).is_none_or(|client| client.end().gate.waits());
            if !waits && !missed.contains(client) && !running.iter().any(|(lucky, _)| lucky == client) {
                running.push((*client, ctx.time.now()));
                self.last_chance = client.index();
            }
        }
        self.chances = running;
        missed
    }
}

/// A client and what it holds.
struct Holder {
    client: ClientKey,
    bytes: usize,
    moves: bool,
    received_at: Moment,
}

/// How much one client may hold before it is held back or closed.
fn share(max_memory: usize, clients: usize, least: usize) -> usize {
    (max_memory / (SHARE_PART * clients.max(1))).max(least)
}

impl Client {
    fn has_spoken(&self) -> bool {
        self.end().stream.spoke_at().is_some()
    }

    fn has_requests(&self) -> bool {
        !self.end().asked.is_empty() || self.end().to_answer.count() > 0
    }

    /// Whether no other peer depends on it.
    fn does_nothing(&self) -> bool {
        let is_free = !self.has_requests() && self.end().sessions.is_empty() && self.end().gate.is_open();
        is_free && self.phase() == Phase::Open && !self.identity().stdio && !self.is_mcp_session()
    }

    /// Whether it is a session of an MCP listener, which tracks idle sessions itself: they may have open streams.
    fn is_mcp_session(&self) -> bool {
        self.mcp().era == Some(Era::Legacy)
    }
}

/// A session that is evicted from its worker of a pool in favor of another client.
pub(super) struct Victim {
    pub client: ClientKey,
    pub fleet: FleetId,
    /// Since when it has had no connection.
    pub since: Moment,
}

impl Bus {
    /// Closes a client that was idle for too long. Returns when to check it again.
    pub(super) fn tick_idle(&mut self, key: ClientKey) -> Option<Moment> {
        let now = self.ctx.time.now();
        let client = self.ctx.clients.get(key)?;
        let due = idle_deadline(&self.ctx, client)?;
        if due > now {
            return Some(due);
        }
        let after = self.ctx.settings.listeners[client.identity().listener].idle_timeout?;
        // It may have sent something that was not read yet.
        if client.has_requests() || !client.end().sessions.is_empty() || !client.end().gate.is_open() {
            return Some(now.after(after / 8));
        }
        let text = format!("it has been idle for {} s (idle_timeout_sec)", after.as_secs());
        self.ctx.report(Reason::ClientIdle, Some(Peer::Client(key)), || format!("a client is closed: {text}"));
        self.close_orderly(key, Reason::ClientIdle, &text);
        None
    }

    /// Closes the sessions that had to give up their workers in this call.
    pub(super) fn end_evicted(&mut self) {
        while !self.ctx.evictions.is_empty() {
            let Victim { client, since, .. } = self.ctx.evictions.remove(0);
            let seconds = self.ctx.time.now().since(since).as_secs();
            self.end_client(client, Reason::SessionEvicted, || {
                format!(
                    "a session without a connection for {seconds} s gives up its worker, since all workers of the \
                     pool are in use and another client needs one"
                )
            });
        }
    }

    /// A connection waits for a slot.
    pub(super) fn on_connection_waits(&mut self) {
        self.fleets.admission().set_awaited(self.ctx.clients.free_slots() == 0);
        self.make_room_for_a_connection();
    }

    /// All slots are taken: closes an idle client to make room if others wait for a slot. One at a time, and those
    /// without a line first.
    pub(super) fn make_room_for_a_connection(&mut self) {
        let now = self.ctx.time.now();
        if self.ctx.clients.free_slots() > 0 {
            return;
        }
        if !self.fleets.admission().is_awaited() {
            // Those that can be refused with an answer are only counted here.
            return self.ctx.timers.arm(Timer::Slots, now.after(FIRST_LINE));
        }
        let idle = || {
            let idle = self.ctx.clients.iter().filter(|(_, client)| client.does_nothing());
            idle.filter_map(|(key, client)| {
                let (since, due) = idle_since(self.fleets.admission(), &self.ctx, client)?;
                Some((client.has_spoken(), since, due, key))
            })
        };
        let victim = idle().filter(|(_, _, due, _)| *due <= now).min_by_key(|(spoke, since, ..)| (*spoke, *since));
        let Some((spoke, since, _, key)) = victim else {
            // Another may become idle before.
            let next = idle().map(|(_, _, due, _)| due).min().unwrap_or(Moment::NEVER);
            return self.ctx.timers.arm(Timer::Slots, next.min(now.after(FIRST_LINE)));
        };
        let slots = self.ctx.clients.capacity();
        let what = if spoke { "has been idle" } else { "has sent no line" };
        self.ctx.report(Reason::ClientIdle, Some(Peer::Client(key)), || {
            let seconds = now.since(since).as_secs_f32();
            format!("a client that {what} for {seconds:.1} s is closed, since all {slots} slots are taken")
        });
        self.close_client(key, Close::Now, Reason::ClientIdle);
    }

    /// Memory is short, or available again if no peer is named.
    pub(super) fn on_memory(&mut self, used: usize, held: &[(Peer, usize)], waiting: &[Peer]) {
        self.shortage.is_on = !held.is_empty();
        if held.is_empty() {
            self.shortage.chances.clear();
            for client in self.ctx.clients.keys() {
                hold_back(&mut self.ctx, client, false);
            }
            return;
        }
        let (now, shortage) = (self.ctx.time.now(), &mut self.shortage);
        if now.since(shortage.last) > PATIENCE {
            shortage.since = None;
        }
        shortage.last = now;
        let lasts = now >= shortage.since.get_or_insert(now).after(PATIENCE);
        let (mut holders, leaving) = holders(&self.ctx, held);
        let missed = self.hold_largest_back(&holders, waiting, lasts);
        let most = self.ctx.settings.limits.max_memory;
        let text = |bytes: usize| {
            format!(
                "it held {bytes} bytes when {used} bytes of max_memory, {most}, were in use; finish lines and read \
                 answers sooner, or raise limits.max_memory"
            )
        };
        for holder in holders.iter().filter(|holder| !holder.moves && missed.contains(&holder.client)) {
            self.close_holder(holder, &text(holder.bytes));
        }
        let share_to_keep = share(most, self.ctx.clients.len(), TRIFLE);
        let due = lasts && now >= self.shortage.closed_at.after(CLOSE_EVERY);
        // Before the limit is reached, at least one is closed, and as many as needed for those with a chance to finish
        // their lines: they need larger blocks for it. The one that was silent for longest is evicted first.
        let evicts_one = used <= most && due;
        if evicts_one {
            holders.sort_by_key(|holder| (holder.moves, holder.received_at));
        }
        holders.retain(|holder| holder.bytes > share_to_keep && (used > most || due && !holder.moves));
        let too_much = used.saturating_sub(leaving + most / 8 * 7);
        if self.close_some(&holders, too_much.max(usize::from(evicts_one)), text) {
            self.shortage.closed_at = now;
        }
    }

    /// Closes the first of these clients, until `bytes` bytes are freed. Returns whether any had to be closed.
    fn close_some(&mut self, holders: &[Holder], bytes: usize, text: impl Fn(usize) -> String) -> bool {
        let mut freed = 0;
        for holder in holders {
            if freed >= bytes {
                break;
            }
            self.close_holder(holder, &text(holder.bytes));
            freed += holder.bytes;
        }
        freed > 0
    }

    /// Holds back clients above their share, except those that have a chance. Returns those that did not use theirs.
    fn hold_largest_back(&mut self, holders: &[Holder], waiting: &[Peer], lasts: bool) -> Vec<ClientKey> {
        let share = share(self.ctx.settings.limits.max_memory, self.ctx.clients.len(), SMALL_SHARE);
        let mut too_much: Vec<ClientKey> =
            holders.iter().filter(|holder| holder.bytes > share).map(|holder| holder.client).collect();
        too_much.sort_unstable_by_key(|client| client.index());
        let missed = if lasts { self.shortage.rotate_chances(&self.ctx, &too_much, waiting) } else { Vec::new() };
        for client in self.ctx.clients.keys() {
            let holds_too_much = too_much.binary_search_by_key(&client.index(), |client| client.index()).is_ok();
            let has_chance = self.shortage.chances.iter().any(|(lucky, _)| *lucky == client);
            hold_back(&mut self.ctx, client, holds_too_much && !has_chance);
        }
        missed
    }

    /// The system has refused memory: for bytes of `client`, which are lost, or for bytes that can wait.
    pub(super) fn on_memory_refused(&mut self, client: Option<ClientKey>, held: &[(Peer, usize)]) {
        let text = |bytes: usize| {
            let why = if client.is_some() { " for what it sends or is sent" } else { "" };
            format!(
                "the system has no memory left{why}, and it held {bytes} bytes; allow the daemon more (ulimit -v, \
                 MemoryMax), or lower limits.max_memory"
            )
        };
        let (mut holders, leaving) = holders(&self.ctx, held);
        if let Some(client) = client {
            let bytes = holders.first().map_or(0, |holder| holder.bytes);
            return self
                .close_holder(&Holder { client, bytes, moves: false, received_at: self.ctx.time.now() }, &text(bytes));
        }
        let all: usize = held.iter().map(|(_, bytes)| bytes).sum();
        holders.retain(|holder| holder.bytes > TRIFLE);
        self.close_some(&holders, (all / FREED_PART + 1).saturating_sub(leaving), text);
    }

    fn close_holder(&mut self, holder: &Holder, text: &str) {
        let Some(client) = self.ctx.clients.get(holder.client).filter(|client| client.phase() < Phase::Closing) else {
            return;
        };
        let (phase, queued) = (client.phase(), client.end().output.queued());
        // Its own output may be all that it holds: then it can be sent nothing more.
        let can_be_notified = queued == 0 || queued < holder.bytes / 4;
        self.ctx
            .report(Reason::MemoryLimit, Some(Peer::Client(holder.client)), || format!("a client is closed: {text}"));
        match phase {
            Phase::Open | Phase::HalfClosed if can_be_notified => {
                self.close_orderly(holder.client, Reason::MemoryLimit, text);
            }
            Phase::Refusing if can_be_notified => self.close_client(holder.client, Close::Flush, Reason::MemoryLimit),
            _ => self.close_client(holder.client, Close::Now, Reason::MemoryLimit),
        }
    }
}

/// Since when a client is idle, and when it may be closed for that while all slots are taken. One that has sent
/// lines is closed only if its source has more than half of all connections.
fn idle_since(admission: &Admission, ctx: &Ctx, client: &Client) -> Option<(Moment, Moment)> {
    let active_at = client.active_at();
    if client.has_spoken() {
        let has_most = admission.has_most(ctx, client.identity().source_use);
        return has_most.then(|| (active_at, active_at.after(IDLE)));
    }
    let due = match client.end().stream.is_mid_line() {
        false => client.identity().opened.after(FIRST_LINE),
        // Its first line may be long and still in progress; but it may not trickle in byte by byte forever.
        true => active_at.after(FIRST_LINE).min(client.identity().opened.after(WHOLE_LINE)),
    };
    Some((client.identity().opened, due))
}

/// When a client must be checked for being idle, if its listener limits that.
pub(super) fn idle_deadline(ctx: &Ctx, client: &Client) -> Option<Moment> {
    let after = ctx.settings.listener(client.identity().listener)?.idle_timeout?;
    (client.phase() == Phase::Open && !client.is_mcp_session()).then(|| client.active_at().after(after))
}

/// A session has no connection any more, or one again.
pub(super) fn on_detached(ctx: &mut Ctx, key: ClientKey, is_detached: bool) {
    let since = is_detached.then(|| ctx.time.now());
    if let Some(client) = ctx.clients.get_mut(key).filter(|client| client.is_mcp_session()) {
        client.detach(since);
    }
}

/// Whether a session could be ended to make room for another one.
pub(super) fn has_detached_session(ctx: &Ctx) -> bool {
    ctx.clients
        .iter()
        .any(|(key, _)| ctx.clients.detached_since(key).is_some_and(|at| at.after(DETACHED) <= ctx.time.now()))
}

/// The session that has to give up its worker of a pool is closed at the end of this call, if one has been without a
/// connection for long enough. Returns whether one is.
pub(super) fn evict_detached(ctx: &mut Ctx, fleet: FleetId, asker: Source) -> bool {
    let found = eviction_victim(ctx, fleet, Some(asker));
    let Some((since, client)) = found.filter(|(since, _)| since.after(DETACHED) <= ctx.time.now()) else {
        return false;
    };
    ctx.evictions.push(Victim { client, fleet, since });
    ctx.workers_changed = true;
    true
}

/// The session that has to give up its worker of a pool for a client of this source, or of any, and since when it has
/// had the worker, but no connection. One that has just got it may have a request that has waited for it.
fn eviction_victim(ctx: &Ctx, fleet: FleetId, asker: Option<Source>) -> Option<(Moment, ClientKey)> {
    let workers = || ctx.workers.iter().filter(|(_, worker)| worker.fleet() == fleet);
    let owners = || workers().filter_map(|(_, it)| Some((it.owner()?, it.ownership().since())));
    let sources = owners().filter_map(|(owner, _)| Some(ctx.clients.identity(owner)?.origin.source()));
    let mut counts: BTreeMap<Source, usize> = BTreeMap::new();
    sources.for_each(|source| *counts.entry(source).or_default() += 1);
    let count = |source: &Source| counts.get(source).copied().unwrap_or_default();
    let least = asker.as_ref().map_or(0, count);
    // Those that may have to already go first, then the one that will soonest.
    let rank = |since: Moment, has_most: usize| match since.after(DETACHED) > ctx.time.now() {
        false => (false, Reverse(has_most), since),
        true => (true, Reverse(0), since),
    };
    let is_evicted = |owner: &ClientKey| ctx.evictions.iter().any(|evicted| evicted.client == *owner);
    let candidates = owners().filter(|(owner, _)| !is_evicted(owner)).filter_map(|(owner, claimed)| {
        let source = ctx.clients.identity(owner)?.origin.source();
        let (since, has_most) = (ctx.clients.detached_since(owner)?.max(claimed), count(&source));
        (has_most >= least).then_some((rank(since, has_most), owner))
    });
    candidates.min().map(|((.., since), owner)| (since, owner))
}

/// When a session gives up its worker of a pool at the earliest, if one can: for a client of this source, or of any.
pub(super) fn gives_up_at(ctx: &Ctx, fleet: FleetId, asker: Option<Source>) -> Option<Moment> {
    Some(eviction_victim(ctx, fleet, asker)?.0.after(DETACHED))
}

/// The clients that hold memory, in the order in which they are closed, and how much is freed with those already
/// being closed.
fn holders(ctx: &Ctx, held: &[(Peer, usize)]) -> (Vec<Holder>, usize) {
    let mut leaving = 0;
    let mut holders = Vec::with_capacity(held.len());
    for (peer, bytes) in held {
        let Peer::Client(key) = peer else { continue };
        let Some(client) = ctx.clients.get(*key).filter(|client| client.phase() < Phase::Closing) else {
            leaving += bytes;
            continue;
        };
        // A client that waits for a worker has sent whole lines, and cannot influence when they are taken.
        let moves = ctx.time.now().since(client.progress_at()) < PATIENCE || client.end().gate.waits();
        holders.push(Holder { client: *key, bytes: *bytes, moves, received_at: client.received_at() });
    }
    holders.sort_by_key(|holder| (holder.moves, Reverse(holder.bytes)));
    (holders, leaving)
}

fn hold_back(ctx: &mut Ctx, key: ClientKey, held_back: bool) {
    let Some(client) = ctx.clients.get(key).filter(|client| client.phase() == Phase::Open) else { return };
    match (client.end().gate.has(Hold::Memory), held_back) {
        (false, true) => ctx.close_gate(key.into(), Hold::Memory),
        (true, false) => ctx.open_gate(key.into(), Hold::Memory),
        _ => {}
    }
}

impl Clients {
    /// The connection that holds most, if that is not `asker`: of the source that holds most, its own if no other one
    /// holds more. `of` counts what a connection holds. Tables are rarely full, so nothing is counted before.
    pub(super) fn heaviest(&self, asker: ClientKey, of: impl Fn(&Client) -> usize) -> Option<ClientKey> {
        let own = self.get(asker)?;
        let mut together = vec![0; MAX_CONNECTIONS];
        for (_, client) in self.iter() {
            together[client.identity().source_use.index()] += of(client);
        }
        // Among equal sources the asker's is evicted from first, then the one with the lowest slot.
        let order = |client: &Client| {
            let (source, index) = (client.identity().source_use, client.identity().source_use.index());
            (Reverse(together[index]), source != own.identity().source_use, index, Reverse(of(client)))
        };
        let (key, heaviest) = self.iter().min_by_key(|(_, client)| order(client))?;
        // If the asker held as many afterwards as the other one, nothing would be gained.
        (heaviest.identity().source_use != own.identity().source_use || of(heaviest) > of(own) + 1).then_some(key)
    }

    /// Whether a client is a session without a connection and without a pending request.
    fn detached_since(&self, key: ClientKey) -> Option<Moment> {
        let client = self.get(key).filter(|client| client.phase() == Phase::Open && client.is_mcp_session())?;
        client.detached().filter(|_| client.end().asked.is_empty())
    }
}
