//! Writing: one write at a time for each output.

use std::io;
use std::os::fd::AsRawFd;

use rustix::io::ioctl_fionread;

use super::connections::{AsPeer, Connection};
use super::inherited;
use super::operation::Operation;
use super::protocol::Protocol;
use super::reactor::Reactor;
use super::timers::Timer;
use super::transport::{Ends, Flight, State};
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Peer, WorkerKey};
use crate::io::{Io, Submission, tells_half_closed};

impl<I: Io> Shell<I> {
    /// Starts the next write of an idle output, if it has something to write.
    pub(super) fn write(&mut self, now: Moment, slot: usize) {
        match self.reactor.connections.get(slot).map(|connection| &connection.protocol) {
            Some(Protocol::Lines(_) | Protocol::WebSocket(..)) => self.reactor.write_to_peer(now, slot),
            Some(Protocol::Http(_)) => self.send_http(now, slot),
            None => {}
        }
    }

    /// A write, or a wait for room, has completed.
    pub(super) fn written(&mut self, now: Moment, slot: usize, result: i32) {
        let reactor = &mut self.reactor;
        let transport = &mut reactor.connections[slot];
        transport.in_flight.end(Flight::Write);
        debug_assert!(transport.ends.output().is_some(), "it was closed under the kernel");
        if transport.in_flight.remove(Flight::Room) {
            return reactor.awaited_room(now, slot, result);
        }
        match reactor.connections.http(slot) {
            None => reactor.peer_written(now, slot, result),
            Some(_) => self.http_sent(now, slot, result),
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Starts the next write to a peer of the core. If it is not being read, also watches it.
    fn write_to_peer(&mut self, now: Moment, slot: usize) {
        if self.connections[slot].has_ended() {
            self.watch(slot);
        }
        let Connection { transport, protocol } = self.connections.entry(slot);
        if transport.in_flight.has(Flight::Write)
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
                    false => self.shut_down(now, slot),
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
        transport.in_flight.add(Flight::Write);
        // SAFETY: the outbox keeps the segments and the descriptor stays open while the write is in flight.
        unsafe { self.io.submit(submission, Operation::Write.token(slot)) };
    }

    fn peer_written(&mut self, now: Moment, slot: usize, result: i32) {
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
        let peer = self.connections[AsPeer(slot)].peer;
        if lines > 0 {
            self.tell(now, Input::Sent { peer, bytes: lines });
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
                let peer = self.connections[AsPeer(slot)].peer;
                self.broken(now, slot, peer, io::Error::from_raw_os_error(error).to_string());
            }
        }
    }

    /// A socket is full; or another process has made our stdout non-blocking, in which case the ring does not wait. The
    /// kernel reports room only after much of the client's data was acknowledged, between a quarter and three quarters:
    /// a slow reader would seem not to read at all, so the write is also retried on a timer.
    pub(super) fn await_room(&mut self, now: Moment, slot: usize) {
        self.connections[slot].room.none(now);
        self.schedule(slot);
        let transport = &mut self.connections[slot];
        let Some(descriptor) = transport.ends.raw_output() else { return };
        transport.in_flight.add(Flight::Write);
        transport.in_flight.add(Flight::Room);
        let half_closed = transport.is_half_closed();
        // SAFETY: the descriptor stays open while this is in flight.
        unsafe { self.io.submit(Submission::AwaitRoom { descriptor, half_closed }, Operation::Write.token(slot)) };
    }

    fn awaited_room(&mut self, now: Moment, slot: usize, result: i32) {
        if self.remove_if_idle(slot) {
            return;
        }
        let transport = &mut self.connections[slot];
        if tells_half_closed(result) {
            transport.half_closes();
            return self.await_room(now, slot);
        }
        // If no notification can come, only the timer is left.
        if result != 0 || !transport.room.waits() {
            self.connections.mark_dirty(slot);
        }
    }

    /// Retries a socket that had no room.
    pub(super) fn retry_sending(&mut self, slot: usize) {
        let in_flight = self.connections[slot].in_flight;
        if in_flight.has(Flight::Room) {
            self.cancel(Operation::Write, slot);
        } else if !in_flight.has(Flight::Write) {
            self.connections.mark_dirty(slot);
        }
    }

    /// Tells the core how many bytes are in a worker's pipe.
    pub(super) fn tell_unread(&mut self, worker: WorkerKey) {
        let slot = self.connections.slot(Peer::Worker(worker));
        let Some(ends) = slot.map(|slot| &self.connections[slot].ends) else { return };
        let bytes = match ends.output() {
            Some(stdin) => ioctl_fionread(stdin).unwrap_or(0) as usize,
            None if ends.are_to_come() => 0,
            None => return,
        };
        self.tell(self.clock.now(), Input::Unread { worker, bytes });
    }
}
