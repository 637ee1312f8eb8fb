//! Memory that the kernel reads from and writes to: blocks with pads for the scanner, some of them registered, and
//! the ring of provided buffers for the sockets. Blocks are lent and given back; idle connections hold none.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::ring::Ring;
use crate::bus::scan::{PAD, Window};

/// Bytes that fit into a chunk of an output.
pub const CHUNK: usize = 64 * 1024;
/// Bytes that fit into the first chunk of a client's output, and into the beginning of a line: what a thousand
/// connections may need at once should stay in the cache.
pub const SMALL: usize = 4 * 1024;
/// Bytes that one read of a worker's stdout may bring.
pub const READ: usize = 128 * 1024;
/// Bytes that one receive of a socket may bring.
const RECEIVE: usize = 16 * 1024;
/// Buffers that all sockets share: together a set that stays in the cache.
const RECEIVE_BUFFERS: u16 = 64;
/// The group that the kernel knows them by.
pub const GROUP: u16 = 1;
/// Registered blocks: registered memory is pinned, so what goes beyond uses ordinary memory. A worker has two of each:
/// it can be read on while a long line of it is being sent, and what comes for it is gathered while it is written to.
const BLOCKS_PER_WORKER: usize = 2;
const REGISTERED_READS: usize = 16;
const REGISTERED_CHUNKS: usize = 8;
/// Ordinary blocks that are kept for the next one who needs them.
const SPARE_SMALL: usize = 1024;
const SPARE_CHUNKS: usize = 32;
const SPARE_READS: usize = 16;
/// Bytes in larger blocks that are kept.
const SPARE_LONG_BYTES: usize = 8 * 1024 * 1024;

const PAGE: usize = 4096;

/// Zeroed memory of its own.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(bytes: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(bytes, align).expect("sizes of buffers are bounded by the configuration");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: the memory is owned; who may look at it when is a matter of the types around it.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Memory {}

/// Where a block goes when it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Small,
    Chunks,
    Reads,
    Long,
}

/// A stretch of memory with [`PAD`] bytes before and after it.
pub struct Block {
    memory: Memory,
    capacity: usize,
    home: Home,
    registered: Option<u16>,
}

impl Block {
    /// Ordinary memory for `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self::with_home(capacity, Home::Long)
    }

    fn with_home(capacity: usize, home: Home) -> Self {
        Self { memory: Memory::new(capacity + 2 * PAD, PAD), capacity, home, registered: None }
    }

    /// How many bytes fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The index under which the memory is registered.
    pub fn registered(&self) -> Option<u16> {
        self.registered
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.capacity);
        // SAFETY: the offset lies inside the allocation.
        unsafe { self.memory.start.as_ptr().add(PAD + offset) }
    }

    /// The bytes `start..end`. The kernel must not be writing to them.
    pub fn bytes(&self, start: usize, end: usize) -> &[u8] {
        assert!(start <= end && end <= self.capacity);
        // SAFETY: inside the allocation, which was zeroed, so every byte is initialized.
        unsafe { std::slice::from_raw_parts(self.at(start), end - start) }
    }

    /// The bytes `start..end` with their pads. The kernel must not be writing to the block.
    pub fn window(&self, start: usize, end: usize) -> Window<'_> {
        // SAFETY: the whole allocation, which was zeroed, so every byte is initialized.
        let all = unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.capacity + 2 * PAD) };
        Window::new(all, PAD + start, PAD + end)
    }

    /// Writes `bytes` at `offset`, where nobody reads.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.capacity);
        // SAFETY: the target lies inside the allocation, and a borrowed slice cannot overlap memory that we own
        // alone but through this block, of which no slice is alive.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    /// Moves the bytes `start..end` to the front.
    pub fn move_to_front(&mut self, start: usize, end: usize) {
        assert!(start <= end && end <= self.capacity);
        // SAFETY: both ranges lie inside the allocation; `copy` allows them to overlap.
        unsafe { std::ptr::copy(self.at(start), self.at(0), end - start) };
    }
}

/// All lendable memory.
pub struct Buffers {
    small: Vec<Block>,
    chunks: Vec<Block>,
    /// Registered ones and ordinary ones.
    reads: [Vec<Block>; 2],
    long: Vec<Block>,
    receive: ReceiveRing,
    /// What could not be registered and why, for the log.
    pub unregistered: Option<io::Error>,
}

impl Buffers {
    /// Allocates, and registers what the kernel lets us register. `workers` is how many may run at once.
    ///
    /// The caller drops the ring first.
    pub fn new(ring: &Ring, workers: usize) -> io::Result<Self> {
        let most = BLOCKS_PER_WORKER * workers;
        let reads = (0..most.min(REGISTERED_READS)).map(|_| Block::with_home(READ, Home::Reads));
        let chunks = (0..most.min(REGISTERED_CHUNKS)).map(|_| Block::with_home(CHUNK, Home::Chunks));
        let mut blocks: Vec<Block> = reads.chain(chunks).collect();
        let vectors: Vec<libc::iovec> =
            blocks.iter().map(|block| libc::iovec { iov_base: block.at(0).cast(), iov_len: block.capacity }).collect();
        // SAFETY: the blocks are kept, lent or queued until the ring is gone.
        let registered = unsafe { ring.register_buffers(&vectors) };
        if registered.is_ok() {
            for (index, block) in blocks.iter_mut().enumerate() {
                block.registered = Some(index as u16);
            }
        }
        let receive = ReceiveRing::new(ring)?;
        let mut buffers = Self {
            small: Vec::new(),
            chunks: Vec::new(),
            reads: [Vec::new(), Vec::new()],
            long: Vec::new(),
            receive,
            unregistered: registered.err(),
        };
        blocks.into_iter().for_each(|block| buffers.give_back(block));
        Ok(buffers)
    }

    /// Memory for a worker's stdout.
    pub fn take_read(&mut self) -> Block {
        self.reads[0].pop().unwrap_or_else(|| self.take_ordinary_read())
    }

    fn take_ordinary_read(&mut self) -> Block {
        self.reads[1].pop().unwrap_or_else(|| Block::with_home(READ, Home::Reads))
    }

    /// Ordinary memory for `needed` bytes; where none of the kept blocks fits, for `generous` bytes.
    pub fn take(&mut self, needed: usize, generous: usize) -> Block {
        if needed <= SMALL {
            return self.take_small();
        }
        if needed <= READ {
            return self.take_ordinary_read();
        }
        let largest = (0..self.long.len()).max_by_key(|index| self.long[*index].capacity);
        match largest.filter(|index| self.long[*index].capacity >= needed) {
            Some(index) => self.long.swap_remove(index),
            None => Block::new(generous),
        }
    }

    /// Memory for an output that may stay short.
    pub fn take_small(&mut self) -> Block {
        self.small.pop().unwrap_or_else(|| Block::with_home(SMALL, Home::Small))
    }

    /// Memory for an output.
    pub fn take_chunk(&mut self) -> Block {
        self.chunks.pop().unwrap_or_else(|| Block::with_home(CHUNK, Home::Chunks))
    }

    /// Takes a block back.
    pub fn give_back(&mut self, block: Block) {
        let (kept, spare) = match block.home {
            Home::Small => (&mut self.small, SPARE_SMALL),
            Home::Chunks => (&mut self.chunks, SPARE_CHUNKS),
            Home::Reads => (&mut self.reads[usize::from(block.registered.is_none())], SPARE_READS),
            Home::Long => {
                let kept: usize = self.long.iter().map(|block| block.capacity).sum();
                let spare = if kept + block.capacity <= SPARE_LONG_BYTES { usize::MAX } else { 0 };
                (&mut self.long, spare)
            }
        };
        // Registered memory is never freed while the ring lives.
        if block.registered.is_some() || kept.len() < spare {
            kept.push(block);
        }
    }

    /// What the kernel received into the provided buffer `buffer`.
    ///
    /// # Safety
    /// The window must not be looked at after [`Buffers::return_received`], nor after these buffers are gone. Its
    /// lifetime is the caller's to choose, because other buffers are lent while it is in use.
    pub unsafe fn received<'window>(&self, buffer: u16, bytes: usize) -> Window<'window> {
        // SAFETY: as promised by the caller.
        unsafe { self.receive.window(buffer, bytes) }
    }

    /// Lets the kernel use a provided buffer again.
    pub fn return_received(&mut self, buffer: u16) {
        self.receive.give(buffer);
    }
}

/// The provided buffers, and the ring through which the kernel takes them.
struct ReceiveRing {
    entries: Memory,
    memory: Memory,
    tail: u16,
}

impl ReceiveRing {
    const STRIDE: usize = RECEIVE + 2 * PAD;

    fn new(ring: &Ring) -> io::Result<Self> {
        let entries = Memory::new(usize::from(RECEIVE_BUFFERS) * size_of::<BufRingEntry>(), PAGE);
        let memory = Memory::new(usize::from(RECEIVE_BUFFERS) * Self::STRIDE, PAGE);
        // SAFETY: the array is page-aligned, large enough, and dropped after the ring.
        unsafe { ring.register_buffer_ring(entries.start.as_ptr() as u64, RECEIVE_BUFFERS, GROUP)? };
        let mut provided = Self { entries, memory, tail: 0 };
        (0..RECEIVE_BUFFERS).for_each(|buffer| provided.give(buffer));
        Ok(provided)
    }

    fn start(&self, buffer: u16) -> usize {
        assert!(buffer < RECEIVE_BUFFERS);
        usize::from(buffer) * Self::STRIDE
    }

    fn give(&mut self, buffer: u16) {
        let address = self.memory.start.as_ptr() as usize + self.start(buffer) + PAD;
        let base: *mut BufRingEntry = self.entries.start.as_ptr().cast();
        // SAFETY: the slot at the tail belongs to us until the tail is moved past it; the array has a power of two
        // entries, and the tail that the kernel reads lies in the first of them.
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
        assert!(bytes <= RECEIVE);
        // SAFETY: the buffer was handed to us by a completion, so the kernel does not write to it until it is
        // returned; the slice covers its pads, which nobody writes, and no other buffer.
        let all =
            unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr().add(self.start(buffer)), Self::STRIDE) };
        Window::new(all, PAD, PAD + bytes)
    }
}
