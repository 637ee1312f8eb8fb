//! How long a worker that others use too is held up by a client that reads slowly.

use core::time::Duration;

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
    /// Until then it is taken for granted that it is used, and not only by whoever reads slowly.
    shared_until: Moment,
    /// This one alone was seen to use it.
    sole_user: Option<Peer>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left: PATIENCE, at: Moment::default(), since: None, shared_until: Moment::default(), sole_user: None }
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
        let (me, end) = (Peer::Client(client), &worker.end);
        if worker.patience.shared_until > now && worker.patience.sole_user != Some(me) {
            return true;
        }
        let askers = || end.to_answer.iter().filter_map(|key| self.to_workers.get(key)?.asker());
        let owners = || end.sessions.iter().filter_map(|key| self.sessions.get(key)?.client.map(Peer::Client));
        let users = || end.output.waiters().iter().copied().chain(askers()).chain(owners());
        let Some(other) = users().find(|user| *user != me) else { return false };
        let sole_user = users().all(|user| user == other).then_some(other);
        if let Some(worker) = self.workers.get_mut(key) {
            (worker.patience.shared_until, worker.patience.sole_user) = (now.after(SHARED_FOR), sole_user);
        }
        true
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
