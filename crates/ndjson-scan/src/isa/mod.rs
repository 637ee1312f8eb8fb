//! What the algorithm asks of an instruction set: questions about 64 bytes at once, answered with one bit per byte, the
//! first byte in the lowest bit.
//!
//! A value that implements [`Isa`] exists only if the CPU has the instructions, so its methods are safe to call.

/// Whether the CPU supports all of these; without the standard library, whether the program is built for CPUs that do.
#[cfg(all(target_arch = "x86_64", feature = "std"))]
macro_rules! has {
    ($($feature:tt),+) => {
        [$(std::is_x86_feature_detected!($feature)),+].into_iter().all(|is_there| is_there)
    };
}
#[cfg(all(target_arch = "x86_64", not(feature = "std")))]
macro_rules! has {
    ($($feature:tt),+) => {
        cfg!(all($(target_feature = $feature),+))
    };
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
mod tables;

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;

/// Bytes before a block that the UTF-8 check looks back at.
pub(crate) const BACK: usize = 3;

/// Work that is compiled anew for each instruction set.
pub(crate) trait Job {
    /// Its result.
    type Output;

    /// Runs it. It must be `#[inline(always)]`, so that it is compiled with the instructions of `isa`.
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

/// An instruction set that the CPU supports.
pub(crate) trait Isa: Copy {
    /// 64 bytes.
    type Block: Copy;

    /// The block that these bytes are.
    fn load(self, bytes: &[u8; BLOCK]) -> Self::Block;

    /// Where the block has this byte.
    fn equal(self, block: Self::Block, byte: u8) -> u64;

    /// Where two blocks differ.
    fn differ(self, a: Self::Block, b: Self::Block) -> u64;

    /// Bit number `bit` of each byte.
    fn bit(self, block: Self::Block, bit: u32) -> u64;

    /// Control bytes and bytes that are not ASCII.
    fn odd(self, block: Self::Block) -> u64;

    /// Space, tab, carriage return and newline.
    fn white(self, block: Self::Block) -> u64;

    /// Brackets, braces, colons and commas; also the bytes 0x0C and 0x1A, which are rejected as tokens later.
    fn operator(self, block: Self::Block) -> u64;

    /// The letters that may follow a backslash.
    fn escapable(self, block: Self::Block) -> u64;

    /// Hex digits.
    fn hex(self, block: Self::Block) -> u64;

    /// Bytes of the last 64 that break a UTF-8 sequence; the first [`BACK`] bytes precede them.
    fn not_utf8(self, bytes: &[u8; BACK + BLOCK]) -> u64;

    /// Whether all these bytes are ASCII without quotes, backslashes and control bytes. No such byte is overlooked, but
    /// other bytes may make the answer `false`.
    fn is_plain(self, bytes: &[u8; 2 * BLOCK]) -> bool;

    /// For each bit the parity of the bits up to and including it.
    fn parity(self, mask: u64) -> u64;

    /// Writes for each bit of `mask`, in order, the byte there and its place, counted so that the block begins at
    /// `from`. What follows in the arrays is undefined.
    fn pack(self, block: Self::Block, mask: u64, from: u16, bytes: &mut [u8; BLOCK], places: &mut [u16; BLOCK]);

    /// Runs a job, compiled for this instruction set.
    fn run<J: Job>(self, job: J) -> J::Output;

    /// Runs a job that is part of another one.
    #[inline(always)]
    fn within<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }
}
