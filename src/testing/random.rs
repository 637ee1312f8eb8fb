//! A small generator of numbers that look random and are the same in every run (splitmix64).

use std::ops::Range;

/// The source of every choice of a world.
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        // Without this the next seed would give the same numbers, but for the first one.
        let mut mixed = Self(seed);
        Self(mixed.number())
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in a range that is not empty.
    pub fn range(&mut self, range: Range<usize>) -> usize {
        range.start + (self.number() % (range.end - range.start) as u64) as usize
    }

    /// True once in `times` on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.range(0..times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.range(0..choices.len())]
    }

    /// Puts them in any order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.range(0..at + 1));
        }
    }
}
