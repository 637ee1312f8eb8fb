//! From tokens to lines: checks the grammar, the scalars and the keys of each message and locates its fields. What it
//! cannot decide it leaves to the reference scanner; it never returns a line it is not sure of.

use super::grammar::{Grammar, Kinds};
use super::keys::Keys;
use super::scalar;
use super::shapes::Shapes;
use super::tokens::Tokens;
use crate::isa::{BLOCK, Isa};
use crate::member::Member;
use crate::meta::Meta;
use crate::string::string_length;
use crate::{BATCH, Line, MOST_DOUBTFUL, SkipValue, Span, Window};
use alloc::vec::Vec;

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All tokens were used.
    Empty,
    /// The batch is full; tokens are left.
    Full,
    /// The reference scanner has to decide the line that begins where the last one ended. Its tokens are consumed up to
    /// the newline, if the newline is among them.
    Doubt,
}

/// The work at hand: tokens to consume, lines to return.
pub(crate) struct Messages<'a> {
    pub(crate) window: Window<'a>,
    pub(crate) tokens: &'a mut Tokens,
    pub(crate) shapes: &'a mut Shapes,
    /// The line that the tokens continue.
    pub(crate) draft: &'a mut Draft,
    /// Where that line begins.
    pub(crate) line: &'a mut usize,
    /// The last token is a scalar that may go on after the bytes it was found in.
    pub(crate) ends_in_scalar: bool,
    pub(crate) lines: &'a mut Vec<Line>,
}

/// A line that is long or incomplete: what is known of its tokens so far. Positions count from the line's start.
#[derive(Clone, Copy)]
pub(crate) struct Draft {
    is_begun: bool,
    grammar: Grammar,
    /// The members seen, with the positions of their colons.
    keys: Keys,
    /// Where the last token begins.
    last: u32,
    /// The last token is a scalar that was incomplete.
    owes_scalar: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self { is_begun: false, grammar: Grammar::opened(), keys: Keys::default(), last: 0, owes_scalar: false }
    }
}

impl Messages<'_> {
    /// Reads lines until the tokens are used up, the batch is full or a line is doubtful.
    #[inline(always)]
    pub(crate) fn read<I: Isa>(mut self, isa: I) -> Stop {
        while self.tokens.used < self.tokens.count {
            let at = self.tokens.used;
            let count = self.count(isa, at);
            let is_whole = at + count < self.tokens.count;
            if !is_whole {
                self.tokens.used = self.tokens.count;
                return if self.go_on(isa, at, count, !self.ends_in_scalar) { Stop::Empty } else { Stop::Doubt };
            }
            if self.lines.len() >= BATCH {
                return Stop::Full;
            }
            let end = self.tokens.place(at + count);
            self.tokens.used = at + count + 1;
            let is_certain = if self.draft.is_begun || count > BLOCK {
                self.long(isa, at, count, end)
            } else {
                count == 0 || self.short(isa, at, count, end)
            };
            if !is_certain {
                return Stop::Doubt;
            }
            *self.line = end + 1;
        }
        if self.draft.is_begun && !self.go_on(isa, self.tokens.count, 0, !self.ends_in_scalar) {
            return Stop::Doubt;
        }
        Stop::Empty
    }

    /// Number of tokens before the next newline, or before the end.
    #[inline(always)]
    fn count<I: Isa>(&self, isa: I, from: usize) -> usize {
        let mut at = from;
        loop {
            let newlines = isa.equal(isa.load(self.tokens.kinds(at)), b'\n');
            if newlines != 0 {
                return at + newlines.trailing_zeros() as usize - from;
            }
            at += BLOCK;
            if at >= self.tokens.count {
                return self.tokens.count - from;
            }
        }
    }

    /// Returns a whole line of up to 64 tokens. `false` means doubt.
    #[inline(always)]
    fn short<I: Isa>(&mut self, isa: I, at: usize, count: usize, end: usize) -> bool {
        let places = self.tokens.places(at);
        let start = self.tokens.start;
        let chunk = self.window.without(start);
        let Some(shape) = self.shapes.find(isa, self.tokens, at, count) else { return false };
        if !shape.read_keys(chunk, places) {
            return false;
        }
        let mut scalars = shape.scalars;
        while scalars != 0 {
            if !scalar::is_valid(chunk, places[scalars.trailing_zeros() as usize % BLOCK] as usize) {
                shape.forget();
                return false;
            }
            scalars &= scalars - 1;
        }
        let value_after = |colon: usize| {
            let (first, next) = (places[colon + 1] as usize, places[colon + 2] as usize);
            let end = trimmed(chunk, next);
            MemberValue {
                first: chunk.byte(first),
                token: Span { start: (start + first) as u32, end: (start + end) as u32 },
            }
        };
        let value = |member| value_after(shape.keys.note(member) as usize % BLOCK);
        let meta = || {
            let mut colons = shape.meta;
            let members = core::iter::from_fn(|| {
                let colon = (colons != 0).then(|| colons.trailing_zeros() as usize % BLOCK)?;
                colons &= colons - 1;
                let place = |token: usize| (start + places[token % BLOCK] as usize) as u32;
                Some((Span { start: place(colon - 1), end: place(colon) }, colon))
            });
            Meta::of_members(self.window, members, |colon| value_after(colon).token)
        };
        push(self.lines, *self.line, end, &shape.keys, value, meta);
        true
    }

    /// Returns a line that is long or began in an earlier chunk, and takes the rest of it. `false` means doubt.
    #[inline(always)]
    fn long<I: Isa>(&mut self, isa: I, at: usize, count: usize, end: usize) -> bool {
        if !self.go_on(isa, at, count, true) || !self.draft.grammar.is_complete() {
            return false;
        }
        if end - *self.line > MOST_DOUBTFUL && has_long_meta(self.window, *self.line, &self.draft.keys, end) {
            // The reference scanner reads it in shares.
            return false;
        }
        let line = *self.line;
        let keys = self.draft.keys;
        *self.draft = Draft::default();
        let value = |member| value_at(self.window, line + keys.note(member) as usize + 1);
        let meta = || {
            let members = [Member::ParamsMeta, Member::ResultMeta].into_iter().filter(|member| keys.has(*member));
            let object = members.map(value).find(|value| value.first == b'{');
            object.map_or(Meta::default(), |object| Meta::of(self.window, object.token.start as usize))
        };
        push(self.lines, line, end, &keys, value, meta);
        true
    }

    /// Takes `count` tokens of a line. `is_scalar_whole` means that the last one, if it is a scalar, ends within the
    /// bytes read so far. `false` means doubt.
    #[inline(always)]
    fn go_on<I: Isa>(&mut self, isa: I, mut at: usize, mut count: usize, is_scalar_whole: bool) -> bool {
        let (tokens, window, line) = (&*self.tokens, self.window, *self.line);
        let mut draft = *self.draft;
        if draft.owes_scalar && (count > 0 || is_scalar_whole) {
            if !scalar::is_valid(window, line + draft.last as usize) {
                return false;
            }
            draft.owes_scalar = false;
        }
        if !draft.is_begun && count > 0 {
            if tokens.kind(at) != b'{' {
                return false;
            }
            draft.is_begun = true;
            at += 1;
            count -= 1;
        }
        while count > 0 {
            let step = count.min(BLOCK);
            let kinds = Kinds::of(isa, tokens.kinds(at), step);
            let Some(colons) = draft.grammar.step(isa, &kinds) else { return false };
            let mut both = colons.outer | colons.inner;
            while both != 0 {
                let colon = both.trailing_zeros() as usize;
                let key = if colon > 0 { tokens.place(at + colon - 1) } else { line + draft.last as usize };
                let note = (tokens.place(at + colon) - line) as u32;
                draft.keys.take(window, key, colons.inner >> colon & 1 != 0, note);
                both &= both - 1;
            }
            let mut scalars = kinds.scalars();
            if step == count && !is_scalar_whole {
                let last = 1 << (step - 1);
                draft.owes_scalar = scalars & last != 0;
                scalars &= !last;
            }
            while scalars != 0 {
                if !scalar::is_valid(window, tokens.place(at + scalars.trailing_zeros() as usize)) {
                    return false;
                }
                scalars &= scalars - 1;
            }
            at += step;
            count -= step;
            draft.last = (tokens.place(at - 1) - line) as u32;
        }
        *self.draft = draft;
        draft.keys.are_certain()
    }
}

/// The value of a member: its first byte, and the whole token, or any span if it is an array or an object.
struct MemberValue {
    first: u8,
    token: Span,
}

impl MemberValue {
    /// The token, if it is a string.
    #[inline(always)]
    fn string(&self) -> Span {
        if self.first == b'"' { self.token } else { Span::default() }
    }

    /// The token, if it is a string or a number.
    #[inline(always)]
    fn name(&self) -> Span {
        if matches!(self.first, b'"' | b'-' | b'0'..=b'9') { self.token } else { Span::default() }
    }
}

/// Appends the line from `start` to `end`; its fields come from the keys found and their values, and from `meta`, if
/// any.
#[inline(always)]
fn push(
    lines: &mut Vec<Line>,
    start: usize,
    end: usize,
    keys: &Keys,
    value: impl Fn(Member) -> MemberValue,
    meta: impl FnOnce() -> Meta,
) {
    const META: u16 = Member::ParamsMeta.bit() | Member::ResultMeta.bit();
    /// Members that most messages lack.
    const RARE: u16 = Member::Session.bit()
        | Member::Pool.bit()
        | Member::ParamsRequest.bit()
        | Member::ParamsId.bit()
        | Member::ResultSession.bit()
        | Member::ParamsToken.bit()
        | META
        | Member::ResultTask.bit()
        | Member::Error.bit();

    // Its fields are written in place: a line is too large to copy.
    lines.push(Line { span: Span { start: start as u32, end: end as u32 }, ..Line::default() });
    let Some(line) = lines.last_mut() else { return };
    if keys.has(Member::Id) {
        let id = value(Member::Id);
        line.id = id.name();
        line.flags = match id.first {
            b'n' => Line::ID_NULL,
            b't' | b'f' | b'[' | b'{' => Line::ID_INVALID,
            _ => 0,
        };
    }
    if keys.has(Member::Method) {
        line.method = value(Member::Method).string();
    }
    if keys.has(Member::ParamsSession) {
        line.params_session = value(Member::ParamsSession).string();
    }
    if keys.has(Member::Result) {
        line.flags |= Line::RESULT;
    }
    if keys.has_any(RARE) {
        if keys.has(Member::Error) {
            line.flags |= Line::ERROR;
        }
        if keys.has(Member::Session) {
            line.session = value(Member::Session).string();
        }
        if keys.has(Member::Pool) {
            line.flags |= Line::POOL;
            line.pool = value(Member::Pool).string();
        }
        if keys.has(Member::ResultTask) {
            line.flags |= Line::TASK;
        }
        if keys.has(Member::ResultSession) {
            line.result_session = value(Member::ResultSession).string();
        }
        if keys.has(Member::ParamsRequest) {
            line.request_id = value(Member::ParamsRequest).name();
        }
        if keys.has(Member::ParamsId) {
            line.params_id = value(Member::ParamsId).name();
        }
        if keys.has(Member::ParamsToken) {
            line.token = value(Member::ParamsToken).name();
        }
        if keys.has_any(META) {
            line.meta = meta();
        }
    }
}

/// Whether a line has a `_meta` that is too long to be read at once.
#[cold]
#[inline(never)]
fn has_long_meta(window: Window<'_>, line: usize, keys: &Keys, end: usize) -> bool {
    let members = [Member::ParamsMeta, Member::ResultMeta].into_iter().filter(|member| keys.has(*member));
    let mut objects =
        members.map(|member| value_at(window, line + keys.note(member) as usize + 1).token.start as usize);
    objects.any(|start| {
        let data = &window.data()[start..end];
        data.len() > MOST_DOUBTFUL && SkipValue::default().read(&data[..MOST_DOUBTFUL]).is_none()
    })
}

/// Where the last token before `next` ends, without trailing white space.
#[inline(always)]
fn trimmed(window: Window<'_>, next: usize) -> usize {
    let mut end = next;
    while is_white(window.byte(end - 1)) {
        end -= 1;
    }
    end
}

#[inline(always)]
fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// The value, known to be valid, that begins at `at` or after white space there.
fn value_at(window: Window<'_>, mut at: usize) -> MemberValue {
    while is_white(window.byte(at)) {
        at += 1;
    }
    let rest = &window.data()[at..];
    let length = match rest[0] {
        b'"' => string_length(rest),
        b'[' | b'{' => 1,
        _ => {
            rest.iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b']' | b'}')).unwrap_or(0)
        }
    };
    MemberValue { first: rest[0], token: Span { start: at as u32, end: (at + length) as u32 } }
}
