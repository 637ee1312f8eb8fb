//! Whether and when a request is sent again. Pure: the attempt, the answer, the clock and the dice are arguments.
//!
//! Only a request of which no byte of the answer was seen is ever sent again, and at most as often as configured. A
//! server that asks for more patience than [`LONGEST_WAIT`] is told to the user at once instead.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::dialect::Refusal;

/// The longest wait before a retry.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The first wait when the server names none; it doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(8);

/// What failed.
#[derive(Clone, Debug)]
pub enum Cause {
    /// No connection, or one that was closed before the first byte of the answer.
    Connection,
    /// An HTTP status that is not a success.
    #[allow(missing_docs)]
    Status {
        status: u16,
        headers: HeaderMap,
        /// Whether the account is empty: no wait fills it.
        is_spent: bool,
    },
}

/// How long to wait before the next attempt, or nothing if there is none. `attempt` counts from 0, `dice` is evenly
/// spread over 0 to 1.
pub fn decide(cause: &Cause, attempt: u32, max_retries: u32, now: SystemTime, dice: f64) -> Option<Duration> {
    if attempt >= max_retries {
        return None;
    }
    let backoff = FIRST_BACKOFF.saturating_mul(1 << attempt.min(10)).min(LONGEST_BACKOFF).mul_f64(1.0 - dice * 0.25);
    let (status, headers, is_spent) = match cause {
        Cause::Connection => return Some(backoff),
        Cause::Status { status, headers, is_spent } => (*status, headers, *is_spent),
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let again = match text("x-should-retry") {
        Some("true") => true,
        Some("false") => false,
        _ => !is_spent && matches!(status, 408 | 409 | 429 | 500..),
    };
    if !again {
        return None;
    }
    let wait = asked_wait(text("retry-after-ms"), text("retry-after"), now).unwrap_or(backoff);
    (wait <= LONGEST_WAIT).then_some(wait)
}

/// Whether a refusal says that the account is empty or closed, in the codes of OpenAI, Moonshot and One API.
pub fn is_spent(refusal: &Refusal) -> bool {
    const CODES: &str = "insufficient_quota insufficient_user_quota exceeded_current_quota_error \
                         billing_hard_limit_reached billing_not_active account_deactivated access_terminated";
    CODES.split(' ').any(|code| refusal.has_code(code))
}

/// What the server asks for: milliseconds, seconds or a date.
fn asked_wait(milliseconds: Option<&str>, seconds_or_date: Option<&str>, now: SystemTime) -> Option<Duration> {
    let number = |text: &str, unit: f64| {
        let number = text.parse::<f64>().ok().filter(|number| *number >= 0.0)?;
        Some(Duration::try_from_secs_f64(number * unit).unwrap_or(Duration::MAX))
    };
    if let Some(wait) = milliseconds.and_then(|text| number(text, 0.001)) {
        return Some(wait);
    }
    let text = seconds_or_date?;
    number(text, 1.0).or_else(|| {
        let date = httpdate::parse_http_date(text).ok()?;
        Some(date.duration_since(now).unwrap_or(Duration::ZERO))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn wait(status: u16, pairs: &[(&'static str, &str)]) -> Option<Duration> {
        let cause = Cause::Status { status, headers: headers(pairs), is_spent: false };
        decide(&cause, 0, 2, SystemTime::UNIX_EPOCH, 0.0)
    }

    #[test]
    fn an_empty_account_is_not_asked_again() {
        let refusal = Refusal::read(r#"{"error":{"message":"pay","type":"insufficient_quota"}}"#);
        assert!(is_spent(&refusal) && !is_spent(&Refusal::read(r#"{"error":{"code":"rate_limit_exceeded"}}"#)));
        for (pairs, again) in
            [(&[][..], false), (&[("retry-after", "1")], false), (&[("x-should-retry", "true")], true)]
        {
            let cause = Cause::Status { status: 429, headers: headers(pairs), is_spent: true };
            assert_eq!(decide(&cause, 0, 2, SystemTime::UNIX_EPOCH, 0.0).is_some(), again);
        }
    }

    #[test]
    fn the_server_is_obeyed() {
        assert_eq!(wait(429, &[("retry-after-ms", "20"), ("retry-after", "9")]), Some(Duration::from_millis(20)));
        assert_eq!(wait(429, &[("retry-after", "1.5")]), Some(Duration::from_millis(1500)));
        assert_eq!(wait(503, &[("retry-after", "Thu, 01 Jan 1970 00:00:07 GMT")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(429, &[("retry-after", "soon")]), Some(FIRST_BACKOFF));
        assert_eq!(wait(429, &[("retry-after", "3600")]), None);
        assert_eq!(wait(429, &[("retry-after", "1e300")]), None);
        assert_eq!(wait(429, &[("x-should-retry", "false")]), None);
        assert_eq!(wait(400, &[("x-should-retry", "true")]), Some(FIRST_BACKOFF));
        assert_eq!(wait(400, &[]), None);
        assert_eq!(wait(401, &[]), None);
    }

    proptest! {
        #[test]
        fn waits_and_attempts_are_bounded(status in 300u16..600, attempt in 0u32..200, max in 0u32..100,
                                          dice in 0f64..1.0, after in "\\PC{0,12}") {
            let mut map = HeaderMap::new();
            if let Ok(value) = after.parse() {
                map.insert("retry-after", value);
            }
            for cause in [Cause::Connection, Cause::Status { status, headers: map, is_spent: false }] {
                if let Some(wait) = decide(&cause, attempt, max, SystemTime::UNIX_EPOCH, dice) {
                    prop_assert!(attempt < max && wait <= LONGEST_WAIT);
                }
            }
        }
    }
}
