//! The output queue of one connection, and who waits for it (spec 7.3): an output counts the bytes that it holds, which
//! others store, and lists the peers that wait for it to drain. Invariant: a peer waits for one output at a time.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::cold::{Cold, blank};
use crate::peer::{Moment, Peer};

/// A full output must lose this part of the limit within the timeout, or it counts as stalled. Otherwise a reader that
/// takes one byte a minute could hold up a worker forever; this way a slow one still receives everything.
const PROGRESS_PARTS: usize = 16;

/// The output queue of one connection.
pub(crate) struct Output {
    /// Bytes queued and not sent yet.
    queued: usize,
    cold: Cold<ColdOutput>,
}

/// State that few outputs have.
struct ColdOutput {
    /// More than the limit was queued, and less than half of it has been drained since.
    full: Option<Full>,
    flush: Option<Flush>,
    /// The peers that wait for this output, in order of arrival.
    waiters: VecDeque<Peer>,
}

blank!(ColdOutput, Self { full: None, flush: None, waiters: VecDeque::new() });

/// It is only drained from now on.
#[derive(Clone, Copy, Debug)]
struct Flush {
    /// This many bytes at a time count as progress.
    step: usize,
    queued_then: usize,
}

#[derive(Clone, Copy, Debug)]
struct Full {
    /// Since when (spec 7.3.1).
    since: Moment,
    progress_at: Moment,
    queued_then: usize,
}

impl Output {
    /// An empty queue.
    pub(crate) const NOTHING: Self = Self { queued: 0, cold: Cold::unchanged() };

    /// Whether more than the limit was queued and less than half of it has been drained since.
    pub(crate) fn is_full(&self) -> bool {
        self.cold.get().is_some_and(|cold| cold.full.is_some())
    }

    /// Bytes queued and not sent yet.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Since when it has been full (spec 7.3.1).
    pub(crate) fn full_since(&self) -> Option<Moment> {
        self.cold.full.map(|full| full.since)
    }

    /// Whether any peer waits for it.
    pub(crate) fn has_waiters(&self) -> bool {
        self.cold.get().is_some_and(|cold| !cold.waiters.is_empty())
    }

    /// The peers that wait for it, in order of arrival.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Peer> {
        self.cold.waiters.iter()
    }

    /// A peer waits for it, behind the others.
    pub(crate) fn wait(&mut self, peer: Peer) {
        self.cold.waiters.push_back(peer);
    }

    /// A peer stops waiting for it.
    pub(crate) fn forget(&mut self, peer: Peer) {
        self.cold.get_mut().into_iter().for_each(|cold| cold.waiters.retain(|waiter| *waiter != peer));
    }

    /// Removes and returns the first waiting peer.
    pub(crate) fn next_waiter(&mut self) -> Option<Peer> {
        self.cold.get_mut()?.waiters.pop_front()
    }

    /// Removes and returns all waiting peers.
    pub(crate) fn take_waiters(&mut self) -> VecDeque<Peer> {
        self.cold.get_mut().map(|cold| core::mem::take(&mut cold.waiters)).unwrap_or_default()
    }

    /// Adds bytes; `limit` is max_output_queue. Returns whether that has made it full.
    pub(crate) fn push(&mut self, bytes: usize, limit: usize, now: Moment) -> bool {
        self.queued += bytes;
        let is_news = self.queued > limit && !self.is_full();
        if is_news {
            self.cold.full = Some(Full { since: now, progress_at: now, queued_then: self.queued });
        }
        is_news
    }

    /// Bytes were sent. True if the queue fell below half of `limit` and the waiting peers may continue (spec 7.3.1).
    pub(crate) fn pop(&mut self, bytes: usize, limit: usize, now: Moment) -> bool {
        debug_assert!(bytes <= self.queued);
        self.queued = self.queued.saturating_sub(bytes);
        let Some(cold) = self.cold.get_mut() else { return false };
        let Some(full) = &mut cold.full else { return false };
        if self.queued < limit.div_ceil(2) {
            cold.full = None;
            return true;
        }
        if self.queued + limit / PROGRESS_PARTS < full.queued_then {
            full.progress_at = now;
            full.queued_then = self.queued;
        }
        false
    }

    /// The queue is drained from now on, and nothing is added.
    pub(crate) fn begin_flush(&mut self) {
        self.cold.flush = Some(Flush { step: self.queued.div_ceil(PROGRESS_PARTS), queued_then: self.queued });
    }

    /// Whether another part of the queue at the start of the flush was sent since the last true.
    pub(crate) fn is_flush_progressing(&mut self) -> bool {
        let queued = self.queued;
        let flush = self.cold.get_mut().and_then(|cold| cold.flush.as_mut());
        let Some(flush) = flush.filter(|flush| queued + flush.step <= flush.queued_then) else { return false };
        flush.queued_then = queued;
        true
    }

    /// When the connection is closed unless it takes bytes before (spec 7.3.1).
    pub(crate) fn stalls_at(&self, timeout: Duration) -> Option<Moment> {
        self.cold.full.map(|full| full.progress_at.after(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_output_is_full_above_the_limit_and_released_below_half_of_it() {
        let mut output = Output::NOTHING;
        assert!(!output.push(100, 100, Moment(0)) && !output.is_full());
        assert!(output.push(1, 100, Moment(5)) && !output.push(0, 100, Moment(6)));
        assert_eq!(output.full_since(), Some(Moment(5)));
        assert!(!output.pop(51, 100, Moment(6)));
        assert!(output.is_full());
        assert!(output.pop(1, 100, Moment(7)));
        assert!(!output.is_full());
        assert_eq!(output.queued, 49);
    }

    #[test]
    fn the_stall_clock_restarts_with_real_progress_only() {
        let mut output = Output::NOTHING;
        output.push(2000, 1600, Moment(0));
        assert_eq!(output.stalls_at(TIMEOUT), Some(Moment(60 * SECOND)));
        output.pop(100, 1600, Moment(30 * SECOND));
        assert_eq!(output.stalls_at(TIMEOUT), Some(Moment(60 * SECOND)), "100 bytes are no sixteenth of the limit");
        output.pop(1, 1600, Moment(40 * SECOND));
        assert_eq!(output.stalls_at(TIMEOUT), Some(Moment(100 * SECOND)));
    }
}
