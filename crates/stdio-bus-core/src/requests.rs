//! The table of requests that wait for their answers, in one direction: who asked, who answers, what both know each of
//! them by, and until when (spec 6.2; decisions 4, 5). Both ends list their requests, and the places are kept here.
//!
//! Invariants: no two requests have the same answerer and wire id, so an answer can mean one request only; an id whose
//! answer may still come is never given to another request of that answerer.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::time::Duration;

use super::id::{Id, View};
use super::message::Cancel;
use super::peer::{ClientKey, Moment, Peer, PeerBits, RequestKey, RequestMark, SessionKey, Text, WorkerKey};
use super::reply;
use super::settings::MAX_PENDING_REQUESTS;
use super::table::{Index, Members, Table};
use super::tally::Since;
use super::timers::Armed;

/// How long the answer to a cancelled request is waited for.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Deadlines of cancelled requests are looked at together.
const CANCEL_ROUND: u64 = 100_000_000;

/// Among so many requests one is looked for without a list.
const FEW: usize = 16;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToWorkers,
    ToClients,
}

/// What an answer to a request does to its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionEffect {
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
    /// Its place among what its asker has asked.
    at_asker: u16,
    /// Its place among the requests that its answerer has to answer.
    at_answerer: u16,
    /// Of the answerer and the wire id.
    hash: u32,
    /// What its line looked like, to know it again if it comes back.
    print: u32,
    /// Whether the sessionId stood at top level, where an answer repeats it (spec 5.2.2).
    pub session_on_top: bool,
    /// What an answer does.
    pub effect: SessionEffect,
    /// Its asker does not want the answer any more.
    pub cancelled: Option<Cancel>,
    /// It can be found by its asker and id.
    pub(super) is_listed: bool,
    since: Since,
}

// Places are counted in sixteen bits.
const _: () = assert!(MAX_PENDING_REQUESTS <= 1 << 16);
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
pub(super) struct NewRequest {
    pub client: ClientKey,
    pub worker: WorkerKey,
    pub direction: Direction,
    pub session: Option<SessionKey>,
    pub second_session: Option<SessionKey>,
    pub session_on_top: bool,
    pub effect: SessionEffect,
    pub expires: Option<Moment>,
    /// See [`print_of`](super::message::print_of).
    pub print: u32,
}

impl NewRequest {
    pub(super) fn asker(&self) -> Peer {
        match self.direction {
            Direction::ToWorkers => self.client.into(),
            Direction::ToClients => self.worker.into(),
        }
    }

    pub(super) fn answerer(&self) -> Peer {
        match self.direction {
            Direction::ToWorkers => self.worker.into(),
            Direction::ToClients => self.client.into(),
        }
    }
}

impl Request {
    /// Who asked; none once it has gone or was given an error, and then the answer is discarded.
    pub fn asker(&self) -> Option<Peer> {
        self.asker.map(Peer::from)
    }

    /// Its place among what its asker has asked.
    pub(super) fn at_asker(&self) -> u32 {
        u32::from(self.at_asker)
    }

    /// Its place among the requests that its answerer has to answer.
    pub(super) fn at_answerer(&self) -> u32 {
        u32::from(self.at_answerer)
    }

    /// What its line looked like.
    pub(super) fn print(&self) -> u32 {
        self.print
    }

    /// Who has to answer.
    pub fn answerer(&self) -> Peer {
        self.answerer.into()
    }

    /// When it was recorded, to the microsecond.
    pub fn since(&self) -> Moment {
        Moment(self.since.get())
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

    /// The same as text, for a report.
    pub fn asker_text(&self) -> String {
        String::from_utf8_lossy(&self.asker_token()).into_owned()
    }

    /// The token that the answerer knows it by, if that is another one than the asker's.
    pub fn wire_token(&self) -> Option<Text> {
        let is_replaced = self.original.as_ref().is_some_and(|original| original.is_replaced);
        is_replaced.then(|| reply::id_token(&self.wire).as_slice().into())
    }
}

/// The pending requests of one direction.
pub struct Requests {
    table: Table<Request, RequestMark>,
    by_wire: Index,
    /// The requests of those peers that have looked for one among many of theirs, by the hash of asker and id, and then
    /// in the order in which they were made.
    by_asker: BTreeSet<(u32, u64)>,
    /// Requests without an asker, and cancelled ones, oldest first; some may be gone.
    unwanted: VecDeque<RequestKey>,
    pub(super) timer: Armed,
}

impl Requests {
    /// Room for `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        Self {
            table: Table::new(capacity),
            by_wire: Index::new(capacity),
            by_asker: BTreeSet::new(),
            unwanted: VecDeque::new(),
            timer: Armed::default(),
        }
    }

    /// The request, if it is still pending.
    #[inline]
    pub fn get(&self, key: RequestKey) -> Option<&Request> {
        self.table.get(key)
    }

    /// All requests.
    pub fn iter(&self) -> impl Iterator<Item = (RequestKey, &Request)> {
        self.table.iter()
    }

    /// The request in a slot.
    pub fn at(&self, slot: usize) -> Option<&Request> {
        self.table.at(slot).map(|(_, request)| request)
    }

    /// None is in a slot from this one on.
    pub fn slots(&self) -> usize {
        self.table.slots()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How many somebody waits for.
    pub fn awaited(&self) -> usize {
        self.table.iter().filter(|(_, request)| request.asker.is_some()).count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether one more is refused.
    pub fn is_full(&self) -> bool {
        self.table.is_full()
    }

    /// The hash that [`Requests::find_hashed`] and [`Requests::insert`] want.
    pub(super) fn hash(&self, answerer: PeerBits, wire: &View<'_>) -> u32 {
        self.by_wire.hash(answerer.get(), u8::from(wire.is_string()), wire.text())
    }

    /// The request that an answer with this id from `answerer` means.
    pub fn find(&self, answerer: Peer, wire: &View<'_>) -> Option<RequestKey> {
        let answerer = PeerBits::from(answerer);
        self.find_hashed(self.hash(answerer, wire), answerer, wire)
    }

    /// What [`Requests::find`] finds, for a hash that is known already.
    pub(super) fn find_hashed(&self, hash: u32, answerer: PeerBits, wire: &View<'_>) -> Option<RequestKey> {
        self.by_wire.find(&self.table, hash, |request| request.answerer == answerer && request.wire == *wire)
    }

    /// What stands for an id where many are remembered. That two have the same is as good as impossible, and who has
    /// another one's is sent an id that is replaced in vain.
    pub(super) fn fingerprint(&self, wire: &View<'_>) -> u64 {
        self.by_wire.fingerprint(u8::from(wire.is_string()), wire.text())
    }

    /// The oldest request that `asker`, whose requests these are, has made under this id. Cancellations are rare: only who
    /// has asked for one among many has its requests listed by their ids, from then on (`lists_ids`).
    pub(super) fn find_asked(
        &mut self,
        asker: Peer,
        id: &View<'_>,
        outstanding: &Members<RequestMark>,
        lists_ids: &mut bool,
    ) -> Option<RequestKey> {
        if !*lists_ids && outstanding.len() > FEW {
            *lists_ids = true;
            outstanding.iter().for_each(|key| self.list_id(key));
        }
        let asker = PeerBits::from(asker);
        let is_it = |key: &RequestKey| {
            self.get(*key).is_some_and(|request| request.asker == Some(asker) && *request.asker_id() == *id)
        };
        if !*lists_ids {
            return outstanding.iter().filter(is_it).min_by_key(|key| key.serial());
        }
        let hash = self.hash(asker, id);
        let alike = self.by_asker.range((hash, 0)..=(hash, u64::MAX));
        alike.filter_map(|(_, bits)| NonZeroU64::new(*bits)).map(RequestKey::of_bits).find(is_it)
    }

    /// Where a request stands in the list by ids.
    fn place_by_id(&self, key: RequestKey, request: &Request) -> Option<(u32, u64)> {
        Some((self.hash(request.asker?, &request.asker_id().view()), key.to_bits().get()))
    }

    /// Lists a request by its id.
    #[cold]
    pub(super) fn list_id(&mut self, key: RequestKey) {
        let place = self.get(key).and_then(|request| self.place_by_id(key, request));
        self.by_asker.extend(place);
        if let Some(request) = self.table.get_mut(key) {
            request.is_listed = place.is_some();
        }
    }

    /// Takes a request out of the list by ids, while it has its asker yet.
    #[cold]
    fn unlist_id(&mut self, key: RequestKey) {
        if let Some(place) = self.get(key).and_then(|request| self.place_by_id(key, request)) {
            self.by_asker.remove(&place);
        }
        if let Some(request) = self.table.get_mut(key) {
            request.is_listed = false;
        }
    }

    /// Adds a request whose wire id, with this hash, its answerer does not know yet, and lists it at both its ends;
    /// none if the table is full.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn insert(
        &mut self,
        since: Moment,
        hash: u32,
        new: &NewRequest,
        wire: impl FnOnce() -> Id,
        original: Option<Box<Original>>,
        asker: &mut Members<RequestMark>,
        answerer: &mut Members<RequestMark>,
    ) -> Option<RequestKey> {
        let key = self.table.insert_with(|key| Request {
            asker: Some(new.asker().into()),
            answerer: new.answerer().into(),
            wire: wire(),
            original,
            session: new.session,
            second_session: new.second_session,
            expires: new.expires.unwrap_or(Moment::NEVER),
            at_asker: asker.join(key) as u16,
            at_answerer: answerer.join(key) as u16,
            hash,
            print: new.print,
            session_on_top: new.session_on_top,
            effect: new.effect,
            cancelled: None,
            is_listed: false,
            since: Since::at(since.0),
        })?;
        debug_assert!(self.get(key).is_some_and(|request| {
            let id = request.wire.view();
            self.find(request.answerer(), &id).is_none() && hash == self.hash(request.answerer, &id)
        }));
        self.by_wire.insert(hash, key);
        Some(key)
    }

    /// Takes a request out. It is still listed at its ends.
    #[inline]
    pub(super) fn take(&mut self, key: RequestKey) -> Option<Request> {
        if self.get(key)?.is_listed {
            self.unlist_id(key);
        }
        let request = self.table.remove(key)?;
        self.by_wire.remove(request.hash, key);
        Some(request)
    }

    /// Takes a request out of the list of its asker.
    #[inline]
    pub(super) fn leave_asker(&mut self, members: &mut Members<RequestMark>, place: u32) {
        if let Some(moved) = members.leave(place).and_then(|moved| self.table.get_mut(moved)) {
            moved.at_asker = place as u16;
        }
    }

    /// Takes a request out of the list of its answerer.
    #[inline]
    pub(super) fn leave_answerer(&mut self, members: &mut Members<RequestMark>, place: u32) {
        if let Some(moved) = members.leave(place).and_then(|moved| self.table.get_mut(moved)) {
            moved.at_answerer = place as u16;
        }
    }

    /// The asker, in whose list it is, does not wait any more. The id stays taken until the answer comes.
    pub(super) fn orphan(&mut self, key: RequestKey, members: Option<&mut Members<RequestMark>>) {
        if self.get(key).is_some_and(|request| request.is_listed) {
            self.unlist_id(key);
        }
        let Some(request) = self.table.get_mut(key) else { return };
        request.asker = None;
        if request.cancelled.is_none() {
            request.expires = Moment::NEVER;
        }
        let place = request.at_asker();
        if let Some(members) = members {
            self.leave_asker(members, place);
        }
        self.mark_unwanted(key);
    }

    /// The asker does not want the answer any more: it is waited for a little while, until the moment that is given.
    pub(super) fn cancel(&mut self, now: Moment, key: RequestKey, how: Cancel) -> Option<Moment> {
        let request = self.table.get_mut(key).filter(|request| request.cancelled.is_none())?;
        let due = Moment(now.after(CANCEL_GRACE).0.next_multiple_of(CANCEL_ROUND));
        request.cancelled = Some(how);
        request.expires = request.expires.min(due);
        let expires = request.expires;
        self.mark_unwanted(key);
        Some(expires)
    }

    /// Nobody wants the answer to this request any more. Its id stays taken until the answer comes, so that a late
    /// answer cannot be mistaken for another one's.
    fn mark_unwanted(&mut self, key: RequestKey) {
        self.unwanted.push_back(key);
        if self.unwanted.len() > 2 * self.table.len() + 64 {
            let table = &self.table;
            self.unwanted.retain(|unwanted| table.get(*unwanted).is_some());
        }
    }

    /// The request that nobody has wanted for longest; a full table gives it up first.
    pub(super) fn take_oldest_unwanted(&mut self) -> Option<RequestKey> {
        while let Some(key) = self.unwanted.pop_front() {
            if self.table.get(key).is_some() {
                return Some(key);
            }
        }
        None
    }

    /// Requests that have waited too long, the oldest first.
    pub(super) fn expired(&self, now: Moment) -> Vec<RequestKey> {
        in_order(self.table.iter().filter(|(_, request)| request.expires <= now).map(|(key, _)| key).collect())
    }

    /// When the next one has waited too long.
    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.table.iter().filter_map(|(_, request)| request.expires()).min()
    }

    /// Panics if the index, the list of unwanted requests and the table disagree.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_wire.len(), self.table.len());
        let mut listed = vec![false; self.table.iter().map(|(key, _)| key.index() + 1).max().unwrap_or(0)];
        for key in self.unwanted.iter().filter(|key| self.get(**key).is_some()) {
            listed[key.index()] = true;
        }
        assert_eq!(self.by_asker.len(), self.table.iter().filter(|(_, request)| request.is_listed).count());
        for (key, request) in self.table.iter() {
            let is_unwanted = request.asker.is_none() || request.cancelled.is_some();
            assert!(!is_unwanted || listed[key.index()], "an orphan gives its slot back when the table is full");
            assert_eq!(self.find(request.answerer(), &request.wire.view()), Some(key));
        }
    }
}

/// Requests in the order in which they were made.
pub(super) fn in_order(mut keys: Vec<RequestKey>) -> Vec<RequestKey> {
    keys.sort_by_key(|key| key.serial());
    keys
}
