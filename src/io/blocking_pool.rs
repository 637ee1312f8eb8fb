//! Blocking reads and writes (terminals and files, which have no non-blocking mode) on helper threads, so that they
//! never block the loop. There is one thread, and another is added while the first is blocked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use super::result::result_of;

/// These threads need little stack.
const STACK: usize = 64 * 1024;
/// The maximum number of threads: one each for stdin, stdout and stderr, which have one operation at a time.
const MOST: usize = 3;

/// A blocking operation.
#[derive(Clone, Copy)]
pub(super) enum Task {
    /// read(2).
    Read {
        /// A file or a terminal.
        from: RawFd,
        /// The buffer to read into.
        into: *mut u8,
        /// Its capacity.
        bytes: usize,
    },
    /// write(2).
    Write {
        /// A file or a terminal.
        to: RawFd,
        /// The bytes to write.
        from: *const u8,
        /// Their number.
        bytes: usize,
    },
}

/// A task with its token. The sender guarantees that the memory stays valid until the result is back.
struct Job(u64, Task);

// SAFETY: nothing else touches or frees the memory while the job is in flight, as [`BlockingPool::begin`] requires.
unsafe impl Send for Job {}

/// The result of a task, and the thread that ran it.
struct Done {
    token: u64,
    result: i32,
    thread: usize,
}

struct Thread {
    jobs: Sender<Job>,
    /// Jobs given to the thread whose results have not been collected.
    busy: usize,
}

pub(super) struct BlockingPool {
    /// Readable when a task has finished.
    wakes: Arc<OwnedFd>,
    threads: Vec<Thread>,
    results: Receiver<Done>,
    done: Sender<Done>,
}

impl BlockingPool {
    /// Starts without any thread.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(super) fn new() -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (done, results) = channel();
        Ok(Self { wakes: Arc::new(wakes), threads: Vec::new(), results, done })
    }

    /// Readable when [`BlockingPool::finished`] has results to report.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Starts a thread while the process limit has room for one. One thread serves several descriptors as long as none
    /// of them blocks it, as with the ring.
    pub(super) fn prepare(&mut self) {
        if self.threads.is_empty() {
            // A failure here recurs when the thread is needed, and is reported then.
            let _ = self.make_thread();
        }
    }

    /// Hands over a task.
    ///
    /// # Safety
    /// The memory stays valid until [`BlockingPool::finished`] has reported the result.
    ///
    /// # Errors
    /// There is no thread, and none can be started.
    pub(super) unsafe fn begin(&mut self, token: u64, task: Task) -> io::Result<()> {
        let idle = self.threads.iter().position(|thread| thread.busy == 0);
        let number = match idle {
            Some(number) => number,
            None => match if self.threads.len() < MOST { self.make_thread() } else { Ok(()) } {
                Ok(()) => self.threads.len() - 1,
                // The task is queued behind a busy thread.
                Err(_) if !self.threads.is_empty() => 0,
                Err(error) => return Err(error),
            },
        };
        let thread = &mut self.threads[number];
        thread.busy += 1;
        thread.jobs.send(Job(token, task)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Reports the tokens and results of all finished tasks.
    pub(super) fn finished(&mut self, mut report: impl FnMut(u64, i32)) {
        // Drained before the results are collected: a later result wakes us again.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        for Done { token, result, thread } in self.results.try_iter() {
            self.threads[thread].busy -= 1;
            report(token, result);
        }
    }

    fn make_thread(&mut self) -> io::Result<()> {
        let (sender, jobs) = channel();
        let (number, done, wakes) = (self.threads.len(), self.done.clone(), Arc::clone(&self.wakes));
        let thread = std::thread::Builder::new().name("aside".to_owned()).stack_size(STACK);
        thread.spawn(move || serve(number, &jobs, &done, &wakes))?;
        self.threads.push(Thread { jobs: sender, busy: 0 });
        Ok(())
    }
}

/// Blocks all signals in the calling thread: only the loop handles them.
pub(crate) fn leave_signals_to_the_loop() {
    // SAFETY: the set is initialized before it is used, and lives until the call returns.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// Runs the tasks in order until the channel is closed.
fn serve(thread: usize, jobs: &Receiver<Job>, done: &Sender<Done>, wakes: &OwnedFd) {
    leave_signals_to_the_loop();
    for Job(token, task) in jobs.iter() {
        // SAFETY: the memory stays valid until the result is reported.
        let moved = unsafe {
            match task {
                Task::Read { from, into, bytes } => libc::read(from, into.cast(), bytes),
                Task::Write { to, from, bytes } => libc::write(to, from.cast(), bytes),
            }
        };
        let sent = done.send(Done { token, result: result_of(moved), thread });
        if sent.is_err() || rustix::io::write(wakes, &1u64.to_ne_bytes()).is_err() {
            return;
        }
    }
}
