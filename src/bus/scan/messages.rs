//! From tokens to lines: checks the grammar, the scalars and the keys of each message and tells where its fields are.
//! What it cannot decide it leaves to the reference scanner; it never gives a line of its own mind.

use super::grammar::{Grammar, Kinds};
use super::isa::{BLOCK, Isa};
use super::keys::Keys;
use super::member::Member;
use super::shapes::Shapes;
use super::tokens::{SCALAR, Tokens};
use super::{BATCH, Line, Span, Window, scalar};

/// Why no more lines are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// All tokens were used.
    Empty,
    /// The batch is full; tokens are left.
    Full,
    /// The reference scanner has to decide the line that begins where the last one ended. Its tokens up to the
    /// newline are used up, if the newline is among them.
    Doubt,
}

/// The work at hand: tokens to use, lines to give.
pub(super) struct Messages<'a> {
    pub(super) window: Window<'a>,
    pub(super) tokens: &'a mut Tokens,
    pub(super) shapes: &'a mut Shapes,
    /// The line that the tokens go on with.
    pub(super) draft: &'a mut Draft,
    /// Where that line begins.
    pub(super) line: &'a mut usize,
    /// The last token is a scalar that may go on after the bytes it was found in.
    pub(super) ends_in_scalar: bool,
    pub(super) lines: &'a mut Vec<Line>,
}

/// A line that is long, or whose end has not come: what is known of its tokens so far. Places are counted from the
/// line's start.
#[derive(Clone, Copy)]
pub(super) struct Draft {
    is_begun: bool,
    grammar: Grammar,
    /// The members seen; noted are the places of their colons.
    keys: Keys,
    /// Where the last token begins.
    last: u32,
    /// The last token is a scalar that was not complete.
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
    pub(super) fn read<I: Isa>(mut self, isa: I) -> Stop {
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
            let line = if self.draft.is_begun || count > BLOCK {
                self.long(isa, at, count, end)
            } else if count > 0 {
                self.short(isa, at, count, end)
            } else {
                *self.line = end + 1;
                continue;
            };
            let Some(line) = line else { return Stop::Doubt };
            self.lines.push(line);
            *self.line = end + 1;
        }
        if self.draft.is_begun && !self.go_on(isa, self.tokens.count, 0, !self.ends_in_scalar) {
            return Stop::Doubt;
        }
        Stop::Empty
    }

    /// How many tokens stand before the next newline, or before the end.
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

    /// A whole line of up to 64 tokens.
    #[inline(always)]
    fn short<I: Isa>(&mut self, isa: I, at: usize, count: usize, end: usize) -> Option<Line> {
        let shape = self.shapes.find(isa, self.tokens, at, count)?;
        shape.read_keys(self.window, self.tokens, at);
        let keys = &shape.keys;
        let mut scalars = shape.scalars;
        while scalars != 0 {
            if !scalar::is_valid(self.window, self.tokens.place(at + scalars.trailing_zeros() as usize)) {
                return None;
            }
            scalars &= scalars - 1;
        }
        if !keys.are_certain() {
            return None;
        }
        let value = |member| {
            let token = at + keys.note(member) as usize + 1;
            let (start, next) = (self.tokens.place(token), self.tokens.place(token + 1));
            (self.tokens.kind(token), start, next)
        };
        let fields = Fields {
            keys,
            string: |member| {
                let (kind, start, next) = value(member);
                if kind == b'"' { token(self.window, start, next) } else { Span::default() }
            },
            name: |member| {
                let (kind, start, next) = value(member);
                (kind, self.window.byte(start), token(self.window, start, next))
            },
        };
        Some(fields.line(*self.line, end))
    }

    /// The rest of a line that is long or began in an earlier chunk.
    #[inline(always)]
    fn long<I: Isa>(&mut self, isa: I, at: usize, count: usize, end: usize) -> Option<Line> {
        if !self.go_on(isa, at, count, true) || !self.draft.grammar.is_complete() {
            return None;
        }
        let line = *self.line;
        let keys = self.draft.keys;
        *self.draft = Draft::default();
        let value = |member| {
            let start = skip_white(self.window, line + keys.note(member) as usize + 1);
            (self.window.byte(start), start)
        };
        let fields = Fields {
            keys: &keys,
            string: |member| match value(member) {
                (b'"', start) => string_at(self.window, start),
                _ => Span::default(),
            },
            name: |member| match value(member) {
                (b'"', start) => (b'"', b'"', string_at(self.window, start)),
                (first @ (b'{' | b'['), _) => (first, first, Span::default()),
                (first, start) => (SCALAR, first, scalar_at(self.window, start)),
            },
        };
        Some(fields.line(line, end))
    }

    /// Takes `count` tokens of a line. `is_scalar_whole` says that the last one, if it is a scalar, ends in the bytes
    /// read so far. `false` is doubt.
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

/// The fields of a line: from the keys that were found and two ways to look at a member's value.
struct Fields<'a, S, N> {
    keys: &'a Keys,
    /// The value, if it is a string.
    string: S,
    /// The kind of the value's token, its first byte, and the token.
    name: N,
}

impl<S: Fn(Member) -> Span, N: Fn(Member) -> (u8, u8, Span)> Fields<'_, S, N> {
    /// Members that most messages do not have.
    const RARE: u16 = Member::Session.bit()
        | Member::Pool.bit()
        | Member::ParamsRequest.bit()
        | Member::ResultSession.bit()
        | Member::Error.bit();

    #[inline(always)]
    fn line(&self, start: usize, end: usize) -> Line {
        let keys = self.keys;
        let mut line = Line { span: Span { start: start as u32, end: end as u32 }, ..Line::default() };
        if keys.has(Member::Id) {
            (line.id, line.flags) = self.id();
        }
        if keys.has(Member::Method) {
            line.method = (self.string)(Member::Method);
        }
        if keys.has(Member::ParamsSession) {
            line.params_session = (self.string)(Member::ParamsSession);
        }
        if keys.has(Member::Result) {
            line.flags |= Line::RESULT;
        }
        if keys.has_any(Self::RARE) {
            self.rare(&mut line);
        }
        line
    }

    #[inline(always)]
    fn rare(&self, line: &mut Line) {
        let keys = self.keys;
        if keys.has(Member::Error) {
            line.flags |= Line::ERROR;
        }
        if keys.has(Member::Session) {
            line.session = (self.string)(Member::Session);
        }
        if keys.has(Member::Pool) {
            line.pool = (self.string)(Member::Pool);
        }
        if keys.has(Member::ResultSession) {
            line.result_session = (self.string)(Member::ResultSession);
        }
        if keys.has(Member::ParamsRequest) {
            let (kind, first, token) = (self.name)(Member::ParamsRequest);
            if is_name(kind, first) {
                line.request_id = token;
            }
        }
    }

    /// The id, or the flag that says why there is none.
    #[inline(always)]
    fn id(&self) -> (Span, u32) {
        let (kind, first, token) = (self.name)(Member::Id);
        if is_name(kind, first) {
            (token, 0)
        } else if first == b'n' {
            (Span::default(), Line::ID_NULL)
        } else {
            (Span::default(), Line::ID_INVALID)
        }
    }
}

/// Whether a value is a string or a number.
#[inline(always)]
fn is_name(kind: u8, first: u8) -> bool {
    kind == b'"' || kind == SCALAR && first <= b'9'
}

/// The token that begins at `start`; after it comes white space at most before `next`.
#[inline(always)]
fn token(window: Window<'_>, start: usize, next: usize) -> Span {
    let mut end = next;
    while is_white(window.byte(end - 1)) {
        end -= 1;
    }
    Span { start: start as u32, end: end as u32 }
}

#[inline(always)]
fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

fn skip_white(window: Window<'_>, mut at: usize) -> usize {
    while is_white(window.byte(at)) {
        at += 1;
    }
    at
}

/// The string, known to be valid, that begins at `start`.
fn string_at(window: Window<'_>, start: usize) -> Span {
    let mut at = start + 1;
    loop {
        let rest = &window.data()[at..];
        let found = memchr::memchr2(b'"', b'\\', rest).expect("a valid string has an end");
        if rest[found] == b'"' {
            return Span { start: start as u32, end: (at + found + 1) as u32 };
        }
        at += found + 2;
    }
}

/// The scalar, known to be valid, that begins at `start`.
fn scalar_at(window: Window<'_>, start: usize) -> Span {
    let rest = &window.data()[start..];
    let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b']' | b'}'));
    Span { start: start as u32, end: (start + length.expect("something follows a scalar")) as u32 }
}
