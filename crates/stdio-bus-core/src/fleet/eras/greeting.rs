//! What is kept of the `initialize` of clients that share workers: by each client what it has said, and by each worker what
//! it has been asked and has accepted (`opening.rs`, which has the rules).

use alloc::boxed::Box;
use alloc::vec::Vec;

use ndjson_scan::{Line, Span, all_members, blank_returns, decoded, member};

use crate::id::Id;
use crate::index::FleetId;
use crate::message::Parsed;
use crate::peer::{ClientKey, Moment, RequestKey, hash_of_name};

/// Objects in the capabilities that are nested more deeply are compared as they are written.
const DEEPEST: usize = 4;

/// A line that is kept without its id.
#[derive(Clone)]
pub(crate) struct KeptLine {
    /// With its newline.
    pub(in crate::fleet) text: Box<[u8]>,
    /// Where the id is to be, in ascending order; several if it is the progress token, too.
    ids: Box<[u32]>,
}

impl KeptLine {
    /// Keeps a line without what is not for its receiver. Each of these spans is the id.
    pub(crate) fn of(line: Parsed<'_>, ids: &[Span], left_out: Option<Span>) -> Self {
        let ids = ids.iter().filter(|span| span.is_some()).map(|span| (*span, true));
        let mut pieces: Vec<(Span, bool)> = ids.chain(left_out.map(|span| (span, false))).collect();
        pieces.sort_unstable_by_key(|(span, _)| span.start);
        let (mut text, mut places, mut from) = (Vec::with_capacity(line.span.len() + 1), Vec::new(), line.span.start);
        for (span, is_id) in pieces {
            text.extend_from_slice(line.get(Span { start: from, end: span.start }));
            from = span.end;
            if is_id {
                places.push(text.len() as u32);
            }
        }
        text.extend_from_slice(line.get(Span { start: from, end: line.span.end }));
        if line.has(Line::LONE_RETURN) {
            // Some readers end a line there. None is in a string, where it would be malformed.
            blank_returns(&mut text);
        }
        text.push(b'\n');
        Self { text: text.into(), ids: places.into() }
    }

    /// The line with this id, a JSON token.
    pub(crate) fn with(&self, id: &[u8]) -> Vec<u8> {
        let (mut line, mut from) = (Vec::with_capacity(self.text.len() + id.len()), 0);
        for at in self.ids.iter().map(|at| *at as usize) {
            line.extend_from_slice(&self.text[from..at]);
            line.extend_from_slice(id);
            from = at;
        }
        line.extend_from_slice(&self.text[from..]);
        line
    }
}

/// The `initialize` that a client sent to a pool whose workers it shares, and how far it was accepted.
pub(crate) struct Opening {
    pub(in crate::fleet) fleet: FleetId,
    /// What its last `initialize` has asked for.
    pub(in crate::fleet) alike: u64,
    /// It has got a result for it.
    pub(in crate::fleet) is_accepted: bool,
    /// That `initialize`; none if it was too large, or workers have ended over it.
    pub(in crate::fleet) line: Option<KeptLine>,
    /// Its id was a string.
    pub(in crate::fleet) is_string: bool,
    /// The notification that followed.
    pub(in crate::fleet) initialized: Option<Box<[u8]>>,
    /// How many workers have ended before they answered it when it was sent again.
    pub(in crate::fleet) ends: u8,
}

impl Opening {
    pub(crate) fn bytes(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.text.len()) + self.initialized.as_ref().map_or(0, |line| line.len())
    }
}

/// An `initialize` that a worker has not answered.
pub(crate) struct PendingInitialize {
    /// Its id at the worker.
    pub(in crate::fleet) id: Id,
    pub(in crate::fleet) alike: u64,
    pub(in crate::fleet) client: ClientKey,
    pub(in crate::fleet) since: Moment,
    /// The bus has sent it again.
    pub(in crate::fleet) is_again: bool,
}

/// The refusal of an `initialize`, while one that is alike is not answered yet.
pub(crate) struct RefusedInitialize {
    pub(in crate::fleet) request: RequestKey,
    pub(in crate::fleet) alike: u64,
    pub(in crate::fleet) answer: KeptLine,
    /// When it is held back no longer.
    pub(in crate::fleet) until: Moment,
}

impl RefusedInitialize {
    /// The request, and the refusal that answers it.
    pub(crate) fn into_parts(self) -> (RequestKey, KeptLine) {
        (self.request, self.answer)
    }
}

/// The `initialize` requests of the clients that share a worker.
#[derive(Default)]
pub(crate) struct Greeting {
    pub(in crate::fleet) asked: Vec<PendingInitialize>,
    /// What those asked for that it has answered with a result.
    pub(in crate::fleet) accepted: Vec<u64>,
    /// The first of these answers, and what was asked for.
    pub(in crate::fleet) first: Option<(u64, KeptLine)>,
    /// Refusals that are held back.
    pub(in crate::fleet) refused: Vec<RefusedInitialize>,
    /// One that was sent again is not answered: lines of clients may have to wait.
    pub(in crate::fleet) is_asking: bool,
    /// It was sent the notification that follows, after the last one that it has accepted.
    pub(in crate::fleet) is_ready: bool,
    /// It has refused one that was like the first.
    pub(in crate::fleet) takes_one: bool,
}

impl Greeting {
    /// Whether lines of clients may have to wait.
    #[inline(always)]
    pub(crate) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// The id of an `initialize` that the bus has sent again and that is not answered.
    pub(crate) fn asked_by_bus(&self) -> Option<&Id> {
        self.asked.iter().find(|asked| asked.is_again).map(|asked| &asked.id)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.first.as_ref().map_or(0, |(_, line)| line.text.len())
    }
}

/// What an `initialize` asks for: the version of the protocol and the capabilities of the client, however they are
/// written; all of its params if it names no version.
pub(crate) fn alike(line: &[u8]) -> u64 {
    let mut params = member(line, b"params").unwrap_or_default();
    if member(params, b"protocolVersion").is_none() {
        // In an envelope.
        params = member(params, b"params").unwrap_or(params);
    }
    let Some(version) = member(params, b"protocolVersion") else { return meaning(params, 0).unwrap_or(0) };
    let capabilities = [b"clientCapabilities".as_slice(), b"capabilities"].map(|name| member(params, name));
    let capabilities = capabilities.map(|value| value.and_then(|value| meaning(value, 0)).unwrap_or(EMPTY));
    together(meaning(version, 0).unwrap_or(0), together(capabilities[0], capabilities[1]))
}

/// The meaning of an object without members.
const EMPTY: u64 = 1;

/// A number for a value that does not depend on blanks and the order of members; none for what stands for an absent
/// member: null and false.
fn meaning(value: &[u8], depth: usize) -> Option<u64> {
    match value.first()? {
        b'n' | b'f' => None,
        b'"' => Some(hash_of_name(&decoded(value)?)),
        b'{' if depth < DEEPEST => Some(all_members(value).fold(EMPTY, |sum, (key, value)| {
            let member = meaning(value, depth + 1).zip(decoded(key));
            let member = member.map(|(value, key)| together(hash_of_name(&key), value));
            sum.wrapping_add(member.unwrap_or(0))
        })),
        _ => {
            let mut text = value.to_vec();
            text.retain(|byte| !byte.is_ascii_whitespace());
            Some(hash_of_name(&text))
        }
    }
}

fn together(one: u64, other: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&one.to_le_bytes());
    bytes[8..].copy_from_slice(&other.to_le_bytes());
    hash_of_name(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_initialize_asks_for_does_not_depend_on_how_it_is_written() {
        let of = |params: &str| alike(format!(r#"{{"id":1,"method":"initialize","params":{params}}}"#).as_bytes());
        let one = of(r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true},"terminal":true}}"#);
        for same in [
            r#"{"clientInfo":{"name":"a"},"clientCapabilities":{"terminal":true,"fs":{"readTextFile":true}},"protocolVersion":1}"#,
            r#"{ "protocolVersion" : 1, "clientCapabilities" : { "fs" : { "readText\u0046ile" : true, "writeTextFile": false }, "terminal" : true, "x": null } }"#,
        ] {
            assert_eq!(of(same), one, "{same}");
        }
        for other in [
            r#"{"protocolVersion":2,"clientCapabilities":{"fs":{"readTextFile":true},"terminal":true}}"#,
            r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true}}}"#,
            r#"{"protocolVersion":1,"clientCapabilities":{"fs":{},"terminal":true}}"#,
            r#"{"protocolVersion":1}"#,
        ] {
            assert_ne!(of(other), one, "{other}");
        }
        assert_eq!(of(r#"{"protocolVersion":"a","capabilities":{}}"#), of(r#"{"protocolVersion":"a"}"#));
        assert_ne!(of(r#"{"protocolVersion":"a","capabilities":{"roots":{}}}"#), of(r#"{"protocolVersion":"a"}"#));
        assert_ne!(of(r#"{"processId":1}"#), of(r#"{"processId":2}"#), "without a version all counts");
        let wrapped = r#"{"id":1,"method":"proxy/successor","params":{"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"terminal":true,"fs":{"readTextFile":true}}}}}"#;
        assert_eq!(alike(wrapped.as_bytes()), one);
    }
}
