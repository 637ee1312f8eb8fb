//! The tables that messages find their way by: sessions (spec 6.1) and pending requests in both directions
//! (spec 6.2). They only look up and keep; who may do what is decided in `messages.rs`.
//!
//! Invariants: every index entry points at a live slot; no two live requests have the same answerer and wire id, so
//! an answer can mean one request only.

use std::collections::VecDeque;

use super::id::{Id, View};
use super::port::{ClientKey, Moment, Peer, Text, WorkerKey};
use super::table::{Index, Key, Table};

/// A session: one worker, one name, one owner (spec 3.4).
pub struct Session {
    /// Who owns it.
    pub client: ClientKey,
    /// The worker it is bound to.
    pub worker: WorkerKey,
    /// The decoded sessionId.
    pub name: Text,
    /// Whether the worker has acknowledged it: it gave out the name itself, or answered a request in it with a
    /// result. An unconfirmed session is a claim, and gives way to the client that the worker gives the name to.
    pub confirmed: bool,
    /// Its place among the client's sessions.
    pub at_client: u32,
    /// Its place among the worker's sessions.
    pub at_worker: u32,
}

/// All sessions, by owner and by worker.
pub struct Sessions {
    /// The sessions.
    pub table: Table<Session>,
    by_owner: Index,
    by_worker: Index,
}

const OWNER: u8 = 0;
const WORKER: u8 = 1;
const CLIENT_ANSWERS: u8 = 2;
const WORKER_ANSWERS: u8 = 3;

impl Sessions {
    /// Room for `capacity` sessions.
    pub fn new(capacity: usize) -> Self {
        Self { table: Table::new(capacity), by_owner: Index::new(capacity), by_worker: Index::new(capacity) }
    }

    /// The session of this name that a client owns; the first one, if it has several on different workers.
    pub fn of_client(&self, client: ClientKey, name: &[u8]) -> Option<Key<Session>> {
        let hash = self.by_owner.hash(client.to_bits(), OWNER, name);
        self.by_owner
            .find_oldest(&self.table, hash, |session| session.client == client && session.name.as_bytes() == name)
    }

    /// The session of this name on a worker.
    pub fn of_worker(&self, worker: WorkerKey, name: &[u8]) -> Option<Key<Session>> {
        let hash = self.by_worker.hash(worker.to_bits(), WORKER, name);
        self.by_worker.find(&self.table, hash, |session| session.worker == worker && session.name.as_bytes() == name)
    }

    /// Adds a session that [`Sessions::of_worker`] does not know yet; none if the table is full.
    pub fn insert(&mut self, client: ClientKey, worker: WorkerKey, name: &[u8]) -> Option<Key<Session>> {
        debug_assert!(self.of_worker(worker, name).is_none());
        let session = Session { client, worker, name: name.into(), confirmed: false, at_client: 0, at_worker: 0 };
        let key = self.table.insert(session).ok()?;
        self.by_worker.insert(self.by_worker.hash(worker.to_bits(), WORKER, name), key);
        self.by_owner.insert(self.by_owner.hash(client.to_bits(), OWNER, name), key);
        Some(key)
    }

    /// Takes a session out.
    pub fn remove(&mut self, key: Key<Session>) -> Option<Session> {
        let session = self.table.get(key)?;
        let hash = self.by_worker.hash(session.worker.to_bits(), WORKER, session.name.as_bytes());
        self.by_worker.remove(hash, key);
        let hash = self.by_owner.hash(session.client.to_bits(), OWNER, session.name.as_bytes());
        self.by_owner.remove(hash, key);
        self.table.remove(key)
    }

    /// Panics if an index and the table disagree.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_worker.len(), self.table.len());
        assert_eq!(self.by_owner.len(), self.table.len());
        for (key, session) in self.table.iter() {
            assert_eq!(self.of_worker(session.worker, session.name.as_bytes()), Some(key));
            assert!(self.of_client(session.client, session.name.as_bytes()).is_some());
        }
    }
}

/// A request that waits for its answer.
pub struct Request {
    /// Who asked; none once it has gone or was given an error, and then the answer is discarded.
    pub asker: Option<Peer>,
    /// Who has to answer.
    pub answerer: Peer,
    /// The id that the answerer sees.
    pub wire: Id,
    /// The id that the asker sees, where it is another one.
    pub original: Option<Box<Original>>,
    /// The session it was made in.
    pub session: Option<Key<Session>>,
    /// Whether the sessionId stood at top level, where an answer repeats it (spec 5.2.2).
    pub session_on_top: bool,
    /// Whether a result ends the session.
    pub ends_session: bool,
    /// Counts up, so that requests can be put in order.
    pub serial: u64,
    /// When an answer is too late.
    pub expires: Option<Moment>,
    /// Its place among what the asker asked.
    pub at_asker: u32,
    /// Its place among what the answerer owes.
    pub at_answerer: u32,
    /// Of the answerer and the wire id.
    pub hash: u32,
}

/// An id that was replaced.
pub struct Original {
    /// Its canonical form.
    pub id: Id,
    /// The token as it was written.
    pub token: Text,
}

impl Request {
    /// The id that the asker knows it by.
    pub fn asker_id(&self) -> &Id {
        self.original.as_ref().map_or(&self.wire, |original| &original.id)
    }
}

/// The ids that the bus makes lie in this range: they fit in 32 bits with a sign, and no client counts that far.
const MADE_FROM: u32 = 1_000_000_000;
const MADE_TO: u32 = 2_000_000_000;

/// The pending requests of one direction.
pub struct Requests {
    /// The requests.
    pub table: Table<Request>,
    by_wire: Index,
    next_made: u32,
    /// Requests without an asker, oldest first; some may be gone.
    orphans: VecDeque<Key<Request>>,
}

impl Requests {
    /// Room for `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        Self {
            table: Table::new(capacity),
            by_wire: Index::new(capacity),
            next_made: MADE_FROM,
            orphans: VecDeque::new(),
        }
    }

    /// What [`Requests::find`] and [`Request::hash`] want.
    pub fn hash(&self, answerer: Peer, wire: &View<'_>) -> u32 {
        let (bits, tag) = match answerer {
            Peer::Client(client) => (client.to_bits(), CLIENT_ANSWERS),
            Peer::Worker(worker) => (worker.to_bits(), WORKER_ANSWERS),
        };
        self.by_wire.hash(bits, tag | u8::from(wire.is_string()) << 7, wire.text())
    }

    /// The request that an answer with this id from `answerer` means.
    pub fn find(&self, answerer: Peer, wire: &View<'_>) -> Option<Key<Request>> {
        self.find_hashed(self.hash(answerer, wire), answerer, wire)
    }

    /// The same for a known hash.
    pub fn find_hashed(&self, hash: u32, answerer: Peer, wire: &View<'_>) -> Option<Key<Request>> {
        self.by_wire.find(&self.table, hash, |request| request.answerer == answerer && request.wire == *wire)
    }

    /// An id like `id` that `answerer` does not know yet.
    pub fn make_id(&mut self, answerer: Peer, like: &Id) -> Id {
        loop {
            let made = Id::made(self.next_made, like.is_string());
            self.next_made = if self.next_made + 1 < MADE_TO { self.next_made + 1 } else { MADE_FROM };
            if self.find(answerer, &made.view()).is_none() {
                return made;
            }
        }
    }

    /// Adds a request, hash included, whose wire id `answerer` does not know yet; none if the table is full.
    pub fn insert(&mut self, request: Request) -> Option<Key<Request>> {
        debug_assert!(self.find(request.answerer, &request.wire.view()).is_none());
        debug_assert_eq!(request.hash, self.hash(request.answerer, &request.wire.view()));
        let hash = request.hash;
        let key = self.table.insert(request).ok()?;
        self.by_wire.insert(hash, key);
        Some(key)
    }

    /// Takes a request out.
    pub fn remove(&mut self, key: Key<Request>) -> Option<Request> {
        let request = self.table.get(key)?;
        self.by_wire.remove(request.hash, key);
        self.table.remove(key)
    }

    /// The same, for one who does not need it: it is not moved.
    pub fn forget(&mut self, key: Key<Request>) {
        if let Some(request) = self.table.get(key) {
            self.by_wire.remove(request.hash, key);
            self.table.forget(key);
        }
    }

    /// Remembers that nobody waits for this request any more. It keeps its id taken until the answer comes, so that
    /// a late answer cannot be mistaken for another one's.
    pub fn orphan(&mut self, key: Key<Request>) {
        self.orphans.push_back(key);
        if self.orphans.len() > 2 * self.table.len() + 64 {
            let table = &self.table;
            self.orphans.retain(|orphan| table.get(*orphan).is_some());
        }
    }

    /// The request without an asker that has waited longest; a full table gives it up first.
    pub fn oldest_orphan(&mut self) -> Option<Key<Request>> {
        while let Some(key) = self.orphans.pop_front() {
            if self.table.get(key).is_some() {
                return Some(key);
            }
        }
        None
    }

    /// Panics if the index and the table disagree.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_wire.len(), self.table.len());
        for (key, request) in self.table.iter() {
            assert_eq!(self.find(request.answerer, &request.wire.view()), Some(key));
        }
    }
}
