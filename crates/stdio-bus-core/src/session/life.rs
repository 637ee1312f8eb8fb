//! The life of sessions: clients claim them, learn of them, are lent them, take them over and lose them, since they
//! disconnect, or since the session expired or was evicted (spec 6.1, decision 3).

use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::state::{SessionEvent, SessionState};
use super::table::{Session, Sessions};
use crate::ctx::Ctx;
use crate::fleet::rollout::notice_end_of_work;
use crate::index::FleetId;
use crate::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, WorkerKey};
use crate::report::Reason;
use crate::requests::{Request, Requests};
use crate::settings::MAX_SESSION_ID_LEN;
use crate::timers::Timer;

impl Sessions {
    /// Whether the owner of a session waits for the answer to a request in it. What the worker has asked it there proves
    /// nothing: a worker may do so before it refuses to load the session.
    pub(crate) fn owner_waits_in(&self, ctx: &Ctx, requests: &Requests, key: SessionKey) -> bool {
        let Some(owner) = self.get(key).and_then(|session| session.client) else { return false };
        let Some(end) = ctx.peer_end(owner.into()) else { return false };
        let is_in_it = |request: RequestKey| requests.sessions(request).contains(&Some(key));
        requests.asked(&end.asked).any(is_in_it)
    }

    /// Forgets claims that have expired, and sessions that were idle for too long.
    pub(crate) fn tick(&mut self, ctx: &mut Ctx, requests: &Requests) {
        let now = ctx.time.now();
        // A request that has timed out may never be answered.
        let awaited = |sessions: &_| pending_in(sessions, requests, |request| request.asker().is_some());
        for key in self.take_idle(now, ctx.settings.limits.session_idle, awaited) {
            self.forget_idle(ctx, key);
        }
        for (key, owner) in self.take_expired_claims(now) {
            ctx.report(Reason::ClaimExpired, Some(Peer::Client(owner)), || {
                "a session that no worker knows was not used".into()
            });
            self.end(ctx, key);
        }
        ctx.timers.arm(Timer::Sessions, self.next_deadline());
    }

    /// Panics if sessions, their owners, their workers and their requests disagree.
    pub(crate) fn check_ownership(&self, ctx: &Ctx, requests: &Requests) {
        let pending = pending_in(self, requests, |_| true);
        for (key, session) in self.iter() {
            if let Some(owner) = session.client {
                let owner = ctx.peer_end(owner.into()).expect("a session has a live owner, or none");
                assert!(owner.sessions.contains(&key));
            }
            assert_eq!(pending[key.index()], session.pending, "requests in a session are counted");
            let worker = ctx.peer_end(session.worker.into()).expect("a session has a live worker");
            assert!(worker.sessions.contains(&key));
        }
        let at_clients = ctx.clients.iter().map(|(_, client)| client.end().sessions.len());
        let at_workers = ctx.workers.iter().map(|(_, worker)| worker.end().sessions.len());
        assert_eq!(at_clients.chain(at_workers).sum::<usize>(), self.len() + self.owned());
    }

    /// The session of this name that a client owns.
    pub(crate) fn named(&self, ctx: &Ctx, client: ClientKey, name: &[u8]) -> Option<SessionKey> {
        self.named_by(client, &ctx.peer_end(client.into())?.sessions, name).map(|(key, _)| key)
    }

    /// Whether a client owns a session of this name on a worker of these fleets.
    pub(crate) fn is_owned_in(&self, ctx: &Ctx, client: ClientKey, name: &[u8], has: impl Fn(FleetId) -> bool) -> bool {
        let is_it = |session: &Session| {
            session.name.as_bytes() == name && ctx.workers.fleet_of(session.worker).is_some_and(&has)
        };
        let end = ctx.peer_end(client.into());
        end.is_some_and(|end| end.sessions.iter().any(|key| self.get(*key).is_some_and(is_it)))
    }

    /// Gives a session without an owner to a client. Returns whether the client is still there.
    pub(super) fn give_to(&mut self, ctx: &mut Ctx, session: SessionKey, client: ClientKey) -> bool {
        let Some(owner) = ctx.clients.get_mut(client) else { return false };
        self.give(session, client, &mut owner.end_mut().sessions);
        true
    }

    /// Removes the owner of a session.
    fn leave_owner(&mut self, ctx: &mut Ctx, key: SessionKey) {
        let Some(session) = self.get(key) else { return };
        let (worker, owner) = (session.worker, session.client.and_then(|owner| ctx.clients.get_mut(owner)));
        self.take_from_owner(key, owner.map(|owner| &mut owner.end_mut().sessions));
        notice_end_of_work(ctx, worker);
    }

    /// Gives a session to another client, which uses it now. It keeps its state.
    pub(crate) fn hand_over(&mut self, ctx: &mut Ctx, key: SessionKey, to: ClientKey) {
        self.leave_owner(ctx, key);
        self.give_to(ctx, key, to);
        self.touch(key, ctx.time.now());
    }

    /// Creates a session in this initial state. None if there is no room, and no client has to make some.
    pub(crate) fn open(
        &mut self,
        ctx: &mut Ctx,
        client: ClientKey,
        worker: WorkerKey,
        name: &[u8],
        state: SessionState,
    ) -> Option<SessionKey> {
        if self.is_full() && !self.evict_for(ctx, client) {
            ctx.penalise_refusal(client);
            return None;
        }
        ctx.clients.identity(client)?;
        let at_worker = &mut ctx.workers.get_mut(worker)?.end_mut().sessions;
        let key = self.insert(ctx.time.now(), worker, at_worker, name, state)?;
        self.give_to(ctx, key, client);
        self.schedule(ctx, state < SessionState::Used);
        Some(key)
    }

    /// One more session, or claim, may expire.
    pub(crate) fn schedule(&mut self, ctx: &mut Ctx, is_claim: bool) {
        let due = self.watch(ctx.time.now(), ctx.settings.limits.session_idle, is_claim);
        ctx.timers.arm(Timer::Sessions, due);
    }

    /// Lends a reserved name to a client that asks the worker to load it; if the worker refuses, it is returned.
    pub(crate) fn lend_name(&mut self, ctx: &mut Ctx, client: ClientKey, key: SessionKey) -> bool {
        if self.is_full() && !self.evict_for(ctx, client) || !self.give_to(ctx, key, client) {
            return false;
        }
        // Its parent, if it has one, has no owner.
        self.leave_family(key);
        self.lend_children(ctx, key, client);
        self.touch(key, ctx.time.now());
        self.schedule(ctx, false);
        true
    }

    /// The owner of a session leaves, or `is_refused` it before it had an answer. The name stays reserved as long as
    /// the worker may speak of it.
    pub(crate) fn give_up(&mut self, ctx: &mut Ctx, key: SessionKey, is_refused: bool) {
        let Some(session) = self.get(key).filter(|session| session.client.is_some()) else { return };
        // A child stays with its parent, whose owner it has.
        if is_refused && (session.state >= SessionState::Used || session.parent.is_some()) {
            return;
        }
        if !session.is_known && session.pending == 0 {
            return self.end(ctx, key);
        }
        for key in [key].into_iter().chain(self.family_of(key)) {
            // A child may have been given up before its parent.
            if self.get(key).is_some_and(|session| session.client.is_some()) {
                self.leave_owner(ctx, key);
                self.reserve(ctx, key);
            }
        }
    }

    fn reserve(&mut self, ctx: &mut Ctx, key: SessionKey) {
        if let Some(oldest) = self.hold(key) {
            self.end(ctx, oldest);
        }
    }

    /// Records the user name under which a session was created or loaded.
    pub(super) fn bind(&mut self, ctx: &Ctx, client: ClientKey, worker: WorkerKey, session: &[u8]) {
        let Some(origin) = ctx.clients.identity(client).map(|client| Rc::clone(&client.origin)) else { return };
        if let (Some(owner), Some(worker)) = (origin.names.owner(), ctx.workers.worker_name(worker)) {
            self.session_users_mut().bind(worker.pool, session, owner);
        }
    }

    /// The worker has answered a request in this session with a result.
    pub(crate) fn confirm(&mut self, ctx: &mut Ctx, key: SessionKey, event: SessionEvent) {
        self.step(key, event);
        let Some(session) = self.get(key).filter(|session| session.state.is_issued()) else { return };
        let name = session.name.clone();
        session.client.into_iter().for_each(|owner| ctx.clients.forget_lost(owner, name.as_bytes()));
    }

    /// The worker has given this session to its owner, by creating or loading it.
    pub(crate) fn issue(&mut self, ctx: &mut Ctx, key: SessionKey, is_made: bool) {
        let Some(session) = self.get(key) else { return };
        let mut event = if is_made { SessionEvent::Made } else { SessionEvent::Loaded };
        if let (false, Some(owner)) = (session.state.is_issued(), session.client) {
            let (worker, name) = (session.worker, session.name.clone());
            // Given out by itself ahead of its parent: what becomes of the parent does not change that.
            self.leave_family(key);
            self.bind(ctx, owner, worker, name.as_bytes());
            if !is_made && self.is_bound_to_another(ctx, owner, worker, name.as_bytes()) {
                event = SessionEvent::LoadedForAnotherName;
            }
            for child in self.family_of(key) {
                let name = self.get(child).map(|child| child.name.clone());
                name.into_iter().for_each(|name| self.bind(ctx, owner, worker, name.as_bytes()));
            }
        }
        self.confirm(ctx, key, event);
    }

    /// A worker's answer names a session: it belongs to the client that asked, even if another one has used the name.
    /// `creates` means that the client asked for a new one. Returns whether there is room for it.
    pub(crate) fn learn(
        &mut self,
        ctx: &mut Ctx,
        client: ClientKey,
        worker: WorkerKey,
        name: &[u8],
        creates: bool,
    ) -> bool {
        if name.len() > MAX_SESSION_ID_LEN || name.is_empty() {
            return true;
        }
        let known = self.of_worker(worker, name).and_then(|key| Some((key, self.get(key)?)));
        match known {
            // A worker that echoes its input does not give out names.
            Some((key, session)) if session.client == Some(client) => {
                if creates {
                    self.mark_issuing(ctx, worker);
                    self.issue(ctx, key, true);
                } else {
                    self.confirm(ctx, key, SessionEvent::Answered);
                }
                return true;
            }
            Some((_, session)) if session.state.is_issued() => {
                ctx.report(Reason::SessionReused, Some(Peer::Worker(worker)), || {
                    format!("session \"{}\" belongs to another client already", name.escape_ascii())
                });
                return true;
            }
            Some((key, _)) => self.end(ctx, key),
            None => {}
        }
        self.mark_issuing(ctx, worker);
        self.warn_of_double(ctx, client, worker, name);
        ctx.clients.forget_lost(client, name);
        let has_room = self.open(ctx, client, worker, name, SessionState::Given).is_some();
        if has_room {
            self.bind(ctx, client, worker, name);
        }
        has_room
    }

    /// A worker gives a client a session name that the client already has on another worker. Messages that name it go
    /// to the older one: that is reported once for each pool.
    fn warn_of_double(&mut self, ctx: &mut Ctx, client: ClientKey, worker: WorkerKey, name: &[u8]) {
        let Some(other) = self.named(ctx, client, name).and_then(|key| self.get(key)) else { return };
        let other = other.worker;
        let Some(FleetId { pool, .. }) = ctx.workers.fleet_of(worker) else { return };
        if !self.note_doubled(pool) {
            return;
        }
        let older = ctx.workers.worker_name(other);
        let id = &ctx.settings.pools[pool].id;
        let text = format!(
            "two workers call a session of this client \"{}\": messages that name it all go to {}; give pool \"{id}\" \
             \"assignment\": \"client\" or \"dedicated\", so that one worker makes all sessions of a client",
            name.escape_ascii(),
            older.map_or("the older one".into(), |older| {
                format!("{}/{}", ctx.settings.pools[older.pool].id, older.place)
            })
        );
        ctx.report_request(Reason::SessionDoubled, [Some(client.into()), Some(worker.into())], || (None, text));
    }

    /// A worker's answer names a session, but the client that asked has left: no other one gets it.
    pub(crate) fn learn_unowned(&mut self, ctx: &mut Ctx, worker: WorkerKey, name: &[u8]) {
        if name.len() > MAX_SESSION_ID_LEN || name.is_empty() {
            return;
        }
        self.mark_issuing(ctx, worker);
        let named = self.of_worker(worker, name).and_then(|key| Some((key, self.get(key)?)));
        match named {
            // A name that the worker knew before is not newly given out: a client may have loaded it.
            Some((_, session)) if session.is_known => return,
            // A client that asks the worker for it is as one that asks for a held name.
            Some((key, session)) if session.state == SessionState::Asked => {
                self.step(key, SessionEvent::Unseen);
                return;
            }
            Some((key, _)) => self.end(ctx, key),
            None => {}
        }
        let Some(at) = ctx.workers.get_mut(worker) else { return };
        let made = self.insert(Moment::default(), worker, &mut at.end_mut().sessions, name, SessionState::Lent);
        if let Some(key) = made {
            self.step(key, SessionEvent::Unseen);
            self.reserve(ctx, key);
        }
    }

    fn mark_issuing(&mut self, ctx: &Ctx, worker: WorkerKey) {
        if let Some(fleet) = ctx.workers.fleet_of(worker) {
            self.note_issued(fleet.pool);
        }
    }

    /// Forgets a session with its children.
    pub(crate) fn end(&mut self, ctx: &mut Ctx, key: SessionKey) {
        for key in self.family_of(key).into_iter().chain([key]) {
            self.leave_owner(ctx, key);
            let Some(worker) = self.get(key).map(|session| session.worker) else { continue };
            self.remove(key, ctx.workers.get_mut(worker).map(|worker| &mut worker.end_mut().sessions));
        }
    }

    /// A worker has ended, and its session with it. The owner gets an error when it next names the session, unless it is
    /// a child: the owner asks for its parent, and knows the child from its worker.
    pub(crate) fn lose(&mut self, ctx: &mut Ctx, key: SessionKey) {
        let is_to_load = |session: &&Session| session.is_known && session.parent.is_none();
        if let Some(session) = self.get(key).filter(is_to_load) {
            let name = session.name.clone();
            session.client.into_iter().for_each(|owner| ctx.clients.note_lost(owner, name.as_bytes()));
        }
        self.end(ctx, key);
    }

    /// Makes room for a session of `asker` at the cost of the client that holds most; false if that is the asker
    /// itself, or nothing can be evicted.
    fn evict_for(&mut self, ctx: &mut Ctx, asker: ClientKey) -> bool {
        let Some(holder) = ctx.clients.heaviest(asker, |client| client.end().sessions.len()) else {
            return false;
        };
        let held = ctx.peer_end(holder.into()).map(|client| &client.sessions);
        let Some(key) = held.and_then(|held| self.most_idle(held)) else { return false };
        let Some(session) = self.get(key) else { return false };
        let name = session.name.as_bytes().escape_ascii().to_string();
        ctx.report(Reason::SessionEvicted, Some(holder.into()), || {
            format!("the session table is full: this client holds most, and its unused session \"{name}\" is closed")
        });
        self.lose(ctx, key);
        true
    }

    /// A session was idle for long. Its owner gets an error when it next names it; on a dedicated worker there is no
    /// client to protect it from.
    fn forget_idle(&mut self, ctx: &mut Ctx, key: SessionKey) {
        let Some(session) = self.get(key) else { return };
        let (Some(owner), name) = (session.client, session.name.clone()) else { return };
        let is_known = session.is_known;
        let is_its_own = ctx.workers.has_owner(session.worker);
        ctx.report_request(Reason::SessionIdle, [Some(owner.into()), Some(session.worker.into())], || {
            let name = name.as_bytes().escape_ascii();
            (None, format!("session \"{name}\" expired: it was unused for session_idle_sec"))
        });
        if is_its_own {
            return self.end(ctx, key);
        }
        if is_known {
            ctx.clients.note_lost(owner, name.as_bytes());
        }
        self.give_up(ctx, key, false);
    }
}

/// How many of these requests are pending in the session of each slot.
fn pending_in(sessions: &Sessions, pending: &Requests, of: impl Fn(&Request) -> bool) -> Vec<u32> {
    let mut counts = vec![0; sessions.slots()];
    for (key, _) in pending.iter().filter(|(_, request)| of(request)) {
        for session in pending.sessions(key).into_iter().flatten().filter(|session| sessions.get(*session).is_some()) {
            counts[session.index()] += 1;
        }
    }
    counts
}
