//! The progress of the shutdown, as the operator and the listeners see it.

use std::time::Duration;

use crate::bus::port::Moment;

/// A shutdown: what was requested, and what was reported.
#[derive(Default)]
pub(super) struct Drain {
    signals: usize,
    /// The time of the first one.
    signalled: Option<Moment>,
    listens_no_more: bool,
    done: usize,
}

impl Drain {
    /// Whether the operator may send one more signal.
    pub(super) fn has_signals(&self) -> bool {
        self.signals < 2
    }

    /// The operator sends a signal. Returns whether it counts as a further one after the first.
    pub(super) fn signal(&mut self, now: Moment) -> bool {
        self.signals += 1;
        let is_new = self.signalled.is_none_or(|at| now.since(at) >= Duration::from_secs(1));
        self.signalled.get_or_insert(now);
        is_new
    }

    /// The operator may send as many signals as at the start.
    pub(super) fn renew_signals(&mut self) {
        self.signals = 0;
    }

    pub(super) fn stops_listening(&mut self) {
        assert!(!std::mem::replace(&mut self.listens_no_more, true));
    }

    /// The bus reports that it is over.
    pub(super) fn ends(&mut self) {
        self.done += 1;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.done > 0
    }

    pub(super) fn check_end(&self) {
        assert_eq!(self.done, 1, "the drain never ends");
    }
}
