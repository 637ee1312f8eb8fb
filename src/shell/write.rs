//! Writing to peers of the core: one write at a time for each output.

use std::io;
use std::os::fd::AsRawFd;

use rustix::io::ioctl_fionread;

use super::connections::{Connection, PeerSlot};
use super::inherited;
use super::operation::Operation;
use super::reactor::Reactor;
use super::timers::Timer;
use super::transport::{Ends, PendingOp, State};
use crate::bus::port::{Input, Moment, Peer, WorkerKey};
use crate::io::{Io, Submission};

impl<I: Io> Reactor<I> {
    /// Starts the next write to a peer of the core. If it is not being read, also watches it.
    pub(super) fn write_to_peer(&mut self, now: Moment, slot: usize) {
        if self.connections[slot].has_ended() {
            self.watch(slot);
        }
        let Connection { transport, protocol } = self.connections.entry(slot);
        if transport.in_flight.has(PendingOp::Write)
            || transport.ends.are_to_come()
            || transport.state >= State::Lingering
            || transport.ends.is_stdio() && self.timers.is_set(Timer::Output)
        {
            return;
        }
        let socket = transport.ends.is_socket();
        let next = transport.ends.raw_output().and_then(|out| protocol.next(&mut transport.outbox, out, socket));
        let Some((mut submission, bytes)) = next else {
            if transport.is_draining() {
                match self.queue_close_frame(slot) {
                    true => self.write_to_peer(now, slot),
                    false => self.linger(now, slot),
                }
            }
            return;
        };
        transport.room.asked = bytes;
        if let Submission::SendMany { more, .. } = &mut submission {
            // The close frame and the FIN go in one packet.
            *more = protocol.web().is_some_and(|web| web.close_frame_queued);
        } else if let Ends::Stdio { stdout, writes_aside: true, .. } = &transport.ends {
            let Some((from, bytes)) = transport.outbox.first() else { return };
            submission = Submission::WriteAside { to: stdout.as_raw_fd(), from, bytes: bytes as u32 };
        }
        transport.in_flight.add(PendingOp::Write);
        // SAFETY: the outbox keeps the segments and the descriptor stays open while the write is in flight.
        unsafe { self.io.submit(submission, Operation::Write.token(slot)) };
    }

    pub(super) fn peer_written(&mut self, now: Moment, slot: usize, result: i32) {
        let bytes = match result {
            // An output that accepts nothing will accept nothing the next time.
            0 => return self.not_written(now, slot, libc::EIO),
            1.. => result as usize,
            error => return self.not_written(now, slot, -error),
        };
        let Connection { transport, protocol } = self.connections.entry(slot);
        let is_cut = !transport.room.took(bytes) && transport.ends.is_socket();
        let lines = protocol.advance(&mut transport.outbox, bytes, self.io.buffers());
        if self.remove_if_idle(slot) {
            return;
        }
        self.close_stdin_when_idle(slot);
        if is_cut {
            self.await_room(now, slot);
        } else {
            self.connections.mark_dirty(slot);
        }
        let peer = self.connections[PeerSlot(slot)].peer;
        if lines > 0 {
            self.dispatch(now, Input::Sent { peer, bytes: lines });
        }
    }

    fn not_written(&mut self, now: Moment, slot: usize, errno: i32) {
        let ends = &self.connections[slot].ends;
        let (is_stdio, is_socket) = (ends.is_stdio(), ends.is_socket());
        if is_stdio && !matches!(errno, libc::EAGAIN | libc::EINTR | libc::ECANCELED) {
            self.stdio.reader_gone = inherited::reader_gone(rustix::stdio::stdout(), errno);
        }
        if self.remove_if_idle(slot) {
            return;
        }
        self.close_stdin_when_idle(slot);
        match errno {
            libc::EAGAIN if is_stdio || is_socket => self.await_room(now, slot),
            libc::EAGAIN | libc::EINTR => self.connections.mark_dirty(slot),
            libc::ECANCELED if is_stdio => self.retry_writing_later(now),
            libc::ECANCELED => {}
            error => {
                let peer = self.connections[PeerSlot(slot)].peer;
                self.broken(now, slot, peer, io::Error::from_raw_os_error(error).to_string());
            }
        }
    }

    /// Reports to the core how many bytes are in a worker's pipe.
    pub(super) fn report_unread(&mut self, worker: WorkerKey) {
        let slot = self.connections.slot(Peer::Worker(worker));
        let Some(ends) = slot.map(|slot| &self.connections[slot].ends) else { return };
        let bytes = match ends.output() {
            Some(stdin) => ioctl_fionread(stdin).unwrap_or(0) as usize,
            None if ends.are_to_come() => 0,
            None => return,
        };
        self.dispatch(self.clock.now(), Input::UnreadMeasured { worker, bytes });
    }
}
