//! Unconsumed input: the beginning of a line, or the bytes of a paused peer. It lies in one block, which grows with a
//! long line.

use std::rc::Rc;

use crate::io::buffers::{Block, Buffers, CHUNK, READ};
use crate::scan::Window;

/// Received bytes that are not consumed: the beginning of a line, or the bytes of a paused peer.
#[derive(Default)]
pub(super) struct Inbox {
    block: Option<Rc<Block>>,
    /// Use registered memory, if possible.
    of_worker: bool,
    start: usize,
    end: usize,
}

impl Inbox {
    /// An empty inbox. A worker's uses registered memory, if possible.
    pub(super) fn new(of_worker: bool) -> Self {
        Self { of_worker, ..Self::default() }
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes, with their pads.
    pub(super) fn window(&self) -> Option<Window<'_>> {
        self.block.as_ref().map(|block| block.window(self.start, self.end))
    }

    /// The block, to hold long lines in place, and where the inbox begins in it.
    pub(super) fn holdable(&self) -> Option<(Rc<Block>, usize)> {
        Some((Rc::clone(self.block.as_ref()?), self.start))
    }

    /// Consumes the first `bytes`. An empty inbox frees its memory unless `keep` says that it will be read into.
    pub(super) fn consume(&mut self, bytes: usize, keep: bool, buffers: &mut Buffers) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if !keep {
                self.release(buffers);
            }
        }
    }

    /// Frees the memory and its contents.
    pub(super) fn release(&mut self, buffers: &mut Buffers) {
        (self.start, self.end) = (0, 0);
        if let Some(block) = self.block.take().and_then(Rc::into_inner) {
            buffers.give_back(block);
        }
    }

    /// Appends bytes; `limit` is the maximum length of a line. False if the system is out of memory.
    #[must_use]
    pub(super) fn append(&mut self, bytes: &[u8], limit: usize, buffers: &mut Buffers) -> bool {
        let there_is_room = self.reserve(bytes.len(), limit, buffers);
        let end = self.end;
        if there_is_room && let Some(block) = self.block.as_mut().and_then(Rc::get_mut) {
            block.write(end, bytes);
            self.end += bytes.len();
        }
        there_is_room
    }

    /// Room for the kernel to read at least `wanted` bytes: the block's registration, the address and the size.
    /// [`Inbox::filled`] records how many were read. None if the system is out of memory.
    pub(super) fn room(
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

    /// Whether room for `wanted` more bytes needs a larger block.
    pub(super) fn would_grow(&self, wanted: usize) -> bool {
        self.block.as_ref().is_none_or(|block| block.capacity() < self.len() + wanted)
    }

    /// Memory used, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.weight())
    }

    /// The `bytes` that the kernel has read into the room, plus one: they may be changed before [`Inbox::filled`].
    pub(super) fn received(&mut self, bytes: usize) -> &mut [u8] {
        match &self.block {
            Some(block) => {
                let end = (self.end + bytes + 1).min(block.capacity());
                // SAFETY: the bytes lie inside the block, which was zeroed; after the end of the inbox there are no
                // other users, including holders of a line in the block.
                unsafe { std::slice::from_raw_parts_mut(block.at(self.end), end - self.end) }
            }
            None => &mut [],
        }
    }

    /// Records that the kernel has read `bytes` into the room.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Whether the block was taken for a long line.
    pub(super) fn is_long(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.capacity() > READ)
    }

    /// Makes room for `wanted` more bytes: by moving to the front, or to a larger block. Blocks grow fourfold, so that
    /// a long line is moved only a few times, but never far beyond the longest line; and twofold where nothing is moved, so
    /// that what is kept in one takes up half of it at least. False if the system is out of memory; then nothing has
    /// changed.
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
        let times = |times: usize| (times * held).min(limit + CHUNK).max(needed);
        let generous = times(4);
        if self.start == 0
            && let Some(block) = self.block.as_mut().and_then(Rc::get_mut)
            && buffers.grow(block, times(2))
        {
            return true;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_inbox_keeps_no_memory_unless_it_will_be_reused() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        for (keep, is_left) in [(false, false), (true, true)] {
            let mut inbox = Inbox::default();
            assert!(inbox.append(b"a line", 1024, &mut buffers));
            inbox.consume(3, keep, &mut buffers);
            assert!(buffers.used() > 0, "what is left of it lies there");
            inbox.consume(3, keep, &mut buffers);
            assert_eq!(buffers.used() > 0, is_left);
            inbox.release(&mut buffers);
            assert_eq!(buffers.used(), 0);
        }
    }

    #[test]
    fn a_long_line_grows_where_it_is_and_keeps_its_bytes() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let (mut inbox, mut expected) = (Inbox::default(), Vec::new());
        for step in 0..200_u32 {
            let piece: Vec<u8> = (0..20_000).map(|at| (at * step) as u8).collect();
            assert!(inbox.append(&piece, 1 << 30, &mut buffers));
            expected.extend(piece);
        }
        assert_eq!(inbox.window().map(|window| window.data() == expected), Some(true));
        assert_eq!(buffers.used(), inbox.weight());
        inbox.release(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }

    #[test]
    fn bytes_that_fit_into_the_block_need_no_more_memory() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let mut inbox = Inbox::default();
        assert!(inbox.would_grow(1));
        assert!(inbox.append(b"a line", 1024, &mut buffers));
        let room = inbox.block.as_ref().expect("it lies in a block").capacity() - inbox.len();
        assert_eq!([room, room + 1].map(|bytes| inbox.would_grow(bytes)), [false, true]);
        inbox.release(&mut buffers);
    }
}
