//! A small pseudo-random generator that is the same in every run (splitmix64), or returns choices made beforehand; and
//! draws by name, so that one more of them changes none of the others.

use std::collections::{BTreeSet, VecDeque};
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

    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.range(0..at + 1));
        }
    }
}

/// Draws that do not depend on each other: each name has a sequence of its own, which follows from the seed and the name.
/// So a new setting or fault, with a new name, leaves all other draws of a seed as they are, and the effect of a change
/// is not hidden among those of other numbers.
///
/// Where bytes choose, they are taken in the order of the calls.
pub struct Draws<'a> {
    chosen: &'a mut Random,
    seed: u64,
    /// The sequence of the last name.
    current: Random,
    /// The hashes of the names so far.
    taken: BTreeSet<u64>,
}

impl<'a> Draws<'a> {
    /// Takes one number of `random`, unless bytes choose there.
    pub fn new(random: &'a mut Random) -> Self {
        let seed = if random.left() == 0 { random.number() } else { 0 };
        Self::of_seed(random, seed)
    }

    fn of_seed(chosen: &'a mut Random, seed: u64) -> Self {
        Self { chosen, seed, current: Random::new(seed), taken: BTreeSet::new() }
    }

    /// The sequence of this name.
    ///
    /// # Panics
    /// The name was used before: the same numbers would be drawn again.
    pub fn of(&mut self, name: &str) -> &mut Random {
        if self.chosen.left() > 0 {
            return self.chosen;
        }
        self.current = Random::new(self.seed_of(name));
        &mut self.current
    }

    /// The draws of one of several things, whose names may repeat those of the others.
    ///
    /// # Panics
    /// The name was used before.
    pub fn each(&mut self, name: &str, number: usize) -> Draws<'_> {
        let seed = self.seed_of(&format!("{name} {number}"));
        Draws::of_seed(self.chosen, seed)
    }

    fn seed_of(&mut self, name: &str) -> u64 {
        let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold);
        assert!(self.taken.insert(hash), "{name:?} is drawn twice, and would be the same number");
        self.seed ^ hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(random: &mut Random) -> [usize; 4] {
        std::array::from_fn(|_| random.range(0..1000))
    }

    #[test]
    fn the_draws_of_a_name_depend_on_no_other_name() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut draws = Draws::new(&mut random);
            let (first, second) = (some(draws.of("first")), some(draws.of("second")));
            let each: Vec<_> = (0..3).map(|number| some(draws.each("pool", number).of("first"))).collect();

            let mut random = Random::new(seed);
            let mut draws = Draws::new(&mut random);
            let again: Vec<_> = (0..3).rev().map(|number| some(draws.each("pool", number).of("first"))).collect();
            some(draws.of("a new one"));
            assert_eq!(some(draws.of("second")), second);
            assert_eq!(draws.of("first").range(0..1000), first[0]);
            assert!(again.iter().rev().eq(&each));
            // The names of different things are not those of one thing.
            let all: BTreeSet<_> = each.into_iter().chain([first, second]).collect();
            assert_eq!(all.len(), 5);
        }
    }

    #[test]
    #[should_panic(expected = "drawn twice")]
    fn a_name_is_drawn_once() {
        let mut random = Random::new(1);
        let mut draws = Draws::new(&mut random);
        draws.of("name");
        draws.of("name");
    }

    #[test]
    fn bytes_choose_in_the_order_of_the_calls_until_they_are_used_up() {
        let bytes = |names: [&str; 3]| {
            let mut random = Random::chosen(&[1, 2, 3]);
            let mut draws = Draws::new(&mut random);
            let drawn = names.map(|name| draws.each(name, 0).of(name).range(0..200));
            let rest = [draws.of("rest").range(0..200), draws.of("of it").range(0..200)];
            (drawn, rest)
        };
        let (drawn, rest) = bytes(["a", "b", "c"]);
        assert_eq!(drawn, [1, 2, 3]);
        assert_eq!(bytes(["c", "b", "d"]), (drawn, rest));
    }
}
