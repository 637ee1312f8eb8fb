//! What outlives the daemon, if its configuration says where (`state`): sessions of MCP, with what began them, and the user
//! names of the core's sessions ([`View::bonds`](crate::bus::view::View::bonds)). The loop notes what changes; a thread
//! writes it behind the loop, at most once a second, and once more at the end (`crate::state` has the file).
//!
//! From the moment at which the daemon takes no more clients, sessions end with it, and stay in the file.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::news::{News, Teller};
use crate::bus::View;
use crate::bus::port::{Moment, Names};
use crate::config::Config;
use crate::error::StartError;
use crate::state::{Bond, Key, MOST_BYTES, Owner, Record, Session, State};

/// The file is written so often at most.
const EVERY: Duration = Duration::from_secs(1);
/// After so long it is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// How long the daemon waits for its last write.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// Maximum size of an `initialize` that is kept, and of the notification behind it.
pub(super) const LONGEST: usize = 16 << 10;

/// Whose the sessions of a client with these names are.
fn owner_of(names: &Names) -> Owner {
    match (&names.token, &names.common_name) {
        (Some(name), _) => Owner::Token(name.to_string()),
        (None, Some(name)) => Owner::Certificate(name.to_string()),
        (None, None) => Owner::Anyone,
    }
}

/// A session that is in the file.
struct Kept {
    session: Arc<Session>,
    /// An earlier daemon has begun it, and no request has named it since.
    waits: bool,
}

/// The thread that writes.
struct Writer {
    records: Sender<Vec<Record>>,
    /// How its last write has ended; it ends with the thread.
    last: Receiver<io::Result<()>>,
}

/// What outlives the daemon.
#[derive(Default)]
pub(super) struct Lasting {
    sessions: BTreeMap<Key, Kept>,
    /// The sum of their weights.
    bytes: usize,
    /// Something has changed that was not written.
    has_changed: bool,
    /// The number of changes of user names that was written.
    bonds: u64,
    /// It may be written from then on.
    next: Moment,
    /// So long sessions of an earlier daemon are waited for.
    until: Moment,
    /// The daemon has begun to shut down.
    is_final: bool,
    /// The last write has failed.
    has_failed: bool,
    /// That there is no room for a session was said.
    has_said_full: bool,
    writer: Option<Writer>,
}

impl Lasting {
    /// Opens the folder of this configuration, if it has one. Sessions of an earlier daemon are waited for `until` then.
    /// Returns what to give back to the core, too.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(config: &Config, teller: &Teller, until: Moment) -> Result<(Self, Vec<Bond>), StartError> {
        let Some(path) = &config.state else { return Ok((Self::default(), Vec::new())) };
        let failed = |source| StartError::State { path: path.clone(), source };
        let (state, loaded) = State::open(path, &config.node).map_err(failed)?;
        if let Some(doubt) = loaded.doubt {
            tracing::warn!(
                reason = "state",
                "{}: {doubt}; it is put aside as sessions.unreadable, and the daemon goes on without what is missing",
                path.display()
            );
        }
        let mut lasting = Self { until, ..Self::default() };
        let mut bonds = Vec::new();
        for record in loaded.records {
            match record {
                Record::McpSession(session) => {
                    lasting.bytes += session.weight();
                    lasting.sessions.insert(session.id, Kept { session, waits: true });
                }
                Record::SessionName(bond) => bonds.push(bond),
            }
        }
        if !lasting.sessions.is_empty() || !bonds.is_empty() {
            let (sessions, names) = (lasting.sessions.len(), bonds.len());
            tracing::info!("state: {sessions} sessions of MCP wait for their clients, {names} sessions have owners");
        }
        let ((records, received), (told, last)) = (channel(), channel());
        let write = move |teller: &Teller| write(state, &received, teller, &told);
        teller.spawn("state", write).map_err(StartError::io("make a thread that writes the state"))?;
        lasting.writer = Some(Writer { records, last });
        Ok((lasting, bonds))
    }

    /// One in which these sessions wait, and that writes nothing.
    #[cfg(test)]
    pub(super) fn of(sessions: impl IntoIterator<Item = Session>, until: Moment) -> Self {
        let mut lasting = Self { until, ..Self::default() };
        for session in sessions {
            lasting.bytes += session.weight();
            lasting.sessions.insert(session.id, Kept { session: Arc::new(session), waits: true });
        }
        lasting
    }

    /// Whether anything outlives the daemon.
    pub(super) fn is_on(&self) -> bool {
        self.writer.is_some()
    }

    /// The session of an earlier daemon that this id names, if no request has named it yet.
    pub(super) fn waiting(&self, now: Moment, id: &str) -> Option<&Arc<Session>> {
        if self.sessions.is_empty() || now >= self.until {
            return None;
        }
        self.sessions.get(&Key::of(id)).filter(|kept| kept.waits).map(|kept| &kept.session)
    }

    /// Whether clients with these names may use a session of an earlier daemon.
    pub(super) fn is_of(session: &Session, names: &Names) -> bool {
        session.owner == owner_of(names)
    }

    /// A session that waited for its client goes on.
    pub(super) fn goes_on(&mut self, id: &str) {
        if let Some(kept) = self.sessions.get_mut(&Key::of(id)) {
            kept.waits = false;
        }
    }

    /// Whether a session is kept beyond the end of the daemon.
    pub(super) fn has(&self, id: &str) -> bool {
        !self.sessions.is_empty() && self.sessions.contains_key(&Key::of(id))
    }

    /// Keeps a session that has begun.
    pub(super) fn keep(&mut self, id: &str, names: &Names, pool: &str, version: &str, initialize: &[u8]) {
        let Ok(initialize) = str::from_utf8(initialize) else { return };
        let (pool, version, initialize) = (pool.to_owned(), version.to_owned(), initialize.to_owned());
        let (id, owner) = (Key::of(id), owner_of(names));
        self.put(Session { id, pool, owner, version, initialize, initialized: None });
    }

    fn put(&mut self, session: Session) {
        if !self.is_on() || self.is_final {
            return;
        }
        let before = self.sessions.get(&session.id).map_or(0, |kept| kept.session.weight());
        let bytes = self.bytes - before + session.weight();
        if bytes > MOST_BYTES / 2 {
            if !std::mem::replace(&mut self.has_said_full, true) {
                tracing::warn!(
                    reason = "state",
                    "the state is full: sessions that begin now do not outlive the daemon"
                );
            }
            return;
        }
        (self.bytes, self.has_changed) = (bytes, true);
        self.sessions.insert(session.id, Kept { session: Arc::new(session), waits: false });
    }

    /// The notification behind the `initialize` of a session has come.
    pub(super) fn initialized(&mut self, id: &str, text: &[u8]) {
        let Some(kept) = self.sessions.get(&Key::of(id)).filter(|kept| kept.session.initialized.is_none()) else {
            return;
        };
        if let Some(text) = str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST) {
            self.put(Session { initialized: Some(text.to_owned()), ..Session::clone(&kept.session) });
        }
    }

    /// The notification that followed the `initialize` of a session.
    pub(super) fn initialized_of(&self, id: &str) -> Option<&str> {
        self.sessions.get(&Key::of(id))?.session.initialized.as_deref()
    }

    /// A session has ended. With the daemon it does not, unless its client ends it.
    pub(super) fn forget(&mut self, id: &str, by_client: bool) {
        if self.sessions.is_empty() || self.is_final && !by_client {
            return;
        }
        if let Some(kept) = self.sessions.remove(&Key::of(id)) {
            self.bytes -= kept.session.weight();
            self.has_changed = true;
        }
    }

    /// The daemon shuts down: what ends from now on ends with it.
    pub(super) fn ends(&mut self) {
        self.is_final = true;
    }

    /// Has what outlives the daemon written, if it has changed. Returns when to come again, if it has to wait.
    pub(super) fn write(&mut self, now: Moment, view: View<'_>, config: &Config) -> Option<Moment> {
        let bonds = view.bond_changes();
        if !self.has_changed && self.bonds == bonds {
            return None;
        }
        if now < self.next {
            return Some(self.next);
        }
        let records = self.records(now, view, config);
        (self.has_changed, self.bonds, self.next) = (false, bonds, now.after(EVERY));
        if let Some(writer) = &self.writer {
            // It ends only after this sender.
            let _ = writer.records.send(records);
        }
        None
    }

    /// Writes it for the last time, and waits for that, at most for a while.
    pub(super) fn close(&mut self, now: Moment, view: View<'_>, config: &Config) {
        let Some(Writer { records, last }) = self.writer.take() else { return };
        let _ = records.send(self.records(now, view, config));
        drop(records);
        let until = Instant::now() + LAST_WRITE;
        let mut result = Ok(());
        loop {
            match last.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(written) => result = written,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    result = Err(io::Error::other(format!("it takes longer than {} s", LAST_WRITE.as_secs())));
                    break;
                }
            }
        }
        if let Err(error) = result {
            tracing::error!(
                reason = "state",
                "the last state was not written: {error}; the next start finds an older one"
            );
        }
    }

    /// All that outlives the daemon.
    fn records(&self, now: Moment, view: View<'_>, config: &Config) -> Vec<Record> {
        let sessions = self.sessions.values().filter(|kept| !kept.waits || now < self.until);
        let sessions = sessions.map(|kept| Record::McpSession(Arc::clone(&kept.session)));
        let bonds = view.bonds().filter_map(|(pool, session, user)| {
            let session = str::from_utf8(session).ok()?.to_owned();
            let pool = config.pools.get(pool.index()).filter(|pool| !pool.core.is_gone)?.core.id.clone();
            Some(Record::SessionName(Bond { session, pool, user: user.to_owned() }))
        });
        let mut room = MOST_BYTES / 2;
        let mut newest: Vec<Record> = bonds.collect();
        newest.reverse();
        let fits = |record: &Record| {
            let Record::SessionName(bond) = record else { return true };
            let takes = 128 + bond.session.len() + bond.pool.len() + bond.user.len();
            room = room.saturating_sub(takes);
            room > 0
        };
        let mut bonds: Vec<Record> = newest.into_iter().take_while(fits).collect();
        bonds.reverse();
        sessions.chain(bonds).collect()
    }

    /// Takes how a write has ended.
    pub(super) fn written(&mut self, now: Moment, result: &io::Result<()>) {
        match result {
            Ok(()) if std::mem::take(&mut self.has_failed) => {
                tracing::info!(reason = "state", "the state is written again");
            }
            Ok(()) => {}
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
fn write(mut state: State, records: &Receiver<Vec<Record>>, teller: &Teller, told: &Sender<io::Result<()>>) {
    while let Ok(mut newest) = records.recv() {
        while let Ok(newer) = records.try_recv() {
            newest = newer;
        }
        let result = state.replace(&newest);
        // The loop hears it while it runs, and whoever waits for the last one afterwards.
        let again = result.as_ref().map(drop).map_err(|error| io::Error::new(error.kind(), error.to_string()));
        teller.tell(News::StateWritten(result));
        let _ = told.send(again);
    }
}
