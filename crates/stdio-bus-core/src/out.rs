//! What the bus wants done, and what it has counted.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use ndjson_scan::Span;

use super::ended::Records;
use super::endpoint::Endpoint;
use super::peer::{Moment, Peer};
use super::port::Effect;
use super::report::{Reason, Report, Reporter};
use super::stats::{Side, Stats};

/// See the top of the file.
#[derive(Default)]
pub(super) struct Out {
    effects: VecDeque<Effect>,
    stats: Stats,
    reporter: Reporter,
    /// Requests that have ended, if somebody wants to know of each.
    records: Option<Box<Records>>,
    /// How often the bus was called.
    #[cfg(debug_assertions)]
    calls: u64,
}

impl Out {
    /// Wants this done, behind what is to be done already.
    #[inline]
    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// What is to be done, in this order.
    pub(super) fn effects(&mut self) -> &mut VecDeque<Effect> {
        &mut self.effects
    }

    /// What is counted.
    #[inline]
    pub(super) fn stats(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// What is counted of the side on which a peer is.
    #[inline]
    pub(super) fn side(&mut self, peer: Peer) -> &mut Side {
        match peer {
            Peer::Client(_) => &mut self.stats.client_side,
            Peer::Worker(_) => &mut self.stats.worker_side,
        }
    }

    /// What was counted.
    pub(super) fn counted(&self) -> &Stats {
        &self.stats
    }

    /// Counts something and tells it, as far as it is not told too often.
    pub(super) fn tell(&mut self, now: Moment, reason: Reason, make: impl FnOnce() -> Report) {
        let report = self.reporter.report(now, reason, make);
        self.effects.extend(report.map(Effect::Report));
    }

    /// Counts something and tells it to those who look for such things.
    pub(super) fn tell_quietly(&mut self, reason: Reason, make: impl FnOnce() -> Report) {
        let report = self.reporter.report_quietly(reason, make);
        self.push(Effect::Report(report));
    }

    /// Sums up what was not told.
    pub(super) fn sum_up(&mut self, now: Moment) {
        let summaries = self.reporter.summaries(now);
        self.effects.extend(summaries.into_iter().map(|summary| Effect::Report(Box::new(summary))));
    }

    /// When there is something to sum up.
    pub(super) fn sums_up_at(&self) -> Moment {
        self.reporter.next_deadline()
    }

    /// How often something has happened for this reason.
    pub(super) fn count(&self, reason: Reason) -> u64 {
        self.reporter.count(reason)
    }

    /// Keeps records of requests that have ended from now on, or none.
    pub(super) fn keep_records(&mut self, records: Option<Box<Records>>) {
        self.records = records;
    }

    /// Whether it does.
    #[inline]
    pub(super) fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Requests that have ended, if somebody wants to know of each.
    #[inline]
    pub(super) fn records(&mut self) -> Option<&mut Records> {
        self.records.as_deref_mut()
    }

    /// Whether everything is checked after this call: with so many entries in the tables not each time.
    #[cfg(debug_assertions)]
    pub(super) fn is_to_check(&mut self, entries: usize) -> bool {
        self.calls += 1;
        entries < 100 || self.calls.is_multiple_of(256)
    }

    /// Queues bytes of the window. Lines in a row for one receiver become one copy.
    #[inline]
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

    /// A line of so many bytes was queued for this peer. Says whether that has made its output full.
    #[inline]
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
