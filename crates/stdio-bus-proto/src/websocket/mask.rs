//! Masks and unmasks payloads (RFC 6455, section 5.3) at memory speed.
//!
//! Unmasking a text does two more things in the same pass. The bytes may move towards the front of their slice, so that
//! payloads become adjacent; and newlines become tabs, so that a message stays one line.
//!
//! Invariant: the result depends on the bytes and the mask alone, not on how they are cut, how far they move, or the
//! CPU's instruction sets.

/// Four bytes that a payload is XORed with repeatedly, starting at its next byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask(u32);

/// The replacement of newlines and carriage returns in a text. All three are white space between JSON tokens and
/// invalid in strings, so that replacing them does not change whether a text is valid.
const IN_PLACE_OF_NEWLINES: u8 = b'\t';

impl Mask {
    /// The mask of an unmasked payload.
    pub const NONE: Self = Self(0);

    /// The mask with these four bytes, at the start of the payload.
    pub const fn new(key: [u8; 4]) -> Self {
        Self(u32::from_le_bytes(key))
    }

    /// Its four bytes.
    pub(super) const fn bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }

    /// The mask at a position `bytes` further into the payload.
    #[inline]
    const fn after(self, bytes: usize) -> Self {
        Self(self.0.rotate_right(8 * (bytes as u32 % 4)))
    }

    /// Masks or unmasks bytes, and returns the mask for those that follow.
    #[inline]
    pub fn apply(self, bytes: &mut [u8]) -> Self {
        let length = bytes.len();
        run::<false>(bytes, 0, 0, length, self.0);
        self.after(length)
    }

    /// Unmasks the `length` bytes of a text at `from` and moves them to `to`, which is not after `from`, with newlines
    /// replaced. Returns the mask for the bytes that follow.
    ///
    /// # Panics
    /// If the source or the target is outside the slice, or the target is after the source.
    #[inline]
    pub(super) fn take_off_text(self, bytes: &mut [u8], from: usize, to: usize, length: usize) -> Self {
        run::<true>(bytes, from, to, length, self.0);
        self.after(length)
    }
}

/// Uses the best instruction set of this CPU.
#[inline]
fn run<const TEXT: bool>(bytes: &mut [u8], from: usize, to: usize, length: usize, mask: u32) {
    assert!(to <= from, "what was not read yet would be written over");
    let bytes = &mut bytes[..from + length];
    #[cfg(target_arch = "x86_64")]
    if length >= size_of::<avx2::Vector>() && is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { avx2::run::<TEXT>(bytes, from, to, mask) };
    }
    portable::<TEXT>(bytes, from, to, mask);
}

/// The same with plain integers.
#[inline]
fn portable<const TEXT: bool>(bytes: &mut [u8], from: usize, to: usize, mask: u32) {
    match bytes.len() - from {
        0 => {}
        1 => ends::<u8, TEXT>(bytes, from, to, mask),
        2..4 => ends::<u16, TEXT>(bytes, from, to, mask),
        4..8 => ends::<u32, TEXT>(bytes, from, to, mask),
        8..16 => ends::<u64, TEXT>(bytes, from, to, mask),
        16..32 => ends::<u128, TEXT>(bytes, from, to, mask),
        _ => many::<u128, TEXT>(bytes, from, to, mask),
    }
}

/// Bytes that are processed together.
trait Group: Copy {
    /// Loads the bytes at `at`, which are all inside the slice.
    fn load(bytes: &[u8], at: usize) -> Self;

    /// Stores them at `at`; all of the target is inside the slice.
    fn store(self, bytes: &mut [u8], at: usize);

    /// Applies the mask; in a text, replaces newlines.
    fn masked<const TEXT: bool>(self, mask: u32) -> Self;
}

/// For between one and two groups of bytes: the first group and the last one, which may overlap.
#[inline(always)]
fn ends<G: Group, const TEXT: bool>(bytes: &mut [u8], from: usize, to: usize, mask: u32) {
    let last = bytes.len() - from - size_of::<G>();
    let (head, tail) = (G::load(bytes, from), G::load(bytes, from + last));
    head.masked::<TEXT>(mask).store(bytes, to);
    tail.masked::<TEXT>(mask.rotate_right(8 * (last as u32 % 4))).store(bytes, to + last);
}

/// For one group of bytes or more.
///
/// It moves forward and loads before it stores, so that it never reads a byte that it wrote. The last bytes are loaded
/// before all others, and some are stored twice with the same value.
#[inline(always)]
fn many<G: Group, const TEXT: bool>(bytes: &mut [u8], from: usize, to: usize, mask: u32) {
    let step = size_of::<G>();
    let length = bytes.len() - from;
    let last = length - step;
    let tail = G::load(bytes, from + last);
    let mut at = 0;
    while at + 4 * step <= length {
        let groups: [G; 4] = std::array::from_fn(|number| G::load(bytes, from + at + number * step));
        for (number, group) in groups.into_iter().enumerate() {
            group.masked::<TEXT>(mask).store(bytes, to + at + number * step);
        }
        at += 4 * step;
    }
    while at < last {
        G::load(bytes, from + at).masked::<TEXT>(mask).store(bytes, to + at);
        at += step;
    }
    tail.masked::<TEXT>(mask.rotate_right(8 * (last as u32 % 4))).store(bytes, to + last);
}

macro_rules! words {
    ($($word:ty),*) => {$(
        impl Group for $word {
            #[inline(always)]
            fn load(bytes: &[u8], at: usize) -> Self {
                Self::from_le_bytes(*bytes[at..].first_chunk().expect("they lie in the slice"))
            }

            #[inline(always)]
            fn store(self, bytes: &mut [u8], at: usize) {
                *bytes[at..].first_chunk_mut().expect("there is room") = self.to_le_bytes();
            }

            #[inline(always)]
            fn masked<const TEXT: bool>(self, mask: u32) -> Self {
                const fn all(byte: u8) -> $word {
                    <$word>::from_le_bytes([byte; size_of::<$word>()])
                }
                // The mask repeated, or as much of it as fits.
                let plain = self ^ (u128::from(mask) * 0x1_0000_0001_0000_0001_0000_0001) as $word;
                if !TEXT {
                    return plain;
                }
                // The high bit of each byte that differs from this one.
                let differs = |byte| {
                    let difference = plain ^ all(byte);
                    (((difference & all(0x7F)) + all(0x7F)) | difference) & all(0x80)
                };
                let ends_line = !(differs(b'\n') & differs(b'\r')) & all(0x80);
                let replaced = (ends_line >> 7).wrapping_mul(0xFF);
                plain & !replaced | all(IN_PLACE_OF_NEWLINES) & replaced
            }
        }
    )*};
}

words!(u8, u16, u32, u64, u128);

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Group, IN_PLACE_OF_NEWLINES, many};

    /// The XOR that each byte below 0x10 needs.
    const CHANGES: [u8; 16] = {
        let mut changes = [0; 16];
        changes[b'\n' as usize] = b'\n' ^ IN_PLACE_OF_NEWLINES;
        changes[b'\r' as usize] = b'\r' ^ IN_PLACE_OF_NEWLINES;
        changes
    };

    /// 32 bytes. Only the callees of `run` create it.
    #[derive(Clone, Copy)]
    pub(super) struct Vector(__m256i);

    /// Processes 32 bytes at a time; there must be at least 32.
    #[target_feature(enable = "avx2")]
    pub(super) fn run<const TEXT: bool>(bytes: &mut [u8], from: usize, to: usize, mask: u32) {
        many::<Vector, TEXT>(bytes, from, to, mask);
    }

    impl Group for Vector {
        #[inline(always)]
        fn load(bytes: &[u8], at: usize) -> Self {
            let bytes: &[u8; 32] = bytes[at..].first_chunk().expect("they lie in the slice");
            // SAFETY: only called by `run`, whose caller has checked for AVX2; the load is of 32 bytes.
            Self(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
        }

        #[inline(always)]
        fn store(self, bytes: &mut [u8], at: usize) {
            let bytes: &mut [u8; 32] = bytes[at..].first_chunk_mut().expect("there is room");
            // SAFETY: a vector exists, so there is AVX2; the store is of 32 bytes.
            unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), self.0) }
        }

        #[inline(always)]
        fn masked<const TEXT: bool>(self, mask: u32) -> Self {
            // SAFETY: a vector exists, so there is AVX2; the load is of 16 bytes.
            unsafe {
                let plain = _mm256_xor_si256(self.0, _mm256_set1_epi32(mask as i32));
                if !TEXT {
                    return Self(plain);
                }
                // A shuffle looks up the low half of a byte, and returns zero if the high bit is set, which adding 0x70
                // does for all bytes from 0x10 on.
                let places = _mm256_adds_epu8(plain, _mm256_set1_epi8(0x70));
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(CHANGES.as_ptr().cast()));
                Self(_mm256_xor_si256(plain, _mm256_shuffle_epi8(table, places)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The expected result, byte by byte.
    fn expected<const TEXT: bool>(bytes: &[u8], key: [u8; 4]) -> Vec<u8> {
        let plain = bytes.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key);
        plain.map(|byte| if TEXT && matches!(byte, b'\n' | b'\r') { b'\t' } else { byte }).collect()
    }

    /// Bytes that take all values, and many newlines, under `key`.
    fn sample(length: usize, key: [u8; 4]) -> Vec<u8> {
        let plain = (0..length).map(|at| match at % 7 {
            2 => b'\n',
            5 => b'\r',
            _ => (at * 31 % 256) as u8,
        });
        plain.zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
    }

    type Way = fn(&mut [u8], usize, usize, u32);

    /// All implementations for this CPU, with their minimum lengths.
    fn ways<const TEXT: bool>() -> Vec<(usize, Way)> {
        let mut ways: Vec<(usize, Way)> = vec![(0, portable::<TEXT>)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            ways.push((32, |bytes, from, to, mask| unsafe { avx2::run::<TEXT>(bytes, from, to, mask) }));
        }
        ways
    }

    fn check<const TEXT: bool>(length: usize, from: usize, to: usize, key: [u8; 4]) {
        let payload = sample(length, key);
        for (number, (least, way)) in ways::<TEXT>().into_iter().enumerate() {
            if length < least {
                continue;
            }
            let before: Vec<u8> = (0..from as u8).collect();
            let mut bytes = [&before, &payload[..]].concat();
            way(&mut bytes, from, to, Mask::new(key).0);
            let what = format!("way {number}, {length} bytes from {from} to {to}");
            assert_eq!(bytes[..to], before[..to], "{what}: what is before them");
            assert_eq!(bytes[to..][..length], expected::<TEXT>(&payload, key), "{what}");
        }
    }

    #[test]
    fn payloads_of_all_lengths_are_unmasked_wherever_they_move() {
        for length in (0..=140).chain([160, 255, 256, 257, 300, 1000]) {
            for (from, to) in [(0, 0), (1, 0), (4, 0), (6, 0), (8, 1), (14, 13), (15, 15), (31, 0), (40, 3), (200, 2)] {
                check::<true>(length, from, to, [0x37, 0xFA, 0x21, 0x3D]);
                check::<true>(length, from, to, [0; 4]);
                check::<false>(length, from, to, [0x37, 0xFA, 0x21, 0x3D]);
            }
        }
    }

    #[test]
    fn every_byte_but_newlines_comes_out_unchanged() {
        let all: Vec<u8> = (0..=255).collect();
        for key in [0, 0x0A, 0x0D, 0x20, 0x80, 0xFF] {
            for length in [256, 31, 15, 7, 3, 1] {
                for masked in all.chunks(length) {
                    let mut bytes = masked.to_vec();
                    Mask::new([key; 4]).take_off_text(&mut bytes, 0, 0, masked.len());
                    assert_eq!(bytes, expected::<true>(masked, [key; 4]), "{key:x}");
                }
            }
        }
    }

    #[test]
    fn masking_twice_changes_nothing() {
        let mask = Mask::new([1, 2, 3, 0xFF]);
        for length in 0..200 {
            let plain = sample(length, [0; 4]);
            let mut bytes = plain.clone();
            mask.apply(&mut bytes);
            assert!(length == 0 || bytes != plain);
            mask.apply(&mut bytes);
            assert_eq!(bytes, plain);
        }
    }

    #[test]
    #[should_panic(expected = "written over")]
    fn nothing_moves_backwards() {
        Mask::NONE.take_off_text(&mut [0; 8], 1, 2, 3);
    }

    proptest! {
        #[test]
        fn a_mask_continues_where_the_bytes_before_were_cut(
            payload in prop::collection::vec(any::<u8>(), 0..300),
            key in any::<[u8; 4]>(),
            cuts in prop::collection::vec(0_usize..300, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(payload.len())).collect();
            cuts.extend([0, payload.len()]);
            cuts.sort_unstable();
            let mut text = payload.clone();
            let mut plain = payload.clone();
            let (mut mask, mut other) = (Mask::new(key), Mask::new(key));
            for piece in cuts.windows(2) {
                mask = mask.take_off_text(&mut text, piece[0], piece[0], piece[1] - piece[0]);
                other = other.apply(&mut plain[piece[0]..piece[1]]);
                prop_assert_eq!(mask, other);
            }
            prop_assert_eq!(text, expected::<true>(&payload, key));
            prop_assert_eq!(plain, expected::<false>(&payload, key));
        }
    }
}
