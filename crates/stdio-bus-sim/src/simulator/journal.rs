//! The journal of events, written for people and hashed for comparison.

use std::collections::VecDeque;

use crate::bus::port::Moment;
use crate::trace::{Hashes, Trace};

/// Number of events shown for a failing seed, unless `STDIO_BUS_SIM_LOG` sets it.
const SHOWN: usize = 50;

/// The events.
pub(super) struct Journal {
    /// The last events, if they are to be printed: writing them takes half of the time.
    log: Option<VecDeque<String>>,
    /// Their maximum number.
    most: usize,
    /// Number of events.
    noted: u64,
    /// The hashes of all this, if wanted.
    trace: Option<Trace>,
}

impl Journal {
    pub(super) fn new() -> Self {
        let most = std::env::var("STDIO_BUS_SIM_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(SHOWN);
        Self { log: None, most, noted: 0, trace: None }
    }

    /// The events are to be printed.
    pub(super) fn open(&mut self) {
        self.log = Some(VecDeque::new());
    }

    pub(super) fn is_read(&self) -> bool {
        self.log.is_some()
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &String> {
        self.log.iter().flatten()
    }

    pub(super) fn counts(&mut self) {
        self.noted += 1;
    }

    /// Number of events.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    pub(super) fn write(&mut self, now: Moment, text: &str) {
        let Some(log) = &mut self.log else { return };
        if log.len() >= self.most.max(1) {
            log.pop_front();
        }
        log.push_back(format!("{:>12.6} {text}", now.0 as f64 / 1e9));
    }

    /// The events are hashed, and all that is written is kept.
    pub(super) fn sum_up(&mut self) {
        (self.trace, self.most) = (Some(Trace::default()), usize::MAX);
    }

    pub(super) fn is_summed_up(&self) -> bool {
        self.trace.is_some()
    }

    pub(super) fn trace(&mut self) -> Option<&mut Trace> {
        self.trace.as_mut()
    }

    /// The hashes, and everything written.
    pub(super) fn take(&mut self) -> (Hashes, Vec<String>) {
        (self.trace.take().unwrap_or_default().hashes(), self.log.take().unwrap_or_default().into())
    }
}
