//! What comes in: reads and receives are armed, their bytes given to the core where they lie, and what it does not
//! consume is kept.

use std::io;

use super::Shell;
use super::connection::{Closing, Descriptor, End, Kind};
use super::operation::Operation;
use super::reactor::{Reactor, Source};
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
        debug_assert!(connection.reading);
        connection.reading = false;
        if result > 0 {
            let received = result as usize;
            let bytes = match (&mut connection.web, connection.outbox.framing()) {
                (Some(web), Some(framing)) => web.decode(framing, now, connection.inbox.received(received), received),
                _ => received,
            };
            connection.inbox.filled(bytes);
            self.present(now, slot);
            self.reactor.after_frames(now, slot);
            self.drain_inputs();
        }
        let reactor = &mut self.reactor;
        if reactor.remove_if_idle(slot) {
            return;
        }
        if reactor.connections[slot].discard {
            reactor.connections[slot].inbox.release(reactor.io.buffers());
        }
        if result > 0 { reactor.arm_read(slot) } else { reactor.input_over(now, slot, result) }
    }

    /// A receive into a provided buffer has completed.
    pub(super) fn received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let connection = &mut self.reactor.connections[slot];
        debug_assert!(connection.reading);
        connection.reading = false;
        connection.more_to_read = completion.more_to_read();
        let buffer = completion.buffer();
        if completion.result > 0
            && let Some(buffer) = buffer
            && connection.closing != Closing::Leaving
            && !connection.discard
        {
            connection.presenting = true;
            self.present_received(now, slot, buffer, completion.result as usize);
            self.reactor.connections[slot].presenting = false;
            self.reactor.after_frames(now, slot);
            self.drain_inputs();
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
            result if result == -libc::ENOBUFS => reactor.starved.push(slot),
            result => reactor.input_over(now, slot, result),
        }
    }

    /// Gives received bytes to the core where they lie, and keeps what it does not consume.
    fn present_received(&mut self, now: Moment, slot: usize, buffer: u16, bytes: usize) {
        let connection = &mut self.reactor.connections[slot];
        let peer = connection.peer;
        let bytes = match (&mut connection.web, connection.outbox.framing()) {
            (Some(web), Some(framing)) => {
                // SAFETY: the buffer is returned by the caller, after this.
                let received = unsafe { self.reactor.io.received_bytes(buffer) };
                web.decode(framing, now, received, bytes)
            }
            _ => bytes,
        };
        if bytes == 0 {
            return;
        }
        // SAFETY: the same.
        let mut window = unsafe { self.reactor.io.received(buffer, bytes) };
        if !self.reactor.connections[slot].inbox.is_empty() || self.reactor.connections[slot].paused {
            if !self.reactor.keep(slot, window.data()) {
                return self.refuse_to_keep(now, slot);
            }
            return self.present_kept(now, slot);
        }
        for batch in 1.. {
            let (received, effects) = self.bus.receive(now, peer, window);
            self.reactor.carry_out(effects, Some(&Source { from: peer, window, block: None }));
            self.drain_inputs();
            window = window.without(received.consumed);
            if received.next != Next::Again || self.reactor.give_up_turn(slot, batch) {
                break;
            }
        }
        if !window.data().is_empty() && !self.reactor.keep(slot, window.data()) {
            self.refuse_to_keep(now, slot);
        }
    }

    /// Gives the bytes of the inbox to the core. The connection stays meanwhile, even if the core closes it over what it
    /// reads.
    pub(super) fn present(&mut self, now: Moment, slot: usize) {
        debug_assert!(!self.reactor.connections[slot].presenting);
        self.reactor.connections[slot].presenting = true;
        self.present_kept(now, slot);
        self.reactor.connections[slot].presenting = false;
    }

    fn present_kept(&mut self, now: Moment, slot: usize) {
        let reactor = &mut self.reactor;
        if reactor.connections[slot].discard {
            return reactor.connections[slot].inbox.release(reactor.io.buffers());
        }
        let peer = reactor.connections[slot].peer;
        let keep = reactor.connections[slot].kind != Kind::Socket;
        for batch in 1.. {
            if self.reactor.connections[slot].paused || self.reactor.connections[slot].inbox.is_empty() {
                break;
            }
            let mut inbox = std::mem::take(&mut self.reactor.connections[slot].inbox);
            let Some(window) = inbox.window() else { return };
            let (received, effects) = self.bus.receive(now, peer, window);
            self.reactor.carry_out(effects, Some(&Source { from: peer, window, block: inbox.holdable() }));
            self.drain_inputs();
            inbox.consume(received.consumed, keep, self.reactor.io.buffers());
            self.reactor.connections[slot].inbox = inbox;
            if received.next != Next::Again || self.reactor.give_up_turn(slot, batch) {
                break;
            }
        }
        let reactor = &mut self.reactor;
        let connection = &mut reactor.connections[slot];
        let small_again = connection.inbox.is_empty() && connection.inbox.is_long();
        if connection.discard || small_again {
            connection.inbox.release(reactor.io.buffers());
        }
    }

    pub(super) fn resume_connections(&mut self, now: Moment) {
        // Only those that wait now: one that is resumed meanwhile has its turn after the next completions.
        for _ in 0..self.reactor.resumed.len() {
            let Some(slot) = self.reactor.resumed.pop_front() else { return };
            let Some(connection) = self.reactor.connections.get_mut(slot) else { continue };
            connection.resuming = false;
            if self.reactor.remove_if_idle(slot) {
                continue;
            }
            // What is being read comes after what is kept, and is presented with it.
            if !self.reactor.connections[slot].reading {
                self.present(now, slot);
            }
            if !self.reactor.remove_if_idle(slot) {
                self.reactor.tell_ending(now, slot);
                self.reactor.tell_end(now, slot);
                self.reactor.arm_read(slot);
            }
            self.drain_inputs();
        }
    }
}

impl<I: Io> Reactor<I> {
    fn longest_line(&self, slot: usize) -> usize {
        match self.connections[slot].peer {
            Peer::Client(_) => self.longest_client_line,
            Peer::Worker(_) => self.longest_worker_line,
        }
    }

    /// Keeps bytes of a connection behind those that it has; false if there is no memory.
    pub(super) fn keep(&mut self, slot: usize, data: &[u8]) -> bool {
        let limit = self.longest_line(slot);
        self.connections[slot].inbox.append(data, limit, self.io.buffers())
    }

    /// Starts the next read of a connection, if its bytes are wanted. Where memory is short, a client's line grows after
    /// the core has had its say.
    pub(super) fn arm_read(&mut self, slot: usize) {
        self.arm(slot, false);
    }

    /// Starts the next read of one that has waited for memory: its line may grow.
    pub(super) fn arm_read_and_grow(&mut self, slot: usize) {
        self.arm(slot, true);
    }

    fn arm(&mut self, slot: usize, may_grow: bool) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let wanted = !connection.paused || connection.discard;
        let Some(input) = connection.input.as_ref().map(Descriptor::raw) else { return };
        let busy = connection.reading || connection.presenting || connection.resuming || connection.has_said_its_last();
        if !wanted || busy || connection.end != End::Open || connection.closing == Closing::Leaving {
            return;
        }
        let direct = connection.kind != Kind::Socket || connection.inbox.len() >= LONG_LINE;
        let (submission, operation) = if !direct {
            // A socket that was emptied is polled before it is tried again.
            (Submission::Receive { socket: input, was_empty: !connection.more_to_read }, Operation::Receive)
        } else {
            let kept = connection.inbox.len();
            let short = connection.kind == Kind::Socket && self.is_short_of_memory();
            let limit = self.longest_line(slot);
            let connection = &mut self.connections[slot];
            let wanted = match kept {
                LONG_LINE.. if short => CHUNK.min(2 * kept),
                LONG_LINE.. => CHUNK,
                _ => CHUNK / 2,
            };
            if short && !may_grow && connection.inbox.would_grow(wanted) {
                return self.memory.waiting.push(slot);
            }
            let Some((registered, into, room)) = connection.inbox.room(wanted, limit, self.io.buffers()) else {
                return self.wait_for_memory(slot);
            };
            // A frame's newline may need a byte more than was received.
            let bytes = (room - usize::from(connection.web.is_some())).min(u32::MAX as usize) as u32;
            let submission = match connection.kind {
                Kind::Socket => Submission::ReceiveInto { socket: input, into, bytes },
                _ => Submission::Read { from: input, into, bytes, registered, now_or_never: false },
            };
            (submission, Operation::Read)
        };
        self.connections[slot].reading = true;
        // SAFETY: the inbox keeps its block and the connection its descriptor while `reading` is set.
        unsafe { self.io.submit(submission, operation.token(slot)) };
    }

    /// A connection that has given the core so many batches of lines and has more goes behind the others, if there are
    /// any. True if so.
    fn give_up_turn(&mut self, slot: usize, batches: usize) -> bool {
        let over = batches >= BATCHES_ALONE || batches >= BATCHES && self.io.has_news();
        if over {
            self.resume_soon(slot);
        }
        over
    }

    /// What is kept of a connection's bytes is presented when its turn comes.
    pub(super) fn resume_soon(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.connections[slot].resuming, true) {
            self.resumed.push_back(slot);
        }
    }

    /// The input has ended, in whatever way.
    pub(super) fn input_over(&mut self, now: Moment, slot: usize, result: i32) {
        match -result {
            libc::EAGAIN | libc::EINTR => return self.arm_read(slot),
            libc::ECANCELED if self.connections[slot].discard => return self.arm_read(slot),
            libc::ECANCELED if self.connections[slot].paused => return,
            libc::ECANCELED if self.connections[slot].closing < Closing::Leaving => return self.resume_soon(slot),
            _ => {}
        }
        let connection = &mut self.connections[slot];
        connection.end = End::Seen;
        let peer = connection.peer;
        if result < 0 && connection.kind == Kind::Socket {
            let why = io::Error::from_raw_os_error(-result).to_string();
            return self.broken(now, slot, peer, why);
        }
        self.tell_half_closed(slot);
        self.tell_end(now, slot);
        self.watch(slot);
    }

    /// Tells the core that a peer has sent everything, once everything was given to it.
    pub(super) fn tell_end(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        if connection.end != End::Seen || connection.paused || connection.resuming {
            return;
        }
        connection.end = End::Told;
        let (peer, partial) = (connection.peer, connection.inbox.len());
        connection.inbox.release(self.io.buffers());
        if connection.web.as_ref().is_some_and(|web| !web.was_told()) {
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
        if connection.kind == Kind::Worker {
            connection.closing = connection.closing.max(Closing::ShutDown);
            self.close_stdin_when_idle(slot);
        }
        self.tell(now, Input::Broken { peer, why });
    }
}
