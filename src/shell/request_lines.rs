//! Log lines for finished requests of clients, if enabled (`log.requests`). There may be a hundred thousand per second:
//! common parts are formatted once.

use std::borrow::Cow;
use std::time::Duration;

use tracing::Level;

use super::log::{self, LineSource};
use super::log_line::{self, Entry, LineFormat};
use crate::bus::Bus;
use crate::bus::port::Moment;
use crate::bus::request_log::EndedRequest;
use crate::config::PoolConfig;

const MILLISECOND: Duration = Duration::from_millis(1);
/// Interval of reports about requests without a line.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The common parts of request lines, and how many lines were lost.
#[derive(Default)]
pub(super) struct RequestLines {
    /// Clients by the index of their key: number, format, and formatted identity fields.
    clients: Vec<(u32, LineFormat, String)>,
    line: String,
    /// The beginning of all lines with this format and time.
    begin: (Moment, LineFormat, String),
    /// Requests without a line that have to be reported.
    pub lost: u64,
    reported_at: Moment,
}

impl RequestLines {
    /// Writes a line for each request that has finished since the last call.
    pub(super) fn write(&mut self, now: Moment, bus: &mut Bus, pools: &[PoolConfig]) {
        let mut output = None;
        self.lost += bus.take_ended(|ended| {
            let (output, look) = output.get_or_insert_with(|| (log::buffered(), self.begin(now)));
            output.push_with(LineSource::Requests, true, || {
                self.write_one(*look, &ended, pools);
                self.line.as_bytes()
            });
        });
        drop(output);
        self.report_lost(now, REPORT_EVERY);
    }

    /// Reports how many have no line, at this interval.
    pub(super) fn report_lost(&mut self, now: Moment, every: Duration) {
        if self.lost == 0 || self.reported_at != Moment::default() && now.since(self.reported_at) < every {
            return;
        }
        log::requests_lost(std::mem::take(&mut self.lost));
        self.reported_at = now;
    }

    /// Prepares the beginning of lines, and returns the format.
    fn begin(&mut self, now: Moment) -> LineFormat {
        let (made, of, begin) = &self.begin;
        let look = log::look();
        if begin.is_empty() || *of != look || now.since(*made) >= MILLISECOND {
            self.begin = (now, look, log_line::begin(look, Level::INFO, "request"));
        }
        look
    }

    fn write_one(&mut self, look: LineFormat, ended: &EndedRequest, pools: &[PoolConfig]) {
        self.know(look, ended);
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        line.push_str(&self.begin.2);
        line.push_str(&self.clients[ended.slot].2);
        let mut entry = Entry::new(look, Level::INFO);
        entry.fields = line;
        add_chosen(&mut entry, "method", ended.method.as_bytes());
        add_chosen(&mut entry, "tool", ended.tool.as_bytes());
        entry.token("id", &text(ended.id.as_bytes()));
        if let Some(pool) =
            ended.worker.map(|worker| worker.pool).or(ended.pool).and_then(|pool| pools.get(pool.index()))
        {
            entry.chosen("pool", &pool.core.id);
            if let Some(worker) = ended.worker {
                entry.worker(&pool.core.id, worker);
            }
        }
        add_chosen(&mut entry, "session", ended.session.as_bytes());
        entry.word("outcome", ended.ending.outcome);
        if let Some(code) = ended.ending.code {
            entry.number("code", code);
        }
        if let Some(reason) = ended.ending.reason {
            entry.word("reason", reason);
        }
        entry
            .milliseconds("ms", ended.took)
            .milliseconds("waited_ms", ended.waited)
            .number("bytes_in", ended.bytes_in)
            .number("bytes_out", ended.ending.bytes_out);
        add_chosen(&mut entry, "trace_id", ended.trace.as_bytes());
        self.line = entry.fields;
        self.line.push_str(log_line::end(look));
    }

    /// Prepares the fields of the request's client.
    fn know(&mut self, look: LineFormat, ended: &EndedRequest) {
        if self.clients.len() <= ended.slot {
            self.clients.resize_with(ended.slot + 1, Default::default);
        }
        let known = &mut self.clients[ended.slot];
        if known.2.is_empty() || (known.0, known.1) != (ended.number, look) {
            let mut entry = Entry::new(look, Level::INFO);
            log::add_origin(entry.number("client", ended.number), &ended.origin);
            *known = (ended.number, look, entry.fields);
        }
    }
}

/// Adds text from a peer, unless there is none.
fn add_chosen(entry: &mut Entry, name: &str, value: &[u8]) {
    if !value.is_empty() {
        entry.chosen(name, &text(value));
    }
}

fn text(value: &[u8]) -> Cow<'_, str> {
    str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed)
}
