//! The workers of the simulation: processes that answer, write arbitrary lines, and die.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use rustix::io::write;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Rlimit;

use super::lines::{LONGEST_TEXT, Pulled, SimRequest, lines, number, pull, push, shown, token};
use crate::bus::port::{Exit, Signal, WorkerKey};
use crate::config::PoolConfig;
use crate::shell::workers::client_env::ClientEnv;
use crate::shell::workers::processes::Processes;
use crate::shell::workers::spawn::Spawned;
use crate::shell::workers::starter::Started;
use crate::shell::workers::usage::Usage;
use crate::testing::Random;

pub(super) struct SimWorker {
    pub(super) key: WorkerKey,
    /// The pool that it belongs to.
    pub(super) pool: String,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) came: Vec<u8>,
    pub(super) output: VecDeque<u8>,
    pub(super) is_dead: bool,
    /// The last request of each client.
    pub(super) last_seen: BTreeMap<usize, u64>,
    pub(super) answers: usize,
}

impl SimWorker {
    /// Answers a line, if it is an intact request. The worker has this number.
    pub(super) fn answer(&mut self, seed: u64, name: usize, line: &[u8]) {
        let id = token(line, "id").unwrap_or_else(|| panic!("a request has an id: {}", shown(line)));
        let request = || {
            let (who, number, length) = (number(line, "who")?, number(line, "number")?, number(line, "length")?);
            Some(SimRequest { seed, who, number, length })
        };
        let request = request().filter(|request| request.length <= LONGEST_TEXT);
        let request = request.unwrap_or_else(|| panic!("a request is whole: {}", shown(line)));
        assert!(line == request.question(id), "a worker got an unknown request: {request:?} {}", shown(line));
        let before = self.last_seen.insert(request.who, request.number);
        assert!(before.is_none_or(|before| before < request.number), "{request:?} comes behind {before:?}");
        self.output.extend(request.answer(id, name, self.answers));
        self.output.push_back(b'\n');
        self.answers += 1;
    }
}

/// The processes that the shell starts and signals.
pub(super) struct Children {
    pub(super) random: Random,
    pub(super) workers: Vec<SimWorker>,
    pub(super) dead: VecDeque<(WorkerKey, Exit)>,
    pub(super) started: VecDeque<Started>,
    /// Wakes the shell, as SIGCHLD would.
    pub(super) bell: UnixStream,
    pub(super) next_pid: u32,
    pub(super) is_kind: bool,
}

impl Children {
    /// A worker reads: what came of it, and the complete lines.
    pub(super) fn reads(&mut self, at: usize, most: usize) -> (Pulled, Vec<Vec<u8>>) {
        let worker = &mut self.workers[at];
        (pull(&worker.stdin, &mut worker.came, most), lines(&mut worker.came))
    }

    /// A worker writes, and ends if it has read and written everything. False if there was nothing to do.
    pub(super) fn writes(&mut self, at: usize, most: usize, pulled: Pulled) -> bool {
        let worker = &mut self.workers[at];
        let moved = worker.stdout.as_ref().is_some_and(|stdout| push(stdout, &mut worker.output, most) > 0);
        let is_over = pulled == Pulled::End && worker.output.is_empty();
        if is_over {
            self.ends(at, Exit::Code(0));
        }
        moved || is_over || pulled == Pulled::Something
    }

    pub(super) fn ends(&mut self, at: usize, exit: Exit) {
        let worker = &mut self.workers[at];
        if !std::mem::replace(&mut worker.is_dead, true) {
            (worker.stdout, worker.stderr) = (None, None);
            self.dead.push_back((worker.key, exit));
            let _ = write(&self.bell, b"!");
        }
    }

    pub(super) fn start(&mut self, worker: WorkerKey, pool: &str) -> io::Result<Spawned> {
        if !self.is_kind && self.random.one_in(6) {
            return Err(io::Error::from_raw_os_error(*self.random.pick(&[libc::EAGAIN, libc::EMFILE])));
        }
        let (stdin_theirs, stdin) = pipe()?;
        let (stdout, stdout_theirs) = pipe()?;
        let (stderr, stderr_theirs) = pipe()?;
        self.next_pid += 1;
        let pid = self.next_pid;
        self.workers.push(SimWorker {
            key: worker,
            pool: pool.to_owned(),
            stdin: stdin_theirs,
            stdout: Some(stdout_theirs),
            stderr: Some(stderr_theirs),
            came: Vec::new(),
            output: VecDeque::new(),
            is_dead: false,
            last_seen: BTreeMap::new(),
            answers: 0,
        });
        Ok(Spawned { pid, stdin, stdout, stderr })
    }
}

impl Processes for Rc<RefCell<Children>> {
    fn begin(&mut self, worker: WorkerKey, pool: &PoolConfig, _: Option<ClientEnv>, _: &Rlimit) -> io::Result<()> {
        let mut children = self.borrow_mut();
        if !children.is_kind && children.random.one_in(12) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let started = children.start(worker, &pool.core.id);
        children.started.push_back((worker, started.map_err(Into::into)));
        let _ = write(&children.bell, b"s");
        Ok(())
    }

    fn next_started(&mut self) -> Option<Started> {
        self.borrow_mut().started.pop_front()
    }

    // The same in each run of a seed.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn resident(&self, process: u32) -> Option<u64> {
        Some(u64::from(process))
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

/// A connected non-blocking pair that the simulation uses as a pipe.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(io::Error::from)
}
