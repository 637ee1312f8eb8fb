//! Requests that are given up: whoever still works on one is notified, in the words of its protocol. A worker is
//! notified that nobody waits for the answer to a client's request, and a client that nobody waits for the answer to a
//! worker's question. With a request the questions that belong to it are withdrawn.
//!
//! Invariant: a cancellation names its request by the id that its receiver was sent.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use super::message::{KnownMethod, Parsed, has_method, text_after};
use super::peer::{ClientKey, Moment, Peer, RequestKey, SessionKey, WorkerKey};
use super::reply::{self, Delivered};
use super::report::Reason;
use super::timers::Timer;
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::refusals::send_error;
use crate::requests::{Flags, Request, Requests};
use crate::session::table::Sessions;

/// How a protocol cancels a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// `$/cancel_request` (ACP).
    Acp,
    /// `notifications/cancelled` (MCP).
    Mcp,
    /// `$/cancelRequest` (LSP).
    Lsp,
}

impl Dialect {
    /// The protocol of an `initialize`: MCP's versions are strings, ACP's are numbers, and LSP sends none.
    pub(crate) fn of_initialize(line: &[u8]) -> Option<Self> {
        match text_after(line, "\"protocolVersion\"") {
            Some(version) if version.starts_with(b"\"") => Some(Self::Mcp),
            Some(_) => Some(Self::Acp),
            None => text_after(line, "\"processId\"").map(|_| Self::Lsp),
        }
    }
}

/// The notification that cancels the request with this id, a JSON token, as a line. Only MCP says why.
pub fn cancellation(dialect: Dialect, id: &[u8], why: &str) -> Vec<u8> {
    let (method, name) = match dialect {
        Dialect::Acp => ("$/cancel_request", "requestId"),
        Dialect::Mcp => ("notifications/cancelled", "requestId"),
        Dialect::Lsp => ("$/cancelRequest", "id"),
    };
    let mut params = format!("{{\"{name}\":").into_bytes();
    params.extend_from_slice(id);
    if dialect == Dialect::Mcp {
        params.extend_from_slice(b",\"reason\":");
        reply::write_string(why.as_bytes(), &mut params);
    }
    params.push(b'}');
    reply::call(None, method.as_bytes(), Some(&params))
}

/// The flag of a request that is a prompt in a session, if it may be given up: questions in the session belong to it.
#[inline(always)]
pub(crate) fn prompt_flag(line: Parsed<'_>, session: Option<SessionKey>, expires: Moment) -> u8 {
    let is_prompt = expires != Moment::NEVER && session.is_some() && has_method(line, b"session/prompt");
    if is_prompt { Flags::PROMPT } else { 0 }
}

impl Requests {
    /// The protocol that a client and a worker speak with each other. `request` is one between them: only in MCP
    /// requests have progress tokens.
    fn dialect(
        &self,
        ctx: &Ctx,
        fleets: &Fleets,
        client: ClientKey,
        worker: WorkerKey,
        request: RequestKey,
    ) -> Dialect {
        if ctx.clients.mcp(client).era.is_some() {
            return Dialect::Mcp;
        }
        let known = ctx.workers.fleet_of(worker).and_then(|fleet| fleets.pools()[fleet].dialect());
        known.unwrap_or(if self.has_token(request) { Dialect::Mcp } else { Dialect::Acp })
    }

    /// Notifies the answerer of a request that nobody waits for the answer any more, and gives it a moment: its slot is
    /// freed then, since in MCP nothing is answered that was cancelled.
    pub(super) fn withdraw(&mut self, ctx: &mut Ctx, fleets: &Fleets, key: RequestKey, why: &str) {
        let Some(request) = self.get(key).filter(|request| request.cancelled().is_none()) else { return };
        let (answerer, verb) = (request.answerer(), request.verb());
        let (client, worker) = match (request.asker(), answerer) {
            (Some(Peer::Client(client)), Peer::Worker(worker)) => (client, worker),
            (Some(Peer::Worker(worker)), Peer::Client(client)) => (client, worker),
            _ => return,
        };
        let dialect = self.dialect(ctx, fleets, client, worker, key);
        // MCP: the `initialize` is not cancelled.
        let may_be = dialect != Dialect::Mcp || verb != KnownMethod::Initialize;
        if may_be && ctx.takes_messages(answerer) {
            let id = self.wire_token(key);
            let id = id.map_or_else(|| self.asker_token(key), |id| id.as_bytes().to_owned());
            ctx.send(answerer, &cancellation(dialect, &id, why));
        }
        let due = self.give_up(ctx.time.now(), key);
        ctx.timers.arm(Timer::Requests, due);
    }

    /// A worker's request is given up: the worker gets an error, and its client is notified.
    pub(super) fn give_up_question(
        &mut self,
        ctx: &mut Ctx,
        sessions: &mut Sessions,
        fleets: &Fleets,
        key: RequestKey,
        reason: Reason,
        text: &str,
    ) {
        let Some(request) = self.get(key) else { return };
        let (Some(asker @ Peer::Worker(_)), answerer) = (request.asker(), request.answerer()) else { return };
        let (id, shown) = (self.asker_token(key), self.asker_text(key));
        self.withdraw(ctx, fleets, key, text);
        self.abandon(ctx, sessions, key);
        // A worker that was asked to stop reads nothing any more.
        if !ctx.takes_messages(asker) {
            return;
        }
        ctx.report_request(reason, [Some(answerer), Some(asker)], || (Some(shown), text.into()));
        send_error(ctx, asker, &id, reason, text, Delivered::Yes);
    }

    /// Notifies workers that the answers to a client's requests are no longer wanted, if that is configured
    /// (`cancel_on_disconnect`; decision 11). In MCP 2026-07-28 a disconnect cancels the client's requests, and those of
    /// an ended session over HTTP have no other reader: there it needs no setting.
    pub(super) fn notify_workers(&mut self, ctx: &mut Ctx, sessions: &Sessions, fleets: &Fleets, key: ClientKey) {
        let mut cancelled = Vec::new();
        for request in self.asked_by(ctx, key.into()) {
            let session = self.get(request).and_then(|request| request.session());
            if let Some(session) = session.filter(|session| !cancelled.contains(session)) {
                cancelled.push(session);
                sessions.send_cancellation(ctx, session);
            }
            if ctx.clients.mcp(key).era.is_some() {
                self.withdraw(ctx, fleets, request, "the client closed the stream");
            }
        }
    }

    /// The unanswered questions of a worker that belong to a client's request.
    pub(super) fn questions_of(&self, ctx: &Ctx, key: RequestKey) -> Vec<RequestKey> {
        let Some(request) = self.get(key) else { return Vec::new() };
        let Some(client @ Peer::Client(_)) = request.asker() else { return Vec::new() };
        let mut questions = self.asked_of(ctx, client);
        questions.retain(|question| {
            let is_waited_for = self.get(*question).is_some_and(|it| it.asker().is_some());
            is_waited_for && self.belongs_to(*question) == Some(key)
        });
        questions
    }

    /// The request of a client that a worker's question to it belongs to: a prompt in the session of the question; else
    /// the only one in that session, or the only one at all of the client that the worker serves alone.
    pub(super) fn request_of_question(
        &self,
        ctx: &Ctx,
        sessions: &Sessions,
        worker: WorkerKey,
        client: ClientKey,
        session: Option<SessionKey>,
    ) -> Option<RequestKey> {
        if session.is_none() && ctx.workers.owner(worker) != Some(client) {
            return None;
        }
        // The prompt of a child is that of the session that it works for.
        let sessions: Vec<_> = session.map(|key| sessions.ancestry(key).map(Some).collect()).unwrap_or_default();
        let is_there = |key: &RequestKey| {
            let is_at = |it: &Request| it.answerer() == Peer::Worker(worker) && it.cancelled().is_none();
            let named = self.sessions(*key);
            let in_session = || session.is_none() || named.iter().any(|it| it.is_some() && sessions.contains(it));
            self.get(*key).is_some_and(is_at) && in_session()
        };
        let mut requests = self.asked_by(ctx, client.into());
        requests.retain(is_there);
        let is_prompt = |key: &&RequestKey| self.get(**key).is_some_and(Request::is_prompt);
        let prompt = requests.iter().rev().find(is_prompt).copied();
        prompt.or_else(|| requests.first().copied().filter(|_| requests.len() == 1))
    }
}

impl Sessions {
    /// Asks the worker of a session to stop working in it, if that is configured.
    pub(super) fn send_cancellation(&self, ctx: &mut Ctx, session: SessionKey) {
        let Some(session) = self.get(session) else { return };
        let worker = session.worker();
        let wanted = ctx.workers.fleet_of(worker).is_some_and(|fleet| ctx.settings.pools[fleet].cancel_on_disconnect);
        if !wanted || !ctx.workers.worker_takes_messages(worker) {
            return;
        }
        let mut name = Vec::new();
        reply::write_string(session.name().as_bytes(), &mut name);
        ctx.send(worker.into(), &reply::session_cancel(&name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_is_known_by_the_type_of_the_version_in_its_initialize() {
        let of =
            |params: &str| Dialect::of_initialize(format!(r#"{{"method":"initialize","params":{params}}}"#).as_bytes());
        assert_eq!(of(r#"{"protocolVersion":"2025-06-18"}"#), Some(Dialect::Mcp));
        assert_eq!(of(r#"{"protocolVersion": 1}"#), Some(Dialect::Acp));
        assert_eq!(of(r#"{"processId":null,"rootUri":null}"#), Some(Dialect::Lsp));
        assert_eq!(of("{}"), None);
    }
}
