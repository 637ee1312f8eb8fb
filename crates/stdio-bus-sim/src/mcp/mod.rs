//! A small world around an MCP listener: clients of both eras, and of lines, before pools of every assignment, whose
//! workers answer `server/discover`, refuse it, stay silent, or exit on it. The rules are checked from outside: the
//! first line that a worker reads pins it to an era, a lent worker has one client at a time, every request is answered
//! once, and what a client leaves behind is cancelled at its worker and reported to no other client. A client that has
//! said `initialize` meets no shared worker that has been sent neither that nor one that asks for the same; some workers
//! take one only. Workers answer with tasks (`tasks.rs`), and sessions lose their connections (`detached.rs`).

mod detached;
mod rules;
mod tasks;
mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::small::{After, Ground, SmallWorld, Wire};
use super::twins::Twins;
use super::{Draws, Random};
use crate::bus::port::{
    ClientKey, Close, Effect, Exit, Input, Moment, Origin, Peer, Place, Signal, SpawnFailure, WorkerKey,
};
use crate::bus::report::Reason;
use crate::bus::settings::{
    Assignment, Era, IdCollision, Limits, Listener, MAX_CONNECTIONS, Pool, Routing, RuleScope, Rules, SessionAccess,
    Settings, Start, ToolRules,
};
use tasks::Task;
use worker::{SimWorker, Work};

/// How long a worker may take to answer `server/discover`, and how long a cancelled request may still be worked on.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// How long a client's line may wait for the answer to its `initialize`.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this many workers in a row that exit on `server/discover` the command counts as one for sessions.
const MOST_ENDS: usize = 2;
/// After this many workers that have ended before they answered it, an `initialize` is not sent again.
const MOST_OPENINGS_LOST: usize = 2;
/// The tool that some pools deny, and listeners to some clients.
const DENIED: &str = "delete";
/// Its draws are not those of other worlds.
const SALT: u64 = 0xd00f;
/// Number of actions of a seed.
const STEPS: usize = 300;
/// The listener for lines, and that for MCP.
const LINES: usize = 0;
const MCP: usize = 1;

/// How a command reacts to `server/discover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Answers,
    Refuses,
    /// It stays silent, or answers too late.
    Silent,
    Dies,
    /// It sends back its input.
    Echoes,
}

struct SimClient {
    key: ClientKey,
    /// None is a client of lines.
    era: Option<Era>,
    pool: usize,
    /// The owner of the token that it has shown.
    name: Option<&'static str>,
    /// It is in a group that the listeners may have a rule for.
    is_staff: bool,
    wire: Wire,
    next: usize,
    /// Numbers of unanswered requests.
    waiting: Vec<usize>,
    /// The lines that named tasks, by their numbers.
    naming: BTreeMap<usize, Value>,
    /// Since when its session has had no connection.
    detached: Option<Moment>,
    /// What its `initialize` asks for, if it has said it, and whether it has the answer.
    greeting: Option<(usize, bool)>,
    /// How many workers have ended before they answered its `initialize`, which the bus had sent them again.
    openings_lost: usize,
    /// The worker that its next line must go to while that takes any.
    bound: Option<usize>,
    closing: bool,
    closed: bool,
}

impl SimClient {
    fn speaks(&self) -> Era {
        self.era.unwrap_or(Era::Legacy)
    }

    /// Whether its `initialize` is not kept any more.
    fn has_lost_initialize(&self) -> bool {
        self.openings_lost >= MOST_OPENINGS_LOST
    }

    fn listener(&self) -> usize {
        if self.era.is_some() { MCP } else { LINES }
    }
}

struct World {
    ground: Ground,
    settings: Settings,
    manners: Vec<Manner>,
    /// Whether the workers of each pool take one `initialize` only.
    take_one: Vec<bool>,
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
    /// The known era of each pool.
    eras: Vec<Option<Era>>,
    /// How many workers of each pool in a row have exited on `server/discover`.
    ends: Vec<usize>,
    tasks: Vec<Task>,
    /// Number of answered requests, of lines that named a task to its worker, and of sessions that gave their workers up.
    answered: usize,
    named: usize,
    evicted: usize,
}

fn settings(draws: &mut Draws<'_>) -> Settings {
    let mut pools = Vec::new();
    for at in 0..draws.of("number of pools").range(1..3) {
        let draws = &mut draws.each("pool", at);
        let assignments = [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated];
        let assignment = *draws.of("assignment").pick(&assignments);
        let instances = draws.of("instances").range(1..4);
        let grows = assignment != Assignment::Dedicated && draws.of("grows").one_in(3);
        let more = match grows {
            true => draws.of("growth").range(1..3),
            false if assignment == Assignment::Dedicated => draws.of("max_instances").range(0..3),
            false => 0,
        };
        let start = if draws.of("start").one_in(3) { Start::OnDemand } else { Start::AtOnce };
        pools.push(Pool {
            id: format!("p{at}"),
            instances,
            max_instances: instances + more,
            concurrency: draws.of("concurrency").range(1..3),
            assignment,
            cancel_on_disconnect: draws.of("cancel_on_disconnect").one_in(3),
            tools: ToolRules {
                deny: if draws.of("deny_tools").one_in(3) { vec![DENIED.into()] } else { Vec::new() },
                ..ToolRules::default()
            },
            start,
            idle_stop: ((start == Start::OnDemand || grows) && draws.of("idle_stop").one_in(2))
                .then(|| Duration::from_millis(draws.of("idle").range(300..4000) as u64)),
            ..Pool::default()
        });
    }
    let limits = Limits {
        hold: *draws.of("hold").pick(&[Duration::ZERO, Duration::from_secs(1)]),
        max_restarts: 1000,
        quiesce: Duration::ZERO,
        ..Limits::default()
    };
    let id_collision = *draws.of("id_collision").pick(&[IdCollision::Translate, IdCollision::Always]);
    let whom = [RuleScope::Name("alice".into()), RuleScope::Group("staff".into())];
    let rules: Vec<Rules> = whom
        .into_iter()
        .enumerate()
        .filter(|(at, _)| draws.each("rule", *at).of("exists").one_in(5))
        .map(|(_, whom)| Rules {
            whom,
            deny_methods: Vec::new(),
            tools: ToolRules { deny: vec![DENIED.into()], ..ToolRules::default() },
        })
        .collect();
    Settings {
        limits,
        pools,
        listeners: [false, true].map(|mcp| Listener { mcp, rules: rules.clone(), ..Listener::default() }).into(),
        routing: Routing { id_collision, session_access: SessionAccess::Owner },
        most_clients: MAX_CONNECTIONS,
    }
}

impl World {
    fn new(seed: u64, steps: usize, prints: bool) -> Self {
        let mut random = Random::new(seed ^ SALT);
        let mut draws = Draws::new(&mut random);
        let settings = settings(&mut draws);
        let mut manner = |pool: usize| {
            *draws.each("manner", pool).of("manner").pick(&[
                Manner::Answers,
                Manner::Answers,
                Manner::Answers,
                Manner::Refuses,
                Manner::Silent,
                Manner::Dies,
                Manner::Echoes,
            ])
        };
        let manners: Vec<Manner> = (0..settings.pools.len()).map(&mut manner).collect();
        let mut takes_one = |pool: usize| draws.each("take_one", pool).of("take_one").one_in(2);
        let take_one = (0..settings.pools.len()).map(&mut takes_one).collect();
        let test = ("both_eras", format!("{manners:?} {:#?}\n", settings.pools));
        Self {
            ground: Ground::new((seed, SALT, steps), prints, test, random, Twins::new(settings.clone())),
            take_one,
            eras: vec![None; settings.pools.len()],
            ends: vec![0; settings.pools.len()],
            settings,
            manners,
            clients: Vec::new(),
            workers: Vec::new(),
            tasks: Vec::new(),
            answered: 0,
            named: 0,
            evicted: 0,
        }
    }

    fn live(mut self) -> Self {
        let effects = self.ground.bus.start(self.ground.now);
        self.carry_out(effects, &[]);
        for step in 0..self.ground.steps {
            self.ground.begin_step(step);
            self.act();
            self.check();
        }
        self.heal();
        self
    }

    fn act(&mut self) {
        let (clients, workers) = (self.open_clients(), self.live_workers());
        match self.ground.random.range(0..40) {
            0..4 if clients.len() < 12 => self.connect(),
            4..14 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.asks(client);
            }
            14..26 if !workers.is_empty() => {
                let worker = *self.ground.random.pick(&workers);
                self.works(worker);
            }
            26..29 => self.starts_one(),
            29 | 30 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.leaves(client);
            }
            31 if !workers.is_empty() && self.ground.random.one_in(3) => {
                let worker = *self.ground.random.pick(&workers);
                if self.workers[worker].runs() {
                    self.exits(worker);
                }
            }
            32 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.binds(client);
            }
            34 | 35 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.detaches(client);
            }
            33 if self.ground.random.one_in(3) => {
                let pause = Duration::from_millis(self.ground.random.range(500..6000) as u64);
                self.pass(pause);
            }
            _ => {
                let pause = Duration::from_micros(self.ground.random.range(0..30_000) as u64);
                self.pass(pause);
            }
        }
        // A worker that was asked to stop stops.
        for worker in self.live_workers() {
            if self.workers[worker].terminated && self.workers[worker].runs() && self.ground.random.one_in(4) {
                self.exits(worker);
            }
        }
    }

    /// Whether a line of a client is kept from the workers of this pool.
    fn denies(&self, pool: usize, client: usize, line: &Value) -> bool {
        let is_denied = line["method"] == "tools/call" && line["params"]["name"] == DENIED;
        let client = &self.clients[client];
        let is_for_it = |rules: &Rules| match &rules.whom {
            RuleScope::Name(name) => client.name == Some(name),
            RuleScope::Group(_) => client.is_staff,
        };
        let has_rule = self.settings.listeners[0].rules.iter().any(is_for_it);
        is_denied && (has_rule || !self.settings.pools[pool].tools.deny.is_empty())
    }

    fn open_clients(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|at| !self.clients[*at].closing).collect()
    }

    fn live_workers(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|at| !self.workers[*at].released && !self.workers[*at].is_gone()).collect()
    }

    fn connect(&mut self) {
        let pool = self.ground.random.range(0..self.settings.pools.len());
        let era = *self.ground.random.pick(&[None, Some(Era::Legacy), Some(Era::Modern), Some(Era::Modern)]);
        let mut origin = Origin::from(Place::Process { pid: 0, user: self.ground.random.range(0..3) as u32 });
        let name = *self.ground.random.pick(&[None, None, Some("alice"), Some("bob")]);
        origin.names.token = name.map(Into::into);
        let is_staff = self.clients.len() % 3 == 1;
        origin.groups = is_staff.then(|| "users, staff".into());
        let (key, effects) = match era {
            Some(era) => self.ground.bus.connect_mcp(self.ground.now, MCP, &origin, pool, era),
            None => self.ground.bus.connect(self.ground.now, LINES, &origin),
        };
        let key = key.expect("there is room");
        self.note(format!("client {} ({name:?}) of {era:?} connects to pool {pool}", self.clients.len()));
        self.clients.push(SimClient {
            key,
            era,
            pool,
            name,
            is_staff,
            wire: Wire::default(),
            next: 0,
            waiting: Vec::new(),
            naming: BTreeMap::new(),
            detached: None,
            greeting: None,
            openings_lost: 0,
            bound: None,
            closing: false,
            closed: false,
        });
        self.carry_out(effects, &[]);
    }

    fn asks(&mut self, at: usize) {
        let greets =
            self.clients[at].next == 0 && self.clients[at].speaks() == Era::Legacy && !self.ground.random.one_in(3);
        let kind = self.ground.random.range(0..2);
        let client = &mut self.clients[at];
        if client.waiting.len() > 3 || client.greeting.is_some_and(|(_, is_answered)| !is_answered) {
            return;
        }
        let number = client.next;
        client.next += 1;
        let pool = &self.settings.pools[client.pool].id;
        let tool = if number % 4 == 3 { DENIED } else { "read" };
        let params = json!({"client": at, "number": number, "name": tool});
        let is_request = !self.ground.random.one_in(8);
        let id = if client.speaks() == Era::Modern { json!(format!("{}", number % 3)) } else { json!(number) };
        let is_free = !client.waiting.iter().any(|other| other % 3 == number % 3);
        let mut line = json!({"jsonrpc": "2.0", "method": "tools/call", "params": params});
        if greets {
            line["method"] = json!("initialize");
            line["params"]["protocolVersion"] = json!("2025-06-18");
            line["params"]["capabilities"] = json!({"kind": kind});
            client.greeting = Some((kind, false));
        }
        if is_request && is_free || greets {
            line["id"] = id;
            client.waiting.push(number);
        }
        if client.era.is_none() {
            line["pool"] = json!(pool);
        }
        if !greets {
            self.names_tasks(at, &mut line);
            self.clients[at].naming.insert(number, line.clone());
        }
        self.note(format!("client {at} writes {line}"));
        self.write(Peer::Client(self.clients[at].key), &line);
    }

    /// A client replies to a worker's request, or to nothing.
    fn binds(&mut self, at: usize) {
        let client = &self.clients[at];
        if client.era != Some(Era::Modern) {
            return;
        }
        let others = self.clients.iter().filter(|other| other.pool == client.pool && !other.closed);
        let keys: Vec<ClientKey> = others.map(|other| other.key).collect();
        let answered = self
            .ground
            .bus
            .view()
            .answered_by(*self.ground.random.pick(&keys))
            .filter(|_| !self.ground.random.one_in(3));
        self.ground.bus.prefer_worker(client.key, answered);
        let is_it = |worker: &SimWorker| Some(worker.key) == answered && worker.pinned == Some(Era::Modern);
        self.clients[at].bound = self.workers.iter().position(is_it);
        self.note(format!("client {at} is bound to {:?}", self.clients[at].bound));
        self.pass(Duration::ZERO);
    }

    fn leaves(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.closing = true;
        let key = client.key;
        self.note(format!("client {at} leaves"));
        let input = match self.ground.random.range(0..3) {
            0 => Input::OutputBroken { peer: key.into(), why: "reset by peer".into() },
            1 if self.clients[at].era.is_some() => Input::EndClient { client: key, why: Reason::SessionIdle },
            _ => Input::ClientLeft(key),
        };
        // Each of its requests is cancelled at its worker, in this very step.
        let live = |worker: &SimWorker| worker.takes();
        let mut owed: Vec<(usize, usize)> = Vec::new();
        for (of, worker) in self.workers.iter().enumerate().filter(|(_, worker)| live(worker)) {
            // An `initialize` is not cancelled.
            let of_it = worker.work.iter().filter(|work| work.client == at && work.greets.is_none());
            owed.extend(of_it.map(|work| (of, work.number)));
        }
        let is_mcp = self.clients[at].era.is_some();
        self.handle(input);
        for (worker, number) in owed {
            let worker_now = &self.workers[worker];
            let work = worker_now.work.iter().find(|work| (work.client, work.number) == (at, number));
            let is_cancelled = work.is_some_and(|work| work.given_up.is_some());
            assert_eq!(is_cancelled, is_mcp, "request {number} of client {at} is cancelled at worker {worker}");
        }
        for worker in &mut self.workers {
            let left = worker.work.iter_mut().filter(|work| work.client == at && !work.is_again);
            left.for_each(|work| _ = work.given_up.get_or_insert(self.ground.now));
        }
        self.close(at);
    }

    fn starts_one(&mut self) {
        let starting = self.workers.iter().position(SimWorker::is_starting);
        let Some(at) = starting else { return };
        let worker = self.workers[at].key;
        if self.ground.random.one_in(10) {
            self.note(format!("worker {at} cannot be started"));
            self.workers[at].exits();
            return self.handle(Input::SpawnFailed {
                worker,
                why: "no such file".into(),
                fault: SpawnFailure::Command,
            });
        }
        self.note(format!("worker {at} runs"));
        self.workers[at].starts(self.ground.now);
        self.handle(Input::Spawned { worker, pid: 1000 + at as u32 });
    }

    fn exits(&mut self, at: usize) {
        let exit = if self.ground.random.one_in(4) { Exit::Signal(9) } else { Exit::Code(1) };
        self.note(format!("worker {at} ends with {exit}"));
        let worker = &mut self.workers[at];
        worker.exits();
        let (key, pool) = (worker.key, worker.pool);
        // A kill says nothing of the command.
        let was_asked = worker.asked.is_some() && (worker.is_late || exit != Exit::Signal(9));
        if was_asked && !worker.terminated && (!worker.is_late || self.eras[pool] == Some(Era::Legacy)) {
            self.ends[pool] += 1;
            if self.ends[pool] == MOST_ENDS && self.eras[pool].is_none() {
                self.eras[pool] = Some(Era::Legacy);
            }
        } else if !worker.terminated && !worker.has_answered && self.ends[pool] == MOST_ENDS {
            self.ends[pool] -= 1;
        }
        self.handle(Input::Exited { worker: key, exit });
        self.handle(Input::InputEnded { peer: key.into(), partial: 0 });
    }

    /// A worker acts: it answers, notifies, or sends a request.
    fn works(&mut self, at: usize) {
        let worker = &self.workers[at];
        if !worker.runs() {
            return;
        }
        let manner = self.manners[worker.pool];
        if let Some(id) = worker.asked.clone() {
            return self.answers_question(at, manner, id);
        }
        let peer = Peer::Worker(worker.key);
        match self.ground.random.range(0..8) {
            0 => {
                let plain = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"of": at}});
                let is_of_task = self.ground.random.one_in(3);
                let note = if is_of_task { self.note_of_task(at).unwrap_or(plain) } else { plain };
                self.note(format!("worker {at} says {note}"));
                self.write(peer, &note);
            }
            1 => {
                self.workers[at].next += 1;
                let ask = json!({"jsonrpc": "2.0", "id": format!("w{}", self.workers[at].next), "method": "sampling/createMessage", "params": {"of": at}});
                self.note(format!("worker {at} asks {ask}"));
                self.write(peer, &ask);
            }
            _ if worker.work.iter().any(|work| work.given_up.is_none()) => {
                let live: Vec<usize> =
                    (0..worker.work.len()).filter(|work| worker.work[*work].given_up.is_none()).collect();
                let work = *self.ground.random.pick(&live);
                let work = self.workers[at].work.remove(work);
                let mut result = json!({"client": work.client, "number": work.number});
                if work.greets.is_none() {
                    self.with_task(at, work.client, work.task.as_deref(), &mut result);
                }
                let mut fails = result["taskId"].is_null() && self.ground.random.one_in(5);
                if let Some(kind) = work.greets {
                    result["kind"] = json!(kind);
                    fails = self.take_one[self.workers[at].pool] && work.is_second;
                    self.workers[at].answers_greeting(&work, fails);
                }
                let answer = match fails {
                    true => {
                        json!({"jsonrpc": "2.0", "id": work.id, "error": {"code": -32000, "message": "no", "data": result}})
                    }
                    false => json!({"jsonrpc": "2.0", "id": work.id, "result": result}),
                };
                self.note(format!("worker {at} answers {answer}"));
                self.workers[at].has_answered = true;
                self.write(peer, &answer);
            }
            _ => {}
        }
    }

    fn answers_question(&mut self, at: usize, manner: Manner, id: Value) {
        let pool = self.workers[at].pool;
        let is_late = self.workers[at].has_run_for(self.ground.now).is_some_and(|time| time > SILENT_FOR);
        let peer = Peer::Worker(self.workers[at].key);
        let (line, era) = match manner {
            Manner::Silent if !is_late || !self.ground.random.one_in(40) => return,
            Manner::Dies => return self.exits(at),
            Manner::Answers | Manner::Silent => (
                json!({"jsonrpc": "2.0", "id": id, "result": {"supportedVersions": ["2026-07-28"]}}),
                Some(Era::Modern),
            ),
            Manner::Refuses => {
                let error = json!({"code": -32601, "message": "no such method"});
                (json!({"jsonrpc": "2.0", "id": id, "error": error}), Some(Era::Legacy))
            }
            Manner::Echoes => (json!({"jsonrpc": "2.0", "id": id, "method": "server/discover"}), Some(Era::Legacy)),
        };
        self.workers[at].asked = None;
        if self.workers[at].terminated {
            return;
        }
        self.workers[at].has_answered = true;
        self.workers[at].may_be_pinned = era == Some(Era::Modern);
        self.ends[pool] = 0;
        if self.eras[pool] != Some(Era::Modern) {
            self.eras[pool] = era;
        }
        self.note(format!("worker {at} answers the question {line}"));
        self.write(peer, &line);
    }

    fn worker(&self, key: WorkerKey) -> usize {
        self.workers.iter().position(|worker| worker.key == key).expect("it is a worker")
    }

    fn client(&self, key: ClientKey) -> usize {
        self.clients.iter().position(|client| client.key == key).expect("it is a client")
    }

    /// Workers answer until no client waits for anything, then all clients leave.
    fn heal(&mut self) {
        self.note("everybody heals".into());
        for _ in 0..400 {
            for worker in self.live_workers() {
                while self.workers[worker].runs()
                    && (self.workers[worker].work.iter().any(|work| work.given_up.is_none())
                        || self.workers[worker].asked.is_some()
                            && self.manners[self.workers[worker].pool] != Manner::Silent)
                {
                    self.works(worker);
                }
                if self.workers[worker].terminated && self.workers[worker].runs() {
                    self.exits(worker);
                }
            }
            self.starts_one();
            self.pass(Duration::from_millis(200));
            self.check();
        }
        for client in self.open_clients() {
            assert_eq!(self.clients[client].waiting, [0; 0], "client {client} waits for ever");
            let is_paused = self.clients[client].wire.paused;
            assert!(!is_paused && self.clients[client].wire.written.is_empty(), "client {client} is read again");
        }
        for client in self.open_clients() {
            self.leaves(client);
            self.check();
        }
        self.pass(Duration::from_secs(8));
        self.check();
        let stats = self.ground.bus.view().stats();
        // Requests left behind by a client of lines are not cancelled, and may still be answered.
        let is_left = |work: &&Work| self.clients[work.client].era.is_none() && !work.is_again;
        let live = self.workers.iter().filter(|worker| !worker.released);
        let left: usize = live.map(|worker| worker.work.iter().filter(is_left).count()).sum();
        assert_eq!((stats.clients, stats.pending, stats.awaiting_workers), (0, left, 0));
        for worker in self.live_workers() {
            let key = self.workers[worker].key;
            assert!(
                self.workers[worker].terminated || self.ground.bus.view().owner(key).is_none(),
                "worker {worker} has no owner"
            );
        }
    }
}

impl SmallWorld for World {
    fn ground(&mut self) -> &mut Ground {
        &mut self.ground
    }

    fn on_tick(&mut self) {
        for worker in &mut self.workers {
            let is_silent = worker.has_run_for(self.ground.now).is_some_and(|time| time >= SILENT_FOR);
            let is_over = is_silent && !worker.terminated;
            if worker.asked.is_some() && is_over && !std::mem::replace(&mut worker.is_late, true) {
                let ends = &mut self.ends[worker.pool];
                *ends = if *ends > 0 { MOST_ENDS } else { 0 };
                worker.may_be_pinned = true;
                if self.eras[worker.pool].is_none() {
                    self.eras[worker.pool] = Some(Era::Legacy);
                }
            }
        }
    }

    fn wire(&mut self, peer: Peer) -> &mut Wire {
        match peer {
            Peer::Client(key) => &mut self.clients.iter_mut().find(|client| client.key == key).expect("a client").wire,
            Peer::Worker(key) => &mut self.workers.iter_mut().find(|worker| worker.key == key).expect("a worker").wire,
        }
    }

    fn one_effect(&mut self, effect: Effect, after: &mut After) {
        match effect {
            Effect::Spawn { worker, name, .. } => {
                self.note(format!("worker {} is started in pool {}", self.workers.len(), name.pool.index()));
                let is_doubted = (1..MOST_ENDS).contains(&self.ends[name.pool.index()]);
                let may_be_asked = self.eras[name.pool.index()].is_none() || is_doubted;
                self.workers.push(SimWorker::new(worker, name.pool.index(), may_be_asked));
            }
            Effect::Signal { worker, signal: Signal::Terminate | Signal::Kill } | Effect::CloseStdin(worker) => {
                let at = self.worker(worker);
                self.workers[at].terminated = true;
                self.check_stop(at);
            }
            Effect::Release(worker) => {
                let at = self.worker(worker);
                let worker = &mut self.workers[at];
                worker.released = true;
                worker.exits();
                for (client, ..) in worker.greeted.iter().filter(|(.., is_answered)| !is_answered) {
                    self.clients[*client].openings_lost += 1;
                }
            }
            Effect::Close { client, how, why } => {
                let at = self.client(client);
                if why == Reason::SessionEvicted {
                    self.check_evicted(at);
                }
                self.clients[at].closing = true;
                self.note(format!("client {at} is closed for {why:?}"));
                if how != Close::Refuse {
                    after.closed.push(at);
                }
                if how == Close::Refuse {
                    self.clients[at].wire.paused = false;
                }
            }
            Effect::Discovered { pool } => {
                let pool = pool.index();
                assert_eq!(self.ground.bus.view().pool_era(pool), self.eras[pool], "of pool {pool}");
                self.note(format!("pool {pool} is {:?}", self.eras[pool]));
            }
            _ => {}
        }
    }

    fn read_all(&mut self) {
        for at in 0..self.workers.len() {
            while let Some(line) = self.workers[at].wire.next_line() {
                self.worker_reads(at, line);
            }
        }
        for at in 0..self.clients.len() {
            while let Some(line) = self.clients[at].wire.next_line() {
                self.client_reads(at, &line);
            }
        }
    }

    fn close(&mut self, at: usize) {
        if !self.clients[at].closed {
            (self.clients[at].closing, self.clients[at].closed) = (true, true);
            let key = self.clients[at].key;
            self.handle(Input::ClientClosed(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, shrink};

    /// Reads `STDIO_BUS_SIM_SEED`, `STDIO_BUS_SIM_SEEDS` and `STDIO_BUS_SIM_STEPS`, as the other worlds do.
    #[test]
    fn clients_of_both_eras_get_exactly_their_messages() {
        let plan = Plan::from_env(crate::FEW_SEEDS);
        let mut answered: BTreeMap<bool, usize> = BTreeMap::new();
        let (mut named, mut evicted) = (0, 0);
        let lives = shrink::run(plan.range(), plan.steps.min(STEPS), |seed, steps, is_repeated| {
            let world = World::new(seed, steps, is_repeated).live();
            let lends = world.settings.pools.iter().any(|pool| pool.assignment == Assignment::Dedicated);
            (lends, world.answered, world.named, world.evicted)
        });
        for (lends, of_it, its_named, its_evicted) in lives {
            *answered.entry(lends).or_default() += of_it;
            (named, evicted) = (named + its_named, evicted + its_evicted);
        }
        let are_few = plan.seeds < crate::FEW_SEEDS || plan.steps < STEPS;
        assert!(are_few || answered.values().all(|answered| *answered > 1000), "{answered:?}");
        assert!(are_few || named > 100 && evicted > 0, "{named} lines named tasks, {evicted} sessions ended");
    }
}
