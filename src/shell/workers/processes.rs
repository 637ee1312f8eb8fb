//! The process operations that the shell needs. The reaper implements them; in tests a simulation.

use std::io;

use rustix::process::Rlimit;

use super::client_env::ClientEnv;
use super::starter::Started;
use super::usage::{self, Usage};
use crate::bus::port::{Exit, Signal, WorkerKey};
use crate::config::PoolConfig;

/// Starts, signals and reaps worker processes.
pub(crate) trait Processes {
    /// Begins to start a worker of a pool, with `limit` as its limit of open files, and the variables of its client. The pipe
    /// for dead children becomes readable once the result is there.
    ///
    /// # Errors
    /// It cannot be begun.
    fn begin(&mut self, worker: WorkerKey, pool: &PoolConfig, own: Option<ClientEnv>, limit: &Rlimit)
    -> io::Result<()>;

    /// Workers get what is their clients' own from now on: we write no core dump that it could be in, nor do they.
    fn keep_secrets(&mut self) {}

    /// The result of a start, if there is one.
    fn next_started(&mut self) -> Option<Started>;

    /// Signals the process group of a worker that was not reaped yet.
    fn signal(&mut self, worker: WorkerKey, signal: Signal);

    /// Reaps one child, and returns its worker if it was one; none when there are no more.
    fn next_dead(&mut self) -> Option<(Option<WorkerKey>, Exit)>;

    /// The kernel's counters of our own process.
    fn usage(&self) -> Usage {
        Usage::own()
    }

    /// The memory of a worker process in bytes, if it exists.
    fn resident(&self, process: u32) -> Option<u64> {
        usage::resident(process)
    }

    /// Kills and reaps the remaining processes at the end: workers that did not end in time, and processes that left
    /// their worker's group. Returns the process ids.
    fn kill_the_rest(&mut self) -> Vec<u32>;
}
