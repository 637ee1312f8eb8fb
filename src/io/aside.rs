//! Writes to what cannot be asked not to wait, a terminal or a file: threads make them, so that the loop goes on whatever
//! becomes of them. There is one thread, and another one while that is held up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

/// What such a thread needs is little.
const STACK: usize = 64 * 1024;
/// One for stdout and one for stderr: each has one write at a time.
const MOST: usize = 2;

/// One write. It is sent to the thread with the promise that the memory stays until its result has come back.
struct Write {
    token: u64,
    to: RawFd,
    from: *const u8,
    bytes: usize,
}

// SAFETY: nobody changes or frees the memory while the write is on its way, as [`Aside::write`] demands.
unsafe impl Send for Write {}

/// What became of a write, and by which thread.
struct Written {
    token: u64,
    result: i32,
    thread: usize,
}

struct Thread {
    writes: Sender<Write>,
    /// Writes that it was given and has not told the end of.
    busy: usize,
}

/// See the top of the file.
pub(super) struct Aside {
    /// Readable when a write has ended.
    wakes: Arc<OwnedFd>,
    threads: Vec<Thread>,
    results: Receiver<Written>,
    tell: Sender<Written>,
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

    /// Makes a thread while there is room for it among the processes that we may have.
    pub(super) fn prepare(&mut self) {
        if self.threads.is_empty() {
            // What fails here fails again when it is needed, and is told then.
            let _ = self.make_thread();
        }
    }

    /// Hands a write over.
    ///
    /// # Safety
    /// The memory stays as it is until [`Aside::finished`] has told the result.
    ///
    /// # Errors
    /// There is no thread, and none can be made.
    pub(super) unsafe fn write(&mut self, token: u64, to: RawFd, from: *const u8, bytes: u32) -> io::Result<()> {
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
        let write = Write { token, to, from, bytes: bytes as usize };
        thread.writes.send(write).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Tells the tokens and results of all writes that have ended.
    pub(super) fn finished(&mut self, mut tell: impl FnMut(u64, i32)) {
        // Read before the results are looked at: whoever comes later wakes us again.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        for Written { token, result, thread } in self.results.try_iter() {
            self.threads[thread].busy -= 1;
            tell(token, result);
        }
    }

    fn make_thread(&mut self) -> io::Result<()> {
        let (sender, writes) = channel();
        let (number, tell, wakes) = (self.threads.len(), self.tell.clone(), Arc::clone(&self.wakes));
        let thread = std::thread::Builder::new().name("aside".to_owned()).stack_size(STACK);
        thread.spawn(move || serve(number, &writes, &tell, &wakes))?;
        self.threads.push(Thread { writes: sender, busy: 0 });
        Ok(())
    }
}

/// Makes the writes that are sent, one after the other, until nobody sends any more.
fn serve(thread: usize, writes: &Receiver<Write>, tell: &Sender<Written>, wakes: &OwnedFd) {
    // Signals are for the loop.
    // SAFETY: the set is made before it is used, and lives until the call returns.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
    for Write { token, to, from, bytes } in writes {
        // SAFETY: the memory stays until the result is told.
        let written = unsafe { libc::write(to, from.cast(), bytes) };
        let result =
            if written < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { written as i32 };
        let told = tell.send(Written { token, result, thread });
        if told.is_err() || rustix::io::write(wakes, &1u64.to_ne_bytes()).is_err() {
            return;
        }
    }
}
