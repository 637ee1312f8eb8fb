//! Request ids. Two tokens are one id if they are the same JSON value: `1`, `1.0` and `1e0` are, `1` and `"1"` are not
//! (decision 4). The canonical form is compared: most ids are counters, and are a number.
use alloc::borrow::Cow;
use alloc::string::ToString;
use alloc::vec::Vec;

use ndjson_scan::decoded;

use super::peer::ShortText;
use super::settings::MAX_REQUEST_ID_LEN;

/// Whole numbers of up to this many digits are written plainly; longer ones with an exponent, like fractions.
const PLAIN_DIGITS: usize = 40;
/// Whole numbers of up to this many digits are stored as numbers.
const NUMBER_DIGITS: usize = 18;

/// The canonical form of an id.
#[derive(Clone, PartialEq, Eq)]
pub enum Id {
    /// A whole number, not negative, of at most 18 digits.
    Number(u64),
    /// The text of any other number.
    Text(ShortText),
    /// A decoded string.
    String(ShortText),
}

/// An id and its spelling.
pub(super) struct Spelled {
    pub id: Id,
    /// Every parser reads it as the same value, and the bus never makes it: a whole number between ±(2⁵³ − 1), or a
    /// string without half a surrogate pair. Others are always replaced in transit.
    pub is_plain: bool,
    /// It is a string written with escapes: an error in place of its answer repeats them.
    pub is_escaped: bool,
}

/// The range of ids made by the bus: whole numbers of 31 bits, which every parser keeps (some have 32 bits with a sign,
/// others write more than 14 digits with an exponent), and that no client counts up to. Ids of clients in this range are
/// replaced, so no client has one pending.
pub(super) const MADE: core::ops::Range<u64> = 2_000_000_000..1 << 31;
/// Digits of each number in [`MADE`].
const MADE_DIGITS: usize = 10;
/// Largest whole number up to which doubles are exact for all whole numbers, 2⁵³ − 1 (Number.MAX_SAFE_INTEGER).
const LARGEST_EXACT: u64 = (1 << 53) - 1;

/// See [`Id::shape`].
pub(super) enum IdShape<'a> {
    /// A number, or a string of its digits.
    Number(u64),
    /// What is before the digits at the end of anything else.
    Text(&'a [u8]),
}

/// An id is longer than [`MAX_REQUEST_ID_LEN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Id {
    /// The id of a valid JSON token, a string or a number.
    ///
    /// # Errors
    /// [`TooLong`] if the decoded string or the number's text has more than [`MAX_REQUEST_ID_LEN`] bytes (spec 8.2).
    pub fn parse(token: &[u8]) -> Result<Self, TooLong> {
        Spelled::parse(token).map(|spelled| spelled.id)
    }

    /// The `count`th id made by the bus for one answerer. No id of a client equals it.
    pub(super) fn made(count: u64, string: bool) -> Self {
        debug_assert!(count < MADE.end - MADE.start);
        let number = MADE.start + count;
        if string { Self::String(number.to_string().as_bytes().into()) } else { Self::Number(number) }
    }

    /// Whether the token was a string.
    pub fn is_string(&self) -> bool {
        matches!(self, Self::String(_))
    }

    /// The number for a string of its digits, or the string for a number.
    pub(super) fn of_other_type(self) -> Self {
        match self {
            Self::Number(number) => Self::String(number.to_string().as_bytes().into()),
            Self::Text(text) => Self::String(text),
            Self::String(text) => match plain_number(text.as_bytes()) {
                Some(number) if number.to_string().as_bytes() == text.as_bytes() => Self::Number(number),
                _ => Self::Text(text),
            },
        }
    }

    /// What it is for programs that do not distinguish numbers from strings.
    pub(super) fn shape(&self) -> IdShape<'_> {
        match self {
            Self::Number(number) => IdShape::Number(*number),
            Self::Text(text) | Self::String(text) => {
                let text = text.as_bytes();
                let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
                plain_number(text)
                    .filter(|_| digits > 0)
                    .map_or(IdShape::Text(&text[..text.len() - digits]), IdShape::Number)
            }
        }
    }

    /// The id as a JSON token.
    pub fn token(&self) -> Vec<u8> {
        match self {
            Self::Number(number) => number.to_string().into_bytes(),
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::String(text) => {
                let mut token = Vec::with_capacity(text.as_bytes().len() + 2);
                super::reply::write_string(text.as_bytes(), &mut token);
                token
            }
        }
    }
}

/// The number in a token that is a whole number and fits.
#[inline(always)]
pub(super) fn plain_number(token: &[u8]) -> Option<u64> {
    match token.len() {
        4..=8 => short_number(token),
        0..=NUMBER_DIGITS => token.iter().try_fold(0, |number, byte| {
            let digit = byte.wrapping_sub(b'0');
            (digit < 10).then_some(number * 10 + u64::from(digit))
        }),
        _ => None,
    }
}

/// The same for four to eight bytes, which most ids have: all digits at once.
#[inline(always)]
fn short_number(token: &[u8]) -> Option<u64> {
    let (first, last) = (u32::from_le_bytes(*token.first_chunk()?), u32::from_le_bytes(*token.last_chunk()?));
    // The last digit is in the highest byte; below the first one there are zeros. A digit in both chunks is the same.
    let unused = 8 * (8 - token.len());
    let text = u64::from(first) << unused | u64::from(last) << 32;
    let digits = text ^ (u64::MAX / 255 * u64::from(b'0')) >> unused << unused;
    let above_nine = digits.wrapping_add(u64::MAX / 255 * (128 - 10));
    if (digits | above_nine) & (u64::MAX / 255 * 128) != 0 {
        return None;
    }
    // Pairs of digits, then fours, then all eight.
    let pairs = (digits * 10 + (digits >> 8)) & (u64::MAX / 65535 * 255);
    let fours = (pairs * 100 + (pairs >> 16)) & (u64::MAX / u64::from(u32::MAX) * 65535);
    Some((fours * 10_000 + (fours >> 32)) & u64::from(u32::MAX))
}

impl Spelled {
    /// As [`Id::parse`].
    #[inline(always)]
    pub(super) fn parse(token: &[u8]) -> Result<Self, TooLong> {
        match plain_number(token) {
            Some(number) => {
                let is_plain = number < MADE.start || (MADE.end..=LARGEST_EXACT).contains(&number);
                Ok(Self { id: Id::Number(number), is_plain, is_escaped: false })
            }
            None => Self::parse_any(token),
        }
    }

    fn parse_any(token: &[u8]) -> Result<Self, TooLong> {
        // The longest escape of a byte has six.
        if token.len() > 6 * MAX_REQUEST_ID_LEN + 2 {
            return Err(TooLong);
        }
        if token.first() == Some(&b'"') {
            let text = decoded(token).unwrap_or(Cow::Borrowed(token));
            if text.len() > MAX_REQUEST_ID_LEN {
                return Err(TooLong);
            }
            // Text written without an escape has no half of a pair.
            let is_escaped = matches!(text, Cow::Owned(_));
            let is_whole = !is_escaped || !has_lone_surrogate(&text);
            let is_plain = is_whole && !is_made(&text);
            return Ok(Self { id: Id::String((&*text).into()), is_plain, is_escaped });
        }
        if token.len() > MAX_REQUEST_ID_LEN {
            return Err(TooLong);
        }
        let digits = token.len() <= PLAIN_DIGITS && token.iter().all(u8::is_ascii_digit);
        let text = if digits { Cow::Borrowed(token) } else { Cow::Owned(canonical_number(token)) };
        let id = plain_number(&text).map_or_else(|| Id::Text((&*text).into()), Id::Number);
        Ok(Self { id, is_plain: is_exact_negative(token), is_escaped: false })
    }
}

impl core::fmt::Debug for Id {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{self}")
    }
}

impl core::fmt::Display for Id {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Text(text) => write!(formatter, "{}", text.as_bytes().escape_ascii()),
            Self::String(text) => write!(formatter, "\"{}\"", text.as_bytes().escape_ascii()),
        }
    }
}

/// Whether a JSON number is a negative whole number that doubles hold exactly. Others are checked as numbers, and
/// parsers disagree about -0.
fn is_exact_negative(token: &[u8]) -> bool {
    token.strip_prefix(b"-").and_then(plain_number).is_some_and(|number| (1..=LARGEST_EXACT).contains(&number))
}

/// Whether this text is in the range of ids made by the bus.
fn is_made(text: &[u8]) -> bool {
    text.len() == MADE_DIGITS && plain_number(text).is_some_and(|number| MADE.contains(&number))
}

/// Whether a decoded string contains half a surrogate pair (WTF-8).
fn has_lone_surrogate(text: &[u8]) -> bool {
    text.windows(2).any(|pair| pair[0] == 0xed && pair[1] >= 0xa0)
}

/// Digits without zeros at either end, and the power of ten of the last one. A number whose exponent does not fit in 64
/// bits keeps its own text: such ids are equal only if spelled alike.
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
    fn a_number_is_its_digits_and_nothing_else_is_one() {
        for digits in 1..=NUMBER_DIGITS {
            let longest = "123456789012345678";
            for text in [&longest[..digits], &"9".repeat(digits), &"0".repeat(digits), &format!("{:01$}", 7, digits)] {
                assert_eq!(plain_number(text.as_bytes()), text.parse().ok(), "{text}");
                for (at, other) in (0..digits).flat_map(|at| (0..=255).map(move |other| (at, other))) {
                    let mut token = text.as_bytes().to_vec();
                    token[at] = other;
                    let is_number = token.iter().all(u8::is_ascii_digit);
                    let means = is_number.then(|| str::from_utf8(&token).unwrap().parse().unwrap());
                    assert_eq!(plain_number(&token), means, "{token:?}");
                }
            }
        }
        assert_eq!(plain_number(b"1234567890123456789"), None);
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
        Spelled::parse(token.as_bytes()).unwrap().is_plain
    }

    #[test]
    fn only_ids_that_every_parser_reads_alike_are_plain() {
        for token in ["0", "1", "-1", "1999999999", "2147483648", "9007199254740991", "-9007199254740991"] {
            assert!(is_plain(token), "{token}");
        }
        for token in [r#""1""#, r#""\u0061""#, r#""\ud83d\ude00""#, r#""é""#, "\"\""] {
            assert!(is_plain(token), "{token}");
        }
        // Bytes that belong to half a pair only in part.
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
    fn an_id_in_the_range_of_the_bus_is_never_plain() {
        for string in [false, true] {
            for count in [0, 1, MADE.end - MADE.start - 1] {
                let made = Id::made(count, string);
                let token = made.token();
                assert!(!Spelled::parse(&token).unwrap().is_plain, "{made}");
            }
        }
        assert!(!is_plain("2000000000") && !is_plain("2147483647"));
    }

    #[test]
    fn an_exponent_beyond_all_measure_does_not_panic() {
        assert!(same("1e99999999999999999999", "1e99999999999999999999"));
        assert!(!same("1e99999999999999999999", "1e99999999999999999998"));
        assert!(Id::parse(b"-1.5e-9223372036854775808").is_ok());
    }
}
