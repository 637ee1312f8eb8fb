//! What the shell remembers of how much memory is lent, and what the core was told of it.

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
    pub told: Stage,
    pub short_at: Moment,
    pub over_at: Moment,
    /// The system has refused memory since the core was told so, and when it is told again.
    pub refused: bool,
    pub refused_at: Moment,
    pub trim_at: Option<Moment>,
    /// Connections whose next read needs a larger block, and waits.
    pub waiting: Vec<usize>,
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
            waiting: Vec::new(),
        }
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
