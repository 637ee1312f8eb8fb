//! Which door to the kernel is taken: the ring, or epoll where it cannot be had and nobody insists on it.

use super::epoll::Epoll;
use super::uring::Uring;
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

/// What was opened.
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
