//! What has happened, written down for people and summed up for comparison.

use std::collections::VecDeque;

use crate::bus::port::Moment;
use crate::trace::{Hashes, Trace};

/// Things that a failing seed shows, unless `STDIO_BUS_SIM_LOG` says how many.
const SHOWN: usize = 50;

/// What has happened.
pub(super) struct Journal {
    /// The last things, if somebody wants to read them: to write them down takes half of the time.
    log: Option<VecDeque<String>>,
    /// How many of them.
    most: usize,
    /// How many things have happened.
    noted: u64,
    /// What all this comes to, if somebody wants to know.
    trace: Option<Trace>,
}

impl Journal {
    pub(super) fn new() -> Self {
        let most = std::env::var("STDIO_BUS_SIM_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(SHOWN);
        Self { log: None, most, noted: 0, trace: None }
    }

    /// It is to be read.
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

    /// How many things have happened.
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

    /// It is summed up, and all that is written down is kept.
    pub(super) fn sum_up(&mut self) {
        (self.trace, self.most) = (Some(Trace::default()), usize::MAX);
    }

    pub(super) fn is_summed_up(&self) -> bool {
        self.trace.is_some()
    }

    pub(super) fn trace(&mut self) -> Option<&mut Trace> {
        self.trace.as_mut()
    }

    /// What it comes to, and all that is written down.
    pub(super) fn take(&mut self) -> (Hashes, Vec<String>) {
        (self.trace.take().unwrap_or_default().hashes(), self.log.take().unwrap_or_default().into())
    }
}
