//! What a connection speaks over its transport: between bytes there and messages here.
//!
//! To the core a message is a line, so [`Protocol`] says how lines become bytes and bytes become lines. Clients on TCP,
//! Unix sockets and stdio and all workers send the lines themselves; a WebSocket sends a frame for each. Another framing,
//! of workers, too, is another variant here. Over HTTP a message takes part in an exchange, and its client may be no
//! connection at all (`http`).

use std::os::fd::RawFd;

use super::endpoint::Endpoint;
use super::http::exchange::Exchange;
use super::outbox::{Outbox, Storage};
use super::transport::Transport;
use super::websocket::WebSocket;
use crate::bus::port::Moment;
use crate::io::Submission;
use crate::io::buffers::Buffers;

/// See the module documentation.
pub(super) enum Protocol {
    /// Lines, as they are.
    Lines(Endpoint),
    /// A frame of a WebSocket for each line of a client.
    WebSocket(Endpoint, Box<WebSocket>),
    /// HTTP: for requests of clients, of an operator, or in its handshake, after which it speaks another protocol.
    Http(Box<Exchange>),
}

/// A thousand clients may be idle.
const _: () = assert!(size_of::<Transport>() + size_of::<Protocol>() <= 168);

impl Protocol {
    /// The peer of the core whose messages it carries.
    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Lines(endpoint) | Self::WebSocket(endpoint, _) => Some(endpoint),
            Self::Http(_) => None,
        }
    }

    pub(super) fn endpoint_mut(&mut self) -> Option<&mut Endpoint> {
        match self {
            Self::Lines(endpoint) | Self::WebSocket(endpoint, _) => Some(endpoint),
            Self::Http(_) => None,
        }
    }

    /// Its WebSocket, if it speaks that.
    pub(super) fn web(&self) -> Option<&WebSocket> {
        if let Self::WebSocket(_, web) = self { Some(web) } else { None }
    }

    pub(super) fn web_mut(&mut self) -> Option<&mut WebSocket> {
        if let Self::WebSocket(_, web) = self { Some(web) } else { None }
    }

    /// Decodes the first `received` of `bytes`, which has room for one more, to lines in place. Returns the length of
    /// the lines.
    pub(super) fn decode(&mut self, now: Moment, bytes: &mut [u8], received: usize) -> usize {
        match self {
            Self::WebSocket(_, web) => web.decode(now, bytes, received),
            Self::Lines(_) | Self::Http(_) => received,
        }
    }

    /// Queues a copy of these bytes of lines.
    ///
    /// # Errors
    /// The system is out of memory: so many bytes of lines are lost ([`Outbox::push`]).
    pub(super) fn push(&mut self, outbox: &mut Outbox, bytes: &[u8], buffers: &mut Buffers) -> Result<(), usize> {
        match self {
            Self::WebSocket(_, web) => web.output.push(outbox, bytes, None, buffers),
            Self::Lines(_) | Self::Http(_) => outbox.push(bytes, buffers),
        }
    }

    /// Queues the bytes of lines `start..end` there without copying them.
    ///
    /// # Errors
    /// As for [`Protocol::push`].
    pub(super) fn hold(
        &mut self,
        outbox: &mut Outbox,
        storage: Storage,
        start: usize,
        end: usize,
        buffers: &mut Buffers,
    ) -> Result<(), usize> {
        match self {
            Self::WebSocket(_, web) => {
                let bytes = storage.bytes(start, end);
                web.output.push(outbox, bytes, Some((&storage, start)), buffers)
            }
            Self::Lines(_) | Self::Http(_) => outbox.hold(storage, start, end),
        }
    }

    /// The write of the next bytes there, and their number; valid until the next call of [`Protocol::advance`].
    pub(super) fn next(&mut self, outbox: &mut Outbox, to: RawFd, is_socket: bool) -> Option<(Submission, usize)> {
        match self {
            Self::WebSocket(_, web) => web.output.next(outbox, to),
            Self::Lines(_) | Self::Http(_) => outbox.next(to, is_socket),
        }
    }

    /// Removes the first `bytes` of the output, which were written. Returns how many bytes of lines that is.
    pub(super) fn advance(&mut self, outbox: &mut Outbox, bytes: usize, buffers: &mut Buffers) -> usize {
        match self {
            Self::WebSocket(_, web) => web.output.advance(outbox, bytes, buffers),
            Self::Lines(_) | Self::Http(_) => {
                outbox.advance(bytes, buffers);
                bytes
            }
        }
    }

    /// When its own timers are due.
    pub(super) fn due(&self) -> Option<Moment> {
        match self {
            Self::Lines(endpoint) => {
                let stderr = endpoint.stderr.as_deref()?;
                [stderr.left_out_due(), stderr.paused_until].into_iter().flatten().min()
            }
            Self::WebSocket(_, web) => web.heartbeat.due,
            Self::Http(_) => None,
        }
    }

    /// Memory used besides its transport, in bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Lines(_) => 0,
            Self::WebSocket(_, web) => web.output.weight(),
            Self::Http(exchange) => exchange.weight(),
        }
    }
}
