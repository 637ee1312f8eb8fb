//! One peer's descriptors, what came in and was not consumed yet, and what waits to go out.
//!
//! The flags `reading`, `writing`, `watching` and `reading_stderr` are true exactly while the kernel holds an operation
//! of that kind. A descriptor is closed only when none is: a closed socket with a receive in flight sends no FIN, and
//! the kernel goes on writing into our buffer.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use super::log::LONGEST_LINE;
use crate::bus::port::Peer;
use crate::io::buffers::{Block, Buffers, CHUNK, READ};
use crate::scan::Window;

/// So many bytes in a row are not copied into the output when they lie in a block: they are held there until sent.
pub const HOLD: usize = 16 * 1024;
/// And it must be at least this part of its block, so that what is kept in memory stays near what is queued.
pub const HOLD_PART: usize = 4;
/// Segments that one gathering write takes.
const GATHER: usize = 16;

/// Which end of the bus this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection accepted from a listening socket.
    Socket,
    /// The client of `--stdio`. Its descriptors belong to the parent: they are never closed, and never O_NONBLOCK.
    Stdio,
    /// A worker's three pipes.
    Worker,
}

/// See the top of the file.
pub struct Link {
    /// Who it is.
    pub peer: Peer,
    /// What it is.
    pub kind: Kind,
    /// A worker's pool and number, for its stderr.
    pub name: (usize, u32),
    /// Where its bytes come from.
    pub input: Option<Descriptor>,
    /// Where its bytes go; none for a socket, which has one descriptor for both.
    pub output: Option<Descriptor>,
    /// A worker's stderr, with the unfinished line.
    pub stderr: Option<Stderr>,
    /// What came in.
    pub inbox: Inbox,
    /// What goes out.
    pub outbox: Outbox,
    /// A read or receive is in flight.
    pub reading: bool,
    /// A write or send is in flight.
    pub writing: bool,
    /// A poll for the other side's leaving is in flight.
    pub watching: bool,
    /// A read of stderr is in flight.
    pub reading_stderr: bool,
    /// The core is looking at its bytes: it stays, and is not read, until that is over.
    pub presenting: bool,
    /// The core does not want its bytes for now.
    pub paused: bool,
    /// It waits in the list of links whose kept bytes are presented next.
    pub resuming: bool,
    /// Whether its input has ended.
    pub end: End,
    /// What still comes in is thrown away.
    pub discard: bool,
    /// It waits in the list of outputs to write.
    pub dirty: bool,
    /// How far it is being closed.
    pub closing: Closing,
    /// Whether the last receive left something in the socket.
    pub more_to_read: bool,
}

/// How far the end of an input has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There may be more.
    Open,
    /// There is no more, and the core does not know it yet: it has not seen all.
    Seen,
    /// The core knows it.
    Told,
}

/// How far a link is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closing {
    /// Not at all.
    Open,
    /// When everything queued is written, the output is shut down.
    AfterFlush,
    /// The output is shut down; the other side's end is awaited.
    ShutDown,
    /// Everything is cancelled; it goes when the last operation has completed.
    Leaving,
}

/// A descriptor that is ours, or that we may use only.
pub enum Descriptor {
    /// Closed when dropped.
    Owned(OwnedFd),
    /// Left open.
    Lent(RawFd),
}

impl Descriptor {
    /// Its number.
    pub fn raw(&self) -> RawFd {
        match self {
            Self::Owned(descriptor) => descriptor.as_raw_fd(),
            Self::Lent(descriptor) => *descriptor,
        }
    }
}

/// A worker's stderr.
pub struct Stderr {
    /// The pipe.
    pub pipe: OwnedFd,
    /// Where the next read goes.
    pub block: Box<[u8; 4096]>,
    /// A line without its end yet.
    pub line: Vec<u8>,
}

impl Stderr {
    /// Takes the first `bytes` of the block; `line` is called for each complete line, and for pieces of one that is
    /// too long.
    pub fn take(&mut self, bytes: usize, mut line: impl FnMut(&[u8])) {
        for piece in self.block[..bytes].split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if self.line.len() < LONGEST_LINE {
                continue;
            }
            line(&self.line);
            self.line.clear();
        }
    }

    /// Gives the last line, if it has no newline.
    pub fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.line.is_empty() {
            line(&self.line);
            self.line.clear();
        }
    }
}

impl Link {
    /// A link with nothing in flight.
    pub fn new(peer: Peer, kind: Kind, input: Descriptor, output: Option<Descriptor>, stderr: Option<OwnedFd>) -> Self {
        Self {
            peer,
            kind,
            name: (0, 0),
            input: Some(input),
            output,
            stderr: stderr.map(|pipe| Stderr { pipe, block: Box::new([0; 4096]), line: Vec::new() }),
            inbox: Inbox { of_worker: kind == Kind::Worker, ..Inbox::default() },
            outbox: Outbox { begins_small: kind == Kind::Socket, ..Outbox::default() },
            reading: false,
            writing: false,
            watching: false,
            reading_stderr: false,
            presenting: false,
            paused: false,
            resuming: false,
            end: End::Open,
            discard: false,
            dirty: false,
            closing: Closing::Open,
            more_to_read: false,
        }
    }

    /// The link of the worker with this number in this pool.
    pub fn with_name(self, pool: usize, number: u32) -> Self {
        Self { name: (pool, number), ..self }
    }

    /// Nothing more of what came in matters.
    pub fn inbox_is_over(&mut self, buffers: &mut Buffers) {
        if !self.reading {
            self.inbox.release(buffers);
        }
    }

    /// The descriptor to write to.
    pub fn out(&self) -> Option<RawFd> {
        match self.kind {
            Kind::Socket => self.input.as_ref(),
            Kind::Stdio | Kind::Worker => self.output.as_ref(),
        }
        .map(Descriptor::raw)
    }

    /// Whether the kernel holds no operation of it, and the core none of its bytes.
    pub fn is_idle(&self) -> bool {
        !(self.reading || self.writing || self.watching || self.reading_stderr || self.presenting)
    }
}

/// Bytes that were received and not consumed: the beginning of a line, or what a paused peer has sent.
#[derive(Default)]
pub struct Inbox {
    block: Option<Rc<Block>>,
    /// Its memory is registered, if possible.
    of_worker: bool,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes, with their pads.
    pub fn window(&self) -> Option<Window<'_>> {
        self.block.as_ref().map(|block| block.window(self.start, self.end))
    }

    /// The block, to hold long lines of it, and where the inbox begins in it.
    pub fn holdable(&self) -> Option<(Rc<Block>, usize)> {
        Some((Rc::clone(self.block.as_ref()?), self.start))
    }

    /// The first `bytes` are consumed. An empty inbox keeps no memory unless `keep` says that it will be read into.
    pub fn consume(&mut self, bytes: usize, keep: bool, buffers: &mut Buffers) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if !keep {
                self.release(buffers);
            }
        }
    }

    /// Gives the memory back, with what is in it.
    pub fn release(&mut self, buffers: &mut Buffers) {
        (self.start, self.end) = (0, 0);
        if let Some(block) = self.block.take().and_then(Rc::into_inner) {
            buffers.give_back(block);
        }
    }

    /// Adds bytes; `limit` is how much a line may hold. False if there is no memory for them.
    #[must_use]
    pub fn append(&mut self, bytes: &[u8], limit: usize, buffers: &mut Buffers) -> bool {
        let there_is_room = self.reserve(bytes.len(), limit, buffers);
        let end = self.end;
        if there_is_room && let Some(block) = self.block.as_mut().and_then(Rc::get_mut) {
            block.write(end, bytes);
            self.end += bytes.len();
        }
        there_is_room
    }

    /// Room for the kernel to read at least `wanted` bytes into: the block's registration, the address and the size.
    /// [`Inbox::filled`] says how many came. None if there is no memory for them.
    pub fn room(
        &mut self,
        wanted: usize,
        limit: usize,
        buffers: &mut Buffers,
    ) -> Option<(Option<u16>, *mut u8, usize)> {
        if !self.reserve(wanted, limit, buffers) {
            return None;
        }
        let block = self.block.as_ref()?;
        Some((block.registered(), block.at(self.end), block.capacity() - self.end))
    }

    /// Whether room for `wanted` more bytes takes more memory than it has.
    pub fn would_grow(&self, wanted: usize) -> bool {
        self.block.as_ref().is_none_or(|block| block.capacity() < self.len() + wanted)
    }

    /// Bytes of memory that it takes up.
    pub fn weight(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.weight())
    }

    /// The kernel has read `bytes` into the room.
    pub fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Whether the memory was taken for a long line.
    pub fn is_long(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.capacity() > READ)
    }

    /// Makes room for `wanted` more bytes: by moving to the front, or into a larger block. Blocks grow fourfold, so
    /// that a long line is moved a few times only, but never far beyond the longest line. False if there is no memory;
    /// then everything is as it was.
    #[must_use]
    fn reserve(&mut self, wanted: usize, limit: usize, buffers: &mut Buffers) -> bool {
        let held = self.len();
        if let Some(block) = self.block.as_mut().and_then(Rc::get_mut) {
            if block.capacity() - self.end >= wanted {
                return true;
            }
            if block.capacity() - held >= wanted && held <= block.capacity() / 2 {
                block.move_to_front(self.start, self.end);
                (self.start, self.end) = (0, held);
                return true;
            }
        }
        let needed = held + wanted;
        let generous = (4 * held).min(limit + CHUNK).max(needed);
        let larger =
            if self.of_worker && needed <= READ { buffers.take_read() } else { buffers.take(needed, generous) };
        let Some(mut larger) = larger else { return false };
        if let Some(block) = self.block.take() {
            larger.write(0, block.bytes(self.start, self.end));
            if let Some(block) = Rc::into_inner(block) {
                buffers.give_back(block);
            }
        }
        self.block = Some(Rc::new(larger));
        (self.start, self.end) = (0, held);
        true
    }
}

enum Segment {
    /// Copied bytes; more may be added behind them.
    Chunk { block: Block, start: usize, end: usize },
    /// A long line where it was received; the block is read on behind it at most.
    Held { block: Rc<Block>, start: usize, end: usize },
}

impl Segment {
    fn give_back(self, buffers: &mut Buffers) {
        let block = match self {
            Self::Chunk { block, .. } => Some(block),
            Self::Held { block, .. } => Rc::into_inner(block),
        };
        if let Some(block) = block {
            buffers.give_back(block);
        }
    }

    fn block(&self) -> &Block {
        match self {
            Self::Chunk { block, .. } => block,
            Self::Held { block, .. } => block,
        }
    }

    fn bytes(&self) -> &[u8] {
        let (Self::Chunk { start, end, .. } | Self::Held { start, end, .. }) = self;
        self.block().bytes(*start, *end)
    }
}

/// Bytes that wait to be written, in order.
#[derive(Default)]
pub struct Outbox {
    segments: VecDeque<Segment>,
    begins_small: bool,
    /// Bytes are missing behind the last one, up to the end of a line.
    torn: bool,
    gather: Option<Box<Gather>>,
}

/// The arguments of a gathering write; they must stay where they are while it is in flight.
struct Gather {
    vectors: [libc::iovec; GATHER],
    message: libc::msghdr,
}

/// What to write next.
pub enum Next {
    /// One stretch of memory, perhaps registered.
    One {
        /// The index it is registered under.
        registered: Option<u16>,
        /// Where it begins.
        address: *const u8,
        /// How long it is.
        bytes: usize,
    },
    /// Several.
    Many {
        /// For writev(2).
        vectors: *const libc::iovec,
        /// How many.
        count: usize,
        /// For sendmsg(2).
        message: *const libc::msghdr,
    },
}

impl Outbox {
    /// Copies bytes behind the others. A write in flight reads only what was there when it began.
    ///
    /// # Errors
    /// There is no memory. Then the line that they belong to is lost as a whole, with all behind it in `bytes` and
    /// with what is pushed yet of its last line; so many bytes less than were ever pushed are there.
    pub fn push(&mut self, bytes: &[u8], buffers: &mut Buffers) -> Result<(), usize> {
        if self.torn {
            self.torn = bytes.last() != Some(&b'\n');
            return Err(bytes.len());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if !matches!(self.segments.back(), Some(Segment::Chunk { block, end, .. }) if *end < block.capacity()) {
                // A worker's input is written from registered memory; a client's begins small.
                let block = match self.segments.len() {
                    _ if !self.begins_small => buffers.take_registered_chunk(),
                    0 => buffers.take_small(),
                    1 => buffers.take_medium(),
                    _ => buffers.take_chunk(),
                };
                let Some(block) = block else {
                    self.torn = bytes.last() != Some(&b'\n');
                    return Err(rest.len() + self.tear_off(buffers));
                };
                self.segments.push_back(Segment::Chunk { block, start: 0, end: 0 });
            }
            let Some(Segment::Chunk { block, end, .. }) = self.segments.back_mut() else { return Err(rest.len()) };
            let (now, later) = rest.split_at(rest.len().min(block.capacity() - *end));
            block.write(*end, now);
            *end += now.len();
            rest = later;
        }
        Ok(())
    }

    /// Takes back what stands behind the last newline, and says how much that was. It is not in flight: a write begins
    /// when the lines of a turn are complete.
    fn tear_off(&mut self, buffers: &mut Buffers) -> usize {
        let mut torn_off = 0;
        while let Some(segment) = self.segments.back_mut() {
            let kept = memchr::memrchr(b'\n', segment.bytes()).map_or(0, |newline| newline + 1);
            torn_off += segment.bytes().len() - kept;
            let (Segment::Chunk { start, end, .. } | Segment::Held { start, end, .. }) = segment;
            *end = *start + kept;
            if kept > 0 {
                break;
            }
            if let Some(segment) = self.segments.pop_back() {
                segment.give_back(buffers);
            }
        }
        torn_off
    }

    /// Puts the bytes `start..end` of `block` behind the others, without copying them.
    ///
    /// # Errors
    /// As for [`Outbox::push`]: the beginning of the line is missing.
    pub fn hold(&mut self, block: Rc<Block>, start: usize, end: usize) -> Result<(), usize> {
        let segment = Segment::Held { block, start, end };
        if self.torn {
            self.torn = segment.bytes().last() != Some(&b'\n');
            return Err(end - start);
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// Bytes of memory that it takes up: a block that is held counts in full, once.
    pub fn weight(&self) -> usize {
        let mut before: *const Block = std::ptr::null();
        let weights = self.segments.iter().map(|segment| {
            let same = std::ptr::eq(std::mem::replace(&mut before, segment.block()), segment.block());
            if same { 0 } else { segment.block().weight() }
        });
        weights.sum()
    }

    /// What to write next; valid until the next call of [`Outbox::advance`] or [`Outbox::clear`].
    pub fn next(&mut self) -> Option<Next> {
        if self.segments.len() <= 1 {
            let segment = self.segments.front()?;
            let registered = segment.block().registered();
            let bytes = segment.bytes();
            return Some(Next::One { registered, address: bytes.as_ptr(), bytes: bytes.len() });
        }
        let gather = self.gather.get_or_insert_with(|| {
            // SAFETY: both are plain data for which zero is a value.
            Box::new(unsafe { std::mem::zeroed() })
        });
        let mut count = 0;
        for (vector, segment) in gather.vectors.iter_mut().zip(&self.segments) {
            let bytes = segment.bytes();
            *vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            count += 1;
        }
        gather.message.msg_iov = gather.vectors.as_mut_ptr();
        gather.message.msg_iovlen = count as _;
        Some(Next::Many { vectors: gather.vectors.as_ptr(), count, message: &raw const gather.message })
    }

    /// The first `bytes` were written.
    pub fn advance(&mut self, mut bytes: usize, buffers: &mut Buffers) {
        while let Some(front) = self.segments.front_mut() {
            let length = front.bytes().len();
            if bytes < length {
                let (Segment::Chunk { start, .. } | Segment::Held { start, .. }) = front;
                *start += bytes;
                return;
            }
            bytes -= length;
            if let Some(segment) = self.segments.pop_front() {
                segment.give_back(buffers);
            }
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        self.segments.drain(..).for_each(|segment| segment.give_back(buffers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that an outbox would write.
    fn text(outbox: &Outbox) -> Vec<u8> {
        outbox.segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect()
    }

    #[test]
    fn a_line_that_cannot_be_queued_is_lost_as_a_whole_and_the_next_ones_are_there() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let mut outbox = Outbox::default();
        outbox.push(b"first\nsecond\nthe begin", &mut buffers).expect("there is memory");
        assert_eq!(outbox.tear_off(&mut buffers), 9);
        outbox.torn = true;
        assert_eq!(outbox.push(b" of the third, ", &mut buffers), Err(15));
        assert_eq!(outbox.push(b"and its end\n", &mut buffers), Err(12));
        assert_eq!(outbox.push(b"fourth\n", &mut buffers), Ok(()));
        assert_eq!(text(&outbox), b"first\nsecond\nfourth\n");
        outbox.clear(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }

    #[test]
    fn a_line_without_its_begin_is_lost_over_all_its_blocks() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let mut outbox = Outbox { begins_small: true, ..Outbox::default() };
        let long = vec![b'x'; 3 * CHUNK];
        outbox.push(b"first\n", &mut buffers).expect("there is memory");
        outbox.push(&long, &mut buffers).expect("there is memory");
        assert_eq!(outbox.weight(), buffers.used());
        assert_eq!(outbox.tear_off(&mut buffers), long.len());
        assert_eq!(text(&outbox), b"first\n");
        outbox.clear(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }

    #[test]
    fn a_held_block_counts_in_full_once_for_each_output_that_holds_it() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let block = Rc::new(buffers.take(READ, READ).expect("there is memory"));
        let (mut one, mut other) = (Outbox::default(), Outbox::default());
        one.hold(Rc::clone(&block), 0, HOLD).expect("nothing is torn");
        one.hold(Rc::clone(&block), HOLD, 2 * HOLD).expect("nothing is torn");
        other.hold(block, 2 * HOLD, 3 * HOLD).expect("nothing is torn");
        assert_eq!((one.weight(), other.weight()), (buffers.used(), buffers.used()));
        one.clear(&mut buffers);
        assert_eq!(buffers.used(), other.weight());
        other.clear(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }
}
