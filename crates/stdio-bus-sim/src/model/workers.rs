//! The model's workers: their roles, and the clients that have them.

use std::collections::{BTreeMap, BTreeSet};

use super::{BELIEVED, Flood, Health, LOST_NAMES, Model, Rank, Request, Retired, Worker};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, Pool, Start};
use crate::line::Party;

impl Model {
    /// The role of a worker: whether it gets what any worker of its pool may get.
    pub fn has_role(&mut self, now: Moment, worker: usize, role: &str) {
        let did = std::mem::replace(&mut self.workers[worker].serves, role == "serves");
        if did && role == "leaves" {
            self.may_be_kept(worker);
            self.may_shrink(now, worker);
        }
    }

    /// A worker leaves although none is replaced: its pool had grown, or has fallen asleep, and it is not followed by another
    /// one.
    fn may_shrink(&mut self, now: Moment, worker: usize) {
        let settings = &self.settings.pools[self.workers[worker].pool];
        if !self.slots.are_replaced() && grows(settings) && !self.workers[worker].is_dismissed {
            let idle_stop = settings.idle_stop.expect("a pool becomes smaller only if it says when");
            let idle = now.since(self.workers[worker].needed_at);
            assert!(idle >= idle_stop, "worker {worker} was needed {idle:?} ago");
            self.workers[worker].is_dismissed = true;
        }
    }

    /// Whether each worker of a pool that clients share has as many requests to answer as make it busy.
    fn are_all_busy(&self, pool: usize) -> bool {
        let Pool { concurrency, .. } = self.settings.pools[pool];
        let serves = |at: &usize| {
            let worker = &self.workers[*at];
            worker.pool == pool && !worker.released && worker.serves
        };
        let asked = |worker: usize| {
            let is_its = |request: &&Request| request.asker.is_some() && request.answerer == Party::Worker(worker);
            self.to_workers.iter().filter(is_its).count()
        };
        let mut serving = (0..self.workers.len()).filter(serves).peekable();
        // One on trial gets one request at a time, and is busy with that.
        let may_be_on_trial = |worker: usize| !self.workers[worker].has_answered;
        serving.peek().is_some()
            && serving.all(|worker| asked(worker) >= concurrency || asked(worker) > 0 && may_be_on_trial(worker))
    }

    /// The operator has paused these pools, and no others.
    pub fn has_paused(&mut self, pools: BTreeSet<usize>) {
        for worker in 0..self.workers.len() {
            let pool = &self.workers[worker].pool;
            if pools.contains(pool) && !self.paused.contains(pool) {
                self.may_be_kept(worker);
            }
        }
        self.paused = pools;
    }

    /// These pools have no workers until a line needs one, and no others.
    pub fn are_asleep(&mut self, now: Moment, pools: BTreeSet<usize>) {
        for pool in pools.difference(&self.asleep).copied().collect::<Vec<_>>() {
            self.falls_asleep(now, pool);
        }
        self.asleep = pools;
        self.just_ended.clear();
    }

    /// A pool has fallen asleep: nobody has needed its workers for long enough, and nothing is lost with them.
    fn falls_asleep(&mut self, now: Moment, pool: usize) {
        let Pool { start, idle_stop, .. } = self.settings.pools[pool];
        assert_eq!(start, Start::OnDemand, "pool {pool} is asleep");
        let needed = self.needed();
        let has_ended = |at: &usize| self.just_ended.contains(at) && self.workers[*at].owner.is_none();
        let is_there = |at: &usize| {
            let worker = &self.workers[*at];
            worker.pool == pool && !worker.released && worker.serves && (worker.takes || has_ended(at))
        };
        let workers: Vec<usize> = (0..self.workers.len()).filter(is_there).collect();
        // One that replaces another one may have taken its place in the same call. Nobody has needed it yet.
        let is_next = |at: &Worker| at.pool == pool && !at.released && !at.serves && at.needed_at == Moment::default();
        let may_be_replaced = self.workers.iter().any(is_next);
        for (number, worker) in workers.into_iter().enumerate() {
            assert_eq!(self.workers[worker].owner, None, "a client has worker {worker}");
            let idle = now.since(self.workers[worker].needed_at);
            let is_long = idle_stop.is_some_and(|idle_stop| idle >= idle_stop);
            let is_unneeded = self.is_heavy && !needed.contains(&worker);
            assert!(is_long || is_unneeded || may_be_replaced, "worker {worker} was needed {idle:?} ago");
            // The next one is started in its place at once.
            self.workers[worker].is_dismissed = true;
            if number < self.settings.pools[pool].instances {
                self.slots.leave(Moment::default(), pool);
            }
        }
    }

    /// Whether all workers together hold more memory than they may: pools that nobody needs may fall asleep.
    pub fn holds(&mut self, is_heavy: bool) {
        self.is_heavy = is_heavy;
    }

    /// Somebody waits for answers of workers, or has sessions there.
    pub(super) fn note_needed(&mut self, now: Moment) {
        self.needed().into_iter().for_each(|worker| self.workers[worker].needed_at = now);
    }

    /// The workers that somebody needs.
    fn needed(&self) -> BTreeSet<usize> {
        let asked = self.to_workers.iter().filter(|request| request.asker.is_some()).map(|request| request.answerer);
        let asked = asked.filter_map(|party| if let Party::Worker(worker) = party { Some(worker) } else { None });
        asked.chain(self.sessions.iter().map(|session| session.worker)).collect()
    }

    /// A line of a peer was refused.
    pub(super) fn wastes(&mut self, from: Party) {
        if let Party::Worker(worker) = from {
            self.workers[worker].flood.refuse();
        }
    }

    /// A worker was read: so many bytes belonged to no message. Returns whether it may not be read on, and whether it
    /// perhaps is not.
    pub fn was_read(&mut self, now: Moment, worker: usize, nothing: usize) -> (bool, bool) {
        self.workers[worker].health.perhaps(now);
        self.workers[worker].trial.is_in_doubt();
        self.workers[worker].flood.was_read(now, nothing)
    }

    /// Whether a worker is perhaps not read because it has written too much for nobody.
    pub fn floods(&self, now: Moment, worker: usize) -> bool {
        self.workers[worker].flood.is_perhaps_paused(now)
    }

    /// Clients may have been assigned a worker for lines that were not delivered, and stay on it.
    pub(super) fn may_be_kept(&mut self, worker: usize) {
        let may_have = (0..self.clients.len()).filter(|client| !self.clients[*client].closed);
        self.workers[worker].perhaps_of.extend(may_have);
    }

    pub(super) fn is_dedicated(&self, pool: usize) -> bool {
        self.settings.pools[pool].assignment == Assignment::Dedicated
    }

    /// A worker is being started, for this client if it is for one.
    pub fn started(&mut self, now: Moment, pool: usize, client: Option<usize>) {
        let Pool { instances, assignment, personal, .. } = self.settings.pools[pool];
        assert!(!personal || client.is_some(), "a worker of pool {pool} is started for nobody");
        let may_wake = (0..self.clients.len()).any(|client| !self.clients[client].gone && self.may_name(client, pool));
        let is_asleep = self.asleep.contains(&pool) && !self.slots.are_replaced();
        assert!(may_wake || !is_asleep, "pool {pool} is woken, and nobody can have asked for it");
        let before = self.workers.iter().filter(|worker| worker.pool == pool).count();
        let is_shared = assignment != Assignment::Dedicated;
        if before >= instances && is_shared && !self.slots.are_replaced() && !self.slots.take(now, pool) {
            let has_reason = grows(&self.settings.pools[pool]) && self.are_all_busy(pool);
            assert!(has_reason, "no slot of pool {pool} is vacant, and it does not grow");
        }
        let trial = self.trial_of_new(now, pool);
        self.workers.push(Worker {
            pool,
            takes: true,
            serves: true,
            is_paused: false,
            perhaps_of: BTreeSet::new(),
            owner: None,
            meant_for: client,
            released: false,
            ran: false,
            has_answered: false,
            has_lost_request: false,
            is_left: false,
            fresh: false,
            answers_twice: false,
            misspells: false,
            used_at: BTreeMap::new(),
            retired: Retired::default(),
            may_create: false,
            needed_at: Moment::default(),
            is_dismissed: false,
            served: BTreeSet::new(),
            early: Vec::new(),
            flood: Flood::default(),
            health: Health::default(),
            trial,
        });
        let is_there = |worker: &&Worker| worker.pool == pool && !worker.released && !worker.is_dismissed;
        let live = self.workers.iter().filter(is_there).count();
        let most = self.settings.pools[pool].max_instances;
        assert!(live <= most || self.slots.are_replaced(), "pool {pool} has {live} workers");
        assert!(!self.drain.has_refused(), "a worker is started during the drain");
    }

    /// A worker was started.
    pub fn runs(&mut self, now: Moment, worker: usize) {
        self.workers[worker].health.perhaps(now);
        self.workers[worker].ran = true;
    }

    /// Number of empty slots that should not be empty.
    pub fn slots_empty(&self) -> usize {
        let empty = self.settings.pools.iter().enumerate().map(|(pool, settings)| {
            let live = self.workers.iter().filter(|worker| worker.pool == pool && !worker.released && worker.serves);
            let (owned, spare): (Vec<_>, Vec<_>) = live.partition(|worker| worker.owner.is_some());
            let instances = match settings.is_gone || self.asleep.contains(&pool) {
                true => 0,
                // Those of clients count.
                false if settings.start == Start::OnDemand => settings.instances.saturating_sub(owned.len()),
                false => settings.instances,
            };
            instances.min(settings.max_instances.saturating_sub(owned.len())).saturating_sub(spare.len())
        });
        empty.sum()
    }

    /// Nothing may be sent to this worker any more.
    pub fn stops(&mut self, worker: usize) {
        self.workers[worker].takes = false;
        self.just_ended.insert(worker);
    }

    /// A worker cannot be started, for which this many lines are queued: if some of them are no requests that it owes an
    /// answer, their loss is counted once.
    pub fn cannot_start(&mut self, worker: usize, queued: usize) {
        self.stops(worker);
        let is_its_own = |request: &&Request| request.answerer == Party::Worker(worker);
        if queued > self.to_workers.iter().filter(is_its_own).count() && !self.drain.has_refused() {
            self.count(Reason::NoWorker);
        }
    }

    /// A worker is not read any more: its requests need no answers.
    pub fn unasks(&mut self, worker: usize) {
        for request in self.to_clients.iter_mut().filter(|request| request.asker == Some(Party::Worker(worker))) {
            request.asker = None;
        }
    }

    /// Whether the worker may be given messages.
    pub fn takes(&self, worker: usize) -> bool {
        self.workers[worker].takes
    }

    /// Whether the client of this worker is closed when it has ended.
    fn ends_its_client(&self, worker: usize) -> bool {
        self.is_dedicated(self.workers[worker].pool)
    }

    /// Whether a worker is a client's own.
    pub fn is_own(&self, client: usize, worker: usize) -> bool {
        self.workers[worker].owner == Some(client)
    }

    /// Whether a client keeps its connection when this worker of its own has ended: once, if it was notified of that by
    /// the error of a request, and the worker has answered nothing.
    pub fn gets_another(&self, client: usize, worker: usize) -> bool {
        let (from, at) = (&self.clients[client], &self.workers[worker]);
        let is_first = !from.has_lost_worker && !from.half_closed;
        // One that could not be started costs no connection.
        is_first && at.ran && at.owner == Some(client) && !at.is_left && at.has_lost_request && !at.has_answered
    }

    /// Whether a client is closed because its own worker has ended, or is about to be.
    pub fn lost_its_worker(&self, client: usize) -> bool {
        let is_over = |worker: &Worker| !worker.takes && !worker.is_left;
        let own = |(at, worker): (usize, &Worker)| {
            worker.owner == Some(client) && is_over(worker) && self.ends_its_client(at)
        };
        self.workers.iter().enumerate().any(own)
    }

    /// Everything that depended on a worker is settled.
    pub fn settled(&mut self, now: Moment, worker: usize) {
        let me = Party::Worker(worker);
        self.workers[worker].takes = false;
        for request in std::mem::take(&mut self.to_workers) {
            match request.asker {
                _ if request.answerer != me => self.to_workers.push(request),
                Some(_) if Self::may_have_left(&request, now) => self.leaves(now, request),
                Some(asker) => panic!("{asker:?} was not notified that {request:?} is lost"),
                None => {}
            }
        }
        self.unasks(worker);
        for session in std::mem::take(&mut self.sessions) {
            if session.worker != worker {
                self.sessions.push(session);
            } else if session.rank == Rank::Issued || session.was_issued {
                let lost = &mut self.clients[session.client].lost;
                lost.retain(|(name, _)| *name != session.name);
                lost.push((session.name, true));
                lost.drain(..lost.len().saturating_sub(LOST_NAMES));
            }
        }
        self.held.retain(|held| held.worker != worker);
        self.ends_early(worker, None);
        self.let_go();
    }

    /// A worker has ended, or has broken the protocol: its client may get another one.
    pub fn failed(&mut self, now: Moment, worker: usize) {
        self.settled(now, worker);
        let owner = self.workers[worker].owner.filter(|owner| !self.clients[*owner].closed);
        if let Some(owner) = owner.filter(|owner| self.gets_another(*owner, worker)) {
            self.clients[owner].has_lost_worker = true;
            self.clients[owner].assigned.retain(|(_, assigned)| *assigned != worker);
            self.workers[worker].is_left = true;
            self.count(Reason::OwnWorkerReplaced);
        }
    }

    /// A worker is gone for good.
    pub fn released(&mut self, now: Moment, worker: usize) {
        self.failed(now, worker);
        for (at, client) in self.clients.iter_mut().enumerate() {
            if self.slots.is_blamed(worker, Party::Client(at)) {
                client.penalty.crashed(now);
            }
        }
        self.workers[worker].released = true;
        if !self.workers[worker].is_dismissed {
            self.slots.leave(now, self.workers[worker].pool);
        }
        self.outputs.close(Party::Worker(worker));
        for client in &mut self.clients {
            client.assigned.retain(|(_, assigned)| *assigned != worker);
        }
    }

    /// Whether other clients have a session or an unanswered request on a worker.
    fn is_used(&self, worker: usize, client: usize) -> bool {
        let others = |party: Option<Party>| party.is_some_and(|party| party != Party::Client(client));
        let asked = self.to_workers.iter().any(|at| at.answerer == Party::Worker(worker) && others(at.asker));
        asked || self.sessions.iter().any(|at| at.worker == worker && at.client != client)
    }

    /// Whether other clients use a worker, or may be waiting for it.
    pub fn is_shared(&self, worker: usize, client: usize) -> bool {
        let waits = (0..self.clients.len()).any(|other| other != client && self.waits_for(other, worker));
        waits || self.is_used(worker, client)
    }

    /// Whether other clients used a worker a moment ago.
    pub(super) fn was_shared(&self, now: Moment, worker: usize, client: usize) -> bool {
        let used = &self.workers[worker].used_at;
        used.iter().any(|(other, at)| *other != client && now.since(*at) <= BELIEVED)
    }

    /// The clients that expect something from a worker.
    pub(super) fn clients_of(&self, worker: usize) -> BTreeSet<usize> {
        let asked = self.to_workers.iter().filter(|at| at.answerer == Party::Worker(worker)).filter_map(|at| at.asker);
        let asked = asked.filter_map(|party| if let Party::Client(client) = party { Some(client) } else { None });
        let owners = self.sessions.iter().filter(|at| at.worker == worker).map(|at| at.client);
        let waiting = (0..self.clients.len()).filter(|client| self.waits_for(*client, worker));
        asked.chain(owners).chain(waiting).collect()
    }

    /// Whether a worker's line waits for a client that is full, while others use that worker; and if so, whether so
    /// much is queued for that client that the extra time applies.
    pub fn holds_up(&self, worker: usize, line: usize) -> Option<bool> {
        let fate = self.fate_of_worker_line(worker, &self.lines[line]);
        let is_for_all = !self.broadcast_to(worker, &self.lines[line]).is_empty();
        let slow =
            |to: &&Party| matches!(to, Party::Client(client) if self.is_full(**to) && self.is_used(worker, *client));
        let may_be = self.workers[worker].owner.is_none() && !is_for_all;
        fate.to.iter().find(slow).filter(|_| may_be).map(|to| self.is_too_long(*to))
    }

    /// The recipient of a worker's message that names no client: the only client that has ever sent that worker
    /// anything, or that may use it if none has. An unassigned dedicated worker has no recipient.
    pub(super) fn only_client(&self, worker: usize) -> Option<usize> {
        let Worker { owner, served, pool, .. } = &self.workers[worker];
        if self.settings.pools[*pool].assignment == Assignment::Dedicated {
            return *owner;
        }
        let is_there = |client: &usize| !self.clients[*client].gone && self.may_name(*client, *pool);
        let mut there = (0..self.clients.len()).filter(is_there);
        match (owner, served.len()) {
            (Some(owner), _) => Some(*owner),
            (None, 0) => there.next().filter(|_| there.next().is_none()),
            (None, 1) => served.first().copied(),
            _ => None,
        }
    }

    /// Whether a worker gives out names, judging by its pool, or may be just doing so: then a client may name in params
    /// only what it was given. A dedicated worker is not restricted.
    pub(super) fn issues(&self, worker: usize) -> bool {
        let pool = self.workers[worker].pool;
        let shared = self.settings.pools[pool].assignment != Assignment::Dedicated;
        shared && (self.names.are_issued_in(pool) || self.creates(worker))
    }

    /// Whether a worker may be creating a session: a request for one is pending, or was dropped before it was answered.
    pub(super) fn creates(&self, worker: usize) -> bool {
        let creates =
            |request: &Request| request.answerer == Party::Worker(worker) && self.lines[request.line].creates();
        self.workers[worker].may_create || self.to_workers.iter().any(creates)
    }
}

/// Whether a pool may have more workers than it keeps.
fn grows(pool: &Pool) -> bool {
    pool.assignment != Assignment::Dedicated && pool.max_instances > pool.instances
}
