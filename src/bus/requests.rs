//! Requests that wait for their answers, in both directions: who asked, who answers, what both know it by, and until
//! when (spec 6.2; design 2.4, 2.5).
//!
//! Invariants: no two requests have the same answerer and wire id, so an answer can mean one request only; an id whose
//! answer may still come is never given to another request of that answerer.

use std::collections::VecDeque;
use std::time::Duration;

use super::id::{Id, View};
use super::message::{Cancel, Edit, Refusal, has_escape};
use super::peer::{Moment, Peer, PeerBits, RequestKey, RequestMark, SessionKey, Text};
use super::report::{Reason, Report};
use super::settings::{IdCollision, MAX_PENDING_REQUESTS};
use super::table::{Index, Table};
use super::{Bus, reply};
use crate::scan::{Line, Window};

/// How long the answer to a cancelled request is waited for.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Deadlines of cancelled requests are looked at together.
const CANCEL_ROUND: u64 = 100_000_000;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToWorkers,
    ToClients,
}

impl Direction {
    pub(super) fn of(answerer: Peer) -> Self {
        match answerer {
            Peer::Worker(_) => Self::ToWorkers,
            Peer::Client(_) => Self::ToClients,
        }
    }
}

/// What an answer to a request does to its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// A result names a new session: `session/new`, `session/fork`.
    pub creates: bool,
    /// A result gives the session to the asker, an error takes it back: `session/load`, `session/resume`.
    pub loads: bool,
    /// A result ends the session: `session/close`, `session/delete`.
    pub ends: bool,
}

/// A request that waits for its answer.
pub struct Request {
    asker: Option<PeerBits>,
    answerer: PeerBits,
    /// The id that the answerer sees.
    pub wire: Id,
    /// The id that the asker sees, where it is another one, or another spelling.
    pub original: Option<Box<Original>>,
    /// The session that decided its way.
    pub session: Option<SessionKey>,
    /// The session in its params, where that is another one.
    pub second_session: Option<SessionKey>,
    expires: Moment,
    /// Its place among what the asker asked.
    pub at_asker: u32,
    /// Its place among what the answerer owes.
    pub at_answerer: u32,
    /// Of the answerer and the wire id.
    hash: u32,
    /// Whether the sessionId stood at top level, where an answer repeats it (spec 5.2.2).
    pub session_on_top: bool,
    /// What an answer does.
    pub effect: Effect,
    /// Its asker does not want the answer any more.
    pub cancelled: Option<Cancel>,
}

// With its key a request fills two cache lines.
const _: () = assert!(size_of::<Request>() <= 120);

/// The id as its asker wrote it.
pub struct Original {
    /// Its canonical form.
    pub id: Id,
    /// The token as it was written.
    pub token: Text,
    /// The answerer sees another id.
    pub is_replaced: bool,
}

/// What is to be recorded of a request.
pub(super) struct Asked {
    pub asker: Peer,
    pub answerer: Peer,
    pub session: Option<SessionKey>,
    pub second_session: Option<SessionKey>,
    pub session_on_top: bool,
    pub effect: Effect,
    pub expires: Option<Moment>,
}

impl Request {
    /// Who asked; none once it has gone or was given an error, and then the answer is discarded.
    pub fn asker(&self) -> Option<Peer> {
        self.asker.map(Peer::from)
    }

    /// Who has to answer.
    pub fn answerer(&self) -> Peer {
        self.answerer.into()
    }

    /// When an answer is too late.
    pub fn expires(&self) -> Option<Moment> {
        (self.expires != Moment::NEVER).then_some(self.expires)
    }

    /// The id that the asker knows it by.
    pub fn asker_id(&self) -> &Id {
        self.original.as_ref().map_or(&self.wire, |original| &original.id)
    }

    /// The id as its asker wrote it.
    pub fn asker_token(&self) -> Vec<u8> {
        match &self.original {
            Some(original) => original.token.as_bytes().to_vec(),
            None => reply::id_token(&self.wire),
        }
    }

    /// The token that the answerer knows it by, if that is another one than the asker's.
    pub fn wire_token(&self) -> Option<Text> {
        let is_replaced = self.original.as_ref().is_some_and(|original| original.is_replaced);
        is_replaced.then(|| reply::id_token(&self.wire).as_slice().into())
    }
}

/// The pending requests of one direction.
pub struct Requests {
    /// The requests.
    pub table: Table<Request, RequestMark>,
    by_wire: Index,
    /// Requests without an asker, and cancelled ones, oldest first; some may be gone.
    unwanted: VecDeque<RequestKey>,
    /// Nothing expires before this moment.
    due: Option<Moment>,
}

impl Requests {
    /// Room for `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        Self { table: Table::new(capacity), by_wire: Index::new(capacity), unwanted: VecDeque::new(), due: None }
    }

    /// What [`Requests::find`] and [`Request::hash`] want.
    fn hash(&self, answerer: PeerBits, wire: &View<'_>) -> u32 {
        self.by_wire.hash(answerer.get(), u8::from(wire.is_string()), wire.text())
    }

    /// The request that an answer with this id from `answerer` means.
    pub fn find(&self, answerer: Peer, wire: &View<'_>) -> Option<RequestKey> {
        let answerer = PeerBits::from(answerer);
        self.find_hashed(self.hash(answerer, wire), answerer, wire)
    }

    /// The same for a known hash.
    fn find_hashed(&self, hash: u32, answerer: PeerBits, wire: &View<'_>) -> Option<RequestKey> {
        self.by_wire.find(&self.table, hash, |request| request.answerer == answerer && request.wire == *wire)
    }

    /// Adds a request, made for its key with this hash, whose wire id `answerer` does not know yet; none if the table is
    /// full.
    fn insert(&mut self, hash: u32, request: impl FnOnce(RequestKey) -> Request) -> Option<RequestKey> {
        let key = self.table.insert_with(request)?;
        debug_assert!(self.table.get(key).is_some_and(|request| {
            let id = request.wire.view();
            self.find(request.answerer(), &id).is_none() && hash == self.hash(request.answerer, &id)
        }));
        self.by_wire.insert(hash, key);
        Some(key)
    }

    /// Takes a request out.
    #[inline]
    fn take(&mut self, key: RequestKey) -> Option<Request> {
        let request = self.table.remove(key)?;
        self.by_wire.remove(request.hash, key);
        Some(request)
    }

    /// Remembers that nobody wants the answer to this request any more. It keeps its id taken until the answer comes,
    /// so that a late answer cannot be mistaken for another one's.
    pub fn is_unwanted(&mut self, key: RequestKey) {
        self.unwanted.push_back(key);
        if self.unwanted.len() > 2 * self.table.len() + 64 {
            let table = &self.table;
            self.unwanted.retain(|unwanted| table.get(*unwanted).is_some());
        }
    }

    /// The request that nobody has wanted for longest; a full table gives it up first.
    pub fn oldest_unwanted(&mut self) -> Option<RequestKey> {
        while let Some(key) = self.unwanted.pop_front() {
            if self.table.get(key).is_some() {
                return Some(key);
            }
        }
        None
    }

    /// Makes sure that expired requests are looked for at `deadline`.
    pub fn check_at(&mut self, deadline: Moment) {
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
    }

    /// When expired requests have to be looked for.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.due
    }

    /// Panics if the index and the table disagree.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_wire.len(), self.table.len());
        for (key, request) in self.table.iter() {
            assert_eq!(self.find(request.answerer(), &request.wire.view()), Some(key));
            assert!(request.expires().is_none_or(|at| self.due.is_some_and(|due| due <= at)), "nobody looks for it");
        }
    }
}

/// Requests in the order in which they were made.
pub(super) fn in_order(mut keys: Vec<RequestKey>) -> Vec<RequestKey> {
    keys.sort_by_key(|key| key.serial());
    keys
}

impl Bus {
    /// Records a request. Returns the token to replace its id with, if the answerer may not see the asker's
    /// (design 2.4).
    pub(super) fn ask(
        &mut self,
        now: Moment,
        asked: &Asked,
        id: &View<'_>,
        token: &[u8],
    ) -> Result<Option<Text>, Refusal> {
        let Asked { asker, answerer, session, second_session, effect, expires, session_on_top } = *asked;
        let direction = Direction::of(answerer);
        let requests = if direction == Direction::ToWorkers { &self.to_workers } else { &self.to_clients };
        let mut hash = requests.hash(answerer.into(), id);
        let collides = requests.find_hashed(hash, answerer.into(), id).is_some();
        if collides && self.settings.routing.id_collision == IdCollision::Reject {
            return Err(Refusal(Reason::IdCollision, "another request with this id is pending".into()));
        }
        self.make_room(now, direction, asker)?;
        let (mut edit, mut wire, mut original) = (None, None, None);
        if collides || !id.is_plain() || self.wants_fresh_ids(answerer) {
            let made = Id::made(self.ids_made, id.is_string());
            self.ids_made += 1;
            edit = Some(Text::from(reply::id_token(&made).as_slice()));
            hash = self.requests(direction).hash(answerer.into(), &made.view());
            original = Some(Box::new(Original { id: id.to_id(), token: token.into(), is_replaced: true }));
            wire = Some(made);
        } else if token[0] == b'"' && has_escape(token) {
            // It passes as it is; an error in place of the answer has to repeat the spelling.
            original = Some(Box::new(Original { id: id.to_id(), token: token.into(), is_replaced: false }));
        }
        let (clients, workers) = (&mut self.clients, &mut self.workers);
        let requests = if direction == Direction::ToWorkers { &mut self.to_workers } else { &mut self.to_clients };
        let inserted = requests.insert(hash, |key| Request {
            asker: Some(asker.into()),
            answerer: answerer.into(),
            wire: wire.unwrap_or_else(|| id.to_id()),
            original,
            session,
            second_session,
            expires: expires.unwrap_or(Moment::NEVER),
            at_asker: match asker {
                Peer::Client(client) => clients.get_mut(client).map(|client| client.end.asked.join(key)),
                Peer::Worker(worker) => workers.get_mut(worker).map(|worker| worker.end.asked.join(key)),
            }
            .unwrap_or_default(),
            at_answerer: match answerer {
                Peer::Client(client) => clients.get_mut(client).map(|client| client.end.owes.join(key)),
                Peer::Worker(worker) => workers.get_mut(worker).map(|worker| {
                    worker.creating += u32::from(effect.creates);
                    worker.end.owes.join(key)
                }),
            }
            .unwrap_or_default(),
            hash,
            session_on_top,
            effect,
            cancelled: None,
        });
        if inserted.is_none() {
            return Err(Refusal(Reason::PendingLimit, "the table of pending requests is full".into()));
        }
        self.stats.ids_translated += u64::from(edit.is_some());
        if let Some(expires) = expires {
            self.requests(direction).check_at(expires);
        }
        self.session_waits_more(session);
        if second_session.is_some() {
            self.session_waits_more(second_session);
        }
        Ok(edit)
    }

    /// Whether every id of a request to `answerer` is replaced.
    fn wants_fresh_ids(&self, answerer: Peer) -> bool {
        let always = self.settings.routing.id_collision == IdCollision::Always;
        match answerer {
            Peer::Worker(worker) => {
                self.workers.get(worker).is_some_and(|worker| worker.end.fresh_ids || always && worker.owner.is_none())
            }
            Peer::Client(client) => self.clients.get(client).is_some_and(|client| client.end.fresh_ids),
        }
    }

    /// Makes sure that one more request fits, at the cost of those whom nobody waits for, then of the client that
    /// holds most.
    fn make_room(&mut self, now: Moment, direction: Direction, asker: Peer) -> Result<(), Refusal> {
        let is_full = self.requests(direction).table.is_full();
        if !is_full && !self.slot_is_kept(direction, asker) {
            return Ok(());
        }
        if let Some(unwanted) = self.requests(direction).oldest_unwanted() {
            self.let_go(now, direction, unwanted);
            return Ok(());
        }
        let refusal = || Refusal(Reason::PendingLimit, "too many requests are pending".into());
        let Peer::Client(client) = asker else { return Err(refusal()) };
        let holder = if is_full { self.heaviest(client, |client| client.end.asked.len()) } else { None };
        let Some(newest) =
            holder.and_then(|holder| self.clients.get(holder)).and_then(|client| client.end.asked.last())
        else {
            self.rests(now, client);
            return Err(refusal());
        };
        let text = format!(
            "all {MAX_PENDING_REQUESTS} slots for pending requests are in use, and this connection holds most of them"
        );
        self.give_up_request(now, newest, Reason::PendingLimit, &text);
        self.retire_request(direction, newest);
        Ok(())
    }

    pub(super) fn requests(&mut self, direction: Direction) -> &mut Requests {
        match direction {
            Direction::ToWorkers => &mut self.to_workers,
            Direction::ToClients => &mut self.to_clients,
        }
    }

    /// The pending request that a response of `from` answers.
    pub(super) fn answered(&self, from: Peer, window: Window<'_>, line: &Line) -> Option<RequestKey> {
        let id = View::parse(line.id.is_some().then(|| window.get(line.id))?).ok()?;
        match from {
            Peer::Worker(_) => self.to_workers.find(from, &id),
            Peer::Client(_) => self.to_clients.find(from, &id),
        }
    }

    /// The pending request that `asker` made under the id `token`, looked for among its own: cancellations are rare.
    pub(super) fn request_named(&self, asker: Peer, token: &[u8]) -> Option<RequestKey> {
        let id = View::parse(token).ok()?;
        let requests = if matches!(asker, Peer::Client(_)) { &self.to_workers } else { &self.to_clients };
        let asked = &self.peer_end(asker)?.asked;
        asked.iter().find(|key| requests.table.get(*key).is_some_and(|request| *request.asker_id() == id))
    }

    /// Takes an answered request out, and sends its answer to who asked, with the original id.
    pub(super) fn settle(&mut self, now: Moment, direction: Direction, key: RequestKey, to: Peer, line: &Line) {
        let original = self.forget_request(direction, key).and_then(|request| request.original);
        match original.filter(|original| original.is_replaced) {
            None => self.forward_as_it_is(now, to, line),
            Some(original) => {
                let mut edits = [Some(Edit { at: line.id, with: original.token }), None, None];
                self.forward(now, to, line, &mut edits);
            }
        }
    }

    /// Its asker does not want the answer any more: it is waited for a little while.
    pub(super) fn cancel_request(&mut self, now: Moment, key: RequestKey, how: Cancel) {
        let due = now.after(CANCEL_GRACE).0.next_multiple_of(CANCEL_ROUND);
        let Some(request) = self.to_workers.table.get_mut(key) else { return };
        if request.cancelled.is_none() {
            request.cancelled = Some(how);
            let due = request.expires.min(Moment(due));
            request.expires = due;
            self.to_workers.check_at(due);
            self.to_workers.is_unwanted(key);
        }
    }

    /// Forgets a request whose answer nobody wants, and that may still come. A client that is owed an answer although
    /// it has cancelled the request gets an error.
    fn let_go(&mut self, now: Moment, direction: Direction, key: RequestKey) {
        let Some(request) = self.requests(direction).table.get(key) else { return };
        let (asker, cancelled) = (request.asker(), request.cancelled);
        if asker.is_some() && cancelled == Some(Cancel::Answered) {
            let text = "the request was cancelled, and the worker did not answer it";
            self.give_up_request(now, key, Reason::Cancelled, text);
        } else if asker.is_some() {
            self.report(now, Reason::Cancelled, asker, || {
                "a request was cancelled; its answer is not waited for any more".into()
            });
        }
        self.retire_request(direction, key);
        if let Some(Peer::Client(client)) = asker {
            self.waits_less(now, client);
        }
    }

    /// Forgets a request, on both its ends.
    pub(super) fn forget_request(&mut self, direction: Direction, key: RequestKey) -> Option<Request> {
        let requests = if direction == Direction::ToWorkers { &mut self.to_workers } else { &mut self.to_clients };
        let request = requests.take(key)?;
        let moved = match request.asker() {
            Some(Peer::Client(client)) => {
                self.clients.get_mut(client).and_then(|client| client.end.asked.leave(request.at_asker))
            }
            Some(Peer::Worker(worker)) => {
                self.workers.get_mut(worker).and_then(|worker| worker.end.asked.leave(request.at_asker))
            }
            None => None,
        };
        if let Some(moved) = moved.and_then(|moved| requests.table.get_mut(moved)) {
            moved.at_asker = request.at_asker;
        }
        let moved = match request.answerer() {
            Peer::Client(client) => {
                self.clients.get_mut(client).and_then(|client| client.end.owes.leave(request.at_answerer))
            }
            Peer::Worker(worker) => self.workers.get_mut(worker).and_then(|worker| {
                worker.creating -= u32::from(request.effect.creates);
                worker.end.owes.leave(request.at_answerer)
            }),
        };
        if let Some(moved) = moved.and_then(|moved| requests.table.get_mut(moved)) {
            moved.at_answerer = request.at_answerer;
        }
        if let Some(session) = request.session {
            self.session_waits_less(session);
        }
        if let Some(session) = request.second_session {
            self.session_waits_less(session);
        }
        Some(request)
    }

    /// Forgets a request whose answer may still come: no other request of its answerer ever gets its id.
    pub(super) fn retire_request(&mut self, direction: Direction, key: RequestKey) {
        let Some(request) = self.requests(direction).table.get(key) else { return };
        let (answerer, effect) = (request.answerer(), request.effect);
        if effect.loads {
            let sessions = [request.session, request.second_session];
            sessions.into_iter().flatten().for_each(|session| self.may_be_loaded(session));
        }
        self.forget_request(direction, key);
        if let Some(end) = self.endpoint(answerer) {
            end.fresh_ids = true;
            end.retired += 1;
        }
    }

    /// The asker does not wait any more; the id stays taken until the answer comes.
    pub(super) fn orphan_request(&mut self, direction: Direction, key: RequestKey) {
        self.leave_asker(direction, key);
        if let Some(request) = self.requests(direction).table.get_mut(key) {
            request.asker = None;
            if request.cancelled.is_none() {
                request.expires = Moment::NEVER;
            }
            self.requests(direction).is_unwanted(key);
        }
    }

    fn leave_asker(&mut self, direction: Direction, key: RequestKey) {
        let Some(request) = self.requests(direction).table.get(key) else { return };
        let (Some(asker), place) = (request.asker(), request.at_asker) else { return };
        let moved = match asker {
            Peer::Client(client) => self.clients.get_mut(client).and_then(|client| client.end.asked.leave(place)),
            Peer::Worker(worker) => self.workers.get_mut(worker).and_then(|worker| worker.end.asked.leave(place)),
        };
        if let Some(moved) = moved.and_then(|moved| self.requests(direction).table.get_mut(moved)) {
            moved.at_asker = place;
        }
    }

    /// Answers requests that have waited too long, and forgets cancelled ones.
    pub(super) fn tick_requests(&mut self, now: Moment) {
        if self.to_workers.due.is_none_or(|due| due > now) {
            return;
        }
        let expired: Vec<_> =
            self.to_workers.table.iter().filter(|(_, request)| request.expires <= now).map(|(key, _)| key).collect();
        for key in in_order(expired) {
            let Some(request) = self.to_workers.table.get(key) else { continue };
            if request.cancelled.is_some() {
                self.let_go(now, Direction::ToWorkers, key);
            } else {
                let text = "the worker did not answer within request_timeout_sec";
                self.give_up_request(now, key, Reason::Timeout, text);
            }
        }
        self.to_workers.due = self.to_workers.table.iter().filter_map(|(_, request)| request.expires()).min();
    }

    /// The asker of a request is told that no answer will come, and the loss is reported.
    pub(super) fn give_up_request(&mut self, now: Moment, key: RequestKey, reason: Reason, text: &str) {
        let Some(request) = self.to_workers.table.get(key) else { return };
        let Some(Peer::Client(client)) = request.asker() else { return };
        let token = request.asker_token();
        let session = request.session.filter(|_| request.session_on_top).and_then(|key| self.sessions.table.get(key));
        let session = session.map(|session| session.name.clone());
        let id = request.asker_id().to_string();
        let number = self.clients.get(client).map(|client| client.number);
        let worker = match request.answerer() {
            Peer::Worker(worker) => self.workers.get(worker).map(|worker| (worker.pool, worker.number)),
            Peer::Client(_) => None,
        };
        let report = self.reporter.report(now, reason, || Report {
            client: number,
            worker,
            id: Some(id),
            ..Report::new(reason, text)
        });
        self.tell(report);
        self.orphan_request(Direction::ToWorkers, key);
        self.say_error(now, client, &token, session.as_ref().map(Text::as_bytes), reason, text);
        self.waits_less(now, client);
    }
}
