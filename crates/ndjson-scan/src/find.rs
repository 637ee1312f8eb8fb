//! Members of a message that routing looks at in few messages only: they are looked for in the line, which the scanner
//! has validated before.

use alloc::borrow::Cow;

use super::string::decoded;
use super::{Line, SkipValue, Span, Window};

/// The decoded string that the member `name` of `params` is, if it is one. `line` is a valid message.
pub fn string_in_params<'a>(line: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    string_in(member(line, b"params")?, name)
}

/// The decoded string that the member of this name in an object is, if it is one.
pub fn string_in<'a>(object: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    member(object, name).filter(|value| value.starts_with(b"\"")).map(decoded)
}

/// The objects in the array that the member `name` of `params` is, if it is one. `line` is a valid message.
pub fn objects_in_params<'a>(line: &'a [u8], name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let array = member(line, b"params").and_then(|params| member(params, name)).filter(|it| it.starts_with(b"["));
    let data = array.unwrap_or_default();
    let mut at = Some(0);
    let elements = core::iter::from_fn(move || {
        let start = filled(data, at? + 1).filter(|start| data[*start] != b']')?;
        let end = ends(data, start)?;
        at = filled(data, end).filter(|next| data[*next] == b',');
        Some(&data[start..end])
    });
    elements.filter(|element| element.starts_with(b"{"))
}

/// The message that the params of a line are, with `method` and `params` of its own: all else is that of the line. A
/// session that stands in the params of the line itself counts as one at top level.
///
/// # Errors
/// Where a routing key of it stands for the second time.
pub fn wrapped_message(window: Window<'_>, line: &Line) -> Result<Line, usize> {
    const KEYS: [&[u8]; 7] = [b"method", b"params", b"sessionId", b"requestId", b"id", b"progressToken", b"_meta"];
    let data = window.data();
    let session = if line.session.is_some() { line.session } else { line.params_session };
    let mut inner =
        Line { span: line.span, id: line.id, session, pool: line.pool, flags: line.flags, ..Line::default() };
    let mut seen = [false; KEYS.len()];
    let mut first = |at: usize, key: Span| {
        if core::mem::replace(&mut seen[at], true) { Err(key.start as usize) } else { Ok(()) }
    };
    let params = Members::of(data, line.span.start as usize).find(|(key, _)| is_name(data, *key, b"params"));
    let mut body = None;
    for (key, value) in params.into_iter().flat_map(|(_, params)| Members::of(data, params.start as usize)) {
        let Some(at) = KEYS[..2].iter().position(|name| is_name(data, key, name)) else { continue };
        first(at, key)?;
        match at {
            0 => inner.method = string(data, value),
            _ => body = Some(value.start as usize),
        }
    }
    for (key, value) in body.into_iter().flat_map(|body| Members::of(data, body)) {
        let Some(at) = KEYS[2..].iter().position(|name| is_name(data, key, name)) else { continue };
        first(2 + at, key)?;
        match at {
            0 => inner.params_session = string(data, value),
            1 => inner.request_id = token(data, value),
            2 => inner.params_id = token(data, value),
            3 => inner.token = token(data, value),
            _ if data[value.start as usize] == b'{' => inner.meta = value.start,
            _ => {}
        }
    }
    Ok(inner)
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
    const NAMES: [&[u8]; 2] = [b"progressToken", b"io.modelcontextprotocol/subscriptionId"];

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
    fn read(data: &[u8], at: usize) -> Self {
        // Most have a number as the token, and nothing else.
        if let Some(rest) = data[at..].strip_prefix(b"{\"progressToken\":") {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits > 0 && rest.get(digits) == Some(&b'}') {
                let start = data.len() - rest.len();
                let progress = Span { start: start as u32, end: (start + digits) as u32 };
                return Self { progress, ..Self::default() };
            }
        }
        Self::read_all(data, at)
    }

    fn read_all(data: &[u8], at: usize) -> Self {
        let (mut meta, mut seen) = (Self::default(), [false; 2]);
        for (key, value) in Members::of(data, at) {
            let Some(which) = Self::NAMES.iter().position(|name| is_name(data, key, name)) else { continue };
            if core::mem::replace(&mut seen[which], true) {
                meta.twice = key.start;
            }
            let value = token(data, value);
            if value.is_some() {
                *[&mut meta.progress, &mut meta.subscription][which] = value;
            }
        }
        meta
    }
}

/// Where the members of a valid object stand: its keys and their values.
struct Members<'a> {
    data: &'a [u8],
    /// The bracket or the comma before the next one.
    at: Option<usize>,
}

impl<'a> Members<'a> {
    /// Those of the value that begins at `at`, or after white space there. None if it is no object.
    #[inline]
    fn of(data: &'a [u8], at: usize) -> Self {
        Self { data, at: filled(data, at).filter(|at| data[*at] == b'{') }
    }
}

impl Iterator for Members<'_> {
    type Item = (Span, Span);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let data = self.data;
        let key = filled(data, self.at? + 1).filter(|key| data[*key] == b'"')?;
        let key_end = ends(data, key)?;
        let value = filled(data, filled(data, key_end)? + 1)?;
        let end = ends(data, value)?;
        self.at = filled(data, end).filter(|next| data[*next] == b',');
        let span = |start: usize, end: usize| Span { start: start as u32, end: end as u32 };
        Some((span(key, key_end), span(value, end)))
    }
}

/// Whether the key in this place is this name.
#[inline]
fn is_name(data: &[u8], key: Span, name: &[u8]) -> bool {
    let token = &data[key.start as usize..key.end as usize];
    let text = &token[1..token.len() - 1];
    text == name || text.len() > name.len() && text.contains(&b'\\') && *decoded(token) == *name
}

/// The value in this place, if it is a string.
fn string(data: &[u8], value: Span) -> Span {
    if data[value.start as usize] == b'"' { value } else { Span::default() }
}

/// The value in this place, if it is a string or a number.
#[inline]
fn token(data: &[u8], value: Span) -> Span {
    if matches!(data[value.start as usize], b'"' | b'-' | b'0'..=b'9') { value } else { Span::default() }
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
    if data[at] == b'"'
        && let Some(end) = short_string_ends(data, at + 1)
    {
        return Some(end);
    }
    Some(at + SkipValue::default().read(&data[at..])?)
}

/// Where a string ends whose text begins at `at`, if it has no escape and at most sixty-four bytes: eight at a time, since
/// keys are short.
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
            // The lowest mark of each is right.
            let quote = quotes.trailing_zeros();
            return (quote < escapes.trailing_zeros()).then(|| at + 8 * number + quote as usize / 8 + 1);
        }
    }
    None
}

/// The value of the member of this name in an object, which is valid JSON; none if there is no such member, or it is no
/// object.
pub fn member<'a>(object: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (_, value) = Members::of(object, 0).find(|(key, _)| is_name(object, *key, name))?;
    Some(&object[value.start as usize..value.end as usize])
}

/// A member stands twice in an object: two parsers could choose differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twice;

/// The value of the only member of this name in an object, which is valid JSON.
///
/// # Errors
/// There is more than one.
pub fn only_member<'a>(object: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Twice> {
    let mut found = Members::of(object, 0).filter(|(key, _)| is_name(object, *key, name));
    let first = found.next().map(|(_, value)| &object[value.start as usize..value.end as usize]);
    if found.next().is_some() { Err(Twice) } else { Ok(first) }
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

    #[test]
    fn the_objects_of_an_array_in_params_are_found() {
        let line = r#"{"params":{"x":"no","list" : [ 1 , {"a":"]"} ,[{}], { } ,"s",null,{"b":[{}]}]}}"#;
        let found: Vec<_> = objects_in_params(line.as_bytes(), b"list").collect();
        assert_eq!(found, [&br#"{"a":"]"}"#[..], b"{ }", br#"{"b":[{}]}"#]);
        for line in [r#"{"params":{"list":[]}}"#, r#"{"params":{"list":{"a":{}}}}"#, r#"{"params":[{}]}"#, "{}"] {
            assert_eq!(objects_in_params(line.as_bytes(), b"list").count(), 0, "{line}");
        }
    }

    /// The message in the params of one: its method and what it names, in the order of [`Line`].
    fn wrapped(text: &str) -> Result<Vec<String>, usize> {
        let mut padded = vec![b' '; crate::PAD];
        padded.extend_from_slice(text.as_bytes());
        padded.extend_from_slice(&[b' '; crate::PAD]);
        let window = Window::new(&padded, crate::PAD, crate::PAD + text.len());
        let whole = Span { start: 0, end: text.len() as u32 };
        let inner = wrapped_message(window, &Line { span: whole, ..Line::default() })?;
        let spans = [
            inner.method,
            inner.params_session,
            inner.request_id,
            inner.params_id,
            inner.token,
            Meta::of(window, &inner).progress,
        ];
        Ok(spans.into_iter().map(|span| String::from_utf8_lossy(window.get(span)).into_owned()).collect())
    }

    #[test]
    fn a_message_in_the_params_of_another_is_read_as_one() {
        let line = r#" {"id":1,"p\u0061rams" : {"x":{"method":"no"},"method":"m","params":{ "sessionId" : "s","requestId":-1,"id":"i","progressToken":2,"_meta":{"progressToken":3}}}}"#;
        assert_eq!(wrapped(line).unwrap(), [r#""m""#, r#""s""#, "-1", r#""i""#, "2", "3"]);
        let none = ["", "", "", "", "", ""];
        for line in ["{}", r#"{"params":[]}"#, r#"{"params":{"method":1,"params":[{"sessionId":"s"}]}}"#] {
            assert_eq!(wrapped(line).unwrap(), none, "{line}");
        }
        assert_eq!(wrapped(r#"{"params":{"params":{"sessionId":7,"_meta":1,"id":{}}}}"#).unwrap(), none);
        for line in [
            r#"{"params":{"method":"m","method":"n"}}"#,
            r#"{"params":{"params":1,"params":{}}}"#,
            r#"{"params":{"params":{"sessionId":"s","session\u0049d":"t"}}}"#,
        ] {
            assert!(wrapped(line).is_err(), "{line}");
        }
    }
}
