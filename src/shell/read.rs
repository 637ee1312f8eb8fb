//! What comes in: reads and receives are armed, their bytes given to the core where they lie, and what it does not
//! consume is kept.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::connection::{Closing, End, Flight};
use super::effects::Source;
use super::operation::Operation;
use super::reactor::Reactor;
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Next, Peer};
use crate::io::buffers::CHUNK;
use crate::io::ring::Completion;
use crate::io::{Io, Submission};

/// A socket whose unfinished line is at least this long is read straight into place.
const LONG_LINE: usize = 8 * 1024;

/// Batches of lines that a connection gives to the core in a turn: while others wait, and while nobody does.
const BATCHES: usize = 2;
const BATCHES_ALONE: usize = 16;

impl<I: Io> Shell<I> {
    /// A read into the connection's own memory has completed.
    pub(super) fn read(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.reactor.connections[slot];
        let was_reading = connection.in_flight.remove(Flight::Read);
        debug_assert!(was_reading);
        if result > 0 {
            connection.filled(now, result as usize);
            self.present(now, slot);
            self.reactor.after_frames(now, slot);
        }
        let reactor = &mut self.reactor;
        if reactor.remove_if_idle(slot) {
            return;
        }
        if reactor.connections[slot].incoming.is_discarded {
            reactor.connections[slot].inbox.release(reactor.io.buffers());
        }
        if result > 0 { reactor.arm_read(slot) } else { reactor.input_over(now, slot, result) }
    }

    /// A receive into a provided buffer has completed.
    pub(super) fn received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let connection = &mut self.reactor.connections[slot];
        let was_reading = connection.in_flight.remove(Flight::Read);
        debug_assert!(was_reading);
        connection.incoming.has_more = completion.more_to_read();
        let buffer = completion.buffer();
        if completion.result > 0
            && let Some(buffer) = buffer
            && connection.closing != Closing::Leaving
            && !connection.incoming.is_discarded
        {
            connection.in_flight.add(Flight::Presentation);
            self.present_received(now, slot, buffer, completion.result as usize);
            self.reactor.connections[slot].in_flight.remove(Flight::Presentation);
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

    /// Gives received bytes to the core where they lie, and keeps what it does not consume.
    fn present_received(&mut self, now: Moment, slot: usize, buffer: u16, bytes: usize) {
        let reactor = &mut self.reactor;
        let connection = &mut reactor.connections[slot];
        let peer = connection.peer;
        let mut bytes = bytes;
        if connection.web.is_some() {
            // SAFETY: the buffer is returned by the caller, after this.
            let received = unsafe { reactor.io.received_bytes(buffer) };
            bytes = connection.decode(now, received, bytes);
        }
        if bytes == 0 {
            return;
        }
        // SAFETY: the same.
        let mut window = unsafe { reactor.io.received(buffer, bytes) };
        if !connection.inbox.is_empty() || connection.incoming.is_paused {
            if !reactor.keep(slot, window.data()) {
                return reactor.refuse_to_keep(now, slot);
            }
            return self.present_kept(now, slot);
        }
        for batch in 1.. {
            let (received, effects) = self.bus.receive(now, peer, window);
            self.reactor.carry_out(effects, Some(&Source { from: peer, window, block: None }));
            window = window.without(received.consumed);
            if received.next != Next::Again || self.reactor.give_up_turn(slot, batch) {
                break;
            }
        }
        if !window.data().is_empty() && !self.reactor.keep(slot, window.data()) {
            self.reactor.refuse_to_keep(now, slot);
        }
    }

    /// Gives the bytes of the inbox to the core. The connection stays meanwhile, even if the core closes it over what it
    /// reads.
    pub(super) fn present(&mut self, now: Moment, slot: usize) {
        let is_first = self.reactor.connections[slot].in_flight.add(Flight::Presentation);
        debug_assert!(is_first);
        self.present_kept(now, slot);
        self.reactor.connections[slot].in_flight.remove(Flight::Presentation);
    }

    fn present_kept(&mut self, now: Moment, slot: usize) {
        let reactor = &mut self.reactor;
        let connection = &mut reactor.connections[slot];
        if connection.incoming.is_discarded {
            return connection.inbox.release(reactor.io.buffers());
        }
        let (peer, keep) = (connection.peer, !connection.ends.is_socket());
        for batch in 1.. {
            let connection = &mut self.reactor.connections[slot];
            if connection.incoming.is_paused || connection.inbox.is_empty() {
                break;
            }
            let mut inbox = std::mem::take(&mut connection.inbox);
            let Some(window) = inbox.window() else { return };
            let (received, effects) = self.bus.receive(now, peer, window);
            self.reactor.carry_out(effects, Some(&Source { from: peer, window, block: inbox.holdable() }));
            inbox.consume(received.consumed, keep, self.reactor.io.buffers());
            self.reactor.connections[slot].inbox = inbox;
            if received.next != Next::Again || self.reactor.give_up_turn(slot, batch) {
                break;
            }
        }
        let reactor = &mut self.reactor;
        let connection = &mut reactor.connections[slot];
        let small_again = connection.inbox.is_empty() && connection.inbox.is_long();
        if connection.incoming.is_discarded || small_again {
            connection.inbox.release(reactor.io.buffers());
        }
    }

    /// Presents what is kept of the next connection whose turn it is.
    pub(super) fn resume_next(&mut self, now: Moment) {
        let Some(slot) = self.reactor.connections.next_resumed() else { return };
        if self.reactor.remove_if_idle(slot) {
            return;
        }
        // What is being read comes after what is kept, and is presented with it.
        if !self.reactor.connections[slot].in_flight.has(Flight::Read) {
            self.present(now, slot);
        }
        let reactor = &mut self.reactor;
        if !reactor.remove_if_idle(slot) {
            reactor.tell_ending(now, slot);
            reactor.tell_end(now, slot);
            reactor.arm_read(slot);
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Keeps bytes of a connection behind those that it has; false if there is no memory.
    pub(super) fn keep(&mut self, slot: usize, data: &[u8]) -> bool {
        let limit = self.connections.longest_line(slot);
        self.connections[slot].inbox.append(data, limit, self.io.buffers())
    }

    /// Starts the next read of a connection, if its bytes are wanted. Where memory is short, a client's line grows after
    /// the core has had its say.
    pub(super) fn arm_read(&mut self, slot: usize) {
        self.arm(slot, false);
    }

    /// The same; that of one that has waited for memory may grow.
    pub(super) fn arm(&mut self, slot: usize, may_grow: bool) {
        let Some(connection) = self.connections.get_mut(slot).filter(|connection| connection.is_to_be_read()) else {
            return;
        };
        let Some(input) = connection.ends.input().map(|input| input.as_raw_fd()) else { return };
        let (submission, operation) = if connection.ends.is_socket() && connection.inbox.len() < LONG_LINE {
            // A socket that was emptied is polled before it is tried again.
            let was_empty = !connection.incoming.has_more;
            (Submission::Receive { socket: input, was_empty }, Operation::Receive)
        } else {
            let Some(submission) = self.read_into_place(slot, input, may_grow) else { return };
            (submission, Operation::Read)
        };
        self.connections[slot].in_flight.add(Flight::Read);
        // SAFETY: the inbox keeps its block and the connection its descriptor while the read is in flight.
        unsafe { self.io.submit(submission, operation.token(slot)) };
    }

    /// A read behind what is in the inbox, if there is memory for it. Otherwise the connection waits until there is.
    fn read_into_place(&mut self, slot: usize, from: RawFd, may_grow: bool) -> Option<Submission> {
        let connection = &self.connections[slot];
        let (is_socket, kept) = (connection.ends.is_socket(), connection.inbox.len());
        let short = is_socket && self.is_short_of_memory();
        let wanted = match kept {
            LONG_LINE.. if short => CHUNK.min(2 * kept),
            LONG_LINE.. => CHUNK,
            _ => CHUNK / 2,
        };
        if short && !may_grow && connection.inbox.would_grow(wanted) {
            self.memory.waiting.push(slot);
            return None;
        }
        let limit = self.connections.longest_line(slot);
        let connection = &mut self.connections[slot];
        let Some((registered, into, room)) = connection.inbox.room(wanted, limit, self.io.buffers()) else {
            // It waits until somebody else has made some.
            self.memory.refused = true;
            self.memory.waiting.push(slot);
            return None;
        };
        // A frame's newline may need a byte more than was received.
        let bytes = (room - usize::from(connection.web.is_some())).min(u32::MAX as usize) as u32;
        Some(match is_socket {
            true => Submission::ReceiveInto { socket: from, into, bytes },
            false => Submission::Read { from, into, bytes, registered, now_or_never: false },
        })
    }

    /// A connection that has given the core so many batches of lines and has more goes behind the others, if there are
    /// any. True if so.
    fn give_up_turn(&mut self, slot: usize, batches: usize) -> bool {
        let over = batches >= BATCHES_ALONE || batches >= BATCHES && self.io.has_news();
        if over {
            self.connections.resume_soon(slot);
        }
        over
    }

    /// The input has ended, in whatever way.
    pub(super) fn input_over(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.connections[slot];
        match -result {
            libc::EAGAIN | libc::EINTR => return self.arm_read(slot),
            libc::ECANCELED if connection.incoming.is_discarded => return self.arm_read(slot),
            libc::ECANCELED if connection.incoming.is_paused => return,
            libc::ECANCELED if connection.closing < Closing::Leaving => return self.connections.resume_soon(slot),
            _ => {}
        }
        connection.incoming.end = End::Seen;
        let peer = connection.peer;
        if result < 0 && connection.ends.is_socket() {
            let why = io::Error::from_raw_os_error(-result).to_string();
            return self.broken(now, slot, peer, why);
        }
        self.tell_half_closed(slot);
        self.tell_end(now, slot);
        // It is watched if it is still there once the core knows that.
        self.connections.mark_dirty(slot);
    }

    /// Tells the core that a peer has sent everything, once everything was given to it.
    pub(super) fn tell_end(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.incoming.end != End::Seen || connection.is_waiting_to_be_read() {
            return;
        }
        connection.incoming.end = End::Told;
        let (peer, partial) = (connection.peer, connection.inbox.len());
        connection.inbox.release(self.io.buffers());
        if connection.web.as_ref().is_some_and(|web| !web.is_told) {
            // There is no half of a WebSocket (RFC 6455, section 7.1.5: that is 1006).
            return self.broken(now, slot, peer, "it has gone without a close frame".to_owned());
        }
        self.tell(now, Input::Ended { peer, partial });
    }

    pub(super) fn broken(&mut self, now: Moment, slot: usize, peer: Peer, why: String) {
        if let Peer::Worker(worker) = peer {
            self.tell_unread(worker);
        }
        let connection = &mut self.connections[slot];
        if connection.ends.is_worker() {
            connection.closing = connection.closing.max(Closing::ShutDown);
            self.close_stdin_when_idle(slot);
        }
        self.tell(now, Input::Broken { peer, why });
    }
}
