//! The behaviour of the core, one rule per test, seen as its peers see it: what they wrote, what they read, what
//! happened to them. `tests/claims.toml` says which test proves which sentence of the specification.

mod access;
mod admission;
mod audience;
mod backpressure;
mod bad_output;
mod children;
mod clients;
mod demand;
mod deny;
mod detached;
mod discovery;
mod early_notifications;
mod echo;
mod eras;
mod errors;
mod fairness;
mod graceful_close;
mod growth;
mod health;
mod hung;
mod idle;
mod ids;
mod isolation;
mod late;
mod limits;
mod memory;
mod openings;
mod operator;
mod overview;
mod pause;
mod personal;
mod pool_stats;
mod pools;
mod progress;
mod purity;
mod readiness;
mod reload;
mod request_log;
mod routing;
mod rules;
mod servers;
mod sessions;
mod shutdown;
mod silent;
mod spawns;
mod subscriptions;
mod successors;
mod tasks;
mod timeouts;
mod trial;
mod turns;
mod usage;
mod useless;
mod vacancy;
mod workers;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ndjson_scan::{PAD, Window};
use serde_json::{Value, json};

use super::Bus;
use super::index::{ListenerId, PoolId};
use super::overview::{Questions, RequestRow};
use super::peer::{ClientKey, Moment, Peer, PeerBits, Source, WorkerKey};
use super::port::{Close, Effect, Exit, Input, Next, Origin, Place, Signal, SpawnFailure};
use super::report::{Level, Reason, Report, WorkerName};
use super::settings::{Assignment, IdCollision, Limits, Listener, Pool, Routing, SessionAccess, Settings, ToolRules};

/// A bus on a bench, with every wire at hand.
struct Bench {
    bus: Bus,
    now: Moment,
    wires: BTreeMap<u64, Wire>,
    /// Workers that were started and not released, in the order of their start.
    workers: Vec<WorkerKey>,
    /// The command that each worker was started with, by its pool and generation.
    commands: Vec<(WorkerKey, usize, u32)>,
    /// The client that each worker was started for, if it was for one.
    started_for: Vec<(WorkerKey, Option<ClientKey>)>,
    /// Started workers run at once.
    spawns: bool,
    /// Workers whose start was confirmed.
    spawned: Vec<WorkerKey>,
    reports: Vec<Report>,
    /// Lines of workers to log.
    bad_lines: Vec<String>,
    closed: Vec<(ClientKey, Close)>,
    /// How workers were stopped.
    stop_actions: Vec<(WorkerKey, StopAction)>,
    released: Vec<WorkerKey>,
    listeners: Listeners,
    /// Pools whose era is known.
    discovered: Vec<PoolId>,
    done: bool,
}

/// How a worker is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopAction {
    /// By the end of its stdin.
    End,
    Signal(Signal),
}

/// The listeners.
struct Listeners {
    accepting: bool,
    listening: bool,
    has_left_shared: bool,
    /// Listeners that the operator has paused.
    held: Vec<ListenerId>,
    /// Listeners that are closed for lack of workers.
    closed: Vec<ListenerId>,
}

#[derive(Default)]
struct Wire {
    kept: Vec<u8>,
    paused: bool,
    /// Queued, not sent yet.
    queued: usize,
    /// Everything queued since the last read.
    read: Vec<u8>,
    /// Sent to a worker, not read yet.
    unread: usize,
    /// Its output is not presented yet.
    is_late: bool,
    /// It accepts no bytes.
    stalls: bool,
}

/// The pools at these places.
fn places(of: &[usize]) -> Vec<PoolId> {
    of.iter().copied().map(PoolId::at).collect()
}

fn pool(instances: usize, assignment: Assignment) -> Pool {
    Pool { id: "agents".into(), instances, max_instances: instances, assignment, ..Pool::default() }
}

fn settings(pools: Vec<Pool>) -> Settings {
    // A shutdown advances at once, and no client waits for a worker; tests of these set their own limits.
    let limits = Limits { quiesce: Duration::ZERO, hold: Duration::ZERO, ..Limits::default() };
    Settings {
        limits,
        pools,
        listeners: vec![Listener::default()],
        routing: Routing::default(),
        most_clients: crate::settings::MAX_CONNECTIONS,
    }
}

/// A bus with one pool of this many workers that take turns.
fn bench(workers: usize) -> Bench {
    Bench::new(settings(vec![pool(workers, Assignment::RoundRobin)]))
}

fn wire_of(peer: Peer) -> u64 {
    PeerBits::from(peer).get()
}

/// Some place of this source.
impl From<Source> for Place {
    fn from(source: Source) -> Self {
        match source {
            Source::Inherited | Source::Name(_) => Self::Inherited,
            Source::Address(octets) => Self::Address(SocketAddr::new(octets.into(), 0)),
            Source::User(user) => Self::Process { pid: 0, user },
        }
    }
}

impl Bench {
    fn new(settings: Settings) -> Self {
        let mut bench = Self::idle(settings);
        bench.spawns = true;
        let effects = bench.bus.start(bench.now).collect();
        bench.effects(&[], effects);
        bench
    }

    /// A bus whose workers were requested but do not run yet.
    fn starting(settings: Settings) -> Self {
        let mut bench = Self::idle(settings);
        let effects = bench.bus.start(bench.now).collect();
        bench.effects(&[], effects);
        bench
    }

    fn idle(settings: Settings) -> Self {
        Self {
            bus: Bus::new(settings),
            now: Moment(0),
            wires: BTreeMap::new(),
            workers: Vec::new(),
            commands: Vec::new(),
            started_for: Vec::new(),
            spawns: false,
            spawned: Vec::new(),
            reports: Vec::new(),
            bad_lines: Vec::new(),
            closed: Vec::new(),
            stop_actions: Vec::new(),
            released: Vec::new(),
            listeners: Listeners {
                accepting: true,
                listening: true,
                has_left_shared: false,
                held: Vec::new(),
                closed: Vec::new(),
            },
            discovered: Vec::new(),
            done: false,
        }
    }

    fn handle(&mut self, input: Input) {
        if let Input::Spawned { worker, .. } | Input::SpawnFailed { worker, .. } = &input {
            self.spawned.push(*worker);
        }
        let effects = self.bus.handle(self.now, input).collect();
        self.effects(&[], effects);
    }

    fn wire(&mut self, peer: Peer) -> &mut Wire {
        self.wires.entry(wire_of(peer)).or_default()
    }

    fn effects(&mut self, data: &[u8], effects: Vec<Effect>) {
        let mut sent = Vec::new();
        let mut resumed = Vec::new();
        let mut probed = Vec::new();
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    let bytes = &data[span.start as usize..span.end as usize];
                    self.wire(to).read.extend_from_slice(bytes);
                    self.wire(to).queued += bytes.len();
                    sent.push(to);
                }
                Effect::Insert { to, text } => {
                    self.wire(to).read.extend_from_slice(text.as_bytes());
                    self.wire(to).queued += text.as_bytes().len();
                    sent.push(to);
                }
                Effect::Pause(peer) => self.wire(peer).paused = true,
                Effect::Resume(peer) => {
                    self.wire(peer).paused = false;
                    resumed.push(peer);
                }
                Effect::Spawn { worker, name, generation, client } => {
                    self.workers.push(worker);
                    self.started_for.push((worker, client));
                    self.commands.push((worker, name.pool.index(), generation));
                }
                Effect::CloseStdin(worker) => self.stop_actions.push((worker, StopAction::End)),
                Effect::Signal { worker, signal } => self.stop_actions.push((worker, StopAction::Signal(signal))),
                Effect::Probe(worker) => probed.push(worker),
                Effect::Release(worker) => {
                    self.workers.retain(|known| *known != worker);
                    self.released.push(worker);
                }
                Effect::Close { client, how, .. } => {
                    self.closed.push((client, how));
                    if how == Close::Refuse {
                        self.wire(client.into()).paused = false;
                        resumed.push(client.into());
                    }
                }
                Effect::PauseAccept => self.listeners.accepting = false,
                Effect::ResumeAccept => self.listeners.accepting = true,
                Effect::HoldListener(listener) => self.listeners.held.push(listener),
                Effect::ReleaseListener(listener) => self.listeners.held.retain(|held| *held != listener),
                Effect::LeaveSharedPorts => self.listeners.has_left_shared = true,
                Effect::StopAccept => self.listeners.listening = false,
                Effect::CloseListener(listener) => self.listeners.closed.push(listener),
                Effect::OpenListener(listener) => self.listeners.closed.retain(|closed| *closed != listener),
                Effect::Discovered { pool } => self.discovered.push(pool),
                Effect::Report(report) => self.reports.push(*report),
                Effect::BadLine { line, .. } => self.bad_lines.push(String::from_utf8_lossy(&line).into_owned()),
                Effect::Done => self.done = true,
            }
        }
        if self.spawns {
            self.spawn_all();
        }
        for peer in sent {
            if !self.wire(peer).stalls {
                self.takes(peer, usize::MAX);
            }
        }
        for worker in probed {
            let bytes = self.wire(Peer::Worker(worker)).unread;
            self.handle(Input::UnreadMeasured { worker, bytes });
        }
        for peer in resumed {
            self.present(peer);
        }
    }

    /// Every worker that is being started runs.
    fn spawn_all(&mut self) {
        let starting = self.workers.iter().copied().find(|worker| !self.spawned.contains(worker));
        if let Some(worker) = starting {
            let pid = 100 + worker.index() as u32;
            self.handle(Input::Spawned { worker, pid });
            self.spawn_all();
        }
    }

    /// `peer` reads this many waiting bytes.
    fn takes(&mut self, peer: Peer, bytes: usize) {
        let bytes = bytes.min(self.wire(peer).queued);
        if bytes > 0 {
            self.wire(peer).queued -= bytes;
            self.handle(Input::Sent { peer, bytes });
        }
    }

    fn stalls(&mut self, peer: Peer) {
        self.wire(peer).stalls = true;
    }

    fn client(&mut self) -> Peer {
        self.client_of(0)
    }

    fn client_of(&mut self, listener: usize) -> Peer {
        Peer::Client(self.connect(listener, Source::Inherited).expect("there is room"))
    }

    fn connect(&mut self, listener: usize, origin: impl Into<Origin>) -> Option<ClientKey> {
        let (client, effects) = self.bus.connect(self.now, listener, origin);
        let effects = effects.collect();
        self.effects(&[], effects);
        client
    }

    fn worker(&self, at: usize) -> Peer {
        Peer::Worker(self.workers[at])
    }

    /// `peer` writes a line.
    fn write(&mut self, peer: Peer, line: &str) {
        self.write_bytes(peer, format!("{line}\n").as_bytes());
    }

    /// `peer` writes these bytes; they arrive at once, unless it is paused.
    fn write_bytes(&mut self, peer: Peer, bytes: &[u8]) {
        self.wire(peer).kept.extend_from_slice(bytes);
        self.present(peer);
    }

    /// The bus reads the input of `peer`.
    fn present(&mut self, peer: Peer) {
        while !self.wire(peer).paused && !self.wire(peer).is_late {
            let mut buffer = vec![0; PAD];
            buffer.extend_from_slice(&self.wire(peer).kept);
            let end = buffer.len();
            buffer.resize(end + PAD, 0);
            let window = Window::new(&buffer, PAD, end);
            let (received, effects) = self.bus.receive(self.now, peer, window);
            let effects = effects.collect();
            self.wire(peer).kept.drain(..received.consumed);
            self.effects(window.data(), effects);
            if received.next != Next::Again {
                break;
            }
        }
    }

    /// The lines that `peer` was sent since the last read.
    fn read(&mut self, peer: Peer) -> Vec<String> {
        let bytes = std::mem::take(&mut self.wire(peer).read);
        let text = String::from_utf8(bytes).expect("the bus writes UTF-8");
        assert!(text.is_empty() || text.ends_with('\n'), "every message ends with a newline");
        text.lines().map(str::to_owned).collect()
    }

    /// The only line that `peer` was sent since the last read.
    fn read_one(&mut self, peer: Peer) -> String {
        let mut lines = self.read(peer);
        assert_eq!(lines.len(), 1, "{peer:?} was sent {lines:?}");
        lines.remove(0)
    }

    fn read_json(&mut self, peer: Peer) -> Value {
        serde_json::from_str(&self.read_one(peer)).expect("the bus writes JSON")
    }

    /// `data.reason` and code of the only error that `peer` was sent.
    fn read_error(&mut self, peer: Peer) -> (String, i64, Value) {
        let value = self.read_json(peer);
        let error = &value["error"];
        let reason = error["data"]["reason"].as_str().unwrap_or_else(|| panic!("{value}")).to_owned();
        (reason, error["code"].as_i64().expect("a code"), value["id"].clone())
    }

    /// A client sends requests until one more would be refused. Its worker reads all of them.
    fn fills_pending(&mut self, client: Peer) {
        for id in 0.. {
            self.write(client, &format!(r#"{{"id":"fill {id}","method":"x"}}"#));
            if !self.read(client).is_empty() {
                break;
            }
            self.read(self.worker(0));
        }
        self.pass(milliseconds(40));
    }

    /// `data.reason` of each error that `peer` was sent.
    fn read_reasons(&mut self, peer: Peer) -> Vec<String> {
        let reason = |line: String| {
            let value: Value = serde_json::from_str(&line).expect("it is JSON");
            value["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
        };
        self.read(peer).into_iter().map(reason).collect()
    }

    fn ends(&mut self, peer: Peer) {
        let partial = std::mem::take(&mut self.wire(peer).kept).len();
        self.handle(Input::InputEnded { peer, partial });
    }

    fn breaks(&mut self, peer: Peer) {
        if let Peer::Worker(worker) = peer {
            let bytes = self.wire(peer).unread;
            self.handle(Input::UnreadMeasured { worker, bytes });
        }
        self.handle(Input::OutputBroken { peer, why: "reset by peer".into() });
    }

    fn exits(&mut self, peer: Peer, exit: Exit) {
        let Peer::Worker(worker) = peer else { panic!("{peer:?} has no process") };
        self.handle(Input::Exited { worker, exit });
    }

    /// A worker's process ends, and so does its stdout.
    fn dies(&mut self, peer: Peer) {
        self.exits(peer, Exit::Code(1));
        self.ends(peer);
    }

    fn gone(&mut self, peer: Peer) {
        let Peer::Client(client) = peer else { panic!("{peer:?} is no client") };
        self.handle(Input::ClientClosed(client));
    }

    fn shutdown(&mut self) {
        self.handle(Input::Shutdown);
    }

    /// The only worker that has input to read.
    fn busy_worker(&mut self) -> Peer {
        let workers: Vec<Peer> = self.workers.iter().map(|worker| Peer::Worker(*worker)).collect();
        let busy: Vec<Peer> = workers.into_iter().filter(|worker| !self.read(*worker).is_empty()).collect();
        assert_eq!(busy.len(), 1, "one worker has something to read");
        busy[0]
    }

    /// Advances time; the bus is called exactly at its deadlines.
    fn pass(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        while let Some(deadline) = self.bus.view().next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.handle(Input::Tick);
            assert!(
                self.bus.view().next_deadline().is_none_or(|next| next > self.now),
                "the bus asks for the same moment {:?}",
                self.bus.ctx.timers
            );
        }
        self.now = end;
    }

    fn how_closed(&self, peer: Peer) -> Option<Close> {
        let found = self.closed.iter().rev().find(|(client, _)| Peer::Client(*client) == peer);
        found.map(|(_, how)| *how)
    }

    /// How a worker was stopped, in this order.
    fn stop_actions(&self, peer: Peer) -> Vec<StopAction> {
        self.stop_actions
            .iter()
            .filter(|(worker, _)| Peer::Worker(*worker) == peer)
            .map(|(_, action)| *action)
            .collect()
    }

    fn signals_to(&self, peer: Peer) -> Vec<Signal> {
        let signals = |action| if let StopAction::Signal(signal) = action { Some(signal) } else { None };
        self.stop_actions(peer).into_iter().filter_map(signals).collect()
    }

    fn is_released(&self, peer: Peer) -> bool {
        self.released.iter().any(|worker| Peer::Worker(*worker) == peer)
    }

    fn is_paused(&mut self, peer: Peer) -> bool {
        self.wire(peer).paused
    }

    fn count(&self, reason: Reason) -> u64 {
        self.bus.view().count(reason)
    }

    /// The request in a slot, as an operator sees it.
    fn request_row(&self, slot: usize) -> Option<RequestRow> {
        self.bus.view().request_row(self.now, slot, &Questions::default())
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn milliseconds(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
