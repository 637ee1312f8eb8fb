//! Which client offers a worker which MCP server over ACP: the `mcpServers[]` of type `acp` in a request for a session.
//! A `mcp/message` names only the server, in both directions. A name that two clients use belongs to neither.
use ndjson_scan::{objects_in_params, string_in, string_in_params};

use super::message::{Message, WorkerMessage, is_of_server};
use crate::ctx::Ctx;
use crate::mcp_servers::{LONGEST_NAME, MOST_OF_REQUEST};
use crate::message::KnownMethod;
use crate::peer::{ClientKey, WorkerKey};
use crate::peers::Client;

/// A client's request is forwarded to a worker: remembers the servers that it offers.
pub(super) fn note_servers(ctx: &mut Ctx, message: &Message<'_>, worker: WorkerKey) {
    let &Message { from: client, line, verb, .. } = message;
    // A dedicated worker has no other client to ask.
    if ctx.workers.has_owner(worker) || !matches!(verb, KnownMethod::New | KnownMethod::Load | KnownMethod::Fork) {
        return;
    }
    for server in objects_in_params(line.get(line.span), b"mcpServers", MOST_OF_REQUEST) {
        if string_in(server, b"type").is_some_and(|kind| &*kind == b"acp")
            && let Some(id) = string_in(server, b"id").filter(|id| id.len() <= LONGEST_NAME)
            && let Some(client) = ctx.clients.get_mut(client)
        {
            client.note_offer(worker, &id);
        }
    }
}

/// The client that offers the server named in a worker's message.
pub(super) fn client_of_server(ctx: &Ctx, said: &WorkerMessage<'_>) -> Option<ClientKey> {
    let &WorkerMessage { from: worker, line, .. } = said;
    if !is_of_server(line) {
        return None;
    }
    let server = string_in_params(line.get(line.span), b"serverId")?;
    let offers = |(_, client): &(ClientKey, &Client)| client.offers().has(worker, &server);
    let mut found = ctx.clients.iter().filter(offers);
    let (mut newest, first) = found.next()?;
    let names = &first.identity().origin.names;
    for (key, other) in found {
        // A connection that was lost without a close is still listed when its client reconnects.
        if !names.are_the_same_owner(&other.identity().origin.names) {
            return None;
        }
        newest = if key.serial() > newest.serial() { key } else { newest };
    }
    Some(newest)
}

/// The worker to which a client has offered the server that its message is from.
pub(super) fn worker_of_server(ctx: &Ctx, message: &Message<'_>) -> Option<WorkerKey> {
    let &Message { from: client, line, .. } = message;
    let offers = ctx.clients.get(client)?.offers();
    if offers.is_empty() || !is_of_server(line) {
        return None;
    }
    let server = string_in_params(line.get(line.span), b"serverId")?;
    offers.workers_of(&server).find(|worker| ctx.workers.worker_takes_messages(*worker))
}
