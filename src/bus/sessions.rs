//! Sessions: who owns one, who learns of one, who may name one, and who has lost one (spec 3.4, 6.1, design 2.3).
//!
//! A session is one name on one worker. While its owner is connected it belongs to nobody else; when the owner has
//! left, the name is held: nobody gets it but a client to whom the worker gives it.
//!
//! Invariants: every index entry points at a live slot; a session has a live worker and a live owner, or none and is
//! held.

use std::collections::VecDeque;
use std::time::Duration;

use super::Bus;
use super::message::Refusal;
use super::peer::{ClientKey, Moment, Peer, SessionKey, SessionMark, Text, WorkerKey};
use super::report::{Reason, Report};
use super::settings::{MAX_SESSION_ID_LEN, MAX_SESSIONS};
use super::table::{Index, Table};
use super::worker::Worker;

/// Names that are held after their owners have left, over all workers; beyond them the oldest one goes.
const MAX_HELD: usize = 4096;
/// A claim that nobody uses for so long is forgotten.
const CLAIM_LASTS: Duration = Duration::from_secs(60);

/// How much a session's owner has to show for it. A higher rank takes the name away from a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// It used the name first (spec 6.1.1).
    Claimed,
    /// The worker answered a request in it with a result.
    Confirmed,
    /// The worker gave it the name, in `result.sessionId` or by loading it.
    Issued,
}

/// A session: one worker, one name, one owner (spec 3.4).
pub struct Session {
    /// Who owns it; none while the name is held.
    pub client: Option<ClientKey>,
    /// The worker it is bound to.
    pub worker: WorkerKey,
    /// The decoded sessionId.
    pub name: Text,
    /// How certain it is that it belongs to its owner.
    pub rank: Rank,
    /// The worker may know it for somebody else's: it is held when its present owner leaves.
    pub was_held: bool,
    /// Its owner has asked the worker to load it.
    pub is_lent: bool,
    /// Requests in it that the worker has not answered.
    pub pending: u32,
    /// When its owner used it last.
    pub used: Moment,
    /// Its place among the client's sessions.
    pub at_client: u32,
    /// Its place among the worker's sessions.
    pub at_worker: u32,
}

/// All sessions, by owner and by worker.
pub struct Sessions {
    /// The sessions, and the names that are held.
    pub table: Table<Session, SessionMark>,
    by_owner: Index,
    by_worker: Index,
    owned: usize,
    /// Held names, the oldest first; some have an owner again, or are gone.
    held: VecDeque<SessionKey>,
    /// When the next claim may have to be forgotten.
    claims_due: Option<Moment>,
}

const OWNER: u8 = 0;
const WORKER: u8 = 1;

impl Default for Sessions {
    fn default() -> Self {
        Self {
            table: Table::new(MAX_SESSIONS + MAX_HELD),
            by_owner: Index::new(MAX_SESSIONS),
            by_worker: Index::new(MAX_SESSIONS + MAX_HELD),
            owned: 0,
            held: VecDeque::new(),
            claims_due: None,
        }
    }
}

impl Sessions {
    /// Sessions that have an owner; the limit is on these.
    pub fn owned(&self) -> usize {
        self.owned
    }

    fn is_full(&self) -> bool {
        self.owned >= MAX_SESSIONS
    }

    /// The session of this name that a client owns; the first one, if it has several on different workers.
    pub fn of_client(&self, client: ClientKey, name: &[u8]) -> Option<SessionKey> {
        let hash = self.by_owner.hash(client.to_bits().get(), OWNER, name);
        self.by_owner
            .find_oldest(&self.table, hash, |session| session.client == Some(client) && session.name.as_bytes() == name)
    }

    /// The session of this name on a worker, owned or held.
    pub fn of_worker(&self, worker: WorkerKey, name: &[u8]) -> Option<SessionKey> {
        let hash = self.by_worker.hash(worker.to_bits().get(), WORKER, name);
        self.by_worker.find(&self.table, hash, |session| session.worker == worker && session.name.as_bytes() == name)
    }

    /// Adds a session that [`Sessions::of_worker`] does not know yet; none if the table is full.
    fn insert(&mut self, client: Option<ClientKey>, worker: WorkerKey, name: &[u8], rank: Rank) -> Option<SessionKey> {
        debug_assert!(self.of_worker(worker, name).is_none());
        let session = Session {
            client,
            worker,
            name: name.into(),
            rank,
            was_held: false,
            is_lent: false,
            pending: 0,
            used: Moment::default(),
            at_client: 0,
            at_worker: 0,
        };
        let key = self.table.insert(session)?;
        self.by_worker.insert(self.by_worker.hash(worker.to_bits().get(), WORKER, name), key);
        if let Some(client) = client {
            self.by_owner.insert(self.by_owner.hash(client.to_bits().get(), OWNER, name), key);
            self.owned += 1;
        }
        Some(key)
    }

    /// Gives a session another owner, or none.
    fn change_owner(&mut self, key: SessionKey, client: Option<ClientKey>) {
        let Some(session) = self.table.get(key) else { return };
        if let Some(before) = session.client {
            let hash = self.by_owner.hash(before.to_bits().get(), OWNER, session.name.as_bytes());
            self.by_owner.remove(hash, key);
            self.owned -= 1;
        }
        if let Some(after) = client {
            let hash = self.by_owner.hash(after.to_bits().get(), OWNER, session.name.as_bytes());
            self.by_owner.insert(hash, key);
            self.owned += 1;
        }
        if let Some(session) = self.table.get_mut(key) {
            session.client = client;
        }
    }

    /// Takes a session out.
    fn remove(&mut self, key: SessionKey) -> Option<Session> {
        self.change_owner(key, None);
        let session = self.table.get(key)?;
        let hash = self.by_worker.hash(session.worker.to_bits().get(), WORKER, session.name.as_bytes());
        self.by_worker.remove(hash, key);
        self.table.remove(key)
    }

    /// Puts a held name behind the others; gives the oldest one if there are too many.
    fn hold(&mut self, key: SessionKey) -> Option<SessionKey> {
        self.held.push_back(key);
        let table = &self.table;
        let is_held = |key: &SessionKey| table.get(*key).is_some_and(|session| session.client.is_none());
        if self.held.len() > 2 * MAX_HELD {
            self.held.retain(is_held);
        }
        if self.table.len() - self.owned <= MAX_HELD {
            return None;
        }
        while let Some(oldest) = self.held.pop_front() {
            if self.table.get(oldest).is_some_and(|session| session.client.is_none()) {
                return Some(oldest);
            }
        }
        None
    }

    /// When claims have to be looked at.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.claims_due
    }

    /// Panics if an index and the table disagree.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_worker.len(), self.table.len());
        assert_eq!(self.by_owner.len(), self.owned);
        assert!(self.owned <= MAX_SESSIONS && self.table.len() - self.owned <= MAX_HELD);
        assert_eq!(self.table.iter().filter(|(_, session)| session.client.is_some()).count(), self.owned);
        for (key, session) in self.table.iter() {
            assert_eq!(self.of_worker(session.worker, session.name.as_bytes()), Some(key));
            if let Some(client) = session.client {
                assert!(self.of_client(client, session.name.as_bytes()).is_some());
            }
        }
    }
}

/// What became of a `result.sessionId`.
pub(super) enum Learned {
    /// The client that asked owns it, or somebody else keeps it.
    Known,
    /// There is no room for it.
    NoRoom,
}

impl Bus {
    /// The session of this name that a client owns. Most clients have one: that is found without its hash.
    pub(super) fn session_of_client(&self, client: ClientKey, name: &[u8]) -> Option<SessionKey> {
        let sessions = &self.clients.get(client)?.end.sessions;
        match sessions.len() {
            0 => None,
            1 => sessions
                .first()
                .filter(|key| self.sessions.table.get(*key).is_some_and(|session| session.name.as_bytes() == name)),
            _ => self.sessions.of_client(client, name),
        }
    }

    /// Whether the workers of this one's pool give out the names of their sessions, so that only what was given out
    /// may be named.
    pub(super) fn issues_names(&self, worker: WorkerKey) -> bool {
        self.workers.get(worker).is_some_and(|worker| self.gives_out_names(worker))
    }

    pub(super) fn gives_out_names(&self, worker: &Worker) -> bool {
        worker.owner.is_none() && (worker.creating > 0 || self.pools[worker.pool].issues_names)
    }

    /// A session that its owner uses by naming it. None if there is no room, nor anybody who has to make some.
    pub(super) fn claim_session(
        &mut self,
        now: Moment,
        client: ClientKey,
        worker: WorkerKey,
        name: &[u8],
    ) -> Option<SessionKey> {
        let key = self.new_session(now, client, worker, name, Rank::Claimed)?;
        if self.sessions.claims_due.is_none() {
            self.sessions.claims_due = Some(now.after(CLAIM_LASTS));
        }
        Some(key)
    }

    fn new_session(
        &mut self,
        now: Moment,
        client: ClientKey,
        worker: WorkerKey,
        name: &[u8],
        rank: Rank,
    ) -> Option<SessionKey> {
        if self.sessions.is_full() && !self.evict_session_for(now, client) {
            self.rests(now, client);
            return None;
        }
        let key = self.sessions.insert(Some(client), worker, name, rank)?;
        let at_worker = self.workers.get_mut(worker)?.end.sessions.join(key);
        let session = self.sessions.table.get_mut(key)?;
        session.at_worker = at_worker;
        session.used = now;
        self.join_owner(client, key);
        Some(key)
    }

    fn join_owner(&mut self, client: ClientKey, key: SessionKey) {
        let Some(client) = self.clients.get_mut(client) else { return };
        let at_client = client.end.sessions.join(key);
        if let Some(session) = self.sessions.table.get_mut(key) {
            session.at_client = at_client;
        }
    }

    fn leave_owner(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.table.get(key) else { return };
        let (Some(owner), place) = (session.client, session.at_client) else { return };
        let Some(client) = self.clients.get_mut(owner) else { return };
        let moved = client.end.sessions.leave(place);
        if let Some(moved) = moved.and_then(|moved| self.sessions.table.get_mut(moved)) {
            moved.at_client = place;
        }
    }

    /// Gives a held name to a client that asks the worker to load it; a refusal gives it back.
    pub(super) fn lend_session(&mut self, now: Moment, client: ClientKey, key: SessionKey) -> bool {
        if self.sessions.is_full() && !self.evict_session_for(now, client) {
            return false;
        }
        self.sessions.change_owner(key, Some(client));
        self.join_owner(client, key);
        let Some(session) = self.sessions.table.get_mut(key) else { return false };
        session.was_held = session.rank == Rank::Issued;
        session.is_lent = true;
        session.rank = Rank::Claimed;
        session.used = now;
        true
    }

    /// The worker did not load a session, or the request for it was never sent: it is as it was before.
    pub(super) fn unclaim_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.table.get_mut(key).filter(|session| session.rank == Rank::Claimed) else {
            return;
        };
        if session.was_held {
            session.rank = Rank::Issued;
            self.hold_session(key);
        } else {
            self.drop_session(key);
        }
    }

    /// The worker has answered a request in this session with a result.
    pub(super) fn confirm_session(&mut self, key: SessionKey, rank: Rank) {
        let Some(session) = self.sessions.table.get_mut(key) else { return };
        session.rank = session.rank.max(rank);
        if let (Rank::Issued, Some(owner)) = (session.rank, session.client)
            && let Some(owner) = self.clients.get_mut(owner)
        {
            owner.lost.forget(session.name.as_bytes());
        }
    }

    /// A worker has loaded a session for a client that has gone: it knows it from now on.
    pub(super) fn confirm_held(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.table.get_mut(key).filter(|session| session.client.is_none()) {
            session.rank = Rank::Issued;
        }
    }

    /// The answer to a request that loads this session will not be seen.
    pub(super) fn may_be_loaded(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.table.get_mut(key).filter(|session| session.rank == Rank::Claimed) else {
            return;
        };
        (session.was_held, session.is_lent) = (true, true);
        if session.client.is_none() {
            session.rank = Rank::Issued;
        }
    }

    /// A worker's answer names a session: it belongs to the client that asked, whoever used the name before. `creates`
    /// says that a new session was asked for.
    pub(super) fn learn_session(
        &mut self,
        now: Moment,
        client: ClientKey,
        worker: WorkerKey,
        name: &[u8],
        creates: bool,
    ) -> Learned {
        if name.len() > MAX_SESSION_ID_LEN || name.is_empty() {
            return Learned::Known;
        }
        if let Some(key) = self.sessions.of_worker(worker, name)
            && let Some(session) = self.sessions.table.get(key)
        {
            match session.client {
                // A worker that repeats what it is sent does not give out names by that.
                Some(owner) if owner == client && !creates => {
                    self.confirm_session(key, Rank::Confirmed);
                    return Learned::Known;
                }
                Some(owner) if owner == client => {
                    self.begins_to_issue(worker);
                    self.confirm_session(key, Rank::Issued);
                    return Learned::Known;
                }
                Some(_) if session.rank == Rank::Issued => {
                    self.report(now, Reason::SessionReused, Some(Peer::Worker(worker)), || {
                        format!("session \"{}\" belongs to another client already", name.escape_ascii())
                    });
                    return Learned::Known;
                }
                _ => self.drop_session(key),
            }
        }
        self.begins_to_issue(worker);
        if let Some(client) = self.clients.get_mut(client) {
            client.lost.forget(name);
        }
        match self.new_session(now, client, worker, name, Rank::Issued) {
            Some(_) => Learned::Known,
            None => Learned::NoRoom,
        }
    }

    /// A worker's answer names a session, and who asked has gone: nobody else gets it.
    pub(super) fn learn_of_nobody(&mut self, worker: WorkerKey, name: &[u8]) {
        if name.len() > MAX_SESSION_ID_LEN || name.is_empty() {
            return;
        }
        self.begins_to_issue(worker);
        if let Some(key) = self.sessions.of_worker(worker, name) {
            if self.sessions.table.get(key).is_some_and(|session| session.rank == Rank::Issued) {
                return;
            }
            self.drop_session(key);
        }
        if let Some(oldest) = self.sessions.held.front().copied()
            && self.sessions.table.len() - self.sessions.owned >= MAX_HELD
        {
            self.sessions.held.pop_front();
            self.drop_held(oldest);
        }
        let Some(key) = self.sessions.insert(None, worker, name, Rank::Issued) else { return };
        let at_worker = self.workers.get_mut(worker).map(|worker| worker.end.sessions.join(key));
        if let Some(session) = self.sessions.table.get_mut(key) {
            session.at_worker = at_worker.unwrap_or_default();
        }
        self.sessions.held.push_back(key);
    }

    fn begins_to_issue(&mut self, worker: WorkerKey) {
        if let Some(worker) = self.workers.get(worker) {
            self.pools[worker.pool].issues_names = true;
        }
    }

    /// The owner of a session leaves: the name goes to nobody as long as something of it may come. What the worker has
    /// given out it may speak of as long as it lives; of other names it knows only what it is asked.
    pub(super) fn hold_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.table.get_mut(key) else { return };
        if session.was_held {
            session.rank = Rank::Issued;
        }
        if session.rank < Rank::Issued && session.pending == 0 {
            return self.drop_session(key);
        }
        self.leave_owner(key);
        self.sessions.change_owner(key, None);
        if let Some(oldest) = self.sessions.hold(key) {
            self.drop_held(oldest);
        }
    }

    fn drop_held(&mut self, key: SessionKey) {
        if self.sessions.table.get(key).is_some_and(|session| session.client.is_none()) {
            self.drop_session(key);
        }
    }

    /// One request more is pending in a session.
    pub(super) fn session_waits_more(&mut self, key: Option<SessionKey>) {
        if let Some(session) = key.and_then(|key| self.sessions.table.get_mut(key)) {
            session.pending += 1;
        }
    }

    /// One request less is pending in a session; a name that was held for it alone is free again.
    pub(super) fn session_waits_less(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.table.get_mut(key) else { return };
        session.pending -= 1;
        if session.pending == 0 && session.client.is_none() && session.rank < Rank::Issued {
            self.drop_session(key);
        }
    }

    /// Forgets a session.
    pub(super) fn drop_session(&mut self, key: SessionKey) {
        self.leave_owner(key);
        let Some(session) = self.sessions.remove(key) else { return };
        if let Some(worker) = self.workers.get_mut(session.worker)
            && let Some(moved) = worker.end.sessions.leave(session.at_worker)
            && let Some(moved) = self.sessions.table.get_mut(moved)
        {
            moved.at_worker = session.at_worker;
        }
    }

    /// A worker has ended, and its session with it: its owner is told when it names it the next time.
    pub(super) fn lose_session(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.table.get(key)
            && (session.rank == Rank::Issued || session.was_held)
            && let Some(owner) = session.client.and_then(|owner| self.clients.get_mut(owner))
        {
            owner.lost.add(session.name.as_bytes());
        }
        self.drop_session(key);
    }

    /// Makes room for a session of `asker` at the cost of whoever holds most; false if that is the asker itself, or
    /// nothing can go.
    fn evict_session_for(&mut self, now: Moment, asker: ClientKey) -> bool {
        let Some(holder) = self.heaviest(asker, |client| client.end.sessions.len()) else {
            return false;
        };
        let held = self.clients.get(holder).into_iter().flat_map(|client| client.end.sessions.iter());
        let idle = held.filter_map(|key| Some((key, self.sessions.table.get(key)?)));
        let idle = idle.filter(|(_, session)| session.pending == 0);
        // Names of which the worker may know nothing go first, then who was silent longest.
        let Some((key, session)) = idle.min_by_key(|(_, session)| (session.rank > Rank::Claimed, session.used)) else {
            return false;
        };
        let number = self.clients.get(holder).map(|client| client.number);
        let name = session.name.as_bytes().escape_ascii().to_string();
        let report = self.reporter.report(now, Reason::SessionEvicted, || Report {
            client: number,
            ..Report::new(
                Reason::SessionEvicted,
                format!("the table is full, and this client holds most sessions: it loses \"{name}\", long unused"),
            )
        });
        self.tell(report);
        self.lose_session(key);
        true
    }

    /// Forgets claims that nobody uses.
    pub(super) fn tick_sessions(&mut self, now: Moment) {
        if self.sessions.claims_due.is_none_or(|due| due > now) {
            return;
        }
        let mut next = None;
        for key in self.sessions.table.keys() {
            let Some(session) = self.sessions.table.get(key) else { continue };
            if session.rank > Rank::Claimed || session.client.is_none() || session.was_held {
                continue;
            }
            let due = session.used.after(CLAIM_LASTS).max(now.after(CLAIM_LASTS / 60));
            if session.pending == 0 && now.since(session.used) >= CLAIM_LASTS {
                let owner = session.client.map(Peer::Client);
                self.report(now, Reason::ClaimExpired, owner, || "a session that no worker knows was not used".into());
                self.drop_session(key);
            } else {
                next = Some(next.map_or(due, |next: Moment| next.min(due)));
            }
        }
        self.sessions.claims_due = next;
    }

    /// Why a client cannot use a name: the same words for every reason, so that nothing is learned of others.
    pub(super) fn denied() -> Refusal {
        Refusal(Reason::SessionDenied, "this session is not available to this connection".into())
    }
}
