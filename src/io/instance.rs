//! A safe wrapper of an epoll(7) instance.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The maximum number of events taken at once.
const EVENTS: usize = 256;
pub(super) const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The peer has gone: reported whether asked for or not.
pub(super) const GONE: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

pub(super) struct Instance(OwnedFd);

impl Instance {
    /// # Errors
    /// The system is out of descriptors or memory.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no memory.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check(descriptor)?;
        // SAFETY: a system call has just returned it to us.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Readable when there are events.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Asks for these events of a descriptor, which are reported with `data`; `how` is EPOLL_CTL_ADD, EPOLL_CTL_MOD or
    /// EPOLL_CTL_DEL (epoll_ctl(2)).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(super) fn control(&self, how: libc::c_int, descriptor: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the event lives until the call returns.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), how, descriptor, &mut event) })
    }

    /// Appends the events that are ready, or waits for one: for at most `timeout` milliseconds, or for ever if that is
    /// negative.
    ///
    /// # Errors
    /// As epoll_wait(2), except EINTR, which returns no events.
    pub(super) fn wait(&self, events: &mut Vec<libc::epoll_event>, timeout: libc::c_int) -> io::Result<()> {
        let taken = events.len();
        events.reserve(EVENTS);
        // SAFETY: there is room for this many events behind the present ones.
        let count = unsafe {
            let free = events.as_mut_ptr().add(taken);
            libc::epoll_wait(self.0.as_raw_fd(), free, EVENTS as libc::c_int, timeout)
        };
        match check(count) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                // SAFETY: the kernel has filled in this many.
                unsafe { events.set_len(taken + count as usize) };
                Ok(())
            }
        }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
