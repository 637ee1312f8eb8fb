//! The lobby: connections that are no clients yet, since a PROXY header is still to come that says whom they bring, or the
//! request that a WebSocket begins with. They take no slot of a client and are nobody to the core until they have said
//! that, or their time is up. There are as many as there are free slots, and some more, who ask how the daemon is or are
//! told that it is full. One more takes the place of one of the source that has most of them, there of one that has
//! sent nothing, since who means it sends all of it at once, and of those of the one that has waited longest.
//!
//! Invariants: the kernel holds one operation of each of them, and it goes when that completes. Whatever changes what one
//! waits for, or whether, has it counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use slab::Slab;

use super::Shell;
use super::connection::{Connection, Descriptor, Kind};
use super::framing::Framing;
use super::hands::Hands;
use super::operation::Operation;
use super::web::Web;
use super::web::door::{RETRY_AFTER, Verdict};
use crate::bus::port::{Input, Moment, Names, Origin, Place, Source};
use crate::bus::settings;
use crate::http1::Status;
use crate::io::{Io, Submission};
use crate::proxy::{self, Reading};
use crate::websocket::answer::Refusal;
use crate::websocket::request::{self, LONGEST_HEAD};

/// How many wait at once at most beyond the slots that are free.
pub(super) const BEYOND: usize = 256;
/// Room for the first bytes of each; there is more once they have filled it.
const FIRST_BYTES: usize = 1024;
/// How long the request of a WebSocket may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// What it is told that its place is needed.
const CROWDED: &str = "more connections wait than there is room for, and it is one of the source that has most of them";
/// What it is told that others of its source are there.
const SHARE: &str = "with those that wait to be let in, its source has more connections than this listener takes from one \
                     (listeners[].max_connections)";
/// How long a connection that is refused may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// See the top of the file.
#[derive(Default)]
pub(super) struct Lobby {
    arrivals: Slab<Arrival>,
    /// How many of each source wait to say something.
    sources: HashMap<Source, usize>,
    /// Nobody's time is up before this; it may be early, never late.
    due: Option<Moment>,
    /// So many may be in it beyond the slots that are free.
    beyond: usize,
}

/// A connection that has just been accepted.
pub(super) struct Newcomer {
    pub socket: OwnedFd,
    /// Index of its acceptor.
    pub acceptor: usize,
    /// Index of its listener in the configuration.
    pub listener: usize,
    /// The other end.
    pub place: Place,
}

/// A connection that has something to say before it is a client.
struct Arrival {
    newcomer: Newcomer,
    /// Who it is, as far as that is known.
    origin: Origin,
    stage: Stage,
    since: Moment,
    deadline: Moment,
    /// What it is counted as among [`Lobby::sources`].
    counted: Option<Source>,
    /// Why its operation was asked to end.
    over: Option<Over>,
    /// What has come, with a byte behind it.
    bytes: Vec<u8>,
    /// So many bytes may come at most.
    longest: usize,
    filled: usize,
    /// So many of them were the PROXY header.
    header: usize,
}

/// What is awaited.
enum Stage {
    /// A PROXY header.
    Header {
        /// It has to begin with one.
        required: bool,
    },
    /// The request of a WebSocket.
    Request(request::Reader),
    /// That it is told something, of which so much is sent.
    Answer { bytes: Box<[u8]>, sent: usize },
    /// That it has read that.
    End,
}

/// Why nobody waits for it any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// It took too long.
    Late,
    /// Another one needs its place.
    Crowded,
    /// Its source has more connections at its listener than it may have.
    Surplus,
    /// The daemon takes no more clients.
    Closed,
}

impl Lobby {
    /// An empty one for so many beyond the slots that are free.
    pub(super) fn new(beyond: usize) -> Self {
        Self { beyond, ..Self::default() }
    }

    /// When the time of one of them may be up.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Whether nobody is there.
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    fn waiting(&self) -> impl Iterator<Item = (usize, &Arrival)> {
        self.arrivals.iter().filter(|(_, arrival)| arrival.over.is_none())
    }

    /// Whose place is needed first: those who have been told why they go, and then as it stands at the top of the file.
    fn gives_way(&self) -> Option<usize> {
        let told = self.waiting().filter(|(_, arrival)| matches!(arrival.stage, Stage::End));
        told.min_by_key(|(_, arrival)| arrival.since).map(|(slot, _)| slot).or_else(|| {
            let most = self.sources.values().copied().max()?;
            let mut heaviest = self.sources.iter().filter(|(_, count)| **count == most).map(|(source, _)| *source);
            match (heaviest.next(), heaviest.next()) {
                // To look each of them up takes longer.
                (one, None) => self.first_to_go(|arrival| arrival.counted == one),
                _ => self.first_to_go(|arrival| {
                    arrival.counted.is_some_and(|source| self.sources.get(&source) == Some(&most))
                }),
            }
        })
    }

    /// Counts an arrival as what it is now: of a source, while it waits to say something.
    fn count(&mut self, slot: usize) {
        let arrival = &mut self.arrivals[slot];
        let is = (arrival.over.is_none() && !arrival.is_told()).then(|| arrival.source());
        let was = std::mem::replace(&mut arrival.counted, is);
        if was == is {
            return;
        }
        if let Some(source) = is {
            *self.sources.entry(source).or_default() += 1;
        }
        self.discount(was);
    }

    fn discount(&mut self, source: Option<Source>) {
        let Some(Entry::Occupied(mut count)) = source.map(|source| self.sources.entry(source)) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }

    /// An arrival is one no more.
    fn remove(&mut self, slot: usize) -> Arrival {
        let arrival = self.arrivals.remove(slot);
        self.discount(arrival.counted);
        arrival
    }

    /// Who goes first of those who are chosen and have not been told anything yet.
    fn first_to_go(&self, is_chosen: impl Fn(&Arrival) -> bool) -> Option<usize> {
        let chosen = self.waiting().filter(|(_, arrival)| !arrival.is_told() && is_chosen(arrival));
        chosen.min_by_key(|(_, arrival)| (arrival.has_spoken(), arrival.since)).map(|(slot, _)| slot)
    }

    /// An arrival comes to its next stage, which has to be over at the deadline.
    fn go_on(&mut self, slot: usize, stage: Stage, deadline: Moment) {
        let arrival = &mut self.arrivals[slot];
        (arrival.stage, arrival.deadline) = (stage, deadline);
        self.count(slot);
        self.wake_at(deadline);
    }

    fn wake_at(&mut self, deadline: Moment) {
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
    }
}

impl Arrival {
    /// Whether nothing more is awaited of it.
    fn is_told(&self) -> bool {
        matches!(self.stage, Stage::Answer { .. } | Stage::End)
    }

    fn has_spoken(&self) -> bool {
        self.filled > self.header
    }

    fn source(&self) -> Source {
        self.origin.source()
    }
}

impl<I: Io> Hands<I> {
    /// Waits for what a connection has to say first: the header of a proxy, if one may come, and the request of a
    /// WebSocket, if the listener has a door.
    fn await_word(&mut self, now: Moment, newcomer: Newcomer, proxy: Option<&settings::Proxy>) {
        let (stage, deadline) = match proxy {
            Some(proxy) => (Stage::Header { required: proxy.required }, now.after(proxy.timeout)),
            None => (Stage::Request(request::Reader::default()), now.after(REQUEST_TIMEOUT)),
        };
        let of_request = if self.doors[newcomer.listener].is_some() { LONGEST_HEAD } else { 0 };
        let of_header = if proxy.is_some() { proxy::LONGEST } else { 0 };
        let longest = of_header + of_request;
        let slot = self.lobby.arrivals.insert(Arrival {
            origin: newcomer.place.into(),
            newcomer,
            stage,
            since: now,
            deadline,
            counted: None,
            over: None,
            bytes: vec![0; longest.min(FIRST_BYTES) + 1],
            longest,
            filled: 0,
            header: 0,
        });
        self.lobby.count(slot);
        self.lobby.wake_at(deadline);
        self.wait(slot);
    }

    /// Hands the kernel the next operation of an arrival.
    fn wait(&mut self, slot: usize) {
        let arrival = &mut self.lobby.arrivals[slot];
        let socket = arrival.newcomer.socket.as_raw_fd();
        let submission = match &mut arrival.stage {
            Stage::Header { .. } | Stage::Request(_) => {
                let mut last = arrival.bytes.len() - 1;
                if arrival.filled == last {
                    last = arrival.longest.min(2 * last);
                    arrival.bytes.resize(last + 1, 0);
                }
                let room = &mut arrival.bytes[arrival.filled..last];
                debug_assert!(!room.is_empty(), "as many bytes are what is awaited or not");
                Submission::ReceiveInto { socket, into: room.as_mut_ptr(), bytes: room.len() as u32 }
            }
            Stage::Answer { bytes, sent } => {
                let rest = &bytes[*sent..];
                Submission::Send { socket, from: rest.as_ptr(), bytes: rest.len() as u32, now_or_never: false }
            }
            Stage::End => {
                let into = arrival.bytes.as_mut_ptr();
                Submission::ReceiveInto { socket, into, bytes: arrival.bytes.len() as u32 }
            }
        };
        // SAFETY: the arrival stays, with its socket and its bytes, until this completes.
        unsafe { self.io.submit(submission, Operation::Arrival.token(slot)) };
    }

    /// Asks for the end of an operation. What becomes of its connection is decided when it completes.
    fn end_wait(&mut self, slot: usize, over: Over) {
        self.lobby.arrivals[slot].over = Some(over);
        self.lobby.count(slot);
        self.io.cancel(Operation::Arrival.token(slot));
    }

    /// There are so many free slots: who is too many gives way.
    pub(super) fn crowd_lobby(&mut self, free: usize) {
        // Those who are asked to go are in it until they have.
        if self.lobby.arrivals.len() <= free + self.lobby.beyond {
            return;
        }
        // An answer that is not sent yet is about to be: cut off, it would not say why.
        let holds = self.lobby.waiting().filter(|(_, arrival)| !matches!(arrival.stage, Stage::Answer { .. })).count();
        for _ in free + self.lobby.beyond..holds {
            let Some(slot) = self.lobby.gives_way() else { return };
            self.end_wait(slot, Over::Crowded);
        }
    }

    /// Of a source that has said which it is, no more wait to be let in through a listener than it takes of them. One
    /// is always heard, so that it can be told why it is not taken.
    fn keep_share(&mut self, listener: usize, source: Source, room: usize) {
        let is_of = |arrival: &Arrival| {
            arrival.newcomer.listener == listener
                && matches!(arrival.stage, Stage::Request(_))
                && arrival.source() == source
        };
        let waiting = self.lobby.waiting().filter(|(_, arrival)| is_of(arrival)).count();
        for _ in room.max(1)..waiting {
            let Some(slot) = self.lobby.first_to_go(is_of) else { return };
            self.end_wait(slot, Over::Surplus);
        }
    }

    /// Ends the wait of those whose time is up.
    pub(super) fn expire_arrivals(&mut self, now: Moment) {
        if self.lobby.due.is_none_or(|due| due > now) {
            return;
        }
        let late: Vec<usize> =
            self.lobby.waiting().filter(|(_, arrival)| arrival.deadline <= now).map(|(slot, _)| slot).collect();
        late.into_iter().for_each(|slot| self.end_wait(slot, Over::Late));
        self.lobby.due = self.lobby.waiting().map(|(_, arrival)| arrival.deadline).min();
    }

    /// Nobody is let in any more.
    pub(super) fn clear_lobby(&mut self) {
        let waiting: Vec<usize> = self.lobby.waiting().map(|(slot, _)| slot).collect();
        waiting.into_iter().for_each(|slot| self.end_wait(slot, Over::Closed));
        self.lobby.due = None;
    }

    /// Closes a connection that brings nobody. `why` is told, unless it left without having said anything.
    fn turn_away(&mut self, now: Moment, arrival: Arrival, why: Option<&str>) {
        let address = &self.acceptors[arrival.newcomer.acceptor].address;
        let place = arrival.newcomer.place;
        let is_web = matches!(arrival.stage, Stage::Request(_));
        match why {
            Some(why) => {
                let why = format!("on {address} {why}");
                let input = if is_web { Input::NotUpgraded { place, why } } else { Input::Unintroduced { place, why } };
                self.tell(now, input);
            }
            None => tracing::debug!("{place} left {address} before it had said who it is"),
        }
        drop(arrival);
        self.free_descriptor();
    }

    /// Tells a connection something, with which it ends.
    fn end_with(&mut self, now: Moment, slot: usize, answer: String) {
        self.lobby.go_on(slot, Stage::Answer { bytes: answer.into_bytes().into(), sent: 0 }, now.after(LINGER));
        self.wait(slot);
    }

    /// Refuses a WebSocket.
    fn refuse(&mut self, now: Moment, slot: usize, refusal: &Refusal) {
        let Newcomer { acceptor, place, .. } = &self.lobby.arrivals[slot].newcomer;
        let address = &self.acceptors[*acceptor].address;
        let why = format!("on {address} {} ({})", refusal.why, refusal.status.code());
        let place = *place;
        self.tell(now, Input::NotUpgraded { place, why });
        self.end_with(now, slot, refusal.to_string());
    }

    /// An operation of somebody who is being told why it goes has completed.
    fn ending_goes_on(&mut self, slot: usize, result: i32) {
        let arrival = &mut self.lobby.arrivals[slot];
        let is_over = arrival.over.is_some();
        let goes_on = match (&mut arrival.stage, -result) {
            (_, libc::EAGAIN | libc::EINTR) => true,
            (Stage::Answer { bytes, sent }, _) if result > 0 => {
                *sent += result as usize;
                if *sent == bytes.len() {
                    // Closed at once, what it has sent and nobody has read would take the answer with it (tcp(7)).
                    let _ = shutdown(&arrival.newcomer.socket, Shutdown::Write);
                    arrival.stage = Stage::End;
                }
                true
            }
            (Stage::End, _) => result > 0,
            _ => false,
        };
        if goes_on && !is_over {
            return self.wait(slot);
        }
        drop(self.lobby.remove(slot));
        self.free_descriptor();
    }
}

impl<I: Io> Shell<I> {
    /// A connection waits for what has to be said first.
    pub(super) fn await_word(&mut self, now: Moment, newcomer: Newcomer) {
        let (listener, place) = (newcomer.listener, newcomer.place);
        let proxy = self.bus.awaits_header(listener, place);
        let is_introduced = proxy.is_none();
        self.hands.await_word(now, newcomer, proxy);
        self.hands.crowd_lobby(self.bus.free_slots());
        if is_introduced {
            self.share_out(listener, place);
        }
    }

    /// One more from there waits to be let in.
    fn share_out(&mut self, listener: usize, place: Place) {
        let Some(door) = &self.hands.doors[listener] else { return };
        // Whom a token or a trusted proxy names is counted when that is known.
        if !door.names_sources(place)
            && let Some(room) = self.bus.room_of_source(listener, place.source())
        {
            self.hands.keep_share(listener, place.source(), room);
        }
    }

    /// The operation of a connection in the lobby has completed.
    pub(super) fn arrival_goes_on(&mut self, now: Moment, slot: usize, result: i32) {
        let hands = &mut self.hands;
        let arrival = &mut hands.lobby.arrivals[slot];
        if matches!(arrival.stage, Stage::Answer { .. } | Stage::End) {
            return hands.ending_goes_on(slot, result);
        }
        if result > 0 {
            arrival.filled += result as usize;
        }
        let has_ended = match -result {
            libc::EAGAIN | libc::EINTR | libc::ECANCELED => false,
            _ => result <= 0,
        };
        if arrival.over == Some(Over::Closed) {
            let arrival = hands.lobby.remove(slot);
            return hands.turn_away(now, arrival, None);
        }
        match arrival.stage {
            Stage::Header { required } => self.read_header(now, slot, required, has_ended),
            _ => self.read_request(now, slot, has_ended),
        }
    }

    fn read_header(&mut self, now: Moment, slot: usize, required: bool, has_ended: bool) {
        let hands = &mut self.hands;
        let arrival = &mut hands.lobby.arrivals[slot];
        let is_empty = arrival.filled == 0;
        let reading = proxy::read(&arrival.bytes[..arrival.filled.min(proxy::LONGEST)]);
        let why = match (reading, arrival.over) {
            (Reading::More, None) if !has_ended => return hands.wait(slot),
            (Reading::Header(header), _) => {
                arrival.origin = origin(arrival.newcomer.place, header.source, header.names);
                arrival.header = header.length;
                return self.introduced(now, slot, has_ended);
            }
            (Reading::Malformed(why), _) => Some(why.to_owned()),
            (Reading::Other, _) if required => {
                Some("it does not begin with a PROXY header (listeners[].proxy.required)".to_owned())
            }
            (Reading::Other, _) => return self.introduced(now, slot, has_ended),
            (Reading::More, _) if has_ended && is_empty => None,
            // It has said nothing, and need not.
            (Reading::More, Some(Over::Late)) if is_empty && !required => {
                arrival.over = None;
                return self.introduced(now, slot, has_ended);
            }
            (Reading::More, Some(Over::Late)) => {
                Some("no whole PROXY header came within listeners[].proxy.timeout_ms".to_owned())
            }
            (Reading::More, Some(Over::Crowded | Over::Surplus)) => Some(CROWDED.to_owned()),
            (Reading::More, _) => Some("it ended in the middle of its PROXY header".to_owned()),
        };
        if arrival.over == Some(Over::Crowded) && hands.doors[arrival.newcomer.listener].is_some() {
            arrival.over = None;
            return hands.refuse(now, slot, &Refusal::unavailable(CROWDED, RETRY_AFTER));
        }
        let arrival = hands.lobby.remove(slot);
        hands.turn_away(now, arrival, why.as_deref());
    }

    /// It is known whom a connection brings.
    fn introduced(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let hands = &mut self.hands;
        let arrival = &mut hands.lobby.arrivals[slot];
        if hands.doors[arrival.newcomer.listener].is_none() {
            let arrival = hands.lobby.remove(slot);
            let Arrival { newcomer, origin, bytes, filled, header, .. } = arrival;
            return self.let_in(newcomer, origin, &bytes[header..filled], None);
        }
        let (listener, place) = (arrival.newcomer.listener, arrival.origin.place);
        hands.lobby.go_on(slot, Stage::Request(request::Reader::default()), now.after(REQUEST_TIMEOUT));
        self.share_out(listener, place);
        self.read_request(now, slot, has_ended);
    }

    fn read_request(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let hands = &mut self.hands;
        let arrival = &mut hands.lobby.arrivals[slot];
        let bytes = &arrival.bytes[arrival.header..arrival.filled];
        let Stage::Request(reader) = &mut arrival.stage else { return };
        let (verdict, length) = match reader.read(bytes) {
            request::Reading::More if has_ended => {
                let why = (!bytes.is_empty()).then_some("it ended in the middle of its request");
                let arrival = hands.lobby.remove(slot);
                return hands.turn_away(now, arrival, why);
            }
            request::Reading::More => {
                let unavailable = |why| Refusal::unavailable(why, RETRY_AFTER);
                let refusal = match arrival.over {
                    None => return hands.wait(slot),
                    Some(Over::Late) => {
                        let why = format!("no whole request came within {} s", REQUEST_TIMEOUT.as_secs());
                        Refusal::new(Status::RequestTimeout, why)
                    }
                    Some(Over::Surplus) => unavailable(SHARE),
                    Some(Over::Crowded | Over::Closed) => unavailable(CROWDED),
                };
                (Verdict::Refuse(refusal), 0)
            }
            request::Reading::Refused(refusal) => (Verdict::Refuse(refusal), 0),
            request::Reading::Request(request) => {
                let listener = arrival.newcomer.listener;
                let Some(door) = &hands.doors[listener] else { return };
                (door.answer(&self.bus, listener, arrival.origin.clone(), &request), request.length)
            }
        };
        arrival.over = None;
        match verdict {
            Verdict::Refuse(refusal) => hands.refuse(now, slot, &refusal),
            Verdict::Answer(answer) => hands.end_with(now, slot, answer),
            Verdict::Enter { origin, answer, bearer } => {
                let Arrival { newcomer, mut bytes, filled, header, .. } = hands.lobby.remove(slot);
                let Some(door) = &hands.doors[newcomer.listener] else { return };
                let mut web = Web::new(&door.terms, hands.longest_client_line, now);
                web.bearer = bearer.map(|bearer| (newcomer.listener, bearer));
                let mut framing = Framing::default();
                framing.urge(answer.as_bytes());
                // Its first frames may have come with the request.
                let frames = &mut bytes[header + length..];
                let lines = web.decode(&mut framing, now, frames, filled - header - length);
                self.let_in(newcomer, *origin, &frames[..lines], Some((web, framing)));
            }
        }
    }

    /// A connection becomes a client, from which lines have come already.
    fn let_in(&mut self, newcomer: Newcomer, origin: Origin, begun: &[u8], web: Option<(Web, Framing)>) {
        let Newcomer { socket, listener, .. } = newcomer;
        let client = self.add_client(listener, origin, begun, |peer| {
            let connection = Connection::new(peer, Kind::Socket, Descriptor::Owned(socket), None);
            match web {
                Some((web, framing)) => connection.speaking(web, framing),
                None => connection,
            }
        });
        if client.is_none() {
            self.hands.free_descriptor();
        }
    }
}

/// Who came through a proxy.
fn origin(proxy: Place, source: Option<std::net::SocketAddr>, names: Names) -> Origin {
    match source {
        Some(source) => Origin { via: Some(proxy), names, ..Place::Address(source).into() },
        None => Origin { is_proxy: true, names, ..proxy.into() },
    }
}
