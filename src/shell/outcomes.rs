//! What has come of reloads, for operators.

use crate::error::exit;

/// Where a reload stands, and what is said of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Reloads are counted.
    pub number: u64,
    pub is_dry_run: bool,
    pub is_over: bool,
    /// What the command exits with.
    pub code: u8,
    pub lines: Vec<String>,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub last: Outcome,
    /// How many have succeeded and failed, dry runs apart.
    pub succeeded: u64,
    pub failed: u64,
    /// What the last of those was.
    last_code: u8,
}

impl Default for Outcomes {
    fn default() -> Self {
        let last = Outcome { is_over: true, ..Outcome::default() };
        Self { last, succeeded: 0, failed: 0, last_code: exit::OK }
    }
}

impl Outcomes {
    /// Whether the last one that is over has succeeded, or there was none.
    pub(super) fn last_succeeded(&self) -> bool {
        self.last_code == exit::OK
    }

    pub(super) fn begin(&mut self, is_dry_run: bool) {
        self.last = Outcome { number: self.last.number + 1, is_dry_run, ..Outcome::default() };
    }

    /// It is over. Dry runs are not counted.
    pub(super) fn end(&mut self, code: u8) {
        (self.last.is_over, self.last.code) = (true, code);
        if !self.last.is_dry_run {
            self.last_code = code;
            *if code == exit::OK { &mut self.succeeded } else { &mut self.failed } += 1;
        }
    }
}
