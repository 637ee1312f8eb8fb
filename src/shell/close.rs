//! Closes connections: shut down or cancel, wait until the kernel holds no operation of them, then close.

use rustix::net::{Shutdown, shutdown};

use super::connections::{AsPeer, Connection};
use super::operation::Operation;
use super::protocol::Protocol;
use super::reactor::Reactor;
use super::transport::{Ends, Flight, State};
use crate::bus::port::{Close, Input, Moment, Peer, Reason};
use crate::io::{Io, Submission, tells_half_closed};

impl<I: Io> Reactor<I> {
    /// Watches for the departure of a peer where no read would show it: a paused or half-closed client, and a worker's
    /// stdin.
    pub(super) fn watch(&mut self, slot: usize) {
        let is_wanted = match self.connections.get(slot) {
            Some(Connection { transport, protocol: Protocol::Http(_) }) => !transport.is_closing(),
            Some(Connection { transport, protocol: Protocol::Lines(endpoint) | Protocol::WebSocket(endpoint, _) }) => {
                endpoint.is_to_be_watched(transport)
            }
            None => false,
        };
        if !is_wanted {
            return;
        }
        let transport = &mut self.connections[slot];
        let Some(descriptor) = transport.ends.raw_output() else { return };
        if !transport.in_flight.add(Flight::Watch) {
            return;
        }
        let half_closed = transport.is_half_closed();
        // SAFETY: the descriptor stays open while this is in flight.
        unsafe { self.io.submit(Submission::Watch { descriptor, half_closed }, Operation::Watch.token(slot)) };
    }

    /// A watched peer has gone or half-closed, or it is not watched any more.
    pub(super) fn watched(&mut self, now: Moment, slot: usize, result: i32) {
        self.connections[slot].in_flight.end(Flight::Watch);
        if self.remove_if_idle(slot) {
            return;
        }
        if tells_half_closed(result) {
            self.connections[slot].half_closes();
        }
        match self.connections.http(slot) {
            None => self.peer_watched(now, slot, result),
            Some(_) => self.http_watched(now, slot, result),
        }
    }

    fn peer_watched(&mut self, now: Moment, slot: usize, result: i32) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        if result < 0 || transport.state >= State::Lingering {
            return self.close_stdin_when_idle(slot);
        }
        if tells_half_closed(result) {
            self.tell_half_closed(slot);
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

    /// Tells the core that a client which is not read has half-closed.
    pub(super) fn tell_half_closed(&mut self, slot: usize) {
        if let Peer::Client(client) = self.connections[AsPeer(slot)].peer
            && self.connections[slot].ends.is_socket()
            && self.connections[AsPeer(slot)].incoming.is_paused
            && self.connections[slot].is_half_closed()
        {
            self.tell(self.clock.now(), Input::SendsNoMore(client));
        }
    }

    /// Closes the output once everything was written.
    pub(super) fn close_after_flush(&mut self, slot: usize) {
        self.connections[slot].drain();
        self.connections.mark_dirty(slot);
    }

    pub(super) fn shut_down(&mut self, now: Moment, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        transport.state = State::Lingering;
        if transport.ends.is_worker() {
            if transport.in_flight.has(Flight::Watch) {
                self.cancel(Operation::Watch, slot);
            }
            return self.close_stdin_when_idle(slot);
        }
        let is_socket = transport.ends.is_socket();
        if is_socket && let Some(socket) = transport.ends.output() {
            // A client that has gone already needs no shutdown.
            let _ = shutdown(socket, Shutdown::Write);
        }
        if is_socket && !transport.has_ended() {
            self.arm_read(slot);
        } else {
            let peer = endpoint.peer;
            self.tell(now, Input::Ended { peer, partial: 0 });
        }
    }

    pub(super) fn close_stdin_when_idle(&mut self, slot: usize) {
        let transport = &mut self.connections[slot];
        let is_busy = transport.in_flight.has(Flight::Write) || transport.in_flight.has(Flight::Watch);
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
            return self.hear_to_the_end(slot);
        }
        if let Some(web) = self.connections.entry(slot).protocol.web_mut() {
            web.set_close_frame(why);
        }
        let (transport, endpoint) = self.connections.peer_parts(slot);
        // What is discarded need not be paused, and reading continues without the buffer of a line.
        (endpoint.incoming.is_discarded, endpoint.incoming.is_paused) = (true, false);
        if !transport.in_flight.has(Flight::Read) {
            transport.inbox.release(self.io.buffers());
        } else if transport.inbox.weight() > 0 {
            self.cancel(Operation::Read, slot);
        }
        match how {
            Close::Now => self.leave(slot),
            Close::Flush | Close::Refuse => {
                self.close_after_flush(slot);
                self.arm_read(slot);
            }
        }
    }

    /// Reads a client until the core decides. It may not need the line that is being read into place, which is
    /// presented as far as it was received.
    fn hear_to_the_end(&mut self, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        endpoint.incoming.is_paused = false;
        if transport.in_flight.has(Flight::Read) && !transport.inbox.is_empty() {
            self.cancel(Operation::Read, slot);
        }
        self.connections.resume_soon(slot);
    }

    /// Closes the connection of a peer of the core at once.
    pub(super) fn leave(&mut self, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        if transport.is_closing() {
            return;
        }
        let has_rest_of_stderr = endpoint.stderr.is_some() && !transport.in_flight.has(Flight::Stderr);
        self.cancel_all(slot);
        if has_rest_of_stderr {
            self.read_stderr(slot);
        }
        self.remove_if_idle(slot);
    }

    /// Cancels all operations of a connection, which is removed when the last of them has completed.
    pub(super) fn cancel_all(&mut self, slot: usize) {
        let transport = &mut self.connections[slot];
        transport.state = State::Closing;
        let (is_socket, in_flight) = (transport.ends.is_socket(), transport.in_flight);
        if is_socket
            && !in_flight.is_empty()
            && let Some(socket) = transport.ends.input()
        {
            // All reads and writes of the socket complete after this.
            let _ = shutdown(socket, Shutdown::Both);
        }
        let operations = [
            (Flight::Read, Operation::Read, !is_socket),
            (Flight::Write, Operation::Write, !is_socket),
            (Flight::Watch, Operation::Watch, true),
            (Flight::Stderr, Operation::ReadStderr, true),
        ];
        for (flight, operation, needs_it) in operations {
            if needs_it && in_flight.has(flight) {
                self.cancel(operation, slot);
            }
        }
    }

    /// Removes a connection that is closing and has nothing in flight. Returns whether it is closing.
    pub(super) fn remove_if_idle(&mut self, slot: usize) -> bool {
        let transport = &self.connections[slot];
        if !transport.is_closing() {
            return false;
        }
        let is_over = transport.is_over();
        // Operations on an inherited descriptor may never complete, so they are not waited for.
        let is_told = is_over || transport.ends.is_stdio();
        let client = match self.connections.peer(slot).map(|endpoint| endpoint.peer) {
            Some(Peer::Client(client)) if is_told => Some(client),
            _ => None,
        };
        if is_over {
            self.remove(slot);
        }
        if let Some(client) = client
            && self.connections.release_client(client, slot)
        {
            self.listeners.grants.forget(client);
            self.notify.changed();
            self.tell(self.clock.now(), Input::Closed(client));
        }
        true
    }

    /// Removes a connection that the kernel holds no operation of.
    pub(super) fn remove(&mut self, slot: usize) {
        let Connection { mut transport, protocol } = self.connections.remove(slot);
        if transport.ends.is_stdio() {
            self.stdio.count_unwritten(transport.outbox.lines());
        }
        transport.release(self.io.buffers());
        if let Protocol::Http(mut exchange) = protocol {
            exchange.outgoing.let_go(self.io.buffers());
            self.http.forget(&mut exchange);
        }
        self.free_descriptor();
    }
}
