//! The route of a line from a client to a worker (spec 6.1, 6.2; decisions 1 to 7): it is decoded, its worker and
//! sessions are found, and only then it is recorded and queued. Until then only those changes are made that a refused
//! message makes, too: a turn is taken, a worker assigned, and a lost name asked for again.
//!
//! Invariant: a line is queued for exactly one worker, or its loss is reported, and a lost request is answered. A
//! session or request that a line names belongs to its sender, or has no owner.
use alloc::borrow::Cow;
use core::time::Duration;

use ndjson_scan::{Line, Span, wrapped_message};

use super::message::{Message, is_of_server, is_wrapped, progress_token_of};
use crate::cancellation::prompt_flag;
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::eras::opening::needs_opening;
use crate::id::{Id, Spelled};
use crate::index::{FleetId, GroupId};
use crate::message::{
    Edit, Edits, KnownMethod, Parsed, Refusal, UNCHANGED, is_response, not_for_worker, print_of, session_name,
};
use crate::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, WorkerKey};
use crate::refusals::{refuse, report_line, send_error};
use crate::reply::Delivered;
use crate::report::Reason;
use crate::requests::{Flags, NewRequest, Request, Requests};
use crate::router::audience::note_audience;
use crate::router::servers::{note_servers, worker_of_server};
use crate::session::access::{NamedAt, Naming, Use, denied};
use crate::session::state::SessionState;
use crate::session::table::{FULL, Sessions};
use crate::timeouts::line_expires;
use crate::timers::Timer;
use crate::{Bus, Flow};

/// A session that a message names, and how it uses it.
struct NamedSession<'a> {
    name: Cow<'a, [u8]>,
    how: Use,
}

/// The destination of a message, and its sessions.
struct Route<'a> {
    worker: WorkerKey,
    first: Option<NamedSession<'a>>,
    /// The one in its params, if another one is at top level.
    second: Option<NamedSession<'a>>,
    /// The request that it cancels, or reports progress of.
    about: Option<RequestKey>,
}

/// Sessions that a message has entered, and whether it was the first to name them.
#[derive(Clone, Copy, Default)]
struct Entered {
    session: Option<SessionKey>,
    is_new: bool,
}

impl Bus {
    /// A line from a client.
    pub(crate) fn client_line(&mut self, client: ClientKey, line: Parsed<'_>) -> Flow {
        if line.has(Line::ID_INVALID) {
            return self.malformed_text(Peer::Client(client), "the id is neither a string, a number nor null");
        }
        let flow = if is_response(&line) {
            self.client_response(client, line)
        } else {
            let flow = self.client_message(client, line);
            flow.unwrap_or_else(|refusal| {
                refuse(&mut self.fleets, &mut self.ctx, &self.sessions, client.into(), line, refusal)
            })
        };
        if flow == Flow::Next && self.fleets.balancer().lends() {
            self.fleets.give_back(&mut self.ctx, &self.requests, client);
        }
        flow
    }

    fn client_message(&mut self, client: ClientKey, line: Parsed<'_>) -> Result<Flow, Refusal> {
        if let Some(refusal) = self.ctx.clients.get(client).and_then(|client| client.closing().refusal().cloned()) {
            return Err(refusal);
        }
        // Messages about a pending request may still pass: its cancellation, notifications of its session.
        if self.ctx.shutdown.refuses_requests() && (self.ctx.shutdown.stops_workers() || line.id.is_some()) {
            return Err(Refusal(Reason::ShuttingDown, "the daemon is shutting down".into()));
        }
        if !is_wrapped(line) {
            return self.send_message(client, line, Span::default());
        }
        match wrapped_message(*line.window, line.line) {
            // The names in it are in a place that the bus does not read.
            Ok(inner) if is_wrapped(Parsed { line: &inner, ..line }) => {
                Err(Refusal(Reason::MethodDenied, "Method not found: a proxy/successor within another one".into()))
            }
            Ok(inner) => self.send_message(client, Parsed { line: &inner, ..line }, line.method),
            Err(at) => Ok(self.name_occurs_twice(client.into(), line, at)),
        }
    }

    /// Routes a message: a bare one, or one in an envelope whose method is at `envelope`.
    fn send_message(&mut self, client: ClientKey, line: Parsed<'_>, envelope: Span) -> Result<Flow, Refusal> {
        if line.meta.twice != 0 {
            return Ok(self.name_occurs_twice(client.into(), line, line.meta.twice as usize));
        }
        let message = Message::decode(client, line)?;
        self.ctx.denials.begin_line(envelope);
        let may_expire = message.id.is_some() && message.verb != KnownMethod::Listen;
        let route = match self.route_of(&message) {
            Ok(route) => route,
            Err(Refusal(Reason::NoWorker, _))
                if may_expire && has_waited_for_worker(&self.fleets, &self.ctx, client, line) =>
            {
                return Err(overdue("no worker was free for it within request_timeout_sec"));
            }
            Err(Refusal(Reason::NoWorker, _)) if self.fleets.await_worker(&mut self.ctx, client, line) => {
                let due = time_limit_for(&self.fleets, &self.ctx, client, line)
                    .map(|limit| self.ctx.time.taken_at().after(limit));
                expire_first_line(&mut self.ctx, client.into(), due.filter(|_| may_expire));
                return Ok(Flow::Blocked);
            }
            Err(refusal @ Refusal(Reason::UnknownRequest, _)) if matches!(message.verb, KnownMethod::Cancel(_)) => {
                let flow = refuse(&mut self.fleets, &mut self.ctx, &self.sessions, client.into(), line, refusal);
                if flow == Flow::Next {
                    self.ctx.penalise_cancellation(client);
                }
                return Ok(flow);
            }
            Err(refusal) => return Err(refusal),
        };
        if let Some(fleet) = self.ctx.workers.fleet_of(route.worker)
            && let Some(denied) = self.ctx.denied_in(fleet.pool, client, line)
        {
            return Err(denied);
        }
        let due = line_expires(&self.ctx, route.worker).filter(|_| may_expire);
        if due.is_some_and(|due| due <= self.ctx.time.now()) {
            return Err(overdue("its worker had no room for it within request_timeout_sec"));
        }
        if message.id.is_some()
            && route.about.is_none()
            && self.fleets.await_resume(&mut self.ctx, client, route.worker)
        {
            expire_first_line(&mut self.ctx, client.into(), due);
            return Ok(Flow::Blocked);
        }
        if self.fleets.await_opening(&mut self.ctx, &mut self.requests, &message, route.worker)?
            || self.ctx.must_wait_for_worker(client, route.worker, line.span.len() + 1)
        {
            expire_first_line(&mut self.ctx, client.into(), due);
            return Ok(Flow::Blocked);
        }
        self.deliver(&message, route).map(|()| Flow::Next)
    }

    /// Delivers a message: only a delivered one makes a session, or takes one over. One that waits or is refused leaves
    /// nothing behind.
    fn deliver(&mut self, message: &Message<'_>, route: Route<'_>) -> Result<(), Refusal> {
        let mut edits = UNCHANGED;
        self.requests.name_requests(&mut self.ctx, message, &route, &mut edits)?;
        let entered = self.sessions.use_sessions(&mut self.ctx, message.from, &route)?;
        self.record(message, route.worker, entered, &mut edits)?;
        if let Some(NamedSession { how: Use::Take(session), .. }) = route.first {
            self.take_session_over(session, message.from);
        }
        note_servers(&mut self.ctx, message, route.worker);
        match message.verb {
            KnownMethod::Initialize => {
                let text = message.line.get(message.line.span);
                self.fleets.pools_mut().note_initialize(&mut self.ctx, route.worker, text);
                self.fleets.openings_mut().keep_initialize(&mut self.ctx, message, route.worker, &edits);
            }
            KnownMethod::Initialized
                if self.fleets.openings_mut().note_initialized(&mut self.ctx, message, route.worker) =>
            {
                return Ok(());
            }
            _ => {}
        }
        self.ctx.forward(Peer::Worker(route.worker), message.line, &mut edits);
        if let (KnownMethod::Cancel(how), Some(key)) = (message.verb, route.about) {
            let due = self.requests.cancel(self.ctx.time.now(), key, how);
            self.ctx.timers.arm(Timer::Requests, due);
            if self.ctx.clients.mcp(message.from).era.is_some() {
                // Over HTTP its response stays open until there is something to send.
                self.fail_request(key, Reason::Cancelled, "the client has cancelled it");
            }
        }
        Ok(())
    }

    /// Records a request, if the message is one, with its replacements.
    fn record(
        &mut self,
        message: &Message<'_>,
        worker: WorkerKey,
        entered: [Entered; 2],
        edits: &mut Edits,
    ) -> Result<(), Refusal> {
        let &Message { from: client, line, verb, progress, .. } = message;
        let answering = self.ctx.workers.get(worker).map(|worker| worker.answering());
        // A subscription is not answered.
        let limits = answering.filter(|_| verb != KnownMethod::Listen).map(|it| *it.limits()).unwrap_or_default();
        let (now, expires) = (self.ctx.time.now(), limits.expires(self.ctx.time.taken_at()));
        let first_deadline = expires.min(limits.silent_at(now));
        let own = not_for_worker(line).map_or(0, |own| own.len() as u32);
        let may_echo = answering.is_some_and(|answering| !answering.responds());
        let request = NewRequest {
            asker: client.into(),
            answerer: worker.into(),
            session: entered[0].session,
            second_session: entered[1].session,
            flags: (if line.session.len() > 2 { Flags::ON_TOP } else { 0 })
                | prompt_flag(line, entered[0].session, first_deadline),
            verb,
            expires: first_deadline,
            // An echo has only what the worker got.
            print: if may_echo { print_of(line, progress).wrapping_sub(own) } else { 0 },
        };
        let recorded = self.ask(&request, message, edits);
        match recorded {
            Ok(request) => {
                note_audience(&mut self.ctx, worker, client);
                if let Some(request) = request.filter(|_| verb == KnownMethod::Listen) {
                    self.subscriptions.note(&self.ctx, &self.requests, &mut self.fleets, client, worker, request);
                }
                if let Some(request) = request.filter(|_| limits.limit_silence()) {
                    self.requests.watch_mut().begin(request, now, expires);
                }
            }
            Err(_) => entered.into_iter().for_each(|entered| self.sessions.leave(&mut self.ctx, entered)),
        }
        recorded.map(|_| ())
    }

    /// The destination of a message.
    fn route_of<'a>(&mut self, message: &Message<'a>) -> Result<Route<'a>, Refusal> {
        let &Message { from: client, line, verb, .. } = message;
        // A cancellation is sent to the worker of the request, and nowhere when the answer is out already, or it is
        // another client's; a report on the progress of a worker's request, to the worker that has made it.
        if matches!(verb, KnownMethod::Cancel(_)) {
            let key = self.requests.request_cancelled(&mut self.ctx, message);
            let worker = key.and_then(|key| Some((key, self.requests.get(key)?.answerer())));
            return self.sessions.route_to_request(
                &self.ctx,
                message,
                worker,
                "it names no pending request of this connection",
            );
        }
        if let Some(at) = progress_token_of(line) {
            let token = Id::parse(line.get(at)).ok();
            let key = token.and_then(|token| self.requests.find_by_token(client.into(), &token));
            let worker = key.and_then(|key| Some((key, self.requests.get(key)?.asker()?)));
            return self.sessions.route_to_request(
                &self.ctx,
                message,
                worker,
                "its progressToken names no pending request",
            );
        }
        let Some((name, place, inner)) = message.names()? else {
            let worker = match worker_of_server(&self.ctx, message) {
                Some(worker) => worker,
                None => {
                    let group = self.fleets.balancer().group_of_line(&self.ctx, client, line)?;
                    let known = self.tasks.worker_of(&self.ctx, &self.fleets, message, group)?;
                    match known.or_else(|| {
                        self.subscriptions.worker_it_listens_to(
                            &self.ctx,
                            &self.requests,
                            &mut self.fleets,
                            client,
                            group,
                        )
                    }) {
                        Some(worker) => visit(&mut self.ctx, client, worker),
                        None => self.fleets.pick_worker_to_try(&mut self.ctx, &mut self.requests, message, group)?,
                    }
                }
            };
            return Ok(Route { worker, first: None, second: None, about: None });
        };
        let (worker, how) = first_session(
            &mut self.fleets,
            &mut self.ctx,
            &mut self.sessions,
            message,
            &message.naming(&name, place),
            inner.as_deref(),
        )?;
        let first = Some(NamedSession { name, how });
        let second = match inner {
            Some(name) => {
                let how =
                    self.sessions.second_session(&mut self.ctx, worker, &message.naming(&name, NamedAt::Second))?;
                Some(NamedSession { name, how })
            }
            None => None,
        };
        Ok(Route { worker, first, second, about: None })
    }

    /// The answer of a client to a worker's request (decision 5).
    pub(crate) fn client_response(&mut self, client: ClientKey, line: Parsed<'_>) -> Flow {
        let from = Peer::Client(client);
        let Some(key) = self.requests.answered(from, line) else {
            let text = "no request of a worker is pending under this id";
            report_line(&mut self.ctx, Reason::UnknownId, from, line, text);
            return Flow::Next;
        };
        let asker = self.requests.get(key).and_then(Request::asker);
        let Some(Peer::Worker(worker)) = asker.filter(|asker| self.ctx.takes_messages(*asker)) else {
            self.requests.forget(&mut self.ctx, &mut self.sessions, key);
            report_line(
                &mut self.ctx,
                Reason::LateAnswer,
                from,
                line,
                "the worker that asked has ended, or waits no longer",
            );
            return Flow::Next;
        };
        let fleet = self.ctx.workers.fleet_of(worker);
        if let Some(Refusal(reason, text)) = fleet.and_then(|fleet| self.ctx.denied_answer(fleet.pool, client, line)) {
            let id = self.requests.asker_token(key);
            self.requests.forget(&mut self.ctx, &mut self.sessions, key);
            report_line(&mut self.ctx, reason, from, line, &text);
            send_error(&mut self.ctx, worker.into(), &id, reason, &text, Delivered::Yes);
            return Flow::Next;
        }
        if self.ctx.must_wait_for_worker(client, worker, line.span.len() + 1) {
            return Flow::Blocked;
        }
        if !needs_opening(&self.ctx, client, worker) {
            note_audience(&mut self.ctx, worker, client);
        }
        self.deliver_answer(key, Peer::Worker(worker), line, None);
        Flow::Next
    }
}

/// The worker of the session that determines the route, or the one to create it on (spec 6.1, decision 3). `inner`
/// is the name in the params, if it differs.
fn first_session(
    fleets: &mut Fleets,
    ctx: &mut Ctx,
    sessions: &mut Sessions,
    message: &Message<'_>,
    of: &Naming<'_>,
    inner: Option<&[u8]>,
) -> Result<(WorkerKey, Use), Refusal> {
    let &Message { from: client, line, .. } = message;
    let names_pool = line.pool.is_some();
    if !names_pool
        && let Some(key) = sessions.named(ctx, client, of.name)
        && let Some(worker) = sessions.get(key).map(|session| session.worker())
    {
        sessions.touch(key, ctx.time.now());
        return Ok((worker, sessions.access(ctx, of, worker, Some(key))?));
    }
    // A session of this name that it has lost elsewhere is another one than its own in the pool that it names.
    let is_here =
        |group: GroupId| sessions.is_owned_in(ctx, client, of.name, |fleet| fleets.balancer()[group].has(fleet));
    if has_lost(ctx, of) && !(names_pool && fleets.balancer().group_of_line(ctx, client, line).is_ok_and(is_here)) {
        refuse_lost(ctx, of)?;
    }
    let group = fleets.balancer().group_of_line(ctx, client, line)?;
    if fleets.balancer()[group].is_dedicated() {
        // Its process serves no other client, so no other client's sessions are in reach.
        let worker = fleets.pick_worker_for_line(ctx, client, group, line, true)?;
        return Ok((worker, sessions.access(ctx, of, worker, sessions.of_worker(worker, of.name))?));
    }
    if let Some((worker, key)) = session_in_group(fleets, ctx, sessions, group, of) {
        return Ok((worker, sessions.access(ctx, of, worker, Some(key))?));
    }
    // A new name at top level joins the session in the params.
    let joined = inner.filter(|_| !names_pool).and_then(|inner| sessions.named(ctx, client, inner));
    let Some(worker) = joined.and_then(|key| sessions.get(key)).map(|session| session.worker()) else {
        // The session would be bound to a worker on trial.
        let worker = fleets.pick_worker_for_line(ctx, client, group, line, false)?;
        // It may have been the client's before it changed groups.
        return Ok((worker, sessions.access(ctx, of, worker, sessions.of_worker(worker, of.name))?));
    };
    // It may be outside of the group, which was not searched yet.
    let how = match sessions.of_worker(worker, of.name) {
        Some(key) if ctx.settings.shares_sessions() => Use::Share(key),
        Some(_) => return Err(denied()),
        None => sessions.access(ctx, of, worker, None)?,
    };
    Ok((worker, how))
}

/// The session `name` on the workers of a group: the client's own first, then one of another client, then a
/// reserved name; of several the one on the first worker. Workers without a slot come last. A request that asks for a
/// session that no client has is for another worker if this one reads no more: it may take long to end.
fn session_in_group(
    fleets: &Fleets,
    ctx: &Ctx,
    sessions: &Sessions,
    group: GroupId,
    of: &Naming<'_>,
) -> Option<(WorkerKey, SessionKey)> {
    let group = &fleets.balancer()[group];
    let slots = |fleet: FleetId| fleets.pools()[fleet].workers_in_slots();
    let in_slots = group.fleets().flat_map(slots);
    let others = group.fleets().flat_map(|fleet| ctx.workers.beside_slots(fleet, of.client));
    let found = in_slots.chain(others).filter_map(|worker| {
        let key = sessions.of_worker(worker, of.name)?;
        let owner = sessions.get(key)?.owner();
        let is_left = owner.is_none() && of.verb.asks_for_session() && !ctx.workers.worker_takes_messages(worker);
        (!is_left).then_some((owner.map_or(2, |owner| u8::from(owner != of.client)), (worker, key)))
    });
    found.min_by_key(|(order, _)| *order).map(|(_, found)| found)
}

/// The time limit of a request that has no worker yet, if each of those that it may get has one.
fn time_limit_for(fleets: &Fleets, ctx: &Ctx, client: ClientKey, line: Parsed<'_>) -> Option<Duration> {
    let group = fleets.balancer().group_of_line(ctx, client, line).ok()?;
    let mut longest = None;
    for fleet in fleets.balancer()[group].fleets() {
        longest = longest.max(Some(ctx.settings.pools[fleet].request_timeout?));
    }
    longest
}

/// Whether a request has no worker yet, and its time is over.
fn has_waited_for_worker(fleets: &Fleets, ctx: &Ctx, client: ClientKey, line: Parsed<'_>) -> bool {
    let (now, taken_at) = (ctx.time.now(), ctx.time.taken_at());
    taken_at < now && time_limit_for(fleets, ctx, client, line).is_some_and(|limit| taken_at.after(limit) <= now)
}

impl Requests {
    /// The sender's request that a cancellation names.
    fn request_cancelled(&mut self, ctx: &mut Ctx, message: &Message<'_>) -> Option<RequestKey> {
        let &Message { from: client, line, .. } = message;
        let mut named = [line.request_id, line.params_id].into_iter().filter(|span| span.is_some());
        let mut target = |span: Span| self.named(ctx, Peer::Client(client), line.get(span));
        let key = named.next().and_then(&mut target)?;
        named.all(|span| target(span) == Some(key)).then_some(key)
    }

    /// Replaces a message's references to other requests by those the worker knows. A reference that would hit another
    /// client's request is refused.
    fn name_requests(
        &mut self,
        ctx: &mut Ctx,
        message: &Message<'_>,
        route: &Route<'_>,
        edits: &mut Edits,
    ) -> Result<(), Refusal> {
        let &Message { from: client, line, .. } = message;
        let edit = |requests: &Requests, request: RequestKey, at: Span| {
            let with = requests.wire_token(request).filter(|_| at.is_some());
            with.map(|with| Edit { at, with })
        };
        if let (Some(request), KnownMethod::Cancel(_)) = (route.about, message.verb) {
            edits[1] = edit(self, request, line.request_id);
            edits[2] = edit(self, request, line.params_id);
            return Ok(());
        }
        if let Some(request) = route.about {
            edits[2] = self.replaced_progress(request).map(|with| Edit { at: line.token, with });
        }
        if !line.request_id.is_some() || is_of_server(line) {
            return Ok(());
        }
        let token = line.get(line.request_id);
        let answerer = Peer::Worker(route.worker);
        let own = self.named(ctx, Peer::Client(client), token);
        let is_there = |key: &RequestKey| self.get(*key).is_some_and(|it| it.answerer() == answerer);
        if let Some(request) = own.filter(is_there) {
            edits[1] = edit(self, request, line.request_id);
            return Ok(());
        }
        // A name that some parser changes may become that of another client's request.
        let is_safe = Spelled::parse(token).is_ok_and(|it| it.is_plain && self.find(answerer, &it.id).is_none());
        if is_safe {
            Ok(())
        } else {
            Err(Refusal(Reason::UnknownRequest, "its requestId names no pending request of this connection".into()))
        }
    }
}

impl Sessions {
    /// The way to the worker at the other end of a request, if it takes messages. A session that the message names as well
    /// has to be open to its sender.
    fn route_to_request<'a>(
        &self,
        ctx: &Ctx,
        message: &Message<'a>,
        found: Option<(RequestKey, Peer)>,
        unknown: &str,
    ) -> Result<Route<'a>, Refusal> {
        let Some((key, Peer::Worker(worker))) = found.filter(|(_, to)| ctx.takes_messages(*to)) else {
            return Err(Refusal(Reason::UnknownRequest, unknown.into()));
        };
        for (span, place) in [(message.line.session, NamedAt::Alone), (message.line.params_session, NamedAt::Params)] {
            let Some(name) = session_name(message.line, span) else { continue };
            let session = self.of_worker(worker, &name);
            self.access(ctx, &message.naming(&name, place), worker, session)?;
        }
        Ok(Route { worker, first: None, second: None, about: Some(key) })
    }

    /// The session in the params of a message with another one at top level: its sender's own, or without an owner.
    fn second_session(&self, ctx: &mut Ctx, worker: WorkerKey, of: &Naming<'_>) -> Result<Use, Refusal> {
        let key = self.of_worker(worker, of.name);
        let session = key.and_then(|key| self.get(key));
        if session.is_none_or(|session| session.owner() != Some(of.client)) {
            refuse_lost(ctx, of)?;
        }
        self.access(ctx, of, worker, key)
    }

    /// Creates the sessions of a message that is about to be delivered.
    fn use_sessions(&mut self, ctx: &mut Ctx, client: ClientKey, route: &Route<'_>) -> Result<[Entered; 2], Refusal> {
        let first = self.use_session(ctx, client, route.worker, route.first.as_ref())?;
        let second = self.use_session(ctx, client, route.worker, route.second.as_ref());
        if second.is_err() {
            self.leave(ctx, first);
        }
        Ok([first, second?])
    }

    fn use_session(
        &mut self,
        ctx: &mut Ctx,
        client: ClientKey,
        worker: WorkerKey,
        named: Option<&NamedSession<'_>>,
    ) -> Result<Entered, Refusal> {
        let Some(NamedSession { name, how }) = named else { return Ok(Entered::default()) };
        let (session, is_new) = match *how {
            Use::None => return Ok(Entered::default()),
            // A session that is taken over changes hands when the message is recorded.
            Use::Own(key) | Use::Take(key) => {
                self.touch(key, ctx.time.now());
                return Ok(Entered { session: Some(key), is_new: false });
            }
            // That keeps a claim alive, but does not make the request its owner's.
            Use::Share(key) => {
                self.touch(key, ctx.time.now());
                return Ok(Entered::default());
            }
            Use::Claim => (self.open(ctx, client, worker, name, SessionState::Claimed), true),
            Use::Ask => (self.open(ctx, client, worker, name, SessionState::Asked), true),
            Use::Lend(key) => {
                let is_lent = self.lend_name(ctx, client, key);
                (Some(key).filter(|_| is_lent || ctx.workers.has_owner(worker)), is_lent)
            }
        };
        // A dedicated worker needs no session entry.
        if session.is_none() && !ctx.workers.has_owner(worker) {
            return Err(Refusal(Reason::SessionLimit, FULL.into()));
        }
        Ok(Entered { session, is_new })
    }

    /// A message that was the first to name a session was not delivered.
    fn leave(&mut self, ctx: &mut Ctx, entered: Entered) {
        if let Some(session) = entered.session.filter(|_| entered.is_new) {
            self.give_up(ctx, session, true);
        }
    }
}

/// A client's message is sent to a worker that may be lent to another client, now or before it is answered.
fn visit(ctx: &mut Ctx, client: ClientKey, worker: WorkerKey) -> WorkerKey {
    if let Some(at) = ctx.workers.get_mut(worker) {
        at.ownership_mut().visit(client);
    }
    worker
}

fn has_lost(ctx: &Ctx, of: &Naming<'_>) -> bool {
    ctx.clients.get(of.client).is_some_and(|client| client.has_lost(of.name))
}

/// A session that was lost with its worker is an error for its old owner, unless it asks a worker for it.
fn refuse_lost(ctx: &mut Ctx, of: &Naming<'_>) -> Result<(), Refusal> {
    if !has_lost(ctx, of) {
        return Ok(());
    }
    if of.verb.asks_for_session() {
        ctx.clients.forget_lost(of.client, of.name);
        return Ok(());
    }
    let text = "this session is gone: its worker has ended, or it was not used for long; session/load or session/resume \
                asks for it again";
    Err(Refusal(Reason::SessionLost, text.into()))
}

/// The first line of a peer waits: it is handled again at this moment, and refused then, if it is a request that is
/// overdue.
pub(crate) fn expire_first_line(ctx: &mut Ctx, peer: Peer, due: Option<Moment>) {
    let Some(end) = ctx.endpoint(peer) else { return };
    end.cold.expire_first_line(due);
    due.into_iter().for_each(|due| ctx.wake_at(peer, due));
}

/// A request that was not delivered in its time.
fn overdue(text: &str) -> Refusal {
    Refusal(Reason::Timeout, text.into())
}
