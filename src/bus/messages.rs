//! Where each line goes: kinds of messages, sessions, ids, and what happens to a line that can go nowhere
//! (spec 6, design 2.1 to 2.8).
//!
//! Invariant: a line is queued for exactly one receiver, or its loss is reported, and a lost request is answered.

use std::borrow::Cow;

use super::client::Phase;
use super::id::View;
use super::port::{ClientKey, Close, Effect, Moment, Peer, Text, WorkerKey};
use super::report::Reason;
use super::route::{Original, Request, Session};
use super::scan::{Fault, Line, Span, Window, decoded};
use super::settings::{Assignment, IdCollision, MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN, SessionAccess};
use super::table::Key;
use super::{Bus, Flow, reply};

/// An id longer than this is not repeated in the error that refuses it.
const LONGEST_ECHOED_ID: usize = 1024;

/// A piece of a line that is replaced on its way.
struct Edit {
    at: Span,
    with: Text,
}

/// Why a message goes nowhere.
struct Refusal(Reason, String);

/// The session that a message is in.
enum InSession<'a> {
    None,
    Known(Key<Session>),
    /// Nobody has one of this name yet.
    New(Cow<'a, [u8]>),
}

/// What a message is, by its members (design 2.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    Notification,
    Response,
}

/// A line that has an id and neither method nor result nor error is taken for a request: the spec calls everything
/// with an id one (6.2), and leaves the method to the worker (4.3.3).
fn kind(line: &Line) -> Kind {
    let answers = line.flags & (Line::RESULT | Line::ERROR) != 0;
    match (line.method.is_some(), line.id.is_some()) {
        (true, true) => Kind::Request,
        (false, _) if answers => Kind::Response,
        (false, true) => Kind::Request,
        (_, false) => Kind::Notification,
    }
}

/// The id to answer a refused request with.
fn echoed_id<'a>(window: Window<'a>, line: &Line) -> &'a [u8] {
    if line.id.len() <= LONGEST_ECHOED_ID { window.get(line.id) } else { b"null" }
}

fn is_string(window: Window<'_>, span: Span, text: &str) -> bool {
    span.len() == text.len() + 2 && &window.get(span)[1..=text.len()] == text.as_bytes()
}

impl Bus {
    /// A line from a client.
    pub(super) fn client_line(&mut self, now: Moment, client: ClientKey, window: Window<'_>, line: &Line) -> Flow {
        if line.has(Line::ID_INVALID) {
            return self.malformed_text(now, Peer::Client(client), "the id is neither a string, a number nor null");
        }
        let flow = match kind(line) {
            Kind::Response => self.client_response(now, client, window, line),
            Kind::Request | Kind::Notification => self.client_message(now, client, window, line),
        };
        if flow == Flow::Next {
            self.stats.lines_from_clients += 1;
        }
        flow
    }

    fn client_message(&mut self, now: Moment, client: ClientKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Client(client);
        if self.drain.refuses_requests() {
            let refusal = Refusal(Reason::ShuttingDown, "the daemon is shutting down".into());
            return self.refuse(now, client, window, line, refusal);
        }
        let id = match line.id.is_some().then(|| View::parse(window.get(line.id))).transpose() {
            Ok(id) => id,
            Err(_) => {
                let text = format!("the id is longer than {MAX_REQUEST_ID_LEN} bytes");
                return self.refuse(now, client, window, line, Refusal(Reason::IdTooLong, text));
            }
        };
        let named = if id.is_none() && line.request_id.is_some() {
            self.request_named(from, window.get(line.request_id))
        } else {
            None
        };
        let session_span = if line.session.is_some() { line.session } else { line.params_session };
        let (worker, session) = if session_span.is_some() {
            match self.worker_for_session(now, client, window, line, decoded(window.get(session_span))) {
                Ok((worker, session)) => (worker, session),
                Err(refusal) => return self.refuse(now, client, window, line, refusal),
            }
        } else if id.is_none() && line.request_id.is_some() && line.method.is_some() {
            // A cancellation goes to whoever works on the request, and to nobody when the answer is out already.
            match named.and_then(|key| self.to_workers.table.get(key)).map(|request| request.answerer) {
                Some(Peer::Worker(worker)) if self.worker_takes_messages(worker) => (worker, InSession::None),
                _ => return self.names_nothing(now, from),
            }
        } else {
            let picked = self.group_of_line(client, window, line).and_then(|group| self.pick(now, client, group));
            match picked {
                Ok(worker) => (worker, InSession::None),
                Err((reason, text)) => return self.refuse(now, client, window, line, Refusal(reason, text)),
            }
        };
        if let Some((reason, text)) = self.denied_at(worker, window, line) {
            return self.refuse(now, client, window, line, Refusal(reason, text));
        }
        if self.wait_if_full(from, Peer::Worker(worker)) {
            return Flow::Blocked;
        }

        let mut edits = [None, None];
        if id.is_none() && line.request_id.is_some() {
            let named = named.and_then(|key| self.to_workers.table.get(key));
            match named.filter(|request| request.answerer == Peer::Worker(worker)) {
                Some(request) if request.original.is_some() => {
                    edits[1] =
                        Some(Edit { at: line.request_id, with: reply::id_token(&request.wire).as_slice().into() });
                }
                Some(_) => {}
                // As it stands it would cancel the request of another client.
                None if self.is_wire_id(Peer::Worker(worker), window.get(line.request_id)) => {
                    return self.names_nothing(now, from);
                }
                None => {}
            }
        }
        // Only a message that is delivered makes a session: one that waits or is refused leaves nothing behind.
        let (session, made) = match session {
            InSession::None => (None, false),
            InSession::Known(session) => (Some(session), false),
            InSession::New(name) => {
                let session = self.new_session(client, worker, &name);
                // The worker of one client alone does without.
                if session.is_none() && self.workers.get(worker).is_none_or(|worker| worker.owner.is_none()) {
                    let refusal = Refusal(Reason::SessionLimit, "the session table is full".into());
                    return self.refuse(now, client, window, line, refusal);
                }
                (session, true)
            }
        };
        if let Some(id) = id {
            let request = Request {
                asker: Some(from),
                answerer: Peer::Worker(worker),
                wire: id.to_id(),
                original: None,
                session,
                session_on_top: line.session.is_some(),
                ends_session: is_string(window, line.method, "session/close")
                    || is_string(window, line.method, "session/delete"),
                serial: 0,
                expires: self
                    .workers
                    .get(worker)
                    .and_then(|w| self.settings.pools[w.pool].request_timeout)
                    .map(|timeout| now.after(timeout)),
                at_asker: 0,
                at_answerer: 0,
                hash: 0,
            };
            match self.ask(request, window.get(line.id)) {
                Ok(edit) => edits[0] = edit.map(|with| Edit { at: line.id, with }),
                Err(refusal) => {
                    if let Some(session) = session.filter(|_| made) {
                        self.drop_session(session);
                    }
                    return self.refuse(now, client, window, line, refusal);
                }
            }
        }
        self.forward(now, Peer::Worker(worker), line, &edits);
        Flow::Next
    }

    /// A notification is about a request that is not pending.
    fn names_nothing(&mut self, now: Moment, from: Peer) -> Flow {
        self.report(now, Reason::UnknownRequest, Some(from), || {
            "a notification names a request that is not pending any more".into()
        });
        Flow::Next
    }

    /// Whether `answerer` knows a request by this id.
    fn is_wire_id(&self, answerer: Peer, token: &[u8]) -> bool {
        View::parse(token).is_ok_and(|id| self.to_workers.find(answerer, &id).is_some())
    }

    /// The answer of a client to a worker's request (design 2.5).
    fn client_response(&mut self, now: Moment, client: ClientKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Client(client);
        let found = self.answered(from, window, line);
        let Some(key) = found else {
            self.report_line(
                now,
                Reason::UnknownId,
                from,
                window,
                line,
                "no request of a worker is pending under this id",
            );
            return Flow::Next;
        };
        let asker = self.to_clients.table.get(key).and_then(|request| request.asker);
        let Some(worker) = asker.filter(|asker| self.takes_messages(*asker)) else {
            self.forget_request(Direction::ToClients, key);
            self.report_line(now, Reason::LateAnswer, from, window, line, "the worker that asked has gone");
            return Flow::Next;
        };
        if self.wait_if_full(from, worker) {
            return Flow::Blocked;
        }
        let edit = self.settle(Direction::ToClients, key, line);
        self.forward(now, worker, line, &[edit, None]);
        Flow::Next
    }

    /// A line from a worker.
    pub(super) fn worker_line(&mut self, now: Moment, worker: WorkerKey, window: Window<'_>, line: &Line) -> Flow {
        // Some workers send the request back with a result in it: the spec calls that a response (6.3.1).
        let answers = line.flags & (Line::RESULT | Line::ERROR) != 0;
        let flow = if answers {
            self.worker_response(now, worker, window, line)
        } else {
            self.worker_message(now, worker, window, line)
        };
        if flow == Flow::Next {
            self.stats.lines_from_workers += 1;
        }
        flow
    }

    /// An answer to a client's request (spec 6.3.1).
    fn worker_response(&mut self, now: Moment, worker: WorkerKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Worker(worker);
        let Some(key) = self.answered(from, window, line) else {
            self.report_line(now, Reason::UnknownId, from, window, line, "no request is pending under this id");
            return Flow::Next;
        };
        let Some(request) = self.to_workers.table.get(key) else { return Flow::Next };
        let (session, ends_session) = (request.session, request.ends_session);
        let Some(Peer::Client(client)) = request.asker else {
            self.forget_request(Direction::ToWorkers, key);
            self.report_line(now, Reason::LateAnswer, from, window, line, "the client is not waiting any more");
            return Flow::Next;
        };
        if self.wait_if_full(from, Peer::Client(client)) {
            return Flow::Blocked;
        }
        if line.has(Line::RESULT) {
            if let Some(session) = session {
                if ends_session {
                    self.drop_session(session);
                } else if let Some(session) = self.sessions.table.get_mut(session) {
                    session.confirmed = true;
                }
            }
            if line.result_session.is_some()
                && !self.learn_session(now, client, worker, window.get(line.result_session))
            {
                let text = "the session table is full, so the session that the worker made cannot be used";
                self.give_up_request(now, key, Reason::SessionLimit, text);
                self.forget_request(Direction::ToWorkers, key);
                return Flow::Next;
            }
        }
        let edit = self.settle(Direction::ToWorkers, key, line);
        self.forward(now, Peer::Client(client), line, &[edit, None]);
        self.waits_less(now, client);
        Flow::Next
    }

    /// A request or a notification of a worker (spec 6.3.2, design 2.5).
    fn worker_message(&mut self, now: Moment, worker: WorkerKey, window: Window<'_>, line: &Line) -> Flow {
        let from = Peer::Worker(worker);
        let id = match line.id.is_some().then(|| View::parse(window.get(line.id))).transpose() {
            Ok(id) => id,
            Err(_) => {
                let text = format!("the id is longer than {MAX_REQUEST_ID_LEN} bytes");
                return self.refuse_worker(now, worker, window, line, Refusal(Reason::IdTooLong, text));
            }
        };
        // A notification names a request of the worker's own (a cancellation), a request one of the client's.
        let named = line.request_id.is_some().then(|| window.get(line.request_id)).and_then(|token| match id {
            None => self.request_named(from, token),
            Some(_) => View::parse(token).ok().and_then(|id| self.to_workers.find(from, &id)),
        });
        let named_request = named.and_then(|key| match id {
            None => self.to_clients.table.get(key),
            Some(_) => self.to_workers.table.get(key),
        });
        let named_client =
            named_request.and_then(|request| if id.is_none() { Some(request.answerer) } else { request.asker });
        let named_token: Option<Text> = named_request.and_then(|request| match (&id, &request.original) {
            (_, None) => None,
            (None, Some(_)) => Some(reply::id_token(&request.wire).as_slice().into()),
            (Some(_), Some(original)) => Some(original.token.clone()),
        });
        let session_span = if line.session.is_some() { line.session } else { line.params_session };
        let owner = self.workers.get(worker).and_then(|worker| worker.owner).map(Peer::Client);
        let mut session = None;
        let to = if session_span.is_some() {
            session = self.sessions.of_worker(worker, &decoded(window.get(session_span)));
            let found =
                session.and_then(|key| self.sessions.table.get(key)).map(|session| Peer::Client(session.client));
            found.or(owner).ok_or(Reason::UnknownSession)
        } else if line.request_id.is_some() {
            named_client.or(owner).ok_or(Reason::UnknownRequest)
        } else {
            owner.ok_or(Reason::Unroutable)
        };
        // One that has sent its last line can be told things, and asked nothing.
        let last_phase = if id.is_some() { Phase::Open } else { Phase::HalfClosed };
        let to = match to {
            Ok(Peer::Client(client)) if self.clients.get(client).is_some_and(|client| client.phase <= last_phase) => {
                client
            }
            Ok(_) => {
                let refusal = Refusal(Reason::UnknownSession, "the client that owns it is leaving".into());
                return self.refuse_worker(now, worker, window, line, refusal);
            }
            Err(reason) => {
                return self.refuse_worker(now, worker, window, line, Refusal(reason, reason.help().into()));
            }
        };
        if self.wait_if_full(from, Peer::Client(to)) {
            return Flow::Blocked;
        }
        // Another client knows nothing of that request.
        let named_token = named_token.filter(|_| named_client == Some(Peer::Client(to)));
        let mut edits = [None, named_token.map(|with| Edit { at: line.request_id, with })];
        if let Some(id) = id {
            let request = Request {
                asker: Some(from),
                answerer: Peer::Client(to),
                wire: id.to_id(),
                original: None,
                session,
                session_on_top: false,
                ends_session: false,
                serial: 0,
                expires: None,
                at_asker: 0,
                at_answerer: 0,
                hash: 0,
            };
            match self.ask(request, window.get(line.id)) {
                Ok(edit) => edits[0] = edit.map(|with| Edit { at: line.id, with }),
                Err(refusal) => return self.refuse_worker(now, worker, window, line, refusal),
            }
        }
        self.forward(now, Peer::Client(to), line, &edits);
        Flow::Next
    }

    /// The worker of the session `name`, or the one that it is to be made on if nobody has it (spec 6.1, design 2.3).
    fn worker_for_session<'a>(
        &mut self,
        now: Moment,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
        name: Cow<'a, [u8]>,
    ) -> Result<(WorkerKey, InSession<'a>), Refusal> {
        if name.len() > MAX_SESSION_ID_LEN {
            let text = format!("the sessionId is longer than {MAX_SESSION_ID_LEN} bytes");
            return Err(Refusal(Reason::SessionIdTooLong, text));
        }
        if !line.pool.is_some()
            && let Some(key) = self.session_of_client(client, &name)
            && let Some(session) = self.sessions.table.get(key)
        {
            return self.usable(session.worker).map(|worker| (worker, InSession::Known(key)));
        }
        let group = self.group_of_line(client, window, line).map_err(|(reason, text)| Refusal(reason, text))?;
        if self.groups[group].assignment == Assignment::Dedicated {
            // Its process serves no other client, so no other client's sessions are in reach.
            let worker = self.pick(now, client, group).map_err(|(reason, text)| Refusal(reason, text))?;
            let session = self.sessions.of_worker(worker, &name);
            return Ok((worker, session.map_or(InSession::New(name), InSession::Known)));
        }
        let mut foreign = None;
        for worker in self.group_workers(group) {
            let Some(key) = self.sessions.of_worker(worker, &name) else { continue };
            if self.sessions.table.get(key).is_some_and(|session| session.client == client) {
                return self.usable(worker).map(|worker| (worker, InSession::Known(key)));
            }
            foreign = foreign.or(Some(worker));
        }
        if let Some(worker) = foreign {
            return match self.settings.routing.session_access {
                SessionAccess::Shared => self.usable(worker).map(|worker| (worker, InSession::None)),
                SessionAccess::Owner => {
                    Err(Refusal(Reason::SessionDenied, "this session is not available to this connection".into()))
                }
            };
        }
        let worker = self.pick(now, client, group).map_err(|(reason, text)| Refusal(reason, text))?;
        Ok((worker, InSession::New(name)))
    }

    /// The session of this name that a client owns. Most clients have one: that is found without its hash.
    fn session_of_client(&self, client: ClientKey, name: &[u8]) -> Option<Key<Session>> {
        let sessions = &self.clients.get(client)?.end.sessions;
        match sessions.len() {
            0 => None,
            1 => sessions
                .first()
                .filter(|key| self.sessions.table.get(*key).is_some_and(|session| session.name.as_bytes() == name)),
            _ => self.sessions.of_client(client, name),
        }
    }

    fn usable(&self, worker: WorkerKey) -> Result<WorkerKey, Refusal> {
        if self.worker_takes_messages(worker) {
            Ok(worker)
        } else {
            Err(Refusal(Reason::WorkerGone, "the worker of this session has exited or is stopping".into()))
        }
    }

    /// A worker's answer names a session: it belongs to the client that asked. False if there is no room for it.
    fn learn_session(&mut self, now: Moment, client: ClientKey, worker: WorkerKey, token: &[u8]) -> bool {
        let name = decoded(token);
        if name.len() > MAX_SESSION_ID_LEN {
            return true;
        }
        if let Some(key) = self.sessions.of_worker(worker, &name)
            && let Some(session) = self.sessions.table.get_mut(key)
        {
            if session.client == client {
                session.confirmed = true;
                return true;
            }
            if session.confirmed {
                self.report(now, Reason::SessionReused, Some(Peer::Worker(worker)), || {
                    format!("session \"{}\" belongs to another client already", name.escape_ascii())
                });
                return true;
            }
            self.drop_session(key);
        }
        let made = self.new_session(client, worker, &name).and_then(|key| self.sessions.table.get_mut(key));
        made.map(|session| session.confirmed = true).is_some()
    }

    fn new_session(&mut self, client: ClientKey, worker: WorkerKey, name: &[u8]) -> Option<Key<Session>> {
        let key = self.sessions.insert(client, worker, name)?;
        let at_client = self.clients.get_mut(client)?.end.sessions.join(key);
        let at_worker = self.workers.get_mut(worker)?.end.sessions.join(key);
        let session = self.sessions.table.get_mut(key)?;
        session.at_client = at_client;
        session.at_worker = at_worker;
        Some(key)
    }

    /// Forgets a session.
    pub(super) fn drop_session(&mut self, key: Key<Session>) {
        let Some(session) = self.sessions.remove(key) else { return };
        if let Some(client) = self.clients.get_mut(session.client)
            && let Some(moved) = client.end.sessions.leave(session.at_client)
            && let Some(moved) = self.sessions.table.get_mut(moved)
        {
            moved.at_client = session.at_client;
        }
        if let Some(worker) = self.workers.get_mut(session.worker)
            && let Some(moved) = worker.end.sessions.leave(session.at_worker)
            && let Some(moved) = self.sessions.table.get_mut(moved)
        {
            moved.at_worker = session.at_worker;
        }
    }

    /// Records a request. Returns the token to replace its id with, if the answerer knows that id already
    /// (design 2.4).
    fn ask(&mut self, mut request: Request, token: &[u8]) -> Result<Option<Text>, Refusal> {
        let (Some(asker), answerer) = (request.asker, request.answerer) else { return Ok(None) };
        let requests = if matches!(answerer, Peer::Worker(_)) { &mut self.to_workers } else { &mut self.to_clients };
        let mut edit = None;
        request.hash = requests.hash(answerer, &request.wire.view());
        if requests.find_hashed(request.hash, answerer, &request.wire.view()).is_some() {
            if self.settings.routing.id_collision == IdCollision::Reject {
                return Err(Refusal(Reason::IdCollision, "another request with this id is pending".into()));
            }
            let made = requests.make_id(answerer, &request.wire);
            edit = Some(Text::from(reply::id_token(&made).as_slice()));
            request.hash = requests.hash(answerer, &made.view());
            let id = std::mem::replace(&mut request.wire, made);
            request.original = Some(Box::new(Original { id, token: token.into() }));
        }
        let direction = Direction::of(answerer);
        if self.requests(direction).table.is_full() || self.slot_is_kept(direction, asker) {
            let Some(orphan) = self.requests(direction).oldest_orphan() else {
                return Err(Refusal(Reason::PendingLimit, "too many requests are pending".into()));
            };
            self.forget_request(direction, orphan);
        }
        request.serial = self.next_serial;
        self.next_serial += 1;
        let expires = request.expires;
        let Some(key) = self.requests(direction).insert(request) else {
            return Err(Refusal(Reason::PendingLimit, "the table of pending requests is full".into()));
        };
        self.stats.ids_translated += u64::from(edit.is_some());
        if let Some(expires) = expires {
            self.check_at(expires);
        }
        let at_asker = self.endpoint(asker).map(|end| end.asked.join(key));
        let at_answerer = self.endpoint(answerer).map(|end| end.owes.join(key));
        if let Some(request) = self.requests(direction).table.get_mut(key) {
            request.at_asker = at_asker.unwrap_or_default();
            request.at_answerer = at_answerer.unwrap_or_default();
        }
        Ok(edit)
    }

    fn requests(&mut self, direction: Direction) -> &mut super::Requests {
        match direction {
            Direction::ToWorkers => &mut self.to_workers,
            Direction::ToClients => &mut self.to_clients,
        }
    }

    /// The pending request that a response of `from` answers.
    fn answered(&self, from: Peer, window: Window<'_>, line: &Line) -> Option<Key<Request>> {
        let id = View::parse(line.id.is_some().then(|| window.get(line.id))?).ok()?;
        match from {
            Peer::Worker(_) => self.to_workers.find(from, &id),
            Peer::Client(_) => self.to_clients.find(from, &id),
        }
    }

    /// The pending request that `asker` made under the id `token`, looked for among its own: cancellations are rare.
    fn request_named(&self, asker: Peer, token: &[u8]) -> Option<Key<Request>> {
        let id = View::parse(token).ok()?;
        let requests = if matches!(asker, Peer::Client(_)) { &self.to_workers } else { &self.to_clients };
        let asked = &self.peer_end(asker)?.asked;
        asked.iter().find(|key| requests.table.get(*key).is_some_and(|request| *request.asker_id() == id))
    }

    /// Takes an answered request out. Returns the edit that gives the answer its original id.
    fn settle(&mut self, direction: Direction, key: Key<Request>, line: &Line) -> Option<Edit> {
        let original = self.requests(direction).table.get_mut(key)?.original.take();
        self.forget_request(direction, key);
        let original = original?;
        Some(Edit { at: line.id, with: original.token })
    }

    /// Forgets a request, on both its ends.
    pub(super) fn forget_request(&mut self, direction: Direction, key: Key<Request>) {
        self.leave_ends(direction, key);
        self.requests(direction).forget(key);
    }

    /// The same, for one who still needs it.
    pub(super) fn drop_request(&mut self, direction: Direction, key: Key<Request>) -> Option<Request> {
        self.leave_ends(direction, key);
        self.requests(direction).remove(key)
    }

    fn leave_ends(&mut self, direction: Direction, key: Key<Request>) {
        self.leave_asker(direction, key);
        let Some(request) = self.requests(direction).table.get(key) else { return };
        let (answerer, place) = (request.answerer, request.at_answerer);
        let moved = self.endpoint(answerer).and_then(|end| end.owes.leave(place));
        if let Some(moved) = moved.and_then(|moved| self.requests(direction).table.get_mut(moved)) {
            moved.at_answerer = place;
        }
    }

    /// The asker does not wait any more; the id stays taken until the answer comes.
    pub(super) fn orphan_request(&mut self, direction: Direction, key: Key<Request>) {
        self.leave_asker(direction, key);
        if let Some(request) = self.requests(direction).table.get_mut(key) {
            request.asker = None;
            request.expires = None;
            self.requests(direction).orphan(key);
        }
    }

    fn leave_asker(&mut self, direction: Direction, key: Key<Request>) {
        let Some(request) = self.requests(direction).table.get(key) else { return };
        let (Some(asker), place) = (request.asker, request.at_asker) else { return };
        let moved = self.endpoint(asker).and_then(|end| end.asked.leave(place));
        if let Some(moved) = moved.and_then(|moved| self.requests(direction).table.get_mut(moved)) {
            moved.at_asker = place;
        }
    }

    /// Whether `to` is full: then `from` waits until it is not.
    fn wait_if_full(&mut self, from: Peer, to: Peer) -> bool {
        let Some(end) = self.endpoint(to) else { return false };
        if !end.output.is_full() {
            return false;
        }
        end.output.wait(from);
        if let Some(end) = self.endpoint(from) {
            end.blocked_on = Some(to);
        }
        self.effects.push_back(Effect::Pause { peer: from });
        true
    }

    /// Queues a line with its newline, with the given pieces replaced.
    fn forward(&mut self, now: Moment, to: Peer, line: &Line, edits: &[Option<Edit>; 2]) {
        match to {
            Peer::Client(_) => self.stats.lines_to_clients += 1,
            Peer::Worker(_) => self.stats.lines_to_workers += 1,
        }
        let mut from = line.span.start;
        let mut bytes = 0;
        let [first, second] = edits;
        let swapped = matches!((first, second), (Some(first), Some(second)) if second.at.start < first.at.start);
        for edit in if swapped { [second, first] } else { [first, second] }.into_iter().flatten() {
            bytes += self.copy(to, Span { start: from, end: edit.at.start });
            bytes += edit.with.as_bytes().len();
            self.effects.push_back(Effect::Insert { to, text: edit.with.clone() });
            from = edit.at.end;
        }
        bytes += self.copy(to, Span { start: from, end: line.span.end + 1 });
        self.queued(now, to, bytes);
    }

    /// Lines in a row for one receiver become one copy.
    fn copy(&mut self, to: Peer, span: Span) -> usize {
        if let Some(Effect::Copy { to: last, span: before }) = self.effects.back_mut()
            && *last == to
            && before.end == span.start
        {
            before.end = span.end;
        } else {
            self.effects.push_back(Effect::Copy { to, span });
        }
        span.len()
    }

    pub(super) fn queued(&mut self, now: Moment, to: Peer, bytes: usize) {
        let limits = &self.settings.limits;
        let (limit, timeout) = (limits.max_output_queue, limits.backpressure_timeout);
        let Some(end) = self.endpoint(to) else { return };
        let was_full = end.output.is_full();
        end.output.push(bytes, limit, now);
        if !was_full && end.output.is_full() {
            self.check_at(now.after(timeout));
        }
    }

    /// Bytes have left for `peer`.
    pub(super) fn sent(&mut self, now: Moment, peer: Peer, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let Some(end) = self.endpoint(peer) else { return };
        if end.output.pop(bytes, limit, now) {
            self.release_waiters(now, peer);
        }
        if let Peer::Client(client) = peer {
            self.client_sent(now, client);
        }
    }

    /// Those who waited for `peer` may go on.
    pub(super) fn release_waiters(&mut self, now: Moment, peer: Peer) {
        let waiters = self.endpoint(peer).map(|end| end.output.take_waiters()).unwrap_or_default();
        for waiter in waiters {
            if let Some(end) = self.endpoint(waiter) {
                end.blocked_on = None;
                self.effects.push_back(Effect::Resume { peer: waiter });
            }
            if let Peer::Worker(worker) = waiter {
                self.read_on(now, worker);
            }
        }
    }

    /// `peer` waits for nobody any more.
    pub(super) fn stop_waiting(&mut self, peer: Peer) {
        let blocker = self.endpoint(peer).and_then(|end| end.blocked_on.take());
        if let Some(blocker) = blocker.and_then(|blocker| self.endpoint(blocker)) {
            blocker.output.forget(peer);
        }
    }

    /// Queues a line of the bus' own for a client.
    fn say(&mut self, now: Moment, client: ClientKey, bytes: &[u8]) {
        self.stats.lines_to_clients += 1;
        self.effects.push_back(Effect::Insert { to: Peer::Client(client), text: bytes.into() });
        self.queued(now, Peer::Client(client), bytes.len());
    }

    /// Tells that a line of `from` was dropped, with its id.
    fn report_line(&mut self, now: Moment, reason: Reason, from: Peer, window: Window<'_>, line: &Line, text: &str) {
        let (clients, workers) = (&self.clients, &self.workers);
        self.reporter.report(now, reason, &mut self.effects, || {
            let mut report = super::Report::new(reason, text);
            match from {
                Peer::Client(client) => report.client = clients.get(client).map(|client| client.number),
                Peer::Worker(worker) => report.worker = workers.get(worker).map(|w| (w.pool, w.number)),
            }
            if line.id.is_some() {
                let token = window.get(line.id);
                report.id = Some(token[..token.len().min(2 * MAX_REQUEST_ID_LEN)].escape_ascii().to_string());
            }
            report
        });
    }

    /// A client's message goes nowhere: it is told so if it asked, and the loss is reported.
    fn refuse(&mut self, now: Moment, client: ClientKey, window: Window<'_>, line: &Line, refusal: Refusal) -> Flow {
        let Refusal(reason, text) = refusal;
        let peer = Peer::Client(client);
        let answer = line.id.is_some() && self.settings.routing.error_replies;
        // One who asks without reading the answers is not listened to until it reads.
        if answer && self.wait_if_full(peer, peer) {
            return Flow::Blocked;
        }
        self.report_line(now, reason, peer, window, line, &text);
        if answer {
            let echoed = line.session.is_some() && line.session.len() <= LONGEST_ECHOED_ID;
            let session = echoed.then(|| decoded(window.get(line.session))).filter(|session| !session.is_empty());
            self.say_error(now, client, echoed_id(window, line), session.as_deref(), reason, &text);
        }
        Flow::Next
    }

    /// Says an error to a client that still listens. `id` is a JSON token.
    pub(super) fn say_error(
        &mut self,
        now: Moment,
        client: ClientKey,
        id: &[u8],
        session: Option<&[u8]>,
        reason: Reason,
        text: &str,
    ) {
        let open = self.clients.get(client).is_some_and(|client| client.phase <= Phase::HalfClosed);
        if !self.settings.routing.error_replies || !open {
            return;
        }
        let bytes = reply::error(id, session, reply::code(reason), text, reason.name());
        self.stats.error_replies += 1;
        self.say(now, client, &bytes);
    }

    /// A worker's message goes nowhere. A request is answered, so that the worker does not wait for ever.
    fn refuse_worker(
        &mut self,
        now: Moment,
        worker: WorkerKey,
        window: Window<'_>,
        line: &Line,
        refusal: Refusal,
    ) -> Flow {
        let Refusal(reason, text) = refusal;
        let to = Peer::Worker(worker);
        let answer = line.id.is_some() && self.settings.routing.error_replies && self.worker_takes_messages(worker);
        if answer && self.wait_if_full(to, to) {
            return Flow::Blocked;
        }
        self.report_line(now, reason, to, window, line, &text);
        if answer {
            let bytes = reply::error(echoed_id(window, line), None, reply::code(reason), &text, reason.name());
            self.stats.error_replies += 1;
            self.stats.lines_to_workers += 1;
            self.effects.push_back(Effect::Insert { to, text: bytes.as_slice().into() });
            self.queued(now, to, bytes.len());
        }
        Flow::Next
    }

    /// A line of `from` is no message (spec 4.3, 5.3).
    pub(super) fn malformed(
        &mut self,
        now: Moment,
        from: Peer,
        window: Window<'_>,
        line: usize,
        at: usize,
        fault: Fault,
    ) -> Flow {
        let what = match fault {
            Fault::Syntax => "not JSON",
            Fault::Utf8 => "not UTF-8",
            Fault::Depth => "nested too deeply",
            Fault::NotAnObject => "not a JSON object",
            Fault::DuplicateKey => "a routing key stands twice",
        };
        let text = match from {
            Peer::Client(_) => format!("{what}, at byte {} of the line", at - line),
            // What a worker prints by mistake is needed to find the mistake; what a client sends stays private.
            Peer::Worker(_) => {
                let rest = &window.data()[line..];
                let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len()).min(64);
                format!("{what}, at byte {} of the line, which begins \"{}\"", at - line, rest[..end].escape_ascii())
            }
        };
        self.malformed_text(now, from, &text)
    }

    fn malformed_text(&mut self, now: Moment, from: Peer, text: &str) -> Flow {
        match from {
            Peer::Client(client) => self.turn_away(now, client, Reason::ClientMalformed, text),
            Peer::Worker(worker) => self.stop_bad_worker(now, worker, Reason::WorkerMalformed, text),
        }
        Flow::Over
    }

    /// A line of `from` is longer than max_input_buffer (spec 7.3.2).
    pub(super) fn line_too_long(&mut self, now: Moment, from: Peer) -> Flow {
        let text = format!("a line is longer than max_input_buffer, {} bytes", self.settings.limits.max_input_buffer);
        match from {
            Peer::Client(client) => self.turn_away(now, client, Reason::ClientLineTooLong, &text),
            Peer::Worker(worker) => self.stop_bad_worker(now, worker, Reason::WorkerLineTooLong, &text),
        }
        Flow::Over
    }

    /// Answers a client that cannot be understood, and closes it (design 2.9).
    fn turn_away(&mut self, now: Moment, client: ClientKey, reason: Reason, text: &str) {
        self.report(now, reason, Some(Peer::Client(client)), || format!("a client is closed: {text}"));
        if self.settings.routing.error_replies {
            let message = match reason {
                Reason::ClientMalformed => format!("Parse error: {text}"),
                _ => format!("Invalid Request: {text}"),
            };
            let bytes = reply::error(b"null", None, reply::code(reason), &message, reason.name());
            self.stats.error_replies += 1;
            self.say(now, client, &bytes);
        }
        self.close_client(now, client, Close::Flush);
    }

    /// Answers requests that have waited too long.
    pub(super) fn tick_requests(&mut self, now: Moment) {
        if self.settings.pools.iter().all(|pool| pool.request_timeout.is_none()) {
            return;
        }
        let expired: Vec<_> = self
            .to_workers
            .table
            .iter()
            .filter(|(_, r)| r.expires.is_some_and(|at| at <= now))
            .map(|(key, _)| key)
            .collect();
        for key in self.in_order(Direction::ToWorkers, expired) {
            self.give_up_request(now, key, Reason::Timeout, "the worker did not answer within request_timeout_sec");
        }
        if let Some(next) = self.to_workers.table.iter().filter_map(|(_, request)| request.expires).min() {
            self.check_at(next);
        }
    }

    /// The asker of a request is told that no answer will come, and the loss is reported.
    pub(super) fn give_up_request(&mut self, now: Moment, key: Key<Request>, reason: Reason, text: &str) {
        let Some(request) = self.to_workers.table.get(key) else { return };
        let Some(Peer::Client(client)) = request.asker else { return };
        let id = request.asker_id().to_string();
        let number = self.clients.get(client).map(|client| client.number);
        let worker = match request.answerer {
            Peer::Worker(worker) => self.workers.get(worker).map(|worker| (worker.pool, worker.number)),
            Peer::Client(_) => None,
        };
        self.reporter.report(now, reason, &mut self.effects, || super::Report {
            client: number,
            worker,
            id: Some(id),
            ..super::Report::new(reason, text)
        });
        let token = match &request.original {
            Some(original) => original.token.as_bytes().to_vec(),
            None => reply::id_token(&request.wire),
        };
        let session = request.session.filter(|_| request.session_on_top).and_then(|key| self.sessions.table.get(key));
        let session = session.map(|session| session.name.clone());
        self.orphan_request(Direction::ToWorkers, key);
        self.say_error(now, client, &token, session.as_ref().map(Text::as_bytes), reason, text);
        self.waits_less(now, client);
    }

    /// Requests in the order in which they were made.
    pub(super) fn in_order(&mut self, direction: Direction, mut keys: Vec<Key<Request>>) -> Vec<Key<Request>> {
        let table = &self.requests(direction).table;
        keys.sort_by_key(|key| table.get(*key).map(|request| request.serial));
        keys
    }
}

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToWorkers,
    ToClients,
}

impl Direction {
    fn of(answerer: Peer) -> Self {
        match answerer {
            Peer::Worker(_) => Self::ToWorkers,
            Peer::Client(_) => Self::ToClients,
        }
    }
}
