//! Closes connections of peers of the core, in order or at once. `life.rs` cancels what is in flight and removes them.

use super::connections::PeerSlot;
use super::operation::Operation;
use super::reactor::Reactor;
use super::transport::{Ends, PendingOp, State};
use crate::bus::port::{Close, Input, Moment, Peer, Reason};
use crate::io::{Io, is_half_closed};

impl<I: Io> Reactor<I> {
    pub(super) fn peer_watched(&mut self, now: Moment, slot: usize, result: i32) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        if result < 0 || transport.state >= State::Lingering {
            return self.close_stdin_when_idle(slot);
        }
        if is_half_closed(result) {
            self.report_half_closed(slot);
            return self.watch(slot);
        }
        let peer = endpoint.peer;
        // A socket that is read again will show its end itself, after its last bytes; and a half-closed one may still
        // wait for answers. On Unix sockets a full close can be distinguished; on TCP it is provoked (`liveness.rs`).
        let has_gone = result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
        if transport.ends.is_worker() || (endpoint.is_not_read(transport) && has_gone) {
            self.broken(now, slot, peer, "the peer has disconnected".to_owned());
        }
    }

    /// Reports to the core that a client which is not read has half-closed.
    pub(super) fn report_half_closed(&mut self, slot: usize) {
        if let Peer::Client(client) = self.connections[PeerSlot(slot)].peer
            && self.connections[slot].ends.is_socket()
            && self.connections[PeerSlot(slot)].incoming.is_paused
            && self.connections[slot].is_half_closed()
        {
            self.dispatch(self.clock.now(), Input::InputStopped(client));
        }
    }

    /// Our end was sent to a peer of the core, or will be once a worker's stdin is idle.
    pub(super) fn peer_lingers(&mut self, now: Moment, slot: usize) {
        let has_left = self.connections.entry(slot).has_left();
        let (transport, endpoint) = self.connections.peer_parts(slot);
        if transport.ends.is_worker() {
            if transport.in_flight.has(PendingOp::Watch) {
                self.cancel(Operation::Watch, slot);
            }
            return self.close_stdin_when_idle(slot);
        }
        if transport.ends.is_socket() && !transport.has_ended() && !has_left {
            self.arm_read(slot);
        } else {
            let peer = endpoint.peer;
            self.dispatch(now, Input::InputEnded { peer, partial: 0 });
        }
    }

    pub(super) fn close_stdin_when_idle(&mut self, slot: usize) {
        let transport = &mut self.connections[slot];
        let is_busy = transport.in_flight.has(PendingOp::Write) || transport.in_flight.has(PendingOp::Watch);
        if let Ends::Worker { stdin, .. } = &mut transport.ends
            && transport.state == State::Lingering
            && !is_busy
        {
            *stdin = None;
        }
    }

    /// Closes a client for the core.
    pub(super) fn close(&mut self, slot: usize, how: Close, why: Reason) {
        if how == Close::Refuse {
            return self.drain_input(slot);
        }
        if let Some(web) = self.connections.entry(slot).protocol.web_mut() {
            web.set_close_frame(why);
        }
        let (transport, endpoint) = self.connections.peer_parts(slot);
        // What is discarded need not be paused, and reading continues without the buffer of a line.
        (endpoint.incoming.is_discarded, endpoint.incoming.is_paused) = (true, false);
        if !transport.in_flight.has(PendingOp::Read) {
            transport.inbox.release(self.io.buffers());
        } else if transport.inbox.weight() > 0 {
            self.cancel(Operation::Read, slot);
        }
        match how {
            Close::Now => self.begin_close(slot),
            Close::Flush | Close::Refuse => {
                self.close_after_flush(slot);
                self.arm_read(slot);
            }
        }
    }

    /// Reads a client until the core decides. It may not need the line that is being read into place, which is
    /// presented as far as it was received.
    fn drain_input(&mut self, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        endpoint.incoming.is_paused = false;
        if transport.in_flight.has(PendingOp::Read) && !transport.inbox.is_empty() {
            self.cancel(Operation::Read, slot);
        }
        self.connections.resume_soon(slot);
    }

    /// Closes the connection of a peer of the core at once.
    pub(super) fn begin_close(&mut self, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        if transport.is_closing() {
            return;
        }
        let has_rest_of_stderr = endpoint.stderr.is_some() && !transport.in_flight.has(PendingOp::Stderr);
        self.cancel_all(slot);
        if has_rest_of_stderr {
            self.read_stderr(slot);
        }
        self.remove_if_idle(slot);
    }
}
