//! Workers as processes: starts them, logs their stderr, and handles their deaths and our signals.

mod child;
pub(super) mod client_env;
pub(super) mod memory_usage;
pub(super) mod processes;
pub(super) mod reap;
pub(super) mod spawn;
pub(super) mod starter;
pub(super) mod usage;

use std::os::fd::AsRawFd;

use super::connections::PeerSlot;
use super::endpoint::Endpoint;
use super::log;
use super::operation::Operation;
use super::reactor::Reactor;
use super::stderr::{LogItem, Stderr};
use super::transport::{Ends, PendingOp, Transport};
use crate::bus::port::{ClientKey, Input, Moment, Peer, SpawnFailure, WorkerKey, WorkerName};
use crate::io::{Io, Submission};
use crate::small_file;
use spawn::SpawnError;

/// Maximum length of the line of stderr that is kept for messages.
const LONGEST_SAID: usize = 200;

/// Keeps a line of a worker's stderr as the last one of its pool.
fn keep_last_line(kept: &mut String, line: &[u8]) {
    kept.clear();
    let text = String::from_utf8_lossy(&line[..line.len().min(LONGEST_SAID)]);
    kept.extend(text.chars().filter(|letter| !letter.is_control()));
}

impl<I: Io> Reactor<I> {
    /// Begins to start a worker. Its input is queued in its outbox meanwhile.
    pub(super) fn spawn(&mut self, worker: WorkerKey, name: WorkerName, generation: u32, client: Option<ClientKey>) {
        self.connections.add(Transport::of_worker(), Endpoint::of_worker(worker, name));
        let client = client.and_then(|client| self.listeners.grants.env_source(client));
        if let Err(error) = self.workers.begin(worker, name.pool, generation, client) {
            self.not_started(self.clock.now(), worker, name, &error);
        }
    }

    /// Takes over started workers.
    pub(super) fn started(&mut self, now: Moment) {
        while let Some((worker, result)) = self.workers.processes.next_started() {
            let Some(slot) = self.connections.slot(Peer::Worker(worker)) else { continue };
            let (transport, endpoint) = self.connections.peer_parts(slot);
            let Some(name) = endpoint.name.as_deref().copied() else { continue };
            let spawned = match result {
                Ok(spawned) => spawned,
                Err(error) => {
                    self.not_started(now, worker, name, &error);
                    continue;
                }
            };
            for pipe in [&spawned.stdin, &spawned.stdout, &spawned.stderr] {
                self.io.opened(pipe.as_raw_fd());
            }
            transport.ends = Ends::Worker { stdin: Some(spawned.stdin), stdout: Some(spawned.stdout) };
            endpoint.stderr = Some(Box::new(Stderr::new(spawned.stderr)));
            self.dispatch(now, Input::Spawned { worker, pid: spawned.pid });
            self.notify.changed();
            self.arm_read(slot);
            self.watch(slot);
            self.read_stderr(slot);
            self.connections.mark_dirty(slot);
        }
    }

    fn not_started(&mut self, now: Moment, worker: WorkerKey, name: WorkerName, error: &SpawnError) {
        if error.is_of_client {
            let (why, fault) = (error.error.to_string(), SpawnFailure::Client);
            return self.dispatch(now, Input::SpawnFailed { worker, why, fault });
        }
        let pool = &self.workers.pools[name.pool.index()];
        let user = pool.rights.identity.as_ref().map_or_else(String::new, |identity| format!(" as {identity}"));
        let why = format!("cannot start \"{}\" ({}){user}: {error}", pool.command, pool.program.display());
        // A temporary shortage says nothing about the command.
        let short = small_file::is_short(&error.error);
        let fault = if short { SpawnFailure::Shortage } else { SpawnFailure::Command };
        self.dispatch(now, Input::SpawnFailed { worker, why, fault });
    }

    /// Reads a worker's stderr, or the rest of it.
    pub(super) fn read_stderr(&mut self, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        let Some(stderr) = &mut endpoint.stderr else { return };
        let is_first = transport.in_flight.add(PendingOp::Stderr);
        debug_assert!(is_first);
        let read = Submission::Read {
            from: stderr.pipe.as_raw_fd(),
            into: stderr.block.as_mut_ptr(),
            bytes: stderr.block.len() as u32,
            registered: None,
            // The stderr of a dead worker is only read as far as available: a grandchild may keep the pipe open for
            // ever.
            now_or_never: transport.is_closing(),
        };
        // SAFETY: the connection keeps the block and the pipe while the read is in flight.
        unsafe { self.io.submit(read, Operation::ReadStderr.token(slot)) };
    }

    pub(super) fn stderr_read(&mut self, slot: usize, result: i32) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        transport.in_flight.end(PendingOp::Stderr);
        if let (Some(stderr), Some(name)) = (&mut endpoint.stderr, endpoint.name.as_deref().copied()) {
            let now = self.clock.now();
            let pool = &self.workers.pools[name.pool.index()];
            let last_lines = &mut self.workers.last_stderr;
            // The last line is kept whatever the log wants: what clients are sent does not depend on its level.
            let is_wanted = log::is_wanted(log::OF_WORKERS);
            let mut log_item = |item: LogItem<'_>| {
                if let LogItem::Line(line, _) = item {
                    keep_last_line(last_lines.entry(name.pool.index()).or_default(), line);
                }
                if is_wanted {
                    log::worker(&pool.core.id, name, item);
                }
            };
            if result > 0 {
                stderr.take(now, result as usize, true, &mut log_item);
            }
            if result <= 0 && result != -libc::ECANCELED {
                stderr.finish(now, &mut log_item);
                endpoint.stderr = None;
            }
            self.schedule(slot);
        }
        let is_leaving = self.connections[slot].is_closing();
        match &self.connections[PeerSlot(slot)].stderr {
            // It is read again when its pause is over (`log_left_out`).
            Some(stderr) if stderr.paused_until.is_some() && !is_leaving => {}
            Some(_) => self.read_stderr(slot),
            None => _ = self.remove_if_idle(slot),
        }
    }

    /// Logs a line that a worker has written to stdout and that is no message, as one of its stderr.
    pub(super) fn log_bad_line(&mut self, worker: WorkerKey, line: &[u8], length: usize) {
        const PLACE: &[u8] = b"stdout: ";
        let Some(slot) = self.connections.slot(Peer::Worker(worker)) else { return };
        let endpoint = &mut self.connections[PeerSlot(slot)];
        let Some(name) = endpoint.name.as_deref().copied() else { return };
        let line = [PLACE, line.strip_suffix(b"\r").unwrap_or(line)].concat();
        let length = length.max(line.len() - PLACE.len()) + PLACE.len();
        let pool = &self.workers.pools[name.pool.index()];
        let log_item = |item: LogItem<'_>| log::worker(&pool.core.id, name, item);
        match &mut endpoint.stderr {
            Some(stderr) => {
                stderr.pass(self.clock.now(), &line, length, log_item);
                self.schedule(slot);
            }
            None => log_item(LogItem::Line(&line, length)),
        }
    }

    /// Logs what was omitted from a worker's stderr, and reads it again after a pause, if that is due.
    pub(super) fn log_left_out(&mut self, now: Moment, slot: usize) {
        let (transport, endpoint) = self.connections.peer_parts(slot);
        let (Some(stderr), Some(name)) = (&mut endpoint.stderr, endpoint.name.as_deref().copied()) else { return };
        let pool = &self.workers.pools[name.pool.index()];
        stderr.log_left_out(now, |item| log::worker(&pool.core.id, name, item));
        let resumes = stderr.paused_until.take_if(|until| *until <= now).is_some();
        if resumes && !transport.in_flight.has(PendingOp::Stderr) {
            self.read_stderr(slot);
        }
    }

    /// Reaps dead processes.
    pub(super) fn reap(&mut self, now: Moment) {
        while let Some((worker, exit)) = self.workers.processes.next_dead() {
            if let Some(worker) = worker {
                self.dispatch(now, Input::Exited { worker, exit });
            }
        }
    }
}
