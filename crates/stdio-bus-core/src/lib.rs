//! The core of the bus: it decides where every line goes and touches nothing of the world. No descriptor, no clock,
//! no thread; the ring, a simulator, a fuzzer or a benchmark can run it and it cannot tell which.
//!
//! Reading order: [`port`] is the contract, [`peer`] what everybody speaks of, [`settings`] what the core is told, and
//! this file the front door.
//!
//! - Ways: `from_client.rs` and `from_worker.rs` send each line on its way. `assignment.rs` chooses a worker for it,
//!   `deny.rs` may keep it back, `delivery.rs` queues it, `refusals.rs` says why it went nowhere.
//! - Tables: [`sessions`] with the rules of `ownership.rs`, [`requests`] with those of `correlation.rs`.
//! - Lives: `clients.rs`, `closing.rs`, `admission.rs` and `idle.rs`, `workers.rs`, `pool.rs`, `spawns.rs` and
//!   `hung.rs`, and [`shutdown`] for the daemon.
//! - Who has to wait: [`output`], `vacancy.rs`, `turns.rs` with [`send_window`], `patience.rs`, `fairness.rs`,
//!   `penalties.rs`; and `memory.rs` closes who holds too much.
//!
//! What others may look at: [`overview`], [`readiness`], [`stats`] and [`tally`]; what an operator may do is in
//! `operator.rs`.
//!
//! [`id`] compares request ids, and [`ndjson_scan`] reads JSON.
//!
//! The crate has no standard library, but an allocator, so the compiler proves that it touches nothing of the world.
//! `examples/core.rs` of the package `stdio-bus` runs it in a loop of its own, on plain values.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

extern crate alloc;

pub mod account;
pub mod admission;
mod assignment;
pub mod audience;
mod bonds;
mod client;
mod clients;
mod closing;
mod correlation;
mod delivery;
mod deny;
mod early;
mod elicitations;
mod endpoint;
mod fairness;
mod fast_path;
pub mod foreign;
mod from_client;
mod from_worker;
mod gaps;
mod gate;
pub mod histogram;
mod hung;
pub mod id;
mod idle;
mod lost;
mod memory;
mod message;
pub mod networks;
mod operator;
pub mod origin;
mod out;
pub mod output;
pub mod overview;
mod ownership;
mod patience;
pub mod peer;
mod penalties;
mod pending;
mod pool;
pub mod port;
pub mod readiness;
mod refusals;
pub mod reply;
pub mod report;
pub mod send_window;
pub mod sessions;
pub mod settings;
pub mod shutdown;
mod sources;
pub mod stats;
pub mod table;
pub mod tally;
#[cfg(test)]
mod tests;
mod timers;
mod turns;
pub mod worker;
mod worker_queue;
mod workers;

use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use assignment::Group;
use client::{Client, Phase};
use endpoint::Endpoint;
use fast_path::FastPath;
use ndjson_scan::{BATCH, Line, Outcome, Scanner, Window};
use out::Out;
use peer::{ClientKey, ClientMark, Moment, Peer, RequestKey, WorkerKey, WorkerMark};
use pending::Pending;
use pool::Pool;
pub use pool::Staffing;
use port::{Effect, Effects, Input, Next, Received};
use report::{Reason, Report, Reporter};
use sessions::Sessions;
use settings::{MAX_CONNECTIONS, MAX_WORKERS, Settings};
use shutdown::Shutdown;
use stats::Stats;
use table::Table;
use timers::{Armed, Timer, Timers};
use worker::Worker;

/// The bus. Whatever it is told, it answers with [`Effects`], which are carried out in order.
pub struct Bus {
    settings: Settings,
    scanner: Scanner,
    batch: Vec<Line>,
    clients: Table<Client, ClientMark>,
    workers: Table<Worker, WorkerMark>,
    sessions: Sessions,
    pending: Pending,
    pools: Vec<Pool>,
    groups: Vec<Group>,
    /// The group that the clients of each listener use, unless a message names a pool.
    listener_groups: Vec<usize>,
    /// Whether any pool denies any method.
    denies_methods: bool,
    /// Whether lines may go the way that is in `fast_path.rs`.
    takes_fast_path: bool,
    sources: sources::Sources,
    worker_queue: worker_queue::WorkerQueue,
    bonds: bonds::Bonds,
    timers: Timers,
    report_timer: Armed,
    /// When all slots are taken, who may go is looked for.
    slots_timer: Armed,
    shortage: memory::Shortage,
    /// Bytes of all lines that wait for their sessions.
    early_bytes: usize,
    gaps: gaps::Gaps,
    out: Out,
    reporter: Reporter,
    /// Errors to requests that were for no pool, or for one of several.
    errors_of_no_pool: tally::Errors,
    shutdown: Shutdown,
    accept_paused: bool,
    /// One for each listener.
    doors: Vec<readiness::Door>,
    /// A worker has begun or ceased to run since listeners were looked at.
    workers_changed: bool,
    #[cfg(debug_assertions)]
    calls: u64,
    /// Lines that went the way that is in `fast_path.rs`.
    #[cfg(any(test, feature = "testing"))]
    pub fast_lines: u64,
    next_client_number: u32,
    next_worker_number: u32,
    ids_made: u64,
}

/// What became of one line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// It was dealt with.
    Next,
    /// It was dealt with, and its sender has got a penalty for it.
    Penalised,
    /// Its receiver is full: its sender waits, and the line is presented again.
    Blocked,
    /// Its sender is not listened to any more.
    Over,
}

/// What the scanner has found, and how many of its lines have gone already.
struct Scanned {
    outcome: Outcome,
    /// Bytes behind the last whole line.
    unfinished: usize,
    lines: usize,
}

/// How far a batch of lines was dealt with.
#[derive(Clone, Copy)]
struct Progress {
    flow: Flow,
    /// Bytes of the lines that were dealt with.
    bytes: usize,
    /// How many lines that are.
    lines: usize,
}

/// How long the line is that begins at `line`, as far as it has come.
fn length_of_line(window: Window<'_>, line: usize) -> usize {
    let rest = &window.data()[line..];
    memchr::memchr(b'\n', rest).unwrap_or(rest.len())
}

/// The end of `peer`, while other tables are borrowed too.
fn end_of<'a>(
    clients: &'a mut Table<Client, ClientMark>,
    workers: &'a mut Table<Worker, WorkerMark>,
    peer: Peer,
) -> Option<&'a mut Endpoint> {
    match peer {
        Peer::Client(client) => clients.get_mut(client).map(|client| &mut client.end),
        Peer::Worker(worker) => workers.get_mut(worker).map(|worker| &mut worker.end),
    }
}

impl Bus {
    /// A bus whose workers are not started yet.
    pub fn new(settings: Settings) -> Self {
        let pools = settings.pools.iter().map(Pool::new).collect();
        let (groups, listener_groups) = assignment::groups(&settings);
        Self {
            scanner: Scanner::new(),
            batch: Vec::with_capacity(BATCH),
            clients: Table::new(settings.most_clients.min(MAX_CONNECTIONS)),
            workers: Table::new(MAX_WORKERS),
            sessions: Sessions::default(),
            pending: Pending::new(),
            pools,
            groups,
            listener_groups,
            denies_methods: deny::denies_methods(&settings),
            takes_fast_path: !deny::denies_methods(&settings),
            sources: sources::Sources::default(),
            worker_queue: worker_queue::WorkerQueue::default(),
            bonds: bonds::Bonds::default(),
            timers: Timers::default(),
            report_timer: Armed::default(),
            slots_timer: Armed::default(),
            shortage: memory::Shortage::default(),
            early_bytes: 0,
            gaps: gaps::Gaps::default(),
            out: Out::default(),
            reporter: Reporter::default(),
            errors_of_no_pool: tally::Errors::default(),
            shutdown: Shutdown::default(),
            accept_paused: false,
            doors: vec![readiness::Door::default(); settings.listeners.len()],
            workers_changed: true,
            #[cfg(debug_assertions)]
            calls: 0,
            #[cfg(any(test, feature = "testing"))]
            fast_lines: 0,
            next_client_number: 0,
            next_worker_number: 0,
            ids_made: 0,
            settings,
        }
    }

    /// Starts the workers of every pool.
    pub fn start(&mut self, now: Moment) -> Effects<'_> {
        self.check_effects_were_taken();
        for pool in 0..self.pools.len() {
            self.fill_seats(now, pool);
        }
        self.update_listeners(now);
        self.effects()
    }

    /// Bytes have come from `from`: `window` holds everything of it that was not consumed yet.
    ///
    /// Handles at most [`BATCH`] lines, so that one peer cannot hold up the others; [`Received::next`] says how to go
    /// on. The effects refer to the window.
    pub fn receive(&mut self, now: Moment, from: Peer, window: Window<'_>) -> (Received, Effects<'_>) {
        self.check_effects_were_taken();
        let received = match from {
            Peer::Client(client) => {
                let received = self.receive_from_client(now, client, window);
                self.out.stats.bytes_from_clients += received.consumed as u64;
                received
            }
            Peer::Worker(worker) => {
                let received = self.receive_from_worker(now, worker, window);
                self.out.stats.bytes_from_workers += received.consumed as u64;
                received
            }
        };
        if self.workers_changed {
            self.update_listeners(now);
        }
        (received, self.effects())
    }

    fn receive_from_client(&mut self, now: Moment, key: ClientKey, window: Window<'_>) -> Received {
        let count = self.clients.len();
        let limit = self.settings.limits.max_input_buffer;
        let Some(client) = self.clients.get_mut(key) else {
            return Received { consumed: window.data().len(), next: Next::Wait };
        };
        if client.phase != Phase::Open || !client.end.gate.lets_through() {
            return self.receive_otherwise(now, key, window);
        }
        // What was kept is presented again.
        if window.data().len() > client.end.kept {
            client.heard = now;
        }
        self.batch.clear();
        let (outcome, unfinished) = client.end.find_lines(&mut self.scanner, window, &mut self.batch);
        let mut lines = 0;
        if self.takes_fast_path && !self.shutdown.refuses_requests() {
            let mut path = FastPath {
                now,
                window,
                settings: &self.settings,
                sessions: &mut self.sessions,
                pending: &mut self.pending,
                pools: &mut self.pools,
                bonds: &self.bonds,
                gaps: &self.gaps,
                timers: &mut self.timers,
                out: &mut self.out,
                clients: count,
                workers_changed: false,
            };
            let mut passes =
                |line: &&Line| line.span.len() <= limit && path.client_line(key, client, &mut self.workers, line);
            lines = self.batch.iter().take_while(|line| passes(line)).count();
            self.out.stats.lines_from_clients += lines as u64;
            #[cfg(any(test, feature = "testing"))]
            {
                self.fast_lines += lines as u64;
            }
            if lines == self.batch.len() && unfinished <= limit && !matches!(outcome, Outcome::Malformed { .. }) {
                return client.end.finish(now, window.data().len(), &self.batch, outcome);
            }
        }
        self.route_lines(now, key.into(), window, Scanned { outcome, unfinished, lines })
    }

    fn receive_from_worker(&mut self, now: Moment, key: WorkerKey, window: Window<'_>) -> Received {
        let count = self.clients.len();
        let limit = self.settings.limits.max_worker_line();
        let bytes = window.data().len();
        let Some(worker) = self.workers.get_mut(key).filter(|worker| worker.stdout_open) else {
            return Received { consumed: bytes, next: Next::Wait };
        };
        if !worker.end.gate.is_open() {
            return Received { consumed: 0, next: Next::Wait };
        }
        self.batch.clear();
        let (outcome, unfinished) = worker.end.find_lines(&mut self.scanner, window, &mut self.batch);
        let mut lines = 0;
        if self.takes_fast_path && !self.shutdown.refuses_requests() {
            let mut path = FastPath {
                now,
                window,
                settings: &self.settings,
                sessions: &mut self.sessions,
                pending: &mut self.pending,
                pools: &mut self.pools,
                bonds: &self.bonds,
                gaps: &self.gaps,
                timers: &mut self.timers,
                out: &mut self.out,
                clients: count,
                workers_changed: false,
            };
            let mut passes =
                |line: &&Line| line.span.len() <= limit && path.worker_line(key, worker, &mut self.clients, line);
            lines = self.batch.iter().take_while(|line| passes(line)).count();
            self.workers_changed |= path.workers_changed;
            self.out.stats.lines_from_workers += lines as u64;
            #[cfg(any(test, feature = "testing"))]
            {
                self.fast_lines += lines as u64;
            }
            if lines == self.batch.len() && unfinished <= limit && !matches!(outcome, Outcome::Malformed { .. }) {
                return worker.end.finish(now, bytes, &self.batch, outcome);
            }
        }
        self.route_lines(now, key.into(), window, Scanned { outcome, unfinished, lines })
    }

    /// Bytes of a client that is not read, or whose lines are refused.
    #[cold]
    fn receive_otherwise(&mut self, now: Moment, key: ClientKey, window: Window<'_>) -> Received {
        if self.clients.get(key).is_some_and(|client| client.phase == Phase::Open) {
            self.is_penalised(key);
            return Received { consumed: 0, next: Next::Wait };
        }
        self.refuse_lines(now, key, window)
    }

    /// Sends lines on their way, one after the other, until one of them has to wait or is the last of its sender. Those
    /// that have gone already are left out.
    fn route_lines(&mut self, now: Moment, from: Peer, window: Window<'_>, scanned: Scanned) -> Received {
        let batch = core::mem::take(&mut self.batch);
        let limit = self.longest_line(from);
        let (mut flow, mut lines) = (Flow::Next, scanned.lines);
        for line in &batch[scanned.lines..] {
            flow = if line.span.len() > limit {
                self.line_too_long(now, from)
            } else {
                match from {
                    Peer::Client(client) => self.client_line(now, client, window, line),
                    Peer::Worker(worker) => self.worker_line(now, worker, window, line),
                }
            };
            if flow == Flow::Blocked || flow == Flow::Over {
                break;
            }
            lines += 1;
            if flow == Flow::Penalised {
                flow = Flow::Next;
                if lines < batch.len()
                    && let Peer::Client(client) = from
                    && self.is_penalised(client)
                {
                    flow = Flow::Blocked;
                    break;
                }
            }
        }
        let bytes = lines.checked_sub(1).map_or(0, |last| batch[last].span.end as usize + 1);
        let mut progress = Progress { flow, bytes, lines };
        if flow == Flow::Next {
            progress.flow = self.check_rest(now, from, window, scanned.outcome, scanned.unfinished);
        }
        let received = self.keep_rest(now, from, window.data().len(), &batch, scanned.outcome, progress);
        self.batch = batch;
        received
    }

    /// What becomes of the sender for what stands behind its whole lines: a line that is no message, or is too long.
    #[inline(always)]
    fn check_rest(&mut self, now: Moment, from: Peer, window: Window<'_>, outcome: Outcome, unfinished: usize) -> Flow {
        let limit = self.longest_line(from);
        match outcome {
            // Read in pieces, it would have been too long before what is wrong with it was seen.
            Outcome::Malformed { line, .. } if length_of_line(window, line) > limit => self.line_too_long(now, from),
            Outcome::Malformed { line, at, fault } => self.malformed(now, from, window, line, at, fault),
            Outcome::More if unfinished > limit => self.line_too_long(now, from),
            Outcome::More | Outcome::Full => Flow::Next,
        }
    }

    /// Remembers what is known of the bytes that were not dealt with, and says how to go on.
    #[inline(always)]
    fn keep_rest(
        &mut self,
        now: Moment,
        from: Peer,
        bytes: usize,
        batch: &[Line],
        outcome: Outcome,
        progress: Progress,
    ) -> Received {
        let Some(end) = self.endpoint(from) else { return Received { consumed: bytes, next: Next::Wait } };
        if progress.lines > 0 {
            end.count_lines(now, progress.lines, progress.bytes);
        }
        let (consumed, next) = match progress.flow {
            Flow::Next | Flow::Penalised if outcome == Outcome::Full => (end.partial.consume(), Next::Again),
            Flow::Next | Flow::Penalised => (end.partial.consume(), Next::Read),
            Flow::Blocked => {
                let done = progress.bytes;
                end.waiting = batch[progress.lines..].iter().map(|line| line.counted_after(done)).collect();
                end.partial.drop_front(done);
                (done, Next::Wait)
            }
            Flow::Over => {
                end.partial.reset();
                (bytes, Next::Wait)
            }
        };
        end.kept = bytes - consumed;
        Received { consumed, next }
    }

    /// Something other than bytes has happened.
    pub fn handle(&mut self, now: Moment, input: Input) -> Effects<'_> {
        self.check_effects_were_taken();
        self.dispatch(now, input);
        if self.workers_changed {
            self.update_listeners(now);
        }
        self.effects()
    }

    /// Has all lines go the general way: what they lead to has to be the same.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_fast_path(mut self) -> Self {
        self.takes_fast_path = false;
        self
    }

    fn dispatch(&mut self, now: Moment, input: Input) {
        match input {
            Input::Spawned { worker, pid } => self.on_spawned(now, worker, pid),
            Input::SpawnFailed { worker, why, short } => self.on_spawn_failed(now, worker, &why, short),
            Input::Exited { worker, exit } => self.on_exited(now, worker, exit),
            Input::Ended { peer, partial } => {
                if partial > 0 {
                    self.report(now, Reason::PartialLine, Some(peer), || {
                        format!("{partial} bytes of an unfinished line were dropped at the end of the input")
                    });
                }
                match peer {
                    Peer::Client(client) => self.on_client_ended(now, client),
                    Peer::Worker(worker) => self.on_stdout_ended(now, worker),
                }
            }
            Input::Broken { peer: Peer::Client(client), why } => self.on_client_broken(now, client, &why),
            Input::Broken { peer: Peer::Worker(worker), why } => self.on_stdin_broken(now, worker, &why),
            Input::Sent { peer, bytes } => self.on_sent(now, peer, bytes),
            Input::Unread { worker, bytes } => self.on_unread(now, worker, bytes),
            Input::Memory { used, held, waiting } => self.on_memory(now, used, &held, &waiting),
            Input::Refused { client, held } => self.on_memory_refused(now, client, &held),
            Input::Unintroduced { place, why } => self.on_unintroduced(now, place, &why),
            Input::NotUpgraded { place, why } => self.on_not_upgraded(now, place, &why),
            Input::SendsNoMore { client } => self.on_sends_no_more(now, client),
            Input::Left { client } => self.on_client_left(now, client),
            Input::BinaryIgnored { client } => self.on_binary_ignored(now, client),
            Input::Faulty { client, why, is_too_long } => self.on_client_faulty(now, client, &why, is_too_long),
            Input::Closed { client } => self.on_client_closed(now, client),
            Input::CloseClient { client } => self.on_close_client(now, client),
            Input::TokenRemoved { client } => self.on_token_removed(now, client),
            Input::RestartWorker { worker } => self.on_restart_worker(now, worker),
            Input::Gap { held_up, suspended } => self.on_gap(now, held_up, suspended),
            Input::Drain => self.on_drain(now),
            Input::Shutdown => self.on_shutdown(now),
            Input::Tick => self.on_tick(now),
        }
    }

    /// Lines are lost with effects that nobody carries out.
    fn check_effects_were_taken(&self) {
        debug_assert!(self.out.effects.is_empty(), "effects of the last call were left behind: {:?}", self.out.effects);
    }

    /// What a call has led to. In debug builds everything is checked first: with full tables not every time.
    fn effects(&mut self) -> Effects<'_> {
        #[cfg(debug_assertions)]
        {
            let entries = self.pending.len() + self.sessions.len() + self.clients.len();
            self.calls += 1;
            if entries < 100 || self.calls.is_multiple_of(256) {
                self.check_invariants();
            }
        }
        if let Some(at) = self.reporter.next_deadline() {
            self.timers.arm(Timer::Reports, &mut self.report_timer, at);
        }
        Effects(&mut self.out.effects)
    }

    /// When [`Input::Tick`] is wanted at the latest.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        Stats {
            clients: self.clients.len(),
            awaiting_workers: self.awaiting_workers(),
            workers: self.workers.len(),
            sessions: self.sessions.owned(),
            pending: self.pending.len(),
            ..self.out.stats
        }
    }

    /// Whether somebody is connected.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Lines that were taken from clients and workers so far.
    pub fn lines_taken(&self) -> u64 {
        self.out.stats.lines_from_clients + self.out.stats.lines_from_workers
    }

    /// How often something was dropped, closed or changed for this reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.reporter.count(reason)
    }

    /// The number that people know a client by.
    pub fn client_number(&self, client: ClientKey) -> Option<u32> {
        self.clients.get(client).map(|client| client.number)
    }

    fn endpoint(&mut self, peer: Peer) -> Option<&mut Endpoint> {
        end_of(&mut self.clients, &mut self.workers, peer)
    }

    /// Longest line that `peer` may send, in bytes without its newline.
    fn longest_line(&self, peer: Peer) -> usize {
        match peer {
            Peer::Client(_) => self.settings.limits.max_input_buffer,
            Peer::Worker(_) => self.settings.limits.max_worker_line(),
        }
    }

    /// Has a peer looked at when this moment comes.
    fn wake_at(&mut self, peer: Peer, at: Moment) {
        let timer = match peer {
            Peer::Client(client) => Timer::Client(client),
            Peer::Worker(worker) => Timer::Worker(worker),
        };
        if let Some(end) = end_of(&mut self.clients, &mut self.workers, peer) {
            self.timers.arm(timer, &mut end.timer, at);
        }
    }

    fn wake_pool_at(&mut self, pool: usize, at: Moment) {
        self.timers.arm(Timer::Pool(pool), &mut self.pools[pool].timer, at);
    }

    fn wake_worker_queue_at(&mut self, at: Moment) {
        self.timers.arm(Timer::WorkerQueue, &mut self.worker_queue.timer, at);
    }

    fn wake_drain_at(&mut self, at: Moment) {
        self.timers.arm(Timer::Drain, &mut self.shutdown.timer, at);
    }

    fn wake_slots_at(&mut self, at: Moment) {
        self.timers.arm(Timer::Slots, &mut self.slots_timer, at);
    }

    fn wake_requests_at(&mut self, at: Option<Moment>) {
        self.timers.arm(Timer::Requests, &mut self.pending.timer, at.unwrap_or(Moment::NEVER));
    }

    fn wake_sessions(&mut self) {
        let at = self.sessions.next_deadline().unwrap_or(Moment::NEVER);
        self.timers.arm(Timer::Sessions, &mut self.sessions.timer, at);
    }

    /// Does what is due.
    fn on_tick(&mut self, now: Moment) {
        for timer in self.timers.take_due(now) {
            match timer {
                Timer::Reports => {
                    self.report_timer.reset();
                    let summaries = self.reporter.summaries(now);
                    self.out.effects.extend(summaries.into_iter().map(|summary| Effect::Report(Box::new(summary))));
                }
                Timer::Requests => {
                    self.pending.timer.reset();
                    self.tick_requests(now);
                }
                Timer::Sessions => {
                    self.sessions.timer.reset();
                    self.tick_sessions(now);
                }
                Timer::Client(client) => {
                    if let Some(client) = self.clients.get_mut(client) {
                        client.end.timer.reset();
                    }
                    self.tick_client(now, client);
                }
                Timer::Slots => {
                    self.slots_timer.reset();
                    self.make_room_at_the_door(now);
                }
                Timer::Worker(worker) => {
                    if let Some(worker) = self.workers.get_mut(worker) {
                        worker.end.timer.reset();
                    }
                    self.tick_worker(now, worker);
                }
                Timer::Pool(pool) => {
                    self.pools[pool].timer.reset();
                    self.tick_pool(now, pool);
                }
                Timer::WorkerQueue => {
                    self.worker_queue.timer.reset();
                    self.tick_worker_queue(now);
                }
                Timer::Drain => {
                    self.shutdown.timer.reset();
                    self.tick_shutdown(now);
                }
            }
        }
    }

    /// Counts and tells that something happened to `peer`.
    fn report(&mut self, now: Moment, reason: Reason, peer: Option<Peer>, text: impl FnOnce() -> String) {
        self.report_request(now, reason, [peer, None], || (None, text()));
    }

    /// Counts and tells that something happened between these peers. What is told is a request's id, if it is about
    /// one, and a sentence.
    fn report_request(
        &mut self,
        now: Moment,
        reason: Reason,
        peers: [Option<Peer>; 2],
        tell: impl FnOnce() -> (Option<String>, String),
    ) {
        let (clients, workers) = (&self.clients, &self.workers);
        let report = self.reporter.report(now, reason, || {
            let (id, text) = tell();
            let mut report = Report { id, ..Report::new(reason, text) };
            for peer in peers.into_iter().flatten() {
                match peer {
                    Peer::Client(client) => {
                        let client = clients.get(client);
                        report.client = client.map(|client| client.number);
                        report.origin = client.map(|client| Rc::clone(&client.origin));
                    }
                    Peer::Worker(worker) => report.worker = workers.get(worker).map(Worker::name),
                }
            }
            report
        });
        self.out.effects.extend(report.map(Effect::Report));
    }

    /// Panics if the tables, the lists and the counters disagree. For tests: it looks at everything.
    pub fn check_invariants(&self) {
        self.sessions.check_invariants();
        self.pending.check_invariants();
        self.sources.check_invariants(self.clients.iter().map(|(_, client)| client.source_use));
        self.check_ownership();
        self.check_correlation();
        self.check_waiting();
        self.check_pools();
        self.check_worker_queue();
        self.check_assignments();
        self.check_early();
    }

    /// The requests that a peer has asked and that nobody has answered, the oldest first.
    fn asked_by(&self, peer: Peer) -> Vec<RequestKey> {
        self.peer_end(peer).map(|end| self.pending.asked(&end.outstanding).collect()).unwrap_or_default()
    }

    fn peer_end(&self, peer: Peer) -> Option<&Endpoint> {
        match peer {
            Peer::Client(client) => self.clients.get(client).map(|client| &client.end),
            Peer::Worker(worker) => self.workers.get(worker).map(|worker| &worker.end),
        }
    }

    fn takes_messages(&self, peer: Peer) -> bool {
        match peer {
            Peer::Client(client) => self.clients.get(client).is_some_and(|client| client.phase == Phase::Open),
            Peer::Worker(worker) => self.worker_takes_messages(worker),
        }
    }

    fn worker_takes_messages(&self, worker: WorkerKey) -> bool {
        self.workers.get(worker).is_some_and(Worker::takes_messages)
    }
}
