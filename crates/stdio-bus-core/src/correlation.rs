//! Which answer means which request: a request is recorded with an id that its answerer has never seen for another one,
//! and every answer finds its asker, or nobody (spec 6.2; decisions 4, 5).
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use ndjson_scan::{Line, Window};

use super::endpoint::Retired;
use super::id::{Id, View};
use super::message::{Cancel, Refusal, has_escape, print_of};
use super::peer::{Moment, Peer, RequestKey, Text, WorkerKey};
use super::reply::Delivered;
use super::report::Reason;
use super::requests::{Direction, NewRequest, Original, Request, Requests};
use super::settings::{IdCollision, MAX_PENDING_REQUESTS};
use super::tally::Outcome;
use super::timers::Timer;
use super::{Bus, end_of, reply};

impl Bus {
    /// Records a request. Returns the token to replace its id with, if the answerer may not see the asker's
    /// (decision 4).
    pub(super) fn ask(
        &mut self,
        now: Moment,
        new: &NewRequest,
        id: &View<'_>,
        token: &[u8],
    ) -> Result<Option<Text>, Refusal> {
        let NewRequest { client, worker, direction, session, second_session, effect, .. } = *new;
        let (asker, answerer) = (new.asker(), new.answerer());
        let requests = if direction == Direction::ToWorkers { &self.to_workers } else { &self.to_clients };
        let mut hash = requests.hash(answerer.into(), id);
        let collides = requests.find_hashed(hash, answerer.into(), id).is_some();
        if collides && self.settings.routing.id_collision == IdCollision::Reject {
            return Err(Refusal(Reason::IdCollision, "another request with this id is pending".into()));
        }
        self.make_room(now, direction, asker)?;
        let (mut edit, mut wire, mut original) = (None, None, None);
        if collides || !id.is_plain() || self.wants_fresh_id(direction, answerer, id) {
            let made = Id::made(self.ids_made, id.is_string());
            self.ids_made += 1;
            edit = Some(Text::from(reply::id_token(&made).as_slice()));
            hash = self.requests(direction).hash(answerer.into(), &made.view());
            original = Some(Box::new(Original { id: id.to_id(), token: token.into(), is_replaced: true }));
            wire = Some(made);
        } else if token[0] == b'"' && has_escape(token) {
            // It passes as it is. An error in place of the answer has to repeat the spelling.
            original = Some(Box::new(Original { id: id.to_id(), token: token.into(), is_replaced: false }));
        }
        let (client, worker) = (self.clients.get_mut(client), self.workers.get_mut(worker));
        let (Some(client), Some(worker)) = (client, worker) else { return Err(gone()) };
        let (requests, asker, answerer) = match direction {
            Direction::ToWorkers => (&mut self.to_workers, &mut client.end, &mut worker.end),
            Direction::ToClients => (&mut self.to_clients, &mut worker.end, &mut client.end),
        };
        let wire = || wire.unwrap_or_else(|| id.to_id());
        let came_at = self.gaps.came_at(now);
        let inserted =
            requests.insert(came_at, hash, new, wire, original, &mut asker.outstanding, &mut answerer.to_answer);
        let Some(key) = inserted else { return Err(too_many()) };
        if asker.lists_ids {
            requests.list_id(key);
        }
        if let Some(at) = new.expires {
            self.timers.arm(Timer::Requests, &mut requests.timer, at);
        }
        asker.traffic.asked += 1;
        worker.creating += u32::from(effect.creates);
        if direction == Direction::ToWorkers {
            worker.audience.note(new.client);
            if worker.end.to_answer.len() == 1 {
                self.watch_answers(now, new.worker);
            }
        }
        self.stats.ids_translated += u64::from(edit.is_some());
        if let Some(session) = session {
            self.sessions.begin_request(session);
        }
        if let Some(session) = second_session {
            self.sessions.begin_request(session);
        }
        Ok(edit)
    }

    /// Whether the id of a request to `answerer` is replaced, as an answer under it may be one to another request.
    fn wants_fresh_id(&self, direction: Direction, answerer: Peer, id: &View<'_>) -> bool {
        let always = self.settings.routing.id_collision == IdCollision::Always;
        let end = match answerer {
            Peer::Worker(worker) => {
                self.workers.get(worker).map(|worker| (&worker.end, always && worker.owner.is_none()))
            }
            Peer::Client(client) => self.clients.get(client).map(|client| (&client.end, false)),
        };
        let Some((end, always)) = end else { return false };
        always || end.fresh_ids || !end.retired.is_empty() && self.may_still_answer_under(direction, &end.retired, id)
    }

    #[cold]
    fn may_still_answer_under(&self, direction: Direction, retired: &Retired, id: &View<'_>) -> bool {
        let requests = if direction == Direction::ToWorkers { &self.to_workers } else { &self.to_clients };
        retired.has(requests.fingerprint(id))
    }

    /// Makes sure that one more request fits. Requests that nobody waits for go first, then one of the client that
    /// holds most.
    fn make_room(&mut self, now: Moment, direction: Direction, asker: Peer) -> Result<(), Refusal> {
        let is_full = self.requests(direction).is_full();
        if !is_full && !self.slot_is_kept(direction, asker) {
            return Ok(());
        }
        if let Some(unwanted) = self.requests(direction).take_oldest_unwanted() {
            self.discard_unwanted(now, direction, unwanted);
            return Ok(());
        }
        let Peer::Client(client) = asker else { return Err(too_many()) };
        let holder = if is_full { self.heaviest(client, |client| client.end.outstanding.len()) } else { None };
        let Some(newest) =
            holder.and_then(|holder| self.clients.get(holder)).and_then(|client| client.end.outstanding.last())
        else {
            self.penalise_refusal(now, client);
            return Err(too_many());
        };
        let text = format!(
            "all {MAX_PENDING_REQUESTS} slots for pending requests are in use, and this connection holds most of them"
        );
        self.fail_request(now, newest, Reason::PendingLimit, &text);
        self.retire_request(now, direction, newest);
        Ok(())
    }

    pub(super) fn requests(&mut self, direction: Direction) -> &mut Requests {
        match direction {
            Direction::ToWorkers => &mut self.to_workers,
            Direction::ToClients => &mut self.to_clients,
        }
    }

    /// The pending request that a response of `from` answers.
    pub(super) fn answered(&self, from: Peer, window: Window<'_>, line: &Line) -> Option<RequestKey> {
        let id = View::parse(line.id.is_some().then(|| window.get(line.id))?).ok()?;
        match from {
            Peer::Worker(_) => self.to_workers.find(from, &id),
            Peer::Client(_) => self.to_clients.find(from, &id),
        }
    }

    /// The pending request that a worker's line is, as it was sent to it: it sends back what it gets. The worker's own
    /// requests have ids of the same kind, so nothing that it may have written itself is taken for that: it is the line
    /// of that request in length and method, of a worker that has not answered anything otherwise.
    pub(super) fn echoed(
        &self,
        worker: WorkerKey,
        id: &View<'_>,
        window: Window<'_>,
        line: &Line,
    ) -> Option<RequestKey> {
        if self.workers.get(worker).is_none_or(|worker| worker.answering.responds) {
            return None;
        }
        let key = self.to_workers.find(Peer::Worker(worker), id)?;
        self.to_workers.get(key).filter(|request| request.print() == print_of(window, line)).map(|_| key)
    }

    /// The pending request that `asker` made under the id `token`.
    pub(super) fn request_named(&mut self, asker: Peer, token: &[u8]) -> Option<RequestKey> {
        let id = View::parse(token).ok()?;
        let requests = if matches!(asker, Peer::Client(_)) { &mut self.to_workers } else { &mut self.to_clients };
        let end = end_of(&mut self.clients, &mut self.workers, asker)?;
        requests.find_asked(asker, &id, &end.outstanding, &mut end.lists_ids)
    }

    /// Takes an answered request out, and sends its answer to who asked, with the original id.
    pub(super) fn deliver_answer(&mut self, now: Moment, direction: Direction, key: RequestKey, to: Peer, line: &Line) {
        let request = self.forget_request(direction, key);
        if let Some(request) = &request
            && let Peer::Worker(worker) = request.answerer()
            && let Some(worker) = self.workers.get_mut(worker)
        {
            self.workers_changed |= worker.answering.answers();
            let is_response = line.flags & (Line::RESULT | Line::ERROR) != 0;
            worker.answering.responds |= is_response && !line.method.is_some();
            let is_error = line.has(Line::ERROR) && !line.has(Line::RESULT);
            let outcome = if is_error { Outcome::Error } else { Outcome::Answered };
            self.pools[worker.pool].tally.answered(outcome, self.gaps.lasted(now, request.since()));
        }
        let original = request.and_then(|request| request.original);
        let replaced = original.filter(|original| original.is_replaced);
        self.forward_with_id(now, to, line, replaced.map(|original| original.token));
    }

    /// Forgets a request whose answer nobody wants, though it may still come. Some cancelled requests have to be
    /// answered: those get an error.
    fn discard_unwanted(&mut self, now: Moment, direction: Direction, key: RequestKey) {
        let Some(request) = self.requests(direction).get(key) else { return };
        let (asker, cancelled) = (request.asker(), request.cancelled);
        if asker.is_some() && cancelled == Some(Cancel::Answered) {
            let text = "the request was cancelled, and the worker did not answer it";
            self.fail_request(now, key, Reason::Cancelled, text);
        } else if asker.is_some() {
            self.count_outcome(key, Outcome::Cancelled);
            self.report(now, Reason::Cancelled, asker, || {
                "a request was cancelled; its answer is not waited for any more".into()
            });
            if let Some(end) = asker.and_then(|asker| self.endpoint(asker)) {
                end.traffic.given_up += 1;
            }
        }
        self.retire_request(now, direction, key);
        if let Some(Peer::Client(client)) = asker {
            self.wake_after_answer(now, client);
        }
    }

    /// Forgets a request, on both its ends.
    pub(super) fn forget_request(&mut self, direction: Direction, key: RequestKey) -> Option<Request> {
        let requests = if direction == Direction::ToWorkers { &mut self.to_workers } else { &mut self.to_clients };
        let request = requests.take(key)?;
        let (clients, workers) = (&mut self.clients, &mut self.workers);
        if let Some(asker) = request.asker().and_then(|asker| end_of(clients, workers, asker)) {
            requests.leave_asker(&mut asker.outstanding, request.at_asker());
        }
        let answerer = match request.answerer() {
            Peer::Client(client) => clients.get_mut(client).map(|client| &mut client.end),
            Peer::Worker(worker) => workers.get_mut(worker).map(|worker| {
                worker.creating -= u32::from(request.effect.creates);
                &mut worker.end
            }),
        };
        if let Some(answerer) = answerer {
            requests.leave_answerer(&mut answerer.to_answer, request.at_answerer());
        }
        if let Some(session) = request.session {
            self.end_session_request(session);
        }
        if let Some(session) = request.second_session {
            self.end_session_request(session);
        }
        Some(request)
    }

    /// Forgets a request whose answer may still come: no other request of its answerer gets its id before.
    pub(super) fn retire_request(&mut self, now: Moment, direction: Direction, key: RequestKey) {
        let requests = self.requests(direction);
        let Some(request) = requests.get(key) else { return };
        let fingerprint = requests.fingerprint(&request.wire.view());
        let (answerer, effect) = (request.answerer(), request.effect);
        if effect.loads {
            let sessions = [request.session, request.second_session];
            sessions.into_iter().flatten().for_each(|session| self.sessions.may_be_loaded(session));
        }
        self.forget_request(direction, key);
        if let Peer::Worker(worker) = answerer
            && let Some(worker) = self.workers.get_mut(worker)
        {
            worker.may_create |= effect.creates;
        }
        if let Peer::Worker(worker) = answerer
            && effect.creates
        {
            self.drop_early(now, worker);
        }
        if let Some(end) = self.endpoint(answerer) {
            end.retire_id(fingerprint);
        }
    }

    /// The asker does not wait any more. The id stays taken until the answer comes.
    pub(super) fn orphan_request(&mut self, direction: Direction, key: RequestKey) {
        let requests = if direction == Direction::ToWorkers { &mut self.to_workers } else { &mut self.to_clients };
        let asker = requests.get(key).and_then(Request::asker);
        let asker = asker.and_then(|asker| end_of(&mut self.clients, &mut self.workers, asker));
        requests.orphan(
            key,
            asker.map(|end| {
                end.traffic.given_up += 1;
                &mut end.outstanding
            }),
        );
    }

    /// A request of a client is not waited for any more, though it was not answered.
    pub(super) fn count_outcome(&mut self, request: RequestKey, outcome: Outcome) {
        let Some(Peer::Worker(worker)) = self.to_workers.get(request).map(Request::answerer) else { return };
        if let Some(worker) = self.workers.get(worker) {
            self.pools[worker.pool].tally.count(outcome);
        }
    }

    /// Answers requests that have waited too long, and forgets cancelled ones.
    pub(super) fn tick_requests(&mut self, now: Moment) {
        let mut late = Vec::new();
        for key in self.to_workers.expired(now) {
            let Some(request) = self.to_workers.get(key) else { continue };
            if request.cancelled.is_some() {
                self.discard_unwanted(now, Direction::ToWorkers, key);
            } else {
                let answerer = request.answerer();
                let text = "the worker did not answer within request_timeout_sec";
                self.fail_request(now, key, Reason::Timeout, text);
                if let Peer::Worker(worker) = answerer {
                    late.push(worker);
                }
            }
        }
        // Only now, since what is due with them is dealt with first.
        for worker in late {
            self.count_timeout(now, worker);
        }
        let next = self.to_workers.next_expiry();
        self.wake_requests_at(next);
    }

    /// The asker of a request is told that no answer will come, and the loss is reported.
    pub(super) fn fail_request(&mut self, now: Moment, key: RequestKey, reason: Reason, text: &str) {
        let Some(request) = self.to_workers.get(key) else { return };
        let Some(Peer::Client(client)) = request.asker() else { return };
        let token = request.asker_token();
        let session = request.session.filter(|_| request.session_on_top).and_then(|key| self.sessions.get(key));
        let session = session.map(|session| session.name.clone());
        let id = request.asker_text();
        let answerer = request.answerer();
        let peers = [request.asker(), Some(answerer)];
        self.report_request(now, reason, peers, || (Some(id), text.into()));
        self.count_outcome(key, Outcome::of(reason));
        if let Peer::Worker(worker) = answerer {
            let pool = self.workers.get(worker).map(|worker| worker.pool);
            self.count_error(pool, reason);
        }
        self.orphan_request(Direction::ToWorkers, key);
        let session = session.as_ref().map(Text::as_bytes);
        let cause = match answerer {
            Peer::Worker(worker) if reason == Reason::RequestLost => self.workers.get(worker).and_then(|w| w.cause),
            _ => None,
        };
        self.send_error_for(now, client.into(), &token, session, (reason, cause), text, Delivered::Yes);
        self.wake_after_answer(now, client);
    }

    /// Panics if requests and the lists of their ends disagree.
    pub(super) fn check_correlation(&self) {
        let mut listed = 0;
        for (requests, clients_answer) in [(&self.to_workers, false), (&self.to_clients, true)] {
            for (key, request) in requests.iter() {
                assert_eq!(matches!(request.answerer(), Peer::Client(_)), clients_answer);
                let answerer = self.peer_end(request.answerer()).expect("an answerer is alive");
                assert_eq!(answerer.to_answer.iter().nth(request.at_answerer() as usize), Some(key));
                listed += 1;
                if let Some(asker) = request.asker() {
                    let asker = self.peer_end(asker).expect("an asker is alive");
                    assert_eq!(asker.outstanding.iter().nth(request.at_asker() as usize), Some(key));
                    listed += 1;
                    assert_eq!(request.is_listed, asker.lists_ids);
                }
            }
        }
        for (_, client) in self.clients.iter() {
            let traffic = client.end.traffic;
            assert!(traffic.asked >= traffic.given_up + client.end.outstanding.len() as u64, "{traffic:?}");
        }
        let (clients, workers) = (self.clients.iter().map(|(_, c)| &c.end), self.workers.iter().map(|(_, w)| &w.end));
        assert_eq!(
            clients.chain(workers).map(|end| end.outstanding.len() + end.to_answer.len()).sum::<usize>(),
            listed
        );
        for (key, worker) in self.workers.iter() {
            let creates = |key| self.to_workers.get(key).is_some_and(|request| request.effect.creates);
            assert_eq!(
                worker.end.to_answer.iter().filter(|key| creates(*key)).count(),
                worker.creating as usize,
                "{key:?}"
            );
        }
    }
}

fn gone() -> Refusal {
    Refusal(Reason::RequestLost, "the other end has gone".into())
}

fn too_many() -> Refusal {
    Refusal(Reason::PendingLimit, "too many requests are pending".into())
}
