//! Lines that are not delivered: an error to the asker, and a report with peer, id and reason (spec 4.3, 5.3, 7.3.2;
//! decisions 8, 9).
use alloc::string::String;

use ndjson_scan::{Fault, Window};

use super::cancellation::Dialect;
use super::clients::CLOSED_BEFORE;
use super::message::{Parsed, Refusal, echoed_id, echoed_session, is_response, session_name, session_named};
use super::peer::{ClientKey, Peer};
use super::port::Close;
use super::reply::Delivered;
use super::report::Reason;
use super::request_log::ErrorReply;
use super::settings::MAX_REQUEST_ID_LEN;
use super::{Bus, Flow, length_of_line, reply, wrong_protocol};
use crate::bad_output::{Cost, Passed, skip_mark};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::eras::protocol::RESOURCE_NOT_FOUND;
use crate::index::PoolId;
use crate::peer::{RequestKey, WorkerKey};
use crate::peers::Phase;
use crate::port::{Next, Received};
use crate::request_log::record_refusal;
use crate::session::table::Sessions;
use crate::settings::BadOutput;

impl Bus {
    /// A line of `from` is malformed (spec 4.3, 5.3).
    pub(super) fn malformed(&mut self, from: Peer, window: Window<'_>, line: usize, at: usize, fault: Fault) -> Flow {
        if let Some(flow) = self.ctx.endpoint(from).and_then(|end| skip_mark(end, window, line)) {
            return flow;
        }
        if let Peer::Worker(worker) = from
            && passes_over(&self.ctx, worker)
        {
            return self.pass_over(worker, window, line, false);
        }
        if let Peer::Client(client) = from
            && let Some(text) = untrusted_header(&self.ctx, client, &window.data()[line..])
        {
            self.close_with_error(client, Reason::ProxyHeader, &text);
            return Flow::Over;
        }
        let data = window.data();
        let bytes = &data[line..];
        let is_cut = fault == Fault::Syntax && bytes.starts_with(b"{") && data.get(at) == Some(&b'\n');
        let foreign = wrong_protocol::protocol(bytes);
        let what = match foreign {
            Some(name) => format!("{name}, not JSON; the line begins \"{}\"", wrong_protocol::begin(bytes)),
            None if is_cut => format!("not JSON: the line ends within a message, at byte {}", at - line),
            None => format!("{}, at byte {} of the line", fault.what(), at - line),
        };
        let text = match from {
            Peer::Client(_) => match foreign {
                Some(wrong_protocol::HTTP) => format!(
                    "{what}: this listener takes a JSON-RPC message on each line; WebSocket and HTTP have their own \
                     (\"ws\" in listeners[], admin.listen)"
                ),
                Some(wrong_protocol::TLS) => {
                    format!("{what}: this listener takes none; connect without it, or through a proxy that removes it")
                }
                Some(_) => format!("{what}: this listener takes a JSON-RPC message on each line, and nothing else"),
                None if is_cut => format!("{what}; each message has to be one line"),
                None => what,
            },
            // A worker's bad output is needed to find the bug; a client's data stays private.
            Peer::Worker(_) => {
                let begin = &bytes[..length_of_line(window, line).min(64)];
                let begin = match foreign {
                    Some(_) => String::new(),
                    None => format!(", which begins \"{}\"", begin.escape_ascii()),
                };
                format!(
                    "{what}{begin}; a worker writes each message as one line of JSON to stdout, and everything else to \
                     stderr (or on_bad_output is \"skip\")"
                )
            }
        };
        self.malformed_text(from, &text)
    }

    /// The input of `from` is malformed, for this reason.
    #[cold]
    pub(super) fn malformed_text(&mut self, from: Peer, text: &str) -> Flow {
        match from {
            Peer::Client(client) => self.close_with_error(client, Reason::ClientMalformed, text),
            Peer::Worker(worker) => self.stop_broken_worker(worker, Reason::WorkerMalformed, text),
        }
        Flow::Over
    }

    /// A name occurs twice where the scanner does not check: the line is malformed, as one with two ids is.
    pub(super) fn name_occurs_twice(&mut self, from: Peer, line: Parsed<'_>, at: usize) -> Flow {
        self.malformed(from, *line.window, line.span.start as usize, at, Fault::DuplicateKey)
    }

    /// The line of `from` that begins at `line` is longer than max_input_buffer (spec 7.3.2), or four times that.
    pub(super) fn line_too_long(&mut self, from: Peer, window: Window<'_>, line: usize) -> Flow {
        match from {
            Peer::Client(client) => {
                let most = self.ctx.settings.limits.max_input_buffer;
                let text = format!("a line is longer than limits.max_input_buffer, {most} bytes");
                self.close_with_error(client, Reason::ClientLineTooLong, &text);
            }
            Peer::Worker(worker) if passes_over(&self.ctx, worker) => {
                return self.pass_over(worker, window, line, true);
            }
            Peer::Worker(worker) => {
                let text = format!("a line is longer than {}", self.ctx.settings.limits.longest_of_worker());
                self.stop_broken_worker(worker, Reason::WorkerLineTooLong, &text);
            }
        }
        Flow::Over
    }

    /// A worker's line is no message, for this reason, or is too long: it is passed over from `line` on.
    fn pass_over(&mut self, key: WorkerKey, window: Window<'_>, line: usize, is_too_long: bool) -> Flow {
        let began = self.ctx.time.now();
        let Some(worker) = self.ctx.workers.get_mut(key) else { return Flow::Over };
        worker.bad_lines_mut().begin(began, is_too_long);
        match self.continue_bad_line(key, &window.data()[line..]) {
            Some(length) => Flow::PassedOver { to: line + length, has_more: true },
            None => Flow::Over,
        }
    }

    /// The next bytes of a worker that is amid a line that is passed over.
    #[cold]
    pub(super) fn receive_stray(&mut self, key: WorkerKey, window: Window<'_>) -> Received {
        let bytes = window.data().len();
        let consumed = self.continue_bad_line(key, window.data());
        let Some(worker) = self.ctx.workers.get_mut(key) else { return Received { consumed: bytes, next: Next::Wait } };
        match consumed {
            Some(consumed) => worker.end_mut().stream.pass_over(bytes, consumed, true),
            None => worker.end_mut().stream.discard(bytes),
        }
    }

    /// Takes bytes of a line that is passed over. Returns how many, or none if the worker is stopped because of them.
    fn continue_bad_line(&mut self, key: WorkerKey, bytes: &[u8]) -> Option<usize> {
        let worker = self.ctx.workers.get_mut(key)?;
        let passed = worker.bad_lines_mut().pass(self.ctx.time.now(), &self.ctx.settings.limits, bytes);
        worker.undeliverable_mut().pass(passed.length_of(bytes));
        let (length, line) = match passed {
            Passed::GoesOn => return Some(bytes.len()),
            Passed::Ended(length, line) => (length, line),
            Passed::Endless(text) => {
                self.stop_broken_worker(key, Reason::WorkerLineTooLong, &text);
                return None;
            }
        };
        for id in line.answered() {
            let Some(request) = self.requests.find(key.into(), &id) else { continue };
            let text = "the answer is in an array (a batch), which is skipped; a worker writes each message on a \
                        line of its own";
            self.fail_answered(key, request, Reason::WorkerMalformed, text);
        }
        match self.requests.cost_of(&mut self.ctx, key, line) {
            Cost::Nothing => {}
            Cost::Request(request, reason, text) => self.fail_answered(key, request, reason, &text),
            Cost::Worker(reason, text) => {
                self.stop_broken_worker(key, reason, &text);
                return None;
            }
        }
        Some(length)
    }

    /// A worker has answered a request, and the answer is not passed on.
    fn fail_answered(&mut self, worker: WorkerKey, request: RequestKey, reason: Reason, text: &str) {
        let Some(found) = self.requests.get(request) else { return };
        let (creates, is_awaited) = (found.verb().creates(), found.asker().is_some());
        match is_awaited {
            true => self.fail_request(request, reason, text),
            false => self.ctx.report(reason, Some(Peer::Worker(worker)), || text.into()),
        }
        self.requests.forget(&mut self.ctx, &mut self.sessions, request);
        if creates {
            self.sessions.drop_early(&mut self.ctx, worker);
        }
    }

    /// Sends an error to a client whose input is malformed, and closes it (decision 9).
    fn close_with_error(&mut self, client: ClientKey, reason: Reason, text: &str) {
        self.ctx.report(reason, Some(Peer::Client(client)), || format!("a client is closed: {text}"));
        let message = match reason {
            Reason::ClientMalformed => format!("Parse error: {text}"),
            _ => format!("Invalid Request: {text}"),
        };
        self.fail_requests_of(client, Reason::RequestDiscarded, CLOSED_BEFORE);
        send_error(&mut self.ctx, client.into(), b"null", reason, &message, Delivered::Nothing);
        self.close_client(client, Close::Flush, reason);
    }
}

/// Whether lines of a worker that are no messages are passed over.
fn passes_over(ctx: &Ctx, worker: WorkerKey) -> bool {
    ctx.workers.worker_name(worker).is_some_and(|name| ctx.settings.on_bad_output(name.pool) == BadOutput::Skip)
}

/// Refuses a message of `from`: the asker gets an error, and the loss is reported.
pub(super) fn refuse(
    fleets: &mut Fleets,
    ctx: &mut Ctx,
    sessions: &Sessions,
    from: Peer,
    line: Parsed<'_>,
    refusal: Refusal,
) -> Flow {
    let Refusal(reason, text) = refusal;
    let has_id = line.id.is_some();
    let answer = has_id && takes_errors(ctx, from);
    // A peer that asks without reading the answers is not read until it reads.
    if answer && ctx.block_on_itself(from) {
        return Flow::Blocked;
    }
    report_line(ctx, reason, from, line, &text);
    if let Some(end) = ctx.endpoint(from).filter(|_| has_id) {
        end.traffic.refused += 1;
    }
    let error = |session: Option<&[u8]>, cause| {
        let id = echoed_id(line);
        let code = code_for(fleets, ctx, from, reason);
        answer.then(|| error_for(ctx, from, id, session, (code, reason, cause), &text, Delivered::No)).flatten()
    };
    let Peer::Client(client) = from else {
        let said = error(None, None);
        say(ctx, from, said);
        return Flow::Next;
    };
    let cause = if reason == Reason::RequestLost { sessions.cause_of_loss(ctx, client, line) } else { None };
    let said = error(echoed_session(line).as_deref(), cause);
    if has_id {
        let pool = pool_meant(fleets, ctx, sessions, client, line);
        fleets.pools_mut().count_error(pool, reason);
        if ctx.out.keeps_records() && !is_response(&line) {
            record_refusal(fleets, ctx, sessions, client, line, reason, said.as_ref());
        }
    }
    say(ctx, from, said);
    Flow::Next
}

/// The pool that a refused message was for, if known: that of its session, the one that it names, or the only one
/// of its listener.
pub(super) fn pool_meant(
    fleets: &Fleets,
    ctx: &Ctx,
    sessions: &Sessions,
    client: ClientKey,
    line: Parsed<'_>,
) -> Option<PoolId> {
    let session = session_named(line).and_then(|name| sessions.named(ctx, client, &name));
    if let Some(session) = session.and_then(|session| sessions.get(session)) {
        return ctx.workers.fleet_of(session.worker()).map(|fleet| fleet.pool);
    }
    fleets.balancer()[fleets.balancer().group_of_line(ctx, client, line).ok()?].only_fleet().map(|fleet| fleet.pool)
}

/// The code of an error for a peer. A client of ACP knows what an agent says of a session that it does not know.
pub(super) fn code_for(fleets: &Fleets, ctx: &Ctx, to: Peer, reason: Reason) -> i32 {
    let is_unknown = matches!(reason, Reason::SessionDenied | Reason::SessionLost);
    match to {
        Peer::Client(client) if is_unknown && speaks_acp(fleets, ctx, client) => RESOURCE_NOT_FOUND,
        _ => reason.code(),
    }
}

/// Whether a worker of a pool that may serve a client was ever greeted in ACP. Its clients know what an agent says of a
/// session that it does not know, and go on after that.
fn speaks_acp(fleets: &Fleets, ctx: &Ctx, client: ClientKey) -> bool {
    let Some(group) = ctx.clients.get(client).map(|client| &fleets.balancer()[client.group()]) else {
        return false;
    };
    let own = ctx.clients.workers_of(client).filter_map(|worker| ctx.workers.fleet_of(worker));
    let mut all = group.slots().iter().map(|slot| slot.fleet).chain(own);
    all.any(|fleet| fleets.pools()[fleet].dialect() == Some(Dialect::Acp))
}

impl Sessions {
    /// Why the worker for a client's message is being replaced: that of the session it names, or of the connection.
    fn cause_of_loss(&self, ctx: &Ctx, client: ClientKey, line: Parsed<'_>) -> Option<Reason> {
        let session = session_name(line, line.session).and_then(|name| self.named(ctx, client, &name));
        let of_session = session.and_then(|session| self.get(session)).map(|session| session.worker());
        let own = ctx.clients.workers_of(client);
        of_session.into_iter().chain(own).find_map(|worker| ctx.workers.get(worker)?.process().cause())
    }
}

/// Reports that a line of `from` was dropped, with its id.
pub(super) fn report_line(ctx: &mut Ctx, reason: Reason, from: Peer, line: Parsed<'_>, text: &str) {
    if let Peer::Worker(worker) = from
        && let Some(worker) = ctx.workers.get_mut(worker)
    {
        worker.undeliverable_mut().count_line();
    }
    report_with_id(ctx, reason, from, line, text);
}

/// Reports something about a line of `from`, with its id.
pub(super) fn report_with_id(ctx: &mut Ctx, reason: Reason, from: Peer, line: Parsed<'_>, text: &str) {
    let id = line.id.is_some().then(|| line.get(line.id));
    ctx.report_request(reason, [Some(from), None], || {
        let id =
            id.map(|token| String::from_utf8_lossy(&token[..token.len().min(2 * MAX_REQUEST_ID_LEN)]).into_owned());
        (id, text.into())
    });
}

/// Sends an error, if there is one.
pub(super) fn say(ctx: &mut Ctx, to: Peer, said: Option<ErrorReply>) {
    if let Some(ErrorReply { line, .. }) = said {
        ctx.out.stats().error_replies += 1;
        ctx.send(to, &line);
    }
}

fn takes_errors(ctx: &Ctx, peer: Peer) -> bool {
    match peer {
        Peer::Client(client) => ctx.clients.phase(client).is_some_and(|phase| phase <= Phase::Refusing),
        Peer::Worker(worker) => ctx.workers.worker_takes_messages(worker),
    }
}

/// The message for malformed input that looks like the PROXY header of an untrusted peer. The first lines of a
/// binary one are empty, and were skipped.
fn untrusted_header(ctx: &Ctx, client: ClientKey, bytes: &[u8]) -> Option<String> {
    ctx.peer_end(client.into()).filter(|client| client.traffic.lines_in == 0)?;
    let client = ctx.clients.identity(client)?;
    let begins_like = |header: &[u8]| header.starts_with(&bytes[..bytes.len().min(header.len())]);
    if !begins_like(b"PROXY ") && !begins_like(b"\0\r\nQUIT\n") {
        return None;
    }
    if client.origin.via.is_some() || client.origin.is_proxy {
        return Some(
            "it begins like a second PROXY header; of several proxies in a row only the last may send one".into(),
        );
    }
    let place = client.origin.place;
    Some(match &ctx.settings.listeners[client.listener].entry.proxy {
        Some(_) => format!("it begins like a PROXY header, and {place} is not in listeners[].proxy.from"),
        None => format!(
            "it begins like a PROXY header, and listeners[].proxy.from of its listener does not contain \
            {place}"
        ),
    })
}

/// Sends an error to a peer that still reads. `id` is a JSON token.
pub(super) fn send_error(ctx: &mut Ctx, to: Peer, id: &[u8], reason: Reason, text: &str, delivered: Delivered) {
    let said = error_for(ctx, to, id, None, (reason.code(), reason, None), text, delivered);
    say(ctx, to, said);
}

/// The error for a peer that still reads; `cause` is the reason why a worker was replaced. `id` is a JSON token.
#[allow(clippy::too_many_arguments)]
pub(super) fn error_for(
    ctx: &Ctx,
    to: Peer,
    id: &[u8],
    session: Option<&[u8]>,
    (code, reason, cause): (i32, Reason, Option<Reason>),
    text: &str,
    delivered: Delivered,
) -> Option<ErrorReply> {
    if !takes_errors(ctx, to) {
        return None;
    }
    // A worker that was replaced, or has never said anything, has not simply ended.
    let named = cause
        .filter(|cause| matches!(cause, Reason::WorkerReplaced | Reason::StartTimeout))
        .map_or(reason.error_name(), Reason::name);
    let (cause, lists_revisions) = (cause.map(Reason::name), reason == Reason::EraUnsupported);
    let data = reply::Data { reason: named, cause, delivered, lists_revisions };
    Some(ErrorReply { code, reason: named, line: reply::error(id, session, code, text, &data) })
}
