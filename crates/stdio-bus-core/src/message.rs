//! The meaning of a line: its kind, what its method means to the bus, the names in it, and the pieces of it that are
//! replaced in transit (spec 6, decisions 1, 2). It reads one line and knows nothing of the bus.
use alloc::borrow::Cow;
use alloc::string::String;
use core::cmp::Ordering;
use core::ops::Deref;

use memchr::memmem;
use ndjson_scan::{Line, Span, Window, decoded, is_decoded, with_its_comma};

use super::peer::{ShortText, hash_of_name};
use super::report::Reason;

/// A longer id is not repeated in the error that refuses it.
const LONGEST_ECHOED_ID: usize = 1024;

/// A line, with the window that it was found in.
#[derive(Clone, Copy)]
pub(super) struct Parsed<'a> {
    pub window: &'a Window<'a>,
    pub line: &'a Line,
}

impl Deref for Parsed<'_> {
    type Target = Line;

    #[inline(always)]
    fn deref(&self) -> &Line {
        self.line
    }
}

impl<'a> Parsed<'a> {
    /// The bytes of one of its spans.
    #[inline(always)]
    pub(super) fn get(&self, span: Span) -> &'a [u8] {
        self.window.get(span)
    }
}

/// A piece of a line that is replaced in transit.
pub(super) struct Edit {
    pub at: Span,
    pub with: ShortText,
}

/// The replacements in one line: its id, the reference to another request in two places, its progress token, and what
/// is the bus's own.
pub(super) type Edits = [Option<Edit>; 5];

/// Nothing is replaced.
pub(super) const UNCHANGED: Edits = [const { None }; 5];

/// Why a message is not delivered.
#[derive(Clone)]
pub(super) struct Refusal(pub Reason, pub String);

/// Whether a line is a response, by its members (decision 2). A line with an id and neither method nor result nor error
/// is taken for a request: the spec calls everything with an id one (6.2), and leaves the method to the worker (4.3.3).
pub(super) fn is_response(line: &Line) -> bool {
    !line.method.is_some() && line.flags & (Line::RESULT | Line::ERROR) != 0
}

/// Methods with a meaning to the bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KnownMethod {
    /// Any other one.
    Other,
    /// `initialize`: it contains the protocol version.
    Initialize,
    /// `notifications/initialized` of MCP, `initialized` of LSP: its sender has read the answer to its `initialize`.
    Initialized,
    /// `session/new`: a result names a new session.
    New,
    /// `session/load`, `session/resume`: the worker decides which client gets the session.
    Load,
    /// `session/fork`: the same, and a result names a new session.
    Fork,
    /// `session/close`, `session/delete`: a result ends the session.
    Close,
    /// `subscriptions/listen`: it is not answered before it is cancelled.
    Listen,
    /// A request is not wanted any more.
    Cancel(Cancel),
    /// `tasks/get` and the like: it names a task.
    Task,
    /// `proxy/successor`: the message is in the params.
    Successor,
}

impl KnownMethod {
    /// Whether it asks a worker for a session that may have no owner, or another one.
    pub(super) fn asks_for_session(self) -> bool {
        matches!(self, Self::Load | Self::Fork)
    }

    /// Whether a result names a new session.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::New | Self::Fork)
    }
}

/// Whether a cancelled request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cancel {
    /// `$/cancel_request` of ACP and `$/cancelRequest` of LSP: it is.
    Answered,
    /// `notifications/cancelled` of MCP: it is not.
    Silent,
}

/// Maximum length of a method with a meaning, whatever of it is an escape.
const LONGEST_METHOD: usize = 512;

/// What the method of a line means.
#[inline(always)]
pub(super) fn verb(line: Parsed<'_>) -> KnownMethod {
    if !line.method.is_some() {
        return KnownMethod::Other;
    }
    let token = line.get(line.method);
    if may_mean_something(&token[1..]) { verb_written(token) } else { KnownMethod::Other }
}

/// What a method, as it is written, means: one with an escaped letter means the same.
fn verb_written(token: &[u8]) -> KnownMethod {
    let name = Some(token).filter(|token| token.len() <= LONGEST_METHOD).and_then(decoded);
    name.map_or(KnownMethod::Other, |name| verb_named(&name))
}

/// Whether a method may be one with a meaning, by the first letter that distinguishes most of them from others. An
/// escape may be any letter.
#[inline(always)]
fn may_mean_something(method: &[u8]) -> bool {
    match method.strip_prefix(b"session/") {
        Some([next, ..]) => matches!(next, b'n' | b'l' | b'r' | b'f' | b'c' | b'd' | b'\\'),
        _ => matches!(method, [b'i' | b's' | b'n' | b'p' | b'_' | b'$' | b'\\', ..] | [b't', b'a' | b'\\', ..]),
    }
}

fn verb_named(name: &[u8]) -> KnownMethod {
    match name {
        b"initialize" => KnownMethod::Initialize,
        b"notifications/initialized" | b"initialized" => KnownMethod::Initialized,
        b"session/new" => KnownMethod::New,
        b"session/load" | b"session/resume" => KnownMethod::Load,
        b"session/fork" => KnownMethod::Fork,
        b"session/close" | b"session/delete" => KnownMethod::Close,
        b"subscriptions/listen" => KnownMethod::Listen,
        b"$/cancel_request" | b"$/cancelRequest" => KnownMethod::Cancel(Cancel::Answered),
        b"notifications/cancelled" => KnownMethod::Cancel(Cancel::Silent),
        b"proxy/successor" | b"_proxy/successor" => KnownMethod::Successor,
        _ if name.starts_with(b"tasks/") => KnownMethod::Task,
        _ => KnownMethod::Other,
    }
}

/// Whether a notification of this method says that something is not wanted any more: a request, or in ACP the turn of a
/// session.
pub fn cancels(method: &[u8]) -> bool {
    method == b"session/cancel" || matches!(verb_named(method), KnownMethod::Cancel(_))
}

/// Whether a notification of this method says that its sender has read the answer to its `initialize`.
pub fn is_initialized(method: &[u8]) -> bool {
    verb_named(method) == KnownMethod::Initialized
}

/// A hash of a line without its id and `progress` token: of its length and its method. A line that a worker echoes has
/// the same hash, however those were replaced in transit.
pub(super) fn print_of(line: Parsed<'_>, progress: Span) -> u32 {
    let length = line.span.len() - line.id.len() - progress.len();
    let method = if line.method.is_some() { line.get(line.method) } else { b"" };
    hash_of_name(method).wrapping_add(length as u64) as u32
}

/// Whether the method of a line is this one.
pub(super) fn has_method(line: Parsed<'_>, name: &[u8]) -> bool {
    let token = line.get(line.method);
    // No spelling of it is shorter, and only an escaped one is longer.
    match token.len().cmp(&(name.len() + 2)) {
        Ordering::Less => false,
        Ordering::Equal => token[1..=name.len()] == *name,
        Ordering::Greater => is_decoded(token, name),
    }
}

/// The text after a key, if the line has that key: for lines that are rare. The line is only searched, so the key may be
/// that of any object in it.
pub(super) fn text_after<'a>(line: &'a [u8], key: &str) -> Option<&'a [u8]> {
    memmem::find_iter(line, key).find_map(|at| {
        let rest = line[at + key.len()..].trim_ascii_start();
        Some(rest.strip_prefix(b":")?.trim_ascii_start())
    })
}

/// The session in a span, decoded; an empty name is none.
pub(super) fn session_name<'a>(line: Parsed<'a>, span: Span) -> Option<Cow<'a, [u8]>> {
    // Quotes with nothing between them.
    if span.len() <= 2 {
        return None;
    }
    decoded(line.get(span))
}

/// The session that a line names: at top level, or else in its params.
pub(super) fn session_named<'a>(line: Parsed<'a>) -> Option<Cow<'a, [u8]>> {
    session_name(line, line.session).or_else(|| session_name(line, line.params_session))
}

/// The bytes of a client's line that are the bus's own, and not for the worker: the top-level `pool` with its comma.
/// Some servers of MCP do not answer a line with a member that they do not know.
pub(super) fn not_for_worker(line: Parsed<'_>) -> Option<Span> {
    // Nearly no line has it, so that its place is searched for.
    let place = || with_its_comma(line.window.data(), line.span.start as usize, b"pool", line.pool);
    line.has(Line::POOL).then(place).flatten()
}

/// The id for the answer to a refused request: the client's own token.
pub(super) fn echoed_id<'a>(line: Parsed<'a>) -> &'a [u8] {
    if line.id.len() <= LONGEST_ECHOED_ID { line.get(line.id) } else { b"null" }
}

/// The sessionId at top level, if an error reply repeats it (spec 5.2.2).
pub(super) fn echoed_session<'a>(line: Parsed<'a>) -> Option<Cow<'a, [u8]>> {
    if line.session.len() <= LONGEST_ECHOED_ID { session_name(line, line.session) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_means_the_same_however_it_is_spelled() {
        assert_eq!(verb_named(b"session/load"), KnownMethod::Load);
        assert_eq!(verb_named(b"session/loads"), KnownMethod::Other);
        let mut bytes = vec![0; ndjson_scan::PAD];
        bytes.extend_from_slice(br#""$\/cancel\u0052equest""#);
        let end = bytes.len();
        bytes.resize(end + ndjson_scan::PAD, 0);
        let window = Window::new(&bytes, ndjson_scan::PAD, end);
        let whole = Span { start: 0, end: (end - ndjson_scan::PAD) as u32 };
        let line = Line { span: whole, method: whole, ..Line::default() };
        assert_eq!(verb(Parsed { window: &window, line: &line }), KnownMethod::Cancel(Cancel::Answered));
    }

    #[test]
    fn no_method_that_means_something_is_taken_for_another_one_by_its_letters() {
        for name in [
            "initialize",
            "initialized",
            "notifications/initialized",
            "session/new",
            "session/load",
            "session/resume",
            "session/fork",
            "session/close",
            "session/delete",
            "$/cancel_request",
            "$/cancelRequest",
            "notifications/cancelled",
            "proxy/successor",
            "_proxy/successor",
            "tasks/get",
            "tasks/update",
            "tasks/cancel",
        ] {
            assert_ne!(verb_named(name.as_bytes()), KnownMethod::Other, "{name}");
            assert!(may_mean_something(format!("{name}\"").as_bytes()), "{name}");
            for (at, letter) in name.char_indices() {
                let escaped = format!("{}\\u{:04x}{}\"", &name[..at], u32::from(letter), &name[at + 1..]);
                assert!(may_mean_something(escaped.as_bytes()), "{escaped}");
            }
        }
        assert!(!may_mean_something(b"session/prompt\"") && !may_mean_something(b"tools/call\""));
    }
}
