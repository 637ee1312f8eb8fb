//! What goes out: one write at a time for each output, and the log.

use std::io;

use rustix::io::ioctl_fionread;

use super::connection::{Closing, Descriptor, Kind};
use super::hands::Hands;
use super::log;
use super::operation::Operation;
use super::outbox::Next;
use crate::bus::port::{Input, Moment, Peer, WorkerKey};
use crate::io::{Io, Submission};

impl<I: Io> Hands<I> {
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
        if connection.writing || connection.closing >= Closing::ShutDown {
            return;
        }
        let (Some(out), Some(next)) = (connection.out().map(Descriptor::raw), connection.outbox.next()) else {
            if connection.closing == Closing::AfterFlush {
                self.shut_down(now, slot);
            }
            return;
        };
        let socket = connection.kind == Kind::Socket;
        let submission = match next {
            Next::One { address, bytes, .. } if socket => {
                Submission::Send { socket: out, from: address, bytes: bytes as u32 }
            }
            Next::One { registered, address, bytes } => {
                Submission::Write { to: out, from: address, bytes: bytes as u32, registered }
            }
            Next::Many { message, .. } if socket => Submission::SendMany { socket: out, message },
            Next::Many { vectors, count, .. } => Submission::WriteMany { to: out, vectors, count: count as u32 },
        };
        connection.writing = true;
        // SAFETY: the outbox keeps the segments and the descriptor stays open while `writing` is set.
        unsafe { self.io.submit(submission, Operation::Write.token(slot)) };
    }

    pub(super) fn written(&mut self, now: Moment, slot: usize, result: i32) {
        debug_assert!(self.connections[slot].writing);
        self.connections[slot].writing = false;
        if self.remove_if_idle(slot) {
            return;
        }
        self.close_stdin_when_idle(slot);
        let peer = self.connections[slot].peer;
        if result >= 0 {
            self.connections[slot].outbox.advance(result as usize, self.io.buffers());
            self.mark_dirty(slot);
            return self.tell(now, Input::Sent { peer, bytes: result as usize });
        }
        match -result {
            libc::EAGAIN | libc::EINTR => self.mark_dirty(slot),
            libc::ECANCELED => {}
            error => self.broken(now, slot, peer, io::Error::from_raw_os_error(error).to_string()),
        }
    }

    /// Tells the core how much a worker has in its pipe.
    pub(super) fn tell_unread(&mut self, worker: WorkerKey) {
        let slot = self.slot(Peer::Worker(worker));
        let Some(stdin) = slot.and_then(|slot| self.connections[slot].output.as_ref()) else { return };
        let bytes = ioctl_fionread(stdin).unwrap_or(0) as usize;
        self.tell(self.clock.now(), Input::Unread { worker, bytes });
    }

    /// Hands the log to the kernel, one write at a time.
    pub(super) fn write_log(&mut self) {
        if self.logging {
            return;
        }
        if self.log_written >= self.log_line.len() {
            self.log_written = 0;
            if !log::take(&mut self.log_line) {
                return;
            }
        }
        let rest = &self.log_line[self.log_written..];
        let write = Submission::Write { to: 2, from: rest.as_ptr(), bytes: rest.len() as u32, registered: None };
        self.logging = true;
        // SAFETY: the line is not touched while `logging` is set.
        unsafe { self.io.submit(write, Operation::Log.token(0)) };
    }

    pub(super) fn log_written(&mut self, result: i32) {
        self.logging = false;
        match result {
            0.. => self.log_written += result as usize,
            _ if result == -libc::EAGAIN || result == -libc::EINTR => {}
            // Nobody reads the log: it is dropped, and the daemon goes on.
            _ => self.log_written = self.log_line.len(),
        }
    }
}
