//! The members of an object and the end of a value. Everything read here has been validated before: of other bytes it
//! returns something or nothing.

use super::{SkipValue, Span};

/// The members of a valid object: the spans of its keys and values.
pub(super) struct Members<'a> {
    data: &'a [u8],
    /// The bracket or the comma before the next member.
    at: Option<usize>,
}

impl<'a> Members<'a> {
    /// The members of the value at `at`, or after white space there. None if it is not an object.
    #[inline]
    pub(super) fn of(data: &'a [u8], at: usize) -> Self {
        Self { data, at: filled(data, at).filter(|at| data[*at] == b'{') }
    }

    /// The next key, and where its value begins.
    #[inline]
    fn key(&self) -> Option<(Span, usize)> {
        let data = self.data;
        let key = filled(data, self.at? + 1).filter(|key| data[*key] == b'"')?;
        let end = ends(data, key)?;
        Some((span(key, end), filled(data, filled(data, end)? + 1)?))
    }

    /// Where the value of the first member with a key like this begins. How long it is does not matter, and nothing from
    /// there on is looked at.
    pub(super) fn begin_of(mut self, is_it: impl Fn(Span) -> bool) -> Option<usize> {
        loop {
            let (key, value) = self.key()?;
            if is_it(key) {
                return Some(value);
            }
            self.go_on(ends(self.data, value)?);
        }
    }

    /// The last value ends here.
    #[inline]
    fn go_on(&mut self, end: usize) {
        self.at = filled(self.data, end).filter(|next| self.data[*next] == b',');
    }
}

#[inline]
fn span(start: usize, end: usize) -> Span {
    Span { start: start as u32, end: end as u32 }
}

impl Iterator for Members<'_> {
    type Item = (Span, Span);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.key()?;
        let end = ends(self.data, value)?;
        self.go_on(end);
        Some((key, span(value, end)))
    }
}

/// The first byte from `at` on that is not white space.
#[inline]
pub(super) fn filled(data: &[u8], mut at: usize) -> Option<usize> {
    while matches!(data.get(at)?, b' ' | b'\t' | b'\r') {
        at += 1;
    }
    Some(at)
}

/// Where the value that begins at `at` ends.
#[inline]
pub(super) fn ends(data: &[u8], at: usize) -> Option<usize> {
    if data[at] == b'"'
        && let Some(end) = short_string_ends(data, at + 1)
    {
        return Some(end);
    }
    Some(at + SkipValue::default().read(&data[at..])?)
}

/// The end of a string whose text begins at `at`, if it has no escape and at most sixty-four bytes: eight at a time,
/// since keys are short.
#[inline]
fn short_string_ends(data: &[u8], at: usize) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let marks = |word: u64, byte: u8| {
        let differs = word ^ (ONES * u64::from(byte));
        differs.wrapping_sub(ONES) & !differs & (ONES << 7)
    };
    for (number, chunk) in data[at..].as_chunks().0.iter().take(8).enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let (quotes, escapes) = (marks(word, b'"'), marks(word, b'\\'));
        if quotes | escapes != 0 {
            // The lowest mark of each is correct.
            let quote = quotes.trailing_zeros();
            return (quote < escapes.trailing_zeros()).then(|| at + 8 * number + quote as usize / 8 + 1);
        }
    }
    None
}
