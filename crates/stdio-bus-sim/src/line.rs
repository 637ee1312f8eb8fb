//! Recognisable messages: each carries its number, and is kept in pieces, so that received bytes can be compared
//! exactly with the sent ones, except for the ids that the bus may replace.

use std::ops::Deref;

use serde_json::Value;

use super::Random;

/// A peer of the world, by its index in the world's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Client(usize),
    Worker(usize),
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Expects an answer.
    Request,
    /// Expects none.
    Notification,
    /// An answer.
    Response,
    /// White space: ignored.
    Blank,
    /// Not a message: its sender is not read any more.
    Malformed,
    /// Longer than max_input_buffer: the same.
    TooLong,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Arrives unchanged.
    Text(String),
    /// The token of `id`.
    Id(String),
    /// The token of `params.requestId`.
    RequestId(String),
    /// The token of `params.id`, in a cancellation.
    ParamsId(String),
    /// The progress token in the `_meta` of a request.
    Token(String),
    /// The progress token in a notification.
    Progress(String),
    /// The subscriptionId in `_meta`.
    Subscription(String),
}

impl Piece {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Id(text) | Self::RequestId(text) | Self::ParamsId(text) => text,
            Self::Token(text) | Self::Progress(text) | Self::Subscription(text) => text,
        }
    }
}

/// What a worker knew of a session when it wrote a line in it.
#[derive(Clone, Debug)]
pub struct Meant {
    pub name: String,
    /// The client for which it kept the session.
    pub owner: usize,
    /// Whether the worker had created or loaded it, not only seen its name.
    pub issued: bool,
}

/// A line written by a peer.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its sender.
    pub from: Party,
    pub kind: Kind,
    /// What was to be written.
    pub(crate) draft: Draft,
    /// All of it, without the newline.
    pub pieces: Vec<Piece>,
    /// What a worker gets of it, if that is not the same: the pool is for the bus alone, and a carriage return is a
    /// blank.
    for_worker: Option<Vec<Piece>>,
}

impl Deref for Line {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.draft
    }
}

/// The content of a line.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Its tokens.
    pub ids: Ids,
    /// The request that it belongs to, if its sender knows that it is not over.
    pub referred_to: Option<usize>,
    /// The name in its sessionId at top level, if it has one.
    pub top: Option<String>,
    /// A token at top level instead of it.
    pub junk_on_top: Option<&'static str>,
    /// The name in its sessionId in params, if it has one.
    pub inner: Option<String>,
    /// A token in params instead of it.
    pub junk_inside: Option<&'static str>,
    /// The pool it names.
    pub pool: Option<String>,
    /// Its method; empty for a response.
    pub method: &'static str,
    /// A response with a result; other responses have an error.
    pub result: bool,
    /// The session that its result names.
    pub result_session: Option<String>,
    /// The line that a worker answers with this one; none if the answer is unsolicited.
    pub answers: Option<usize>,
    /// A worker has already sent the same answer.
    pub again: bool,
    /// The answered request that a worker speaks of.
    pub over: Option<usize>,
    /// The session that a worker speaks in.
    pub meant_for: Option<Meant>,
    /// Bytes that only make it longer.
    pub padding: usize,
}

/// The content of `_meta` of a message, if it has one.
fn meta(draft: &Draft, random: &mut Random) -> Option<Vec<Piece>> {
    let token = draft.ids.token.iter().map(|token| ("progressToken", vec![Piece::Token(token.clone())]));
    let subscription = |id: &String| ("io.modelcontextprotocol/subscriptionId", vec![Piece::Subscription(id.clone())]);
    let mut meta: Vec<_> = token.chain(draft.ids.subscription.iter().map(subscription)).collect();
    if meta.is_empty() && !random.one_in(12) {
        return None;
    }
    meta.push(("progress", vec![Piece::Text("{\"progressToken\":[\"}\"]}".into())]));
    random.shuffle(&mut meta);
    Some(object(meta, random))
}

impl Line {
    /// Line number `number` from peer `from`.
    pub fn new(number: usize, from: Party, mut draft: Draft, random: &mut Random) -> Self {
        use Piece::{Id, ParamsId, Progress, RequestId, Text};
        let text = |text: String| vec![Text(text)];
        let mut members: Vec<(&str, Vec<Piece>)> = vec![("tag", text(format!("\"{number};\"")))];
        if let Some(id) = &draft.ids.id {
            members.push(("id", vec![Id(id.clone())]));
        }
        if let Some(pool) = &draft.pool {
            members.push(("pool", text(format!("\"{pool}\""))));
        }
        let padding = text(format!("\"{}\"", "é{[\\\"".repeat(draft.padding / 7)));
        let mut inner = vec![("padding", padding)];
        if let Some(id) = &draft.ids.params_id {
            inner.push(("id", vec![ParamsId(id.clone())]));
        } else if !is_cancellation(draft.method) && random.one_in(4) {
            // It has no meaning there, but such a line takes the slow path.
            inner.push(("id", text(format!("{}", random.range(0..9)))));
        }
        let places = [(&draft.top, draft.junk_on_top, &mut members), (&draft.inner, draft.junk_inside, &mut inner)];
        for (name, junk, members) in places {
            let spelled = name.as_ref().map(|name| spell_string(name, random)).or(junk.map(str::to_owned));
            members.extend(spelled.map(|spelled| ("sessionId", text(spelled))));
        }
        if let Some(session) = &draft.result_session {
            inner.push(("sessionId", text(spell_string(session, random))));
        }
        if let Some(request_id) = &draft.ids.request_id {
            inner.push(("requestId", vec![RequestId(request_id.clone())]));
        }
        if let Some(progress) = &draft.ids.progress {
            inner.push(("progressToken", vec![Progress(progress.clone())]));
        }
        inner.extend(meta(&draft, random).map(|meta| ("_meta", meta)));
        random.shuffle(&mut inner);
        let inner = object(inner, random);
        let kind = if draft.method.is_empty() {
            members.push((if draft.result { "result" } else { "error" }, inner));
            Kind::Response
        } else {
            let plain = format!("\"{}\"", draft.method);
            let spelled = if random.one_in(12) { spell_string(draft.method, random) } else { plain };
            members.push(("method", text(spelled)));
            members.push(("params", inner));
            if draft.ids.id.is_some() { Kind::Request } else { Kind::Notification }
        };
        members.push(("jsonrpc", text("\"2.0\"".into())));
        random.shuffle(&mut members);
        for name in [&mut draft.top, &mut draft.inner] {
            name.take_if(|name| name.is_empty());
        }
        draft.result &= draft.method.is_empty();
        let space = if number.is_multiple_of(7) { "\r" } else { " " };
        let members = spaced(members, space, random);
        let pieces = joined(&members);
        let is_changed = draft.pool.is_some() || space == "\r";
        let for_worker = (is_changed && matches!(from, Party::Client(_))).then(|| worker_gets(members));
        Self { from, kind, draft, pieces, for_worker }
    }

    /// A malformed line, or a blank one.
    pub fn raw(from: Party, kind: Kind, text: String) -> Self {
        Self { from, kind, draft: Draft::default(), pieces: vec![Piece::Text(text)], for_worker: None }
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
        for piece in self.delivered() {
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

    /// What its receiver gets of it.
    fn delivered(&self) -> &[Piece] {
        self.for_worker.as_ref().unwrap_or(&self.pieces)
    }

    /// The ids of `received`, if everything else is unchanged.
    pub fn ids_of(&self, received: &[u8]) -> Option<Ids> {
        let mut ids = Ids::default();
        let mut found = self.ids_in(received)?.into_iter();
        for piece in self.delivered() {
            match piece {
                Piece::Id(_) => ids.id = found.next(),
                Piece::RequestId(_) => ids.request_id = found.next(),
                Piece::ParamsId(_) => ids.params_id = found.next(),
                Piece::Token(_) => ids.token = found.next(),
                Piece::Progress(_) => ids.progress = found.next(),
                Piece::Subscription(_) => ids.subscription = found.next(),
                Piece::Text(_) => {}
            }
        }
        Some(ids)
    }

    /// The session that determines the route: the one at top level, if there is one.
    pub fn way(&self) -> Option<&String> {
        self.top.as_ref().or(self.inner.as_ref())
    }

    /// Every session that it names, once.
    pub fn names(&self) -> Vec<&String> {
        let inner = self.inner.as_ref().filter(|inner| self.top.as_ref() != Some(inner));
        self.top.iter().chain(inner).collect()
    }

    /// A description for people.
    pub fn about(&self) -> String {
        let mut about = format!("{:?} {}", self.kind, self.method);
        let members = [
            ("id", &self.ids.id),
            ("pool", &self.pool),
            ("on top", &self.top),
            ("in params", &self.inner),
            ("requestId", &self.ids.request_id),
            ("params.id", &self.ids.params_id),
            ("token", &self.ids.token),
            ("progress of", &self.ids.progress),
            ("subscription", &self.ids.subscription),
            ("result", &self.result_session),
        ];
        for (what, member) in members {
            about.extend(member.iter().map(|member| format!(" {what} {member}")));
        }
        about
    }

    /// It only reports that a list has changed: it is a broadcast.
    pub fn list(&self) -> Option<usize> {
        let list = LISTS.iter().position(|list| self.method == *list)?;
        let is_short = self.pieces.iter().map(|piece| piece.text().len()).sum::<usize>() <= LONGEST_EMPTY;
        (self.kind == Kind::Notification && is_short).then_some(list)
    }

    /// It asks the worker to continue a session that it has kept.
    pub fn loads(&self) -> bool {
        self.kind == Kind::Request && matches!(self.method, "session/load" | "session/resume" | "session/fork")
    }

    /// It asks the worker to create a session.
    pub fn creates(&self) -> bool {
        matches!(self.method, "session/new" | "session/fork")
    }

    /// It is not answered before it is cancelled.
    pub fn listens(&self) -> bool {
        self.method == "subscriptions/listen"
    }

    /// It ends a session.
    pub fn closes(&self) -> bool {
        matches!(self.method, "session/close" | "session/delete")
    }

    /// The tokens by which a cancellation names its request. None means that it is not a cancellation.
    pub fn targets(&self) -> Vec<&String> {
        let targets = self.ids.request_id.iter().chain(&self.ids.params_id);
        if is_cancellation(self.method) { targets.collect() } else { Vec::new() }
    }
}

/// The tokens of a line, as written or as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    pub id: Option<String>,
    /// Of `params.requestId`.
    pub request_id: Option<String>,
    /// Of `params.id`, in a cancellation.
    pub params_id: Option<String>,
    /// The progress token of a request.
    pub token: Option<String>,
    /// The progress token of a notification.
    pub progress: Option<String>,
    /// The subscription that a worker's message belongs to, or that its result ends.
    pub subscription: Option<String>,
}

impl Ids {
    /// The tokens of a message that has only an id.
    pub fn of(id: String) -> Self {
        Self { id: Some(id), ..Self::default() }
    }
}

/// Notifications that a list has changed.
pub const LISTS: [&str; 3] =
    ["notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed"];

/// A longer line has content.
const LONGEST_EMPTY: usize = 1024;

/// Whether a message with this method cancels a request.
pub fn is_cancellation(method: &str) -> bool {
    matches!(method, "$/cancel_request" | "$/cancelRequest" | "notifications/cancelled")
}

/// The value of a line. Half a surrogate pair is read the way most lenient parsers read it.
pub fn value_of(received: &[u8]) -> Value {
    let text = std::str::from_utf8(received).expect("the bus writes UTF-8").replace(HALF, REPLACED);
    serde_json::from_str(&text).expect("the bus writes JSON")
}

/// The number of the line with these bytes; none for one that the bus made itself.
pub fn number_of(received: &[u8]) -> Option<usize> {
    value_of(received)["tag"].as_str().map(|tag| tag.trim_end_matches(';').parse().expect("a tag is a number"))
}

/// The token of the id in a line that the bus made itself, where nothing is nested before it.
pub fn own_id_of(received: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(received).expect("the bus writes UTF-8");
    let rest = &text[text.find("\"id\":")? + 5..];
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, letter)| {
        let ends = if rest.starts_with('"') { *letter == '"' && !escaped } else { matches!(letter, ',' | '}') };
        escaped = *letter == '\\' && !escaped;
        ends
    });
    let end = end.map_or(rest.len(), |(at, _)| at + usize::from(rest.starts_with('"')));
    Some(rest[..end].to_owned()).filter(|token| token != "null")
}

/// Half a surrogate pair, and what many parsers make of it.
const HALF: &str = "\\ud83d";
const REPLACED: &str = "\\ufffd";

/// The exact meaning of an id token: equal texts are equal ids.
pub fn meaning(token: &str) -> String {
    if token.starts_with('"') {
        if token.contains(HALF) {
            return token.to_owned();
        }
        let text: String = serde_json::from_str(token).expect("an id is JSON");
        return format!("\"{text}\"");
    }
    let (sign, rest) = token.strip_prefix('-').map_or(("", token), |rest| ("-", rest));
    let (digits, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let exponent = exponent.parse::<i64>().expect("an exponent fits") - fraction.len() as i64;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let short = digits.trim_end_matches('0');
    if short.is_empty() {
        return "0".into();
    }
    format!("{sign}{short}e{}", exponent + (digits.len() - short.len()) as i64)
}

/// The meaning of the string of a number's digits, or of the number that a string has the digits of.
pub fn of_other_type(meant: &str) -> Option<String> {
    if let Some(text) = meant.strip_prefix('"') {
        let text = text.strip_suffix('"')?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_whole = !digits.is_empty() && digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_plain = is_whole && (text == "0" || !digits.starts_with('0'));
        return is_plain.then(|| meaning(text));
    }
    if meant == "0" {
        return Some("\"0\"".into());
    }
    let (digits, exponent) = meant.split_once('e')?;
    let zeros: usize = exponent.parse().ok()?;
    (zeros <= 18).then(|| format!("\"{digits}{}\"", "0".repeat(zeros)))
}

/// What a program that keeps numbers as doubles writes for an id that it has read.
pub fn reencoded(token: &str) -> String {
    if token.starts_with('"') {
        let text: String = serde_json::from_str(&token.replace(HALF, REPLACED)).expect("an id is JSON");
        return serde_json::to_string(&text).expect("a string is JSON");
    }
    let number: f64 = token.parse().expect("an id is JSON");
    // Display of a double is the shortest text that is read as the same double, without an exponent.
    if number == 0.0 { "0".into() } else { format!("{number}") }
}

/// The range of ids made by the bus.
pub const MADE: std::ops::Range<u64> = 2_000_000_000..1 << 31;

/// Whether every parser reads an id alike, and it is not in the range of the bus.
pub fn is_plain(token: &str) -> bool {
    if token.starts_with('"') {
        let made = |text: &str| text.parse::<u64>().is_ok_and(|number| MADE.contains(&number) && text.len() == 10);
        return !token.contains(HALF) && !made(meaning(token).trim_matches('"'));
    }
    let whole = token.strip_prefix('-').unwrap_or(token);
    let spelled = whole.bytes().all(|byte| byte.is_ascii_digit()) && (whole == "0" || !whole.starts_with('0'));
    let number = whole.parse::<u64>().ok().filter(|number| *number < 1 << 53);
    spelled && token != "-0" && number.is_some_and(|number| token.starts_with('-') || !MADE.contains(&number))
}

/// One of the ways to write an id: some parsers misread the odd ones.
pub fn spell_id(number: usize, random: &mut Random) -> String {
    match random.range(0..32) {
        0 | 1 => format!("{number}.0"),
        2 | 3 => format!("{number}e0"),
        4..8 => format!("\"{number}\""),
        8..10 => spell_string(&number.to_string(), random),
        10 => format!("{number}.00000000000000000001"),
        11 => (*random.pick(&["1e-400", "-0", "0.99999999999999999999", "\"2000000001\""])).into(),
        12 => (9_007_199_254_740_990 + number).to_string(),
        13 => (MADE.start + number as u64).to_string(),
        14 => format!("\"{HALF}{number}\""),
        15 => format!("-{number}"),
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
    joined(&spaced(members, " ", random))
}

/// A member of an object: the white space before its key, and all else of it.
type Spaced = (String, Vec<Piece>);

/// The members of an object with their keys, some with white space.
fn spaced(members: Vec<(&str, Vec<Piece>)>, space: &str, random: &mut Random) -> Vec<Spaced> {
    let spaced = members.into_iter().map(|(key, value)| {
        let space = if random.one_in(8) { space } else { "" };
        let key = if random.one_in(20) { spell_string(key, random) } else { format!("\"{key}\"") };
        (space.to_owned(), [vec![Piece::Text(format!("{key}:{space}"))], value].concat())
    });
    spaced.collect()
}

/// The object with these members.
fn joined(members: &[Spaced]) -> Vec<Piece> {
    let mut pieces = vec![Piece::Text("{".into())];
    for (place, (space, member)) in members.iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        pieces.push(Piece::Text(format!("{comma}{space}")));
        pieces.extend(member.iter().cloned());
    }
    pieces.push(Piece::Text("}".into()));
    merged(pieces)
}

/// What a worker gets of a message with these members: no pool, and a blank for each carriage return. White space before
/// the pool stays before the next member.
fn worker_gets(mut members: Vec<Spaced>) -> Vec<Piece> {
    let is_pool = |(_, member): &Spaced| {
        let text: String = member.iter().map(Piece::text).collect();
        value_of(format!("{{{text}}}").as_bytes()).get("pool").is_some()
    };
    if let Some(at) = members.iter().position(is_pool) {
        let (space, _) = members.remove(at);
        if let Some((next, _)) = members.get_mut(at) {
            next.insert_str(0, &space);
        }
    }
    let mut pieces = joined(&members);
    for piece in &mut pieces {
        if let Piece::Text(text) = piece {
            *text = text.replace('\r', " ");
        }
    }
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
