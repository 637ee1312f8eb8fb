//! A long answer that a session keeps, or that is sent as an event, where it was received: to copy it would hold up the
//! loop.
//!
//! Its block counts as lent. So that it counts once, [`Blocks::weight`] is taken from what sessions keep and connections
//! send, which it is part of. The last holder of an answer cannot give its block back, and leaves it to the next turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::io::buffers::{Block, Buffers};
use crate::mcp::log::InPlace;
use crate::shell::outbox::Storage;

/// A shorter answer is copied, which takes a millisecond or two. The simulator's lines are shorter.
const LONG: usize = if cfg!(test) { 64 * 1024 } else { 1024 * 1024 };
/// Holders of a block while its first line is delivered: the inbox of the worker, and the call that delivers it.
const HOLDERS: usize = 2;

/// The blocks of all such answers.
#[derive(Default)]
pub(super) struct Blocks {
    weight: Cell<usize>,
    /// Those that no answer lies in any more.
    left: RefCell<Vec<Rc<Block>>>,
}

impl Blocks {
    /// The memory of those in use, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.weight.get()
    }

    /// Gives back those that no answer lies in any more.
    pub(super) fn give_back(&self, buffers: &mut Buffers) {
        // A worker's inbox that still lies in one gives it back itself.
        self.left.take().into_iter().filter_map(Rc::into_inner).for_each(|block| buffers.give_back(block));
    }
}

/// See the module documentation.
pub(super) struct HeldAnswer {
    /// What is before the rest, if its id was replaced.
    head: Box<[u8]>,
    id: Box<[u8]>,
    /// None once it was dropped.
    block: Option<Rc<Block>>,
    start: usize,
    end: usize,
    blocks: Rc<Blocks>,
}

impl HeldAnswer {
    /// Holds `length` bytes there, which follow `head`. None if they are better copied, since less than half of their block
    /// would be kept, or if it holds another line that is being sent.
    pub(super) fn hold(
        head: &[u8],
        (storage, start): (&Storage, usize),
        length: usize,
        id: &[u8],
        blocks: &Rc<Blocks>,
    ) -> Option<Self> {
        let Storage::Block(block) = storage else { return None };
        if length < LONG.max(block.capacity() / 2) || Rc::strong_count(block) > HOLDERS {
            return None;
        }
        blocks.weight.set(blocks.weight() + block.weight());
        let (block, blocks) = (Some(Rc::clone(block)), Rc::clone(blocks));
        Some(Self { head: head.into(), id: id.into(), block, start, end: start + length, blocks })
    }
}

impl InPlace for HeldAnswer {
    fn parts(&self) -> [&[u8]; 2] {
        [&self.head, self.block.as_ref().map_or(&[], |block| block.bytes(self.start, self.end))]
    }

    fn id(&self) -> &[u8] {
        &self.id
    }

    fn weight(&self) -> usize {
        self.head.len() + self.block.as_ref().map_or(0, |block| block.weight())
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        self.blocks.weight.set(self.blocks.weight() - block.weight());
        self.blocks.left.borrow_mut().push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_lies_where_it_was_received_and_its_block_is_given_back_after_its_last_holder() {
        let mut buffers = Buffers::new(None, 0).expect("there is memory");
        let mut block = buffers.take(2 * LONG + 10, 2 * LONG + 10).expect("there is memory");
        block.write(10, &vec![b'x'; LONG + 5]);
        let (inbox, blocks) = (Rc::new(block), Rc::new(Blocks::default()));
        let storage = Storage::Block(Rc::clone(&inbox));
        let hold = |start, length| HeldAnswer::hold(b"{\"id\":5", (&storage, start), length, b"5", &blocks);
        assert!(hold(10, LONG).is_none(), "most of the block would be kept for nothing");
        let answer = Rc::new(hold(10, LONG + 5).expect("it is long"));
        assert_eq!(answer.parts().map(<[u8]>::len), [7, LONG + 5]);
        assert!(std::ptr::eq(answer.parts()[1].as_ptr(), inbox.at(10)), "nothing is copied");
        assert_eq!((blocks.weight(), answer.weight()), (inbox.weight(), inbox.weight() + 7));
        assert!(hold(10, LONG + 5).is_none(), "a block counts once");
        let connection = Rc::clone(&answer);
        drop((storage, inbox, answer));
        assert_eq!((blocks.weight(), blocks.left.borrow().len()), (buffers.used(), 0), "it is being sent");
        drop(connection);
        assert_eq!(blocks.weight(), 0);
        blocks.give_back(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }
}
