//! The model's early lines: lines of a worker that wait for the session that they name.

use std::time::Duration;

use super::{Early, Model, Rank, Request, Session, Worker};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::MAX_SESSION_ID_LEN;
use crate::line::{Kind, Line, Party};

/// Limits for the early lines of one worker: their number, their bytes, and how long they wait.
const EARLY_LINES: usize = 64;
const EARLY_BYTES: usize = 1 << 20;

const EARLY_WAITS: Duration = Duration::from_secs(60);

impl Model {
    /// Whether a line of a worker waits for an answer that makes the session which it names.
    pub(super) fn waits_for_session(&self, worker: usize, line: &Line) -> bool {
        let Worker { owner: None, early, .. } = &self.workers[worker] else { return false };
        let Some(name) = line.way().filter(|name| name.len() <= MAX_SESSION_ID_LEN) else { return false };
        let is_known = self.sessions.iter().any(|at| at.worker == worker && at.name == *name)
            || self.held.iter().any(|held| held.worker == worker && held.name == *name);
        let in_all = |early: &[Early]| early.iter().map(|early| early.bytes).sum::<usize>();
        let bytes = line.bytes().len();
        let most = self.settings.limits.max_memory / 16;
        let all: usize = self.workers.iter().map(|worker| in_all(&worker.early)).sum();
        line.kind == Kind::Notification
            && line.ids.request_id.is_none()
            && line.ids.progress.is_none()
            && line.ids.subscription.is_none()
            && self.is_making(worker)
            && !is_known
            && early.len() < EARLY_LINES
            && in_all(early) + bytes <= EARLY_BYTES.min(most)
            && all + bytes <= most
    }

    /// The lines of a worker stop waiting for their sessions, except those for session `made`, which follow now.
    pub(super) fn ends_early(&mut self, worker: usize, made: Option<&str>) {
        let early = std::mem::take(&mut self.workers[worker].early);
        for early in early {
            if made.is_some() && self.lines[early.number].way().map(String::as_str) == made {
                self.workers[worker].early.push(early);
            } else {
                self.count(Reason::UnknownSession);
            }
        }
    }

    /// Sessions were loaded that lines of their worker may wait for: their owner is ambiguous, unless the answer has
    /// named the session, as `made`.
    pub(super) fn loaded_otherwise(&mut self, worker: usize, loaded: &[usize], made: Option<&str>) {
        let is_it = |at: &&Session| loaded.contains(&at.serial) && at.rank == Rank::Issued;
        let names = self.sessions.iter().filter(is_it).map(|at| at.name.clone());
        for name in names.filter(|name| Some(name.as_str()) != made).collect::<Vec<_>>() {
            let early = std::mem::take(&mut self.workers[worker].early);
            let (gone, stay): (Vec<_>, Vec<_>) =
                early.into_iter().partition(|early| self.lines[early.number].way() == Some(&name));
            self.workers[worker].early = stay;
            gone.iter().for_each(|_| self.count(Reason::UnknownSession));
        }
    }

    /// Whether a request for a session is pending at a worker.
    pub(super) fn is_making(&self, worker: usize) -> bool {
        let makes = |request: &Request| request.answerer == Party::Worker(worker) && self.lines[request.line].creates();
        self.to_workers.iter().any(makes)
    }

    /// Whether this line waits for its session.
    pub fn is_early(&self, number: usize) -> bool {
        let Party::Worker(worker) = self.lines[number].from else { return false };
        self.workers[worker].early.iter().any(|early| early.number == number)
    }

    /// Drops lines that have waited too long for their sessions.
    pub fn expire_early(&mut self, now: Moment) {
        for at in 0..self.workers.len() {
            let early = &mut self.workers[at].early;
            let before = early.len();
            early.retain(|early| now.since(early.since) < EARLY_WAITS);
            for _ in early.len()..before {
                self.count(Reason::UnknownSession);
            }
        }
    }

    /// Each waiting line names a session that is still to be made.
    pub(super) fn check_early(&mut self, bytes_waiting: usize) {
        // The lines dropped before a client was closed are the first of the possible ones.
        let waits = |workers: &[Worker]| workers.iter().flat_map(|worker| &worker.early).map(|early| early.bytes).sum();
        while waits(&self.workers) > bytes_waiting
            && let Some(worker) = self.workers.iter_mut().find(|worker| worker.early.iter().any(|early| early.in_doubt))
        {
            let at = worker.early.iter().position(|early| early.in_doubt).expect("it was found");
            worker.early.remove(at);
            self.count(Reason::UnknownSession);
        }
        let waiting: usize = waits(&self.workers);
        assert_eq!(waiting, bytes_waiting, "bytes that wait for sessions");
        self.workers.iter_mut().flat_map(|worker| &mut worker.early).for_each(|early| early.in_doubt = false);
        for (at, worker) in self.workers.iter().enumerate() {
            for Early { number, .. } in &worker.early {
                let name = self.lines[*number].way();
                let is_it = |session: &&Session| session.worker == at && Some(&session.name) == name;
                let made = self.sessions.iter().find(is_it);
                assert!(made.is_none_or(|made| made.rank < Rank::Issued), "line {number} still waits for {made:?}");
            }
        }
    }

    /// An early line is queued for the owner of its session.
    pub(super) fn early_line(&mut self, number: usize, to: Party) {
        let line = &self.lines[number];
        let Party::Worker(worker) = line.from else { panic!("line {number} never waited: {line:?}") };
        let is_it = |at: &&Session| at.worker == worker && Some(&at.name) == line.way();
        let session = self.sessions.iter().find(is_it).expect("a line waits until its session is made");
        assert_eq!(Party::Client(session.client), to, "line {number} waited for another");
        // It was created, or the worker has said that it is loaded.
        assert!(session.rank >= Rank::Confirmed, "line {number} waited for more than {session:?}");
        let early = std::mem::take(&mut self.workers[worker].early);
        let is_behind =
            |early: &Early| early.number > number || self.lines[early.number].way() != self.lines[number].way();
        let (behind, before): (Vec<_>, Vec<_>) = early.into_iter().partition(is_behind);
        self.workers[worker].early = behind;
        for early in before.into_iter().filter(|early| early.number != number) {
            assert!(early.in_doubt, "early lines keep their order");
            self.count(Reason::UnknownSession);
        }
    }
}
