//! Our own stdout and stderr, as the loop knows them: what is being written to them, and what was lost.

use super::admin::recent::Recent;
use super::connection::{Flight, InFlight};
use super::inherited::may_block;
use super::log::{self, Batch};
use super::request_lines::RequestLines;
use crate::bus::report::Report;
use crate::config::Pool;

/// What is written to stdout, and that threads for it may be missing, or for stderr.
#[derive(Default)]
pub(super) struct Stdio {
    /// The reader of our stdout has gone: what is not written is not missed.
    pub reader_gone: bool,
    /// Lines that were not written although somebody may miss them.
    pub unwritten: usize,
    told_of_no_thread: bool,
}

impl Stdio {
    /// So many lines that wait for stdout will not be written any more.
    pub(super) fn count_unwritten(&mut self, lines: usize) {
        if lines > 0 && !self.reader_gone {
            tracing::error!("{lines} lines for stdout could not be written");
            self.unwritten += lines;
        }
    }

    /// Says once that threads are missing.
    pub(super) fn tell_of_no_thread(&mut self) {
        if !std::mem::replace(&mut self.told_of_no_thread, true) {
            tracing::warn!(
                "the kernel can make no thread to write to stdout or stderr; allow this user or service more processes \
                 (RLIMIT_NPROC, TasksMax)"
            );
        }
    }
}

/// The log on its way to stderr.
pub(super) struct LogOutput {
    /// What of it is being written.
    pub batch: Batch,
    pub in_flight: InFlight,
    /// The reader of stderr is known to send nothing.
    pub is_half_closed: bool,
    /// Writing to stderr may make the writer wait.
    pub writes_aside: bool,
    /// What went wrong lately, for operators.
    pub recent: Recent,
    /// Lines of requests, if they are wanted.
    pub requests: RequestLines,
}

impl LogOutput {
    pub(super) fn new() -> Self {
        Self {
            batch: Batch::default(),
            in_flight: InFlight::default(),
            is_half_closed: false,
            writes_aside: may_block(rustix::stdio::stderr()),
            recent: Recent::default(),
            requests: RequestLines::default(),
        }
    }

    /// Whether the kernel holds something of it.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.has(Flight::Write)
    }

    /// Takes in what the core reports.
    pub(super) fn report(&mut self, report: &Report, pools: &[Pool]) {
        self.recent.add(report);
        log::report(report, |pool| pools.get(pool).map_or_else(String::new, |pool| pool.core.id.clone()));
    }
}
