//! The addressee of a worker's message: the owner of the session that it names, the client of the request or the
//! elicitation that it names; and if it names none, the only client that the worker has ever served.
//!
//! Invariant: a message that names nothing reaches a client only if no other one has ever sent the worker anything. A
//! client that has left may have left something behind (a subscription, work in progress), so the next client does not
//! take its place.

use alloc::string::String;

use ndjson_scan::Span;

use super::audience::LOGIN;
use super::message::{By, WorkerMessage};
use crate::ctx::Ctx;
use crate::id::{Id, Spelled};
use crate::index::GroupId;
use crate::message::{Parsed, Refusal, session_name};
use crate::peer::{ClientKey, Peer, RequestKey, ShortText, WorkerKey};
use crate::peers::Client;
use crate::report::Reason;
use crate::requests::Requests;
use crate::settings::{Assignment, Era};
use crate::worker::Worker;

/// So much of a method is shown where its message is refused.
const LONGEST_METHOD: usize = 64;

/// Another request that a worker's message is about.
#[derive(Default)]
pub(super) struct NamedRequest {
    /// The client of that request.
    pub client: Option<Peer>,
    /// The token that client knows, if it is another one.
    pub token: Option<ShortText>,
    /// That request, if it is a client's.
    pub about: Option<RequestKey>,
    /// The span of the name, and what kind of name it is, if the message is about a request.
    pub at: Span,
    pub(super) by: Option<By>,
}

/// The client that everything from a worker is for: its owner, the only one that it has served, or the only one
/// that could use it if it has served none. A spare of a dedicated pool has none: each client there has its own.
pub(crate) fn only_client(ctx: &Ctx, requests: &Requests, key: WorkerKey) -> Option<ClientKey> {
    let worker = ctx.workers.get(key)?;
    match worker.audience().first() {
        _ if ctx.settings.pools[worker.fleet()].assignment == Assignment::Dedicated => {
            worker.owner().filter(|owner| !requests.may_work_for_others(ctx, key, worker, *owner))
        }
        Some(client) => Some(client).filter(|_| !worker.audience().has_others()),
        None => {
            let may_use = |client: &Client| match client.mcp().era {
                Some(_) => client.group() == GroupId::Fleet(worker.fleet()),
                None => {
                    !client.identity().origin.is_proxy
                        && worker.fleet().era == Era::Legacy
                        && ctx.settings.offers(
                            client.identity().listener,
                            &client.identity().origin,
                            worker.fleet().pool,
                        )
                }
            };
            let mut users = ctx.clients.iter().filter(|(_, client)| may_use(client)).map(|(client, _)| client);
            users.next().filter(|_| users.next().is_none())
        }
    }
}

impl Requests {
    /// Whether a worker that is lent to a client may still work on a request that another one has dropped, or works on
    /// one of another client that has a task there.
    fn may_work_for_others(&self, ctx: &Ctx, key: WorkerKey, worker: &Worker, owner: ClientKey) -> bool {
        let has_orphans = worker.end().to_answer.count() != worker.end().to_answer.awaited();
        let is_owners =
            |request: &RequestKey| self.get(*request).is_some_and(|request| request.asker() == Some(owner.into()));
        let has_guests = || worker.ownership().has_guests() && !self.asked_of(ctx, key.into()).iter().all(is_owners);
        ctx.clients.mcp(owner).borrows && (has_orphans || has_guests())
    }

    /// The other request that a worker's message names.
    pub(super) fn request_of_worker_message(&mut self, ctx: &mut Ctx, said: &WorkerMessage<'_>) -> NamedRequest {
        let Some((at, by)) = said.about() else { return NamedRequest::default() };
        let from = Peer::Worker(said.from);
        let token = said.line.get(at);
        let found = match by {
            By::OwnId => self.named(ctx, from, token),
            By::Id => Id::parse(token).ok().and_then(|id| self.find(from, &id)),
            By::Token => Id::parse(token).ok().and_then(|token| self.find_by_token(from, &token)),
        };
        let Some((key, request)) = found.and_then(|key| Some((key, self.get(key)?))) else {
            return NamedRequest { at, by: Some(by), ..NamedRequest::default() };
        };
        let (client, token) = match by {
            By::OwnId => (Some(request.answerer()), self.wire_token(key)),
            By::Id => (request.asker(), self.replaced_token(key)),
            By::Token => (request.asker(), self.replaced_progress(key)),
        };
        let about = Some(key).filter(|_| by != By::OwnId);
        NamedRequest { client, token, about, at, by: Some(by) }
    }

    /// Whether a client may mistake the id in a worker's notification, which is no pending request of that worker, for
    /// another worker's request that it has still to answer: a late cancellation must not hit that one.
    pub(crate) fn may_name_anothers(&self, ctx: &Ctx, client: ClientKey, line: Parsed<'_>, at: Span) -> bool {
        if !at.is_some() || ctx.peer_end(client.into()).is_none_or(|client| client.to_answer.count() == 0) {
            return false;
        }
        // A token that is too long is not an id.
        let Ok(Spelled { id, is_plain, .. }) = Spelled::parse(line.get(at)) else { return false };
        !is_plain || self.find(Peer::Client(client), &id).is_some()
    }
}

/// Why a message that names no client has no addressee, with the remedy.
pub(crate) fn no_addressee(ctx: &Ctx, said: &WorkerMessage<'_>) -> Refusal {
    let Some(worker) = ctx.workers.get(said.from) else {
        return Refusal(Reason::Unroutable, Reason::Unroutable.help().into());
    };
    let pool = &ctx.settings.pools[worker.fleet()];
    let method = session_name(said.line, said.line.method).unwrap_or_default();
    let shown = String::from_utf8_lossy(&method[..method.len().min(LONGEST_METHOD)]);
    let shown = shown.escape_debug();
    let why = match (pool.assignment, worker.audience().has_others()) {
        (Assignment::Dedicated, _) if worker.owner().is_some() => {
            let text = format!(
                "\"{shown}\" names no request, and the worker may still work on one that another client has given up"
            );
            return Refusal(Reason::Unroutable, text);
        }
        (Assignment::Dedicated, _) => {
            let text = format!("\"{shown}\" names no session, and no client has this worker yet");
            return Refusal(Reason::Unroutable, text);
        }
        (_, true) if LOGIN.contains(&&*method) => {
            let text = format!(
                "\"{shown}\" is about the login of one user, and this worker has served clients that are not known to be \
                 one: give them tokens or certificates of one name, or give pool \"{}\" \"assignment\": \"dedicated\"",
                pool.id
            );
            return Refusal(Reason::Unroutable, text);
        }
        (_, true) => "this worker has served several clients",
        _ => "its client is ambiguous",
    };
    let text = format!(
        "\"{shown}\" names no session, and {why}: give pool \"{}\" \"assignment\": \"dedicated\", as MCP servers need it",
        pool.id
    );
    Refusal(Reason::Unroutable, text)
}
