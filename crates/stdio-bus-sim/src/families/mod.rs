//! A small world of sessions with children: workers announce that they work in other sessions on behalf of one that they
//! have, as the subagents of ACP do. Children have children, are announced while their parent is loaded, and workers ask
//! in them before they have announced them. Clients come and go, some under one name, name each other's sessions, close
//! them and load them; workers end.
//!
//! The rules are checked from outside (`rules.rs`): a line in a session reaches the client that holds the session which
//! it is a child of, and nobody else, and it does reach it; a client's line reaches the worker only in what the client
//! holds or may ask for; each request gets an answer or an error, and each lost line is counted.

mod rules;

use std::time::Duration;

use serde_json::{Value, json};

use super::small::{After, Ground, SmallWorld, Wire};
use super::twins::Twins;
use super::{Draws, Random};
use crate::bus::port::{ClientKey, Close, Effect, Exit, Input, Origin, Peer, Place, Signal, WorkerKey};
use crate::bus::settings::{
    Assignment, IdCollision, Limits, Listener, MAX_CONNECTIONS, Pool, Routing, SessionAccess, Settings,
};
use rules::Session;

/// Its draws are not those of other worlds.
const SALT: u64 = 0xfa31;
/// Number of actions of a seed.
const STEPS: usize = 300;

struct SimClient {
    key: ClientKey,
    /// The owner of the token that it has shown.
    name: Option<&'static str>,
    wire: Wire,
    next: usize,
    /// Numbers of unanswered requests.
    waiting: Vec<usize>,
    /// Questions that it has to answer.
    asked: Vec<Value>,
    closed: bool,
}

/// A request that a worker works on.
struct Work {
    id: Value,
    client: usize,
    method: String,
    session: Option<usize>,
    /// How often a session of this name had ended.
    life: usize,
    /// Its client waits for it no more.
    given_up: bool,
}

struct SimWorker {
    key: WorkerKey,
    wire: Wire,
    starting: bool,
    runs: bool,
    terminated: bool,
    released: bool,
    /// The client that it belongs to, in a dedicated pool.
    owner: Option<usize>,
    work: Vec<Work>,
    /// Ids of its questions that are not answered.
    questions: Vec<String>,
    /// Names in which it has spoken, and that it may announce as children.
    early: Vec<String>,
}

/// A line of a worker in a session.
struct Said {
    worker: usize,
    /// Who has got it.
    received_by: Option<usize>,
    is_request: bool,
}

struct World {
    ground: Ground,
    is_dedicated: bool,
    /// Clients say that they know subagents.
    knows_children: bool,
    /// A worker has read that, so that the announcements of all count.
    may_announce: bool,
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
    sessions: Vec<Session>,
    said: Vec<Said>,
    /// Number of lines that were received in children, and of those that waited for their announcement.
    of_children: usize,
    waited: usize,
}

fn settings(draws: &mut Draws<'_>) -> Settings {
    let assignments = [Assignment::RoundRobin, Assignment::Client, Assignment::Client, Assignment::Dedicated];
    let assignment = *draws.of("assignment").pick(&assignments);
    let instances = draws.of("instances").range(1..4);
    let more = if assignment == Assignment::Dedicated { draws.of("max_instances").range(0..3) } else { 0 };
    let pool = Pool {
        id: "agents".into(),
        instances,
        max_instances: instances + more,
        assignment,
        cancel_on_disconnect: draws.of("cancel_on_disconnect").one_in(3),
        ..Pool::default()
    };
    let hold = *draws.of("hold").pick(&[Duration::ZERO, Duration::from_secs(1)]);
    let limits = Limits { hold, max_restarts: 1000, quiesce: Duration::ZERO, ..Limits::default() };
    let id_collision = *draws.of("id_collision").pick(&[IdCollision::Translate, IdCollision::Always]);
    Settings {
        limits,
        pools: vec![pool],
        listeners: vec![Listener::default()],
        routing: Routing { id_collision, session_access: SessionAccess::Owner },
        most_clients: MAX_CONNECTIONS,
    }
}

impl World {
    fn new(seed: u64, steps: usize, prints: bool) -> Self {
        let mut random = Random::new(seed ^ SALT);
        let mut draws = Draws::new(&mut random);
        let settings = settings(&mut draws);
        let knows_children = !draws.of("subagents").one_in(8);
        let is_dedicated = settings.pools[0].assignment == Assignment::Dedicated;
        let test = ("children_reaches", String::new());
        Self {
            ground: Ground::new((seed, SALT, steps), prints, test, random, Twins::new(settings)),
            is_dedicated,
            knows_children,
            may_announce: false,
            clients: Vec::new(),
            workers: Vec::new(),
            sessions: Vec::new(),
            said: Vec::new(),
            of_children: 0,
            waited: 0,
        }
    }

    fn live(mut self) -> Self {
        let effects = self.ground.bus.start(self.ground.now);
        self.carry_out(effects, &[]);
        for step in 0..self.ground.steps {
            self.ground.begin_step(step);
            self.act();
            self.ground.bus.check_invariants();
        }
        self.heal();
        self
    }

    fn act(&mut self) {
        let (clients, workers) = (self.open_clients(), self.live_workers());
        match self.ground.random.range(0..40) {
            0..3 if clients.len() < 6 => self.connect(),
            3..14 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.speaks(client);
            }
            14..20 if !workers.is_empty() => {
                let worker = *self.ground.random.pick(&workers);
                self.answers(worker);
            }
            20..31 if !workers.is_empty() => {
                let worker = *self.ground.random.pick(&workers);
                self.says(worker);
            }
            31..34 => self.starts_one(),
            34 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.leaves(client);
            }
            35 if !workers.is_empty() && self.ground.random.one_in(5) => {
                let worker = *self.ground.random.pick(&workers);
                self.exits(worker);
            }
            36 if !clients.is_empty() => {
                let client = *self.ground.random.pick(&clients);
                self.replies(client);
            }
            37 if self.ground.random.one_in(3) => {
                let pause = Duration::from_millis(self.ground.random.range(500..7000) as u64);
                self.pass(pause);
            }
            _ => {
                let pause = Duration::from_micros(self.ground.random.range(0..30_000) as u64);
                self.pass(pause);
            }
        }
        for worker in self.live_workers() {
            if self.workers[worker].terminated && self.ground.random.one_in(4) {
                self.exits(worker);
            }
        }
    }

    fn open_clients(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|at| !self.clients[*at].closed).collect()
    }

    fn live_workers(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|at| self.workers[*at].runs).collect()
    }

    fn connect(&mut self) {
        let name = *self.ground.random.pick(&[None, Some("alice"), Some("bob")]);
        let mut origin = Origin::from(Place::Process { pid: 0, user: self.ground.random.range(0..3) as u32 });
        origin.names.token = name.map(Into::into);
        let (key, effects) = self.ground.bus.connect(self.ground.now, 0, &origin);
        let key = key.expect("there is room");
        let at = self.clients.len();
        self.note(format!("client {at} ({name:?}) connects"));
        let (wire, waiting, asked) = (Wire::default(), Vec::new(), Vec::new());
        self.clients.push(SimClient { key, name, wire, next: 0, waiting, asked, closed: false });
        self.carry_out(effects, &[]);
        let capabilities = if self.knows_children { json!({"subagents": {}}) } else { json!({}) };
        self.asks(at, "initialize", json!({"protocolVersion": 1, "clientCapabilities": capabilities}));
    }

    fn asks(&mut self, at: usize, method: &str, mut params: Value) {
        let client = &mut self.clients[at];
        let number = client.next;
        client.next += 1;
        client.waiting.push(number);
        (params["client"], params["number"]) = (json!(at), json!(number));
        let line = json!({"jsonrpc": "2.0", "id": number, "method": method, "params": params});
        self.note(format!("client {at} writes {line}"));
        self.write(Peer::Client(self.clients[at].key), &line);
    }

    /// A client asks for a session, or says something in one: in its own, or in any that there is.
    fn speaks(&mut self, at: usize) {
        if self.clients[at].waiting.len() > 3 {
            return;
        }
        let own: Vec<usize> = (0..self.sessions.len()).filter(|session| self.holder(*session) == Some(at)).collect();
        let what = self.ground.random.range(0..10);
        if self.sessions.is_empty() || what < 2 || own.is_empty() && what < 4 {
            return self.asks(at, "session/new", json!({}));
        }
        let is_own = !own.is_empty() && !self.ground.random.one_in(3);
        let session =
            if is_own { *self.ground.random.pick(&own) } else { self.ground.random.range(0..self.sessions.len()) };
        let name = self.sessions[session].name.clone();
        let params = json!({"sessionId": name});
        match what {
            2..5 => self.asks(at, "session/prompt", params),
            5 if self.ground.random.one_in(2) => self.asks(at, "session/close", params),
            6 | 7 => self.asks(at, "session/load", params),
            _ => {
                let mut line = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params});
                line["params"]["client"] = json!(at);
                self.note(format!("client {at} writes {line}"));
                self.write(Peer::Client(self.clients[at].key), &line);
            }
        }
    }

    /// A client answers a worker's question.
    fn replies(&mut self, at: usize) {
        let Some(id) = self.clients[at].asked.pop() else { return };
        self.write(Peer::Client(self.clients[at].key), &json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    }

    fn leaves(&mut self, at: usize) {
        self.note(format!("client {at} leaves"));
        let key = self.clients[at].key;
        let input = match self.ground.random.one_in(2) {
            true => Input::OutputBroken { peer: key.into(), why: "reset by peer".into() },
            false => Input::ClientLeft(key),
        };
        self.is_left(at);
        self.handle(input);
        self.close(at);
    }

    fn starts_one(&mut self) {
        let Some(at) = self.workers.iter().position(|worker| worker.starting && !worker.released) else { return };
        self.workers[at].starting = false;
        self.workers[at].runs = true;
        let worker = self.workers[at].key;
        self.note(format!("worker {at} runs"));
        self.handle(Input::Spawned { worker, pid: 1000 + at as u32 });
    }

    fn exits(&mut self, at: usize) {
        self.note(format!("worker {at} ends"));
        self.workers[at].runs = false;
        self.is_gone(at);
        let key = self.workers[at].key;
        self.handle(Input::Exited { worker: key, exit: Exit::Code(1) });
        self.handle(Input::InputEnded { peer: key.into(), partial: 0 });
    }

    fn worker(&self, key: WorkerKey) -> usize {
        self.workers.iter().position(|worker| worker.key == key).expect("it is a worker")
    }

    fn client(&self, key: ClientKey) -> usize {
        self.clients.iter().position(|client| client.key == key).expect("it is a client")
    }

    /// Everybody answers until nobody waits for anything, then all clients leave.
    fn heal(&mut self) {
        self.note("everybody heals".into());
        for _ in 0..400 {
            for worker in self.live_workers() {
                while self.workers[worker].runs && !self.workers[worker].work.is_empty() {
                    self.answers(worker);
                }
                if self.workers[worker].terminated && self.workers[worker].runs {
                    self.exits(worker);
                }
            }
            for client in self.open_clients() {
                while !self.clients[client].asked.is_empty() {
                    self.replies(client);
                }
            }
            self.starts_one();
            self.pass(Duration::from_millis(200));
        }
        self.ground.bus.check_invariants();
        for client in self.open_clients() {
            assert_eq!(self.clients[client].waiting, [0; 0], "client {client} waits for ever");
            assert!(!self.clients[client].wire.paused, "client {client} is read again");
        }
        for worker in self.live_workers() {
            let open = &self.workers[worker].questions;
            assert!(open.is_empty(), "worker {worker} waits for ever: {open:?}");
        }
        assert_eq!(self.ground.bus.view().bytes_waiting(), 0, "no line waits for ever");
        self.check_losses();
        for client in self.open_clients() {
            self.leaves(client);
        }
        self.pass(Duration::from_secs(8));
        self.ground.bus.check_invariants();
        let stats = self.ground.bus.view().stats();
        assert_eq!((stats.clients, stats.sessions, stats.pending), (0, 0, 0));
    }
}

impl SmallWorld for World {
    fn ground(&mut self) -> &mut Ground {
        &mut self.ground
    }

    fn wire(&mut self, peer: Peer) -> &mut Wire {
        match peer {
            Peer::Client(key) => &mut self.clients.iter_mut().find(|client| client.key == key).expect("a client").wire,
            Peer::Worker(key) => &mut self.workers.iter_mut().find(|worker| worker.key == key).expect("a worker").wire,
        }
    }

    fn one_effect(&mut self, effect: Effect, after: &mut After) {
        match effect {
            Effect::Spawn { worker: key, .. } => {
                self.note(format!("worker {} is started", self.workers.len()));
                self.workers.push(SimWorker {
                    key,
                    wire: Wire::default(),
                    starting: true,
                    runs: false,
                    terminated: false,
                    released: false,
                    owner: None,
                    work: Vec::new(),
                    questions: Vec::new(),
                    early: Vec::new(),
                });
            }
            Effect::Signal { worker, signal: Signal::Terminate | Signal::Kill } | Effect::CloseStdin(worker) => {
                let at = self.worker(worker);
                self.workers[at].terminated = true;
                assert!(self.is_dedicated, "a shared worker is asked to stop");
            }
            Effect::Release(worker) => {
                let at = self.worker(worker);
                (self.workers[at].released, self.workers[at].runs) = (true, false);
            }
            Effect::Close { client, how, .. } => {
                let at = self.client(client);
                self.is_left(at);
                if how == Close::Refuse {
                    self.clients[at].wire.paused = false;
                } else {
                    after.closed.push(at);
                }
            }
            _ => {}
        }
    }

    fn read_all(&mut self) {
        for at in 0..self.workers.len() {
            while let Some(line) = self.workers[at].wire.next_line() {
                self.worker_reads(at, &line);
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
            self.is_left(at);
            self.clients[at].closed = true;
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
    fn what_is_said_in_children_reaches_the_client_of_their_parent_and_nobody_else() {
        let plan = Plan::from_env(crate::FEW_SEEDS);
        let lives = shrink::run(plan.range(), plan.steps.min(STEPS), |seed, steps, is_repeated| {
            let world = World::new(seed, steps, is_repeated).live();
            (world.of_children, world.waited)
        });
        let sum = |(of_children, waited), life: (usize, usize)| (of_children + life.0, waited + life.1);
        let (of_children, waited) = lives.into_iter().fold((0, 0), sum);
        let are_few = plan.seeds < crate::FEW_SEEDS || plan.steps < STEPS;
        assert!(are_few || of_children > 1000 && waited > 100, "{of_children} lines, {waited} of them early");
    }
}
