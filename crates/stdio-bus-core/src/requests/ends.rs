//! What begins and ends at both peers of a request: names that pass unchanged or are replaced, and the counts of asker and
//! answerer, which change with the table.

use alloc::vec::Vec;

use ndjson_scan::Span;

use super::{NewRequest, Request, Requests};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::rollout::{notice_end_of_work, notice_leaving};
use crate::id::{Id, Spelled};
use crate::message::{Edit, Edits, KnownMethod, Parsed, print_of};
use crate::peer::{Peer, RequestKey, WorkerKey};
use crate::pool_stats::Outcome;
use crate::report::Reason;
use crate::request_log::{ErrorReply, RequestEnd};
use crate::session::state::SessionEvent;
use crate::session::table::Sessions;
use crate::settings::IdCollision;

impl Requests {
    /// The unanswered requests of a peer, the oldest first.
    pub(crate) fn asked_by(&self, ctx: &Ctx, peer: Peer) -> Vec<RequestKey> {
        ctx.peer_end(peer).map(|end| self.asked(&end.asked).collect()).unwrap_or_default()
    }

    /// The requests that a peer has still to answer, the oldest first.
    pub(crate) fn asked_of(&self, ctx: &Ctx, peer: Peer) -> Vec<RequestKey> {
        let has_any = ctx.peer_end(peer).is_some_and(|end| end.to_answer.count() > 0);
        if has_any { self.all(&|request| request.answerer() == peer) } else { Vec::new() }
    }

    /// A client's request ends without an answer: its client gets the error `said`, or nothing.
    pub(crate) fn count_outcome(
        &self,
        ctx: &mut Ctx,
        sessions: &Sessions,
        fleets: &mut Fleets,
        request: RequestKey,
        reason: Reason,
        said: Option<&ErrorReply>,
    ) {
        if ctx.out.keeps_records() {
            self.record_end(ctx, sessions, request, RequestEnd::of(Outcome::of(reason).name(), reason, said), None);
        }
        let Some((asker, since, Peer::Worker(worker))) =
            self.get(request).map(|request| (request.asker(), request.since(), request.answerer()))
        else {
            return;
        };
        let (now, took) = (ctx.time.now(), ctx.time.lasted(since));
        if let Some(Peer::Client(client)) = asker
            && let Some(client) = ctx.clients.get_mut(client)
        {
            client.end_mut().meter.add(since, now);
        }
        if let Some(worker) = ctx.workers.worker_name(worker) {
            fleets.pools_mut().stats_mut(worker.pool).unanswered(Outcome::of(reason), took);
        }
    }

    /// Records the token that progress of the request will arrive under: its own, unless the answerer may confuse it
    /// with another one's. A token that equals the request's id follows that.
    pub(crate) fn note_progress(
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
        let may_pass = is_plain && taken.is_none() && !self.may_report_late(ctx, answerer, progress);
        if may_pass && self.claim(ctx, asker, answerer, progress) {
            self.note_token(key, other.cloned(), None);
            return;
        }
        let made = self.make_name(ctx, answerer, progress.is_string());
        edits[3] = Some(Edit { at, with: made.token().as_slice().into() });
        self.note_token(key, Some(made), Some(token.into()));
    }

    /// Whether `asker` may use a name unchanged at `answerer`: no other one ever has (`names.rs`).
    pub(crate) fn claim(&mut self, ctx: &mut Ctx, asker: Peer, answerer: Peer, name: &Id) -> bool {
        let slot = match asker {
            Peer::Client(client) => client.index(),
            Peer::Worker(worker) => worker.index(),
        };
        let Some(end) = ctx.endpoint(answerer) else { return false };
        self.claim_name(&mut end.names, asker.into(), slot, name)
    }

    /// Makes a name that `answerer` has not seen yet, or not for very long, and that none of its requests has.
    pub(crate) fn make_name(&self, ctx: &mut Ctx, answerer: Peer, is_string: bool) -> Id {
        loop {
            let Some(end) = ctx.endpoint(answerer) else { return Id::made(0, is_string) };
            let (name, is_old) = end.names.make(is_string);
            // There are more names than requests.
            if !is_old || !self.has_name(answerer, &name) && !end.cold.retired().has_token(|| self.fingerprint(&name)) {
                return name;
            }
        }
    }

    /// Whether `answerer` may still send progress of a forgotten request under this token, or is not trusted.
    fn may_report_late(&self, ctx: &Ctx, answerer: Peer, token: &Id) -> bool {
        is_untrusted(ctx, answerer)
            || ctx.peer_end(answerer).is_some_and(|end| end.cold.retired().has_token(|| self.fingerprint(token)))
    }

    /// Whether the id of a request to `answerer` is replaced because an answer to it might belong to another request.
    pub(crate) fn wants_fresh_id(&self, ctx: &Ctx, answerer: Peer, id: &Id) -> bool {
        let Some(retired) = ctx.peer_end(answerer).map(|end| end.cold.retired()) else { return false };
        !retired.is_empty() && retired.has(self.fingerprint(id)) || is_untrusted(ctx, answerer)
    }

    /// The pending request that a response of `from` answers.
    pub(crate) fn answered(&self, from: Peer, line: Parsed<'_>) -> Option<RequestKey> {
        let id = Id::parse(line.id.is_some().then(|| line.get(line.id))?).ok()?;
        self.find(from, &id)
    }

    /// The pending request that a worker's line echoes. The worker's own requests have ids of the same kind, so a line
    /// that it may have written itself is never taken for an echo: it must match the request in length and method, from
    /// a worker that has sent no real answer yet.
    pub(crate) fn echoed(
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
    pub(crate) fn named(&mut self, ctx: &mut Ctx, asker: Peer, token: &[u8]) -> Option<RequestKey> {
        let id = Id::parse(token).ok()?;
        let end = ctx.endpoint(asker)?;
        self.find_asked(asker, &id, &mut end.asked)
    }

    /// The edit in the `_meta` of an answer: a result may repeat the id of the request, and an echo repeats its token.
    pub(crate) fn edit_in_meta(&self, key: RequestKey, line: Parsed<'_>) -> Option<Edit> {
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
    pub(crate) fn forget(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
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
        let (Some(asker), answerer, verb) = (request.asker(), request.answerer(), request.verb) else { return };
        self.note_end_of_question(ctx, sessions, key);
        if let Peer::Worker(worker) = asker
            && let Some(worker) = ctx.workers.get_mut(worker)
        {
            worker.health_mut().touch(ctx.time.now());
        }
        let asker = ctx.endpoint(asker);
        debug_assert!(asker.is_some(), "a request that is waited for has an asker");
        if let Some(end) = asker {
            self.leave_asker(key, &mut end.asked);
        }
        if let Some(end) = ctx.endpoint(answerer) {
            match verb {
                KnownMethod::Listen => end.to_answer.orphan_subscription(),
                _ => end.to_answer.orphan(),
            }
        }
    }

    /// Forgets a request whose answer may still arrive: no other request of its answerer gets its id before.
    pub(crate) fn retire(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
        let Some(request) = self.get(key) else { return };
        let (answerer, verb) = (request.answerer(), request.verb);
        let fingerprints = self.fingerprints_of(key);
        if verb == KnownMethod::Load {
            sessions.step_all(self.sessions(key), SessionEvent::Unseen);
        }
        self.forget(ctx, sessions, key);
        if let Peer::Worker(worker) = answerer {
            notice_end_of_work(ctx, worker);
        }
        if let Peer::Worker(worker) = answerer
            && verb.creates()
        {
            if let Some(worker) = ctx.workers.get_mut(worker) {
                worker.creating_mut().time_out();
            }
            sessions.drop_early(ctx, worker);
        }
        if let (Some(end), Some((fingerprint, token))) = (ctx.endpoint(answerer), fingerprints) {
            end.cold.retired_mut().add(fingerprint, verb.creates());
            token.into_iter().for_each(|token| end.cold.retired_mut().add_token(token));
        }
    }

    /// The asker stops waiting. The id stays reserved until the answer arrives.
    pub(crate) fn abandon(&mut self, ctx: &mut Ctx, sessions: &mut Sessions, key: RequestKey) {
        let Some(asker) = self.get(key).and_then(Request::asker) else { return };
        if let Some(end) = ctx.endpoint(asker) {
            end.traffic.given_up += 1;
        }
        let answerer = self.get(key).map(Request::answerer);
        self.release_asker(ctx, sessions, key);
        self.orphan(key);
        if let Some(Peer::Worker(worker)) = answerer {
            notice_end_of_work(ctx, worker);
        }
    }

    /// Panics if requests disagree with what their endpoints know of them.
    pub(crate) fn check_correlation(&self, ctx: &Ctx) {
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
                assert_eq!(end.to_answer.owed() as usize, self.owed_by(worker).0, "{peer:?}");
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
