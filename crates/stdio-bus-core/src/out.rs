//! What the bus wants done, and what it has counted.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use ndjson_scan::Span;

use super::ended::Records;
use super::endpoint::Endpoint;
use super::peer::{Moment, Peer};
use super::port::Effect;
use super::report::Reporter;
use super::stats::Stats;
use super::tally::Errors;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Out {
    pub effects: VecDeque<Effect>,
    pub stats: Stats,
    pub reporter: Reporter,
    /// Errors to requests that were for no pool, or for one of several.
    pub errors_of_no_pool: Errors,
    /// Requests that have ended, if somebody wants to know of each.
    pub records: Option<Box<Records>>,
    /// How often the bus was called.
    #[cfg(debug_assertions)]
    pub calls: u64,
}

impl Out {
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
        match to {
            Peer::Client(_) => {
                self.stats.lines_to_clients += 1;
                self.stats.bytes_to_clients += bytes as u64;
            }
            Peer::Worker(_) => {
                self.stats.lines_to_workers += 1;
                self.stats.bytes_to_workers += bytes as u64;
            }
        }
        end.traffic.lines_out += 1;
        let was_full = end.output.is_full();
        end.output.push(bytes, limit, now);
        !was_full && end.output.is_full()
    }
}
