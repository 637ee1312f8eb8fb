//! The effects of the bus, and its counters. Every reason for a report is counted, but reports are rate-limited: a few at
//! once, then one summary every ten seconds, so that no peer can flood the log.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use ndjson_scan::Span;

use super::peer::{Moment, Peer};
use super::port::Effect;
use super::report::{Reason, Report};
use super::request_log::Records;
use super::stats::{Side, Stats};
use crate::peers::Endpoint;

/// Number of reports with one reason that pass at once before the rest is summed up.
const BURST: u32 = 10;
/// Number of starts and ends of workers that are reported at once: operators of many want to see each of them.
const LIFE_BURST: u32 = 100;
/// Number of clients whose connects and disconnects are reported at once: as many as can be connected.
const CLIENT_BURST: u32 = 1024;
/// Interval of the summaries while a reason keeps occurring.
const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// The reports with one reason.
#[derive(Clone, Copy, Default)]
struct Bucket {
    count: u64,
    window_from: Moment,
    passed: u32,
    suppressed: u64,
}

impl Reason {
    fn burst(self) -> u32 {
        match self {
            Self::ClientOpened | Self::ClientClosed => CLIENT_BURST,
            Self::WorkerStarted | Self::WorkerExited | Self::WorkerStopped | Self::RestartScheduled => LIFE_BURST,
            _ => BURST,
        }
    }
}

/// What a call of the bus has brought about: its effects, its counts, and which reports are held back.
#[derive(Default)]
pub(super) struct EffectQueue {
    effects: VecDeque<Effect>,
    stats: Stats,
    buckets: BTreeMap<Reason, Bucket>,
    /// Requests that have ended, if records are enabled.
    records: Option<Box<Records>>,
    /// Number of calls of the bus.
    #[cfg(debug_assertions)]
    calls: u64,
}

impl EffectQueue {
    /// Appends an effect.
    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// The effects, in order.
    pub(super) fn effects(&mut self) -> &mut VecDeque<Effect> {
        &mut self.effects
    }

    /// The counters.
    pub(super) fn stats(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// The counters of a peer's side.
    pub(super) fn side(&mut self, peer: Peer) -> &mut Side {
        match peer {
            Peer::Client(_) => &mut self.stats.client_side,
            Peer::Worker(_) => &mut self.stats.worker_side,
        }
    }

    /// The counters.
    pub(super) fn counted(&self) -> &Stats {
        &self.stats
    }

    /// Counts an event, and reports it within the rate limit; only then the report is made. Returns when a summary is
    /// due instead.
    pub(super) fn report(&mut self, now: Moment, reason: Reason, make: impl FnOnce() -> Report) -> Option<Moment> {
        let bucket = self.buckets.entry(reason).or_default();
        if now.since(bucket.window_from) >= SUMMARY_EVERY && bucket.suppressed == 0 {
            (bucket.window_from, bucket.passed) = (now, 0);
        }
        if bucket.passed < reason.burst() {
            bucket.passed += 1;
            self.report_unlimited(reason, make);
            return None;
        }
        bucket.count += 1;
        bucket.suppressed += 1;
        Some(bucket.window_from.after(SUMMARY_EVERY))
    }

    /// Counts an event and reports it regardless of the rate limit, without using it up.
    pub(super) fn report_unlimited(&mut self, reason: Reason, make: impl FnOnce() -> Report) {
        self.buckets.entry(reason).or_default().count += 1;
        self.effects.push_back(Effect::Report(Box::new(make())));
    }

    /// Counts an event that is not reported.
    pub(super) fn count_quietly(&mut self, reason: Reason) {
        self.buckets.entry(reason).or_default().count += 1;
    }

    /// Sums up suppressed reports. Returns when the next summary is due.
    pub(super) fn sum_up(&mut self, now: Moment) -> Option<Moment> {
        let mut next = None;
        for (reason, bucket) in self.buckets.iter_mut().filter(|(_, bucket)| bucket.suppressed > 0) {
            let due = bucket.window_from.after(SUMMARY_EVERY);
            if due > now {
                next = Some(next.map_or(due, |next: Moment| next.min(due)));
                continue;
            }
            let metric =
                if reason.failure().is_some() { "stdio_bus_request_errors_total" } else { "stdio_bus_events_total" };
            let text = format!("the same {} times more; /metrics has all of them ({metric})", bucket.suppressed);
            bucket.window_from = now;
            let suppressed = core::mem::take(&mut bucket.suppressed);
            self.effects.push_back(Effect::Report(Box::new(Report { suppressed, ..Report::new(*reason, text) })));
        }
        next
    }

    /// How often an event with this reason has happened.
    pub(super) fn count(&self, reason: Reason) -> u64 {
        self.buckets.get(&reason).map_or(0, |bucket| bucket.count)
    }

    /// Whether they are kept.
    pub(super) fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Requests that have ended, if records are enabled.
    pub(super) fn records(&mut self) -> &mut Option<Box<Records>> {
        &mut self.records
    }

    /// Whether everything is checked after this call: with this many entries in the tables not each time.
    #[cfg(debug_assertions)]
    pub(super) fn is_to_check(&mut self, entries: usize) -> bool {
        self.calls += 1;
        entries < 100 || self.calls.is_multiple_of(256)
    }

    /// Queues bytes of the window. Consecutive lines for one receiver become one copy.
    pub(super) fn copy(&mut self, to: Peer, start: u32, end: u32) {
        if let Some(Effect::Copy { to: last, span }) = self.effects.back_mut()
            && *last == to
            && span.end == start
        {
            span.end = end;
        } else {
            self.effects.push_back(Effect::Copy { to, span: Span { start, end } });
        }
    }

    /// A line of `bytes` bytes was queued for this peer. Returns whether that has made its output full.
    pub(super) fn count_queued(
        &mut self,
        now: Moment,
        to: Peer,
        end: &mut Endpoint,
        bytes: usize,
        limit: usize,
    ) -> bool {
        let side = self.side(to);
        side.lines_out += 1;
        side.bytes_out += bytes as u64;
        end.traffic.lines_out += 1;
        end.output.push(bytes, limit, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_reason_is_counted_and_summed_up() {
        let mut out = EffectQueue::default();
        let mut report = || out.report(Moment(1), Reason::Unroutable, || Report::new(Reason::Unroutable, "x"));
        let due = (0..1000).filter_map(|_| report()).min().expect("a summary is due");
        assert_eq!((out.count(Reason::Unroutable), out.effects.len()), (1000, BURST as usize));
        assert_eq!(out.sum_up(due), None);
        let Some(Effect::Report(summary)) = out.effects.back() else { panic!("no summary") };
        assert_eq!(summary.suppressed, 1000 - u64::from(BURST));
    }
}
