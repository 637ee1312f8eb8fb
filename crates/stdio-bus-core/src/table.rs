//! Fixed-capacity tables. A table never grows beyond its initial limit, a key carries a generation so that it never
//! reaches a successor in the same slot, and iteration is in slot order, never in the order of a hash.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash, Hasher};
use core::num::NonZeroU64;

use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

/// Names one entry of a [`Table`] for its lifetime: its slot, and a number that is incremented with each entry of the
/// table. At a million entries a second that number lasts for four years. Keys of different kinds have different types;
/// they are in slot order.
///
/// The highest bit is left free for [`Peer`](super::peer::Peer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<const KIND: char>(NonZeroU64);

/// Bits of a key that name the slot, above those that number the entry.
const INDEX_BITS: u32 = 16;
/// Bits that number the entry.
const GENERATION_BITS: u32 = 47;

impl<const KIND: char> Key<KIND> {
    fn new(index: usize, generation: u64) -> Self {
        let bits = (index as u64) << GENERATION_BITS | generation;
        Self(NonZeroU64::new(bits).expect("generations begin with 1"))
    }

    /// The slot; below the table's capacity. Two live keys of one table never share it.
    pub fn index(self) -> usize {
        (self.0.get() >> GENERATION_BITS) as usize
    }

    /// Increases from entry to entry of one table.
    pub fn serial(self) -> u64 {
        self.0.get() & ((1 << GENERATION_BITS) - 1)
    }

    /// The key as a number, in 63 bits.
    pub(super) fn to_bits(self) -> NonZeroU64 {
        self.0
    }

    /// The key for a number from [`Key::to_bits`].
    pub(super) fn of_bits(bits: NonZeroU64) -> Self {
        Self(bits)
    }
}

impl<const KIND: char> core::fmt::Debug for Key<KIND> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{}.{}", self.index(), self.serial())
    }
}

struct TableRow<T, const KIND: char> {
    key: Key<KIND>,
    value: T,
}

/// A slab with a hard limit and generations.
pub(super) struct Table<T, const KIND: char> {
    slots: Slab<TableRow<T, KIND>>,
    capacity: usize,
    next_generation: u64,
}

impl<T, const KIND: char> Table<T, KIND> {
    /// An empty table for at most `capacity` entries.
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity <= 1 << INDEX_BITS);
        Self { slots: Slab::new(), capacity, next_generation: 1 }
    }

    /// Maximum number of entries.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds an entry and returns its key; none if the table is full, and then the value is dropped.
    pub(super) fn insert(&mut self, value: T) -> Option<Key<KIND>> {
        if self.is_full() {
            return None;
        }
        assert!(self.next_generation < 1 << GENERATION_BITS, "a key is never given twice");
        let slot = self.slots.vacant_entry();
        let key = Key::new(slot.key(), self.next_generation);
        self.next_generation += 1;
        slot.insert(TableRow { key, value });
        Some(key)
    }

    /// The entry, if it is still alive.
    pub(super) fn get(&self, key: Key<KIND>) -> Option<&T> {
        self.slots.get(key.index()).filter(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The entry, if it is still alive.
    pub(super) fn get_mut(&mut self, key: Key<KIND>) -> Option<&mut T> {
        self.slots.get_mut(key.index()).filter(|entry| entry.key == key).map(|entry| &mut entry.value)
    }

    /// Removes and returns the entry.
    pub(super) fn remove(&mut self, key: Key<KIND>) -> Option<T> {
        self.get(key)?;
        Some(self.slots.remove(key.index()).value)
    }

    /// The entry in a slot, if there is one: for callers that read a table in pieces.
    pub(super) fn at(&self, slot: usize) -> Option<(Key<KIND>, &T)> {
        self.slots.get(slot).map(|entry| (entry.key, &entry.value))
    }

    /// From this slot on there are no entries.
    pub(super) fn slots(&self) -> usize {
        self.slots.capacity().min(self.capacity)
    }

    /// The entry in a slot that an index of this table, or another entry, refers to.
    pub(super) fn in_slot(&self, slot: usize) -> (Key<KIND>, &T) {
        let entry = &self.slots[slot];
        (entry.key, &entry.value)
    }

    /// The entry in a slot, if there is one.
    pub(super) fn in_slot_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot).map(|entry| &mut entry.value)
    }

    /// Entries in slot order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key<KIND>, &T)> {
        self.slots.iter().map(|(_, entry)| (entry.key, &entry.value))
    }

    /// The values in slot order, mutable.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().map(|(_, entry)| &mut entry.value)
    }

    /// Keys in slot order, detached from the table so that it may change meanwhile.
    pub(super) fn keys(&self) -> Vec<Key<KIND>> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether an insertion would be refused.
    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= self.capacity
    }
}

/// Finds entries of a [`Table`] by content. The caller hashes and compares; the index keeps only slots.
pub(super) struct Index {
    slots: HashTable<(u32, u32)>,
    hasher: DefaultHashBuilder,
}

/// Keyed 64-bit fingerprints of texts, and of pairs of numbers. They differ in each table, so that no peer can find a
/// collision.
pub(super) struct Fingerprints {
    hasher: DefaultHashBuilder,
    seeds: [u64; 2],
}

impl Default for Fingerprints {
    fn default() -> Self {
        let hasher = DefaultHashBuilder::default();
        Self { seeds: [hasher.hash_one(1_u8), hasher.hash_one(2_u8)], hasher }
    }
}

impl Fingerprints {
    /// The fingerprint of a text of some kind.
    pub(super) fn of(&self, kind: u8, text: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u8(kind);
        hasher.write(text);
        hasher.finish()
    }

    /// The fingerprint of two numbers.
    pub(super) fn mix(&self, one: u64, other: u64) -> u64 {
        let product = u128::from(one ^ self.seeds[0]) * u128::from(other ^ self.seeds[1]);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Spreads a hash over 64 bits, since the hash table uses its highest and its lowest bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Index {
    /// An index with room for `capacity` entries, so that it never rehashes.
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// The hash of a name under an owner. It has half a word, so that more of the index stays in the cache.
    pub(super) fn hash(&self, owner: impl Hash, name: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        owner.hash(&mut hasher);
        hasher.write(name);
        hasher.finish() as u32
    }

    /// The entries with this hash.
    pub(super) fn alike<'a, T, const KIND: char>(
        &self,
        table: &'a Table<T, KIND>,
        hash: u32,
    ) -> impl Iterator<Item = (Key<KIND>, &'a T)> {
        let alike = self.slots.iter_hash(spread(hash)).filter(move |(stored, _)| *stored == hash);
        alike.map(|(_, index)| table.in_slot(*index as usize))
    }

    /// Adds an entry.
    pub(super) fn insert<const KIND: char>(&mut self, hash: u32, key: Key<KIND>) {
        self.slots.insert_unique(spread(hash), (hash, key.index() as u32), |(stored, _)| spread(*stored));
    }

    /// Removes an entry.
    pub(super) fn remove<const KIND: char>(&mut self, hash: u32, key: Key<KIND>) {
        if let Ok(found) = self.slots.find_entry(spread(hash), |entry| *entry == (hash, key.index() as u32)) {
            found.remove();
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses() {
        let mut table = Table::<_, '?'>::new(2);
        let first = table.insert("a").unwrap();
        table.insert("b").unwrap();
        assert_eq!(table.insert("c"), None);
        assert_eq!(table.remove(first), Some("a"));
        assert!(table.insert("c").is_some());
    }

    #[test]
    fn a_key_never_reaches_a_successor_in_its_slot() {
        let mut table = Table::<_, '?'>::new(1);
        let old = table.insert(1).unwrap();
        table.remove(old);
        let new = table.insert(2).unwrap();
        assert_eq!(old.index(), new.index());
        assert_eq!(table.get(old), None);
        assert_eq!(table.remove(old), None);
        assert_eq!(table.get(new), Some(&2));
    }

    #[test]
    fn an_index_finds_by_content_and_forgets_what_was_removed() {
        let mut table = Table::<_, '?'>::new(8);
        let mut index = Index::new(8);
        let keys: Vec<_> = (0..8u8).map(|value| table.insert(value).unwrap()).collect();
        for (value, key) in keys.iter().enumerate() {
            index.insert(index.hash(7, &[value as u8]), *key);
        }
        let hash = index.hash(7, &[5]);
        assert_eq!(index.alike(&table, hash).find(|(_, value)| **value == 5), Some((keys[5], &5)));
        index.remove(hash, keys[5]);
        assert_eq!(index.alike(&table, hash).next(), None);
        assert_eq!(index.len(), 7);
    }
}
