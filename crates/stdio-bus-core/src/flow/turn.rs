//! A client's turn before a worker that several clients share. A turn is so many bytes: a long line waits for as many of
//! them as it needs.

use crate::peer::WorkerKey;

/// Bytes that a client may send in one turn.
const QUANTUM: usize = 64 * 1024;

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Bytes of the line that it waits with.
    waiting: usize,
    /// Bytes that it may send when its turn comes.
    credit: usize,
    /// The worker before which it has its turn.
    granted: Option<WorkerKey>,
}

impl Turn {
    pub(crate) const NONE: Self = Self { waiting: 0, credit: 0, granted: None };

    /// It waits with a line of so many bytes.
    pub(crate) fn wait(&mut self, bytes: usize) {
        self.waiting = bytes;
    }

    /// Whether it has its turn, and has not sent its line yet.
    #[inline]
    pub(crate) fn is_granted(&self) -> bool {
        self.granted.is_some()
    }

    /// Gives it one turn more before a worker. If its line may go then, or nobody else waits, gives how many bytes that are.
    pub(crate) fn grant(&mut self, worker: WorkerKey, is_last: bool) -> Option<u64> {
        self.credit += QUANTUM;
        if self.waiting > self.credit && !is_last {
            return None;
        }
        self.credit = 0;
        self.granted = Some(worker);
        Some(self.waiting.max(1) as u64)
    }

    /// It sends its line to this worker, or to another one. Says whether it has its turn there.
    pub(crate) fn take(&mut self, worker: WorkerKey) -> bool {
        self.granted.take() == Some(worker)
    }
}
