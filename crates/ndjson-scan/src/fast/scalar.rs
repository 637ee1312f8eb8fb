//! Numbers and literals: whether a token is a complete valid one. It reads eight bytes at once and at most eight past
//! the token. A number of kilobytes puts its line in doubt, so that it is read in shares.

use crate::{MOST_DOUBTFUL, Window};

const DIGITS: u64 = 0x3030_3030_3030_3030;

/// Whether a valid number or literal begins at `at` and ends before a byte that may follow one.
#[inline(always)]
pub(crate) fn is_valid(window: Window<'_>, at: usize) -> bool {
    let word = window.word(at);
    let digits = digits(word);
    if 0 < digits && digits < 8 && AFTER[(word >> (8 * digits)) as u8 as usize] {
        return digits == 1 || word as u8 != b'0';
    }
    // The letters differ, so at most one of these matches.
    let length = match word as u32 {
        TRUE | NULL => 4,
        FALSE if (word >> 32) as u8 == b'e' => 5,
        _ => return is_number(window, at),
    };
    ends(window, at + length)
}

const TRUE: u32 = u32::from_le_bytes(*b"true");
const NULL: u32 = u32::from_le_bytes(*b"null");
const FALSE: u32 = u32::from_le_bytes(*b"fals");

/// Any number, the long way.
#[inline(never)]
fn is_number(window: Window<'_>, mut at: usize) -> bool {
    if window.byte(at) == b'-' {
        at += 1;
    }
    if window.byte(at) == b'0' {
        at += 1;
    } else if !skip_digits(window, &mut at) {
        return false;
    }
    if window.byte(at) == b'.' {
        at += 1;
        if !skip_digits(window, &mut at) {
            return false;
        }
    }
    if window.byte(at) | 0x20 == b'e' {
        at += 1;
        if matches!(window.byte(at), b'+' | b'-') {
            at += 1;
        }
        if !skip_digits(window, &mut at) {
            return false;
        }
    }
    ends(window, at)
}

/// Skips the digits; returns whether there were any, and not too many to be read at once.
fn skip_digits(window: Window<'_>, at: &mut usize) -> bool {
    let from = *at;
    loop {
        let digits = digits(window.word(*at));
        *at += digits;
        if digits < 8 {
            return *at > from;
        }
        if *at - from > MOST_DOUBTFUL {
            return false;
        }
    }
}

/// Number of leading bytes of a word that are digits.
#[inline(always)]
fn digits(word: u64) -> usize {
    // A digit is 0x3N with N up to 9; adding six lifts the others out of that row. A carry reaches only bytes after the
    // first non-digit.
    let row = word ^ DIGITS;
    let others = (row | row.wrapping_add(0x0606_0606_0606_0606)) & 0xF0F0_F0F0_F0F0_F0F0;
    others.trailing_zeros() as usize / 8
}

/// Whether a scalar can end before the byte at `at`.
#[inline(always)]
fn ends(window: Window<'_>, at: usize) -> bool {
    AFTER[window.byte(at) as usize]
}

/// The bytes that a scalar can end before.
static AFTER: [bool; 256] = {
    let mut after = [false; 256];
    let bytes = b" \t\r\n,]}";
    let mut index = 0;
    while index < bytes.len() {
        after[bytes[index] as usize] = true;
        index += 1;
    }
    after
};
