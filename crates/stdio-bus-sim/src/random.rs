//! A small pseudo-random generator that is the same in every run (splitmix64), or returns choices made beforehand.

use std::collections::VecDeque;
use std::ops::Range;

/// The source of every choice of a world.
#[derive(Clone)]
pub struct Random {
    state: u64,
    /// Choices to return before the generator begins: each takes as many bytes as its range needs.
    chosen: VecDeque<u8>,
}

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        // Otherwise the next seed would give the same numbers, shifted by one.
        let mut mixed = Self { state: seed, chosen: VecDeque::new() };
        Self { state: mixed.number(), chosen: VecDeque::new() }
    }

    /// These bytes as choices, then the sequence of a seed.
    pub fn chosen(bytes: &[u8]) -> Self {
        Self { chosen: bytes.iter().copied().collect(), ..Self::new(0) }
    }

    /// Number of choice bytes left.
    pub fn left(&self) -> usize {
        self.chosen.len()
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in a range that is not empty.
    pub fn range(&mut self, range: Range<usize>) -> usize {
        let choices = (range.end - range.start) as u64;
        let number = if self.chosen.is_empty() { self.number() } else { self.choice(choices - 1) };
        range.start + (number % choices) as usize
    }

    /// The choice of the next bytes among 0 to `most`; the first byte is the lowest.
    fn choice(&mut self, most: u64) -> u64 {
        let bytes = (8 - most.leading_zeros() as usize / 8).min(self.chosen.len());
        self.chosen.drain(..bytes).rev().fold(0, |number, byte| number << 8 | u64::from(byte))
    }

    /// True once in `times` on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.range(0..times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.range(0..choices.len())]
    }

    /// Shuffles them.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.range(0..at + 1));
        }
    }
}
