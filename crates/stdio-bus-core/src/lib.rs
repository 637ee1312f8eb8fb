//! The core of the bus: it decides where every line is sent and has no side effects. No descriptor, no clock, no
//! thread; the ring, a simulator, a fuzzer or a benchmark can run it and it does not know which.
//!
//! # A first call
//!
//! A [`Bus`] is made of [`Settings`]. It is given what happens, and returns [`Effects`],
//! which the caller carries out in their order:
//!
//! ```
//! use ndjson_scan::{PAD, Window};
//! use stdio_bus_core::Bus;
//! use stdio_bus_core::port::{Effect, Input, Moment, Peer, Place};
//! use stdio_bus_core::settings::{Limits, Listener, Pool, Routing, Settings};
//!
//! let pool = Pool { id: "agents".into(), instances: 1, max_instances: 1, ..Pool::default() };
//! let mut bus = Bus::new(Settings {
//!     limits: Limits::default(),
//!     pools: vec![pool],
//!     listeners: vec![Listener::default()],
//!     routing: Routing::default(),
//!     most_clients: 16,
//! });
//!
//! // The core starts no process: it asks its caller to.
//! let asked = bus.start(Moment(1)).find_map(|effect| match effect {
//!     Effect::Spawn { worker, .. } => Some(worker),
//!     _ => None,
//! });
//! let worker = asked.expect("the pool has one worker");
//! bus.handle(Moment(2), Input::Spawned { worker, pid: 4711 }).for_each(drop);
//!
//! // A client connects to the first listener and sends a line. The scanner may look at the pads around it.
//! let (client, effects) = bus.connect(Moment(3), 0, Place::Inherited);
//! effects.for_each(drop);
//! let client = client.expect("there is room");
//! let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\"}\n";
//! let buffer = [&[0; PAD], &line[..], &[0; PAD]].concat();
//! let window = Window::new(&buffer, PAD, PAD + line.len());
//! let (received, effects) = bus.receive(Moment(4), Peer::Client(client), window);
//!
//! // Its bytes are to be copied to the worker, unchanged.
//! let copied: Vec<u8> = effects
//!     .flat_map(|effect| match effect {
//!         Effect::Copy { to, span } if to == Peer::Worker(worker) => window.get(span).to_vec(),
//!         other => panic!("{other:?}"),
//!     })
//!     .collect();
//! assert_eq!((received.consumed, &copied[..]), (line.len(), &line[..]));
//! ```
//!
//! `examples/core.rs` of the package `stdio-bus` continues from there to the answers.
//!
//! # Reading order
//!
//! 1. The contract: [`port`] has all inputs and effects. [`peer`], [`index`] and [`origin`] are its vocabulary: who speaks,
//!    where a pool or a listener is found, and where a client comes from.
//! 2. What the core is given before: [`settings`], with [`networks`].
//! 3. What it reads of a line: [`ndjson_scan`] finds lines and their fields, [`id`] compares request ids, [`wrong_protocol`] recognises
//!    peers that speak something else.
//! 4. Who may come in, and whose place is taken: [`admission`], [`shares`].
//! 5. Workers: [`worker`] is the table of a worker's life, [`waste`] the output that nobody receives, [`eras`] the two
//!    eras of MCP.
//! 6. What it writes itself: [`reply`] to peers, [`report`] to people, [`request_log`] for each request that has ended.
//! 7. What can be read at any time, by [`Bus::view`]: [`overview`], [`readiness`], [`stats`], [`pool_stats`] with [`histogram`],
//!    and [`usage`].
//! 8. The end: [`shutdown`].
//!
//! # Inside
//!
//! - Owners of the tables: `ctx.rs` is the floor that all of them may use; `session/`, `requests/`,
//!   `tasks.rs`, and `fleet/` with its workers, pools, groups and queue. None of them calls the bus.
//! - What happens in which order is in the methods of [`Bus`]: for lines in `intake.rs`, `router/`, `correlation.rs` and
//!   `refusals.rs`; for clients in `clients.rs` and `eviction.rs`; for workers in `fleet/life.rs`; for the daemon in
//!   `reload.rs` and [`shutdown`]. What an operator may do is in `clients.rs`.
//! - Waiting: `flow/`.
//!
//! The crate has no standard library, only an allocator, so the compiler proves that it has no side effects.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

#[macro_use]
extern crate alloc;

mod bad_output;
mod cancellation;
mod clients;
pub mod cold;
mod correlation;
mod ctx;
mod deny_rules;
mod effects;
mod eviction;
mod fleet;
mod flow;
mod graceful_close;
pub mod histogram;
pub mod id;
pub mod index;
mod intake;
mod mcp_servers;
mod message;
pub mod networks;
pub mod origin;
pub mod overview;
pub mod peer;
mod peers;
pub mod pool_stats;
pub mod port;
mod refusals;
mod reload;
pub mod reply;
pub mod report;
pub mod request_log;
mod requests;
mod router;
mod session;
pub mod settings;
pub mod shares;
pub mod shutdown;
pub mod stats;
mod subscriptions;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
mod time;
mod timeouts;
mod timers;
pub mod usage;
mod view;
pub mod wrong_protocol;

use crate::eviction::on_detached;
use crate::fleet::life::stop_for_operator;
use crate::request_log::{EndedRequest, Records};
use alloc::rc::Rc;

pub use cancellation::{Dialect, cancellation};
use ctx::Ctx;
pub use eras::discovery::Known;
use fleet::Fleets;
use fleet::lifetime::RecycleReason;
use fleet::readiness::update_listeners;
pub use fleet::{admission, eras, readiness, worker};
pub use flow::waste;
use intake::{Flow, Intake, length_of_line};
pub use message::{cancels, is_initialized};
use peer::{Moment, Peer};
use port::{Close, Effects, Input};
use report::{Reason, Report};
use requests::Requests;
use session::table::Sessions;
use settings::Settings;
use subscriptions::Subscriptions;
use tasks::Tasks;
use timers::Timer;
pub use view::View;
use worker::WorkerEvent;

/// The bus. It answers every input with [`Effects`], which are carried out in order.
///
/// - Comes in: bytes by [`Bus::receive`], every other event by [`Bus::handle`], connections by [`Bus::connect`] and
///   [`Bus::connect_mcp`], a new configuration by [`Bus::reload`].
/// - Comes out: the [`Effects`] that each of these returns. They borrow the bus, so that they are carried out before
///   the next call.
/// - Asks: [`Bus::view`] reads, and changes nothing. [`View::next_deadline`] says when [`Input::Tick`] is due.
///
/// The order of calls: [`Bus::new`], [`Bus::start`], then any of them, until [`Effect::Done`](port::Effect::Done).
pub struct Bus {
    ctx: Ctx,
    intake: Intake,
    sessions: Sessions,
    tasks: Tasks,
    subscriptions: Subscriptions,
    requests: Requests,
    fleets: Fleets,
    shortage: eviction::Shortage,
}

impl Bus {
    /// A bus whose workers are not started yet.
    pub fn new(settings: Settings) -> Self {
        let fleets = Fleets::new(&settings, &settings.pools_of_both_eras());
        Self {
            intake: Intake::default(),
            sessions: Sessions::default(),
            tasks: Tasks::default(),
            subscriptions: Subscriptions::default(),
            requests: Requests::new(),
            fleets,
            shortage: eviction::Shortage::default(),
            ctx: Ctx::new(settings),
        }
    }

    /// Starts the workers of every pool.
    pub fn start(&mut self, now: Moment) -> Effects<'_> {
        self.ctx.begin_call(now);
        for fleet in self.fleets.pools().all() {
            self.fleets.fill_slots(&mut self.ctx, fleet);
        }
        self.effects()
    }

    /// Handles any event other than received bytes.
    pub fn handle(&mut self, now: Moment, input: Input) -> Effects<'_> {
        self.ctx.begin_call(now);
        match input {
            Input::Spawned { worker, pid } => self.on_spawned(worker, pid),
            Input::SpawnFailed { worker, why, fault } => self.on_spawn_failed(worker, &why, fault),
            Input::Exited { worker, exit } => self.on_exited(worker, exit),
            Input::InputEnded { peer, partial } => {
                if partial > 0 {
                    self.ctx.report(Reason::PartialLine, Some(peer), || {
                        format!("{partial} bytes of an unfinished line were dropped at the end of the input")
                    });
                }
                match peer {
                    Peer::Client(client) => self.on_client_ended(client),
                    Peer::Worker(worker) => {
                        self.ctx.workers.end_stray(&mut self.ctx.out, worker);
                        self.step(worker, WorkerEvent::StdoutEnded);
                    }
                }
            }
            Input::OutputBroken { peer: Peer::Client(client), why } => self.on_client_broken(client, &why),
            Input::OutputBroken { peer: Peer::Worker(worker), .. } => self.step(worker, WorkerEvent::StdinBroken),
            Input::Sent { peer, bytes } => self.ctx.on_sent(peer, bytes),
            Input::UnreadMeasured { worker, bytes } => self.ctx.on_unread(worker, bytes),
            Input::MemoryMeasured { used, held, waiting } => self.on_memory(used, &held, &waiting),
            Input::MemoryRefused { client, held } => self.on_memory_refused(client, &held),
            Input::ConnectionRejected { place, reason, text } => {
                self.ctx.emit_report(reason, || Report { origin: Some(Rc::new(place.into())), ..Report::new(reason, text) });
            }
            Input::InputStopped(client) => self.fleets.queue_mut().on_sends_no_more(&mut self.ctx, client),
            Input::ClientLeft(client) => self.close_client(client, Close::Flush, Reason::ClientClosed),
            Input::BinaryIgnored(client) => self.ctx.report(Reason::BinaryIgnored, Some(Peer::Client(client)), || {
                "a client sends binary messages, which are ignored; send JSON-RPC in text messages".into()
            }),
            Input::FramingViolated { client, why, is_too_long } => {
                let reason = if is_too_long { Reason::ClientLineTooLong } else { Reason::ClientMalformed };
                self.fail_requests_of(client, Reason::RequestDiscarded, clients::CLOSED_BEFORE);
                self.end_client(client, reason, || format!("a client is closed: {why}"));
            }
            Input::ClientClosed(client) => self.on_client_closed(client),
            Input::CloseClient(client) => self.on_close_client(client),
            Input::EndClient { client, why } => self.end_client(client, why, || why.help().into()),
            Input::Detached { client, is_detached } => on_detached(&mut self.ctx, client, is_detached),
            Input::EventsLost { client, lost } => self.ctx.report(Reason::EventsLost, Some(Peer::Client(client)), || {
                format!(
                    "{lost} events of a session are lost: the session ended before its client fetched them, or more \
                     arrived than are kept"
                )
            }),
            Input::TokenRemoved(client) => self.on_token_removed(client),
            Input::RestartWorker { worker, at_once: true } => stop_for_operator(&mut self.ctx, worker),
            Input::RestartWorker { worker, at_once: false } => self.fleets.pools_mut().recycle(&mut self.ctx, worker, RecycleReason::Operator),
            Input::RestartPool(pool) => self.fleets.pools_mut().on_restart_pool(&mut self.ctx, pool),
            Input::TakeOutWorker(worker) => self.fleets.pools_mut().take_out(&mut self.ctx, worker),
            Input::PausePool(pool) => self.fleets.pause_pool(&mut self.ctx, pool),
            Input::WakePool(pool) => self.fleets.wake_to_ask(&mut self.ctx, pool),
            Input::ResumePool(pool) => self.fleets.resume_pool(&mut self.ctx, pool),
            Input::PauseListener { listener, is_paused } => {
                self.fleets.pause_listener(&mut self.ctx, listener, is_paused)
            }
            Input::WorkerMemoryGrew { worker, mib } => self.fleets.pools_mut().recycle(&mut self.ctx, worker, RecycleReason::Memory(mib)),
            Input::WorkersMemoryMeasured { mib } => self.fleets.note_memory(&mut self.ctx, &self.sessions, &self.tasks, mib),
            Input::ClockJumped { held_up, suspended } => self.ctx.on_gap(held_up, suspended),
            Input::ConnectionQueued => self.on_connection_waits(),
            Input::Drain => self.on_drain(),
            Input::Shutdown => self.on_shutdown(),
            Input::Tick => self.on_tick(),
        }
        self.effects()
    }

    /// The effects of a call.
    fn effects(&mut self) -> Effects<'_> {
        self.end_call();
        Effects { effects: self.ctx.out.effects(), lines: &[] }
    }

    /// The effects of a call that has read lines.
    fn effects_of_lines(&mut self) -> Effects<'_> {
        self.end_call();
        Effects { effects: self.ctx.out.effects(), lines: self.intake.batch() }
    }

    /// Workers have changed, or sessions have to give them up: replacements go on, and listeners open and close.
    #[cold]
    fn follow_workers(&mut self) {
        self.end_evicted();
        self.fleets.pools_mut().note_wakes(&self.ctx);
        self.fleets.pools().end_trials(&mut self.ctx);
        while self.ctx.workers_changed {
            self.fleets.continue_rollouts(&mut self.ctx, &self.sessions, &self.tasks);
            update_listeners(&mut self.fleets, &mut self.ctx);
            self.end_evicted();
        }
    }

    /// Ends a call. In debug builds everything is checked: with full tables not every time.
    fn end_call(&mut self) {
        if self.ctx.workers_changed {
            self.follow_workers();
        }
        #[cfg(debug_assertions)]
        {
            let entries = self.requests.len() + self.sessions.len() + self.tasks.len() + self.ctx.clients.len();
            if self.ctx.out.is_to_check(entries) {
                self.check_invariants();
            }
        }
    }

    /// Runs what is due.
    fn on_tick(&mut self) {
        for timer in self.ctx.timers.take_due(self.ctx.time.now()) {
            self.ctx.timers.disarm(timer);
            match timer {
                Timer::Reports => {
                    let next = self.ctx.out.sum_up(self.ctx.time.now());
                    self.ctx.timers.arm(timer, next);
                }
                Timer::Requests => self.tick_requests(),
                Timer::Sessions => self.sessions.tick(&mut self.ctx, &self.requests),
                Timer::Client(client) => self.tick_client(client),
                Timer::Slots => self.make_room_for_a_connection(),
                Timer::Worker(worker) => self.tick_worker(worker),
                Timer::Fleet(fleet) => {
                    self.fleets.tick_fleet(&mut self.ctx, fleet);
                    // Its next client may get a worker again: its failures may be old enough for it to be ready.
                    self.ctx.workers_changed = true;
                }
                Timer::WorkerQueue => self.fleets.tick_worker_queue(&mut self.ctx),
                Timer::Listeners => self.tick_listeners(),
                Timer::Drain => self.advance_shutdown(),
            }
        }
    }

    /// Panics if the tables, the lists and the counters disagree. For tests: it checks everything.
    pub fn check_invariants(&self) {
        self.sessions.check_invariants();
        self.requests.check_invariants();
        self.fleets.admission().check_admission(&self.ctx);
        self.sessions.check_ownership(&self.ctx, &self.requests);
        self.requests.check_correlation(&self.ctx);
        self.ctx.check_waiting();
        fleet::pool::check_pools(self.fleets.pools(), &self.ctx);
        fleet::rollout::check_rollouts(self.fleets.pools(), &self.ctx);
        fleet::demand::check_demand(self.fleets.pools(), &self.ctx);
        fleet::growth::check_growth(self.fleets.pools(), &self.ctx);
        eras::discovery::check_questions(self.fleets.pools(), &self.ctx);
        self.fleets.queue().check_worker_queue(&self.ctx);
        self.fleets.balancer().check_assignments(&self.ctx);
        self.sessions.check_early(&self.ctx);
        self.tasks.check(|worker| self.ctx.workers.get(worker).is_some());
        self.fleets.openings().check(&self.ctx);
    }

    /// Takes each client request that has ended since, and returns how many more there were.
    pub fn take_ended(&mut self, take: impl FnMut(EndedRequest)) -> u64 {
        self.ctx.out.records().as_mut().map_or(0, |records| records.take(take))
    }

    /// The bytes that are received next were sent with this trace id, or without one: it is that of requests that have none
    /// of their own.
    pub fn note_trace(&mut self, id: &[u8]) {
        if let Some(records) = self.ctx.out.records() {
            records.note_trace(id);
        }
    }

    /// Begins an interval of the usage ([`View::consumers`]). To be called each ten seconds or so, or never, if nobody
    /// asks.
    pub fn mark_usage(&mut self, now: Moment) {
        usage::mark(&mut self.ctx, &self.fleets, &self.requests, now);
    }

    /// Binds a session of a pool to the user name that it was created or loaded under in an earlier process, as
    /// [`View::session_users`](view::View::session_users) said. It counts as older than all that are bound, so the newest one is
    /// to come first. Returns whether it is bound: not if there are too many.
    pub fn bind(&mut self, pool: index::PoolId, session: &[u8], user: port::Owner<'_>) -> bool {
        self.sessions.session_users_mut().bind_earlier(pool, session, user)
    }

    /// Starts or stops keeping a record of each request.
    pub fn record_requests(&mut self, is_wanted: bool) {
        if self.ctx.out.keeps_records() != is_wanted {
            *self.ctx.out.records() = is_wanted.then(Records::new);
        }
    }
}
