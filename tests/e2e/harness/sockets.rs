//! The sockets of a test's clients, for shutdowns: the daemon waits a second for clients that do not close when their
//! connection has ended, which programs usually do.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

thread_local! {
    /// Their numbers and inodes: a closed socket is not kept open, and a reused number is another socket.
    static SOCKETS: RefCell<Vec<(RawFd, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Another descriptor of the same file.
fn copy(number: RawFd) -> Option<File> {
    // SAFETY: fcntl with F_DUPFD_CLOEXEC takes no pointer, and a closed descriptor is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: it is new and has no other owner.
    (copy >= 0).then(|| unsafe { File::from_raw_fd(copy) })
}

/// Registers a client's socket for [`close_ended`], for as long as it is open.
pub fn register(socket: &impl AsRawFd) {
    let number = socket.as_raw_fd();
    let inode = copy(number).expect("it is open").metadata().expect("it is open").ino();
    SOCKETS.with_borrow_mut(|sockets| sockets.push((number, inode)));
}

/// Half-closes those whose other end has half-closed.
pub fn close_ended() {
    SOCKETS.with_borrow_mut(|sockets| {
        sockets.retain(|(number, inode)| {
            let socket = copy(*number).filter(|file| file.metadata().is_ok_and(|metadata| metadata.ino() == *inode));
            let Some(socket) = socket else { return false };
            if has_now(&socket, PollFlags::RDHUP) {
                // It may have been reset.
                let _ = shutdown(&socket, Shutdown::Write);
                return false;
            }
            true
        });
    });
}

/// Whether a descriptor has one of these events now.
pub fn has_now(fd: &impl std::os::fd::AsFd, events: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, events)], Some(&now)).is_ok_and(|count| count > 0)
}
