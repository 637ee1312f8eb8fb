//! The shell on a kernel that is made from a seed (`testing/kernel.rs`): short reads and writes, late and reordered
//! completions, operations that fail, workers that cannot be started or die, clients that stop reading or leave. Every
//! request of a client that stays is answered once, with its own answer or an error; in the end nothing is open and no
//! memory is lent.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit};
use serde_json::{Value, json};

use super::Shell;
use super::acceptor::Acceptor;
use super::listen::Listening;
use super::signals::Signals;
use super::workers::processes::Processes;
use super::workers::spawn::Spawned;
use crate::bus::port::{Exit, Signal, WorkerKey};
use crate::config::{Config, Listen, Listener, Pool};
use crate::io::Io;
use crate::testing::kernel::{Kernel, Wires};
use crate::testing::{Random, shrink};

/// Turns after which a simulation that is not over has hung.
const LAST_TURN: usize = 200_000;

/// Bytes on their way through a pipe of the simulation.
fn push(to: &OwnedFd, queue: &mut VecDeque<u8>, most: usize) -> bool {
    let bytes: Vec<u8> = queue.iter().copied().take(most).collect();
    match write(to, &bytes) {
        Ok(written) => {
            queue.drain(..written);
            written > 0
        }
        Err(_) => false,
    }
}

/// Takes what is there. True at the end.
fn pull(from: &OwnedFd, into: &mut Vec<u8>, most: usize) -> (bool, bool) {
    let mut bytes = vec![0; most];
    match read(from, &mut bytes) {
        Ok(0) => (false, true),
        Ok(count) => {
            into.extend_from_slice(&bytes[..count]);
            (true, false)
        }
        Err(Errno::AGAIN | Errno::INTR) => (false, false),
        Err(_) => (false, true),
    }
}

fn lines(buffer: &mut Vec<u8>) -> Vec<Value> {
    let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
    let whole: Vec<u8> = buffer.drain(..=end).collect();
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("only whole lines of JSON arrive")).collect()
}

struct Worker {
    key: WorkerKey,
    stdin: OwnedFd,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    came: Vec<u8>,
    goes: VecDeque<u8>,
    is_dead: bool,
}

/// What the shell does to processes, and what becomes of it.
struct Children {
    random: Random,
    workers: Vec<Worker>,
    dead: VecDeque<(WorkerKey, Exit)>,
    /// Wakes the shell, as SIGCHLD would.
    bell: UnixStream,
    next_pid: u32,
    is_kind: bool,
}

impl Children {
    fn ends(&mut self, at: usize, exit: Exit) {
        let worker = &mut self.workers[at];
        if !std::mem::replace(&mut worker.is_dead, true) {
            (worker.stdout, worker.stderr) = (None, None);
            self.dead.push_back((worker.key, exit));
            let _ = write(&self.bell, b"!");
        }
    }
}

impl Processes for Rc<RefCell<Children>> {
    fn spawn(&mut self, worker: WorkerKey, _: &Pool, _: &Rlimit) -> io::Result<Spawned> {
        let mut children = self.borrow_mut();
        if !children.is_kind && children.random.one_in(6) {
            return Err(io::Error::from_raw_os_error(*children.random.pick(&[libc::EAGAIN, libc::EMFILE])));
        }
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (stdin_theirs, stdin) = pipe()?;
        let (stdout, stdout_theirs) = pipe()?;
        let (stderr, stderr_theirs) = pipe()?;
        children.next_pid += 1;
        let pid = children.next_pid;
        children.workers.push(Worker {
            key: worker,
            stdin: stdin_theirs,
            stdout: Some(stdout_theirs),
            stderr: Some(stderr_theirs),
            came: Vec::new(),
            goes: VecDeque::new(),
            is_dead: false,
        });
        Ok(Spawned { pid, stdin, stdout, stderr })
    }

    fn signal(&mut self, worker: WorkerKey, signal: Signal) {
        let mut children = self.borrow_mut();
        let found = children.workers.iter().position(|known| known.key == worker && !known.is_dead);
        let Some(at) = found else { return };
        let ignores = signal == Signal::Terminate && children.random.one_in(3);
        if !ignores {
            children.ends(at, Exit::Signal(if signal == Signal::Kill { libc::SIGKILL } else { libc::SIGTERM }));
        }
    }

    fn next_dead(&mut self) -> Option<(Option<WorkerKey>, Exit)> {
        self.borrow_mut().dead.pop_front().map(|(worker, exit)| (Some(worker), exit))
    }

    fn kill_the_rest(&mut self) -> Vec<u32> {
        let mut children = self.borrow_mut();
        assert!(children.workers.iter().all(|worker| worker.is_dead), "a worker outlives its daemon");
        children.dead.clear();
        Vec::new()
    }
}

struct Client {
    name: usize,
    socket: Option<OwnedFd>,
    todo: VecDeque<u8>,
    came: Vec<u8>,
    /// What it has asked and nobody has answered.
    asked: HashMap<u64, usize>,
    next: u64,
    answers: usize,
    is_over: bool,
}

impl Client {
    fn ask(&mut self, random: &mut Random) {
        let size = *random.pick(&[0, 10, 200, 3000, 20_000, 90_000]);
        let text = "x".repeat(random.range(0..size + 1));
        let id = self.next;
        self.next += 1;
        self.asked.insert(id, text.len());
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": "m", "params": { "who": self.name, "text": text } });
        self.todo.extend(line.to_string().bytes().chain([b'\n']));
    }

    fn check(&mut self) {
        for line in lines(&mut self.came) {
            let Some(id) = line["id"].as_u64() else {
                assert!(line["error"].is_object(), "{line}");
                continue;
            };
            let length = self.asked.remove(&id).unwrap_or_else(|| panic!("{} was not asked: {line}", self.name));
            self.answers += 1;
            if line["error"].is_null() {
                assert_eq!(line["result"]["who"], self.name, "an answer went to another client");
                assert_eq!(line["result"]["text"].as_str().map(str::len), Some(length));
            }
        }
    }
}

struct Simulation {
    random: Random,
    shell: Shell<Kernel>,
    wires: Rc<RefCell<Wires>>,
    children: Rc<RefCell<Children>>,
    door: i32,
    stop: UnixStream,
    clients: Vec<Client>,
}

fn config() -> Config {
    let program = std::env::current_exe().expect("a test runs");
    let text = json!({
        "pools": [{ "id": "p", "command": program, "args": [], "instances": 3 }],
        "limits": { "max_output_queue": 65536, "max_restarts": 1000, "drain_timeout_sec": 5 },
    });
    Config::from_bytes(text.to_string().as_bytes(), "a seed").expect("it is valid")
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let wires = Rc::new(RefCell::new(Wires::default()));
        let pair = || {
            let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
            ours.set_nonblocking(true).and(theirs.set_nonblocking(true)).expect("it is a socket");
            (ours, theirs)
        };
        let ((children_ours, bell), (stop_ours, stop)) = (pair(), pair());
        let children = Rc::new(RefCell::new(Children {
            random: Random::new(seed ^ 0x5eed),
            workers: Vec::new(),
            dead: VecDeque::new(),
            bell,
            next_pid: 1000,
            is_kind: false,
        }));
        let socket: OwnedFd = pair().0.into();
        let door = socket.as_raw_fd();
        let acceptor = Acceptor::new(Listening::nowhere(socket, "a seed"));
        let signals = Signals { children: children_ours.into(), stop: stop_ours.into() };
        let kernel = Kernel::new(seed, Rc::clone(&wires));
        let limit = getrlimit(Resource::Nofile);
        let mut config = config();
        config.listeners = vec![Listener::open(Listen::Tcp { host: "a seed".to_owned(), port: 0 })];
        let mut shell = Shell::new(config, kernel, Box::new(Rc::clone(&children)), signals, vec![acceptor], limit);
        shell.open_doors(None);
        Self { random: Random::new(seed ^ 0xc11e), shell, wires, children, door, stop, clients: Vec::new() }
    }

    fn connects(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        ours.set_nonblocking(true).expect("it is a socket");
        self.wires.borrow_mut().connecting.entry(self.door).or_default().push_back(theirs.into());
        self.clients.push(Client {
            name: self.clients.len(),
            socket: Some(ours.into()),
            todo: VecDeque::new(),
            came: Vec::new(),
            asked: HashMap::new(),
            next: 0,
            answers: 0,
            is_over: false,
        });
    }

    /// A worker reads, answers and writes a little, or dies.
    fn worker_acts(&mut self, may_die: bool) -> bool {
        let mut children = self.children.borrow_mut();
        let alive: Vec<usize> = (0..children.workers.len()).filter(|at| !children.workers[*at].is_dead).collect();
        if alive.is_empty() {
            return false;
        }
        let at = *self.random.pick(&alive);
        if may_die && self.random.one_in(150) {
            children.ends(at, Exit::Code(3));
            return true;
        }
        let (most_in, most_out) = (self.random.range(1..70_000), self.random.range(1..70_000));
        let worker = &mut children.workers[at];
        let (mut moved, ended) = pull(&worker.stdin, &mut worker.came, most_in);
        for line in lines(&mut worker.came) {
            if let (Some(stderr), true) = (&worker.stderr, self.random.one_in(10)) {
                let _ = write(stderr, b"working\nstill ");
            }
            let answer = json!({ "jsonrpc": "2.0", "id": line["id"], "result": line["params"] });
            worker.goes.extend(answer.to_string().bytes().chain([b'\n']));
        }
        if let Some(stdout) = &worker.stdout {
            moved |= push(stdout, &mut worker.goes, most_out);
        }
        if ended && worker.goes.is_empty() {
            children.ends(at, Exit::Code(0));
            moved = true;
        }
        moved
    }

    fn client_acts(&mut self, asks: bool) -> bool {
        if self.clients.is_empty() {
            return false;
        }
        let at = self.random.range(0..self.clients.len());
        let client = &mut self.clients[at];
        let Some(socket) = &client.socket else { return false };
        let mut moved = false;
        let what = self.random.range(0..10);
        if what < 4 {
            let most = self.random.range(1..100_000);
            let (came, ended) = pull(socket, &mut client.came, most);
            moved = came;
            client.check();
            if ended {
                client.socket = None;
                client.is_over = true;
                return true;
            }
        } else if what < 8 {
            let most = self.random.range(1..100_000);
            moved = push(socket, &mut client.todo, most);
        } else if asks && client.todo.len() < 300_000 {
            client.ask(&mut self.random);
            moved = true;
        } else if asks && self.random.one_in(60) {
            client.socket = None;
            client.is_over = true;
            moved = true;
        }
        moved
    }

    /// Until `over` says so, with a limit.
    fn runs(&mut self, what: &str, asks: bool, mut over: impl FnMut(&mut Self) -> bool) {
        for _ in 0..LAST_TURN {
            let mut moved = false;
            for _ in 0..self.random.range(0..6) {
                moved |= self.worker_acts(asks);
                moved |= self.client_acts(asks);
            }
            self.wires.borrow_mut().is_quiet = !moved && !asks;
            if self.shell.turn().expect("it goes on") || over(self) {
                return;
            }
        }
        panic!("it hangs: {what}; {} operations in flight", self.shell.hands.io.in_flight());
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
        self.wires.borrow_mut().is_kind = true;
        self.children.borrow_mut().is_kind = true;
        self.runs("answers", false, |simulation| {
            simulation.clients.iter().all(|client| client.is_over || client.asked.is_empty() && client.todo.is_empty())
        });
        let waits: Vec<_> = self.clients.iter().filter(|client| !client.is_over && !client.asked.is_empty()).collect();
        assert!(waits.is_empty(), "{} clients wait for ever", waits.len());
        let _ = write(&self.stop, b"!");
        self.runs("the end", false, |_| false);
        assert!(self.shell.hands.done);
        self.shell.finish();
        assert_eq!((self.shell.hands.connections.len(), self.shell.hands.io.lent()), (0, 0), "something is left");
        let Self { shell, clients, children, .. } = self;
        drop(shell);
        for mut client in clients {
            let Some(socket) = client.socket.take() else { continue };
            while let (true, _) = pull(&socket, &mut client.came, 1 << 16) {}
            assert!(pull(&socket, &mut client.came, 1).1, "a connection is still open");
        }
        for worker in &children.borrow().workers {
            let mut rest = Vec::new();
            while let (true, _) = pull(&worker.stdin, &mut rest, 1 << 16) {}
            assert!(pull(&worker.stdin, &mut rest, 1).1, "a worker's stdin is still open");
        }
    }
}

/// Turns of the loop before the kernel becomes kind, at most.
const STEPS: usize = 1500;

/// Tells how to repeat a seed that fails.
struct Repeat {
    seed: u64,
    steps: usize,
}

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, steps } = self;
            eprintln!(
                "repeat it: STDIO_BUS_SHELL_SEED={seed} STDIO_BUS_SHELL_STEPS={steps} cargo test --lib shell::simulation"
            );
        }
    }
}

#[test]
fn every_request_is_answered_and_everything_is_closed_whatever_the_kernel_does() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let seed = number("STDIO_BUS_SHELL_SEED");
    let seeds = number("STDIO_BUS_SHELL_SEEDS").unwrap_or(if seed.is_some() { 1 } else { 256 });
    let steps = number("STDIO_BUS_SHELL_STEPS").map_or(STEPS, |steps| steps as usize);
    let first = seed.unwrap_or(1);
    for seed in first..first + seeds {
        shrink::run(steps, |steps| {
            let _repeat = Repeat { seed, steps };
            Simulation::new(seed).lives(steps);
        });
    }
}
