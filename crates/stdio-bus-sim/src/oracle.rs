//! An independent oracle: serde_json on bytes that were checked to be UTF-8 accepts exactly the valid lines and returns
//! their members in order, repeated keys included.

use crate::scan::{Line, Span};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The oracle's verdict on a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Not a message, or one with a duplicate routing key.
    Malformed,
    /// A message with these fields, in the order of [`Line`], and whether one of its `_meta` names occurs twice.
    Message(Box<[Option<String>; 11]>, u32, bool),
    /// Valid, but with a key that serde_json cannot decode: a lone surrogate escape.
    Undecided,
}

/// Judges one line that is not blank. serde_json stops at 128 levels, so deeper lines must be excluded.
pub(super) fn judge(line: &[u8]) -> Judgement {
    let Ok(text) = std::str::from_utf8(line) else { return Judgement::Malformed };
    if serde_json::from_str::<IgnoredAny>(text).is_err() || !text.trim_ascii_start().starts_with('{') {
        return Judgement::Malformed;
    }
    match members(text) {
        None => Judgement::Undecided,
        Some(top) => match fields(&top) {
            // In a string it would be malformed.
            Some(Judgement::Message(tokens, flags, twice))
                if text.strip_suffix('\r').unwrap_or(text).contains('\r') =>
            {
                Judgement::Message(tokens, flags | Line::LONE_RETURN, twice)
            }
            found => found.unwrap_or(Judgement::Malformed),
        },
    }
}

/// The fields of a message, or `None` if a routing key occurs twice.
fn fields(top: &[(String, Box<RawValue>)]) -> Option<Judgement> {
    // The only member of this name, `Err` if there are two.
    fn one<'a>(members: &'a [(String, Box<RawValue>)], name: &str) -> Result<Option<&'a str>, ()> {
        let mut found = members.iter().filter(|(key, _)| key == name).map(|(_, value)| value.get());
        let first = found.next();
        if found.next().is_some() { Err(()) } else { Ok(first) }
    }
    let inner = |name: &str| match one(top, name)? {
        Some(object) if object.starts_with('{') => members(object).ok_or(()),
        _ => Ok(Vec::new()),
    };
    let (params, result) = match (inner("params"), inner("result")) {
        (Ok(params), Ok(result)) => (params, result),
        // Either a key occurs twice, or one cannot be decoded.
        _ if one(top, "params").is_err() || one(top, "result").is_err() => return None,
        _ => return Some(Judgement::Undecided),
    };
    let string = |value: Option<&str>| value.filter(|value| value.starts_with('"')).map(str::to_owned);
    let name = |value: Option<&str>| {
        value.filter(|value| value.starts_with(['"', '-']) || value.as_bytes()[0].is_ascii_digit()).map(str::to_owned)
    };
    let object = |value: Option<&str>| value.filter(|value| value.starts_with('{')).map(str::to_owned);
    let meta = object(one(&params, "_meta").ok()?).or(object(one(&result, "_meta").ok()?));
    let Some(meta) = members(meta.as_deref().unwrap_or("{}")) else { return Some(Judgement::Undecided) };
    let in_meta = |name: &str| meta.iter().filter(|(key, _)| key == name).map(|(_, value)| value.get()).collect();
    let in_meta: [Vec<_>; 2] = ["progressToken", "io.modelcontextprotocol/subscriptionId"].map(in_meta);
    let last = |values: &[&str]| values.iter().rev().find_map(|value| name(Some(*value)));
    let id = one(top, "id").ok()?;
    let tokens = [
        name(id),
        string(one(top, "method").ok()?),
        string(one(top, "sessionId").ok()?),
        string(one(&params, "sessionId").ok()?),
        string(one(&result, "sessionId").ok()?),
        string(one(top, "pool").ok()?),
        name(one(&params, "requestId").ok()?),
        name(one(&params, "id").ok()?),
        name(one(&params, "progressToken").ok()?),
        last(&in_meta[0]),
        last(&in_meta[1]),
    ];
    let mut flags = 0;
    if one(top, "result").ok()?.is_some() {
        flags |= Line::RESULT;
    }
    if one(top, "error").ok()?.is_some() {
        flags |= Line::ERROR;
    }
    if one(top, "pool").ok()?.is_some() {
        flags |= Line::POOL;
    }
    if one(&result, "taskId").ok()?.is_some() {
        flags |= Line::TASK;
    }
    match id {
        Some("null") => flags |= Line::ID_NULL,
        Some(_) if tokens[0].is_none() => flags |= Line::ID_INVALID,
        _ => {}
    }
    Some(Judgement::Message(Box::new(tokens), flags, in_meta.iter().any(|values| values.len() > 1)))
}

/// The scanner's result in the oracle's terms.
pub(super) fn as_judged(stream: &[u8], line: &Line) -> Judgement {
    let meta = &line.meta;
    let tokens = [
        line.id,
        line.method,
        line.session,
        line.params_session,
        line.result_session,
        line.pool,
        line.request_id,
        line.params_id,
        line.token,
        meta.progress,
        meta.subscription,
    ];
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a valid line is UTF-8");
    let token = |span: Span| span.is_some().then(|| text(&stream[span.start as usize..span.end as usize]));
    Judgement::Message(Box::new(tokens.map(token)), line.flags, meta.twice > 0)
}

/// The members of an object in order, or `None` if a key cannot be decoded.
fn members(object: &str) -> Option<Vec<(String, Box<RawValue>)>> {
    serde_json::from_str::<Members>(object).ok().map(|members| members.0)
}

struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
