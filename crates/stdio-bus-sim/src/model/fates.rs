//! The possible outcomes of a line: which peers may get it, and the reasons for which it may be lost.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Fate, Model, Request, Worker};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN, Pool, SessionAccess};
use crate::line::{Kind, Line, Party, is_plain, meaning, of_other_type};

/// How long a client waits for a worker of its own.
const TURN_AWAITED: Duration = Duration::from_secs(30);

impl Model {
    /// Which workers may take a message of `client` that belongs to no session.
    pub(super) fn any_worker_for(&self, now: Moment, client: usize, group: usize) -> Fate {
        let (pools, assignment) = self.pools_of(group);
        if let Some((_, worker)) = self.clients[client].assigned.iter().find(|(of, _)| *of == group) {
            let is_its_own = self.is_own(client, *worker);
            if (is_its_own || assignment == Assignment::Client) && self.workers[*worker].takes {
                return Fate { group: Some(group), ..Fate::to(Party::Worker(*worker)) };
            }
            if is_its_own {
                return Fate::lost(Reason::RequestLost);
            }
        }
        // A paused pool gets what names none only if the other ones are paused as well.
        let gets_some =
            |pool: &usize| !self.paused.contains(pool) || pools.iter().all(|pool| self.paused.contains(pool));
        let serves = |at: &Worker| at.serves && pools.contains(&at.pool) && gets_some(&at.pool);
        let may_keep = |worker: &Worker| assignment == Assignment::Client && worker.perhaps_of.contains(&client);
        let is_for_it = |worker: &Worker| worker.meant_for.is_none_or(|meant| meant == client);
        let is_free = |worker: &Worker| worker.takes && worker.owner.is_none() && is_for_it(worker);
        let free = |worker: &Worker| is_free(worker) && (serves(worker) || may_keep(worker));
        let mut to: Vec<Party> = self
            .workers
            .iter()
            .enumerate()
            .filter(|(_, worker)| free(worker))
            .map(|(at, _)| Party::Worker(at))
            .collect();
        let is_in_turn = |worker: &Worker| serves(worker) && !may_keep(worker) && !self.paused.contains(&worker.pool);
        self.pass_over_unresponsive(now, &mut to, is_in_turn);
        self.pass_over_tried(now, &mut to, is_in_turn);
        let taken = self.step.has_perhaps_taken(&pools);
        // A draining daemon starts no worker for a notification.
        let starts_none = self.drain.is_quiescing();
        let may_lack = assignment == Assignment::Dedicated
            && (taken || starts_none || self.clients[client].has_waited >= TURN_AWAITED);
        let any_serves = |to: &Party| matches!(to, Party::Worker(worker) if serves(&self.workers[*worker]));
        let lost = if may_lack || !to.iter().any(any_serves) { vec![Reason::NoWorker] } else { Vec::new() };
        Fate { to, lost, group: Some(group) }
    }

    /// The worker to which a client listens, under its name or on this connection: its other messages go there.
    pub(super) fn listens_to(&self, client: usize, group: usize) -> Option<usize> {
        let (pools, _) = self.pools_of(group);
        let me = &self.clients[client];
        let is_me = |other: usize| {
            let it = &self.clients[other];
            other == client || me.name.is_some() && (it.name, it.listener) == (me.name, me.listener)
        };
        let listens = self.to_workers.iter().rev().filter(|request| {
            let is_mine = matches!(request.asker, Some(Party::Client(asker)) if is_me(asker));
            is_mine && request.cancelled.is_none() && self.lines[request.line].listens()
        });
        let workers = listens.filter_map(|request| match request.answerer {
            Party::Worker(worker) => Some(worker),
            Party::Client(_) => None,
        });
        let is_there = |at: &Worker| at.takes && at.owner.is_none() && pools.contains(&at.pool);
        workers.into_iter().find(|worker| is_there(&self.workers[*worker]))
    }

    fn usable(&self, workers: impl Iterator<Item = usize>) -> Fate {
        let mut fate = Fate::default();
        for worker in workers {
            if self.workers[worker].takes {
                fate.to.push(Party::Worker(worker));
            } else {
                fate.lost.push(Reason::RequestLost);
            }
        }
        fate
    }

    pub(super) fn fate_of_client_line(&self, now: Moment, client: usize, line: &Line) -> Fate {
        let me = Party::Client(client);
        if line.kind == Kind::Response {
            let id = line.ids.id.as_deref().map(meaning).unwrap_or_default();
            return match self.to_clients.iter().find(|request| request.answerer == me && request.wire == id) {
                None => Fate::lost(Reason::UnknownId),
                Some(Request { asker: Some(Party::Worker(worker)), .. }) if self.workers[*worker].takes => {
                    Fate::to(Party::Worker(*worker))
                }
                Some(_) => Fate::lost(Reason::LateAnswer),
            };
        }
        if self.clients[client].closed {
            return Fate::lost(self.clients[client].refused_for);
        }
        if self.drain.is_refusing() || self.drain.is_quiescing() && line.kind == Kind::Request {
            return Fate::lost(Reason::ShuttingDown);
        }
        if line.ids.id.as_deref().is_some_and(|id| meaning(id).len() > MAX_REQUEST_ID_LEN + 2) {
            return Fate::lost(Reason::IdTooLong);
        }
        let mut fate = if !line.targets().is_empty() {
            self.fate_of_cancellation(client, line)
        } else if line.ids.progress.is_some() {
            match self.referred_to(&self.to_clients, me, line).and_then(|request| request.asker) {
                Some(Party::Worker(worker)) if self.workers[worker].takes => Fate::to(Party::Worker(worker)),
                _ => Fate::lost(Reason::UnknownRequest),
            }
        } else if let Some(name) = line.way() {
            self.fate_in_session(now, client, line, name)
        } else {
            match self.group_of(client, line) {
                Some(group) => match self.listens_to(client, group) {
                    Some(worker) => Fate::to(Party::Worker(worker)),
                    None => self.any_worker_for(now, client, group),
                },
                None => Fate::lost(Reason::UnknownPool),
            }
        };
        fate = self.keep(fate, Reason::SessionDenied, |worker| {
            self.may_use(client, line, worker) && !self.is_bound(client, line, worker)
        });
        fate = self.keep(fate, Reason::MethodDenied, |worker| {
            let denied = &self.settings.pools[self.workers[worker].pool].deny_methods;
            denied.iter().all(|method| method != line.method)
        });
        let denies = |pool: &usize| self.settings.pools[*pool].deny_methods.iter().any(|method| method == line.method);
        // The worker that a client has kept from before a reload may be of another pool than its group.
        if fate.group.is_some_and(|group| self.pools_of(group).0.iter().all(denies)) {
            fate.lost.push(Reason::MethodDenied);
        }
        // It does not matter which of several faults is reported.
        if !line.names().is_empty() && !fate.lost.is_empty() {
            fate.lost.push(Reason::SessionDenied);
        }
        let denied = |pool: &Pool| pool.deny_methods.iter().any(|method| method == line.method);
        if !fate.lost.is_empty() && self.settings.pools.iter().any(denied) {
            fate.lost.push(Reason::MethodDenied);
        }
        if line.targets().is_empty() && line.ids.request_id.is_some() {
            fate = self.keep(fate, Reason::UnknownRequest, |worker| self.may_mean(client, line, worker));
        }
        fate
    }

    /// Keeps only those workers in the outcome of a line for which `may` returns true.
    fn keep(&self, mut fate: Fate, reason: Reason, may: impl Fn(usize) -> bool) -> Fate {
        let before = fate.to.len();
        fate.to.retain(|to| matches!(to, Party::Worker(worker) if may(*worker)));
        if fate.to.len() < before {
            fate.lost.push(reason);
        }
        fate
    }

    /// A cancellation is sent to the worker that has the request, if the request is the sender's own.
    fn fate_of_cancellation(&self, client: usize, line: &Line) -> Fate {
        let mut fate = Fate::default();
        for request in self.targets(client, line) {
            match request.answerer {
                Party::Worker(worker) if self.workers[worker].takes => fate.to.push(request.answerer),
                _ => fate.lost.extend([Reason::UnknownRequest, Reason::RequestLost]),
            }
        }
        if fate.to.is_empty() && fate.lost.is_empty() {
            fate.lost.push(Reason::UnknownRequest);
        }
        // Another fault may be reported instead.
        if line.names().iter().any(|name| name.len() > MAX_SESSION_ID_LEN) {
            fate.lost.push(Reason::SessionIdTooLong);
        }
        if !line.names().is_empty() && fate.to.is_empty() {
            fate.lost.push(Reason::SessionDenied);
        }
        if self.group_of(client, line).is_none() {
            fate.lost.push(Reason::UnknownPool);
        }
        fate
    }

    /// The sender's requests that a cancellation may mean.
    pub(super) fn targets(&self, client: usize, line: &Line) -> Vec<&Request> {
        let meant: Vec<String> = line.targets().into_iter().map(|token| meaning(token)).collect();
        let is_meant = |request: &&Request| {
            let id = meaning(&request.token);
            request.asker == Some(Party::Client(client)) && meant.iter().all(|meant| *meant == id)
        };
        self.to_workers.iter().filter(is_meant).collect()
    }

    /// Whether a line may name its request to this worker: it must not be another client's.
    fn may_mean(&self, client: usize, line: &Line, worker: usize) -> bool {
        let Some(token) = &line.ids.request_id else { return true };
        let mine = self.named(&self.to_workers, Party::Client(client), line);
        let taken = |at: &Request| at.answerer == Party::Worker(worker) && at.wire == meaning(token);
        mine.iter().any(|request| request.answerer == Party::Worker(worker))
            || is_plain(token) && meaning(token).len() <= MAX_REQUEST_ID_LEN + 2 && !self.to_workers.iter().any(taken)
    }

    /// Adds to the outcome of a line that it may name a session that its client lost with its worker.
    fn may_be_lost(&self, client: usize, line: &Line, fate: &mut Fate) {
        let has = |name: &String| self.sessions.iter().any(|at| at.client == client && at.name == *name);
        for (lost, sure) in self.clients[client].lost.iter().filter(|(lost, _)| line.names().contains(&lost)) {
            if !line.loads() {
                fate.lost.push(Reason::SessionLost);
                if *sure && !has(lost) {
                    fate.to.clear();
                }
            }
        }
    }

    fn fate_in_session(&self, now: Moment, client: usize, line: &Line, name: &str) -> Fate {
        if name.len() > MAX_SESSION_ID_LEN {
            return Fate { lost: vec![Reason::SessionIdTooLong, Reason::SessionDenied], ..Fate::default() };
        }
        let mut fate = self.fate_of_name(now, client, line, name);
        if line.inner.as_ref().is_some_and(|inner| inner.len() > MAX_SESSION_ID_LEN) {
            fate.to.clear();
            fate.lost.extend([Reason::SessionIdTooLong, Reason::SessionDenied]);
        }
        self.may_be_lost(client, line, &mut fate);
        fate
    }

    fn fate_of_name(&self, now: Moment, client: usize, line: &Line, name: &str) -> Fate {
        let mine = self.sessions.iter().filter(|session| session.client == client && session.name == name);
        let mine: Vec<usize> = mine.map(|session| session.worker).collect();
        if line.pool.is_none() && !mine.is_empty() {
            return self.usable(mine.into_iter());
        }
        let Some(group) = self.group_of(client, line) else { return Fate::lost(Reason::UnknownPool) };
        let (pools, assignment) = self.pools_of(group);
        if assignment == Assignment::Dedicated {
            return self.any_worker_for(now, client, group);
        }
        let within = |worker: &usize| pools.contains(&self.workers[*worker].pool);
        let mine: Vec<usize> = mine.into_iter().filter(within).collect();
        if !mine.is_empty() {
            return self.usable(mine.into_iter());
        }
        let theirs = self.sessions.iter().filter(|session| session.name == name).map(|session| session.worker);
        let theirs: Vec<usize> = theirs.filter(within).collect();
        let held = self.held.iter().filter(|held| held.name == name).map(|held| held.worker);
        // Who asks for a session gets it from another worker if this one reads no more.
        let may_have = |worker: &usize| within(worker) && (self.workers[*worker].takes || !line.loads());
        let held: Vec<usize> = held.filter(may_have).collect();
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        match (theirs.is_empty(), held.is_empty()) {
            (true, true) => match (&line.pool, self.worker_of_inner(client, line)) {
                // A new name at top level joins the session in the same line.
                (None, Some(worker)) => self.usable(std::iter::once(worker)),
                _ => self.any_worker_for(now, client, group),
            },
            (false, _) if shared => self.usable(theirs.into_iter()),
            (true, false) if shared || line.loads() => self.usable(held.into_iter()),
            _ => Fate::lost(Reason::SessionDenied),
        }
    }

    /// The worker of the session that a line names in its params, if its sender owns it.
    fn worker_of_inner(&self, client: usize, line: &Line) -> Option<usize> {
        let inner = line.top.as_ref().and(line.inner.as_ref())?;
        self.sessions.iter().find(|at| at.client == client && at.name == *inner).map(|session| session.worker)
    }

    /// The requests of `asker` that a line's requestId may mean.
    pub(super) fn named<'a>(&self, requests: &'a [Request], asker: Party, line: &Line) -> Vec<&'a Request> {
        let Some(id) = line.ids.request_id.as_deref().map(meaning) else { return Vec::new() };
        let is_named = |request: &&Request| request.asker == Some(asker) && meaning(&request.token) == id;
        requests.iter().filter(is_named).collect()
    }

    /// The request that a message belongs to, among those that its sender has to answer.
    pub(super) fn referred_to<'a>(&self, requests: &'a [Request], from: Party, line: &Line) -> Option<&'a Request> {
        let (progress, subscription) =
            (line.ids.progress.as_deref().map(meaning), line.ids.subscription.as_deref().map(meaning));
        let is_it = |request: &&Request| {
            let token = request.progress.as_ref().map(|token| &token.wire);
            request.answerer == from
                && (progress.is_some() && progress.as_ref() == token || subscription.as_ref() == Some(&request.wire))
        };
        requests.iter().find(is_it)
    }

    pub(super) fn fate_of_worker_line(&self, worker: usize, line: &Line) -> Fate {
        let me = Party::Worker(worker);
        if line.kind == Kind::Response {
            return match self.request_answered(worker, line).map(|at| &self.to_workers[at]) {
                None if self.may_be_late(worker, line) => Fate::lost(Reason::LateAnswer),
                None => Fate::lost(Reason::UnknownId),
                Some(Request { asker: Some(asker), .. }) => Fate::to(*asker),
                Some(_) => Fate::lost(Reason::LateAnswer),
            };
        }
        if line.ids.id.as_deref().is_some_and(|id| meaning(id).len() > MAX_REQUEST_ID_LEN + 2) {
            return Fate::lost(Reason::IdTooLong);
        }
        let owner = self.workers[worker].owner;
        let target = if let Some(name) = line.way() {
            let session = self.sessions.iter().find(|session| session.worker == worker && session.name == *name);
            let session = session.filter(|session| !self.may_be_anothers(session));
            session.map(|session| session.client).or(owner).ok_or(Reason::UnknownSession)
        } else if line.ids.progress.is_some() || line.ids.subscription.is_some() {
            match self.referred_to(&self.to_workers, me, line).and_then(|request| request.asker) {
                Some(Party::Client(client)) => Ok(client),
                _ => owner.filter(|_| names_itself(line)).ok_or(Reason::UnknownRequest),
            }
        } else if line.ids.request_id.is_some() {
            let about = self.request_meant_by(worker, line);
            let client = about.and_then(|request| match line.kind {
                Kind::Notification => Some(request.answerer),
                _ => request.asker,
            });
            match client {
                Some(Party::Client(client)) => Ok(client),
                // What names a request that is over is for nobody, but for a client that has the worker for itself.
                _ => owner.ok_or(Reason::UnknownRequest),
            }
        } else {
            let all = self.broadcast_to(worker, line);
            if !all.is_empty() {
                return Fate { to: all.into_iter().map(Party::Client).collect(), ..Fate::default() };
            }
            self.only_client(worker).ok_or(Reason::Unroutable)
        };
        match target {
            Err(reason) => Fate::lost(reason),
            // It cannot answer any more.
            Ok(client) if self.clients[client].half_closed && line.kind == Kind::Request => {
                Fate::lost(Reason::UnknownSession)
            }
            Ok(client) if self.clients[client].closed => Fate::lost(Reason::UnknownSession),
            Ok(client) if self.names_anothers(worker, line, client) => Fate::lost(Reason::UnknownRequest),
            Ok(client) => Fate::to(Party::Client(client)),
        }
    }

    /// The recipients of a worker's line that names no client, if it is a broadcast.
    pub(super) fn broadcast_to(&self, worker: usize, line: &Line) -> BTreeSet<usize> {
        let Worker { owner, served, .. } = &self.workers[worker];
        if line.list().is_none() || owner.is_some() || served.len() < 2 {
            return BTreeSet::new();
        }
        served.iter().copied().filter(|client| !self.clients[*client].closed).collect()
    }

    /// Whether a notification names no pending request of its sender, but possibly another worker's that the client has
    /// still to answer.
    fn names_anothers(&self, worker: usize, line: &Line, client: usize) -> bool {
        let (Kind::Notification, Some(token)) = (line.kind, &line.ids.request_id) else { return false };
        let me = Party::Client(client);
        let is_it = |request: &&Request| request.answerer == me && (!is_plain(token) || request.wire == meaning(token));
        self.request_meant_by(worker, line).is_none_or(|request| request.answerer != me)
            && meaning(token).len() <= MAX_REQUEST_ID_LEN + 2
            && self.to_clients.iter().any(|request| is_it(&request))
    }

    /// A worker's notification is about a request of its own, its request about one of a client.
    pub(super) fn request_meant_by(&self, worker: usize, line: &Line) -> Option<&Request> {
        let me = Party::Worker(worker);
        if line.kind == Kind::Notification {
            return self.named(&self.to_clients, me, line).first().copied();
        }
        let id = line.ids.request_id.as_deref().map(meaning)?;
        self.to_workers.iter().find(|request| request.answerer == me && request.wire == id)
    }

    /// The request that a worker's response answers: the one with its id, else the one that has the string of its number,
    /// or the number of its string.
    pub(super) fn request_answered(&self, worker: usize, line: &Line) -> Option<usize> {
        let id = line.ids.id.as_deref().map(meaning)?;
        let find = |id: &str| {
            let is_it = |request: &Request| request.answerer == Party::Worker(worker) && request.wire == id;
            self.to_workers.iter().position(is_it)
        };
        let other = || of_other_type(&id).filter(|_| !self.may_be_late(worker, line));
        find(&id).or_else(|| find(&other()?))
    }

    /// Whether an unsolicited response may answer a request that has left the table.
    fn may_be_late(&self, worker: usize, line: &Line) -> bool {
        let id = line.ids.id.as_deref().map(meaning).filter(|id| id.len() <= MAX_REQUEST_ID_LEN + 2);
        id.is_some_and(|id| self.workers[worker].retired.may_have(&id))
    }
}

/// Whether a progress token may be one that a client has chosen and the worker was sent.
fn names_itself(line: &Line) -> bool {
    let name = line.ids.progress.as_ref().or(line.ids.subscription.as_ref());
    name.is_some_and(|name| is_plain(name) && meaning(name).len() <= MAX_REQUEST_ID_LEN + 2)
}
