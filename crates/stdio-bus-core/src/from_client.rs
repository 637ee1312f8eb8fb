//! The way of a line from a client to a worker (spec 6.1, 6.2; decisions 1 to 7).
//!
//! Invariant: a line is queued for exactly one worker, or its loss is reported, and a lost request is answered. A
//! session or request that a line names belongs to its sender, or to nobody.
use alloc::borrow::Cow;
use alloc::format;

use ndjson_scan::{Line, Span, Window};

use super::id::View;
use super::message::{Edit, Edits, Kind, Refusal, Verb, kind, print_of, request_id, session_name, verb};
use super::peer::{ClientKey, Peer, RequestKey, SessionKey, Text, WorkerKey};
use super::pending::{Direction, NewRequest, Request, SessionEffect};
use super::report::Reason;
use super::sessions::{self, Asked, Rank, Session};
use super::settings::{Assignment, MAX_SESSION_ID_LEN, SessionAccess};
use super::{Bus, Flow};

/// A session that a message names.
enum Named<'a> {
    /// None, or one that it does not use.
    None,
    /// One that its sender owns.
    Known(SessionKey),
    /// Nobody has one of this name yet.
    New(Cow<'a, [u8]>),
    /// The same, and the sender asks the worker for it.
    Asked(Cow<'a, [u8]>),
    /// Its owner has left, and the sender asks the worker for it.
    Held(SessionKey),
    /// That of another connection of the same name, which the sender takes over.
    Taken(SessionKey),
    /// Somebody else's, or nobody's, where everybody may use every session.
    Shared(SessionKey),
}

/// Where a message goes, and in which sessions.
struct Route<'a> {
    worker: WorkerKey,
    session: Named<'a>,
    /// The one in its params, where another one stands at top level.
    second_session: Named<'a>,
    /// The request that it cancels.
    cancels: Option<RequestKey>,
}

/// Whose a session is that was looked for on the workers of a group.
enum Found {
    /// The client's own.
    Own(WorkerKey, SessionKey),
    /// Somebody else's.
    Foreign(WorkerKey, SessionKey),
    /// Nobody's, since its owner has left.
    Held(WorkerKey, SessionKey),
    /// There is none.
    Nowhere,
}

/// Sessions that a message is in now, and whether it was the first to name them.
#[derive(Clone, Copy, Default)]
struct Entered {
    session: Option<SessionKey>,
    is_new: bool,
}

impl Bus {
    /// A line from a client.
    pub(super) fn client_line(&mut self, client: ClientKey, window: Window<'_>, line: &Line) -> Flow {
        if line.has(Line::ID_INVALID) {
            return self.invalid_id(Peer::Client(client));
        }
        let flow = match kind(line) {
            Kind::Response => self.client_response(client, window, line),
            Kind::Request | Kind::Notification => self.client_message(client, window, line),
        };
        if matches!(flow, Flow::Next | Flow::Penalised) {
            self.out.stats.lines_from_clients += 1;
        }
        flow
    }

    fn client_message(&mut self, client: ClientKey, window: Window<'_>, line: &Line) -> Flow {
        // What belongs to a pending request may still pass: its cancellation, notifications of its session.
        if self.shutdown.refuses_requests() && (self.shutdown.stops_workers() || kind(line) == Kind::Request) {
            let refusal = Refusal(Reason::ShuttingDown, "the daemon is shutting down".into());
            return self.refuse(client.into(), window, line, refusal);
        }
        let id = match request_id(window, line) {
            Ok(id) => id,
            Err(refusal) => return self.refuse(client.into(), window, line, refusal),
        };
        let verb = match verb(window, line) {
            // Without an answer nothing is given away.
            verb if verb.asks_for_session() && id.is_none() => Verb::Other,
            verb => verb,
        };
        let route = match self.route_of(client, window, line, verb) {
            Ok(route) => route,
            Err(Refusal(Reason::NoWorker, _)) if self.await_worker(client, window, line) => return Flow::Blocked,
            Err(refusal) => {
                let cancels_nothing = matches!(verb, Verb::Cancel(_)) && refusal.0 == Reason::UnknownRequest;
                let flow = self.refuse(client.into(), window, line, refusal);
                if cancels_nothing && flow == Flow::Next {
                    self.penalise_refusal(client);
                    return Flow::Penalised;
                }
                return flow;
            }
        };
        let worker = route.worker;
        if let Some((reason, text)) = self.denied_at(worker, window, line) {
            return self.refuse(client.into(), window, line, Refusal(reason, text));
        }
        if self.block_on_worker(client, worker, line.span.len() + 1) {
            return Flow::Blocked;
        }
        let mut edits: Edits = match self.name_requests(client, window, line, &route) {
            Ok(edits) => edits,
            Err(refusal) => return self.refuse(client.into(), window, line, refusal),
        };
        let cancels = route.cancels;
        let taken = if let Named::Taken(session) = route.session { Some(session) } else { None };
        // Only a message that is delivered makes a session: one that waits or is refused leaves nothing behind.
        let entered = match self.use_sessions(client, route.worker, route.session, route.second_session) {
            Ok(entered) => entered,
            Err(refusal) => return self.refuse(client.into(), window, line, refusal),
        };
        match self.record(client, worker, window, line, id.as_ref(), verb, entered) {
            Ok(edit) => edits[0] = edit.map(|with| Edit { at: line.id, with }),
            Err(refusal) => return self.refuse(client.into(), window, line, refusal),
        }
        // Nor does it take one from anybody.
        if let Some(session) = taken {
            self.take_session_over(session, client);
        }
        self.forward(Peer::Worker(worker), line, &mut edits);
        if let (Verb::Cancel(how), Some(key)) = (verb, cancels) {
            let due = self.pending.cancel(self.now, key, how);
            self.wake_requests_at(due);
        }
        Flow::Next
    }

    /// Records a request, if the line is one. Gives the token to replace its id with, if it may not pass.
    #[allow(clippy::too_many_arguments)]
    fn record(
        &mut self,
        client: ClientKey,
        worker: WorkerKey,
        window: Window<'_>,
        line: &Line,
        id: Option<&View<'_>>,
        verb: Verb,
        entered: [Entered; 2],
    ) -> Result<Option<Text>, Refusal> {
        let Some(id) = id else {
            self.note_audience(worker, client);
            return Ok(None);
        };
        let request = NewRequest {
            client,
            worker,
            direction: Direction::ToWorkers,
            session: entered[0].session,
            second_session: entered[1].session,
            session_on_top: line.session.len() > 2,
            effect: SessionEffect {
                creates: matches!(verb, Verb::New | Verb::Fork),
                loads: verb == Verb::Load,
                ends: verb == Verb::Close,
            },
            expires: self
                .workers
                .get(worker)
                .and_then(|worker| worker.request_timeout)
                .map(|timeout| self.now.after(timeout)),
            print: print_of(window, line),
        };
        let recorded = self.ask(&request, id, window.get(line.id));
        if recorded.is_err() {
            for entered in entered.iter().filter(|entered| entered.is_new) {
                entered.session.into_iter().for_each(|session| self.unclaim_session(session));
            }
        }
        recorded
    }

    /// Where a message goes. Nothing is changed by it but whose turn it is.
    fn route_of<'a>(
        &mut self,
        client: ClientKey,
        window: Window<'a>,
        line: &Line,
        verb: Verb,
    ) -> Result<Route<'a>, Refusal> {
        if matches!(verb, Verb::Cancel(_)) {
            return self.route_of_cancellation(client, window, line);
        }
        let top = session_name(window, line.session);
        let inner = session_name(window, line.params_session);
        if [&top, &inner].into_iter().flatten().any(|name| name.len() > MAX_SESSION_ID_LEN) {
            let text = format!("the sessionId is longer than {MAX_SESSION_ID_LEN} bytes");
            return Err(Refusal(Reason::SessionIdTooLong, text));
        }
        let (worker, session) = match (&top, &inner) {
            (Some(name), _) => self.worker_for_session(client, window, line, verb, name.clone(), inner.as_deref())?,
            (None, Some(name)) => self.worker_for_session(client, window, line, verb, name.clone(), None)?,
            (None, None) => {
                let group = self.group_of_line(client, window, line);
                let picked = group.and_then(|group| self.pick_worker_for_line(client, group, window, line));
                (picked.map_err(|(reason, text)| Refusal(reason, text))?, Named::None)
            }
        };
        let second_session = match (&top, &inner) {
            (Some(top), Some(inner)) if top != inner => self.second_session(client, worker, verb, inner.clone())?,
            _ => Named::None,
        };
        let takes_inner = matches!(session, Named::Taken(_)) && (top.is_none() || top == inner);
        if let Some(inner) = inner.as_ref().filter(|_| !takes_inner) {
            self.refuse_unissued(client, worker, verb, inner)?;
        }
        for named in [&session, &second_session] {
            self.refuse_lent(worker, verb, named)?;
        }
        for name in [&top, &inner].into_iter().flatten() {
            if self.is_kept_from(client, worker, || self.sessions.of_worker(worker, name), name, verb) {
                return Err(Self::denied());
            }
        }
        Ok(Route { worker, session, second_session, cancels: None })
    }

    /// A cancellation goes to whoever works on the request, and to nobody when the answer is out already, or it is
    /// somebody else's.
    fn route_of_cancellation<'a>(
        &mut self,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
    ) -> Result<Route<'a>, Refusal> {
        let unknown = || Refusal(Reason::UnknownRequest, "it names no pending request of this connection".into());
        let key = self.request_cancelled(client, window, line).ok_or_else(unknown)?;
        let Some(Peer::Worker(worker)) = self.pending.get(key).map(Request::answerer) else {
            return Err(unknown());
        };
        if !self.worker_takes_messages(worker) {
            return Err(unknown());
        }
        // Nobody else's sessions are in reach of a worker that serves this client alone.
        if self.settings.routing.session_access == SessionAccess::Owner && !self.has_owner(worker) {
            for (span, on_top) in [(line.session, true), (line.params_session, false)] {
                let Some(name) = session_name(window, span) else { continue };
                match self.sessions.of_worker(worker, &name).and_then(|key| self.sessions.get(key)) {
                    Some(session) if session.client != Some(client) => return Err(Self::denied()),
                    None if !on_top => self.refuse_guess(worker, Verb::Other)?,
                    _ => {}
                }
            }
        }
        Ok(Route { worker, session: Named::None, second_session: Named::None, cancels: Some(key) })
    }

    /// The request of its sender that a cancellation names.
    fn request_cancelled(&mut self, client: ClientKey, window: Window<'_>, line: &Line) -> Option<RequestKey> {
        let mut named = [line.request_id, line.params_id].into_iter().filter(|span| span.is_some());
        let mut target = |span: Span| self.request_named(Peer::Client(client), window.get(span));
        let key = named.next().and_then(&mut target)?;
        named.all(|span| target(span) == Some(key)).then_some(key)
    }

    /// The worker of the session `name`, or the one that it is to be made on if nobody has it (spec 6.1, decision 3).
    /// `inner` is what stands in the params if `name` stands at top level.
    #[allow(clippy::too_many_arguments)]
    fn worker_for_session<'a>(
        &mut self,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
        verb: Verb,
        name: Cow<'a, [u8]>,
        inner: Option<&[u8]>,
    ) -> Result<(WorkerKey, Named<'a>), Refusal> {
        if !line.pool.is_some()
            && let Some(key) = self.session_of_client(client, &name)
            && let Some(session) = self.sessions.touch(key, self.now)
        {
            let worker = session.worker;
            return self.usable(worker).map(|worker| (worker, Named::Known(key)));
        }
        self.refuse_lost(client, &name, verb)?;
        let refusal = |(reason, text)| Refusal(reason, text);
        let group = self.group_of_line(client, window, line).map_err(refusal)?;
        if self.groups[group].assignment == Assignment::Dedicated {
            // Its process serves no other client, so no other client's sessions are in reach.
            let worker = self.pick_worker_for_line(client, group, window, line).map_err(refusal)?;
            let known = self.sessions.of_worker(worker, &name);
            let is_held = |key: &SessionKey| self.sessions.get(*key).is_some_and(|session| session.client.is_none());
            let session = match known {
                // A late answer gave it out.
                Some(session) if verb == Verb::Load && is_held(&session) => Named::Held(session),
                Some(session) => Named::Known(session),
                None => Self::new_name(verb, name, inner),
            };
            return Ok((worker, session));
        }
        let is_shared = self.settings.routing.session_access == SessionAccess::Shared;
        match self.session_in_group(client, group, &name) {
            Found::Own(worker, key) => return self.usable(worker).map(|worker| (worker, Named::Known(key))),
            Found::Foreign(worker, key) | Found::Held(worker, key) if is_shared => {
                return self.usable(worker).map(|worker| (worker, Named::Shared(key)));
            }
            Found::Foreign(worker, key)
                if verb != Verb::Fork && self.may_take_over(key, client, verb == Verb::Load) =>
            {
                return self.usable(worker).map(|worker| (worker, Named::Taken(key)));
            }
            Found::Foreign(..) => return Err(Self::denied()),
            // What is loaded is the session in the params.
            Found::Held(..) if inner.is_some_and(|inner| *inner != *name) => return Err(Self::denied()),
            Found::Held(worker, key) => {
                let named = match verb {
                    Verb::Load => Named::Held(key),
                    Verb::Fork => Named::None,
                    _ => return Err(Self::denied()),
                };
                return self.usable(worker).map(|worker| (worker, named));
            }
            Found::Nowhere => {}
        }
        // A name at top level that is new joins the session in the params.
        let known = inner.filter(|_| !line.pool.is_some()).and_then(|inner| self.session_of_client(client, inner));
        let worker = match known.and_then(|key| self.sessions.get(key)).map(|session| session.worker) {
            // It may be outside of the group, where nobody has looked yet.
            Some(worker) => match self.sessions.of_worker(worker, &name) {
                Some(key) if is_shared => return self.usable(worker).map(|worker| (worker, Named::Shared(key))),
                Some(_) => return Err(Self::denied()),
                None => self.usable(worker)?,
            },
            None => self.pick_worker_for_line(client, group, window, line).map_err(refusal)?,
        };
        Ok((worker, Self::new_name(verb, name, inner)))
    }

    /// What becomes of a name that nobody has. What is loaded is the one in the params, `inner`, if there are two.
    fn new_name<'a>(verb: Verb, name: Cow<'a, [u8]>, inner: Option<&[u8]>) -> Named<'a> {
        match verb {
            Verb::Fork => Named::None,
            Verb::Load if inner.is_none_or(|inner| *inner == *name) => Named::Asked(name),
            _ => Named::New(name),
        }
    }

    /// The session `name` on the workers of a group: the client's own first, then one of somebody else, then a held one;
    /// of several the one whose worker comes first.
    fn session_in_group(&self, client: ClientKey, group: usize, name: &[u8]) -> Found {
        let found = self.sessions.of_name(name).filter_map(|(key, session)| {
            let place = self.place_in_group(group, session.worker)?;
            let (order, found) = match session.client {
                Some(owner) if owner == client => (0, Found::Own(session.worker, key)),
                Some(_) => (1, Found::Foreign(session.worker, key)),
                None => (2, Found::Held(session.worker, key)),
            };
            Some(((order, place), found))
        });
        found.min_by_key(|(order, _)| *order).map_or(Found::Nowhere, |(_, found)| found)
    }

    /// The session in the params of a message that another one leads: its sender's own, or nobody's.
    fn second_session<'a>(
        &mut self,
        client: ClientKey,
        worker: WorkerKey,
        verb: Verb,
        name: Cow<'a, [u8]>,
    ) -> Result<Named<'a>, Refusal> {
        let known = self.sessions.of_worker(worker, &name);
        let owner = known.and_then(|key| self.sessions.get(key)).and_then(|session| session.client);
        if let Some(key) = known.filter(|_| owner == Some(client)) {
            return Ok(Named::Known(key));
        }
        self.refuse_lost(client, &name, verb)?;
        let is_its_own = self.has_owner(worker);
        let Some(key) = known else {
            return Ok(if is_its_own { Named::None } else { Self::new_name(verb, name, None) });
        };
        match owner {
            _ if self.settings.routing.session_access == SessionAccess::Shared => Ok(Named::Shared(key)),
            // A name that a late answer gave out is held, and there is nobody to hold it from.
            _ if is_its_own => Ok(Named::Known(key)),
            None if verb == Verb::Load => Ok(Named::Held(key)),
            None if verb == Verb::Fork => Ok(Named::None),
            _ => Err(Self::denied()),
        }
    }

    /// A session that went with its worker is an error for its old owner, unless it asks a worker for it.
    fn refuse_lost(&mut self, client: ClientKey, name: &[u8], verb: Verb) -> Result<(), Refusal> {
        let Some(client) = self.clients.get_mut(client).filter(|client| client.lost.has(name)) else { return Ok(()) };
        if verb.asks_for_session() {
            client.lost.forget(name);
            return Ok(());
        }
        let text = "this session is gone: its worker has ended, or it was not used for long; session/load or session/resume \
                    asks for it again";
        Err(Refusal(Reason::SessionLost, text.into()))
    }

    /// Where workers give out the names of their sessions, a name that was not given to this client is a guess.
    fn refuse_guess(&self, worker: WorkerKey, verb: Verb) -> Result<(), Refusal> {
        let is_guess = !verb.asks_for_session()
            && self.settings.routing.session_access == SessionAccess::Owner
            && self.issues_names(worker);
        if is_guess { Err(Self::denied()) } else { Ok(()) }
    }

    /// The session in the params is the one that a worker reads: where workers give out names it has to be one that was
    /// given to this client. A claimed name is none, though it decides where a message goes.
    fn refuse_unissued(&self, client: ClientKey, worker: WorkerKey, verb: Verb, name: &[u8]) -> Result<(), Refusal> {
        let session = self.sessions.of_worker(worker, name).and_then(|key| self.sessions.get(key));
        match session {
            Some(session) if session.client == Some(client) && session.rank == Rank::Issued => Ok(()),
            _ => self.refuse_guess(worker, verb),
        }
    }

    /// A session that a client has asked a shared worker to load is not its own before the worker has answered.
    fn refuse_lent(&self, worker: WorkerKey, verb: Verb, named: &Named<'_>) -> Result<(), Refusal> {
        let Named::Known(key) = named else { return Ok(()) };
        let waits = |session: &Session| session.asked != Asked::No && session.rank < Rank::Issued;
        let may_not = !self.has_owner(worker)
            && !verb.asks_for_session()
            && self.settings.routing.session_access == SessionAccess::Owner
            && self.sessions.get(*key).is_some_and(waits);
        if may_not { Err(Self::denied()) } else { Ok(()) }
    }

    /// Whether a worker serves one client alone.
    fn has_owner(&self, worker: WorkerKey) -> bool {
        self.workers.get(worker).is_some_and(|worker| worker.owner.is_some())
    }

    fn usable(&self, worker: WorkerKey) -> Result<WorkerKey, Refusal> {
        if self.worker_takes_messages(worker) {
            Ok(worker)
        } else {
            Err(Refusal(Reason::RequestLost, "the worker of this session has exited or is stopping".into()))
        }
    }

    /// Makes the sessions of a message that is about to be delivered.
    fn use_sessions(
        &mut self,
        client: ClientKey,
        worker: WorkerKey,
        first: Named<'_>,
        second: Named<'_>,
    ) -> Result<[Entered; 2], Refusal> {
        let first = self.use_session(client, worker, first)?;
        match self.use_session(client, worker, second) {
            Ok(second) => Ok([first, second]),
            Err(refusal) => {
                first.session.filter(|_| first.is_new).into_iter().for_each(|session| self.unclaim_session(session));
                Err(refusal)
            }
        }
    }

    fn use_session(&mut self, client: ClientKey, worker: WorkerKey, named: Named<'_>) -> Result<Entered, Refusal> {
        let full = || Refusal(Reason::SessionLimit, sessions::FULL.into());
        match named {
            Named::None => Ok(Entered::default()),
            // One that is taken over changes hands when the message is recorded.
            Named::Known(key) | Named::Taken(key) => {
                self.sessions.touch(key, self.now);
                Ok(Entered { session: Some(key), is_new: false })
            }
            // That keeps a claim alive, and makes the request none of its owner's.
            Named::Shared(key) => {
                self.sessions.touch(key, self.now);
                Ok(Entered::default())
            }
            Named::New(ref name) | Named::Asked(ref name) => {
                let session = self.claim_session(client, worker, name);
                match session {
                    Some(key) if matches!(named, Named::Asked(_)) => self.sessions.mark_asked(key),
                    // The worker of one client alone does without.
                    None if !self.has_owner(worker) => return Err(full()),
                    _ => {}
                }
                Ok(Entered { session, is_new: true })
            }
            Named::Held(key) if self.lend_session(client, key) => Ok(Entered { session: Some(key), is_new: true }),
            Named::Held(key) if self.has_owner(worker) => Ok(Entered { session: Some(key), is_new: false }),
            Named::Held(_) => Err(full()),
        }
    }

    /// What a message names other requests by, as the worker knows them. What would hit a request of somebody else is
    /// refused.
    fn name_requests(
        &mut self,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
        route: &Route<'_>,
    ) -> Result<Edits, Refusal> {
        if let Some(request) = route.cancels {
            let edit = |span: Span| {
                let with = self.pending.wire_token(request).filter(|_| span.is_some());
                with.map(|with| Edit { at: span, with })
            };
            return Ok([None, edit(line.request_id), edit(line.params_id)]);
        }
        if !line.request_id.is_some() {
            return Ok([None, None, None]);
        }
        let token = window.get(line.request_id);
        let answerer = Peer::Worker(route.worker);
        let own = self.request_named(Peer::Client(client), token);
        let is_there = |key: &RequestKey| self.pending.get(*key).is_some_and(|it| it.answerer() == answerer);
        if let Some(request) = own.filter(is_there) {
            let edit = self.pending.wire_token(request).map(|with| Edit { at: line.request_id, with });
            return Ok([None, edit, None]);
        }
        // A name that some parser changes may become that of another client's request.
        let is_safe = View::parse(token).is_ok_and(|id| id.is_plain() && self.pending.find(answerer, &id).is_none());
        if is_safe {
            Ok([None, None, None])
        } else {
            Err(Refusal(Reason::UnknownRequest, "its requestId is no pending request of this connection".into()))
        }
    }

    /// The answer of a client to a worker's request (decision 5).
    pub(super) fn client_response(&mut self, client: ClientKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Client(client);
        let found = self.answered(from, window, line);
        let Some(key) = found else {
            let text = "no request of a worker is pending under this id";
            self.report_line(Reason::UnknownId, from, window, line, text);
            return Flow::Next;
        };
        let asker = self.pending.get(key).and_then(Request::asker);
        let Some(Peer::Worker(worker)) = asker.filter(|asker| self.takes_messages(*asker)) else {
            self.forget_request(key);
            self.report_line(Reason::LateAnswer, from, window, line, "the worker that asked has gone");
            return Flow::Next;
        };
        if self.block_on_worker(client, worker, line.span.len() + 1) {
            return Flow::Blocked;
        }
        self.note_audience(worker, client);
        self.deliver_answer(key, Peer::Worker(worker), line);
        Flow::Next
    }
}
