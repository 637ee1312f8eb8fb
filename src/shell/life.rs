//! The life of a connection in its order, whatever it speaks. What the kernel reports of it comes here first, ends the
//! operation in flight, and hands over to the protocol of the connection.
//!
//! It begins where it is accepted (`accept.rs`) or spawned (`workers`), and its states are those of
//! [`State`](super::transport::State). Peers of the core, which speak lines or WebSocket, receive in `read.rs`, send in
//! `write.rs` and are closed in `close.rs`; HTTP does all three in `http/serve.rs`.

use rustix::net::{Shutdown, shutdown};

use super::connections::Connection;
use super::operation::Operation;
use super::protocol::Protocol;
use super::reactor::Reactor;
use super::timers::Timer;
use super::transport::{Ends, PendingOp, State};
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Peer};
use crate::io::ring::Completion;
use crate::io::{Io, Submission, is_half_closed};

/// Receiving.
impl<I: Io> Shell<I> {
    /// A receive into a provided buffer has completed.
    pub(super) fn received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        self.reactor.connections[slot].in_flight.end(PendingOp::Read);
        match self.reactor.connections.http(slot) {
            None => self.peer_received(now, slot, completion),
            Some(_) => self.http_received(now, slot, completion),
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Receives again on a connection whose receive found no buffer.
    pub(super) fn receive_again(&mut self, slot: usize) {
        match self.connections.get(slot).map(|connection| &connection.protocol) {
            Some(Protocol::Lines(_) | Protocol::WebSocket(..)) => self.arm_read(slot),
            Some(Protocol::Http(_)) => self.arm_http_receive(slot),
            None => {}
        }
    }
}

/// Sending.
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
        transport.in_flight.end(PendingOp::Write);
        debug_assert!(transport.ends.output().is_some(), "it was closed under the kernel");
        if transport.in_flight.remove(PendingOp::Room) {
            return reactor.awaited_room(now, slot, result);
        }
        match reactor.connections.http(slot) {
            None => reactor.peer_written(now, slot, result),
            Some(_) => self.http_sent(now, slot, result),
        }
    }
}

impl<I: Io> Reactor<I> {
    /// A socket is full; or another process has made our stdout non-blocking, in which case the ring does not wait. The
    /// kernel reports room only after much of the client's data was acknowledged, between a quarter and three quarters:
    /// a slow reader would seem not to read at all, so the write is also retried on a timer.
    pub(super) fn await_room(&mut self, now: Moment, slot: usize) {
        self.connections[slot].room.none(now);
        self.schedule(slot);
        let transport = &mut self.connections[slot];
        let Some(descriptor) = transport.ends.raw_output() else { return };
        transport.in_flight.add(PendingOp::Write);
        transport.in_flight.add(PendingOp::Room);
        let half_closed = transport.is_half_closed();
        // SAFETY: the descriptor stays open while this is in flight.
        unsafe { self.io.submit(Submission::AwaitRoom { descriptor, half_closed }, Operation::Write.token(slot)) };
    }

    fn awaited_room(&mut self, now: Moment, slot: usize, result: i32) {
        if self.remove_if_idle(slot) {
            return;
        }
        let transport = &mut self.connections[slot];
        if is_half_closed(result) {
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
        if in_flight.has(PendingOp::Room) {
            self.cancel(Operation::Write, slot);
        } else if !in_flight.has(PendingOp::Write) {
            self.connections.mark_dirty(slot);
        }
    }
}

/// Draining and lingering.
impl<I: Io> Reactor<I> {
    /// Closes a connection in order once everything queued was sent.
    pub(super) fn close_after_flush(&mut self, slot: usize) {
        self.connections[slot].drain();
        self.connections.mark_dirty(slot);
    }

    /// Everything was sent: sends our end, and waits for the peer's. Closed with unread bytes, a socket would be reset, and
    /// the last answer might be lost. A WebSocket whose client has sent its close frame has nothing to wait for: the
    /// server closes first (RFC 6455, section 7.1.1).
    pub(super) fn linger(&mut self, now: Moment, slot: usize) {
        let has_left = self.connections.entry(slot).has_left();
        let transport = &mut self.connections[slot];
        let was_draining = transport.is_draining();
        transport.state = State::Lingering;
        if let Ends::Socket(socket) = &transport.ends
            && !has_left
        {
            // One that has gone already needs no shutdown.
            let _ = shutdown(socket, Shutdown::Write);
        }
        match self.connections.http(slot) {
            None => self.peer_lingers(now, slot),
            Some(_) => self.http_lingers(now, slot, was_draining),
        }
    }
}

/// Watching whether a peer that is not read has gone, and waiting for its time.
impl<I: Io> Reactor<I> {
    /// Sets the timer of a connection. It may expire earlier, and keeps running when a connection has gone: usually the next
    /// one in its slot can use it.
    pub(super) fn schedule(&mut self, slot: usize) {
        if let Some(due) = self.connections.get(slot).and_then(Connection::due) {
            self.timers.set_at_latest(Timer::Connection(slot), due);
        }
    }

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
        if !transport.in_flight.add(PendingOp::Watch) {
            return;
        }
        let half_closed = transport.is_half_closed();
        // SAFETY: the descriptor stays open while this is in flight.
        unsafe { self.io.submit(Submission::Watch { descriptor, half_closed }, Operation::Watch.token(slot)) };
    }

    /// A watched peer has gone or half-closed, or it is not watched any more.
    pub(super) fn watched(&mut self, now: Moment, slot: usize, result: i32) {
        self.connections[slot].in_flight.end(PendingOp::Watch);
        if self.remove_if_idle(slot) {
            return;
        }
        if is_half_closed(result) {
            self.connections[slot].half_closes();
        }
        match self.connections.http(slot) {
            None => self.peer_watched(now, slot, result),
            Some(_) => self.http_watched(now, slot, result),
        }
    }
}

impl<I: Io> Shell<I> {
    /// Handles the expired timer of a connection.
    pub(super) fn connection_due(&mut self, now: Moment, slot: usize) {
        let reactor = &mut self.reactor;
        if reactor.connections.get(slot).is_none() {
            return;
        }
        if reactor.connections[slot].room.take_due(now) {
            reactor.retry_sending(slot);
        }
        match reactor.connections.http(slot) {
            None => reactor.lines_due(now, slot),
            Some(_) => self.http_due(now, slot),
        }
    }
}

/// Closing.
impl<I: Io> Reactor<I> {
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
            (PendingOp::Read, Operation::Read, !is_socket),
            (PendingOp::Write, Operation::Write, !is_socket),
            (PendingOp::Watch, Operation::Watch, true),
            (PendingOp::Stderr, Operation::ReadStderr, true),
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
        let is_reported_closed = is_over || transport.ends.is_stdio();
        let client = match self.connections.peer(slot).map(|endpoint| endpoint.peer) {
            Some(Peer::Client(client)) if is_reported_closed => Some(client),
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
            self.dispatch(self.clock.now(), Input::ClientClosed(client));
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
