//! How lines get to their receivers: queued with the pieces that are replaced, held back while the receiver is full or
//! others have their turn, resumed when there is room (spec 7.3, design 2.12).
//!
//! Invariant: a peer waits for one output at a time, and is in the list of that output once.

use std::time::Duration;

use super::Bus;
use super::message::Edits;
use super::peer::{ClientKey, Moment, Peer, WorkerKey};
use super::port::{Close, Effect};
use super::report::Reason;
use crate::scan::{Line, Span};

/// What is queued for a client that reads more slowly than a shared worker writes may grow to so many times
/// max_output_queue; then the client is closed.
const SLOW_READER_LIMIT: usize = 4;
/// How long one worker may be held up in all by clients that read slowly, while others use it.
const PATIENCE: Duration = Duration::from_millis(500);
/// So many parts of the time that passes come back.
const PATIENCE_RETURNS: u32 = 100;
/// Of backpressure_timeout: after this part without a byte read, a worker is no longer fed in turns, and its output
/// may fill up.
const STUCK_AFTER: u32 = 4;
/// Bytes of a client's turn before a worker that several wait for.
const QUANTUM: usize = 64 * 1024;
/// How long it is believed that others use a worker.
const SHARED_FOR: Duration = Duration::from_millis(10);

/// How much longer a worker may be held up.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    left: Duration,
    at: Moment,
    /// It is being held up since then, and others use it.
    since: Option<Moment>,
    /// Others used it when that was looked at last.
    shared_until: Moment,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left: PATIENCE, at: Moment::default(), since: None, shared_until: Moment::default() }
    }
}

impl Patience {
    fn left(&mut self, now: Moment) -> Duration {
        self.left = PATIENCE.min(self.left + now.since(self.at) / PATIENCE_RETURNS);
        self.at = now;
        self.left
    }

    /// When a worker that is held up goes on whatever its reader does.
    pub fn ends(&self) -> Option<Moment> {
        self.since.map(|since| since.after(self.left))
    }

    fn begin(&mut self, now: Moment) -> Duration {
        let left = self.left(now);
        self.since = Some(now);
        left
    }

    fn end(&mut self, now: Moment) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.since(since));
            self.at = now;
        }
    }
}

/// Whether a line may be queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// It may.
    Free,
    /// Its sender waits.
    Wait,
    /// Its receiver was closed just now: the line has to find its way again.
    Closed,
}

impl Bus {
    /// Whether `from` has to wait before it speaks to itself: an error in place of an answer.
    pub(super) fn waits_for_itself(&mut self, peer: Peer) -> bool {
        let is_full = self.endpoint(peer).is_some_and(|end| end.output.is_full());
        if is_full {
            self.wait(peer, peer);
        }
        is_full
    }

    /// Whether a client has to wait before it sends `bytes` to a worker: the worker is full, or others have their turn.
    pub(super) fn waits_for_worker(&mut self, now: Moment, client: ClientKey, worker: WorkerKey, bytes: usize) -> bool {
        let alone = self.clients.len() == 1;
        let Some(to) = self.workers.get_mut(worker) else { return false };
        let is_full = to.end.output.is_full();
        let Some(from) = self.clients.get_mut(client) else { return false };
        let in_turns = to.owner.is_none() && !from.stdio;
        if !is_full && !in_turns {
            return false;
        }
        let has_turn = from.granted.take() == Some(worker);
        let others_wait = !to.end.output.waiters().is_empty();
        if !is_full && (!in_turns || has_turn || to.window.takes_line_of(client.index(), others_wait, alone)) {
            to.window.ends_line_of(client.index(), bytes);
            if to.end.blocked_on.is_some() {
                self.hurries(now, worker, client);
            }
            return false;
        }
        from.waits_with = bytes;
        if in_turns {
            // What is known may be old: the first one who waits finds out.
            if self.fed_in_turns.contains(&worker) && !others_wait {
                self.look_at_feed(now, worker);
            }
            self.takes_turns(now, worker);
        }
        // A worker may have no room because it is held up itself.
        self.hurries(now, worker, client);
        self.wait(Peer::Client(client), Peer::Worker(worker));
        true
    }

    /// Whether there is room at a client for a line of a worker. A worker that others use too is not held up for long
    /// by one that reads slowly: what is for the slow one is kept up to a limit, then the slow one is closed.
    pub(super) fn room_at_client(&mut self, now: Moment, worker: WorkerKey, client: ClientKey) -> Room {
        let Some(to) = self.clients.get_mut(client) else { return Room::Free };
        if !to.end.output.is_full() {
            // The worker lives and answers, so no request of this client has ended it.
            to.crashes = 0;
            return Room::Free;
        }
        let queued = to.end.output.queued();
        if !self.is_used_by_others(now, worker, client) {
            self.wait(Peer::Worker(worker), Peer::Client(client));
            return Room::Wait;
        }
        let Some(from) = self.workers.get_mut(worker) else { return Room::Free };
        if !from.patience.left(now).is_zero() {
            let ends = now.after(from.patience.begin(now));
            self.check_at(ends);
            self.wait(Peer::Worker(worker), Peer::Client(client));
            return Room::Wait;
        }
        if queued <= SLOW_READER_LIMIT.saturating_mul(self.settings.limits.max_output_queue) {
            return Room::Free;
        }
        self.report(now, Reason::ClientSlow, Some(Peer::Client(client)), || {
            format!(
                "a client reads more slowly than a worker that it shares with others writes for it; it is closed with \
                 {queued} bytes queued"
            )
        });
        self.close_client(now, client, Close::Now);
        Room::Closed
    }

    /// Whether anybody but `client` has something to expect of a worker.
    fn is_used_by_others(&mut self, now: Moment, key: WorkerKey, client: ClientKey) -> bool {
        let Some(worker) = self.workers.get(key) else { return false };
        if worker.owner.is_some() {
            return false;
        }
        if worker.patience.shared_until > now {
            return true;
        }
        let (me, end) = (Peer::Client(client), &worker.end);
        let asks = |key| self.to_workers.table.get(key).is_some_and(|r| r.asker().is_some_and(|asker| asker != me));
        let owns = |key| self.sessions.table.get(key).is_some_and(|s| s.client.is_some_and(|owner| owner != client));
        let shared = end.output.waiters().iter().any(|waiter| *waiter != me)
            || end.owes.iter().any(asks)
            || end.sessions.iter().any(owns);
        if let Some(worker) = self.workers.get_mut(key).filter(|_| shared) {
            worker.patience.shared_until = now.after(SHARED_FOR);
        }
        shared
    }

    /// A client speaks to a worker that is held up by another one: from now on it is held up for a short while only.
    fn hurries(&mut self, now: Moment, key: WorkerKey, client: ClientKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        if !matches!(worker.end.blocked_on, Some(Peer::Client(slow)) if slow != client)
            || worker.patience.since.is_some()
        {
            return;
        }
        let ends = now.after(worker.patience.begin(now));
        self.check_at(ends);
    }

    /// Lets a worker go on that was held up for long enough.
    pub(super) fn end_patience(&mut self, now: Moment, key: WorkerKey) {
        let Some(worker) = self.workers.get(key) else { return };
        if worker.patience.ends().is_none_or(|ends| ends > now) {
            return;
        }
        self.stop_waiting(now, Peer::Worker(key));
        self.read_again(Peer::Worker(key));
        self.read_on(now, key);
    }

    fn wait(&mut self, from: Peer, to: Peer) {
        if let Some(end) = self.endpoint(to) {
            end.output.wait(from);
        }
        if let Some(end) = self.endpoint(from) {
            end.blocked_on = Some(to);
        }
        self.effects.push_back(Effect::Pause { peer: from });
    }

    /// Queues a line with its newline as it is.
    pub(super) fn forward_as_it_is(&mut self, now: Moment, to: Peer, line: &Line) {
        match to {
            Peer::Client(_) => self.stats.lines_to_clients += 1,
            Peer::Worker(_) => self.stats.lines_to_workers += 1,
        }
        let bytes = self.copy(to, Span { start: line.span.start, end: line.span.end + 1 });
        self.queued(now, to, bytes);
    }

    /// Queues a line with its newline, with the given pieces replaced.
    pub(super) fn forward(&mut self, now: Moment, to: Peer, line: &Line, edits: &mut Edits) {
        match to {
            Peer::Client(_) => self.stats.lines_to_clients += 1,
            Peer::Worker(_) => self.stats.lines_to_workers += 1,
        }
        let mut from = line.span.start;
        let mut bytes = 0;
        if edits[1].is_some() || edits[2].is_some() {
            edits.sort_by_key(|edit| edit.as_ref().map_or(u32::MAX, |edit| edit.at.start));
        }
        for edit in edits.iter().flatten() {
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
        let alone = self.clients.len() == 1;
        let output = match to {
            Peer::Client(client) => self.clients.get_mut(client).map(|client| &mut client.end.output),
            Peer::Worker(worker) => self.workers.get_mut(worker).map(|worker| {
                worker.window.push(now, bytes, !alone && worker.owner.is_none());
                &mut worker.end.output
            }),
        };
        let Some(output) = output else { return };
        let was_full = output.is_full();
        output.push(bytes, limit, now);
        if !was_full && output.is_full() {
            self.check_at(now.after(timeout));
        }
    }

    /// Bytes have left for `peer`.
    pub(super) fn sent(&mut self, now: Moment, peer: Peer, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let shared = self.clients.len() > 1;
        match peer {
            Peer::Client(client) => {
                let Some(to) = self.clients.get_mut(client) else { return };
                to.end.progress_at = now;
                if to.end.output.pop(bytes, limit, now) {
                    self.release_waiters(now, peer);
                }
                self.client_sent(now, client);
            }
            Peer::Worker(worker) => {
                let Some(to) = self.workers.get_mut(worker) else { return };
                to.window.sent(bytes);
                let has_room = to.end.output.pop(bytes, limit, now);
                if shared && to.owner.is_none() && to.window.wants_look(now) {
                    self.look_at_feed(now, worker);
                }
                if has_room {
                    self.give_turns_before(now, worker);
                }
            }
        }
    }

    /// Asks how far a worker has read.
    fn look_at_feed(&mut self, now: Moment, key: WorkerKey) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.window.looks(now);
            self.effects.push_back(Effect::Probe { worker: key });
        }
    }

    /// A worker has so many bytes in front of it.
    pub(super) fn unread(&mut self, now: Moment, key: WorkerKey, bytes: usize) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.window.read_up_to(now, bytes);
        self.give_turns_before(now, key);
    }

    /// Lets as many of those go on who wait for a worker as have room with the lines that they wait with.
    fn give_turns_before(&mut self, now: Moment, key: WorkerKey) {
        let limit = self.settings.limits.max_output_queue as u64;
        let alone = self.clients.len() == 1;
        let Some(worker) = self.workers.get_mut(key) else { return };
        if worker.end.output.is_full() {
            return;
        }
        // What it is told about its own requests takes no turns.
        let itself = Peer::Worker(key);
        if worker.end.blocked_on == Some(itself) {
            worker.end.output.forget(itself);
            worker.end.blocked_on = None;
            self.read_again(itself);
        }
        let Some(worker) = self.workers.get_mut(key) else { return };
        let mut room = limit.saturating_sub(worker.end.output.queued() as u64);
        if worker.owner.is_none() {
            room = room.min(worker.window.room(alone));
        }
        // With nothing before it, the worker takes a line however long it is.
        let mut first = worker.window.backlog() == 0;
        while room > 0 || first {
            let Some(waiter) = self.workers.get_mut(key).and_then(|worker| worker.end.output.take_waiter()) else {
                break;
            };
            let mut takes = 1;
            let is_last = self.workers.get(key).is_none_or(|worker| worker.end.output.waiters().is_empty());
            match waiter {
                Peer::Client(client) => {
                    if let Some(client) = self.clients.get_mut(client) {
                        // Turns are of bytes too: a long line waits for as many of them.
                        client.credit += QUANTUM;
                        if client.waits_with > client.credit && !is_last {
                            if let Some(worker) = self.workers.get_mut(key) {
                                worker.end.output.wait(waiter);
                            }
                            continue;
                        }
                        client.credit = 0;
                        client.end.blocked_on = None;
                        client.granted = Some(key);
                        takes = client.waits_with.max(1) as u64;
                    }
                }
                Peer::Worker(worker) => {
                    if let Some(worker) = self.workers.get_mut(worker) {
                        worker.end.blocked_on = None;
                    }
                }
            }
            self.read_again(waiter);
            room = room.saturating_sub(takes);
            first = false;
        }
        // They may have begun to wait for another reason: whoever still waits is looked after.
        if self.workers.get(key).is_some_and(|worker| !worker.end.output.waiters().is_empty()) {
            self.takes_turns(now, key);
        }
    }

    /// Clients take turns before a worker from now on.
    fn takes_turns(&mut self, now: Moment, key: WorkerKey) {
        if !self.fed_in_turns.contains(&key) {
            self.fed_in_turns.push(key);
            self.turns_due.get_or_insert(super::send_window::SendWindow::next_look(now));
            self.look_at_feed(now, key);
        }
    }

    /// Looks after the workers before which clients take turns.
    pub(super) fn tick_turns(&mut self, now: Moment) {
        let stuck_after = self.settings.limits.backpressure_timeout / STUCK_AFTER;
        for key in std::mem::take(&mut self.fed_in_turns) {
            let Some(worker) = self.workers.get_mut(key) else { continue };
            if worker.end.output.waiters().is_empty() {
                continue;
            }
            worker.window.look_if_stuck(now, stuck_after);
            self.fed_in_turns.push(key);
            self.look_at_feed(now, key);
            self.give_turns_before(now, key);
        }
        self.turns_due = (!self.fed_in_turns.is_empty()).then(|| super::send_window::SendWindow::next_look(now));
    }

    /// All who waited for `peer` may go on.
    pub(super) fn release_waiters(&mut self, now: Moment, peer: Peer) {
        let waiters = self.endpoint(peer).map(|end| end.output.take_waiters()).unwrap_or_default();
        for waiter in waiters {
            if let Some(end) = self.endpoint(waiter) {
                end.blocked_on = None;
                self.read_again(waiter);
            }
            if let Peer::Worker(worker) = waiter {
                self.goes_on(now, worker);
                self.read_on(now, worker);
            }
        }
    }

    /// `peer` waits for nobody any more.
    pub(super) fn stop_waiting(&mut self, now: Moment, peer: Peer) {
        let blocker = self.endpoint(peer).and_then(|end| end.blocked_on.take());
        if let Some(blocker) = blocker.and_then(|blocker| self.endpoint(blocker)) {
            blocker.output.forget(peer);
        }
        if let Peer::Worker(worker) = peer {
            self.goes_on(now, worker);
        }
    }

    fn goes_on(&mut self, now: Moment, worker: WorkerKey) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.patience.end(now);
        }
    }

    /// Queues a line of the bus' own for a client.
    pub(super) fn say(&mut self, now: Moment, client: ClientKey, bytes: &[u8]) {
        self.stats.lines_to_clients += 1;
        self.effects.push_back(Effect::Insert { to: Peer::Client(client), text: bytes.into() });
        self.queued(now, Peer::Client(client), bytes.len());
    }

    /// Queues a line of the bus' own for a worker.
    pub(super) fn say_to_worker(&mut self, now: Moment, worker: WorkerKey, bytes: &[u8]) {
        self.stats.lines_to_workers += 1;
        self.effects.push_back(Effect::Insert { to: Peer::Worker(worker), text: bytes.into() });
        self.queued(now, Peer::Worker(worker), bytes.len());
    }
}
