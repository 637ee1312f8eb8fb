//! Input: bytes are cut into lines, each line is routed, and the unhandled rest is kept.
//!
//! Most lines take the fast path, which looks up each peer once: a client's message in a session that it owns or in
//! none, the answer to it, and a notification in such a session or about the progress of a request. Anything unusual
//! about a line, its sender, its receiver or the tables sends it down the slow path (`router`), which has the same
//! result.

use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::{Line, PAD, Partial, ScanResult, Scanner, Span, Window};

use super::cancellation::prompt_flag;
use super::effects::EffectQueue;
use super::fleet::pool::Pools;
use super::id::{Id, Spelled};
use super::message::{KnownMethod, Parsed, has_method, print_of, verb};
use super::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, ShortText, WorkerKey};
use super::port::{Effect, Effects, Next, Received};
use super::request_log::{EndedRequest, RequestEnd, note_waiting};
use super::session::table::Sessions;
use super::settings::{Assignment, IdCollision, Settings};
use super::time::Time;
use super::timers::{Timer, Timers};
use super::worker::Worker;
use super::{Bus, pool_stats};
use crate::ctx::Ctx;
use crate::fleet::balancer::{DeniedTo, Groups};
use crate::flow::waste::MANY;
use crate::peers::{Client, Clients, Endpoint, Phase, Workers};
use crate::requests::{Flags, FoundRequest, IndexSlot, NewRequest, Requests};
use crate::view::View;

/// The lines of the window that is being read, and what finding them needs.
#[derive(Default)]
pub(super) struct Intake {
    scanner: Scanner,
    batch: Vec<Line>,
    /// Number of lines that took the fast path.
    #[cfg(any(test, feature = "testing"))]
    fast_lines: u64,
    /// All lines take the slow path.
    #[cfg(any(test, feature = "testing"))]
    is_plain: bool,
}

impl Intake {
    /// The lines that were found last.
    pub(super) fn batch(&self) -> &[Line] {
        &self.batch
    }

    /// Number of the first lines that take the fast path; none is longer than the limit.
    #[inline(always)]
    fn count_while(&self, limit: usize, mut fits: impl FnMut(&Line) -> Option<()>) -> usize {
        self.batch.iter().take_while(|line| line.span.len() <= limit && fits(line).is_some()).count()
    }

    /// The line in a window that holds nothing else, and was taken before.
    fn find_again(&mut self, window: Window<'_>) -> Option<Line> {
        let mut lines = Vec::new();
        self.scanner.scan(&mut Partial::of_any_depth(), window, &mut lines);
        lines.first().copied()
    }

    /// This many lines have taken the fast path. Returns `None` if there are more, or the rest is malformed.
    #[inline(always)]
    fn finish(
        &mut self,
        end: &mut Endpoint,
        now: Moment,
        bytes: usize,
        outcome: ScanResult,
        lines: usize,
        limit: usize,
    ) -> Option<Received> {
        #[cfg(any(test, feature = "testing"))]
        {
            self.fast_lines += lines as u64;
        }
        let is_too_long = end.stream.unfinished(bytes) > limit;
        if lines < self.batch.len() || is_too_long || matches!(outcome, ScanResult::Malformed { .. }) {
            return None;
        }
        take_lines(end, now, &self.batch);
        Some(end.stream.finish(bytes, outcome))
    }

    /// The next lines of a client, all of which are refused.
    pub(super) fn find_lines(&mut self, client: &mut Client, window: Window<'_>) -> ScanResult {
        client.end_mut().stream.find_lines(&mut self.scanner, window, &mut self.batch)
    }

    /// A worker's bytes were received. If too much of its output is for nobody, it is not read for a moment.
    #[cold]
    fn charge_undeliverable(&self, ctx: &mut Ctx, key: WorkerKey, mut received: Received) -> Received {
        let lines = &self.batch;
        let blank = match received.consumed {
            consumed if lines.is_empty() => consumed,
            // What lies between the lines, blank ones, counts as well.
            consumed @ MANY.. => consumed - lines.iter().map(|line| line.span.len() + 1).sum::<usize>().min(consumed),
            _ => 0,
        };
        let found = lines.len();
        let worker = ctx.workers.get(key).filter(|worker| !worker.process().is_drained());
        if worker.is_some_and(|worker| blank > 0 || worker.undeliverable().has_any()) {
            ctx.pause_for_undeliverable(key, blank, found, &mut received);
        }
        received
    }
}

/// The result of routing one line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// It was handled.
    Next,
    /// Its receiver is full: its sender waits, and the line is presented again.
    Blocked,
    /// The bytes of its sender are passed over up to `to`, and a line begins there.
    PassedOver {
        /// The number of bytes.
        to: usize,
        /// What follows is to be looked at; else more has to come.
        has_more: bool,
    },
    /// Its sender is not read any more.
    Over,
}

/// Length of the line that begins at `line`, as far as it was received.
pub(super) fn length_of_line(window: Window<'_>, line: usize) -> usize {
    let rest = &window.data()[line..];
    memchr::memchr(b'\n', rest).unwrap_or(rest.len())
}

/// Length of these lines, the first of a window.
#[inline(always)]
fn bytes_of(lines: &[Line]) -> usize {
    lines.last().map_or(0, |last| last.span.end as usize + 1)
}

/// These lines, the first of a window, were taken from a peer.
#[inline(always)]
fn take_lines(end: &mut Endpoint, now: Moment, lines: &[Line]) {
    if !lines.is_empty() {
        end.stream.note_lines(now);
        end.traffic.lines_in += lines.len() as u64;
        end.traffic.bytes_in += bytes_of(lines) as u64;
    }
}

/// The parts of the bus that a line on the fast path may need, besides its sender and its receiver.
struct FastPath<'a> {
    time: &'a Time,
    settings: &'a Settings,
    sessions: &'a mut Sessions,
    requests: &'a mut Requests,
    pools: &'a mut Pools,
    groups: &'a mut Groups,
    timers: &'a mut Timers,
    out: &'a mut EffectQueue,
    /// Number of clients.
    clients: usize,
    /// A worker's health has improved.
    workers_changed: &'a mut bool,
}

/// The parts of the bus that the fast path needs while one peer is already borrowed.
macro_rules! fast_path {
    ($bus:ident, $clients:ident) => {{
        let (pools, groups) = $bus.fleets.for_lines();
        FastPath {
            time: &$bus.ctx.time,
            settings: &$bus.ctx.settings,
            sessions: &mut $bus.sessions,
            requests: &mut $bus.requests,
            pools,
            groups,
            timers: &mut $bus.ctx.timers,
            out: &mut $bus.ctx.out,
            clients: $clients,
            workers_changed: &mut $bus.ctx.workers_changed,
        }
    }};
}

impl Bus {
    /// Bytes have arrived from `from`: `window` holds everything of it that was not consumed yet.
    ///
    /// Handles at most [`BATCH`](ndjson_scan::BATCH) lines, so that one peer cannot hold up the others;
    /// [`Received::next`] says how to continue. The effects refer to the window.
    // The daemon calls it in three places, and has one function for them; the benchmark with its one place is to measure
    // the same.
    #[inline(never)]
    pub fn receive(&mut self, now: Moment, from: Peer, window: Window<'_>) -> (Received, Effects<'_>) {
        self.ctx.begin_call(now);
        let received = match from {
            Peer::Client(client) => {
                let received = self.receive_from_client(client, window);
                self.ctx.out.stats().client_side.bytes_in += received.consumed as u64;
                received
            }
            Peer::Worker(worker) => {
                let received = self.receive_from_worker(worker, window);
                self.ctx.out.stats().worker_side.bytes_in += received.consumed as u64;
                received
            }
        };
        (received, self.effects_of_lines())
    }

    fn receive_from_client(&mut self, key: ClientKey, window: Window<'_>) -> Received {
        let now = self.ctx.time.now();
        let count = self.ctx.clients.len();
        let limit = self.ctx.settings.limits.max_input_buffer;
        let denies = self.fleets.balancer().denies();
        let may_take_fast_path = self.may_take_fast_path();
        let bytes = window.data().len();
        let Some(client) = self.ctx.clients.get_mut(key) else {
            return Received { consumed: bytes, next: Next::Wait };
        };
        // It does not look at methods.
        let takes_fast_path = may_take_fast_path
            && (denies == DeniedTo::Nothing || denies == DeniedTo::Some && client.rules().is_empty());
        if client.phase() != Phase::Open {
            return self.refuse_lines(key, window);
        }
        let refused = client.end().traffic.refused;
        if !client.end().gate.lets_through() {
            self.ctx.is_throttled(key);
            return Received { consumed: 0, next: Next::Wait };
        }
        // The kept bytes are presented again.
        if client.end().stream.has_more(bytes) {
            client.touch(now);
        }
        // The fast path needs the client and its endpoint apart. It is put back below: nothing returns before.
        let mut taken = client.take_end();
        let end = &mut *taken;
        let found = end.stream.find_lines(&mut self.intake.scanner, window, &mut self.intake.batch);
        let (mut lines, mut received) = (0, None);
        // Lines that have waited may be overdue.
        let has_waited = end.cold.kept().is_some();
        if takes_fast_path && !has_waited {
            let (mut path, workers) = (fast_path!(self, count), &mut self.ctx.workers);
            lines = self.intake.count_while(limit, |line| {
                path.try_client_line(key, client, end, workers, Parsed { window: &window, line })
            });
            self.ctx.out.stats().client_side.lines_in += lines as u64;
            received = self.intake.finish(end, now, bytes, found, lines, limit);
        }
        client.put_end(taken);
        let mut received = received.unwrap_or_else(|| self.route_lines(key.into(), window, found, lines));
        // What it had to wait with is refused, too.
        if !takes_fast_path && self.close_refused(key, refused) && received.next == Next::Wait {
            received.next = Next::Again;
        }
        received
    }

    fn receive_from_worker(&mut self, key: WorkerKey, window: Window<'_>) -> Received {
        let now = self.ctx.time.now();
        let count = self.ctx.clients.len();
        let limit = self.ctx.settings.limits.max_worker_line();
        let (bytes, takes_fast_path) = (window.data().len(), self.may_take_fast_path());
        let Some(worker) = self.ctx.workers.get_mut(key).filter(|worker| !worker.process().is_drained()) else {
            return Received { consumed: bytes, next: Next::Wait };
        };
        if !worker.end().gate.is_open() {
            return Received { consumed: 0, next: Next::Wait };
        }
        if worker.bad_lines().is_mid_line() {
            self.intake.batch.clear();
            let received = self.receive_stray(key, window);
            return self.intake.charge_undeliverable(&mut self.ctx, key, received);
        }
        let found = worker.end_mut().stream.find_lines(&mut self.intake.scanner, window, &mut self.intake.batch);
        let mut lines = 0;
        let has_waited = worker.end().cold.kept().is_some();
        if takes_fast_path && !worker.lifetime().is_leaving() && !has_waited {
            let (mut path, clients) = (fast_path!(self, count), &mut self.ctx.clients);
            lines = self.intake.count_while(limit, |line| {
                let parsed = Parsed { window: &window, line };
                match line.id.is_some() {
                    true => path.pass_answer(key, worker, clients, parsed),
                    false => path.pass_notification(key, worker, clients, parsed),
                }
            });
            self.ctx.out.stats().worker_side.lines_in += lines as u64;
            if let Some(received) = self.intake.finish(worker.end_mut(), now, bytes, found, lines, limit) {
                let may_be_useless = worker.undeliverable().is_suspected(lines, received.consumed);
                return if may_be_useless {
                    self.intake.charge_undeliverable(&mut self.ctx, key, received)
                } else {
                    received
                };
            }
        }
        let received = self.route_lines(key.into(), window, found, lines);
        self.intake.charge_undeliverable(&mut self.ctx, key, received)
    }

    /// Whether lines may take the fast path, which checks neither the shutdown nor pauses.
    #[inline(always)]
    fn may_take_fast_path(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if self.intake.is_plain {
            return false;
        }
        !self.fleets.pools().are_paused() && !self.ctx.shutdown.refuses_requests()
    }

    /// Routes lines one after the other, until one of them has to wait or is the last of its sender. The first `lines`
    /// are already routed.
    pub(super) fn route_lines(
        &mut self,
        from: Peer,
        window: Window<'_>,
        outcome: ScanResult,
        mut lines: usize,
    ) -> Received {
        let (batch, first) = (core::mem::take(&mut self.intake.batch), lines);
        let limit = self.ctx.settings.longest_line(from);
        let kept = self.ctx.peer_end(from).and_then(|end| end.cold.kept());
        let now = self.ctx.time.now();
        let mut flow = Flow::Next;
        for line in &batch[lines..] {
            if let Some(kept) = &kept {
                self.ctx.time.take_line(kept.taken_at(line.span.end as usize, now));
            }
            flow = if line.span.len() > limit {
                self.line_too_long(from, window, line.span.start as usize)
            } else {
                let line = Parsed { window: &window, line };
                match from {
                    Peer::Client(client) => self.client_line(client, line),
                    Peer::Worker(worker) => self.worker_line(worker, line),
                }
            };
            // The line is complete, and the next one follows.
            if let Flow::PassedOver { .. } = flow {
                flow = Flow::Next;
            }
            if flow != Flow::Next {
                break;
            }
            lines += 1;
            if lines < batch.len()
                && let Peer::Client(client) = from
                && self.ctx.is_throttled(client)
            {
                flow = Flow::Blocked;
                break;
            }
        }
        let bytes = window.data().len();
        if flow == Flow::Next {
            // What follows its whole lines may be malformed, or too long.
            let unfinished = self.ctx.peer_end(from).map_or(0, |end| end.stream.unfinished(bytes));
            flow = match outcome {
                // Read in pieces, it would have been too long before the fault was seen.
                ScanResult::Malformed { line, .. } if length_of_line(window, line) > limit => {
                    self.line_too_long(from, window, line)
                }
                ScanResult::Malformed { line, at, fault } => self.malformed(from, window, line, at, fault),
                ScanResult::More if unfinished > limit => self.line_too_long(from, window, bytes - unfinished),
                ScanResult::More | ScanResult::Full => Flow::Next,
            };
        }
        self.ctx.out.side(from).lines_in += (lines - first) as u64;
        // The scan state of the unhandled bytes is kept.
        let (done, waiting) = batch.split_at(lines);
        let is_timed = self.ctx.settings.has_time_limits() || self.ctx.out.keeps_records();
        let waits = flow == Flow::Blocked && is_timed;
        if let Peer::Client(client) = from
            && (waits || kept.is_some())
            && self.ctx.out.keeps_records()
        {
            let first = waiting.first().filter(|_| waits).map(|line| {
                let taken_at = kept.as_ref().map_or(now, |kept| kept.taken_at(line.span.end as usize, now));
                (Parsed { window: &window, line }, taken_at)
            });
            note_waiting(&self.fleets, &mut self.ctx, &self.sessions, client, first);
        }
        let received = self.ctx.endpoint(from).map(|end| {
            take_lines(end, now, done);
            let received = match flow {
                Flow::Next => end.stream.finish(bytes, outcome),
                Flow::Blocked => end.stream.wait(bytes, bytes_of(done), waiting),
                Flow::PassedOver { to, has_more } => end.stream.pass_over(bytes, to, has_more),
                Flow::Over => end.stream.discard(bytes),
            };
            if waits || kept.is_some() {
                end.cold.keep(now, bytes, received.consumed, waits);
            }
            received
        });
        self.intake.batch = batch;
        received.unwrap_or(Received { consumed: bytes, next: Next::Wait })
    }

    /// Does something with a line that has been kept, with its newline, as if it were read again. None if there is none.
    pub(super) fn with_kept_line<R>(
        &mut self,
        kept: &[u8],
        then: impl FnOnce(&mut Self, Parsed<'_>) -> R,
    ) -> Option<R> {
        let mut padded = vec![0; PAD + kept.len() + PAD];
        padded[PAD..][..kept.len()].copy_from_slice(kept);
        let window = Window::new(&padded, PAD, PAD + kept.len());
        let line = self.intake.find_again(window)?;
        Some(then(self, Parsed { window: &window, line: &line }))
    }

    /// Makes all lines take the slow path, which must have the same results.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_fast_path(mut self) -> Self {
        self.intake.is_plain = true;
        self
    }
}

impl Settings {
    /// Whether requests to any worker, or of any, time out.
    fn has_time_limits(&self) -> bool {
        self.pools.iter().any(|pool| pool.request_timeout.is_some())
    }

    /// Longest line that `peer` may send, in bytes without its newline.
    pub(super) fn longest_line(&self, peer: Peer) -> usize {
        match peer {
            Peer::Client(_) => self.limits.max_input_buffer,
            Peer::Worker(_) => self.limits.max_worker_line(),
        }
    }
}

impl View<'_> {
    /// Number of lines that took the fast path.
    #[cfg(any(test, feature = "testing"))]
    pub fn fast_lines(&self) -> u64 {
        self.bus.intake.fast_lines
    }
}

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
    fn worker_for(&self, client: &Client) -> Option<(WorkerKey, bool)> {
        let group = &self.groups[client.group()];
        let is_open = group.fleets().all(|fleet| self.pools[fleet].is_used());
        let is_asked_for =
            client.mcp().borrows || client.mcp().preferred.is_some() || group.has_listeners() || !is_open;
        if is_asked_for || !client.offers().is_empty() {
            return None;
        }
        match client.assigned().iter().find(|(of, _)| *of == client.group()) {
            Some((_, worker)) => Some((*worker, true)),
            None if group.assignment() == Assignment::RoundRobin => Some((self.pools[group.next()?].worker()?, false)),
            None => None,
        }
    }

    /// The destination of a client's line: worker, session, and whether that takes a turn of the worker's group.
    #[inline(always)]
    fn destination<'w>(
        &self,
        key: ClientKey,
        client: &Client,
        own: &[SessionKey],
        workers: &'w mut Workers,
        line: Parsed<'_>,
    ) -> Option<(WorkerKey, &'w mut Worker, Option<SessionKey>, bool)> {
        let Some(name) = Self::only_name(line)? else {
            let (worker_key, is_its_own) = self.worker_for(client)?;
            let worker = workers.get_mut(worker_key)?;
            if worker.is_on_trial() || !is_its_own && worker.health().is_raised() {
                return None;
            }
            let is_assigned = || self.groups[client.group()].assignment() == Assignment::Client;
            let is_usable = !is_its_own || worker.owner() == Some(key) || is_assigned();
            return is_usable.then_some((worker_key, worker, None, !is_its_own));
        };
        let (session_key, session) = self.sessions.named_by(key, own, name)?;
        if !session.has_plain_name() {
            return None;
        }
        let worker = workers.get_mut(session.worker())?;
        let gives_out_names = || self.sessions.issues_names(worker);
        let is_open = session.is_open_at_once(!self.sessions.session_users().is_empty(), gives_out_names);
        is_open.then_some((session.worker(), worker, Some(session_key), false))
    }

    /// Routes a client's line. None if it has to take the slow path, and then nothing has been done.
    #[inline(always)]
    fn try_client_line(
        &mut self,
        key: ClientKey,
        client: &Client,
        from: &mut Endpoint,
        workers: &mut Workers,
        line: Parsed<'_>,
    ) -> Option<()> {
        if !line.method.is_some() || line.token.is_some() || verb(line) != KnownMethod::Other {
            return None;
        }
        let (worker_key, worker, session, takes_turn) = self.destination(key, client, &from.sessions, workers, line)?;
        // A worker may have to be sent the client's `initialize` first (`fleet/eras/opening.rs`).
        if !worker.takes_messages()
            || !worker.audience().has(key)
            || worker.greeting().is_asking()
            || worker.end().output.is_full()
            || worker.end().cold.is_blocked()
            || from.cold.has_turn()
        {
            return None;
        }
        let in_turns = worker.owner().is_none() && !client.identity().stdio;
        let others_wait = worker.end().output.has_waiters();
        if in_turns && !worker.window().has_room_for(key, others_wait, self.clients == 1) {
            return None;
        }
        let made = if line.id.is_some() { self.try_ask(key, from, (worker_key, worker), session, line)? } else { None };
        if let Some(session) = session {
            self.sessions.use_now(session, self.time.now(), line.id.is_some());
        }
        if takes_turn {
            self.groups[client.group()].advance();
        }
        let bytes = line.span.len() + 1;
        if in_turns {
            worker.window_mut().mark_line_end(key, bytes);
        }
        let bytes = self.copy(worker_key.into(), line, made, bytes);
        let is_shared = self.clients > 1 && worker.owner().is_none();
        worker.window_mut().push(self.time.now(), bytes, is_shared);
        self.count_queued(worker_key.into(), worker.end_mut(), bytes);
        Some(())
    }

    /// Records the request of a client's line. Returns the number that replaces its id, if one does. None if it has to
    /// take the slow path.
    #[inline(always)]
    fn try_ask(
        &mut self,
        client: ClientKey,
        from: &mut Endpoint,
        (worker_key, worker): (WorkerKey, &mut Worker),
        session: Option<SessionKey>,
        line: Parsed<'_>,
    ) -> Option<Option<u64>> {
        let (token, progress) = (line.get(line.id), line.meta.progress);
        let Spelled { id, is_plain, is_escaped } = Spelled::parse(token).ok()?;
        // Clients use the id as progress token.
        let is_unusual = !worker.end().cold.accepts_any_id()
            || self.settings.routing.id_collision == IdCollision::Always
            || progress.is_some() && (self.requests.has_other_tokens() || line.get(progress) != token)
            || !is_plain;
        if is_unusual || is_escaped {
            return None;
        }
        let free = self.requests.find_or_place(worker_key.into(), &id).err();
        if !self.requests.has_room(worker_key.into(), self.clients, from.asked.len()) {
            return None;
        }
        let is_known =
            matches!(id, Id::Number(number) if worker.end().names.are_known(client.into(), client.index(), number));
        let (place, replaced) = match free {
            Some(place) if is_known => (place, None),
            free => self.claim_or_replace(client, (worker_key, worker), &id, free, progress)?,
        };
        let on_top = if line.session.is_some() { Flags::ON_TOP } else { 0 };
        let expires = worker.answering().limits().first_deadline(self.time.now());
        let on_top = on_top | prompt_flag(line, session, expires);
        let (flags, print) = match replaced {
            Some((original, _)) => (Flags::UNUSUAL, original),
            None if worker.answering().responds() => (0, 0),
            None => (0, print_of(line, progress)),
        };
        let new = NewRequest {
            asker: client.into(),
            answerer: worker_key.into(),
            session,
            second_session: None,
            flags: flags | if progress.is_some() { on_top | Flags::TOKEN_IS_ID } else { on_top },
            verb: KnownMethod::Other,
            expires,
            print,
        };
        let (made, made_id);
        let wire = match replaced {
            None => {
                made = None;
                &id
            }
            Some((_, number)) => {
                self.out.stats().ids_translated += 1;
                (made, made_id) = (Some(number), Id::Number(number));
                &made_id
            }
        };
        let came_at = self.time.came_at();
        let request = self.requests.insert(came_at, place, &new, wire, None, &mut from.asked)?;
        if let Some(records) = self.out.records() {
            // A line that has waited takes the slow path.
            records.begin(self.time.now(), request, line, Duration::ZERO);
        }
        if expires != Moment::NEVER {
            if worker.answering().limits().limit_silence() {
                let expires = worker.answering().limits().expires(self.time.now());
                self.requests.watch_mut().begin(request, self.time.now(), expires);
            }
            self.timers.arm(Timer::Requests, expires);
        }
        from.traffic.asked += 1;
        worker.end_mut().to_answer.begin();
        let at = worker.begin_request(self.time.now());
        if at.is_some() {
            self.timers.arm(Timer::Worker(worker_key), at);
        }
        Some(made)
    }

    /// The id of a request is not known to be its client's: it is from now on, if `free` is a place for it that no pending
    /// request has and no other client owns it. Otherwise a number is replaced: returns the place of the new one, and
    /// both. None if it has to take the slow path: the number is long, or the worker may echo requests.
    #[cold]
    fn claim_or_replace(
        &mut self,
        client: ClientKey,
        (worker_key, worker): (WorkerKey, &mut Worker),
        id: &Id,
        free: Option<IndexSlot>,
        progress: Span,
    ) -> Option<(IndexSlot, Option<(u32, u64)>)> {
        let responds = worker.answering().responds();
        let names = &mut worker.end_mut().names;
        if let Some(place) = free
            && self.requests.claim_name(names, client.into(), client.index(), id)
        {
            return Some((place, None));
        }
        let Id::Number(number) = id else { return None };
        let original = u32::try_from(*number).ok().filter(|_| responds && !progress.is_some())?;
        let made = names.make_new_number()?;
        let place = self.requests.find_or_place(worker_key.into(), &Id::Number(made)).err()?;
        Some((place, Some((original, made))))
    }

    /// Copies a line to a peer, with this number for its id, if any. Returns how long it is then.
    #[inline(always)]
    fn copy(&mut self, to: Peer, line: Parsed<'_>, id: Option<u64>, bytes: usize) -> usize {
        if let Some(id) = id {
            return self.copy_renamed(to, line, id);
        }
        self.out.copy(to, line.span.start, line.span.end + 1);
        bytes
    }

    #[cold]
    fn copy_renamed(&mut self, to: Peer, line: Parsed<'_>, id: u64) -> usize {
        let text = ShortText::of_number(id);
        let bytes = line.span.len() + 1 - line.id.len() + text.as_bytes().len();
        self.out.copy(to, line.span.start, line.id.start);
        self.out.push(Effect::Insert { to, text });
        self.out.copy(to, line.id.end, line.span.end + 1);
        bytes
    }

    /// So many bytes were copied to a peer whose output was not full.
    #[inline(always)]
    fn count_queued(&mut self, to: Peer, end: &mut Endpoint, bytes: usize) {
        if self.out.count_queued(self.time.now(), to, end, bytes, self.settings.limits.max_output_queue) {
            self.timers.arm(to.into(), self.time.now().after(self.settings.limits.backpressure_timeout));
        }
    }

    /// An ordinary answer to an ordinary request. None if it has to take the slow path, and then nothing has been done.
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
        let found = self.requests.find_written(key.into(), line.get(line.id))?;
        let FoundRequest { key: request_key, request, place } = found;
        let client_key = request.waiting_client().filter(|_| request.is_simple())?;
        let (session, since) = (request.session(), request.since());
        let original = request.original_number();
        if original.is_some() && (!line.meta.is_empty() || self.out.keeps_records()) {
            return None;
        }
        let (identity, mcp, end) = clients.get_mut(client_key)?.take_simple_answer()?;
        let took = self.time.lasted(since);
        if let Some(session) = session {
            self.sessions.end_simple_request(session, client_key, line.flags == Line::RESULT)?;
        }
        end.cold.forget_crashes();
        mcp.answered_by = Some(key);
        self.requests.end(request_key, place, &mut end.asked);
        worker.end_mut().to_answer.orphan();
        worker.end_mut().to_answer.end();
        end.meter.add(since, self.time.now());
        *self.workers_changed |= worker.answering_mut().answers(true);
        self.pools.stats_mut(worker.fleet().pool).answered(pool_stats::Outcome::of_answer(&line), took);
        if let Some(records) = self.out.records()
            && records.has(request_key)
        {
            let session = session.and_then(|session| self.sessions.get(session));
            let session = session.map(|session| session.name().clone()).unwrap_or_default();
            let ended = EndedRequest::of(client_key, identity, RequestEnd::of_answer(line));
            let id = line.get(line.id).into();
            records.end(request_key, EndedRequest { worker: Some(worker.name()), took, id, session, ..ended });
        }
        let bytes = self.copy(client_key.into(), line, original.map(u64::from), line.span.len() + 1);
        self.count_queued(client_key.into(), end, bytes);
        Some(())
    }

    /// The client that has made the request of a progress notification, under its id.
    #[inline(always)]
    fn asker_of_progress(&self, worker: WorkerKey, line: Parsed<'_>) -> Option<(RequestKey, ClientKey)> {
        if !has_method(line, b"notifications/progress") {
            return None;
        }
        let FoundRequest { key, request, .. } = self.requests.find_written(worker.into(), line.get(line.token))?;
        let client = request.waiting_client().filter(|_| request.has_own_id_as_token())?;
        Some((key, client))
    }

    /// The only client of a worker, for messages that name no client.
    #[inline(always)]
    fn only_client(&self, worker: &Worker, line: Parsed<'_>) -> Option<ClientKey> {
        let is_its_own = self.settings.pools[worker.fleet()].assignment == Assignment::Dedicated;
        let names_none = is_its_own && worker.elicitations().is_empty() && verb(line) == KnownMethod::Other;
        worker.owner().filter(|_| names_none)
    }

    /// A notification in a session that the worker has given out, of a request's progress, or for its only client. None
    /// as for an answer.
    #[inline(always)]
    fn pass_notification(
        &mut self,
        key: WorkerKey,
        worker: &Worker,
        clients: &mut Clients,
        line: Parsed<'_>,
    ) -> Option<()> {
        let name = Self::only_name(line)?;
        if worker.updates().are_watched() && worker.updates().are_noted(line.get(line.span)) {
            return None;
        }
        let (session, request, client_key) = match (name, line.token.is_some()) {
            (Some(name), false) => {
                let session_key = self.sessions.of_worker(key, name)?;
                let session = self.sessions.get(session_key).filter(|session| session.has_plain_name())?;
                (Some(session_key), None, session.addressee(|| worker.creating().may_give_out_a_name(), || false)?)
            }
            (None, true) => {
                let (request, client) = self.asker_of_progress(key, line)?;
                (None, Some(request), client)
            }
            (None, false) => (None, None, self.only_client(worker, line)?),
            (Some(_), true) => return None,
        };
        let client = clients.get_mut(client_key)?;
        if client.phase() > Phase::HalfClosed || client.mcp().borrows {
            return None;
        }
        let end = client.used_end_mut().filter(|end| !end.output.is_full())?;
        if name.is_some() || line.token.is_some() {
            end.cold.forget_crashes();
        }
        if let Some(session) = session.filter(|_| self.settings.limits.session_idle.is_some()) {
            self.sessions.touch(session, self.time.now());
        }
        if worker.answering().limits().limit_silence() {
            session.into_iter().for_each(|session| self.sessions.touch_by_worker(session, self.time.now()));
            request.into_iter().for_each(|request| self.requests.watch_mut().touch(request, self.time.now()));
        }
        let bytes = self.copy(client_key.into(), line, None, line.span.len() + 1);
        self.count_queued(client_key.into(), end, bytes);
        Some(())
    }
}
