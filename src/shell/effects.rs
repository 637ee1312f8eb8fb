//! Carries out the core's effects.

use std::rc::Rc;

use super::connections::AsLines;
use super::outbox::{Storage, are_held};
use super::reactor::Reactor;
use crate::bus::port::{Effect, Effects, Peer, Text};
use crate::io::Io;
use crate::scan::{Line, Span, Window};

/// The peer whose bytes the effects copy from, and the memory that they lie in with their offset there, if its lines can
/// be held in place.
pub(super) struct Source<'a> {
    pub from: Peer,
    pub window: Window<'a>,
    pub block: Option<(Storage, usize)>,
}

impl<I: Io> Reactor<I> {
    /// Carries out the effects of a call to the core; `source` has the bytes to copy.
    pub(super) fn carry_out(&mut self, effects: Effects<'_>, source: Option<&Source<'_>>) {
        let lines = effects.lines();
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    debug_assert!(source.is_some(), "a copy has a window");
                    match source {
                        Some(source) => self.copy(to, source, lines, span),
                        None => tracing::error!("{} bytes for {to:?} have no source: this is a bug", span.len()),
                    }
                }
                Effect::Insert { to, text } => self.insert(to, text, source.map(|source| source.from)),
                Effect::Pause(peer) => self.pause(peer, true),
                Effect::Resume(peer) => self.pause(peer, false),
                Effect::Spawn { worker, name, generation } => self.spawn(worker, name, generation),
                Effect::CloseStdin(worker) => {
                    if let Some(slot) = self.connections.slot(Peer::Worker(worker)) {
                        self.close_after_flush(slot);
                    }
                }
                Effect::Signal { worker, signal } => self.workers.processes.signal(worker, signal),
                Effect::Probe(worker) => self.tell_unread(worker),
                Effect::Release(worker) => {
                    if let Some(slot) = self.connections.release_worker(worker) {
                        self.leave(slot);
                    }
                }
                Effect::Close { client, how, why } => match self.connections.slot(Peer::Client(client)) {
                    Some(slot) => self.close(slot, how, why),
                    None => self.close_member(client, how),
                },
                Effect::PauseAccept => self.listeners.pause(),
                Effect::ResumeAccept => {
                    self.listeners.is_paused = false;
                    self.start_accepting();
                }
                Effect::CloseListener(listener) => self.listeners.close_listener(listener),
                Effect::OpenListener(listener) => self.open_listener(listener),
                Effect::StopAccept => self.stop_accepting(),
                Effect::Discovered { .. } => self.http.has_discovered = true,
                Effect::Report(report) => self.log.report(report, &self.workers.pools),
                Effect::Stray { worker, line, length } => self.log_stray(worker, &line, length),
                Effect::Done => self.is_done = true,
            }
        }
    }

    fn insert(&mut self, to: Peer, text: Text, from: Option<Peer>) {
        let bytes = text.as_bytes();
        let Some(slot) = self.connections.slot(to) else { return self.push_to_member(to, bytes) };
        let (outbox, length) = (&mut self.connections[AsLines(slot)].outbox, bytes.len());
        let queued = if are_held(length, length) {
            let storage = self.http.hold(Rc::new(text.into()));
            outbox.hold(storage, 0, length, self.io.buffers())
        } else {
            outbox.push(bytes, self.io.buffers())
        };
        self.queued(slot, from, to, queued);
    }

    fn copy(&mut self, to: Peer, source: &Source<'_>, lines: &[Line], span: Span) {
        let Some(slot) = self.connections.slot(to) else { return self.copy_to_member(to, source, lines, span) };
        let outbox = &mut self.connections[AsLines(slot)].outbox;
        let queued = match &source.block {
            Some((block, start)) if are_held(span.len(), block.capacity()) => {
                outbox.hold(block.clone(), start + span.start as usize, start + span.end as usize, self.io.buffers())
            }
            _ => outbox.push(source.window.get(span), self.io.buffers()),
        };
        self.queued(slot, Some(source.from), to, queued);
    }

    fn queued(&mut self, slot: usize, from: Option<Peer>, to: Peer, queued: Result<(), usize>) {
        self.connections.mark_dirty(slot);
        if let Err(lost) = queued {
            self.count_lost(from, to, lost);
        }
    }

    /// Pauses or resumes a peer.
    fn pause(&mut self, peer: Peer, is_paused: bool) {
        let Some(slot) = self.connections.slot(peer) else { return self.pause_member(peer, is_paused) };
        self.connections[AsLines(slot)].incoming.is_paused = is_paused;
        if is_paused {
            self.tell_half_closed(slot);
            self.doubt(slot);
            self.watch(slot);
        } else {
            self.connections.resume_soon(slot);
        }
    }
}
