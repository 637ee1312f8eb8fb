//! The process's own stdout and stderr: writes in flight, and losses.

use super::admin::recent_reports::Recent;
use super::inherited::{is_file, may_block};
use super::log::{self, Batch};
use super::request_lines::RequestLines;
use super::transport::{PendingOp, PendingOps};
use crate::bus::report::Report;
use crate::config::PoolConfig;

/// Losses on stdout, and missing threads for it or for stderr.
#[derive(Default)]
pub(super) struct Stdio {
    /// The reader of stdout has gone: unwritten output is not missed.
    pub reader_gone: bool,
    /// Unwritten lines that a reader may miss.
    pub unwritten: usize,
    pub has_logged_no_thread: bool,
}

impl Stdio {
    /// Counts queued lines for stdout that will not be written.
    pub(super) fn count_unwritten(&mut self, lines: usize) {
        if lines > 0 && !self.reader_gone {
            tracing::error!("{lines} lines for stdout could not be written");
            self.unwritten += lines;
        }
    }
}

/// The log's output to stderr. It is no connection: it is only written, by the thread of the loop and before and after the
/// loop by whoever logs; and where it has no room, lines are dropped and counted, since nobody may wait for a log.
#[derive(Default)]
pub(super) struct LogOutput {
    /// The batch being written.
    pub batch: Batch,
    pub in_flight: PendingOps,
    /// The other end of stderr is known to have half-closed.
    pub is_half_closed: bool,
    /// Writing to stderr may block the thread (`inherited.rs`).
    pub writes_aside: bool,
    /// Stderr is a file: writing to it does not wait for anybody.
    pub is_file: bool,
    /// Recent warnings and errors, for operators.
    pub recent: Recent,
    /// Request lines, if enabled.
    pub requests: RequestLines,
}

impl LogOutput {
    /// What stderr is now.
    pub(super) fn for_stderr() -> Self {
        let mut log = Self::default();
        log.look_at_stderr();
        log
    }

    /// Stderr is another file now.
    pub(super) fn look_at_stderr(&mut self) {
        self.writes_aside = may_block(rustix::stdio::stderr());
        self.is_file = is_file(rustix::stdio::stderr());
        self.is_half_closed = false;
    }

    /// Whether the kernel holds an operation of it.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.has(PendingOp::Write)
    }

    /// Handles a report of the core.
    pub(super) fn report(&mut self, report: Box<Report>, pools: &[PoolConfig]) {
        log::report(&report, |pool| pools.get(pool).map_or_else(String::new, |pool| pool.core.id.clone()));
        self.recent.add(report);
    }
}
