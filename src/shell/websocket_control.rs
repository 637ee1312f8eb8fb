//! WebSocket control frames: sends and answers WebSocket pings, and reports and sends closes.

use super::connections::Connection;
use super::protocol::Protocol;
use super::reactor::Reactor;
use super::transport::State;
use super::websocket::{Ending, HeartbeatAction};
use crate::bus::port::{Input, Moment, Peer};
use crate::io::Io;
use crate::websocket::close::{self, Violation};
use crate::websocket::encode;

impl<I: Io> Reactor<I> {
    /// Handles what was decoded besides lines.
    pub(super) fn after_frames(&mut self, now: Moment, slot: usize) {
        let Some(Connection { protocol: Protocol::WebSocket(endpoint, web), .. }) = self.connections.get_mut(slot)
        else {
            return;
        };
        let is_news = web.saw_binary && !std::mem::replace(&mut web.has_reported_binary, true);
        let (peer, is_urgent) = (endpoint.peer, web.output.control_waits());
        if is_urgent {
            self.connections.mark_dirty(slot);
        }
        if let Peer::Client(client) = peer
            && is_news
        {
            self.dispatch(now, Input::BinaryIgnored(client));
        }
        self.schedule(slot);
        self.report_websocket_end(now, slot);
    }

    /// Reports to the core that a WebSocket was closed, once the core has all its lines.
    pub(super) fn report_websocket_end(&mut self, now: Moment, slot: usize) {
        let Protocol::WebSocket(endpoint, web) = &mut self.connections.entry(slot).protocol else { return };
        if endpoint.is_waiting_to_be_read() {
            return;
        }
        let Peer::Client(client) = endpoint.peer else { return };
        let Some(ending) = web.take_ending() else { return };
        let input = match ending {
            Ending::Left(_) => Input::ClientLeft(client),
            Ending::Fault(Violation { code, reason }) => {
                let is_too_long = code == close::TOO_BIG;
                let why = format!("{reason} (WebSocket close code {code})");
                Input::FramingViolated { client, why, is_too_long }
            }
        };
        self.dispatch(now, input);
    }

    /// Queues a close frame, if none was queued. Returns whether it did.
    pub(super) fn queue_close_frame(&mut self, slot: usize) -> bool {
        let Some(web) = self.connections.entry(slot).protocol.web_mut() else { return false };
        let is_queued = web.queue_close_frame();
        self.schedule(slot);
        is_queued
    }

    /// Pings a silent connection, and closes one that did not answer.
    pub(super) fn ping(&mut self, now: Moment, slot: usize) {
        let Connection { transport, protocol: Protocol::WebSocket(endpoint, web) } = self.connections.entry(slot)
        else {
            return;
        };
        // A peer that has closed will not answer, and a closing connection need not.
        if transport.state > State::Open || transport.has_ended() {
            return web.heartbeat.stop();
        }
        let has_output = !transport.outbox.is_empty() || web.output.control_waits();
        match web.heartbeat.check(now, !endpoint.incoming.is_paused, has_output) {
            HeartbeatAction::Nothing => {}
            HeartbeatAction::Ping => {
                web.output.queue_control(&encode::ping(b"", None));
                self.connections.mark_dirty(slot);
            }
            HeartbeatAction::Dead(timeout) => {
                let (peer, seconds) = (endpoint.peer, timeout.as_secs());
                self.broken(now, slot, peer, format!("it has not answered a ping within {seconds} s"));
            }
        }
    }
}
