//! Reads and writes of what cannot be asked not to wait, a terminal or a file: threads do them, so that the loop goes on
//! whatever becomes of them. There is one thread, and another one while that is held up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::result::result_of;
use crate::channel::{Receiver, Sender, channel};

/// What such a thread needs is little.
const STACK: usize = 64 * 1024;
/// One for stdin, one for stdout and one for stderr: each has one operation at a time.
const MOST: usize = 3;

/// What is to be done.
#[derive(Clone, Copy)]
pub(super) enum Task {
    /// read(2).
    Read {
        /// A file or a terminal.
        from: RawFd,
        /// Where to.
        into: *mut u8,
        /// How much fits.
        bytes: usize,
    },
    /// write(2).
    Write {
        /// A file or a terminal.
        to: RawFd,
        /// From where.
        from: *const u8,
        /// How much.
        bytes: usize,
    },
}

/// A task with its token. It is sent to the thread with the promise that the memory stays until the result has come back.
struct Job(u64, Task);

// SAFETY: nobody else touches or frees the memory while the job is on its way, as [`Aside::begin`] demands.
unsafe impl Send for Job {}

/// What became of a task, and by which thread.
struct Done {
    token: u64,
    result: i32,
    thread: usize,
}

struct Thread {
    jobs: Sender<Job>,
    /// Jobs that it was given and has not told the end of.
    busy: usize,
}

/// See the top of the file.
pub(super) struct Aside {
    /// Readable when a task has ended.
    wakes: Arc<OwnedFd>,
    threads: Vec<Thread>,
    results: Receiver<Done>,
    tell: Sender<Done>,
}

impl Aside {
    /// Without a thread yet.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(super) fn new() -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (tell, results) = channel();
        Ok(Self { wakes: Arc::new(wakes), threads: Vec::new(), results, tell })
    }

    /// Readable when [`Aside::finished`] has something to tell.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Makes a thread while there is room for it among the processes that we may have. One serves several descriptors
    /// while none of them holds it up, as it is with the ring.
    pub(super) fn prepare(&mut self) {
        if self.threads.is_empty() {
            // What fails here fails again when it is needed, and is told then.
            let _ = self.make_thread();
        }
    }

    /// Hands a task over.
    ///
    /// # Safety
    /// The memory stays as it is until [`Aside::finished`] has told the result.
    ///
    /// # Errors
    /// There is no thread, and none can be made.
    pub(super) unsafe fn begin(&mut self, token: u64, task: Task) -> io::Result<()> {
        let idle = self.threads.iter().position(|thread| thread.busy == 0);
        let number = match idle {
            Some(number) => number,
            None => match if self.threads.len() < MOST { self.make_thread() } else { Ok(()) } {
                Ok(()) => self.threads.len() - 1,
                // It waits for its turn.
                Err(_) if !self.threads.is_empty() => 0,
                Err(error) => return Err(error),
            },
        };
        let thread = &mut self.threads[number];
        thread.busy += 1;
        thread.jobs.send(Job(token, task)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Tells the tokens and results of all tasks that have ended.
    pub(super) fn finished(&mut self, mut tell: impl FnMut(u64, i32)) {
        // Read before the results are looked at: whoever comes later wakes us again.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        for Done { token, result, thread } in self.results.try_iter() {
            self.threads[thread].busy -= 1;
            tell(token, result);
        }
    }

    fn make_thread(&mut self) -> io::Result<()> {
        let (sender, jobs) = channel();
        let (number, tell, wakes) = (self.threads.len(), self.tell.clone(), Arc::clone(&self.wakes));
        let thread = std::thread::Builder::new().name("aside".to_owned()).stack_size(STACK);
        thread.spawn(move || serve(number, &jobs, &tell, &wakes))?;
        self.threads.push(Thread { jobs: sender, busy: 0 });
        Ok(())
    }
}

/// Signals are for the loop, and not for the thread that calls this.
pub(crate) fn leave_signals_to_the_loop() {
    // SAFETY: the set is made before it is used, and lives until the call returns.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// Does the tasks that are sent, one after the other, until nobody sends any more.
fn serve(thread: usize, jobs: &Receiver<Job>, tell: &Sender<Done>, wakes: &OwnedFd) {
    leave_signals_to_the_loop();
    for Job(token, task) in jobs.iter() {
        // SAFETY: the memory stays until the result is told.
        let moved = unsafe {
            match task {
                Task::Read { from, into, bytes } => libc::read(from, into.cast(), bytes),
                Task::Write { to, from, bytes } => libc::write(to, from.cast(), bytes),
            }
        };
        let told = tell.send(Done { token, result: result_of(moved), thread });
        if told.is_err() || rustix::io::write(wakes, &1u64.to_ne_bytes()).is_err() {
            return;
        }
    }
}
