//! Handles WebSocket control frames: sends and answers pings, and reports and sends closes.

use super::connection::Connection;
use super::connections::AsLines;
use super::reactor::Reactor;
use super::transport::State;
use super::websocket::{Beat, Ending};
use crate::bus::port::{Input, Moment, Peer};
use crate::io::Io;
use crate::websocket::close::{self, Fault};
use crate::websocket::encode;

impl<I: Io> Reactor<I> {
    /// Handles what was decoded besides lines.
    pub(super) fn after_frames(&mut self, now: Moment, slot: usize) {
        let Some(connection) = self.connections.lines_mut(slot) else { return };
        let Some(framing) = connection.outbox.framing() else { return };
        if framing.control_waits() {
            self.connections.mark_dirty(slot);
        }
        let connection = &mut self.connections[AsLines(slot)];
        if let (Some(web), Peer::Client(client)) = (&mut connection.web, connection.peer)
            && web.saw_binary
            && !std::mem::replace(&mut web.told_of_binary, true)
        {
            self.tell(now, Input::BinaryIgnored(client));
        }
        self.schedule(slot);
        self.tell_ending(now, slot);
    }

    /// Tells the core that a WebSocket was closed, once the core has all its lines.
    pub(super) fn tell_ending(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[AsLines(slot)];
        if connection.is_waiting_to_be_read() {
            return;
        }
        let (Some(web), Peer::Client(client)) = (&mut connection.web, connection.peer) else { return };
        let Some(ending) = web.take_ending() else { return };
        let input = match ending {
            Ending::Left(_) => Input::Left(client),
            Ending::Fault(Fault { code, reason }) => {
                let is_too_long = code == close::TOO_BIG;
                let why = format!("{reason} (WebSocket close code {code})");
                Input::Faulty { client, why, is_too_long }
            }
        };
        self.tell(now, input);
    }

    /// Queues a close frame, if none was queued. Returns whether it did.
    pub(super) fn queue_close_frame(&mut self, slot: usize) -> bool {
        let connection = &mut self.connections[AsLines(slot)];
        let (Some(web), Some(framing)) = (&mut connection.web, connection.outbox.framing()) else { return false };
        let Some((code, reason)) = web.take_close_frame() else { return false };
        framing.queue_control(&encode::close(code, reason, None));
        self.schedule(slot);
        true
    }

    /// Pings a silent connection, and closes one that did not answer.
    pub(super) fn ping(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[AsLines(slot)];
        let Connection { transport, web: Some(web), outbox, peer, incoming, .. } = connection else { return };
        // A peer that has closed will not answer, and a closing connection need not.
        if transport.state > State::Open || transport.has_ended() {
            return web.heartbeat.stop();
        }
        match web.heartbeat.check(now, !incoming.is_paused, !outbox.is_empty()) {
            Beat::Nothing => {}
            Beat::Ping => {
                if let Some(framing) = outbox.framing() {
                    framing.queue_control(&encode::ping(b"", None));
                }
                self.connections.mark_dirty(slot);
            }
            Beat::Dead(timeout) => {
                let (peer, seconds) = (*peer, timeout.as_secs());
                self.broken(now, slot, peer, format!("it has not answered a ping within {seconds} s"));
            }
        }
    }
}
