//! Writes to what cannot be asked not to wait, a terminal or a file: a thread for each such descriptor makes them, so
//! that the loop goes on whatever becomes of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

/// What such a thread needs is little.
const STACK: usize = 64 * 1024;

/// One write. It is sent to the thread with the promise that the memory stays until its result has come back.
struct Write {
    token: u64,
    to: RawFd,
    from: *const u8,
    bytes: usize,
}

// SAFETY: nobody changes or frees the memory while the write is on its way, as [`Aside::write`] demands.
unsafe impl Send for Write {}

/// See the top of the file.
pub(super) struct Aside {
    /// Readable when a write has ended.
    wakes: Arc<OwnedFd>,
    threads: HashMap<RawFd, Sender<Write>>,
    results: Receiver<(u64, i32)>,
    tell: Sender<(u64, i32)>,
}

impl Aside {
    /// Without a thread yet.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(super) fn new() -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (tell, results) = channel();
        Ok(Self { wakes: Arc::new(wakes), threads: HashMap::new(), results, tell })
    }

    /// Readable when [`Aside::finished`] has something to tell.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Makes the thread for this descriptor while there is room for it among the processes that we may have.
    pub(super) fn prepare(&mut self, to: RawFd) {
        // What fails here fails again when it is needed, and is told then.
        let _ = self.thread(to);
    }

    /// Hands a write over.
    ///
    /// # Safety
    /// The memory stays as it is until [`Aside::finished`] has told the result.
    ///
    /// # Errors
    /// No thread can be made.
    pub(super) unsafe fn write(&mut self, token: u64, to: RawFd, from: *const u8, bytes: u32) -> io::Result<()> {
        let write = Write { token, to, from, bytes: bytes as usize };
        self.thread(to)?.send(write).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Tells the tokens and results of all writes that have ended.
    pub(super) fn finished(&mut self, mut tell: impl FnMut(u64, i32)) {
        // Read before the results are looked at: whoever comes later wakes us again.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        self.results.try_iter().for_each(|(token, result)| tell(token, result));
    }

    fn thread(&mut self, to: RawFd) -> io::Result<&Sender<Write>> {
        if !self.threads.contains_key(&to) {
            let (sender, writes) = channel();
            let (tell, wakes) = (self.tell.clone(), Arc::clone(&self.wakes));
            let thread = std::thread::Builder::new().name("writes aside".to_owned()).stack_size(STACK);
            thread.spawn(move || serve(&writes, &tell, &wakes))?;
            self.threads.insert(to, sender);
        }
        self.threads.get(&to).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Makes the writes of one descriptor, one after the other, until nobody sends any more.
fn serve(writes: &Receiver<Write>, tell: &Sender<(u64, i32)>, wakes: &OwnedFd) {
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
        if tell.send((token, result)).is_err() || rustix::io::write(wakes, &1u64.to_ne_bytes()).is_err() {
            return;
        }
    }
}
