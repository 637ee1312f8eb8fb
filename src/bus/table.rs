//! Fixed-capacity tables. A table never grows beyond the limit it was made with, a key carries a generation so that
//! it never reaches a successor in the same slot, and iteration is in slot order, never in the order of a hash.

use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;

use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

/// Names one entry of a [`Table`] for as long as that entry lives.
pub struct Key<T> {
    index: u32,
    generation: u32,
    entry: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// The slot; below the table's capacity. Two live keys of one table never share it.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// A number that fits any key, to carry through a completion queue.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

impl<T> Eq for Key<T> {}

impl<T> std::fmt::Debug for Key<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.index, self.generation)
    }
}

struct Entry<T> {
    generation: u32,
    value: T,
}

/// A slab with a hard limit and generations.
pub struct Table<T> {
    slots: Slab<Entry<T>>,
    capacity: usize,
    next_generation: u32,
}

impl<T> Table<T> {
    /// An empty table for at most `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity <= u32::MAX as usize);
        Self { slots: Slab::new(), capacity, next_generation: 1 }
    }

    /// The key of the new entry, or the value back when the table is full.
    pub fn insert(&mut self, value: T) -> Result<Key<T>, T> {
        if self.is_full() {
            return Err(value);
        }
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1).max(1);
        let index = self.slots.insert(Entry { generation, value });
        Ok(Key { index: index as u32, generation, entry: PhantomData })
    }

    /// The entry, if it still lives.
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        self.slots.get(key.index()).filter(|entry| entry.generation == key.generation).map(|entry| &entry.value)
    }

    /// The entry, if it still lives.
    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let entry = self.slots.get_mut(key.index()).filter(|entry| entry.generation == key.generation);
        entry.map(|entry| &mut entry.value)
    }

    /// Takes the entry out.
    pub fn remove(&mut self, key: Key<T>) -> Option<T> {
        self.get(key)?;
        Some(self.slots.remove(key.index()).value)
    }

    /// Drops the entry where it is.
    pub fn forget(&mut self, key: Key<T>) {
        if self.get(key).is_some() {
            drop(self.slots.remove(key.index()));
        }
    }

    /// The key of the entry in a slot that an index of this table named.
    fn key_at(&self, index: u32) -> Key<T> {
        Key { index, generation: self.slots[index as usize].generation, entry: PhantomData }
    }

    /// Entries in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.slots.iter().map(|(index, entry)| {
            (Key { index: index as u32, generation: entry.generation, entry: PhantomData }, &entry.value)
        })
    }

    /// Keys in slot order, detached from the table so that it may change meanwhile.
    pub fn keys(&self) -> Vec<Key<T>> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether an insertion would be refused.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.capacity
    }
}

/// Finds entries of a [`Table`] by what they hold. The caller hashes and compares; the index keeps slots only.
pub struct Index {
    slots: HashTable<(u32, u32)>,
    hasher: DefaultHashBuilder,
}

/// The table looks at the highest and at the lowest bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Index {
    /// An index with room for `capacity` entries, so that it never rehashes.
    pub fn new(capacity: usize) -> Self {
        Self { slots: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// The hash of a name under an owner. It has half a word, so that more of the index stays in the cache.
    pub fn hash(&self, owner: u64, tag: u8, name: &[u8]) -> u32 {
        // Who compares tells apart what the hash does not; one number for owner and tag is half a hash saved.
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(owner.rotate_left(8) ^ u64::from(tag));
        hasher.write(name);
        hasher.finish() as u32
    }

    /// The entry with this hash for which `same` holds.
    pub fn find<T>(&self, table: &Table<T>, hash: u32, same: impl Fn(&T) -> bool) -> Option<Key<T>> {
        let matches = |(stored, index): &(u32, u32)| *stored == hash && same(&table.slots[*index as usize].value);
        self.slots.find(spread(hash), matches).map(|(_, index)| table.key_at(*index))
    }

    /// The oldest entry with this hash for which `same` holds, where there may be several.
    pub fn find_oldest<T>(&self, table: &Table<T>, hash: u32, same: impl Fn(&T) -> bool) -> Option<Key<T>> {
        let alike = self.slots.iter_hash(spread(hash)).filter(|(stored, _)| *stored == hash).map(|(_, index)| *index);
        let found = alike.filter(|index| same(&table.slots[*index as usize].value)).map(|index| table.key_at(index));
        found.min_by_key(|key| key.generation)
    }

    /// Adds an entry.
    pub fn insert<T>(&mut self, hash: u32, key: Key<T>) {
        self.slots.insert_unique(spread(hash), (hash, key.index), |(stored, _)| spread(*stored));
    }

    /// Takes an entry out; says whether it was there.
    pub fn remove<T>(&mut self, hash: u32, key: Key<T>) -> bool {
        match self.slots.find_entry(spread(hash), |(_, index)| *index == key.index) {
            Ok(found) => {
                found.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// The entries of a table that belong to one owner. A member knows its place, so leaving costs the same however many
/// there are; the order changes when one leaves.
pub struct Members<T> {
    keys: Vec<Key<T>>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self { keys: Vec::new() }
    }
}

impl<T> Members<T> {
    /// Adds a member and gives its place, which the member must remember.
    pub fn join(&mut self, key: Key<T>) -> u32 {
        self.keys.push(key);
        (self.keys.len() - 1) as u32
    }

    /// Removes the member at `place`. If another one moved there, its key is returned and must learn its new place.
    pub fn leave(&mut self, place: u32) -> Option<Key<T>> {
        self.keys.swap_remove(place as usize);
        self.keys.get(place as usize).copied()
    }

    /// Some member.
    pub fn first(&self) -> Option<Key<T>> {
        self.keys.first().copied()
    }

    /// The member that joined last, unless others have left since.
    pub fn last(&self) -> Option<Key<T>> {
        self.keys.last().copied()
    }

    /// All members.
    pub fn iter(&self) -> impl Iterator<Item = Key<T>> {
        self.keys.iter().copied()
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_and_gives_the_value_back() {
        let mut table = Table::new(2);
        let first = table.insert("a").unwrap();
        table.insert("b").unwrap();
        assert_eq!(table.insert("c"), Err("c"));
        assert_eq!(table.remove(first), Some("a"));
        assert!(table.insert("c").is_ok());
    }

    #[test]
    fn a_key_never_reaches_a_successor_in_its_slot() {
        let mut table = Table::new(1);
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
        let mut table = Table::new(8);
        let mut index = Index::new(8);
        let keys: Vec<_> = (0..8u8).map(|value| table.insert(value).unwrap()).collect();
        for (value, key) in keys.iter().enumerate() {
            index.insert(index.hash(7, 0, &[value as u8]), *key);
        }
        let hash = index.hash(7, 0, &[5]);
        assert_eq!(index.find(&table, hash, |value| *value == 5), Some(keys[5]));
        assert!(index.remove(hash, keys[5]));
        assert!(!index.remove(hash, keys[5]));
        assert_eq!(index.find(&table, hash, |value| *value == 5), None);
        assert_eq!(index.len(), 7);
    }

    #[test]
    fn the_member_that_moved_into_a_gap_is_named() {
        let mut table = Table::new(3);
        let keys: Vec<_> = (0..3).map(|value| table.insert(value).unwrap()).collect();
        let mut members = Members::default();
        assert_eq!(keys.iter().map(|key| members.join(*key)).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(members.leave(0), Some(keys[2]));
        assert_eq!(members.leave(1), None);
        assert_eq!(members.first(), Some(keys[2]));
        assert_eq!(members.len(), 1);
    }
}
