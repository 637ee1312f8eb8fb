//! The effects of the bus, and its counters.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use ndjson_scan::Span;

use super::ended::Records;
use super::endpoint::Endpoint;
use super::peer::{Moment, Peer};
use super::port::Effect;
use super::report::{Reason, Report, Reporter};
use super::stats::{Side, Stats};

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Out {
    effects: VecDeque<Effect>,
    stats: Stats,
    reporter: Reporter,
    /// Requests that have ended, if records are enabled.
    records: Option<Box<Records>>,
    /// Number of calls of the bus.
    #[cfg(debug_assertions)]
    calls: u64,
}

impl Out {
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

    /// Counts an event and reports it, within the rate limit.
    pub(super) fn tell(&mut self, now: Moment, reason: Reason, make: impl FnOnce() -> Report) {
        let report = self.reporter.report(now, reason, make);
        self.effects.extend(report.map(Effect::Report));
    }

    /// Counts an event and reports it regardless of the rate limit, for debugging.
    pub(super) fn tell_quietly(&mut self, reason: Reason, make: impl FnOnce() -> Report) {
        let report = self.reporter.report_quietly(reason, make);
        self.push(Effect::Report(report));
    }

    /// Sums up suppressed reports.
    pub(super) fn sum_up(&mut self, now: Moment) {
        let summaries = self.reporter.summaries(now);
        self.effects.extend(summaries.into_iter().map(|summary| Effect::Report(Box::new(summary))));
    }

    /// When the next summary is due.
    pub(super) fn sums_up_at(&self) -> Moment {
        self.reporter.next_deadline()
    }

    /// How often an event with this reason has happened.
    pub(super) fn count(&self, reason: Reason) -> u64 {
        self.reporter.count(reason)
    }

    /// Starts or stops keeping records of ended requests.
    pub(super) fn keep_records(&mut self, records: Option<Box<Records>>) {
        self.records = records;
    }

    /// Whether they are kept.
    pub(super) fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Requests that have ended, if records are enabled.
    pub(super) fn records(&mut self) -> Option<&mut Records> {
        self.records.as_deref_mut()
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
        let was_full = end.output.is_full();
        end.output.push(bytes, limit, now);
        !was_full && end.output.is_full()
    }
}
