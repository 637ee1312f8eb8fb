//! Output of a worker that has no receiver: messages that name nobody, answers that nobody waits for, blank lines. It
//! costs the daemon as much as honest output does, as long as the worker lives. So a worker that writes much of it is
//! read with pauses (`Hold::Throttle`): it costs a fraction of the daemon's thread, and its honest lines go on, a
//! little later each.
//!
//! The core has no clock, so what a line costs is an estimate, rather too high. A pause is never longer than
//! `LONGEST_PAUSE`: what is due beyond that is paid with further ones.

use core::time::Duration;

use super::gate::Hold;
use crate::ctx::Ctx;
use crate::fleet::life::extend_read_timer;
use crate::peer::{Moment, Peer, WorkerKey};
use crate::port::{Next, Received};
use crate::report::Reason;

/// Undeliverable output of one worker may use 1/30 of the thread's time.
const PART: u32 = 30;
/// What a worker may cost at once, in nanoseconds.
const AT_ONCE: u64 = 1_250_000;
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Estimated costs in nanoseconds: of a line that is refused, of a byte between lines, and of a read for nothing else.
const LINE: u64 = 1_000;
const BYTE: u64 = 13;
const READ: u64 = 8_000;
/// This many bytes of a line that is skipped cost a nanosecond.
const BYTES_PASSED: u64 = 16;
/// Blank lines between others may have this many bytes at once, and are counted.
pub(crate) const MANY: usize = 16 * 1024;
/// A worker is reported again after it was read without pauses for this long.
const QUIET: Duration = Duration::from_secs(60);

/// What a peer's undeliverable output has cost. Each call adds to the cost, and it decays with time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waste {
    cost: u64,
    at: Moment,
}

impl Waste {
    /// Adds a cost in nanoseconds. Returns until when the peer is not read, if it has cost too much.
    pub fn charge(&mut self, now: Moment, cost: u64) -> Option<Moment> {
        let paid = now.since(self.at) / PART;
        self.cost = self.cost.saturating_sub(u64::try_from(paid.as_nanos()).unwrap_or(u64::MAX)).saturating_add(cost);
        self.at = now;
        let due = Duration::from_nanos(self.cost).saturating_mul(PART).min(LONGEST_PAUSE);
        (self.cost > AT_ONCE).then(|| now.after(due))
    }
}

/// What a worker has written for nobody.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undeliverable {
    waste: Waste,
    /// Lines refused since the last look.
    lines: u32,
    /// Bytes of lines that are passed over since the last look.
    passed: usize,
    /// When it was last read with pauses.
    paused_at: Option<Moment>,
}

impl Undeliverable {
    /// Whether a line of it was refused since the last look.
    pub(crate) fn has_any(&self) -> bool {
        self.lines > 0
    }

    /// A line of it had no receiver.
    pub(crate) fn count_line(&mut self) {
        self.lines += 1;
    }

    /// Whether a read that found this many lines, all of them with receivers, may have been useless, or another one.
    #[inline(always)]
    pub(crate) fn is_suspected(&self, lines: usize, consumed: usize) -> bool {
        lines == 0 || consumed >= MANY || self.lines > 0
    }

    /// So many bytes of a line were passed over. They cost less than blank lines.
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.passed += bytes;
    }
}

impl Ctx {
    pub(crate) fn pause_for_undeliverable(
        &mut self,
        key: WorkerKey,
        blank: usize,
        found: usize,
        received: &mut Received,
    ) {
        let now = self.time.now();
        let Some(worker) = self.workers.get_mut(key) else { return };
        let refused = core::mem::take(&mut worker.undeliverable_mut().lines) as usize;
        let passed = core::mem::take(&mut worker.undeliverable_mut().passed);
        let read = if refused >= found && passed == 0 { READ } else { 0 };
        let bytes = blank.saturating_sub(passed) as u64 * BYTE + passed as u64 / BYTES_PASSED;
        let until = worker.undeliverable_mut().waste.charge(now, refused as u64 * LINE + bytes + read);
        // One that has exited is read to its end, for a second at most.
        let Some(until) = until.filter(|_| !worker.process().has_exited()) else { return };
        let before = worker.undeliverable_mut().paused_at.replace(now);
        if before.is_none_or(|before| now.since(before) > QUIET) {
            self.report(Reason::WorkerFloods, Some(Peer::Worker(key)), || {
                "a worker writes a lot of output that has no recipient: reading from it is throttled, and its other lines \
                 are late"
                    .into()
            });
        }
        if let Some(worker) = self.workers.get_mut(key) {
            worker.end_mut().gate.throttle(until);
        }
        self.close_gate(key.into(), Hold::Throttle);
        self.wake_at(key.into(), until);
        received.next = Next::Wait;
    }

    /// A worker is read again after its pause, or since it has exited.
    pub(crate) fn end_pause(&mut self, key: WorkerKey, is_over: impl FnOnce(Moment) -> bool) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        if worker.end().gate.throttled_until().is_some_and(is_over) {
            worker.end_mut().gate.end_throttle();
            self.open_gate(key.into(), Hold::Throttle);
            extend_read_timer(self, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_flood_costs_a_thirtieth_of_the_time_and_a_burst_nothing() {
        let (mut waste, mut now, mut cost) = (Waste::default(), Moment(0), 0);
        assert_eq!(waste.charge(now, AT_ONCE), None);
        while now < Moment(10_000_000_000) {
            cost += 100_000;
            let until = waste.charge(now, 100_000);
            assert!(until.is_none_or(|until| until.since(now) <= LONGEST_PAUSE));
            now = until.unwrap_or(now.after(Duration::from_nanos(100_000)));
        }
        assert!(cost < 10_000_000_000 / u64::from(PART) + 2 * AT_ONCE, "{cost}");
        assert_eq!(waste.charge(now.after(Duration::from_secs(1)), 1), None);
    }
}
