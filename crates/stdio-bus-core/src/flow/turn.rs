//! A client's turn for a shared worker. A turn is a number of bytes: a long line waits for as many turns as it needs.

use crate::peer::WorkerKey;

/// Bytes that a client may send in one turn.
const QUANTUM: usize = 64 * 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Bytes of the line that it waits with.
    waiting: usize,
    /// Bytes that it may send in its turn.
    credit: usize,
    /// The worker for which it has its turn.
    granted: Option<WorkerKey>,
}

impl Turn {
    pub(crate) const NONE: Self = Self { waiting: 0, credit: 0, granted: None };

    /// It waits with a line of `bytes` bytes.
    pub(crate) fn wait(&mut self, bytes: usize) {
        self.waiting = bytes;
    }

    /// Whether it has its turn, and has not sent its line yet.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted.is_some()
    }

    /// Gives it one more turn for a worker. If its line may be sent then, or no other client waits, returns its bytes.
    pub(crate) fn grant(&mut self, worker: WorkerKey, is_last: bool) -> Option<u64> {
        self.credit += QUANTUM;
        if self.waiting > self.credit && !is_last {
            return None;
        }
        self.credit = 0;
        self.granted = Some(worker);
        Some(self.waiting.max(1) as u64)
    }

    /// It sends its line to this worker, or to another one. Returns whether it has its turn there.
    pub(crate) fn take(&mut self, worker: WorkerKey) -> bool {
        self.granted.take() == Some(worker)
    }
}
