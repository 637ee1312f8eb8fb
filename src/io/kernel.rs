//! Which door to the kernel is taken: the ring, or epoll where it cannot be had and nobody insists on it.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::buffers::Buffers;
use super::epoll::Epoll;
use super::ring::Completion;
use super::uring::Uring;
use super::{Io, Submission};
use crate::error::StartError;

/// What was asked for (`--io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The ring, or else epoll.
    #[default]
    Auto,
    /// The ring, or no daemon.
    Ring,
    /// Epoll.
    Epoll,
}

/// What was opened. There is one, so the room that the smaller one leaves costs nothing, and a box would cost each call.
#[allow(clippy::large_enum_variant)]
pub enum Kernel {
    /// io_uring.
    Ring(Uring),
    /// epoll, and why it is not the ring, if that was tried.
    Epoll(Epoll, Option<Refused>),
}

/// Why there is no ring.
pub struct Refused {
    /// One sentence.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
}

impl From<StartError> for Refused {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        let (why, remedy) = text.split_once('\n').unwrap_or((&text, "stdio_bus --io ring tells more"));
        Self { why: why.to_owned(), remedy: remedy.to_owned() }
    }
}

impl Kernel {
    /// Opens what was chosen, with memory for so many workers.
    ///
    /// # Errors
    /// As [`Uring::new`] where the ring is insisted on, and as [`Epoll::new`] otherwise.
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

/// What the one that was opened says.
macro_rules! opened {
    ($kernel:expr, $io:ident => $call:expr) => {
        match $kernel {
            Kernel::Ring($io) => $call,
            Kernel::Epoll($io, _) => $call,
        }
    };
}

/// The shell is compiled once for both: asking which one it is costs less than a second shell's room.
impl Io for Kernel {
    fn name(&self) -> &'static str {
        opened!(self, io => io.name())
    }

    #[inline]
    unsafe fn submit(&mut self, submission: Submission, token: u64) {
        // SAFETY: as promised by the caller.
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
    fn carried(&mut self, lines: u64) {
        opened!(self, io => io.carried(lines));
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
