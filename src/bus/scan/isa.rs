//! What the algorithm asks of an instruction set: questions about 64 bytes at once, answered with one bit a byte, the
//! first byte in the lowest bit.
//!
//! A value that implements [`Isa`] exists only if the CPU has the instructions, so its methods are safe to call.

use super::Window;
use super::messages::{Messages, Stop};
use super::tokens::{Strings, Tokens};

/// Bytes in a block.
pub(super) const BLOCK: usize = 64;

/// Bytes before a block that the check for UTF-8 looks back on.
pub(super) const BACK: usize = 3;

/// The numbers of the bytes in a block.
pub(super) static INDEX: [u8; BLOCK] = {
    let mut index = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        index[at] = at as u8;
        at += 1;
    }
    index
};

/// An instruction set that the CPU has.
pub(super) trait Isa: Copy {
    /// 64 bytes.
    type Block: Copy;

    /// The block that these bytes are.
    fn load(self, bytes: &[u8; BLOCK]) -> Self::Block;

    /// The first `count` bytes of the block, at least one and at most 64, and spaces after them.
    fn first(self, block: Self::Block, count: usize) -> Self::Block;

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

    /// Brackets, braces, colons and commas; also the bytes 0x0C and 0x1A, which are found to be no token later.
    fn operator(self, block: Self::Block) -> u64;

    /// The letters that may follow a backslash.
    fn escapable(self, block: Self::Block) -> u64;

    /// Hex digits.
    fn hex(self, block: Self::Block) -> u64;

    /// Bytes of the last 64 that break a sequence of UTF-8; the first [`BACK`] bytes stand before them.
    fn not_utf8(self, bytes: &[u8; BACK + BLOCK]) -> u64;

    /// Whether all these bytes are ASCII without quotes, backslashes and control bytes, or at least no such byte is
    /// overlooked; other bytes may make the answer `false`.
    fn is_plain(self, bytes: &[u8; 2 * BLOCK]) -> bool;

    /// For each bit the parity of the bits up to and with it.
    fn parity(self, mask: u64) -> u64;

    /// Writes for each bit of `mask`, in order, the kind of the token that begins there and its place, counted so that
    /// the block begins at `from`. Kinds are the bytes themselves but for `scalars`, which have [`super::tokens::SCALAR`]. What the
    /// arrays hold after them is undefined.
    fn pack(
        self,
        block: Self::Block,
        mask: u64,
        scalars: u64,
        from: u16,
        kinds: &mut [u8; BLOCK],
        places: &mut [u16; BLOCK],
    );

    /// [`Tokens::read`], compiled for this instruction set.
    fn read_tokens(self, tokens: &mut Tokens, strings: &mut Strings, window: Window<'_>, from: usize, lines: usize);

    /// [`Messages::read`], compiled for this instruction set.
    fn read_messages(self, messages: Messages<'_>) -> Stop;
}

/// Two tables, indexed by the lower and the upper half of a byte; the byte belongs if what they have shares a bit.
pub(super) struct Nibbles {
    pub(super) low: [u8; 16],
    pub(super) high: [u8; 16],
}

/// The letters that may follow a backslash: `"` and `/`, `\`, `b` and `f`, `n`, `r`, `t` and `u`. Each upper half has
/// a bit of its own.
#[inline(always)]
pub(super) fn escape_letters() -> &'static Nibbles {
    static LETTERS: Nibbles = {
        let mut nibbles = Nibbles { low: [0; 16], high: [0; 16] };
        let letters = b"\"/\\bfnrtu";
        let mut index = 0;
        while index < letters.len() {
            let (high, low) = (letters[index] as usize >> 4, letters[index] as usize & 15);
            nibbles.low[low] |= 1 << high;
            nibbles.high[high] = 1 << high;
            index += 1;
        }
        nibbles
    };
    &LETTERS
}

/// By its lower half, the white space that a byte can only be; no byte finds itself in the other places.
#[inline(always)]
pub(super) fn white() -> &'static [u8; 16] {
    static WHITE: [u8; 16] = own_places(b" \t\n\r");
    &WHITE
}

/// By the lower half of a byte, the operator that it can only be, once the bit 0x20 is set: that makes brackets
/// braces, and leaves colons and commas as they are.
#[inline(always)]
pub(super) fn operators() -> &'static [u8; 16] {
    static OPERATORS: [u8; 16] = own_places(b"{}:,");
    &OPERATORS
}

/// A table with each byte where its lower half says, and elsewhere bytes that belong in another place. A shuffle
/// gives zero for bytes that are not ASCII, so none of them finds itself either.
const fn own_places(bytes: &[u8]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut place = 0;
    while place < 16 {
        table[place] = place as u8 ^ 1;
        place += 1;
    }
    let mut index = 0;
    while index < bytes.len() {
        table[bytes[index] as usize & 15] = bytes[index];
        index += 1;
    }
    table
}

/// The tables of Keiser and Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte" (2020): each bit is one
/// way in which two neighbouring bytes are wrong, and remains if both halves of the first and the upper half of the
/// second agree on it. [`utf8`] has one exception: two continuation bytes in a row are wrong only if neither of the
/// bytes two and three before the second calls for it.
pub(super) struct Utf8 {
    pub(super) first_high: [u8; 16],
    pub(super) first_low: [u8; 16],
    pub(super) second_high: [u8; 16],
}

#[inline(always)]
pub(super) fn utf8() -> &'static Utf8 {
    /// A lead byte and no continuation.
    const SHORT: u8 = 1;
    /// ASCII and a continuation.
    const LONG: u8 = 1 << 1;
    /// Three bytes where two are enough.
    const OVERLONG_3: u8 = 1 << 2;
    /// Beyond U+10FFFF.
    const LARGE: u8 = 1 << 3;
    const SURROGATE: u8 = 1 << 4;
    /// Two bytes where one is enough.
    const OVERLONG_2: u8 = 1 << 5;
    /// Far beyond U+10FFFF; or four bytes where three are enough.
    const LARGE_1000: u8 = 1 << 6;
    const OVERLONG_4: u8 = 1 << 6;
    /// Two continuations.
    const CONTINUED: u8 = 1 << 7;
    /// What the lower half of the first byte does not matter for.
    const ANY: u8 = SHORT | LONG | CONTINUED;
    const BEYOND: u8 = ANY | LARGE | LARGE_1000;
    const ANY_SECOND: u8 = LONG | OVERLONG_2 | CONTINUED;
    static TABLES: Utf8 = Utf8 {
        first_high: [
            LONG,
            LONG,
            LONG,
            LONG,
            LONG,
            LONG,
            LONG,
            LONG,
            CONTINUED,
            CONTINUED,
            CONTINUED,
            CONTINUED,
            SHORT | OVERLONG_2,
            SHORT,
            SHORT | OVERLONG_3 | SURROGATE,
            SHORT | LARGE | LARGE_1000 | OVERLONG_4,
        ],
        first_low: [
            ANY | OVERLONG_3 | OVERLONG_2 | OVERLONG_4,
            ANY | OVERLONG_2,
            ANY,
            ANY,
            ANY | LARGE,
            BEYOND,
            BEYOND,
            BEYOND,
            BEYOND,
            BEYOND,
            BEYOND,
            BEYOND,
            BEYOND,
            BEYOND | SURROGATE,
            BEYOND,
            BEYOND,
        ],
        second_high: [
            SHORT,
            SHORT,
            SHORT,
            SHORT,
            SHORT,
            SHORT,
            SHORT,
            SHORT,
            ANY_SECOND | OVERLONG_3 | LARGE_1000 | OVERLONG_4,
            ANY_SECOND | OVERLONG_3 | LARGE,
            ANY_SECOND | SURROGATE | LARGE,
            ANY_SECOND | SURROGATE | LARGE,
            SHORT,
            SHORT,
            SHORT,
            SHORT,
        ],
    };
    &TABLES
}
