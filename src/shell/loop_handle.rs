//! Messages from other threads to the loop. They wake it by the pipe that dead children are reported by, too.

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

pub(super) enum LoopMessage {
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

/// How threads reach the loop.
#[derive(Clone)]
pub(crate) struct LoopHandle {
    messages: Sender<LoopMessage>,
    wake_pipe: Arc<OwnedFd>,
}

impl LoopHandle {
    /// A handle that writes to `wake_pipe` to wake the loop, and the receiver of its messages.
    pub(super) fn new(wake_pipe: OwnedFd) -> (Self, Receiver<LoopMessage>) {
        let (messages, received) = channel();
        (Self { messages, wake_pipe: Arc::new(wake_pipe) }, received)
    }

    /// Runs `work` on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()> {
        let loop_handle = self.clone();
        let run = move || {
            leave_signals_to_the_loop();
            work(&loop_handle);
        };
        thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
    }

    /// Sends to the loop, and wakes it. False if the loop has ended.
    pub(super) fn send(&self, message: LoopMessage) -> bool {
        let is_sent = self.messages.send(message).is_ok();
        self.wake();
        is_sent
    }

    /// Wakes the loop.
    pub(super) fn wake(&self) {
        // A full socket is readable already.
        let _ = send(&*self.wake_pipe, b"n", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}
