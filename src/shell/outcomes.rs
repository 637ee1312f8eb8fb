//! The outcomes of reloads, for operators.

use crate::error::exit;

/// The state of a reload, and its messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The reload's sequence number.
    pub number: u64,
    pub is_dry_run: bool,
    pub is_under_way: bool,
    /// The exit code of the command.
    pub code: u8,
    pub lines: Vec<String>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub last: Outcome,
    /// How many have succeeded and failed, not counting dry runs.
    pub succeeded: u64,
    pub failed: u64,
    /// The last of those has failed.
    pub last_failed: bool,
}

impl Outcomes {
    pub(super) fn begin(&mut self, is_dry_run: bool) {
        self.last = Outcome { number: self.last.number + 1, is_dry_run, is_under_way: true, ..Outcome::default() };
    }

    /// Records the end of a reload. Dry runs are not counted.
    pub(super) fn end(&mut self, code: u8) {
        (self.last.is_under_way, self.last.code) = (false, code);
        if !self.last.is_dry_run {
            self.last_failed = code != exit::OK;
            *if self.last_failed { &mut self.failed } else { &mut self.succeeded } += 1;
        }
    }
}
