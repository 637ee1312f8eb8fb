//! Messages that can be recognised: each carries its number, and is kept in pieces, so that what arrives can be
//! compared to the byte with what was sent, but for the ids that the bus may replace.

use serde_json::Value;

use super::Random;

/// A peer of the world, by its place in the lists of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A client.
    Client(usize),
    /// A worker.
    Worker(usize),
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wants an answer.
    Request,
    /// Wants none.
    Notification,
    /// Is one.
    Response,
    /// White space: ignored.
    Blank,
    /// Not a message: its sender is not heard any more.
    Malformed,
    /// Above max_input_buffer: the same.
    TooLong,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Arrives as it is.
    Text(String),
    /// The token of `id`.
    Id(String),
    /// The token of `params.requestId`.
    RequestId(String),
}

impl Piece {
    fn text(&self) -> &str {
        let (Self::Text(text) | Self::Id(text) | Self::RequestId(text)) = self;
        text
    }
}

/// A line that somebody wrote.
#[derive(Clone, Debug)]
pub struct Line {
    /// Who.
    pub from: Who,
    /// What.
    pub kind: Kind,
    /// The token of its id.
    pub id: Option<String>,
    /// The token of its `params.requestId`.
    pub request_id: Option<String>,
    /// Its sessionId, wherever it stands.
    pub session: Option<String>,
    /// The pool it names.
    pub pool: Option<String>,
    /// It is a response with a result.
    pub result: bool,
    /// The session that its result names.
    pub result_session: Option<String>,
    /// Its method.
    pub method: &'static str,
    /// All of it, without the newline.
    pub pieces: Vec<Piece>,
}

/// What a line is made of.
#[derive(Default)]
pub struct Draft {
    /// See [`Line::id`].
    pub id: Option<String>,
    /// See [`Line::request_id`].
    pub request_id: Option<String>,
    /// See [`Line::session`].
    pub session: Option<String>,
    /// The sessionId stands at top level.
    pub session_on_top: bool,
    /// See [`Line::pool`].
    pub pool: Option<String>,
    /// See [`Line::method`]; empty for a response.
    pub method: &'static str,
    /// A response with a result; the other ones have an error.
    pub result: bool,
    /// See [`Line::result_session`].
    pub result_session: Option<String>,
    /// Bytes that only make it longer.
    pub padding: usize,
}

impl Line {
    /// The line number `number`, of `from`.
    pub fn new(number: usize, from: Who, draft: Draft, random: &mut Random) -> Self {
        use Piece::{Id, RequestId, Text};
        let text = |text: String| vec![Text(text)];
        let mut members: Vec<(&str, Vec<Piece>)> = vec![("tag", text(format!("\"{number};\"")))];
        if let Some(id) = &draft.id {
            members.push(("id", vec![Id(id.clone())]));
        }
        if let Some(pool) = &draft.pool {
            members.push(("pool", text(format!("\"{pool}\""))));
        }
        let padding = text(format!("\"{}\"", "é{[\\\"".repeat(draft.padding / 7)));
        let mut inner = vec![("padding", padding), ("id", text(format!("{}", random.range(0..9))))];
        if let Some(session) = &draft.session {
            let spelled = spell_string(session, random);
            if draft.session_on_top { &mut members } else { &mut inner }.push(("sessionId", text(spelled)));
        }
        if let Some(session) = &draft.result_session {
            inner.push(("sessionId", text(spell_string(session, random))));
        }
        if let Some(request_id) = &draft.request_id {
            inner.push(("requestId", vec![RequestId(request_id.clone())]));
        }
        random.shuffle(&mut inner);
        let inner = object(inner, random);
        let kind = if draft.method.is_empty() {
            members.push((if draft.result { "result" } else { "error" }, inner));
            Kind::Response
        } else {
            members.push(("method", text(format!("\"{}\"", draft.method))));
            members.push(("params", inner));
            if draft.id.is_some() { Kind::Request } else { Kind::Notification }
        };
        members.push(("jsonrpc", text("\"2.0\"".into())));
        random.shuffle(&mut members);
        Self {
            from,
            kind,
            id: draft.id,
            request_id: draft.request_id,
            session: draft.session,
            pool: draft.pool,
            result: draft.result && draft.method.is_empty(),
            result_session: draft.result_session,
            method: draft.method,
            pieces: merged(object(members, random)),
        }
    }

    /// A line that is no message, or a blank one.
    pub fn raw(from: Who, kind: Kind, text: String) -> Self {
        Self {
            from,
            kind,
            id: None,
            request_id: None,
            session: None,
            pool: None,
            result: false,
            result_session: None,
            method: "",
            pieces: vec![Piece::Text(text)],
        }
    }

    /// Its bytes with the newline.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.pieces.iter().flat_map(|piece| piece.text().bytes()).collect();
        bytes.push(b'\n');
        bytes
    }

    /// The ids in `received`, in the order of the pieces, if all other bytes are those of this line.
    pub fn ids_in(&self, received: &[u8]) -> Option<Vec<String>> {
        let mut rest = received;
        let mut ids = Vec::new();
        let mut open = false;
        for piece in &self.pieces {
            let Piece::Text(text) = piece else {
                open = true;
                continue;
            };
            let at = memchr::memmem::find(rest, text.as_bytes())?;
            if open {
                ids.push(String::from_utf8(rest[..at].to_vec()).ok()?);
            } else if at != 0 {
                return None;
            }
            open = false;
            rest = &rest[at + text.len()..];
        }
        (rest == b"\n").then_some(ids)
    }

    /// The id of `received` and its requestId.
    pub fn ids_of(&self, received: &[u8]) -> Option<(Option<String>, Option<String>)> {
        let mut ids = (None, None);
        let mut found = self.ids_in(received)?.into_iter();
        for piece in &self.pieces {
            match piece {
                Piece::Id(_) => ids.0 = found.next(),
                Piece::RequestId(_) => ids.1 = found.next(),
                Piece::Text(_) => {}
            }
        }
        Some(ids)
    }
}

/// The number of the line that these bytes are; none for one that the bus made itself.
pub fn number_of(received: &[u8]) -> Option<usize> {
    let value: Value = serde_json::from_slice(received).expect("the bus writes JSON");
    value["tag"].as_str().map(|tag| tag.trim_end_matches(';').parse().expect("a tag is a number"))
}

/// What an id token means: equal texts are equal ids.
pub fn meaning(token: &str) -> String {
    match serde_json::from_str(token).expect("an id is JSON") {
        Value::String(text) => format!("\"{text}\""),
        Value::Number(number) => format!("{}", number.as_f64().expect("an id fits")),
        other => panic!("{other} is no id"),
    }
}

/// One of the ways to write an id.
pub fn spell_id(number: usize, random: &mut Random) -> String {
    match random.range(0..12) {
        0 => format!("{number}.0"),
        1 => format!("{number}e0"),
        2 | 3 => format!("\"{number}\""),
        4 => spell_string(&number.to_string(), random),
        _ => number.to_string(),
    }
}

fn spell_string(text: &str, random: &mut Random) -> String {
    let escaped = random.range(0..text.len() + 4);
    let spelled: String = text
        .chars()
        .enumerate()
        .map(|(at, letter)| if at == escaped { format!("\\u{:04x}", u32::from(letter)) } else { letter.to_string() })
        .collect();
    format!("\"{spelled}\"")
}

fn object(members: Vec<(&str, Vec<Piece>)>, random: &mut Random) -> Vec<Piece> {
    let mut pieces = vec![Piece::Text("{".into())];
    for (place, (key, value)) in members.into_iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        let space = if random.one_in(8) { " " } else { "" };
        let key = if random.one_in(20) { spell_string(key, random) } else { format!("\"{key}\"") };
        pieces.push(Piece::Text(format!("{comma}{space}{key}:{space}")));
        pieces.extend(value);
    }
    pieces.push(Piece::Text("}".into()));
    pieces
}

fn merged(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (merged.last_mut(), piece) {
            (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(&text),
            (_, piece) => merged.push(piece),
        }
    }
    merged
}
