//! The model's requests: asker, answerer and ids of each, and when it leaves the table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::owners::Owners;
use super::{Fate, Model, Rank, Request, Token, is_in_use};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, IdCollision};
use crate::line::{Ids, Kind, Line, MADE, Party, is_plain, meaning};

/// How long an orphaned or cancelled request keeps its slot.
const SLOT_KEPT: Duration = Duration::from_secs(5);

/// It keeps it a little longer, so that several are freed together.
const SLOT_ROUND: Duration = Duration::from_millis(100);

impl Model {
    /// Removes the request that a response answers.
    pub(super) fn answered_by(&mut self, number: usize, of_client: bool) -> Request {
        let line = &self.lines[number];
        if let (true, Party::Worker(worker)) = (of_client, line.from) {
            let at = self.request_answered(worker, line);
            return self.to_workers.remove(at.expect("a request was pending"));
        }
        let requests = if of_client { &mut self.to_workers } else { &mut self.to_clients };
        let id = line.ids.id.as_deref().map(meaning).unwrap_or_default();
        let at = requests.iter().position(|request| request.answerer == line.from && request.wire == id);
        requests.remove(at.expect("a request was pending"))
    }

    pub(super) fn client_message(
        &mut self,
        now: Moment,
        number: usize,
        client: usize,
        worker: usize,
        fate: &Fate,
        ids: &Ids,
    ) {
        let line = self.lines[number].clone();
        if let Some(group) = fate.group {
            self.assigned(now, client, group, worker);
        }
        self.check_named(&line, client, worker, ids);
        let mut sessions = Vec::new();
        if line.targets().is_empty() {
            // It asks for a lost session, unless it has one of that name: then only an answer ends the loss.
            let has = |name: &String| {
                let is_way = line.way() == Some(name);
                let mut mine = self.sessions.iter().filter(|at| at.client == client && at.name == *name);
                mine.any(|at| if is_way { line.pool.is_none() } else { at.worker == worker })
            };
            let asked: Vec<&String> = line.names().into_iter().filter(|name| line.loads() && !has(name)).collect();
            self.clients[client].lost.retain(|(lost, _)| !asked.contains(&lost));
            for name in line.names() {
                sessions.extend(self.session_used(now, client, worker, name, &line));
            }
        } else {
            let loud = line.method != "notifications/cancelled";
            // Of several with the same id it is the one whose id the worker gets.
            let cancelled = ids.request_id.as_deref().or(ids.params_id.as_deref()).map(meaning);
            let is_cancelled =
                |at: &&Request| at.answerer == Party::Worker(worker) && Some(&at.wire) == cancelled.as_ref();
            let target = self.targets(client, &line).into_iter().find(is_cancelled);
            let target = target.map(|request| request.line).expect("it has a target");
            let found = self.to_workers.iter_mut().find(|request| request.line == target);
            found.expect("it was found").cancelled.get_or_insert((now, loud));
        }
        if line.kind == Kind::Notification {
            if let Some(seen) = &ids.progress {
                let request = self.referred_to(&self.to_clients, Party::Client(client), &line).expect("it was found");
                assert_eq!(Some(seen), asker_token(request, &line), "{line:?}");
            }
            return;
        }
        self.clients[client].penalty.asked();
        // A subscription is not answered before it is cancelled.
        let timeout = self.settings.pools[self.workers[worker].pool].request_timeout.filter(|_| !line.listens());
        let request = Request {
            sessions,
            expires: timeout.map(|timeout| now.after(timeout)),
            expires_first: timeout.map(|timeout| self.presented_at(now, number).after(timeout)),
            signs: self.signs_of(now, worker, &line),
            sent: now,
            ..Request::new(number, Party::Client(client), Party::Worker(worker))
        };
        let worker = &self.workers[worker];
        let always = self.settings.routing.id_collision == IdCollision::Always
            && self.settings.pools[worker.pool].assignment != Assignment::Dedicated;
        let fresh = worker.fresh || always;
        let is_retired = line.ids.id.as_deref().is_some_and(|id| worker.retired.has_id(&meaning(id)));
        let is_late = line.ids.token.as_deref().is_some_and(|token| fresh || worker.retired.has_token(&meaning(token)));
        let (owners, made) = (&mut self.owners, &mut self.made);
        let request = translated(request, &line, ids, &self.to_workers, owners, made, [fresh || is_retired, is_late]);
        self.to_workers.push(request);
    }

    /// The requests that a client's line names arrive with the ids that its worker knows.
    fn check_named(&self, line: &Line, client: usize, worker: usize, ids: &Ids) {
        let is_there = |request: &&&Request| request.answerer == Party::Worker(worker);
        let cancels = !line.targets().is_empty();
        let mine = if cancels {
            self.targets(client, line)
        } else {
            self.named(&self.to_workers, Party::Client(client), line)
        };
        let mine: Vec<_> = mine.iter().filter(is_there).collect();
        for (written, seen) in [(&line.ids.request_id, &ids.request_id), (&line.ids.params_id, &ids.params_id)] {
            let Some(seen) = seen else { continue };
            let right = if mine.is_empty() {
                written.as_ref() == Some(seen)
            } else {
                mine.iter().any(|request| {
                    request.wire == meaning(seen) && (request.replaced || Some(seen) == written.as_ref())
                })
            };
            assert!(right, "a request is named {seen}, but it is {mine:?}: {line:?}");
        }
    }

    /// A line was presented to the bus as a whole.
    pub fn presented(&mut self, now: Moment, number: usize) {
        self.presented.entry(number).or_insert(now);
    }

    /// When that was.
    pub(super) fn presented_at(&self, now: Moment, number: usize) -> Moment {
        self.presented.get(&number).copied().unwrap_or(now)
    }

    pub(super) fn worker_message(&mut self, now: Moment, number: usize, worker: usize, client: usize, ids: &Ids) {
        let line = self.lines[number].clone();
        self.note_signs(now, worker, &line);
        let about = self.request_meant_by(worker, &line);
        let seen = ids.request_id.as_deref();
        match (line.kind, about) {
            (Kind::Notification, Some(request)) if request.answerer == Party::Client(client) && request.replaced => {
                assert_eq!(seen.map(meaning).as_ref(), Some(&request.wire), "{line:?}");
            }
            (Kind::Request, Some(request)) if request.asker == Some(Party::Client(client)) && request.replaced => {
                assert_eq!(seen, Some(request.token.as_str()), "{line:?}");
            }
            _ => assert_eq!(seen, line.ids.request_id.as_deref(), "{line:?}"),
        }
        let referred_to = self.referred_to(&self.to_workers, Party::Worker(worker), &line);
        let referred_to = referred_to.filter(|request| request.asker == Some(Party::Client(client)));
        let is_cancelled = referred_to
            .map_or(line.ids.progress.as_ref().or(line.ids.subscription.as_ref()), |request| {
                asker_token(request, &line)
            });
        assert_eq!(ids.progress.as_ref().or(ids.subscription.as_ref()), is_cancelled, "{line:?}");
        if line.kind == Kind::Request {
            // A dedicated worker sends a request in a session that is reserved as well.
            let is_it = |of: usize, name: &String| of == worker && Some(name) == line.way();
            let owned = self.sessions.iter().find(|at| is_it(at.worker, &at.name)).map(|at| at.serial);
            let held = self.held.iter().find(|held| is_it(held.worker, &held.name)).map(|held| held.serial);
            let session = owned.or(held);
            let timeout = self.settings.pools[self.workers[worker].pool].request_timeout;
            let request = Request {
                sessions: session.into_iter().collect(),
                expires: timeout.map(|timeout| now.after(timeout)),
                expires_first: timeout.map(|timeout| self.presented_at(now, number).after(timeout)),
                ..Request::new(number, Party::Worker(worker), Party::Client(client))
            };
            let at = &self.clients[client];
            let is_retired = at.fresh || line.ids.id.as_deref().is_some_and(|id| at.retired.has_id(&meaning(id)));
            let is_late = |token: &str| at.fresh || at.retired.has_token(&meaning(token));
            let is_late = line.ids.token.as_deref().is_some_and(is_late);
            let (owners, made) = (&mut self.owners, &mut self.made);
            let request = translated(request, &line, ids, &self.to_clients, owners, made, [is_retired, is_late]);
            self.to_clients.push(request);
        }
    }

    pub(super) fn worker_response(&mut self, now: Moment, number: usize, worker: usize, client: usize, ids: &Ids) {
        let line = self.lines[number].clone();
        let request = self.answered_by(number, true);
        self.clients[client].penalty.answered();
        self.workers[worker].has_answered = true;
        self.passes_trial(worker);
        let is_misspelled = line.ids.id.as_deref().map(meaning).as_ref() != Some(&request.wire);
        if is_misspelled && !std::mem::replace(&mut self.workers[worker].misspells, true) {
            self.count(Reason::UnknownId);
        }
        let is_restored = request.replaced || is_misspelled;
        let expected = if is_restored { Some(&request.token) } else { line.ids.id.as_ref() };
        assert_eq!(ids.id.as_ref(), expected, "the id of {:?} was not restored", request.line);
        let is_its = line.ids.subscription.as_deref().map(meaning).as_ref() == Some(&request.wire);
        let expected = if request.replaced && is_its { Some(&request.token) } else { line.ids.subscription.as_ref() };
        assert_eq!(ids.subscription.as_ref(), expected, "the subscription of {:?} was not restored", request.line);
        let asked = self.lines[request.line].clone();
        let only_asks = matches!(asked.method, "session/load" | "session/resume");
        for session in std::mem::take(&mut self.sessions) {
            let mut session = session;
            if !request.sessions.contains(&session.serial) {
                self.sessions.push(session);
            } else if !line.result && only_asks && session.rank == Rank::Claimed {
                // It stays lent or claimed as long as other requests of its owner are pending.
                if !session.lent && !session.asked || self.owner_waits(&session) {
                    self.sessions.push(session);
                } else if session.was_issued || is_in_use(&self.to_workers, &self.to_clients, session.serial) {
                    self.hold(session);
                }
            } else {
                let is_loaded =
                    only_asks && (request.sessions.len() < 2 || asked.inner.as_ref() == Some(&session.name));
                let rank = if is_loaded { Rank::Issued } else { Rank::Confirmed };
                let risen = session.rank.max(if line.result { rank } else { Rank::Claimed });
                if risen == Rank::Issued && session.rank < risen {
                    self.bind(session.client, session.worker, &session.name);
                    session.given |= !self.is_bound_to_another(session.client, session.worker, &session.name);
                }
                session.rank = risen;
                // A worker that reads names at top level has loaded the other one.
                session.was_issued |= line.result && only_asks;
                if session.rank == Rank::Issued {
                    self.clients[client].lost.retain(|(lost, _)| *lost != session.name);
                }
                self.sessions.push(session);
            }
        }
        if let Some(name) = line.result_session.as_ref().filter(|_| line.result) {
            self.learns(now, client, worker, name, asked.creates());
        }
        let makes_more = self.is_making(worker);
        let made = line.result_session.as_deref().filter(|_| line.result);
        let is_its =
            |name: &str| self.sessions.iter().any(|at| at.worker == worker && at.name == name && at.client == client);
        if asked.creates() && (made.is_none() || !makes_more) {
            self.ends_early(worker, made.filter(|name| is_its(name)));
        }
        if line.result && only_asks {
            self.loaded_otherwise(worker, &request.sessions, made);
        }
        if line.result && asked.closes() {
            self.sessions.retain(|session| !request.sessions.contains(&session.serial));
            self.held.retain(|held| !request.sessions.contains(&held.serial));
        }
    }

    pub(super) fn late_answer(&mut self, now: Moment, number: usize) {
        let line = &self.lines[number];
        let id = line.ids.id.as_deref().map(meaning).unwrap_or_default();
        if let Party::Worker(worker) = line.from {
            if self.request_answered(worker, line).is_some() {
                let request = self.answered_by(number, true);
                let method = self.lines[request.line].method;
                if self.lines[number].result && matches!(method, "session/load" | "session/resume") {
                    self.is_loaded(&request.sessions);
                }
                let creates = self.lines[request.line].creates();
                if creates {
                    self.ends_early(worker, None);
                }
                self.holds_late(number, if creates { &[] } else { &request.sessions });
            } else {
                self.workers[worker].retired.answered(&id);
                self.holds_late(number, &[]);
            }
        } else {
            let question = self.answered_by(number, false);
            self.question_ends(now, &question);
        }
        self.let_go();
    }

    /// A peer is notified that nobody waits for its answer to this request any more.
    pub(super) fn withdrawn(&mut self, now: Moment, from: Party, id: &str) {
        let requests = if matches!(from, Party::Worker(_)) { &mut self.to_workers } else { &mut self.to_clients };
        let is_it = |request: &Request| request.answerer == from && request.wire == meaning(id);
        let Some(at) = requests.iter().position(is_it) else { panic!("{from:?} is asked to cancel {id}") };
        let request = requests.remove(at);
        if matches!(from, Party::Client(_)) {
            self.question_ends(now, &request);
        }
        let requests = if matches!(from, Party::Worker(_)) { &mut self.to_workers } else { &mut self.to_clients };
        requests.insert(at, request);
        let request = &mut requests[at];
        assert!(request.asker.is_some() && request.cancelled.is_none(), "it was given up before: {request:?}");
        (request.cancelled, request.given_up) = (Some((now, false)), true);
        // A worker that was asked to stop gets no error for it.
        if let Some(Party::Worker(worker)) = request.asker
            && !self.workers[worker].takes
        {
            request.asker = None;
            request.orphaned = Some(now);
        }
    }

    /// A worker's question was answered with an error, since it took its client too long, or the request that it belongs
    /// to was given up.
    fn gave_up_question(&mut self, now: Moment, to: Party, id: &str, reason: Reason) {
        assert_eq!(reason, Reason::Timeout, "a question was given up");
        let is_it = |request: &Request| request.asker == Some(to) && request.token == id;
        // Of several with the same id it is one that was withdrawn just now.
        let withdrawn = self.to_clients.iter().position(|request| is_it(request) && request.cancelled.is_some());
        let found = withdrawn.or_else(|| self.to_clients.iter().position(is_it));
        let Some(found) = found else { panic!("{to:?} got {reason:?} about {id}, which is not pending") };
        let question = self.to_clients.remove(found);
        self.question_ends(now, &question);
        self.to_clients.insert(found, question);
        let request = &mut self.to_clients[found];
        let Party::Worker(worker) = to else { panic!("{to:?} asks clients") };
        let is_overdue = request.expires_first.is_some_and(|at| at <= now);
        assert!(is_overdue || self.step.has_given_up(worker), "too early: {request:?}");
        request.asker = None;
        request.orphaned = Some(now);
        request.cancelled.get_or_insert((now, false));
        request.given_up = true;
        self.count(reason);
    }

    /// A pending request was answered with an error.
    pub(super) fn gave_up(&mut self, now: Moment, to: Party, id: &str, reason: Reason, is_replaced: bool) {
        if reason == Reason::Cancelled {
            let may_leave = |it: &Request| Self::may_leave_at(it).is_some_and(|at| at <= now);
            let is_it =
                |it: &Request| it.asker == Some(to) && it.token == id && it.cancelled.is_some_and(|(_, loud)| loud);
            let waited = self.to_workers.iter().position(|it| is_it(it) && may_leave(it));
            if let Some(at) = waited.filter(|_| !self.step.owes_cancelled(to, id)) {
                let request = self.to_workers.remove(at);
                self.leaves(now, request);
            }
            self.step.notify_cancelled(to, id);
            return self.count(reason);
        }
        if matches!(to, Party::Worker(_)) {
            return self.gave_up_question(now, to, id, reason);
        }
        // Of several with the same id a shutdown ends a subscription first.
        let lines = &self.lines;
        let is_it = |request: &Request| request.asker == Some(to) && request.token == id;
        let ends_first =
            |request: &Request| is_it(request) && lines[request.line].listens() && request.cancelled.is_none();
        // One that times out was withdrawn just before.
        let is_overdue =
            |request: &Request| request.expires_first.is_some_and(|at| at <= now) || self.is_silent(request, now);
        let is_withdrawn =
            |request: &Request| is_it(request) && request.cancelled == Some((now, false)) && is_overdue(request);
        let first = match reason {
            Reason::ShuttingDown => self.to_workers.iter().position(ends_first),
            // A worker that reads nothing any more was not notified.
            Reason::Timeout => {
                let is_late = |request: &Request| is_it(request) && request.cancelled.is_none() && is_overdue(request);
                let withdrawn = self.to_workers.iter().position(is_withdrawn);
                withdrawn.or_else(|| self.to_workers.iter().position(is_late))
            }
            _ => None,
        };
        let found = first.or_else(|| self.to_workers.iter().position(is_it));
        let Some(found) = found else { panic!("{to:?} got {reason:?} about {id}, which is not pending") };
        let is_overdue = is_overdue(&self.to_workers[found]);
        let request = &mut self.to_workers[found];
        request.asker = None;
        request.orphaned = Some(now);
        let Party::Worker(worker) = request.answerer else { panic!("{request:?}") };
        match reason {
            Reason::Timeout => {
                let Party::Client(client) = to else { panic!("{to:?} waits for a client") };
                assert!(is_overdue || self.clients[client].half_closed, "too early: {request:?}");
                // One that its client has withdrawn before leaves when it would have left without this.
                let was_withdrawn = request.cancelled.is_some_and(|(at, _)| at < now);
                let stays_asked = self.clients[client].half_closed && self.workers[worker].takes;
                if is_overdue && !stays_asked && !was_withdrawn {
                    request.cancelled.get_or_insert((now, false));
                    request.given_up = true;
                }
                self.step.note_given_up(worker);
            }
            Reason::RequestLost => {
                assert!(!self.drain.has_refused());
                self.step.note_timeout(worker);
                self.workers[worker].has_lost_request = true;
                if !is_replaced {
                    self.slots.blame(worker, to);
                }
            }
            // Its worker could not be started, and it was not delivered: nobody is to blame.
            Reason::NoWorker => {
                assert!(!self.drain.has_refused() && !self.workers[worker].ran);
                self.step.note_timeout(worker);
            }
            Reason::ShuttingDown => {
                assert!(self.drain.is_refusing() || self.drain.is_quiescing(), "{request:?} might have been answered");
                if self.drain.is_refusing() {
                    self.step.note_timeout(worker);
                }
            }
            Reason::RequestDiscarded | Reason::MemoryLimit | Reason::ListenerRemoved => {
                let Party::Client(client) = to else { panic!("{to:?} waits for a client") };
                self.step.note_dropped(client, reason);
            }
            _ => panic!("a request was given up for {reason:?}"),
        }
        self.count(reason);
    }

    /// When a cancelled or orphaned request frees its slot.
    fn leaves_at(request: &Request) -> Option<Moment> {
        let round = |at: Moment| Moment(at.0.next_multiple_of(SLOT_ROUND.as_nanos() as u64));
        if let Some((at, _)) = request.cancelled {
            let due = round(at.after(SLOT_KEPT));
            let expires = request.expires.filter(|_| !request.given_up);
            return Some(expires.map_or(due, |expires| expires.min(due)));
        }
        request.orphaned.map(|at| round(at.after(SLOT_KEPT)))
    }

    /// When it may do so at the earliest: since when the bus counts the time of a request that had to wait is not known.
    fn may_leave_at(request: &Request) -> Option<Moment> {
        let at = Self::leaves_at(request)?;
        let may_wait = request.cancelled.is_some() && !request.given_up;
        Some(request.expires_first.filter(|_| may_wait).map_or(at, |first| first.min(at)))
    }

    /// Whether it was cancelled, gets no answer, and its time may be over: the bus may have let it go just before.
    pub(super) fn may_have_left(request: &Request, now: Moment) -> bool {
        let is_silent = request.cancelled.is_some_and(|(_, loud)| !loud);
        is_silent && Self::may_leave_at(request).is_some_and(|at| at <= now)
    }

    /// Cancelled and orphaned requests free their slots. Their answers may still arrive, so their ids are not sent to
    /// their workers again until then.
    pub fn leave_slots(&mut self, now: Moment) {
        let stays =
            |request: &Request| request.cancelled.is_none() || Self::leaves_at(request).is_none_or(|at| at > now);
        let (stay, leave): (_, Vec<_>) = std::mem::take(&mut self.to_workers).into_iter().partition(stays);
        self.to_workers = stay;
        let (stay, questions): (_, Vec<_>) = std::mem::take(&mut self.to_clients).into_iter().partition(stays);
        self.to_clients = stay;
        for request in leave.into_iter().chain(questions) {
            self.leaves(now, request);
        }
        self.let_go();
    }

    /// The bus has reported a cancelled request of a client.
    pub fn reports_cancelled(&mut self, client: usize) {
        self.step.note_cancelled(client);
    }

    /// This many orphaned requests have freed their slots. The bus may leave them their slots until it needs one. What it
    /// has reported is chosen first, and then that of which it has fewer under this id.
    pub(super) fn orphans_leave(&mut self, now: Moment, how_many: usize, has: impl Fn(&str) -> usize) {
        let reported = self.step.take_reported();
        let was_reported = |asker: Option<Party>| reported.iter().any(|client| asker == Some(Party::Client(*client)));
        for _ in 0..how_many {
            let is_silent = |it: &Request| it.asker.is_none() || it.cancelled.is_some_and(|(_, loud)| !loud);
            let due = |request: &Request| Self::may_leave_at(request).filter(|at| *at <= now && is_silent(request));
            let stays = |request: &Request| {
                let same = self.to_workers.iter().chain(&self.to_clients).filter(|it| it.token == request.token);
                has(&request.token) >= same.count()
            };
            let rank = |request: &Request| {
                let due = due(request)?;
                Some((!was_reported(request.asker), stays(request), due))
            };
            let first = self.to_workers.iter().enumerate().filter_map(|(at, request)| Some((rank(request)?, at))).min();
            let Some((_, at)) = first else { return };
            let request = self.to_workers.remove(at);
            self.leaves(now, request);
        }
        self.let_go();
    }

    pub(super) fn leaves(&mut self, now: Moment, request: Request) {
        if let Party::Worker(worker) = request.answerer {
            let creates = self.lines[request.line].creates();
            let at = &mut self.workers[worker];
            at.fresh |= !at.retired.add(&request.wire, request.progress.as_ref().map(|token| &token.wire));
            at.may_create |= creates;
            if creates {
                self.ends_early(worker, None);
            }
        }
        if let Party::Client(client) = request.answerer {
            self.question_ends(now, &request);
            let at = &mut self.clients[client];
            at.fresh |= !at.retired.add(&request.wire, request.progress.as_ref().map(|token| &token.wire));
            return;
        }
        // The worker may still load it.
        if matches!(self.lines[request.line].method, "session/load" | "session/resume") {
            self.is_loaded(&request.sessions);
            for session in self.sessions.iter_mut().filter(|at| request.sessions.contains(&at.serial)) {
                session.lent |= session.rank == Rank::Claimed;
            }
        }
        let loud = request.cancelled.is_some_and(|(_, loud)| loud);
        match request.asker {
            Some(asker) if loud => self.step.owe_cancelled(asker, request.token),
            Some(_) => self.count(Reason::Cancelled),
            None => {}
        }
    }

    /// A client will answer nothing more.
    pub fn leave_unanswered(&mut self, now: Moment, client: usize) {
        let (unanswered, rest) = std::mem::take(&mut self.to_clients)
            .into_iter()
            .partition(|request| request.answerer == Party::Client(client));
        self.to_clients = rest;
        for request in unanswered {
            let Some(worker) = request.asker else { continue };
            assert!(!self.is_there(worker), "{worker:?} still waits for {request:?}");
            self.question_ends(now, &request);
            self.count(Reason::ClientLeft);
        }
    }

    /// Panics if a request is overdue and its asker still waits.
    pub fn check_overdue(&self, now: Moment) {
        let all = self.to_workers.iter().chain(&self.to_clients);
        for request in all.filter(|request| request.asker.is_some() && request.cancelled.is_none()) {
            assert!(request.expires.is_none_or(|expires| expires > now), "it is overdue: {request:?}");
            assert!(!self.is_certainly_silent(request, now), "nothing is said about it: {request:?}");
        }
    }

    /// Whether a client waits for the answer to a request, or for an error in its place.
    pub fn is_awaiting(&self, client: usize) -> bool {
        self.to_workers.iter().any(|request| request.asker == Some(Party::Client(client)))
    }

    /// How many requests of clients wait for an answer or an error that their client would get.
    pub fn asked_by_clients(&self) -> usize {
        self.to_workers.iter().filter(|request| request.asker.is_some()).count()
    }
}

/// The id that the answerer sees: a new one, never used before, if it knows this one already, if parsers read this one
/// differently, if it may be answered by mistake (`fresh`), and if another asker has used it.
fn translated(
    mut request: Request,
    line: &Line,
    ids: &Ids,
    pending: &[Request],
    owners: &mut BTreeMap<Party, Owners>,
    made: &mut BTreeSet<(Party, u64)>,
    [fresh, is_late]: [bool; 2],
) -> Request {
    let token = line.ids.id.clone().expect("a request has an id");
    let seen = ids.id.clone().expect("an id arrives");
    request.wire = meaning(&seen);
    let known = |id: &str| pending.iter().any(|other| other.answerer == request.answerer && other.wire == id);
    let asker = request.asker.expect("it was just asked");
    let owners = owners.entry(request.answerer).or_default();
    request.replaced = fresh || !is_plain(&token) || known(&meaning(&token)) || !owners.may_use(asker, &token);
    if request.replaced {
        let number: u64 = seen.trim_matches('"').parse().unwrap_or_default();
        assert!(MADE.contains(&number), "the id {token} was replaced by {seen}: {line:?}");
        assert!(made.insert((request.answerer, number)), "the id {seen} was made twice: {line:?}");
        assert_eq!(seen.starts_with('"'), token.starts_with('"'), "the type of an id changed");
    } else {
        assert_eq!(seen, token, "an id was changed without need");
    }
    if let (Some(token), Some(seen_token)) = (&line.ids.token, &ids.token) {
        let follows = request.replaced && line.ids.id.as_deref().map(meaning) == Some(meaning(token));
        let is_known = |other: &Request| {
            let has = other.progress.as_ref().is_some_and(|other| other.wire == meaning(token));
            has && other.answerer == request.answerer
        };
        let replaced =
            follows || is_late || !is_plain(token) || pending.iter().any(is_known) || !owners.may_use(asker, token);
        if follows {
            assert_eq!(*seen_token, seen, "a token belongs to the id that it is: {line:?}");
        } else if replaced {
            let number: u64 = seen_token.trim_matches('"').parse().unwrap_or_default();
            assert!(MADE.contains(&number), "the token {token} was replaced by {seen_token}: {line:?}");
            assert!(made.insert((request.answerer, number)), "the token {seen_token} was made twice: {line:?}");
            assert_eq!(seen_token.starts_with('"'), token.starts_with('"'), "the type of a token changed");
        } else {
            assert_eq!(seen_token, token, "a token was changed without need: {line:?}");
        }
        request.progress = Some(Token { wire: meaning(seen_token), token: token.clone(), replaced });
    }
    request.token = token;
    request
}

/// The asker's token under which a message refers to a request.
fn asker_token<'a>(request: &'a Request, line: &'a Line) -> Option<&'a String> {
    let token = request.progress.as_ref().filter(|token| token.replaced);
    match (&line.ids.progress, &line.ids.subscription) {
        (Some(progress), _) => Some(token.map_or(progress, |token| &token.token)),
        (_, Some(_)) if request.replaced => Some(&request.token),
        (_, subscription) => subscription.as_ref(),
    }
}
