//! Simulates an MCP listener on a seeded kernel: visitors of both eras, whose connections break anywhere, and workers
//! that answer in any order, report progress, die, or exit when asked for their protocol. Some visitors go on in sessions of
//! an earlier daemon. In some worlds there is a
//! listener for ACP beside it, with clients and workers of its own.
//!
//! No client gets another's messages. Every request is answered once, or the visitor knows that its connection or
//! session has gone; what was cut off when a session's connection broke can be fetched. A worker serves one era, and in
//! a dedicated pool one session. Held and kept memory is accounted for, and at the end there are no connections, and no
//! sessions that no client knows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::io::write;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::agents::Agent;
use super::callers::Caller;
use super::lines::Pulled;
use super::machine::Machine;
use super::visitors::Visitor;
use super::{LAST_TURN, STEPS, for_each_seed};
use crate::bus::port::Exit;
use crate::bus::report::Reason;
use crate::config::Config;
use crate::io::Io;
use crate::shell::connection_counts::MOST_CONNECTIONS;
use crate::shell::descriptors::Allowance;
use crate::shell::persistence::Persistence;
use crate::shell::turn::Shell;
use crate::testing::{Draws, Random};

/// What the pool's command does when asked for its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Answers,
    Refuses,
    Dies,
}

/// A request that a worker has read.
struct Work {
    id: Value,
    params: Value,
    sent_steps: u64,
}

#[derive(Default)]
struct Desk {
    work: Vec<Work>,
    era: Option<bool>,
    sessions: BTreeSet<u64>,
}

struct Door {
    random: Random,
    machine: Machine,
    manner: Manner,
    assignment: &'static str,
    is_kind: bool,
    desks: Vec<Desk>,
    visitors: Vec<Visitor>,
    /// The clients of ACP, if there is a listener for them, the assignment of its pool, and the workers' work.
    callers: Vec<Caller>,
    acp: Option<&'static str>,
    agents: BTreeMap<usize, Agent>,
    /// How many connections' ends are explained by a shortage of memory.
    explained: u64,
}

impl Door {
    /// `pool` is the pool's name, which only affects the log.
    fn new(seed: u64, pool: &str) -> Self {
        let mut random = Random::new(seed ^ 0xd002);
        let program = std::env::current_exe().expect("a test runs");
        let mut draws = Draws::new(&mut random);
        let assignment = *draws.of("assignment").pick(&["dedicated", "client", "round_robin"]);
        let mut limits = json!({ "max_output_queue": 65536, "max_restarts": 1000, "drain_timeout_sec": 5 });
        let idle = draws.of("session_idle_sec");
        if idle.one_in(2) {
            limits["session_idle_sec"] = json!(idle.range(2..10));
        }
        let dedicated = json!({
            "id": pool, "command": program, "args": [], "instances": 2, "max_instances": 16, "assignment": assignment
        });
        let pool = match assignment {
            "dedicated" => dedicated,
            _ => json!({ "id": pool, "command": program, "args": [], "instances": 2, "assignment": assignment }),
        };
        let acp = draws.of("acp").one_in(2).then(|| *draws.of("acp_assignment").pick(&["dedicated", "client"]));
        let (mut pools, mut listeners) = (vec![pool], vec![json!({ "http": "127.0.0.1:0" })]);
        if let Some(assignment) = acp {
            let mut pool = json!({
                "id": AGENTS, "command": program, "args": [], "instances": 2, "assignment": assignment
            });
            if assignment == "dedicated" {
                pool["max_instances"] = json!(16);
            }
            listeners[0]["pool"] = pools[0]["id"].clone();
            listeners.push(json!({ "acp": "127.0.0.1:0", "pool": AGENTS }));
            pools.push(pool);
            let detached = draws.of("session_detached_sec");
            if detached.one_in(3) {
                limits["session_detached_sec"] = json!(detached.range(2..10));
            }
        }
        let text = json!({ "pools": pools, "listeners": listeners, "limits": limits });
        let mut config = Config::from_bytes(text.to_string().as_bytes(), "a seed").expect("it is valid");
        let memory = draws.of("max_memory");
        if memory.one_in(4) {
            config.limits.max_memory = memory.range(1..4) << 20;
        }
        let of_workers = getrlimit(Resource::Nofile);
        let allowance = Allowance { of_workers, fewer_clients: None, handshakes: 0, http: MOST_CONNECTIONS };
        let machine = Machine::new(seed, config, allowance, false, None);
        let manner = *draws.of("manner").pick(&[Manner::Answers, Manner::Answers, Manner::Refuses, Manner::Dies]);
        Self {
            random,
            machine,
            manner,
            assignment,
            is_kind: false,
            desks: Vec::new(),
            visitors: Vec::new(),
            callers: Vec::new(),
            acp,
            agents: BTreeMap::new(),
            explained: 0,
        }
    }

    fn connects(&mut self, visitor: usize) {
        let (ours, inode) = self.machine.connects(self.machine.doors[0]);
        self.visitors[visitor].connects(ours.into(), inode, &mut self.random);
    }

    fn acts(&mut self) -> bool {
        let at = self.random.range(0..self.visitors.len() + self.callers.len());
        if let Some(at) = at.checked_sub(self.visitors.len()) {
            return self.caller_acts(at);
        }
        if self.random.one_in(3) {
            if self.visitors[at].needs_wire(&mut self.random) {
                self.connects(at);
            }
            return self.visitors[at].asks(&mut self.random);
        }
        let wires = self.visitors[at].wires.len();
        if wires == 0 {
            return false;
        }
        let wire = self.random.range(0..wires);
        let most = *self.random.pick(&[1, 30, 2000, 100_000]);
        match self.random.range(0..40) {
            0 if self.random.one_in(3) => {
                self.visitors[at].loses(wire, || true);
                true
            }
            ..20 => self.visitors[at].writes(wire, most),
            _ => self.reads(at, wire, most),
        }
    }

    fn reads(&mut self, visitor: usize, wire: usize, most: usize) -> bool {
        let broken = &self.machine.wires.borrow().broken;
        self.visitors[visitor].wires.iter_mut().for_each(|wire| wire.is_broken = broken.contains(&wire.inode));
        let pulled = self.visitors[visitor].reads(wire, most);
        if pulled == Pulled::End {
            let is_broken = self.visitors[visitor].wires[wire].is_broken;
            // Each connection that was closed since memory was short explains one that ends without an answer.
            let closed = self.machine.shell.bus.view().count(Reason::MemoryLimit);
            let explained = &mut self.explained;
            self.visitors[visitor].loses(wire, || {
                let is_short = !is_broken && *explained < closed;
                *explained += u64::from(is_short);
                is_broken || is_short
            });
        } else if self.visitors[visitor].is_done_with(wire) && self.random.one_in(2) {
            self.visitors[visitor].loses(wire, || true);
        }
        pulled != Pulled::Nothing
    }

    fn caller_connects(&mut self, caller: usize) {
        let (ours, inode) = self.machine.connects(self.machine.doors[1]);
        self.callers[caller].connects(ours.into(), inode, &mut self.random);
    }

    fn caller_acts(&mut self, at: usize) -> bool {
        if self.random.one_in(3) {
            if self.callers[at].needs_wire(&mut self.random) {
                self.caller_connects(at);
            }
            return self.callers[at].asks(&mut self.random);
        }
        let wires = self.callers[at].wires.len();
        if wires == 0 {
            return false;
        }
        let wire = self.random.range(0..wires);
        let most = *self.random.pick(&[1, 30, 2000, 100_000]);
        match self.random.range(0..60) {
            0 => {
                let throws_away = self.random.one_in(3);
                self.marks_broken(at);
                self.callers[at].loses(wire, throws_away, || true);
                true
            }
            1..25 => self.callers[at].writes(wire, most),
            _ => self.caller_reads(at, wire, most),
        }
    }

    fn marks_broken(&mut self, caller: usize) {
        let broken = &self.machine.wires.borrow().broken;
        self.callers[caller].wires.iter_mut().for_each(|wire| wire.is_broken = broken.contains(&wire.inode));
    }

    fn caller_reads(&mut self, caller: usize, wire: usize, most: usize) -> bool {
        self.marks_broken(caller);
        let pulled = self.callers[caller].reads(wire, most);
        if pulled == Pulled::End {
            let is_broken = self.callers[caller].wires[wire].is_broken;
            let closed = self.machine.shell.bus.view().count(Reason::MemoryLimit);
            let explained = &mut self.explained;
            self.callers[caller].loses(wire, false, || {
                let is_short = !is_broken && *explained < closed;
                *explained += u64::from(is_short);
                is_broken || is_short
            });
        } else if self.callers[caller].is_done_with(wire) && self.random.one_in(2) {
            self.callers[caller].loses(wire, false, || true);
        }
        pulled != Pulled::Nothing
    }

    /// A client of ACP answers what it is asked, and opens the streams that nobody reads.
    fn caller_keeps_up(&mut self, at: usize) -> bool {
        if !self.callers[at].has_duty() {
            return false;
        }
        if self.callers[at].needs_wire(&mut self.random) {
            self.caller_connects(at);
        }
        self.callers[at].does_its_duty(&mut self.random)
    }

    /// No connection of ACP ends for a reason that is not counted.
    fn check_callers(&self) {
        let ended: usize = self.callers.iter().map(Caller::ended).sum();
        let view = self.machine.shell.bus.view();
        let counted: u64 = ENDS.iter().map(|reason| view.count(*reason)).sum();
        assert!(ended as u64 <= counted, "{ended} connections of ACP have ended, and {counted} are counted");
    }

    /// A worker reads, and does some of its work.
    fn works(&mut self, at: usize, most: usize) -> bool {
        while self.desks.len() <= at {
            self.desks.push(Desk::default());
        }
        if self.machine.children.borrow().workers[at].is_dead {
            return false;
        }
        let (pulled, read) = self.machine.children.borrow_mut().reads(at, most);
        for line in read {
            if !self.takes_in(at, &serde_json::from_slice(&line).expect("a worker reads JSON")) {
                self.machine.children.borrow_mut().ends(at, Exit::Code(1));
                return true;
            }
        }
        let is_agent = self.machine.children.borrow().workers[at].pool == AGENTS;
        let has_work = match is_agent {
            true => self.agents.get(&at).is_some_and(Agent::has_work),
            false => !self.desks[at].work.is_empty(),
        };
        let does = has_work && (self.is_kind || self.random.one_in(2));
        let line = does.then(|| self.does_some(at));
        let mut children = self.machine.children.borrow_mut();
        let output = &mut children.workers[at].output;
        line.into_iter().for_each(|line| output.extend(format!("{line}\n").into_bytes()));
        children.writes(at, most, pulled) || does
    }

    /// A worker has read a line; returns whether it lives on.
    fn takes_in(&mut self, at: usize, line: &Value) -> bool {
        if self.machine.children.borrow().workers[at].pool == AGENTS {
            let is_alone = self.acp == Some("dedicated");
            let reply = self.agents.entry(at).or_default().takes_in(at, line, is_alone);
            let output = &mut self.machine.children.borrow_mut().workers[at].output;
            reply.into_iter().for_each(|reply| output.extend(format!("{reply}\n").into_bytes()));
            return true;
        }
        let (desk, params) = (&mut self.desks[at], &line["params"]);
        let reply = match line["method"].as_str() {
            Some("server/discover") if line["id"].as_str().is_some_and(|id| id.starts_with("stdio-bus/")) => {
                match self.manner {
                    Manner::Answers => json!({"jsonrpc": "2.0", "id": line["id"], "result": {}}),
                    Manner::Refuses => json!({"jsonrpc": "2.0", "id": line["id"], "error": {"code": -32601}}),
                    Manner::Dies => return false,
                }
            }
            Some("notifications/cancelled") => {
                desk.work.retain(|work| work.id != params["requestId"]);
                return true;
            }
            // The bus replays a session's start to the next worker of a shared pool.
            Some("notifications/initialized") => return true,
            Some(method) => {
                let era = params["era"].as_bool().expect("it is a visitor's");
                assert_eq!(*desk.era.get_or_insert(era), era, "worker {at} serves one era");
                assert!(!era || self.manner == Manner::Answers, "an old server gets nothing new");
                desk.sessions.insert(params["who"].as_u64().expect("it is a visitor's"));
                let is_alone = self.assignment != "dedicated" || era || desk.sessions.len() == 1;
                assert!(is_alone, "worker {at} serves {:?}", desk.sessions);
                if !line["id"].is_null() {
                    let sent_steps = if method == "initialize" { u64::MAX } else { 0 };
                    desk.work.push(Work { id: line["id"].clone(), params: params.clone(), sent_steps });
                }
                return true;
            }
            None => return true,
        };
        self.machine.children.borrow_mut().workers[at].output.extend(format!("{reply}\n").into_bytes());
        true
    }

    /// A worker reports progress on one of its requests, or answers it.
    fn does_some(&mut self, at: usize) -> Value {
        if let Some(agent) = self.agents.get_mut(&at) {
            return agent.says(at, &mut self.random).expect("it has work");
        }
        let desk = &mut self.desks[at];
        let next = self.random.range(0..desk.work.len());
        let work = &mut desk.work[next];
        if work.sent_steps < work.params["steps"].as_u64().unwrap_or(0) {
            work.sent_steps += 1;
            let params = json!({
                "progressToken": work.params["_meta"]["progressToken"], "progress": work.sent_steps, "who": work.params["who"]
            });
            return json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        }
        let Work { id, params, .. } = desk.work.remove(next);
        let text = "x".repeat(params["length"].as_u64().unwrap_or(0) as usize);
        let result = json!({
            "protocolVersion": params["protocolVersion"], "who": params["who"], "number": params["number"], "text": text
        });
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }

    fn worker_acts(&mut self) -> bool {
        let workers = self.machine.children.borrow().workers.len();
        if workers == 0 {
            return false;
        }
        let at = self.random.range(0..workers);
        if !self.is_kind && self.random.one_in(300) && !self.machine.children.borrow().workers[at].is_dead {
            self.machine.children.borrow_mut().ends(at, Exit::Code(3));
            return true;
        }
        let most = self.random.range(1..70_000);
        self.works(at, most)
    }

    fn all_act(&mut self) -> bool {
        let mut moved = false;
        let workers = self.machine.children.borrow().workers.len();
        for at in 0..workers {
            moved |= self.works(at, 1 << 16);
        }
        for at in 0..self.visitors.len() {
            for wire in (0..self.visitors[at].wires.len()).rev() {
                moved |= self.visitors[at].writes(wire, 1 << 16);
                moved |= self.reads(at, wire, 1 << 16);
            }
        }
        for at in 0..self.callers.len() {
            for wire in (0..self.callers[at].wires.len()).rev() {
                moved |= self.callers[at].writes(wire, 1 << 16);
                moved |= self.caller_reads(at, wire, 1 << 16);
            }
            moved |= self.caller_keeps_up(at);
        }
        moved
    }

    fn runs(&mut self, what: &str, asks: bool, mut over: impl FnMut(&mut Self) -> bool) {
        for _ in 0..LAST_TURN {
            let mut moved = false;
            for _ in 0..self.random.range(0..6) {
                moved |= self.worker_acts();
                moved |= asks && self.acts();
            }
            let is_quiet = !asks && !moved && !self.all_act();
            self.machine.wires.borrow_mut().is_quiet = is_quiet;
            let is_done = self.machine.shell.turn().expect("it continues");
            self.machine.shell.reactor.http.check(&self.machine.shell.reactor.connections);
            self.machine.shell.reactor.connections.check();
            if is_done || over(self) {
                return;
            }
        }
        let shell = &self.machine.shell;
        let callers: Vec<_> = self.callers.iter().map(Caller::waits_for).collect();
        let agents: Vec<_> = self.agents.iter().map(|(at, agent)| (at, agent.works_on())).collect();
        panic!(
            "it hangs: {what}; {} operations in flight, {:?}; {callers:#?} {agents:#?}",
            shell.reactor.io.in_flight(),
            shell.bus.view().stats()
        );
    }

    fn lives(mut self, most_steps: usize) -> Lived {
        for name in 0..self.random.range(1..6) {
            let is_modern = self.random.one_in(2);
            self.visitors.push(Visitor::new(name, is_modern, &mut self.random));
        }
        // Some have sessions of an earlier daemon.
        let pool = self.machine.shell.reactor.workers.pools[0].core.id.clone();
        let listener = self.machine.shell.reloads.running.listeners[0].address();
        let mut kept = Vec::new();
        for visitor in self.visitors.iter_mut().filter(|visitor| !visitor.is_modern()) {
            if self.random.one_in(3) {
                kept.push(visitor.returns(&pool, &listener, &mut self.random));
            }
        }
        let until = self.machine.shell.reactor.clock.now().after(Duration::from_secs(600));
        self.machine.shell.reactor.persistence = Persistence::of(kept);
        self.machine.shell.reactor.persistence.wait_until(until);
        let callers = if self.acp.is_some() { self.random.range(1..4) } else { 0 };
        self.callers.extend((0..callers).map(|name| Caller::new(100 + name)));
        let mut steps = self.random.range(200..STEPS).min(most_steps).max(1);
        self.runs("the beginning", true, |_| {
            steps -= 1;
            steps == 0
        });
        self.is_kind = true;
        self.machine.wires.borrow_mut().is_kind = true;
        self.machine.children.borrow_mut().is_kind = true;
        let is_content = |door: &mut Self| {
            door.visitors.iter().all(Visitor::is_content) && door.callers.iter().all(Caller::is_content)
        };
        self.runs("answers", false, is_content);
        // Again for each visitor, until broken streams are fetched, and something is answered.
        for round in 0..40 {
            let is_served = |visitor: &Visitor| visitor.results > 0 || visitor.has_legacy_server;
            let are_answered = self.callers.iter().all(|caller| caller.results > 0);
            if round > 5 && self.visitors.iter().all(is_served) && are_answered {
                break;
            }
            if round > 5 && round % 4 == 0 {
                // Workers that died too often are restarted after a while.
                let later = self.machine.wires.borrow().awake + Duration::from_secs(10);
                self.runs("a pause", false, |door| door.machine.wires.borrow().awake >= later);
            }
            for at in 0..self.visitors.len() {
                self.connects(at);
                self.visitors[at].continues(&mut self.random);
            }
            for at in 0..self.callers.len() {
                self.caller_connects(at);
                self.callers[at].continues(&mut self.random);
            }
            self.runs("answers in peace", false, is_content);
        }
        let results = self.visitors.iter().map(|visitor| visitor.results).sum();
        for visitor in self.visitors.iter().filter(|visitor| !visitor.has_legacy_server) {
            let world = (self.manner, self.assignment, self.machine.shell.reactor.memory.most);
            assert!(visitor.results > 0, "{} has no answer: {:?}, {world:?}", visitor.name, visitor.last);
        }
        for caller in &self.callers {
            assert!(caller.results > 0, "{} has no answer: {:?}, {:?}", caller.name, caller.last, self.acp);
        }
        self.check_callers();
        let fetched = self.visitors.iter().map(|visitor| visitor.fetched).sum();
        let prompted = self.callers.iter().map(|caller| caller.results).sum();
        let reopened = self.callers.iter().map(|caller| caller.reopened).sum();
        for caller in &mut self.callers {
            (0..caller.wires.len()).rev().for_each(|wire| caller.loses(wire, false, || true));
            caller.leaves(false);
        }
        for visitor in &mut self.visitors {
            (0..visitor.wires.len()).rev().for_each(|wire| visitor.loses(wire, || true));
        }
        let known: usize = self.visitors.iter().map(|visitor| visitor.sessions).sum();
        // Unused sessions end after 10 s, or stay for the whole test; connections of ACP without a stream end after 60 s.
        let most = Duration::from_secs(if self.acp.is_some() { 90 } else { 30 });
        let ends = self.machine.wires.borrow().awake + most;
        let is_over = |door: &mut Self| {
            let Shell { bus, reactor, .. } = &door.machine.shell;
            // A daemon without anything to wait for lets time pass slowly. Whose client has gone keeps its slot for a while.
            let stats = bus.view().stats();
            let is_empty = stats.clients == 0 && stats.pending == 0 && reactor.http.is_deserted(&reactor.connections);
            door.machine.wires.borrow().awake >= ends || door.acp.is_some() && is_empty
        };
        self.runs("the end of unused sessions", false, is_over);
        let shell = &self.machine.shell;
        let (clients, pending) = (shell.bus.view().stats().clients, shell.bus.view().stats().pending);
        let left = shell.reactor.http.left();
        assert!(clients <= known, "{clients} clients are there, and {known} sessions are known to them: {left:#?}");
        assert!(clients > 0 || shell.reactor.listeners.grants.is_empty(), "who has gone has no token here");
        assert!(clients > 0 || shell.reactor.http.is_deserted(&shell.reactor.connections), "something is left");
        assert_eq!(pending, 0, "requests are pending without a waiting client");
        let _ = write(&self.machine.stop, b"!");
        self.runs("the end", false, |_| false);
        self.machine.wires.borrow_mut().is_prompt = true;
        self.machine.shell.finish();
        assert!(
            self.machine.shell.reactor.http.is_deserted(&self.machine.shell.reactor.connections),
            "something is left"
        );
        assert_eq!(self.machine.shell.reactor.io.lent(), 0, "memory is lent");
        let trace = self.machine.wires.borrow().trace;
        Lived { results, fetched, prompted, reopened, trace }
    }
}

/// What came of a world.
#[derive(Debug)]
struct Lived {
    /// Results that visitors had, and answers that they fetched behind broken connections.
    results: usize,
    fetched: usize,
    /// Results that clients of ACP had, and streams that they opened again.
    prompted: usize,
    reopened: usize,
    trace: u64,
}

/// The pool of ACP.
const AGENTS: &str = "agents";

/// Why a connection of ACP may end without its client's doing.
const ENDS: [Reason; 9] = [
    Reason::MemoryLimit,
    Reason::ClientStalled,
    Reason::ClientSlow,
    Reason::ClientOverdue,
    Reason::OwnWorkerEnded,
    Reason::OwnWorkerReplaced,
    Reason::SessionIdle,
    Reason::SessionEvicted,
    Reason::CrashSuspect,
];

#[test]
fn clients_over_http_get_their_own_answers_whatever_the_kernel_does() {
    let lived = for_each_seed("door", 12, |seed, steps| Door::new(seed, "p").lives(steps));
    let sum = |of: fn(&Lived) -> usize| lived.iter().map(of).sum::<usize>();
    let (results, fetched) = (sum(|it| it.results), sum(|it| it.fetched));
    let (prompted, reopened) = (sum(|it| it.prompted), sum(|it| it.reopened));
    let all = format!("{results} answers, {fetched} fetched, {prompted} of ACP, {reopened} streams opened again");
    assert!(lived.len() < 48 || results > 400 && fetched > 0 && prompted > 200 && reopened > 0, "{all}");
    println!("{all}");
}

#[test]
fn an_mcp_seed_repeats_exactly_beside_others_and_with_any_log() {
    let _nothing_starts = crate::testing::STARTS.read();
    for seed in 1..3 {
        let traces = ["p", "a_pool_with_a_longer_name"].map(|pool| Door::new(seed, pool).lives(150).trace);
        assert_eq!(traces[0], traces[1], "the seed {seed} does not repeat itself");
    }
}
