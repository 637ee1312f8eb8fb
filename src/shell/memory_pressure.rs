//! Memory pressure: how close to the memory limit the daemon is, as a stage, and what was reported to the core.

use std::time::Duration;

use super::timers::earlier;
use crate::bus::port::Moment;

/// Interval of reports to the core while memory stays short.
pub(super) const AGAIN: Duration = Duration::from_millis(10);

/// The stage of memory pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MemoryStage {
    #[default]
    Enough,
    /// Above three quarters.
    Short,
    /// Above max_memory.
    Over,
}

/// The state of memory pressure.
#[derive(Default)]
pub(super) struct MemoryPressure {
    pub most: usize,
    /// The stage last reported to the core, and when one may be reported again.
    reported: MemoryStage,
    again_at: Moment,
    /// The system has refused memory since the last report, and when that is reported again.
    pub refused: bool,
    pub refused_at: Moment,
    pub trim_at: Option<Moment>,
    /// The timer for one of these moments has expired.
    pub is_due: bool,
    /// Connections whose next read needs a larger block, and is deferred.
    pub waiting: Vec<usize>,
    /// They were reported to the core, and they may retry although memory is short.
    pub may_grow: bool,
}

impl MemoryPressure {
    /// `most` is max_memory.
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Whether to report this stage to the core now. If so, it counts as reported.
    pub(super) fn may_report(&mut self, now: Moment, stage: MemoryStage) -> bool {
        let is_due = match stage {
            MemoryStage::Enough => self.reported > MemoryStage::Enough,
            MemoryStage::Short => self.again_at <= now,
            MemoryStage::Over => self.again_at <= now || self.reported == MemoryStage::Short,
        };
        if is_due {
            self.reported = stage;
            self.again_at = if stage > MemoryStage::Enough { now.after(AGAIN) } else { self.again_at };
        }
        is_due
    }

    /// Whether there is nothing to do, with `lent` bytes lent. `has_spares` if spares may be trimmed later.
    pub(super) fn is_calm(&self, now: Moment, lent: usize, has_spares: bool) -> bool {
        let is_waited_for = self.is_due || self.refused || self.may_grow || !self.waiting.is_empty();
        let is_trimmed_later = self.trim_at.map_or(!has_spares, |at| now < at);
        lent <= self.short_above() && self.reported == MemoryStage::Enough && !is_waited_for && is_trimmed_later
    }

    /// When there is something to do without an event, with `lent` bytes lent. `is_spent` if the reserve is in use.
    pub(super) fn due(&self, lent: usize, is_spent: bool) -> Option<Moment> {
        let report = (self.stage(lent) > MemoryStage::Enough).then_some(self.again_at);
        let refused = (self.refused || is_spent).then_some(self.refused_at);
        earlier(earlier(report, refused), self.trim_at)
    }

    /// Memory is short when more than this is lent.
    pub(super) fn short_above(&self) -> usize {
        self.most / 4 * 3
    }

    pub(super) fn stage(&self, used: usize) -> MemoryStage {
        match used {
            used if used > self.most => MemoryStage::Over,
            used if used > self.short_above() => MemoryStage::Short,
            _ => MemoryStage::Enough,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_above_three_quarters_and_over_above_all_of_it() {
        let memory = MemoryPressure::new(400);
        let cases = [
            (0, MemoryStage::Enough),
            (300, MemoryStage::Enough),
            (301, MemoryStage::Short),
            (400, MemoryStage::Short),
            (401, MemoryStage::Over),
        ];
        for (used, stage) in cases {
            assert_eq!(memory.stage(used), stage, "{used}");
        }
    }
}
