//! The grammar of JSON over tokens, 64 at a time: which token may follow which, whether brackets match, and which
//! colons belong to the message itself and to the objects in it. It looks at kinds only, never at bytes.
//!
//! The invariant: after an accepted step, the tokens so far can begin a valid line, and [`Grammar`] is their whole
//! state.

use crate::isa::{BLOCK, Isa};

/// No bracket is open. Below a leading one, the stack has a bit for each open bracket, the innermost lowest, that says
/// whether it is a brace.
const EMPTY: u64 = 1;

/// Only the brace that opens the message is open.
const OPEN: u64 = EMPTY << 1 | 1;

/// The first stacks with two, three and four brackets.
const DEPTH_2: u64 = EMPTY << 2;
const DEPTH_3: u64 = EMPTY << 3;
const DEPTH_4: u64 = EMPTY << 4;

/// Where the tokens of each kind are, among up to 64.
#[derive(Clone, Copy)]
pub(crate) struct Kinds {
    string: u64,
    scalar: u64,
    colon: u64,
    comma: u64,
    opening: u64,
    closing: u64,
    /// Braces, as opposed to square brackets.
    brace: u64,
    /// All tokens.
    all: u64,
    count: usize,
}

impl Kinds {
    /// The first `count` of these tokens.
    #[inline(always)]
    pub(crate) fn of<I: Isa>(isa: I, kinds: &[u8; BLOCK], count: usize) -> Self {
        let all = !0 >> (BLOCK - count);
        let block = isa.load(kinds);
        let are = |kind| isa.equal(block, kind) & all;
        let (left, right) = (are(b'{'), are(b'}'));
        let (opening, closing) = (left | are(b'['), right | are(b']'));
        let (string, colon, comma) = (are(b'"'), are(b':'), are(b','));
        let scalar = all & !(string | colon | comma | opening | closing);
        Self { string, scalar, colon, comma, opening, closing, brace: left | right, all, count }
    }

    /// Positions of scalars, or of bytes that are not a token at all: that shows when their bytes are read.
    #[inline(always)]
    pub(crate) fn scalars(&self) -> u64 {
        self.scalar
    }
}

/// The colons, among up to 64 tokens, after keys that may be routing keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct Colons {
    /// In the message itself.
    pub(crate) outer: u64,
    /// In an object that is a value of the message.
    pub(crate) inner: u64,
    /// One level below; there the bits may be anything.
    pub(crate) inmost: u64,
}

/// What the grammar must know of the tokens before the next one.
#[derive(Clone, Copy)]
pub(crate) struct Grammar {
    stack: u64,
    last: Last,
}

/// The last token, each 0 or 1.
#[derive(Clone, Copy, Default)]
struct Last {
    opening: u64,
    closing: u64,
    /// An opening bracket or a comma.
    separator: u64,
    colon: u64,
    /// The end of a value.
    end: u64,
    /// A string that is a key, if it stands in an object.
    key: u64,
}

impl Grammar {
    /// The grammar after the brace that opens a message.
    pub(crate) fn opened() -> Self {
        Self { stack: OPEN, last: Last { opening: 1, separator: 1, ..Last::default() } }
    }

    /// Whether a line may end here: the bracket that closed the message was the last token. No bracket can stand
    /// after it, so if the last token is one, nothing does.
    #[inline(always)]
    pub(crate) fn is_complete(&self) -> bool {
        self.stack == EMPTY && self.last.closing != 0
    }

    /// Takes up to 64 tokens. `None` means that they are wrong, or nested too deep to decide.
    #[inline(always)]
    pub(crate) fn step<I: Isa>(&mut self, isa: I, kinds: &Kinds) -> Option<Colons> {
        let Kinds { string, scalar, colon, comma, opening, closing, all, .. } = *kinds;
        let separator = opening | comma;
        let end = string | scalar | closing;
        let after_opening = opening << 1 | self.last.opening;
        let after_separator = separator << 1 | self.last.separator;
        let after_colon = colon << 1 | self.last.colon;
        let after_end = end << 1 | self.last.end;
        let key = string & after_separator;
        let after_key = key << 1 | self.last.key;

        let mut wrong = (string | scalar | opening) & !(after_separator | after_colon);
        wrong |= comma & !after_end;
        wrong |= closing & !(after_end | after_opening);
        wrong |= colon & !after_key;

        // A bare value, or a string in a key's place without a colon after it, means an array.
        let in_array = (after_key & !colon | (scalar | opening) & after_separator) & all;
        let before = self.stack;
        let nesting = self.nest(isa, kinds)?;
        wrong |= colon & !nesting.objects | in_array & nesting.objects;
        if wrong != 0 {
            return None;
        }

        let last = kinds.count - 1;
        let at_last = |mask: u64| mask >> last & 1;
        self.last = Last {
            opening: at_last(opening),
            closing: at_last(closing),
            separator: at_last(separator),
            colon: at_last(colon),
            end: at_last(end),
            key: at_last(key),
        };
        Some(if nesting.shallowest < DEPTH_3 { levels(isa, kinds, before) } else { Colons::default() })
    }

    /// Follows the brackets, one by one. `None` if one does not match, comes after the message, or is deeper than the
    /// stack.
    #[inline(always)]
    fn nest<I: Isa>(&mut self, isa: I, kinds: &Kinds) -> Option<Nesting> {
        let mut stack = self.stack;
        let mut shallowest = stack;
        let (mut wrong, mut deepest) = (0, 0);
        // The brackets after which tokens are in the other kind of container than before.
        let mut turns = 0;
        let mut brackets = kinds.opening | kinds.closing;
        while brackets != 0 {
            let bracket = brackets & brackets.wrapping_neg();
            let is_brace = (kinds.brace & bracket != 0) as u64;
            let is_closing = kinds.closing & bracket != 0;
            let around = stack;
            // A bracket at depth 0 finds the stack empty; that is checked below.
            shallowest = shallowest.min(around);
            wrong |= is_closing as u64 & (around ^ is_brace);
            stack = if is_closing { around >> 1 } else { around << 1 | is_brace };
            deepest |= around;
            turns |= bracket & ((stack ^ around) & 1).wrapping_neg();
            brackets &= brackets - 1;
        }
        let objects = isa.parity(turns) << 1 ^ (self.stack & 1).wrapping_neg();
        self.stack = stack;
        let is_right = wrong & 1 == 0 && shallowest > EMPTY && deepest >> 63 == 0;
        is_right.then_some(Nesting { objects, shallowest: shallowest.min(stack) })
    }
}

/// The effect of the brackets among up to 64 tokens.
struct Nesting {
    /// The tokens inside objects. A bracket counts as inside what surrounds it, or what it closes.
    objects: u64,
    /// The smallest stack any token found.
    shallowest: u64,
}

/// The colons at the three outermost levels, if there is one at the first two. `stack` is that before these tokens.
#[inline(always)]
fn levels<I: Isa>(isa: I, kinds: &Kinds, mut stack: u64) -> Colons {
    // Whether the next token is less deep than 2, than 3 and than 4; and the brackets where that changes.
    let (outer, inner, inmost) = (stack < DEPTH_2, stack < DEPTH_3, stack < DEPTH_4);
    let (mut outer_turns, mut inner_turns, mut inmost_turns) = (0, 0, 0);
    let mut brackets = kinds.opening | kinds.closing;
    while brackets != 0 {
        let bracket = brackets & brackets.wrapping_neg();
        let around = stack;
        stack = if kinds.closing & bracket != 0 { around >> 1 } else { around << 1 };
        let turn = |limit: u64| bracket & (((around < limit) ^ (stack < limit)) as u64).wrapping_neg();
        outer_turns |= turn(DEPTH_2);
        inner_turns |= turn(DEPTH_3);
        inmost_turns |= turn(DEPTH_4);
        brackets &= brackets - 1;
    }
    let fill = |turns: u64, at_first: bool| isa.parity(turns) << 1 ^ (at_first as u64).wrapping_neg();
    let outer = kinds.colon & fill(outer_turns, outer);
    let inner = kinds.colon & fill(inner_turns, inner) & !outer;
    Colons { outer, inner, inmost: kinds.colon & fill(inmost_turns, inmost) & !(outer | inner) }
}
