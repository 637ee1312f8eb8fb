//! Descriptors that others gave us to write to: stdout of `--stdio`, and stderr. They may be anything, and their open
//! files are shared with the process that started us: their flags are not ours to change.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, fstat};

/// The device `/dev/null` (null(4)).
const NULL: u64 = libc::makedev(1, 3);

/// Whether a write may wait inside of the kernel, in the thread that submits it. Sockets, pipes and `/dev/null` can be asked not
/// to wait (IOCB_NOWAIT); a terminal with room for a byte takes the question for a yes, and files do not know it.
pub(super) fn may_block(descriptor: BorrowedFd<'_>) -> bool {
    let Ok(file) = fstat(descriptor) else { return false };
    match FileType::from_raw_mode(file.st_mode) {
        FileType::Socket | FileType::Fifo => false,
        FileType::CharacterDevice => file.st_rdev != NULL,
        _ => true,
    }
}

/// Whether writing has failed with `errno` because its reader has gone, and nothing is missed.
pub(super) fn reader_gone(descriptor: BorrowedFd<'_>, errno: i32) -> bool {
    match errno {
        libc::EPIPE | libc::ECONNRESET => true,
        // A terminal that was closed. It cannot be asked any more whether it is one.
        libc::EIO => {
            fstat(descriptor).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice)
        }
        _ => false,
    }
}
