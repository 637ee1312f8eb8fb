//! A decoded request or notification: its sender, and the places where it names sessions and requests (docs/routing.md
//! has the table). Only the fast path, for lines with at most one session or progress, and the lookup of answers know
//! these places too. Nothing here knows the bus.
use alloc::borrow::Cow;

use ndjson_scan::{Line, Span, wrapped_message};

use crate::id::Spelled;
use crate::message::{Cancel, KnownMethod, Parsed, Refusal, has_method, session_name, verb};
use crate::peer::{ClientKey, WorkerKey};
use crate::report::Reason;
use crate::session::access::{NamedAt, Naming};
use crate::settings::{MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN};

/// A request or notification, decoded: a client's, or a worker's ([`WorkerMessage`]).
pub(crate) struct Message<'a, From = ClientKey> {
    pub from: From,
    pub line: Parsed<'a>,
    pub id: Option<Spelled>,
    pub verb: KnownMethod,
    /// The span of its progress token, if it is a request and has one.
    pub progress: Span,
}

/// A worker's request or notification, decoded.
pub(crate) type WorkerMessage<'a> = Message<'a, WorkerKey>;

/// What a request is named by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// It is one of the sender's own, by its id.
    OwnId,
    /// It is one that the sender has to answer, by its id.
    Id,
    /// It is one that the sender has to answer, by its progress token.
    Token,
}

/// The sessions that a message names: the one that determines its route, its place, and the one in the params, if that
/// differs.
type Names<'a> = (Cow<'a, [u8]>, NamedAt, Option<Cow<'a, [u8]>>);

impl<'a, From> Message<'a, From> {
    pub(super) fn decode(from: From, line: Parsed<'a>) -> Result<Self, Refusal> {
        let too_long = |_| Refusal(Reason::IdTooLong, format!("the id is longer than {MAX_REQUEST_ID_LEN} bytes"));
        let id = line.id.is_some().then(|| Spelled::parse(line.get(line.id))).transpose().map_err(too_long)?;
        let verb = match verb(line) {
            // Without an answer nothing is given out.
            verb if verb.asks_for_session() && id.is_none() => KnownMethod::Other,
            KnownMethod::Successor => KnownMethod::Other,
            verb => verb,
        };
        let progress = progress_of(line)?;
        Ok(Self { from, line, id, verb, progress })
    }
}

impl<'a> Message<'a> {
    /// The sessions that it names.
    pub(super) fn names(&self) -> Result<Option<Names<'a>>, Refusal> {
        let top = session_name(self.line, self.line.session);
        let inner = session_name(self.line, self.line.params_session);
        if [&top, &inner].into_iter().flatten().any(|name| name.len() > MAX_SESSION_ID_LEN) {
            let text = format!("the sessionId is longer than {MAX_SESSION_ID_LEN} bytes");
            return Err(Refusal(Reason::SessionIdTooLong, text));
        }
        Ok(match (top, inner) {
            (Some(top), Some(inner)) if top != inner => Some((top, NamedAt::Leading, Some(inner))),
            (_, Some(inner)) => Some((inner, NamedAt::Params, None)),
            (Some(top), None) => Some((top, NamedAt::Alone, None)),
            (None, None) => None,
        })
    }

    pub(super) fn naming<'n>(&self, name: &'n [u8], place: NamedAt) -> Naming<'n> {
        Naming { client: self.from, verb: self.verb, place, name }
    }
}

impl WorkerMessage<'_> {
    /// The other request that a worker's message is about, and where that is named: a notification may name one of the
    /// worker's own (a cancellation), a request one of the client's (`elicitation/create`), and some notifications belong
    /// to one that the client has made.
    pub(super) fn about(&self) -> Option<(Span, By)> {
        let &Self { line, verb, .. } = self;
        let is_request = line.id.is_some();
        if line.request_id.is_some() && is_of_server(line) {
            return None;
        }
        if line.request_id.is_some() {
            return Some((line.request_id, if is_request { By::Id } else { By::OwnId }));
        }
        if line.params_id.is_some() && verb == KnownMethod::Cancel(Cancel::Answered) {
            return Some((line.params_id, if is_request { By::Id } else { By::OwnId }));
        }
        if let Some(at) = progress_token_of(line) {
            return Some((at, By::Token));
        }
        let at = line.meta.subscription;
        (at.is_some() && !is_request).then_some((at, By::Id))
    }
}

/// Whether a line is one that a proxy forwards for its successor (`proxy/successor`): one level is unwrapped.
pub(super) fn is_wrapped(line: Parsed<'_>) -> bool {
    // No spelling of its method is shorter.
    line.method.len() >= "\"proxy/successor\"".len() && verb(line) == KnownMethod::Successor
}

/// The message in a line that a proxy forwards for its successor, if it is such a line.
pub(crate) fn unwrapped(line: Parsed<'_>) -> Option<Line> {
    if is_wrapped(line) { wrapped_message(*line.window, line.line).ok() } else { None }
}

/// Whether a line belongs to an MCP server over ACP. Its `requestId` is the server's business.
pub(super) fn is_of_server(line: Parsed<'_>) -> bool {
    has_method(line, b"mcp/message")
}

/// The span of the progress token of a request.
fn progress_of(line: Parsed<'_>) -> Result<Span, Refusal> {
    let at = line.meta.progress;
    if !at.is_some() || !line.id.is_some() {
        return Ok(Span::default());
    }
    // As written, since that is what is stored beside the request.
    let quotes = if line.get(at).starts_with(b"\"") { 2 } else { 0 };
    if at.len() > MAX_REQUEST_ID_LEN + quotes {
        let text = format!("the progress token is longer than {MAX_REQUEST_ID_LEN} bytes");
        return Err(Refusal(Reason::IdTooLong, text));
    }
    Ok(at)
}

/// The progress token of a message.
pub(super) fn progress_token_of(line: Parsed<'_>) -> Option<Span> {
    (line.token.is_some() && has_method(line, b"notifications/progress")).then_some(line.token)
}
