//! Who uses how much: by the source of clients, by the name of their tokens, by that which a proxy gives them, and by pool, in the last minute and since the
//! start.
//!
//! A client counts what it uses, and for that the usual line pays one addition (`Meter`); what a pool has used is known from
//! its counters and its workers. The table takes over what is new when a connection or a worker ends, and at the beginning of
//! each interval; whoever asks before gets both. Requests that are not answered yet count up to now.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::iter::Sum;
use core::ops::{AddAssign, Sub};
use core::time::Duration;

use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::index::PoolId;
use crate::origin::Origin;
use crate::peer::{ClientKey, Moment, Peer, Source, WorkerKey};
use crate::peers::Endpoint;
use crate::requests::Requests;
use crate::view::View;

/// Names of a kind that are kept apart. The lightest quarter of them becomes one row when there are more.
const MOST_NAMES: usize = 1024;
/// The intervals that are kept: the last minute.
const INTERVALS: usize = 6;
/// The shortest interval. A caller that marks every ten seconds may be slightly early.
const SHORTEST: Duration = Duration::from_secs(9);
/// What "now" means in [`Consumer::now`].
const RECENT: Duration = Duration::from_secs(60);

/// How much somebody has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Requests that were passed on to workers.
    pub requests: u64,
    /// Bytes that were taken from it and sent to it: by its clients, or if it is a pool, by its workers.
    pub bytes: u64,
    /// How long workers had its requests, all together: three requests at once for a second are three seconds. It ends
    /// when nobody waits for the answer any more. It does not advance while the machine is suspended; but a pool's comes from its
    /// counters, which count that time once a request has ended.
    pub worker_time: Duration,
}

impl Used {
    const NOTHING: Self = Self { requests: 0, bytes: 0, worker_time: Duration::ZERO };

    /// The largest part of anything that it has used of `all`: from 0 to 1.
    fn share_of(&self, all: &Self) -> f64 {
        let part = |used: f64, of: f64| if of > 0.0 { used / of } else { 0.0 };
        let (time, of_time) = (self.worker_time.as_secs_f64(), all.worker_time.as_secs_f64());
        let counted = part(self.requests as f64, all.requests as f64).max(part(self.bytes as f64, all.bytes as f64));
        counted.max(part(time, of_time))
    }
}

impl AddAssign for Used {
    fn add_assign(&mut self, more: Self) {
        self.requests += more.requests;
        self.bytes += more.bytes;
        self.worker_time += more.worker_time;
    }
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            bytes: self.bytes.saturating_sub(before.bytes),
            worker_time: self.worker_time.saturating_sub(before.worker_time),
        }
    }
}

impl Sum for Used {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::NOTHING, |mut sum, one| {
            sum += one;
            sum
        })
    }
}

/// What usage is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageKind {
    /// Where clients come from: an address without its port, a user of this machine, or neither.
    Source,
    /// The names of the tokens that clients have shown.
    Token,
    /// The names that trusted proxies give to clients in headers.
    User,
    /// Pools.
    Pool,
}

impl UsageKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Source, Self::Token, Self::User, Self::Pool];

    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Token => "token",
            Self::User => "user",
            Self::Pool => "pool",
        }
    }
}

/// Whose usage is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Source(Source),
    Token(Arc<str>),
    User(Arc<str>),
    Pool(PoolId),
}

impl Who {
    fn kind(&self) -> UsageKind {
        match self {
            Self::Source(_) => UsageKind::Source,
            Self::Token(_) => UsageKind::Token,
            Self::User(_) => UsageKind::User,
            Self::Pool(_) => UsageKind::Pool,
        }
    }
}

/// The names that a client's usage is counted by.
fn names_of(origin: &Origin) -> impl Iterator<Item = Who> + use<> {
    let source = Who::Source(origin.place.source());
    let (token, user) = (origin.names.token.clone(), origin.names.user.clone());
    core::iter::once(source).chain(token.map(Who::Token)).chain(user.map(Who::User))
}

/// The usage of one name, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub kind: UsageKind,
    /// None for all others of the kind together.
    pub who: Option<Who>,
    /// In the last 50 to 60 s.
    pub now: Used,
    /// Since the start, or since its name came anew.
    pub all: Used,
}

/// What an endpoint has used, beside its traffic.
pub(crate) struct Meter {
    /// Nanoseconds in which workers had its requests, if it is a client.
    nanoseconds: u64,
    /// What the table has already, with what had passed of the time of pending requests.
    noted: Used,
}

impl Meter {
    pub(crate) const NOTHING: Self = Self { nanoseconds: 0, noted: Used::NOTHING };

    /// A worker has had a request of it from then until now, when nobody waits for the answer any more.
    #[inline(always)]
    pub(crate) fn add(&mut self, since: Moment, now: Moment) {
        self.nanoseconds += now.0.saturating_sub(since.0);
    }
}

/// What a client has used, whose pending requests have taken so long.
fn of_client(end: &Endpoint, pending: Duration) -> Used {
    Used {
        requests: end.traffic.asked,
        bytes: end.traffic.bytes_in + end.traffic.bytes_out,
        worker_time: Duration::from_nanos(end.meter.nanoseconds) + pending,
    }
}

/// The part of a pool's usage that is counted at one of its workers.
fn of_worker(end: &Endpoint) -> Used {
    Used { bytes: end.traffic.bytes_in + end.traffic.bytes_out, ..Used::NOTHING }
}

/// The other part of it.
fn of_pool(fleets: &Fleets, pool: PoolId, pending: Used) -> Used {
    let (requests, worker_time) = fleets.pools()[pool].stats().ended();
    let mut used = Used { requests, worker_time, ..Used::NOTHING };
    used += pending;
    used
}

/// What is pending, and how long workers have had it: of each client's slot, and of each pool.
struct Pending {
    clients: Vec<Duration>,
    pools: Vec<Used>,
}

impl Pending {
    fn of(ctx: &Ctx, requests: &Requests, now: Moment) -> Self {
        let clients = vec![Duration::ZERO; ctx.clients.slots()];
        let mut all = Self { clients, pools: vec![Used::NOTHING; ctx.settings.pools.len()] };
        for (_, request) in requests.iter() {
            let (Some(client), Peer::Worker(worker)) = (request.waiting_client(), request.answerer()) else { continue };
            let worker_time = now.since(request.since());
            if let Some(time) = all.clients.get_mut(client.index()) {
                *time += worker_time;
            }
            let pool = ctx.workers.worker_name(worker).map(|worker| worker.pool);
            if let Some(pool) = pool.and_then(|pool| all.pools.get_mut(pool.index())) {
                *pool += Used { requests: 1, bytes: 0, worker_time };
            }
        }
        all
    }
}

/// The usage of one name.
#[derive(Clone, Copy, Default)]
struct Row {
    all: Used,
    recent: [Used; INTERVALS],
}

impl AddAssign for Row {
    fn add_assign(&mut self, more: Self) {
        self.all += more.all;
        self.recent.iter_mut().zip(more.recent).for_each(|(sum, more)| *sum += more);
    }
}

/// The usage of all names.
#[derive(Default)]
pub(crate) struct Usage {
    rows: [BTreeMap<Who, Row>; UsageKind::ALL.len()],
    /// Of names that were the lightest when there were too many.
    others: [Row; UsageKind::ALL.len()],
    /// When each interval began. The one after the current is the oldest.
    begun: [Moment; INTERVALS],
    current: usize,
    /// What the table has of each pool, but for what is counted at workers.
    pools: Vec<Used>,
}

impl Usage {
    /// Something more was used, under these names.
    fn note(&mut self, names: impl Iterator<Item = Who>, more: Used) {
        if more == Used::NOTHING {
            return;
        }
        for who in names {
            let current = self.current;
            let row = self.row(who);
            row.all += more;
            row.recent[current] += more;
        }
    }

    /// The row of a name. If there are too many, the lightest become one.
    fn row(&mut self, who: Who) -> &mut Row {
        let kind = who.kind() as usize;
        let (rows, others) = (&mut self.rows[kind], &mut self.others[kind]);
        if rows.len() >= MOST_NAMES && !rows.contains_key(&who) {
            let sum: Used = rows.values().map(|row| row.all).sum();
            let mut names: Vec<_> = rows.iter().map(|(who, row)| (row.all.share_of(&sum), who.clone())).collect();
            names.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
            for (_, who) in names.into_iter().take(MOST_NAMES / 4) {
                *others += rows.remove(&who).unwrap_or_default();
            }
        }
        rows.entry(who).or_default()
    }

    /// A pool was removed, after these requests and this time of its workers. Its usage moves to the row for all others,
    /// because a new pool may reuse its index.
    pub(crate) fn forget_pool(&mut self, pool: PoolId, (requests, worker_time): (u64, Duration)) {
        let noted = self.pools.get_mut(pool.index()).map(core::mem::take).unwrap_or_default();
        let used = Used { requests, worker_time, ..Used::NOTHING };
        self.note(core::iter::once(Who::Pool(pool)), used - noted);
        let kind = UsageKind::Pool as usize;
        self.others[kind] += self.rows[kind].remove(&Who::Pool(pool)).unwrap_or_default();
    }

    /// Whether an interval counts as "now".
    fn is_recent(&self, at: usize, now: Moment) -> bool {
        now.since(self.begun[at]) <= RECENT
    }
}

/// A client leaves: its names keep what it has used.
pub(crate) fn note_client(ctx: &mut Ctx, key: ClientKey) {
    note_client_with(ctx, key, Duration::ZERO);
}

fn note_client_with(ctx: &mut Ctx, key: ClientKey, pending: Duration) {
    let Some(client) = ctx.clients.get_mut(key) else { return };
    let used = of_client(client.end(), pending);
    let more = used - client.end().meter.noted;
    if more != Used::NOTHING {
        ctx.usage.note(names_of(&client.identity().origin), more);
        client.end_mut().meter.noted = used;
    }
}

/// A worker ends: its pool keeps what it has used.
pub(crate) fn note_worker(ctx: &mut Ctx, key: WorkerKey) {
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    let used = of_worker(worker.end());
    let more = used - worker.end().meter.noted;
    ctx.usage.note(core::iter::once(Who::Pool(worker.fleet().pool)), more);
    worker.end_mut().meter.noted = used;
}

/// Begins an interval, unless the current one has just begun.
pub(crate) fn mark(ctx: &mut Ctx, fleets: &Fleets, requests: &Requests, now: Moment) {
    if now.since(ctx.usage.begun[ctx.usage.current]) < SHORTEST {
        return;
    }
    let pending = Pending::of(ctx, requests, now);
    for client in ctx.clients.keys() {
        note_client_with(ctx, client, pending.clients[client.index()]);
    }
    ctx.workers.keys().into_iter().for_each(|worker| note_worker(ctx, worker));
    let usage = &mut ctx.usage;
    usage.pools.resize(pending.pools.len(), Used::NOTHING);
    for (at, pending) in pending.pools.into_iter().enumerate() {
        let used = of_pool(fleets, PoolId::at(at), pending);
        let before = core::mem::replace(&mut usage.pools[at], used);
        usage.note(core::iter::once(Who::Pool(PoolId::at(at))), used - before);
    }
    usage.current = (usage.current + 1) % INTERVALS;
    usage.begun[usage.current] = now;
    let rows = usage.rows.iter_mut().flat_map(BTreeMap::values_mut);
    rows.chain(&mut usage.others).for_each(|row| row.recent[usage.current] = Used::NOTHING);
}

/// What is known of one name while the rows are put together.
#[derive(Default)]
struct Sums {
    now: Used,
    all: Used,
}

impl View<'_> {
    /// The `most` heaviest names of each kind, and a row for all others of it if there are any. The heaviest has the
    /// largest part of the requests, the bytes or the time of workers: of those of the last minute, and among names with
    /// the same part of these, since the start.
    pub fn consumers(&self, now: Moment, most: usize) -> Vec<Consumer> {
        let ctx = &self.bus.ctx;
        let usage = &ctx.usage;
        let recent = |row: &Row| -> Used {
            (0..INTERVALS).filter(|at| usage.is_recent(*at, now)).map(|at| row.recent[at]).sum()
        };
        let mut sums: BTreeMap<Who, Sums> = BTreeMap::new();
        for (who, row) in usage.rows.iter().flatten() {
            sums.insert(who.clone(), Sums { now: recent(row), all: row.all });
        }
        // What the table has not yet is of the current interval.
        let is_recent = usage.is_recent(usage.current, now);
        let mut add = |who: Who, more: Used| {
            let sum = sums.entry(who).or_default();
            sum.all += more;
            sum.now += if is_recent { more } else { Used::NOTHING };
        };
        let pending = Pending::of(ctx, &self.bus.requests, now);
        for (key, client) in ctx.clients.iter() {
            let more = of_client(client.end(), pending.clients[key.index()]) - client.end().meter.noted;
            names_of(&client.identity().origin).for_each(|who| add(who, more));
        }
        for (_, worker) in ctx.workers.iter() {
            add(Who::Pool(worker.fleet().pool), of_worker(worker.end()) - worker.end().meter.noted);
        }
        for (at, pending) in pending.pools.into_iter().enumerate() {
            let noted = usage.pools.get(at).copied().unwrap_or_default();
            add(Who::Pool(PoolId::at(at)), of_pool(&self.bus.fleets, PoolId::at(at), pending) - noted);
        }
        let mut rows = Vec::new();
        for kind in UsageKind::ALL {
            let others = &usage.others[kind as usize];
            let of_kind = sums.iter().filter(|(who, sums)| who.kind() == kind && sums.all != Used::NOTHING);
            let mut of_kind: Vec<(&Who, &Sums)> = of_kind.collect();
            let others = Sums { now: recent(others), all: others.all };
            let everybody = || of_kind.iter().map(|(_, sums)| *sums).chain([&others]);
            let of_now: Used = everybody().map(|sums| sums.now).sum();
            let of_all: Used = everybody().map(|sums| sums.all).sum();
            let weight = |sums: &Sums| (sums.now.share_of(&of_now), sums.all.share_of(&of_all));
            of_kind.sort_by(|(one, its), (other, theirs)| {
                let (its, theirs) = (weight(its), weight(theirs));
                let heavier: Ordering = theirs.0.total_cmp(&its.0).then(theirs.1.total_cmp(&its.1));
                heavier.then_with(|| one.cmp(other))
            });
            let consumer = |who, sums: &Sums| Consumer { kind, who, now: sums.now, all: sums.all };
            let light = of_kind.split_off(most.min(of_kind.len()));
            rows.extend(of_kind.iter().map(|(who, sums)| consumer(Some((*who).clone()), sums)));
            let rest = || light.iter().map(|(_, sums)| *sums).chain([&others]);
            let rest = Sums { now: rest().map(|sums| sums.now).sum(), all: rest().map(|sums| sums.all).sum() };
            rows.extend((rest.all != Used::NOTHING).then(|| consumer(None, &rest)));
        }
        rows
    }
}
