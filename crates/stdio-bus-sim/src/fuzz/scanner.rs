//! Any line: every instruction set judges it as serde_json and simd-json do, and finds the same fields.
//!
//! The bytes are the line; a newline counts as a carriage return, which is white space where a newline is.

use simd_json::ErrorType;
use simd_json::prelude::*;
use simd_json::tape::Value;

use super::SCANNERS;
use crate::oracle::{Judgement, as_judged, judge};
use crate::reading::read;
use crate::scan::{
    Fault, Line, PAD, Scanner, SkipValue, Span, Window, all_members, blank_returns, decoded, is_decoded, member,
    members, objects_in_params, string_in, string_in_params, strings_in, with_its_comma, wrapped_message,
};

/// Brackets of a line that serde_json may find too deep: it stops at 128 levels.
const DEEP: usize = 120;

/// Checks one line with all of them.
///
/// # Panics
/// If they disagree.
pub fn check(bytes: &[u8]) {
    let line: Vec<u8> = bytes.iter().map(|byte| if *byte == b'\n' { b'\r' } else { *byte }).collect();
    let stream = [&line[..], b"\n"].concat();
    SCANNERS.with_borrow_mut(|scanners| scanners.iter_mut().for_each(|scanner| check_with(scanner, &line, &stream)));
    check_unread(bytes);
}

/// Checks that whatever is offered beside the scanner takes bytes that no scanner has read, and that a string is decoded
/// as serde_json does.
fn check_unread(bytes: &[u8]) {
    let at = bytes.first().map_or(0, |first| usize::from(*first) % (bytes.len() + 2));
    let (begin, rest) = bytes.split_at(at.min(bytes.len()));
    for token in [bytes, begin, rest] {
        let decoded = decoded(token);
        if let Ok(text) = serde_json::from_slice::<String>(token)
            && token.trim_ascii() == token
        {
            assert_eq!(decoded.as_deref(), Some(text.as_bytes()));
        }
        assert!(decoded.is_none_or(|text| is_decoded(token, &text)));
        for name in [begin, b"params", b"id", b"k"] {
            let [value, _] = members(token, [name, b"method"]);
            assert!(value.is_none_or(|value| value.len() <= token.len()));
            let found = (member(token, name), string_in(token, name), string_in_params(token, name));
            assert!(found.1.is_none() || found.0.is_some());
            assert!(strings_in(token, name).chain(found.2).all(|text| text.len() <= token.len()));
            assert!(objects_in_params(token, name, usize::MAX).all(|object| object.starts_with(b"{")));
            for value in [Span::default(), Span { start: (at + bytes.len()) as u32 / 2, end: bytes.len() as u32 }] {
                let place = with_its_comma(token, at, name, value);
                assert!(place.is_none_or(|place| place.start <= place.end && place.end as usize <= token.len()));
            }
        }
        assert!(all_members(token).all(|(key, _)| key.starts_with(b"\"")));
        let mut skip = SkipValue::default();
        assert!(skip.read(token).is_none_or(|length| length <= token.len()));
        assert!(skip.read(rest).is_none_or(|length| length <= rest.len()));
        let mut blank = token.to_vec();
        blank_returns(&mut blank);
        assert!(!blank.contains(&b'\r'));
    }
    let padded = [&[b'"'; PAD][..], bytes, &[b'\\'; PAD][..]].concat();
    let window = Window::new(&padded, PAD, PAD + bytes.len());
    let span = Span { start: at as u32, end: bytes.len().max(at) as u32 };
    let inner = wrapped_message(window, &Line { span, ..Line::default() });
    assert!(inner.is_ok_and(|inner| inner.method.end as usize <= bytes.len()) || bytes.contains(&b'{'));
}

/// Checks one instruction set against both parsers.
fn check_with(scanner: &mut Scanner, line: &[u8], stream: &[u8]) {
    let set = scanner.set();
    let reading = read(scanner, stream, &[], b'"');
    let fault = reading.malformed.map(|(_, fault)| fault);
    let found = reading.lines.first();
    if fault.is_none() && found.is_none() {
        assert!(line.iter().all(|byte| b" \t\r".contains(byte)), "{set:?}: a line that is not blank was passed over");
        return;
    }
    if line.iter().filter(|byte| b"[{".contains(byte)).count() < DEEP {
        match (judge(line), found) {
            // A name that serde_json cannot represent may accompany a duplicate routing key.
            (Judgement::Undecided, found) => {
                assert!(found.is_some() || fault == Some(Fault::DuplicateKey), "{set:?}: {fault:?}");
            }
            (Judgement::Malformed, found) => assert_eq!(found, None, "{set:?}: serde_json refuses it"),
            (judgement, Some(found)) => assert_eq!(as_judged(stream, found), judgement, "{set:?}"),
            (judgement, None) => panic!("{set:?}: {fault:?}, and serde_json reads {judgement:?}"),
        }
    }
    let mut scratch = line.to_vec();
    match (simd_json::to_tape(&mut scratch), found) {
        (Ok(tape), Some(found)) => check_fields(stream, found, tape.as_value()),
        // simd-json does not check depth, duplicate routing keys, or that the value is an object.
        (Ok(_), None) => assert_ne!(fault, Some(Fault::Syntax), "{set:?}: simd-json reads it"),
        (Err(error), Some(_)) => {
            assert!(is_only_unreadable(error.error()), "{set:?}: simd-json refuses it: {error}");
        }
        (Err(_), None) => {}
    }
}

/// Whether simd-json could not represent a value: a number out of range, or a lone surrogate escape.
fn is_only_unreadable(error: &ErrorType) -> bool {
    matches!(error, ErrorType::InvalidNumber | ErrorType::Overflow | ErrorType::InvalidUnicodeCodepoint)
}

/// Compares the fields of a line with simd-json's members of the same names.
fn check_fields(stream: &[u8], line: &Line, top: Value<'_, '_>) {
    let (params, result) = (top.get("params"), top.get("result"));
    let strings = [
        ("method", line.method, top.get("method")),
        ("sessionId", line.session, top.get("sessionId")),
        ("pool", line.pool, top.get("pool")),
        ("params.sessionId", line.params_session, inside(params.as_ref(), "sessionId")),
        ("result.sessionId", line.result_session, inside(result.as_ref(), "sessionId")),
    ];
    for (name, span, value) in strings {
        let text = value.as_ref().and_then(|value| value.as_str()).map(str::as_bytes);
        assert_eq!(token(stream, span).and_then(decoded).as_deref(), text, "{name}");
    }
    let names = [
        ("id", line.id, top.get("id")),
        ("params.requestId", line.request_id, inside(params.as_ref(), "requestId")),
        ("params.id", line.params_id, inside(params.as_ref(), "id")),
        ("params.progressToken", line.token, inside(params.as_ref(), "progressToken")),
    ];
    for (name, span, value) in names {
        let value = value.filter(|value| value.is_str() || value.is_number());
        match (token(stream, span), value) {
            (None, None) => {}
            (Some(token @ [b'"', ..]), Some(value)) => {
                assert_eq!(decoded(token).as_deref(), value.as_str().map(str::as_bytes), "{name}");
            }
            (Some(token), Some(value)) => {
                let number = str::from_utf8(token).ok().and_then(|token| token.parse::<f64>().ok());
                assert_eq!(number, value.cast_f64(), "{name}");
            }
            (token, value) => panic!("{name}: {token:?} and {}", value.is_some()),
        }
    }
    let meta = |object: Option<&_>| inside(object, "_meta").filter(|meta| meta.is_object());
    let meta = meta(params.as_ref()).or(meta(result.as_ref()));
    assert!(line.meta.is_empty() || meta.is_some());
    assert_eq!(line.has(Line::RESULT), result.is_some());
    assert_eq!(line.has(Line::ERROR), top.get("error").is_some());
    assert_eq!(line.has(Line::ID_NULL), top.get("id").is_some_and(|id| id.is_null()));
}

/// A member of an optional object.
fn inside<'t, 'i>(object: Option<&Value<'t, 'i>>, name: &str) -> Option<Value<'t, 'i>> {
    object.and_then(|object| object.get(name))
}

fn token(stream: &[u8], span: Span) -> Option<&[u8]> {
    span.is_some().then(|| &stream[span.start as usize..span.end as usize])
}
