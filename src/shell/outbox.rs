//! An output queue, in order: chunks that lines were copied to, and long lines that are held where they were received.
//! What is queued is what is sent: a WebSocket queues frames (`websocket_output.rs`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::Rc;

use crate::bus::cold::{Blank, Cold};
use crate::io::Submission;
use crate::io::buffers::{Block, Buffers};

/// The minimum length of contiguous bytes that are not copied but held in their block until sent.
pub(super) const HOLD: usize = 16 * 1024;
/// They must also be at least this part of their block, so that memory use stays near the queued length.
const HOLD_PART: usize = 4;
/// Segments in one gathering write.
const GATHER: usize = 16;

/// Where a long line lies: it is held there until it is sent.
#[derive(Clone)]
pub(super) enum Storage {
    /// Where it was received; the block is only read into after it.
    Block(Rc<Block>),
    /// In the body of a POST, or in a line that the core has made.
    Posted(Rc<Posted>),
}

impl Storage {
    #[inline]
    pub(super) fn bytes(&self, start: usize, end: usize) -> &[u8] {
        match self {
            Self::Block(block) => block.bytes(start, end),
            Self::Posted(body) => &body.bytes[start..end],
        }
    }

    /// Its size.
    pub(super) fn capacity(&self) -> usize {
        match self {
            Self::Block(block) => block.capacity(),
            Self::Posted(body) => body.bytes.capacity(),
        }
    }
}

/// The body of a POST, or a batch of messages, of which one at least is queued, or a long line of the core. It is counted as
/// long as that is so.
pub(super) struct Posted {
    bytes: Rc<Vec<u8>>,
    total: Rc<Cell<usize>>,
}

impl Posted {
    /// It is counted in `total`.
    pub(super) fn new(bytes: Rc<Vec<u8>>, total: &Rc<Cell<usize>>) -> Self {
        total.set(total.get() + bytes.capacity());
        Self { bytes, total: Rc::clone(total) }
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes.capacity());
    }
}

enum Segment {
    /// Copied bytes; more may be appended.
    Chunk { block: Block, start: usize, end: usize },
    /// A long line where it lies.
    Held { storage: Storage, start: usize, end: usize },
}

impl Segment {
    fn give_back(self, buffers: &mut Buffers) {
        let block = match self {
            Self::Chunk { block, .. } => Some(block),
            Self::Held { storage: Storage::Block(block), .. } => Rc::into_inner(block),
            Self::Held { .. } => None,
        };
        if let Some(block) = block {
            buffers.give_back(block);
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Chunk { block, start, end } => block.bytes(*start, *end),
            Self::Held { storage, start, end } => storage.bytes(*start, *end),
        }
    }

    /// The registration of its memory.
    fn registered(&self) -> Option<u16> {
        match self {
            Self::Chunk { block, .. } => block.registered(),
            Self::Held { storage: Storage::Block(block), .. } => block.registered(),
            Self::Held { .. } => None,
        }
    }

    /// The memory used, in bytes, and what shows whether two segments lie in the same.
    fn weight(&self) -> (*const u8, usize) {
        let of_block = |block: &Block| (std::ptr::from_ref(block).cast(), block.weight());
        match self {
            Self::Chunk { block, .. } => of_block(block),
            Self::Held { storage: Storage::Block(block), .. } => of_block(block),
            Self::Held { storage: Storage::Posted(body), .. } => (body.bytes.as_ptr(), body.bytes.capacity()),
        }
    }
}

/// Whether this many contiguous bytes are held in place, in a block of this capacity.
pub(super) fn are_held(bytes: usize, capacity: usize) -> bool {
    bytes >= HOLD.max(capacity / HOLD_PART)
}

/// Queued bytes, in order.
#[derive(Default)]
pub(super) struct Outbox {
    queue: Cold<Queue>,
    begins_small: bool,
    /// The last line was truncated: drop bytes up to its end.
    dropping_line: bool,
}

/// The part that is only allocated when something is queued.
#[derive(Default)]
struct Queue {
    segments: VecDeque<Segment>,
    gather: Option<Box<Gather>>,
}

impl Blank for Queue {
    const BLANK: &'static Self = &Self { segments: VecDeque::new(), gather: None };
}

/// The arguments of a gathering write, which must stay in place while it is in flight.
struct Gather {
    vectors: [libc::iovec; GATHER],
    message: libc::msghdr,
}

/// The memory of these bytes of a queue.
fn stretches(segments: &VecDeque<Segment>, bytes: Range<usize>) -> impl Iterator<Item = *const [u8]> {
    let mut end = 0;
    segments.iter().map(Segment::bytes).filter_map(move |segment| {
        let begin = end;
        end += segment.len();
        let (from, to) = (bytes.start.max(begin), bytes.end.min(end));
        (from < to).then(|| std::ptr::from_ref(&segment[from - begin..to - begin]))
    })
}

impl Gather {
    /// The gather buffers of an outbox, allocated on demand.
    fn of(gather: &mut Option<Box<Self>>) -> &mut Self {
        gather.get_or_insert_with(|| {
            // SAFETY: both are plain data for which all zeros are valid.
            Box::new(unsafe { std::mem::zeroed() })
        })
    }

    /// Takes the first pieces to write there.
    fn fill(&mut self, to: RawFd, is_socket: bool, pieces: impl Iterator<Item = *const [u8]>) -> (Submission, usize) {
        let (mut count, mut bytes) = (0, 0);
        for (vector, piece) in self.vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: piece.cast_mut().cast(), iov_len: piece.len() };
            count += 1;
            bytes += piece.len();
        }
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = count as _;
        let submission = match is_socket {
            true => Submission::SendMany { socket: to, message: &raw const self.message, more: false },
            false => Submission::WriteMany { to, vectors: self.vectors.as_ptr(), count },
        };
        (submission, bytes)
    }
}

/// How much memory to take if the last chunk is full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkSize {
    /// Ample, for an output that grows.
    Ample,
    /// Little: for a frame's header, whose line may be held elsewhere.
    Scant,
}

impl Outbox {
    /// An empty outbox; its first chunk may be small.
    pub(super) fn new(begins_small: bool) -> Self {
        Self { begins_small, ..Self::default() }
    }

    /// Appends a copy of the bytes. A write in flight only reads what was queued when it began.
    ///
    /// # Errors
    /// The system is out of memory. Then their line is lost as a whole, with everything after it in `bytes` and the
    /// rest of its last line in later pushes; the error is the number of bytes lost.
    pub(super) fn push(&mut self, bytes: &[u8], buffers: &mut Buffers) -> Result<(), usize> {
        if self.dropping_line {
            return Err(self.drop_bytes(bytes.len(), bytes));
        }
        self.push_bytes(bytes, ChunkSize::Ample, buffers).map_err(|pushed| {
            let begun = self.drop_line(buffers);
            self.drop_bytes(begun + bytes.len() - pushed, bytes)
        })
    }

    /// Appends a copy of the bytes, whatever they are part of. If memory runs out, returns how many were copied.
    pub(super) fn push_bytes(&mut self, bytes: &[u8], room: ChunkSize, buffers: &mut Buffers) -> Result<(), usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if !matches!(self.queue.segments.back(), Some(Segment::Chunk { block, end, .. }) if *end < block.capacity())
            {
                // A worker's input is written from registered memory; a client's starts small.
                let block = match self.queue.segments.len() {
                    _ if room == ChunkSize::Scant => buffers.take_small(),
                    _ if !self.begins_small => buffers.take_registered_chunk(),
                    0 => buffers.take_small(),
                    1 => buffers.take_medium(),
                    _ => buffers.take_chunk(),
                };
                let Some(block) = block else { return Err(bytes.len() - rest.len()) };
                self.queue.segments.push_back(Segment::Chunk { block, start: 0, end: 0 });
            }
            let Some(Segment::Chunk { block, end, .. }) = self.queue.segments.back_mut() else {
                return Err(bytes.len() - rest.len());
            };
            let (now, later) = rest.split_at(rest.len().min(block.capacity() - *end));
            block.write(*end, now);
            *end += now.len();
            rest = later;
        }
        Ok(())
    }

    /// Whether the last line was lost, and these bytes continue it.
    pub(super) fn is_dropping_line(&self) -> bool {
        self.dropping_line
    }

    /// Records lost bytes, up to the end of `bytes`.
    pub(super) fn drop_bytes(&mut self, lost: usize, bytes: &[u8]) -> usize {
        self.dropping_line = bytes.last() != Some(&b'\n');
        lost
    }

    /// Removes bytes from the end of the queue.
    pub(super) fn take_back(&mut self, mut bytes: usize, buffers: &mut Buffers) {
        while let Some(segment) = self.queue.segments.back_mut().filter(|_| bytes > 0) {
            let length = segment.bytes().len();
            let (Segment::Chunk { end, .. } | Segment::Held { end, .. }) = segment;
            if length > bytes {
                *end -= bytes;
                return;
            }
            bytes -= length;
            if let Some(segment) = self.queue.segments.pop_back() {
                segment.give_back(buffers);
            }
        }
    }

    /// Removes what follows the last newline, and returns its length. It is not in flight: a write begins when the
    /// lines of a turn are complete.
    fn drop_line(&mut self, buffers: &mut Buffers) -> usize {
        let mut torn_off = 0;
        for bytes in self.queue.segments.iter().rev().map(Segment::bytes) {
            let behind = memchr::memrchr(b'\n', bytes).map_or(bytes.len(), |newline| bytes.len() - newline - 1);
            torn_off += behind;
            if behind < bytes.len() {
                break;
            }
        }
        self.take_back(torn_off, buffers);
        torn_off
    }

    /// Appends the bytes `start..end` there without copying them.
    ///
    /// # Errors
    /// As for [`Outbox::push`]: the beginning of the line was lost.
    pub(super) fn hold(&mut self, storage: Storage, start: usize, end: usize) -> Result<(), usize> {
        if self.dropping_line {
            let bytes = storage.bytes(start, end);
            return Err(self.drop_bytes(bytes.len(), bytes));
        }
        self.hold_bytes(storage, start, end);
        Ok(())
    }

    /// The same, whatever they are part of.
    pub(super) fn hold_bytes(&mut self, storage: Storage, start: usize, end: usize) {
        self.queue.segments.push_back(Segment::Held { storage, start, end });
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.segments.is_empty()
    }

    /// Memory used, in bytes: a held block counts in full, once.
    pub(super) fn weight(&self) -> usize {
        let mut before = std::ptr::null();
        let weights = self.queue.segments.iter().map(Segment::weight).map(|(memory, weight)| {
            let is_same = std::ptr::eq(std::mem::replace(&mut before, memory), memory);
            if is_same { 0 } else { weight }
        });
        weights.sum()
    }

    /// The write of the next bytes there, and their number; valid until the next call of [`Outbox::advance`] or
    /// [`Outbox::clear`].
    #[inline]
    pub(super) fn next(&mut self, to: RawFd, is_socket: bool) -> Option<(Submission, usize)> {
        if self.queue.segments.len() <= 1 {
            let segment = self.queue.segments.front()?;
            let (from, bytes) = (segment.bytes().as_ptr(), segment.bytes().len() as u32);
            let submission = match is_socket {
                true => Submission::Send { socket: to, from, bytes, now_or_never: true, more: false },
                false => Submission::Write { to, from, bytes, registered: segment.registered() },
            };
            return Some((submission, bytes as usize));
        }
        let Queue { segments, gather } = &mut *self.queue;
        Some(Gather::of(gather).fill(to, is_socket, segments.iter().map(Segment::bytes).map(std::ptr::from_ref)))
    }

    /// The next bytes to write, with urgent ones after `before` bytes of the queue, and whether those fit into this write.
    pub(super) fn next_with(
        &mut self,
        to: RawFd,
        is_socket: bool,
        urgent: *const [u8],
        before: usize,
    ) -> ((Submission, usize), bool) {
        let Queue { segments, gather } = &mut *self.queue;
        let behind = stretches(segments, before..usize::MAX);
        let pieces = stretches(segments, 0..before).chain([urgent]).chain(behind);
        let next = Gather::of(gather).fill(to, is_socket, pieces);
        let has_urgent = stretches(segments, 0..before).count() < GATHER;
        (next, has_urgent)
    }

    /// Frees the memory for a queue, of which there is none: most connections are idle most of the time.
    pub(super) fn release_if_empty(&mut self) {
        if self.queue.segments.is_empty() {
            self.queue = Cold::default();
        }
    }

    /// The first contiguous range to write; valid like [`Outbox::next`].
    pub(super) fn first(&self) -> Option<(*const u8, usize)> {
        let bytes = self.queue.segments.front()?.bytes();
        Some((bytes.as_ptr(), bytes.len()))
    }

    /// The number of lines whose end is still queued.
    pub(super) fn lines(&self) -> usize {
        self.queue.segments.iter().map(|segment| memchr::memchr_iter(b'\n', segment.bytes()).count()).sum()
    }

    /// Removes the first `bytes`, which were written.
    #[inline]
    pub(super) fn advance(&mut self, mut bytes: usize, buffers: &mut Buffers) {
        let Some(Queue { segments, .. }) = self.queue.get_mut() else { return };
        while let Some(front) = segments.front_mut() {
            let length = front.bytes().len();
            if bytes < length {
                let (Segment::Chunk { start, .. } | Segment::Held { start, .. }) = front;
                *start += bytes;
                return;
            }
            bytes -= length;
            if let Some(segment) = segments.pop_front() {
                segment.give_back(buffers);
            }
        }
    }

    /// Drops everything queued.
    pub(super) fn clear(&mut self, buffers: &mut Buffers) {
        std::mem::take(&mut self.queue).get_mut().into_iter().for_each(|queue| {
            queue.segments.drain(..).for_each(|segment| segment.give_back(buffers));
        });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::io::buffers::{CHUNK, READ};

    /// Everything that an outbox would write.
    fn text(outbox: &Outbox) -> Vec<u8> {
        outbox.queue.segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect()
    }

    #[test]
    fn a_line_that_cannot_be_queued_is_lost_as_a_whole_and_later_ones_are_not() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let mut outbox = Outbox::default();
        outbox.push(b"first\nsecond\nthe begin", &mut buffers).expect("there is memory");
        assert_eq!(outbox.drop_line(&mut buffers), 9);
        outbox.dropping_line = true;
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
        assert_eq!(outbox.drop_line(&mut buffers), long.len());
        assert_eq!(text(&outbox), b"first\n");
        outbox.clear(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }

    /// What a write writes, at most `most` bytes.
    pub(in crate::shell) fn written_by(next: Option<(Submission, usize)>, most: usize) -> Vec<u8> {
        let mut written = match next {
            None => Vec::new(),
            Some((Submission::Write { from, bytes, .. } | Submission::Send { from, bytes, .. }, _)) => {
                // SAFETY: the outbox is not touched before the bytes are copied.
                unsafe { std::slice::from_raw_parts(from, bytes as usize) }.to_vec()
            }
            Some((Submission::SendMany { message, .. }, _)) => {
                // SAFETY: the same.
                let message = unsafe { &*message };
                // SAFETY: the same.
                let vectors = unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
                let bytes = |vector: &libc::iovec| {
                    // SAFETY: the same.
                    unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len) }.to_vec()
                };
                vectors.iter().flat_map(bytes).collect()
            }
            Some(other) => panic!("{other:?}"),
        };
        written.truncate(most);
        written
    }

    #[test]
    fn held_bytes_are_long_and_at_least_a_quarter_of_their_block() {
        assert_eq!((are_held(16_383, 0), are_held(16_384, 65_536)), (false, true));
        assert_eq!((are_held(262_143, 1 << 20), are_held(262_144, 1 << 20)), (false, true));
    }

    #[test]
    fn a_held_block_counts_in_full_once_for_each_output_that_holds_it() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let block = Rc::new(buffers.take(READ, READ).expect("there is memory"));
        let (mut one, mut other) = (Outbox::default(), Outbox::default());
        one.hold(Storage::Block(Rc::clone(&block)), 0, HOLD).expect("no line is being dropped");
        one.hold(Storage::Block(Rc::clone(&block)), HOLD, 2 * HOLD).expect("no line is being dropped");
        other.hold(Storage::Block(block), 2 * HOLD, 3 * HOLD).expect("no line is being dropped");
        assert_eq!((one.weight(), other.weight()), (buffers.used(), buffers.used()));
        one.clear(&mut buffers);
        assert_eq!(buffers.used(), other.weight());
        other.clear(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }
}
