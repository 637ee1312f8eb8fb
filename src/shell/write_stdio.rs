//! Writes the log to stderr, and retries writes for which there was no thread. Whatever stdout and stderr are, writing
//! to them blocks nothing, and what cannot be written is counted.
//!
//! The log has no entry in the table of connections: it has no peer, no input and no end, nobody is paused for it, and what
//! it cannot write is lost and counted instead of kept. It must be written when everything else is gone, too.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::log::{self, Taken};
use super::log_file;
use super::operation::Operation;
use super::reactor::Reactor;
use super::timers::Timer;
use super::transport::PendingOp;
use crate::bus::port::Moment;
use crate::io::{Io, Submission, is_half_closed};

/// Delay of a retry after the kernel could create no thread for stdout or stderr, or cannot report room.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// How long lines of requests, and of clients who come and go, wait for more.
const WAITS: Duration = Duration::from_millis(100);

impl<I: Io> Reactor<I> {
    /// The kernel could create no thread for a write: retries until it can.
    pub(super) fn retry_writing_later(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.stdio.has_logged_no_thread, true) {
            tracing::warn!(
                "the kernel can make no thread to write to stdout or stderr; allow this user or service more processes \
                 (RLIMIT_NPROC, TasksMax)"
            );
        }
        self.timers.set(Timer::Output, Some(now.after(TRY_AGAIN)));
    }

    /// Retries the writes that had no thread.
    pub(super) fn retry_writing(&mut self) {
        let stdio = self.connections.all_peers().find(|(_, connection, _)| connection.transport.ends.is_stdio());
        if let Some((slot, ..)) = stdio {
            self.connections.mark_dirty(slot);
        }
    }

    /// Writes the log to this file, which was opened, or to stderr, from now on. If that is not possible, it continues where it
    /// was.
    pub(super) fn write_log_to(&mut self, file: Option<&Path>, opened: std::io::Result<Option<OwnedFd>>) -> bool {
        let taken = opened.and_then(log_file::take);
        if let Err(error) = &taken {
            let name = file.map_or_else(|| "stderr".into(), Path::to_string_lossy);
            tracing::error!(
                reason = "log_file",
                "the log cannot be written to {name}, and continues where it was: {error}"
            );
        }
        self.log.look_at_stderr();
        taken.is_ok()
    }

    /// Submits the log, one write at a time.
    pub(super) fn write_log(&mut self) {
        let log = &mut self.log;
        if log.is_busy() {
            return;
        }
        match log::take(&mut log.batch) {
            Taken::Nothing => return,
            Taken::Waits => return self.timers.set_at_latest(Timer::Log, self.clock.now().after(WAITS)),
            Taken::Ready if self.timers.is_set(Timer::Output) => return,
            Taken::Ready => {}
        }
        let rest = log.batch.rest();
        let (from, bytes) = (rest.as_ptr(), rest.len() as u32);
        let write = match log.writes_aside {
            true => Submission::WriteAside { to: 2, from, bytes },
            false => Submission::Write { to: 2, from, bytes, registered: None },
        };
        log.in_flight.add(PendingOp::Write);
        // SAFETY: the lines are not touched while the write is in flight.
        unsafe { self.io.submit(write, Operation::Log.token(0)) };
    }

    pub(super) fn log_written(&mut self, now: Moment, result: i32) {
        self.log.in_flight.remove(PendingOp::Write);
        match result {
            _ if self.log.in_flight.remove(PendingOp::Room) => self.log_awaited_room(now, result),
            0 => self.log.batch.fail(libc::EIO),
            1.. => self.log.batch.advance(result as usize),
            error => match -error {
                libc::EINTR => {}
                libc::EAGAIN => self.await_room_for_log(),
                libc::ECANCELED => {
                    self.retry_writing_later(now);
                    if self.log.is_file {
                        self.write_log_here();
                    }
                }
                // The lines are lost, and the daemon continues.
                errno => self.log.batch.fail(errno),
            },
        }
    }

    /// Writes the log to a file on this thread, since there is no other: the kernel keeps what is written to a file in
    /// memory, so that this takes a moment. At most one batch a second is written like this.
    fn write_log_here(&mut self) {
        let batch = &mut self.log.batch;
        while !batch.rest().is_empty() {
            match self.io.write_here(rustix::stdio::stderr(), batch.rest()) {
                Ok(written) if written > 0 => batch.advance(written),
                Err(Errno::INTR) => {}
                Ok(_) => return batch.fail(libc::EIO),
                Err(error) => return batch.fail(error.raw_os_error()),
            }
        }
    }

    fn await_room_for_log(&mut self) {
        self.log.in_flight.add(PendingOp::Write);
        self.log.in_flight.add(PendingOp::Room);
        let room = Submission::AwaitRoom { descriptor: 2, half_closed: self.log.is_half_closed };
        // SAFETY: the operation has no memory, and stderr is never closed.
        unsafe { self.io.submit(room, Operation::Log.token(0)) };
    }

    fn log_awaited_room(&mut self, now: Moment, result: i32) {
        if is_half_closed(result) {
            self.log.is_half_closed = true;
            self.await_room_for_log();
        } else if result == 0 {
            // No notification of room can come.
            self.timers.set(Timer::Output, Some(now.after(TRY_AGAIN)));
        }
    }
}
