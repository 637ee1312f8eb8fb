//! Fairness between sources: which connection or client is evicted when all places of a table are taken and one more is
//! asked for. It is one of the source that holds most, of what is in use as of what is idle (decision 23). This is the
//! rule for the slots of clients that come over HTTP, and for the connections of `http` listeners.

use core::cmp::Reverse;

use hashbrown::HashMap;

use super::peer::Source;

/// A source never exceeds its share if it holds no more than this part of a table.
const MODEST_PART: usize = 64;

/// What each source holds of a full table, and who asks for one place more.
pub struct Shares {
    counts: HashMap<Source, usize>,
    asker: Option<Source>,
    /// The number of places.
    pub capacity: usize,
    /// How many of them the asker's source and the largest one hold, the new one included.
    asked: usize,
    most: usize,
    /// The number that no source exceeds at the cost of another one.
    share: usize,
}

/// The order in which places are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionOrder {
    /// It is idle, and its source holds more than half of what the largest one holds.
    Idle,
    /// It is in use, and its source exceeds its share: the largest source is evicted from first.
    InUse(Reverse<usize>),
    /// It is idle, and its source holds little.
    IdleOfFew,
}

impl Shares {
    /// Of a table with this many places, which these sources hold; `asker` wants one more, if it is known.
    pub fn new(capacity: usize, held: impl Iterator<Item = (Source, usize)>, asker: Option<Source>) -> Self {
        let mut counts: HashMap<Source, usize> = HashMap::new();
        for (source, count) in held.chain(asker.map(|source| (source, 1))) {
            *counts.entry(source).or_default() += count;
        }
        let asked = asker.map_or(0, |source| counts[&source]);
        let most = counts.values().copied().max().unwrap_or(0);
        // Equal parts; but no source is cut off or refused for the sake of others that it hardly hinders.
        let share = capacity.div_ceil(counts.len().max(1)).min(capacity / 2).max(capacity / MODEST_PART).max(1);
        Self { counts, asker, capacity, asked, most, share }
    }

    /// When a place of this source is given up for the asker; none if it is not.
    pub fn turn(&self, source: Source, is_idle: bool) -> Option<EvictionOrder> {
        let (is_own, count) = (self.asker == Some(source), self.held_by(source));
        if is_idle {
            let gives_way = is_own || count >= self.asked || self.asked <= self.share;
            return gives_way.then_some(if count * 2 > self.most {
                EvictionOrder::Idle
            } else {
                EvictionOrder::IdleOfFew
            });
        }
        // If the asker held as many afterwards as the other one, nothing would be gained.
        (!is_own && count > self.asked && count > self.share).then_some(EvictionOrder::InUse(Reverse(count)))
    }

    /// Whether the asker exceeds its share: then its refusal is about it alone, since another source would get a place.
    pub fn is_asker_above_its_share(&self) -> bool {
        self.asked > self.share
    }

    /// How many places the asker has already.
    pub fn held_by_asker(&self) -> usize {
        self.asked.saturating_sub(1)
    }

    /// How many places a source holds.
    pub fn held_by(&self, source: Source) -> usize {
        self.counts.get(&source).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> Source {
        Source::User(number)
    }

    /// A full table of `capacity` places whose sources hold these, with one more asked for by the source `asker`.
    fn shares(capacity: usize, held: &[usize], asker: u32) -> Shares {
        assert_eq!(held.iter().sum::<usize>(), capacity);
        let held = held.iter().enumerate().map(|(number, count)| (source(number as u32), *count));
        Shares::new(capacity, held, Some(source(asker)))
    }

    #[test]
    fn the_largest_source_gives_up_what_it_uses_before_a_small_one_gives_up_what_is_idle() {
        let shares = shares(1024, &[1018, 6], 2);
        let (large, small) = (source(0), source(1));
        assert!(shares.turn(large, true) < shares.turn(large, false));
        assert!(shares.turn(large, false) < shares.turn(small, true), "its idle ones are the last resort");
        assert_eq!(shares.turn(small, false), None);
        assert!(!shares.is_asker_above_its_share());
    }

    #[test]
    fn of_about_equal_sources_what_is_idle_goes_before_what_is_in_use() {
        let shares = shares(1024, &[524, 500], 2);
        assert!(shares.turn(source(1), true) < shares.turn(source(0), false));
        let (first, second) = (shares.turn(source(0), false), shares.turn(source(1), false));
        assert!(first < second && second.is_some(), "{first:?} {second:?}");
    }

    #[test]
    fn a_source_above_its_share_gets_no_place_of_others_and_cuts_off_none_of_its_own_requests() {
        for (held, others) in [(&[1018, 6][..], 1), (&[1024], 0)] {
            let shares = shares(1024, held, 0);
            assert_eq!(shares.turn(source(0), false), None);
            assert_eq!(shares.turn(source(0), true), Some(EvictionOrder::Idle), "its own idle ones go");
            assert!((1..=others).all(|other| shares.turn(source(other), true).is_none()));
            assert!(shares.is_asker_above_its_share());
        }
    }

    #[test]
    fn sources_that_use_no_more_than_their_share_are_not_cut_off_and_the_refusal_is_about_nobody() {
        let shares = shares(1024, &[2; 512], 600);
        assert_eq!(shares.turn(source(0), false), None);
        assert!(shares.turn(source(0), true).is_some(), "what is idle is evicted");
        assert!(!shares.is_asker_above_its_share());
    }

    #[test]
    fn two_sources_share_a_table_in_halves() {
        let turn = |mine, other| shares(100, &[mine, other], 0).turn(source(1), false);
        assert!(turn(40, 60).is_some() && turn(48, 52).is_some());
        assert_eq!((turn(50, 50), turn(60, 40)), (None, None));
    }

    #[test]
    fn a_source_with_few_places_may_take_an_idle_one_of_a_source_with_fewer() {
        let mut held = vec![1; 1020];
        held[0] = 5;
        assert_eq!(shares(1024, &held, 0).turn(source(1), true), Some(EvictionOrder::IdleOfFew));
        assert!(shares(1024, &held, 0).turn(source(0), true) < shares(1024, &held, 0).turn(source(1), true));
    }
}
