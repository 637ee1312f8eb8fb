//! The model's clients: the pools that they may use, what they wait for, and how long they are not read.

use std::time::Duration;

use super::{Client, Fate, Model, Penalty, Request, Retired};
use crate::bus::port::{Close, Moment, Source};
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, Listener};
use crate::line::{Kind, Line, Party};

impl Model {
    /// A client has connected, with the token of `name` if it has one.
    pub fn connected(&mut self, listener: usize, source: Source, name: Option<&'static str>) {
        self.clients.push(Client {
            name,
            source,
            listener,
            group: self.group_of_listener(listener),
            lost: Vec::new(),
            penalty: Penalty::default(),
            half_closed: false,
            closed: false,
            refused_for: Reason::ConnectionClosing,
            gone: false,
            waits_with: None,
            has_lost_worker: false,
            waits_since: None,
            has_waited: Duration::ZERO,
            assigned: Vec::new(),
            retired: Retired::default(),
            fresh: false,
        });
    }

    /// The pools that clients of a listener may use.
    fn offered(&self, listener: usize) -> Vec<usize> {
        let all = || (0..self.settings.pools.len()).filter(|pool| !self.settings.pools[*pool].is_gone);
        places(&self.settings.listeners[listener]).unwrap_or_else(|| all().collect())
    }

    pub(super) fn group_of_listener(&self, at: usize) -> usize {
        let listener = &self.settings.listeners[at];
        let offered = self.offered(at);
        let shared: Vec<usize> = offered.iter().copied().filter(|pool| !self.is_dedicated(*pool)).collect();
        match (listener.pool, &shared[..], &listener.pools) {
            // If only one pool is left to choose, it does not matter whether it is named.
            (Some(pool), ..) => pool.index(),
            (None, &[pool], _) => pool,
            (None, [], _) => offered[0],
            (None, _, None) => self.settings.pools.len(),
            (None, _, Some(_)) => self.settings.pools.len() + 1 + at,
        }
    }

    pub(super) fn pools_of(&self, group: usize) -> (Vec<usize>, Assignment) {
        let pools = &self.settings.pools;
        if group < pools.len() {
            return (vec![group], pools[group].assignment);
        }
        let of_listener = group.checked_sub(pools.len() + 1).and_then(|at| places(&self.settings.listeners[at]));
        let is_there = |pool: &usize| !pools[*pool].is_gone;
        let all = of_listener.unwrap_or_else(|| (0..pools.len()).filter(is_there).collect());
        let is_shared = |pool: &usize| pools[*pool].assignment != Assignment::Dedicated;
        let shared: Vec<usize> = all.iter().copied().filter(is_shared).collect();
        if shared.is_empty() {
            return (vec![all[0]], Assignment::Dedicated);
        }
        let sticky = shared.iter().any(|pool| pools[*pool].assignment == Assignment::Client);
        (shared, if sticky { Assignment::Client } else { Assignment::RoundRobin })
    }

    pub(super) fn group_of(&self, client: usize, line: &Line) -> Option<usize> {
        let Some(name) = &line.pool else { return Some(self.clients[client].group) };
        let pool = self.settings.pools.iter().position(|pool| pool.id == *name)?;
        self.may_name(client, pool).then_some(pool)
    }

    /// All messages of a client that name no pool go to this one now. If it was another one until now, that is paused, the
    /// client has no worker there, and this is the first of those that it may use instead.
    pub fn goes_to(&mut self, client: usize, pool: usize) {
        let at = &self.clients[client];
        let (pools, _) = self.pools_of(at.group);
        if pools == [pool] {
            return;
        }
        assert!(
            pools.iter().all(|pool| self.paused.contains(pool)),
            "client {client} leaves pools {pools:?}, which go on"
        );
        assert!(
            pools.iter().all(|pool| self.is_dedicated(*pool)),
            "client {client} leaves pools {pools:?}, which are shared"
        );
        assert_eq!(self.settings.listeners[at.listener].pool, None, "client {client} leaves the pool of its listener");
        assert!(at.assigned.iter().all(|(of, _)| *of != at.group), "client {client} leaves its worker");
        let goes_on = |pool: &usize| self.is_dedicated(*pool) && !self.paused.contains(pool);
        assert_eq!(
            self.offered(at.listener).into_iter().find(goes_on),
            Some(pool),
            "client {client} is moved elsewhere"
        );
        self.clients[client].group = pool;
    }

    /// Whether messages of a client may name a pool.
    pub(super) fn may_name(&self, client: usize, pool: usize) -> bool {
        let offered = places(&self.settings.listeners[self.clients[client].listener]);
        !self.settings.pools[pool].is_gone && offered.is_none_or(|pools| pools.contains(&pool))
    }

    /// A client was assigned a worker by one of the lines `numbers`, which was not delivered.
    pub fn claimed(&mut self, now: Moment, client: usize, worker: usize, numbers: &[usize]) {
        if self.workers[worker].owner.is_some() {
            return;
        }
        let asks = |line: &&Line| matches!(line.kind, Kind::Request | Kind::Notification) && line.targets().is_empty();
        let lines = numbers.iter().map(|number| &self.lines[*number]).filter(asks);
        let groups = lines.filter_map(|line| self.group_of(client, line));
        let is_it = |group: &usize| {
            let (pools, assignment) = self.pools_of(*group);
            let has = self.clients[client].assigned.iter().any(|(of, has)| of == group && self.workers[*has].takes);
            assignment == Assignment::Dedicated && pools.contains(&self.workers[worker].pool) && !has
        };
        let group = groups.into_iter().find(is_it).expect("a client gets a worker of its own for a line");
        self.workers[worker].owner = Some(client);
        self.counts_turn(now, client);
        self.clients[client].assigned.retain(|(of, _)| *of != group);
        self.clients[client].assigned.push((group, worker));
    }

    /// A client was assigned a worker, or leaves: its source has to wait before it gets the next one.
    pub fn counts_turn(&mut self, now: Moment, client: usize) {
        self.slots.count_turn(now, self.clients[client].source);
    }

    /// Whether a client that cannot wait for its turn may be refused a worker, though there is one.
    pub(super) fn is_paced(&self, now: Moment, client: usize, line: &Line) -> bool {
        self.drain.is_quiescing()
            && self.awaits_turn(client, line)
            && self.slots.is_paced(now, self.clients[client].source)
    }

    /// A client has ended its input.
    pub fn half_closed(&mut self, now: Moment, client: usize) {
        self.counts_turn(now, client);
        self.clients[client].half_closed = true;
    }

    /// A client waits until it may send a line, or stops waiting.
    pub fn waits(&mut self, now: Moment, at: usize, line: Option<usize>) {
        let client = &mut self.clients[at];
        let since = client.waits_since.take();
        // It may be paused for the very line that it has waited with.
        if let Some(since) = since {
            client.has_waited = now.since(since);
        }
        client.waits_since = line.map(|_| since.unwrap_or(now));
        client.waits_with = line;
        self.may_stay_where_it_waits(at, line);
    }

    /// A client that waits until a worker has room may have been assigned that one already.
    fn may_stay_where_it_waits(&mut self, client: usize, line: Option<usize>) {
        let Some(line) = line else { return };
        for to in self.fate_of_client_line(Moment::default(), client, &self.lines[line]).to {
            if let Party::Worker(worker) = to {
                self.workers[worker].perhaps_of.insert(client);
            }
        }
    }

    /// Whether a client may have to wait for a worker to be started.
    pub fn awaits_worker(&self, client: usize) -> bool {
        let Some(line) = self.clients[client].waits_with.map(|line| &self.lines[line]) else { return false };
        if self.awaits_turn(client, line) {
            return true;
        }
        if self.settings.limits.hold.is_zero() {
            return false;
        }
        let lacks = |fate: &Fate| fate.lost.contains(&Reason::NoWorker);
        let fate = self.fate_of_client_line(Moment::default(), client, line);
        // The reason for its refusal may have arisen while it waits.
        let is_vacant = || {
            let group = self.group_of(client, line).filter(|group| self.listens_to(client, *group).is_none());
            group.is_some_and(|group| lacks(&self.any_worker_for(Moment::default(), client, group)))
        };
        // And so may another client's session that it may use.
        let is_own = |name: &String| self.sessions.iter().any(|at| at.name == *name && at.client == client);
        lacks(&fate) || (fate.to.is_empty() || !line.way().is_some_and(is_own)) && is_vacant()
    }

    /// Whether a client may have to wait for its turn to get a worker.
    fn awaits_turn(&self, client: usize, line: &Line) -> bool {
        let Some(group) = self.group_of(client, line) else { return false };
        let has = |(of, worker): &(usize, usize)| *of == group && self.workers[*worker].takes;
        self.pools_of(group).1 == Assignment::Dedicated && !self.clients[client].assigned.iter().any(has)
    }

    /// What a client waits with, and its predicted outcome.
    pub fn waiting_text(&self, party: Party) -> String {
        let Party::Client(client) = party else { return String::new() };
        let line = self.clients[client].waits_with;
        line.map_or_else(String::new, |line| {
            let fate = self.fate_of_client_line(Moment::default(), client, &self.lines[line]);
            format!("line {line}: to {:?}, lost {:?}", fate.to, fate.lost)
        })
    }

    pub(super) fn waits_for(&self, client: usize, worker: usize) -> bool {
        let line = self.clients[client].waits_with.filter(|_| !self.clients[client].closed);
        // The reason for its refusal may have arisen while it waits, and its names are looked up once there is room.
        let is_awaited = |fate: Fate| {
            fate.to.is_empty()
                || fate.to.contains(&Party::Worker(worker))
                || fate.lost.contains(&Reason::UnknownRequest)
        };
        line.is_some_and(|line| is_awaited(self.fate_of_client_line(Moment::default(), client, &self.lines[line])))
    }

    /// Whether a client is read with pauses, as a crash suspect or because its cancellations name nothing.
    pub fn is_suspect(&self, now: Moment, client: usize) -> bool {
        self.clients[client].penalty.holds(now)
    }

    /// A client's descriptor is closed.
    pub fn gone(&mut self, client: usize) {
        self.clients[client].gone = true;
        self.outputs.close(Party::Client(client));
    }

    /// A client is being closed: its state is settled. If it waits for answers, it needs an `excuse`.
    pub fn closing(&mut self, now: Moment, client: usize, how: Close, why: Reason, excuse: bool) {
        let me = Party::Client(client);
        let is_awaited = |request: &Request| request.asker == Some(me) && !Self::may_have_left(request, now);
        let waits = self.to_workers.iter().any(is_awaited);
        let drains = (self.clients[client].half_closed || self.drain.is_quiescing()) && why != Reason::ListenerRemoved;
        assert!(!(waits && drains) || excuse, "client {client} is closed before its answers have come");
        if std::mem::replace(&mut self.clients[client].closed, true) {
            return;
        }
        if why == Reason::ShuttingDown {
            self.clients[client].refused_for = why;
        }
        if matches!(why, Reason::ClientMalformed | Reason::ClientLineTooLong) {
            assert!(!waits, "client {client} is closed and not notified what becomes of its requests");
            self.step.excuse_client(client);
        }
        self.counts_turn(now, client);
        // A client that holds the memory by its queued output can be sent nothing.
        let is_mute = how == Close::Now && self.outputs.queued(me) > 0;
        let is_told = why == Reason::MemoryLimit && !is_mute;
        let lost_for = if is_told { why } else { Reason::RequestDiscarded };
        for at in 0..self.to_workers.len() {
            if self.to_workers[at].asker == Some(me) {
                self.to_workers[at].asker = None;
                self.to_workers[at].orphaned = Some(now);
                let was_cancelled = self.to_workers[at].cancelled.is_some();
                self.count(if was_cancelled && !is_told { Reason::Cancelled } else { lost_for });
            }
        }
        self.leave_unanswered(now, client);
        for session in std::mem::take(&mut self.sessions) {
            if session.client == client {
                self.hold(session);
            } else {
                self.sessions.push(session);
            }
        }
        self.let_go();
    }

    /// A client's cancellation named nothing. A client that is alone keeps no other waiting.
    pub(super) fn rests(&mut self, now: Moment, client: usize) {
        let is_late = self.clients[client].penalty.is_late();
        let is_alone = self.clients.iter().filter(|client| !client.gone).count() == 1;
        if !is_late && !is_alone {
            self.clients[client].penalty.refused(now);
        }
    }

    /// The effects that a client's line may have had before it was refused.
    pub(super) fn perhaps_done(&mut self, now: Moment, client: usize, line: &Line) {
        if let Some(group) = self.group_of(client, line) {
            let (pools, assignment) = self.pools_of(group);
            let dedicated = pools.into_iter().filter(|_| assignment == Assignment::Dedicated);
            self.step.may_have_taken(dedicated);
        }
        // It may have been looked up before it was refused.
        let names = line.names();
        for session in self.sessions.iter_mut().filter(|at| at.client == client && names.contains(&&at.name)) {
            session.perhaps_used = now;
        }
        for (name, sure) in &mut self.clients[client].lost {
            *sure &= !(line.loads() && names.contains(&&*name));
        }
    }

    /// A client was assigned a worker in one of its groups.
    pub(super) fn assigned(&mut self, now: Moment, client: usize, group: usize, worker: usize) {
        let assignment = self.pools_of(group).1;
        if assignment != Assignment::RoundRobin {
            self.clients[client].assigned.retain(|(of, _)| *of != group);
            self.clients[client].assigned.push((group, worker));
        }
        if assignment == Assignment::Dedicated {
            let meant_for = self.workers[worker].meant_for;
            assert!(meant_for.is_none_or(|meant| meant == client), "worker {worker} was started for another client");
            let owner = self.workers[worker].owner.replace(client);
            assert!(owner.is_none_or(|owner| owner == client), "worker {worker} has two clients");
            if owner.is_none() {
                self.counts_turn(now, client);
            }
        }
    }
}

/// The places of the pools that a listener offers, if they are not all.
fn places(listener: &Listener) -> Option<Vec<usize>> {
    listener.pools.as_ref().map(|pools| pools.iter().map(|pool| pool.index()).collect())
}
