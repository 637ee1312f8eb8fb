//! The state of a WebSocket connection: its decoder, its close, and its WebSocket pings. To the core it is a client like
//! any other.

use std::time::Duration;

use super::websocket_output::WebSocketOutput;
use crate::bus::port::{Moment, Reason};
use crate::websocket::Role;
use crate::websocket::close::{self, Violation};
use crate::websocket::encode;
use crate::websocket::frame::{Decoder, FrameEvent, Received};

pub(super) struct WebSocket {
    decoder: Decoder,
    /// Of its output.
    pub output: WebSocketOutput,
    /// A binary message was received, and reported to the core.
    pub saw_binary: bool,
    pub has_reported_binary: bool,
    /// Why its input is no longer processed.
    pub ending: Option<Ending>,
    /// Its end was reported to the core.
    pub is_reported: bool,
    /// The code and reason of its close frame, once the core closes it.
    close_frame: Option<(Option<u16>, &'static str)>,
    /// That frame was queued, and nothing follows it.
    pub close_frame_queued: bool,
    /// Its pings and pongs.
    pub heartbeat: Heartbeat,
}

/// Why a connection's input is no longer processed.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// The client has closed it, with this code.
    Left(Option<u16>),
    /// The client has violated the protocol.
    Fault(Violation),
}

impl WebSocket {
    /// A connection that was just admitted through a listener with these terms.
    pub(super) fn new(terms: &crate::config::Web, longest: usize, now: Moment) -> Self {
        Self {
            decoder: Decoder::new(Role::Server, longest as u64),
            output: WebSocketOutput::default(),
            saw_binary: false,
            has_reported_binary: false,
            ending: None,
            is_reported: false,
            close_frame: None,
            close_frame_queued: false,
            heartbeat: Heartbeat::new(terms.ping, terms.pong_timeout, now),
        }
    }

    /// Decodes the first `received` of `bytes`, which has room for one more, to lines in place, and returns the length
    /// of the lines. Pings are answered in the output.
    pub(super) fn decode(&mut self, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        self.heartbeat.last_received(now);
        let mut received = Received::new(bytes, received);
        while let Some(event) = self.decoder.next(&mut received) {
            match event {
                FrameEvent::Ping(payload) => self.output.answer(payload),
                FrameEvent::Close { code, .. } => self.ending = Some(Ending::Left(code)),
                FrameEvent::Fault(fault) => self.ending = Some(Ending::Fault(fault)),
                // Binary messages are ignored (ACP's remote transport).
                FrameEvent::Binary { .. } => self.saw_binary = true,
                FrameEvent::Pong(_) => self.heartbeat.awaits_pong = false,
                FrameEvent::Text { .. } => {}
            }
        }
        received.text()
    }

    /// Whether the end of its input has not been reported to the core yet.
    pub(super) fn has_unreported_end(&self) -> bool {
        self.ending.is_some() && !self.is_reported
    }

    /// Whether the client has sent its close frame and sends nothing after it: no message (RFC 6455, section 5.5.1), and no
    /// pong, which it might while our ping is under way (section 5.5.2).
    pub(super) fn has_left(&self) -> bool {
        matches!(self.ending, Some(Ending::Left(_))) && !self.heartbeat.awaits_pong
    }

    /// Its ending, if it was not reported to the core. Returns it only once.
    pub(super) fn take_ending(&mut self) -> Option<Ending> {
        let ending = self.ending.filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(ending)
    }

    /// The core closes it for this reason: sets its close frame.
    pub(super) fn set_close_frame(&mut self, why: Reason) {
        let code = match why {
            Reason::ClientClosed => close::NORMAL,
            Reason::ShuttingDown => close::GOING_AWAY,
            Reason::ClientMalformed => close::INVALID_DATA,
            Reason::ClientLineTooLong => close::TOO_BIG,
            Reason::ConnectionLimit | Reason::MemoryLimit => close::TRY_AGAIN_LATER,
            Reason::OwnWorkerEnded => close::INTERNAL_ERROR,
            _ => close::POLICY_VIOLATION,
        };
        self.close_frame.get_or_insert(match self.ending {
            // RFC 6455, section 5.5.1: a close is answered with its own code.
            Some(Ending::Left(code)) => (code, ""),
            Some(Ending::Fault(Violation { code, reason })) => (Some(code), reason),
            None => (Some(code), why.name()),
        });
    }

    /// Queues the close frame, if it has one and has not queued it. Stops pings. Returns whether it did.
    pub(super) fn queue_close_frame(&mut self) -> bool {
        let Some((code, reason)) = self.close_frame.take() else { return false };
        self.output.queue_control(&encode::close(code, reason, None));
        self.close_frame_queued = true;
        self.heartbeat.stop();
        true
    }
}

/// The pings of a silent connection: once in each period, at a moment of its own.
pub(super) struct Heartbeat {
    period: Option<Duration>,
    pong_timeout: Duration,
    /// When its last bytes were received.
    last_received: Moment,
    /// When it is pinged next, if it is silent then.
    turn: Moment,
    /// When it was pinged, if it has been silent since.
    pinged: Option<Moment>,
    /// It was pinged, and no pong has come since.
    awaits_pong: bool,
    /// When it has to be checked, if it is pinged at all.
    pub due: Option<Moment>,
}

/// What to do about a connection now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeartbeatAction {
    Nothing,
    Ping,
    /// It has not answered for this long.
    Dead(Duration),
}

impl Heartbeat {
    fn new(period: Option<Duration>, pong_timeout: Duration, now: Moment) -> Self {
        Self { period, pong_timeout, last_received: now, turn: now, pinged: None, awaits_pong: false, due: None }
    }

    /// Starts the pings. Connections accepted together have consecutive numbers.
    pub(super) fn begin(&mut self, now: Moment, number: u64) {
        if let Some(period) = self.period {
            self.turn = now.after(spread(period, number));
            self.due = Some(self.turn);
        }
    }

    /// Stops the pings.
    pub(super) fn stop(&mut self) {
        (self.period, self.due) = (None, None);
    }

    fn last_received(&mut self, now: Moment) {
        self.last_received = now;
        if self.pinged.take().is_some() {
            // It has answered in time: the next check is at its next ping.
            self.due = self.due.map(|_| self.turn);
        }
    }

    /// Decides what to do, if a check is due. From a connection that is not read nothing is received, and one with pending
    /// output shows by that whether it is alive.
    pub(super) fn check(&mut self, now: Moment, is_read: bool, has_output: bool) -> HeartbeatAction {
        let Some(period) = self.period.filter(|_| self.due.is_some_and(|due| due <= now)) else {
            return HeartbeatAction::Nothing;
        };
        if let Some(pinged) = self.pinged.filter(|_| is_read) {
            let late = pinged.after(self.pong_timeout);
            if late <= now {
                self.stop();
                return HeartbeatAction::Dead(self.pong_timeout);
            }
            self.due = Some(late);
            return HeartbeatAction::Nothing;
        }
        if self.turn > now {
            self.due = Some(self.turn);
            return HeartbeatAction::Nothing;
        }
        // The next ping is one period later, regardless of what is received meanwhile. Otherwise connections that are
        // active at the same time, as all are after a restart, would be pinged at the same time from then on.
        let next = self.turn.after(period);
        self.turn = if next > now { next } else { now.after(period) };
        if !is_read || has_output || self.last_received.after(period / 2) > now {
            self.due = Some(self.turn);
            return HeartbeatAction::Nothing;
        }
        (self.pinged, self.awaits_pong) = (Some(now), true);
        self.due = Some(now.after(self.pong_timeout));
        HeartbeatAction::Ping
    }
}

/// Between a tenth and all of a period, different for each number, so that connections accepted together are not pinged
/// together.
fn spread(period: Duration, number: u64) -> Duration {
    // The golden ratio spreads consecutive numbers far apart.
    let part = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    period.mul_f64(0.1 + 0.9 * part as f64 / (1 << 24) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_active_together_are_not_pinged_together() {
        let (period, timeout, begin) = (Duration::from_secs(30), Duration::from_secs(10), Moment::default());
        for number in 1..=100 {
            let mut beat = Heartbeat::new(Some(period), timeout, begin);
            beat.begin(begin, number);
            let first = beat.turn;
            beat.last_received(begin.after(Duration::from_millis(2500)));
            assert_eq!(beat.check(first, true, true), HeartbeatAction::Nothing, "it has something to take");
            assert_eq!(beat.due, Some(first.after(period)), "what it says does not move its turn");
            let second = beat.turn;
            assert_eq!(beat.check(second, true, false), HeartbeatAction::Ping);
            assert_eq!(beat.due, Some(second.after(timeout)));
            beat.last_received(second);
            assert_eq!(beat.due, Some(first.after(2 * period)), "an answer in time leaves nothing to wait for");
        }
        let mut late = Heartbeat::new(Some(period), timeout, begin);
        late.begin(begin, 1);
        let awake = begin.after(Duration::from_secs(3600));
        assert_eq!(late.check(awake, true, true), HeartbeatAction::Nothing);
        assert_eq!(late.due, Some(awake.after(period)), "turns that went by are not made up for");
    }

    #[test]
    fn a_connection_that_does_not_answer_is_dead_unless_it_is_not_read() {
        let (period, timeout) = (Duration::from_secs(30), Duration::from_secs(40));
        let mut beat = Heartbeat::new(Some(period), timeout, Moment::default());
        beat.begin(Moment::default(), 1);
        let pinged = beat.turn;
        assert_eq!(beat.check(pinged, true, false), HeartbeatAction::Ping);
        assert_eq!(
            beat.check(pinged.after(timeout), false, false),
            HeartbeatAction::Nothing,
            "nothing can be received from it"
        );
        assert!(beat.due > Some(pinged.after(timeout)));
        let late = beat.due.expect("it is looked at again");
        assert_eq!((beat.check(late, true, false), beat.due), (HeartbeatAction::Dead(timeout), None));
        assert_eq!(Heartbeat::new(None, timeout, Moment::default()).check(late, true, false), HeartbeatAction::Nothing);
    }

    #[test]
    fn connections_accepted_together_are_not_pinged_together() {
        let period = Duration::from_secs(30);
        let mut firsts: Vec<u128> = (1..=1000).map(|number| spread(period, number).as_millis()).collect();
        firsts.sort_unstable();
        assert!(firsts[0] >= 3000 && firsts[999] <= 30_000, "{} {}", firsts[0], firsts[999]);
        let farthest = firsts.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(farthest < Some(100), "{farthest:?} ms without one of a thousand");
    }
}
