//! Sockets with a time limit, in a process that may be stopped and continued.

use std::io::{ErrorKind, Read, Result, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// A socket with a time limit. Its reads and writes fail when the process was stopped and continues (signal(7)), and
/// are repeated here.
pub struct Steady<S>(pub S);

/// Repeats a call that was interrupted.
pub fn repeated<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl<S: Read> Read for Steady<S> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        repeated(|| self.0.read(buffer))
    }
}

impl<S: Write> Write for Steady<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        repeated(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

impl<S: AsFd> AsFd for Steady<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
