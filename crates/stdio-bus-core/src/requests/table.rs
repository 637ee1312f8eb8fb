//! The pending requests of both directions: asker, answerer, the ids that each knows them by, and their deadlines (spec
//! 6.2; decisions 4, 5).
//!
//! A request fills one cache line, with its key; rarely used state is stored beside it. It is in the list of its asker,
//! which begins at its endpoint and runs through the requests; the answerer only counts them, and searches the table
//! when it ends.
//!
//! Invariants: no two requests have the same answerer and wire id, so an answer belongs to exactly one request; an id
//! whose answer may still arrive is never given to another request of that answerer.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Deref;
use core::time::Duration;

use super::names::{self, SentNames};
use super::request::{Flags, NONE, NewRequest, Original, Request, RequestExtras, SINCE_SHIFT};
use crate::id::{Id, plain_number};
use crate::message::{Cancel, KnownMethod};
use crate::peer::{Moment, Peer, PeerBits, RequestKey, SessionKey, ShortText, WorkerKey};
use crate::settings::MAX_PENDING_REQUESTS;
use crate::table::{Fingerprints, Table};
use crate::timeouts::Watch;

/// How long the answer to a cancelled request is awaited.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Deadlines of cancelled requests are rounded up to this, in nanoseconds.
const CANCEL_ROUND: u64 = 100_000_000;
/// Slots reserved for each other asker, and for all of them together.
const KEPT_FOR_EACH: usize = 4;
const KEPT: usize = MAX_PENDING_REQUESTS / 4;
/// So much of the method of a worker's question is kept, for people.
const LONGEST_METHOD: usize = 64;
/// Up to this many requests are searched without a list.
const FEW: usize = 16;

/// Bytes of a request with everything stored beside it, except its ids.
#[cfg(test)]
pub(crate) const LARGEST: usize = size_of::<Request>() + size_of::<RequestExtras>() + LONGEST_METHOD + 64;

/// The index slot of a request, or a free one.
#[derive(Clone, Copy)]
pub(crate) struct IndexSlot(usize);

/// A request, with its key and its index slot.
pub(crate) struct FoundRequest<'a> {
    pub key: RequestKey,
    pub request: &'a Request,
    pub place: IndexSlot,
}

/// The pending requests.
pub(crate) struct Requests {
    table: Table<Request, 'r'>,
    /// Number of requests to workers, and to clients.
    counts: [usize; 2],
    /// Table slots by answerer and wire id: each at its home, or behind it if that is taken.
    index: Box<[u16; PLACES]>,
    fingerprints: Fingerprints,
    /// Rarely used state, by slot.
    rare: Vec<Option<Box<RequestExtras>>>,
    /// The requests of peers that have searched for one among many, by the fingerprint of asker and id, and then in
    /// order of creation.
    by_asker: BTreeMap<(u64, u64), RequestKey>,
    /// Requests whose progress token differs from the wire id, by the fingerprint of answerer and token.
    by_token: BTreeMap<u64, RequestKey>,
    /// What the names that answerers were sent share.
    names: names::Shared,
    /// Requests about which workers may not be silent for long.
    watch: Watch,
    /// Orphaned and cancelled requests, oldest first, in each direction; some may be gone.
    unwanted: [VecDeque<RequestKey>; 2],
}

/// The requests of one asker, the oldest first: head, tail and length of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskerList {
    first: u16,
    last: u16,
    count: u16,
    /// They are also listed by id.
    lists_ids: bool,
}

impl AskerList {
    /// There are none.
    pub(crate) const NOTHING: Self = Self { first: NONE, last: NONE, count: 0, lists_ids: false };

    /// Their number.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many of them are listed by id.
    pub(super) fn listed_by_id(&self) -> usize {
        if self.lists_ids { self.len() } else { 0 }
    }
}

/// The index of the counts and lists of those who have to answer.
#[inline]
fn side(answerer: Peer) -> usize {
    usize::from(matches!(answerer, Peer::Client(_)))
}

/// Index size: four slots for each possible request of one direction, so that collisions are rare.
const PLACES: usize = (4 * MAX_PENDING_REQUESTS).next_power_of_two();

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(2 * MAX_PENDING_REQUESTS),
            counts: [0; 2],
            index: vec![NONE; PLACES].try_into().expect("so many places"),
            fingerprints: Fingerprints::default(),
            rare: Vec::new(),
            by_asker: BTreeMap::new(),
            by_token: BTreeMap::new(),
            names: names::Shared::default(),
            watch: Watch::default(),
            unwanted: [VecDeque::new(), VecDeque::new()],
        }
    }

    /// Number of requests to workers, and to clients.
    pub(crate) fn counts(&self) -> [usize; 2] {
        self.counts
    }

    /// Number of requests more that such a peer can have to answer.
    #[inline]
    pub(crate) fn free(&self, answerer: Peer) -> usize {
        MAX_PENDING_REQUESTS - self.counts[side(answerer)]
    }

    /// Whether there is room for one more request of an asker that has `holds` unanswered, among `askers` possible
    /// askers. The last slots are reserved for those that hold few.
    #[inline]
    pub(crate) fn has_room(&self, answerer: Peer, askers: usize, holds: usize) -> bool {
        let free = self.free(answerer);
        let kept = KEPT.min(KEPT_FOR_EACH * askers.saturating_sub(1));
        free > 0 && (free > kept || holds < MAX_PENDING_REQUESTS / askers.max(1))
    }

    /// The value that represents an id in a request. A collision is practically impossible, and where it matters the
    /// texts are compared.
    #[inline]
    fn wire(&self, id: &Id) -> u64 {
        if let Id::Number(number) = id { *number } else { self.fingerprint(id) }
    }

    /// The fingerprint of an id in a list of many, number or not.
    pub(crate) fn fingerprint(&self, id: &Id) -> u64 {
        match id {
            Id::Number(number) => self.fingerprints.of(0, &number.to_le_bytes()),
            Id::Text(text) => self.fingerprints.of(1, text.as_bytes()),
            Id::String(text) => self.fingerprints.of(2, text.as_bytes()),
        }
    }

    #[inline]
    fn home(&self, answerer: PeerBits, wire: u64) -> usize {
        self.fingerprints.mix(answerer.get(), wire) as usize % PLACES
    }

    /// The request that an answer with this id from `answerer` belongs to; else a free place.
    #[inline]
    pub(crate) fn find_or_place(&self, answerer: Peer, id: &Id) -> Result<FoundRequest<'_>, IndexSlot> {
        match id {
            Id::Number(number) => self.find_number(answerer.into(), *number),
            name => self.find_name(answerer.into(), name),
        }
    }

    /// The same for an id as it is written, a JSON token.
    #[inline(always)]
    pub(crate) fn find_written(&self, answerer: Peer, token: &[u8]) -> Option<FoundRequest<'_>> {
        match plain_number(token) {
            Some(number) => self.find_number(answerer.into(), number).ok(),
            None => self.find_or_place(answerer, &Id::parse(token).ok()?).ok(),
        }
    }

    /// What `find_or_place` does, for an id that is a number.
    #[inline(always)]
    fn find_number(&self, answerer: PeerBits, number: u64) -> Result<FoundRequest<'_>, IndexSlot> {
        self.probe(answerer, number, |_, request| !request.flags.has(Flags::TEXT))
    }

    /// What `find_or_place` does, for an id that is not a number.
    #[cold]
    fn find_name(&self, answerer: PeerBits, id: &Id) -> Result<FoundRequest<'_>, IndexSlot> {
        self.probe(answerer, self.fingerprint(id), |key, _| self.text(key) == Some(id))
    }

    /// The request of this answerer with this wire number for which the check holds; else a free place.
    #[inline(always)]
    fn probe(
        &self,
        answerer: PeerBits,
        wire: u64,
        is_such: impl Fn(RequestKey, &Request) -> bool,
    ) -> Result<FoundRequest<'_>, IndexSlot> {
        let mut place = self.home(answerer, wire);
        loop {
            let slot = self.index[place];
            if slot == NONE {
                return Err(IndexSlot(place));
            }
            let (key, request) = self.table.in_slot(slot.into());
            if request.wire == wire && request.answerer == answerer && is_such(key, request) {
                return Ok(FoundRequest { key, request, place: IndexSlot(place) });
            }
            place = (place + 1) % PLACES;
        }
    }

    /// The request that an answer with this id from `answerer` belongs to.
    #[inline]
    pub(crate) fn find(&self, answerer: Peer, id: &Id) -> Option<RequestKey> {
        self.find_or_place(answerer, id).ok().map(|found| found.key)
    }

    /// The wire id of a request, if it is not a number.
    fn text(&self, key: RequestKey) -> Option<&Id> {
        self.rare(key)?.wire.as_ref()
    }

    /// The wire id of a request.
    fn wire_id(&self, key: RequestKey, request: &Request) -> Id {
        self.text(key).cloned().unwrap_or(Id::Number(request.wire))
    }

    /// The id known to its asker.
    fn asker_id(&self, key: RequestKey, request: &Request) -> Id {
        match (request.original_number(), self.original(key)) {
            (Some(number), _) => Id::Number(number.into()),
            (None, Some(original)) => original.id.clone(),
            (None, None) => self.wire_id(key, request),
        }
    }

    fn rare(&self, key: RequestKey) -> Option<&RequestExtras> {
        let request = self.table.get(key).filter(|request| request.flags.has(Flags::RARE));
        request.and_then(|_| self.rare[key.index()].as_deref())
    }

    fn original(&self, key: RequestKey) -> Option<&Original> {
        self.rare(key).and_then(|rare| rare.original.as_ref())
    }

    /// The sessions that it is in.
    pub(crate) fn sessions(&self, key: RequestKey) -> [Option<SessionKey>; 2] {
        [self.get(key).and_then(|request| request.session), self.rare(key).and_then(|rare| rare.second_session)]
    }

    /// The id as its asker wrote it.
    pub(crate) fn asker_token(&self, key: RequestKey) -> Vec<u8> {
        match (self.original(key), self.get(key)) {
            (Some(original), _) => original.token.as_bytes().to_vec(),
            (None, Some(request)) => self.asker_id(key, request).token(),
            (None, None) => Vec::new(),
        }
    }

    /// The id as its asker wrote it, for a report.
    pub(crate) fn asker_text(&self, key: RequestKey) -> String {
        String::from_utf8_lossy(&self.asker_token(key)).into_owned()
    }

    /// The token known to its asker, if the answerer sees another id.
    pub(crate) fn replaced_token(&self, key: RequestKey) -> Option<ShortText> {
        if let Some(number) = self.get(key)?.original_number() {
            return Some(ShortText::of_number(number.into()));
        }
        self.original(key).filter(|original| original.is_replaced).map(|original| original.token.clone())
    }

    /// The token known to the answerer, if its asker knows another id.
    pub(crate) fn wire_token(&self, key: RequestKey) -> Option<ShortText> {
        self.replaced_token(key)?;
        Some(self.wire_id(key, self.get(key)?).token().as_slice().into())
    }

    /// The id known to the answerer.
    pub(crate) fn wire_of(&self, key: RequestKey) -> Option<Id> {
        Some(self.wire_id(key, self.get(key)?))
    }

    /// The fingerprint of the id known to the answerer, and that of its progress token, if that is not the id.
    pub(super) fn fingerprints_of(&self, key: RequestKey) -> Option<(u64, Option<u64>)> {
        let token = self.rare(key).and_then(|rare| rare.token.as_ref());
        Some((self.fingerprint(&self.wire_id(key, self.get(key)?)), token.map(|token| self.fingerprint(token))))
    }

    fn is_asked_as(&self, key: RequestKey, asker: Peer, id: &Id) -> bool {
        self.get(key).is_some_and(|request| request.asker() == Some(asker) && self.asker_id(key, request) == *id)
    }

    /// The requests of one asker, the oldest first.
    pub(crate) fn asked<'a>(&'a self, asked: &AskerList) -> impl Iterator<Item = RequestKey> + 'a {
        let key = |slot: u16| (slot != NONE).then(|| self.table.in_slot(slot.into()).0);
        core::iter::successors(key(asked.first), move |before| key(self.get(*before)?.after))
    }

    /// The newest request of an asker.
    pub(crate) fn newest(&self, asked: &AskerList) -> Option<RequestKey> {
        (asked.last != NONE).then(|| self.table.in_slot(asked.last.into()).0)
    }

    /// The oldest request that `asker`, whose list this is, has made under this id. Cancellations are rare: only a peer
    /// that has searched for one among many has its requests listed by id, from then on.
    pub(super) fn find_asked(&mut self, asker: Peer, id: &Id, asked: &mut AskerList) -> Option<RequestKey> {
        if !asked.lists_ids && asked.len() > FEW {
            asked.lists_ids = true;
            let all: Vec<_> = self.asked(asked).filter_map(|key| self.entry_by_id(key)).collect();
            self.by_asker.extend(all);
        }
        if !asked.lists_ids {
            return self.asked(asked).find(|key| self.is_asked_as(*key, asker, id));
        }
        let alike = self.fingerprint_at(asker.into(), id);
        let alike = self.by_asker.range((alike, 0)..=(alike, u64::MAX));
        alike.map(|(_, key)| *key).find(|key| self.is_asked_as(*key, asker, id))
    }

    /// The fingerprint of a peer's id or token.
    fn fingerprint_at(&self, peer: PeerBits, id: &Id) -> u64 {
        self.fingerprints.mix(peer.get(), self.fingerprint(id))
    }

    /// The entry of a request in the list by id, while it has its asker.
    #[cold]
    fn entry_by_id(&self, key: RequestKey) -> Option<((u64, u64), RequestKey)> {
        let request = self.get(key)?;
        let id = self.fingerprint_at(request.asker?, &self.asker_id(key, request));
        Some(((id, key.serial()), key))
    }

    /// Number of requests in the list by id.
    pub(super) fn listed_by_id(&self) -> usize {
        self.by_asker.len()
    }

    /// Adds a request, whose answerer sees the id `wire`: `place` was found for its asker's id, and nothing has changed
    /// since. There must be room.
    // Of the usual request the fast path knows much, so that most of this is not done there.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn insert(
        &mut self,
        since: Moment,
        place: IndexSlot,
        new: &NewRequest,
        wire: &Id,
        original: Option<&Original>,
        asked: &mut AskerList,
    ) -> Option<RequestKey> {
        let (is_number, number) = if let Id::Number(number) = wire { (true, *number) } else { (false, 0) };
        let is_plain = is_number && original.is_none() && new.second_session.is_none();
        let before = asked.last;
        let since = since.0 >> SINCE_SHIFT;
        let key = self.table.insert(Request {
            asker: Some(new.asker.into()),
            answerer: new.answerer.into(),
            wire: number,
            session: new.session,
            expires: new.expires,
            since: since as u32,
            since_high: (since >> 32) as u16,
            before,
            after: NONE,
            verb: new.verb,
            flags: Flags(new.flags),
            print: new.print,
        })?;
        let slot = key.index() as u16;
        match self.table.in_slot_mut(before.into()) {
            Some(newest) => newest.after = slot,
            None => asked.first = slot,
        }
        asked.last = slot;
        asked.count += 1;
        self.counts[side(new.answerer)] += 1;
        let place = if is_plain { place } else { self.keep_beside(key, new.second_session, wire, original) };
        self.index[place.0] = slot;
        if asked.lists_ids {
            self.by_asker.extend(self.entry_by_id(key));
        }
        Some(key)
    }

    /// Stores what does not fit into a request, and returns its place in the index.
    #[cold]
    fn keep_beside(
        &mut self,
        key: RequestKey,
        second_session: Option<SessionKey>,
        wire: &Id,
        original: Option<&Original>,
    ) -> IndexSlot {
        let bits = self.wire(wire);
        let wire = Some(wire.clone()).filter(|wire| !matches!(wire, Id::Number(_)));
        let Some(request) = self.table.get_mut(key) else { return IndexSlot(0) };
        request.wire = bits;
        let answerer = request.answerer;
        let is_unusual = original.is_some() || second_session.is_some();
        let unusual = if is_unusual { Flags::UNUSUAL } else { 0 };
        request.flags.0 |= Flags::RARE | unusual | if wire.is_some() { Flags::TEXT } else { 0 };
        *self.beside(key) =
            RequestExtras { wire, original: original.cloned(), second_session, ..RequestExtras::default() };
        let mut place = self.home(answerer, bits);
        while self.index[place] != NONE {
            place = (place + 1) % PLACES;
        }
        IndexSlot(place)
    }

    /// Drops the state beside a request.
    #[cold]
    fn forget_beside(&mut self, key: RequestKey, answerer: PeerBits) {
        if let Some(token) = self.rare[key.index()].take().and_then(|rare| rare.token) {
            self.by_token.remove(&self.fingerprint_at(answerer, &token));
        }
    }

    /// Records the progress token known to the answerer of a request: the wire id, or another one that no other request
    /// there has. `original` is the asker's token, if it differs.
    pub(super) fn note_token(&mut self, key: RequestKey, wire: Option<Id>, original: Option<ShortText>) {
        let Some(request) = self.table.get_mut(key) else { return };
        let answerer = request.answerer;
        if wire.is_none() {
            request.flags.0 |= Flags::TOKEN_IS_ID;
            if original.is_none() {
                return;
            }
        }
        request.flags.0 |= if original.is_some() { Flags::RARE | Flags::UNUSUAL } else { Flags::RARE };
        if let Some(wire) = &wire {
            self.by_token.insert(self.fingerprint_at(answerer, wire), key);
        }
        let rare = self.beside(key);
        (rare.token, rare.original_token) = (wire, original);
    }

    /// A worker asks a client with this method, perhaps since it works on a request of the client.
    pub(crate) fn note_question(&mut self, key: RequestKey, method: &[u8], of: Option<RequestKey>) {
        let Some(question) = self.table.get_mut(key) else { return };
        question.flags.0 |= Flags::RARE;
        let rare = self.beside(key);
        rare.belongs_to = of;
        rare.method = method[..method.len().min(LONGEST_METHOD)].into();
    }

    /// The beginning of the method of a worker's question, a JSON token.
    pub(crate) fn method_of(&self, question: RequestKey) -> Option<String> {
        let method = self.rare(question)?.method.as_bytes();
        (!method.is_empty()).then(|| String::from_utf8_lossy(method).trim_matches('"').into())
    }

    /// The pending request that a worker's question belongs to.
    pub(crate) fn belongs_to(&self, question: RequestKey) -> Option<RequestKey> {
        self.rare(question)?.belongs_to.filter(|key| self.get(*key).is_some())
    }

    /// Whether a request has a progress token.
    pub(crate) fn has_token(&self, key: RequestKey) -> bool {
        let of_id = self.get(key).is_some_and(|request| request.flags.has(Flags::TOKEN_IS_ID));
        of_id || self.rare(key).is_some_and(|rare| rare.token.is_some())
    }

    /// The state beside a request.
    fn beside(&mut self, key: RequestKey) -> &mut RequestExtras {
        if self.rare.len() <= key.index() {
            self.rare.resize_with(key.index() + 1, || None);
        }
        self.rare[key.index()].get_or_insert_default()
    }

    /// The request whose progress `answerer` reports under this token.
    #[inline]
    pub(crate) fn find_by_token(&self, answerer: Peer, token: &Id) -> Option<RequestKey> {
        let is_by_id = |key: &RequestKey| self.get(*key).is_some_and(|request| request.flags.has(Flags::TOKEN_IS_ID));
        self.find(answerer, token).filter(is_by_id).or_else(|| self.find_by_other_token(answerer, token))
    }

    /// Whether any request has a progress token that differs from its id.
    #[inline]
    pub(crate) fn has_other_tokens(&self) -> bool {
        !self.by_token.is_empty()
    }

    /// The request whose progress `answerer` reports under this token, if that is not the id of the request.
    pub(super) fn find_by_other_token(&self, answerer: Peer, token: &Id) -> Option<RequestKey> {
        let key = *self.by_token.get(&self.fingerprint_at(answerer.into(), token))?;
        let is_it = self.get(key)?.answerer() == answerer && self.rare(key)?.token.as_ref() == Some(token);
        is_it.then_some(key)
    }

    /// The progress token of a request's asker, if its answerer sees another one.
    pub(crate) fn replaced_progress(&self, key: RequestKey) -> Option<ShortText> {
        self.rare(key)?.original_token.clone()
    }

    /// Whether `asker`, in this slot of its table, may use a name unchanged at the answerer that has these.
    #[cold]
    pub(crate) fn claim_name(&mut self, names: &mut SentNames, asker: PeerBits, slot: usize, name: &Id) -> bool {
        names.claim(asker, slot, name, &mut self.names)
    }

    /// An answerer has ended.
    pub(crate) fn forget_names(&mut self, names: &SentNames) {
        self.names.forget(names);
    }

    /// Whether a request to `answerer` has this name, as its id or as its progress token.
    pub(super) fn has_name(&self, answerer: Peer, name: &Id) -> bool {
        self.find(answerer, name).is_some() || self.find_by_other_token(answerer, name).is_some()
    }

    /// Frees an index slot: entries behind it that could not be found any more move up.
    #[inline]
    fn free_place(&mut self, IndexSlot(mut free): IndexSlot) {
        let mut place = free;
        loop {
            place = (place + 1) % PLACES;
            let slot = self.index[place];
            if slot == NONE {
                break;
            }
            let (_, request) = self.table.in_slot(slot.into());
            let home = self.home(request.answerer, request.wire);
            // It may move if its home is not between the free slot and its own.
            if place.wrapping_sub(home) % PLACES >= place.wrapping_sub(free) % PLACES {
                self.index[free] = slot;
                free = place;
            }
        }
        self.index[free] = NONE;
    }

    /// The asker, whose list this is, stops waiting for a request.
    #[inline]
    pub(crate) fn leave_asker(&mut self, key: RequestKey, asked: &mut AskerList) {
        self.forget_id(key, asked);
        let Some(request) = self.table.in_slot_mut(key.index()) else { return };
        let (before, after) = (request.before, request.after);
        request.asker = None;
        self.unlink(before, after, asked);
    }

    /// A request is not found by its asker's id any more, if this list of the asker's has its ids listed.
    #[inline(always)]
    fn forget_id(&mut self, key: RequestKey, asked: &AskerList) {
        if asked.lists_ids
            && let Some((entry, _)) = self.entry_by_id(key)
        {
            self.by_asker.remove(&entry);
        }
    }

    /// A request leaves this list, in which it is between these.
    #[inline]
    fn unlink(&mut self, before: u16, after: u16, asked: &mut AskerList) {
        match self.table.in_slot_mut(before.into()) {
            Some(request) => request.after = after,
            None => asked.first = after,
        }
        match self.table.in_slot_mut(after.into()) {
            Some(request) => request.before = before,
            None => asked.last = before,
        }
        asked.count -= 1;
    }

    /// Removes a request that is answered, and whose asker, with this list, waits for that. It is at this place in the
    /// index, where nothing has changed since.
    #[inline(always)]
    pub(crate) fn end(&mut self, key: RequestKey, place: IndexSlot, asked: &mut AskerList) {
        self.forget_id(key, asked);
        if let Some(request) = self.remove_at(key, place) {
            self.unlink(request.before, request.after, asked);
        }
    }

    /// Removes a request, at its place in the index, where nothing has changed since.
    #[inline(always)]
    fn remove_at(&mut self, key: RequestKey, place: IndexSlot) -> Option<Request> {
        let request = self.table.remove(key)?;
        self.counts[side(request.answerer())] -= 1;
        if request.flags.has(Flags::RARE) {
            self.forget_beside(key, request.answerer);
        }
        self.free_place(place);
        Some(request)
    }

    /// Removes a request without an asker.
    pub(crate) fn remove(&mut self, key: RequestKey) {
        let Some(request) = self.get(key) else { return };
        let mut place = self.home(request.answerer, request.wire);
        while usize::from(self.index[place]) != key.index() {
            place = (place + 1) % PLACES;
        }
        self.remove_at(key, IndexSlot(place));
    }

    /// Requests about which workers may not be silent for long.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn watch_mut(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// The deadline of a request is moved on.
    pub(crate) fn postpone(&mut self, key: RequestKey, to: Moment) {
        if let Some(request) = self.table.get_mut(key) {
            request.expires = to;
        }
    }

    /// The asker of a request stops waiting. The id stays reserved until the answer arrives.
    pub(crate) fn orphan(&mut self, key: RequestKey) {
        let Some(request) = self.table.get_mut(key) else { return };
        let answerer = request.answerer();
        if request.cancelled().is_none() {
            request.expires = Moment::NEVER;
        }
        self.mark_unwanted(answerer, key);
    }

    /// The asker cancels the request: its answer is awaited a little longer, until the moment returned.
    pub(crate) fn cancel(&mut self, now: Moment, key: RequestKey, how: Cancel) -> Option<Moment> {
        let total = self.watch.expires(key);
        let request = self.table.get_mut(key).filter(|request| request.cancelled().is_none())?;
        let due = Moment(now.after(CANCEL_GRACE).0.next_multiple_of(CANCEL_ROUND));
        request.flags.0 |= match how {
            Cancel::Answered => Flags::CANCELLED,
            Cancel::Silent => Flags::CANCELLED_SILENTLY,
        };
        request.expires = total.unwrap_or(request.expires).min(due);
        let (expires, answerer) = (request.expires, request.answerer());
        self.mark_unwanted(answerer, key);
        Some(expires)
    }

    /// The request is given up, and its answerer is notified: its answer is awaited a little longer, until the moment
    /// returned, whatever its deadline was.
    pub(crate) fn give_up(&mut self, now: Moment, key: RequestKey) -> Option<Moment> {
        self.cancel(now, key, Cancel::Silent)?;
        let due = Moment(now.after(CANCEL_GRACE).0.next_multiple_of(CANCEL_ROUND));
        self.table.get_mut(key)?.expires = due;
        Some(due)
    }

    /// The answer to this request is not wanted any more. Its id stays reserved until the answer arrives, so that a
    /// late answer cannot be mistaken for another one's.
    fn mark_unwanted(&mut self, answerer: Peer, key: RequestKey) {
        let unwanted = &mut self.unwanted[side(answerer)];
        unwanted.push_back(key);
        if unwanted.len() > 2 * self.counts[side(answerer)] + 64 {
            let table = &self.table;
            unwanted.retain(|unwanted| table.get(*unwanted).is_some());
        }
    }

    /// The request that has been unwanted for longest; a full table drops it first.
    pub(crate) fn take_oldest_unwanted(&mut self, answerer: Peer) -> Option<RequestKey> {
        let unwanted = &mut self.unwanted[side(answerer)];
        core::iter::from_fn(|| unwanted.pop_front()).find(|key| self.table.get(*key).is_some())
    }

    /// How many requests of waiting clients this worker owes an answer, and since when.
    pub(crate) fn owed_by(&self, worker: WorkerKey) -> (usize, Moment) {
        let is_owed = |request: &&Request| request.asker.is_some() && request.verb != KnownMethod::Listen;
        self.of_worker(worker)
            .filter(is_owed)
            .fold((0, Moment::NEVER), |(count, since), request| (count + 1, since.min(request.since())))
    }

    /// When this worker was asked for the oldest of the answers that it owes: also to clients that have left, but not if the
    /// request was cancelled, and none to a subscription.
    pub(crate) fn oldest_owed(&self, worker: WorkerKey) -> Option<Moment> {
        self.of_worker(worker).filter(|request| request.is_owed()).map(Request::since).min()
    }

    /// The requests that this worker has. It searches the whole table.
    fn of_worker(&self, worker: WorkerKey) -> impl Iterator<Item = &Request> {
        let answerer = Peer::from(worker).into();
        self.table.iter().map(|(_, request)| request).filter(move |request| request.answerer == answerer)
    }

    /// The requests for which `is_such` holds, in order of creation. It searches the whole table.
    pub(crate) fn all(&self, is_such: &dyn Fn(&Request) -> bool) -> Vec<RequestKey> {
        let such = self.table.iter().filter(|(_, request)| is_such(request));
        let mut keys: Vec<_> = such.map(|(key, _)| key).collect();
        keys.sort_unstable_by_key(|key| key.serial());
        keys
    }

    /// Number of index slots in use. The index is mostly empty, and checked after each step of the simulator: empty
    /// stretches are skipped as a whole.
    fn taken_places(&self) -> usize {
        const EMPTY: [u16; 128] = [NONE; 128];
        let in_use = self.index.chunks(EMPTY.len()).filter(|stretch| **stretch != EMPTY[..stretch.len()]);
        in_use.flatten().filter(|slot| **slot != NONE).count()
    }

    /// Panics if the index, the lists and the table disagree.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.taken_places(), self.table.len());
        assert_eq!(self.counts.iter().sum::<usize>(), self.table.len());
        let (mut unwanted, mut replaced) = (vec![false; self.table.slots()], 0);
        for key in self.unwanted.iter().flatten().filter(|key| self.get(**key).is_some()) {
            unwanted[key.index()] = true;
        }
        for (key, request) in self.table.iter() {
            let is_unwanted = request.asker.is_none() || request.cancelled().is_some();
            assert!(!is_unwanted || unwanted[key.index()], "an orphan gives its slot back when the table is full");
            assert_eq!(self.find(request.answerer(), &self.wire_id(key, request)), Some(key));
            let token = self.rare(key).and_then(|rare| rare.token.as_ref());
            assert!(token.is_none_or(|token| self.find_by_token(request.answerer(), token) == Some(key)));
            replaced += usize::from(token.is_some());
        }
        assert_eq!(self.by_token.len(), replaced, "tokens of requests that are over are forgotten");
    }
}

/// Requests are looked up as in any table.
impl Deref for Requests {
    type Target = Table<Request, 'r'>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}
