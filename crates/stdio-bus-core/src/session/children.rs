//! Child sessions: a worker announces that it works in another session on behalf of one that it has. ACP's subagents
//! send `session/update {sessionId: PARENT, update: {sessionUpdate: "subagent_update", sessionId: CHILD}}`, and from then
//! on all that is said of a child names the child alone.
//!
//! Only an agent whose client has said that it knows subagents announces any, so that the updates of other workers are
//! not searched. `session_message`, which names other sessions in an update, too, is no announcement.
//!
//! Invariant: a child is on the worker of its parent and has its owner, from the announcement to the end of either; a
//! client that asks for the child itself, while the worker has given the parent to nobody, gets it as a session of its
//! own.
use alloc::borrow::Cow;
use alloc::vec::Vec;

use ndjson_scan::{member, string_in};

use super::table::FULL;
use crate::ctx::Ctx;
use crate::fleet::pool::Pools;
use crate::message::text_after;
use crate::peer::{ClientKey, Peer, SessionKey, WorkerKey};
use crate::report::Reason;
use crate::requests::Requests;
use crate::session::table::Sessions;

/// The child that a `session/update` announces, if it does.
pub(crate) fn announced(message: &[u8]) -> Option<Cow<'_, [u8]>> {
    let update = member(member(message, b"params")?, b"update")?;
    string_in(update, b"sessionUpdate").filter(|kind| &**kind == b"subagent_update")?;
    string_in(update, b"sessionId").filter(|name| !name.is_empty())
}

/// Whether an `initialize` says that its client knows subagents.
fn knows_subagents(line: &[u8]) -> bool {
    text_after(line, "\"subagents\"").is_some_and(|value| !value.starts_with(b"null") && !value.starts_with(b"false"))
}

impl Sessions {
    /// A worker has announced a child of this session. Returns whether it is one, or is its owner's anyway.
    pub(crate) fn begin_child(
        &mut self,
        ctx: &mut Ctx,
        owner: ClientKey,
        worker: WorkerKey,
        parent: SessionKey,
        name: &[u8],
    ) -> bool {
        let known = self.of_worker(worker, name).and_then(|key| Some((key, self.get(key)?)));
        match known {
            Some((key, session)) if session.client == Some(owner) => {
                // A mere claim of the client, which named it first, or what it has asked for; an announcement in a circle
                // changes nothing.
                if !session.state.is_issued()
                    && session.parent.is_none()
                    && !self.is_below(parent, key)
                    && key != parent
                {
                    self.join_family(ctx, owner, key, parent);
                }
                return true;
            }
            Some((_, session)) if session.client.is_some() && session.state.is_issued() => {
                ctx.report(Reason::SessionReused, Some(Peer::Worker(worker)), || {
                    format!("child session \"{}\" belongs to another client already", name.escape_ascii())
                });
                return false;
            }
            Some((key, _)) => self.end(ctx, key),
            None => {}
        }
        if self.is_full() {
            self.evict_child_of(ctx, owner, parent);
        }
        let state = self.get(parent).map(|parent| parent.state);
        let child = state.and_then(|state| self.open(ctx, owner, worker, name, state));
        match child {
            Some(child) => self.join_family(ctx, owner, child, parent),
            None => ctx.report(Reason::SessionLimit, Some(Peer::Worker(worker)), || {
                format!("child session \"{}\" has no room: {FULL}", name.escape_ascii())
            }),
        }
        child.is_some()
    }

    fn join_family(&mut self, ctx: &mut Ctx, owner: ClientKey, child: SessionKey, parent: SessionKey) {
        self.adopt(child, parent);
        let Some(session) = self.get(child) else { return };
        let (worker, name) = (session.worker, session.name.clone());
        if session.state.is_issued() {
            self.bind(ctx, owner, worker, name.as_bytes());
        }
        ctx.clients.forget_lost(owner, name.as_bytes());
    }

    /// Nobody says that a child has ended. If the table is full and its owner holds most, its own child that was
    /// announced first gives way, unless the new one belongs to it.
    fn evict_child_of(&mut self, ctx: &mut Ctx, owner: ClientKey, parent: SessionKey) {
        if ctx.clients.heaviest(owner, |client| client.end().sessions.len()).is_some() {
            return;
        }
        let own = ctx.peer_end(owner.into()).map(|end| end.sessions.clone()).unwrap_or_default();
        let is_over = |key: &SessionKey| {
            let is_child = self.get(*key).is_some_and(|session| session.parent.is_some());
            is_child && *key != parent && !self.is_below(parent, *key)
        };
        let children: Vec<_> = own.iter().copied().filter(is_over).collect();
        let Some(oldest) = self.most_idle(&children) else { return };
        ctx.report(Reason::SessionEvicted, Some(owner.into()), || {
            "the session table is full: the oldest child of this client's sessions is closed".into()
        });
        self.end(ctx, oldest);
    }

    /// The worker refuses to load a session. What its client has asked for by itself among the children is not refused
    /// with it: each is a session of its own, that the worker has still to answer for.
    pub(crate) fn release_awaited_children(&mut self, ctx: &Ctx, requests: &Requests, parent: SessionKey) {
        // One that is a child itself stays with its own parent, and its children with it.
        if self.get(parent).is_none_or(|session| session.parent.is_some()) {
            return;
        }
        for child in self.family_of(parent) {
            if self.owner_waits_in(ctx, requests, child) {
                self.leave_family(child);
            }
        }
    }

    /// The children of a session get the owner that it has got. Those that find no room are forgotten, until the worker
    /// announces them again.
    pub(super) fn lend_children(&mut self, ctx: &mut Ctx, parent: SessionKey, client: ClientKey) {
        for child in self.family_of(parent) {
            if self.is_full() {
                self.end(ctx, child);
            } else {
                self.give_to(ctx, child, client);
            }
        }
    }
}

/// A client sends a worker this `initialize`. The workers of its pool are watched from now on, also those that are
/// still to be started: not every agent wants to see it again.
pub(crate) fn note_subagents(pools: &mut Pools, ctx: &mut Ctx, worker: WorkerKey, line: &[u8]) {
    let Some(fleet) = ctx.workers.fleet_of(worker).filter(|_| knows_subagents(line)) else { return };
    if !pools[fleet].expect_children() {
        return;
    }
    for worker in ctx.workers.keys() {
        if let Some(worker) = ctx.workers.get_mut(worker).filter(|worker| worker.fleet() == fleet) {
            worker.updates_mut().expect_children();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_subagent_update_announces_a_child() {
        let child = |update: &str| {
            let line = format!(r#"{{"method":"session/update","params":{{"sessionId":"p","update":{update}}}}}"#);
            announced(line.as_bytes()).map(|name| String::from_utf8_lossy(&name).into_owned())
        };
        assert_eq!(child(r#"{"sessionUpdate":"subagent_update","sessionId":"c"}"#).as_deref(), Some("c"));
        assert_eq!(
            child(r#"{ "sessionId" : "c\u0041", "sessionUpd\u0061te" : "subagent\u005fupdate" }"#).as_deref(),
            Some("cA")
        );
        assert_eq!(child(r#"{"sessionUpdate":"session_message","sessionId":"c"}"#), None);
        assert_eq!(child(r#"{"content":{"sessionUpdate":"subagent_update","sessionId":"c"}}"#), None);
        assert_eq!(child(r#"{"sessionUpdate":"subagent_update"}"#), None);
        assert_eq!(child(r#"{"sessionUpdate":"subagent_update","sessionId":""}"#), None);
        assert_eq!(child(r#""subagent_update""#), None);
    }

    #[test]
    fn a_client_knows_subagents_if_it_says_so() {
        let knows = |capabilities: &str| {
            knows_subagents(format!(r#"{{"params":{{"clientCapabilities":{capabilities}}}}}"#).as_bytes())
        };
        assert!(knows(r#"{"subagents":{}}"#) && knows(r#"{ "subagents" : true }"#));
        assert!(!knows(r#"{}"#) && !knows(r#"{"subagents":null}"#) && !knows(r#"{"title":"\"subagents\":{}"}"#));
    }
}
