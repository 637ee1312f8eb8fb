//! The way of a line from a worker to a client: answers to their askers, everything else to the owner of its session
//! (spec 6.3, decision 5).
//!
//! Invariant: a line is queued for exactly one client, or its loss is reported, and a lost request is answered.
use alloc::format;

use ndjson_scan::{Line, MAX_WRAPPED_DEPTH, Span, Window};

use super::client::Phase;
use super::delivery::Room;
use super::id::View;
use super::message::{Cancel, Edit, Refusal, Verb, request_id, session_name, verb};
use super::ownership::Learned;
use super::peer::{ClientKey, Peer, SessionKey, Text, WorkerKey};
use super::pending::{Direction, NewRequest, Request, SessionEffect};
use super::report::Reason;
use super::sessions::{Asked, Rank, Session};
use super::worker::Worker;
use super::{Bus, Flow};

impl Bus {
    /// A line from a worker.
    pub(super) fn worker_line(&mut self, worker: WorkerKey, window: Window<'_>, line: &Line) -> Flow {
        // Some workers send the request back with a result in it: the spec calls that a response (6.3.1).
        let answers = line.flags & (Line::RESULT | Line::ERROR) != 0;
        let flow = if line.has(Line::TOO_DEEP) {
            self.too_deep(worker, window, line, answers)
        } else if answers {
            self.worker_response(worker, window, line, Answer::of(line))
        } else {
            self.worker_message(worker, window, line)
        };
        if flow == Flow::Next {
            self.out.stats.lines_from_workers += 1;
        }
        flow
    }

    /// An answer to a client's request (spec 6.3.1).
    fn worker_response(&mut self, worker: WorkerKey, window: Window<'_>, line: &Line, answer: Answer) -> Flow {
        let from = Peer::Worker(worker);
        let Some(key) = self.answered(from, window, line) else {
            return self.unexpected_answer(worker, window, line);
        };
        let Some(request) = self.pending.get(key) else { return Flow::Next };
        let (effect, sessions) = (request.effect(), self.pending.sessions(key));
        let Some(Peer::Client(client)) = request.asker() else {
            if effect.loads && line.has(Line::RESULT) {
                sessions.into_iter().flatten().for_each(|session| self.sessions.mark_loaded(session));
            }
            let asked_in = if effect.creates { [None; 2] } else { sessions };
            self.learn_from_late_answer(worker, window, line, asked_in);
            self.forget_request(key);
            if effect.creates {
                self.drop_early(worker);
            }
            self.report_line(Reason::LateAnswer, from, window, line, "the client is not waiting any more");
            return Flow::Next;
        };
        match self.make_room_at_client(worker, client, true) {
            Room::Free => {}
            Room::Wait => return Flow::Blocked,
            // Nobody waits for this answer now.
            Room::Closed => return self.worker_response(worker, window, line, answer),
        }
        let named = session_name(window, line.result_session).filter(|_| line.has(Line::RESULT));
        // A session that comes back as it was asked for was not loaded.
        if answer == Answer::Result || answer == Answer::Echo && !effect.loads {
            let loaded = if effect.loads { Rank::Issued } else { Rank::Confirmed };
            // What a worker loads is the session in the params, unless it reads names at top level.
            let [first, second] = sessions;
            if let Some(first) = first {
                self.confirm_session(first, if second.is_some() { Rank::Confirmed } else { loaded });
            }
            if let Some(second) = second {
                self.confirm_session(second, loaded);
                first.filter(|_| effect.loads).into_iter().for_each(|first| self.sessions.mark_loaded(first));
            }
            if let Some(name) = &named
                && let Learned::NoRoom = self.learn_session(client, worker, name, effect.creates)
            {
                self.fail_request(key, Reason::SessionLimit, super::sessions::FULL);
                self.forget_request(key);
                self.drop_early(worker);
                return Flow::Next;
            }
        }
        self.deliver_answer(key, Peer::Client(client), line);
        if effect != SessionEffect::default() {
            self.end_sessions(effect, line.has(Line::RESULT), sessions);
        }
        // Any answer may name a session that was not known before.
        if let Some(name) = &named {
            self.deliver_early(worker, client, name);
        }
        if effect.creates && (named.is_none() || self.workers.get(worker).is_some_and(|worker| worker.creating == 0)) {
            self.drop_early(worker);
        }
        self.wake_after_answer(client);
        Flow::Next
    }

    /// A line that few parsers would read. It costs the request that it belongs to, and not the worker.
    fn too_deep(&mut self, worker: WorkerKey, window: Window<'_>, line: &Line, answers: bool) -> Flow {
        let from = Peer::Worker(worker);
        let text = format!("nested deeper than {MAX_WRAPPED_DEPTH}");
        if !answers {
            return self.refuse(from, window, line, Refusal(Reason::TooDeep, text));
        }
        let key = self.answered(from, window, line);
        let request = key.and_then(|key| self.pending.get(key));
        let creates = request.is_some_and(|request| request.effect().creates);
        match key.filter(|_| request.is_some_and(|request| request.asker().is_some())) {
            Some(key) => self.fail_request(key, Reason::TooDeep, &format!("the answer is {text}")),
            None => self.report_line(Reason::TooDeep, from, window, line, &text),
        }
        if let Some(key) = key {
            self.forget_request(key);
        }
        if creates {
            self.drop_early(worker);
        }
        Flow::Next
    }

    /// What an answer ends: a session that was closed, or one that was not loaded.
    fn end_sessions(&mut self, effect: SessionEffect, succeeded: bool, sessions: [Option<SessionKey>; 2]) {
        for session in sessions.into_iter().flatten() {
            let may_go = |at: &Session| at.pending == 0 && at.asked != Asked::No;
            if effect.ends && succeeded {
                self.drop_session(session);
            } else if effect.loads && !succeeded && self.sessions.get(session).is_some_and(may_go) {
                self.unclaim_session(session);
            }
        }
    }

    /// An answer that no request waits for: it is late, or the worker has answered twice. Then the next answer of that
    /// kind may hit another client's request, unless ids are never used again.
    fn unexpected_answer(&mut self, key: WorkerKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Worker(key);
        let Some(worker) = self.workers.get_mut(key) else { return Flow::Next };
        let id = line.id.is_some().then(|| View::parse(window.get(line.id)).ok()).flatten();
        let fingerprint = id.as_ref().map(|id| self.pending.fingerprint(id));
        if fingerprint.is_some_and(|fingerprint| worker.end.retired.take(fingerprint)) {
            self.learn_from_late_answer(key, window, line, [None; 2]);
            self.report_line(Reason::LateAnswer, from, window, line, "the request was given up before");
            return Flow::Next;
        }
        worker.end.fresh_ids = true;
        let is_first = !core::mem::replace(&mut worker.answers_twice, true);
        let near = id.map(View::of_other_type).filter(|id| self.pending.find(from, id).is_some());
        let near = near.filter(|_| !core::mem::replace(&mut worker.told_of_type, true));
        let text = near.map_or("no request is pending under this id".into(), |id| {
            let kind = if id.is_string() { "a string" } else { "a number" };
            let id = id.to_id();
            format!(
                "no request is pending under this id, but {id} ({kind}) is; a worker answers with the id as it came"
            )
        });
        self.report_line(Reason::UnknownId, from, window, line, &text);
        if is_first {
            let text = "a worker answers what nobody waits for; every id of a request to it is replaced from now on";
            self.report_line(Reason::WorkerAnswersTwice, from, window, line, text);
        }
        Flow::Next
    }

    /// A session that was made for a client that does not wait any more belongs to nobody. An answer that repeats the
    /// name of a session that it was asked in has made none: that one stays whose it is.
    fn learn_from_late_answer(
        &mut self,
        worker: WorkerKey,
        window: Window<'_>,
        line: &Line,
        asked_in: [Option<SessionKey>; 2],
    ) {
        if line.has(Line::RESULT)
            && let Some(name) = session_name(window, line.result_session)
            && self.sessions.of_worker(worker, &name).is_none_or(|key| !asked_in.contains(&Some(key)))
        {
            self.learn_unowned_session(worker, &name);
        }
    }

    /// A request or a notification of a worker (spec 6.3.2, decision 5).
    fn worker_message(&mut self, worker: WorkerKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Worker(worker);
        let id = match request_id(window, line) {
            Ok(id) => id,
            Err(refusal) => return self.refuse(from, window, line, refusal),
        };
        if let Some(id) = &id
            && self.echoed(worker, id, window, line).is_some()
        {
            return self.worker_response(worker, window, line, Answer::Echo);
        }
        let named = self.request_of_worker_message(from, window, line, id.is_some());
        let (to, session) = match self.client_for_worker_message(worker, window, line, named.client, id.is_some()) {
            Ok(found) => found,
            Err(Refusal(Reason::UnknownSession, _))
                if id.is_none() && !named.at.is_some() && self.wait_for_session(worker, window, line) =>
            {
                return Flow::Next;
            }
            Err(refusal) => return self.refuse(from, window, line, refusal),
        };
        if id.is_none() && named.client != Some(Peer::Client(to)) && self.may_name_anothers(to, window, named.at) {
            let text = "it names no pending request of this worker, and may name another one's";
            return self.refuse(from, window, line, Refusal(Reason::UnknownRequest, text.into()));
        }
        let is_of_its_own = session.is_some() || named.client.is_some();
        match self.make_room_at_client(worker, to, is_of_its_own) {
            Room::Free => {}
            Room::Wait => return Flow::Blocked,
            Room::Closed => return self.worker_message(worker, window, line),
        }
        if let Some(session) = session.filter(|_| self.settings.limits.session_idle.is_some()) {
            self.sessions.hear(session, self.now);
        }
        if id.is_none() && session.is_none() {
            self.end_elicitation(worker, window, line);
        }
        if id.is_none() && named.token.is_none() {
            self.forward_as_it_is(Peer::Client(to), line);
            return Flow::Next;
        }
        // Another client knows nothing of that request.
        let token = named.token.filter(|_| named.client == Some(Peer::Client(to)));
        let mut edits = [None, token.map(|with| Edit { at: named.at, with }), None];
        if let Some(id) = &id {
            let request = NewRequest {
                client: to,
                worker,
                direction: Direction::ToClients,
                session,
                second_session: None,
                session_on_top: false,
                effect: SessionEffect::default(),
                expires: None,
                print: 0,
            };
            match self.ask(&request, id, window.get(line.id)) {
                Ok(edit) => edits[0] = edit.map(|with| Edit { at: line.id, with }),
                Err(refusal) => return self.refuse(from, window, line, refusal),
            }
            self.note_elicitation(worker, to, session, window, line);
        }
        self.forward(Peer::Client(to), line, &mut edits);
        Flow::Next
    }

    /// What a worker's message says of another request: a notification names one of the worker's own (a cancellation),
    /// a request one of the client's (`elicitation/create`).
    fn request_of_worker_message(
        &mut self,
        from: Peer,
        window: Window<'_>,
        line: &Line,
        is_request: bool,
    ) -> NamedRequest {
        let is_lsp = || matches!(verb(window, line), Verb::Cancel(Cancel::Answered));
        let in_id = !line.request_id.is_some() && line.params_id.is_some() && is_lsp();
        let at = if in_id { line.params_id } else { line.request_id };
        let nobody = NamedRequest { client: None, token: None, at };
        if !at.is_some() {
            return nobody;
        }
        let token = window.get(at);
        if is_request {
            let found = View::parse(token).ok().and_then(|id| self.pending.find(from, &id));
            let Some(key) = found else { return nobody };
            let client = self.pending.get(key).and_then(Request::asker);
            return NamedRequest { client, token: self.pending.replaced_token(key), at };
        }
        self.request_named(from, token).map_or(nobody, |key| NamedRequest {
            client: self.pending.get(key).map(Request::answerer),
            token: self.pending.wire_token(key),
            at,
        })
    }

    /// Whether a client may take what a worker's notification names, which is no pending request of that worker, for
    /// another one that it has still to answer: a late cancellation is to hit nobody else's.
    fn may_name_anothers(&self, client: ClientKey, window: Window<'_>, at: Span) -> bool {
        if !at.is_some() || self.clients.get(client).is_none_or(|client| client.end.unanswered.count == 0) {
            return false;
        }
        // Nothing that is too long to be an id is one.
        let Ok(id) = View::parse(window.get(at)) else { return false };
        !id.is_plain() || self.pending.find(Peer::Client(client), &id).is_some()
    }

    /// Whether a worker may mean somebody else by a session that was not given to its owner: one who is just being given
    /// that name, unless the owner has asked the worker for it, which tells its history before it answers; or, if the
    /// owner has asked for what others may have had, anybody but while its own request alone is pending. That a worker
    /// has answered says nothing: it may have read another name in that request, or none.
    fn may_be_anothers(&self, worker: WorkerKey, session: &Session) -> bool {
        let is_being_made = || self.workers.get(worker).is_some_and(Worker::may_give_out_a_name);
        let may_have_left = session.rank == Rank::Claimed && session.asked == Asked::Held && session.pending != 1;
        may_have_left || session.rank < Rank::Issued && session.asked == Asked::No && is_being_made()
    }

    /// Whom a worker's message is for.
    fn client_for_worker_message(
        &self,
        worker: WorkerKey,
        window: Window<'_>,
        line: &Line,
        named: Option<Peer>,
        is_request: bool,
    ) -> Result<(ClientKey, Option<SessionKey>), Refusal> {
        let owner = || self.workers.get(worker).and_then(|worker| worker.owner);
        let only = || self.only_client(worker).map(Peer::Client);
        let name = session_name(window, line.session).or_else(|| session_name(window, line.params_session));
        let mut session = None;
        let to = if let Some(name) = name {
            session = self.sessions.of_worker(worker, &name);
            let found = session.and_then(|key| self.sessions.get(key));
            let owned = found.filter(|session| !self.may_be_anothers(worker, session)).and_then(|found| found.client);
            let unknown = Reason::UnknownSession;
            owned.or_else(owner).map(Peer::Client).ok_or_else(|| Refusal(unknown, unknown.help().into()))
        } else if line.request_id.is_some() {
            let unknown = Reason::UnknownRequest;
            named.or_else(only).ok_or_else(|| Refusal(unknown, unknown.help().into()))
        } else {
            let elicited = || self.client_of_elicitation(worker, window, line).map(Peer::Client);
            named.or_else(elicited).or_else(only).ok_or_else(|| self.nobody_is_meant(worker))
        };
        // A half-closed client still takes notifications. It cannot answer a request any more.
        let last_phase = if is_request { Phase::Open } else { Phase::HalfClosed };
        match to {
            Ok(Peer::Client(client)) if self.clients.get(client).is_some_and(|client| client.phase <= last_phase) => {
                Ok((client, session))
            }
            Ok(_) => Err(Refusal(Reason::UnknownSession, "the client that owns it is leaving".into())),
            Err(refusal) => Err(refusal),
        }
    }
}

/// How a worker answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Result,
    Error,
    /// With the request itself.
    Echo,
}

impl Answer {
    fn of(line: &Line) -> Self {
        if line.has(Line::RESULT) { Self::Result } else { Self::Error }
    }
}

/// Another request that a worker's message is about.
struct NamedRequest {
    /// The client at its other end.
    client: Option<Peer>,
    /// What that client knows it by, if that is another token.
    token: Option<Text>,
    /// Where it is named.
    at: Span,
}
