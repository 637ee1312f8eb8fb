//! The progress of the bus's shutdown, as far as requests are concerned.

use crate::bus::shutdown::Stage;

/// How new requests are treated.
#[derive(Default)]
pub(super) struct Drain {
    /// They are refused.
    quiescing: bool,
    /// All messages are refused at the end of this step.
    refusing: bool,
    /// They were refused when it began.
    refused: bool,
}

impl Drain {
    /// The bus may advance this far in this step.
    pub(super) fn comes(&mut self, is_quiescing: bool, is_refusing: bool) {
        self.quiescing |= is_quiescing;
        self.refusing |= is_refusing;
    }

    /// The step is over, and the bus has advanced this far.
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
