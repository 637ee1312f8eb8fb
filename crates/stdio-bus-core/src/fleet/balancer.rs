//! Which worker gets a message that belongs to no session yet: the groups of slots, and how one of them is picked (spec
//! 3.3, 6.1; decisions 6, 7).
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use ndjson_scan::decoded;

use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::eras::expect_modern;
use crate::fleet::eras::lending::{lent_worker, preferred_in};
use crate::fleet::pool::Pools;
use crate::index::{FleetId, GroupId, ListenerId, PoolId, SlotId};
use crate::message::{Parsed, Refusal};
use crate::origin::{NameAuthority, Origin};
use crate::peer::{ClientKey, Moment, WorkerKey};
use crate::report::Reason;
use crate::settings::{self, Assignment, Era, Settings};
use crate::view::View;
use crate::worker::Worker;

/// The workers that a message may go to: those of one fleet, or of the fleets of several pools.
#[derive(Default)]
pub(crate) struct Group {
    /// The slots whose workers take turns, in the order of the configuration.
    slots: Vec<SlotId>,
    fleets: Vec<FleetId>,
    /// How one of them is chosen.
    assignment: Assignment,
    /// Where round robin continues.
    cursor: usize,
    /// Since when a line waits for one of its workers, if any does.
    vacant_since: Option<Moment>,
    /// Its workers are lent for the time of a request.
    lends: bool,
    /// Some client listens to one of its workers (`subscriptions.rs`).
    has_listeners: bool,
}

impl Group {
    pub(crate) fn slots(&self) -> &[SlotId] {
        &self.slots
    }

    /// How one of them is chosen.
    pub(crate) fn assignment(&self) -> Assignment {
        self.assignment
    }

    /// Whether its workers are lent for the time of a request.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Its only fleet, if the workers of that are lent.
    pub(crate) fn lent(&self) -> Option<FleetId> {
        self.only_fleet().filter(|_| self.lends)
    }

    /// Since when a line waits for one of its workers, as one does now.
    fn vacant_since(&mut self, now: Moment) -> Moment {
        *self.vacant_since.get_or_insert(now)
    }

    /// One of its workers was started.
    pub(crate) fn end_vacancy(&mut self) {
        self.vacant_since = None;
    }

    /// The slot whose turn it is.
    pub(crate) fn next(&self) -> Option<SlotId> {
        self.slots.get(self.cursor).copied()
    }

    /// That slot has had its turn.
    pub(crate) fn advance(&mut self) {
        self.cursor = if self.cursor + 1 < self.slots.len() { self.cursor + 1 } else { 0 };
    }

    /// Whether each of its clients has a worker for itself, or is lent one.
    pub(crate) fn is_dedicated(&self) -> bool {
        self.assignment == Assignment::Dedicated
    }

    /// Whether some client listens to one of its workers.
    #[inline(always)]
    pub(crate) fn has_listeners(&self) -> bool {
        self.has_listeners
    }

    /// Some client listens to one of its workers, or none does.
    pub(crate) fn set_listeners(&mut self, has_any: bool) {
        self.has_listeners = has_any;
    }

    /// Whether a fleet's workers are among its own.
    pub(crate) fn has(&self, fleet: FleetId) -> bool {
        self.fleets.contains(&fleet)
    }

    /// The fleets of its workers, each once.
    pub(crate) fn fleets(&self) -> impl Iterator<Item = FleetId> {
        self.fleets.iter().copied()
    }

    /// Those of the pools that are offered, with workers for clients of this era. Dedicated pools are left out where there are
    /// others, since joining one by accident would start a process.
    fn new(settings: &Settings, offered: impl IntoIterator<Item = PoolId>, era: Era) -> Self {
        let offered: Vec<FleetId> = offered.into_iter().map(|pool| pool.of(era)).collect();
        let assignment = |fleet: &FleetId| settings.pools[*fleet].assignment;
        let shared = offered.iter().copied().filter(|fleet| assignment(fleet) != Assignment::Dedicated);
        let mut fleets: Vec<FleetId> = shared.collect();
        if fleets.is_empty() {
            fleets.extend(offered.first());
        }
        let mut group = Self {
            assignment: fleets.iter().map(assignment).max().unwrap_or_default(),
            lends: fleets.iter().any(|fleet| settings.pools[*fleet].lends(era)),
            fleets,
            ..Self::default()
        };
        group.fit(|fleet| settings.pools[fleet].open_slots(era));
        group
    }

    /// The workers of so many slots of each fleet take turns.
    pub(super) fn fit(&mut self, slots: impl Fn(FleetId) -> usize) {
        let of_fleet = |fleet: FleetId| (0..slots(fleet)).map(move |number| fleet.slot(number));
        self.slots = self.fleets.iter().copied().flat_map(of_fleet).collect();
        if self.cursor >= self.slots.len() {
            self.cursor = 0;
        }
    }

    /// The only fleet of its workers, if there is just one.
    pub(crate) fn only_fleet(&self) -> Option<FleetId> {
        if let [fleet] = self.fleets[..] { Some(fleet) } else { None }
    }

    /// Whether each client of a group has a worker of its own until it ends. Its tasks are there, and those of others are
    /// in processes that belong to others.
    pub(crate) fn gives_own_workers(&self) -> bool {
        self.is_dedicated() && !self.lends()
    }

    /// When a group of shared workers has the next worker, not counting slots that were given up.
    fn next_of_shared(&self, ctx: &Ctx, pools: &Pools) -> String {
        let slots = || self.slots.iter().map(|slot| &pools[*slot]);
        let due = slots().filter(|slot| !slot.restarts.is_given_up()).filter_map(|slot| slot.restarts.due()).min();
        let asked = slots().filter_map(|slot| Some(ctx.workers.get(slot.worker?)?.is_asked()));
        match (due, asked.max()) {
            (Some(at), _) => format!(": the next one starts in {} ms", at.since(ctx.time.now()).as_millis()),
            (None, Some(true)) => ": one is starting, and its MCP version is not known yet".into(),
            (None, Some(false)) => ": one is ending, and the next one starts after it".into(),
            (None, None) if slots().any(|slot| slot.is_out()) => ": the operator has taken it out".into(),
            (None, None) => String::new(),
        }
    }
}

/// The groups, by their ids. One that no client can have is empty.
pub(crate) struct Groups {
    of_fleets: [Vec<Group>; 2],
    of_all: Group,
    of_listeners: Vec<Group>,
}

impl Groups {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.of_fleets.iter().flatten().chain([&self.of_all]).chain(&self.of_listeners)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.of_fleets.iter_mut().flatten().chain([&mut self.of_all]).chain(&mut self.of_listeners)
    }
}

impl Index<GroupId> for Balancer {
    type Output = Group;

    #[inline(always)]
    fn index(&self, group: GroupId) -> &Group {
        &self.groups[group]
    }
}

impl IndexMut<GroupId> for Balancer {
    #[inline(always)]
    fn index_mut(&mut self, group: GroupId) -> &mut Group {
        &mut self.groups[group]
    }
}

impl Index<GroupId> for Groups {
    type Output = Group;

    #[inline(always)]
    fn index(&self, group: GroupId) -> &Group {
        match group {
            GroupId::Fleet(fleet) => &self.of_fleets[fleet.era as usize][fleet.pool.index()],
            GroupId::All => &self.of_all,
            GroupId::Listener(listener) => &self.of_listeners[listener.index()],
        }
    }
}

impl IndexMut<GroupId> for Groups {
    #[inline(always)]
    fn index_mut(&mut self, group: GroupId) -> &mut Group {
        match group {
            GroupId::Fleet(fleet) => &mut self.of_fleets[fleet.era as usize][fleet.pool.index()],
            GroupId::All => &mut self.of_all,
            GroupId::Listener(listener) => &mut self.of_listeners[listener.index()],
        }
    }
}

/// To which clients a method or a tool is denied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeniedTo {
    Nothing,
    /// To those for whom a rule of their listener holds ([`Client::rules`](crate::peers::Client::rules)).
    Some,
    /// To all that use some pool.
    Anybody,
}

/// The groups, and the group of each listener.
pub(crate) struct Balancer {
    groups: Groups,
    /// The group that the clients of each listener use, unless a message names a pool.
    of_listeners: Vec<GroupId>,
    /// To which clients a method or a tool is denied.
    denies: DeniedTo,
    /// Whether any workers are lent.
    lends: bool,
}

impl Balancer {
    /// One group for each fleet, one for messages that name no pool, and one for each listener that offers some pools and
    /// prefers none; and the group of each listener. If only one pool is left to choose, the group is the same whether it
    /// is named or not: so a client has one worker there.
    pub(crate) fn new(settings: &Settings, pools: &Pools) -> Self {
        let all: Vec<PoolId> = pools.places().filter(|pool| !settings.pools[*pool].is_gone).collect();
        let of_fleet = |fleet: FleetId| match pools.has(fleet) {
            true => Group::new(settings, [fleet.pool], fleet.era),
            false => Group::default(),
        };
        let of_era = |era: Era| pools.places().map(|pool| of_fleet(pool.of(era))).collect();
        let mut groups = Groups {
            of_fleets: Era::BOTH.map(of_era),
            of_all: Group::new(settings, all.iter().copied(), Era::Legacy),
            of_listeners: Vec::new(),
        };
        let of_listener = |(index, listener): (usize, &settings::Listener)| {
            groups.of_listeners.push(Group::default());
            if let Some(pool) = listener.pool {
                return GroupId::Fleet(pool.of(Era::Legacy));
            }
            let offered = listener.pools.clone();
            let group = Group::new(settings, offered.unwrap_or_else(|| all.clone()), Era::Legacy);
            match group.only_fleet() {
                Some(fleet) => GroupId::Fleet(fleet),
                None if listener.pools.is_none() => GroupId::All,
                None => {
                    groups.of_listeners[index] = group;
                    GroupId::Listener(ListenerId::at(index))
                }
            }
        };
        let of_listeners = settings.listeners.iter().enumerate().map(of_listener).collect();
        let has_rules = |listener: &settings::Listener| listener.rules.iter().any(settings::Rules::deny_anything);
        let denies = if settings.pools.iter().any(settings::Pool::denies_anything) {
            DeniedTo::Anybody
        } else if settings.listeners.iter().any(has_rules) {
            DeniedTo::Some
        } else {
            DeniedTo::Nothing
        };
        let lends = groups.iter().any(Group::lends);
        Self { groups, of_listeners, denies, lends }
    }

    /// The groups, to change one while others of the fleets' parts are borrowed.
    pub(crate) fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }

    /// The group that the clients of a listener use, unless a message names a pool.
    pub(crate) fn of_listener(&self, listener: ListenerId) -> GroupId {
        self.of_listeners[listener.index()]
    }

    /// To which clients a method or a tool is denied.
    pub(crate) fn denies(&self) -> DeniedTo {
        self.denies
    }

    /// Whether any workers are lent.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Until when a line waits for a worker to come back to a group, if one is about to.
    pub(super) fn hold_ends(&mut self, ctx: &Ctx, pools: &Pools, group: GroupId) -> Option<Moment> {
        let hold = ctx.settings.limits.hold;
        // The workers of a fleet that rests are in that of the other era.
        let resting = self[group].unused_fleet(pools).filter(|fleet| pools[*fleet].rests());
        let other = resting.and_then(|fleet| pools.other(fleet));
        let from = other.map_or(group, GroupId::Fleet);
        let waits = !hold.is_zero() && self[from].expects_worker(ctx, pools);
        waits.then(|| self[group].vacant_since(ctx.time.now()).after(hold))
    }
}

impl Group {
    /// Whether one of a group's slots has a worker that takes messages.
    pub(crate) fn has_spare(&self, ctx: &Ctx, pools: &Pools) -> bool {
        let mut workers = self.slots.iter().filter_map(|slot| pools[*slot].worker);
        workers.any(|worker| ctx.workers.worker_takes_messages(worker))
    }

    /// Whether one of its slots has a worker that takes messages, and is neither unresponsive nor on trial.
    pub(super) fn has_well(&self, ctx: &Ctx, pools: &Pools) -> bool {
        let mut workers = self.slots.iter().filter_map(|slot| ctx.workers.get(pools[*slot].worker?));
        workers.any(|worker| worker.takes_messages() && !worker.is_unresponsive() && !worker.is_on_trial())
    }

    /// Round robin over the workers that take messages (spec 6.1.1, 6.1.3). While there is another one, workers on trial are
    /// passed over, unless one that owes nothing `may_try` the line; while there is one of either kind, unresponsive workers are.
    /// Those of paused pools are passed over unless all pools of the group are paused.
    pub(crate) fn next_in_turn(&mut self, ctx: &Ctx, pools: &Pools, may_try: bool) -> Option<WorkerKey> {
        let goes_on = |worker: &Worker| !pools.are_paused() || !pools[worker.fleet.pool].is_paused();
        let is_well = |worker: &Worker| !worker.is_unresponsive() && worker.gets_lines(may_try) && goes_on(worker);
        self.next_such(ctx, pools, is_well)
            .or_else(|| self.next_such(ctx, pools, |worker| !worker.is_unresponsive() && goes_on(worker)))
            .or_else(|| self.next_such(ctx, pools, goes_on))
            .or_else(|| if self.is_paused(pools) { self.next_such(ctx, pools, |_| true) } else { None })
    }

    /// The next worker in turn that takes messages and is such a one.
    fn next_such(&mut self, ctx: &Ctx, pools: &Pools, is_such: impl Fn(&Worker) -> bool) -> Option<WorkerKey> {
        for _ in 0..self.slots.len() {
            let slot = self.next()?;
            self.advance();
            if let Some(key) = pools[slot].worker
                && ctx.workers.get(key).is_some_and(|worker| worker.takes_messages() && is_such(worker))
            {
                return Some(key);
            }
        }
        None
    }

    /// Why no worker of a group is available for a client's message.
    pub(crate) fn no_worker(&self, ctx: &Ctx, pools: &Pools, client: ClientKey) -> Refusal {
        if ctx.clients.gets_no_worker(client) {
            let text = "no worker is free: too many clients wait for one of their own; try again later";
            return Refusal(Reason::NoWorker, text.into());
        }
        if self.is_dedicated() && ctx.shutdown.refuses_requests() {
            return Refusal(
                Reason::NoWorker,
                "no worker is free, and the daemon, which is shutting down, starts none".into(),
            );
        }
        let fleet = self.only_fleet().filter(|_| self.is_dedicated());
        let rests_until = fleet.and_then(|fleet| pools[fleet].rests_until(ctx.time.now()));
        let restarts = || self.slots.iter().map(|slot| &pools[*slot].restarts);
        let due = restarts().filter_map(|restarts| restarts.due()).min();
        let wait = |at: Moment| at.since(ctx.time.now()).as_millis();
        let why = match (fleet, rests_until, due) {
            (Some(fleet), ..) if pools.is_full(ctx, fleet) => {
                format!(": all {} of max_instances workers are in use", ctx.settings.pools[fleet].max_instances)
            }
            (Some(_), Some(until), _) => format!(
                ": the last one ended before it had answered anything, and the next one starts in {} ms",
                wait(until)
            ),
            _ if !self.slots.is_empty() && restarts().all(|restarts| restarts.is_given_up()) => {
                let which = match (fleet, self.slots.len()) {
                    (Some(_), 1) => "the spare one was",
                    (Some(_), _) => "the spare ones were",
                    (None, 1) => "its worker was",
                    (None, _) => "all workers were",
                };
                format!(": {which} {}", how_given_up(ctx, due))
            }
            (Some(_), None, Some(at)) => {
                format!(": the spare one has exited, and the next one starts in {} ms", wait(at))
            }
            _ => self.next_of_shared(ctx, pools),
        };
        let what = if fleet.is_some() { "free" } else { "running" };
        Refusal(Reason::NoWorker, format!("no worker is {what}{why}"))
    }
}

impl Fleets {
    /// Whether a client has a worker in a group already, and that takes messages.
    fn has_worker_for(&self, ctx: &Ctx, client: ClientKey, group: GroupId) -> bool {
        let worker = match self.balancer[group].lends {
            true => lent_worker(ctx, client, group),
            false => ctx.clients.worker_in(client, group),
        };
        worker.is_some_and(|worker| ctx.workers.get(worker).is_some_and(Worker::takes_messages))
    }

    /// Picks a worker of a group for a line that belongs to no session yet, by its pool's assignment. `may_try` says whether
    /// one on trial may get it.
    pub(crate) fn pick_worker_for_line(
        &mut self,
        ctx: &mut Ctx,
        client: ClientKey,
        group: GroupId,
        line: Parsed<'_>,
        may_try: bool,
    ) -> Result<WorkerKey, Refusal> {
        let group = self.move_elsewhere(ctx, client, group, line).unwrap_or(group);
        // No worker is picked or started for a client that uses what all pools deny to it.
        if self.balancer.denies != DeniedTo::Nothing
            && let Some((first, others)) = self.balancer[group].fleets.split_first()
            && others.iter().all(|fleet| ctx.is_denied_in(fleet.pool, client, line))
            && let Some(denied) = ctx.denied_in(first.pool, client, line)
        {
            return Err(denied);
        }
        // A reload has made its workers personal.
        if let Some(fleet) = self.balancer[group].only_fleet().filter(|fleet| fleet.era == Era::Modern)
            && ctx.settings.pools[fleet].personal
        {
            expect_modern(&self.pools, ctx, fleet.pool)?;
        }
        if self.waits_for_resume(group, line) {
            return Err(Refusal(Reason::NoWorker, "the operator has paused the pool".into()));
        }
        self.open_for_line(ctx, group);
        if self.pools.may_sleep() && !self.has_worker_for(ctx, client, group) {
            self.wake_for_line(ctx, client, group, line);
        }
        let has_doors = self.pools.have_modern();
        while has_doors && let Some(fleet) = self.balancer[group].unused_fleet(&self.pools) {
            if fleet.era == Era::Modern {
                self.wake_to_ask(ctx, fleet.pool);
            }
            self.use_fleet(ctx, fleet)?;
        }
        let (assignment, lends) = (self.balancer[group].assignment, self.balancer[group].lends);
        let assigned = ctx.clients.worker_in(client, group);
        let is_its_own = assigned.is_some_and(|worker| ctx.workers.owner(worker) == Some(client));
        let kept = if lends {
            lent_worker(ctx, client, group)
        } else {
            let stays = is_its_own || assignment == Assignment::Client;
            let usable = assigned.filter(|worker| stays && ctx.workers.worker_takes_messages(*worker));
            let preferred = has_doors.then(|| preferred_in(ctx, client, group));
            preferred.flatten().or(usable)
        };
        if let Some(worker) = kept {
            return Ok(worker);
        }
        if is_its_own && !lends {
            // It is closed, for another worker would know nothing of it.
            return Err(Refusal(Reason::RequestLost, "the worker of this connection has exited or is stopping".into()));
        }
        if let Some(why) = ctx.clients.get_mut(client).and_then(|client| client.set_lack(None)) {
            return Err(Refusal(Reason::CredentialsMissing, why.into()));
        }
        let worker = match assignment {
            // A lent worker is returned before another one is lent.
            Assignment::Dedicated if lends && assigned.is_some() => None,
            Assignment::Dedicated => self.take_in_turn(ctx, client, group),
            Assignment::RoundRobin | Assignment::Client => self.balancer[group].next_in_turn(ctx, &self.pools, may_try),
        };
        let worker = worker.ok_or_else(|| self.balancer[group].no_worker(ctx, &self.pools, client))?;
        if assignment != Assignment::RoundRobin {
            ctx.clients.assign(client, group, worker);
        }
        Ok(worker)
    }
}

impl Balancer {
    /// The group that a client's line asks for (decision 7).
    pub(crate) fn group_of_line(&self, ctx: &Ctx, client: ClientKey, line: Parsed<'_>) -> Result<GroupId, Refusal> {
        if line.pool.is_some() && ctx.clients.mcp(client).era.is_none() {
            let pool = self.named_pool(ctx, client, &decoded(line.get(line.pool)).unwrap_or_default())?;
            return Ok(GroupId::Fleet(pool.of(Era::Legacy)));
        }
        Ok(ctx.clients.get(client).map_or(GroupId::All, |client| client.group()))
    }

    /// The group of a new client: its listener's, unless its token is valid for other pools only. One whose groups have several
    /// pools uses the first of them, if its listener has none: to be in one more group takes nothing away.
    pub(crate) fn group_of_client(&self, ctx: &Ctx, listener: ListenerId, origin: &Origin) -> GroupId {
        let group = self.of_listener(listener);
        let Some(pools) = &origin.pools else { return group };
        let by_groups = origin.names.owner().is_some_and(|owner| owner.vouches == NameAuthority::Proxy);
        let has_choice = by_groups && self.groups[group].only_fleet().is_none();
        let all_are_good = !has_choice && self.groups[group].fleets().all(|fleet| pools.contains(&fleet.pool));
        let preferred = pools.iter().copied().find(|pool| ctx.settings.offers(listener, origin, *pool));
        if all_are_good { group } else { preferred.map_or(group, |pool| GroupId::Fleet(pool.of(Era::Legacy))) }
    }

    /// The pool of this name. A pool that the client may not use looks like one that does not exist.
    fn named_pool(&self, ctx: &Ctx, client: ClientKey, name: &[u8]) -> Result<PoolId, Refusal> {
        let client = ctx.clients.identity(client);
        let offers =
            |pool: &PoolId| client.is_some_and(|client| ctx.settings.offers(client.listener, &client.origin, *pool));
        let found = ctx.settings.pools.iter().position(|pool| pool.id.as_bytes() == name && !pool.is_gone);
        found.map(PoolId::at).filter(offers).ok_or_else(|| {
            let shown = name[..name.len().min(64)].escape_ascii();
            Refusal(Reason::UnknownPool, format!("no pool is called \"{shown}\""))
        })
    }

    /// Panics if clients, the workers they were assigned, and those workers' owners disagree.
    pub(crate) fn check_assignments(&self, ctx: &Ctx) {
        for (key, client) in ctx.clients.iter() {
            for (at, (group, worker)) in client.assigned().iter().enumerate() {
                assert!(client.assigned()[..at].iter().all(|(before, _)| before != group), "one worker for each group");
                if self.groups[*group].is_dedicated() {
                    let worker = ctx.workers.get(*worker).expect("a worker of one's own lives");
                    assert_eq!(worker.owner(), Some(key));
                }
            }
        }
        for (key, worker) in ctx.workers.iter().filter(|(_, worker)| worker.takes_messages()) {
            let Some(owner) = worker.owner() else { continue };
            assert!(ctx.clients.identity(owner).is_some(), "a worker stops when its owner leaves");
            let is_known = ctx.clients.workers_of(owner).any(|assigned| assigned == key);
            assert!(is_known || worker.lifetime.is_leaving(), "an owner knows its worker");
        }
    }
}

/// Why workers were given up, and what brings them back; the next attempt is at `due`.
fn how_given_up(ctx: &Ctx, due: Option<Moment>) -> String {
    let limits = &ctx.settings.limits;
    let (restarts, window) = (limits.max_restarts, limits.restart_window.as_secs());
    let remedy = match due {
        Some(at) => format!("it is tried again in {} s", at.since(ctx.time.now()).as_millis().div_ceil(1000)),
        None => "the pool has to be restarted".to_owned(),
    };
    format!("given up after {restarts} restarts within {window} s (max_restarts); fix the command, {remedy}")
}

impl Settings {
    /// Whether a client of this origin may use a pool of its listener.
    pub(crate) fn offers(&self, listener: ListenerId, origin: &Origin, pool: PoolId) -> bool {
        let offered = self.listener(listener).and_then(|listener| listener.pools.as_deref());
        let is_gone = self.pools.get(pool.index()).is_none_or(|pool| pool.is_gone);
        !is_gone && [offered, origin.pools.as_deref()].into_iter().flatten().all(|pools| pools.contains(&pool))
    }

    /// Whether it may use one of them. At a removed listener, whose pools may be gone as well, clients go on for a while.
    pub(crate) fn offers_any(&self, listener: ListenerId, origin: &Origin) -> bool {
        let is_gone = self.listener(listener).is_some_and(|listener| listener.is_gone);
        is_gone || self.places_of_pools().any(|pool| self.offers(listener, origin, pool))
    }
}

impl View<'_> {
    /// The pool that a client of this origin uses if it names none; none if there are several to choose from.
    pub fn default_pool(&self, listener: impl Into<ListenerId>, origin: &Origin) -> Option<PoolId> {
        let listener = listener.into();
        let group = self.bus.fleets.balancer.group_of_client(&self.bus.ctx, listener, origin);
        self.bus.fleets.balancer[group].only_fleet().map(|fleet| fleet.pool)
    }
}
