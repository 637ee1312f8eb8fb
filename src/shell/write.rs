//! What goes out: one write at a time for each output, and the log. Whatever stdout and stderr are, writing to them
//! holds nothing up, and what cannot be written is counted.

use std::cmp::Reverse;
use std::io;
use std::time::Duration;

use rustix::io::ioctl_fionread;

use super::connection::{Closing, Descriptor, Kind};
use super::inherited;
use super::log;
use super::operation::Operation;
use super::outbox::Next;
use super::reactor::Reactor;
use crate::bus::port::{Input, Moment, Peer, WorkerKey};
use crate::io::{Io, Submission, tells_half_closed};

/// When stdout and stderr are tried again after the kernel could make no thread for them, or cannot tell of room.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A socket that had no room is tried again after this long, then after twice as long, and so on, until it has room.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_millis(640);

impl<I: Io> Reactor<I> {
    /// Starts a write for every output that has something and is idle.
    pub(super) fn write_dirty(&mut self, now: Moment) {
        while let Some(slot) = self.dirty.pop() {
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            connection.dirty = false;
            self.write(now, slot);
        }
    }

    pub(super) fn write(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.writing || connection.is_starting() || connection.closing >= Closing::ShutDown {
            return;
        }
        if connection.kind == Kind::Stdio && self.retry_writing_at.is_some() {
            return;
        }
        let (Some(out), Some(next)) = (connection.out().map(Descriptor::raw), connection.outbox.next()) else {
            if connection.closing == Closing::AfterFlush {
                match self.queue_close_frame(slot) {
                    true => self.write(now, slot),
                    false => self.shut_down(now, slot),
                }
            }
            return;
        };
        let socket = connection.kind == Kind::Socket;
        let (Next::One { bytes, .. } | Next::Many { bytes, .. }) = next;
        connection.asked = bytes;
        let submission = match next {
            _ if connection.aside => {
                let Some((from, bytes)) = connection.outbox.first() else { return };
                Submission::WriteAside { to: out, from, bytes: bytes as u32 }
            }
            Next::One { address, bytes, .. } if socket => {
                Submission::Send { socket: out, from: address, bytes: bytes as u32, now_or_never: true }
            }
            Next::One { registered, address, bytes } => {
                Submission::Write { to: out, from: address, bytes: bytes as u32, registered }
            }
            Next::Many { message, .. } if socket => {
                // The last frame and the end of the connection are one packet.
                let more = connection.web.as_ref().is_some_and(|web| web.close_frame_queued());
                Submission::SendMany { socket: out, message, more }
            }
            Next::Many { vectors, count, .. } => Submission::WriteMany { to: out, vectors, count: count as u32 },
        };
        connection.writing = true;
        // SAFETY: the outbox keeps the segments and the descriptor stays open while `writing` is set.
        unsafe { self.io.submit(submission, Operation::Write.token(slot)) };
    }

    pub(super) fn written(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.connections[slot];
        debug_assert!(connection.writing && connection.out().is_some(), "it was closed under the kernel");
        connection.writing = false;
        if std::mem::take(&mut connection.awaits_room) {
            return self.awaited_room(now, slot, result);
        }
        let bytes = match result {
            // What takes nothing will take nothing the next time.
            0 => return self.not_written(now, slot, libc::EIO),
            1.. => result as usize,
            error => return self.not_written(now, slot, -error),
        };
        connection.room_backoff = Duration::ZERO;
        let is_cut = connection.kind == Kind::Socket && bytes < connection.asked;
        let lines = connection.outbox.advance(bytes, self.io.buffers());
        if self.remove_if_idle(slot) {
            return;
        }
        self.close_stdin_when_idle(slot);
        if is_cut {
            self.await_room(now, slot);
        } else {
            self.mark_dirty(slot);
        }
        let peer = self.connections[slot].peer;
        if lines > 0 {
            self.tell(now, Input::Sent { peer, bytes: lines });
        }
    }

    fn not_written(&mut self, now: Moment, slot: usize, errno: i32) {
        let connection = &mut self.connections[slot];
        let (is_stdio, is_socket) = (connection.kind == Kind::Stdio, connection.kind == Kind::Socket);
        if is_stdio && !matches!(errno, libc::EAGAIN | libc::EINTR | libc::ECANCELED) {
            self.reader_gone = inherited::reader_gone(rustix::stdio::stdout(), errno);
        }
        if self.remove_if_idle(slot) {
            return;
        }
        self.close_stdin_when_idle(slot);
        match errno {
            libc::EAGAIN if is_stdio || is_socket => self.await_room(now, slot),
            libc::EAGAIN | libc::EINTR => self.mark_dirty(slot),
            libc::ECANCELED if is_stdio => self.retry_writing_later(now),
            libc::ECANCELED => {}
            error => {
                let peer = self.connections[slot].peer;
                self.broken(now, slot, peer, io::Error::from_raw_os_error(error).to_string());
            }
        }
    }

    /// A socket is full; or somebody has made our stdout non-blocking, which the ring takes for the wish not to wait.
    fn await_room(&mut self, now: Moment, slot: usize) {
        self.retry_sending_later(now, slot);
        let connection = &mut self.connections[slot];
        let Some(descriptor) = connection.out().map(Descriptor::raw) else { return };
        (connection.writing, connection.awaits_room) = (true, true);
        let half_closed = connection.is_half_closed();
        // SAFETY: the descriptor stays open while `writing` is set.
        unsafe { self.io.submit(Submission::AwaitRoom { descriptor, half_closed }, Operation::Write.token(slot)) };
    }

    fn awaited_room(&mut self, now: Moment, slot: usize, result: i32) {
        if self.remove_if_idle(slot) {
            return;
        }
        let connection = &mut self.connections[slot];
        if tells_half_closed(result) {
            connection.half_closed = true;
            return self.await_room(now, slot);
        }
        // Where nobody would tell, the wait in `full` goes on.
        if result != 0 || !connection.is_full {
            self.mark_dirty(slot);
        }
    }

    /// The kernel tells of room only when much of what it holds for a client was taken, a quarter or three: who reads
    /// slowly would seem not to read at all.
    fn retry_sending_later(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        let patience = (connection.room_backoff * 2).clamp(FIRST_BACKOFF, LONGEST_BACKOFF);
        connection.room_backoff = patience;
        if !std::mem::replace(&mut connection.is_full, true) {
            self.full.push(Reverse((now.after(patience), slot)));
        }
    }

    /// Tries the sockets that had no room again, when it is time.
    pub(super) fn retry_sending(&mut self, now: Moment) {
        while let Some(Reverse((_, slot))) = self.full.peek().copied().filter(|Reverse((due, _))| *due <= now) {
            self.full.pop();
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            if !std::mem::take(&mut connection.is_full) {
                continue;
            }
            if connection.awaits_room {
                self.io.cancel(Operation::Write.token(slot));
            } else if !connection.writing {
                self.mark_dirty(slot);
            }
        }
    }

    /// The kernel could make no thread for a write: it is tried again until it can.
    fn retry_writing_later(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.told_of_no_thread, true) {
            tracing::warn!(
                "the kernel can make no thread to write to stdout or stderr; allow this user or service more processes \
                 (RLIMIT_NPROC, TasksMax)"
            );
        }
        self.retry_writing_at = Some(now.after(TRY_AGAIN));
    }

    /// Tries again what had no thread, when it is time.
    pub(super) fn retry_writing(&mut self, now: Moment) {
        if self.retry_writing_at.is_none_or(|at| at > now) {
            return;
        }
        self.retry_writing_at = None;
        let stdio = self.connections.iter().find(|(_, connection)| connection.kind == Kind::Stdio);
        if let Some((slot, _)) = stdio {
            self.mark_dirty(slot);
        }
    }

    /// What waits for our stdout will not be written any more.
    pub(super) fn count_unwritten(&mut self, lines: usize) {
        if lines > 0 && !self.reader_gone {
            tracing::error!("{lines} lines for stdout could not be written");
            self.unwritten += lines;
        }
    }

    /// Tells the core how much a worker has in its pipe.
    pub(super) fn tell_unread(&mut self, worker: WorkerKey) {
        let slot = self.slot(Peer::Worker(worker));
        let Some(connection) = slot.map(|slot| &self.connections[slot]) else { return };
        let bytes = match &connection.output {
            Some(stdin) => ioctl_fionread(stdin).unwrap_or(0) as usize,
            None if connection.is_starting() => 0,
            None => return,
        };
        self.tell(self.clock.now(), Input::Unread { worker, bytes });
    }

    /// Reactor the log to the kernel, one write at a time.
    pub(super) fn write_log(&mut self) {
        if self.logging || self.retry_writing_at.is_some() || !log::take(&mut self.log) {
            return;
        }
        let rest = self.log.rest();
        let (from, bytes) = (rest.as_ptr(), rest.len() as u32);
        let write = match self.log_aside {
            true => Submission::WriteAside { to: 2, from, bytes },
            false => Submission::Write { to: 2, from, bytes, registered: None },
        };
        self.logging = true;
        // SAFETY: the lines are not touched while `logging` is set.
        unsafe { self.io.submit(write, Operation::Log.token(0)) };
    }

    pub(super) fn log_written(&mut self, now: Moment, result: i32) {
        self.logging = false;
        match result {
            _ if std::mem::take(&mut self.log_awaits_room) => self.log_awaited_room(now, result),
            0 => self.log.fail(libc::EIO),
            1.. => self.log.advance(result as usize),
            error => match -error {
                libc::EINTR => {}
                libc::EAGAIN => self.await_room_for_log(),
                libc::ECANCELED => self.retry_writing_later(now),
                // The lines are lost, and the daemon goes on.
                errno => self.log.fail(errno),
            },
        }
    }

    fn await_room_for_log(&mut self) {
        (self.logging, self.log_awaits_room) = (true, true);
        let room = Submission::AwaitRoom { descriptor: 2, half_closed: self.log_half_closed };
        // SAFETY: the operation has no memory, and stderr is never closed.
        unsafe { self.io.submit(room, Operation::Log.token(0)) };
    }

    fn log_awaited_room(&mut self, now: Moment, result: i32) {
        if tells_half_closed(result) {
            self.log_half_closed = true;
            self.await_room_for_log();
        } else if result == 0 {
            // Nobody would tell when there is room.
            self.retry_writing_at = Some(now.after(TRY_AGAIN));
        }
    }
}
