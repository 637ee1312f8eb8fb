//! How lines reach their receivers: they are queued with the edited pieces, their senders wait while the receiver is
//! full, and are read again when there is room (spec 7.3, decision 12).
//!
//! Invariant: a peer waits for one output at a time, and is in the list of that output once.
use alloc::vec::Vec;

use ndjson_scan::{Line, Span, blank_returns};

use super::gate::Hold;
use crate::clients::check_flushed;
use crate::ctx::Ctx;
use crate::fleet::life::extend_read_timer;
use crate::fleet::queue::WorkerQueue;
use crate::fleet::rollout::notice_leaving;
use crate::message::{Edit, Edits, Parsed, not_for_worker};
use crate::peer::{ClientKey, Peer, PeerBits, ShortText, WorkerKey};
use crate::peers::{Endpoint, end_of};
use crate::port::Effect;

/// A client may read more slowly than a shared worker writes. It is closed when more than this many times
/// max_output_queue are queued for it.
pub(crate) const SLOW_READER_LIMIT: usize = 4;

/// Whether a line may be queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputRoom {
    /// It may.
    Free,
    /// Its sender waits.
    Wait,
    /// Its receiver was just closed: the line must be routed again.
    Closed,
}

/// The edits of a line in the order of their places.
#[inline(always)]
fn sort(edits: &mut Edits) {
    if edits[1..].iter().any(Option::is_some) {
        edits.sort_unstable_by_key(|edit| edit.as_ref().map_or(u32::MAX, |edit| edit.at.start));
    }
}

/// A copy of a line with its newline, with these pieces replaced.
pub(crate) fn edited(line: Parsed<'_>, edits: &mut Edits) -> Vec<u8> {
    sort(edits);
    let mut text = Vec::with_capacity(line.span.len() + 1);
    let mut from = line.span.start;
    let copy = |from: u32, end: u32, text: &mut Vec<u8>| text.extend_from_slice(line.get(Span { start: from, end }));
    for Edit { at, with } in edits.iter().flatten() {
        copy(from, at.start, &mut text);
        text.extend_from_slice(with.as_bytes());
        from = at.end;
    }
    copy(from, line.span.end, &mut text);
    text.push(b'\n');
    text
}

/// Reads a peer again whose first line is a request that has waited for its time: it is refused.
pub(crate) fn release_overdue(ctx: &mut Ctx, queue: &mut WorkerQueue, peer: Peer) {
    let now = ctx.time.now();
    let is_due = |end: &&mut Endpoint| end.cold.first_line_expires().is_some_and(|at| at <= now);
    let Some(end) = ctx.endpoint(peer).filter(is_due) else { return };
    end.cold.expire_first_line(None);
    if end.gate.has(Hold::Output) {
        ctx.stop_waiting(peer);
    }
    if let Peer::Client(client) = peer {
        queue.stop_awaiting_overdue(ctx, client);
    }
}

impl Ctx {
    /// Makes a peer wait for its own output, if that is full: an error is to be queued there. Returns whether it waits.
    pub(crate) fn block_on_itself(&mut self, peer: Peer) -> bool {
        let is_full = self.endpoint(peer).is_some_and(|end| end.output.is_full());
        if is_full {
            self.block(peer, peer);
        }
        is_full
    }

    /// Makes a client that sends `bytes` to a worker wait, if the worker is full or others have their turn. Returns
    /// whether it waits.
    pub(crate) fn must_wait_for_worker(&mut self, client: ClientKey, worker: WorkerKey, bytes: usize) -> bool {
        let alone = self.clients.len() == 1;
        let Some(stdio) = self.clients.identity(client).map(|client| client.stdio) else { return false };
        let Some(to) = self.workers.get(worker) else { return false };
        let is_full = to.end().output.is_full();
        let in_turns = to.owner().is_none() && !stdio;
        if !is_full && !in_turns {
            return false;
        }
        let has_turn = self.endpoint(client.into()).is_some_and(|from| from.cold.take_turn(worker));
        let Some(to) = self.workers.get_mut(worker) else { return false };
        let others_wait = to.end().output.has_waiters();
        if !is_full && (!in_turns || has_turn || to.window().has_room_for(client, others_wait, alone)) {
            to.window_mut().mark_line_end(client, bytes);
            if to.end().cold.blocker().is_some() {
                self.limit_hold_up(worker, client);
            }
            return false;
        }
        // The state of the worker may be outdated. The first client that waits probes it again.
        let is_first = to.window().turns_due().is_some() && !others_wait;
        self.endpoint(client.into()).into_iter().for_each(|from| from.cold.turn_mut().wait(bytes));
        if in_turns {
            if is_first {
                self.probe(worker);
            }
            self.begin_turns(worker);
        }
        // A worker may have no room because it is held up itself.
        self.limit_hold_up(worker, client);
        self.block(Peer::Client(client), Peer::Worker(worker));
        true
    }

    pub(crate) fn block(&mut self, from: Peer, to: Peer) {
        let now = self.time.now();
        if let Some(end) = self.endpoint(to) {
            end.output.wait(from);
        }
        if let Some(end) = self.endpoint(from) {
            end.cold.block_on(to, now);
        }
        self.close_gate(from, Hold::Output);
    }

    /// Stops reading a peer.
    pub(crate) fn close_gate(&mut self, peer: Peer, hold: Hold) {
        if self.endpoint(peer).is_some_and(|end| end.gate.close(hold)) {
            self.out.push(Effect::Pause(peer));
        }
    }

    /// Reads a peer again, unless another hold remains.
    pub(crate) fn open_gate(&mut self, peer: Peer, hold: Hold) {
        if self.endpoint(peer).is_some_and(|end| end.gate.open(hold)) {
            self.out.push(Effect::Resume(peer));
            if let Peer::Worker(worker) = peer
                && let Some(worker) = self.workers.get_mut(worker)
            {
                worker.answering_mut().read_from(self.time.now());
            }
        }
    }

    /// A peer that has waited for an output continues.
    pub(crate) fn unblock(&mut self, peer: Peer) {
        let now = self.time.now();
        let Some(end) = self.endpoint(peer) else { return };
        let blocked_on = end.cold.unblock();
        let waited = blocked_on.map(|(_, since)| now.since(since)).unwrap_or_default();
        self.out.side(peer).paused += waited;
        self.open_gate(peer, Hold::Output);
        if let Peer::Worker(key) = peer
            && let Some(worker) = self.workers.get_mut(key)
        {
            worker.stall_mut().stop(now);
            extend_read_timer(self, key);
        }
    }

    /// Queues a line with its newline, with these pieces replaced. A worker does not get what is the bus's own.
    pub(crate) fn forward(&mut self, to: Peer, line: Parsed<'_>, edits: &mut Edits) {
        if let Peer::Worker(_) = to {
            edits[4] = not_for_worker(line).map(|at| Edit { at, with: ShortText::default() });
        }
        let (mut from, end) = (line.span.start, line.span.end + 1);
        let mut bytes = (end - from) as usize;
        sort(edits);
        if line.has(Line::LONE_RETURN) && matches!(to, Peer::Worker(_)) {
            return self.forward_without_returns(to, line, edits);
        }
        for Edit { at, with } in edits.iter().flatten() {
            // Two pieces may follow each other directly, and one may be left out.
            if from < at.start {
                self.out.copy(to, from, at.start);
            }
            if !with.as_bytes().is_empty() {
                self.out.push(Effect::Insert { to, text: with.clone() });
            }
            bytes = bytes - at.len() + with.as_bytes().len();
            from = at.end;
        }
        self.out.copy(to, from, end);
        self.count_queued(to, bytes);
    }

    /// Queues a line with a blank for each carriage return between its tokens: some workers' readers end a line there,
    /// and would read two halves. One that is the end of the line with its newline stays. These pieces are replaced.
    fn forward_without_returns(&mut self, to: Peer, line: Parsed<'_>, edits: &mut Edits) {
        let mut text = edited(line, edits);
        // None is in a string, where it would be malformed.
        let last = text.len() - 2;
        blank_returns(&mut text[..last]);
        let bytes = text.len();
        // It can be long: it is not copied again.
        self.out.push(Effect::Insert { to, text: text.into() });
        self.count_queued(to, bytes);
    }

    /// A line of `bytes` bytes was queued.
    pub(crate) fn count_queued(&mut self, to: Peer, bytes: usize) {
        let now = self.time.now();
        let limits = &self.settings.limits;
        let (limit, timeout) = (limits.max_output_queue, limits.backpressure_timeout);
        if let Peer::Worker(worker) = to {
            let alone = self.clients.len() == 1;
            if let Some(worker) = self.workers.get_mut(worker) {
                let is_shared = !alone && worker.owner().is_none();
                worker.window_mut().push(now, bytes, is_shared);
            }
        }
        let end = end_of(&mut self.clients, &mut self.workers, to);
        if end.is_some_and(|end| self.out.count_queued(now, to, end, bytes, limit)) {
            self.wake_at(to, now.after(timeout));
        }
    }

    /// Bytes were sent to `peer`.
    pub(crate) fn on_sent(&mut self, peer: Peer, bytes: usize) {
        let now = self.time.now();
        let limit = self.settings.limits.max_output_queue;
        let shared = self.clients.len() > 1;
        match peer {
            Peer::Client(client) => {
                let Some(to) = self.endpoint(peer) else { return };
                to.stream.progress(now);
                to.traffic.bytes_out += bytes as u64;
                if to.output.pop(bytes, limit, now) {
                    self.release_waiters(peer);
                }
                check_flushed(self, client);
            }
            Peer::Worker(worker) => {
                let Some(to) = self.workers.get_mut(worker) else { return };
                to.window_mut().leave(bytes);
                to.end_mut().traffic.bytes_out += bytes as u64;
                let has_room = to.end_mut().output.pop(bytes, limit, now);
                let is_last = to.end().output.queued() == 0 && to.lifetime().is_leaving();
                if shared && to.owner().is_none() && to.window().is_probe_due(now) {
                    self.probe(worker);
                }
                if has_room {
                    self.admit_waiters(worker);
                }
                if is_last {
                    notice_leaving(self, worker);
                }
            }
        }
    }

    /// All peers that waited for `peer` may continue.
    pub(crate) fn release_waiters(&mut self, peer: Peer) {
        let waiters = self.endpoint(peer).map(|end| end.output.take_waiters()).unwrap_or_default();
        waiters.into_iter().for_each(|waiter| self.unblock(waiter));
    }

    /// The clients that wait for this output are read again, since their lines may go to another peer now. A worker that
    /// waits for its own output has no other one.
    pub(crate) fn reroute_clients(&mut self, peer: Peer) {
        let waiters = self.endpoint(peer).into_iter().flat_map(|end| end.output.waiters().copied());
        let clients: Vec<Peer> = waiters.filter(|waiter| matches!(waiter, Peer::Client(_))).collect();
        clients.into_iter().for_each(|client| self.stop_waiting(client));
    }

    /// `peer` stops waiting for an output.
    pub(crate) fn stop_waiting(&mut self, peer: Peer) {
        if let Some(blocker) = self.endpoint(peer).and_then(|end| end.cold.blocker())
            && let Some(blocker) = self.endpoint(blocker)
        {
            blocker.output.forget(peer);
        }
        self.unblock(peer);
    }

    /// Queues a line made by the bus.
    pub(crate) fn send(&mut self, to: Peer, line: &[u8]) {
        self.out.push(Effect::Insert { to, text: line.into() });
        self.count_queued(to, line.len());
    }

    /// Panics if the waiting peers and the outputs they wait for disagree.
    pub(crate) fn check_waiting(&self) {
        let clients = self.clients.iter().map(|(key, client)| (Peer::Client(key), client.end(), false));
        let workers =
            self.workers.iter().map(|(key, it)| (Peer::Worker(key), it.end(), it.window().turns_due().is_some()));
        let (mut waiters, mut waiting) = (Vec::new(), Vec::new());
        for (peer, end, in_turns) in clients.chain(workers) {
            let may_let_wait = end.output.is_full() || in_turns || !end.output.has_waiters();
            assert!(may_let_wait, "{peer:?} lets others wait for nothing");
            assert!(end.cold.blocker().is_none() || end.gate.has(Hold::Output), "{peer:?} is read and waits");
            assert!(
                !end.gate.has(Hold::Throttle) || end.gate.throttled_until().is_some(),
                "{peer:?} is throttled forever"
            );
            let pair = |blocker, waiter| [blocker, waiter].map(|peer| PeerBits::from(peer).get());
            waiters.extend(end.output.waiters().map(|waiter| pair(peer, *waiter)));
            waiting.extend(end.cold.blocker().map(|blocker| pair(blocker, peer)));
        }
        waiters.sort_unstable();
        waiting.sort_unstable();
        assert_eq!(waiters, waiting, "a waiting peer is listed once, where it waits");
    }
}
