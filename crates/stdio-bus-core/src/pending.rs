//! The requests that wait for their answers, in both directions: who asked, who answers, what both know each of them by,
//! and until when (spec 6.2; decisions 4, 5).
//!
//! A request fills one cache line, with its key; what few requests have is beside it. It is in the list of its asker,
//! which begins at its endpoint and runs through the requests; who has to answer only counts, and looks through the
//! table when it ends.
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

use super::endpoint::{Asked, Endpoint, NONE, Unanswered};
use super::id::{Id, View};
use super::message::Cancel;
use super::peer::{ClientKey, Moment, Peer, PeerBits, RequestKey, RequestMark, SessionKey, Text, WorkerKey};
use super::settings::MAX_PENDING_REQUESTS;
use super::table::{Fingerprints, Table};
use super::tally::Since;

/// How long the answer to a cancelled request is waited for.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Deadlines of cancelled requests are looked at together.
const CANCEL_ROUND: u64 = 100_000_000;
/// Slots that are kept for each other asker, and for all of them together.
const KEPT_FOR_EACH: usize = 4;
const KEPT: usize = MAX_PENDING_REQUESTS / 4;
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
pub(super) struct SessionEffect {
    /// A result names a new session: `session/new`, `session/fork`.
    pub creates: bool,
    /// A result gives the session to the asker, an error takes it back: `session/load`, `session/resume`.
    pub loads: bool,
    /// A result ends the session: `session/close`, `session/delete`.
    pub ends: bool,
}

/// Facts about a request.
#[derive(Clone, Copy)]
struct Flags(u16);

impl Flags {
    /// The wire id is no number, and is kept beside.
    const TEXT: u16 = 1;
    /// There is more beside.
    const RARE: u16 = 2;
    /// It can be found by its asker and id.
    const LISTED: u16 = 4;
    /// The sessionId stood at top level, where an answer repeats it (spec 5.2.2).
    const ON_TOP: u16 = 8;
    const CREATES: u16 = 16;
    const LOADS: u16 = 32;
    const ENDS: u16 = 64;
    /// Its asker does not want the answer any more, but is to have one.
    const CANCELLED: u16 = 128;
    /// Its asker does not want the answer any more, and is to have none.
    const CANCELLED_SILENTLY: u16 = 256;

    fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }
}

/// A request that waits for its answer.
pub(super) struct Request {
    asker: Option<PeerBits>,
    answerer: PeerBits,
    /// The id that the answerer sees: the number, or the fingerprint of its text.
    wire: u64,
    session: Option<SessionKey>,
    expires: Moment,
    since: Since,
    /// What its asker has asked before it and after it.
    before: u16,
    after: u16,
    flags: Flags,
    /// What its line looked like, to know it again if it comes back.
    print: u32,
}

// With its key a request fills one cache line.
const _: () = assert!(size_of::<Request>() <= 56);
// Slots are counted in sixteen bits.
const _: () = assert!(2 * MAX_PENDING_REQUESTS < NONE as usize);

/// What few requests have.
#[derive(Default)]
struct Rare {
    /// The id as its asker wrote it, where it is not the wire id, or is spelled in another way.
    original: Option<Original>,
    /// The session in its params, where that is another one than the one that decided its way.
    second_session: Option<SessionKey>,
}

/// The id as its asker wrote it.
struct Original {
    id: Id,
    token: Text,
    /// The answerer sees another id.
    is_replaced: bool,
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

/// Bytes of a request with all that is beside it, but for its ids.
#[cfg(test)]
pub(super) const LARGEST: usize = size_of::<Request>() + size_of::<Rare>() + size_of::<Id>() + 64;

/// How a request's id stands on the wire.
pub(super) enum Wire<'a> {
    /// As its asker has written it.
    AsItIs,
    /// The same, but an error in place of the answer has to repeat the spelling of this token.
    Spelled(&'a [u8]),
    /// Another one in place of this token.
    Replaced(Id, &'a [u8]),
}

impl Request {
    /// Who asked; none once it has gone or was given an error, and then the answer is discarded.
    #[inline]
    pub(super) fn asker(&self) -> Option<Peer> {
        self.asker.map(Peer::from)
    }

    /// Who has to answer.
    #[inline]
    pub(super) fn answerer(&self) -> Peer {
        self.answerer.into()
    }

    /// The session that decided its way.
    #[inline]
    pub(super) fn session(&self) -> Option<SessionKey> {
        self.session
    }

    /// What its line looked like.
    pub(super) fn print(&self) -> u32 {
        self.print
    }

    /// When it was recorded, to the microsecond.
    #[inline]
    pub(super) fn since(&self) -> Moment {
        Moment(self.since.get())
    }

    /// When an answer is too late.
    pub(super) fn expires(&self) -> Option<Moment> {
        (self.expires != Moment::NEVER).then_some(self.expires)
    }

    /// Whether the sessionId stood at top level.
    pub(super) fn session_on_top(&self) -> bool {
        self.flags.has(Flags::ON_TOP)
    }

    /// What an answer does.
    #[inline]
    pub(super) fn effect(&self) -> SessionEffect {
        let flags = self.flags;
        SessionEffect {
            creates: flags.has(Flags::CREATES),
            loads: flags.has(Flags::LOADS),
            ends: flags.has(Flags::ENDS),
        }
    }

    /// How its asker has cancelled it, if it has.
    pub(super) fn cancelled(&self) -> Option<Cancel> {
        match self.flags {
            flags if flags.has(Flags::CANCELLED) => Some(Cancel::Answered),
            flags if flags.has(Flags::CANCELLED_SILENTLY) => Some(Cancel::Silent),
            _ => None,
        }
    }

    /// Whether there is nothing to it but an answer that its asker waits for.
    #[inline]
    pub(super) fn is_simple(&self) -> bool {
        const OTHER: u16 = Flags::RARE | Flags::LISTED | Flags::CREATES | Flags::LOADS | Flags::ENDS;
        self.asker.is_some() && !self.flags.has(OTHER)
    }

    fn direction(&self) -> Direction {
        if self.answerer.is_worker() { Direction::ToWorkers } else { Direction::ToClients }
    }
}

/// Where the index says that a request is, or that there is room for one.
#[derive(Clone, Copy)]
pub(super) struct Place(usize);

/// The pending requests.
pub(super) struct Pending {
    table: Table<Request, RequestMark>,
    /// How many go each way.
    counts: [usize; 2],
    /// Slots of the table by answerer and wire id: each at its place, or behind it where others stand there.
    index: Box<[u16]>,
    fingerprints: Fingerprints,
    /// Wire ids that are no numbers, by slot.
    texts: Vec<Id>,
    /// What else there is, by slot.
    rare: Vec<Option<Box<Rare>>>,
    /// The requests of those peers that have looked for one among many of theirs, by the fingerprint of asker and id, and
    /// then in the order in which they were made.
    by_asker: BTreeSet<(u64, u64)>,
    /// Requests without an asker, and cancelled ones, oldest first, each way; some may be gone.
    unwanted: [VecDeque<RequestKey>; 2],
    /// Ids that were made in place of others.
    pub(super) ids_made: u64,
}

/// Places of the index: four for each request that there may be in one direction, so that few stand behind others.
const PLACES: usize = (4 * MAX_PENDING_REQUESTS).next_power_of_two();

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(2 * MAX_PENDING_REQUESTS),
            counts: [0; 2],
            index: vec![NONE; PLACES].into_boxed_slice(),
            fingerprints: Fingerprints::default(),
            texts: Vec::new(),
            rare: Vec::new(),
            by_asker: BTreeSet::new(),
            unwanted: [VecDeque::new(), VecDeque::new()],
            ids_made: 0,
        }
    }

    /// The request, if it is still pending.
    #[inline]
    pub(super) fn get(&self, key: RequestKey) -> Option<&Request> {
        self.table.get(key)
    }

    /// All requests, in slot order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestKey, &Request)> {
        self.table.iter()
    }

    /// The request in a slot.
    pub(super) fn at(&self, slot: usize) -> Option<(RequestKey, &Request)> {
        self.table.at(slot)
    }

    /// None is in a slot from this one on.
    pub(super) fn slots(&self) -> usize {
        self.table.slots()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many go one way.
    #[inline]
    pub(super) fn count(&self, direction: Direction) -> usize {
        self.counts[direction as usize]
    }

    /// How many of clients somebody waits for.
    pub(super) fn awaited(&self) -> usize {
        let is_awaited = |request: &Request| request.asker.is_some() && request.answerer.is_worker();
        self.table.iter().filter(|(_, request)| is_awaited(request)).count()
    }

    /// Whether there is room for one more of an asker that has so many unanswered, of so many that may ask. The last slots
    /// are kept for those that hold few.
    #[inline]
    pub(super) fn has_room(&self, direction: Direction, askers: usize, holds: usize) -> bool {
        let free = MAX_PENDING_REQUESTS - self.count(direction);
        let kept = KEPT.min(KEPT_FOR_EACH * askers.saturating_sub(1));
        free > 0 && (free > kept || holds < MAX_PENDING_REQUESTS / askers.max(1))
    }

    /// Whether one more in this direction is refused.
    pub(super) fn is_full(&self, direction: Direction) -> bool {
        self.count(direction) >= MAX_PENDING_REQUESTS
    }

    /// What stands for an id in a request, and in a list of many. That two have the same is as good as impossible, and
    /// where it matters their texts are compared.
    #[inline]
    fn wire(&self, id: &View<'_>) -> u64 {
        match id.number() {
            Some(number) => number,
            None => self.fingerprint(id),
        }
    }

    /// What stands for an id in a list of many, whether it is a number or not.
    pub(super) fn fingerprint(&self, id: &View<'_>) -> u64 {
        match (id.number(), id.text()) {
            (Some(number), _) => self.fingerprints.of(0, &number.to_le_bytes()),
            (None, Some((is_string, text))) => self.fingerprints.of(1 + u8::from(is_string), text),
            (None, None) => 0,
        }
    }

    #[inline]
    fn home(&self, answerer: PeerBits, wire: u64) -> usize {
        self.fingerprints.mix(answerer.get(), wire) as usize % PLACES
    }

    /// The request that an answer with this id from `answerer` means; else the place for one.
    #[inline]
    pub(super) fn find_or_place(&self, answerer: PeerBits, id: &View<'_>) -> Result<(RequestKey, Place), Place> {
        let wire = self.wire(id);
        let mut place = self.home(answerer, wire);
        loop {
            let slot = self.index[place];
            if slot == NONE {
                return Err(Place(place));
            }
            let (key, request) = self.table.in_slot(slot.into());
            if request.wire == wire
                && request.answerer == answerer
                && request.flags.has(Flags::TEXT) == id.number().is_none()
                && (id.number().is_some() || self.texts[usize::from(slot)] == *id)
            {
                return Ok((key, Place(place)));
            }
            place = (place + 1) % PLACES;
        }
    }

    /// The request that an answer with this id from `answerer` means.
    #[inline]
    pub(super) fn find(&self, answerer: Peer, id: &View<'_>) -> Option<RequestKey> {
        self.find_or_place(answerer.into(), id).ok().map(|(key, _)| key)
    }

    /// The wire id of a request.
    fn wire_id(&self, key: RequestKey, request: &Request) -> Id {
        match request.flags.has(Flags::TEXT) {
            true => self.texts[key.index()].clone(),
            false => Id::Number(request.wire),
        }
    }

    fn rare(&self, key: RequestKey) -> Option<&Rare> {
        let request = self.table.get(key).filter(|request| request.flags.has(Flags::RARE));
        request.and_then(|_| self.rare[key.index()].as_deref())
    }

    fn original(&self, key: RequestKey) -> Option<&Original> {
        self.rare(key).and_then(|rare| rare.original.as_ref())
    }

    /// The session in its params, where that is another one than the one that decided its way.
    pub(super) fn second_session(&self, key: RequestKey) -> Option<SessionKey> {
        self.rare(key).and_then(|rare| rare.second_session)
    }

    /// The sessions that it is in.
    pub(super) fn sessions(&self, key: RequestKey) -> [Option<SessionKey>; 2] {
        [self.get(key).and_then(Request::session), self.second_session(key)]
    }

    /// The id as its asker wrote it.
    pub(super) fn asker_token(&self, key: RequestKey) -> Vec<u8> {
        match (self.original(key), self.get(key)) {
            (Some(original), _) => original.token.as_bytes().to_vec(),
            (None, Some(request)) => self.wire_id(key, request).token(),
            (None, None) => Vec::new(),
        }
    }

    /// The same as text, for a report.
    pub(super) fn asker_text(&self, key: RequestKey) -> String {
        String::from_utf8_lossy(&self.asker_token(key)).into_owned()
    }

    /// The token that its asker knows it by, if that is another one than the answerer's.
    pub(super) fn replaced_token(&self, key: RequestKey) -> Option<Text> {
        self.original(key).filter(|original| original.is_replaced).map(|original| original.token.clone())
    }

    /// The token that the answerer knows it by, if that is another one than the asker's.
    pub(super) fn wire_token(&self, key: RequestKey) -> Option<Text> {
        self.original(key).filter(|original| original.is_replaced)?;
        Some(self.wire_id(key, self.get(key)?).token().as_slice().into())
    }

    /// The fingerprint of the id that the answerer knows it by.
    pub(super) fn wire_fingerprint(&self, key: RequestKey) -> Option<u64> {
        Some(self.fingerprint(&self.wire_id(key, self.get(key)?).view()))
    }

    fn is_asked_as(&self, key: RequestKey, asker: PeerBits, id: &View<'_>) -> bool {
        let Some(request) = self.get(key).filter(|request| request.asker == Some(asker)) else { return false };
        match self.original(key) {
            Some(original) => original.id == *id,
            None => self.wire_id(key, request) == *id,
        }
    }

    /// The requests of one asker, the oldest first.
    pub(super) fn asked<'a>(&'a self, asked: &Asked) -> impl Iterator<Item = RequestKey> + 'a {
        let key = |slot: u16| (slot != NONE).then(|| self.table.in_slot(slot.into()).0);
        core::iter::successors(key(asked.first), move |before| key(self.get(*before)?.after))
    }

    /// The newest request of an asker.
    pub(super) fn newest(&self, asked: &Asked) -> Option<RequestKey> {
        (asked.last != NONE).then(|| self.table.in_slot(asked.last.into()).0)
    }

    /// The requests that `answerer` has to answer, the oldest first. It looks at all.
    pub(super) fn unanswered(&self, answerer: Peer, unanswered: Unanswered) -> Vec<RequestKey> {
        if unanswered.count == 0 {
            return Vec::new();
        }
        let answerer = PeerBits::from(answerer);
        in_order(self.table.iter().filter(|(_, request)| request.answerer == answerer).map(|(key, _)| key).collect())
    }

    /// The oldest request that `asker`, whose requests these are, has made under this id. Cancellations are rare: only a
    /// peer that has asked for one among many has its requests listed by their ids, from then on.
    pub(super) fn find_asked(&mut self, asker: Peer, id: &View<'_>, asked: &mut Asked) -> Option<RequestKey> {
        let bits = PeerBits::from(asker);
        if !asked.lists_ids && asked.len() > FEW {
            asked.lists_ids = true;
            let all: Vec<_> = self.asked(asked).collect();
            all.into_iter().for_each(|key| self.list_id(key));
        }
        if !asked.lists_ids {
            return self.asked(asked).find(|key| self.is_asked_as(*key, bits, id));
        }
        let alike = self.asker_fingerprint(bits, id);
        let alike = self.by_asker.range((alike, 0)..=(alike, u64::MAX));
        let mut found = alike.filter_map(|(_, bits)| NonZeroU64::new(*bits)).map(RequestKey::of_bits);
        found.find(|key| self.is_asked_as(*key, bits, id))
    }

    fn asker_fingerprint(&self, asker: PeerBits, id: &View<'_>) -> u64 {
        self.fingerprints.mix(asker.get(), self.fingerprint(id))
    }

    /// Where a request stands in the list by ids.
    fn entry_by_id(&self, key: RequestKey) -> Option<(u64, u64)> {
        let request = self.get(key)?;
        let id = match self.original(key) {
            Some(original) => original.id.clone(),
            None => self.wire_id(key, request),
        };
        Some((self.asker_fingerprint(request.asker?, &id.view()), key.to_bits().get()))
    }

    #[cold]
    fn list_id(&mut self, key: RequestKey) {
        let entry = self.entry_by_id(key);
        self.by_asker.extend(entry);
        if let Some(request) = self.table.get_mut(key).filter(|_| entry.is_some()) {
            request.flags.0 |= Flags::LISTED;
        }
    }

    /// Takes a request out of the list by ids, while it has its asker yet.
    #[cold]
    fn unlist_id(&mut self, key: RequestKey) {
        if let Some(entry) = self.entry_by_id(key) {
            self.by_asker.remove(&entry);
        }
        if let Some(request) = self.table.get_mut(key) {
            request.flags.0 &= !Flags::LISTED;
        }
    }

    /// Adds a request with the id of its asker, which is a number that its answerer does not know yet: `place` was found
    /// for it, and nothing has changed since. There has to be room.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn insert(
        &mut self,
        since: Moment,
        place: Place,
        new: &NewRequest,
        id: &View<'_>,
        wire: Wire<'_>,
        asker: &mut Endpoint,
        answerer: &mut Endpoint,
    ) -> Option<RequestKey> {
        let NewRequest { effect, direction, .. } = *new;
        let is_other = id.number().is_none() || !matches!(wire, Wire::AsItIs) || new.second_session.is_some();
        let flags = [
            (new.session_on_top, Flags::ON_TOP),
            (effect.creates, Flags::CREATES),
            (effect.loads, Flags::LOADS),
            (effect.ends, Flags::ENDS),
        ];
        let flags = flags.into_iter().fold(0, |flags, (is_so, flag)| if is_so { flags | flag } else { flags });
        let asked = &mut asker.outstanding;
        let before = asked.last;
        let number = id.number().unwrap_or_default();
        let key = self.table.insert_with(|_| Request {
            asker: Some(new.asker().into()),
            answerer: new.answerer().into(),
            wire: number,
            session: new.session,
            expires: new.expires.unwrap_or(Moment::NEVER),
            since: Since::at(since.0),
            before,
            after: NONE,
            flags: Flags(flags),
            print: new.print,
        })?;
        let slot = key.index() as u16;
        if before == NONE {
            asked.first = slot;
        } else if let Some(newest) = self.table.in_slot_mut(before.into()) {
            newest.after = slot;
        }
        asked.last = slot;
        asked.count += 1;
        answerer.unanswered.count += 1;
        answerer.unanswered.awaited += 1;
        self.counts[direction as usize] += 1;
        let place = if is_other { self.keep_beside(key, new, id, wire) } else { place };
        self.index[place.0] = slot;
        if asker.outstanding.lists_ids {
            self.list_id(key);
        }
        Some(key)
    }

    /// Keeps what does not fit into a request, and gives its place in the index.
    #[cold]
    fn keep_beside(&mut self, key: RequestKey, new: &NewRequest, id: &View<'_>, wire: Wire<'_>) -> Place {
        let original = |token: &[u8], is_replaced| Original { id: id.to_id(), token: token.into(), is_replaced };
        let (wire, original) = match wire {
            Wire::AsItIs => (id.to_id(), None),
            Wire::Spelled(token) => (id.to_id(), Some(original(token, false))),
            Wire::Replaced(made, token) => (made, Some(original(token, true))),
        };
        let bits = self.wire(&wire.view());
        let slots = key.index() + 1;
        let Some(request) = self.table.get_mut(key) else { return Place(0) };
        request.wire = bits;
        if !matches!(wire, Id::Number(_)) {
            request.flags.0 |= Flags::TEXT;
            if self.texts.len() < slots {
                self.texts.resize(slots, Id::Number(0));
            }
            self.texts[key.index()] = wire;
        }
        if original.is_some() || new.second_session.is_some() {
            request.flags.0 |= Flags::RARE;
            if self.rare.len() < slots {
                self.rare.resize_with(slots, || None);
            }
            self.rare[key.index()] = Some(Box::new(Rare { original, second_session: new.second_session }));
        }
        let mut place = self.home(new.answerer().into(), bits);
        while self.index[place] != NONE {
            place = (place + 1) % PLACES;
        }
        Place(place)
    }

    /// Where the index says that a request is.
    fn place_of(&self, key: RequestKey) -> Option<Place> {
        let request = self.get(key)?;
        let mut place = self.home(request.answerer, request.wire);
        while usize::from(self.index[place]) != key.index() {
            place = (place + 1) % PLACES;
        }
        Some(Place(place))
    }

    /// Frees a place of the index: those behind it that would not be found any more move up.
    #[inline]
    fn free_place(&mut self, Place(mut free): Place) {
        let mut place = free;
        loop {
            place = (place + 1) % PLACES;
            let slot = self.index[place];
            if slot == NONE {
                break;
            }
            let (_, request) = self.table.in_slot(slot.into());
            let home = self.home(request.answerer, request.wire);
            // It may move if its home is not between the free place and its own.
            if place.wrapping_sub(home) % PLACES >= place.wrapping_sub(free) % PLACES {
                self.index[free] = slot;
                free = place;
            }
        }
        self.index[free] = NONE;
    }

    /// Takes a request out of the list of its asker.
    #[inline]
    fn leave_asker(&mut self, before: u16, after: u16, asked: &mut Asked) {
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

    /// Takes a request out whose asker waits for it, at its place in the index, where nothing has changed since.
    #[inline]
    pub(super) fn remove_at(&mut self, key: RequestKey, place: Place, asker: &mut Asked, answerer: &mut Unanswered) {
        let Some(request) = self.table.get(key) else { return };
        let (before, after, flags, direction) = (request.before, request.after, request.flags, request.direction());
        if flags.has(Flags::LISTED | Flags::RARE) {
            self.forget_beside(key, flags);
        }
        self.leave_asker(before, after, asker);
        answerer.awaited -= 1;
        answerer.count -= 1;
        self.free_place(place);
        self.table.drop(key);
        self.counts[direction as usize] -= 1;
    }

    #[cold]
    fn forget_beside(&mut self, key: RequestKey, flags: Flags) {
        if flags.has(Flags::LISTED) {
            self.unlist_id(key);
        }
        if flags.has(Flags::RARE) {
            self.rare[key.index()] = None;
        }
    }

    /// Takes a request out whose ends these are, as far as they are there.
    pub(super) fn remove(&mut self, key: RequestKey, asker: Option<&mut Endpoint>, answerer: Option<&mut Endpoint>) {
        let Some(place) = self.place_of(key) else { return };
        let Some(request) = self.table.get(key) else { return };
        let (was_awaited, flags, direction) = (request.asker.is_some(), request.flags, request.direction());
        let (before, after) = (request.before, request.after);
        self.forget_beside(key, flags);
        if let Some(asker) = asker.filter(|_| was_awaited) {
            self.leave_asker(before, after, &mut asker.outstanding);
        }
        if let Some(answerer) = answerer {
            answerer.unanswered.count -= 1;
            answerer.unanswered.awaited -= u32::from(was_awaited);
        }
        self.free_place(place);
        self.table.drop(key);
        self.counts[direction as usize] -= 1;
    }

    /// The asker does not wait any more. The id stays taken until the answer comes.
    pub(super) fn orphan(&mut self, key: RequestKey, asker: Option<&mut Endpoint>, answerer: Option<&mut Endpoint>) {
        let Some(request) = self.table.get(key).filter(|request| request.asker.is_some()) else { return };
        let (before, after, direction) = (request.before, request.after, request.direction());
        if request.flags.has(Flags::LISTED) {
            self.unlist_id(key);
        }
        if let Some(asker) = asker {
            asker.traffic.given_up += 1;
            self.leave_asker(before, after, &mut asker.outstanding);
        }
        if let Some(answerer) = answerer {
            answerer.unanswered.awaited -= 1;
        }
        if let Some(request) = self.table.get_mut(key) {
            request.asker = None;
            if request.cancelled().is_none() {
                request.expires = Moment::NEVER;
            }
        }
        self.mark_unwanted(direction, key);
    }

    /// The asker does not want the answer any more: it is waited for a little while, until the moment that is given.
    pub(super) fn cancel(&mut self, now: Moment, key: RequestKey, how: Cancel) -> Option<Moment> {
        let request = self.table.get_mut(key).filter(|request| request.cancelled().is_none())?;
        let due = Moment(now.after(CANCEL_GRACE).0.next_multiple_of(CANCEL_ROUND));
        request.flags.0 |= match how {
            Cancel::Answered => Flags::CANCELLED,
            Cancel::Silent => Flags::CANCELLED_SILENTLY,
        };
        request.expires = request.expires.min(due);
        let (expires, direction) = (request.expires, request.direction());
        self.mark_unwanted(direction, key);
        Some(expires)
    }

    /// Nobody wants the answer to this request any more. Its id stays taken until the answer comes, so that a late
    /// answer cannot be mistaken for another one's.
    fn mark_unwanted(&mut self, direction: Direction, key: RequestKey) {
        let unwanted = &mut self.unwanted[direction as usize];
        unwanted.push_back(key);
        if unwanted.len() > 2 * self.counts[direction as usize] + 64 {
            let table = &self.table;
            unwanted.retain(|unwanted| table.get(*unwanted).is_some());
        }
    }

    /// The request that nobody has wanted for longest; a full table gives it up first.
    pub(super) fn take_oldest_unwanted(&mut self, direction: Direction) -> Option<RequestKey> {
        while let Some(key) = self.unwanted[direction as usize].pop_front() {
            if self.table.get(key).is_some() {
                return Some(key);
            }
        }
        None
    }

    /// Requests that have waited too long, the oldest first.
    pub(super) fn expired(&self, now: Moment) -> Vec<RequestKey> {
        let is_over = |request: &Request| request.expires().is_some_and(|at| at <= now);
        in_order(self.table.iter().filter(|(_, request)| is_over(request)).map(|(key, _)| key).collect())
    }

    /// When the next one has waited too long.
    pub(super) fn next_expiry(&self) -> Option<Moment> {
        self.table.iter().filter_map(|(_, request)| request.expires()).min()
    }

    /// Panics if the index, the lists and the table disagree.
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.index.iter().filter(|slot| **slot != NONE).count(), self.table.len());
        assert_eq!(self.counts.iter().sum::<usize>(), self.table.len());
        let listed = self.table.iter().filter(|(_, request)| request.flags.has(Flags::LISTED)).count();
        assert_eq!(self.by_asker.len(), listed);
        let mut unwanted = vec![false; self.table.slots()];
        for key in self.unwanted.iter().flatten().filter(|key| self.get(**key).is_some()) {
            unwanted[key.index()] = true;
        }
        for (key, request) in self.table.iter() {
            let is_unwanted = request.asker.is_none() || request.cancelled().is_some();
            assert!(!is_unwanted || unwanted[key.index()], "an orphan gives its slot back when the table is full");
            assert_eq!(self.find(request.answerer(), &self.wire_id(key, request).view()), Some(key));
        }
    }
}

/// Requests in the order in which they were made.
fn in_order(mut keys: Vec<RequestKey>) -> Vec<RequestKey> {
    keys.sort_by_key(|key| key.serial());
    keys
}
