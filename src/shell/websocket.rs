//! Clients that speak WebSocket: what their frames mean to the shell. Who may become one is said in `handshakes`. To the core they are clients like any other: lines come and lines go.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

use super::connection::{Closing, Connection, End};
use super::framing::Framing;
use super::reactor::Reactor;
use crate::bus::port::{Input, Moment, Peer, Reason};
use crate::io::Io;
use crate::tokens::Bearer;
use crate::websocket::close::{self, Fault};
use crate::websocket::frame::{Decoder, Event, Received};
use crate::websocket::{Role, encode};

/// What a connection is that speaks WebSocket.
pub(super) struct Web {
    decoder: Decoder,
    /// By whose token it came in, and through which listener.
    pub bearer: Option<(usize, Bearer)>,
    binary: Binary,
    /// Why nothing more of it is read.
    ending: Option<Ending>,
    /// The core knows that.
    is_told: bool,
    /// The code and the reason that it is closed with, once the core closes it.
    close_frame: Option<(Option<u16>, &'static str)>,
    /// That was queued, and nothing comes after it.
    close_frame_queued: bool,
    /// When its last bytes came.
    heard: Moment,
    ping: Option<Duration>,
    /// When it is pinged next, if it is silent then: once in each period, at a moment of its own.
    turn: Moment,
    pong_timeout: Duration,
    /// It was pinged then, and has said nothing since.
    pinged: Option<Moment>,
    /// Tells its entry among the pings from that of another connection in the same slot.
    number: u64,
}

/// Whether a binary message has come, and the core knows that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Binary {
    Never,
    Seen,
    Told,
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
            bearer: None,
            binary: Binary::Never,
            ending: None,
            is_told: false,
            close_frame: None,
            close_frame_queued: false,
            heard: now,
            ping: terms.ping,
            turn: now,
            pong_timeout: terms.pong_timeout,
            pinged: None,
            number: 0,
        }
    }

    /// Turns the first `received` of `bytes`, which has room for one more, into lines where they lie: says how many bytes
    /// these are. Pings are answered in what goes out.
    pub(super) fn decode(&mut self, framing: &mut Framing, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        (self.heard, self.pinged) = (now, None);
        let mut received = Received::new(bytes, received);
        while let Some(event) = self.decoder.next(&mut received) {
            match event {
                Event::Ping(payload) => framing.answer(payload),
                Event::Close { code, .. } => self.ending = Some(Ending::Left(code)),
                Event::Fault(fault) => self.ending = Some(Ending::Fault(fault)),
                // Binary messages are ignored (ACP's remote transport).
                Event::Binary { .. } if self.binary == Binary::Never => self.binary = Binary::Seen,
                Event::Text { .. } | Event::Pong(_) | Event::Binary { .. } => {}
            }
        }
        received.text()
    }

    /// Its turn has come: it has the next one a period later, whatever it says meanwhile. Otherwise those who speak at the
    /// same time, as all do after a restart, would be pinged at the same time for as long as they live.
    fn next_turn(&mut self, now: Moment, period: Duration) {
        self.turn = self.turn.after(period);
        if self.turn <= now {
            self.turn = now.after(period);
        }
    }

    /// When this one, which was to be looked after before, has to be.
    fn due(&self) -> Moment {
        match self.pinged {
            Some(pinged) => pinged.after(self.pong_timeout),
            None => self.turn,
        }
    }

    /// Whether what comes is not looked at any more, and the core is still to be told.
    pub(super) fn has_ended(&self) -> bool {
        self.ending.is_some() && !self.is_told
    }

    /// Whether the core knows that it has ended.
    pub(super) fn was_told(&self) -> bool {
        self.is_told
    }

    /// Whether the end of the connection comes behind what is sent now.
    pub(super) fn close_frame_queued(&self) -> bool {
        self.close_frame_queued
    }

    /// What it is closed with, now that the core wants it closed for this reason.
    fn close_frame_for(&self, why: Reason) -> (Option<u16>, &'static str) {
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
            Reason::OwnWorkerEnded => close::INTERNAL_ERROR,
            _ => close::POLICY_VIOLATION,
        };
        (Some(code), why.name())
    }
}

/// So many connections that have gone wait to be looked after, at least, before they are forgotten.
const MOST_GONE: usize = 1024;

/// When which connection is looked after next: whether it is to be pinged, or has not answered.
#[derive(Default)]
pub(super) struct Pings {
    due: BinaryHeap<Reverse<(Moment, usize, u64)>>,
    /// Of the last connection.
    number: u64,
}

impl Pings {
    /// Forgets connections that have gone before they were looked after, if they are many beside so many that there are.
    fn forget(&mut self, there_are: usize, is_there: impl Fn(usize, u64) -> bool) {
        if self.due.len() > 2 * there_are + MOST_GONE {
            self.due.retain(|Reverse((_, slot, number))| is_there(*slot, *number));
        }
    }
}

/// Between a tenth and all of a period, different for each number, so that those who came together are not pinged together.
fn spread(period: Duration, number: u64) -> Duration {
    // The golden ratio: the parts of numbers in a row lie far from each other.
    let part = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    period.mul_f64(0.1 + 0.9 * part as f64 / (1 << 24) as f64)
}

impl<I: Io> Reactor<I> {
    /// Frames of a WebSocket were decoded: what they want beside their lines is done.
    pub(super) fn after_frames(&mut self, now: Moment, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(outbox) = connection.outbox.framing() else { return };
        if outbox.control_waits() {
            self.mark_dirty(slot);
        }
        let connection = &mut self.connections[slot];
        if let (Some(web), Peer::Client(client)) = (&mut connection.web, connection.peer)
            && web.binary == Binary::Seen
        {
            web.binary = Binary::Told;
            self.tell(now, Input::BinaryIgnored { client });
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
    pub(super) fn set_close_frame(&mut self, slot: usize, why: Reason) {
        if let Some(web) = &mut self.connections[slot].web {
            let close_frame = web.close_frame_for(why);
            web.close_frame.get_or_insert(close_frame);
        }
    }

    /// Queues the last frame of a WebSocket, if it is still to come. True if it was queued now.
    pub(super) fn queue_close_frame(&mut self, slot: usize) -> bool {
        let connection = &mut self.connections[slot];
        let Some((code, reason)) = connection.web.as_mut().and_then(|web| web.close_frame.take()) else { return false };
        let Some(framing) = connection.outbox.framing() else { return false };
        framing.queue_control(&encode::close(code, reason, None));
        if let Some(web) = &mut connection.web {
            (web.ping, web.close_frame_queued) = (None, true);
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
            web.turn = now.after(spread(period, number));
            self.pings.due.push(Reverse((web.turn, slot, number)));
            let connections = &self.connections;
            self.pings.forget(connections.len(), |slot, number| {
                let web = connections.get(slot).and_then(|connection| connection.web.as_ref());
                web.is_some_and(|web| web.number == number)
            });
        }
    }

    /// When somebody has to be looked after. Those whose answer has come in time do not have to be.
    pub(super) fn next_ping(&mut self) -> Option<Moment> {
        let connections = &self.connections;
        loop {
            let mut first = self.pings.due.peek_mut()?;
            let Reverse((at, slot, number)) = *first;
            let web = connections.get(slot).and_then(|connection| connection.web.as_ref());
            match web.filter(|web| web.number == number && web.ping.is_some()) {
                Some(web) if web.due() > at => first.0.0 = web.due(),
                Some(_) => return Some(at),
                None => drop(PeekMut::pop(first)),
            }
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
        if web.turn > now {
            return Some(web.turn);
        }
        web.next_turn(now, period);
        if is_watched_otherwise || web.heard.after(period / 2) > now {
            return Some(web.turn);
        }
        web.pinged = Some(now);
        let due = web.due();
        if let Some(framing) = outbox.framing() {
            framing.queue_control(&encode::ping(b"", None));
        }
        self.mark_dirty(slot);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_only_come_and_go_are_forgotten_before_they_would_be_pinged() {
        let (mut pings, last) = (Pings::default(), 100_000);
        for number in 1..=last {
            pings.due.push(Reverse((Moment::default(), 0, number)));
            pings.forget(1, |_, one| one == number || one == 7);
            assert!(pings.due.len() <= MOST_GONE + 3, "{}", pings.due.len());
        }
        let numbers: Vec<u64> = pings.due.iter().map(|Reverse((.., number))| *number).collect();
        assert!(numbers.contains(&7) && numbers.contains(&last), "those that are there stay");
    }

    #[test]
    fn those_who_speak_together_are_not_pinged_together() {
        let (period, begin) = (Duration::from_secs(30), Moment::default());
        let terms = crate::config::Web { ping: Some(period), ..crate::config::Web::default() };
        for number in 1..=100 {
            let mut web = Web::new(&terms, 1 << 20, begin);
            web.turn = begin.after(spread(period, number));
            let first = web.turn;
            web.decode(&mut Framing::default(), begin.after(Duration::from_millis(2500)), &mut [0x81, 0], 1);
            web.next_turn(first, period);
            assert_eq!(web.due(), first.after(period), "what it says does not move its turn");
            web.pinged = Some(web.turn);
            assert_eq!(web.due(), web.turn.after(web.pong_timeout));
            web.decode(&mut Framing::default(), web.turn, &mut [0x81, 0], 1);
            web.next_turn(web.turn, period);
            assert_eq!(web.due(), first.after(2 * period), "an answer in time leaves nothing to wait for");
        }
        let mut late = Web::new(&terms, 1 << 20, begin);
        let awake = begin.after(Duration::from_secs(3600));
        late.next_turn(awake, period);
        assert_eq!(late.turn, awake.after(period), "turns that went by are not made up for");
    }

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
