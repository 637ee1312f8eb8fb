//! The model's sessions: the owner of each, how certain it is, and which clients may name it.

use std::time::Duration;

use super::{Held, Model, Rank, Request, Session, is_in_use, is_it};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::SessionAccess;
use crate::line::{Line, Party};

/// A claim that is not used for this long expires.
const CLAIM_KEPT: Duration = Duration::from_secs(60);

impl Model {
    /// Whether a line may name its sessions to this worker.
    pub(super) fn may_use(&self, client: usize, line: &Line, worker: usize) -> bool {
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        if shared || self.workers[worker].owner == Some(client) {
            return true;
        }
        let on_worker = |name: &String| self.sessions.iter().find(|at| at.worker == worker && at.name == *name);
        let is_held = |name: &String| self.held.iter().any(|held| held.worker == worker && held.name == *name);
        let is_mine = |name: &String| on_worker(name).is_some_and(|at| at.client == client);
        let cancels = !line.targets().is_empty();
        // The name to load is the one in params, if there is one.
        let may_load = |name: &String| line.loads() && (line.names().len() < 2 || line.inner.as_ref() == Some(name));
        let is_free = |name: &String| on_worker(name).is_none() && (may_load(name) || !is_held(name));
        let issues = self.issues(worker) && !line.loads();
        // A session accepts nothing else before the worker has decided which client gets it.
        let waits = |at: &Session| (at.lent || at.asked) && at.rank < Rank::Issued && !line.loads() && !cancels;
        if line.names().iter().any(|name| on_worker(name).is_some_and(waits)) {
            return false;
        }
        // The owner of a mere claim may be waiting for the worker to give the name to another client.
        let is_given = |name: &String| is_mine(name) && on_worker(name).is_some_and(|at| at.rank == Rank::Issued);
        line.names().iter().all(|name| is_mine(name) || is_free(name))
            && line.inner.as_ref().is_none_or(|name| is_given(name) || !issues || cancels && is_mine(name))
    }

    /// Whether a line names a session that was created under another user name than its client's. A session that the
    /// worker created for the client is the client's own, but it may not load it. A cancellation names its request.
    pub(super) fn is_bound(&self, client: usize, line: &Line, worker: usize) -> bool {
        let is_given =
            |name: &String| self.sessions.iter().any(|at| is_it(at, client, worker, name) && at.given && !line.loads());
        let is_bound = |name: &&String| self.is_bound_to_another(client, worker, name) && !is_given(name);
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        !shared && line.targets().is_empty() && line.names().iter().any(is_bound)
    }

    /// Whether a session was created under another user name than this client's.
    pub(super) fn is_bound_to_another(&self, client: usize, worker: usize, session: &str) -> bool {
        self.names.is_bound_to_another(self.workers[worker].pool, session, self.clients[client].name)
    }

    /// A client was given a session: it can be loaded under no other user name.
    pub(super) fn bind(&mut self, client: usize, worker: usize, session: &str) {
        if let Some(name) = self.clients[client].name {
            self.names.bind(self.workers[worker].pool, session, name);
        }
    }

    /// The session of this name is used, or claimed if it has no owner.
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
        // A fork does not affect its source, and a dedicated worker needs no second name.
        let is_its_own = self.workers[worker].owner.is_some();
        let second = is_its_own && line.way().is_some_and(|way| way != name);
        if let (Some(at), true) = (held, is_its_own) {
            // There is no client to reserve it from, so the request still belongs to it.
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
        // The name to load is the one in params, if there is one.
        session.asked = held.is_none() && line.loads() && line.inner.as_ref().is_none_or(|inner| inner == name);
        session.was_issued = held.as_ref().is_some_and(|held| held.is_issued);
        // Requests of its previous owner are still pending in it.
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

    /// The owner of a session has left, or was refused it: no other client gets it while its messages may arrive.
    pub(super) fn hold(&mut self, session: Session) {
        let is_issued = session.rank == Rank::Issued || session.was_issued;
        self.held.push(Held { worker: session.worker, name: session.name, serial: session.serial, is_issued });
    }

    /// An answer to a client names a session. `creates` means that the client asked for a new one.
    pub(super) fn learns(&mut self, now: Moment, client: usize, worker: usize, name: &str, creates: bool) {
        match self.sessions.iter_mut().find(|session| session.worker == worker && session.name == name) {
            // A worker that echoes its input does not give out a name.
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

    /// A worker has given out a name: from now on its pool counts as issuing, and the name is free.
    fn gives_out(&mut self, worker: usize, name: &str) {
        self.held.retain(|held| held.worker != worker || held.name != name);
        self.names.issue(self.workers[worker].pool);
    }

    /// A late answer arrives: the name in it is reserved. `asked_in` are the sessions of the request, unless it asked
    /// for a new one: repeating their names gives out nothing.
    pub(super) fn holds_late(&mut self, number: usize, asked_in: &[usize]) {
        let line = self.lines[number].clone();
        let (Party::Worker(worker), Some(name)) = (line.from, line.draft.result_session.filter(|_| line.draft.result))
        else {
            return;
        };
        let is_it = |of: usize, called: &str| of == worker && called == name;
        let mut owned = self.sessions.iter_mut().find(|at| is_it(at.worker, &at.name));
        let held = self.held.iter().find(|held| is_it(held.worker, &held.name));
        let serial = owned.as_ref().map(|at| at.serial).or(held.map(|held| held.serial));
        if serial.is_some_and(|serial| asked_in.contains(&serial)) {
            return;
        }
        self.names.issue(self.workers[worker].pool);
        // A client that asks for it is as one that asks for a reserved name.
        if let Some(at) = &mut owned
            && at.asked
            && !at.lent
            && !at.was_issued
            && at.rank == Rank::Claimed
        {
            (at.lent, at.was_issued) = (true, true);
            return;
        }
        if owned.is_none_or(|at| at.rank < Rank::Issued && !at.was_issued) && held.is_none_or(|held| !held.is_issued) {
            self.sessions.retain(|at| !is_it(at.worker, &at.name));
            self.gives_out(worker, &name);
            self.held.push(Held { worker, name, serial: self.names.number(), is_issued: true });
        }
    }

    /// A worker has loaded sessions, or may have, without an answer: it knows them for its lifetime.
    pub(super) fn is_loaded(&mut self, serials: &[usize]) {
        for session in self.sessions.iter_mut().filter(|at| serials.contains(&at.serial)) {
            session.was_issued = true;
        }
        for held in self.held.iter_mut().filter(|held| serials.contains(&held.serial)) {
            held.is_issued = true;
        }
    }

    /// Frees names that were only claimed once no message of theirs can arrive any more.
    pub(super) fn let_go(&mut self) {
        let (to_workers, to_clients) = (&self.to_workers, &self.to_clients);
        self.held.retain(|held| held.is_issued || is_in_use(to_workers, to_clients, held.serial));
    }

    /// This many claims expired in this call, after which the bus has the sessions for which `is_left` holds. A worker
    /// or a client that ended in the same call may have removed some of the others (`is_over`).
    pub fn claims_expired(
        &mut self,
        now: Moment,
        how_many: u64,
        is_left: impl Fn(usize, &str) -> bool,
        is_over: impl Fn(Party) -> bool,
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
            sure += u64::from(!is_over(Party::Client(session.client)) && !is_over(Party::Worker(session.worker)));
        }
        assert!((sure..=all).contains(&how_many), "{how_many} claims are forgotten, and not {sure} to {all}");
    }

    /// Whether the owner of a session waits for the answer to a request in it.
    pub(super) fn owner_waits(&self, session: &Session) -> bool {
        let owner = Party::Client(session.client);
        let is_in_it = |request: &&Request| request.sessions.contains(&session.serial);
        self.to_workers.iter().filter(is_in_it).any(|request| request.asker == Some(owner))
    }

    /// A name that its owner has only used may be one that the worker is just giving to another client, or still uses
    /// for a client that has left.
    pub(super) fn may_be_anothers(&self, session: &Session) -> bool {
        let all = self.to_workers.iter().chain(&self.to_clients);
        let pending = all.filter(|request| request.sessions.contains(&session.serial)).count();
        let may_have_left =
            session.rank == Rank::Claimed && session.lent && (pending != 1 || !self.owner_waits(session));
        // The worker may send the name that it is asked to load before it answers.
        let is_loaded = session.lent || session.asked;
        may_have_left || session.rank < Rank::Issued && !is_loaded && self.creates(session.worker)
    }
}
