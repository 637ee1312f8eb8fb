//! What each effect of the core means to the kernel.

use std::rc::Rc;

use super::log;
use super::outbox::are_held;
use super::reactor::{Reactor, Source};
use crate::bus::port::{Effect, Effects, Peer};
use crate::io::Io;
use crate::scan::Span;

impl<I: Io> Reactor<I> {
    /// Carries out what a call of the core has led to; what it copies lies in `source`.
    pub(super) fn carry_out(&mut self, effects: Effects<'_>, source: Option<&Source<'_>>) {
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    debug_assert!(source.is_some(), "a copy has a window");
                    match source {
                        Some(source) => self.copy(to, source, span),
                        None => tracing::error!("{} bytes for {to:?} have no source: this is a bug", span.len()),
                    }
                }
                Effect::Insert { to, text } => {
                    let Some(slot) = self.slot(to) else { continue };
                    let pushed = self.connections[slot].outbox.push(text.as_bytes(), self.io.buffers());
                    self.mark_dirty(slot);
                    if let Err(lost) = pushed {
                        self.count_lost(source.map(|source| source.from), to, lost);
                    }
                }
                Effect::Pause { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.connections[slot].paused = true;
                        self.tell_half_closed(slot);
                        self.watch(slot);
                    }
                }
                Effect::Resume { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.connections[slot].paused = false;
                        self.resume_soon(slot);
                    }
                }
                Effect::Spawn { worker, name } => self.spawn(worker, name),
                Effect::CloseStdin { worker } => {
                    if let Some(slot) = self.slot(Peer::Worker(worker)) {
                        self.close_after_flush(slot);
                    }
                }
                Effect::Signal { worker, signal } => self.processes.signal(worker, signal),
                Effect::Probe { worker } => self.tell_unread(worker),
                Effect::Release { worker } => {
                    if let Some(slot) = self.workers.get_mut(worker.index()).and_then(Option::take) {
                        self.leave(slot);
                    }
                }
                Effect::Close { client, how, why } => {
                    if let Some(slot) = self.slot(Peer::Client(client)) {
                        self.close(slot, how, why);
                    }
                }
                Effect::PauseAccept => self.accept_paused = true,
                Effect::ResumeAccept => {
                    self.accept_paused = false;
                    for acceptor in 0..self.acceptors.len() {
                        self.arm_accept(acceptor);
                    }
                }
                Effect::CloseListener { listener } => self.close_listener(listener),
                Effect::OpenListener { listener } => self.open_listener(listener),
                Effect::StopAccept => {
                    self.closed_for_good = true;
                    for acceptor in 0..self.acceptors.len() {
                        self.close_acceptor(acceptor);
                    }
                }
                Effect::Report(report) => {
                    self.recent.add(&report);
                    log::report(&report, |pool| self.pools.get(pool).map_or_else(String::new, |p| p.core.id.clone()));
                }
                Effect::Done => self.done = true,
            }
        }
    }

    fn copy(&mut self, to: Peer, source: &Source<'_>, span: Span) {
        let Some(slot) = self.slot(to) else { return };
        let outbox = &mut self.connections[slot].outbox;
        let queued = match &source.block {
            Some((block, start)) if are_held(span.len(), block.capacity()) => {
                outbox.hold(Rc::clone(block), start + span.start as usize, start + span.end as usize, self.io.buffers())
            }
            _ => outbox.push(source.window.get(span), self.io.buffers()),
        };
        self.mark_dirty(slot);
        if let Err(lost) = queued {
            self.count_lost(Some(source.from), to, lost);
        }
    }
}
