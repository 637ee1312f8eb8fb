//! Open subscriptions (`subscriptions/listen` of MCP 2026-07-28). A server notifies those who listen only of what changes in its
//! own process. So as long as a client listens, its other requests go to the process that it listens to: those of the same
//! connection, and those of all connections with the same verified name.
//!
//! They go there also if it is lent to the connection that listens, or is being replaced: a listener keeps both.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::message::KnownMethod;
use super::peer::{ClientKey, Peer, RequestKey, WorkerKey};
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::eras::lending::preferred_in;
use crate::index::{FleetId, GroupId, ListenerId};
use crate::origin::NameAuthority;
use crate::peers::Clients;
use crate::requests::Requests;

/// Who listens: a listener, and the verified name, and who vouches for it; without a name the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subscriber {
    at: ListenerId,
    name: Option<(NameAuthority, String)>,
    client: Option<ClientKey>,
}

struct Subscription {
    of: Subscriber,
    request: RequestKey,
}

/// All open subscriptions, the newest last.
#[derive(Default)]
pub(crate) struct Subscriptions(Vec<Subscription>);

impl Subscriptions {
    /// A client listens.
    pub(crate) fn note(
        &mut self,
        ctx: &Ctx,
        requests: &Requests,
        fleets: &mut Fleets,
        client: ClientKey,
        worker: WorkerKey,
        request: RequestKey,
    ) {
        // A worker of one's own gets all that its client sends.
        let is_its_own = ctx.workers.has_owner(worker) && !ctx.clients.mcp(client).borrows;
        if let Some(of) = ctx.clients.listener(client).filter(|_| !is_its_own) {
            self.0.push(Subscription { of, request });
            self.review(ctx, requests, fleets);
        }
    }

    /// The worker to which a client listens, if a message of it that names nothing may go there.
    #[inline(always)]
    pub(crate) fn worker_it_listens_to(
        &mut self,
        ctx: &Ctx,
        requests: &Requests,
        fleets: &mut Fleets,
        client: ClientKey,
        group: GroupId,
    ) -> Option<WorkerKey> {
        if fleets.balancer()[group].has_listeners() { self.find(ctx, requests, fleets, client, group) } else { None }
    }

    #[inline(never)]
    fn find(
        &mut self,
        ctx: &Ctx,
        requests: &Requests,
        fleets: &mut Fleets,
        client: ClientKey,
        group: GroupId,
    ) -> Option<WorkerKey> {
        if self.0.iter().any(|it| requests.worker_of_subscription(it.request).is_none()) {
            self.review(ctx, requests, fleets);
        }
        // What continues a request is routed where that was begun.
        let begun = preferred_in(ctx, client, group);
        let of = ctx.clients.listener(client)?;
        let own = self.0.iter().rev().filter(|it| it.of == of);
        let mut workers = own.filter_map(|it| requests.worker_of_subscription(it.request));
        workers.find(|worker| {
            let is_there = ctx.workers.fleet_of(*worker).is_some_and(|fleet| fleets.balancer()[group].has(fleet));
            is_there && ctx.workers.worker_takes_messages(*worker) && begun.is_none_or(|begun| begun == *worker)
        })
    }

    /// Forgets those that have ended, and marks the groups whose workers have listeners.
    pub(crate) fn review(&mut self, ctx: &Ctx, requests: &Requests, fleets: &mut Fleets) {
        let mut all = core::mem::take(&mut self.0);
        all.retain(|it| requests.worker_of_subscription(it.request).is_some());
        let workers = all.iter().filter_map(|it| requests.worker_of_subscription(it.request));
        let mut those: Vec<FleetId> = workers.filter_map(|worker| ctx.workers.fleet_of(worker)).collect();
        those.sort_unstable();
        those.dedup();
        for group in fleets.balancer_mut().groups_mut().iter_mut() {
            let has_any = those.iter().any(|fleet| group.has(*fleet));
            group.set_listeners(has_any);
        }
        self.0 = all;
    }
}

impl Requests {
    /// The worker of a `subscriptions/listen` that is neither answered nor cancelled.
    fn worker_of_subscription(&self, request: RequestKey) -> Option<WorkerKey> {
        let request = self.get(request).filter(|request| request.verb() == KnownMethod::Listen)?;
        let listens = request.asker().is_some() && request.cancelled().is_none();
        match request.answerer() {
            Peer::Worker(worker) if listens => Some(worker),
            _ => None,
        }
    }
}

impl Clients {
    fn listener(&self, client: ClientKey) -> Option<Subscriber> {
        let identity = self.identity(client)?;
        let names = &identity.origin.names;
        let name = names.owner().map(|owner| (owner.vouches, owner.name.to_owned()));
        let client = Some(client).filter(|_| name.is_none());
        Some(Subscriber { at: identity.listener, name, client })
    }
}
