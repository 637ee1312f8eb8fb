//! MCP over Streamable HTTP. Its clients are of two roles: sessions, of the revisions that have sessions (`session.rs`),
//! and the self-contained requests of one connection, of 2026-07-28 (`self_contained.rs`).

mod restore;
mod self_contained;
mod session;
pub(in crate::shell::http) mod states;

use super::{ClientProtocol, Protocol};
use crate::bus::eras::protocol::{INVALID_REQUEST, MODERN, REVISIONS, revision};
use crate::bus::port::{ClientKey, Input, Moment, Origin, PoolId};
use crate::http1::{Request, Status};
use crate::io::Io;
use crate::mcp::asked::Verb;
use crate::mcp::write::OwnFields;
use crate::mcp::{Asked, Body, Fault, modern};
use crate::shell::connections::HttpSlot;
use crate::shell::http::http_clients::HttpClient;
use crate::shell::reactor::Reactor;
use crate::shell::turn::Shell;

/// MCP, as a protocol of requests.
pub(super) struct Mcp;

impl Protocol for Mcp {
    fn fields() -> &'static OwnFields {
        Default::default()
    }

    fn asked(head: &Request<'_>, path: &str) -> Result<Asked, Fault> {
        Asked::of(head, path)
    }

    /// A GET reads a stream of a session, and a DELETE ends it.
    fn ask<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, verb: Verb) -> Result<(), Fault> {
        let asked = shell.reactor.connections[HttpSlot(slot)].incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        if asked.says_modern() {
            return Err(Fault::new(Status::MethodNotAllowed, format!("{MODERN} has POST alone")));
        }
        modern::check_legacy(asked)?;
        if verb == Verb::Get { shell.http_get(now, slot) } else { shell.http_delete(now, slot) }
    }

    fn may_batch<I: Io>(shell: &mut Shell<I>, slot: usize) -> Result<(), Fault> {
        let connection = &shell.reactor.connections[HttpSlot(slot)];
        let asked = connection.incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        modern::may_batch(asked)?;
        let says_so = says_batches(asked.version.as_deref());
        let client = shell.session_asked(slot)?;
        let session = shell.reactor.http.clients.get_mut(client).and_then(HttpClient::session);
        match session.is_some_and(|session| session.takes_batches() || says_so) {
            true => Ok(()),
            false => Err(no_batches()),
        }
    }

    fn may_post<I: Io>(shell: &mut Shell<I>, slot: usize) -> Result<(), Fault> {
        let asked = shell.reactor.connections[HttpSlot(slot)].incoming.asked.as_ref();
        let Some(asked) = asked.filter(|asked| !asked.says_modern()) else { return Ok(()) };
        modern::check_legacy(asked)?;
        // A session of an earlier daemon gets no worker for a request that has no message.
        if asked.session.is_none() || shell.is_kept_asked(slot) {
            return Ok(());
        }
        shell.session_asked(slot).map(drop)
    }

    fn post<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, body: Body) -> Result<(), Fault> {
        let asked = shell.reactor.connections[HttpSlot(slot)].incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        let is_modern = match &body {
            Body::One(message) => modern::is_modern(asked, message)?,
            Body::Batch(messages) => modern::check_batch(asked, messages).map(|()| false)?,
        };
        match (is_modern, body) {
            (true, Body::One(message)) => shell.post_modern(now, slot, message),
            (_, body) => shell.post_legacy(now, slot, body),
        }
    }

    fn parked_due<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.parked_due(now, slot);
    }

    fn work<I: Io>(shell: &mut Shell<I>, now: Moment) {
        shell.look_up_states();
        shell.resume_parked(now);
    }
}

impl<I: Io> Shell<I> {
    /// The pool that a request is for.
    fn pool_asked(&self, slot: usize) -> Result<PoolId, Fault> {
        let connection = &self.reactor.connections[HttpSlot(slot)];
        let (incoming, listener) = (&connection.incoming, connection.listener);
        let origin = &incoming.sender.origin;
        let pools = &self.reactor.workers.pools;
        let may_use = |pool: &PoolId| self.bus.view().offers(listener, origin, *pool);
        let named = incoming.asked.as_ref().and_then(|asked| asked.pool.as_deref());
        let found = match named {
            Some(name) => pools.iter().position(|pool| pool.core.id == name).map(PoolId::at).filter(may_use),
            None => self.bus.view().default_pool(listener, origin),
        };
        found.ok_or_else(|| {
            let of_client = (0..pools.len()).map(PoolId::at).filter(may_use);
            let names: Vec<&str> = of_client.map(|pool| pools[pool.index()].core.id.as_str()).collect();
            let path = self.reactor.listeners.policy(listener).map_or("/mcp", |policy| &policy.terms.path);
            let offered = names.join(&format!(", {path}/"));
            let is_for_others = |name: &str| {
                let anybody = Origin::default();
                let is_it = |pool: &PoolId| pools[pool.index()].core.id == name;
                let mut offered = (0..pools.len()).map(PoolId::at).filter(is_it);
                offered.any(|pool| self.bus.view().offers(listener, &anybody, pool))
            };
            let has_groups =
                self.reactor.listeners.policy(listener).is_some_and(|policy| policy.terms.access.groups.is_some());
            // No scope that a client could ask for would help, and the answer says what does.
            if let Some(name) = named.filter(|name| has_groups && is_for_others(name)) {
                let why =
                    format!("the pool {name:?} is for other groups than yours; for you there is {path}/{offered}");
                return Fault::new(Status::Forbidden, why);
            }
            let why = match named {
                _ if names.is_empty() => "this listener has no pool for this client".to_owned(),
                Some(name) => format!("there is no pool {name:?} here: name {path}/{offered}"),
                None => format!("name a pool: {path}/{offered}"),
            };
            Fault::new(Status::NotFound, why)
        })
    }
}

impl<I: Io> Reactor<I> {
    /// Reports to the core what has become of what a connection did not send for a client: the loss of some lines, that the
    /// others are off its hands, and perhaps that the client has left.
    fn end_delivery(&mut self, now: Moment, client: ClientKey, lost: usize, owed: usize, has_left: bool) {
        self.count_lost_events(client, lost);
        // First, or the core would wait for it to be sent.
        self.report_sent(now, client, owed);
        if has_left {
            self.dispatch(now, Input::ClientLeft(client));
        }
    }
}

/// Whether the revision that a request names has batches.
fn says_batches(version: Option<&str>) -> bool {
    version.and_then(|version| revision(version.as_bytes())).is_some_and(|revision| revision.has_batches)
}

fn no_batches() -> Fault {
    let dates: Vec<_> =
        REVISIONS.iter().filter(|revision| revision.has_batches).map(|revision| revision.date).collect();
    Fault::bad(INVALID_REQUEST, format!("only {} has batches: post one message", dates.join(", ")))
}

fn needs_events(what: &str) -> Fault {
    Fault::new(
        Status::NotAcceptable,
        format!("{what} is answered by a stream: Accept may not refuse text/event-stream"),
    )
}

fn too_long() -> Fault {
    Fault::bad(INVALID_REQUEST, "the id is longer than 128 bytes")
}
