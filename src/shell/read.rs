//! Reading from peers of the core: submits reads and receives, presents the bytes to the core in place, and buffers what it
//! does not consume.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::connections::{Connection, PeerSlot};
use super::operation::Operation;
use super::outbox::Storage;
use super::protocol::Protocol;
use super::reactor::Reactor;
use super::receivers::CopySource;
use super::transport::{HalfClose, PendingOp, State};
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Next, Peer};
use crate::io::buffers::CHUNK;
use crate::io::ring::Completion;
use crate::io::{Io, Submission};

/// A socket whose incomplete line has at least this length is read directly into the inbox.
const LONG_LINE: usize = 8 * 1024;

/// How much of a long line is read at once. The core looks at it right away, and the others wait meanwhile.
const SHARE: usize = 1024 * 1024;

/// How many batches of lines a connection may present in a turn, with and without others waiting.
const BATCHES: usize = 2;
const BATCHES_ALONE: usize = 16;

/// How many bytes to read into so much room. The newline of a WebSocket's frame may need one byte more than was received.
fn share_of(room: usize, is_web: bool) -> u32 {
    (room - usize::from(is_web)).min(SHARE) as u32
}

impl<I: Io> Shell<I> {
    /// A read into the inbox has completed.
    pub(super) fn read(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = self.reactor.connections.entry(slot);
        connection.transport.in_flight.end(PendingOp::Read);
        if result > 0 {
            connection.filled(now, result as usize);
            self.present(now, slot);
            self.reactor.after_frames(now, slot);
        }
        let reactor = &mut self.reactor;
        if reactor.remove_if_idle(slot) {
            return;
        }
        if reactor.connections[PeerSlot(slot)].incoming.is_discarded {
            reactor.connections[slot].inbox.release(reactor.io.buffers());
        }
        if result > 0 { reactor.arm_read(slot) } else { reactor.input_over(now, slot, result) }
    }

    pub(super) fn peer_received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let (transport, endpoint) = self.reactor.connections.peer_parts(slot);
        endpoint.incoming.has_more = completion.more_to_read();
        let buffer = completion.buffer();
        if completion.result > 0
            && let Some(buffer) = buffer
            && !transport.is_closing()
            && !endpoint.incoming.is_discarded
        {
            transport.in_flight.add(PendingOp::Presentation);
            self.present_received(now, slot, buffer, completion.result as usize);
            self.reactor.connections[slot].in_flight.remove(PendingOp::Presentation);
            self.reactor.after_frames(now, slot);
        }
        let reactor = &mut self.reactor;
        if let Some(buffer) = buffer {
            reactor.io.return_received(buffer);
        }
        if reactor.remove_if_idle(slot) {
            return;
        }
        match completion.result {
            1.. => reactor.arm_read(slot),
            result if result == -libc::ENOBUFS => reactor.connections.starved.push(slot),
            result => reactor.input_over(now, slot, result),
        }
    }

    /// Presents received bytes to the core in place, and buffers what it does not consume.
    fn present_received(&mut self, now: Moment, slot: usize, buffer: u16, bytes: usize) {
        let reactor = &mut self.reactor;
        let protocol = &mut reactor.connections.entry(slot).protocol;
        let bytes = match protocol {
            Protocol::Lines(_) => bytes,
            _ => {
                // SAFETY: the caller returns the buffer after this.
                let received = unsafe { reactor.io.received_bytes(buffer) };
                protocol.decode(now, received, bytes)
            }
        };
        if bytes == 0 {
            return;
        }
        // SAFETY: the same.
        let mut window = unsafe { reactor.io.received(buffer, bytes) };
        let (transport, endpoint) = reactor.connections.peer_parts(slot);
        let peer = endpoint.peer;
        if !transport.inbox.is_empty() || endpoint.incoming.is_paused {
            if !reactor.keep(slot, window.data()) {
                return reactor.refuse_to_keep(now, slot);
            }
            return self.present_kept(now, slot);
        }
        for batch in 1.. {
            let (received, effects) = self.bus.receive(now, peer, window);
            self.reactor.carry_out(effects, Some(&CopySource { from: peer, window, block: None }));
            window = window.without(received.consumed);
            if received.next != Next::Again || self.reactor.give_up_turn(slot, batch) {
                break;
            }
        }
        if !window.data().is_empty() && !self.reactor.keep(slot, window.data()) {
            self.reactor.refuse_to_keep(now, slot);
        }
    }

    /// Presents the bytes of the inbox to the core. The connection stays meanwhile, even if the core closes it because
    /// of them.
    pub(super) fn present(&mut self, now: Moment, slot: usize) {
        let is_first = self.reactor.connections[slot].in_flight.add(PendingOp::Presentation);
        debug_assert!(is_first);
        self.present_kept(now, slot);
        self.reactor.connections[slot].in_flight.remove(PendingOp::Presentation);
    }

    fn present_kept(&mut self, now: Moment, slot: usize) {
        let reactor = &mut self.reactor;
        let (transport, endpoint) = reactor.connections.peer_parts(slot);
        if endpoint.incoming.is_discarded {
            return transport.inbox.release(reactor.io.buffers());
        }
        let (peer, keep) = (endpoint.peer, !transport.ends.is_socket());
        for batch in 1.. {
            let (transport, endpoint) = self.reactor.connections.peer_parts(slot);
            if endpoint.incoming.is_paused || transport.inbox.is_empty() {
                break;
            }
            let mut inbox = std::mem::take(&mut transport.inbox);
            let Some(window) = inbox.window() else { return };
            let (received, effects) = self.bus.receive(now, peer, window);
            self.reactor.carry_out(
                effects,
                Some(&CopySource {
                    from: peer,
                    window,
                    block: inbox.holdable().map(|(block, start)| (Storage::Block(block), start)),
                }),
            );
            inbox.consume(received.consumed, keep, self.reactor.io.buffers());
            self.reactor.connections[slot].inbox = inbox;
            if received.next != Next::Again || self.reactor.give_up_turn(slot, batch) {
                break;
            }
        }
        let reactor = &mut self.reactor;
        let (transport, endpoint) = reactor.connections.peer_parts(slot);
        let small_again = transport.inbox.is_empty() && transport.inbox.is_long();
        if endpoint.incoming.is_discarded || small_again {
            transport.inbox.release(reactor.io.buffers());
        }
    }

    /// Presents the buffered bytes of the next queued connection.
    pub(super) fn resume_next(&mut self, now: Moment) {
        let Some(slot) = self.reactor.connections.next_resumed() else { return };
        if self.reactor.remove_if_idle(slot) {
            return;
        }
        // A read in flight appends to the buffered bytes, which are then presented together.
        if !self.reactor.connections[slot].in_flight.has(PendingOp::Read) {
            self.present(now, slot);
        }
        let reactor = &mut self.reactor;
        if !reactor.remove_if_idle(slot) {
            reactor.report_websocket_end(now, slot);
            reactor.report_end(now, slot);
            reactor.arm_read(slot);
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Buffers bytes of a connection after its others; false if the system is out of memory.
    pub(super) fn keep(&mut self, slot: usize, data: &[u8]) -> bool {
        let limit = self.connections.longest_line(slot);
        self.connections[slot].inbox.append(data, limit, self.io.buffers())
    }

    /// Submits the next read of a connection, if its bytes are wanted. If memory is short, a client's line grows only
    /// after it was reported to the core.
    pub(super) fn arm_read(&mut self, slot: usize) {
        self.arm(slot, false);
    }

    /// The same; `may_grow` for a connection that has waited for memory.
    pub(super) fn arm(&mut self, slot: usize, may_grow: bool) {
        let Some(connection) = self.connections.get(slot).filter(|connection| connection.is_to_be_read()) else {
            return;
        };
        let Connection { transport, protocol } = connection;
        let Some(input) = transport.ends.input().map(|input| input.as_raw_fd()) else { return };
        let (submission, operation) = if transport.ends.is_socket() && transport.inbox.len() < LONG_LINE {
            // A socket that was emptied is polled before it is tried again.
            let was_empty = protocol.endpoint().is_some_and(|endpoint| !endpoint.incoming.has_more);
            (Submission::Receive { socket: input, was_empty }, Operation::Receive)
        } else {
            let Some(submission) = self.read_into_place(slot, input, may_grow) else { return };
            (submission, Operation::Read)
        };
        self.connections[slot].in_flight.add(PendingOp::Read);
        // SAFETY: the inbox keeps its block and the connection its descriptor while the read is in flight.
        unsafe { self.io.submit(submission, operation.token(slot)) };
    }

    /// Submits a read into the inbox, if there is memory for it. Otherwise the connection waits for memory.
    fn read_into_place(&mut self, slot: usize, from: RawFd, may_grow: bool) -> Option<Submission> {
        let transport = &self.connections[slot];
        let (is_socket, kept) = (transport.ends.is_socket(), transport.inbox.len());
        let short = is_socket && self.is_short_of_memory();
        let wanted = match kept {
            LONG_LINE.. if short => CHUNK.min(2 * kept),
            LONG_LINE.. => CHUNK,
            _ => CHUNK / 2,
        };
        if short && !may_grow && transport.inbox.would_grow(wanted) {
            self.memory.waiting.push(slot);
            return None;
        }
        let limit = self.connections.longest_line(slot);
        let Connection { transport, protocol } = self.connections.entry(slot);
        let Some((registered, into, room)) = transport.inbox.room(wanted, limit, self.io.buffers()) else {
            // It waits until another connection frees some.
            self.memory.refused = true;
            self.memory.waiting.push(slot);
            return None;
        };
        let bytes = share_of(room, protocol.web().is_some());
        Some(match is_socket {
            true => Submission::ReceiveInto { socket: from, into, bytes },
            false => Submission::Read { from, into, bytes, registered, now_or_never: false },
        })
    }

    /// Queues a connection behind the others if it has presented this many batches and has more. Returns whether it
    /// did.
    fn give_up_turn(&mut self, slot: usize, batches: usize) -> bool {
        let over = batches >= BATCHES_ALONE || batches >= BATCHES && self.io.has_news();
        if over {
            self.connections.resume_soon(slot);
        }
        over
    }

    /// The input has ended or failed.
    pub(super) fn input_over(&mut self, now: Moment, slot: usize, result: i32) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        match -result {
            libc::EAGAIN | libc::EINTR => return self.arm_read(slot),
            libc::ECANCELED if endpoint.incoming.is_discarded => return self.arm_read(slot),
            libc::ECANCELED if endpoint.incoming.is_paused => return,
            libc::ECANCELED if !transport.is_closing() => return self.connections.resume_soon(slot),
            _ => {}
        }
        transport.half = HalfClose::Read;
        let peer = endpoint.peer;
        if result < 0 && transport.ends.is_socket() {
            let why = io::Error::from_raw_os_error(-result).to_string();
            return self.broken(now, slot, peer, why);
        }
        self.report_half_closed(slot);
        self.check_soon(slot);
        self.report_end(now, slot);
        // It is watched if it still exists once the core knows.
        self.connections.mark_dirty(slot);
    }

    /// Reports to the core that a peer's input has ended, once all of it was presented.
    pub(super) fn report_end(&mut self, now: Moment, slot: usize) {
        let Connection { transport, protocol } = self.connections.entry(slot);
        let is_unreported_web = protocol.web().is_some_and(|web| !web.is_reported);
        let Some(endpoint) = protocol.endpoint_mut() else { return };
        let is_news = transport.has_ended() && !endpoint.incoming.is_end_reported;
        if !is_news || endpoint.is_waiting_to_be_read() {
            return;
        }
        endpoint.incoming.is_end_reported = true;
        let (peer, partial) = (endpoint.peer, transport.inbox.len());
        transport.inbox.release(self.io.buffers());
        if is_unreported_web {
            // A WebSocket cannot be half-closed (RFC 6455, section 7.1.5: this is 1006).
            return self.broken(now, slot, peer, "it disconnected without a close frame".to_owned());
        }
        self.dispatch(now, Input::InputEnded { peer, partial });
    }

    pub(super) fn broken(&mut self, now: Moment, slot: usize, peer: Peer, why: String) {
        if let Peer::Worker(worker) = peer {
            self.report_unread(worker);
        }
        let transport = &mut self.connections[slot];
        if transport.ends.is_worker() {
            transport.state = transport.state.max(State::Lingering);
            self.close_stdin_when_idle(slot);
        }
        self.dispatch(now, Input::OutputBroken { peer, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_read_in_shares_however_much_room_it_has() {
        assert_eq!(
            [1 << 26, SHARE + 1, SHARE, 4096].map(|room| share_of(room, true) as usize),
            [SHARE, SHARE, SHARE - 1, 4095]
        );
        assert_eq!(share_of(SHARE, false) as usize, SHARE);
    }
}
