//! The route of a line from a worker to a client: answers to their askers, everything else to the owner of its session
//! (spec 6.3, decision 5).
//!
//! Invariant: a line is queued for exactly one client (except broadcasts, `audience.rs`), or its loss is reported, and
//! a lost request is answered.

use ndjson_scan::{Line, MAX_WRAPPED_DEPTH, wrapped_message};

use super::addressee::NamedRequest;
use super::message::{Said, is_wrapped, unwrapped};
use super::unmatched::Misspelled;
use crate::ctx::Ctx;
use crate::flow::delivery::{Room, edited};
use crate::message::{Edit, Edits, Parsed, Refusal, UNCHANGED, Verb, session_name};
use crate::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, WorkerKey};
use crate::pending::NewRequest;
use crate::pending::Requests;
use crate::report::Reason;
use crate::session::state::Event;
use crate::session::table::FULL;
use crate::session::table::Sessions;
use crate::{Bus, Flow};

impl Bus {
    /// A line from a worker.
    pub(crate) fn worker_line(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Flow {
        // Some workers echo the request with a result in it: the spec calls that a response (6.3.1).
        let answers = line.flags & (Line::RESULT | Line::ERROR) != 0;
        if line.has(Line::TOO_DEEP) {
            self.too_deep(worker, line, answers)
        } else if answers {
            self.worker_response(worker, line)
        } else {
            let flow = self.worker_message(worker, line);
            flow.unwrap_or_else(|refusal| {
                self.fleet.refuse(&mut self.ctx, &self.sessions, worker.into(), line, refusal)
            })
        }
    }

    /// An answer to a client's request (spec 6.3.1), or that request itself, which the worker has sent back.
    fn worker_response(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Flow {
        let from = Peer::Worker(worker);
        let Some(key) = self.requests.answered(from, line) else {
            return self.unmatched_answer(worker, line);
        };
        self.take_answer(worker, key, line, None)
    }

    /// An answer to this request, perhaps under a misspelled id.
    pub(super) fn take_answer(
        &mut self,
        worker: WorkerKey,
        key: RequestKey,
        line: Parsed<'_>,
        misspelled: Option<&Misspelled>,
    ) -> Flow {
        let from = Peer::Worker(worker);
        let Some(request) = self.requests.get(key) else { return Flow::Next };
        let (verb, sessions) = (request.verb, self.requests.sessions(key));
        let Some(Peer::Client(client)) = request.asker() else {
            if verb == Verb::Load && line.has(Line::RESULT) {
                self.sessions.step_all(sessions, Event::LoadedLate);
            }
            if verb == Verb::Initialize {
                self.take_answer_to_initialize(worker, key, line, misspelled.is_some());
            }
            let asked_in = if verb.creates() { [None; 2] } else { sessions };
            self.sessions.learn_from_late_answer(&mut self.ctx, worker, line, asked_in);
            self.requests.forget(&mut self.ctx, &mut self.sessions, key);
            if verb.creates() {
                self.sessions.drop_early(&mut self.ctx, worker);
            }
            if line.has(Line::TASK) {
                self.tasks.note(&mut self.ctx, None, worker, line);
            }
            self.ctx.report_line(Reason::LateAnswer, from, line, "the client no longer waits");
            return Flow::Next;
        };
        match self.make_room_at_client(worker, client, true) {
            Room::Free => {}
            Room::Wait => return Flow::Blocked,
            // The client was closed, so this answer has no asker now.
            Room::Closed => return self.worker_response(worker, line),
        }
        if verb == Verb::Initialize && self.take_answer_to_initialize(worker, key, line, misspelled.is_some()) {
            return Flow::Next;
        }
        let succeeds = line.has(Line::RESULT);
        let named = session_name(line, line.result_session).filter(|_| succeeds);
        // A session that is only echoed was not loaded.
        if succeeds || !line.has(Line::ERROR) && verb != Verb::Load {
            self.sessions.succeed(&mut self.ctx, verb == Verb::Load, sessions);
            if let Some(name) = &named
                && !self.sessions.learn(&mut self.ctx, client, worker, name, verb.creates())
            {
                self.fail_request(key, Reason::SessionLimit, FULL);
                self.requests.forget(&mut self.ctx, &mut self.sessions, key);
                self.sessions.drop_early(&mut self.ctx, worker);
                return Flow::Next;
            }
        }
        if line.has(Line::TASK) {
            self.tasks.note(&mut self.ctx, Some(client), worker, line);
        }
        self.deliver_answer(key, Peer::Client(client), line, misspelled);
        self.sessions.end_all(&mut self.ctx, &self.requests, verb, succeeds, sessions);
        // Any answer may name a session that was not known before.
        if let Some(name) = &named {
            self.deliver_early(worker, client, name, false);
        }
        if verb == Verb::Load && succeeds {
            sessions
                .into_iter()
                .flatten()
                .for_each(|session| self.sessions.drop_early_of(&mut self.ctx, worker, session));
        }
        if verb.creates()
            && (named.is_none() || self.ctx.workers.get(worker).is_some_and(|worker| worker.creating.asked == 0))
        {
            self.sessions.drop_early(&mut self.ctx, worker);
        }
        self.wake_after_answer(client);
        Flow::Next
    }

    /// A line that few parsers could read. It fails the request that it belongs to, but not the worker.
    fn too_deep(&mut self, worker: WorkerKey, line: Parsed<'_>, answers: bool) -> Flow {
        let from = Peer::Worker(worker);
        let text = format!("nested deeper than {MAX_WRAPPED_DEPTH}");
        if !answers {
            return self.fleet.refuse(&mut self.ctx, &self.sessions, from, line, Refusal(Reason::TooDeep, text));
        }
        let key = self.requests.answered(from, line);
        let request = key.and_then(|key| self.requests.get(key));
        let creates = request.is_some_and(|request| request.verb.creates());
        match key.filter(|_| request.is_some_and(|request| request.asker().is_some())) {
            Some(key) => self.fail_request(key, Reason::TooDeep, &format!("the answer is {text}")),
            None => self.ctx.report_line(Reason::TooDeep, from, line, &text),
        }
        if let Some(key) = key {
            self.requests.forget(&mut self.ctx, &mut self.sessions, key);
        }
        if creates {
            self.sessions.drop_early(&mut self.ctx, worker);
        }
        Flow::Next
    }

    /// A worker's request or notification (spec 6.3.2, decision 5).
    fn worker_message(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Result<Flow, Refusal> {
        if line.has(Line::ID_INVALID) {
            let text = "a request's id is a string or a number; any other id cannot be answered";
            return Err(Refusal(Reason::UnknownId, text.into()));
        }
        if !is_wrapped(line) {
            return self.send_said(worker, line);
        }
        match wrapped_message(*line.window, line.line) {
            Ok(inner) => self.send_said(worker, Parsed { line: &inner, ..line }),
            Err(at) => Ok(self.name_stands_twice(worker.into(), line, at)),
        }
    }

    /// Routes a worker's message.
    fn send_said(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Result<Flow, Refusal> {
        if line.meta.twice != 0 {
            return Ok(self.name_stands_twice(worker.into(), line, line.meta.twice as usize));
        }
        let said = Said::decode(worker, line)?;
        if said
            .id
            .as_ref()
            .is_some_and(|it| self.requests.echoed(&self.ctx, worker, &it.id, line, line.meta.progress).is_some())
        {
            return Ok(self.worker_response(worker, line));
        }
        if said.id.as_ref().is_some_and(|it| {
            self.fleet.take_era(&mut self.ctx, worker, &it.id, false) || self.take_opening(worker, &it.id, line)
        }) {
            return Ok(Flow::Next);
        }
        self.sessions.note_activity(&mut self.ctx, worker, line);
        self.tasks.note_update(&mut self.ctx, &said);
        let named = self.requests.request_of_worker_message(&mut self.ctx, &said);
        let (to, session) = match self.client_for_worker_message(&said, &named) {
            Err(Refusal(Reason::UnknownSession, _))
                if (said.id.is_some() || !named.at.is_some())
                    && self.sessions.wait_for_session(&mut self.ctx, worker, line) =>
            {
                return Ok(Flow::Next);
            }
            Err(refusal @ Refusal(Reason::Unroutable, _)) => return self.tell_all(&said).ok_or(refusal),
            found => found?,
        };
        if said.id.is_some() && self.ctx.mcp(to).is_modern() {
            let text = "no request may be sent to a client of MCP 2026-07-28; answer its request with input_required";
            return Err(Refusal(Reason::ServerRequest, text.into()));
        }
        let due = self.ctx.line_expires(worker).filter(|_| said.id.is_some());
        if due.is_some_and(|due| due <= self.ctx.time.now()) {
            let text = "its client had no room for it within request_timeout_sec";
            return Err(Refusal(Reason::Timeout, text.into()));
        }
        match self.make_room_at_client(worker, to, session.is_some() || named.client.is_some()) {
            Room::Free => {}
            Room::Wait => {
                self.ctx.expire_first_line(worker.into(), due);
                return Ok(Flow::Blocked);
            }
            Room::Closed => return self.send_said(worker, line),
        }
        self.pass(&said, named, to, session).map(|()| Flow::Next)
    }

    /// Forwards a worker's message to its addressee.
    fn pass(
        &mut self,
        said: &Said<'_>,
        named: NamedRequest,
        to: ClientKey,
        session: Option<SessionKey>,
    ) -> Result<(), Refusal> {
        let mut edits = self.record_said(said, named, to, session)?;
        self.ctx.forward(Peer::Client(to), said.line, &mut edits);
        self.note_announcement(said.from, session, said.line);
        Ok(())
    }

    /// Forwards a worker's request that has waited for its session.
    pub(crate) fn pass_kept_request(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Result<(), Refusal> {
        let wrapped = unwrapped(line);
        let line = Parsed { line: wrapped.as_ref().unwrap_or(line.line), ..line };
        let said = Said::decode(worker, line)?;
        let named = self.requests.request_of_worker_message(&mut self.ctx, &said);
        let (to, session) = self.client_for_worker_message(&said, &named)?;
        let mut edits = self.record_said(&said, named, to, session)?;
        self.ctx.send(Peer::Client(to), &edited(line, &mut edits));
        Ok(())
    }

    /// Records a worker's message, and returns what is replaced in it for its addressee.
    fn record_said(
        &mut self,
        said: &Said<'_>,
        named: NamedRequest,
        to: ClientKey,
        session: Option<SessionKey>,
    ) -> Result<Edits, Refusal> {
        let &Said { from: worker, ref id, .. } = said;
        if let Some(session) = session.filter(|_| self.ctx.settings.limits.session_idle.is_some()) {
            self.sessions.touch(session, self.ctx.time.now());
        }
        self.requests.note_life(&self.ctx, &mut self.sessions, worker, session, named.about);
        if id.is_none() && session.is_none() {
            self.ctx.end_elicitation(said);
        }
        // Another client knows nothing of that request.
        let token = named.token.filter(|_| named.client == Some(Peer::Client(to)));
        let mut edits = UNCHANGED;
        edits[1] = token.map(|with| Edit { at: named.at, with });
        if id.is_some() {
            let expires = self.ctx.line_expires(worker);
            let request = NewRequest {
                asker: worker.into(),
                answerer: to.into(),
                session,
                second_session: None,
                flags: 0,
                verb: Verb::Other,
                expires: expires.unwrap_or(Moment::NEVER),
                print: 0,
            };
            let asked = self.ask(&request, said, &mut edits)?;
            if let Some(question) = asked {
                let of = named
                    .about
                    .or_else(|| self.requests.request_of_question(&self.ctx, &self.sessions, worker, to, session));
                self.requests.note_question(question, said.line.get(said.line.method), of);
            }
            self.ctx.note_elicitation(said, to, session);
        }
        Ok(edits)
    }
}

impl Sessions {
    /// The sessions that an answer ends: one that was closed, or one that was not loaded.
    fn end_all(
        &mut self,
        ctx: &mut Ctx,
        requests: &Requests,
        verb: Verb,
        succeeded: bool,
        sessions: [Option<SessionKey>; 2],
    ) {
        for session in sessions.into_iter().flatten() {
            if verb == Verb::Close && succeeded {
                self.end(ctx, session);
            } else if verb == Verb::Load && !succeeded {
                // What is still pending there may be its former owner's: that is no reason to keep it.
                let is_asked_for = self.get(session).is_some_and(|at| at.state.is_asked_for());
                if is_asked_for && !self.owner_waits_in(ctx, requests, session) {
                    self.give_up(ctx, session, true);
                }
            }
        }
    }
}

impl Sessions {
    /// The effect of a result on its sessions. A worker loads the session in the params, unless it reads names at top
    /// level.
    fn succeed(&mut self, ctx: &mut Ctx, loads: bool, [first, second]: [Option<SessionKey>; 2]) {
        if let Some(leading) = first.filter(|_| second.is_some()) {
            self.confirm(ctx, leading, Event::Answered);
            if loads {
                self.step(leading, Event::LoadedLate);
            }
        }
        match second.or(first) {
            Some(session) if loads => self.issue(ctx, session, false),
            Some(session) => self.confirm(ctx, session, Event::Answered),
            None => {}
        }
    }

    /// A session that was created for a client that stopped waiting has no owner. An answer that repeats the name of
    /// its own session has created none: that session keeps its owner.
    pub(super) fn learn_from_late_answer(
        &mut self,
        ctx: &mut Ctx,
        worker: WorkerKey,
        line: Parsed<'_>,
        asked_in: [Option<SessionKey>; 2],
    ) {
        if line.has(Line::RESULT)
            && let Some(name) = session_name(line, line.result_session)
            && self.of_worker(worker, &name).is_none_or(|key| !asked_in.contains(&Some(key)))
        {
            self.learn_unowned(ctx, worker, &name);
        }
    }
}
