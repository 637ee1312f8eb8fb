//! The life of a client connection: it is accepted, it half-closes, it is closed (also as a slow client, which does not
//! read what is queued for it), and everything that depends on it ends (spec 4.1.2, 7.2, 7.3; decisions 9 to 11).

use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::Window;

use super::Bus;
use super::ctx::Ctx;
use super::graceful_close::{LONGEST, SILENCE};
use super::message::Refusal;
use super::origin::Origin;
use super::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, Source, WorkerKey};
use super::port::{Close, Effect, Effects, Next, Received};
use super::reply::Delivered;
use super::report::{Level, Reason, Report};
use super::session::table::Sessions;
use super::settings::{Era, Limits};
use super::shutdown::Stage;
use super::timers::Timer;
use super::worker::Worker;
use crate::eviction::idle_deadline;
use crate::fleet::admission::{is_allowed, no_room};
use crate::fleet::balancer::DeniedTo;
use crate::fleet::life::stop_worker;
use crate::fleet::reload::release_gone_pools;
use crate::fleet::rollout::notice_end_of_work;
use crate::flow::delivery::release_overdue;
use crate::graceful_close::{begin_refusing, count_refused, report_unread, report_untaken};
use crate::index::{GroupId, ListenerId, PoolId};
use crate::peers::{Client, ClientIdentity, McpState, Phase};
use crate::refusals::send_error;
use crate::request_log::record_left;
use crate::requests::{Request, Requests};
use crate::shutdown::watch_silence;
use crate::usage::note_client;

/// How long a connection that was shut down may still send before it is closed for good.
const LINGER: Duration = Duration::from_secs(1);
/// The message for a request whose client is closed, if there is no better reason.
pub(super) const CLOSED_BEFORE: &str = "the connection was closed before its answer arrived";

impl Bus {
    /// A client has connected through the listener with this index. `None` without room, or during a shutdown: close
    /// it. An accepted client may still be rejected by the effects that follow (`fleet/admission.rs`).
    pub fn connect(
        &mut self,
        now: Moment,
        listener: impl Into<ListenerId>,
        origin: impl Into<Origin>,
    ) -> (Option<ClientKey>, Effects<'_>) {
        self.ctx.begin_call(now);
        let client = self.admit_client(listener.into(), origin.into(), None);
        (client, self.effects())
    }

    /// Accepts a client; one of an MCP listener has the group of its pool and its era.
    pub(super) fn admit_client(
        &mut self,
        listener: ListenerId,
        origin: Origin,
        mcp: Option<(GroupId, Era)>,
    ) -> Option<ClientKey> {
        let stdio = self.ctx.settings.listener(listener).filter(|listener| !listener.is_gone)?.stdio;
        if self.ctx.shutdown.stops_workers() || !is_allowed(&mut self.ctx, listener, &origin) {
            return None;
        }
        let source = origin.source();
        let no_room = no_room(&self.ctx, listener, source);
        if let Some(no_room) = &no_room
            && !self.ctx.clients.may_explain_refusal()
        {
            self.refuse_client(None, source, no_room.text());
            return None;
        }
        let number = self.fleets.admission().next_number();
        let group = mcp
            .map_or_else(|| self.fleets.balancer().group_of_client(&self.ctx, listener, &origin), |(group, _)| group);
        let era = mcp.map(|(_, era)| era);
        let mcp = McpState { era, borrows: self.fleets.balancer()[group].lends(), ..McpState::default() };
        if self.ctx.clients.is_full() {
            // The connection was on its way when the last slot was taken.
            self.ctx.report(Reason::ConnectionLimit, None, || "a client is rejected: no slot is left".into());
            return None;
        }
        let source_use = self.fleets.admission_mut().enter(source)?;
        let (turned_away, opened, origin) = (no_room.is_some(), self.ctx.time.now(), Rc::new(origin));
        let identity = ClientIdentity { number, stdio, source_use, listener, origin, turned_away, opened };
        let key = self.ctx.clients.insert(Client::new(identity, group, mcp))?;
        self.ctx.find_rules(key);
        self.fleets.admission_mut().number_is_taken();
        report_client(&mut self.ctx, Reason::ClientOpened, key);
        if self.ctx.clients.is_full() {
            self.ctx.out.push(Effect::PauseAccept);
            let most = self.ctx.clients.capacity();
            self.ctx.report(Reason::ConnectionLimit, None, || {
                format!("all {most} connections are in use; new connections wait until a client disconnects")
            });
            self.fleets.admission().set_awaited(false);
            self.ctx.timers.arm(Timer::Slots, self.ctx.time.now());
        }
        if let Some(due) = self.ctx.clients.get(key).and_then(|client| idle_deadline(&self.ctx, client)) {
            self.ctx.wake_at(key.into(), due);
        }
        if let Some(no_room) = &no_room {
            self.refuse_client(Some(key), source, no_room.text());
        }
        Some(key)
    }

    /// It has ended its input. It is closed when it has its answers (decision 10).
    pub(super) fn on_client_ended(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.clients.get_mut(key) else { return };
        match client.phase() {
            Phase::Open => {
                client.half_close();
                let patience = self.ctx.settings.limits.drain_timeout;
                set_close_deadline(&mut self.ctx, key, patience);
                self.fleets.queue_mut().throttle_if_abandoned(&self.ctx, key);
                self.requests.fail_requests_to_client(&mut self.ctx, &mut self.sessions, key, |_, _| true);
                self.finish_half_closed(key);
            }
            Phase::Flushing if client.end().output.queued() == 0 => {
                self.close_client(key, Close::Now, Reason::ClientClosed)
            }
            Phase::Refusing => self.close_client(key, Close::Flush, Reason::ClientClosed),
            Phase::Flushing | Phase::HalfClosed | Phase::Closing => {}
        }
    }

    /// One of its requests was answered: reads it again, or closes it if it waited only for that.
    pub(super) fn wake_after_answer(&mut self, key: ClientKey) {
        if self.fleets.balancer().lends() {
            self.fleets.give_back_after_answer(&mut self.ctx, &self.requests, key);
        }
        self.finish_half_closed(key);
        watch_silence(&mut self.ctx);
    }

    /// Closes a half-closed client that waits for nothing more.
    fn finish_half_closed(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.clients.get(key) else { return };
        if client.phase() == Phase::HalfClosed && client.end().asked.is_empty() {
            self.close_client(key, Close::Flush, Reason::ClientClosed);
        }
    }

    /// The listener ends a client, or cannot read its input.
    pub(super) fn end_client(&mut self, key: ClientKey, why: Reason, text: impl FnOnce() -> String) {
        if self.ctx.clients.phase(key).is_some_and(|phase| phase < Phase::Flushing) {
            self.ctx.report(why, Some(Peer::Client(key)), text);
            self.close_client(key, Close::Flush, why);
        }
    }

    /// Writes to it fail.
    pub(super) fn on_client_broken(&mut self, key: ClientKey, why: &str) {
        let Some(client) = self.ctx.clients.get(key) else { return };
        if client.phase() == Phase::Closing {
            return;
        }
        let (pending, unsent) = (client.end().asked.len(), client.end().output.queued());
        let waiting = self.ctx.endpoint(key.into()).map_or(0, |end| end.stream.drop_waiting());
        self.ctx.report(Reason::ClientBroken, Some(Peer::Client(key)), || {
            let mut text = format!(
                "a client's connection broke ({why}); {pending} requests were pending, and {unsent} bytes were unsent"
            );
            if waiting > 0 {
                let lines = if waiting == 1 { "1 line" } else { &*format!("{waiting} lines") };
                text.push_str(&format!("; {lines} of it, or more, waited for a worker and are not delivered"));
            }
            text
        });
        self.close_client(key, Close::Now, Reason::ClientBroken);
    }

    /// Stops reading a client and closes it. Its requests and sessions end at once (spec 7.2). The first reason is the
    /// one that is reported.
    pub(super) fn close_client(&mut self, key: ClientKey, how: Close, why: Reason) {
        let Some(client) = self.ctx.clients.get_mut(key) else { return };
        let next = match how {
            Close::Refuse => Phase::Refusing,
            Close::Flush => Phase::Flushing,
            Close::Now => Phase::Closing,
        };
        if client.phase() >= next {
            return;
        }
        let first = client.phase() < Phase::Refusing;
        let (was_open, was_half_closed) = (client.phase() == Phase::Open, client.phase() == Phase::HalfClosed);
        let why = client.close(next, why);
        if how == Close::Flush {
            client.end_mut().output.begin_flush();
            await_flushed(&mut self.ctx, key);
        }
        if first {
            self.ctx.stop_waiting(Peer::Client(key));
            self.fleets.queue_mut().stop_awaiting_worker(&mut self.ctx, key);
            if was_open && matches!(why, Reason::ClientClosed | Reason::ClientBroken) {
                self.fleets.queue_mut().throttle_if_abandoned(&self.ctx, key);
            }
            self.detach_client(key);
        }
        if how == Close::Refuse {
            begin_refusing(&mut self.ctx, key);
        } else {
            record_left(&mut self.ctx, key);
        }
        // Workers that waited for it can continue: what they send to it has no receiver now.
        self.ctx.release_waiters(Peer::Client(key));
        let nothing_left = self.ctx.clients.get(key).is_some_and(|client| client.end().output.queued() == 0);
        if how == Close::Flush && was_half_closed && nothing_left {
            return self.close_client(key, Close::Now, why);
        }
        self.ctx.out.push(Effect::Close { client: key, how, why });
        self.recheck_quiesced();
    }

    /// Fails the requests of a client that can still get messages, and its workers may stop working on them.
    pub(super) fn fail_requests_of(&mut self, key: ClientKey, why: Reason, text: &str) {
        self.requests.notify_workers(&mut self.ctx, &self.sessions, &self.fleets, key);
        for request in self.requests.asked_by(&self.ctx, key.into()) {
            self.fail_request(request, why, text);
        }
    }

    /// Ends the requests of a client that leaves, and holds or drops its sessions.
    fn detach_client(&mut self, key: ClientKey) {
        self.requests.notify_workers(&mut self.ctx, &self.sessions, &self.fleets, key);
        for request in self.requests.asked_by(&self.ctx, key.into()) {
            // A cancelled request is no loss for its client.
            let is_cancelled = self.requests.get(request).is_some_and(|request| request.cancelled().is_some());
            let reason = if is_cancelled { Reason::Cancelled } else { Reason::RequestDiscarded };
            self.fail_request(request, reason, CLOSED_BEFORE);
        }
        self.requests.fail_requests_to_client(&mut self.ctx, &mut self.sessions, key, |_, _| true);
        while let Some(session) = self.ctx.clients.get(key).and_then(|client| client.end().sessions.first().copied()) {
            self.sessions.give_up(&mut self.ctx, session, false);
        }
        if self.fleets.balancer().lends() {
            self.fleets.give_back(&mut self.ctx, &self.requests, key);
        }
        let mut of_client: Vec<_> = self.ctx.clients.take_workers(key).into_iter().map(|(_, worker)| worker).collect();
        let leaves = |worker: &Worker| worker.owner() == Some(key) && worker.lifetime().is_leaving();
        of_client.extend(self.ctx.workers.iter().filter(|(_, worker)| leaves(worker)).map(|(worker, _)| worker));
        for worker in of_client {
            notice_end_of_work(&mut self.ctx, worker);
            if self.ctx.workers.owner(worker) == Some(key) {
                stop_worker(&mut self.ctx, worker);
            }
        }
    }

    /// A client loses a session to another connection: its pending requests in it are no longer wanted.
    pub(super) fn end_use_of_session(&mut self, key: ClientKey, session: SessionKey) {
        let is_in_it = |requests: &Requests, request: RequestKey| requests.sessions(request).contains(&Some(session));
        let mut outstanding = self.requests.asked_by(&self.ctx, key.into());
        outstanding.retain(|request| is_in_it(&self.requests, *request));
        if !outstanding.is_empty() {
            self.sessions.send_cancellation(&mut self.ctx, session);
        }
        for request in outstanding {
            let text = "another connection of the same name has taken this session over";
            self.fail_request(request, Reason::SessionTaken, text);
        }
        self.requests.fail_requests_to_client(&mut self.ctx, &mut self.sessions, key, is_in_it);
    }

    /// Its descriptor is closed.
    pub(super) fn on_client_closed(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.clients.get(key) else { return };
        if client.phase() != Phase::Closing {
            self.close_client(key, Close::Now, Reason::ClientClosed);
        }
        report_client(&mut self.ctx, Reason::ClientClosed, key);
        note_client(&mut self.ctx, key);
        let was_full = self.ctx.clients.is_full();
        let Some(client) = self.ctx.clients.remove(key) else { return };
        self.requests.forget_names(&client.end().names);
        self.fleets.openings_mut().forget_client(client.openings());
        self.ctx.workers.leave_audiences(key);
        release_gone_pools(&mut self.fleets, &mut self.ctx);
        self.ctx.timers.disarm(Timer::Client(key));
        self.fleets.admission_mut().leave(client.identity().source_use);
        self.ctx.out.stats().bytes_unsent += client.end().output.queued() as u64;
        if was_full {
            self.ctx.out.push(Effect::ResumeAccept);
        }
        if client.identity().stdio {
            if self.ctx.out.counted().client_side.lines_in == 0
                && self.ctx.settings.listeners.len() == 1
                && self.ctx.shutdown.stage() == Stage::Running
            {
                self.ctx.report(Reason::NoInput, None, || {
                    "stdin ended before any input; to serve clients that connect, add --tcp 127.0.0.1:9000, \
                     --unix PATH or listeners in the configuration"
                        .into()
                });
            }
            let lost_its_worker = client.closing().why() == Some(Reason::OwnWorkerEnded);
            let why = if lost_its_worker { "the worker of its one client has ended" } else { "stdin has ended" };
            self.begin_shutdown(why);
        }
        self.advance_shutdown();
    }

    /// Closes a client whose time is up.
    pub(super) fn tick_client(&mut self, key: ClientKey) {
        let now = self.ctx.time.now();
        let Limits { backpressure_timeout: timeout, drain_timeout, .. } = self.ctx.settings.limits;
        let Some(client) = self.ctx.clients.get(key) else { return };
        if client.end().gate.throttled_until().is_some_and(|until| until <= now) {
            self.ctx.end_throttle(key);
        }
        release_overdue(&mut self.ctx, self.fleets.queue_mut(), key.into());
        let Some(client) = self.ctx.clients.get_mut(key) else { return };
        let stalls_at = client.end().output.stalls_at(timeout).filter(|_| client.phase() < Phase::Closing);
        if client.phase() == Phase::HalfClosed {
            // As long as answers arrive and are taken, there may be more.
            let progress_at = client.progress_at();
            client.closing_mut().postpone(progress_at.after(drain_timeout));
        }
        let (deadline, phase, queued) = (client.closing().deadline(), client.phase(), client.end().output.queued());
        if stalls_at.is_some_and(|at| at <= now) {
            self.ctx.report(Reason::ClientStalled, Some(Peer::Client(key)), || {
                let seconds = timeout.as_secs_f32();
                format!("a client read nothing for {seconds} s with {queued} bytes queued; its connection is closed")
            });
            self.close_client(key, Close::Now, Reason::ClientStalled);
        } else if deadline.is_some_and(|at| at <= now) && phase != Phase::Refusing {
            if phase == Phase::HalfClosed {
                // Its answers become errors, and it is closed after the last one.
                let text = "the answer did not arrive within drain_timeout_sec after the end of the client's input";
                self.fail_requests_of(key, Reason::Timeout, text);
            } else {
                report_untaken(&mut self.ctx, key);
                self.close_client(key, Close::Now, Reason::ClientOverdue);
            }
        }
        let due = [self.tick_idle(key), self.tick_refusing(key)];
        let Some(client) = self.ctx.clients.get(key).filter(|client| client.phase() < Phase::Closing) else { return };
        // While its input is refused, its deadline may not hold (`due`).
        let deadline = client.closing().deadline().filter(|_| client.phase() != Phase::Refusing);
        let end = client.end();
        let own = [deadline, end.output.stalls_at(timeout), end.gate.throttled_until(), end.cold.first_line_expires()];
        if let Some(next) = due.into_iter().chain(own).flatten().min() {
            self.ctx.wake_at(key.into(), next);
        }
    }

    /// The next messages of a client of 2026-07-28 go to this worker as long as it lives and takes messages: they
    /// continue a request that it has begun to answer.
    pub fn prefer_worker(&mut self, client: ClientKey, worker: Option<WorkerKey>) {
        let Some(from) = self.ctx.clients.get_mut(client) else { return };
        if from.prefer(worker) != worker && self.fleets.queue().awaits_turn(client) {
            // The previous one may be free.
            self.ctx.timers.arm(Timer::WorkerQueue, self.ctx.time.now());
        }
    }

    /// The next lines of a client are from somebody in these groups: over HTTP each request says it anew. To be called
    /// before [`Bus::receive`].
    pub fn note_groups(&mut self, client: ClientKey, groups: Option<&Arc<str>>) {
        if self.fleets.balancer().denies() != DeniedTo::Nothing {
            self.ctx.note_groups(client, groups);
        }
    }

    /// Gives a session to another connection of its owner, with its children and the session that it is a child of.
    /// Pending requests belong to the old one, which may be dead: they get errors, and so do those that wait for its
    /// answers.
    pub(crate) fn take_session_over(&mut self, key: SessionKey, by: ClientKey) {
        let key = self.sessions.root_of(key);
        let Some(session) = self.sessions.get(key) else { return };
        let Some(old) = session.owner() else { return };
        let (name, worker) = (session.name().clone(), session.worker());
        let number = self.ctx.clients.client_number(by).unwrap_or_default();
        self.ctx.report_request(Reason::SessionTaken, [Some(old.into()), Some(worker.into())], || {
            let name = name.as_bytes().escape_ascii();
            (None, format!("client {number} of the same name has taken over session \"{name}\""))
        });
        for key in [key].into_iter().chain(self.sessions.family_of(key)) {
            self.end_use_of_session(old, key);
            self.sessions.hand_over(&mut self.ctx, key, by);
            self.ctx.workers.hand_elicitations_over(worker, key, by);
        }
        self.ctx.clients.forget_lost(by, name.as_bytes());
    }

    /// A client of an MCP listener has connected: a session, or one that sends requests of 2026-07-28. Its messages go
    /// only to `pool`. `None` without room, as with [`Bus::connect`], or if it may not use that pool.
    pub fn connect_mcp(
        &mut self,
        now: Moment,
        listener: impl Into<ListenerId>,
        origin: impl Into<Origin>,
        pool: impl Into<PoolId>,
        era: Era,
    ) -> (Option<ClientKey>, Effects<'_>) {
        self.ctx.begin_call(now);
        let (listener, origin, pool) = (listener.into(), origin.into(), pool.into());
        if !self.ctx.settings.offers(listener, &origin, pool) {
            return (None, self.effects());
        }
        let fleet = Some(pool.of(era)).filter(|fleet| self.fleets.pools().has(*fleet));
        let group = GroupId::Fleet(fleet.unwrap_or(pool.of(Era::Legacy)));
        let client = self.admit_client(listener, origin, Some((group, era)));
        (client, self.effects())
    }

    /// Reports that a client was rejected, and notifies the client if it has a connection for that, which is then closed.
    pub(crate) fn refuse_client(&mut self, client: Option<ClientKey>, source: Source, text: &str) {
        self.ctx.report(Reason::ConnectionLimit, client.map(Peer::Client), || {
            format!("a client from {source} is rejected: {text}")
        });
        if let Some(client) = client {
            send_error(&mut self.ctx, client.into(), b"null", Reason::ConnectionLimit, text, Delivered::Nothing);
            self.close_client(client, Close::Flush, Reason::ConnectionLimit);
        }
    }

    /// Closes a client that can still get messages, in an orderly way. `why` is the reason of the close and of its
    /// requests' errors, `text` a sentence for people.
    pub(crate) fn close_orderly(&mut self, key: ClientKey, why: Reason, text: &str) {
        let refusal = match why {
            Reason::ShuttingDown => Refusal(why, text.into()),
            _ => Refusal(Reason::ConnectionClosing, format!("this connection is being closed: {text}")),
        };
        let since = self.ctx.time.now();
        let Some(client) = self.ctx.clients.get_mut(key).filter(|client| client.phase() < Phase::Refusing) else {
            return;
        };
        client.closing_mut().refuse(since, why, refusal);
        self.fail_requests_of(key, why, text);
        // It may have no request whose error would show that the daemon keeps running.
        if why != Reason::ShuttingDown {
            send_error(&mut self.ctx, key.into(), b"null", why, text, Delivered::Nothing);
        }
        let is_open = self.ctx.clients.phase(key) == Some(Phase::Open);
        self.close_client(key, if is_open { Close::Refuse } else { Close::Flush }, why);
    }

    /// Bytes of a client whose input is refused.
    #[cold]
    pub(crate) fn refuse_lines(&mut self, key: ClientKey, window: Window<'_>) -> Received {
        let bytes = window.data().len();
        let (now, is_short) = (self.ctx.time.now(), self.shortage.is_on());
        let Some(client) = self.ctx.clients.refused(key) else { return Received { consumed: bytes, next: Next::Wait } };
        if !client.end().gate.is_open() {
            return Received { consumed: 0, next: Next::Wait };
        }
        if client.end().stream.has_more(bytes) {
            client.touch(now);
        }
        if client.closing().skips_line() {
            let end = memchr::memchr(b'\n', window.data());
            client.closing_mut().skip_line(end.is_none());
            client.end_mut().stream.discard(bytes);
            let consumed = end.map_or(bytes, |end| end + 1);
            count_refused(&mut self.ctx, key, consumed);
            return Received { consumed, next: if consumed < bytes { Next::Again } else { Next::Read } };
        }
        let saves_memory = client.closing().why() == Some(Reason::MemoryLimit) || is_short;
        let found = self.intake.find_lines(client, window);
        let mut received = self.route_lines(key.into(), window, found, 0);
        if received.next == Next::Read
            && saves_memory
            && received.consumed < bytes
            && let Some(client) = self.ctx.clients.refused(key)
        {
            client.closing_mut().skip_line(true);
            received.consumed = client.end_mut().stream.discard(bytes).consumed;
        }
        count_refused(&mut self.ctx, key, received.consumed);
        received
    }

    /// Continues the close of a client that was read to the end. Returns when to check it again.
    pub(crate) fn tick_refusing(&mut self, key: ClientKey) -> Option<Moment> {
        let client = self.ctx.clients.get(key).filter(|client| client.phase() == Phase::Refusing)?;
        // A client that is not read, because it does not take its errors, is not silent.
        let is_read = !client.end().gate.waits() && !client.end().stream.waits();
        let is_silent = is_read.then(|| {
            let is_amid_a_line = client.closing().skips_line() || client.end().stream.is_mid_line();
            let may_last = is_amid_a_line || client.closing().awaits_workers() && self.ctx.shutdown.has_workers();
            client.received_at().max(client.closing().since()).after(if may_last { LONGEST } else { SILENCE })
        });
        // One that is slow to take its errors has the time that the shutdown gives to all.
        let deadline = client.closing().deadline().filter(|_| is_read || !self.ctx.shutdown.has_deadline_for_clients());
        let due = [is_silent, deadline].into_iter().flatten().min()?;
        if due > self.ctx.time.now() {
            return Some(due);
        }
        report_unread(&mut self.ctx, key);
        self.close_client(key, Close::Flush, Reason::ClientClosed);
        None
    }

    /// Closes a client in an orderly way, unless it takes no bytes. On a second request, it is closed at once.
    pub(crate) fn on_close_client(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.clients.get(key) else { return };
        let pending = client.end().asked.len();
        let takes_nothing = client.end().output.is_full() || client.phase() >= Phase::Refusing;
        self.ctx.report(Reason::ClientKilled, Some(Peer::Client(key)), || {
            format!("the operator closes a client with {pending} requests pending")
        });
        if takes_nothing {
            return self.close_client(key, Close::Now, Reason::ClientKilled);
        }
        self.close_orderly(key, Reason::ClientKilled, "the operator closed this connection");
    }

    /// Closes a client whose token was removed, in an orderly way: nothing it sends is delivered from now on.
    pub(crate) fn on_token_removed(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.clients.get(key).filter(|client| client.phase() < Phase::Refusing) else { return };
        let pending = client.end().asked.len();
        self.ctx.report(Reason::TokenRemoved, Some(Peer::Client(key)), || {
            format!(
                "a client with {pending} requests pending is closed: its token is no longer in tokens_file, or is for \
                 other pools now"
            )
        });
        self.close_orderly(key, Reason::TokenRemoved, "the token of this connection is no longer valid here");
    }
}

impl Requests {
    /// Answers such requests of workers to this client with errors, since it will not answer them any more.
    fn fail_requests_to_client(
        &mut self,
        ctx: &mut Ctx,
        sessions: &mut Sessions,
        key: ClientKey,
        is_such: impl Fn(&Requests, RequestKey) -> bool,
    ) {
        for request in self.asked_of(ctx, key.into()) {
            if !is_such(self, request) {
                continue;
            }
            let asker = self.get(request).and_then(Request::asker);
            let (id, shown) = (self.asker_token(request), self.asker_text(request));
            self.forget(ctx, sessions, request);
            let Some(asker) = asker else { continue };
            ctx.report_request(Reason::ClientLeft, [Some(key.into()), Some(asker)], || {
                (Some(shown), "the client left before it answered a worker's request".into())
            });
            let text = "the client has left";
            send_error(ctx, asker, &id, Reason::ClientLeft, text, Delivered::Yes);
        }
    }
}

/// Reports that a client has connected or left, with its account. Connections that were only admitted to be rejected
/// because there is no room, and health checks of a proxy, are not reported as clients.
fn report_client(ctx: &mut Ctx, reason: Reason, key: ClientKey) {
    let Some(client) = ctx.clients.get(key) else { return };
    let lasted = ctx.time.lasted(client.identity().opened);
    let is_minor =
        client.identity().turned_away || client.identity().origin.is_proxy && client.end().traffic.lines_in == 0;
    let make = || {
        let has_gone = reason == Reason::ClientClosed;
        let text = if has_gone { "a client disconnected" } else { "a client connected" };
        let report = Report {
            client: Some(client.identity().number),
            origin: Some(Rc::clone(&client.identity().origin)),
            account: has_gone.then(|| client.account(lasted)),
            ..Report::new(reason, text)
        };
        if is_minor || client.mcp().is_modern() { report.at(Level::Debug) } else { report }
    };
    // It may connect anew for each of its requests.
    if client.mcp().is_modern() {
        return ctx.out.report_unlimited(reason, make);
    }
    let summary = ctx.out.report(ctx.time.now(), reason, make);
    ctx.timers.arm(Timer::Reports, summary);
}

/// Bytes were sent to a client: checks whether a closing one has all of its own.
pub(super) fn check_flushed(ctx: &mut Ctx, key: ClientKey) {
    let Some(client) = ctx.clients.get_mut(key).filter(|client| client.phase() == Phase::Flushing) else {
        return;
    };
    if client.end().output.queued() == 0 || client.end_mut().output.is_flush_progressing() {
        await_flushed(ctx, key);
    }
}

/// Gives a closing client time to take the rest, and then to close its own side.
fn await_flushed(ctx: &mut Ctx, key: ClientKey) {
    let has_more = ctx.clients.get(key).is_some_and(|client| client.end().output.queued() > 0);
    let patience = if has_more { ctx.settings.limits.drain_timeout } else { LINGER };
    set_close_deadline(ctx, key, patience.max(LINGER));
}

/// Whatever a client waits for, or is waited for, times out after `patience` from now.
fn set_close_deadline(ctx: &mut Ctx, key: ClientKey, patience: Duration) {
    let deadline = ctx.time.now().after(patience);
    if let Some(client) = ctx.clients.get_mut(key) {
        client.closing_mut().set_deadline(Some(deadline));
    }
    ctx.wake_at(key.into(), deadline);
}
