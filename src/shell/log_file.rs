//! The log in a file (`log.file`): the file takes the place of stderr, and SIGUSR1 opens it again, so that logrotate may
//! move it away. What the daemon wrote to stderr before stays there, and so does why a start fails.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stderr, stderr};

/// Stderr as it was at the start, if a file has taken its place.
static BEFORE: OnceLock<OwnedFd> = OnceLock::new();

/// Stderr as it was at the start, if a file has taken its place.
pub(super) fn before() -> Option<File> {
    BEFORE.get()?.try_clone().ok().map(File::from)
}

/// Opens a log file. One that is there is written on at its end, another one is created for the daemon's user and group
/// (mode 0640).
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub(super) fn opened(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::from_raw_mode(0o640))?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// Has this file take the place of stderr, or stderr its own place again.
///
/// # Errors
/// Those of dup(2): what was written to before stays.
pub(super) fn take(file: Option<OwnedFd>) -> io::Result<()> {
    let Some(file) = file else {
        return BEFORE.get().map_or(Ok(()), |before| Ok(dup2_stderr(before)?));
    };
    if BEFORE.get().is_none() {
        // There is one writer, so nothing else is set meanwhile.
        let _ = BEFORE.set(fcntl_dupfd_cloexec(stderr(), 3)?);
    }
    Ok(dup2_stderr(&file)?)
}
