//! What is known of short messages of the same shape: their grammar, which depends only on the kinds of their tokens,
//! and the routing keys of the last message of that shape.
//!
//! Messages come in few shapes, so for most of them the grammar need not be worked out, and comparing a few bytes shows
//! that the keys are the same again. It is a cache: no result depends on its content, since a shape is found by
//! comparing all kinds, and keys are taken as known only after comparing all that determines them.

use super::grammar::{Colons, Grammar, Kinds};
use super::keys::{Keys, Sample};
use super::tokens::{PLACES, Tokens};
use crate::Window;
use crate::isa::{BLOCK, Isa};
use crate::member::Member;
use crate::zeroed::{Zeroable, zeroed};
use alloc::boxed::Box;

/// Number of shapes that are kept.
const SHAPES: usize = 256;

/// Most samples that are kept of a shape's keys; a message with more is read key by key.
const SAMPLES: usize = 14;

/// All messages of up to 64 tokens with the same kinds.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Number of tokens; 0 in an unused entry.
    count: usize,
    /// Positions of strings and of scalars.
    strings: u64,
    pub(crate) scalars: u64,
    colons: Colons,
    /// The members of the last message of this shape, with the numbers of their colons.
    pub(crate) keys: Keys,
    /// The colons in the `_meta` objects, if any; those of `params` come first.
    pub(crate) meta: u64,
    /// What the keys of a message must look like to be the same.
    samples: [Sample; SAMPLES],
    /// Number of samples; more than fit if `keys` cannot be relied on.
    sample_count: usize,
}

const EMPTY: Shape = Shape {
    count: 0,
    strings: 0,
    scalars: 0,
    colons: Colons { outer: 0, inner: 0, inmost: 0 },
    keys: Keys::NONE,
    meta: 0,
    samples: [Sample::NONE; SAMPLES],
    sample_count: SAMPLES + 1,
};

// SAFETY: its fields are integers and one bool, for which zeros are valid. An entry of zeros is unused.
unsafe impl Zeroable for Shape {}

/// The most recent shape for each index.
pub(crate) struct Shapes {
    kinds: Box<[[u8; BLOCK]; SHAPES]>,
    shapes: Box<[Shape; SHAPES]>,
}

impl Default for Shapes {
    fn default() -> Self {
        Self { kinds: zeroed(), shapes: zeroed() }
    }
}

impl Shapes {
    /// The shape of the message of `count` tokens from number `at` on, at least one and at most 64; `None` if they are
    /// not a message.
    #[inline(always)]
    pub(crate) fn find<I: Isa>(&mut self, isa: I, tokens: &Tokens, at: usize, count: usize) -> Option<&mut Shape> {
        let all = !0 >> (BLOCK - count);
        let kinds = tokens.kinds(at);
        let block = isa.load(kinds);
        let strings = isa.equal(block, b'"') & all;
        let mixed = (strings ^ (count as u64) << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = (mixed >> (64 - SHAPES.ilog2())) as usize;
        let shape = &mut self.shapes[place];
        // Scalars begin with any of many bytes. If another kind is in the place of one, the strings differ, or it shows
        // when the scalars are read.
        let differences = isa.differ(block, isa.load(&self.kinds[place])) & !shape.scalars | strings ^ shape.strings;
        if shape.count != count || differences & all != 0 {
            *shape = Shape { strings, ..learn(isa, kinds, count)? };
            self.kinds[place] = *kinds;
        }
        Some(shape)
    }
}

/// Works out the grammar of a message.
#[inline(always)]
fn learn<I: Isa>(isa: I, kinds: &[u8; BLOCK], count: usize) -> Option<Shape> {
    if kinds[0] != b'{' || count == 1 {
        return None;
    }
    let mut rest = [0; BLOCK];
    rest[..count - 1].copy_from_slice(&kinds[1..count]);
    let mut grammar = Grammar::opened();
    let kinds = Kinds::of(isa, &rest, count - 1);
    let colons = grammar.step(isa, &kinds)?;
    let colons = Colons { outer: colons.outer << 1, inner: colons.inner << 1, inmost: colons.inmost << 1 };
    grammar.is_complete().then_some(Shape { count, scalars: kinds.scalars() << 1, colons, ..EMPTY })
}

impl Shape {
    /// Sets `keys` to those of the message of this shape whose tokens are at `places` in the chunk. Returns whether
    /// they determine the fields; if not, the reference scanner decides.
    #[inline(always)]
    pub(crate) fn read_keys(&mut self, chunk: Window<'_>, places: &[u16; PLACES]) -> bool {
        self.has_same_keys(chunk, places) || self.learn_keys(chunk, places)
    }

    /// Invalidates the entry, so that its next message is learnt: the last one had another shape, or was no message.
    #[inline(always)]
    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }

    #[inline(always)]
    fn has_same_keys(&self, chunk: Window<'_>, places: &[u16; PLACES]) -> bool {
        let Some(samples) = self.samples.get(..self.sample_count) else { return false };
        samples.iter().fold(0, |differences, sample| differences | sample.differs(chunk, places)) == 0
    }

    #[inline(never)]
    fn learn_keys(&mut self, chunk: Window<'_>, places: &[u16; PLACES]) -> bool {
        self.keys = Keys::NONE;
        self.sample_count = 0;
        let mut colons = self.colons.outer | self.colons.inner;
        while colons != 0 {
            let colon = colons.trailing_zeros() as usize;
            let key = places[colon - 1] as usize;
            self.keys.take(chunk, key, self.colons.inner >> colon & 1 != 0, colon as u32);
            for sample in Sample::of(chunk, key, colon as u8 - 1) {
                if let Some(place) = self.samples.get_mut(self.sample_count) {
                    *place = sample;
                }
                self.sample_count += 1;
            }
            colons &= colons - 1;
        }
        self.meta = self.colons_of_meta(chunk, places);
        if !self.keys.are_certain() {
            self.sample_count = SAMPLES + 1;
        }
        self.keys.are_certain()
    }

    fn colons_of_meta(&self, chunk: Window<'_>, places: &[u16; PLACES]) -> u64 {
        let members = [Member::ParamsMeta, Member::ResultMeta].into_iter().filter(|member| self.keys.has(*member));
        let mut colons = members.map(|member| self.keys.note(member) as usize);
        let Some(colon) = colons.find(|colon| chunk.byte(places[colon + 1] as usize) == b'{') else { return 0 };
        let after = !1 << colon;
        let next = (self.colons.outer | self.colons.inner) & after;
        self.colons.inmost & after & (next & next.wrapping_neg()).wrapping_sub(1)
    }
}
