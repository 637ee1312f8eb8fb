//! How long a worker that others use too is held up by a client that reads slowly.

use core::time::Duration;

use super::Bus;
use super::client::Client;
use super::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};

/// How long one worker may be held up in all by clients that read slowly, while others use it.
const PATIENCE: Duration = Duration::from_millis(500);
/// One part in so many of the time that passes comes back.
const PATIENCE_RETURNS: u32 = 100;

/// How much longer a worker may be held up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    left: Duration,
    at: Moment,
    /// It is being held up since then, and others use it.
    since: Option<Moment>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left: PATIENCE, at: Moment::default(), since: None }
    }
}

impl Patience {
    /// What is left of it now.
    pub(super) fn left(&mut self, now: Moment) -> Duration {
        self.left = PATIENCE.min(self.left + now.since(self.at) / PATIENCE_RETURNS);
        self.at = now;
        self.left
    }

    /// When a worker that is held up goes on, whether its reader has room or not.
    pub(super) fn ends(&self) -> Option<Moment> {
        self.since.map(|since| since.after(self.left))
    }

    /// It is held up from now on; for how long at most.
    pub(super) fn begin(&mut self, now: Moment) -> Duration {
        let left = self.left(now);
        self.since = Some(now);
        left
    }

    /// It is held up no more.
    pub(super) fn end(&mut self, now: Moment) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.since(since));
            self.at = now;
        }
    }
}

impl Bus {
    /// Whether anybody but `client` uses a worker: waits for it, for an answer of it, or has a session there.
    pub(super) fn is_shared(&self, key: WorkerKey, client: ClientKey) -> bool {
        let Some(worker) = self.workers.get(key).filter(|worker| worker.owner.is_none()) else { return false };
        let (me, end) = (Peer::Client(client), &worker.end);
        let is_there =
            |asked: &RequestKey| self.pending.get(*asked).is_some_and(|it| it.answerer() == Peer::Worker(key));
        let own = |client: &Client| self.pending.asked(&client.end.outstanding).filter(is_there).count();
        let owner = |key| self.sessions.get(key)?.client.map(Peer::Client);
        end.output.waiters().iter().any(|waiter| *waiter != me)
            || end.unanswered.awaited as usize > self.clients.get(client).map_or(0, own)
            || end.sessions.iter().filter_map(owner).any(|owner| owner != me)
    }

    /// A client speaks to a worker that another one holds up: from now on that lasts for a short while only.
    pub(super) fn limit_hold_up(&mut self, key: WorkerKey, client: ClientKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        if !matches!(worker.end.blocker(), Some(Peer::Client(slow)) if slow != client)
            || worker.patience.since.is_some()
        {
            return;
        }
        let ends = self.now.after(worker.patience.begin(self.now));
        self.wake_at(key.into(), ends);
    }

    /// Lets a worker go on that was held up for long enough.
    pub(super) fn release_held_up(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get(key) else { return };
        if worker.patience.ends().is_none_or(|ends| ends > self.now) {
            return;
        }
        self.stop_waiting(Peer::Worker(key));
        self.extend_read_timer(key);
    }

    pub(super) fn end_hold_up(&mut self, worker: WorkerKey) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.patience.end(self.now);
        }
    }
}
