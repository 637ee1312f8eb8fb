//! An output queue, in order: chunks that lines were copied to, and long lines that are held where they were received.
//! For a WebSocket each line is sent as a frame (`framing.rs`): with its header, and without its newline.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::framing::Framing;
use crate::bus::seldom::{Blank, Seldom};
use crate::io::Submission;
use crate::io::buffers::{Block, Buffers};
use crate::websocket::encode;

/// The minimum length of contiguous bytes that are not copied but held in their block until sent.
const HOLD: usize = 16 * 1024;
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
    fn bytes(&self, start: usize, end: usize) -> &[u8] {
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

    /// The memory used, in bytes, and what tells whether two segments lie in the same.
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
    queue: Seldom<Queue>,
    begins_small: bool,
    /// The last line was truncated: drop bytes up to its end.
    dropping_line: bool,
    /// Set if lines are sent as frames.
    framing: Option<Box<Framing>>,
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
enum Room {
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

    /// Sends lines pushed from now on as frames.
    pub(super) fn frame_lines(&mut self, framing: Framing) {
        self.framing = Some(Box::new(framing));
    }

    /// The framing state, if lines are sent as frames.
    pub(super) fn framing(&mut self) -> Option<&mut Framing> {
        self.framing.as_deref_mut()
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
        if self.framing.is_some() {
            return self.push_lines(bytes, None, buffers);
        }
        self.push_bytes(bytes, Room::Ample, buffers).map_err(|pushed| {
            let begun = self.drop_line(buffers);
            self.drop_bytes(begun + bytes.len() - pushed, bytes)
        })
    }

    /// Appends a copy of the bytes unframed. If memory runs out, returns how many were copied.
    fn push_bytes(&mut self, bytes: &[u8], room: Room, buffers: &mut Buffers) -> Result<(), usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if !matches!(self.queue.segments.back(), Some(Segment::Chunk { block, end, .. }) if *end < block.capacity())
            {
                // A worker's input is written from registered memory; a client's starts small.
                let block = match self.queue.segments.len() {
                    _ if room == Room::Scant => buffers.take_small(),
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

    /// Queues a frame for each line that ends in `bytes`. If they lie in a block, at the given offset, long lines are
    /// held there.
    fn push_lines(
        &mut self,
        bytes: &[u8],
        held: Option<(&Storage, usize)>,
        buffers: &mut Buffers,
    ) -> Result<(), usize> {
        let mut at = 0;
        while let Some(length) = memchr::memchr(b'\n', &bytes[at..]) {
            let line = at..at + length;
            let push = |outbox: &mut Self, buffers: &mut Buffers| match held {
                Some((storage, begin)) if length >= HOLD => {
                    let (storage, start, end) = (storage.clone(), begin + line.start, begin + line.end);
                    outbox.queue.segments.push_back(Segment::Held { storage, start, end });
                    Ok(())
                }
                _ => outbox.push_bytes(&bytes[line], Room::Ample, buffers),
            };
            self.push_frame(length, buffers, push).map_err(|begun| self.drop_bytes(begun + bytes.len() - at, bytes))?;
            at += length + 1;
        }
        self.begin_line(&bytes[at..]).map_err(|begun| self.drop_bytes(begun + bytes.len() - at, bytes))
    }

    /// Records lost bytes, up to the end of `bytes`.
    fn drop_bytes(&mut self, lost: usize, bytes: &[u8]) -> usize {
        self.dropping_line = bytes.last() != Some(&b'\n');
        lost
    }

    /// Queues a frame whose line ends with what `push` appends, of this length. If memory runs out, returns how much of
    /// the line had been pushed before.
    fn push_frame(
        &mut self,
        length: usize,
        buffers: &mut Buffers,
        push: impl FnOnce(&mut Self, &mut Buffers) -> Result<(), usize>,
    ) -> Result<(), usize> {
        let begun = self.framing().map(Framing::take_begun).unwrap_or_default();
        let head = encode::text(begun.len() + length, None);
        let mut pushed = 0;
        let mut count = |result: Result<(), usize>, all: usize| {
            pushed += result.err().unwrap_or(all);
            result.is_ok()
        };
        let is_queued = count(self.push_bytes(&head, Room::Scant, buffers), head.len())
            && count(self.push_bytes(&begun, Room::Ample, buffers), begun.len())
            && count(push(self, buffers), length);
        if !is_queued {
            self.take_back(pushed, buffers);
            return Err(begun.len());
        }
        if let Some(framing) = self.framing() {
            framing.queued(head.len() + begun.len() + length);
            framing.keep(begun);
        }
        Ok(())
    }

    /// Buffers the beginning of a line until its length is known. If memory runs out, returns how much of the line is
    /// lost besides this.
    fn begin_line(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let Some(framing) = self.framing().filter(|_| !bytes.is_empty()) else { return Ok(()) };
        if framing.begun.try_reserve(bytes.len()).is_err() {
            return Err(framing.take_begun().len());
        }
        framing.begun.extend_from_slice(bytes);
        Ok(())
    }

    /// Removes bytes from the end of the queue.
    fn take_back(&mut self, mut bytes: usize, buffers: &mut Buffers) {
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
    pub(super) fn hold(
        &mut self,
        storage: Storage,
        start: usize,
        end: usize,
        buffers: &mut Buffers,
    ) -> Result<(), usize> {
        let bytes = storage.bytes(start, end);
        if self.dropping_line {
            return Err(self.drop_bytes(bytes.len(), bytes));
        }
        if self.framing.is_some() {
            return self.push_lines(bytes, Some((&storage, start)), buffers);
        }
        self.queue.segments.push_back(Segment::Held { storage, start, end });
        Ok(())
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.segments.is_empty() && self.framing.as_ref().is_none_or(|framing| !framing.control_waits())
    }

    /// Memory used, in bytes: a held block counts in full, once.
    pub(super) fn weight(&self) -> usize {
        let mut before = std::ptr::null();
        let weights = self.queue.segments.iter().map(Segment::weight).map(|(memory, weight)| {
            let is_same = std::ptr::eq(std::mem::replace(&mut before, memory), memory);
            if is_same { 0 } else { weight }
        });
        weights.sum::<usize>() + self.framing.as_ref().map_or(0, |framing| framing.weight())
    }

    /// The write of the next bytes there, and their number; valid until the next call of [`Outbox::advance`] or
    /// [`Outbox::clear`].
    pub(super) fn next(&mut self, to: RawFd, is_socket: bool) -> Option<(Submission, usize)> {
        if let Some((before, control)) = self.framing.as_deref_mut().and_then(Framing::control) {
            let control = std::ptr::from_ref(control);
            return Some(self.next_with(to, is_socket, control, before));
        }
        if self.queue.segments.is_empty() && self.framing.is_some() {
            // The response to the handshake needed it, but most connections are idle most of the time.
            self.queue = Seldom::default();
        }
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

    /// The next bytes to write, with urgent ones after `before` bytes of the queue, if those fit into one write.
    fn next_with(&mut self, to: RawFd, is_socket: bool, control: *const [u8], before: usize) -> (Submission, usize) {
        let Queue { segments, gather } = &mut *self.queue;
        let behind = stretches(segments, before..usize::MAX);
        let pieces = stretches(segments, 0..before).chain([control]).chain(behind);
        let next = Gather::of(gather).fill(to, is_socket, pieces);
        let has_control = stretches(segments, 0..before).count() < GATHER;
        if let Some(framing) = self.framing.as_deref_mut() {
            framing.in_flight = has_control.then_some(before);
        }
        next
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

    /// Removes the first `bytes`, which were written. Returns how many bytes of lines that is.
    pub(super) fn advance(&mut self, bytes: usize, buffers: &mut Buffers) -> usize {
        let Some(framing) = self.framing.as_deref_mut() else {
            self.drop_front(bytes, buffers);
            return bytes;
        };
        let queued = framing.sent(bytes);
        let lines = framing.lines_sent(queued);
        self.drop_front(queued, buffers);
        lines
    }

    fn drop_front(&mut self, mut bytes: usize, buffers: &mut Buffers) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::buffers::{CHUNK, READ};
    use crate::testing::Random;
    use crate::websocket::Role;
    use crate::websocket::frame::{Decoder, Event, Received};

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

    /// What the next write would write, at most `most` bytes.
    fn write(outbox: &mut Outbox, most: usize) -> Vec<u8> {
        let mut written = match outbox.next(0, false) {
            None => Vec::new(),
            Some((Submission::Write { from, bytes, .. }, _)) => {
                // SAFETY: the outbox is not touched before the bytes are copied.
                unsafe { std::slice::from_raw_parts(from, bytes as usize) }.to_vec()
            }
            Some((Submission::WriteMany { vectors, count, .. }, _)) => {
                // SAFETY: the same.
                let vectors = unsafe { std::slice::from_raw_parts(vectors, count as usize) };
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

    /// The lines and the pongs that a client reads.
    fn read(bytes: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut decoder = Decoder::new(Role::Client, 1 << 30);
        let mut memory = [bytes, b"\0"].concat();
        let mut received = Received::new(&mut memory, bytes.len());
        let mut pongs = Vec::new();
        while let Some(event) = decoder.next(&mut received) {
            match event {
                Event::Text { .. } => {}
                Event::Pong(payload) => pongs.push(payload.to_vec()),
                other => panic!("{other:?}"),
            }
        }
        assert!(!decoder.is_in_message(), "frames are whole");
        (received.lines().to_vec(), pongs)
    }

    proptest! {
        #[test]
        fn frames_carry_the_lines_whatever_pieces_they_come_in_and_however_they_are_written(seed: u64) {
            let mut random = Random::new(seed);
            let mut buffers = Buffers::new(None, 0).expect("there is memory");
            let mut outbox = Outbox::new(true);
            outbox.frame_lines(Framing::default());
            let (mut lines, mut pongs, mut written, mut told) = (Vec::new(), 0u32, Vec::new(), 0);
            for _ in 0..random.range(1..60) {
                match random.range(0..4) {
                    0 => {
                        pongs += 1;
                        outbox.framing().expect("it has one").answer(&pongs.to_be_bytes());
                    }
                    1 => {
                        let most = *random.pick(&[1, 7, 4096, 70_000, usize::MAX]);
                        let now = write(&mut outbox, most);
                        told += outbox.advance(now.len(), &mut buffers);
                        written.extend(now);
                    }
                    _ => {
                        let count = random.range(1..4);
                        let mut bytes = Vec::new();
                        for _ in 0..count {
                            let length = *random.pick(&[0, 1, 50, 125, 126, 200, 5000, HOLD - 1, HOLD, 70_000]);
                            bytes.extend(std::iter::repeat_n(b'a' + random.range(0..26) as u8, length));
                            bytes.push(b'\n');
                        }
                        lines.extend_from_slice(&bytes);
                        let mut at = 0;
                        while at < bytes.len() {
                            let rest = bytes.len() - at;
                            let length = if random.one_in(2) { rest } else { random.range(1..rest + 1) };
                            let piece = &bytes[at..at + length];
                            if length >= HOLD && random.one_in(2) {
                                let mut block = buffers.take(length, length).expect("there is memory");
                                block.write(0, piece);
                                let block = Rc::new(block);
                                outbox.hold(Storage::Block(Rc::clone(&block)), 0, length, &mut buffers).expect("there is memory");
                                // As its inbox does after consuming it.
                                if let Some(block) = Rc::into_inner(block) {
                                    buffers.give_back(block);
                                }
                            } else {
                                outbox.push(piece, &mut buffers).expect("there is memory");
                            }
                            at += length;
                        }
                    }
                }
            }
            for _ in 0..10_000 {
                let now = write(&mut outbox, usize::MAX);
                told += outbox.advance(now.len(), &mut buffers);
                written.extend(now);
            }
            prop_assert!(outbox.is_empty());
            let (read, answered) = read(&written);
            prop_assert!(read == lines, "{} bytes of lines instead of {}", read.len(), lines.len());
            prop_assert_eq!(told, lines.len());
            let answered: Vec<u32> = answered.iter().map(|pong| u32::from_be_bytes(pong[..].try_into().expect("four"))).collect();
            prop_assert_eq!(answered, (1..=pongs).collect::<Vec<_>>());
            outbox.clear(&mut buffers);
            prop_assert_eq!(buffers.used(), 0);
        }
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
        one.hold(Storage::Block(Rc::clone(&block)), 0, HOLD, &mut buffers).expect("no line is being dropped");
        one.hold(Storage::Block(Rc::clone(&block)), HOLD, 2 * HOLD, &mut buffers).expect("no line is being dropped");
        other.hold(Storage::Block(block), 2 * HOLD, 3 * HOLD, &mut buffers).expect("no line is being dropped");
        assert_eq!((one.weight(), other.weight()), (buffers.used(), buffers.used()));
        one.clear(&mut buffers);
        assert_eq!(buffers.used(), other.weight());
        other.clear(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }
}
