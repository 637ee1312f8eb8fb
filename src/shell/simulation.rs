//! Simulates the shell on a seeded kernel (`testing/kernel.rs`): short reads and writes, late and reordered
//! completions, failing operations, freezes of the machine, little memory, few descriptors, small tables, workers that
//! fail to start or die, clients that stop reading, half-close, misbehave, or leave, one of them on stdin and stdout,
//! others behind a proxy or with WebSocket, and operators with requests.
//!
//! Every request of a client that stays is answered once, with its own answer or an error. Lines arrive unchanged,
//! except for ids on their way to a worker, and in order. No client is closed for a reason that the simulated world
//! cannot cause. No timeout expires early; at the end nothing is open and no memory is lent.

mod agents;
mod callers;
mod clients;
mod door;
mod lines;
mod machine;
mod operators;
mod visitors;
mod wire;
mod workers;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::write;
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use super::descriptors::Allowance;
use super::transport::Transport;
use crate::access::{Policy, Tokens};
use crate::address::Address;
use crate::bus::port::{Exit, ListenerId, Origin, Reason};
use crate::bus::settings::Proxies;
use crate::bus::shutdown::Stage;
use crate::config::{Config, Listen, Listener, Web};
use crate::io::Io;
use crate::testing::{Draws, Random, shrink};
use clients::{BROKEN_HEADERS, BROKEN_UPGRADES, ClientVerdict, Frames, REQUEST_TIMEOUT, SimClient, TOKEN, UPGRADE};
use lines::{Pulled, pull};
use machine::Machine;
use operators::Operator;
use workers::pipe;

/// Turns after which a simulation counts as hung.
const LAST_TURN: usize = 200_000;

/// The scarce resources of a world, for which its clients may be closed without any fault.
#[derive(Clone, Copy, Debug, Default)]
struct Scarcity {
    /// Less memory than the configurable minimum: some clients exceed it.
    has_little_memory: bool,
    /// How long a client may read nothing.
    patience: Option<Duration>,
    /// Maximum number of clients.
    clients: Option<usize>,
    /// Maximum number of the listener's clients.
    of_listener: Option<usize>,
    /// Descriptors for this many connections. Others wait, and none is closed for it.
    descriptors: Option<usize>,
}

impl Scarcity {
    fn new(draws: &mut Draws<'_>) -> Self {
        let mut some = |name, times, from, to| {
            let random = draws.of(name);
            random.one_in(times).then(|| random.range(from..to))
        };
        Self {
            has_little_memory: some("has_little_memory", 3, 0, 1).is_some(),
            patience: some("patience", 4, 100, 300).map(|milliseconds| Duration::from_millis(milliseconds as u64)),
            clients: some("clients", 5, 2, 6),
            of_listener: some("of_listener", 6, 1, 6),
            descriptors: some("descriptors", 5, 1, 6),
        }
    }

    /// The number of clients at which one may be refused.
    fn full(&self) -> Option<usize> {
        self.clients.into_iter().chain(self.of_listener).min()
    }

    /// Whether clients have to leave before all others are admitted.
    fn keeps_out(&self) -> bool {
        self.clients.is_some() || self.descriptors.is_some()
    }
}

struct Simulation {
    seed: u64,
    turns: usize,
    /// The last turn in which a client may have been refused because of a limit.
    full_in: Option<usize>,
    /// Clients closed for reasons that only the daemon can count.
    closed_for_want: u64,
    random: Random,
    machine: Machine,
    operators: Vec<Operator>,
    clients: Vec<SimClient>,
    /// The daemon's stdin and stdout, if a client is there.
    stdio: Option<(OwnedFd, OwnedFd)>,
    scarcity: Scarcity,
    /// Clients send PROXY headers: all of them if true.
    needs_header: bool,
    /// Clients speak WebSocket.
    is_web: bool,
    /// They need a token.
    has_tokens: bool,
}

/// Headers that proxies send.
const HEADERS: [&[u8]; 3] = [
    b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13\xc0\0\x02\x07\xc0\0\x02\x01\x9c\x40\x23\x28\x05\0\x04uuid",
    b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
];

fn config(draws: &mut Draws<'_>, scarcity: Scarcity) -> Config {
    let program = std::env::current_exe().expect("a test runs");
    let text = json!({
        "pools": [{
            "id": "p", "command": program, "args": [], "instances": 3, "request_timeout_sec": REQUEST_TIMEOUT.as_secs()
        }],
        "limits": { "max_output_queue": 65536, "max_restarts": 1000, "drain_timeout_sec": 5 },
    });
    let mut config = Config::from_bytes(text.to_string().as_bytes(), "a seed").expect("it is valid");
    config.listeners = vec![Listener::open(Address::tcp("a seed", 0).into())];
    if draws.of("proxy").one_in(2) {
        config.listeners[0].entry.proxy = Some(Proxies::Unix);
    }
    let ping = Some(Duration::from_secs(draws.of("ping").range(1..30) as u64));
    // The file is never read: its contents are passed directly.
    let tokens_file = draws.of("tokens_file").one_in(2).then(|| PathBuf::from("tokens"));
    let tokens = Tokens::parse(&format!("somebody:{TOKEN}"), &[]).expect("it is right");
    let access = Policy { tokens: tokens_file.is_some().then_some(tokens), ..Policy::default() };
    config.listeners[0].web =
        draws.of("WebSocket").one_in(3).then(|| Web { ping, tokens_file, access, ..Web::default() });
    config.listeners[0].max_connections.total = scarcity.of_listener;
    config.listeners.extend(draws.of("stdio").one_in(3).then(|| Listener::open(Listen::Stdio)));
    if scarcity.has_little_memory {
        config.limits.max_memory = draws.of("max_memory").range(1..4) << 20;
    }
    if let Some(patience) = scarcity.patience {
        config.limits.backpressure_timeout = patience;
    }
    config
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0xc11e);
        let mut draws = Draws::new(&mut random);
        let scarcity = Scarcity::new(&mut draws);
        let config = config(&mut draws, scarcity);
        let stdio = config.listeners.iter().position(|listener| matches!(listener.listen, Listen::Stdio));
        let stdio = stdio.map(ListenerId::at);
        let needs_header = config.listeners[0].entry.proxy.is_some();
        let web = config.listeners[0].web.as_ref();
        let (is_web, has_tokens) = (web.is_some(), web.is_some_and(|web| web.access.tokens.is_some()));
        let has_admin = draws.of("admin").one_in(2);
        let descriptors = Allowance {
            of_workers: getrlimit(Resource::Nofile),
            fewer_clients: scarcity.clients.map(|clients| (clients, 0)),
            handshakes: super::connection_counts::MOST_HANDSHAKES,
            http: 0,
        };
        let machine = Machine::new(seed, config, descriptors, has_admin, scarcity.descriptors);
        let mut simulation = Self {
            seed,
            turns: 0,
            full_in: None,
            closed_for_want: 0,
            random,
            machine,
            operators: Vec::new(),
            clients: Vec::new(),
            stdio: None,
            scarcity,
            needs_header,
            is_web,
            has_tokens,
        };
        if let Some(listener) = stdio {
            simulation.serves_stdio(listener);
        }
        simulation
    }

    /// Puts one client on the daemon's stdin and stdout.
    fn serves_stdio(&mut self, listener: ListenerId) {
        let ((stdin, speaks), (input, stdout)) = (pipe().expect("a pipe"), pipe().expect("a pipe"));
        // SAFETY: `stdio` is closed after the shell.
        let lent = |end: &OwnedFd| unsafe { BorrowedFd::borrow_raw(end.as_raw_fd()) };
        let (reader, writer) = (lent(&stdin), lent(&stdout));
        let aside = self.random.one_in(2);
        let transport = Transport::stdio(reader, writer).writing_aside(aside);
        self.machine.shell.step(|shell| {
            shell.add_client(listener, Origin::default(), transport);
        });
        self.machine.wires.borrow_mut().steady.extend([stdin.as_raw_fd(), stdout.as_raw_fd()]);
        let client = SimClient::new(self.clients.len(), self.seed, input, speaks);
        self.clients.push(SimClient { is_stdio: true, ..client });
        self.stdio = Some((stdin, stdout));
    }

    fn now(&self) -> Duration {
        self.machine.wires.borrow().awake
    }

    fn connects(&mut self) {
        let (ours, inode) = self.machine.connects(self.machine.doors[0]);
        let speaks = ours.try_clone().expect("there are descriptors");
        let mut client = SimClient::new(self.clients.len(), self.seed, ours.into(), speaks.into());
        (client.wire.inode, client.came_in, client.empty_at) = (Some(inode), self.turns, self.now());
        let is_broken = self.random.one_in(8);
        if self.needs_header {
            if is_broken && self.random.one_in(2) {
                let missing: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n";
                let said = if self.random.one_in(2) { missing } else { *self.random.pick(&BROKEN_HEADERS) };
                client.says_its_last(said, None, Some(Reason::ProxyHeader));
                return self.clients.push(client);
            }
            client.wire.todo.extend(*self.random.pick(&HEADERS));
        }
        if self.is_web {
            client.wire.frames = Some(Frames::new(self.random.range(0..usize::MAX) as u64));
            let upgrade = format!("{UPGRADE}\r\n");
            if is_broken {
                let most = BROKEN_UPGRADES.len() - usize::from(!self.has_tokens);
                let (part, other, status) = self.random.pick(&BROKEN_UPGRADES[..most]);
                let upgrade = upgrade.replace(part, other);
                client.says_its_last(
                    upgrade.as_bytes(),
                    Some(ClientVerdict::Status(*status)),
                    Some(Reason::HandshakeRefused),
                );
            } else {
                client.wire.todo.extend(upgrade.bytes());
            }
        }
        self.clients.push(client);
    }

    /// Lets a client read. If the daemon has closed it, the world has to know why.
    fn reads(&mut self, at: usize, most: usize) -> bool {
        let now = self.now();
        let pulled = self.clients[at].reads(most, now);
        if pulled == Pulled::End {
            if let Err(why) = self.explain(at) {
                let SimClient { name, asked, verdict, last_word, .. } = &self.clients[at];
                let open = asked.len();
                let counted =
                    Reason::ALL.iter().map(|reason| (reason.name(), self.machine.shell.bus.view().count(*reason)));
                let counted: Vec<_> = counted.filter(|(_, count)| *count > 0).collect();
                panic!(
                    "{name} was closed {why}, with {open} requests open, sent {verdict:?}, after {last_word:?}, \
                     in a world with {:?}; counted: {counted:?}",
                    self.scarcity
                );
            }
            self.clients[at].leaves();
        }
        pulled != Pulled::Nothing
    }

    /// Why the daemon may have closed a client.
    fn explain(&mut self, at: usize) -> Result<(), &'static str> {
        let (client, bus, scarcity) = (&self.clients[at], &self.machine.shell.bus, &self.scarcity);
        let is_broken = client.wire.inode.is_some_and(|inode| self.machine.wires.borrow().broken.contains(&inode));
        if is_broken || bus.view().stage() > Stage::Running {
            return Ok(());
        }
        // The kernel delays, too: for the daemon, room appears later than it was made.
        let is_late = scarcity.patience.is_some_and(|patience| client.behind >= patience / LATE_PART);
        // Several slow clients may have used up the time of a worker that they share.
        let is_slow = self.now() >= SLOW_FOR && client.behind >= BEHIND;
        let was_full = self.full_in.is_some_and(|turn| turn >= client.came_in);
        let wants = [
            (scarcity.has_little_memory, Reason::MemoryLimit),
            (is_late, Reason::ClientStalled),
            (is_slow, Reason::ClientSlow),
            (was_full, Reason::ConnectionLimit),
            (was_full, Reason::ClientIdle),
        ];
        let is_in_want = wants.iter().any(|(may_be, reason)| {
            let may_be_its_error = match &client.verdict {
                Some(ClientVerdict::Error(text)) => text == reason.error_name(),
                _ => true,
            };
            *may_be && may_be_its_error && bus.view().count(*reason) > 0
        });
        let is_refused = matches!(client.verdict, Some(ClientVerdict::Status(503 | 429)));
        if was_full && is_refused && bus.view().count(Reason::HandshakeRefused) > 0 {
            return Ok(());
        }
        let by_itself = match &client.last_word {
            Some(last) if client.wire.sent < last.last_word_at => Err("before it had said its last"),
            Some(last) if last.verdict.is_some() && last.verdict != client.verdict => Err("with another verdict"),
            Some(last) if last.reason.is_some_and(|reason| bus.view().count(reason) == 0) => {
                Err("and that was not counted")
            }
            Some(_) => Ok(()),
            None if client.wire.speaks.is_some() => Err("without a reason"),
            None if !client.asked.is_empty() => Err("before it had its answers"),
            None => Ok(()),
        };
        if by_itself.is_err() && is_in_want {
            self.closed_for_want += 1;
            return Ok(());
        }
        by_itself
    }

    /// Checks that the daemon has counted what the world knows of.
    fn check_counts(&self) {
        let (bus, scarcity) = (&self.machine.shell.bus, &self.scarcity);
        let wants = [
            (scarcity.has_little_memory, Reason::MemoryLimit),
            (scarcity.patience.is_some(), Reason::ClientStalled),
            (scarcity.full().is_some(), Reason::ConnectionLimit),
            (scarcity.clients.is_some(), Reason::ClientIdle),
            (self.now() >= SLOW_FOR, Reason::ClientSlow),
            (false, Reason::ClientKilled),
            (false, Reason::NotAllowed),
            (false, Reason::OwnWorkerEnded),
            // A client in an orderly close is read for another second, and may send more requests.
            (scarcity.has_little_memory || scarcity.clients.is_some(), Reason::ClientOverdue),
            (false, Reason::NoInput),
        ];
        let mut counted = 0;
        for (may_be, reason) in wants {
            assert!(may_be || bus.view().count(reason) == 0, "{} was counted in a world that has none", reason.name());
            counted += bus.view().count(reason);
        }
        assert!(self.closed_for_want <= counted, "{} of {counted} that were counted", self.closed_for_want);
        for reason in [Reason::ClientMalformed, Reason::ClientLineTooLong] {
            let said = |client: &&SimClient| client.last_word.as_ref().is_some_and(|last| last.reason == Some(reason));
            let said = self.clients.iter().filter(said).count() as u64;
            assert!(bus.view().count(reason) <= said, "{} is counted too often", reason.name());
        }
        // The client of stdin and stdout takes the daemon with it.
        let is_alone = self.stdio.is_some() && counted > 0;
        assert!(is_alone || bus.view().stage() == Stage::Running, "it has ended without a reason");
    }

    /// An operator connects, or acts.
    fn operator_acts(&mut self, asks: bool) -> bool {
        let Some(door) = self.machine.admin_door else { return false };
        if asks && self.operators.len() < 8 && self.random.one_in(20) {
            let (ours, _) = self.machine.connects(door);
            self.operators.push(Operator { end: Some(ours.into()), asks: VecDeque::new(), came: Vec::new() });
        }
        if self.operators.is_empty() {
            return false;
        }
        let at = self.random.range(0..self.operators.len());
        self.operators[at].acts(&mut self.random, asks)
    }

    /// A worker reads, answers and writes a little, or dies.
    fn worker_acts(&mut self, may_die: bool) -> bool {
        let mut children = self.machine.children.borrow_mut();
        let alive: Vec<usize> = (0..children.workers.len()).filter(|at| !children.workers[*at].is_dead).collect();
        if alive.is_empty() {
            return false;
        }
        let at = *self.random.pick(&alive);
        if may_die && self.random.one_in(150) {
            children.ends(at, Exit::Code(3));
            return true;
        }
        drop(children);
        self.worker_works(at)
    }

    /// A worker reads, answers and writes a little. False if there was nothing to do.
    fn worker_works(&mut self, at: usize) -> bool {
        let mut children = self.machine.children.borrow_mut();
        let (most_in, most_out) = (self.random.range(1..70_000), self.random.range(1..70_000));
        let (pulled, read) = children.reads(at, most_in);
        let worker = &mut children.workers[at];
        for line in read {
            if let (Some(stderr), true) = (&worker.stderr, self.random.one_in(10)) {
                let _ = write(stderr, b"working\nstill ");
            }
            worker.answer(self.seed, at, &line);
        }
        children.writes(at, most_out, pulled)
    }

    fn client_acts(&mut self, asks: bool) -> bool {
        if self.clients.is_empty() {
            return false;
        }
        let now = self.now();
        let at = self.random.range(0..self.clients.len());
        let most = if self.random.one_in(4) { 20 } else { 100_000 };
        let (what, most) = (self.random.range(0..10), self.random.range(1..most));
        if what < 4 {
            return self.reads(at, most);
        }
        let client = &mut self.clients[at];
        let may_speak = client.wire.speaks.is_some() && !client.is_leaving();
        match what {
            ..8 => client.writes(most),
            // The end of stdin ends the daemon.
            _ if asks && !client.is_stdio && !client.is_over() && self.random.one_in(100) => {
                match self.random.range(0..5) {
                    0 | 1 => client.leaves(),
                    2 if may_speak => client.misbehaves(&mut self.random),
                    3 if may_speak && client.says_goodbye() => {}
                    _ if may_speak => client.ends_what_it_says(),
                    _ => {}
                }
                true
            }
            _ if asks && may_speak && client.wire.todo.len() < 300_000 => {
                client.ask(&mut self.random, now);
                true
            }
            _ if client.is_stdio || asks => false,
            _ if may_speak && client.wire.todo.is_empty() && self.random.one_in(10) => {
                // A client that has to be answered to count as well may never be admitted while others stay.
                let ends = client.is_well || self.scarcity.keeps_out() && client.asked.is_empty();
                if ends && !(self.random.one_in(2) && client.says_goodbye()) {
                    client.ends_what_it_says();
                }
                ends
            }
            _ => false,
        }
    }

    /// Every peer does what it can. False if that is nothing.
    fn all_act(&mut self) -> bool {
        let workers = self.machine.children.borrow().workers.len();
        let mut moved = false;
        for at in 0..workers {
            if !self.machine.children.borrow().workers[at].is_dead {
                moved |= self.worker_works(at);
            }
        }
        for at in 0..self.clients.len() {
            moved |= self.clients[at].writes(1 << 16);
            moved |= self.reads(at, 1 << 16);
        }
        moved
    }

    /// Runs until `over` returns true, with a limit of turns.
    fn runs(&mut self, what: &str, asks: bool, mut over: impl FnMut(&mut Self) -> bool) {
        for _ in 0..LAST_TURN {
            let mut moved = false;
            for _ in 0..self.random.range(0..6) {
                moved |= self.worker_acts(asks);
                moved |= self.client_acts(asks);
                moved |= self.operator_acts(asks);
            }
            // Time has to pass only when no peer can do anything.
            let is_quiet = !asks && !moved && !self.all_act();
            self.machine.wires.borrow_mut().is_quiet = is_quiet;
            let is_done = self.machine.shell.turn().expect("it continues");
            self.turns += 1;
            if self.scarcity.full().is_some_and(|most| self.machine.shell.bus.view().stats().clients >= most) {
                self.full_in = Some(self.turns);
            }
            if is_done || over(self) {
                return;
            }
        }
        panic!("it hangs: {what}; {} operations in flight", self.machine.shell.reactor.io.in_flight());
    }

    fn lives(mut self, most_steps: usize) {
        for _ in 0..self.random.range(1..6) {
            self.connects();
        }
        let mut steps = self.random.range(200..STEPS).min(most_steps).max(1);
        self.runs("the beginning", true, |simulation| {
            steps -= 1;
            if simulation.random.one_in(100) && simulation.clients.len() < 12 {
                simulation.connects();
            }
            steps == 0
        });
        self.machine.wires.borrow_mut().is_kind = true;
        self.machine.children.borrow_mut().is_kind = true;
        let now = self.now();
        for client in self.clients.iter_mut().filter(|client| client.wire.speaks.is_some() && !client.is_leaving()) {
            client.asked_in_peace = Some(client.next);
            (0..self.random.range(1..6)).for_each(|_| client.ask(&mut self.random, now));
        }
        self.runs("answers", false, |simulation| simulation.clients.iter().all(SimClient::is_content));
        // From now on resources suffice, and no client is closed for lack of them, however much time passes.
        let mut rest = REST;
        self.runs("rest", false, |simulation| {
            rest = rest.saturating_sub(1);
            rest == 0 && simulation.clients.iter().all(SimClient::is_content)
        });
        self.check_counts();
        // The end of stdin ends the daemon, too.
        let stdin_ends = self.random.one_in(2);
        match self.clients.iter_mut().find(|client| client.is_stdio && client.wire.speaks.is_some() && stdin_ends) {
            Some(client) => client.ends_what_it_says(),
            None => drop(write(&self.machine.stop, b"!")),
        }
        self.runs("the end", false, |_| false);
        assert!(self.machine.shell.reactor.is_done);
        self.machine.wires.borrow_mut().is_prompt = true;
        self.machine.shell.finish();
        assert_eq!(
            (self.machine.shell.reactor.connections.is_empty(), self.machine.shell.reactor.io.lent()),
            (true, 0),
            "something is left"
        );
        let now = self.now();
        let Self { machine: Machine { shell, wires, children, .. }, clients, operators, stdio, .. } = self;
        drop(shell);
        drop(stdio);
        // Connections that were never accepted end with the listener.
        wires.borrow_mut().connecting.clear();
        let is_closed = |end: &OwnedFd| loop {
            match pull(end, &mut Vec::new(), 1 << 16) {
                Pulled::Something => {}
                pulled => return pulled == Pulled::End,
            }
        };
        for mut client in clients.into_iter().filter(|client| !client.is_over()) {
            while client.reads(1 << 16, now) == Pulled::Something {}
            assert!(
                client.wire.input.as_ref().is_some_and(is_closed),
                "the connection of {} is still open",
                client.name
            );
        }
        for operator in operators {
            assert!(operator.end.as_ref().is_none_or(is_closed), "the connection of an operator is still open");
        }
        for worker in &children.borrow().workers {
            assert!(is_closed(&worker.stdin), "a worker's stdin is still open");
        }
    }
}

/// The minimum part of its timeout that a client had been behind when the daemon gave it up.
const LATE_PART: u32 = 4;

/// How long a shared worker waits for slow readers in total, and when a reader counts as slow.
const SLOW_FOR: Duration = Duration::from_millis(500);
const BEHIND: Duration = Duration::from_millis(5);

/// Minimum number of turns without new requests.
const REST: usize = 30;

/// Maximum number of turns before the kernel stops failing.
const STEPS: usize = 1500;

/// Prints how to repeat a failing seed.
struct Repeat(String);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat it: {}", self.0);
        }
    }
}

/// Runs a simulation with the seed that the environment names, or with as many as it says, `usual` if it is silent.
fn for_each_seed<T: Send>(test: &str, usual: u64, lives: impl Fn(u64, usize) -> T + Sync) -> Vec<T> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let seed = number("STDIO_BUS_SHELL_SEED");
    let seeds = number("STDIO_BUS_SHELL_SEEDS").unwrap_or(if seed.is_some() { 1 } else { usual });
    let steps = number("STDIO_BUS_SHELL_STEPS").map_or(STEPS, |steps| steps as usize);
    let first = seed.unwrap_or(1);
    shrink::run(first..first + seeds, steps, |seed, steps, _| {
        let seeded = format!("STDIO_BUS_SHELL_SEED={seed} STDIO_BUS_SHELL_STEPS={steps}");
        let _nothing_starts = crate::testing::STARTS.read();
        let _repeat = Repeat(format!("{seeded} cargo test --lib shell::simulation::{test}"));
        lives(seed, steps)
    })
}

#[test]
fn every_request_is_answered_and_everything_is_closed_whatever_the_kernel_does() {
    for_each_seed("every", 48, |seed, steps| Simulation::new(seed).lives(steps));
}
