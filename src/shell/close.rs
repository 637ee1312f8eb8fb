//! How links end: shut down or cancel, wait until the kernel holds nothing of them, then close.

use super::connection::{Closing, End, Kind};
use super::effects::Hands;
use super::operation::Operation;
use crate::bus::port::{Close, Input, Moment, Peer};
use crate::io::{Io, Submission};

impl<I: Io> Hands<I> {
    /// Watches for the other side's leaving where no read would show it: a paused or half-closed client, and a worker's
    /// stdin.
    pub(super) fn watch(&mut self, slot: usize) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let wanted = match link.kind {
            Kind::Socket => link.paused || link.end != End::Open,
            Kind::Worker => true,
            Kind::Stdio => false,
        };
        let Some(descriptor) = link.out().filter(|_| wanted && !link.watching && link.closing < Closing::ShutDown)
        else {
            return;
        };
        link.watching = true;
        // SAFETY: the descriptor stays open while `watching` is set.
        unsafe { self.io.submit(Submission::Watch { descriptor }, Operation::Watch.token(slot)) };
    }

    pub(super) fn watched(&mut self, now: Moment, slot: usize, result: i32) {
        debug_assert!(self.links[slot].watching);
        self.links[slot].watching = false;
        if self.gone(slot) {
            return;
        }
        let link = &self.links[slot];
        if result < 0 || link.closing >= Closing::ShutDown {
            return self.close_stdin_when_idle(slot);
        }
        let peer = link.peer;
        // A socket that is read again will show its end by itself, after its last bytes; and one that will only send
        // nothing more may still wait for answers. Unix sockets tell that from a full close; on TCP the next send does.
        let has_gone = result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
        if link.kind == Kind::Worker || ((link.paused || link.end != End::Open) && has_gone) {
            self.broken(now, slot, peer, "the other side has gone".to_owned());
        }
    }

    /// Closes the output once everything is written.
    pub(super) fn close_after_flush(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        link.closing = link.closing.max(Closing::AfterFlush);
        self.mark_dirty(slot);
    }

    pub(super) fn shut_down(&mut self, now: Moment, slot: usize) {
        let link = &mut self.links[slot];
        link.closing = Closing::ShutDown;
        match link.kind {
            Kind::Worker => {
                if link.watching {
                    self.io.cancel(Operation::Watch.token(slot));
                }
                self.close_stdin_when_idle(slot);
            }
            Kind::Socket => {
                if let Some(descriptor) = link.out() {
                    // SAFETY: the descriptor is open.
                    unsafe { libc::shutdown(descriptor, libc::SHUT_WR) };
                }
                if link.end != End::Open {
                    let peer = link.peer;
                    self.tell(now, Input::Ended { peer, partial: 0 });
                } else {
                    self.arm_read(slot);
                }
            }
            Kind::Stdio => {
                let peer = link.peer;
                self.tell(now, Input::Ended { peer, partial: 0 });
            }
        }
    }

    pub(super) fn close_stdin_when_idle(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        if link.kind == Kind::Worker && link.closing == Closing::ShutDown && !link.writing && !link.watching {
            link.output = None;
        }
    }

    /// The core closes a client.
    pub(super) fn close(&mut self, slot: usize, how: Close) {
        let link = &mut self.links[slot];
        link.discard = true;
        // What it sends is thrown away, so nobody has to be spared it.
        link.paused = false;
        link.inbox_is_over(self.io.buffers());
        if link.reading && link.inbox.weight() > 0 {
            // It goes on without the memory of its line.
            self.io.cancel(Operation::Read.token(slot));
        }
        match how {
            Close::Flush => {
                self.close_after_flush(slot);
                self.arm_read(slot);
            }
            Close::Now => {
                self.leave(slot);
            }
        }
    }

    /// Ends everything of a link that is in flight; it goes when the last of it has completed.
    pub(super) fn leave(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        if link.closing == Closing::Leaving {
            return;
        }
        link.closing = Closing::Leaving;
        if link.kind == Kind::Socket
            && let Some(input) = &link.input
        {
            // SAFETY: the descriptor is open. All operations on the socket complete after this.
            unsafe { libc::shutdown(input.raw(), libc::SHUT_RDWR) };
        }
        let flights = [
            (link.reading && link.kind != Kind::Socket, Operation::Read),
            (link.writing && link.kind != Kind::Socket, Operation::Write),
            (link.watching, Operation::Watch),
            (link.reading_stderr, Operation::ReadStderr),
        ];
        let has_stderr = link.stderr.is_some() && !link.reading_stderr;
        for (in_flight, operation) in flights {
            if in_flight {
                self.io.cancel(operation.token(slot));
            }
        }
        if has_stderr {
            self.read_stderr(slot, Operation::ReadRestOfStderr);
        }
        self.gone(slot);
    }

    /// Removes a link that is leaving and has nothing in flight. True if it is leaving.
    pub(super) fn gone(&mut self, slot: usize) -> bool {
        let link = &mut self.links[slot];
        if link.closing != Closing::Leaving {
            return false;
        }
        // What an inherited descriptor still has in flight may never complete, and nobody waits for it.
        let client = match link.peer {
            Peer::Client(client) if link.is_idle() || link.kind == Kind::Stdio => Some(client),
            _ => None,
        };
        if link.is_idle() {
            let mut link = self.links.remove(slot);
            link.outbox.clear(self.io.buffers());
            link.inbox.release(self.io.buffers());
            drop(link);
            self.free_descriptor();
        }
        if let Some(client) = client
            && self.clients[client.index()] == Some(slot)
        {
            self.clients[client.index()] = None;
            self.tell(self.clock.now(), Input::Closed { client });
        }
        true
    }

    /// A descriptor was closed: accepting may work again.
    pub(super) fn free_descriptor(&mut self) {
        for gate in &mut self.gates {
            if gate.retry_at.is_some() {
                gate.retry_at = Some(self.clock.now());
            }
        }
    }
}
