//! What the model knows of sessions: whose they are, how sure that is, and who may name them.

use std::time::Duration;

use super::{Held, Model, Rank, Session, is_in_use, is_it};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::SessionAccess;
use crate::line::{Line, Who};

/// A claim that is not used for so long is forgotten.
const CLAIM_KEPT: Duration = Duration::from_secs(60);

impl Model {
    /// Whether the sessions that a line names may be named to this worker.
    pub(super) fn may_use(&self, client: usize, line: &Line, worker: usize) -> bool {
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        if shared || self.workers[worker].owner == Some(client) {
            return true;
        }
        let on_worker = |name: &String| self.sessions.iter().find(|at| at.worker == worker && at.name == *name);
        let is_held = |name: &String| self.held.iter().any(|held| held.worker == worker && held.name == *name);
        let is_mine = |name: &String| on_worker(name).is_some_and(|at| at.client == client);
        let cancels = !line.targets().is_empty();
        // What is loaded stands in params, if something stands there.
        let may_load = |name: &String| line.loads() && (line.names().len() < 2 || line.inner.as_ref() == Some(name));
        let is_free = |name: &String| on_worker(name).is_none() && (may_load(name) || !is_held(name));
        let issues = self.issues(worker) && !line.loads();
        // Nothing else may be asked in a session before the worker has said who gets it.
        let waits = |at: &Session| (at.lent || at.asked) && at.rank < Rank::Issued && !line.loads() && !cancels;
        if line.names().iter().any(|name| on_worker(name).is_some_and(waits)) {
            return false;
        }
        // Who only claimed a name may be waiting for the worker to give it to somebody else.
        let is_given = |name: &String| is_mine(name) && on_worker(name).is_some_and(|at| at.rank == Rank::Issued);
        line.names().iter().all(|name| is_mine(name) || is_free(name))
            && line.inner.as_ref().is_none_or(|name| is_given(name) || !issues || cancels && is_mine(name))
    }

    /// Whether a line names a session that was made under another name than that of its client. What the worker has made
    /// for the client is its own, but not to be loaded. A cancellation names its request.
    pub(super) fn is_bound(&self, client: usize, line: &Line, worker: usize) -> bool {
        let is_given =
            |name: &String| self.sessions.iter().any(|at| is_it(at, client, worker, name) && at.given && !line.loads());
        let is_bound = |name: &&String| self.is_bound_to_another(client, worker, name) && !is_given(name);
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        !shared && line.targets().is_empty() && line.names().iter().any(is_bound)
    }

    /// Whether a session was made under another name than that of this client.
    pub(super) fn is_bound_to_another(&self, client: usize, worker: usize, session: &str) -> bool {
        self.names.is_bound_to_another(self.workers[worker].pool, session, self.clients[client].name)
    }

    /// A client was given a session: it is loaded under no other name.
    pub(super) fn bind(&mut self, client: usize, worker: usize, session: &str) {
        if let Some(name) = self.clients[client].name {
            self.names.bind(self.workers[worker].pool, session, name);
        }
    }

    /// The session of this name is used, or claimed if it is nobody's.
    pub(super) fn session_used(
        &mut self,
        now: Moment,
        client: usize,
        worker: usize,
        name: &str,
        line: &Line,
    ) -> Option<usize> {
        let found = self.sessions.iter_mut().find(|session| session.worker == worker && session.name == *name);
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        if let Some(session) = found {
            assert!(session.client == client || shared, "a foreign session was used");
            (session.used, session.perhaps_used) = (now, now);
            return (session.client == client).then_some(session.serial);
        }
        let held = self.held.iter().position(|held| held.worker == worker && held.name == name);
        // A fork leaves the session alone that it comes from, and a worker of one client needs no second name.
        let is_its_own = self.workers[worker].owner.is_some();
        let second = is_its_own && line.way().is_some_and(|way| way != name);
        if let (Some(at), true) = (held, is_its_own) {
            // There is nobody to hold it from, so the request is in it all the same.
            let loads = line.loads() && line.method != "session/fork";
            if second || !loads {
                return (!second || !shared).then_some(self.held[at].serial);
            }
        }
        let shared = shared && !is_its_own;
        if line.method == "session/fork" || second || held.is_some() && (shared || !line.loads()) {
            return None;
        }
        let held = held.map(|held| self.held.remove(held));
        let made = self.new_session(now, client, worker, name, Rank::Claimed);
        let session = self.sessions.last_mut().expect("it was pushed");
        session.lent = held.is_some();
        // What is loaded stands in params, if something stands there.
        session.asked = held.is_none() && line.loads() && line.inner.as_ref().is_none_or(|inner| inner == name);
        session.was_issued = held.as_ref().is_some_and(|held| held.is_issued);
        // What its old owner has asked in it is pending in it still.
        session.serial = held.map_or(made, |held| held.serial);
        Some(session.serial)
    }

    fn new_session(&mut self, now: Moment, client: usize, worker: usize, name: &str, rank: Rank) -> usize {
        let serial = self.names.number();
        let session = Session {
            serial,
            client,
            worker,
            name: name.into(),
            rank,
            used: now,
            perhaps_used: now,
            was_issued: false,
            lent: false,
            asked: false,
            given: false,
        };
        self.sessions.push(session);
        serial
    }

    /// The owner of a session has gone, or has been refused it: nobody else gets it as long as something of it may come.
    pub(super) fn hold(&mut self, session: Session) {
        let is_issued = session.rank == Rank::Issued || session.was_issued;
        self.held.push(Held { worker: session.worker, name: session.name, serial: session.serial, is_issued });
    }

    /// An answer to a client names a session. `creates` says that the client asked for a new one.
    pub(super) fn learns(&mut self, now: Moment, client: usize, worker: usize, name: &str, creates: bool) {
        match self.sessions.iter_mut().find(|session| session.worker == worker && session.name == name) {
            // A worker that repeats what it is sent gives out nothing by that.
            Some(session) if session.client == client && !creates => {
                session.rank = session.rank.max(Rank::Confirmed);
                return;
            }
            Some(session) if session.client == client => {
                session.given = true;
                if session.rank < Rank::Issued {
                    session.rank = Rank::Issued;
                    self.bind(client, worker, name);
                }
            }
            Some(session) if session.rank == Rank::Issued => return self.count(Reason::SessionReused),
            _ => {
                self.sessions.retain(|session| session.worker != worker || session.name != name);
                self.new_session(now, client, worker, name, Rank::Issued);
                self.sessions.last_mut().expect("it was pushed").given = true;
                self.bind(client, worker, name);
            }
        }
        self.gives_out(worker, name);
        self.clients[client].lost.retain(|(lost, _)| *lost != name);
    }

    /// A worker has given out a name: from now on its pool does so, and the name is held for nobody else.
    fn gives_out(&mut self, worker: usize, name: &str) {
        self.held.retain(|held| held.worker != worker || held.name != name);
        self.names.issue(self.workers[worker].pool);
    }

    /// An answer comes that nobody waits for: what it names is kept from everybody. `asked_in` are the sessions of the
    /// request, if it did not ask for a new one: who repeats their names gives out nothing by that.
    pub(super) fn holds_late(&mut self, number: usize, asked_in: &[usize]) {
        let line = self.lines[number].clone();
        let (Who::Worker(worker), Some(name)) = (line.from, line.draft.result_session.filter(|_| line.draft.result))
        else {
            return;
        };
        let is_it = |of: usize, called: &str| of == worker && called == name;
        let owned = self.sessions.iter().find(|at| is_it(at.worker, &at.name));
        let held = self.held.iter().find(|held| is_it(held.worker, &held.name));
        let serial = owned.map(|at| at.serial).or(held.map(|held| held.serial));
        if serial.is_some_and(|serial| asked_in.contains(&serial)) {
            return;
        }
        self.names.issue(self.workers[worker].pool);
        if owned.is_none_or(|at| at.rank < Rank::Issued && !at.was_issued) && held.is_none_or(|held| !held.is_issued) {
            self.sessions.retain(|at| !is_it(at.worker, &at.name));
            self.gives_out(worker, &name);
            self.held.push(Held { worker, name, serial: self.names.number(), is_issued: true });
        }
    }

    /// A worker has loaded sessions, or may have, and nobody was told: it knows them for as long as it lives.
    pub(super) fn is_loaded(&mut self, serials: &[usize]) {
        for session in self.sessions.iter_mut().filter(|at| serials.contains(&at.serial)) {
            session.was_issued = true;
        }
        for held in self.held.iter_mut().filter(|held| serials.contains(&held.serial)) {
            held.is_issued = true;
        }
    }

    /// Names that were only claimed are free when nothing of them can come any more.
    pub(super) fn let_go(&mut self) {
        let pending = |serial: usize| self.to_workers.iter().any(|request| request.sessions.contains(&serial));
        self.held.retain(|held| held.is_issued || pending(held.serial));
    }

    /// So many claims were forgotten in this call, and the sessions that `is_left` says the bus has are left after it. A
    /// worker or a client that has ended in the same call may have taken some of the others with it (`is_over`).
    pub fn claims_expired(
        &mut self,
        now: Moment,
        how_many: u64,
        is_left: impl Fn(usize, &str) -> bool,
        is_over: impl Fn(Who) -> bool,
    ) {
        let (mut sure, mut all) = (0, 0);
        for session in std::mem::take(&mut self.sessions) {
            let in_use = is_in_use(&self.to_workers, &self.to_clients, session.serial);
            let is_old = now.since(session.used) >= CLAIM_KEPT;
            let may_go = session.rank == Rank::Claimed && !session.was_issued && !in_use && is_old;
            if !may_go || is_left(session.worker, &session.name) {
                self.sessions.push(session);
                continue;
            }
            all += 1;
            sure += u64::from(!is_over(Who::Client(session.client)) && !is_over(Who::Worker(session.worker)));
        }
        assert!((sure..=all).contains(&how_many), "{how_many} claims are forgotten, and not {sure} to {all}");
    }

    /// A name that its owner has only used may be one that the worker is just giving to somebody else, or one that it
    /// still works for somebody else in, who has left.
    pub(super) fn may_be_anothers(&self, session: &Session) -> bool {
        let all = self.to_workers.iter().chain(&self.to_clients);
        let pending = all.filter(|request| request.sessions.contains(&session.serial)).count();
        let may_have_left = session.rank == Rank::Claimed && session.lent && pending != 1;
        // What a worker is asked to load it tells again before it answers.
        let is_loaded = session.lent || session.asked;
        may_have_left || session.rank < Rank::Issued && !is_loaded && self.creates(session.worker)
    }
}
