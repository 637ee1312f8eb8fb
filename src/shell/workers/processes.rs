//! What the shell needs of the system for its worker processes. The reaper does it; in tests a simulation.

use std::io;

use rustix::process::Rlimit;

use super::starter::Started;
use super::usage::{self, Usage};
use crate::bus::port::{Exit, Signal, WorkerKey};
use crate::config::Pool;

/// Starts, signals and reaps worker processes.
pub(crate) trait Processes {
    /// Begins to start one worker of a pool, with `limit` as its limit of open files. The pipe of dead children has a byte
    /// once the result is there.
    ///
    /// # Errors
    /// Where it cannot even be begun.
    fn begin(&mut self, worker: WorkerKey, pool: &Pool, limit: &Rlimit) -> io::Result<()>;

    /// What became of a start that was begun, if that is known.
    fn next_started(&mut self) -> Option<Started>;

    /// Signals the process group of a worker that was not reaped yet.
    fn signal(&mut self, worker: WorkerKey, signal: Signal);

    /// Reaps one child. The worker is named if it was one; none when nobody else is dead.
    fn next_dead(&mut self) -> Option<(Option<WorkerKey>, Exit)>;

    /// What the kernel counts of our own process.
    fn usage(&self) -> Usage {
        Usage::own()
    }

    /// Bytes of memory that a worker process has, if it is there.
    fn resident(&self, process: u32) -> Option<u64> {
        usage::resident(process)
    }

    /// Kills and reaps the processes that are left at the end: workers that did not end in time, and processes that left their
    /// worker's group. Returns the process ids.
    fn kill_the_rest(&mut self) -> Vec<u32>;
}
