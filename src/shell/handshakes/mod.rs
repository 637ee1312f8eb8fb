//! Handshakes: connections that are not clients yet, since the PROXY header with the client's address, or the WebSocket
//! request, is outstanding. They use no client slot, and the core does not know of them until the handshake is complete
//! or has timed out.
//!
//! Invariants: each has exactly one operation in the kernel, and is removed when that completes. Every change of what
//! one waits for, or whether it waits, updates the counts (`state.rs`).

pub(super) mod state;
mod tokens;
pub(super) mod upgrade;

use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use super::connection::Connection;
use super::framing::Framing;
use super::operation::Operation;
use super::reactor::Reactor;
use super::timers::Timer;
use super::turn::Shell;
use super::websocket::WebSocket;
use crate::bus::port::{Input, Moment, Names, Origin, Place, Reason, Source};
use crate::http1::Status;
use crate::io::{Io, Submission};
use crate::proxy::{self, Reading};
use crate::websocket::answer::Refusal;
use crate::websocket::request;
use state::{AcceptedSocket, Over, PendingHandshake, Stage};
use upgrade::{Decision, RETRY_AFTER};

/// Time limit for a PROXY header. A proxy sends it in the first packet; one packet may be lost.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for the request of a WebSocket.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The refusal if its place is needed.
const CROWDED: &str = "more connections wait than there is room for, and it is one of the source that has most of them";
/// The refusal if its source has too many.
const SHARE: &str = "with those that wait to be let in, its source has more connections than this listener takes from one \
                     (listeners[].max_connections)";
/// Time limit for a refused connection to read the reason.
const LINGER: Duration = Duration::from_secs(1);

impl<I: Io> Reactor<I> {
    /// Submits the next operation of a handshake.
    fn wait(&mut self, slot: usize) {
        let handshake = &mut self.handshakes[slot];
        let socket = handshake.accepted.socket.as_raw_fd();
        let receive =
            |room: &mut [u8]| Submission::ReceiveInto { socket, into: room.as_mut_ptr(), bytes: room.len() as u32 };
        let submission = match &mut handshake.stage {
            Stage::Header | Stage::Request(_) => receive(handshake.received.room()),
            Stage::Answer { bytes, sent } => {
                let rest = &bytes[*sent..];
                Submission::Send {
                    socket,
                    from: rest.as_ptr(),
                    bytes: rest.len() as u32,
                    now_or_never: false,
                    more: false,
                }
            }
            Stage::End => receive(handshake.received.waste()),
        };
        // SAFETY: the handshake, its socket and its bytes stay until this completes.
        unsafe { self.io.submit(submission, Operation::Handshake.token(slot)) };
    }

    /// Moves to the next stage, with its deadline.
    fn go_on(&mut self, slot: usize, stage: Stage, deadline: Moment) {
        self.handshakes.go_on(slot, stage);
        self.timers.set(Timer::Handshake(slot), Some(deadline));
    }

    /// Removes a finished handshake.
    fn remove_handshake(&mut self, slot: usize) -> PendingHandshake {
        self.timers.set(Timer::Handshake(slot), None);
        self.handshakes.remove(slot)
    }

    /// Cancels its operation. What happens to the connection is decided when that completes.
    fn end_wait(&mut self, slot: usize, over: Over) {
        self.handshakes.end(slot, over);
        self.timers.set(Timer::Handshake(slot), None);
        self.cancel(Operation::Handshake, slot);
    }

    /// Evicts handshakes beyond the limit, with this many free slots.
    pub(super) fn limit_handshakes(&mut self, free: usize) {
        for _ in 0..self.handshakes.surplus(free) {
            let Some(slot) = self.handshakes.first_to_give_way() else { return };
            self.end_wait(slot, Over::Crowded);
        }
    }

    /// Evicts handshakes of a known source beyond the number of connections that a listener accepts from it. One is
    /// always heard, so that it can be told why it is refused.
    fn keep_share(&mut self, listener: usize, source: Source, room: usize) {
        let is_of = |handshake: &PendingHandshake| handshake.is_request_of(listener, source);
        let waiting = self.handshakes.waiting().filter(|(_, handshake)| is_of(handshake)).count();
        for _ in room.max(1)..waiting {
            let Some(slot) = self.handshakes.first_to_go(is_of) else { return };
            self.end_wait(slot, Over::Surplus);
        }
    }

    /// A handshake has timed out.
    pub(super) fn expire_handshake(&mut self, slot: usize) {
        self.end_wait(slot, Over::Late);
    }

    /// Cancels all handshakes: no connections are admitted any more.
    pub(super) fn cancel_handshakes(&mut self) {
        let waiting: Vec<usize> = self.handshakes.waiting().map(|(slot, _)| slot).collect();
        waiting.into_iter().for_each(|slot| self.end_wait(slot, Over::Closed));
    }

    /// Closes a connection without a client. `why` is sent, unless it left without having sent anything.
    fn turn_away(&mut self, now: Moment, slot: usize, why: Option<&str>) {
        let handshake = self.remove_handshake(slot);
        let address = self.listeners.address(handshake.accepted.acceptor);
        let place = handshake.accepted.place;
        let is_web = matches!(handshake.stage, Stage::Request(_));
        match why {
            Some(why) => {
                let (reason, what) = match is_web {
                    true => (Reason::HandshakeRefused, "a WebSocket is refused"),
                    false => (Reason::ProxyHeader, "a connection is closed"),
                };
                self.tell(now, Input::Stranger { place, reason, text: format!("{what}: on {address} {why}") });
            }
            None => tracing::debug!("{place} left {address} before its handshake was complete"),
        }
        drop(handshake);
        self.free_descriptor();
    }

    /// Sends a final answer to a connection.
    fn end_with(&mut self, now: Moment, slot: usize, answer: String) {
        self.go_on(slot, Stage::Answer { bytes: answer.into_bytes().into(), sent: 0 }, now.after(LINGER));
        self.wait(slot);
    }

    /// Refuses a WebSocket.
    fn refuse(&mut self, now: Moment, slot: usize, refusal: &Refusal) {
        let AcceptedSocket { acceptor, place, .. } = self.handshakes[slot].accepted;
        let address = self.listeners.address(acceptor);
        let text = format!("a WebSocket is refused: on {address} {} ({})", refusal.why, refusal.status.code());
        self.tell(now, Input::Stranger { place, reason: Reason::HandshakeRefused, text });
        self.end_with(now, slot, refusal.to_string());
    }

    /// An operation of a connection with a final answer has completed.
    fn ending_goes_on(&mut self, slot: usize, result: i32) {
        let handshake = &mut self.handshakes[slot];
        let is_over = handshake.over.is_some();
        let goes_on = match (&mut handshake.stage, -result) {
            (_, libc::EAGAIN | libc::EINTR) => true,
            (Stage::Answer { bytes, sent }, _) if result > 0 => {
                *sent += result as usize;
                if *sent == bytes.len() {
                    // Closing at once would discard the answer if there are unread bytes (tcp(7)).
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
        drop(self.remove_handshake(slot));
        self.free_descriptor();
    }
}

impl<I: Io> Shell<I> {
    /// Starts the handshake of a connection: a PROXY header, if one is possible, and the request of a WebSocket, if the
    /// listener speaks that.
    pub(super) fn begin_handshake(&mut self, now: Moment, accepted: AcceptedSocket) {
        let (listener, place) = (accepted.listener, accepted.place);
        let is_introduced = !self.bus.awaits_header(listener, place);
        let (stage, deadline) = match is_introduced {
            false => (Stage::Header, now.after(HEADER_TIMEOUT)),
            true => (Stage::Request(request::Reader::default()), now.after(REQUEST_TIMEOUT)),
        };
        let reactor = &mut self.reactor;
        let speaks_web = reactor.listeners.speaks_web(listener);
        let slot = reactor.handshakes.add(PendingHandshake::new(now, accepted, stage, speaks_web));
        reactor.timers.set(Timer::Handshake(slot), Some(deadline));
        reactor.wait(slot);
        reactor.limit_handshakes(self.bus.free_slots());
        if is_introduced {
            self.share_out(listener, place);
        }
    }

    /// Limits the handshakes of a source when one more starts.
    fn share_out(&mut self, listener: usize, place: Place) {
        let Some(policy) = self.reactor.listeners.policy(listener) else { return };
        // A source named by a token or a trusted proxy is counted once it is known.
        if !policy.names_sources(place)
            && let Some(room) = self.bus.room_of_source(listener, place.source())
        {
            self.reactor.keep_share(listener, place.source(), room);
        }
    }

    /// The operation of a handshake has completed.
    pub(super) fn handshake_step(&mut self, now: Moment, slot: usize, result: i32) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes[slot];
        if handshake.is_told() {
            return reactor.ending_goes_on(slot, result);
        }
        handshake.received.took(result.max(0) as usize);
        let has_ended = match -result {
            libc::EAGAIN | libc::EINTR | libc::ECANCELED => false,
            _ => result <= 0,
        };
        if handshake.over == Some(Over::Closed) {
            return reactor.turn_away(now, slot, None);
        }
        match handshake.stage {
            Stage::Header => self.read_header(now, slot, has_ended),
            _ => self.read_request(now, slot, has_ended),
        }
    }

    fn read_header(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes[slot];
        let is_empty = handshake.received.is_empty();
        let why = match (proxy::read(handshake.received.possible_header()), handshake.over) {
            (Reading::More, None) if !has_ended => return reactor.wait(slot),
            (Reading::Header(header), _) => {
                handshake.origin = origin(handshake.accepted.place, header.source, header.names);
                handshake.received.header = header.length;
                return self.introduced(now, slot, has_ended);
            }
            (Reading::Malformed(why), _) => Some(why.to_owned()),
            (Reading::Other, _) => Some(
                "it does not begin with a PROXY header; let the proxy send one, or take its address out of proxy.from"
                    .to_owned(),
            ),
            (Reading::More, _) if has_ended && is_empty => None,
            (Reading::More, Some(Over::Late)) => {
                Some(format!("no whole PROXY header came within {} s", HEADER_TIMEOUT.as_secs()))
            }
            (Reading::More, Some(Over::Crowded | Over::Surplus)) => Some(CROWDED.to_owned()),
            (Reading::More, _) => Some("it ended in the middle of its PROXY header".to_owned()),
        };
        let (is_crowded, listener) = (handshake.over == Some(Over::Crowded), handshake.accepted.listener);
        if is_crowded && reactor.listeners.speaks_web(listener) {
            reactor.handshakes[slot].over = None;
            return reactor.refuse(now, slot, &Refusal::unavailable(CROWDED, RETRY_AFTER));
        }
        reactor.turn_away(now, slot, why.as_deref());
    }

    /// The client of a connection is known now.
    fn introduced(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let reactor = &mut self.reactor;
        let handshake = &reactor.handshakes[slot];
        let (listener, place) = (handshake.accepted.listener, handshake.origin.place);
        let speaks_mcp = reactor.listeners.speaks_mcp(listener);
        if speaks_mcp || !reactor.listeners.speaks_web(listener) {
            let PendingHandshake { accepted, origin, received, .. } = reactor.remove_handshake(slot);
            return match speaks_mcp {
                true => self.http_connected(now, accepted.socket, listener, origin, received.behind_header()),
                false => self.let_in(accepted, origin, received.behind_header(), None),
            };
        }
        reactor.go_on(slot, Stage::Request(request::Reader::default()), now.after(REQUEST_TIMEOUT));
        self.share_out(listener, place);
        self.read_request(now, slot, has_ended);
    }

    fn read_request(&mut self, now: Moment, slot: usize, has_ended: bool) {
        let reactor = &mut self.reactor;
        let handshake = &mut reactor.handshakes[slot];
        let (over, listener, bytes) = (handshake.over, handshake.accepted.listener, handshake.received.behind_header());
        let Stage::Request(reader) = &mut handshake.stage else { return };
        let (decision, length) = match reader.read(bytes) {
            request::Reading::More if has_ended => {
                let why = (!bytes.is_empty()).then_some("it ended in the middle of its request");
                return reactor.turn_away(now, slot, why);
            }
            request::Reading::More => match over {
                None => return reactor.wait(slot),
                Some(over) => (Decision::Refuse(unheard(over)), 0),
            },
            request::Reading::Refused(refusal) => (Decision::Refuse(refusal), 0),
            request::Reading::Request(request) => {
                let Some(policy) = reactor.listeners.policy(listener) else { return };
                (policy.answer(&self.bus, listener, handshake.origin.clone(), &request), request.length)
            }
        };
        reactor.handshakes[slot].over = None;
        match decision {
            Decision::Refuse(refusal) => reactor.refuse(now, slot, &refusal),
            Decision::Answer(answer) => reactor.end_with(now, slot, answer),
            Decision::Accept { origin, answer, bearer } => {
                let longest = reactor.connections.longest_client_line;
                let Some(policy) = reactor.listeners.policy(listener) else { return };
                let bearer = bearer.map(|bearer| (listener, bearer));
                let mut web = WebSocket::new(&policy.terms, longest, now, bearer);
                let mut framing = Framing::default();
                framing.queue_control(answer.as_bytes());
                let PendingHandshake { accepted, mut received, .. } = reactor.remove_handshake(slot);
                // Its first frames may have arrived with the request.
                let (frames, filled) = received.rest(length);
                let lines = web.decode(&mut framing, now, frames, filled);
                self.let_in(accepted, *origin, &frames[..lines], Some((web, framing)));
            }
        }
    }

    /// Makes a connection a client, some of whose lines were received already.
    fn let_in(&mut self, accepted: AcceptedSocket, origin: Origin, begun: &[u8], web: Option<(WebSocket, Framing)>) {
        let AcceptedSocket { socket, listener, .. } = accepted;
        let client = self.add_client(listener, origin, begun, |peer| {
            let connection = Connection::socket(peer, socket);
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

/// The refusal for an incomplete handshake.
fn unheard(over: Over) -> Refusal {
    match over {
        Over::Late => Refusal::new(
            Status::RequestTimeout,
            format!("no whole request came within {} s", REQUEST_TIMEOUT.as_secs()),
        ),
        Over::Surplus => Refusal::unavailable(SHARE, RETRY_AFTER),
        Over::Crowded | Over::Closed => Refusal::unavailable(CROWDED, RETRY_AFTER),
    }
}

/// The origin of a client behind a proxy.
fn origin(proxy: Place, source: Option<std::net::SocketAddr>, names: Names) -> Origin {
    match source {
        Some(source) => Origin { via: Some(proxy.into()), names: names.into(), ..Place::Address(source).into() },
        None => Origin { is_proxy: true, names: names.into(), ..proxy.into() },
    }
}
