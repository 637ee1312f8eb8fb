//! The names of requests (ids and progress tokens) that one peer was sent unchanged, and by whom. A name that one asker
//! has used is never passed on unchanged for another one while the answerer lives, not only while the request is
//! pending: whatever the answerer says late about the first request would reach the second asker.
//!
//! Askers count. So one that has used two numbers that are not far apart owns those between them and the next
//! [`AHEAD`] as well, and one that uses a string owns all strings that differ only in the digits at their end. Both are
//! bounded: what finds no room passes unchanged only for the first asker, which needs no entry for that, since nobody
//! else's does.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::cold::blank;
use crate::id::{Id, IdShape, MADE};
use crate::peer::PeerBits;
use crate::table::Fingerprints;

/// How many numbers an asker that counts owns beyond the last one, unless another one owns some of them; and how far apart
/// two numbers of one that counts are at most.
const AHEAD: u64 = 1 << 16;
/// Maximum number of ranges of one answerer.
const MOST_RANGES: usize = 1024;
/// Maximum number of strings of one answerer, without the digits at their end.
const MOST_STEMS: usize = 1024;
/// Maximum number of both of all answerers.
const MOST: usize = 16 * 1024;
/// Upper bound of the memory for all of them, in bytes: half of a table may be empty.
#[cfg(test)]
pub(crate) const LARGEST_NAMES: usize = MOST * 2 * size_of::<Range>();

/// The names that one answerer was sent unchanged, and who owns them.
pub(crate) struct SentNames {
    /// Who asked first.
    first: Option<PeerBits>,
    /// Numbers and their owners, in order and apart.
    ranges: Vec<Range>,
    /// The range that each asker used last, by its slot.
    last_used: Vec<u16>,
    /// The owners of strings and of negative numbers, by the hash of what is before the digits at their end.
    stems: BTreeMap<u64, PeerBits>,
    /// Number of names that were made for this answerer.
    made: u64,
}

blank!(SentNames, Self { first: None, ranges: Vec::new(), last_used: Vec::new(), stems: BTreeMap::new(), made: 0 });

/// Numbers of one owner.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
    owner: PeerBits,
}

/// What the names of all answerers share.
pub(super) struct Shared {
    /// How many more ranges and strings there may be.
    left: usize,
    fingerprints: Fingerprints,
}

impl Shared {
    /// An answerer has ended.
    pub(super) fn forget(&mut self, names: &SentNames) {
        self.left += names.len();
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self { left: MOST, fingerprints: Fingerprints::default() }
    }
}

impl SentNames {
    /// Whether `asker`, in this slot of its table, owns a number: a quick look that finds most of them.
    #[inline(always)]
    pub(crate) fn are_known(&self, asker: PeerBits, slot: usize, number: u64) -> bool {
        let range = self.last_used.get(slot).and_then(|last| self.ranges.get(usize::from(*last)));
        range.is_some_and(|range| range.owner == asker && range.first <= number && number <= range.last)
    }

    /// Whether `asker`, in this slot of its table, may use a name unchanged: it owns it, or does so from now on.
    #[cold]
    pub(super) fn claim(&mut self, asker: PeerBits, slot: usize, id: &Id, shared: &mut Shared) -> bool {
        self.first.get_or_insert(asker);
        match id.shape() {
            IdShape::Number(number) => self.claim_number(asker, slot, number, &mut shared.left),
            IdShape::Text(stem) => self.claim_stem(asker, shared.fingerprints.of(0, stem), &mut shared.left),
        }
    }

    fn claim_number(&mut self, asker: PeerBits, slot: usize, number: u64, left: &mut usize) -> bool {
        let above = self.ranges.partition_point(|range| range.first <= number);
        let below = above.checked_sub(1).map(|below| (below, self.ranges[below]));
        let at = match below {
            Some((below, range)) if range.last >= number => {
                if range.owner != asker {
                    return false;
                }
                below
            }
            Some((below, range)) if range.owner == asker && number - range.last <= AHEAD => {
                let limit = self.ranges.get(above).map_or(u64::MAX, |next| next.first - 1);
                self.ranges[below].last = limit.min(number.saturating_add(AHEAD));
                below
            }
            _ if self.ranges.len() < MOST_RANGES && *left > 0 => {
                *left -= 1;
                self.ranges.insert(above, Range { first: number, last: number, owner: asker });
                above
            }
            _ => return self.first == Some(asker),
        };
        if self.last_used.len() <= slot {
            self.last_used.resize(slot + 1, u16::MAX);
        }
        self.last_used[slot] = at as u16;
        true
    }

    fn claim_stem(&mut self, asker: PeerBits, stem: u64, left: &mut usize) -> bool {
        match self.stems.get(&stem) {
            Some(owner) => *owner == asker,
            None if self.stems.len() < MOST_STEMS && *left > 0 => {
                *left -= 1;
                self.stems.insert(stem, asker);
                true
            }
            None => self.first == Some(asker),
        }
    }

    /// The next name to be made for this answerer, and whether it may have been made before.
    pub(super) fn make(&mut self, is_string: bool) -> (Id, bool) {
        let count = self.made;
        self.made += 1;
        (Id::made(count % (MADE.end - MADE.start), is_string), count >= MADE.end - MADE.start)
    }

    /// The same for a number that was certainly not made before.
    pub(crate) fn make_new_number(&mut self) -> Option<u64> {
        let made = MADE.start + self.made;
        MADE.contains(&made).then(|| {
            self.made += 1;
            made
        })
    }

    /// Number of ranges and strings.
    fn len(&self) -> usize {
        self.ranges.len() + self.stems.len()
    }

    /// As if so many names had been made already.
    #[cfg(test)]
    pub(crate) fn have_made(&mut self, made: u64) {
        self.made = made;
    }
}
