//! Recognises routing keys by their first bytes without a branch. It never decodes an escape: a key that could be a
//! routing key in another spelling is left to the reference scanner.

use super::tokens::PLACES;
use crate::Window;
use crate::member::Member;

/// The routing keys, wherever they count.
const NAMES: [&[u8]; 11] = [
    b"id",
    b"method",
    b"params",
    b"result",
    b"error",
    b"sessionId",
    b"pool",
    b"requestId",
    b"progressToken",
    b"_meta",
    b"taskId",
];

/// What a key must look like to match one name, its quotes included.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct KnownKey {
    /// Its first eight bytes, and which bits of them count.
    word: u64,
    mask: u64,
    /// Its last eight bytes, for a key longer than eight, and where they begin: at most at its ninth byte.
    tail: u64,
    tail_from: u64,
}

const EMPTY: KnownKey = KnownKey { word: u64::MAX, mask: 0, tail: 0, tail_from: 0 };

/// Each name at the index that the hash of its first four bytes gives; `u64::MAX` under no mask matches nothing.
static ENTRIES: [KnownKey; 16] = {
    let mut entries = [EMPTY; 16];
    let mut index = 0;
    while index < NAMES.len() {
        let name = NAMES[index];
        let length = name.len() + 2;
        let bytes = quoted(name);
        let word = bytes as u64;
        let place = hash(word);
        entries[place] = KnownKey {
            word,
            mask: if length < 8 { !(!0 << (8 * length)) } else { !0 },
            tail: if length > 8 { (bytes >> (8 * (length - 8))) as u64 } else { 0 },
            tail_from: if length > 8 { length as u64 - 8 } else { 0 },
        };
        index += 1;
    }
    entries
};

/// The member that the name at each index stands for, at top level and inside the value of each member that has named
/// members.
static MEMBERS: [[Member; 16]; 32] = {
    let mut members = [[Member::Other; 16]; 32];
    let mut index = 0;
    while index < NAMES.len() {
        let name = NAMES[index];
        let place = hash(quoted(name) as u64);
        members[TOP][place] = Member::of_message(name);
        members[Member::Params as usize][place] = Member::Params.inside(name);
        members[Member::Result as usize][place] = Member::Result.inside(name);
        index += 1;
    }
    members
};

/// The row of [`MEMBERS`] for the message itself: a number that no member has.
const TOP: usize = 16;

const _: () = assert!((Member::LAST as usize) < TOP, "each member needs a row, a note and a bit of its own");

/// Keys differ in their first four bytes, quote included, so a product of those distinguishes them.
const fn hash(word: u64) -> usize {
    place(word as u32, MULTIPLIER)
}

const fn place(start: u32, multiplier: u32) -> usize {
    (start.wrapping_mul(multiplier) >> 28) as usize
}

/// The first odd number from here on that gives each name its own index.
const MULTIPLIER: u32 = {
    let mut multiplier = 0x9E37_79B9;
    'search: loop {
        let mut taken = 0_u16;
        let mut index = 0;
        while index < NAMES.len() {
            let bit = 1 << place(quoted(NAMES[index]) as u32, multiplier);
            if taken & bit != 0 {
                multiplier += 2;
                continue 'search;
            }
            taken |= bit;
            index += 1;
        }
        break multiplier;
    }
};

/// A name as a quoted key, its first byte lowest.
const fn quoted(name: &[u8]) -> u128 {
    let mut key = [0; 16];
    key[0] = b'"';
    let mut at = 0;
    while at < name.len() {
        key[at + 1] = name[at];
        at += 1;
    }
    key[name.len() + 1] = b'"';
    u128::from_le_bytes(key)
}

/// The members of one message that routing needs, found key by key.
#[derive(Clone, Copy, Default)]
pub(crate) struct Keys {
    /// The position of each member: what the scanner noted for it.
    notes: [u32; 16],
    /// The members seen, and those seen twice.
    seen: u16,
    twice: u16,
    /// The member of the message whose value is being read.
    top: u8,
    /// Some key may be a routing key in another spelling.
    is_doubtful: bool,
}

impl Keys {
    /// No key yet.
    pub(crate) const NONE: Self = Self { notes: [0; 16], seen: 0, twice: 0, top: 0, is_doubtful: false };

    /// Takes the key that begins at `at`; `is_inner` means that it is one level below the message itself.
    #[inline(always)]
    pub(crate) fn take(&mut self, window: Window<'_>, at: usize, is_inner: bool, note: u32) {
        let word = window.word(at);
        let place = hash(word);
        let entry = &ENTRIES[place];
        let tail = window.word(at + entry.tail_from as usize);
        let begins = word & entry.mask == entry.word;
        let is_name = begins & (entry.tail_from == 0 || tail == entry.tail);
        // A key that is no name in its first eight bytes can be one in another spelling only if one of them is a
        // backslash; one that begins like a long name may continue with one.
        if !is_name & (begins | (marks(word, b'\\') != 0)) {
            self.is_doubtful |= is_escaped(window, at);
        }
        let row = if is_inner { self.top as usize } else { TOP };
        let member = if is_name { MEMBERS[row & 31][place] } else { Member::Other };
        self.top = if is_inner { self.top } else { member as u8 };
        self.notes[member as usize & 15] = note;
        self.twice |= self.seen & member.bit();
        self.seen |= member.bit();
    }

    /// Whether the keys taken determine the fields. If not, the reference scanner decides.
    #[inline(always)]
    pub(crate) fn are_certain(&self) -> bool {
        !self.is_doubtful && self.twice & !Member::Other.bit() == 0
    }

    #[inline(always)]
    pub(crate) fn has(&self, member: Member) -> bool {
        self.seen & member.bit() != 0
    }

    /// Whether any of these members was seen.
    #[inline(always)]
    pub(crate) fn has_any(&self, members: u16) -> bool {
        self.seen & members != 0
    }

    /// What was noted when this member was taken.
    #[inline(always)]
    pub(crate) fn note(&self, member: Member) -> u32 {
        self.notes[member as usize]
    }
}

/// Bytes of a key: a key with the same ones is the same member, or equally none.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    word: u64,
    /// The number of the key's token in its message.
    token: u8,
    /// Their offset in the key.
    from: u8,
    /// How many of the word's upper bits do not count.
    unused: u8,
}

impl Sample {
    /// Eight bytes that every key has.
    pub(crate) const NONE: Self = Self { word: 0, token: 0, from: 0, unused: 0 };

    /// The samples of the key that begins at `at` and is token number `token`: its first eight bytes, fewer if it is
    /// shorter, and also the last eight of a long name if it begins like one.
    pub(crate) fn of(window: Window<'_>, at: usize, token: u8) -> impl Iterator<Item = Self> {
        let word = window.word(at);
        let from = ENTRIES[hash(word)].tail_from;
        let tail = window.word(at + from as usize);
        // The quote that begins the key is skipped.
        let (end, tail_end) = (marks(word | 0xFF, b'"'), marks(tail, b'"'));
        // What follows the key does not count.
        let unused = |end: u64| if end == 0 { 0 } else { 63 - end.trailing_zeros() as u8 };
        let first = Self { word, token, from: 0, unused: unused(end) };
        let second = Self { word: tail, token, from: from as u8, unused: unused(tail_end) };
        [first].into_iter().chain((from > 0 && end == 0).then_some(second))
    }

    /// Not 0 if the key's bytes differ in the message whose tokens are at `places` in the chunk.
    #[inline(always)]
    pub(crate) fn differs(&self, chunk: Window<'_>, places: &[u16; PLACES]) -> u64 {
        let at = places[self.token as usize] as usize + self.from as usize;
        (chunk.word(at) ^ self.word) << (self.unused & 63)
    }
}

/// The upper bit of each byte that has this value. A byte after the first such one may be marked too.
#[inline(always)]
fn marks(word: u64, byte: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let bytes = word ^ (ONES * byte as u64);
    bytes.wrapping_sub(ONES) & !bytes & ONES << 7
}

/// Whether the key that begins at `at` has an escape early enough to be a routing key.
#[cold]
#[inline(never)]
fn is_escaped(window: Window<'_>, at: usize) -> bool {
    // The first escape of a key of thirteen letters is one of its first thirteen bytes; the string was found valid, so
    // the pad is never mistaken for a key.
    let key = window.array::<13>(at + 1);
    key.iter().find(|&&byte| byte == b'"' || byte == b'\\') == Some(&b'\\')
}
