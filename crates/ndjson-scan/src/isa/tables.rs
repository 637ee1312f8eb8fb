//! Lookup tables for byte shuffles: 16 bytes, indexed by one half of a byte.

use super::BLOCK;

/// The numbers of the bytes in a block.
pub(crate) static INDEX: [u8; BLOCK] = {
    let mut index = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        index[at] = at as u8;
        at += 1;
    }
    index
};

/// Two tables, indexed by the lower and the upper half of a byte; the byte matches if the two entries share a bit.
pub(crate) struct Nibbles {
    pub(crate) low: [u8; 16],
    pub(crate) high: [u8; 16],
}

/// The letters that may follow a backslash: `"` and `/`, `\`, `b` and `f`, `n`, `r`, `t` and `u`. Each upper half has
/// a bit of its own.
pub(crate) static ESCAPABLE: Nibbles = {
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

/// By the lower half of a byte, the only white space it can be; no byte matches in the other places.
pub(crate) static WHITE: [u8; 16] = own_places(b" \t\n\r");

/// By the lower half of a byte, the only operator it can be, once the bit 0x20 is set: that makes brackets braces, and
/// leaves colons and commas unchanged.
pub(crate) static OPERATORS: [u8; 16] = own_places(b"{}:,");

/// A table with each byte at the index of its lower half, and bytes that belong elsewhere at the other indices. A
/// shuffle returns zero for bytes that are not ASCII, so none of them matches either.
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

/// Three tables, each bit of which is one way in which two neighbouring bytes break UTF-8.
pub(crate) struct Utf8 {
    pub(crate) first_high: [u8; 16],
    pub(crate) first_low: [u8; 16],
    pub(crate) second_high: [u8; 16],
}

/// The tables of Keiser and Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte" (2020). A bit remains if
/// both halves of the first byte and the upper half of the second agree on it. The topmost bit means that both are
/// continuations: that is right where one of the bytes two and three before calls for it, and wrong elsewhere.
pub(crate) static UTF8: Utf8 = {
    /// A lead byte without a continuation.
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
    /// Errors for which the lower half of the first byte does not matter.
    const ANY: u8 = SHORT | LONG | CONTINUED;
    const BEYOND: u8 = ANY | LARGE | LARGE_1000;
    const ANY_SECOND: u8 = LONG | OVERLONG_2 | CONTINUED;
    Utf8 {
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
    }
};
