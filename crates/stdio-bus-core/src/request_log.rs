//! A record of each client request that has ended, for operators who want a log line for each (`log.requests`).
//!
//! Nothing is kept unless that is enabled. The records per second and those not yet taken are bounded: what is above
//! the limit is lost, and counted.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

use memchr::memmem;
use ndjson_scan::{Line, decoded, member};

use super::message::{Parsed, is_response, session_name, session_named};
use super::origin::Origin;
use super::peer::{ClientKey, Moment, Peer, RequestKey, ShortText};
use super::pool_stats::Outcome;
use super::report::{Reason, WorkerName};
use super::settings::{MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::index::PoolId;
use crate::peers::ClientIdentity;
use crate::refusals::pool_meant;
use crate::requests::Requests;
use crate::session::table::Sessions;
use crate::view::View;

/// Maximum number of bytes kept of a method.
const LONGEST_METHOD: usize = 64;
/// Maximum number of bytes kept of a tool's name: MCP allows 128 characters.
const LONGEST_TOOL: usize = 128;
/// Digits of a trace id (W3C Trace Context, section 3.2.2.3).
const TRACE_DIGITS: usize = 32;
/// Maximum number of ended requests that are not taken yet.
const MOST: usize = 4096;
/// This many requests have records per interval, 10,000 a second: a flood costs no more than these.
const MOST_OF_EACH: u32 = 1_000;
const EVERY: Duration = Duration::from_millis(100);

/// How a client's request has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestEnd {
    /// The name of its [`Outcome`]; [`REFUSED`] if it reached no worker.
    pub outcome: &'static str,
    /// `error.code`, from a worker or the daemon, if its client got an error with one.
    pub code: Option<i64>,
    /// Why the daemon has ended it: `error.data.reason`, if its client got an error.
    pub reason: Option<&'static str>,
    /// Bytes of the answer, or of the error.
    pub bytes_out: u64,
}

/// The outcome of a request that reached no worker.
pub const REFUSED: &str = "refused";

/// An error of the daemon on its way to a client.
pub(super) struct ErrorReply {
    pub code: i32,
    pub reason: &'static str,
    pub line: Vec<u8>,
}

impl RequestEnd {
    /// The ending of a request that a worker has answered with this line.
    pub(super) fn of_answer(line: Parsed<'_>) -> Self {
        let outcome = Outcome::of_answer(&line);
        let code = if outcome == Outcome::Error { code_of(line.get(line.span)) } else { None };
        Self { outcome: outcome.name(), code, reason: None, bytes_out: bytes_of(&line) }
    }

    /// The ending of a request that the daemon has ended for this reason, with or without an error.
    pub(super) fn of(outcome: &'static str, reason: Reason, said: Option<&ErrorReply>) -> Self {
        let (code, bytes_out) = said.map_or((None, 0), |said| (Some(said.code.into()), said.line.len() as u64));
        Self { outcome, code, reason: Some(said.map_or(reason.error_name(), |said| said.reason)), bytes_out }
    }
}

/// A client's request that has ended.
#[derive(Clone, Debug, Default)]
pub struct EndedRequest {
    /// The slot of the client; it may have left since.
    pub slot: usize,
    /// The client's number.
    pub number: u32,
    /// The client's origin.
    pub origin: Rc<Origin>,
    /// The pool that it was for, if it reached no worker and the pool is known.
    pub pool: Option<PoolId>,
    /// The worker that got it.
    pub worker: Option<WorkerName>,
    /// How it ended.
    pub ending: RequestEnd,
    /// Time from forwarding it until then.
    pub took: Duration,
    /// Time from taking it from its client until it was forwarded.
    pub waited: Duration,
    /// Bytes of its line.
    pub bytes_in: u64,
    /// The id as its client wrote it: a token of JSON, or its beginning.
    pub id: ShortText,
    /// The beginning of the method, decoded.
    pub method: ShortText,
    /// The tool that a `tools/call` names, decoded; empty if there is none.
    pub tool: ShortText,
    /// The trace id in `params._meta.traceparent`, or that was sent with it; empty if there is none.
    pub trace: ShortText,
    /// The session, decoded; empty if there is none.
    pub session: ShortText,
}

/// What is kept of a pending request.
#[derive(Clone)]
struct Begun {
    method: ShortText,
    tool: ShortText,
    trace: ShortText,
    bytes_in: u64,
    waited: Duration,
}

/// What is kept of pending requests, and the records of those that have ended since they were taken.
#[derive(Default)]
pub(super) struct Records {
    /// Each pending request that has a record, by slot.
    begun: Vec<Option<Begun>>,
    /// The request that a client has to wait with before a worker gets it, and since when.
    waiting: BTreeMap<ClientKey, (Moment, EndedRequest)>,
    /// The trace id that was sent with the bytes that are being received, if one was.
    sent_with: ShortText,
    ended: Vec<EndedRequest>,
    lost: u64,
    /// When the quota of records was last renewed, and what is left of it.
    renewed: Moment,
    left: u32,
}

impl Records {
    /// No request has ended yet.
    pub(super) fn new() -> Box<Self> {
        Box::new(Self { left: MOST_OF_EACH, ..Self::default() })
    }

    /// What is received next was sent with this trace id, or without one.
    pub(super) fn note_trace(&mut self, id: &[u8]) {
        self.sent_with = id.into();
    }

    /// Takes each request that has ended since, and returns how many more there were.
    pub(super) fn take(&mut self, take: impl FnMut(EndedRequest)) -> u64 {
        self.ended.drain(..).for_each(take);
        core::mem::take(&mut self.lost)
    }

    /// Whether one more request may have a record. Otherwise it is counted as lost.
    fn admit(&mut self, now: Moment) -> bool {
        if self.left == 0 && now.since(self.renewed) >= EVERY {
            (self.renewed, self.left) = (now, MOST_OF_EACH);
        }
        self.lost += u64::from(self.left == 0);
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }

    /// A request was recorded that was taken from its client so long ago, and waits for its answer.
    pub(super) fn begin(&mut self, now: Moment, key: RequestKey, line: Parsed<'_>, waited: Duration) {
        if self.begun.len() <= key.index() {
            self.begun.resize(key.index() + 1, None);
        }
        let is_admitted = self.admit(now);
        self.begun[key.index()] = is_admitted.then(|| {
            let method = method_of(line);
            let (tool, trace) = (tool_of(&method, line), self.trace_of(line));
            Begun { method, tool, trace, bytes_in: bytes_of(&line), waited }
        });
    }

    /// The trace id in a request, or that was sent with it.
    fn trace_of(&self, line: Parsed<'_>) -> ShortText {
        let own = trace_of(line);
        if own.as_bytes().is_empty() { self.sent_with.clone() } else { own }
    }

    /// Whether a request has a record.
    pub(super) fn has(&self, key: RequestKey) -> bool {
        self.begun.get(key.index()).is_some_and(Option::is_some)
    }

    /// A request with a record has ended.
    pub(super) fn end(&mut self, key: RequestKey, ended: EndedRequest) {
        let Some(begun) = self.begun.get_mut(key.index()).and_then(Option::take) else { return };
        let Begun { method, tool, trace, bytes_in, waited } = begun;
        self.add(EndedRequest { method, tool, trace, bytes_in, waited, ..ended });
    }

    fn add(&mut self, ended: EndedRequest) {
        if self.ended.len() >= MOST {
            self.lost += 1;
            return;
        }
        self.ended.push(ended);
    }
}

/// The beginning of decoded text, at most `most` bytes, without a truncated character at its end.
fn begin_of(text: &[u8], most: usize) -> &[u8] {
    if text.len() <= most {
        return text;
    }
    let is_cut = |at: &usize| text[*at] & 0xc0 != 0x80;
    &text[..(0..=most).rev().find(is_cut).unwrap_or(most)]
}

fn method_of(line: Parsed<'_>) -> ShortText {
    begin_of(&session_name(line, line.method).unwrap_or_default(), LONGEST_METHOD).into()
}

/// The beginning of the name in the params of a `tools/call` (MCP).
fn tool_of(method: &ShortText, line: Parsed<'_>) -> ShortText {
    let name = || decoded(member(member(line.get(line.span), b"params")?, b"name")?);
    let name = if method.as_bytes() == b"tools/call" { name() } else { None };
    begin_of(&name.unwrap_or_default(), LONGEST_TOOL).into()
}

/// The trace id in the `traceparent` in the `_meta` of the params (MCP 2026-07-28; W3C Trace Context). Few lines have one,
/// and they are looked for in one pass over the line.
fn trace_of(line: Parsed<'_>) -> ShortText {
    let text = line.get(line.span);
    let parent = || decoded(member(member(member(text, b"params")?, b"_meta")?, b"traceparent")?);
    let parent = memmem::find(text, b"traceparent").and_then(|_| parent());
    parent.as_deref().and_then(trace_id).unwrap_or_default().into()
}

/// The trace id of a `traceparent`, such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`, if that is valid (W3C
/// Trace Context, section 3.2.2). Later versions may have more fields.
pub fn trace_id(parent: &[u8]) -> Option<&[u8]> {
    let mut fields = parent.split(|letter| *letter == b'-');
    let [version, id, span, flags] = [fields.next()?, fields.next()?, fields.next()?, fields.next()?];
    let is_hex = |field: &[u8], digits| {
        field.len() == digits && field.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_some = |field: &[u8]| field.iter().any(|digit| *digit != b'0');
    let is_known = version != b"ff" && (version != b"00" || fields.next().is_none());
    let are_hex = is_hex(version, 2) && is_hex(id, TRACE_DIGITS) && is_hex(span, 16) && is_hex(flags, 2);
    (is_known && are_hex && is_some(id) && is_some(span)).then_some(id)
}

fn bytes_of(line: &Line) -> u64 {
    line.span.len() as u64 + 1
}

/// The code of a worker's error answer.
fn code_of(line: &[u8]) -> Option<i64> {
    core::str::from_utf8(member(member(line, b"error")?, b"code")?).ok()?.trim().parse().ok()
}

/// A client's request was not forwarded; its client got the error `said`, or nothing.
#[cold]
pub(super) fn record_refusal(
    fleets: &Fleets,
    ctx: &mut Ctx,
    sessions: &Sessions,
    from: ClientKey,
    line: Parsed<'_>,
    reason: Reason,
    said: Option<&ErrorReply>,
) {
    let now = ctx.time.now();
    if !ctx.out.records().as_mut().is_some_and(|records| records.admit(now)) {
        return;
    }
    let waited = now.since(ctx.time.taken_at());
    let Some(ended) = unforwarded(fleets, ctx, sessions, from, line) else { return };
    let Some(records) = ctx.out.records() else { return };
    records.add(EndedRequest { waited, ending: RequestEnd::of(REFUSED, reason, said), ..ended });
}

/// What is known of a client's request that no worker has got.
fn unforwarded(
    fleets: &Fleets,
    ctx: &mut Ctx,
    sessions: &Sessions,
    from: ClientKey,
    line: Parsed<'_>,
) -> Option<EndedRequest> {
    let pool = pool_meant(fleets, ctx, sessions, from, line);
    let trace = ctx.out.records().as_ref()?.trace_of(line);
    let (id, method) = (line.get(line.id), method_of(line));
    Some(EndedRequest {
        pool,
        tool: tool_of(&method, line),
        trace,
        bytes_in: bytes_of(&line),
        id: id[..id.len().min(2 * MAX_REQUEST_ID_LEN)].into(),
        method,
        session: begin_of(&session_named(line).unwrap_or_default(), MAX_SESSION_ID_LEN).into(),
        ..EndedRequest::of(from, ctx.clients.identity(from)?, RequestEnd::default())
    })
}

/// This line of a client, which was taken from it at `taken_at`, has to wait, or none has. A request is remembered: if its
/// client leaves, it has ended.
#[cold]
pub(super) fn note_waiting(
    fleets: &Fleets,
    ctx: &mut Ctx,
    sessions: &Sessions,
    from: ClientKey,
    waiting: Option<(Parsed<'_>, Moment)>,
) {
    let request = waiting.filter(|(line, _)| line.id.is_some() && !is_response(line));
    let ended = request.and_then(|(line, since)| Some((since, unforwarded(fleets, ctx, sessions, from, line)?)));
    let Some(records) = ctx.out.records() else { return };
    match ended {
        Some(ended) => drop(records.waiting.insert(from, ended)),
        None => drop(records.waiting.remove(&from)),
    }
}

/// A client is closed: the request that it had to wait with ends before a worker gets it.
pub(super) fn record_left(ctx: &mut Ctx, client: ClientKey) {
    let now = ctx.time.now();
    let Some(records) = ctx.out.records() else { return };
    if let Some((since, ended)) = records.waiting.remove(&client)
        && records.admit(now)
    {
        let reason = Reason::RequestDiscarded;
        let ending = RequestEnd::of(Outcome::of(reason).name(), reason, None);
        records.add(EndedRequest { waited: now.since(since), ending, ..ended });
    }
}

impl Requests {
    /// A pending request has ended like this; `named` is the session that its answer names.
    #[cold]
    pub(super) fn record_end(
        &self,
        ctx: &mut Ctx,
        sessions: &Sessions,
        key: RequestKey,
        ending: RequestEnd,
        named: Option<&[u8]>,
    ) {
        if !ctx.out.records().as_ref().is_some_and(|records| records.has(key)) {
            return;
        }
        let Some(request) = self.get(key) else { return };
        let (Some(Peer::Client(client)), Peer::Worker(worker)) = (request.asker(), request.answerer()) else { return };
        let Some(identity) = ctx.clients.identity(client) else { return };
        let session = request.session().and_then(|session| sessions.get(session));
        let session = session.map(|session| session.name().as_bytes()).or(named).unwrap_or_default();
        let ended = EndedRequest {
            worker: ctx.workers.worker_name(worker),
            took: ctx.time.lasted(request.since()),
            id: self.asker_token(key).as_slice().into(),
            session: begin_of(session, MAX_SESSION_ID_LEN).into(),
            ..EndedRequest::of(client, identity, ending)
        };
        let Some(records) = ctx.out.records() else { return };
        records.end(key, ended);
    }
}

impl View<'_> {
    /// Whether it keeps a record of each request.
    pub fn records_requests(&self) -> bool {
        self.bus.ctx.out.keeps_records()
    }
}

impl EndedRequest {
    pub(super) fn of(client: ClientKey, identity: &ClientIdentity, ending: RequestEnd) -> Self {
        let origin = Rc::clone(&identity.origin);
        Self { slot: client.index(), number: identity.number, origin, ending, ..Self::default() }
    }
}
