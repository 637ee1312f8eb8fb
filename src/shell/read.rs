//! What comes in: reads and receives are armed, their bytes given to the core where they lie, and what it does not
//! consume is kept.

use std::io;

use super::Shell;
use super::connection::{Closing, Descriptor, End, Kind};
use super::effects::{Hands, Source};
use super::operation::Operation;
use crate::bus::port::{Input, Moment, Next, Peer};
use crate::io::buffers::CHUNK;
use crate::io::ring::Completion;
use crate::io::{Io, Submission};

/// A socket whose unfinished line is at least this long is read straight into place.
const LONG_LINE: usize = 8 * 1024;

/// Batches of lines that a link gives to the core in a turn: while others wait, and while nobody does.
const BATCHES: usize = 2;
const BATCHES_ALONE: usize = 16;

impl<I: Io> Shell<I> {
    /// A read into the link's own memory has completed.
    pub(super) fn read(&mut self, now: Moment, slot: usize, result: i32) {
        let link = &mut self.hands.links[slot];
        debug_assert!(link.reading);
        link.reading = false;
        if result > 0 {
            link.inbox.filled(result as usize);
            self.present(now, slot);
        }
        let hands = &mut self.hands;
        if hands.gone(slot) {
            return;
        }
        if hands.links[slot].discard {
            hands.links[slot].inbox.release(hands.io.buffers());
        }
        if result > 0 { hands.arm_read(slot) } else { hands.input_over(now, slot, result) }
    }

    /// A receive into a provided buffer has completed.
    pub(super) fn received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let link = &mut self.hands.links[slot];
        debug_assert!(link.reading);
        link.reading = false;
        link.more_to_read = completion.more_to_read();
        let buffer = completion.buffer();
        if completion.result > 0
            && let Some(buffer) = buffer
            && link.closing != Closing::Leaving
            && !link.discard
        {
            link.presenting = true;
            self.present_received(now, slot, buffer, completion.result as usize);
            self.hands.links[slot].presenting = false;
        }
        let hands = &mut self.hands;
        if let Some(buffer) = buffer {
            hands.io.return_received(buffer);
        }
        if hands.gone(slot) {
            return;
        }
        match completion.result {
            1.. => hands.arm_read(slot),
            result if result == -libc::ENOBUFS => hands.starved.push(slot),
            result => hands.input_over(now, slot, result),
        }
    }

    /// Gives received bytes to the core where they lie, and keeps what it does not consume.
    fn present_received(&mut self, now: Moment, slot: usize, buffer: u16, bytes: usize) {
        let peer = self.hands.links[slot].peer;
        let limit = self.hands.longest_line;
        // SAFETY: the buffer is returned by the caller, after this.
        let mut window = unsafe { self.hands.io.received(buffer, bytes) };
        if !self.hands.links[slot].inbox.is_empty() || self.hands.links[slot].paused {
            if !self.hands.keep(slot, window.data(), limit) {
                return self.cannot_keep(now, slot);
            }
            return self.present_kept(now, slot);
        }
        for batch in 1.. {
            let (received, effects) = self.bus.receive(now, peer, window);
            self.hands.carry_out(effects, Some(&Source { from: peer, window, block: None }));
            self.tell_news();
            window = window.without(received.consumed);
            if received.next != Next::Again || self.hands.turn_is_over(slot, batch) {
                break;
            }
        }
        if !window.data().is_empty() && !self.hands.keep(slot, window.data(), limit) {
            self.cannot_keep(now, slot);
        }
    }

    /// Gives the bytes of the inbox to the core. The link stays meanwhile, even if the core closes it over what it reads.
    pub(super) fn present(&mut self, now: Moment, slot: usize) {
        debug_assert!(!self.hands.links[slot].presenting);
        self.hands.links[slot].presenting = true;
        self.present_kept(now, slot);
        self.hands.links[slot].presenting = false;
    }

    fn present_kept(&mut self, now: Moment, slot: usize) {
        let hands = &mut self.hands;
        if hands.links[slot].discard {
            return hands.links[slot].inbox.release(hands.io.buffers());
        }
        let peer = hands.links[slot].peer;
        let keep = hands.links[slot].kind != Kind::Socket;
        for batch in 1.. {
            if self.hands.links[slot].paused || self.hands.links[slot].inbox.is_empty() {
                break;
            }
            let mut inbox = std::mem::take(&mut self.hands.links[slot].inbox);
            let Some(window) = inbox.window() else { return };
            let (received, effects) = self.bus.receive(now, peer, window);
            self.hands.carry_out(effects, Some(&Source { from: peer, window, block: inbox.holdable() }));
            self.tell_news();
            inbox.consume(received.consumed, keep, self.hands.io.buffers());
            self.hands.links[slot].inbox = inbox;
            if received.next != Next::Again || self.hands.turn_is_over(slot, batch) {
                break;
            }
        }
        let hands = &mut self.hands;
        let link = &mut hands.links[slot];
        let small_again = link.inbox.is_empty() && link.inbox.is_long();
        if link.discard || small_again {
            link.inbox.release(hands.io.buffers());
        }
    }

    pub(super) fn resume_links(&mut self, now: Moment) {
        // Only those that wait now: one that is resumed meanwhile has its turn after the next completions.
        for _ in 0..self.hands.resumed.len() {
            let Some(slot) = self.hands.resumed.pop_front() else { return };
            let Some(link) = self.hands.links.get_mut(slot) else { continue };
            link.resuming = false;
            if self.hands.gone(slot) {
                continue;
            }
            // What is being read comes after what is kept, and is presented with it.
            if !self.hands.links[slot].reading {
                self.present(now, slot);
            }
            if !self.hands.gone(slot) {
                self.hands.tell_end(now, slot);
                self.hands.arm_read(slot);
            }
            self.tell_news();
        }
    }
}

impl<I: Io> Hands<I> {
    /// Keeps bytes of a link behind those that it has; false if there is no memory.
    fn keep(&mut self, slot: usize, data: &[u8], limit: usize) -> bool {
        self.links[slot].inbox.append(data, limit, self.io.buffers())
    }

    /// Starts the next read of a link, if its bytes are wanted. Where memory is short, a client's line grows after the
    /// core has had its say.
    pub(super) fn arm_read(&mut self, slot: usize) {
        self.arm(slot, false);
    }

    /// The same for one that has waited for that.
    pub(super) fn arm_thirsty(&mut self, slot: usize) {
        self.arm(slot, true);
    }

    fn arm(&mut self, slot: usize, may_grow: bool) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let wanted = !link.paused || link.discard;
        let Some(input) = link.input.as_ref().map(Descriptor::raw) else { return };
        let busy = link.reading || link.presenting || link.resuming;
        if !wanted || busy || link.end != End::Open || link.closing == Closing::Leaving {
            return;
        }
        let direct = link.kind != Kind::Socket || link.inbox.len() >= LONG_LINE;
        let (submission, operation) = if !direct {
            // A socket that was emptied is polled before it is tried again.
            (Submission::Receive { socket: input, was_empty: !link.more_to_read }, Operation::Receive)
        } else {
            let kept = link.inbox.len();
            let short = link.kind == Kind::Socket && self.is_short_of_memory();
            let link = &mut self.links[slot];
            let wanted = match kept {
                LONG_LINE.. if short => CHUNK.min(2 * kept),
                LONG_LINE.. => CHUNK,
                _ => CHUNK / 2,
            };
            if short && !may_grow && link.inbox.would_grow(wanted) {
                return self.memory.thirsty.push(slot);
            }
            let Some((registered, into, room)) = link.inbox.room(wanted, self.longest_line, self.io.buffers()) else {
                return self.is_refused_room(slot);
            };
            let bytes = room.min(u32::MAX as usize) as u32;
            let submission = match link.kind {
                Kind::Socket => Submission::ReceiveInto { socket: input, into, bytes },
                _ => Submission::Read { from: input, into, bytes, registered, now_or_never: false },
            };
            (submission, Operation::Read)
        };
        self.links[slot].reading = true;
        // SAFETY: the inbox keeps its block and the link its descriptor while `reading` is set.
        unsafe { self.io.submit(submission, operation.token(slot)) };
    }

    /// Whether a link that has given the core so many batches of lines and has more lets the others go first. If so,
    /// it goes on after them.
    fn turn_is_over(&mut self, slot: usize, batches: usize) -> bool {
        let over = batches >= BATCHES_ALONE || batches >= BATCHES && self.io.has_news();
        if over {
            self.resume_soon(slot);
        }
        over
    }

    /// What is kept of a link's bytes is presented when its turn comes.
    pub(super) fn resume_soon(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.links[slot].resuming, true) {
            self.resumed.push_back(slot);
        }
    }

    /// The input has ended, in whatever way.
    pub(super) fn input_over(&mut self, now: Moment, slot: usize, result: i32) {
        match -result {
            libc::EAGAIN | libc::EINTR => return self.arm_read(slot),
            libc::ECANCELED if self.links[slot].discard => return self.arm_read(slot),
            libc::ECANCELED if self.links[slot].paused => return,
            _ => {}
        }
        let link = &mut self.links[slot];
        link.end = End::Seen;
        let peer = link.peer;
        if result < 0 && link.kind == Kind::Socket {
            let why = io::Error::from_raw_os_error(-result).to_string();
            return self.broken(now, slot, peer, why);
        }
        self.tell_end(now, slot);
        self.watch(slot);
    }

    /// Tells the core that a peer has sent everything, once everything was given to it.
    pub(super) fn tell_end(&mut self, now: Moment, slot: usize) {
        let link = &mut self.links[slot];
        if link.end != End::Seen || link.paused || link.resuming {
            return;
        }
        link.end = End::Told;
        let (peer, partial) = (link.peer, link.inbox.len());
        link.inbox.release(self.io.buffers());
        self.tell(now, Input::Ended { peer, partial });
    }

    pub(super) fn broken(&mut self, now: Moment, slot: usize, peer: Peer, why: String) {
        let link = &mut self.links[slot];
        if link.kind == Kind::Worker {
            link.closing = link.closing.max(Closing::ShutDown);
            self.close_stdin_when_idle(slot);
        }
        self.tell(now, Input::Broken { peer, why });
    }
}
