//! What the shell remembers of how much memory is lent, and what the core was told of it.

use std::time::Duration;

use super::timers::earlier;
use crate::bus::port::Moment;

/// How short memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Enough,
    /// Above three quarters.
    Short,
    /// Above max_memory.
    Over,
}

/// What the shell remembers about it.
pub(super) struct Budget {
    pub most: usize,
    /// What the core was told last, and when it may be told of each stage again.
    told: Stage,
    short_at: Moment,
    over_at: Moment,
    /// The system has refused memory since the core was told so, and when it is told again.
    pub refused: bool,
    pub refused_at: Moment,
    pub trim_at: Option<Moment>,
    /// The timer has run out that was set for one of these moments.
    pub is_due: bool,
    /// Connections whose next read needs a larger block, and waits.
    pub waiting: Vec<usize>,
    /// The core has been told of them, and they may try again although memory is short.
    pub may_grow: bool,
}

impl Budget {
    /// `most` is max_memory.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            told: Stage::Enough,
            short_at: Moment(0),
            over_at: Moment(0),
            refused: false,
            refused_at: Moment(0),
            trim_at: None,
            is_due: false,
            waiting: Vec::new(),
            may_grow: false,
        }
    }

    /// Whether the core is told now that memory is at this stage.
    pub(super) fn is_to_be_told(&self, now: Moment, stage: Stage) -> bool {
        match stage {
            Stage::Enough => self.told > Stage::Enough,
            Stage::Short => self.short_at <= now,
            Stage::Over => self.over_at <= now,
        }
    }

    /// It is told, and may be told of the same after so long.
    pub(super) fn told(&mut self, now: Moment, stage: Stage, again: Duration) {
        self.told = stage;
        if stage > Stage::Enough {
            self.short_at = now.after(again);
        }
        if stage == Stage::Over {
            self.over_at = now.after(again);
        }
    }

    /// Whether there is nothing to do, with so much memory lent. `has_spares` says that some may be given back in time.
    pub(super) fn is_calm(&self, now: Moment, lent: usize, has_spares: bool) -> bool {
        let is_waited_for = self.is_due || self.refused || self.may_grow || !self.waiting.is_empty();
        let is_trimmed_later = self.trim_at.map_or(!has_spares, |at| now < at);
        lent <= self.short_above() && self.told == Stage::Enough && !is_waited_for && is_trimmed_later
    }

    /// When there is something to do although nothing happens, with so much memory lent. `is_spent` says that the reserve
    /// is in use.
    pub(super) fn due(&self, lent: usize, is_spent: bool) -> Option<Moment> {
        let tell = match self.stage(lent) {
            Stage::Enough => None,
            Stage::Short => Some(self.short_at),
            Stage::Over => Some(self.over_at),
        };
        let refused = (self.refused || is_spent).then_some(self.refused_at);
        earlier(earlier(tell, refused), self.trim_at)
    }

    /// Memory is short when more than this is lent.
    pub(super) fn short_above(&self) -> usize {
        self.most / 4 * 3
    }

    pub(super) fn stage(&self, used: usize) -> Stage {
        match used {
            used if used > self.most => Stage::Over,
            used if used > self.short_above() => Stage::Short,
            _ => Stage::Enough,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_above_three_quarters_and_over_above_all_of_it() {
        let budget = Budget::new(400);
        let cases =
            [(0, Stage::Enough), (300, Stage::Enough), (301, Stage::Short), (400, Stage::Short), (401, Stage::Over)];
        for (used, stage) in cases {
            assert_eq!(budget.stage(used), stage, "{used}");
        }
    }
}
