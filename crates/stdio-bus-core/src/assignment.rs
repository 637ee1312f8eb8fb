//! Which worker a message goes to that belongs to no session yet: the groups of seats, and how one of them is picked
//! (spec 3.3, 6.1; decisions 6, 7).
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use ndjson_scan::{Line, Window, decoded};

use super::Bus;
use super::origin::Origin;
use super::peer::{ClientKey, Moment, WorkerKey};
use super::pool::Seat;
use super::report::Reason;
use super::settings::{self, Assignment, OnExit, Settings};

/// The workers that a message may go to: those of one pool, or of all.
pub(super) struct Group {
    /// Seats as (pool, seat), in the order of the configuration.
    seats: Vec<(usize, usize)>,
    /// Its pools, each with the place of its first seat among them.
    pools: Vec<(usize, usize)>,
    /// How one of them is chosen.
    pub assignment: Assignment,
    /// Where round robin goes on.
    cursor: usize,
    /// Since when a line waits for a worker of it, if one does.
    pub vacant_since: Option<Moment>,
}

impl Group {
    /// Its seats, as (pool, seat).
    pub(super) fn seats(&self) -> &[(usize, usize)] {
        &self.seats
    }

    /// The pools that its workers are of, each once.
    pub(super) fn pools(&self) -> impl Iterator<Item = usize> {
        self.pools.iter().map(|(pool, _)| *pool)
    }

    fn new(settings: &Settings, of: &[usize], assignment: Assignment) -> Self {
        let (mut seats, mut pools) = (Vec::new(), Vec::new());
        for pool in of {
            pools.push((*pool, seats.len()));
            seats.extend((0..settings.pools[*pool].instances).map(|seat| (*pool, seat)));
        }
        Self { seats, pools, assignment, cursor: 0, vacant_since: None }
    }

    fn of_pool(settings: &Settings, pool: usize) -> Self {
        Self::new(settings, &[pool], settings.pools[pool].assignment)
    }

    /// Leaves dedicated pools out where there are others, since joining one by accident would start a process.
    fn of_pools(settings: &Settings, pools: &[usize]) -> Self {
        let assignment = |pool: &usize| settings.pools[*pool].assignment;
        let shared: Vec<usize> =
            pools.iter().copied().filter(|pool| assignment(pool) != Assignment::Dedicated).collect();
        if let ([], Some(pool)) = (&shared[..], pools.first()) {
            return Self::of_pool(settings, *pool);
        }
        let sticky = shared.iter().any(|pool| assignment(pool) == Assignment::Client);
        let assignment = if sticky { Assignment::Client } else { Assignment::RoundRobin };
        Self::new(settings, &shared, assignment)
    }

    /// The pool that all its workers are of, if they are.
    pub(super) fn only_pool(&self) -> Option<usize> {
        if let [(pool, _)] = self.pools[..] { Some(pool) } else { None }
    }
}

/// One group for each pool, one behind them for messages that name none, and one for each listener that offers some
/// pools and prefers none; and the group of each listener. Where one pool alone is left to choose, it is the same group
/// whether it is named or not: so a client has one worker there.
pub(super) fn groups(settings: &Settings) -> (Vec<Group>, Vec<usize>) {
    let all: Vec<usize> = (0..settings.pools.len()).collect();
    let mut groups: Vec<Group> = all.iter().map(|pool| Group::of_pool(settings, *pool)).collect();
    groups.push(Group::of_pools(settings, &all));
    let of_listener = |listener: &settings::Listener| match (listener.pool, listener.pools.as_deref()) {
        (Some(pool), _) => pool,
        (None, offered) => {
            let group = Group::of_pools(settings, offered.unwrap_or(&all));
            group.only_pool().unwrap_or_else(|| match offered {
                None => all.len(),
                Some(_) => {
                    groups.push(group);
                    groups.len() - 1
                }
            })
        }
    };
    let of_listeners = settings.listeners.iter().map(of_listener).collect();
    (groups, of_listeners)
}

impl Bus {
    /// The group that a client's line asks for (decision 7).
    pub(super) fn group_of_line(
        &self,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
    ) -> Result<usize, (Reason, String)> {
        if line.pool.is_some() {
            return self.named_pool(client, &decoded(window.get(line.pool)));
        }
        Ok(self.clients.get(client).map_or(0, |client| client.group))
    }

    /// A worker of a group for a line that belongs to no session yet.
    pub(super) fn pick_worker_for_line(
        &mut self,
        client: ClientKey,
        group: usize,
        window: Window<'_>,
        line: &Line,
    ) -> Result<WorkerKey, (Reason, String)> {
        // Nobody is picked, and no worker started, for one who asks for what it may not have.
        if self.denies_methods
            && let Some(pool) = self.groups[group].only_pool()
            && let Some(denied) = self.denied_in(pool, window, line)
        {
            return Err(denied);
        }
        self.pick_worker(client, group)
    }

    /// The group of a new client: its listener's, unless its token is good for other pools only.
    pub(super) fn group_of_client(&self, listener: usize, origin: &Origin) -> usize {
        let group = self.listener_groups[listener];
        let Some(pools) = &origin.pools else { return group };
        let all_are_good = self.groups[group].pools().all(|pool| pools.contains(&pool));
        // The group of a pool has its index.
        let preferred = pools.iter().copied().find(|pool| self.offers(listener, origin, *pool));
        if all_are_good { group } else { preferred.unwrap_or(group) }
    }

    /// Whether a client of this origin may use a pool of its listener.
    pub(super) fn offers(&self, listener: usize, origin: &Origin, pool: usize) -> bool {
        let offered = self.settings.listeners.get(listener).and_then(|listener| listener.pools.as_deref());
        [offered, origin.pools.as_deref()].into_iter().flatten().all(|pools| pools.contains(&pool))
    }

    /// The pool of this name. One that the client may not use is not told from one that does not exist.
    fn named_pool(&self, client: ClientKey, name: &[u8]) -> Result<usize, (Reason, String)> {
        let client = self.clients.get(client);
        let offers = |pool: &usize| client.is_some_and(|client| self.offers(client.listener, &client.origin, *pool));
        let found = self.settings.pools.iter().position(|pool| pool.id.as_bytes() == name);
        found.filter(offers).ok_or_else(|| {
            let shown = name[..name.len().min(64)].escape_ascii();
            (Reason::UnknownPool, format!("no pool is called \"{shown}\""))
        })
    }

    /// The place of a worker among the seats of a group, if it sits on one of them.
    pub(super) fn place_in_group(&self, group: usize, key: WorkerKey) -> Option<usize> {
        let worker = self.workers.get(key)?;
        let seat = worker.seat.filter(|seat| self.pools[worker.pool].seats[*seat].worker == Some(key))?;
        let (_, first) = self.groups[group].pools.iter().find(|(pool, _)| *pool == worker.pool)?;
        Some(first + seat)
    }

    fn pick_worker(&mut self, client: ClientKey, group: usize) -> Result<WorkerKey, (Reason, String)> {
        let assignment = self.groups[group].assignment;
        if assignment == Assignment::RoundRobin {
            return self.next_in_turn(group).ok_or_else(|| self.no_worker(group));
        }
        let assigned = self.clients.get(client).and_then(|client| client.assigned.iter().find(|(g, _)| *g == group));
        if let Some((_, worker)) = assigned
            && self.worker_takes_messages(*worker)
        {
            return Ok(*worker);
        }
        if assigned.is_some() && self.closes_on_exit(group) {
            return Err((Reason::RequestLost, "the worker of this connection has exited or is stopping".into()));
        }
        let worker = match assignment {
            Assignment::Dedicated => self.take_in_turn(client, group),
            _ => self.next_in_turn(group),
        };
        let Some(worker) = worker else {
            let is_refused = self.clients.get(client).is_some_and(|client| client.refused_worker);
            let too_many = || "no worker is free: too many clients wait for one of their own; try again later".into();
            return Err(if is_refused { (Reason::NoWorker, too_many()) } else { self.no_worker(group) });
        };
        self.assign(client, group, worker);
        Ok(worker)
    }

    /// A worker is the client's in this group.
    pub(super) fn assign(&mut self, client: ClientKey, group: usize, worker: WorkerKey) {
        if let Some(client) = self.clients.get_mut(client) {
            client.assigned.retain(|(g, _)| *g != group);
            client.assigned.push((group, worker));
        }
    }

    /// Whether a client of this group is closed when its worker ends, rather than given one that knows nothing of it.
    fn closes_on_exit(&self, group: usize) -> bool {
        let group = &self.groups[group];
        let first = group.seats.first().filter(|_| group.assignment == Assignment::Dedicated);
        first.is_some_and(|(pool, _)| self.settings.pools[*pool].on_exit == OnExit::Close)
    }

    fn no_worker(&self, group: usize) -> (Reason, String) {
        let group = &self.groups[group];
        let text = match group.seats.first() {
            Some((pool, _)) if group.assignment == Assignment::Dedicated => self.no_free_worker(*pool),
            _ if group.seats.iter().all(|(pool, seat)| self.pools[*pool].seats[*seat].given_up) => {
                let what = if group.seats.len() == 1 { "its worker was" } else { "all workers were" };
                format!("no worker is running: {what} {}", self.how_given_up(group.seats.iter().copied()))
            }
            _ => "no worker is running".into(),
        };
        (Reason::NoWorker, text)
    }

    /// Why workers were given up, and what brings them back.
    fn how_given_up(&self, seats: impl Iterator<Item = (usize, usize)>) -> String {
        let limits = &self.settings.limits;
        let (restarts, window) = (limits.max_restarts, limits.restart_window.as_secs());
        let remedy = match seats.filter_map(|(pool, seat)| self.pools[pool].seats[seat].restart_at).min() {
            Some(at) => format!("it is tried again in {} s", at.since(self.now).as_millis().div_ceil(1000)),
            None => "the daemon has to be restarted".to_owned(),
        };
        format!("given up after {restarts} restarts within {window} s (max_restarts); mend the command, {remedy}")
    }

    /// Why [`Bus::take_dedicated`] finds nobody in a dedicated pool.
    fn no_free_worker(&self, pool: usize) -> String {
        let now = self.now;
        let most = self.settings.pools[pool].max_instances;
        let (index, pool) = (pool, &self.pools[pool]);
        if pool.live >= most {
            return format!("no worker is free: all {most} of max_instances workers are in use");
        }
        if let Some(until) = pool.rests_until(now) {
            let wait = until.since(now).as_millis();
            return format!(
                "no worker is free: the last one ended before it had answered anything, and the next one starts in \
                 {wait} ms"
            );
        }
        if pool.seats.iter().all(|seat| seat.given_up) {
            let what = if pool.seats.len() == 1 { "the spare one was" } else { "the spare ones were" };
            let seats = (0..pool.seats.len()).map(|seat| (index, seat));
            return format!("no worker is free: {what} {}", self.how_given_up(seats));
        }
        if let Some(at) = pool.seats.iter().filter_map(|seat| seat.restart_at).min() {
            let wait = at.since(now).as_millis();
            return format!("no worker is free: the spare one has exited, and the next one starts in {wait} ms");
        }
        "no worker is free".into()
    }

    /// Round robin over those that take messages (spec 6.1.1, 6.1.3).
    fn next_in_turn(&mut self, group: usize) -> Option<WorkerKey> {
        let count = self.groups[group].seats.len();
        for _ in 0..count {
            let group = &mut self.groups[group];
            let (pool, seat) = group.seats[group.cursor];
            group.cursor = (group.cursor + 1) % count;
            if let Some(worker) = self.pools[pool].seats[seat].worker
                && self.worker_takes_messages(worker)
            {
                return Some(worker);
            }
        }
        None
    }

    /// Takes a warm spare out of its seat for one client, or starts a worker for it if the pool may grow.
    pub(super) fn take_dedicated(&mut self, client: ClientKey, group: usize) -> Option<WorkerKey> {
        let pool = self.groups[group].seats.first()?.0;
        let worker = match self.next_in_turn(group) {
            Some(spare) => {
                if let Some(seat) = self.workers.get_mut(spare)?.seat.take() {
                    self.pools[pool].seats[seat].worker = None;
                }
                spare
            }
            None if !self.may_grow(group) => return None,
            None => self.start_worker(pool, None)?,
        };
        let taken = self.workers.get_mut(worker)?;
        taken.owner = Some(client);
        taken.claimed = self.now;
        self.count_turn(client, worker);
        self.fill_seats(pool);
        Some(worker)
    }

    /// Whether a worker takes messages in one of the seats of a group.
    pub(super) fn has_spare(&self, group: usize) -> bool {
        let taker = |(pool, seat): &(usize, usize)| self.pools[*pool].seats[*seat].worker;
        self.groups[group].seats.iter().filter_map(taker).any(|worker| self.worker_takes_messages(worker))
    }

    /// Whether a worker may be started for a client of a dedicated group. A pool whose workers do not stay is not started
    /// over and over by those who ask for one.
    pub(super) fn may_grow(&self, group: usize) -> bool {
        let Some((index, _)) = self.groups[group].seats.first() else { return false };
        let pool = &self.pools[*index];
        pool.live < self.settings.pools[*index].max_instances
            && !pool.seats.iter().any(Seat::is_failing)
            && pool.rests_until(self.now).is_none()
    }

    /// The client that a worker of a dedicated pool belongs to.
    pub fn owner(&self, worker: WorkerKey) -> Option<ClientKey> {
        self.workers.get(worker).and_then(|worker| worker.owner)
    }

    /// Panics if clients, the workers they were assigned, and those workers' owners disagree.
    pub(super) fn check_assignments(&self) {
        for (key, client) in self.clients.iter() {
            for (at, (group, worker)) in client.assigned.iter().enumerate() {
                assert!(client.assigned[..at].iter().all(|(before, _)| before != group), "one worker for each group");
                if self.groups[*group].assignment == Assignment::Dedicated {
                    let worker = self.workers.get(*worker).expect("a worker of one's own lives");
                    assert_eq!(worker.owner, Some(key));
                }
            }
        }
        for (key, worker) in self.workers.iter().filter(|(_, worker)| worker.takes_messages()) {
            let Some(owner) = worker.owner else { continue };
            let owner = self.clients.get(owner).expect("a worker stops when its owner leaves");
            assert!(owner.assigned.iter().any(|(_, assigned)| *assigned == key), "an owner knows its worker");
        }
    }
}
