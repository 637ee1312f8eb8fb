//! Reaps dead processes and signals live ones. A process group is signalled only until its leader is reaped: after that
//! its number may be reused.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, WaitOptions, getpid, getrlimit, kill_process, kill_process_group, set_child_subreaper,
    setrlimit, waitpid,
};

use super::client_env::ClientEnv;
use super::processes::Processes;
use super::spawn::{SpawnJob, SpawnTerms, memory_score, most_large_pipes};
use super::starter::{Started, Starter};
use super::usage::children;
use crate::bus::port::{Exit, Signal, WorkerKey};
use crate::cgroup;
use crate::config::PoolConfig;
use crate::shell::loop_handle::LoopHandle;

/// How long to wait at the end for the results of starts, before all that are left are killed.
const LAST_STARTS: Duration = Duration::from_millis(500);
/// How long to wait at the end for killed processes to die.
const LAST_DEATHS: Duration = Duration::from_secs(1);

/// Our children.
pub(crate) struct Reaper {
    /// Children that this process had before it became the daemon, by exec from a shell: not our concern.
    inherited: Vec<u32>,
    /// The processes of workers.
    workers: BTreeMap<WorkerKey, Pid>,
    /// Starts the threads that start workers.
    loop_handle: LoopHandle,
    /// The threads that start workers, by the workers' user if that is not ours.
    starters: HashMap<Option<u32>, Starter>,
    /// The OOM kill counter at the last check.
    memory_kills: Option<u64>,
    /// The oom_score_adj of workers.
    memory_score: Option<String>,
    /// The limit of core dumps that we had, once ours is another one.
    core: Option<Rlimit>,
    /// Results that were not taken yet.
    started: VecDeque<Started>,
    /// How many workers may have large pipes, if that is limited, and whether that was logged.
    most_large_pipes: Option<usize>,
    has_logged_pipes: bool,
}

impl Reaper {
    /// Must be called before the first worker is started.
    pub(crate) fn new(loop_handle: LoopHandle) -> Self {
        // Workers' orphans become our children and can be reaped (prctl(2)). If this fails, they go to init as usual.
        let _ = set_child_subreaper(Some(getpid()));
        Self {
            inherited: children("self"),
            workers: BTreeMap::new(),
            loop_handle,
            starters: HashMap::new(),
            memory_kills: cgroup::memory_kills(),
            memory_score: memory_score(),
            core: None,
            started: VecDeque::new(),
            most_large_pipes: most_large_pipes(),
            has_logged_pipes: false,
        }
    }

    /// Whether the OOM killer has killed a process of our control group since the last check.
    fn was_killed_for_memory(&mut self) -> bool {
        let kills = cgroup::memory_kills();
        std::mem::replace(&mut self.memory_kills, kills) < kills
    }

    /// Whether another worker may have large pipes. That it may not is logged once.
    fn may_have_large_pipes(&mut self) -> bool {
        let Some(most) = self.most_large_pipes else { return true };
        let workers = self.workers.len() + self.starters.values().map(|starter| starter.under_way).sum::<usize>();
        if workers < most {
            return true;
        }
        if !std::mem::replace(&mut self.has_logged_pipes, true) {
            tracing::info!(
                "with more than {most} workers, further ones get pipes of 64 KiB instead of 256: the user of the daemon \
                 may have only so much memory in pipes, and the workers' own children need some of it; \
                 fs.pipe-user-pages-soft (sysctl) raises it"
            );
        }
        false
    }

    /// Collects the results of finished starts.
    fn take_started(&mut self) {
        let taken: Vec<Started> = self
            .starters
            .values_mut()
            .flat_map(|starter| std::iter::from_fn(|| starter.take(Duration::ZERO)))
            .collect();
        taken.into_iter().for_each(|started| self.note(started));
    }

    fn note(&mut self, (worker, result): Started) {
        if let Ok(spawned) = &result
            && let Some(pid) = Pid::from_raw(spawned.pid as i32)
        {
            self.workers.insert(worker, pid);
        }
        self.started.push_back((worker, result));
    }

    /// The worker of a process.
    fn worker_of(&self, pid: Pid) -> Option<WorkerKey> {
        self.workers.iter().find(|(_, known)| **known == pid).map(|(worker, _)| *worker)
    }

    /// Whether this process may be a worker that is being started: its exit belongs to a pending result.
    fn is_being_started(&mut self, process: Pid) -> bool {
        let pid = process.as_raw_nonzero().get();
        let starting = self.starters.iter().filter(|(_, starter)| starter.may_be_starting(pid));
        let users: Vec<Option<u32>> = starting.map(|(user, _)| *user).collect();
        // If its thread has gone on since, its result is there.
        self.take_started();
        self.worker_of(process).is_none() && users.iter().any(|user| self.starters[user].under_way > 0)
    }
}

impl Processes for Reaper {
    fn begin(
        &mut self,
        worker: WorkerKey,
        pool: &PoolConfig,
        own: Option<ClientEnv>,
        limit: &Rlimit,
    ) -> io::Result<()> {
        let has_large_pipes = self.may_have_large_pipes();
        // A worker with secrets of its client dumps nothing, as we do.
        let core = self.core.filter(|_| own.is_none());
        let terms = SpawnTerms { descriptors: limit, core, memory_score: self.memory_score.clone(), has_large_pipes };
        let job = SpawnJob::new(pool, own, terms)?;
        let user = pool.rights.identity.as_ref().map(|identity| identity.user);
        self.starters.entry(user).or_insert_with(Starter::new).begin(worker, job, &self.loop_handle)
    }

    fn keep_secrets(&mut self) {
        if self.core.is_none() {
            let ours = getrlimit(Resource::Core);
            // With a limit of 1 nothing is written to a file, which is larger, and nothing passed to a program (core(5)
            // names 0 for that, but then the program decides).
            match setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: ours.maximum }) {
                Ok(()) => self.core = Some(ours),
                // The limit is 0, and may not be raised: then there are no files either.
                Err(error) => tracing::debug!("the limit of core dumps stays: {error}"),
            }
        }
    }

    fn next_started(&mut self) -> Option<Started> {
        self.take_started();
        self.started.pop_front()
    }

    fn next_dead(&mut self) -> Option<(Option<WorkerKey>, Exit)> {
        // SAFETY: the structure is plain data that waitid fills.
        let pid = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, flags) != 0 || info.si_pid() == 0 {
                return None;
            }
            info.si_pid()
        };
        let pid = Pid::from_raw(pid)?;
        if self.worker_of(pid).is_none() && self.is_being_started(pid) {
            return None;
        }
        let worker = self.worker_of(pid);
        if let Some(worker) = worker {
            // It is not reaped yet, so the group's number is still its own: kill what it left behind.
            let _ = kill_process_group(pid, rustix::process::Signal::KILL);
            self.workers.remove(&worker);
        }
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
        let exit = match status.terminating_signal() {
            Some(libc::SIGKILL) if worker.is_some() && self.was_killed_for_memory() => Exit::OutOfMemory,
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.exit_status().unwrap_or_default()),
        };
        Some((worker, exit))
    }

    fn signal(&mut self, worker: WorkerKey, signal: Signal) {
        use rustix::process::Signal as Number;
        let Some(pid) = self.workers.get(&worker) else { return };
        let numbers: &[Number] = match signal {
            // A stopped process handles SIGTERM only once it is continued.
            Signal::Terminate => &[Number::TERM, Number::CONT],
            Signal::Kill => &[Number::KILL],
        };
        for number in numbers {
            // It may have just ended; then there is nothing to signal.
            let _ = kill_process_group(*pid, *number);
        }
    }

    fn kill_the_rest(&mut self) -> Vec<u32> {
        let until = Instant::now() + LAST_DEATHS;
        let results_until = Instant::now() + LAST_STARTS;
        let mut killed = Vec::new();
        // Earlier requests finish first, and their processes are killed.
        while let Some(starter) = self.starters.values_mut().find(|starter| starter.under_way > 0) {
            let left = results_until.saturating_duration_since(Instant::now());
            let Some(started) = starter.take(left) else { break };
            self.note(started);
        }
        loop {
            while self.next_dead().is_some() {}
            let left: Vec<u32> = children("self").into_iter().filter(|child| !self.inherited.contains(child)).collect();
            if left.is_empty() || Instant::now() >= until {
                return killed;
            }
            for child in left {
                if !killed.contains(&child) {
                    killed.push(child);
                }
                if let Some(child) = Pid::from_raw(child as i32) {
                    let _ = kill_process(child, rustix::process::Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
