//! The connection of a peer of the core, a client or a worker, that speaks lines or, as a client, WebSocket: above its
//! transport its unconsumed input and its queued output.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::framing::Framing;
use super::inbox::Inbox;
use super::inherited;
use super::outbox::Outbox;
use super::stderr::Stderr;
use super::transport::{Ends, Flight, State, Transport};
use super::websocket::WebSocket;
use crate::bus::port::{Moment, Peer, WorkerKey, WorkerName};

pub(super) struct Connection {
    /// What moves its bytes.
    pub transport: Transport,
    pub peer: Peer,
    /// The worker's name, if it is one.
    pub name: Option<Box<WorkerName>>,
    /// A worker's stderr.
    pub stderr: Option<Box<Stderr>>,
    /// Its unconsumed input.
    pub inbox: Inbox,
    /// Its queued output.
    pub outbox: Outbox,
    /// The state of its input.
    pub incoming: Incoming,
    /// It is among the connections whose buffered bytes are presented next.
    pub is_resumed: bool,
    /// Its WebSocket state, if it speaks that.
    pub web: Option<Box<WebSocket>>,
    /// When to look for signs of the client's network, if that is monitored.
    pub look_at: Option<Moment>,
}

/// What becomes of an input.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Incoming {
    /// The core has paused it.
    pub is_paused: bool,
    /// Further input is discarded.
    pub is_discarded: bool,
    /// The last receive left bytes in the socket.
    pub has_more: bool,
    /// Its end was reported to the core, after all bytes before it.
    pub is_end_told: bool,
    /// It was not read when it was last looked for, and has not been since (`liveness.rs`).
    pub is_doubted: bool,
}

impl Connection {
    /// A worker that is being spawned: its pipes do not exist yet.
    pub(super) fn starting(worker: WorkerKey, name: WorkerName) -> Self {
        let ends = Ends::Worker { stdin: None, stdout: None };
        Self { name: Some(Box::new(name)), ..Self::over(Peer::Worker(worker), Transport::new(ends)) }
    }

    /// An accepted client.
    pub(super) fn socket(peer: Peer, socket: OwnedFd) -> Self {
        Self::over(peer, Transport::new(Ends::Socket(socket)))
    }

    /// A client over a transport that has carried its handshake.
    pub(super) fn over(peer: Peer, transport: Transport) -> Self {
        Self {
            peer,
            name: None,
            stderr: None,
            inbox: Inbox::new(transport.ends.is_worker()),
            outbox: Outbox::new(transport.ends.is_socket()),
            transport,
            incoming: Incoming::default(),
            is_resumed: false,
            web: None,
            look_at: None,
        }
    }

    /// The client on the process's own stdin and stdout.
    pub(super) fn stdio(peer: Peer, stdin: BorrowedFd<'static>, stdout: BorrowedFd<'static>) -> Self {
        let ends = Ends::Stdio { stdin, stdout, writes_aside: inherited::may_block(stdout) };
        Self::over(peer, Transport::new(ends))
    }

    /// The same, where a test decides whether writing may block.
    #[cfg(test)]
    pub(super) fn writing_aside(mut self, aside: bool) -> Self {
        if let Ends::Stdio { writes_aside, .. } = &mut self.transport.ends {
            *writes_aside = aside;
        }
        self
    }

    /// The connection of a WebSocket client.
    pub(super) fn speaking(mut self, web: WebSocket, framing: Framing) -> Self {
        self.web = Some(Box::new(web));
        self.outbox.frame_lines(framing);
        self
    }

    /// Memory used, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.inbox.weight() + self.outbox.weight()
    }

    /// Whether it should be read now.
    pub(super) fn is_to_be_read(&self) -> bool {
        let is_wanted = !self.incoming.is_paused || self.incoming.is_discarded;
        let is_busy = self.transport.in_flight.has(Flight::Read) || self.transport.in_flight.has(Flight::Presentation);
        // The end of a WebSocket's input that the core was not told of.
        let is_over = self.web.as_ref().is_some_and(|web| web.ending.is_some() && !web.is_told);
        let is_closed = self.transport.is_closing() || is_over;
        is_wanted && !self.transport.has_ended() && !is_busy && !self.is_resumed && !is_closed
    }

    /// Whether no read would show the peer's departure.
    pub(super) fn is_not_read(&self) -> bool {
        self.incoming.is_paused || self.transport.has_ended()
    }

    /// Whether its departure is watched for.
    pub(super) fn is_to_be_watched(&self) -> bool {
        let is_client = self.transport.ends.is_socket() && self.is_not_read();
        (is_client || self.transport.ends.is_worker()) && self.transport.state < State::Lingering
    }

    /// Whether there is input that the core has not seen, and is not processing.
    pub(super) fn is_waiting_to_be_read(&self) -> bool {
        self.incoming.is_paused || self.is_resumed
    }

    /// Decodes the first `received` of `bytes`, which has room for one more, to lines in place. Returns the length of
    /// the lines: the same, except for WebSocket frames.
    pub(super) fn decode(&mut self, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        match (&mut self.web, self.outbox.framing()) {
            (Some(web), Some(framing)) => web.decode(framing, now, bytes, received),
            _ => received,
        }
    }

    /// The kernel has read this many bytes into the inbox. WebSocket frames are decoded to lines there.
    pub(super) fn filled(&mut self, now: Moment, received: usize) {
        let bytes = match (&mut self.web, self.outbox.framing()) {
            (Some(web), Some(framing)) => web.decode(framing, now, self.inbox.received(received), received),
            _ => received,
        };
        self.inbox.filled(bytes);
    }

    /// When its timers are due.
    pub(super) fn due(&self) -> Option<Moment> {
        let left_out = self.stderr.as_ref().and_then(|stderr| stderr.left_out_due());
        let ping = self.web.as_ref().and_then(|web| web.heartbeat.due);
        let stderr = self.stderr.as_ref().and_then(|stderr| stderr.paused_until);
        [self.transport.room.due(), self.look_at, ping, left_out, stderr].into_iter().flatten().min()
    }
}
