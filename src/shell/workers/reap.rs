//! Reaps the dead and signals the living. A process group is signalled only while its leader is not reaped yet: after
//! that its number may belong to somebody else.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Rlimit;

use super::Processes;
use super::spawn::{Spawned, spawn};
use crate::bus::port::{Exit, Signal, WorkerKey};
use crate::config::Pool;

/// How long killed processes may take to die at the end.
const LAST_DEATHS: Duration = Duration::from_secs(1);

/// Who our children are.
pub struct Reaper {
    /// Children that this process had before it became the daemon, by exec from a shell: none of our business.
    inherited: Vec<u32>,
    workers: HashMap<u32, WorkerKey>,
}

impl Reaper {
    /// To be called before the first worker is started.
    pub fn new() -> Self {
        // SAFETY: the call sets an attribute of this process: orphans of workers become our children and can be
        // reaped (prctl(2)). Where it fails, they go to init as everywhere.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Self { inherited: children(), workers: HashMap::new() }
    }
}

impl Processes for Reaper {
    fn spawn(&mut self, worker: WorkerKey, pool: &Pool, limit: &Rlimit) -> io::Result<Spawned> {
        let spawned = spawn(pool, limit)?;
        self.workers.insert(spawned.pid, worker);
        Ok(spawned)
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
        let worker = self.workers.remove(&(pid as u32));
        if worker.is_some() {
            // It was only looked at so far, so the group's number is still its own: what it left behind ends too.
            // SAFETY: signals take no memory.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: the status lives during the call.
        if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != pid {
            return None;
        }
        let exit = if libc::WIFSIGNALED(status) {
            Exit::Signal(libc::WTERMSIG(status))
        } else {
            Exit::Code(libc::WEXITSTATUS(status))
        };
        Some((worker, exit))
    }

    fn signal(&mut self, worker: WorkerKey, signal: Signal) {
        let Some((pid, _)) = self.workers.iter().find(|(_, known)| **known == worker) else { return };
        let group = -(*pid as libc::pid_t);
        // SAFETY: signals take no memory.
        unsafe {
            match signal {
                Signal::Terminate => {
                    libc::kill(group, libc::SIGTERM);
                    // A stopped process sees SIGTERM only once it goes on.
                    libc::kill(group, libc::SIGCONT);
                }
                Signal::Kill => {
                    libc::kill(group, libc::SIGKILL);
                }
            }
        }
    }

    fn kill_the_rest(&mut self) -> Vec<u32> {
        let until = Instant::now() + LAST_DEATHS;
        let mut killed = Vec::new();
        loop {
            while self.next_dead().is_some() {}
            let left: Vec<u32> = children().into_iter().filter(|child| !self.inherited.contains(child)).collect();
            if left.is_empty() || Instant::now() >= until {
                return killed;
            }
            for child in left {
                if !killed.contains(&child) {
                    killed.push(child);
                }
                // SAFETY: signals take no memory; the child is ours and not reaped.
                unsafe { libc::kill(child as libc::pid_t, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Our children by /proc; none where the kernel does not tell (CONFIG_PROC_CHILDREN).
fn children() -> Vec<u32> {
    let path = format!("/proc/self/task/{}/children", std::process::id());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
