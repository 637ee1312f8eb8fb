//! What comes in: reads and receives are armed, their bytes given to the core where they lie, and what it does not
//! consume is kept.

use std::io;
use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};

use super::connection::{Closing, Descriptor, Kind};
use super::{Operation, Shell, Source};
use crate::bus::port::{Input, Moment, Next, Peer};
use crate::io::buffers::{CHUNK, GROUP};
use crate::io::ring::Completion;

/// A socket whose unfinished line is at least this long is read straight into place.
const LONG_LINE: usize = 8 * 1024;

/// Batches of lines that a link gives to the core in a turn: while others wait, and while nobody does.
const BATCHES: usize = 2;
const BATCHES_ALONE: usize = 16;

impl Shell {
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
        if !wanted || link.reading || link.resuming || link.eof || link.closing == Closing::Leaving {
            return;
        }
        let direct = link.kind != Kind::Socket || link.inbox.len() >= LONG_LINE;
        let entry = if !direct {
            receive_entry(input, link.more_to_read).user_data(Operation::Receive.token(slot))
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
            let Some((registered, address, room)) = link.inbox.room(wanted, self.longest_line, &mut self.buffers)
            else {
                return self.is_refused_room(slot);
            };
            let room = room.min(u32::MAX as usize) as u32;
            let token = Operation::Read.token(slot);
            match (link.kind, registered) {
                (Kind::Socket, _) => opcode::Recv::new(types::Fd(input), address, room).build().user_data(token),
                (_, Some(index)) => opcode::ReadFixed::new(types::Fd(input), address, room, index)
                    .offset(u64::MAX)
                    .build()
                    .user_data(token),
                (_, None) => {
                    opcode::Read::new(types::Fd(input), address, room).offset(u64::MAX).build().user_data(token)
                }
            }
        };
        self.links[slot].reading = true;
        // SAFETY: the inbox keeps its block and the link its descriptor while `reading` is set.
        unsafe { self.ring.submit(entry) };
    }

    /// A read into the link's own memory has completed.
    pub(super) fn read(&mut self, now: Moment, slot: usize, result: i32) {
        if result > 0 {
            self.links[slot].inbox.filled(result as usize);
            self.present(now, slot);
        }
        self.links[slot].reading = false;
        if self.gone(slot) {
            return;
        }
        if self.links[slot].discard {
            self.links[slot].inbox.release(&mut self.buffers);
        }
        if result > 0 { self.arm_read(slot) } else { self.input_over(now, slot, result) }
    }

    /// A receive into a provided buffer has completed.
    pub(super) fn received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let link = &mut self.links[slot];
        link.more_to_read = completion.more_to_read();
        let buffer = completion.buffer();
        if completion.result > 0
            && let Some(buffer) = buffer
            && link.closing != Closing::Leaving
            && !link.discard
        {
            self.present_received(now, slot, buffer, completion.result as usize);
        }
        if let Some(buffer) = buffer {
            self.buffers.return_received(buffer);
        }
        self.links[slot].reading = false;
        if self.gone(slot) {
            return;
        }
        match completion.result {
            1.. => self.arm_read(slot),
            result if result == -libc::ENOBUFS => self.starved.push(slot),
            result => self.input_over(now, slot, result),
        }
    }

    /// Gives received bytes to the core where they lie, and keeps what it does not consume.
    pub(super) fn present_received(&mut self, now: Moment, slot: usize, buffer: u16, bytes: usize) {
        let peer = self.links[slot].peer;
        let limit = self.longest_line;
        // SAFETY: the buffer is returned by the caller, after this.
        let mut window = unsafe { self.buffers.received(buffer, bytes) };
        if !self.links[slot].inbox.is_empty() || self.links[slot].paused {
            let data = window.data();
            if !self.links[slot].inbox.append(data, limit, &mut self.buffers) {
                return self.cannot_keep(now, slot);
            }
            return self.present(now, slot);
        }
        for batch in 1.. {
            let (received, effects) = self.bus.receive(now, peer, window);
            let effects = effects.collect();
            self.carry_out(effects, Some(&Source { from: peer, window, block: None }));
            window = window.without(received.consumed);
            if received.next != Next::Again || self.turn_is_over(slot, batch) {
                break;
            }
        }
        if !window.data().is_empty() {
            let data = window.data();
            if !self.links[slot].inbox.append(data, limit, &mut self.buffers) {
                self.cannot_keep(now, slot);
            }
        }
    }

    /// Gives the bytes of the inbox to the core. The caller keeps `reading` set, so that the link stays even if the
    /// core closes it over what it reads.
    pub(super) fn present(&mut self, now: Moment, slot: usize) {
        if self.links[slot].discard {
            return self.links[slot].inbox.release(&mut self.buffers);
        }
        let peer = self.links[slot].peer;
        for batch in 1.. {
            if self.links[slot].paused || self.links[slot].inbox.is_empty() {
                break;
            }
            let keep = self.links[slot].kind != Kind::Socket;
            let mut inbox = std::mem::take(&mut self.links[slot].inbox);
            let Some(window) = inbox.window() else { return };
            let (received, effects) = self.bus.receive(now, peer, window);
            let effects = effects.collect();
            self.carry_out(effects, Some(&Source { from: peer, window, block: inbox.holdable() }));
            inbox.consume(received.consumed, keep, &mut self.buffers);
            self.links[slot].inbox = inbox;
            if received.next != Next::Again || self.turn_is_over(slot, batch) {
                break;
            }
        }
        let link = &mut self.links[slot];
        let small_again = link.inbox.is_empty() && link.inbox.is_long();
        if link.discard || small_again {
            link.inbox.release(&mut self.buffers);
        }
    }

    /// Whether a link that has given the core so many batches of lines and has more lets the others go first. If so,
    /// it goes on after them.
    fn turn_is_over(&mut self, slot: usize, batches: usize) -> bool {
        let over = batches >= BATCHES_ALONE || batches >= BATCHES && self.ring.has_news();
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
        link.eof = true;
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
        if !link.eof || link.end_told || link.paused || link.resuming {
            return;
        }
        link.end_told = true;
        let (peer, partial) = (link.peer, link.inbox.len());
        link.inbox.release(&mut self.buffers);
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

    pub(super) fn resume_links(&mut self, now: Moment) {
        // Only those that wait now: one that is resumed meanwhile has its turn after the next completions.
        for _ in 0..self.resumed.len() {
            let Some(slot) = self.resumed.pop_front() else { return };
            let Some(link) = self.links.get_mut(slot) else { continue };
            link.resuming = false;
            if self.gone(slot) {
                continue;
            }
            let link = &mut self.links[slot];
            if !std::mem::replace(&mut link.reading, true) {
                self.present(now, slot);
                self.links[slot].reading = false;
            }
            if !self.gone(slot) {
                self.tell_end(now, slot);
                self.arm_read(slot);
            }
        }
    }
}

fn receive_entry(socket: RawFd, more_to_read: bool) -> squeue::Entry {
    // A socket that was emptied is polled before it is tried again.
    let hint = if more_to_read { 0 } else { RECVSEND_POLL_FIRST };
    opcode::Recv::new(types::Fd(socket), std::ptr::null_mut(), 0)
        .ioprio(hint)
        .buf_group(GROUP)
        .build()
        .flags(squeue::Flags::BUFFER_SELECT)
}

/// IORING_RECVSEND_POLL_FIRST (io_uring_enter(2)).
const RECVSEND_POLL_FIRST: u16 = 1;
