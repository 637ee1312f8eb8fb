//! Which lines the bus has forwarded, and when.

use std::collections::BTreeMap;

use crate::bus::port::Moment;
use crate::line::Line;

/// A client's line that named a session to a worker.
pub(super) struct Visit {
    worker: usize,
    name: String,
    pub(super) client: usize,
    pub(super) at: Moment,
    pub(super) loads: bool,
}

/// The lines that were forwarded, and those that were dropped.
#[derive(Default)]
pub(super) struct Passage {
    /// The time and sequence number of each forwarded line.
    sent: BTreeMap<usize, (Moment, usize)>,
    visits: Vec<Visit>,
    /// Lines that were dropped in this step.
    dropped: Vec<usize>,
    /// The last line that was queued, if it is a broadcast.
    for_all: Option<usize>,
}

impl Passage {
    /// A line is forwarded. Returns its sequence number.
    pub(super) fn passes(&mut self, now: Moment, number: usize) -> usize {
        let order = self.count();
        self.sent.insert(number, (now, order));
        order
    }

    /// Number of forwarded lines.
    pub(super) fn count(&self) -> usize {
        self.sent.len()
    }

    /// The time and sequence number of a forwarded line.
    pub(super) fn sent(&self, number: usize) -> Option<(Moment, usize)> {
        self.sent.get(&number).copied()
    }

    /// A client names sessions to a worker.
    pub(super) fn visits(&mut self, now: Moment, client: usize, worker: usize, line: &Line) {
        let visit = |name: &String| Visit { worker, name: name.clone(), client, at: now, loads: line.loads() };
        self.visits.extend(line.names().into_iter().map(visit));
    }

    /// The clients that have named a session to a worker, and when.
    pub(super) fn visits_of(&self, worker: usize, name: &str) -> impl Iterator<Item = &Visit> + Clone {
        self.visits.iter().filter(move |visit| visit.worker == worker && visit.name == name)
    }

    /// Whether other clients have just got this line, and more may.
    pub(super) fn is_for_all(&self, number: usize) -> bool {
        self.for_all == Some(number)
    }

    /// The last line that was queued, if it is a broadcast.
    pub(super) fn queued(&mut self, for_all: Option<usize>) {
        self.for_all = for_all;
    }

    pub(super) fn drops(&mut self, number: usize) {
        self.dropped.push(number);
    }

    /// The lines dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.dropped)
    }
}
