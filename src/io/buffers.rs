//! Memory that the kernel reads and writes: padded blocks for the scanner, some of them registered, and the
//! provided-buffer ring for the sockets. Blocks are lent and given back; idle connections hold none.
//!
//! One counter tracks all lent memory. All of it is mapped from the system in pages, bypassing the allocator, so that
//! it can be returned to the system: spare blocks serve a busy daemon, and are freed when they have not been needed for
//! a while. Lending fails when the system is out of memory; the caller has to cope.

use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use crate::io::ring::Ring;
use crate::reserve;
use crate::scan::{PAD, Window};

/// Capacity in bytes of a chunk of an output.
pub const CHUNK: usize = 64 * 1024;
/// Capacity in bytes of a client output's first chunk, and of the beginning of a line: what a thousand connections may
/// need at once should stay in the cache.
pub const SMALL: usize = 4 * 1024;
/// Capacity in bytes of a client output's second chunk, and twice that of a line's continuation: most output that
/// exceeds the first chunk is far from filling a full one.
pub const MEDIUM: usize = 16 * 1024;
/// Maximum number of bytes that one read of a worker's stdout returns.
pub const READ: usize = 128 * 1024;
/// Maximum number of bytes that one receive from a socket returns.
pub const RECEIVE: usize = 16 * 1024;
/// The number of buffers that all sockets share: small enough for all of them to stay in the cache.
pub const RECEIVE_BUFFERS: u16 = 64;
/// The buffer group ID that the kernel knows them by.
pub const GROUP: u16 = 1;
/// Registered blocks per worker. Registered memory is pinned and has to exist before the daemon starts, so anything
/// beyond it uses ordinary memory. Input for a worker is gathered while another write is in flight. While a long line
/// of it is being sent, the worker is read on into ordinary memory, which costs little beside the line.
const READS_PER_WORKER: usize = 1;
const CHUNKS_PER_WORKER: usize = 2;
const REGISTERED_READS: usize = 16;
const REGISTERED_CHUNKS: usize = 8;
/// The number of small or medium blocks cut from one stretch of pages.
const SMALL_TOGETHER: u32 = 31;
const MEDIUM_TOGETHER: u32 = 15;
/// Ordinary blocks kept for reuse.
const SPARE_CHUNKS: usize = 32;
const SPARE_READS: usize = 16;
/// Bytes in larger blocks kept for reuse.
const SPARE_LONG_BYTES: usize = 8 * 1024 * 1024;
/// Chunks, reads and stretches of smaller blocks that are kept even when unused for a while: at or below this count, no
/// trimming is scheduled.
const KEPT: usize = 8;
const KEPT_STRETCHES: usize = 3;

const PAGE: usize = 4096;

/// Zeroed pages in a mapping of their own.
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Makes the mapping longer. It may move, which copies none of its bytes.
    fn grow(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: mapped with this length, and nothing else refers to it: `&mut`, and its holder has no other.
        let start = unsafe { libc::mremap(self.start.as_ptr().cast(), self.bytes, bytes, libc::MREMAP_MAYMOVE) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and every holder of a pointer into it also holds a reference to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Where a block returns to when it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockOrigin {
    /// Its stretch and its index there: see [`BlockIndex`].
    Small(BlockIndex),
    Medium(BlockIndex),
    Chunks,
    Reads,
    Long,
}

/// The index of a stretch, times 64, plus the index of a block in it.
type BlockIndex = u32;

/// A stretch of memory with [`PAD`] bytes before and after it.
pub struct Block {
    /// The mapping that it lies in, alone or with others.
    pages: Rc<Pages>,
    /// The start of its first pad.
    start: NonNull<u8>,
    capacity: usize,
    home: BlockOrigin,
    registered: Option<u16>,
}

impl Block {
    fn with_home(capacity: usize, home: BlockOrigin) -> io::Result<Self> {
        let pages = Rc::new(Pages::new(capacity + 2 * PAD)?);
        Ok(Self { start: pages.start, pages, capacity, home, registered: None })
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The memory that it takes up, in bytes.
    pub fn weight(&self) -> usize {
        match self.home {
            BlockOrigin::Small(_) | BlockOrigin::Medium(_) => self.capacity + 2 * PAD,
            BlockOrigin::Chunks | BlockOrigin::Reads | BlockOrigin::Long => self.pages.bytes,
        }
    }

    /// The index under which the memory is registered.
    pub fn registered(&self) -> Option<u16> {
        self.registered
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.capacity);
        // SAFETY: the offset lies inside the block, and the block inside its pages.
        unsafe { self.start.as_ptr().add(PAD + offset) }
    }

    /// The bytes `start..end`. The kernel must not be writing to them.
    pub fn bytes(&self, start: usize, end: usize) -> &[u8] {
        assert!(start <= end && end <= self.capacity);
        // SAFETY: inside the block, which was zeroed, so every byte is initialized.
        unsafe { std::slice::from_raw_parts(self.at(start), end - start) }
    }

    /// The bytes `start..end` with their pads. The kernel must not be writing to the block.
    pub fn window(&self, start: usize, end: usize) -> Window<'_> {
        // SAFETY: the whole block, which was zeroed, so every byte is initialized.
        let all = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity + 2 * PAD) };
        Window::new(all, PAD + start, PAD + end)
    }

    /// Writes `bytes` at `offset`, which must not be borrowed or read by the kernel.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.capacity);
        // SAFETY: the target lies inside the block, and the source cannot overlap it: we own the memory exclusively,
        // and no slice of this block is alive.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    /// Moves the bytes `start..end` to the front.
    pub fn move_to_front(&mut self, start: usize, end: usize) {
        assert!(start <= end && end <= self.capacity);
        // SAFETY: both ranges lie inside the block; `copy` allows them to overlap.
        unsafe { std::ptr::copy(self.at(start), self.at(0), end - start) };
    }
}

/// Spare blocks of one size, used as a stack.
struct FreeList {
    blocks: Vec<Block>,
    /// The minimum number of spares since the last trim: that many were not needed.
    least: usize,
}

impl FreeList {
    fn new() -> Self {
        Self { blocks: Vec::new(), least: 0 }
    }

    #[inline]
    fn take(&mut self) -> Option<Block> {
        let block = self.blocks.pop();
        self.least = self.least.min(self.blocks.len());
        block
    }

    /// Frees the blocks that were not needed, but keeps `kept`. Returns true if more than those are left.
    fn trim(&mut self, kept: usize) -> bool {
        let unneeded = self.least.min(self.blocks.len().saturating_sub(kept));
        self.blocks.drain(..unneeded);
        self.least = self.blocks.len();
        self.blocks.len() > kept
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.least = 0;
    }
}

/// Blocks of one small size, cut from stretches of pages so that they lie close together, and so that the pages can be
/// freed when all blocks of a stretch are free. The most recently used stretch is used first.
struct Stretches {
    capacity: usize,
    together: u32,
    home: fn(BlockIndex) -> BlockOrigin,
    stretches: Vec<Stretch>,
    /// Stretches with free blocks.
    open: Vec<u32>,
    /// Indexes of freed stretches.
    vacant: Vec<u32>,
    /// Free blocks in all of them, now and at minimum since the last trim.
    free: usize,
    least: usize,
}

struct Stretch {
    /// None once it was freed.
    pages: Option<Rc<Pages>>,
    /// A bit for each block.
    free: u64,
}

impl Stretches {
    fn new(capacity: usize, together: u32, home: fn(BlockIndex) -> BlockOrigin) -> Self {
        assert!((1..u64::BITS).contains(&together));
        let (stretches, open, vacant) = (Vec::new(), Vec::new(), Vec::new());
        Self { capacity, together, home, stretches, open, vacant, free: 0, least: 0 }
    }

    fn stride(&self) -> usize {
        self.capacity + 2 * PAD
    }

    fn all(&self) -> u64 {
        (1 << self.together) - 1
    }

    /// Takes a free block, if there is one.
    #[inline]
    fn take(&mut self) -> Option<Block> {
        let number = *self.open.last()?;
        let stride = self.stride();
        let stretch = &mut self.stretches[number as usize];
        let pages = Rc::clone(stretch.pages.as_ref()?);
        let at = stretch.free.trailing_zeros();
        stretch.free &= stretch.free - 1;
        if stretch.free == 0 {
            self.open.pop();
        }
        self.free -= 1;
        self.least = self.least.min(self.free);
        // SAFETY: the stretch has `together` blocks of `stride` bytes, and a bit below `together` was set.
        let start = unsafe { pages.start.add(at as usize * stride) };
        Some(Block {
            pages,
            start,
            capacity: self.capacity,
            home: (self.home)(number * u64::BITS + at),
            registered: None,
        })
    }

    /// The length of a stretch's pages in bytes.
    fn length(&self) -> usize {
        self.together as usize * self.stride()
    }

    /// Adds a stretch made of these pages, all of it free.
    fn add(&mut self, pages: Rc<Pages>) {
        assert!(pages.bytes >= self.length());
        let stretch = Stretch { pages: Some(pages), free: self.all() };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.stretches[number as usize] = stretch;
                number
            }
            None => {
                self.stretches.push(stretch);
                self.stretches.len() as u32 - 1
            }
        };
        self.open.push(number);
        self.free += self.together as usize;
    }

    #[inline]
    fn give_back(&mut self, place: BlockIndex) {
        let (number, at) = (place / u64::BITS, place % u64::BITS);
        let stretch = &mut self.stretches[number as usize];
        if stretch.free == 0 {
            self.open.push(number);
        }
        debug_assert_eq!(stretch.free & 1 << at, 0, "it is given back once");
        stretch.free |= 1 << at;
        self.free += 1;
    }

    /// Frees the stretches that were not needed, but keeps some blocks. Returns true if more than those are left.
    fn trim(&mut self) -> bool {
        self.release(self.least.min(self.free.saturating_sub(self.kept())));
        self.least = self.free;
        self.has_spares()
    }

    /// Blocks that are kept even when unused for a while.
    fn kept(&self) -> usize {
        KEPT_STRETCHES * self.together as usize
    }

    fn has_spares(&self) -> bool {
        self.free > self.kept()
    }

    /// Frees whole stretches, of at most `blocks` blocks in total.
    fn release(&mut self, mut blocks: usize) {
        let (all, together) = (self.all(), self.together as usize);
        let (stretches, vacant, free) = (&mut self.stretches, &mut self.vacant, &mut self.free);
        self.open.retain(|number| {
            let stretch = &mut stretches[*number as usize];
            if stretch.free != all || blocks < together {
                return true;
            }
            blocks -= together;
            *free -= together;
            *stretch = Stretch { pages: None, free: 0 };
            vacant.push(*number);
            false
        });
        self.least = self.least.min(self.free);
    }
}

/// All lendable memory.
pub struct Buffers {
    small: Stretches,
    medium: Stretches,
    /// Registered and ordinary ones.
    chunks: [FreeList; 2],
    reads: [FreeList; 2],
    long: FreeList,
    receive: ReceiveRing,
    /// Lent bytes.
    used: usize,
    /// While more than this is lent, no spares are kept.
    plenty: usize,
    /// There may be spares to trim.
    has_spares: bool,
    /// Why registration failed, for the log.
    pub unregistered: Option<io::Error>,
}

const REGISTERED: usize = 0;
const ORDINARY: usize = 1;

impl Buffers {
    /// Allocates the memory and registers as much of it as the kernel permits, if there is a ring. `workers` is how
    /// many are likely to run at once: what others need is ordinary memory.
    ///
    /// The caller drops the ring first.
    pub fn new(ring: Option<&Ring>, workers: usize) -> io::Result<Self> {
        let reads =
            (0..(READS_PER_WORKER * workers).min(REGISTERED_READS)).map(|_| Block::with_home(READ, BlockOrigin::Reads));
        let chunks = (0..(CHUNKS_PER_WORKER * workers).min(REGISTERED_CHUNKS))
            .map(|_| Block::with_home(CHUNK, BlockOrigin::Chunks));
        let mut blocks: Vec<Block> = reads.chain(chunks).collect::<io::Result<_>>()?;
        let vectors: Vec<libc::iovec> =
            blocks.iter().map(|block| libc::iovec { iov_base: block.at(0).cast(), iov_len: block.capacity }).collect();
        // SAFETY: the blocks are kept, lent or queued until the ring is gone.
        let registered = ring.map(|ring| unsafe { ring.register_buffers(&vectors) });
        if let Some(Ok(())) = registered {
            for (index, block) in blocks.iter_mut().enumerate() {
                block.registered = Some(index as u16);
            }
        }
        let mut buffers = Self {
            small: Stretches::new(SMALL, SMALL_TOGETHER, BlockOrigin::Small),
            medium: Stretches::new(MEDIUM, MEDIUM_TOGETHER, BlockOrigin::Medium),
            chunks: [FreeList::new(), FreeList::new()],
            reads: [FreeList::new(), FreeList::new()],
            long: FreeList::new(),
            receive: ReceiveRing::new(ring)?,
            used: 0,
            plenty: usize::MAX,
            has_spares: false,
            unregistered: registered.and_then(Result::err),
        };
        blocks.into_iter().for_each(|block| buffers.put_away(block));
        Ok(buffers)
    }

    /// The number of lent bytes.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Keeps no spares while more than `bytes` are lent.
    pub fn keep_spares_below(&mut self, bytes: usize) {
        self.plenty = bytes;
    }

    /// Whether [`Buffers::trim`] might free something.
    pub fn has_spares(&self) -> bool {
        self.has_spares
    }

    /// Frees the spares that were not needed since the last call.
    pub fn trim(&mut self) {
        let left = [
            self.small.trim(),
            self.medium.trim(),
            self.chunks[ORDINARY].trim(KEPT),
            self.reads[ORDINARY].trim(KEPT),
            self.long.trim(0),
        ];
        self.has_spares = left.contains(&true);
    }

    /// Frees all that is not lent. Registered memory stays: the kernel holds it.
    pub fn drop_spares(&mut self) {
        self.small.release(usize::MAX);
        self.medium.release(usize::MAX);
        self.chunks[ORDINARY].clear();
        self.reads[ORDINARY].clear();
        self.long.clear();
    }

    /// Memory for a worker's stdout.
    pub fn take_read(&mut self) -> Option<Block> {
        let block = match self.reads[REGISTERED].take() {
            Some(block) => block,
            None => self.ordinary_read(Urgency::Urgent)?,
        };
        Some(self.lend(block))
    }

    /// Ordinary memory for `needed` bytes. If no spare block fits, a new one for `generous` bytes.
    pub fn take(&mut self, needed: usize, generous: usize) -> Option<Block> {
        if needed <= SMALL {
            return self.take_small();
        }
        // A line that fills more than half of it is likely to go on.
        if needed <= MEDIUM / 2 {
            return self.take_medium();
        }
        // A sender that filled a buffer has more to send, and if memory is plentiful one read may take all of it.
        let block = if needed > READ {
            self.long_block(needed, generous)
        } else if needed < RECEIVE || (needed <= CHUNK && self.used > self.plenty) {
            self.ordinary_chunk(Urgency::Large)
        } else {
            let read = self.ordinary_read(Urgency::Large);
            if needed <= CHUNK { read.or_else(|| self.ordinary_chunk(Urgency::Large)) } else { read }
        };
        block.map(|block| self.lend(block))
    }

    /// Memory for an output that may stay small.
    #[inline]
    pub fn take_small(&mut self) -> Option<Block> {
        if self.small.free == 0 {
            let pages = self.pages(self.small.length(), Urgency::Urgent)?;
            self.small.add(pages);
        }
        let block = self.small.take()?;
        Some(self.lend(block))
    }

    /// Memory for an output that outgrew its first chunk.
    pub fn take_medium(&mut self) -> Option<Block> {
        if self.medium.free == 0 {
            let pages = self.pages(self.medium.length(), Urgency::Urgent)?;
            self.medium.add(pages);
        }
        let block = self.medium.take()?;
        Some(self.lend(block))
    }

    /// Memory for a client's output.
    pub fn take_chunk(&mut self) -> Option<Block> {
        let block = self.ordinary_chunk(Urgency::Large)?;
        Some(self.lend(block))
    }

    /// Memory for a worker's stdin.
    pub fn take_registered_chunk(&mut self) -> Option<Block> {
        let block = match self.chunks[REGISTERED].take() {
            Some(block) => block,
            None => self.ordinary_chunk(Urgency::Urgent)?,
        };
        Some(self.lend(block))
    }

    fn lend(&mut self, block: Block) -> Block {
        self.used += block.weight();
        block
    }

    fn ordinary_chunk(&mut self, need: Urgency) -> Option<Block> {
        self.chunks[ORDINARY].take().or_else(|| self.block(CHUNK, BlockOrigin::Chunks, need))
    }

    fn ordinary_read(&mut self, need: Urgency) -> Option<Block> {
        self.reads[ORDINARY].take().or_else(|| self.block(READ, BlockOrigin::Reads, need))
    }

    fn long_block(&mut self, needed: usize, generous: usize) -> Option<Block> {
        let blocks = &self.long.blocks;
        let largest = (0..blocks.len()).max_by_key(|index| blocks[*index].capacity);
        match largest.filter(|index| blocks[*index].capacity >= needed) {
            Some(index) => {
                let last = blocks.len() - 1;
                self.long.blocks.swap(index, last);
                self.long.take()
            }
            None => {
                let block = self.block(generous, BlockOrigin::Long, Urgency::Large);
                block.or_else(|| self.block(needed, BlockOrigin::Long, Urgency::Large))
            }
        }
    }

    fn block(&mut self, capacity: usize, home: BlockOrigin, need: Urgency) -> Option<Block> {
        let pages = self.pages(capacity + 2 * PAD, need)?;
        Some(Block { start: pages.start, pages, capacity, home, registered: None })
    }

    /// Maps new memory, at the cost of all spares and finally of the reserve.
    fn pages(&mut self, bytes: usize, need: Urgency) -> Option<Rc<Pages>> {
        if need == Urgency::Large && reserve::is_spent() {
            return None;
        }
        let found = Pages::new(bytes).or_else(|_| {
            self.drop_spares();
            Pages::new(bytes)
        });
        let found = found.or_else(|error| match need {
            Urgency::Urgent if reserve::give_up() => Pages::new(bytes),
            _ => Err(error),
        });
        found.ok().map(Rc::new)
    }

    /// Gives a long block this larger capacity, without a copy of its bytes. False if that is not possible; then nothing
    /// has changed.
    pub fn grow(&mut self, block: &mut Block, capacity: usize) -> bool {
        if block.home != BlockOrigin::Long || reserve::is_spent() {
            return false;
        }
        let Some(pages) = Rc::get_mut(&mut block.pages) else { return false };
        let before = pages.bytes;
        if pages.grow(capacity + 2 * PAD).is_err() {
            return false;
        }
        self.used += pages.bytes - before;
        (block.start, block.capacity) = (pages.start, capacity);
        true
    }

    /// Takes a block back.
    #[inline]
    pub fn give_back(&mut self, block: Block) {
        debug_assert!(self.used >= block.weight());
        self.used -= block.weight();
        self.put_away(block);
    }

    fn put_away(&mut self, block: Block) {
        let which = if block.registered.is_some() { REGISTERED } else { ORDINARY };
        let (shelf, spare) = match block.home {
            BlockOrigin::Small(place) => {
                self.small.give_back(place);
                self.has_spares |= self.small.has_spares();
                return;
            }
            BlockOrigin::Medium(place) => {
                self.medium.give_back(place);
                self.has_spares |= self.medium.has_spares();
                return;
            }
            BlockOrigin::Chunks => (&mut self.chunks[which], SPARE_CHUNKS),
            BlockOrigin::Reads => (&mut self.reads[which], SPARE_READS),
            BlockOrigin::Long => {
                let kept: usize = self.long.blocks.iter().map(|block| block.capacity).sum();
                let spare = if kept + block.capacity <= SPARE_LONG_BYTES { usize::MAX } else { 0 };
                (&mut self.long, spare)
            }
        };
        // Registered memory is never freed while the ring lives.
        if which == REGISTERED || (shelf.blocks.len() < spare && self.used <= self.plenty) {
            shelf.blocks.push(block);
            self.has_spares |= which == ORDINARY && (shelf.blocks.len() > KEPT || spare == usize::MAX);
        }
    }

    /// The bytes that the kernel received into provided buffer `buffer`.
    ///
    /// # Safety
    /// The window must not be used after [`Buffers::return_received`], nor after these buffers are gone. Its lifetime
    /// is the caller's to choose, because other buffers are lent while it is in use.
    #[inline]
    pub unsafe fn received<'window>(&self, buffer: u16, bytes: usize) -> Window<'window> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.receive.window(buffer, bytes) }
    }

    /// The bytes of provided buffer `buffer`, plus one more than the kernel writes: received bytes may be decoded in
    /// place, and [`Buffers::received`] called with the decoded length.
    ///
    /// # Safety
    /// As for [`Buffers::received`], and no window of it is alive.
    pub unsafe fn received_bytes<'bytes>(&mut self, buffer: u16) -> &'bytes mut [u8] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.receive.bytes(buffer) }
    }

    /// The start of a provided buffer, for receiving without a ring.
    pub fn provided(&self, buffer: u16) -> *mut u8 {
        // SAFETY: the buffer lies within the memory.
        unsafe { self.receive.memory.start.as_ptr().add(self.receive.start(buffer) + PAD) }
    }

    /// Returns a provided buffer to the kernel.
    pub fn return_received(&mut self, buffer: u16) {
        self.receive.give(buffer);
    }
}

/// How urgently memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// A small amount, or a worker's: the reserve exists for these.
    Urgent,
    /// A large amount for one peer, which can be made to wait.
    Large,
}

/// The provided buffers, and the ring that hands them to the kernel.
struct ReceiveRing {
    entries: Pages,
    memory: Pages,
    tail: u16,
}

impl ReceiveRing {
    /// One byte more than can be received, padded so that buffers are aligned to cache lines.
    const STRIDE: usize = RECEIVE + 3 * PAD;

    fn new(ring: Option<&Ring>) -> io::Result<Self> {
        let entries = Pages::new(usize::from(RECEIVE_BUFFERS) * size_of::<BufRingEntry>())?;
        let memory = Pages::new(usize::from(RECEIVE_BUFFERS) * Self::STRIDE)?;
        if let Some(ring) = ring {
            // SAFETY: the array is page-aligned, large enough, and outlives the ring.
            unsafe { ring.register_buffer_ring(entries.start.as_ptr() as u64, RECEIVE_BUFFERS, GROUP)? };
        }
        let mut provided = Self { entries, memory, tail: 0 };
        (0..RECEIVE_BUFFERS).for_each(|buffer| provided.give(buffer));
        Ok(provided)
    }

    fn start(&self, buffer: u16) -> usize {
        assert!(buffer < RECEIVE_BUFFERS);
        usize::from(buffer) * Self::STRIDE
    }

    #[inline]
    fn give(&mut self, buffer: u16) {
        let address = self.memory.start.as_ptr() as usize + self.start(buffer) + PAD;
        let base: *mut BufRingEntry = self.entries.start.as_ptr().cast();
        // SAFETY: the slot at the tail is ours until the tail moves past it; the array has a power of two of entries,
        // and the tail that the kernel reads lies in its first entry.
        unsafe {
            let entry = &mut *base.add(usize::from(self.tail & (RECEIVE_BUFFERS - 1)));
            entry.set_addr(address as u64);
            entry.set_len(RECEIVE as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail: *const AtomicU16 = BufRingEntry::tail(base).cast();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    /// # Safety
    /// As for [`Buffers::received`].
    unsafe fn window<'window>(&self, buffer: u16, bytes: usize) -> Window<'window> {
        assert!(bytes <= RECEIVE + 1);
        // SAFETY: a completion handed us the buffer, so the kernel does not write to it until it is returned; the slice
        // covers its pads, which are not written while it is in use, and no other buffer.
        let all =
            unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr().add(self.start(buffer)), Self::STRIDE) };
        Window::new(all, PAD, PAD + bytes)
    }

    /// # Safety
    /// As for [`Buffers::received_bytes`].
    unsafe fn bytes<'bytes>(&mut self, buffer: u16) -> &'bytes mut [u8] {
        // SAFETY: as for a window, but without the pads; the memory was zeroed, so every byte is initialized.
        unsafe {
            let start = self.memory.start.as_ptr().add(self.start(buffer) + PAD);
            std::slice::from_raw_parts_mut(start, RECEIVE + 1)
        }
    }
}

#[cfg(test)]
mod tests;
