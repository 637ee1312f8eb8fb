//! The outcomes of reloads, for operators.

use crate::error::exit;

/// The state of a reload, and its messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The reload's sequence number.
    pub number: u64,
    pub is_dry_run: bool,
    pub is_over: bool,
    /// The exit code of the command.
    pub code: u8,
    pub lines: Vec<String>,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub last: Outcome,
    /// How many have succeeded and failed, not counting dry runs.
    pub succeeded: u64,
    pub failed: u64,
    /// The exit code of the last of those.
    last_code: u8,
}

impl Default for Outcomes {
    fn default() -> Self {
        let last = Outcome { is_over: true, ..Outcome::default() };
        Self { last, succeeded: 0, failed: 0, last_code: exit::OK }
    }
}

impl Outcomes {
    /// Whether the last completed one has succeeded, or there was none.
    pub(super) fn last_succeeded(&self) -> bool {
        self.last_code == exit::OK
    }

    pub(super) fn begin(&mut self, is_dry_run: bool) {
        self.last = Outcome { number: self.last.number + 1, is_dry_run, ..Outcome::default() };
    }

    /// Records the end of a reload. Dry runs are not counted.
    pub(super) fn end(&mut self, code: u8) {
        (self.last.is_over, self.last.code) = (true, code);
        if !self.last.is_dry_run {
            self.last_code = code;
            *if code == exit::OK { &mut self.succeeded } else { &mut self.failed } += 1;
        }
    }
}
