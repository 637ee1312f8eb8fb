//! Which request an answer belongs to: a request is recorded with an id that its answerer has never seen for another
//! one, and every answer finds its asker or is discarded (spec 6.2; decisions 4, 5).
use alloc::vec::Vec;

use ndjson_scan::Span;

use super::Bus;
use super::client::end_of;
use super::ended::{Ending, Said};
use super::id::{Id, Spelled};
use super::message::{Cancel, Edit, Edits, Parsed, Refusal, UNCHANGED, Verb, is_response, print_of, session_name};
use super::peer::{Moment, Peer, RequestKey, Text, WorkerKey};
use super::pending::{NewRequest, Original, Request};
use super::reply::Delivered;
use super::report::Reason;
use super::request::Flags;
use super::router::message::Message;
use super::router::unmatched::Misspelled;
use super::session::state::Event;
use super::settings::{IdCollision, MAX_PENDING_REQUESTS};
use super::tally::Outcome;
use super::timers::Timer;
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::roll::notice_leaving;
use crate::pending::Requests;
use crate::refusals::code_for;
use crate::refusals::error_for;
use crate::refusals::say;
use crate::router::unmatched::report_spelling;
use crate::session::table::Sessions;

impl Bus {
    /// Records a request line, with its progress token if it has one. Id and token are replaced if the answerer may not
    /// see the asker's (decision 4).
    pub(super) fn ask<From>(
        &mut self,
        new: &NewRequest,
        message: &Message<'_, From>,
        edits: &mut Edits,
    ) -> Result<Option<RequestKey>, Refusal> {
        let &Message { line, id: Some(Spelled { ref id, is_plain, is_escaped }), .. } = message else {
            return Ok(None);
        };
        self.make_room(new)?;
        let token = line.get(line.id);
        let found = self.requests.find_or_place(new.answerer, id);
        let is_replaced = found.is_ok()
            || !is_plain
            || self.requests.wants_fresh_id(&self.ctx, new.answerer, id)
            || !self.requests.claim(&mut self.ctx, new.asker, new.answerer, id);
        let made = is_replaced.then(|| self.requests.make_name(&mut self.ctx, new.answerer, id.is_string()));
        edits[0] = made.as_ref().map(|made| Edit { at: line.id, with: made.token().as_slice().into() });
        // An error in place of the answer repeats the spelling.
        let original =
            (is_replaced || is_escaped).then(|| Original { id: id.clone(), token: token.into(), is_replaced });
        let came_at = self.ctx.time.came_at();
        let (Err(place) | Ok((_, place))) = found;
        let Some(from) = end_of(&mut self.ctx.clients, &mut self.ctx.workers, new.asker) else {
            return Err(too_many());
        };
        let wire = made.as_ref().unwrap_or(id);
        let inserted = self.requests.insert(came_at, place, new, wire, original.as_ref(), &mut from.asked);
        let key = inserted.ok_or_else(too_many)?;
        from.traffic.asked += 1;
        if let (Some(records), Peer::Client(_)) = (self.ctx.out.records(), new.asker) {
            records.begin(self.ctx.time.now(), key, line);
        }
        if message.progress.is_some() {
            self.requests.note_progress(&mut self.ctx, key, new, id, line, edits);
        }
        let is_first = self.ctx.endpoint(new.answerer).is_some_and(|to| to.to_answer.begin());
        if let Peer::Worker(key) = new.answerer
            && let Some(worker) = self.ctx.workers.get_mut(key)
        {
            if new.verb.creates() {
                worker.creating_mut().begin();
            }
            let at = worker.begin_request(self.ctx.time.now(), is_first);
            self.ctx.timers.arm(new.answerer.into(), at);
        }
        self.ctx.out.stats().ids_translated += u64::from(edits[0].is_some());
        for session in [new.session, new.second_session].into_iter().flatten() {
            self.sessions.begin_request(session);
        }
        self.ctx.timers.arm(Timer::Requests, new.expires);
        Ok(Some(key))
    }

    /// Makes sure that one more request fits. Orphaned requests go first, then one of the client that holds most.
    fn make_room(&mut self, &NewRequest { asker, answerer, .. }: &NewRequest) -> Result<(), Refusal> {
        let askers = match answerer {
            Peer::Worker(_) => self.ctx.clients.len(),
            Peer::Client(_) => self.ctx.workers.len(),
        };
        let holds = self.ctx.peer_end(asker).map_or(0, |end| end.asked.len());
        if self.requests.has_room(answerer, askers, holds) {
            return Ok(());
        }
        let is_full = self.requests.free(answerer) == 0;
        if let Some(unwanted) = self.requests.take_oldest_unwanted(answerer) {
            self.discard_unwanted(unwanted);
            return Ok(());
        }
        let Peer::Client(client) = asker else { return Err(too_many()) };
        let holder = if is_full { self.ctx.clients.heaviest(client, |client| client.end.asked.len()) } else { None };
        let holder = holder.and_then(|holder| self.ctx.peer_end(holder.into()));
        let Some(newest) = holder.and_then(|client| self.requests.newest(&client.asked)) else {
            self.ctx.penalise_refusal(client);
            return Err(too_many());
        };
        let text = format!(
            "all {MAX_PENDING_REQUESTS} slots for pending requests are in use, and this connection holds most of them"
        );
        self.fail_request(newest, Reason::PendingLimit, &text);
        self.requests.retire(&mut self.ctx, &mut self.sessions, newest);
        Ok(())
    }

    /// Removes an answered request, and sends its answer to the asker, with the original id restored everywhere, also
    /// under a misspelled id.
    pub(super) fn deliver_answer(
        &mut self,
        key: RequestKey,
        to: Peer,
        line: Parsed<'_>,
        misspelled: Option<&Misspelled>,
    ) {
        let Some(request) = self.requests.get(key) else { return };
        let (answerer, since) = (request.answerer(), request.since());
        let mut edits = UNCHANGED;
        edits[0] = match misspelled {
            Some(misspelled) => Some(misspelled.edit(&self.requests.asker_token(key))),
            None => self.requests.replaced_token(key).map(|with| Edit { at: line.id, with }),
        };
        edits[1] = if line.meta.is_empty() { None } else { self.requests.edit_in_meta(key, line) };
        if self.ctx.out.keeps_records() {
            self.requests.record_end(
                &mut self.ctx,
                &self.sessions,
                key,
                Ending::of_answer(line),
                session_name(line, line.result_session).as_deref(),
            );
        }
        self.requests.forget(&mut self.ctx, &mut self.sessions, key);
        if let (Peer::Worker(worker), Some(misspelled)) = (answerer, misspelled) {
            report_spelling(&mut self.ctx, worker, line, misspelled);
        }
        if let Peer::Worker(worker) = answerer
            && let Some(worker) = self.ctx.workers.get_mut(worker)
        {
            self.ctx.workers_changed |= worker.answering_mut().answers(is_response(&line));
            self.fleets
                .pools_mut()
                .tally_mut(worker.fleet().pool)
                .answered(Outcome::of_answer(&line), self.ctx.time.lasted(since));
        }
        if let (Peer::Client(client), Peer::Worker(worker)) = (to, answerer)
            && let Some(client) = self.ctx.clients.get_mut(client)
        {
            client.mcp.answered_by = Some(worker);
        }
        self.ctx.forward(to, line, &mut edits);
    }

    /// Forgets a request whose answer is not wanted, though it may still arrive. Some cancelled requests must be
    /// answered: those get an error.
    fn discard_unwanted(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get(key) else { return };
        let (asker, cancelled) = (request.asker(), request.cancelled());
        if asker.is_some() && cancelled == Some(Cancel::Answered) {
            let text = "the request was cancelled, and the worker did not answer it";
            self.fail_request(key, Reason::Cancelled, text);
        } else if asker.is_some() {
            self.requests.count_outcome(&mut self.ctx, &self.sessions, &mut self.fleets, key, Reason::Cancelled, None);
            self.ctx.report(Reason::Cancelled, asker, || {
                "a request was cancelled; its answer is not waited for any more".into()
            });
            if let Some(end) = asker.and_then(|asker| self.ctx.endpoint(asker)) {
                end.traffic.given_up += 1;
            }
        }
        self.requests.retire(&mut self.ctx, &mut self.sessions, key);
        if let Some(Peer::Client(client)) = asker {
            self.wake_after_answer(client);
        }
    }

    /// Answers requests that have timed out, and forgets cancelled ones.
    pub(super) fn tick_requests(&mut self) {
        let (mut late, mut asked) = (Vec::new(), None);
        let now = self.ctx.time.now();
        for key in self.requests.all(&|request| request.expires != Moment::NEVER && request.expires <= now) {
            // A question may have been given up with the request that it belongs to.
            let Some(request) = self.requests.get(key).filter(|request| request.expires <= now) else { continue };
            if request.cancelled().is_some() {
                self.discard_unwanted(key);
            } else {
                match request.answerer() {
                    Peer::Worker(worker) => {
                        let asked = asked.get_or_insert_with(|| self.requests.asked_of_clients(&self.sessions));
                        match self.requests.why_overdue(&self.ctx, &self.sessions, key, asked) {
                            Ok(text) => {
                                self.give_up(key, Reason::Timeout, text);
                                late.push(worker);
                            }
                            Err(later) => self.requests.postpone(key, later),
                        }
                    }
                    Peer::Client(_) => {
                        let text = "the client did not answer within request_timeout_sec";
                        self.requests.give_up_question(
                            &mut self.ctx,
                            &mut self.sessions,
                            &self.fleets,
                            key,
                            Reason::Timeout,
                            text,
                        );
                    }
                }
            }
        }
        // Only now, after everything due with them was handled.
        for worker in late {
            self.count_timeout(worker);
        }
        self.ctx.timers.arm(Timer::Requests, self.requests.iter().map(|(_, request)| request.expires).min());
    }

    /// Tells the asker of a client's request that no answer will come, and reports the loss.
    pub(super) fn fail_request(&mut self, key: RequestKey, reason: Reason, text: &str) {
        let Some(request) = self.requests.get(key) else { return };
        let (Some(Peer::Client(client)), Peer::Worker(worker)) = (request.asker(), request.answerer()) else { return };
        let session =
            request.session.filter(|_| request.flags.has(Flags::ON_TOP)).and_then(|key| self.sessions.get(key));
        let session = session.map(|session| session.name().clone());
        let (token, id) = (self.requests.asker_token(key), self.requests.asker_text(key));
        self.ctx.report_request(reason, [Some(client.into()), Some(worker.into())], || (Some(id), text.into()));
        let (pool, cause) = self
            .ctx
            .workers
            .get(worker)
            .map_or((None, None), |worker| (Some(worker.fleet().pool), worker.process().cause()));
        let session = session.as_ref().map(Text::as_bytes);
        let cause = cause.filter(|_| reason == Reason::RequestLost);
        let code = code_for(&self.fleets, &self.ctx, client.into(), reason);
        let said = error_for(&self.ctx, client.into(), &token, session, (code, reason, cause), text, Delivered::Yes);
        self.requests.count_outcome(&mut self.ctx, &self.sessions, &mut self.fleets, key, reason, said.as_ref());
        // A client that leaves is told nothing.
        if said.is_some() {
            self.fleets.pools_mut().count_error(pool, reason);
        }
        self.requests.abandon(&mut self.ctx, &mut self.sessions, key);
        say(&mut self.ctx, client.into(), said);
        self.wake_after_answer(client);
    }

    /// A client's request is given up: the client gets an error, its worker is told, and so are clients with questions
    /// of the worker that belong to it.
    pub(crate) fn give_up(&mut self, key: RequestKey, reason: Reason, text: &str) {
        let Some(request) = self.requests.get(key) else { return };
        let questions = self.requests.questions_of(&self.ctx, key);
        let prompt = request.session.filter(|_| request.flags.has(Flags::PROMPT));
        if let Some(session) = prompt {
            self.sessions.send_cancellation(&mut self.ctx, session);
        }
        self.requests.withdraw(&mut self.ctx, &self.fleets, key, text);
        self.fail_request(key, reason, text);
        for question in questions {
            let text = format!("the request that it belongs to was given up: {text}");
            self.requests.give_up_question(&mut self.ctx, &mut self.sessions, &self.fleets, question, reason, &text);
        }
    }
}

impl Requests {
    /// The unanswered requests of a peer, the oldest first.
    pub(super) fn asked_by(&self, ctx: &Ctx, peer: Peer) -> Vec<RequestKey> {
        ctx.peer_end(peer).map(|end| self.asked(&end.asked).collect()).unwrap_or_default()
    }

    /// The requests that a peer has still to answer, the oldest first.
    pub(super) fn asked_of(&self, ctx: &Ctx, peer: Peer) -> Vec<RequestKey> {
        let has_any = ctx.peer_end(peer).is_some_and(|end| end.to_answer.count() > 0);
        if has_any { self.all(&|request| request.answerer() == peer) } else { Vec::new() }
    }

    /// A client's request ends without an answer: its client gets the error `said`, or nothing.
    pub(super) fn count_outcome(
        &self,
        ctx: &mut Ctx,
        sessions: &Sessions,
        fleets: &mut Fleets,
        request: RequestKey,
        reason: Reason,
        said: Option<&Said>,
    ) {
        if ctx.out.keeps_records() {
            self.record_end(ctx, sessions, request, Ending::of(Outcome::of(reason).name(), reason, said), None);
        }
        let Some(Peer::Worker(worker)) = self.get(request).map(Request::answerer) else { return };
        if let Some(worker) = ctx.workers.worker_name(worker) {
            fleets.pools_mut().tally_mut(worker.pool).count(Outcome::of(reason));
        }
    }

    /// Records the token that progress of the request will arrive under: its own, unless the answerer may confuse it
    /// with another one's. A token that equals the request's id follows that.
    fn note_progress(
        &mut self,
        ctx: &mut Ctx,
        key: RequestKey,
        new: &NewRequest,
        id: &Id,
        line: Parsed<'_>,
        edits: &mut Edits,
    ) {
        let &NewRequest { asker, answerer, .. } = new;
        let at = line.meta.progress;
        let token = line.get(at);
        // The TypeScript and Python SDKs use the id.
        let is_the_same = token == line.get(line.id);
        let Ok(spelled) = (!is_the_same).then(|| Spelled::parse(token)).transpose() else { return };
        let other = spelled.as_ref().map(|spelled| &spelled.id).filter(|progress| *progress != id);
        if let (None, Some(Edit { with, .. })) = (other, &edits[0]) {
            let with = with.clone();
            self.note_token(key, None, Some(token.into()));
            edits[3] = Some(Edit { at, with });
            return;
        }
        // No other request has the id that is passed through.
        let taken = match other {
            Some(progress) => self.find_by_token(answerer, progress),
            None => self.find_by_other_token(answerer, id),
        };
        let progress = other.unwrap_or(id);
        let is_plain = spelled.as_ref().is_none_or(|spelled| spelled.is_plain);
        let may_pass = is_plain && taken.is_none() && !self.tells_late(ctx, answerer, progress);
        if may_pass && self.claim(ctx, asker, answerer, progress) {
            self.note_token(key, other.cloned(), None);
            return;
        }
        let made = self.make_name(ctx, answerer, progress.is_string());
        edits[3] = Some(Edit { at, with: made.token().as_slice().into() });
        self.note_token(key, Some(made), Some(token.into()));
    }

    /// Whether `asker` may use a name unchanged at `answerer`: no other one ever has (`names.rs`).
    fn claim(&mut self, ctx: &mut Ctx, asker: Peer, answerer: Peer, name: &Id) -> bool {
        let slot = match asker {
            Peer::Client(client) => client.index(),
            Peer::Worker(worker) => worker.index(),
        };
        let Some(end) = ctx.endpoint(answerer) else { return false };
        self.claim_name(&mut end.names, asker.into(), slot, name)
    }

    /// Makes a name that `answerer` has not seen yet, or not for very long, and that none of its requests has.
    pub(super) fn make_name(&self, ctx: &mut Ctx, answerer: Peer, is_string: bool) -> Id {
        loop {
            let Some(end) = ctx.endpoint(answerer) else { return Id::made(0, is_string) };
            let (name, is_old) = end.names.make(is_string);
            // There are more names than requests.
            if !is_old || !self.has_name(answerer, &name) && !end.seldom.retired.has_token(|| self.fingerprint(&name)) {
                return name;
            }
        }
    }

    /// Whether `answerer` may still send progress of a forgotten request under this token, or is not trusted.
    fn tells_late(&self, ctx: &Ctx, answerer: Peer, token: &Id) -> bool {
        is_untrusted(ctx, answerer)
            || ctx.peer_end(answerer).is_some_and(|end| end.seldom.retired.has_token(|| self.fingerprint(token)))
    }

    /// Whether the id of a request to `answerer` is replaced because an answer to it might belong to another request.
    fn wants_fresh_id(&self, ctx: &Ctx, answerer: Peer, id: &Id) -> bool {
        let Some(retired) = ctx.peer_end(answerer).map(|end| &end.seldom.retired) else { return false };
        !retired.is_empty() && retired.has(self.fingerprint(id)) || is_untrusted(ctx, answerer)
    }

    /// The pending request that a response of `from` answers.
    pub(super) fn answered(&self, from: Peer, line: Parsed<'_>) -> Option<RequestKey> {
        let id = Id::parse(line.id.is_some().then(|| line.get(line.id))?).ok()?;
        self.find(from, &id)
    }

    /// The pending request that a worker's line echoes. The worker's own requests have ids of the same kind, so a line
    /// that it may have written itself is never taken for an echo: it must match the request in length and method, from
    /// a worker that has sent no real answer yet.
    pub(super) fn echoed(
        &self,
        ctx: &Ctx,
        worker: WorkerKey,
        id: &Id,
        line: Parsed<'_>,
        progress: Span,
    ) -> Option<RequestKey> {
        if ctx.workers.get(worker).is_none_or(|worker| worker.answering().responds()) {
            return None;
        }
        let key = self.find(Peer::Worker(worker), id)?;
        self.get(key).filter(|request| request.print == print_of(line, progress)).map(|_| key)
    }

    /// The pending request that `asker` made under the id `token`.
    pub(super) fn named(&mut self, ctx: &mut Ctx, asker: Peer, token: &[u8]) -> Option<RequestKey> {
        let id = Id::parse(token).ok()?;
        let end = ctx.endpoint(asker)?;
        self.find_asked(asker, &id, &mut end.asked)
    }

    /// The edit in the `_meta` of an answer: a result may repeat the id of the request, and an echo repeats its token.
    fn edit_in_meta(&self, key: RequestKey, line: Parsed<'_>) -> Option<Edit> {
        let meta = &line.meta;
        let answerer = self.get(key)?.answerer();
        let names = |span: Span| Id::parse(line.get(span)).ok().filter(|_| span.is_some());
        if names(meta.subscription).is_some_and(|id| self.find(answerer, &id) == Some(key)) {
            return self.replaced_token(key).map(|with| Edit { at: meta.subscription, with });
        }
        names(meta.progress).filter(|token| self.find_by_token(answerer, token) == Some(key))?;
        self.replaced_progress(key).map(|with| Edit { at: meta.progress, with })
    }

    /// Forgets a request at both ends.
    pub(super) fn forget(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
        let Some(request) = self.get(key) else { return };
        let (answerer, creates) = (request.answerer(), request.verb.creates());
        let named = self.sessions(key);
        self.release_asker(ctx, sessions, key);
        self.remove(key);
        if let Some(end) = ctx.endpoint(answerer) {
            end.to_answer.end();
        }
        if let Peer::Worker(key) = answerer
            && let Some(worker) = ctx.workers.get_mut(key)
        {
            if creates {
                worker.creating_mut().end();
            }
            notice_leaving(ctx, key);
        }
        for session in named.into_iter().flatten() {
            if sessions.end_request(session) {
                sessions.end(ctx, session);
            }
        }
    }

    /// The asker of a request stops waiting, if it did wait.
    fn release_asker(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
        let Some(request) = self.get(key) else { return };
        let (Some(asker), answerer) = (request.asker(), request.answerer()) else { return };
        self.note_end_of_question(ctx, sessions, key);
        let asker = ctx.endpoint(asker);
        debug_assert!(asker.is_some(), "a request that is waited for has an asker");
        if let Some(end) = asker {
            self.leave_asker(key, &mut end.asked);
        }
        if let Some(end) = ctx.endpoint(answerer) {
            end.to_answer.orphan();
        }
    }

    /// Forgets a request whose answer may still arrive: no other request of its answerer gets its id before.
    pub(super) fn retire(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
        let Some(request) = self.get(key) else { return };
        let (answerer, verb) = (request.answerer(), request.verb);
        let fingerprints = self.fingerprints_of(key);
        if verb == Verb::Load {
            sessions.step_all(self.sessions(key), Event::Unseen);
        }
        self.forget(ctx, sessions, key);
        if let Peer::Worker(worker) = answerer
            && verb.creates()
        {
            if let Some(worker) = ctx.workers.get_mut(worker) {
                worker.creating_mut().time_out();
            }
            sessions.drop_early(ctx, worker);
        }
        if let (Some(end), Some((fingerprint, token))) = (ctx.endpoint(answerer), fingerprints) {
            end.seldom.retired.add(fingerprint);
            token.into_iter().for_each(|token| end.seldom.retired.add_token(token));
        }
    }

    /// The asker stops waiting. The id stays reserved until the answer arrives.
    pub(super) fn abandon(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
        let Some(asker) = self.get(key).and_then(Request::asker) else { return };
        if let Some(end) = ctx.endpoint(asker) {
            end.traffic.given_up += 1;
        }
        self.release_asker(ctx, sessions, key);
        self.orphan(key);
    }

    /// Panics if requests disagree with what their endpoints know of them.
    pub(super) fn check_correlation(&self, ctx: &Ctx) {
        let mut asked = self.iter().filter(|(_, request)| request.asker().is_some()).count();
        let mut listed = 0;
        let clients = ctx.clients.keys().into_iter().map(Peer::from);
        for peer in clients.chain(ctx.workers.keys().into_iter().map(Peer::from)) {
            let (end, list) = (ctx.peer_end(peer).expect("it is in its table"), self.asked_by(ctx, peer));
            assert_eq!(list.len(), end.asked.len());
            assert!(list.iter().all(|key| self.get(*key).is_some_and(|it| it.asker() == Some(peer))));
            asked -= list.len();
            listed += end.asked.listed_by_id();
            let to_answer: Vec<_> = self.iter().filter(|(_, request)| request.answerer() == peer).collect();
            let awaited = to_answer.iter().filter(|(_, request)| request.asker().is_some()).count();
            let counted = (end.to_answer.count() as usize, end.to_answer.awaited() as usize);
            assert_eq!(counted, (to_answer.len(), awaited), "{peer:?}");
            assert!(end.traffic.asked >= end.traffic.given_up + end.asked.len() as u64, "{:?}", end.traffic);
            if let Peer::Worker(worker) = peer {
                let creating = to_answer.iter().filter(|(_, request)| request.verb.creates()).count();
                assert_eq!(ctx.workers.get(worker).map(|worker| worker.creating().asked() as usize), Some(creating));
            }
        }
        assert_eq!(asked, 0, "an awaited request is in the list of its asker");
        assert_eq!(self.listed_by_id(), listed, "and in that by ids, if its asker has one");
    }
}

/// Whether it is a shared worker and no worker is trusted.
fn is_untrusted(ctx: &Ctx, answerer: Peer) -> bool {
    ctx.settings.routing.id_collision == IdCollision::Always
        && matches!(answerer, Peer::Worker(worker) if !ctx.workers.has_owner(worker))
}

fn too_many() -> Refusal {
    Refusal(Reason::PendingLimit, "too many requests are pending".into())
}
