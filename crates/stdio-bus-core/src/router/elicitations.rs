//! The clients that a worker has sent to another place with an elicitation (`elicitation/create` with an
//! `elicitationId`), so that the client is notified of its completion: that notification names only the elicitation.
//!
//! An id that a worker uses for two clients at once refers to neither of them. A session that another connection takes
//! over takes its elicitations along.
use alloc::collections::VecDeque;

use ndjson_scan::string_in_params;

use super::message::WorkerMessage;
use crate::message::{Parsed, has_method};
use crate::peer::{ClientKey, SessionKey, ShortText, WorkerKey};
use crate::peers::Workers;

/// Maximum number per worker; beyond it the oldest one is dropped.
const MOST: usize = 64;
/// Maximum length of a remembered id, in bytes.
const LONGEST_ID: usize = 256;
/// Maximum number of bytes of all ids of one worker.
const MOST_BYTES: usize = 4096;
/// Upper bound of the memory for one worker's elicitations.
#[cfg(test)]
pub(crate) const MOST_MEMORY: usize = MOST_BYTES + MOST * size_of::<Elicitation>();

/// The elicitations of a worker, the oldest in front.
#[derive(Default)]
pub(crate) struct Elicitations {
    sent: VecDeque<Elicitation>,
}

struct Elicitation {
    id: ShortText,
    /// The client that the worker has asked; none if it has asked two.
    client: Option<ClientKey>,
    /// The session in which it has asked.
    session: Option<SessionKey>,
}

impl Elicitations {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }
}

impl Workers {
    /// A worker's request was forwarded to a client: remembers its elicitation, if it is one that ends elsewhere.
    pub(super) fn note_elicitation(
        &mut self,
        said: &WorkerMessage<'_>,
        client: ClientKey,
        session: Option<SessionKey>,
    ) {
        let &WorkerMessage { from: worker, line, .. } = said;
        if !has_method(line, b"elicitation/create") {
            return;
        }
        let Some(worker) = self.get_mut(worker) else { return };
        let Some(id) = elicitation_id(line).filter(|id| id.as_bytes().len() <= LONGEST_ID) else { return };
        let sent = &mut worker.elicitations_mut().sent;
        let known = sent.iter().position(|known| known.id == id).and_then(|at| sent.remove(at));
        let room = MOST_BYTES - id.as_bytes().len();
        while sent.len() >= MOST || sent.iter().map(|known| known.id.as_bytes().len()).sum::<usize>() > room {
            sent.pop_front();
        }
        let client = Some(client).filter(|_| known.is_none_or(|known| known.client == Some(client)));
        sent.push_back(Elicitation { id, client, session });
    }

    /// Another connection has taken a session over: it is notified when its elicitations complete.
    pub(crate) fn hand_elicitations_over(&mut self, worker: WorkerKey, session: SessionKey, to: ClientKey) {
        let Some(worker) = self.get_mut(worker) else { return };
        for asked in worker.elicitations_mut().sent.iter_mut().filter(|asked| asked.session == Some(session)) {
            asked.client = asked.client.map(|_| to);
        }
    }

    /// A worker's notification was forwarded to a client: forgets the elicitation that it completes, so that its id is
    /// free.
    pub(super) fn end_elicitation(&mut self, said: &WorkerMessage<'_>) {
        let Some(at) = self.elicitation_of(said) else { return };
        if let Some(worker) = self.get_mut(said.from) {
            worker.elicitations_mut().sent.remove(at);
        }
    }

    /// The client whose elicitation a worker's notification completes.
    pub(super) fn client_of_elicitation(&self, said: &WorkerMessage<'_>) -> Option<ClientKey> {
        let at = self.elicitation_of(said)?;
        self.get(said.from)?.elicitations().sent.get(at)?.client
    }

    /// The index of the elicitation that a worker's notification completes.
    fn elicitation_of(&self, said: &WorkerMessage<'_>) -> Option<usize> {
        let &WorkerMessage { from: worker, line, .. } = said;
        let sent = &self.get(worker)?.elicitations().sent;
        let completes =
            || has_method(line, b"elicitation/complete") || has_method(line, b"notifications/elicitation/complete");
        if sent.is_empty() || line.id.is_some() || !completes() {
            return None;
        }
        let id = elicitation_id(line)?;
        sent.iter().position(|known| known.id == id)
    }
}

fn elicitation_id(line: Parsed<'_>) -> Option<ShortText> {
    string_in_params(line.get(line.span), b"elicitationId").map(|id| (&*id).into())
}
