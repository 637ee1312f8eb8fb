//! Turns before a worker that several clients share: no more is put before it than it reads in some milliseconds, and
//! those who wait go on one after the other (decision 12). How much that is, is in `send_window.rs`.

use super::Bus;
use super::peer::{Moment, Peer, WorkerKey};
use super::port::Effect;
use super::send_window::SendWindow;

/// A worker that reads nothing for this part of backpressure_timeout is stuck: turns make no sense any more, and its
/// output may fill up.
const STUCK_AFTER: u32 = 4;
/// Bytes that a client may send in one turn.
const QUANTUM: usize = 64 * 1024;

impl Bus {
    /// Asks how far a worker has read.
    pub(super) fn probe(&mut self, now: Moment, key: WorkerKey) {
        if let Some(worker) = self.workers.get_mut(key) {
            worker.window.mark_probed(now);
            self.effects.push_back(Effect::Probe { worker: key });
        }
    }

    /// A worker has not read so many bytes of what was written to it.
    pub(super) fn on_unread(&mut self, now: Moment, key: WorkerKey, bytes: usize) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.window.read_up_to(now, bytes);
        self.admit_waiters(now, key);
    }

    /// Lets clients go on that wait for a worker, as many as have room with the lines that they wait with.
    pub(super) fn admit_waiters(&mut self, now: Moment, key: WorkerKey) {
        let limit = self.settings.limits.max_output_queue as u64;
        let alone = self.clients.len() == 1;
        let Some(worker) = self.workers.get_mut(key) else { return };
        if worker.end.output.is_full() {
            return;
        }
        // Errors for its own requests take no turns.
        let itself = Peer::Worker(key);
        if worker.end.blocked_on == Some(itself) {
            worker.end.output.remove_waiter(itself);
            let waited = worker.end.go_on(now);
            self.count_pause(itself, waited);
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
                        // A turn is so many bytes: a long line waits for as many turns as it needs.
                        client.credit += QUANTUM;
                        if client.waiting_bytes > client.credit && !is_last {
                            if let Some(worker) = self.workers.get_mut(key) {
                                worker.end.output.add_waiter(waiter);
                            }
                            continue;
                        }
                        client.credit = 0;
                        self.stats.clients_paused += client.end.go_on(now);
                        client.granted = Some(key);
                        takes = client.waiting_bytes.max(1) as u64;
                    }
                }
                Peer::Worker(worker) => {
                    if let Some(worker) = self.workers.get_mut(worker) {
                        self.stats.workers_paused += worker.end.go_on(now);
                    }
                }
            }
            self.read_again(waiter);
            room = room.saturating_sub(takes);
            first = false;
        }
        // Some may have begun to wait when no turns were taken. Whoever still waits is looked after.
        if self.workers.get(key).is_some_and(|worker| !worker.end.output.waiters().is_empty()) {
            self.begin_turns(now, key);
        }
    }

    /// Clients take turns before a worker from now on.
    pub(super) fn begin_turns(&mut self, now: Moment, key: WorkerKey) {
        if !self.workers_in_turns.contains(&key) {
            self.workers_in_turns.push(key);
            self.turns_due.get_or_insert(SendWindow::next_probe(now));
            self.probe(now, key);
        }
    }

    /// Looks after the workers before which clients take turns.
    pub(super) fn tick_turns(&mut self, now: Moment) {
        let stuck_after = self.settings.limits.backpressure_timeout / STUCK_AFTER;
        for key in core::mem::take(&mut self.workers_in_turns) {
            let Some(worker) = self.workers.get_mut(key) else { continue };
            if worker.end.output.waiters().is_empty() {
                continue;
            }
            worker.window.update_stuck(now, stuck_after);
            self.workers_in_turns.push(key);
            self.probe(now, key);
            self.admit_waiters(now, key);
        }
        self.turns_due = (!self.workers_in_turns.is_empty()).then(|| SendWindow::next_probe(now));
    }

    /// Panics if nobody looks after the workers before which clients take turns.
    pub(super) fn check_turns(&self) {
        assert!(self.workers_in_turns.is_empty() || self.turns_due.is_some(), "turns are looked after");
        for (at, worker) in self.workers_in_turns.iter().enumerate() {
            assert!(!self.workers_in_turns[..at].contains(worker), "{worker:?} is looked after once");
        }
    }
}
