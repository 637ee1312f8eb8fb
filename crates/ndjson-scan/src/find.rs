//! One member of a message that routing looks at in few messages only: it is looked for in the line, which the scanner
//! has validated before.

use alloc::borrow::Cow;

use super::string::decoded;
use super::{Line, SkipValue, Span, Window};

/// The decoded string that the member `name` of `params` is, if it is one. `line` is a valid message.
pub fn string_in_params<'a>(line: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let value = member(member(line, b"params")?, name)?;
    value.starts_with(b"\"").then(|| decoded(value))
}

/// What the `_meta` of a message says of requests: tokens, if they are strings or numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// `progressToken`: what the progress of this request is to be told under.
    pub progress: Span,
    /// `io.modelcontextprotocol/subscriptionId`: the id of the request that this is told for.
    pub subscription: Span,
    /// Where one of them stands for the second time; 0 if none does. Two parsers could choose differently.
    pub twice: u32,
}

impl Meta {
    const PROGRESS: &[u8] = b"progressToken";
    const SUBSCRIPTION: &[u8] = b"io.modelcontextprotocol/subscriptionId";

    /// Reads the `_meta` that [`Line::meta`] says is there; the default if none is.
    #[inline]
    pub fn of(window: Window<'_>, line: &Line) -> Self {
        if line.meta == 0 { Self::default() } else { Self::read(window.data(), line.meta as usize) }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the valid object that begins at `at`.
    fn read(data: &[u8], mut at: usize) -> Self {
        let (mut meta, mut seen) = (Self::default(), [false; 2]);
        loop {
            // Past the bracket or the comma.
            let Some(key) = filled(data, at + 1).filter(|key| data[*key] == b'"') else { return meta };
            let Some(key_end) = ends(data, key) else { return meta };
            let Some(value) = filled(data, key_end).and_then(|colon| filled(data, colon + 1)) else { return meta };
            let Some(end) = ends(data, value) else { return meta };
            let which = match &data[key + 1..key_end - 1] {
                Self::PROGRESS => Some(0),
                Self::SUBSCRIPTION => Some(1),
                name if memchr::memchr(b'\\', name).is_some() => match &*decoded(&data[key..key_end]) {
                    Self::PROGRESS => Some(0),
                    Self::SUBSCRIPTION => Some(1),
                    _ => None,
                },
                _ => None,
            };
            if let Some(which) = which {
                if core::mem::replace(&mut seen[which], true) {
                    meta.twice = key as u32;
                }
                if matches!(data[value], b'"' | b'-' | b'0'..=b'9') {
                    let span = Span { start: value as u32, end: end as u32 };
                    *[&mut meta.progress, &mut meta.subscription][which] = span;
                }
            }
            match filled(data, end) {
                Some(next) if data[next] == b',' => at = next,
                _ => return meta,
            }
        }
    }
}

/// The first byte from `at` on that is no white space.
#[inline]
fn filled(data: &[u8], mut at: usize) -> Option<usize> {
    while matches!(data.get(at)?, b' ' | b'\t' | b'\r') {
        at += 1;
    }
    Some(at)
}

/// Where the value ends that begins at `at`.
#[inline]
fn ends(data: &[u8], at: usize) -> Option<usize> {
    Some(at + SkipValue::default().read(&data[at..])?)
}

/// The value of the member of this name in an object, which is valid JSON; none if there is no such member, or it is no
/// object.
pub fn member<'a>(object: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = object.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        if !rest.starts_with(b"\"") {
            return None;
        }
        let (key, behind) = rest.split_at(SkipValue::default().read(rest)?);
        let value = behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let end = SkipValue::default().read(value)?;
        if *decoded(key) == *name {
            return Some(&value[..end]);
        }
        rest = &value[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_in_params_is_found_wherever_it_stands() {
        for line in [
            r#"{"params":{"x":"v"}}"#,
            r#" { "a" : [ {"params":{"x":"no"}} , 1 ] , "params" : { "y" : {"x":"no"} , "x" : "v" } }"#,
            r#"{"x":"no","p\u0061rams":{"n":-1.5e3,"t":true,"\u0078":"\u0076"}}"#,
        ] {
            assert_eq!(string_in_params(line.as_bytes(), b"x").as_deref(), Some(&b"v"[..]), "{line}");
        }
    }

    fn meta(line: &str) -> (Option<&str>, Option<&str>, bool) {
        let start = line.find("META").unwrap() + 5;
        let found = Meta::read(line.as_bytes(), start);
        let token = |span: Span| span.is_some().then(|| &line[span.start as usize..span.end as usize]);
        (token(found.progress), token(found.subscription), found.twice > 0)
    }

    #[test]
    fn a_meta_says_which_requests_it_is_about() {
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
            (r#"META {"progressToken":null,"io.modelcontextprotocol/subscriptionId":{}}"#, (None, None, false)),
            (r#"META {"progressToken":null,"x":1,"progressToken":2}"#, (Some("2"), None, true)),
            (r#"META {}"#, (None, None, false)),
            (r#"META {  }"#, (None, None, false)),
        ] {
            assert_eq!(meta(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_string_in_params_is_not_found() {
        for line in
            ["{}", r#"{"params":{}}"#, r#"{"params":[{"x":"v"}]}"#, r#"{"params":"x"}"#, r#"{"params":{"x":7}}"#]
        {
            assert_eq!(string_in_params(line.as_bytes(), b"x"), None, "{line}");
        }
    }
}
