//! Members that routing needs in few messages only: they are searched for in the line, which the scanner has already
//! validated. In bytes that are not JSON something else may be found, or nothing.

use alloc::borrow::Cow;

use super::meta::Meta;
use super::object::{Members, ends, filled};
use super::string::{decoded, is_decoded, string_length};
use super::{Line, Span, Window};

/// Returns the decoded string member `name` of `params`, if there is one. `line` is a valid message.
pub fn string_in_params<'a>(line: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    string_in(params_of(line)?, name)
}

/// The `params` of a message and what follows them: where they end is not looked for, since they can be long.
fn params_of(line: &[u8]) -> Option<&[u8]> {
    let begin = Members::of(line, 0).begin_of(|key| is_name(line, key, b"params"))?;
    Some(&line[begin..])
}

/// Returns the decoded string member `name` of an object, if there is one.
pub fn string_in<'a>(object: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    member(object, name).and_then(decoded)
}

/// Returns the objects among the first `most` elements of the array member `name` of `params`, if there is one. `line` is a
/// valid message.
pub fn objects_in_params<'a>(line: &'a [u8], name: &[u8], most: usize) -> impl Iterator<Item = &'a [u8]> {
    elements_in(params_of(line).unwrap_or_default(), name).take(most).filter(|element| element.starts_with(b"{"))
}

/// Returns the decoded strings in the array member `name` of an object, if there is one.
pub fn strings_in<'a>(object: &'a [u8], name: &[u8]) -> impl Iterator<Item = Cow<'a, [u8]>> {
    elements_in(object, name).filter_map(decoded)
}

/// Returns the elements of the array member `name` of an object, if there is one.
fn elements_in<'a>(object: &'a [u8], name: &[u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let begin = Members::of(object, 0).begin_of(|key| is_name(object, key, name));
    let data = begin.map(|begin| &object[begin..]).filter(|it| it.starts_with(b"[")).unwrap_or_default();
    let mut at = Some(0);
    core::iter::from_fn(move || {
        let start = filled(data, at? + 1).filter(|start| data[*start] != b']')?;
        let end = ends(data, start)?;
        at = filled(data, end).filter(|next| data[*next] == b',');
        Some(&data[start..end])
    })
}

/// Reads the `params` of a line as a message with `method` and `params` of its own; all other fields are those of the
/// line. A session in the params of the line counts as one at top level.
///
/// # Errors
/// Where a routing key of the wrapped message occurs for the second time.
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
            _ => inner.meta = Meta::of(window, value.start as usize),
        }
    }
    Ok(inner)
}

/// What a message means depends on who reads it: a member occurs twice, or beside one whose name differs in case alone,
/// which some parsers take for the same (Go's encoding/json: <https://pkg.go.dev/encoding/json#Unmarshal>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

/// The `name` in the params of the message that `line` is, or that it wraps ([`wrapped_message`]): the tool that it calls, if
/// it does. It is a token; none if there is none, and an error if there may be another one.
///
/// # Errors
/// Some reader may find another method or other params.
pub fn name_in_params<'a>(window: &Window<'a>, line: &Line) -> Result<Result<Option<&'a [u8]>, Ambiguous>, Ambiguous> {
    let data = window.data();
    let mut levels = <[MemberValues; 3]>::default();
    let at = filled(data, line.span.start as usize).filter(|at| data[*at] == b'{').ok_or(Ambiguous)?;
    walk(data, at, &mut levels).ok_or(Ambiguous)?;
    let [outer, middle, inner] = levels;
    let is_wrapped = outer.method.value != line.method;
    let (message, params) = if is_wrapped { (&middle, &inner) } else { (&outer, &middle) };
    let is_clear =
        [&outer.method, &outer.params, &message.method, &message.params].iter().all(|found| !found.is_ambiguous);
    if !is_clear {
        return Err(Ambiguous);
    }
    if params.name.is_ambiguous {
        return Ok(Err(Ambiguous));
    }
    let name = params.name.value;
    Ok(Ok(name.is_some().then(|| &data[name.start as usize..name.end as usize])))
}

/// What readers find under a name.
#[derive(Clone, Copy, Default)]
struct FoundValue {
    value: Span,
    is_ambiguous: bool,
}

/// Members of a message, of its params, or of the params of these.
#[derive(Clone, Copy, Default)]
struct MemberValues {
    method: FoundValue,
    params: FoundValue,
    name: FoundValue,
}

/// Notes the members of the object at `at`, and of the params in it as long as there are levels. Returns where it ends.
fn walk(data: &[u8], at: usize, levels: &mut [MemberValues]) -> Option<usize> {
    let (here, below) = levels.split_first_mut()?;
    let mut at = filled(data, at + 1)?;
    if data[at] == b'}' {
        return Some(at + 1);
    }
    loop {
        let key_ends = ends(data, at)?;
        let value = filled(data, filled(data, key_ends)? + 1)?;
        let named = named(&data[at..key_ends]);
        let enters = matches!(named, Some((MemberName::Params, true))) && data[value] == b'{' && !below.is_empty();
        let end = if enters { walk(data, value, below)? } else { value_ends(data, value)? };
        if let Some((named, is_exact)) = named {
            let found = match named {
                MemberName::Method => &mut here.method,
                MemberName::Params => &mut here.params,
                MemberName::Name => &mut here.name,
            };
            found.is_ambiguous |= found.value.is_some() || !is_exact;
            found.value = Span { start: value as u32, end: end as u32 };
        }
        at = filled(data, end)?;
        if data[at] != b',' {
            return Some(at + 1);
        }
        at = filled(data, at + 1)?;
    }
}

/// A name that [`walk`] looks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberName {
    Method,
    Params,
    Name,
}

/// What a key is for some reader, and whether it is so for all.
#[inline]
fn named(key: &[u8]) -> Option<(MemberName, bool)> {
    let text = &key[1..key.len() - 1];
    let is = |named, name: &[u8]| text.eq_ignore_ascii_case(name).then_some((named, text == name));
    match text.len() {
        4 => is(MemberName::Name, b"name"),
        6 => is(MemberName::Method, b"method").or_else(|| is(MemberName::Params, b"params")),
        7..=36 if text.iter().any(|byte| *byte == b'\\' || !byte.is_ascii()) => named_otherwise(key),
        _ => None,
    }
}

/// The same for a key with an escape, or with a letter that counts as one of ASCII: a long s.
#[cold]
fn named_otherwise(key: &[u8]) -> Option<(MemberName, bool)> {
    let decoded = decoded(key)?;
    let text = core::str::from_utf8(&decoded).ok()?;
    let folded = |letter: char| if letter == '\u{17f}' { 's' } else { letter.to_ascii_lowercase() };
    let names = [(MemberName::Name, "name"), (MemberName::Method, "method"), (MemberName::Params, "params")];
    let (named, name) = names.into_iter().find(|(_, name)| text.chars().map(folded).eq(name.chars()))?;
    Some((named, text == name))
}

/// Where the value that begins at `at` ends: most are short.
#[inline]
fn value_ends(data: &[u8], at: usize) -> Option<usize> {
    match data[at] {
        b'"' => Some(at + string_length(&data[at..])),
        b'{' | b'[' => ends(data, at),
        _ => {
            let is_over = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
            Some(at + data[at..].iter().position(is_over)?)
        }
    }
}

/// Whether the key at this span is `name`.
#[inline]
fn is_name(data: &[u8], key: Span, name: &[u8]) -> bool {
    let token = &data[key.start as usize..key.end as usize];
    is_decoded(token, name)
}

/// The value at this span, if it is a string.
fn string(data: &[u8], value: Span) -> Span {
    if data[value.start as usize] == b'"' { value } else { Span::default() }
}

/// The value at this span, if it is a string or a number.
#[inline]
fn token(data: &[u8], value: Span) -> Span {
    if matches!(data[value.start as usize], b'"' | b'-' | b'0'..=b'9') { value } else { Span::default() }
}

/// Returns the value of the member `name` of an object, which is valid JSON; `None` if the member is absent or the
/// value is not an object.
pub fn member<'a>(object: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (_, value) = Members::of(object, 0).find(|(key, _)| is_name(object, *key, name))?;
    Some(&object[value.start as usize..value.end as usize])
}

/// Returns the values of these members of an object, which is valid JSON and has each of them once at most, in one walk.
pub fn members<'a, const N: usize>(object: &'a [u8], names: [&[u8]; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    for (key, value) in Members::of(object, 0) {
        if let Some(at) = names.iter().position(|name| is_name(object, key, name)) {
            values[at] = Some(&object[value.start as usize..value.end as usize]);
        }
    }
    values
}

/// Returns the members of an object, which is valid JSON, as tokens: key and value. None if it is no object.
pub fn all_members(object: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let token = |at: Span| &object[at.start as usize..at.end as usize];
    Members::of(object, 0).map(move |(key, value)| (token(key), token(value)))
}

/// Returns the place of the member `name` of the object at `at` with the comma that parts it from its neighbour, so that
/// what remains without these bytes is an object, too. `data[at..]` begins with a valid object. `value` is where the value
/// is, if that is known: then nothing else is looked at.
pub fn with_its_comma(data: &[u8], at: usize, name: &[u8], value: Span) -> Option<Span> {
    if value.is_some() {
        return around(data, at, value);
    }
    let mut before = None;
    for (key, value) in Members::of(data, at) {
        let after = value.end as usize;
        if !is_name(data, key, name) {
            before = Some(after);
            continue;
        }
        let comma = |end: usize| filled(data, end).filter(|comma| data[*comma] == b',');
        return Some(match (comma(after), before.and_then(comma)) {
            (Some(comma), _) => Span { start: key.start, end: comma as u32 + 1 },
            (None, Some(comma)) => Span { start: comma as u32, end: value.end },
            (None, None) => Span { start: key.start, end: value.end },
        });
    }
    None
}

/// The same for a member with this value, whose key has no quote in it.
fn around(data: &[u8], at: usize, value: Span) -> Option<Span> {
    let filled_before = |end: usize| data.get(at..end)?.iter().rposition(|byte| !matches!(byte, b' ' | b'\t' | b'\r'));
    let colon = at + filled_before(value.start as usize)?;
    let quote = at + filled_before(colon)?;
    let key = at + data[at..quote].iter().rposition(|byte| *byte == b'"')?;
    let before = at + filled_before(key)?;
    let after = filled(data, value.end as usize)?;
    Some(match (data[after], data[before]) {
        (b',', _) => Span { start: key as u32, end: after as u32 + 1 },
        (_, b',') => Span { start: before as u32, end: value.end },
        _ => Span { start: key as u32, end: value.end },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_in_params_is_found_at_any_position() {
        for line in [
            r#"{"params":{"x":"v"}}"#,
            r#" { "a" : [ {"params":{"x":"no"}} , 1 ] , "params" : { "y" : {"x":"no"} , "x" : "v" } }"#,
            r#"{"x":"no","p\u0061rams":{"n":-1.5e3,"t":true,"\u0078":"\u0076"}}"#,
        ] {
            assert_eq!(string_in_params(line.as_bytes(), b"x").as_deref(), Some(&b"v"[..]), "{line}");
        }
    }

    #[test]
    fn a_member_of_params_that_is_not_a_string_is_not_found() {
        for line in
            ["{}", r#"{"params":{}}"#, r#"{"params":[{"x":"v"}]}"#, r#"{"params":"x"}"#, r#"{"params":{"x":7}}"#]
        {
            assert_eq!(string_in_params(line.as_bytes(), b"x"), None, "{line}");
        }
    }

    #[test]
    fn several_members_are_found_in_one_walk() {
        let line = br#" {"x":{"id":7}, "result" : [1] ,"i\u0064":"a","y":null}"#;
        assert_eq!(members(line, [b"id", b"result", b"error"]), [Some(&br#""a""#[..]), Some(b"[1]"), None]);
        assert_eq!(members(b"[{}]", [b"id"]), [None]);
    }

    #[test]
    fn a_member_is_found_with_the_comma_that_has_to_go_with_it() {
        for (line, left) in [
            (r#"{"pool":"a","id":1}"#, r#"{"id":1}"#),
            (r#"{"id":1,"pool":"a"}"#, r#"{"id":1}"#),
            (r#" { "id" : 1 , "pool" : "a" , "x" : 2 } "#, r#" { "id" : 1 ,  "x" : 2 } "#),
            (r#"{ "id" : 1 , "pool" : "a" }"#, r#"{ "id" : 1  }"#),
            (r#"{ "pool" : "a" }"#, "{  }"),
            (r#"{"x":"pool", "po\u006fl" :"a"}"#, r#"{"x":"pool"}"#),
            (
                r#"{"x":{"pool":1,"y":[",\"pool\":2"]},"po\u006fl":{"pool":[{}]},"y":"pool"}"#,
                r#"{"x":{"pool":1,"y":[",\"pool\":2"]},"y":"pool"}"#,
            ),
        ] {
            let place = with_its_comma(line.as_bytes(), 0, b"pool", Span::default()).expect(line);
            if let Some(start) = line.find("\"a\"") {
                let value = Span { start: start as u32, end: start as u32 + 3 };
                assert_eq!(with_its_comma(line.as_bytes(), 0, b"pool", value), Some(place), "{line}");
            }
            let rest = [&line[..place.start as usize], &line[place.end as usize..]].concat();
            assert_eq!(rest, left, "{line}");
        }
        assert_eq!(with_its_comma(br#"{"x":{"pool":1}}"#, 0, b"pool", Span::default()), None);
    }

    /// These bytes with a pad before and after them.
    fn padded(text: &str) -> Vec<u8> {
        [&[b' '; crate::PAD], text.as_bytes(), &[b' '; crate::PAD]].concat()
    }

    /// The member `name` of the params that all readers find in a message.
    fn tool(text: &str) -> Result<Option<String>, Ambiguous> {
        let padded = padded(text);
        let window = Window::new(&padded, crate::PAD, crate::PAD + text.len());
        let span = Span { start: 0, end: text.len() as u32 };
        let method = Members::of(window.data(), 0).find(|(key, _)| is_name(window.data(), *key, b"method"));
        let bare = Line { span, method: method.map(|(_, value)| value).unwrap_or_default(), ..Line::default() };
        let line = if text.contains("proxy/successor") { wrapped_message(window, &bare).expect("clear") } else { bare };
        let name = name_in_params(&window, &line)??.and_then(decoded);
        Ok(name.map(|name| String::from_utf8(name.into_owned()).expect("UTF-8")))
    }

    #[test]
    fn the_params_and_their_members_are_those_that_any_reader_finds() {
        for line in [
            r#"{"method":"m","params":{"name":"t"}}"#,
            r#" { "p\u0061rams" : { "x":{"name":"no","Name":1}, "n\u0061me" : "\u0074" } ,"id":1, "method":"m"}"#,
            r#"{"method":"proxy/successor","params":{"params":{"name":"t"},"method":"m","name":"no"}}"#,
        ] {
            assert_eq!(tool(line), Ok(Some("t".into())), "{line}");
        }
        for line in [r#"{"method":"m"}"#, r#"{"params":{}}"#, r#"{"params":["name"]}"#, r#"{"params":{"name":1}}"#] {
            assert_eq!(tool(line), Ok(None), "{line}");
        }
        for line in [
            r#"{"method":"m","params":{"name":"t","name":"u"}}"#,
            r#"{"method":"m","params":{"name":"t","Name":"u"}}"#,
            r#"{"method":"m","params":{"NAM\u0045":"u"}}"#,
            r#"{"method":"m","Method":"n","params":{"name":"t"}}"#,
            r#"{"method":"m","params":{"name":"t"},"paramſ":{"name":"u"}}"#,
            r#"{"id":1,"result":{},"METHOD":"m"}"#,
            r#"{"method":"proxy/successor","params":{"params":{"name":"t"},"method":"m","Method":"n"}}"#,
        ] {
            assert_eq!(tool(line), Err(Ambiguous), "{line}");
        }
    }

    #[test]
    fn the_objects_of_an_array_in_params_are_found() {
        let line = r#"{"params":{"x":"no","list" : [ 1 , {"a":"]"} ,[{}], { } ,"s",null,{"b":[{}]}]}}"#;
        let found: Vec<_> = objects_in_params(line.as_bytes(), b"list", 16).collect();
        assert_eq!(found, [&br#"{"a":"]"}"#[..], b"{ }", br#"{"b":[{}]}"#]);
        for line in [r#"{"params":{"list":[]}}"#, r#"{"params":{"list":{"a":{}}}}"#, r#"{"params":[{}]}"#, "{}"] {
            assert_eq!(objects_in_params(line.as_bytes(), b"list", 16).count(), 0, "{line}");
        }
    }

    /// The message in the params of `text`: its method and the fields it names, in the order of [`Line`].
    fn wrapped(text: &str) -> Result<Vec<String>, usize> {
        let padded = padded(text);
        let window = Window::new(&padded, crate::PAD, crate::PAD + text.len());
        let whole = Span { start: 0, end: text.len() as u32 };
        let inner = wrapped_message(window, &Line { span: whole, ..Line::default() })?;
        let spans =
            [inner.method, inner.params_session, inner.request_id, inner.params_id, inner.token, inner.meta.progress];
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
