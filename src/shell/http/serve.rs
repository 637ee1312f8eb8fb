//! Moves the bytes of connections that speak HTTP: reads requests for their services, sends queued output, and closes.

use std::os::fd::AsRawFd;

use rustix::net::sockopt;

use super::exchange::{Accepted, Exchange, KEEP_ALIVE, LINGER, REQUEST_TIME, SEND_TIME, State, limits};
use super::requests::{ClientRequests, SHORT};
use super::service::Service;
use crate::bus::port::{Input, Moment};
use crate::http1::{CONTINUE, Event, Method, Request, Status};
use crate::io::ring::Completion;
use crate::io::{Io, Submission, is_half_closed};
use crate::mcp::write::Manner;
use crate::mcp::{Fault, write};
use crate::shell::admin::serve::OperatorRequests;
use crate::shell::connection_counts::Purpose;
use crate::shell::connections::HttpSlot;
use crate::shell::handshakes::Handshakes;
use crate::shell::liveness::{SUSPECT_AFTER, provoke_reset};
use crate::shell::operation::Operation;
use crate::shell::reactor::Reactor;
use crate::shell::transport::{self, Drain, HalfClose, PendingOp};
use crate::shell::turn::Shell;

/// Size of the first receive on a new connection: most requests are shorter.
const FIRST: usize = 4096;
/// A connection is read no further while this much of its next requests is kept behind the current one.
const MOST_BEHIND: usize = 8 * 1024;
/// Most heads are shorter. Only while memory is not short may one become longer.
const USUAL_HEAD: usize = 8 * 1024;

/// Everything was sent, and the connection ends as soon as its receive is cancelled.
const DRAINED: transport::State = transport::State::Draining(Drain::Receive);

/// Calls a function of the service that a connection is for.
macro_rules! by_service {
    ($purpose:expr, $function:ident($($argument:expr),*)) => {
        match $purpose {
            Purpose::Requests => <ClientRequests as Service>::$function($($argument),*),
            Purpose::Admin => <OperatorRequests as Service>::$function($($argument),*),
            Purpose::Handshake => <Handshakes as Service>::$function($($argument),*),
        }
    };
}

impl<I: Io> Shell<I> {
    /// A connection to a listener whose clients are requests was accepted.
    pub(in crate::shell) fn http_connected(&mut self, now: Moment, accepted: Accepted) {
        let (listener, place) = (accepted.listener, accepted.place);
        if !self.make_room_for_http(now, place.source()) {
            drop(accepted);
            return self.reactor.free_descriptor();
        }
        let reactor = &mut self.reactor;
        let limits = limits(reactor.connections.longest_client_line);
        let slot = reactor.connections.begin_http(now, accepted, Purpose::Requests, limits);
        self.receive_first(now, slot);
        self.enforce_source_limit(now, listener, place);
    }

    /// Receives the first bytes: usually the request has arrived by now.
    pub(in crate::shell) fn receive_first(&mut self, now: Moment, slot: usize) {
        let Reactor { io, connections, .. } = &mut self.reactor;
        let mut first = [0; FIRST];
        let received = io.receive_now(connections[slot].socket(), &mut first);
        self.read_http(now, slot, &first[..received]);
    }

    /// A receive has completed.
    pub(in crate::shell) fn http_received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let reactor = &mut self.reactor;
        if let Some(buffer) = completion.buffer() {
            if completion.result > 0 {
                // SAFETY: the buffer is returned after the last use of the window.
                let window = unsafe { reactor.io.received(buffer, completion.result as usize) };
                self.http_came(now, slot, window.data());
                return self.reactor.io.return_received(buffer);
            }
            reactor.io.return_received(buffer);
        }
        let (transport, exchange) = reactor.connections.http_parts(slot);
        match (exchange.state, completion.result) {
            _ if transport.is_closing() => _ = reactor.remove_if_idle(slot),
            _ if transport.state == DRAINED => self.reactor.linger(now, slot),
            (State::Answering, ..0) if transport.is_draining() => {}
            (_, error) if error == -libc::ENOBUFS => reactor.connections.starved.push(slot),
            (_, error) if error == -libc::EAGAIN || error == -libc::EINTR => reactor.arm_http_receive(slot),
            (State::Header | State::Reading, _) => by_service!(exchange.purpose, ended(self, now, slot)),
            (_, ..0) => self.reactor.close_http(now, slot),
            _ => self.http_ended(now, slot),
        }
    }

    /// Bytes were received.
    fn http_came(&mut self, now: Moment, slot: usize, bytes: &[u8]) {
        let reactor = &mut self.reactor;
        let (transport, exchange) = reactor.connections.http_parts(slot);
        match exchange.state {
            _ if transport.is_closing() => _ = reactor.remove_if_idle(slot),
            State::Over if transport.is_draining() => {
                transport.state = transport::State::Open;
                reactor.linger(now, slot);
            }
            State::Over => reactor.arm_http_receive(slot),
            State::Header | State::Reading => {
                if exchange.is_idle(transport) {
                    exchange.since = now;
                }
                self.read_http(now, slot, bytes);
            }
            _ => {
                exchange.incoming.bytes.extend_from_slice(bytes);
                reactor.http.weigh(&mut reactor.connections, slot);
                reactor.arm_http_receive(slot);
            }
        }
    }

    /// The client has half-closed. What that means for a request depends on what it speaks.
    fn http_ended(&mut self, now: Moment, slot: usize) {
        self.reactor.connections[slot].half = HalfClose::Read;
        match self.reactor.connections[HttpSlot(slot)].state {
            State::Waiting | State::Events => self.reactor.half_closed_by_role(now, slot),
            State::Answering => {}
            _ => self.reactor.close_http(now, slot),
        }
    }

    /// Parses requests from kept and new bytes. Bytes that are not consumed are kept.
    pub(super) fn read_http(&mut self, now: Moment, slot: usize, new: &[u8]) {
        let mut kept = std::mem::take(&mut self.reactor.connections[HttpSlot(slot)].incoming.bytes);
        if !kept.is_empty() {
            kept.extend_from_slice(new);
        }
        let bytes = if kept.is_empty() { new } else { &kept };
        let awaited_header = self.reactor.connections[HttpSlot(slot)].state == State::Header;
        let mut at = if awaited_header { self.read_header(now, slot, bytes) } else { 0 };
        while let Some(connection) = self.reactor.connections.http_mut(slot)
            && connection.state == State::Reading
            && !connection.incoming.is_behind()
        {
            let result = match connection.reader.next(now, &bytes[at..]) {
                Event::More(length) => {
                    at += length;
                    break;
                }
                Event::Head(head) => {
                    at += head.length;
                    self.take_head(now, slot, &head, &bytes[at..])
                }
                Event::Data { data, length } => {
                    at += length;
                    by_service!(connection.purpose, body(self, now, slot, data))
                }
                Event::End(length) => {
                    at += length;
                    by_service!(connection.purpose, request(self, now, slot));
                    Ok(())
                }
                Event::Wrong(error) => {
                    connection.incoming.is_head = false;
                    let purpose = connection.purpose;
                    Err(by_service!(purpose, malformed(error, self.reactor.connections.longest_client_line)))
                }
            };
            if let Err(fault) = result {
                self.fail_http(now, slot, &fault);
            }
        }
        let is_short = self.lent() > self.reactor.memory.short_above();
        let Some(connection) = self.reactor.connections.http_mut(slot) else { return };
        // An idle connection keeps no memory.
        connection.incoming.bytes = match at == bytes.len() {
            true => Vec::new(),
            false if kept.is_empty() => new[at..].to_vec(),
            false => {
                kept.drain(..at);
                kept
            }
        };
        let is_head = connection.state == State::Reading && !connection.incoming.is_behind();
        if is_short && is_head && connection.incoming.bytes.len() > USUAL_HEAD {
            connection.incoming.bytes = Vec::new();
            self.fail_http(now, slot, &Fault::busy(SHORT));
        }
        let Some((transport, exchange)) = self.reactor.connections.try_http_parts(slot) else { return };
        if exchange.state == State::Reading {
            let deadline = exchange.reader.deadline();
            let latest = if exchange.is_idle(transport) { deadline } else { exchange.since.after(REQUEST_TIME) };
            self.reactor.set_deadline(slot, deadline.min(latest));
        }
        self.reactor.http.weigh(&mut self.reactor.connections, slot);
        self.reactor.arm_http_receive(slot);
        let connection = &self.reactor.connections[HttpSlot(slot)];
        if awaited_header && connection.state == State::Reading {
            self.enforce_source_limit(now, connection.listener, connection.origin.place);
        }
    }

    /// Lets the scanner read a share of a body that it is behind with. What comes after it waits.
    pub(super) fn read_body_on(&mut self, now: Moment, slot: usize) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let Some(connection) = connections.http_mut(slot).filter(|it| it.state == State::Reading) else { return };
        let Some(upload) = connection.incoming.body.as_mut().filter(|upload| upload.is_behind()) else { return };
        let before = upload.weight();
        upload.go_on(&mut http.lines);
        http.memory.held = http.memory.held - before + upload.weight();
        if upload.is_behind() {
            return http.behind.push(slot);
        }
        if upload.is_ended() {
            by_service!(connection.purpose, request(self, now, slot));
        }
        self.read_http(now, slot, &[]);
    }

    /// Takes the head of a request; `begun` follows it.
    fn take_head(&mut self, now: Moment, slot: usize, head: &Request<'_>, begun: &[u8]) -> Result<(), Fault> {
        let Exchange { incoming, purpose, .. } = &mut self.reactor.connections[HttpSlot(slot)];
        (incoming.is_old, incoming.is_last) = (head.is_old, !head.keeps_alive);
        incoming.is_head = head.method == Method::Head;
        by_service!(*purpose, head(self, now, slot, head, begun))?;
        // The head alone answers some requests.
        if head.expects_continue()
            && let Some(connection) = self.reactor.connections.http_mut(slot)
            && connection.state == State::Reading
        {
            connection.outgoing.queue().extend_from_slice(CONTINUE);
            self.reactor.connections.mark_dirty(slot);
        }
        Ok(())
    }

    /// Refuses a request after which nothing can be read.
    pub(super) fn fail_http(&mut self, now: Moment, slot: usize, fault: &Fault) {
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        connection.incoming.is_last = true;
        by_service!(connection.purpose, fail(self, now, slot, fault));
    }

    /// A send has completed.
    pub(in crate::shell) fn http_sent(&mut self, now: Moment, slot: usize, result: i32) {
        let reactor = &mut self.reactor;
        let (transport, connection) = reactor.connections.http_parts(slot);
        match result {
            _ if transport.is_closing() => {
                reactor.remove_if_idle(slot);
                return;
            }
            1.. => {
                transport.room.took(result as usize);
                let owed = connection.outgoing.sent(result as usize, reactor.io.buffers());
                connection.since = now;
                reactor.sent_by_role(now, slot, owed);
            }
            error if error == -libc::EAGAIN => {
                let at = connection.since.after(connection.send_time());
                reactor.set_deadline(slot, at);
                return reactor.await_room(now, slot);
            }
            error if error == -libc::EINTR => {}
            _ => return self.reactor.close_http(now, slot),
        }
        self.send_http(now, slot);
    }

    /// Sends queued output; after a complete response, continues with the next request or closes.
    pub(in crate::shell) fn send_http(&mut self, now: Moment, slot: usize) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        match connections.http(slot).map(Exchange::is_operators) {
            Some(false) => http.weigh(connections, slot),
            Some(true) if !self.waits_for_piece(slot) => {}
            _ => return,
        }
        let reactor = &mut self.reactor;
        let transport = &reactor.connections[slot];
        if transport.in_flight.has(PendingOp::Write) || transport.is_closing() {
            return;
        }
        reactor.refill_http(now, slot);
        let (transport, exchange) = reactor.connections.http_parts(slot);
        let (parts, socket) = (exchange.may_part(transport), transport.socket().as_raw_fd());
        // The FIN is sent with the last bytes.
        if let Some(send) = exchange.outgoing.send(socket, parts) {
            transport.in_flight.add(PendingOp::Write);
            let cancels = parts && !transport.is_draining() && transport.in_flight.has(PendingOp::Read);
            if parts {
                transport.drain();
            }
            // SAFETY: what is sent is not touched and the socket stays open while this is in flight.
            unsafe { reactor.io.submit(send, Operation::Write.token(slot)) };
            if cancels {
                reactor.cancel(Operation::Receive, slot);
            }
            return;
        }
        match exchange.state {
            State::Answering => self.end_http_answer(now, slot),
            State::Events => reactor.set_deadline(slot, now.after(KEEP_ALIVE)),
            _ => {}
        }
    }

    /// A response was sent. The next request may have been received.
    fn end_http_answer(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        connection.since = now;
        (connection.outgoing.whole, connection.asks) = (None, None);
        connection.incoming.clear();
        let source = connection.source_between;
        self.reactor.connections.counts_for(slot, source);
        self.reactor.release_http(slot);
        let (transport, connection) = self.reactor.connections.http_parts(slot);
        if connection.incoming.is_last {
            let (sends_more, is_draining) = (!connection.incoming.bytes.is_empty(), transport.is_draining());
            if is_draining && !sends_more && transport.in_flight.has(PendingOp::Read) {
                // It is cancelled, and the connection closed as soon as that has completed.
                (connection.state, transport.state) = (State::Over, DRAINED);
            } else if transport.has_ended() && !is_draining {
                self.reactor.close_http(now, slot);
            } else {
                if sends_more {
                    transport.state = transport::State::Open;
                }
                self.reactor.linger(now, slot);
            }
            return;
        }
        let waiting = connection.incoming.bytes.len();
        connection.state = State::Reading;
        connection.reader.answered(now, waiting);
        if transport.has_ended() && waiting == 0 {
            return self.reactor.close_http(now, slot);
        }
        self.read_http(now, slot, &[]);
    }

    /// A connection has timed out.
    pub(in crate::shell) fn http_due(&mut self, now: Moment, slot: usize) {
        let Some((transport, connection)) = self.reactor.connections.try_http_parts(slot) else { return };
        if transport.deadline.is_none_or(|deadline| deadline > now) {
            return self.reactor.schedule(slot);
        }
        match connection.state {
            State::Reading if connection.incoming.is_behind() => {
                self.reactor.set_deadline(slot, now.after(REQUEST_TIME));
            }
            State::Header | State::Reading if !connection.is_idle(transport) => {
                by_service!(connection.purpose, late(self, now, slot));
            }
            State::Waiting | State::Events if connection.outgoing.is_empty() => {
                let has_ended = transport.is_half_closed();
                let has_begun = connection.state == State::Events;
                // A client that has half-closed may have gone, which is seen only if something is sent.
                if has_ended && !has_begun {
                    provoke_reset(transport.socket());
                }
                if !has_ended || has_begun || now.since(connection.since) >= KEEP_ALIVE {
                    self.reactor.keep_http_alive(now, slot);
                }
                if has_ended {
                    self.reactor.set_deadline(slot, now.after(SUSPECT_AFTER));
                }
            }
            State::Over if transport.is_closing() => {}
            State::Parked => self.parked_due_by_protocol(now, slot),
            State::Waiting | State::Events | State::Answering
                if now.since(connection.since) < connection.send_time() =>
            {
                let at = connection.since.after(connection.send_time());
                self.reactor.set_deadline(slot, at);
            }
            _ => self.reactor.close_http(now, slot),
        }
    }

    /// Ends the connections that `is_chosen` selects.
    pub(in crate::shell) fn close_all_http(&mut self, now: Moment, is_chosen: impl Fn(&Exchange) -> bool) {
        let all = self.reactor.connections.all_http().filter(|(_, _, exchange)| is_chosen(exchange));
        let slots: Vec<usize> = all.map(|(slot, ..)| slot).collect();
        slots.into_iter().for_each(|slot| self.reactor.close_http(now, slot));
    }
}

impl<I: Io> Reactor<I> {
    /// Our end was sent, with what was sent with `more` before it. A client that said that it sends no more, and has not, is
    /// not waited for: `was_last` says that the last response said so, too.
    pub(in crate::shell) fn http_lingers(&mut self, now: Moment, slot: usize, was_last: bool) {
        let (transport, connection) = self.connections.http_parts(slot);
        connection.state = State::Over;
        if was_last && self.io.receive_now(transport.socket(), &mut [0; 512]) == 0 {
            return self.close_http(now, slot);
        }
        connection.incoming.bytes = Vec::new();
        self.http.weigh(&mut self.connections, slot);
        self.set_deadline(slot, now.after(LINGER));
        self.arm_http_receive(slot);
    }

    /// Arms a receive, if input is of interest: during a response, only its end.
    pub(in crate::shell) fn arm_http_receive(&mut self, slot: usize) {
        let Some((transport, connection)) = self.connections.try_http_parts(slot) else { return };
        if transport.is_closing() || transport.has_ended() || transport.is_draining() {
            return;
        }
        if connection.state == State::Reading && connection.incoming.is_behind() {
            return;
        }
        if connection.state != State::Reading && connection.incoming.bytes.len() >= MOST_BEHIND {
            return self.watch(slot);
        }
        if !transport.in_flight.add(PendingOp::Read) {
            return;
        }
        let receive = Submission::Receive { socket: transport.socket().as_raw_fd(), was_empty: true };
        // SAFETY: the socket stays open while this is in flight.
        unsafe { self.io.submit(receive, Operation::Receive.token(slot)) };
    }

    /// A client that waits for answers has half-closed: it may have gone.
    pub(super) fn watch_half_closed(&mut self, now: Moment, slot: usize) {
        self.watch(slot);
        self.set_deadline(slot, now.after(SUSPECT_AFTER));
    }

    /// The client has gone, or half-closed.
    pub(in crate::shell) fn http_watched(&mut self, now: Moment, slot: usize, result: i32) {
        if is_half_closed(result) {
            // It is not read, so this is not its end yet.
            self.set_deadline(slot, now.after(SUSPECT_AFTER));
            return self.watch(slot);
        }
        if result > 0 {
            self.close_http(now, slot);
        }
    }

    /// Sets the deadline of a connection.
    pub(in crate::shell) fn set_deadline(&mut self, slot: usize, at: Moment) {
        self.connections[slot].deadline = Some(at);
        self.schedule(slot);
    }

    /// Refuses a request.
    pub(super) fn refuse_http(&mut self, now: Moment, slot: usize, fault: &Fault, id: Option<&[u8]>) {
        let place = self.connections[HttpSlot(slot)].origin.place;
        let protocol = self.protocol(slot).name();
        let text = format!("a request for {protocol} is refused: {} ({})", fault.why, fault.status.code());
        self.dispatch(now, Input::ConnectionRejected { place, reason: fault.reason(), text });
        self.answer_fault(now, slot, fault, id);
    }

    /// Answers a request with a fault that the core knows, or that is reported to it.
    pub(super) fn answer_fault(&mut self, now: Moment, slot: usize, fault: &Fault, id: Option<&[u8]>) {
        let needs_name = fault.status == Status::Unauthorized;
        let policy = self.listeners.policy(self.connections[HttpSlot(slot)].listener).filter(|_| needs_name);
        let oauth = policy.and_then(|policy| policy.terms.access.oauth.clone());
        let challenge = oauth.as_ref().map(|oauth| oauth.challenge());
        self.answer_http(now, slot, |out, manner| {
            write::fault(out, fault, &Manner { challenge, ..manner.clone() }, id);
        });
    }

    /// Answers a request without a session's id.
    pub(super) fn answer_http(&mut self, now: Moment, slot: usize, write: impl FnOnce(&mut Vec<u8>, &Manner<'_>)) {
        let connection = &mut self.connections[HttpSlot(slot)];
        let manner = connection.manner(None);
        write(connection.outgoing.queue(), &manner);
        self.begin_http_answer(now, slot);
    }

    /// A response is complete in the queue.
    pub(in crate::shell) fn begin_http_answer(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[HttpSlot(slot)];
        self.http.memory.held -= connection.incoming.weight();
        connection.incoming.body = None;
        connection.incoming.parked = None;
        (connection.state, connection.since) = (State::Answering, now);
        let at = now.after(connection.send_time());
        self.connections.mark_dirty(slot);
        self.set_deadline(slot, at);
    }

    /// Sends a keep-alive; a response that takes long becomes a stream.
    fn keep_http_alive(&mut self, now: Moment, slot: usize) {
        let (transport, connection) = self.connections.http_parts(slot);
        // A request that gets no answer never becomes a stream.
        let member = connection.member.and_then(|client| self.http.clients.get(client));
        if member.is_some_and(|member| member.has_waiter(slot)) {
            return self.set_deadline(slot, now.after(KEEP_ALIVE));
        }
        // A lost network shows by missing acknowledgements.
        let _ = sockopt::set_tcp_user_timeout(transport.socket(), SEND_TIME.as_millis() as u32 / 2);
        if connection.state == State::Waiting && !connection.takes().prefers_events() {
            // No comment can be sent to a client that waits for JSON, so the kernel asks whether it is there.
            let _ = sockopt::set_tcp_keepidle(transport.socket(), KEEP_ALIVE);
            let _ = sockopt::set_socket_keepalive(transport.socket(), true);
            return self.set_deadline(slot, now.after(KEEP_ALIVE));
        }
        if connection.state == State::Waiting {
            self.begin_events_by_role(now, slot);
        }
        let connection = &mut self.connections[HttpSlot(slot)];
        write::keep_alive(connection.outgoing.queue(), connection.incoming.is_old);
        connection.since = now;
        self.connections.mark_dirty(slot);
        self.set_deadline(slot, now.after(KEEP_ALIVE));
    }

    /// Ends a connection; it is removed when the kernel holds no operation of it. Undelivered events are kept for its
    /// session.
    pub(in crate::shell) fn close_http(&mut self, now: Moment, slot: usize) {
        let Some((transport, connection)) = self.connections.try_http_parts(slot) else { return };
        if transport.is_closing() {
            return;
        }
        connection.state = State::Over;
        self.http.memory.held -= connection.incoming.clear();
        self.connections.set_unplaced(slot);
        self.cancel_all(slot);
        self.detach_http(now, slot);
        self.remove_if_idle(slot);
    }
}
