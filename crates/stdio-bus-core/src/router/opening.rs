//! How MCP sessions are opened on the workers that they share. A server may refuse everything before `initialize` (the
//! official Python SDK's does), and a session reaches workers that have not seen it: when the one that it began with
//! has ended, or with `round_robin`. So before a worker gets anything else of a session, the bus sends it the
//! `initialize` of that session and `notifications/initialized`. The answer is discarded.

use alloc::vec::Vec;

use ndjson_scan::Span;

use super::message::Message;
use crate::Bus;
use crate::client::Opening;
use crate::id::Id;
use crate::message::{Verb, has_method, not_for_worker};
use crate::peer::{Peer, WorkerKey};
use crate::settings::Era;
use crate::supervisor::answering::Opened;

/// Maximum size of an `initialize` that is kept.
const LONGEST: usize = 4096;
/// The id that the bus gives it. A worker has at most one of these to answer at a time.
pub(crate) const ID: &str = "\"stdio-bus/initialize\"";
const INITIALIZED: &str = "notifications/initialized";

impl Bus {
    /// Whether there was ever an MCP listener.
    pub(crate) fn serves_mcp(&self) -> bool {
        self.supervisor.pools.len() > self.supervisor.shown
    }

    /// A client's message goes to a worker: first sends it the session's opening, if it needs that.
    pub(super) fn open_worker(&mut self, message: &Message<'_>, key: WorkerKey) {
        let &Message { from: client, line, verb, .. } = message;
        let begins = verb == Verb::Initialize && line.id.is_some();
        let Some(worker) = self.workers.get(key) else { return };
        let (is_opened, is_shared) = (worker.facts.opened != Opened::No, worker.owner.is_none());
        if is_opened && !begins || !is_shared || self.mcp(client).era != Some(Era::Legacy) {
            return;
        }
        let Some(opening) = self.client_mut(client).map(|client| &mut client.seldom.opening) else { return };
        if begins {
            let mut pieces = [Some((line.id, ID.as_bytes())), not_for_worker(line).map(|own| (own, &b""[..]))];
            pieces.sort_unstable_by_key(|piece| piece.map_or(u32::MAX, |(at, _)| at.start));
            let mut text = Vec::new();
            let mut from = line.span.start;
            for (at, with) in pieces.into_iter().flatten() {
                text.extend_from_slice(line.get(Span { start: from, end: at.start }));
                text.extend_from_slice(with);
                from = at.end;
            }
            text.extend_from_slice(line.get(Span { start: from, end: line.span.end }));
            text.push(b'\n');
            let kept = (line.span.len() <= LONGEST).then(|| text.into());
            *opening = Opening { line: kept, at: Some(key) };
        } else if opening.at == Some(key) {
            if has_method(line, INITIALIZED.as_bytes()) {
                self.set_opened(key, Opened::Yes);
            }
        } else if let Some(line) = opening.line.clone() {
            opening.at = Some(key);
            self.set_opened(key, Opened::Asked);
            self.send(Peer::Worker(key), &line);
            let initialized = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{INITIALIZED}\"}}\n");
            self.send(Peer::Worker(key), initialized.as_bytes());
        }
    }

    fn set_opened(&mut self, key: WorkerKey, opened: Opened) {
        self.workers.get_mut(key).into_iter().for_each(|worker| worker.facts.opened = opened);
    }

    /// Takes the answer of a worker to an opening, if this is one. After an error it gets the opening of the next
    /// session. Returns whether it is one.
    pub(super) fn take_opening(&mut self, key: WorkerKey, id: &Id, is_result: bool) -> bool {
        let Some(worker) = self.workers.get_mut(key).filter(|worker| worker.facts.opened == Opened::Asked) else {
            return false;
        };
        let is_it = Id::parse(ID.as_bytes()).as_ref() == Ok(id);
        if is_it {
            worker.facts.opened = if is_result { Opened::Yes } else { Opened::No };
        }
        is_it
    }
}
