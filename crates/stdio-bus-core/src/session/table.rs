//! The table of sessions: the owner of each name on each worker, reserved names, and expired claims (spec 3.4, decision
//! 3). Owners and workers list their sessions, and the positions in these lists are kept here.
//!
//! Invariants: every index entry points at a live slot; a session has a live worker, and a live owner or none; a name
//! without one is [`SessionState::Lent`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Deref;
use core::time::Duration;

use super::state::{SessionEvent, SessionState, step};
use super::tombstones::SessionUsers;
use crate::fleet::worker::Worker;
use crate::index::PoolId;
use crate::peer::{ClientKey, Moment, SessionKey, ShortText, WorkerKey};
use crate::settings::MAX_SESSIONS;
use crate::table::{Index, Table};

/// Maximum number of names reserved after their owners have left; beyond it the oldest one is dropped.
const MAX_HELD: usize = 4096;
/// The error when there is no room for one more.
pub(crate) const FULL: &str = "the session table is full: end sessions with session/close, or let unused ones expire \
    (limits.session_idle_sec)";
/// Sessions are checked this many times before one of them is too old.
const LOOKS: u32 = 8;
/// A claim that is not used for this long expires.
const CLAIM_LASTS: Duration = Duration::from_secs(60);

/// A session: one worker, one name, one owner (spec 3.4).
pub(crate) struct Session {
    /// Its owner; none while the name is reserved.
    pub(super) client: Option<ClientKey>,
    /// The worker it is bound to.
    pub(super) worker: WorkerKey,
    /// The decoded sessionId.
    pub(super) name: ShortText,
    /// What its owner has proved.
    pub(super) state: SessionState,
    /// Its name has no backslash: a token with the same bytes between its quotes is that name, and has no escape.
    pub(super) has_plain_name: bool,
    /// The worker may know the name for good, so that it outlives its owner.
    pub(super) is_known: bool,
    /// The worker has reported that it is active, whether requests are pending or not.
    pub(super) is_working: bool,
    /// Requests in it that the worker has not answered.
    pub(super) pending: u32,
    /// When its owner used it last.
    pub(super) used: Moment,
    /// The session that it is a child of (`children.rs`).
    pub(super) parent: Option<SessionKey>,
    /// It has had children.
    has_children: bool,
    /// When its worker has last said something in it, where silence is limited.
    pub(super) active_at: Moment,
    /// The number with which its name was last reserved.
    held_as: u64,
}

impl Session {
    /// A session without a past.
    pub(super) fn new(now: Moment, worker: WorkerKey, name: &[u8], state: SessionState) -> Self {
        Self {
            client: None,
            worker,
            name: name.into(),
            has_plain_name: !name.contains(&b'\\'),
            state,
            is_known: state == SessionState::Given,
            is_working: false,
            pending: 0,
            used: now,
            parent: None,
            has_children: false,
            active_at: Moment::default(),
            held_as: 0,
        }
    }

    /// Its owner; none while the name is reserved.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Option<ClientKey> {
        self.client
    }

    /// The worker it is bound to.
    #[inline(always)]
    pub(crate) fn worker(&self) -> WorkerKey {
        self.worker
    }

    /// The decoded sessionId.
    pub(crate) fn name(&self) -> &ShortText {
        &self.name
    }

    /// Whether a token with the same bytes between its quotes is its name, and has no escape.
    #[inline(always)]
    pub(crate) fn has_plain_name(&self) -> bool {
        self.has_plain_name
    }

    /// Whether its owner has asked a worker for it, and has not got it yet.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.state.is_asked_for()
    }

    /// Whether its worker has reported that it is active, whether requests are pending or not.
    pub(crate) fn is_working(&self) -> bool {
        self.is_working
    }

    /// Requests in it that the worker has not answered.
    pub(crate) fn pending(&self) -> u32 {
        self.pending
    }

    /// When its owner used it last.
    pub(crate) fn used(&self) -> Moment {
        self.used
    }

    /// When its worker has last said something in it, where silence is limited.
    pub(crate) fn active_at(&self) -> Moment {
        self.active_at
    }

    /// How certain its ownership is, for people; of a reserved name, how certain it was.
    pub(crate) fn rank(&self) -> &'static str {
        if self.client.is_none() && self.is_known {
            return "issued";
        }
        match self.state {
            SessionState::Claimed | SessionState::Asked | SessionState::Lent => "claimed",
            SessionState::Used | SessionState::Attested => "confirmed",
            SessionState::Loaded | SessionState::Given => "issued",
        }
    }
}

/// The sessions of an owner or of a worker, in the order in which it got them, but that the last one takes the place of one
/// that leaves.
#[derive(Clone, Default)]
pub(crate) struct SessionList(Vec<SessionKey>);

impl SessionList {
    pub(crate) const NONE: Self = Self(Vec::new());

    fn leave(&mut self, key: SessionKey) {
        if let Some(at) = self.0.iter().position(|session| *session == key) {
            self.0.swap_remove(at);
        }
    }
}

impl Deref for SessionList {
    type Target = [SessionKey];

    #[inline(always)]
    fn deref(&self) -> &[SessionKey] {
        &self.0
    }
}

/// All sessions, by owner and by worker.
pub(crate) struct Sessions {
    /// The sessions, and the reserved names.
    table: Table<Session, 's'>,
    /// By worker and name, and by owner and name.
    index: Index,
    /// Reserved names, the oldest first, by the numbers that they got when their owners left.
    held: BTreeMap<u64, SessionKey>,
    /// The last of those numbers.
    holds: u64,
    /// When the next claim may expire.
    claims_due: Moment,
    /// When the next session may expire for being idle.
    idle_due: Moment,
    /// The user names that sessions are bound to.
    session_users: SessionUsers,
    /// What is known of the names that workers of each pool give out, by its index.
    of_pools: Vec<NamesOfPool>,
    /// Bytes of early lines of all workers (`early_notifications.rs`), which the shell asks for in each turn.
    early_bytes: usize,
}

/// What is known of the session names that workers of a pool give out.
#[derive(Clone, Copy, Default)]
struct NamesOfPool {
    /// One of its workers has given out a name.
    are_issued: bool,
    /// It was reported that its workers give one client the same name twice.
    have_doubled: bool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            // If one name too many is reserved, the oldest one is only then dropped.
            table: Table::new(MAX_SESSIONS + MAX_HELD + 1),
            index: Index::new(2 * MAX_SESSIONS + MAX_HELD),
            held: BTreeMap::new(),
            holds: 0,
            claims_due: Moment::NEVER,
            idle_due: Moment::NEVER,
            session_users: SessionUsers::default(),
            of_pools: Vec::new(),
            early_bytes: 0,
        }
    }
}

impl Sessions {
    /// The user names that sessions are bound to.
    #[inline]
    pub(crate) fn session_users(&self) -> &SessionUsers {
        &self.session_users
    }

    pub(crate) fn session_users_mut(&mut self) -> &mut SessionUsers {
        &mut self.session_users
    }

    /// Whether the workers of a worker's pool give out session names, so that clients may use no others.
    pub(crate) fn issues_names(&self, worker: &Worker) -> bool {
        let pool = || self.of_pools.get(worker.fleet().pool.index()).is_some_and(|pool| pool.are_issued);
        worker.owner().is_none() && (worker.creating().may_give_out_a_name() || pool())
    }

    /// A worker of a pool has given out a session name.
    pub(super) fn note_issued(&mut self, pool: PoolId) {
        self.names_of(pool).are_issued = true;
    }

    /// Workers of a pool have given one client the same name twice. Returns whether that is the first time.
    pub(super) fn note_doubled(&mut self, pool: PoolId) -> bool {
        !core::mem::replace(&mut self.names_of(pool).have_doubled, true)
    }

    fn names_of(&mut self, pool: PoolId) -> &mut NamesOfPool {
        let pool = pool.index();
        if self.of_pools.len() <= pool {
            self.of_pools.resize(pool + 1, NamesOfPool::default());
        }
        &mut self.of_pools[pool]
    }

    /// A pool is gone, and another one has its place.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.session_users.forget_pool(pool);
        *self.names_of(pool) = NamesOfPool::default();
    }

    /// Bytes of early lines of all workers.
    pub(crate) fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// An early line of this many bytes waits.
    pub(super) fn add_early(&mut self, bytes: usize) {
        self.early_bytes += bytes;
    }

    /// Early lines of this many bytes wait no longer.
    pub(super) fn end_early(&mut self, bytes: usize) {
        self.early_bytes -= bytes;
    }

    /// Number of sessions with an owner; the limit applies to these.
    pub(crate) fn owned(&self) -> usize {
        self.table.len() - self.held.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.owned() >= MAX_SESSIONS
    }

    /// The session of this name that a client owns, whose sessions these are; the first one, if it has several on
    /// different workers. Most clients have one session, which is found without hashing.
    #[inline(always)]
    pub(crate) fn named_by(
        &self,
        client: ClientKey,
        own: &[SessionKey],
        name: &[u8],
    ) -> Option<(SessionKey, &Session)> {
        match own {
            [] => None,
            [only] => Some((*only, self.get(*only)?)).filter(|(_, session)| session.name.as_bytes() == name),
            _ => self.of_client(client, name),
        }
    }

    /// The first session of this name that a client owns, by hash.
    fn of_client(&self, client: ClientKey, name: &[u8]) -> Option<(SessionKey, &Session)> {
        let hash = self.index.hash(client, name);
        let is_it = |session: &Session| session.client == Some(client) && session.name.as_bytes() == name;
        let found = self.index.alike(&self.table, hash).filter(|(_, session)| is_it(session));
        found.min_by_key(|(key, _)| key.serial())
    }

    /// The session of this name on a worker, owned or reserved.
    pub(crate) fn of_worker(&self, worker: WorkerKey, name: &[u8]) -> Option<SessionKey> {
        let hash = self.index.hash(worker, name);
        let is_it = |session: &Session| session.worker == worker && session.name.as_bytes() == name;
        self.index.alike(&self.table, hash).find(|(_, session)| is_it(session)).map(|(key, _)| key)
    }

    /// A session is used now: a message in it has arrived.
    #[inline]
    pub(crate) fn touch(&mut self, key: SessionKey, now: Moment) {
        if let Some(session) = self.table.get_mut(key) {
            session.used = now;
        }
    }

    /// A message of its owner in it is forwarded now, perhaps a request.
    #[inline]
    pub(crate) fn use_now(&mut self, key: SessionKey, now: Moment, is_request: bool) {
        if let Some(session) = self.table.get_mut(key) {
            session.used = now;
            session.pending += u32::from(is_request);
        }
    }

    /// Its worker says something in it now, and so works for the sessions that it is a child of.
    pub(crate) fn touch_by_worker(&mut self, key: SessionKey, now: Moment) {
        let mut next = Some(key);
        while let Some(session) = next.and_then(|key| self.table.get_mut(key)) {
            session.active_at = now;
            next = session.parent;
        }
    }

    /// Schedules checks for sessions that expire after being `idle`, and for claims after their lifetime. Returns when.
    pub(super) fn watch(&mut self, now: Moment, idle: Option<Duration>, is_claim: bool) -> Moment {
        if let Some(idle) = idle {
            self.idle_due = self.idle_due.min(now.after(idle / LOOKS));
        }
        if is_claim {
            self.claims_due = self.claims_due.min(now.after(CLAIM_LASTS));
        }
        self.next_deadline()
    }

    /// Sessions that were unused for this long, if it is time to check. One in whose slot, by `awaited`, a client waits
    /// is in use.
    pub(super) fn take_idle(
        &mut self,
        now: Moment,
        idle: Option<Duration>,
        awaited: impl FnOnce(&Self) -> Vec<u32>,
    ) -> Vec<SessionKey> {
        let mut found = Vec::new();
        if self.idle_due > now {
            return found;
        }
        let Some(idle) = idle else {
            // A reload has switched it off.
            self.idle_due = Moment::NEVER;
            return found;
        };
        let awaited = awaited(self);
        self.touch_parents(now, &awaited);
        for (slot, awaited) in awaited.into_iter().enumerate() {
            match self.table.at(slot).filter(|(_, session)| session.client.is_some() && session.parent.is_none()) {
                Some((key, session)) if session.is_working() || session.pending > 0 && awaited > 0 => {
                    self.touch(key, now);
                }
                Some((key, session)) if now.since(session.used) >= idle => found.push(key),
                _ => {}
            }
        }
        self.idle_due = if self.owned() > found.len() { now.after(idle / LOOKS) } else { Moment::NEVER };
        found
    }

    /// What is said in a child keeps the session in use that it belongs to, and with it all of its children.
    fn touch_parents(&mut self, now: Moment, awaited: &[u32]) {
        let children = self.table.iter().filter(|(_, session)| session.parent.is_some() && session.client.is_some());
        let used: Vec<_> = children
            .map(|(key, session)| {
                let is_awaited = session.pending > 0 && awaited.get(key.index()).is_some_and(|awaited| *awaited > 0);
                (self.root_of(key), if is_awaited { now } else { session.used })
            })
            .collect();
        for (root, used) in used {
            if let Some(root) = self.table.get_mut(root) {
                root.used = root.used.max(used);
            }
        }
    }

    /// Makes a session a child of another one: the worker knows it for good, and its owner has proved as much.
    pub(super) fn adopt(&mut self, child: SessionKey, parent: SessionKey) {
        let Some(session) = self.table.get_mut(parent) else { return };
        session.has_children = true;
        let state = session.state;
        if let Some(session) = self.table.get_mut(child) {
            (session.parent, session.state, session.is_known) = (Some(parent), state, true);
        }
    }

    /// A child is a session of its own from now on, whose parent has no owner.
    pub(super) fn leave_family(&mut self, child: SessionKey) {
        if let Some(session) = self.table.get_mut(child) {
            session.parent = None;
        }
    }

    /// The session itself, its parent, and so on.
    pub(crate) fn ancestry(&self, key: SessionKey) -> impl Iterator<Item = SessionKey> {
        core::iter::successors(Some(key), |key| self.get(*key)?.parent)
    }

    /// The session that is no child: this one, or the parent of its parents.
    pub(crate) fn root_of(&self, key: SessionKey) -> SessionKey {
        self.ancestry(key).last().unwrap_or(key)
    }

    /// Whether a session is a child of another one, or a child of its children.
    pub(super) fn is_below(&self, key: SessionKey, parent: SessionKey) -> bool {
        self.ancestry(key).skip(1).any(|key| key == parent)
    }

    /// The children of a session, and theirs.
    pub(crate) fn family_of(&self, key: SessionKey) -> Vec<SessionKey> {
        if self.get(key).is_none_or(|session| !session.has_children) {
            return Vec::new();
        }
        let children = self.table.iter().filter(|(_, session)| session.parent.is_some());
        children.map(|(child, _)| child).filter(|child| self.is_below(*child, key)).collect()
    }

    /// A worker reports whether a session is active.
    pub(super) fn set_working(&mut self, key: SessionKey, is_working: bool) {
        if let Some(session) = self.table.get_mut(key) {
            session.is_working = is_working;
        }
    }

    /// Number of reserved names.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Adds a name on a worker that [`Sessions::of_worker`] does not know yet, without an owner; none if full.
    pub(super) fn insert(
        &mut self,
        now: Moment,
        worker: WorkerKey,
        at_worker: &mut SessionList,
        name: &[u8],
        state: SessionState,
    ) -> Option<SessionKey> {
        debug_assert!(self.of_worker(worker, name).is_none());
        let key = self.table.insert(Session::new(now, worker, name, state))?;
        self.index.insert(self.index.hash(worker, name), key);
        at_worker.0.push(key);
        Some(key)
    }

    /// Gives a session without an owner to a client, with the list of its sessions.
    pub(super) fn give(&mut self, key: SessionKey, client: ClientKey, at_client: &mut SessionList) {
        let Some(session) = self.table.get_mut(key).filter(|session| session.client.is_none()) else { return };
        session.client = Some(client);
        self.held.remove(&session.held_as);
        at_client.0.push(key);
        self.index.insert(self.index.hash(client, session.name.as_bytes()), key);
    }

    /// Removes the owner of a session, whose list this is.
    pub(super) fn take_from_owner(&mut self, key: SessionKey, at_client: Option<&mut SessionList>) {
        let Some(session) = self.table.get_mut(key) else { return };
        let Some(owner) = session.client.take() else { return };
        self.index.remove(self.index.hash(owner, session.name.as_bytes()), key);
        at_client.into_iter().for_each(|list| list.leave(key));
    }

    /// Removes a session without an owner from the table, and from the list of its worker.
    pub(super) fn remove(&mut self, key: SessionKey, at_worker: Option<&mut SessionList>) {
        let Some(session) = self.table.remove(key) else { return };
        debug_assert!(session.client.is_none());
        self.index.remove(self.index.hash(session.worker, session.name.as_bytes()), key);
        self.held.remove(&session.held_as);
        at_worker.into_iter().for_each(|list| list.leave(key));
    }

    /// Applies an event to a session. A reserved name has no owner to prove anything.
    pub(crate) fn step(&mut self, key: SessionKey, event: SessionEvent) {
        let Some(session) = self.table.get_mut(key) else { return };
        session.is_known |= event != SessionEvent::Answered;
        if session.client.is_none() {
            return;
        }
        let state = step(session.state, event);
        let has_changed = core::mem::replace(&mut session.state, state) != state;
        if has_changed && session.has_children {
            self.share_state(key, state);
        }
    }

    /// The children of a session are its owner's as surely as it is.
    #[cold]
    fn share_state(&mut self, parent: SessionKey, state: SessionState) {
        for child in self.family_of(parent) {
            if let Some(child) = self.table.get_mut(child) {
                child.state = state;
            }
        }
    }

    /// Applies an event to all of these.
    pub(crate) fn step_all(&mut self, keys: [Option<SessionKey>; 2], event: SessionEvent) {
        keys.into_iter().flatten().for_each(|key| self.step(key, event));
    }

    /// A request of its owner, which does not change the session, is answered. None if more has to be checked, and then
    /// nothing was done.
    #[inline]
    pub(crate) fn end_simple_request(&mut self, key: SessionKey, asker: ClientKey, succeeds: bool) -> Option<()> {
        let Some(session) = self.table.get_mut(key) else { return Some(()) };
        if session.client != Some(asker) {
            return None;
        }
        session.pending -= 1;
        if succeeds && session.state < SessionState::Used {
            self.step(key, SessionEvent::Answered);
        }
        Some(())
    }

    /// One request more is pending in a session.
    #[inline]
    pub(crate) fn begin_request(&mut self, key: SessionKey) {
        if let Some(session) = self.table.get_mut(key) {
            session.pending += 1;
        }
    }

    /// One request less is pending in a session. True if the name was reserved only for it, and is free again.
    #[inline]
    pub(crate) fn end_request(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.table.get_mut(key) else { return false };
        session.pending -= 1;
        session.pending == 0 && session.client.is_none() && !session.is_known
    }

    /// The one of these sessions to evict first: nothing is pending in it, and none of them is a child of it, since those
    /// would go with it; first those without an answer, then those unused for longest.
    pub(super) fn most_idle(&self, keys: &[SessionKey]) -> Option<SessionKey> {
        let mut parents: Vec<_> = keys.iter().filter_map(|key| self.get(*key)?.parent).collect();
        parents.sort_unstable();
        let is_in_use = |at: &Session| at.pending > 0 || at.is_working();
        let may_go = |key: &SessionKey, at: &Session| !is_in_use(at) && parents.binary_search(key).is_err();
        let found = keys.iter().filter_map(|key| Some((*key, self.get(*key)?)));
        let idle = found.filter(|(key, session)| may_go(key, session));
        idle.min_by_key(|(_, session)| (session.state >= SessionState::Used, session.used)).map(|(key, _)| key)
    }

    /// Claims that were unused for a minute, with their owners.
    pub(super) fn take_expired_claims(&mut self, now: Moment) -> Vec<(SessionKey, ClientKey)> {
        let mut expired = Vec::new();
        if self.claims_due > now {
            return expired;
        }
        self.claims_due = Moment::NEVER;
        for (key, session) in self.table.iter() {
            let is_claim = session.state < SessionState::Used && !session.is_known && session.parent.is_none();
            let Some(owner) = session.client.filter(|_| is_claim) else {
                continue;
            };
            if session.pending == 0 && now.since(session.used) >= CLAIM_LASTS {
                expired.push((key, owner));
            } else {
                let due = session.used.after(CLAIM_LASTS).max(now.after(CLAIM_LASTS / 60));
                self.claims_due = self.claims_due.min(due);
            }
        }
        expired
    }

    /// Reserves a name, behind the others; returns the oldest one if there are too many.
    pub(super) fn hold(&mut self, key: SessionKey) -> Option<SessionKey> {
        self.holds += 1;
        let session = self.table.get_mut(key)?;
        (session.held_as, session.state) = (self.holds, SessionState::Lent);
        self.held.insert(self.holds, key);
        let (_, oldest) = self.held.first_key_value()?;
        (self.held.len() > MAX_HELD).then_some(*oldest)
    }

    /// When claims, or all sessions, have to be checked.
    pub(crate) fn next_deadline(&self) -> Moment {
        self.claims_due.min(self.idle_due)
    }

    /// Panics if an index and the table disagree.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.index.len(), self.table.len() + self.owned());
        assert!(self.owned() <= MAX_SESSIONS && self.held() <= MAX_HELD);
        assert_eq!(self.table.iter().filter(|(_, session)| session.client.is_some()).count(), self.owned());
        for (key, session) in self.table.iter() {
            assert_eq!(self.of_worker(session.worker, session.name.as_bytes()), Some(key));
            assert!(session.client.is_some() || session.state == SessionState::Lent);
            assert!(session.client.is_some() || session.is_known || session.pending > 0, "a name is held for nothing");
            if let Some(parent) = session.parent {
                let parent = self.get(parent).expect("a child ends with its parent");
                assert_eq!((parent.worker, parent.client), (session.worker, session.client), "a child has its owner");
                assert!(parent.has_children && self.ancestry(key).count() <= self.table.len());
            }
            if let Some(client) = session.client {
                let hash = self.index.hash(client, session.name.as_bytes());
                assert!(self.index.alike(&self.table, hash).any(|(at, _)| at == key));
            }
        }
    }
}

/// Sessions are looked up as in any table.
impl Deref for Sessions {
    type Target = Table<Session, 's'>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}
