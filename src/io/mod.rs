//! What the kernel may touch: the ring, the blocks that it reads into and writes from, and how long to wait for more
//! completions.

pub mod batching;
pub mod buffers;
pub mod ring;
