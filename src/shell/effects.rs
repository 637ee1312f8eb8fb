//! Carries out the core's effects.

use super::reactor::Reactor;
use super::receivers::{CopySource, Output};
use crate::bus::port::{Effect, Effects, Peer};
use crate::io::Io;

impl<I: Io> Reactor<I> {
    /// Carries out the effects of a call to the core; `source` has the bytes to copy.
    pub(super) fn carry_out(&mut self, effects: Effects<'_>, source: Option<&CopySource<'_>>) {
        let lines = effects.lines();
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    debug_assert!(source.is_some(), "a copy has a window");
                    match source {
                        Some(source) => self.deliver(to, Output::Received { source, lines, span }),
                        None => tracing::error!("{} bytes for {to:?} have no source: this is a bug", span.len()),
                    }
                }
                Effect::Insert { to, text } => {
                    self.deliver(to, Output::Made { text, from: source.map(|source| source.from) });
                }
                Effect::Pause(peer) => self.set_paused(peer, true),
                Effect::Resume(peer) => self.set_paused(peer, false),
                Effect::Spawn { worker, name, generation, client } => self.spawn(worker, name, generation, client),
                Effect::CloseStdin(worker) => {
                    if let Some(slot) = self.connections.slot(Peer::Worker(worker)) {
                        self.close_after_flush(slot);
                    }
                }
                Effect::Signal { worker, signal } => self.workers.processes.signal(worker, signal),
                Effect::Probe(worker) => self.report_unread(worker),
                Effect::Release(worker) => {
                    if let Some(slot) = self.connections.release_worker(worker) {
                        self.begin_close(slot);
                    }
                }
                Effect::Close { client, how, why } => self.close_client(client, how, why),
                Effect::PauseAccept => self.listeners.pause(),
                Effect::ResumeAccept => {
                    self.listeners.is_paused = false;
                    self.start_accepting();
                }
                Effect::CloseListener(listener) => self.listeners.close_listener(listener),
                Effect::OpenListener(listener) => self.open_listener(listener),
                Effect::HoldListener(listener) => self.listeners.hold(listener, true),
                Effect::ReleaseListener(listener) => {
                    self.listeners.hold(listener, false);
                    self.start_accepting();
                }
                Effect::LeaveSharedPorts => self.leave_shared_ports(),
                Effect::StopAccept => {
                    self.persistence.ends();
                    self.stop_accepting();
                    self.connections.end_with_answers();
                }
                Effect::Discovered { .. } => self.http.mcp.has_discovered = true,
                Effect::Report(report) => self.log.report(report, &self.workers.pools),
                Effect::BadLine { worker, line, length } => self.log_bad_line(worker, &line, length),
                Effect::Done => self.is_done = true,
            }
        }
    }
}
