//! How far the bus has come with its shutdown, as it treats requests.

use crate::bus::shutdown::Stage;

/// What becomes of new requests.
#[derive(Default)]
pub(super) struct Drain {
    /// They are refused.
    quiescing: bool,
    /// All messages are, at the end of this step.
    refusing: bool,
    /// They were when it began.
    refused: bool,
}

impl Drain {
    /// The bus may come so far in this step.
    pub(super) fn comes(&mut self, is_quiescing: bool, is_refusing: bool) {
        self.quiescing |= is_quiescing;
        self.refusing |= is_refusing;
    }

    /// The step is over, and the bus has come so far.
    pub(super) fn has_come(&mut self, stage: Stage) {
        self.quiescing = stage >= Stage::Quiescing;
        self.refusing = stage >= Stage::Terminating;
        self.refused = self.refusing;
    }

    pub(super) fn is_quiescing(&self) -> bool {
        self.quiescing
    }

    pub(super) fn is_refusing(&self) -> bool {
        self.refusing
    }

    pub(super) fn has_refused(&self) -> bool {
        self.refused
    }
}
