//! Whom a worker has sent with an elicitation to another place (`elicitation/create` with an `elicitationId`), so that
//! the client hears when it is complete: that notification names the elicitation alone.
//!
//! A worker that uses an id again means the newer elicitation.

use std::collections::VecDeque;

use super::Bus;
use super::message::has_method;
use super::peer::{ClientKey, Text, WorkerKey};
use crate::scan::{Line, Window, string_in_params};

/// So many are remembered for one worker; beyond them the oldest one goes.
const MOST: usize = 64;
/// The id of one that is remembered has so many bytes at most.
const LONGEST_ID: usize = 256;

/// The elicitations of a worker, the oldest in front.
#[derive(Default)]
pub(super) struct Elicitations {
    sent: VecDeque<(Text, ClientKey)>,
}

impl Bus {
    /// A worker's request was passed to a client: remembers the elicitation that it is, if it is one that ends elsewhere.
    pub(super) fn note_elicitation(&mut self, worker: WorkerKey, client: ClientKey, window: Window<'_>, line: &Line) {
        if !has_method(window, line, b"elicitation/create") {
            return;
        }
        let Some(worker) = self.workers.get_mut(worker) else { return };
        let Some(id) = elicitation_id(window, line).filter(|id| id.as_bytes().len() <= LONGEST_ID) else { return };
        let sent = &mut worker.elicitations.sent;
        sent.retain(|(known, _)| *known != id);
        if sent.len() == MOST {
            sent.pop_front();
        }
        sent.push_back((id, client));
    }

    /// The client whose elicitation a worker's notification says is complete.
    pub(super) fn client_of_elicitation(
        &self,
        worker: WorkerKey,
        window: Window<'_>,
        line: &Line,
    ) -> Option<ClientKey> {
        let sent = &self.workers.get(worker)?.elicitations.sent;
        let completes = || {
            has_method(window, line, b"elicitation/complete")
                || has_method(window, line, b"notifications/elicitation/complete")
        };
        if sent.is_empty() || line.id.is_some() || !completes() {
            return None;
        }
        let id = elicitation_id(window, line)?;
        sent.iter().find(|(known, _)| *known == id).map(|(_, client)| *client)
    }
}

fn elicitation_id(window: Window<'_>, line: &Line) -> Option<Text> {
    string_in_params(window.get(line.span), b"elicitationId").map(|id| (&*id).into())
}
