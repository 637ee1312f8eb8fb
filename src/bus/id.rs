//! Request ids. Two tokens are one id when they are the same JSON value: `1`, `1.0` and `1e0` are, `1` and `"1"` are
//! not (design 2.4). An [`Id`] holds the canonical form, so that comparing is comparing bytes.

use std::borrow::Cow;

use super::port::Text;
use super::scan::decoded;
use super::settings::MAX_REQUEST_ID_LEN;

/// Integers up to this many digits stand for themselves; longer ones are written with an exponent, like fractions.
const PLAIN_DIGITS: usize = 40;

/// The canonical form of an id.
#[derive(Clone, PartialEq, Eq)]
pub struct Id {
    text: Text,
    string: bool,
}

/// The canonical form of an id that is only looked for: mostly the token itself, where it stands.
#[derive(Debug)]
pub struct View<'a> {
    text: Cow<'a, [u8]>,
    string: bool,
}

/// An id is longer than [`MAX_REQUEST_ID_LEN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Id {
    /// The id that a valid JSON token, a string or a number, stands for.
    ///
    /// # Errors
    /// [`TooLong`] when the decoded string or the number's text has more than [`MAX_REQUEST_ID_LEN`] bytes
    /// (spec 8.2).
    pub fn parse(token: &[u8]) -> Result<Self, TooLong> {
        View::parse(token).map(|view| view.to_id())
    }

    /// An id that the bus makes itself.
    pub fn made(number: u32, string: bool) -> Self {
        Self::from_text(string, number.to_string().as_bytes())
    }

    fn from_text(string: bool, text: &[u8]) -> Self {
        Self { text: text.into(), string }
    }

    /// Whether the token was a string.
    pub fn is_string(&self) -> bool {
        self.string
    }

    /// The canonical text, without quotes.
    pub fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// The same, borrowed.
    pub fn view(&self) -> View<'_> {
        View { text: Cow::Borrowed(self.text()), string: self.string }
    }
}

impl<'a> View<'a> {
    /// The id that a valid JSON token, a string or a number, stands for.
    ///
    /// # Errors
    /// As [`Id::parse`].
    pub fn parse(token: &'a [u8]) -> Result<Self, TooLong> {
        if token.first() == Some(&b'"') {
            let text = decoded(token);
            return if text.len() > MAX_REQUEST_ID_LEN { Err(TooLong) } else { Ok(Self { text, string: true }) };
        }
        if token.len() > MAX_REQUEST_ID_LEN {
            return Err(TooLong);
        }
        let plain = token.len() <= PLAIN_DIGITS && token.iter().all(u8::is_ascii_digit);
        let text = if plain { Cow::Borrowed(token) } else { Cow::Owned(canonical_number(token)) };
        Ok(Self { text, string: false })
    }

    /// The id, to be kept.
    pub fn to_id(&self) -> Id {
        Id::from_text(self.string, &self.text)
    }

    /// Whether the token was a string.
    pub fn is_string(&self) -> bool {
        self.string
    }

    /// The canonical text, without quotes.
    pub fn text(&self) -> &[u8] {
        &self.text
    }
}

impl PartialEq<View<'_>> for Id {
    fn eq(&self, other: &View<'_>) -> bool {
        self.string == other.string && self.text() == other.text()
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{self}")
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.text().escape_ascii();
        if self.string { write!(formatter, "\"{text}\"") } else { write!(formatter, "{text}") }
    }
}

/// Digits without zeros at either end, and the power of ten of the last one. A number whose exponent does not fit in
/// 64 bits keeps its own text: such ids are equal only when they are spelled alike.
fn canonical_number(token: &[u8]) -> Vec<u8> {
    let (negative, unsigned) = match token.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, token),
    };
    let mantissa_end = unsigned.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(unsigned.len());
    let mantissa = &unsigned[..mantissa_end];
    let written_exponent = match unsigned.get(mantissa_end + 1..) {
        None | Some([]) => Some(0),
        Some(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()),
    };
    let fraction = mantissa.iter().position(|byte| *byte == b'.').map_or(0, |dot| mantissa.len() - dot - 1);
    let mut digits: Vec<u8> = mantissa.iter().copied().filter(u8::is_ascii_digit).collect();
    let Some(mut exponent) = written_exponent.and_then(|exponent| exponent.checked_sub(fraction as i64)) else {
        return token.to_vec();
    };
    while digits.len() > 1 && digits.last() == Some(&b'0') {
        digits.pop();
        exponent = exponent.saturating_add(1);
    }
    let leading = digits.iter().take_while(|digit| **digit == b'0').count();
    digits.drain(..leading);
    if digits.is_empty() {
        return b"0".to_vec();
    }
    let mut text = Vec::with_capacity(digits.len() + 24);
    if negative {
        text.push(b'-');
    }
    text.extend_from_slice(&digits);
    match usize::try_from(exponent) {
        Ok(zeros) if digits.len() + zeros <= PLAIN_DIGITS => text.resize(text.len() + zeros, b'0'),
        _ => text.extend_from_slice(format!("e{exponent}").as_bytes()),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(left: &str, right: &str) -> bool {
        Id::parse(left.as_bytes()).unwrap() == Id::parse(right.as_bytes()).unwrap()
    }

    #[test]
    fn numbers_are_compared_by_value() {
        for (left, right) in [
            ("1", "1.0"),
            ("1", "1e0"),
            ("100", "1E+2"),
            ("0", "-0"),
            ("0", "0.000e5"),
            ("0.1", "1e-1"),
            (
                "12345678901234567890123456789012345678901234567890",
                "1234567890123456789012345678901234567890123456789e1",
            ),
        ] {
            assert!(same(left, right), "{left} {right}");
        }
        for (left, right) in [("1", "2"), ("1", "-1"), ("10", "1"), ("9007199254740993", "9007199254740992")] {
            assert!(!same(left, right), "{left} {right}");
        }
    }

    #[test]
    fn a_string_is_never_a_number_and_is_compared_decoded() {
        assert!(!same("1", "\"1\""));
        assert!(same("\"a\"", "\"\\u0061\""));
        assert!(!same("\"a\"", "\"A\""));
    }

    #[test]
    fn the_limit_is_on_the_decoded_text() {
        let fits = format!("\"{}\"", "a".repeat(128));
        let escaped = format!("\"{}\"", "\\u0061".repeat(128));
        let long = format!("\"{}\"", "a".repeat(129));
        assert!(same(&fits, &escaped));
        assert_eq!(Id::parse(long.as_bytes()), Err(TooLong));
        assert_eq!(Id::parse("1".repeat(129).as_bytes()), Err(TooLong));
        assert!(Id::parse("1".repeat(128).as_bytes()).is_ok());
    }

    #[test]
    fn an_exponent_beyond_all_measure_does_not_panic() {
        assert!(same("1e99999999999999999999", "1e99999999999999999999"));
        assert!(!same("1e99999999999999999999", "1e99999999999999999998"));
        assert!(Id::parse(b"-1.5e-9223372036854775808").is_ok());
    }
}
