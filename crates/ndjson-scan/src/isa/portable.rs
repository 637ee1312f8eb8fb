//! [`Isa`] for any CPU: eight bytes at a time in plain words, which compilers turn into whatever vectors there are.

use super::{BACK, BLOCK, Isa, Job};

/// Every CPU supports this.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// 64 bytes, the first lowest in each word.
type Block = [u64; 8];

/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// A space in each byte.
const SPACES: u64 = ONES * 0x20;

/// The upper bit of each byte.
const UPPER: u64 = ONES << 7;

/// The upper bits of all bytes, one after the other.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn upper_bits(block: Block) -> u64 {
    use core::arch::x86_64::{_mm_movemask_epi8, _mm_set_epi64x};
    let mut bits = 0;
    for (index, [low, high]) in block.as_chunks::<2>().0.iter().enumerate() {
        // SAFETY: every CPU of this architecture has SSE2.
        let sixteen = unsafe { _mm_movemask_epi8(_mm_set_epi64x(*high as i64, *low as i64)) };
        bits |= (sixteen as u64) << (16 * index);
    }
    bits
}

/// The upper bits of all bytes, one after the other.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn upper_bits(block: Block) -> u64 {
    let mut bits = 0;
    for (index, word) in block.into_iter().enumerate() {
        // Each upper bit is moved to a place of its own in the topmost byte.
        bits |= ((word & UPPER).wrapping_mul(0x0002_0408_1020_4081) >> 56) << (8 * index);
    }
    bits
}

/// The upper bit of each byte that is zero.
#[inline(always)]
fn zeros(word: u64) -> u64 {
    !(((word & !UPPER) + !UPPER) | word) & UPPER
}

/// The upper bit of each byte that has this value.
#[inline(always)]
fn are(word: u64, byte: u8) -> u64 {
    zeros(word ^ (ONES * u64::from(byte)))
}

/// The upper bit of each byte that is at least `limit`, which is at most 128, or is not ASCII.
#[inline(always)]
fn at_least(word: u64, limit: u8) -> u64 {
    (((word & !UPPER) + ONES * u64::from(0x80 - limit)) | word) & UPPER
}

/// The upper bit of each byte that is not ASCII and, without its upper bit, at least `limit`.
#[inline(always)]
fn high_at_least(word: u64, limit: u8) -> u64 {
    ((word & !UPPER) + ONES * u64::from(0x80 - limit)) & word & UPPER
}

/// The upper bit of each byte from `first` to `last`, which are ASCII.
#[inline(always)]
fn between(word: u64, first: u8, last: u8) -> u64 {
    at_least(word, first) & !at_least(word, last + 1)
}

impl Isa for Portable {
    type Block = Block;

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK]) -> Block {
        words(bytes, 0)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn equal(self, block: Block, byte: u8) -> u64 {
        use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
        let mut bits = 0;
        for (index, [low, high]) in block.as_chunks::<2>().0.iter().enumerate() {
            // SAFETY: every CPU of this architecture has SSE2.
            let sixteen = unsafe {
                _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_set_epi64x(*high as i64, *low as i64), _mm_set1_epi8(byte as i8)))
            };
            bits |= (sixteen as u64) << (16 * index);
        }
        bits
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn equal(self, block: Block, byte: u8) -> u64 {
        upper_bits(block.map(|word| are(word, byte)))
    }

    #[inline(always)]
    fn differ(self, a: Block, b: Block) -> u64 {
        let mut differences = a;
        for (word, other) in differences.iter_mut().zip(b) {
            *word = !zeros(*word ^ other);
        }
        upper_bits(differences)
    }

    #[inline(always)]
    fn bit(self, block: Block, bit: u32) -> u64 {
        upper_bits(block.map(|word| word << (7 - bit)))
    }

    #[inline(always)]
    fn odd(self, block: Block) -> u64 {
        upper_bits(block.map(|word| !at_least(word, 0x20) | word))
    }

    #[inline(always)]
    fn white(self, block: Block) -> u64 {
        upper_bits(block.map(|word| are(word, b' ') | are(word, b'\t') | are(word, b'\r') | are(word, b'\n')))
    }

    #[inline(always)]
    fn operator(self, block: Block) -> u64 {
        upper_bits(block.map(|word| {
            // With this bit set, brackets are braces.
            let word = word | SPACES;
            are(word, b'{') | are(word, b'}') | are(word, b':') | are(word, b',')
        }))
    }

    #[inline(always)]
    fn escapable(self, block: Block) -> u64 {
        upper_bits(block.map(|word| {
            let mut letters = 0;
            for letter in *b"\"\\/bfnrtu" {
                letters |= are(word, letter);
            }
            letters
        }))
    }

    #[inline(always)]
    fn hex(self, block: Block) -> u64 {
        upper_bits(block.map(|word| between(word, b'0', b'9') | between(word | SPACES, b'a', b'f')))
    }

    #[inline(always)]
    fn not_utf8(self, bytes: &[u8; BACK + BLOCK]) -> u64 {
        let (third, second, first, block) = (words(bytes, 0), words(bytes, 1), words(bytes, 2), words(bytes, 3));
        let mut wrong = [0; 8];
        for (index, wrong) in wrong.iter_mut().enumerate() {
            let (third, second, first, word) = (third[index], second[index], first[index], block[index]);
            let lead = |byte: u8| first & are(first, byte) & UPPER;
            // A continuation is a byte below 0xC0, valid where one of the three bytes before calls for it.
            let continuation = word & !high_at_least(word, 0x40) & UPPER;
            let expected = high_at_least(first, 0x42) | high_at_least(second, 0x60) | high_at_least(third, 0x70);
            // Some leads narrow down the first continuation: overlong forms, surrogates, beyond U+10FFFF.
            let (low, lower) = (!high_at_least(word, 0x20), !high_at_least(word, 0x10));
            let narrow = lead(0xE0) & low | lead(0xED) & !low | lead(0xF0) & lower | lead(0xF4) & !lower;
            let never = are(word, 0xC0) | are(word, 0xC1) | high_at_least(word, 0x75);
            *wrong = (continuation ^ expected) & UPPER | narrow | never;
        }
        upper_bits(wrong)
    }

    #[inline(always)]
    fn is_plain(self, bytes: &[u8; 2 * BLOCK]) -> bool {
        let mut special = 0;
        for word in words(bytes, 0).into_iter().chain(words(bytes, BLOCK)) {
            special |= are(word, b'"') | are(word, b'\\') | !at_least(word, 0x20) | word;
        }
        special & UPPER == 0
    }

    #[inline(always)]
    fn parity(self, mask: u64) -> u64 {
        let mut parity = mask;
        for shift in [1, 2, 4, 8, 16, 32] {
            parity ^= parity << shift;
        }
        parity
    }

    #[inline(always)]
    fn pack(self, block: Block, mask: u64, from: u16, bytes: &mut [u8; BLOCK], places: &mut [u16; BLOCK]) {
        let all = block.map(u64::to_le_bytes);
        let mut rest = mask;
        // Eight at a time, some of them unused, so that the number of tokens causes few branches.
        for (bytes, places) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(places.as_chunks_mut::<8>().0) {
            for (byte, place) in bytes.iter_mut().zip(places) {
                let at = rest.trailing_zeros() as usize % BLOCK;
                *byte = all.as_flattened()[at];
                *place = from + at as u16;
                rest &= rest.wrapping_sub(1);
            }
            if rest == 0 {
                break;
            }
        }
    }

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }
}

/// 64 of these bytes.
#[inline(always)]
fn words<const N: usize>(bytes: &[u8; N], from: usize) -> Block {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes[from..from + BLOCK].as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}
