//! The route of a line from a worker to a client: answers to their askers, everything else to the owner of its session
//! (spec 6.3, decision 5).
//!
//! Invariant: a line is queued for exactly one client (except broadcasts, `audience.rs`), or its loss is reported, and
//! a lost request is answered.

use ndjson_scan::{Line, MAX_WRAPPED_DEPTH, member, wrapped_message};

use super::addressee::NamedRequest;
use super::message::{WorkerMessage, is_wrapped, unwrapped};
use super::unmatched::Misspelled;
use crate::ctx::Ctx;
use crate::fleet::eras::greeting::{KeptLine, RefusedInitialize};
use crate::fleet::eras::opening::{Settled, ToInitialize};
use crate::fleet::eras::protocol::MODERN;
use crate::fleet::health::take_check;
use crate::flow::delivery::{OutputRoom, SLOW_READER_LIMIT, edited};
use crate::id::{Id, Spelled};
use crate::message::{Edit, Edits, KnownMethod, Parsed, Refusal, UNCHANGED, has_method, session_name, session_named};
use crate::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, WorkerKey};
use crate::peers::Phase;
use crate::pool_stats::Outcome;
use crate::port::Close;
use crate::refusals::{refuse, report_line};
use crate::report::Reason;
use crate::request_log::RequestEnd;
use crate::requests::{NewRequest, Requests};
use crate::router::addressee::{no_addressee, only_client};
use crate::router::audience::{ForAll, served_by};
use crate::router::client::expire_first_line;
use crate::router::message::By;
use crate::router::servers::client_of_server;
use crate::router::unmatched::{Meant, error_of};
use crate::session::children::announced;
use crate::session::early_notifications::{EarlyLine, refuse_early};
use crate::session::state::SessionEvent;
use crate::session::table::{FULL, Session, Sessions};
use crate::settings::MAX_SESSION_ID_LEN;
use crate::timeouts::line_expires;
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
                refuse(&mut self.fleets, &mut self.ctx, &self.sessions, worker.into(), line, refusal)
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
        let (verb, sessions) = (request.verb(), self.requests.sessions(key));
        let Some(Peer::Client(client)) = request.asker() else {
            if verb == KnownMethod::Load && line.has(Line::RESULT) {
                self.sessions.step_all(sessions, SessionEvent::LoadedLate);
            }
            if verb == KnownMethod::Initialize {
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
            report_line(&mut self.ctx, Reason::LateAnswer, from, line, "the client no longer waits");
            return Flow::Next;
        };
        match self.make_room_at_client(worker, client, true) {
            OutputRoom::Free => {}
            OutputRoom::Wait => return Flow::Blocked,
            // The client was closed, so this answer has no asker now.
            OutputRoom::Closed => return self.worker_response(worker, line),
        }
        if verb == KnownMethod::Initialize && self.take_answer_to_initialize(worker, key, line, misspelled.is_some()) {
            return Flow::Next;
        }
        let succeeds = line.has(Line::RESULT);
        let named = session_name(line, line.result_session).filter(|_| succeeds);
        // A session that is only echoed was not loaded.
        if succeeds || !line.has(Line::ERROR) && verb != KnownMethod::Load {
            self.sessions.succeed(&mut self.ctx, verb == KnownMethod::Load, sessions);
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
        if verb == KnownMethod::Load && succeeds {
            sessions
                .into_iter()
                .flatten()
                .for_each(|session| self.sessions.drop_early_of(&mut self.ctx, worker, session));
        }
        if verb.creates()
            && (named.is_none() || self.ctx.workers.get(worker).is_some_and(|worker| worker.creating().asked() == 0))
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
            return refuse(&mut self.fleets, &mut self.ctx, &self.sessions, from, line, Refusal(Reason::TooDeep, text));
        }
        let key = self.requests.answered(from, line);
        let request = key.and_then(|key| self.requests.get(key));
        let creates = request.is_some_and(|request| request.verb().creates());
        match key.filter(|_| request.is_some_and(|request| request.asker().is_some())) {
            Some(key) => self.fail_request(key, Reason::TooDeep, &format!("the answer is {text}")),
            None => report_line(&mut self.ctx, Reason::TooDeep, from, line, &text),
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
            Err(at) => Ok(self.name_occurs_twice(worker.into(), line, at)),
        }
    }

    /// Routes a worker's message.
    fn send_said(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Result<Flow, Refusal> {
        if line.meta.twice != 0 {
            return Ok(self.name_occurs_twice(worker.into(), line, line.meta.twice as usize));
        }
        let said = WorkerMessage::decode(worker, line)?;
        if said
            .id
            .as_ref()
            .is_some_and(|it| self.requests.echoed(&self.ctx, worker, &it.id, line, line.meta.progress).is_some())
        {
            return Ok(self.worker_response(worker, line));
        }
        if said.id.as_ref().is_some_and(|it| {
            self.fleets.take_era(&mut self.ctx, worker, &it.id, false)
                || self.take_opening(worker, &it.id, line)
                || take_check(&mut self.ctx, worker, &it.id, line)
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
            Err(refusal @ Refusal(Reason::Unroutable, _)) => return self.notify_all(&said).ok_or(refusal),
            found => found?,
        };
        if said.id.is_some() && self.ctx.clients.mcp(to).is_modern() {
            let text =
                format!("no request may be sent to a client of MCP {MODERN}; answer its request with input_required");
            return Err(Refusal(Reason::ServerRequest, text));
        }
        let due = line_expires(&self.ctx, worker).filter(|_| said.id.is_some());
        if due.is_some_and(|due| due <= self.ctx.time.now()) {
            let text = "its client had no room for it within request_timeout_sec";
            return Err(Refusal(Reason::Timeout, text.into()));
        }
        match self.make_room_at_client(worker, to, session.is_some() || named.client.is_some()) {
            OutputRoom::Free => {}
            OutputRoom::Wait => {
                expire_first_line(&mut self.ctx, worker.into(), due);
                return Ok(Flow::Blocked);
            }
            OutputRoom::Closed => return self.send_said(worker, line),
        }
        self.pass(&said, named, to, session).map(|()| Flow::Next)
    }

    /// Forwards a worker's message to its addressee.
    fn pass(
        &mut self,
        said: &WorkerMessage<'_>,
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
        let said = WorkerMessage::decode(worker, line)?;
        let named = self.requests.request_of_worker_message(&mut self.ctx, &said);
        let (to, session) = self.client_for_worker_message(&said, &named)?;
        let mut edits = self.record_said(&said, named, to, session)?;
        self.ctx.send(Peer::Client(to), &edited(line, &mut edits));
        Ok(())
    }

    /// Records a worker's message, and returns what is replaced in it for its addressee.
    fn record_said(
        &mut self,
        said: &WorkerMessage<'_>,
        named: NamedRequest,
        to: ClientKey,
        session: Option<SessionKey>,
    ) -> Result<Edits, Refusal> {
        let &WorkerMessage { from: worker, ref id, .. } = said;
        if let Some(session) = session.filter(|_| self.ctx.settings.limits.session_idle.is_some()) {
            self.sessions.touch(session, self.ctx.time.now());
        }
        self.requests.note_life(&self.ctx, &mut self.sessions, worker, session, named.about);
        if id.is_none() && session.is_none() {
            self.ctx.workers.end_elicitation(said);
        }
        // Another client knows nothing of that request.
        let token = named.token.filter(|_| named.client == Some(Peer::Client(to)));
        let mut edits = UNCHANGED;
        edits[1] = token.map(|with| Edit { at: named.at, with });
        if id.is_some() {
            let expires = line_expires(&self.ctx, worker);
            let request = NewRequest {
                asker: worker.into(),
                answerer: to.into(),
                session,
                second_session: None,
                flags: 0,
                verb: KnownMethod::Other,
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
            self.ctx.workers.note_elicitation(said, to, session);
        }
        Ok(edits)
    }

    /// Finds room at a client for a line of a worker, or makes the worker wait. A shared worker is not held up for long
    /// by a slow reader: its lines are queued up to a limit, then the client is closed. `is_of_its_own` means that the
    /// line belongs to a request or a session of the client: then the client uses the worker.
    pub(crate) fn make_room_at_client(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        is_of_its_own: bool,
    ) -> OutputRoom {
        let now = self.ctx.time.now();
        let Some(to) = self.ctx.endpoint(client.into()) else { return OutputRoom::Free };
        if !to.output.is_full() {
            if is_of_its_own {
                to.cold.forget_crashes();
            }
            return OutputRoom::Free;
        }
        let (queued, full_since) = (to.output.queued(), to.output.full_since());
        if !self.requests.is_shared(&self.ctx, &self.sessions, worker, client) {
            self.ctx.block(Peer::Worker(worker), Peer::Client(client));
            return OutputRoom::Wait;
        }
        let Some(from) = self.ctx.workers.get_mut(worker) else { return OutputRoom::Free };
        let is_too_long = queued > SLOW_READER_LIMIT.saturating_mul(self.ctx.settings.limits.max_output_queue);
        let mut left = from.stall_mut().left(now);
        if let Some(since) = full_since.filter(|_| is_too_long && left.is_zero()) {
            left = from.stall().moment_left(now, self.ctx.time.awake_since(since));
        }
        if !left.is_zero() {
            let ends = from.stall_mut().start(now, left);
            self.ctx.wake_at(worker.into(), ends);
            self.ctx.block(Peer::Worker(worker), Peer::Client(client));
            return OutputRoom::Wait;
        }
        if !is_too_long {
            if let Some(to) = self.ctx.endpoint(client.into()).filter(|_| is_of_its_own) {
                to.cold.forget_crashes();
            }
            return OutputRoom::Free;
        }
        self.ctx.report(Reason::ClientSlow, Some(Peer::Client(client)), || {
            format!(
                "a client reads more slowly than its shared worker writes; its connection is closed with {queued} bytes \
                 queued"
            )
        });
        self.close_client(client, Close::Now, Reason::ClientSlow);
        OutputRoom::Closed
    }

    /// Takes the answer of a worker to an `initialize` that the bus has sent again, if this is one. Returns whether it is.
    fn take_opening(&mut self, key: WorkerKey, id: &Id, line: Parsed<'_>) -> bool {
        let settled = self.fleets.openings_mut().take_opening(&mut self.ctx, key, id, line);
        settled.map(|settled| self.settle(key, settled, line)).is_some()
    }

    /// A worker has answered a client's `initialize`. Returns whether the answer is not for the client: it gets that to
    /// the first one, now or once that has come.
    #[cold]
    fn take_answer_to_initialize(
        &mut self,
        key: WorkerKey,
        request: RequestKey,
        line: Parsed<'_>,
        is_misspelled: bool,
    ) -> bool {
        let Some(id) = self.requests.wire_of(request) else { return false };
        match self.fleets.openings_mut().take_answer(&mut self.ctx, key, (request, &id), line, is_misspelled) {
            ToInitialize::Unknown => return false,
            ToInitialize::Settles(settled) => {
                self.settle(key, settled, line);
                return false;
            }
            ToInitialize::AsFirst => self.answer_instead(key, request, None),
            ToInitialize::HeldBack => {}
        }
        true
    }

    /// A worker has answered an `initialize`: what has waited for that continues.
    fn settle(&mut self, key: WorkerKey, mut settled: Settled, line: Parsed<'_>) {
        for (request, answer) in settled.take_refused().into_iter().map(RefusedInitialize::into_parts) {
            self.answer_instead(key, request, Some(answer).filter(|_| !settled.gets_first()));
        }
        self.fleets.release_after_initialize(&mut self.ctx, &self.requests, key, &settled, line);
    }

    /// Refusals that were held back for long enough reach their clients. Returns when to check again.
    pub(crate) fn tick_refused(&mut self, key: WorkerKey) -> Option<Moment> {
        let due = self.ctx.workers.overdue_refusals(key, self.ctx.time.now());
        for (request, answer) in due.into_iter().map(RefusedInitialize::into_parts) {
            self.answer_instead(key, request, Some(answer));
        }
        self.ctx.workers.next_refusal(key)
    }

    /// A client's `initialize` that a worker has refused ends with this refusal, or with the worker's first answer.
    fn answer_instead(&mut self, key: WorkerKey, request: RequestKey, refusal: Option<KeptLine>) {
        let outcome = if refusal.is_some() { Outcome::Error } else { Outcome::Answered };
        let answer = refusal.or_else(|| self.requests.first_answer(&mut self.ctx, key, request));
        let Some((answer, asked)) = answer.zip(self.requests.get(request)) else { return };
        let (asker, since) = (asked.asker(), asked.since());
        let text = answer.with(&self.requests.asker_token(request));
        let ending = RequestEnd { outcome: outcome.name(), code: None, reason: None, bytes_out: text.len() as u64 };
        if self.ctx.out.keeps_records() {
            self.requests.record_end(&mut self.ctx, &self.sessions, request, ending, None);
        }
        self.requests.forget(&mut self.ctx, &mut self.sessions, request);
        let Some(Peer::Client(client)) = asker else { return };
        if let Some(worker) = self.ctx.workers.get_mut(key) {
            self.ctx.workers_changed |= worker.answering_mut().answers(true);
            self.fleets.pools_mut().stats_mut(worker.fleet().pool).answered(outcome, self.ctx.time.lasted(since));
        }
        let now = self.ctx.time.now();
        if let Some(client) = self.ctx.clients.get_mut(client) {
            client.note_answer_of(key, since, now);
        }
        self.ctx.send(client.into(), &text);
        self.wake_after_answer(client);
    }

    /// An answer of a worker to no request that it has.
    pub(crate) fn unmatched_answer(&mut self, worker: WorkerKey, line: Parsed<'_>) -> Flow {
        let from = Peer::Worker(worker);
        let is_result = line.has(Line::RESULT) && !line.has(Line::ERROR);
        let id = if line.id.is_some() {
            Id::parse(line.get(line.id)).ok()
        } else {
            self.ctx.workers.own_question(worker).filter(|_| !is_result)
        };
        if id.as_ref().is_some_and(|id| {
            self.fleets.take_era(&mut self.ctx, worker, id, is_result)
                || self.take_opening(worker, id, line)
                || take_check(&mut self.ctx, worker, id, line)
        }) {
            return Flow::Next;
        }
        let Some(at) = self.ctx.workers.get_mut(worker) else { return Flow::Next };
        let fingerprint = id.as_ref().map(|id| self.requests.fingerprint(id));
        let late = fingerprint.and_then(|fingerprint| at.end_mut().cold.retired_mut().take(fingerprint));
        if let Some(creates) = late {
            // In which session it was is forgotten. A name that a client has is likely to be only repeated.
            let asked_in = if creates { None } else { self.sessions.owned_in_result(worker, line) };
            self.sessions.learn_from_late_answer(&mut self.ctx, worker, line, [asked_in, None]);
            report_line(&mut self.ctx, Reason::LateAnswer, from, line, "the request was given up before");
            return Flow::Next;
        }
        let meant = match id {
            Some(id) => self.requests.request_meant(&mut self.ctx, worker, line, id),
            None if line.id.is_some() || is_result => None,
            None => self.requests.only_pending(&self.ctx, worker).map(|key| Meant { key, is_sure: true, how: None }),
        };
        if let Some(meant) = meant {
            return self.take_meant(worker, line, meant);
        }
        let text = if line.id.is_some() {
            "no request is pending under this id".into()
        } else if line.has(Line::ERROR) {
            format!("an error without an id: {}", error_of(line))
        } else {
            "an answer without an id".into()
        };
        report_line(&mut self.ctx, Reason::UnknownId, from, line, &text);
        let is_first =
            line.id.is_some() && self.ctx.workers.get_mut(worker).is_some_and(|at| at.unmatched_mut().note_report());
        if is_first {
            let text = "a worker sent a response that matches no pending request: it answered twice, or used an id that \
                        it was never sent";
            report_line(&mut self.ctx, Reason::WorkerAnswersTwice, from, line, text);
        }
        Flow::Next
    }

    /// Takes an answer for the one to the request that it means.
    pub(crate) fn take_meant(&mut self, worker: WorkerKey, line: Parsed<'_>, meant: Meant) -> Flow {
        let Meant { key, is_sure, how } = meant;
        let has_others = self.ctx.workers.get(worker).is_some_and(|at| at.audience().has_others());
        if !is_sure && has_others {
            let text = format!("the worker has answered under another id: {}", how.unwrap_or_default());
            self.fail_request(key, Reason::UnknownId, &text);
            self.requests.forget(&mut self.ctx, &mut self.sessions, key);
            return Flow::Next;
        }
        self.take_answer(worker, key, line, Some(&Misspelled::of(line, how)))
    }

    /// The addressee of a worker's message, and its session.
    pub(super) fn client_for_worker_message(
        &self,
        said: &WorkerMessage<'_>,
        named: &NamedRequest,
    ) -> Result<(ClientKey, Option<SessionKey>), Refusal> {
        let &WorkerMessage { from: worker, line, ref id, .. } = said;
        let only = || only_client(&self.ctx, &self.requests, worker).map(Peer::Client);
        let unknown = |reason: Reason| Refusal(reason, reason.help().into());
        let name = session_named(line);
        let session = name.as_ref().and_then(|name| self.sessions.of_worker(worker, name));
        let to = if name.is_some() {
            let at = self.ctx.workers.get(worker);
            // A child is for whom its parent is for.
            let root = session.map(|key| self.sessions.root_of(key));
            let is_one_made = || at.is_some_and(|worker| worker.creating().may_give_out_a_name());
            let owner_waits = || root.is_some_and(|root| self.sessions.owner_waits_in(&self.ctx, &self.requests, root));
            let found = root.and_then(|root| self.sessions.get(root));
            let owner = found.and_then(|found| found.addressee(is_one_made, owner_waits));
            let owner = owner.or_else(|| at.and_then(|worker| worker.owner()));
            owner.map(Peer::Client).ok_or_else(|| unknown(Reason::UnknownSession))?
        } else if named.by == Some(By::Token) || named.by == Some(By::Id) && id.is_none() {
            // It belongs to a request of one client, and is sent to no other one, unless there can be none. A replaced
            // name means nothing to any other client.
            let is_plain = || Spelled::parse(line.get(named.at)).is_ok_and(|it| it.is_plain);
            // A previous client of a lent worker may have left the work that this is about.
            let is_its_own = |owner: &ClientKey| !self.ctx.clients.mcp(*owner).borrows && is_plain();
            let owner = || self.ctx.workers.owner(worker).filter(is_its_own).map(Peer::Client);
            named.client.or_else(owner).ok_or_else(|| unknown(Reason::UnknownRequest))?
        } else if named.by.is_some() {
            // A request that is over is for nobody, unless a client has the worker for itself.
            let owner = || only().filter(|_| self.ctx.workers.has_owner(worker));
            named.client.or_else(owner).ok_or_else(|| unknown(Reason::UnknownRequest))?
        } else {
            let elicited = || self.ctx.workers.client_of_elicitation(said).map(Peer::Client);
            let server = || client_of_server(&self.ctx, said).map(Peer::Client);
            named.client.or_else(elicited).or_else(server).or_else(only).ok_or_else(|| no_addressee(&self.ctx, said))?
        };
        // A half-closed client still takes notifications. It cannot answer a request any more.
        let last_phase = if id.is_some() { Phase::Open } else { Phase::HalfClosed };
        let listens = |client: &ClientKey| self.ctx.clients.phase(*client).is_some_and(|phase| phase <= last_phase);
        let client = if let Peer::Client(client) = to { Some(client).filter(listens) } else { None };
        let Some(client) = client else {
            return Err(Refusal(Reason::UnknownSession, "the client that owns it is leaving".into()));
        };
        if named.by == Some(By::OwnId)
            && named.client != Some(to)
            && self.requests.may_name_anothers(&self.ctx, client, line, named.at)
        {
            let text = "it names no pending request of this worker, and may name another one's";
            return Err(Refusal(Reason::UnknownRequest, text.into()));
        }
        Ok((client, session))
    }

    /// Broadcasts a worker's message that names no client, if it is of that kind. None if it is not, or no client is
    /// connected.
    pub(crate) fn notify_all(&mut self, said: &WorkerMessage<'_>) -> Option<Flow> {
        let &WorkerMessage { from: worker, line, ref id, .. } = said;
        let kind = ForAll::of(line).filter(|_| id.is_none())?;
        let audience = &self.ctx.workers.get(worker)?.audience();
        if !audience.has_others() || kind == ForAll::Login && !audience.is_one_user() {
            return None;
        }
        let all = served_by(&self.ctx, worker);
        if kind == ForAll::Login {
            for client in &all {
                match self.make_room_at_client(worker, *client, false) {
                    OutputRoom::Free => {}
                    OutputRoom::Wait => return Some(Flow::Blocked),
                    OutputRoom::Closed => return self.notify_all(said),
                }
            }
        }
        for client in &all {
            // The output may be full: such lines are few and short. An unread change is not repeated.
            let is_due = match kind {
                ForAll::List(list) => self.ctx.clients.owes_list(*client, list, line.span.len() + 1),
                ForAll::Login => true,
            };
            if is_due {
                let mut edits = UNCHANGED;
                self.ctx.forward(Peer::Client(*client), line, &mut edits);
            }
        }
        (!all.is_empty()).then_some(Flow::Next)
    }

    /// A worker's message in this session was passed on: if it announces a child, that begins, and what the worker has
    /// said in it already follows.
    pub(crate) fn note_announcement(&mut self, worker: WorkerKey, parent: Option<SessionKey>, line: Parsed<'_>) {
        let may_announce = self.ctx.workers.get(worker).is_some_and(|worker| worker.updates().announce_children());
        if !may_announce || line.id.is_some() || !has_method(line, b"session/update") {
            return;
        }
        let whole = line.get(line.span);
        // A proxy wraps the update in the params of its own message.
        let child = announced(whole).or_else(|| announced(member(whole, b"params")?));
        let child = child.filter(|name| name.len() <= MAX_SESSION_ID_LEN);
        let (Some(parent), Some(child)) = (parent, child) else { return };
        let owner = self.sessions.get(parent).and_then(|parent| parent.owner());
        if let Some(owner) =
            owner.filter(|owner| self.sessions.begin_child(&mut self.ctx, *owner, worker, parent, &child))
        {
            self.deliver_early(worker, owner, &child, true);
        }
    }

    /// A worker has answered a client that asked for a session with this one, or has announced it as a child: its early
    /// lines follow.
    pub(crate) fn deliver_early(&mut self, key: WorkerKey, client: ClientKey, name: &[u8], is_child: bool) {
        let session = self.sessions.of_worker(key, name);
        let owned = session.and_then(|session| self.sessions.get(session));
        if owned.is_none_or(|session| session.owner() != Some(client)) {
            return;
        }
        let has_subagents = self.ctx.workers.get(key).is_some_and(|worker| worker.updates().announce_children());
        let is_it = |early: &EarlyLine| early.is_of(name, is_child);
        for early in self.sessions.take_early(&mut self.ctx, key, is_it) {
            if !early.is_request() {
                self.ctx.send(client.into(), early.text());
            }
            if !early.is_request() && !has_subagents {
                continue;
            }
            let passed = self.with_kept_line(early.text(), |bus, line| match early.is_request() {
                true => bus.pass_kept_request(key, line),
                false => {
                    let wrapped = unwrapped(line);
                    let line = Parsed { line: wrapped.as_ref().unwrap_or(line.line), ..line };
                    bus.note_announcement(key, session, line);
                    Ok(())
                }
            });
            if let Some(Err(Refusal(reason, text))) = passed {
                refuse_early(&mut self.ctx, key, &early, reason, &text);
            }
        }
    }
}

impl Sessions {
    /// The sessions that an answer ends: one that was closed, or one that was not loaded.
    fn end_all(
        &mut self,
        ctx: &mut Ctx,
        requests: &Requests,
        verb: KnownMethod,
        succeeded: bool,
        sessions: [Option<SessionKey>; 2],
    ) {
        for session in sessions.into_iter().flatten() {
            if verb == KnownMethod::Close && succeeded {
                self.end(ctx, session);
            } else if verb == KnownMethod::Load && !succeeded {
                // What is still pending there may be its former owner's: that is no reason to keep it.
                let is_asked_for = self.get(session).is_some_and(Session::is_asked_for);
                if is_asked_for && !self.owner_waits_in(ctx, requests, session) {
                    self.release_awaited_children(ctx, requests, session);
                    self.give_up(ctx, session, true);
                }
            }
        }
    }

    /// The effect of a result on its sessions. A worker loads the session in the params, unless it reads names at top
    /// level.
    fn succeed(&mut self, ctx: &mut Ctx, loads: bool, [first, second]: [Option<SessionKey>; 2]) {
        if let Some(leading) = first.filter(|_| second.is_some()) {
            self.confirm(ctx, leading, SessionEvent::Answered);
            if loads {
                self.step(leading, SessionEvent::LoadedLate);
            }
        }
        match second.or(first) {
            Some(session) if loads => self.issue(ctx, session, false),
            Some(session) => self.confirm(ctx, session, SessionEvent::Answered),
            None => {}
        }
    }

    /// The session that a result names, if a client owns it.
    fn owned_in_result(&self, worker: WorkerKey, line: Parsed<'_>) -> Option<SessionKey> {
        let key = self.of_worker(worker, &session_name(line, line.result_session)?)?;
        self.get(key)?.owner().map(|_| key)
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
