//! The workers in the world of an MCP listener.

use std::time::Duration;

use serde_json::Value;

use crate::bus::port::{Moment, WorkerKey};
use crate::bus::settings::Era;
use crate::small::Wire;

/// A request that a worker has read.
pub(super) struct Work {
    pub(super) id: Value,
    pub(super) client: usize,
    pub(super) number: usize,
    /// The task that it names.
    pub(super) task: Option<String>,
    /// It is a `subscriptions/listen`.
    pub(super) listens: bool,
    pub(super) given_up: Option<Moment>,
    /// It is an `initialize` that asks for this.
    pub(super) greets: Option<usize>,
    /// It is not the first one of its worker.
    pub(super) is_second: bool,
    /// The bus has sent it again.
    pub(super) is_again: bool,
    /// It was sent to the worker for its task, whoever has borrowed that.
    pub(super) is_guest: bool,
}

/// The state of a worker's process.
enum Life {
    Starting,
    /// Start time.
    Running(Moment),
    Gone,
}

pub(super) struct SimWorker {
    pub(super) key: WorkerKey,
    pub(super) pool: usize,
    pub(super) wire: Wire,
    life: Life,
    /// The id of the `server/discover` that it has not answered.
    pub(super) asked: Option<Value>,
    /// It did not answer that in time.
    pub(super) is_late: bool,
    /// It was not known what its command speaks, or doubted, when it was started.
    pub(super) may_be_asked: bool,
    /// It has answered that with a result, or is late: it may serve only 2026-07-28.
    pub(super) may_be_pinned: bool,
    /// It has answered anything.
    pub(super) has_answered: bool,
    pub(super) pinned: Option<Era>,
    pub(super) served: Vec<usize>,
    pub(super) work: Vec<Work>,
    /// What an `initialize` asked for that it has accepted.
    pub(super) accepted: Vec<usize>,
    /// Clients whose `initialize` the bus has sent it again, when, and whether it has answered.
    pub(super) greeted: Vec<(usize, Moment, bool)>,
    /// It has read an `initialize`.
    pub(super) has_begun: bool,
    pub(super) next: usize,
    pub(super) terminated: bool,
    pub(super) released: bool,
}

impl SimWorker {
    pub(super) fn new(key: WorkerKey, pool: usize, may_be_asked: bool) -> Self {
        Self {
            key,
            pool,
            wire: Wire::default(),
            life: Life::Starting,
            may_be_asked,
            asked: None,
            is_late: false,
            may_be_pinned: false,
            has_answered: false,
            pinned: None,
            served: Vec::new(),
            work: Vec::new(),
            accepted: Vec::new(),
            greeted: Vec::new(),
            has_begun: false,
            next: 0,
            terminated: false,
            released: false,
        }
    }

    /// It answers an `initialize`.
    pub(super) fn answers_greeting(&mut self, work: &Work, fails: bool) {
        let kind = work.greets.expect("it is one");
        if !fails {
            self.accepted.push(kind);
        }
        let again = self.greeted.iter_mut().filter(|(client, ..)| work.is_again && *client == work.client);
        again.for_each(|(.., is_answered)| *is_answered = true);
    }

    pub(super) fn is_starting(&self) -> bool {
        matches!(self.life, Life::Starting) && !self.released
    }

    pub(super) fn starts(&mut self, now: Moment) {
        self.life = Life::Running(now);
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.life, Life::Running(_))
    }

    /// How long it has been running, if it is.
    pub(super) fn has_run_for(&self, now: Moment) -> Option<Duration> {
        match self.life {
            Life::Running(since) => Some(now.since(since)),
            Life::Starting | Life::Gone => None,
        }
    }

    /// It runs, and was not asked to stop.
    pub(super) fn takes(&self) -> bool {
        self.runs() && !self.terminated
    }

    pub(super) fn exits(&mut self) {
        self.life = Life::Gone;
    }

    /// Its process has exited, or could not be started.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.life, Life::Gone)
    }
}
