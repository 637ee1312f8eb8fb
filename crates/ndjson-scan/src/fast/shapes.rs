//! What is known of short messages that look alike: their grammar, which depends on the kinds of their tokens alone,
//! and the routing keys of the last one that looked like this.
//!
//! Messages come in few shapes, so for most of them the grammar need not be worked out, and comparing a few bytes
//! tells that the keys are the same again. It is a cache: no answer depends on what it holds, since a shape is found
//! by comparing all kinds, and keys are taken as known only after comparing all that decides what they are.

use super::grammar::{Colons, Grammar, Kinds};
use super::keys::{Keys, Sample};
use super::tokens::Tokens;
use crate::Window;
use crate::isa::{BLOCK, Isa};
use alloc::boxed::Box;

/// Number of shapes that are kept.
const PLACES: usize = 256;

/// Most samples that are kept of a shape's keys; a message with more is read key by key.
const SAMPLES: usize = 14;

/// All messages of up to 64 tokens with the same kinds.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// How many tokens; 0 in a place that is not taken.
    count: usize,
    /// Where scalars stand.
    pub(crate) scalars: u64,
    colons: Colons,
    /// The members of the last message of this shape; noted are the numbers of the colons.
    pub(crate) keys: Keys,
    /// What the keys of a message must look like to be the same, and the numbers of their tokens.
    samples: [Sample; SAMPLES],
    sampled: [u8; SAMPLES],
    /// How many samples there are; more than fit if `keys` are not to be relied on.
    sample_count: usize,
}

const EMPTY: Shape = Shape {
    count: 0,
    scalars: 0,
    colons: Colons { outer: 0, inner: 0 },
    keys: Keys::NONE,
    samples: [Sample::NONE; SAMPLES],
    sampled: [0; SAMPLES],
    sample_count: SAMPLES + 1,
};

/// The shapes met last, one in each place.
pub(crate) struct Shapes {
    kinds: Box<[[u8; BLOCK]; PLACES]>,
    shapes: Box<[Shape; PLACES]>,
}

impl Default for Shapes {
    fn default() -> Self {
        Self { kinds: Box::new([[0; BLOCK]; PLACES]), shapes: Box::new([EMPTY; PLACES]) }
    }
}

impl Shapes {
    /// The shape of the message that consists of `count` tokens from number `at` on, at least one and at most 64;
    /// `None` if they are no message.
    #[inline(always)]
    pub(crate) fn find<I: Isa>(&mut self, isa: I, tokens: &Tokens, at: usize, count: usize) -> Option<&mut Shape> {
        let all = !0 >> (BLOCK - count);
        let kinds = tokens.kinds(at);
        let block = isa.load(kinds);
        // Two bits tell brackets, strings, scalars and separators apart.
        let (some, others) = (isa.bit(block, 4) & all, isa.bit(block, 1) & all);
        let mixed = some.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ others.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        let place = (mixed >> (64 - PLACES.ilog2())) as usize;
        let shape = &mut self.shapes[place];
        let is_known = shape.count == count && isa.differ(block, isa.load(&self.kinds[place])) & all == 0;
        if !is_known {
            *shape = learn(isa, kinds, count)?;
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
    let colons = Colons { outer: colons.outer << 1, inner: colons.inner << 1 };
    grammar.is_complete().then_some(Shape { count, scalars: kinds.scalars() << 1, colons, ..EMPTY })
}

impl Shape {
    /// Makes `keys` those of the message of this shape whose tokens begin at number `at`.
    #[inline(always)]
    pub(crate) fn read_keys(&mut self, window: Window<'_>, tokens: &Tokens, at: usize) {
        if !self.has_same_keys(window, tokens, at) {
            self.learn_keys(window, tokens, at);
        }
    }

    #[inline(always)]
    fn has_same_keys(&self, window: Window<'_>, tokens: &Tokens, at: usize) -> bool {
        if self.sample_count > SAMPLES {
            return false;
        }
        let mut differences = 0;
        for index in 0..self.sample_count {
            let key = tokens.place(at + self.sampled[index] as usize);
            differences |= self.samples[index].differs(window, key);
        }
        differences == 0
    }

    #[inline(never)]
    fn learn_keys(&mut self, window: Window<'_>, tokens: &Tokens, at: usize) {
        self.keys = Keys::NONE;
        self.sample_count = 0;
        let mut colons = self.colons.outer | self.colons.inner;
        while colons != 0 {
            let colon = colons.trailing_zeros() as usize;
            let key = tokens.place(at + colon - 1);
            self.keys.take(window, key, self.colons.inner >> colon & 1 != 0, colon as u32);
            for sample in Sample::of(window, key) {
                if self.sample_count < SAMPLES {
                    self.samples[self.sample_count] = sample;
                    self.sampled[self.sample_count] = colon as u8 - 1;
                }
                self.sample_count += 1;
            }
            colons &= colons - 1;
        }
        if !self.keys.are_certain() {
            self.sample_count = SAMPLES + 1;
        }
    }
}
