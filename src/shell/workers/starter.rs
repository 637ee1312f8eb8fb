//! Starts workers one at a time on a separate thread: it waits for each exec, which on a busy machine takes as long as
//! the scheduler lets it, while the loop does not wait. Each worker user has a thread of its own: a user who delays a
//! child of theirs, or its exec, delays no other user's workers.
//!
//! The thread lives as long as the process: a child is notified of the death of the thread that created it (PDEATHSIG,
//! prctl(2)).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::spawn::{NotStarted, SpawnJob, Spawned};
use crate::bus::port::WorkerKey;
use crate::shell::loop_handle::LoopHandle;

/// The result of a start.
pub(crate) type Started = (WorkerKey, Result<Spawned, NotStarted>);

pub(crate) struct Starter {
    jobs: Sender<(WorkerKey, SpawnJob)>,
    results: Receiver<Started>,
    /// The process being started, or the last one.
    pid: Arc<AtomicI32>,
    /// Starts whose results were not taken.
    pub under_way: usize,
}

impl Starter {
    /// Starts the thread. It wakes the loop after each start.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(super) fn new(loop_handle: &LoopHandle) -> io::Result<Self> {
        let (jobs, todo) = channel::<(WorkerKey, SpawnJob)>();
        let (done, results) = channel();
        let pid = Arc::new(AtomicI32::new(0));
        let started = Arc::clone(&pid);
        loop_handle.spawn("starter", move |loop_handle| {
            for (worker, job) in todo.iter() {
                if done.send((worker, job.start(&started))).is_err() {
                    return;
                }
                loop_handle.wake();
            }
        })?;
        Ok(Self { jobs, results, pid, under_way: 0 })
    }

    /// Queues the start of a worker.
    pub(crate) fn begin(&mut self, worker: WorkerKey, job: SpawnJob) -> io::Result<()> {
        self.jobs.send((worker, job)).map_err(|_| io::Error::from_raw_os_error(libc::EAGAIN))?;
        self.under_way += 1;
        Ok(())
    }

    /// The result of a start, if one comes in this time.
    pub(crate) fn take(&mut self, patience: Duration) -> Option<Started> {
        let started = self.results.recv_timeout(patience).ok()?;
        self.under_way -= 1;
        Some(started)
    }

    /// The process of a start whose result may not have been taken. Results taken after this call include all processes
    /// started before it.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(Ordering::Acquire)
    }
}
