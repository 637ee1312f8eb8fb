//! What the `_meta` of a message says about requests: which of its members name one. A key is compared eight bytes at a
//! time, as far as it matches a name; it is decoded only if the first difference is a backslash.

use super::object::Members;
use super::string::{decoded, string_length};
use super::{Span, Window};

/// What the `_meta` of a message says about requests: tokens, if they are strings or numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// `progressToken`: the token that names this request in progress notifications.
    pub progress: Span,
    /// `io.modelcontextprotocol/subscriptionId`: the id of the request that this message belongs to.
    pub subscription: Span,
    /// Where one of them occurs for the second time; 0 if none does. Two parsers could choose differently.
    pub twice: u32,
}

/// A member of `_meta` that names a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MetaName {
    Progress,
    Subscription,
}

/// The keys in their usual spelling.
const PROGRESS: &[u8; 15] = b"\"progressToken\"";
const SUBSCRIPTION: &[u8; 40] = b"\"io.modelcontextprotocol/subscriptionId\"";

impl MetaName {
    /// Which name a decoded key is.
    pub(super) fn named(key: &[u8]) -> Option<Self> {
        let is = |quoted: &[u8]| *key == quoted[1..quoted.len() - 1];
        if is(PROGRESS) { Some(Self::Progress) } else { is(SUBSCRIPTION).then_some(Self::Subscription) }
    }

    /// Which name the key at this span of a valid object is; white space may follow it.
    #[inline(always)]
    pub(super) fn of(window: Window<'_>, key: Span) -> Option<Self> {
        let at = key.start as usize;
        // No spelling of a name is shorter than the usual one.
        let (name, difference) = match window.byte(at + 1) {
            b'p' if key.len() >= PROGRESS.len() => (Self::Progress, difference(window, at, PROGRESS)),
            b'i' if key.len() >= SUBSCRIPTION.len() => (Self::Subscription, difference(window, at, SUBSCRIPTION)),
            b'\\' => return Self::spelled(window, at),
            _ => return None,
        };
        match difference {
            None => Some(name),
            Some(b'\\') => Self::spelled(window, at),
            Some(_) => None,
        }
    }

    /// The same for a key with an escape.
    #[cold]
    #[inline(never)]
    fn spelled(window: Window<'_>, at: usize) -> Option<Self> {
        let key = &window.data()[at..];
        Self::named(&decoded(&key[..string_length(key)])?)
    }
}

/// The first byte from `at` on that differs from `name`.
#[inline(always)]
fn difference<const N: usize>(window: Window<'_>, at: usize, name: &[u8; N]) -> Option<u8> {
    let bytes = window.array::<N>(at);
    let word = |bytes: &[u8; N], from: usize| {
        u64::from_le_bytes(*bytes[from..].first_chunk().expect("a name has more than eight bytes"))
    };
    let mut from = 0;
    loop {
        // The last eight overlap the previous ones.
        from = from.min(N - 8);
        let differs = word(bytes, from) ^ word(name, from);
        if differs != 0 {
            return Some(bytes[from + differs.trailing_zeros() as usize / 8]);
        }
        from += 8;
        if from >= N {
            return None;
        }
    }
}

impl Meta {
    /// Whether it names no request.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.progress.end | self.subscription.end | self.twice == 0
    }

    /// Reads the valid object that begins at `at`.
    pub(super) fn of(window: Window<'_>, at: usize) -> Self {
        Self::of_members(window, Members::of(window.data(), at), |value| value)
    }

    /// The same, given the positions of its keys and a function that finds their values.
    #[inline(always)]
    pub(super) fn of_members<T>(
        window: Window<'_>,
        members: impl Iterator<Item = (Span, T)>,
        value: impl Fn(T) -> Span,
    ) -> Self {
        let (mut meta, mut seen) = (Self::default(), [false; 2]);
        for (key, place) in members {
            let Some(name) = MetaName::of(window, key) else { continue };
            if core::mem::replace(&mut seen[name as usize], true) {
                meta.twice = key.start;
            }
            let value = value(place);
            if matches!(window.byte(value.start as usize), b'"' | b'-' | b'0'..=b'9') {
                match name {
                    MetaName::Progress => meta.progress = value,
                    MetaName::Subscription => meta.subscription = value,
                }
            }
        }
        meta
    }

    /// The same with `moved` applied to each position.
    #[inline]
    pub(super) fn with_each(&self, moved: impl Fn(Span) -> Span) -> Self {
        let twice = moved(Span { start: self.twice, end: self.twice }).start;
        Self { progress: moved(self.progress), subscription: moved(self.subscription), twice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAD;

    fn meta(line: &str) -> (Option<&str>, Option<&str>, bool) {
        let mut padded = vec![b'\\'; PAD];
        padded.extend_from_slice(line.as_bytes());
        padded.extend_from_slice(&[b'\\'; PAD]);
        let found = Meta::of(Window::new(&padded, PAD, PAD + line.len()), line.find("META").unwrap() + 5);
        let token = |span: Span| span.is_some().then(|| &line[span.start as usize..span.end as usize]);
        (token(found.progress), token(found.subscription), found.twice > 0)
    }

    #[test]
    fn the_requests_named_in_meta_are_found() {
        for (line, expected) in [
            (r#"META {"progressToken":7}}"#, (Some("7"), None, false)),
            (
                r#"META { "a" : [1,{"progressToken":2}] , "progressT\u006fken" : "x" , "b":"}" } }"#,
                (Some("\"x\""), None, false),
            ),
            (r#"META {"io.modelcontextprotocol/subscriptionId":-1.5,"progressTokens":1}"#, (None, Some("-1.5"), false)),
            (
                r#"META {"a":{"progressToken":1},"io.modelcontextprotocol\/subscriptionId":"s"}"#,
                (None, Some("\"s\""), false),
            ),
            (
                r#"META {"\u0070rogressToken":1,"io.modelcontextprotocol/subscriptionI\u0064":2}"#,
                (Some("1"), Some("2"), false),
            ),
            (r#"META {"io.modelcontextprotocol\u002fprotocolVersion":1,"io.model":2,"p":3,"":4}"#, (None, None, false)),
            (r#"META {"progressToken\u0000":1,"progressToken\\":2,"p\u0070":3,"\"":4}"#, (None, None, false)),
            (r#"META {"progressToken":null,"io.modelcontextprotocol/subscriptionId":{}}"#, (None, None, false)),
            (r#"META {"progressToken":null,"x":1,"progressToken":2}"#, (Some("2"), None, true)),
            (r#"META {"i":"progressToken"}"#, (None, None, false)),
            (r#"META {}"#, (None, None, false)),
            (r#"META {  }"#, (None, None, false)),
        ] {
            assert_eq!(meta(line), expected, "{line}");
        }
    }
}
