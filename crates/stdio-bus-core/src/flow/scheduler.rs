//! Turns for a shared worker: no more is sent to it than it reads in some milliseconds, and the waiting clients
//! continue one after the other (decision 12). How much that is, is computed in `window.rs`. It also limits how long a
//! slow reader holds up a worker that others use.

use crate::ctx::Ctx;
use crate::peer::{ClientKey, Peer, RequestKey, WorkerKey};
use crate::peers::Endpoint;
use crate::port::Effect;
use crate::requests::Requests;
use crate::session::table::Sessions;
use crate::worker::Worker;

/// A worker that reads nothing for this part of backpressure_timeout is stuck: turns make no sense any more, and its
/// output may fill up.
const STUCK_AFTER: u32 = 4;

impl Requests {
    /// Whether any other client than `client` uses a worker: waits for it or for its answer, or has a session there.
    pub(crate) fn is_shared(&self, ctx: &Ctx, sessions: &Sessions, key: WorkerKey, client: ClientKey) -> bool {
        let Some(worker) = ctx.workers.get(key).filter(|worker| worker.owner().is_none()) else { return false };
        let (me, end) = (Peer::Client(client), worker.end());
        let is_there = |asked: &RequestKey| self.get(*asked).is_some_and(|it| it.answerer() == Peer::Worker(key));
        let own = |client: &Endpoint| self.asked(&client.asked).filter(is_there).count();
        let owner = |key| sessions.get(key)?.owner().map(Peer::Client);
        end.output.waiters().any(|waiter| *waiter != me)
            || end.sessions.iter().copied().filter_map(owner).any(|owner| owner != me)
            || end.to_answer.awaited() as usize > ctx.peer_end(me).map_or(0, own)
    }
}

impl Ctx {
    /// Probes how far a worker has read.
    pub(crate) fn probe(&mut self, key: WorkerKey) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.window_mut().probe(self.time.now());
            self.out.push(Effect::Probe(key));
        }
    }

    /// A worker has not read this many bytes of its input.
    pub(crate) fn on_unread(&mut self, key: WorkerKey, bytes: usize) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.window_mut().read_up_to(self.time.now(), bytes);
        self.admit_waiters(key);
    }

    /// Lets clients that wait for a worker continue, as many as have room for their lines.
    pub(crate) fn admit_waiters(&mut self, key: WorkerKey) {
        let limit = self.settings.limits.max_output_queue as u64;
        let alone = self.clients.len() == 1;
        let Some(worker) = self.workers.get_mut(key) else { return };
        if worker.end().output.is_full() {
            return;
        }
        // Errors for its own requests take no turns.
        let itself = Peer::Worker(key);
        if worker.end().cold.blocker() == Some(itself) {
            worker.end_mut().output.forget(itself);
            self.unblock(itself);
        }
        let Some(worker) = self.workers.get_mut(key) else { return };
        let mut room = limit.saturating_sub(worker.end().output.queued() as u64);
        if worker.owner().is_none() {
            room = room.min(worker.window().room(alone));
        }
        // With an empty backlog, the worker takes a line of any length.
        let mut first = worker.window().backlog() == 0;
        while room > 0 || first {
            let Some(waiter) = self.workers.get_mut(key).and_then(|worker| worker.end_mut().output.next_waiter())
            else {
                break;
            };
            let mut takes = 1;
            let is_last = self.workers.get(key).is_none_or(|worker| !worker.end().output.has_waiters());
            if let Peer::Client(_) = waiter
                && let Some(client) = self.endpoint(waiter)
            {
                let Some(bytes) = client.cold.turn_mut().grant(key, is_last) else {
                    if let Some(worker) = self.workers.get_mut(key) {
                        worker.end_mut().output.wait(waiter);
                    }
                    continue;
                };
                takes = bytes;
            }
            self.unblock(waiter);
            room = room.saturating_sub(takes);
            first = false;
        }
        // Some may have begun to wait when no turns were taken. Those that still wait are kept in turns.
        if self.workers.get(key).is_some_and(|worker| worker.end().output.has_waiters()) {
            self.begin_turns(key);
        }
    }

    /// Clients take turns for a worker from now on.
    pub(crate) fn begin_turns(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key).filter(|worker| worker.window().turns_due().is_none()) else {
            return;
        };
        let due = worker.window_mut().take_turns(self.time.now());
        self.wake_at(key.into(), due);
        self.probe(key);
    }

    /// Checks a worker for which clients take turns.
    pub(crate) fn tick_turns(&mut self, key: WorkerKey) {
        let now = self.time.now();
        let stuck_after = self.settings.limits.backpressure_timeout / STUCK_AFTER;
        let is_due = |worker: &&mut Worker| worker.window().turns_due().is_some_and(|due| due <= now);
        let Some(worker) = self.workers.get_mut(key).filter(is_due) else { return };
        if !worker.end().output.has_waiters() {
            return worker.window_mut().end_turns();
        }
        worker.window_mut().update_stuck(now, stuck_after);
        worker.window_mut().take_turns(now);
        self.probe(key);
        self.admit_waiters(key);
    }

    /// A client sends to a worker that another one holds up: from now on that is limited.
    pub(crate) fn limit_hold_up(&mut self, key: WorkerKey, client: ClientKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        if !matches!(worker.end().cold.blocker(), Some(Peer::Client(slow)) if slow != client)
            || worker.stall().ends().is_some()
        {
            return;
        }
        let now = self.time.now();
        let left = worker.stall_mut().left(now);
        let ends = worker.stall_mut().start(now, left);
        self.wake_at(key.into(), ends);
    }

    /// Releases a worker that was held up for long enough.
    pub(crate) fn release_held_up(&mut self, key: WorkerKey) {
        let ends = self.workers.get(key).and_then(|worker| worker.stall().ends());
        if ends.is_some_and(|ends| ends <= self.time.now()) {
            self.stop_waiting(Peer::Worker(key));
        }
    }
}
