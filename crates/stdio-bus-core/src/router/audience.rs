//! Whose lines a worker has been given since its start, and what it says to all of them at once: that a list has changed
//! (MCP up to 2025-11-25), which has no content and names nobody, and how the login stands that they all use (ACP).
//!
//! Invariant: what has content reaches several clients only if all that the worker has ever served have one verified name.

use alloc::rc::Rc;
use alloc::vec::Vec;

use ndjson_scan::{Line, Window};

use super::message::Said;
use crate::client::{Client, Identity, Phase};
use crate::flow::delivery::Room;
use crate::message::{UNCHANGED, session_name};
use crate::origin::Origin;
use crate::peer::{ClientKey, Peer, WorkerKey};
use crate::{Bus, Flow};

/// A line that has no content is not longer than this.
const LONGEST: usize = 1024;

/// Whose lines a worker has been given since its start.
#[derive(Default)]
pub(crate) struct Audience {
    /// How many.
    size: Size,
    /// One bit for each slot of a client that is there and has sent it a line.
    served: Vec<u64>,
    /// Who the first of them was.
    first: Option<Rc<Origin>>,
    /// Not all of them have the verified name of the first one.
    is_mixed: bool,
}

/// How many clients a worker has served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Size {
    /// None.
    #[default]
    Nobody,
    /// One, which may have left.
    One(ClientKey),
    /// Several.
    Several,
}

impl Audience {
    /// How many.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// The worker is given a line of this client.
    #[inline]
    pub(crate) fn note(&mut self, key: ClientKey, client: &Identity) {
        if !self.has(key) {
            self.add(key, &client.origin);
        }
    }

    /// Whether it was given a line of this client, which is there.
    #[inline]
    fn has(&self, client: ClientKey) -> bool {
        let (word, bit) = (client.index() / 64, client.index() % 64);
        self.served.get(word).is_some_and(|served| served >> bit & 1 != 0)
    }

    #[cold]
    fn add(&mut self, key: ClientKey, origin: &Rc<Origin>) {
        let (word, bit) = (key.index() / 64, key.index() % 64);
        self.served.resize(self.served.len().max(word + 1), 0);
        self.served[word] |= 1 << bit;
        let first = self.first.get_or_insert_with(|| Rc::clone(origin));
        self.is_mixed |= !first.names.are_the_same_owner(&origin.names);
        self.size = if self.size == Size::Nobody { Size::One(key) } else { Size::Several };
    }

    /// This client has gone: another one may get its slot.
    pub(crate) fn forget(&mut self, client: ClientKey) {
        if let Some(served) = self.served.get_mut(client.index() / 64) {
            *served &= !(1 << (client.index() % 64));
        }
    }

    /// Whether all whom it has ever served are known to be one user.
    fn is_one_user(&self) -> bool {
        !self.is_mixed && self.first.as_ref().is_some_and(|first| first.names.owner().is_some())
    }
}

/// A message that is for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ForAll {
    /// One of the lists has changed.
    List(usize),
    /// How the login stands. That is one user's business.
    Login,
}

impl ForAll {
    fn of(window: Window<'_>, line: &Line) -> Option<Self> {
        let kind = match &*session_name(window, line.method)? {
            b"notifications/tools/list_changed" => Self::List(0),
            b"notifications/prompts/list_changed" => Self::List(1),
            b"notifications/resources/list_changed" => Self::List(2),
            b"auth/status_update" => return Some(Self::Login),
            _ => return None,
        };
        (line.span.len() <= LONGEST).then_some(kind)
    }
}

impl Bus {
    /// Tells all whom a worker serves what it says to nobody in particular, if that is for all. None if it is not, or nobody
    /// is there.
    pub(super) fn tell_all(&mut self, said: &Said<'_>) -> Option<Flow> {
        let &Said { worker, window, line, ref id, .. } = said;
        let kind = ForAll::of(window, line).filter(|_| id.is_none())?;
        let audience = &self.workers.get(worker)?.audience;
        if audience.size != Size::Several || kind == ForAll::Login && !audience.is_one_user() {
            return None;
        }
        let all = self.served_by(worker);
        if kind == ForAll::Login {
            for client in &all {
                match self.make_room_at_client(worker, *client, false) {
                    Room::Free => {}
                    Room::Wait => return Some(Flow::Blocked),
                    Room::Closed => return self.tell_all(said),
                }
            }
        }
        for client in &all {
            // It may be full: such lines are few and short. Who is still to be told the same of a list is not told again.
            let is_due = match kind {
                ForAll::List(list) => self.owes_list(*client, list, line.span.len() + 1),
                ForAll::Login => true,
            };
            if is_due {
                let mut edits = UNCHANGED;
                self.forward(Peer::Client(*client), line, &mut edits);
            }
        }
        (!all.is_empty()).then_some(Flow::Next)
    }

    /// The clients that a worker has served, and that still listen.
    fn served_by(&self, worker: WorkerKey) -> Vec<ClientKey> {
        let Some(worker) = self.workers.get(worker) else { return Vec::new() };
        let listens =
            |(key, client): &(ClientKey, &Client)| worker.audience.has(*key) && client.phase <= Phase::HalfClosed;
        self.all_clients().filter(listens).map(|(key, _)| key).collect()
    }

    /// A worker is given a line of this client.
    pub(crate) fn note_audience(&mut self, worker: WorkerKey, client: ClientKey) {
        let is_new = self.workers.get(worker).is_some_and(|worker| !worker.audience.has(client));
        let from = self.identity(client).filter(|_| is_new).map(|from| Rc::clone(&from.origin));
        if let (Some(from), Some(worker)) = (from, self.workers.get_mut(worker)) {
            worker.audience.add(client, &from);
        }
    }

    /// A client has gone.
    pub(crate) fn leave_audiences(&mut self, client: ClientKey) {
        self.workers.values_mut().for_each(|worker| worker.audience.forget(client));
    }
}
