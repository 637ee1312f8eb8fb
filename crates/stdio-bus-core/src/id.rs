//! Request ids. Two tokens are one id when they are the same JSON value: `1`, `1.0` and `1e0` are, `1` and `"1"` are
//! not (decision 4). An [`Id`] holds the canonical form, so that comparing is comparing bytes.
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use ndjson_scan::decoded;

use super::peer::Text;
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
    plain: bool,
}

/// The ids that the bus makes lie here: whole numbers that doubles hold exactly, and that no client counts up to. Ids
/// of clients in this range are replaced, so one that was made was never seen by a worker before.
const MADE: core::ops::Range<u64> = 5_000_000_000_000_000..6_000_000_000_000_000;
/// Digits of each number in [`MADE`].
const MADE_DIGITS: usize = 16;
/// Largest whole number up to which doubles tell all whole numbers apart, 2⁵³ − 1 (Number.MAX_SAFE_INTEGER).
const LARGEST_EXACT: u64 = (1 << 53) - 1;

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

    /// The `count`th id that the bus makes. No other id is equal to it.
    pub fn made(count: u64, string: bool) -> Self {
        debug_assert!(count < MADE.end - MADE.start);
        Self::from_text(string, (MADE.start + count).to_string().as_bytes())
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

    /// The id as a [`View`], to compare or to look for.
    pub fn view(&self) -> View<'_> {
        View { text: Cow::Borrowed(self.text()), string: self.string, plain: true }
    }
}

impl<'a> View<'a> {
    /// The id that a valid JSON token, a string or a number, stands for.
    ///
    /// # Errors
    /// As [`Id::parse`].
    #[inline]
    pub fn parse(token: &'a [u8]) -> Result<Self, TooLong> {
        // Most ids are counted.
        if token.len() < MADE_DIGITS && token.iter().all(u8::is_ascii_digit) {
            return Ok(Self { text: Cow::Borrowed(token), string: false, plain: true });
        }
        Self::parse_any(token)
    }

    fn parse_any(token: &'a [u8]) -> Result<Self, TooLong> {
        if token.first() == Some(&b'"') {
            let text = decoded(token);
            if text.len() > MAX_REQUEST_ID_LEN {
                return Err(TooLong);
            }
            // What was written without an escape has no half of a pair.
            let whole = matches!(text, Cow::Borrowed(_)) || !has_lone_surrogate(&text);
            let plain = whole && !is_made(&text);
            return Ok(Self { text, string: true, plain });
        }
        if token.len() > MAX_REQUEST_ID_LEN {
            return Err(TooLong);
        }
        let digits = token.len() <= PLAIN_DIGITS && token.iter().all(u8::is_ascii_digit);
        let plain = is_exact(token) && !is_made(token);
        let text = if digits { Cow::Borrowed(token) } else { Cow::Owned(canonical_number(token)) };
        Ok(Self { text, string: false, plain })
    }

    /// Whether every parser reads this id as the same value, and the bus never makes it: a whole number between
    /// ±(2⁵³ − 1), or a string without half a surrogate pair. Others are always replaced on their way.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The id, to be kept.
    pub fn to_id(&self) -> Id {
        Id::from_text(self.string, &self.text)
    }

    /// The number for a string of its digits, or the string for a number.
    pub(super) fn of_other_type(self) -> Self {
        Self { string: !self.string, ..self }
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

impl core::fmt::Debug for Id {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{self}")
    }
}

impl core::fmt::Display for Id {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = self.text().escape_ascii();
        if self.string { write!(formatter, "\"{text}\"") } else { write!(formatter, "{text}") }
    }
}

/// Whether a JSON number is written as a whole number that doubles hold exactly.
fn is_exact(token: &[u8]) -> bool {
    let digits = token.strip_prefix(b"-").unwrap_or(token);
    let number = core::str::from_utf8(digits).ok().filter(|text| text.len() <= MADE_DIGITS);
    let number = number.and_then(|text| text.parse::<u64>().ok());
    // -0 is 0 to some, and something else to others.
    number.is_some_and(|number| number <= LARGEST_EXACT && (number > 0 || token == b"0"))
}

/// Whether this text is a number that the bus makes.
fn is_made(text: &[u8]) -> bool {
    text.len() == MADE_DIGITS && text[0] == b'5' && text.iter().all(u8::is_ascii_digit)
}

/// Whether a decoded string has half a surrogate pair in it (WTF-8).
fn has_lone_surrogate(text: &[u8]) -> bool {
    text.windows(2).any(|pair| pair[0] == 0xed && pair[1] >= 0xa0)
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
        Some(text) => core::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()),
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

    fn is_plain(token: &str) -> bool {
        View::parse(token.as_bytes()).unwrap().is_plain()
    }

    #[test]
    fn only_what_every_parser_reads_alike_is_plain() {
        for token in ["0", "1", "-1", "4999999999999999", "6000000000000000", "9007199254740991", "-9007199254740991"] {
            assert!(is_plain(token), "{token}");
        }
        for token in [r#""1""#, r#""\u0061""#, r#""\ud83d\ude00""#, r#""é""#, "\"\""] {
            assert!(is_plain(token), "{token}");
        }
        // Bytes that are those of half a pair in part only.
        for token in [r#""\u00e9""#, r#""\u0061한""#] {
            assert!(is_plain(token), "{token}");
        }
        for token in ["-0", "1.0", "1e0", "1.5", "1.00000000000000000001", "1e-400", "9007199254740992"] {
            assert!(!is_plain(token), "{token}");
        }
        for token in ["-9007199254740992", "99999999999999999999", r#""\ud83d""#, r#""a\udc00b""#] {
            assert!(!is_plain(token), "{token}");
        }
    }

    #[test]
    fn what_the_bus_makes_is_never_plain_when_a_client_writes_it() {
        for string in [false, true] {
            for count in [0, 1, 999_999_999_999_999] {
                let made = Id::made(count, string);
                let token = crate::reply::id_token(&made);
                assert!(!View::parse(&token).unwrap().is_plain(), "{made}");
            }
        }
        assert!(!is_plain("5000000000000000") && !is_plain("5999999999999999"));
    }

    #[test]
    fn an_exponent_beyond_all_measure_does_not_panic() {
        assert!(same("1e99999999999999999999", "1e99999999999999999999"));
        assert!(!same("1e99999999999999999999", "1e99999999999999999998"));
        assert!(Id::parse(b"-1.5e-9223372036854775808").is_ok());
    }
}
