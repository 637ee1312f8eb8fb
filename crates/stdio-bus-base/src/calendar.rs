//! Times in UTC, as RFC 3339 and HTTP write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `time` as `2026-01-31T23:59:59Z`; times before 1970 become 1970.
pub fn to_the_second(time: SystemTime) -> String {
    written(time).0 + "Z"
}

/// `time` as `2026-01-31T23:59:59.999Z`; times before 1970 become 1970.
pub fn to_the_millisecond(time: SystemTime) -> String {
    let (mut text, since) = written(time);
    text.push('.');
    push(&mut text, since.subsec_millis().into(), 3);
    text.push('Z');
    text
}

/// `time` as `Sat, 31 Jan 2026 23:59:59 GMT`, the form of HTTP (RFC 9110, section 5.6.7); times before 1970 become 1970.
pub fn of_http(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let (name, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    format!("{name}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

fn written(time: SystemTime) -> (String, Duration) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    // Each line of a log has a time, and to format it costs ten times as much.
    let mut text = String::with_capacity("2026-01-31T23:59:59.999Z".len());
    for (number, digits, behind) in
        [(year, 4, "-"), (month, 2, "-"), (day, 2, "T"), (hour, 2, ":"), (minute, 2, ":"), (second, 2, "")]
    {
        push(&mut text, number, digits);
        text.push_str(behind);
    }
    (text, since)
}

/// Appends a number with at least so many digits.
fn push(text: &mut String, number: u64, digits: u32) {
    if digits > 1 || number > 9 {
        push(text, number / 10, digits.saturating_sub(1));
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}

/// The date that lies `days` after 1970-01-01 in the Gregorian calendar, counted in eras of 400 years from March
/// (Howard Hinnant's civil_from_days).
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(to_the_second(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let example = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(of_http(example), "Sun, 06 Nov 1994 08:49:37 GMT", "the example of RFC 9110");
        assert_eq!(to_the_millisecond(UNIX_EPOCH + Duration::from_millis(1_007)), "1970-01-01T00:00:01.007Z");
    }
}
