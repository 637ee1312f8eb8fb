//! The lobby: connections whose PROXY header is still to come. They take no slot of a client and are nobody to the core
//! until the header says whom they bring, or their time is up. There are only so many: one more takes the place of the
//! one that has waited longest, since a proxy sends its header with the first packet.
//!
//! Invariant: the kernel holds one receive of each of them, and it goes when that completes.

use std::os::fd::{AsRawFd, OwnedFd};

use slab::Slab;

use super::Shell;
use super::connection::{Connection, Descriptor, Kind};
use super::hands::Hands;
use super::operation::Operation;
use crate::bus::port::{Input, Moment, Names, Origin, Place};
use crate::bus::settings;
use crate::io::{Io, Submission};
use crate::proxy::{self, Reading};

/// How many wait at once at most.
pub(super) const MOST: usize = 256;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Lobby {
    arrivals: Slab<Arrival>,
    /// Nobody's time is up before this; it may be early, never late.
    due: Option<Moment>,
}

/// A connection whose header is still to come.
struct Arrival {
    socket: OwnedFd,
    /// Index of its acceptor.
    acceptor: usize,
    /// Index of its listener in the configuration.
    listener: usize,
    /// The other end.
    place: Place,
    /// It has to begin with a header.
    required: bool,
    since: Moment,
    deadline: Moment,
    /// Why its receive was asked to end.
    over: Option<Over>,
    bytes: Box<[u8; proxy::LONGEST]>,
    filled: usize,
}

/// Why nobody waits for a header any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// It took too long.
    Late,
    /// Another one needs its place.
    Crowded,
    /// The daemon takes no more clients.
    Closed,
}

impl Lobby {
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
}

impl<I: Io> Hands<I> {
    /// Waits for the header of a connection that was just accepted.
    pub(super) fn await_header(
        &mut self,
        now: Moment,
        acceptor: usize,
        listener: usize,
        socket: OwnedFd,
        place: Place,
        proxy: &settings::Proxy,
    ) {
        if self.lobby.waiting().count() >= MOST {
            let oldest = self.lobby.waiting().min_by_key(|(_, arrival)| arrival.since).map(|(slot, _)| slot);
            oldest.into_iter().for_each(|slot| self.end_wait(slot, Over::Crowded));
        }
        let deadline = now.after(proxy.timeout);
        let slot = self.lobby.arrivals.insert(Arrival {
            socket,
            acceptor,
            listener,
            place,
            required: proxy.required,
            since: now,
            deadline,
            over: None,
            bytes: Box::new([0; proxy::LONGEST]),
            filled: 0,
        });
        self.lobby.due = Some(self.lobby.due.map_or(deadline, |due| due.min(deadline)));
        self.receive_header(slot);
    }

    fn receive_header(&mut self, slot: usize) {
        let arrival = &mut self.lobby.arrivals[slot];
        let room = &mut arrival.bytes[arrival.filled..];
        let (into, bytes) = (room.as_mut_ptr(), room.len() as u32);
        debug_assert!(bytes > 0, "as many bytes are a header or none");
        let receive = Submission::ReceiveInto { socket: arrival.socket.as_raw_fd(), into, bytes };
        // SAFETY: the arrival stays, with its socket and its bytes, until this completes.
        unsafe { self.io.submit(receive, Operation::Header.token(slot)) };
    }

    /// Asks for the end of a receive. What becomes of its connection is decided when it completes.
    fn end_wait(&mut self, slot: usize, over: Over) {
        self.lobby.arrivals[slot].over = Some(over);
        self.io.cancel(Operation::Header.token(slot));
    }

    /// Ends the wait of those whose time is up.
    pub(super) fn expire_headers(&mut self, now: Moment) {
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
        let address = &self.acceptors[arrival.acceptor].address;
        match why {
            Some(why) => {
                let why = format!("on {address} {why}");
                self.tell(now, Input::Unintroduced { place: arrival.place, why });
            }
            None => tracing::debug!("{} left {address} before its PROXY header came", arrival.place),
        }
        drop(arrival);
        self.free_descriptor();
    }
}

impl<I: Io> Shell<I> {
    /// The receive of a connection in the lobby has completed.
    pub(super) fn header_came(&mut self, now: Moment, slot: usize, result: i32) {
        let hands = &mut self.hands;
        let arrival = &mut hands.lobby.arrivals[slot];
        if result > 0 {
            arrival.filled += result as usize;
        }
        let reading = proxy::read(&arrival.bytes[..arrival.filled]);
        let has_ended = match -result {
            libc::EAGAIN | libc::EINTR | libc::ECANCELED => false,
            _ => result <= 0,
        };
        if reading == Reading::More && !has_ended && arrival.over.is_none() {
            return hands.receive_header(slot);
        }
        let arrival = hands.lobby.arrivals.remove(slot);
        let is_empty = arrival.filled == 0;
        match (reading, arrival.over) {
            (_, Some(Over::Closed)) => hands.turn_away(now, arrival, None),
            (Reading::Header(header), _) => {
                let origin = origin(arrival.place, header.source, header.names);
                self.let_in(arrival, header.length, origin);
            }
            (Reading::Malformed(why), _) => hands.turn_away(now, arrival, Some(why)),
            (Reading::Other, _) if arrival.required => {
                hands.turn_away(
                    now,
                    arrival,
                    Some("it does not begin with a PROXY header (listeners[].proxy.required)"),
                );
            }
            (Reading::Other, _) => self.let_in_itself(arrival),
            (Reading::More, _) if has_ended && is_empty => hands.turn_away(now, arrival, None),
            // It has said nothing, and need not.
            (Reading::More, Some(Over::Late)) if is_empty && !arrival.required => self.let_in_itself(arrival),
            (Reading::More, Some(Over::Late)) => {
                hands.turn_away(now, arrival, Some("no whole PROXY header came within listeners[].proxy.timeout_ms"));
            }
            (Reading::More, Some(Over::Crowded)) => {
                let why = format!("more than {MOST} connections wait for a PROXY header, and it has waited longest");
                hands.turn_away(now, arrival, Some(&why));
            }
            (Reading::More, None) => hands.turn_away(now, arrival, Some("it ended in the middle of its PROXY header")),
        }
    }

    fn let_in_itself(&mut self, arrival: Arrival) {
        let origin = arrival.place.into();
        self.let_in(arrival, 0, origin);
    }

    /// A connection becomes a client, whose bytes begin behind so many of it.
    fn let_in(&mut self, arrival: Arrival, header: usize, origin: Origin) {
        let Arrival { socket, listener, bytes, filled, .. } = arrival;
        let client = self.add_client(listener, origin, &bytes[header..filled], |peer| {
            Connection::new(peer, Kind::Socket, Descriptor::Owned(socket), None, None)
        });
        if client.is_none() {
            self.hands.free_descriptor();
        }
    }
}

/// Who came through a proxy.
fn origin(proxy: Place, source: Option<std::net::SocketAddr>, names: Names) -> Origin {
    match source {
        Some(source) => Origin { place: Place::Address(source), via: Some(proxy), is_proxy: false, names },
        None => Origin { place: proxy, via: None, is_proxy: true, names },
    }
}
