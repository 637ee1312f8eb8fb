//! [`Isa`] with AVX-512: 64 bytes are one register, and an answer is a mask register. VBMI2 packs bytes.

use super::tables::{ESCAPABLE, INDEX, Nibbles, OPERATORS, UTF8, WHITE};
use super::{BACK, BLOCK, Isa, Job};
use core::arch::x86_64::*;

/// The proof that this CPU supports what the functions below are compiled for.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The instruction set, if the CPU has it.
    pub(crate) fn detect() -> Option<Self> {
        let has = has!(
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512dq",
            "avx512vbmi",
            "avx512vbmi2",
            "bmi1",
            "bmi2",
            "lzcnt",
            "popcnt",
            "pclmulqdq"
        );
        has.then_some(Self(()))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt,pclmulqdq")]
#[inline(never)]
fn run<J: Job>(isa: Avx512, job: J) -> J::Output {
    job.run(isa)
}

/// A byte in all places.
#[inline(always)]
fn all(byte: u8) -> __m512i {
    // SAFETY: private to this file, and called only from methods, whose `self` proves the features.
    unsafe { _mm512_set1_epi8(byte as i8) }
}

/// A table of 16 bytes in each quarter.
#[inline(always)]
fn table(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: as in `all`; the load is of 16 bytes.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())) }
}

/// For each byte the AND of what the tables have for its upper and lower half.
#[inline(always)]
fn look_up(block: __m512i, nibbles: &Nibbles) -> u64 {
    // SAFETY: as in `all`.
    unsafe {
        let low = _mm512_shuffle_epi8(table(&nibbles.low), _mm512_and_si512(block, all(15)));
        let high = _mm512_shuffle_epi8(table(&nibbles.high), _mm512_and_si512(_mm512_srli_epi16(block, 4), all(15)));
        _mm512_test_epi8_mask(low, high)
    }
}

impl Isa for Avx512 {
    type Block = __m512i;

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK]) -> __m512i {
        // SAFETY: `self` proves the features; the load is of 64 bytes.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn equal(self, block: __m512i, byte: u8) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cmpeq_epi8_mask(block, all(byte)) }
    }

    #[inline(always)]
    fn differ(self, a: __m512i, b: __m512i) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cmpneq_epi8_mask(a, b) }
    }

    #[inline(always)]
    fn bit(self, block: __m512i, bit: u32) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_test_epi8_mask(block, all(1 << bit)) }
    }

    #[inline(always)]
    fn odd(self, block: __m512i) -> u64 {
        // Signed, bytes that are not ASCII are negative.
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cmplt_epi8_mask(block, all(0x20)) }
    }

    #[inline(always)]
    fn white(self, block: __m512i) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cmpeq_epi8_mask(block, _mm512_shuffle_epi8(table(&WHITE), block)) }
    }

    #[inline(always)]
    fn operator(self, block: __m512i) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe {
            let expected = _mm512_shuffle_epi8(table(&OPERATORS), block);
            _mm512_cmpeq_epi8_mask(_mm512_or_si512(block, all(0x20)), expected)
        }
    }

    #[inline(always)]
    fn escapable(self, block: __m512i) -> u64 {
        look_up(block, &ESCAPABLE)
    }

    #[inline(always)]
    fn hex(self, block: __m512i) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe {
            let digit = _mm512_sub_epi8(block, all(b'0'));
            let letter = _mm512_sub_epi8(_mm512_or_si512(block, all(0x20)), all(b'a'));
            _mm512_cmplt_epu8_mask(digit, all(10)) | _mm512_cmplt_epu8_mask(letter, all(6))
        }
    }

    #[inline(always)]
    fn not_utf8(self, bytes: &[u8; BACK + BLOCK]) -> u64 {
        // SAFETY: `self` proves the features; each load is of 64 of the 67 bytes.
        unsafe {
            let at = |from: usize| _mm512_loadu_si512(bytes.as_ptr().add(from).cast());
            let (third, second, first, block) = (at(0), at(1), at(2), at(3));
            let upper = |block| _mm512_and_si512(_mm512_srli_epi16(block, 4), all(15));
            let a = _mm512_shuffle_epi8(table(&UTF8.first_high), upper(first));
            let b = _mm512_shuffle_epi8(table(&UTF8.first_low), _mm512_and_si512(first, all(15)));
            let c = _mm512_shuffle_epi8(table(&UTF8.second_high), upper(block));
            let pairs = _mm512_and_si512(_mm512_and_si512(a, b), c);
            let third_or_fourth =
                _mm512_or_si512(_mm512_subs_epu8(second, all(0xE0 - 0x80)), _mm512_subs_epu8(third, all(0xF0 - 0x80)));
            let expected = _mm512_and_si512(third_or_fourth, all(0x80));
            _mm512_cmpneq_epi8_mask(expected, pairs)
        }
    }

    #[inline(always)]
    fn is_plain(self, bytes: &[u8; 2 * BLOCK]) -> bool {
        let half = |from: usize| {
            // SAFETY: `self` proves the features; the load is of 64 of the 128 bytes.
            let block = unsafe { _mm512_loadu_si512(bytes.as_ptr().add(from).cast()) };
            self.equal(block, b'"') | self.equal(block, b'\\') | self.odd(block)
        };
        half(0) | half(BLOCK) == 0
    }

    #[inline(always)]
    fn parity(self, mask: u64) -> u64 {
        // SAFETY: `self` proves the features.
        unsafe { _mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(mask as i64), _mm_set1_epi8(-1), 0)) as u64 }
    }

    #[inline(always)]
    fn pack(self, block: __m512i, mask: u64, from: u16, bytes: &mut [u8; BLOCK], places: &mut [u16; BLOCK]) {
        // SAFETY: `self` proves the features; the stores are of 64 bytes and of two times 32 places.
        unsafe {
            _mm512_storeu_si512(bytes.as_mut_ptr().cast(), _mm512_maskz_compress_epi8(mask, block));
            let index = _mm512_maskz_compress_epi8(mask, self.load(&INDEX));
            let base = _mm512_set1_epi16(from as i16);
            let place = |half| _mm512_add_epi16(base, _mm512_cvtepu8_epi16(half));
            _mm512_storeu_si512(places.as_mut_ptr().cast(), place(_mm512_castsi512_si256(index)));
            if mask.count_ones() > 32 {
                let rest = place(_mm512_extracti64x4_epi64(index, 1));
                _mm512_storeu_si512(places.as_mut_ptr().add(32).cast(), rest);
            }
        }
    }

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        // SAFETY: `self` proves the features.
        unsafe { run(self, job) }
    }

    /// In a separate function: a loop keeps its constants in the registers that only this set has if nothing else needs
    /// them.
    #[inline(always)]
    fn within<J: Job>(self, job: J) -> J::Output {
        // Compiled for no set, so that it is not inlined and no code moves across it.
        #[inline(never)]
        fn apart<J: Job>(isa: Avx512, job: J) -> J::Output {
            isa.run(job)
        }
        apart(self, job)
    }
}
