//! Whom a worker has sent with an elicitation to another place (`elicitation/create` with an `elicitationId`), so that
//! the client hears when it is complete: that notification names the elicitation alone.
//!
//! An id that a worker uses for two clients at once means neither of them. A session that another connection takes over
//! takes its elicitations along.
use alloc::collections::VecDeque;

use ndjson_scan::{Line, Window, string_in_params};

use super::message::Said;
use crate::Bus;
use crate::message::has_method;
use crate::peer::{ClientKey, SessionKey, Text, WorkerKey};

/// So many are remembered for one worker; beyond them the oldest one goes.
const MOST: usize = 64;
/// The id of one that is remembered has so many bytes at most.
const LONGEST_ID: usize = 256;
/// And so many bytes all of one worker together.
const MOST_BYTES: usize = 4096;
/// What is remembered for one worker takes up no more bytes than this.
#[cfg(test)]
pub(crate) const MOST_MEMORY: usize = MOST_BYTES + MOST * size_of::<Elicitation>();

/// The elicitations of a worker, the oldest in front.
#[derive(Default)]
pub(crate) struct Elicitations {
    sent: VecDeque<Elicitation>,
}

struct Elicitation {
    id: Text,
    /// Whom the worker has asked; none if it has asked two.
    client: Option<ClientKey>,
    /// The session that it has asked in.
    session: Option<SessionKey>,
}

impl Elicitations {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }
}

impl Bus {
    /// A worker's request was passed to a client: remembers the elicitation that it is, if it is one that ends elsewhere.
    pub(super) fn note_elicitation(&mut self, said: &Said<'_>, client: ClientKey, session: Option<SessionKey>) {
        let &Said { worker, window, line, .. } = said;
        if !has_method(window, line, b"elicitation/create") {
            return;
        }
        let Some(worker) = self.workers.get_mut(worker) else { return };
        let Some(id) = elicitation_id(window, line).filter(|id| id.as_bytes().len() <= LONGEST_ID) else { return };
        let sent = &mut worker.elicitations.sent;
        let known = sent.iter().position(|known| known.id == id).and_then(|at| sent.remove(at));
        let room = MOST_BYTES - id.as_bytes().len();
        while sent.len() >= MOST || sent.iter().map(|known| known.id.as_bytes().len()).sum::<usize>() > room {
            sent.pop_front();
        }
        let client = Some(client).filter(|_| known.is_none_or(|known| known.client == Some(client)));
        sent.push_back(Elicitation { id, client, session });
    }

    /// Another connection has a session now: it hears when what was asked in it is complete.
    pub(crate) fn hand_elicitations_over(&mut self, worker: WorkerKey, session: SessionKey, to: ClientKey) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        for asked in worker.elicitations.sent.iter_mut().filter(|asked| asked.session == Some(session)) {
            asked.client = asked.client.map(|_| to);
        }
    }

    /// A notification of a worker was passed to a client: forgets the elicitation that it says is complete, so that its id
    /// is free.
    pub(super) fn end_elicitation(&mut self, said: &Said<'_>) {
        let Some(at) = self.elicitation_of(said) else { return };
        if let Some(worker) = self.workers.get_mut(said.worker) {
            worker.elicitations.sent.remove(at);
        }
    }

    /// The client whose elicitation a worker's notification says is complete.
    pub(super) fn client_of_elicitation(&self, said: &Said<'_>) -> Option<ClientKey> {
        let at = self.elicitation_of(said)?;
        self.workers.get(said.worker)?.elicitations.sent.get(at)?.client
    }

    /// The place of the elicitation that a worker's notification says is complete.
    fn elicitation_of(&self, said: &Said<'_>) -> Option<usize> {
        let &Said { worker, window, line, .. } = said;
        let sent = &self.workers.get(worker)?.elicitations.sent;
        let completes = || {
            has_method(window, line, b"elicitation/complete")
                || has_method(window, line, b"notifications/elicitation/complete")
        };
        if sent.is_empty() || line.id.is_some() || !completes() {
            return None;
        }
        let id = elicitation_id(window, line)?;
        sent.iter().position(|known| known.id == id)
    }
}

fn elicitation_id(window: Window<'_>, line: &Line) -> Option<Text> {
    string_in_params(window.get(line.span), b"elicitationId").map(|id| (&*id).into())
}
