//! Clients that speak WebSocket: `door.rs` says who may become one, `tokens.rs` whose tokens are good, and this file what
//! their frames mean to the shell. To the core they are clients like any other: lines come and lines go.

pub(super) mod door;
mod tokens;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::connection::{Closing, Connection, End};
use super::hands::Hands;
use super::outbox::Outbox;
use crate::bus::port::{Input, Moment, Peer, Reason};
use crate::io::Io;
use crate::websocket::close::{self, Fault};
use crate::websocket::frame::{Decoder, Event, Received};
use crate::websocket::{Role, encode};

/// What a connection is that speaks WebSocket.
pub(super) struct Web {
    decoder: Decoder,
    /// Why nothing more of it is read.
    ending: Option<Ending>,
    /// The core knows that.
    is_told: bool,
    /// The code and the reason that it is closed with, once the core closes it.
    goodbye: Option<(Option<u16>, &'static str)>,
    /// When its last bytes came.
    heard: Moment,
    ping: Option<Duration>,
    pong_timeout: Duration,
    /// It was pinged then, and has said nothing since.
    pinged: Option<Moment>,
    /// Tells its entry among the pings from that of another connection in the same slot.
    number: u64,
}

/// Why a connection says nothing more that is looked at.
#[derive(Clone, Copy)]
enum Ending {
    /// It said so, with this code.
    Left(Option<u16>),
    /// It has broken the protocol.
    Fault(Fault),
}

impl Web {
    /// One that has just been let in through a listener on these terms.
    pub(super) fn new(terms: &crate::config::Web, longest: usize, now: Moment) -> Self {
        Self {
            decoder: Decoder::new(Role::Server, longest as u64),
            ending: None,
            is_told: false,
            goodbye: None,
            heard: now,
            ping: terms.ping,
            pong_timeout: terms.pong_timeout,
            pinged: None,
            number: 0,
        }
    }

    /// Turns the first `received` of `bytes`, which has room for one more, into lines where they lie: says how many bytes
    /// these are. Pings are answered by way of `answer`.
    pub(super) fn decode(
        &mut self,
        now: Moment,
        bytes: &mut [u8],
        received: usize,
        mut answer: impl FnMut(&[u8]),
    ) -> usize {
        (self.heard, self.pinged) = (now, None);
        let mut received = Received::new(bytes, received);
        while let Some(event) = self.decoder.next(&mut received) {
            match event {
                Event::Ping(payload) => answer(payload),
                Event::Close { code, .. } => self.ending = Some(Ending::Left(code)),
                Event::Fault(fault) => self.ending = Some(Ending::Fault(fault)),
                // Binary messages are ignored (ACP's remote transport).
                Event::Text { .. } | Event::Pong(_) | Event::Binary { .. } => {}
            }
        }
        received.text()
    }

    /// The same for one with this outbox.
    pub(super) fn decode_for(&mut self, outbox: &mut Outbox, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        self.decode(now, bytes, received, |payload| {
            if let Some(framing) = outbox.framing() {
                framing.answer(payload);
            }
        })
    }

    /// Whether what comes is not looked at any more, and the core is still to be told.
    pub(super) fn has_ended(&self) -> bool {
        self.ending.is_some() && !self.is_told
    }

    /// Whether the core knows that it has ended.
    pub(super) fn was_told(&self) -> bool {
        self.is_told
    }

    /// What it is closed with, now that the core wants it closed for this reason.
    fn goodbye(&self, why: Reason) -> (Option<u16>, &'static str) {
        match self.ending {
            // RFC 6455, section 5.5.1: a close is answered with its own code.
            Some(Ending::Left(code)) => return (code, ""),
            Some(Ending::Fault(Fault { code, reason })) => return (Some(code), reason),
            None => {}
        }
        let code = match why {
            Reason::ClientClosed => close::NORMAL,
            Reason::ShuttingDown => close::GOING_AWAY,
            Reason::ClientMalformed => close::INVALID_DATA,
            Reason::ClientLineTooLong => close::TOO_BIG,
            Reason::ConnectionLimit | Reason::MemoryLimit => close::TRY_AGAIN_LATER,
            _ => close::POLICY_VIOLATION,
        };
        (Some(code), why.name())
    }
}

/// When which connection is looked after next: whether it is to be pinged, or has not answered.
#[derive(Default)]
pub(super) struct Pings {
    due: BinaryHeap<Reverse<(Moment, usize, u64)>>,
    /// Of the last connection.
    number: u64,
}

impl Pings {
    /// When somebody has to be looked after.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }
}

/// Between a tenth and all of a period, different for each number, so that those who came together are not pinged together.
fn spread(period: Duration, number: u64) -> Duration {
    // The golden ratio: the parts of numbers in a row lie far from each other.
    let part = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    period.mul_f64(0.1 + 0.9 * part as f64 / (1 << 24) as f64)
}

impl<I: Io> Hands<I> {
    /// Frames of a WebSocket were decoded: what they want beside their lines is done.
    pub(super) fn after_frames(&mut self, now: Moment, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(outbox) = connection.outbox.framing() else { return };
        if outbox.urgent_waits() {
            self.mark_dirty(slot);
        }
        self.tell_ending(now, slot);
    }

    /// Tells the core that a WebSocket has said its last, once it has all its lines.
    pub(super) fn tell_ending(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[slot];
        let waits = connection.paused || connection.resuming;
        let (Some(web), Peer::Client(client)) = (&mut connection.web, connection.peer) else { return };
        let Some(ending) = web.ending.filter(|_| !web.is_told && !waits) else { return };
        web.is_told = true;
        let input = match ending {
            Ending::Left(_) => Input::Left { client },
            Ending::Fault(Fault { code, reason }) => {
                let is_too_long = code == close::TOO_BIG;
                let why = format!("{reason} (WebSocket close code {code})");
                Input::Faulty { client, why, is_too_long }
            }
        };
        self.tell(now, input);
    }

    /// The core closes a client for this reason: what a WebSocket is told with its last frame.
    pub(super) fn prepare_goodbye(&mut self, slot: usize, why: Reason) {
        if let Some(web) = &mut self.connections[slot].web {
            let goodbye = web.goodbye(why);
            web.goodbye.get_or_insert(goodbye);
        }
    }

    /// Queues the last frame of a WebSocket, if it is still to come. True if it was queued now.
    pub(super) fn say_goodbye(&mut self, slot: usize) -> bool {
        let connection = &mut self.connections[slot];
        let Some((code, reason)) = connection.web.as_mut().and_then(|web| web.goodbye.take()) else { return false };
        let Some(framing) = connection.outbox.framing() else { return false };
        framing.urge(&encode::close(code, reason, None));
        if let Some(web) = &mut connection.web {
            web.ping = None;
        }
        true
    }

    /// A WebSocket is pinged from now on when it is silent.
    pub(super) fn begin_pings(&mut self, now: Moment, slot: usize) {
        self.pings.number += 1;
        let number = self.pings.number;
        let Some(web) = &mut self.connections[slot].web else { return };
        web.number = number;
        if let Some(period) = web.ping {
            self.pings.due.push(Reverse((now.after(spread(period, number)), slot, number)));
        }
    }

    /// Pings those who have been silent, and ends those who do not answer.
    pub(super) fn ping(&mut self, now: Moment) {
        while let Some(Reverse((_, slot, number))) = self.pings.due.peek().filter(|due| due.0.0 <= now).copied() {
            self.pings.due.pop();
            let due = self.ping_one(now, slot, number);
            self.pings.due.extend(due.map(|at| Reverse((at, slot, number))));
        }
    }

    /// Looks after one connection, and says when it is looked after again.
    fn ping_one(&mut self, now: Moment, slot: usize, number: u64) -> Option<Moment> {
        let connection = self.connections.get_mut(slot)?;
        let Connection { web: Some(web), outbox, peer, closing, end, .. } = connection else { return None };
        // One that has ended what it says answers nothing, and one that is being closed need not.
        let is_asked = web.number == number && *closing < Closing::AfterFlush && *end == End::Open;
        let period = web.ping.filter(|_| is_asked)?;
        // Whoever is not read cannot be heard, and whoever has something to take shows by that whether it lives.
        let is_watched_otherwise = connection.paused || !outbox.is_empty();
        if let Some(pinged) = web.pinged.filter(|_| !connection.paused) {
            let late = pinged.after(web.pong_timeout);
            if late > now {
                return Some(late);
            }
            let (peer, seconds) = (*peer, web.pong_timeout.as_secs());
            self.broken(now, slot, peer, format!("it has not answered a ping within {seconds} s"));
            return None;
        }
        if is_watched_otherwise {
            return Some(now.after(period));
        }
        let silent_until = web.heard.after(period);
        if silent_until > now {
            return Some(silent_until);
        }
        web.pinged = Some(now);
        let timeout = web.pong_timeout;
        if let Some(framing) = outbox.framing() {
            framing.urge(&encode::ping(b"", None));
        }
        self.mark_dirty(slot);
        Some(now.after(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_come_together_are_not_pinged_together() {
        let period = Duration::from_secs(30);
        let mut firsts: Vec<u128> = (1..=1000).map(|number| spread(period, number).as_millis()).collect();
        firsts.sort_unstable();
        assert!(firsts[0] >= 3000 && firsts[999] <= 30_000, "{} {}", firsts[0], firsts[999]);
        let farthest = firsts.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(farthest < Some(100), "{farthest:?} ms without one of a thousand");
    }
}
