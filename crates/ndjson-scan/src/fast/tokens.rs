//! From bytes to tokens: one kind, which is its first byte, and one place for each. Strings are validated completely on
//! the way, so that their content vanishes with the white space; scalars are only found, not read.
//!
//! It works in blocks of 64 bytes and knows no lines. The invariant: between two blocks, [`Strings`] holds the whole
//! state.

use crate::Window;
use crate::isa::portable::Portable;
use crate::isa::{BACK, BLOCK, Isa, Job};
use crate::zeroed::zeroed;
use alloc::boxed::Box;

/// Maximum number of bytes turned into tokens at once: few enough that tokens stay in the L1 cache until they are read,
/// and that a place fits 16 bits.
const CHUNK: usize = 16 << 10;

/// Number of places returned at once: more than a short line has tokens, and as many as a byte can count, so that a
/// byte index needs no bounds check.
pub(crate) const PLACES: usize = 256;

/// Blocks without a special byte after which the rest of a string is probably long and plain.
const PLAIN_BLOCKS: u32 = 3;

/// The tokens of a chunk.
pub(crate) struct Tokens {
    /// [`BLOCK`] more than a chunk can have, because blocks are packed whole, and as many again, because they are read
    /// in blocks from any token on.
    kinds: Box<[u8; CHUNK + 2 * BLOCK]>,
    /// [`PLACES`] more, because that many are returned at once, from any token on.
    places: Box<[u16; CHUNK + PLACES]>,
    /// Where in the window the chunk begins: places are counted from there.
    pub(crate) start: usize,
    /// Where in the window it ends.
    pub(crate) end: usize,
    /// Number of tokens.
    pub(crate) count: usize,
    /// Number of tokens consumed.
    pub(crate) used: usize,
    /// Whether one of its strings is invalid, a newline inside a string included. Then a malformed line begins before
    /// `end`.
    pub(crate) is_faulty: bool,
}

/// State carried from one block to the next.
#[derive(Clone, Copy)]
pub(crate) struct Strings {
    /// All bits set if the next byte is outside strings.
    outside: u64,
    /// What an escape requires: the bits of the next four bytes that must be hex digits, and the uppermost bit if the
    /// next byte is escaped.
    escape: u64,
    /// The bits of the last three bytes that were not ASCII.
    high: u64,
    /// 1 if the last byte was part of a scalar.
    scalar: u64,
}

impl Default for Strings {
    fn default() -> Self {
        Self { outside: !0, escape: 0, high: 0, scalar: 0 }
    }
}

impl Strings {
    /// Whether the last byte is part of a number or a literal, which may continue.
    pub(crate) fn ends_in_scalar(&self) -> bool {
        self.scalar != 0
    }
}

/// What was found in one block.
struct BlockBits {
    /// The first byte of each token.
    tokens: u64,
    newlines: u64,
    /// Something is invalid.
    errors: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { kinds: zeroed(), places: zeroed(), start: 0, end: 0, count: 0, used: 0, is_faulty: false }
    }
}

/// Tokens to be read: from `from` on, until `lines` newlines are there.
pub(super) struct TokenReader<'a> {
    pub(super) tokens: &'a mut Tokens,
    pub(super) strings: &'a mut Strings,
    pub(super) window: Window<'a>,
    pub(super) from: usize,
    pub(super) lines: usize,
}

impl Job for TokenReader<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.tokens.read(isa, self.strings, self.window, self.from, self.lines);
    }
}

impl Tokens {
    /// The kinds of 64 tokens from number `at` on; zeros after the last token.
    #[inline(always)]
    pub(crate) fn kinds(&self, at: usize) -> &[u8; BLOCK] {
        self.kinds[at..at + BLOCK].try_into().expect("64 bytes")
    }

    /// The kind of one token.
    #[inline(always)]
    pub(crate) fn kind(&self, at: usize) -> u8 {
        self.kinds[at]
    }

    /// Where in the window one token begins.
    #[inline(always)]
    pub(crate) fn place(&self, at: usize) -> usize {
        self.start + self.places[at] as usize
    }

    /// The places of the tokens from number `at` on, counted from the chunk's start; undefined after the last token.
    #[inline(always)]
    pub(crate) fn places(&self, at: usize) -> &[u16; PLACES] {
        self.places[at..at + PLACES].try_into().expect("so many places")
    }

    /// Turns the bytes of `window` from `from` on into tokens: one chunk of whole blocks, less if it has `lines`
    /// newlines already. At the window's end, bytes after the last newline wait for more.
    #[inline(always)]
    pub(crate) fn read<I: Isa>(
        &mut self,
        isa: I,
        strings: &mut Strings,
        window: Window<'_>,
        from: usize,
        lines: usize,
    ) {
        let mut state = *strings;
        let limit = window.data().len().min(from + CHUNK);
        let mut at = from;
        let mut count = 0;
        let mut newlines = 0;
        let mut errors = 0;
        let mut plain_blocks = 0;
        while at + BLOCK <= limit && newlines < lines {
            let block = isa.load(window.array(at));
            if let Some(found) = state.read(isa, window, at, block, !0) {
                errors |= found.errors;
                if found.tokens != 0 {
                    self.push(isa, block, &found, count, at - from);
                    count += found.tokens.count_ones() as usize;
                    newlines += found.newlines.count_ones() as usize;
                }
                at += BLOCK;
                plain_blocks = 0;
            } else {
                at += BLOCK;
                plain_blocks += 1;
                if plain_blocks == PLAIN_BLOCKS {
                    plain_blocks = 0;
                    at = skip_plain(isa, window, at, limit);
                }
            }
        }
        if limit == window.data().len() && at < limit && limit - at < BLOCK {
            let block = isa.load(window.array(at));
            let newlines = isa.equal(block, b'\n') & !(!0 << (limit - at));
            if newlines != 0 {
                let length = BLOCK - newlines.leading_zeros() as usize;
                let valid = !0 >> (BLOCK - length);
                // A newline inside a string is a control byte in it, so no string is open now unless one is wrong.
                if let Some(found) = state.read(isa, window, at, block, valid) {
                    errors |= found.errors;
                    self.push(isa, block, &found, count, at - from);
                    count += found.tokens.count_ones() as usize;
                }
                state = Strings::default();
                at += length;
            }
        }
        self.kinds[count..count + BLOCK].fill(0);
        *strings = state;
        self.start = from;
        self.end = at;
        self.count = count;
        self.used = 0;
        self.is_faulty = errors != 0;
    }

    /// Appends the tokens of a block to the `count` tokens so far; `from` is the block's offset in the chunk.
    #[inline(always)]
    fn push<I: Isa>(&mut self, isa: I, block: I::Block, found: &BlockBits, count: usize, from: usize) {
        let kinds = (&mut self.kinds[count..count + BLOCK]).try_into().expect("64 bytes");
        let places = (&mut self.places[count..count + BLOCK]).try_into().expect("64 places");
        isa.pack(block, found.tokens, from as u16, kinds, places);
    }
}

/// The end of the plain bytes from `at` on, rounded down to whole pairs of blocks.
#[inline(always)]
fn skip_plain<I: Isa>(isa: I, window: Window<'_>, mut at: usize, limit: usize) -> usize {
    while at + 2 * BLOCK <= limit && isa.is_plain(window.array(at)) {
        at += 2 * BLOCK;
    }
    at
}

impl Strings {
    /// Reads the block at `at` in the window. Only the bytes in `valid` count, and the state is correct afterwards only
    /// if all do. `None` means that the block is plain and inside a string.
    #[inline(always)]
    fn read<I: Isa>(
        &mut self,
        isa: I,
        window: Window<'_>,
        at: usize,
        block: I::Block,
        valid: u64,
    ) -> Option<BlockBits> {
        let quotes = isa.equal(block, b'"') & valid;
        let backslashes = isa.equal(block, b'\\') & valid;
        let odd = isa.odd(block) & valid;
        // Most text is such blocks: nothing in them is a token.
        if quotes | backslashes | odd | self.escape | self.high | self.outside == 0 {
            return None;
        }

        let mut errors = 0;
        let mut ends = quotes;
        if backslashes | self.escape != 0 {
            let (escaped, wrong) = self.escapes(isa, block, backslashes);
            ends &= !escaped;
            errors |= wrong;
        }
        // A quote toggles being outside for all bytes after it: the parity of the quotes so far.
        let outside = isa.parity(ends) ^ self.outside;
        self.outside = (outside as i64 >> 63) as u64;
        let inside = !outside;
        let outside = outside & !ends;

        let newlines = isa.equal(block, b'\n') & outside;
        let mut returns = 0;
        if odd & !newlines | self.high != 0 {
            if odd & inside | self.high != 0 {
                errors |= self.odd_bytes(isa, window, at, block, odd & inside);
            }
            if odd & outside & !newlines != 0 {
                returns = lone_returns(isa, window, at, block, newlines) & outside;
            }
        }

        let operators = isa.operator(block) & outside;
        let scalar = outside & !operators & !isa.white(block);
        let scalars = scalar & !(scalar << 1 | self.scalar);
        self.scalar = scalar >> 63;
        let tokens = (ends & inside | operators | newlines | scalars | returns) & valid;
        Some(BlockBits { tokens, newlines, errors: errors & valid })
    }

    /// The bytes escaped by a backslash, and those among them that may not be.
    #[inline(always)]
    fn escapes<I: Isa>(&mut self, isa: I, block: I::Block, backslashes: u64) -> (u64, u64) {
        // Every second bit. In a run of backslashes the first escapes the second, and so on; subtracting the run's
        // starts from this pattern carries through each run and leaves its every second bit, wherever it began.
        const EVERY_SECOND: u64 = 0xAAAA_AAAA_AAAA_AAAA;
        let (first, owed) = (self.escape >> 63, self.escape & 15);
        let starts = backslashes & !first;
        let pattern = (starts << 1 | EVERY_SECOND).wrapping_sub(starts) ^ EVERY_SECOND;
        let escaped = pattern ^ (backslashes | first);
        let mut wrong = escaped & !isa.escapable(block);
        self.escape = pattern & backslashes & 1 << 63;

        let unicode = escaped & isa.equal(block, b'u');
        if unicode | owed != 0 {
            let digits = unicode << 1 | unicode << 2 | unicode << 3 | unicode << 4 | owed;
            wrong |= digits & !isa.hex(block);
            self.escape |= unicode >> 63 | unicode >> 62 | unicode >> 61 | unicode >> 60;
        }
        (escaped, wrong)
    }

    /// The control bytes inside strings, and where UTF-8 is broken.
    #[inline(always)]
    fn odd_bytes<I: Isa>(&mut self, isa: I, window: Window<'_>, at: usize, block: I::Block, odd: u64) -> u64 {
        let high = isa.bit(block, 7);
        let mut errors = odd & !high;
        if high | self.high != 0 {
            errors |= not_utf8(isa, window, at);
        }
        self.high = high >> (BLOCK - BACK);
        errors
    }
}

/// The carriage returns of the block at `at` that do not end a line with a newline. Each is a token that no grammar has,
/// so that the reference scanner decides its line: they are too rare to be looked for in usual lines. One whose next byte
/// has not been received counts, too.
#[inline(always)]
fn lone_returns<I: Isa>(isa: I, window: Window<'_>, at: usize, block: I::Block, newlines: u64) -> u64 {
    let returns = isa.equal(block, b'\r');
    let next = at + BLOCK;
    let next_is_newline = next < window.data().len() && window.byte(next) == b'\n';
    returns & !(newlines >> 1 | u64::from(next_is_newline) << 63)
}

/// Where UTF-8 is broken in the block at `at`.
#[inline(always)]
fn not_utf8<I: Isa>(isa: I, window: Window<'_>, at: usize) -> u64 {
    if at < BACK { not_utf8_at_start(window.padded, at) } else { isa.not_utf8(window.array(at - BACK)) }
}

/// The same where the window begins. The bytes before it may be anything, so spaces replace them.
#[cold]
#[inline(never)]
fn not_utf8_at_start(padded: &[u8], at: usize) -> u64 {
    let mut bytes = [b' '; BACK + BLOCK];
    bytes[BACK - at..].copy_from_slice(&padded[..BLOCK + at]);
    // Not compiled for any instruction set, so it uses the one that needs no special instructions.
    Portable.not_utf8(&bytes)
}
