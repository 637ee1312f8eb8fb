//! Which request an answer belongs to: a request is recorded with an id that its answerer has never seen for another
//! one, and every answer finds its asker or is discarded (spec 6.2; decisions 4, 5).
use alloc::vec::Vec;

use super::Bus;
use super::id::Spelled;
use super::message::{Cancel, Edit, Edits, KnownMethod, Parsed, Refusal, UNCHANGED, is_response, session_name};
use super::peer::{Moment, Peer, RequestKey, ShortText};
use super::pool_stats::Outcome;
use super::reply::Delivered;
use super::report::Reason;
use super::request_log::RequestEnd;
use super::router::message::Message;
use super::router::unmatched::Misspelled;
use super::settings::MAX_PENDING_REQUESTS;
use super::timers::Timer;
use crate::peers::end_of;
use crate::refusals::{code_for, error_for, say};
use crate::requests::{NewRequest, Original};
use crate::router::unmatched::report_spelling;

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
        let (is_taken, place) = match self.requests.find_or_place(new.answerer, id) {
            Ok(found) => (true, found.place),
            Err(place) => (false, place),
        };
        let is_replaced = is_taken
            || !is_plain
            || self.requests.wants_fresh_id(&self.ctx, new.answerer, id)
            || !self.requests.claim(&mut self.ctx, new.asker, new.answerer, id);
        let made = is_replaced.then(|| self.requests.make_name(&mut self.ctx, new.answerer, id.is_string()));
        edits[0] = made.as_ref().map(|made| Edit { at: line.id, with: made.token().as_slice().into() });
        // An error in place of the answer repeats the spelling.
        let original =
            (is_replaced || is_escaped).then(|| Original { id: id.clone(), token: token.into(), is_replaced });
        let came_at = self.ctx.time.came_at();
        let Some(from) = end_of(&mut self.ctx.clients, &mut self.ctx.workers, new.asker) else {
            return Err(too_many());
        };
        let wire = made.as_ref().unwrap_or(id);
        let inserted = self.requests.insert(came_at, place, new, wire, original.as_ref(), &mut from.asked);
        let key = inserted.ok_or_else(too_many)?;
        from.traffic.asked += 1;
        if let (Some(records), Peer::Client(_)) = (self.ctx.out.records(), new.asker) {
            let now = self.ctx.time.now();
            records.begin(now, key, line, now.since(self.ctx.time.taken_at()));
        }
        if message.progress.is_some() {
            self.requests.note_progress(&mut self.ctx, key, new, id, line, edits);
        }
        if let Some(to) = self.ctx.endpoint(new.answerer) {
            match new.verb {
                KnownMethod::Listen => to.to_answer.begin_subscription(),
                _ => to.to_answer.begin(),
            }
        }
        if let Peer::Worker(key) = new.answerer
            && let Some(worker) = self.ctx.workers.get_mut(key)
        {
            if new.verb.creates() {
                worker.creating_mut().begin();
            }
            let at = worker.begin_request(self.ctx.time.now());
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
        let holder = if is_full { self.ctx.clients.heaviest(client, |client| client.end().asked.len()) } else { None };
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
                RequestEnd::of_answer(line),
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
                .stats_mut(worker.fleet().pool)
                .answered(Outcome::of_answer(&line), self.ctx.time.lasted(since));
        }
        let now = self.ctx.time.now();
        if let (Peer::Client(client), Peer::Worker(worker)) = (to, answerer)
            && let Some(client) = self.ctx.clients.get_mut(client)
        {
            client.note_answer_of(worker, since, now);
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
        for key in self.requests.all(&|request| request.expires() != Moment::NEVER && request.expires() <= now) {
            // A question may have been given up with the request that it belongs to.
            let Some(request) = self.requests.get(key).filter(|request| request.expires() <= now) else { continue };
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
        self.ctx.timers.arm(Timer::Requests, self.requests.iter().map(|(_, request)| request.expires()).min());
    }

    /// Notifies the asker of a client's request that no answer will come, and reports the loss.
    pub(super) fn fail_request(&mut self, key: RequestKey, reason: Reason, text: &str) {
        let Some(request) = self.requests.get(key) else { return };
        let (Some(Peer::Client(client)), Peer::Worker(worker)) = (request.asker(), request.answerer()) else { return };
        let session = request.session_on_top().and_then(|key| self.sessions.get(key));
        let session = session.map(|session| session.name().clone());
        let (token, id) = (self.requests.asker_token(key), self.requests.asker_text(key));
        self.ctx.report_request(reason, [Some(client.into()), Some(worker.into())], || (Some(id), text.into()));
        let (pool, cause) = self
            .ctx
            .workers
            .get(worker)
            .map_or((None, None), |worker| (Some(worker.fleet().pool), worker.process().cause()));
        let session = session.as_ref().map(ShortText::as_bytes);
        let cause = cause.filter(|_| reason == Reason::RequestLost);
        let code = code_for(&self.fleets, &self.ctx, client.into(), reason);
        // Without a process it was kept here.
        let delivered = match reason {
            Reason::CredentialsMissing | Reason::NoWorker => Delivered::No,
            _ => Delivered::Yes,
        };
        let said = error_for(&self.ctx, client.into(), &token, session, (code, reason, cause), text, delivered);
        self.requests.count_outcome(&mut self.ctx, &self.sessions, &mut self.fleets, key, reason, said.as_ref());
        // A client that leaves gets no error.
        if said.is_some() {
            self.fleets.pools_mut().count_error(pool, reason);
        }
        self.requests.abandon(&mut self.ctx, &mut self.sessions, key);
        say(&mut self.ctx, client.into(), said);
        self.wake_after_answer(client);
    }

    /// A client's request is given up: the client gets an error, its worker is notified, and so are clients with
    /// questions of the worker that belong to it.
    pub(crate) fn give_up(&mut self, key: RequestKey, reason: Reason, text: &str) {
        let Some(request) = self.requests.get(key) else { return };
        let questions = self.requests.questions_of(&self.ctx, key);
        let prompt = request.session().filter(|_| request.is_prompt());
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

fn too_many() -> Refusal {
    Refusal(Reason::PendingLimit, "too many requests are pending".into())
}
