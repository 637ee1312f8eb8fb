//! How long a worker that others use too is held up by a client that reads slowly.

use std::time::Duration;

use super::Bus;
use super::peer::{ClientKey, Moment, Peer, WorkerKey};

/// How long one worker may be held up in all by clients that read slowly, while others use it.
const PATIENCE: Duration = Duration::from_millis(500);
/// One part in so many of the time that passes comes back.
const PATIENCE_RETURNS: u32 = 100;
/// How long it is taken for granted that others use a worker, once that was seen.
const SHARED_FOR: Duration = Duration::from_millis(10);

/// How much longer a worker may be held up.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    left: Duration,
    at: Moment,
    /// It is being held up since then, and others use it.
    since: Option<Moment>,
    /// Until then it is taken for granted that others use it.
    shared_until: Moment,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left: PATIENCE, at: Moment::default(), since: None, shared_until: Moment::default() }
    }
}

impl Patience {
    /// What is left of it now.
    pub fn left(&mut self, now: Moment) -> Duration {
        self.left = PATIENCE.min(self.left + now.since(self.at) / PATIENCE_RETURNS);
        self.at = now;
        self.left
    }

    /// When a worker that is held up goes on, whether its reader has room or not.
    pub fn ends(&self) -> Option<Moment> {
        self.since.map(|since| since.after(self.left))
    }

    /// It is held up from now on; for how long at most.
    pub fn begin(&mut self, now: Moment) -> Duration {
        let left = self.left(now);
        self.since = Some(now);
        left
    }

    /// It is held up no more.
    pub fn end(&mut self, now: Moment) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.since(since));
            self.at = now;
        }
    }
}

impl Bus {
    /// Finds out whether anybody but `client` uses a worker, and remembers it for a while.
    pub(super) fn check_shared(&mut self, now: Moment, key: WorkerKey, client: ClientKey) -> bool {
        let Some(worker) = self.workers.get(key) else { return false };
        if worker.owner.is_some() {
            return false;
        }
        if worker.patience.shared_until > now {
            return true;
        }
        let (me, end) = (Peer::Client(client), &worker.end);
        let asks = |key| self.to_workers.get(key).is_some_and(|r| r.asker().is_some_and(|asker| asker != me));
        let owns = |key| self.sessions.get(key).is_some_and(|s| s.client.is_some_and(|owner| owner != client));
        let shared = end.output.waiters().iter().any(|waiter| *waiter != me)
            || end.to_answer.iter().any(asks)
            || end.sessions.iter().any(owns);
        if let Some(worker) = self.workers.get_mut(key).filter(|_| shared) {
            worker.patience.shared_until = now.after(SHARED_FOR);
        }
        shared
    }

    /// A client speaks to a worker that another one holds up: from now on that lasts for a short while only.
    pub(super) fn limit_hold_up(&mut self, now: Moment, key: WorkerKey, client: ClientKey) {
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
    pub(super) fn release_held_up(&mut self, now: Moment, key: WorkerKey) {
        let Some(worker) = self.workers.get(key) else { return };
        if worker.patience.ends().is_none_or(|ends| ends > now) {
            return;
        }
        self.stop_waiting(now, Peer::Worker(key));
        self.read_again(Peer::Worker(key));
        self.extend_read_timer(now, key);
    }

    pub(super) fn end_hold_up(&mut self, now: Moment, worker: WorkerKey) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.patience.end(now);
        }
    }
}
