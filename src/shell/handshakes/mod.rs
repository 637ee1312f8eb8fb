//! The lobby: connections that are no clients yet, since a PROXY header is still to come that says whom they bring, or the
//! request that a WebSocket begins with. They take no slot of a client and are nobody to the core until they have said
//! that, or their time is up. There are as many as there are free slots, and some more, who ask how the daemon is or are
//! told that it is full. One more takes the place of one of the source that has most of them, there of one that has
//! sent nothing, since who means it sends all of it at once, and of those of the one that has waited longest.
//!
//! Invariants: the kernel holds one operation of each of them, and it goes when that completes. Whatever changes what one
//! waits for, or whether, has it counted.

pub(super) mod tokens;
pub(super) mod upgrade;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use slab::Slab;

use crate::bus::port::{Input, Moment, Names, Origin, Place, Source};
use crate::bus::settings;
use crate::http1::Status;
use crate::io::{Io, Submission};
use crate::proxy::{self, Reading};
use crate::shell::Shell;
use crate::shell::connection::{Connection, Descriptor, Kind};
use crate::shell::framing::Framing;
use crate::shell::operation::Operation;
use crate::shell::reactor::Reactor;
use crate::shell::websocket::Web;
use crate::websocket::answer::Refusal;
use crate::websocket::request::{self, LONGEST_HEAD};
use upgrade::{Decision, RETRY_AFTER};

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
pub(super) struct Handshakes {
    pending: Slab<PendingHandshake>,
    /// How many of each source wait to say something.
    sources: HashMap<Source, usize>,
    /// Nobody's time is up before this; it may be early, never late.
    due: Option<Moment>,
    /// So many may be in it beyond the slots that are free.
    beyond: usize,
}

/// A connection that has just been accepted.
pub(super) struct AcceptedSocket {
    pub socket: OwnedFd,
    /// Index of its acceptor.
    pub acceptor: usize,
    /// Index of its listener in the configuration.
    pub listener: usize,
    /// The other end.
    pub place: Place,
}

/// A connection that has something to say before it is a client.
struct PendingHandshake {
    accepted: AcceptedSocket,
    /// Who it is, as far as that is known.
    origin: Origin,
    stage: Stage,
    since: Moment,
    deadline: Moment,
    /// What it is counted as among [`Handshakes::sources`].
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

impl Handshakes {
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
        self.pending.is_empty()
    }

    fn waiting(&self) -> impl Iterator<Item = (usize, &PendingHandshake)> {
        self.pending.iter().filter(|(_, handshake)| handshake.over.is_none())
    }

    /// Whose place is needed first: those who have been told why they go, and then as it stands at the top of the file.
    fn gives_way(&self) -> Option<usize> {
        let told = self.waiting().filter(|(_, handshake)| matches!(handshake.stage, Stage::End));
        told.min_by_key(|(_, handshake)| handshake.since).map(|(slot, _)| slot).or_else(|| {
            let most = self.sources.values().copied().max()?;
            let mut heaviest = self.sources.iter().filter(|(_, count)| **count == most).map(|(source, _)| *source);
            match (heaviest.next(), heaviest.next()) {
                // To look each of them up takes longer.
                (one, None) => self.first_to_go(|handshake| handshake.counted == one),
                _ => self.first_to_go(|handshake| {
                    handshake.counted.is_some_and(|source| self.sources.get(&source) == Some(&most))
                }),
            }
        })
    }

    /// Counts an arrival as what it is now: of a source, while it waits to say something.
    fn count(&mut self, slot: usize) {
        let handshake = &mut self.pending[slot];
        let is = (handshake.over.is_none() && !handshake.is_told()).then(|| handshake.source());
        let was = std::mem::replace(&mut handshake.counted, is);
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
    fn remove(&mut self, slot: usize) -> PendingHandshake {
        let handshake = self.pending.remove(slot);
        self.discount(handshake.counted);
        handshake
    }

    /// Who goes first of those who are chosen and have not been told anything yet.
    fn first_to_go(&self, is_chosen: impl Fn(&PendingHandshake) -> bool) -> Option<usize> {
        let chosen = self.waiting().filter(|(_, handshake)| !handshake.is_told() && is_chosen(handshake));
        chosen.min_by_key(|(_, handshake)| (handshake.has_spoken(), handshake.since)).map(|(slot, _)| slot)
    }

    /// An arrival comes to its next stage, which has to be over at the deadline.
    fn go_on(&mut self, slot: usize, stage: Stage, deadline: Moment) {
        let handshake = &mut self.pending[slot];
        (handshake.stage, handshake.deadline) = (stage, deadline);
        self.count(slot);
        self.wake_at(deadline);
    }

    fn wake_at(&mut self, deadline: Moment) {
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
    }
}

impl PendingHandshake {
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

impl<I: Io> Reactor<I> {
    /// Waits for what a connection has to say first: the header of a proxy, if one may come, and the request of a
    /// WebSocket, if the listener has a door.
    fn begin_handshake(&mut self, now: Moment, accepted: AcceptedSocket, proxy: Option<&settings::Proxy>) {
        let (stage, deadline) = match proxy {
            Some(proxy) => (Stage::Header { required: proxy.required }, now.after(proxy.timeout)),
            None => (Stage::Request(request::Reader::default()), now.after(REQUEST_TIMEOUT)),
        };
        let of_request = if self.policies[accepted.listener].is_some() { LONGEST_HEAD } else { 0 };
        let of_header = if proxy.is_some() { proxy::LONGEST } else { 0 };
        let longest = of_header + of_request;
        let slot = self.handshakes.pending.insert(PendingHandshake {
            origin: accepted.place.into(),
            accepted,
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
        self.handshakes.count(slot);
        self.handshakes.wake_at(deadline);
        self.wait(slot);
    }

    /// Reactor the kernel the next operation of an arrival.
    fn wait(&mut self, slot: usize) {
        let handshake = &mut self.handshakes.pending[slot];
        let socket = handshake.accepted.socket.as_raw_fd();
        let submission = match &mut handshake.stage {
            Stage::Header { .. } | Stage::Request(_) => {
                let mut last = handshake.bytes.len() - 1;
                if handshake.filled == last {
                    last = handshake.longest.min(2 * last);
                    handshake.bytes.resize(last + 1, 0);
                }
                let room = &mut handshake.bytes[handshake.filled..last];
                debug_assert!(!room.is_empty(), "as many bytes are what is awaited or not");
                Submission::ReceiveInto { socket, into: room.as_mut_ptr(), bytes: room.len() as u32 }
            }
            Stage::Answer { bytes, sent } => {
                let rest = &bytes[*sent..];
                Submission::Send { socket, from: rest.as_ptr(), bytes: rest.len() as u32, now_or_never: false }
            }
            Stage::End => {
                let into = handshake.bytes.as_mut_ptr();
                Submission::ReceiveInto { socket, into, bytes: handshake.bytes.len() as u32 }
            }
        };
        // SAFETY: the arrival stays, with its socket and its bytes, until this completes.
        unsafe { self.io.submit(submission, Operation::Handshake.token(slot)) };
    }

    /// Asks for the end of an operation. What becomes of its connection is decided when it completes.
    fn end_wait(&mut self, slot: usize, over: Over) {
        self.handshakes.pending[slot].over = Some(over);
        self.handshakes.count(slot);
        self.io.cancel(Operation::Handshake.token(slot));
    }

    /// There are so many free slots: who is too many gives way.
    pub(super) fn limit_handshakes(&mut self, free: usize) {
        // Those who are asked to go are in it until they have.
        if self.handshakes.pending.len() <= free + self.handshakes.beyond {
            return;
        }
        // An answer that is not sent yet is about to be: cut off, it would not say why.
        let holds =
            self.handshakes.waiting().filter(|(_, handshake)| !matches!(handshake.stage, Stage::Answer { .. })).count();
        for _ in free + self.handshakes.beyond..holds {
            let Some(slot) = self.handshakes.gives_way() else { return };
            self.end_wait(slot, Over::Crowded);
        }
    }

    /// Of a source that has said which it is, no more wait to be let in through a listener than it takes of them. One
    /// is always heard, so that it can be told why it is not taken.
    fn keep_share(&mut self, listener: usize, source: Source, room: usize) {
        let is_of = |handshake: &PendingHandshake| {
            handshake.accepted.listener == listener
                && matches!(handshake.stage, Stage::Request(_))
                && handshake.source() == source
        };
        let waiting = self.handshakes.waiting().filter(|(_, handshake)| is_of(handshake)).count();
        for _ in room.max(1)..waiting {
            let Some(slot) = self.handshakes.first_to_go(is_of) else { return };
            self.end_wait(slot, Over::Surplus);
        }
    }

    /// Ends the wait of those whose time is up.
    pub(super) fn expire_handshakes(&mut self, now: Moment) {
        if self.handshakes.due.is_none_or(|due| due > now) {
            return;
        }
        let late: Vec<usize> = self
            .handshakes
            .waiting()
            .filter(|(_, handshake)| handshake.deadline <= now)
            .map(|(slot, _)| slot)
            .collect();
        late.into_iter().for_each(|slot| self.end_wait(slot, Over::Late));
        self.handshakes.due = self.handshakes.waiting().map(|(_, handshake)| handshake.deadline).min();
    }

    /// Nobody is let in any more.
    pub(super) fn cancel_handshakes(&mut self) {
        let waiting: Vec<usize> = self.handshakes.waiting().map(|(slot, _)| slot).collect();
        waiting.into_iter().for_each(|slot| self.end_wait(slot, Over::Closed));
        self.handshakes.due = None;
    }

    /// Closes a connection that brings nobody. `why` is told, unless it left without having said anything.
    fn turn_away(&mut self, now: Moment, handshake: PendingHandshake, why: Option<&str>) {
        let address = &self.acceptors[handshake.accepted.acceptor].address;
        let place = handshake.accepted.place;
        let is_web = matches!(handshake.stage, Stage::Request(_));
        match why {
            Some(why) => {
                let why = format!("on {address} {why}");
                let input = if is_web { Input::NotUpgraded { place, why } } else { Input::Unintroduced { place, why } };
                self.tell(now, input);
            }
            None => tracing::debug!("{place} left {address} before it had said who it is"),
        }
        drop(handshake);
        self.free_descriptor();
    }

    /// Tells a connection something, with which it ends.
    fn end_with(&mut self, now: Moment, slot: usize, answer: String) {
        self.handshakes.go_on(slot, Stage::Answer { bytes: answer.into_bytes().into(), sent: 0 }, now.after(LINGER));
        self.wait(slot);
    }

    /// Refuses a WebSocket.
    fn refuse(&mut self, now: Moment, slot: usize, refusal: &Refusal) {
        let AcceptedSocket { acceptor, place, .. } = &self.handshakes.pending[slot].accepted;
        let address = &self.acceptors[*acceptor].address;
        let why = format!("on {address} {} ({})", refusal.why, refusal.status.code());
        let place = *place;
        self.tell(now, Input::NotUpgraded { place, why });
        self.end_with(now, slot, refusal.to_string());
    }

    /// An operation of somebody who is being told why it goes has completed.
    fn ending_goes_on(&mut self, slot: usize, result: i32) {
        let handshake = &mut self.handshakes.pending[slot];
        let is_over = handshake.over.is_some();
        let goes_on = match (&mut handshake.stage, -result) {
            (_, libc::EAGAIN | libc::EINTR) => true,
            (Stage::Answer { bytes, sent }, _) if result > 0 => {
                *sent += result as usize;
                if *sent == bytes.len() {
                    // Closed at once, what it has sent and nobody has read would take the answer with it (tcp(7)).
                    let _ = shutdown(&handshake.accepted.socket, Shutdown::Write);
                    handshake.stage = Stage::End;
                }
                true
            }
            (Stage::End, _) => result > 0,
            _ => false,
        };
        if goes_on && !is_over {
            return self.wait(slot);
        }
        drop(self.handshakes.remove(slot));
        self.free_descriptor();
    }
}

impl<I: Io> Shell<I> {
    /// A connection waits for what has to be said first.
    pub(super) fn begin_handshake(&mut self, now: Moment, accepted: AcceptedSocket) {
        let (listener, place) = (accepted.listener, accepted.place);
        let proxy = self.bus.awaits_header(listener, place);
        let is_introduced = proxy.is_none();
        self.reactor.begin_handshake(now, accepted, proxy);
        self.reactor.limit_handshakes(self.bus.free_slots());
        if is_introduced {
            self.share_out(listener, place);
        }
    }

    /// One more from there waits to be let in.
    fn share_out(&mut self, listener: usize, place: Place) {
        let Some(policy) = &self.reactor.policies[listener] else { return };
        // Whom a token or a trusted proxy names is counted when that is known.
        if !policy.names_sources(place)
            && let Some(room) = self.bus.room_of_source(listener, place.source())
        {
            self.reactor.keep_share(listener, place.source(), room);
        }
    }

    /// The operation of a connection in the handshakes has completed.
    pub(super) fn handshake_step(&mut self, now: Moment, slot: usize, result: i32) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes.pending[slot];
        if matches!(handshake.stage, Stage::Answer { .. } | Stage::End) {
            return reactor.ending_goes_on(slot, result);
        }
        if result > 0 {
            handshake.filled += result as usize;
        }
        let has_ended = match -result {
            libc::EAGAIN | libc::EINTR | libc::ECANCELED => false,
            _ => result <= 0,
        };
        if handshake.over == Some(Over::Closed) {
            let handshake = reactor.handshakes.remove(slot);
            return reactor.turn_away(now, handshake, None);
        }
        match handshake.stage {
            Stage::Header { required } => self.read_header(now, slot, required, has_ended),
            _ => self.read_request(now, slot, has_ended),
        }
    }

    fn read_header(&mut self, now: Moment, slot: usize, required: bool, has_ended: bool) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes.pending[slot];
        let is_empty = handshake.filled == 0;
        let reading = proxy::read(&handshake.bytes[..handshake.filled.min(proxy::LONGEST)]);
        let why = match (reading, handshake.over) {
            (Reading::More, None) if !has_ended => return reactor.wait(slot),
            (Reading::Header(header), _) => {
                handshake.origin = origin(handshake.accepted.place, header.source, header.names);
                handshake.header = header.length;
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
                handshake.over = None;
                return self.introduced(now, slot, has_ended);
            }
            (Reading::More, Some(Over::Late)) => {
                Some("no whole PROXY header came within listeners[].proxy.timeout_ms".to_owned())
            }
            (Reading::More, Some(Over::Crowded | Over::Surplus)) => Some(CROWDED.to_owned()),
            (Reading::More, _) => Some("it ended in the middle of its PROXY header".to_owned()),
        };
        if handshake.over == Some(Over::Crowded) && reactor.policies[handshake.accepted.listener].is_some() {
            handshake.over = None;
            return reactor.refuse(now, slot, &Refusal::unavailable(CROWDED, RETRY_AFTER));
        }
        let handshake = reactor.handshakes.remove(slot);
        reactor.turn_away(now, handshake, why.as_deref());
    }

    /// It is known whom a connection brings.
    fn introduced(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes.pending[slot];
        if reactor.policies[handshake.accepted.listener].is_none() {
            let handshake = reactor.handshakes.remove(slot);
            let PendingHandshake { accepted, origin, bytes, filled, header, .. } = handshake;
            return self.let_in(accepted, origin, &bytes[header..filled], None);
        }
        let (listener, place) = (handshake.accepted.listener, handshake.origin.place);
        reactor.handshakes.go_on(slot, Stage::Request(request::Reader::default()), now.after(REQUEST_TIMEOUT));
        self.share_out(listener, place);
        self.read_request(now, slot, has_ended);
    }

    fn read_request(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes.pending[slot];
        let bytes = &handshake.bytes[handshake.header..handshake.filled];
        let Stage::Request(reader) = &mut handshake.stage else { return };
        let (verdict, length) = match reader.read(bytes) {
            request::Reading::More if has_ended => {
                let why = (!bytes.is_empty()).then_some("it ended in the middle of its request");
                let handshake = reactor.handshakes.remove(slot);
                return reactor.turn_away(now, handshake, why);
            }
            request::Reading::More => {
                let unavailable = |why| Refusal::unavailable(why, RETRY_AFTER);
                let refusal = match handshake.over {
                    None => return reactor.wait(slot),
                    Some(Over::Late) => {
                        let why = format!("no whole request came within {} s", REQUEST_TIMEOUT.as_secs());
                        Refusal::new(Status::RequestTimeout, why)
                    }
                    Some(Over::Surplus) => unavailable(SHARE),
                    Some(Over::Crowded | Over::Closed) => unavailable(CROWDED),
                };
                (Decision::Refuse(refusal), 0)
            }
            request::Reading::Refused(refusal) => (Decision::Refuse(refusal), 0),
            request::Reading::Request(request) => {
                let listener = handshake.accepted.listener;
                let Some(policy) = &reactor.policies[listener] else { return };
                (policy.answer(&self.bus, listener, handshake.origin.clone(), &request), request.length)
            }
        };
        handshake.over = None;
        match verdict {
            Decision::Refuse(refusal) => reactor.refuse(now, slot, &refusal),
            Decision::Answer(answer) => reactor.end_with(now, slot, answer),
            Decision::Accept { origin, answer, bearer } => {
                let PendingHandshake { accepted, mut bytes, filled, header, .. } = reactor.handshakes.remove(slot);
                let Some(policy) = &reactor.policies[accepted.listener] else { return };
                let mut web = Web::new(&policy.terms, reactor.longest_client_line, now);
                web.bearer = bearer.map(|bearer| (accepted.listener, bearer));
                let mut framing = Framing::default();
                framing.queue_control(answer.as_bytes());
                // Its first frames may have come with the request.
                let frames = &mut bytes[header + length..];
                let lines = web.decode(&mut framing, now, frames, filled - header - length);
                self.let_in(accepted, *origin, &frames[..lines], Some((web, framing)));
            }
        }
    }

    /// A connection becomes a client, from which lines have come already.
    fn let_in(&mut self, accepted: AcceptedSocket, origin: Origin, begun: &[u8], web: Option<(Web, Framing)>) {
        let AcceptedSocket { socket, listener, .. } = accepted;
        let client = self.add_client(listener, origin, begun, |peer| {
            let connection = Connection::new(peer, Kind::Socket, Descriptor::Owned(socket), None);
            match web {
                Some((web, framing)) => connection.speaking(web, framing),
                None => connection,
            }
        });
        if client.is_none() {
            self.reactor.free_descriptor();
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
