//! Whose a session is: who claims it, learns of it, borrows it, loses it, and who may not name it (spec 6.1, decision
//! 3).

use super::Bus;
use super::message::{Refusal, Verb};
use super::peer::{ClientKey, Moment, Peer, SessionKey, WorkerKey};
use super::report::Reason;
use super::sessions::{Asked, Rank};
use super::settings::{MAX_SESSION_ID_LEN, SessionAccess};
use super::worker::Worker;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

/// What became of a `result.sessionId`.
pub(super) enum Learned {
    /// The client that asked owns it, or somebody else keeps it.
    Known,
    /// There is no room for it.
    NoRoom,
}

impl Bus {
    /// The session of this name that a client owns.
    pub(super) fn session_of_client(&self, client: ClientKey, name: &[u8]) -> Option<SessionKey> {
        self.sessions.named_by(client, &self.clients.get(client)?.end.sessions, name)
    }

    /// Whether the workers of a worker's pool give out the names of their sessions, so that clients may use no others.
    pub(super) fn issues_names(&self, worker: WorkerKey) -> bool {
        self.workers.get(worker).is_some_and(|worker| self.pools[worker.pool].gives_out_names(worker))
    }

    /// Makes a session of a name that a client was the first to use. None if there is no room, and nobody has to make
    /// some.
    pub(super) fn claim_session(&mut self, client: ClientKey, worker: WorkerKey, name: &[u8]) -> Option<SessionKey> {
        let key = self.new_session(client, worker, name, Rank::Claimed)?;
        self.sessions.watch_claim(self.now);
        self.wake_sessions();
        Some(key)
    }

    fn new_session(&mut self, client: ClientKey, worker: WorkerKey, name: &[u8], rank: Rank) -> Option<SessionKey> {
        if self.sessions.is_full() && !self.evict_session_for(client) {
            self.penalise_refusal(client);
            return None;
        }
        let (owner, worker_end) = (self.clients.get_mut(client)?, &mut self.workers.get_mut(worker)?.end);
        let key = self.sessions.insert(self.now, worker, &mut worker_end.sessions, name, rank)?;
        self.sessions.give(key, client, &mut owner.end.sessions);
        self.sessions.watch_idle(self.now, self.settings.limits.session_idle);
        self.wake_sessions();
        Some(key)
    }

    /// Gives a held name to a client that asks the worker to load it; a refusal gives it back.
    pub(super) fn lend_session(&mut self, client: ClientKey, key: SessionKey) -> bool {
        if self.sessions.is_full() && !self.evict_session_for(client) {
            return false;
        }
        let Some(owner) = self.clients.get_mut(client) else { return false };
        self.sessions.lend(self.now, key, client, &mut owner.end.sessions);
        self.sessions.watch_idle(self.now, self.settings.limits.session_idle);
        self.wake_sessions();
        true
    }

    /// The worker did not load a session, or the request for it was never sent: it is as it was before.
    pub(super) fn unclaim_session(&mut self, key: SessionKey) {
        if self.sessions.get(key).is_none_or(|session| session.rank > Rank::Claimed) {
            return;
        }
        // Requests of an owner that has left may still be pending in it.
        self.hold_session(key);
    }

    /// Notes under which name a session was made or loaded.
    fn bind_session(&mut self, client: ClientKey, worker: WorkerKey, session: &[u8]) {
        let (Some(client), Some(worker)) = (self.clients.get(client), self.workers.get(worker)) else { return };
        if let Some(name) = client.origin.names.owner() {
            self.bonds.bind(worker.pool, session, name);
        }
    }

    /// Whether a session that was made or loaded under a name is kept from this client, which has another one or none. On
    /// every way that a message takes this is asked of each session that it names. What the worker itself has made for the
    /// client it may use, though another one of that name is somebody else's: some agents count from one in each process.
    /// Only by loading it would it get at the other one.
    #[inline]
    pub(super) fn is_kept_from(
        &self,
        client: ClientKey,
        worker: WorkerKey,
        session: impl FnOnce() -> Option<SessionKey>,
        name: &[u8],
        verb: Verb,
    ) -> bool {
        !self.bonds.is_empty() && self.is_bound_to_another(client, worker, session(), name, verb)
    }

    #[cold]
    fn is_bound_to_another(
        &self,
        client: ClientKey,
        worker: WorkerKey,
        session: Option<SessionKey>,
        name: &[u8],
        verb: Verb,
    ) -> bool {
        let session = session.and_then(|key| self.sessions.get(key));
        let is_given = session.is_some_and(|session| session.given && session.client == Some(client));
        if self.settings.routing.session_access != SessionAccess::Owner || is_given && !verb.asks_for_session() {
            return false;
        }
        let (Some(client), Some(worker)) = (self.clients.get(client), self.workers.get(worker)) else { return false };
        self.bonds.keeps_from(worker.pool, name, client.origin.names.owner())
    }

    /// The worker has answered a request in this session with a result.
    pub(super) fn confirm_session(&mut self, key: SessionKey, rank: Rank) {
        let Some((session, has_risen)) = self.sessions.confirm(key, rank) else { return };
        let (Rank::Issued, Some(owner)) = (session.rank, session.client) else { return };
        if let Some(owner) = self.clients.get_mut(owner) {
            owner.lost.forget(session.name.as_bytes());
        }
        if has_risen {
            let (worker, name) = (session.worker, session.name.clone());
            self.bind_session(owner, worker, name.as_bytes());
            if !self.is_kept_from(owner, worker, || None, name.as_bytes(), Verb::Load) {
                self.sessions.mark_given(key);
            }
        }
    }

    /// A worker's answer names a session: it belongs to the client that asked, whoever used the name before. `creates`
    /// says that the client asked for a new one.
    pub(super) fn learn_session(
        &mut self,
        client: ClientKey,
        worker: WorkerKey,
        name: &[u8],
        creates: bool,
    ) -> Learned {
        if name.len() > MAX_SESSION_ID_LEN || name.is_empty() {
            return Learned::Known;
        }
        if let Some(key) = self.sessions.of_worker(worker, name)
            && let Some(session) = self.sessions.get(key)
        {
            match session.client {
                // A worker that repeats what it is sent does not give out names by that.
                Some(owner) if owner == client && !creates => {
                    self.confirm_session(key, Rank::Confirmed);
                    return Learned::Known;
                }
                Some(owner) if owner == client => {
                    self.mark_issuing(worker);
                    self.confirm_session(key, Rank::Issued);
                    self.sessions.mark_given(key);
                    return Learned::Known;
                }
                Some(_) if session.rank == Rank::Issued => {
                    self.report(Reason::SessionReused, Some(Peer::Worker(worker)), || {
                        format!("session \"{}\" belongs to another client already", name.escape_ascii())
                    });
                    return Learned::Known;
                }
                _ => self.drop_session(key),
            }
        }
        self.mark_issuing(worker);
        self.warn_of_double(client, worker, name);
        if let Some(client) = self.clients.get_mut(client) {
            client.lost.forget(name);
        }
        match self.new_session(client, worker, name, Rank::Issued) {
            Some(key) => {
                self.bind_session(client, worker, name);
                self.sessions.mark_given(key);
                Learned::Known
            }
            None => Learned::NoRoom,
        }
    }

    /// A worker gives a client the name of a session that the client has on another worker already. Messages that name
    /// it go to the older one: that is told once for each pool.
    fn warn_of_double(&mut self, client: ClientKey, worker: WorkerKey, name: &[u8]) {
        let Some(other) = self.session_of_client(client, name).and_then(|key| self.sessions.get(key)) else { return };
        let Some(pool) = self.workers.get(worker).map(|worker| worker.pool) else { return };
        if core::mem::replace(&mut self.pools[pool].told_of_doubles, true) {
            return;
        }
        let older = self.workers.get(other.worker).map(Worker::name);
        let id = &self.settings.pools[pool].id;
        let text = format!(
            "two workers call a session of this client \"{}\": messages that name it all go to {}; give pool \"{id}\" \
             \"assignment\": \"client\" or \"dedicated\", so that one worker makes all sessions of a client",
            name.escape_ascii(),
            older.map_or("the older one".into(), |older| {
                format!("{}/{}", self.settings.pools[older.pool].id, older.place)
            })
        );
        self.report_request(Reason::SessionDoubled, [Some(client.into()), Some(worker.into())], || (None, text));
    }

    /// A worker's answer names a session, and who asked has gone: nobody else gets it.
    pub(super) fn learn_unowned_session(&mut self, worker: WorkerKey, name: &[u8]) {
        if name.len() > MAX_SESSION_ID_LEN || name.is_empty() {
            return;
        }
        self.mark_issuing(worker);
        if let Some(key) = self.sessions.of_worker(worker, name) {
            // What the worker has known before is not given out anew: it may be what somebody has loaded.
            if self.sessions.get(key).is_some_and(|session| session.rank == Rank::Issued || session.was_held) {
                return;
            }
            self.drop_session(key);
        }
        if let Some(oldest) = self.sessions.take_oldest_held_if_full() {
            self.drop_session(oldest);
        }
        let Some(at) = self.workers.get_mut(worker) else { return };
        if let Some(key) = self.sessions.insert(Moment::default(), worker, &mut at.end.sessions, name, Rank::Issued) {
            self.sessions.list_held(key);
        }
    }

    fn mark_issuing(&mut self, worker: WorkerKey) {
        if let Some(worker) = self.workers.get(worker) {
            self.pools[worker.pool].issues_names = true;
        }
    }

    /// The owner of a session leaves. Nobody gets the name as long as the worker may speak of it: one that the worker
    /// has given out for as long as it lives, any other one until its last request is answered.
    pub(super) fn hold_session(&mut self, key: SessionKey) {
        self.sessions.restore_rank(key);
        let Some(session) = self.sessions.get(key) else { return };
        if session.rank < Rank::Issued && session.pending == 0 {
            return self.drop_session(key);
        }
        self.leave_owner(key);
        if let Some(oldest) = self.sessions.hold(key) {
            self.drop_session(oldest);
        }
    }

    fn leave_owner(&mut self, key: SessionKey) {
        let owner = self.sessions.get(key).and_then(|session| session.client);
        let owner = owner.and_then(|owner| self.clients.get_mut(owner));
        self.sessions.take_from_owner(key, owner.map(|owner| &mut owner.end.sessions));
    }

    /// One request less is pending in a session; a name that was held for it alone is free again.
    pub(super) fn end_session_request(&mut self, key: SessionKey) {
        if self.sessions.end_request(key) {
            self.drop_session(key);
        }
    }

    /// Forgets a session.
    pub(super) fn drop_session(&mut self, key: SessionKey) {
        self.leave_owner(key);
        let Some(worker) = self.sessions.get(key).map(|session| session.worker) else { return };
        self.sessions.remove(key, self.workers.get_mut(worker).map(|worker| &mut worker.end.sessions));
    }

    /// A worker has ended, and its session with it. The owner is told when it names the session the next time.
    pub(super) fn lose_session(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get(key)
            && (session.rank == Rank::Issued || session.was_held)
            && let Some(owner) = session.client.and_then(|owner| self.clients.get_mut(owner))
        {
            owner.lost.add(session.name.as_bytes());
        }
        self.drop_session(key);
    }

    /// Makes room for a session of `asker` at the cost of whoever holds most; false if that is the asker itself, or
    /// nothing can go.
    fn evict_session_for(&mut self, asker: ClientKey) -> bool {
        let Some(holder) = self.heaviest(asker, |client| client.end.sessions.len()) else {
            return false;
        };
        let Some(client) = self.clients.get(holder) else { return false };
        let Some(key) = self.sessions.most_idle(client.end.sessions.iter()) else { return false };
        let Some(session) = self.sessions.get(key) else { return false };
        let name = session.name.as_bytes().escape_ascii().to_string();
        self.report(Reason::SessionEvicted, Some(holder.into()), || {
            format!("the table is full, and this client holds most sessions: it loses \"{name}\", long unused")
        });
        self.lose_session(key);
        true
    }

    /// Whether a session may go to another connection that asks for it now: one of the same name, which has to be a
    /// verified one. A client whose connection was lost without a word comes back by a new one, and nobody can tell yet
    /// that the old one is dead. Who asks for the session by name has it in any case; other messages take it to the newer
    /// connection only, so that two of one name do not take it from each other by accident. A mere claim is taken where
    /// it could be made: where workers give out names it is a guess of either.
    pub(super) fn may_take_over(&self, key: SessionKey, by: ClientKey, asks: bool) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let (Some(new), Some(old)) = (self.clients.get(by), session.client.and_then(|old| self.clients.get(old)))
        else {
            return false;
        };
        // What is a name on one listener may be somebody else's on another one, which has other tokens or authorities.
        let has_name = new.listener == old.listener && new.origin.names.are_the_same_owner(&old.origin.names);
        let is_settled =
            session.rank == Rank::Issued || session.asked == Asked::No && !self.issues_names(session.worker);
        has_name && is_settled && (asks || new.number > old.number)
    }

    /// Gives a session to another connection of its owner. What is pending in it belongs to the old one, which may be
    /// dead: its requests get errors, and so do those that wait for its answers.
    pub(super) fn take_session_over(&mut self, key: SessionKey, by: ClientKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(old) = session.client else { return };
        let (name, worker) = (session.name.clone(), session.worker);
        let number = self.client_number(by).unwrap_or_default();
        self.report_request(Reason::SessionTaken, [Some(old.into()), Some(worker.into())], || {
            let name = name.as_bytes().escape_ascii();
            (None, format!("client {number}, which has the same name, has taken over session \"{name}\" of this one"))
        });
        self.end_use_of_session(old, key);
        self.leave_owner(key);
        if let Some(client) = self.clients.get_mut(by) {
            self.sessions.give(key, by, &mut client.end.sessions);
            client.lost.forget(name.as_bytes());
        }
        self.hand_elicitations_over(worker, key, by);
        self.sessions.touch(key, self.now);
    }

    /// Forgets claims that nobody uses, and sessions that were idle for too long.
    pub(super) fn tick_sessions(&mut self) {
        let now = self.now;
        if let Some(idle) = self.sessions.looks_for_idle(now, self.settings.limits.session_idle) {
            let awaited = self.awaited_sessions();
            for key in self.sessions.take_idle(now, idle, &awaited) {
                self.forget_idle_session(key);
            }
        }
        for (key, owner) in self.sessions.take_expired_claims(now) {
            self.report(Reason::ClaimExpired, Some(Peer::Client(owner)), || {
                "a session that no worker knows was not used".into()
            });
            self.drop_session(key);
        }
        self.wake_sessions();
    }

    /// In which slots there are sessions with a request that somebody waits for. One that was given up may never be
    /// answered.
    fn awaited_sessions(&self) -> Vec<bool> {
        let mut awaited = vec![false; self.sessions.slots()];
        for (key, _) in self.pending.iter().filter(|(_, request)| request.asker().is_some()) {
            for session in self.pending.sessions(key).into_iter().flatten() {
                if self.sessions.get(session).is_some() {
                    awaited[session.index()] = true;
                }
            }
        }
        awaited
    }

    /// A session was not used for long. Its owner is told when it names it the next time; on a worker of its own there is
    /// nobody to keep it from.
    fn forget_idle_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let (Some(owner), name) = (session.client, session.name.clone()) else { return };
        let is_known = session.rank == Rank::Issued || session.was_held;
        let is_its_own = self.workers.get(session.worker).is_some_and(|worker| worker.owner.is_some());
        self.report_request(Reason::SessionIdle, [Some(owner.into()), Some(session.worker.into())], || {
            let name = name.as_bytes().escape_ascii();
            (None, format!("session \"{name}\" was not used for session_idle_sec and is forgotten"))
        });
        if is_its_own {
            return self.drop_session(key);
        }
        if let Some(owner) = self.clients.get_mut(owner).filter(|_| is_known) {
            owner.lost.add(name.as_bytes());
        }
        self.hold_session(key);
    }

    /// Why a client cannot use a name. Every reason has the same words, so that nobody learns anything of others.
    pub(super) fn denied() -> Refusal {
        Refusal(Reason::SessionDenied, "this session is not available to this connection".into())
    }

    /// Panics if sessions, their owners, their workers and their requests disagree.
    pub(super) fn check_ownership(&self) {
        let mut pending = Vec::new();
        for (key, _) in self.pending.iter() {
            for session in self.pending.sessions(key).into_iter().flatten() {
                if self.sessions.get(session).is_some() {
                    pending.resize(pending.len().max(session.index() + 1), 0);
                    pending[session.index()] += 1;
                }
            }
        }
        for (key, session) in self.sessions.iter() {
            if let Some(owner) = session.client {
                let owner = self.clients.get(owner).expect("a session has a live owner, or none");
                assert_eq!(owner.end.sessions.iter().nth(session.at_client()), Some(key));
            }
            let counted = pending.get(key.index()).copied().unwrap_or_default();
            assert_eq!(counted, session.pending, "requests in a session are counted");
            assert!(
                session.client.is_some() || session.pending > 0 || session.rank == Rank::Issued,
                "a name is held for nothing"
            );
            let worker = self.workers.get(session.worker).expect("a session has a live worker");
            assert_eq!(worker.end.sessions.iter().nth(session.at_worker()), Some(key));
        }
        let at_clients = self.clients.iter().map(|(_, client)| client.end.sessions.len());
        let at_workers = self.workers.iter().map(|(_, worker)| worker.end.sessions.len());
        assert_eq!(at_clients.chain(at_workers).sum::<usize>(), self.sessions.len() + self.sessions.owned());
    }
}
