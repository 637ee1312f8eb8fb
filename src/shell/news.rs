//! What other threads tell the loop. They wake it by the pipe that dead children are reported by, too.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::net::{SendFlags, send};

use super::reload::prepare::Prepared;
use crate::bus::port::{ListenerId, WorkerKey};
use crate::error::StartError;
use crate::io::leave_signals_to_the_loop;

pub(super) enum News {
    /// A configuration was prepared, or is refused.
    Prepared(Box<Result<Prepared, StartError>>),
    /// A token file was read again: the number of the list of files that it belongs to, its owner, and its contents.
    Tokens(u64, FileOwner, io::Result<Vec<u8>>),
    /// A worker uses more memory than its limit: how much in MiB.
    Grown(WorkerKey, u64),
    /// All workers that were measured together hold so many MiB.
    Measured(u64),
    /// What outlives the daemon was written, or could not be.
    StateWritten(io::Result<usize>),
}

/// The owner of a token file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOwner {
    /// The listener with this index, for its clients' tokens.
    Listener(ListenerId),
    /// The admin listener, for the operators' token.
    Admin,
}

/// The threads' end.
#[derive(Clone)]
pub(crate) struct Teller {
    news: Sender<News>,
    bell: Arc<OwnedFd>,
}

impl Teller {
    /// A teller that writes to `bell` to wake the loop, and what it tells.
    pub(super) fn new(bell: OwnedFd) -> (Self, Receiver<News>) {
        let (news, told) = channel();
        (Self { news, bell: Arc::new(bell) }, told)
    }

    /// Runs `work` on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()> {
        let teller = self.clone();
        let run = move || {
            leave_signals_to_the_loop();
            work(&teller);
        };
        thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
    }

    /// Tells the loop. False if that has ended.
    pub(super) fn tell(&self, news: News) -> bool {
        let is_told = self.news.send(news).is_ok();
        self.wake();
        is_told
    }

    /// Wakes the loop.
    pub(super) fn wake(&self) {
        // A full socket is readable already.
        let _ = send(&*self.bell, b"n", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}
