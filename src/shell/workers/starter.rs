//! Starts workers on separate threads. A thread waits for each exec, which on a busy machine takes as long as the scheduler
//! lets it, while the loop does not wait. Each worker user has threads of their own, so that a user who delays a child of
//! theirs, or its exec, delays no other user's workers. A user has several, so that many starts at once use all CPUs.
//!
//! The threads live as long as the process: a child is notified of the death of the thread that created it (PDEATHSIG,
//! prctl(2)).

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::spawn::{SpawnError, SpawnJob, Spawned};
use crate::bus::port::WorkerKey;
use crate::shell::loop_handle::LoopHandle;

/// The result of a start.
pub(crate) type Started<Key = WorkerKey> = (Key, Result<Spawned, SpawnError>);

/// How many workers of one user may be started at the same time.
const MOST_THREADS: usize = 4;

/// The threads that start the workers of one user. `Key` names a start in its result.
pub(crate) struct Starter<Key = WorkerKey> {
    jobs: Sender<(Key, SpawnJob)>,
    /// The other end, for the next thread.
    queue: Arc<Mutex<Receiver<(Key, SpawnJob)>>>,
    results: Receiver<Started<Key>>,
    /// The other end, for the next thread.
    done: Sender<Started<Key>>,
    /// For each thread the process that it is starting, until its result is there.
    pids: Vec<Arc<AtomicI32>>,
    /// Starts whose results were not taken.
    pub under_way: usize,
}

impl<Key: Send + 'static> Starter<Key> {
    pub(super) fn new() -> Self {
        let (jobs, queue) = channel();
        let (done, results) = channel();
        Self { jobs, queue: Arc::new(Mutex::new(queue)), results, done, pids: Vec::new(), under_way: 0 }
    }

    /// Queues the start of a worker, on one more thread if all are busy and there may be more. A thread wakes the loop after
    /// each start.
    ///
    /// # Errors
    /// There is no thread, and none can be created.
    pub(crate) fn begin(&mut self, worker: Key, job: SpawnJob, loop_handle: &LoopHandle) -> io::Result<()> {
        let are_busy = self.under_way >= self.pids.len();
        if are_busy && self.pids.len() < MOST_THREADS {
            match self.add_thread(loop_handle) {
                Err(error) if self.pids.is_empty() => return Err(error),
                // Those that are there start this one later.
                Err(_) | Ok(()) => {}
            }
        }
        self.jobs.send((worker, job)).map_err(|_| io::Error::from_raw_os_error(libc::EAGAIN))?;
        self.under_way += 1;
        Ok(())
    }

    fn add_thread(&mut self, loop_handle: &LoopHandle) -> io::Result<()> {
        let (queue, done) = (Arc::clone(&self.queue), self.done.clone());
        let pid = Arc::new(AtomicI32::new(0));
        let started = Arc::clone(&pid);
        loop_handle.spawn("starter", move |loop_handle| {
            loop {
                // One thread waits for the next job, the others wait for that thread.
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((worker, job)) = next else { return };
                if done.send((worker, job.start(&started))).is_err() {
                    return;
                }
                // The number may be another process's once this one was reaped.
                started.store(0, Ordering::Release);
                loop_handle.wake();
            }
        })?;
        self.pids.push(pid);
        Ok(())
    }

    /// The result of a start, if one comes in this time.
    pub(crate) fn take(&mut self, patience: Duration) -> Option<Started<Key>> {
        let started = self.results.recv_timeout(patience).ok()?;
        self.under_way -= 1;
        Some(started)
    }

    /// Whether this is the process of a start whose result may not have been taken. Results taken after this call include all
    /// processes started before it.
    pub(crate) fn may_be_starting(&self, pid: i32) -> bool {
        self.pids.iter().any(|started| started.load(Ordering::Acquire) == pid)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use rustix::process::{Pid, Resource, WaitOptions, getrlimit, waitpid};

    use super::*;
    use crate::config::Config;
    use crate::shell::workers::spawn::SpawnTerms;

    /// A start ends in this time, or the test has found one that hangs.
    const LONGEST: Duration = Duration::from_secs(60);

    /// A job that runs a program which ends at once.
    fn job() -> SpawnJob {
        let pool = Config::embedded(Path::new("/bin/true")).pools.remove(0);
        let descriptors = &getrlimit(Resource::Nofile);
        let terms = SpawnTerms { descriptors, core: None, memory_score: None, has_large_pipes: false };
        SpawnJob::new(&pool, None, terms).expect("no zero bytes")
    }

    #[test]
    fn starts_at_once_have_several_threads_and_each_has_its_result() {
        let _starting = crate::testing::STARTS.write();
        let (bell, _loop) = UnixStream::pair().expect("there are descriptors");
        let (loop_handle, _messages) = LoopHandle::new(bell.into());
        let mut starter = Starter::new();
        for number in 0..2 * MOST_THREADS {
            starter.begin(number, job(), &loop_handle).expect("there are threads");
        }
        assert_eq!(starter.pids.len(), MOST_THREADS);
        let take = |_| starter.take(LONGEST).expect("a start ends");
        let started: Vec<Started<usize>> = (0..2 * MOST_THREADS).map(take).collect();
        let numbers: BTreeSet<usize> = started.iter().map(|(number, _)| *number).collect();
        assert!(numbers.into_iter().eq(0..2 * MOST_THREADS), "each start has one result");
        assert_eq!(starter.under_way, 0);
        let pid_of = |(_, result): Started<usize>| result.expect("it is a program").pid.cast_signed();
        let pids: Vec<i32> = started.into_iter().map(pid_of).collect();
        for pid in pids {
            waitpid(Pid::from_raw(pid), WaitOptions::empty()).expect("it is our child");
        }
    }
}
