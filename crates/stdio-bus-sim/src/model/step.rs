//! What the bus has still to do in a step, and what it may have done in it.

use std::collections::BTreeMap;

use crate::bus::report::Reason;
use crate::line::Party;

/// What must be settled by the end of a step.
#[derive(Default)]
pub(super) struct Step {
    /// Workers with timed-out requests: they must have been stopped by its end.
    timed_out: Vec<usize>,
    /// Workers with requests that were given up since they took too long.
    given_up: Vec<usize>,
    /// Clients whose requests were dropped with their connection, and why.
    dropped_with_client: Vec<(usize, Reason)>,
    /// Dropped cancelled requests that their clients still have to be notified of.
    cancelled: Vec<(Party, String)>,
    /// Clients of which the bus has reported cancelled requests: they are among those that leave without an answer.
    reported: Vec<usize>,
    /// The reasons for which lines of a worker would have been lost before a client was closed in the middle of them.
    lost_before: BTreeMap<usize, Vec<Reason>>,
    /// Dedicated pools of which a dropped line may have taken a worker.
    perhaps_taken: Vec<usize>,
}

impl Step {
    /// A request of a worker timed out.
    pub(super) fn note_timeout(&mut self, worker: usize) {
        self.timed_out.push(worker);
    }

    pub(super) fn take_timed_out(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.timed_out)
    }

    /// A request to a worker was given up, and its questions that belong to it may be.
    pub(super) fn note_given_up(&mut self, worker: usize) {
        self.given_up.push(worker);
    }

    pub(super) fn has_given_up(&self, worker: usize) -> bool {
        self.given_up.contains(&worker)
    }

    /// A request of a client was dropped with its connection.
    pub(super) fn note_dropped(&mut self, client: usize, why: Reason) {
        self.dropped_with_client.push((client, why));
    }

    /// A client is closed for a reason of its own.
    pub(super) fn excuse_client(&mut self, client: usize) {
        self.dropped_with_client.retain(|(dropped_with_client, _)| *dropped_with_client != client);
    }

    pub(super) fn take_dropped(&mut self) -> Vec<(usize, Reason)> {
        std::mem::take(&mut self.dropped_with_client)
    }

    /// The client of a cancelled request has to be notified that it is dropped.
    pub(super) fn owe_cancelled(&mut self, asker: Party, token: String) {
        self.cancelled.push((asker, token));
    }

    pub(super) fn owes_cancelled(&self, asker: Party, token: &str) -> bool {
        self.cancelled.iter().any(|(of, known)| *of == asker && known == token)
    }

    /// It was notified.
    pub(super) fn notify_cancelled(&mut self, asker: Party, token: &str) {
        let at = self.cancelled.iter().position(|(of, known)| *of == asker && known == token);
        self.cancelled.remove(at.expect("a request was cancelled, and its grace is over"));
    }

    /// A cancelled request of a client was reported.
    pub(super) fn note_cancelled(&mut self, client: usize) {
        self.reported.push(client);
    }

    pub(super) fn take_reported(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.reported)
    }

    /// A line would have been lost for these reasons before a client was closed.
    pub(super) fn may_be_lost(&mut self, number: usize, reasons: Vec<Reason>) {
        self.lost_before.entry(number).or_default().extend(reasons);
    }

    pub(super) fn take_lost_before(&mut self, number: usize) -> Vec<Reason> {
        self.lost_before.remove(&number).unwrap_or_default()
    }

    /// A line may have taken a worker of one of these pools.
    pub(super) fn may_have_taken(&mut self, pools: impl IntoIterator<Item = usize>) {
        self.perhaps_taken.extend(pools);
    }

    pub(super) fn has_perhaps_taken(&self, pools: &[usize]) -> bool {
        self.perhaps_taken.iter().any(|pool| pools.contains(pool))
    }

    /// The step is over: its possible effects do not count any more.
    pub(super) fn end(&mut self) {
        self.perhaps_taken.clear();
        self.given_up.clear();
        self.lost_before.clear();
    }

    pub(super) fn check_cancelled(&self) {
        assert!(self.cancelled.is_empty(), "these were cancelled without an error: {:?}", self.cancelled);
    }
}
