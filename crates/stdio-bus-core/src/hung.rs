//! Workers that run and do not answer: told about once, and started anew after so many request timeouts in a row
//! (`pools[].max_timeouts`).

use alloc::format;
use core::time::Duration;

use super::Bus;
use super::peer::{Moment, Peer, WorkerKey};
use super::report::Reason;

/// A worker that has said nothing for so long, while requests wait for it, is told about.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// A worker that runs for so long after others have failed is taken to be well.
const TRIAL: Duration = Duration::from_secs(5);

/// What is known of a worker's answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answering {
    /// It has answered a request.
    pub has_answered: bool,
    /// It has answered one with a response: it is no worker that sends back what it gets.
    pub responds: bool,
    /// Those before it in its seat have failed one after the other: until it has answered, or has run for a while, it is
    /// not one that new clients are sent to.
    pub on_trial: bool,
    /// Requests that ran out of time since it answered last.
    timeouts: u32,
    /// When the first one of those was sent that it has to answer now.
    waits_since: Moment,
    /// It is looked after again.
    is_watched: bool,
}

impl Answering {
    /// It has a request to answer, and had none. Gives when it has to be looked at, if it is not watched yet.
    pub(super) fn watch(&mut self, now: Moment) -> Option<Moment> {
        self.waits_since = now;
        (!core::mem::replace(&mut self.is_watched, true)).then(|| now.after(SILENT_FOR))
    }

    /// It has answered. Gives whether that ends its trial.
    #[inline]
    pub(super) fn answers(&mut self) -> bool {
        self.has_answered = true;
        self.timeouts = 0;
        core::mem::take(&mut self.on_trial)
    }
}

impl Bus {
    /// A worker follows others that have failed.
    pub(super) fn put_on_trial(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.answering.on_trial = true;
        self.wake_at(key.into(), self.now.after(TRIAL));
    }

    /// Ends the trial of a worker that has run for long enough. Gives when to look again.
    pub(super) fn tick_trial(&mut self, key: WorkerKey) -> Option<Moment> {
        let worker = self.workers.get_mut(key).filter(|worker| worker.answering.on_trial)?;
        let due = worker.started.after(TRIAL);
        if due > self.now {
            return Some(due);
        }
        worker.answering.on_trial = false;
        self.workers_changed = true;
        None
    }

    /// Tells of a worker that says nothing while somebody waits, once for as long as it has something to answer. Gives
    /// when to look again.
    pub(super) fn tick_silent(&mut self, key: WorkerKey) -> Option<Moment> {
        let now = self.now;
        let worker = self.workers.get(key).filter(|worker| worker.answering.is_watched)?;
        let waiting = worker.end.unanswered.awaited;
        if waiting > 0 && worker.end.gate.waits() {
            // It is not read for now, since a client has no room: it may have said much.
            self.workers.get_mut(key)?.answering.waits_since = now;
            return Some(now.after(SILENT_FOR));
        }
        let since = worker.end.spoke_at.map_or(worker.answering.waits_since, |at| at.max(worker.answering.waits_since));
        let due = since.after(SILENT_FOR);
        if waiting > 0 && due > now {
            return Some(due);
        }
        self.workers.get_mut(key)?.answering.is_watched = false;
        if waiting > 0 {
            self.report(Reason::WorkerSilent, Some(Peer::Worker(key)), || {
                let seconds = now.since(since).as_secs();
                format!(
                    "a worker has said nothing for {seconds} s, and {waiting} requests wait: does it flush its stdout?"
                )
            });
        }
        None
    }

    /// A request to a worker has run out of time: after too many in a row it is started anew.
    pub(super) fn count_timeout(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key).filter(|worker| worker.takes_messages()) else { return };
        worker.answering.timeouts += 1;
        let (timeouts, pool) = (worker.answering.timeouts, worker.pool);
        if self.settings.pools[pool].max_timeouts.is_some_and(|most| timeouts >= most) {
            let text = format!("{timeouts} requests in a row ran out of time (max_timeouts); it is told to stop");
            self.stop_broken_worker(key, Reason::WorkerHangs, &text);
        }
    }
}
