//! How connections end: shut down or cancel, wait until the kernel holds nothing of them, then close.

use rustix::net::{Shutdown, shutdown};

use super::connection::{Closing, Descriptor, End, Kind};
use super::operation::Operation;
use super::reactor::Reactor;
use crate::bus::port::{Close, Input, Moment, Peer, Reason};
use crate::io::{Io, Submission, tells_half_closed};

impl<I: Io> Reactor<I> {
    /// Watches for the other side's leaving where no read would show it: a paused or half-closed client, and a worker's
    /// stdin.
    pub(super) fn watch(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let wanted = match connection.kind {
            Kind::Socket => connection.paused || connection.end != End::Open,
            Kind::Worker => true,
            Kind::Stdio => false,
        };
        let Some(descriptor) = connection
            .out()
            .map(Descriptor::raw)
            .filter(|_| wanted && !connection.watching && connection.closing < Closing::ShutDown)
        else {
            return;
        };
        connection.watching = true;
        let half_closed = connection.is_half_closed();
        // SAFETY: the descriptor stays open while `watching` is set.
        unsafe { self.io.submit(Submission::Watch { descriptor, half_closed }, Operation::Watch.token(slot)) };
    }

    pub(super) fn watched(&mut self, now: Moment, slot: usize, result: i32) {
        debug_assert!(self.connections[slot].watching);
        self.connections[slot].watching = false;
        if self.remove_if_idle(slot) {
            return;
        }
        let connection = &mut self.connections[slot];
        if result < 0 || connection.closing >= Closing::ShutDown {
            return self.close_stdin_when_idle(slot);
        }
        if tells_half_closed(result) {
            connection.half_closed = true;
            self.tell_half_closed(slot);
            return self.watch(slot);
        }
        let peer = connection.peer;
        // A socket that is read again will show its end by itself, after its last bytes; and one that will only send
        // nothing more may still wait for answers. Unix sockets tell that from a full close; on TCP the next send does.
        let has_gone = result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
        if connection.kind == Kind::Worker || ((connection.paused || connection.end != End::Open) && has_gone) {
            self.broken(now, slot, peer, "the other side has gone".to_owned());
        }
    }

    /// Tells the core of a client that is not read and sends no more.
    pub(super) fn tell_half_closed(&mut self, slot: usize) {
        let connection = &self.connections[slot];
        if let Peer::Client(client) = connection.peer
            && connection.kind == Kind::Socket
            && connection.paused
            && connection.is_half_closed()
        {
            self.tell(self.clock.now(), Input::SendsNoMore { client });
        }
    }

    /// Closes the output once everything is written.
    pub(super) fn close_after_flush(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        connection.closing = connection.closing.max(Closing::AfterFlush);
        self.mark_dirty(slot);
    }

    pub(super) fn shut_down(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        connection.closing = Closing::ShutDown;
        match connection.kind {
            Kind::Worker => {
                if connection.watching {
                    self.io.cancel(Operation::Watch.token(slot));
                }
                self.close_stdin_when_idle(slot);
            }
            Kind::Socket => {
                if let Some(descriptor) = connection.out() {
                    // Whoever has gone already needs no end.
                    let _ = shutdown(descriptor, Shutdown::Write);
                }
                if connection.end != End::Open {
                    let peer = connection.peer;
                    self.tell(now, Input::Ended { peer, partial: 0 });
                } else {
                    self.arm_read(slot);
                }
            }
            Kind::Stdio => {
                let peer = connection.peer;
                self.tell(now, Input::Ended { peer, partial: 0 });
            }
        }
    }

    pub(super) fn close_stdin_when_idle(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.kind == Kind::Worker
            && connection.closing == Closing::ShutDown
            && !connection.writing
            && !connection.watching
        {
            connection.output = None;
        }
    }

    /// The core closes a client.
    pub(super) fn close(&mut self, slot: usize, how: Close, why: Reason) {
        if how == Close::Refuse {
            return self.hear_to_the_end(slot);
        }
        self.set_close_frame(slot, why);
        let connection = &mut self.connections[slot];
        connection.discard = true;
        // What it sends is thrown away, so nobody has to be spared it.
        connection.paused = false;
        connection.release_inbox(self.io.buffers());
        if connection.reading && connection.inbox.weight() > 0 {
            // It goes on without the memory of its line.
            self.io.cancel(Operation::Read.token(slot));
        }
        match how {
            Close::Now => self.leave(slot),
            Close::Flush | Close::Refuse => {
                self.close_after_flush(slot);
                self.arm_read(slot);
            }
        }
    }

    /// A client is read until the core says more. It may have no use for the line that is being read into place, which is
    /// presented as far as it has come.
    fn hear_to_the_end(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        connection.paused = false;
        if connection.reading && !connection.inbox.is_empty() {
            self.io.cancel(Operation::Read.token(slot));
        }
        self.resume_soon(slot);
    }

    /// Ends everything of a connection that is in flight; it goes when the last of it has completed.
    pub(super) fn leave(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.closing == Closing::Leaving {
            return;
        }
        connection.closing = Closing::Leaving;
        if connection.kind == Kind::Socket
            && let Some(input) = &connection.input
        {
            // All operations on the socket complete after this.
            let _ = shutdown(input, Shutdown::Both);
        }
        let flights = [
            (connection.reading && connection.kind != Kind::Socket, Operation::Read),
            (connection.writing && connection.kind != Kind::Socket, Operation::Write),
            (connection.watching, Operation::Watch),
            (connection.reading_stderr, Operation::ReadStderr),
        ];
        let has_stderr = connection.stderr.is_some() && !connection.reading_stderr;
        for (in_flight, operation) in flights {
            if in_flight {
                self.io.cancel(operation.token(slot));
            }
        }
        if has_stderr {
            self.read_stderr(slot, Operation::ReadRestOfStderr);
        }
        self.remove_if_idle(slot);
    }

    /// Removes a connection that is leaving and has nothing in flight. True if it is leaving.
    pub(super) fn remove_if_idle(&mut self, slot: usize) -> bool {
        let connection = &mut self.connections[slot];
        if connection.closing != Closing::Leaving {
            return false;
        }
        // What an inherited descriptor still has in flight may never complete, and nobody waits for it.
        let client = match connection.peer {
            Peer::Client(client) if connection.is_idle() || connection.kind == Kind::Stdio => Some(client),
            _ => None,
        };
        if connection.is_idle() {
            let mut connection = self.connections.remove(slot);
            if connection.kind == Kind::Stdio {
                self.count_unwritten(connection.outbox.lines());
            }
            connection.outbox.clear(self.io.buffers());
            connection.inbox.release(self.io.buffers());
            drop(connection);
            self.free_descriptor();
        }
        if let Some(client) = client
            && self.clients[client.index()] == Some(slot)
        {
            self.clients[client.index()] = None;
            self.notify.changed();
            self.tell(self.clock.now(), Input::Closed { client });
        }
        true
    }

    /// A descriptor was closed: accepting may work again.
    pub(super) fn free_descriptor(&mut self) {
        for acceptor in &mut self.acceptors {
            if acceptor.retry_at.is_some() {
                acceptor.retry_at = Some(self.clock.now());
            }
        }
    }
}
