//! Inherited descriptors that are written to: stdout of `--stdio`, and stderr. They may be of any kind, and their open
//! files are shared with the process that started us: their flags must not be changed.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, fstat};

/// The device `/dev/null` (null(4)).
const NULL: u64 = libc::makedev(1, 3);

/// Whether a write may block the submitting thread inside the kernel. Sockets, pipes and `/dev/null` support
/// non-blocking writes (IOCB_NOWAIT); a terminal with room for one byte blocks anyway, and files do not support it.
pub(super) fn may_block(descriptor: BorrowedFd<'_>) -> bool {
    let Ok(file) = fstat(descriptor) else { return false };
    match FileType::from_raw_mode(file.st_mode) {
        FileType::Socket | FileType::Fifo => false,
        FileType::CharacterDevice => file.st_rdev != NULL,
        _ => true,
    }
}

/// Whether this is a file on a disk.
pub(super) fn is_file(descriptor: BorrowedFd<'_>) -> bool {
    fstat(descriptor).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::RegularFile)
}

/// Whether a write failed with `errno` because its reader has gone, so that nothing is lost.
pub(super) fn reader_gone(descriptor: BorrowedFd<'_>, errno: i32) -> bool {
    match errno {
        libc::EPIPE | libc::ECONNRESET => true,
        // A hung-up terminal, which no longer identifies itself as one.
        libc::EIO => {
            fstat(descriptor).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice)
        }
        _ => false,
    }
}
