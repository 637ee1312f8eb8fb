//! The clients whose lines a worker has received since its start, and broadcasts to all of them: that a list has
//! changed (MCP up to 2025-11-25), which has no content and names no client, and the state of their shared login (ACP).
//!
//! Invariant: a message with content reaches several clients only if all ever served share one verified name.

use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::ctx::Ctx;
use crate::message::{Parsed, session_name};
use crate::origin::Origin;
use crate::peer::{ClientKey, WorkerKey};
use crate::peers::{Client, Phase, Workers};

/// The state of the login at an agent: as ACP proposes it, and as an extension, which agents send until it is decided.
pub(super) const LOGIN: [&[u8]; 2] = [b"auth/status_update", b"_auth/status_update"];

/// A line without content is not longer than this.
const LONGEST: usize = 1024;

/// The clients whose lines a worker has received since its start.
#[derive(Default)]
pub(crate) struct Audience {
    /// A bit for each slot of a connected client that has sent it a line.
    served: Vec<u64>,
    /// The first one, which may have left, and its origin.
    first: Option<(ClientKey, Rc<Origin>)>,
    /// It was not the only one.
    has_others: bool,
    /// Not all of them have the verified name of the first one.
    is_mixed: bool,
}

impl Audience {
    /// The first one, which may have left.
    pub(super) fn first(&self) -> Option<ClientKey> {
        self.first.as_ref().map(|(client, _)| *client)
    }

    /// Whether there were several.
    pub(super) fn has_others(&self) -> bool {
        self.has_others
    }

    /// Whether it has received a line of this client, which is connected.
    pub(crate) fn has(&self, client: ClientKey) -> bool {
        let (word, bit) = (client.index() / 64, client.index() % 64);
        self.served.get(word).is_some_and(|served| served >> bit & 1 != 0)
    }

    /// It receives the first line of this client.
    #[cold]
    fn add(&mut self, key: ClientKey, origin: &Rc<Origin>) {
        let (word, bit) = (key.index() / 64, key.index() % 64);
        self.served.resize(self.served.len().max(word + 1), 0);
        self.served[word] |= 1 << bit;
        self.has_others = self.first.is_some();
        let (_, first) = self.first.get_or_insert_with(|| (key, Rc::clone(origin)));
        self.is_mixed |= !first.names.are_the_same_owner(&origin.names);
    }

    /// This client has left: another one may get its slot.
    pub(crate) fn forget(&mut self, client: ClientKey) {
        if let Some(served) = self.served.get_mut(client.index() / 64) {
            *served &= !(1 << (client.index() % 64));
        }
    }

    /// Whether all clients that it has ever served are known to be one user.
    pub(crate) fn is_one_user(&self) -> bool {
        !self.is_mixed && self.first.as_ref().is_some_and(|(_, first)| first.names.owner().is_some())
    }
}

/// A broadcast.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForAll {
    /// One of the lists has changed.
    List(usize),
    /// The state of the login, which concerns a single user.
    Login,
}

impl ForAll {
    pub(crate) fn of(line: Parsed<'_>) -> Option<Self> {
        let kind = match &*session_name(line, line.method)? {
            b"notifications/tools/list_changed" => Self::List(0),
            b"notifications/prompts/list_changed" => Self::List(1),
            b"notifications/resources/list_changed" => Self::List(2),
            method if LOGIN.contains(&method) => return Some(Self::Login),
            _ => return None,
        };
        (line.span.len() <= LONGEST).then_some(kind)
    }
}

/// The clients that a worker has served, and that still read.
pub(crate) fn served_by(ctx: &Ctx, worker: WorkerKey) -> Vec<ClientKey> {
    let Some(worker) = ctx.workers.get(worker) else { return Vec::new() };
    let listens =
        |(key, client): &(ClientKey, &Client)| worker.audience().has(*key) && client.phase() <= Phase::HalfClosed;
    ctx.clients.iter().filter(listens).map(|(key, _)| key).collect()
}

/// A worker receives a line of this client.
pub(crate) fn note_audience(ctx: &mut Ctx, worker: WorkerKey, client: ClientKey) {
    let is_new = ctx.workers.get(worker).is_some_and(|worker| !worker.audience().has(client));
    let from = ctx.clients.identity(client).filter(|_| is_new).map(|from| Rc::clone(&from.origin));
    if let (Some(from), Some(worker)) = (from, ctx.workers.get_mut(worker)) {
        worker.audience_mut().add(client, &from);
    }
}

impl Workers {
    /// A client has gone.
    pub(crate) fn leave_audiences(&mut self, client: ClientKey) {
        self.values_mut().for_each(|worker| worker.audience_mut().forget(client));
    }
}
