//! Input: bytes are cut into lines, each line is routed, and the unhandled rest is kept.

use alloc::vec::Vec;

use ndjson_scan::{Line, Outcome, Scanner, Window};

mod fast_path;

use super::Bus;
use super::balancer::Group;
use super::client::{Client, Identity, McpState, Phase, SeldomOfClient};
use super::endpoint::{Endpoint, Stream};
use super::message::Parsed;
use super::out::Out;
use super::peer::{ClientKey, Moment, Peer, WorkerKey};
use super::pending::Pending;
use super::port::{Effects, Next, Received};
use super::session::table::Sessions;
use super::settings::Settings;
use super::supervisor::pool::Pool;
use super::time::Time;
use super::timers::Timers;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Intake {
    scanner: Scanner,
    batch: Vec<Line>,
    /// Number of lines that took the fast path.
    #[cfg(any(test, feature = "testing"))]
    fast_lines: u64,
    /// All lines take the slow path.
    #[cfg(any(test, feature = "testing"))]
    is_plain: bool,
}

impl Intake {
    /// Finds the next lines of a peer ([`Stream::find_lines`]).
    #[inline(always)]
    pub(super) fn find_lines(&mut self, stream: &mut Stream, window: Window<'_>) -> Outcome {
        self.batch.clear();
        stream.find_lines(&mut self.scanner, window, &mut self.batch)
    }

    /// Number of the first lines that take the fast path; none is longer than the limit.
    #[inline(always)]
    fn count_while(&self, limit: usize, mut goes: impl FnMut(&Line) -> Option<()>) -> usize {
        self.batch.iter().take_while(|line| line.span.len() <= limit && goes(line).is_some()).count()
    }

    /// This many lines have taken the fast path. Returns `None` if there are more, or the rest is malformed.
    #[inline(always)]
    fn finish(
        &mut self,
        end: &mut Endpoint,
        now: Moment,
        bytes: usize,
        outcome: Outcome,
        lines: usize,
        limit: usize,
    ) -> Option<Received> {
        #[cfg(any(test, feature = "testing"))]
        {
            self.fast_lines += lines as u64;
        }
        let is_too_long = end.stream.unfinished(bytes) > limit;
        if lines < self.batch.len() || is_too_long || matches!(outcome, Outcome::Malformed { .. }) {
            return None;
        }
        take_lines(end, now, &self.batch);
        Some(end.stream.finish(bytes, outcome))
    }
}

/// The result of routing one line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// It was handled.
    Next,
    /// Its receiver is full: its sender waits, and the line is presented again.
    Blocked,
    /// Its sender is not read any more.
    Over,
}

/// Length of the line that begins at `line`, as far as it was received.
pub(super) fn length_of_line(window: Window<'_>, line: usize) -> usize {
    let rest = &window.data()[line..];
    memchr::memchr(b'\n', rest).unwrap_or(rest.len())
}

/// Length of these lines, the first of a window.
#[inline(always)]
fn bytes_of(lines: &[Line]) -> usize {
    lines.last().map_or(0, |last| last.span.end as usize + 1)
}

/// These lines, the first of a window, were taken from a peer.
#[inline(always)]
fn take_lines(end: &mut Endpoint, now: Moment, lines: &[Line]) {
    if !lines.is_empty() {
        end.stream.speak(now);
        end.traffic.lines_in += lines.len() as u64;
        end.traffic.bytes_in += bytes_of(lines) as u64;
    }
}

/// The parts of the bus that a line on the fast path may need, besides its sender (`intake/fast_path.rs`).
struct FastPath<'a> {
    time: &'a Time,
    settings: &'a Settings,
    sessions: &'a mut Sessions,
    pending: &'a mut Pending,
    pools: &'a mut [Pool],
    groups: &'a mut [Group],
    timers: &'a mut Timers,
    out: &'a mut Out,
    /// Number of clients.
    clients: usize,
    /// A worker's health has improved.
    workers_changed: bool,
}

/// The client that lines come from, without its [`Endpoint`], which is borrowed separately.
struct Sender<'a> {
    key: ClientKey,
    identity: &'a Identity,
    group: usize,
    mcp: &'a McpState,
    seldom: Option<&'a SeldomOfClient>,
}

/// The parts of the bus that the fast path needs while one peer is already borrowed.
macro_rules! fast_path {
    ($bus:ident, $clients:ident) => {
        FastPath {
            time: &$bus.time,
            settings: &$bus.settings,
            sessions: &mut $bus.sessions,
            pending: &mut $bus.pending,
            pools: &mut $bus.supervisor.pools,
            groups: &mut $bus.balancer.groups,
            timers: &mut $bus.timers,
            out: &mut $bus.out,
            clients: $clients,
            workers_changed: false,
        }
    };
}

impl Bus {
    /// Bytes have arrived from `from`: `window` holds everything of it that was not consumed yet.
    ///
    /// Handles at most [`BATCH`](ndjson_scan::BATCH) lines, so that one peer cannot hold up the others;
    /// [`Received::next`] says how to continue. The effects refer to the window.
    pub fn receive(&mut self, now: Moment, from: Peer, window: Window<'_>) -> (Received, Effects<'_>) {
        self.begin_call(now);
        let received = match from {
            Peer::Client(client) => self.receive_from_client(client, window),
            Peer::Worker(worker) => self.receive_from_worker(worker, window),
        };
        self.out.side(from).bytes_in += received.consumed as u64;
        (received, self.effects())
    }

    fn receive_from_client(&mut self, key: ClientKey, window: Window<'_>) -> Received {
        let now = self.time.now();
        let count = self.clients.len();
        let limit = self.settings.limits.max_input_buffer;
        let takes_fast_path = self.may_take_fast_path();
        let Some(client) = self.clients.get_mut(key) else {
            return Received { consumed: window.data().len(), next: Next::Wait };
        };
        let Client { identity, group, mcp, phase, seldom, heard, end } = client;
        let end = &mut **end;
        if *phase != Phase::Open || !end.gate.lets_through() {
            return self.receive_otherwise(key, window);
        }
        let is_far_ahead = count > 1 && end.outstanding.len() >= self.settings.limits.requests_ahead;
        if is_far_ahead && !end.seldom.throttle.take_turn() {
            self.yield_to_others(key);
            return Received { consumed: 0, next: Next::Wait };
        }
        // The kept bytes are presented again.
        if end.stream.has_more(window.data().len()) {
            *heard = now;
        }
        let found = self.intake.find_lines(&mut end.stream, window);
        let mut lines = 0;
        if takes_fast_path {
            let mut path = fast_path!(self, count);
            let sender = Sender { key, identity, group: *group, mcp, seldom: seldom.get() };
            let workers = &mut self.workers;
            lines = self
                .intake
                .count_while(limit, |line| path.client_line(&sender, end, workers, Parsed { window: &window, line }));
            self.out.stats().client_side.lines_in += lines as u64;
            let bytes = window.data().len();
            if let Some(received) = self.intake.finish(end, now, bytes, found, lines, limit) {
                return received;
            }
        }
        self.route_lines(key.into(), window, found, lines)
    }

    fn receive_from_worker(&mut self, key: WorkerKey, window: Window<'_>) -> Received {
        let now = self.time.now();
        let count = self.clients.len();
        let limit = self.settings.limits.max_worker_line();
        let (bytes, takes_fast_path) = (window.data().len(), self.may_take_fast_path());
        let Some(worker) = self.workers.get_mut(key).filter(|worker| !worker.process.is_drained()) else {
            return Received { consumed: bytes, next: Next::Wait };
        };
        if !worker.end.gate.is_open() {
            return Received { consumed: 0, next: Next::Wait };
        }
        let found = self.intake.find_lines(&mut worker.end.stream, window);
        let mut lines = 0;
        if takes_fast_path && !worker.tenure.is_leaving() {
            let mut path = fast_path!(self, count);
            let clients = &mut self.clients;
            lines = self
                .intake
                .count_while(limit, |line| path.worker_line(key, worker, clients, Parsed { window: &window, line }));
            self.supervisor.has_changed |= path.workers_changed;
            self.out.stats().worker_side.lines_in += lines as u64;
            if let Some(received) = self.intake.finish(&mut worker.end, now, bytes, found, lines, limit) {
                return received;
            }
        }
        self.route_lines(key.into(), window, found, lines)
    }

    /// Whether lines may take the fast path, which checks neither methods nor the shutdown.
    #[inline(always)]
    fn may_take_fast_path(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if self.intake.is_plain {
            return false;
        }
        !self.balancer.denies_methods && !self.shutdown.refuses_requests()
    }

    /// The next lines of a client, all of which are refused.
    pub(super) fn find_lines(&mut self, key: ClientKey, window: Window<'_>) -> Outcome {
        match self.clients.get_mut(key) {
            Some(client) => self.intake.find_lines(&mut client.end.stream, window),
            None => Outcome::More,
        }
    }

    /// Bytes of a client that is not read, or whose lines are refused.
    #[cold]
    fn receive_otherwise(&mut self, key: ClientKey, window: Window<'_>) -> Received {
        if self.phase(key) == Some(Phase::Open) {
            self.is_throttled(key);
            return Received { consumed: 0, next: Next::Wait };
        }
        self.refuse_lines(key, window)
    }

    /// Routes lines one after the other, until one of them has to wait or is the last of its sender. The first `lines`
    /// are already routed.
    pub(super) fn route_lines(
        &mut self,
        from: Peer,
        window: Window<'_>,
        outcome: Outcome,
        mut lines: usize,
    ) -> Received {
        let batch = core::mem::take(&mut self.intake.batch);
        let limit = self.longest_line(from);
        let mut flow = Flow::Next;
        for line in &batch[lines..] {
            flow = if line.span.len() > limit {
                self.line_too_long(from)
            } else {
                let line = Parsed { window: &window, line };
                match from {
                    Peer::Client(client) => self.client_line(client, line),
                    Peer::Worker(worker) => self.worker_line(worker, line),
                }
            };
            if flow != Flow::Next {
                break;
            }
            lines += 1;
            if lines < batch.len()
                && let Peer::Client(client) = from
                && self.is_throttled(client)
            {
                flow = Flow::Blocked;
                break;
            }
        }
        let bytes = window.data().len();
        if flow == Flow::Next {
            // What follows its whole lines may be malformed, or too long.
            let unfinished = self.peer_end(from).map_or(0, |end| end.stream.unfinished(bytes));
            flow = match outcome {
                // Read in pieces, it would have been too long before the fault was seen.
                Outcome::Malformed { line, .. } if length_of_line(window, line) > limit => self.line_too_long(from),
                Outcome::Malformed { line, at, fault } => self.malformed(from, window, line, at, fault),
                Outcome::More if unfinished > limit => self.line_too_long(from),
                Outcome::More | Outcome::Full => Flow::Next,
            };
        }
        // The scan state of the unhandled bytes is kept.
        let (now, (done, waiting)) = (self.time.now(), batch.split_at(lines));
        let received = self.endpoint(from).map(|end| {
            take_lines(end, now, done);
            match flow {
                Flow::Next => end.stream.finish(bytes, outcome),
                Flow::Blocked => end.stream.wait(bytes, bytes_of(done), waiting),
                Flow::Over => end.stream.discard(bytes),
            }
        });
        self.intake.batch = batch;
        received.unwrap_or(Received { consumed: bytes, next: Next::Wait })
    }

    /// Longest line that `peer` may send, in bytes without its newline.
    pub(super) fn longest_line(&self, peer: Peer) -> usize {
        match peer {
            Peer::Client(_) => self.settings.limits.max_input_buffer,
            Peer::Worker(_) => self.settings.limits.max_worker_line(),
        }
    }

    /// Makes all lines take the slow path, which must have the same results.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_fast_path(mut self) -> Self {
        self.intake.is_plain = true;
        self
    }

    /// Number of lines that took the fast path.
    #[cfg(any(test, feature = "testing"))]
    pub fn fast_lines(&self) -> u64 {
        self.intake.fast_lines
    }
}
