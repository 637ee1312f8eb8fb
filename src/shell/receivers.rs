//! What the core addresses with its effects: a connection, or a client of HTTP, whose messages go over connections that come
//! and go. Both are reached by the same calls, so that nothing else has to know which of them a peer is.

use std::rc::Rc;

use super::connections::{Connection, PeerSlot};
use super::outbox::{Storage, are_held};
use super::reactor::Reactor;
use super::transport::Transport;
use crate::bus::port::{ClientKey, Close, Peer, Reason, ShortText};
use crate::io::Io;
use crate::scan::{Line, Span, Window};

/// The peer whose bytes the effects copy from, and the memory that they lie in with their offset there, if its lines can
/// be held in place.
pub(super) struct CopySource<'a> {
    pub from: Peer,
    pub window: Window<'a>,
    pub block: Option<(Storage, usize)>,
}

/// The receiver of what the core has for a peer.
enum Receiver {
    /// To the connection in this slot.
    Connection(usize),
    /// To a client whose messages are requests.
    HttpClient(ClientKey),
}

/// Bytes for a peer.
pub(super) enum Output<'a> {
    /// This span of bytes that were received, with the lines that the core has found in them.
    Received { source: &'a CopySource<'a>, lines: &'a [Line], span: Span },
    /// A text that the core has made, because of bytes of this peer or of its own accord.
    Made { text: ShortText, from: Option<Peer> },
}

impl<I: Io> Reactor<I> {
    /// None if the peer has gone: what is for it is dropped.
    #[inline]
    fn receiver(&self, peer: Peer) -> Option<Receiver> {
        match (self.connections.slot(peer), peer) {
            (Some(slot), _) => Some(Receiver::Connection(slot)),
            (None, Peer::Client(client)) => Some(Receiver::HttpClient(client)),
            (None, Peer::Worker(_)) => None,
        }
    }

    /// Delivers bytes to a peer: it sends them as soon as it can.
    pub(super) fn deliver(&mut self, to: Peer, output: Output<'_>) {
        match (self.receiver(to), output) {
            (Some(Receiver::Connection(slot)), Output::Received { source, span, .. }) => {
                let queued = self.queue_received(slot, source, span);
                self.queued(slot, Some(source.from), to, queued);
            }
            (Some(Receiver::Connection(slot)), Output::Made { text, from }) => {
                let queued = self.queue_text(slot, text);
                self.queued(slot, from, to, queued);
            }
            (Some(Receiver::HttpClient(client)), Output::Received { source, lines, span }) => {
                self.copy_to_http_client(client, source, lines, span);
            }
            (Some(Receiver::HttpClient(client)), Output::Made { text, .. }) => {
                self.push_to_http_client(client, text.as_bytes())
            }
            (None, _) => {}
        }
    }

    /// Pauses or resumes a peer.
    pub(super) fn set_paused(&mut self, peer: Peer, is_paused: bool) {
        match self.receiver(peer) {
            Some(Receiver::Connection(slot)) => self.pause_connection(slot, is_paused),
            Some(Receiver::HttpClient(client)) => self.pause_http_client(client, is_paused),
            None => {}
        }
    }

    /// Closes a client.
    pub(super) fn close_client(&mut self, client: ClientKey, how: Close, why: Reason) {
        match self.receiver(Peer::Client(client)) {
            Some(Receiver::Connection(slot)) => self.close(slot, how, why),
            Some(Receiver::HttpClient(client)) => self.close_http_client(client, how),
            None => {}
        }
    }

    fn queue_text(&mut self, slot: usize, text: ShortText) -> Result<(), usize> {
        let length = text.as_bytes().len();
        let Connection { transport, protocol } = self.connections.entry(slot);
        if are_held(length, length) {
            let storage = self.http.hold(Rc::new(text.into()));
            protocol.hold(&mut transport.outbox, storage, 0, length, self.io.buffers())
        } else {
            protocol.push(&mut transport.outbox, text.as_bytes(), self.io.buffers())
        }
    }

    #[inline]
    fn queue_received(&mut self, slot: usize, source: &CopySource<'_>, span: Span) -> Result<(), usize> {
        let Connection { transport: Transport { outbox, .. }, protocol } = self.connections.entry(slot);
        match &source.block {
            Some((block, at)) if are_held(span.len(), block.capacity()) => {
                let (start, end) = (at + span.start as usize, at + span.end as usize);
                protocol.hold(outbox, block.clone(), start, end, self.io.buffers())
            }
            _ => protocol.push(outbox, source.window.get(span), self.io.buffers()),
        }
    }

    #[inline]
    fn queued(&mut self, slot: usize, from: Option<Peer>, to: Peer, queued: Result<(), usize>) {
        self.connections.mark_dirty(slot);
        if let Err(lost) = queued {
            self.count_lost(from, to, lost);
        }
    }

    fn pause_connection(&mut self, slot: usize, is_paused: bool) {
        self.connections[PeerSlot(slot)].incoming.is_paused = is_paused;
        if is_paused {
            self.report_half_closed(slot);
            self.check_soon(slot);
            self.watch(slot);
        } else {
            self.connections.resume_soon(slot);
        }
    }
}
