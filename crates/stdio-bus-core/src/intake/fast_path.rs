//! The path of most lines, which looks up each peer once: a client's message in a session that it owns or in none, the
//! answer to it, and a notification in such a session or about the progress of a request. Anything unusual about a
//! line, its sender, its receiver or the tables sends it down the slow path (`router`), which has the same result.

use ndjson_scan::Line;

use super::{FastPath, Sender};
use crate::client::{Client, Clients, Phase, Workers};
use crate::ended::{Ended, Ending};
use crate::endpoint::Endpoint;
use crate::flow::gate::Hold;
use crate::id::{Id, Spelled};
use crate::message::{Parsed, Verb, has_method, print_of, verb};
use crate::peer::{ClientKey, Peer, SessionKey, WorkerKey};
use crate::pending::{Direction, NewRequest};
use crate::request::Flags;
use crate::session::activity::told_idle;
use crate::settings::{Assignment, Era, IdCollision};
use crate::supervisor::answering::Opened;
use crate::tally::Outcome;
use crate::timers::Timer;
use crate::worker::Worker;

impl FastPath<'_> {
    /// The session of a line, if any, as written. None if it names one in two places, or any name other than a progress
    /// token.
    #[inline(always)]
    fn only_name<'w>(line: Parsed<'w>) -> Option<Option<&'w [u8]>> {
        let others = line.request_id.end | line.params_id.end | line.pool.end | line.flags;
        if others | line.meta.subscription.end | line.meta.twice != 0 {
            return None;
        }
        let span = match (line.session.is_some(), line.params_session.is_some()) {
            (true, false) => line.session,
            (false, true) => line.params_session,
            (true, true) => return None,
            (false, false) => return Some(None),
        };
        let token = line.get(span);
        Some(Some(&token[1..token.len() - 1])).filter(|_| token.len() > 2)
    }

    /// The worker for a client's lines without a session: its own, or else the next in turn. Returns whether it is its
    /// own. None if the bus has to search for one.
    #[inline(always)]
    fn worker_for(&self, client: &Sender<'_>) -> Option<(WorkerKey, bool)> {
        let group = &self.groups[client.group];
        let is_open = group.pools().all(|pool| self.pools[pool].side.is_used);
        let is_asked_for = client.mcp.borrows || client.mcp.preferred.is_some() || !is_open;
        if is_asked_for || client.seldom.is_some_and(|seldom| !seldom.offers.is_empty()) {
            return None;
        }
        let assigned = client.seldom.map_or(&[][..], |seldom| &seldom.assigned);
        match assigned.iter().find(|(of, _)| *of == client.group) {
            Some((_, worker)) => Some((*worker, true)),
            None if group.assignment() == Assignment::RoundRobin => {
                let (pool, slot) = group.next()?;
                Some((self.pools[pool].slots[slot].worker?, false))
            }
            None => None,
        }
    }

    /// The destination of a client's line: worker, session, and whether that takes a turn of the worker's group.
    #[inline(always)]
    fn destination<'w>(
        &self,
        client: &Sender<'_>,
        own: &[SessionKey],
        workers: &'w mut Workers,
        line: Parsed<'_>,
    ) -> Option<(WorkerKey, &'w mut Worker, Option<SessionKey>, bool)> {
        let Some(name) = Self::only_name(line)? else {
            let (worker_key, is_its_own) = self.worker_for(client)?;
            let worker = workers.get_mut(worker_key)?;
            let is_assigned = || self.groups[client.group].assignment() == Assignment::Client;
            let is_usable = !is_its_own || worker.owner == Some(client.key) || is_assigned();
            return is_usable.then_some((worker_key, worker, None, !is_its_own));
        };
        let session_key = self.sessions.named_by(client.key, own, name)?;
        let session = self.sessions.get(session_key).filter(|session| session.has_plain_name)?;
        let worker = workers.get_mut(session.worker)?;
        let gives_out_names = || self.pools[worker.pool].gives_out_names(worker);
        let is_open = session.is_open_at_once(!self.sessions.bonds().is_empty(), gives_out_names);
        is_open.then_some((session.worker, worker, Some(session_key), false))
    }

    /// Routes a client's line. None if it has to take the slow path, and then nothing has been done.
    #[inline(always)]
    pub(super) fn client_line(
        &mut self,
        client: &Sender<'_>,
        from: &mut Endpoint,
        workers: &mut Workers,
        line: Parsed<'_>,
    ) -> Option<()> {
        if !line.method.is_some() || line.token.is_some() || verb(line) != Verb::Other {
            return None;
        }
        let (worker_key, worker, session, takes_turn) = self.destination(client, &from.sessions, workers, line)?;
        // An MCP session begins anew with a worker that has not seen it yet (`router/opening.rs`).
        let opens = client.mcp.era == Some(Era::Legacy) && worker.facts.opened == Opened::No;
        if !worker.takes_messages()
            || opens && worker.owner.is_none()
            || worker.end.output.is_full()
            || worker.end.seldom.get().is_some_and(|seldom| seldom.blocked_on.is_some())
            || from.seldom.get().is_some_and(|seldom| seldom.turn.is_granted())
        {
            return None;
        }
        let in_turns = worker.owner.is_none() && !client.identity.stdio;
        let others_wait = worker.end.output.has_waiters();
        if in_turns && !worker.window.has_room_for(client.key, others_wait, self.clients == 1) {
            return None;
        }
        if line.id.is_some() {
            self.ask(client.key, from, (worker_key, worker), session, line)?;
        }
        worker.audience.note(client.key, client.identity);
        if let Some(session) = session {
            self.sessions.hear(session, self.time.now());
        }
        if takes_turn {
            self.groups[client.group].advance();
        }
        let bytes = line.span.len() + 1;
        if in_turns {
            worker.window.mark_line_end(client.key, bytes);
        }
        worker.window.push(self.time.now(), bytes, self.clients > 1 && worker.owner.is_none());
        self.forward(worker_key.into(), &mut worker.end, line, bytes);
        Some(())
    }

    /// Records the request of a client's line. None if it has to take the slow path.
    #[inline(always)]
    fn ask(
        &mut self,
        client: ClientKey,
        from: &mut Endpoint,
        (worker_key, worker): (WorkerKey, &mut Worker),
        session: Option<SessionKey>,
        line: Parsed<'_>,
    ) -> Option<()> {
        let id = self.passing_id(worker, line)?;
        let place = self.pending.find_or_place(worker_key.into(), &id).err()?;
        if !self.pending.has_room(Direction::ToWorkers, self.clients, from.outstanding.len()) {
            return None;
        }
        let progress = line.meta.progress;
        let on_top = if line.session.is_some() { Flags::ON_TOP } else { 0 };
        let new = NewRequest {
            asker: client.into(),
            answerer: worker_key.into(),
            session,
            second_session: None,
            flags: if progress.is_some() { on_top | Flags::TOKEN_IS_ID } else { on_top },
            verb: Verb::Other,
            expires: worker.answering.expires(self.time.now()),
            print: if worker.answering.responds() { 0 } else { print_of(line, progress) },
        };
        let came_at = self.time.came_at();
        let request = self.pending.insert(came_at, place, &new, &id, None, &mut from.outstanding)?;
        if let Some(records) = self.out.records() {
            records.begin(self.time.now(), request, line);
        }
        self.timers.arm(Timer::Requests, new.expires);
        from.traffic.asked += 1;
        let is_first = worker.end.unanswered.begin();
        if let Some(session) = session {
            self.sessions.begin_request(session);
        }
        let at = worker.answering.begin(self.time.now(), is_first, &mut worker.tenure);
        self.timers.arm(Timer::Worker(worker_key), at);
        Some(())
    }

    /// The id of a request, if it may pass unchanged, with its progress token, if any: clients use the id for it.
    #[inline(always)]
    fn passing_id(&self, worker: &Worker, line: Parsed<'_>) -> Option<Id> {
        let (token, progress) = (line.get(line.id), line.meta.progress);
        let Spelled { id, is_plain, is_escaped } = Spelled::parse(token).ok()?;
        let is_replaced = worker.end.seldom.get().is_some_and(|seldom| !seldom.retired.doubts_nothing())
            || self.settings.routing.id_collision == IdCollision::Always
            || progress.is_some() && (self.pending.has_other_tokens() || line.get(progress) != token)
            || !is_plain;
        (!is_replaced && !is_escaped).then_some(id)
    }

    /// Queues an unchanged line for a peer whose output is not full.
    #[inline(always)]
    fn forward(&mut self, to: Peer, end: &mut Endpoint, line: Parsed<'_>, bytes: usize) {
        self.out.copy(to, line.span.start, line.span.end + 1);
        if self.out.count_queued(self.time.now(), to, end, bytes, self.settings.limits.max_output_queue) {
            self.timers.arm(to.into(), self.time.now().after(self.settings.limits.backpressure_timeout));
        }
    }

    /// Routes a worker's line. None if it has to take the slow path, and then nothing has been done.
    #[inline(always)]
    pub(super) fn worker_line(
        &mut self,
        key: WorkerKey,
        worker: &mut Worker,
        clients: &mut Clients,
        line: Parsed<'_>,
    ) -> Option<()> {
        match line.id.is_some() {
            true => self.pass_answer(key, worker, clients, line),
            false => self.pass_notification(key, worker, clients, line),
        }
    }

    /// An ordinary answer to an ordinary request.
    #[inline(always)]
    fn pass_answer(
        &mut self,
        key: WorkerKey,
        worker: &mut Worker,
        clients: &mut Clients,
        line: Parsed<'_>,
    ) -> Option<()> {
        let other = line.method.end | line.result_session.end;
        if other != 0 || !matches!(line.flags, Line::RESULT | Line::ERROR) {
            return None;
        }
        let id = Id::parse(line.get(line.id)).ok()?;
        let (request_key, place) = self.pending.find_or_place(key.into(), &id).ok()?;
        let request = self.pending.get(request_key).filter(|request| request.is_simple())?;
        let Some(Peer::Client(client_key)) = request.asker() else { return None };
        let (session, since) = (request.session, request.since());
        let Client { identity, mcp, phase, seldom, end, .. } = clients.get_mut(client_key)?;
        let end = end.get_mut()?;
        if *phase != Phase::Open
            || end.output.is_full()
            || seldom.get().is_some_and(|seldom| !seldom.lost.is_empty())
            || end.gate.has(Hold::Throttle)
            || mcp.borrows
        {
            return None;
        }
        let took = self.time.lasted(since);
        if let Some(session) = session {
            self.sessions.end_simple_request(session, client_key, line.flags == Line::RESULT)?;
        }
        end.seldom.forget_crashes();
        mcp.answered_by = Some(key);
        self.pending.leave_asker(request_key, &mut end.outstanding);
        self.pending.remove_at(request_key, place);
        worker.end.unanswered.orphan();
        worker.end.unanswered.end();
        self.workers_changed |= worker.answering.answers(true);
        self.pools[worker.name.pool].tally.answered(Outcome::of_answer(&line), took);
        if let Some(records) = self.out.records()
            && records.has(request_key)
        {
            let session = session.and_then(|session| self.sessions.get(session));
            let session = session.map(|session| session.name.clone()).unwrap_or_default();
            let ended = Ended::of(client_key, identity, Ending::of_answer(line));
            let id = line.get(line.id).into();
            records.end(request_key, Ended { worker: Some(worker.name), took, id, session, ..ended });
        }
        self.forward(client_key.into(), end, line, line.span.len() + 1);
        Some(())
    }

    /// The client that has made the request of a progress notification, under its id.
    #[inline(always)]
    fn asker_told(&self, worker: WorkerKey, line: Parsed<'_>) -> Option<ClientKey> {
        if !has_method(line, b"notifications/progress") {
            return None;
        }
        let id = Id::parse(line.get(line.token)).ok()?;
        let request = self.pending.get(self.pending.find(worker.into(), &id)?)?;
        match request.asker().filter(|_| request.flags.has(Flags::TOKEN_IS_ID) && !request.flags.has(Flags::UNUSUAL)) {
            Some(Peer::Client(client)) => Some(client),
            _ => None,
        }
    }

    /// The only client of a worker, for messages that name no client.
    #[inline(always)]
    fn only_client(&self, worker: &Worker, line: Parsed<'_>) -> Option<ClientKey> {
        let is_its_own = self.settings.pools[worker.pool].assignment == Assignment::Dedicated;
        let names_none = is_its_own && worker.elicitations.is_empty() && verb(line) == Verb::Other;
        worker.owner.filter(|_| names_none)
    }

    /// A notification in a session that the worker has given out, of a request's progress, or for its only client.
    #[inline(always)]
    fn pass_notification(
        &mut self,
        key: WorkerKey,
        worker: &Worker,
        clients: &mut Clients,
        line: Parsed<'_>,
    ) -> Option<()> {
        let name = Self::only_name(line)?;
        if worker.facts.tells_states && told_idle(line.get(line.span)).is_some() {
            return None;
        }
        let (session, client_key) = match (name, line.token.is_some()) {
            (Some(name), false) => {
                let session_key = self.sessions.of_worker(key, name)?;
                let session = self.sessions.get(session_key).filter(|session| session.has_plain_name)?;
                (Some(session_key), session.addressee(worker.may_give_out_a_name())?)
            }
            (None, true) => (None, self.asker_told(key, line)?),
            (None, false) => (None, self.only_client(worker, line)?),
            (Some(_), true) => return None,
        };
        let client = clients.get_mut(client_key)?;
        let end = client.end.get_mut()?;
        if client.phase > Phase::HalfClosed || end.output.is_full() || client.mcp.borrows {
            return None;
        }
        if name.is_some() || line.token.is_some() {
            end.seldom.forget_crashes();
        }
        if let Some(session) = session.filter(|_| self.settings.limits.session_idle.is_some()) {
            self.sessions.hear(session, self.time.now());
        }
        self.forward(client_key.into(), end, line, line.span.len() + 1);
        Some(())
    }
}
