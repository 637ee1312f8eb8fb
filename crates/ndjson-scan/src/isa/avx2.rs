//! [`Isa`] with AVX2: 64 bytes are two registers, and a result collects the upper bits of their bytes.

use super::tables::{ESCAPABLE, Nibbles, OPERATORS, UTF8, WHITE};
use super::{BACK, BLOCK, Isa, Job};
use core::arch::x86_64::*;

/// The proof that this CPU supports what the functions below are compiled for.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The instruction set, if the CPU has it.
    pub(crate) fn detect() -> Option<Self> {
        let has = has!("avx2", "bmi1", "bmi2", "lzcnt", "popcnt", "pclmulqdq");
        has.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,pclmulqdq")]
#[inline(never)]
fn run<J: Job>(isa: Avx2, job: J) -> J::Output {
    job.run(isa)
}

/// 64 bytes.
type Block = [__m256i; 2];

/// A byte in all places.
#[inline(always)]
fn all(byte: u8) -> __m256i {
    // SAFETY: private to this file, and called only from methods, whose `self` proves the features.
    unsafe { _mm256_set1_epi8(byte as i8) }
}

/// A table of 16 bytes in each half.
#[inline(always)]
fn table(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: as in `all`; the load is of 16 bytes.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())) }
}

/// 32 of these bytes.
#[inline(always)]
fn load<const N: usize>(bytes: &[u8; N], from: usize) -> __m256i {
    let bytes: &[u8; 32] = bytes[from..].first_chunk().expect("32 bytes");
    // SAFETY: as in `all`; the load is of 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The upper bit of each byte.
#[inline(always)]
fn upper_bits([first, second]: Block) -> u64 {
    // SAFETY: as in `all`.
    let (first, second) = unsafe { (_mm256_movemask_epi8(first) as u32, _mm256_movemask_epi8(second) as u32) };
    u64::from(first) | u64::from(second) << 32
}

/// The lower four bits of each byte.
#[inline(always)]
fn lower(half: __m256i) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_and_si256(half, all(15)) }
}

/// The upper four bits of each byte.
#[inline(always)]
fn upper(half: __m256i) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_and_si256(_mm256_srli_epi16(half, 4), all(15)) }
}

/// Where bytes are lower than `limit`.
#[inline(always)]
fn below(half: __m256i, limit: u8) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_cmpeq_epi8(_mm256_min_epu8(half, all(limit - 1)), half) }
}

/// Where bytes have this value.
#[inline(always)]
fn equal(half: __m256i, byte: u8) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_cmpeq_epi8(half, all(byte)) }
}

/// Control bytes and bytes that are not ASCII; signed, those are negative.
#[inline(always)]
fn odd(half: __m256i) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_cmpgt_epi8(all(0x20), half) }
}

/// Quotes, backslashes and odd bytes.
#[inline(always)]
fn special(half: __m256i) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_or_si256(_mm256_or_si256(equal(half, b'"'), equal(half, b'\\')), odd(half)) }
}

/// Where bytes with `set` set equal what the table has for their lower half.
#[inline(always)]
fn own(half: __m256i, set: u8, places: &[u8; 16]) -> __m256i {
    // SAFETY: as in `all`.
    unsafe { _mm256_cmpeq_epi8(_mm256_or_si256(half, all(set)), _mm256_shuffle_epi8(table(places), half)) }
}

/// Where the tables' entries for the two halves of a byte share no bit.
#[inline(always)]
fn miss(half: __m256i, nibbles: &Nibbles) -> __m256i {
    // SAFETY: as in `all`.
    unsafe {
        let low = _mm256_shuffle_epi8(table(&nibbles.low), lower(half));
        let high = _mm256_shuffle_epi8(table(&nibbles.high), upper(half));
        _mm256_cmpeq_epi8(_mm256_and_si256(low, high), _mm256_setzero_si256())
    }
}

/// Hex digits.
#[inline(always)]
fn hex(half: __m256i) -> __m256i {
    // SAFETY: as in `all`.
    unsafe {
        let digit = _mm256_sub_epi8(half, all(b'0'));
        let letter = _mm256_sub_epi8(_mm256_or_si256(half, all(0x20)), all(b'a'));
        _mm256_or_si256(below(digit, 10), below(letter, 6))
    }
}

/// Where the 32 bytes that begin three after `from` are valid after those before them.
#[inline(always)]
fn is_utf8(bytes: &[u8; BACK + BLOCK], from: usize) -> __m256i {
    let (third, second) = (load(bytes, from), load(bytes, from + 1));
    let (first, half) = (load(bytes, from + 2), load(bytes, from + 3));
    // SAFETY: as in `all`.
    unsafe {
        let a = _mm256_shuffle_epi8(table(&UTF8.first_high), upper(first));
        let b = _mm256_shuffle_epi8(table(&UTF8.first_low), lower(first));
        let c = _mm256_shuffle_epi8(table(&UTF8.second_high), upper(half));
        let pairs = _mm256_and_si256(_mm256_and_si256(a, b), c);
        let (third_byte, fourth_byte) =
            (_mm256_subs_epu8(second, all(0xE0 - 0x80)), _mm256_subs_epu8(third, all(0xF0 - 0x80)));
        let expected = _mm256_and_si256(_mm256_or_si256(third_byte, fourth_byte), all(0x80));
        _mm256_cmpeq_epi8(_mm256_xor_si256(expected, pairs), _mm256_setzero_si256())
    }
}

/// For each set of eight bits their numbers in order, one byte each.
static NUMBERS: [u64; 256] = {
    let mut numbers = [0; 256];
    let mut bits = 0;
    while bits < numbers.len() {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if bits >> bit & 1 != 0 {
                numbers[bits] |= bit << (8 * count);
                count += 1;
            }
            bit += 1;
        }
        bits += 1;
    }
    numbers
};

/// [`Isa::pack`] for the half of a block that begins at `START`, after `count` bytes and places. Returns the new count.
#[inline(always)]
fn pack_half<const START: i8>(
    half: __m256i,
    mask: u32,
    from: u16,
    bytes: &mut [u8; BLOCK],
    places: &mut [u16; BLOCK],
    mut count: usize,
) -> usize {
    if mask == 0 {
        return count;
    }
    // SAFETY: as in `all`. Each step writes eight bytes and eight places from number `count` on, which grows by no more
    // than eight a step, so it is at most 24 in the last one of the first half, and 56 in that of the second.
    unsafe {
        let sixteens = [_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)];
        let from = _mm_set1_epi16(from as i16);
        for step in 0..4 {
            let bits = mask >> (8 * step) & 0xFF;
            let numbers = _mm_cvtsi64_si128(NUMBERS[bits as usize] as i64);
            let sixteen = sixteens[step / 2];
            let eight = if step % 2 == 0 { sixteen } else { _mm_srli_si128(sixteen, 8) };
            // Bytes are numbered before they are widened, so that each step adds only a constant.
            let in_block = _mm_add_epi8(numbers, _mm_set1_epi8(START + 8 * step as i8));
            let eight_places = _mm_add_epi16(_mm_cvtepu8_epi16(in_block), from);
            _mm_storel_epi64(bytes.as_mut_ptr().add(count).cast(), _mm_shuffle_epi8(eight, numbers));
            _mm_storeu_si128(places.as_mut_ptr().add(count).cast(), eight_places);
            count += bits.count_ones() as usize;
        }
    }
    count
}

impl Isa for Avx2 {
    type Block = Block;

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK]) -> Block {
        [load(bytes, 0), load(bytes, 32)]
    }

    #[inline(always)]
    fn equal(self, [first, second]: Block, byte: u8) -> u64 {
        upper_bits([equal(first, byte), equal(second, byte)])
    }

    #[inline(always)]
    fn differ(self, a: Block, b: Block) -> u64 {
        // SAFETY: `self` proves the features.
        !upper_bits(unsafe { [_mm256_cmpeq_epi8(a[0], b[0]), _mm256_cmpeq_epi8(a[1], b[1])] })
    }

    #[inline(always)]
    fn bit(self, [first, second]: Block, bit: u32) -> u64 {
        // SAFETY: `self` proves the features.
        upper_bits(unsafe {
            let by = _mm_cvtsi32_si128(7 - bit as i32);
            [_mm256_sll_epi16(first, by), _mm256_sll_epi16(second, by)]
        })
    }

    #[inline(always)]
    fn odd(self, [first, second]: Block) -> u64 {
        upper_bits([odd(first), odd(second)])
    }

    #[inline(always)]
    fn white(self, [first, second]: Block) -> u64 {
        upper_bits([own(first, 0, &WHITE), own(second, 0, &WHITE)])
    }

    #[inline(always)]
    fn operator(self, [first, second]: Block) -> u64 {
        upper_bits([own(first, 0x20, &OPERATORS), own(second, 0x20, &OPERATORS)])
    }

    #[inline(always)]
    fn escapable(self, [first, second]: Block) -> u64 {
        !upper_bits([miss(first, &ESCAPABLE), miss(second, &ESCAPABLE)])
    }

    #[inline(always)]
    fn hex(self, [first, second]: Block) -> u64 {
        upper_bits([hex(first), hex(second)])
    }

    #[inline(always)]
    fn not_utf8(self, bytes: &[u8; BACK + BLOCK]) -> u64 {
        !upper_bits([is_utf8(bytes, 0), is_utf8(bytes, 32)])
    }

    #[inline(always)]
    fn is_plain(self, bytes: &[u8; 2 * BLOCK]) -> bool {
        // SAFETY: `self` proves the features.
        unsafe {
            let a = _mm256_or_si256(special(load(bytes, 0)), special(load(bytes, 32)));
            let b = _mm256_or_si256(special(load(bytes, 64)), special(load(bytes, 96)));
            let all = _mm256_or_si256(a, b);
            _mm256_testz_si256(all, all) != 0
        }
    }

    #[inline(always)]
    fn parity(self, mask: u64) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe { _mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(mask as i64), _mm_set1_epi8(-1), 0)) as u64 }
    }

    #[inline(always)]
    fn pack(self, [first, second]: Block, mask: u64, from: u16, bytes: &mut [u8; BLOCK], places: &mut [u16; BLOCK]) {
        let count = pack_half::<0>(first, mask as u32, from, bytes, places, 0);
        pack_half::<32>(second, (mask >> 32) as u32, from, bytes, places, count);
    }

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        // SAFETY: `self` proves the features.
        unsafe { run(self, job) }
    }
}
