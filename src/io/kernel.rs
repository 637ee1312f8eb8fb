//! Selects the I/O backend: io_uring, or epoll where io_uring is unavailable and not required.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::buffers::Buffers;
use super::epoll::Epoll;
use super::ring::Completion;
use super::uring::Uring;
use super::{Io, Submission};
use crate::error::StartError;

/// The requested backend (`--io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring, with epoll as a fallback.
    #[default]
    Auto,
    /// io_uring, or fail to start.
    Ring,
    Epoll,
}

/// The open backend. There is only one, so the unused room of the smaller variant costs nothing, while a box would cost
/// every call.
#[allow(clippy::large_enum_variant)]
pub enum Kernel {
    /// io_uring.
    Ring(Uring),
    /// epoll, and why io_uring was refused, if it was tried.
    Epoll(Epoll, Option<Refused>),
}

/// Why io_uring is unavailable.
pub struct Refused {
    /// One sentence.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
}

impl From<StartError> for Refused {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        let (why, remedy) = text.split_once('\n').unwrap_or((&text, "stdio_bus --io ring shows more"));
        Self { why: why.to_owned(), remedy: remedy.to_owned() }
    }
}

impl Kernel {
    /// Opens the requested backend, with memory for `workers` workers.
    ///
    /// # Errors
    /// As [`Uring::new`] if the ring is required, otherwise as [`Epoll::new`].
    pub fn open(choice: Choice, workers: usize) -> Result<Self, StartError> {
        let refused = match choice {
            Choice::Epoll => None,
            Choice::Ring => return Uring::new(workers).map(Self::Ring),
            Choice::Auto => match Uring::new(workers) {
                Ok(ring) => return Ok(Self::Ring(ring)),
                Err(refused) => Some(refused.into()),
            },
        };
        Epoll::new(workers).map(|epoll| Self::Epoll(epoll, refused))
    }
}

/// Delegates to the open backend.
macro_rules! opened {
    ($kernel:expr, $io:ident => $call:expr) => {
        match $kernel {
            Kernel::Ring($io) => $call,
            Kernel::Epoll($io, _) => $call,
        }
    };
}

/// The shell is compiled once for both: a branch on each call costs less than a second copy of the shell.
impl Io for Kernel {
    fn name(&self) -> &'static str {
        opened!(self, io => io.name())
    }

    #[inline]
    unsafe fn submit(&mut self, submission: Submission, token: u64) {
        // SAFETY: guaranteed by the caller.
        opened!(self, io => unsafe { io.submit(submission, token) });
    }

    #[inline]
    fn opened(&mut self, descriptor: RawFd) {
        opened!(self, io => io.opened(descriptor));
    }

    fn cancel(&mut self, token: u64, descriptor: RawFd) {
        opened!(self, io => io.cancel(token, descriptor));
    }

    #[inline]
    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()> {
        opened!(self, io => io.turn(timeout, completions))
    }

    fn prepare_aside(&mut self, to: RawFd) {
        opened!(self, io => io.prepare_aside(to));
    }

    fn has_news(&mut self) -> bool {
        opened!(self, io => io.has_news())
    }

    #[inline]
    fn elapsed(&self) -> Duration {
        opened!(self, io => io.elapsed())
    }

    #[inline]
    fn turned_at(&self) -> Duration {
        opened!(self, io => io.turned_at())
    }

    #[inline]
    fn buffers(&mut self) -> &mut Buffers {
        opened!(self, io => io.buffers())
    }

    #[inline]
    fn memory(&self) -> &Buffers {
        opened!(self, io => io.memory())
    }

    #[inline]
    fn return_received(&mut self, buffer: u16) {
        opened!(self, io => io.return_received(buffer));
    }

    fn describe(&self) -> (String, Option<&io::Error>) {
        opened!(self, io => io.describe())
    }
}
