//! What outlives the daemon, if its configuration says where (`state`): sessions of MCP, with what began them, and the user
//! names of the core's sessions ([`View::session_users`]). The loop notes what changes; a thread writes it behind the loop, one
//! file at a time, and once more at the end (`crate::state` has the file).
//!
//! From the moment at which the daemon takes no more clients, sessions end with it, and stay in the file.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::loop_handle::{LoopHandle, LoopMessage};
use crate::bus::port::{Moment, Names, PoolId};
use crate::bus::{Bus, View};
use crate::config::{Config, Listener, PoolConfig};
use crate::error::StartError;
use crate::state::{MOST_BYTES, Record, SessionDigest, SessionOwner, SessionUser, StateFile, StoredSession};

/// The file is written so often at most, and less often by as much for each of so many records.
const EVERY: Duration = Duration::from_secs(1);
const RECORDS: u32 = 4000;
/// After so long it is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// How long the daemon waits for its last write.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// Maximum size of an `initialize` that is kept, and of the notification behind it.
const LONGEST: usize = 16 << 10;
/// How many owners are kept that the core does not know. Beyond it the oldest one is dropped.
const MOST_STRANGERS: usize = 16 << 10;
/// How many workers may fail before they answer the `initialize` of a session: then it ends.
const MOST_TRIES: u8 = 3;
/// After so many daemons whose time it has waited in vain, a session is forgotten.
const MOST_DAEMONS: u8 = 8;

/// Whose the sessions of a client with these names are.
fn owner_of(names: &Names) -> SessionOwner {
    names.owner().map_or(SessionOwner::Anyone, SessionOwner::from)
}

/// The owners that the core has, also those of sessions in pools that a reload has removed: another one may add them again.
fn owners<'a>(view: View<'a>, config: &'a Config) -> impl Iterator<Item = (PoolId, SessionUser)> {
    view.session_users().filter_map(|(pool, session, user)| {
        let session = str::from_utf8(session).ok()?.to_owned();
        let id = config.pools.get(pool.index())?.core.id.clone();
        Some((pool, SessionUser { session, pool: id, user: user.into() }))
    })
}

/// A session that is in the file.
struct KeptSession {
    session: Arc<StoredSession>,
    /// An earlier daemon has begun it, and no request has named it since, or none of the workers that were to serve it
    /// again has answered.
    waits: bool,
    /// Its client has come since.
    has_come: bool,
    /// How many workers had its `initialize`, and failed.
    tries: u8,
    bytes: usize,
}

/// Sessions that outlive the daemon.
pub(super) struct SessionCounts {
    /// Their clients use them.
    pub open: usize,
    /// They wait for their clients since an earlier daemon.
    pub waiting: usize,
}

/// The thread that writes.
struct Writer {
    records: Sender<Vec<Record>>,
    /// How its last write has ended.
    last: Receiver<io::Result<usize>>,
    /// It has records that it has not written yet.
    is_busy: bool,
}

/// What outlives the daemon.
#[derive(Default)]
pub(super) struct Persistence {
    sessions: BTreeMap<SessionDigest, KeptSession>,
    /// How many of them wait for their clients.
    waiting: usize,
    /// The sum of their bytes in the file.
    bytes: usize,
    /// Owners of sessions that the core does not know, since the configuration does not have their pools. The oldest is
    /// first.
    strangers: Vec<SessionUser>,
    /// Something has changed that was not written.
    has_changed: bool,
    /// The number of changes of user names that was written.
    session_users: u64,
    /// It may be written from then on.
    next: Moment,
    /// So long sessions of an earlier daemon are waited for.
    until: Moment,
    /// The daemon has begun to shut down.
    is_final: bool,
    /// The last write has failed.
    has_failed: bool,
    /// That there is no room for sessions, and for names, was said.
    has_said_full: [bool; 2],
    writer: Option<Writer>,
}

impl Persistence {
    /// Opens the folder of this configuration, if it has one. The owners that are in it are not known to the core yet
    /// ([`bind_owners`](Self::bind_owners)).
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(config: &Config, loop_handle: &LoopHandle) -> Result<Self, StartError> {
        let Some(path) = &config.state else { return Ok(Self::default()) };
        let failed = |source| StartError::State { path: path.clone(), source };
        let (state, loaded) = StateFile::open(path, &config.node).map_err(failed)?;
        if let Some(damage) = loaded.damage {
            tracing::warn!(reason = "state", "{}: {damage}; the daemon starts without what is missing", path.display());
        }
        let mut persistence = Self::default();
        for record in loaded.records {
            match record {
                Record::McpSession(session) => persistence.wait_for(session),
                Record::SessionName(session_user) => persistence.strangers.push(session_user),
            }
        }
        // The newest is first in the file, and last here.
        persistence.strangers.reverse();
        let ((records, received), (results, last)) = (channel(), channel());
        let write = move |loop_handle: &LoopHandle| write(state, &received, loop_handle, &results);
        loop_handle.spawn("state", write).map_err(StartError::io("make a thread that writes the state"))?;
        persistence.writer = Some(Writer { records, last, is_busy: false });
        persistence.configure(config);
        if !persistence.sessions.is_empty() || !persistence.strangers.is_empty() {
            let (sessions, names) = (persistence.sessions.len(), persistence.strangers.len());
            tracing::info!("state: {sessions} sessions of MCP wait for their clients, {names} sessions have owners");
        }
        Ok(persistence)
    }

    /// Takes the owners that the core is about to forget: a reload removes their pool, or has removed it, and gives its place
    /// to another one.
    pub(super) fn take_owners(&mut self, view: View<'_>, before: &Config, after: &Config) {
        if self.is_on() {
            let id = |config: &Config, pool: PoolId| config.pools.get(pool.index()).map(|pool| pool.core.id.clone());
            let is_forgotten = |(pool, _): &(PoolId, SessionUser)| id(before, *pool) != id(after, *pool);
            let forgotten = owners(view, before).filter(is_forgotten).map(|(_, session_user)| session_user);
            self.strangers.extend(forgotten);
            self.strangers.drain(..self.strangers.len().saturating_sub(MOST_STRANGERS));
        }
    }

    /// Gives the core, which has this configuration, the owners of sessions in pools that are there now: at the start, and
    /// when a reload has added a pool. Otherwise another user could load these sessions.
    pub(super) fn bind_owners(&mut self, bus: &mut Bus, config: &Config) {
        // The newest is last here, and comes first for the core.
        self.strangers.reverse();
        self.strangers.retain(|SessionUser { session, pool, user }| {
            let pool = config.pools.iter().position(|it| it.core.id == *pool && !it.core.is_gone);
            match (pool, user.verified()) {
                (Some(pool), Some(user)) => !bus.bind(PoolId::at(pool), session.as_bytes(), user),
                _ => pool.is_none(),
            }
        });
        self.strangers.reverse();
    }

    /// One in which these sessions wait, and that writes nothing.
    #[cfg(test)]
    pub(super) fn of(sessions: impl IntoIterator<Item = StoredSession>) -> Self {
        let mut persistence = Self::default();
        sessions.into_iter().for_each(|session| persistence.wait_for(Arc::new(session)));
        persistence
    }

    /// A session of an earlier daemon waits for its client, unless it has waited in vain too often.
    fn wait_for(&mut self, session: Arc<StoredSession>) {
        let session = StoredSession { daemons: session.daemons.saturating_add(1), ..StoredSession::clone(&session) };
        if session.daemons <= MOST_DAEMONS {
            let bytes = session.weight();
            (self.bytes, self.waiting) = (self.bytes + bytes, self.waiting + 1);
            let kept = KeptSession { session: Arc::new(session), waits: true, has_come: false, tries: 0, bytes };
            if let Some(twice) = self.sessions.insert(kept.session.id, kept) {
                (self.bytes, self.waiting) = (self.bytes - twice.bytes, self.waiting - 1);
            }
        }
    }

    /// Sessions of an earlier daemon are waited for until then.
    pub(super) fn wait_until(&mut self, until: Moment) {
        self.until = until;
    }

    /// Forgets the sessions of pools that are gone, or whose sessions end with the daemon.
    pub(super) fn configure(&mut self, config: &Config) {
        let restores = |pool: &str| config.pools.iter().any(|it| it.core.id == pool && it.restores && !it.core.is_gone);
        self.retain(|kept| restores(&kept.session.pool));
    }

    fn retain(&mut self, stays: impl Fn(&KeptSession) -> bool) {
        let before = self.sessions.len();
        self.sessions.retain(|_, kept| stays(kept));
        if self.sessions.len() < before {
            self.waiting = self.sessions.values().filter(|kept| kept.waits).count();
            self.bytes = self.sessions.values().map(|kept| kept.bytes).sum();
            self.has_changed = true;
        }
    }

    /// How many sessions outlive the daemon.
    pub(super) fn counts(&self) -> SessionCounts {
        SessionCounts { open: self.sessions.len() - self.waiting, waiting: self.waiting }
    }

    /// Whether the last write has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether anything outlives the daemon.
    pub(super) fn is_on(&self) -> bool {
        self.writer.is_some()
    }

    /// The session that this id names, if it is kept, and whether it waits for its client since an earlier daemon.
    pub(super) fn find(&self, now: Moment, id: &str) -> Option<(&Arc<StoredSession>, bool)> {
        if self.sessions.is_empty() {
            return None;
        }
        let is_there = |kept: &&KeptSession| !kept.waits || kept.has_come || now < self.until;
        let kept = self.sessions.get(&SessionDigest::of(id)).filter(is_there)?;
        Some((&kept.session, kept.waits))
    }

    /// What is kept of a session that begins with this `initialize`; none if nothing of it is.
    pub(super) fn begins(
        &self,
        id: &str,
        names: &Names,
        pool: &PoolConfig,
        listener: &Listener,
        initialize: &[u8],
    ) -> Option<Box<StoredSession>> {
        let initialize = str::from_utf8(initialize).ok()?;
        let is_kept = self.is_on() && pool.restores && initialize.len() <= LONGEST;
        is_kept.then(|| {
            Box::new(StoredSession {
                id: SessionDigest::of(id),
                pool: pool.core.id.clone(),
                listener: listener.address(),
                owner: owner_of(names),
                daemons: 0,
                version: String::new(),
                initialize: initialize.to_owned(),
                initialized: None,
            })
        })
    }

    /// Whether clients with these names, who come in here, may use a session of an earlier daemon.
    pub(super) fn is_of(session: &StoredSession, names: &Names, listener: &Listener) -> bool {
        session.owner == owner_of(names) && session.listener == listener.address()
    }

    /// A session that waited for its client is about to go on.
    pub(super) fn resumed(&mut self, id: &str) {
        if let Some(kept) = self.sessions.get_mut(&SessionDigest::of(id)).filter(|kept| kept.waits) {
            self.waiting -= 1;
            kept.waits = false;
            if kept.session.daemons > 0 {
                kept.session = Arc::new(StoredSession { daemons: 0, ..StoredSession::clone(&kept.session) });
            }
            self.has_changed = true;
        }
    }

    /// A session was to go on, and no worker has answered its `initialize`: it waits again, or has ended. `has_failed` if a
    /// worker had that, and has ended or not answered in time.
    pub(super) fn waits_again(&mut self, id: &str, has_failed: bool) {
        let Some(kept) = self.sessions.get_mut(&SessionDigest::of(id)).filter(|kept| !kept.waits) else { return };
        (kept.has_come, kept.tries) = (true, kept.tries + u8::from(has_failed));
        if self.is_final || kept.tries < MOST_TRIES {
            kept.waits = true;
            self.waiting += 1;
            return;
        }
        tracing::warn!(
            reason = "session_restored",
            pool = kept.session.pool,
            "a session of an earlier daemon has ended: {MOST_TRIES} workers have not answered the initialize that began it; \
             its client has to begin anew"
        );
        self.forget(id, false);
    }

    /// Whether a session is kept beyond the end of the daemon.
    pub(super) fn has(&self, id: &str) -> bool {
        !self.sessions.is_empty() && self.sessions.contains_key(&SessionDigest::of(id))
    }

    /// Keeps a session that has begun, also while the daemon shuts down: its client knows the id, and may use it at the next
    /// one.
    pub(super) fn keep(&mut self, session: StoredSession) {
        if self.is_on() {
            self.put(session);
        }
    }

    fn put(&mut self, session: StoredSession) {
        let bytes = session.weight();
        let before = self.sessions.get(&session.id).map_or(0, |kept| kept.bytes);
        let excess = (self.bytes - before + bytes).saturating_sub(MOST_BYTES / 2);
        let Some(victims) = self.victims(excess) else {
            if !std::mem::replace(&mut self.has_said_full[0], true) {
                let text = "the state is full: sessions that begin now do not outlive the daemon";
                tracing::warn!(reason = "state", "{text}");
            }
            return;
        };
        victims.into_iter().for_each(|id| self.drop_one(id));
        (self.bytes, self.has_changed) = (self.bytes - before + bytes, true);
        let tries = self.sessions.get(&session.id).map_or(0, |kept| kept.tries);
        let kept = KeptSession { session: Arc::new(session), waits: false, has_come: true, tries, bytes };
        self.sessions.insert(kept.session.id, kept);
    }

    /// Sessions that give way, so that so many bytes are free: those whose clients may never come. None if they have fewer.
    fn victims(&self, excess: usize) -> Option<Vec<SessionDigest>> {
        let (mut victims, mut freed) = (Vec::new(), 0);
        let mut may_go = self.sessions.iter().filter(|(_, kept)| kept.waits && !kept.has_come);
        while freed < excess {
            let (id, kept) = may_go.next()?;
            victims.push(*id);
            freed += kept.bytes;
        }
        Some(victims)
    }

    fn drop_one(&mut self, id: SessionDigest) {
        if let Some(kept) = self.sessions.remove(&id) {
            (self.bytes, self.waiting) = (self.bytes - kept.bytes, self.waiting - usize::from(kept.waits));
            self.has_changed = true;
        }
    }

    /// The notification behind the `initialize` of a session has come.
    pub(super) fn initialized(&mut self, id: &str, text: &[u8]) {
        let is_new = |kept: &&KeptSession| kept.session.initialized.is_none() && !kept.waits;
        let Some(kept) = self.sessions.get(&SessionDigest::of(id)).filter(is_new) else { return };
        if let Some(text) = str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST) {
            self.put(StoredSession { initialized: Some(text.to_owned()), ..StoredSession::clone(&kept.session) });
        }
    }

    /// The notification that followed the `initialize` of a session.
    pub(super) fn initialized_of(&self, id: &str) -> Option<&str> {
        self.sessions.get(&SessionDigest::of(id))?.session.initialized.as_deref()
    }

    /// A session has ended. With the daemon it does not, unless its client ends it, or its worker.
    pub(super) fn forget(&mut self, id: &str, for_good: bool) {
        if !self.sessions.is_empty() && (for_good || !self.is_final) {
            self.drop_one(SessionDigest::of(id));
        }
    }

    /// Whether what ends ends with the daemon.
    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    /// The daemon shuts down: what ends from now on ends with it.
    pub(super) fn ends(&mut self) {
        self.is_final = true;
    }

    /// Has what outlives the daemon written, if it has changed. Returns when to come again, if it has to wait.
    pub(super) fn write(&mut self, now: Moment, view: View<'_>, config: &Config) -> Option<Moment> {
        if self.waiting > 0 && now >= self.until {
            // Whose client has come is no stranger, though its worker has died.
            self.retain(|kept| !kept.waits || kept.has_come);
            self.until = Moment::NEVER;
        }
        let session_users = view.session_user_changes();
        let writer = self.writer.as_ref().filter(|writer| !writer.is_busy)?;
        if !self.has_changed && self.session_users == session_users {
            return None;
        }
        if now < self.next {
            return Some(self.next);
        }
        let records = self.records(view, config);
        let part = u32::try_from(records.len()).unwrap_or(u32::MAX) / RECORDS;
        // It ends only after this sender.
        let _ = writer.records.send(records);
        (self.has_changed, self.session_users, self.next) = (false, session_users, now.after(EVERY * (part + 1)));
        self.writer.iter_mut().for_each(|writer| writer.is_busy = true);
        None
    }

    /// Writes it for the last time, and waits for that, at most for a while. Returns whether it was written.
    pub(super) fn close(&mut self, view: View<'_>, config: &Config) -> bool {
        let Some(Writer { records, last, .. }) = self.writer.take() else { return true };
        let _ = records.send(self.records(view, config));
        drop(records);
        let until = Instant::now() + LAST_WRITE;
        let result = match last.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(written) => written.map(drop),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("its thread has ended")),
            Err(RecvTimeoutError::Timeout) => {
                Err(io::Error::other(format!("it takes longer than {} s", LAST_WRITE.as_secs())))
            }
        };
        if let Err(error) = &result {
            tracing::error!(
                reason = "state",
                "the last state was not written: {error}; the next start finds an older one"
            );
        }
        result.is_ok()
    }

    /// All that outlives the daemon: sessions, and owners, the newest first.
    fn records(&self, view: View<'_>, config: &Config) -> Vec<Record> {
        let sessions = self.sessions.values().map(|kept| Record::McpSession(Arc::clone(&kept.session)));
        let session_users = owners(view, config).map(|(_, session_user)| session_user);
        let mut session_users: Vec<SessionUser> = self.strangers.iter().cloned().chain(session_users).collect();
        session_users.reverse();
        sessions.chain(session_users.into_iter().map(Record::SessionName)).collect()
    }

    /// Takes how a write has ended: how many records found no room.
    pub(super) fn written(&mut self, now: Moment, result: &io::Result<usize>) {
        self.writer.iter_mut().for_each(|writer| writer.is_busy = false);
        match result {
            Ok(left) => {
                if std::mem::take(&mut self.has_failed) {
                    tracing::info!(reason = "state", "the state is written again");
                }
                if *left > 0 && !std::mem::replace(&mut self.has_said_full[1], true) {
                    let text = "the state is full: the owners of the oldest sessions do not outlive the daemon";
                    tracing::warn!(reason = "state", "{text}");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::error!(
                        reason = "state",
                        "the state cannot be written ({error}), so that sessions which begin now do not outlive the \
                         daemon; it is tried again every {} s",
                        TRY_AGAIN.as_secs()
                    );
                }
                (self.has_changed, self.next) = (true, now.after(TRY_AGAIN));
            }
        }
    }
}

/// Writes what comes, the newest alone.
fn write(
    mut state: StateFile,
    records: &Receiver<Vec<Record>>,
    loop_handle: &LoopHandle,
    results: &Sender<io::Result<usize>>,
) {
    let mut last = Ok(0);
    while let Ok(mut newest) = records.recv() {
        while let Ok(newer) = records.try_recv() {
            newest = newer;
        }
        let result = state.replace(&newest);
        // The loop receives it while it runs, and whoever waits for the last one afterwards.
        last = result.as_ref().copied().map_err(|error| io::Error::new(error.kind(), error.to_string()));
        loop_handle.send(LoopMessage::StateWritten(result));
    }
    let _ = results.send(last);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As large as eight of them may be together.
    const EIGHTH: usize = MOST_BYTES / 16 - 1024;

    fn session(id: &str, bytes: usize) -> StoredSession {
        StoredSession {
            id: SessionDigest::of(id),
            pool: "tools".into(),
            listener: "http://127.0.0.1:0/mcp".into(),
            owner: SessionOwner::Anyone,
            daemons: 0,
            version: "2025-11-25".into(),
            initialize: "x".repeat(bytes),
            initialized: None,
        }
    }

    /// A full state in which eight sessions of an earlier daemon wait; clients of so many have returned, and found no worker.
    fn full(returned: usize) -> Persistence {
        let mut persistence = Persistence::of((0..8).map(|number| session(&number.to_string(), EIGHTH)));
        for number in 0..returned {
            persistence.resumed(&number.to_string());
            persistence.waits_again(&number.to_string(), false);
        }
        persistence
    }

    #[test]
    fn a_new_session_replaces_one_whose_client_has_not_returned_and_no_other() {
        let mut persistence = full(3);
        for number in 8..14 {
            persistence.put(session(&number.to_string(), EIGHTH));
        }
        let has = |number: usize| persistence.has(&number.to_string());
        assert!((0..3).all(has), "their clients ask again");
        assert!((8..13).all(has) && !(3..8).any(has), "each has replaced one");
        assert!(!has(13), "there was none to replace");
        assert_eq!((persistence.counts().open, persistence.counts().waiting), (5, 3));
    }

    #[test]
    fn a_session_for_which_there_is_not_enough_to_replace_replaces_nothing() {
        let mut persistence = full(6);
        persistence.put(session("new", 3 * EIGHTH));
        assert!((0..8).all(|number| persistence.has(&number.to_string())) && !persistence.has("new"));
    }
}
