//! What waits to go out, in order: chunks that lines were copied into, and long lines that are held where they came in.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::io::buffers::{Block, Buffers};

/// So many bytes in a row are not copied into the output when they lie in a block: they are held there until sent.
pub(super) const HOLD: usize = 16 * 1024;
/// And it must be at least this part of its block, so that what is kept in memory stays near what is queued.
pub(super) const HOLD_PART: usize = 4;
/// Segments that one gathering write takes.
const GATHER: usize = 16;

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
pub(super) struct Outbox {
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
pub(super) enum Next {
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
    /// An empty one; its first chunk may be a small one.
    pub(super) fn new(begins_small: bool) -> Self {
        Self { begins_small, ..Self::default() }
    }

    /// Copies bytes behind the others. A write in flight reads only what was there when it began.
    ///
    /// # Errors
    /// There is no memory. Then the line that they belong to is lost as a whole, with all behind it in `bytes` and
    /// with what is pushed yet of its last line; so many bytes less than were ever pushed are there.
    pub(super) fn push(&mut self, bytes: &[u8], buffers: &mut Buffers) -> Result<(), usize> {
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
    pub(super) fn hold(&mut self, block: Rc<Block>, start: usize, end: usize) -> Result<(), usize> {
        let segment = Segment::Held { block, start, end };
        if self.torn {
            self.torn = segment.bytes().last() != Some(&b'\n');
            return Err(end - start);
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// Bytes of memory that it takes up: a block that is held counts in full, once.
    pub(super) fn weight(&self) -> usize {
        let mut before: *const Block = std::ptr::null();
        let weights = self.segments.iter().map(|segment| {
            let same = std::ptr::eq(std::mem::replace(&mut before, segment.block()), segment.block());
            if same { 0 } else { segment.block().weight() }
        });
        weights.sum()
    }

    /// What to write next; valid until the next call of [`Outbox::advance`] or [`Outbox::clear`].
    pub(super) fn next(&mut self) -> Option<Next> {
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

    /// The first stretch of memory to write, and how long it is; valid like [`Outbox::next`].
    pub(super) fn first(&self) -> Option<(*const u8, usize)> {
        let bytes = self.segments.front()?.bytes();
        Some((bytes.as_ptr(), bytes.len()))
    }

    /// Lines of which the end, at least, waits.
    pub(super) fn lines(&self) -> usize {
        self.segments.iter().map(|segment| memchr::memchr_iter(b'\n', segment.bytes()).count()).sum()
    }

    /// The first `bytes` were written.
    pub(super) fn advance(&mut self, mut bytes: usize, buffers: &mut Buffers) {
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
    pub(super) fn clear(&mut self, buffers: &mut Buffers) {
        self.segments.drain(..).for_each(|segment| segment.give_back(buffers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buffers::{CHUNK, READ};

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
